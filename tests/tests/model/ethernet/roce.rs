//! RoCE: queue pairs over Ethernet.

use hca_driver::eth::{Destination, FlowEntry, Hop, RoceAddress, RoceVersion, ipv4_gid};
use hca_driver::qp::{Path, QpConfig};
use hca_driver::wqe::RoceDatagram;
use hca_driver::{
    Access, Bus, Cq, CqConfig, Dma, InitAttr, Mr, Qp, RtrAttr, RtsAttr, SendOp, SendRequest, Sge,
};
use hca_firmware::EthernetCounters;
use hca_model::Ps;
use hca_spec::flow::{MatchParam, TableType};
use hca_spec::ids::{Gid, Pd, Qpn};
use hca_spec::qpc::ServiceType;
use hca_tests::in_process::ModelMemory;
use hca_tests::lan::Lan;
use hca_tests::pair::pattern;

/// Bytes of memory at each end.
const MEMORY: usize = 1 << 16;
/// Place of the addresses in the ports' tables.
pub(crate) const INDEX: u8 = 3;
/// Priority of tagged packets.
pub(crate) const PRIORITY: u8 = 5;

/// How packets look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) version: RoceVersion,
    pub(crate) ipv4: bool,
    pub(crate) vlan: Option<u16>,
}

pub(crate) const LOOKS: [Look; 5] = [
    Look { version: RoceVersion::V1, ipv4: false, vlan: None },
    Look { version: RoceVersion::V1, ipv4: true, vlan: Some(9) },
    Look { version: RoceVersion::V2, ipv4: true, vlan: None },
    Look { version: RoceVersion::V2, ipv4: false, vlan: None },
    Look { version: RoceVersion::V2, ipv4: false, vlan: Some(100) },
];

impl Look {
    pub(crate) fn gid(&self, end: usize) -> Gid {
        match self.ipv4 {
            true => ipv4_gid([10, 0, 0, 1 + end as u8]),
            false => Gid::new(0xfd00 << 48, 1 + end as u64),
        }
    }
}

/// One end: completion queue, memory.
pub(crate) struct End {
    pub(crate) pd: Pd,
    pub(crate) cq: Cq<ModelMemory>,
    pub(crate) memory: ModelMemory,
    pub(crate) mr: Mr,
}

impl End {
    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { address: self.mr.address + offset as u64, len: len as u32, key: self.mr.key }
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes);
        bytes
    }
}

/// All ends with RoCE enabled, their addresses set.
pub(crate) fn ends(lan: &mut Lan, look: Look) -> Vec<End> {
    let end = |(i, station): (usize, &mut hca_tests::lan::Station)| {
        let (hca, mac) = (&mut station.hca, station.mac);
        hca.set_roce(true).expect("MODIFY_NIC_VPORT_CONTEXT");
        let address = RoceAddress { gid: look.gid(i), mac, vlan: look.vlan, version: look.version };
        hca.set_roce_address(1, INDEX, Some(&address)).expect("SET_ROCE_ADDRESS");
        let pd = hca.alloc_pd().expect("ALLOC_PD");
        let cq = hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
        let memory = hca.bus_mut().dma_alloc(MEMORY, 4096).expect("memory");
        let mr = hca.register(pd, &memory, MEMORY, Access::ALL).expect("CREATE_MKEY");
        End { pd, cq, memory, mr }
    };
    lan.stations.iter_mut().enumerate().map(end).collect()
}

/// At each end a queue pair for datagrams with that Q_Key.
pub(crate) fn datagram_queues(lan: &mut Lan, ends: &[End], qkey: u32) -> Vec<Qp<ModelMemory>> {
    let stations = lan.stations.iter_mut().zip(ends);
    stations
        .map(|(station, end)| hca_tests::rig::datagrams(&mut station.hca, end.pd, (&end.cq, &end.cq), qkey))
        .collect()
}

pub(crate) fn path(lan: &Lan, look: Look, to: usize) -> Path {
    path_of(lan, look, to, PRIORITY)
}

fn path_of(lan: &Lan, look: Look, to: usize, priority: u8) -> Path {
    let hop = Hop { priority, ..Hop::to(lan.stations[to].mac) };
    Path::roce(look.gid(to), INDEX, hop)
}

/// Two queue pairs of reliable connections, of the first two ends.
pub(crate) fn connected(lan: &mut Lan, ends: &[End], look: Look) -> Vec<Qp<ModelMemory>> {
    connected_between(lan, ends, look, [0, 1])
}

/// The same of any two.
pub(crate) fn connected_between(
    lan: &mut Lan,
    ends: &[End],
    look: Look,
    places: [usize; 2],
) -> Vec<Qp<ModelMemory>> {
    connected_of(lan, ends, look, places, PRIORITY)
}

/// The same, of tagged packets with that priority.
pub(crate) fn connected_of(
    lan: &mut Lan,
    ends: &[End],
    look: Look,
    places: [usize; 2],
    priority: u8,
) -> Vec<Qp<ModelMemory>> {
    let mut qps: Vec<_> = places
        .map(|at| {
            let config = QpConfig::rc(ends[at].pd, &ends[at].cq, &ends[at].cq);
            lan.stations[at].hca.create_qp(&config).expect("CREATE_QP")
        })
        .into();
    for i in 0..2 {
        let (peer, path) = (qps[1 - i].number(), path_of(lan, look, places[1 - i], priority));
        let hca = &mut lan.stations[places[i]].hca;
        let init = InitAttr { access: Access::ALL, ..InitAttr::default() };
        hca.qp_to_init(&mut qps[i], &init).expect("INIT");
        hca.qp_to_rtr(&mut qps[i], &RtrAttr { mtu: 3, ..RtrAttr::new(peer, path) }).expect("RTR");
        hca.qp_to_rts(&mut qps[i], &RtsAttr::default()).expect("RTS");
    }
    qps
}

/// A connection changes the DSCP and the own address of its packets in RTS: another of the same IP address, in a VLAN.
#[test]
pub(crate) fn packets_change_their_sender_in_rts() {
    const DSCP: u8 = 26;
    const OTHER: u8 = INDEX + 1;
    let look = LOOKS[2];
    let mut lan = Lan::cable();
    let mut ends = ends(&mut lan, look);
    let mut qps = connected(&mut lan, &ends, look);
    for (i, station) in lan.stations.iter_mut().enumerate() {
        let (mac, gid, version) = (station.mac, look.gid(i), look.version);
        let address = RoceAddress { gid, mac, vlan: Some(9), version };
        station.hca.set_roce_address(1, OTHER, Some(&address)).expect("SET_ROCE_ADDRESS");
    }
    let station = &mut lan.stations[1];
    station.take_nothing();
    let all = MatchParam::new();
    let table = station.hca.create_flow_table(TableType::SnifferRx, 1, 0, None).expect("CREATE_FLOW_TABLE");
    station.hca.set_flow_root(table).expect("SET_FLOW_TABLE_ROOT");
    let group = station.hca.create_flow_group(table, 0..=0, 0, &all).expect("CREATE_FLOW_GROUP");
    let to = [Destination::Tir(station.tir)];
    let entry = FlowEntry { value: &all, destinations: &to, counters: &[], tag: 0 };
    station.hca.set_flow_entry(group, 0, &entry).expect("SET_FTE");
    let (far, rkey) = (ends[1].mr.address, ends[1].mr.key);
    // DSCP and VLAN of the packet that arrives.
    let mut write = |lan: &mut Lan, qp: &mut Qp<ModelMemory>, number| {
        ends[0].memory.write(0, &pattern(number, 100));
        let (op, sge) = (SendOp::Write { address: far, rkey, imm: None }, [ends[0].sge(0, 100)]);
        qp.post_send(lan.stations[0].hca.bus_mut(), &SendRequest::new(number, op, &sge)).expect("post_send");
        lan.simulation.run(Ps::from_us(100));
        assert_eq!(ends[0].cq.poll().map(|done| done.status), Some(Ok(())));
        assert!(ends[1].bytes(0, 100) == pattern(number, 100));
        let frames = lan.stations[1].frames();
        let [frame] = &frames[..] else { panic!("{} packets", frames.len()) };
        let tagged = frame[12..14] == [0x81, 0];
        let ip = if tagged { 18 } else { 14 };
        (frame[ip + 1] >> 2, tagged.then(|| u16::from_be_bytes([frame[14] & 0xf, frame[15]])))
    };
    assert_eq!(write(&mut lan, &mut qps[0], 1), (0, None));
    lan.stations[0].hca.qp_set_sender(&mut qps[0], DSCP, INDEX).expect("RTS2RTS");
    assert_eq!(write(&mut lan, &mut qps[0], 2), (DSCP, None));
    lan.stations[0].hca.qp_set_sender(&mut qps[0], 0, OTHER).expect("RTS2RTS");
    assert_eq!(write(&mut lan, &mut qps[0], 3), (0, Some(9)));
}

/// What is for another address of its port is not for a connection, whoever it is from (rxe, `check_addr`).
#[test]
pub(crate) fn a_connection_is_for_its_own_address() {
    const OTHER: u8 = INDEX + 1;
    const LEN: usize = 3000;
    for look in LOOKS {
        let mut lan = Lan::cable();
        let mut ends = ends(&mut lan, look);
        let mut qps = connected(&mut lan, &ends, look);
        // Another address of the far port, which its connection is changed to, and back.
        let station = &mut lan.stations[1];
        let (mac, gid) = (station.mac, look.gid(7));
        let address = RoceAddress { gid, mac, vlan: look.vlan, version: look.version };
        station.hca.set_roce_address(1, OTHER, Some(&address)).expect("SET_ROCE_ADDRESS");
        let data = pattern(5, LEN);
        ends[0].memory.write(0, &data);
        let (sge, far) = ([ends[0].sge(0, LEN)], ends[1].mr);
        let request = SendRequest::write(1, &sge, far.address, far.key);
        station.hca.qp_set_sender(&mut qps[1], 0, OTHER).expect("RTS2RTS");
        qps[0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
        lan.simulation.run(Ps::from_us(100));
        assert!(ends[0].cq.poll().is_none(), "{look:?}: answered");
        assert!(ends[1].bytes(0, LEN) == [0; LEN], "{look:?}: written");
        lan.stations[1].hca.qp_set_sender(&mut qps[1], 0, INDEX).expect("RTS2RTS");
        lan.simulation.run(Ps::from_ms(1000));
        assert_eq!(ends[0].cq.poll().map(|done| done.status), Some(Ok(())), "{look:?}: sent again");
        assert!(ends[1].bytes(0, LEN) == data, "{look:?}");
    }
}

/// Every operation over each version, network and tag.
#[test]
pub(crate) fn reliable_connections() {
    for look in LOOKS {
        let mut lan = Lan::cable();
        let mut ends = ends(&mut lan, look);
        let mut qps = connected(&mut lan, &ends, look);
        let data = pattern(4, 5000);
        ends[0].memory.write(0, &data);
        ends[1].memory.write(32_768, &7u64.to_ne_bytes());
        let room = ends[1].sge(0, 8192);
        qps[1].post_recv(1, &[room]).expect("post_recv");
        let (far, rkey) = (ends[1].mr.address, ends[1].mr.key);
        let ops = [
            (SendOp::Send { imm: Some(5) }, 0, 5000),
            (SendOp::Write { address: far + 10_000, rkey, imm: None }, 0, 5000),
            (SendOp::Read { address: far + 10_000, rkey }, 20_000, 5000),
            (SendOp::FetchAdd { address: far + 32_768, rkey, add: 3 }, 40_000, 8),
        ];
        for (i, (op, at, len)) in (0..).zip(ops) {
            let sge = [ends[0].sge(at, len)];
            let request = SendRequest::new(i, op, &sge);
            qps[0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
        }
        lan.simulation.run(Ps::from_us(500));
        for i in 0..4 {
            let done = ends[0].cq.poll().unwrap_or_else(|| panic!("{look:?}: operation {i} is not done"));
            assert_eq!((qps[0].finish(&done), done.status), (Some(i), Ok(())), "{look:?}");
        }
        let got = ends[1].cq.poll().expect("a message");
        assert_eq!((got.status, got.byte_len, got.imm), (Ok(()), 5000, Some(5)), "{look:?}");
        assert!(ends[1].bytes(0, 5000) == data && ends[1].bytes(10_000, 5000) == data, "{look:?}");
        assert!(ends[0].bytes(20_000, 5000) == data, "{look:?}");
        assert_eq!(ends[1].bytes(32_768, 8), 10u64.to_ne_bytes());
        assert_eq!(ends[0].bytes(40_000, 8), 7u64.to_ne_bytes());
        // Nothing of it is the NIC's.
        assert!(lan.stations[1].frames().is_empty() && lan.stations[0].frames().is_empty(), "{look:?}");
        let counted = lan.counted(1);
        assert!(counted.rx.roce_unicast > 10 && counted.rx.roce_unicast == counted.rx.frames, "{look:?}");
        let priority = if look.vlan.is_some() { usize::from(PRIORITY) } else { 0 };
        assert_eq!(counted.rx.priorities[priority].frames, counted.rx.frames, "{look:?}");
        for (i, qp) in qps.into_iter().enumerate() {
            lan.stations[i].hca.destroy_qp(qp).expect("DESTROY_QP");
        }
    }
}

/// What a run leaves: hash and number of its events, memory of both ends, what the receiver's port counted.
type Left = ((u64, u64), [Vec<u8>; 2], EthernetCounters);

/// Long messages both ways and commands in between at some moment, with trains or without. Returns how many trains there were.
fn long_messages(look: Look, step: u64, trains: bool) -> (Left, u64) {
    const LEN: usize = 60_000;
    let mut lan = Lan::cable();
    lan.simulation.world(|world, _| {
        world.start_trace(1 << 10);
        world.set_trains(trains);
    });
    let mut ends = ends(&mut lan, look);
    let mut qps = connected(&mut lan, &ends, look);
    lan.stations.iter_mut().for_each(|station| station.set_pause(true, true));
    ends[0].memory.write(0, &pattern(3, MEMORY));
    let writes = [(0, 1), (0, 2), (1, 3)];
    for (from, number) in writes.into_iter().take(2 + step as usize % 2) {
        let (sge, to) = ([ends[from].sge(0, LEN)], &ends[1 - from].mr);
        let request = SendRequest::write(number, &sge, to.address + number * 64, to.key);
        qps[from].post_send(lan.stations[from].hca.bus_mut(), &request).expect("post_send");
    }
    lan.simulation.run(Ps::from_ns(step * 811));
    match step % 4 {
        2 => _ = lan.stations[0].hca.query_qp(&qps[0]).expect("QUERY_QP"),
        // What comes meanwhile is for the NIC, and is sent again.
        3 => {
            lan.stations[1].hca.set_roce(false).expect("MODIFY_NIC_VPORT_CONTEXT");
            lan.stations[1].hca.set_roce(true).expect("MODIFY_NIC_VPORT_CONTEXT");
        }
        _ => {}
    }
    lan.simulation.run(Ps::from_us(500));
    let memory = [ends[0].bytes(0, MEMORY), ends[1].bytes(0, MEMORY)];
    let (events, begun) = lan.simulation.world(|world, _| {
        (world.trace().map(|t| (t.hash(), t.count())).unwrap_or_default(), world.trains_begun())
    });
    ((events, memory, lan.counted(1)), begun)
}

/// Trains change nothing on Ethernet either.
#[test]
fn trains() {
    for (i, look) in LOOKS.into_iter().enumerate() {
        for step in 0..8 {
            let (with, begun) = long_messages(look, step + i as u64, true);
            let (without, none) = long_messages(look, step + i as u64, false);
            assert!(begun > 0 && none == 0, "{look:?}: {begun} trains, and {none}");
            assert_eq!(with.0, without.0, "{look:?}, step {step}: the traces differ");
            assert!(with == without, "{look:?}, step {step}: memory or counters differ");
        }
    }
}

/// Without RoCE, its packets are frames for the NIC; with it, those for other addresses are.
#[test]
pub(crate) fn what_is_not_for_the_transport_is_the_nics() {
    let look = LOOKS[2];
    let mut lan = Lan::cable();
    let ends = ends(&mut lan, look);
    let mut qps = connected(&mut lan, &ends, look);
    let mut send = |lan: &mut Lan| {
        let sge = [ends[0].sge(0, 100)];
        let address = ends[1].mr.address;
        let request = SendRequest::write(1, &sge, address, ends[1].mr.key).unsignaled();
        qps[0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
        lan.simulation.run(Ps::from_us(20));
        lan.stations[1].frames()
    };
    assert!(send(&mut lan).is_empty());
    lan.stations[1].hca.set_roce(false).expect("MODIFY_NIC_VPORT_CONTEXT");
    let frames = send(&mut lan);
    assert_eq!(frames.len(), 1);
    assert_eq!((&frames[0][12..14], &frames[0][36..38]), (&[8, 0][..], &4791u16.to_be_bytes()[..]));
    lan.stations[1].hca.set_roce(true).expect("MODIFY_NIC_VPORT_CONTEXT");
    lan.stations[1].hca.set_roce_address(1, INDEX, None).expect("SET_ROCE_ADDRESS");
    assert_eq!(send(&mut lan).len(), 1, "the address is gone");
}

/// Datagrams show the network header in front of their payload.
#[test]
pub(crate) fn datagrams() {
    const QKEY: u32 = 0x2233_4455;
    const AREA: usize = 40;
    for look in LOOKS {
        let mut lan = Lan::cable();
        let mut ends = ends(&mut lan, look);
        let mut qps = datagram_queues(&mut lan, &ends, QKEY);
        let data = pattern(6, 300);
        ends[0].memory.write(0, &data);
        let (sge, room) = ([ends[0].sge(0, 300)], ends[1].sge(0, 4096));
        qps[1].post_recv(9, &[room]).expect("post_recv");
        let Path { hop: Some(hop), .. } = path(&lan, look, 1) else { unreachable!("it has one") };
        let to = RoceDatagram { qpn: qps[1].number(), qkey: QKEY, gid: look.gid(1), sgid_index: INDEX, hop };
        let request = SendRequest::new(1, SendOp::RoceDatagram { to, imm: Some(8) }, &sge);
        qps[0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
        lan.run();
        assert_eq!(ends[0].cq.poll().map(|done| done.status), Some(Ok(())), "{look:?}");
        let got = ends[1].cq.poll().unwrap_or_else(|| panic!("{look:?}: nothing arrived"));
        assert_eq!((got.status, got.byte_len as usize, got.imm), (Ok(()), AREA + 300, Some(8)), "{look:?}");
        assert_eq!((got.source_qpn, got.has_grh), (qps[0].number(), true));
        let tci = look.vlan.map(|vlan| vlan | u16::from(PRIORITY) << 13);
        assert_eq!(got.frame.vlan, tci, "{look:?}");
        let area = ends[1].bytes(0, AREA);
        let (source, destination) = (look.gid(0).0, look.gid(1).0);
        match (look.version, look.ipv4) {
            (RoceVersion::V2, true) => {
                assert_eq!((area[20], &area[32..36], &area[36..]), (0x45, &source[12..], &destination[12..]));
            }
            _ => assert_eq!((area[0] >> 4, &area[8..24], &area[24..]), (6, &source[..], &destination[..])),
        }
        assert!(ends[1].bytes(AREA, 300) == data);
    }
}

/// QP1 takes management datagrams alone, which have one size and no immediate: what is longer does not break it.
#[test]
pub(crate) fn general_services_take_datagrams_of_their_size() {
    const QKEY: u32 = 0x8001_0000;
    const MAD: usize = 256;
    let look = LOOKS[2];
    let mut lan = Lan::cable();
    let mut ends = ends(&mut lan, look);
    let mut qps = datagram_queues(&mut lan, &ends, QKEY);
    let hca = &mut lan.stations[1].hca;
    let config = QpConfig { service: ServiceType::Qp1, ..QpConfig::ud(ends[1].pd, &ends[1].cq, &ends[1].cq) };
    let mut qp1 = hca.create_qp(&config).expect("CREATE_QP");
    hca.qp_to_init(&mut qp1, &InitAttr::default()).expect("INIT");
    hca.ud_to_rtr(&mut qp1).expect("RTR");
    hca.qp_to_rts(&mut qp1, &RtsAttr::default()).expect("RTS");
    qp1.post_recv(3, &[ends[1].sge(0, 40 + MAD)]).expect("post_recv");
    let Path { hop: Some(hop), .. } = path(&lan, look, 1) else { unreachable!("it has one") };
    for (len, imm, taken) in [(300, None, false), (40, None, false), (MAD, Some(8), false), (MAD, None, true)]
    {
        let sge = [ends[0].sge(0, len)];
        let to = RoceDatagram { qpn: Qpn(1), qkey: QKEY, gid: look.gid(1), sgid_index: INDEX, hop };
        let request = SendRequest::new(1, SendOp::RoceDatagram { to, imm }, &sge);
        qps[0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
        lan.run();
        assert_eq!(ends[0].cq.poll().map(|done| done.status), Some(Ok(())));
        let got = ends[1].cq.poll().map(|got| (got.qpn, got.status));
        assert_eq!(got, taken.then_some((qp1.number(), Ok(()))), "{len} bytes, {imm:?}");
    }
}
