//! `softhca inspect`: one object of a running server, with its context field by field, its queues' indices and last entries.

use clap::Args;
use hca_server::control;
use serde_json::{Value, json};

use crate::cli::print;
use crate::ctl::Which;

/// Look at one object of a running server: its context, where its queues stand, their last entries
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca inspect --run-dir /tmp/pair qp 0x40\n  \
    softhca inspect --run-dir /tmp/pair --at a/hca0 cq 5 --all\n  \
    softhca inspect --socket /tmp/hca.sock mkey 0x1200 --json\n  \
    softhca inspect --socket /tmp/hca.sock commands\n\n\
    What: qp, cq, eq, srq, mkey, pd, uar, sq, rq, rqt, tir, tis, rmp, xrq, xrc_srq, dct, xrcd, td, counters, psv\n\
    with a number; commands, pages; port with or without one. A memory key is named by its index or by itself. Names of\n\
    fields are those of the pages of the interface. Nothing is changed by looking.")]
pub(crate) struct Inspect {
    #[command(flatten)]
    server: Which,
    /// The adapter, HOST or HOST/HCA; without it, all that have such an object
    #[arg(long, value_name = "ADAPTER")]
    at: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Fields that are zero, too
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// What to look at
    what: String,
    /// Its number
    #[arg(value_parser = number)]
    number: Option<u32>,
}

/// A number as drivers print it.
fn number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "must be a number of at most 32 bits, such as 64 or 0x40".into())
}

/// Does what `softhca inspect` is asked for.
///
/// # Errors
/// There is no such server or no such object.
pub(crate) fn run(args: &Inspect) -> anyhow::Result<()> {
    let path = args.server.control()?;
    let mut request = json!({ "cmd": "inspect", "what": args.what, "number": args.number });
    if let (Some(at), Some(map)) = (&args.at, request.as_object_mut()) {
        map.insert("at".into(), at.as_str().into());
    }
    let answer = control::ask(&path, &request)?;
    match args.json {
        true => print(&serde_json::to_string_pretty(&answer)?),
        false => print(text(&answer, args.all).trim_end()),
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// A name and a value on a line: numbers as drivers print them.
fn line(name: &str, value: &Value) -> String {
    match value.as_u64() {
        Some(number) if number > 9 => format!("    {name:<34} {:<20} {number}\n", format!("{number:#x}")),
        Some(number) => format!("    {name:<34} {number}\n"),
        None => format!("    {name:<34} {}\n", value.as_str().unwrap_or("?")),
    }
}

/// The objects as text. `all`: fields that are zero, too.
fn text(answer: &Value, all: bool) -> String {
    let mut out = String::new();
    for object in list(answer, "objects") {
        let number = object.get("number").and_then(Value::as_u64);
        let number = number.map_or(String::new(), |number| format!(" {number:#x}"));
        out += &format!("{} {}{number}\n", word(object, "hca"), word(object, "what"));
        for part in list(object, "parts") {
            out += &format!("  {}\n", word(part, "title"));
            for value in list(part, "values") {
                out += &line(word(value, "name"), value.get("value").unwrap_or(&Value::Null));
            }
            for structure in list(part, "structures") {
                let (mut lines, mut zeros) = (String::new(), 0);
                for field in list(structure, "fields") {
                    let value = field.get("value").unwrap_or(&Value::Null);
                    if value.as_u64() == Some(0) && !all {
                        zeros += 1;
                        continue;
                    }
                    let name = match field.get("in").and_then(Value::as_str) {
                        Some(view) => format!("{view}.{}", word(field, "name")),
                        None => word(field, "name").to_owned(),
                    };
                    lines += &line(&name, value);
                }
                let zeros = if zeros > 0 { format!(", {zeros} fields are zero") } else { String::new() };
                out += &format!("   [{}{zeros}]\n{lines}", word(structure, "layout"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!((number("64"), number("0x40")), (Ok(64), Ok(0x40)));
        assert!(number("4g").is_err() && number("0x100000000").is_err() && number("-1").is_err());
    }

    #[test]
    fn zeros_are_counted_or_shown() {
        let fields = json!([{"name": "STATE", "value": 3}, {"name": "PD", "value": 0},
            {"name": "RLID", "in": "primary_path", "value": 0x77}]);
        let answer = json!({"objects": [{"hca": "a/hca0", "what": "qp", "number": 64, "parts": [{
            "title": "context", "structures": [{"layout": "Qpc", "fields": fields}],
            "values": [{"name": "state", "value": "Rts"}]}]}]});
        let lines = |all| {
            let text = text(&answer, all);
            text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(
            lines(false),
            [
                "a/hca0 qp 0x40",
                "context",
                "state Rts",
                "[Qpc, 1 fields are zero]",
                "STATE 3",
                "primary_path.RLID 0x77 119"
            ]
        );
        assert_eq!(lines(true)[3..], ["[Qpc]", "STATE 3", "PD 0", "primary_path.RLID 0x77 119"]);
    }
}
