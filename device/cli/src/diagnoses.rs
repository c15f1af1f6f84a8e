//! `softhca diagnoses`: what a running server has diagnosed of its guests' drivers.

use clap::Args;
use serde_json::Value;

use crate::ctl::{Which, news};

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
    news(&args.server.control()?, "diagnoses", args.follow, |diagnosis| match args.json {
        true => diagnosis.to_string(),
        false => lines(diagnosis),
    })
}

/// A line, when, whose, what; and indented below it what happened just before.
fn lines(diagnosis: &Value) -> String {
    fn word<'a>(of: &'a Value, key: &str) -> &'a str {
        of.get(key).and_then(Value::as_str).unwrap_or("?")
    }
    let said = format!("{} {}: {}", word(diagnosis, "at"), word(diagnosis, "hca"), word(diagnosis, "text"));
    let before = diagnosis.get("before").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let before = before.iter().map(|b| format!("\n    {} before: {}", word(b, "ago"), word(b, "text")));
    before.fold(said, |said, line| said + &line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_has_all_three_and_what_was_before_is_below() {
        let mut diagnosis = json!({"at": "5 us", "hca": "a/hca0", "text": "QP 0x40: wrong"});
        assert_eq!(lines(&diagnosis), "5 us a/hca0: QP 0x40: wrong");
        diagnosis["before"] = json!([{"at": "2 us", "ago": "3 us", "text": "doorbell, qpn 0x40"}]);
        assert_eq!(lines(&diagnosis), "5 us a/hca0: QP 0x40: wrong\n    3 us before: doorbell, qpn 0x40");
    }
}
