//! What is in a port's cage, as registers tell it: PMAOS, and pages of PDDR.
//!
//! Source: PRM "PMAOS", "PDDR"; mstflint's `register_access_table.adb` (`pmaos_reg_ext`, `pddr_module_info_ext`, `pddr_link_down_info_page_ext`,
//! `pddr_monitor_opcode_ext`); SFF-8636 for what modules say of themselves.

use crate::layout::layout;

layout! {
    /// PMAOS: the state of a module.
    pub struct Pmaos[0x10] {
        /// Written 1 = the module is reset.
        RST: 0x0 [31:31];
        /// Module.
        MODULE: 0x0 [23:16];
        /// Whether it may be used: 1 = yes, 2 = no, 3 = until it was pulled out or failed.
        ADMIN_STATUS: 0x0 [11:8];
        /// [`crate::eqe::module_status`].
        OPER_STATUS: 0x0 [3:0];
        /// Written 1 = [`Pmaos::ADMIN_STATUS`] counts.
        ASE: 0x4 [31:31];
        /// Written 1 = [`Pmaos::E`] counts.
        EE: 0x4 [30:30];
        /// Why it can't be used: [`crate::eqe::module_error`].
        ERROR_TYPE: 0x4 [12:8];
        /// Whether there are events of it: 1 = always, 2 = once.
        E: 0x4 [1:0];
    }

    /// Page of [`crate::register::Pddr`]: what is in the cage. Texts are ASCII.
    pub struct PddrModule[0xd0] {
        /// Technology (SFF-8636 byte 147).
        CABLE_TECHNOLOGY: 0x0 [31:24];
        /// Further code of what Ethernet calls it (byte 192).
        EXT_ETHERNET_COMPLIANCE_CODE: 0x0 [15:8];
        /// Bits of what Ethernet calls it (byte 131).
        ETHERNET_COMPLIANCE_CODE: 0x0 [7:0];
        /// [`cable_type`].
        CABLE_TYPE: 0x4 [31:28];
        /// Who made it: 0 = somebody, 1 = Mellanox, 2 = one with a known number.
        CABLE_VENDOR: 0x4 [27:24];
        /// Length, m.
        CABLE_LENGTH: 0x4 [23:16];
        /// 0 = QSFP28, 1 = QSFP+.
        CABLE_IDENTIFIER: 0x4 [15:8];
        /// Power: 1 = at most 1.5 W.
        CABLE_POWER_CLASS: 0x4 [7:0];
        /// Name of the maker, 16 characters from here on, spaces behind it.
        VENDOR_NAME: 0x14 [31:0];
        /// Part number, the same.
        VENDOR_PN: 0x24 [31:0];
        /// Revision, zeros before it.
        VENDOR_REV: 0x34 [31:0];
        /// Serial number, the same.
        VENDOR_SN: 0x3c [31:0];
        /// When it was made: year, month, day and lot, two digits each; four of them.
        DATE_CODE_FIRST: 0xb0 [31:0];
        /// The other four.
        DATE_CODE_LAST: 0xb4 [31:0];
        /// Its plug (SFF-8024).
        CONNECTOR_TYPE: 0xb8 [31:24];
        /// Number of the maker (IEEE).
        VENDOR_OUI: 0xb8 [23:0];
    }

    /// Page of [`crate::register::Pddr`]: why the link went down last.
    pub struct PddrDown[0xf4] {
        /// 0 = not known, 1 = somebody wanted it, 2 = nobody did.
        DOWN_INTENT: 0x0 [7:4];
        /// [`down_reason`].
        LOCAL_REASON_OPCODE: 0x4 [7:0];
    }
}

/// [`Pmaos::ADMIN_STATUS`]: the module may be used.
pub const ADMIN_ENABLED: u32 = 1;
/// [`Pmaos::E`]: events are told always.
pub const EVENTS_ALWAYS: u32 = 1;

/// Values of [`PddrModule::CABLE_TYPE`].
pub mod cable_type {
    /// It does not say.
    pub const UNIDENTIFIED: u32 = 0;
    /// Copper without amplifiers.
    pub const PASSIVE_COPPER: u32 = 3;
    /// There is none.
    pub const UNPLUGGED: u32 = 4;
}

/// [`PddrModule::CABLE_VENDOR`]: one with a known number.
pub const KNOWN_OUI: u32 = 2;

/// Values of [`PddrDown::LOCAL_REASON_OPCODE`].
pub mod down_reason {
    /// It did not go down.
    pub const NONE: u32 = 0;
    /// Nobody knows.
    pub const UNKNOWN: u32 = 1;
    /// The port was switched off.
    pub const COMMAND: u32 = 22;
    /// The cable was pulled out.
    pub const UNPLUGGED: u32 = 23;
}

/// Values of [`crate::register::PddrTrouble::STATUS_OPCODE`] about modules.
pub mod module_trouble {
    /// There is none.
    pub const UNPLUGGED: u32 = 1024;
    /// Codes of [`crate::eqe::module_error`] from 1 to 7 begin behind this.
    pub const ERRORS: u32 = 1024;
    /// It takes more power than the cage gives.
    pub const POWER_BUDGET: u32 = 1032;
    /// The slot of PCI Express gives less power than it needs.
    pub const PCIE_POWER: u32 = 1040;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eqe::{module_error, module_status};

    /// Where drivers and tools look.
    #[test]
    fn golden_module() {
        let mut p = Pmaos::new();
        p.set(Pmaos::MODULE, 2).set(Pmaos::ADMIN_STATUS, ADMIN_ENABLED);
        p.set(Pmaos::OPER_STATUS, module_status::ERROR).set(Pmaos::ERROR_TYPE, module_error::BUS_STUCK);
        p.set(Pmaos::E, EVENTS_ALWAYS).set(Pmaos::ASE, 1).set(Pmaos::RST, 1);
        assert_eq!(p.bytes()[..8], [0x80, 2, 1, 3, 0x80, 0, 2, 1]);
        let mut p = PddrModule::new();
        p.set(PddrModule::CABLE_TYPE, cable_type::PASSIVE_COPPER).set(PddrModule::CABLE_LENGTH, 3);
        p.set(PddrModule::CABLE_VENDOR, KNOWN_OUI).set(PddrModule::CABLE_POWER_CLASS, 1);
        p.set(PddrModule::CABLE_TECHNOLOGY, 0xa0).set(PddrModule::VENDOR_OUI, 0x02c9);
        assert_eq!(p.bytes()[..8], [0xa0, 0, 0, 0, 0x32, 3, 0, 1]);
        assert_eq!(p.bytes()[0xb8..0xbc], [0, 0, 2, 0xc9]);
        let mut p = PddrDown::new();
        p.set(PddrDown::DOWN_INTENT, 1).set(PddrDown::LOCAL_REASON_OPCODE, down_reason::UNPLUGGED);
        assert_eq!(p.bytes()[..8], [0, 0, 0, 0x10, 0, 0, 0, 23]);
    }
}
