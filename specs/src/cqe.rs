//! Completion queue entry (CQE).
//!
//! Source: PRM "Completion Queue Entry Format", "Completion with error".

use crate::layout::layout;
use crate::xrq::{ListCqe, TagHeader};

/// Byte offset (within the 64-byte CQE) of the opcode and owner byte, written last.
pub const OP_OWN_BYTE: usize = 0x3f;

layout! {
    /// Completion queue entry, 64 bytes. In a 128-byte CQE this is the second half.
    pub struct Cqe[64] {
        /// Received frame, queues with strides: place of the WQE.
        WQE_ID: 0x0 [15:0];
        /// Merged frames: the last was pushed.
        LRO_TCPPSH: 0x4 [30:30];
        /// Merged frames: the least time to live.
        LRO_MIN_TTL: 0x4 [23:16];
        /// Merged frames: the last window.
        LRO_TCP_WIN: 0x4 [15:0];
        /// Merged frames: the last acknowledgement number.
        LRO_ACK_SEQ_NUM: 0x8 [31:0];
        /// Received frame: what the RSS hash came to.
        RSS_HASH_RESULT: 0xc [31:0];
        /// Received frame: ports or SPI in the hash, [`rss_l4`].
        RSS_HASH_L4: 0x10 [31:30];
        /// Received frame: addresses in the hash, [`rss_l3`].
        RSS_HASH_L3: 0x10 [27:26];
        /// Path bits of the destination LID.
        ML_PATH: 0x10 [22:16];
        /// Received frame: ones-complement sum of the IP datagram, header included; not inverted. Merged frames: that of the data.
        CHECK_SUM: 0x14 [31:16];
        /// Source LID.
        SLID: 0x14 [15:0];
        /// GRH present (non-zero).
        GRH: 0x18 [29:28];
        /// Service level.
        SL: 0x18 [27:24];
        /// Source QP (datagrams).
        RQPN: 0x18 [23:0];
        /// Received frame: the checksum of layer 4 is right.
        L4_OK: 0x1c [26:26];
        /// Received frame: the checksum of the IPv4 header is right, or it is IPv6.
        L3_OK: 0x1c [25:25];
        /// Received frame: layer 2 is right.
        L2_OK: 0x1c [24:24];
        /// Received frame: it is a fragment of an IP datagram.
        IP_FRAGMENT: 0x1c [23:23];
        /// Received frame: [`l4_header_type`].
        L4_HEADER_TYPE: 0x1c [22:20];
        /// Received frame: [`l3_header_type`].
        L3_HEADER_TYPE: 0x1c [19:18];
        /// Received frame: IPv4 options or IPv6 extension headers.
        IP_OPTIONS: 0x1c [17:17];
        /// Received frame: its C-tag was taken out, and is in `VLAN_INFO`.
        VLAN_STRIPPED: 0x1c [16:16];
        /// Received frame: TCI of the tag that was taken out.
        VLAN_INFO: 0x1c [15:0];
        /// Received frame: frames that were made one; 0 or 1 = none.
        LRO_NUM_SEG: 0x20 [31:24];
        /// SRQ number (version 0) or user index (version 1).
        SRQN_USER_INDEX: 0x20 [23:0];
        /// Immediate data, invalidated rkey, or P_Key.
        IMM_INVAL_PKEY: 0x24 [31:0];
        /// What else it is about: 0 nothing, 1 tag matching ([`crate::xrq`]).
        APP: 0x28 [31:24];
        /// Tag matching: what happened ([`crate::xrq::app_op`]).
        APP_OP: 0x28 [23:16];
        /// Tag matching: the entry of the list.
        APP_INFO: 0x28 [15:0];
        /// Bytes received or read.
        BYTE_CNT: 0x2c [31:0];
        /// Queues with strides: 1 = nothing was received, the strides are passed over.
        FILLER: 0x2c [31:31];
        /// Queues with strides: strides that are taken.
        CONSUMED_STRIDES: 0x2c [30:16];
        /// Queues with strides: bytes.
        STRIDE_BYTES: 0x2c [15:0];
        /// Time in cycles of the internal timer.
        TIMESTAMP: 0x30 u64;
        /// Error CQE: vendor syndrome.
        VENDOR_ERR_SYND: 0x34 [15:8];
        /// Error CQE: [`Syndrome`].
        SYNDROME: 0x34 [7:0];
        /// Requester CQE: the WQE's opcode.
        SEND_WQE_OPCODE: 0x38 [31:24];
        /// The queue pair.
        QPN: 0x38 [23:0];
        /// Received frame: tag of the flow table entry that it matched.
        FLOW_TAG: 0x38 [23:0];
        /// Index of the WQE; of queues with strides that of the first stride.
        WQE_COUNTER: 0x3c [31:16];
        /// Signature.
        SIGNATURE: 0x3c [15:8];
        /// [`CqeOpcode`].
        OPCODE: 0x3c [7:4];
        /// [`CqeFormat`].
        FORMAT: 0x3c [3:2];
        /// Solicited event.
        SE: 0x3c [1:1];
        /// Owner bit.
        OWNER: 0x3c [0:0];
    } views {
        /// Tag matching: the header of a message that has used an entry of the list.
        matched, matched_mut: 0x0 TagHeader;
        /// Tag matching: what became of a change of the list.
        list_change, list_change_mut: 0x0 ListCqe;
    }

    /// One completion of a compressed block, 8 bytes (mlx5 driver, field use). Everything else is as in the
    /// block's title, with `WQE_COUNTER` counted on.
    pub struct MiniCqe[8] {
        /// Hash of the packet's headers ([`crate::queue::mini_format::HASH`]).
        RX_HASH: 0x0 [31:0];
        /// Checksum of the packet.
        CHECKSUM: 0x0 [31:16];
        /// Index of the stride ([`crate::queue::mini_format::CHECKSUM_STRIDE`]).
        STRIDE_INDEX: 0x0 [15:0];
        /// Bytes received.
        BYTE_CNT: 0x4 [31:0];
    }
}

/// Values of [`Cqe::RSS_HASH_L3`].
pub mod rss_l3 {
    /// No addresses.
    pub const NONE: u32 = 0;
    /// IPv4.
    pub const IPV4: u32 = 1;
    /// IPv6.
    pub const IPV6: u32 = 2;
}

/// Values of [`Cqe::RSS_HASH_L4`].
pub mod rss_l4 {
    /// Nothing of layer 4.
    pub const NONE: u32 = 0;
    /// Ports of TCP.
    pub const TCP: u32 = 1;
    /// Ports of UDP.
    pub const UDP: u32 = 2;
    /// Security parameter index.
    pub const SPI: u32 = 3;
}

/// Values of [`Cqe::L3_HEADER_TYPE`].
pub mod l3_header_type {
    /// Not IP.
    pub const NONE: u32 = 0;
    /// IPv6.
    pub const IPV6: u32 = 1;
    /// IPv4.
    pub const IPV4: u32 = 2;
}

/// Values of [`Cqe::L4_HEADER_TYPE`].
pub mod l4_header_type {
    /// Neither TCP nor UDP.
    pub const NONE: u32 = 0;
    /// TCP without ACK.
    pub const TCP_NO_ACK: u32 = 1;
    /// UDP.
    pub const UDP: u32 = 2;
    /// TCP with ACK, without data.
    pub const TCP_ACK_NO_DATA: u32 = 3;
    /// TCP with ACK and data.
    pub const TCP_ACK_AND_DATA: u32 = 4;
}

/// Mini CQEs in one entry of the queue.
pub const MINI_CQES: u32 = 8;

/// How an entry is to be read: [`Cqe::FORMAT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CqeFormat {
    /// As laid out in [`Cqe`].
    Plain = 0,
    /// The first 32 bytes are the message's data.
    Data32 = 1,
    /// The 64 bytes before, the first half of a 128-byte entry, are the message's data.
    Data64 = 2,
    /// The title of a compressed block: `BYTE_CNT` completions, whose [`MiniCqe`]s are in the entries 1, 8, 16, 24, ...
    /// after the title, eight in each. As many entries of the queue belong to the block as it has completions.
    Compressed = 3,
}

impl CqeFormat {
    /// The format with that number, if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::Plain,
            1 => Self::Data32,
            2 => Self::Data64,
            3 => Self::Compressed,
            _ => return None,
        })
    }
}

/// Kind of a CQE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CqeOpcode {
    /// Requester: a send WQE completed.
    Req = 0,
    /// Responder: RDMA write with immediate.
    RespWrImm = 1,
    /// Responder: send.
    RespSend = 2,
    /// Responder: send with immediate.
    RespSendImm = 3,
    /// Responder: send with invalidate.
    RespSendInv = 4,
    /// The CQ was resized; following CQEs are in the new buffer.
    Resize = 5,
    /// No message: the list of a queue with tag matching was changed, or an entry of it is used.
    NoPacket = 6,
    /// A signature is wrong ([`crate::bsf::SigErrCqe`]).
    SigErr = 12,
    /// Requester error.
    ReqErr = 13,
    /// Responder error.
    RespErr = 14,
    /// Never written by hardware.
    Invalid = 15,
}

impl CqeOpcode {
    /// The opcode with that number, if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::Req,
            1 => Self::RespWrImm,
            2 => Self::RespSend,
            3 => Self::RespSendImm,
            4 => Self::RespSendInv,
            5 => Self::Resize,
            6 => Self::NoPacket,
            12 => Self::SigErr,
            13 => Self::ReqErr,
            14 => Self::RespErr,
            15 => Self::Invalid,
            _ => return None,
        })
    }
}

/// Syndrome of a completion with error (PRM "Completion with error syndromes").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Syndrome {
    /// Message longer than the buffers or than allowed.
    LocalLength = 0x01,
    /// Malformed or unsupported WQE.
    LocalQpOperation = 0x02,
    /// Key, protection domain, range or rights of local memory.
    LocalProtection = 0x04,
    /// Flushed because the QP is in error.
    WorkRequestFlushed = 0x05,
    /// Memory window bind failed.
    MemoryWindowBind = 0x06,
    /// The response was malformed.
    BadResponse = 0x10,
    /// Responder: local memory can't be accessed.
    LocalAccess = 0x11,
    /// The remote side saw an invalid request.
    RemoteInvalidRequest = 0x12,
    /// The remote side refused access.
    RemoteAccess = 0x13,
    /// The remote side failed.
    RemoteOperation = 0x14,
    /// No answer after all retries.
    TransportRetryExceeded = 0x15,
    /// Receiver not ready after all retries.
    RnrRetryExceeded = 0x16,
    /// The operation was aborted.
    RemoteAborted = 0x22,
}

impl Syndrome {
    /// Every syndrome.
    pub const ALL: [Self; 13] = [
        Self::LocalLength,
        Self::LocalQpOperation,
        Self::LocalProtection,
        Self::WorkRequestFlushed,
        Self::MemoryWindowBind,
        Self::BadResponse,
        Self::LocalAccess,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::TransportRetryExceeded,
        Self::RnrRetryExceeded,
        Self::RemoteAborted,
    ];

    /// The syndrome with that number, if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0x01 => Self::LocalLength,
            0x02 => Self::LocalQpOperation,
            0x04 => Self::LocalProtection,
            0x05 => Self::WorkRequestFlushed,
            0x06 => Self::MemoryWindowBind,
            0x10 => Self::BadResponse,
            0x11 => Self::LocalAccess,
            0x12 => Self::RemoteInvalidRequest,
            0x13 => Self::RemoteAccess,
            0x14 => Self::RemoteOperation,
            0x15 => Self::TransportRetryExceeded,
            0x16 => Self::RnrRetryExceeded,
            0x22 => Self::RemoteAborted,
            _ => return None,
        })
    }

    /// The vendor's syndrome that comes with it most often ([`Cqe::VENDOR_ERR_SYND`]). Adapters have several
    /// for one syndrome; the public manual has none of them (public error reports of such adapters).
    pub const fn vendor(self) -> u8 {
        match self {
            Self::LocalQpOperation => 0x68,
            Self::LocalProtection => 0x51,
            Self::WorkRequestFlushed => 0xf9,
            Self::MemoryWindowBind => 0x78,
            Self::RemoteInvalidRequest => 0x8a,
            Self::RemoteAccess => 0x88,
            Self::RemoteOperation => 0x89,
            Self::TransportRetryExceeded => 0x81,
            Self::RnrRetryExceeded => 0x87,
            Self::LocalLength | Self::BadResponse | Self::LocalAccess | Self::RemoteAborted => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let mut c = Cqe::new();
        c.set(Cqe::SEND_WQE_OPCODE, 0x0a)
            .set(Cqe::QPN, 0x102)
            .set(Cqe::WQE_COUNTER, 5)
            .set(Cqe::BYTE_CNT, 64);
        c.set(Cqe::OPCODE, CqeOpcode::RespSend as u32).set(Cqe::SE, 1).set(Cqe::OWNER, 1);
        assert_eq!(c.bytes()[0x2c..0x30], [0, 0, 0, 64]);
        assert_eq!(c.bytes()[0x38..], [0x0a, 0, 1, 2, 0, 5, 0, 0x23]);
        c.set(Cqe::FORMAT, CqeFormat::Compressed as u32);
        assert_eq!(c.bytes()[0x3f], 0x2f);
        let mut m = MiniCqe::new();
        m.set(MiniCqe::CHECKSUM, 0x1234).set(MiniCqe::STRIDE_INDEX, 7).set(MiniCqe::BYTE_CNT, 0x100);
        assert_eq!(*m.bytes(), [0x12, 0x34, 0, 7, 0, 0, 1, 0]);
        let mut e = Cqe::new();
        e.set(Cqe::SYNDROME, 5).set(Cqe::VENDOR_ERR_SYND, 0xf9);
        assert_eq!(e.bytes()[0x36..0x38], [0xf9, 5]);
    }
}
