//! Receive queues without a queue pair (RQ): context and commands.
//!
//! Source: PRM "RQ Context", "CREATE_RQ", "MODIFY_RQ", "QUERY_RQ"; bits of later adapters from the mlx5 driver's use.

use crate::layout::layout;
use crate::queue::Wq;

layout! {
    /// Receive queue (RQ) context without its page list, 240 bytes.
    pub struct Rqc[0xf0] {
        /// 1 = the reserved lkey may be used.
        RLKY: 0x0 [31:31];
        /// 1 = a packet waits for a receive WQE before it is dropped.
        DELAY_DROP_EN: 0x0 [30:30];
        /// 1 = the frame check sequence is written behind the packet.
        SCATTER_FCS: 0x0 [29:29];
        /// VLAN strip disable: 1 = tags stay in the packets.
        VSD: 0x0 [28:28];
        /// Where the WQEs come from: 0 = the queue itself, 1 = a receive memory pool.
        MEM_RQ_TYPE: 0x0 [27:24];
        /// State: 0 = reset, 1 = ready, 3 = error.
        STATE: 0x0 [23:20];
        /// 1 = WQEs posted in error are flushed.
        FLUSH_IN_ERROR_EN: 0x0 [18:18];
        /// 1 = the queue feeds a send queue.
        HAIRPIN: 0x0 [17:17];
        /// Timestamps of completions: 0 free running, 1 default, 2 real time.
        TS_FORMAT: 0x0 [5:4];
        /// What completions of version 1 carry.
        USER_INDEX: 0x4 [23:0];
        /// The completion queue.
        CQN: 0x8 [23:0];
        /// Q counter set; 0 = none.
        COUNTER_SET_ID: 0xc [31:24];
        /// The receive memory pool.
        RMPN: 0x10 [23:0];
        /// Hairpin: the send queue.
        HAIRPIN_PEER_SQ: 0x14 [23:0];
        /// Hairpin: the send queue's adapter.
        HAIRPIN_PEER_VHCA: 0x18 [15:0];
    } views {
        /// Its work queue.
        wq, wq_mut: 0x30 Wq;
    }

    /// CREATE_RQ input; the page list follows at [`crate::cmd::PAS_OFFSET`].
    pub struct CreateRqIn[0x110] {
        /// Modifier.
        OP_MOD: 0x4 [15:0];
    } views {
        /// The queue's context.
        rqc, rqc_mut: 0x20 Rqc;
    }

    /// MODIFY_RQ input.
    pub struct ModifyRqIn[0x110] {
        /// Current state.
        RQ_STATE: 0x8 [31:28];
        /// The queue.
        RQN: 0x8 [23:0];
        /// Optional values that count: bits of [`modify_rq`].
        MODIFY_BITMASK: 0x10 u64;
    } views {
        /// New values; the state is the one to come.
        rqc, rqc_mut: 0x20 Rqc;
    }

    /// QUERY_RQ output; the page list follows at [`crate::cmd::PAS_OFFSET`].
    pub struct QueryRqOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The queue's context.
        rqc, rqc_mut: 0x20 Rqc;
    }
}

/// Bits of [`ModifyRqIn::MODIFY_BITMASK`].
pub mod modify_rq {
    /// [`super::Rqc::VSD`].
    pub const VSD: u64 = 1 << 1;
    /// [`super::Rqc::SCATTER_FCS`].
    pub const SCATTER_FCS: u64 = 1 << 2;
    /// [`super::Rqc::COUNTER_SET_ID`].
    pub const COUNTER_SET_ID: u64 = 1 << 3;
}

/// [`Rqc::STATE`]: reset.
pub const RQ_RESET: u32 = 0;
/// [`Rqc::STATE`]: ready.
pub const RQ_READY: u32 = 1;
/// [`Rqc::STATE`]: error.
pub const RQ_ERROR: u32 = 3;
/// [`Rqc::MEM_RQ_TYPE`]: the queue's own WQEs.
pub const RQ_INLINE: u32 = 0;
/// [`Rqc::MEM_RQ_TYPE`]: those of a pool.
pub const RQ_RMP: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_create() {
        let mut c = CreateRqIn::new();
        let r = c.rqc_mut();
        r.set(Rqc::VSD, 1).set(Rqc::FLUSH_IN_ERROR_EN, 1).set(Rqc::USER_INDEX, 0x123456).set(Rqc::CQN, 0x77);
        r.set(Rqc::COUNTER_SET_ID, 2).set(Rqc::RMPN, 0x41);
        r.wq_mut().set(Wq::WQ_TYPE, 1).set(Wq::LOG_WQ_STRIDE, 4).set(Wq::LOG_WQ_SZ, 10);
        r.wq_mut().set(Wq::END_PADDING_MODE, 1).set(Wq::LOG_WQE_STRIDE_SIZE, 5).set(Wq::TWO_BYTE_SHIFT_EN, 1);
        let b = c.bytes();
        assert_eq!(
            b[0x20..0x34],
            [0x10, 4, 0, 0, 0, 0x12, 0x34, 0x56, 0, 0, 0, 0x77, 2, 0, 0, 0, 0, 0, 0, 0x41]
        );
        assert_eq!(b[0x50], 0x12);
        assert_eq!(b[0x70..0x78], [0, 4, 0, 10, 0, 0, 0, 0x85]);
    }

    #[test]
    fn golden_modify() {
        let mut m = ModifyRqIn::new();
        m.set(ModifyRqIn::RQN, 0x41).set(ModifyRqIn::RQ_STATE, RQ_READY);
        m.set(ModifyRqIn::MODIFY_BITMASK, modify_rq::COUNTER_SET_ID).rqc_mut().set(Rqc::STATE, RQ_ERROR);
        let b = m.bytes();
        assert_eq!(b[8..0x18], [0x10, 0, 0, 0x41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
        assert_eq!(b[0x21], 0x30);
    }
}
