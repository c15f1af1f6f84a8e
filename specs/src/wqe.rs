//! Send and receive work queue entries (WQE) and their segments.
//!
//! Source: PRM "Work Queue Element (WQE) Format" and the segments named there.

use crate::layout::layout;

/// A send WQE is a multiple of this many bytes: the WQE basic block (WQEBB).
pub const WQEBB: usize = 64;
/// Unit of [`Ctrl::DS`].
pub const DS_UNIT: usize = 16;
/// Key that ends a receive scatter list.
pub const TERMINATE_LKEY: u32 = 0x100;

layout! {
    /// Control segment: the first 16 bytes of a send WQE. Its first 8 bytes are also the doorbell.
    pub struct Ctrl[16] {
        /// Modifier of the opcode.
        OPMOD: 0x0 [31:24];
        /// Index of the WQE's first basic block, modulo 2^16.
        WQE_INDEX: 0x0 [23:8];
        /// [`SendOpcode`].
        OPCODE: 0x0 [7:0];
        /// The queue pair.
        QPN: 0x4 [31:8];
        /// Size of the WQE in 16-byte units.
        DS: 0x4 [5:0];
        /// Signature.
        SIGNATURE: 0x8 [31:24];
        /// Initiators of dynamic connections with streams: the stream.
        DCI_STREAM_CHANNEL_ID: 0x8 [23:8];
        /// Fence mode: 0 none; 1 small, waits for changes of keys; 2 and 4 wait for reads and atomics too; 3 strong ordering, waits until all
        /// before it is complete.
        FM: 0x8 [7:5];
        /// Completion: see `CE_*`.
        CE: 0x8 [3:2];
        /// Solicited event.
        SE: 0x8 [1:1];
        /// Immediate data, rkey to invalidate, or mkey of a UMR.
        IMM: 0xc [31:0];
    }

    /// Remote address segment.
    pub struct RemoteAddr[16] {
        /// Remote virtual address.
        VA: 0x0 u64;
        /// Remote key.
        RKEY: 0x8 [31:0];
    }

    /// Atomic segment.
    pub struct AtomicSeg[16] {
        /// Swap value, or the value to add.
        SWAP_ADD: 0x0 u64;
        /// Value to compare with; of a masked fetch and add, the last bits of its fields.
        COMPARE: 0x8 u64;
    }

    /// Behind the [`AtomicSeg`] of a masked compare and swap of 8 bytes.
    pub struct AtomicMasks[16] {
        /// Bits that are swapped.
        SWAP: 0x0 u64;
        /// Bits that are compared.
        COMPARE: 0x8 u64;
    }

    /// Atomic segment of a masked operation on 4 bytes.
    pub struct AtomicSeg4[16] {
        /// Swap value, or the value to add.
        SWAP_ADD: 0x0 [31:0];
        /// Value to compare with; of a fetch and add, the last bits of its fields.
        COMPARE: 0x4 [31:0];
        /// Compare and swap: bits that are swapped.
        SWAP_MASK: 0x8 [31:0];
        /// Compare and swap: bits that are compared.
        COMPARE_MASK: 0xc [31:0];
    }

    /// XRC segment.
    pub struct XrcSeg[16] {
        /// Remote XRC shared receive queue.
        SRQN: 0x0 [23:0];
    }

    /// Datagram segment (address vector), 48 bytes; DC initiators have 16 if `EXT` is 0.
    pub struct Datagram[48] {
        /// DC: the target's access key, in the place of the Q_Key.
        DC_KEY: 0x0 u64;
        /// Q_Key.
        QKEY: 0x0 [31:0];
        /// 1 = all 48 bytes are present.
        EXT: 0x8 [31:31];
        /// Destination queue pair, or DC target.
        DQPN: 0x8 [23:0];
        /// Static rate.
        STAT_RATE: 0xc [31:28];
        /// Service level.
        SL: 0xc [27:24];
        /// 1 = force loopback, as [`crate::qpc::AddressPath::FL`].
        FL: 0xc [23:23];
        /// Source path bits.
        MLID: 0xc [22:16];
        /// Destination LID.
        RLID: 0xc [15:0];
        /// Ethernet: priority of the tag, in the place of the service level.
        ETH_PRIO: 0xc [27:25];
        /// Ethernet: source port of RoCE v2, in the place of the LID; 0 = the adapter chooses.
        UDP_SPORT: 0xc [15:0];
        /// Ethernet: remote MAC address, first four bytes.
        RMAC_H: 0x14 [31:0];
        /// Ethernet: remote MAC address, last two bytes.
        RMAC_L: 0x18 [31:16];
        /// GRH traffic class.
        TCLASS: 0x18 [15:8];
        /// GRH hop limit.
        HOP_LIMIT: 0x18 [7:0];
        /// 1 = the packet carries a GRH.
        GRH: 0x1c [30:30];
        /// Index of the source GID.
        SGID_INDEX: 0x1c [27:20];
        /// GRH flow label.
        FLOW_LABEL: 0x1c [19:0];
        /// Destination GID, first half.
        RGID_H: 0x20 u64;
        /// Destination GID, second half.
        RGID_L: 0x28 u64;
    }

    /// Data segment: one piece of host memory.
    pub struct Data[16] {
        /// 1 = inline data follows ([`Data::INLINE_LENGTH`]).
        INLINE: 0x0 [31:31];
        /// Bytes of the piece.
        BYTE_COUNT: 0x0 [30:0];
        /// Bytes of inline data that follow the first word.
        INLINE_LENGTH: 0x0 [9:0];
        /// Local key.
        LKEY: 0x4 [31:0];
        /// Address under the key.
        ADDRESS: 0x8 u64;
    }

    /// First 16 bytes of a WQE in a shared receive queue.
    pub struct SrqNext[16] {
        /// Index of the following WQE in the list.
        NEXT_WQE_INDEX: 0x0 [15:0];
        /// Signature.
        SIGNATURE: 0x4 [31:24];
    }

    /// UMR control segment, 48 bytes; a 64-byte memory key context follows.
    pub struct UmrCtrl[48] {
        /// 1 = the translations are in the WQE.
        INLINE: 0x0 [31:31];
        /// 1 = fail unless the key is in use (not free).
        CHECK_FREE: 0x0 [30:30];
        /// 1 = fail unless the key is free.
        CHECK_NOT_FREE: 0x0 [29:29];
        /// 1 = `XLT_OFFSET` is valid.
        TRANSLATION_OFFSET_EN: 0x0 [28:28];
        /// 1 = fail unless the key is bound to this queue pair, or to none.
        CHECK_QPN: 0x0 [27:27];
        /// Translations to load, 16-byte units.
        XLT_OCTOWORDS: 0x4 [31:16];
        /// Where to load them, 16-byte units, bits 15..0.
        XLT_OFFSET: 0x4 [15:0];
        /// Which fields of the context change ([`umr_mask`]).
        MKEY_MASK: 0x8 u64;
        /// Signature part to load behind the inline translations, 16-byte units; where no offset is.
        BSF_OCTOWORDS: 0x4 [15:0];
        /// Bits 47..16 of the offset.
        XLT_OFFSET_47_16: 0x10 [31:0];
    }

    /// Ethernet segment, behind the control segment of a WQE in an Ethernet send queue: 16 bytes, and what the inline header has
    /// more than 2 bytes, padded to 16.
    pub struct EthSeg[16] {
        /// Software parser: outer layer 4, in 2-byte units from the frame's start.
        SWP_OUTER_L4_OFFSET: 0x0 [31:24];
        /// Software parser: outer layer 3.
        SWP_OUTER_L3_OFFSET: 0x0 [23:16];
        /// Software parser: inner layer 4.
        SWP_INNER_L4_OFFSET: 0x0 [15:8];
        /// Software parser: inner layer 3.
        SWP_INNER_L3_OFFSET: 0x0 [7:0];
        /// Which checksums are inserted: [`cs_flags`].
        CS_FLAGS: 0x4 [31:24];
        /// Software parser: what the offsets are of.
        SWP_FLAGS: 0x4 [23:16];
        /// LSO: bytes of payload in each segment. Multi-packet WQE of the old form: bytes of each frame.
        MSS: 0x4 [15:0];
        /// What flow tables match on, register A.
        FLOW_TABLE_METADATA: 0x8 [31:0];
        /// 1 = insert a VLAN tag; there is no inline header then.
        INSERT_VLAN: 0xc [31:31];
        /// The inserted tag: 1 = service tag (0x88a8), 0 = customer tag (0x8100).
        INSERT_SVLAN: 0xc [16:16];
        /// TCI of the inserted tag.
        VLAN_TCI: 0xc [15:0];
        /// Bytes of the inline header; the first two are the last of this segment.
        INLINE_HEADER_SIZE: 0xc [25:16];
    }
}

/// Bits of [`EthSeg::CS_FLAGS`] (mlx5 driver, field use).
pub mod cs_flags {
    /// Checksum of the inner IPv4 header.
    pub const L3_INNER: u32 = 1 << 4;
    /// Checksum of the inner TCP or UDP header.
    pub const L4_INNER: u32 = 1 << 5;
    /// Checksum of the IPv4 header.
    pub const L3: u32 = 1 << 6;
    /// Checksum of the TCP or UDP header.
    pub const L4: u32 = 1 << 7;
}

/// [`Ctrl::CE`]: CQE only on error.
pub const CE_ON_ERROR: u32 = 0;
/// [`Ctrl::CE`]: CQE on the first error only: one that is flushed behind another's has none (SPDK and DPDK, field use).
pub const CE_ON_FIRST_ERROR: u32 = 1;
/// [`Ctrl::CE`]: CQE always.
pub const CE_ALWAYS: u32 = 2;
/// [`Ctrl::CE`]: CQE always, and an event.
pub const CE_ALWAYS_EVENT: u32 = 3;

/// What is said of a WQE whose opcode the adapter does not have: which of the family's it is, and what it would need (mlx5 driver,
/// DPDK `mlx5_prm.h`, field use).
pub const fn without_opcode(opcode: u32) -> &'static str {
    match opcode {
        0x0f => {
            "opcode WAIT (waiting for another queue, or for a time): the capabilities of that are off (cd, wait_on_time)"
        }
        0x17 => "opcode SEND_EN (letting another queue go): the capability of that is off (cd)",
        0x21 | 0x22 | 0x26 | 0x27 => {
            "opcode GET_PSV, CHECK_PSV, RGET_PSV or RCHECK_PSV: signatures are those of keys only"
        }
        0x23 => "opcode DUMP (data that goes nowhere): the capabilities of what needs it are off (tls_tx)",
        0x2c => "opcode FLOW_TBL_ACCESS (entries of flow tables by WQEs): the capabilities of that are off",
        0x2d => "opcode ACCESS_ASO: there are no asynchronous objects (general_obj_types)",
        0x2f => "opcode MMO (copies, compression, regular expressions): the capabilities of that are off",
        _ => "unknown opcode",
    }
}

/// Bits of [`UmrCtrl::MKEY_MASK`].
pub mod umr_mask {
    /// Length.
    pub const LEN: u64 = 1 << 0;
    /// Page size.
    pub const PAGE_SIZE: u64 = 1 << 1;
    /// Start address.
    pub const START_ADDR: u64 = 1 << 6;
    /// Protection domain.
    pub const PD: u64 = 1 << 7;
    /// Remote invalidation.
    pub const EN_RINVAL: u64 = 1 << 8;
    /// Expected count of signature errors.
    pub const SIG_ERR: u64 = 1 << 9;
    /// Whether data passes signature domains.
    pub const BSF_EN: u64 = 1 << 12;
    /// Variant byte.
    pub const KEY: u64 = 1 << 13;
    /// Queue pair.
    pub const QPN: u64 = 1 << 14;
    /// Local write.
    pub const LW: u64 = 1 << 18;
    /// Local read.
    pub const LR: u64 = 1 << 17;
    /// Remote read.
    pub const RR: u64 = 1 << 19;
    /// Remote write.
    pub const RW: u64 = 1 << 20;
    /// Remote atomic.
    pub const A: u64 = 1 << 21;
    /// Relaxed ordering of writes.
    pub const RELAXED_ORDERING_WRITE: u64 = 1 << 25;
    /// Free bit.
    pub const FREE: u64 = 1 << 29;
    /// Relaxed ordering of reads.
    pub const RELAXED_ORDERING_READ: u64 = 1 << 47;
}

/// Opcodes of send WQEs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SendOpcode {
    /// No operation.
    Nop = 0x00,
    /// Send with invalidate.
    SendInval = 0x01,
    /// RDMA write.
    RdmaWrite = 0x08,
    /// RDMA write with immediate.
    RdmaWriteImm = 0x09,
    /// Send.
    Send = 0x0a,
    /// Send with immediate.
    SendImm = 0x0b,
    /// RDMA read.
    RdmaRead = 0x10,
    /// Atomic compare and swap.
    AtomicCs = 0x11,
    /// Atomic fetch and add.
    AtomicFa = 0x12,
    /// Masked compare and swap.
    AtomicMaskedCs = 0x14,
    /// Masked fetch and add.
    AtomicMaskedFa = 0x15,
    /// Local invalidate.
    LocalInval = 0x1b,
    /// New value of a protection signature value.
    SetPsv = 0x20,
    /// User-mode memory registration.
    Umr = 0x25,
    /// Change of the list of a queue with tag matching ([`crate::xrq`]).
    TagMatching = 0x28,
}

impl SendOpcode {
    /// Every opcode.
    pub const ALL: [Self; 15] = [
        Self::Nop,
        Self::SendInval,
        Self::RdmaWrite,
        Self::RdmaWriteImm,
        Self::Send,
        Self::SendImm,
        Self::RdmaRead,
        Self::AtomicCs,
        Self::AtomicFa,
        Self::AtomicMaskedCs,
        Self::AtomicMaskedFa,
        Self::LocalInval,
        Self::SetPsv,
        Self::Umr,
        Self::TagMatching,
    ];

    /// Whether it sends nothing.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Nop | Self::LocalInval | Self::SetPsv | Self::Umr | Self::TagMatching)
    }

    /// Whether it is an atomic, masked or not.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicCs | Self::AtomicFa) || self.is_masked()
    }

    /// Whether it is a masked atomic.
    pub const fn is_masked(self) -> bool {
        matches!(self, Self::AtomicMaskedCs | Self::AtomicMaskedFa)
    }

    /// The opcode with that number, if this adapter has it.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0x00 => Self::Nop,
            0x01 => Self::SendInval,
            0x08 => Self::RdmaWrite,
            0x09 => Self::RdmaWriteImm,
            0x0a => Self::Send,
            0x0b => Self::SendImm,
            0x10 => Self::RdmaRead,
            0x11 => Self::AtomicCs,
            0x12 => Self::AtomicFa,
            0x14 => Self::AtomicMaskedCs,
            0x15 => Self::AtomicMaskedFa,
            0x1b => Self::LocalInval,
            0x20 => Self::SetPsv,
            0x25 => Self::Umr,
            0x28 => Self::TagMatching,
            _ => return None,
        })
    }
}

/// [`Ctrl::OPMOD`] of a masked atomic on `2^log_size` bytes.
pub const fn extended_atomic(log_size: u8) -> u32 {
    8 | log_size.saturating_sub(2) as u32
}

/// Opcodes of WQEs in Ethernet send queues (mlx5 driver, field use).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EthOpcode {
    /// No operation.
    Nop = 0x00,
    /// One frame.
    Send = 0x0a,
    /// Large send: a frame for each MSS of the data. With [`Ctrl::OPMOD`] 1: frames of equal length.
    Lso = 0x0e,
    /// User-mode memory registration.
    Umr = 0x25,
    /// A frame for each data segment.
    EnhancedMpsw = 0x29,
}

impl EthOpcode {
    /// The opcode with that number, if an Ethernet send queue has it.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0x00 => Self::Nop,
            0x0a => Self::Send,
            0x0e => Self::Lso,
            0x25 => Self::Umr,
            0x29 => Self::EnhancedMpsw,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_eth() {
        let mut e = EthSeg::new();
        e.set(EthSeg::CS_FLAGS, cs_flags::L3 | cs_flags::L4).set(EthSeg::MSS, 1448);
        e.set(EthSeg::INLINE_HEADER_SIZE, 18);
        assert_eq!(*e.bytes(), [0, 0, 0, 0, 0xc0, 0, 5, 0xa8, 0, 0, 0, 0, 0, 18, 0, 0]);
        let mut e = EthSeg::new();
        e.set(EthSeg::INSERT_VLAN, 1).set(EthSeg::INSERT_SVLAN, 1).set(EthSeg::VLAN_TCI, 0x2064);
        assert_eq!(e.bytes()[12..], [0x80, 1, 0x20, 0x64]);
    }

    #[test]
    fn golden_ctrl() {
        let mut c = Ctrl::new();
        c.set(Ctrl::WQE_INDEX, 0x1234).set(Ctrl::OPCODE, SendOpcode::Send as u32).set(Ctrl::QPN, 0x102);
        c.set(Ctrl::DS, 2).set(Ctrl::CE, CE_ALWAYS).set(Ctrl::SE, 1).set(Ctrl::FM, 4);
        assert_eq!(*c.bytes(), [0, 0x12, 0x34, 0x0a, 0, 1, 2, 2, 0, 0, 0, 0x8a, 0, 0, 0, 0]);
    }

    #[test]
    fn golden_datagram() {
        let mut d = Datagram::new();
        d.set(Datagram::EXT, 1).set(Datagram::DQPN, 1).set(Datagram::RLID, 2).set(Datagram::SL, 3);
        d.set(Datagram::TCLASS, 9).set(Datagram::HOP_LIMIT, 0xff).set(Datagram::GRH, 1);
        assert_eq!(d.bytes()[8..16], [0x80, 0, 0, 1, 3, 0, 0, 2]);
        assert_eq!(d.bytes()[0x1a..0x20], [9, 0xff, 0x40, 0, 0, 0]);
    }

    #[test]
    fn golden_umr() {
        let mut u = UmrCtrl::new();
        u.set(UmrCtrl::INLINE, 1).set(UmrCtrl::CHECK_NOT_FREE, 1).set(UmrCtrl::XLT_OCTOWORDS, 4);
        u.set(UmrCtrl::MKEY_MASK, umr_mask::FREE);
        assert_eq!(u.bytes()[..8], [0xa0, 0, 0, 0, 0, 4, 0, 0]);
        assert_eq!(u.bytes()[12..16], [0x20, 0, 0, 0]);
    }
}
