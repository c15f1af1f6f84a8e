//! What goes wrong on a queue pair, and what is reported then.

use hca_driver::qp::Path;
use hca_driver::wqe::SendOp;
use hca_driver::{Access, Event, InitAttr, RtrAttr, RtsAttr, SendRequest, Sge};
use hca_model::link::Faults;
use hca_model::{HcaId, PortRef, Ps};
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::{EventType, cq_syndrome};
use hca_spec::ids::Mkey;
use hca_spec::qpc::QpState;
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, PORT, Pair, pattern};
use hca_tests::rig::{MTU, assert_state, close, drain_events, everywhere, linked, loopback};

#[test]
pub(crate) fn receiver_not_ready_is_waited_for() {
    everywhere(&Options::default(), |pair| {
        let data = pattern(1, 5000);
        pair.fill(0, 0, &data);
        let sge = pair.ends[0].sge(0, 5000);
        pair.send(0, &SendRequest::send(1, &[sge]));
        pair.send(0, &SendRequest::send(2, &[]).inline(b"second"));
        let simulation = pair.hcas[0].bus_mut().simulation().clone();
        simulation.run(Ps::from_ms(20));
        assert_eq!(pair.try_sent(0), None, "there was nothing to receive into");
        pair.recv(1, 11, 0, 8192);
        pair.recv(1, 12, 8192, 8192);
        pair.sent_ok(0, 1);
        pair.sent_ok(0, 2);
        assert_eq!(pair.received_ok(1, 11).byte_len, 5000);
        assert_eq!(pair.received_ok(1, 12).byte_len, 6);
        assert!(pair.ends[1].bytes(0, 5000) == data);
        assert_eq!(pair.ends[1].bytes(8192, 6), b"second");
    });
}

#[test]
pub(crate) fn receiver_not_ready_for_too_long_is_an_error() {
    let rts = RtsAttr { rnr_retries: 2, ..RtsAttr::default() };
    everywhere(&Options { rts, ..Options::default() }, |pair| {
        pair.send(0, &SendRequest::send(1, &[]).inline(b"x"));
        pair.send(0, &SendRequest::send(2, &[]).inline(b"y").unsignaled());
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::RnrRetryExceeded)));
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (2, Some(Syndrome::WorkRequestFlushed)));
        assert_state(pair, 0, QpState::Error);
        assert_state(pair, 1, QpState::Rts);
    });
}

/// What asks to be told of the first error only is told of its own, and not that it was flushed behind another's (CE 1); what asks for
/// errors is told that, too (CE 0). Requests that are under way, and those that come later.
#[test]
pub(crate) fn only_the_first_error_is_told() {
    everywhere(&Options::default(), |pair| {
        let far = pair.ends[1].mr;
        let write = |wr_id, key, quiet| SendRequest {
            quiet,
            signaled: false,
            ..SendRequest::write(wr_id, &[], far.address, key).inline(b"x")
        };
        pair.send(0, &write(1, Mkey(far.key.0 ^ 0xff), true));
        pair.send(0, &write(2, far.key, true));
        pair.send(0, &write(3, far.key, false));
        pair.send(0, &write(4, far.key, true));
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::RemoteAccess)));
        let flushed = |pair: &mut Pair<ModelBus>, expected| {
            let (wr_id, completion) = pair.sent(0);
            assert_eq!((wr_id, completion.syndrome()), (expected, Some(Syndrome::WorkRequestFlushed)));
        };
        flushed(pair, 3);
        assert_eq!(pair.try_sent(0), None);
        pair.send(0, &write(5, far.key, true));
        pair.send(0, &write(6, far.key, false));
        pair.send(0, &write(7, far.key, true));
        pair.send(0, &SendRequest::write(8, &[], far.address, far.key).inline(b"x"));
        flushed(pair, 6);
        flushed(pair, 8);
        assert_eq!(pair.try_sent(0), None);
        assert_state(pair, 0, QpState::Error);
    });
}

/// The peer does not answer at all: its queue pair was reset.
#[test]
pub(crate) fn a_silent_peer_is_an_error_after_the_retries() {
    let rts = RtsAttr { timeout: 8, retries: 3, ..RtsAttr::default() };
    everywhere(&Options { rts, ..Options::default() }, |pair| {
        let home = pair.ends[1].home;
        let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[1].qp);
        hca.qp_to_reset(qp).expect("2RST");
        pair.send(0, &SendRequest::send(1, &[]).inline(b"x"));
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::TransportRetryExceeded)));
        assert_state(pair, 0, QpState::Error);
    });
}

/// A queue pair hears only the one it is connected to, whoever else knows its number and its packet numbers.
#[test]
pub(crate) fn strangers_are_not_heard() {
    let options =
        Options { rts: RtsAttr { timeout: 8, retries: 2, ..RtsAttr::default() }, ..Options::default() };
    let mut pair = linked(&options, Faults::default(), 1);
    // End 1 turns to itself, with the numbers that end 0 goes on using.
    let own = pair.hcas[1].lid(PORT).expect("PortInfo");
    let (hca, qp) = (&mut pair.hcas[1], &mut pair.ends[1].qp);
    hca.qp_to_reset(qp).expect("2RST");
    hca.qp_to_init(qp, &InitAttr { access: Access::ALL, ..InitAttr::default() }).expect("RST2INIT");
    let receive_psn = options.rts.send_psn;
    let rtr = RtrAttr { mtu: options.mtu, receive_psn, ..RtrAttr::new(qp.number(), Path::lid(own)) };
    hca.qp_to_rtr(qp, &rtr).expect("INIT2RTR");
    hca.qp_to_rts(qp, &options.rts).expect("RTR2RTS");
    pair.recv(1, 7, 0, 64);
    let (address, key) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
    pair.send(0, &SendRequest::write(1, &[], address, key).inline(b"intruder"));
    pair.send(0, &SendRequest::send(2, &[]).inline(b"hello"));
    let (wr_id, completion) = pair.sent(0);
    assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::TransportRetryExceeded)));
    assert!(pair.try_received(1).is_none());
    assert_eq!(pair.ends[1].bytes(0, 8), [0; 8]);
    // Nor has it noticed anything.
    pair.send(1, &SendRequest::send(3, &[]).inline(b"myself"));
    pair.sent_ok(1, 3);
    assert_eq!(pair.received_ok(1, 7).byte_len, 6);
    close(pair);
}

#[test]
pub(crate) fn error_flushes_everything_in_order() {
    everywhere(&Options::default(), |pair| {
        for i in 0..10 {
            pair.recv(0, 100 + i, 0, 64);
        }
        let home = pair.ends[0].home;
        let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[0].qp);
        hca.qp_to_error(qp).expect("2ERR");
        // Requests posted in the error state are flushed as well.
        for i in 0..5 {
            pair.send(0, &SendRequest::send(i, &[]).inline(&[1; 50]).unsignaled());
        }
        for i in 10..12 {
            pair.recv(0, 100 + i, 0, 64);
        }
        for i in 0..5 {
            let (wr_id, completion) = pair.sent(0);
            assert_eq!((wr_id, completion.syndrome()), (i, Some(Syndrome::WorkRequestFlushed)));
        }
        for i in 0..12 {
            let (wr_id, completion) = pair.received(0);
            assert_eq!((wr_id, completion.syndrome()), (100 + i, Some(Syndrome::WorkRequestFlushed)));
        }
        assert_state(pair, 0, QpState::Error);
        assert!(pair.try_sent(0).is_none() && pair.try_received(0).is_none());
    });
}

/// After 2RST nothing more is reported, and the same queue pair can be connected again.
#[test]
pub(crate) fn reset_forgets_and_the_pair_reconnects() {
    let options = Options::default();
    everywhere(&options, |pair| {
        for round in 0..3 {
            for i in 0..7 {
                pair.recv(0, i, 0, 64);
                pair.send(0, &SendRequest::send(i, &[]).inline(b"never received"));
            }
            for end in 0..2 {
                let home = pair.ends[end].home;
                pair.hcas[home].qp_to_reset(&mut pair.ends[end].qp).expect("2RST");
            }
            let simulation = pair.hcas[0].bus_mut().simulation().clone();
            simulation.run(Ps::from_ms(100));
            assert!(pair.ends.iter().all(|e| e.send_cq.peek().is_none() && e.recv_cq.peek().is_none()));
            for end in 0..2 {
                pair.to_rts(end, &options).expect("connect again");
            }
            pair.recv(1, 40 + round, 0, 64);
            pair.send(0, &SendRequest::send(30 + round, &[]).inline(b"hello"));
            pair.sent_ok(0, 30 + round);
            pair.received_ok(1, 40 + round);
            assert_eq!(pair.ends[1].bytes(0, 5), b"hello");
        }
    });
}

/// What a remote access may get wrong; all are answered the same way.
#[test]
pub(crate) fn bad_remote_access_is_refused() {
    type Spoil = fn(u64, Mkey, u64) -> (u64, Mkey);
    let cases: [(&str, Spoil); 5] = [
        ("wrong variant of the key", |address, key, _| (address, Mkey(key.0 ^ 1))),
        ("a key that does not exist", |address, _, _| (address, Mkey(0x00ab_cd00))),
        ("one byte beyond the end", |address, key, len| (address + len - 99, key)),
        ("one byte before the start", |address, key, _| (address - 1, key)),
        ("around the end of the address space", |_, key, _| (u64::MAX - 50, key)),
    ];
    for read in [false, true] {
        for (what, spoil) in cases {
            everywhere(&Options::default(), |pair| {
                let far = pair.ends[1].mr;
                let (address, key) = spoil(far.address, far.key, far.len);
                pair.fill(1, 0, &[0xee; 1 << 16]);
                let sge = [pair.ends[0].sge(0, 100)];
                let request = if read {
                    SendRequest::read(1, &sge, address, key)
                } else {
                    SendRequest::write(1, &sge, address, key)
                };
                pair.recv(0, 9, 0, 10);
                pair.send(0, &request.unsignaled());
                let (wr_id, completion) = pair.sent(0);
                assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::RemoteAccess)), "{what}");
                let (wr_id, completion) = pair.received(0);
                assert_eq!((wr_id, completion.syndrome()), (9, Some(Syndrome::WorkRequestFlushed)), "{what}");
                assert_state(pair, 0, QpState::Error);
                assert_state(pair, 1, QpState::Error);
                assert!(pair.ends[1].bytes(0, 1 << 16).iter().all(|b| *b == 0xee), "{what}: memory changed");
                // The responder's host is told by an event.
                let home = pair.ends[1].home;
                let qpn = pair.ends[1].qp.number();
                let kinds = [EventType::AccessError as u8, EventType::InvalidRequest as u8];
                let told = drain_events(&mut pair.hcas[home])
                    .iter()
                    .any(|e| matches!(e, Event::Qp { qpn: q, kind } if *q == qpn && kinds.contains(kind)));
                assert!(told, "{what}: no event at the responder");
            });
        }
    }
}

#[test]
pub(crate) fn bad_local_access_is_an_error() {
    everywhere(&Options::default(), |pair| {
        let near = pair.ends[0].mr;
        let sge = Sge { address: near.address + near.len - 10, len: 11, key: near.key };
        pair.send(0, &SendRequest::send(1, &[sge]));
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::LocalProtection)));
        assert_state(pair, 0, QpState::Error);
    });
}

/// A message longer than the receive request: an error at both ends.
#[test]
pub(crate) fn too_long_for_the_receiver() {
    everywhere(&Options::default(), |pair| {
        pair.fill(1, 0, &[0xee; 4096]);
        pair.recv(1, 5, 0, 1500);
        let sge = pair.ends[0].sge(0, 3000);
        pair.send(0, &SendRequest::send(1, &[sge]));
        let (_, completion) = pair.sent(0);
        assert_eq!(completion.syndrome(), Some(Syndrome::RemoteInvalidRequest));
        let (wr_id, completion) = pair.received(1);
        assert_eq!((wr_id, completion.syndrome()), (5, Some(Syndrome::LocalLength)));
        assert!(pair.ends[1].bytes(1500, 2000).iter().all(|b| *b == 0xee), "the receive overflowed");
        assert_state(pair, 0, QpState::Error);
        assert_state(pair, 1, QpState::Error);
    });
}

#[test]
pub(crate) fn completion_queue_overrun_is_an_event() {
    everywhere(&Options { cqes: 4, ..Options::default() }, |pair| {
        for i in 0..6 {
            pair.send(0, &SendRequest::new(i, SendOp::Nop, &[]));
        }
        let cqn = pair.ends[0].send_cq.number();
        let home = pair.ends[0].home;
        let events = drain_events(&mut pair.hcas[home]);
        let overrun = Event::CqError { cqn, syndrome: cq_syndrome::OVERRUN as u8 };
        assert_eq!(events.iter().filter(|e| **e == overrun).count(), 1, "{events:?}");
        // What was written before is intact.
        for i in 0..4 {
            pair.sent_ok(0, i);
        }
        assert!(pair.try_sent(0).is_none());
    });
}

/// IBTA 9.7.7.2: the last packet of a write with immediate needs a receive request of the peer. The packet before which it stops asks for the
/// answer that tells of one, so that nothing waits for a timer; here there is none.
#[test]
pub(crate) fn a_write_with_immediate_asks_for_the_credit_that_it_needs() {
    let options = Options { rts: RtsAttr { timeout: 0, ..RtsAttr::default() }, ..Options::default() };
    let mut pair = linked(&options, Faults::default(), 1);
    let far = pair.ends[1].mr;
    for i in 1..=4 {
        // One at a time: each answer says that there is no other.
        pair.recv(1, i, 0, 64);
        let sge = [pair.ends[0].sge(0, 3 * MTU)];
        let write = SendOp::Write { address: far.address, rkey: far.key, imm: Some(1) };
        pair.send(0, &SendRequest::new(i, write, &sge));
        pair.sent_ok(0, i);
        pair.received_ok(1, i);
    }
    close(pair);
}

/// The local buffer of an atomic has its operand's size.
#[test]
pub(crate) fn atomics_have_a_buffer_of_their_size() {
    for len in [4, 16] {
        everywhere(&Options::default(), |pair| {
            let far = pair.ends[1].mr;
            let sge = [pair.ends[0].sge(0, len)];
            let add = SendOp::FetchAdd { address: far.address, rkey: far.key, add: 1 };
            pair.send(0, &SendRequest::new(1, add, &sge));
            assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::LocalLength));
        });
    }
}

/// Memory that goes while a read of it is answered: it is as if the read had been refused when it came (IBTA 9.9.3).
#[test]
pub(crate) fn a_read_whose_memory_goes_is_refused() {
    let mut pair = linked(&Options::default(), Faults::default(), 1);
    let (far, len) = (pair.ends[1].mr, 60 * MTU);
    let sge = [pair.ends[0].sge(0, len)];
    pair.send(0, &SendRequest::read(1, &sge, far.address, far.key));
    pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_us(2));
    assert!(pair.try_sent(0).is_none());
    pair.hcas[1].free_key(far.key).expect("DESTROY_MKEY");
    let (wr_id, completion) = pair.sent(0);
    assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::RemoteAccess)));
    assert_state(&mut pair, 0, QpState::Error);
    assert_state(&mut pair, 1, QpState::Error);
    let qpn = pair.ends[1].qp.number();
    let events = drain_events(&mut pair.hcas[1]);
    let kind = EventType::AccessError as u8;
    assert!(events.iter().any(|e| matches!(e, Event::Qp { qpn: q, kind: k } if *q == qpn && *k == kind)));
}

/// Once its driver has put a queue pair into error, memory is not read for its peer any more.
#[test]
pub(crate) fn nothing_is_read_behind_2err() {
    let mut pair = linked(&Options::default(), Faults::default(), 1);
    let (far, len) = (pair.ends[1].mr, 60 * MTU);
    pair.fill(1, 0, &vec![1; len]);
    let sge = [pair.ends[0].sge(0, len)];
    pair.send(0, &SendRequest::read(1, &sge, far.address, far.key));
    pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_us(2));
    pair.hcas[1].qp_to_error(&mut pair.ends[1].qp).expect("2ERR");
    pair.fill(1, 0, &vec![2; len]);
    pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_us(200));
    let got = pair.ends[0].bytes(0, len);
    assert!(!got.contains(&2), "what the driver took back was read");
    assert!(got.contains(&0), "the whole of it came before");
}

/// What a subnet manager lets a port send holds, whatever a connection's path MTU is: longer packets are discarded before the link
/// (IBTA vol 1 16.1.3.5, PortXmitDiscards), and come back to the port itself.
#[test]
pub(crate) fn packets_are_held_to_the_port_of_their_sender() {
    const LEAST: u16 = 1024;
    let options = Options {
        mtu: 5,
        rts: RtsAttr { timeout: 4, retries: 1, ..RtsAttr::default() },
        ..Options::default()
    };
    let limit = |pair: &mut Pair<ModelBus>| {
        let simulation = pair.hcas[0].bus_mut().simulation().clone();
        simulation.world(|world, _| {
            world.start_checker(Ps::from_ms(2000));
            world.limit_port(PortRef::of_hca(HcaId(0), PORT), LEAST, 8);
        });
        simulation
    };
    let write = |pair: &mut Pair<ModelBus>, wr_id, len| {
        let (far, sge) = (pair.ends[1].mr, [pair.ends[0].sge(0, len)]);
        pair.send(0, &SendRequest::write(wr_id, &sge, far.address, far.key));
        pair.sent(0).1.syndrome()
    };
    // A packet alone, and in the middle of a message.
    for long in [2048, 20_000] {
        let mut pair = linked(&options, Faults::default(), 1);
        let simulation = limit(&mut pair);
        assert_eq!(write(&mut pair, 1, usize::from(LEAST)), None);
        assert_eq!(write(&mut pair, 2, long), Some(Syndrome::TransportRetryExceeded));
        let said = simulation.world(|world, _| world.drain_diagnoses());
        let said: Vec<String> = said.iter().map(|diagnosis| diagnosis.saying.to_string()).collect();
        assert!(said.iter().any(|text| text.contains("NeighborMTU: found 1148")), "{said:?}");
    }
    let mut pair = loopback(&options);
    limit(&mut pair);
    assert_eq!(write(&mut pair, 1, 20_000), None);
}
