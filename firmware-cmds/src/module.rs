//! What is in a cage of the adapter: a cable with its memory, a plug that leads back, or nothing.
//!
//! Cables are passive copper with QSFP ends, whose memory has one page that can't be written. Source: SFF-8636
//! rev 2.10a, tables 6-1 (lower page) and 6-14 (upper page 00h); SFF-8024 rev 4.11, tables 4-1, 4-3 and 4-4 (codes).

use crate::port::PortLink;
use crate::speed::LinkSpeed;

/// Bytes of a module's memory that can be seen at once, and from where on a page is.
pub const SEEN: usize = 256;
const PAGE: usize = 128;

/// What is in a cage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Module {
    /// A plug that leads back, without memory: what a port has that no link of the topology names.
    #[default]
    Loopback,
    /// Nothing: the cable was pulled out.
    Empty,
    /// Something whose bus hangs.
    Stuck,
    /// An end of a cable.
    Copper(Copper),
}

/// A passive copper cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copper {
    /// What it carries at most.
    pub most: PortLink,
    /// Length, m; 0 if it is shorter than one.
    pub metres: u8,
    /// What tells it from others, the same at both ends.
    pub serial: u32,
}

impl Module {
    /// The memory as the bus shows it. A page that there is not is page 0 (SFF-8636, byte 127).
    pub fn memory(self) -> Option<[u8; SEEN]> {
        match self {
            Self::Copper(cable) => Some(cable.memory()),
            Self::Loopback | Self::Empty | Self::Stuck => None,
        }
    }
}

impl Copper {
    /// Identifier (SFF-8024 table 4-1): QSFP+ or, for more than 10 Gb/s a lane, QSFP28.
    fn identifier(self) -> u8 {
        if self.most.speed > LinkSpeed::Fdr { 0x11 } else { 0x0d }
    }

    /// InfiniBand's speeds, a bit each from SDR on (SFF-8636 byte 164); FDR10 has none.
    fn speeds(self) -> u8 {
        use LinkSpeed::{Ddr, Edr, Fdr, Hdr, Qdr, Sdr};
        let known = [Sdr, Ddr, Qdr, Fdr, Edr, Hdr].into_iter().enumerate();
        known.filter(|(_, speed)| *speed <= self.most.speed).fold(0, |bits, (n, _)| bits | 1 << n)
    }

    /// What Ethernet calls it beyond 40GBASE-CR4 (SFF-8024 table 4-4): 100GBASE-CR4, 200GBASE-CR4.
    fn ethernet(self) -> u8 {
        match self.most.speed {
            LinkSpeed::Hdr => 0x40,
            LinkSpeed::Edr => 0x0b,
            _ => 0,
        }
    }

    /// Rate of a lane on the wire, in units of 250 Mb/s.
    fn rate(self) -> u8 {
        match self.most.speed {
            LinkSpeed::Sdr => 10,
            LinkSpeed::Ddr => 20,
            LinkSpeed::Qdr => 40,
            LinkSpeed::Fdr10 => 41,
            LinkSpeed::Fdr => 56,
            LinkSpeed::Edr => 103,
            LinkSpeed::Hdr => 212,
        }
    }

    fn memory(self) -> [u8; SEEN] {
        /// Compliance: SFF-8636 rev 2.8 and later.
        const REVISION: u8 = 8;
        /// One page only, and no interrupt waits (it is active low).
        const FLAT: u8 = 0b110;
        /// The cable can't be taken off its plug (SFF-8024 table 4-3).
        const NO_CONNECTOR: u8 = 0x23;
        /// 40GBASE-CR4; and further codes are in byte 192.
        const CR4: u8 = 0x08;
        const FURTHER: u8 = 0x80;
        /// Copper without equalizers.
        const PASSIVE: u8 = 0xa0;
        /// The adapter's makers' number (IEEE), which is that of its addresses, too.
        const OUI: [u8; 3] = [0x00, 0x02, 0xc9];
        let part = format!("PCC-{}X-{:?}", self.most.width, self.most.speed).to_uppercase();
        let serial = format!("SH{:08X}", self.serial);
        let (identifier, ethernet, rate) = (self.identifier(), self.ethernet(), self.rate());
        let further = if ethernet == 0 { 0 } else { FURTHER };
        let mut memory = [0; SEEN];
        let mut put = |at: usize, bytes: &[u8]| {
            memory.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
        };
        put(0, &[identifier, REVISION, FLAT]);
        put(PAGE, &[identifier, 0, NO_CONNECTOR, CR4 | further]);
        // In units of 100 Mb/s; what does not fit is in byte 222.
        put(140, &[u8::try_from(u32::from(rate) * 5 / 2).unwrap_or(u8::MAX)]);
        put(146, &[self.metres, PASSIVE]);
        put(148, &text::<16>("softhca"));
        put(164, &[self.speeds()]);
        put(165, &OUI);
        put(168, &text::<16>(&part));
        put(184, &text::<2>("A1"));
        put(192, &[ethernet]);
        put(196, &text::<16>(&serial));
        // Made on the day of the first release.
        put(212, &text::<8>("260101"));
        put(222, &[rate]);
        let sum = |memory: &[u8; SEEN], from: usize, to: usize| {
            memory.iter().take(to).skip(from).fold(0u8, |sum, byte| sum.wrapping_add(*byte))
        };
        let (base, rest) = (sum(&memory, 128, 191), sum(&memory, 192, 223));
        let mut put = |at: usize, byte: u8| memory.iter_mut().skip(at).take(1).for_each(|to| *to = byte);
        put(191, base);
        put(223, rest);
        memory
    }
}

/// Text with spaces behind it.
fn text<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut bytes = [b' '; LEN];
    bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

#[cfg(test)]
mod tests {
    use super::{Copper, Module};
    use crate::port::PortLink;
    use crate::speed::LinkSpeed;

    fn cable(speed: LinkSpeed) -> [u8; 256] {
        let cable = Copper { most: PortLink { width: 4, speed }, metres: 3, serial: 0x1234 };
        Module::Copper(cable).memory().unwrap()
    }

    #[test]
    fn memory_of_a_cable() {
        let m = cable(LinkSpeed::Edr);
        assert_eq!((m[0], m[1], m[2], m[128], m[130], m[131]), (0x11, 8, 6, 0x11, 0x23, 0x88));
        assert_eq!((m[140], m[222], m[146], m[147], m[164], m[192]), (255, 103, 3, 0xa0, 0x1f, 0x0b));
        assert_eq!(&m[148..164], b"softhca         ");
        assert_eq!(&m[168..186], b"PCC-4X-EDR      A1");
        assert_eq!(&m[196..220], b"SH00001234      260101  ");
        for (from, to) in [(128, 191), (192, 223)] {
            assert_eq!(m[from..to].iter().map(|b| u32::from(*b)).sum::<u32>() as u8, m[to], "check code");
        }
        let old = cable(LinkSpeed::Qdr);
        assert_eq!((old[0], old[131], old[140], old[164], old[192]), (0x0d, 8, 100, 7, 0));
        assert_eq!(Module::Empty.memory(), None);
    }
}
