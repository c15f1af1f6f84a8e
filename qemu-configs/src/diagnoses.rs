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
            on_line(&shortened(&line(&diagnosis)));
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

fn shortened(line: &str) -> String {
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}...", line.get(..end).unwrap_or(line)),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_between_characters() {
        let long = "\u{e9}".repeat(WIDTH + 1);
        assert_eq!(shortened(&long).chars().count(), WIDTH + 3);
        assert_eq!(shortened("short"), "short");
    }

    #[test]
    fn a_line_says_whose_when_and_what() {
        let diagnosis = serde_json::json!({"hca": "a/hca0", "at": "5 us", "text": "QP 0x40: no"});
        assert_eq!(line(&diagnosis), "a/hca0 at 5 us: QP 0x40: no");
    }
}
