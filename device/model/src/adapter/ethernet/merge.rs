//! Frames between steering and their queue, where a receiver has them merged.

use hca_spec::ids::Rqn;

use crate::adapter::core::Executor;
use crate::adapter::state::event::HcaEvent;
use crate::adapter::state::frames::{MergedFrame, QueuedFrame};
use crate::engines::nic::merge::{Delivered, Merging};
use crate::ground::time::Ps;
use crate::link_layer::Packet;
use crate::units::Inbound;

impl Executor<'_> {
    /// A frame has passed steering, to a receiver that merges.
    pub(crate) fn merge_frame(&mut self, now: Ps, frame: MergedFrame) {
        let MergedFrame { mut queued, rules } = frame;
        let (rqn, bytes) = (queued.rqn, queued.packet.as_frame());
        let frames = &mut self.core.function.frames;
        // A queue that is not ready gathers nothing: it drops what comes.
        if frames.rings.get(rqn.0).is_none() {
            return self.pass(now, queued);
        }
        if frames.merging.get(rqn.0).is_none() {
            frames.merging.insert(rqn.0, Merging::default());
        }
        let Some(merging) = frames.merging.get_mut(rqn.0) else { return };
        let turn = merging.take(bytes, &queued.headers, queued.steered, &rules);
        for out in turn.out {
            self.deliver(now, rqn, out);
        }
        if let Some(number) = turn.began {
            self.core.schedule(now + rules.timeout, HcaEvent::MergeTimeout(rqn, number));
        }
        if turn.passes {
            return self.pass(now, queued);
        }
        // Data goes to memory as it comes; the WQE and the completion are one for all.
        let inbound = Inbound { after: now, bytes: queued.packet.len(), ..Inbound::default() };
        let written = self.core.chip.units.receive(now, rqn.0, Ps::ZERO, inbound);
        self.in_order(rqn, written);
        queued.packet.retire();
    }

    /// A session of a queue was open long enough.
    pub(crate) fn merge_timeout(&mut self, now: Ps, rqn: Rqn, number: u32) {
        let merging = self.core.function.frames.merging.get_mut(rqn.0);
        if let Some(out) = merging.and_then(|merging| merging.expire(number)) {
            self.deliver(now, rqn, out);
        }
    }

    /// Something of a queue that merges is done at `at`: not before what came before it.
    fn in_order(&mut self, rqn: Rqn, at: Ps) -> Ps {
        let Some(merging) = self.core.function.frames.merging.get_mut(rqn.0) else { return at };
        merging.due = merging.due.max(at);
        merging.due
    }

    /// What was merged goes to its queue.
    fn deliver(&mut self, now: Ps, rqn: Rqn, out: Delivered) {
        let Delivered { frame, headers, steered } = out;
        let inbound = Inbound { after: now, takes_receive: true, completes: true, ..Inbound::default() };
        let at = self.core.chip.units.receive(now, rqn.0, self.core.chip.timing.deliver(), inbound);
        let at = self.in_order(rqn, at);
        // Each frame that is in it had room, or there would be none to tell of.
        let room = Some(self.core.chip.copies.owed(frame.len()));
        let queued = QueuedFrame { rqn, steered, headers, packet: Packet::frame(frame), room };
        self.core.schedule(at, HcaEvent::QueueFrame(Box::new(queued)));
    }

    /// A frame goes to its queue as it is.
    fn pass(&mut self, now: Ps, queued: QueuedFrame) {
        let inbound = Inbound {
            after: now,
            bytes: queued.packet.len(),
            takes_receive: true,
            completes: true,
            ..Inbound::default()
        };
        let service = self.core.chip.timing.deliver();
        let at = self.core.chip.units.receive(now, queued.rqn.0, service, inbound);
        let at = self.in_order(queued.rqn, at);
        self.core.schedule(at, HcaEvent::QueueFrame(Box::new(queued)));
    }
}
