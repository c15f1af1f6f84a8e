//! Congestion control of RoCE (DCQCN): its parameters, its state and its counters, as commands have them.
//!
//! Source: mlx5 driver, field use (`mlx5_ifc.h`, `cong.c`, `cmd.c`).

use crate::layout::layout;

layout! {
    /// QUERY_CONG_STATUS and MODIFY_CONG_STATUS input.
    pub struct CongStatusIn[0x10] {
        /// Priority, 0 to 7.
        PRIORITY: 0x8 [7:4];
        /// [`protocol`].
        CONG_PROTOCOL: 0x8 [3:0];
        /// It is on for the priority (MODIFY).
        ENABLE: 0xc [31:31];
        /// Packets are tagged (MODIFY): of 802.1Qau.
        TAG_ENABLE: 0xc [30:30];
    }

    /// QUERY_CONG_STATUS output.
    pub struct CongStatusOut[0x10] {
        /// It is on for the priority.
        ENABLE: 0xc [31:31];
        /// Packets are tagged.
        TAG_ENABLE: 0xc [30:30];
    }

    /// QUERY_CONG_PARAMS input, and the beginning of that of MODIFY_CONG_PARAMS, whose parameters begin at [`MODIFY_PARAMS`].
    pub struct CongParamsIn[0x10] {
        /// [`protocol`].
        CONG_PROTOCOL: 0x8 [3:0];
        /// Which parameters are changed (MODIFY), a bit for each.
        FIELD_SELECT: 0xc [31:0];
    }

    /// Parameters of the reaction point.
    pub struct ReactionParams[0x100] {
        /// Every CNP sets the target rate to the current one, not only the first after an increase.
        CLAMP_TGT_RATE: 0xc [27:27];
        /// So does one that comes after an increase by the timer.
        CLAMP_TGT_RATE_AFTER_TIME_INC: 0xc [23:23];
        /// Time between increases, us.
        RPG_TIME_RESET: 0x14 [31:0];
        /// Bytes between increases.
        RPG_BYTE_RESET: 0x18 [31:0];
        /// Increases of fast recovery, by time and by bytes.
        RPG_THRESHOLD: 0x1c [31:0];
        /// The highest rate, Mb/s; 0 = the link's.
        RPG_MAX_RATE: 0x20 [31:0];
        /// By how much additive increase raises the target rate, Mb/s.
        RPG_AI_RATE: 0x24 [31:0];
        /// The same of hyper increase.
        RPG_HAI_RATE: 0x28 [31:0];
        /// log2 of what alpha is divided by for the part that a CNP takes off the rate.
        RPG_GD: 0x2c [31:0];
        /// The least part of the rate that a CNP leaves, percent.
        RPG_MIN_DEC_FAC: 0x30 [31:0];
        /// The least rate, Mb/s.
        RPG_MIN_RATE: 0x34 [31:0];
        /// Rate after a flow's first CNP, Mb/s; 0 = as after any other.
        RATE_TO_SET_ON_FIRST_CNP: 0x54 [31:0];
        /// How much of alpha is left each time that it is updated, in 1/1024.
        DCE_TCP_G: 0x58 [31:0];
        /// Time between updates of alpha, us.
        DCE_TCP_RTT: 0x5c [31:0];
        /// Least time between two decreases, us.
        RATE_REDUCE_MONITOR_PERIOD: 0x60 [31:0];
        /// Alpha at a flow's first CNP, in 1/1024.
        INITIAL_ALPHA_VALUE: 0x68 [31:0];
    }

    /// Parameters of the notification point.
    pub struct NotificationParams[0x100] {
        /// Least time between two CNPs of a flow, us.
        MIN_TIME_BETWEEN_CNPS: 0x14 [31:0];
        /// DSCP of CNPs.
        CNP_DSCP: 0x18 [13:8];
        /// 0 = CNPs have the priority below; 1 = that of the packet that they answer.
        CNP_PRIO_MODE: 0x18 [3:3];
        /// Priority of CNPs.
        CNP_802P_PRIO: 0x18 [2:0];
    }

    /// QUERY_CONG_STATISTICS input.
    pub struct CongStatisticsIn[0x10] {
        /// The counters are zero afterwards.
        CLEAR: 0x8 [31:31];
    }

    /// QUERY_CONG_STATISTICS output.
    pub struct CongStatisticsOut[0x110] {
        /// Flows whose rate is limited now.
        RP_CUR_FLOWS: 0x10 [31:0];
        /// Flows whose rate was ever limited.
        SUM_FLOWS: 0x14 [31:0];
        /// CNPs that nothing came of.
        RP_CNP_IGNORED: 0x18 u64;
        /// CNPs that lowered a rate.
        RP_CNP_HANDLED: 0x20 u64;
        /// Packets that came with a congestion mark.
        NP_ECN_MARKED_ROCE_PACKETS: 0x54 u64;
        /// CNPs that were sent.
        NP_CNP_SENT: 0x5c u64;
    }
}

/// Where the parameters begin in MODIFY_CONG_PARAMS's input.
pub const MODIFY_PARAMS: usize = 0x20;
/// Where they begin in QUERY_CONG_PARAMS's output.
pub const QUERY_PARAMS: usize = 0x10;

/// Which part of congestion control a command is about.
pub mod protocol {
    /// Reaction point of RoCE v2.
    pub const REACTION_POINT: u32 = 1;
    /// Notification point of RoCE v2.
    pub const NOTIFICATION_POINT: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_parameters() {
        let mut rp = ReactionParams::new();
        rp.set(ReactionParams::CLAMP_TGT_RATE, 1).set(ReactionParams::CLAMP_TGT_RATE_AFTER_TIME_INC, 1);
        rp.set(ReactionParams::RPG_TIME_RESET, 300).set(ReactionParams::INITIAL_ALPHA_VALUE, 1023);
        assert_eq!(rp.bytes()[0xc..0x18], [8, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x2c]);
        assert_eq!(rp.bytes()[0x68..0x6c], [0, 0, 3, 0xff]);
        let mut np = NotificationParams::new();
        np.set(NotificationParams::CNP_DSCP, 48).set(NotificationParams::CNP_PRIO_MODE, 1);
        np.set(NotificationParams::CNP_802P_PRIO, 6).set(NotificationParams::MIN_TIME_BETWEEN_CNPS, 4);
        assert_eq!(np.bytes()[0x14..0x1c], [0, 0, 0, 4, 0, 0, 0x30, 0xe]);
    }

    #[test]
    fn golden_statistics() {
        let mut out = CongStatisticsOut::new();
        out.set(CongStatisticsOut::NP_CNP_SENT, 1 << 32 | 2).set(CongStatisticsOut::RP_CUR_FLOWS, 3);
        assert_eq!(out.bytes()[0x5c..0x64], [0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(out.bytes()[0x10..0x14], [0, 0, 0, 3]);
    }
}
