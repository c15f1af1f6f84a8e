//! A vfio-user client that breaks off, says too much, or nothing; and one whose memory is reached by messages.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};

use super::Row;
use super::clients::{BASE, NO_REPLY, QUEUE, enable, enable_hca, ring};
use super::stage::{ATTACKER, Attacker, Failure, VICTIM};
use crate::pair::pattern;
use crate::raw::{Raw, Reply, access, dma_map};

/// The cases.
pub const ROWS: &[Row] = &[
    Row::new("client: connections that say nothing", silent),
    Row::new("client: connections to the victim's socket", second),
    Row::new("client: half a message, and the next connection", halves),
    Row::new("client: messages in pieces of one byte", crumbs),
    Row::new("client: random bytes", rubbish),
    Row::new("client: random fields of valid messages", fields),
    Row::new("client: messages longer than may be", oversized),
    Row::new("client: answers that it does not read", unread),
    Row::new("client: only replies, of 1 MiB each", replies),
    Row::new("client: version negotiated, over and over", versions),
    Row::new("client: memory by messages of 1 byte, which is refused", too_small),
    Row::new("client: memory by messages of 4096 bytes, answered slowly", |a| {
        remote(a, SMALLEST, Some(Duration::from_millis(20)), 1)
    }),
    Row::new("client: memory by messages, never answered", |a| remote(a, 1 << 20, None, 1)),
    Row::new("client: memory by messages of 4096 bytes, commands in all slots", |a| {
        remote(a, SMALLEST, Some(Duration::ZERO), 32)
    }),
    Row::new("client: memory by messages, never answered, until the server has given up", given_up),
    Row::new("client: memory by messages, registers asked for meanwhile", queued),
];

/// vfio-user commands.
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const REGION_READ: u16 = 9;
const DMA_READ: u16 = 11;
/// The smallest transfer that the server takes.
const SMALLEST: usize = 4096;
/// Bytes of a window without a descriptor.
const WINDOW: u64 = 1 << 20;
/// Header flags of a reply.
const REPLY: u32 = 1;

fn connect(attacker: &Attacker, host: &str) -> Result<UnixStream, Failure> {
    Ok(UnixStream::connect(attacker.socket(host))?)
}

fn silent(attacker: &Attacker) -> Result<String, Failure> {
    let mut kept = Vec::new();
    let (mut made, mut refused) = (0, 0);
    for _ in attacker.rounds() {
        match connect(attacker, ATTACKER) {
            Ok(stream) => {
                kept.push(stream);
                made += 1;
            }
            Err(_) => refused += 1,
        }
        if kept.len() > 500 {
            kept.clear();
        }
    }
    Ok(format!("{made} connections, {refused} refused"))
}

/// The server refuses each of them: it has a client.
fn second(attacker: &Attacker) -> Result<String, Failure> {
    let mut made = 0;
    for _ in attacker.rounds() {
        made += u64::from(connect(attacker, VICTIM).is_ok());
    }
    Ok(format!("{made} connections"))
}

fn halves(attacker: &Attacker) -> Result<String, Failure> {
    let mut made = 0;
    for _ in attacker.rounds() {
        let Ok(mut stream) = connect(attacker, ATTACKER) else { continue };
        let message = [Raw::header(1, VERSION, 64, 0), vec![0; 7]].concat();
        // The server may be faster in closing it.
        let _ = stream.write_all(&message);
        made += 1;
    }
    Ok(format!("{made} halves"))
}

fn crumbs(attacker: &Attacker) -> Result<String, Failure> {
    let mut raw = attacker.raw();
    let mut sent = 0;
    for _ in attacker.rounds() {
        let message = raw.message(REGION_READ, &access(7, 0, 4), 0);
        for byte in message {
            raw.stream.write_all(&[byte])?;
            sent += 1;
        }
        raw.reply()?;
    }
    Ok(format!("{sent} bytes"))
}

fn rubbish(attacker: &Attacker) -> Result<String, Failure> {
    let mut made = 0;
    for i in attacker.rounds() {
        let Ok(mut stream) = connect(attacker, ATTACKER) else { continue };
        let _ = stream.write_all(&pattern(i + 1, 4096));
        made += 1;
    }
    Ok(format!("{made} connections"))
}

/// Well-formed headers, arbitrary payloads, all commands.
fn fields(attacker: &Attacker) -> Result<String, Failure> {
    let (mut sent, mut connections) = (0, 0);
    let mut seed = 1;
    for _ in attacker.rounds() {
        let mut raw = attacker.raw();
        connections += 1;
        for _ in 0..2000 {
            seed += 1;
            let noise = pattern(seed, 64);
            let command = u16::from(noise[0] % 18);
            // Not one that the server would end the connection for, and none that leaves it without an answer.
            if command == VERSION {
                continue;
            }
            let mut payload = noise[1..1 + usize::from(noise[1] % 60)].to_vec();
            // Small numbers lead further than large ones.
            payload.iter_mut().enumerate().filter(|(i, _)| i % 4 != 0).for_each(|(_, byte)| *byte &= 1);
            let message = raw.message(command, &payload, 0);
            if raw.try_send_fds(&message, &[]).is_err() || raw.reply().is_err() {
                break;
            }
            sent += 1;
        }
    }
    Ok(format!("{sent} messages, {connections} connections"))
}

fn oversized(attacker: &Attacker) -> Result<String, Failure> {
    const LEN: u32 = 256 << 20;
    let mut raw = attacker.raw();
    let zeros = vec![0; 1 << 20];
    let mut sent = 0u64;
    'attack: for _ in attacker.rounds() {
        raw.stream.write_all(&Raw::header(1, REGION_READ, LEN, 0))?;
        let mut left = (LEN - 16) as usize;
        for _ in attacker.rounds().take(256) {
            let now = left.min(zeros.len());
            if raw.stream.write_all(&zeros[..now]).is_err() {
                break 'attack;
            }
            sent += now as u64;
            left -= now;
            if left == 0 {
                raw.reply()?;
                continue 'attack;
            }
        }
        break;
    }
    Ok(format!("{} MiB", sent >> 20))
}

/// Requests whose answers fill the socket and then whatever the server keeps them in.
fn unread(attacker: &Attacker) -> Result<String, Failure> {
    let (mut sent, mut connections) = (0u64, 0);
    for _ in attacker.rounds() {
        let mut raw = attacker.raw();
        raw.stream.set_write_timeout(Some(Duration::from_millis(100)))?;
        connections += 1;
        let message = raw.message(REGION_READ, &access(0, 0, 1 << 20), 0);
        while raw.stream.write_all(&message).is_ok() && sent < u64::MAX {
            sent += 1;
        }
    }
    Ok(format!("{sent} requests, {connections} connections"))
}

/// Replies to nothing.
fn replies(attacker: &Attacker) -> Result<String, Failure> {
    let mut raw = attacker.raw();
    let mut sent = 0;
    let payload = vec![0; 1 << 20];
    for _ in attacker.rounds() {
        let message = raw.message(DMA_READ, &payload, REPLY);
        if raw.stream.write_all(&message).is_err() {
            raw = attacker.raw();
        }
        sent += 1;
    }
    Ok(format!("{sent} replies"))
}

fn versions(attacker: &Attacker) -> Result<String, Failure> {
    let (mut done, mut lost) = (0, 0);
    for _ in attacker.rounds() {
        let Ok(stream) = connect(attacker, ATTACKER) else { continue };
        drop(stream);
        let mut raw = Raw::connect(&attacker.socket(ATTACKER));
        let payload = [&[0; 4][..], b"{\"capabilities\":{\"max_msg_fds\":16}}\0"].concat();
        let message = raw.message(VERSION, &payload, 0);
        match raw.try_send_fds(&message, &[]).and_then(|()| raw.reply()) {
            Ok(_) => done += 1,
            Err(_) => lost += 1,
        }
    }
    Ok(format!("{done} times, {lost} lost"))
}

/// A client whose memory has no descriptor, with a transfer size in bytes.
fn too_small(attacker: &Attacker) -> Result<String, Failure> {
    let mut refused = 0;
    for _ in attacker.rounds() {
        let mut raw = Raw::connect(&attacker.socket(ATTACKER));
        let mut offer = vec![0; 4];
        offer.extend(format!("{{\"capabilities\":{{\"max_data_xfer_size\":{}}}}}\0", 1).bytes());
        let message = raw.message(VERSION, &offer, 0);
        raw.try_send_fds(&message, &[])?;
        match raw.reply() {
            Ok(reply) if reply.error != 0 => refused += 1,
            Ok(reply) => return Err(format!("it was accepted: {reply:?}").into()),
            Err(_) => refused += 1,
        }
    }
    Ok(format!("{refused} refused"))
}

fn without_descriptor(attacker: &Attacker, transfer: usize) -> Raw {
    let mut raw = Raw::connect(&attacker.socket(ATTACKER));
    raw.negotiate_with(&format!("{{\"max_msg_fds\":16,\"max_data_xfer_size\":{transfer}}}"));
    raw.call(DMA_MAP, &dma_map(BASE, WINDOW, 0)).ok();
    raw
}

/// The answer to a question of the server out of `memory`, which begins at [`BASE`]; what the client does not have is zero.
fn answer(question: &Reply, memory: &[u8]) -> Vec<u8> {
    let word = |at: usize| {
        question.payload.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
    };
    let (address, count) = (word(0), word(8).min(WINDOW));
    let mut payload = question.payload.get(..16).unwrap_or_default().to_vec();
    if question.command == DMA_READ {
        let at = address.wrapping_sub(BASE) as usize;
        let byte = |i: u64| memory.get(at.wrapping_add(i as usize)).copied().unwrap_or(0);
        payload.extend((0..count).map(byte));
    }
    let mut message = Raw::header(question.id, question.command, 16 + payload.len() as u32, REPLY);
    message.extend_from_slice(&payload);
    message
}

/// Sends what the socket takes now: the server may be waiting for us to read first.
fn flush(raw: &Raw, pending: &mut Vec<u8>) -> Result<(), Failure> {
    while !pending.is_empty() {
        match send(raw.stream.as_raw_fd(), pending, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Ok(sent) => drop(pending.drain(..sent)),
            Err(Errno::EAGAIN) => break,
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}

/// Whether the server has said something, or does within 5 ms.
fn is_asking(raw: &Raw) -> bool {
    let mut fds = [PollFd::new(raw.stream.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(5u8)).is_ok_and(|ready| ready > 0)
}

/// Commands in memory that the server has to ask for, and answers that take their time; `None`: there are none.
fn remote(
    attacker: &Attacker,
    transfer: usize,
    pause: Option<Duration>,
    slots: usize,
) -> Result<String, Failure> {
    let mut raw = without_descriptor(attacker, transfer);
    enable(&mut raw);
    let mut memory = vec![0; (QUEUE - BASE) as usize];
    (0..slots).for_each(|_| memory.extend(enable_hca()));
    let doorbell = [access(0, 0x18, 4), u32::MAX.to_be_bytes().to_vec()].concat();
    let (mut asked, mut rung, mut quiet) = (0, 0, 0);
    let mut pending = Vec::new();
    for _ in attacker.rounds() {
        if asked >= 1000 * rung {
            pending.extend(raw.message(10, &doorbell, NO_REPLY));
            rung += 1;
        }
        flush(&raw, &mut pending)?;
        if !is_asking(&raw) {
            quiet += 1;
            continue;
        }
        let question = raw.reply()?;
        asked += 1;
        if let Some(pause) = pause {
            std::thread::sleep(pause);
            pending.extend(answer(&question, &memory));
        }
    }
    match asked {
        0 => Err("the server asked nothing".into()),
        _ => Ok(format!("{rung} doorbells, {asked} questions, {quiet} times none for 5 ms")),
    }
}

/// A question about a command has five seconds. When they are over its slot is free, and the next doorbell brings the next question.
fn given_up(attacker: &Attacker) -> Result<String, Failure> {
    const DEADLINE: Duration = Duration::from_secs(5);
    const LATE: Duration = Duration::from_secs(12);
    let mut raw = without_descriptor(attacker, 1 << 20);
    enable(&mut raw);
    let doorbell = [access(0, 0x18, 4), 1u32.to_be_bytes().to_vec()].concat();
    let (start, mut questions) = (Instant::now(), 0);
    while start.elapsed() < LATE {
        let message = raw.message(10, &doorbell, NO_REPLY);
        raw.try_send_fds(&message, &[])?;
        std::thread::sleep(Duration::from_millis(50));
        if !is_asking(&raw) {
            continue;
        }
        raw.reply()?;
        questions += 1;
        match (questions, start.elapsed()) {
            (1, _) => {}
            (_, early) if early < DEADLINE => return Err(format!("asked again after {early:.1?}").into()),
            (_, time) => return Ok(format!("given up after {time:.1?}")),
        }
    }
    Err(format!("{questions} questions in {LATE:.0?}: the server waits for ever").into())
}

/// Registers are asked for while a question of the server is not answered.
fn queued(attacker: &Attacker) -> Result<String, Failure> {
    let mut raw = without_descriptor(attacker, 1 << 20);
    enable(&mut raw);
    ring(&mut raw)?;
    let (mut questions, mut answers) = (0, 0);
    for _ in attacker.rounds() {
        for _ in 0..500 {
            let message = raw.message(REGION_READ, &access(0, 0, 4), 0);
            raw.try_send_fds(&message, &[])?;
        }
        let mut left = 500;
        while left > 0 {
            match raw.reply()?.command {
                REGION_READ => left -= 1,
                _ => questions += 1,
            }
        }
        answers += 500;
    }
    Ok(format!("{answers} answers, {questions} questions left open"))
}
