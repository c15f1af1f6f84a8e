//! A process for each tenant: `isolation = "process"`.
//!
//! ```text
//! supervisor --- starts, tells of links, asks for counts ---> worker of host a    worker of host b    worker of the switches
//!                                                                  |  <----- rings -----> |  <------ rings ------>  |
//! ```
//!
//! The [`Supervisor`] has the sockets' files and the control socket, and parses nothing that comes from a guest. Each `worker` has one host's
//! adapters, or all switches; it inherits its listening sockets and gets its links as descriptors over a `channel`, so that it needs neither
//! files nor the network. Links between workers are a `line` each: two `ring`s of `wire` messages. All have one clock, the system's.
//!
//! - **A worker that dies** is a host that dies: its links go dark, its peers' messages run out of retries, others don't notice. It is started
//!   again for its next client, after a pause that doubles when it dies young.
//! - **Trust.** A worker checks whatever comes by its links: the rings' counts, each message, credits, and how much there is of it in a turn. A worker
//!   that breaks the rules has lost that link.
//! - **Time.** Model times of what passes between workers are those of each one's own clock: what is late when it comes happens at once, and
//!   what comes from a clock that is ahead waits for a quantum at most, so that a worker that lags is not left waiting. For measured times, traces and
//!   captures there is one process.

pub(crate) mod channel;
pub(crate) mod line;
mod questions;
mod ring;
mod supervisor;
mod wary;
pub(crate) mod wire;
mod worker;

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::Context;
use hca_model::link::LinkMessage;
use serde_json::{Value, json};

use self::channel::{Inbox, Note};
use self::line::{Line, Taken};
use crate::closer::Closer;
use crate::log::Source;

pub(crate) use line::is_unbound;
pub use supervisor::{Program, Supervisor};
pub use worker::run;

/// Bells of a link that wait to be closed, or can't be. One that was only rung once more than it was heard waits a moment.
const MOST_PENDING: usize = 4;
/// Notes taken in a turn.
const NOTES: usize = 16;

/// What a worker's engine hears from the others.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A message by that link, and when it is here.
    Message(u16, u64, LinkMessage),
    /// The far side of a link is gone.
    Lost(u16),
    /// There is a new one.
    Renewed(u16),
    /// The operator asks, by this connection.
    Control(UnixStream),
    /// The supervisor has ended.
    End,
}

/// The links of a worker, and its supervisor.
#[derive(Debug)]
pub(crate) struct Joints {
    inbox: Inbox,
    lines: BTreeMap<u16, Line>,
    /// What let go of the lines' bells, by link: those of a link that is new once more, too.
    closers: BTreeMap<u16, Closer>,
    log: Source,
}

impl Joints {
    fn new(inbox: Inbox) -> Joints {
        Joints { inbox, lines: BTreeMap::new(), closers: BTreeMap::new(), log: Source::default() }
    }

    /// A link is there. While descriptors that came by the one before are not closed, it stays dark: so they are few.
    fn add(&mut self, number: u16, here: u8, fds: Vec<OwnedFd>) -> anyhow::Result<()> {
        let [memory, bell] = <[OwnedFd; 2]>::try_from(fds).ok().context("a link has two descriptors")?;
        let closer = self.closers.entry(number).or_default();
        // The one before is let go of first.
        self.lines.remove(&number);
        let line = Line::new(memory, bell, here.into(), closer)?;
        if closer.pending() < MOST_PENDING {
            self.lines.insert(number, line);
        } else {
            self.log.say(|| tracing::warn!("link {number}: what its far side left behind is not closed yet"));
        }
        Ok(())
    }

    /// Names what to wait for.
    pub(crate) fn watch<'a>(&'a self, add: &mut dyn FnMut(BorrowedFd<'a>)) {
        add(self.inbox.as_fd());
        self.lines.values().filter_map(Line::watch).for_each(add);
    }

    /// This worker is about to sleep. False: something waits, so it must not.
    pub(crate) fn sleep(&self) -> bool {
        self.lines.values().fold(true, |may, line| line.sleep() & may)
    }

    /// It does not sleep any more.
    pub(crate) fn wake(&self) {
        self.lines.values().for_each(Line::wake);
    }

    /// Takes what has come; `rung`: whether one of those that are watched has something, for which the system has to be asked. `heard` says of a
    /// message whether it [is unbound](line::is_unbound). Returns true if more waits.
    pub(crate) fn take(&mut self, rung: bool, mut heard: impl FnMut(Heard) -> bool) -> bool {
        let mut more = false;
        for (&link, line) in &mut self.lines {
            more |= line.take(rung, |taken| match taken {
                Taken::Message(at, message) => heard(Heard::Message(link, at, message)),
                Taken::Lost(why) => {
                    self.log.say(|| tracing::warn!("link {link}: the far side is gone: {why}"));
                    heard(Heard::Lost(link))
                }
            });
        }
        if !rung {
            return more;
        }
        for _ in 0..NOTES {
            match self.note() {
                Ok(Some(news)) => _ = heard(news),
                Ok(None) => return more,
                Err(why) => {
                    tracing::debug!("{why:#}");
                    heard(Heard::End);
                    return more;
                }
            }
        }
        true
    }

    /// The next note of the supervisor.
    fn note(&mut self) -> anyhow::Result<Option<Heard>> {
        let Some((note, fds)) = self.inbox.receive(false)? else { return Ok(None) };
        match note {
            Note::Link { number, here } => {
                self.add(number, here, fds)?;
                Ok(Some(Heard::Renewed(number)))
            }
            Note::Control => {
                let fd = fds.into_iter().next().context("a connection has a descriptor")?;
                Ok(Some(Heard::Control(fd.into())))
            }
            Note::Setup { .. } | Note::Listener { .. } | Note::Serve => anyhow::bail!("a note out of turn"),
        }
    }

    /// A message leaves by a link.
    pub(crate) fn send(&mut self, link: u16, at: u64, message: LinkMessage) {
        if let Some(line) = self.lines.get_mut(&link) {
            line.send(at, message);
        }
    }

    /// Lets the others have what was sent; tells of those that are gone.
    pub(crate) fn flush(&mut self, mut lost: impl FnMut(u16)) {
        for (&link, line) in &mut self.lines {
            if let Some(why) = line.flush() {
                self.log.say(|| tracing::warn!("link {link}: the far side is gone: {why}"));
                lost(link);
            }
        }
    }

    /// Whether the far side of a link is there.
    pub(crate) fn is_joined(&self, link: u16) -> bool {
        self.lines.get(&link).is_some_and(Line::is_joined)
    }

    /// What happened so far.
    pub(crate) fn metrics(&self) -> Value {
        let links = self.lines.iter().map(|(link, line)| {
            json!({
                "number": link, "joined": line.is_joined(), "sent": line.sent, "received": line.received,
                "dropped": line.dropped,
            })
        });
        json!({ "links": links.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::MsgFlags;

    use super::wary::tests::{Slow, at_once};
    use super::*;

    /// Links are taken a few times by which descriptors come that can't be closed.
    #[test]
    fn links_that_leave_descriptors_are_refused_then() {
        let (channel, inbox) = channel::channel().unwrap();
        let mut joints = Joints::new(Inbox::new(inbox));
        let mut kept = Vec::new();
        for round in 0..MOST_PENDING + 2 {
            let (memory, [a, b]) = line::make().unwrap();
            channel.send(&Note::Link { number: 3, here: 0 }, &[memory.as_fd(), a.as_fd()]).unwrap();
            drop(a);
            joints.take(true, |_| false);
            assert_eq!(joints.is_joined(3), round < MOST_PENDING);
            if joints.is_joined(3) {
                let mut slow = Slow::new();
                slow.send(b.as_fd(), b"x", MsgFlags::empty());
                at_once(|| joints.take(true, |_| false));
                assert!(!joints.is_joined(3));
                kept.push(slow);
            }
        }
    }

    #[test]
    fn links_are_replaced_and_the_end_is_heard() {
        let (channel, inbox) = channel::channel().unwrap();
        let mut joints = Joints::new(Inbox::new(inbox));
        let mut heard = Vec::new();
        let take = |joints: &mut Joints, heard: &mut Vec<Heard>| {
            joints.take(true, |news| {
                heard.push(news);
                false
            })
        };
        for round in 0..2 {
            let (memory, [a, b]) = line::make().unwrap();
            channel.send(&Note::Link { number: 3, here: 0 }, &[memory.as_fd(), a.as_fd()]).unwrap();
            assert!(!take(&mut joints, &mut heard));
            assert!(matches!(heard.pop(), Some(Heard::Renewed(3))) && heard.is_empty());
            assert!(joints.is_joined(3) && joints.sleep());
            // The supervisor's copies; then the peer's.
            drop(a);
            let mut peer = Line::new(&memory, b, 1, &Closer::default()).unwrap();
            let credit = LinkMessage::Credit { lane: 1, blocks: round, session: Default::default() };
            peer.send(9, credit.clone());
            assert_eq!(peer.flush(), None);
            assert!(!joints.sleep());
            take(&mut joints, &mut heard);
            assert!(matches!(&heard[..], [Heard::Message(3, 9, message)] if *message == credit));
            heard.clear();
            drop(peer);
            take(&mut joints, &mut heard);
            assert!(matches!(heard.pop(), Some(Heard::Lost(3))) && !joints.is_joined(3));
        }
        drop(channel);
        take(&mut joints, &mut heard);
        assert!(matches!(heard[..], [Heard::End]));
    }
}
