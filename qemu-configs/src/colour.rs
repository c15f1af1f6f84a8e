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
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Output, Stdio};

    use nix::pty::openpty;

    use super::*;

    /// Set in a process that only prints.
    const PRINTS: &str = "HCA_VM_TEST_PRINTS";

    /// What this test prints, started again with its output to a terminal or to pipes.
    fn printed(to_terminal: bool, variables: &[(&str, &str)]) -> String {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "colour::tests::colours_are_for_terminals",
            "--nocapture",
            "--color",
            "never",
        ]);
        command.env_remove("NO_COLOR").env("TERM", "xterm").env(PRINTS, "1").stdin(Stdio::null());
        command.envs(variables.iter().copied());
        if !to_terminal {
            let Output { stdout, stderr, .. } = command.output().unwrap();
            return String::from_utf8([stdout, stderr].concat()).unwrap();
        }
        let terminal = openpty(None, None).unwrap();
        command.stdout(terminal.slave.try_clone().unwrap()).stderr(terminal.slave);
        let mut child = command.spawn().unwrap();
        // It has ends of the terminal, too.
        drop(command);
        let mut text = Vec::new();
        // The end of what a terminal gives is an error.
        _ = File::from(terminal.master).read_to_end(&mut text);
        child.wait().unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn colours_are_for_terminals() {
        if std::env::var_os(PRINTS).is_some() {
            println!("{}", name("a"));
            eprintln!("{}", bad(&"wrong"));
            return;
        }
        for (to_terminal, variables, names, wrongs) in [
            (true, &[][..], true, true),
            (true, &[("NO_COLOR", "")], true, true),
            (true, &[("NO_COLOR", "1")], false, false),
            (true, &[("TERM", "dumb")], false, true),
            (false, &[], false, false),
            (false, &[("NO_COLOR", "1")], false, false),
        ] {
            let text = printed(to_terminal, variables);
            let case = format!("terminal {to_terminal}, {variables:?}: {text:?}");
            assert!(text.contains("a|") && text.contains("wrong"), "{case}");
            assert_eq!(text.contains("\x1b[36ma|\x1b[0m"), names, "{case}");
            assert_eq!(text.contains("\x1b[31mwrong\x1b[0m"), wrongs, "{case}");
            assert_eq!(text.contains('\x1b'), names || wrongs, "{case}");
        }
    }
}
