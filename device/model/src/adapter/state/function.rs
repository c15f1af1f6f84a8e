//! A function of an adapter: what a guest's driver talks to, and everything that it made there.
//!
//! The chip behind it ([`super::chip`]) has what functions share: units, ports, time. While one does something,
//! `adapter::core::Executor` has both.

use std::any::Any;
use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;

use hca_firmware::personality::FirmwareVersion;
use hca_firmware::{Config, Firmware, Personality};

use crate::adapter::state::commands::CommandSlots;
use crate::adapter::state::counters::Counting;
use crate::adapter::state::diagnoses::Diagnoses;
use crate::adapter::state::event_routes::EventRoutes;
use crate::adapter::state::frames::Frames;
use crate::adapter::state::groups::Groups;
use crate::adapter::state::parked::Parked;
use crate::adapter::state::requests::Requests;
use crate::adapter::state::runs::Runs;
use crate::engines::blueflame::{Combiner, Rests};
use crate::engines::cq::CompletionQueue;
use crate::engines::eq::EventQueue;
use crate::engines::gateway::Window;
use crate::engines::mkey::{KnownPages, Walked};
use crate::engines::qp::QueuePair;
use crate::engines::qp::dct::Peer;
use crate::engines::qp::recv::SharedQueue;
use crate::engines::qp::wqe::SpareWqes;
use crate::engines::registers::Registers;
use crate::ground::dma::{GuestMemory, NoMemory};
use crate::ground::epoch::Rebase;
use crate::ground::outstanding::OutstandingReads;
use crate::ground::slots::Slots;
use crate::ground::time::Ps;

/// What of a function is worked on beside its queue pairs.
pub(crate) struct FunctionState {
    /// Its objects' contexts.
    pub(crate) fw: Firmware,
    /// The host's memory, behind `outstanding` if that is there.
    pub(crate) memory: Arc<dyn GuestMemory>,
    /// Reads that are answered later, if a part of the host's memory does so.
    pub(crate) outstanding: Option<Arc<OutstandingReads>>,
    pub(crate) eqs: Slots<EventQueue>,
    pub(crate) event_routes: EventRoutes,
    pub(crate) cqs: Slots<CompletionQueue>,
    pub(crate) srqs: Slots<SharedQueue>,
    pub(crate) diagnoses: Diagnoses,
    pub(crate) counting: Counting,
    /// What elements have sent that queues are scheduled by.
    pub(crate) groups: Groups,
    /// When the last interrupt of a vector was or will be raised, of those that leave time between two.
    pub(crate) vectors: BTreeMap<u16, Ps>,
    /// Counts what changed memory keys.
    pub(crate) key_changes: u64,
    /// Counts page faults that the driver was told of.
    pub(crate) faults_told: u16,
    /// Where accesses through keys went.
    pub(crate) known: KnownPages,
    /// Entries of lists that the adapter has not been charged for.
    pub(crate) walked: Walked,
    pub(crate) runs: Runs,
    /// Ethernet queues.
    pub(crate) frames: Frames,
    /// WQEs that are done.
    pub(crate) wqes: SpareWqes,
    /// WQEs that are not.
    pub(crate) requests: Requests,
}

impl FunctionState {
    /// The host's memory for who looks on.
    pub(crate) fn seen_memory(&self) -> &dyn GuestMemory {
        self.memory.aside().unwrap_or(&*self.memory)
    }

    fn new(fw: Firmware) -> Self {
        Self {
            fw,
            memory: Arc::new(NoMemory),
            outstanding: None,
            eqs: Slots::default(),
            event_routes: EventRoutes::default(),
            cqs: Slots::default(),
            srqs: Slots::default(),
            diagnoses: Diagnoses::default(),
            counting: Counting::default(),
            groups: Groups::default(),
            vectors: BTreeMap::new(),
            key_changes: 0,
            faults_told: 0,
            known: KnownPages::default(),
            walked: Walked::default(),
            runs: Runs::default(),
            frames: Frames::default(),
            wqes: SpareWqes::default(),
            requests: Requests::default(),
        }
    }

    /// Lets go of the moving parts of all objects, `others` among them.
    pub(crate) fn drop_objects(&mut self, others: impl Any + Send) {
        let Self { fw, eqs, cqs, srqs, frames, .. } = self;
        fw.disposal.give((others, take(eqs), take(cqs), take(srqs), take(frames)));
    }

    /// Power-on state; the host's memory and the identity stay.
    fn reset(&mut self) {
        // Every field is named, so that a new one cannot be forgotten here. Objects are gone already.
        let Self {
            fw,
            memory: _,
            outstanding,
            eqs: _,
            event_routes,
            cqs: _,
            srqs: _,
            diagnoses: _,
            counting,
            groups,
            vectors,
            key_changes,
            faults_told,
            // Keys have changed.
            known: _,
            // The chip is charged whatever becomes of the function.
            walked: _,
            runs: _,
            frames: _,
            wqes: _,
            requests,
        } = self;
        *key_changes += 1;
        *faults_told = 0;
        fw.reset();
        if let Some(outstanding) = outstanding {
            outstanding.reset();
        }
        *event_routes = EventRoutes::default();
        *counting = Counting::default();
        requests.reset();
        groups.clear();
        vectors.clear();
    }
}

/// The host's side of a function: its memory, the registers that it writes, and what of its inputs waits.
pub(crate) struct HostSide {
    /// The host's memory itself.
    pub(crate) host: Arc<dyn GuestMemory>,
    /// Inputs that wait for answers of the host's memory.
    pub(crate) parked: Parked,
    /// The event that is handled next was planned.
    pub(crate) planned: bool,
    pub(crate) registers: Registers,
    /// The window of tools.
    pub(crate) window: Window,
    pub(crate) commands: CommandSlots,
    /// First half of a 64-bit doorbell that arrives as two 32-bit writes: offset and value.
    pub(crate) half: Option<(u64, u32)>,
    /// Stores to send registers that may become BlueFlame copies.
    pub(crate) combiner: Combiner,
    /// What follows doorbells in their registers.
    pub(crate) rests: Rests,
}

impl HostSide {
    /// Nothing written, nothing waits.
    fn new(host: Arc<dyn GuestMemory>, personality: &Personality, version: FirmwareVersion) -> Self {
        Self {
            host,
            parked: Parked::default(),
            planned: false,
            registers: Registers::new(personality, version),
            window: Window::default(),
            commands: CommandSlots::default(),
            half: None,
            combiner: Combiner::default(),
            rests: Rests::default(),
        }
    }
}

/// One function.
pub(crate) struct Function {
    pub(crate) state: FunctionState,
    pub(crate) side: HostSide,
    pub(crate) qps: Slots<QueuePair>,
    /// What DC targets have for each of their initiators.
    pub(crate) dc_responders: BTreeMap<Peer, QueuePair>,
    /// A reset makes events of before meaningless: they carry the epoch they were scheduled in.
    pub(crate) epoch: u32,
}

impl Function {
    /// At power-on, without a host.
    pub(crate) fn new(config: Config) -> Self {
        let fw = Firmware::new(config);
        Self {
            side: HostSide::new(Arc::new(NoMemory), fw.personality(), fw.personality().version),
            state: FunctionState::new(fw),
            qps: Slots::default(),
            dc_responders: BTreeMap::new(),
            epoch: 0,
        }
    }

    /// Power-on state with that firmware; the host's memory and the identity stay.
    pub(crate) fn reset(&mut self, version: FirmwareVersion) {
        // Every field is named, so that a new one cannot be forgotten here.
        let Self { state, side, qps, dc_responders, epoch } = self;
        state.drop_objects((take(qps), take(dc_responders)));
        state.reset();
        *side = HostSide::new(Arc::clone(&side.host), state.fw.personality(), version);
        *epoch = epoch.wrapping_add(1);
    }
}

impl Rebase for Function {
    fn rebase(&mut self, by: Ps) {
        let Self { state, side, qps, dc_responders, epoch: _ } = self;
        let FunctionState { fw: _, memory: _, outstanding: _, eqs: _, event_routes: _, cqs, srqs: _, .. } =
            state;
        cqs.iter_mut().for_each(|(_, cq)| cq.rebase(by));
        let FunctionState {
            diagnoses,
            counting: _,
            groups,
            vectors,
            key_changes: _,
            faults_told: _,
            runs: _,
            frames,
            wqes: _,
            ..
        } = state;
        diagnoses.rebase(by);
        groups.rebase(by);
        vectors.values_mut().for_each(|last| last.rebase(by));
        frames.rebase(by);
        side.parked.rebase(by);
        qps.iter_mut().for_each(|(_, qp)| qp.rebase(by));
        dc_responders.values_mut().for_each(|qp| qp.rebase(by));
    }
}
