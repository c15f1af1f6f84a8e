//! The program `softhca`: logging, command line, exit code.
//!
//! [`cli`] understands the command line and calls the crates that do the work: `hca-server` serves adapters, `hca-bench`
//! measures in virtual time, `hca-trace` explains traces. [`ctl`], [`stat`], [`inspect`] and [`diagnoses`] talk to a server that runs, over its
//! control socket. [`syndrome`] explains what a driver has printed. [`replay`] runs
//! what was recorded again, [`sim`] simulates without guests. [`log`] writes messages, [`confine`] is what a server gives up.

mod cli;
mod confine;
mod coverage;
mod ctl;
mod diagnoses;
mod firmware_image;
mod inspect;
mod log;
#[cfg(test)]
#[path = "../../../packaging/pages.rs"]
mod pages;
mod proxy;
mod replay;
mod report;
mod sim;
mod sim_host;
mod stat;
mod syndrome;

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // Kept to the end: what waits is written then.
    let (log, mut end) = log::prepare(std::io::stderr());
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(log)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    let result = cli::run(cli::parse(), &mut end);
    drop(end);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // What a shell says of a program that SIGPIPE ended.
        Err(e) if e.is::<cli::OutputClosed>() => ExitCode::from(141),
        Err(e) => {
            eprintln!("softhca: {e:#}");
            ExitCode::FAILURE
        }
    }
}
