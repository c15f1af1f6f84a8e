//! The profile against the rows it was derived from: a number that drifts away fails here.

use super::*;

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

/// One pass: a request from its WQE to its being understood, in the same adapter. A packet of 2 bytes
/// of payload is 42 + 4 bytes long with an RETH.
fn pass(t: &Timing) -> f64 {
    const PACKET: usize = 46;
    ns(t.wqe() + t.transmit(PACKET) + t.loopback() + t.receive(PACKET))
}

#[test]
fn loopback_latencies_of_two_bytes() {
    let t = timing();
    let polling = 80.0;
    let write = ns(t.doorbell()) + pass(&t) + ns(t.dma_write(2)) + polling;
    near(write, 780.0, 3.0); // CX5A
    let send = write + ns(t.receive_wqe() + t.cqe());
    near(send, 880.0, 3.0); // CX5A
    let response = ns(t.respond() + t.dma_read(2) + t.transmit(34) + t.loopback() + t.receive(34));
    near(write + response, 1480.0, 3.0); // CX5A READ
}

#[test]
fn message_rate_of_one_queue_pair() {
    let t = timing();
    // NVGPUOP: 7.0 M writes/s up to 1024 bytes.
    near(1e3 / ns(t.wqe() + t.transmit(46)), 7.0, 2.0);
    // CX5A: 11660 MiB/s of long writes in loopback at MTU 1024.
    let mib_per_s = 1024.0 / ns(t.transmit(1024 + 26)) * 1e9 / f64::from(1 << 20);
    near(mib_per_s, 11660.0, 3.0);
    // Long messages at MTU 1024 keep up with a 100 Gb/s wire: 1050 bytes in 84 ns.
    assert!(ns(t.transmit(1050)) <= 84.0);
}

#[test]
fn rates_of_the_whole_adapter() {
    let t = timing();
    let mut units = t.units();
    const PACKETS: u64 = 16_000;
    let received = (0..PACKETS).map(|_| units.receive.admit(Ps::ZERO, t.receive(30))).max().unwrap();
    near(PACKETS as f64 * 1e3 / ns(received), 121.6, 2.0); // ATC16 inbound READ
    let sent = (0..PACKETS).map(|_| units.transmit.admit(Ps::ZERO, t.wqe() + t.transmit(46))).max().unwrap();
    let rate = PACKETS as f64 * 1e3 / ns(sent);
    assert!((105.0..157.0).contains(&rate), "{rate} M/s is outside of the neighbours' 105 to 157");
}

#[test]
fn reads_under_load_share_tags_and_link() {
    let t = timing();
    // One read on an idle adapter takes what the plain sum says.
    assert_eq!(t.units().dma_read(Ps::from_us(1), 64), Ps::from_us(1) + t.dma_read(64));
    // 128-byte WQE reads back to back: ATC16 measured 101.6 M/s, 105 by its arithmetic.
    let mut units = t.units();
    const READS: u64 = 10_000;
    let last = (0..READS).map(|_| units.dma_read(Ps::ZERO, 128)).max().unwrap();
    near(READS as f64 * 1e3 / ns(last), 98.0, 5.0);
    // Large reads reach the link's rate.
    let mut units = t.units();
    let last = (0..1000).map(|_| units.dma_read(Ps::ZERO, 4096)).max().unwrap();
    near(gbps(4096 * 1000, last), 105.46, 2.0);
    // A read beyond all tags ends, and a read of nothing takes no time.
    assert!(t.units().dma_read(Ps::ZERO, 1 << 30) > Ps::from_ms(80));
    assert_eq!(units.dma_read(Ps(7), 0), Ps(7));
}

#[test]
fn writes_queue_but_their_latency_overlaps() {
    let t = timing();
    let mut units = t.units();
    let first = units.dma_write(Ps::ZERO, 256);
    assert_eq!(first, t.dma_write(256));
    assert_eq!(units.dma_write(Ps::ZERO, 256), first + t.pcie().write(256));
    assert_eq!(units.dma_write(Ps(3), 0), Ps(3));
}

#[test]
fn atomics_on_one_address() {
    // CX5A: 2.166 M/s on one address. ATC16: 52 M/s on many, locks by the low 12 bits.
    let t = timing();
    near(1e3 / ns(t.atomic()), 2.166, 2.0);
    near(1e3 / ns(t.atomic_issue()), 52.0, 1.0);
    assert_eq!(t.atomic_bucket(0x1234_5008), t.atomic_bucket(0x8));
    assert_ne!(t.atomic_bucket(0x10), t.atomic_bucket(0x8));
}

#[test]
fn registration_by_a_fetched_list() {
    // UMR: 768 ns on a ConnectX-5.
    let t = timing();
    near(ns(t.umr() + t.dma_read(64)), 768.0, 2.0);
}

#[test]
fn command_classes_follow_the_verbs() {
    for (opcode, class) in [
        (Opcode::QueryHcaCap, CommandClass::Query),
        (Opcode::CreateMkey, CommandClass::Create),
        (Opcode::DestroyMkey, CommandClass::Destroy),
        (Opcode::Rst2InitQp, CommandClass::Modify),
        (Opcode::ModifyCq, CommandClass::Modify),
        (Opcode::SetIssi, CommandClass::Modify),
        (Opcode::ManagePages, CommandClass::Pages),
        (Opcode::InitHca, CommandClass::Lifecycle),
        (Opcode::MadIfc, CommandClass::Mad),
        (Opcode::GenEqe, CommandClass::Other),
    ] {
        assert_eq!(CommandClass::of(opcode as u16), class, "{opcode:?}");
    }
    assert_eq!(CommandClass::of(0xffff), CommandClass::Other);
    let t = timing();
    assert!(t.command(Opcode::CreateMkey as u16, 4096) > t.command(Opcode::CreateMkey as u16, 0));
}

#[test]
fn clocks() {
    let t = timing();
    assert_eq!(t.timer_khz(), 156_250);
    assert!(t.health_tick() < Ps::from_ms(2000), "the driver looks every 2 s");
    assert!(t.interrupt() > t.dma_write(4));
}
