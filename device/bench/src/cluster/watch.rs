//! Who looks on: hashes of what happens, and files of it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use hca_model::trace::Captured;
use hca_model::{HcaId, PortRef, World};
use hca_trace::Observer;

use super::outcome::{Account, Hashes};
use super::plan::Plan;
use crate::Error;

/// Looks on from the begin to the end.
pub(super) struct Watch {
    hashes: Option<Ports>,
    observer: Option<Observer>,
}

/// Hashes of the packets at each port, and how many there were.
#[derive(Default)]
struct Ports(HashMap<PortRef, (DefaultHasher, u64)>);

impl Ports {
    fn note(&mut self, captured: Captured) {
        let Captured { at, sent, port, packet } = captured;
        let (hasher, count) = self.0.entry(port).or_default();
        (at.0, sent, packet.into_bytes()).hash(hasher);
        *count += 1;
    }
}

fn named(name: &str, hash: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (name, hash).hash(&mut hasher);
    hasher.finish()
}

fn failed(why: &anyhow::Error) -> Error {
    Error::new(format!("{why:#}"))
}

impl Watch {
    /// From now on.
    ///
    /// # Errors
    /// A file can't be made, or there is no port of a name that was given.
    pub(super) fn begin(plan: &Plan, world: &mut World) -> Result<Self, Error> {
        let observer = plan.observation.any().then(|| Observer::new(&plan.observation, world));
        let observer = observer.transpose().map_err(|why| failed(&why))?;
        let hashes = plan.hash.then(|| {
            world.hash_trace();
            world.ports().collect::<Vec<_>>().into_iter().for_each(|port| world.capture_packets(port));
            Ports::default()
        });
        Ok(Self { hashes, observer })
    }

    /// Takes what there is.
    ///
    /// # Errors
    /// A file can't be written.
    pub(super) fn take(&mut self, world: &mut World) -> Result<(), Error> {
        let Self { hashes, observer } = self;
        match observer {
            Some(observer) => {
                let mut note =
                    |captured: &Captured| hashes.iter_mut().for_each(|ports| ports.note(captured.clone()));
                observer.take_beside(world, &mut note).map_err(|why| failed(&why))
            }
            None => {
                let packets = world.drain_packets();
                if let Some(ports) = hashes {
                    packets.into_iter().for_each(|packet| ports.note(packet));
                }
                Ok(())
            }
        }
    }

    /// All of it: hashes, if they are wanted, and what is to be told of files.
    ///
    /// # Errors
    /// A file can't be written.
    pub(super) fn end<'a>(
        &mut self,
        world: &mut World,
        accounts: impl Iterator<Item = (&'a str, &'a Account)>,
    ) -> Result<(Option<Hashes>, Vec<String>), Error> {
        self.take(world)?;
        let hashes = self.hashes.take().map(|ports| sum(&ports, world, accounts));
        Ok((hashes, self.close(world)?))
    }

    /// Ends the files. Returns what is to be told of them.
    ///
    /// # Errors
    /// A file can't be written.
    pub(super) fn close(&mut self, world: &mut World) -> Result<Vec<String>, Error> {
        let said = self.observer.take().map_or(Ok(Vec::new()), |observer| observer.finish(world));
        said.map_err(|why| failed(&why))
    }
}

fn sum<'a>(ports: &Ports, world: &World, accounts: impl Iterator<Item = (&'a str, &'a Account)>) -> Hashes {
    let mut hashes = Hashes::default();
    let [events, packets, _] = &mut hashes.counts;
    for hca in (0..world.hcas()).map(HcaId) {
        let (hash, count) = world.trace().map(|trace| trace.of_node(hca)).unwrap_or_default();
        hashes.events = hashes.events.wrapping_add(named(world.name(hca), hash));
        *events += count;
    }
    for (port, (hasher, count)) in &ports.0 {
        hashes.packets = hashes.packets.wrapping_add(named(&world.port_name(*port), hasher.finish()));
        *packets += count;
    }
    completions(&mut hashes, accounts);
    hashes
}

/// Adds completions.
pub(super) fn completions<'a>(hashes: &mut Hashes, accounts: impl Iterator<Item = (&'a str, &'a Account)>) {
    let [.., count] = &mut hashes.counts;
    for (name, account) in accounts {
        hashes.completions = hashes.completions.wrapping_add(named(name, account.hasher.finish()));
        *count += account.completions;
    }
}
