//! Masked atomics: compare and swap of some bits, fetch and add in fields, on 4 and 8 bytes.

use hca_driver::{AtomicSize, Dma, ScatterToCqe, SendOp, SendRequest};
use hca_model::Ps;
use hca_model::link::Faults;
use hca_model::personality::Personality;
use hca_spec::caps::{Atomic, atomic_operations};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::Mkey;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::lan::Lan;
use hca_tests::pair::{Options, Pair};
use hca_tests::rig::{close, open};

use crate::device_memory::world_of;
use crate::ethernet::roce;
use crate::tags::two_of;
use crate::{dc, xrc};

/// What is in memory before, the request, and what is there after.
type Step = (u64, SendOp, u64);

fn add(address: u64, rkey: Mkey, size: AtomicSize, add: u64, last: u64) -> SendOp {
    SendOp::MaskedFetchAdd { address, rkey, size, add, last }
}

fn swap(address: u64, rkey: Mkey, size: AtomicSize, compare: (u64, u64), swap: (u64, u64)) -> SendOp {
    SendOp::MaskedCompareSwap { address, rkey, size, compare, swap }
}

/// Requests and what becomes of the 8 bytes that they are on.
fn steps(address: u64, rkey: Mkey) -> Vec<Step> {
    use AtomicSize::{Double, Word};
    let all = u64::MAX;
    let (low, high) = (address, address + 4);
    vec![
        // One field: a plain addition, with carry out of the word dropped.
        (0xffff_ffff, add(address, rkey, Double, 1, 0), 0x1_0000_0000),
        (0xffff_ffff, add(low, rkey, Word, 1, 0), 0),
        (0x2222_2222_1111_1111, add(high, rkey, Word, 0x1111_1111, 0), 0x3333_3333_1111_1111),
        // Fields of a byte, of 4 and 12 bits, of a bit.
        (0x00ff_01ff, add(low, rkey, Word, 0x0101_0101, 0x8080_8080), 0x0100_0200),
        (
            0xffff_00ff_7f00_ff80,
            add(address, rkey, Double, 0x0101_0101_0101_0180, 0x8080_8080_8080_8080),
            0x0100_8001_0000,
        ),
        (0xffff, add(address, rkey, Double, 0x0011, 0x8008), 0x0000),
        (0b1100, add(address, rkey, Double, 0b1010, all), 0b0110),
        // All bits compared and swapped: as without masks.
        (5, swap(address, rkey, Double, (5, all), (9, all)), 9),
        (5, swap(address, rkey, Double, (6, all), (9, all)), 5),
        // Only what the masks choose counts, and is written.
        (
            0x1234_5678,
            swap(address, rkey, Double, (0xff34_ff78, 0x00ff_00ff), (all, 0xf000_000f)),
            0xf234_567f,
        ),
        (
            0x1234_5678,
            swap(address, rkey, Double, (0xff34_ff79, 0x00ff_00ff), (all, 0xf000_000f)),
            0x1234_5678,
        ),
        (7, swap(address, rkey, Double, (1 << 40, 0), (1 << 63, 1 << 63)), 1 << 63 | 7),
        (7, swap(address, rkey, Double, (7, all), (all, 0)), 7),
        (0x9_0000_0005, swap(low, rkey, Word, (0x15, 0xf), (0xaaaa, 0xff00)), 0x9_0000_aa05),
        (0x9_0000_0005, swap(high, rkey, Word, (9, 0xffff_ffff), (0, 0xffff_ffff)), 5),
        (0x9_0000_0005, swap(high, rkey, Word, (5, 0xffff_ffff), (0, 0xffff_ffff)), 0x9_0000_0005),
    ]
}

/// Bytes of the operand, and its place in the 8 bytes.
fn operand(op: SendOp) -> (usize, usize) {
    match op {
        SendOp::MaskedFetchAdd { address, size, .. } | SendOp::MaskedCompareSwap { address, size, .. } => {
            (if size == AtomicSize::Word { 4 } else { 8 }, (address % 8) as usize)
        }
        _ => (8, 0),
    }
}

fn check(pair: &mut Pair<ModelBus>) {
    let far = pair.ends[1].mr;
    for (before, op, after) in steps(far.address, far.key) {
        let (len, place) = operand(op);
        pair.fill(0, 0, &[0x5a; 16]);
        pair.fill(1, 0, &before.to_le_bytes());
        let sge = [pair.ends[0].sge(0, len)];
        pair.send(0, &SendRequest::new(1, op, &sge));
        pair.sent_ok(0, 1);
        let old = [&before.to_le_bytes()[place..place + len], &[0x5a; 16][len..]].concat();
        assert_eq!(pair.ends[0].bytes(0, 16), old, "{op:x?}");
        assert_eq!(pair.ends[1].bytes(0, 8), after.to_le_bytes(), "{op:x?}");
    }
}

fn loopback(kind: &'static str) -> Pair<ModelBus> {
    let simulation = Simulation::new(world_of(kind));
    Pair::connect(vec![open(&simulation, 0)], &Options::default()).expect("the queue pairs connect")
}

fn linked(faults: Faults, options: &Options) -> Pair<ModelBus> {
    let simulation = Simulation::new(two_of(["connectx5"; 2], faults));
    let hcas = (0..2).map(|n| open(&simulation, n)).collect();
    Pair::connect(hcas, options).expect("the queue pairs connect")
}

#[test]
pub(crate) fn bits_are_compared_swapped_and_added_in_fields() {
    for kind in ["connectx5", "connectx6dx"] {
        let mut pair = loopback(kind);
        check(&mut pair);
        close(pair);
    }
    let mut pair = linked(Faults::default(), &Options::default());
    check(&mut pair);
    close(pair);
}

/// In a completion, an operand of 4 bytes is a number of 4 bytes in network order, too.
#[test]
pub(crate) fn results_in_completions() {
    let options = Options { scatter_to_cqe: ScatterToCqe::Data32, ..Options::default() };
    let mut pair = linked(Faults::default(), &options);
    let far = pair.ends[1].mr;
    for (before, op, _) in steps(far.address, far.key) {
        let (len, place) = operand(op);
        pair.fill(1, 0, &before.to_le_bytes());
        let sge = [pair.ends[0].sge(0, len)];
        pair.send(0, &SendRequest::new(1, op, &sge));
        let done = pair.sent_ok(0, 1);
        let mut old = before.to_le_bytes()[place..place + len].to_vec();
        old.reverse();
        assert_eq!(done.data.expect("data in the entry").bytes(), old, "{op:x?}");
    }
    close(pair);
}

#[test]
pub(crate) fn over_roce() {
    for look in roce::LOOKS {
        let mut lan = Lan::of_kind("connectx5");
        let mut ends = roce::ends(&mut lan, look);
        let mut qps = roce::connected(&mut lan, &ends, look);
        let (far, rkey) = (ends[1].mr.address, ends[1].mr.key);
        for (i, (before, op, after)) in (0..).zip(steps(far, rkey)) {
            let (len, place) = operand(op);
            ends[1].memory.write(0, &before.to_le_bytes());
            let sge = [ends[0].sge(64, len)];
            let request = SendRequest::new(i, op, &sge);
            qps[0].post_send(lan.stations[0].hca.bus_mut(), &request).expect("post_send");
            lan.simulation.run(Ps::from_us(100));
            let done = ends[0].cq.poll().expect("a completion");
            assert_eq!((qps[0].finish(&done), done.status), (Some(i), Ok(())), "{look:?} {op:x?}");
            assert_eq!(ends[0].bytes(64, len), before.to_le_bytes()[place..place + len], "{look:?} {op:x?}");
            assert_eq!(ends[1].bytes(0, 8), after.to_le_bytes(), "{look:?} {op:x?}");
        }
        for (i, qp) in qps.into_iter().enumerate() {
            lan.stations[i].hca.destroy_qp(qp).expect("DESTROY_QP");
        }
    }
}

/// What comes again is answered with what was there when it came first.
#[test]
pub(crate) fn each_is_executed_once_however_often_it_comes() {
    let faults = Faults { loss: 0.05, duplicate: 0.05, ..Faults::default() };
    let mut pair = linked(faults, &Options::default());
    let far = pair.ends[1].mr;
    pair.fill(1, 0, &[0; 8]);
    let sge = [pair.ends[0].sge(0, 4)];
    for i in 0..300u64 {
        let op = add(far.address, far.key, AtomicSize::Word, 0x0001_0001, 0x8000_8000);
        pair.send(0, &SendRequest::new(i, op, &sge));
        pair.sent_ok(0, i);
        assert_eq!(pair.ends[0].bytes(0, 4), (i as u32 * 0x0001_0001).to_le_bytes());
    }
    assert_eq!(pair.ends[1].bytes(0, 8), u64::from(300 * 0x0001_0001u32).to_le_bytes());
}

#[test]
pub(crate) fn what_does_not_fit_is_refused() {
    use AtomicSize::{Double, Word};
    /// Offset of the address, size, bytes of the local buffer, and the status.
    const REFUSED: [(u64, AtomicSize, usize, Syndrome); 6] = [
        (0, Word, 8, Syndrome::LocalLength),
        (0, Double, 4, Syndrome::LocalLength),
        (0, Double, 16, Syndrome::LocalLength),
        (2, Word, 4, Syndrome::RemoteInvalidRequest),
        (4, Double, 8, Syndrome::RemoteInvalidRequest),
        (1 << 30, Word, 4, Syndrome::RemoteAccess),
    ];
    for (offset, size, len, status) in REFUSED {
        let mut pair = loopback("connectx5");
        let (address, rkey) = (pair.ends[1].mr.address + offset, pair.ends[1].mr.key);
        let before = pair.ends[1].bytes(0, 16);
        let sge = [pair.ends[0].sge(0, len)];
        pair.send(0, &SendRequest::new(1, add(address, rkey, size, 1, 0), &sge));
        assert_eq!(pair.sent(0).1.syndrome(), Some(status), "{offset} {size:?} {len}");
        assert_eq!(pair.ends[1].bytes(0, 16), before);
    }
}

/// A ConnectX-4 has none: neither its requests nor those of a peer that has them.
#[test]
pub(crate) fn adapters_without_them_refuse_them() {
    for kind in ["connectx4", "connectx5"] {
        let atomic = &Personality::named(kind).expect("there is one").capabilities.atomic;
        let mut pair = loopback(kind);
        let masked = atomic.get(Atomic::ATOMIC_OPERATIONS) & atomic_operations::MASKED;
        let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
        let sge = [pair.ends[0].sge(0, 8)];
        pair.send(0, &SendRequest::new(1, add(address, rkey, AtomicSize::Double, 1, 0), &sge));
        let status = pair.sent(0).1.syndrome();
        match kind {
            "connectx4" => assert_eq!((masked, status), (0, Some(Syndrome::LocalQpOperation))),
            _ => assert_eq!((masked, status), (atomic_operations::MASKED, None)),
        }
    }
    let simulation = Simulation::new(two_of(["connectx5", "connectx4"], Faults::default()));
    let hcas = (0..2).map(|n| open(&simulation, n)).collect();
    let mut pair = Pair::connect(hcas, &Options::default()).expect("the queue pairs connect");
    let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
    let sge = [pair.ends[0].sge(0, 8)];
    pair.send(0, &SendRequest::new(1, add(address, rkey, AtomicSize::Double, 1, 0), &sge));
    assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::RemoteInvalidRequest));
}

/// Requests to a shared receive queue of an XRC domain, as all of XRC are.
#[test]
pub(crate) fn over_extended_connections() {
    for pair in [loopback("connectx6dx"), linked(Faults::default(), &Options::default())] {
        let mut xrc = xrc::connect(pair, false);
        let (far, srq) = (xrc.pair.ends[1].mr, xrc.srqs[0].number());
        for (i, (before, op, after)) in (0..).zip(steps(far.address, far.key)) {
            let (len, place) = operand(op);
            xrc.pair.fill(1, 0, &before.to_le_bytes());
            let sge = [xrc.pair.ends[0].sge(64, len)];
            xrc.pair.send(0, &SendRequest::new(i, op, &sge).to_srq(srq));
            xrc.pair.sent_ok(0, i);
            let old = &before.to_le_bytes()[place..place + len];
            assert_eq!(xrc.pair.ends[0].bytes(64, len), old, "{op:x?}");
            assert_eq!(xrc.pair.ends[1].bytes(0, 8), after.to_le_bytes(), "{op:x?}");
        }
    }
}

/// Requests of initiators of dynamic connections, over lossy links, too.
#[test]
pub(crate) fn over_dynamic_connections() {
    let lossy = Faults { loss: 0.05, duplicate: 0.05, ..Faults::default() };
    let options = Options::default();
    for pair in [loopback("connectx6dx"), linked(Faults::default(), &options), linked(lossy, &options)] {
        let mut dc = dc::dc_pair(pair, false);
        let (far, target) = (dc.pair.ends[1].mr, dc.target(0));
        for (i, (before, op, after)) in (0..).zip(steps(far.address, far.key)) {
            let (len, place) = operand(op);
            dc.pair.fill(1, 0, &before.to_le_bytes());
            let sge = [dc.pair.ends[0].sge(64, len)];
            dc.post(0, &SendRequest::new(i, op, &sge).to_target(target));
            dc.sent_ok(i);
            let old = &before.to_le_bytes()[place..place + len];
            assert_eq!(dc.pair.ends[0].bytes(64, len), old, "{op:x?}");
            assert_eq!(dc.pair.ends[1].bytes(0, 8), after.to_le_bytes(), "{op:x?}");
        }
    }
    // A ConnectX-4 has none.
    let mut dc = dc::dc_pair(loopback("connectx4"), false);
    let (far, target) = (dc.pair.ends[1].mr, dc.target(0));
    let sge = [dc.pair.ends[0].sge(64, 8)];
    let op = add(far.address, far.key, AtomicSize::Double, 1, 0);
    dc.post(0, &SendRequest::new(1, op, &sge).to_target(target));
    assert_eq!(dc.sent().2.syndrome(), Some(Syndrome::LocalQpOperation));
}
