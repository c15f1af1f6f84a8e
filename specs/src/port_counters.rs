//! PPCNT: what a port counts, in groups.
//!
//! Source: PRM "PPCNT"; mstflint's `register_access_table.adb` (`ppcnt_reg_ext` and its groups); `mlx5_ifc.h` of Linux and FreeBSD;
//! RFC 3635 for the group of that name; IBTA 16.1.3.5 and 16.1.4.11 for InfiniBand's.

use crate::layout::{Field64, layout};

layout! {
    /// PPCNT: counters of a port, a group of them at a time: [`ppcnt_group`]. They begin at [`PPCNT_COUNTERS`].
    pub struct Ppcnt[0x100] {
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// Group: [`ppcnt_group`].
        GRP: 0x0 [5:0];
        /// Read or written 1 = the counters start again from 0.
        CLR: 0x4 [31:31];
        /// Priority or traffic class.
        PRIO_TC: 0x4 [4:0];
    }

    /// Counters of PPCNT, group 3: RFC 3635, of links that are like Ethernet.
    pub struct EtherLikeCounters[0xf8] {
        /// Frames that came with a wrong frame check sequence.
        DOT3STATS_FCS_ERRORS: 0x8 u64;
        /// Frames that came and were too long.
        DOT3STATS_FRAME_TOO_LONGS: 0x50 u64;
        /// PAUSE frames that came.
        DOT3IN_PAUSE_FRAMES: 0x70 u64;
        /// PAUSE frames that were sent.
        DOT3OUT_PAUSE_FRAMES: 0x78 u64;
    }

    /// Counters of PPCNT, group 5. Those of frames that were sent, by size with frame check sequence.
    pub struct EthernetExtendedCounters[0xf8] {
        /// Frames that the port marked for congestion.
        ECN_MARKED: 0x8 u64;
        /// 64 bytes.
        TX_STATS_PKTS64OCTETS: 0x50 u64;
        /// 65 bytes and more.
        TX_STATS_PKTS65TO127OCTETS: 0x58 u64;
        /// 128 bytes and more.
        TX_STATS_PKTS128TO255OCTETS: 0x60 u64;
        /// 256 bytes and more.
        TX_STATS_PKTS256TO511OCTETS: 0x68 u64;
        /// 512 bytes and more.
        TX_STATS_PKTS512TO1023OCTETS: 0x70 u64;
        /// 1024 bytes and more.
        TX_STATS_PKTS1024TO1518OCTETS: 0x78 u64;
        /// 1519 bytes and more.
        TX_STATS_PKTS1519TO2047OCTETS: 0x80 u64;
        /// 2048 bytes and more.
        TX_STATS_PKTS2048TO4095OCTETS: 0x88 u64;
        /// 4096 bytes and more.
        TX_STATS_PKTS4096TO8191OCTETS: 0x90 u64;
        /// 8192 bytes and more.
        TX_STATS_PKTS8192TO10239OCTETS: 0x98 u64;
    }

    /// Counters of PPCNT, group 0x12: the physical layer. Errors of lanes are zero.
    pub struct PhysicalCounters[0xf8] {
        /// Symbols that are none.
        SYMBOL_ERRORS: 0x8 u64;
        /// How often the link went down.
        LINK_DOWN_EVENTS: 0xc0 [31:0];
        /// How often it recovered.
        SUCCESSFUL_RECOVERY_EVENTS: 0xc4 [31:0];
    }

    /// Counters of PPCNT, group 0x16: statistics of the physical layer. A rate of errors is a coefficient, and by which power of ten it is divided.
    pub struct PhysicalStatistics[0xf8] {
        /// Bits that came.
        PHY_RECEIVED_BITS: 0x8 u64;
        /// Errors that were not corrected.
        PHY_SYMBOL_ERRORS: 0x10 u64;
        /// Rate of errors before correction: power.
        RAW_BER_MAGNITUDE: 0x60 [15:8];
        /// Coefficient.
        RAW_BER_COEF: 0x60 [3:0];
        /// Rate of errors after correction: power.
        EFFECTIVE_BER_MAGNITUDE: 0x64 [15:8];
        /// Coefficient.
        EFFECTIVE_BER_COEF: 0x64 [3:0];
        /// Rate of symbols that are none: power.
        SYMBOL_BER_MAGNITUDE: 0x68 [15:8];
        /// Coefficient.
        SYMBOL_BER_COEF: 0x68 [3:0];
    }

    /// Counters of PPCNT, group 0x21: those of PortCounters and PortCountersExtended, 64 bits each. Data is counted in words of 4 bytes.
    pub struct LongPortCounters[0xf8] {
        /// SymbolErrorCounter.
        SYMBOL_ERROR_COUNTER: 0x0 u64;
        /// LinkErrorRecoveryCounter.
        LINK_ERROR_RECOVERY_COUNTER: 0x8 u64;
        /// LinkDownedCounter.
        LINK_DOWNED_COUNTER: 0x10 u64;
        /// PortRcvErrors.
        PORT_RCV_ERRORS: 0x18 u64;
        /// PortRcvRemotePhysicalErrors.
        PORT_RCV_REMOTE_PHYSICAL_ERRORS: 0x20 u64;
        /// PortRcvSwitchRelayErrors.
        PORT_RCV_SWITCH_RELAY_ERRORS: 0x28 u64;
        /// PortXmitDiscards.
        PORT_XMIT_DISCARDS: 0x30 u64;
        /// PortXmitConstraintErrors.
        PORT_XMIT_CONSTRAINT_ERRORS: 0x38 u64;
        /// PortRcvConstraintErrors.
        PORT_RCV_CONSTRAINT_ERRORS: 0x40 u64;
        /// VL15Dropped.
        VL_15_DROPPED: 0x58 u64;
        /// PortXmitData.
        PORT_XMIT_DATA: 0x60 u64;
        /// PortRcvData.
        PORT_RCV_DATA: 0x68 u64;
        /// PortXmitPkts.
        PORT_XMIT_PKTS: 0x70 u64;
        /// PortRcvPkts.
        PORT_RCV_PKTS: 0x78 u64;
        /// PortXmitWait.
        PORT_XMIT_WAIT: 0x80 u64;
        /// PortUnicastXmitPkts.
        PORT_UNICAST_XMIT_PKTS: 0x90 u64;
        /// PortMulticastXmitPkts.
        PORT_MULTICAST_XMIT_PKTS: 0x98 u64;
        /// PortUnicastRcvPkts.
        PORT_UNICAST_RCV_PKTS: 0xa0 u64;
        /// PortMulticastRcvPkts.
        PORT_MULTICAST_RCV_PKTS: 0xa8 u64;
    }
}

impl EthernetExtendedCounters {
    /// The histogram of sizes, in order.
    pub const TX_SIZES: [Field64<Self>; 10] = [
        Self::TX_STATS_PKTS64OCTETS,
        Self::TX_STATS_PKTS65TO127OCTETS,
        Self::TX_STATS_PKTS128TO255OCTETS,
        Self::TX_STATS_PKTS256TO511OCTETS,
        Self::TX_STATS_PKTS512TO1023OCTETS,
        Self::TX_STATS_PKTS1024TO1518OCTETS,
        Self::TX_STATS_PKTS1519TO2047OCTETS,
        Self::TX_STATS_PKTS2048TO4095OCTETS,
        Self::TX_STATS_PKTS4096TO8191OCTETS,
        Self::TX_STATS_PKTS8192TO10239OCTETS,
    ];
}

/// Where a group's counters begin in [`Ppcnt`].
pub const PPCNT_COUNTERS: usize = 0x8;
/// Bytes of a group.
pub const PPCNT_GROUP_BYTES: usize = 0xf8;

/// Groups of counters of [`Ppcnt`].
pub mod ppcnt_group {
    /// IEEE 802.3 clause 30.
    pub const IEEE_802_3: u32 = 0x0;
    /// RFC 2863, the table of interfaces.
    pub const RFC_2863: u32 = 0x1;
    /// RFC 2819, statistics with a histogram of sizes.
    pub const RFC_2819: u32 = 0x2;
    /// RFC 3635: [`super::EtherLikeCounters`].
    pub const RFC_3635: u32 = 0x3;
    /// [`super::EthernetExtendedCounters`].
    pub const ETHERNET_EXTENDED: u32 = 0x5;
    /// Of a priority.
    pub const PER_PRIORITY: u32 = 0x10;
    /// [`super::PhysicalCounters`].
    pub const PHYSICAL: u32 = 0x12;
    /// [`super::PhysicalStatistics`].
    pub const PHYSICAL_STATISTICS: u32 = 0x16;
    /// PortCounters of InfiniBand ([`crate::mad::PortCounters`] behind what selects).
    pub const INFINIBAND: u32 = 0x20;
    /// [`super::LongPortCounters`].
    pub const INFINIBAND_LONG: u32 = 0x21;
    /// Retransmission by the physical layer, of later links.
    pub const PHYSICAL_RETRANSMISSION: u32 = 0x22;
    /// All of them, to be cleared.
    pub const ALL: u32 = 0x3f;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where drivers and tools look.
    #[test]
    fn golden_counters() {
        let mut p = Ppcnt::new();
        p.set(Ppcnt::GRP, ppcnt_group::PER_PRIORITY).set(Ppcnt::CLR, 1).set(Ppcnt::PRIO_TC, 7);
        assert_eq!(p.bytes()[..8], [0, 0, 0, 0x10, 0x80, 0, 0, 7]);
        let mut c = EtherLikeCounters::new();
        c.set(EtherLikeCounters::DOT3STATS_FCS_ERRORS, 1).set(EtherLikeCounters::DOT3IN_PAUSE_FRAMES, 2);
        assert_eq!((c.bytes()[0xf], c.bytes()[0x77]), (1, 2));
        let mut c = EthernetExtendedCounters::new();
        for (field, n) in EthernetExtendedCounters::TX_SIZES.into_iter().zip(1..) {
            c.set(field, n);
        }
        let words: [u8; 10] = core::array::from_fn(|i| c.bytes()[0x50 + 8 * i + 7]);
        assert_eq!(words, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let mut c = PhysicalCounters::new();
        c.set(PhysicalCounters::LINK_DOWN_EVENTS, 3).set(PhysicalCounters::SYMBOL_ERRORS, 4);
        assert_eq!((c.bytes()[0xc3], c.bytes()[0xf]), (3, 4));
        let mut c = PhysicalStatistics::new();
        c.set(PhysicalStatistics::EFFECTIVE_BER_COEF, 15)
            .set(PhysicalStatistics::EFFECTIVE_BER_MAGNITUDE, 255);
        c.set(PhysicalStatistics::PHY_RECEIVED_BITS, 9);
        assert_eq!((c.bytes()[0xf], &c.bytes()[0x64..0x68]), (9, &[0, 0, 255, 15][..]));
        let mut c = LongPortCounters::new();
        c.set(LongPortCounters::PORT_XMIT_WAIT, 5).set(LongPortCounters::PORT_MULTICAST_RCV_PKTS, 6);
        assert_eq!((c.bytes()[0x87], c.bytes()[0xaf], c.bytes().len()), (5, 6, PPCNT_GROUP_BYTES));
    }
}
