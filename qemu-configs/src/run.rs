//! Runs commands in the guests of a topology, to the end, and judges the outcome.
//!
//! ```no_run
//! let report = hca_vm::run::Run::new("loopback").host("a", "ibv_devinfo").run()?;
//! assert_eq!(report.exit_code(), 0, "{report}");
//! # Ok::<(), anyhow::Error>(())
//! ```

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regex::Regex;

use crate::beside::Beside;
use crate::colour;
use crate::diagnoses::{DEVICE, Diagnoses};
use crate::guest::{Copy, Guest, State, Task};
use crate::kmsg;
use crate::lab::{Lab, Options};
use crate::progress;
use crate::signals;

/// Exit code of a run that took too long, as with timeout(1).
pub const TIMED_OUT: i32 = 124;
/// Exit code when a guest died: its kernel crashed and says no more, or QEMU ended.
pub const GUEST_DIED: i32 = 125;
/// Exit code when only the kernel log was bad.
pub const BAD_KERNEL_LOG: i32 = 3;
/// Exit code when only something was diagnosed, and that was denied.
pub const DIAGNOSED: i32 = 4;
/// Exit code after Ctrl-C or SIGTERM.
pub const INTERRUPTED: i32 = 130;

/// How long the other commands may go on after one has failed.
const GRACE: Duration = Duration::from_secs(15);
const LOG_LIMIT: Duration = Duration::from_secs(5);
const POWER_OFF_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// A run, to be described and then started.
pub struct Run {
    options: Options,
    commands: Vec<(String, String)>,
    beside: Option<String>,
    timeout: Duration,
    allowed: Vec<Regex>,
    deny_diagnoses: bool,
    watch: fn(&str, &str),
}

/// What happened.
#[derive(Debug)]
pub struct Report {
    /// One entry per host of the topology.
    pub hosts: Vec<HostReport>,
    /// What became of the command on this machine, if there was one.
    pub beside: Option<BesideReport>,
    /// Why the run ended early, if it did.
    pub cut_short: Option<CutShort>,
    /// Resource counts of every adapter when the commands had ended, as JSON.
    pub resources: Option<serde_json::Value>,
    /// The same, for people.
    pub resources_text: Option<String>,
    /// What the server wrote to standard error.
    pub server_log: String,
    /// What was diagnosed of the guests' drivers: objects as `softhca diagnoses --json` prints them, with
    /// [`PRINTED`](crate::diagnoses::PRINTED).
    pub diagnoses: Vec<serde_json::Value>,
    deny_diagnoses: bool,
    first_failure: Option<i32>,
}

/// What happened in one host.
#[derive(Debug)]
pub struct HostReport {
    /// Its name.
    pub name: String,
    /// Exit status of its command; `None` when it had none or it didn't end.
    pub exit: Option<i32>,
    /// What the command printed.
    pub output: String,
    /// The kernel's messages.
    pub kernel_log: Vec<kmsg::Line>,
    /// Those that fail the run.
    pub bad_kernel_lines: Vec<kmsg::Line>,
    /// What failed in the guest before the command, such as loading drivers.
    pub problems: Vec<String>,
    /// The end of what QEMU and the console said, if the guest died.
    pub last_words: Option<String>,
}

/// What a command on this machine did.
#[derive(Debug)]
pub struct BesideReport {
    /// Its exit status; `None` when it did not end.
    pub exit: Option<i32>,
    /// What it printed.
    pub output: String,
}

/// Why a run ended before its commands did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutShort {
    /// The time was up.
    Timeout,
    /// Ctrl-C or SIGTERM.
    Interrupted,
    /// A guest died.
    GuestDied,
    /// The server ended.
    ServerDied,
}

impl Run {
    /// A run in a built-in topology, or one in a file.
    pub fn new(topology: impl Into<String>) -> Self {
        Self::with(Options::new(topology))
    }

    /// A run with these options.
    pub fn with(options: Options) -> Self {
        Self {
            options,
            commands: Vec::new(),
            beside: None,
            timeout: Duration::from_secs(300),
            allowed: Vec::new(),
            deny_diagnoses: false,
            watch: |_, _| (),
        }
    }

    /// Runs this shell command in that host.
    pub fn host(mut self, name: impl Into<String>, command: impl Into<String>) -> Self {
        self.commands.push((name.into(), command.into()));
        self
    }

    /// Runs this shell command on this machine, beside the guests' commands. `softhca` is on its PATH, and `await HOST
    /// TEXT...`, which waits until the host's command has printed one of the texts; `SOFTHCA_RUN_DIR` names the server's run
    /// directory (of several servers, the folder that has theirs), `HCA_VM_LOGS` the folder of the logs.
    pub fn beside(mut self, command: impl Into<String>) -> Self {
        self.beside = Some(command.into());
        self
    }

    /// Boots this kernel: a Debian series, a package file or a folder.
    pub fn kernel(mut self, kernel: impl Into<String>) -> Self {
        self.options.kernel = kernel.into();
        self
    }

    /// Adds a Debian package to the guests.
    pub fn package(mut self, name: impl Into<String>) -> Self {
        self.options.packages.push(name.into());
        self
    }

    /// Puts a file into every guest.
    pub fn copy(mut self, copy: Copy) -> Self {
        self.options.copies.push(copy);
        self
    }

    /// That host boots over the fabric: iPXE gets its kernel from a host whose command calls `hca-netboot`.
    pub fn netboot(mut self, host: impl Into<String>) -> Self {
        self.options.netboot.push(host.into());
        self
    }

    /// One more argument of `softhca serve`.
    pub fn serve(mut self, argument: impl Into<String>) -> Self {
        self.options.serve.push(argument.into());
        self
    }

    /// Limits the time from the start of the guests to the end of the commands. Default: 300 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Accepts kernel messages that match.
    pub fn allow_dmesg(mut self, regex: Regex) -> Self {
        self.allowed.push(regex);
        self
    }

    /// Lets the run fail if something is diagnosed of the drivers.
    pub fn deny_diagnoses(mut self) -> Self {
        self.deny_diagnoses = true;
        self
    }

    /// Leaves loading the drivers to the commands.
    pub fn no_modprobe(mut self) -> Self {
        self.options.modprobe = false;
        self
    }

    /// Keeps the logs in this folder.
    pub fn keep_logs(mut self, dir: impl Into<PathBuf>) -> Self {
        self.options.log_dir = Some(dir.into());
        self
    }

    /// Prints output lines as they come, with the host's name in front; on a terminal in colour, programs' own colours too.
    pub fn echo(mut self) -> Self {
        self.options.colour = colour::terminal();
        self.watch(|host, line| {
            // A reader that went away is no reason to stop the guests in the middle.
            let _ = writeln!(std::io::stdout(), "{} {line}", colour::name(host));
        })
    }

    /// Hands over output lines as they come: the host's name and the line.
    pub fn watch(mut self, each: fn(host: &str, line: &str)) -> Self {
        self.watch = each;
        self
    }

    /// Does it. An error means that the run could not be set up; what the commands did is in the report.
    pub fn run(self) -> Result<Report> {
        let named: Vec<&str> = self.commands.iter().map(|(name, _)| name.as_str()).collect();
        for (index, name) in named.iter().enumerate() {
            if named.iter().take(index).any(|other| other == name) {
                bail!("two commands for host '{name}'; join them with ';' or '&'");
            }
        }
        let mut lab = Lab::start(self.options.clone(), &named)?;
        let hosts: Vec<String> = lab.topology().hosts.iter().map(|host| host.name.clone()).collect();
        signals::expect_orderly_end();
        let mut diagnoses = lab.diagnoses()?;
        let deadline = Instant::now() + self.timeout;
        let mut guests = Vec::new();
        let command = |name: &String| self.commands.iter().find(|(host, _)| host == name);
        let task = |name| command(name).map_or(Task::Wait, |(_, command)| Task::Job(command.clone()));
        let mut served = Vec::new();
        for name in &self.options.netboot {
            served.extend(lab.netboot(name, task(name))?);
        }
        for name in &hosts {
            let files: &[Copy] = if self.boots_over_network(name) { &[] } else { &served };
            guests.push((lab.boot_with(name, task(name), files)?, command(name).is_some()));
        }
        let mut beside = None;
        let (cut_short, first_failure) =
            self.follow(&mut lab, (&mut guests, &mut diagnoses), &mut beside, deadline)?;

        if cut_short != Some(CutShort::Interrupted) {
            self.settle(&mut guests, LOG_LIMIT, |guest, busy| {
                !busy || !matches!(guest.state(), State::Done(_)) || guest.log_is_complete()
            });
        }
        let server_alive = lab.servers_mut().alive();
        let resources_text = server_alive.then(|| lab.servers().resources_text().ok()).flatten();
        let resources = server_alive.then(|| lab.servers().resources().ok()).flatten();
        if cut_short.is_none() {
            guests.iter_mut().for_each(|(guest, _)| guest.power_off());
            self.settle(&mut guests, POWER_OFF_LIMIT, |guest, _| guest.is_off());
        }
        let hosts: Vec<HostReport> = guests.into_iter().map(|(guest, _)| self.conclude(guest)).collect();
        diagnoses.poll(
            || printed(hosts.iter().map(|host| (host.name.as_str(), host.output.as_str()))),
            |line| (self.watch)(DEVICE, line),
        );
        let diagnoses = diagnoses.end();
        lab.servers_mut().stop();
        let deny_diagnoses = self.deny_diagnoses;
        let server_log = lab.servers().messages();
        let beside = beside.map(|b| BesideReport { exit: b.exit(), output: b.output().to_owned() });
        Ok(Report {
            hosts,
            beside,
            cut_short,
            resources,
            resources_text,
            server_log,
            diagnoses,
            deny_diagnoses,
            first_failure,
        })
    }

    /// Until every command has ended, or the run is cut short.
    fn follow(
        &self,
        lab: &mut Lab,
        (guests, diagnoses): (&mut [(Guest, bool)], &mut Diagnoses),
        beside: &mut Option<Beside>,
        mut deadline: Instant,
    ) -> Result<(Option<CutShort>, Option<i32>)> {
        let mut started = false;
        let mut first_failure = None;
        let fail = |status: i32, first_failure: &mut Option<i32>, deadline: &mut Instant| {
            if first_failure.is_none() {
                *first_failure = Some(status);
                *deadline = (*deadline).min(Instant::now() + GRACE);
            }
        };
        loop {
            self.poll(guests);
            diagnoses.poll(
                || printed(guests.iter().map(|(guest, _)| (guest.name(), guest.output()))),
                |line| (self.watch)(DEVICE, line),
            );
            if let Some(beside) = beside {
                beside.poll(|line| (self.watch)("beside", line));
                if let Some(status @ 1..) = beside.exit() {
                    fail(status, &mut first_failure, &mut deadline);
                }
            }
            // Hosts that boot over the network are served by commands of the others.
            let ready = |(guest, _): &(Guest, bool)| {
                *guest.state() == State::Ready || self.boots_over_network(guest.name())
            };
            if started {
                guests.iter_mut().for_each(|(guest, _)| guest.go());
            } else if guests.iter().all(ready) {
                started = true;
                guests.iter_mut().for_each(|(guest, _)| guest.go());
                *beside = self.beside.as_ref().map(|command| lab.beside(command)).transpose()?;
            }
            for (guest, _) in guests.iter() {
                if let State::Done(status @ 1..) = guest.state() {
                    fail(*status, &mut first_failure, &mut deadline);
                }
            }
            let busy = |(guest, has_command): &(Guest, bool)| {
                *has_command && !matches!(guest.state(), State::Done(_))
            };
            if guests.iter().any(|(guest, _)| *guest.state() == State::Died || guest.is_hung()) {
                return Ok((Some(CutShort::GuestDied), first_failure));
            }
            let beside_busy = beside.as_ref().is_some_and(|beside| beside.exit().is_none());
            if started && !beside_busy && !guests.iter().any(busy) {
                return Ok((None, first_failure));
            }
            if signals::interrupted() {
                return Ok((Some(CutShort::Interrupted), first_failure));
            }
            if !lab.servers_mut().alive() {
                return Ok((Some(CutShort::ServerDied), first_failure));
            }
            if Instant::now() >= deadline {
                return Ok((Some(CutShort::Timeout), first_failure));
            }
            std::thread::sleep(POLL);
        }
    }

    fn boots_over_network(&self, host: &str) -> bool {
        self.options.netboot.iter().any(|name| name == host)
    }

    /// Polls until the condition holds for all guests, or the time is up.
    fn settle(
        &self,
        guests: &mut [(Guest, bool)],
        limit: Duration,
        condition: impl Fn(&Guest, bool) -> bool,
    ) {
        let deadline = Instant::now() + limit;
        loop {
            self.poll(guests);
            if guests.iter().all(|(guest, busy)| condition(guest, *busy))
                || Instant::now() >= deadline
                || signals::interrupted()
            {
                return;
            }
            std::thread::sleep(POLL);
        }
    }

    fn poll(&self, guests: &mut [(Guest, bool)]) {
        for (guest, _) in guests {
            let name = guest.name().to_owned();
            guest.poll(|line| (self.watch)(&name, line));
        }
    }

    fn conclude(&self, mut guest: Guest) -> HostReport {
        let died = *guest.state() == State::Died || guest.is_hung();
        guest.kill();
        let mut log = guest.kernel_log().to_vec();
        // The console repeats errors; what only it has is what user space could no longer read.
        for text in guest.console_log() {
            let message = text.split_once("] ").map_or(text.as_str(), |(_, message)| message);
            if !log.iter().any(|line| line.text == message) {
                log.push(kmsg::Line { level: None, sequence: 0, time_us: 0, text: text.clone() });
            }
        }
        HostReport {
            name: guest.name().to_owned(),
            exit: match guest.state() {
                State::Done(status) => Some(*status),
                _ => None,
            },
            output: guest.output().to_owned(),
            bad_kernel_lines: kmsg::bad_lines(&log, &self.allowed),
            kernel_log: log,
            problems: guest.problems().to_vec(),
            last_words: died.then(|| guest.last_words()),
        }
    }
}

impl Report {
    /// The report of one host.
    pub fn host(&self, name: &str) -> Option<&HostReport> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// What a shell gets: the first failing command's status, 124, 125, 130, 3 for bad kernel messages, 4 for diagnoses that
    /// were denied, or 0.
    pub fn exit_code(&self) -> i32 {
        match (self.cut_short, self.first_failure) {
            (Some(CutShort::Interrupted), _) => INTERRUPTED,
            (_, Some(status)) => status,
            (Some(CutShort::Timeout), None) => TIMED_OUT,
            (Some(CutShort::GuestDied | CutShort::ServerDied), None) => GUEST_DIED,
            (None, None) if self.hosts.iter().any(|host| !host.bad_kernel_lines.is_empty()) => BAD_KERNEL_LOG,
            (None, None) if self.deny_diagnoses && !self.diagnoses.is_empty() => DIAGNOSED,
            (None, None) => 0,
        }
    }

    /// How much was diagnosed of the drivers, if anything.
    fn diagnosed(&self) -> Option<String> {
        let first = self.diagnoses.first()?.get("text").and_then(serde_json::Value::as_str)?;
        let plural = if self.diagnoses.len() == 1 { "diagnosis" } else { "diagnoses" };
        Some(format!("{} {plural} of drivers; the first: {first}", self.diagnoses.len()))
    }

    /// Says on standard error what was wrong, if anything, and how much was diagnosed.
    pub fn explain(&self) {
        if !self.deny_diagnoses {
            self.diagnosed().iter().for_each(|line| progress::note(line));
        }
        for line in self.findings() {
            progress::note(&line);
        }
    }

    /// What is wrong with the run, without what hosts printed.
    pub fn findings(&self) -> Vec<String> {
        let mut all = Vec::new();
        match self.cut_short {
            Some(CutShort::Timeout) => {
                let late: Vec<_> = self
                    .hosts
                    .iter()
                    .filter(|host| host.exit.is_none())
                    .map(|host| host.name.as_str())
                    .collect();
                let why = match self.first_failure {
                    Some(_) => "stopped, since another command failed",
                    None => "time is up (--timeout gives more)",
                };
                all.push(format!("{why}; not finished: {}", late.join(", ")));
            }
            Some(CutShort::Interrupted) => all.push("interrupted".to_owned()),
            Some(CutShort::ServerDied) => all.push(format!("the server ended:\n{}", self.server_log.trim())),
            Some(CutShort::GuestDied) | None => {}
        }
        for host in &self.hosts {
            if let Some(words) = &host.last_words {
                all.push(format!("guest {} died:\n{}", host.name, words.trim()));
            }
            if !host.bad_kernel_lines.is_empty() {
                let lines: String =
                    host.bad_kernel_lines.iter().map(|line| format!("  {}\n", colour::bad(line))).collect();
                all.push(format!(
                    "bad kernel messages in {} (--allow-dmesg REGEX accepts them, --keep-logs DIR shows their surroundings):\n{}",
                    host.name,
                    lines.trim_end()
                ));
            }
            if let Some(status @ 1..) = host.exit {
                all.push(format!("the command in {} ended with status {status}", host.name));
            }
        }
        if self.deny_diagnoses {
            all.extend(self.diagnosed());
        }
        match self.beside.as_ref().map(|beside| beside.exit) {
            Some(Some(status @ 1..)) => all.push(format!("the command beside ended with status {status}")),
            Some(None) => all.push("the command beside did not end".to_owned()),
            Some(Some(_)) | None => {}
        }
        all
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "exit code {}", self.exit_code())?;
        for line in self.findings() {
            writeln!(f, "{line}")?;
        }
        for host in &self.hosts {
            for line in host.output.lines() {
                writeln!(f, "{}| {line}", host.name)?;
            }
            for line in &host.kernel_log {
                if line.text.contains("mlx5") || line.text.contains("infiniband") {
                    writeln!(f, "{} kernel| {line}", host.name)?;
                }
            }
        }
        for line in self.beside.iter().flat_map(|beside| beside.output.lines()) {
            writeln!(f, "beside| {line}")?;
        }
        if !self.server_log.trim().is_empty() {
            writeln!(f, "server:\n{}", self.server_log.trim())?;
        }
        Ok(())
    }
}

/// How many bytes each host has printed.
fn printed<'a>(hosts: impl Iterator<Item = (&'a str, &'a str)>) -> serde_json::Value {
    hosts
        .map(|(name, output)| (name.to_owned(), output.len().into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Splits `HOST=COMMAND`.
pub fn parse_command(text: &str) -> Result<(String, String)> {
    let (host, command) = text.split_once('=').with_context(|| {
        format!("'{text}' is not of the form HOST='COMMAND', for example a='ibv_devinfo'")
    })?;
    if host.is_empty() || !host.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        bail!("'{host}' in '{text}' is not a host name; write HOST='COMMAND', for example a='ibv_devinfo'");
    }
    Ok((host.to_owned(), command.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(exits: &[Option<i32>], cut_short: Option<CutShort>, bad: bool) -> Report {
        let line = kmsg::Line { level: Some(4), sequence: 1, time_us: 0, text: "WARNING: x".into() };
        Report {
            hosts: exits
                .iter()
                .map(|exit| HostReport {
                    name: "a".into(),
                    exit: *exit,
                    output: String::new(),
                    kernel_log: vec![],
                    bad_kernel_lines: if bad { vec![line.clone()] } else { vec![] },
                    problems: vec![],
                    last_words: None,
                })
                .collect(),
            beside: None,
            cut_short,
            resources: None,
            resources_text: None,
            server_log: String::new(),
            diagnoses: Vec::new(),
            deny_diagnoses: true,
            first_failure: exits.iter().flatten().copied().find(|status| *status != 0),
        }
    }

    #[test]
    fn exit_codes() {
        assert_eq!(report(&[Some(0), None], None, false).exit_code(), 0);
        assert_eq!(report(&[Some(0), Some(7)], None, true).exit_code(), 7);
        assert_eq!(report(&[Some(0)], None, true).exit_code(), BAD_KERNEL_LOG);
        let mut diagnosed = report(&[Some(0)], None, false);
        diagnosed.diagnoses.push(serde_json::json!({"text": "QP 0x40: no"}));
        assert_eq!(diagnosed.exit_code(), DIAGNOSED);
        assert!(diagnosed.findings().iter().any(|line| line.contains("QP 0x40")));
        diagnosed.deny_diagnoses = false;
        assert_eq!((diagnosed.exit_code(), diagnosed.findings().len()), (0, 0));
        assert_eq!(report(&[None], Some(CutShort::Timeout), false).exit_code(), TIMED_OUT);
        // A peer that hangs because the other failed must not hide the failure.
        assert_eq!(report(&[Some(5), None], Some(CutShort::Timeout), false).exit_code(), 5);
        assert_eq!(report(&[None], Some(CutShort::GuestDied), true).exit_code(), GUEST_DIED);
        assert_eq!(report(&[None], Some(CutShort::Interrupted), false).exit_code(), INTERRUPTED);
    }

    #[test]
    fn commands() {
        assert_eq!(parse_command("a=X=1 env").unwrap(), ("a".into(), "X=1 env".into()));
        assert!(parse_command("ibv_devinfo").is_err());
        assert!(parse_command("=x").is_err());
        assert!(parse_command("a b=x").is_err());
    }
}
