//! The transport against a reference that knows only the rules.

use hca_tests::reference::requester::Why;
use hca_tests::reference::{answers, compare};

#[test]
fn responders_agree() {
    let (mut refused, mut messages, mut answers) = (0, 0, 0);
    for seed in 1..=300 {
        match compare::responder(seed, 80) {
            Ok(reached) => {
                refused += usize::from(reached.refused);
                messages += reached.messages;
                answers += reached.answers;
            }
            Err(what) => panic!("{what}"),
        }
    }
    // Neither all good nor all bad.
    assert!(refused > 100 && refused < 300, "{refused} of 300 runs ended with a refusal");
    assert!(messages > 1000 && answers > 3000, "{messages} messages, {answers} answers");
}

#[test]
fn requesters_agree() {
    let (mut failed, mut completed, mut again) = (Vec::new(), 0, 0);
    for seed in 1..=300 {
        match answers::requester(seed, 80) {
            Ok(reached) => {
                failed.extend(reached.failed);
                completed += reached.completed;
                again += reached.again;
            }
            Err(what) => panic!("{what}"),
        }
    }
    // Each way to fail was met, and much went well.
    for why in [
        Why::InvalidRequest,
        Why::RemoteAccess,
        Why::RemoteOperation,
        Why::BadResponse,
        Why::RetriesExceeded,
        Why::RnrRetriesExceeded,
    ] {
        assert!(failed.contains(&why), "{why:?} never happened");
    }
    assert!(failed.len() < 290, "{} of 300 runs failed", failed.len());
    assert!(completed > 2000 && again > 2000, "{completed} requests completed, {again} packets sent again");
}
