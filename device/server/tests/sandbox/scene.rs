//! What a process has before it enters the sandbox, and may try to misuse.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// A run directory, a folder beside it, and descriptors.
pub(crate) struct Scene {
    /// May be used: sockets are removed there.
    pub(crate) run: PathBuf,
    /// May not.
    pub(crate) elsewhere: PathBuf,
    /// Memory with the bytes of a program.
    pub(crate) memory: File,
    /// A page that may be read and written.
    pub(crate) page: usize,
    /// The process that started this one.
    pub(crate) parent: i32,
    /// A server that listens on loopback, and a socket that is not connected.
    pub(crate) address: SocketAddr,
    _listener: TcpListener,
    pub(crate) socket: RawFd,
}

pub(crate) const PAGE: usize = 4096;

impl Scene {
    /// Makes it in `dir`, which is there.
    pub(crate) fn new(dir: &Path) -> Scene {
        let (run, elsewhere) = (dir.join("run"), dir.join("elsewhere"));
        for folder in [&run, &elsewhere] {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("file"), "text").unwrap();
        }
        let mut memory = File::from(memfd_create(c"code", MFdFlags::empty()).unwrap());
        memory.write_all(&[0x90; PAGE]).unwrap();
        // SAFETY: a new mapping, of nobody.
        let page = unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0)
        };
        // SAFETY: the call takes numbers.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        assert!(socket >= 0 && page != libc::MAP_FAILED);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let parent = std::os::unix::process::parent_id() as i32;
        Scene { run, elsewhere, memory, page: page.addr(), parent, address, _listener: listener, socket }
    }

    pub(crate) fn memory(&self) -> RawFd {
        self.memory.as_raw_fd()
    }
}
