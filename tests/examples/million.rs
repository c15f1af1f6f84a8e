//! A million queue pairs and completion queues: `cargo run --release -p hca-tests --example million SERVER [TOTAL LIVE]`.

use hca_tests::million::{Plan, run};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let server = PathBuf::from(args.first().ok_or("the path of the server program is missing")?);
    let number = |i: usize, default: u32| args.get(i).map_or(Ok(default), |a| a.parse());
    let plan = Plan { total: number(1, Plan::MILLION.total)?, live: number(2, Plan::MILLION.live)? };
    let report = run(&server, plan)?;
    println!("{:#}", report.to_json());
    if report.passed() { Ok(()) } else { Err("the server's memory did not come back".into()) }
}
