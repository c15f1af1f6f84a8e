//! The socket of a process and the sessions of the links that leave it.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

use super::frame::{DIGEST_SIZE, HEADER_SIZE};
use super::key::Key;
use super::keys::Keys;
use super::session::{Event, Light, Loss, Session, Terms};
use crate::log::Source;
use crate::random::random;
use crate::topology::{Cut, Part, TunnelSettings};

/// Datagrams taken before the others of the engine get their turn.
const BUDGET: usize = 256;
/// Larger than any datagram.
const LARGEST: usize = 1 << 16;
/// What the system is asked to keep while the engine does other things; it may give less.
const BUFFER: usize = 4 << 20;

/// One link that leaves the process.
struct Tunnel {
    peer: SocketAddr,
    peer_name: String,
    name: String,
    session: Session,
    log: Source,
}

/// The tunnels of a process.
pub struct Tunnels {
    socket: UdpSocket,
    start: Instant,
    /// By the link's number.
    tunnels: BTreeMap<u16, Tunnel>,
    buffer: Vec<u8>,
    /// Datagrams of addresses that are nobody's, or for links that are none.
    strangers: u64,
    /// Datagrams that the system did not take.
    unsent: u64,
}

impl Tunnels {
    /// Binds the process's address; `None` if no link leaves the process.
    ///
    /// # Errors
    /// If a link has no key, the address can't be had, or the system has no random numbers.
    pub fn open(part: &Part<'_>, settings: &TunnelSettings, keys: &Keys) -> anyhow::Result<Option<Tunnels>> {
        let Some(process) = part.process.filter(|_| !part.cuts.is_empty()) else { return Ok(None) };
        if let Some(cut) = part.cuts.iter().find(|cut| cut.link.simbricks.is_some()) {
            let [a, b] = &cut.link.between;
            anyhow::bail!("the link between {a} and {b} joins simulations: `softhca sim` has such links");
        }
        // Before the address is taken.
        let keys = part.cuts.iter().map(|cut| keys.of(cut)).collect::<anyhow::Result<Vec<_>>>()?;
        let address = process.address.with_context(|| format!("process {} has no address", process.name))?;
        let socket =
            UdpSocket::bind(address).with_context(|| format!("process {}: {address}", process.name))?;
        socket.set_nonblocking(true)?;
        // Best effort: the system has limits of its own.
        let _ = setsockopt(&socket, sockopt::RcvBuf, &BUFFER);
        let _ = setsockopt(&socket, sockopt::SndBuf, &BUFFER);
        let mut tunnels = BTreeMap::new();
        for (cut, key) in part.cuts.iter().zip(keys) {
            let terms = terms(cut, settings, key)?;
            let [a, b] = &cut.link.between;
            let peer = cut.peer.context("a link leads to no process")?;
            let tunnel = Tunnel {
                peer: peer.address.with_context(|| format!("process {} has no address", peer.name))?,
                peer_name: peer.name.clone(),
                name: format!("{a} - {b}"),
                session: Session::new(terms, random()?, Duration::ZERO),
                log: Source::default(),
            };
            tunnels.insert(cut.number, tunnel);
        }
        tracing::info!("process {}: {} links leave by {address}", process.name, tunnels.len());
        let start = Instant::now();
        Ok(Some(Tunnels { socket, start, tunnels, buffer: vec![0; LARGEST], strangers: 0, unsent: 0 }))
    }

    /// The socket, for `poll`.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// How long there is nothing to do if nothing comes.
    pub fn sleep(&self) -> Duration {
        let next = self.tunnels.values().map(|t| t.session.next_tick()).min();
        next.unwrap_or(Duration::MAX).saturating_sub(self.start.elapsed())
    }

    /// Takes what has come and does what is due. Returns what the model has to know of which link, and whether
    /// there may be more to take.
    pub fn run(&mut self) -> (Vec<(u16, Event)>, bool) {
        let mut more = true;
        for _ in 0..BUDGET {
            match self.socket.recv_from(&mut self.buffer) {
                Ok((len, from)) => self.receive(len, from),
                // What the network says of an earlier datagram (refused, unreachable) is no news: silence is.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    more = false;
                    break;
                }
                Err(_) => {}
            }
        }
        let now = self.start.elapsed();
        let mut events = Vec::new();
        for (link, tunnel) in &mut self.tunnels {
            tunnel.session.tick(now);
            tunnel.session.tell_taken();
            while let Some(event) = tunnel.session.poll_event() {
                tunnel.log(&event);
                events.push((*link, event));
            }
        }
        self.flush();
        (events, more)
    }

    fn receive(&mut self, len: usize, from: SocketAddr) {
        let now = self.start.elapsed();
        let Some(datagram) = self.buffer.get(..len) else { return };
        // The header's length, so that the link's number is there; the session judges the rest.
        let link = datagram.get(..HEADER_SIZE).and_then(|h| h.get(6..8)?.try_into().ok());
        let tunnel = link.and_then(|link| self.tunnels.get_mut(&u16::from_be_bytes(link)));
        match tunnel.filter(|tunnel| tunnel.peer == from) {
            Some(tunnel) => tunnel.session.receive(now, datagram),
            None => self.strangers += 1,
        }
    }

    /// A packet leaves by a link.
    pub fn send(&mut self, link: u16, packet: Vec<u8>) {
        let now = self.start.elapsed();
        if let Some(tunnel) = self.tunnels.get_mut(&link) {
            tunnel.session.send(now, packet);
        }
    }

    /// This end of a link is lit, or dark.
    pub fn set_light(&mut self, link: u16, light: Option<Light>) {
        if let Some(tunnel) = self.tunnels.get_mut(&link) {
            tunnel.session.set_light(light);
        }
    }

    /// Hands everything that is to be sent to the system. What it does not take is lost.
    pub fn flush(&mut self) {
        for tunnel in self.tunnels.values_mut() {
            while let Some(datagram) = tunnel.session.poll_send() {
                if self.socket.send_to(&datagram, tunnel.peer).is_err() {
                    self.unsent += 1;
                }
            }
        }
    }

    /// Tells the peers that this process ends.
    pub fn close(&mut self) {
        self.tunnels.values_mut().for_each(|tunnel| tunnel.session.bye());
        self.flush();
    }

    /// Whether the peer of a link is there.
    pub fn is_joined(&self, link: u16) -> bool {
        self.tunnels.get(&link).is_some_and(|tunnel| tunnel.session.is_joined())
    }

    /// What happened so far.
    pub fn metrics(&self) -> Value {
        let links: Vec<_> = self
            .tunnels
            .values()
            .map(|tunnel| {
                let mut value = json!(tunnel.session.counts());
                if let Some(map) = value.as_object_mut() {
                    map.insert("link".into(), tunnel.name.clone().into());
                    map.insert("peer".into(), tunnel.peer_name.clone().into());
                    map.insert("joined".into(), tunnel.session.is_joined().into());
                }
                value
            })
            .collect();
        json!({ "strangers": self.strangers, "unsent": self.unsent, "links": links })
    }
}

impl Tunnel {
    fn log(&self, event: &Event) {
        if matches!(event, Event::Light(_) | Event::Packet(_)) {
            return;
        }
        let Tunnel { name, peer_name, log, .. } = self;
        log.say(|| match event {
            Event::Joined => tracing::info!("link {name}: process {peer_name} is there"),
            Event::Lost(Loss::Silent) => {
                tracing::warn!("link {name}: process {peer_name} is silent, link down")
            }
            Event::Lost(Loss::Again) => tracing::warn!("link {name}: process {peer_name} was started again"),
            Event::Lost(Loss::Bye) => tracing::info!("link {name}: process {peer_name} has ended, link down"),
            Event::Light(_) | Event::Packet(_) => {}
        });
    }
}

/// What this process knows of a link that leaves it.
///
/// # Errors
/// None that is known: the link can't be written as JSON.
pub fn terms(cut: &Cut<'_>, settings: &TunnelSettings, key: &Key) -> anyhow::Result<Terms> {
    Ok(Terms {
        key: key.clone(),
        link: cut.number,
        end: cut.here as u8,
        digest: digest(cut)?,
        datagram: settings.datagram,
        timeout: Duration::from_millis(settings.timeout_ms),
    })
}

/// Of everything about a link that both its processes have to agree on.
fn digest(cut: &Cut<'_>) -> anyhow::Result<[u8; DIGEST_SIZE]> {
    let text = serde_json::to_vec(cut.link)?;
    let hash = blake3::hash(&text);
    let (digest, _) = hash.as_bytes().split_first_chunk().context("a digest is longer")?;
    Ok(*digest)
}
