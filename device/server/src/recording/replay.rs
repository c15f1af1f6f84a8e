//! The adapters without their hosts: what is recorded reaches them again.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use hca_model::{Effect, HcaId, Ps, TunnelId, World};
use hca_trace::Observer;
use hca_trace::coverage::Coverage;

use super::file::{Ending, Header, Item, Recording};
use super::player::{Divergence, Player};
use super::record::Record;
use super::seam::Seam;
use crate::diagnoses::Diagnoses;
use crate::faults::Faults;
use crate::function::{Endpoint, Function};
use crate::links::Links;
use crate::memory::Peer;
use crate::model;
use crate::pacing::Pacer;
use crate::pci::msix::Signal;
use crate::steps;
use crate::topology::{ManagementKey, Topology};

/// Longest read of a register that a recording may ask for: all of BAR0.
const MAX_READ: u32 = 64 << 20;

/// A host that is told of interrupts, and does not care.
#[derive(Debug)]
struct Deaf;

impl Signal for Deaf {
    fn signal(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What came of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Records that were replayed.
    pub records: u64,
    /// Model time in ps at the end.
    pub time: u64,
    /// How the recording ends; `None`: it was not played to its end.
    pub ending: Option<Ending>,
    /// Where the adapters did something else than when it was recorded.
    pub divergence: Option<Divergence>,
    /// The last mark up to which all that was traced was as recorded, and the first at which it was not: numbers of their records.
    pub inside: Option<(u64, u64)>,
    /// Hash of all that was traced, and how many events that were.
    pub hash: (u64, u64),
    /// Whether the recording says what the hash has to be, and it was compared.
    pub compared: bool,
    /// Reads of memory that were answered.
    pub dma_reads: u64,
    /// Writes to memory that were as recorded.
    pub dma_writes: u64,
    /// Interrupts that were as recorded.
    pub interrupts: u64,
    /// What left by links and was as recorded.
    pub packets: u64,
    /// Diagnoses of drivers.
    pub diagnoses: u64,
}

/// The adapters of a recording.
pub struct Replay {
    recording: Recording,
    player: Player,
    world: World,
    links: Links,
    faults: Faults,
    functions: Vec<Function>,
    pacer: Pacer,
    observer: Option<Observer>,
    diagnoses: Diagnoses,
    /// Time of what came by links in this step.
    came: Ps,
    /// Whether the trace is to be as recorded.
    compares: bool,
    /// The last mark that was right.
    mark: u64,
    inside: Option<(u64, u64)>,
    compared: bool,
    records: u64,
}

impl Replay {
    /// The adapters as they were when the recording began. `check`: with the checker, though it was recorded without; it does not see
    /// what is in hosts' memory then.
    ///
    /// # Errors
    /// The file can't be read, or what it is of can't be made.
    pub fn open(path: &Path, check: bool, until: Option<Ps>) -> anyhow::Result<Replay> {
        Replay::of(Recording::open(path)?, check, until)
    }

    /// The same of a recording that is open.
    ///
    /// # Errors
    /// What it is of can't be made.
    pub fn of(recording: Recording, check: bool, until: Option<Ps>) -> anyhow::Result<Replay> {
        let Header { topology, process, check: checked, m_key, adapters, softhca: _ } =
            recording.header().clone();
        let mut topology = Topology::parse("the recording's topology", &topology)?;
        topology.checker.enabled = checked || check;
        if let Some(key) = m_key {
            topology.fabric.m_key = ManagementKey::Given(key);
        }
        let part = topology.part(process.as_deref())?;
        let (mut world, links) = steps::world(&topology, &part)?;
        world.set_trains(false);
        let faults = Faults::new(&topology, &part, &mut world);
        let functions = steps::functions(&part);
        let names: Vec<String> = functions.iter().map(|function| function.name().to_owned()).collect();
        ensure!(names == adapters, "{}: its adapters are not those of its topology", recording.name());
        let player = Player::new(names, until);
        let seam = Seam::Plays(player.clone());
        let mut replay = Replay {
            compares: checked == topology.checker.enabled,
            pacer: Pacer::new(&topology.time),
            recording,
            player,
            world,
            links,
            faults,
            functions,
            observer: None,
            diagnoses: Diagnoses::default(),
            came: Ps::ZERO,
            mark: 0,
            inside: None,
            compared: false,
            records: 0,
        };
        replay.functions.iter_mut().for_each(|function| function.set_seam(seam.clone()));
        replay.pacer.set_seam(seam);
        Ok(replay)
    }

    /// What it is of.
    pub fn header(&self) -> &Header {
        self.recording.header()
    }

    /// Looks on as the options ask for.
    ///
    /// # Errors
    /// A file can't be made, or there is no port of a name that was given.
    pub fn observe(&mut self, options: &hca_trace::Options) -> anyhow::Result<()> {
        self.observer = Some(Observer::new(options, &mut self.world)?);
        Ok(())
    }

    /// What drivers have used of the interface so far, if that is looked at.
    pub fn coverage(&self) -> Option<&Coverage> {
        self.observer.as_ref().and_then(Observer::coverage)
    }

    /// Ends the files of what was looked at. Returns what is to be printed of it.
    ///
    /// # Errors
    /// Writing failed.
    pub fn end_observing(&mut self) -> anyhow::Result<Vec<String>> {
        self.observer.take().map_or(Ok(Vec::new()), |observer| observer.finish(&mut self.world))
    }

    /// Plays the recording, to its end or to the first divergence.
    ///
    /// # Errors
    /// The recording is damaged, or asks for what there is not; writing what was looked at failed.
    pub fn run(&mut self) -> anyhow::Result<Outcome> {
        self.world.hash_trace();
        loop {
            let mut items = self.recording.next_step()?;
            let Some(step) = items.pop_front() else { break };
            self.records += 1 + items.len() as u64;
            self.player.begin(&step, items);
            let number = step.number;
            self.perform(step).with_context(|| format!("{}: record {number}", self.recording.name()))?;
            if !self.player.end() || self.player.is_over() {
                break;
            }
            self.look()?;
        }
        self.take_diagnoses()?;
        self.look()?;
        let counts = self.player.counts();
        let divergence = self.player.divergence();
        let whole = divergence.is_none() && !self.player.is_over();
        Ok(Outcome {
            records: self.records,
            time: self.world.start().wrapped(self.world.now()),
            ending: self.recording.ending().filter(|_| whole),
            divergence,
            inside: self.inside,
            hash: self.world.trace().map_or((0, 0), |trace| (trace.hash(), trace.count())),
            compared: self.compared,
            dma_reads: counts.dma_reads,
            dma_writes: counts.dma_writes,
            interrupts: counts.interrupts,
            packets: counts.packets,
            diagnoses: self.diagnoses.count(),
        })
    }

    /// Takes what was diagnosed, and writes it into the trace.
    fn take_diagnoses(&mut self) -> anyhow::Result<()> {
        steps::check(&mut self.world, self.functions.iter_mut());
        let Self { world, observer, functions, .. } = self;
        let mut written = Ok(());
        self.diagnoses.take(world, |diagnosis, said| {
            if let Some(function) = functions.get_mut(diagnosis.function.hca.0) {
                function.diagnosed(&diagnosis.saying.to_string());
            }
            if let (Some(observer), Ok(())) = (observer.as_mut(), &written) {
                written = observer.note(diagnosis.at, diagnosis.function.hca, "diagnosis", said);
            }
        });
        written
    }

    fn look(&mut self) -> anyhow::Result<()> {
        self.observer.as_mut().map_or(Ok(()), |observer| observer.take(&mut self.world))
    }

    /// Calls the endpoint of an adapter.
    fn at<T>(&mut self, hca: u16, act: impl FnOnce(&mut Endpoint<'_>) -> T) -> anyhow::Result<T> {
        let function = self.functions.get_mut(usize::from(hca)).context("there is no such adapter")?;
        Ok(act(&mut Endpoint::new(function, &mut self.world, &mut self.pacer)))
    }

    /// What is recorded of a step reaches the adapters.
    fn perform(&mut self, step: Item) -> anyhow::Result<()> {
        match step.record {
            Record::Attach { hca } => {
                self.player.set_defers(hca, false);
                self.at(hca, |endpoint| endpoint.attach(None, Peer::default()))
            }
            Record::Reports { hca } => self.at(hca, |endpoint| endpoint.enable_reports()),
            Record::Detach { hca, reason } => {
                self.player.set_defers(hca, false);
                self.at(hca, |endpoint| endpoint.detach(&reason))
            }
            Record::Read { hca, space, offset, len } => {
                ensure!(len <= MAX_READ, "a read of {len} bytes is longer than any");
                let mut data = vec![0; len as usize];
                self.at(hca, |endpoint| endpoint.read(space, offset, &mut data))
            }
            Record::Write { hca, space, offset, data } => {
                self.at(hca, |endpoint| endpoint.write(space, offset, &data))
            }
            Record::Map { hca, later, done, .. } => {
                if later && done {
                    self.player.set_defers(hca, true);
                }
                Ok(())
            }
            Record::Unmap { hca, range, done } => {
                let place = self.functions.get(usize::from(hca)).context("there is no such adapter")?.place();
                if done {
                    let (iova, size) = range.unwrap_or((0, u64::MAX));
                    self.world.unmapped(place, iova, size);
                }
                Ok(())
            }
            Record::MemoryChanged { hca } => {
                let place = self.functions.get(usize::from(hca)).context("there is no such adapter")?.place();
                self.world.memory_changed(self.world.now(), place);
                Ok(())
            }
            Record::Connect { hca, vector, connected } => {
                let signal = connected.then(|| Box::new(Deaf) as Box<dyn Signal>);
                // What was refused is refused again.
                self.at(hca, |endpoint| {
                    let _ = endpoint.connect(vector, signal);
                })
            }
            Record::Mask { hca, vector, masked } => self.at(hca, |endpoint| {
                let _ = endpoint.mask(vector, masked);
            }),
            Record::Trigger { hca, vector } => self.at(hca, |endpoint| {
                endpoint.trigger(vector);
            }),
            Record::Reset { hca } => self.at(hca, |endpoint| endpoint.reset()),
            Record::StoresEnd { hca } => {
                let now = self.pacer.catch_up(&mut self.world);
                self.world.flush_stores(now, HcaId(usize::from(hca)));
                Ok(())
            }
            Record::Answers { hca, all_written, news } => {
                let function =
                    self.functions.get_mut(usize::from(hca)).context("there is no such adapter")?;
                if all_written {
                    function.writes_are_seen();
                }
                if news {
                    let (now, place) = (self.pacer.arrival(&self.world), function.place());
                    self.world.memory_changed(now, place);
                }
                Ok(())
            }
            Record::Epoch => {
                self.world.rebase_if_due(Ps::MAX).context("the start of time does not move")?;
                let world = &self.world;
                self.observer.iter_mut().for_each(|observer| observer.start_moved(world));
                Ok(())
            }
            Record::Run => {
                self.player.run(&mut self.world);
                Ok(())
            }
            Record::Signal => {
                for effect in self.world.drain() {
                    let Effect::Msix { hca, .. } = effect;
                    steps::deliver(&mut self.world, self.functions.get_mut(hca.0), effect);
                }
                Ok(())
            }
            Record::Arrivals => {
                self.came = self.pacer.catch_up(&mut self.world);
                Ok(())
            }
            Record::Frames => {
                self.came = self.pacer.arrival(&self.world);
                Ok(())
            }
            Record::Packet { link, data } => {
                self.world.tunnel_receive(self.came, TunnelId(link.into()), data);
                Ok(())
            }
            Record::Frame { link, data } => {
                self.world.tunnel_frame(self.came, TunnelId(link.into()), data);
                Ok(())
            }
            Record::Light { link, light } => {
                let light = light.map(|(width, speed)| crate::tunnel::Light { width, speed });
                self.world.tunnel_link(self.came, TunnelId(link.into()), light.and_then(model::port_link));
                Ok(())
            }
            Record::Drain => {
                let seam = Seam::Plays(self.player.clone());
                steps::leaving(&mut self.world, &seam);
                Ok(())
            }
            Record::Control { request } => {
                let request = serde_json::from_str(&request).context("a request of the operator")?;
                let now = self.pacer.catch_up(&mut self.world);
                // What was refused is refused again.
                let _ = steps::operate(&mut self.world, (&mut self.links, &mut self.faults), now, &request);
                Ok(())
            }
            Record::Diagnose => self.take_diagnoses(),
            Record::Mark { hash, count } => {
                self.compare(step.number, hash, count);
                Ok(())
            }
            Record::End { .. } => Ok(()),
            _ => bail!("it is of no step"),
        }
    }

    fn compare(&mut self, number: u64, hash: u64, count: u64) {
        let Some(trace) = self.world.trace().filter(|_| self.compares) else { return };
        self.compared = true;
        match (trace.hash(), trace.count()) == (hash, count) {
            true if self.inside.is_none() => self.mark = number,
            true => {}
            false => {
                self.inside.get_or_insert((self.mark, number));
            }
        }
    }
}

/// Memory of an adapter's host as the model is to see it.
pub(crate) fn memory_of(
    seam: &Seam,
    memory: &Arc<crate::memory::HostMemory>,
    hca: u16,
) -> Arc<dyn hca_model::GuestMemory + Send + Sync> {
    match seam {
        Seam::Off => Arc::clone(memory) as _,
        Seam::Records(recorder) => {
            Arc::new(super::memory::Recorded::new(Arc::clone(memory), recorder.clone(), hca))
        }
        Seam::Plays(player) => Arc::new(super::memory::Played::new(player.clone(), hca)),
    }
}
