//! Cases that are commands in guests: in one, in all, or with a side in each of two hosts.
//!
//! Of a topology's hosts, the last two are the sides of pairs, and the first runs what needs one host. So with a third
//! host the first is an onlooker: where the subnet is managed and looked at.
//!
//! `tests/guest/cases.sh` runs them one after another, each to its end or its time limit, and this reads its marks.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::OnceLock;
use std::time::Duration;

use hca_vm::run::{Report, Run};

use super::covered::covered;
use super::diagnosed::of_host;
use super::{Case, Outcome, known};
use crate::guests::{self, turn};

/// Longest time for one case, s, in a slow guest on a busy machine.
const LIMIT: u32 = 100;
/// Longest time for all cases of a boot.
const ALL: Duration = Duration::from_secs(3600);

/// Begins the names of commands that the others of a boot need.
const SET_UP: &str = "set up";
/// What [`only`] was told.
static ONLY: OnceLock<Vec<String>> = OnceLock::new();

/// From now on, of the lists of commands that suites run in guests, only those are run whose case's name (with its tag) has one of these
/// texts, and what a boot begins with to set itself up. A boot that has no such case is left out. To be told once, before
/// the first suite.
pub fn only(texts: &[String]) {
    let _ = ONLY.set(texts.to_vec());
}

/// Is the case of that name to be run?
pub fn is_chosen(name: &str) -> bool {
    let texts = ONLY.get().map_or(&[][..], Vec::as_slice);
    texts.is_empty() || texts.iter().any(|text| name.contains(text.as_str()))
}

/// The commands that are to be run, in their order; none if the only ones were those that set up.
fn chosen(tag: &str, commands: &[Command]) -> Vec<Command> {
    let is_chosen = |command: &&Command| is_chosen(&format!("{tag}{}", command.name));
    let needed = |command: &&Command| command.name.starts_with(SET_UP) || is_chosen(command);
    match commands.iter().any(|command| is_chosen(&command)) {
        true => commands.iter().filter(needed).cloned().collect(),
        false => Vec::new(),
    }
}

/// Stands for the server's host in the command of a client.
pub const HOST: &str = "@host";

/// How to see that a server is ready for its client.
#[derive(Clone, Copy)]
pub enum Ready {
    /// It listens on this TCP port.
    Tcp(u16),
    /// It listens with the RDMA connection manager.
    Cm,
    /// It prints this word.
    Says(&'static str),
    /// It is started; the client finds out itself when it answers.
    Started,
}

/// The other host, as a client calls it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// By its address in the network beside the fabric.
    Side,
    /// By its address in IPoIB (`ipoib` of `cases.sh`).
    Ipoib,
    /// By its address in the Ethernet of the adapters' ports.
    Ethernet,
}

/// A command, or a server and a client that meet.
#[derive(Clone)]
pub enum What {
    /// A script for `sh`, in the first host.
    Alone(String),
    /// A script for `sh` in each host; before and behind it the hosts wait for each other.
    Everywhere(String),
    /// Two sides.
    Pair {
        /// Command of the side that listens.
        server: String,
        /// Command of the other side, with [`HOST`] for the first side's name.
        client: String,
        /// When the client may start.
        ready: Ready,
        /// Which name that is.
        network: Network,
        /// Is the server ended by force?
        stays: bool,
        /// Is the server in the last host, and the client in the one before it?
        turned: bool,
    },
}

/// A named command.
#[derive(Clone)]
pub struct Command {
    name: String,
    what: What,
    outside: Option<String>,
    /// s.
    limit: u32,
}

impl Command {
    /// In the first host.
    pub fn alone(name: impl Into<String>, script: impl Into<String>) -> Self {
        Self { name: name.into(), what: What::Alone(script.into()), outside: None, limit: LIMIT }
    }

    /// In each host.
    pub fn everywhere(name: impl Into<String>, script: impl Into<String>) -> Self {
        Self { name: name.into(), what: What::Everywhere(script.into()), outside: None, limit: LIMIT }
    }

    /// Nothing, but nobody goes on before everybody is here: with a third host, [`Command::alone`] does not wait for what
    /// the other two are at, and what it takes away they would miss.
    pub fn meeting(name: impl Into<String>) -> Self {
        Self::everywhere(name, "true")
    }

    /// The same program on both sides, the client with the host's name at the end.
    pub fn pair(command: impl Into<String>, port: u16) -> Self {
        let command = command.into();
        Self::sides(&command, Ready::Tcp(port), &format!("{command} {HOST}"))
    }

    /// A server that ends by itself, and a client that calls it [`HOST`].
    pub fn sides(server: &str, ready: Ready, client: &str) -> Self {
        let (server, client) = (server.to_owned(), client.to_owned());
        let name = client.replace(&format!(" {HOST}"), "");
        let what = What::Pair { server, client, ready, network: Network::Side, stays: false, turned: false };
        Self { name, what, outside: None, limit: LIMIT }
    }

    /// A server that stays, and a client of it with words behind the host's name.
    pub fn service(server: &str, port: u16, client: &str, then: &str) -> Self {
        Self::sides(server, Ready::Tcp(port), &format!("{client} {HOST} {then}")).that_stays()
    }

    /// The server does not end by itself.
    pub fn that_stays(mut self) -> Self {
        if let What::Pair { stays, .. } = &mut self.what {
            *stays = true;
        }
        self
    }

    /// The client finds the server by its address in IPoIB.
    pub fn over_ipoib(self) -> Self {
        self.over(Network::Ipoib)
    }

    /// The client finds the server by its address there.
    pub fn over(mut self, there: Network) -> Self {
        if let What::Pair { network, .. } = &mut self.what {
            *network = there;
        }
        self
    }

    /// The hosts of the sides change places: the server is in the last one.
    pub fn turned(mut self) -> Self {
        if let What::Pair { turned, .. } = &mut self.what {
            *turned = true;
        }
        self
    }

    /// With a shell command on the machine of the guests: `softhca ctl` there is for the run's server. Its moment is the
    /// word `outside` in the script (of the client), or the command's end without that. Nobody is told when it is done: its
    /// effects have to be waited for.
    pub fn with_outside(mut self, script: impl Into<String>) -> Self {
        self.outside = Some(script.into());
        self
    }

    /// It may take so many seconds: for what waits for time limits of the kernel.
    pub fn within(mut self, seconds: u32) -> Self {
        self.limit = seconds;
        self
    }

    /// Under another name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

/// A word for `sh`, whatever is in it.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The hosts of a topology that suites use.
fn hosts(topology: &str) -> &'static [&'static str] {
    match topology {
        "loopback" | "eth" => &["a"],
        "switch" | "two-switches" | "eth-switch" | "eth-dpdk" => &["a", "b", "c"],
        _ => &["a", "b"],
    }
}

/// The script of each host.
fn scripts(commands: &[Command], hosts: &[&str]) -> Vec<String> {
    let mut scripts = vec![". /root/cases.sh\n".to_owned(); hosts.len()];
    let mut add = |host: usize, line: String| {
        if let Some(script) = scripts.get_mut(host) {
            script.push_str(&line);
            script.push('\n');
        }
    };
    let last = hosts.len() - 1;
    for Command { name, what, limit, .. } in commands {
        let name = quoted(name);
        match what {
            What::Alone(script) => add(0, format!("alone {name} {limit} {}", quoted(script))),
            What::Everywhere(script) => {
                for host in 0..hosts.len() {
                    let meet = match host {
                        _ if hosts.len() == 1 => "true".to_owned(),
                        0 => format!("meet first {}", hosts[1..].join(" ")),
                        _ => format!("meet {}", hosts[0]),
                    };
                    add(host, format!("{meet}\nalone {name} {limit} {}\n{meet}", quoted(script)));
                }
            }
            What::Pair { server, client, ready, network, stays, turned } => {
                let before = last.saturating_sub(1);
                let (server_side, client_side) = if *turned { (last, before) } else { (before, last) };
                let stays = if *stays { "stays" } else { "ends" };
                let ready = match ready {
                    Ready::Tcp(port) => port.to_string(),
                    Ready::Cm => "cm".to_owned(),
                    Ready::Says(word) => format!(":{word}"),
                    Ready::Started => "now".to_owned(),
                };
                let server = quoted(server);
                let (a, b) = (hosts[server_side], hosts[client_side]);
                let called = match network {
                    Network::Ipoib => format!("ib-{a}"),
                    Network::Ethernet => format!("10.1.0.{}", server_side + 1),
                    Network::Side if server_side == client_side => "localhost".to_owned(),
                    Network::Side => a.to_owned(),
                };
                let client = quoted(&client.replace(HOST, &called));
                if server_side == client_side {
                    add(0, format!("both {name} {limit} {ready} {stays} {server} {client}"));
                } else {
                    add(server_side, format!("serve {name} {limit} {ready} {stays} {server} {b}"));
                    add(client_side, format!("use {name} {limit} {client} {a}"));
                }
            }
        }
    }
    scripts
}

/// The script of the machine of the guests: what commands want done there, one after another.
fn outside(commands: &[Command], hosts: &[&str]) -> Option<String> {
    let mut script = String::new();
    for Command { name, what, outside, .. } in commands {
        let Some(outside) = outside else { continue };
        let host = match what {
            What::Pair { turned: true, .. } => hosts.iter().rev().nth(1).or(hosts.last()),
            What::Pair { .. } => hosts.last(),
            What::Alone(_) | What::Everywhere(_) => hosts.first(),
        };
        let [moment, end] = ["outside", "end"].map(|mark| quoted(&format!("@@ {mark} {name}")));
        let _ = writeln!(script, "await {} {moment} {end} && {outside} || exit", host.unwrap_or(&""));
    }
    (!script.is_empty()).then_some(script)
}

/// Runs commands in a topology. Case names begin with `tag`.
pub fn run(tag: &str, topology: &str, kernel: &str, commands: &[Command]) -> Vec<Case> {
    run_with(&[], tag, topology, kernel, commands)
}

/// The same, with these files (of this crate) in each guest.
pub fn run_with(files: &[&str], tag: &str, topology: &str, kernel: &str, commands: &[Command]) -> Vec<Case> {
    run_in(files, &[], tag, topology, kernel, commands)
}

/// The same, with these Debian packages, too.
pub fn run_in(
    files: &[&str],
    packages: &[&str],
    tag: &str,
    topology: &str,
    kernel: &str,
    commands: &[Command],
) -> Vec<Case> {
    let commands = &chosen(tag, commands);
    if commands.is_empty() {
        return Vec::new();
    }
    let report = match report(files, packages, &[], topology, kernel, commands) {
        Ok(report) => report,
        Err(error) => return vec![Case::check(format!("{tag}set up"), format!("{error:#}"))],
    };
    judged(tag, topology, commands, &report)
}

/// The cases of a run of these commands, and one more: what there is to say against the run.
pub fn judged(tag: &str, topology: &str, commands: &[Command], report: &Report) -> Vec<Case> {
    let mut cases = ended(tag, topology, commands, report);
    cases.push(Case::check(format!("{tag}kernel logs"), complaints(report)));
    cases
}

/// The cases of a run of these commands, whatever its kernels have said.
pub fn ended(tag: &str, topology: &str, commands: &[Command], report: &Report) -> Vec<Case> {
    results(tag, commands, hosts(topology), report)
}

/// Runs commands in a topology, when it is their turn. `serve` are further arguments of the server.
///
/// # Errors
/// The guests could not be set up.
pub fn report(
    files: &[&str],
    packages: &[&str],
    serve: &[String],
    topology: &str,
    kernel: &str,
    commands: &[Command],
) -> anyhow::Result<Report> {
    let hosts = hosts(topology);
    let mut run =
        covered(Run::new(guests::topology(topology))).kernel(kernel).timeout(ALL).watch(|host, line| {
            if let Some(ended) = line.strip_prefix("@@ end ") {
                eprintln!("  {host}: {ended}");
            }
        });
    for file in ["guest/post.sh", "guest/cases.sh"].iter().chain(files) {
        run = run.copy(guests::copy(file));
    }
    for package in packages {
        run = run.package(*package);
    }
    for line in known::lines(kernel) {
        run = run.allow_dmesg(line);
    }
    for argument in serve {
        run = run.serve(argument);
    }
    for (host, script) in hosts.iter().zip(scripts(commands, hosts)) {
        run = run.host(*host, script);
    }
    if let Some(script) = outside(commands, hosts) {
        run = run.beside(script);
    }
    let _turn = turn(hosts.len());
    run.run()
}

/// What the commands of that name printed in a host; nothing if they were not reached.
pub fn printed(report: &Report, host: &str, name: &str) -> String {
    let output = report.host(host).map_or("", |host| host.output.as_str());
    sections(output).remove(name).map(|section| section.output).unwrap_or_default()
}

/// What a run has to say against its kernels, its server and its set-up; empty if nothing.
pub fn complaints(report: &Report) -> String {
    /// Kernel lines before the first bad one, and from it on: its stack, as a rule.
    const BEFORE: usize = 3;
    const AFTER: usize = 20;
    let mut all = report.findings();
    for host in &report.hosts {
        all.extend(host.problems.iter().cloned());
        let Some(bad) = host.bad_kernel_lines.first() else { continue };
        let at = host.kernel_log.iter().position(|line| line.sequence == bad.sequence).unwrap_or_default();
        let around = host.kernel_log.iter().skip(at.saturating_sub(BEFORE)).take(BEFORE + AFTER);
        all.extend(around.map(|line| format!("{} kernel| {line}", host.name)));
    }
    if all.is_empty() && report.exit_code() != 0 {
        all.push(format!("exit code {}", report.exit_code()));
    }
    all.join("\n")
}

/// The last case that had begun in a host when it had printed so many bytes, and whether it had not ended yet.
fn case_at(output: &str, printed: usize) -> Option<(&str, bool)> {
    let until = output.get(..printed).unwrap_or(output);
    until.lines().rev().find_map(|line| match line.strip_prefix("@@ begin ") {
        Some(name) => Some((name, true)),
        // Status and seconds follow.
        None => Some((line.strip_prefix("@@ end ")?.rsplitn(3, ' ').nth(2)?, false)),
    })
}

/// The messages of adapters, each in the case that was run in the host it is of. Where that was between two, it is of the last case that
/// had begun in any host: another's commands reach it, too.
fn spread(tag: &str, cases: &mut [Case], report: &Report) {
    let place = |name: &str| cases.iter().position(|case| case.name.strip_prefix(tag) == Some(name));
    let hosts = report.hosts.iter().map(|host| {
        let messages = of_host(report, &host.name).into_iter();
        messages
            .map(|(printed, _)| case_at(&host.output, printed))
            .map(|at| at.and_then(|(name, goes_on)| Some((place(name)?, goes_on))))
            .collect()
    });
    let hosts: Vec<Vec<Option<(usize, bool)>>> = hosts.collect();
    for (number, diagnosis) in report.diagnoses.iter().enumerate() {
        let text = |key: &str| diagnosis.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        let own = text("hca").split('/').next();
        let Some(own) = report.hosts.iter().position(|host| Some(host.name.as_str()) == own) else {
            continue;
        };
        let at = |host: &Vec<Option<(usize, bool)>>| host.get(number).copied().flatten();
        let place = match hosts.get(own).and_then(at) {
            Some((place, true)) => place,
            // What the drivers do before the first case is told with it.
            _ => hosts.iter().filter_map(at).map(|(place, _)| place).max().unwrap_or(0),
        };
        if let Some(case) = cases.get_mut(place) {
            case.diagnoses.push(text("text").to_owned());
        }
    }
}

fn results(tag: &str, commands: &[Command], hosts: &[&str], report: &Report) -> Vec<Case> {
    let sides_of_a_pair = &hosts[hosts.len().saturating_sub(2)..];
    let sides: Vec<_> =
        report.hosts.iter().map(|host| (host.name.as_str(), sections(&host.output))).collect();
    let mut cases: Vec<Case> = commands
        .iter()
        .map(|Command { name, what, .. }| {
            let mut detail = String::new();
            let mut seconds: f64 = 0.0;
            let mut failed = false;
            for (host, sections) in &sides {
                let takes_part = match what {
                    What::Alone(_) => hosts.first() == Some(host),
                    What::Everywhere(_) => true,
                    What::Pair { .. } => sides_of_a_pair.contains(host),
                };
                if !takes_part {
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
        .collect();
    spread(tag, &mut cases, report);
    cases
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
        let [a, b] = &scripts(&commands, &["a", "b"])[..] else { panic!("two scripts") };
        assert!(a.contains(r"alone 'list' 100 'ls '\''a b'\'''"), "{a}");
        assert!(a.contains("serve 'ping -c' 100 7 ends 'ping -c' b"), "{a}");
        assert!(b.contains("use 'ping -c' 100 'ping -c a' a"), "{b}");
        assert!(b.contains("use 'q bw' 100 'q a bw' a"), "{b}");
        let a = &scripts(&commands, &["a"])[0];
        assert!(a.contains("both 'q bw' 100 8 stays 'd' 'q localhost bw'"), "{a}");
    }

    #[test]
    fn what_is_done_outside() {
        let commands = [
            Command::alone("list", "ls"),
            Command::pair("bw", 7).with_outside("ctl down"),
            Command::alone("it's up", "outside; ls").with_outside("ctl up"),
        ];
        let script = outside(&commands, &["a", "b", "c"]).unwrap();
        let lines = [
            "await c '@@ outside bw' '@@ end bw' && ctl down || exit",
            r"await a '@@ outside it'\''s up' '@@ end it'\''s up' && ctl up || exit",
        ];
        assert_eq!(script.lines().collect::<Vec<_>>(), lines);
        assert_eq!(outside(&commands[..1], &["a"]), None);
    }

    #[test]
    fn scripts_for_three_hosts() {
        let commands = [
            Command::everywhere("net", "ipoib"),
            Command::alone("list", "ls"),
            Command::sides("s", Ready::Cm, "c -s @host -v").over_ipoib(),
            Command::sides("m", Ready::Says("joined"), "m"),
        ];
        let [a, b, c] = &scripts(&commands, &["a", "b", "c"])[..] else { panic!("three scripts") };
        assert!(a.contains("meet first b c\nalone 'net' 100 'ipoib'\nmeet first b c"), "{a}");
        assert!(b.contains("meet a\nalone 'net'") && c.contains("meet a\nalone 'net'"), "{b}{c}");
        assert!(a.contains("'list'") && !a.contains("'c -s -v'"), "the first looks on: {a}");
        assert!(b.contains("serve 'c -s -v' 100 cm ends 's' c"), "{b}");
        assert!(c.contains("use 'c -s -v' 100 'c -s ib-b -v' b"), "{c}");
        assert!(b.contains("serve 'm' 100 :joined ends 'm' c"), "{b}");
    }

    #[test]
    fn sides_that_are_turned() {
        let pair = |name: &str| Command::sides("s", Ready::Cm, "c @host").over(Network::Ethernet).named(name);
        let commands = [pair("there"), pair("back").turned().with_outside("ctl down")];
        let [a, b] = &scripts(&commands, &["a", "b"])[..] else { panic!("two scripts") };
        assert!(a.contains("serve 'there' 100 cm ends 's' b\nuse 'back' 100 'c 10.1.0.2' b"), "{a}");
        assert!(b.contains("use 'there' 100 'c 10.1.0.1' a\nserve 'back' 100 cm ends 's' a"), "{b}");
        assert!(outside(&commands, &["a", "b"]).unwrap().starts_with("await a "));
    }
}
