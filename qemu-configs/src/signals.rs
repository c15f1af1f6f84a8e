//! Ctrl-C and SIGTERM: noted, so that the run ends in order and leaves nothing behind.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nix::sys::signal::{SigSet, Signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static ORDERLY: AtomicBool = AtomicBool::new(false);

/// Takes over SIGINT, SIGTERM and SIGHUP. Call it before any thread is started; programs only, not tests.
pub fn install() -> Result<()> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block()?;
    std::thread::spawn(move || {
        while set.wait().is_ok() {
            let again = INTERRUPTED.swap(true, Ordering::Relaxed);
            if again || !ORDERLY.load(Ordering::Relaxed) {
                // Asked twice, or nobody polls: children die with us by their death signal.
                std::process::exit(130);
            }
        }
    });
    Ok(())
}

/// From now on the caller polls [`interrupted`] often and ends in order.
pub fn expect_orderly_end() {
    ORDERLY.store(true, Ordering::Relaxed);
}

/// Has one of them come?
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
