//! Event queue entry (EQE).
//!
//! Source: PRM "Event Queue Entry Format" and "Event types".

use crate::layout::layout;

/// Byte offset of the owner byte, written last.
pub const OWNER_BYTE: usize = 0x3f;

layout! {
    /// Event queue entry, 64 bytes.
    pub struct Eqe[64] {
        /// [`EventType`].
        TYPE: 0x0 [23:16];
        /// Sub-type, for port changes [`port_change`].
        SUB_TYPE: 0x0 [7:0];
        /// First word of the event's data. Command events: mask of completed entries.
        COMMAND_VECTOR: 0x20 [31:0];
        /// Completion events: the completion queue.
        COMPLETION_CQN: 0x38 [23:0];
        /// CQ errors: the completion queue.
        CQ_ERROR_CQN: 0x20 [23:0];
        /// CQ errors: [`cq_syndrome`].
        CQ_ERROR_SYNDROME: 0x28 [7:0];
        /// QP and SRQ events: 0 = QP, 1 = RQ, 2 = SQ.
        QUEUE_TYPE: 0x34 [31:24];
        /// QP and SRQ events: the number.
        QUEUE_NUMBER: 0x38 [23:0];
        /// Port changes: the port.
        PORT: 0x28 [31:28];
        /// Page requests: the function.
        PAGE_FUNCTION_ID: 0x20 [15:0];
        /// Page requests: pages wanted, negative = given back.
        PAGE_COUNT: 0x24 [31:0];
        /// Module events: the cage, from 0.
        MODULE: 0x20 [23:16];
        /// Module events: [`module_status`].
        MODULE_STATUS: 0x20 [3:0];
        /// Module events with status [`module_status::ERROR`]: [`module_error`].
        MODULE_ERROR: 0x24 [11:8];
        /// Warnings of temperature: a bit for each sensor from 64 on that is too hot.
        HOT_SENSORS_HIGH: 0x20 u64;
        /// Warnings of temperature: a bit for each sensor below 64 that is too hot.
        HOT_SENSORS_LOW: 0x28 u64;
        /// General events of that sub-type: [`sync_reset`].
        SYNC_RESET_STATE: 0x20 [3:0];
        /// Page faults: bytes of the message that are done.
        FAULT_COMMITTED: 0x20 [31:0];
        /// Page faults of a WQE: its index.
        FAULT_WQE_INDEX: 0x24 [15:0];
        /// Page faults of an RDMA request: its key.
        FAULT_RKEY: 0x24 [31:0];
        /// Page faults at the responder: payload of the packet.
        FAULT_PACKET: 0x28 [15:0];
        /// Page faults of a WQE: what PAGE_FAULT_RESUME has to name.
        FAULT_WQE_TOKEN: 0x2c [31:0];
        /// Page faults of an RDMA request: length of the whole operation.
        FAULT_LENGTH: 0x2c [31:0];
        /// Page faults of an RDMA request: where the whole operation starts.
        FAULT_ADDRESS: 0x30 u64;
        /// Page faults: [`page_fault`] type.
        FAULT_TYPE: 0x38 [26:24];
        /// Page faults of a WQE: QP or SRQ that holds the WQE. Of an RDMA request: the token.
        FAULT_QUEUE: 0x38 [23:0];
        /// Page faults of memory: [`page_fault::LAST`].
        MEMORY_FAULT_FLAGS: 0x20 [31:24];
        /// Page faults of memory: pages of 4 KiB behind those that are needed which may be brought, too.
        MEMORY_FAULT_POST_PAGES: 0x20 [15:0];
        /// Page faults of memory: the same before them.
        MEMORY_FAULT_PRE_PAGES: 0x24 [31:16];
        /// Page faults of memory: what PAGE_FAULT_RESUME has to name, bits 47 to 32.
        MEMORY_FAULT_TOKEN_47_32: 0x24 [15:0];
        /// Page faults of memory: bits 31 to 0 of that.
        MEMORY_FAULT_TOKEN_31_0: 0x28 [31:0];
        /// Page faults of memory: pages of 4 KiB that are needed.
        MEMORY_FAULT_PAGES: 0x2c [31:12];
        /// Page faults of memory: the key whose pages are missing, the one that names memory itself.
        MEMORY_FAULT_MKEY: 0x30 [31:0];
        /// Page faults of memory: the first address under the key that is needed.
        MEMORY_FAULT_VA: 0x34 u64;
        /// Signature.
        SIGNATURE: 0x3c [15:8];
        /// Owner bit.
        OWNER: 0x3c [0:0];
    }
}

/// Event types (PRM "Event types").
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum EventType {
    /// A completion queue has entries.
    Completion = 0x00,
    /// Path migrated.
    PathMigrated = 0x01,
    /// First packet of a connection in RTR.
    CommEstablished = 0x02,
    /// Send queue drained.
    SqDrained = 0x03,
    /// Completion queue error.
    CqError = 0x04,
    /// Work queue catastrophic error.
    WqCatastrophic = 0x05,
    /// Path migration failed.
    PathMigrationFailed = 0x07,
    /// Port state changed.
    PortChange = 0x09,
    /// Command completed.
    CommandCompletion = 0x0a,
    /// The firmware wants or gives back pages.
    PageRequest = 0x0b,
    /// A page of an on-demand paging key is not present.
    PageFault = 0x0c,
    /// Invalid request at the responder.
    InvalidRequest = 0x10,
    /// Access violation at the responder.
    AccessError = 0x11,
    /// SRQ catastrophic error.
    SrqCatastrophic = 0x12,
    /// Last WQE of a QP on an SRQ reached.
    LastWqe = 0x13,
    /// SRQ limit reached.
    SrqLimit = 0x14,
    /// What is in a cage changed, or can't be used.
    PortModule = 0x16,
    /// A sensor is above its upper limit.
    TemperatureWarning = 0x17,
    /// A DC target that drains has no connection any more; the number is in [`Eqe::QUEUE_NUMBER`].
    DctDrained = 0x1c,
    /// An initiator came to a DC target with another access key.
    DctKeyViolation = 0x1d,
    /// What has no type of its own: [`general`].
    General = 0x22,
    /// Something about the firmware's tracer ([`crate::tracer::tracer_event`]).
    DeviceTracer = 0x26,
}

impl EventType {
    /// Every type.
    pub const ALL: [Self; 22] = [
        Self::Completion,
        Self::PathMigrated,
        Self::CommEstablished,
        Self::SqDrained,
        Self::CqError,
        Self::WqCatastrophic,
        Self::PathMigrationFailed,
        Self::PortChange,
        Self::CommandCompletion,
        Self::PageRequest,
        Self::PageFault,
        Self::InvalidRequest,
        Self::AccessError,
        Self::SrqCatastrophic,
        Self::LastWqe,
        Self::SrqLimit,
        Self::PortModule,
        Self::TemperatureWarning,
        Self::DctDrained,
        Self::DctKeyViolation,
        Self::General,
        Self::DeviceTracer,
    ];

    /// The type with that number, if there is one.
    pub fn from_bits(bits: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == bits)
    }
}

/// Sub-types of [`EventType::General`].
pub mod general {
    /// Drivers are asked, or told, about a start of the firmware: [`super::sync_reset`].
    pub const SYNC_RESET: u8 = 8;
}

/// Values of [`Eqe::MODULE_STATUS`] (mlx5 driver, `include/linux/mlx5/port.h`).
pub mod module_status {
    /// It was put in.
    pub const PLUGGED: u32 = 1;
    /// It was pulled out.
    pub const UNPLUGGED: u32 = 2;
    /// It can't be used: [`super::module_error`].
    pub const ERROR: u32 = 3;
}

/// Values of [`Eqe::MODULE_ERROR`] (mlx5 driver, `include/linux/mlx5/port.h`).
pub mod module_error {
    /// It takes more power than the cage gives.
    pub const POWER_BUDGET: u32 = 0x0;
    /// It is for long ways, and not of the adapter's maker.
    pub const LONG_RANGE: u32 = 0x1;
    /// Its bus hangs.
    pub const BUS_STUCK: u32 = 0x2;
    /// It has no memory, or that does not answer.
    pub const NO_EEPROM: u32 = 0x3;
    /// Its part number is not in the list of those that may be used.
    pub const PART_NUMBER: u32 = 0x4;
    /// Its identifier is not known.
    pub const UNKNOWN_IDENTIFIER: u32 = 0x5;
    /// It is too hot.
    pub const HIGH_TEMPERATURE: u32 = 0x6;
    /// The cable is broken or shorted.
    pub const BAD_CABLE: u32 = 0x7;
    /// The slot of PCI Express gives less power than it needs.
    pub const PCIE_POWER: u32 = 0xc;
}

/// Values of [`Eqe::SYNC_RESET_STATE`].
pub mod sync_reset {
    /// Is it all right?
    pub const REQUEST: u8 = 0;
    /// All agreed: let go.
    pub const NOW: u8 = 1;
    /// Nothing comes of it.
    pub const ABORT: u8 = 2;
}

/// Sub-types of [`EventType::PortChange`].
pub mod port_change {
    /// The port went down.
    pub const DOWN: u8 = 1;
    /// The port became active.
    pub const ACTIVE: u8 = 4;
    /// The link is up, not yet configured.
    pub const INITIALIZED: u8 = 5;
    /// The LID changed.
    pub const LID: u8 = 6;
    /// The P_Key table changed.
    pub const PKEY: u8 = 7;
    /// The GUID table changed.
    pub const GUID: u8 = 8;
    /// The subnet manager asks clients to register again.
    pub const CLIENT_REREGISTER: u8 = 9;
}

/// Sub-types and types of [`EventType::PageFault`] (mlx5 driver, field use).
pub mod page_fault {
    /// Sub-type: the pages are those of a WQE's data segments.
    pub const WQE: u8 = 0;
    /// Sub-type: the pages are what an RDMA request of the peer names.
    pub const RDMA: u8 = 1;

    /// Sub-type: the pages are named by key and address (the memory scheme); the event has no type.
    pub const MEMORY: u8 = 2;

    /// Flag of a fault of memory: it is the last event of its token, and PAGE_FAULT_RESUME is waited for.
    pub const LAST: u8 = 1 << 7;
    /// log2 of the bytes of a page that a fault of memory counts.
    pub const LOG_PAGE: u32 = 12;

    /// Type bit: the requester stopped; else the responder.
    pub const REQUESTOR: u8 = 1 << 0;
    /// Type bit: the adapter wants to write to the page.
    pub const WRITES: u8 = 1 << 1;
    /// Type bit: an RDMA request.
    pub const BY_RDMA: u8 = 1 << 2;

    /// Type: receive WQE of a shared receive queue.
    pub const SHARED_RECEIVE: u8 = 0;
    /// Type: data of a send or write WQE.
    pub const SEND_OR_WRITE: u8 = REQUESTOR;
    /// Type: receive WQE of a queue pair.
    pub const RECEIVE: u8 = WRITES;
    /// Type: where the response of a read or atomic WQE goes.
    pub const READ_OR_ATOMIC: u8 = REQUESTOR | WRITES;
    /// Type: what the peer reads.
    pub const RDMA_READ: u8 = BY_RDMA;
    /// Type: what the peer writes, or changes atomically.
    pub const RDMA_WRITE: u8 = BY_RDMA | WRITES;
}

/// Syndromes of [`EventType::CqError`].
pub mod cq_syndrome {
    /// Overrun.
    pub const OVERRUN: u32 = 1;
    /// The CQ's memory could not be accessed.
    pub const ACCESS: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let mut e = Eqe::new();
        e.set(Eqe::TYPE, EventType::PortChange as u32).set(Eqe::SUB_TYPE, 4).set(Eqe::PORT, 1);
        assert_eq!(e.bytes()[..4], [0, 9, 0, 4]);
        assert_eq!(e.bytes()[0x28], 0x10);
        let mut e = Eqe::new();
        e.set(Eqe::FAULT_COMMITTED, 5).set(Eqe::FAULT_WQE_INDEX, 6).set(Eqe::FAULT_PACKET, 7);
        e.set(Eqe::FAULT_WQE_TOKEN, 8).set(Eqe::FAULT_TYPE, 3).set(Eqe::FAULT_QUEUE, 0x42);
        assert_eq!(e.bytes()[0x20..0x30], [0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 8]);
        assert_eq!(e.bytes()[0x38..0x3c], [3, 0, 0, 0x42]);
        let mut e = Eqe::new();
        e.set(Eqe::MEMORY_FAULT_FLAGS, page_fault::LAST.into()).set(Eqe::MEMORY_FAULT_POST_PAGES, 5);
        e.set(Eqe::MEMORY_FAULT_PRE_PAGES, 6).set(Eqe::MEMORY_FAULT_TOKEN_47_32, 7);
        e.set(Eqe::MEMORY_FAULT_TOKEN_31_0, 8).set(Eqe::MEMORY_FAULT_PAGES, 9);
        e.set(Eqe::MEMORY_FAULT_MKEY, 0x1234).set(Eqe::MEMORY_FAULT_VA, 1 << 32 | 0x5000);
        assert_eq!(e.bytes()[0x20..0x30], [0x80, 0, 0, 5, 0, 6, 0, 7, 0, 0, 0, 8, 0, 0, 0x90, 0]);
        assert_eq!(e.bytes()[0x30..0x3c], [0, 0, 0x12, 0x34, 0, 0, 0, 1, 0, 0, 0x50, 0]);
        let mut e = Eqe::new();
        e.set(Eqe::CQ_ERROR_SYNDROME, 1).set(Eqe::OWNER, 1);
        assert_eq!((e.bytes()[0x2b], e.bytes()[0x3f]), (1, 1));
    }
}
