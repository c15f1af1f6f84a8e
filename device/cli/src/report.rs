//! `softhca report`: a trace as one page of HTML to send to a colleague.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use hca_trace::explain::WorkRequest;
use hca_trace::report::{Options, page};

use crate::cli::print;

/// Make one page of HTML of a trace: checklist, commands, diagnoses, objects, links, latencies, a work request's life
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca serve --topology pair.toml --run-dir /tmp/pair --trace trace.json\n  \
    softhca report trace.json\n      \
    writes trace.html\n  \
    softhca report trace.json --wr 0x42:7 --output -\n\n\
    The page has everything in it and fetches nothing: it can be sent by mail and read without a network. It shows what\n\
    drivers did, with addresses and keys of their memory, but no data of messages.")]
pub(crate) struct Report {
    /// The trace
    trace: PathBuf,
    /// Where to write the page; - for the standard output [default: the trace's name with .html]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The work request whose life is told, QPN:INDEX [default: the one that took longest]
    #[arg(long, value_name = "QPN:INDEX")]
    wr: Option<WorkRequest>,
    /// Its adapter, HOST/HCA
    #[arg(long, value_name = "ADAPTER", requires = "wr")]
    adapter: Option<String>,
}

/// Does what `softhca report` is asked for.
///
/// # Errors
/// The trace can't be read or the page not written; there is no such work request.
pub(crate) fn run(args: &Report) -> anyhow::Result<()> {
    let shown = args.trace.display();
    let text = std::fs::read_to_string(&args.trace).with_context(|| format!("{shown}"))?;
    let name = args.trace.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let options = Options { wr: args.wr, adapter: args.adapter.clone() };
    let page = page(&text, &name, &options).with_context(|| format!("{shown}"))?;
    let output = args.output.clone().unwrap_or_else(|| args.trace.with_extension("html"));
    if output.as_os_str() == "-" {
        return std::io::stdout().write_all(page.as_bytes()).context("standard output");
    }
    let mut file = hca_trace::create_private(&output)?;
    file.write_all(page.as_bytes()).with_context(|| format!("{}", output.display()))?;
    print(&format!("{}", output.display()))
}
