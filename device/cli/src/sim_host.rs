//! `softhca sim --host`: hosts without guests for adapters that other processes simulate.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hca_bench::cluster::Adapters;
use hca_bench::cluster::far::{Next, Remotes};
use hca_model::{GuestMemory, HcaId, Ps};
use hca_server::sim;
use hca_server::simbricks::pcie::host::{FromDevice, Heard, HostPatience};
use hca_server::simbricks::pcie::message::MSIX_ON;
use hca_server::simbricks::pcie::{self, HostLink};
use hca_server::simbricks::{self, LinkError};
use hca_server::topology::{Hca, Host, Topology};

/// Registers are in that base address register.
const BAR: u8 = 0;

/// A host's side of a link.
struct Remote {
    /// That of the adapter.
    name: String,
    link: HostLink,
    memory: Option<Arc<dyn GuestMemory>>,
    /// What a register had that was read.
    answer: Option<u32>,
    failed: Option<LinkError>,
}

impl Remote {
    fn failed(&self, why: &LinkError) -> hca_bench::Error {
        hca_bench::Error::new(format!("the adapter {} (PCI Express): {why}", self.name))
    }

    /// Something was sent, or not: the next who can tell of that does.
    fn keep(&mut self, sent: Result<(), LinkError>) {
        self.failed = self.failed.take().or(sent.err());
    }

    /// Does what the adapter wants. Returns whether the program looks up.
    fn carry_out(&mut self, at: Ps, from: FromDevice) -> Result<bool, LinkError> {
        let Some(memory) = &self.memory else { return Ok(false) };
        match from {
            FromDevice::Read { id, at: address, len } => {
                let mut data = vec![0; len.into()];
                // There are no errors in the protocol: what is no memory reads as ones.
                if memory.read(address, &mut data).is_err() {
                    data.fill(u8::MAX);
                }
                self.link.answer(at, id, Some(&data))?;
                Ok(false)
            }
            FromDevice::Write { id, at: address, data } => {
                let _ = memory.write(address, &data);
                self.link.answer(at, id, None)?;
                Ok(false)
            }
            FromDevice::ReadDone { data, .. } => {
                self.answer = data.first_chunk().map(|word| u32::from_be_bytes(*word));
                Ok(true)
            }
            FromDevice::Interrupt { .. } => Ok(true),
            FromDevice::WriteDone => Ok(false),
        }
    }
}

/// All of them, by their place.
pub(crate) struct Hosts {
    remotes: Vec<Remote>,
    patience: HostPatience,
}

impl Hosts {
    /// Links to these adapters, whose processes have to be there within `patience`.
    ///
    /// # Errors
    /// One is not there, or is no adapter.
    pub(crate) fn open(
        topology: &Topology,
        adapters: &[(&Host, &Hca)],
        run_dir: &Path,
        patience: Duration,
    ) -> anyhow::Result<Self> {
        let mut links = Vec::new();
        for (host, hca) in adapters {
            let place = hca.simbricks.as_ref().with_context(|| {
                format!(
                    "{}/{}: its host is not elsewhere: it has no simbricks in the topology",
                    host.name, hca.name
                )
            })?;
            let place = place.far();
            links.push(pcie::of_host(place.role, run_dir.join(&place.path)));
        }
        let channels = simbricks::open(&links, patience)?;
        let mut remotes = Vec::new();
        for ((host, hca), channel) in adapters.iter().zip(channels) {
            let name = format!("{}/{}", host.name, hca.name);
            let crossing = sim::crossing(topology, hca);
            let mut link = HostLink::new(channel, crossing).with_context(|| format!("the adapter {name}"))?;
            link.control(Ps::ZERO, MSIX_ON)?;
            remotes.push(Remote { name, link, memory: None, answer: None, failed: None });
        }
        Ok(Self { remotes, patience: HostPatience::default() })
    }

    fn remote(&mut self, hca: HcaId) -> Result<&mut Remote, hca_bench::Error> {
        self.remotes.get_mut(hca.0).ok_or(hca_bench::Error::new("there is no such adapter"))
    }

    /// If it goes wrong, that is told by whatever comes next.
    fn with(&mut self, hca: HcaId, act: impl FnOnce(&mut Remote)) {
        if let Some(remote) = self.remotes.get_mut(hca.0) {
            act(remote);
        }
    }
}

impl Adapters for Hosts {
    fn attach(&mut self, hca: HcaId, memory: Arc<dyn GuestMemory>) {
        self.with(hca, |remote| remote.memory = Some(memory));
    }

    fn load(&mut self, now: Ps, hca: HcaId, offset: u64) -> Option<u32> {
        self.with(hca, |remote| {
            remote.answer = None;
            let sent = remote.link.read(now, BAR, offset, 4);
            remote.keep(sent.map(|_| ()));
        });
        None
    }

    fn answer(&mut self, hca: HcaId) -> Option<u32> {
        self.remotes.get_mut(hca.0).and_then(|remote| remote.answer.take())
    }

    fn store(&mut self, now: Ps, hca: HcaId, offset: u64, data: &[u8]) {
        self.with(hca, |remote| {
            let sent = remote.link.write(now, BAR, offset, data, true);
            remote.keep(sent);
        });
    }

    /// The adapter sees for itself that nothing continues a store.
    fn flush(&mut self, _now: Ps, _hca: HcaId) {}
}

impl Remotes for Hosts {
    fn hear(&mut self, hca: HcaId, until: Ps) -> Result<Next, hca_bench::Error> {
        let remote = self.remote(hca)?;
        if let Some(why) = remote.failed.take() {
            return Err(remote.failed(&why));
        }
        let heard = remote.link.hear(until).map_err(|why| remote.failed(&why))?;
        Ok(match heard {
            Heard::Message(at, from) => {
                let wakes = remote.carry_out(at, from).map_err(|why| remote.failed(&why))?;
                Next::Came(at, wakes)
            }
            Heard::Quiet => Next::Quiet,
            Heard::Unknown => Next::Unknown(remote.link.heard()),
        })
    }

    fn tell(&mut self, hca: HcaId, reached: Ps, next: Ps) -> Result<(), hca_bench::Error> {
        let remote = self.remote(hca)?;
        remote.link.tell(reached, next).map_err(|why| remote.failed(&why))
    }

    fn wait(&mut self, found: bool) -> Result<(), hca_bench::Error> {
        if found {
            self.patience.renew();
        }
        let Self { remotes, patience } = self;
        let waited = HostLink::wait(remotes.iter().map(|remote| &remote.link), patience);
        waited.map_err(|(place, why)| match remotes.get(place) {
            Some(remote) => remote.failed(&why),
            None => hca_bench::Error::new(why.to_string()),
        })
    }

    fn finish(mut self: Box<Self>) -> Result<(), hca_bench::Error> {
        self.remotes.iter_mut().try_for_each(|remote| {
            let ended = remote.link.finish();
            ended.map_err(|why| remote.failed(&why))
        })
    }
}
