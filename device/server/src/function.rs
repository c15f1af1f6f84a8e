//! One adapter's PCI function: configuration space, interrupts and guest memory around the model.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_model::fault::PcieLink;
use hca_model::personality::Personality;
use hca_model::{Finding, FunctionRef, PortKind, Ps, World, is_doorbell};

use crate::log::Source;
use crate::memory::{Backing, HostMemory, Limits, MapError, Peer, Range, RemoteMemory, Window};
use crate::metrics::Metrics;
use crate::pacing::Pacer;
use crate::pci::aer::Message;
use crate::pci::config::ConfigSpace;
use crate::pci::msix::{Msix, NoSuchVector, Raised, Signal};
use crate::pci::rom::Rom;
use crate::pci::rules::Told;
use crate::pci::{BAR2_SIZE, CONFIG_SIZE, Space};
use crate::recording::{Became, Record, Seam, memory_of};

/// Largest access handed to the model in one piece; it never crosses a multiple of this. A
/// BlueFlame write of a host that can send it whole stays whole.
const MMIO_CHUNK: u64 = 64;

/// State of one function outside the model.
#[derive(Debug)]
pub struct Function {
    /// `host/hca`.
    name: String,
    place: FunctionRef,
    personality: Arc<Personality>,
    attached: bool,
    config: ConfigSpace,
    rom: Option<Rom>,
    msix: Msix,
    memory: Arc<HostMemory>,
    /// Vectors that were raised while the host did not see everything that had been written before.
    behind_writes: BTreeSet<u16>,
    metrics: Metrics,
    /// Of what its host causes.
    log: Source,
    /// What the checker has said of its configuration.
    told: Told,
    /// What it has to tell the root complex: the last of each kind, in their order.
    messages: Vec<Message>,
    /// Whether what reaches it is recorded, or comes from a recording.
    seam: Seam,
}

impl Function {
    /// The function at `place` of an adapter of that kind and serial number, after power-on, without a host. Its first port starts
    /// with that link layer, its host's memory has those limits.
    pub fn new(
        name: String,
        place: FunctionRef,
        personality: Arc<Personality>,
        port_kind: PortKind,
        serial: &str,
        limits: Limits,
    ) -> Function {
        Function {
            name,
            place,
            attached: false,
            config: ConfigSpace::new(&personality, port_kind, serial),
            rom: None,
            msix: Msix::new(personality.pci.msix_vectors),
            personality,
            memory: Arc::new(HostMemory::limited(limits)),
            behind_writes: BTreeSet::new(),
            metrics: Metrics::default(),
            log: Source::default(),
            told: Told::default(),
            messages: Vec::new(),
            seam: Seam::Off,
        }
    }

    /// The same with an expansion ROM.
    pub fn with_rom(self, rom: Option<Rom>) -> Function {
        let config = match &rom {
            Some(rom) => self.config.with_rom(rom.size()),
            None => self.config,
        };
        Function { config, rom, ..self }
    }

    /// The same; the guest can read what is diagnosed of its driver, if that is so.
    pub fn with_report(self, is_shown: bool) -> Function {
        let config = if is_shown { self.config.with_report() } else { self.config };
        Function { config, ..self }
    }

    /// That was diagnosed of its driver.
    pub(crate) fn diagnosed(&mut self, text: &str) {
        self.config.note(text);
    }

    /// What reaches it is recorded from now on, or comes from a recording.
    pub(crate) fn set_seam(&mut self, seam: Seam) {
        self.seam = seam;
    }

    /// Its number in a recording.
    fn number(&self) -> u16 {
        self.place.hca.0 as u16
    }

    /// Which function of the model it is.
    pub(crate) fn place(&self) -> FunctionRef {
        self.place
    }

    /// Its name, `host/hca`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True while a host is attached.
    pub fn is_attached(&self) -> bool {
        self.attached
    }

    /// What happened so far.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Number of DMA accesses that failed.
    pub fn dma_errors(&self) -> u64 {
        self.memory.failed_accesses()
    }

    /// The model raises an interrupt. A message interrupt is a memory write: without bus
    /// mastering it waits, and it does not pass the writes before it.
    pub fn raise(&mut self, vector: u16) {
        let behind = match self.seam.player() {
            Some(player) => player.is_behind(self.number(), vector),
            None => self.memory.is_writing(),
        };
        match behind {
            true => {
                self.behind_writes.insert(vector);
                self.told_of(vector, Became::Behind);
            }
            false => self.signal(vector),
        }
    }

    /// What a checker has to say of a vector that is raised.
    pub(crate) fn check_raised(&mut self, now: Ps, vector: u16) -> Option<Finding> {
        self.told.raised(now, &self.config, &self.msix, vector)
    }

    /// Whether a checker has something to wait for.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.told.waits()
    }

    /// What a checker has to say when time has passed.
    pub(crate) fn check_late(&mut self, now: Ps, patience: Ps) -> Option<Finding> {
        self.told.look(now, patience, &self.config, &self.msix)
    }

    /// Errors of PCI Express that happened on script are in its registers from now on, and told.
    pub(crate) fn log_errors(&mut self, world: &mut World) {
        for event in world.take_pcie_events(self.place) {
            let Some(message) = self.config.log(event) else { continue };
            world.sent_error_message(self.place, message.into());
            if !self.messages.contains(&message) {
                self.messages.push(message);
            }
        }
    }

    /// Takes what it has to tell the root complex. Of messages of a kind that come before that, one is told.
    pub(crate) fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.messages)
    }

    /// Takes what the host has answered to accesses to its memory, and signals what waited for that. Returns true if the
    /// model has to look ([`World::memory_changed`]).
    pub fn take_answers(&mut self) -> bool {
        let news = self.memory.take_answers();
        let all_written = !self.behind_writes.is_empty() && !self.memory.is_writing();
        if news || all_written {
            self.seam.keep(|| Record::Answers { hca: self.number(), all_written, news });
        }
        if all_written {
            self.writes_are_seen();
        }
        news
    }

    /// The host sees everything that was written: what waited for that is signalled.
    pub(crate) fn writes_are_seen(&mut self) {
        for vector in std::mem::take(&mut self.behind_writes) {
            self.signal(vector);
        }
    }

    /// When an access to the host's memory is given up, if it is not answered before.
    pub fn deadline(&self) -> Option<Instant> {
        self.memory.deadline()
    }

    fn signal(&mut self, vector: u16) {
        let raised = if self.config.may_master() { self.msix.raise(vector) } else { self.msix.hold(vector) };
        let counter = match raised {
            Raised::Signalled => &mut self.metrics.interrupts,
            Raised::Pending => &mut self.metrics.interrupts_held,
            Raised::Dropped => &mut self.metrics.interrupts_dropped,
        };
        *counter += 1;
        self.told_of(vector, raised.into());
    }

    /// That became of an interrupt.
    #[inline]
    fn told_of(&self, vector: u16, became: Became) {
        match &self.seam {
            Seam::Off => {}
            Seam::Plays(player) => player.interrupt(self.number(), vector, became),
            seam => seam.keep(|| Record::Interrupt { hca: self.number(), vector, became }),
        }
    }
}

/// A function with its part of the model and a clock: what a front end may do to an adapter.
///
/// It lasts for one call of [`FrontEnd::serve`](crate::front_end::FrontEnd::serve). Each access happens at the present
/// model time, after everything that was due before.
pub struct Endpoint<'a> {
    function: &'a mut Function,
    world: &'a mut World,
    clock: Clock<'a>,
}

/// What says when an access happens.
enum Clock<'a> {
    /// The machine's clock.
    Paced(&'a mut Pacer),
    /// Whoever lets the model's time pass, and has let everything happen that comes before the access.
    At(Ps),
}

impl Clock<'_> {
    /// The present; what was due before has happened.
    fn catch_up(&mut self, world: &mut World) -> Ps {
        match self {
            Clock::Paced(pacer) => pacer.catch_up(world),
            Clock::At(now) => *now,
        }
    }

    /// The host's time that went to the model's events.
    fn took(&self) -> Duration {
        match self {
            Clock::Paced(pacer) => pacer.took(),
            Clock::At(_) => Duration::ZERO,
        }
    }
}

impl<'a> Endpoint<'a> {
    pub(crate) fn new(
        function: &'a mut Function,
        world: &'a mut World,
        pacer: &'a mut Pacer,
    ) -> Endpoint<'a> {
        Endpoint { function, world, clock: Clock::Paced(pacer) }
    }

    /// Of a simulation: accesses happen at `now`, and everything before has happened.
    pub(crate) fn at(function: &'a mut Function, world: &'a mut World, now: Ps) -> Endpoint<'a> {
        Endpoint { function, world, clock: Clock::At(now) }
    }

    /// Keeps a record of something that reaches the adapter by number, if records are kept.
    #[inline]
    fn keep(&self, record: impl FnOnce(u16) -> Record) {
        self.function.seam.keep(|| record(self.function.number()));
    }

    /// The function's name, `host/hca`.
    pub fn name(&self) -> &str {
        &self.function.name
    }

    /// True while a host is attached.
    pub fn is_attached(&self) -> bool {
        self.function.attached
    }

    /// A host is there. `remote` reaches those parts of its memory that it maps without a descriptor; `peer` is the
    /// process that maps the others.
    pub fn attach(&mut self, remote: Option<Arc<dyn RemoteMemory>>, peer: Peer) {
        self.keep(|hca| Record::Attach { hca });
        let function = &mut *self.function;
        function.attached = true;
        function.config.forget();
        function.metrics.clients += 1;
        function.memory.connect(remote, peer);
        let memory = memory_of(&function.seam, &function.memory, function.number());
        self.world.attach(function.place, memory);
        function.log.say(|| tracing::info!("{}: client attached", function.name));
    }

    /// The host is gone, for this reason: the adapter is reset and lets go of everything of the host's.
    ///
    /// The model is not brought to the present first: what is due until then would find no memory, and
    /// peers would hear of access errors from a host that has only fallen silent.
    pub fn detach(&mut self, reason: &str) {
        self.keep(|hca| Record::Detach { hca, reason: reason.to_owned() });
        self.world.detach(self.world.now(), self.function.place);
        self.function.log_errors(self.world);
        // Without a host it has no power.
        self.restart(self.world.now());
        let function = &mut *self.function;
        function.log.say(|| tracing::info!("{}: client gone ({reason}), adapter reset", function.name));
        function.attached = false;
        function.memory.set_bus_master(false);
        function.memory.disconnect();
        function.behind_writes.clear();
        function.config.reset();
        function.msix.reset();
        function.msix.disconnect_all();
        function.told.forget();
        function.messages.clear();
    }

    /// The firmware of the host's platform has the function report errors of PCI Express, until it is reset.
    pub fn enable_reports(&mut self) {
        self.keep(|hca| Record::Reports { hca });
        self.function.config.enable_reports();
    }

    /// Counts requests of the host that were handled.
    pub fn count_messages(&mut self, handled: u64) {
        self.function.metrics.messages += handled;
    }

    /// What the model's events took of the host's time in this round of the engine, before accesses of any host: none of it counts in
    /// the turn of one.
    pub fn events_took(&self) -> Duration {
        self.clock.took()
    }

    /// Bytes of an address space.
    pub fn size(&self, space: Space) -> u64 {
        match space {
            Space::Config => CONFIG_SIZE as u64,
            Space::Bar0 => self.function.personality.pci.bar0_size,
            Space::Bar2 => BAR2_SIZE,
            Space::Rom => self.function.rom.as_ref().map_or(0, Rom::size),
        }
    }

    /// Number of interrupt vectors (MSI-X).
    pub fn vectors(&self) -> u16 {
        self.function.personality.pci.msix_vectors
    }

    /// The host reads `space` at byte `offset`. What lies outside reads as 0.
    pub fn read(&mut self, space: Space, offset: u64, data: &mut [u8]) {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.keep(|hca| Record::Read { hca, space, offset, len });
        self.function.metrics.reads += 1;
        self.read_from(space, offset, data);
        self.function.seam.came(|| Record::Returned { data: data.to_vec() });
    }

    fn read_from(&mut self, space: Space, offset: u64, data: &mut [u8]) {
        match space {
            Space::Bar0 => {
                let now = self.clock.catch_up(self.world);
                self.check_access(offset, false);
                let (mut at, mut rest) = (offset, data);
                while !rest.is_empty() {
                    let len = piece(at, rest.len());
                    let (head, tail) =
                        std::mem::take(&mut rest).split_at_mut_checked(len).unwrap_or_default();
                    self.world.mmio_read(now, self.function.place, at, head);
                    at = at.saturating_add(len as u64);
                    rest = tail;
                }
            }
            Space::Bar2 => match self.is_off_the_bus() {
                true => data.fill(u8::MAX),
                false => self.function.msix.read(offset, data),
            },
            Space::Rom => {
                let is_off = self.is_off_the_bus();
                match self.function.rom.as_ref().filter(|_| !is_off) {
                    Some(rom) => rom.get(offset, data),
                    None => data.fill(u8::MAX),
                }
            }
            Space::Config => {
                if self.is_off_the_bus() {
                    return data.fill(u8::MAX);
                }
                self.follow_link();
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                self.function.config.read(at, data);
                self.read_window(at, data);
            }
        }
    }

    /// The host writes `space` at byte `offset`. What lies outside is lost.
    pub fn write(&mut self, space: Space, offset: u64, data: &[u8]) {
        self.keep(|hca| Record::Write { hca, space, offset, data: data.to_vec() });
        self.function.metrics.writes += 1;
        match space {
            Space::Bar0 => {
                let now = self.clock.catch_up(self.world);
                self.check_access(offset, true);
                let (mut at, mut rest) = (offset, data);
                while !rest.is_empty() {
                    let (head, tail) = rest.split_at_checked(piece(at, rest.len())).unwrap_or_default();
                    self.world.mmio_write(now, self.function.place, at, head);
                    at = at.saturating_add(head.len() as u64);
                    rest = tail;
                }
                if !is_doorbell(offset) {
                    self.follow_firmware();
                }
            }
            Space::Bar2 | Space::Config if self.is_off_the_bus() => {}
            Space::Rom => {}
            Space::Bar2 => self.function.msix.write(offset, data),
            Space::Config => {
                self.follow_link();
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                self.write_window(at, data);
                let effects = self.function.config.write(at, data);
                if effects.reset {
                    tracing::debug!("function level reset");
                    self.reset_function();
                }
                self.follow_config();
            }
        }
    }

    /// What an access reads of the window of tools, registers of which the model has.
    fn read_window(&mut self, offset: usize, data: &mut [u8]) {
        for (register, at) in self.function.config.window(offset, data.len()) {
            let now = self.clock.catch_up(self.world);
            let word = self.world.window_read(now, self.function.place, register).to_le_bytes();
            for (byte, at) in word.into_iter().zip(at..) {
                if let Some(to) = at.checked_sub(offset).and_then(|place| data.get_mut(place)) {
                    *to = byte;
                }
            }
        }
    }

    /// What an access writes of it; bytes that it leaves out stay.
    fn write_window(&mut self, offset: usize, data: &[u8]) {
        for (register, at) in self.function.config.window(offset, data.len()) {
            let now = self.clock.catch_up(self.world);
            let mut word = self.world.window_peek(self.function.place, register).to_le_bytes();
            for (byte, at) in word.iter_mut().zip(at..) {
                if let Some(from) = at.checked_sub(offset).and_then(|place| data.get(place)) {
                    *byte = *from;
                }
            }
            self.world.window_write(now, self.function.place, register, u32::from_le_bytes(word));
        }
    }

    /// Configuration is accessed: what happened to the PCI Express link on script is in its registers from now on.
    fn follow_link(&mut self) {
        let Function { config, place, personality, .. } = &mut *self.function;
        if !self.world.is_scripted(*place) {
            return;
        }
        self.clock.catch_up(self.world);
        let link = personality.pci.link;
        let PcieLink { lanes, speed } =
            self.world.pcie_link(*place).unwrap_or(PcieLink { lanes: link.lanes, speed: link.speed as u8 });
        config.set_link(lanes, speed);
        self.function.log_errors(self.world);
    }

    /// Whether the adapter is off the bus on script.
    fn is_off_the_bus(&mut self) -> bool {
        let place = self.function.place;
        self.world.is_scripted(place) && {
            let now = self.clock.catch_up(self.world);
            self.world.is_off_the_bus(now, place)
        }
    }

    /// If there is a checker, it says which rule of PCI an access to BAR0 breaks.
    fn check_access(&mut self, offset: u64, store: bool) {
        if !self.world.is_checked() {
            return;
        }
        let Function { told, config, place, .. } = &mut *self.function;
        if let Some(finding) = told.access(config, offset, store) {
            self.world.found(self.world.now(), *place, finding);
        }
    }

    /// Makes a window of the host's memory accessible.
    ///
    /// # Errors
    /// A [`MapError`]; nothing is accessible then that was not before.
    pub fn map(&mut self, window: Window, backing: Backing) -> Result<(), MapError> {
        let later = matches!(backing, Backing::Remote);
        let mapped = self.function.memory.map(window, backing);
        let Window { iova, size, readable, writable } = window;
        let done = mapped.is_ok();
        self.keep(|hca| Record::Map { hca, iova, size, readable, writable, later, done });
        mapped?;
        self.memory_changed();
        Ok(())
    }

    /// Makes the windows inside a range inaccessible. No access to them happens after the return.
    ///
    /// # Errors
    /// [`MapError::Partial`] if a window lies partly inside: all of them stay then.
    pub fn unmap(&mut self, range: Range) -> Result<(), MapError> {
        // Packets under way may have their payload there.
        self.world.fetch_payloads(self.function.place.hca);
        let unmapped = self.function.memory.unmap(range);
        let done = unmapped.is_ok();
        self.keep(|hca| {
            let range = match range {
                Range::All => None,
                Range::Part { iova, size } => Some((iova, size)),
            };
            Record::Unmap { hca, range, done }
        });
        unmapped?;
        let (iova, size) = match range {
            Range::All => (0, u64::MAX),
            Range::Part { iova, size } => (iova, size),
        };
        self.world.unmapped(self.function.place, iova, size);
        self.memory_changed();
        Ok(())
    }

    /// What waited for memory goes on, or fails. The model is not brought to the present for that.
    fn memory_changed(&mut self) {
        if self.function.memory.defers() {
            self.keep(|hca| Record::MemoryChanged { hca });
            self.world.memory_changed(self.world.now(), self.function.place);
        }
    }

    /// True if the host's memory has turned out to be private to it: the adapter could do nothing for such a host.
    pub fn memory_is_private(&self) -> bool {
        self.function.memory.is_private()
    }

    /// Says whom to tell when `vector` is raised, or nobody. A pending interrupt is delivered at once.
    ///
    /// # Errors
    /// [`NoSuchVector`].
    pub fn connect(&mut self, vector: u32, signal: Option<Box<dyn Signal>>) -> Result<(), NoSuchVector> {
        self.keep(|hca| Record::Connect { hca, vector, connected: signal.is_some() });
        self.function.msix.connect(vector, signal)
    }

    /// Holds a vector back, or lets it through again. A pending interrupt is delivered at once.
    ///
    /// # Errors
    /// [`NoSuchVector`].
    pub fn mask(&mut self, vector: u32, masked: bool) -> Result<(), NoSuchVector> {
        self.keep(|hca| Record::Mask { hca, vector, masked });
        self.function.msix.mask(vector, masked)
    }

    /// The host itself has a vector raised, as a test of its way.
    pub fn trigger(&mut self, vector: u32) -> Raised {
        self.keep(|hca| Record::Trigger { hca, vector });
        self.function.msix.raise(u16::try_from(vector).unwrap_or(u16::MAX))
    }

    /// The host resets the function's bus, or itself: the adapter's firmware starts anew.
    pub fn reset(&mut self) {
        tracing::debug!("device reset");
        self.keep(|hca| Record::Reset { hca });
        let now = self.clock.catch_up(self.world);
        // What happened before is told, and then gone, whenever somebody looks.
        self.function.log_errors(self.world);
        self.restart(now);
        self.function.config.reset();
        self.after_reset();
    }

    /// The adapter's firmware starts, perhaps with ports of another kind.
    fn restart(&mut self, now: Ps) {
        let function = &mut *self.function;
        self.world.restart_firmware(now, function.place);
        function.config.set_port_kind(self.world.kind_of_ports(function.place.hca));
    }

    /// A register may have had the firmware start: its ports may be of another kind.
    fn follow_firmware(&mut self) {
        let Function { config, place, .. } = &mut *self.function;
        config.change_port_kind(self.world.kind_of_ports(place.hca));
    }

    /// Configuration has changed: lets DMA through or stops it.
    fn follow_config(&mut self) {
        let may_master = self.function.config.may_master();
        if !may_master {
            // Packets under way have left the host's memory, whatever the model has of them.
            self.world.fetch_payloads(self.function.place.hca);
        }
        self.function.memory.set_bus_master(may_master);
        if may_master {
            self.function.msix.deliver_all();
        }
    }

    /// Resets what the model has of the function. Configuration space is reset by the caller.
    fn reset_function(&mut self) {
        let now = self.clock.catch_up(self.world);
        self.world.reset(now, self.function.place);
        self.after_reset();
    }

    /// The model has reset the function.
    fn after_reset(&mut self) {
        // What it has written before is seen, and nothing after this.
        self.function.memory.settle();
        self.function.behind_writes.clear();
        // Interrupts raised before the reset must not arrive after it.
        self.function.msix.reset();
        self.function.told.forget();
        self.follow_config();
        self.function.metrics.resets += 1;
    }
}

/// Length of the first piece of an access to BAR0 that has `left` bytes to go.
fn piece(at: u64, left: usize) -> usize {
    let room = MMIO_CHUNK - at % MMIO_CHUNK;
    usize::try_from(room).unwrap_or(left).min(left)
}
