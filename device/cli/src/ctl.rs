//! `softhca ctl`: looks at the links of a running server, and takes their cables out and in.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hca_server::control;
use serde_json::{Value, json};

use crate::cli::print;

/// Which server is meant.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Run directory of the server; that of `hca-vm run` is in SOFTHCA_RUN_DIR
    #[arg(long, value_name = "DIR", env = "SOFTHCA_RUN_DIR", required_unless_present = "socket")]
    run_dir: Option<PathBuf>,
    /// Socket of a server with a single adapter
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Which {
    pub(crate) fn control(&self) -> anyhow::Result<PathBuf> {
        // A socket was named on purpose; the directory may be the environment's.
        match (&self.socket, &self.run_dir) {
            (Some(socket), _) => Ok(control::beside(socket)),
            (None, Some(dir)) => Ok(dir.join(control::SOCKET)),
            (None, None) => anyhow::bail!("--run-dir or --socket is needed"),
        }
    }
}

/// Look at the links of a running server, and take their cables out and in
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca ctl --run-dir /tmp/pair links\n  \
    softhca ctl --run-dir /tmp/pair link down a\n  \
    softhca ctl --run-dir /tmp/pair link up a/hca0\n  \
    softhca ctl --run-dir /tmp/pair link down sw0:5")]
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
    }
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
