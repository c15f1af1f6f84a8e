//! How a link comes up: a socket, a first message of each side, and the memory.
//!
//! Each side sends its message as soon as the socket is connected and waits for the other's afterwards, so that a process with many
//! links, to processes with many links, comes up in any order.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::LinkError;
use super::bell::Bell;
use super::channel::Channel;
use super::intro::{self, HEADER, IntroError, LONGEST, Protocol, Queue, Upper};
use super::ring::{Memory, Ring};
use crate::listener::Listener;
use crate::socket;

/// Entries of each direction of links whose memory is ours. A full ring lets the peer wait; nothing is lost.
pub const ENTRIES: usize = 128;
/// How often it is looked whether somebody listens.
const RETRY: Duration = Duration::from_millis(5);

/// Which side of a link this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It makes the socket and the memory.
    Listen,
    /// It connects to a socket.
    Connect,
}

impl Role {
    /// That of the other side.
    pub const fn other(self) -> Self {
        match self {
            Role::Listen => Role::Connect,
            Role::Connect => Role::Listen,
        }
    }
}

/// A link that comes up.
#[derive(Debug, Clone)]
pub struct Open {
    /// Which side this is.
    pub role: Role,
    /// The socket.
    pub path: PathBuf,
    /// Bytes of payload that entries of ours have room for.
    pub room: usize,
    /// Bytes that the peer's have to have room for.
    pub least: usize,
    /// What it carries, and what the peer is told of that.
    pub upper: Upper,
}

impl Open {
    /// A network link: entries of ours have room for packets of so many bytes, and the peer's have to have room for `least`.
    pub fn network(role: Role, path: PathBuf, room: usize, least: usize) -> Self {
        Self { role, path, room, least, upper: Upper::network() }
    }
}

/// A link whose first message was sent.
struct Greeted {
    socket: UnixStream,
    path: PathBuf,
    /// What is ours of it, if this side listens.
    memory: Option<(Memory, [Queue; 2])>,
    least: usize,
    protocol: Protocol,
}

fn trouble(path: &Path, why: impl std::fmt::Display) -> LinkError {
    LinkError::Socket { path: path.display().to_string(), why: why.to_string() }
}

/// Where the rings are in memory of ours whose packets have up to so many bytes.
fn queues(room: usize) -> [Queue; 2] {
    let entry = (HEADER + room).next_multiple_of(HEADER);
    let queue = |offset| Queue { offset, entry, count: ENTRIES };
    let first = queue(0);
    [first, queue(first.end().next_multiple_of(4096))]
}

/// Brings links up: sockets are made first, then connected to, and within `patience` every peer has to be there.
///
/// # Errors
/// A socket can't be made or reached, or a peer's message is not what it should be; which one, and what.
pub fn open(links: &[Open], patience: Duration) -> Result<Vec<Channel>, LinkError> {
    let until = Instant::now() + patience;
    let listen = |link: &Open| match link.role {
        Role::Listen => {
            Listener::bind(&link.path).map(Some).map_err(|why| trouble(&link.path, format!("{why:#}")))
        }
        Role::Connect => Ok(None),
    };
    let listeners = links.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    let mut greeted: Vec<Option<Greeted>> = links.iter().map(|_| None).collect();
    for role in [Role::Connect, Role::Listen] {
        for ((link, listener), slot) in links.iter().zip(&listeners).zip(&mut greeted) {
            if link.role == role {
                *slot = Some(match listener {
                    Some(listener) => accept(link, listener, until)?,
                    None => connect(link, until)?,
                });
            }
        }
    }
    greeted.into_iter().flatten().map(|link| link.finish(until)).collect()
}

fn connect(link: &Open, until: Instant) -> Result<Greeted, LinkError> {
    let path = link.path.clone();
    let socket = connect_to(&path, until)?;
    say_first(&socket, &intro::connecter(&link.upper), None).map_err(|why| trouble(&path, why))?;
    Ok(Greeted { socket, path, memory: None, least: link.least, protocol: link.upper.protocol })
}

/// Connects to a socket, as soon as somebody listens there.
pub(super) fn connect_to(path: &Path, until: Instant) -> Result<UnixStream, LinkError> {
    loop {
        match UnixStream::connect(path) {
            Ok(socket) => return Ok(socket),
            Err(why) if Instant::now() >= until => {
                return Err(trouble(path, format!("nobody listens there: {why}")));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

fn accept(link: &Open, listener: &Listener, until: Instant) -> Result<Greeted, LinkError> {
    let path = link.path.clone();
    let socket = accept_at(listener, &path, until)?;
    let queues = queues(link.room);
    let (file, memory) = Memory::new(intro::memory(&queues, true))?;
    let message = intro::listener(&queues, &link.upper);
    say_first(&socket, &message, Some(file)).map_err(|why| trouble(&path, why))?;
    let memory = Some((memory, queues));
    Ok(Greeted { socket, path, memory, least: link.least, protocol: link.upper.protocol })
}

/// Takes who connects to a socket.
pub(super) fn accept_at(listener: &Listener, path: &Path, until: Instant) -> Result<UnixStream, LinkError> {
    loop {
        if let Some(socket) = listener.accept() {
            return Ok(socket);
        }
        if Instant::now() >= until {
            return Err(trouble(path, "nobody has connected"));
        }
        std::thread::sleep(RETRY);
    }
}

/// Sends a first message, all of it, with the memory's file.
pub(super) fn say_first(socket: &UnixStream, message: &[u8], file: Option<OwnedFd>) -> std::io::Result<()> {
    let files: Vec<_> = file.iter().map(|file| file.as_raw_fd()).collect();
    let control: Vec<_> = files.first().map(|_| ControlMessage::ScmRights(&files)).into_iter().collect();
    let sent =
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(message)], &control, MsgFlags::MSG_NOSIGNAL, None)?;
    if sent == message.len() { Ok(()) } else { Err(std::io::Error::other("the first message was cut")) }
}

/// The peer's first message, and the files that came with it.
pub(super) fn read_first(
    socket: &UnixStream,
    path: &Path,
    until: Instant,
) -> Result<(Vec<u8>, Vec<OwnedFd>), LinkError> {
    let mut message = vec![0; LONGEST];
    let (len, files) = receive(socket, &mut message, until).map_err(|why| trouble(path, why))?;
    message.truncate(len);
    Ok((message, files))
}

impl Greeted {
    /// Waits for the peer's message, and believes of it what can be checked.
    fn finish(self, until: Instant) -> Result<Channel, LinkError> {
        let Self { socket, path, memory, least, protocol } = self;
        let (message, mut files) = read_first(&socket, &path, until)?;
        let (memory, (queues, peer), listens) = match memory {
            Some((memory, queues)) => {
                if !files.is_empty() {
                    return Err(IntroError::Descriptors(files.len()).into());
                }
                let peer = intro::read_connecter(&message, protocol)?;
                (memory, (queues, peer), true)
            }
            None => {
                let file = files.pop().ok_or(IntroError::NoMemory)?;
                if !files.is_empty() {
                    return Err(IntroError::Descriptors(files.len() + 1).into());
                }
                let size = nix::sys::stat::fstat(&file).map_err(|why| LinkError::Memory(why.into()))?.st_size;
                let size = u64::try_from(size).unwrap_or(0);
                let (queues, peer) = intro::read_listener(&message, size, protocol)?;
                let len = intro::memory(&queues, peer.ours);
                (Memory::map(file, len)?.1, (queues, peer), false)
            }
        };
        let memory = Arc::new(memory);
        let bell = peer.ours.then(|| Bell::new(Arc::clone(&memory), &queues, listens));
        let [from, to] = queues.map(|queue| Ring::new(Arc::clone(&memory), queue));
        let (out, inward) = if listens { (from, to) } else { (to, from) };
        if out.room() < least {
            return Err(LinkError::TooLong { len: least, room: out.room() });
        }
        Ok(Channel::new(socket, (out, inward), peer, bell))
    }
}

/// One message, and the files that came with it.
fn receive(socket: &UnixStream, message: &mut [u8], until: Instant) -> Result<(usize, Vec<OwnedFd>), String> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let ready = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout);
    if ready.map_err(|why| why.to_string())? == 0 {
        return Err("the peer says nothing".into());
    }
    let mut files = Vec::new();
    match socket::receive(socket.as_fd(), message, &mut files) {
        Ok((0, _)) => Err("the peer has ended before it said anything".into()),
        Err(why) if why.kind() == std::io::ErrorKind::ConnectionReset => {
            Err("the peer has ended before it said anything".into())
        }
        Ok((len, _)) => Ok((len, files)),
        Err(why) => Err(why.to_string()),
    }
}
