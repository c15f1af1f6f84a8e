//! A server in a thread of the test, or its supervisor with workers in processes, and our driver's bus over its sockets.

use hca_driver::vfio_user::VfioUserBus;
use hca_server::engine::{Engine, Role};
use hca_server::front_end::FrontEnd;
use hca_server::topology::{Hca, Isolation, Topology};
use hca_server::vfio_user::VfioUser;
use hca_server::workers::{Program, Supervisor};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// DMA memory of a client.
pub const CLIENT_MEMORY: usize = 32 << 20;
/// MSI-X vectors a client connects.
pub const CLIENT_VECTORS: u16 = 4;

/// A running server; stopped and checked when dropped.
pub struct Served {
    dir: PathBuf,
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Served {
    /// Serves the topology of that TOML text.
    pub fn start(topology: &str) -> Self {
        Self::aged(topology, Duration::ZERO)
    }

    /// Serves it, as if it had been served for so long already.
    pub fn aged(topology: &str, age: Duration) -> Self {
        let topology = Topology::parse("test", topology).expect("the topology is valid");
        let (dir, stop, stop_too) = place();
        // Built here, so that the sockets listen when this returns.
        let control = dir.join("control.sock");
        let listen = |hca: &Hca| -> anyhow::Result<Box<dyn FrontEnd>> {
            Ok(Box::new(VfioUser::listen(&dir.join(&hca.socket))?))
        };
        let mut engine = Engine::new(&topology, &Role::default(), listen, Some(&control), stop_too)
            .expect("the server starts");
        engine.set_age(age);
        let thread = named(move || engine.run().expect("the server runs"));
        Self { dir, stop, thread: Some(thread) }
    }

    /// Serves it by a process for each host and one for the switches.
    pub fn apart(text: &str, program: Program) -> Self {
        let mut topology = Topology::parse("test", text).expect("the topology is valid");
        topology.isolate(Isolation::Process).expect("it has no processes of its own");
        let (dir, stop, stop_too) = place();
        let mut supervisor =
            Supervisor::new(program, &topology, ("test", text), &dir, stop_too).expect("the server starts");
        let thread = named(move || supervisor.run().expect("the supervisor runs"));
        Self { dir, stop, thread: Some(thread) }
    }

    /// The socket of the first adapter of `host`.
    pub fn socket(&self, host: &str) -> PathBuf {
        self.dir.join(format!("{host}-hca0.sock"))
    }

    /// Connects to the first adapter of `host`.
    pub fn bus(&self, host: &str) -> VfioUserBus {
        VfioUserBus::connect(&self.socket(host), CLIENT_MEMORY, CLIENT_VECTORS).expect("the client connects")
    }

    /// What the control socket answers to that request.
    ///
    /// # Errors
    /// It is refused.
    pub fn request(&self, request: &serde_json::Value) -> anyhow::Result<serde_json::Value> {
        hca_server::control::ask(&self.dir.join("control.sock"), request)
    }

    /// What the control socket answers.
    pub fn ask(&self, question: &str) -> serde_json::Value {
        hca_server::control::query(&self.dir.join("control.sock"), question).expect("the server answers")
    }
}

/// Name of the thread that serves, or supervises.
pub const THREAD: &str = "server";

fn named(serve: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(THREAD.into()).spawn(serve).expect("a thread")
}

/// A run directory, and two ends of what stops a server.
fn place() -> (PathBuf, EventFd, OwnedFd) {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("hca-tests-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a run directory");
    let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an event descriptor");
    let stop_too = stop.as_fd().try_clone_to_owned().expect("a descriptor");
    (dir, stop, stop_too)
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        let result = self.thread.take().map(JoinHandle::join);
        let _ = std::fs::remove_dir_all(&self.dir);
        if !std::thread::panicking() {
            assert!(matches!(result, Some(Ok(()))), "the server panicked");
        }
    }
}
