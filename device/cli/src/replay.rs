//! Recordings: `softhca serve --record`, and `softhca replay`.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use hca_model::Ps;
use hca_server::recording::{End, Ending, Header, Options, Outcome, Replay};

use crate::cli::print;

/// What a server records.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub(crate) struct Recording {
    /// Keep in FILE all that reaches the adapters from outside, so that `softhca replay FILE` can run them again without QEMU. It has
    /// what guests send: only its owner can read it
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The recording ends when its file has so many bytes: 512M, 4G [default: 4G]
    #[arg(long, value_name = "SIZE", requires = "record", value_parser = hca_trace::size)]
    record_limit: Option<u64>,
}

impl Recording {
    /// What is to be recorded, if anything.
    pub(crate) fn options(&self) -> Option<Options> {
        self.record.clone().map(|file| Options { file, limit: self.record_limit })
    }
}

/// Run the adapters of a recording again, without QEMU, and compare what they do
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca serve --topology two-hosts --run-dir /tmp/pair --record pair.rec\n  \
    softhca replay pair.rec\n      \
    the same interrupts, writes to memory and trace hash, or the first divergence\n  \
    softhca replay pair.rec --trace trace.json --pcap packets.pcapng --until 1500\n      \
    looked at more closely than when it was recorded, for 1.5 s of model time\n\n\
    Exit code: 0 if all is as recorded, 1 if not, or the recording can't be read.")]
pub(crate) struct Arguments {
    /// What `softhca serve --record FILE` wrote
    file: PathBuf,
    /// Look for drivers' mistakes, though it was recorded without: what is in hosts' memory is not seen then
    #[arg(long)]
    check: bool,
    /// Stop after so many milliseconds of model time
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    until: Option<Ps>,
    #[command(flatten)]
    observe: hca_trace::Options,
}

/// Understands `1500` and `0.25`.
///
/// # Errors
/// What is possible, as text.
pub(crate) fn milliseconds(text: &str) -> Result<Ps, String> {
    let ms = text.parse::<f64>().ok().filter(|ms| (0.0..1e9).contains(ms));
    ms.map(|ms| Ps((ms * 1e9) as u64)).ok_or_else(|| format!("{text:?} is no number of milliseconds"))
}

/// Replays.
///
/// # Errors
/// Something is not as recorded, or the recording can't be read.
pub(crate) fn run(args: &Arguments) -> anyhow::Result<()> {
    let mut replay = Replay::open(&args.file, args.check, args.until)?;
    let Header { softhca, adapters, check, .. } = replay.header().clone();
    let checker = if check { "with the checker" } else { "without the checker" };
    print(&format!(
        "{}: {}, recorded by softhca {softhca} {checker}",
        args.file.display(),
        adapters.join(", ")
    ))?;
    replay.observe(&args.observe)?;
    let outcome = replay.run();
    let lines = replay.end_observing()?;
    let outcome = outcome?;
    lines.into_iter().try_for_each(|line| print(&line))?;
    print(&table(&outcome))?;
    judge(&outcome)
}

fn table(outcome: &Outcome) -> String {
    let Outcome { records, time, ending, dma_reads, dma_writes, interrupts, packets, diagnoses, .. } =
        outcome;
    let ending = match ending {
        Some(Ending::Whole(End::Stopped)) => "to the end",
        Some(Ending::Whole(End::Limit)) => "to the end, which is its limit",
        Some(Ending::Cut) => "up to where it is cut: the server crashed, or the file was",
        None => "not to the end",
    };
    let (hash, count) = outcome.hash;
    format!(
        "replayed {ending}: {records} records, {} of model time\n\
         as recorded: {interrupts} interrupts, {dma_writes} writes to memory, {packets} packets to elsewhere; answered: {dma_reads} reads\n\
         diagnoses: {diagnoses}\n\
         trace hash: {hash:016x} of {count} events",
        Ps(*time)
    )
}

fn judge(outcome: &Outcome) -> anyhow::Result<()> {
    if let Some(divergence) = &outcome.divergence {
        bail!("{divergence}\nIf that is meant, record anew");
    }
    if let Some((before, after)) = outcome.inside {
        bail!(
            "what is seen from outside is as recorded, but not what happens inside: the hash of the trace differs between \
             records {before} and {after}. If that is meant, record anew"
        );
    }
    print(if outcome.compared { "all is as recorded" } else { "what is seen from outside is as recorded" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(milliseconds("1500"), Ok(Ps::from_ms(1500)));
        assert_eq!(milliseconds("0.25"), Ok(Ps::from_us(250)));
        for text in ["", "x", "-1", "inf", "nan", "1e30"] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
    }
}
