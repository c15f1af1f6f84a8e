//! Simulations whose links lead to others: a switch that speaks SimBricks is between two hosts.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::sim::{Process, Run, run};
use super::{Case, Outcome, guest};
use crate::bricks::{Counts, Socket, switch};

/// SimBricks' own switch.
const THEIRS: &str = "simb_net_switch";
/// Latency of the links of a switch, in ns: unlike that of cables, so that little happens at the same time.
const LATENCY_NS: u64 = 613;
/// Options of every run.
const RUN: [&str; 8] = ["--messages", "8", "--size", "8K", "--start", "1.5", "--until", "1.9"];

/// How two hosts are joined.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// InfiniBand, by a cable of that length in ns.
    Cable(u64),
    /// InfiniBand, in Ethernet frames over one socket.
    Framed,
    /// InfiniBand, in Ethernet frames, each end at a socket of its own.
    Apart,
    /// Ethernet ports, by a cable of that length.
    Ethernet(u64),
    /// Ethernet ports, each at a socket of its own, at which they listen, or (false) to which they connect.
    Frames(bool),
}

fn topology(way: Way) -> String {
    let mut text = "[fabric]\ntraining_ms = 0\nseed = 7\n".to_owned();
    let port = match way {
        Way::Ethernet(_) | Way::Frames(_) => "port_type = \"eth\"\n",
        Way::Cable(_) | Way::Framed | Way::Apart => "",
    };
    for (host, process) in [("a", "p"), ("b", "q")] {
        text += &format!("[[process]]\nname = \"{process}\"\n");
        text += &format!("[[host]]\nname = \"{host}\"\nprocess = \"{process}\"\n[[host.hca]]\n{port}");
        if let Way::Frames(listens) = way {
            let does = if listens { "listen" } else { "connect" };
            text += &format!(
                "[[outside]]\nname = \"n{host}\"\nkind = \"simbricks\"\n{does} = \"unix:{host}.sock\"\n"
            );
            text += &format!("[[link]]\nbetween = [\"{host}/hca0\", \"n{host}\"]\n");
        }
    }
    let link = "[[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n";
    text + &match way {
        Way::Cable(ns) | Way::Ethernet(ns) => {
            format!("{link}delay_ns = {ns}\nsimbricks = \"listen:ab.sock\"\n")
        }
        Way::Framed => format!("{link}simbricks = \"listen:ab.sock\"\nframing = \"ethernet\"\n"),
        Way::Apart => {
            format!("{link}simbricks = [\"listen:a.sock\", \"listen:b.sock\"]\nframing = \"ethernet\"\n")
        }
        Way::Frames(_) => String::new(),
    }
}

fn both() -> [Process; 2] {
    ["p", "q"].map(Process::named)
}

fn sockets(folder: &Path, listens: bool) -> Vec<Socket> {
    ["a.sock", "b.sock"].map(|name| Socket { path: folder.join(name), listens }).into()
}

/// Two hosts with our switch between them.
fn switched(program: &Path, folder: &Path, way: Way, processes: &[Process]) -> Result<(Run, Counts), String> {
    std::fs::create_dir_all(folder).map_err(|why| why.to_string())?;
    let listens = matches!(way, Way::Frames(false));
    let between = switch(sockets(folder, listens), LATENCY_NS * 1000);
    let run = run(program, folder, &topology(way), processes, &RUN);
    let counts = between.join().map_err(|_| "the switch has panicked")?;
    match (run, counts) {
        (Ok(run), Ok(counts)) => Ok((run, counts)),
        (run, counts) => Err(format!("{run:?}; the switch: {counts:?}")),
    }
}

fn same(what: &str, one: &Run, other: &Run) -> Result<(), String> {
    if (one.hashes, one.counts) == (other.hashes, other.counts) {
        Ok(())
    } else {
        Err(format!("{what}: {one:?} and {other:?}"))
    }
}

/// InfiniBand in Ethernet frames: over a socket, and by way of a switch whose latency a cable could have.
fn framed(program: &Path, folder: &Path) -> Result<String, String> {
    let run_ = |name: &str, way, processes: &[Process]| {
        run(program, &folder.join(name), &topology(way), processes, &RUN)
    };
    let raw = run_("raw", Way::Cable(5), &both())?;
    same("raw and framed", &raw, &run_("framed", Way::Framed, &both())?)?;
    let long = run_("long", Way::Cable(5 + LATENCY_NS), &[Process::default()])?;
    let mut frames = 0;
    for time in ["once", "twice"] {
        let (through, counts) = switched(program, &folder.join(time), Way::Apart, &both())?;
        same("a cable and a switch as long", &long, &through)?;
        frames = counts.frames;
    }
    Ok(format!("{:?} events, packets, completions as by a cable; {frames} frames", long.counts))
}

/// RoCE as plain frames, by way of a switch: in one process and in two, that listen and that connect.
fn roce(program: &Path, folder: &Path) -> Result<String, String> {
    let (apart, counts) = switched(program, &folder.join("apart"), Way::Frames(true), &both())?;
    let whole = [Process::default()];
    let (one, _) = switched(program, &folder.join("whole"), Way::Frames(true), &whole)?;
    same("two processes and one", &apart, &one)?;
    let (connects, _) = switched(program, &folder.join("connects"), Way::Frames(false), &both())?;
    same("who listens and who connects", &apart, &connects)?;
    // A cable as long: its ports train later, and nothing else differs.
    let cable = run(program, &folder.join("cable"), &topology(Way::Ethernet(5 + LATENCY_NS)), &whole, &RUN)?;
    if (cable.hashes[2], cable.counts[2]) != (one.hashes[2], one.counts[2]) {
        return Err(format!("completions differ from those of a cable as long: {cable:?} and {one:?}"));
    }
    if counts.frames < 100 || counts.longest > 1518 {
        return Err(format!("frames are not as expected: {counts:?}"));
    }
    Ok(format!("{:?} events, packets, completions; {counts:?}", one.counts))
}

/// A process that is ended.
pub(super) struct Ended(pub(super) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where a program is, if it is installed.
pub(super) fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Units of times on the command line of SimBricks' switch, and how many are a ns: from 0.6 on, and until 0.5. Taken for the other one,
/// nothing comes in time.
const UNITS: [(&str, u64); 2] = [("ps", 1000), ("ns", 1)];

/// SimBricks' own switch between two hosts, in whichever unit it has its times.
fn theirs(program: &Path, folder: &Path, tool: &Path, way: Way) -> Result<String, String> {
    let mut complaints = String::new();
    for (unit, of_ns) in UNITS {
        match twice(program, &folder.join(unit), tool, way, LATENCY_NS * of_ns) {
            Ok(detail) => return Ok(format!("{detail}, its times in {unit}")),
            Err(why) => complaints += &format!("with times in {unit}: {why}\n"),
        }
    }
    Err(complaints)
}

/// Two runs with it, which are the same. Ties have no order there, so that latencies are odd.
fn twice(program: &Path, folder: &Path, tool: &Path, way: Way, latency: u64) -> Result<String, String> {
    let mut first: Option<Run> = None;
    for time in ["once", "twice"] {
        let folder = folder.join(time);
        std::fs::create_dir_all(&folder).map_err(|why| why.to_string())?;
        let mut between = Command::new(tool);
        between.args(["-S", &latency.to_string(), "-E", &latency.to_string()]);
        let listens = matches!(way, Way::Frames(false));
        for socket in sockets(&folder, listens) {
            between.arg(if listens { "-h" } else { "-s" }).arg(socket.path);
        }
        // It tries once to connect: then it begins when the hosts listen.
        let starter = {
            let folder = folder.clone();
            std::thread::spawn(move || {
                let until = Instant::now() + std::time::Duration::from_secs(60);
                while !listens
                    && !sockets(&folder, false).iter().all(|socket| socket.path.exists())
                    && Instant::now() < until
                {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                between.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(Ended)
            })
        };
        let done = run(program, &folder, &topology(way), &both(), &RUN);
        drop(starter.join().map_err(|_| "its starter has panicked")?.map_err(|why| why.to_string())?);
        let done = done?;
        if let Some(first) = &first {
            same("two runs", first, &done)?;
        }
        first.get_or_insert(done);
    }
    let counts = first.map(|run| run.counts).unwrap_or_default();
    Ok(format!("{counts:?} events, packets, completions, twice"))
}

pub(super) fn case(name: &str, done: impl FnOnce() -> Result<String, String>) -> Option<Case> {
    if !guest::is_chosen(name) {
        return None;
    }
    let began = Instant::now();
    let done = done();
    let seconds = began.elapsed().as_secs_f64();
    println!("{name}: {}", done.as_ref().map_or("failed", String::as_str));
    Some(match done {
        Ok(detail) => Case::new(name, Outcome::Passed, seconds, detail),
        Err(why) => Case::new(name, Outcome::Failed, seconds, why),
    })
}

/// Our own switch, written for that, and SimBricks', if it is installed.
pub fn cases(program: &Path, folder: &Path) -> Vec<Case> {
    let ours = [
        case("InfiniBand in Ethernet frames, over a socket and through a switch", || {
            framed(program, &folder.join("framed"))
        }),
        case("RoCE as plain frames through a switch", || roce(program, &folder.join("roce"))),
    ];
    let mut cases: Vec<Case> = ours.into_iter().flatten().collect();
    for (name, way) in [
        ("InfiniBand in Ethernet frames through SimBricks' switch", Way::Apart),
        ("RoCE through SimBricks' switch", Way::Frames(true)),
        ("RoCE through SimBricks' switch, which listens", Way::Frames(false)),
    ] {
        let Some(tool) = installed(THEIRS) else {
            let skipped = Case::new(name, Outcome::Skipped, 0.0, format!("{THEIRS} is not installed"));
            cases.extend(Some(skipped).filter(|_| guest::is_chosen(name)));
            continue;
        };
        cases.extend(case(name, || theirs(program, &folder.join(format!("{way:?}")), &tool, way)));
    }
    cases
}
