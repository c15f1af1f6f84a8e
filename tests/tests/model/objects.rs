//! Objects of the adapter: what may be made, changed and destroyed when, and the pages that takes.

use hca_driver::qp::QpConfig;
use hca_driver::{Access, Bus, CqConfig, Dma, Error, InitAttr, Mr, Path, RtrAttr, RtsAttr, SendRequest, Sge};
use hca_model::HcaId;
use hca_spec::command::{Opcode, Status};
use hca_spec::ids::{Lid, Pd, Psn, Qpn};
use hca_spec::qpc::{QpState, Qpc};
use hca_spec::queue::Cqc;
use hca_tests::in_process::Simulation;
use hca_tests::pair::{Options, pattern};
use hca_tests::rig::{HOST_MEMORY, close, loopback, open};
use hca_tests::worlds;

fn status<T>(result: Result<T, Error>) -> Option<Status> {
    result.err().and_then(|e| e.status())
}

/// What is in use can't be destroyed.
#[test]
pub(crate) fn use_is_counted() {
    let mut pair = loopback(&Options::default());
    let (pd, cqn, key) = (pair.ends[0].pd, pair.ends[0].send_cq.number(), pair.ends[0].mr.key);
    let hca = &mut pair.hcas[0];
    assert_eq!(status(hca.dealloc_pd(pd)), Some(Status::ResourceBusy));
    let mut destroy = |opcode: Opcode, number: u32| {
        let mut input = vec![0; 16];
        input[8..12].copy_from_slice(&number.to_be_bytes());
        status(hca.execute(opcode, 0, input, 16))
    };
    assert_eq!(destroy(Opcode::DestroyCq, cqn.0), Some(Status::ResourceBusy));
    // What is not there can't be destroyed either; the adapter says so and goes on.
    let gone = [Some(Status::BadResource), Some(Status::BadIndex), Some(Status::BadResourceState)];
    assert!(gone.contains(&destroy(Opcode::DestroyCq, 0x00ff_fff0)));
    assert!(gone.contains(&destroy(Opcode::DestroyQp, 0x00ff_fff0)));
    assert!(gone.contains(&destroy(Opcode::DestroyMkey, key.index() + 1000)));
    assert!(gone.contains(&destroy(Opcode::DeallocPd, 0x00ff_fff0)));
    close(pair);
}

/// Transitions that the state machine does not have (IBTA 10.3.1).
#[test]
pub(crate) fn wrong_transitions_are_refused() {
    let simulation = Simulation::new(worlds::one());
    let mut hca = open(&simulation, 0);
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let cq = hca.create_cq(CqConfig::new(16)).expect("CREATE_CQ");
    let mut qp = hca.create_qp(&QpConfig::rc(pd, &cq, &cq)).expect("CREATE_QP");
    let rtr = RtrAttr::new(Qpn(0x40), Path::lid(Lid(1)));
    let wrong = Some(Status::BadQpState);
    assert_eq!(status(hca.qp_to_rtr(&mut qp, &rtr)), wrong);
    assert_eq!(status(hca.qp_to_rts(&mut qp, &RtsAttr::default())), wrong);
    hca.qp_to_init(&mut qp, &InitAttr::default()).expect("INIT");
    assert_eq!(status(hca.qp_to_rts(&mut qp, &RtsAttr::default())), wrong);
    assert_eq!(status(hca.qp_to_init(&mut qp, &InitAttr::default())), wrong);
    hca.qp_to_rtr(&mut qp, &rtr).expect("RTR");
    assert_eq!(status(hca.qp_to_rtr(&mut qp, &rtr)), wrong);
    hca.qp_to_error(&mut qp).expect("2ERR");
    assert_eq!(status(hca.qp_to_rts(&mut qp, &RtsAttr::default())), wrong);
    hca.qp_to_error(&mut qp).expect("2ERR again");
    hca.qp_to_reset(&mut qp).expect("2RST");
    hca.qp_to_init(&mut qp, &InitAttr::default()).expect("INIT after reset");
    hca.destroy_qp(qp).expect("DESTROY_QP");
    hca.destroy_cq(cq).expect("DESTROY_CQ");
    hca.dealloc_pd(pd).expect("DEALLOC_PD");
    hca.close().expect("teardown");
    worlds::assert_nothing_held(&simulation, HcaId(0));
}

/// What QUERY_QP and QUERY_CQ say is what was set, and what happened since.
#[test]
pub(crate) fn queries_are_truthful() {
    let psn = Psn::new(0x00ab_cdef);
    let rts = RtsAttr { send_psn: psn, timeout: 15, retries: 5, rnr_retries: 3, initiator_reads: 4 };
    let mut pair = loopback(&Options { rts, mtu: 2, rnr_timer: 12, ..Options::default() });
    for i in 0..3 {
        pair.recv(1, i, 0, 1024);
        let sge = pair.ends[0].sge(0, 1024);
        pair.send(0, &SendRequest::send(i, &[sge]));
        pair.sent_ok(0, i);
    }
    pair.received_ok(1, 0);
    let peer = pair.ends[1].qp.number();
    let qpc = pair.hcas[0].query_qp(&pair.ends[0].qp).expect("QUERY_QP");
    assert_eq!(QpState::from_bits(qpc.get(Qpc::STATE)), Some(QpState::Rts));
    assert_eq!((qpc.get(Qpc::MTU), qpc.get(Qpc::MIN_RNR_NAK)), (2, 12));
    assert_eq!((qpc.get(Qpc::RETRY_COUNT), qpc.get(Qpc::RNR_RETRY), qpc.get(Qpc::LOG_SRA_MAX)), (5, 3, 2));
    assert_eq!(Qpn(qpc.get(Qpc::REMOTE_QPN)), peer);
    // 3 messages of 1024 bytes with an MTU of 512 are 6 packets.
    assert_eq!(Psn::new(qpc.get(Qpc::NEXT_SEND_PSN)), psn.add(6));
    assert_eq!(qpc.get(Qpc::HW_SQ_WQEBB_COUNTER), 3);
    let qpc = pair.hcas[0].query_qp(&pair.ends[1].qp).expect("QUERY_QP");
    assert_eq!(Psn::new(qpc.get(Qpc::NEXT_RCV_PSN)), psn.add(6));
    assert_eq!((qpc.get(Qpc::RMSN), qpc.get(Qpc::HW_RQ_COUNTER), qpc.get(Qpc::SW_RQ_COUNTER)), (3, 3, 3));
    let cqc = pair.hcas[0].query_cq(&pair.ends[1].recv_cq).expect("QUERY_CQ");
    assert_eq!((cqc.get(Cqc::PRODUCER_COUNTER), cqc.get(Cqc::CONSUMER_COUNTER)), (3, 1));
    close(pair);
}

/// Keys with pages of every size, and an address in the middle of the first page.
#[test]
pub(crate) fn pages_of_every_size() {
    let mut pair = loopback(&Options::default());
    let pd = pair.ends[0].pd;
    for log_page_size in 12..=21 {
        let page = 1usize << log_page_size;
        let hca = &mut pair.hcas[0];
        let mut memory = hca.bus_mut().dma_alloc(4 * page, page).expect("memory");
        let base = memory.bus_address();
        let pages: Vec<u64> = [2u64, 0, 3].iter().map(|p| base + p * page as u64).collect();
        let (address, len) = (0x1000_0000_0000 + 777, 3 * page as u64 - 777 - 5);
        let mr =
            hca.register_pages(pd, &pages, log_page_size, address, len, Access::ALL).expect("CREATE_MKEY");
        let data = pattern(log_page_size.into(), 3000);
        // Across the border between the first two pages: the end of page 2, the start of page 0.
        memory.write(3 * page - 1000, &data[..1000]);
        memory.write(0, &data[1000..]);
        pair.recv(1, 0, 0, 4096);
        let sge = Sge { address: address + page as u64 - 777 - 1000, len: 3000, key: mr.key };
        pair.send(0, &SendRequest::send(0, &[sge]));
        pair.sent_ok(0, 0);
        pair.received_ok(1, 0);
        assert!(pair.ends[1].bytes(0, 3000) == data, "pages of {page} bytes");
        pair.hcas[0].deregister(mr).expect("DESTROY_MKEY");
    }
    close(pair);
}

/// A key that is gone is gone at once, and its number with another variant is another key.
#[test]
pub(crate) fn keys_that_are_gone() {
    let mut pair = loopback(&Options::default());
    let pd = pair.ends[1].pd;
    let memory = pair.hcas[0].bus_mut().dma_alloc(4096, 4096).expect("memory");
    let mr: Mr = pair.hcas[0].register(pd, &memory, 4096, Access::ALL).expect("CREATE_MKEY");
    let sge = [pair.ends[0].sge(0, 64)];
    pair.send(0, &SendRequest::write(1, &sge, mr.address, mr.key));
    pair.sent_ok(0, 1);
    pair.hcas[0].deregister(mr).expect("DESTROY_MKEY");
    let again = pair.hcas[0].register(pd, &memory, 4096, Access::ALL).expect("CREATE_MKEY");
    assert_ne!(again.key, mr.key, "a new key looks like the old one");
    pair.send(0, &SendRequest::write(2, &sge, mr.address, mr.key));
    assert_eq!(pair.sent(0).1.syndrome(), Some(hca_spec::cqe::Syndrome::RemoteAccess));
    pair.hcas[0].deregister(again).expect("DESTROY_MKEY");
    drop(memory);
    close(pair);
}

/// A key of another protection domain is refused, local or remote.
#[test]
pub(crate) fn protection_domains_are_separate() {
    for local in [true, false] {
        let mut pair = loopback(&Options::default());
        let (near, far) = (pair.ends[0].sge(0, 64), pair.ends[1].sge(0, 64));
        let request = match local {
            true => SendRequest::send(1, std::slice::from_ref(&far)),
            // The far key under the near domain: the write comes back to where it must not.
            false => SendRequest::write(1, std::slice::from_ref(&near), near.address, near.key),
        };
        pair.recv(1, 0, 0, 64);
        pair.send(0, &request);
        let expected = match local {
            true => hca_spec::cqe::Syndrome::LocalProtection,
            false => hca_spec::cqe::Syndrome::RemoteAccess,
        };
        assert_eq!(pair.sent(0).1.syndrome(), Some(expected));
        close(pair);
    }
}

/// Many objects need more pages than the firmware began with; all of them come back.
#[test]
pub(crate) fn the_firmware_asks_for_pages_and_gives_them_back() {
    let simulation = Simulation::new(worlds::one());
    let mut hca = open(&simulation, 0);
    let before = hca.firmware_pages();
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let memory = hca.bus_mut().dma_alloc(1 << 20, 4096).expect("memory");
    let keys: Vec<Mr> =
        (0..3000).map(|_| hca.register(pd, &memory, 1 << 20, Access::ALL).expect("CREATE_MKEY")).collect();
    let pds: Vec<Pd> = (0..3000).map(|_| hca.alloc_pd().expect("ALLOC_PD")).collect();
    hca.poll_event().expect("events");
    assert!(hca.firmware_pages() > before, "{before} pages were enough for everything");
    for key in keys {
        hca.deregister(key).expect("DESTROY_MKEY");
    }
    for pd in pds.into_iter().chain([pd]) {
        hca.dealloc_pd(pd).expect("DEALLOC_PD");
    }
    drop(memory);
    let bus = hca.close().expect("teardown");
    assert_eq!(bus.free_memory(), HOST_MEMORY);
    worlds::assert_nothing_held(&simulation, HcaId(0));
}
