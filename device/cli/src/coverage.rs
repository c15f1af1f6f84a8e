//! `softhca coverage`: what a driver uses of the interface, of a running server, a trace, a recording, or a file of coverage.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use hca_server::control;
use hca_server::recording::{Recording, Replay};
use hca_trace::coverage::{Coverage, Difference, text};
use serde_json::Value;

use crate::cli::print;
use crate::ctl::control_of;

/// Show what a driver uses of the interface: bring-up as a checklist, commands and their fields, events, errors
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca serve --topology two-hosts --run-dir /tmp/pair --coverage\n  \
    softhca coverage --run-dir /tmp/pair\n  \
    softhca coverage trace.json --never\n  \
    softhca coverage pair.rec\n  \
    softhca coverage --run-dir /tmp/pair --json > new.json\n  \
    softhca coverage new.json --against old.json\n      \
    what one uses and the other does not\n\n\
    A file is a trace (--trace of serve and bench), a recording (--record of serve), or coverage as JSON (--json, or\n    \
    --coverage=FILE of serve).")]
pub(crate) struct Shown {
    /// A trace, a recording, or coverage as JSON; without one, a running server is asked
    file: Option<PathBuf>,
    /// Run directory of the server; that of `hca-vm run` is in SOFTHCA_RUN_DIR
    #[arg(long, value_name = "DIR", env = "SOFTHCA_RUN_DIR")]
    run_dir: Option<PathBuf>,
    /// Socket of a server with a single adapter
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Another file: what one of the two uses and the other does not
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also what was never reached
    #[arg(long, conflicts_with_all = ["json", "against"])]
    never: bool,
}

/// Coverage of a recording: it is played.
///
/// # Errors
/// It can't be played, or something is not as recorded: what comes behind that is not known.
fn of_recording(path: &Path) -> anyhow::Result<Coverage> {
    let mut replay = Replay::open(path, false, None)?;
    replay.observe(&hca_trace::Options { coverage: Some(None), ..hca_trace::Options::default() })?;
    if let Some(divergence) = replay.run()?.divergence {
        bail!("{}: {divergence}", path.display());
    }
    let coverage = replay.coverage().context("nothing was collected")?;
    Ok(coverage.clone())
}

/// Coverage of a file: a recording has its mark, a trace begins with a bracket.
///
/// # Errors
/// It can't be read, or is none of them; the message names it.
fn of_file(path: &Path) -> anyhow::Result<Coverage> {
    if Recording::is_one(path).with_context(|| format!("{}", path.display()))? {
        return of_recording(path);
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    let coverage = if text.starts_with('[') { Coverage::of_trace(&text) } else { Coverage::parse(&text) };
    coverage.with_context(|| format!("{}: neither a trace, a recording nor coverage", path.display()))
}

/// Coverage of a running server.
fn of_server(args: &Shown) -> anyhow::Result<Coverage> {
    let path = control_of(args.socket.as_deref(), args.run_dir.as_deref())
        .context("a file, --run-dir or --socket is needed")?;
    let answer = control::query(&path, "coverage")?;
    Coverage::parse(&answer.get("coverage").unwrap_or(&Value::Null).to_string())
}

/// Does what `softhca coverage` is asked for.
///
/// # Errors
/// There is no such file or server, or the server collects nothing.
pub(crate) fn run(args: &Shown) -> anyhow::Result<()> {
    let coverage = match &args.file {
        Some(file) => of_file(file)?,
        None => of_server(args)?,
    };
    let Some(against) = &args.against else {
        return match args.json {
            true => print(&format!("{:#}", coverage.json())),
            false => print(text::text(&coverage, args.never).trim_end()),
        };
    };
    let difference = Difference::new(&coverage, &of_file(against)?);
    if args.json {
        return print(&serde_json::to_string_pretty(&difference)?);
    }
    let name =
        |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let first = args.file.as_deref().map_or_else(|| "the server".to_owned(), name);
    print(difference.text(&first, &name(against)).trim_end())
}
