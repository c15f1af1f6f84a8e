//! The server processes of a run: one, or one for each process of the topology, each in a network of its own.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::namespaces::{self, Namespace};
use crate::server::{Binary, Part, Server};
use crate::topology::Topology;

/// A server with what it takes to start it again.
struct Member {
    name: Option<String>,
    namespace: Option<Namespace>,
    server: Server,
}

/// The servers of a topology.
pub struct Servers {
    members: Vec<Member>,
    binary: Binary,
    topology: PathBuf,
    run_dir: PathBuf,
    log_dir: PathBuf,
    key: Option<PathBuf>,
    arguments: Vec<String>,
}

impl Servers {
    /// Starts them, with their run directory and that of their logs, and waits until their sockets listen. With
    /// `only`, one process of the topology, in the network of this machine: the others run elsewhere. `arguments` are
    /// more of `softhca serve`, for a single server: several would write the same files. With `check`, they look for mistakes
    /// of drivers.
    pub fn start(
        binary: &Binary,
        topology: (&Topology, &Path),
        only: Option<&str>,
        (arguments, check): (&[String], bool),
        (run_dir, log_dir): (&Path, &Path),
    ) -> Result<Self> {
        let (description, file) = topology;
        let several = only.is_none() && description.processes.len() > 1;
        anyhow::ensure!(
            arguments.is_empty() || !several,
            "the topology has several servers, which can't all have {}; --process serves one of them",
            arguments.join(" ")
        );
        let mut servers = Self {
            members: Vec::new(),
            binary: binary.clone(),
            topology: file.to_path_buf(),
            run_dir: run_dir.to_path_buf(),
            log_dir: log_dir.to_path_buf(),
            key: None,
            arguments: check.then(|| "--check".to_owned()).into_iter().chain(arguments.to_vec()).collect(),
        };
        if description.processes.is_empty() {
            anyhow::ensure!(only.is_none(), "the topology has no processes");
            servers.add(None, None)?;
            return Ok(servers);
        }
        if let Some(name) = only {
            description.process(name)?;
            servers.add(Some(name.to_owned()), None)?;
            return Ok(servers);
        }
        if description.fabric.tunnel.key_file.is_none() {
            servers.key = Some(make_key(&run_dir.join("tunnel.key"))?);
        }
        let addresses: Vec<_> =
            description.processes.iter().filter_map(|p| p.address).map(|a| a.ip()).collect();
        anyhow::ensure!(
            addresses.len() == description.processes.len(),
            "a [[process]] without an address is for `softhca sim`"
        );
        let namespaces = match addresses.iter().all(std::net::IpAddr::is_loopback) {
            true => vec![None; addresses.len()],
            false => namespaces::make(&addresses)?.into_iter().map(Some).collect(),
        };
        for (process, namespace) in description.processes.iter().zip(namespaces) {
            servers.add(Some(process.name.clone()), namespace)?;
        }
        Ok(servers)
    }

    fn add(&mut self, name: Option<String>, namespace: Option<Namespace>) -> Result<()> {
        let server = self.launch(name.as_deref(), namespace.as_ref())?;
        self.members.push(Member { name, namespace, server });
        Ok(())
    }

    fn launch(&self, name: Option<&str>, namespace: Option<&Namespace>) -> Result<Server> {
        let run_dir = self.dir(name);
        let log = match name {
            None => self.log_dir.join("server.log"),
            Some(name) => self.log_dir.join(format!("server-{name}.log")),
        };
        let part = name.map(|process| Part { process, key: self.key.as_deref(), namespace });
        Server::start(&self.binary, &self.topology, part, &self.arguments, (&run_dir, &log)).with_context(
            || name.map_or("the server".to_owned(), |name| format!("the server of process {name}")),
        )
    }

    /// The run directory of a process.
    pub fn dir(&self, process: Option<&str>) -> PathBuf {
        match process {
            None => self.run_dir.clone(),
            Some(name) => self.run_dir.join(name),
        }
    }

    fn member(&mut self, process: Option<&str>) -> Result<&mut Member> {
        self.members
            .iter_mut()
            .find(|member| member.name.as_deref() == process)
            .with_context(|| format!("no server of process {process:?} runs here"))
    }

    /// The server of a process, or the only one.
    pub fn of(&mut self, process: Option<&str>) -> Result<&mut Server> {
        Ok(&mut self.member(process)?.server)
    }

    /// Starts the server of a process again, after it was killed. Its log begins anew.
    pub fn restart(&mut self, process: Option<&str>) -> Result<()> {
        let namespace = self.member(process)?.namespace.clone();
        self.member(process)?.server.kill();
        let server = self.launch(process, namespace.as_ref())?;
        self.member(process)?.server = server;
        Ok(())
    }

    /// Those that were started first, before any was started again.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Server> {
        self.members.iter().map(|member| &member.server)
    }

    /// The same with the names of their processes.
    pub(crate) fn named(&self) -> impl Iterator<Item = (Option<&str>, &Server)> {
        self.members.iter().map(|member| (member.name.as_deref(), &member.server))
    }

    /// Are all of them running?
    pub fn alive(&mut self) -> bool {
        self.members.iter_mut().all(|member| member.server.alive())
    }

    /// The resource counts of each adapter, for people.
    pub fn resources_text(&self) -> Result<String> {
        self.members.iter().map(|member| member.server.resources(false)).collect()
    }

    /// The resource counts of all adapters.
    pub fn resources(&self) -> Result<Value> {
        let mut all = Vec::new();
        for member in &self.members {
            let mut answer: Value = serde_json::from_str(&member.server.resources(true)?)?;
            if let Some(hcas) = answer.get_mut("hcas").and_then(Value::as_array_mut) {
                all.append(hcas);
            }
        }
        Ok(serde_json::json!({ "hcas": all }))
    }

    /// What they wrote to standard error so far.
    pub fn messages(&self) -> String {
        let with_name = |member: &Member| match &member.name {
            None => member.server.messages(),
            Some(name) => format!("process {name}:\n{}", member.server.messages()),
        };
        self.members.iter().map(with_name).collect()
    }

    /// Ends them.
    pub fn stop(&mut self) {
        self.members.iter_mut().for_each(|member| member.server.stop());
    }
}

/// A key for one run, readable by nobody else.
fn make_key(path: &Path) -> Result<PathBuf> {
    let mut bytes = [0; 32];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{digits}")?;
    Ok(path.to_path_buf())
}
