//! `softhca report`: a session as one page of HTML to send to a colleague, out of its trace or its recording.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use hca_server::recording::{Recording, Replay};
use hca_trace::explain::WorkRequest;
use hca_trace::report::{Options, page};

use crate::cli::{print, print_bytes};

/// Make one page of HTML of a trace or a recording: checklist, commands, diagnoses, objects, links, latencies, a work request's life
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca serve --topology two-hosts --run-dir /tmp/pair --trace trace.json\n  \
    softhca report trace.json\n      \
    writes trace.html\n  \
    softhca report trace.json --wr 0x42:7 --output -\n  \
    softhca report pair.rec\n      \
    plays what serve --record wrote, and writes pair.html\n\n\
    The page has everything in it and fetches nothing: it can be sent by mail and read without a network. It shows what\n\
    drivers did, with addresses and keys of their memory, but no data of messages.")]
pub(crate) struct Report {
    /// The trace, or the recording, which is played
    trace: PathBuf,
    /// Where to write the page; - for the standard output [default: the file's name with .html]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The work request whose life is told, QPN:INDEX [default: the one that took longest]
    #[arg(long, value_name = "QPN:INDEX")]
    wr: Option<WorkRequest>,
    /// Its adapter, HOST/HCA
    #[arg(long, value_name = "ADAPTER", requires = "wr")]
    adapter: Option<String>,
}

/// A file that is gone when nobody needs it any more.
struct Passing(PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        // What can't be removed is in a folder for such files.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The trace of a recording: it is played, and traced into a file that passes.
///
/// # Errors
/// It can't be played, or something is not as recorded: what comes behind that is not known.
fn played(path: &Path) -> anyhow::Result<String> {
    let trace = Passing(std::env::temp_dir().join(format!("softhca-report-{}.json", std::process::id())));
    let mut replay = Replay::open(path, false, None)?;
    replay.observe(&hca_trace::Options { trace: Some(trace.0.clone()), ..hca_trace::Options::default() })?;
    let outcome = replay.run();
    replay.end_observing()?;
    if let Some(divergence) = outcome?.divergence {
        bail!("{divergence}");
    }
    std::fs::read_to_string(&trace.0).with_context(|| format!("{}", trace.0.display()))
}

/// Does what `softhca report` is asked for.
///
/// # Errors
/// The file can't be read or the page not written; there is no such work request.
pub(crate) fn run(args: &Report) -> anyhow::Result<()> {
    let shown = args.trace.display();
    let text = match Recording::is_one(&args.trace).with_context(|| format!("{shown}"))? {
        true => played(&args.trace).with_context(|| format!("{shown}"))?,
        false => std::fs::read_to_string(&args.trace).with_context(|| format!("{shown}"))?,
    };
    let name = args.trace.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let options = Options { wr: args.wr, adapter: args.adapter.clone() };
    let page = page(&text, &name, &options).with_context(|| format!("{shown}"))?;
    let output = args.output.clone().unwrap_or_else(|| args.trace.with_extension("html"));
    if output.as_os_str() == "-" {
        return print_bytes(page.as_bytes());
    }
    let mut file = hca_trace::create_private(&output)?;
    file.write_all(page.as_bytes()).with_context(|| format!("{}", output.display()))?;
    print(&format!("{}", output.display()))
}
