//! Completion events and interrupts.

use hca_driver::qp::QpConfig;
use hca_driver::{CqConfig, Event, SendRequest};
use hca_model::{HcaId, Ps};
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, Pair};
use hca_tests::rig::open;
use hca_tests::worlds;

/// One event per arming; at once if something is there; solicited-only waits for a solicited one.
#[test]
fn arming() {
    const VECTOR: u16 = 3;
    for solicited_only in [false, true] {
        let simulation = Simulation::new(worlds::two(0.0, 1));
        let mut hcas = vec![open(&simulation, 0), open(&simulation, 1)];
        let mut eq = hcas[1].create_eq(64, VECTOR).expect("CREATE_EQ");
        eq.arm(hcas[1].bus_mut());
        let pair = Pair::connect(hcas, &Options::default()).expect("connect");
        // A second receive queue, whose completions have an event queue.
        let Pair { mut hcas, ends: [near, mut far] } = pair;
        let config = CqConfig { entries: 64, eq: Some(eq.number()) };
        let cq = hcas[1].create_cq(config).expect("CREATE_CQ");
        let qp = hcas[1].create_qp(&QpConfig::rc(far.pd, &far.send_cq, &cq)).expect("CREATE_QP");
        let old_qp = std::mem::replace(&mut far.qp, qp);
        let old_cq = std::mem::replace(&mut far.recv_cq, cq);
        hcas[1].destroy_qp(old_qp).expect("DESTROY_QP");
        hcas[1].destroy_cq(old_cq).expect("DESTROY_CQ");
        let mut pair = Pair { hcas, ends: [near, far] };
        pair.hcas[0].qp_to_reset(&mut pair.ends[0].qp).expect("2RST");
        for end in 0..2 {
            pair.to_rts(end, &Options::default()).expect("connect");
        }
        for i in 0..20 {
            pair.recv(1, i, 0, 64);
        }
        let cqn = pair.ends[1].recv_cq.number();
        let fired = || simulation.interrupts(HcaId(1), VECTOR);
        let mut expected = fired();
        let send = |pair: &mut Pair<ModelBus>, solicited: bool| {
            let request = SendRequest::send(0, &[]).inline(b"x");
            pair.send(0, &if solicited { request.solicited() } else { request });
            pair.sent_ok(0, 0);
            simulation.run(Ps::from_us(50));
        };

        // Not armed: no event.
        send(&mut pair, true);
        assert_eq!((eq.poll(), fired()), (None, expected));
        // Armed beyond a completion that is there: an event at once.
        pair.ends[1].recv_cq.arm(pair.hcas[1].bus_mut(), solicited_only);
        simulation.run(Ps::from_us(50));
        expected += 1;
        assert_eq!((eq.poll(), fired()), (Some(Event::Completion(cqn)), expected));
        pair.ends[1].recv_cq.event_taken();
        eq.arm(pair.hcas[1].bus_mut());
        assert!(pair.received_ok(1, 0).solicited);

        // Armed, nothing there: none; then one for many.
        pair.ends[1].recv_cq.arm(pair.hcas[1].bus_mut(), solicited_only);
        simulation.run(Ps::from_us(50));
        assert_eq!((eq.poll(), fired()), (None, expected));
        send(&mut pair, false);
        if solicited_only {
            assert_eq!((eq.poll(), fired()), (None, expected), "a plain completion fired a solicited arming");
        }
        send(&mut pair, true);
        send(&mut pair, true);
        expected += 1;
        assert_eq!((eq.poll(), fired()), (Some(Event::Completion(cqn)), expected));
        assert_eq!(eq.poll(), None, "one event per arming");
        pair.ends[1].recv_cq.event_taken();
        for (i, solicited) in [(1, false), (2, true), (3, true)] {
            assert_eq!(pair.received_ok(1, i).solicited, solicited);
        }

        // The event queue itself is not armed: the event comes, the interrupt only with the arming.
        pair.ends[1].recv_cq.arm(pair.hcas[1].bus_mut(), solicited_only);
        send(&mut pair, true);
        assert_eq!(fired(), expected);
        eq.arm(pair.hcas[1].bus_mut());
        simulation.run(Ps::from_us(50));
        expected += 1;
        assert_eq!((fired(), eq.poll()), (expected, Some(Event::Completion(cqn))));
        pair.received_ok(1, 4);

        let Pair { mut hcas, ends: [near, far] } = pair;
        hcas[1].destroy_qp(far.qp).expect("DESTROY_QP");
        hcas[1].destroy_cq(far.recv_cq).expect("DESTROY_CQ");
        hcas[1].destroy_eq(eq).expect("DESTROY_EQ");
        hcas[0].destroy_qp(near.qp).expect("DESTROY_QP");
    }
}
