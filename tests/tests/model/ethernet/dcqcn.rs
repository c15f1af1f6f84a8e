//! Congestion control of RoCE v2: who says that it can be told of congestion, who tells, and who sends slower.

use hca_driver::eth::{Hop, RoceVersion};
use hca_driver::wqe::RoceDatagram;
use hca_driver::{Dma, Path, SendOp, SendRequest};
use hca_model::{Ps, Queueing, Red};
use hca_spec::command::Opcode;
use hca_spec::congestion::{
    CongParamsIn, CongStatisticsIn, CongStatisticsOut, CongStatusIn, MODIFY_PARAMS, NotificationParams,
    protocol,
};
use hca_tests::fabric::{Plan, port};
use hca_tests::lan::{Lan, Station};
use hca_tests::pair::pattern;

use super::roce::{INDEX, Look, PRIORITY, connected_between, datagram_queues, ends, path};

/// Bytes of a message, and messages of each flow.
const MESSAGE: usize = 16 << 10;
const MESSAGES: u64 = 60;
/// RoCE v2 with a tag, so that the switch knows the priority.
const LOOK: Look = Look { version: RoceVersion::V2, ipv4: true, vlan: Some(9) };

/// One part of congestion control on or off for the traffic's priority.
fn switch(station: &mut Station, which: u32, on: bool) {
    let mut input = CongStatusIn::new();
    input.set(CongStatusIn::CONG_PROTOCOL, which).set(CongStatusIn::PRIORITY, PRIORITY.into());
    input.set(CongStatusIn::ENABLE, on.into());
    station.hca.execute(Opcode::ModifyCongStatus, 0, input.bytes().to_vec(), 16).expect("MODIFY_CONG_STATUS");
}

/// The least time between CNPs of a flow, us.
fn tell_every(station: &mut Station, us: u32) {
    let (mut input, mut params) = (CongParamsIn::new(), NotificationParams::new());
    input
        .set(CongParamsIn::CONG_PROTOCOL, protocol::NOTIFICATION_POINT)
        .set(CongParamsIn::FIELD_SELECT, 1 << 2);
    params.set(NotificationParams::MIN_TIME_BETWEEN_CNPS, us);
    let mut bytes = input.bytes().to_vec();
    bytes.resize(MODIFY_PARAMS, 0);
    bytes.extend_from_slice(params.bytes());
    station.hca.execute(Opcode::ModifyCongParams, 0, bytes, 16).expect("MODIFY_CONG_PARAMS");
}

/// Handled, ignored, marked, sent.
fn statistics(station: &mut Station) -> [u64; 4] {
    let input = CongStatisticsIn::new().bytes().to_vec();
    let out = station.hca.execute(Opcode::QueryCongStatistics, 0, input, CongStatisticsOut::SIZE);
    let out = CongStatisticsOut::from_prefix_or_zero(&out.expect("QUERY_CONG_STATISTICS"));
    [
        out.get(CongStatisticsOut::RP_CNP_HANDLED),
        out.get(CongStatisticsOut::RP_CNP_IGNORED),
        out.get(CongStatisticsOut::NP_ECN_MARKED_ROCE_PACKETS),
        out.get(CongStatisticsOut::NP_CNP_SENT),
    ]
}

/// What became of two flows to the first of three stations.
struct Seen {
    /// Packets that the switch marked.
    marked: u64,
    statistics: Vec<[u64; 4]>,
    /// How long it took.
    time: Ps,
}

/// The second and third write to the first, or it reads from them; the switch marks all packets that meet a queue.
fn incast(look: Look, read: bool, set: impl Fn(usize, &mut Station)) -> Seen {
    let mut how = Queueing::default();
    how.priorities[usize::from(PRIORITY)].ecn = Some(Red { kmin: 0, kmax: 0, pmax: 1.0 });
    let mut lan = Lan::switched(&Plan::around(&[3], 0), how);
    let mut ends = ends(&mut lan, look);
    lan.stations.iter_mut().enumerate().for_each(|(n, station)| set(n, station));
    let mut flows: Vec<_> =
        (1..3).map(|from| (from, connected_between(&mut lan, &ends, look, [from, 0]))).collect();
    for (from, _) in &flows {
        ends[*from].memory.write(0, &pattern(*from as u64, MESSAGE));
    }
    let begin = lan.simulation.now();
    for n in 0..MESSAGES {
        for (from, qps) in &mut flows {
            let (near, far) = if read { (0, *from) } else { (*from, 0) };
            let far = &ends[far].mr;
            let (address, rkey) = (far.address, far.key);
            let (op, qp, at) = match read {
                true => (SendOp::Read { address, rkey }, &mut qps[1], MESSAGE * *from),
                false => {
                    let address = address + (MESSAGE * *from) as u64;
                    (SendOp::Write { address, rkey, imm: None }, &mut qps[0], 0)
                }
            };
            let sge = [ends[near].sge(at, MESSAGE)];
            qp.post_send(lan.stations[near].hca.bus_mut(), &SendRequest::new(n, op, &sge))
                .expect("post_send");
        }
    }
    let (mut done, mut steps) = ([0; 3], 0);
    let all = if read { [2 * MESSAGES, 0, 0] } else { [0, MESSAGES, MESSAGES] };
    while done != all {
        lan.simulation.run(Ps::from_us(5));
        for (at, end) in ends.iter_mut().enumerate() {
            while let Some(completion) = end.cq.poll() {
                assert_eq!(completion.status, Ok(()));
                let mut own =
                    flows.iter_mut().flat_map(|(_, qps)| qps).filter(|qp| qp.number() == completion.qpn);
                own.next().and_then(|qp| qp.finish(&completion));
                done[at] += 1;
            }
        }
        steps += 1;
        assert!(steps < 100_000, "{done:?} of {all:?}");
    }
    let time = Ps(lan.simulation.now().since(begin).0);
    for (from, _) in &flows {
        assert!(ends[0].bytes(MESSAGE * *from, MESSAGE) == pattern(*from as u64, MESSAGE), "wrong bytes");
    }
    let counters = lan.simulation.world(|world, _| world.ethernet_counters(port(0, 1)).copied());
    let statistics = lan.stations.iter_mut().map(statistics).collect();
    Seen { marked: counters.expect("a port").ecn_marked, statistics, time }
}

/// Packets of priorities that react are ECN-capable, whatever their driver says; marks are answered with CNPs, not more often than
/// the port's parameters say, and who gets them sends slower.
#[test]
fn marks_slow_senders_down() {
    for read in [false, true] {
        let off = incast(LOOK, read, |_, station| switch(station, protocol::REACTION_POINT, false));
        assert_eq!(
            (off.marked, &off.statistics),
            (0, &vec![[0; 4]; 3]),
            "nobody who would react can be told"
        );
        let on = incast(LOOK, read, |_, _| {});
        let [receiver, one, other] = on.statistics[..] else { panic!("three stations") };
        assert!(on.marked > 100 && receiver[2] == on.marked, "{}, {receiver:?}", on.marked);
        assert_eq!((receiver[3], receiver[1]), (one[0] + other[0], 0), "all that were sent are handled");
        // One flow, one CNP in 4 us, as adapters come.
        let most = 2 * (on.time.0 / Ps::from_us(4).0 + 1);
        assert!(one[0] > 3 && other[0] > 3 && receiver[3] <= most, "{receiver:?}, {}", on.time);
        assert!(on.time.0 * 4 > off.time.0 * 5, "{} and {}", on.time, off.time);
        // Who tells less often slows them down less.
        let seldom = incast(LOOK, read, |n, station| {
            if n == 0 {
                tell_every(station, 100)
            }
        });
        let told = seldom.statistics[0][3];
        assert!(told > 0 && told <= 2 * (seldom.time.0 / Ps::from_us(100).0 + 1), "{told}, {}", seldom.time);
        assert!(seldom.time < on.time, "{} and {}", seldom.time, on.time);
    }
}

/// Who does not tell counts marks; RoCE v1 has no place for marks.
#[test]
fn marks_without_cnps() {
    let silent = |_: usize, station: &mut Station| switch(station, protocol::NOTIFICATION_POINT, false);
    let seen = incast(LOOK, false, silent);
    assert_eq!((seen.statistics[0], seen.statistics[1]), ([0, 0, seen.marked, 0], [0; 4]));
    assert!(seen.marked > 100);
    let v1 = incast(Look { version: RoceVersion::V1, ..LOOK }, false, |_, _| {});
    assert_eq!((v1.marked, v1.statistics), (0, vec![[0; 4]; 3]));
}

/// Datagrams have the ECN bits of their address vector. Who receives marked ones tells their sender, which can do nothing with it:
/// a queue pair of datagrams has no rate.
#[test]
fn datagrams_are_told_of_and_not_slowed() {
    const QKEY: u32 = 0x1122_3344;
    const DATAGRAMS: u64 = 12;
    const SIZE: usize = 1000;
    const ECT_0: u8 = 0b10;
    for (traffic_class, capable) in [(ECT_0, true), (0, false)] {
        let mut how = Queueing::default();
        how.priorities[usize::from(PRIORITY)].ecn = Some(Red { kmin: 0, kmax: 0, pmax: 1.0 });
        let mut lan = Lan::switched(&Plan::around(&[3], 0), how);
        let mut ends = ends(&mut lan, LOOK);
        let mut qps = datagram_queues(&mut lan, &ends, QKEY);
        for n in 0..2 * DATAGRAMS {
            qps[0].post_recv(n, &[ends[0].sge(0, 2 * SIZE)]).expect("post_recv");
        }
        let Path { hop: Some(hop), .. } = path(&lan, LOOK, 0) else { unreachable!("it has one") };
        let hop = Hop { traffic_class, ..hop };
        let to = RoceDatagram { qpn: qps[0].number(), qkey: QKEY, gid: LOOK.gid(0), sgid_index: INDEX, hop };
        for n in 0..DATAGRAMS {
            for from in [1, 2] {
                let sge = [ends[from].sge(0, SIZE)];
                let request = SendRequest::new(n, SendOp::RoceDatagram { to, imm: None }, &sge);
                qps[from].post_send(lan.stations[from].hca.bus_mut(), &request).expect("post_send");
            }
        }
        lan.run();
        let arrived = std::iter::from_fn(|| ends[0].cq.poll()).filter(|done| done.status == Ok(())).count();
        assert_eq!(arrived as u64, 2 * DATAGRAMS);
        let counters = lan.simulation.world(|world, _| world.ethernet_counters(port(0, 1)).copied());
        let marked = counters.expect("a port").ecn_marked;
        let [receiver, one, other] = [0, 1, 2].map(|at| statistics(&mut lan.stations[at]));
        assert_eq!((marked > 5, receiver[..3] == [0, 0, marked]), (capable, true), "{marked}, {receiver:?}");
        assert_eq!(receiver[3] > 0, capable, "{receiver:?}");
        assert_eq!((one[0] + other[0], one[1] + other[1]), (0, receiver[3]), "{one:?}, {other:?}");
    }
}
