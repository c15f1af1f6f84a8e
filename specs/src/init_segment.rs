//! The initialization segment: the first registers of BAR0.
//!
//! Source: PRM "Initialization Segment"; the health buffer as the mlx5 driver reads it.

use crate::layout::layout;

/// Size of the initialization segment in bytes; UAR pages must not overlap it.
pub const SIZE: usize = 0x2010;
/// `cmdif_rev` that the mlx5 driver accepts.
pub const CMD_INTERFACE_REVISION: u32 = 5;

/// Value of `NIC_INTERFACE`: full driver.
pub const NIC_INTERFACE_FULL: u32 = 0;
/// Value of `NIC_INTERFACE`: disabled.
pub const NIC_INTERFACE_DISABLED: u32 = 1;
/// Value of `NIC_INTERFACE`: software reset requested.
pub const NIC_INTERFACE_SW_RESET: u32 = 7;

layout! {
    /// The initialization segment (BAR0 + 0).
    pub struct InitSegment[0x2010] {
        /// Firmware revision, minor.
        FW_REV_MINOR: 0x0 [31:16];
        /// Firmware revision, major.
        FW_REV_MAJOR: 0x0 [15:0];
        /// Command interface revision: [`CMD_INTERFACE_REVISION`].
        CMD_INTERFACE_REV: 0x4 [31:16];
        /// Firmware revision, sub-minor.
        FW_REV_SUBMINOR: 0x4 [15:0];
        /// Command queue DMA address, bits 63..32.
        CMDQ_PHY_ADDR_HIGH: 0x10 [31:0];
        /// Command queue DMA address, bits 31..12.
        CMDQ_PHY_ADDR_LOW: 0x14 [31:12];
        /// Driver's mode: see `NIC_INTERFACE_*`.
        NIC_INTERFACE: 0x14 [10:8];
        /// log2 of the number of command queue entries; read-only.
        LOG_CMDQ_SIZE: 0x14 [7:4];
        /// log2 of the entry's size in bytes; read-only.
        LOG_CMDQ_STRIDE: 0x14 [3:0];
        /// Command doorbell: bit i hands entry i to the hardware.
        COMMAND_DOORBELL_VECTOR: 0x18 [31:0];
        /// 1 while the firmware initializes.
        INITIALIZING: 0x1fc [31:31];
        /// First word of the health buffer (assert variables).
        HEALTH_ASSERT_VAR0: 0x200 [31:0];
        /// Exit pointer of an assert.
        HEALTH_EXIT_PTR: 0x220 [31:0];
        /// Call address of an assert.
        HEALTH_CALLRA: 0x224 [31:0];
        /// Firmware version word; all ones means the device is off the bus.
        HEALTH_FW_VERSION: 0x230 [31:0];
        /// Hardware identity.
        HEALTH_HW_ID: 0x234 [31:0];
        /// Recovery required.
        HEALTH_RFR: 0x238 [31:31];
        /// Interrupt controller index of an assert.
        HEALTH_IRISC_INDEX: 0x23c [31:24];
        /// Health syndrome; 0 = healthy.
        HEALTH_SYNDROME: 0x23c [23:16];
        /// Extended health syndrome.
        HEALTH_EXT_SYNDROME: 0x23c [15:0];
        /// Command timeouts register pair; 0 makes the driver use its own defaults.
        CMD_EXEC_TIMEOUT: 0xff8 [31:0];
        /// See [`InitSegment::CMD_EXEC_TIMEOUT`].
        CMD_QUEUE_INIT_TIMEOUT: 0xffc [31:0];
        /// Internal timer, bits 63..32.
        INTERNAL_TIMER_H: 0x1000 [31:0];
        /// Internal timer, bits 31..0.
        INTERNAL_TIMER_L: 0x1004 [31:0];
        /// Counter that changes while the firmware is alive.
        HEALTH_COUNTER: 0x1010 [23:0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the driver's own reads expect: minor 28, major 12, 32 entries of 64 bytes.
    #[test]
    fn golden() {
        let mut s = InitSegment::new();
        s.set(InitSegment::FW_REV_MINOR, 28).set(InitSegment::FW_REV_MAJOR, 12);
        s.set(InitSegment::CMD_INTERFACE_REV, 5).set(InitSegment::FW_REV_SUBMINOR, 2006);
        s.set(InitSegment::LOG_CMDQ_SIZE, 5).set(InitSegment::LOG_CMDQ_STRIDE, 6);
        assert_eq!(s.bytes()[..8], [0, 28, 0, 12, 0, 5, 0x07, 0xd6]);
        assert_eq!(s.bytes()[0x14..0x18], [0, 0, 0, 0x56]);
    }
}
