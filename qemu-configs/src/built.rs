//! Programs that cargo brings up to date, and says where they are.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::child::tie;
use crate::progress;

/// Has cargo do that in a source checkout, with a line about `what` if it takes a while. Returns where the program of that name is.
///
/// # Errors
/// There is no cargo, it fails, or it builds no such program.
pub fn by_cargo(source: &Path, arguments: &[&str], name: &str, what: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut child = tie(&mut Command::new(&cargo), &[])
        .current_dir(source)
        .args(arguments)
        .args(["--quiet", "--message-format=json-render-diagnostics"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .with_context(|| format!("cannot run {} to build {name}", cargo.display()))?;
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stdout) = stdout {
            let _ = stdout.read_to_end(&mut bytes);
        }
        bytes
    });
    let started = Instant::now();
    let mut step = None;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        // Most of the time there is nothing to build, and nothing to say.
        if step.is_none() && started.elapsed() > Duration::from_secs(2) {
            step = Some(progress::Step::start(what));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let messages = reader.join().unwrap_or_default();
    if let Some(step) = step {
        step.done();
    }
    if !status.success() {
        bail!("building {name} (cargo {}) failed", arguments.join(" "));
    }
    named(&messages, name).with_context(|| format!("cargo did not say where it put {name}"))
}

/// Where the program or example of that name is, by cargo's messages. Its unit tests have the same name, and are not it.
fn named(messages: &[u8], name: &str) -> Option<PathBuf> {
    messages
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == name && message["profile"]["test"] == false)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a program cargo names its library, its unit tests and itself alike, in any order.
    #[test]
    fn unit_tests_are_not_the_program() {
        let line = |kind: &str, test: bool, path: &str| {
            let target = serde_json::json!({ "name": "softhca", "kind": [kind] });
            serde_json::json!({ "target": target, "profile": { "test": test }, "executable": path })
                .to_string()
        };
        let library =
            r#"{"target":{"name":"softhca","kind":["lib"]},"profile":{"test":false},"executable":null}"#;
        let (tests, program) = (line("bin", true, "deps/softhca-1"), line("bin", false, "softhca"));
        let other = program.replace("softhca", "other");
        for order in [[&tests, &program], [&program, &tests]] {
            let said = format!("no message\n{library}\n{other}\n{}\n{}\n", order[0], order[1]);
            assert_eq!(named(said.as_bytes(), "softhca"), Some(PathBuf::from("softhca")));
        }
        assert_eq!(named(format!("{library}\n{tests}\n").as_bytes(), "softhca"), None);
    }
}
