use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use hca_model::Ps;
use hca_model::link::{Light, LinkMessage, LinkPacket};
use hca_model::link_layer::Packet;
use proptest::prelude::*;

use super::bell::{Bell, Sleep};
use super::channel::{PACKET, SYNC, TERMINATE};
use super::connect::ENTRIES;
use super::intro::{self, Peer, Queue, Upper};
use super::ring::{Entry, Memory, OWN, Ring};
use super::*;

/// Long, since nothing here waits for it unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// A path of its own for each test.
fn path(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("softhca-simbricks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

fn link(role: Role, path: &std::path::Path) -> Open {
    Open::network(role, path.into(), net::LONGEST, net::LONGEST)
}

/// Both ends of a link: who listens first.
fn pair(name: &str) -> (Channel, Channel) {
    let path = path(name);
    let there = {
        let path = path.clone();
        std::thread::spawn(move || open(&[link(Role::Connect, &path)], PATIENCE).unwrap().pop().unwrap())
    };
    let here = open(&[link(Role::Listen, &path)], PATIENCE).unwrap().pop().unwrap();
    (here, there.join().unwrap())
}

/// An outlook counts as long as the receiver sends nothing, and is given again when what it sent was taken.
#[test]
fn an_outlook_ends_with_what_is_sent() {
    let (mut here, mut there) = pair("outlook");
    let mut got = Vec::new();
    let mut takes = |channel: &mut Channel| channel.take(&mut got).unwrap();
    here.promise(Ps(100), Ps(9000)).unwrap();
    // Less than is known, or as much, is not told again.
    here.promise(Ps(200), Ps(9000)).unwrap();
    assert_eq!(takes(&mut there), Heard::Nothing);
    assert_eq!((there.heard(), there.outlook()), (Ps(100), Ps(9000)));
    there.send(Ps(50), &[b"x"]).unwrap();
    assert_eq!(there.outlook(), Ps(100), "there may be an answer");
    here.promise(Ps(300), Ps(9000)).unwrap();
    assert_eq!(takes(&mut there), Heard::Nothing);
    assert_eq!(there.heard(), Ps(100), "it has not been taken: what was told is as good");
    assert_eq!(takes(&mut here), Heard::Packet(Ps(50)));
    here.promise(Ps(400), Ps(5000)).unwrap();
    assert_eq!(takes(&mut there), Heard::Nothing);
    assert_eq!((there.heard(), there.outlook()), (Ps(400), Ps(5000)));
    // A promise beyond it is told.
    here.promise(Ps(6000), Ps(6000)).unwrap();
    assert_eq!(takes(&mut there), Heard::Nothing);
    assert_eq!((there.heard(), there.outlook()), (Ps(6000), Ps(6000)));
}

/// Who sleeps is woken by what comes, by the peer's end, and not by a byte that says nothing; beside others' peers nobody sleeps.
#[test]
fn who_sleeps_is_woken() {
    let (here, mut there) = pair("rest");
    let long = Duration::from_secs(600);
    let rest = |channel: &Channel| Channel::rest([channel].into_iter(), long, || Ok(true)).unwrap();
    there.promise(Ps(100), Ps(100)).unwrap();
    assert_eq!(rest(&here), Rest::Woken, "there is something already");
    let mut got = Vec::new();
    let mut here = here;
    assert_eq!(here.take(&mut got).unwrap(), Heard::Nothing);
    let sleeper = std::thread::spawn(move || {
        // It looks now and then if the peer is there.
        while Channel::rest([&here].into_iter(), long, || Ok(true)).unwrap() == Rest::Looks {
            assert!(!here.has_hung_up());
        }
        here
    });
    // Whenever the other falls asleep: before or behind this.
    there.promise(Ps(200), Ps(200)).unwrap();
    there.rouse().unwrap();
    let mut here = sleeper.join().unwrap();
    assert_eq!((here.take(&mut got).unwrap(), here.heard()), (Heard::Nothing, Ps(200)));
    drop(there);
    assert!(rest(&here) == Rest::Looks && here.has_hung_up());
    let (out, inward) = (ring(256, 4).0, ring(256, 4).0);
    let peer = Peer { ours: false, part: Vec::new() };
    let stranger = Channel::new(UnixStream::pair().unwrap().0, (out, inward), peer, None);
    assert_eq!(rest(&stranger), Rest::Never);
}

/// Who sleeps is woken for what it needs, for what is more than a promise, for what it has to look at, before its ring is full, and for nothing else.
#[test]
fn who_sleeps_is_woken_for_what_it_waits_for_alone() {
    let (socket, bed) = UnixStream::pair().unwrap();
    bed.set_nonblocking(true).unwrap();
    let (_, mut here, there) = ends_of(128, 512, socket, Vec::new());
    // How often the peer was woken since the last look.
    let bed = std::cell::RefCell::new(bed);
    let woken = || std::io::Read::read(&mut *bed.borrow_mut(), &mut [0; 64]).unwrap_or(0);
    let (nowhere, _) = UnixStream::pair().unwrap();
    let sleeps = |need, looks| {
        there.wait_for(need, looks, &nowhere).unwrap();
        there.set_sleeps(Sleep::AtSocket).unwrap();
    };
    let says = |here: &mut Channel, promise, outlook| {
        here.promise(Ps(promise), Ps(outlook)).unwrap();
        here.rouse().unwrap();
        woken()
    };
    sleeps(500, 0);
    assert_eq!(here.needed().unwrap(), Some(Ps(500)));
    assert_eq!([says(&mut here, 100, 100), says(&mut here, 200, 499)], [0, 0]);
    assert_eq!((says(&mut here, 300, 500), here.needed().unwrap()), (1, None), "an outlook is as good");
    assert_eq!(says(&mut here, 700, 700), 0, "it is awake");
    sleeps(800, 0);
    assert_eq!(says(&mut here, 800, 800), 1);
    sleeps(900, 0);
    here.send(Ps(810), &[b"x"]).unwrap();
    assert_eq!(says(&mut here, 820, 820), 1, "a packet");
    sleeps(u64::MAX, 0);
    assert_eq!(says(&mut here, 2000, 2000), 0);
    // It looks what the peer needs before it says more than 5000 itself.
    sleeps(u64::MAX, 5000);
    here.wait_for(Ps(5001), Ps::MAX).unwrap();
    assert_eq!(woken(), 0);
    here.wait_for(Ps(5000), Ps::MAX).unwrap();
    assert_eq!(woken(), 1);
    sleeps(0, 0);
    assert_eq!(says(&mut here, 6000, 6000), 1, "it wants anything");
}

/// What nobody waits for is not said; what was put into the ring nevertheless, by a proxy that knew it late, wakes before there is no room.
#[test]
fn what_is_not_needed_is_not_said() {
    let (socket, bed) = UnixStream::pair().unwrap();
    bed.set_nonblocking(true).unwrap();
    let (socket_too, _) = UnixStream::pair().unwrap();
    let (theirs, mut here, there) = ends_of(128, 64, socket, Vec::new());
    here.promise(Ps(1), Ps(1)).unwrap();
    there.wait_for(500, 0, &socket_too).unwrap();
    assert_eq!(here.needed().unwrap(), Some(Ps(500)));
    here.promise(Ps(400), Ps(499)).unwrap();
    assert_eq!(here.needed().unwrap(), Some(Ps(500)));
    here.promise(Ps(400), Ps(500)).unwrap();
    assert_eq!(here.needed().unwrap(), None);
    drop(theirs);
    let queues = [Queue { offset: 0, entry: 128, count: 64 }, Queue { offset: 8192, entry: 128, count: 64 }];
    let memory = std::sync::Arc::new(Memory::new(intro::memory(&queues, true)).unwrap().1);
    let [mut bell, sleeper] = [true, false].map(|listens| Bell::new(memory.clone(), &queues, listens));
    sleeper.wait_for(u64::MAX, 0, &socket_too).unwrap();
    sleeper.set_sleeps(Sleep::AtSocket).unwrap();
    let (socket, mut bed) = UnixStream::pair().unwrap();
    bed.set_nonblocking(true).unwrap();
    let entry = Entry { own: [0; OWN], time: 7, kind: SYNC };
    let mut puts = 0..64;
    let woken = puts.any(|_| {
        bell.put(&entry);
        bell.rouse(&socket).unwrap();
        std::io::Read::read(&mut bed, &mut [0; 64]).is_ok()
    });
    assert!(woken && puts.start <= 32, "{puts:?}");
}

/// The two ends of one direction, in memory of this process.
fn ring(entry: usize, count: usize) -> (Ring, Ring) {
    let queue = Queue { offset: 64, entry, count };
    let (_, memory) = Memory::new(queue.end()).unwrap();
    let memory = std::sync::Arc::new(memory);
    (Ring::new(memory.clone(), queue), Ring::new(memory, queue))
}

#[test]
fn packets_and_times_pass_both_ways() {
    let (mut here, mut there) = pair("both");
    let mut got = Vec::new();
    assert_eq!(there.take(&mut got).unwrap(), Heard::Nothing);
    here.promise(Ps(0), Ps::ZERO).unwrap();
    here.send(Ps(105), &[b"head", b"", b"tail"]).unwrap();
    here.promise(Ps(210), Ps::ZERO).unwrap();
    // A promise that says nothing new is not sent.
    here.promise(Ps(210), Ps::ZERO).unwrap();
    assert_eq!(there.take(&mut got).unwrap(), Heard::Packet(Ps(105)));
    assert_eq!((&got[..], there.heard()), (&b"headtail"[..], Ps(105)));
    assert_eq!(there.take(&mut got).unwrap(), Heard::Nothing);
    assert_eq!(there.heard(), Ps(210));
    there.send(Ps(7), &[b"back"]).unwrap();
    assert_eq!(here.take(&mut got).unwrap(), Heard::Packet(Ps(7)));
    assert_eq!(got, b"back");
    there.terminate().unwrap();
    assert_eq!(here.take(&mut got).unwrap(), Heard::Nothing);
    assert!(here.is_terminated() && here.heard() == Ps::MAX && !here.has_hung_up());
    drop(there);
    assert!(here.has_hung_up());
}

#[test]
fn what_finds_no_room_waits_and_keeps_its_order() {
    let (mut here, mut there) = pair("full");
    let all = 3 * ENTRIES as u64;
    for i in 0..all {
        here.send(Ps(i), &[&i.to_le_bytes()]).unwrap();
    }
    assert!(!here.flush().unwrap());
    let (mut got, mut next) = (Vec::new(), 0);
    while next < all {
        match there.take(&mut got).unwrap() {
            Heard::Packet(at) => {
                assert_eq!((at, &got[..]), (Ps(next), &next.to_le_bytes()[..]));
                next += 1;
            }
            Heard::Nothing => assert!(here.flush().is_ok()),
        }
    }
    assert!(here.flush().unwrap());
}

#[test]
fn messages_of_a_cable_pass() {
    let (here, there) = pair("cable");
    let (mut here, mut there) = (NetLink::new(here, Framing::Raw), NetLink::new(there, Framing::Raw));
    let packet = Packet::from_bytes((0..4200).map(|i| i as u8).collect());
    let packet = LinkPacket { packet, tail: Ps(9), credits: 5, session: Default::default() };
    for (at, message) in
        (0..).zip([LinkMessage::Packet(packet), LinkMessage::Light(Light { session: 3, ..Light::default() })])
    {
        here.send(Ps(at), message.clone()).unwrap();
        assert_eq!(there.take().unwrap(), Some((Ps(at), message)));
    }
    assert_eq!(there.take().unwrap(), None);
    here.channel_mut().send(Ps(9), &[b"rubbish"]).unwrap();
    assert!(matches!(there.take(), Err(LinkError::Message(7))));
    let long = vec![0; here.channel().room() + 1];
    assert!(matches!(here.channel_mut().send(Ps(10), &[&long]), Err(LinkError::TooLong { .. })));
}

/// The bytes of an entry, as the protocol has them.
#[test]
fn an_entry_is_laid_out_as_others_have_it() {
    let (mut here, there) = ring(128, 2);
    let mut own = [0; OWN];
    own[0] = 5;
    assert!(here.push(&Entry { own, time: 0x0102_0304, kind: PACKET }, &[b"hello"]).unwrap());
    let seen = there.peek().unwrap().unwrap();
    assert_eq!((seen.time, seen.kind, seen.own[0]), (0x0102_0304, PACKET, 5));
    let (mut fake, _) = ring(128, 1);
    assert!(fake.peek().unwrap().is_none());
    for (offset, value) in [(0, 3), (48, 9), (64, b'a'), (65, b'b'), (66, b'c'), (63, 0x80 | PACKET)] {
        fake.poke(0, offset, value);
    }
    let entry = fake.peek().unwrap().unwrap();
    assert_eq!((entry.time, entry.kind, entry.own[0]), (9, PACKET, 3));
    let mut got = Vec::new();
    fake.take(PACKET, 3, &mut got).unwrap();
    assert_eq!((&got[..], fake.peek().unwrap()), (&b"abc"[..], None), "it is the producer's again");
}

/// A channel of who listens, and of who connects the ring and the bell.
pub(super) fn ends_of(
    entry: usize,
    count: usize,
    socket: UnixStream,
    part: Vec<u8>,
) -> (Ring, Channel, Bell) {
    let from = Queue { offset: 0, entry, count };
    let queues = [from, Queue { offset: from.end(), ..from }];
    let (_, memory) = Memory::new(intro::memory(&queues, true)).unwrap();
    let memory = std::sync::Arc::new(memory);
    let ring = |place: usize| Ring::new(memory.clone(), queues[place]);
    let bell = |listens| Bell::new(memory.clone(), &queues, listens);
    let peer = Peer { ours: true, part };
    (ring(1), Channel::new(socket, (ring(0), ring(1)), peer, Some(bell(true))), bell(false))
}

/// A channel whose peer's ring is in our hands.
fn prey() -> (Ring, Channel, UnixStream) {
    let (socket, peer) = UnixStream::pair().unwrap();
    let (theirs, channel, _) = ends_of(256, 4, socket, Vec::new());
    (theirs, channel, peer)
}

#[test]
fn each_breach_of_the_protocol_has_its_words() {
    let said = |entries: &[(u8, u64, u16)]| {
        let (mut theirs, mut channel, _peer) = prey();
        for (kind, time, len) in entries {
            let mut own = [0; OWN];
            own[..2].copy_from_slice(&len.to_le_bytes());
            assert!(theirs.push(&Entry { own, time: *time, kind: *kind }, &[&[1; 20]]).unwrap());
        }
        let mut got = Vec::new();
        loop {
            match channel.take(&mut got) {
                Ok(Heard::Packet(_)) => {}
                Ok(Heard::Nothing) => return String::new(),
                Err(why) => return why.to_string(),
            }
        }
    };
    assert_eq!(said(&[(SYNC, 5, 0), (PACKET, 5, 20)]), "");
    assert!(said(&[(SYNC, 5, 0), (SYNC, 4, 0)]).contains("backwards, from 5 to 4"));
    assert!(said(&[(PACKET, 5, 193)]).contains("193 bytes in an entry that has room for 192"));
    assert!(said(&[(PACKET, 5, u16::MAX)]).contains("65535"));
    assert!(said(&[(0x41, 5, 0)]).contains("type 0x41"));
    assert!(said(&[(0x02, 5, 0)]).contains("type 0x02"));
    // Behind the end nothing is looked at.
    assert_eq!(said(&[(TERMINATE, 0, 0), (0x33, 0, 0)]), "");
}

proptest! {
    /// Whatever the peer writes anywhere into its ring, this side gets packets or an error.
    #[test]
    fn nothing_that_a_peer_writes_does_harm(bytes in prop::collection::vec((0usize..4, 0usize..256, any::<u8>()), 0..300)) {
        let (theirs, mut channel, _peer) = prey();
        let mut got = Vec::new();
        for (entry, offset, value) in bytes {
            // Owner and type, length and time more often than others.
            let offset = match offset % 4 { 0 => 63, 1 => offset % 2, 2 => 48 + offset % 8, _ => offset };
            theirs.poke(entry, offset, value);
            if let Ok(Heard::Packet(_)) = channel.take(&mut got) {
                prop_assert!(got.len() <= 192);
            }
        }
    }

    #[test]
    fn any_first_message_brings_a_link_up_or_an_error(message in prop::collection::vec(any::<u8>(), 1..300), nearly in any::<bool>()) {
        let path = path("first");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let (file, _) = Memory::new(16384).unwrap();
        let queues = [Queue { offset: 0, entry: 128, count: 4 }, Queue { offset: 4096, entry: 128, count: 4 }];
        let message = if nearly {
            let mut right = intro::listener(&queues, &Upper::network());
            let at = usize::from(message[0]) % right.len();
            right[at] ^= message[message.len() - 1];
            right
        } else {
            message
        };
        let there = std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            send(&socket, &message, Some(file));
            socket
        });
        let links = [Open::network(Role::Connect, path.clone(), 64, 64)];
        let _ = open(&links, PATIENCE);
        drop(there.join().unwrap());
    }
}

fn send(socket: &UnixStream, message: &[u8], file: Option<OwnedFd>) {
    use std::os::fd::AsRawFd;
    let files: Vec<_> = file.iter().map(|file| file.as_raw_fd()).collect();
    let control = [nix::sys::socket::ControlMessage::ScmRights(&files)];
    let control = if files.is_empty() { &[][..] } else { &control[..] };
    let flags = nix::sys::socket::MsgFlags::MSG_NOSIGNAL;
    nix::sys::socket::sendmsg::<()>(
        socket.as_raw_fd(),
        &[std::io::IoSlice::new(message)],
        control,
        flags,
        None,
    )
    .unwrap();
}

/// What is said to who connects to a peer that does this.
fn refused(name: &str, peer: impl FnOnce(UnixStream) + Send + 'static) -> String {
    let path = path(name);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let there = std::thread::spawn(move || peer(listener.accept().unwrap().0));
    let why = open(&[link(Role::Connect, &path)], PATIENCE).unwrap_err().to_string();
    there.join().unwrap();
    why
}

#[test]
fn peers_that_are_none_are_refused_in_words() {
    assert!(refused("ended", drop).contains("ended before"));
    let why = refused("mute", |mut socket| {
        socket.write_all(&intro::connecter(&Upper::network())).unwrap();
    });
    assert!(why.contains("no memory came"), "{why}");
    let why = refused("small", |socket| {
        let queues =
            [Queue { offset: 0, entry: 1600, count: 2 }, Queue { offset: 4096, entry: 1600, count: 2 }];
        let (file, _) = Memory::new(intro::memory(&queues, true)).unwrap();
        send(&socket, &intro::listener(&queues, &Upper::network()), Some(file));
    });
    assert!(why.contains("room for 1536"), "{why}");
    let why = refused("short", |socket| {
        let queues =
            [Queue { offset: 0, entry: 1600, count: 2 }, Queue { offset: 4096, entry: 1600, count: 2 }];
        let (file, _) = Memory::new(5000).unwrap();
        send(&socket, &intro::listener(&queues, &Upper::network()), Some(file));
    });
    assert!(why.contains("beyond the end of the memory"), "{why}");
    let why = refused("cells", |socket| {
        let queues =
            [Queue { offset: 0, entry: 1600, count: 2 }, Queue { offset: 4096, entry: 1600, count: 2 }];
        let (file, _) = Memory::new(8192).unwrap();
        send(&socket, &intro::listener(&queues, &Upper::network()), Some(file));
    });
    assert!(why.contains("before the cells"), "{why}");
    let nobody = open(&[link(Role::Connect, &path("nobody"))], Duration::ZERO).unwrap_err().to_string();
    assert!(nobody.contains("nobody listens"), "{nobody}");
    let nobody = open(&[link(Role::Listen, &path("alone"))], Duration::ZERO).unwrap_err().to_string();
    assert!(nobody.contains("nobody has connected"), "{nobody}");
}

/// A peer makes its file shorter: the next access says so, and the process lives.
#[test]
fn memory_that_goes_away_is_an_error() {
    let file = nix::sys::memfd::memfd_create(c"x", nix::sys::memfd::MFdFlags::empty()).unwrap();
    nix::unistd::ftruncate(&file, 8192).unwrap();
    let queue = Queue { offset: 4096, entry: 128, count: 4 };
    let (file, memory) = Memory::map(file, 8192).unwrap();
    let ring = Ring::new(memory.into(), queue);
    assert!(ring.peek().unwrap().is_none());
    nix::unistd::ftruncate(&file, 0).unwrap();
    assert!(matches!(ring.peek(), Err(LinkError::MemoryLost)));
}
