//! Completion queues beyond the ordinary: larger entries, data in them, compression, resizing, moderation, overrun.

use hca_driver::{Completion, CqConfig, CqOptions, Event, Moderation, ScatterToCqe, SendOp, SendRequest};
use hca_model::Ps;
use hca_spec::cmd::{CreateCqIn, ObjectOut};
use hca_spec::command::{Opcode, Status};
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::eqe::{EventType, cq_syndrome};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::queue::{Cqc, STATUS_OVERRUN, cqe_size, mini_format};
use hca_spec::wqe::{CE_ALWAYS, Ctrl, SendOpcode, WQEBB};
use hca_tests::fuzz::objects::QueuePair;
use hca_tests::fuzz::two_adapters::TwoAdapters;
use hca_tests::fuzz::{commands, memory};
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{assert_state, close, drain_events, everywhere, linked, loopback};

const SIZES: [u32; 3] = [cqe_size::B64, cqe_size::B128, cqe_size::B128_PADDED];

fn options(cqe_size: u32, scatter_to_cqe: ScatterToCqe) -> Options {
    Options { cq: CqOptions { cqe_size, ..CqOptions::default() }, scatter_to_cqe, ..Options::default() }
}

/// What was transferred: in the completion, or in memory.
fn arrived(pair: &Pair<ModelBus>, end: usize, completion: &Completion, offset: usize, len: usize) -> Vec<u8> {
    match completion.data {
        Some(data) => data.bytes().to_vec(),
        None => pair.ends[end].bytes(offset, len),
    }
}

/// Every way to receive gives the same bytes; what is small enough comes in the entry and only there.
#[test]
pub(crate) fn data_in_entries() {
    for cqe_size in SIZES {
        for (scatter, room) in
            [(ScatterToCqe::Off, 0), (ScatterToCqe::Data32, 32), (ScatterToCqe::Data64, 64)]
        {
            // An entry of 64 bytes has no room for 64 bytes of data.
            let room = if cqe_size == cqe_size::B64 { room.min(32) } else { room };
            for service in [ServiceType::Rc, ServiceType::Uc] {
                let options = Options { service, ..options(cqe_size, scatter) };
                everywhere(&options, |pair| one_of_each(pair, room, service));
            }
        }
    }
}

fn one_of_each(pair: &mut Pair<ModelBus>, room: usize, service: ServiceType) {
    let far = pair.ends[1].mr;
    for len in [0, 1, 8, 31, 32, 33, 63, 64, 65, 1000, 3000] {
        let data = pattern(len as u64, len);
        let inline = len > 0 && len <= room;
        pair.fill(0, 0, &data);
        pair.fill(1, 0, &[0xee; 4096]);
        let sge = [pair.ends[0].sge(0, len)];
        for op in [SendOp::Send { imm: None }, SendOp::Send { imm: Some(len as u32) }] {
            pair.recv(1, 7, 0, 4096);
            pair.send(0, &SendRequest::new(1, op, &sge));
            pair.sent_ok(0, 1);
            let done = pair.received_ok(1, 7);
            assert_eq!((done.data.is_some(), done.byte_len as usize), (inline, len));
            assert!(arrived(pair, 1, &done, 0, len) == data, "send of {len} bytes, room for {room}");
            if inline {
                assert_eq!(pair.ends[1].bytes(0, 4096), [0xee; 4096], "the buffer was written, too");
            }
        }
        if service != ServiceType::Rc {
            continue;
        }
        pair.send(0, &SendRequest::write(2, &sge, far.address + 8192, far.key));
        pair.sent_ok(0, 2);
        let sge = [pair.ends[0].sge(8192, len)];
        pair.send(0, &SendRequest::read(3, &sge, far.address + 8192, far.key));
        let done = pair.sent_ok(0, 3);
        assert_eq!(done.data.is_some(), inline);
        assert!(arrived(pair, 0, &done, 8192, len) == data, "read of {len} bytes, room for {room}");
    }
    if service == ServiceType::Rc {
        pair.fill(1, 0, &40u64.to_le_bytes());
        let sge = [pair.ends[0].sge(0, 8)];
        let op = SendOp::FetchAdd { address: far.address, rkey: far.key, add: 2 };
        pair.send(0, &SendRequest::new(4, op, &sge));
        let done = pair.sent_ok(0, 4);
        assert_eq!(done.data.is_some(), room > 0);
        // In memory it has the byte order that the driver set; in the entry always that of packets.
        let result = if room > 0 { 40u64.to_be_bytes() } else { 40u64.to_le_bytes() };
        assert_eq!(arrived(pair, 0, &done, 0, 8), result);
    }
}

/// A burst of like messages comes as blocks, and no length, order or number is lost; what is different stays plain.
#[test]
fn compressed_blocks() {
    for format in [mini_format::HASH, mini_format::CHECKSUM, mini_format::CHECKSUM_STRIDE] {
        for cqe_size in [cqe_size::B64, cqe_size::B128] {
            let cq = CqOptions { cqe_size, compression: Some(format), ..CqOptions::default() };
            // Entries are used several times over, so that what blocks leave behind would be seen.
            let mut pair = loopback(&Options { cq, cqes: 64, ..Options::default() });
            let mut number = 0u64;
            for round in 0..40u64 {
                let burst = 1 + round * 7 % 50;
                for i in 0..burst {
                    pair.recv(1, number + i, 0, 4096);
                }
                let len = |n: u64| n as usize * 13 % 200;
                for i in 0..burst {
                    let sge = [pair.ends[0].sge(0, len(number + i))];
                    let imm = ((number + i) % 23 == 22).then_some(i as u32);
                    let last = i + 1 == burst;
                    let request = SendRequest::new(i, SendOp::Send { imm }, &sge);
                    pair.send(0, &if last { request } else { request.unsignaled() });
                }
                pair.sent_ok(0, burst - 1);
                for i in 0..burst {
                    let done = pair.received_ok(1, number + i);
                    assert_eq!(done.byte_len as usize, len(number + i), "round {round}, message {i}");
                    assert_eq!(done.imm.is_some(), (number + i) % 23 == 22);
                }
                number += burst;
            }
            let (blocks, completions) = pair.ends[1].recv_cq.compressed();
            assert!(blocks > 10 && completions > 4 * blocks, "{blocks} blocks of {completions} completions");
            assert_eq!(pair.ends[0].send_cq.compressed(), (0, 0), "only receives are compressed");
            close(pair);
        }
    }
}

/// A message alone is not held back for long, and arming sees what waits.
#[test]
fn a_compressing_queue_sends_events() {
    let cq = CqOptions { compression: Some(mini_format::HASH), ..CqOptions::default() };
    let mut pair = loopback(&Options { cq, ..Options::default() });
    let cqn = pair.ends[1].recv_cq.number();
    for i in 0..3 {
        pair.recv(1, i, 0, 64);
    }
    drain_events(&mut pair.hcas[0]);
    pair.ends[1].recv_cq.arm(pair.hcas[0].bus_mut(), false);
    for i in 0..3 {
        pair.send(0, &SendRequest::send(i, &[]).inline(b"x").unsignaled());
    }
    assert_eq!(drain_events(&mut pair.hcas[0]), [Event::Completion(cqn)]);
    (0..3).for_each(|i| _ = pair.received_ok(1, i));
    assert_eq!(pair.ends[1].recv_cq.compressed(), (1, 3));
    close(pair);
}

/// Resizing while completions come: each comes once and in order, whether the queue grows or shrinks.
#[test]
pub(crate) fn resize_in_traffic() {
    for (cqe_size, compression) in
        [(cqe_size::B64, None), (cqe_size::B128, None), (cqe_size::B64, Some(mini_format::HASH))]
    {
        let cq = CqOptions { cqe_size, compression, ..CqOptions::default() };
        let mut pair = linked(&Options { cq, cqes: 32, ..Options::default() }, Default::default(), 3);
        let (mut sent, mut seen) = (0u64, 0u64);
        for entries in [64, 16, 128, 128, 32, 256, 8, 64] {
            for _ in 0..8 {
                pair.recv(1, sent, 0, 64);
                pair.send(0, &SendRequest::send(sent, &[]).inline(&sent.to_be_bytes()));
                pair.sent_ok(0, sent);
                sent += 1;
            }
            pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_us(50));
            // Five are read before, three after.
            for _ in 0..5 {
                pair.received_ok(1, seen);
                seen += 1;
            }
            let Pair { hcas, ends } = &mut pair;
            hcas[1].resize_cq(&mut ends[1].recv_cq, entries).expect("MODIFY_CQ");
            assert_eq!(ends[1].recv_cq.entries(), entries);
            while seen < sent {
                pair.received_ok(1, seen);
                seen += 1;
            }
            let Pair { hcas, ends } = &mut pair;
            let cqc = hcas[1].query_cq(&ends[1].recv_cq).expect("QUERY_CQ");
            assert_eq!(1 << cqc.get(Cqc::LOG_CQ_SIZE), entries);
        }
        assert_eq!(pair.ends[1].recv_cq.poll(), None);
        close(pair);
    }
}

/// What is unread must fit.
#[test]
pub(crate) fn resize_to_less_than_is_unread() {
    let mut pair = loopback(&Options { cqes: 32, ..Options::default() });
    for i in 0..9 {
        pair.recv(1, i, 0, 64);
        pair.send(0, &SendRequest::send(i, &[]).inline(b"x"));
        pair.sent_ok(0, i);
    }
    let Pair { hcas, ends } = &mut pair;
    let refused = hcas[0].resize_cq(&mut ends[1].recv_cq, 8).expect_err("nine do not fit into eight");
    assert_eq!(refused.status(), Some(Status::BadSizeOutstandingCqes));
    (0..9).for_each(|i| _ = pair.received_ok(1, i));
    let Pair { hcas, ends } = &mut pair;
    hcas[0].resize_cq(&mut ends[1].recv_cq, 8).expect("MODIFY_CQ");
    close(pair);
}

/// An armed queue waits for the count or the period.
#[test]
pub(crate) fn moderation() {
    const VECTOR: u16 = 3;
    let mut pair = loopback(&Options::default());
    let Pair { hcas, ends } = &mut pair;
    let mut eq = hcas[0].create_eq(64, VECTOR).expect("CREATE_EQ");
    let cq = &ends[1].recv_cq;
    hcas[0].remap_cq(cq, eq.number()).expect("MODIFY_CQ");
    let moderation = Moderation { count: 4, period_us: 500, ..Moderation::default() };
    hcas[0].moderate_cq(cq, moderation).expect("MODIFY_CQ");
    let cqc = hcas[0].query_cq(cq).expect("QUERY_CQ");
    assert_eq!((cqc.get(Cqc::CQ_MAX_COUNT), cqc.get(Cqc::CQ_PERIOD)), (4, 500));
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let cqn = pair.ends[1].recv_cq.number();
    let message = |pair: &mut Pair<ModelBus>, request: SendRequest<'_>| {
        pair.recv(1, 0, 0, 64);
        pair.send(0, &request);
        pair.sent_ok(0, 0);
        simulation.run(Ps::from_us(20));
        pair.received_ok(1, 0);
    };
    let plain = || SendRequest::send(0, &[]).inline(b"x");
    let mut events = |pair: &mut Pair<ModelBus>| {
        let mut n = 0;
        while let Some(event) = eq.poll() {
            assert_eq!(event, Event::Completion(cqn));
            n += 1;
        }
        eq.update(pair.hcas[0].bus_mut());
        n
    };
    let arm = |pair: &mut Pair<ModelBus>| {
        pair.ends[1].recv_cq.arm(pair.hcas[0].bus_mut(), false);
        pair.ends[1].recv_cq.event_taken();
    };
    // The first comes at once: the last event, none, is long ago.
    simulation.run(Ps::from_us(1000));
    arm(&mut pair);
    message(&mut pair, plain());
    assert_eq!(events(&mut pair), 1);
    // The count: nothing for three, one event with the fourth.
    arm(&mut pair);
    (0..3).for_each(|_| message(&mut pair, plain()));
    assert_eq!(events(&mut pair), 0);
    message(&mut pair, plain());
    assert_eq!(events(&mut pair), 1);
    // The period, counted from the last event.
    arm(&mut pair);
    message(&mut pair, plain());
    assert_eq!(events(&mut pair), 0);
    simulation.run(Ps::from_us(300));
    assert_eq!(events(&mut pair), 0);
    simulation.run(Ps::from_us(300));
    assert_eq!(events(&mut pair), 1);
    // Not armed: none.
    message(&mut pair, plain());
    simulation.run(Ps::from_us(1000));
    assert_eq!(events(&mut pair), 0);
    // From the last completion, and broken by solicited ones.
    let Pair { hcas, ends } = &mut pair;
    let from_cqe = Moderation { count: 100, from_cqe: true, ..moderation };
    hcas[0].moderate_cq(&ends[1].recv_cq, from_cqe).expect("MODIFY_CQ");
    arm(&mut pair);
    for _ in 0..3 {
        message(&mut pair, plain());
        simulation.run(Ps::from_us(400));
    }
    assert_eq!(events(&mut pair), 0, "each completion starts the period anew");
    simulation.run(Ps::from_us(200));
    assert_eq!(events(&mut pair), 1);
    let Pair { hcas, ends } = pair;
    drop((hcas, ends, eq));
}

/// More completions than entries: the CQ goes to error, says so, and so does whoever reports to it.
#[test]
pub(crate) fn overrun() {
    for compression in [None, Some(mini_format::HASH)] {
        let cq = CqOptions { compression, ..CqOptions::default() };
        let mut pair = loopback(&Options { cq, cqes: 8, ..Options::default() });
        drain_events(&mut pair.hcas[0]);
        let (cqn, qpn) = (pair.ends[1].recv_cq.number(), pair.ends[1].qp.number());
        for i in 0..9 {
            pair.recv(1, i, 0, 64);
            pair.send(0, &SendRequest::send(i, &[]).inline(b"x").unsignaled());
        }
        let events = drain_events(&mut pair.hcas[0]);
        assert!(events.contains(&Event::CqError { cqn, syndrome: cq_syndrome::OVERRUN as u8 }), "{events:?}");
        assert!(events.contains(&Event::Qp { qpn, kind: EventType::WqCatastrophic as u8 }), "{events:?}");
        assert_state(&mut pair, 1, QpState::Error);
        let Pair { hcas, ends } = &mut pair;
        let cqc = hcas[0].query_cq(&ends[1].recv_cq).expect("QUERY_CQ");
        assert_eq!(cqc.get(Cqc::STATUS), STATUS_OVERRUN);
        // What was written before is good.
        (0..8).for_each(|i| _ = pair.received_ok(1, i));
        assert_eq!(pair.ends[1].recv_cq.poll(), None);
        close(pair);
    }
}

/// Several queue pairs on one CQ: each completion names its own, and timestamps never go back.
#[test]
pub(crate) fn one_queue_for_many() {
    let mut pair = loopback(&Options::default());
    let pd = pair.ends[0].pd;
    let mut cq = pair.hcas[0].create_cq(CqConfig::new(256)).expect("CREATE_CQ");
    let mut qps = Vec::new();
    for _ in 0..8 {
        let config = hca_driver::QpConfig::rc(pd, &cq, &cq);
        let mut qp = pair.hcas[0].create_qp(&config).expect("CREATE_QP");
        let hca = &mut pair.hcas[0];
        let path = hca_driver::Path::lid(hca.lid(1).expect("LID"));
        hca.qp_to_init(&mut qp, &Default::default()).expect("INIT");
        let own = qp.number();
        hca.qp_to_rtr(&mut qp, &hca_driver::RtrAttr::new(own, path)).expect("RTR");
        hca.qp_to_rts(&mut qp, &Default::default()).expect("RTS");
        qps.push(qp);
    }
    let before = pair.hcas[0].internal_timer();
    for (i, qp) in qps.iter_mut().enumerate() {
        let sge = pair.ends[0].sge(i * 64, 64);
        for n in 0..4 {
            qp.post_recv(n, &[sge]).expect("post_recv");
            qp.post_send(pair.hcas[0].bus_mut(), &SendRequest::send(n, &[]).inline(&[i as u8]))
                .expect("post_send");
        }
    }
    pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_us(200));
    let after = pair.hcas[0].internal_timer();
    let mut last = before;
    for _ in 0..8 * 4 * 2 {
        let done = cq.poll().expect("a completion");
        let qp = qps.iter_mut().find(|qp| qp.number() == done.qpn).expect("one of ours");
        assert_eq!((done.status, qp.finish(&done).is_some()), (Ok(()), true));
        assert!((last..=after).contains(&done.timestamp), "{} is not in {last}..={after}", done.timestamp);
        last = done.timestamp;
    }
    assert_eq!(cq.poll(), None);
    for qp in qps {
        pair.hcas[0].destroy_qp(qp).expect("DESTROY_QP");
    }
    pair.hcas[0].destroy_cq(cq).expect("DESTROY_CQ");
    close(pair);
}

/// An error is never data, never compressed, and comes behind what was before it.
#[test]
fn errors_end_a_block() {
    let cq = CqOptions { compression: Some(mini_format::HASH), ..CqOptions::default() };
    let mut pair = loopback(&Options { cq, ..Options::default() });
    for i in 0..6 {
        pair.recv(1, i, 0, if i == 3 { 4 } else { 64 });
        pair.send(0, &SendRequest::send(i, &[]).inline(b"sixteen bytes...").unsignaled());
    }
    (0..3).for_each(|i| _ = pair.received_ok(1, i));
    let (number, failed) = pair.received(1);
    assert_eq!((number, failed.opcode), (3, Some(CqeOpcode::RespErr)));
    assert_eq!((failed.syndrome(), failed.data), (Some(Syndrome::LocalLength), None));
    for i in 4..6 {
        let (number, flushed) = pair.received(1);
        assert_eq!((number, flushed.syndrome()), (i, Some(Syndrome::WorkRequestFlushed)));
    }
    assert_eq!(pair.ends[1].recv_cq.compressed(), (1, 3));
    close(pair);
}

/// Every completion of a collapsed queue goes to its first entry; the others are never touched. Nobody reads them all,
/// so that overrun is ignored.
#[test]
pub(crate) fn a_collapsed_queue_uses_one_entry() {
    const REQUESTS: u16 = 100;
    let mut rig = TwoAdapters::new();
    let mut o = rig.objects.clone();
    let made = |output: Vec<u8>| {
        assert_eq!(output[0], Status::Ok as u8);
        ObjectOut::from_prefix_or_zero(&output).get(ObjectOut::NUMBER)
    };
    let mut input = commands::create_cq(o.uar, o.eq, memory::SPARE, memory::record(40));
    let mut create = CreateCqIn::from_prefix_or_zero(&input);
    create.cqc_mut().set(Cqc::CC, 1).set(Cqc::OI, 1);
    input[..CreateCqIn::SIZE].copy_from_slice(create.bytes());
    o.cq = made(rig.execute(&input, ObjectOut::SIZE));
    let (buffer, record) = (memory::qp(12), memory::record(41));
    let input = commands::create_qp(&o, ServiceType::Rc, None, buffer, record);
    let number = made(rig.execute(&input, ObjectOut::SIZE));
    let qp = QueuePair { number, buffer, record, ..o.qps[0] };
    for opcode in [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp] {
        made(rig.execute(&commands::modify_qp(&o, opcode, &qp, number), ObjectOut::SIZE));
    }
    for at in 0..REQUESTS {
        let mut ctrl = Ctrl::new();
        ctrl.set(Ctrl::OPCODE, SendOpcode::Nop as u32).set(Ctrl::WQE_INDEX, at.into());
        ctrl.set(Ctrl::QPN, number).set(Ctrl::DS, 1).set(Ctrl::CE, CE_ALWAYS);
        let mut wqe = ctrl.bytes().to_vec();
        wqe.resize(WQEBB, 0);
        let end = rig.post(qp, at, &wqe);
        rig.ring(qp, end);
        rig.advance(Ps::from_us(5));
    }
    let page = rig.ram().take(memory::SPARE, memory::PAGE as usize);
    let (first, others) = page.split_at(Cqe::SIZE);
    let cqe = Cqe::from_prefix_or_zero(first);
    assert_eq!((cqe.get(Cqe::QPN), cqe.get(Cqe::WQE_COUNTER)), (number, u32::from(REQUESTS) - 1));
    // 64 entries: the last completion is in the second round of a queue of that size.
    assert_eq!((cqe.get(Cqe::OPCODE), cqe.get(Cqe::OWNER)), (CqeOpcode::Req as u32, 1));
    assert!(others.iter().all(|byte| *byte == 0));
    rig.assert_alive();
}
