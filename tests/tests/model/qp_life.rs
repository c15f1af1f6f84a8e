//! The life of a queue pair: draining, the error of its send queue, and completion queues that fail under it.

use hca_driver::qp::QpConfig;
use hca_driver::wqe::SendOp;
use hca_driver::{CqConfig, Datagram, Error, Event, InitAttr, RtsAttr, SendRequest, Sge};
use hca_model::Ps;
use hca_spec::command::Status;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::ids::Mkey;
use hca_spec::qpc::{QpState, Qpc, ServiceType};
use hca_tests::pair::{Options, PORT};
use hca_tests::rig::{assert_state, close, drain_events, everywhere, loopback};

const FLUSHED: Option<Syndrome> = Some(Syndrome::WorkRequestFlushed);

fn status<T>(result: Result<T, Error>) -> Option<Status> {
    result.err().and_then(|e| e.status())
}

/// What was started goes on, what was not waits; the event comes when all that was started is done.
#[test]
pub(crate) fn a_send_queue_drains() {
    for event in [true, false] {
        everywhere(&Options::default(), |pair| {
            let home = pair.ends[0].home;
            let qpn = pair.ends[0].qp.number();
            let drained = Event::Qp { qpn, kind: EventType::SqDrained as u8 };
            let simulation = pair.hcas[0].bus_mut().simulation().clone();
            // The peer has no receive request: the first message is started and waits.
            pair.send(0, &SendRequest::send(1, &[]).inline(b"first"));
            simulation.run(Ps::from_us(20));
            let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[0].qp);
            hca.qp_to_drained(qp, event).expect("RTS2SQD");
            assert_state(pair, 0, QpState::SqDraining);
            let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[0].qp);
            assert_eq!(status(hca.qp_drained_to_rts(qp)), Some(Status::BadQpState), "it still drains");
            pair.send(0, &SendRequest::send(2, &[]).inline(b"second"));
            assert!(!drain_events(&mut pair.hcas[home]).contains(&drained));

            pair.recv(1, 11, 0, 64);
            pair.recv(1, 12, 64, 64);
            pair.sent_ok(0, 1);
            pair.received_ok(1, 11);
            let events = drain_events(&mut pair.hcas[home]);
            assert_eq!(events.contains(&drained), event, "{events:?}");
            assert_state(pair, 0, QpState::SqDrained);
            assert!(pair.try_sent(0).is_none(), "the second was started in SQD");
            // Receives go on meanwhile.
            pair.recv(0, 21, 128, 64);
            pair.send(1, &SendRequest::send(3, &[]).inline(b"back"));
            pair.sent_ok(1, 3);
            pair.received_ok(0, 21);

            let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[0].qp);
            hca.qp_drained_to_rts(qp).expect("SQD2RTS");
            pair.sent_ok(0, 2);
            pair.received_ok(1, 12);
            assert_eq!(pair.ends[1].bytes(64, 6), b"second");
            assert_state(pair, 0, QpState::Rts);
        });
    }
}

/// With nothing under way the queue is drained at once; from there it may go to error.
#[test]
pub(crate) fn an_idle_send_queue_is_drained() {
    everywhere(&Options::default(), |pair| {
        let home = pair.ends[0].home;
        drain_events(&mut pair.hcas[home]);
        let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[0].qp);
        hca.qp_to_drained(qp, true).expect("RTS2SQD");
        let drained = Event::Qp { qpn: qp.number(), kind: EventType::SqDrained as u8 };
        assert_eq!(drain_events(hca), [drained]);
        assert_state(pair, 0, QpState::SqDrained);
        pair.send(0, &SendRequest::send(1, &[]).inline(b"never"));
        let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[0].qp);
        hca.qp_to_error(qp).expect("2ERR");
        assert_eq!(pair.sent(0).1.syndrome(), FLUSHED);
    });
}

/// UC: a send request that fails stops the send queue alone; it is flushed, and can be recovered.
#[test]
pub(crate) fn an_unreliable_send_queue_fails_alone() {
    let options = Options { service: ServiceType::Uc, ..Options::default() };
    everywhere(&options, |pair| {
        let bad = Sge { address: 0, len: 8, key: Mkey(0x00ab_cd00) };
        pair.recv(0, 31, 0, 64);
        pair.send(0, &SendRequest::send(1, &[bad]).unsignaled());
        pair.send(0, &SendRequest::send(2, &[]).inline(b"behind"));
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::LocalProtection)));
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (2, FLUSHED));
        assert_state(pair, 0, QpState::SqError);
        // What is posted in this state is flushed, what arrives is received.
        pair.send(0, &SendRequest::send(3, &[]).inline(b"too early").unsignaled());
        assert_eq!(pair.sent(0).1.syndrome(), FLUSHED);
        pair.send(1, &SendRequest::send(4, &[]).inline(b"hello"));
        pair.sent_ok(1, 4);
        pair.received_ok(0, 31);

        let home = pair.ends[0].home;
        let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[0].qp);
        hca.qp_recover_sends(qp).expect("SQERR2RTS");
        pair.recv(1, 32, 0, 64);
        pair.send(0, &SendRequest::send(5, &[]).inline(b"again"));
        pair.sent_ok(0, 5);
        pair.received_ok(1, 32);
        assert_eq!(pair.ends[1].bytes(0, 5), b"again");
    });
}

/// RC: the peer waits for what comes next, so a failed request is the end of the connection.
#[test]
pub(crate) fn a_reliable_queue_pair_fails_as_a_whole() {
    everywhere(&Options::default(), |pair| {
        let bad = Sge { address: 0, len: 8, key: Mkey(0x00ab_cd00) };
        pair.recv(0, 1, 0, 64);
        pair.send(0, &SendRequest::send(1, &[bad]));
        assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::LocalProtection));
        assert_eq!(pair.received(0).1.syndrome(), FLUSHED);
        assert_state(pair, 0, QpState::Error);
        let home = pair.ends[0].home;
        let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[0].qp);
        assert_eq!(status(hca.qp_recover_sends(qp)), Some(Status::BadQpState));
    });
}

/// Datagrams: as UC, and the queue pair hears from others all the time.
#[test]
pub(crate) fn a_datagram_send_queue_fails_alone() {
    let mut pair = loopback(&Options::default());
    let hca = &mut pair.hcas[0];
    let lid = hca.lid(PORT).expect("PortInfo");
    let (pd, memory) = (pair.ends[0].pd, pair.ends[0].sge(0, 1024));
    let mut cq = hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
    let mut qp = hca.create_qp(&QpConfig::ud(pd, &cq, &cq)).expect("CREATE_QP");
    let init = InitAttr::default();
    hca.qp_to_init(&mut qp, &init).expect("RST2INIT");
    hca.ud_to_rtr(&mut qp).expect("INIT2RTR");
    hca.qp_to_rts(&mut qp, &RtsAttr::default()).expect("RTR2RTS");
    let to = Datagram { qpn: qp.number(), qkey: init.qkey, lid, sl: 0, gid: None };
    let op = SendOp::Datagram { to, imm: None };
    let bad = [Sge { address: 0, len: 8, key: Mkey(0x00ab_cd00) }];
    for round in 0..3 {
        qp.post_recv(round, &[memory]).expect("post_recv");
        qp.post_send(hca.bus_mut(), &SendRequest::new(10, op, &bad)).expect("post_send");
        qp.post_send(hca.bus_mut(), &SendRequest::new(11, op, &[]).inline(b"x")).expect("post_send");
        hca.bus_mut().simulation().clone().run(Ps::from_us(50));
        let failed = cq.poll().expect("the failed datagram");
        assert_eq!((qp.finish(&failed), failed.syndrome()), (Some(10), Some(Syndrome::LocalProtection)));
        let flushed = cq.poll().expect("the one behind");
        assert_eq!((qp.finish(&flushed), flushed.syndrome()), (Some(11), FLUSHED));
        let state = hca.query_qp(&qp).expect("QUERY_QP").get(Qpc::STATE);
        assert_eq!(QpState::from_bits(state), Some(QpState::SqError));
        hca.qp_recover_sends(&mut qp).expect("SQERR2RTS");
        qp.post_send(hca.bus_mut(), &SendRequest::new(12, op, &[]).inline(b"x")).expect("post_send");
        hca.bus_mut().simulation().clone().run(Ps::from_us(50));
        let done: Vec<_> = std::iter::from_fn(|| cq.poll()).map(|c| (qp.finish(&c), c.status)).collect();
        assert_eq!(done.len(), 2, "sent and received: {done:?}");
        assert!(done.contains(&(Some(12), Ok(()))) && done.contains(&(Some(round), Ok(()))), "{done:?}");
    }
    hca.destroy_qp(qp).expect("DESTROY_QP");
    hca.destroy_cq(cq).expect("DESTROY_CQ");
    close(pair);
}

/// A completion queue that overflows takes its queue pairs along: what they hold is flushed to their other one.
#[test]
pub(crate) fn an_overrun_flushes_the_other_queue() {
    everywhere(&Options { cqes: 4, ..Options::default() }, |pair| {
        for i in 0..3 {
            pair.recv(0, i, 0, 64);
        }
        for i in 0..6 {
            pair.send(0, &SendRequest::new(i, SendOp::Nop, &[]));
        }
        for i in 0..3 {
            let (wr_id, completion) = pair.received(0);
            assert_eq!((wr_id, completion.syndrome()), (i, FLUSHED));
        }
        assert_state(pair, 0, QpState::Error);
    });
}
