//! Frames through flow tables.

use hca_driver::eth::{Destination, FlowEntry};
use hca_spec::flow::{MatchLayers, MatchParam, TableType, criteria};
use hca_tests::frames::{Flow, plain};
use hca_tests::lan::Lan;

fn by_port(port: u32) -> MatchParam {
    let mut param = MatchParam::new();
    param.outer_mut().set(MatchLayers::TCP_DPORT, port);
    param
}

fn send(lan: &mut Lan, port: u16) -> Vec<u32> {
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let flow = Flow { ports: (9, port), ..Flow::default() };
    lan.stations[0].send(&flow.frame(to, from, None, true, b"data"));
    lan.run();
    lan.stations[1].received().iter().map(|arrived| arrived.completion.frame.flow_tag).collect()
}

/// The lowest place wins; entries drop, count, tag, and send a frame to several.
#[test]
pub(crate) fn entries() {
    let mut lan = Lan::cable();
    let station = &mut lan.stations[1];
    let group = station.group(0..=9, &by_port(0xffff));
    let counters = [(); 2].map(|()| station.hca.alloc_flow_counter().expect("ALLOC_FLOW_COUNTER"));
    let again = station.hca.create_direct_tir(station.domain, station.rq.number()).expect("CREATE_TIR");
    let (one, two) =
        ([Destination::Tir(station.tir)], [Destination::Tir(station.tir), Destination::Tir(again)]);
    let cases: [(u32, &[Destination], u32); 4] =
        [(80, &[], 0), (81, &one, 0xabc), (82, &two, 5), (83, &one, 0)];
    for (place, (port, destinations, tag)) in (0..).zip(cases) {
        let counters = if port == 83 { &[][..] } else { &counters[..] };
        let entry = FlowEntry { value: &by_port(port), destinations, counters, tag };
        station.hca.set_flow_entry(group, place, &entry).expect("SET_FLOW_TABLE_ENTRY");
    }
    assert_eq!((send(&mut lan, 80), send(&mut lan, 81)), (vec![], vec![0xabc]));
    assert_eq!((send(&mut lan, 82), send(&mut lan, 83), send(&mut lan, 84)), (vec![5, 5], vec![0], vec![0]));
    let station = &mut lan.stations[1];
    // Each was padded.
    let octets = 60;
    for counter in counters {
        assert_eq!(station.hca.flow_counter(counter), Ok((3, 3 * octets)));
    }
    // A lower place hides a higher one.
    let entry = FlowEntry { value: &by_port(82), destinations: &one, counters: &[], tag: 6 };
    assert!(station.hca.set_flow_entry(group, 2, &entry).is_err(), "the place is taken");
    station.hca.delete_flow_entry(station.table, 0).expect("DELETE_FLOW_TABLE_ENTRY");
    station.hca.set_flow_entry(group, 0, &entry).expect("SET_FLOW_TABLE_ENTRY");
    assert_eq!((send(&mut lan, 82), send(&mut lan, 80)), (vec![6], vec![0]));
    // Without an entry for anything, the rest is missed and counted.
    let before = lan.counted(1).steering_discards;
    lan.stations[1].take_nothing();
    assert_eq!((send(&mut lan, 80), send(&mut lan, 82)), (vec![], vec![6]));
    assert_eq!(lan.counted(1).steering_discards - before, 1);
}

/// Tables lead to tables: by an entry, and by what no entry takes.
#[test]
pub(crate) fn chains() {
    let mut lan = Lan::cable();
    let station = &mut lan.stations[1];
    let hca = &mut station.hca;
    let last = hca.create_flow_table(TableType::NicRx, 66, 2, Some(station.table));
    assert!(last.is_err(), "misses go to higher levels");
    let last = hca.create_flow_table(TableType::NicRx, 66, 2, None).expect("CREATE_FLOW_TABLE");
    let first =
        hca.create_flow_table(TableType::NicRx, 60, 2, Some(station.table)).expect("CREATE_FLOW_TABLE");
    let any = hca.create_flow_group(last, 0..=0, 0, &MatchParam::new()).expect("CREATE_FLOW_GROUP");
    let to = [Destination::Tir(station.tir)];
    let entry = FlowEntry { value: &MatchParam::new(), destinations: &to, counters: &[], tag: 0x66 };
    hca.set_flow_entry(any, 0, &entry).expect("SET_FLOW_TABLE_ENTRY");
    let group =
        hca.create_flow_group(first, 0..=3, criteria::OUTER, &by_port(0xffff)).expect("CREATE_FLOW_GROUP");
    let to = [Destination::Table(last)];
    let entry = FlowEntry { value: &by_port(80), destinations: &to, counters: &[], tag: 0 };
    hca.set_flow_entry(group, 0, &entry).expect("SET_FLOW_TABLE_ENTRY");
    hca.set_flow_root(first).expect("SET_FLOW_TABLE_ROOT");
    assert_eq!((send(&mut lan, 80), send(&mut lan, 81)), (vec![0x66], vec![0]));
    let hca = &mut lan.stations[1].hca;
    assert!(hca.destroy_flow_table(last).is_err(), "an entry leads there");
    hca.delete_flow_entry(first, 0).expect("DELETE_FLOW_TABLE_ENTRY");
    assert_eq!(send(&mut lan, 80), [0]);
}

/// Frames are told apart by address and VLAN.
#[test]
pub(crate) fn addresses_and_tags() {
    let mut lan = Lan::cable();
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let mut fields = MatchParam::new();
    fields.outer_mut().set(MatchLayers::DMAC_47_16, u32::MAX).set(MatchLayers::DMAC_15_0, 0xffff);
    fields.outer_mut().set(MatchLayers::CVLAN_TAG, 1).set(MatchLayers::FIRST_VID, 0xfff);
    let station = &mut lan.stations[1];
    station.take_nothing();
    let group = station.group(0..=3, &fields);
    let [a, b, c, d, e, f] = to.0;
    let mut value = MatchParam::new();
    value.outer_mut().set(MatchLayers::DMAC_47_16, u32::from_be_bytes([a, b, c, d]));
    value.outer_mut().set(MatchLayers::DMAC_15_0, u16::from_be_bytes([e, f]).into());
    value.outer_mut().set(MatchLayers::CVLAN_TAG, 1).set(MatchLayers::FIRST_VID, 100);
    let destinations = [Destination::Tir(station.tir)];
    let entry = FlowEntry { value: &value, destinations: &destinations, counters: &[], tag: 1 };
    station.hca.set_flow_entry(group, 0, &entry).expect("SET_FLOW_TABLE_ENTRY");
    let flow = Flow::default();
    let mut other = to;
    other.0[5] ^= 1;
    for (mac, tci, taken) in [
        (to, Some(100), true),
        (to, Some(0xe064), true),
        (to, Some(101), false),
        (to, None, false),
        (other, Some(100), false),
    ] {
        lan.stations[0].send(&flow.frame(mac, from, tci, true, b"x"));
        lan.run();
        assert_eq!(lan.stations[1].frames().len(), usize::from(taken), "{mac:?} {tci:?}");
    }
    lan.stations[0].send(&plain(to, from, &[0; 50]));
    lan.run();
    assert!(lan.stations[1].frames().is_empty());
}
