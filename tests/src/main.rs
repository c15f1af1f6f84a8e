//! `hca-tests`: runs whole suites and says in one table what passed.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Parser, Subcommand};
use hca_tests::suites::report::{Ran, Summary};
use hca_tests::suites::{KERNELS, Suite, all, covered, diagnosed, guest, known};
use hca_tests::{bytes, mistakes, recordings, speed, tenants};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "hca-tests",
    about = "Suites that judge the adapter: long tests, and those that others wrote",
    after_help = "Example:\n  cargo run --release -p hca-tests -- suites tools --kernel 6.1"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Suites(Suites),
    Tenants(Tenants),
    Speed(Speed),
    Mistakes(Mistakes),
    /// Print a bring-up and an RDMA write of our driver, byte by byte: the page "A bring-up, byte by byte" behind its first part
    #[command(
        after_help = "Examples:\n  hca-tests bytes | less\n  hca-tests bytes --left-out                       what happens without each of the commands"
    )]
    Bytes {
        /// Print which of the commands a driver may leave out, and what happens without the others
        #[arg(long)]
        left_out: bool,
    },
    Record(Sessions),
}

/// Record the sessions of stock drivers in tests/recordings anew
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    hca-tests record                                  all: guests of three kernels, some minutes\n  \
    hca-tests record --kernel 6.12\n  \
    hca-tests record --hashes                         no guests: only what is traced has changed")]
struct Sessions {
    /// Only those of these kernels
    #[arg(long = "kernel", value_name = "SERIES")]
    kernels: Vec<String>,
    /// Record nothing; play what is there, and keep the hashes of its traces
    #[arg(long, conflicts_with = "kernels")]
    hashes: bool,
}

/// Let one tenant of a server do anything, and look at what another sees; the exit code is 0 if there is no finding
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    hca-tests tenants --minutes 10 --stall 50\n  \
    hca-tests tenants --seed 77 --rounds 1 --verbose     one round again, as a finding says")]
struct Tenants {
    /// Seed of the first round; each round's is one more. Modulo 3 it says how: 0 across a switch, 1 by a tunnel, 2 across a
    /// switch with a process for each host
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Rounds [default: 100, or as many as there is time for]
    #[arg(long, value_name = "COUNT")]
    rounds: Option<u64>,
    /// No round begins after so many minutes
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<f64>,
    /// Steps of a round
    #[arg(long, value_name = "COUNT", default_value_t = 400)]
    steps: u64,
    /// A register access of the victim that takes longer is a finding
    #[arg(long, value_name = "MILLISECONDS")]
    stall: Option<u64>,
    /// Name each step
    #[arg(long)]
    verbose: bool,
}

/// Measure TCP and RDMA between two guests, over the adapter's Ethernet port and over QEMU's own card, and print a table
#[derive(Debug, Args)]
#[command(after_help = "On a machine that does nothing else:\n  cargo run --release -p hca-tests -- speed")]
struct Speed {
    /// Kernel of the guests
    #[arg(long, value_name = "SERIES", default_value = "6.12")]
    kernel: String,
    /// How often each thing is measured
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    rounds: usize,
}

/// Make the mistakes of drivers' authors, and print what the adapter says of each; the exit code is 0 if it is silent of none,
/// and says nothing of those who do it right
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    hca-tests mistakes\n  \
    hca-tests mistakes doorbells                      those of one area, or with that word")]
struct Mistakes {
    /// Only those whose area or description contains this
    #[arg(value_name = "WORDS", default_value = "")]
    filter: String,
    /// Print the table as a page has it
    #[arg(long)]
    markdown: bool,
}

/// Run suites; the exit code is 0 if nothing failed
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    hca-tests suites --list\n  \
    hca-tests suites                                  everything: many hours\n  \
    hca-tests suites rdma-core --kernel 6.12\n  \
    hca-tests suites ethernet --only 'soft-RoCE: rcopy'  some of its cases\n  \
    hca-tests suites rdma-core --only 'ConnectX-6 Dx' that adapter's boots, and how many tests are ok\n  \
    hca-tests suites perftest tools --json table.json\n  \
    hca-tests suites ethernet --coverage /tmp/used       what they use: softhca coverage /tmp/used/ethernet-6.12.json\n\n\
    Of those in guests faults, hpc, management and ethernet take 20 to 40 minutes on each kernel, and kernels a few\n\
    minutes for each of some 180 (docs/src/suites.md).")]
struct Suites {
    /// Names of suites; all of them unless told
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Kernels for suites that run in guests [default: 6.12 and 6.1]
    #[arg(long = "kernel", value_name = "SERIES")]
    kernels: Vec<String>,
    /// Of suite sim and the lists of commands that suites run in guests, only cases whose names have this text, and what sets
    /// guests up (may be repeated); what else a case needs has to be named, too. Of suite rdma-core, whole boots, by the names of the cases about
    /// their kernels' logs
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Also write every case to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write what drivers and programs used of the interface into this folder: for each suite in guests and each kernel a file such as
    /// ethernet-6.12.json, for `softhca coverage`
    #[arg(long, value_name = "DIR")]
    coverage: Option<PathBuf>,
    /// Print the names of the suites and what they judge
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Suites(suites) => run(&suites),
        Command::Tenants(tenants) => fuzz(&tenants),
        Command::Mistakes(Mistakes { filter, markdown }) => {
            let table = mistakes::run(&filter);
            match markdown {
                true => print!("{}", table.markdown()),
                false => print!("{table}"),
            }
            Ok(table.is_good())
        }
        Command::Bytes { left_out } => (if left_out { bytes::left_out() } else { bytes::page() })
            .map_err(|error| anyhow!("{error:?}"))
            .map(|page| {
                print!("{page}");
                true
            }),
        Command::Record(sessions) => record(&sessions).map(|()| true),
        Command::Speed(Speed { kernel, rounds }) => speed::measure(&kernel, rounds).map(|table| {
            print!("{table}");
            true
        }),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("hca-tests: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn record(options: &Sessions) -> Result<()> {
    let told = options.kernels.iter().map(String::as_str);
    let kernels: Vec<&str> = match (options.hashes, told.len()) {
        (true, _) => Vec::new(),
        (false, 0) => recordings::KERNELS.into(),
        (false, _) => told.collect(),
    };
    for kernel in kernels {
        recordings::record(kernel)?;
        let size = std::fs::metadata(recordings::file(kernel))?.len();
        println!("{kernel}: {size} bytes, trace hash {}", recordings::play(kernel)?);
    }
    recordings::keep_hashes()
}

fn fuzz(options: &Tenants) -> Result<bool> {
    let time = options.minutes.map(|minutes| Duration::try_from_secs_f64(60.0 * minutes)).transpose()?;
    let rounds = options.rounds.unwrap_or(if time.is_some() { u64::MAX } else { 100 });
    let stall = options.stall.map(Duration::from_millis);
    let Tenants { seed, steps, verbose, .. } = *options;
    let began = Instant::now();
    let result = tenants::run(&tenants::Options { seed, rounds, time, steps, stall, verbose });
    match result.map_err(|why| anyhow!("{why}"))? {
        Ok(done) => {
            let tenants::Done { rounds, steps, closed, seen, reached } = done;
            let seconds = began.elapsed().as_secs_f64();
            println!("0 findings: {rounds} rounds, {steps} steps, {seconds:.0} s");
            println!("{closed} connections of the attacker were closed by the server, or anew");
            for ((at, seen), reached) in ["switch", "tunnel", "workers"].iter().zip(seen).zip(reached) {
                println!("{at}: {seen}\n    {reached:?}");
            }
            Ok(true)
        }
        Err(finding) => {
            println!("a finding: {finding}");
            Ok(false)
        }
    }
}

fn run(options: &Suites) -> Result<bool> {
    let suites = all();
    if options.list {
        for Suite { name, about, .. } in suites {
            println!("{name:<12} {about}");
        }
        return Ok(true);
    }
    for name in &options.names {
        if suites.iter().all(|suite| suite.name != name) {
            let known: Vec<&str> = suites.iter().map(|suite| suite.name).collect();
            bail!("no suite '{name}', only {}", known.join(", "));
        }
    }
    // Before hours of work, not after.
    let json = options.json.as_ref().map(|path| -> Result<_> {
        Ok((path, File::create(path).with_context(|| format!("cannot write {}", path.display()))?))
    });
    let json = json.transpose()?;
    let kernels: Vec<&str> = match options.kernels.as_slice() {
        [] => KERNELS.into(),
        told => told.iter().map(String::as_str).collect(),
    };
    guest::only(&options.only);
    let mut summary = Summary::default();
    for suite in suites
        .iter()
        .filter(|suite| options.names.is_empty() || options.names.iter().any(|n| n == suite.name))
    {
        let runs: &[&str] = if suite.needs_guests { &kernels } else { &[""] };
        for kernel in runs {
            let name =
                if kernel.is_empty() { suite.name.to_owned() } else { format!("{} {kernel}", suite.name) };
            eprintln!("suite {name} ...");
            let began = Instant::now();
            let collects = options.coverage.as_ref().filter(|_| suite.needs_guests);
            if let Some(folder) = collects {
                covered::begin(folder, &name.replace(' ', "-"))?;
            }
            let mut cases = (suite.run)(kernel);
            if collects.is_some() {
                eprintln!("  {}", covered::end()?);
            }
            known::excuse(suite.name, kernel, &mut cases);
            // Some of a suite's cases can't show which of its entries never occur.
            if suite.needs_guests && options.only.is_empty() {
                let said = diagnosed::judge(suite.name, kernel, &cases);
                eprintln!("  {}: {}", said.name, said.detail);
                cases.push(said);
            }
            let ran = Ran { suite: name, cases, seconds: began.elapsed().as_secs_f64() };
            eprintln!(
                "suite {}: {} cases, {} failed, {:.0} s{}",
                ran.suite,
                ran.cases.len(),
                ran.failures(),
                ran.seconds,
                // Now and at the end: the rest may take an hour.
                ran.what_failed()
            );
            summary.suites.push(ran);
        }
    }
    print!("{summary}");
    if let Some((path, file)) = json {
        serde_json::to_writer_pretty(file, &summary)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(summary.passed())
}
