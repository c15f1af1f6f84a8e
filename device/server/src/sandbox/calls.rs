//! Which system calls a role makes, and why.

use nix::libc;
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use super::seccomp::Calls;
use super::{Connects, Role};

/// What a role may do.
pub(super) struct List {
    /// Calls that are made.
    pub(super) allowed: Calls,
    /// Calls that get an error, whatever they ask for. All others end the process.
    pub(super) refused: Vec<(i64, i32)>,
}

/// Threads of this process, and no process: what the C libraries ask for, of which all but one are always there (the kernel
/// ignores `CLONE_DETACHED`, which musl sets).
const THREAD: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;
/// A process: what `posix_spawn` and `fork` ask for beside these two, and the signal at its end.
const PROCESS: i32 = libc::CLONE_VM
    | libc::CLONE_VFORK
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID
    | libc::SIGCHLD;

/// The list of a role that begins these connections.
///
/// # Errors
/// A condition is none: a mistake here.
pub(super) fn list(role: Role, connects: &Connects) -> anyhow::Result<List> {
    let mut allowed = Calls::new();
    common(&mut allowed)?;
    serving(&mut allowed)?;
    let mut refused = vec![
        // Its flags are in memory, where no filter sees them. The C library takes `clone` then.
        (libc::SYS_clone3, libc::ENOSYS),
    ];
    // A panic that shows where it came from looks for this program's file, and tells without.
    let looking = [libc::SYS_openat, libc::SYS_getcwd];
    match role {
        Role::Server => {
            refused.extend(looking.map(|call| (call, libc::EACCES)));
            all(&mut allowed, &[libc::SYS_unlinkat]);
            #[cfg(target_arch = "x86_64")]
            all(&mut allowed, &[libc::SYS_unlink]);
            connecting(&mut allowed, connects)?;
        }
        Role::Worker => refused.extend(looking.map(|call| (call, libc::EACCES))),
        Role::Supervisor => starting(&mut allowed)?,
    }
    #[cfg(target_arch = "x86_64")]
    if role != Role::Supervisor {
        refused.extend([libc::SYS_open, libc::SYS_readlink].map(|call| (call, libc::EACCES)));
    }
    Ok(List { allowed, refused })
}

/// The list of the process that opens what a client's process has mapped.
///
/// # Errors
/// As [`list`].
pub(super) fn of_helper() -> anyhow::Result<List> {
    let mut allowed = Calls::new();
    common(&mut allowed)?;
    all(&mut allowed, &[libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_getsockopt]);
    waiting(&mut allowed);
    // To read only: neither made nor emptied. `O_PATH` and `O_DIRECTORY` do no harm.
    let mode = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;
    when(&mut allowed, libc::SYS_openat, [bits(2, mode, libc::O_RDONLY as u64)?])?;
    Ok(List { allowed, refused: vec![(libc::SYS_clone3, libc::ENOSYS)] })
}

/// What every program does: memory, time, signals of its own, ending.
fn common(calls: &mut Calls) -> anyhow::Result<()> {
    all(
        calls,
        &[
            libc::SYS_brk,
            libc::SYS_munmap,
            libc::SYS_mremap,
            libc::SYS_madvise,
            libc::SYS_futex,
            libc::SYS_close,
            libc::SYS_clock_gettime,
            libc::SYS_gettimeofday,
            libc::SYS_getrandom,
            libc::SYS_getpid,
            libc::SYS_gettid,
            libc::SYS_getuid,
            libc::SYS_geteuid,
            libc::SYS_getgid,
            libc::SYS_getegid,
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_sigaltstack,
            libc::SYS_restart_syscall,
            libc::SYS_sched_yield,
            libc::SYS_exit,
            libc::SYS_exit_group,
        ],
    );
    // No memory becomes code.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        when(calls, call, [bits(2, libc::PROT_EXEC as u64, 0)?])?;
    }
    // Flags and copies of descriptors, and seals of memory. No owners, signals or leases.
    for command in [
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        libc::F_DUPFD_CLOEXEC,
        libc::F_GET_SEALS,
        libc::F_ADD_SEALS,
    ] {
        when(calls, libc::SYS_fcntl, [equal(1, command as u64)?])?;
    }
    // Signals to threads of this process: that is how it aborts.
    when(calls, libc::SYS_tgkill, [equal(0, u64::from(std::process::id()))?])
}

/// Waiting for descriptors, and for words of memory.
fn waiting(calls: &mut Calls) {
    all(calls, &[libc::SYS_ppoll, libc::SYS_futex_waitv]);
    #[cfg(target_arch = "x86_64")]
    all(calls, &[libc::SYS_poll]);
}

/// What serving takes: connections, messages, interrupts, threads that close and look.
fn serving(calls: &mut Calls) -> anyhow::Result<()> {
    waiting(calls);
    all(
        calls,
        &[
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_readv,
            libc::SYS_writev,
            libc::SYS_lseek,
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_sendto,
            libc::SYS_sendmsg,
            libc::SYS_accept4,
            libc::SYS_shutdown,
            libc::SYS_getsockopt,
            libc::SYS_eventfd2,
            libc::SYS_timerfd_create,
            libc::SYS_timerfd_settime,
            libc::SYS_fstat,
            libc::SYS_newfstatat,
            libc::SYS_statx,
            // What a descriptor is of. Of paths it tells no more than where links lead.
            libc::SYS_readlinkat,
            libc::SYS_nanosleep,
            libc::SYS_clock_nanosleep,
            libc::SYS_set_robust_list,
            libc::SYS_rseq,
            libc::SYS_sched_getaffinity,
        ],
    );
    when(calls, libc::SYS_clone, [bits(0, !0x0040_0000, THREAD as u64)?])?;
    // A connection that is accepted has nothing out of band.
    let level = equal(1, libc::SOL_SOCKET as u64)?;
    when(calls, libc::SYS_setsockopt, [level, equal(2, libc::SO_OOBINLINE as u64)?])?;
    // Answers of the helper come over a pair of their own.
    when(calls, libc::SYS_socketpair, [equal(0, libc::AF_UNIX as u64)?])?;
    // How the standard library makes a socket non-blocking. No device is asked for anything.
    when(calls, libc::SYS_ioctl, [equal(1, libc::FIONBIO)?])?;
    // Names of threads and of memory.
    for option in [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA] {
        when(calls, libc::SYS_prctl, [equal(0, option as u64)?])?;
    }
    // Limits are read, not set.
    when(calls, libc::SYS_prlimit64, [equal(0, 0)?, null(2)?])
}

/// Stream sockets that begin a connection. Where to is in memory, where no filter sees it: of TCP, landlock knows the ports.
fn connecting(calls: &mut Calls, connects: &Connects) -> anyhow::Result<()> {
    let Connects { unix, ports } = connects;
    let mut families = Vec::new();
    families.extend(unix.then_some(libc::AF_UNIX));
    if !ports.is_empty() {
        families.extend([libc::AF_INET, libc::AF_INET6]);
        let level = equal(1, libc::IPPROTO_TCP as u64)?;
        when(calls, libc::SYS_setsockopt, [level, equal(2, libc::TCP_NODELAY as u64)?])?;
    }
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
    for family in &families {
        when(calls, libc::SYS_socket, [equal(0, *family as u64)?, equal(1, kind)?, equal(2, 0)?])?;
    }
    if !families.is_empty() {
        all(calls, &[libc::SYS_connect]);
    }
    Ok(())
}

/// What it takes to execute this program again, and what that does until it enters the sandbox itself.
fn starting(calls: &mut Calls) -> anyhow::Result<()> {
    all(
        calls,
        &[
            libc::SYS_execve,
            libc::SYS_wait4,
            libc::SYS_waitid,
            libc::SYS_pidfd_open,
            libc::SYS_pidfd_send_signal,
            // Landlock keeps signals among this process and its workers, where it can (ABI 6).
            libc::SYS_kill,
            libc::SYS_dup3,
            libc::SYS_pipe2,
            libc::SYS_close_range,
            libc::SYS_memfd_create,
            libc::SYS_ftruncate,
            libc::SYS_openat,
            libc::SYS_faccessat,
            libc::SYS_faccessat2,
            libc::SYS_getdents64,
            libc::SYS_getcwd,
            libc::SYS_pread64,
            libc::SYS_prlimit64,
            libc::SYS_set_tid_address,
            libc::SYS_setpgid,
            libc::SYS_setsockopt,
            libc::SYS_signalfd4,
            libc::SYS_umask,
            libc::SYS_unlinkat,
            // The sandbox.
            libc::SYS_prctl,
            libc::SYS_capget,
            libc::SYS_capset,
            libc::SYS_seccomp,
            libc::SYS_landlock_create_ruleset,
            libc::SYS_landlock_add_rule,
            libc::SYS_landlock_restrict_self,
            libc::SYS_uname,
            // The loader maps programs; that may be executed.
            libc::SYS_mmap,
            libc::SYS_mprotect,
            // Whose process it is: `tgkill` of a worker.
            libc::SYS_tgkill,
        ],
    );
    #[cfg(target_arch = "x86_64")]
    all(
        calls,
        &[
            libc::SYS_access,
            libc::SYS_arch_prctl,
            libc::SYS_dup2,
            libc::SYS_open,
            libc::SYS_readlink,
            libc::SYS_unlink,
            libc::SYS_vfork,
        ],
    );
    // Whether output is a terminal.
    when(calls, libc::SYS_ioctl, [equal(1, libc::TCGETS)?])?;
    // Nothing but these flags: no namespaces.
    when(calls, libc::SYS_clone, [bits(0, !(PROCESS as u32 as u64), 0)?])
}

/// Calls with any arguments.
fn all(calls: &mut Calls, these: &[i64]) {
    calls.extend(these.iter().map(|call| (*call, Vec::new())));
}

/// A call if all of these conditions hold, or those that it had before.
fn when<const N: usize>(
    calls: &mut Calls,
    call: i64,
    conditions: [SeccompCondition; N],
) -> anyhow::Result<()> {
    let rules = calls.entry(call).or_default();
    rules.push(SeccompRule::new(conditions.into())?);
    Ok(())
}

/// The lower half of an argument is this: for arguments that the kernel takes as `int`.
fn equal(argument: u8, value: u64) -> anyhow::Result<SeccompCondition> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?)
}

/// These bits of an argument are so.
fn bits(argument: u8, mask: u64, value: u64) -> anyhow::Result<SeccompCondition> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)?)
}

/// A pointer that is null.
fn null(argument: u8) -> anyhow::Result<SeccompCondition> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?)
}
