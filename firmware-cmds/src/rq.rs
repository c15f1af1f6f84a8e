//! Receive queues without a queue pair (RQ): what raw packets are received into.
//!
//! Source: PRM "RQ Context", "CREATE_RQ", "MODIFY_RQ"; mlx5 driver (field use).

use hca_spec::rq::{RQ_ERROR, RQ_READY, RQ_RESET, Rqc};

use crate::buffer::Buffer;

/// State of a receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RqState {
    /// Nothing is received.
    #[default]
    Reset,
    /// It receives.
    Ready,
    /// What is posted is flushed.
    Error,
}

impl RqState {
    /// The state with that number in [`Rqc::STATE`], if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            RQ_RESET => Some(Self::Reset),
            RQ_READY => Some(Self::Ready),
            RQ_ERROR => Some(Self::Error),
            _ => None,
        }
    }

    /// Its number in [`Rqc::STATE`].
    pub const fn bits(self) -> u32 {
        match self {
            Self::Reset => RQ_RESET,
            Self::Ready => RQ_READY,
            Self::Error => RQ_ERROR,
        }
    }
}

/// How the WQEs of a work queue follow each other, and what a packet takes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WqKind {
    /// Each WQE names the next one; a packet takes a WQE.
    Linked,
    /// WQEs follow in memory; a packet takes a WQE.
    #[default]
    Cyclic,
    /// Each WQE names the next one; a packet takes strides of a WQE.
    LinkedStriding,
    /// WQEs follow in memory; a packet takes strides of a WQE.
    CyclicStriding,
}

impl WqKind {
    /// The kind with that number in [`hca_spec::queue::Wq::WQ_TYPE`], if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::Linked,
            1 => Self::Cyclic,
            2 => Self::LinkedStriding,
            3 => Self::CyclicStriding,
            _ => return None,
        })
    }

    /// Whether each WQE names the next one.
    pub const fn is_linked(self) -> bool {
        matches!(self, Self::Linked | Self::LinkedStriding)
    }

    /// Whether a next segment stands in front of a WQE's list: it says something only where WQEs are linked.
    pub const fn has_next_segment(self) -> bool {
        !matches!(self, Self::Cyclic)
    }

    /// Whether a packet takes strides of a WQE.
    pub const fn is_striding(self) -> bool {
        matches!(self, Self::LinkedStriding | Self::CyclicStriding)
    }
}

/// The strides of each WQE of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    /// log2 of a stride's bytes.
    pub log_size: u32,
    /// log2 of their number.
    pub log_count: u32,
    /// A frame begins two bytes behind the beginning of its first stride.
    pub shifted: bool,
}

impl Strides {
    /// Bytes of a stride.
    pub const fn size(&self) -> u64 {
        1 << self.log_size
    }

    /// Strides of a WQE.
    pub const fn count(&self) -> u32 {
        1 << self.log_count
    }

    /// Bytes in front of a frame.
    pub const fn front(&self) -> usize {
        const SHIFT: usize = 2;
        if self.shifted { SHIFT } else { 0 }
    }
}

/// Where a receive queue's WQEs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RqSource {
    /// Its own work queue.
    #[default]
    Own,
    /// A receive memory pool, by its number in [`crate::Icm::srqs`].
    Pool(u32),
}

/// A receive queue.
#[derive(Debug, Clone, Default)]
pub struct Rq {
    /// Its context as QUERY_RQ tells it, page list left out. The fields below say what it means.
    pub ctx: Rqc,
    /// The WQEs; empty if they come from a pool.
    pub buffer: Buffer,
    /// log2 of the number of WQEs.
    pub log_size: u32,
    /// log2 of the WQE's stride in bytes.
    pub log_stride: u32,
    /// How the WQEs follow each other.
    pub kind: WqKind,
    /// Of a queue whose packets take strides of a WQE: its own, or those of the pool's.
    pub strides: Option<Strides>,
    /// Where the WQEs come from.
    pub source: RqSource,
    /// VLAN tags stay in the packets (VLAN strip disable).
    pub vsd: bool,
    /// The frame check sequence is written behind the packet.
    pub scatter_fcs: bool,
    /// WQEs posted in error are flushed; if not, the driver hears nothing of them.
    pub flush_in_error: bool,
    /// Set of Q counters; 0 = none.
    pub counter_set: u32,
    /// What completions of version 1 carry.
    pub user_index: u32,
    /// The completion queue.
    pub cqn: u32,
    /// Its state.
    pub state: RqState,
    /// Direct TIRs and entries of RQTs that name the queue.
    pub users: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_their_numbers() {
        for state in [RqState::Reset, RqState::Ready, RqState::Error] {
            assert_eq!(RqState::from_bits(state.bits()), Some(state));
        }
        assert_eq!(RqState::from_bits(2), None);
        assert_eq!((WqKind::from_bits(3), WqKind::from_bits(4)), (Some(WqKind::CyclicStriding), None));
    }
}
