//! The event loop: one thread that serves every client and runs the model.
//!
//! Each round: wait for sockets or for the model's next event; handle the messages that are there;
//! run the model up to a quantum ahead; signal the interrupts it raised. Nothing in a round
//! blocks on a client, except a device-initiated DMA message, whose wait is bounded.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hca_model::link::LinkMessage;
use hca_model::{Effect, HcaId, LinkOffer, TunnelEvent, TunnelId, World};
use hca_trace::Observer;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use serde_json::{Value, json};

use crate::control::ControlClient;
use crate::device::{Attached, Device};
use crate::links::Links;
use crate::listener::Listener;
use crate::memory::Peer;
use crate::model;
use crate::pacing::Pacer;
use crate::topology::Topology;
use crate::trim::Trim;
use crate::tunnel::key::Key;
use crate::tunnel::{Event, Tunnels};
use crate::vfio_user::link::Link;
use crate::vfio_user::lock;
use crate::vfio_user::session::{Session, serve};

/// Messages of one client handled before the others get their turn.
const MESSAGE_BUDGET: usize = 128;
/// How long a store to a BlueFlame register waits for the one that continues it. A guest's stores come 5 to 20 us
/// apart; whoever rings a plain doorbell pays this.
const COMBINE_WAIT: Duration = Duration::from_micros(50);
/// Connections to the control socket at a time.
const MAX_CONTROL_CLIENTS: usize = 32;

/// A connected vfio-user client.
#[derive(Debug)]
struct Client {
    link: Arc<Mutex<Link>>,
    session: Session,
    peer: Peer,
}

/// One adapter with its socket.
#[derive(Debug)]
struct Slot {
    /// `host/hca`.
    name: String,
    listener: Listener,
    device: Device,
    client: Option<Client>,
    /// Stores of the client that wait for their continuation.
    combining: Option<Combining>,
}

/// Stores to BlueFlame registers that wait for their continuation.
#[derive(Debug, Clone, Copy)]
struct Combining {
    /// Stores seen so far.
    stores: u64,
    /// When they are given up.
    until: Instant,
}

/// Which part of a topology an engine serves.
#[derive(Debug, Clone, Default)]
pub struct Role {
    /// The process of the topology, if it has any.
    pub process: Option<String>,
    /// What the processes share; needed if a link joins this one to another.
    pub key: Option<Key>,
}

/// Everything the server has.
pub struct Engine {
    world: World,
    links: Links,
    tunnels: Option<Tunnels>,
    pacer: Pacer,
    slots: Vec<Slot>,
    control: Listener,
    control_clients: Vec<ControlClient>,
    stop: OwnedFd,
    trim: Trim,
    observer: Option<Observer>,
}

impl Engine {
    /// Builds the model and listens on every socket.
    ///
    /// `socket_of` says where the socket of an adapter is. The engine ends when `stop` becomes
    /// readable.
    ///
    /// # Errors
    /// If the model refuses the topology, a socket can't be had, or a key is missing.
    pub fn new(
        topology: &Topology,
        role: &Role,
        socket_of: impl Fn(&str) -> std::path::PathBuf,
        control: &Path,
        stop: OwnedFd,
    ) -> anyhow::Result<Engine> {
        let part = topology.part(role.process.as_deref())?;
        let (world, links) = model::world(topology, &part)?;
        let tunnels = match &role.key {
            Some(key) => Tunnels::open(&part, &topology.fabric.tunnel, key)?,
            None if part.cuts.is_empty() => None,
            None => bail!("links to other processes need a key: fabric.tunnel_key_file or --tunnel-key-file"),
        };
        let mut slots = Vec::new();
        for (i, (host, hca)) in part.hcas().enumerate() {
            slots.push(Slot {
                name: format!("{}/{}", host.name, hca.name),
                listener: Listener::bind(&socket_of(&hca.socket))?,
                device: Device::new(HcaId(i), hca.port_type),
                client: None,
                combining: None,
            });
        }
        Ok(Engine {
            world,
            links,
            tunnels,
            pacer: Pacer::new(&topology.time),
            slots,
            control: Listener::bind(control)?,
            control_clients: Vec::new(),
            stop,
            trim: Trim::default(),
            observer: None,
        })
    }

    /// Looks on as the options ask for.
    ///
    /// # Errors
    /// A file can't be made, or there is no port of a name that was given.
    pub fn observe(&mut self, options: &hca_trace::Options) -> anyhow::Result<()> {
        self.observer = Some(Observer::new(options, &mut self.world)?);
        Ok(())
    }

    /// Ends the files of what was looked at. Gives what is to be printed of it.
    ///
    /// # Errors
    /// Writing failed.
    pub fn end_observing(&mut self) -> anyhow::Result<Vec<String>> {
        self.observer.take().map_or(Ok(Vec::new()), |observer| observer.finish(&mut self.world))
    }

    fn look(&mut self) {
        if let Some(observer) = &mut self.observer
            && let Err(why) = observer.take(&mut self.world)
        {
            tracing::error!("{why:#}: nothing more is written");
            self.observer = None;
        }
    }

    /// Serves until told to stop.
    ///
    /// # Errors
    /// If the system refuses to wait; errors of clients only end the client.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let mut more = false;
        loop {
            let timeout = if more || self.has_queued() { Some(Duration::ZERO) } else { self.sleep() };
            let ready = self.wait(timeout).context("poll")?;
            if ready.stop {
                self.tunnels.iter_mut().for_each(Tunnels::close);
                return Ok(());
            }
            for (i, events) in ready.clients.iter().enumerate() {
                if *events {
                    self.serve_client(i);
                }
            }
            for (i, events) in ready.listeners.iter().enumerate() {
                if *events {
                    self.accept(i);
                }
            }
            if ready.control {
                self.serve_control();
            }
            let waiting = self.take_from_tunnels();
            self.end_combining();
            more = self.pacer.run(&mut self.world) || waiting;
            self.signal();
            self.look();
            self.give_to_tunnels();
            self.trim.look(model::objects(&self.world, self.slots.len()));
        }
    }

    /// How long there is nothing to do if no socket has something; `None`: for ever.
    fn sleep(&self) -> Option<Duration> {
        let until = self.slots.iter().filter_map(|slot| slot.combining).map(|c| c.until).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let tunnels = self.tunnels.as_ref().map(Tunnels::sleep);
        left.into_iter().chain(self.pacer.sleep(&self.world)).chain(tunnels).min()
    }

    /// Lets the model have what came by tunnels. Returns true if more waits.
    fn take_from_tunnels(&mut self) -> bool {
        let Some(tunnels) = &mut self.tunnels else { return false };
        let (events, more) = tunnels.run();
        if !events.is_empty() {
            let now = self.pacer.catch_up(&mut self.world);
            for (link, event) in events {
                let tunnel = TunnelId(usize::from(link));
                match event {
                    Event::Packet(bytes) => self.world.tunnel_receive(now, tunnel, bytes),
                    Event::Light(light) => {
                        self.world.tunnel_link(now, tunnel, light.and_then(model::port_link));
                    }
                    Event::Joined | Event::Lost(_) => {}
                }
            }
        }
        more
    }

    /// Sends what the model has for other processes.
    fn give_to_tunnels(&mut self) {
        let Some(tunnels) = &mut self.tunnels else { return };
        for TunnelEvent { tunnel, message, .. } in self.world.drain_tunnels(self.world.now()) {
            let Ok(link) = u16::try_from(tunnel.0) else { continue };
            match message {
                LinkMessage::Packet(packet) => tunnels.send(link, packet.packet.into_bytes()),
                LinkMessage::Light(light) => {
                    let port = light.offer.and_then(LinkOffer::best);
                    tunnels.set_light(link, port.map(model::light));
                }
                // Other processes keep time by other clocks: no credits pass between them.
                LinkMessage::Credit { .. } => {}
            }
        }
        tunnels.flush();
    }

    /// Gives up stores that were not continued in time: they are doorbells.
    fn end_combining(&mut self) {
        for (i, slot) in self.slots.iter_mut().enumerate() {
            let Some(stores) = self.world.combining(HcaId(i)) else {
                slot.combining = None;
                continue;
            };
            let now = Instant::now();
            match slot.combining {
                Some(c) if c.stores == stores && c.until <= now => {
                    let now = self.pacer.catch_up(&mut self.world);
                    self.world.flush_stores(now, HcaId(i));
                    slot.combining = None;
                }
                Some(c) if c.stores == stores => {}
                _ => slot.combining = Some(Combining { stores, until: now + COMBINE_WAIT }),
            }
        }
    }

    fn has_queued(&self) -> bool {
        self.slots.iter().filter_map(|s| s.client.as_ref()).any(|c| {
            let link = lock(&c.link);
            link.has_queued() && !link.is_congested()
        })
    }

    /// Waits for something to do. The guards keep the links borrowed only while polling.
    fn wait(&self, timeout: Option<Duration>) -> nix::Result<Ready> {
        let links: Vec<_> = self.slots.iter().map(|s| s.client.as_ref().map(|c| lock(&c.link))).collect();
        let want = |congested| {
            if congested { PollFlags::POLLOUT } else { PollFlags::POLLIN }
        };
        let mut fds = vec![
            PollFd::new(self.stop.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(tunnels) = &self.tunnels {
            fds.push(PollFd::new(tunnels.as_fd(), PollFlags::POLLIN));
        }
        for slot in &self.slots {
            fds.push(PollFd::new(slot.listener.as_fd(), PollFlags::POLLIN));
        }
        for link in links.iter().flatten() {
            fds.push(PollFd::new(link.as_fd(), want(link.is_congested())));
        }
        for client in &self.control_clients {
            fds.push(PollFd::new(client.as_fd(), want(client.is_congested())));
        }
        match ppoll(&mut fds, timeout.map(TimeSpec::from_duration), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        let mut events = fds.iter().map(|fd| fd.revents().is_some_and(|e| !e.is_empty()));
        let mut next = || events.next().unwrap_or(false);
        let stop = next();
        let mut control = next();
        if self.tunnels.is_some() {
            // They are looked at in every round.
            next();
        }
        let listeners = self.slots.iter().map(|_| next()).collect();
        let clients = links
            .iter()
            .map(|link| link.as_ref().is_some_and(|l| next() || (l.has_queued() && !l.is_congested())))
            .collect();
        for _ in &self.control_clients {
            control |= next();
        }
        Ok(Ready { stop, control, listeners, clients })
    }

    /// Handles what the client of a slot has sent; ends the connection if it is over.
    fn serve_client(&mut self, i: usize) {
        let Some(slot) = self.slots.get_mut(i) else {
            return;
        };
        let Some(client) = &mut slot.client else {
            return;
        };
        let was_attached = client.session.is_attached();
        let mut backend = Attached {
            device: &mut slot.device,
            world: &mut self.world,
            pacer: &mut self.pacer,
            link: &client.link,
            peer: client.peer,
        };
        let result = serve(&client.link, &mut client.session, &mut backend, MESSAGE_BUDGET);
        if client.session.is_attached() && !was_attached {
            slot.device.metrics.clients += 1;
            tracing::info!("{}: client attached", slot.name);
        }
        match result {
            Ok(handled) => slot.device.metrics.messages += handled as u64,
            Err(reason) => {
                if client.session.is_attached() {
                    tracing::info!("{}: client gone ({reason}), adapter reset", slot.name);
                    slot.device.disconnect(&mut self.world);
                } else {
                    tracing::info!("{}: connection refused: {reason}", slot.name);
                }
                slot.client = None;
            }
        }
    }

    fn accept(&mut self, i: usize) {
        while let Some(stream) = self.slots.get(i).and_then(|s| s.listener.accept()) {
            // The end of the previous connection may not have been noticed yet.
            self.serve_client(i);
            let Some(slot) = self.slots.get_mut(i) else {
                return;
            };
            match &slot.client {
                Some(old) if old.session.is_attached() => {
                    tracing::warn!(
                        "{}: second client refused: one is attached already ({})",
                        slot.name,
                        slot.listener.path().display()
                    );
                }
                // One that hasn't said a word yet gives way.
                _ => match Client::new(stream) {
                    Ok(client) => slot.client = Some(client),
                    Err(e) => tracing::warn!("{}: connection lost: {e}", slot.name),
                },
            }
        }
    }

    fn serve_control(&mut self) {
        while let Some(stream) = self.control.accept() {
            if self.control_clients.len() >= MAX_CONTROL_CLIENTS {
                tracing::warn!("control: too many connections, one refused");
            } else if let Ok(client) = ControlClient::new(stream) {
                self.control_clients.push(client);
            }
        }
        let mut clients = std::mem::take(&mut self.control_clients);
        clients.retain_mut(|client| client.serve(|cmd, request| self.answer(cmd, request)));
        self.control_clients = clients;
    }

    fn answer(&mut self, cmd: &str, request: &Value) -> Result<Value, String> {
        if cmd == "link" {
            let word = |key: &str| request.get(key).and_then(Value::as_str);
            let (Some(at), Some(state)) = (word("at"), word("state")) else {
                return Err("link: \"at\" and \"state\" are needed".into());
            };
            let now = self.pacer.catch_up(&mut self.world);
            return self.links.set(&mut self.world, now, at, state);
        }
        let of_each = |what: &dyn Fn(usize, &Slot) -> Value| {
            let hcas = self.slots.iter().enumerate().map(|(i, slot)| {
                let mut value = what(i, slot);
                if let Some(map) = value.as_object_mut() {
                    map.insert("name".into(), slot.name.clone().into());
                    let attached = slot.client.as_ref().map(|c| c.session.is_attached());
                    map.insert("attached".into(), attached.unwrap_or(false).into());
                }
                value
            });
            json!({ "hcas": hcas.collect::<Vec<_>>() })
        };
        match cmd {
            "ping" => Ok(json!({})),
            "resources" => Ok(of_each(&|i, _| model::resources(&self.world, HcaId(i)))),
            "stat" => {
                let mut all = of_each(&|i, _| crate::stat::counters(&self.world, HcaId(i)));
                if let Some(map) = all.as_object_mut() {
                    map.insert("time_ns".into(), self.world.now().as_ns().into());
                    map.insert("switches".into(), crate::stat::switches(&self.world));
                }
                Ok(all)
            }
            "links" => Ok(self.links.list(&self.world, self.tunnels.as_ref())),
            "metrics" => {
                let mut all = of_each(&|i, slot| {
                    let mut value = json!(slot.device.metrics);
                    if let Some(map) = value.as_object_mut() {
                        map.insert("dma_errors".into(), slot.device.dma_errors().into());
                        map.insert("diagnoses".into(), self.world.diagnoses(HcaId(i)).into());
                    }
                    value
                });
                if let (Some(map), Some(tunnels)) = (all.as_object_mut(), &self.tunnels) {
                    map.insert("tunnels".into(), tunnels.metrics());
                }
                Ok(all)
            }
            other => {
                Err(format!("unknown cmd {other:?}: ping, resources, metrics, stat, links or link are known"))
            }
        }
    }

    /// Delivers the interrupts the model has raised.
    fn signal(&mut self) {
        for effect in self.world.drain() {
            let Effect::Msix { hca, vector } = effect;
            if let Some(slot) = self.slots.get_mut(hca.0) {
                slot.device.raise(vector);
            }
        }
    }
}

impl Client {
    fn new(stream: UnixStream) -> io::Result<Client> {
        Ok(Client {
            peer: Peer::of(&stream),
            link: Arc::new(Mutex::new(Link::new(stream)?)),
            session: Session::default(),
        })
    }
}

/// What `poll` found.
struct Ready {
    stop: bool,
    control: bool,
    listeners: Vec<bool>,
    clients: Vec<bool>,
}
