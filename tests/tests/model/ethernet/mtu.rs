//! The MTU of an Ethernet port holds for packets of RoCE, too: longer ones are discarded where they would leave, and dropped where they come.

use hca_driver::eth::{Hop, ROCE_FRAME, RoceVersion};
use hca_driver::qp::{Path, QpConfig};
use hca_driver::wqe::RoceDatagram;
use hca_driver::{Access, Dma, InitAttr, Qp, RtrAttr, RtsAttr, SendOp, SendRequest};
use hca_model::Ps;
use hca_spec::cqe::Syndrome;
use hca_spec::ids::Qpn;
use hca_spec::rules::PORT_MTU;
use hca_tests::in_process::ModelMemory;
use hca_tests::lan::Lan;
use hca_tests::pair::pattern;

use super::roce::{End, INDEX, LOOKS, Look, PRIORITY, datagram_queues, ends, path};

/// A frame of power-on, and path MTUs of 1024 and 4096 bytes.
const USUAL: u16 = 1522;
const MTU_1024: u8 = 3;
const MTU_4096: u8 = 5;

/// Retries are soon over.
fn hasty() -> RtsAttr {
    RtsAttr { timeout: 4, retries: 1, ..RtsAttr::default() }
}

/// Bytes of the frame that carries a write of so many bytes, a multiple of four.
fn frame(look: Look, payload: usize) -> u16 {
    let tag = if look.vlan.is_some() { 4 } else { 0 };
    let network = match (look.version, look.ipv4) {
        (RoceVersion::V1, _) => 40,
        (RoceVersion::V2, true) => 20 + 8,
        (RoceVersion::V2, false) => 40 + 8,
    };
    (14 + tag + network + 12 + 16 + payload + 4 + 4) as u16
}

/// Connects two ends, which may be one.
fn connect(lan: &mut Lan, ends: &[End], look: Look, places: [usize; 2], mtu: u8) -> [Qp<ModelMemory>; 2] {
    let mut qps = places.map(|at| {
        let config = QpConfig::rc(ends[at].pd, &ends[at].cq, &ends[at].cq);
        lan.stations[at].hca.create_qp(&config).expect("CREATE_QP")
    });
    for i in 0..2 {
        let (peer, path): (Qpn, Path) = (qps[1 - i].number(), path(lan, look, places[1 - i]));
        let hca = &mut lan.stations[places[i]].hca;
        let init = InitAttr { access: Access::ALL, ..InitAttr::default() };
        hca.qp_to_init(&mut qps[i], &init).expect("INIT");
        hca.qp_to_rtr(&mut qps[i], &RtrAttr { mtu, ..RtrAttr::new(peer, path) }).expect("RTR");
        hca.qp_to_rts(&mut qps[i], &hasty()).expect("RTS");
    }
    qps
}

/// Writes from the first end to another; how it ended.
fn write(
    lan: &mut Lan,
    ends: &mut [End],
    qp: &mut Qp<ModelMemory>,
    to: usize,
    len: usize,
) -> Option<Syndrome> {
    ends[0].memory.write(0, &pattern(1, len));
    let (sge, far) = ([ends[0].sge(0, len)], ends[to].mr);
    let request = SendRequest::write(1, &sge, far.address + 32_768, far.key);
    qp.post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
    lan.simulation.run(Ps::from_ms(20));
    let done = ends[0].cq.poll().expect("it is over");
    assert_eq!(qp.finish(&done), Some(1));
    if done.status.is_ok() {
        assert_eq!(ends[to].bytes(32_768, len), pattern(1, len));
    }
    done.syndrome()
}

fn set(lan: &mut Lan, station: usize, bytes: u16) {
    lan.stations[station].hca.set_port_mtu(1, bytes).expect("PMTU");
}

/// Frames as long as the MTU pass, and none that is a byte longer, either way: whatever is around the packet.
#[test]
pub(crate) fn the_longest_frame_passes() {
    const FAILED: Option<Syndrome> = Some(Syndrome::TransportRetryExceeded);
    for look in LOOKS {
        let longest = frame(look, 1024);
        for (sender, receiver, fails) in
            [(longest, longest, None), (longest - 1, longest, FAILED), (longest, longest - 1, FAILED)]
        {
            let mut lan = Lan::cable();
            let mut ends = ends(&mut lan, look);
            let [mut near, _far] = connect(&mut lan, &ends, look, [0, 1], MTU_1024);
            set(&mut lan, 0, sender);
            set(&mut lan, 1, receiver);
            assert_eq!(
                write(&mut lan, &mut ends, &mut near, 1, 1020),
                None,
                "{look:?}: a shorter one passes"
            );
            let before = [lan.counted(0), lan.counted(1)];
            let ended = write(&mut lan, &mut ends, &mut near, 1, 1024);
            assert_eq!(ended, fails, "{look:?}: {sender}, {receiver}");
            let after = [lan.counted(0), lan.counted(1)];
            let refused = after[0].tx.errors - before[0].tx.errors;
            let oversize = after[1].oversize - before[1].oversize;
            // Once, and again.
            assert_eq!(refused, if sender < longest { 2 } else { 0 }, "{look:?}: {sender}, {receiver}");
            assert_eq!(oversize, if receiver < longest { 2 } else { 0 }, "{look:?}: {sender}, {receiver}");
            assert_eq!(after[1].rx.errors - before[1].rx.errors, oversize);
            let left = u64::from(fails.is_none()) + oversize;
            assert_eq!(
                after[0].tx.frames - before[0].tx.frames,
                left,
                "what is discarded does not count as sent"
            );
            assert_eq!(after[1].rx.frames - before[1].rx.frames, u64::from(fails.is_none()));
        }
    }
}

/// A path MTU of 4096 needs a port that has it, and is there when a driver asks for that; which is said.
#[test]
pub(crate) fn a_path_mtu_needs_its_port() {
    let look = LOOKS[4];
    for (wide, apart) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut lan = Lan::cable();
        let mut ends = ends(&mut lan, look);
        // The ends of a connection may be at one port.
        let to = usize::from(apart);
        let [mut near, _far] = connect(&mut lan, &ends, look, [0, to], MTU_4096);
        if wide {
            lan.stations.iter_mut().for_each(|station| station.hca.set_roce_mtu(1).expect("MTU"));
        }
        let ended = write(&mut lan, &mut ends, &mut near, to, 20_000);
        assert_eq!(ended.is_none(), wide, "{ended:?}");
        let said = lan.simulation.world(|world, _| world.drain_diagnoses());
        let said: Vec<String> = said.iter().map(|diagnosis| diagnosis.saying.to_string()).collect();
        let mtus = said.iter().filter(|text| text.contains(PORT_MTU.name)).count();
        assert_eq!(mtus > 0, !wide, "{said:?}");
    }
    assert!(ROCE_FRAME > frame(look, 4096), "with room for what other requests have");
}

/// Datagrams, too; nothing tells their sender.
#[test]
pub(crate) fn datagrams_that_are_too_long() {
    const QKEY: u32 = 0x1111;
    let look = LOOKS[2];
    let mut lan = Lan::cable();
    let mut ends = ends(&mut lan, look);
    let mut qps = datagram_queues(&mut lan, &ends, QKEY);
    let hop = Hop { priority: PRIORITY, ..Hop::to(lan.stations[1].mac) };
    for (mtu, arrives) in [(USUAL, false), (ROCE_FRAME, true)] {
        (0..2).for_each(|station| set(&mut lan, station, mtu));
        let (sge, room) = ([ends[0].sge(0, 4000)], ends[1].sge(0, 8192));
        qps[1].post_recv(9, &[room]).expect("post_recv");
        let to = RoceDatagram { qpn: qps[1].number(), qkey: QKEY, gid: look.gid(1), sgid_index: INDEX, hop };
        let request = SendRequest::new(1, SendOp::RoceDatagram { to, imm: None }, &sge);
        qps[0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
        lan.run();
        let sent = ends[0].cq.poll().expect("it is sent");
        assert_eq!((qps[0].finish(&sent), sent.status), (Some(1), Ok(())));
        assert_eq!(ends[1].cq.poll().is_some(), arrives, "{mtu}");
    }
}

/// A port that lets less pass than before cuts long messages in full flow: with trains and without the same.
#[test]
fn a_port_becomes_narrow() {
    let look = LOOKS[3];
    let run = |trains: bool, narrow: usize| {
        let mut lan = Lan::cable();
        lan.simulation.world(|world, _| {
            world.start_trace(1 << 10);
            world.set_trains(trains);
        });
        let mut ends = ends(&mut lan, look);
        lan.stations.iter_mut().for_each(|station| station.hca.set_roce_mtu(1).expect("MTU"));
        let [mut near, _far] = connect(&mut lan, &ends, look, [0, 1], MTU_4096);
        let (sge, far) = ([ends[0].sge(0, 60_000)], ends[1].mr);
        for number in 0..8 {
            let request = SendRequest::write(number, &sge, far.address, far.key);
            near.post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
        }
        lan.simulation.run(Ps::from_us(15));
        let before = lan.counted(narrow);
        set(&mut lan, narrow, USUAL);
        lan.simulation.run(Ps::from_ms(20));
        let mut ended = Vec::new();
        while let Some(done) = ends[0].cq.poll() {
            near.finish(&done);
            ended.push(done.syndrome());
        }
        assert!(
            ended.first() == Some(&None) && ended.contains(&Some(Syndrome::TransportRetryExceeded)),
            "{ended:?}"
        );
        let after = lan.counted(narrow);
        let dropped = [after.tx.errors - before.tx.errors, after.oversize - before.oversize];
        assert!(dropped[narrow] > 0 && dropped[1 - narrow] == 0, "{dropped:?}");
        let (trace, begun) = lan.simulation.world(|world, _| {
            (world.trace().map(|trace| (trace.hash(), trace.count())), world.trains_begun())
        });
        assert_eq!(begun > 0, trains);
        (trace, ended, lan.counted(0), lan.counted(1))
    };
    for narrow in 0..2 {
        assert!(run(true, narrow) == run(false, narrow), "station {narrow}");
    }
}

/// Of messages in full flow one packet may be longer than all others: that alone is discarded.
#[test]
fn one_packet_is_too_long() {
    const MESSAGES: u64 = 12;
    const LEN: usize = 40 * 1024;
    /// What a send has not, and its last packet with an immediate has.
    const RETH: u16 = 16;
    let look = LOOKS[3];
    let run = |trains: bool| {
        let mut lan = Lan::cable();
        lan.simulation.world(|world, _| {
            world.start_trace(1 << 10);
            world.set_trains(trains);
        });
        let mut ends = ends(&mut lan, look);
        let [mut near, mut far] = connect(&mut lan, &ends, look, [0, 1], MTU_1024);
        set(&mut lan, 0, frame(look, 1024) - RETH);
        let (sge, room) = ([ends[0].sge(0, LEN)], ends[1].sge(0, LEN));
        for number in 0..MESSAGES {
            far.post_recv(number, &[room]).expect("post_recv");
            let imm = (number == MESSAGES - 1).then_some(1);
            let request = SendRequest::new(number, SendOp::Send { imm }, &sge);
            near.post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
        }
        lan.simulation.run(Ps::from_ms(20));
        let sent: Vec<_> = std::iter::from_fn(|| ends[0].cq.poll()).map(|done| done.status.is_ok()).collect();
        assert_eq!(sent, [vec![true; MESSAGES as usize - 1], vec![false]].concat());
        let (trace, begun) = lan.simulation.world(|world, _| {
            (world.trace().map(|trace| (trace.hash(), trace.count())), world.trains_begun())
        });
        assert_eq!(begun > 0, trains);
        assert!(lan.counted(0).tx.errors >= 2 && lan.counted(1).oversize == 0, "at its sender");
        (trace, lan.counted(0), lan.counted(1))
    };
    assert!(run(true) == run(false));
}
