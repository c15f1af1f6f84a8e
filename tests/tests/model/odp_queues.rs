//! On-demand paging with shared receive queues, with datagrams, and under load on a bad link.

use hca_driver::qp::QpConfig;
use hca_driver::wqe::SendOp;
use hca_driver::{Datagram, FaultPlace, PageFault, RtsAttr, SendRequest};
use hca_model::link::Faults;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::page_fault;
use hca_tests::paged::{BASE, PAGE, PAGES, Paged, everywhere, told};
use hca_tests::pair::{Options, PORT, pattern};
use hca_tests::rig::{self, linked};

/// The queue pair that waits keeps the WQE that it took; the event names the SRQ.
#[test]
pub(crate) fn receive_buffers_of_a_shared_queue() {
    let options = Options::default();
    everywhere(&options, |paged| {
        let (home, pd) = (paged.pair.ends[1].home, paged.pair.ends[1].pd);
        let mut srq = paged.pair.hcas[home].create_srq(pd, 16, 1).expect("CREATE_RMP");
        let end = &mut paged.pair.ends[1];
        let config = QpConfig { srq: Some(srq.number()), ..QpConfig::rc(pd, &end.send_cq, &end.recv_cq) };
        let qp = paged.pair.hcas[home].create_qp(&config).expect("CREATE_QP");
        let old = std::mem::replace(&mut paged.pair.ends[1].qp, qp);
        paged.pair.hcas[home].destroy_qp(old).expect("DESTROY_QP");
        let sender = paged.pair.ends[0].home;
        paged.pair.hcas[sender].qp_to_reset(&mut paged.pair.ends[0].qp).expect("2RST");
        for end in [1, 0] {
            paged.pair.to_rts(end, &options).expect("connect");
        }
        for i in 0..2 {
            let sge = paged.sge(1, i * PAGE, PAGE);
            srq.post_recv(20 + i as u64, &[sge]).expect("post_recv");
        }
        paged.pair.send(0, &SendRequest::send(1, &[]).inline(b"one"));
        paged.pair.send(0, &SendRequest::send(2, &[]).inline(b"two"));
        let place = FaultPlace::Wqe { index: 0 };
        let expected = told(page_fault::SHARED_RECEIVE, paged.qpn(1), 0, 3, place);
        let fault = paged.fault_is(1, &PageFault { queue: srq.number().0, ..expected }, 0);
        paged.stands_still();
        paged.map(1, 0..2);
        paged.resume(1, &fault, false);
        for i in 0..2 {
            paged.pair.sent_ok(0, 1 + i);
            let completion = loop {
                match paged.pair.ends[1].recv_cq.poll() {
                    Some(completion) => break completion,
                    None => paged.pair.hcas[0].wait(None),
                }
            };
            assert_eq!((srq.finish(&completion), completion.status), (Some(20 + i), Ok(())));
        }
        assert_eq!((paged.bytes(1, 0, 3), paged.bytes(1, PAGE, 3)), (b"one".to_vec(), b"two".to_vec()));
        let end = &mut paged.pair.ends[1];
        let config = QpConfig::rc(pd, &end.send_cq, &end.recv_cq);
        let qp = paged.pair.hcas[home].create_qp(&config).expect("CREATE_QP");
        let old = std::mem::replace(&mut paged.pair.ends[1].qp, qp);
        paged.pair.hcas[home].destroy_qp(old).expect("DESTROY_QP");
        paged.pair.hcas[home].destroy_srq(srq).expect("DESTROY_RMP");
    });
}

/// A datagram stays in the send queue until its data is there; those behind it wait.
#[test]
pub(crate) fn datagrams_wait_for_their_data() {
    const QKEY: u32 = 0x1234;
    for error in [false, true] {
        everywhere(&Options::default(), |paged| {
            let (home, pd) = (paged.pair.ends[0].home, paged.pair.ends[0].pd);
            let lid = paged.pair.hcas[home].lid(PORT).expect("LID");
            let end = &paged.pair.ends[0];
            let hca = &mut paged.pair.hcas[home];
            let qp = rig::datagrams(hca, pd, (&end.send_cq, &end.recv_cq), QKEY);
            let rc = std::mem::replace(&mut paged.pair.ends[0].qp, qp);
            // To itself.
            let to = Datagram { qpn: paged.pair.ends[0].qp.number(), qkey: QKEY, lid, sl: 0, gid: None };
            paged.fill(0, 0, &pattern(9, PAGE));
            for i in 0..2 {
                paged.pair.recv(0, 30 + i, 8 * PAGE + 1024 * i as usize, 1024);
                let sge = paged.sge(0, 100 + i as usize, 500);
                paged.pair.send(0, &SendRequest::new(1 + i, SendOp::Datagram { to, imm: None }, &[sge]));
            }
            let place = FaultPlace::Wqe { index: 0 };
            let fault = paged.fault_is(0, &told(page_fault::SEND_OR_WRITE, paged.qpn(0), 0, 0, place), 100);
            paged.stands_still();
            if error {
                paged.resume(0, &fault, true);
                assert_eq!(paged.pair.sent(0).1.syndrome(), Some(Syndrome::LocalProtection));
                let (wr_id, completion) = paged.pair.sent(0);
                assert_eq!((wr_id, completion.syndrome()), (2, Some(Syndrome::WorkRequestFlushed)));
            } else {
                paged.map(0, 0..1);
                paged.resume(0, &fault, false);
                for i in 0..2 {
                    paged.pair.sent_ok(0, 1 + i);
                    paged.pair.received_ok(0, 30 + i);
                    let at = 8 * PAGE + 1024 * i as usize + 40;
                    let sent = paged.bytes(0, 100 + i as usize, 500);
                    assert_eq!(paged.pair.ends[0].bytes(at, 500), sent);
                }
            }
            let ud = std::mem::replace(&mut paged.pair.ends[0].qp, rc);
            paged.pair.hcas[home].destroy_qp(ud).expect("DESTROY_QP");
        });
    }
}

/// Pages come only when somebody waits for them and go again all the time, packets are lost: every byte of
/// writes, reads and messages arrives once and in order.
#[test]
pub(crate) fn everything_arrives_although_pages_come_and_go() {
    for (seed, memory_page_faults) in (1..6u64).flat_map(|seed| [(seed, false), (seed, true)]) {
        let rts = RtsAttr { timeout: 8, ..RtsAttr::default() };
        let options = Options { rts, memory_page_faults, ..Options::default() };
        let mut paged = Paged::new(linked(&options, Faults { loss: 0.03, ..Faults::default() }, seed));
        const LEN: usize = 5 * PAGE + 77;
        for round in 0..6u64 {
            paged.fill(0, 0, &pattern(seed * 100 + round, PAGES * PAGE));
            paged.fill(1, 0, &pattern(seed * 200 + round, PAGES * PAGE));
            let (near, far) = (paged.bytes(0, 0, PAGES * PAGE), paged.bytes(1, 0, PAGES * PAGE));
            let key = paged.regions[1].key;
            // Into different parts of the far region: a message, a write; and a read of a third.
            paged.recv(1, 50, 0, LEN);
            let sges = [paged.sge(0, 33, LEN), paged.sge(0, 100, PAGE), paged.sge(0, 9 * PAGE + 5, LEN)];
            paged.pair.send(0, &SendRequest::send(1, &sges[..1]));
            paged.pair.send(0, &SendRequest::write(2, &sges[1..2], BASE + 7 * PAGE as u64 + 9, key));
            paged.pair.send(0, &SendRequest::read(3, &sges[2..], BASE + 10 * PAGE as u64, key));
            let mut sent = 0;
            let mut faults = 0;
            while sent < 3 {
                if let Some((wr_id, completion)) = paged.pair.try_sent(0) {
                    sent += 1;
                    assert_eq!((wr_id, completion.status), (sent, Ok(())), "seed {seed}, round {round}");
                }
                for end in 0..2 {
                    if let Some(fault) = paged.poll_fault(end) {
                        faults += 1;
                        // Sometimes what was there goes, and the rest comes, a few pages more each time.
                        if faults % 3 == 0 {
                            paged.unmap(end, 0..PAGES / 4);
                        }
                        let from = (faults * 5) % PAGES;
                        paged.map(end, from..(from + 3 + faults / 8).min(PAGES));
                        paged.resume(end, &fault, false);
                    }
                }
                assert!(faults < 10_000, "seed {seed}: no progress");
                paged.pair.hcas[0].wait(None);
            }
            assert!(faults > 2, "seed {seed}, round {round}: pages were there");
            assert_eq!(paged.pair.received_ok(1, 50).byte_len as usize, LEN);
            assert!(paged.bytes(1, 0, LEN) == near[33..33 + LEN], "seed {seed}: message");
            let write = 7 * PAGE + 9;
            assert!(paged.bytes(1, write, PAGE) == near[100..100 + PAGE], "seed {seed}: write");
            assert!(
                paged.bytes(0, 9 * PAGE + 5, LEN) == far[10 * PAGE..10 * PAGE + LEN],
                "seed {seed}: read"
            );
            for end in 0..2 {
                paged.unmap(end, 0..PAGES);
            }
        }
        paged.close();
    }
}
