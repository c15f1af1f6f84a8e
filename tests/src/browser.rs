//! A headless browser (Debian's chromium), driven by the DevTools protocol over pipes: for tests of pages.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hca_vm::apt::Apt;
use hca_vm::cache::Cache;
use nix::sys::stat::Mode;
use serde_json::{Value, json};

/// Names a browser to use instead of looking for one.
const VARIABLE: &str = "HCA_CHROMIUM";
/// What the private one is made of.
const RECIPE: &str = "chromium 1: bookworm: chromium";
/// How long an answer may take: machines are busy.
const PATIENCE: Duration = Duration::from_secs(240);

/// A browser with one page.
pub struct Browser {
    child: Child,
    input: File,
    output: File,
    /// Bytes that were read behind the last message.
    rest: Vec<u8>,
    session: String,
    sent: u64,
    /// What the page told of itself and nobody has taken.
    told: Vec<Value>,
    scratch: PathBuf,
}

/// The command that starts a browser: this machine's, or a private one from Debian's package in the cache directory.
///
/// # Errors
/// There is none and none can be had, or it does not start: with the reason.
pub fn command() -> Result<Command> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    for name in named.into_iter().chain(["chromium", "chromium-browser", "google-chrome"].map(PathBuf::from))
    {
        if works(&mut Command::new(&name)) {
            return Ok(Command::new(name));
        }
    }
    let cache = Cache::open()?;
    let folder = cache.get_or_build("chromium", RECIPE, |folder| {
        Apt::new(&cache, &["bookworm"]).unpack(&["chromium".into()], folder, |_| false).map(drop)
    })?;
    let private = || {
        let mut command = Command::new(folder.join("usr/lib/chromium/chromium"));
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/chromium"];
        let libraries: Vec<String> = libraries.iter().map(|l| folder.join(l).display().to_string()).collect();
        command.env("LD_LIBRARY_PATH", libraries.join(":"));
        command
    };
    if works(&mut private()) {
        Ok(private())
    } else {
        bail!("Debian's chromium does not start on this machine")
    }
}

/// Whether it says its version.
fn works(command: &mut Command) -> bool {
    let quiet = command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

impl Browser {
    /// Starts one, with an empty page.
    ///
    /// # Errors
    /// There is none, or it does not answer.
    pub fn start(scratch: &Path) -> Result<Self> {
        let scratch = scratch.join("browser");
        std::fs::create_dir_all(&scratch)?;
        let [to, from] = ["to", "from"].map(|name| scratch.join(name));
        for pipe in [&to, &from] {
            nix::unistd::mkfifo(pipe, Mode::S_IRWXU).context("a pipe")?;
        }
        let browser = command()?;
        // The protocol's descriptors are 3 and 4.
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg("to=$1 from=$2; shift 2; exec \"$@\" 3<\"$to\" 4>\"$from\"")
            .arg("sh")
            .args([&to, &from]);
        shell.arg(browser.get_program());
        shell.envs(browser.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]);
        shell.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
        shell.args(["--remote-debugging-pipe", "--hide-scrollbars=false"]);
        shell.arg(format!("--user-data-dir={}", scratch.join("profile").display()));
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = shell.spawn().context("sh")?;
        // In the order in which the shell opens them.
        let input = File::options().write(true).open(&to)?;
        let output = File::open(&from)?;
        let mut browser = Self {
            child,
            input,
            output,
            rest: Vec::new(),
            session: String::new(),
            sent: 0,
            told: Vec::new(),
            scratch,
        };
        let page = browser.call("Target.createTarget", &json!({ "url": "about:blank" }))?;
        let attached = browser
            .call("Target.attachToTarget", &json!({ "targetId": page["targetId"], "flatten": true }))?;
        browser.session = attached["sessionId"].as_str().context("no session")?.to_owned();
        for domain in ["Page", "Network", "Runtime"] {
            browser.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(browser)
    }

    /// Calls a method of the protocol and waits for its answer.
    ///
    /// # Errors
    /// It fails, or does not answer.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.sent += 1;
        let id = self.sent;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        self.input.write_all(format!("{message}\0").as_bytes()).context("the browser has ended")?;
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = self.next(until).with_context(|| method.to_owned())?;
            if answer["id"] != id {
                self.told.push(answer);
            } else if let Some(error) = answer.get("error") {
                bail!("{method}: {error}");
            } else {
                return Ok(answer["result"].clone());
            }
        }
    }

    fn next(&mut self, until: Instant) -> Result<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == 0) {
                let message: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(serde_json::from_slice(&message[..end])?);
            }
            if Instant::now() > until {
                bail!("the browser does not answer");
            }
            let mut chunk = [0; 1 << 16];
            match self.output.read(&mut chunk)? {
                0 => bail!("the browser has ended"),
                n => self.rest.extend_from_slice(&chunk[..n]),
            }
        }
    }

    /// Shows a file in a window of so many pixels, and waits until it is there. Returns the addresses that were asked for.
    ///
    /// # Errors
    /// It can't be shown.
    pub fn show(&mut self, file: &Path, (width, height): (u32, u32), scheme: &str) -> Result<Vec<String>> {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": true });
        self.call("Emulation.setDeviceMetricsOverride", &size)?;
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", &scheme)?;
        self.told.clear();
        self.call("Page.navigate", &json!({ "url": format!("file://{}", file.display()) }))?;
        let until = Instant::now() + PATIENCE;
        while !self.told.iter().any(|told| told["method"] == "Page.loadEventFired") {
            let told = self.next(until)?;
            self.told.push(told);
        }
        let asked = self.told.iter().filter(|told| told["method"] == "Network.requestWillBeSent");
        Ok(asked.filter_map(|told| told["params"]["request"]["url"].as_str().map(str::to_owned)).collect())
    }

    /// The value of an expression in the page.
    ///
    /// # Errors
    /// It throws.
    pub fn value(&mut self, expression: &str) -> Result<Value> {
        let what = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", &what)?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!("{thrown}");
        }
        Ok(answer["result"]["value"].clone())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session.clear();
        let _ = self.input.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}
