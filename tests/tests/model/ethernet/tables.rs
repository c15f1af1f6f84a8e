//! Tables beside those of the NIC: of RoCE packets, and of sniffers.

use hca_driver::eth::{Destination, FlowEntry, FlowGroup, FlowTable};
use hca_driver::{Qp, SendRequest};
use hca_model::Ps;
use hca_spec::cmd::ObjectOut;
use hca_spec::command::Opcode;
use hca_spec::flow::{
    CreateFlowTableIn, FlowTableContext, MatchMisc, MatchParam, TableType, criteria, miss_action,
};
use hca_tests::in_process::ModelMemory;
use hca_tests::lan::{Lan, Station};
use hca_tests::pair::pattern;

use super::roce::{End, LOOKS, connected_between, ends};

/// A table of that type with one place, its root; and the group of the place.
fn rooted(station: &mut Station, kind: TableType) -> (FlowTable, FlowGroup) {
    let table = station.hca.create_flow_table(kind, 1, 0, None).expect("CREATE_FLOW_TABLE");
    station.hca.set_flow_root(table).expect("SET_FLOW_TABLE_ROOT");
    let group =
        station.hca.create_flow_group(table, 0..=0, 0, &MatchParam::new()).expect("CREATE_FLOW_GROUP");
    (table, group)
}

/// Writes a hundred bytes from the first station to the second: whether they are there after a while.
fn write(lan: &mut Lan, ends: &mut [End], qps: &mut [Qp<ModelMemory>], number: u64) -> bool {
    let data = pattern(number, 100);
    hca_driver::Dma::write(&mut ends[0].memory, 0, &data);
    let (sge, to) = ([ends[0].sge(0, 100)], (ends[1].mr.address, ends[1].mr.key));
    let request = SendRequest::write(number, &sge, to.0, to.1).unsignaled();
    qps[0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
    lan.simulation.run(Ps::from_us(60));
    ends[1].bytes(0, 100) == data
}

/// What tables of RoCE packets let go goes to and from the transport, what they drop does not, and without them all does.
#[test]
pub(crate) fn roce_packets_pass_tables() {
    for (station, kind) in [(1, TableType::RdmaRx), (0, TableType::RdmaTx)] {
        let mut lan = Lan::cable();
        let mut ends = ends(&mut lan, LOOKS[2]);
        let mut qps = connected_between(&mut lan, &ends, LOOKS[2], [0, 1]);
        assert!(write(&mut lan, &mut ends, &mut qps, 1));
        let hca = &mut lan.stations[station];
        let (table, group) = rooted(hca, kind);
        let counter = hca.hca.alloc_flow_counter().expect("ALLOC_FLOW_COUNTER");
        assert!(write(&mut lan, &mut ends, &mut qps, 2), "{kind:?}: an empty table");
        let (all, hca) = (MatchParam::new(), &mut lan.stations[station].hca);
        hca.set_flow_entry(
            group,
            0,
            &FlowEntry { value: &all, destinations: &[Destination::Allow], counters: &[counter], tag: 0 },
        )
        .expect("SET_FTE");
        assert!(write(&mut lan, &mut ends, &mut qps, 3), "{kind:?}: allowed");
        let hca = &mut lan.stations[station].hca;
        let (packets, octets) = hca.flow_counter(counter).expect("QUERY_FLOW_COUNTER");
        assert!(packets == 1 && octets > 100, "{kind:?}: {packets} packets, {octets} octets");
        hca.delete_flow_entry(table, 0).expect("DELETE_FTE");
        hca.set_flow_entry(
            group,
            0,
            &FlowEntry { value: &all, destinations: &[], counters: &[counter], tag: 0 },
        )
        .expect("SET_FTE");
        assert!(!write(&mut lan, &mut ends, &mut qps, 4), "{kind:?}: dropped");
        let hca = &mut lan.stations[station].hca;
        assert!(hca.flow_counter(counter).expect("QUERY_FLOW_COUNTER").0 >= 2);
        // It is sent again, and let through.
        hca.delete_flow_entry(table, 0).expect("DELETE_FTE");
        lan.simulation.run(Ps::from_ms(200));
        assert!(ends[1].bytes(0, 100) == pattern(4, 100), "{kind:?}: sent again");
        assert!(lan.stations.iter_mut().all(|station| station.frames().is_empty()));
    }
}

/// Entries of packets that are sent count those of a queue pair: its requests, answers and datagrams, in runs too. A notification of
/// congestion is no queue pair's.
#[test]
pub(crate) fn packets_are_counted_by_their_sender() {
    let mut lan = Lan::cable();
    let mut ends = ends(&mut lan, LOOKS[2]);
    let mut pairs = [(); 2].map(|()| connected_between(&mut lan, &ends, LOOKS[2], [0, 1]));
    let numbers = [0, 1].map(|station| [0, 1].map(|pair: usize| pairs[pair][station].number().0));
    let mut counters = Vec::new();
    for (station, numbers) in lan.stations.iter_mut().zip(numbers) {
        let hca = &mut station.hca;
        let kind = TableType::RdmaTx;
        let table = hca.create_flow_table(kind, 1, 1, None).expect("CREATE_FLOW_TABLE");
        hca.set_flow_root(table).expect("SET_FLOW_TABLE_ROOT");
        let mut by_queue = MatchParam::new();
        by_queue.misc_mut().set(MatchMisc::SOURCE_SQN, MatchMisc::SOURCE_SQN.max());
        let group =
            hca.create_flow_group(table, 0..=1, criteria::MISC, &by_queue).expect("CREATE_FLOW_GROUP");
        counters.push([0, 1].map(|place: usize| {
            let counter = hca.alloc_flow_counter().expect("ALLOC_FLOW_COUNTER");
            by_queue.misc_mut().set(MatchMisc::SOURCE_SQN, numbers[place]);
            let (to, counters) = ([Destination::Allow], [counter]);
            let entry = FlowEntry { value: &by_queue, destinations: &to, counters: &counters, tag: 0 };
            hca.set_flow_entry(group, place as u32, &entry).expect("SET_FTE");
            counter
        }));
    }
    let counted = |lan: &mut Lan| {
        [0, 1].map(|station: usize| {
            let hca = &mut lan.stations[station].hca;
            counters[station].map(|counter| hca.flow_counter(counter).expect("QUERY_FLOW_COUNTER").0)
        })
    };
    assert!(write(&mut lan, &mut ends, &mut pairs[0], 1));
    assert_eq!(counted(&mut lan), [[1, 0], [1, 0]], "a request and its answer");
    assert!(write(&mut lan, &mut ends, &mut pairs[1], 2));
    assert!(write(&mut lan, &mut ends, &mut pairs[1], 3));
    assert_eq!(counted(&mut lan), [[1, 2], [1, 2]]);
    // Packets that are alike.
    let (sge, to) = ([ends[0].sge(0, 60000)], (ends[1].mr.address, ends[1].mr.key));
    let requests = (10..18).map(|number| SendRequest::write(number, &sge, to.0, to.1).unsignaled());
    let packets = 8 * 60000u64.div_ceil(1024);
    requests.for_each(|request| {
        pairs[0][0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
    });
    lan.simulation.run(Ps::from_ms(1));
    let [[first, second], [answers, _]] = counted(&mut lan);
    assert_eq!((first, second), (1 + packets, 2));
    assert!(answers > 1);
    // Responses to a read are the responder's.
    let read = SendRequest::read(20, &sge, to.0, to.1).unsignaled();
    pairs[1][0].post_send(lan.stations[0].hca.bus_mut(), &read).expect("post_send");
    lan.simulation.run(Ps::from_ms(1));
    assert_eq!(counted(&mut lan)[1][1], 2 + packets / 8);
    assert_eq!(counted(&mut lan)[0], [first, 3]);
}

/// What no entry takes in a table that says so is a frame for the NIC.
#[test]
pub(crate) fn what_tables_leave_to_the_nic() {
    let mut lan = Lan::cable();
    let mut ends = ends(&mut lan, LOOKS[2]);
    let mut qps = connected_between(&mut lan, &ends, LOOKS[2], [0, 1]);
    let hca = &mut lan.stations[1].hca;
    let mut create = CreateFlowTableIn::new();
    create.set(CreateFlowTableIn::TABLE_TYPE, TableType::RdmaRx as u32);
    create.context_mut().set(FlowTableContext::TABLE_MISS_ACTION, miss_action::SWITCH_DOMAIN);
    let out = hca.execute(Opcode::CreateFlowTable, 0, create.bytes().to_vec(), ObjectOut::SIZE).expect("it");
    let number = ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER);
    hca.set_flow_root(FlowTable { kind: TableType::RdmaRx, number }).expect("SET_FLOW_TABLE_ROOT");
    assert!(!write(&mut lan, &mut ends, &mut qps, 1));
    let frames = lan.stations[1].frames();
    assert_eq!((frames.len(), &frames[0][36..38]), (1, &4791u16.to_be_bytes()[..]));
}

/// Sniffers get a copy of everything, both ways, and take nothing away.
#[test]
pub(crate) fn sniffers_get_copies() {
    let mut lan = Lan::cable();
    let mut ends = ends(&mut lan, LOOKS[2]);
    let mut qps = connected_between(&mut lan, &ends, LOOKS[2], [0, 1]);
    let station = &mut lan.stations[1];
    station.take_nothing();
    let all = MatchParam::new();
    for kind in [TableType::SnifferRx, TableType::SnifferTx] {
        let (_, group) = rooted(station, kind);
        let to = [Destination::Tir(station.tir)];
        station
            .hca
            .set_flow_entry(group, 0, &FlowEntry { value: &all, destinations: &to, counters: &[], tag: 0 })
            .expect("SET_FTE");
    }
    assert!(write(&mut lan, &mut ends, &mut qps, 1));
    // The request that came, and the acknowledgement that went.
    let frames = lan.stations[1].frames();
    let opcodes: Vec<u8> = frames.iter().map(|frame| frame[42]).collect();
    assert_eq!(opcodes, [0x0a, 0x11]);
    let frame = hca_tests::frames::plain(lan.stations[1].mac, lan.stations[0].mac, &[5; 70]);
    lan.stations[0].send(&frame);
    lan.run();
    assert_eq!(lan.stations[1].frames(), [frame]);
    let frame = hca_tests::frames::plain(lan.stations[0].mac, lan.stations[1].mac, &[6; 70]);
    lan.stations[1].send(&frame);
    lan.run();
    assert_eq!((lan.stations[1].frames(), lan.stations[0].frames()), (vec![frame.clone()], vec![frame]));
}
