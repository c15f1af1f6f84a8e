//! A side network between the guests of a run: Ethernet for their TCP connections, beside the fabric under test.
//!
//! Each QEMU sends its frames as datagrams to the hub's Unix socket; the hub passes each on to all others. No
//! frame leaves this process and its children.

use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::guest::SideLink;

/// Larger than any frame of a guest: virtio-net can send segments of 64 KiB unsplit.
const FRAME: usize = 0x1_2000;
const CHECK_END: Duration = Duration::from_millis(200);
/// A guest that doesn't take a frame for so long loses it.
const SEND_LIMIT: Duration = Duration::from_millis(100);
const NETWORK: u32 = 0x0a00_0000;
const PREFIX: u8 = 16;

/// The hub's thread and the names of its sockets. Dropping it ends the network.
pub struct Hub {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    folder: PathBuf,
}

impl Hub {
    /// A hub for guests 0 to `count` - 1, with its sockets in `folder`.
    pub fn start(folder: &Path, count: usize) -> Result<Self> {
        let path = hub_path(folder);
        let socket = UnixDatagram::bind(&path).with_context(|| format!("cannot bind {}", path.display()))?;
        socket.set_read_timeout(Some(CHECK_END))?;
        socket.set_write_timeout(Some(SEND_LIMIT))?;
        let guests: Vec<PathBuf> = (0..count).map(|index| guest_path(folder, index)).collect();
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let thread = std::thread::spawn(move || {
            let mut frame = vec![0; FRAME];
            while !ended.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut frame) else { continue };
                let Some(frame) = frame.get(..length) else { continue };
                for guest in guests.iter().filter(|guest| from.as_pathname() != Some(guest)) {
                    // A guest that is off, or slow, misses frames, as on any network.
                    let _ = socket.send_to(frame, guest);
                }
            }
        });
        Ok(Self { end, thread: Some(thread), folder: folder.to_path_buf() })
    }

    /// The network's end in guest number `index`.
    pub fn link(&self, index: usize) -> SideLink {
        let number = index as u32 + 1;
        let [.., high, low] = number.to_be_bytes();
        SideLink {
            address: format!("{}/{PREFIX}", address(index)),
            // Locally administered, with QEMU's usual prefix.
            mac: format!("52:54:00:00:{high:02x}:{low:02x}"),
            local: guest_path(&self.folder, index),
            hub: hub_path(&self.folder),
        }
    }
}

/// The address of guest number `index`.
pub fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::from(NETWORK + index as u32 + 1)
}

fn hub_path(folder: &Path) -> PathBuf {
    folder.join("hub.net")
}

fn guest_path(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("{index}.net"))
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_reach_all_others_and_not_the_sender() {
        let folder = std::env::temp_dir().join(format!("hca-vm-hub-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let hub = Hub::start(&folder, 3).unwrap();
        let guests: Vec<_> = (0..3).map(|index| UnixDatagram::bind(hub.link(index).local).unwrap()).collect();
        guests[1].send_to(b"frame", hub.link(1).hub).unwrap();
        let mut buffer = [0; 16];
        for index in [0, 2] {
            let count = guests[index].recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..count], b"frame");
        }
        drop(hub);
        guests[1].set_nonblocking(true).unwrap();
        assert!(guests[1].recv(&mut buffer).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn addresses() {
        assert_eq!(address(0), Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(address(299), Ipv4Addr::new(10, 0, 1, 44));
    }
}
