//! Capabilities of a ConnectX-4, as a table of registers.
//!
//! Offsets of the lists are those of real cards (field use); real ones also have VPD, ARI and SR-IOV,
//! which are left out here.

use super::config::ConfigSpace;
use super::{MSIX_BAR, MSIX_PBA_OFFSET, MSIX_TABLE_OFFSET, MSIX_VECTORS};

/// Offset of the first capability.
pub const FIRST: u8 = PCIE as u8;

/// PCI Express capability (PCIe 7.8).
const PCIE: usize = 0x60;
const PCIE_LEN: usize = 0x3c;
/// MSI-X capability (PCI 3.0, 6.8.2).
const MSIX: usize = 0x9c;
const MSIX_LEN: usize = 0x0c;
/// Vendor specific capability ([`super::vsc`]).
pub(super) const VSC: usize = 0xc0;
/// Power management capability (PCI PM 1.2, 3.2).
const PM: usize = 0x40;
const PM_LEN: usize = 0x08;

/// Advanced error reporting (PCIe 7.10).
const AER: usize = 0x100;
const AER_LEN: usize = 0x2c;
/// Secondary PCI Express capability (PCIe 7.27), which 8 GT/s makes mandatory.
const SECONDARY: usize = 0x150;
const SECONDARY_LEN: usize = 0x0c + 2 * LINK_WIDTH as usize;

const CAP_ID_PM: u8 = 0x01;
const CAP_ID_VENDOR: u8 = 0x09;
const CAP_ID_PCIE: u8 = 0x10;
const CAP_ID_MSIX: u8 = 0x11;
const EXT_CAP_ID_AER: u32 = 0x0001;
const EXT_CAP_ID_SECONDARY: u32 = 0x0019;

/// Lanes of the card's edge connector.
const LINK_WIDTH: u32 = 16;
/// 8 GT/s in the speed encoding of the link registers.
const LINK_SPEED: u32 = 3;

/// MSI-X enable in message control.
pub const MSIX_ENABLE: u16 = 1 << 15;
/// Function mask in message control.
pub const MSIX_FUNCTION_MASK: u16 = 1 << 14;

/// Device control: a function level reset starts when this bit is written 1; it reads as 0.
const DEVCTL: usize = PCIE + 0x08;
const DEVCTL_FLR: u16 = 1 << 15;
const PMCSR: usize = PM + 0x04;
const PMCSR_STATE: u16 = 0x3;
const MSIX_CONTROL: usize = MSIX + 0x02;

const _: () = {
    // The ranges of the lists don't touch.
    assert!(PM + PM_LEN <= PCIE);
    assert!(PCIE + PCIE_LEN <= MSIX);
    assert!(MSIX + MSIX_LEN <= VSC);
    assert!(VSC + super::vsc::LEN <= 0x100);
    assert!(AER + AER_LEN <= SECONDARY);
    assert!(SECONDARY + SECONDARY_LEN <= super::CONFIG_SIZE);
};

/// One 32-bit register: its offset, value after reset, writable bits, bits cleared by writing 1.
struct Reg(usize, u32, u32, u32);

/// 32-bit first word of a capability: id, next, and its 16-bit register.
const fn head(id: u8, next: usize, register: u16) -> u32 {
    id as u32 | (next as u32) << 8 | (register as u32) << 16
}

/// 32-bit head of an extended capability: id, version 1, next.
const fn ext_head(id: u32, next: usize) -> u32 {
    id | 1 << 16 | (next as u32) << 20
}

/// Capability version 2, endpoint.
const PCIE_CAPS: u16 = 2;
/// 512-byte payloads, 8-bit tags, L0s and L1 latency below 64 ns and 1 us, role-based error
/// reporting, 25 W slot power limit, function level reset.
const DEVCAP: u32 = 2 | 1 << 5 | 1 << 15 | 25 << 18 | 1 << 28;
/// Error reporting enables, relaxed ordering, payload size, extended tags, no snoop, read size.
const DEVCTL_WRITABLE: u32 = 0x79ff | DEVCTL_FLR as u32;
/// After reset: relaxed ordering and no snoop enabled, 512-byte reads, 128-byte payloads.
const DEVCTL_RESET: u32 = 1 << 4 | 1 << 11 | 2 << 12;
/// Error detected bits of device status.
const DEVSTA_ERRORS: u32 = 0x000f_0000;
/// Speed, width, no ASPM, clock power management off, ASPM optionality compliance.
const LNKCAP: u32 = LINK_SPEED | LINK_WIDTH << 4 | 1 << 22;
/// ASPM control, read completion boundary, common clock, extended sync.
const LNKCTL_WRITABLE: u32 = 0x00cb;
/// Current speed and width, slot clock.
const LNKSTA: u32 = (LINK_SPEED | LINK_WIDTH << 4 | 1 << 12) << 16;
/// Completion timeout ranges A, B, C and D, timeout disable.
const DEVCAP2: u32 = 0xf | 1 << 4;
/// Timeout value and disable.
const DEVCTL2_WRITABLE: u32 = 0x1f;
/// Speeds 2.5, 5 and 8 GT/s.
const LNKCAP2: u32 = 0x7 << 1;
/// Target speed after reset; equalization complete with all three phases in link status 2.
const LNKCTL2: u32 = LINK_SPEED | 0x1e << 16;
/// Target speed, hardware autonomous speed disable.
const LNKCTL2_WRITABLE: u32 = 0x002f;

/// Version 3, no PME support, no D1 or D2.
const PM_CAPS: u16 = 3;
/// No soft reset: going to D3hot and back keeps the state.
const PMCSR_NO_SOFT_RESET: u32 = 1 << 3;

/// Errors that are reported: data link protocol, surprise down excluded, poisoned TLP, flow
/// control, completion timeout, completer abort, unexpected completion, overflow, malformed TLP,
/// ECRC, unsupported request.
const AER_UNCORRECTABLE: u32 = 0x001f_f010;
/// Severity after reset (PCIe 7.10.4): data link, flow control, overflow, malformed are fatal.
const AER_SEVERITY: u32 = 0x0006_2010;
/// Receiver, bad TLP, bad DLLP, rollover, replay timeout, advisory non-fatal.
const AER_CORRECTABLE: u32 = 0x0000_31c1;
/// Advisory non-fatal errors are masked after reset (PCIe 7.10.6).
const AER_CORRECTABLE_MASK: u32 = 1 << 13;

const REGISTERS: &[Reg] = &[
    Reg(PM, head(CAP_ID_PM, 0, PM_CAPS), 0, 0),
    Reg(PMCSR, PMCSR_NO_SOFT_RESET, PMCSR_STATE as u32, 0),
    Reg(PCIE, head(CAP_ID_PCIE, MSIX, PCIE_CAPS), 0, 0),
    Reg(PCIE + 0x04, DEVCAP, 0, 0),
    Reg(DEVCTL, DEVCTL_RESET, DEVCTL_WRITABLE, DEVSTA_ERRORS),
    Reg(PCIE + 0x0c, LNKCAP, 0, 0),
    Reg(PCIE + 0x10, LNKSTA, LNKCTL_WRITABLE, 0),
    Reg(PCIE + 0x24, DEVCAP2, 0, 0),
    Reg(PCIE + 0x28, 0, DEVCTL2_WRITABLE, 0),
    Reg(PCIE + 0x2c, LNKCAP2, 0, 0),
    Reg(PCIE + 0x30, LNKCTL2, LNKCTL2_WRITABLE, 0),
    Reg(MSIX, head(CAP_ID_MSIX, VSC, MSIX_VECTORS - 1), ((MSIX_ENABLE | MSIX_FUNCTION_MASK) as u32) << 16, 0),
    Reg(VSC, head(CAP_ID_VENDOR, PM, super::vsc::LEN as u16), 0, 0),
    Reg(MSIX + 0x04, MSIX_TABLE_OFFSET as u32 | MSIX_BAR, 0, 0),
    Reg(MSIX + 0x08, MSIX_PBA_OFFSET as u32 | MSIX_BAR, 0, 0),
    Reg(AER, ext_head(EXT_CAP_ID_AER, SECONDARY), 0, 0),
    Reg(AER + 0x04, 0, 0, AER_UNCORRECTABLE),
    Reg(AER + 0x08, 0, AER_UNCORRECTABLE, 0),
    Reg(AER + 0x0c, AER_SEVERITY, AER_UNCORRECTABLE, 0),
    Reg(AER + 0x10, 0, 0, AER_CORRECTABLE),
    Reg(AER + 0x14, AER_CORRECTABLE_MASK, AER_CORRECTABLE, 0),
    // ECRC generation and checking: capable, off.
    Reg(AER + 0x18, 1 << 5 | 1 << 7, 1 << 6 | 1 << 8, 0),
    Reg(SECONDARY, ext_head(EXT_CAP_ID_SECONDARY, 0), 0, 0),
    Reg(SECONDARY + 0x04, 0, 0, 0),
    Reg(SECONDARY + 0x08, 0, 0, 0),
];

/// Writes the capabilities into a fresh space.
pub(super) fn fill(space: &mut ConfigSpace) {
    for &Reg(at, value, writable, clears) in REGISTERS {
        space.put(at, &value.to_le_bytes());
        space.allow(at, &writable.to_le_bytes());
        space.clear_by_1(at, &clears.to_le_bytes());
    }
}

/// True once after software has asked for a function level reset.
pub(super) fn take_function_reset(space: &mut ConfigSpace) -> bool {
    let control = space.get_u16(DEVCTL);
    space.set_u16(DEVCTL, control & !DEVCTL_FLR);
    control & DEVCTL_FLR != 0
}

/// Power state: 0 is D0, 3 is D3hot.
pub(super) fn power_state(space: &ConfigSpace) -> u16 {
    space.get_u16(PMCSR) & PMCSR_STATE
}

/// Message control of MSI-X.
pub(super) fn msix_control(space: &ConfigSpace) -> u16 {
    space.get_u16(MSIX_CONTROL)
}

#[cfg(test)]
mod tests {
    use super::super::config::PortType;
    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(PortType::Ib)
    }

    /// Walks both lists as software does.
    #[test]
    fn lists_can_be_walked() {
        let space = space();
        let mut found = Vec::new();
        let mut at = usize::from(FIRST);
        while at != 0 {
            let word = space.get_u32(at);
            found.push((word & 0xff, at));
            at = (word >> 8 & 0xff) as usize;
        }
        assert_eq!(found, [(0x10, 0x60), (0x11, 0x9c), (0x09, 0xc0), (0x01, 0x40)]);
        found.clear();
        at = 0x100;
        while at != 0 {
            let word = space.get_u32(at);
            assert_eq!(word >> 16 & 0xf, 1);
            found.push((word & 0xffff, at));
            at = (word >> 20) as usize;
        }
        assert_eq!(found, [(0x0001, 0x100), (0x0019, 0x150)]);
    }

    #[test]
    fn golden_capability_words() {
        let space = space();
        assert_eq!(space.get_u32(0x40), 0x0003_0001);
        assert_eq!(space.get_u32(0x60), 0x0002_9c10);
        assert_eq!(space.get_u32(0x9c), 0x003f_c011);
        assert_eq!(space.get_u32(0xc0), 0x0018_4009);
        assert_eq!(space.get_u32(0xa0), 0x0000_0002);
        assert_eq!(space.get_u32(0xa4), 0x0000_1002);
        // LnkCap: 8 GT/s x16; LnkSta the same.
        assert_eq!(space.get_u32(0x6c) & 0x3ff, 0x103);
        assert_eq!(space.get_u16(0x72) & 0x3ff, 0x103);
        // DevCap: function level reset.
        assert_ne!(space.get_u32(0x64) & 1 << 28, 0);
    }

    #[test]
    fn function_reset_is_seen_once_and_resets_the_space() {
        let mut space = space();
        space.write(0x04, &0x0006u16.to_le_bytes());
        let effects = space.write(DEVCTL, &(DEVCTL_FLR | 0x10).to_le_bytes());
        assert!(effects.reset);
        assert_eq!(space.command(), 0);
        assert_eq!(u32::from(space.get_u16(DEVCTL)), DEVCTL_RESET);
        assert!(!space.write(0x04, &[6, 0]).reset);
    }

    #[test]
    fn d3_stops_bus_mastering() {
        let mut space = space();
        space.write(0x04, &[6, 0]);
        assert!(space.may_master());
        space.write(PMCSR, &[3, 0]);
        assert!(!space.may_master());
        space.write(PMCSR, &[0, 0]);
        assert!(space.may_master());
    }

    #[test]
    fn msix_control_bits() {
        let mut space = space();
        assert!(!space.msix_enabled());
        space.write(MSIX_CONTROL, &[0xff, 0xff]);
        assert!(space.msix_enabled() && space.msix_function_masked());
        assert_eq!(space.get_u16(MSIX_CONTROL) & 0x7ff, MSIX_VECTORS - 1);
    }

    #[test]
    fn registers_are_listed_once_and_aligned() {
        for (i, a) in REGISTERS.iter().enumerate() {
            assert_eq!(a.0 % 4, 0);
            assert_eq!(a.2 & a.3, 0, "{:#x}", a.0);
            assert!(REGISTERS.iter().skip(i + 1).all(|b| a.0 != b.0));
        }
    }
}
