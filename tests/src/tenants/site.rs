//! Where it takes place: a server process with the attacker's adapter and the victim's two, on sockets of its own.

use std::fmt::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use hca_server::topology::Topology;
use hca_server::tunnel::key::Key;
use hca_server::tunnel::terms;
use hca_spec::ids::Lid;
use serde_json::Value;
use std::io::Write as _;

use super::far::Far;
use super::guest::Guest;
use super::victim::{Guessed, Victim, manage};
use crate::pair::{PORT, wait_active};
use crate::process::Process;
use crate::suites::adversary::stage::{Attacker, Failure, MEMORY, Scratch, Setting, Stage, driver};

/// What the server's anonymous memory may grow by, in KiB, and how many descriptors it may have.
const MEMORY_KIB: u64 = 256 << 10;
const DESCRIPTORS: usize = 4096;
/// LIDs of the victim where there is no subnet manager, and the attacker's.
const VICTIMS: [Lid; 2] = [Lid(1), Lid(2)];
const ATTACKER: Lid = Lid(3);
/// The hosts. What the attacker's objects may cost is less than what its server's memory may grow by.
const HOSTS: [(&str, &str); 3] = [("a", "icm = \"64M\"\nblueflame = true\n"), ("v", ""), ("w", "")];

/// How the attacker is joined to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Behind the same switch as the victim, which the built-in subnet manager manages.
    Switch,
    /// By a tunnel to another process, which is the attacker's, too. The victim has a cable of its own.
    Tunnel,
    /// As [`Kind::Switch`], with a process for each host.
    Workers,
}

impl Kind {
    /// All of them: round by round, the one that has the place of the seed's remainder.
    pub const ALL: [Self; 3] = [Self::Switch, Self::Tunnel, Self::Workers];

    /// What the attacker has, as the page on fuzzing says it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Switch => "a port at the victim's switch, in one process",
            Self::Tunnel => "a tunnel, whose far end it is, too; the victim has a cable of its own",
            Self::Workers => "a port at the victim's switch, with a process for each host",
        }
    }
}

/// How far the attacker got.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    /// Commands that its adapter has executed since its last reset, in all rounds.
    pub commands: u64,
    /// Work requests that were begun, the same.
    pub requests: u64,
    /// Work requests that were done without error, the same.
    pub done: u64,
    /// Packets on its cable, the same.
    pub packets: u64,
    /// What its adapter says of its mistakes.
    pub diagnoses: u64,
    /// Packets that came by its tunnel.
    pub tunnelled: u64,
    /// Datagrams of its tunnel without the right key.
    pub unauthenticated: u64,
    /// Datagrams that came again.
    pub replayed: u64,
    /// Datagrams of an address that is nobody's.
    pub strangers: u64,
}

/// A server, the victim, and the attacker's far end of a tunnel if there is one.
pub struct Site {
    stage: Stage,
    victim: Victim,
    guessed: [Guessed; 2],
    attacker: Lid,
    far: Option<Far>,
    /// What serves each host.
    serves: Vec<u32>,
    memory_kib: u64,
    /// The most that it has seen of memory, in KiB, and of descriptors.
    most: (u64, usize),
    reached: Reached,
}

impl Site {
    /// Starts a server. Call it from a thread that outlives it.
    ///
    /// # Errors
    /// Files, sockets, or the server does not come up.
    pub fn new(kind: Kind, stall: Option<Duration>) -> Result<Self, Failure> {
        let dir = Scratch::new()?;
        let (text, tunnel) = match kind {
            Kind::Switch | Kind::Workers => (switched(), None),
            Kind::Tunnel => {
                let (text, near, socket) = tunnelled()?;
                let mut file = std::fs::OpenOptions::new();
                let path = dir.path().join("key");
                writeln!(file.write(true).create(true).mode(0o600).open(&path)?, "{}", "5a".repeat(32))?;
                let topology = Topology::parse("topology", &text)?;
                let part = topology.part(Some("far"))?;
                let cut = part.cuts.first().ok_or("no link leads to the far process")?;
                let far = Far::new(socket, near, terms(cut, &topology.fabric.tunnel, &Key::load(&path)?)?)?;
                (text, Some(far))
            }
        };
        let arguments: &[&str] = if tunnel.is_some() { &["--process", "near"] } else { &[] };
        let apart = kind == Kind::Workers;
        let stage = Stage::of(dir, &text, &Setting { arguments, apart, ..Setting::PLAIN })?;
        let place = stage.attacker();
        let mut hcas = vec![driver(place.bus("v", MEMORY)?)?, driver(place.bus("w", MEMORY)?)?];
        let mut attacker = ATTACKER;
        match kind {
            Kind::Tunnel => hcas.iter_mut().zip(VICTIMS).for_each(|(hca, lid)| manage(hca, lid)),
            Kind::Switch | Kind::Workers => {
                let mut hca = driver(place.bus("a", MEMORY)?)?;
                wait_active(&mut hca)?;
                attacker = hca.lid(PORT)?;
            }
        }
        let mut victim = Victim::new(hcas, stage.serves("v")?, stall);
        let guessed = victim.guessed();
        let serves = served_by(&stage)?;
        let memory_kib = stage.process().family_kib();
        let (most, reached) = ((memory_kib, 0), Reached::default());
        Ok(Self { stage, victim, guessed, attacker, far: tunnel, serves, memory_kib, most, reached })
    }

    /// The attacker's guest, with its adapter up.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn guest(&self, seed: u64) -> Guest {
        let place: Attacker = self.stage.attacker();
        Guest::new(&place.socket("a"), seed, self.attacker)
    }

    /// The far end of the attacker's tunnel.
    pub fn far(&mut self) -> Option<&mut Far> {
        self.far.as_mut()
    }

    /// What the attacker may have guessed of the victim.
    pub fn guessed(&self) -> [Guessed; 2] {
        self.guessed
    }

    /// The same as it is now.
    ///
    /// # Panics
    /// If the victim's adapters do not answer.
    pub fn guess(&mut self) -> [Guessed; 2] {
        self.guessed = self.victim.guessed();
        self.guessed
    }

    /// The victim.
    pub fn victim(&mut self) -> &mut Victim {
        &mut self.victim
    }

    /// Looks at the server from outside.
    ///
    /// # Errors
    /// It has died, or holds too much.
    pub fn look(&mut self) -> Result<(), String> {
        if !self.stage.server.alive() {
            return Err("the server died".to_owned());
        }
        let serves = served_by(&self.stage).map_err(|why| why.to_string())?;
        if serves != self.serves {
            return Err(format!("a worker died: {serves:?} serve in place of {:?}", self.serves));
        }
        let all = self.stage.process().family();
        let memory = all.iter().filter_map(|process| process.anonymous_kib().ok()).sum::<u64>();
        let descriptors = all.into_iter().map(Process::descriptors).max().unwrap_or(0);
        self.most = (self.most.0.max(memory), self.most.1.max(descriptors));
        let grown = memory.saturating_sub(self.memory_kib);
        if grown > MEMORY_KIB {
            return Err(format!("the server's memory grew by {} MiB", grown >> 10));
        }
        if descriptors > DESCRIPTORS {
            return Err(format!("the server has {descriptors} descriptors"));
        }
        Ok(())
    }

    /// The last lines that the server has logged, if it died: why it did.
    pub fn last_words(&mut self) -> String {
        const LINES: usize = 8;
        if self.stage.server.alive() {
            return String::new();
        }
        let messages = self.stage.server.messages();
        let lines: Vec<_> = messages.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    /// How far the attacker got.
    pub fn reached(&self) -> Reached {
        self.reached
    }

    /// Asks the server what it has counted of the attacker's adapter, and of its tunnel.
    ///
    /// # Errors
    /// The server does not say.
    pub fn count(&mut self) -> Result<(), Failure> {
        let ask = |what| hca_server::control::query(&self.stage.attacker().control(), what);
        let (metrics, stat) = (ask("metrics")?, ask("stat")?);
        let of = |all: &Value, name: &str| {
            let mut hcas = all["hcas"].as_array().into_iter().flatten();
            hcas.find(|hca| hca["name"] == name).cloned().unwrap_or_default()
        };
        let (device, counters) = (of(&metrics, "a/hca0"), of(&stat, "a/hca0"));
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let port = &counters["ports"][0]["counters"];
        let link = &metrics["tunnels"]["links"][0];
        let adapter = &counters["adapter"];
        let before = self.reached;
        // The adapter counts from its last reset, the others from the server's start.
        self.reached = Reached {
            commands: before.commands + number(&adapter["commands"]),
            requests: before.requests + number(&adapter["requests_started"]),
            done: before.done + number(&adapter["requests_done"]),
            packets: before.packets + number(&port["xmit_packets"]) + number(&port["rcv_packets"]),
            diagnoses: number(&device["diagnoses"]),
            tunnelled: number(&link["packets_received"]),
            unauthenticated: number(&link["unauthenticated"]),
            replayed: number(&link["replayed"]) + number(&link["stale"]),
            strangers: number(&metrics["tunnels"]["strangers"]),
        };
        Ok(())
    }

    /// What was seen, in words.
    pub fn seen(&self) -> String {
        let waited = self.victim.waited();
        let mut text = format!(
            "{} requests of the victim, each done after {} reads of a register at most; memory {} to {} MiB, \
             {} descriptors",
            waited.requests,
            waited.turns,
            self.memory_kib >> 10,
            self.most.0 >> 10,
            self.most.1
        );
        if !waited.access.is_zero() {
            let _ = write!(text, "; longest access {:.1?}", waited.access);
        }
        text
    }
}

/// The processes that serve the hosts.
fn served_by(stage: &Stage) -> Result<Vec<u32>, Failure> {
    HOSTS.iter().map(|(host, _)| Ok(stage.serves(host)?.0)).collect()
}

fn hosts(process: &str) -> String {
    HOSTS.map(|(name, more)| format!("[[host]]\nname = \"{name}\"\n{process}[[host.hca]]\n{more}")).concat()
}

fn switched() -> String {
    let mut text = hosts("");
    text += "[[switch]]\nname = \"s\"\nports = 4\n";
    for (port, (host, _)) in HOSTS.iter().enumerate() {
        let _ = writeln!(text, "[[link]]\nbetween = [\"{host}/hca0\", \"s/{}\"]", port + 1);
    }
    text
}

/// The topology, where the server takes datagrams, and the far end's socket.
fn tunnelled() -> std::io::Result<(String, SocketAddr, UdpSocket)> {
    let far = UdpSocket::bind("127.0.0.1:0")?;
    // Free when this is gone, and the server takes it at once.
    let near = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    let mut text = "[fabric]\nsubnet_manager = \"none\"\ntunnel_key_file = \"key\"\n".to_owned();
    for (name, address) in [("near", near), ("far", far.local_addr()?)] {
        let _ = writeln!(text, "[[process]]\nname = \"{name}\"\naddress = \"{address}\"");
    }
    text += &hosts("process = \"near\"\n");
    text += "[[host]]\nname = \"z\"\nprocess = \"far\"\n[[host.hca]]\n\
             [[link]]\nbetween = [\"v/hca0\", \"w/hca0\"]\n[[link]]\nbetween = [\"a/hca0\", \"z/hca0\"]\n";
    Ok((text, near, far))
}
