//! A client whose file nobody can seal waits; others don't.

#[path = "../../tests/common/raw.rs"]
#[allow(dead_code, unreachable_pub)] // other tests use the rest
mod raw;

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use raw::{IDENTITY, Raw, dma_map};

use super::VfioUser;
use crate::engine::{Engine, Role};
use crate::front_end::FrontEnd;
use crate::memory::can_be_shortened;
use crate::topology::{Hca, Topology};

const DMA_MAP: u16 = 2;
const SIZE: u64 = 0x1000;

/// Two hosts in one engine, whose files are kept from being shortened in another way.
struct Server {
    dir: PathBuf,
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(name: &str, patience: Duration, keep_length: fn(BorrowedFd<'_>)) -> Server {
        let text = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n";
        let topology = Topology::parse("test", text).unwrap();
        let dir = std::env::temp_dir().join(format!("softhca-look-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let stop = EventFd::new().unwrap();
        let listen = |hca: &Hca| -> anyhow::Result<Box<dyn FrontEnd>> {
            let mut front_end = VfioUser::listen(&dir.join(&hca.socket))?;
            (front_end.look.patience, front_end.look.keep_length) = (patience, keep_length);
            Ok(Box::new(front_end))
        };
        let theirs = stop.as_fd().try_clone_to_owned().unwrap();
        let mut engine = Engine::new(&topology, &Role::default(), listen, None, theirs).unwrap();
        let thread = std::thread::spawn(move || engine.run().unwrap());
        Server { dir, stop, thread: Some(thread) }
    }

    fn client(&self, host: &str) -> Raw {
        let mut raw = Raw::connect(&self.dir.join(format!("{host}-hca0.sock")));
        raw.negotiate();
        raw
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.write(1).unwrap();
        self.thread.take().unwrap().join().unwrap();
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}

/// Memory that its client could shorten, and could be kept from that.
fn unsealed() -> File {
    let file = File::from(memfd_create(c"look", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(SIZE).unwrap();
    assert!(can_be_shortened(file.as_fd()));
    file
}

/// Something that takes until it is told to go on.
struct Gate(Mutex<(usize, bool)>, Condvar);

impl Gate {
    const fn new() -> Gate {
        Gate(Mutex::new((0, false)), Condvar::new())
    }

    fn wait(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 += 1;
        drop(self.1.wait_while(state, |(_, open)| !*open).unwrap());
    }

    fn open(&self) {
        self.0.lock().unwrap().1 = true;
        self.1.notify_all();
    }

    fn came(&self) -> usize {
        self.0.lock().unwrap().0
    }
}

/// The message that hands it over is answered when it is sealed, and what came behind it then; another client is served meanwhile.
#[test]
fn only_its_client_waits_for_a_file() {
    static GATE: Gate = Gate::new();
    let server = Server::start("waits", Duration::from_secs(3600), |file| {
        GATE.wait();
        crate::memory::keep_length(file);
    });
    let (mut one, mut other) = (server.client("a"), server.client("b"));
    let file = unsealed();
    let message = one.message(DMA_MAP, &dma_map(0, SIZE, 0), 0);
    one.send_fds(&message, &[file.as_raw_fd()]);
    while GATE.came() == 0 {
        assert_eq!(other.identity(), IDENTITY);
    }
    assert_eq!(other.identity(), IDENTITY);
    one.stream.set_nonblocking(true).unwrap();
    assert_eq!(one.reply().unwrap_err().kind(), ErrorKind::WouldBlock);
    one.stream.set_nonblocking(false).unwrap();
    GATE.open();
    one.reply().unwrap().ok();
    assert!(file.set_len(0).is_err() && !can_be_shortened(file.as_fd()));
    // It is known now, and nobody is asked.
    one.call_fds(DMA_MAP, &dma_map(SIZE, SIZE, 0), &[file.as_raw_fd()]).ok();
    assert_eq!(GATE.came(), 1);
}

/// One file is waited for at a time, and for so long; with more of them the client has no more threads.
#[test]
fn a_file_that_takes_too_long_is_taken_as_it_is() {
    static GATE: Gate = Gate::new();
    let server = Server::start("too-long", Duration::from_millis(1), |_| GATE.wait());
    let mut one = server.client("a");
    for place in 0..3 {
        let file = unsealed();
        one.call_fds(DMA_MAP, &dma_map(place * SIZE, SIZE, 0), &[file.as_raw_fd()]).ok();
        assert!(can_be_shortened(file.as_fd()));
    }
    // Its file is shorter: that is refused, and the client lives.
    let file = unsealed();
    let reply = one.call_fds(DMA_MAP, &dma_map(3 * SIZE, 2 * SIZE, 0), &[file.as_raw_fd()]);
    assert_eq!(reply.errno(), Errno::EINVAL as i32);
    assert_eq!(one.identity(), IDENTITY);
    GATE.open();
    // The only thread has begun by now, or will.
    while GATE.came() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(GATE.came(), 1);
}
