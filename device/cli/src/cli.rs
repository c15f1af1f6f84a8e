//! Command line of the binary `softhca`.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use hca_server::control;
use hca_server::engine::{self, Engine};
use hca_server::front_end::FrontEnd;
use hca_server::outside;
use hca_server::sandbox::privileges::private_folder;
use hca_server::sandbox::{Connects, Helper, Role};
use hca_server::scrape::Address;
use hca_server::topology::{
    Hca, Isolation, Personality, PortKind, Topology, built_in, parse_isolation, parse_personality,
    parse_port_type,
};
use hca_server::tunnel::keys::{self, Keys};
use hca_server::vfio_user::VfioUser;
use hca_server::workers::{self, Program, Supervisor};
use hca_trace::explain::{self, WorkRequest};
use hca_trace::picture;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::Value;

use crate::confine::Confinement;
use crate::ctl::{self, Ctl, Which};
use crate::log;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "softhca",
    version,
    about = "An RDMA adapter of the ConnectX-4 class in software, attached to QEMU over vfio-user",
    after_help = "Examples:\n  \
        softhca serve --socket /tmp/hca.sock\n  \
        softhca serve --topology two-hosts --run-dir /tmp/pair\n  \
        softhca sim --topology two-hosts\n  \
        softhca resources --run-dir /tmp/pair\n  \
        softhca bench --op read --size 64 --metric rate\n  \
        softhca explain trace.json --wr 0x42:7\n  \
        softhca replay session.rec\n  \
        softhca ctl --run-dir /tmp/pair link down a\n\n\
        Messages go to stderr; RUST_LOG=debug (or hca_server=trace) shows more."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The command line. An error about a command that there is not names those that there are.
pub(crate) fn parse() -> Cli {
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

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<Serve>),
    Sim(Box<crate::sim::Arguments>),
    SimProxy(crate::proxy::Arguments),
    #[command(hide = true)]
    Worker(Worker),
    Topology(Check),
    TunnelKeys(TunnelKeys),
    Resources(Ask),
    Diagnoses(crate::diagnoses::Diagnoses),
    Inspect(crate::inspect::Inspect),
    Coverage(crate::coverage::Shown),
    Syndrome(crate::syndrome::Syndrome),
    FirmwareImage(crate::firmware_image::FirmwareImage),
    Bench(Box<hca_bench::cli::Bench>),
    Explain(Explain),
    Replay(crate::replay::Arguments),
    Report(crate::report::Report),
    Stat(crate::stat::Stat),
    Ctl(Ctl),
}

/// Serve the adapters of a topology, or a single one
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca serve --socket /tmp/hca.sock\n      \
    one adapter; then start QEMU with shared memory and\n      \
    -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"/tmp/hca.sock\"}}'\n  \
    softhca serve --topology two-hosts --run-dir /tmp/pair\n      \
    /tmp/pair/HOST-HCA.sock for each adapter, and /tmp/pair/control.sock\n  \
    softhca serve --topology far.toml --process left --run-dir /tmp/left\n      \
    what far.toml says process \"left\" serves; links to others go over UDP\n\n\
    The line \"softhca: ready\" on stdout says that all sockets listen. SIGINT, SIGTERM or\n\
    SIGHUP ends the server and removes them. Only who started it, and root, can connect to them.\n\n\
    From that line on the server is in a sandbox: it can open and start nothing, and makes only the\n\
    system calls that serving needs. Traces, captures and recordings are opened before.")]
struct Serve {
    /// Topology file (hosts, adapters, links), or the name of one that is built in, such as two-hosts
    #[arg(long, value_name = "FILE|NAME", conflicts_with_all = ["socket", "personality", "profile", "port_type"],
          requires = "run_dir")]
    topology: Option<PathBuf>,
    /// Process of the topology that this one is, if it has any
    #[arg(long, value_name = "NAME", requires = "topology", conflicts_with = "socket")]
    process: Option<String>,
    /// What it shares with other processes, instead of the topology's: a file with 64 hexadecimal digits, or what
    /// `softhca tunnel-keys` made for it
    #[arg(long, value_name = "FILE", requires = "process")]
    tunnel_key_file: Option<PathBuf>,
    /// Directory for the sockets of a topology; made if missing, for this user only
    #[arg(long, value_name = "DIR", requires = "topology", conflicts_with = "socket")]
    run_dir: Option<PathBuf>,
    /// Who is kept apart, instead of what the topology says: "none", or "process" for a process of each host
    #[arg(long, value_name = "WHO", conflicts_with = "socket", value_parser = parse_isolation)]
    isolation: Option<Isolation>,
    /// Socket of a single adapter; the control socket is PATH.control
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Kind of a single adapter: what it shows of itself [default: connectx4]
    #[arg(long, value_name = "NAME", value_parser = parse_personality)]
    personality: Option<Arc<Personality>>,
    /// Timing profile of a single adapter, if not that of its kind
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Link layer of a single adapter
    #[arg(long, value_name = "TYPE", default_value = "ib", value_parser = parse_port_type)]
    port_type: PortKind,
    /// Look for mistakes of drivers that an adapter keeps silent about, and say them
    #[arg(long)]
    check: bool,
    /// Offer metrics for Prometheus at http://ADDRESS/metrics: 127.0.0.1:PORT, the same of IPv6, or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<Address>,
    /// Be as old as a server that was started so many seconds ago: model time goes on from there. For tests
    #[arg(long, value_name = "SECONDS", hide = true, conflicts_with = "isolation")]
    age: Option<u64>,
    #[command(flatten)]
    observe: hca_trace::Options,
    #[command(flatten)]
    recording: crate::replay::Recording,
    #[command(flatten)]
    confinement: Confinement,
}

/// Serve one host of a topology, or its switches; a server starts such processes where tenants are apart
#[derive(Debug, Args)]
struct Worker {
    /// Look for mistakes of drivers
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    confinement: Confinement,
}

/// Check a topology file and print it as JSON
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  softhca topology two-hosts")]
struct Check {
    /// Topology file, or the name of one that is built in
    #[arg(value_name = "FILE|NAME")]
    file: PathBuf,
}

/// Make new keys for the links between the processes of a topology: for each process a file with those it needs
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  softhca tunnel-keys far.toml --out keys\n      \
    keys/left.keys and keys/right.keys; bring each to its machine, and there\n      \
    softhca serve --topology far.toml --process left --run-dir /tmp/left --tunnel-key-file left.keys\n\n\
    Files that are there are not changed: it ends with an error.")]
struct TunnelKeys {
    /// Topology file
    topology: PathBuf,
    /// Directory for the files NAME.keys; made if missing, for this user only
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Show the resource counts of a running server, now and at the last teardown
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca resources --run-dir /tmp/pair\n  \
    softhca resources --socket /tmp/hca.sock --json")]
struct Ask {
    #[command(flatten)]
    server: Which,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show the life of a work request, out of a trace
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca explain trace.json\n      \
    the work requests that took longest\n  \
    softhca explain trace.json --wr 0x42:7\n  \
    softhca explain trace.json --wr 0x42:7 --svg life.svg\n\n\
    A trace is what `softhca serve --trace FILE` and `softhca bench --trace FILE` write.")]
struct Explain {
    /// Trace file
    trace: PathBuf,
    /// Queue pair, and place in its send queue of the work request
    #[arg(long, value_name = "QPN:INDEX")]
    wr: Option<WorkRequest>,
    /// Adapter that it was posted to, HOST/HCA, if several have such a queue pair
    #[arg(long, value_name = "ADAPTER", requires = "wr")]
    adapter: Option<String>,
    /// Which of several with the same number: the index wraps after 65536
    #[arg(long, value_name = "N", default_value_t = 1, requires = "wr")]
    nth: usize,
    /// Write a picture to FILE
    #[arg(long, value_name = "FILE", requires = "wr")]
    svg: Option<PathBuf>,
}

/// Runs the command line.
///
/// # Errors
/// What went wrong, ready to be shown.
pub(crate) fn run(cli: Cli, log: &mut log::End) -> anyhow::Result<()> {
    // A server, and a simulation, has one thread until it has entered its sandbox.
    if !matches!(cli.command, Command::Serve(_) | Command::Worker(_) | Command::Sim(_) | Command::SimProxy(_))
    {
        log.begin()?;
    }
    match cli.command {
        Command::Serve(args) => serve(&args, log),
        Command::Sim(args) => crate::sim::run(&args, log),
        Command::SimProxy(args) => crate::proxy::run(&args, log),
        Command::Worker(args) => worker(&args, log),
        Command::Topology(args) => {
            let topology = Topology::load(&args.file)?;
            print(&serde_json::to_string_pretty(&topology)?)
        }
        Command::TunnelKeys(args) => tunnel_keys(&args),
        Command::Resources(args) => resources(&args),
        Command::Diagnoses(args) => crate::diagnoses::run(&args),
        Command::Inspect(args) => crate::inspect::run(&args),
        Command::Coverage(args) => crate::coverage::run(&args),
        Command::Syndrome(args) => crate::syndrome::run(&args),
        Command::FirmwareImage(args) => crate::firmware_image::run(&args),
        Command::Bench(args) => Ok(hca_bench::cli::run(&args)?),
        Command::Explain(args) => explain(&args),
        Command::Replay(args) => crate::replay::run(&args),
        Command::Report(args) => crate::report::run(&args),
        Command::Stat(args) => crate::stat::run(&args),
        Command::Ctl(args) => ctl::run(&args),
    }
}

fn tunnel_keys(args: &TunnelKeys) -> anyhow::Result<()> {
    let files = keys::make(&Topology::load(&args.topology)?)?;
    private_folder(&args.out)?;
    for (name, text) in files {
        let path = args.out.join(format!("{name}.keys"));
        let mut file = std::fs::File::options();
        // A new file only, and never through a link.
        let file = file.write(true).create_new(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| path.display().to_string())?;
        print(&path.display().to_string())?;
    }
    Ok(())
}

fn serve(args: &Serve, log: &mut log::End) -> anyhow::Result<()> {
    let helper = args.confinement.begin(args.run_dir.as_deref())?;
    let stop = stop_signals(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    raise_descriptors();
    let (mut connects, mut folders) = (Connects::default(), Vec::new());
    let recording = args.recording.options();
    let (mut engine, text, topology) = match (&args.topology, &args.run_dir, &args.socket) {
        (Some(file), Some(dir), _) => {
            let (text, mut topology) = Topology::read(file)?;
            topology.checker.enabled |= args.check;
            if let Some(isolation) = args.isolation {
                topology.isolate(isolation)?;
            }
            private_folder(dir)?;
            if topology.isolation == Isolation::Process {
                let started = Started { stop, helper, log };
                return supervise(args, (file, &text), &topology, dir, started);
            }
            if recording.is_some() {
                topology.draw_management_key()?;
            }
            topology.put_sockets_into(dir);
            let part = topology.part(args.process.as_deref())?;
            (connects, folders) = (outside::connects(&part), outside::folders(&part));
            let control_path = dir.join(control::SOCKET);
            let keys = match &args.process {
                Some(_) => {
                    let file = args.tunnel_key_file.as_ref().or(topology.fabric.tunnel.key_file.as_ref());
                    Keys::load(&part, file.map(PathBuf::as_path))?
                }
                None => Keys::default(),
            };
            let role = engine::Role { process: args.process.clone(), keys };
            let front_end = |hca: &Hca| vfio_user(&dir.join(&hca.socket));
            (Engine::new(&topology, &role, front_end, Some(&control_path), stop)?, text, topology)
        }
        (_, _, Some(socket)) => {
            let personality = args.personality.clone().unwrap_or_else(Personality::default_kind);
            let (text, mut topology) =
                Topology::single(&personality, args.profile.as_deref(), args.port_type)?;
            topology.checker.enabled |= args.check;
            if recording.is_some() {
                topology.draw_management_key()?;
            }
            let (role, control_path) = (engine::Role::default(), control::beside(socket));
            let engine = Engine::new(&topology, &role, |_| vfio_user(socket), Some(&control_path), stop)?;
            (engine, text, topology)
        }
        _ => {
            let names = built_in::names().collect::<Vec<_>>().join(", ");
            let what = format!(
                "what is to be served? Say --socket PATH, for one adapter, or --topology FILE|NAME with --run-dir DIR; built in are: {names}\n"
            );
            clap::Error::raw(ErrorKind::MissingRequiredArgument, what).exit()
        }
    };
    helper.into_iter().for_each(Helper::install);
    args.age.into_iter().for_each(|age| engine.set_age(Duration::from_secs(age)));
    engine.observe(&args.observe)?;
    if let Some(options) = &recording {
        engine.record(options, (&topology, &text), args.process.as_deref())?;
    }
    if let Some(address) = &args.metrics {
        tell_metrics(engine.offer_metrics(address)?);
    }
    let folders: Vec<&Path> =
        args.folders().into_iter().chain(folders.iter().map(PathBuf::as_path)).collect();
    let outputs = args.observe.any() || recording.is_some();
    args.confinement.enter(Role::Server, &folders, outputs, connects)?;
    log.begin()?;
    print("softhca: ready")?;
    let result = engine.run();
    tracing::info!("stopped");
    engine.end_recording().into_iter().try_for_each(|line| print(&line))?;
    engine.end_observing()?.into_iter().try_for_each(|line| print(&line))?;
    result
}

impl Serve {
    /// Where its sockets are.
    fn folders(&self) -> Vec<&Path> {
        let metrics = self.metrics.as_ref().and_then(Address::path);
        let sockets = [self.socket.as_deref(), metrics].into_iter().flatten().filter_map(Path::parent);
        self.run_dir.as_deref().into_iter().chain(sockets).collect()
    }
}

/// Says where metrics are.
fn tell_metrics(port: Option<u16>) {
    tracing::info!("metrics: {}", port.map_or("at a socket".into(), |port| format!("port {port}")));
}

/// What a server has when it begins.
struct Started<'a> {
    stop: OwnedFd,
    helper: Option<Helper>,
    log: &'a mut log::End,
}

/// Serves a topology by a process for each tenant.
fn supervise(
    args: &Serve,
    (file, text): (&Path, &str),
    topology: &Topology,
    dir: &Path,
    Started { stop, helper, log }: Started<'_>,
) -> anyhow::Result<()> {
    if args.observe.any() || args.recording.options().is_some() {
        bail!("traces, captures and recordings need one process, with one clock: say --isolation none");
    }
    let mut arguments = vec!["worker".to_owned()];
    arguments.extend(args.check.then(|| "--check".to_owned()));
    arguments.extend(args.confinement.is_off().then(|| "--no-sandbox".to_owned()));
    // The file of this very program, whatever has its name by now.
    let program = Program { file: "/proc/self/exe".into(), arguments, helper };
    let file = file.display().to_string();
    let mut supervisor = Supervisor::new(program, topology, (&file, text), dir, stop)?;
    if let Some(address) = &args.metrics {
        tell_metrics(supervisor.offer_metrics(address)?);
    }
    args.confinement.enter(Role::Supervisor, &args.folders(), false, Connects::default())?;
    log.begin()?;
    print("softhca: ready")?;
    let result = supervisor.run();
    tracing::info!("stopped");
    result
}

/// Serves as a worker: standard input is the channel to the supervisor.
fn worker(args: &Worker, log: &mut log::End) -> anyhow::Result<()> {
    // The supervisor's terminal is not this process's: it ends when the supervisor does, or is told.
    let stop = stop_signals(&[Signal::SIGTERM])?;
    block(&[Signal::SIGINT, Signal::SIGHUP])?;
    set_pdeathsig(Signal::SIGKILL)?;
    raise_descriptors();
    let inbox = std::io::stdin().as_fd().try_clone_to_owned()?;
    let front_end = |listener| Ok(Box::new(VfioUser::on(listener)) as _);
    workers::run(inbox, stop, args.check, front_end, |descriptors| {
        args.confinement.enter_worker(descriptors)?;
        Ok(log.begin()?)
    })
}

/// The front end of an adapter: a vfio-user socket.
fn vfio_user(socket: &Path) -> anyhow::Result<Box<dyn FrontEnd>> {
    Ok(Box::new(VfioUser::listen(socket)?))
}

/// As many descriptors as this process may have. Often it starts with 1024, for programs that use select(2); a client has up
/// to a hundred (one for each vector, its connection, and those of a message).
fn raise_descriptors() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(e) = raised {
        tracing::debug!("the limit of open files stays as it is: {e}");
    }
}

/// A descriptor that becomes readable on one of these signals.
pub(crate) fn stop_signals(which: &[Signal]) -> anyhow::Result<OwnedFd> {
    let signals: SigSet = which.iter().copied().collect();
    signals.thread_block()?;
    let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok(fd.as_fd().try_clone_to_owned()?)
}

/// Lets these signals wait for ever.
fn block(which: &[Signal]) -> anyhow::Result<()> {
    let signals: SigSet = which.iter().copied().collect();
    Ok(signals.thread_block()?)
}

fn explain(args: &Explain) -> anyhow::Result<()> {
    let trace = explain::File::read(&args.trace)?;
    let Some(wr) = args.wr else { return print(trace.list().trim_end()) };
    let life = trace.find(wr, args.adapter.as_deref(), args.nth)?;
    if let Some(path) = &args.svg {
        let mut file = hca_trace::create_private(path)?;
        file.write_all(picture::svg(&life).as_bytes()).with_context(|| format!("{}", path.display()))?;
    }
    print(life.table().trim_end())
}

fn resources(args: &Ask) -> anyhow::Result<()> {
    let answer = control::query(&args.server.control()?, "resources")?;
    if args.json {
        return print(&serde_json::to_string_pretty(&answer)?);
    }
    print(resource_table(&answer).trim_end())
}

/// One line per kind of resource: name, count now, count at the last teardown.
fn resource_table(answer: &Value) -> String {
    let mut out = String::new();
    let none = Vec::new();
    for hca in answer.get("hcas").and_then(Value::as_array).unwrap_or(&none) {
        let name = hca.get("name").and_then(Value::as_str).unwrap_or("?");
        let attached = hca.get("attached").and_then(Value::as_bool) == Some(true);
        let state = if attached { "attached" } else { "no client" };
        out += &format!("{name} ({state})\n");
        out += &format!("  {:<20} {:>10} {:>14}\n", "resource", "now", "last teardown");
        let now = hca.get("now").and_then(Value::as_object);
        for (kind, count) in now.into_iter().flatten() {
            let last =
                hca.get("last_teardown").and_then(|l| l.get(kind)).map_or("-".to_string(), Value::to_string);
            out += &format!("  {kind:<20} {:>10} {last:>14}\n", count.to_string());
        }
    }
    out
}

/// Nobody reads stdout any more, as behind `| head`. The program ends, and nothing is said of it.
#[derive(Debug)]
pub(crate) struct OutputClosed;

impl std::fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stdout is closed")
    }
}

impl std::error::Error for OutputClosed {}

/// Prints a line to stdout.
///
/// # Errors
/// What can't be written; [`OutputClosed`] for a closed pipe.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_bytes(format!("{text}\n").as_bytes())
}

/// Prints bytes to stdout, as [`print()`] does.
///
/// # Errors
/// Those of [`print()`].
pub(crate) fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => OutputClosed.into(),
        _ => anyhow::Error::new(error).context("standard output"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn manual_pages_and_completions_are_made() {
        crate::pages::check(&Cli::command());
    }

    /// The page of all commands has each of them.
    #[test]
    fn commands_are_on_their_page() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/command-lines.md"));
        let page = page.unwrap();
        let (_, table) = page.split_once("## All of them").unwrap();
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).collect();
        fn look(command: &clap::Command, above: &str, rows: &[&str]) {
            for below in
                command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
            {
                let whole = format!("{above} {}", below.get_name());
                // Those below one may stand in its row, by their own names.
                let is_there = |row: &&str| {
                    let shown = row.split(" | ").next().unwrap();
                    let words: Vec<&str> = shown.split([' ', '`', '|', '\\', ',']).collect();
                    whole.split(' ').all(|word| words.contains(&word))
                };
                assert!(rows.iter().any(is_there), "{whole} is not in docs/src/command-lines.md");
                look(below, &whole, rows);
            }
        }
        look(&Cli::command(), "softhca", &rows);
    }

    #[test]
    fn errors_name_the_choices() {
        for (line, choice) in [("softhca nothing", "|replay|"), ("softhca ctl --socket s nothing", "link|")] {
            let error = with_choices(Cli::command()).try_get_matches_from(line.split(' ')).unwrap_err();
            assert!(error.to_string().contains(choice), "{error}");
            assert!(!error.to_string().contains("worker"), "{error}");
        }
    }

    #[test]
    fn both_forms_of_serve_parse() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("softhca serve --socket s").is_ok());
        assert!(parse("softhca serve --socket s --profile p --port-type ib").is_ok());
        assert!(parse("softhca serve --socket s --personality connectx4").is_ok());
        assert!(parse("softhca serve --socket s --personality connectx9").is_err());
        assert!(parse("softhca serve --topology t --run-dir d").is_ok());
        assert!(parse("softhca serve --socket s --trace t --trace-hash --pcap p --pcap-port a/hca0").is_ok());
        assert!(parse("softhca serve --socket s --pcap-port a/hca0").is_err());
        assert!(parse("softhca explain t --wr 0x42:7 --svg p").is_ok());
        assert!(parse("softhca explain t --wr 7").is_err());
        assert!(parse("softhca stat --run-dir d --json").is_ok());
        assert!(parse("softhca stat --socket s --watch 0.5 --count 3").is_ok());
        assert!(parse("softhca stat --socket s --count 3").is_err());
        assert!(parse("softhca explain t --svg p").is_err());
        assert!(parse("softhca serve --topology t").is_err());
        assert!(parse("softhca serve --topology t --run-dir d --socket s").is_err());
        assert!(parse("softhca serve --socket s --run-dir d").is_err());
        assert!(parse("softhca serve --socket s --port-type eth").is_ok());
        assert!(parse("softhca serve --socket s --port-type fc").is_err());
        assert!(parse("softhca serve --topology t --run-dir d --process p --tunnel-key-file k").is_ok());
        assert!(parse("softhca serve --socket s --process p").is_err());
        assert!(parse("softhca serve --topology t --run-dir d --isolation process").is_ok());
        assert!(parse("softhca serve --topology t --run-dir d --isolation some").is_err());
        assert!(parse("softhca serve --socket s --isolation process").is_err());
        assert!(parse("softhca ctl --run-dir d links").is_ok());
        assert!(parse("softhca ctl --socket s link down a:1").is_ok());
        assert!(parse("softhca ctl --run-dir d link sideways a").is_err());
        assert!(parse("softhca resources --run-dir d --json").is_ok());
        assert!(parse("softhca serve --socket s --no-sandbox --uid nobody --gid 7").is_ok());
        assert!(parse("softhca serve --socket s --gid 7").is_err());
        assert!(parse("softhca serve --socket s --metrics 127.0.0.1:9100").is_ok());
        assert!(parse("softhca serve --socket s --metrics 0.0.0.0:9100").is_err());
        assert!(parse("softhca serve --socket s --record f --record-limit 1M").is_ok());
        assert!(parse("softhca serve --socket s --record-limit 1M").is_err());
        assert!(parse("softhca replay f --check --until 1.5 --trace t --pcap p").is_ok());
    }

    #[test]
    fn resources_as_a_table() {
        let answer = serde_json::json!({"hcas": [{"name": "a/hca0", "attached": true,
            "now": {"qp": 3}, "last_teardown": {"qp": 0}}]});
        let table = resource_table(&answer);
        assert!(table.contains("a/hca0 (attached)"), "{table}");
        let line = table.lines().last().unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["qp", "3", "0"]);
    }
}
