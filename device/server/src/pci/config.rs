//! Configuration space as a register file.
//!
//! Each byte has a value, a mask of bits software may write, and a mask of bits that writing a 1
//! clears. What a write sets in motion is returned as [`ConfigEffects`].

use std::sync::Arc;

use hca_model::PortKind;
use hca_model::fault::PcieEvent;
use hca_model::personality::Personality;
use hca_model::vsc;

use super::aer::Message;
use super::caps::{self, Places};
use super::report::{self, Report};
use super::vpd;
use super::{BAR2_SIZE, CONFIG_SIZE, aer};

/// Registers of the common header (PCIe 7.5.1).
pub mod reg {
    /// Vendor id, 16 bits.
    pub const VENDOR: usize = 0x00;
    /// Device id, 16 bits.
    pub const DEVICE: usize = 0x02;
    /// Command, 16 bits.
    pub const COMMAND: usize = 0x04;
    /// Status, 16 bits.
    pub const STATUS: usize = 0x06;
    /// Revision id, 8 bits.
    pub const REVISION: usize = 0x08;
    /// Programming interface, 8 bits; sub class and class follow.
    pub const CLASS: usize = 0x09;
    /// Cache line size, 8 bits.
    pub const CACHE_LINE: usize = 0x0c;
    /// First base address register, 32 bits.
    pub const BAR0: usize = 0x10;
    /// Third base address register.
    pub const BAR2: usize = 0x18;
    /// Subsystem vendor id, 16 bits.
    pub const SUBSYSTEM_VENDOR: usize = 0x2c;
    /// Subsystem id, 16 bits.
    pub const SUBSYSTEM: usize = 0x2e;
    /// Base address register of the expansion ROM.
    pub const ROM: usize = 0x30;
    /// Offset of the first capability, 8 bits.
    pub const CAPABILITIES: usize = 0x34;
    /// Interrupt line, 8 bits, free for software.
    pub const INTERRUPT_LINE: usize = 0x3c;
}

/// Memory space enable.
pub const COMMAND_MEMORY: u16 = 1 << 1;
/// Bus master enable: DMA and message interrupts are allowed.
pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
/// Parity error response, SERR# enable, INTx disable: stored, without effect here.
const COMMAND_STORED: u16 = 1 << 6 | 1 << 8 | 1 << 10;
/// There is a capability list.
const STATUS_CAPABILITIES: u16 = 1 << 4;
/// Error bits of the status register, cleared by writing 1.
const STATUS_ERRORS: u16 = 0xf900;

/// 64-bit prefetchable memory (PCIe 7.5.1.2.1).
const BAR_MEM64_PREFETCH: u32 = 0x0c;

/// Class, sub class and programming interface of a function with that link layer, as a 24-bit number.
fn class_code(port_kind: PortKind) -> u32 {
    match port_kind {
        PortKind::InfiniBand => 0x02_0700,
        PortKind::Ethernet => 0x02_0000,
    }
}

/// What a write to configuration space sets in motion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigEffects {
    /// Function level reset was initiated: the function must be reset (the space already is).
    pub reset: bool,
}

/// Configuration space of one function.
#[derive(Clone)]
pub struct ConfigSpace {
    personality: Arc<Personality>,
    port_kind: PortKind,
    pub(super) places: Places,
    value: [u8; CONFIG_SIZE],
    writable: [u8; CONFIG_SIZE],
    write_1_clears: [u8; CONFIG_SIZE],
    /// Vital product data.
    product: Arc<[u8]>,
    /// Bytes of the expansion ROM; 0 if there is none.
    rom: u64,
    /// What is diagnosed of the driver, if the guest may read it.
    pub(super) report: Option<Report>,
}

impl std::fmt::Debug for ConfigSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigSpace").field("command", &self.command()).finish_non_exhaustive()
    }
}

impl ConfigSpace {
    /// The space after power-on, of an adapter of that kind and serial number whose first port starts with that link layer.
    pub fn new(personality: &Arc<Personality>, port_kind: PortKind, serial: &str) -> ConfigSpace {
        ConfigSpace::with(personality, port_kind, vpd::data(personality, serial).into(), 0, None)
    }

    /// The same with an expansion ROM of that size, a power of two from 2048 on.
    pub fn with_rom(self, size: u64) -> ConfigSpace {
        let product = Arc::clone(&self.product);
        ConfigSpace::with(&self.personality, self.port_kind, product, size, self.report)
    }

    /// The same with a capability in which the guest can read what is diagnosed of its driver.
    pub fn with_report(self) -> ConfigSpace {
        let (product, report) = (Arc::clone(&self.product), Some(Report::default()));
        ConfigSpace::with(&self.personality, self.port_kind, product, self.rom, report)
    }

    fn with(
        personality: &Arc<Personality>,
        port_kind: PortKind,
        product: Arc<[u8]>,
        rom: u64,
        report: Option<Report>,
    ) -> ConfigSpace {
        let mut space = ConfigSpace {
            personality: Arc::clone(personality),
            port_kind,
            places: Places::of(&personality.pci),
            value: [0; CONFIG_SIZE],
            writable: [0; CONFIG_SIZE],
            write_1_clears: [0; CONFIG_SIZE],
            product,
            rom,
            report,
        };
        space.fill_header();
        caps::fill(&mut space, &personality.pci);
        if space.report.is_some() {
            report::fill(&mut space);
        }
        space
    }

    /// Puts every register back to its power-on value. (Registers that a function level reset
    /// spares hold constants here.)
    pub fn reset(&mut self) {
        let (product, report) = (Arc::clone(&self.product), self.report.take());
        *self = ConfigSpace::with(&self.personality, self.port_kind, product, self.rom, report);
    }

    fn fill_header(&mut self) {
        let personality = Arc::clone(&self.personality);
        let pci = &personality.pci;
        self.set_u16(reg::VENDOR, pci.vendor);
        self.set_u16(reg::DEVICE, pci.device);
        self.set_u16(reg::STATUS, STATUS_CAPABILITIES);
        self.put(reg::REVISION, &[pci.revision]);
        self.show_port_kind();
        self.set_u16(reg::SUBSYSTEM_VENDOR, pci.subsystem_vendor);
        self.set_u16(reg::SUBSYSTEM, pci.subsystem);
        self.put(reg::CAPABILITIES, &[self.places.first]);
        self.allow(reg::COMMAND, &(COMMAND_MEMORY | COMMAND_BUS_MASTER | COMMAND_STORED).to_le_bytes());
        self.clear_by_1(reg::STATUS, &STATUS_ERRORS.to_le_bytes());
        self.allow(reg::CACHE_LINE, &[0xff]);
        self.allow(reg::INTERRUPT_LINE, &[0xff]);
        self.fill_bar(reg::BAR0, pci.bar0_size);
        self.fill_bar(reg::BAR2, BAR2_SIZE);
        if let Ok(size @ 1..) = u32::try_from(self.rom) {
            // Address bits from that of the size on, and bit 0: enabled.
            self.allow(reg::ROM, &(!size.saturating_sub(1) | 1).to_le_bytes());
        }
    }

    /// A 64-bit prefetchable BAR: the address bits below its size read as 0, which is how software
    /// finds out the size.
    fn fill_bar(&mut self, at: usize, size: u64) {
        let address = !size.saturating_sub(1);
        self.put(at, &BAR_MEM64_PREFETCH.to_le_bytes());
        self.allow(at, &address.to_le_bytes());
    }

    /// Reads `data.len()` bytes; what lies outside reads as 0.
    pub fn read(&self, offset: usize, data: &mut [u8]) {
        for (i, byte) in data.iter_mut().enumerate() {
            let at = offset.saturating_add(i);
            *byte = self.value.get(at).copied().unwrap_or(0);
        }
    }

    /// Writes `data`, as far as the registers allow.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> ConfigEffects {
        for (i, &new) in data.iter().enumerate() {
            let at = offset.saturating_add(i);
            let (Some(value), Some(&writable), Some(&clears)) =
                (self.value.get_mut(at), self.writable.get(at), self.write_1_clears.get(at))
            else {
                break;
            };
            *value = (*value & !writable) | (new & writable);
            *value &= !(new & clears);
        }
        caps::read_product(self, offset, data.len());
        if self.report.is_some() {
            report::written(self, offset, data.len());
        }
        let reset = caps::take_function_reset(self);
        if reset {
            self.reset();
        }
        ConfigEffects { reset }
    }

    /// The command register.
    pub fn command(&self) -> u16 {
        self.get_u16(reg::COMMAND)
    }

    /// True if the function may access memory: bus master on, power state D0.
    pub fn may_master(&self) -> bool {
        self.command() & COMMAND_BUS_MASTER != 0 && caps::power_state(self) == 0
    }

    /// The power state: 0 is D0, 3 is D3hot.
    pub fn power_state(&self) -> u16 {
        caps::power_state(self)
    }

    /// True if software has switched MSI-X on.
    pub fn msix_enabled(&self) -> bool {
        caps::msix_control(self) & caps::MSIX_ENABLE != 0
    }

    /// True if software has masked all MSI-X vectors at once.
    pub fn msix_function_masked(&self) -> bool {
        caps::msix_control(self) & caps::MSIX_FUNCTION_MASK != 0
    }

    /// The 16-bit register at `at`.
    pub fn get_u16(&self, at: usize) -> u16 {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// The 32-bit register at `at`.
    pub fn get_u32(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// The registers of the vendor specific capability of which there are bytes in an access: their offsets in the
    /// capability, each with that in the space. Its head is constant. What they hold is the model's.
    pub fn window(&self, offset: usize, len: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (vendor, end) = (self.places.vendor, offset.saturating_add(len));
        let registers = (vsc::CONTROL..vsc::LEN).step_by(4).map(move |at| (at, vendor.saturating_add(at)));
        registers.filter(move |(_, at)| *at < end && offset < at.saturating_add(4))
    }

    /// The link has trained to that.
    pub fn set_link(&mut self, lanes: u8, speed: u8) {
        caps::set_link(self, lanes, speed);
    }

    /// Something happened that its registers tell. Returns the message about it to the root complex, if there is one.
    pub fn log(&mut self, event: PcieEvent) -> Option<Message> {
        aer::log(self, event)
    }

    /// Something was diagnosed of the driver: that is in the capability for it, if there is one.
    pub fn note(&mut self, text: &str) {
        report::note(self, text);
    }

    /// Another host is there, which does not see what was diagnosed before.
    pub fn forget(&mut self) {
        report::forget(self);
    }

    /// The firmware of the platform has it report errors, as device control says until the next reset.
    pub fn enable_reports(&mut self) {
        aer::enable_reports(self);
    }

    /// The adapter has ports of that kind from the next reset on.
    pub fn set_port_kind(&mut self, port_kind: PortKind) {
        self.port_kind = port_kind;
    }

    /// The same at once: a restart of the firmware alone leaves what software has set up.
    pub fn change_port_kind(&mut self, port_kind: PortKind) {
        if port_kind != self.port_kind {
            self.port_kind = port_kind;
            self.show_port_kind();
        }
    }

    fn show_port_kind(&mut self) {
        let class = class_code(self.port_kind).to_le_bytes();
        self.put(reg::CLASS, class.get(..3).unwrap_or_default());
    }

    pub(super) fn product(&self) -> &[u8] {
        &self.product
    }

    pub(super) fn set_u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    /// Sets initial bytes.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        copy(&mut self.value, at, bytes);
    }

    /// Makes bits writable.
    pub(super) fn allow(&mut self, at: usize, mask: &[u8]) {
        copy(&mut self.writable, at, mask);
    }

    /// Makes bits clear on writing 1.
    pub(super) fn clear_by_1(&mut self, at: usize, mask: &[u8]) {
        copy(&mut self.write_1_clears, at, mask);
    }
}

fn copy(to: &mut [u8; CONFIG_SIZE], at: usize, bytes: &[u8]) {
    if let Some(place) = at.checked_add(bytes.len()).and_then(|end| to.get_mut(at..end)) {
        place.copy_from_slice(bytes);
    }
}

const _: () = assert!(BAR2_SIZE.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(&Personality::default_kind(), PortKind::InfiniBand, "1")
    }

    #[test]
    fn header_golden_bytes() {
        let mut header = [0; 64];
        space().read(0, &mut header);
        #[rustfmt::skip]
        let golden: [u8; 64] = [
            0xb3, 0x15, 0x13, 0x10, 0x00, 0x00, 0x10, 0x00,
            0x00, 0x00, 0x07, 0x02, 0x00, 0x00, 0x00, 0x00,
            0x0c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x0c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0xb3, 0x15, 0x33, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x60, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        ];
        assert_eq!(header, golden);
    }

    #[test]
    fn bars_answer_sizing() {
        let mut space = space();
        for at in [reg::BAR0, reg::BAR0 + 4, reg::BAR2, reg::BAR2 + 4] {
            space.write(at, &[0xff; 4]);
        }
        assert_eq!(space.get_u32(reg::BAR0), 0xfe00_000c);
        assert_eq!(space.get_u32(reg::BAR0 + 4), 0xffff_ffff);
        assert_eq!(space.get_u32(reg::BAR2), 0xffff_e00c);
        assert_eq!(space.get_u32(reg::BAR2 + 4), 0xffff_ffff);
        // BAR4 and BAR5 don't exist, nor does a ROM.
        for at in [0x20, 0x24, 0x30] {
            space.write(at, &[0xff; 4]);
            assert_eq!(space.get_u32(at), 0);
        }
        space.write(reg::BAR0, &0x1234_5678u32.to_le_bytes());
        assert_eq!(space.get_u32(reg::BAR0), 0x1200_000c);
    }

    #[test]
    fn the_class_follows_the_ports() {
        let mut space = space();
        space.write(reg::BAR0, &0x1200_0000u32.to_le_bytes());
        let class = |space: &ConfigSpace| space.get_u32(reg::REVISION) >> 8;
        space.set_port_kind(PortKind::InfiniBand);
        space.change_port_kind(PortKind::Ethernet);
        assert_eq!((class(&space), space.get_u32(reg::BAR0)), (0x02_0000, 0x1200_000c));
        space.set_port_kind(PortKind::InfiniBand);
        assert_eq!(class(&space), 0x02_0000, "with a reset");
        space.reset();
        assert_eq!((class(&space), space.get_u32(reg::BAR0)), (0x02_0700, 0xc));
    }

    #[test]
    fn a_rom_answers_sizing() {
        let mut space = space().with_rom(64 << 10);
        space.write(reg::ROM, &0xffff_fffeu32.to_le_bytes());
        assert_eq!(space.get_u32(reg::ROM), 0xffff_0000);
        space.write(reg::ROM, &0xfebc_1001u32.to_le_bytes());
        assert_eq!(space.get_u32(reg::ROM), 0xfebc_0001, "where it is, and enabled");
        space.reset();
        assert_eq!(space.get_u32(reg::ROM), 0);
        space.write(reg::ROM, &[0xff; 4]);
        assert_eq!(space.get_u32(reg::ROM), 0xffff_0001, "it is there behind a reset");
    }

    #[test]
    fn identity_is_read_only_and_command_is_masked() {
        let mut space = space();
        space.write(0, &[0xff; 64]);
        assert_eq!(space.get_u32(0), 0x1013_15b3);
        assert_eq!(space.command(), 0x0546);
        assert_eq!(space.get_u16(reg::STATUS), STATUS_CAPABILITIES);
        assert!(space.may_master());
        space.reset();
        assert!(!space.may_master());
    }

    #[test]
    fn only_writable_bits_change() {
        let fresh = space();
        let mut space = space();
        // A fixed pseudo-random walk over offsets, lengths and values (xorshift).
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let offset = (x >> 20) as usize % (CONFIG_SIZE + 8);
            let len = (x & 7) as usize + 1;
            let reset = space.write(offset, &x.to_le_bytes()[..len]).reset;
            for (at, (&value, &was)) in space.value.iter().zip(&fresh.value).enumerate() {
                let fixed = !(fresh.writable[at] | fresh.write_1_clears[at]);
                assert_eq!(value & fixed, was & fixed, "{at:#x}");
                assert!(!reset || value == was, "{at:#x}");
            }
        }
    }

    #[test]
    fn accesses_at_the_edge_are_harmless() {
        let mut space = space();
        let mut data = [0xaa; 8];
        space.read(CONFIG_SIZE - 4, &mut data);
        assert_eq!(data[4..], [0; 4]);
        space.write(CONFIG_SIZE - 1, &[0xff; 64]);
        space.read(usize::MAX, &mut data);
        assert_eq!(data, [0; 8]);
    }
}
