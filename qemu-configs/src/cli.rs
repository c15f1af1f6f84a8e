//! Arguments, and which part of the library does what they ask.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use hca_vm::guest::Copy;
use hca_vm::run::{self, Run};
use hca_vm::signals;
use regex::Regex;

#[derive(Parser)]
#[command(
    name = "hca-vm",
    version,
    about = "Guests for the softhca adapter: runs commands in stock Debian guests of a topology"
)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Runs commands in the guests of a topology, all at the same time
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArguments),
}

const RUN_EXAMPLES: &str = "\
Topologies: loopback (one host a with one adapter), two-hosts (a and b, linked), or a TOML file.

Examples:
  hca-vm run loopback a='ibv_devinfo -v'
  hca-vm run loopback --kernel 6.1 a='dmesg | grep mlx5'
  hca-vm run loopback --no-modprobe a='modprobe mlx5_core; dmesg | tail'
  hca-vm run two-hosts a='ibv_rc_pingpong -g 0' b='sleep 1; ibv_rc_pingpong -g 0 a'
  hca-vm run loopback --copy ./my-test --copy data.bin:/opt/ a='./my-test /opt/data.bin'

Exit code: 0; or the status of the first command that failed; 124 time is up; 125 a guest or the server died;
130 interrupted; 3 bad kernel messages; 2 the run could not be set up.";

#[derive(Args)]
struct ImageArguments {
    /// Kernel: a Debian series (6.1, 6.12, 7.2), a linux-image .deb, or a folder with boot/ and lib/modules/
    #[arg(long, default_value = hca_vm::image::kernel::DEFAULT, value_name = "SERIES|PATH")]
    kernel: String,
    /// Additional Debian package for the guests (may be repeated)
    #[arg(long = "package", value_name = "NAME")]
    packages: Vec<String>,
    /// Puts a file or folder into every guest, by default into /root (may be repeated)
    #[arg(long = "copy", value_name = "FILE[:GUESTPATH]")]
    copies: Vec<String>,
    /// Does not load the mlx5 drivers before the commands
    #[arg(long)]
    no_modprobe: bool,
    /// Keeps all logs in this folder
    #[arg(long, value_name = "DIR")]
    keep_logs: Option<PathBuf>,
}

#[derive(Args)]
struct RunArguments {
    /// Name or file of the topology
    topology: String,
    /// Command for a host, run by sh as root
    #[arg(value_name = "HOST=COMMAND", required = true)]
    commands: Vec<String>,
    #[command(flatten)]
    image: ImageArguments,
    /// Seconds from the start of the guests to the end of the commands
    #[arg(long, default_value_t = 300, value_name = "S")]
    timeout: u64,
    /// Accepts kernel messages that match (may be repeated)
    #[arg(long, value_name = "REGEX")]
    allow_dmesg: Vec<String>,
    /// Prints the adapters' resource counts at the end
    #[arg(long)]
    resources: bool,
}

pub(crate) fn main() -> Result<i32> {
    let cli = Cli::parse();
    signals::install()?;
    match cli.command {
        Verb::Run(arguments) => run(arguments),
    }
}

fn run(arguments: RunArguments) -> Result<i32> {
    let image = arguments.image;
    let mut run = Run::new(arguments.topology)
        .kernel(image.kernel)
        .timeout(Duration::from_secs(arguments.timeout))
        .echo(true);
    for text in &arguments.commands {
        let (host, command) = run::parse_command(text)?;
        run = run.host(host, command);
    }
    for name in image.packages {
        run = run.package(name);
    }
    for text in &image.copies {
        run = run.copy(Copy::parse(text)?);
    }
    for text in &arguments.allow_dmesg {
        run = run.allow_dmesg(
            Regex::new(text)
                .with_context(|| format!("--allow-dmesg '{text}' is not a regular expression"))?,
        );
    }
    if image.no_modprobe {
        run = run.no_modprobe();
    }
    if let Some(dir) = image.keep_logs {
        run = run.keep_logs(dir);
    }
    let report = run.run()?;
    report.explain();
    if arguments.resources {
        match &report.resources_text {
            Some(text) => println!("{}", text.trim_end()),
            None => eprintln!("hca-vm: the server did not answer the question for its resources"),
        }
    }
    Ok(report.exit_code())
}
