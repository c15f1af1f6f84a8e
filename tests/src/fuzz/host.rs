//! A host that writes what it likes into the ring of an adapter's PCI Express link, and goes.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hca_model::{HcaId, Ps};
use hca_server::sim::Partition;
use hca_server::topology::Topology;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::feed::Feed;

/// Entries of a ring, and bytes of each.
const ENTRIES: usize = 64;
const ENTRY: usize = 256;
const RING: usize = ENTRIES * ENTRY;
/// Offsets in an entry: time, owner and type, payload.
const TIME: usize = 48;
const OWNER: usize = 63;
const PAYLOAD: usize = 64;
/// Messages of a host, of the base protocol, and none.
const KINDS: [u8; 12] = [0x60, 0x60, 0x61, 0x61, 0x65, 0x65, 0x64, 0x62, 0x63, 0x00, 0x01, 0x40];
/// Registers: of the command queue, health, doorbells of a UAR page, and beyond all.
const OFFSETS: [u64; 10] = [0, 0x10, 0x14, 0x18, 0x1fc, 0x1010, 0x2800, 0x3000, 0x1ff_fffc, u64::MAX - 3];
const LENGTHS: [u16; 8] = [0, 1, 4, 8, 64, 192, 193, u16::MAX];
/// Its last time, in ps, and when the simulation ends.
const LAST: u64 = 60_000_000;
const END: Ps = Ps::from_us(50);
/// Two adapters, one of which has such a host.
const TOPOLOGY: &str = "[fabric]\ntraining_ms = 0\n[[host]]\nname = \"a\"\n[[host.hca]]\nsimbricks = \"connect:host.pci\"\n\
    [[host]]\nname = \"b\"\n[[host.hca]]\n[[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n";

/// The first message of who listens, whose rings lie one behind the other, and its part of the upper protocol.
fn intro() -> Vec<u8> {
    let words =
        [1, 3, 0, ENTRY, ENTRIES, RING, ENTRY, ENTRIES, 2, 80].map(|word| (word as u64).to_le_bytes());
    words.into_iter().flatten().chain([0; 4]).collect()
}

fn write_entries(memory: &File, feed: &mut Feed<'_>) {
    let mut time = 140_000u64;
    for place in 0..ENTRIES - 1 {
        let mut entry = [0; ENTRY];
        let mut put = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
        let over = feed.is_empty();
        let kind = if over { 0 } else { feed.pick(&KINDS) };
        put(0, &feed.u64().to_le_bytes());
        put(8, &feed.pick(&OFFSETS).to_le_bytes());
        put(16, &feed.pick(&LENGTHS).to_le_bytes());
        put(18, &[feed.pick(&[0, 0, 0, 0, 0, 0, 2, 9])]);
        put(PAYLOAD, feed.bytes(32));
        time = match feed.u8() {
            _ if over => LAST,
            0 => time.wrapping_sub(1),
            step => time.wrapping_add(u64::from(step) * 1000),
        };
        put(TIME, &time.to_le_bytes());
        put(OWNER, &[0x80 | kind]);
        let written = memory.write_all_at(&entry, (place * ENTRY) as u64);
        written.unwrap_or_else(|why| panic!("the ring can't be written: {why}"));
        if over {
            return;
        }
    }
}

/// Lets the host write, and the adapter read; `folder` is for the socket.
fn meet(memory: &File, folder: &Path) {
    let listener =
        UnixListener::bind(folder.join("host.pci")).unwrap_or_else(|why| panic!("no socket: {why}"));
    let topology = Topology::parse("fuzz", TOPOLOGY).unwrap_or_else(|why| panic!("{why}"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let Ok((mut socket, _)) = listener.accept() else { return };
            let descriptors = [memory.as_raw_fd()];
            let control = [ControlMessage::ScmRights(&descriptors)];
            let intro = intro();
            let sent = sendmsg::<()>(
                socket.as_raw_fd(),
                &[IoSlice::new(&intro)],
                &control,
                MsgFlags::MSG_NOSIGNAL,
                None,
            );
            assert_eq!(sent, Ok(intro.len()));
            // What the adapter says of itself: 32 bytes, 4, and 119.
            let mut said = [0; 155];
            assert!(socket.read_exact(&mut said).is_ok());
        });
        let partition = Partition::new(&topology, None, folder, Duration::from_secs(60));
        let mut partition = partition.unwrap_or_else(|why| panic!("the link does not come up: {why:#}"));
        let _ = partition.run_until(END, &|| Ps::ZERO);
        assert_eq!(partition.world().diagnoses(HcaId(1)), 0, "the other adapter has noticed something");
        assert_eq!(partition.world().unforeseen_reads(HcaId(0)), 0);
    });
}

/// What a host sends to an adapter, arbitrarily.
///
/// # Panics
/// If the adapter does, or another has noticed something.
pub fn host(data: &[u8]) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("softhca-fuzz-host-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap_or_else(|why| panic!("no folder: {why}"));
    let memory =
        memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC).unwrap_or_else(|why| panic!("no memory: {why}"));
    let memory = File::from(memory);
    assert!(memory.set_len(2 * RING as u64).is_ok());
    write_entries(&memory, &mut Feed::new(data));
    meet(&memory, &folder);
    let _ = std::fs::remove_dir_all(&folder);
}
