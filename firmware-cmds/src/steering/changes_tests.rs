//! Frames that entries change: those made by commands, and those that drivers write themselves.

use hca_spec::caps::DeviceMemory;
use hca_spec::flow::{MatchParam, TableType, action};
use hca_spec::rewrite::{FieldAction, field, field_action};
use hca_spec::ste::{Ste, SteAction, action as ste, anchor, entry_format, insert, lookup, word};

use super::entry::{ALLOW, DROP};
use super::*;

/// IPv4, UDP and a tunnel of frames behind 8 bytes at port 9: as little as the tests need.
fn parse(frame: &[u8], _: &VxlanPorts) -> Sight {
    let (mut sight, inner) = layers(frame, 0);
    if let Some(inner) = inner.filter(|inner| *inner < frame.len()) {
        let (inside, _) = layers(frame, inner);
        sight.key.inner = Some(inside.key.outer);
        let places = &mut sight.places;
        (places.tunnel, places.inner) = (Some(inner - 8), Some(inner));
        (places.inner_l3, places.inner_l4) = (Some(inside.places.l3), inside.places.l4);
    }
    sight
}

fn layers(frame: &[u8], from: usize) -> (Sight, Option<usize>) {
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let mac = |at: usize| frame[at..at + 6].try_into().unwrap();
    let mut key = FlowKey::default();
    let mut l3 = from + 14;
    if half(from + 12) == 0x8100 {
        key.outer.tags[0] = Some(Tag { service: false, tci: half(from + 14) });
        l3 += 4;
    }
    (key.outer.dmac, key.outer.smac, key.outer.ethertype) = (mac(from), mac(from + 6), half(l3 - 2));
    let mut places = Places { l3, ..Places::default() };
    if key.outer.ethertype != 0x800 {
        return (Sight { key, places }, None);
    }
    let mut ip = Ip { version: 4, protocol: frame[l3 + 9], ttl: frame[l3 + 8], ..Ip::default() };
    ip.source[12..].copy_from_slice(&frame[l3 + 12..l3 + 16]);
    ip.destination[12..].copy_from_slice(&frame[l3 + 16..l3 + 20]);
    key.outer.ip = Some(ip);
    let l4 = l3 + 20;
    places.l4 = Some(l4);
    key.outer.l4 = L4::Udp { source: half(l4), destination: half(l4 + 2) };
    (Sight { key, places }, (half(l4 + 2) == 9).then_some(l4 + 16))
}

fn sum(bytes: &[u8]) -> u16 {
    let total: u32 = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum();
    let total = (total & 0xffff) + (total >> 16);
    ((total & 0xffff) + (total >> 16)) as u16
}

/// A frame with valid checksums: to `port`, with that payload.
fn frame(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let udp = 8 + payload.len() as u16;
    f.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f[16..18].copy_from_slice(&(20 + udp).to_be_bytes());
    let checksum = !sum(&f[14..34]);
    f[24..26].copy_from_slice(&checksum.to_be_bytes());
    f.extend([4, 210]);
    f.extend(port.to_be_bytes());
    f.extend(udp.to_be_bytes());
    f.extend([0, 0]);
    f.extend(payload);
    let checksum = !sum(&[&f[26..34], &[0, 17], &udp.to_be_bytes(), &f[34..]].concat());
    f[40..42].copy_from_slice(&checksum.to_be_bytes());
    f
}

fn checksums_hold(f: &[u8]) -> bool {
    let udp = (f.len() - 34) as u16;
    sum(&f[14..34]) == 0xffff && sum(&[&f[26..34], &[0, 17], &udp.to_be_bytes(), &f[34..]].concat()) == 0xffff
}

const ICM: u64 = 0x10_0000_0000;
const LISTS: u64 = 0x20_0000_0000;

/// Tables of a ConnectX-6 Dx, with a page of memory for entries and one for lists.
fn steering() -> Steering {
    let mut steering = Steering::new(Offer::connectx6dx());
    let mut caps = DeviceMemory::new();
    caps.set(DeviceMemory::STEERING_SW_ICM_START_ADDRESS, ICM)
        .set(DeviceMemory::LOG_STEERING_SW_ICM_SIZE, 20);
    caps.set(DeviceMemory::HEADER_MODIFY_SW_ICM_START_ADDRESS, LISTS);
    caps.set(DeviceMemory::LOG_HEADER_MODIFY_SW_ICM_SIZE, 20);
    steering.memory = SwIcm::new(&caps);
    assert!(steering.memory.allocate(ICM, 16) && steering.memory.allocate(LISTS, 12));
    steering
}

fn walk(steering: &Steering, kind: TableType, bytes: &[u8]) -> Verdict {
    let mut verdict = Verdict::default();
    let sight = parse(bytes, &VxlanPorts::default());
    let vxlan = VxlanPorts::default();
    steering.walk(kind, &Frame { bytes, sight: &sight, parser: parse, vxlan, now: 0 }, &mut verdict);
    verdict
}

/// What leaves, if one does.
fn left(steering: &Steering, bytes: &[u8]) -> Option<Vec<u8>> {
    let verdict = walk(steering, TableType::NicTx, bytes);
    let one = verdict.deliveries.into_iter().next()?;
    assert_eq!(one.to, Target::Wire);
    Some(one.frame.unwrap_or_else(|| bytes.to_vec()))
}

/// A root of frames that are sent, all of which the entry takes.
fn by_command(steering: &mut Steering, what: Deed) {
    let table = steering.create_table(FlowTable::new(TableType::NicTx, 1, 4, Miss::Default)).unwrap();
    steering.set_root(TableType::NicTx, Some(table));
    let new = NewGroup { table, places: (0, 0), enable: 0, mask: &MatchParam::new() };
    let group = steering.create_group(&new).unwrap();
    let key = Steering::key(steering.group(group).unwrap(), &MatchParam::new());
    steering.insert_entry(0, Entry { group, key, what });
}

fn set(field: u32, offset: u32, length: u32, data: u32) -> FieldAction {
    let mut action = FieldAction::new();
    action.set(FieldAction::ACTION_TYPE, field_action::SET).set(FieldAction::FIELD, field);
    *action.set(FieldAction::OFFSET, offset).set(FieldAction::LENGTH, length).set(FieldAction::DATA, data)
}

#[test]
fn fields_are_changed_and_checksums_follow() {
    let mut s = steering();
    let mut add = set(field::IPV4_TTL, 0, 0, 0xffff_ffff);
    add.set(FieldAction::ACTION_TYPE, field_action::ADD);
    let mut copy = set(field::SIPV4, 0, 0, 0);
    copy.set(FieldAction::ACTION_TYPE, field_action::COPY).set(FieldAction::DST_FIELD, field::DIPV4);
    let actions = [
        set(field::SMAC_47_16, 0, 0, 0x8888_8888),
        set(field::SMAC_15_0, 0, 16, 0x8889),
        set(field::UDP_DPORT, 8, 4, 0xf),
        set(field::IP_DSCP, 0, 6, 0x2a),
        set(field::SIPV4, 0, 0, 0xc0a8_0107),
        set(field::TCP_SEQ_NUM, 0, 0, 7),
        add,
        copy,
    ];
    assert!(actions.iter().all(is_valid));
    let header = s.create_header_changes(HeaderChanges { actions: actions.into(), users: 0 }).unwrap();
    by_command(&mut s, Deed { action: action::ALLOW | action::MODIFY_HEADER, header, ..Deed::default() });
    let before = frame(5, b"odd");
    assert!(checksums_hold(&before));
    let after = left(&s, &before).unwrap();
    assert!(checksums_hold(&after), "{after:x?}");
    assert_eq!(after[6..12], [0x88, 0x88, 0x88, 0x88, 0x88, 0x89]);
    assert_eq!((after[15], after[22]), (0x2a << 2, 63));
    assert_eq!(after[26..34], [192, 168, 1, 7, 192, 168, 1, 7]);
    assert_eq!(after[36..38], [0x0f, 5]);
    assert_eq!(after[42..], *b"odd");
    let mut unsummed = frame(5, b"x");
    unsummed[40..42].fill(0);
    assert_eq!(left(&s, &unsummed).unwrap()[40..42], [0, 0], "who has no checksum gets none");
    assert_eq!(s.header_changes(header).unwrap().users, 1);
}

#[test]
fn tunnels_are_put_on_and_taken_off() {
    let inside = frame(5, b"inside");
    // Lengths and checksum are not there yet.
    let mut outer = frame(9, &[0x0d; 8]);
    outer[16..18].fill(0);
    outer[24..26].fill(0);
    outer[38..42].fill(0);
    let mut s = steering();
    let context = Reformat { kind: ReformatKind::L2ToTunnel, header: outer.clone().into(), users: 0 };
    let reformat = s.create_reformat(context).unwrap();
    by_command(&mut s, Deed { action: action::ALLOW | action::REFORMAT, reformat, ..Deed::default() });
    let sent = left(&s, &inside).unwrap();
    assert_eq!(sent.len(), outer.len() + inside.len());
    assert_eq!(sent[outer.len()..], inside);
    assert_eq!(u16::from_be_bytes([sent[16], sent[17]]) as usize, sent.len() - 14);
    assert_eq!(u16::from_be_bytes([sent[38], sent[39]]) as usize, sent.len() - 34);
    assert_eq!((sum(&sent[14..34]), [sent[40], sent[41]]), (0xffff, [0, 0]));
    // And off again; what is in no tunnel stays as it is.
    let mut s = steering();
    by_command(&mut s, Deed { action: action::ALLOW | action::DECAP, ..Deed::default() });
    assert_eq!(left(&s, &sent).unwrap(), inside);
    assert_eq!(left(&s, &inside).unwrap(), inside);
    // The same of datagrams.
    let l2 = [0xaa; 12].iter().chain(&[8, 0]).copied().collect::<Vec<u8>>();
    let mut s = steering();
    let context = Reformat { kind: ReformatKind::TunnelToL2, header: l2.clone().into(), users: 0 };
    let reformat = s.create_reformat(context).unwrap();
    by_command(&mut s, Deed { action: action::ALLOW | action::REFORMAT, reformat, ..Deed::default() });
    assert_eq!(left(&s, &sent).unwrap(), [&l2[..], &inside[14..]].concat());
    let mut s = steering();
    let context = Reformat { kind: ReformatKind::L3ToTunnel, header: outer.clone().into(), users: 0 };
    let reformat = s.create_reformat(context).unwrap();
    by_command(&mut s, Deed { action: action::ALLOW | action::REFORMAT, reformat, ..Deed::default() });
    assert_eq!(left(&s, &inside).unwrap()[outer.len()..], inside[14..]);
}

/// An entry that compares under a mask: it goes to `next` with that many entries, or misses.
fn entry(kind: u32, mask: [u8; 16], value: [u8; 16], next: (u64, u64), miss: u64) -> [u8; 64] {
    let mut e = Ste::new();
    e.set(Ste::ENTRY_FORMAT, kind >> 8).set(Ste::MATCH_DEFINER, kind & 0xff);
    e.set(Ste::MISS_ADDRESS_39_32, (miss >> 32) as u32).set(Ste::MISS_ADDRESS_31_6, (miss as u32) >> 6);
    let place = next.0 >> 5 | next.1;
    e.set(Ste::NEXT_TABLE_39_32, (place >> 27) as u32).set(Ste::NEXT_TABLE_31_5, place as u32 & 0x7ff_ffff);
    let mut bytes = *e.bytes();
    bytes[Ste::MASK..Ste::TAG].copy_from_slice(&mask);
    bytes[Ste::TAG..].copy_from_slice(&value);
    bytes
}

/// The same, of the format that everything hits.
fn always(next: u64, actions: &[[u8; 12]]) -> [u8; 64] {
    let mut bytes = entry(entry_format::MATCH << 8 | 0xf, [0; 16], [0; 16], (next, 1), 0);
    bytes[Ste::MATCH_ACTIONS..Ste::ACTIONS_END].fill(0);
    let mut at = Ste::MATCH_ACTIONS;
    for one in actions {
        let words = ste::words(u32::from(one[0])).unwrap();
        bytes[at..at + words * 4].copy_from_slice(&one[..words * 4]);
        at += words * 4;
    }
    bytes
}

fn one(id: u32, fields: &[(hca_spec::layout::Field<SteAction>, u32)]) -> [u8; 12] {
    let mut one = SteAction::new();
    one.set(SteAction::ACTION_ID, id);
    for (field, value) in fields {
        one.set(*field, *value);
    }
    *one.bytes()
}

/// The driver's own table is the root.
fn by_driver(steering: &mut Steering, kind: TableType, entries: &[(u64, [u8; 64])]) {
    for (at, bytes) in entries {
        assert!(steering.memory.write(ICM + at, bytes));
    }
    let mut table = FlowTable::new(kind, 1, 0, Miss::Default);
    table.software = Some(ICM);
    let table = steering.create_table(table).unwrap();
    steering.set_root(kind, Some(table));
}

/// Entries with the same hash follow each other by misses; a table of many is entered by the hash.
#[test]
fn entries_of_a_driver_are_found() {
    let mut s = steering();
    let counter = s.alloc_counters(1).unwrap();
    let smac = |last: u8| {
        let mut tag = [0; 16];
        tag[4..10].copy_from_slice(&[2, 0, 0, 0, 0, last]);
        tag
    };
    let mut mask = [0; 16];
    mask[4..10].fill(0xff);
    let none = (address_of_tir(1), 1);
    let bytes = u32::from_str_radix("0000111111000000", 2).unwrap();
    let slot = tags::index(smac(2), bytes, 8);
    let mut root = entry(lookup::L2_SOURCE, [0; 16], [0; 16], (ICM + 0x1000, 8), DROP);
    let mut hashed = Ste::from_prefix_or_zero(&root);
    hashed.set(Ste::HASH_DEFINER, lookup::L2_SOURCE).set(Ste::BYTE_MASK, bytes);
    root[..0x20].copy_from_slice(&hashed.bytes()[..0x20]);
    let mut counted = entry(lookup::L2_SOURCE, mask, smac(2), (address_of_tir(7), 1), DROP);
    counted[1..4].copy_from_slice(&counter.to_be_bytes()[1..]);
    let first = entry(lookup::L2_SOURCE, mask, smac(9), none, ICM + 0x2000);
    by_driver(&mut s, TableType::NicRx, &[(0, root), (0x1000 + slot * 64, first), (0x2000, counted)]);
    let verdict = walk(&s, TableType::NicRx, &frame(5, b"x"));
    let [delivery] = &verdict.deliveries[..] else { panic!("{verdict:?}") };
    assert_eq!((delivery.to, &delivery.frame), (Target::Tir(7), &None));
    assert_eq!(s.counter(counter), Some(Traffic { packets: 1, octets: 43 }));
    let mut other = frame(5, b"x");
    other[11] = 0x33;
    assert_eq!(walk(&s, TableType::NicRx, &other).deliveries, []);
    // The other way round: what is the same misses.
    let mut inverted = Ste::from_prefix_or_zero(&first);
    inverted.set(Ste::MATCH_POLARITY, 1);
    assert!(s.memory.write(ICM + 0x1000 + slot * 64, &inverted.bytes()[..0x20]));
    assert_eq!(walk(&s, TableType::NicRx, &frame(5, b"x")).deliveries[0].to, Target::Tir(1));
    s.memory.free(ICM);
    assert_eq!(walk(&s, TableType::NicRx, &frame(5, b"x")).dropped, 1, "the driver took its memory away");
}

#[test]
fn entries_of_a_driver_act() {
    use SteAction as A;
    let mut s = steering();
    let tag = one(ste::INSERT_INLINE, &[(A::START_OFFSET, 6), (A::DATA, 0x8100_bc0c)]);
    let mac = one(
        ste::SET,
        &[
            (A::DESTINATION, word::SMAC_47_16),
            (A::DESTINATION_SHIFT, 32 + 8),
            (A::LENGTH, 8),
            (A::DATA, 0x77),
        ],
    );
    by_driver(&mut s, TableType::NicTx, &[(0, always(ICM + 64, &[tag])), (64, always(ALLOW, &[mac]))]);
    let before = frame(5, b"x");
    let after = left(&s, &before).unwrap();
    assert_eq!(after[..18], [2, 0, 0, 0, 0, 1, 2, 0, 0x77, 0, 0, 2, 0x81, 0, 0xbc, 0x0c, 8, 0]);
    assert_eq!(after[18..], before[14..]);
    // Out again, and a register that was written is compared.
    let mut s = steering();
    let pop = one(ste::REMOVE_BY_SIZE, &[(A::START_ANCHOR, anchor::FIRST_VLAN), (A::REMOVE_SIZE, 2)]);
    let register = one(
        ste::SET,
        &[
            (A::DESTINATION, word::REGISTER_C_0),
            (A::DESTINATION_SHIFT, 32),
            (A::LENGTH, 32),
            (A::DATA, 0x1234),
        ],
    );
    let copied = one(
        ste::COPY,
        &[
            (A::DESTINATION, word::REGISTER_C_1),
            (A::DESTINATION_SHIFT, 32),
            (A::LENGTH, 16),
            (A::SOURCE, word::REGISTER_C_0),
            (A::SOURCE_SHIFT, 32),
        ],
    );
    let mut value = [0; 16];
    value[2..4].copy_from_slice(&[0x12, 0x34]);
    value[6..8].copy_from_slice(&[0x12, 0x34]);
    let ends = entry(lookup::REGISTERS_0, [0xff; 16], value, (ALLOW, 1), DROP);
    by_driver(
        &mut s,
        TableType::NicTx,
        &[(0, always(ICM + 64, &[pop, register])), (64, always(ICM + 128, &[copied])), (128, ends)],
    );
    assert_eq!(left(&s, &after).unwrap()[12..], before[12..]);
    // A list that the driver wrote: out of a tunnel, and a header of layer 2 in pieces.
    let mut s = steering();
    let list = [
        one(ste::REMOVE_HEADERS, &[(A::END_ANCHOR, anchor::INNER_IP), (A::DECAP, 1)]),
        one(ste::INSERT_INLINE, &[(A::DATA, 0x0506_0800)]),
        one(ste::INSERT_INLINE, &[(A::DATA, 0x0102_0304)]),
        one(ste::INSERT_INLINE, &[(A::DATA, 0xccdd_eeff)]),
        one(ste::INSERT_INLINE, &[(A::DATA, 0x0000_aabb)]),
        one(ste::REMOVE_BY_SIZE, &[(A::REMOVE_SIZE, 1)]),
    ];
    for (i, action) in (0..).zip(&list) {
        assert!(s.memory.write(LISTS + 64 + i * 8, &action[..8]));
    }
    let change = one(ste::MODIFY_LIST, &[(A::LIST_LENGTH, 6), (A::LIST_POINTER, 1)]);
    by_driver(&mut s, TableType::NicTx, &[(0, always(ALLOW, &[change]))]);
    let inside = frame(5, b"inside");
    let tunnel = frame(9, &[&[0; 8][..], &inside].concat());
    let l2 = [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 1, 2, 3, 4, 5, 6, 8, 0];
    assert_eq!(left(&s, &tunnel).unwrap(), [&l2[..], &inside[14..]].concat());
    // A context's header, whose lengths are filled in.
    let mut s = steering();
    let outer = frame(9, &[0x0d; 8]);
    let context = Reformat { kind: ReformatKind::L2ToTunnel, header: outer.clone().into(), users: 0 };
    let reformat = s.create_reformat(context).unwrap();
    let put = one(
        ste::INSERT_POINTER,
        &[
            (A::INSERT_SIZE, outer.len() as u32 / 2),
            (A::INSERT_ATTRIBUTES, insert::ENCAP),
            (A::DATA, reformat),
        ],
    );
    by_driver(&mut s, TableType::NicTx, &[(0, always(ALLOW, &[put]))]);
    let sent = left(&s, &inside).unwrap();
    assert_eq!((sent.len(), &sent[outer.len()..]), (outer.len() + inside.len(), &inside[..]));
    assert_eq!(u16::from_be_bytes([sent[16], sent[17]]) as usize, sent.len() - 14);
}

/// Entries that lead to themselves end, and so do those of any bytes.
#[test]
fn no_entry_holds_up_a_packet() {
    let mut s = steering();
    by_driver(&mut s, TableType::NicTx, &[(0, always(ICM, &[]))]);
    assert!(walk(&s, TableType::NicTx, &frame(5, b"x")).overrun);
    let grows = one(ste::INSERT_INLINE, &[]);
    assert!(s.memory.write(ICM, &always(ICM, &[grows])));
    assert!(walk(&s, TableType::NicTx, &frame(5, b"x")).overrun);
    let mut state = 1u64;
    for _ in 0..2000 {
        let mut bytes = [0; 64];
        for byte in &mut bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
        // Every other one hits, and most actions are of a kind that there is.
        if bytes[1] & 1 == 1 {
            (bytes[0], bytes[Ste::MATCH_ACTIONS]) = (4, bytes[Ste::MATCH_ACTIONS] & 0xf);
        }
        assert!(s.memory.write(ICM, &bytes));
        walk(&s, TableType::NicTx, &frame(9, &frame(5, b"inside")));
    }
}

/// The same as [`always`], but it hits what a definer says: those who have this tag.
fn defined(definer: u32, tag: Option<[u8; 32]>, next: (u64, u64, u32), miss: u64) -> [u8; 64] {
    let mut bytes = entry(entry_format::MATCH << 8 | definer, [0; 16], [0; 16], (next.0, next.1), miss);
    let mut ste = Ste::from_prefix_or_zero(&bytes);
    ste.set(Ste::HASH_DEFINER, next.2);
    bytes[..Ste::MATCH_TAG].copy_from_slice(&ste.bytes()[..Ste::MATCH_TAG]);
    bytes[Ste::MATCH_ACTIONS..Ste::ACTIONS_END].fill(0);
    bytes[Ste::MATCH_TAG..].copy_from_slice(&tag.unwrap_or_default());
    bytes
}

#[test]
fn definers_say_what_is_compared() {
    use hca_spec::definer::Definer22 as D;
    let mut s = steering();
    let mut mask = D::new();
    mask.set(D::OUTER_SMAC_47_16, u32::MAX).set(D::OUTER_SMAC_15_0, 0xffff).set(D::OUTER_L4_DPORT, 0xff00);
    let definer = s.definers.insert(Definer { format: 22, mask: *mask.bytes() }).unwrap();
    let mut value = D::new();
    value.set(D::OUTER_SMAC_47_16, 0x0200_0000).set(D::OUTER_SMAC_15_0, 2).set(D::OUTER_L4_DPORT, 0x100);
    let slot = tags::place(value.bytes(), 8);
    let root = defined(entry_format::NO_DEFINER, None, (ICM + 0x1000, 8, definer), DROP);
    let found = defined(definer, Some(*value.bytes()), (address_of_tir(7), 1, 0xf), DROP);
    by_driver(&mut s, TableType::NicRx, &[(0, root), (0x1000 + slot * 64, found)]);
    // The port's low byte is not compared, and no other field.
    for port in [0x100, 0x1ff] {
        assert_eq!(walk(&s, TableType::NicRx, &frame(port, b"x")).deliveries[0].to, Target::Tir(7));
    }
    assert_eq!(walk(&s, TableType::NicRx, &frame(0x200, b"x")).deliveries, []);
    let mut other = frame(0x100, b"x");
    other[11] = 0x33;
    assert_eq!(walk(&s, TableType::NicRx, &other).deliveries, []);
    // Nothing is the same for a definer that is gone.
    s.definers.remove(definer);
    let alone = defined(definer, Some([0; 32]), (address_of_tir(7), 1, 0xf), address_of_tir(8));
    assert!(s.memory.write(ICM, &alone));
    assert_eq!(walk(&s, TableType::NicRx, &frame(0x100, b"x")).deliveries[0].to, Target::Tir(8));
}

#[test]
fn meters_write_colors_that_are_compared() {
    use hca_spec::rewrite::{FlowMeterIn, meter_color, meter_mode};
    let mut s = steering();
    let mut input = FlowMeterIn::new();
    input.set(FlowMeterIn::ACTIVE, 1).set(FlowMeterIn::VALID, 1);
    input.set(FlowMeterIn::START_COLOR, meter_color::GREEN).set(FlowMeterIn::METER_MODE, meter_mode::PACKETS);
    // 128 bytes a microsecond.
    input.set(FlowMeterIn::CIR_MANTISSA, 132).set(FlowMeterIn::CIR_EXPONENT, 10);
    let mut behind = FlowTable::new(TableType::NicRx, 2, 0, Miss::Default);
    behind.software = Some(ICM + 0x40);
    let behind = s.create_table(behind).unwrap();
    s.create_meter(0x100, Meter::new(behind, 0, Parameters::of(&input).unwrap()));
    let mut green = [0; 16];
    green[3] = meter_color::GREEN as u8;
    let mut register = [0; 16];
    register[..4].fill(0xff);
    let color = entry(lookup::REGISTERS_0, register, green, (address_of_tir(1), 1), address_of_tir(2));
    by_driver(&mut s, TableType::NicRx, &[(0, always(address_of_meter(0x100), &[])), (0x40, color)]);
    let to = |now: u128| {
        let (bytes, mut verdict) = (frame(5, b"x"), Verdict::default());
        let sight = parse(&bytes, &VxlanPorts::default());
        let vxlan = VxlanPorts::default();
        let frame = Frame { bytes: &bytes, sight: &sight, parser: parse, vxlan, now };
        s.walk(TableType::NicRx, &frame, &mut verdict);
        verdict.deliveries[0].to
    };
    // Twice the rate: every second one.
    let seen: Vec<Target> = (0..6).map(|n| to(n * 500_000)).collect();
    let both = [Target::Tir(1), Target::Tir(2)];
    assert_eq!(seen, both.repeat(3));
}

/// Changes in lists that drivers wrote have a budget: four of the longest lists are within it, and a frame that meets a fifth goes nowhere.
#[test]
fn changes_in_lists_are_few() {
    for (entries, overrun) in [(4u64, false), (5, true)] {
        let mut s = steering();
        let change = one(ste::MODIFY_LIST, &[(SteAction::LIST_LENGTH, 255), (SteAction::LIST_POINTER, 1)]);
        let entry_at = |i: u64| {
            let next = if i + 1 == entries { ALLOW } else { ICM + 64 * (i + 1) };
            (64 * i, always(next, &[change]))
        };
        by_driver(&mut s, TableType::NicTx, &(0..entries).map(entry_at).collect::<Vec<_>>());
        let verdict = walk(&s, TableType::NicTx, &frame(5, b"x"));
        let found = (verdict.overrun, verdict.deliveries.len());
        assert_eq!(found, (overrun, usize::from(!overrun)), "{entries} lists");
    }
}
