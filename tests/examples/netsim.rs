//! Plays histories of the simulated networks.
//!
//! ```text
//! cargo run --release -p hca-tests --example netsim               the whole matrix, seed 1
//! cargo run --release -p hca-tests --example netsim -- CELL       one cell, seed 1
//! cargo run --release -p hca-tests --example netsim -- CELL SEED  one history
//! cargo run --release -p hca-tests --example netsim -- all FIRST COUNT
//! ```
//!
//! `RUST_LOG=hca_model=debug` says what the adapters think of it.

use hca_tests::netsim::{self, Cell, Report};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| arguments.get(i).and_then(|a| a.parse::<u64>().ok());
    let (first, count) = (number(1).unwrap_or(1), number(2).unwrap_or(1));
    let cells: Vec<Cell> = match arguments.first().map(String::as_str) {
        None | Some("all") => netsim::matrix(),
        Some("fast") => netsim::fast(),
        Some(name) => match name.parse() {
            Ok(cell) => vec![cell],
            Err(why) => {
                eprintln!("netsim: {why}");
                return ExitCode::from(2);
            }
        },
    };
    let start = Instant::now();
    let (mut failed, mut total) = (0, Report::default());
    for seed in first..first + count {
        for cell in &cells {
            match netsim::run(cell, seed) {
                Ok(report) if cells.len() == 1 => println!("{cell}, seed {seed}: {report:?}"),
                Ok(report) => total.add(&report),
                Err(failure) => {
                    failed += 1;
                    println!("{failure}");
                }
            }
        }
    }
    let cases = cells.len() as u64 * count;
    println!("{cases} cases, {} passed, {failed} failed, {:.1?}; {total:?}", cases - failed, start.elapsed());
    ExitCode::from(u8::from(failed > 0))
}
