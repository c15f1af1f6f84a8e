//! Clients that break the rules: proper errors, the stream in step, the server alive.

use std::io::Write;
use std::os::fd::AsRawFd;

use crate::common::{IDENTITY, Raw, Server, access, dma_map, dma_unmap, eventfd, memfd, set_irqs};
use memmap2::{MmapMut, MmapOptions};
use nix::libc::{EEXIST, EINVAL, EMSGSIZE, ENOTSUP, EOVERFLOW, EPERM};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

#[test]
fn errors_are_replies_and_the_stream_stays_in_step() {
    let server = Server::start(&["a"]);
    let mut c = server.client("a");
    let fd = memfd(0x1000);
    let fd = fd.as_raw_fd();
    let max = u64::MAX;
    let cases: Vec<(u16, Vec<u8>, Vec<i32>, i32)> = vec![
        // Regions: none such, past the end, overflowing, too long, data missing.
        (9, access(9, 0, 4), vec![], EINVAL),
        (9, access(u32::MAX, 0, 4), vec![], EINVAL),
        (9, access(1, 0, 4), vec![], EINVAL),
        (9, access(7, 4093, 4), vec![], EINVAL),
        (9, access(0, max, 4), vec![], EINVAL),
        (9, access(0, 0, u32::MAX), vec![], EINVAL),
        (9, access(0, 0, (1 << 20) + 1), vec![], EINVAL),
        (9, vec![0; 15], vec![], EINVAL),
        (10, access(7, 0, 4), vec![], EINVAL),
        (10, access(0, max - 1, 4), vec![], EINVAL),
        (15, max.to_ne_bytes().to_vec(), vec![], EINVAL),
        (15, 1u64.to_ne_bytes().to_vec(), vec![], EINVAL),
        // DMA windows: empty, overflowing, beyond the file, unknown flags.
        (2, dma_map(0, 0, 0), vec![], EINVAL),
        (2, dma_map(max, 2, 0), vec![], EOVERFLOW),
        (2, dma_map(0, 0x2000, 0), vec![fd], EINVAL),
        (2, dma_map(0, 0x1000, max), vec![fd], EINVAL),
        (2, dma_map(0, 0x1000, 0), vec![fd, fd], EINVAL),
        (2, vec![0xff; 32], vec![fd], EINVAL),
        (2, vec![0; 31], vec![fd], EINVAL),
        (3, dma_unmap(0, 1, max), vec![], 0),
        (3, dma_unmap(0, 2, max), vec![], EINVAL),
        (3, dma_unmap(2, 0x1000, 0), vec![], EINVAL),
        (3, dma_unmap(1, 0, 0x1000), vec![], EINVAL),
        (3, vec![], vec![], EINVAL),
        // Interrupts: none such, overflowing, contradictory, descriptors missing.
        (8, set_irqs(0x21, 5, 0, 1, &[]), vec![], EINVAL),
        (8, set_irqs(0x21, 2, 63, 2, &[]), vec![], EINVAL),
        (8, set_irqs(0x21, 2, u32::MAX, 2, &[]), vec![], EINVAL),
        (8, set_irqs(0x21, 0, 0, 1, &[]), vec![], EINVAL),
        (8, set_irqs(0x27, 2, 0, 1, &[]), vec![], EINVAL),
        (8, set_irqs(0x39, 2, 0, 1, &[]), vec![], EINVAL),
        (8, set_irqs(0xffff_ffff, 2, 0, 1, &[]), vec![], EINVAL),
        (8, set_irqs(0x22, 2, 0, 4, &[1, 1]), vec![], EINVAL),
        (8, set_irqs(0x24, 2, 0, 2, &[]), vec![fd], EINVAL),
        (8, set_irqs(0x21, 2, 0, 1, &[]), vec![fd], EINVAL),
        (8, set_irqs(0x0c, 2, 0, 1, &[]), vec![fd], ENOTSUP),
        // Information about what does not exist.
        (5, vec![0xff; 32], vec![], EINVAL),
        (7, vec![0xff; 16], vec![], EINVAL),
        (4, vec![], vec![], EINVAL),
        // Descriptors where none belong; commands that are not offered.
        (9, access(7, 0, 4), vec![fd], EINVAL),
        (6, vec![0; 16], vec![], ENOTSUP),
        (11, vec![0; 16], vec![], ENOTSUP),
        (14, vec![], vec![], ENOTSUP),
        (16, vec![0; 8], vec![], ENOTSUP),
        (0, vec![], vec![], ENOTSUP),
        (0xffff, vec![1, 2, 3], vec![], ENOTSUP),
    ];
    for (command, payload, fds, errno) in cases {
        let reply = c.call_fds(command, &payload, &fds);
        if errno == 0 {
            reply.ok();
        } else {
            assert_eq!(reply.errno(), errno, "command {command} {payload:x?}");
        }
        assert_eq!(c.identity(), IDENTITY, "after command {command} {payload:x?}");
    }
}

#[test]
fn no_reply_means_no_reply_even_for_errors() {
    let server = Server::start(&["a"]);
    let mut c = server.client("a");
    let good = [access(7, 0x3c, 1), vec![0x5a]].concat();
    for payload in [good, access(7, 9999, 1), vec![]] {
        let message = c.message(10, &payload, 1 << 4);
        c.stream.write_all(&message).unwrap();
    }
    assert_eq!(c.identity(), IDENTITY);
    assert_eq!(c.region_read(7, 0x3c, 1).ok()[16], 0x5a);
}

#[test]
fn oversized_messages_are_skipped_and_answered() {
    let server = Server::start(&["a"]);
    let mut c = server.client("a");
    let size = 3 << 20;
    let mut message = Raw::header(77, 10, size, 0);
    message.resize(size as usize, 0xaa);
    c.stream.write_all(&message).unwrap();
    let reply = c.reply().unwrap();
    assert_eq!((reply.id, reply.command), (77, 10));
    assert_eq!(reply.errno(), EMSGSIZE);
    assert_eq!(c.identity(), IDENTITY);
}

#[test]
fn messages_may_arrive_in_crumbs_with_their_descriptors() {
    let server = Server::start(&["a"]);
    let mut c = server.client("a");
    let event = eventfd();
    let connect = c.message(8, &set_irqs(0x24, 2, 7, 1, &[]), 0);
    // The descriptor comes with the first byte; other messages are glued in front and behind.
    let before = c.message(10, &[access(7, 0x3c, 1), vec![1]].concat(), 1 << 4);
    c.stream.write_all(&before).unwrap();
    c.send_fds(&connect[..1], &[event.as_raw_fd()]);
    for byte in &connect[1..] {
        c.stream.write_all(&[*byte]).unwrap();
    }
    assert!(c.reply().unwrap().ok().is_empty());
    c.call(8, &set_irqs(0x21, 2, 7, 1, &[])).ok();
    assert_eq!(event.read().unwrap(), 1);
    // Bool data: only where the byte is set.
    c.call(8, &set_irqs(0x22, 2, 6, 3, &[1, 0, 1])).ok();
    assert!(event.read().is_err());
    c.call(8, &set_irqs(0x22, 2, 6, 3, &[0, 1, 0])).ok();
    assert_eq!(event.read().unwrap(), 1);
}

#[test]
fn too_many_descriptors_are_refused_and_closed() {
    let server = Server::start(&["a"]);
    let mut c = server.client("a");
    let event = eventfd();
    let fds = vec![event.as_raw_fd(); 40];
    let reply = c.call_fds(8, &set_irqs(0x24, 2, 0, 40, &[]), &fds);
    assert_eq!(reply.errno(), EINVAL);
    assert_eq!(c.identity(), IDENTITY);
}

#[test]
fn several_writes_in_one_message() {
    let server = Server::start(&["a"]);
    let mut c = server.client("a");
    let write = |offset: u64, count: u32, value: u8| {
        let mut out = access(7, offset, count);
        out.extend_from_slice(&[value; 8]);
        out
    };
    let mut payload = 2u64.to_ne_bytes().to_vec();
    payload.extend(write(0x3c, 1, 0x77));
    payload.extend(write(0x0c, 1, 0x10));
    let reply = c.call(15, &payload).ok();
    assert_eq!(reply, 2u64.to_ne_bytes());
    assert_eq!(c.region_read(7, 0x3c, 1).ok()[16], 0x77);
    assert_eq!(c.region_read(7, 0x0c, 1).ok()[16], 0x10);
    // One bad write spoils the message before anything is done.
    let mut payload = 2u64.to_ne_bytes().to_vec();
    payload.extend(write(0x3c, 1, 0x11));
    payload.extend(write(0x0c, 9, 0));
    assert_eq!(c.call(15, &payload).errno(), EINVAL);
    assert_eq!(c.region_read(7, 0x3c, 1).ok()[16], 0x77);
}

#[test]
fn versions_are_refused_politely() {
    let server = Server::start(&["a"]);
    for payload in [
        &b""[..],
        b"\x01\x00\x00\x00{}\0",
        b"\x00\x00\x00\x00{\0",
        b"\x00\x00\x00\x00[1]\0",
        b"\x00\x00\x00\x00{\"capabilities\":{\"max_data_xfer_size\":\"x\"}}\0",
        b"\x00\x00\x00\x00\xff\xfe\xfd",
    ] {
        let mut c = Raw::connect(&server.socket("a"));
        assert_eq!(c.call(1, payload).errno(), EINVAL, "{payload:?}");
        assert!(c.is_closed());
    }
    // Any other command first.
    let mut c = Raw::connect(&server.socket("a"));
    assert_eq!(c.call(9, &access(7, 0, 4)).errno(), EINVAL);
    assert!(c.is_closed());
    // Twice.
    let mut c = server.client("a");
    assert_eq!(c.call(1, b"\0\0\0\0").errno(), EINVAL);
    assert!(c.is_closed());
    assert_eq!(server.client("a").identity(), IDENTITY);
}

#[test]
fn a_stream_out_of_step_is_closed() {
    let server = Server::start(&["a"]);
    for size in [0, 1, 15] {
        let mut c = server.client("a");
        c.stream.write_all(&Raw::header(1, 9, size, 0)).unwrap();
        assert!(c.is_closed());
    }
    // Half a message, then silence for ever: the next client gets the device.
    let mut c = server.client("a");
    c.stream.write_all(&Raw::header(1, 9, 32, 0)[..7]).unwrap();
    drop(c);
    assert_eq!(server.client("a").identity(), IDENTITY);
}

#[test]
fn windows_do_not_overlap_and_unmap_everything() {
    let server = Server::start(&["a"]);
    let mut c = server.client("a");
    let file = memfd(0x4000);
    let fd = [file.as_raw_fd()];
    c.call_fds(2, &dma_map(0x1000, 0x2000, 0), &fd).ok();
    assert_eq!(c.call_fds(2, &dma_map(0x2000, 0x1000, 0), &fd).errno(), EEXIST);
    c.call(3, &dma_unmap(2, 0, 0)).ok();
    c.call_fds(2, &dma_map(0x2000, 0x1000, 0), &fd).ok();
    // A range that ends at 2^64.
    let unmap = dma_unmap(0, 0x1000, 0u64.wrapping_sub(0x1000));
    assert_eq!(c.call(3, &unmap).ok(), unmap);
    c.call_fds(2, &dma_map(0x2000, 0x1000, 0), &fd).ok();
}

#[test]
fn private_guest_memory_is_refused() {
    let server = Server::start(&["a"]);
    let mut c = server.client("a");
    let file = memfd(0x1000);
    // SAFETY: nobody else uses the file.
    let _private: MmapMut = unsafe { MmapOptions::new().map_copy(&file) }.unwrap();
    let reply = c.call_fds(2, &dma_map(0, 0x1000, 0), &[file.as_raw_fd()]);
    assert_eq!(reply.errno(), EPERM);
    // The client is turned away, so that nobody waits for DMA that can't work.
    assert_eq!(c.region_read(7, 0, 4).errno(), EPERM);
    assert_eq!(c.call(4, &[0; 16]).errno(), EPERM);
    drop(c);
    let mut c = server.client("a");
    assert_eq!(c.identity(), IDENTITY);
    // SAFETY: nobody else uses the file.
    let _shared = unsafe { MmapOptions::new().map_mut(&file) }.unwrap();
    c.call_fds(2, &dma_map(0, 0x1000, 0), &[file.as_raw_fd()]).ok();
}

#[test]
fn a_second_client_is_refused_while_one_is_attached() {
    let server = Server::start(&["a"]);
    let mut first = server.client("a");
    let mut second = Raw::connect(&server.socket("a"));
    assert!(second.is_closed());
    assert_eq!(first.identity(), IDENTITY);
    drop(first);
    assert_eq!(server.client("a").identity(), IDENTITY);
    // One that never speaks does not hold the place.
    let silent = Raw::connect(&server.socket("a"));
    assert_eq!(server.client("a").identity(), IDENTITY);
    drop(silent);
}

#[test]
fn a_client_that_does_not_read_stalls_nobody() {
    let server = Server::start(&["a", "b"]);
    let mut lazy = server.client("a");
    lazy.stream.set_nonblocking(true).unwrap();
    // Ask for a megabyte at a time and never read: until the server stops taking requests.
    let request = lazy.message(9, &access(0, 0, 1 << 20), 0);
    let (mut blocked, mut sent) = (0, 0);
    while blocked < 3 {
        match lazy.stream.write(&request[sent..]) {
            Ok(n) => sent = (sent + n) % request.len(),
            Err(_) => {
                assert_eq!(server.client("b").identity(), IDENTITY);
                blocked += 1;
            }
        }
    }
    assert_eq!(server.ask("ping")["ok"], true);
    drop(lazy);
    assert_eq!(server.client("a").identity(), IDENTITY);
}

/// Random messages and random bytes against one server: it lives and serves the next client.
#[test]
fn rubbish_never_harms_the_server() {
    let server = Server::start(&["a", "b"]);
    let neighbour = std::cell::RefCell::new(server.client("b"));
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        // Small numbers hit more code than random ones.
        prop::collection::vec(0u8..4, 0..80),
        (0u32..10, any::<u64>(), 0u32..5000).prop_map(|(r, o, c)| access(r, o, c)),
        (0u32..10, 0u64..0x2000, 0u32..64).prop_map(|(r, o, c)| {
            let mut out = access(r, o, c);
            out.resize(out.len() + c as usize, 0x5a);
            out
        }),
        (any::<u64>(), any::<u64>(), 0u64..0x3000).prop_map(|(i, s, o)| dma_map(i, s, o)),
        (0u64..0x4000, 0u64..0x4000, 0u64..0x1000).prop_map(|(i, s, o)| dma_map(i, s, o)),
        (0u32..4, any::<u64>(), any::<u64>()).prop_map(|(f, i, s)| dma_unmap(f, i, s)),
        (0u32..64, 0u32..6, 0u32..70, 0u32..70).prop_map(|(f, i, s, c)| set_irqs(f, i, s, c, &[1; 8])),
    ];
    let message = (
        0u16..18,
        payload,
        prop_oneof![8 => Just(0u32), 1 => Just(16), 1 => any::<u32>()],
        prop_oneof![12 => Just(None), 1 => any::<u32>().prop_map(Some)],
        0usize..4,
    );
    let session = (any::<bool>(), prop::collection::vec(message, 1..24));
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let file = memfd(0x2000);
    TestRunner::new_with_rng(config, rng)
        .run(&session, |(negotiated, messages)| {
            let mut c = Raw::connect(&server.socket("a"));
            if negotiated {
                c.negotiate();
            }
            for (command, payload, flags, size, fds) in messages {
                let mut bytes = c.message(command, &payload, flags);
                if let Some(size) = size {
                    bytes[4..8].copy_from_slice(&size.to_ne_bytes());
                }
                let fds = vec![file.as_raw_fd(); fds];
                // The server may have hung up already.
                let control = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
                let _ = nix::sys::socket::sendmsg::<()>(
                    c.stream.as_raw_fd(),
                    &[std::io::IoSlice::new(&bytes)],
                    if fds.is_empty() { &[] } else { &control },
                    nix::sys::socket::MsgFlags::MSG_NOSIGNAL,
                    None,
                );
            }
            drop(c);
            prop_assert_eq!(server.client("a").identity(), IDENTITY);
            prop_assert_eq!(neighbour.borrow_mut().identity(), IDENTITY);
            Ok(())
        })
        .unwrap();
}
