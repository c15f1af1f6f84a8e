//! A switch that speaks SimBricks' network links, and shares no code with the server: it knows the protocol from its description, and touches
//! rings by reading and writing their file.
//!
//! It learns addresses, floods what it does not know, takes no time and has no queues, as SimBricks' own; but frames of one time go in the
//! order of its ports, so that what it does is the same each time. It forwards nothing to addresses of the link itself (IEEE 802.1D 7.12.6).

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
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
const SYNC: u8 = 0;
const TERMINATE: u8 = 1;
const PACKET: u8 = 0x40;
/// Entries of queues of its own: SimBricks' default size, and fewer of them.
const ENTRY: u64 = 1600;
const ENTRIES: u64 = 512;
/// How long it waits for others.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port that is to be.
#[derive(Debug, Clone)]
pub struct Socket {
    /// Its path.
    pub path: PathBuf,
    /// Whether the switch makes it.
    pub listens: bool,
}

/// One direction of a link.
struct Queue {
    file: File,
    offset: u64,
    entry: u64,
    count: u64,
    next: u64,
}

impl Queue {
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
        header[..2].copy_from_slice(&(payload.len() as u16).to_le_bytes());
        header[48..56].copy_from_slice(&time.to_le_bytes());
        let put = |bytes: &[u8], at: u64| self.file.write_all_at(bytes, at).map_err(|why| why.to_string());
        put(&header, self.at())?;
        put(payload, self.at() + HEADER)?;
        self.done(FULL | kind)
    }

    /// Takes the next message: its time, its type and its payload.
    fn pop(&mut self) -> Result<Option<(u64, u8, Vec<u8>)>, String> {
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

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).chain([0; 4]).collect()
}

fn connect(of: &Socket) -> Result<Port, String> {
    let until = Instant::now() + PATIENCE;
    let socket = loop {
        match UnixStream::connect(&of.path) {
            Ok(socket) => break socket,
            Err(why) if Instant::now() > until => return Err(format!("{}: {why}", of.path.display())),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // Version, flags (it insists on synchronisation), a network link, where the four bytes of it are.
    (&socket).write_all(&words(&[1, 3, 1, 32])).map_err(|why| why.to_string())?;
    let mut buffer = [0; 2048];
    let mut space = cmsg_space!([i32; 1]);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let got: RecvMsg<'_, '_, SockaddrStorage> =
        recvmsg(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty())
            .map_err(|why| why.to_string())?;
    let mut file = None;
    for message in got.cmsgs().map_err(|why| why.to_string())? {
        if let ControlMessageOwned::ScmRights(files) = message {
            for fd in files {
                let open = OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{fd}"));
                file = Some(open.map_err(|why| why.to_string())?);
                nix::unistd::close(fd).map_err(|why| why.to_string())?;
            }
        }
    }
    let len = got.bytes;
    let intro: Vec<u64> = buffer[..len]
        .chunks_exact(8)
        .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
        .collect();
    let &[1, _, o0, e0, c0, o1, e1, c1, 1, _, ..] = &intro[..] else {
        return Err(format!("a listener said {intro:?}"));
    };
    let file = file.ok_or("a listener sent no memory")?;
    let queue = |offset, entry, count| {
        Ok::<_, String>(Queue {
            file: file.try_clone().map_err(|why| why.to_string())?,
            offset,
            entry,
            count,
            next: 0,
        })
    };
    Ok(Port { socket, out: queue(o1, e1, c1)?, inward: queue(o0, e0, c0)?, heard: 0, told: 0, count: 0 })
}

fn accept(listener: &UnixListener) -> Result<Port, String> {
    let (socket, _) = listener.accept().map_err(|why| why.to_string())?;
    let memory = nix::sys::memfd::memfd_create(c"bricks", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
        .map_err(|why| why.to_string())?;
    let file = File::from(memory);
    file.set_len(2 * ENTRY * ENTRIES).map_err(|why| why.to_string())?;
    let intro = words(&[1, 3, 0, ENTRY, ENTRIES, ENTRY * ENTRIES, ENTRY, ENTRIES, 1, 80]);
    let files = [file.as_raw_fd()];
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&intro)],
        &[ControlMessage::ScmRights(&files)],
        MsgFlags::empty(),
        None,
    )
    .map_err(|why| why.to_string())?;
    let mut answer = [0; 2048];
    let len = std::io::Read::read(&mut &socket, &mut answer).map_err(|why| why.to_string())?;
    if len < 32 || answer[0] != 1 {
        return Err(format!("who connects said {:?}", &answer[..len]));
    }
    let queue = |offset| {
        let file = file.try_clone().map_err(|why| why.to_string())?;
        Ok::<_, String>(Queue { file, offset, entry: ENTRY, count: ENTRIES, next: 0 })
    };
    Ok(Port { socket, out: queue(0)?, inward: queue(ENTRY * ENTRIES)?, heard: 0, told: 0, count: 0 })
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
