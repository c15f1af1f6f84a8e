//! Arguments, and which part of the library does what they ask.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use hca_vm::cache::Cache;
use hca_vm::guest::Copy;
use hca_vm::lab::{self, Options};
use hca_vm::module::Module;
use hca_vm::qemu::{self, Qemu};
use hca_vm::run::{self, Run};
use hca_vm::{demo, doctor, shell, signals};
use regex::Regex;

#[derive(Parser)]
#[command(
    name = "hca-vm",
    version,
    about = "Guests for the softhca adapter: runs commands in stock Debian guests of a topology",
    after_help = EXAMPLES
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Shows an unmodified Debian guest drive the adapter, with all the set-up that takes
    #[command(after_help = "Examples:\n  cargo demo\n  hca-vm demo --kernel 6.1")]
    Demo {
        /// Kernel: a Debian series (6.1, 6.12, 7.2), a linux-image .deb, or a folder
        #[arg(long, default_value = hca_vm::image::kernel::DEFAULT, value_name = "SERIES|PATH")]
        kernel: String,
    },
    /// Runs commands in the guests of a topology, all at the same time
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArguments),
    /// Opens an interactive shell in one host of a topology
    #[command(
        after_help = "Examples:\n  hca-vm shell loopback a\n  hca-vm shell two-hosts b --kernel 6.1 --package gdb\n\n\
        The topology's other hosts run beside it. Leave with 'exit' or Ctrl-D."
    )]
    Shell {
        /// Name or file of the topology
        topology: String,
        /// Host to open the shell in
        host: String,
        #[command(flatten)]
        image: ImageArguments,
    },
    /// Builds a kernel module against the guest's kernel, in the guest, and loads it
    #[command(after_help = MODULE_EXAMPLES)]
    Module {
        /// Folder with its sources and a Makefile for kbuild
        folder: PathBuf,
        /// Command for the guest when it is loaded, run by sh as root
        #[arg(default_value = "dmesg | tail -n 20")]
        command: String,
        /// Name or file of the topology; its first host builds and loads
        #[arg(long, default_value = "loopback", value_name = "TOPOLOGY")]
        topology: String,
        #[command(flatten)]
        image: ImageArguments,
        /// Folder in which the kernel was built, if it is not from Debian's archive
        #[arg(long, value_name = "DIR")]
        headers: Option<PathBuf>,
        /// Seconds from the start of the guests to the end of the command
        #[arg(long, default_value_t = 900, value_name = "S")]
        timeout: u64,
    },
    /// Runs the QEMU that guests run on, by hand
    #[command(
        after_help = "Examples:\n  hca-vm qemu -device vfio-user-pci,help\n  hca-vm qemu --print >qemu-hca && chmod +x qemu-hca\n\n\
        What `hca-vm run --keep-logs DIR` started is in DIR/HOST.qemu.sh."
    )]
    Qemu {
        /// Prints a shell script that runs it
        #[arg(long)]
        print: bool,
        /// Arguments of QEMU
        #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Says what this machine has, what is missing and how to get it
    #[command(
        after_help = "Example:\n  hca-vm doctor\n\nExit code 0 when nothing essential is missing, else 1. It installs nothing."
    )]
    Doctor,
    /// Makes QEMU and the guest images now, so that later runs start at once
    #[command(after_help = "Examples:\n  hca-vm prepare\n  hca-vm prepare --kernel 6.1 --kernel 7.2")]
    Prepare {
        /// Kernel to prepare (may be repeated)
        #[arg(long = "kernel", default_value = hca_vm::image::kernel::DEFAULT, value_name = "SERIES|PATH")]
        kernels: Vec<String>,
        /// Additional Debian package for the guests (may be repeated)
        #[arg(long = "package", value_name = "NAME")]
        packages: Vec<String>,
    },
}

const EXAMPLES: &str = "\
Examples:
  hca-vm demo
  hca-vm run loopback a='ibv_devinfo -v'
  hca-vm shell loopback a
  hca-vm doctor

Everything made or downloaded is kept in $XDG_CACHE_HOME/softhca (~/.cache/softhca); removing that folder is safe.";

const RUN_EXAMPLES: &str = "\
Topologies: loopback (one host a with one adapter), two-hosts (a and b, linked), cable (the same, and\n\
the guests bring a subnet manager), two-processes (the same, each with a server of its own, linked over\n\
UDP), switch (a, b and c behind a switch), two-switches (a and b on the first, c on the second), iommu\n\
(like loopback, behind a virtual IOMMU), blueflame (like loopback, with BlueFlame), or a TOML file.\n\
With Ethernet: eth (one host), eth-two-hosts (a and b, linked), eth-switch (a, b and c behind a switch),\n\
eth-dpdk (a, with huge pages and two adapters, between b and c), rxe (a with an adapter, b with a card of QEMU's own). Their devices are hca0 and nic0, and a-hca0 or b-nic0 has its address.

Examples:
  hca-vm run loopback a='ibv_devinfo -v'
  hca-vm run loopback --kernel 6.1 a='dmesg | grep mlx5'
  hca-vm run loopback --no-modprobe a='modprobe mlx5_core; dmesg | tail'
  hca-vm run two-hosts a='ibv_rc_pingpong -g 0' b='sleep 1; ibv_rc_pingpong -g 0 a'
  hca-vm run two-hosts a='ibv_rc_pingpong -g 0 -n 100000' b='ibv_rc_pingpong -g 0 -n 100000 a' \\
    --beside 'sleep 2; softhca ctl link down a; sleep 1; softhca ctl link up a'
  hca-vm run two-hosts --serve --pcap=two.pcapng a='ib_send_bw -F -n 50' b='sleep 1; ib_send_bw -F -n 50 a'
  hca-vm run eth-two-hosts a='iperf3 -s -1' b='sleep 1; iperf3 -c a-hca0'
  hca-vm run loopback --copy ./my-test --copy data.bin:/opt/ a='./my-test /opt/data.bin'

Exit code: 0; or the status of the first command that failed; 124 time is up; 125 a guest or the server died;
130 interrupted; 3 bad kernel messages; 4 diagnoses, with --deny-diagnoses; 2 the run could not be set up.";

const MODULE_EXAMPLES: &str = "\
Examples:
  hca-vm module qemu-configs/examples/module 'dmesg | grep hca_version'
  hca-vm module my-driver --kernel 6.1 --no-modprobe 'cat /proc/modules; lspci -k -d 15b3:'
  hca-vm module my-driver --kernel /build/linux-image.deb --headers /build/linux

The folder is copied into the guest, built there by `make -C HEADERS M=FOLDER modules`, and what it makes is loaded, after the
modules that it needs. --no-modprobe keeps mlx5 away from the adapter. Exit codes as of `hca-vm run`.";

#[derive(Args)]
struct ImageArguments {
    /// Kernel: the newest of a Debian series (6.1, 6.12, 7.2), the name of a package (linux-image-...-amd64), a linux-image
    /// .deb, or a folder with boot/ and lib/modules/
    #[arg(long, default_value = hca_vm::image::kernel::DEFAULT, value_name = "SERIES|PATH")]
    kernel: String,
    /// Additional Debian package for the guests, installed by dpkg in one (may be repeated)
    #[arg(long = "package", value_name = "NAME")]
    packages: Vec<String>,
    /// Puts a file or folder into every guest, by default into /root (may be repeated)
    #[arg(long = "copy", value_name = "FILE[:GUESTPATH]")]
    copies: Vec<String>,
    /// Does not load the mlx5 drivers before the commands
    #[arg(long)]
    no_modprobe: bool,
    /// Keeps all logs in this folder, and the command line of each guest's QEMU
    #[arg(long, value_name = "DIR")]
    keep_logs: Option<PathBuf>,
    /// One more argument of QEMU, of all guests or of one: -S, a:-gdb, a:tcp:localhost:1234 (may be repeated)
    #[arg(long = "qemu-arg", value_name = "[HOST:]ARGUMENT", allow_hyphen_values = true)]
    qemu: Vec<String>,
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
    /// Shell command on this machine, beside those in the guests; see "Beside the guests" in qemu-configs/README.md
    #[arg(long, value_name = "COMMAND")]
    beside: Option<String>,
    /// Serves only this process of the topology, in this machine's network; the others run elsewhere
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    /// That host boots over the fabric: iPXE gets its kernel from a host whose command calls `hca-netboot`; see "Booting over
    /// the fabric" in qemu-configs/README.md
    #[arg(long, value_name = "HOST")]
    netboot: Vec<String>,
    /// One more argument of `softhca serve`, such as --trace=FILE (may be repeated)
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    serve: Vec<String>,
    /// Does not look for mistakes of drivers that an adapter keeps silent about
    #[arg(long)]
    no_check: bool,
    /// Fails, with exit code 4, if something is diagnosed of the drivers
    #[arg(long)]
    deny_diagnoses: bool,
    /// Accepts kernel messages that match (may be repeated)
    #[arg(long, value_name = "REGEX")]
    allow_dmesg: Vec<String>,
    /// Prints the adapters' resource counts at the end
    #[arg(long)]
    resources: bool,
}

/// The command line. An error about a command that there is not names those that there are.
fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        if error.kind() == ErrorKind::InvalidSubcommand {
            with_choices(Cli::command()).get_matches();
        }
        error.exit()
    })
}

/// Has the usage of a command, and of all below it, name what may follow.
fn with_choices(command: clap::Command) -> clap::Command {
    let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
    let names: Vec<&str> = visible.map(|below| below.get_name()).collect();
    let names: &'static str = names.join("|").leak();
    let command = if names.is_empty() { command } else { command.subcommand_value_name(names) };
    command.mut_subcommands(with_choices)
}

pub(crate) fn main() -> Result<i32> {
    let cli = parse();
    signals::install()?;
    match cli.command {
        Verb::Demo { kernel } => demo::run(&kernel),
        Verb::Run(arguments) => run(arguments),
        Verb::Shell { topology, host, image } => shell::open(image.options(topology)?, &host),
        Verb::Module { folder, command, topology, image, headers, timeout } => {
            let options = image.options(topology)?;
            let host = options.first_host()?;
            let module = Module { folder, headers, command };
            let run = module.run(options, &host)?.timeout(Duration::from_secs(timeout)).echo();
            let report = run.run()?;
            report.explain();
            Ok(report.exit_code())
        }
        Verb::Qemu { print, arguments } => {
            let mut command = Qemu::get(&Cache::open()?)?.command()?;
            command.args(arguments);
            if print {
                print!("{}", qemu::script(&command));
                return Ok(0);
            }
            Err(anyhow::Error::new(command.exec()).context("cannot start QEMU"))
        }
        Verb::Doctor => {
            let findings = doctor::examine();
            print!("{}", findings.text);
            Ok(i32::from(!findings.healthy))
        }
        Verb::Prepare { kernels, packages } => {
            for kernel in kernels {
                let machine = lab::prepare(&kernel, &packages)?;
                println!("ready: {}, kernel {}", machine.qemu.describe(), machine.kernel.release);
            }
            Ok(0)
        }
    }
}

impl ImageArguments {
    fn options(self, topology: String) -> Result<Options> {
        Ok(Options {
            topology,
            kernel: self.kernel,
            packages: self.packages,
            headers: false,
            qemu: self.qemu,
            copies: self.copies.iter().map(|text| Copy::parse(text)).collect::<Result<_>>()?,
            modprobe: !self.no_modprobe,
            log_dir: self.keep_logs,
            process: None,
            serve: Vec::new(),
            check: true,
            netboot: Vec::new(),
            colour: None,
        })
    }
}

fn run(arguments: RunArguments) -> Result<i32> {
    let mut options = arguments.image.options(arguments.topology)?;
    options.process = arguments.process;
    options.serve = arguments.serve;
    options.check = !arguments.no_check;
    options.netboot = arguments.netboot;
    let mut run = Run::with(options).timeout(Duration::from_secs(arguments.timeout)).echo();
    for text in &arguments.commands {
        let (host, command) = run::parse_command(text)?;
        run = run.host(host, command);
    }
    if arguments.deny_diagnoses {
        run = run.deny_diagnoses();
    }
    if let Some(command) = arguments.beside {
        run = run.beside(command);
    }
    for text in &arguments.allow_dmesg {
        run = run.allow_dmesg(
            Regex::new(text)
                .with_context(|| format!("--allow-dmesg '{text}' is not a regular expression"))?,
        );
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn manual_pages_and_completions_are_made() {
        crate::pages::check(&Cli::command());
    }
}
