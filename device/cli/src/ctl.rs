//! `softhca ctl`: looks at the links of a running server, takes their cables out and in, and has things go wrong.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use hca_server::control;
use hca_server::topology::Topology;
use hca_server::topology::faults::{Keys, TEXTS};
use serde_json::{Map, Value, json};

use crate::cli::print;

/// Which server is meant.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Run directory of the server; that of `hca-vm run` is in SOFTHCA_RUN_DIR
    #[arg(long, value_name = "DIR", env = "SOFTHCA_RUN_DIR")]
    run_dir: Option<PathBuf>,
    /// Socket of a server with a single adapter
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Which {
    pub(crate) fn control(&self) -> anyhow::Result<PathBuf> {
        control_of(self.socket.as_deref(), self.run_dir.as_deref()).context(
            "which server? Say --socket PATH, of a single adapter, or --run-dir DIR (or SOFTHCA_RUN_DIR), of a topology",
        )
    }
}

/// The control socket of the server with that socket or run directory.
pub(crate) fn control_of(socket: Option<&Path>, run_dir: Option<&Path>) -> Option<PathBuf> {
    // A socket was named on purpose; the directory may be the environment's.
    match (socket, run_dir) {
        (Some(socket), _) => Some(control::beside(socket)),
        (None, Some(dir)) => Some(dir.join(control::SOCKET)),
        (None, None) => None,
    }
}

/// Look at the links of a running server, take their cables out and in, and have things go wrong
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca ctl --run-dir /tmp/pair links\n  \
    softhca ctl --run-dir /tmp/pair link down a\n  \
    softhca ctl --run-dir /tmp/pair link up a/hca0\n  \
    softhca ctl --run-dir /tmp/pair link down sw0:5\n  \
    softhca ctl --run-dir /tmp/pair fault add at=a on=command opcode=CREATE_CQ action=fail status=0xf")]
pub(crate) struct Ctl {
    #[command(flatten)]
    server: Which,
    #[command(subcommand)]
    what: Control,
}

#[derive(Debug, Subcommand)]
enum Control {
    /// List the links: whether the cable is in, and whether the link has trained
    #[command(after_help = "Example:\n  softhca ctl --run-dir /tmp/pair links --json")]
    Links {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take the cable of a link out (down), or put it in (up)
    #[command(after_help = "Examples:\n  \
        softhca ctl --run-dir /tmp/pair link down a\n  \
        softhca ctl --run-dir /tmp/pair link up a/hca0\n  \
        softhca ctl --run-dir /tmp/pair link down sw0:5")]
    Link {
        /// What to do
        #[arg(value_parser = ["down", "up"])]
        state: String,
        /// A port at either end: HOST, HOST:PORT, HOST/HCA or SWITCH:PORT
        at: String,
    },
    /// List what happened to adapters in their slots, and what they told the root complex of errors, for a launcher of guests to do
    #[command(after_help = "Example:\n  softhca ctl --run-dir /tmp/pair slots --follow --json")]
    Slots {
        /// Print JSON: an object a line
        #[arg(long)]
        json: bool,
        /// Go on until the server ends
        #[arg(long)]
        follow: bool,
    },
    /// Say that the slot of an adapter is empty: its host is let go of
    #[command(after_help = "Example:\n  softhca ctl --run-dir /tmp/pair slot empty a/hca0")]
    Slot {
        /// How the slot is
        #[arg(value_parser = ["empty"])]
        state: String,
        /// The adapter: HOST/HCA
        at: String,
    },
    /// Have something go wrong, now or on script; list or remove what does
    Fault {
        #[command(subcommand)]
        what: Fault,
    },
}

#[derive(Debug, Subcommand)]
enum Fault {
    /// Add a fault: the keys of a `[[fault]]` in a topology
    #[command(after_help = "Examples:\n  \
        softhca ctl fault add at=a on=command opcode=CREATE_CQ nth=3 action=fail status=0xf\n  \
        softhca ctl fault add at=a on=interrupt action=lose probability=0.01\n  \
        softhca ctl fault add at=a on=completion side=send wqe=0x0a action=error syndrome=0x2\n  \
        softhca ctl fault add at=b/hca0 on=time action=ail syndrome=1 for_ms=5000\n  \
        softhca ctl fault add at=a on=packet opcode=rc-acknowledge action=late delay_us=50\n  \
        softhca ctl fault add at=a on=dma address=0x100000 length=64 action=poison\n\n\
        at   the adapter: HOST or HOST/HCA\n\
        on   command, event, completion, interrupt, packet, dma, reset, time\n\
        What matches: opcode object | eq type object port | cq queue side wqe | vector | port opcode qp psn | address length\n\
        Of those: nth count (0: no end) probability seed from_ms until_ms | every_ms (of on=time)\n\
        The page \"Faults\" of the documentation has all actions and their keys.")]
    Add {
        /// What to add
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = pair)]
        keys: Vec<(String, Value)>,
    },
    /// Add the faults of a topology file to those of a server; the rest of the file is not looked at
    #[command(
        after_help = "Example:\n  softhca ctl --run-dir /tmp/pair fault load --now qemu-configs/faults/tx-error-cqe.toml"
    )]
    Load {
        /// The file
        file: PathBuf,
        /// They begin at once, whatever from_ms says
        #[arg(long)]
        now: bool,
    },
    /// List what goes wrong, how often it could have, and how often it did
    #[command(after_help = "Example:\n  softhca ctl --run-dir /tmp/pair fault list")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a fault; what has gone wrong stays so
    #[command(after_help = "Example:\n  softhca ctl --run-dir /tmp/pair fault remove 0")]
    Remove {
        /// Its number, as `fault list` shows it
        number: u64,
    },
}

/// The faults of a topology file.
fn faults_of(file: &Path) -> anyhow::Result<Vec<Keys>> {
    let topology = Topology::load(file)?;
    let keys: Vec<Keys> = topology.faults.into_iter().map(|fault| fault.keys).collect();
    anyhow::ensure!(!keys.is_empty(), "{}: there is no [[fault]]", file.display());
    Ok(keys)
}

/// `KEY=VALUE`, with the value as what it looks like if its key does not say that it is text: a switch, a number, text.
fn pair(text: &str) -> Result<(String, Value), String> {
    let Some((key, value)) = text.split_once('=') else { return Err("must be KEY=VALUE".into()) };
    if TEXTS.contains(&key) {
        return Ok((key.to_owned(), json!(value)));
    }
    let value = match (value.parse::<bool>(), value.parse::<i64>(), value.parse::<f64>()) {
        (Ok(switch), ..) => json!(switch),
        (_, Ok(whole), _) => json!(whole),
        (.., Ok(fraction)) if fraction.is_finite() => json!(fraction),
        _ => json!(value),
    };
    Ok((key.to_owned(), value))
}

/// Does what `softhca ctl` is asked for.
pub(crate) fn run(args: &Ctl) -> anyhow::Result<()> {
    let path = args.server.control()?;
    match &args.what {
        Control::Links { json } => {
            let answer = control::query(&path, "links")?;
            if *json {
                return print(&serde_json::to_string_pretty(&answer)?);
            }
            print(link_table(&answer).trim_end())
        }
        Control::Link { state, at } => {
            control::ask(&path, &json!({ "cmd": "link", "at": at, "state": state })).map(drop)
        }
        Control::Slots { json, follow } => news(&path, "slots", *follow, |note| match json {
            true => note.to_string(),
            false => note_line(note),
        }),
        Control::Slot { state, at } => {
            control::ask(&path, &json!({ "cmd": "slot", "at": at, "state": state })).map(drop)
        }
        Control::Fault { what: Fault::Add { keys } } => {
            let keys: Map<String, Value> = keys.iter().cloned().collect();
            let answer = control::ask(&path, &json!({ "cmd": "fault", "add": keys }))?;
            print(&format!("fault {}", answer.get("number").and_then(Value::as_u64).unwrap_or_default()))
        }
        Control::Fault { what: Fault::Load { file, now } } => {
            for mut keys in faults_of(file)? {
                if *now {
                    keys.remove("from_ms");
                }
                let answer = control::ask(&path, &json!({ "cmd": "fault", "add": keys }))?;
                print(&format!(
                    "fault {}",
                    answer.get("number").and_then(Value::as_u64).unwrap_or_default()
                ))?;
            }
            Ok(())
        }
        Control::Fault { what: Fault::List { json } } => {
            let answer = control::query(&path, "fault")?;
            if *json {
                return print(&serde_json::to_string_pretty(&answer)?);
            }
            print(fault_table(&answer).trim_end())
        }
        Control::Fault { what: Fault::Remove { number } } => {
            control::ask(&path, &json!({ "cmd": "fault", "remove": number })).map(drop)
        }
    }
}

/// How often a server is asked for more.
const PAUSE: Duration = Duration::from_millis(200);

/// Prints what a server keeps the last of, each as `line` makes it; with `follow` also what comes, until the server ends.
///
/// # Errors
/// There is no such server.
pub(crate) fn news(
    path: &Path,
    what: &str,
    follow: bool,
    line: impl Fn(&Value) -> String,
) -> anyhow::Result<()> {
    let mut since = Value::Null;
    loop {
        let answer = match control::ask(path, &json!({ "cmd": what, "since": since })) {
            // It has ended: everything was said.
            Err(_) if follow && !since.is_null() => return Ok(()),
            answer => answer?,
        };
        for one in answer.get(what).and_then(Value::as_array).into_iter().flatten() {
            print(&line(one))?;
        }
        since = answer.get("next").cloned().unwrap_or_default();
        if !follow {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}

/// One line: when, which adapter, what.
fn note_line(note: &Value) -> String {
    let word = |key: &str| note.get(key).and_then(Value::as_str).unwrap_or_default();
    format!("{} {}: {} {}", word("at"), word("hca"), word("what"), word("message")).trim_end().to_owned()
}

/// One line per fault.
fn fault_table(answer: &Value) -> String {
    let mut out = format!("{:<6} {:<16} {:>10} {:>10} fault\n", "number", "at", "matched", "happened");
    let none = Vec::new();
    for fault in answer.get("faults").and_then(Value::as_array).unwrap_or(&none) {
        let number = |key: &str| fault.get(key).and_then(Value::as_u64).unwrap_or_default();
        let text = |key: &str| fault.get(key).and_then(Value::as_str).unwrap_or("?");
        let keys = fault.get("keys").and_then(Value::as_object);
        let keys = keys.into_iter().flatten().filter(|(key, _)| !["at", "name"].contains(&key.as_str()));
        let keys: Vec<String> = keys.map(|(key, value)| format!("{key}={value}")).collect();
        let (matched, happened) = (number("matched"), number("happened"));
        out += &format!(
            "{:<6} {:<16} {matched:>10} {happened:>10} {}: {}\n",
            number("number"),
            text("at"),
            text("name"),
            keys.join(" ")
        );
    }
    out
}

/// One line per link.
fn link_table(answer: &Value) -> String {
    let mut out = format!("{:<24} {:<24} {:<8} {:<6} state\n", "end", "end", "rate", "cable");
    let none = Vec::new();
    for link in answer.get("links").and_then(Value::as_array).unwrap_or(&none) {
        let end =
            |i| link.pointer(&format!("/between/{i}")).and_then(Value::as_str).unwrap_or("?").to_owned();
        let yes = |key: &str| link.get(key).and_then(Value::as_bool) == Some(true);
        let rate = link.get("rate").and_then(Value::as_str).unwrap_or("?");
        let width = link.get("width").and_then(Value::as_u64).unwrap_or_default();
        let cable = if yes("cable") { "in" } else { "out" };
        let state = match (yes("up"), link.get("peer").is_some() && !yes("peer")) {
            (true, _) => "up",
            (false, true) if yes("outside") => "down, nobody is connected",
            (false, true) => "down, the other process is not there",
            (false, false) => "down",
        };
        let speed = format!("{width}x {rate}");
        out += &format!("{:<24} {:<24} {speed:<8} {cable:<6} {state}\n", end(0), end(1));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values() {
        assert_eq!(pair("nth=3"), Ok(("nth".into(), json!(3))));
        assert_eq!(pair("probability=0.5"), Ok(("probability".into(), json!(0.5))));
        assert_eq!(pair("frozen=true"), Ok(("frozen".into(), json!(true))));
        assert_eq!(pair("status=0xf"), Ok(("status".into(), json!("0xf"))));
        assert_eq!(pair("opcode=CREATE_CQ"), Ok(("opcode".into(), json!("CREATE_CQ"))));
        assert_eq!(pair("data=00"), Ok(("data".into(), json!("00"))), "digits of bytes");
        assert_eq!(pair("at=7"), Ok(("at".into(), json!("7"))), "a host may be called that");
        assert!(pair("nonsense").is_err());
    }

    #[test]
    fn faults_as_a_table() {
        let answer = json!({"faults": [{"number": 3, "name": "command fail", "at": "a/hca0", "matched": 7,
            "happened": 1, "keys": {"at": "a", "on": "command", "nth": 7}}]});
        let table = fault_table(&answer);
        let line: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line, ["3", "a/hca0", "7", "1", "command", "fail:", "nth=7", "on=\"command\""]);
    }

    #[test]
    fn notes_of_slots() {
        let note = json!({"at": "5 us", "hca": "a/hca0", "what": "error", "message": "ERR_FATAL"});
        assert_eq!(note_line(&note), "5 us a/hca0: error ERR_FATAL");
        assert_eq!(
            note_line(&json!({"at": "5 us", "hca": "a/hca0", "what": "removed"})),
            "5 us a/hca0: removed"
        );
    }

    #[test]
    fn links_as_a_table() {
        let answer = serde_json::json!({"links": [
            {"between": ["a/hca0", "sw0/1"], "rate": "edr", "width": 4, "cable": true, "up": true},
            {"between": ["sw0/2", "b/hca0"], "rate": "hdr", "width": 1, "cable": false, "up": false, "peer": false}]});
        let table = link_table(&answer);
        let lines: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["a/hca0", "sw0/1", "4x", "edr", "in", "up"]);
        assert_eq!(lines[2][..6], ["sw0/2", "b/hca0", "1x", "hdr", "out", "down,"]);
    }
}
