//! What objects cost in memory, and that it all comes back. A process of its own, whose allocator counts.

mod idle;
mod messages;
mod socket;

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cap::Cap;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Waits for its turn: what another test allocates at the same time would be counted, too. Keep what it returns until
/// all else is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // What a failed test leaves behind is only more memory in use before the next one begins.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
