//! A switch that speaks SimBricks' network links, and shares no code with the server: it knows the protocol from its description, and touches
//! rings by reading and writing their file.
//!
//! It learns addresses, floods what it does not know, takes no time and has no queues, as SimBricks' own; but frames of one time go in the
//! order of its ports, so that what it does is the same each time. It forwards nothing to addresses of the link itself (IEEE 802.1D 7.12.6).

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, RecvMsg, SockaddrStorage, recv, recvmsg, sendmsg,
};

/// Bytes before the payload of an entry, and where owner and type are in them.
const HEADER: u64 = 64;
const OWNER: u64 = 63;
const FULL: u8 = 0x80;
/// Types of messages.
pub(crate) const SYNC: u8 = 0;
const TERMINATE: u8 = 1;
pub(crate) const PACKET: u8 = 0x40;
/// Entries of queues of its own: SimBricks' default size, and fewer of them.
const ENTRY: u64 = 1600;
const ENTRIES: u64 = 512;
/// How long it waits for others.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A port that is to be.
#[derive(Debug, Clone)]
pub struct Socket {
    /// Its path.
    pub path: PathBuf,
    /// Whether the switch makes it.
    pub listens: bool,
}

/// One direction of a link.
pub(crate) struct Queue {
    file: File,
    offset: u64,
    entry: u64,
    count: u64,
    next: u64,
}

impl Queue {
    /// That ring of some memory: its offset, bytes of an entry, and entries.
    pub(crate) fn new(memory: &File, [offset, entry, count]: [u64; 3]) -> Result<Self, String> {
        let file = memory.try_clone().map_err(|why| why.to_string())?;
        Ok(Self { file, offset, entry, count, next: 0 })
    }

    fn at(&self) -> u64 {
        self.offset + self.next * self.entry
    }

    fn owner(&self) -> Result<u8, String> {
        let mut owner = [0];
        self.file.read_exact_at(&mut owner, self.at() + OWNER).map_err(|why| why.to_string())?;
        Ok(owner[0])
    }

    fn done(&mut self, owner: u8) -> Result<(), String> {
        self.file.write_all_at(&[owner], self.at() + OWNER).map_err(|why| why.to_string())?;
        self.next = (self.next + 1) % self.count;
        Ok(())
    }

    /// Puts a message in. Waits while the ring is full.
    fn push(&mut self, time: u64, kind: u8, payload: &[u8]) -> Result<(), String> {
        self.push_with(&(payload.len() as u16).to_le_bytes(), time, kind, payload)
    }

    /// The same; a header begins with these bytes.
    pub(crate) fn push_with(
        &mut self,
        own: &[u8],
        time: u64,
        kind: u8,
        payload: &[u8],
    ) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        while self.owner()? & FULL != 0 {
            if Instant::now() > until {
                return Err("a peer takes nothing".into());
            }
            std::thread::yield_now();
        }
        if payload.len() as u64 > self.entry - HEADER {
            return Err(format!("{} bytes do not fit into an entry of {}", payload.len(), self.entry));
        }
        let mut header = [0; OWNER as usize];
        header[..own.len()].copy_from_slice(own);
        header[48..56].copy_from_slice(&time.to_le_bytes());
        let put = |bytes: &[u8], at: u64| self.file.write_all_at(bytes, at).map_err(|why| why.to_string());
        put(&header, self.at())?;
        put(payload, self.at() + HEADER)?;
        self.done(FULL | kind)
    }

    /// The header of the next message, with owner and type.
    pub(crate) fn header(&self) -> Result<Option<[u8; HEADER as usize]>, String> {
        if self.owner()? & FULL == 0 {
            return Ok(None);
        }
        let mut header = [0; HEADER as usize];
        self.file.read_exact_at(&mut header, self.at()).map_err(|why| why.to_string())?;
        Ok(Some(header))
    }

    /// Takes the next message: its time, its type and its payload.
    pub(crate) fn pop(&mut self) -> Result<Option<(u64, u8, Vec<u8>)>, String> {
        let owner = self.owner()?;
        if owner & FULL == 0 {
            return Ok(None);
        }
        let mut header = [0; OWNER as usize];
        let get =
            |bytes: &mut [u8], at: u64| self.file.read_exact_at(bytes, at).map_err(|why| why.to_string());
        get(&mut header, self.at())?;
        let length = u16::from_le_bytes([header[0], header[1]]);
        let kind = owner & !FULL;
        let mut payload = vec![0; if kind == PACKET { length.into() } else { 0 }];
        get(&mut payload, self.at() + HEADER)?;
        let time = u64::from_le_bytes(header[48..56].try_into().map_err(|_| "a time has eight bytes")?);
        self.done(kind)?;
        Ok(Some((time, kind, payload)))
    }
}

/// A port that is up.
struct Port {
    socket: UnixStream,
    out: Queue,
    inward: Queue,
    heard: u64,
    told: u64,
    count: u64,
}

/// What a switch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that came.
    pub frames: u64,
    /// Of these, those that went to all ports.
    pub flooded: u64,
    /// The longest.
    pub longest: usize,
}

/// Starts a switch whose links have that latency, in ps. It ends when all who were connected have.
pub fn switch(sockets: Vec<Socket>, latency: u64) -> JoinHandle<Result<Counts, String>> {
    std::thread::spawn(move || {
        let mut ports = Vec::new();
        let bind = |socket: &Socket| match socket.listens {
            true => UnixListener::bind(&socket.path).map(Some).map_err(|why| why.to_string()),
            false => Ok(None),
        };
        let listeners = sockets.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        for (socket, listener) in sockets.iter().zip(listeners) {
            ports.push(match listener {
                Some(listener) => accept(&listener)?,
                None => connect(socket)?,
            });
        }
        run(ports, latency)
    })
}

/// A first message: these words, and the four bytes of a network link, or of a host.
pub(crate) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).chain([0; 4]).collect()
}

/// What the other side of a link said first.
#[derive(Debug)]
pub(crate) struct First {
    pub(crate) socket: UnixStream,
    pub(crate) message: Vec<u8>,
    /// The memory, from who listens.
    pub(crate) memory: Option<File>,
}

impl First {
    /// Word `n` of what it said.
    pub(crate) fn word(&self, n: usize) -> Option<u64> {
        self.message.get(8 * n..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
    }
}

/// Waits for what the other side says first.
pub(crate) fn hear(socket: UnixStream) -> Result<First, String> {
    let text = |why: nix::errno::Errno| why.to_string();
    socket.set_read_timeout(Some(PATIENCE)).map_err(|why| why.to_string())?;
    let mut buffer = [0; 2048];
    let mut space = cmsg_space!([i32; 1]);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let got: RecvMsg<'_, '_, SockaddrStorage> =
        recvmsg(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).map_err(text)?;
    let mut memory = None;
    for message in got.cmsgs().map_err(text)? {
        if let ControlMessageOwned::ScmRights(files) = message {
            for fd in files {
                let open = OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{fd}"));
                memory = Some(open.map_err(|why| why.to_string())?);
                nix::unistd::close(fd).map_err(text)?;
            }
        }
    }
    let len = got.bytes;
    Ok(First { socket, message: buffer[..len].to_vec(), memory })
}

/// Connects to a socket as soon as somebody listens there.
pub(crate) fn reach(path: &Path) -> Result<UnixStream, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(path) {
            Ok(socket) => return Ok(socket),
            Err(why) if Instant::now() > until => return Err(format!("{}: {why}", path.display())),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Says something first, and gives memory along.
pub(crate) fn say(socket: &UnixStream, message: &[u8], memory: Option<&File>) -> Result<(), String> {
    let files: Vec<_> = memory.iter().map(|file| file.as_raw_fd()).collect();
    let control = [ControlMessage::ScmRights(&files)];
    let control = if files.is_empty() { &[][..] } else { &control[..] };
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(message)], control, flags, None)
        .map_err(|why| why.to_string())?;
    Ok(())
}

/// Memory of so many bytes.
pub(crate) fn memory(len: u64) -> Result<File, String> {
    let memory = nix::sys::memfd::memfd_create(c"bricks", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
        .map_err(|why| why.to_string())?;
    let file = File::from(memory);
    file.set_len(len).map_err(|why| why.to_string())?;
    Ok(file)
}

fn connect(of: &Socket) -> Result<Port, String> {
    let socket = reach(&of.path)?;
    // Version, flags (it insists on synchronisation), a network link, where the four bytes of it are.
    say(&socket, &words(&[1, 3, 1, 32]), None)?;
    let first = hear(socket)?;
    let intro: Vec<u64> = (0..10).map_while(|n| first.word(n)).collect();
    let &[1, _, o0, e0, c0, o1, e1, c1, 1, _] = &intro[..] else {
        return Err(format!("a listener said {intro:?}"));
    };
    let file = first.memory.ok_or("a listener sent no memory")?;
    let [out, inward] = [[o1, e1, c1], [o0, e0, c0]].map(|of| Queue::new(&file, of));
    Ok(Port { socket: first.socket, out: out?, inward: inward?, heard: 0, told: 0, count: 0 })
}

fn accept(listener: &UnixListener) -> Result<Port, String> {
    let (socket, _) = listener.accept().map_err(|why| why.to_string())?;
    let file = memory(2 * ENTRY * ENTRIES)?;
    say(&socket, &words(&[1, 3, 0, ENTRY, ENTRIES, ENTRY * ENTRIES, ENTRY, ENTRIES, 1, 80]), Some(&file))?;
    let first = hear(socket)?;
    if first.message.len() < 32 || first.word(0) != Some(1) {
        return Err(format!("who connects said {:?}", first.message));
    }
    let [out, inward] = [0, ENTRY * ENTRIES].map(|offset| Queue::new(&file, [offset, ENTRY, ENTRIES]));
    Ok(Port { socket: first.socket, out: out?, inward: inward?, heard: 0, told: 0, count: 0 })
}

impl Port {
    fn is_gone(&self) -> bool {
        recv(self.socket.as_raw_fd(), &mut [0; 8], MsgFlags::MSG_DONTWAIT) == Ok(0)
    }
}

fn run(mut ports: Vec<Port>, latency: u64) -> Result<Counts, String> {
    let mut counts = Counts::default();
    let mut stations: HashMap<[u8; 6], usize> = HashMap::new();
    // By time, port and order.
    let mut waiting: BTreeMap<(u64, usize, u64), Vec<u8>> = BTreeMap::new();
    let mut last = Instant::now();
    let mut reached = 0;
    loop {
        // Everybody may count on what is certain, before anybody is waited for.
        for port in ports.iter_mut().filter(|port| port.heard < u64::MAX) {
            if port.told == 0 || reached + latency > port.told {
                port.told = reached + latency;
                port.out.push(port.told, SYNC, &[])?;
            }
        }
        let before = ports.iter().map(|port| port.heard).min().unwrap_or(u64::MAX);
        for (place, port) in ports.iter_mut().enumerate() {
            // Gone is who was gone before the ring was found empty.
            let gone = last.elapsed() > Duration::from_millis(20) && port.is_gone();
            while let Some((time, kind, payload)) = port.inward.pop()? {
                if time < port.heard {
                    return Err(format!(
                        "time went backwards at port {place}, from {} to {time}",
                        port.heard
                    ));
                }
                port.heard = time;
                match kind {
                    SYNC => {}
                    TERMINATE => {
                        return Err(
                            "somebody sent a terminate message, which SimBricks' switch can't take".into()
                        );
                    }
                    PACKET => {
                        counts.frames += 1;
                        counts.longest = counts.longest.max(payload.len());
                        port.count += 1;
                        waiting.insert((time, place, port.count), payload);
                    }
                    other => return Err(format!("a message of type {other:#x}")),
                }
                last = Instant::now();
            }
            if gone {
                port.heard = u64::MAX;
            }
        }
        let bound = ports.iter().map(|port| port.heard).min().unwrap_or(u64::MAX);
        if bound == u64::MAX {
            return Ok(counts);
        }
        if bound == before {
            if last.elapsed() > PATIENCE {
                return Err(format!("nobody has said anything for long; it is {bound} ps"));
            }
            std::thread::yield_now();
            continue;
        }
        let later = waiting.split_off(&(bound, 0, 0));
        for ((time, from, _), frame) in std::mem::replace(&mut waiting, later) {
            let (Some(to), Some(source)) = (frame.first_chunk::<6>(), frame.get(6..12)) else {
                return Err(format!("a frame of {} bytes", frame.len()));
            };
            stations.insert(source.try_into().map_err(|_| "an address has six bytes")?, from);
            if to[..5] == [0x01, 0x80, 0xc2, 0, 0] && to[5] < 16 {
                continue;
            }
            let known = stations.get(to).copied();
            counts.flooded += u64::from(known.is_none());
            for (place, port) in ports.iter_mut().enumerate() {
                let meant = known.is_none_or(|known| known == place) && place != from;
                if meant && port.heard < u64::MAX {
                    port.told = port.told.max(time + latency);
                    port.out.push(time + latency, PACKET, &frame)?;
                }
            }
        }
        reached = bound;
    }
}
