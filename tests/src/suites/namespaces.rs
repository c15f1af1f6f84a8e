//! One simulation in two namespaces of networks, joined by proxies over TCP: what happens is what happens in one process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::peers::{Ended, installed};
use super::sim::{KINDS, Kind, Process, RUN, Run, command, run, times, topology, ways};
use super::{Case, Outcome, guest};

/// SimBricks' own proxy.
const THEIRS: &str = "net_sockets";
/// Processes of the simulation, half of them in each namespace.
const PROCESSES: usize = 4;
/// The link between the halves.
const TRUNK: &str = "trunk4.sock";
/// Addresses for tests of networks (RFC 2544), of both namespaces, and the port.
const ADDRESSES: [&str; 2] = ["198.18.0.1", "198.18.0.2"];
const PORT: &str = "7000";

/// Two namespaces of networks, joined by a cable; gone at the end.
struct Namespaces([String; 2]);

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(args).output().map_err(|why| format!("ip: {why}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {said}", args.join(" "))) }
}

impl Namespaces {
    fn new() -> Result<Self, String> {
        let names = ["a", "b"].map(|end| format!("softhca-{}-{end}", std::process::id()));
        let all = Self(names);
        let [a, b] = &all.0;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["link", "add", "veth0", "netns", a, "type", "veth", "peer", "name", "veth0", "netns", b])?;
        for (name, address) in all.0.iter().zip(ADDRESSES) {
            ip(&["-n", name, "addr", "add", &format!("{address}/30"), "dev", "veth0"])?;
            ip(&["-n", name, "link", "set", "veth0", "up"])?;
        }
        Ok(all)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| drop(ip(&["netns", "del", name])));
    }
}

/// A proxy in each namespace; `dirs` are the run directories of both.
fn proxies(tool: &Path, ours: bool, names: &[String; 2], dirs: &[PathBuf; 2]) -> Result<[Ended; 2], String> {
    let start = |end: usize| {
        let socket = dirs[end].join(TRUNK);
        let mut command = command(tool, Some(&names[end]), false);
        let at = ADDRESSES[0];
        if ours {
            let way = ["--listen", "--connect"][end];
            let role = ["connect", "listen"][end];
            command.args([
                "sim-proxy",
                way,
                &format!("{at}:{PORT}"),
                &format!("{role}:{}", socket.display()),
            ]);
        } else {
            command.args(if end == 0 { &["-l", "-C"][..] } else { &["-L"] }).arg(&socket).arg("-s");
            command.arg(dirs[end].join("shm")).args([at, PORT]);
            command.arg(dirs[end].join("info")).arg(dirs[end].join("ready"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        command.spawn().map(Ended).map_err(|why| why.to_string())
    };
    Ok([start(0)?, start(1)?])
}

/// One run with proxies between, whose processes are on one processor if they are `pinned`.
fn apart(
    Kind { fabric, trunk, options, .. }: Kind,
    (program, folder): (&Path, &Path),
    (tool, ours): (&Path, bool),
    names: &[String; 2],
    pinned: bool,
) -> Result<Run, String> {
    let dirs = ["left", "right"].map(|side| folder.join(side));
    for dir in &dirs {
        std::fs::create_dir_all(dir).map_err(|why| why.to_string())?;
    }
    let mut between = proxies(tool, ours, names, &dirs)?;
    let process = |number: usize| {
        let side = number * 2 / PROCESSES;
        let (namespace, dir) = (names.get(side).cloned(), dirs.get(side).cloned());
        Process { name: Some(format!("p{number}")), namespace, dir, pinned, ..Process::default() }
    };
    let processes: Vec<_> = (0..PROCESSES).map(process).collect();
    let done = run(program, folder, &topology(PROCESSES, fabric, trunk), &processes, &more(options));
    if ours && done.is_ok() {
        // They end by themselves, when the links have.
        for Ended(proxy) in &mut between {
            let status = proxy.wait().map_err(|why| why.to_string())?;
            if !status.success() {
                return Err(format!("a proxy ended with {status}"));
            }
        }
    }
    done
}

fn more(options: &[&'static str]) -> Vec<&'static str> {
    [&RUN[..], options].concat()
}

fn case(kind: Kind, program: &Path, folder: &Path, (tool, ours): (&Path, bool)) -> Result<String, String> {
    let names = Namespaces::new()?;
    let Kind { fabric, trunk, options, .. } = kind;
    let whole = topology(PROCESSES, fabric, trunk);
    let one = run(program, &folder.join("one"), &whole, &[Process::default()], &more(options))?;
    for (time, pinned) in ways() {
        let folder = folder.join(time.to_string());
        let other = apart(kind, (program, &folder), (tool, ours), &names.0, pinned)?;
        if (one.hashes, one.counts) != (other.hashes, other.counts) {
            return Err(format!("run {time}: {other:?}; one process: {one:?}"));
        }
    }
    Ok(format!("{:?} events, packets, completions, {}", one.counts, times()))
}

/// Why there can be no namespaces.
fn hindrance() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("namespaces of networks need root".into());
    }
    if installed("ip").is_none() {
        return Some("ip is not installed".into());
    }
    Namespaces::new().err()
}

/// Our proxies, and SimBricks', if they are installed.
pub fn cases(program: &Path, folder: &Path) -> Vec<Case> {
    let theirs = installed(THEIRS).ok_or(format!("{THEIRS} is not installed"));
    let tools = [("softhca sim-proxy", Ok(program.to_path_buf())), ("SimBricks' proxies", theirs)];
    let all = tools.into_iter().flat_map(|tool| KINDS.map(|kind| (kind, tool.clone())));
    let named = |(kind, (proxies, tool)): (Kind, (&'static str, Result<PathBuf, String>))| {
        let name = format!("{}, {PROCESSES} processes in two namespaces, {proxies}", kind.name);
        (name, kind, proxies, tool)
    };
    let one = |(name, kind, proxies, tool): (String, Kind, &str, Result<PathBuf, String>)| {
        let tool = match hindrance().map_or(tool, Err) {
            Ok(tool) => tool,
            Err(why) => return Case::new(name, Outcome::Skipped, 0.0, why),
        };
        let began = Instant::now();
        let done = case(kind, program, &folder.join(proxies).join(kind.name), (&tool, tool == program));
        let seconds = began.elapsed().as_secs_f64();
        println!("{name}: {}", done.as_ref().map_or("failed", String::as_str));
        match done {
            Ok(detail) => Case::new(name, Outcome::Passed, seconds, detail),
            Err(why) => Case::new(name, Outcome::Failed, seconds, why),
        }
    };
    all.map(named).filter(|(name, ..)| guest::is_chosen(name)).map(one).collect()
}
