use hca_spec::ether::{ethertype, protocol};

use super::*;
use crate::wire::ethernet::build::{checksum, frame, ipv4, ipv6};
use crate::wire::ethernet::{Tag, build};

const RULES: MergeRules = MergeRules { v4: true, v6: true, most: 65_280, timeout: Ps::from_us(32) };
/// What the first segment's sequence number is.
const START: u32 = 0xffff_ff00;

/// A segment.
#[derive(Clone)]
struct Tcps {
    v6: bool,
    port: u32,
    sequence: u32,
    flags: u32,
    options: Vec<u8>,
    ack: u32,
    tags: Vec<Tag>,
}

impl Default for Tcps {
    fn default() -> Self {
        Self { v6: false, port: 7, sequence: START, flags: 0x10, options: vec![1; 4], ack: 9, tags: vec![] }
    }
}

impl Tcps {
    fn frame(&self, data: &[u8]) -> Vec<u8> {
        let mut tcp = Tcp::new();
        tcp.set(Tcp::SOURCE, self.port).set(Tcp::DESTINATION, 2000).set(Tcp::SEQUENCE, self.sequence);
        tcp.set(Tcp::ACKNOWLEDGEMENT, self.ack).set(Tcp::DATA_OFFSET, 5 + self.options.len() as u32 / 4);
        tcp.set(Tcp::FLAGS, self.flags).set(Tcp::WINDOW, 500);
        let mut segment = [&tcp.bytes()[..], &self.options, data].concat();
        let tail = [(segment.len() as u32).to_be_bytes(), u32::from(protocol::TCP).to_be_bytes()].concat();
        let pseudo = match self.v6 {
            true => [&build::V6.0[..], &build::V6.1, &tail].concat(),
            false => [&build::V4.0[..], &build::V4.1, &tail].concat(),
        };
        let sum = checksum(&[&pseudo, &segment]);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        match self.v6 {
            true => frame(&self.tags, ethertype::IPV6, &ipv6(protocol::TCP, &segment)),
            false => frame(&self.tags, ethertype::IPV4, &ipv4(protocol::TCP, &segment)),
        }
    }
}

fn take(merging: &mut Merging, frame: &[u8]) -> Turn {
    merging.take(frame, &Headers::parse(frame).unwrap(), Steered::default(), &RULES)
}

/// Segments of odd and even lengths, of both versions of IP, with a tag and without: their data in one frame, with the sum that
/// the driver's headers need.
#[test]
fn segments_become_one() {
    for v6 in [false, true] {
        for tags in [vec![], vec![Tag { tpid: ethertype::C_TAG, tci: 5 }]] {
            let mut merging = Merging::default();
            let lens = [1001usize, 8, 777, 1, 400];
            let mut all = Vec::new();
            let mut first = Vec::new();
            for (i, len) in lens.into_iter().enumerate() {
                let data: Vec<u8> = (0..len).map(|n| (n * 31 + i) as u8).collect();
                let sequence = START.wrapping_add(all.len() as u32);
                let flags = if i + 1 == lens.len() { 0x18 } else { 0x10 };
                let tcp =
                    Tcps { v6, sequence, flags, ack: 9 + i as u32, tags: tags.clone(), ..Tcps::default() };
                let frame = tcp.frame(&data);
                all.extend(data);
                let turn = take(&mut merging, &frame);
                assert_eq!(turn.began.is_some(), i == 0);
                if i == 0 {
                    first = frame;
                }
                if i + 1 < lens.len() {
                    assert!(turn.out.is_empty());
                    continue;
                }
                let [out] = &turn.out[..] else { panic!("{:?}", turn.out) };
                let head = first.len() - lens[0];
                assert_eq!((&out.frame[..head], &out.frame[head..]), (&first[..head], &all[..]));
                let merged = out.steered.merged.unwrap();
                assert_eq!((merged.segments, merged.pushed, merged.acknowledged), (5, true, 13));
                assert_eq!((merged.window, merged.ttl), (500, if v6 { 63 } else { 64 }));
                assert_eq!(merged.sum.checksum() % 0xffff, checksum(&[&all]) % 0xffff);
                assert_eq!(out.headers.ip.unwrap().end, out.frame.len());
            }
            assert!(merging.sessions.is_empty());
        }
    }
}

/// What does not continue a session ends it, and comes behind it; if it is data, with a session of its own.
#[test]
fn what_ends_a_session() {
    let first = Tcps::default();
    let next = Tcps { sequence: START.wrapping_add(100), ..Tcps::default() };
    let mut wrong = next.frame(&[1; 100]);
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    let none = Tcps { flags: 0x10, ..next.clone() }.frame(&[]);
    for (name, frame, begins) in [
        ("a gap", Tcps { sequence: START.wrapping_add(101), ..Tcps::default() }.frame(&[1; 100]), true),
        ("the same again", first.frame(&[1; 100]), true),
        ("other options", Tcps { options: vec![1, 1, 1, 0], ..next.clone() }.frame(&[1; 100]), true),
        ("no options", Tcps { options: vec![], ..next.clone() }.frame(&[1; 100]), true),
        ("an end", Tcps { flags: 0x11, ..next.clone() }.frame(&[1; 100]), false),
        ("a reduced window", Tcps { flags: 0x90, ..next.clone() }.frame(&[1; 100]), false),
        ("no acknowledgement", Tcps { flags: 0, ..next.clone() }.frame(&[1; 100]), false),
        ("no data", none, false),
        ("a wrong checksum", wrong, false),
    ] {
        let mut merging = Merging::default();
        assert!(take(&mut merging, &first.frame(&[0; 100])).out.is_empty());
        let turn = take(&mut merging, &frame);
        assert_eq!((turn.out.len(), turn.passes), (1, !begins), "{name}");
        assert_eq!(turn.out[0].frame, first.frame(&[0; 100]), "{name}");
        assert!(turn.out.iter().all(|out| out.steered.merged.is_none()), "{name}: one is not merged");
        assert_eq!(turn.began.is_some(), begins, "{name}");
    }
}

/// One alone comes as it came, with its padding; of merged ones nothing is between the data.
#[test]
fn padding() {
    let padded = |sequence| {
        let mut frame = Tcps { sequence, options: vec![], ..Tcps::default() }.frame(&[7; 2]);
        frame.resize(60, 0);
        frame
    };
    let mut merging = Merging::default();
    let began = take(&mut merging, &padded(START)).began.unwrap();
    assert_eq!(merging.expire(began).unwrap().frame, padded(START));
    let began = take(&mut merging, &padded(START)).began.unwrap();
    assert!(take(&mut merging, &padded(START.wrapping_add(2))).out.is_empty());
    let out = merging.expire(began).unwrap();
    assert_eq!((&out.frame[54..], out.steered.merged.unwrap().segments), (&[7; 4][..], 2));
}

#[test]
fn other_flows_go_on() {
    let mut merging = Merging::default();
    let of = |port: u32, sequence: u32| Tcps { port, sequence, ..Tcps::default() }.frame(&[port as u8; 10]);
    for port in 0..SESSIONS as u32 {
        assert!(take(&mut merging, &of(port, START)).out.is_empty());
    }
    for port in 0..SESSIONS as u32 {
        assert!(take(&mut merging, &of(port, START.wrapping_add(10))).out.is_empty());
    }
    // One more: the oldest ends.
    let turn = take(&mut merging, &of(99, START));
    assert_eq!((turn.out.len(), turn.out[0].steered.merged.unwrap().segments), (1, 2));
    assert!(turn.out[0].frame.ends_with(&[0; 20]));
    // Time is up, once.
    let out = merging.expire(turn.began.unwrap()).unwrap();
    assert_eq!((out.steered.merged, out.frame), (None, of(99, START)));
    assert!(merging.expire(turn.began.unwrap()).is_none());
    assert_eq!(merging.sessions.len(), SESSIONS - 1);
}

#[test]
fn sessions_have_bounds() {
    let mut merging = Merging::default();
    let mut bytes = 0u32;
    let mut longest = 0;
    for _ in 0..100 {
        let tcp = Tcps { sequence: START.wrapping_add(bytes), ..Tcps::default() };
        bytes += 1448;
        for out in take(&mut merging, &tcp.frame(&[3; 1448])).out {
            longest = longest.max(out.frame.len());
            assert_eq!(out.steered.merged.unwrap().segments, 45);
        }
    }
    assert_eq!(longest, 14 + 20 + 24 + 45 * 1448, "no more than 65280 bytes behind the IP header");
    let mut merging = Merging::default();
    let ended: usize = (0..600u32)
        .map(|n| {
            take(&mut merging, &Tcps { sequence: START.wrapping_add(n), ..Tcps::default() }.frame(&[3]))
                .out
                .len()
        })
        .sum();
    assert_eq!(ended, 2, "255 segments each");
    // Who wants nothing merged gets everything at once; so does a frame that is too long by itself.
    let frame = Tcps::default().frame(&[1; 300]);
    let headers = Headers::parse(&frame).unwrap();
    for rules in [MergeRules { v4: false, ..RULES }, MergeRules { most: 256, ..RULES }] {
        let turn = Merging::default().take(&frame, &headers, Steered::default(), &rules);
        assert_eq!((turn.out.len(), turn.began, turn.passes), (0, None, true));
    }
}
