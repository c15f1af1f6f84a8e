//! Colours for people at a terminal, and none in pipes. `NO_COLOR` turns them off.

use std::fmt::Display;
use std::io::{IsTerminal, stderr, stdout};
use std::sync::OnceLock;

const RED: u32 = 31;
/// For names of hosts, by turns.
const NAMES: [u32; 6] = [32, 36, 35, 34, 33, 92];

/// The type of the terminal that standard output is, if it shows colours.
pub fn terminal() -> Option<String> {
    if !stdout().is_terminal() || !are_wanted() {
        return None;
    }
    std::env::var("TERM").ok().filter(|term| !term.is_empty() && term != "dumb")
}

/// A host's name in front of a line of its output.
pub fn name(host: &str) -> String {
    static TERMINAL: OnceLock<bool> = OnceLock::new();
    if !*TERMINAL.get_or_init(|| terminal().is_some()) {
        return format!("{host}|");
    }
    let sum: usize = host.bytes().map(usize::from).sum();
    painted(NAMES[sum % NAMES.len()], &format_args!("{host}|"))
}

/// Something bad, on standard error.
pub fn bad(text: &impl Display) -> String {
    if stderr().is_terminal() && are_wanted() { painted(RED, text) } else { text.to_string() }
}

fn are_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn painted(colour: u32, text: &impl Display) -> String {
    format!("\x1b[{colour}m{text}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paint() {
        assert_eq!(painted(RED, &"x"), "\x1b[31mx\x1b[0m");
    }
}
