//! The capabilities in configuration space, as a table of registers made from what a personality says.
//!
//! Real cards also have ARI and SR-IOV, which are left out here.

use hca_model::personality::{Pci, PciCapabilities};

use super::config::ConfigSpace;
use super::vpd;
use super::{MSIX_BAR, MSIX_PBA_OFFSET, MSIX_TABLE_OFFSET};

const CAP_ID_PM: u8 = 0x01;
const CAP_ID_PRODUCT: u8 = 0x03;
const CAP_ID_VENDOR: u8 = 0x09;
const CAP_ID_PCIE: u8 = 0x10;
const CAP_ID_MSIX: u8 = 0x11;
const EXT_CAP_ID_AER: u32 = 0x0001;
const EXT_CAP_ID_SECONDARY: u32 = 0x0019;

/// MSI-X enable in message control.
pub const MSIX_ENABLE: u16 = 1 << 15;
/// Function mask in message control.
pub const MSIX_FUNCTION_MASK: u16 = 1 << 14;

/// Device control: a function level reset starts when this bit is written 1; it reads as 0.
const DEVCTL_FLR: u16 = 1 << 15;
const PMCSR_STATE: u16 = 0x3;

/// Where registers are that have an effect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Head of the first capability.
    pub(super) first: u8,
    /// Head of the vendor's capability ([`hca_model::vsc`]).
    pub(super) vendor: usize,
    product: usize,
    pub(super) device_control: usize,
    link_status: usize,
    /// Head of advanced error reporting.
    pub(super) errors: usize,
    power_control: usize,
    msix_control: usize,
}

impl Places {
    pub(super) fn of(pci: &Pci) -> Places {
        let PciCapabilities { power_management, express, product, msix, vendor, error_reporting, .. } =
            pci.capabilities;
        Places {
            first: express,
            vendor: usize::from(vendor),
            product: usize::from(product),
            device_control: usize::from(express) + 0x08,
            link_status: usize::from(express) + 0x12,
            errors: usize::from(error_reporting),
            power_control: usize::from(power_management) + 0x04,
            msix_control: usize::from(msix) + 0x02,
        }
    }
}

/// One 32-bit register: its offset, value after reset, writable bits, bits cleared by writing 1.
struct Reg(usize, u32, u32, u32);

/// 32-bit first word of a capability: id, next, and its 16-bit register.
const fn head(id: u8, next: u8, register: u16) -> u32 {
    id as u32 | (next as u32) << 8 | (register as u32) << 16
}

/// 32-bit head of an extended capability: id, version 1, next.
const fn ext_head(id: u32, next: u16) -> u32 {
    id | 1 << 16 | (next as u32) << 20
}

/// Capability version 2, endpoint.
const PCIE_CAPS: u16 = 2;
/// 512-byte payloads, 8-bit tags, L0s and L1 latency below 64 ns and 1 us, role-based error
/// reporting, function level reset.
const DEVCAP: u32 = 2 | 1 << 5 | 1 << 15 | 1 << 28;
/// Place of the slot power limit, in watts, in the same register.
const DEVCAP_SLOT_POWER: u32 = 18;
/// Error reporting enables, relaxed ordering, payload size, extended tags, no snoop, read size.
const DEVCTL_WRITABLE: u32 = 0x79ff | DEVCTL_FLR as u32;
/// After reset: relaxed ordering and no snoop enabled, 512-byte reads, 128-byte payloads.
const DEVCTL_RESET: u32 = 1 << 4 | 1 << 11 | 2 << 12;
/// Error detected bits of device status.
const DEVSTA_ERRORS: u32 = 0x000f_0000;
/// No ASPM, clock power management off, ASPM optionality compliance; beside speed and width.
const LNKCAP: u32 = 1 << 22;
/// ASPM control, read completion boundary, common clock, extended sync.
const LNKCTL_WRITABLE: u32 = 0x00cb;
/// Slot clock; beside current speed and width.
const LNKSTA: u32 = 1 << 12;
/// Completion timeout ranges A, B, C and D, timeout disable.
const DEVCAP2: u32 = 0xf | 1 << 4;
/// Timeout value and disable.
const DEVCTL2_WRITABLE: u32 = 0x1f;
/// Equalization complete with all three phases, in link status 2.
const LNKSTA2: u32 = 0x1e << 16;
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

/// The registers of a function, by offset.
fn registers(pci: &Pci) -> Vec<Reg> {
    let at = &pci.capabilities;
    let [pm, express, product] = [at.power_management, at.express, at.product].map(usize::from);
    let [msix, vendor] = [at.msix, at.vendor].map(usize::from);
    let [aer, secondary] = [at.error_reporting, at.secondary_express].map(usize::from);
    let speed = pci.link.speed as u32;
    let link = speed | u32::from(pci.link.lanes) << 4;
    let msix_control = u32::from(MSIX_ENABLE | MSIX_FUNCTION_MASK) << 16;
    vec![
        Reg(pm, head(CAP_ID_PM, 0, PM_CAPS), 0, 0),
        Reg(pm + 0x04, PMCSR_NO_SOFT_RESET, PMCSR_STATE.into(), 0),
        Reg(express, head(CAP_ID_PCIE, at.product, PCIE_CAPS), 0, 0),
        Reg(express + 0x04, DEVCAP | u32::from(pci.slot_power_watts) << DEVCAP_SLOT_POWER, 0, 0),
        Reg(express + 0x08, DEVCTL_RESET, DEVCTL_WRITABLE, DEVSTA_ERRORS),
        Reg(express + 0x0c, LNKCAP | link, 0, 0),
        Reg(express + 0x10, (LNKSTA | link) << 16, LNKCTL_WRITABLE, 0),
        Reg(express + 0x24, DEVCAP2, 0, 0),
        Reg(express + 0x28, 0, DEVCTL2_WRITABLE, 0),
        // One bit for each speed up to the fastest.
        Reg(express + 0x2c, ((1 << speed) - 1) << 1, 0, 0),
        Reg(express + 0x30, LNKSTA2 | speed, LNKCTL2_WRITABLE, 0),
        Reg(product, head(CAP_ID_PRODUCT, at.msix, 0), 0xffff_0000, 0),
        Reg(product + vpd::DATA, 0, u32::MAX, 0),
        Reg(msix, head(CAP_ID_MSIX, at.vendor, pci.msix_vectors.saturating_sub(1)), msix_control, 0),
        Reg(msix + 0x04, MSIX_TABLE_OFFSET as u32 | MSIX_BAR, 0, 0),
        Reg(msix + 0x08, MSIX_PBA_OFFSET as u32 | MSIX_BAR, 0, 0),
        Reg(vendor, head(CAP_ID_VENDOR, at.power_management, hca_model::vsc::LEN as u16), 0, 0),
        Reg(aer, ext_head(EXT_CAP_ID_AER, at.secondary_express), 0, 0),
        Reg(aer + 0x04, 0, 0, AER_UNCORRECTABLE),
        Reg(aer + 0x08, 0, AER_UNCORRECTABLE, 0),
        Reg(aer + 0x0c, AER_SEVERITY, AER_UNCORRECTABLE, 0),
        Reg(aer + 0x10, 0, 0, AER_CORRECTABLE),
        Reg(aer + 0x14, AER_CORRECTABLE_MASK, AER_CORRECTABLE, 0),
        // ECRC generation and checking: capable, off.
        Reg(aer + 0x18, 1 << 5 | 1 << 7, 1 << 6 | 1 << 8, 0),
        Reg(secondary, ext_head(EXT_CAP_ID_SECONDARY, 0), 0, 0),
        Reg(secondary + 0x04, 0, 0, 0),
        Reg(secondary + 0x08, 0, 0, 0),
    ]
}

/// Writes the capabilities into a fresh space.
pub(super) fn fill(space: &mut ConfigSpace, pci: &Pci) {
    for Reg(at, value, writable, clears) in registers(pci) {
        space.put(at, &value.to_le_bytes());
        space.allow(at, &writable.to_le_bytes());
        space.clear_by_1(at, &clears.to_le_bytes());
    }
}

/// Software wrote so many bytes at `offset`: if it asked for product data by that, that is there.
pub(super) fn read_product(space: &mut ConfigSpace, offset: usize, len: usize) {
    let at = space.places.product;
    // The flag is in the last byte of the address.
    let flag = at + vpd::ADDRESS + 1;
    if offset > flag || offset.saturating_add(len) <= flag {
        return;
    }
    let address = space.get_u16(at + vpd::ADDRESS);
    if address & vpd::FLAG == 0 {
        let word = vpd::word(space.product(), address);
        space.put(at + vpd::DATA, &word);
    }
    space.set_u16(at + vpd::ADDRESS, address ^ vpd::FLAG);
}

/// True once after software has asked for a function level reset.
pub(super) fn take_function_reset(space: &mut ConfigSpace) -> bool {
    let at = space.places.device_control;
    let control = space.get_u16(at);
    space.set_u16(at, control & !DEVCTL_FLR);
    control & DEVCTL_FLR != 0
}

/// The link has trained to so many lanes and that speed.
pub(super) fn set_link(space: &mut ConfigSpace, lanes: u8, speed: u8) {
    /// Current speed and negotiated width (PCIe 7.8.8).
    const TRAINED: u16 = 0x3ff;
    let at = space.places.link_status;
    let trained = u16::from(speed & 0xf) | u16::from(lanes & 0x3f) << 4;
    space.set_u16(at, space.get_u16(at) & !TRAINED | trained);
}

/// Power state: 0 is D0, 3 is D3hot.
pub(super) fn power_state(space: &ConfigSpace) -> u16 {
    space.get_u16(space.places.power_control) & PMCSR_STATE
}

/// Message control of MSI-X.
pub(super) fn msix_control(space: &ConfigSpace) -> u16 {
    space.get_u16(space.places.msix_control)
}

#[cfg(test)]
mod tests {
    use hca_model::PortKind;
    use hca_model::personality::Personality;

    use super::*;

    const DEVCTL: usize = 0x68;
    const PMCSR: usize = 0x44;
    const MSIX_CONTROL: usize = 0x9e;

    fn space() -> ConfigSpace {
        ConfigSpace::new(&Personality::default_kind(), PortKind::InfiniBand, "1")
    }

    /// Walks both lists as software does.
    #[test]
    fn lists_can_be_walked() {
        let space = space();
        let mut found = Vec::new();
        let mut at = usize::from(space.get_u16(0x34) & 0xff);
        while at != 0 {
            let word = space.get_u32(at);
            found.push((word & 0xff, at));
            at = (word >> 8 & 0xff) as usize;
        }
        assert_eq!(found, [(0x10, 0x60), (0x03, 0x48), (0x11, 0x9c), (0x09, 0xc0), (0x01, 0x40)]);
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
        assert_eq!(space.get_u32(0x60), 0x0002_4810);
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
        assert_eq!(space.get_u16(MSIX_CONTROL) & 0x7ff, 63);
    }

    /// Of every kind: the capabilities don't touch, and what they say is what the parts of the space have room for.
    #[test]
    fn every_personality_has_room() {
        for name in Personality::names() {
            let kind = Personality::named(name).unwrap();
            let at = &kind.pci.capabilities;
            let mut ranges = [
                (usize::from(at.power_management), 0x08),
                (usize::from(at.express), 0x3c),
                (usize::from(at.msix), 0x0c),
                (usize::from(at.vendor), hca_model::vsc::LEN),
                (usize::from(at.product), 0x08),
                (0x100, 0),
                (usize::from(at.error_reporting), 0x2c),
                (usize::from(at.secondary_express), 0x0c + 2 * usize::from(kind.pci.link.lanes)),
                (super::super::CONFIG_SIZE, 0),
            ];
            ranges.sort_unstable();
            assert!(ranges[0].0 >= 0x40, "{name}: behind the header");
            assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "{name}: {ranges:x?}");
            assert_eq!(at.error_reporting, 0x100, "{name}: software starts there");
            let table = 16 * u64::from(kind.pci.msix_vectors);
            let pba = u64::from(kind.pci.msix_vectors).div_ceil(64) * 8;
            assert!(MSIX_TABLE_OFFSET + table <= MSIX_PBA_OFFSET, "{name}");
            assert!(MSIX_PBA_OFFSET + pba <= super::super::BAR2_SIZE, "{name}");
            assert!(kind.pci.bar0_size.is_power_of_two() && kind.pci.bar0_size >= 4096, "{name}");
        }
    }

    #[test]
    fn registers_are_listed_once_and_aligned() {
        let registers = registers(&Personality::default_kind().pci);
        for (i, a) in registers.iter().enumerate() {
            assert_eq!(a.0 % 4, 0);
            assert_eq!(a.2 & a.3, 0, "{:#x}", a.0);
            assert!(registers.iter().skip(i + 1).all(|b| a.0 != b.0));
        }
    }

    /// Another function's registers, where that one has them.
    #[test]
    fn a_space_is_that_of_its_personality() {
        let mut kind = (*Personality::default_kind()).clone();
        kind.pci.device = 0x1fff;
        kind.pci.msix_vectors = 8;
        kind.pci.bar0_size = 1 << 20;
        kind.pci.link.lanes = 8;
        kind.pci.link.speed = hca_model::personality::PciSpeed::Gen2;
        kind.pci.capabilities = PciCapabilities {
            express: 0x50,
            product: 0x48,
            msix: 0xa0,
            vendor: 0xe0,
            power_management: 0xd0,
            ..kind.pci.capabilities
        };
        let mut space = ConfigSpace::new(&std::sync::Arc::new(kind), PortKind::InfiniBand, "");
        assert_eq!((space.get_u32(0), space.get_u16(0x34)), (0x1fff_15b3, 0x50));
        assert_eq!((space.get_u32(0x50), space.get_u32(0x5c) & 0x3ff), (0x0002_4810, 0x082));
        assert_eq!(space.get_u16(0x48), 0xa003, "product data come between");
        assert_eq!((space.get_u32(0xa0), space.get_u32(0xd0)), (0x0007_e011, 0x0003_0001));
        space.write(super::super::config::reg::BAR0, &[0xff; 4]);
        assert_eq!(space.get_u32(super::super::config::reg::BAR0), 0xfff0_000c);
        space.write(0x04, &[6, 0]);
        space.write(0xd4, &[3, 0]);
        assert!(!space.may_master(), "D3 where this one has it");
        assert!(space.write(0x58, &DEVCTL_FLR.to_le_bytes()).reset);
        assert_eq!(space.get_u32(0), 0x1fff_15b3, "a reset keeps the kind");
    }
}
