//! Ethernet queues: what a send queue makes of a WQE, and a receive queue of a frame.
//!
//! ```text
//! WQE ─▶ wqe ─▶ (data is fetched) ─▶ segment: LSO, or one frame ─▶ transmit: checksums, VLAN tag, padding ─▶ port
//! port ─▶ wire::ethernet: headers ─▶ rss: which queue ─▶ merge: LRO ─▶ receive: tag, checksums, CQE ─▶ strides, scatter: where it goes ─▶ memory
//! ```
//!
//! All are functions of what they are given: nobody here has queues, memory or time; what is being merged is the only state.

pub mod flow_key;
pub(crate) mod merge;
pub mod receive;
pub(crate) mod ring;
pub mod rss;
pub(crate) mod scatter;
pub mod segment;
pub(crate) mod strides;
pub mod transmit;
pub(crate) mod wqe;

use hca_spec::cqe::Syndrome;

/// Why a WQE or a frame can't be carried out: in plain words, and what its completion says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refused {
    /// In plain words.
    pub why: &'static str,
    /// Syndrome of the completion with error.
    pub syndrome: Syndrome,
}

impl Refused {
    /// A WQE that contradicts itself or asks for what there is not.
    pub(crate) const fn malformed(why: &'static str) -> Self {
        Self { why, syndrome: Syndrome::LocalQpOperation }
    }

    /// A frame or WQE of a length that can't be.
    pub(crate) const fn length(why: &'static str) -> Self {
        Self { why, syndrome: Syndrome::LocalLength }
    }
}
