//! The profile against the rows it was derived from: a number that drifts away fails here.

use super::*;
use crate::ground::timing::Profile;
use hca_spec::wire::Operation;

fn timing() -> Timing {
    Timing::new(&Profile::connectx4())
}

/// `value` lies within `percent` of `expected`.
#[track_caller]
fn near(value: f64, expected: f64, percent: f64) {
    assert!((value / expected - 1.0).abs() * 100.0 <= percent, "{value} is not {expected} +- {percent} %");
}

fn ns(time: Ps) -> f64 {
    time.0 as f64 / 1e3
}

/// Gigabits per second of `bytes` in `time`.
fn gbps(bytes: usize, time: Ps) -> f64 {
    bytes as f64 * 8.0 / ns(time)
}

#[test]
fn pcie_bandwidth_is_the_published_model_s() {
    // pcie-bench/pcie-model, Gen3 x16, MPS 256, MRRS 512: size, write Gb/s, read Gb/s.
    let pcie = timing().pcie();
    for (size, write, read) in [
        (8, 28.43, 32.49),
        (64, 82.69, 86.63),
        (256, 103.95, 105.46),
        (1500, 103.74, 105.28),
        (4096, 103.95, 105.46),
    ] {
        near(gbps(size, pcie.write(size)), write, 0.2);
        near(gbps(size, pcie.completion(size)), read, 0.2);
    }
    assert!(pcie.request(4096) < pcie.completion(4096));
}

#[test]
fn pcie_latencies() {
    let t = timing();
    assert_eq!((t.dma_read(0), t.dma_write(0)), (Ps::ZERO, Ps::ZERO));
    // NEOHOST, idle: 372 to 488 ns.
    assert!((372.0..488.0).contains(&ns(t.dma_read(64))));
    assert!(t.dma_read(4096) > t.dma_read(64));
    assert!(t.dma_write(64) < t.dma_read(64), "posted");
}

/// One pass: a packet of 2 bytes of payload from its WQE or response to its being understood, in the same adapter.
fn pass(t: &Timing, operation: Operation) -> f64 {
    let begin = if operation.is_response() { t.respond() } else { t.wqe() };
    ns(begin + t.transmit() + t.profile().send.pipeline_ns.0 + t.loopback() + t.receive(operation, 2))
}

#[test]
fn loopback_latencies_of_two_bytes() {
    let t = Timing::new(&Profile::named("connectx5").unwrap());
    // What a polling program needs between message and answer.
    let host = 80.0;
    let write = ns(t.doorbell()) + pass(&t, Operation::WriteOnly) + ns(t.dma_write(2)) + host;
    near(write, 780.0, 3.0); // CX5A
    let completion = ns(t.profile().receive.wqe_ns.0 + t.profile().completion.cqe_ns.0);
    let send = write + completion + ns(t.profile().receive.write_ns.0);
    near(send, 880.0, 3.0); // CX5A
    let read = write + ns(t.dma_read(2)) + pass(&t, Operation::ReadResponseOnly);
    near(read, 1480.0, 3.0); // CX5A
}

/// What arrives, and whether it asks for a response, or completes a request without data.
type Arrival = (Ps, bool);

/// Operations per microsecond if each keeps the units that send busy for the sum of `sent`, and those that receive for `received`.
fn rate(t: &Timing, qps: u32, sent: &[Ps], received: &[Arrival]) -> f64 {
    const JOBS: u32 = 20_000;
    let mut units = Units::new(t);
    // Contexts are loaded when the measurement begins.
    (0..qps).for_each(|qp| _ = units.send(Ps::ZERO, qp, Ps::ZERO));
    let start = Ps::from_us(100);
    let mut last = start;
    for i in 0..JOBS {
        for service in sent {
            last = last.max(units.send(start, i % qps, *service));
        }
        for (service, more) in received {
            let inbound = Inbound { hands_on: *more, ..Inbound::default() };
            last = last.max(units.receive(start, i % qps, *service, inbound));
        }
    }
    f64::from(JOBS) * 1e3 / ns(last - start)
}

#[test]
fn message_rate_of_one_queue_pair() {
    // NVGPUOP: 5.6 M writes/s of two packets, each acknowledged.
    let t = Timing::new(&Profile::named("connectx5").unwrap());
    let pause = t.profile().send.pause_ns.0;
    let each = [t.wqe() + t.transmit().times(2) + pause];
    near(rate(&t, 1, &each, &[(t.receive(Operation::Acknowledge, 0), false)]), 5.6, 4.0);
    // Both ends keep up with a 100 Gb/s wire in long messages: 1024 bytes every 84 ns.
    assert!(ns(t.transmit()) < 84.0 && ns(t.receive(Operation::WriteMiddle, 1024)) < 84.0);
    // ATC16, Connect-IB: 9.6 M UD sends/s of one queue pair.
    let t = Timing::new(&Profile::named("connectib").unwrap());
    let pause = t.profile().send.pause_ns.0;
    near(rate(&t, 1, &[t.wqe() + t.datagram() + t.transmit() + pause], &[]), 9.6, 8.0);
}

#[test]
fn rates_of_the_whole_adapter() {
    // ATC16, Connect-IB.
    let t = Timing::new(&Profile::named("connectib").unwrap());
    let sent = t.wqe() + t.transmit();
    let response = t.receive(Operation::ReadResponseOnly, 8);
    let request = t.receive(Operation::ReadRequest, 0);
    let write = t.receive(Operation::WriteOnly, 8);
    let ack = t.receive(Operation::Acknowledge, 0);
    near(rate(&t, 84, &[sent + t.datagram()], &[]), 157.0, 2.0);
    near(rate(&t, 84, &[t.transmit()], &[(request, true)]), 121.6, 2.0);
    near(rate(&t, 84, &[], &[(write, false)]), 121.0, 2.0);
    near(rate(&t, 84, &[], &[(t.receive(Operation::SendOnly, 8), false)]), 82.0, 2.0);
    near(rate(&t, 84, &[sent], &[(response, false)]), 88.0, 2.0);
    // RSWARM: every adapter reads from every other, or writes to it, all signalled.
    near(rate(&t, 84, &[sent, t.transmit()], &[(response, false), (request, true)]), 50.3, 3.0);
    near(rate(&t, 84, &[sent], &[(ack, true), (write, false)]), 52.0, 3.0);
}

#[test]
fn wqe_reads_share_the_link() {
    // ATC16: 128-byte WQEs in batches of 16, 101.6 M/s.
    let t = Timing::new(&Profile::named("connectib").unwrap());
    let mut units = Units::new(&t);
    const FETCHES: u32 = 2_000;
    let last = (0..FETCHES).map(|i| units.fetch(Ps::ZERO, i % 14, 32)).max().unwrap();
    near(f64::from(FETCHES) * 16.0 * 1e3 / ns(last), 101.6, 3.0);
}

#[test]
fn stores_of_wqes_share_the_link() {
    // ATC16 figure 11a: WQEs by MMIO, of 2, 3 and 4 lines.
    let t = Timing::new(&Profile::named("connectib").unwrap());
    for (lines, measured) in [(2, 80.0), (3, 54.0), (4, 39.5)] {
        let mut units = Units::new(&t);
        let last = (0..2_000).map(|_| units.store(Ps::ZERO, 64 * lines)).max().unwrap() - t.doorbell();
        near(2e6 / ns(last), measured, 3.0);
    }
}

#[test]
fn atomics_on_one_address_and_on_many() {
    // CX5A: 2.166 M/s on one address.
    near(1e3 / ns(Timing::new(&Profile::named("connectx5").unwrap()).atomic()), 2.166, 2.0);
    // ATC16: 2.24 M/s on one, 52 M/s on many, locks by the low 12 bits.
    let t = Timing::new(&Profile::named("connectib").unwrap());
    for (addresses, measured) in [(1, 2.24), (4096, 52.0)] {
        let mut units = Units::new(&t);
        let last = (0..20_000u64).map(|i| units.atomic(Ps::ZERO, i as u32, i % addresses * 8)).max().unwrap();
        near(2e7 / ns(last), measured, 4.0);
    }
}

#[test]
fn registration_by_a_fetched_list() {
    // UMR: 1302.8 K/s of a ConnectX-5, whose queue pairs are many.
    let mut units = Units::new(&Timing::new(&Profile::named("connectx5").unwrap()));
    let mut last = |count: u32| {
        let list = |key| [Place { key, va: 0x1000, len: 64, page: None }].into_iter();
        (0..count).map(|qp| units.load(Ps::ZERO, qp, Ps::ZERO, list(1))).max().unwrap()
    };
    let (first, all) = (last(1), last(1000));
    near(1e9 / ns(all - first), 1302.8, 2.0);
}

#[test]
fn clocks() {
    let t = timing();
    assert_eq!(t.timer_khz(), 156_250);
    assert!(t.health_tick() < Ps::from_ms(2000), "the driver looks every 2 s");
    assert!(t.interrupt() > t.dma_write(4));
}
