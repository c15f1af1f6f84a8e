//! One adapter: bring-up, commands, asynchronous events, teardown.

use crate::bus::Bus;
use crate::cmdq::{CommandQueue, Slot};
use crate::error::Error;
use crate::events::{Eq, Event};
use crate::pages::FirmwarePages;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use hca_spec::caps;
use hca_spec::cmd::{
    AccessRegIn, CAP_CURRENT, FunctionIn, ObjectIn, ObjectOut, PAGES_BOOT, PAGES_INIT, QueryAdapterOut,
    QueryHcaCapOut, QueryIssiOut, QuerySpecialContextsOut, SetHcaCapIn, SetIssiIn, reg,
};
use hca_spec::command::{InHeader, Opcode, OutHeader};
use hca_spec::eqe::EventType;
use hca_spec::ids::{Eqn, Mkey, UarIndex};
use hca_spec::init_segment::{CMD_INTERFACE_REVISION, InitSegment};
use hca_spec::layout::Field;

/// The MSI-X vector of commands and asynchronous events.
pub const ASYNC_VECTOR: u16 = 0;
/// Register data that ACCESS_REG HOST_ENDIANNESS carries; first byte 0 = little-endian host.
const HOST_ENDIANNESS_DATA: usize = 16;
/// `Qpc::ATOMIC_MODE`: atomics on 8 bytes, as IBTA has them.
const ATOMIC_MODE_IBTA: u32 = 1;
/// The same: log2 of the largest operand, which masked atomics have.
const ATOMIC_MODE_8_BYTES: u32 = 3;
/// `Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE`: host byte order.
const ATOMICS_IN_HOST_ORDER: u32 = 1;
/// More queue pairs than this are not requested, as they cost the firmware pages.
const LOG_MAX_QP: u32 = 18;

/// Knobs of a driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// How often [`Bus::wait`] is called before a command is given up.
    pub command_polls: u32,
    /// How often [`Bus::wait`] is called before bring-up is given up.
    pub init_polls: u32,
    /// Whether commands complete by events once the command EQ exists; otherwise they are always polled.
    pub command_events: bool,
    /// How many asynchronous events may wait, and that is what their queue takes of memory, 64 bytes each; 64 at least.
    pub async_events: u32,
    /// Whether the driver hears of starts of the firmware, and answers ([`hca_spec::management::Mfrl`]), if the firmware asks.
    pub hears_of_restarts: bool,
    /// Whether page faults name keys and addresses, if the adapter has that (the memory scheme); else they name queues.
    pub memory_page_faults: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            command_polls: 1_000_000,
            init_polls: 1_000_000,
            command_events: true,
            async_events: 1024,
            hears_of_restarts: false,
            memory_page_faults: false,
        }
    }
}

/// What the health buffer says (PRM "Initialization Segment", health buffer).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Health {
    /// Changes while the firmware is alive.
    pub counter: u32,
    /// 0 = healthy.
    pub syndrome: u8,
}

/// An adapter that was brought up.
///
/// Dropping it without [`Hca::close`] leaves the adapter running with the memory of a dropped driver:
/// close it, or reset the function before the memory is used again.
pub struct Hca<B: Bus> {
    bus: B,
    config: Config,
    cmdq: CommandQueue<B::Dma>,
    pages: FirmwarePages<B::Dma>,
    caps: Box<caps::General>,
    stage: Stage,
    uar: Option<UarIndex>,
    command_eq: Option<Eq<B::Dma>>,
    async_eq: Option<Eq<B::Dma>>,
    events: VecDeque<Event>,
    next_key_variant: u8,
    recovered_commands: u32,
    issi_1: bool,
    atomic_mode: u32,
    memory_page_faults: bool,
}

/// How far the adapter was brought up: what teardown has to undo.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Off,
    Enabled,
    Initialized,
}

impl<B: Bus> Hca<B> {
    /// Brings the adapter up: the order is that of the PRM's "Driver start-up" and of the mlx5 driver.
    ///
    /// # Errors
    /// On any error what was done so far is undone as far as the adapter answers.
    pub fn open(mut bus: B, config: Config) -> Result<Self, Error> {
        wait_for_firmware(&mut bus, config.init_polls)?;
        let revision = bus.mmio_read32(InitSegment::CMD_INTERFACE_REV.offset() as u64);
        let revision = revision >> InitSegment::CMD_INTERFACE_REV.shift();
        if revision != CMD_INTERFACE_REVISION {
            return Err(Error::InterfaceRevision(revision));
        }
        let cmdq = CommandQueue::start(&mut bus)?;
        wait_for_firmware(&mut bus, config.init_polls)?;
        let mut hca = Self {
            bus,
            config,
            cmdq,
            pages: FirmwarePages::default(),
            caps: Box::new(caps::General::new()),
            stage: Stage::Off,
            uar: None,
            command_eq: None,
            async_eq: None,
            events: VecDeque::new(),
            next_key_variant: 0,
            recovered_commands: 0,
            issi_1: false,
            atomic_mode: ATOMIC_MODE_IBTA,
            memory_page_faults: false,
        };
        match hca.bring_up() {
            Ok(()) => Ok(hca),
            Err(error) => {
                // The first error is the one to report.
                let _ = hca.close();
                Err(error)
            }
        }
    }

    fn bring_up(&mut self) -> Result<(), Error> {
        self.function_command(Opcode::EnableHca)?;
        self.stage = Stage::Enabled;
        self.set_issi()?;
        self.give_startup_pages(PAGES_BOOT)?;
        self.set_host_endianness()?;
        self.set_capabilities()?;
        self.give_startup_pages(PAGES_INIT)?;
        self.function_command(Opcode::InitHca)?;
        self.stage = Stage::Initialized;
        *self.caps = caps::General::from_prefix_or_zero(&self.query_caps(caps::TYPE_GENERAL, true)?);
        self.uar = Some(UarIndex(self.create(Opcode::AllocUar, 0, ObjectIn::new().bytes().to_vec())?));

        if self.config.command_events {
            let events = 1 << EventType::CommandCompletion as u32;
            let eq = self.create_eq_for(2 * self.cmdq.regular_slots() as u32, ASYNC_VECTOR, events)?;
            eq.arm(&mut self.bus);
            self.command_eq = Some(eq);
            self.cmdq.use_events(true);
        }
        let offered = |(cap, event)| (self.caps.get(cap) == 1).then_some(event);
        let events = ASYNC_EVENTS.into_iter().chain(OFFERED_EVENTS.into_iter().filter_map(offered));
        let events = events.fold(0, |mask, event| mask | 1u64 << event as u32);
        let eq = self.create_eq_for(self.config.async_events, ASYNC_VECTOR, events)?;
        eq.arm(&mut self.bus);
        self.async_eq = Some(eq);
        Ok(())
    }

    /// Takes the adapter down and returns the bus.
    ///
    /// Queues and keys should be destroyed before; whatever is left dies with TEARDOWN_HCA.
    ///
    /// # Errors
    /// The first error; teardown goes on after it. Memory that the adapter may still own is leaked.
    pub fn close(mut self) -> Result<B, Error> {
        let mut first = Ok(());
        let mut note = |result: Result<(), Error>| {
            if first.is_ok() {
                first = result;
            }
        };
        if let Some(eq) = self.async_eq.take() {
            note(self.destroy_eq(eq));
        }
        // The event of its own destruction can't be awaited: back to polling.
        self.cmdq.use_events(false);
        if let Some(eq) = self.command_eq.take() {
            note(self.destroy_eq(eq));
        }
        if let Some(uar) = self.uar.take() {
            note(self.destroy(Opcode::DeallocUar, uar.0, ()));
        }
        if self.stage >= Stage::Initialized {
            note(self.function_command(Opcode::TeardownHca));
        }
        if self.stage >= Stage::Enabled {
            note(self.take_all_pages());
            note(self.function_command(Opcode::DisableHca));
        }
        let Self { bus, cmdq, pages, .. } = self;
        if first.is_err() || cmdq.busy() {
            core::mem::forget((cmdq, pages));
        }
        first.map(|()| bus)
    }

    /// The general capabilities in force.
    pub fn caps(&self) -> &caps::General {
        &self.caps
    }

    /// The bus, e.g. to post work requests.
    pub fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    /// Lets time pass, at most until `vector` fires.
    pub fn wait(&mut self, vector: Option<u16>) {
        self.bus.wait(vector);
    }

    /// How often to wait before something is given up.
    pub(crate) fn polls(&self) -> u32 {
        self.config.command_polls
    }

    /// The UAR page of the driver's doorbells.
    pub fn uar(&self) -> UarIndex {
        self.uar.unwrap_or_default()
    }

    /// The event queue of completion queues that have none of their own: the asynchronous one.
    pub(crate) fn default_eq(&self) -> Eqn {
        self.async_eq.as_ref().map(Eq::number).unwrap_or_default()
    }

    /// Reads the health buffer.
    pub fn health(&mut self) -> Health {
        let counter = self.bus.mmio_read32(InitSegment::HEALTH_COUNTER.offset() as u64);
        let word = self.bus.mmio_read32(InitSegment::HEALTH_SYNDROME.offset() as u64);
        let counter = counter & InitSegment::HEALTH_COUNTER.max();
        Health { counter, syndrome: (word >> InitSegment::HEALTH_SYNDROME.shift()) as u8 }
    }

    /// The internal timer in its own cycles (PRM "Initialization Segment").
    pub fn internal_timer(&mut self) -> u64 {
        loop {
            let high = self.bus.mmio_read32(InitSegment::INTERNAL_TIMER_H.offset() as u64);
            let low = self.bus.mmio_read32(InitSegment::INTERNAL_TIMER_L.offset() as u64);
            if high == self.bus.mmio_read32(InitSegment::INTERNAL_TIMER_H.offset() as u64) {
                return u64::from(high) << 32 | u64::from(low);
            }
        }
    }

    /// The board's name (PSID), 16 ASCII characters.
    pub fn board_id(&mut self) -> Result<[u8; 16], Error> {
        let out =
            self.execute(Opcode::QueryAdapter, 0, ObjectIn::new().bytes().to_vec(), QueryAdapterOut::SIZE)?;
        let out = QueryAdapterOut::from_prefix_or_zero(&out);
        let (high, low) = (out.get(QueryAdapterOut::PSID_H), out.get(QueryAdapterOut::PSID_L));
        Ok((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }

    /// The reserved local key: addresses under it are bus addresses. Requests of queues that were created as `physical` may name it
    /// for what the adapter itself reads and writes, in every protection domain.
    pub fn reserved_lkey(&mut self) -> Result<Mkey, Error> {
        let input = ObjectIn::new().bytes().to_vec();
        let out = self.execute(Opcode::QuerySpecialContexts, 0, input, QuerySpecialContextsOut::SIZE)?;
        Ok(Mkey(QuerySpecialContextsOut::from_prefix_or_zero(&out).get(QuerySpecialContextsOut::RESD_LKEY)))
    }

    /// Whether page faults name keys and addresses: the driver asked for it, and the adapter has it.
    pub fn has_memory_page_faults(&self) -> bool {
        self.memory_page_faults
    }

    /// `Qpc::ATOMIC_MODE` of those that take atomics.
    pub(crate) fn atomic_mode(&self) -> u32 {
        self.atomic_mode
    }

    /// Pages the firmware holds now.
    pub fn firmware_pages(&self) -> usize {
        self.pages.count()
    }

    /// Commands that were done though their event had not come: a sign of lost interrupts or events.
    pub fn recovered_commands(&self) -> u32 {
        self.recovered_commands
    }

    /// The next asynchronous event, if one came. Requests for pages are served on the way.
    pub fn poll_event(&mut self) -> Result<Option<Event>, Error> {
        self.serve_events(false)?;
        Ok(self.events.pop_front())
    }

    /// Executes one command and returns its output, status checked.
    ///
    /// `input` starts with room for the 16-byte header, which is filled in here.
    ///
    /// # Errors
    /// The command was refused, not delivered, or not answered in time.
    pub fn execute(
        &mut self,
        opcode: Opcode,
        op_mod: u32,
        input: Vec<u8>,
        output_len: usize,
    ) -> Result<Vec<u8>, Error> {
        let slot = self.begin(opcode, op_mod, input, output_len)?;
        self.finish(slot)
    }

    /// Starts a command without waiting for it, so that several run at once. See [`Hca::finish`].
    pub fn begin(
        &mut self,
        opcode: Opcode,
        op_mod: u32,
        input: Vec<u8>,
        output_len: usize,
    ) -> Result<Slot, Error> {
        self.submit(opcode, op_mod, input, output_len, false)
    }

    /// Starts a command for each of `inputs` with one doorbell. See [`Hca::finish`], and [`Hca::command_slots`] for how
    /// many can run at once.
    ///
    /// # Errors
    /// One could not be made ready: none is started, and the slots of those before it stay taken.
    pub fn begin_all(
        &mut self,
        opcode: Opcode,
        op_mod: u32,
        inputs: impl IntoIterator<Item = Vec<u8>>,
        output_len: usize,
    ) -> Result<Vec<Slot>, Error> {
        let mut slots = Vec::new();
        for input in inputs {
            let input = with_header(opcode, op_mod, input);
            let output_len = output_len.max(OutHeader::SIZE);
            slots.push(self.cmdq.enqueue(&mut self.bus, &input, output_len, false)?);
        }
        CommandQueue::ring(&mut self.bus, &slots);
        Ok(slots)
    }

    /// How many commands can run at once.
    pub fn command_slots(&self) -> usize {
        self.cmdq.regular_slots()
    }

    /// Waits for a command that was started with [`Hca::begin`].
    pub fn finish(&mut self, slot: Slot) -> Result<Vec<u8>, Error> {
        self.finish_while_serving(slot, true)
    }

    /// Executes a command in the reserved slot, without serving requests for pages meanwhile: this *is*
    /// how they are served.
    pub(crate) fn execute_urgent(
        &mut self,
        opcode: Opcode,
        op_mod: u32,
        input: Vec<u8>,
        output_len: usize,
    ) -> Result<Vec<u8>, Error> {
        let slot = self.submit(opcode, op_mod, input, output_len, true)?;
        self.finish_while_serving(slot, false)
    }

    fn submit(
        &mut self,
        opcode: Opcode,
        op_mod: u32,
        input: Vec<u8>,
        output_len: usize,
        urgent: bool,
    ) -> Result<Slot, Error> {
        let input = with_header(opcode, op_mod, input);
        self.cmdq.submit(&mut self.bus, &input, output_len.max(OutHeader::SIZE), urgent)
    }

    fn finish_while_serving(&mut self, slot: Slot, serve_pages: bool) -> Result<Vec<u8>, Error> {
        for _ in 0..self.config.command_polls {
            if serve_pages {
                self.serve_events(true)?;
            } else {
                self.take_command_events();
            }
            if self.cmdq.is_done(&slot) {
                return self.cmdq.finish(slot);
            }
            self.bus.wait(self.command_eq.as_ref().map(Eq::vector));
        }
        if !self.cmdq.owned(&slot) {
            self.recovered_commands += 1;
            return self.cmdq.finish(slot);
        }
        self.cmdq.abandon(slot);
        Err(Error::Timeout { what: "command", polls: self.config.command_polls })
    }

    fn take_command_events(&mut self) {
        let Some(eq) = &mut self.command_eq else { return };
        let mut any = false;
        while let Some(event) = eq.poll() {
            any = true;
            if let Event::Commands(mask) = event {
                self.cmdq.completed(mask);
            }
        }
        if any {
            eq.arm(&mut self.bus);
        }
    }

    /// Reads both event queues, serves requests for pages and queues the rest for the caller.
    fn serve_events(&mut self, in_command: bool) -> Result<(), Error> {
        self.take_command_events();
        let mut taken = 0;
        while let Some(event) = self.async_eq.as_mut().and_then(Eq::poll) {
            taken += 1;
            match event {
                Event::PageRequest { function, count } => self.serve_page_request(function, count)?,
                other => self.events.push_back(other),
            }
            // A command that waits looks at the ring again soon; don't starve it.
            if in_command && taken >= 64 {
                break;
            }
        }
        if taken > 0
            && let Some(eq) = &self.async_eq
        {
            eq.arm(&mut self.bus);
        }
        Ok(())
    }

    /// Executes a command that creates an object and returns the object's number.
    pub(crate) fn create(&mut self, opcode: Opcode, op_mod: u32, input: Vec<u8>) -> Result<u32, Error> {
        let out = self.execute(opcode, op_mod, input, ObjectOut::SIZE)?;
        Ok(ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER))
    }

    /// Executes a command that destroys an object, then frees `memory`.
    ///
    /// If the command fails the adapter may still use the memory, so it is leaked.
    pub(crate) fn destroy<T>(&mut self, opcode: Opcode, number: u32, memory: T) -> Result<(), Error> {
        let result = self.object_command(opcode, number);
        if result.is_err() {
            core::mem::forget(memory);
        }
        result
    }

    /// Executes a command whose only input is an object's number.
    pub(crate) fn object_command(&mut self, opcode: Opcode, number: u32) -> Result<(), Error> {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, number);
        self.execute(opcode, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    pub(crate) fn dma_alloc(&mut self, size: usize) -> Result<B::Dma, Error> {
        let align = size.clamp(64, crate::PAGE_SIZE).next_power_of_two();
        self.bus.dma_alloc(size, align).ok_or(Error::OutOfMemory)
    }

    pub(crate) fn pages_mut(&mut self) -> &mut FirmwarePages<B::Dma> {
        &mut self.pages
    }

    pub(crate) fn has_issi_1(&self) -> bool {
        self.issi_1
    }

    pub(crate) fn next_key_variant(&mut self) -> u8 {
        self.next_key_variant = self.next_key_variant.wrapping_add(1);
        self.next_key_variant
    }

    fn function_command(&mut self, opcode: Opcode) -> Result<(), Error> {
        self.execute(opcode, 0, FunctionIn::new().bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Agrees on interface step sequence id (ISSI) 1; an adapter without the command speaks 0.
    fn set_issi(&mut self) -> Result<(), Error> {
        let out =
            match self.execute(Opcode::QueryIssi, 0, ObjectIn::new().bytes().to_vec(), QueryIssiOut::SIZE) {
                Ok(out) => QueryIssiOut::from_prefix_or_zero(&out),
                Err(Error::Command { .. }) => return Ok(()),
                Err(e) => return Err(e),
            };
        let supported = out.get(QueryIssiOut::SUPPORTED_ISSI_DW0);
        if supported & 1 << 1 != 0 {
            let mut input = SetIssiIn::new();
            input.set(SetIssiIn::CURRENT_ISSI, 1);
            self.execute(Opcode::SetIssi, 0, input.bytes().to_vec(), OutHeader::SIZE)?;
            self.issi_1 = true;
        } else if supported & !1 != 0 {
            return Err(Error::Unsupported("interface step sequence id 0 or 1"));
        }
        Ok(())
    }

    /// Tells the adapter that the host is little-endian (register HOST_ENDIANNESS).
    fn set_host_endianness(&mut self) -> Result<(), Error> {
        let mut data = [0; HOST_ENDIANNESS_DATA];
        if cfg!(target_endian = "big") {
            data[0] = 0x80;
        }
        self.write_register(reg::HOST_ENDIANNESS, &data)
    }

    /// Writes a register (PRM "ACCESS_REG").
    pub(crate) fn write_register(&mut self, register: u32, data: &[u8]) -> Result<(), Error> {
        const WRITE: u32 = 0;
        let mut input = AccessRegIn::new();
        input.set(AccessRegIn::REGISTER_ID, register);
        let input = [input.bytes(), data].concat();
        self.execute(Opcode::AccessReg, WRITE, input, OutHeader::SIZE + data.len()).map(drop)
    }

    /// Queries capabilities: those in force, or the most that can be had. They follow the 16-byte header.
    pub(crate) fn query_caps(&mut self, kind: u32, current: bool) -> Result<Vec<u8>, Error> {
        let op_mod = kind << 1 | if current { CAP_CURRENT } else { 0 };
        let out = self.execute(
            Opcode::QueryHcaCap,
            op_mod,
            ObjectIn::new().bytes().to_vec(),
            QueryHcaCapOut::SIZE,
        )?;
        Ok(out.get(OutHeader::SIZE..).unwrap_or_default().to_vec())
    }

    fn set_caps(&mut self, kind: u32, caps: &[u8]) -> Result<(), Error> {
        let mut input = alloc::vec![0; SetHcaCapIn::SIZE];
        input[InHeader::SIZE..InHeader::SIZE + caps.len()].copy_from_slice(caps);
        self.execute(Opcode::SetHcaCap, kind << 1, input, OutHeader::SIZE).map(drop)
    }

    /// Asks for what this driver relies on (PRM "SET_HCA_CAP"): everything else stays as it is.
    fn set_capabilities(&mut self) -> Result<(), Error> {
        let max = caps::General::from_prefix_or_zero(&self.query_caps(caps::TYPE_GENERAL, false)?);
        let mut wanted = caps::General::from_prefix_or_zero(&self.query_caps(caps::TYPE_GENERAL, true)?);
        if max.get(caps::General::RC) == 0 {
            return Err(Error::Unsupported("reliable connections"));
        }
        wanted.set(caps::General::PKEY_TABLE_SIZE, 0);
        wanted.set(caps::General::LOG_MAX_QP, max.get(caps::General::LOG_MAX_QP).min(LOG_MAX_QP));
        wanted.set(caps::General::CMDIF_CHECKSUM, 0).set(caps::General::LOG_UAR_PAGE_SZ, 0);
        let hears = u32::from(self.config.hears_of_restarts);
        let asks = caps::General::PCI_SYNC_FOR_FW_UPDATE_EVENT;
        wanted.set(asks, hears.min(max.get(asks)));
        self.set_caps(caps::TYPE_GENERAL, wanted.bytes())?;
        if wanted.get(caps::General::PG) == 1 {
            // All the on-demand paging there is: some of it is off by default. One scheme is chosen.
            let mut odp = caps::Odp::from_prefix_or_zero(&self.query_caps(caps::TYPE_ODP, false)?);
            self.memory_page_faults =
                self.config.memory_page_faults && odp.get(caps::Odp::MEM_PAGE_FAULT) == 1;
            odp.set(caps::Odp::MEM_PAGE_FAULT, self.memory_page_faults.into());
            self.set_caps(caps::TYPE_ODP, odp.bytes())?;
        }
        if wanted.get(caps::General::ATOMIC) == 0 {
            return Ok(());
        }
        // The operands of atomics in memory shall have the host's byte order.
        let mut atomic = caps::Atomic::from_prefix_or_zero(&self.query_caps(caps::TYPE_ATOMIC, true)?);
        if atomic.get(caps::Atomic::ATOMIC_OPERATIONS) & caps::atomic_operations::MASKED != 0 {
            self.atomic_mode = ATOMIC_MODE_8_BYTES;
        }
        if atomic.get(caps::Atomic::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1) == 0 {
            return Ok(());
        }
        atomic.set(caps::Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE, ATOMICS_IN_HOST_ORDER);
        self.set_caps(caps::TYPE_ATOMIC, atomic.bytes())
    }
}

/// The events that the asynchronous EQ gets.
const ASYNC_EVENTS: [EventType; 15] = [
    EventType::PathMigrated,
    EventType::CommEstablished,
    EventType::SqDrained,
    EventType::CqError,
    EventType::WqCatastrophic,
    EventType::PathMigrationFailed,
    EventType::PortChange,
    EventType::PageRequest,
    EventType::InvalidRequest,
    EventType::AccessError,
    EventType::SrqCatastrophic,
    EventType::LastWqe,
    EventType::SrqLimit,
    EventType::DctDrained,
    EventType::DctKeyViolation,
];

/// Those that it gets if the adapter has them, and the capability that says so.
const OFFERED_EVENTS: [(Field<caps::General>, EventType); 2] = [
    (caps::General::PORT_MODULE_EVENT, EventType::PortModule),
    (caps::General::TEMP_WARN_EVENT, EventType::TemperatureWarning),
];

/// A command's input with its header filled in.
fn with_header(opcode: Opcode, op_mod: u32, mut input: Vec<u8>) -> Vec<u8> {
    let mut header = InHeader::from_prefix_or_zero(&input);
    header.set(InHeader::OPCODE, opcode as u32).set(InHeader::OP_MOD, op_mod);
    input.resize(input.len().max(InHeader::SIZE), 0);
    input[..InHeader::SIZE].copy_from_slice(header.bytes());
    input
}

/// Waits until the firmware says it is initialized.
fn wait_for_firmware<B: Bus>(bus: &mut B, polls: u32) -> Result<(), Error> {
    for _ in 0..polls {
        let word = bus.mmio_read32(InitSegment::INITIALIZING.offset() as u64);
        if word == u32::MAX && bus.mmio_read32(0) == u32::MAX {
            return Err(Error::Absent);
        }
        if word >> InitSegment::INITIALIZING.shift() == 0 {
            return Ok(());
        }
        bus.wait(None);
    }
    Err(Error::Timeout { what: "firmware initialization", polls })
}

#[cfg(test)]
mod tests;
