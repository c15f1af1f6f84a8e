//! Recorded sessions of stock drivers, which are played again without guests: `tests/recordings`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hca_server::recording::{Divergence, End, Ending, Replay};
use hca_vm::run::Run;

/// Kernels of whose drivers there are sessions.
pub const KERNELS: [&str; 3] = ["6.1", "6.12", "7.2"];
/// What makes them anew.
pub const ANEW: &str = "cargo run --release -p hca-tests -- record";
/// Messages of the pingpong.
const MESSAGES: u32 = 100;

/// What ends the driver.
const UNLOAD: &str = "modprobe -r mlx5_ib mlx5_core";

/// Where they are.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings")
}

/// The session of a kernel's driver.
pub fn file(kernel: &str) -> PathBuf {
    folder().join(format!("{kernel}.rec"))
}

fn hashes_file() -> PathBuf {
    folder().join("hashes.json")
}

/// The hash of all that is traced in each of them, by kernel.
///
/// # Errors
/// The file can't be read.
pub fn hashes() -> Result<BTreeMap<String, String>> {
    let path = hashes_file();
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Plays a session. Returns the hash of all that is traced.
///
/// # Errors
/// It can't be read, or something is not as recorded: where, and what makes it anew.
pub fn play(kernel: &str) -> Result<String> {
    let path = file(kernel);
    let outcome = Replay::open(&path, false, None)?.run()?;
    if let Some(divergence) = &outcome.divergence {
        bail!("{}", anew(&path, divergence));
    }
    if outcome.ending != Some(Ending::Whole(End::Stopped)) {
        bail!("{}: its end is missing ({:?})", path.display(), outcome.ending);
    }
    Ok(format!("{:016x}", outcome.hash.0))
}

/// What to say of a divergence.
fn anew(path: &Path, divergence: &Divergence) -> String {
    format!(
        "{}: {divergence}\nIf the change is meant, record anew, which takes guests of three kernels and some minutes:\n  {ANEW}",
        path.display()
    )
}

/// Records the session of a kernel's driver: two guests load it, send each other messages, and remove it.
///
/// # Errors
/// The guests can't be started, or something in them failed.
pub fn record(kernel: &str) -> Result<()> {
    let path = file(kernel);
    let report = Run::new("two-hosts")
        .kernel(kernel)
        .serve(format!("--record={}", path.display()))
        .host("a", format!("ibv_rc_pingpong -g 0 -n {MESSAGES} && {UNLOAD}"))
        .host("b", format!("until ibv_rc_pingpong -g 0 -n {MESSAGES} a; do sleep 1; done; {UNLOAD}"))
        .timeout(Duration::from_secs(600))
        .echo()
        .run()?;
    if report.exit_code() != 0 {
        bail!("{kernel}: the guests' commands failed:\n{report}");
    }
    Ok(())
}

/// Plays all sessions and keeps their hashes, after a change of what is traced that nobody sees from outside.
///
/// # Errors
/// A session can't be played as it was recorded.
pub fn keep_hashes() -> Result<()> {
    let hashes = KERNELS.iter().map(|kernel| Ok((*kernel, play(kernel)?)));
    let hashes = hashes.collect::<Result<BTreeMap<_, _>>>()?;
    let path = hashes_file();
    std::fs::write(&path, serde_json::to_string_pretty(&hashes)? + "\n")
        .with_context(|| path.display().to_string())
}
