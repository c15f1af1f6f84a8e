//! What a function's Ethernet queues have in motion, and frames on their way to them.

use hca_firmware::RqSource;
use hca_firmware::steering::Verdict;
use hca_spec::ids::{Qpn, Rqn, Srqn};

use super::copies::CopyRoom;
use crate::engines::nic::merge::{MergeRules, Merging};
use crate::engines::nic::receive::Steered;
use crate::engines::nic::ring::{FrameRing, OpenWqe};
use crate::engines::nic::rss::{HashRules, Hasher, KeyTables};
use crate::engines::nic::scatter::ScatterList;
use crate::engines::nic::wqe::EthWqe;
use crate::ground::epoch::Rebase;
use crate::ground::slots::Slots;
use crate::ground::time::Ps;
use crate::link_layer::Packet;
use crate::wire::ethernet::Headers;

/// A frame on its way to a receive queue.
#[derive(Debug)]
pub(crate) struct QueuedFrame {
    pub(crate) rqn: Rqn,
    pub(crate) steered: Steered,
    pub(crate) headers: Headers,
    /// Its bytes are there ([`Packet::as_frame`] was called).
    pub(crate) packet: Packet,
    /// Of a copy, and of frames that are one now: the room that it has.
    pub(crate) room: Option<CopyRoom>,
}

/// A frame on its way to a receive queue, with what its receiver merges.
#[derive(Debug)]
pub(crate) struct MergedFrame {
    pub(crate) queued: QueuedFrame,
    pub(crate) rules: MergeRules,
}

/// A WQE that was begun: so many frames of it were sent.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(in crate::adapter) wqe: EthWqe,
    pub(in crate::adapter) frames: u64,
    /// Bytes of those on the wire.
    pub(in crate::adapter) bytes: u64,
}

/// A frame that tables changed on its way to a TIR.
#[derive(Debug)]
pub(in crate::adapter) struct ChangedFrame {
    pub(in crate::adapter) headers: Headers,
    pub(in crate::adapter) inner: Option<Headers>,
    pub(in crate::adapter) packet: Packet,
}

/// A receive queue that gets a frame.
#[derive(Debug)]
pub(in crate::adapter) struct Addressed {
    pub(in crate::adapter) rqn: Rqn,
    pub(in crate::adapter) steered: Steered,
    pub(in crate::adapter) merge: Option<MergeRules>,
    /// What it gets instead, if tables changed it.
    pub(in crate::adapter) changed: Option<Box<ChangedFrame>>,
}

/// What a function's Ethernet queues have in motion.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Receive queues that are ready or in error.
    pub(in crate::adapter) rings: Slots<FrameRing>,
    /// Of queues with strides of their own: the WQE that has some left.
    pub(in crate::adapter) open: Slots<OpenWqe>,
    /// The same of pools, by their number.
    shared: Slots<OpenWqe>,
    /// Of queues whose frames are merged: those that are.
    pub(in crate::adapter) merging: Slots<Merging>,
    /// What TIRs hash with, made when they are first used.
    pub(in crate::adapter) hashers: Slots<(HashRules, Hasher)>,
    pub(in crate::adapter) keys: KeyTables,
    /// Of the frame that is steered, and its receive WQE: they are kept for their memory.
    pub(in crate::adapter) verdict: Verdict,
    pub(in crate::adapter) list: ScatterList,
    /// Of the frame that is steered, the queues that get it: kept for its memory.
    pub(in crate::adapter) queues: Vec<Addressed>,
    /// Of send queues: a WQE of which not all frames were sent yet.
    pub(in crate::adapter) begun: Slots<Box<Begun>>,
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
    pub(in crate::adapter) fn open_of(&mut self, rqn: Rqn, source: RqSource) -> (&mut Slots<OpenWqe>, u32) {
        match source {
            RqSource::Own => (&mut self.open, rqn.0),
            RqSource::Pool(srqn) => (&mut self.shared, srqn),
        }
    }

    /// The WQE of which frames for a queue take strides, if one has some left.
    pub(in crate::adapter) fn opened(&self, rqn: Rqn, source: RqSource) -> Option<&OpenWqe> {
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
