//! How fast the model itself is: `cargo bench -p hca-tests --bench speed`.
//!
//! - `events`: the event heap alone: events per second at a depth as with thousands of queue pairs.
//! - `virtual`: whole scenarios in virtual time on one core: packets at ports per second of the host.
//! - `messages`: small messages through our driver and the model in this process.
//! - `live`: payload moved from one host's memory to another's over a link, and within one host through its own adapter,
//!   by our driver and the model in this process, beside a plain copy of the same bytes in the same run: the ratio is
//!   what to compare between machines.
//!
//! What is measured is processor time of this thread, which does everything: other load makes little difference.

#![allow(missing_docs, reason = "criterion_group makes a public function")]

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hca_driver::{SendOp, SendRequest};
use hca_model::link::Faults;
use hca_model::time::{EventHeap, Owned, Source};
use hca_model::{HcaId, Ps};
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, Pair};
use hca_tests::rig;
use nix::time::{ClockId, clock_gettime};

/// Messages posted before the completion of the last is waited for.
const BATCH: u64 = 32;

/// Processor time of this thread.
struct CpuTime(WallTime);

impl CpuTime {
    fn now() -> Duration {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock");
        Duration::from(time)
    }
}

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;
    fn start(&self) -> Duration {
        Self::now()
    }
    fn end(&self, start: Duration) -> Duration {
        Self::now().saturating_sub(start)
    }
    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }
    fn zero(&self) -> Duration {
        Duration::ZERO
    }
    fn to_f64(&self, value: &Duration) -> f64 {
        self.0.to_f64(value)
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        self.0.formatter()
    }
}

fn options() -> Options {
    Options { memory: 2 << 20, mtu: 5, send_blocks: 64, ..Options::default() }
}

fn linked() -> Pair<ModelBus> {
    rig::linked(&options(), Faults::default(), 1)
}

/// Packets at both ports so far.
fn packets(pair: &mut Pair<ModelBus>) -> u64 {
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let of = |i| simulation.world(|w, _| w.counters(HcaId(i)).map_or(0, |c| c.ports[0].xmit_packets));
    of(0) + of(1)
}

fn events(c: &mut Criterion<CpuTime>) {
    /// Of the size that the model's events have; one adapter's.
    struct Event([u64; 8]);
    impl Owned for Event {
        fn owner(&self) -> Option<usize> {
            self.0.get(1).map(|_| 0)
        }
    }
    const EVENTS: u64 = 100_000;
    let mut group = c.benchmark_group("events");
    group.throughput(Throughput::Elements(EVENTS));
    for depth in [16u64, 4096] {
        group.bench_function(format!("{depth} waiting"), |b| {
            let mut heap: EventHeap<Event> = EventHeap::default();
            let mut random = 1u64;
            let mut delay = move || {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                Ps(random >> 44)
            };
            (0..depth).for_each(|i| heap.push(delay(), Source::default(), Event([i; 8])));
            b.iter(|| {
                for _ in 0..EVENTS {
                    if let Some((at, event)) = heap.pop_until(Ps::MAX) {
                        heap.push(at + delay(), Source::default(), black_box(event));
                    }
                }
            });
        });
    }
    group.finish();
}

fn scenarios(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("virtual");
    for (name, len) in [("8-byte writes", 8usize), ("64 KiB writes", 65536)] {
        let mut pair = linked();
        let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
        let op = SendOp::Write { address, rkey, imm: None };
        let before = packets(&mut pair);
        pair.batch(BATCH, op, len);
        let each = packets(&mut pair) - before;
        group.throughput(Throughput::Elements(each));
        group.bench_function(format!("{name}, packets"), |b| b.iter(|| pair.batch(BATCH, op, len)));
        rig::close(pair);
    }
    group.finish();
}

/// Posts a batch with one doorbell for all of it.
fn list(pair: &mut Pair<ModelBus>, op: SendOp, len: usize) {
    for i in 0..BATCH {
        let sge = [pair.ends[0].sge(0, len)];
        let request = SendRequest { signaled: i + 1 == BATCH, ..SendRequest::new(i, op, &sge) };
        assert_eq!(pair.ends[0].qp.queue_send(&request), Ok(()));
    }
    let home = pair.ends[0].home;
    pair.ends[0].qp.ring_doorbell(pair.hcas[home].bus_mut());
    pair.sent_ok(0, BATCH - 1);
}

fn messages(c: &mut Criterion<CpuTime>) {
    const LEN: usize = 8;
    let mut group = c.benchmark_group("messages of 8 B");
    group.throughput(Throughput::Elements(BATCH));
    let mut pair = linked();
    let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
    let write = SendOp::Write { address, rkey, imm: None };
    group.bench_function("RC write, a doorbell for each", |b| b.iter(|| pair.batch(BATCH, write, LEN)));
    group.bench_function("RC write, a doorbell for 32", |b| b.iter(|| list(&mut pair, write, LEN)));
    let read = SendOp::Read { address, rkey };
    group.bench_function("RC read, a doorbell for each", |b| b.iter(|| pair.batch(BATCH, read, LEN)));
    group.finish();
    rig::close(pair);
}

fn live(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("live");
    for (name, len) in [("1 KiB", 1024usize), ("4 KiB", 4096), ("64 KiB", 65536), ("1 MiB", 1 << 20)] {
        group.throughput(Throughput::Bytes(BATCH * len as u64));
        // The source changes place, as the pair's two hosts' memory does.
        let from = vec![1u8; 2 << 20];
        let mut to = vec![0u8; 2 << 20];
        group.bench_function(format!("{name} memcpy"), |b| {
            b.iter(|| {
                for _ in 0..BATCH {
                    to[..len].copy_from_slice(black_box(&from[..len]));
                    black_box(&mut to);
                }
            });
        });
        for (path, mut pair) in [("link", linked()), ("loopback", rig::loopback(&options()))] {
            let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
            let kinds = [
                ("RC write", SendOp::Write { address, rkey, imm: None }),
                ("RC read", SendOp::Read { address, rkey }),
            ];
            for (kind, op) in kinds {
                let name = format!("{name} {kind}, {path}");
                group.bench_function(name, |b| b.iter(|| pair.batch(BATCH, op, len)));
            }
            rig::close(pair);
        }
    }
    group.finish();
}

fn quick() -> Criterion<CpuTime> {
    Criterion::default()
        .with_measurement(CpuTime(WallTime))
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(20)
}

criterion_group! { name = benches; config = quick(); targets = events, scenarios, messages, live }
criterion_main!(benches);
