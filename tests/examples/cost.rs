//! A fixed number of messages between two linked adapters in this process, for tools that count what they cost.
//!
//! ```text
//! cargo build --release -p hca-tests --example cost
//! target/release/examples/cost BYTES MESSAGES [write|read|send] [ib|roce] [check]
//! valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null target/release/examples/cost 8 320
//! ```
//!
//! Instructions per message are the difference of two runs over that of their messages. Other load does not change
//! them, as it does times; `cargo bench -p hca-tests --bench speed` has those.

use hca_driver::SendOp;
use hca_model::Ps;
use hca_model::link::Faults;
use hca_tests::pair::Options;
use hca_tests::rig;
use std::process::ExitCode;
use std::time::Instant;

/// Messages posted before the completion of the last is waited for.
const BATCH: u64 = 32;
/// Bytes of registered memory at each end.
const MEMORY: usize = 2 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| arguments.get(i).and_then(|a| a.parse::<usize>().ok());
    let (Some(len), Some(messages)) = (number(0).filter(|len| *len <= MEMORY), number(1)) else {
        eprintln!("usage: cost BYTES MESSAGES [write|read|send] [ib|roce] [check]");
        return ExitCode::from(2);
    };
    let roce = arguments.get(3).is_some_and(|ports| ports == "roce");
    let options = Options { memory: MEMORY, mtu: 5, send_blocks: 64, roce, ..Options::default() };
    let mut pair = rig::linked(&options, Faults::default(), 1);
    if arguments.get(4).is_some_and(|check| check == "check") {
        let simulation = pair.hcas[0].bus_mut().simulation().clone();
        simulation.world(|world, _| world.start_checker(Ps::from_ms(2000)));
    }
    let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
    let op = match arguments.get(2).map(String::as_str) {
        Some("read") => SendOp::Read { address, rkey },
        Some("send") => SendOp::Send { imm: None },
        _ => SendOp::Write { address, rkey, imm: None },
    };
    let batches = (messages as u64).div_ceil(BATCH);
    let start = Instant::now();
    let receives = if matches!(op, SendOp::Send { .. }) { BATCH } else { 0 };
    for _ in 0..batches {
        (0..receives).for_each(|i| pair.recv(1, i, 0, len));
        pair.batch(BATCH, op, len);
        (0..receives).for_each(|i| _ = pair.received_ok(1, i));
    }
    let each = start.elapsed().as_nanos() as f64 / (batches * BATCH) as f64;
    println!("{} messages of {len} bytes, {each:.0} ns each", batches * BATCH);
    rig::close(pair);
    ExitCode::SUCCESS
}
