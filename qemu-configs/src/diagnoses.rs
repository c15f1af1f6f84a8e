//! What the servers diagnose of the guests' drivers, while they run.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::child::Owned;
use crate::server::Server;

/// Longest line that is shown: terminals are mostly that wide. The whole is in the report.
const WIDTH: usize = 160;
/// Characters that are left at least of a part of a line that is too long.
const LEAST: usize = 15;

/// Name under which they are shown, where hosts have theirs.
pub const DEVICE: &str = "device";

/// Key of a diagnosis: an object that has for each host how many bytes it had printed when the diagnosis came.
pub const PRINTED: &str = "printed";

/// The diagnoses of servers, as they come.
pub(crate) struct Diagnoses {
    followers: Vec<Owned>,
    lines: Receiver<Value>,
    all: Vec<Value>,
}

impl Diagnoses {
    /// Follows these servers.
    pub(crate) fn follow<'a>(servers: impl Iterator<Item = &'a Server>) -> Result<Self> {
        let (sender, lines) = mpsc::channel();
        let mut followers = Vec::new();
        for server in servers {
            let mut command = server.ask("diagnoses");
            command.args(["--follow", "--json"]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = Owned::spawn(&mut command, &[])?;
            let stdout = child.inner().stdout.take().context("no output of softhca diagnoses")?;
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let Ok(diagnosis) = serde_json::from_str(&line) else { continue };
                    if sender.send(diagnosis).is_err() {
                        return;
                    }
                }
            });
            followers.push(child);
        }
        Ok(Self { followers, lines, all: Vec::new() })
    }

    /// Takes in what came; hands each line to the listener. `printed`: how many bytes each host has printed by now, which each
    /// is kept with.
    pub(crate) fn poll(&mut self, printed: impl Fn() -> Value, mut on_line: impl FnMut(&str)) {
        while let Ok(mut diagnosis) = self.lines.try_recv() {
            on_line(&shortened(&diagnosis));
            if let Some(parts) = diagnosis.as_object_mut() {
                parts.insert(PRINTED.into(), printed());
            }
            self.all.push(diagnosis);
        }
    }

    /// Ends it. Returns all there were.
    pub(crate) fn end(mut self) -> Vec<Value> {
        self.followers.iter_mut().for_each(Owned::kill);
        self.all
    }
}

/// One line: whose, when, what.
fn line(diagnosis: &Value) -> String {
    let word = |key: &str| diagnosis.get(key).and_then(Value::as_str).unwrap_or("?");
    format!("{} at {}: {}", word("hca"), word("at"), word("text"))
}

/// A diagnosis on a line of [`WIDTH`] characters. If it is too long, what was found is shortened, in its middle; then why a command was
/// refused, then what was expected: object, field and rule stay, and of each part its begin and its end.
fn shortened(diagnosis: &Value) -> String {
    let mut line = line(diagnosis);
    for (part, before) in [("/found", "found "), ("/rule/says", "refused: "), ("/expected", "expected ")] {
        let over = line.chars().count().saturating_sub(WIDTH);
        let Some(text) = diagnosis.pointer(part).and_then(Value::as_str).filter(|_| over > 0) else {
            continue;
        };
        let width = text.chars().count().saturating_sub(over).max(LEAST);
        line = line.replacen(&format!("{before}{text}"), &format!("{before}{}", middle_out(text, width)), 1);
    }
    // What has no parts, or is still too long.
    middle_out(&line, WIDTH)
}

/// At most `width` characters of a text: if it has more, its begin and its end, with dots between them.
fn middle_out(text: &str, width: usize) -> String {
    const DOTS: &str = "...";
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let left = width.saturating_sub(DOTS.len());
    let end = left / 2;
    let begin: String = text.chars().take(left - end).collect();
    let end: String = text.chars().skip(count - end).collect();
    format!("{begin}{DOTS}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnosis(found: &str, says: &str, expected: &str) -> Value {
        let text = format!(
            "CREATE_CQ (0x400) refused: {says}; c_eqn: found {found}, expected {expected} (BadParam, 0x00000001)"
        );
        let rule = serde_json::json!({"name": "0x00000001", "says": says});
        let (hca, at) = ("a/hca0", "5 us");
        serde_json::json!({"hca": hca, "at": at, "text": text, "found": found, "expected": expected, "rule": rule})
    }

    #[test]
    fn long_lines_keep_object_expected_and_rule() {
        let (says, expected) = ("the queue names no event queue", "one that exists");
        let short = shortened(&diagnosis("0x7e", says, expected));
        assert_eq!(short, line(&diagnosis("0x7e", says, expected)));
        let long = shortened(&diagnosis(&format!("begin {} end", "\u{e9}".repeat(WIDTH)), says, expected));
        assert_eq!(long.chars().count(), WIDTH, "{long}");
        let begin =
            "a/hca0 at 5 us: CREATE_CQ (0x400) refused: the queue names no event queue; c_eqn: found begin";
        assert!(long.starts_with(begin), "{long}");
        assert!(long.ends_with(" end, expected one that exists (BadParam, 0x00000001)"), "{long}");
        // A reason that is long by itself, and what was expected, too.
        let long = shortened(&diagnosis("0x7e", &"why ".repeat(WIDTH), expected));
        assert_eq!(long.chars().count(), WIDTH, "{long}");
        assert!(
            long.ends_with("; c_eqn: found 0x7e, expected one that exists (BadParam, 0x00000001)"),
            "{long}"
        );
        let all = "\u{e9}".repeat(WIDTH);
        let long = shortened(&diagnosis(&all, &all, &all));
        assert!(
            long.contains("; c_eqn: found ") && long.contains(", expected ") && long.ends_with("1)"),
            "{long}"
        );
        assert!(long.chars().count() <= WIDTH, "{long}");
    }

    #[test]
    fn words_are_cut_in_their_middle() {
        let long = "\u{e9}".repeat(WIDTH);
        let words = serde_json::json!({"hca": "a/hca0", "at": "5 us", "text": format!("{long}end")});
        let line = shortened(&words);
        assert_eq!((line.chars().count(), line.ends_with("end")), (WIDTH, true), "{line}");
        assert_eq!((middle_out("short", 5), middle_out("shorter", 6)), ("short".into(), "sh...r".into()));
    }

    #[test]
    fn a_line_says_whose_when_and_what() {
        let diagnosis = serde_json::json!({"hca": "a/hca0", "at": "5 us", "text": "QP 0x40: no"});
        assert_eq!(line(&diagnosis), "a/hca0 at 5 us: QP 0x40: no");
    }
}
