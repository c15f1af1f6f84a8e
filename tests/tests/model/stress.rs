//! Long and wide runs: many queue pairs, counters that wrap, everything at random.

use hca_driver::qp::QpConfig;
use hca_driver::wqe::SendOp;
use hca_driver::{CqConfig, InitAttr, Path, RtrAttr, RtsAttr, SendRequest};
use hca_model::Ps;
use hca_model::link::Faults;
use hca_spec::ids::Psn;
use hca_spec::qpc::ServiceType;
use hca_tests::pair::{Options, PORT, pattern};
use hca_tests::rig::{close, everywhere, linked, loopback};

/// 16-bit ring indices and 24-bit PSNs pass their ends.
#[test]
pub(crate) fn counters_wrap() {
    let rts = RtsAttr { send_psn: Psn::new(0x00ff_ffff - 30_000), ..RtsAttr::default() };
    let options = Options { rts, cqes: 64, recv_requests: 32, send_blocks: 64, ..Options::default() };
    let mut pair = loopback(&options);
    const BATCH: u64 = 32;
    for round in 0..70_000 / BATCH {
        for i in 0..BATCH {
            pair.recv(1, round * BATCH + i, i as usize * 64, 64);
        }
        for i in 0..BATCH {
            let number = round * BATCH + i;
            let request = SendRequest::send(number, &[]).inline(&[]);
            let bytes = number.to_be_bytes();
            let request = SendRequest { signaled: i == BATCH - 1, ..request.inline(&bytes) };
            pair.send(0, &request);
        }
        pair.sent_ok(0, round * BATCH + BATCH - 1);
        for i in 0..BATCH {
            pair.received_ok(1, round * BATCH + i);
            assert_eq!(pair.ends[1].bytes(i as usize * 64, 8), (round * BATCH + i).to_be_bytes());
        }
    }
    close(pair);
}

/// PSNs pass their end while packets are lost.
#[test]
pub(crate) fn psns_wrap_under_loss() {
    for seed in 0..20 {
        let rts = RtsAttr { send_psn: Psn::new(0x00ff_fff0), timeout: 8, ..RtsAttr::default() };
        let options = Options { rts, mtu: 1, ..Options::default() };
        let mut pair = linked(&options, Faults::loss(0.05), seed);
        let far = pair.ends[1].mr;
        let data = pattern(seed, 9000);
        pair.fill(0, 0, &data);
        let (there, back) = ([pair.ends[0].sge(0, 9000)], [pair.ends[0].sge(20_000, 9000)]);
        pair.send(0, &SendRequest::write(1, &there, far.address, far.key));
        pair.send(0, &SendRequest { fence: true, ..SendRequest::read(2, &back, far.address, far.key) });
        pair.sent_ok(0, 1);
        pair.sent_ok(0, 2);
        assert!(pair.ends[0].bytes(20_000, 9000) == data, "seed {seed}");
        close(pair);
    }
}

/// Packets with a GRH carry the same data.
#[test]
pub(crate) fn global_routes() {
    everywhere(&Options { global: true, ..Options::default() }, |pair| {
        let data = pattern(1, 5000);
        pair.fill(0, 0, &data);
        pair.recv(1, 1, 0, 8192);
        let sge = pair.ends[0].sge(0, 5000);
        pair.send(0, &SendRequest::send(0, &[sge]));
        pair.sent_ok(0, 0);
        assert_eq!(pair.received_ok(1, 1).byte_len, 5000);
        assert!(pair.ends[1].bytes(0, 5000) == data);
    });
}

/// Unreliable connections: what arrives arrives whole and in order; what is lost is lost in silence.
#[test]
pub(crate) fn unreliable_connections() {
    const MESSAGES: u64 = 300;
    let options = Options { service: ServiceType::Uc, recv_requests: 512, cqes: 1024, ..Options::default() };
    for (loss, all) in [(0.0, true), (0.05, false)] {
        let mut pair = linked(&options, Faults::loss(loss), 7);
        for place in 0..MESSAGES {
            pair.recv(1, place, 32_768 + place as usize % 2 * 4096, 4096);
        }
        let mut last = None;
        let mut arrived = 0;
        for i in 0..MESSAGES {
            let data = pattern(i, 1 + (i * 37 % 4000) as usize);
            pair.fill(0, 0, &data);
            let sge = pair.ends[0].sge(0, data.len());
            pair.send(0, &SendRequest::new(i, SendOp::Send { imm: Some(i as u32) }, &[sge]));
            pair.sent_ok(0, i);
            pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_us(50));
            while let Some((place, completion)) = pair.try_received(1) {
                assert_eq!((place, completion.status), (arrived, Ok(())));
                assert!(last < completion.imm, "out of order");
                last = completion.imm;
                assert_eq!(completion.imm, Some(i as u32));
                let got = pair.ends[1].bytes(32_768 + place as usize % 2 * 4096, data.len());
                assert!(got == data, "message {i} was garbled");
                arrived += 1;
            }
        }
        assert!(if all { arrived == MESSAGES } else { arrived > MESSAGES / 2 && arrived < MESSAGES });
        close(pair);
    }
}

/// A hundred queue pairs share the link and two completion queues.
#[test]
pub(crate) fn many_queue_pairs() {
    const QPS: usize = 100;
    const ROUNDS: u64 = 5;
    let rts = RtsAttr { timeout: 10, ..RtsAttr::default() };
    let mut pair = linked(&Options { memory: 4 << 20, ..Options::default() }, Faults::loss(0.01), 3);
    let mut cqs = Vec::new();
    let mut qps = [Vec::new(), Vec::new()];
    for (end, qps) in qps.iter_mut().enumerate() {
        let cq = pair.hcas[end].create_cq(CqConfig::new(2048)).expect("CREATE_CQ");
        for _ in 0..QPS {
            let config = QpConfig::rc(pair.ends[end].pd, &cq, &cq);
            qps.push(pair.hcas[end].create_qp(&config).expect("CREATE_QP"));
        }
        cqs.push(cq);
    }
    for end in 0..2 {
        let lid = pair.hcas[1 - end].lid(PORT).expect("LID");
        let peers: Vec<_> = qps[1 - end].iter().map(|qp| qp.number()).collect();
        for (qp, peer) in qps[end].iter_mut().zip(peers) {
            let hca = &mut pair.hcas[end];
            hca.qp_to_init(qp, &InitAttr::default()).expect("INIT");
            hca.qp_to_rtr(qp, &RtrAttr { mtu: 3, ..RtrAttr::new(peer, Path::lid(lid)) }).expect("RTR");
            hca.qp_to_rts(qp, &rts).expect("RTS");
        }
    }
    let far = pair.ends[1].mr;
    for round in 0..ROUNDS {
        for (i, qp) in qps[0].iter_mut().enumerate() {
            let data = pattern(round << 32 | i as u64, 3000);
            pair.fill(0, i * 4096, &data);
            let sge = [pair.ends[0].sge(i * 4096, 3000)];
            let address = far.address + i as u64 * 4096;
            let request = SendRequest::write(i as u64, &sge, address, far.key);
            qp.post_send(pair.hcas[0].bus_mut(), &request).expect("post_send");
        }
        let mut done = [false; QPS];
        while done.iter().any(|d| !d) {
            while let Some(completion) = cqs[0].poll() {
                assert_eq!(completion.status, Ok(()));
                let qp = qps[0].iter_mut().find(|qp| qp.number() == completion.qpn).expect("one of ours");
                let i = qp.finish(&completion).expect("its request") as usize;
                assert!(!std::mem::replace(&mut done[i], true), "twice");
                assert!(pair.ends[1].bytes(i * 4096, 3000) == pattern(round << 32 | i as u64, 3000));
            }
            pair.hcas[0].wait(None);
        }
    }
    for (end, (cq, qps)) in cqs.into_iter().zip(qps).enumerate() {
        for qp in qps {
            pair.hcas[end].destroy_qp(qp).expect("DESTROY_QP");
        }
        pair.hcas[end].destroy_cq(cq).expect("DESTROY_CQ");
    }
    close(pair);
}
