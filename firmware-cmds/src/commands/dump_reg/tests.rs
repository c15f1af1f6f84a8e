use super::*;
use crate::commands::testing::{Bench, Connection, register};
use hca_spec::command::Status;
use hca_spec::dump::SegmentHead;
use hca_spec::qpc::{Qpc, ServiceType};

fn request(kind: u32, index: u32, count: u32) -> ResourceDump {
    let mut r = ResourceDump::new();
    r.set(ResourceDump::SEGMENT_TYPE, kind).set(ResourceDump::INDEX1, index);
    r.set(ResourceDump::NUM_OF_OBJ1, count);
    r
}

/// A whole dump, in the register, in the way of tools: they read, and check the number of each part.
fn dump(b: &mut Bench, mut request: ResourceDump) -> Vec<u8> {
    let mut all = Vec::new();
    for number in 1..10_000u32 {
        request.set(ResourceDump::INLINE_DUMP, 1).set(ResourceDump::DUMP_SIZE, 0);
        let answer = register(b, reg::RESOURCE_DUMP, false, request.bytes());
        assert_eq!(answer.status(), Status::Ok);
        request = ResourceDump::from_prefix_or_zero(&answer.output[16..]);
        assert_eq!(request.get(ResourceDump::SEQ_NUM), number % 16);
        let size = request.get(ResourceDump::DUMP_SIZE) as usize;
        assert!(size > 0 && size <= INLINE_BYTES && size.is_multiple_of(4));
        all.extend_from_slice(&answer.output[16 + INLINE_FROM..][..size]);
        if request.get(ResourceDump::MORE_DUMP) == 0 {
            return all;
        }
    }
    panic!("it does not end");
}

/// Segments of a dump: kind and bytes.
fn segments(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let head = SegmentHead::from_prefix_or_zero(bytes);
        let (now, rest) = bytes.split_at(head.get(SegmentHead::LENGTH_DW) as usize * 4);
        all.push((head.get(SegmentHead::KIND), now.to_vec()));
        bytes = rest;
    }
    all
}

fn kinds(all: &[(u32, Vec<u8>)]) -> Vec<u32> {
    all.iter().map(|(kind, _)| *kind).collect()
}

/// The number that the menu has for a name, as drivers and tools find it.
fn number_of(b: &mut Bench, name: &str) -> u32 {
    let all = segments(&dump(b, request(segment::MENU, 0, 0)));
    assert_eq!(kinds(&all), [segment::INFO, segment::COMMAND, segment::MENU, segment::TERMINATE]);
    let menu = &all[2].1;
    let records = DumpMenu::from_prefix_or_zero(menu).get(DumpMenu::NUM_OF_RECORDS) as usize;
    let entries = menu[DumpMenu::SIZE..].chunks(MenuRecord::SIZE);
    assert_eq!(entries.len(), records);
    let text = |entry: &[u8]| String::from_utf8(entry[4..20].to_vec()).unwrap();
    let found = entries.clone().find(|entry| text(entry).trim_end_matches('\0') == name).unwrap();
    MenuRecord::from_prefix_or_zero(found).get(MenuRecord::RECORD_SEGMENT_TYPE)
}

#[test]
fn one_object_and_many() {
    let mut b = Bench::initialized();
    let c = b.connection();
    let qps: Vec<u32> = std::iter::once(c.qp).chain((0..4).map(|_| b.qp(&c, ServiceType::Ud))).collect();
    let kind = number_of(&mut b, "FULL_QPC");
    let one = segments(&dump(&mut b, request(kind, qps[2], 0)));
    assert_eq!(kinds(&one), [segment::INFO, segment::COMMAND, kind, segment::TERMINATE]);
    let head = DumpObject::from_prefix_or_zero(&one[2].1);
    assert_eq!(head.get(DumpObject::OBJECT_INDEX1), qps[2]);
    let context = b.fw.icm.qps.get(qps[2]).unwrap().ctx;
    assert_eq!(one[2].1[DumpObject::SIZE..], *context.bytes());
    let of = |all: &[(u32, Vec<u8>)]| -> Vec<u32> {
        let objects = all.iter().filter(|(of, _)| *of == kind);
        objects
            .map(|(_, bytes)| DumpObject::from_prefix_or_zero(bytes).get(DumpObject::OBJECT_INDEX1))
            .collect()
    };
    for (first, count, expected) in
        [(0, ALL, &qps[..]), (qps[1], ACTIVE, &qps[1..]), (qps[1], 2, &qps[1..3]), (qps[4] + 1, ALL, &[])]
    {
        assert_eq!(of(&segments(&dump(&mut b, request(kind, first, count)))), expected);
    }
    let kind = number_of(&mut b, "PRM_QUERY_QP");
    let all = segments(&dump(&mut b, request(kind, qps[0], 1)));
    let out = QueryQpOut::from_prefix_or_zero(&all[2].1[DumpObject::SIZE..]);
    assert_eq!(out.qpc().get(Qpc::ST), ServiceType::Rc as u32);
}

#[test]
fn what_can_t_be_had_is_said_in_the_dump() {
    let mut b = Bench::initialized();
    let Connection { qp, .. } = b.connection();
    let kind = number_of(&mut b, "FULL_QPC");
    let mut other = request(kind, qp, 0);
    other.set(ResourceDump::VHCA_ID_VALID, 1).set(ResourceDump::VHCA_ID, 3);
    for (request, syndrome, text) in [
        (other, 1, "objects of another function"),
        (request(0x7777, 0, 0), 2, "no such segment"),
        (request(kind, qp + 1, 0), 3, "no such object"),
    ] {
        let all = segments(&dump(&mut b, request));
        assert_eq!(kinds(&all), [segment::INFO, segment::COMMAND, segment::ERROR, segment::TERMINATE]);
        let error = DumpNotice::from_prefix_or_zero(&all[2].1);
        assert_eq!(error.get(DumpNotice::SYNDROME_ID), syndrome);
        assert!(all[2].1[0x10..].starts_with(text.as_bytes()));
    }
}

/// Objects that go between two parts: each segment stays whole or is cut where it was, and the dump ends.
#[test]
fn objects_go_meanwhile() {
    let mut b = Bench::initialized();
    let c = b.connection();
    let more: Vec<u32> = (0..6).map(|_| b.qp(&c, ServiceType::Rc)).collect();
    let kind = number_of(&mut b, "FULL_QPC");
    let mut request = request(kind, 0, ALL);
    let mut parts = 0;
    loop {
        request.set(ResourceDump::INLINE_DUMP, 1);
        let answer = register(&mut b, reg::RESOURCE_DUMP, true, request.bytes());
        request = ResourceDump::from_prefix_or_zero(&answer.output[16..]);
        parts += 1;
        if parts == 3 {
            more.iter().take(5).for_each(|qp| _ = b.fw.icm.qps.remove(*qp));
        }
        if request.get(ResourceDump::MORE_DUMP) == 0 {
            break;
        }
    }
    assert!((4..8).contains(&parts), "{parts}");
    // Places that were never told lead to the end, too.
    for opaque in [u64::MAX, 1 << 62 | 0xffff, 1 << 63, 0xffff_ffff] {
        request.set(ResourceDump::DEVICE_OPAQUE, opaque).set(ResourceDump::SEGMENT_TYPE, segment::MENU);
        let answer = register(&mut b, reg::RESOURCE_DUMP, true, request.bytes());
        let out = ResourceDump::from_prefix_or_zero(&answer.output[16..]);
        assert_eq!(out.get(ResourceDump::MORE_DUMP), 0, "{opaque:#x}");
    }
}

#[test]
fn into_memory() {
    let mut b = Bench::initialized();
    let c = b.connection();
    let kind = number_of(&mut b, "FULL_CQC");
    let key = b.pa_key(c.pd) << 8;
    let mut request = request(kind, c.cq, 0);
    request
        .set(ResourceDump::MKEY, key)
        .set(ResourceDump::ADDRESS, 0x5000)
        .set(ResourceDump::DUMP_SIZE, 4096);
    b.effects.clear();
    let answer = register(&mut b, reg::RESOURCE_DUMP, true, request.bytes());
    assert_eq!(answer.status(), Status::Ok);
    let [Effect::WriteByKey { address: 0x5000, bytes, .. }] = &b.effects[..] else {
        panic!("{:?}", b.effects)
    };
    let out = ResourceDump::from_prefix_or_zero(&answer.output[16..]);
    assert_eq!(out.get(ResourceDump::DUMP_SIZE) as usize, bytes.len());
    assert_eq!(kinds(&segments(bytes)), [segment::INFO, segment::COMMAND, kind, segment::TERMINATE]);
    for (key, size) in [(key, 3), (key ^ 1, 4096), (0x1234_5600, 4096)] {
        request.set(ResourceDump::MKEY, key).set(ResourceDump::DUMP_SIZE, size);
        assert_eq!(register(&mut b, reg::RESOURCE_DUMP, true, request.bytes()).status(), Status::BadParam);
    }
}
