//! A server in a thread, and a client that can say anything.
#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hca_server::engine::{Engine, Role};
use hca_server::front_end::FrontEnd;
use hca_server::topology::{Hca, Topology};
use hca_server::vfio_user::VfioUser;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// A running server with its run directory; stopped and checked when dropped.
pub struct Server {
    pub dir: PathBuf,
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Server {
    /// Serves a topology of one adapter on each of the named hosts.
    pub fn start(hosts: &[&str]) -> Server {
        let text: String =
            hosts.iter().map(|h| format!("[[host]]\nname = \"{h}\"\n[[host.hca]]\n")).collect();
        Server::serve(&text, &Role::default())
    }

    /// Serves a part of a topology.
    pub fn serve(topology: &str, role: &Role) -> Server {
        let topology = Topology::parse("test", topology).unwrap();
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("softhca-it-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let stop_in = stop.as_fd().try_clone_to_owned().unwrap();
        let control = dir.join("control.sock");
        let sockets = dir.clone();
        // Built here, so that the sockets listen when `serve` returns.
        let listen = |hca: &Hca| -> anyhow::Result<Box<dyn FrontEnd>> {
            Ok(Box::new(VfioUser::listen(&sockets.join(&hca.socket))?))
        };
        let mut engine = Engine::new(&topology, role, listen, Some(&control), stop_in).unwrap();
        let thread = std::thread::spawn(move || engine.run().unwrap());
        Server { dir, stop, thread: Some(thread) }
    }

    pub fn socket(&self, host: &str) -> PathBuf {
        self.dir.join(format!("{host}-hca0.sock"))
    }

    /// A client that has negotiated its version.
    pub fn client(&self, host: &str) -> Raw {
        let mut raw = Raw::connect(&self.socket(host));
        raw.negotiate();
        raw
    }

    /// Takes a cable out, or puts it in.
    pub fn link(&self, state: &str, at: &str) -> Result<(), String> {
        let request = serde_json::json!({"cmd": "link", "at": at, "state": state});
        let answer = hca_server::control::ask(&self.dir.join("control.sock"), &request);
        answer.map(drop).map_err(|e| e.to_string())
    }

    /// Asks the control socket.
    pub fn ask(&self, cmd: &str) -> serde_json::Value {
        hca_server::control::query(&self.dir.join("control.sock"), cmd).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.write(1).unwrap();
        let result = self.thread.take().unwrap().join();
        if std::thread::panicking() {
            return;
        }
        result.expect("the server must not panic");
        assert!(!self.dir.join("control.sock").exists(), "socket not removed");
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}

/// A reply as it came.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub id: u16,
    pub command: u16,
    pub flags: u32,
    pub error: u32,
    pub payload: Vec<u8>,
}

impl Reply {
    pub fn ok(self) -> Vec<u8> {
        assert_eq!((self.flags, self.error), (1, 0), "{self:?}");
        self.payload
    }

    pub fn errno(self) -> i32 {
        assert_eq!(self.flags, 1 | 1 << 5, "{self:?}");
        assert!(self.payload.is_empty());
        self.error as i32
    }
}

/// A client without manners.
pub struct Raw {
    pub stream: UnixStream,
    next_id: u16,
}

impl Raw {
    pub fn connect(path: &Path) -> Raw {
        let stream = UnixStream::connect(path).unwrap();
        // A guard against hanging tests, not a measurement.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Raw { stream, next_id: 1 }
    }

    pub fn negotiate(&mut self) {
        let mut payload = vec![0, 0, 0, 0];
        payload.extend_from_slice(b"{\"capabilities\":{\"max_msg_fds\":16}}\0");
        self.call(1, &payload).ok();
    }

    pub fn header(id: u16, command: u16, size: u32, flags: u32) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&id.to_ne_bytes());
        out.extend_from_slice(&command.to_ne_bytes());
        out.extend_from_slice(&size.to_ne_bytes());
        out.extend_from_slice(&flags.to_ne_bytes());
        out.extend_from_slice(&0u32.to_ne_bytes());
        out
    }

    pub fn message(&mut self, command: u16, payload: &[u8], flags: u32) -> Vec<u8> {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let mut out = Raw::header(id, command, 16 + payload.len() as u32, flags);
        out.extend_from_slice(payload);
        out
    }

    pub fn call(&mut self, command: u16, payload: &[u8]) -> Reply {
        self.call_fds(command, payload, &[])
    }

    pub fn call_fds(&mut self, command: u16, payload: &[u8], fds: &[RawFd]) -> Reply {
        let message = self.message(command, payload, 0);
        self.send_fds(&message, fds);
        let reply = self.reply().unwrap();
        assert_eq!(reply.id, self.next_id.wrapping_sub(1));
        assert_eq!(reply.command, command);
        reply
    }

    pub fn send_fds(&mut self, bytes: &[u8], fds: &[RawFd]) {
        let rights = [ControlMessage::ScmRights(fds)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        let iov = [IoSlice::new(bytes)];
        let sent =
            sendmsg::<()>(self.stream.as_raw_fd(), &iov, control, MsgFlags::MSG_NOSIGNAL, None).unwrap();
        if sent < bytes.len() {
            self.stream.write_all(&bytes[sent..]).unwrap();
        }
    }

    pub fn reply(&mut self) -> std::io::Result<Reply> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let u32_at = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; u32_at(4) as usize - 16];
        self.stream.read_exact(&mut payload)?;
        Ok(Reply {
            id: u16::from_ne_bytes([head[0], head[1]]),
            command: u16::from_ne_bytes([head[2], head[3]]),
            flags: u32_at(8),
            error: u32_at(12),
            payload,
        })
    }

    /// True if the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut sink = [0; 4096];
        loop {
            match self.stream.read(&mut sink) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return e.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    pub fn region_read(&mut self, region: u32, offset: u64, count: u32) -> Reply {
        self.call(9, &access(region, offset, count))
    }

    pub fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Reply {
        let mut payload = access(region, offset, data.len() as u32);
        payload.extend_from_slice(data);
        self.call(10, &payload)
    }

    /// Vendor and device id by way of configuration space: shows that the stream is in step.
    pub fn identity(&mut self) -> u32 {
        let payload = self.region_read(7, 0, 4).ok();
        u32::from_le_bytes(payload[16..].try_into().unwrap())
    }
}

pub const IDENTITY: u32 = 0x1013_15b3;

pub fn access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    let mut out = offset.to_ne_bytes().to_vec();
    out.extend_from_slice(&region.to_ne_bytes());
    out.extend_from_slice(&count.to_ne_bytes());
    out
}

pub fn dma_map(iova: u64, size: u64, offset: u64) -> Vec<u8> {
    let mut out = 32u32.to_ne_bytes().to_vec();
    out.extend_from_slice(&3u32.to_ne_bytes());
    for n in [offset, iova, size] {
        out.extend_from_slice(&n.to_ne_bytes());
    }
    out
}

pub fn dma_unmap(flags: u32, iova: u64, size: u64) -> Vec<u8> {
    let mut out = 24u32.to_ne_bytes().to_vec();
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&iova.to_ne_bytes());
    out.extend_from_slice(&size.to_ne_bytes());
    out
}

pub fn set_irqs(flags: u32, index: u32, start: u32, count: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for n in [20 + data.len() as u32, flags, index, start, count] {
        out.extend_from_slice(&n.to_ne_bytes());
    }
    out.extend_from_slice(data);
    out
}

pub fn memfd(len: u64) -> std::fs::File {
    let fd = nix::sys::memfd::memfd_create(c"test", nix::sys::memfd::MFdFlags::empty()).unwrap();
    let file = std::fs::File::from(fd);
    file.set_len(len).unwrap();
    file
}

pub fn eventfd() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()
}
