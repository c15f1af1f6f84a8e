//! The adapter's own accesses to guest memory, by way of a command: they happen only where and
//! when they may.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::common::{IDENTITY, Raw, Server, dma_map, dma_unmap, memfd};

const BASE: u64 = 0x1_0000_0000;
const SIZE: u64 = 0x10000;
/// Command queue: 32 entries of 64 bytes.
const QUEUE: u64 = BASE + 0x1000;
const ENABLE_HCA: u32 = 0x104;

const COMMAND: u64 = 4;
const MEMORY_AND_BUS_MASTER: [u8; 2] = [6, 0];
const MEMORY_ONLY: [u8; 2] = [2, 0];

/// Last byte of entry 0: bit 0 says that the adapter owns it.
fn ownership(memory: &File) -> u8 {
    let mut byte = [0];
    memory.read_exact_at(&mut byte, QUEUE - BASE + 63).unwrap();
    byte[0]
}

/// Puts ENABLE_HCA into entry 0 and rings.
fn ring(client: &mut Raw, memory: &File) {
    let mut entry = [0; 64];
    entry[0] = 7;
    entry[4..8].copy_from_slice(&16u32.to_be_bytes());
    entry[16..20].copy_from_slice(&(ENABLE_HCA << 16).to_be_bytes());
    entry[56..60].copy_from_slice(&16u32.to_be_bytes());
    entry[63] = 1;
    memory.write_all_at(&entry, QUEUE - BASE).unwrap();
    client.region_write(0, 0x18, &1u32.to_be_bytes()).ok();
}

/// The client can't take away what it has handed over.
#[test]
fn memory_is_sealed() {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let server = Server::start(&["a"]);
    let mut client = server.client("a");
    let memory = File::from(memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    memory.set_len(SIZE).unwrap();
    client.call_fds(2, &dma_map(BASE, SIZE, 0), &[memory.as_raw_fd()]).ok();
    assert!(memory.set_len(0).is_err());
    assert_eq!(client.identity(), IDENTITY);
}

fn setup(server: &Server) -> (Raw, File) {
    let mut client = server.client("a");
    let memory = memfd(SIZE);
    client.call_fds(2, &dma_map(BASE, SIZE, 0), &[memory.as_raw_fd()]).ok();
    client.region_write(7, COMMAND, &MEMORY_AND_BUS_MASTER).ok();
    client.region_write(0, 0x10, &((QUEUE >> 32) as u32).to_be_bytes()).ok();
    client.region_write(0, 0x14, &(QUEUE as u32).to_be_bytes()).ok();
    (client, memory)
}

/// Waits until the adapter gives the entry back; only a broken one takes a minute.
fn executed(memory: &File) -> bool {
    (0..6000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        ownership(memory) & 1 == 0
    })
}

/// Waits until the adapter has failed to reach memory.
fn failed(server: &Server, more_than: u64) -> u64 {
    for _ in 0..6000 {
        let errors = server.ask("metrics")["hcas"][0]["dma_errors"].as_u64().unwrap();
        if errors > more_than {
            return errors;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the adapter did not even try");
}

#[test]
fn a_command_is_executed() {
    let server = Server::start(&["a"]);
    let (mut client, memory) = setup(&server);
    ring(&mut client, &memory);
    assert!(executed(&memory));
    assert_eq!(ownership(&memory), 0);
    let mut status = [0xff];
    memory.read_exact_at(&mut status, QUEUE - BASE + 32).unwrap();
    assert_eq!(status, [0]);
}

#[test]
fn nothing_happens_after_unmap() {
    let server = Server::start(&["a"]);
    let (mut client, memory) = setup(&server);
    client.call(3, &dma_unmap(0, BASE, SIZE)).ok();
    ring(&mut client, &memory);
    failed(&server, 0);
    assert_eq!(ownership(&memory), 1);
    assert_eq!(client.identity(), IDENTITY);
}

#[test]
fn nothing_happens_without_bus_mastering() {
    let server = Server::start(&["a"]);
    let (mut client, memory) = setup(&server);
    client.region_write(7, COMMAND, &MEMORY_ONLY).ok();
    ring(&mut client, &memory);
    let errors = failed(&server, 0);
    assert_eq!(ownership(&memory), 1);
    client.region_write(7, COMMAND, &MEMORY_AND_BUS_MASTER).ok();
    ring(&mut client, &memory);
    assert!(executed(&memory));
    // A reset takes bus mastering away again.
    client.call(13, &[]).ok();
    client.region_write(0, 0x10, &((QUEUE >> 32) as u32).to_be_bytes()).ok();
    client.region_write(0, 0x14, &(QUEUE as u32).to_be_bytes()).ok();
    ring(&mut client, &memory);
    failed(&server, errors);
    assert_eq!(ownership(&memory), 1);
}

#[test]
fn two_adapters_keep_to_their_own_memory() {
    let server = Server::start(&["a", "b"]);
    let (mut client, memory) = setup(&server);
    let mut other = server.client("b");
    let foreign = memfd(SIZE);
    other.call_fds(2, &dma_map(BASE, SIZE, 0), &[foreign.as_raw_fd()]).ok();
    ring(&mut client, &memory);
    assert!(executed(&memory));
    let mut bytes = vec![0; SIZE as usize];
    foreign.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|&b| b == 0));
}
