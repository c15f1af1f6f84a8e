//! Events and interrupts.

use hca_driver::qp::QpConfig;
use hca_driver::{Bus, Cq, CqConfig, Dma, Event, Hca, InitAttr, Qp, SendRequest};
use hca_model::{HcaId, Ps};
use hca_spec::cmd::{CreateRmpIn, ObjectIn, ObjectOut, QueryRmpOut};
use hca_spec::command::{Opcode, Status};
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::ids::Pd;
use hca_spec::queue::{RMP_ERROR, RMP_READY, Rmpc, Wq};
use hca_spec::uar;
use hca_tests::in_process::{ModelBus, ModelMemory, Simulation};
use hca_tests::pair::{Options, Pair, wait_active};
use hca_tests::rig::{close, drain_events, loopback, open};
use hca_tests::worlds;

use super::pools::{leave_pool, receive_from_pool};

/// Doorbells work in the UAR page of their object only.
#[test]
pub(crate) fn doorbells_in_pages_of_others() {
    const VECTOR: u16 = 3;
    let simulation = Simulation::new(worlds::one());
    let mut hca = open(&simulation, 0);
    let out = hca.execute(Opcode::AllocUar, 0, vec![0; 16], 16).expect("ALLOC_UAR");
    let foreign = u64::from(ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER));
    assert_ne!(foreign, u64::from(hca.uar().0));
    let page = |index: u64| index * uar::PAGE_SIZE;
    let own = page(hca.uar().0.into());

    let mut eq = hca.create_eq(64, VECTOR).expect("CREATE_EQ");
    let cq = hca.create_cq(CqConfig { entries: 64, eq: Some(eq.number()) }).expect("CREATE_CQ");
    let fired = || {
        simulation.run(Ps::from_us(50));
        simulation.interrupts(HcaId(0), VECTOR)
    };
    // There is a completion that software has not seen: arming gives an event at once.
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let qp = complete_something(&mut hca, pd, &cq);
    let mut arm_cq = uar::CqDoorbell::new();
    arm_cq.set(uar::CqDoorbell::CQN, cq.number().0);
    let mut arm_eq = uar::EqDoorbell::new();
    arm_eq.set(uar::EqDoorbell::EQN, eq.number().0.into());
    for (at, event, interrupts) in [(page(foreign), None, 0), (own, Some(Event::Completion(cq.number())), 1)]
    {
        hca.bus_mut().mmio_write32(at + uar::EQ_ARM, u32::from_be_bytes(*arm_eq.bytes()));
        hca.bus_mut().mmio_write64(at + uar::CQ_DOORBELL, u64::from_be_bytes(*arm_cq.bytes()));
        assert_eq!((fired(), eq.poll()), (interrupts, event));
    }
    hca.destroy_qp(qp).expect("DESTROY_QP");
    hca.destroy_cq(cq).expect("DESTROY_CQ");
    hca.destroy_eq(eq).expect("DESTROY_EQ");
}

/// Puts a completion into a queue: a receive that is flushed.
fn complete_something(hca: &mut Hca<ModelBus>, pd: Pd, cq: &Cq<ModelMemory>) -> Qp<ModelMemory> {
    let mut qp = hca.create_qp(&QpConfig::rc(pd, cq, cq)).expect("CREATE_QP");
    hca.qp_to_init(&mut qp, &InitAttr::default()).expect("INIT");
    qp.post_recv(0, &[]).expect("post_recv");
    hca.qp_to_error(&mut qp).expect("2ERR");
    qp
}

/// What an event told of is not told of again, even if the queue is armed before it is read.
#[test]
pub(crate) fn an_event_for_each_completion_once() {
    let simulation = Simulation::new(worlds::one());
    let mut hca = open(&simulation, 0);
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let mut eq = hca.create_eq(64, 3).expect("CREATE_EQ");
    let mut cq = hca.create_cq(CqConfig { entries: 64, eq: Some(eq.number()) }).expect("CREATE_CQ");
    let mut qps = Vec::new();
    cq.arm(hca.bus_mut(), false);
    for _ in 0..3 {
        qps.push(complete_something(&mut hca, pd, &cq));
        simulation.run(Ps::from_us(20));
        assert_eq!((eq.poll(), eq.poll()), (Some(Event::Completion(cq.number())), None));
        cq.event_taken();
        // Nothing new: no event, until there is.
        cq.arm(hca.bus_mut(), false);
        simulation.run(Ps::from_us(20));
        assert_eq!(eq.poll(), None);
        assert!(cq.poll().is_some() && cq.poll().is_none());
    }
    for qp in qps {
        hca.destroy_qp(qp).expect("DESTROY_QP");
    }
    hca.destroy_cq(cq).expect("DESTROY_CQ");
    hca.destroy_eq(eq).expect("DESTROY_EQ");
    hca.dealloc_pd(pd).expect("DEALLOC_PD");
    hca.close().expect("teardown");
}

/// One event per arming; at once if something is there; solicited-only waits for a solicited one.
#[test]
pub(crate) fn arming() {
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

/// As many event queues as there are, each with its vector: what happens on one is told nowhere else.
#[test]
pub(crate) fn event_queues_by_vector() {
    const VECTORS: u16 = 64;
    let simulation = Simulation::new(worlds::one());
    let mut hca = open(&simulation, 0);
    let mut queues = Vec::new();
    let refused = loop {
        let vector = queues.len() as u16 % VECTORS;
        match hca.create_eq(16, vector) {
            Ok(eq) => {
                let cq = hca.create_cq(CqConfig { entries: 16, eq: Some(eq.number()) }).expect("CREATE_CQ");
                queues.push((eq, cq));
            }
            Err(error) => break error,
        }
    };
    assert_eq!(refused.status(), Some(Status::ExceedLimit));
    // 127 less the driver's own two.
    assert_eq!(queues.len(), 125);
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let mut qps = Vec::new();
    let fired = |simulation: &Simulation| -> Vec<u64> {
        (0..VECTORS).map(|v| simulation.interrupts(HcaId(0), v)).collect()
    };
    // All commands come first, and the port, because they raise the driver's own vector.
    wait_active(&mut hca).expect("the port comes up");
    for (_, cq) in &queues {
        qps.push(complete_something(&mut hca, pd, cq));
    }
    assert!(drain_events(&mut hca).iter().all(|e| !matches!(e, Event::Completion(_))));
    for i in 0..queues.len() {
        let (eq, cq) = &mut queues[i];
        eq.arm(hca.bus_mut());
        simulation.run(Ps::from_us(20));
        let mut expected = fired(&simulation);
        cq.arm(hca.bus_mut(), false);
        simulation.run(Ps::from_us(20));
        expected[usize::from(eq.vector())] += 1;
        assert_eq!(fired(&simulation), expected, "event queue {i}");
        assert_eq!(eq.poll(), Some(Event::Completion(cq.number())));
        assert!(queues.iter_mut().all(|(eq, _)| eq.poll().is_none()));
    }
    for qp in qps {
        hca.destroy_qp(qp).expect("DESTROY_QP");
    }
    hca.dealloc_pd(pd).expect("DEALLOC_PD");
    for (eq, cq) in queues {
        hca.destroy_cq(cq).expect("DESTROY_CQ");
        hca.destroy_eq(eq).expect("DESTROY_EQ");
    }
    hca.close().expect("teardown");
}

/// A completion queue that moves to another event queue is told there.
#[test]
pub(crate) fn a_completion_queue_moves() {
    let simulation = Simulation::new(worlds::one());
    let mut hca = open(&simulation, 0);
    let mut old = hca.create_eq(16, 1).expect("CREATE_EQ");
    let mut new = hca.create_eq(16, 2).expect("CREATE_EQ");
    let mut cq = hca.create_cq(CqConfig { entries: 16, eq: Some(old.number()) }).expect("CREATE_CQ");
    hca.remap_cq(&cq, new.number()).expect("MODIFY_CQ");
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let qp = complete_something(&mut hca, pd, &cq);
    cq.arm(hca.bus_mut(), false);
    simulation.run(Ps::from_us(20));
    assert_eq!((old.poll(), new.poll()), (None, Some(Event::Completion(cq.number()))));
    hca.destroy_qp(qp).expect("DESTROY_QP");
    hca.dealloc_pd(pd).expect("DEALLOC_PD");
    hca.destroy_eq(old).expect("DESTROY_EQ: nothing reports to it any more");
    hca.destroy_cq(cq).expect("DESTROY_CQ");
    hca.destroy_eq(new).expect("DESTROY_EQ");
    hca.close().expect("teardown");
}

/// A shared receive queue that can't be read: one event about it, and the queue pair that needed it fails.
#[test]
pub(crate) fn a_shared_queue_that_cannot_be_read() {
    let mut pair = loopback(&Options::default());
    let pd = pair.ends[1].pd;
    let hca = &mut pair.hcas[0];
    let mut record = hca.bus_mut().dma_alloc(64, 64).expect("memory");
    record.store32(0, 4);
    let mut input = CreateRmpIn::new();
    input.rmpc_mut().set(Rmpc::STATE, RMP_READY);
    let wq = input.rmpc_mut().wq_mut();
    wq.set(Wq::PD, pd.0)
        .set(Wq::DBR_ADDR, record.bus_address())
        .set(Wq::LOG_WQ_STRIDE, 6)
        .set(Wq::LOG_WQ_SZ, 4);
    // No memory of the host is there.
    let (srqn, config) = receive_from_pool(&mut pair, &input, 0x7fff_0000_0000);
    drain_events(&mut pair.hcas[0]);
    pair.send(0, &SendRequest::send(1, &[]).inline(b"x"));
    assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::RemoteOperation));
    let events = drain_events(&mut pair.hcas[0]);
    let about_it = Event::Srq { srqn, kind: EventType::SrqCatastrophic as u8 };
    assert_eq!(events.iter().filter(|e| **e == about_it).count(), 1, "{events:?}");
    let hca = &mut pair.hcas[0];
    let query = ObjectIn::new().set(ObjectIn::NUMBER, srqn.0).bytes().to_vec();
    let out = hca.execute(Opcode::QueryRmp, 0, query, QueryRmpOut::SIZE).expect("QUERY_RMP");
    assert_eq!(QueryRmpOut::from_prefix_or_zero(&out).rmpc().get(Rmpc::STATE), RMP_ERROR);
    leave_pool(&mut pair, srqn, config);
    drop(record);
    close(pair);
}
