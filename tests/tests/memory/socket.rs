//! Many objects over a vfio-user socket: the small brother of `hca_tests::million::run`, with the server in this process.

use hca_driver::{Config, Hca};
use hca_tests::million::{Ground, Kind, churn, create, destroy};
use hca_tests::served::Served;

use super::{ALLOCATOR, alone};

/// Objects of each kind.
const TOTAL: u32 = 20_000;
/// Of those, how many exist at a time.
const LIVE: u32 = 5000;
/// Buffers of the socket and notes of the driver may differ by this much; the objects take many times that.
const SLACK: usize = 128 << 10;

#[test]
fn what_is_destroyed_leaves_nothing_in_the_server() {
    let _alone = alone();
    let served = Served::start("[[host]]\nname = \"a\"\n[[host.hca]]\n");
    let mut hca = Hca::open(served.bus("a"), Config::default()).expect("the adapter comes up");
    let ground = Ground::new(&mut hca).expect("an event queue and the like");
    for kind in [Kind::Qp, Kind::Cq] {
        churn(&mut hca, &ground, kind, LIVE, LIVE).expect("create and destroy");
        let before = ALLOCATOR.allocated();
        churn(&mut hca, &ground, kind, TOTAL, LIVE).expect("create and destroy");
        let after = ALLOCATOR.allocated();
        assert!(after <= before + SLACK, "{kind:?}: {before} bytes before, {after} after");
        let numbers = create(&mut hca, &ground, kind, LIVE).expect("create");
        assert!(ALLOCATOR.allocated() > before + SLACK, "what the objects take would not be seen");
        destroy(&mut hca, kind, &numbers).expect("destroy");
    }
    ground.destroy(&mut hca).expect("destroy");
    let bus = hca.close().expect("teardown");
    assert_eq!(bus.error(), None);
}
