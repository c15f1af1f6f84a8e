//! Services other than plain reliable connections.

use hca_driver::qp::QpConfig;
use hca_driver::wqe::{Datagram, SendOp};
use hca_driver::{Access, CqConfig, Dma, Event, InitAttr, RtsAttr, SendRequest, Sge, Srq};
use hca_model::Ps;
use hca_spec::caps::General;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::ids::Qpn;
use hca_spec::mad::{SmpData, attr};
use hca_spec::qpc::{Qpc, ServiceType};
use hca_tests::in_process::Simulation;
use hca_tests::pair::{Options, PORT, pattern, wait_active};
use hca_tests::rig::{self, drain_events, everywhere, loopback, open};
use hca_tests::worlds;

#[test]
pub(crate) fn datagrams() {
    const QKEY: u32 = 0x2233_4455;
    const GRH: usize = 40;
    let simulation = Simulation::new(worlds::two(0.0, 1));
    let mut hcas = [open(&simulation, 0), open(&simulation, 1)];
    let mut nodes = Vec::new();
    for hca in &mut hcas {
        wait_active(hca).expect("PortInfo");
        let pd = hca.alloc_pd().expect("ALLOC_PD");
        let cq = hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
        let qp = rig::datagrams(hca, pd, (&cq, &cq), QKEY);
        use hca_driver::Bus;
        let memory = hca.bus_mut().dma_alloc(8192, 4096).expect("memory");
        let mr = hca.register(pd, &memory, 8192, Access::LOCAL_WRITE).expect("CREATE_MKEY");
        nodes.push((cq, qp, memory, mr));
    }
    let lids = [hcas[0].lid(PORT).expect("LID"), hcas[1].lid(PORT).expect("LID")];
    let [a, b] = &mut nodes[..] else { unreachable!() };
    let data = pattern(3, 1500);
    a.2.write(0, &data);
    let sge = Sge { address: a.3.address, len: 1500, key: a.3.key };
    for (qkey, arrives) in [(QKEY, true), (QKEY + 1, false), (QKEY, true)] {
        let to = Datagram { qpn: b.1.number(), qkey, lid: lids[1], sl: 0, gid: None };
        if arrives {
            let room = Sge { address: b.3.address, len: 4096, key: b.3.key };
            b.1.post_recv(5, &[room]).expect("post_recv");
        }
        a.1.post_send(hcas[0].bus_mut(), &SendRequest::new(1, SendOp::Datagram { to, imm: Some(9) }, &[sge]))
            .expect("post_send");
        simulation.run(Ps::from_us(200));
        let sent = a.0.poll().expect("send completion");
        assert_eq!((a.1.finish(&sent), sent.status), (Some(1), Ok(())));
        let Some(received) = b.0.poll() else {
            assert!(!arrives, "a datagram was lost");
            continue;
        };
        assert!(arrives, "a datagram with a wrong Q_Key arrived");
        assert_eq!((b.1.finish(&received), received.status), (Some(5), Ok(())));
        assert_eq!((received.byte_len as usize, received.imm), (1500 + GRH, Some(9)));
        assert_eq!((received.source_qpn, received.source_lid), (a.1.number(), lids[0]));
        assert!(!received.has_grh);
        let mut got = vec![0; 1500];
        b.2.read(GRH, &mut got);
        assert!(got == data);
    }
    // Each has a PSN of its own (IBTA 9.8.3).
    let sent = hcas[0].query_qp(&a.1).expect("QUERY_QP").get(Qpc::NEXT_SEND_PSN);
    assert_eq!(sent, RtsAttr::default().send_psn.get() + 3);
    let nobody = Datagram { qpn: Qpn(0xffff00), qkey: QKEY, lid: lids[1], sl: 0, gid: None };
    a.1.post_send(
        hcas[0].bus_mut(),
        &SendRequest::new(2, SendOp::Datagram { to: nobody, imm: None }, &[sge]),
    )
    .expect("post_send");
    simulation.run(Ps::from_us(200));
    assert_eq!(a.0.poll().map(|c| c.status), Some(Ok(())), "a datagram to nobody is sent all the same");
    for (hca, (cq, qp, memory, mr)) in hcas.iter_mut().zip(nodes) {
        hca.destroy_qp(qp).expect("DESTROY_QP");
        hca.destroy_cq(cq).expect("DESTROY_CQ");
        hca.deregister(mr).expect("DESTROY_MKEY");
        drop(memory);
    }
}

/// Queue pairs that speak for QP1, one for each partition, as Linux has them: what they send comes from QP1 with their own P_Key, and answers go to
/// QP1, here of ports that are limited members of the partition that QP1 itself sends in.
#[test]
pub(crate) fn general_services_of_partitions() {
    const QKEY: u32 = 0x8001_0000;
    const PKEYS: [u8; 4] = [0x7f, 0xff, 0x80, 0x01];
    const LEN: usize = 256;
    let simulation = Simulation::new(worlds::two(0.0, 1));
    let mut hcas = [open(&simulation, 0), open(&simulation, 1)];
    let mut nodes = Vec::new();
    for hca in &mut hcas {
        use hca_driver::Bus;
        wait_active(hca).expect("PortInfo");
        assert_eq!(hca.caps().get(General::SET_DETH_SQPN), 1);
        let mut table = SmpData::new();
        table.bytes_mut()[..PKEYS.len()].copy_from_slice(&PKEYS);
        hca.smp_set(PORT, attr::PKEY_TABLE, 0, &table).expect("SubnSet(P_KeyTable)");
        let pd = hca.alloc_pd().expect("ALLOC_PD");
        let cqs = [(); 2].map(|()| hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ"));
        let memory = hca.bus_mut().dma_alloc(8192, 4096).expect("memory");
        let mr = hca.register(pd, &memory, 8192, Access::LOCAL_WRITE).expect("CREATE_MKEY");
        let mut make = |service, pkey_index, source| {
            let config = QpConfig { service, ..QpConfig::ud(pd, &cqs[0], &cqs[1]) };
            let mut qp = hca.create_qp(&config).expect("CREATE_QP");
            let init = InitAttr { qkey: QKEY, pkey_index, source, ..InitAttr::default() };
            hca.qp_to_init(&mut qp, &init).expect("INIT");
            hca.ud_to_rtr(&mut qp).expect("RTR");
            hca.qp_to_rts(&mut qp, &RtsAttr::default()).expect("RTS");
            qp
        };
        let qp1 = make(ServiceType::Qp1, 0, Qpn(0));
        let senders = [make(ServiceType::Ud, 0, Qpn(1)), make(ServiceType::Ud, 1, Qpn(1))];
        let plain = make(ServiceType::Ud, 1, Qpn(0));
        nodes.push((cqs, qp1, senders, plain, memory, mr));
    }
    let lids = [hcas[0].lid(PORT).expect("LID"), hcas[1].lid(PORT).expect("LID")];
    let mut number = 0;
    for (from, to) in [(0, 1), (1, 0)] {
        for (index, arrives) in [(Some(0), None), (Some(1), Some(true)), (None, Some(false))] {
            number += 1;
            let data = pattern(number, LEN);
            let room = Sge { address: nodes[to].5.address, len: 4096, key: nodes[to].5.key };
            nodes[to].1.post_recv(number, &[room]).expect("post_recv");
            let (cqs, _, senders, plain, memory, mr) = &mut nodes[from];
            memory.write(4096, &data);
            let sge = [Sge { address: mr.address + 4096, len: LEN as u32, key: mr.key }];
            let sender = index.map_or(plain, |index: usize| &mut senders[index]);
            let own = sender.number();
            let to_qp1 = Datagram { qpn: Qpn(1), qkey: QKEY, lid: lids[to], sl: 0, gid: None };
            let request = SendRequest::new(number, SendOp::Datagram { to: to_qp1, imm: None }, &sge);
            sender.post_send(hcas[from].bus_mut(), &request).expect("post_send");
            simulation.run(Ps::from_us(200));
            let sent = cqs[0].poll().expect("send completion");
            assert_eq!((sent.qpn, sent.status), (own, Ok(())));
            let (cqs, qp1, _, _, memory, _) = &mut nodes[to];
            let received = cqs[1].poll();
            let Some(for_qp1) = arrives else {
                assert!(received.is_none(), "limited members hear each other");
                continue;
            };
            let received = received.expect("a datagram was lost");
            assert_eq!((received.qpn, received.status), (qp1.number(), Ok(())));
            assert!(qp1.finish(&received).is_some());
            let source = if for_qp1 { Qpn(1) } else { own };
            assert_eq!((received.source_qpn, received.source_lid), (source, lids[from]));
            assert_eq!((received.pkey, received.byte_len as usize), (0x8001, 40 + LEN));
            let mut got = vec![0; LEN];
            memory.read(40, &mut got);
            assert!(got == data);
        }
    }
    let queried = hcas[0].query_qp(&nodes[0].2[1]).expect("QUERY_QP");
    assert_eq!(queried.get(Qpc::DETH_SQPN), 1);
}

#[test]
pub(crate) fn atomics() {
    everywhere(&Options::default(), |pair| {
        let far = pair.ends[1].mr;
        let value = |pair: &hca_tests::pair::Pair<_>, end: usize| -> u64 {
            let end: &hca_tests::pair::End<hca_tests::in_process::ModelBus> = &pair.ends[end];
            u64::from_ne_bytes(end.bytes(0, 8).try_into().unwrap_or_default())
        };
        pair.fill(1, 0, &100u64.to_ne_bytes());
        let sge = [pair.ends[0].sge(0, 8)];
        let (address, rkey) = (far.address, far.key);
        let steps = [
            (SendOp::FetchAdd { address, rkey, add: 5 }, 100, 105),
            (SendOp::FetchAdd { address, rkey, add: u64::MAX }, 105, 104),
            (SendOp::CompareSwap { address, rkey, compare: 7, swap: 1 }, 104, 104),
            (SendOp::CompareSwap { address, rkey, compare: 104, swap: 1 << 63 }, 104, 1 << 63),
        ];
        for (op, old, new) in steps {
            pair.send(0, &SendRequest::new(1, op, &sge));
            pair.sent_ok(0, 1);
            assert_eq!((value(pair, 0), value(pair, 1)), (old, new), "{op:?}");
        }
        let unaligned = SendOp::FetchAdd { address: address + 4, rkey, add: 1 };
        pair.send(0, &SendRequest::new(2, unaligned, &sge));
        assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::RemoteInvalidRequest));
    });
}

/// Two queue pairs take from one queue; requests return in the order of their completions; the limit
/// event comes once.
#[test]
pub(crate) fn shared_receive_queue() {
    let mut pair = loopback(&Options::default());
    let hca = &mut pair.hcas[0];
    let pd = pair.ends[1].pd;
    let mut srq: Srq<_> = hca.create_srq(pd, 15, 2).expect("CREATE_RMP");
    for end in 0..2 {
        let (send_cq, recv_cq) = (pair.ends[end].send_cq.number(), pair.ends[end].recv_cq.number());
        let config = QpConfig {
            srq: Some(srq.number()),
            pd,
            ..QpConfig::rc(pd, &pair.ends[0].send_cq, &pair.ends[0].recv_cq)
        };
        let qp = hca.create_qp(&QpConfig { send_cq, recv_cq, ..config }).expect("CREATE_QP on an SRQ");
        let old = std::mem::replace(&mut pair.ends[end].qp, qp);
        hca.destroy_qp(old).expect("DESTROY_QP");
    }
    // Receives go to memory of end 1, in whose protection domain both queue pairs are; sends are inline.
    for end in 0..2 {
        pair.to_rts(end, &Options::default()).expect("connect");
    }
    for i in 0..15 {
        let sge = pair.ends[1].sge(i as usize * 64, 64);
        srq.post_recv(i, &[sge]).expect("post_recv");
    }
    assert!(srq.post_recv(15, &[]).is_err());
    for round in 0..200u64 {
        let end = (round % 3 == 0) as usize;
        pair.send(end, &SendRequest::send(round, &[]).inline(&round.to_be_bytes()));
        pair.sent_ok(end, round);
        for _ in 0..1000 {
            if pair.ends[1 - end].recv_cq.peek().is_some() {
                break;
            }
            pair.hcas[0].wait(None);
        }
        let completion = pair.ends[1 - end].recv_cq.poll().expect("a completion");
        assert_eq!((completion.status, completion.byte_len, completion.srqn), (Ok(()), 8, srq.number()));
        let wr_id = srq.finish(&completion).expect("a request of the shared queue");
        let got = pair.ends[1].bytes(wr_id as usize * 64, 8);
        assert_eq!(got, round.to_be_bytes());
        // The place that came free is posted again.
        let sge = pair.ends[1].sge(wr_id as usize * 64, 64);
        srq.post_recv(wr_id, &[sge]).expect("post_recv");
    }
    drain_events(&mut pair.hcas[0]);
    pair.hcas[0].arm_srq(&srq, 12).expect("MODIFY_RMP");
    for i in 0..6 {
        pair.send(0, &SendRequest::send(i, &[]).inline(b"x"));
        pair.sent_ok(0, i);
        pair.ends[1].recv_cq.poll();
    }
    let limit = Event::Srq { srqn: srq.number(), kind: EventType::SrqLimit as u8 };
    assert_eq!(drain_events(&mut pair.hcas[0]), [limit]);

    // Entering the error state is told by an event, and what is shared is not flushed.
    let qpn = pair.ends[1].qp.number();
    pair.hcas[0].qp_to_error(&mut pair.ends[1].qp).expect("2ERR");
    let last = Event::Qp { qpn, kind: EventType::LastWqe as u8 };
    assert_eq!(drain_events(&mut pair.hcas[0]), [last]);
    assert!(pair.ends[1].recv_cq.peek().is_none());

    let hca_tests::pair::Pair { mut hcas, ends } = pair;
    for end in ends {
        hcas[0].destroy_qp(end.qp).expect("DESTROY_QP");
        hcas[0].destroy_cq(end.send_cq).expect("DESTROY_CQ");
        hcas[0].destroy_cq(end.recv_cq).expect("DESTROY_CQ");
    }
    hcas[0].destroy_srq(srq).expect("DESTROY_RMP");
    for hca in hcas {
        hca.close().expect("teardown");
    }
}
