//! A server in its sandbox, a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};

use hca_server::engine::{Engine, Role};
use hca_server::front_end::FrontEnd;
use hca_server::outside;
use hca_server::sandbox::{self, Helper, Sandbox};
use hca_server::topology::{Hca, Topology};
use hca_server::tunnel::key::Key;
use hca_server::tunnel::keys::Keys;
use hca_server::vfio_user::VfioUser;
use hca_trace::Options;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::common::Raw;

const TOPOLOGY: &str = "topology.toml";
const READY: &str = "ready";

/// Serves the topology in `dir` until it is told to stop.
pub(crate) fn serve(dir: &Path, options: &[&str]) -> ExitCode {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.thread_block().unwrap();
    let stop = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).unwrap();
    let stop = stop.as_fd().try_clone_to_owned().unwrap();
    Helper::start().unwrap().install();
    let mut topology = Topology::load(&dir.join(TOPOLOGY)).unwrap();
    topology.put_sockets_into(dir);
    let process = options.iter().find_map(|word| word.strip_prefix("process="));
    let keys = process.map_or_else(Keys::default, |_| Key::from_secret(b"secret").into());
    let role = Role { process: process.map(Into::into), keys };
    let listen = |hca: &Hca| -> anyhow::Result<Box<dyn FrontEnd>> {
        Ok(Box::new(VfioUser::listen(&dir.join(&hca.socket))?))
    };
    let mut engine = Engine::new(&topology, &role, listen, Some(&dir.join("control.sock")), stop).unwrap();
    let file = |name: &str| options.contains(&name).then(|| dir.join(name));
    let observe = Options { trace: file("trace"), pcap: file("pcap"), ..Options::default() };
    engine.observe(&observe).unwrap();
    if options.contains(&"few") {
        // Three more than there are.
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, open + 3, hard).unwrap();
    }
    let (remove, read) = (vec![dir.to_path_buf()], Vec::new());
    let connects = outside::connects(&topology.part(process).unwrap());
    let (role, outputs, descriptors) = (sandbox::Role::Server, observe.any(), None);
    let sandbox = Sandbox { role, remove, read, outputs, descriptors, connects };
    sandbox.enter().unwrap();
    println!("{READY}");
    engine.run().unwrap();
    engine.end_observing().unwrap();
    ExitCode::SUCCESS
}

/// A running one, with its run directory.
pub(crate) struct Server {
    pub(crate) dir: PathBuf,
    child: Child,
    _out: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn start(name: &str, topology: &str, options: &[&str]) -> Server {
        let dir = std::env::temp_dir().join(format!("softhca-sandbox-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::File::create(dir.join(TOPOLOGY)).unwrap().write_all(topology.as_bytes()).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("--serve").arg(&dir).args(options).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), READY);
        Server { dir, child, _out: out }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn client(&self, host: &str) -> Raw {
        let mut raw = self.silent(host);
        raw.negotiate();
        raw
    }

    /// A client that has not said a word.
    pub(crate) fn silent(&self, host: &str) -> Raw {
        Raw::connect(&self.dir.join(format!("{host}-hca0.sock")))
    }

    pub(crate) fn ask(&self, cmd: &str) -> serde_json::Value {
        hca_server::control::query(&self.dir.join("control.sock"), cmd).unwrap()
    }

    /// Ends it as the system does for a service.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        kill(Pid::from_raw(self.pid() as i32), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap()
    }

    /// Ends it without a chance to do anything.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
