//! Writes the manual pages and completions of `softhca`: `cargo run -p softhca --example softhca-pages -- DIR`.
#![allow(dead_code, unused_imports)] // the program's files, of which only the command line is used

#[path = "../src/cli.rs"]
mod cli;
#[path = "../src/confine.rs"]
mod confine;
#[path = "../src/coverage.rs"]
mod coverage;
#[path = "../src/ctl.rs"]
mod ctl;
#[path = "../src/diagnoses.rs"]
mod diagnoses;
#[path = "../src/firmware_image.rs"]
mod firmware_image;
#[path = "../src/inspect.rs"]
mod inspect;
#[path = "../src/log.rs"]
mod log;
#[path = "../../../packaging/pages.rs"]
mod pages;
#[path = "../src/proxy.rs"]
mod proxy;
#[path = "../src/replay.rs"]
mod replay;
#[path = "../src/report.rs"]
mod report;
#[path = "../src/sim.rs"]
mod sim;
#[path = "../src/sim_host.rs"]
mod sim_host;
#[path = "../src/stat.rs"]
mod stat;
#[path = "../src/syndrome.rs"]
mod syndrome;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("the folder to write to is needed")?;
    pages::write(<cli::Cli as clap::CommandFactory>::command(), folder.as_ref())
}
