//! A few histories of every service under every fault; `hca-tests suites netsim` plays them all.

use hca_tests::netsim::{self, Fault, Report, Service};
use std::collections::HashMap;

#[test]
fn a_few_histories_of_each() {
    let mut reports: HashMap<(Service, Fault), Report> = HashMap::new();
    for cell in netsim::fast() {
        match netsim::run(&cell, 1) {
            Ok(report) => reports.entry((cell.service, cell.fault)).or_default().add(&report),
            Err(failure) => panic!("{failure}"),
        }
    }
    // Nothing of this is vacuous: messages came through, packets were spoilt, connections gave up.
    for ((service, fault), report) in reports {
        assert!(report.delivered > 0 && report.completed > 0, "{service:?} {fault:?}: {report:?}");
        let spoils = matches!(fault, Fault::Corrupt | Fault::Inside | Fault::Mix);
        assert_eq!(report.refused > 0, spoils, "{service:?} {fault:?}: {report:?}");
        assert!(fault != Fault::Storm || report.gave_up > 0, "{service:?} {fault:?}: {report:?}");
    }
}

/// The same seed is the same history, event by event; another seed is another one, and so are the same requests when other
/// packets are spoilt.
#[test]
fn a_seed_is_a_history() {
    let mut cells = vec!["rc/mix/several/all-3", "uc/reorder/mtu+1/pairs-2", "ud/mix/mtu/ring-3"];
    cells.extend(["rc/storm/mtu+1/ring-3", "uc/corrupt-inside/several/all-3", "rc/delay/several/pairs-2"]);
    for cell in cells.into_iter().map(|cell| cell.parse().expect("a cell")) {
        let traced =
            |seed, faults| netsim::traced(&cell, seed, faults).unwrap_or_else(|failure| panic!("{failure}"));
        let first = traced(1, 0);
        assert!(first.events > 1000, "{cell}: a hash of something: {first:?}");
        assert_eq!(first, traced(1, 0), "{cell}");
        assert_ne!(first.hash, traced(2, 0).hash, "{cell}: another seed");
        let spoilt = traced(1, 7);
        assert_ne!(first.hash, spoilt.hash, "{cell}: other faults");
        assert_eq!(
            first.report,
            netsim::run(&cell, 1).expect("the same history"),
            "{cell}: looking on changes nothing"
        );
    }
}
