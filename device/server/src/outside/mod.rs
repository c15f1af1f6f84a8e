//! The way out: ends of Ethernet links at which other software is, as QEMU's network devices, passt, or this machine.
//!
//! ```text
//! World --LinkMessage---> Outsides::send   --frames--> software
//! World <--tunnel_frame, tunnel_link-- Outsides::run <--frames-- software
//! ```
//!
//! To the model such an end is a tunnel. [`address`] says what a topology file may name, `frame` what a frame is on both
//! sides; `dgram`, `stream` (with `prefix`) and `tap` are the media, each a `Port`; `turn` has what one turn may
//! cost and what may wait, `ask` who is asked to wait.
//!
//! - **Trust.** Whoever is at the other end may send frames of any bytes, as many as come. What is too short or too long is
//!   counted in [`Counts`] and dropped; one end has a bounded share of each round, in either direction.
//! - **Light.** A stream's link is lit while its peer is connected, a TAP's while the interface is there, that of datagrams always.
//! - **Back-pressure.** None that passes the border: what the other side does not take waits. When much waits, the port at the
//!   link's near end is asked to wait, too (PAUSE); beyond a bound what comes is dropped. Pause frames have no meaning outside.
//!
//! Everything but the connection of a stream that begins here is opened before the server enters its sandbox.

pub mod address;
mod ask;
mod dgram;
mod frame;
pub mod prefix;
mod sending;
mod stream;
mod tap;
pub mod turn;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::poll::PollFlags;
use serde_json::{Value, json};

use self::address::{Address, Medium};
use self::ask::Ask;
use self::dgram::Dgram;
use self::frame::{from_frame, to_frame};
use self::stream::Stream;
use self::tap::Tap;
use self::turn::{Counts, Queue, Turn};
use crate::log::Source;
use crate::sandbox::Connects;
use crate::topology::{Exit, Part};

/// The connections that the ends of a part begin.
pub fn connects(part: &Part<'_>) -> Connects {
    let mut connects = Connects::default();
    for exit in &part.exits {
        match &exit.medium {
            Medium::Stream(address::Stream::Connect { to: Address::Unix(_), .. }) => connects.unix = true,
            Medium::Stream(address::Stream::Connect { to: Address::Inet(to), .. }) => {
                connects.ports.push(to.port());
            }
            Medium::Stream(address::Stream::Listen(_))
            | Medium::Dgram { .. }
            | Medium::Tap { .. }
            | Medium::Simbricks(_) => {}
        }
    }
    connects
}

/// The folders of sockets that the ends of a part have, and that are removed at the end.
pub fn folders(part: &Part<'_>) -> Vec<PathBuf> {
    let own = part.exits.iter().filter_map(|exit| exit.medium.own());
    let folder = |address: &Address| match address {
        Address::Unix(path) => path.parent().map(Path::to_path_buf),
        Address::Inet(_) => None,
    };
    own.filter_map(folder).collect()
}

/// Frames that one end sends before others get their turn: each is a call of the system.
const SENDS: usize = 512;

/// One medium that carries frames. Nothing in it blocks.
trait Port: fmt::Debug + Send {
    /// Names the descriptors to wait for. `waiting`: frames wait to leave.
    fn watch<'a>(&'a self, waiting: bool, add: &mut dyn FnMut(BorrowedFd<'a>, PollFlags));

    /// When there is something to do that no descriptor announces.
    fn due(&self, waiting: bool) -> Option<Instant>;

    /// Takes what has come, until the turn is over. Returns true if there may be more.
    fn receive(&mut self, turn: &mut Turn<'_>) -> bool;

    /// Sends what waits, as far as the other side takes it, up to a share of the round ([`SENDS`], or 2 MiB of a stream). Returns
    /// true if more could be sent at once.
    fn send(&mut self, queue: &mut Queue, counts: &mut Counts) -> bool;

    /// Whether somebody is, or may be, at the other end.
    fn is_lit(&self) -> bool;
}

/// What the model has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The far end is lit, or dark.
    Light(bool),
    /// A frame came.
    Frame(Vec<u8>),
}

/// One end.
#[derive(Debug)]
struct Outside {
    name: String,
    link: String,
    medium: &'static str,
    port: Box<dyn Port>,
    queue: Queue,
    ask: Ask,
    counts: Counts,
    lit: bool,
    log: Source,
}

/// The ends of a process.
#[derive(Debug)]
pub struct Outsides {
    /// By the link's number.
    ends: BTreeMap<u16, Outside>,
    /// More may have come.
    more: bool,
}

impl Outsides {
    /// Opens what the links of a part lead to; `None` if none leads outside.
    ///
    /// # Errors
    /// A socket or device can't be had; the message names it and the end.
    pub fn open(part: &Part<'_>) -> anyhow::Result<Option<Outsides>> {
        let mut ends = BTreeMap::new();
        for exit in &part.exits {
            let outside = Outside::open(exit).with_context(|| format!("outside {}", exit.name))?;
            tracing::info!("link {}: {} of other software", outside.link, outside.medium);
            ends.insert(exit.number, outside);
        }
        // The first round finds out who is there.
        Ok((!ends.is_empty()).then_some(Outsides { ends, more: true }))
    }

    /// Names the descriptors to wait for.
    pub fn watch<'a>(&'a self, add: &mut dyn FnMut(BorrowedFd<'a>, PollFlags)) {
        self.ends.values().for_each(|end| end.port.watch(!end.queue.is_empty(), add));
    }

    /// How long there is nothing to do if no descriptor has something; `None`: for ever.
    pub fn sleep(&self) -> Option<Duration> {
        if self.more {
            return Some(Duration::ZERO);
        }
        let due =
            |end: &Outside| [end.port.due(!end.queue.is_empty()), end.ask.due()].into_iter().flatten().min();
        let due = self.ends.values().filter_map(due).min();
        due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    /// Takes what has come and does what is due, if a descriptor is `ready` or time has come. Returns what the model has to know
    /// of which link, and whether there may be more to take.
    pub fn run(&mut self, ready: bool) -> (Vec<(u16, Event)>, bool) {
        let mut events = Vec::new();
        if !ready && self.sleep() != Some(Duration::ZERO) {
            return (events, false);
        }
        self.more = false;
        for (link, end) in &mut self.ends {
            let mut turn = Turn::new(&mut end.counts);
            self.more |= end.port.receive(&mut turn);
            let frames = turn.frames;
            self.more |= end.port.send(&mut end.queue, &mut end.counts);
            // Frames over a dark link are lost: light comes before them, and goes behind them.
            let light = end.look().then_some((*link, Event::Light(end.lit)));
            events.extend(light.clone().filter(|_| end.lit));
            let asked = end.ask.look(end.queue.bytes()).and_then(|frame| to_frame(&frame).ok());
            events.extend(asked.into_iter().chain(frames).map(|frame| (*link, Event::Frame(frame))));
            events.extend(light.filter(|_| !end.lit));
        }
        (events, self.more)
    }

    /// A frame leaves by a link.
    pub fn send(&mut self, link: u16, frame: Vec<u8>) {
        let Some(end) = self.ends.get_mut(&link) else { return };
        match from_frame(frame) {
            Ok(_) if !end.port.is_lit() => end.counts.unsent += 1,
            Ok(frame) => end.counts.crowded += u64::from(!end.queue.push(frame)),
            Err(_) => end.counts.unsent += 1,
        }
    }

    /// Whether a link leads outside.
    pub fn has(&self, link: u16) -> bool {
        self.ends.contains_key(&link)
    }

    /// Sends what waits, as far as the others take it.
    pub fn flush(&mut self) {
        for end in self.ends.values_mut().filter(|end| !end.queue.is_empty()) {
            self.more |= end.port.send(&mut end.queue, &mut end.counts);
            // A peer that went: the next round says so.
            self.more |= end.port.is_lit() != end.lit;
            // And that the near port is to wait.
            self.more |= end.ask.is_news(end.queue.bytes());
        }
    }

    /// Whether somebody is, or may be, at the other end of a link.
    pub fn is_lit(&self, link: u16) -> bool {
        self.ends.get(&link).is_some_and(|end| end.lit)
    }

    /// What happened so far.
    pub fn metrics(&self) -> Value {
        let ends = self.ends.values().map(|end| {
            let mut value = json!(end.counts);
            if let Some(map) = value.as_object_mut() {
                map.insert("name".into(), end.name.clone().into());
                map.insert("link".into(), end.link.clone().into());
                map.insert("medium".into(), end.medium.into());
                map.insert("lit".into(), end.lit.into());
            }
            value
        });
        ends.collect()
    }
}

impl Outside {
    fn open(exit: &Exit<'_>) -> anyhow::Result<Outside> {
        let port: Box<dyn Port> = match &exit.medium {
            Medium::Dgram { local, remote } => Box::new(Dgram::open(local, remote)?),
            Medium::Stream(way) => Box::new(Stream::open(way)?),
            Medium::Tap { interface } => Box::new(Tap::open(interface)?),
            Medium::Simbricks(_) => anyhow::bail!(
                "a network link of SimBricks is for simulations (softhca sim): guests have clocks of their own"
            ),
        };
        let [a, b] = &exit.link.between;
        Ok(Outside {
            name: exit.name.clone(),
            link: format!("{a} - {b}"),
            medium: exit.medium.name(),
            port,
            queue: Queue::default(),
            ask: Ask::default(),
            counts: Counts::default(),
            lit: false,
            log: Source::default(),
        })
    }

    /// Whether the light has changed.
    fn look(&mut self) -> bool {
        let lit = self.port.is_lit();
        if self.lit == lit {
            return false;
        }
        self.lit = lit;
        let Outside { link, medium, .. } = self;
        self.log.say(|| match lit {
            true => tracing::info!("link {link}: {medium} is connected"),
            false => tracing::info!("link {link}: {medium} has no peer, link down"),
        });
        true
    }
}

#[cfg(test)]
mod tests;
