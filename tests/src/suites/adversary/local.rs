//! Others on the machine: who floods the log, takes descriptors, or sits at the control socket; and what the server makes of
//! files that are not as they should be.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use hca_server::control;

use super::stage::{ATTACKER, Attacker, Failure, Setting, Stage};
use super::{Case, Row};
use crate::raw::{dma_map, eventfd, memfd, set_irqs};

/// The cases with a victim.
pub const ROWS: &[Row] = &[
    Row::new("anybody: messages that are warned about, as fast as they go", warned),
    Row::new("anybody: the same, and nobody reads the server's messages", warned)
        .after("mkfifo '@/pipe'\nexec 2<>'@/pipe'"),
    Row::new("anybody: all descriptors of the server used up", used_up).after("ulimit -n 64"),
    Row::new("local user: 32 control connections that say nothing", idle_control),
    Row::new("local user: questions to the control socket, as fast as they go", asked),
    Row::new("local user: questions whose answers are not read", unread),
    Row::new("local user: links of the topology listed 1000 at a time", listed).switched(),
];

/// The most that clients of the control socket can be at a time.
const CONTROL_CLIENTS: usize = 32;
const DMA_MAP: u16 = 2;
const SET_IRQS: u16 = 8;
const NO_REPLY: u32 = 1 << 4;

/// Each maps a window over another one.
fn warned(attacker: &Attacker) -> Result<String, Failure> {
    let mut raw = attacker.raw();
    let file = memfd(4096);
    let map = dma_map(0, 4096, 0);
    raw.call_fds(DMA_MAP, &map, &[file.as_raw_fd()]).ok();
    let messages: Vec<u8> = (0..100).flat_map(|_| raw.message(DMA_MAP, &map, NO_REPLY)).collect();
    let mut sent = 0;
    raw.stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    for _ in attacker.rounds() {
        if raw.stream.write_all(&messages).is_err() {
            return Err("the server does not read messages any more".into());
        }
        sent += 100;
    }
    Ok(format!("{sent} messages"))
}

/// One client brings more event descriptors than the server may have; others connect meanwhile.
fn used_up(attacker: &Attacker) -> Result<String, Failure> {
    let mut raw = attacker.raw();
    let events: Vec<_> = (0..16).map(|_| eventfd()).collect();
    let fds: Vec<RawFd> = events.iter().map(|event| std::os::fd::AsFd::as_fd(event).as_raw_fd()).collect();
    let mut refused = 0;
    for start in [0, 16, 32, 48] {
        let message = raw.message(SET_IRQS, &set_irqs(0x24, 2, start, 16, &[]), 0);
        raw.try_send_fds(&message, &fds)?;
        refused += u64::from(raw.reply().map_or(1, |reply| reply.error) != 0);
    }
    let mut waiting = Vec::new();
    for _ in attacker.rounds() {
        waiting.push(UnixStream::connect(attacker.socket(ATTACKER))?);
        waiting.push(UnixStream::connect(attacker.control())?);
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(format!("{refused} of 4 messages refused, {} connections", waiting.len()))
}

/// The operator has a question meanwhile.
fn idle_control(attacker: &Attacker) -> Result<String, Failure> {
    let mut idle = Vec::new();
    for _ in 0..CONTROL_CLIENTS {
        idle.push(UnixStream::connect(attacker.control())?);
    }
    std::thread::sleep(Duration::from_millis(100));
    let answer = control::query(&attacker.control(), "ping");
    attacker.rounds().for_each(|_| std::thread::sleep(Duration::from_millis(10)));
    match answer {
        Ok(_) => Ok(format!("{} connections, the operator was answered", idle.len())),
        Err(why) => Err(format!("the operator is locked out: {why:#}").into()),
    }
}

fn asked(attacker: &Attacker) -> Result<String, Failure> {
    let mut asked = 0;
    let question = "{\"cmd\":\"stat\"}\n".repeat(20);
    let mut clients = Vec::new();
    for _ in 0..16 {
        let client = UnixStream::connect(attacker.control())?;
        client.set_nonblocking(true)?;
        clients.push(client);
    }
    let mut sink = vec![0; 1 << 20];
    for _ in attacker.rounds() {
        for client in &mut clients {
            asked += u64::from(client.write(question.as_bytes()).is_ok());
            while client.read(&mut sink).is_ok_and(|n| n > 0) {}
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(format!("{asked} times 20 questions"))
}

fn unread(attacker: &Attacker) -> Result<String, Failure> {
    let question = "{\"cmd\":\"stat\"}\n".repeat(20);
    let (mut sent, mut connections) = (0, 0);
    let mut clients: Vec<UnixStream> = Vec::new();
    for _ in attacker.rounds() {
        while clients.len() < CONTROL_CLIENTS - 1 {
            let client = UnixStream::connect(attacker.control())?;
            client.set_nonblocking(true)?;
            clients.push(client);
            connections += 1;
        }
        clients.retain_mut(|client| match client.write(question.as_bytes()) {
            Ok(_) => {
                sent += 1;
                true
            }
            Err(why) => why.kind() == std::io::ErrorKind::WouldBlock,
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(format!("{sent} times 20 questions, {connections} connections"))
}

fn listed(attacker: &Attacker) -> Result<String, Failure> {
    let mut client = UnixStream::connect(attacker.control())?;
    let question = "{\"cmd\":\"links\"}\n".repeat(1000);
    let mut sink = vec![0; 1 << 16];
    let mut lines = 0;
    for _ in attacker.rounds() {
        client.write_all(question.as_bytes())?;
        let mut left = 1000;
        while left > 0 {
            let n = client.read(&mut sink)?;
            if n == 0 {
                return Err("the server hung up".into());
            }
            let now = sink[..n].iter().filter(|byte| **byte == b'\n').count();
            left -= now.min(left);
            lines += now;
        }
    }
    Ok(format!("{lines} answers"))
}

/// What is wrong with a server's files; empty if nothing.
pub type Check = fn() -> Result<String, Failure>;

/// The cases about files: no victim is needed.
pub const FILES: &[(&str, Check)] = &[
    ("local user: sockets of a server with umask 0", umask),
    ("local user: a trace file that is a link to somebody's file", || link("--trace")),
    ("local user: a capture file that is a link to somebody's file", || link("--pcap")),
    ("local user: a tunnel's key that everybody may read", key),
];

/// Those of them whose names have the text.
pub fn cases(chosen: &str) -> Vec<Case> {
    let checks = FILES.iter().filter(|(name, _)| name.contains(chosen));
    checks
        .map(|(name, check)| Case::check(*name, check().unwrap_or_else(|why| format!("not tried: {why}"))))
        .collect()
}

fn mode(path: &Path) -> Result<u32, Failure> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
}

/// Whoever may connect to a socket has an adapter, or may take cables out.
fn umask() -> Result<String, Failure> {
    let stage = Stage::set(&Setting { shell: "umask 0", ..Setting::default() })?;
    let place = stage.attacker();
    let mut open = Vec::new();
    for path in [place.control(), place.socket(ATTACKER)] {
        let mode = mode(&path)?;
        if mode & 0o077 != 0 {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            open.push(format!("{name} has mode {mode:o}"));
        }
    }
    Ok(open.join(", "))
}

/// What others may put where the server writes.
fn link(option: &'static str) -> Result<String, Failure> {
    const PRECIOUS: &str = "somebody's file";
    let shell = "printf %s \"somebody's file\" >'@/precious'\nln -s '@/precious' '@/output'";
    let arguments: &'static [&'static str] = match option {
        "--trace" => &["--trace", "@/output"],
        _ => &["--pcap", "@/output"],
    };
    let stage = Stage::set(&Setting { shell, arguments, ..Setting::default() });
    // A server that does not start has not written: that is as good.
    let Ok(stage) = stage else { return Ok(String::new()) };
    let text = std::fs::read(stage.dir().join("precious"))?;
    Ok(if text == PRECIOUS.as_bytes() { String::new() } else { "the file was written over".to_owned() })
}

/// A key that others know is none.
fn key() -> Result<String, Failure> {
    let setting = Setting {
        shell: "printf '%064d\\n' 1 >'@/key'\nchmod 666 '@/key'",
        arguments: &["--process", "left", "--tunnel-key-file", "@/key"],
        topology: Some(
            "[fabric]\nsubnet_manager = \"none\"\n\
             [[process]]\nname = \"left\"\naddress = \"127.0.0.1:47111\"\n\
             [[process]]\nname = \"right\"\naddress = \"127.0.0.1:47112\"\n\
             [[host]]\nname = \"a\"\nprocess = \"left\"\n[[host.hca]]\n\
             [[host]]\nname = \"v\"\nprocess = \"right\"\n[[host.hca]]\n\
             [[link]]\nbetween = [\"a/hca0\", \"v/hca0\"]\n",
        ),
        ..Setting::default()
    };
    match Stage::set(&setting) {
        Ok(_) => Ok("the server took a key of mode 666".to_owned()),
        Err(why) if why.to_string().contains("key") => Ok(String::new()),
        Err(why) => Err(why),
    }
}
