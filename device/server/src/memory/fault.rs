//! Accesses to mapped files that survive when a page is not there.
//!
//! A page of a mapped file may be impossible to have: its owner has shortened the file, the pool of huge pages is empty, the
//! system has no memory for it, or the memory is broken. The kernel tells by SIGBUS, whose default ends the process and with
//! it everybody's adapter. Seals prevent only the first, and only where the file allows them. So the signal is taken: if it
//! comes from an access that is announced here, zeroes are mapped over the area, the area is marked as lost, and the access
//! goes on. Whoever made it looks at the mark afterwards. Any other SIGBUS does what it did before.
//!
//! That each access is announced makes it cheap to know whose it is, and the handler needs neither a lock nor a table.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Addresses that a file is mapped at.
#[derive(Debug)]
pub(crate) struct Area {
    first: usize,
    /// Whole pages of the file's size.
    len: usize,
    lost: AtomicBool,
}

impl Area {
    /// An area of a mapping that its owner keeps as long as the area.
    pub(crate) fn new(first: *const u8, len: usize) -> Area {
        install();
        Area { first: first.addr(), len, lost: AtomicBool::new(false) }
    }

    /// Whether a page of it could not be had. What was read since is not what the file had.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Runs `access`, which touches mapped files in this area and that one only. [`Area::is_lost`] says afterwards whether
    /// a page could not be had.
    #[inline]
    pub(crate) fn access(&self, other: Option<&Area>, access: impl FnOnce()) {
        ACCESSED.with(|accessed| {
            accessed.set([self, other.map_or(null(), |other| other)]);
            // The handler runs on this thread: the compiler must not move accesses out of their announcement.
            compiler_fence(Ordering::SeqCst);
            access();
            compiler_fence(Ordering::SeqCst);
            accessed.set([null(); 2]);
        });
    }
}

thread_local! {
    /// What this thread accesses at the moment.
    static ACCESSED: Cell<[*const Area; 2]> = const { Cell::new([null(); 2]) };
}

/// What SIGBUS did before; `None` if it could not be taken.
static BEFORE: OnceLock<Option<SigAction>> = OnceLock::new();

fn install() {
    BEFORE.get_or_init(|| {
        let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK;
        let action = SigAction::new(SigHandler::SigAction(on_fault), flags, SigSet::empty());
        // SAFETY: `on_fault` does only what a signal handler may: it reads a thread-local that needs no initialization
        // and no destructor, stores to atomics, and makes system calls; it allocates nothing and takes no lock.
        let before = unsafe { sigaction(Signal::SIGBUS, &action) };
        before.inspect_err(|e| tracing::error!("SIGBUS can't be taken: {e}")).ok()
    });
}

extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let errno = Errno::last_raw();
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid record; for SIGBUS of the kernel `si_addr` is its address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Positive codes are the kernel's: nobody can send them.
    let ours =
        code > 0 && ACCESSED.with(|accessed| accessed.get().into_iter().any(|area| give_up(area, address)));
    if !ours {
        restore(code > 0);
    }
    Errno::set_raw(errno);
}

/// Maps zeroes over the area if the address is in it.
fn give_up(area: *const Area, address: usize) -> bool {
    // SAFETY: pointers in ACCESSED are null or of areas that `Area::access` borrows until it takes them out.
    let Some(area) = (unsafe { area.as_ref() }) else { return false };
    if !(area.first..area.first.saturating_add(area.len)).contains(&address) {
        return false;
    }
    area.lost.store(true, Ordering::Relaxed);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the area is a mapping of its owner's, who accesses it by address only and unmaps the same addresses in the
    // end: no Rust object lies there, and nothing depends on what it has.
    let new = unsafe { libc::mmap(area.first as *mut c_void, area.len, protection, flags, -1, 0) };
    new != libc::MAP_FAILED
}

/// What SIGBUS did before happens now: to the access that is made again, or to a signal that somebody sent.
fn restore(made_again: bool) {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    let before = BEFORE.get().copied().flatten().unwrap_or(default);
    // SAFETY: that action was there before, or is the default.
    let _ = unsafe { sigaction(Signal::SIGBUS, &before) };
    if !made_again {
        let _ = nix::sys::signal::raise(Signal::SIGBUS);
    }
}
