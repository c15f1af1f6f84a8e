//! What passes over a link.

use super::training::{Light, Session};
use crate::ground::time::Ps;
use crate::link_layer::Packet;

/// What passes over a link from one of its ends to the other, besides the time at which it arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkMessage {
    /// A packet; its time is that of its first byte.
    Packet(LinkPacket),
    /// Room came free in the input buffer of the end that tells it.
    Credit {
        /// Of which virtual lane.
        lane: u8,
        /// In units of 64 bytes (IBTA vol 1 7.9.4.3).
        blocks: u32,
        /// In which session it was taken.
        session: Session,
    },
    /// The state of the end that tells it.
    Light(Light),
}

/// A packet on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkPacket {
    /// LRH to VCRC.
    pub packet: Packet,
    /// How long after its first byte its last one arrives.
    pub tail: Ps,
    /// Credits that it takes, in units of 64 bytes: none on VL15, and none of a copy that the link made of itself.
    pub credits: u16,
    /// In which session it left.
    pub session: Session,
}
