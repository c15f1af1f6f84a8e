//! The supervisor: starts workers, starts them again, and answers the operator for all of them.
//!
//! It has the sockets' files and gives the workers what they need as descriptors. From a worker it takes answers to the operator's
//! questions, of bounded length and within a time that is the same for all, and nothing else: no descriptors, and nothing by the channel. A worker that is silent is named, and not asked
//! again for a while: it delays neither the operator nor another's new start by more than that time in so long.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::time::TimeSpec;
use serde_json::{Value, json};

use super::channel::{Channel, Note, channel};
use super::line;
use super::questions::{self, PATIENCE, REST, Silent};
use super::wary::Wary;
use super::worker::clock_ns;
use crate::closer::Closer;
use crate::control;
use crate::links::Links;
use crate::listener::Listener;
use crate::log::Source;
use crate::model::random_key;
use crate::operator::Operator;
use crate::sandbox::Helper;
use crate::scrape;
use crate::topology::{ManagementKey, SubnetManager, Topology, Worker};

/// How long workers may take to end when they are told to.
const GRACE: Duration = Duration::from_secs(2);
/// A worker that lives this long was no failure: the next one is started at once.
const YOUNG: Duration = Duration::from_secs(10);
/// Pauses before a worker that died young is started again, doubled each time.
const PAUSES: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(30);

/// Answers of a worker that wait to be closed, or can't be: it is not asked for more.
const MOST_PENDING: usize = 4;

/// How workers are started: the program, and the arguments that make it one.
#[derive(Debug)]
pub struct Program {
    /// The program's file.
    pub file: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Who looks at clients' mappings for the workers, which can't themselves in their sandbox.
    pub helper: Option<Helper>,
}

/// A worker, whether it lives or not.
struct Slot {
    worker: Worker,
    listeners: Vec<Listener>,
    /// Its links to others: their numbers, which end is here, and whose the other is.
    links: Vec<(u16, u8, usize)>,
    process: Option<Process>,
    pause: Duration,
    /// When it is to be started again.
    start_at: Option<Instant>,
    /// Lets go of what came beside its answers.
    closer: Closer,
    log: Source,
}

struct Process {
    child: Child,
    channel: Channel,
    born: Instant,
    /// It has answered a question. One that has not, and is young, has not begun to serve yet.
    answered: bool,
    /// It was silent, and is not asked before.
    rests_until: Option<Instant>,
}

/// Serves a topology by workers.
pub struct Supervisor {
    program: Program,
    file: String,
    text: String,
    m_key: Option<u64>,
    began_ns: u64,
    slots: Vec<Slot>,
    links: Links,
    operator: Operator,
    stop: OwnedFd,
    log: Source,
}

impl Supervisor {
    /// Makes the sockets of a topology in `run_dir`. `file` and `text` are the topology as it was read.
    ///
    /// # Errors
    /// A socket can't be had.
    pub fn new(
        program: Program,
        topology: &Topology,
        (file, text): (&str, &str),
        run_dir: &Path,
        stop: OwnedFd,
    ) -> anyhow::Result<Supervisor> {
        let workers = topology.workers();
        let mut slots = Vec::new();
        for worker in &workers {
            let part = topology.part_of(worker)?;
            let bind = |(_, hca): (_, &crate::topology::Hca)| Listener::bind(&run_dir.join(&hca.socket));
            let listeners = part.hcas().map(bind).collect::<anyhow::Result<_>>()?;
            let mut links = Vec::new();
            for cut in &part.cuts {
                let there = cut.link.between.get(1 - cut.here).context("a link has two ends")?.node();
                let peer = workers.iter().position(|peer| match peer.host() {
                    Some(host) => host == there,
                    None => topology.switches.iter().any(|switch| switch.name == there),
                });
                let peer = peer.with_context(|| format!("a link leads to {there}, which nobody serves"))?;
                links.push((cut.number, u8::try_from(cut.here)?, peer));
            }
            slots.push(Slot {
                worker: worker.clone(),
                listeners,
                links,
                process: None,
                pause: *PAUSES.start(),
                start_at: Some(Instant::now()),
                closer: Closer::default(),
                log: Source::default(),
            });
        }
        let builtin = topology.fabric.subnet_manager == SubnetManager::Builtin;
        let m_key = match topology.fabric.m_key {
            // All workers' parts of the manager have to have the same.
            ManagementKey::Random if builtin => Some(random_key()?),
            _ => None,
        };
        Ok(Supervisor {
            program,
            file: file.to_owned(),
            text: text.to_owned(),
            m_key,
            began_ns: clock_ns()?,
            slots,
            links: Links::of(topology),
            operator: Operator::new(Some(Listener::bind(&run_dir.join(control::SOCKET))?)),
            stop,
            log: Source::default(),
        })
    }

    /// Offers the metrics of all workers there. Returns the port, if it is one.
    ///
    /// # Errors
    /// The address can't be had; the message names it.
    pub fn offer_metrics(&mut self, address: &scrape::Address) -> anyhow::Result<Option<u16>> {
        self.operator.offer_metrics(address)
    }

    /// Starts the workers and supervises them, until the descriptor that it was given to `stop` becomes readable.
    ///
    /// # Errors
    /// If the system refuses to wait; what workers do only ends them.
    pub fn run(&mut self) -> anyhow::Result<()> {
        loop {
            let Some(Ready { stop, operator, dead }) = self.wait().context("poll")? else { continue };
            if stop {
                self.end();
                return Ok(());
            }
            for at in dead {
                self.bury(at);
            }
            if operator || self.operator.has_work() {
                self.serve_operator();
            }
            let now = Instant::now();
            for at in 0..self.slots.len() {
                let due = |slot: &Slot| slot.start_at.is_some_and(|due| due <= now);
                if self.slots.get(at).is_some_and(due)
                    && let Err(why) = self.start(at)
                {
                    self.log.say(|| tracing::error!("a worker can't be started: {why:#}"));
                    self.bury(at);
                }
            }
        }
    }

    /// Waits. `None`: a signal came between.
    fn wait(&self) -> nix::Result<Option<Ready>> {
        let mut fds = vec![PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
        self.operator.watch(|fd, events| fds.push(PollFd::new(fd, events)));
        let operator_end = fds.len();
        let mut living = Vec::new();
        for (at, slot) in self.slots.iter().enumerate() {
            if let Some(process) = &slot.process {
                // A worker can say nothing: there is only its end to wait for.
                fds.push(PollFd::new(process.channel.as_fd(), PollFlags::empty()));
                living.push(at);
            }
        }
        let wait = match self.operator.has_request() {
            true => Some(Duration::ZERO),
            false => {
                let due = self.slots.iter().filter_map(|slot| slot.start_at).min();
                let due = due.map(|due| due.saturating_duration_since(Instant::now()));
                due.into_iter().chain(self.operator.sleep()).min()
            }
        };
        match ppoll(&mut fds, wait.map(TimeSpec::from_duration), None) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(None),
            Err(e) => return Err(e),
        }
        let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let any = |from: usize, to: usize| fds.get(from..to).is_some_and(|fds| fds.iter().any(ready));
        let dead = fds.iter().skip(operator_end).zip(&living).filter(|(fd, _)| ready(fd)).map(|(_, at)| *at);
        Ok(Some(Ready { stop: any(0, 1), operator: any(1, operator_end), dead: dead.collect() }))
    }

    /// Starts a worker, and joins it to those of its peers that live.
    fn start(&mut self, at: usize) -> anyhow::Result<()> {
        let Some(slot) = self.slots.get_mut(at) else { return Ok(()) };
        slot.start_at = None;
        let (ours, theirs) = channel()?;
        let child = Command::new(&self.program.file)
            .args(&self.program.arguments)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "RUST_LOG"))
            .spawn()
            .with_context(|| format!("{}", self.program.file.display()))?;
        slot.process =
            Some(Process { child, channel: ours, born: Instant::now(), answered: false, rests_until: None });
        let setup = Note::Setup {
            host: slot.worker.host().map(str::to_owned),
            file: self.file.clone(),
            m_key: self.m_key,
            began_ns: self.began_ns,
        };
        let text = text_file(&self.text)?;
        let mut with = vec![text.as_fd()];
        with.extend(self.program.helper.as_ref().map(Helper::socket));
        slot.tell(&setup, &with)?;
        for listener in &slot.listeners {
            slot.tell(&Note::Listener { path: listener.path().display().to_string() }, &[listener.as_fd()])?;
        }
        let links = slot.links.clone();
        for (number, here, peer) in links {
            let Some(there) = self.slots.get_mut(peer).filter(|there| there.process.is_some()) else {
                continue;
            };
            let (memory, [near, far]) = line::make()?;
            if there
                .tell_peer(&Note::Link { number, here: 1 - here }, &[memory.as_fd(), far.as_fd()])
                .is_err()
            {
                // Its end is noticed by itself; when it is started again it joins this one.
                continue;
            }
            if let Some(slot) = self.slots.get(at)
                && let Err(why) = slot.tell(&Note::Link { number, here }, &[memory.as_fd(), near.as_fd()])
            {
                // What the peer has sent already may take long to close.
                slot.closer.give(near);
                return Err(why);
            }
        }
        self.slots.get(at).map_or(Ok(()), |slot| slot.tell(&Note::Serve, &[]))
    }

    /// A worker has ended, or is of no use: it is started again, soon.
    fn bury(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        let age = match slot.process.take() {
            None => Duration::ZERO,
            Some(Process { mut child, channel, born, .. }) => {
                // It may live on without its channel.
                drop(channel);
                let _ = child.kill();
                let status = child.wait();
                let worker = &slot.worker;
                slot.log.say(|| match &status {
                    Ok(status) => tracing::warn!("{worker}: its process has ended: {status}"),
                    Err(e) => tracing::warn!("{worker}: its process has ended: {e}"),
                });
                born.elapsed()
            }
        };
        let (first, most) = PAUSES.into_inner();
        if age >= YOUNG {
            slot.pause = first;
        }
        slot.start_at = Some(Instant::now() + slot.pause);
        slot.pause = (slot.pause * 2).min(most);
    }

    /// Ends all workers.
    fn end(&mut self) {
        let mut left: Vec<Child> = Vec::new();
        for slot in &mut self.slots {
            left.extend(slot.process.take().map(|Process { child, .. }| child));
        }
        let until = Instant::now() + GRACE;
        while !left.is_empty() && Instant::now() < until {
            left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            std::thread::sleep(Duration::from_millis(5));
        }
        for mut child in left {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn serve_operator(&mut self) {
        let mut operator = std::mem::take(&mut self.operator);
        operator.serve(|_, request| self.answer(request));
        self.operator = operator;
    }

    /// What all workers together answer.
    fn answer(&mut self, request: &Value) -> Result<Value, String> {
        let word = |key: &str| request.get(key).and_then(Value::as_str);
        let of_a_link = word("cmd") == Some("link");
        let of_a_fault = |key: &str| request.get(key).filter(|_| word("cmd") == Some("fault"));
        // What one of them has.
        let of_one = of_a_link
            || ["inspect", "slot"].map(Some).contains(&word("cmd"))
            || of_a_fault("add").or(of_a_fault("remove")).is_some();
        if of_a_link && let Some(at) = word("at") {
            self.links.find(at)?;
        }
        // Whose a fault is its number says.
        let number = of_a_fault("remove").and_then(Value::as_u64).and_then(|it| usize::try_from(it).ok());
        let whom = number.and_then(|number| number.checked_rem(self.slots.len()));
        let answers = self.ask(whom, request);
        let mut all = json!({});
        let (mut refused, mut answered) = (None, false);
        for (worker, answer) in answers {
            match answer {
                Ok(answer) => {
                    answered = true;
                    merge(&mut all, answer, &worker);
                }
                Err(why) => {
                    let silent = why.is::<Silent>();
                    let why = format!("{why:#}");
                    if let Some(map) = all.as_object_mut() {
                        let errors = map.entry("errors").or_insert_with(|| json!({}));
                        errors.as_object_mut().map(|errors| errors.insert(worker.to_string(), json!(why)));
                    }
                    // Of one that says nothing nobody knows whether it would have refused.
                    if refused.is_none() || silent {
                        refused = Some(if silent { format!("{worker}: {why}") } else { why });
                    }
                }
            }
        }
        // A link has its ends at some workers, an adapter is at one; the others know nothing of it.
        if of_one && let (true, Some(map)) = (answered, all.as_object_mut()) {
            map.remove("errors");
        }
        match (answered, refused) {
            (false, Some(why)) => Err(why),
            _ => Ok(all),
        }
    }

    /// Asks one worker, or all of them at once. One that is silent rests from then on.
    fn ask(&mut self, whom: Option<usize>, request: &Value) -> Vec<(Worker, anyhow::Result<Value>)> {
        let until = Instant::now() + PATIENCE;
        let slots = self.slots.iter_mut().enumerate();
        let mut slots: Vec<&mut Slot> =
            slots.filter(|(at, _)| whom.is_none_or(|whom| whom == *at)).map(|(_, slot)| slot).collect();
        let asked = slots.iter().map(|slot| slot.ask(request)).collect();
        let answers = questions::gather(asked, until);
        for (slot, answer) in slots.iter_mut().zip(&answers) {
            match answer {
                Err(why) if why.is::<Silent>() => slot.rest(),
                Err(_) => {}
                Ok(_) => slot.process.iter_mut().for_each(|process| process.answered = true),
            }
        }
        slots.into_iter().map(|slot| slot.worker.clone()).zip(answers).collect()
    }
}

/// What `poll` found.
struct Ready {
    stop: bool,
    /// The operator says something.
    operator: bool,
    /// Workers that are gone.
    dead: Vec<usize>,
}

impl Slot {
    fn tell(&self, note: &Note, with: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        let process = self.process.as_ref().context("it does not run")?;
        process.channel.send(note, with).with_context(|| format!("{}", self.worker))
    }

    /// Tells a worker that has been there: one that takes no notes, or has been silent, is not waited for again.
    fn tell_peer(&mut self, note: &Note, with: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        let process = self.process.as_ref().context("it does not run")?;
        if process.rests_until.is_some_and(|until| Instant::now() < until) {
            return process.channel.send_now(note, with);
        }
        self.tell(note, with).inspect_err(|_| self.rest())
    }

    /// Asks the worker what the operator asked. Gives where its answer comes.
    fn ask(&self, request: &Value) -> anyhow::Result<Wary> {
        let process = self.process.as_ref().context("it does not run")?;
        let left = process.rests_until.and_then(|until| until.checked_duration_since(Instant::now()));
        if let Some(left) = left {
            bail!("it was silent, and is not asked for another {:.1} s", left.as_secs_f64());
        }
        if self.closer.pending() >= MOST_PENDING {
            bail!("what came beside its answers is not closed yet");
        }
        let (ours, theirs) = questions::ask(request, &self.closer)?;
        process.channel.send_now(&Note::Control, &[theirs.as_fd()])?;
        Ok(ours)
    }

    /// It has been silent: it is not asked for a while, unless it has only just been started.
    fn rest(&mut self) {
        if let Some(process) = &mut self.process
            && (process.answered || process.born.elapsed() >= YOUNG)
        {
            process.rests_until = Some(Instant::now() + REST);
            let worker = &self.worker;
            self.log.say(|| tracing::warn!("{worker}: its process is silent"));
        }
    }
}

/// The topology's text as a file for a worker to read.
fn text_file(text: &str) -> anyhow::Result<File> {
    let mut file = File::from(memfd_create(c"softhca-topology", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Puts a worker's answer to those of the others: lists are joined, counts are by worker, times are the latest.
fn merge(all: &mut Value, answer: Value, worker: &Worker) {
    let (Some(all), Value::Object(answer)) = (all.as_object_mut(), answer) else { return };
    for (key, value) in answer {
        match (all.get_mut(&key), value) {
            (Some(Value::Array(list)), Value::Array(more)) if key == "links" => {
                for link in more {
                    let same = list.iter_mut().find(|known| known.get("between") == link.get("between"));
                    match same {
                        Some(known) => both_ends(known, &link),
                        None => list.push(link),
                    }
                }
            }
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
            (_, value @ Value::Object(_)) if key == "engine" || key == "joints" => {
                let by_worker = all.entry(key).or_insert_with(|| json!({}));
                by_worker.as_object_mut().map(|map| map.insert(worker.to_string(), value));
            }
            (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
            (Some(known), value) => {
                if known.as_u64() < value.as_u64() {
                    *known = value;
                }
            }
            (None, value) => drop(all.insert(key, value)),
        }
    }
}

/// A link is up, its cable in, and its peer there, if both its ends say so.
fn both_ends(known: &mut Value, other: &Value) {
    let Some(known) = known.as_object_mut() else { return };
    known.remove("here");
    for key in ["up", "cable", "peer"] {
        if other.get(key) == Some(&Value::Bool(false)) {
            known.insert(key.into(), false.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_put_together() {
        let mut all = json!({});
        let host = |name: &str| Worker::Host(name.into());
        let link =
            |up| json!({"between": ["a/hca0", "s/1"], "up": up, "peer": true, "cable": true, "here": 0});
        merge(&mut all, json!({"ok": true, "time_ns": 5, "hcas": [1], "links": [link(true)]}), &host("a"));
        merge(
            &mut all,
            json!({"ok": true, "time_ns": 9, "hcas": [2], "engine": {"rounds": 1}, "links": [link(false)]}),
            &host("b"),
        );
        merge(&mut all, json!({"time_ns": 7, "engine": {"rounds": 2}}), &Worker::Switches);
        for name in ["a", "b"] {
            let next = json!({"next": {name: 3}, "diagnoses": [{"hca": name}]});
            merge(&mut all, next, &host(name));
        }
        assert_eq!(all["next"], json!({"a": 3, "b": 3}));
        assert_eq!(all["diagnoses"], json!([{"hca": "a"}, {"hca": "b"}]));
        assert_eq!(all["hcas"], json!([1, 2]));
        assert_eq!(all["time_ns"], 9);
        assert_eq!(all["engine"], json!({"host b": {"rounds": 1}, "switches": {"rounds": 2}}));
        let link = json!({"between": ["a/hca0", "s/1"], "up": false, "peer": true, "cable": true});
        assert_eq!(all["links"], json!([link]));
    }
}
