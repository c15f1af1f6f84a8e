//! Locks that are never given up.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a poisoned lock is as good as any, since every state behind ours is valid at all times.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
