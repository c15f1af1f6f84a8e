//! Frames carried out: what the Ethernet queues of a function send and receive beside its transport.
//!
//! ```text
//! arrive ─▶ steer: flow tables, TIRs, hash ─▶ (merge: LRO) ─▶ (pipelines, a unit) ─▶ receive: a queue's WQE, memory, completion
//! send: a WQE ─▶ its frames ─▶ port
//! tables: what sniffers see both ways, and RoCE packets on their way to and from the transport
//! ```

mod arrive;
mod copies;
mod merge;
mod receive;
mod send;
mod steer;
mod tables;

use hca_firmware::RqSource;
use hca_firmware::port::{Ethernet, FrameClass, Port};
use hca_firmware::steering::Verdict;
use hca_spec::ether::FCS_SIZE;
use hca_spec::ids::{Qpn, Rqn, Srqn};

use crate::engines::nic::merge::Merging;
use crate::engines::nic::ring::{FrameRing, OpenWqe};
use crate::engines::nic::rss::{HashRules, Hasher, KeyTables};
use crate::engines::nic::scatter::ScatterList;
use crate::ground::epoch::Rebase;
use crate::ground::slots::Slots;
use crate::ground::time::Ps;
use crate::link_layer::Packet;

pub(crate) use copies::Copies;
pub(crate) use merge::MergedFrame;
pub(crate) use receive::QueuedFrame;
use send::Begun;
use steer::Addressed;

/// What a function's Ethernet queues have in motion.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Receive queues that are ready or in error.
    rings: Slots<FrameRing>,
    /// Of queues with strides of their own: the WQE that has some left.
    open: Slots<OpenWqe>,
    /// The same of pools, by their number.
    shared: Slots<OpenWqe>,
    /// Of queues whose frames are merged: those that are.
    merging: Slots<Merging>,
    /// What TIRs hash with, made when they are first used.
    hashers: Slots<(HashRules, Hasher)>,
    keys: KeyTables,
    /// Of the frame that is steered, and its receive WQE: they are kept for their memory.
    verdict: Verdict,
    list: ScatterList,
    /// Of the frame that is steered, the queues that get it: kept for its memory.
    queues: Vec<Addressed>,
    /// Of send queues: a WQE of which not all frames were sent yet.
    begun: Slots<Box<Begun>>,
}

impl Frames {
    /// A receive queue begins anew.
    pub(crate) fn start(&mut self, rqn: Rqn) {
        self.open.remove(rqn.0);
        self.merging.remove(rqn.0);
        self.rings.insert(rqn.0, FrameRing::default());
    }

    /// How many WQEs a receive queue of its own has taken, modulo 2^16; None: it is not ready.
    pub(crate) fn taken(&self, rqn: Rqn) -> Option<u16> {
        self.rings.get(rqn.0).map(|ring| ring.head)
    }

    /// Where the WQE is kept that has strides left, and by which number: its pool's, or its queue's.
    fn open_of(&mut self, rqn: Rqn, source: RqSource) -> (&mut Slots<OpenWqe>, u32) {
        match source {
            RqSource::Own => (&mut self.open, rqn.0),
            RqSource::Pool(srqn) => (&mut self.shared, srqn),
        }
    }

    /// The WQE of which frames for a queue take strides, if one has some left.
    fn opened(&self, rqn: Rqn, source: RqSource) -> Option<&OpenWqe> {
        match source {
            RqSource::Own => self.open.get(rqn.0),
            RqSource::Pool(srqn) => self.shared.get(srqn),
        }
    }

    /// A pool is gone.
    pub(crate) fn forget_pool(&mut self, srqn: Srqn) {
        self.shared.remove(srqn.0);
    }

    /// A send queue goes on with nothing: it is gone, or begins anew.
    pub(crate) fn abandon(&mut self, sqn: Qpn) {
        self.begun.remove(sqn.0);
    }

    /// A receive queue takes nothing any more.
    pub(crate) fn stop(&mut self, rqn: Rqn) {
        self.open.remove(rqn.0);
        self.merging.remove(rqn.0);
        self.rings.remove(rqn.0);
    }
}

/// Which way a frame passes a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It arrived, for the transport or not.
    In {
        /// For the transport.
        transport: bool,
    },
    /// It leaves.
    Out,
}

/// Counts a frame at its port, if that is Ethernet.
#[inline]
pub(crate) fn count_frame(port: &mut Port, packet: &Packet, way: Way) {
    if let Some(ethernet) = port.ethernet_mut() {
        let class = FrameClass::of(packet.eth().dmac.0);
        count_bytes(ethernet, (class, packet.len(), packet.lane()), way, packet.is_built());
    }
}

/// Counts a transport packet of `len` bytes that one port receives, at its port, if that is Ethernet.
#[inline]
pub(crate) fn count_unicast(port: &mut Port, (len, lane): (usize, u8), way: Way) {
    if let Some(ethernet) = port.ethernet_mut() {
        count_bytes(ethernet, (FrameClass::Unicast, len, lane), way, true);
    }
}

/// Counts a frame of so many bytes and that priority; `built`: it was made here, of a transport packet.
#[inline]
fn count_bytes(
    ethernet: &mut Ethernet,
    (class, len, priority): (FrameClass, usize, u8),
    way: Way,
    built: bool,
) {
    let octets = len.saturating_sub(FCS_SIZE) as u64;
    let counters = &mut ethernet.counters;
    match way {
        Way::In { transport } => {
            counters.received(class, octets, priority);
            if transport {
                counters.rx.count_roce(class, octets);
            }
        }
        Way::Out => {
            counters.sent(class, octets, priority);
            if built {
                counters.tx.count_roce(class, octets);
            }
        }
    }
}

impl Rebase for Frames {
    fn rebase(&mut self, by: Ps) {
        let Self {
            rings: _,
            open: _,
            shared: _,
            merging,
            hashers: _,
            keys: _,
            verdict: _,
            list: _,
            queues: _,
            begun: _,
        } = self;
        merging.iter_mut().for_each(|(_, merging)| merging.rebase(by));
    }
}
