//! An idle object of an adapter in this process.

use hca_driver::{Config, Hca};
use hca_model::HcaId;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::million::{Ground, Kind, churn, create, destroy};
use hca_tests::worlds;

use super::{ALLOCATOR, alone};

/// Bytes that an idle object may cost, whatever it is.
const MOST: usize = 512;
/// Objects that are made to measure one.
const COUNT: u32 = 20_000;
/// The driver's own notes about pages and mailboxes may differ by this much.
const SLACK: usize = 64 << 10;

fn adapter(memory: usize) -> Hca<ModelBus> {
    let simulation = Simulation::new(worlds::one());
    Hca::open(simulation.bus(HcaId(0), memory), Config::default()).expect("the adapter comes up")
}

#[test]
fn idle_objects_cost_little_and_leave_nothing() {
    let _alone = alone();
    let mut hca = adapter(64 << 20);
    let ground = Ground::new(&mut hca).expect("an event queue and the like");
    for kind in [Kind::Cq, Kind::Qp] {
        // Once before, so that the firmware has its pages and the queues of the simulation their size.
        churn(&mut hca, &ground, kind, COUNT, COUNT).expect("create and destroy");
        let before = ALLOCATOR.allocated();
        let numbers = create(&mut hca, &ground, kind, COUNT).expect("create");
        let numbers_themselves = numbers.capacity() * size_of::<u32>();
        let each = (ALLOCATOR.allocated() - before - numbers_themselves) / COUNT as usize;
        println!("{kind:?}: {each} bytes");
        assert!((64..MOST).contains(&each), "{kind:?}: {each} bytes");
        destroy(&mut hca, kind, &numbers).expect("destroy");
        drop(numbers);
        let after = ALLOCATOR.allocated();
        assert!(after <= before + SLACK, "{kind:?}: {before} bytes before, {after} after");
    }
    ground.destroy(&mut hca).expect("destroy");
    hca.close().expect("teardown");
}
