//! What a command asks of the hardware once its output is decided.

use hca_spec::ids::{Cqn, Eqn, Mkey, Qpn, Rqn, Srqn};
use hca_spec::qpc::QpState;

use crate::buffer::Buffer;
use crate::fault_token::FaultToken;
use crate::function::{FunctionId, Functions};
use crate::rq::RqState;

/// Which of a queue pair's page faults a driver has dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DealtWith {
    /// Transport scheme: that of this type ([`hca_spec::eqe::page_fault`]); there is one at a time.
    Kind(u8),
    /// Memory scheme.
    Token(FaultToken),
}

/// A change that the hardware has to follow. Order matters; the context is already in the tables
/// (or, for `*Destroyed`, already gone).
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A new event queue.
    EqCreated(Eqn),
    /// An event queue is gone; its memory must not be written any more.
    EqDestroyed(Eqn),
    /// A new completion queue.
    CqCreated(Cqn),
    /// Moderation of a completion queue changed.
    CqModerated(Cqn),
    /// A completion queue has a new buffer; a RESIZE CQE goes to the old one.
    CqResized {
        /// The queue.
        cqn: Cqn,
        /// The buffer to leave.
        old: Buffer,
    },
    /// A completion queue is gone; its memory must not be written any more.
    CqDestroyed(Cqn),
    /// A new queue pair, in RESET.
    QpCreated(Qpn),
    /// A queue pair went through a transition (`from` may equal `to`); its context holds the new values.
    QpModified {
        /// The queue pair.
        qpn: Qpn,
        /// State before.
        from: QpState,
        /// State after. `Error`: flush. `Reset`: drop everything silently.
        to: QpState,
    },
    /// A queue pair is gone.
    QpDestroyed(Qpn),
    /// A new receive queue, in RESET.
    RqCreated(Rqn),
    /// A receive queue went through a transition (`from` may equal `to`), or options of it changed; its context holds the
    /// new values.
    RqModified {
        /// The queue.
        rqn: Rqn,
        /// State before.
        from: RqState,
        /// State after. `Error`: what is posted is flushed. `Reset`: drop everything silently; the next WQE is the first.
        to: RqState,
    },
    /// A receive queue is gone; its memory must not be read any more, nor that of its WQEs be written.
    RqDestroyed(Rqn),
    /// A new shared receive queue (basic, XRC or RMP).
    SrqCreated(Srqn),
    /// A shared receive queue's limit was armed; the water mark is in its context.
    SrqArmed(Srqn),
    /// A shared receive queue is gone.
    SrqDestroyed(Srqn),
    /// A DC target takes no connection any more; the hardware closes what there is, and then says so.
    DctDraining(Qpn),
    /// A DC target is gone.
    DctDestroyed(Qpn),
    /// The driver has dealt with a page fault of a queue pair.
    PageFaultResumed {
        /// The queue pair.
        qpn: Qpn,
        /// Which of its faults.
        fault: DealtWith,
        /// The pages can't be had.
        error: bool,
    },
    /// A port changed: event of that sub-type ([`hca_spec::eqe::port_change`]). `DOWN`: its peer loses the link
    /// too; it trains again ([`crate::Ports::set_link`]) unless an end is disabled.
    PortChange {
        /// Port, from 1.
        port: u8,
        /// Sub-type.
        sub_type: u8,
    },
    /// The administrator of the NIC virtual port set its state: the driver gets the event; the link stays as it is.
    VportChange {
        /// Port, from 1.
        port: u8,
        /// Sub-type of the event ([`hca_spec::eqe::port_change`]).
        sub_type: u8,
    },
    /// A port was switched on: its link may train.
    PortEnabled {
        /// Port, from 1.
        port: u8,
    },
    /// Software set how a port sends: which queue comes next, and how much each may send.
    PortConfigured {
        /// Port, from 1.
        port: u8,
    },
    /// The firmware wants pages (positive) or gives pages back (negative).
    PageRequest {
        /// Number of 4 KiB pages.
        pages: i32,
    },
    /// Sensors are too hot: drivers are warned.
    TemperatureWarning {
        /// Which, a bit each.
        sensors: u64,
    },
    /// The function turned the tracer on or off, or armed its event: blocks may be due, or an event.
    TracerTurned,
    /// What waits in the tracer has to be written now.
    TracesDue,
    /// The function gave the tracer back: others may take it.
    TracerReleased,
    /// Bytes for the host, under a key that it gave.
    WriteByKey {
        /// The key.
        key: Mkey,
        /// Where under it.
        address: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// These functions' drivers are told of a start of the firmware ([`crate::sync_reset`]).
    SyncReset {
        /// Which.
        functions: Functions,
        /// What ([`hca_spec::eqe::sync_reset`]).
        what: u8,
    },
    /// The physical function has disabled this virtual one, or enabled it anew: what its driver has made is gone
    /// ([`crate::Firmware::taken_away`]).
    FunctionTaken(FunctionId),
    /// Drivers are waited for: [`crate::sync_reset::SyncReset::late`] with this number when it was long enough.
    SyncResetWaits(u32),
    /// TEARDOWN_HCA or DISABLE_HCA: no object is left; all moving parts must be dropped.
    AllGone,
    /// TEARDOWN_HCA, forced or fast: the same but for event queues, which tell the driver that it is done.
    AllButEventsGone,
}
