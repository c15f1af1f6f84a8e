//! What one host's work costs another: register accesses don't wait for the simulation of somebody else's traffic.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Bus, Config, Hca, RtsAttr, SendRequest};
use hca_tests::pair::{End, Options, Pair};
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

/// A client that posts stores as QEMU does, without waiting.
struct Poster(UnixStream);

impl Poster {
    fn connect(served: &Served, host: &str) -> Self {
        let mut poster = Self(UnixStream::connect(served.socket(host)).expect("the socket listens"));
        // VERSION, 0.1, without capabilities.
        poster.say(1, 0, &[0, 0, 1, 0, b'{', b'}', 0]);
        poster.reply();
        poster
    }

    fn say(&mut self, command: u16, flags: u32, payload: &[u8]) {
        let mut bytes = [7u16.to_le_bytes(), command.to_le_bytes()].concat();
        for word in [payload.len() as u32 + 16, flags, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(payload);
        self.0.write_all(&bytes).expect("the server listens");
    }

    /// The payload of a reply.
    fn reply(&mut self) -> Vec<u8> {
        let mut header = [0; 16];
        self.0.read_exact(&mut header).expect("a reply");
        let size = u32::from_le_bytes(*header[4..].first_chunk().expect("a header is longer"));
        let mut payload = vec![0; size as usize - 16];
        self.0.read_exact(&mut payload).expect("a whole reply");
        payload
    }

    /// REGION_WRITE of a word of BAR0 without a reply, or REGION_READ of one.
    fn access(&mut self, offset: u64, store: Option<u32>) {
        let mut payload = offset.to_le_bytes().to_vec();
        payload.extend([0u32.to_le_bytes(), 4u32.to_le_bytes()].concat());
        payload.extend(store.iter().flat_map(|value| value.to_be_bytes()));
        match store {
            Some(_) => self.say(10, 1 << 4, &payload),
            None => self.say(9, 0, &payload),
        }
    }
}

/// Ten queue pairs whose peers are never ready: more is due than can be simulated, for ever.
fn never_ready(served: &Served) -> (Pair<VfioUserBus>, Vec<[End<VfioUserBus>; 2]>) {
    const PAIRS: usize = 10;
    // The shortest time that a responder can ask for, and retries for ever.
    let rts = RtsAttr { rnr_retries: 7, ..RtsAttr::default() };
    let options = Options { rts, rnr_timer: 1, ..Options::default() };
    let mut pair = busy(served, &options);
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
    (pair, others)
}

/// Stores that a host has posted wait in its socket, and its reads behind them: where the model is slower than the clock, too, many of
/// them are taken in a round of the engine.
#[test]
fn posted_stores_do_not_pile_up_behind_a_slow_model() {
    const STORES: u64 = 1000;
    let served = Served::start(TOPOLOGY);
    let (mut pair, _others) = never_ready(&served);
    let mut poster = Poster::connect(&served, "neighbour");
    let rounds = || served.ask("stat")["engine"]["rounds"].as_u64().expect("rounds of the engine");
    let before = rounds();
    for i in 0..STORES {
        // The address of the command queue, upper half.
        poster.access(0x10, Some(i as u32));
    }
    poster.access(0x10, None);
    assert_eq!(poster.reply().last_chunk(), Some(&(STORES as u32 - 1).to_be_bytes()));
    let took = rounds() - before;
    assert!(served.ask("stat")["lag_ns"].as_u64() > Some(0), "there is more to do than can be simulated");
    assert!(took < STORES / 8, "{STORES} stores took {took} rounds");
    pair.hcas[0].bus_mut().reset().expect("reset");
}

/// More is due than can be simulated, for ever: what the adapter's timers ask for outruns the host's clock.
#[test]
fn timers_that_outrun_the_clock_do_not_hold_anybody() {
    const READS: usize = 100;
    let served = Served::start(TOPOLOGY);
    let (mut pair, _others) = never_ready(&served);
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
