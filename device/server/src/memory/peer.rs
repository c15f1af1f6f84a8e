//! Finds out whether the client shares the memory it hands over.
//!
//! QEMU with `share=off` passes a descriptor all the same, but its own mapping is private: the
//! guest writes to copies of the pages, and DMA through the descriptor misses them silently. The
//! server sees that only in the client's list of mappings.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{major, minor};

use super::file::FileId;

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    pid: Option<i32>,
}

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
    pub fn of(socket: impl AsFd) -> Peer {
        let pid = getsockopt(&socket.as_fd(), PeerCredentials).ok().map(|c| c.pid()).filter(|&pid| pid > 0);
        Peer { pid }
    }

    /// How the process has mapped the file.
    pub(super) fn sharing(&self, file: FileId) -> Sharing {
        let Some(pid) = self.pid else {
            return Sharing::Unknown;
        };
        match File::open(format!("/proc/{pid}/maps")) {
            Ok(maps) => sharing_in(BufReader::new(maps), file),
            Err(e) => {
                tracing::debug!("mappings of the client can't be read, share=on not checked: {e}");
                Sharing::Unknown
            }
        }
    }
}

/// Looks for mappings of `file` in the text of `/proc/PID/maps` (proc(5)).
fn sharing_in(maps: impl BufRead, file: FileId) -> Sharing {
    let device = format!("{:02x}:{:02x}", major(file.dev), minor(file.dev));
    let mut sharing = Sharing::Unknown;
    for line in maps.lines().map_while(Result::ok) {
        // address-range perms offset dev inode path
        let mut words = line.split_ascii_whitespace();
        let perms = words.nth(1).unwrap_or_default();
        let dev = words.nth(1).unwrap_or_default();
        let inode = words.next().and_then(|i| i.parse::<u64>().ok());
        if dev != device || inode != Some(file.ino) {
            continue;
        }
        match perms.as_bytes().get(3) {
            Some(b's') => return Sharing::Shared,
            Some(b'p') => sharing = Sharing::Private,
            _ => {}
        }
    }
    sharing
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::makedev;

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
        let look = |id| sharing_in(MAPS.as_bytes(), id);
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
