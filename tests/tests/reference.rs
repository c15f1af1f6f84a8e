//! The transport against a reference that knows only the rules.

use hca_tests::reference::compare;

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
