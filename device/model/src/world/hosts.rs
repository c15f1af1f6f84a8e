//! What hosts do to their adapters: memory, registers, resets.

use std::sync::Arc;

use hca_firmware::personality::FirmwareVersion;
use hca_firmware::{Disposal, FunctionId, PortKind, Resources};
use hca_spec::init_segment::NIC_INTERFACE_DISABLED;

use super::World;
use crate::adapter::management::is_access;
use crate::adapter::{Hca, is_doorbell};
use crate::ground::dma::GuestMemory;
use crate::ground::node::{FunctionRef, HcaId};
use crate::ground::time::Ps;

impl World {
    /// A host is there: its memory.
    pub fn attach(&mut self, at: impl Into<FunctionRef>, memory: Arc<dyn GuestMemory + Send + Sync>) {
        let at = at.into();
        self.fetch_payloads(at.hca);
        self.act(Ps::ZERO, at, |executor, _| executor.attach(memory));
    }

    /// Who lets go of all objects of a function at once. Without, the command or reset that ends them does, as long as that takes.
    pub fn dispose(&mut self, at: impl Into<FunctionRef>, disposal: Disposal) {
        self.rouse();
        let at = at.into();
        if let Some(function) = self.hcas.get_mut(at.hca.0).and_then(|hca| hca.function_mut(at.function)) {
            function.state.fw.disposal = disposal;
        }
    }

    /// Something is new with the memory of a function's host, which answers reads later in a part of it
    /// ([`GuestMemory::deferred`]): answers came, it takes reads or writes again, windows came or went, or it has begun
    /// to answer later. What the function had to put off goes on, at the model's time of now.
    pub fn memory_changed(&mut self, now: Ps, at: impl Into<FunctionRef>) {
        let at = at.into();
        self.fetch_payloads(at.hca);
        self.act(now, at, |executor, now| executor.memory_changed(now));
        self.release_credits(self.now, at);
    }

    /// Inputs of a function that wait for answers of its host's memory.
    pub fn parked_inputs(&self, at: impl Into<FunctionRef>) -> usize {
        self.function(at.into()).map_or(0, |function| function.side.parked.len())
    }

    /// Reads of a function that failed because they were not asked for in time. There are none, or the model is wrong.
    pub fn unforeseen_reads(&self, at: impl Into<FunctionRef>) -> u64 {
        let outstanding = self.function(at.into()).and_then(|function| function.state.outstanding.as_ref());
        outstanding.map_or(0, |reads| reads.unforeseen())
    }

    /// The host is gone: no access to its memory happens any more; the function is reset.
    pub fn detach(&mut self, now: Ps, at: impl Into<FunctionRef>) {
        let at = at.into();
        self.begin_anew(now, at, "the end of the host's connection", Hca::detach);
    }

    /// Function level reset.
    pub fn reset(&mut self, now: Ps, at: impl Into<FunctionRef>) {
        let at = at.into();
        self.reset_function(now, at);
        self.script_reset(at);
    }

    pub(super) fn reset_function(&mut self, now: Ps, at: FunctionRef) {
        self.begin_anew(now, at, "the reset of the function", Hca::reset);
    }

    /// A function loses all that its driver has made, by `act`; `why` is what the checker calls it.
    fn begin_anew(
        &mut self,
        now: Ps,
        at: FunctionRef,
        why: &str,
        act: impl FnOnce(&mut Hca, Ps, FunctionId),
    ) {
        self.fetch_payloads(at.hca);
        self.check_leaving(at, why);
        self.with(now, at, |hca, now| act(hca, now, at.function));
        self.check_anew(at);
        self.count_anew();
        self.release_credits(self.now, at);
    }

    /// The adapter's firmware starts, as after a reset of its bus or with the power: what is in its flash holds from now on,
    /// its ports may be of another kind. Everything to power-on.
    pub fn restart_firmware(&mut self, now: Ps, at: impl Into<FunctionRef>) {
        let at = at.into();
        self.settle_all();
        self.check_leaving(at, "the restart of the firmware");
        let before = self.kind_of_ports(at.hca);
        self.with(now, at, |hca, now| hca.restart(now, at.function));
        self.check_anew(at);
        self.release_credits(self.now, at);
        if self.kind_of_ports(at.hca) != before {
            self.retype_links(at.hca);
        }
        self.script_reset(at);
    }

    /// A driver may have disabled its function, which reaches for nothing any more then. The firmware starts if that was the last it waited for. Drivers toggle the
    /// PCI Express link then, which is no part of the model, so that nothing more is waited for.
    #[cold]
    pub(super) fn look_at_mode(&mut self, at: FunctionRef) {
        let disabled = self
            .function(at)
            .is_some_and(|function| function.side.registers.mode() == NIC_INTERFACE_DISABLED);
        if !disabled {
            return;
        }
        self.act(self.now, at, |function, now| function.disabled(now));
        let starts = self.chip_mut(at.hca).is_some_and(|chip| chip.managed.sync_reset.disabled(at.function));
        if !starts {
            return;
        }
        tracing::info!(hca = self.name(at.hca), now = %self.now, "all drivers have let go: the firmware starts");
        self.restart_firmware(self.now, at.hca);
        let functions = self.hcas.get_mut(at.hca.0).map(|hca| &mut hca.functions);
        functions.into_iter().flatten().for_each(|function| function.side.registers.disable());
    }

    /// Link layer of an adapter's ports.
    pub fn kind_of_ports(&self, hca: HcaId) -> PortKind {
        self.chip(hca).map(|chip| chip.managed.kind()).unwrap_or_default()
    }

    /// Version of the firmware that an adapter runs.
    pub fn firmware_version(&self, hca: HcaId) -> Option<FirmwareVersion> {
        self.chip(hca).map(|chip| chip.managed.firmware_version())
    }

    /// Reads a register of the vendor specific capability, whose offset in it this is.
    pub fn window_read(&mut self, now: Ps, at: impl Into<FunctionRef>, register: usize) -> u32 {
        let mut word = 0;
        self.act(now, at.into(), |function, _| word = function.window_read(register));
        word
    }

    /// What a read would give, without what it does.
    pub fn window_peek(&self, at: impl Into<FunctionRef>, register: usize) -> u32 {
        self.function(at.into()).map_or(0, |function| function.side.window.peek(register))
    }

    /// Writes a register of the vendor specific capability.
    pub fn window_write(&mut self, now: Ps, at: impl Into<FunctionRef>, register: usize, value: u32) {
        let at = at.into();
        if is_access(register) {
            self.fetch_payloads(at.hca);
        }
        self.act(now, at, |function, now| function.window_write(now, register, value));
    }

    /// Reads BAR0.
    pub fn mmio_read(&mut self, now: Ps, at: impl Into<FunctionRef>, offset: u64, buf: &mut [u8]) {
        let at = at.into();
        if self.checker.is_some() {
            self.check_access(now, at, offset, false);
        }
        self.act(now, at, |function, now| function.mmio_read(now, offset, buf));
    }

    /// Writes BAR0.
    pub fn mmio_write(&mut self, now: Ps, at: impl Into<FunctionRef>, offset: u64, data: &[u8]) {
        let at = at.into();
        if self.checker.is_some() {
            self.check_access(now, at, offset, true);
        }
        self.act(now, at, |function, now| function.mmio_write(now, offset, data));
        if !is_doorbell(offset) {
            self.look_at_mode(at);
        }
        self.tidy();
    }

    /// Whether stores to BlueFlame registers of a function wait for their continuation: how many were collected so far, so
    /// that two calls show whether more came. Who sees none for a while calls [`World::flush_stores`].
    pub fn combining(&self, at: impl Into<FunctionRef>) -> Option<u64> {
        self.function(at.into())?.side.combiner.pending()
    }

    /// Nothing more comes to the stores that wait: they are doorbells.
    pub fn flush_stores(&mut self, now: Ps, at: impl Into<FunctionRef>) {
        self.act(now, at.into(), |function, now| function.flush_stores(now));
    }

    /// When PCIe has taken all that the processor has stored to `hca`: until then it can't empty its write-combining
    /// buffers. `None`: there is no such adapter.
    pub fn stores_taken(&self, hca: HcaId) -> Option<Ps> {
        self.chip(hca).map(|chip| chip.units.stores_taken())
    }

    /// Objects that a function holds.
    pub fn resources(&self, at: impl Into<FunctionRef>) -> Resources {
        self.function(at.into()).map(|function| function.state.fw.resources()).unwrap_or_default()
    }

    /// Guest mistakes that a function has met.
    pub fn diagnoses(&self, at: impl Into<FunctionRef>) -> u64 {
        self.function(at.into()).map_or(0, |function| function.state.diagnoses.total)
    }
}
