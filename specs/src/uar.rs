//! The UAR page (doorbells) and the doorbell record in host memory.
//!
//! Source: PRM "UAR Page Format", "Doorbell Records".

use crate::layout::layout;

/// Size of a UAR page in bytes; page i lies at BAR0 + i * 4096.
pub const PAGE_SIZE: u64 = 4096;
/// Offset of the 64-bit CQ arm doorbell.
pub const CQ_DOORBELL: u64 = 0x20;
/// Offset of the 32-bit EQ doorbell that updates the consumer index and arms.
pub const EQ_ARM: u64 = 0x40;
/// Offset of the 32-bit EQ doorbell that only updates the consumer index.
pub const EQ_UPDATE: u64 = 0x48;
/// Offset of the first send doorbell / BlueFlame register.
pub const SEND_DOORBELL: u64 = 0x800;
/// Distance between send doorbells (each BlueFlame register has two halves).
pub const SEND_DOORBELL_STEP: u64 = 0x100;
/// First register of send queues that have no doorbell record; the size of the next ones is the same (rdma-core's tests, field use).
pub const RECORDLESS_DOORBELL: u64 = 0x600;

layout! {
    /// CQ arm doorbell, 8 bytes; its first word also stands in the doorbell record.
    pub struct CqDoorbell[8] {
        /// Arm sequence number.
        CMD_SN: 0x0 [29:28];
        /// 1 = only solicited (or error) completions.
        SOLICITED: 0x0 [24:24];
        /// Consumer index.
        CONSUMER_INDEX: 0x0 [23:0];
        /// The completion queue.
        CQN: 0x4 [23:0];
    }

    /// EQ doorbell, 4 bytes.
    pub struct EqDoorbell[4] {
        /// The event queue.
        EQN: 0x0 [31:24];
        /// Consumer index.
        CONSUMER_INDEX: 0x0 [23:0];
    }

    /// Doorbell record of a QP, CQ or SRQ, 8 bytes in host memory.
    pub struct DoorbellRecord[8] {
        /// Receive counter (QP, SRQ, RMP).
        RECEIVE_COUNTER: 0x0 [15:0];
        /// Send counter in WQE basic blocks (QP).
        SEND_COUNTER: 0x4 [15:0];
        /// Consumer index (CQ).
        CQ_CONSUMER_INDEX: 0x0 [23:0];
        /// Arm word (CQ), as in [`CqDoorbell`]'s first word.
        CQ_ARM: 0x4 [31:0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let mut d = CqDoorbell::new();
        d.set(CqDoorbell::CMD_SN, 2).set(CqDoorbell::SOLICITED, 1).set(CqDoorbell::CONSUMER_INDEX, 0x123);
        d.set(CqDoorbell::CQN, 0x45);
        assert_eq!(*d.bytes(), [0x21, 0, 1, 0x23, 0, 0, 0, 0x45]);
        let mut e = EqDoorbell::new();
        e.set(EqDoorbell::EQN, 7).set(EqDoorbell::CONSUMER_INDEX, 0x80);
        assert_eq!(*e.bytes(), [7, 0, 0, 0x80]);
    }
}
