//! A proxy: takes network links of SimBricks over TCP to another proxy, on another machine, that gives them to who is at their other ends.
//!
//! ```text
//! simulation --listens-- proxy ==TCP== proxy --connects-- simulation
//! ```
//!
//! A proxy is in nobody's time: it changes no message, and nobody can tell that it is there. First messages are handed on, with queues of as
//! many entries of the same size; then entries are, in order. Where both ends are softhca it sleeps and wakes as they do.
//!
//! - **Trust.** Neither who is at a socket nor who is at the other end of the connection may do more than end it: what comes is checked, and what
//!   waits for who takes nothing has a bound. Nothing is secret and nobody is asked who he is: the connection is for networks of one's own.
//! - **Cost.** One thread, without a processor of its own: it sleeps when nothing has come for a millisecond.

mod wire;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use std::os::fd::AsRawFd;

use self::wire::{Frame, Sizes, WORDS};
use super::bell::{Bell, Sleep, Word};
use super::channel::{PACKET, SYNC, TERMINATE};
use super::connect::{accept_at, connect_to, read_first, say_first};
use super::intro::{self, HEADER, Protocol, Queue, Upper};
use super::ring::{Entry, Memory, Ring};
use super::{LinkError, Role};
use crate::listener::Listener;

/// Most links of a proxy.
const LINKS: usize = 1024;
/// Messages of one link before the others have their turn.
const TURN: usize = 64;
/// Bytes that may wait for the connection before rings are left as they are.
const PENDING: usize = 1 << 20;
/// Bytes that may wait for one ring. Who keeps to his promises is never so far ahead.
const BACKLOG: usize = 256 << 20;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Turns without anything new before others get the processor, and the time after which it sleeps, and for how long at most.
const SPIN: u32 = 20;
const RESTLESS: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_millis(20);

/// One link of a proxy: what the proxy does at its socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// It connects where a simulation listens, or listens in the stead of one.
    pub role: Role,
    /// The socket.
    pub path: PathBuf,
}

/// A link that is up here.
struct ProxiedLink {
    name: String,
    socket: UnixStream,
    out: Ring,
    inward: Ring,
    /// If both ends are softhca: wakes, and knows what the end here needs.
    bell: Option<Bell>,
    /// What the other proxy knows of that.
    needs: u64,
    /// What it knows of what the end here says of all parts of its simulation.
    words: [u64; WORDS],
    /// What waits for room in the ring, and its bytes.
    waiting: VecDeque<(Entry, Vec<u8>)>,
    bytes: usize,
    /// The other proxy said that its end is gone; it was said of this one.
    far_gone: bool,
    near_gone: bool,
}

/// The connection, with what is on its way.
struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    pending: Vec<u8>,
    /// Bytes of `pending` that have left.
    sent: usize,
    closed: bool,
}

/// A link whose listener has said its first message: where its queues are, and whether it is softhca.
type Half = (UnixStream, Arc<Memory>, [Queue; 2], bool);

/// Carries links over a connection until all of them have ended. The other proxy has as many, in the same order. All have to be there within
/// `patience`. `ready` is called when nothing more has to be opened.
///
/// # Errors
/// A socket can't be had, the connection has ended, or who is at an end does not keep to the protocol.
pub fn run(
    ends: &[End],
    stream: TcpStream,
    patience: Duration,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    ensure!((1..=LINKS).contains(&ends.len()), "a proxy has 1 to {LINKS} links");
    let until = Instant::now() + patience;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut connection =
        Connection { stream, input: Vec::new(), pending: Vec::new(), sent: 0, closed: false };
    let links = set_up(ends, &mut connection, until)?;
    ready()?;
    carry(links, connection)
}

/// Brings links up: first messages go from one simulation to the other.
fn set_up(ends: &[End], connection: &mut Connection, until: Instant) -> anyhow::Result<Vec<ProxiedLink>> {
    let listeners = ends.iter().map(|end| match end.role {
        Role::Listen => Listener::bind(&end.path).map(Some),
        Role::Connect => Ok(None),
    });
    let listeners = listeners.collect::<anyhow::Result<Vec<_>>>()?;
    greet(ends, connection, until)?;
    let name = |end: &End| end.path.display().to_string();
    // Who listens says first how large things are.
    let mut halves: Vec<Option<Half>> = Vec::new();
    for (number, end) in (0..).zip(ends) {
        if end.role == Role::Listen {
            halves.push(None);
            continue;
        }
        let socket = connect_to(&end.path, until)?;
        let (message, mut files) = read_first(&socket, &end.path, until)?;
        ensure!(
            files.len() == 1,
            "{}: {} descriptors came with its first message, and not its memory",
            name(end),
            files.len()
        );
        let file = files.pop().context("a descriptor")?;
        let size = u64::try_from(nix::sys::stat::fstat(&file)?.st_size).unwrap_or(0);
        let (queues, peer) = intro::read_listener(&message, size, Protocol::Network)
            .map_err(LinkError::from)
            .with_context(|| name(end))?;
        let ours = peer.ours;
        let (_, memory) = Memory::map(file, intro::memory(&queues, ours))?;
        let small = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        let sizes = queues.map(|queue| [small(queue.entry), small(queue.count)]);
        connection.say(number, &Frame::Listener { sizes, ours });
        halves.push(Some((socket, Arc::new(memory), queues, ours)));
    }
    let mut links: Vec<Option<ProxiedLink>> = ends.iter().map(|_| None).collect();
    while links.iter().any(Option::is_none) {
        let (number, frame) = connection.wait(until)?;
        let place = usize::from(number);
        let (Some(end), Some(slot)) = (ends.get(place), links.get_mut(place)) else {
            bail!("the other proxy speaks of link {number}, and there are {}", ends.len());
        };
        let listener = listeners.get(place).and_then(Option::as_ref);
        let (link, answer) = match (frame, listener) {
            (Frame::Listener { sizes, ours }, Some(listener)) => {
                let queues = queues(sizes).with_context(|| name(end))?;
                let socket = accept_at(listener, &end.path, until)?;
                let (file, memory) = Memory::new(intro::memory(&queues, true))?;
                say_first(&socket, &intro::listener(&queues, &upper(ours)), Some(file))?;
                let (message, _) = read_first(&socket, &end.path, until)?;
                let theirs = intro::read_connecter(&message, Protocol::Network)
                    .map_err(LinkError::from)
                    .with_context(|| name(end))?
                    .ours;
                let memory = (Arc::new(memory), queues);
                let link = ProxiedLink::new(name(end), socket, memory, true, ours && theirs)?;
                (link, Some(Frame::Connecter { ours: theirs }))
            }
            (Frame::Connecter { ours }, None) => {
                let half = halves.get_mut(place).and_then(Option::take);
                let (socket, memory, queues, theirs) = half.context("two first messages of one link")?;
                say_first(&socket, &intro::connecter(&upper(ours)), None)?;
                (ProxiedLink::new(name(end), socket, (memory, queues), false, ours && theirs)?, None)
            }
            _ => bail!("the other proxy said of link {number} what does not belong to its beginning"),
        };
        ensure!(slot.is_none(), "two first messages of link {number}");
        *slot = Some(link);
        if let Some(answer) = answer {
            connection.say(number, &answer);
        }
    }
    Ok(links.into_iter().flatten().collect())
}

/// Each proxy says how many links it has, and what it does at their sockets.
fn greet(ends: &[End], connection: &mut Connection, until: Instant) -> anyhow::Result<()> {
    let roles = |flip: bool| ends.iter().map(move |end| u8::from((end.role == Role::Listen) != flip));
    let greeting = |flip: bool| {
        let count = u16::try_from(ends.len()).unwrap_or(u16::MAX).to_le_bytes();
        wire::GREETING.iter().copied().chain(count).chain(roles(flip)).collect::<Vec<u8>>()
    };
    connection.pending.extend(greeting(false));
    let expected = greeting(true);
    while connection.input.len() < expected.len() {
        connection.turn(until)?;
        let there = connection.input.len().min(wire::GREETING.len());
        ensure!(
            connection.input.get(..there) == wire::GREETING.get(..there),
            "who is at the other end is no softhca sim-proxy of this version"
        );
    }
    ensure!(
        connection.input.starts_with(&expected),
        "the other proxy has other links: where one listens the other connects, in the same order"
    );
    connection.input.drain(..expected.len());
    Ok(())
}

/// What who is softhca, or is not, says of a network link.
fn upper(ours: bool) -> Upper {
    Upper { ours, ..Upper::network() }
}

/// Queues of such sizes, one behind the other.
fn queues(sizes: Sizes) -> anyhow::Result<[Queue; 2]> {
    let mut offset = 0u64;
    let mut words = Vec::new();
    for [entry, count] in sizes {
        words.extend([offset, entry.into(), count.into()]);
        offset =
            offset.saturating_add(u64::from(entry).saturating_mul(count.into())).saturating_add(4095) & !4095;
    }
    // What who listens says is checked in one place.
    let mut message: Vec<u8> =
        [1u64, 3].iter().chain(&words).chain(&[1, 80]).flat_map(|word| word.to_le_bytes()).collect();
    message.extend([0; 4]);
    let (queues, _) = intro::read_listener(&message, offset, Protocol::Network).map_err(LinkError::from)?;
    Ok(queues)
}

impl ProxiedLink {
    fn new(
        name: String,
        socket: UnixStream,
        (memory, queues): (Arc<Memory>, [Queue; 2]),
        listens: bool,
        ours: bool,
    ) -> Result<Self, LinkError> {
        let bell = ours.then(|| Bell::new(Arc::clone(&memory), &queues, listens));
        let [from, to] = queues.map(|queue| Ring::new(Arc::clone(&memory), queue));
        let (out, inward) = if listens { (from, to) } else { (to, from) };
        let (waiting, bytes, needs, far_gone, near_gone) = (VecDeque::new(), 0, 0, false, false);
        let words = [0; WORDS];
        let link =
            Self { name, socket, out, inward, bell, needs, words, waiting, bytes, far_gone, near_gone };
        link.far_needs(0)?;
        Ok(link)
    }

    /// The other end needs so much of this one. Whatever this one needs the proxy has to hear at once.
    fn far_needs(&self, need: u64) -> Result<(), LinkError> {
        self.bell.as_ref().map_or(Ok(()), |bell| bell.wait_for(need, u64::MAX, &self.socket))
    }

    /// What the end here needs, if the other proxy does not know it.
    fn needs_more(&self) -> Result<Option<u64>, LinkError> {
        let need = self.bell.as_ref().map(Bell::need).transpose()?;
        Ok(need.filter(|need| *need != self.needs))
    }

    /// The other end says that of all parts of its simulation.
    fn far_says(&self, words: [u64; WORDS]) -> Result<(), LinkError> {
        let said = Word::ALL.into_iter().zip(words);
        self.bell.as_ref().map_or(Ok(()), |bell| bell.say(said, &self.socket))
    }

    /// What the end here says of them, if the other proxy does not know it.
    fn says_more(&self) -> Result<Option<[u64; WORDS]>, LinkError> {
        let Some(bell) = &self.bell else { return Ok(None) };
        let mut words = [0; WORDS];
        for (said, word) in words.iter_mut().zip(Word::ALL).rev() {
            *said = bell.said(word)?;
        }
        Ok((words != self.words).then_some(words))
    }

    /// Hands on what came from the simulation. Returns whether there was something.
    fn hear(&mut self, number: u16, connection: &mut Connection) -> Result<bool, LinkError> {
        // Gone is who was gone before the ring was found empty.
        let gone = !self.near_gone && self.has_hung_up();
        let needs = self.needs_more()?;
        if let Some(need) = needs {
            self.needs = need;
            connection.say(number, &Frame::Need(need));
        }
        let words = self.says_more()?;
        if let Some(words) = words {
            self.words = words;
            connection.say(number, &Frame::Words(words));
        }
        let news = needs.is_some() || words.is_some();
        for turn in 0..TURN {
            if connection.pending.len() > PENDING {
                return Ok(turn > 0 || news);
            }
            let Some(entry) = self.inward.peek()? else {
                if gone {
                    self.near_gone = true;
                    connection.say(number, &Frame::Closed);
                }
                return Ok(turn > 0 || gone || news);
            };
            let len = match entry.kind {
                PACKET => entry.own.first_chunk().map_or(0, |len| u16::from_le_bytes(*len)),
                SYNC | TERMINATE => 0,
                other => return Err(LinkError::Type(other)),
            };
            let mut payload = Vec::new();
            self.inward.take(entry.kind, len.into(), &mut payload)?;
            connection.say(number, &Frame::Entry { entry, payload });
        }
        Ok(true)
    }

    /// Puts what waits into the ring as far as there is room. Returns whether something was.
    fn give(&mut self) -> Result<bool, LinkError> {
        let mut gave = false;
        while let Some((entry, payload)) = self.waiting.front() {
            if !self.out.push(entry, &[payload])? {
                break;
            }
            if let Some(bell) = &mut self.bell {
                bell.put(entry);
            }
            self.bytes = self.bytes.saturating_sub(HEADER + payload.len());
            self.waiting.pop_front();
            gave = true;
        }
        if let Some(bell) = &mut self.bell {
            bell.rouse(&self.socket)?;
        }
        Ok(gave)
    }

    fn has_hung_up(&self) -> bool {
        let mut bytes = [0; 64];
        // What is said there wakes, and means nothing else.
        match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(len) => len == 0,
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => false,
            Err(_) => true,
        }
    }

    /// Everything that came was given, and nothing more comes.
    fn is_over(&self) -> bool {
        self.far_gone && self.waiting.is_empty()
    }
}

impl Connection {
    fn say(&mut self, link: u16, frame: &Frame) {
        wire::write(&mut self.pending, link, frame);
    }

    /// Sends and receives what can be. Returns whether there was something.
    fn pump(&mut self) -> anyhow::Result<bool> {
        let mut did = false;
        while let Some(rest) = self.pending.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(len) => (self.sent, did) = (self.sent + len, true),
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why).context("the connection to the other proxy"),
            }
        }
        if self.sent == self.pending.len() {
            self.pending.clear();
            self.sent = 0;
        }
        let there = self.input.len();
        self.input.resize(there + PIECE, 0);
        let read = self.stream.read(self.input.get_mut(there..).unwrap_or_default());
        self.input.truncate(there + read.as_ref().map_or(0, |len| *len));
        match read {
            Ok(0) => self.closed = true,
            Ok(_) => did = true,
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(why) => return Err(why).context("the connection to the other proxy"),
        }
        Ok(did)
    }

    /// The same, once, or a moment later.
    fn turn(&mut self, until: Instant) -> anyhow::Result<()> {
        if !self.pump()? {
            ensure!(!self.closed, "the other proxy has ended");
            ensure!(Instant::now() < until, "the other proxy says nothing, or its simulations are not there");
            std::thread::sleep(RESTLESS);
        }
        Ok(())
    }

    fn next(&mut self, taken: &mut usize) -> anyhow::Result<Option<(u16, Frame)>> {
        let rest = self.input.get(*taken..).unwrap_or_default();
        Ok(wire::read(rest)?.map(|(link, frame, len)| {
            *taken += len;
            (link, frame)
        }))
    }

    /// The next frame.
    fn wait(&mut self, until: Instant) -> anyhow::Result<(u16, Frame)> {
        loop {
            let mut taken = 0;
            if let Some(found) = self.next(&mut taken)? {
                self.input.drain(..taken);
                return Ok(found);
            }
            self.turn(until)?;
        }
    }
}

/// Carries entries until all links have ended.
fn carry(links: Vec<ProxiedLink>, mut connection: Connection) -> anyhow::Result<()> {
    // A link that is over is left: who is at it sees that its peer is gone.
    let mut links: Vec<Option<ProxiedLink>> = links.into_iter().map(Some).collect();
    let (mut idle, mut since) = (0u32, Instant::now());
    loop {
        let mut did = connection.pump()?;
        let mut taken = 0;
        while let Some((number, frame)) = connection.next(&mut taken)? {
            let Some(slot) = links.get_mut(usize::from(number)) else {
                bail!("the other proxy speaks of link {number}, and there are {}", links.len());
            };
            // What comes for who is gone already is of no use.
            let Some(link) = slot else { continue };
            match frame {
                Frame::Entry { entry, payload } => {
                    ensure!(
                        payload.len() <= link.out.room(),
                        "the other proxy sent more than an entry of link {number} has room for"
                    );
                    link.bytes += HEADER + payload.len();
                    ensure!(link.bytes <= BACKLOG, "{}: nobody takes what comes", link.name);
                    link.waiting.push_back((entry, payload));
                }
                Frame::Need(need) => link.far_needs(need).with_context(|| link.name.clone())?,
                Frame::Words(words) => link.far_says(words).with_context(|| link.name.clone())?,
                Frame::Closed => link.far_gone = true,
                Frame::Listener { .. } | Frame::Connecter { .. } => {
                    bail!("the other proxy began link {number} again")
                }
            }
        }
        connection.input.drain(..taken);
        for (number, slot) in (0..).zip(&mut links) {
            let Some(link) = slot else { continue };
            let step = link.give().and_then(|gave| Ok(link.hear(number, &mut connection)? || gave));
            did |= step.with_context(|| link.name.clone())?;
            if link.near_gone || link.is_over() {
                if !link.near_gone {
                    connection.say(number, &Frame::Closed);
                }
                *slot = None;
                did = true;
            }
        }
        if links.iter().all(Option::is_none) {
            return end(connection);
        }
        if connection.closed && !did {
            bail!("the other proxy has ended, and links have not");
        }
        if did {
            (idle, since) = (0, Instant::now());
            continue;
        }
        idle = idle.saturating_add(1);
        match idle {
            ..SPIN => std::hint::spin_loop(),
            _ if since.elapsed() < RESTLESS => std::thread::yield_now(),
            _ => rest(&links, &connection)?,
        }
    }
}

/// What was said of the last links leaves, and the other proxy has its time to hear of it.
fn end(mut connection: Connection) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(1);
    while !connection.pending.is_empty() && Instant::now() < until {
        if !connection.pump().unwrap_or(true) {
            std::thread::sleep(RESTLESS);
        }
    }
    Ok(())
}

/// Sleeps until a simulation or the other proxy says something, or for a moment.
fn rest(links: &[Option<ProxiedLink>], connection: &Connection) -> anyhow::Result<()> {
    let links = || links.iter().flatten();
    let mut nothing = true;
    for link in links() {
        // Who does not wake is looked at again soon.
        nothing &= link.bell.is_some() && link.waiting.is_empty();
        if let Some(bell) = &link.bell {
            bell.set_sleeps(Sleep::AtSocket)?;
        }
        nothing &= link.inward.peek()?.is_none() && link.needs_more()?.is_none();
        nothing &= link.says_more()?.is_none();
    }
    let mut watched: Vec<_> =
        links().map(|link| PollFd::new(link.socket.as_fd(), PollFlags::POLLIN)).collect();
    let mut events = PollFlags::POLLIN;
    events.set(PollFlags::POLLOUT, !connection.pending.is_empty());
    watched.push(PollFd::new(connection.stream.as_fd(), events));
    let most = if nothing { NAP } else { Duration::ZERO };
    let _ = poll(&mut watched, PollTimeout::try_from(most).unwrap_or(PollTimeout::ZERO));
    if !nothing {
        std::thread::yield_now();
    }
    links().filter_map(|link| link.bell.as_ref()).try_for_each(|bell| bell.set_sleeps(Sleep::Awake))?;
    Ok(())
}

#[cfg(test)]
mod tests;
