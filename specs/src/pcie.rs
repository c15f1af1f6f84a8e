//! MPCNT: what the firmware counts of the PCI Express link, in groups.
//!
//! Source: `mlx5_ifc.h` of Linux (`mpcnt_reg`, performance counters) and of FreeBSD (all three groups; `mlx5_en/en.h` says what each counts);
//! mstflint's `register_access_table.adb` (`mpcnt_reg_ext`).

use crate::layout::layout;

layout! {
    /// MPCNT: counters of the PCI Express link. One group of them at a time: [`mpcnt_group`].
    pub struct Mpcnt[0x100] {
        /// Place of the link among several: not looked at when a host asks.
        DEPTH: 0x0 [29:24];
        /// The same.
        PCIE_INDEX: 0x0 [23:16];
        /// The same.
        NODE: 0x0 [15:8];
        /// The group.
        GRP: 0x0 [5:0];
        /// Read or written 1 = the group counts from 0 again.
        CLR: 0x4 [31:31];
    }

    /// Counters of MPCNT, group 0: what went wrong, by transitions of the link to Recovery.
    pub struct PciePerformance[0xf8] {
        /// For errors of framing and of checksums.
        RX_ERRORS: 0x8 [31:0];
        /// Those that the other end began.
        TX_ERRORS: 0xc [31:0];
        /// By its ordered sets EIEOS.
        L0_TO_RECOVERY_EIEOS: 0x10 [31:0];
        /// By its training sequences.
        L0_TO_RECOVERY_TS: 0x14 [31:0];
        /// For errors of framing.
        L0_TO_RECOVERY_FRAMING: 0x18 [31:0];
        /// Because the data link layer asked for it.
        L0_TO_RECOVERY_RETRAIN: 0x1c [31:0];
        /// For checksums of packets of the data link layer (DLLP).
        CRC_ERROR_DLLP: 0x20 [31:0];
        /// For checksums of packets of the transaction layer (TLP).
        CRC_ERROR_TLP: 0x24 [31:0];
    }

    /// Counters of MPCNT, group 1: errors of lanes, a word for each of 16.
    pub struct PcieLanes[0xf8] {
        /// Those of the first lane.
        ERROR_COUNTER_LANE0: 0x8 [31:0];
    }

    /// Counters of MPCNT, group 2: messages to the root complex; times and states of the start are zero.
    pub struct PcieStates[0xf8] {
        /// ERR_COR.
        CORRECTABLE_ERR_MSG_SENT: 0x50 [31:0];
        /// ERR_NONFATAL.
        NON_FATAL_ERR_MSG_SENT: 0x54 [31:0];
        /// ERR_FATAL.
        FATAL_ERR_MSG_SENT: 0x58 [31:0];
    }
}

/// Values of [`Mpcnt::GRP`].
pub mod mpcnt_group {
    /// [`super::PciePerformance`].
    pub const PERFORMANCE: u32 = 0;
    /// [`super::PcieLanes`].
    pub const LANES: u32 = 1;
    /// [`super::PcieStates`].
    pub const STATES: u32 = 2;
}

/// Where the counters of [`Mpcnt`] are.
pub const MPCNT_COUNTERS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Where drivers and tools look.
    #[test]
    fn golden_counters() {
        let mut m = Mpcnt::new();
        m.set(Mpcnt::DEPTH, 3).set(Mpcnt::PCIE_INDEX, 2).set(Mpcnt::NODE, 1);
        m.set(Mpcnt::GRP, mpcnt_group::STATES).set(Mpcnt::CLR, 1);
        assert_eq!(m.bytes()[..8], [3, 2, 1, 2, 0x80, 0, 0, 0]);
        let mut p = PciePerformance::new();
        p.set(PciePerformance::RX_ERRORS, 1).set(PciePerformance::TX_ERRORS, 2);
        p.set(PciePerformance::L0_TO_RECOVERY_FRAMING, 3).set(PciePerformance::L0_TO_RECOVERY_RETRAIN, 4);
        p.set(PciePerformance::CRC_ERROR_DLLP, 5).set(PciePerformance::CRC_ERROR_TLP, 6);
        let words: [u8; 8] = core::array::from_fn(|i| p.bytes()[8 + 4 * i + 3]);
        assert_eq!(words, [1, 2, 0, 0, 3, 4, 5, 6]);
        let mut s = PcieStates::new();
        s.set(PcieStates::CORRECTABLE_ERR_MSG_SENT, 1).set(PcieStates::NON_FATAL_ERR_MSG_SENT, 2);
        s.set(PcieStates::FATAL_ERR_MSG_SENT, 3);
        assert_eq!(s.bytes()[0x50..0x5c], [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]);
    }
}
