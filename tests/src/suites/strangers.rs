//! Peers of `softhca sim` that know SimBricks' protocol from its description ([`crate::bricks`]): what they are told first and put into their
//! rings, byte for byte; and what becomes of those that break the rules.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use super::Case;
use super::peers::{Ended, case};
use crate::bricks::{First, PACKET, PATIENCE, Queue, SYNC, hear, memory, reach, say, words};

/// Entries of rings of a stranger's own: a network link of ours needs room for the longest packet, and SimBricks' PCI Express links have that
/// size.
const ENTRY: [u64; 2] = [16384, 9088];
const ENTRIES: u64 = 128;
/// What links of either kind take at most, in ps: a cable of 5 ns with a PHY at its end, and a crossing of PCI Express.
const LATENCY: [u64; 2] = [105_000, 140_000];
/// Bytes of what a device says of itself.
const DEVICE: usize = 119;

/// Which side of which link ours is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ours {
    /// A network link, where it listens.
    Listens,
    /// A network link, where it connects.
    Connects,
    /// The adapter of a PCI Express link, where it listens.
    Adapter,
    /// The host of such a link, where it connects.
    Host,
}

impl Ours {
    fn is_listener(self) -> bool {
        matches!(self, Self::Listens | Self::Adapter)
    }

    /// The number of the upper protocol.
    fn protocol(self) -> u64 {
        if matches!(self, Self::Listens | Self::Connects) { 1 } else { 2 }
    }

    fn latency(self) -> u64 {
        LATENCY[usize::from(self.protocol() == 2)]
    }

    fn entry(self) -> u64 {
        ENTRY[usize::from(self.protocol() == 2)]
    }

    fn topology(self) -> String {
        let host = |name, more: &str| {
            format!(
                "[[process]]\nname = \"{name}\"\n[[host]]\nname = \"{name}\"\nprocess = \"{name}\"\n[[host.hca]]\n{more}"
            )
        };
        let fabric = "[fabric]\ntraining_ms = 0\nseed = 7\n";
        match self.protocol() {
            1 => format!(
                "{fabric}{}{}[[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\nsimbricks = \"listen:peer.sock\"\n",
                host("a", ""),
                host("b", "")
            ),
            _ => format!("{fabric}{}", host("a", "simbricks = \"listen:peer.sock\"\n")),
        }
    }

    fn options(self) -> [&'static str; 2] {
        match self {
            Self::Listens | Self::Adapter => ["--process", "a"],
            Self::Connects => ["--process", "b"],
            Self::Host => ["--host", "a"],
        }
    }

    /// What its peer says first, if it keeps to the rules: words, and the upper protocol's part.
    fn right(self) -> (Vec<u64>, Vec<u8>) {
        let protocol = self.protocol();
        if self.is_listener() {
            return (vec![1, 3, protocol, 32], vec![0; 4]);
        }
        let (entry, part) = (self.entry(), if self == Self::Host { device() } else { vec![0; 4] });
        (vec![1, 3, 0, entry, ENTRIES, entry * ENTRIES, entry, ENTRIES, protocol, 80], part)
    }
}

/// A device: one large BAR of 64 bits, MSI-X in another one that the host keeps.
fn device() -> Vec<u8> {
    let mut bytes = vec![0; DEVICE];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &(32u64 << 20).to_le_bytes());
    put(8, &[2 | 4]);
    put(32, &8192u64.to_le_bytes());
    put(40, &[2 | 4 | 8]);
    put(96, &[0xb3, 0x15, 0x13, 0x10, 2, 7]);
    put(105, &[64, 0, 2, 2]);
    put(113, &0x1000u32.to_le_bytes());
    bytes
}

/// A process of ours, and the folder that it is in.
struct Process {
    child: Ended,
    socket: PathBuf,
}

impl Process {
    fn start(program: &Path, folder: &Path, ours: Ours) -> Result<Self, String> {
        let text = |why: std::io::Error| why.to_string();
        std::fs::create_dir_all(folder).map_err(text)?;
        let file = folder.join("topology.toml");
        std::fs::write(&file, ours.topology()).map_err(text)?;
        let mut command = Command::new(program);
        command.arg("sim").arg("--topology").arg(&file).arg("--run-dir").arg(folder).args(ours.options());
        // Far more model time than anybody waits for.
        command.args(["--traffic", "none", "--until", "1e6"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Self { child: Ended(command.spawn().map_err(text)?), socket: folder.join("peer.sock") })
    }

    /// Waits until it has ended. It has to say why, and to end with an error of its own.
    fn ends(mut self, with: &str) -> Result<String, String> {
        let Ended(child) = &mut self.child;
        let until = Instant::now() + PATIENCE;
        let status = loop {
            match child.try_wait().map_err(|why| why.to_string())? {
                Some(status) => break status,
                None if Instant::now() > until => return Err("it goes on".into()),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let said = rest(child)?;
        let last = said.lines().last().unwrap_or_default().to_owned();
        if status.code() != Some(1) || !said.contains(with) || said.contains("panicked") {
            return Err(format!("it ended with {status} and not with \"{with}\": {said}"));
        }
        Ok(last)
    }
}

fn rest(child: &mut Child) -> Result<String, String> {
    let mut said = String::new();
    let stderr = child.stderr.as_mut().ok_or("its errors are not ours")?;
    stderr.read_to_string(&mut said).map_err(|why| why.to_string())?;
    Ok(said)
}

/// A link to a process of ours, as far as it has come.
struct Peer {
    first: First,
    /// The memory, if it is the peer's, and bytes of its entries.
    own: Option<File>,
    entry: u64,
}

/// Says this first to a process that has been started, and hears what that says.
fn greet(ours: Ours, listener: Option<UnixListener>, socket: &Path, said: &Said) -> Result<Peer, String> {
    let own = match said.memory && listener.is_some() {
        true => Some(memory(2 * ours.entry() * ENTRIES)?),
        false => None,
    };
    let stream: UnixStream = match listener {
        Some(listener) => listener.accept().map_err(|why| why.to_string())?.0,
        None => reach(socket)?,
    };
    say(&stream, &said.bytes(ours), own.as_ref())?;
    Ok(Peer { first: hear(stream)?, own, entry: ours.entry() })
}

impl Peer {
    /// Its rings: to ours, and from it.
    fn rings(&self) -> Result<[Queue; 2], String> {
        if let Some(own) = &self.own {
            let ring = |offset| Queue::new(own, [offset, self.entry, ENTRIES]);
            return Ok([ring(0)?, ring(self.entry * ENTRIES)?]);
        }
        let memory = self.first.memory.as_ref().ok_or("ours sent no memory")?;
        let [from, to] = self.queues()?;
        Ok([Queue::new(memory, to)?, Queue::new(memory, from)?])
    }

    /// Offset, bytes of an entry, and entries: from who listens, and to it.
    fn queues(&self) -> Result<[[u64; 3]; 2], String> {
        let words: Option<Vec<u64>> = (2..8).map(|n| self.first.word(n)).collect();
        match words.as_deref() {
            Some(&[o0, e0, c0, o1, e1, c1]) => Ok([[o0, e0, c0], [o1, e1, c1]]),
            _ => Err("its first message is too short".into()),
        }
    }
}

/// A first message of a peer.
#[derive(Debug, Clone, Copy)]
struct Said {
    /// Words that are not what they should be.
    words: &'static [(usize, u64)],
    /// So many of its bytes.
    bytes: usize,
    /// The memory comes with it.
    memory: bool,
}

/// As it should be.
const RIGHT: Said = Said { words: &[], bytes: usize::MAX, memory: true };

impl Said {
    fn bytes(&self, ours: Ours) -> Vec<u8> {
        let (mut said, part) = ours.right();
        self.words.iter().for_each(|(place, value)| said[*place] = *value);
        let mut bytes = words(&said);
        bytes.truncate(8 * said.len());
        bytes.extend(part);
        bytes.truncate(self.bytes);
        bytes
    }
}

/// An entry of a ring.
#[derive(Debug, Clone, Copy)]
struct Put {
    own: &'static [u8],
    time: u64,
    kind: u8,
}

/// What a peer does.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// It says this first.
    Says(Said),
    /// It comes up as it should, and puts these into its ring.
    Puts(&'static [Put]),
    /// It makes its memory shorter.
    Shortens,
    /// It ends without a word.
    Ends,
}

const fn word(place: &'static [(usize, u64)]) -> Act {
    Act::Says(Said { words: place, ..RIGHT })
}

const fn cut(bytes: usize) -> Act {
    Act::Says(Said { bytes, ..RIGHT })
}

const fn put(own: &'static [u8], time: u64, kind: u8) -> Put {
    Put { own, time, kind }
}

/// Request 3, at 0: of 9025 bytes, one more than there is room for; and of 8 bytes of BAR 5.
const LONG: &[u8] = &[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x23];
const NO_BAR: &[u8] = &[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 5];

/// Who does what, and what ours says of it when it ends.
const BREACHES: &[(Ours, Act, &str)] = &[
    (Ours::Connects, word(&[(0, 2)]), "it speaks version 2 of the protocol"),
    (Ours::Connects, word(&[(1, 0)]), "it does not synchronise"),
    (Ours::Connects, word(&[(8, 2)]), "its upper protocol is 2, and not 1"),
    (Ours::Connects, word(&[(3, 63)]), "outgoing queue has entries that are no longer than their header"),
    (Ours::Connects, word(&[(6, 64)]), "incoming queue has entries that are no longer than their header"),
    (Ours::Connects, word(&[(3, u64::MAX)]), "entries of more than a mebibyte"),
    (Ours::Connects, word(&[(3, 1600), (6, 1600)]), "does not fit into an entry"),
    (Ours::Connects, word(&[(4, 0)]), "outgoing queue has no entries"),
    (Ours::Connects, word(&[(7, ENTRIES + 1)]), "incoming queue has entries beyond the end of the memory"),
    (Ours::Connects, word(&[(5, u64::MAX - 1)]), "entries beyond the end of the memory"),
    (Ours::Connects, word(&[(5, 0)]), "entries that lie over those of the other"),
    (Ours::Connects, word(&[(9, 79)]), "the part of the upper protocol is said to be at byte 79"),
    (Ours::Connects, cut(79), "it has 79 bytes, and such a message has 80 at least"),
    (Ours::Connects, Act::Says(Said { memory: false, ..RIGHT }), "no memory came with it"),
    (Ours::Connects, Act::Shortens, "the memory of the link went away"),
    (Ours::Connects, Act::Ends, "the peer has ended"),
    (Ours::Listens, word(&[(0, 0)]), "it speaks version 0 of the protocol"),
    (Ours::Listens, word(&[(1, 0)]), "it does not synchronise"),
    (Ours::Listens, word(&[(2, 3)]), "its upper protocol is 3, and not 1"),
    (Ours::Listens, word(&[(3, 37)]), "the part of the upper protocol is said to be at byte 37"),
    (Ours::Listens, cut(7), "it has 7 bytes, and such a message has 32 at least"),
    (
        Ours::Listens,
        Act::Puts(&[put(&[], 500_000, SYNC), put(&[], 499_999, SYNC)]),
        "time went backwards, from 500000 to 499999 ps",
    ),
    (Ours::Listens, Act::Puts(&[put(&[0xff, 0xff], 500_000, PACKET)]), "a packet of 65535 bytes in an entry"),
    (Ours::Listens, Act::Puts(&[put(&[20, 0], 500_000, PACKET)]), "no message of an adapter or switch"),
    (Ours::Listens, Act::Puts(&[put(&[], 500_000, 0x41)]), "a message of type 0x41"),
    (Ours::Listens, Act::Puts(&[put(&[], 500_000, 0x02)]), "a message of type 0x02"),
    (Ours::Listens, Act::Ends, "the peer has ended"),
    (Ours::Adapter, word(&[(2, 1)]), "its upper protocol is 1, and not 2"),
    (Ours::Adapter, Act::Puts(&[put(&[3], 500_000, 0x62)]), "answered request 3, which nobody made"),
    (Ours::Adapter, Act::Puts(&[put(&[3], 500_000, 0x63)]), "answered request 3, which nobody made"),
    (Ours::Adapter, Act::Puts(&[put(LONG, 500_000, 0x60)]), "a packet of 9025 bytes in an entry"),
    (Ours::Adapter, Act::Puts(&[put(LONG, 500_000, 0x65)]), "a packet of 9025 bytes in an entry"),
    (
        Ours::Adapter,
        Act::Puts(&[put(NO_BAR, 500_000, 0x60), put(&[], 900_000, SYNC)]),
        "accessed 8 bytes at 0x0 of BAR 5",
    ),
    (Ours::Adapter, Act::Puts(&[put(&[3], 500_000, 0x40)]), "a message of type 0x40"),
    (
        Ours::Adapter,
        Act::Puts(&[put(NO_BAR, 500_000, 0x60), put(NO_BAR, 499_999, 0x60)]),
        "time went backwards, from 500000 to 499999 ps",
    ),
    (Ours::Adapter, Act::Ends, "the peer has ended"),
    (Ours::Host, word(&[(8, 1)]), "its upper protocol is 1, and not 2"),
    (Ours::Host, cut(80 + DEVICE - 1), "has 118 bytes, and not 119"),
    (Ours::Host, Act::Puts(&[put(&[3], 500_000, 0x44)]), "answered request 3, which nobody made"),
    (Ours::Host, Act::Puts(&[put(LONG, 500_000, 0x41)]), "a packet of 9025 bytes in an entry"),
    (Ours::Host, Act::Puts(&[put(&[3], 500_000, 0x60)]), "a message of type 0x60"),
    (Ours::Host, Act::Shortens, "the memory of the link went away"),
    (Ours::Host, Act::Ends, "the peer has ended"),
];

/// One peer that breaks a rule.
fn breach(program: &Path, folder: &Path, (ours, act, why): (Ours, Act, &str)) -> Result<String, String> {
    std::fs::create_dir_all(folder).map_err(|why| why.to_string())?;
    let socket = folder.join("peer.sock");
    let listener = match ours.is_listener() {
        true => None,
        false => Some(UnixListener::bind(&socket).map_err(|why| why.to_string())?),
    };
    let process = Process::start(program, folder, ours)?;
    let said = if let Act::Says(said) = act { said } else { RIGHT };
    let link = greet(ours, listener, &process.socket, &said)?;
    match act {
        Act::Says(_) => {}
        Act::Puts(entries) => {
            let [mut out, _] = link.rings()?;
            for Put { own, time, kind } in entries {
                out.push_with(own, *time, *kind, &[1; 20])?;
            }
        }
        Act::Shortens => {
            let own = link.own.as_ref().ok_or("the memory is not the peer's")?;
            // By then it has looked at how long that is.
            let [_, inward] = link.rings()?;
            header(&inward)?;
            own.set_len(0).map_err(|why| why.to_string())?;
        }
        Act::Ends => {
            drop(link);
            return process.ends(why);
        }
    }
    let said = process.ends(why);
    drop(link);
    said
}

/// All of them.
fn breaches(program: &Path, folder: &Path) -> Result<String, String> {
    let mut wrong = String::new();
    for (n, row) in BREACHES.iter().enumerate() {
        if let Err(why) = breach(program, &folder.join(n.to_string()), *row) {
            wrong += &format!("{:?} {:?}: {why}\n", row.0, row.1);
        }
    }
    if wrong.is_empty() { Ok(format!("{} of them, each with its words", BREACHES.len())) } else { Err(wrong) }
}

/// One of two processes that simulate a topology is killed.
fn killed(program: &Path, folder: &Path) -> Result<String, String> {
    let listens = Process::start(program, folder, Ours::Listens)?;
    let mut connects = Process::start(program, folder, Ours::Connects)?;
    // It says how far it is once a second: by then it simulates.
    let stderr = connects.child.0.stderr.take().ok_or("its errors are not ours")?;
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    if !lines.any(|line| line.contains(" us a second")) {
        return Err("it did not begin".into());
    }
    drop(connects);
    listens.ends("the link between a/hca0 and b/hca0: the peer has ended")
}

/// Says what is not so.
fn expect(
    what: &str,
    is: impl std::fmt::Debug + PartialEq,
    should: impl std::fmt::Debug,
) -> Result<(), String> {
    let (is, should) = (format!("{is:?}"), format!("{should:?}"));
    if is == should { Ok(()) } else { Err(format!("{what} is {is}, and not {should}")) }
}

/// What ours says first and puts into its ring, byte for byte.
fn bytes(program: &Path, folder: &Path, ours: Ours) -> Result<String, String> {
    std::fs::create_dir_all(folder).map_err(|why| why.to_string())?;
    let listener = match ours.is_listener() {
        true => None,
        false => Some(UnixListener::bind(folder.join("peer.sock")).map_err(|why| why.to_string())?),
    };
    let process = Process::start(program, folder, ours)?;
    let link = greet(ours, listener, &process.socket, &RIGHT)?;
    let message = &link.first.message;
    // The upper protocol's part is behind four bytes that are softhca's own, which others step over.
    let fixed = if ours.is_listener() { 80 } else { 32 };
    let part = if ours == Ours::Adapter { DEVICE } else { 4 };
    expect("the length of the message", message.len(), fixed + 4 + part)?;
    let at = |n: usize| link.first.word(n).unwrap_or_default();
    let end = fixed / 8;
    expect("version and flags", [at(0), at(1)], [1, 3])?;
    expect(
        "the upper protocol and its place",
        [at(end - 2), at(end - 1)],
        [ours.protocol(), fixed as u64 + 4],
    )?;
    let part = message.get(fixed + 4..).unwrap_or_default();
    match ours {
        Ours::Adapter => {
            let mut should = device();
            // Vectors are the adapter's own number, and so is the size of the BAR of their table.
            should[32..40].copy_from_slice(&part[32..40]);
            should[105..107].copy_from_slice(&part[105..107]);
            should[113..117].copy_from_slice(&part[113..117]);
            expect("the device", part, &should[..])?;
            let number = |at: usize, len: usize| {
                part[at..at + len].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
            };
            let (bar, vectors, table, pending) =
                (number(32, 8), number(105, 2), number(109, 4), number(113, 4));
            let fits = vectors > 0 && table + 16 * vectors <= pending && pending + vectors.div_ceil(8) <= bar;
            expect("the place of the vectors", fits, true)?;
        }
        _ => expect("the upper protocol's part", part, [0; 4])?,
    }
    if ours.is_listener() {
        let queues = link.queues()?;
        let [from, to] = queues.map(|[offset, entry, count]| offset..offset + entry * count);
        let memory = link.first.memory.as_ref().ok_or("no memory came")?;
        let len = memory.metadata().map_err(|why| why.to_string())?.len();
        expect("that rings lie apart", from.end <= to.start || to.end <= from.start, true)?;
        expect("that they are in the memory", from.end.max(to.end) <= len, true)?;
        if ours == Ours::Adapter {
            expect("bytes of entries", queues.map(|[_, entry, _]| entry), [ours.entry(); 2])?;
        }
        let seals = fcntl(memory, FcntlArg::F_GET_SEALS).map_err(|why| why.to_string())?;
        let seals = SealFlag::from_bits_truncate(seals);
        expect("that it can't be made shorter", seals.contains(SealFlag::F_SEAL_SHRINK), true)?;
    }
    let [mut out, mut inward] = link.rings()?;
    let latency = ours.latency();
    let first = header(&inward)?;
    let mut should = first;
    let (kind, own): (u8, &[u8]) = match ours {
        // That there is light: 32 bytes of port 0.
        Ours::Listens | Ours::Connects => (0x40, &[32, 0, 0]),
        // Nothing but a time.
        Ours::Adapter => (SYNC, &[]),
        // Interrupts are MSI-X.
        Ours::Host => (0x64, &[4]),
    };
    should[..48].fill(0);
    should[..own.len()].copy_from_slice(own);
    should[56..63].fill(0);
    should[63] = 0x80 | kind;
    expect("the first entry", first, should)?;
    let (at, ..) = inward.pop()?.ok_or("an entry was taken back")?;
    // It is 0 there: what it says is for later, and no later than the link takes.
    expect("that its time is the link's", 0 < at && at <= latency, true)?;
    // Who is told that nothing comes before that time may go there, and no further.
    out.push_with(&[], latency, SYNC, &[])?;
    header(&inward)?;
    let (time, ..) = inward.pop()?.ok_or("an entry was taken back")?;
    expect("the order of times", at <= time && time <= 2 * latency, true)?;
    drop((out, link));
    process.ends("the peer has ended")
}

/// The header of the next entry of a ring.
fn header(ring: &Queue) -> Result<[u8; 64], String> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ring.header()? {
            Some(header) => return Ok(header),
            None if Instant::now() > until => return Err("nothing was put into the ring".into()),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// First messages and entries, breaches, and who is killed.
pub(super) fn cases(program: &Path, folder: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, ours) in [
        ("a network link that is listened at", Ours::Listens),
        ("a network link that is connected to", Ours::Connects),
        ("an adapter for a host elsewhere", Ours::Adapter),
        ("a host of an adapter elsewhere", Ours::Host),
    ] {
        let name = format!("first message and entries, byte for byte: {name}");
        cases.extend(case(&name, || bytes(program, &folder.join(format!("bytes-{ours:?}")), ours)));
    }
    cases.extend(case("peers that break the rules", || breaches(program, &folder.join("breaches"))));
    cases.extend(case("a process that is killed", || killed(program, &folder.join("killed"))));
    cases
}
