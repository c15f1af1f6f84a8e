use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hca_model::Ps;
use proptest::prelude::*;

use super::super::channel::{Channel, Message};
use super::super::intro::IntroError;
use super::super::ring::{Entry, OWN, Ring};
use super::super::tests::ends_of;
use super::super::{LinkError, open};
use super::device::Asked;
use super::host::{FromDevice, Heard, HostPatience};
use super::intro::{Bar, LEN};
use super::message::{MSIX, ToDevice, ToHost};
use super::*;
use crate::memory::{RemoteError, StandingMemory};

/// Long, since nothing here waits for it unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
const CROSSING: Ps = Ps(140);

fn path(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("softhca-pcie-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

fn example() -> DeviceIntro {
    let mut bars = [Bar::default(); 6];
    bars[0] = Bar { len: 32 << 20, flags: Bar::WIDE | Bar::PREFETCHABLE };
    bars[2] = Bar { len: 8192, flags: Bar::WIDE | Bar::PREFETCHABLE | Bar::DUMMY };
    DeviceIntro {
        bars,
        ids: [0x15b3, 0x1013],
        class: [2, 7, 0, 0],
        msi: 0,
        msix: 64,
        msix_bars: [2, 2],
        msix_offsets: [0, 0x1000],
        msix_capability: 0,
    }
}

/// The first message of a device, byte for byte: numbers from offset 105 on are not aligned.
#[test]
fn a_device_says_what_it_is() {
    let bytes = example().bytes();
    let mut golden = [0; LEN];
    golden[..16].copy_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    golden[32..48].copy_from_slice(&[0, 0x20, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0, 0, 0, 0, 0]);
    golden[96..105].copy_from_slice(&[0xb3, 0x15, 0x13, 0x10, 2, 7, 0, 0, 0]);
    golden[105..109].copy_from_slice(&[64, 0, 2, 2]);
    golden[109..117].copy_from_slice(&[0, 0, 0, 0, 0, 0x10, 0, 0]);
    assert_eq!(bytes, golden);
    assert_eq!(DeviceIntro::read(&bytes), Ok(example()));
    for len in [0, LEN - 1, LEN + 1] {
        assert_eq!(DeviceIntro::read(&vec![0; len]), Err(IntroError::Part(len, LEN)));
    }
}

/// Types and headers, as the table of `message` has them.
#[test]
fn messages_are_laid_out_as_others_have_them() {
    let id = 0x0807_0605_0403_0201;
    let header = |fields: &[(usize, &[u8])]| {
        let mut own = [0; OWN];
        for (at, bytes) in fields {
            own[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        own
    };
    let asks: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8];
    let place: &[u8] = &[0x10, 0x32, 0x54, 0, 0, 0, 0, 0];
    let at = 0x54_3210;
    let access = [(0, asks), (8, place), (16, &[0x40, 0x23])];
    let register = [(0, asks), (8, place), (16, &[8, 0]), (18, &[2])];
    let to_host = [
        (ToHost::Read { id, at, len: 0x2340 }, 0x40, header(&access)),
        (ToHost::Write { id, at, len: 0x2340 }, 0x41, header(&access)),
        (ToHost::Interrupt { vector: 0x0102, kind: MSIX }, 0x42, header(&[(0, &[2, 1]), (2, &[3])])),
        (ToHost::ReadDone { id }, 0x43, header(&[(0, asks)])),
        (ToHost::WriteDone { id }, 0x44, header(&[(0, asks)])),
    ];
    for (message, kind, own) in to_host {
        assert_eq!(message.write(), (kind, own));
        assert_eq!(ToHost::read(kind, &own), Some(message));
    }
    let to_device = [
        (ToDevice::Read { id, bar: 2, offset: at, len: 8 }, 0x60, header(&register)),
        (ToDevice::Write { id, bar: 2, offset: at, len: 8, posted: false }, 0x61, header(&register)),
        (ToDevice::Write { id, bar: 2, offset: at, len: 8, posted: true }, 0x65, header(&register)),
        (ToDevice::ReadDone { id }, 0x62, header(&[(0, asks)])),
        (ToDevice::WriteDone { id }, 0x63, header(&[(0, asks)])),
        (ToDevice::Control { flags: 5 }, 0x64, header(&[(0, &[5])])),
    ];
    for (message, kind, own) in to_device {
        assert_eq!(message.write(), (kind, own));
        assert_eq!(ToDevice::read(kind, &own), Some(message));
    }
    assert_eq!((ToHost::read(0x45, &[0; OWN]), ToDevice::read(0x66, &[0; OWN])), (None, None));
}

/// Both ends of a link: the device listens.
fn pair(name: &str) -> (Arc<DeviceLink>, HostLink, Clock) {
    let path = path(name);
    let there = {
        let path = path.clone();
        std::thread::spawn(move || open(&[of_host(Role::Connect, path)], PATIENCE).unwrap().pop().unwrap())
    };
    let here = open(&[of_device(Role::Listen, path, &example())], PATIENCE).unwrap().pop().unwrap();
    let clock = Clock::default();
    let host = HostLink::new(there.join().unwrap(), CROSSING).unwrap();
    (DeviceLink::new(here, CROSSING, clock.clone()).into(), host, clock)
}

/// Memory is read and written in pieces that fit, in order; registers are accessed when it is time, and both sides answer.
#[test]
fn memory_and_registers_are_reached() {
    let (device, mut host, clock) = pair("both");
    assert_eq!(host.device(), &example());
    clock.set(Ps(1000));
    let data: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
    let reader = {
        let (device, data) = (Arc::clone(&device), data.clone());
        std::thread::spawn(move || {
            device.write(0x5000, &data).unwrap();
            let mut back = vec![0; data.len()];
            device.read(0x5000, &mut back).unwrap();
            assert!(back == data);
            device.interrupt(7).unwrap();
        })
    };
    host.write(Ps(900), 0, 0x40, &[1, 2, 3, 4], true).unwrap();
    let asked = host.read(Ps(900), 0, 0x44, 4).unwrap();
    host.write(Ps(910), 0, 0x48, &[5; 8], false).unwrap();
    let (mut memory, mut longest) = (vec![0; 0x5000 + data.len()], 0);
    let mut patience = HostPatience::default();
    loop {
        match host.hear(Ps(5000)).unwrap() {
            Heard::Message(at, from) => {
                assert_eq!(at, Ps(1140), "one crossing behind the present");
                match from {
                    FromDevice::Write { id, at: place, data } => {
                        memory[place as usize..][..data.len()].copy_from_slice(&data);
                        longest = longest.max(data.len());
                        host.answer(at, id, None).unwrap();
                    }
                    FromDevice::Read { id, at: place, len } => {
                        let data = memory[place as usize..][..len.into()].to_vec();
                        host.answer(at, id, Some(&data)).unwrap();
                    }
                    FromDevice::Interrupt { vector, kind } => {
                        assert_eq!((vector, kind), (7, MSIX));
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            Heard::Quiet => panic!("the device has promised nothing"),
            Heard::Unknown => {
                host.tell(Ps(1000), Ps(1000)).unwrap();
                HostLink::wait([&host].into_iter(), &mut patience).unwrap();
            }
        }
    }
    reader.join().unwrap();
    assert_eq!(longest, 9024);
    // Accesses that came while memory was read have been kept, each with its time.
    device.hear().unwrap();
    assert_eq!((device.first(), device.next(Ps(1039))), (Some(Ps(1040)), None));
    let write = Asked::Write { id: None, bar: 0, offset: 0x40, data: vec![1, 2, 3, 4] };
    assert_eq!(device.next(Ps(1040)), Some(write));
    let Some(Asked::Read { id, bar: 0, offset: 0x44, len: 4 }) = device.next(Ps(1040)) else { panic!() };
    assert_eq!(id, asked);
    let Some(Asked::Write { id: Some(wants), .. }) = device.next(Ps(1050)) else { panic!() };
    device.answer(id, Some(&[9, 8, 7, 6]));
    device.answer(wants, None);
    device.lock().rouse().unwrap();
    let done = FromDevice::ReadDone { id: asked, data: vec![9, 8, 7, 6] };
    assert_eq!(host.hear(Ps(5000)).unwrap(), Heard::Message(Ps(1140), done));
    assert_eq!(host.hear(Ps(5000)).unwrap(), Heard::Message(Ps(1140), FromDevice::WriteDone));
    device.check().unwrap();
}

/// A host that is gone while it is asked for memory is an error, and so is all that follows; one that ends is told to the adapter.
#[test]
fn hosts_that_are_gone() {
    let (device, host, _) = pair("gone");
    drop(host);
    let mut word = [0; 4];
    assert_eq!(StandingMemory::read(&*device, 0, &mut word), Err(RemoteError::Lost));
    assert_eq!(device.interrupt(0), Err(RemoteError::Lost));
    assert!(matches!(device.check(), Err(LinkError::Ended { .. })));
    let (device, mut host, clock) = pair("ends");
    clock.set(Ps(70));
    host.finish().unwrap();
    device.hear().unwrap();
    assert_eq!(device.next(Ps(71)), Some(Asked::Ended));
    assert_eq!(device.write(0, &word), Err(RemoteError::Lost));
}

/// A channel whose peer's ring is in our hands.
fn prey(part: Vec<u8>) -> (Ring, Channel, UnixStream) {
    let (socket, peer) = UnixStream::pair().unwrap();
    let (theirs, channel, _) = ends_of(256, 4, socket, part);
    (theirs, channel, peer)
}

#[test]
fn each_breach_of_the_protocol_has_its_words() {
    let id = 3;
    let entry = |(kind, own): (u8, [u8; OWN]), time| Entry { own, time, kind };
    let said = |entries: &[Entry]| {
        let (mut theirs, channel, _peer) = prey(Vec::new());
        let device = DeviceLink::new(channel, CROSSING, Clock::default());
        entries.iter().for_each(|entry| assert!(theirs.push(entry, &[&[1; 20]]).unwrap()));
        device.hear().err().map(|why| why.to_string()).unwrap_or_default()
    };
    let register = |len| ToDevice::Read { id, bar: 0, offset: 0, len };
    assert_eq!(said(&[entry(register(192).write(), 5)]), "");
    assert!(said(&[entry(register(193).write(), 5)]).contains("193 bytes in an entry that has room for 192"));
    let write = ToDevice::Write { id, bar: 0, offset: 0, len: 193, posted: true };
    assert!(said(&[entry(write.write(), 5)]).contains("193 bytes in an entry"));
    for nobody in [ToDevice::ReadDone { id }, ToDevice::WriteDone { id }] {
        assert!(said(&[entry(nobody.write(), 5)]).contains("answered request 3, which nobody made"));
    }
    let backwards = [entry(register(4).write(), 5), entry(register(4).write(), 4)];
    assert!(said(&backwards).contains("backwards, from 5 to 4"));
    assert!(said(&[entry((0x40, [0; OWN]), 5)]).contains("type 0x40"));
    // And the other way.
    let said = |entries: &[Entry]| {
        let (mut theirs, channel, _peer) = prey(example().bytes());
        let mut host = HostLink::new(channel, CROSSING).unwrap();
        entries.iter().for_each(|entry| assert!(theirs.push(entry, &[&[1; 20]]).unwrap()));
        loop {
            match host.hear(Ps(100)) {
                Ok(Heard::Message(..)) => {}
                Ok(_) => return String::new(),
                Err(why) => return why.to_string(),
            }
        }
    };
    let memory = |len| ToHost::Read { id, at: 0, len };
    assert_eq!(said(&[entry(memory(192).write(), 5)]), "");
    assert!(said(&[entry(memory(193).write(), 5)]).contains("room for 192"));
    assert!(said(&[entry(ToHost::Write { id, at: 0, len: 500 }.write(), 5)]).contains("500 bytes"));
    assert!(said(&[entry(ToHost::ReadDone { id }.write(), 5)]).contains("which nobody made"));
    assert!(said(&[entry(ToHost::WriteDone { id }.write(), 5)]).contains("which nobody made"));
    assert!(said(&[entry((0x60, [0; OWN]), 5)]).contains("type 0x60"));
    let early = [entry(ToHost::Interrupt { vector: 0, kind: MSIX }.write(), 200)];
    assert_eq!(said(&early), "", "it is later than was asked for");
}

/// A device that says that nothing comes, and sends something nevertheless.
#[test]
fn who_is_early_is_said() {
    let (device, mut host, clock) = pair("early");
    device.lock().promise(Ps(100), Ps(5000)).unwrap();
    assert_eq!(host.hear(Ps(4000)).unwrap(), Heard::Quiet);
    clock.set(Ps(1));
    device.interrupt(1).unwrap();
    let why = host.hear(Ps(6000)).unwrap_err().to_string();
    assert!(why.contains("for 141 ps, though it had said that nothing came before 4000"), "{why}");
}

#[test]
fn peers_that_are_none_are_refused_in_words() {
    let refused = |there: Open| {
        let path = there.path.clone();
        let peer = std::thread::spawn(move || open(&[there], PATIENCE));
        let why = open(&[of_host(Role::Connect, path)], PATIENCE);
        drop(peer.join().unwrap());
        why.and_then(|mut channels| HostLink::new(channels.pop().unwrap(), CROSSING)).unwrap_err().to_string()
    };
    let why = refused(Open::network(Role::Listen, path("network"), 256, 256));
    assert!(why.contains("upper protocol is 1, and not 2, a PCI Express link"), "{why}");
    let mut short = of_device(Role::Listen, path("short"), &example());
    short.upper.part.pop();
    assert!(refused(short).contains("has 118 bytes, and not 119"));
}

proptest! {
    /// Whatever a host or a device writes anywhere into its ring, the other side gets messages or an error.
    #[test]
    fn nothing_that_a_peer_writes_does_harm(
        bytes in prop::collection::vec((0usize..4, 0usize..256, any::<u8>()), 0..300),
    ) {
        let (theirs, channel, _peer) = prey(Vec::new());
        let device = DeviceLink::new(channel, CROSSING, Clock::default());
        let (theirs_too, channel, _peer_too) = prey(example().bytes());
        let mut host = HostLink::new(channel, CROSSING).unwrap();
        for (entry, offset, value) in bytes {
            // Owner and type, length and time more often than others.
            let offset = match offset % 4 { 0 => 63, 1 => 16 + offset % 3, 2 => 48 + offset % 8, _ => offset };
            theirs.poke(entry, offset, value);
            theirs_too.poke(entry, offset, value);
            let _ = device.hear();
            if let Some(Asked::Write { data, .. }) = device.next(Ps::MAX) {
                prop_assert!(data.len() <= 192);
            }
            if let Ok(Heard::Message(_, FromDevice::Write { data, .. })) = host.hear(Ps::MAX) {
                prop_assert!(data.len() <= 192);
            }
        }
    }

    /// Messages of all kinds with any fields.
    #[test]
    fn any_header_is_a_message_or_none(kind in any::<u8>(), own in prop::array::uniform32(any::<u8>())) {
        let mut header = [0; OWN];
        header[..32].copy_from_slice(&own);
        let _ = Message { at: Ps(0), kind, own: header };
        if let Some(message) = ToDevice::read(kind, &header) {
            prop_assert_eq!(message.write().0, kind);
        }
        if let Some(message) = ToHost::read(kind, &header) {
            prop_assert_eq!(message.write().0, kind);
        }
    }
}
