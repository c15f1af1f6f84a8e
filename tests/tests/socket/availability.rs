//! What one host's work costs another: register accesses don't wait for the simulation of somebody else's traffic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Bus, Config, Hca, RtsAttr, SendRequest};
use hca_tests::pair::{Options, Pair};
use hca_tests::served::Served;

/// The neighbours are on adapters of their own, without a link to the busy one.
const TOPOLOGY: &str = "
[[host]]
name = \"busy\"
[[host.hca]]
[[host]]
name = \"neighbour\"
[[host.hca]]
";

fn busy(served: &Served, options: &Options) -> Pair<VfioUserBus> {
    let hca = Hca::open(served.bus("busy"), Config::default()).expect("the adapter comes up");
    Pair::connect(vec![hca], options).expect("connect")
}

/// Reads a register of the neighbour's adapter over and over while `work` goes on. Returns how long the work took, and the
/// longest read.
fn read_while(served: &Served, work: impl FnOnce()) -> (Duration, Duration) {
    let mut bus = served.bus("neighbour");
    let over = AtomicBool::new(false);
    let start = Instant::now();
    let longest = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let start = Instant::now();
                assert_ne!(bus.mmio_read32(0), u32::MAX, "the firmware's version");
                longest = longest.max(start.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            longest
        });
        work();
        over.store(true, Ordering::Relaxed);
        reader.join().expect("the reader")
    });
    (start.elapsed(), longest)
}

#[test]
fn a_burst_of_large_writes_does_not_hold_a_neighbours_registers() {
    const SIZE: usize = 1 << 20;
    let served = Served::start(TOPOLOGY);
    let options = Options { memory: SIZE, mtu: 1, send_blocks: 1024, cqes: 1024, ..Options::default() };
    let mut pair = busy(&served, &options);
    let (took, longest) = read_while(&served, || {
        let (near, far) = ([pair.ends[0].sge(0, SIZE)], pair.ends[1].mr);
        for i in 0..100 {
            let request = SendRequest::write(i, &near, far.address, far.key);
            pair.ends[0].qp.queue_send(&request).expect("queue_send");
        }
        pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
        for i in 0..100 {
            pair.sent_ok(0, i);
        }
    });
    assert!(longest < took / 2, "a register read took {longest:?} of {took:?} that the burst needed");
    pair.close().expect("teardown");
}

/// More is due than can be simulated, for ever: what the adapter's timers ask for outruns the host's clock.
#[test]
fn timers_that_outrun_the_clock_do_not_hold_anybody() {
    const PAIRS: usize = 10;
    const READS: usize = 100;
    let served = Served::start(TOPOLOGY);
    // The shortest time that a responder can ask for, and retries for ever.
    let rts = RtsAttr { rnr_retries: 7, ..RtsAttr::default() };
    let options = Options { rts, rnr_timer: 1, ..Options::default() };
    let mut pair = busy(&served, &options);
    let mut others = Vec::new();
    for _ in 1..PAIRS {
        let hca = vec![pair.hcas.remove(0)];
        let mut next = Pair::connect(hca, &options).expect("connect");
        pair.hcas.push(next.hcas.remove(0));
        others.push(next.ends);
    }
    let hca = &mut pair.hcas[0];
    for ends in others.iter_mut().chain([&mut pair.ends]) {
        let sge = [ends[0].sge(0, 8)];
        ends[0].qp.post_send(hca.bus_mut(), &SendRequest::send(1, &sge)).expect("post_send");
    }
    // Reads of the neighbour and of the guest itself are answered; that they end is what is asserted.
    let mut neighbour = served.bus("neighbour");
    for _ in 0..READS {
        assert_ne!(neighbour.mmio_read32(0), u32::MAX);
        assert_ne!(pair.hcas[0].bus_mut().mmio_read32(0), u32::MAX);
    }
    let lag = || served.ask("stat")["lag_ns"].as_u64().expect("how far the model is behind");
    assert!(lag() > 0, "there is more to do than can be simulated");
    // It is made up for when there is nothing left to do.
    pair.hcas[0].bus_mut().reset().expect("reset");
    assert!((0..100_000).any(|_| lag() == 0));
}
