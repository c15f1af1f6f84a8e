//! Cases that are commands in guests: in one, or with a side in each of two hosts.
//!
//! `tests/guest/cases.sh` runs them one after another, each to its end or its time limit, and this reads its marks.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use hca_vm::run::{Report, Run};

use super::{Case, Outcome};
use crate::guests::{self, turn};

/// Longest time for one case, s, in a slow guest on a busy machine.
const LIMIT: u32 = 100;
/// Longest time for all cases of a boot.
const ALL: Duration = Duration::from_secs(3600);

/// A command, or a server and a client that meet on a TCP port.
pub enum What {
    /// A script for `sh`, in the first host.
    Alone(String),
    /// Two sides.
    Pair {
        /// Command of the side that listens, in the first host.
        server: String,
        /// Command of the other side, to be followed by the first host's name.
        client: String,
        /// What follows the host's name.
        then: String,
        /// Where the server listens.
        port: u16,
        /// Is it ended by force?
        stays: bool,
    },
}

/// A named command.
pub struct Command {
    name: String,
    what: What,
}

impl Command {
    /// In the first host.
    pub fn alone(name: impl Into<String>, script: impl Into<String>) -> Self {
        Self { name: name.into(), what: What::Alone(script.into()) }
    }

    /// The same program on both sides, the client with the host's name at the end.
    pub fn pair(command: impl Into<String>, port: u16) -> Self {
        let command = command.into();
        let (server, client) = (command.clone(), command.clone());
        Self { name: command, what: What::Pair { server, client, then: String::new(), port, stays: false } }
    }

    /// A server that stays, and a client of it with words behind the host's name.
    pub fn service(server: &str, port: u16, client: &str, then: &str) -> Self {
        let what = What::Pair {
            server: server.into(),
            client: client.into(),
            then: format!(" {then}"),
            port,
            stays: true,
        };
        Self { name: format!("{client} {then}"), what }
    }

    /// Under another name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

/// A word for `sh`, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The scripts of hosts `a` and `b`; the second is empty if both sides are in the first.
fn scripts(commands: &[Command], two_hosts: bool) -> (String, String) {
    let (mut a, mut b) = (". /root/cases.sh\n".to_owned(), ". /root/cases.sh\n".to_owned());
    for Command { name, what } in commands {
        let name = quoted(name);
        // Writing to a String can't fail.
        let _ = match what {
            What::Alone(script) => writeln!(a, "alone {name} {LIMIT} {}", quoted(script)),
            What::Pair { server, client, then, port, stays } => {
                let stays = if *stays { "stays" } else { "ends" };
                let server = quoted(server);
                let client = |host| quoted(&format!("{client} {host}{then}"));
                if two_hosts {
                    let _ = writeln!(b, "use {name} {LIMIT} {} a", client("a"));
                    writeln!(a, "serve {name} {LIMIT} {port} {stays} {server} b")
                } else {
                    writeln!(a, "both {name} {LIMIT} {port} {stays} {server} {}", client("localhost"))
                }
            }
        };
    }
    (a, b)
}

/// Runs commands in a topology: `loopback` has host `a`, in others `b` is the other side. Case names begin with `tag`.
pub fn run(tag: &str, topology: &str, kernel: &str, commands: &[Command]) -> Vec<Case> {
    let two_hosts = topology != "loopback";
    let (a, b) = scripts(commands, two_hosts);
    let shell = guests::copy("guest/cases.sh");
    let mut run =
        Run::new(guests::topology(topology)).kernel(kernel).timeout(ALL).copy(shell).host("a", a).watch(
            |host, line| {
                if let Some(ended) = line.strip_prefix("@@ end ") {
                    eprintln!("  {host}: {ended}");
                }
            },
        );
    if two_hosts {
        run = run.host("b", b);
    }
    let report = {
        let _turn = turn();
        match run.run() {
            Ok(report) => report,
            Err(error) => return vec![Case::check(format!("{tag}set up"), format!("{error:#}"))],
        }
    };
    let mut cases = results(tag, commands, &report);
    cases.push(Case::check(format!("{tag}kernel logs"), complaints(&report)));
    cases
}

/// What a run has to say against its kernels, its server and its set-up.
pub fn complaints(report: &Report) -> String {
    if report.exit_code() == 0 && report.hosts.iter().all(|host| host.problems.is_empty()) {
        return String::new();
    }
    report.to_string()
}

fn results(tag: &str, commands: &[Command], report: &Report) -> Vec<Case> {
    let sides: Vec<_> =
        report.hosts.iter().map(|host| (host.name.as_str(), sections(&host.output))).collect();
    commands
        .iter()
        .map(|Command { name, what }| {
            let mut detail = String::new();
            let mut seconds: f64 = 0.0;
            let mut failed = false;
            for (host, sections) in &sides {
                if matches!(what, What::Alone(_)) && *host != "a" {
                    continue;
                }
                let (status, output) = match sections.get(name.as_str()) {
                    Some(section) => {
                        seconds = seconds.max(section.seconds);
                        (section.status, section.output.as_str())
                    }
                    None => (None, "not reached"),
                };
                failed |= status != Some(0);
                let status = status.map_or("no status".to_owned(), |status| format!("status {status}"));
                let _ = write!(detail, "{host}: {status}\n{output}\n");
            }
            let outcome = if failed { Outcome::Failed } else { Outcome::Passed };
            Case::new(format!("{tag}{name}"), outcome, seconds, if failed { detail } else { String::new() })
        })
        .collect()
}

#[derive(Default)]
struct Section {
    output: String,
    status: Option<i32>,
    seconds: f64,
}

/// What stands between the marks of `cases.sh`, by name.
fn sections(output: &str) -> BTreeMap<&str, Section> {
    let mut sections: BTreeMap<&str, Section> = BTreeMap::new();
    let mut current = None;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("@@ begin ") {
            current = Some(name);
            sections.entry(name).or_default();
        } else if let Some(rest) = line.strip_prefix("@@ end ") {
            let mut words = rest.rsplitn(3, ' ');
            let seconds = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
            let status = words.next().and_then(|word| word.parse().ok());
            if let Some(section) = words.next().and_then(|name| sections.get_mut(name)) {
                (section.status, section.seconds) = (status, seconds);
            }
            current = None;
        } else if let Some(section) = current.and_then(|name| sections.get_mut(name)) {
            section.output.push_str(line);
            section.output.push('\n');
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read() {
        let output = "noise\n@@ begin x -a\n1\n2\n@@ end x -a 3 1.5\n@@ begin y\n4\n";
        let sections = sections(output);
        assert_eq!((sections["x -a"].status, sections["x -a"].seconds), (Some(3), 1.5));
        assert_eq!(sections["x -a"].output, "1\n2\n");
        assert_eq!((sections["y"].status, sections["y"].output.as_str()), (None, "4\n"));
    }

    #[test]
    fn scripts_for_one_host_and_for_two() {
        let commands = [
            Command::alone("list", "ls 'a b'"),
            Command::pair("ping -c", 7),
            Command::service("d", 8, "q", "bw"),
        ];
        let (a, b) = scripts(&commands, true);
        assert!(a.contains(r"alone 'list' 100 'ls '\''a b'\'''"), "{a}");
        assert!(a.contains("serve 'ping -c' 100 7 ends 'ping -c' b"), "{a}");
        assert!(b.contains("use 'ping -c' 100 'ping -c a' a"), "{b}");
        assert!(b.contains("use 'q bw' 100 'q a bw' a"), "{b}");
        let (a, _) = scripts(&commands, false);
        assert!(a.contains("both 'q bw' 100 8 stays 'd' 'q localhost bw'"), "{a}");
    }
}
