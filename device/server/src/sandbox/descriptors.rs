//! Descriptors that whoever started this program left open.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

/// The first that is not standard input, output or error.
const FIRST: u32 = 3;

/// Closes every descriptor but the standard ones and `keep`. To be called first of all, before this program has opened
/// anything itself.
pub fn close_inherited(keep: &[BorrowedFd<'_>]) {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    keep.sort_unstable();
    let mut first = FIRST;
    for kept in keep.into_iter().filter(|fd| *fd >= FIRST) {
        if let Some(last) = kept.checked_sub(1).filter(|last| *last >= first) {
            close(first, last);
        }
        first = kept.saturating_add(1);
    }
    close(first, u32::MAX);
}

/// Closes all from `first` to `last`. Kernels before 5.9 can't: what was inherited stays there.
fn close(first: u32, last: u32) {
    // SAFETY: the call takes numbers. Nothing of this program owns one of these descriptors: it has opened none, which its
    // callers promise, and those that it was told to keep are not among them.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result != 0 {
        tracing::debug!("inherited descriptors: {}", std::io::Error::last_os_error());
    }
}
