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

/// The same seed gives the same history.
#[test]
fn a_seed_is_a_history() {
    for cell in ["rc/mix/several/all-3", "uc/reorder/mtu+1/pairs-2", "ud/mix/mtu/ring-3"] {
        let cell = cell.parse().expect("a cell");
        let seeds = [1, 1, 2].map(|seed| netsim::run(&cell, seed));
        assert_eq!(seeds[0], seeds[1]);
    }
}
