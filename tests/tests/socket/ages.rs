//! A server whose model time goes on for months and years: with the smallest dilation, 2^64 ps are over after five hours of the host's.

use std::time::Duration;

use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Bus, Config, Hca, RtsAttr, SendRequest};
use hca_model::{DUE, Ps};
use hca_tests::pair::{Options, Pair, pattern, wait_active};
use hca_tests::served::Served;

/// The smallest that a topology may have.
const DILATION: f64 = 0.001;
const TOPOLOGY: &str = "[time]\ndilation = 0.001\n[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n\
                        [[host.hca]]\n[[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n";
/// The adapter's clock runs at 156.25 MHz.
const TICK: u128 = 6_400;
/// The host's time before such a moment, at first.
const BEFORE: Duration = Duration::from_secs(2);
const LEN: usize = 20_000;

fn open(served: &Served, host: &str) -> Hca<VfioUserBus> {
    let mut hca = Hca::open(served.bus(host), Config::default()).expect("the adapter comes up");
    wait_active(&mut hca).expect("the port comes up");
    hca
}

/// The adapter's clock (PRM "Initialization segment", internal_timer_h and _l), in picoseconds.
fn clock(pair: &mut Pair<VfioUserBus>) -> u128 {
    loop {
        let [high, low, again] = [0x1000, 0x1004, 0x1000].map(|at| pair.hcas[0].bus_mut().mmio_read32(at));
        if high == again {
            return u128::from(u64::from(high) << 32 | u64::from(low)) * TICK;
        }
    }
}

/// A server that comes to that moment, in picoseconds, soon: as soon as this machine can bring adapters up before it.
fn before(moment: u128) -> (Served, Pair<VfioUserBus>) {
    let host = Duration::from_secs_f64(moment as f64 / 1e12 * DILATION);
    let mut before = BEFORE;
    loop {
        let served = Served::aged(TOPOLOGY, host - before);
        let hcas = ["a", "b"].map(|host| open(&served, host)).into();
        let rts = RtsAttr { timeout: 18, ..RtsAttr::default() };
        let options = Options { memory: 1 << 16, rts, ..Options::default() };
        let mut pair = Pair::connect(hcas, &options).expect("connect");
        if clock(&mut pair) < moment {
            return (served, pair);
        }
        before *= 4;
    }
}

/// Model time passes the moment at which its start moves, 2^64 ps, and is a century: requests are done all the while, timers have not run
/// out, the adapter's clock goes on.
#[test]
fn at_the_smallest_dilation() {
    const CENTURY: u128 = 100 * 365 * 86_400 * 1_000_000_000_000;
    for moment in [u128::from(DUE.0), 1 << 64, CENTURY] {
        let (_served, mut pair) = before(moment);
        let (mut last, mut requests) = (clock(&mut pair), 0);
        // As far behind it as it began before it.
        while last < moment + Ps::from_ms(1_000_000).0 as u128 {
            requests += 1;
            let data = pattern(requests, LEN);
            pair.fill(0, 0, &data);
            let (sge, far) = ([pair.ends[0].sge(0, LEN)], pair.ends[1].mr);
            pair.send(0, &SendRequest::write(requests, &sge, far.address, far.key));
            pair.sent_ok(0, requests);
            assert!(pair.ends[1].bytes(0, LEN) == data, "request {requests}");
            let now = clock(&mut pair);
            assert!(now > last, "{now} ps behind {last}");
            last = now;
        }
        assert!(requests > 10, "{requests}");
        pair.close().expect("teardown");
    }
}
