//! A stream socket with one peer at a time: `-netdev stream` of QEMU, passt.
//!
//! The link is lit while the peer is connected. Who listens takes the next peer when the one before has gone; others wait
//! until then. Who connects tries again after a pause.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, UnixAddr, connect, setsockopt, socket, sockopt,
};

use super::Port;
use super::address::{Address, Stream as Way};
use super::prefix::{CHUNK, Decoder, encode};
use super::turn::{Counts, Queue, Turn};
use crate::listener::Listener;
use crate::socket::send;

/// Chunks that are sent before others get their turn.
const WRITES: usize = 32;
/// After a peer has gone the next one waits so long: peers that come and go cost the model no more than that allows.
const PAUSE: Duration = Duration::from_millis(50);
/// Silence after which the system asks whether a peer behind a network is still there, and between its questions.
const SILENCE: (u32, u32, u32) = (10, 5, 3);

/// The socket, in whichever state.
#[derive(Debug)]
pub(super) struct Stream {
    end: End,
    state: State,
    chunk: Vec<u8>,
}

/// Where connections come from.
#[derive(Debug)]
enum End {
    Unix(Listener),
    Tcp(TcpListener),
    Connect { to: Address, pause: Duration },
}

#[derive(Debug)]
enum State {
    /// Nobody is there. Until then no other is wanted.
    Apart {
        until: Instant,
    },
    /// An attempt that the peer has not answered.
    Calling(OwnedFd),
    Joined(Peer),
}

/// A connection.
#[derive(Debug)]
struct Peer {
    socket: OwnedFd,
    decoder: Decoder,
    /// A frame that was begun, or a few: what is not sent yet.
    out: Vec<u8>,
    sent: usize,
}

impl Stream {
    /// Listens, or gets ready to connect.
    ///
    /// # Errors
    /// The address can't be had; the message names it.
    pub(super) fn open(way: &Way) -> anyhow::Result<Stream> {
        let end = match way {
            Way::Listen(Address::Unix(path)) => End::Unix(Listener::bind(path)?),
            Way::Listen(Address::Inet(at)) => {
                let listener = TcpListener::bind(at).with_context(|| at.to_string())?;
                listener.set_nonblocking(true)?;
                // Connections inherit these: in the sandbox nobody could set them.
                tune(&listener)?;
                End::Tcp(listener)
            }
            Way::Connect { to, reconnect_ms } => {
                End::Connect { to: to.clone(), pause: Duration::from_millis(*reconnect_ms) }
            }
        };
        let state = State::Apart { until: Instant::now() };
        Ok(Stream { end, state, chunk: vec![0; CHUNK] })
    }

    /// Looks for a peer if none is there.
    fn look(&mut self, counts: &mut Counts) {
        if let (State::Calling(socket), End::Connect { to, .. }) = (&self.state, &self.end) {
            // The second time it says what became of the first.
            let outcome = begin(socket, to);
            if matches!(outcome, Err(Errno::EALREADY | Errno::EINPROGRESS)) {
                return;
            }
            let apart = self.apart();
            let State::Calling(socket) = std::mem::replace(&mut self.state, apart) else { return };
            if matches!(outcome, Ok(()) | Err(Errno::EISCONN)) {
                self.join(socket, counts);
            }
            return;
        }
        if !matches!(self.state, State::Apart { until } if until <= Instant::now()) {
            return;
        }
        let found = match &self.end {
            End::Unix(listener) => listener.accept().map(OwnedFd::from),
            End::Tcp(listener) => match listener.accept() {
                Ok((stream, _)) => Some(stream.into()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
                // It stays in the queue, which is not looked at for a while: it would wake the engine for ever.
                Err(_) => {
                    self.state = self.apart();
                    None
                }
            },
            End::Connect { to, .. } => match call(to) {
                Ok((socket, Ok(()))) => Some(socket),
                Ok((socket, Err(Errno::EINPROGRESS))) => {
                    self.state = State::Calling(socket);
                    None
                }
                Ok((_, Err(_))) | Err(_) => {
                    self.state = self.apart();
                    None
                }
            },
        };
        if let Some(socket) = found {
            self.join(socket, counts);
        }
    }

    fn join(&mut self, socket: OwnedFd, counts: &mut Counts) {
        counts.connections += 1;
        let peer = Peer { socket, decoder: Decoder::default(), out: Vec::new(), sent: 0 };
        self.state = State::Joined(peer);
    }

    /// Nobody is there, and for a while nobody is looked for.
    fn apart(&self) -> State {
        let pause = match &self.end {
            End::Unix(_) | End::Tcp(_) => PAUSE,
            End::Connect { pause, .. } => *pause,
        };
        State::Apart { until: Instant::now() + pause }
    }
}

impl Port for Stream {
    fn watch<'a>(&'a self, waiting: bool, add: &mut dyn FnMut(BorrowedFd<'a>, PollFlags)) {
        match (&self.state, &self.end) {
            (State::Joined(peer), _) => {
                let more = if waiting || peer.has_more() { PollFlags::POLLOUT } else { PollFlags::empty() };
                add(peer.socket.as_fd(), PollFlags::POLLIN | more);
            }
            (State::Calling(socket), _) => add(socket.as_fd(), PollFlags::POLLOUT),
            // The others wait where the system keeps them.
            (State::Apart { until }, _) if *until > Instant::now() => {}
            (State::Apart { .. }, End::Unix(listener)) => add(listener.as_fd(), PollFlags::POLLIN),
            (State::Apart { .. }, End::Tcp(listener)) => add(listener.as_fd(), PollFlags::POLLIN),
            (State::Apart { .. }, End::Connect { .. }) => {}
        }
    }

    fn due(&self, _waiting: bool) -> Option<Instant> {
        match (&self.state, &self.end) {
            // Of a listener the descriptor says so, once the pause is over.
            (State::Apart { until }, End::Unix(_) | End::Tcp(_)) => {
                Some(*until).filter(|until| *until > Instant::now())
            }
            (State::Apart { until }, End::Connect { .. }) => Some(*until),
            (State::Calling(_) | State::Joined(_), _) => None,
        }
    }

    fn receive(&mut self, turn: &mut Turn<'_>) -> bool {
        self.look(turn.counts);
        let State::Joined(peer) = &mut self.state else { return false };
        let ended = loop {
            match peer.decoder.drain(turn) {
                // The turn is over, or what there was is taken.
                Ok(false) => return true,
                Ok(true) if turn.is_over() => return true,
                Ok(true) => {}
                Err(_) => {
                    turn.counts.malformed += 1;
                    break true;
                }
            }
            let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT;
            match nix::sys::socket::recv(peer.socket.as_raw_fd(), &mut self.chunk, flags) {
                Ok(0) => break true,
                Ok(length) => peer.decoder.push(self.chunk.get(..length).unwrap_or_default()),
                Err(Errno::EAGAIN) => break false,
                Err(Errno::EINTR) => {}
                Err(_) => break true,
            }
        };
        if ended {
            self.state = self.apart();
        }
        false
    }

    fn send(&mut self, queue: &mut Queue, counts: &mut Counts) -> bool {
        let State::Joined(peer) = &mut self.state else {
            counts.unsent += queue.clear();
            return false;
        };
        match peer.send(queue, counts) {
            Ok(more) => more,
            Err(_) => {
                self.state = self.apart();
                false
            }
        }
    }

    fn is_lit(&self) -> bool {
        matches!(self.state, State::Joined(_))
    }
}

impl Peer {
    fn has_more(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Sends what the system takes. Returns whether it would take more.
    ///
    /// # Errors
    /// The connection is of no use any more.
    fn send(&mut self, queue: &mut Queue, counts: &mut Counts) -> io::Result<bool> {
        for _ in 0..WRITES {
            if !self.has_more() {
                self.out.clear();
                self.sent = 0;
                while self.out.len() < CHUNK
                    && let Some(frame) = queue.pop()
                {
                    counts.frames_sent += 1;
                    counts.bytes_sent += frame.len() as u64;
                    encode(&frame, &mut self.out);
                }
                if self.out.is_empty() {
                    return Ok(false);
                }
            }
            match send(self.socket.as_fd(), self.out.get(self.sent..).unwrap_or_default()) {
                Ok(sent) => self.sent = self.sent.saturating_add(sent),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(self.has_more() || !queue.is_empty())
    }
}

/// A socket that has begun to connect, and what came of that so far.
fn call(to: &Address) -> nix::Result<(OwnedFd, nix::Result<()>)> {
    // The sandbox lets just these flags through.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let family = match to {
        Address::Unix(_) => AddressFamily::Unix,
        Address::Inet(to) if to.is_ipv4() => AddressFamily::Inet,
        Address::Inet(_) => AddressFamily::Inet6,
    };
    let ours = socket(family, SockType::Stream, flags, None)?;
    if family != AddressFamily::Unix {
        setsockopt(&ours, sockopt::TcpNoDelay, &true)?;
    }
    let begun = begin(&ours, to);
    Ok((ours, begun))
}

fn begin(socket: &OwnedFd, to: &Address) -> nix::Result<()> {
    match to {
        Address::Unix(path) => connect(socket.as_raw_fd(), &UnixAddr::new(path)?),
        Address::Inet(to) => connect(socket.as_raw_fd(), &SockaddrStorage::from(*to)),
    }
}

/// No waiting for more to send; a peer that vanished is noticed.
fn tune(listener: &TcpListener) -> nix::Result<()> {
    let (silence, between, questions) = SILENCE;
    setsockopt(listener, sockopt::TcpNoDelay, &true)?;
    setsockopt(listener, sockopt::KeepAlive, &true)?;
    setsockopt(listener, sockopt::TcpKeepIdle, &silence)?;
    setsockopt(listener, sockopt::TcpKeepInterval, &between)?;
    setsockopt(listener, sockopt::TcpKeepCount, &questions)
}
