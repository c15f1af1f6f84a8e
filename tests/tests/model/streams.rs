//! Initiators of dynamic connections with streams, and send queues without a doorbell record: what a ConnectX-6 Dx has beside.

use hca_driver::qp::QpConfig;
use hca_driver::{RtsAttr, SendRequest, Sge};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::Mkey;
use hca_spec::qpc::QpState;
use hca_tests::in_process::Simulation;
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::open;

use crate::dc::{DcPair, dc_pair};
use crate::device_memory::world_of;

/// Initiators with 8 streams; with 4 of them in error, an initiator is in error itself.
const STREAMS: (u8, u8) = (3, 2);

fn rig() -> DcPair {
    let simulation = Simulation::new(world_of("connectx6dx"));
    let pair = Pair::connect(vec![open(&simulation, 0)], &Options::default()).expect("queue pairs connect");
    dc_pair(pair, false)
}

fn with_streams(dc: &mut DcPair) -> usize {
    dc.add_initiator_with(RtsAttr::default(), |config| QpConfig { streams: Some(STREAMS), ..config })
}

/// Writes 3000 bytes in a stream, or fails to: nobody has the key.
fn write(dc: &mut DcPair, initiator: usize, wr_id: u64, stream: u16, good: bool) {
    let (far, to) = (dc.pair.ends[1].mr, dc.target(0));
    let mut sge = dc.pair.ends[0].sge(0, 3000);
    if !good {
        sge = Sge { key: Mkey(0x00de_ad00), ..sge };
    }
    let (sges, at) = ([sge], far.address + wr_id * 4096);
    let request = SendRequest { stream, ..SendRequest::write(wr_id, &sges, at, far.key).to_target(to) };
    dc.post(initiator, &request);
}

fn next(dc: &mut DcPair) -> (u64, Option<Syndrome>) {
    let (_, wr_id, completion) = dc.sent();
    (wr_id, completion.syndrome())
}

#[test]
fn an_error_stays_in_its_stream() {
    let mut dc = rig();
    let data = pattern(1, 3000);
    dc.pair.fill(0, 0, &data);
    let initiator = with_streams(&mut dc);
    // All of it is posted before anything is seen of it.
    for (wr_id, stream, good) in
        [(1, 1, true), (2, 2, false), (3, 2, true), (4, 1, true), (5, 2, true), (6, 7, true)]
    {
        write(&mut dc, initiator, wr_id, stream, good);
    }
    let flushed = Some(Syndrome::WorkRequestFlushed);
    let expected =
        [(1, None), (2, Some(Syndrome::LocalProtection)), (3, flushed), (4, None), (5, flushed), (6, None)];
    for expected in expected {
        assert_eq!(next(&mut dc), expected);
    }
    assert_eq!(dc.state(initiator), Some(QpState::Rts));
    let untouched = vec![0; 3000];
    for (wr_id, syndrome) in expected {
        let found = dc.pair.ends[1].bytes(wr_id as usize * 4096, 3000);
        assert!(found == if syndrome.is_none() { &data } else { &untouched }[..], "request {wr_id}");
    }
    // It is taken out of error once, and no other is.
    let hca = &mut dc.pair.hcas[0];
    assert!(hca.qp_reset_stream(&mut dc.initiators[initiator], 1).is_err());
    hca.qp_reset_stream(&mut dc.initiators[initiator], 2).expect("RTS2RTS");
    assert!(hca.qp_reset_stream(&mut dc.initiators[initiator], 2).is_err());
    write(&mut dc, initiator, 7, 2, true);
    assert_eq!(next(&mut dc), (7, None));
    assert!(dc.pair.ends[1].bytes(7 * 4096, 3000) == data);
    dc.close();
}

/// What the target refuses counts as well, and the last stream that may be in error takes the initiator along.
#[test]
fn too_many_errors_are_the_initiators() {
    let mut dc = rig();
    let initiator = with_streams(&mut dc);
    for stream in 1..=3 {
        write(&mut dc, initiator, u64::from(stream), stream, false);
        assert_eq!(next(&mut dc), (stream.into(), Some(Syndrome::LocalProtection)));
        assert_eq!(dc.state(initiator), Some(QpState::Rts), "{stream} streams");
    }
    let (far, to) = (dc.pair.ends[1].mr, dc.target(0));
    let sges = [dc.pair.ends[0].sge(0, 64)];
    let wrong = SendRequest::write(4, &sges, far.address, Mkey(far.key.0 ^ 0x100)).to_target(to);
    dc.post(initiator, &SendRequest { stream: 0xffff, ..wrong });
    assert_eq!(next(&mut dc), (4, Some(Syndrome::RemoteAccess)));
    assert_eq!(dc.state(initiator), Some(QpState::Error));
    write(&mut dc, initiator, 5, 9, true);
    assert_eq!(next(&mut dc), (5, Some(Syndrome::WorkRequestFlushed)));
    // It forgets its streams with everything else.
    dc.revive(initiator);
    write(&mut dc, initiator, 6, 1, true);
    assert_eq!(next(&mut dc), (6, None));
    dc.close();
}

/// A remote error, too, is that of a stream.
#[test]
fn what_the_target_refuses() {
    let mut dc = rig();
    let initiator = with_streams(&mut dc);
    let (far, to) = (dc.pair.ends[1].mr, dc.target(0));
    let sges = [dc.pair.ends[0].sge(0, 5000)];
    let wrong = SendRequest::write(1, &sges, far.address, Mkey(far.key.0 ^ 0x100)).to_target(to);
    dc.post(initiator, &SendRequest { stream: 5, ..wrong });
    write(&mut dc, initiator, 2, 6, true);
    assert_eq!([next(&mut dc), next(&mut dc)], [(1, Some(Syndrome::RemoteAccess)), (2, None)]);
    assert_eq!(dc.state(initiator), Some(QpState::Rts));
    dc.close();
}

/// The doorbell says how far a queue without a record goes, across the end of its ring.
#[test]
fn queues_without_a_record() {
    let mut dc = rig();
    let initiator = dc.add_initiator_with(RtsAttr::default(), |config| QpConfig {
        recordless: true,
        send_blocks: 8,
        ..config
    });
    for wr_id in 0..12 {
        let data = pattern(wr_id, 3000);
        dc.pair.fill(0, 0, &data);
        write(&mut dc, initiator, wr_id, 0, true);
        assert_eq!(next(&mut dc), (wr_id, None));
        assert!(dc.pair.ends[1].bytes(wr_id as usize * 4096, 3000) == data, "request {wr_id}");
    }
    // Several with one doorbell.
    let (far, to) = (dc.pair.ends[1].mr, dc.target(0));
    let sges = [dc.pair.ends[0].sge(0, 64)];
    for wr_id in 20..22 {
        let request = SendRequest::write(wr_id, &sges, far.address, far.key).to_target(to);
        dc.initiators[initiator].queue_send(&request).expect("room");
    }
    let bus = dc.pair.hcas[0].bus_mut();
    dc.initiators[initiator].ring_doorbell(bus);
    assert_eq!([next(&mut dc), next(&mut dc)], [(20, None), (21, None)]);
    dc.close();
}
