//! What no kind of adapter can exceed.

/// Entries of a port's P_Key table.
pub const PKEYS: usize = 32;
/// Entries of a port's GUID table.
pub const GUIDS: usize = 8;
/// IEEE company id in NodeInfo and QUERY_ADAPTER.
pub const VENDOR_ID: u32 = 0x0002c9;

/// Number of Q counter sets: 8 bits name one, 0 is none.
pub(crate) const MAX_Q_COUNTERS: u32 = 255;
/// log2 of the number of user contexts.
pub(crate) const LOG_MAX_UCTX: u32 = 12;
/// log2 of the number of user memories.
pub(crate) const LOG_MAX_UMEM: u32 = 22;
/// log2 of the number of receive queues.
pub(crate) const LOG_MAX_RQ: u32 = 16;
/// log2 of the number of tables of receive queues.
pub(crate) const LOG_MAX_RQT: u32 = 12;
/// log2 of the entries of such a table.
pub(crate) const LOG_MAX_RQT_SIZE: u32 = 11;
/// log2 of the number of transport interfaces of receivers.
pub(crate) const LOG_MAX_TIR: u32 = 16;
/// log2 of the number of transport interfaces of senders.
pub(crate) const LOG_MAX_TIS: u32 = 16;
/// log2 of the unicast addresses that a driver may list.
pub(crate) const LOG_MAX_UNICAST: u32 = 7;
/// log2 of the multicast addresses that a driver may list.
pub(crate) const LOG_MAX_MULTICAST: u32 = 11;
/// log2 of the VLANs that a driver may list: the count has 12 bits.
pub(crate) const LOG_MAX_VLANS: u32 = 12;
/// Entries of a port's table of RoCE addresses: an address path names one with eight bits.
pub const ROCE_ADDRESSES: usize = 256;
/// log2 of the QP numbers that can be reserved.
pub(crate) const LOG_MAX_RESERVED_QPNS: u32 = 20;
/// log2 of the QP numbers that are reserved at once.
pub(crate) const LOG_RESERVED_QPNS: u32 = 6;
/// Most completions of a block of compressed CQEs.
pub const MAX_COMPRESSED: u32 = 64;
/// log2 of the reads and atomics that a DC target serves at once for an initiator.
pub const LOG_MAX_RA_RES_DC: u32 = 4;
/// Most translations of one memory key, in 16-byte units.
pub const MAX_KEY_OCTWORDS: u32 = 1 << 24;
/// Rates that send queues may keep to, entry 0 included, which is none.
pub(crate) const RATES: u16 = 128;
/// Lowest rate, kb/s.
pub(crate) const MIN_RATE: u32 = 1;
/// Highest rate, kb/s: that of the fastest port.
pub(crate) const MAX_RATE: u32 = 100_000_000;
/// Traffic classes of an Ethernet port.
pub const TRAFFIC_CLASSES: usize = 8;
/// log2 of the groups that queues are scheduled by. Estimate.
pub(crate) const LOG_MAX_QUEUE_GROUPS: u32 = 8;
