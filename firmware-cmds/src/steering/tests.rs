//! The index against a reference that compares entry by entry, on random tables and packets.

use hca_spec::flow::{MatchLayers, MatchMisc, MatchParam, action, criteria};

use super::*;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }
}

/// Headers with few values, so that entries often match.
fn layers(rng: &mut Rng) -> Layers {
    let mac = |rng: &mut Rng| [0, 1, 2, 3, 4, rng.below(3) as u8];
    let tag = |rng: &mut Rng| Tag { service: rng.one_in(2), tci: rng.below(3) as u16 };
    let mut address = [0; 16];
    address[15] = rng.below(3) as u8;
    let version = rng.pick(&[4, 6]);
    let ip = Ip {
        version,
        protocol: rng.pick(&[6, 17, 50]),
        dscp: rng.below(2) as u8,
        fragment: rng.one_in(4),
        ttl: rng.below(2) as u8,
        flow_label: if version == 6 { rng.below(2) } else { 0 },
        source: address,
        ..Ip::default()
    };
    let (source, destination) = (rng.below(2) as u16, rng.below(3) as u16);
    let l4 = match (ip.protocol, ip.fragment) {
        (_, true) => L4::None,
        (6, _) => L4::Tcp { source, destination, flags: rng.below(4) as u16 },
        (17, _) => L4::Udp { source, destination },
        _ => L4::Esp { spi: rng.below(2) },
    };
    let has_ip = !rng.one_in(5);
    let first = if rng.one_in(2) { Some(tag(rng)) } else { None };
    Layers {
        dmac: mac(rng),
        smac: mac(rng),
        ethertype: if has_ip { 0x800 } else { 0x806 },
        tags: [first, first.filter(|_| rng.one_in(2)).map(|_| tag(rng))],
        ip: has_ip.then_some(ip),
        l4: if has_ip { l4 } else { L4::None },
    }
}

fn packet(rng: &mut Rng) -> FlowKey {
    FlowKey {
        outer: layers(rng),
        inner: if rng.one_in(4) { Some(layers(rng)) } else { None },
        gre: if rng.one_in(4) { Some(Gre { protocol: 0x800, ..Gre::default() }) } else { None },
        vxlan_vni: if rng.one_in(4) { Some(rng.below(2)) } else { None },
        bth: if rng.one_in(4) { Some(Bth { opcode: 4, dest_qp: rng.below(2) }) } else { None },
        ..FlowKey::default()
    }
}

/// What of a packet a criterion compares: the reference's own reading of the manual, field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Criterion {
    Dmac,
    Ethertype,
    CTag,
    STag,
    Vid,
    IpVersion,
    Protocol,
    Frag,
    Source,
    UdpPort,
    TcpPort,
    TcpFlag0,
    InnerUdpPort,
    InnerCTag,
    SecondVid,
    SecondCTag,
    Vni,
    Qp,
}

use Criterion::*;

const CRITERIA: [Criterion; 18] = [
    Dmac,
    Ethertype,
    CTag,
    STag,
    Vid,
    IpVersion,
    Protocol,
    Frag,
    Source,
    UdpPort,
    TcpPort,
    TcpFlag0,
    InnerUdpPort,
    InnerCTag,
    SecondVid,
    SecondCTag,
    Vni,
    Qp,
];

impl Criterion {
    /// Puts a value into the place of the field.
    fn put(self, param: &mut MatchParam, value: u32) {
        use {MatchLayers as L, MatchMisc as M};
        match self {
            Dmac => _ = param.outer_mut().set(L::DMAC_15_0, value),
            Ethertype => _ = param.outer_mut().set(L::ETHERTYPE, value),
            CTag => _ = param.outer_mut().set(L::CVLAN_TAG, value),
            STag => _ = param.outer_mut().set(L::SVLAN_TAG, value),
            Vid => _ = param.outer_mut().set(L::FIRST_VID, value),
            IpVersion => _ = param.outer_mut().set(L::IP_VERSION, value),
            Protocol => _ = param.outer_mut().set(L::IP_PROTOCOL, value),
            Frag => _ = param.outer_mut().set(L::FRAG, value),
            Source => _ = param.outer_mut().set(L::SRC_31_0, value),
            UdpPort => _ = param.outer_mut().set(L::UDP_DPORT, value),
            TcpPort => _ = param.outer_mut().set(L::TCP_DPORT, value),
            TcpFlag0 => _ = param.outer_mut().set(L::TCP_FLAGS, value & 1),
            InnerUdpPort => _ = param.inner_mut().set(L::UDP_DPORT, value),
            InnerCTag => _ = param.inner_mut().set(L::CVLAN_TAG, value),
            SecondVid => _ = param.misc_mut().set(M::OUTER_SECOND_VID, value),
            SecondCTag => _ = param.misc_mut().set(M::OUTER_SECOND_CVLAN_TAG, value),
            Vni => _ = param.misc_mut().set(M::VXLAN_VNI, value),
            Qp => _ = param.misc_mut().set(M::BTH_DST_QP, value),
        }
    }

    fn mask(self) -> u32 {
        if matches!(self, TcpFlag0) { 1 } else { u32::MAX }
    }

    fn any_value(self, rng: &mut Rng) -> u32 {
        match self {
            Dmac => rng.pick(&[0x400, 0x401, 0x402]),
            Ethertype => rng.pick(&[0x800, 0x806]),
            IpVersion => rng.pick(&[0, 4, 6]),
            Protocol => rng.pick(&[6, 17, 50]),
            Vid | SecondVid | Source | UdpPort | TcpPort | InnerUdpPort => rng.below(3),
            _ => rng.below(2),
        }
    }

    /// Whether a packet has that value there.
    fn holds(self, key: &FlowKey, value: u32) -> bool {
        let outer = &key.outer;
        let udp = |layers: &Layers| match layers.l4 {
            L4::Udp { destination, .. } => Some(u32::from(destination)),
            _ => None,
        };
        // An entry for tags of the other kind, or of none, asks for no tag at all.
        let tag = |tag: Option<Tag>, service: bool| match value {
            0 => tag.is_none(),
            _ => tag.is_some_and(|tag| tag.service == service),
        };
        match self {
            Dmac => u32::from(outer.dmac[4]) << 8 | u32::from(outer.dmac[5]) == value,
            Ethertype => u32::from(outer.ethertype) == value,
            CTag => tag(outer.tags[0], false),
            STag => tag(outer.tags[0], true),
            Vid => outer.tags[0].is_some_and(|tag| u32::from(tag.tci & 0xfff) == value),
            IpVersion => outer.ip.map_or(0, |ip| u32::from(ip.version)) == value,
            Protocol => outer.ip.is_some_and(|ip| u32::from(ip.protocol) == value),
            Frag => outer.ip.is_some_and(|ip| ip.fragment) == (value == 1),
            Source => outer.ip.is_some_and(|ip| u32::from(ip.source[15]) == value),
            UdpPort => udp(outer) == Some(value),
            TcpPort => {
                matches!(outer.l4, L4::Tcp { destination, .. } if u32::from(destination) == value)
            }
            TcpFlag0 => matches!(outer.l4, L4::Tcp { flags, .. } if u32::from(flags & 1) == value & 1),
            InnerUdpPort => key.inner.as_ref().and_then(udp) == Some(value),
            InnerCTag => key.inner.is_some_and(|inner| tag(inner.tags[0], false)),
            SecondVid => outer.tags[1].is_some_and(|tag| u32::from(tag.tci & 0xfff) == value),
            SecondCTag => tag(outer.tags[1], false),
            Vni => key.vxlan_vni == Some(value),
            Qp => key.bth.is_some_and(|bth| bth.dest_qp == value),
        }
    }
}

/// A group of the reference.
#[derive(Debug, Clone)]
struct Plain {
    number: u32,
    places: (u32, u32),
    compared: Vec<Criterion>,
    /// Place, values, TIR.
    entries: Vec<(u32, Vec<u32>, u32)>,
}

/// Places of a group.
const GROUP: u32 = 16;
/// Groups of a table.
const GROUPS: u32 = 12;

fn deed(tir: u32) -> Deed {
    Deed { action: action::FORWARD, destinations: [Destination::Tir(tir)].into(), ..Deed::default() }
}

/// One table, changed at random, agrees with the reference all the while.
fn compare(seed: u64) -> u32 {
    let mut rng = Rng(seed);
    let mut steering = Steering::new(Offer::ethernet());
    let table = steering.create_table(FlowTable::new(TableType::NicRx, 1, 16, Miss::Default)).unwrap();
    steering.set_root(TableType::NicRx, Some(table));
    let mut plain: Vec<Plain> = Vec::new();
    let (mut verdict, mut matched, mut next_tir) = (Verdict::default(), 0, 1);
    for _ in 0..600 {
        match rng.below(8) {
            0 => {
                let first = rng.below(GROUPS) * GROUP;
                let places = (first, first + GROUP - 1);
                if plain.iter().any(|group| group.places == places) {
                    continue;
                }
                // Few different criteria, so that groups share them.
                let mut compared: Vec<Criterion> = (0..rng.below(3)).map(|_| rng.pick(&CRITERIA)).collect();
                // Of which kind a tag is, is one field.
                if compared.contains(&CTag) {
                    compared.retain(|criterion| *criterion != STag);
                }
                let mut mask = MatchParam::new();
                compared.iter().for_each(|criterion| criterion.put(&mut mask, criterion.mask()));
                let enable = criteria::OUTER | criteria::MISC | criteria::INNER;
                let new = NewGroup { table, places, enable, mask: &mask };
                let number = steering.create_group(&new).unwrap();
                plain.push(Plain { number, places, compared, entries: Vec::new() });
            }
            1 if !plain.is_empty() && rng.one_in(3) => {
                let gone = plain.swap_remove(rng.below(plain.len() as u32) as usize);
                gone.entries.iter().for_each(|(place, ..)| steering.remove_entry(table, *place));
                steering.destroy_group(gone.number);
            }
            2..=4 if !plain.is_empty() => {
                let at = rng.below(plain.len() as u32) as usize;
                let group = &mut plain[at];
                let place = group.places.0 + rng.below(GROUP);
                if group.entries.iter().any(|(taken, ..)| *taken == place) {
                    continue;
                }
                let values: Vec<u32> = group.compared.iter().map(|c| c.any_value(&mut rng)).collect();
                // A field that is named twice has the last value.
                let mut param = MatchParam::new();
                let pairs = || group.compared.iter().zip(&values);
                pairs().for_each(|(criterion, _)| criterion.put(&mut param, 0));
                pairs().for_each(|(criterion, value)| criterion.put(&mut param, *value));
                let values = group
                    .compared
                    .iter()
                    .map(|c| *pairs().rev().find(|(other, _)| *other == c).unwrap().1)
                    .collect();
                let key = Steering::key(steering.group(group.number).unwrap(), &param);
                steering.insert_entry(place, Entry { group: group.number, key, what: deed(next_tir) });
                group.entries.push((place, values, next_tir));
                next_tir += 1;
            }
            5 if !plain.is_empty() => {
                let at = rng.below(plain.len() as u32) as usize;
                let group = &mut plain[at];
                if let Some((place, ..)) = group.entries.pop() {
                    steering.remove_entry(table, place);
                }
            }
            _ => {
                for _ in 0..4 {
                    let key = packet(&mut rng);
                    Frame::pass(&steering, TableType::NicRx, &key, 60, &mut verdict);
                    let entries = plain
                        .iter()
                        .flat_map(|group| group.entries.iter().map(move |entry| (&group.compared, entry)));
                    let fits = |compared: &[Criterion], values: &[u32]| {
                        compared.iter().zip(values).all(|(criterion, value)| criterion.holds(&key, *value))
                    };
                    let expected = entries
                        .filter(|(compared, (_, values, _))| fits(compared, values))
                        .min_by_key(|(_, (place, ..))| *place)
                        .map(|(_, (_, _, tir))| Target::Tir(*tir));
                    let found = verdict.deliveries.first().map(|delivery| delivery.to);
                    assert_eq!(found, expected, "seed {seed}: {key:?} in {plain:?}");
                    assert_eq!(verdict.missed == 0, expected.is_some());
                    matched += u32::from(expected.is_some());
                }
            }
        }
        assert_eq!(steering.entries() as usize, plain.iter().map(|group| group.entries.len()).sum::<usize>());
    }
    for group in plain {
        group.entries.iter().for_each(|(place, ..)| steering.remove_entry(table, *place));
        steering.destroy_group(group.number);
    }
    steering.destroy_table(table);
    assert_eq!(
        (steering.tables(), steering.groups(), steering.entries(), steering.icm_bytes()),
        (0, 0, 0, 0)
    );
    assert!((0..next_tir).all(|tir| steering.tir_users(tir) == 0));
    assert_eq!(steering.root(TableType::NicRx), None);
    matched
}

#[test]
fn the_index_finds_what_a_search_finds() {
    let matched: u32 = (0..300).map(compare).sum();
    assert!(matched > 50_000, "the tables match packets: {matched}");
}

/// "No C-tag" is no tag: frames with an S-tag don't pass as untagged.
#[test]
fn untagged_means_without_any_tag() {
    let mut steering = Steering::new(Offer::ethernet());
    let table = steering.create_table(FlowTable::new(TableType::NicRx, 1, 0, Miss::Default)).unwrap();
    steering.set_root(TableType::NicRx, Some(table));
    let mut mask = MatchParam::new();
    mask.outer_mut().set(MatchLayers::CVLAN_TAG, 1);
    let new = NewGroup { table, places: (0, 0), enable: criteria::OUTER, mask: &mask };
    let group = steering.create_group(&new).unwrap();
    let key = Steering::key(steering.group(group).unwrap(), &MatchParam::new());
    steering.insert_entry(0, Entry { group, key, what: deed(7) });
    let mut verdict = Verdict::default();
    let mut passes = |tag: Option<Tag>| {
        let outer = Layers { tags: [tag, None], ..Layers::default() };
        let key = FlowKey { outer, ..FlowKey::default() };
        Frame::pass(&steering, TableType::NicRx, &key, 60, &mut verdict);
        verdict.missed == 0
    };
    assert!(passes(None));
    assert!(!passes(Some(Tag { service: false, tci: 5 })) && !passes(Some(Tag { service: true, tci: 5 })));
    assert_eq!(Steering::mask(steering.group(group).unwrap()), mask, "shown as it was given");
}

/// Room is given back when entries go.
#[test]
fn memory_follows_the_entries() {
    let mut steering = Steering::new(Offer::ethernet());
    let table = steering.create_table(FlowTable::new(TableType::NicRx, 1, 20, Miss::Default)).unwrap();
    let mut mask = MatchParam::new();
    mask.outer_mut().set(MatchLayers::SRC_31_0, u32::MAX);
    let new = NewGroup { table, places: (0, (1 << 20) - 1), enable: criteria::OUTER, mask: &mask };
    let group = steering.create_group(&new).unwrap();
    const MANY: u32 = 20_000;
    for place in 0..MANY {
        let mut value = MatchParam::new();
        value.outer_mut().set(MatchLayers::SRC_31_0, place);
        let key = Steering::key(steering.group(group).unwrap(), &value);
        steering.insert_entry(place * 50, Entry { group, key, what: deed(7) });
    }
    assert_eq!((steering.tir_users(7), steering.entries()), (MANY, MANY));
    (1..MANY).for_each(|place| steering.remove_entry(table, place * 50));
    let left = steering.table(table).unwrap();
    assert!(left.entries.capacity() < 100, "{}", left.entries.capacity());
}
