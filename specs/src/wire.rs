//! InfiniBand packet headers.
//!
//! Source: IBTA 7.7 (LRH), 8.3 (GRH), 9.2 to 9.3 (BTH and the extended transport headers),
//! 7.8 (CRCs are computed elsewhere; here are only their sizes).

use crate::layout::layout;

/// Bytes of the invariant CRC.
pub const ICRC_SIZE: usize = 4;
/// Bytes of the variant CRC.
pub const VCRC_SIZE: usize = 2;
/// [`Lrh::LNH`]: IBA local, BTH follows.
pub const LNH_BTH: u32 = 2;
/// [`Lrh::LNH`]: IBA global, GRH follows.
pub const LNH_GRH: u32 = 3;
/// GRH next header: IBA transport.
pub const GRH_NXT_IBA: u32 = 0x1b;

layout! {
    /// Local route header, 8 bytes.
    pub struct Lrh[8] {
        /// Virtual lane.
        VL: 0x0 [31:28];
        /// Link version: 0.
        LVER: 0x0 [27:24];
        /// Service level.
        SL: 0x0 [23:20];
        /// Link next header.
        LNH: 0x0 [17:16];
        /// Destination LID.
        DLID: 0x0 [15:0];
        /// Packet length in 4-byte words, from LRH up to but not with the VCRC.
        PKT_LEN: 0x4 [26:16];
        /// Source LID.
        SLID: 0x4 [15:0];
    }

    /// Global route header, 40 bytes.
    pub struct Grh[40] {
        /// IP version: 6.
        IP_VER: 0x0 [31:28];
        /// Traffic class.
        TCLASS: 0x0 [27:20];
        /// Flow label.
        FLOW_LABEL: 0x0 [19:0];
        /// Bytes after the GRH up to but not with the VCRC.
        PAY_LEN: 0x4 [31:16];
        /// Next header: [`GRH_NXT_IBA`].
        NXT_HDR: 0x4 [15:8];
        /// Hop limit.
        HOP_LMT: 0x4 [7:0];
        /// Source GID, first half.
        SGID_H: 0x8 u64;
        /// Source GID, second half.
        SGID_L: 0x10 u64;
        /// Destination GID, first half.
        DGID_H: 0x18 u64;
        /// Destination GID, second half.
        DGID_L: 0x20 u64;
    }

    /// Base transport header, 12 bytes.
    pub struct Bth[12] {
        /// [`Transport`] in bits 7..5, [`Operation`] in bits 4..0.
        OPCODE: 0x0 [31:24];
        /// Solicited event.
        SE: 0x0 [23:23];
        /// Migration state.
        M: 0x0 [22:22];
        /// Bytes that pad the payload to 4.
        PAD_CNT: 0x0 [21:20];
        /// Transport version: 0.
        TVER: 0x0 [19:16];
        /// Partition key.
        P_KEY: 0x0 [15:0];
        /// Backward congestion notification: of a CNP (IBTA A17.9.3).
        BECN: 0x4 [30:30];
        /// Destination queue pair.
        DEST_QP: 0x4 [23:0];
        /// Acknowledge request.
        ACK_REQ: 0x8 [31:31];
        /// Packet sequence number.
        PSN: 0x8 [23:0];
    }

    /// Datagram extended transport header, 8 bytes.
    pub struct Deth[8] {
        /// Q_Key.
        Q_KEY: 0x0 [31:0];
        /// Source queue pair.
        SRC_QP: 0x4 [23:0];
    }

    /// RDMA extended transport header, 16 bytes.
    pub struct Reth[16] {
        /// Virtual address.
        VA: 0x0 u64;
        /// Remote key.
        R_KEY: 0x8 [31:0];
        /// Length of the DMA in bytes.
        DMA_LEN: 0xc [31:0];
    }

    /// Atomic extended transport header, 28 bytes.
    pub struct AtomicEth[28] {
        /// Virtual address.
        VA: 0x0 u64;
        /// Remote key.
        R_KEY: 0x8 [31:0];
        /// Value to swap in or to add.
        SWAP_ADD: 0xc u64;
        /// Value to compare with.
        COMPARE: 0x14 u64;
    }

    /// Behind the [`AtomicEth`] of a masked atomic, 20 bytes. The vendor does not publish how these travel: opcodes and
    /// header are ours.
    pub struct MasksEth[20] {
        /// Compare and swap: bits that are swapped.
        SWAP: 0x0 u64;
        /// Compare and swap: bits that are compared. The last bits of the fields of a fetch and add are in
        /// [`AtomicEth::COMPARE`].
        COMPARE: 0x8 u64;
        /// log2 of the operand's bytes.
        LOG_SIZE: 0x10 [7:0];
    }

    /// ACK extended transport header, 4 bytes.
    pub struct Aeth[4] {
        /// Syndrome: see [`aeth`].
        SYNDROME: 0x0 [31:24];
        /// Message sequence number.
        MSN: 0x0 [23:0];
    }

    /// Atomic ACK extended transport header, 8 bytes.
    pub struct AtomicAckEth[8] {
        /// The value before the operation.
        ORIGINAL: 0x0 u64;
    }

    /// Immediate data extended transport header, 4 bytes.
    pub struct ImmDt[4] {
        /// The immediate data.
        DATA: 0x0 [31:0];
    }

    /// Invalidate extended transport header, 4 bytes.
    pub struct Ieth[4] {
        /// The key to invalidate.
        R_KEY: 0x0 [31:0];
    }

    /// Dynamic connection extended transport header, 16 bytes, behind the BTH of every request. The vendor does
    /// not publish the dynamic connection protocol: these bytes are ours.
    pub struct DcEth[16] {
        /// The target's access key.
        ACCESS_KEY: 0x0 u64;
        /// Number of the connection: later ones of an initiator have higher ones, modulo 2^32.
        SESSION: 0x8 [31:0];
        /// The initiator.
        SRC_QP: 0xc [23:0];
    }

    /// XRC extended transport header, 4 bytes.
    pub struct XrcEth[4] {
        /// The shared receive queue.
        XRC_SRQ: 0x0 [23:0];
    }
}

/// Syndromes of the AETH (IBTA 9.7.5.1.1 table 43).
pub mod aeth {
    /// ACK in bits 7..5; bits 4..0 carry credits.
    pub const ACK: u32 = 0x00;
    /// Credit code that turns end-to-end flow control off.
    pub const CREDITS_INVALID: u32 = 0x1f;
    /// RNR NAK in bits 7..5; bits 4..0 carry the timer code.
    pub const RNR_NAK: u32 = 0x20;
    /// NAK in bits 7..5; bits 4..0 carry the code.
    pub const NAK: u32 = 0x60;
    /// Bits that distinguish ACK, RNR NAK and NAK. What is none of them is reserved.
    pub const KIND_MASK: u32 = 0xe0;
    /// The code or credits.
    pub const VALUE_MASK: u32 = 0x1f;
    /// NAK code: PSN sequence error.
    pub const PSN_SEQUENCE_ERROR: u32 = 0;
    /// NAK code: invalid request.
    pub const INVALID_REQUEST: u32 = 1;
    /// NAK code: remote access error.
    pub const REMOTE_ACCESS_ERROR: u32 = 2;
    /// NAK code: remote operational error.
    pub const REMOTE_OPERATIONAL_ERROR: u32 = 3;
    /// NAK code: invalid RD request.
    pub const INVALID_RD_REQUEST: u32 = 4;
}

/// Transport in bits 7..5 of the BTH opcode (IBTA 9.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification of RoCE v2: one opcode, [`Operation::SendMiddle`] (IBTA A17.9.3).
    Cnp = 4,
    /// Extended reliable connection.
    Xrc = 5,
    /// Dynamic connections. IBTA leaves 6 and 7 to manufacturers; which one the vendor's adapters use, and what
    /// their packets look like, is not public. The protocol is [`Rc`](Self::Rc)'s, with a connection that begins
    /// with [`Operation::Connect`] and a [`DcEth`] in each request.
    Dc = 6,
}

impl Transport {
    /// Whether its requests are answered.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc | Self::Dc)
    }

    /// Takes the transport from a BTH opcode.
    pub const fn from_opcode(opcode: u32) -> Option<Self> {
        Some(match opcode >> 5 {
            0 => Self::Rc,
            1 => Self::Uc,
            3 => Self::Ud,
            4 => Self::Cnp,
            5 => Self::Xrc,
            6 => Self::Dc,
            _ => return None,
        })
    }
}

/// Operation in bits 4..0 of the BTH opcode (IBTA table 38).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Operation {
    /// Send, first packet.
    SendFirst = 0x00,
    /// Send, middle packet.
    SendMiddle = 0x01,
    /// Send, last packet.
    SendLast = 0x02,
    /// Send, last packet with immediate.
    SendLastImm = 0x03,
    /// Send, only packet.
    SendOnly = 0x04,
    /// Send, only packet with immediate.
    SendOnlyImm = 0x05,
    /// RDMA write, first packet.
    WriteFirst = 0x06,
    /// RDMA write, middle packet.
    WriteMiddle = 0x07,
    /// RDMA write, last packet.
    WriteLast = 0x08,
    /// RDMA write, last packet with immediate.
    WriteLastImm = 0x09,
    /// RDMA write, only packet.
    WriteOnly = 0x0a,
    /// RDMA write, only packet with immediate.
    WriteOnlyImm = 0x0b,
    /// RDMA read request.
    ReadRequest = 0x0c,
    /// RDMA read response, first packet.
    ReadResponseFirst = 0x0d,
    /// RDMA read response, middle packet.
    ReadResponseMiddle = 0x0e,
    /// RDMA read response, last packet.
    ReadResponseLast = 0x0f,
    /// RDMA read response, only packet.
    ReadResponseOnly = 0x10,
    /// Acknowledge.
    Acknowledge = 0x11,
    /// Atomic acknowledge.
    AtomicAcknowledge = 0x12,
    /// Compare and swap.
    CompareSwap = 0x13,
    /// Fetch and add.
    FetchAdd = 0x14,
    /// Send, last packet with invalidate.
    SendLastInval = 0x16,
    /// Send, only packet with invalidate.
    SendOnlyInval = 0x17,
    /// Dynamic connections: begins one. Has a PSN and is acknowledged.
    Connect = 0x18,
    /// Dynamic connections: ends one. Not acknowledged.
    Disconnect = 0x19,
    /// Masked compare and swap.
    MaskedCompareSwap = 0x1a,
    /// Masked fetch and add.
    MaskedFetchAdd = 0x1b,
    /// Reserved.
    Reserved15 = 0x15,
    /// Reserved when the adapter was made; a flush of memory by later specifications.
    Reserved1c = 0x1c,
    /// Reserved when the adapter was made; an atomic write by later specifications.
    Reserved1d = 0x1d,
    /// Reserved.
    Reserved1e = 0x1e,
    /// Reserved.
    Reserved1f = 0x1f,
}

impl Operation {
    /// Takes the operation from a BTH opcode.
    pub const fn from_opcode(opcode: u32) -> Self {
        match opcode & 0x1f {
            0x00 => Self::SendFirst,
            0x01 => Self::SendMiddle,
            0x02 => Self::SendLast,
            0x03 => Self::SendLastImm,
            0x04 => Self::SendOnly,
            0x05 => Self::SendOnlyImm,
            0x06 => Self::WriteFirst,
            0x07 => Self::WriteMiddle,
            0x08 => Self::WriteLast,
            0x09 => Self::WriteLastImm,
            0x0a => Self::WriteOnly,
            0x0b => Self::WriteOnlyImm,
            0x0c => Self::ReadRequest,
            0x0d => Self::ReadResponseFirst,
            0x0e => Self::ReadResponseMiddle,
            0x0f => Self::ReadResponseLast,
            0x10 => Self::ReadResponseOnly,
            0x11 => Self::Acknowledge,
            0x12 => Self::AtomicAcknowledge,
            0x13 => Self::CompareSwap,
            0x14 => Self::FetchAdd,
            0x16 => Self::SendLastInval,
            0x17 => Self::SendOnlyInval,
            0x18 => Self::Connect,
            0x19 => Self::Disconnect,
            0x1a => Self::MaskedCompareSwap,
            0x1b => Self::MaskedFetchAdd,
            0x15 => Self::Reserved15,
            0x1c => Self::Reserved1c,
            0x1d => Self::Reserved1d,
            0x1e => Self::Reserved1e,
            _ => Self::Reserved1f,
        }
    }

    /// Whether the opcode is reserved, whatever the transport (IBTA table 38).
    pub const fn is_reserved(self) -> bool {
        matches!(
            self,
            Self::Reserved15 | Self::Reserved1c | Self::Reserved1d | Self::Reserved1e | Self::Reserved1f
        )
    }

    /// Whether a transport has the operation. The others of a transport that answers are reserved: a responder refuses them
    /// as invalid requests (IBTA 9.9.3).
    pub const fn exists_on(self, transport: Transport) -> bool {
        match transport {
            Transport::Rc | Transport::Xrc => {
                !self.is_reserved() && !matches!(self, Self::Connect | Self::Disconnect)
            }
            Transport::Dc => !self.is_reserved(),
            // Sends and writes only.
            Transport::Uc => (self as u8) <= Self::WriteOnlyImm as u8,
            Transport::Ud => matches!(self, Self::SendOnly | Self::SendOnlyImm),
            // 16 bytes of nothing are its payload.
            Transport::Cnp => matches!(self, Self::SendMiddle),
        }
    }

    /// The BTH opcode of this operation on `transport`.
    pub const fn on(self, transport: Transport) -> u32 {
        (transport as u32) << 5 | self as u32
    }

    /// Whether the packet asks for an atomic, masked or not.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd) || self.is_masked()
    }

    /// Whether the answer is what the packet asks for, a read's or an atomic's, and not only that it was received.
    pub const fn is_answered_by_itself(self) -> bool {
        matches!(self, Self::ReadRequest) || self.is_atomic()
    }

    /// Whether the packet asks for a masked atomic.
    pub const fn is_masked(self) -> bool {
        matches!(self, Self::MaskedCompareSwap | Self::MaskedFetchAdd)
    }

    /// Whether the packet is the first, or the only one, of a send or write.
    pub const fn starts_message(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendOnlyInval
                | Self::WriteFirst
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// Whether the packet is an answer to the requester.
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bth() {
        let mut b = Bth::new();
        b.set(Bth::OPCODE, Operation::SendOnly.on(Transport::Ud))
            .set(Bth::P_KEY, 0xffff)
            .set(Bth::DEST_QP, 1);
        b.set(Bth::ACK_REQ, 1).set(Bth::PSN, 0x123456).set(Bth::PAD_CNT, 3).set(Bth::SE, 1);
        assert_eq!(*b.bytes(), [0x64, 0xb0, 0xff, 0xff, 0, 0, 0, 1, 0x80, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn golden_lrh() {
        let mut l = Lrh::new();
        l.set(Lrh::VL, 15).set(Lrh::LNH, LNH_BTH).set(Lrh::DLID, 2).set(Lrh::PKT_LEN, 72).set(Lrh::SLID, 1);
        assert_eq!(*l.bytes(), [0xf0, 2, 0, 2, 0, 72, 0, 1]);
    }

    #[test]
    fn golden_dceth() {
        let mut d = DcEth::new();
        d.set(DcEth::ACCESS_KEY, 0x0102_0304_0506_0708).set(DcEth::SESSION, 9).set(DcEth::SRC_QP, 0x123456);
        assert_eq!(*d.bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0, 0x12, 0x34, 0x56]);
        assert_eq!(Operation::Connect.on(Transport::Dc), 0xd8);
    }

    #[test]
    fn operations_round_trip() {
        for op in 0..32 {
            assert_eq!(Operation::from_opcode(op) as u32, op);
        }
        let reserved = (0..32).filter(|op| Operation::from_opcode(*op).is_reserved());
        assert!(reserved.eq([0x15, 0x1c, 0x1d, 0x1e, 0x1f]));
    }
}
