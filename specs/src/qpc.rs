//! Queue pair context (QPC) and the address path inside it.
//!
//! Source: PRM "QP Context" and "Address Path"; states and transitions: PRM "QP State Machine",
//! IBTA 10.3.1.

use crate::layout::layout;

layout! {
    /// Address path, 44 bytes: where packets of a connected queue pair go.
    pub struct AddressPath[0x2c] {
        /// Force loopback: packets come back to their port, whatever addresses the path has, and whether the port is up or not.
        FL: 0x0 [31:31];
        /// Index into the port's P_Key table.
        PKEY_INDEX: 0x0 [15:0];
        /// 1 = packets carry a GRH.
        GRH: 0x4 [23:23];
        /// Source path bits, added to the base LID.
        MLID: 0x4 [22:16];
        /// Remote (destination) LID.
        RLID: 0x4 [15:0];
        /// Local ACK timeout: 4.096 us * 2^value, 0 = never (IBTA 9.7.6.1.3).
        ACK_TIMEOUT: 0x8 [31:27];
        /// Index of the source GID.
        SRC_ADDR_INDEX: 0x8 [23:16];
        /// Static rate.
        STAT_RATE: 0x8 [11:8];
        /// GRH hop limit.
        HOP_LIMIT: 0x8 [7:0];
        /// GRH traffic class.
        TCLASS: 0xc [27:20];
        /// GRH flow label.
        FLOW_LABEL: 0xc [19:0];
        /// Remote GID, first half.
        RGID_H: 0x10 u64;
        /// Remote GID, second half.
        RGID_L: 0x18 u64;
        /// Ethernet: explicit congestion notification of packets, as IP has it.
        ECN: 0x20 [23:22];
        /// Ethernet: differentiated services code point of packets.
        DSCP: 0x20 [21:16];
        /// Ethernet: UDP source port of packets; 0 = the adapter chooses.
        UDP_SPORT: 0x20 [15:0];
        /// Ethernet: drop eligible indicator of packets with a VLAN tag.
        DEI_CFI: 0x24 [31:31];
        /// Ethernet: priority of packets with a VLAN tag.
        ETH_PRIO: 0x24 [30:28];
        /// Service level.
        SL: 0x24 [27:24];
        /// Local port, from 1.
        VHCA_PORT_NUM: 0x24 [23:16];
        /// Ethernet: the peer's MAC address, bytes 0 and 1.
        RMAC_47_32: 0x24 [15:0];
        /// Ethernet: the peer's MAC address, bytes 2 to 5.
        RMAC_31_0: 0x28 [31:0];
    }

    /// Queue pair context, 232 bytes.
    pub struct Qpc[0xe8] {
        /// State: [`QpState`].
        STATE: 0x0 [31:28];
        /// Service type: [`ServiceType`].
        ST: 0x0 [23:16];
        /// Path migration state: see [`path_migration`].
        PM_STATE: 0x0 [12:11];
        /// What the adapter does by itself with the send queue, which the queue pair then doesn't have: [`OFFLOAD_RENDEZVOUS`].
        OFFLOAD_TYPE: 0x0 [7:4];
        /// Block loopback of multicast sent by this QP.
        BLOCK_LB_MC: 0x4 [30:30];
        /// Hint: prefer latency.
        LATENCY_SENSITIVE: 0x4 [28:28];
        /// 1 = a signature error drains the send queue.
        DRAIN_SIGERR: 0x4 [26:26];
        /// Protection domain.
        PD: 0x4 [23:0];
        /// Path MTU, IBTA code 1..5 = 256..4096 bytes.
        MTU: 0x8 [31:29];
        /// log2 of the largest message.
        LOG_MSG_MAX: 0x8 [28:24];
        /// log2 of the number of receive WQEs.
        LOG_RQ_SIZE: 0x8 [22:19];
        /// log2 of the receive WQE's stride in 16-byte units.
        LOG_RQ_STRIDE: 0x8 [18:16];
        /// 1 = the QP has no send queue.
        NO_SQ: 0x8 [15:15];
        /// log2 of the number of 64-byte send WQE basic blocks.
        LOG_SQ_SIZE: 0x8 [14:11];
        /// 1 = the reserved lkey may be used.
        RLKY: 0x8 [4:4];
        /// Q counter set.
        COUNTER_SET_ID: 0xc [31:24];
        /// UAR page of the doorbells.
        UAR_PAGE: 0xc [23:0];
        /// Where the send queue's counter is: [`send_dbr_mode`].
        SEND_DBR_MODE: 0x10 [31:30];
        /// Value echoed in CQEs of version 1.
        USER_INDEX: 0x10 [23:0];
        /// log2 of the buffer's page size in 4 KiB units.
        LOG_PAGE_SIZE: 0x14 [28:24];
        /// Connected queue pair at the other end.
        REMOTE_QPN: 0x14 [23:0];
        /// Coalescing: log2 of packets per requested ACK.
        LOG_ACK_REQ_FREQ: 0x70 [31:28];
        /// log2 of outstanding reads and atomics as requester.
        LOG_SRA_MAX: 0x70 [23:21];
        /// Retries after a timeout or sequence error.
        RETRY_COUNT: 0x70 [18:16];
        /// Retries after RNR NAK; 7 = for ever.
        RNR_RETRY: 0x70 [15:13];
        /// Fast registration allowed.
        FRE: 0x70 [11:11];
        /// Remaining RNR retries.
        CUR_RNR_RETRY: 0x70 [10:8];
        /// Remaining retries.
        CUR_RETRY_COUNT: 0x70 [7:5];
        /// PSN of the next new request packet.
        NEXT_SEND_PSN: 0x78 [23:0];
        /// Initiators of dynamic connections: log2 of the streams at once.
        LOG_NUM_DCI_STREAM_CHANNELS: 0x7c [28:24];
        /// Completion queue of the send queue.
        CQN_SND: 0x7c [23:0];
        /// Initiators of dynamic connections: log2 of the streams in error with which the queue pair is in error itself.
        LOG_NUM_DCI_ERRORED_STREAMS: 0x80 [28:24];
        /// Source that datagrams name instead of the queue pair's own number; 0 = that.
        DETH_SQPN: 0x80 [23:0];
        /// Last acknowledged PSN.
        LAST_ACKED_PSN: 0x88 [23:0];
        /// Send sequence number.
        SSN: 0x8c [23:0];
        /// log2 of outstanding reads and atomics as responder.
        LOG_RRA_MAX: 0x90 [23:21];
        /// Atomic mode: 0 none, 1 those of IBTA, else log2 of the bytes of the largest operand.
        ATOMIC_MODE: 0x90 [19:16];
        /// Remote read enable.
        RRE: 0x90 [15:15];
        /// Remote write enable.
        RWE: 0x90 [14:14];
        /// Remote atomic enable.
        RAE: 0x90 [13:13];
        /// Offset of the buffer in its first page, in 64ths of a page.
        PAGE_OFFSET: 0x90 [11:6];
        /// Its receive queue waits to be let on by another queue.
        CD_SLAVE_RECEIVE: 0x90 [2:2];
        /// Its send queue waits to be let on by another queue.
        CD_SLAVE_SEND: 0x90 [1:1];
        /// Its send queue lets others on, and waits for others' completions.
        CD_MASTER: 0x90 [0:0];
        /// RNR NAK timer code returned to the requester (IBTA table 45).
        MIN_RNR_NAK: 0x94 [28:24];
        /// PSN of the next request packet expected.
        NEXT_RCV_PSN: 0x94 [23:0];
        /// XRC domain.
        XRCD: 0x98 [23:0];
        /// Completion queue of the receive queue.
        CQN_RCV: 0x9c [23:0];
        /// DMA address of the doorbell record.
        DBR_ADDR: 0xa0 u64;
        /// Q_Key of datagram QPs.
        Q_KEY: 0xa8 [31:0];
        /// Kind of receive queue: [`RqType`].
        RQ_TYPE: 0xac [26:24];
        /// Shared receive queue, if any.
        SRQN_RMPN: 0xac [23:0];
        /// Message sequence number as responder.
        RMSN: 0xb0 [23:0];
        /// Send WQE basic blocks consumed by hardware.
        HW_SQ_WQEBB_COUNTER: 0xb4 [31:16];
        /// Send WQE basic blocks posted.
        SW_SQ_WQEBB_COUNTER: 0xb4 [15:0];
        /// Receive WQEs consumed by hardware.
        HW_RQ_COUNTER: 0xb8 [31:0];
        /// Receive WQEs posted.
        SW_RQ_COUNTER: 0xbc [31:0];
        /// Scatter small data to CQE, requester.
        CS_REQ: 0xc4 [15:8];
        /// Scatter small data to CQE, responder.
        CS_RES: 0xc4 [7:0];
        /// DC access key (not of initiators: theirs is in each WQE).
        DC_ACCESS_KEY: 0xc8 u64;
        /// 1 = the doorbell record lies in a user memory, its address is an offset there.
        DBR_UMEM_VALID: 0xd0 [28:28];
        /// The user memory of the doorbell record.
        DBR_UMEM_ID: 0xe4 [31:0];
    } views {
        /// Primary address path.
        primary_path, primary_path_mut: 0x18 AddressPath;
        /// Alternate address path.
        secondary_path, secondary_path_mut: 0x44 AddressPath;
    }

    /// Extension of a queue pair's context, 192 bytes.
    pub struct QpcExt[0xc0] {
        /// The stream that is taken out of error.
        DCI_STREAM_CHANNEL_ID: 0x0 [15:0];
        /// The element ([`crate::sched`]) that requests are sent by; 0 = none.
        QOS_QUEUE_GROUP_ID_REQUESTER: 0x4 [31:0];
        /// The element that answers are sent by; 0 = none.
        QOS_QUEUE_GROUP_ID_RESPONDER: 0x8 [31:0];
    }
}

/// Codes of [`Qpc::SEND_DBR_MODE`].
pub mod send_dbr_mode {
    /// In its doorbell record.
    pub const RECORD: u32 = 0;
    /// Nowhere: each doorbell tells of the WQE up to which the queue goes.
    pub const NO_RECORD: u32 = 1;
}

/// State of a queue pair, as in [`Qpc::STATE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum QpState {
    /// Reset.
    #[default]
    Reset = 0,
    /// Initialized: receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue error (datagram and unreliable QPs).
    SqError = 4,
    /// Send queue drained.
    SqDrained = 5,
    /// Error: everything is flushed.
    Error = 6,
    /// Send queue draining.
    SqDraining = 7,
}

impl QpState {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::SqError,
        Self::SqDrained,
        Self::Error,
        Self::SqDraining,
    ];

    /// The state with that number, if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::SqError,
            5 => Self::SqDrained,
            6 => Self::Error,
            7 => Self::SqDraining,
            _ => return None,
        })
    }

    /// Whether packets from the peer are accepted.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::SqError | Self::SqDrained | Self::SqDraining)
    }
}

/// Service type of a queue pair, as in [`Qpc::ST`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum ServiceType {
    /// Reliable connection.
    #[default]
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 2,
    /// Extended reliable connection.
    Xrc = 3,
    /// Dynamically connected initiator: each WQE says where to.
    Dci = 5,
    /// Dynamically connected target: no queue pair, but what answers initiators.
    Dct = 6,
    /// Subnet management QP (QP0).
    Qp0 = 7,
    /// General services QP (QP1).
    Qp1 = 8,
    /// Memory registration by user-mode memory registration (UMR) WQEs.
    RegUmr = 0xc,
}

impl ServiceType {
    /// The service type with that number, if this adapter has it.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Ud,
            3 => Self::Xrc,
            5 => Self::Dci,
            6 => Self::Dct,
            7 => Self::Qp0,
            8 => Self::Qp1,
            0xc => Self::RegUmr,
            _ => return None,
        })
    }

    /// Whether packets carry a DETH: UD and the special QPs.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Qp0 | Self::Qp1)
    }

    /// Whether requests are acknowledged and retried.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc | Self::Dci | Self::Dct)
    }
}

/// Kind of receive queue, as in [`Qpc::RQ_TYPE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum RqType {
    /// A receive queue of its own.
    #[default]
    Own = 0,
    /// A shared receive queue or receive memory pool.
    Shared = 1,
    /// None: the receive queue has no entries.
    Zero = 3,
}

impl RqType {
    /// The kind with that number, if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::Own,
            1 => Self::Shared,
            3 => Self::Zero,
            _ => return None,
        })
    }
}

/// Bits of `opt_param_mask` in the modify commands: which optional fields are valid
/// (PRM "QP optional parameters").
pub mod opt {
    /// Alternate path.
    pub const ALT_PATH: u32 = 1 << 0;
    /// Remote read enable.
    pub const RRE: u32 = 1 << 1;
    /// Remote atomic enable.
    pub const RAE: u32 = 1 << 2;
    /// Remote write enable.
    pub const RWE: u32 = 1 << 3;
    /// P_Key index.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// Q_Key.
    pub const Q_KEY: u32 = 1 << 5;
    /// RNR NAK timer.
    pub const RNR_TIMEOUT: u32 = 1 << 6;
    /// Primary path.
    pub const PRIMARY_PATH: u32 = 1 << 7;
    /// Outstanding requests as requester.
    pub const SRA_MAX: u32 = 1 << 8;
    /// Outstanding requests as responder.
    pub const RRA_MAX: u32 = 1 << 9;
    /// Path migration state.
    pub const PM_STATE: u32 = 1 << 10;
    /// Whether signature errors drain the send queue (INIT2INIT; mlx5dv, field use).
    pub const DRAIN_SIGERR: u32 = 1 << 11;
    /// Retry count.
    pub const RETRY_COUNT: u32 = 1 << 12;
    /// RNR retry count.
    pub const RNR_RETRY: u32 = 1 << 13;
    /// ACK timeout.
    pub const ACK_TIMEOUT: u32 = 1 << 14;
    /// Primary port.
    pub const PRI_PORT: u32 = 1 << 16;
    /// RTS2RTS: DSCP of the primary path (mlx5 driver of OFED, field use).
    pub const DSCP: u32 = 1 << 17;
    /// Shared receive queue.
    pub const SRQN: u32 = 1 << 18;
    /// Receive completion queue.
    pub const CQN_RCV: u32 = 1 << 19;
    /// RTS2RTS: index of the own address of the primary path (DOCA, field use).
    pub const SRC_ADDR_INDEX: u32 = 1 << 23;
    /// Counter set.
    pub const COUNTER_SET: u32 = 1 << 25;
}

/// Bits of `opt_param_mask_95_32` of RTS2RTS_QP (rdma-core, field use).
pub mod opt_95_32 {
    /// RTS2RTS: takes a stream of an initiator of dynamic connections out of error.
    pub const DCI_STREAM_CHANNEL_ID: u64 = 1 << 0;
    /// INIT2INIT, RTS2RTS: the elements that it sends by.
    pub const QOS_QUEUE_GROUP_ID: u64 = 1 << 1;
    /// UDP source port of the primary path.
    pub const UDP_SPORT: u64 = 1 << 2;
}

/// [`Qpc::OFFLOAD_TYPE`]: it fetches data that messages announce ([`crate::xrq`]).
pub const OFFLOAD_RENDEZVOUS: u32 = 1;

/// Codes of [`Qpc::PM_STATE`] (IBTA vol 1 17.2.8; mlx5 driver, field use).
pub mod path_migration {
    /// Ready to migrate: an alternate path is there, and the peer is ready too.
    pub const ARMED: u32 = 0;
    /// An alternate path is there; waits until the peer has one.
    pub const REARM: u32 = 1;
    /// The primary path is in use and there is nothing to migrate to: the state at the start.
    pub const MIGRATED: u32 = 3;
}

/// Bytes in a path MTU of IBTA code `code` (1..=5), or `None`.
pub const fn mtu_bytes(code: u32) -> Option<usize> {
    match code {
        1..=5 => Some(128 << code),
        _ => None,
    }
}

/// Minimum delay of an RNR NAK timer code, in nanoseconds (IBTA table 45).
pub const fn rnr_timer_ns(code: u32) -> u64 {
    const TABLE_10NS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    TABLE_10NS[(code & 31) as usize] as u64 * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_rts() {
        let mut q = Qpc::new();
        q.set(Qpc::STATE, QpState::Rts as u32).set(Qpc::ST, ServiceType::Ud as u32).set(Qpc::PM_STATE, 3);
        q.set(Qpc::PD, 0x42).set(Qpc::MTU, 3).set(Qpc::LOG_MSG_MAX, 30).set(Qpc::LOG_RQ_SIZE, 9);
        q.set(Qpc::LOG_SQ_SIZE, 7).set(Qpc::DBR_ADDR, 0x1122_3344_5566_7788);
        q.primary_path_mut().set(AddressPath::RLID, 7).set(AddressPath::VHCA_PORT_NUM, 1);
        let b = q.bytes();
        assert_eq!(b[..12], [0x30, 2, 0x18, 0, 0, 0, 0, 0x42, 0x7e, 0x48, 0x38, 0]);
        assert_eq!(b[0x1c..0x20], [0, 0, 0, 7]);
        assert_eq!(b[0x3c..0x40], [0, 1, 0, 0]);
        assert_eq!(b[0xa0..0xa8], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(q.primary_path().get(AddressPath::RLID), 7);
    }

    #[test]
    fn golden_ethernet_path() {
        let mut p = AddressPath::new();
        p.set(AddressPath::ECN, 2).set(AddressPath::DSCP, 0x2a).set(AddressPath::UDP_SPORT, 0xc123);
        p.set(AddressPath::ETH_PRIO, 5).set(AddressPath::VHCA_PORT_NUM, 1).set(AddressPath::DEI_CFI, 1);
        p.set(AddressPath::RMAC_47_32, 0x0002).set(AddressPath::RMAC_31_0, 0xc9a0_0001);
        assert_eq!(p.bytes()[0x20..], [0, 0xaa, 0xc1, 0x23, 0xd0, 1, 0, 2, 0xc9, 0xa0, 0, 1]);
    }

    #[test]
    fn rnr_codes() {
        assert_eq!(rnr_timer_ns(1), 10_000);
        assert_eq!(rnr_timer_ns(14), 1_280_000);
        assert_eq!(rnr_timer_ns(0), 655_360_000);
        assert_eq!(rnr_timer_ns(31), 491_520_000);
    }
}
