//! On-demand paging in the memory scheme: what is different from the transport scheme.

use hca_driver::{Access, Config, FaultPlace, Implicit, PageFault, SendRequest};
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::page_fault;
use hca_spec::ids::Mkey;
use hca_spec::mkc::NULL_MKEY;
use hca_tests::in_process::Simulation;
use hca_tests::paged::{BASE, PAGE, PAGES, Paged, in_scheme, told};
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::open_with;
use hca_tests::worlds;

/// From the middle of page 0 into page 3.
const FROM: usize = 1000;
const LEN: usize = 3 * PAGE;

fn everywhere(test: impl Fn(&mut Paged)) {
    in_scheme(&Options { memory_page_faults: true, ..Options::default() }, test);
}

/// Key, pages that are needed, and pages that are asked for ahead: first page and number in the region, number behind.
fn asked_for(fault: &PageFault) -> (Mkey, usize, usize, usize) {
    let FaultPlace::Memory { key, address, len, before: 0, after, last: true } = fault.place else {
        panic!("{fault:?}");
    };
    (key, (address - BASE) as usize / PAGE, len as usize / PAGE, after as usize / PAGE)
}

/// A driver that brings what it is asked for hears of a message once.
#[test]
pub(crate) fn pages_are_asked_for_ahead() {
    everywhere(|paged| {
        paged.fill(0, 0, &pattern(7, PAGES * PAGE));
        paged.map(0, 0..PAGES);
        let key = paged.regions[1].key;
        let sge = paged.sge(0, FROM, LEN);
        paged.pair.send(0, &SendRequest::write(1, &[sge], BASE + FROM as u64, key));
        let fault = paged.fault(1);
        assert_eq!(asked_for(&fault), (key, 0, 1, 3));
        paged.map(1, 0..4);
        paged.resume(1, &fault, false);
        paged.pair.sent_ok(0, 1);
        assert!(paged.bytes(1, FROM, LEN) == paged.bytes(0, FROM, LEN));
        // How long a message is that goes on nobody knows: pages of its buffer, as far as the region goes.
        paged.recv(1, 11, (PAGES - 2) * PAGE, 2 * PAGE);
        let sge = paged.sge(0, 0, 2 * PAGE);
        paged.pair.send(0, &SendRequest::send(2, &[sge]));
        let fault = paged.fault(1);
        assert_eq!(asked_for(&fault), (key, PAGES - 2, 1, 1));
        paged.map(1, PAGES - 2..PAGES);
        paged.resume(1, &fault, false);
        paged.pair.sent_ok(0, 2);
        paged.pair.received_ok(1, 11);
        // A message of one packet needs no more than that, and a packet may need two pages.
        paged.recv(1, 12, 6 * PAGE - 10, 3 * PAGE);
        paged.pair.send(0, &SendRequest::send(3, &[]).inline(&[0x5a; 20]));
        let fault = paged.fault(1);
        assert_eq!(asked_for(&fault), (key, 5, 2, 0));
        paged.map(1, 5..7);
        paged.resume(1, &fault, false);
        paged.pair.sent_ok(0, 3);
        paged.pair.received_ok(1, 12);
        assert_eq!(paged.bytes(1, 6 * PAGE - 10, 20), [0x5a; 20]);
        paged.stands_still();
    });
}

/// What is said late of a fault, or twice, is not taken for the next one.
#[test]
pub(crate) fn a_token_is_of_one_fault() {
    everywhere(|paged| {
        paged.fill(0, 0, &pattern(8, PAGES * PAGE));
        paged.map(0, 0..PAGES);
        let (key, sge) = (paged.regions[1].key, paged.sge(0, 0, LEN));
        paged.pair.send(0, &SendRequest::write(1, &[sge], BASE, key));
        let first = paged.fault(1);
        paged.map(1, 0..1);
        paged.resume(1, &first, false);
        let second = paged.fault(1);
        assert_ne!(first.token, second.token);
        paged.map(1, 1..3);
        for error in [true, false] {
            paged.resume(1, &first, error);
        }
        paged.stands_still();
        paged.resume(1, &second, false);
        paged.pair.sent_ok(0, 1);
        paged.resume(1, &second, true);
        assert!(paged.bytes(1, 0, LEN) == paged.bytes(0, 0, LEN));
        paged.stands_still();
    });
}

/// The adapter's own null key is no region's: nobody could bring pages of it.
#[test]
pub(crate) fn the_null_key_is_no_page_fault() {
    const LOG_BLOCK: u32 = PAGE.ilog2() + 2;
    everywhere(|paged| {
        let (home, pd) = (paged.pair.ends[1].home, paged.pair.ends[1].pd);
        let (hca, registrar) = (&mut paged.pair.hcas[home], &mut paged.registrars[home]);
        let own = registrar.register_implicit(hca, pd, LOG_BLOCK, 8, Access::ALL).expect("a region");
        let adapters = Implicit { null: Mkey(NULL_MKEY), ..own };
        registrar.map_blocks(hca, adapters, 0, [None; 4]).expect("UMR");
        paged.pair.send(0, &SendRequest::write(1, &[], 100, own.key).inline(b"x"));
        assert_eq!(paged.pair.sent(0).1.syndrome(), Some(Syndrome::RemoteAccess));
        assert_eq!(paged.poll_fault(1), None);
        let hca = &mut paged.pair.hcas[home];
        hca.free_key(own.key).expect("DESTROY_MKEY");
        hca.free_key(own.null).expect("DESTROY_MKEY");
    });
}

/// Who asks an adapter for a scheme that it does not have gets the other one.
#[test]
pub(crate) fn only_where_it_is_announced() {
    let simulation = Simulation::new(worlds::one());
    let config = Config { memory_page_faults: true, ..Config::default() };
    let hca = open_with(&simulation, 0, config);
    assert!(!hca.has_memory_page_faults());
    let mut paged =
        Paged::new(Pair::connect(vec![hca], &Options::default()).expect("the queue pairs connect"));
    let sge = paged.sge(0, 0, 100);
    paged.pair.send(0, &SendRequest::send(1, &[sge]));
    let place = FaultPlace::Wqe { index: 0 };
    let fault = paged.fault_is(0, &told(page_fault::SEND_OR_WRITE, paged.qpn(0), 0, 0, place), 0);
    paged.resume(0, &fault, true);
    assert_eq!(paged.pair.sent(0).1.syndrome(), Some(Syndrome::LocalProtection));
    paged.close();
}
