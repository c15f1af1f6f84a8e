//! What stands between a send queue and the wire: flow tables of frames that are sent, the virtual port's state, rates.

use hca_driver::eth::FlowEntry;
use hca_model::Ps;
use hca_spec::cmd::ModifySqIn;
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::flow::{MatchLayers, MatchMisc, MatchParam, TableType, criteria};
use hca_spec::nic_vport::VportIn;
use hca_spec::queue::{SQ_READY, SetPpRateLimitIn, Sqc};
use hca_tests::frames::{Flow, plain};
use hca_tests::lan::{Lan, Station};

fn send(lan: &mut Lan, port: u16) -> usize {
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let flow = Flow { ports: (9, port), ..Flow::default() };
    lan.stations[0].send(&flow.frame(to, from, None, true, b"data"));
    lan.run();
    let sent = lan.stations[0].sent();
    assert_eq!((sent.len(), sent[0].status), (1, Ok(())), "dropped or not");
    lan.stations[1].received().len()
}

/// What no entry takes leaves; entries drop and count, by headers and by the queue.
#[test]
pub(crate) fn tables_of_frames_that_are_sent() {
    let mut lan = Lan::cable();
    let station = &mut lan.stations[0];
    let sqn = station.sq.number().0;
    let hca = &mut station.hca;
    let table = hca.create_flow_table(TableType::NicTx, 3, 4, None).expect("CREATE_FLOW_TABLE");
    hca.set_flow_root(table).expect("SET_FLOW_TABLE_ROOT");
    assert_eq!(send(&mut lan, 80), 1, "an empty root");
    let by_port = |port: u32| {
        let mut param = MatchParam::new();
        param.outer_mut().set(MatchLayers::TCP_DPORT, port);
        param
    };
    let hca = &mut lan.stations[0].hca;
    let group = hca.create_flow_group(table, 0..=3, criteria::OUTER, &by_port(0xffff)).expect("a group");
    let counters = [hca.alloc_flow_counter().expect("ALLOC_FLOW_COUNTER")];
    let entry = FlowEntry { value: &by_port(81), destinations: &[], counters: &counters, tag: 0 };
    hca.set_flow_entry(group, 1, &entry).expect("SET_FLOW_TABLE_ENTRY");
    assert_eq!((send(&mut lan, 80), send(&mut lan, 81), send(&mut lan, 82)), (1, 0, 1));
    assert_eq!(lan.stations[0].hca.flow_counter(counters[0]), Ok((1, 60)));
    assert_eq!((lan.counted(0).tx.discards, lan.counted(0).tx.frames), (1, 3));
    let by_queue = |sqn: u32| {
        let mut param = MatchParam::new();
        param.misc_mut().set(MatchMisc::SOURCE_SQN, sqn);
        param
    };
    let hca = &mut lan.stations[0].hca;
    let group = hca.create_flow_group(table, 8..=9, criteria::MISC, &by_queue(0xff_ffff)).expect("a group");
    for (place, number, arrives) in [(8, sqn + 1, 1), (9, sqn, 0)] {
        let entry = FlowEntry { value: &by_queue(number), destinations: &[], counters: &[], tag: 0 };
        lan.stations[0].hca.set_flow_entry(group, place, &entry).expect("SET_FLOW_TABLE_ENTRY");
        assert_eq!(send(&mut lan, 80), arrives);
    }
}

/// Frames go out without a header inline, and with checksums and tags, of every kind: later ones announce that none is needed.
#[test]
pub(crate) fn frames_without_headers_inline() {
    for kind in ["connectx4", "connectx5", "connectx6dx"] {
        let mut lan = Lan::of_kind(kind);
        assert_eq!(send(&mut lan, 80), 1, "{kind}");
    }
}

fn set_state(station: &mut Station, admin: u32) {
    let mut set = VportIn::new();
    set.set(VportIn::ADMIN_STATE, admin);
    let input = set.bytes().to_vec();
    station.hca.execute(Opcode::ModifyVportState, 0, input, OutHeader::SIZE).expect("MODIFY_VPORT_STATE");
}

/// A virtual port that is down takes nothing and sends nothing.
#[test]
pub(crate) fn a_port_that_is_down() {
    let mut lan = Lan::cable();
    for station in [0, 1] {
        set_state(&mut lan.stations[station], 0);
        assert_eq!(lan.stations[station].hca.vport_is_up(), Ok(false));
        assert_eq!(send(&mut lan, 80), 0);
        set_state(&mut lan.stations[station], 2);
        assert_eq!(lan.stations[station].hca.vport_is_up(), Ok(true));
        assert_eq!(send(&mut lan, 80), 1);
    }
    // The second of the dropped frames was on the wire.
    assert_eq!((lan.counted(0).tx.frames, lan.counted(1).rx.frames), (3, 2));
}

/// A queue that keeps to a rate takes as long as its bytes take at that; one that does not, goes on.
#[test]
pub(crate) fn rates() {
    const FRAMES: usize = 20;
    let arrived = |lan: &mut Lan| {
        let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &[7; 1232]);
        (0..FRAMES).for_each(|_| lan.stations[0].send(&frame));
        // 1250 bytes with FCS are 10 microseconds at 1 Gb/s.
        lan.simulation.run(Ps::from_us(105));
        let early = lan.stations[1].received().len();
        lan.simulation.run(Ps::from_us(300));
        assert_eq!(lan.stations[0].sent().len(), FRAMES);
        (early, lan.stations[1].received().len() + early)
    };
    let mut lan = Lan::cable();
    assert_eq!(arrived(&mut lan), (FRAMES, FRAMES));
    let hca = &mut lan.stations[0].hca;
    let mut set = SetPpRateLimitIn::new();
    set.set(SetPpRateLimitIn::RATE_LIMIT_INDEX, 7).set(SetPpRateLimitIn::RATE_LIMIT, 1_000_000);
    hca.execute(Opcode::SetPpRateLimit, 0, set.bytes().to_vec(), OutHeader::SIZE).expect("SET_PP_RATE_LIMIT");
    let mut modify = ModifySqIn::new();
    modify.set(ModifySqIn::SQN, lan.stations[0].sq.number().0).set(ModifySqIn::SQ_STATE, SQ_READY);
    modify.set(ModifySqIn::MODIFY_BITMASK, 1);
    modify.sqc_mut().set(Sqc::STATE, SQ_READY).set(Sqc::PACKET_PACING_RATE_LIMIT_INDEX, 7);
    let hca = &mut lan.stations[0].hca;
    hca.execute(Opcode::ModifySq, 0, modify.bytes().to_vec(), OutHeader::SIZE).expect("MODIFY_SQ");
    let (early, all) = arrived(&mut lan);
    assert!((9..=11).contains(&early), "{early}");
    assert_eq!(all, FRAMES);
    // Without a rate behind the index there is no limit.
    set.set(SetPpRateLimitIn::RATE_LIMIT, 0);
    let hca = &mut lan.stations[0].hca;
    hca.execute(Opcode::SetPpRateLimit, 0, set.bytes().to_vec(), OutHeader::SIZE).expect("SET_PP_RATE_LIMIT");
    assert_eq!(arrived(&mut lan), (FRAMES, FRAMES));
}
