//! `softhca diagnoses`: what a running server has diagnosed of its guests' drivers.

use std::time::Duration;

use clap::Args;
use hca_server::control;
use serde_json::{Value, json};

use crate::cli::print;
use crate::ctl::Which;

/// How often a server is asked for more.
const PAUSE: Duration = Duration::from_millis(200);

/// Print what a running server has diagnosed of drivers: mistakes, and why something was refused
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca diagnoses --run-dir /tmp/pair\n  \
    softhca diagnoses --socket /tmp/hca.sock --follow --json\n      \
    one JSON object a line, as they come, for a program\n\n\
    The server keeps the last 1000. Start it with --check to hear of what adapters keep silent about.")]
pub(crate) struct Diagnoses {
    #[command(flatten)]
    server: Which,
    /// Print JSON: an object a line
    #[arg(long)]
    json: bool,
    /// Go on until the server ends
    #[arg(long)]
    follow: bool,
}

/// Does what `softhca diagnoses` is asked for.
///
/// # Errors
/// There is no such server.
pub(crate) fn run(args: &Diagnoses) -> anyhow::Result<()> {
    let path = args.server.control()?;
    let mut since = Value::Null;
    loop {
        let request = json!({"cmd": "diagnoses", "since": since});
        let answer = match control::ask(&path, &request) {
            // It has ended: everything was said.
            Err(_) if args.follow && !since.is_null() => return Ok(()),
            answer => answer?,
        };
        for diagnosis in answer.get("diagnoses").and_then(Value::as_array).into_iter().flatten() {
            match args.json {
                true => print(&diagnosis.to_string())?,
                false => print(&line(diagnosis))?,
            }
        }
        since = answer.get("next").cloned().unwrap_or_default();
        if !args.follow {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}

/// One line: when, whose, what.
fn line(diagnosis: &Value) -> String {
    let word = |key: &str| diagnosis.get(key).and_then(Value::as_str).unwrap_or("?");
    format!("{} {}: {}", word("at"), word("hca"), word("text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_all_three() {
        let diagnosis = json!({"at": "5 us", "hca": "a/hca0", "text": "QP 0x40: wrong"});
        assert_eq!(line(&diagnosis), "5 us a/hca0: QP 0x40: wrong");
    }
}
