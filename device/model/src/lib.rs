//! The adapter's hardware as a sans-IO discrete-event model.
//!
//! A [`World`] holds the adapters of one topology, the links between them and one heap of timed
//! events. Whoever owns it injects register accesses, advances the time, and drains interrupts:
//!
//! ```text
//! mmio_write ─▶ uar decode ─▶ event ─▶ send: fetch WQE ─▶ requester: gather, segment ─▶ port
//!                                                                                      │ fabric
//! interrupt ◀─ eq ◀─ cq ◀─ responder: check key, scatter, ACK ◀─────────────── packet ◀┘
//! ```
//!
//! Adapters and switches share nothing but links: what passes between two of them is a [`link::LinkMessage`] that arrives
//! as much later than it left as MAC and PHY of both ends and the cable take at least (100 ns between switches and adapters of the
//! profile `connectx4`, and the cable's own, which may be 0). So a world may hold a part of a topology; its links to the other parts end in
//! [`TunnelId`]s, and [`World::drain_tunnels`], [`World::deliver`] and [`World::lookahead`] join it to them. One world and
//! several do the same, event by event. The built-in subnet manager and Ethernet switches see one world only, unless it
//! is told of the whole fabric ([`World::plan_fabric`]).
//!
//! No file descriptors, no threads, no wall clock: the same inputs give the same outputs. Guest memory
//! is reached through [`GuestMemory`]; what a unit takes in time comes from the timing profile.
//!
//! The modules are rooms on floors (`floors.toml`), each of which imports from those below it: `ground` (time, events,
//! profiles), [`wire`] (transport packets), [`link_layer`] (what carries them from port to port), `engines` (state machines that
//! return what is to be done), [`units`] (who is busy until when), [`link`] (what lies between two ports), `faults` (what goes wrong on script), `adapter` (carries out what the engines return), `checker` (looks on), `inspect` (one object, looked at), `world`.
//!
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used))]

mod adapter;
mod checker;
mod engines;
mod faults;
mod ground;
mod inspect;
pub mod link;
pub mod link_layer;
pub mod units;
pub mod wire;
mod world;

pub use adapter::is_doorbell;
pub use adapter::state::counters::{AdapterCounters, Counters, QpCounters, QpReport};
pub use engines::nic;
pub use ground::diagnosis::{Before, Clue, Diagnosis, Finding, Parts, RefusedCommand, Saying, Subject};
pub use ground::dma::{Answer, Asked, DeferredReads, DmaError, GuestMemory};
pub use ground::epoch::{DUE, EPOCH, Start};
pub use ground::node::{FunctionRef, HcaId, LinkEnd, NodeId, PortRef, SwitchId, TunnelId};
pub use ground::random::mix;
pub use ground::region::Sink;
pub use ground::{dma, time, timing};
pub use hca_firmware::{
    Config as FirmwareConfig, Disposal, FunctionId, LinkOffer, LinkSpeed, PortCounters, PortKind, PortLink,
    QCounter, Resources, Snapshot, SwitchConfig as SwitchIdentity, personality,
};
pub use hca_spec::management::vsc;
pub use hca_spec::rules;
pub use time::Ps;
pub use world::{
    Allowance, ConfigError, Effect, FabricPlan, HcaConfig, LinkConfig, PlannedHca, PlannedSwitch,
    PriorityQueue, Queueing, Red, Routing, SwitchConfig, TunnelEvent, WaitingEvents, World, WorldConfig,
};

/// What goes wrong on script.
pub mod fault {
    pub use crate::faults::{
        Ailment, Assert, CommandAction, DmaAction, EVENT_DATA, EntryAction, Fault, FaultId, FaultReport,
        Header, InterruptAction, Lasting, ModuleError, PacketAction, PcieError, PcieEvent, PcieLink,
        PortChange, Side, SlotEvent, TimeAction, What, event_named, opcode_named, packet_named,
        pcie_error_named, vendor_of,
    };
    pub use crate::ground::trigger::Trigger;
    pub use hca_firmware::pcie::ErrorMessage;
    pub use hca_spec::command::Delivery;
    pub use hca_spec::ids::{Cqn, Eqn, Psn, Qpn};
}

/// Objects looked at.
pub mod look {
    pub use crate::inspect::{KINDS, Part, Shown, What};
}

/// What a trace is made of.
pub mod trace {
    pub use crate::adapter::state::watch::{Captured, Executed};
    pub use crate::ground::event::{
        Cause, Event, Hold, Object, Queue, Seam, Status, Unit, Unwanted, Value, operation_name,
    };
    pub use crate::ground::record::Record;
    pub use crate::ground::ring::Trace;
}
