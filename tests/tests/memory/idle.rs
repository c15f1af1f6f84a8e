//! An idle object of an adapter in this process.

use std::any::Any;

use hca_driver::qp::{Path, QpConfig};
use hca_driver::{Config, CqConfig, Hca, InitAttr, RtrAttr, RtsAttr, SendOp, SendRequest};
use hca_firmware::object::Kind as Object;
use hca_model::HcaId;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::million::{Ground, Kind, churn, create, destroy};
use hca_tests::pair::{PORT, wait_active};
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

/// Adapters that nobody uses, two at each cable: what one costs does not depend on how many there are.
#[test]
fn idle_adapters_cost_little_and_each_the_same() {
    const MOST: usize = 64 << 10;
    let _alone = alone();
    let each = |adapters: usize| {
        let cable = |i| worlds::cable(HcaId(2 * i), HcaId(2 * i + 1));
        let links = (0..adapters / 2).map(cable).collect();
        let before = ALLOCATOR.allocated();
        let world = worlds::many(adapters, links, 1);
        let each = (ALLOCATOR.allocated() - before) / adapters;
        drop(world);
        (each, ALLOCATOR.allocated() as isize - before as isize)
    };
    // Once before: profiles are read, tables that all share are made.
    each(2);
    let ((few, _), (many, left)) = (each(64), each(1024));
    assert!(left <= 0, "they leave {left} bytes");
    println!("an adapter: {few} bytes of 64, {many} of 1024");
    assert!(many < MOST && many <= few + few / 10, "{few} bytes of 64, {many} of 1024");
}

/// What a host's objects cost the server is bounded by the pages that it gives for them: of each kind, the objects in use
/// cost no more than the ICM that they are charged.
#[test]
fn objects_cost_no_more_than_they_are_charged() {
    const EACH: usize = 1000;
    let _alone = alone();
    let mut hca = adapter(256 << 20);
    wait_active(&mut hca).expect("the port");
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let mut cq = hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
    let lid = hca.lid(PORT).expect("PortInfo");
    let mut measure = |kind: Object, make: &mut dyn FnMut(&mut Hca<ModelBus>) -> Box<dyn Any>| {
        // Once before, so that tables have their size.
        for i in 0..2 {
            let mut made = Vec::with_capacity(EACH);
            let before = ALLOCATOR.allocated();
            made.extend((0..EACH).map(|_| make(&mut hca)));
            let each = (ALLOCATOR.allocated() - before) / EACH;
            let charged = kind.icm_bytes() as usize;
            println!("{kind:?}: {each} bytes, {charged} charged");
            // The driver's own notes are counted too.
            assert!(
                i == 0 || each <= charged + size_of_val(&*made[0]) + 64,
                "{kind:?}: {each} of {charged} bytes"
            );
        }
    };
    measure(Object::Pd, &mut |hca| Box::new(hca.alloc_pd().expect("ALLOC_PD")));
    measure(Object::Xrcd, &mut |hca| Box::new(hca.alloc_xrcd().expect("ALLOC_XRCD")));
    measure(Object::Psv, &mut |hca| Box::new(hca.create_psvs(pd, 1).expect("CREATE_PSV")));
    measure(Object::Mkey, &mut |hca| Box::new(hca.register_all(pd).expect("CREATE_MKEY")));
    measure(Object::Srq, &mut |hca| Box::new(hca.create_srq(pd, 4, 1).expect("CREATE_RMP")));
    measure(Object::Cq, &mut |hca| Box::new(hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ")));
    measure(Object::Qp, &mut |hca| {
        let config = QpConfig { send_blocks: 4, recv_requests: 4, ..QpConfig::rc(pd, &cq, &cq) };
        let mut qp = hca.create_qp(&config).expect("CREATE_QP");
        let own = qp.number();
        hca.qp_to_init(&mut qp, &InitAttr::default()).expect("INIT");
        hca.qp_to_rtr(&mut qp, &RtrAttr::new(own, Path::lid(lid))).expect("RTR");
        hca.qp_to_rts(&mut qp, &RtsAttr::default()).expect("RTS");
        qp.post_send(hca.bus_mut(), &SendRequest::new(1, SendOp::Nop, &[])).expect("post_send");
        let done = (0..1000).find_map(|_| {
            hca.wait(None);
            cq.poll()
        });
        qp.finish(&done.expect("a completion"));
        Box::new(qp)
    });
}
