//! One tenant of a server does anything, another works: a few rounds of fixed seeds. `hca-tests tenants --minutes 10` looks
//! further.

use hca_tests::tenants::{Options, run};

#[test]
fn a_tenant_that_does_anything_disturbs_nobody() {
    let done = run(&Options { rounds: 9, steps: 300, ..Options::default() }).expect("the servers come up");
    let done = done.unwrap_or_else(|finding| panic!("{finding}"));
    // What the attacker did got somewhere: on the switch, by the tunnel, and in a worker of its own.
    for reached in &done.reached {
        assert!(reached.commands > 1000 && reached.done > 50 && reached.packets > 100, "{reached:?}");
        assert!(reached.diagnoses > 100, "{reached:?}");
    }
    let tunnel = done.reached[1];
    assert!(tunnel.tunnelled > 50 && tunnel.unauthenticated > 0, "{tunnel:?}");
    assert!(tunnel.replayed > 0 && tunnel.strangers > 0, "{tunnel:?}");
}
