//! On-demand paging: who waits for which page, what the driver is told, and how it goes on.

use hca_driver::wqe::SendOp;
use hca_driver::{Access, Event, FaultPlace, SendRequest};
use hca_model::Ps;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::{EventType, page_fault};
use hca_spec::ids::Mkey;
use hca_spec::mkc::NULL_MKEY;
use hca_spec::qpc::QpState;
use hca_tests::paged::{BASE, PAGE, PAGES, Paged, everywhere, told};
use hca_tests::pair::{Options, pattern};
use hca_tests::rig::{MTU, assert_state, drain_events, loopback};

/// From the middle of page 0 into page 3.
const FROM: usize = 1000;
const LEN: usize = 3 * PAGE;

/// Both regions hold data that differ.
fn prepare(paged: &mut Paged) -> Vec<u8> {
    for end in 0..2 {
        paged.fill(end, 0, &pattern(7 + end as u64, PAGES * PAGE));
    }
    paged.bytes(0, FROM, LEN)
}

#[test]
pub(crate) fn a_sender_waits_for_its_data() {
    everywhere(&Options::default(), |paged| {
        let data = prepare(paged);
        paged.map(0, 0..1);
        paged.map(1, 0..PAGES);
        paged.recv(1, 11, 0, LEN);
        paged.recv(1, 12, 5 * PAGE, 100);
        let sge = paged.sge(0, FROM, LEN);
        paged.pair.send(0, &SendRequest::send(1, &[sge]));
        paged.pair.send(0, &SendRequest::send(2, &[]).inline(b"behind"));
        // The packet that crosses into page 1 is the fourth.
        let committed = |page: usize| (page * PAGE - FROM) / MTU * MTU;
        let (qpn, place) = (paged.qpn(0), FaultPlace::Wqe { index: 0 });
        let expected = |page| told(page_fault::SEND_OR_WRITE, qpn, committed(page), 0, place);
        let fault = paged.fault_is(0, &expected(1), PAGE);
        paged.stands_still();
        // The driver brings too little: the next page is a fault of its own.
        paged.map(0, 1..2);
        paged.resume(0, &fault, false);
        let fault = paged.fault_is(0, &expected(2), 2 * PAGE);
        paged.map(0, 2..4);
        paged.resume(0, &fault, false);
        paged.pair.sent_ok(0, 1);
        paged.pair.sent_ok(0, 2);
        assert_eq!(paged.pair.received_ok(1, 11).byte_len as usize, LEN);
        paged.pair.received_ok(1, 12);
        assert!(paged.bytes(1, 0, LEN) == data);
        assert_eq!(paged.bytes(1, 5 * PAGE, 6), b"behind");
        paged.stands_still();
    });
}

#[test]
pub(crate) fn a_receiver_waits_for_its_buffer() {
    everywhere(&Options::default(), |paged| {
        let data = prepare(paged);
        let before = paged.bytes(1, 0, PAGES * PAGE);
        paged.map(0, 0..4);
        paged.recv(1, 11, 0, 100);
        paged.recv(1, 12, FROM, LEN);
        paged.pair.send(0, &SendRequest::send(1, &[]).inline(b"first"));
        let sge = paged.sge(0, FROM, LEN);
        paged.pair.send(0, &SendRequest::send(2, &[sge]));
        let (kind, qpn) = (page_fault::RECEIVE, paged.qpn(1));
        let fault = paged.fault_is(1, &told(kind, qpn, 0, 5, FaultPlace::Wqe { index: 0 }), 0);
        paged.stands_still();
        assert!(paged.bytes(1, 0, PAGES * PAGE) == before, "nothing is written");
        paged.map(1, 0..1);
        paged.resume(1, &fault, false);
        // In the middle of the second message.
        let committed = (PAGE - FROM) / MTU * MTU;
        let expected = told(kind, qpn, committed, MTU, FaultPlace::Wqe { index: 1 });
        let fault = paged.fault_is(1, &expected, PAGE);
        paged.map(1, 1..4);
        paged.resume(1, &fault, false);
        paged.pair.sent_ok(0, 1);
        paged.pair.sent_ok(0, 2);
        assert_eq!(paged.pair.received_ok(1, 11).byte_len, 5);
        assert_eq!(paged.pair.received_ok(1, 12).byte_len as usize, LEN);
        assert_eq!(paged.bytes(1, 0, 5), b"first");
        assert!(paged.bytes(1, FROM, LEN) == data);
        paged.stands_still();
    });
}

#[test]
pub(crate) fn the_target_of_a_write_is_waited_for() {
    everywhere(&Options::default(), |paged| {
        let data = prepare(paged);
        paged.map(0, 0..PAGES);
        paged.map(1, 0..2);
        let rkey = paged.regions[1].key;
        let sge = paged.sge(0, FROM, LEN);
        paged.pair.recv(1, 11, 0, 0);
        let write = SendOp::Write { address: BASE + FROM as u64, rkey, imm: Some(5) };
        paged.pair.send(0, &SendRequest::new(1, write, &[sge]));
        let place = FaultPlace::Rdma { rkey, address: BASE + FROM as u64, len: LEN as u32 };
        let committed = (2 * PAGE - FROM) / MTU * MTU;
        let expected = told(page_fault::RDMA_WRITE, paged.qpn(1), committed, MTU, place);
        let fault = paged.fault_is(1, &expected, 2 * PAGE);
        paged.stands_still();
        // Readable is not enough.
        paged.map_as(1, 2..4, false);
        paged.resume(1, &fault, false);
        let fault = paged.fault_is(1, &expected, 2 * PAGE);
        paged.map(1, 2..4);
        paged.resume(1, &fault, false);
        paged.pair.sent_ok(0, 1);
        let completion = paged.pair.received_ok(1, 11);
        assert_eq!((completion.byte_len as usize, completion.imm), (LEN, Some(5)));
        assert!(paged.bytes(1, FROM, LEN) == data);
        paged.stands_still();
    });
}

#[test]
pub(crate) fn both_ends_of_a_read_are_waited_for() {
    // One retry: waiting must not cost any.
    let mut options = Options::default();
    options.rts.retries = 1;
    everywhere(&options, |paged| {
        prepare(paged);
        let data = paged.bytes(1, FROM, LEN);
        paged.map_as(1, 0..1, false);
        paged.map(0, 0..2);
        let rkey = paged.regions[1].key;
        let sge = paged.sge(0, FROM, LEN);
        paged.pair.recv(1, 11, 0, 100);
        paged.pair.send(0, &SendRequest::read(1, &[sge], BASE + FROM as u64, rkey));
        paged.pair.send(0, &SendRequest::send(2, &[]).inline(b"behind"));
        // The responder has no second page.
        let done = (PAGE - FROM) / MTU * MTU;
        let (address, len) = (BASE + (FROM + done) as u64, (LEN - done) as u32);
        let place = FaultPlace::Rdma { rkey, address, len };
        let fault = paged.fault_is(1, &told(page_fault::RDMA_READ, paged.qpn(1), 0, MTU, place), PAGE);
        paged.run(Ps::from_ms(20));
        assert_eq!(paged.pair.try_sent(0), None);
        paged.map_as(1, 1..4, false);
        paged.resume(1, &fault, false);
        // The requester has no third page.
        let (kind, committed) = (page_fault::READ_OR_ATOMIC, (2 * PAGE - FROM) / MTU * MTU);
        let expected = told(kind, paged.qpn(0), committed, 0, FaultPlace::Wqe { index: 0 });
        let fault = paged.fault_is(0, &expected, 2 * PAGE);
        paged.run(Ps::from_ms(200));
        assert_eq!(paged.pair.try_sent(0), None);
        paged.map(0, 2..4);
        paged.resume(0, &fault, false);
        paged.pair.sent_ok(0, 1);
        paged.pair.sent_ok(0, 2);
        paged.pair.received_ok(1, 11);
        assert!(paged.bytes(0, FROM, LEN) == data);
        paged.stands_still();
    });
}

/// An atomic is done once, however often its ends wait.
#[test]
pub(crate) fn both_ends_of_an_atomic_are_waited_for() {
    everywhere(&Options::default(), |paged| {
        paged.fill(1, 16, &41u64.to_le_bytes());
        let (rkey, sge) = (paged.regions[1].key, paged.sge(0, 8, 8));
        let add = SendOp::FetchAdd { address: BASE + 16, rkey, add: 1 };
        paged.pair.send(0, &SendRequest::new(1, add, &[sge]));
        let place = FaultPlace::Rdma { rkey, address: BASE + 16, len: 8 };
        let fault = paged.fault_is(1, &told(page_fault::RDMA_WRITE, paged.qpn(1), 0, 8, place), 16);
        paged.stands_still();
        paged.map(1, 0..1);
        paged.resume(1, &fault, false);
        let (kind, place) = (page_fault::READ_OR_ATOMIC, FaultPlace::Wqe { index: 0 });
        let fault = paged.fault_is(0, &told(kind, paged.qpn(0), 0, 0, place), 8);
        paged.stands_still();
        paged.map(0, 0..1);
        paged.resume(0, &fault, false);
        paged.pair.sent_ok(0, 1);
        assert_eq!(paged.bytes(0, 8, 8), 41u64.to_le_bytes());
        assert_eq!(paged.bytes(1, 16, 8), 42u64.to_le_bytes());
    });
}

type Work = fn(&mut Paged);

/// What waits, and the syndromes and event when the pages can't be had.
struct Refusal {
    name: &'static str,
    work: Work,
    /// The end that waits.
    waits: usize,
    sender: Syndrome,
    receiver: Option<Syndrome>,
    event: Option<EventType>,
}

#[test]
pub(crate) fn pages_that_can_not_be_had_are_errors() {
    let refusals = [
        Refusal {
            name: "send",
            work: |p| {
                let sge = p.sge(0, 0, 100);
                p.pair.send(0, &SendRequest::send(1, &[sge]));
            },
            waits: 0,
            sender: Syndrome::LocalProtection,
            receiver: None,
            event: None,
        },
        Refusal {
            name: "receive",
            work: |p| {
                p.recv(1, 11, 0, 100);
                p.pair.send(0, &SendRequest::send(1, &[]).inline(b"x"));
            },
            waits: 1,
            sender: Syndrome::RemoteOperation,
            receiver: Some(Syndrome::LocalProtection),
            event: None,
        },
        Refusal {
            name: "write",
            work: |p| {
                let key = p.regions[1].key;
                p.pair.send(0, &SendRequest::write(1, &[], BASE, key).inline(b"x"));
            },
            waits: 1,
            sender: Syndrome::RemoteAccess,
            receiver: None,
            event: Some(EventType::AccessError),
        },
        Refusal {
            name: "read, far end",
            work: |p| {
                let (key, sge) = (p.regions[1].key, p.pair.ends[0].sge(0, 100));
                p.pair.send(0, &SendRequest::read(1, &[sge], BASE, key));
            },
            waits: 1,
            sender: Syndrome::RemoteAccess,
            receiver: None,
            event: Some(EventType::AccessError),
        },
        Refusal {
            name: "read, near end",
            work: |p| {
                let (sge, from) = (p.sge(0, 0, 100), p.pair.ends[1].mr);
                p.pair.send(0, &SendRequest::read(1, &[sge], from.address, from.key));
            },
            waits: 0,
            sender: Syndrome::LocalProtection,
            receiver: None,
            event: None,
        },
    ];
    for refusal in refusals {
        everywhere(&Options::default(), |paged| {
            let home = paged.pair.ends[1].home;
            drain_events(&mut paged.pair.hcas[home]);
            (refusal.work)(paged);
            paged.pair.send(0, &SendRequest::send(2, &[]).inline(b"y"));
            let fault = paged.fault(refusal.waits);
            paged.stands_still();
            paged.resume(refusal.waits, &fault, true);
            let (wr_id, completion) = paged.pair.sent(0);
            assert_eq!((wr_id, completion.syndrome()), (1, Some(refusal.sender)), "{}", refusal.name);
            let (wr_id, completion) = paged.pair.sent(0);
            assert_eq!((wr_id, completion.syndrome()), (2, Some(Syndrome::WorkRequestFlushed)));
            assert_state(&mut paged.pair, 0, QpState::Error);
            if let Some(syndrome) = refusal.receiver {
                assert_eq!(paged.pair.received(1).1.syndrome(), Some(syndrome), "{}", refusal.name);
            }
            let qpn = paged.pair.ends[1].qp.number();
            let told: Vec<Event> = refusal.event.iter().map(|e| Event::Qp { qpn, kind: *e as u8 }).collect();
            assert_eq!(drain_events(&mut paged.pair.hcas[home]), told, "{}", refusal.name);
        });
    }
}

/// Once the work request that takes a page away is complete, the page is the host's.
#[test]
pub(crate) fn pages_that_are_gone_are_not_touched() {
    everywhere(&Options::default(), |paged| {
        paged.map(0, 0..PAGES);
        paged.map(1, 0..PAGES);
        let key = paged.regions[1].key;
        let write = |wr_id| SendRequest::write(wr_id, &[], BASE + 100, key);
        paged.pair.send(0, &write(1).inline(b"one"));
        paged.pair.sent_ok(0, 1);
        assert_eq!(paged.bytes(1, 100, 3), b"one");
        paged.unmap(1, 0..1);
        paged.fill(1, 0, &[0xee; PAGE]);
        paged.pair.send(0, &write(2).inline(b"two"));
        let fault = paged.fault(1);
        paged.stands_still();
        assert_eq!(paged.bytes(1, 0, PAGE), [0xee; PAGE]);
        // It comes back somewhere else.
        let other = paged.page(1, 9);
        let home = paged.pair.ends[1].home;
        let (hca, region) = (&mut paged.pair.hcas[home], &mut paged.regions[1]);
        paged.registrars[home].map(hca, region, 0, &[other], true).expect("UMR");
        paged.resume(1, &fault, false);
        paged.pair.sent_ok(0, 2);
        assert_eq!(paged.bytes(1, 0, PAGE), [0xee; PAGE]);
        assert_eq!(paged.bytes(1, 9 * PAGE + 100, 3), b"two");
    });
}

/// A fault dies with its queue pair's life; what the driver says of it later does nothing.
#[test]
pub(crate) fn a_reset_forgets_the_fault() {
    let options = Options::default();
    everywhere(&options, |paged| {
        paged.map(1, 0..PAGES);
        paged.recv(1, 11, 0, 100);
        let sge = paged.sge(0, 0, 100);
        paged.pair.send(0, &SendRequest::send(1, &[sge]));
        let stale = paged.fault(0);
        for end in 0..2 {
            let home = paged.pair.ends[end].home;
            let (hca, qp) = (&mut paged.pair.hcas[home], &mut paged.pair.ends[end].qp);
            hca.qp_to_reset(qp).expect("2RST");
            paged.pair.to_rts(end, &options).expect("connect");
        }
        paged.resume(0, &stale, true);
        paged.recv(1, 12, 0, 100);
        paged.pair.send(0, &SendRequest::send(2, &[]).inline(b"again"));
        paged.pair.sent_ok(0, 2);
        paged.pair.received_ok(1, 12);
        // In error the request that waits is flushed.
        let sge = paged.sge(0, 0, 100);
        paged.pair.send(0, &SendRequest::send(3, &[sge]));
        let stale = paged.fault(0);
        let home = paged.pair.ends[0].home;
        let (hca, qp) = (&mut paged.pair.hcas[home], &mut paged.pair.ends[0].qp);
        hca.qp_to_error(qp).expect("2ERR");
        let (wr_id, completion) = paged.pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (3, Some(Syndrome::WorkRequestFlushed)));
        paged.resume(0, &stale, false);
        paged.stands_still();
        // Destruction with a fault: `close` finds nothing left.
        paged.pair.hcas[home].qp_to_reset(&mut paged.pair.ends[0].qp).expect("2RST");
        paged.pair.to_rts(0, &options).expect("connect");
        let sge = paged.sge(0, 0, 100);
        paged.pair.send(0, &SendRequest::send(4, &[sge]));
        paged.fault(0);
    });
}

/// Without an event queue for page faults nobody would bring the page.
#[test]
pub(crate) fn nobody_to_tell_is_an_error() {
    for memory_page_faults in [false, true] {
        let mut paged = Paged::new(loopback(&Options { memory_page_faults, ..Options::default() }));
        let eq = paged.eqs.pop().expect("an event queue");
        paged.pair.hcas[0].destroy_eq(eq).expect("DESTROY_EQ");
        let sge = paged.sge(0, 0, 100);
        paged.pair.send(0, &SendRequest::send(1, &[sge]));
        assert_eq!(paged.pair.sent(0).1.syndrome(), Some(Syndrome::LocalProtection));
    }
}

/// Blocks of an implicit region come like pages.
#[test]
pub(crate) fn implicit_regions_wait_for_their_blocks() {
    const LOG_BLOCK: u32 = PAGE.ilog2() + 2;
    everywhere(&Options::default(), |paged| {
        let data = prepare(paged);
        paged.map(0, 0..4);
        let (home, pd) = (paged.pair.ends[1].home, paged.pair.ends[1].pd);
        let hca = &mut paged.pair.hcas[home];
        let registrar = &mut paged.registrars[home];
        let implicit = registrar.register_implicit(hca, pd, LOG_BLOCK, 64, Access::ALL).expect("a region");
        let (key, null) = (implicit.key, implicit.null);
        // The write ends in the block before the last one.
        let to = (62 << LOG_BLOCK) - 1000;
        let sge = paged.sge(0, FROM, LEN);
        paged.pair.send(0, &SendRequest::write(1, &[sge], to, key));
        let place = FaultPlace::Rdma { rkey: key, address: to, len: LEN as u32 };
        let expected = told(page_fault::RDMA_WRITE, paged.qpn(1), 0, MTU, place);
        let fault = paged.fault_under(1, &expected, null, to);
        paged.stands_still();
        let hca = &mut paged.pair.hcas[home];
        let registrar = &mut paged.registrars[home];
        let region = paged.regions[1].clone();
        registrar.map_blocks(hca, implicit, 60, [None, Some(&region), None, None]).expect("UMR");
        paged.resume(1, &fault, false);
        // The block is there, but not its page.
        let fault = paged.fault_is(1, &expected, 4 * PAGE - 1000);
        paged.map(1, 3..4);
        paged.resume(1, &fault, false);
        // The first packet ends in the next block.
        let fault = paged.fault_under(1, &expected, null, 62 << LOG_BLOCK);
        paged.map(1, 0..4);
        let hca = &mut paged.pair.hcas[home];
        let both = [None, Some(&region), Some(&region), None];
        paged.registrars[home].map_blocks(hca, implicit, 60, both).expect("UMR");
        paged.resume(1, &fault, false);
        paged.pair.sent_ok(0, 1);
        assert!(paged.bytes(1, 4 * PAGE - 1000, 1000) == data[..1000]);
        assert!(paged.bytes(1, 0, LEN - 1000) == data[1000..]);
        let hca = &mut paged.pair.hcas[home];
        hca.free_key(key).expect("DESTROY_MKEY");
        if null != Mkey(NULL_MKEY) {
            hca.free_key(null).expect("DESTROY_MKEY");
        }
    });
}
