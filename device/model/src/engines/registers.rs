//! The initialization segment's registers.
//!
//! Source: PRM "Initialization Segment"; see `hca_spec::init_segment` for the layout.

use hca_firmware::personality::{FirmwareVersion, Personality};
use hca_spec::init_segment::{
    CMD_INTERFACE_REVISION, InitSegment, NIC_INTERFACE_DISABLED, NIC_INTERFACE_FULL, SIZE,
};
use hca_spec::{be32, put_be32};

use crate::ground::epoch::Start;
use crate::ground::time::Ps;
use crate::ground::timing::Timing;

/// 32 command entries ...
pub(crate) const LOG_COMMAND_ENTRIES: u32 = 5;
/// ... of 64 bytes.
pub(crate) const LOG_COMMAND_STRIDE: u32 = 6;
/// The register that selects the queue's low address and the driver's mode.
const COMMAND_QUEUE_LOW: usize = 0x14;
/// Bits of that register that the driver can't change: the queue's geometry.
const COMMAND_QUEUE_LOW_READ_ONLY: u32 = 0xff;
/// Where the mode is in that register, and its bits ([`InitSegment::NIC_INTERFACE`]).
const MODE_SHIFT: u32 = 8;
const MODE: u32 = 7;
/// The command doorbell.
const COMMAND_DOORBELL: usize = 0x18;

/// The registers and what was written to them.
pub(crate) struct Registers {
    segment: Box<InitSegment>,
}

impl Registers {
    /// As after power-on, of an adapter of that kind with that firmware.
    pub(crate) fn new(kind: &Personality, version: FirmwareVersion) -> Self {
        let mut segment = Box::new(InitSegment::new());
        let FirmwareVersion { major, minor, subminor } = version;
        let (major, minor, sub) = (u32::from(major), u32::from(minor), u32::from(subminor));
        segment.set(InitSegment::FW_REV_MAJOR, major).set(InitSegment::FW_REV_MINOR, minor);
        segment.set(InitSegment::FW_REV_SUBMINOR, sub);
        segment.set(InitSegment::CMD_INTERFACE_REV, CMD_INTERFACE_REVISION);
        segment.set(InitSegment::LOG_CMDQ_SIZE, LOG_COMMAND_ENTRIES);
        segment.set(InitSegment::LOG_CMDQ_STRIDE, LOG_COMMAND_STRIDE);
        segment.set(InitSegment::HEALTH_FW_VERSION, major << 24 | minor << 16 | sub);
        segment.set(InitSegment::HEALTH_HW_ID, kind.hardware_id);
        Self { segment }
    }

    /// Reads bytes of the segment; beyond it are zeros.
    pub(crate) fn read(&mut self, (start, now): (Start, Ps), timing: &Timing, offset: u64, buf: &mut [u8]) {
        let ticks = start.ticks(now, timing.timer_khz());
        self.segment.set(InitSegment::INTERNAL_TIMER_H, (ticks >> 32) as u32);
        self.segment.set(InitSegment::INTERNAL_TIMER_L, ticks as u32);
        let health = start.absolute(now) / u128::from(timing.health_tick().0.max(1));
        self.segment.set(InitSegment::HEALTH_COUNTER, health as u32);
        buf.fill(0);
        let bytes = self.segment.bytes();
        if let Some(from) = usize::try_from(offset).ok().and_then(|o| bytes.get(o..)) {
            buf.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
    }

    /// Writes one aligned 32-bit register. Returns the command doorbell's bits if it was that one.
    pub(crate) fn write(&mut self, offset: u64, value: u32) -> Option<u32> {
        let offset = usize::try_from(offset).unwrap_or(SIZE);
        match offset {
            0x10 => put_be32(self.segment.bytes_mut(), offset, value),
            COMMAND_QUEUE_LOW => {
                // An address comes with the full driver's mode. With another mode nothing but that is written: who disables the
                // function, or wants it reset, says so in this word alone, whatever stands in the address's place.
                let kept = match value >> MODE_SHIFT & MODE {
                    NIC_INTERFACE_FULL => COMMAND_QUEUE_LOW_READ_ONLY,
                    _ => !(MODE << MODE_SHIFT),
                };
                let old = be32(self.segment.bytes_mut(), offset);
                put_be32(self.segment.bytes_mut(), offset, value & !kept | old & kept);
            }
            COMMAND_DOORBELL => return Some(value),
            _ => tracing::debug!("write of {value:#x} to read-only register {offset:#x}"),
        }
        None
    }

    /// The driver's mode ([`InitSegment::NIC_INTERFACE`]).
    pub(crate) fn mode(&self) -> u32 {
        self.segment.get(InitSegment::NIC_INTERFACE)
    }

    /// The function is disabled: the driver sees that it has to begin anew.
    pub(crate) fn disable(&mut self) {
        self.segment.set(InitSegment::NIC_INTERFACE, NIC_INTERFACE_DISABLED);
    }

    /// Bus address of the command queue.
    pub(crate) fn command_queue(&self) -> u64 {
        let high = u64::from(self.segment.get(InitSegment::CMDQ_PHY_ADDR_HIGH));
        high << 32 | u64::from(self.segment.get(InitSegment::CMDQ_PHY_ADDR_LOW)) << 12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing() -> Timing {
        Timing::new(&crate::timing::Profile::connectx4())
    }

    fn read32(r: &mut Registers, now: Ps, offset: u64) -> u32 {
        let mut b = [0; 4];
        r.read((Start::default(), now), &timing(), offset, &mut b);
        u32::from_be_bytes(b)
    }

    #[test]
    fn geometry_survives_the_queue_address() {
        let mut r = Registers::new(&Personality::default_kind(), Personality::default_kind().version);
        assert_eq!(read32(&mut r, Ps::ZERO, 0x14), 0x56);
        assert_eq!((r.write(0x10, 1), r.write(0x14, 0x2345_6000)), (None, None));
        assert_eq!(r.command_queue(), 0x1_2345_6000);
        assert_eq!(read32(&mut r, Ps::ZERO, 0x14), 0x2345_6056);
        assert_eq!(r.write(0x18, 0x8000_0001), Some(0x8000_0001));
    }

    /// A mode that is written alone leaves the address; an address brings the full driver's mode back. The halves come in any order.
    #[test]
    fn a_mode_leaves_the_address() {
        let mut r = Registers::new(&Personality::default_kind(), Personality::default_kind().version);
        r.write(0x14, 0x2345_6000);
        r.write(0x10, 1);
        assert_eq!((r.command_queue(), r.mode()), (0x1_2345_6000, 0));
        for mode in [1, 7] {
            r.write(0x14, mode << 8);
            assert_eq!((r.command_queue(), r.mode()), (0x1_2345_6000, mode));
            assert_eq!(read32(&mut r, Ps::ZERO, 0x14), 0x2345_6056 | mode << 8);
        }
        r.write(0x14, 0x9_8000);
        assert_eq!((r.command_queue(), r.mode()), (0x1_0009_8000, 0));
    }

    #[test]
    fn alive() {
        let mut r = Registers::new(&Personality::default_kind(), Personality::default_kind().version);
        assert_eq!(read32(&mut r, Ps::ZERO, 0), 0x001c_000c);
        assert_eq!(read32(&mut r, Ps::ZERO, 0x234), 0x209, "hardware id of a ConnectX-4");
        assert_ne!(read32(&mut r, Ps::from_ms(2000), 0x1010), read32(&mut r, Ps::from_ms(3000), 0x1010));
        let timer = u64::from(read32(&mut r, Ps::from_ms(60_000), 0x1000)) << 32
            | u64::from(read32(&mut r, Ps::from_ms(60_000), 0x1004));
        assert_eq!(timer, 60 * 156_250_000);
        let mut beyond = [1; 8];
        r.read((Start::default(), Ps::ZERO), &timing(), u64::MAX, &mut beyond);
        assert_eq!(beyond, [0; 8]);
    }
}
