//! Things that a process can try.
//!
//! An attempt makes the call that it is about and no other that ends the process: what it has to know is in the scene.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Error};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use nix::libc::{self, c_long};

use crate::scene::{PAGE, Scene};

/// What an attempt does. An error is the system's.
pub(crate) type Attempt = fn(&Scene) -> io::Result<()>;

/// A system call with numbers, or pointers to what outlives it.
macro_rules! call {
    ($number:expr $(, $argument:expr)* $(,)?) => {{
        // SAFETY: each attempt passes what the call takes, with memory that lives until it is over, or null.
        let result = unsafe { libc::syscall($number $(, $argument)*) };
        done(result)
    }};
}

fn done(result: c_long) -> io::Result<()> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Nothing that a process should not do: each has to work in the sandbox of a server.
pub(crate) const ALLOWED: &[(&str, Attempt)] = &[
    ("thread", |_| {
        std::thread::Builder::new().name("a".into()).spawn(|| ()).map(|thread| thread.join().unwrap())
    }),
    ("remove in the run directory", |s| std::fs::remove_file(s.run.join("file"))),
    ("map memory", |s| {
        // SAFETY: a new mapping, of nobody.
        let to = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, s.memory(), 0)
        };
        if to == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(()) }
    }),
    ("much heap", |_| {
        let much: Vec<Vec<u8>> = (0..64).map(|i| vec![1; (i + 1) << 16]).collect();
        std::hint::black_box(&much);
        Ok(())
    }),
    ("own pair", |_| std::os::unix::net::UnixStream::pair().map(drop)),
];

/// What a server has no business to do.
pub(crate) const FORBIDDEN: &[(&str, Attempt)] = &[
    // Files.
    ("read /etc/passwd", |_| File::open("/etc/passwd").map(drop)),
    ("read in the run directory", |s| File::open(s.run.join("file")).map(drop)),
    ("write in the run directory", |s| File::create(s.run.join("new")).map(drop)),
    ("write elsewhere", |s| File::options().write(true).open(s.elsewhere.join("file")).map(drop)),
    ("open by openat2", |_| {
        let how = [0u64; 3];
        call!(libc::SYS_openat2, libc::AT_FDCWD, c"/etc/passwd".as_ptr(), how.as_ptr(), size_of_val(&how))
    }),
    ("list a folder", |_| std::fs::read_dir("/etc").map(drop)),
    ("remove elsewhere", |s| std::fs::remove_file(s.elsewhere.join("file"))),
    ("make a folder", |s| std::fs::create_dir(s.run.join("folder"))),
    ("remove a folder", |s| std::fs::remove_dir(&s.run)),
    ("make a link", |s| symlink("/etc/passwd", s.run.join("link"))),
    ("make a hard link", |s| std::fs::hard_link(s.run.join("file"), s.run.join("link"))),
    ("rename out of the run directory", |s| std::fs::rename(s.run.join("file"), s.elsewhere.join("moved"))),
    ("change permissions", |s| {
        std::fs::set_permissions(s.run.join("file"), std::fs::Permissions::from_mode(0o666))
    }),
    ("change an owner", |s| std::os::unix::fs::chown(s.run.join("file"), Some(1), None)),
    ("truncate", |s| call!(libc::SYS_truncate, text(&s.run.join("file")).as_ptr(), 0)),
    ("make a device", |s| {
        call!(libc::SYS_mknodat, libc::AT_FDCWD, text(&s.run.join("pipe")).as_ptr(), libc::S_IFIFO, 0)
    }),
    ("change folders", |_| std::env::set_current_dir("/")),
    ("watch files", |_| call!(libc::SYS_inotify_init1, 0)),
    ("open by handle", |_| call!(libc::SYS_open_by_handle_at, -1, 0, 0)),
    // Programs and processes.
    ("execute", |_| {
        let (path, none) = (c"/bin/true", [std::ptr::null::<u8>()]);
        call!(libc::SYS_execve, path.as_ptr(), none.as_ptr(), none.as_ptr())
    }),
    ("execute memory", |s| {
        let none = [std::ptr::null::<u8>()];
        call!(libc::SYS_execveat, s.memory(), c"".as_ptr(), none.as_ptr(), none.as_ptr(), libc::AT_EMPTY_PATH)
    }),
    ("execute in a thread", |_| {
        let thread = std::thread::spawn(|| call!(libc::SYS_execve, c"/bin/true".as_ptr(), 0, 0));
        thread.join().unwrap()
    }),
    // The copy of this process has been possible, too, and ends as this one does.
    ("fork", |_| call!(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)),
    ("new process by clone3", |_| {
        let arguments = [0u64; 8];
        call!(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments))
    }),
    ("trace", |_| call!(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0)),
    ("signal another process", |s| call!(libc::SYS_kill, s.parent, 0)),
    ("signal another's thread", |s| call!(libc::SYS_tgkill, s.parent, s.parent, 0)),
    ("read another's memory", |s| {
        let (mut byte, from) = ([0u8], [std::ptr::null::<u8>().addr(), 1]);
        let to = [byte.as_mut_ptr().addr(), 1];
        call!(libc::SYS_process_vm_readv, s.parent, to.as_ptr(), 1, from.as_ptr(), 1, 0)
    }),
    ("hold another process", |s| call!(libc::SYS_pidfd_open, s.parent, 0)),
    ("take another's descriptor", |_| call!(libc::SYS_pidfd_getfd, -1, 0, 0)),
    ("prlimit of another", |s| {
        let mut limit = [0u64; 2];
        call!(libc::SYS_prlimit64, s.parent, libc::RLIMIT_NOFILE, 0, limit.as_mut_ptr())
    }),
    ("raise a limit", |_| {
        let limit = [1u64, 1];
        call!(libc::SYS_prlimit64, 0, libc::RLIMIT_CORE, limit.as_ptr(), 0)
    }),
    // The network.
    ("internet socket", |_| call!(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0)),
    ("datagram socket", |_| call!(libc::SYS_socket, libc::AF_INET6, libc::SOCK_DGRAM, 0)),
    ("netlink socket", |_| call!(libc::SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW, 0)),
    ("packet socket", |_| call!(libc::SYS_socket, libc::AF_PACKET, libc::SOCK_RAW, 0)),
    ("Unix socket", |_| call!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0)),
    ("netlink pair", |_| {
        let mut pair = [0i32; 2];
        call!(libc::SYS_socketpair, libc::AF_NETLINK, libc::SOCK_RAW, 0, pair.as_mut_ptr())
    }),
    ("connect", |s| {
        let SocketAddr::V4(to) = s.address else { unreachable!() };
        let mut address = [0u8; 16];
        address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        address[2..4].copy_from_slice(&to.port().to_be_bytes());
        address[4..8].copy_from_slice(&to.ip().octets());
        call!(libc::SYS_connect, s.socket, address.as_ptr(), address.len())
    }),
    ("listen", |s| call!(libc::SYS_listen, s.socket, 1)),
    ("socket option", |s| {
        let one = 1i32;
        let size = size_of_val(&one);
        call!(libc::SYS_setsockopt, s.socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &raw const one, size)
    }),
    // Code.
    ("memory becomes code", |s| call!(libc::SYS_mprotect, s.page, PAGE, libc::PROT_READ | libc::PROT_EXEC)),
    ("file becomes code", |s| {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        call!(libc::SYS_mmap, 0, PAGE, protection, libc::MAP_PRIVATE, s.memory(), 0)
    }),
    ("code by a key", |s| call!(libc::SYS_pkey_mprotect, s.page, PAGE, libc::PROT_EXEC, -1)),
    ("new memory file", |_| call!(libc::SYS_memfd_create, c"a".as_ptr(), 0)),
    ("segment", |_| call!(libc::SYS_shmget, 0x5eed, PAGE, 0)),
    ("personality", |_| call!(libc::SYS_personality, 0x0040_0000)),
    // The kernel's larger doors.
    ("bpf", |_| call!(libc::SYS_bpf, 0, 0, 0)),
    ("perf_event_open", |_| call!(libc::SYS_perf_event_open, 0, 0, -1, -1, 0)),
    ("add_key", |_| call!(libc::SYS_add_key, 0, 0, 0, 0, 0)),
    ("keyctl", |_| call!(libc::SYS_keyctl, 0, -4, 0)),
    ("io_uring_setup", |_| call!(libc::SYS_io_uring_setup, 1, 0)),
    ("userfaultfd", |_| call!(libc::SYS_userfaultfd, 1)),
    ("another filter", |_| call!(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, 0)),
    ("device control", |s| call!(libc::SYS_ioctl, s.memory(), libc::TIOCSTI, 0)),
    ("owner of signals", |s| call!(libc::SYS_fcntl, s.socket, libc::F_SETOWN, s.parent)),
    ("prctl", |_| call!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0)),
    // The machine.
    ("mount", |_| call!(libc::SYS_mount, 0, 0, 0, 0, 0)),
    ("unmount", |_| call!(libc::SYS_umount2, c"/nowhere".as_ptr(), 0)),
    ("pivot_root", |_| call!(libc::SYS_pivot_root, c"/nowhere".as_ptr(), c"/nowhere".as_ptr())),
    ("chroot", |_| call!(libc::SYS_chroot, c"/nowhere".as_ptr())),
    ("unshare", |_| call!(libc::SYS_unshare, libc::CLONE_NEWUSER)),
    ("setns", |_| call!(libc::SYS_setns, -1, 0)),
    ("setuid", |_| call!(libc::SYS_setuid, nix::unistd::getuid().as_raw())),
    ("setgroups", |_| call!(libc::SYS_setgroups, 0, 0)),
    ("capset", |_| call!(libc::SYS_capset, 0, 0)),
    ("reboot", |_| call!(libc::SYS_reboot, 0, 0, 0, 0)),
    ("swapon", |_| call!(libc::SYS_swapon, c"/nowhere".as_ptr(), 0)),
    ("init_module", |_| call!(libc::SYS_init_module, 0, 0, c"".as_ptr())),
    ("kexec", |_| call!(libc::SYS_kexec_load, 0, 0, 0, 0xffff_ffffu32)),
    ("hostname", |_| call!(libc::SYS_sethostname, c"".as_ptr(), -1)),
    ("clock", |_| call!(libc::SYS_clock_settime, 99, 0)),
];
