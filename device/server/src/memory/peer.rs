//! Finds out whether the client shares the memory it hands over.
//!
//! QEMU with `share=off` passes a descriptor all the same, but its own mapping is private: the
//! guest writes to copies of the pages, and DMA through the descriptor misses them silently. The
//! server sees that only in the client's list of mappings.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock, Weak};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::makedev;

use super::file::FileId;
use crate::sandbox::maps;

/// Text of mappings that is read: some 40,000 lines. QEMU has a few hundred.
const MOST_TEXT: u64 = 4 << 20;

/// The process at the other end of a connection. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Peer(Arc<Process>);

#[derive(Debug, Default)]
struct Process {
    pid: Option<i32>,
    /// Its connection, as long as it has one.
    socket: Weak<UnixStream>,
    /// Its mappings when it was asked for them, once: that can take as long as it likes.
    mappings: OnceLock<Mappings>,
}

/// The files that a process has mapped.
type Mappings = BTreeMap<FileId, Sharing>;

/// How a process has mapped a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// At least one mapping is shared.
    Shared,
    /// There are mappings, and all are private.
    Private,
    /// No mapping, or it can't be known (other user, other PID namespace).
    Unknown,
}

impl Peer {
    /// The process connected to `socket`.
    pub fn of(socket: &Arc<UnixStream>) -> Peer {
        let pid = getsockopt(socket, PeerCredentials).ok().map(|c| c.pid()).filter(|&pid| pid > 0);
        Peer(Arc::new(Process { pid, socket: Arc::downgrade(socket), mappings: OnceLock::new() }))
    }

    /// Whether it is known how the process has mapped its files, so that nobody has to wait for that.
    pub(crate) fn is_known(&self) -> bool {
        self.0.pid.is_none() || self.0.mappings.get().is_some()
    }

    /// Finds out how the process has mapped its files. The process can make that take long: it is for a thread that nobody
    /// waits for.
    pub(crate) fn look(&self) {
        let _ = self.0.mappings.set(self.0.read());
    }

    /// How it has mapped its files stays unknown, if it is not known by now.
    pub(crate) fn give_up(&self) {
        let _ = self.0.mappings.set(Mappings::new());
    }

    /// How the process had mapped the file when it was asked.
    pub(super) fn sharing(&self, file: FileId) -> Sharing {
        if !self.is_known() {
            self.look();
        }
        self.0.mappings.get().and_then(|all| all.get(&file)).copied().unwrap_or(Sharing::Unknown)
    }
}

impl Process {
    fn open(&self) -> io::Result<File> {
        let (Some(pid), Some(socket)) = (self.pid, self.socket.upgrade()) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        maps::open(pid, socket.as_fd())
    }

    fn read(&self) -> Mappings {
        match self.open() {
            Ok(maps) => mappings_in(BufReader::new(maps.take(MOST_TEXT))),
            Err(e) => {
                tracing::debug!("mappings of the client can't be read, share=on not checked: {e}");
                Mappings::new()
            }
        }
    }
}

/// The files in the text of `/proc/PID/maps` (proc(5)).
fn mappings_in(text: impl BufRead) -> Mappings {
    let mut all = Mappings::new();
    for line in text.lines().map_while(Result::ok) {
        // address-range perms offset dev inode path
        let mut words = line.split_ascii_whitespace();
        let perms = words.nth(1).unwrap_or_default();
        let dev = words.nth(1).and_then(|dev| dev.split_once(':'));
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        let dev = dev.and_then(|(major, minor)| Some(makedev(number(major)?, number(minor)?)));
        let ino = words.next().and_then(|i| i.parse::<u64>().ok()).filter(|ino| *ino != 0);
        let (Some(dev), Some(ino)) = (dev, ino) else { continue };
        let sharing = all.entry(FileId { dev, ino }).or_insert(Sharing::Unknown);
        match perms.as_bytes().get(3) {
            Some(b's') => *sharing = Sharing::Shared,
            Some(b'p') if *sharing == Sharing::Unknown => *sharing = Sharing::Private,
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f3c5c000000-7f3c7c000000 rw-p 00000000 00:01 2051                       /memfd:m0 (deleted)
7f3c7c000000-7f3c9c000000 rw-s 00000000 00:01 2052                       /memfd:m1 (deleted)
7f3c9c000000-7f3c9c001000 rw-p 00000000 00:01 2052                       /memfd:m1 (deleted)
55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]
7f3ca0000000-7f3ca0001000 r--p 00000000 fd:10 2051                       /usr/lib/x.so
garbage
";

    fn file(major: u64, minor: u64, ino: u64) -> FileId {
        FileId { dev: makedev(major, minor), ino }
    }

    #[test]
    fn maps_are_understood() {
        let all = mappings_in(MAPS.as_bytes());
        let look = |id| all.get(&id).copied().unwrap_or(Sharing::Unknown);
        assert_eq!(look(file(0, 1, 2051)), Sharing::Private);
        assert_eq!(look(file(0, 1, 2052)), Sharing::Shared);
        assert_eq!(look(file(0xfd, 0x10, 2051)), Sharing::Private);
        assert_eq!(look(file(0, 1, 9)), Sharing::Unknown);
        assert_eq!(look(file(8, 1, 2051)), Sharing::Unknown);
    }

    #[test]
    fn unknown_peer_is_not_accused() {
        assert_eq!(Peer::default().sharing(file(0, 1, 2051)), Sharing::Unknown);
    }
}
