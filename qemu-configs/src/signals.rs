//! Ctrl-C and SIGTERM: noted, so that the run ends in order and leaves nothing behind.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nix::sys::signal::{SigSet, Signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Takes over SIGINT, SIGTERM and SIGHUP. Call it before any thread is started; programs only, not tests.
pub fn install() -> Result<()> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block()?;
    std::thread::spawn(move || {
        while set.wait().is_ok() {
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                // Asked twice: children die with us by their death signal.
                std::process::exit(130);
            }
        }
    });
    Ok(())
}

/// Has one of them come?
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
