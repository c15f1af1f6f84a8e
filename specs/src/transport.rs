//! Transport interfaces of senders (TIS) and receivers (TIR) and tables of receive queues (RQT): contexts and commands.
//!
//! Source: PRM "TIS Context", "TIR Context", "RQT Context" and the commands of these; bits of later adapters from the mlx5
//! driver's use.

use crate::layout::layout;

/// Where the numbers of CREATE_RQT's and MODIFY_RQT's queues begin: a big-endian word each, bits 23..0.
pub const RQT_LIST: usize = 0x110;

layout! {
    /// Transport interface send (TIS) context, 160 bytes.
    pub struct Tisc[0xa0] {
        /// 1 = of a bond, only the port below may be used.
        STRICT_LAG_TX_PORT_AFFINITY: 0x0 [31:31];
        /// 1 = records of TLS are encrypted.
        TLS_EN: 0x0 [30:30];
        /// Port of a bond that packets leave by.
        LAG_TX_PORT_AFFINITY: 0x0 [27:24];
        /// Priority; software writes a user priority times two.
        PRIO: 0x0 [19:16];
        /// Transport domain.
        TRANSPORT_DOMAIN: 0x24 [23:0];
        /// IP over InfiniBand: the queue pair that packets are sent by.
        UNDERLAY_QPN: 0x28 [23:0];
        /// Protection domain (TLS).
        PD: 0x2c [23:0];
    }

    /// CREATE_TIS input.
    pub struct CreateTisIn[0xc0] {
        /// Modifier.
        OP_MOD: 0x4 [15:0];
    } views {
        /// The context.
        tisc, tisc_mut: 0x20 Tisc;
    }

    /// MODIFY_TIS input.
    pub struct ModifyTisIn[0xc0] {
        /// The TIS.
        TISN: 0x8 [23:0];
        /// Values that change: bits of [`modify_tis`].
        BITMASK: 0x10 u64;
    } views {
        /// New values.
        tisc, tisc_mut: 0x20 Tisc;
    }

    /// QUERY_TIS output.
    pub struct QueryTisOut[0xb0] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The context.
        tisc, tisc_mut: 0x10 Tisc;
    }

    /// Receive queue table (RQT) context without its list, 240 bytes.
    pub struct Rqtc[0xf0] {
        /// What the list names: 0 = receive queues.
        LIST_Q_TYPE: 0x14 [26:24];
        /// The largest size that the table may be given.
        RQT_MAX_SIZE: 0x14 [15:0];
        /// 1 = entries name adapters as well.
        RQ_VHCA_ID_FORMAT: 0x18 [31:31];
        /// Entries of the list.
        RQT_ACTUAL_SIZE: 0x18 [15:0];
    }

    /// CREATE_RQT input; the list follows at [`RQT_LIST`].
    pub struct CreateRqtIn[0x110] {
        /// Modifier.
        OP_MOD: 0x4 [15:0];
    } views {
        /// The context.
        rqtc, rqtc_mut: 0x20 Rqtc;
    }

    /// MODIFY_RQT input; the list follows at [`RQT_LIST`].
    pub struct ModifyRqtIn[0x110] {
        /// The table.
        RQTN: 0x8 [23:0];
        /// Values that change: bit 0 = the list and its size.
        BITMASK: 0x10 u64;
    } views {
        /// New values.
        rqtc, rqtc_mut: 0x20 Rqtc;
    }

    /// QUERY_RQT output; the list follows at [`RQT_LIST`].
    pub struct QueryRqtOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The context.
        rqtc, rqtc_mut: 0x20 Rqtc;
    }

    /// Transport interface receive (TIR) context, 240 bytes.
    pub struct Tirc[0xf0] {
        /// How the queue is chosen: 0 = [`Tirc::INLINE_RQN`], 1 = by hash from [`Tirc::INDIRECT_TABLE`].
        DISP_TYPE: 0x4 [31:28];
        /// 1 = records of TLS are decrypted.
        TLS_EN: 0x4 [27:27];
        /// Longest time that packets are gathered for, in microseconds.
        LRO_TIMEOUT_PERIOD_USECS: 0x10 [27:12];
        /// Packets that are merged: bit 0 TCP over IPv4, bit 1 TCP over IPv6, bit 2 headers apart from data.
        PACKET_MERGE_MASK: 0x10 [11:8];
        /// Largest IP payload of merged packets, in units of 256 bytes.
        LRO_MAX_IP_PAYLOAD_SIZE: 0x10 [7:0];
        /// The receive queue.
        INLINE_RQN: 0x1c [23:0];
        /// 1 = the hash is the same for both directions of a flow.
        RX_HASH_SYMMETRIC: 0x20 [31:31];
        /// 1 = packets of tunnels are looked into.
        TUNNELED_OFFLOAD_EN: 0x20 [29:29];
        /// The table of receive queues.
        INDIRECT_TABLE: 0x20 [23:0];
        /// Hash: 0 none, 1 exclusive or of the bytes, inverted, 2 Toeplitz.
        RX_HASH_FN: 0x24 [31:28];
        /// Packets of senders of the same transport domain that are *taken*: bit 0 to one station, bit 1 to groups.
        SELF_LB_BLOCK: 0x24 [25:24];
        /// Transport domain.
        TRANSPORT_DOMAIN: 0x24 [23:0];
        /// Toeplitz key: the first eight of 40 bytes.
        RX_HASH_KEY_0: 0x28 u64;
        /// The next eight.
        RX_HASH_KEY_1: 0x30 u64;
        /// The next eight.
        RX_HASH_KEY_2: 0x38 u64;
        /// The next eight.
        RX_HASH_KEY_3: 0x40 u64;
        /// The last eight.
        RX_HASH_KEY_4: 0x48 u64;
        /// Fields of the outer headers that go into the hash: bit 31 IPv6, bit 30 UDP, bits 4..0 SPI, destination port,
        /// source port, destination address, source address.
        RX_HASH_FIELD_OUTER: 0x50 [31:0];
        /// The same of the inner headers.
        RX_HASH_FIELD_INNER: 0x54 [31:0];
    }

    /// CREATE_TIR output.
    pub struct CreateTirOut[0x10] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
        /// Where entries of flow tables that drivers write send packets to come to the TIR: bits 63..40.
        ICM_ADDRESS_63_40: 0x0 [23:0];
        /// Syndrome of the command.
        SYNDROME: 0x4 [31:0];
        /// Bits 39..32 of that address.
        ICM_ADDRESS_39_32: 0x8 [31:24];
        /// The TIR.
        TIRN: 0x8 [23:0];
        /// Bits 31..0 of that address.
        ICM_ADDRESS_31_0: 0xc [31:0];
    }

    /// CREATE_TIR input.
    pub struct CreateTirIn[0x110] {
        /// Modifier.
        OP_MOD: 0x4 [15:0];
    } views {
        /// The context.
        tirc, tirc_mut: 0x20 Tirc;
    }

    /// MODIFY_TIR input.
    pub struct ModifyTirIn[0x110] {
        /// The TIR.
        TIRN: 0x8 [23:0];
        /// Values that change: bits of [`modify_tir`].
        BITMASK: 0x10 u64;
    } views {
        /// New values.
        tirc, tirc_mut: 0x20 Tirc;
    }

    /// QUERY_TIR output.
    pub struct QueryTirOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The context.
        tirc, tirc_mut: 0x20 Tirc;
    }
}

/// Where the Toeplitz key begins in [`Tirc`].
pub const TIR_HASH_KEY: usize = Tirc::RX_HASH_KEY_0.offset();

/// Bits of [`ModifyTisIn::BITMASK`].
pub mod modify_tis {
    /// [`super::Tisc::PRIO`].
    pub const PRIO: u64 = 1 << 0;
    /// [`super::Tisc::STRICT_LAG_TX_PORT_AFFINITY`].
    pub const STRICT_LAG_TX_PORT_AFFINITY: u64 = 1 << 1;
    /// [`super::Tisc::LAG_TX_PORT_AFFINITY`].
    pub const LAG_TX_PORT_AFFINITY: u64 = 1 << 2;
}

/// Bits of [`ModifyTirIn::BITMASK`].
pub mod modify_tir {
    /// The fields about packets that are merged.
    pub const PACKET_MERGE: u64 = 1 << 0;
    /// [`super::Tirc::INDIRECT_TABLE`].
    pub const INDIRECT_TABLE: u64 = 1 << 1;
    /// The fields about the hash.
    pub const HASH: u64 = 1 << 2;
    /// [`super::Tirc::TUNNELED_OFFLOAD_EN`].
    pub const TUNNELED_OFFLOAD_EN: u64 = 1 << 3;
    /// [`super::Tirc::SELF_LB_BLOCK`].
    pub const SELF_LB: u64 = 1 << 4;
}

/// [`ModifyRqtIn::BITMASK`]: the list and its size.
pub const MODIFY_RQT_LIST: u64 = 1 << 0;

/// [`Tirc::DISP_TYPE`]: one queue.
pub const TIR_DIRECT: u32 = 0;
/// [`Tirc::DISP_TYPE`]: a table of queues.
pub const TIR_INDIRECT: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_tis() {
        let mut c = CreateTisIn::new();
        c.tisc_mut().set(Tisc::PRIO, 6).set(Tisc::TRANSPORT_DOMAIN, 0x123).set(Tisc::PD, 5);
        let b = c.bytes();
        assert_eq!(b[0x21], 6);
        assert_eq!(b[0x44..0x50], [0, 0, 1, 0x23, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(QueryTisOut::SIZE, 0xb0);
    }

    #[test]
    fn golden_rqt() {
        let mut c = CreateRqtIn::new();
        c.rqtc_mut().set(Rqtc::RQT_MAX_SIZE, 256).set(Rqtc::RQT_ACTUAL_SIZE, 1);
        assert_eq!(c.bytes()[0x34..0x3c], [0, 0, 1, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn golden_tir() {
        let mut c = CreateTirIn::new();
        let t = c.tirc_mut();
        t.set(Tirc::DISP_TYPE, TIR_INDIRECT).set(Tirc::INDIRECT_TABLE, 0x42).set(Tirc::RX_HASH_SYMMETRIC, 1);
        t.set(Tirc::RX_HASH_FN, 2).set(Tirc::SELF_LB_BLOCK, 1).set(Tirc::TRANSPORT_DOMAIN, 7);
        t.set(Tirc::RX_HASH_KEY_0, 0x0102_0304_0506_0708).set(Tirc::RX_HASH_FIELD_OUTER, 0x8000_000f);
        t.set(Tirc::INLINE_RQN, 0x99).set(Tirc::RX_HASH_FIELD_INNER, 3);
        let b = c.bytes();
        assert_eq!((b[0x24], b[0x3f], b[0x6f]), (0x10, 0x99, 0));
        assert_eq!(b[0x40..0x50], [0x80, 0, 0, 0x42, 0x21, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(b[0x70..0x78], [0x80, 0, 0, 0xf, 0, 0, 0, 3]);
    }
}
