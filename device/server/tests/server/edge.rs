//! What a client can do to others by its connection: little, and only its own adapter waits.
//!
//! The victim's registers are read while the attack goes on. How much of the attack the server took meanwhile is a count, not
//! a time.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{self, IDENTITY, Raw, Server, access, dma_map, memfd, set_irqs};
use nix::libc::{EINVAL, ENODEV};
use nix::sys::socket::{setsockopt, sockopt};

/// Sends `bytes` again and again while the victim reads its registers. Returns how much of it went per read.
fn flooded(bytes: Vec<u8>) -> u64 {
    const READS: u64 = 100;
    let server = Server::start(&["a", "b"]);
    let mut stream = server.client("a").stream;
    let mut victim = server.client("b");
    let (sent, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, stopped) = (Arc::clone(&sent), Arc::clone(&stop));
    let attack = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            for part in bytes.chunks(1 << 16) {
                if stream.write_all(part).is_err() {
                    return;
                }
                count.fetch_add(part.len() as u64, Ordering::Relaxed);
            }
        }
    });
    while sent.load(Ordering::Relaxed) < 4 << 20 {
        std::thread::yield_now();
    }
    let before = sent.load(Ordering::Relaxed);
    for _ in 0..READS {
        assert_eq!(victim.identity(), IDENTITY);
    }
    let during = sent.load(Ordering::Relaxed) - before;
    assert!(!attack.is_finished(), "the attack goes on");
    stop.store(true, Ordering::Relaxed);
    attack.join().unwrap();
    during / READS
}

/// More than a turn's bytes, and what socket buffers hold.
const MOST: u64 = 6 << 20;

#[test]
fn replies_to_nothing_hold_nobody() {
    let mut reply = Raw::header(7, 11, 1 << 20, 1);
    reply.resize(1 << 20, 0);
    let per_read = flooded(reply);
    assert!(per_read < MOST, "{per_read} bytes for each read");
}

#[test]
fn a_message_without_end_holds_nobody() {
    // What follows the first header is skipped: 4 GiB, longer than the test.
    let mut endless = Raw::header(7, 10, u32::MAX, 0);
    endless.resize(1 << 20, 0);
    let per_read = flooded(endless);
    assert!(per_read < MOST, "{per_read} bytes for each read");
}

#[test]
fn errors_hold_nobody() {
    let refused = Raw::header(7, 99, 16, 1 << 4).repeat(1 << 12);
    let per_read = flooded(refused);
    // A turn is 128 messages.
    assert!(per_read < 1 << 20, "{per_read} bytes for each read");
}

#[test]
fn transfers_smaller_than_a_page_are_refused() {
    let server = Server::start(&["a"]);
    let mut client = Raw::connect(&server.socket("a"));
    let hello = [&[0; 4][..], b"{\"capabilities\":{\"max_data_xfer_size\":1}}\0"].concat();
    assert_eq!(client.call(1, &hello).errno(), EINVAL);
    assert!(client.is_closed());
}

/// A socket whose end blocks: it has data to send that nobody reads, and is to linger. Its other end, too.
fn lingering(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let theirs = listener.accept().unwrap().0;
    setsockopt(&ours, sockopt::SndBuf, &4096).unwrap();
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 60 };
    setsockopt(&ours, sockopt::Linger, &linger).unwrap();
    ours.set_nonblocking(true).unwrap();
    let full = ours.write_all(&vec![0; 64 << 20]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    ours.set_nonblocking(false).unwrap();
    (ours, theirs)
}

/// Sends sockets as what interrupts are to be told to, and closes them, so that the server's are the last. The server does
/// not take the message before that: it waits for a reply to be read.
fn hand_over(client: &mut Raw, sockets: Vec<TcpStream>) -> std::io::Result<i32> {
    let long = client.message(9, &access(0, 0, 1 << 20), 0);
    client.stream.write_all(&long)?;
    let count = sockets.len() as u32;
    let message = client.message(8, &set_irqs(0x24, 2, 0, count, &[]), 0);
    let fds: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
    client.try_send_fds(&message, &fds)?;
    drop(sockets);
    client.reply()?;
    Ok(client.reply()?.errno())
}

/// Threads of this process, the server's among them, that close what blocks.
fn closers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|c| c == "closer\n"))
        .count()
}

#[test]
fn a_descriptor_that_will_not_close_holds_nobody() {
    let server = Server::start(&["a", "b"]);
    let mut victim = server.client("b");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Those who are accepted take little, so that something is left to be sent.
    setsockopt(&listener, sockopt::RcvBuf, &4096).unwrap();
    let mut client = server.client("a");
    let (socket, peer) = lingering(&listener);
    assert_eq!(hand_over(&mut client, vec![socket]).unwrap(), ENODEV);
    for _ in 0..100 {
        assert_eq!(victim.identity(), IDENTITY);
        assert_eq!(client.identity(), IDENTITY);
    }
    assert!(closers() > 0, "it is still being closed");
    // With too many of them the adapter takes no client any more, until they are gone; others do.
    let mut held = vec![peer];
    let mut sent = 0;
    let closed = loop {
        let (sockets, peers): (Vec<_>, Vec<_>) = (0..16).map(|_| lingering(&listener)).unzip();
        held.extend(peers);
        sent += 16;
        if hand_over(&mut client, sockets).is_err() || sent > 2000 {
            break sent;
        }
    };
    assert!((100..1000).contains(&closed), "{closed} descriptors");
    assert!(Raw::connect(&server.socket("a")).is_closed());
    assert_eq!(victim.identity(), IDENTITY);
    drop(held);
    let mut hello = [0; 1];
    loop {
        let mut again = Raw::connect(&server.socket("a"));
        let message = again.message(1, &[&[0; 4][..], b"{}\0"].concat(), 0);
        if again.stream.write_all(&message).is_ok() && again.stream.read(&mut hello).is_ok_and(|n| n == 1) {
            break;
        }
    }
}

#[test]
fn only_memory_and_events_are_taken() {
    let server = Server::start(&["a"]);
    let mut client = server.client("a");
    let memory = memfd(0x1000);
    let event = common::eventfd();
    let connect = set_irqs(0x24, 2, 0, 1, &[]);
    assert_eq!(client.call_fds(8, &connect, &[memory.as_raw_fd()]).errno(), EINVAL);
    assert_eq!(client.call_fds(2, &dma_map(0, 0x1000, 0), &[event.as_raw_fd()]).errno(), EINVAL);
    let (pipe, _writer) = nix::unistd::pipe().unwrap();
    assert_eq!(client.call_fds(8, &connect, &[pipe.as_raw_fd()]).errno(), ENODEV);
    client.call_fds(8, &connect, &[event.as_raw_fd()]).ok();
}

/// Clients that come and go all the time.
#[test]
fn connections_hold_nobody() {
    let server = Server::start(&["a", "b"]);
    let mut victim = server.client("b");
    let (stop, path) = (Arc::new(AtomicBool::new(false)), server.socket("a"));
    let stopped = Arc::clone(&stop);
    let attack = std::thread::spawn(move || {
        let mut connections = 0u64;
        while !stopped.load(Ordering::Relaxed) {
            drop(UnixStream::connect(&path));
            connections += 1;
        }
        connections
    });
    for _ in 0..200 {
        assert_eq!(victim.identity(), IDENTITY);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(attack.join().unwrap() > 0);
}
