//! Dynamically connected target (DCT): its context and commands.
//!
//! A target takes requests of any initiator that knows its access key. It has no queue of its own: it receives
//! from a shared receive queue. Initiators are queue pairs of service type [`crate::qpc::ServiceType::Dci`].
//!
//! Source: mlx5 driver (field use); the public PRM names the commands only.

use crate::layout::layout;

layout! {
    /// Context of a DC target, 64 bytes.
    pub struct Dctc[0x40] {
        /// State: [`DctState`].
        STATE: 0x0 [27:24];
        /// Value echoed in CQEs of version 1.
        USER_INDEX: 0x4 [23:0];
        /// Completion queue of the receives.
        CQN: 0x8 [23:0];
        /// Q counter set.
        COUNTER_SET_ID: 0xc [31:24];
        /// Atomic mode: 0 none, 1 those of IBTA, else log2 of the bytes of the largest operand.
        ATOMIC_MODE: 0xc [23:20];
        /// Remote read enable.
        RRE: 0xc [19:19];
        /// Remote write enable.
        RWE: 0xc [18:18];
        /// Remote atomic enable.
        RAE: 0xc [17:17];
        /// 1 = the reserved lkey may be used.
        RLKY: 0xc [14:14];
        /// Scatter small data to CQE.
        CS_RES: 0x10 [23:16];
        /// RNR NAK timer code returned to the initiator (IBTA table 45).
        MIN_RNR_NAK: 0x10 [12:8];
        /// The shared receive queue.
        SRQN: 0x14 [23:0];
        /// Protection domain.
        PD: 0x18 [23:0];
        /// GRH traffic class of answers.
        TCLASS: 0x1c [31:24];
        /// GRH flow label of answers.
        FLOW_LABEL: 0x1c [19:0];
        /// What initiators have to know.
        DC_ACCESS_KEY: 0x20 u64;
        /// Path MTU, IBTA code 1..5 = 256..4096 bytes.
        MTU: 0x28 [26:24];
        /// Local port, from 1.
        PORT: 0x28 [23:16];
        /// Index into the port's P_Key table.
        PKEY_INDEX: 0x28 [15:0];
        /// Index of the source GID of answers.
        MY_ADDR_INDEX: 0x2c [23:16];
        /// GRH hop limit of answers.
        HOP_LIMIT: 0x2c [7:0];
        /// Initiators that came with another key.
        DC_ACCESS_KEY_VIOLATION_COUNT: 0x30 [31:0];
    }

    /// CREATE_DCT input.
    pub struct CreateDctIn[0x80] {
        /// Modifier.
        OP_MOD: 0x4 [15:0];
    } views {
        /// The target's context.
        dctc, dctc_mut: 0x10 Dctc;
    }

    /// QUERY_DCT output.
    pub struct QueryDctOut[0x80] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The target's context.
        dctc, dctc_mut: 0x10 Dctc;
    }
}

/// State of a DC target, as in [`Dctc::STATE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum DctState {
    /// It takes connections.
    #[default]
    Active = 0,
    /// It takes none any more; some are still there.
    Draining = 1,
    /// No connection is left: it may be destroyed.
    Drained = 2,
}

impl DctState {
    /// The state with that number, if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::Active,
            1 => Self::Draining,
            2 => Self::Drained,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let mut c = CreateDctIn::new();
        let d = c.dctc_mut();
        d.set(Dctc::CQN, 0x123).set(Dctc::RWE, 1).set(Dctc::RAE, 1).set(Dctc::ATOMIC_MODE, 1);
        d.set(Dctc::CS_RES, 2).set(Dctc::MIN_RNR_NAK, 12).set(Dctc::SRQN, 0x44).set(Dctc::PD, 5);
        d.set(Dctc::DC_ACCESS_KEY, 0x1122_3344_5566_7788).set(Dctc::MTU, 3).set(Dctc::PORT, 1);
        d.set(Dctc::HOP_LIMIT, 0xff).set(Dctc::MY_ADDR_INDEX, 2);
        let b = c.bytes();
        assert_eq!(b[0x18..0x28], [0, 0, 1, 0x23, 0, 0x16, 0, 0, 0, 2, 12, 0, 0, 0, 0, 0x44]);
        assert_eq!(b[0x28..0x2c], [0, 0, 0, 5]);
        assert_eq!(
            b[0x30..0x40],
            [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 3, 1, 0, 0, 0, 2, 0, 0xff]
        );
    }
}
