//! The tests' switch with the command line of SimBricks' own (`simb_net_switch`, from 0.6 on: times in ps), to see that `hca-tests suites sim`
//! drives that one as it should where it is not to be had:
//!
//! ```text
//! cargo build -p hca-tests --example net_switch
//! ln -s $PWD/target/debug/examples/net_switch /tmp/bin/simb_net_switch
//! PATH=/tmp/bin:$PATH hca-tests suites sim --only "SimBricks' switch"
//! ```

use std::path::PathBuf;

use clap::Parser;
use hca_tests::bricks::{Socket, switch};

#[derive(Parser)]
#[command(disable_help_flag = true)]
struct Arguments {
    /// Period of synchronisation, in ps: it synchronises as often as it has to
    #[arg(short = 'S', default_value_t = 500_000)]
    period: u64,
    /// Latency of its links, in ps
    #[arg(short = 'E', default_value_t = 500_000)]
    latency: u64,
    /// A socket to connect to
    #[arg(short = 's')]
    connect: Vec<PathBuf>,
    /// A socket to listen at
    #[arg(short = 'h')]
    listen: Vec<PathBuf>,
}

fn main() -> Result<(), String> {
    let Arguments { period, latency, connect, listen } = Arguments::parse();
    if period > latency {
        return Err("the period is longer than the latency".into());
    }
    let socket = |listens| move |path| Socket { path, listens };
    let sockets = connect.into_iter().map(socket(false)).chain(listen.into_iter().map(socket(true)));
    let counts = switch(sockets.collect(), latency).join().map_err(|_| "it has panicked")??;
    eprintln!("{counts:?}");
    Ok(())
}
