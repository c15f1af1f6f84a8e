//! A worker: gets what it needs from its supervisor, then serves.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::time::{ClockId, clock_gettime};

use super::Joints;
use super::channel::{Inbox, Note};
use crate::engine::Engine;
use crate::front_end::FrontEnd;
use crate::listener::Listener;
use crate::sandbox::Helper;
use crate::topology::{Isolation, ManagementKey, Topology, Worker};

/// Nanoseconds of the clock that all processes have in common.
pub(super) fn clock_ns() -> anyhow::Result<u64> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).context("CLOCK_MONOTONIC")?);
    Ok(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

/// Serves as a worker, until its supervisor ends or `stop` becomes readable. `inbox` is the worker's end of the channel to its
/// supervisor; `front_end` makes that of an adapter from its listening socket, and `ready` is called when everything is there, before
/// anybody is served, with how many descriptors it needs at most.
///
/// # Errors
/// The supervisor says what can't be, or the system refuses something.
pub fn run(
    inbox: OwnedFd,
    stop: OwnedFd,
    checks: bool,
    mut front_end: impl FnMut(Listener) -> anyhow::Result<Box<dyn FrontEnd>>,
    ready: impl FnOnce(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let inbox = Inbox::new(inbox);
    let (Note::Setup { host, file, m_key, began_ns }, fds) = next(&inbox)? else { bail!("no setup came") };
    let mut text = String::new();
    let mut fds = fds.into_iter();
    let topology = fds.next().context("no topology came")?;
    fds.map(Helper::inherited).for_each(Helper::install);
    std::fs::File::from(topology).read_to_string(&mut text).context("the topology")?;
    let mut topology = Topology::parse(&file, &text)?;
    topology.isolation = Isolation::Process;
    topology.checker.enabled |= checks;
    if let Some(key) = m_key {
        topology.fabric.m_key = ManagementKey::Given(key);
    }
    let age = Duration::from_nanos(clock_ns()?.saturating_sub(began_ns));
    let began = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
    let worker = Worker::of(host);
    let mut joints = Joints::new(inbox);
    let mut listeners = Vec::new();
    loop {
        match next(&joints.inbox)? {
            (Note::Listener { path }, fds) => {
                let socket = fds.into_iter().next().context("no socket came")?;
                listeners.push(Listener::inherit(socket, path.into())?);
            }
            (Note::Link { number, here }, fds) => joints.add(number, here, fds)?,
            (Note::Serve, _) => break,
            (note, _) => bail!("{note:?}: a note out of turn"),
        }
    }
    let mut listeners = listeners.into_iter();
    let next = |_: &_| front_end(listeners.next().context("an adapter has no socket")?);
    let mut engine = Engine::worker(&topology, &worker, next, joints, began, stop)?;
    let part = topology.part_of(&worker)?;
    ready(descriptors(part.hcas().count(), part.cuts.len()))?;
    tracing::info!("{worker}: served by process {}", std::process::id());
    engine.run()
}

/// Descriptors that a worker with so many adapters and links may need: a client's are bounded by what its adapter takes (files of 4096
/// mappings, 256 that won't close, those of vectors and of a message), the operator's by how many may ask at a time.
fn descriptors(adapters: usize, links: usize) -> u64 {
    const OWN: usize = 512;
    const ADAPTER: usize = 8192;
    const LINK: usize = 8;
    let most =
        adapters.saturating_mul(ADAPTER).saturating_add(links.saturating_mul(LINK)).saturating_add(OWN);
    u64::try_from(most).unwrap_or(u64::MAX)
}

fn next(inbox: &Inbox) -> anyhow::Result<(Note, Vec<OwnedFd>)> {
    inbox.receive(true)?.context("no note came")
}
