//! Over real sockets, with a peer that says anything.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::poll::{PollFd, ppoll};
use nix::sys::time::TimeSpec;

use super::frame::{LONGEST, MESSAGE};
use super::*;
use crate::topology::Topology;

/// Longer than anything takes on a slow and busy machine; only a test that hangs meets it.
const HANG: Duration = Duration::from_secs(60);

/// A run directory, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("softhca-out-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn topology(folder: &Path, outside: &str) -> Topology {
    let text = format!(
        "[[host]]\nname = \"a\"\n[[host.hca]]\nport_type = \"eth\"\n[[outside]]\nname = \"net\"\n{outside}\n\
         [[link]]\nbetween = [\"net\", \"a/hca0\"]\n"
    );
    let mut topology = Topology::parse("t", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    topology.put_sockets_into(folder);
    topology
}

fn open(folder: &Path, outside: &str) -> Outsides {
    let topology = topology(folder, outside);
    Outsides::open(&topology.part(None).unwrap()).unwrap().unwrap()
}

/// Waits as the engine does, and lets the ends have their turn, until `done` says so of what came.
fn run_until(ends: &mut Outsides, mut done: impl FnMut(&mut Outsides, Vec<Event>) -> bool) {
    let deadline = Instant::now() + HANG;
    loop {
        assert!(Instant::now() < deadline, "never: {ends:?}");
        let ready = {
            let mut fds = Vec::new();
            ends.watch(&mut |fd, events| fds.push(PollFd::new(fd, events)));
            let most = Duration::from_millis(20);
            let timeout = ends.sleep().unwrap_or(most).min(most);
            ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None).unwrap();
            fds.iter().any(|fd| fd.revents().is_some_and(|events| !events.is_empty()))
        };
        let (events, more) = ends.run(ready);
        assert_eq!(more, ends.sleep() == Some(Duration::ZERO) && ends.more);
        let events = events.into_iter().map(|(link, event)| {
            assert_eq!(link, 0);
            event
        });
        let events = events.collect();
        ends.flush();
        if done(ends, events) {
            return;
        }
    }
}

fn wait_for(ends: &mut Outsides, wanted: Event) {
    run_until(ends, |_, events| events.contains(&wanted));
}

fn counts(ends: &Outsides) -> Counts {
    ends.ends[&0].counts
}

fn frame(fill: u8, length: usize) -> Vec<u8> {
    vec![fill; length]
}

/// A free port, for a moment.
fn free() -> std::net::SocketAddr {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn datagrams_of_unix_sockets() {
    let folder = Folder::new();
    let mut ends = open(&folder.0, "kind = \"dgram\"\nlocal = \"unix:ours\"\nremote = \"unix:theirs\"");
    wait_for(&mut ends, Event::Light(true));
    assert_eq!(std::fs::metadata(folder.path("ours")).unwrap().mode() & 0o777, 0o600);
    // Nobody is there: frames are lost, as on any Ethernet.
    ends.send(0, frame(1, 64));
    ends.flush();
    assert_eq!(counts(&ends).unsent, 1);
    for _ in 0..2 {
        // The second time another process has the socket's name.
        let _ = std::fs::remove_file(folder.path("theirs"));
        let peer = UnixDatagram::bind(folder.path("theirs")).unwrap();
        ends.send(0, frame(2, 1514));
        ends.flush();
        let mut buffer = [0; 2000];
        assert_eq!(peer.recv(&mut buffer).unwrap(), 1514);
        peer.send_to(&frame(3, 42), folder.path("ours")).unwrap();
        let mut padded = frame(3, 42);
        padded.resize(60, 0);
        wait_for(&mut ends, Event::Frame(padded));
    }
    drop(ends);
    assert!(!folder.path("ours").exists());
}

#[test]
fn datagrams_of_the_internet_come_from_the_peer_alone() {
    let folder = Folder::new();
    let (ours, peer) = (free(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let theirs = peer.local_addr().unwrap();
    let mut ends = open(&folder.0, &format!("kind = \"dgram\"\nlocal = \"{ours}\"\nremote = \"{theirs}\""));
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in [0, 1, 64, 1514] {
        stranger.send_to(&frame(9, length), ours).unwrap();
    }
    peer.send_to(&frame(1, LONGEST), ours).unwrap();
    let mut frames = Vec::new();
    run_until(&mut ends, |_, events| {
        frames.extend(events.into_iter().filter(|event| matches!(event, Event::Frame(_))));
        !frames.is_empty()
    });
    assert_eq!(frames, [Event::Frame(frame(1, LONGEST))]);
    assert_eq!(counts(&ends).strangers, 4);
    ends.send(0, frame(4, 100));
    ends.flush();
    let mut buffer = [0; 2000];
    assert_eq!(peer.recv(&mut buffer).unwrap(), 100);
}

#[test]
fn lengths_that_are_no_frame_are_counted() {
    let folder = Folder::new();
    let mut ends = open(&folder.0, "kind = \"dgram\"\nlocal = \"unix:ours\"\nremote = \"unix:theirs\"");
    let peer = UnixDatagram::bind(folder.path("theirs")).unwrap();
    for (i, length) in
        [0, 1, 13, LONGEST + 1, MESSAGE, MESSAGE + 1, MESSAGE + 5000, 14].into_iter().enumerate()
    {
        peer.send_to(&frame(7, length), folder.path("ours")).unwrap();
        run_until(&mut ends, |ends, events| {
            let Counts { short, long, frames_received, .. } = counts(ends);
            assert!(length == 14 || !events.iter().any(|event| matches!(event, Event::Frame(_))));
            short + long + frames_received == i as u64 + 1
        });
    }
    let Counts { short, long, frames_received, bytes_received, .. } = counts(&ends);
    assert_eq!((short, long, frames_received, bytes_received), (3, 4, 1, 14));
    // The model's own are bounded, too.
    ends.send(0, frame(1, 13));
    ends.send(0, frame(1, LONGEST + 1));
    assert_eq!(counts(&ends).unsent, 2);
}

/// A peer that does not read: what waits is bounded, and goes when it reads.
#[test]
fn a_peer_that_does_not_read() {
    let folder = Folder::new();
    let mut ends = open(&folder.0, "kind = \"dgram\"\nlocal = \"unix:ours\"\nremote = \"unix:theirs\"");
    let peer = UnixDatagram::bind(folder.path("theirs")).unwrap();
    peer.set_nonblocking(true).unwrap();
    let sent = 10_000;
    for i in 0..sent {
        ends.send(0, frame(i as u8, 1500));
        ends.flush();
    }
    let Counts { crowded, unsent, .. } = counts(&ends);
    assert!(crowded > 5000 && unsent == 0, "{crowded} {unsent}");
    assert!(ends.sleep().is_some_and(|sleep| sleep < Duration::from_millis(10)), "nobody would look again");
    let (mut seen, mut buffer) = (0, [0; 2000]);
    run_until(&mut ends, |ends, _| {
        while peer.recv(&mut buffer).is_ok() {
            seen += 1;
        }
        seen + counts(ends).crowded == sent
    });
    assert_eq!(counts(&ends).frames_sent, seen);
    // Nothing is left to do.
    let _ = ends.run(true);
    assert_eq!(ends.sleep(), None);
}

/// A peer that sends without end: each turn takes its share.
#[test]
fn a_flood_is_taken_in_turns() {
    let folder = Folder::new();
    let mut ends = open(&folder.0, "kind = \"stream\"\nlisten = \"unix:ours\"");
    let mut peer = UnixStream::connect(folder.path("ours")).unwrap();
    wait_for(&mut ends, Event::Light(true));
    peer.set_nonblocking(true).unwrap();
    let mut small = Vec::new();
    prefix::encode(&frame(5, 14), &mut small);
    let mut rest = small.repeat(1000);
    let mut most = 0;
    let mut total = 0;
    run_until(&mut ends, |_, events| {
        // What the system takes of it may end anywhere.
        while let Ok(length) = peer.write(&rest) {
            rest.drain(..length);
            if rest.len() < small.len() {
                rest.extend(small.repeat(1000));
            }
        }
        most = most.max(events.len());
        total += events.len();
        total > 5000
    });
    assert!((200..=256).contains(&most), "{most}");
}

/// What waits goes in turns, too: a peer that was not reading, and then takes all.
#[test]
fn a_backlog_goes_in_turns() {
    let folder = Folder::new();
    let (ours, peer) = (free(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let theirs = peer.local_addr().unwrap();
    let mut ends = open(&folder.0, &format!("kind = \"dgram\"\nlocal = \"{ours}\"\nremote = \"{theirs}\""));
    wait_for(&mut ends, Event::Light(true));
    (0..3 * SENDS).for_each(|_| ends.send(0, frame(1, 14)));
    for turn in 1..=3 {
        assert_eq!(counts(&ends).frames_sent as usize, (turn - 1) * SENDS);
        let (_, more) = ends.run(true);
        assert_eq!(more, turn < 3);
    }
    assert_eq!(counts(&ends).frames_sent as usize, 3 * SENDS);
}

#[test]
fn a_stream_that_listens() {
    let folder = Folder::new();
    let (unix, tcp) = ("unix:ours".to_owned(), free().to_string());
    for address in [unix, tcp] {
        let connect = || -> Box<dyn Stream> {
            match address.strip_prefix("unix:") {
                Some(path) => Box::new(UnixStream::connect(folder.path(path)).unwrap()),
                None => Box::new(TcpStream::connect(&address).unwrap()),
            }
        };
        let mut ends = open(&folder.0, &format!("kind = \"stream\"\nlisten = \"{address}\""));
        // Dark, and frames for nobody.
        assert!(!ends.is_lit(0));
        ends.send(0, frame(1, 64));
        assert_eq!(counts(&ends).unsent, 1);
        for round in 1..=2 {
            let mut peer = connect();
            wait_for(&mut ends, Event::Light(true));
            assert_eq!(counts(&ends).connections, round);
            // A second one waits until the first has gone.
            let mut second = connect();
            ends.send(0, frame(2, 100));
            run_until(&mut ends, |ends, _| counts(ends).frames_sent == 2 * round - 1);
            let mut buffer = [0; 104];
            peer.read_exact(&mut buffer).unwrap();
            assert_eq!(buffer[..5], [0, 0, 0, 100, 2]);
            let mut bytes = Vec::new();
            prefix::encode(&frame(6, 70), &mut bytes);
            // Half a frame at a time.
            let (half, rest) = bytes.split_at(30);
            peer.write_all(half).unwrap();
            let _ = ends.run(true);
            peer.write_all(rest).unwrap();
            wait_for(&mut ends, Event::Frame(frame(6, 70)));
            // It ends in the middle of a frame.
            peer.write_all(half).unwrap();
            drop(peer);
            wait_for(&mut ends, Event::Light(false));
            wait_for(&mut ends, Event::Light(true));
            second.write_all(&bytes).unwrap();
            // What was left of the first is not in the way.
            wait_for(&mut ends, Event::Frame(frame(6, 70)));
            ends.send(0, frame(2, 100));
            run_until(&mut ends, |ends, _| counts(ends).frames_sent == 2 * round);
            drop(second);
            wait_for(&mut ends, Event::Light(false));
            // Two connections each round; counted once for the assertion above.
            ends.ends.get_mut(&0).unwrap().counts.connections -= 1;
        }
    }
}

trait Stream: Read + Write {}
impl Stream for UnixStream {}
impl Stream for TcpStream {}

#[test]
fn a_stream_that_connects() {
    let folder = Folder::new();
    let at = free();
    for address in ["unix:theirs".to_owned(), at.to_string()] {
        let mut ends =
            open(&folder.0, &format!("kind = \"stream\"\nconnect = \"{address}\"\nreconnect_ms = 10"));
        // Nobody is there yet: it tries again, and does nothing between.
        for _ in 0..3 {
            run_until(&mut ends, |ends, events| {
                assert!(events.is_empty());
                ends.sleep().is_some_and(|sleep| !sleep.is_zero())
            });
        }
        assert!(counts(&ends).connections == 0 && !ends.is_lit(0));
        for _ in 0..2 {
            let mut peer: Box<dyn Stream> = match address.strip_prefix("unix:") {
                Some(path) => {
                    let _ = std::fs::remove_file(folder.path(path));
                    let listener = UnixListener::bind(folder.path(path)).unwrap();
                    wait_for(&mut ends, Event::Light(true));
                    Box::new(listener.accept().unwrap().0)
                }
                None => {
                    let listener = TcpListener::bind(at).unwrap();
                    wait_for(&mut ends, Event::Light(true));
                    Box::new(listener.accept().unwrap().0)
                }
            };
            let mut bytes = Vec::new();
            prefix::encode(&frame(8, 1514), &mut bytes);
            peer.write_all(&bytes).unwrap();
            wait_for(&mut ends, Event::Frame(frame(8, 1514)));
            drop(peer);
            wait_for(&mut ends, Event::Light(false));
        }
        assert_eq!(counts(&ends).connections, 2);
    }
}

#[test]
fn a_length_that_is_none_ends_the_connection_alone() {
    let folder = Folder::new();
    let mut ends = open(&folder.0, "kind = \"stream\"\nlisten = \"unix:ours\"");
    for round in 1..=3 {
        let mut peer = UnixStream::connect(folder.path("ours")).unwrap();
        wait_for(&mut ends, Event::Light(true));
        let mut bytes = Vec::new();
        prefix::encode(&frame(1, 60), &mut bytes);
        bytes.extend_from_slice(&(MESSAGE as u32 + round).to_be_bytes());
        peer.write_all(&bytes).unwrap();
        let mut frames = 0;
        run_until(&mut ends, |_, events| {
            frames += events.iter().filter(|event| matches!(event, Event::Frame(_))).count();
            events.contains(&Event::Light(false))
        });
        assert_eq!((frames, counts(&ends).malformed), (1, u64::from(round)));
        assert_eq!(peer.read(&mut [0; 9]).unwrap(), 0, "it is told");
    }
}

/// A stream whose peer does not read: part of a frame may be sent, and the rest comes later.
#[test]
fn a_stream_that_is_not_read() {
    let folder = Folder::new();
    let mut ends = open(&folder.0, "kind = \"stream\"\nlisten = \"unix:ours\"");
    let mut peer = UnixStream::connect(folder.path("ours")).unwrap();
    wait_for(&mut ends, Event::Light(true));
    let sent = 20_000u64;
    for i in 0..sent {
        ends.send(0, frame(i as u8, 1000));
        ends.flush();
    }
    assert!(counts(&ends).crowded > 5000);
    peer.set_nonblocking(true).unwrap();
    let mut stream = Vec::new();
    run_until(&mut ends, |ends, _| {
        let mut chunk = [0; 65536];
        while let Ok(length @ 1..) = peer.read(&mut chunk) {
            stream.extend_from_slice(&chunk[..length]);
        }
        let Counts { crowded, frames_sent, .. } = counts(ends);
        frames_sent + crowded == sent && stream.len() as u64 == frames_sent * 1004
    });
    assert!(stream.chunks(1004).all(|c| c[..4] == [0, 0, 3, 232] && c[4..].iter().all(|b| *b == c[4])));
}

#[test]
fn addresses_that_are_taken_are_named() {
    let folder = Folder::new();
    let dgram = topology(&folder.0, "kind = \"dgram\"\nlocal = \"unix:ours\"\nremote = \"unix:theirs\"");
    let listen = topology(&folder.0, "kind = \"stream\"\nlisten = \"unix:ours\"");
    let refusal =
        |topology: &Topology| format!("{:#}", Outsides::open(&topology.part(None).unwrap()).unwrap_err());
    std::fs::write(folder.path("ours"), "").unwrap();
    for topology in [&dgram, &listen] {
        let error = refusal(topology);
        assert!(
            error.starts_with("outside net: ") && error.ends_with("ours: exists and is not a socket"),
            "{error}"
        );
    }
    std::fs::remove_file(folder.path("ours")).unwrap();
    let other = UnixDatagram::bind(folder.path("ours")).unwrap();
    assert!(refusal(&dgram).contains("another process takes frames there"));
    // One that a dead process has left.
    drop(other);
    Outsides::open(&dgram.part(None).unwrap()).unwrap();
    let tap = topology(&folder.0, "kind = \"tap\"\ninterface = \"no-such-tap\"");
    if !nix::unistd::geteuid().is_root() {
        let error = refusal(&tap);
        assert!(error.contains("/dev/net/tun"), "{error}");
    }
}

/// In a network namespace of the test's own: the machine's stack answers.
#[test]
fn a_tap() {
    let done = std::thread::spawn(|| {
        use nix::sched::{CloneFlags, unshare};
        if unshare(CloneFlags::CLONE_NEWNET).is_err() || !Path::new("/dev/net/tun").exists() {
            println!("skipped: no network namespace, or no TAP devices");
            return;
        }
        let folder = Folder::new();
        let mut ends = open(&folder.0, "kind = \"tap\"\ninterface = \"tap7\"");
        wait_for(&mut ends, Event::Light(true));
        // The interface is down yet.
        ends.send(0, frame(1, 64));
        ends.flush();
        assert_eq!(counts(&ends).unsent, 1);
        let ip = |words: &str| {
            let status = std::process::Command::new("ip").args(words.split(' ')).status();
            assert!(status.unwrap().success(), "ip {words}");
        };
        ip("address add 192.0.2.1/24 dev tap7");
        ip("link set tap7 up");
        // Who has 192.0.2.1? Tell 192.0.2.2 (RFC 826).
        let mut request = vec![0xff; 6];
        request.extend([2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 192, 0, 2, 2]);
        request.extend([0, 0, 0, 0, 0, 0, 192, 0, 2, 1]);
        ends.send(0, request);
        ends.flush();
        run_until(&mut ends, |_, events| {
            events.iter().any(|event| match event {
                Event::Frame(frame) => {
                    frame.len() == 60 && frame[12..14] == [8, 6] && frame[20..22] == [0, 2]
                }
                Event::Light(_) => false,
            })
        });
        assert_eq!((counts(&ends).frames_sent, counts(&ends).unsent), (1, 1));
        ip("link delete tap7");
        wait_for(&mut ends, Event::Light(false));
        // Nobody is there, and nothing is to be done.
        ends.send(0, frame(1, 64));
        assert_eq!((counts(&ends).unsent, ends.run(true).1, ends.sleep()), (2, false, None));
    });
    done.join().unwrap();
}
