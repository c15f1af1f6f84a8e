//! What a server in its sandbox still does for its clients.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use memmap2::MmapOptions;
use nix::libc::{ENODEV, EPERM};
use serde_json::json;

use crate::Tests;
use crate::common::{IDENTITY, access, dma_map, dma_unmap, eventfd, memfd, set_irqs};
use crate::server::Server;

pub(crate) const TESTS: Tests = &[
    ("serving::every_thread_and_the_helper_are_inside", every_thread_and_the_helper_are_inside),
    ("serving::memory_interrupts_and_what_is_taken_away", memory_interrupts_and_what_is_taken_away),
    ("serving::private_memory_is_seen", private_memory_is_seen),
    ("serving::foreign_descriptors_are_closed", foreign_descriptors_are_closed),
    ("serving::connections_without_a_descriptor_are_ended", connections_without_a_descriptor_are_ended),
    ("serving::links_captures_and_the_end", links_captures_and_the_end),
    ("serving::tunnels_join", tunnels_join),
    ("serving::frames_leave", frames_leave),
    ("serving::connections_begin_again_and_again", connections_begin_again_and_again),
    ("serving::the_helper_ends_with_its_server", the_helper_ends_with_its_server),
];

const ONE: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n";
const TWO: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n\
                   [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n";
const BASE: u64 = 0x1_0000_0000;
const SIZE: u64 = 0x10000;
/// Longer than anything takes on a slow and busy machine; only a test that hangs meets it.
const HANG: Duration = Duration::from_secs(60);

/// Waits until something is so.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG;
    while !is() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn value(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}")).trim().to_owned()
}

/// Processes that `pid` has started.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn every_thread_and_the_helper_are_inside() {
    let server = Server::start("inside", ONE, &[]);
    // A thread that was started later: it can't be got rid of while the socket that it closes lingers, and mapping starts one.
    let mut client = server.client("a");
    client.call_fds(2, &dma_map(BASE, SIZE, 0), &[memfd(SIZE).as_raw_fd()]).ok();
    let helpers = children(server.pid());
    assert_eq!(helpers.len(), 1, "{helpers:?}");
    for pid in [server.pid(), helpers[0]] {
        let mut seen = 0;
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else { continue };
            seen += 1;
            assert_eq!((&*value(&status, "Seccomp"), &*value(&status, "NoNewPrivs")), ("2", "1"), "{status}");
            // One right of a server that root started is left to the helper (linux/capability.h): CAP_SYS_PTRACE.
            let left = if pid == helpers[0] { 1 << 19 } else { 0 };
            for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
                let set = u64::from_str_radix(&value(&status, set), 16).unwrap();
                assert_eq!(set & !left, 0, "{status}");
            }
        }
        assert!(seen > 0);
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert!(core.split_whitespace().skip(4).take(2).eq(["0", "0"]), "{core}");
    }
    // What a copy of this process holds would stay open as long as the helper.
    let held = std::fs::read_dir(format!("/proc/{}/fd", helpers[0])).unwrap().count();
    assert_eq!(held, 4, "three standard ones and its socket");
}

fn memory_interrupts_and_what_is_taken_away() {
    let server = Server::start("memory", TWO, &[]);
    let mut other = server.client("b");
    for round in 0..3 {
        let mut client = server.client("a");
        let memory = memfd(SIZE);
        let event = eventfd();
        let connect = set_irqs(0x24, 2, 0, 1, &[]);
        client.call_fds(8, &connect, &[event.as_raw_fd()]).ok();
        client.call(8, &set_irqs(0x21, 2, 0, 1, &[])).ok();
        until("an interrupt", || event.read().is_ok());
        client.call_fds(2, &dma_map(BASE, SIZE, 0), &[memory.as_raw_fd()]).ok();
        client.region_write(7, 4, &[6, 0]).ok();
        client.region_write(0, 0x10, &((BASE + 0x1000) >> 32).to_be_bytes()[4..]).ok();
        client.region_write(0, 0x14, &((BASE + 0x1000) as u32).to_be_bytes()).ok();
        memory.write_all_at(&[1], 0x103f).unwrap();
        if round == 0 {
            // A command that is none is answered, in memory: the entry is software's again.
            let doorbell = [&access(0, 0x18, 4)[..], &1u32.to_be_bytes()].concat();
            client.call(10, &doorbell).ok();
            until("an answer", || {
                let mut status = [0];
                memory.read_exact_at(&mut status, 0x103f).unwrap();
                status[0] & 1 == 0
            });
            client.call(3, &dma_unmap(0, BASE, SIZE)).ok();
            continue;
        }
        memory.set_len(0).unwrap();
        let doorbell = [&access(0, 0x18, 4)[..], &1u32.to_be_bytes()].concat();
        let doorbell = client.message(10, &doorbell, 0);
        client.stream.write_all(&doorbell).unwrap();
        assert!(client.is_closed());
        assert_eq!(other.identity(), IDENTITY);
    }
    assert_eq!(server.client("a").identity(), IDENTITY);
}

/// Only the helper can see it: landlock keeps the server from other processes' mappings.
fn private_memory_is_seen() {
    let server = Server::start("private", ONE, &[]);
    let mut client = server.client("a");
    let private = memfd(SIZE);
    // SAFETY: nobody else touches this file.
    let _mapped = unsafe { MmapOptions::new().map_copy(&private) }.unwrap();
    let shared = memfd(SIZE);
    // SAFETY: as above.
    let _mapped_shared = unsafe { MmapOptions::new().map_mut(&shared) }.unwrap();
    assert_eq!(client.call_fds(2, &dma_map(BASE, SIZE, 0), &[private.as_raw_fd()]).errno(), EPERM);
    drop(client);
    let mut client = server.client("a");
    client.call_fds(2, &dma_map(BASE, SIZE, 0), &[shared.as_raw_fd()]).ok();
}

fn foreign_descriptors_are_closed() {
    let server = Server::start("foreign", ONE, &[]);
    let mut client = server.client("a");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    for fd in [listener.as_raw_fd(), near.as_raw_fd()] {
        assert_eq!(client.call_fds(2, &dma_map(BASE, SIZE, 0), &[fd]).errno(), ENODEV);
    }
    drop(near);
    // Nobody has its other end any more.
    far.set_read_timeout(Some(HANG)).unwrap();
    assert_eq!((&far).read(&mut [0]).unwrap(), 0);
    assert_eq!(client.identity(), IDENTITY);
}

fn connections_without_a_descriptor_are_ended() {
    let server = Server::start("few", TWO, &["few"]);
    let mut victim = server.client("b");
    let control = server.dir.join("control.sock");
    let held: Vec<_> = (0..5).map(|_| UnixStream::connect(&control).unwrap()).collect();
    // The last one finds none left, and is told so.
    let mut last = held.last().unwrap();
    last.set_read_timeout(Some(HANG)).unwrap();
    assert_eq!(last.read(&mut [0]).unwrap(), 0);
    for _ in 0..3 {
        assert!(server.silent("a").is_closed());
        assert_eq!(victim.identity(), IDENTITY);
    }
    drop(held);
    until("there are descriptors again", || {
        let mut client = server.silent("a");
        let hello = client.message(1, b"\0\0\0\0{}\0", 0);
        client.try_send_fds(&hello, &[]).is_ok() && client.reply().is_ok()
    });
}

fn links_captures_and_the_end() {
    let mut server = Server::start("links", TWO, &["trace", "pcap"]);
    let up = |server: &Server| server.ask("links")["links"][0]["up"].clone();
    until("up", || up(&server) == json!(true));
    let request = json!({"cmd": "link", "at": "a", "state": "down"});
    hca_server::control::ask(&server.dir.join("control.sock"), &request).unwrap();
    until("down", || up(&server) == json!(false));
    assert!(server.stop().success());
    assert!(!server.dir.join("control.sock").exists() && !server.dir.join("a-hca0.sock").exists());
    let trace = std::fs::read_to_string(server.dir.join("trace")).unwrap();
    assert!(serde_json::from_str::<serde_json::Value>(&trace).unwrap().is_object() || trace.starts_with('['));
    // The block type of a section header (pcapng).
    let pcap = std::fs::read(server.dir.join("pcap")).unwrap();
    assert_eq!(pcap[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
}

fn tunnels_join() {
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let [left, right] = sockets.map(|socket| socket.local_addr().unwrap());
    let text = format!(
        "[fabric]\nsubnet_manager = \"none\"\ntunnel_timeout_ms = 1000\n\
         [[process]]\nname = \"left\"\naddress = \"{left}\"\n[[process]]\nname = \"right\"\naddress = \"{right}\"\n\
         [[host]]\nname = \"a\"\nprocess = \"left\"\n[[host.hca]]\n\
         [[host]]\nname = \"b\"\nprocess = \"right\"\n[[host.hca]]\n\
         [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n"
    );
    let left = Server::start("left", &text, &["process=left"]);
    let mut right = Server::start("right", &text, &["process=right"]);
    for server in [&left, &right] {
        until("both are there", || server.ask("links")["links"][0]["up"] == json!(true));
    }
    assert!(right.stop().success());
    until("the other has ended", || left.ask("links")["links"][0]["up"] == json!(false));
}

fn ethernet(outside: &str) -> String {
    format!(
        "[fabric]\ntraining_ms = 0\n[[host]]\nname = \"a\"\n[[host.hca]]\nport_type = \"eth\"\n\
         [[outside]]\nname = \"net\"\n{outside}\n[[link]]\nbetween = [\"a/hca0\", \"net\"]\n"
    )
}

/// Sockets that wait are made before; what comes is taken, and their files are removed at the end.
fn frames_leave() {
    for keys in [
        "kind = \"dgram\"\nlocal = \"unix:ours\"\nremote = \"unix:theirs\"",
        "kind = \"stream\"\nlisten = \"unix:ours\"",
    ] {
        let mut server = Server::start("leave", &ethernet(keys), &[]);
        let ours = server.dir.join("ours");
        let mut frame = vec![0, 0, 0, 60];
        frame.resize(64, 1);
        let _kept = if keys.contains("dgram") {
            let peer = UnixDatagram::unbound().unwrap();
            peer.send_to(&frame[4..], &ours).unwrap();
            None
        } else {
            let mut peer = UnixStream::connect(&ours).unwrap();
            peer.write_all(&frame).unwrap();
            Some(peer)
        };
        until("the frame is there", || {
            server.ask("stat")["outsides"][0]["frames_received"] == json!(1)
                && server.ask("links")["links"][0]["peer"] == json!(true)
        });
        assert!(server.stop().success());
        assert!(!ours.exists());
    }
}

/// The one thing that is opened in the sandbox.
fn connections_begin_again_and_again() {
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in ["unix:theirs".to_owned(), at.to_string()] {
        let keys = format!("kind = \"stream\"\nconnect = \"{address}\"\nreconnect_ms = 10");
        let mut server = Server::start("connect", &ethernet(&keys), &[]);
        for round in 1..=2 {
            let path = server.dir.join("theirs");
            let _ = std::fs::remove_file(&path);
            let _peer: Box<dyn Read> = match address.starts_with("unix:") {
                true => Box::new(UnixListener::bind(path).unwrap().accept().unwrap().0),
                false => Box::new(TcpListener::bind(at).unwrap().accept().unwrap().0),
            };
            until("it is counted", || server.ask("stat")["outsides"][0]["connections"] == json!(round));
        }
        assert!(server.stop().success());
    }
}

fn the_helper_ends_with_its_server() {
    let mut server = Server::start("helper", ONE, &[]);
    let helper = children(server.pid())[0];
    server.kill();
    until("the helper ends", || {
        // A process that nobody has asked about is a zombie until somebody does.
        let status = std::fs::read_to_string(format!("/proc/{helper}/status")).unwrap_or_default();
        status.is_empty() || value(&status, "State").starts_with('Z')
    });
}
