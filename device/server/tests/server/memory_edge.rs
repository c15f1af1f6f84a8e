//! What a client's memory files can do to others: nothing.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::common::{IDENTITY, Server, access, dma_map, memfd};
use nix::libc::{ENODEV, ENOSPC};

const BASE: u64 = 0x1_0000_0000;
const SIZE: u64 = 0x10000;

/// The memory that holds the command queue is taken away, in the ways there are: the adapter's access would be a SIGBUS.
#[test]
fn a_file_that_is_shortened_ends_its_client_only() {
    let server = Server::start(&["a", "b"]);
    let mut other = server.client("b");
    for left in [0, 0x1000] {
        let mut client = server.client("a");
        let memory = memfd(SIZE);
        client.call_fds(2, &dma_map(BASE, SIZE, 0), &[memory.as_raw_fd()]).ok();
        client.region_write(7, 4, &[6, 0]).ok();
        client.region_write(0, 0x10, &((BASE + 0x1000) >> 32).to_be_bytes()[4..]).ok();
        client.region_write(0, 0x14, &((BASE + 0x1000) as u32).to_be_bytes()).ok();
        memory.write_all_at(&[1], 0x103f).unwrap();
        memory.set_len(left).unwrap();
        let doorbell = [&access(0, 0x18, 4)[..], &1u32.to_be_bytes()].concat();
        let doorbell = client.message(10, &doorbell, 0);
        client.stream.write_all(&doorbell).unwrap();
        assert!(client.is_closed());
        assert_eq!(other.identity(), IDENTITY);
    }
    assert_eq!(server.client("a").identity(), IDENTITY);
}

/// Mappings are what the heap needs, too: one client's files end long before the system's.
#[test]
fn thousands_of_files_are_refused_and_others_map() {
    let server = Server::start(&["a", "b"]);
    let mut greedy = server.client("a");
    let mut refused = 0;
    for i in 0..5000u64 {
        let memory = memfd(0x1000);
        let reply = greedy.call_fds(2, &dma_map(i * 0x1000, 0x1000, 0), &[memory.as_raw_fd()]);
        if reply.error != 0 {
            assert_eq!(reply.errno(), ENOSPC);
            refused += 1;
        }
    }
    assert!((1..4000).contains(&refused), "{refused} of 5000 were refused");
    let mut other = server.client("b");
    let memory = memfd(SIZE);
    other.call_fds(2, &dma_map(BASE, SIZE, 0), &[memory.as_raw_fd()]).ok();
    assert_eq!(greedy.identity(), IDENTITY);
}

/// Address space is what the heap needs, too.
#[test]
fn sparse_files_take_no_address_space_from_others() {
    let server = Server::start(&["a", "b"]);
    let mut greedy = server.client("a");
    let huge = 1 << 44;
    for i in 0..60u64 {
        let memory = memfd(huge);
        greedy.call_fds(2, &dma_map(i * 0x1000, 0x1000, huge - 0x1000), &[memory.as_raw_fd()]).ok();
    }
    let memory = memfd(huge);
    assert_eq!(greedy.call_fds(2, &dma_map(BASE, huge, 0), &[memory.as_raw_fd()]).errno(), ENOSPC);
    let mut other = server.client("b");
    let memory = memfd(1 << 40);
    other.call_fds(2, &dma_map(BASE, 1 << 40, 0), &[memory.as_raw_fd()]).ok();
}

/// An access to a page of such a file would wait for whoever serves it.
#[test]
fn files_that_are_not_memory_are_refused() {
    let server = Server::start(&["a"]);
    let mut client = server.client("a");
    let file = std::fs::File::open("/proc/version").unwrap();
    assert_eq!(client.call_fds(2, &dma_map(BASE, 0x1000, 0), &[file.as_raw_fd()]).errno(), ENODEV);
    assert_eq!(client.identity(), IDENTITY);
}
