//! What the server's sandbox costs on the way of a message: reads of a register, with it and without, in turns.
//!
//! ```text
//! cargo build --release -p softhca && cargo run --release -p hca-tests --example sandbox_cost [ROUNDS] [READS]
//! ```
//!
//! A read is a message of a client and its answer: three or four system calls of the server. Both servers run all the time, and
//! their rounds alternate, so that both see what else the machine does. What a read takes of the clock, and what the server takes
//! of a processor for it: of 100 rounds the 10th and the 50th.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use hca_driver::Bus;
use hca_driver::vfio_user::VfioUserBus;
use hca_tests::suites::adversary::stage::Scratch;
use hca_vm::server::{Binary, Server};

const TOPOLOGY: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n";

/// One of the two.
struct Side {
    server: Server,
    bus: VfioUserBus,
    /// Nanoseconds of a read, for each round: by the clock, and of the server's processor.
    times: [Vec<f64>; 2],
}

impl Side {
    fn start(dir: &Path, name: &str, arguments: &[String]) -> Result<Self, Box<dyn Error>> {
        let topology = dir.join("topology.toml");
        std::fs::write(&topology, TOPOLOGY)?;
        let (run, log) = (dir.join(name), dir.join(format!("{name}.log")));
        let server = Server::start(&Binary::find()?, &topology, None, arguments, (&run, &log))?;
        let bus = VfioUserBus::connect(&run.join("a-hca0.sock"), 1 << 20, 1)?;
        Ok(Self { server, bus, times: Default::default() })
    }

    /// Nanoseconds that the server's first thread has had a processor ("schedstat", proc(5)).
    fn busy(&self) -> u64 {
        let text =
            std::fs::read_to_string(format!("/proc/{}/schedstat", self.server.id())).unwrap_or_default();
        text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
    }

    fn round(&mut self, reads: u32) {
        let (start, busy) = (Instant::now(), self.busy());
        for _ in 0..reads {
            std::hint::black_box(self.bus.mmio_read32(0));
        }
        let took = [start.elapsed().as_nanos() as f64, self.busy().saturating_sub(busy) as f64];
        self.times.iter_mut().zip(took).for_each(|(times, took)| times.push(took / f64::from(reads)));
    }

    /// The values below which 10 and 50 of 100 rounds are, of each kind.
    fn quantiles(&mut self) -> [[f64; 2]; 2] {
        self.times.each_mut().map(|times| {
            times.sort_by(f64::total_cmp);
            let last = times.len().saturating_sub(1);
            [10, 50].map(|percent| times.get(last * percent / 100).copied().unwrap_or(f64::NAN))
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<u32> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let rounds = numbers.first().copied().unwrap_or(200);
    let reads = numbers.get(1).copied().unwrap_or(2000);
    let dir = Scratch::new()?;
    let mut inside = Side::start(dir.path(), "inside", &[])?;
    let mut outside = Side::start(dir.path(), "outside", &["--no-sandbox".into()])?;
    for round in 0..rounds {
        let (first, second) =
            if round % 2 == 0 { (&mut inside, &mut outside) } else { (&mut outside, &mut inside) };
        first.round(reads);
        second.round(reads);
    }
    let sides = [inside.quantiles(), outside.quantiles()];
    println!("{:<28}{:>14}{:>14}{:>10}", "ns of a read", "in the sandbox", "without", "");
    for (kind, what) in ["clock", "server's processor"].iter().enumerate() {
        for (quantile, of) in ["10th", "50th"].iter().enumerate() {
            let [inside, outside] = sides.map(|side| side[kind][quantile]);
            let more = (inside / outside - 1.0) * 100.0;
            println!("{:<28}{inside:>14.0}{outside:>14.0}{more:>+8.1} %", format!("{what}, {of} of 100"));
        }
    }
    Ok(())
}
