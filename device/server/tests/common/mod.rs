//! A server in a thread, and a client that can say anything.
#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

mod raw;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use hca_server::engine::{Engine, Role};
use hca_server::front_end::FrontEnd;
use hca_server::topology::{Hca, Topology};
use hca_server::vfio_user::VfioUser;
use nix::sys::eventfd::{EfdFlags, EventFd};

pub use raw::*;

/// A running server with its run directory; stopped and checked when dropped.
pub struct Server {
    pub dir: PathBuf,
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Server {
    /// Serves a topology of one adapter on each of the named hosts.
    pub fn start(hosts: &[&str]) -> Server {
        let text: String =
            hosts.iter().map(|h| format!("[[host]]\nname = \"{h}\"\n[[host.hca]]\n")).collect();
        Server::serve(&text, &Role::default())
    }

    /// Serves a part of a topology.
    pub fn serve(topology: &str, role: &Role) -> Server {
        let topology = Topology::parse("test", topology).unwrap();
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("softhca-it-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let stop_in = stop.as_fd().try_clone_to_owned().unwrap();
        let control = dir.join("control.sock");
        let sockets = dir.clone();
        // Built here, so that the sockets listen when `serve` returns.
        let listen = |hca: &Hca| -> anyhow::Result<Box<dyn FrontEnd>> {
            Ok(Box::new(VfioUser::listen(&sockets.join(&hca.socket))?))
        };
        let mut engine = Engine::new(&topology, role, listen, Some(&control), stop_in).unwrap();
        let thread = std::thread::spawn(move || engine.run().unwrap());
        Server { dir, stop, thread: Some(thread) }
    }

    pub fn socket(&self, host: &str) -> PathBuf {
        self.dir.join(format!("{host}-hca0.sock"))
    }

    /// A client that has negotiated its version.
    pub fn client(&self, host: &str) -> Raw {
        let mut raw = Raw::connect(&self.socket(host));
        raw.negotiate();
        raw
    }

    /// Takes a cable out, or puts it in.
    pub fn link(&self, state: &str, at: &str) -> Result<(), String> {
        let request = serde_json::json!({"cmd": "link", "at": at, "state": state});
        let answer = hca_server::control::ask(&self.dir.join("control.sock"), &request);
        answer.map(drop).map_err(|e| e.to_string())
    }

    /// Asks the control socket.
    pub fn ask(&self, cmd: &str) -> serde_json::Value {
        hca_server::control::query(&self.dir.join("control.sock"), cmd).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.write(1).unwrap();
        let result = self.thread.take().unwrap().join();
        if std::thread::panicking() {
            return;
        }
        result.expect("the server must not panic");
        assert!(!self.dir.join("control.sock").exists(), "socket not removed");
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}
