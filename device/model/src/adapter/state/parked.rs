//! Inputs that wait for answers of the host's memory, in their order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::discriminant;
use std::ops::Bound;

use hca_spec::ids::{Qpn, Rqn};

use super::event::HcaEvent;
use crate::ground::epoch::Rebase;
use crate::ground::outstanding::InputId;
use crate::ground::time::Ps;

/// With so many packets waiting no credits go back to who sends by a link: it stops when the input buffer is full.
const BACKED_UP: usize = 64;
/// Packets that may wait in all, and their bytes: what comes beyond, by loopback or without credits, is dropped.
const MAX_PACKETS: usize = 4096;
const MAX_BYTES: usize = 16 << 20;

/// What inputs keep their order for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::adapter) enum Object {
    /// A queue pair, or a DC target with its connections.
    Qp(Qpn),
    /// A command slot.
    Slot(u8),
    /// A receive queue for frames.
    Rq(Rqn),
}

#[derive(Debug)]
pub(in crate::adapter) struct Waiting {
    pub(in crate::adapter) input: InputId,
    pub(in crate::adapter) event: HcaEvent,
}

/// Inputs that wait.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    /// In the order in which they came. Only the first of an object asks memory.
    queues: BTreeMap<Object, VecDeque<Waiting>>,
    /// First inputs that wait for answers.
    pub(in crate::adapter) asking: BTreeMap<InputId, Object>,
    /// First inputs that could not ask, or may not be carried out: memory takes no more for now.
    pub(in crate::adapter) held: BTreeMap<InputId, Object>,
    /// How many inputs are packets, and their bytes.
    packets: usize,
    bytes: usize,
    inputs: u64,
    /// Inputs that have begun to read and were not looked at since the memory changed.
    pub(in crate::adapter) unseen: BTreeSet<InputId>,
    /// Of those that were there then, the one that was looked at last.
    seen: InputId,
    /// An event comes that goes on.
    pub(in crate::adapter) resumes: bool,
}

/// The bytes of the packet that an event brings.
fn packet_bytes(event: &HcaEvent) -> Option<usize> {
    match event {
        HcaEvent::Receive(arrived) | HcaEvent::ReceiveCopy(_, arrived) => Some(arrived.packet().len()),
        HcaEvent::QueueFrame(queued) => Some(queued.packet.len()),
        _ => None,
    }
}

impl Parked {
    /// Whether so many packets wait that no credits go back for more.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.packets >= BACKED_UP
    }

    /// Whether nothing waits: what comes now comes behind nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Inputs that wait.
    pub(crate) fn len(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    pub(in crate::adapter) fn holds(&self, object: Object) -> bool {
        self.queues.contains_key(&object)
    }

    /// The next input to look at: each has its turn, however often the memory changes before all were looked at.
    pub(in crate::adapter) fn next_unseen(&mut self) -> Option<InputId> {
        let behind = (Bound::Excluded(self.seen), Bound::Unbounded);
        let next = self.unseen.range(behind).next().or(self.unseen.first()).copied()?;
        self.unseen.remove(&next);
        self.seen = if self.unseen.is_empty() { InputId::default() } else { next };
        Some(next)
    }

    pub(in crate::adapter) fn next_input(&mut self) -> InputId {
        self.inputs += 1;
        InputId(self.inputs)
    }

    /// Whether an event says no more than one that waits and has read nothing yet: one that only makes its queue pair look.
    pub(in crate::adapter) fn repeats(&self, object: Object, event: &HcaEvent) -> bool {
        let looks = matches!(
            event,
            HcaEvent::SendDoorbell(_)
                | HcaEvent::SendTurn(_)
                | HcaEvent::ResponseTurn(_)
                | HcaEvent::AckTimeout(_)
                | HcaEvent::Sent(_)
        );
        let same = |waiting: &Waiting| discriminant(&waiting.event) == discriminant(event);
        // The first one may have read already.
        looks && self.queues.get(&object).is_some_and(|queue| queue.iter().skip(1).any(same))
    }

    pub(in crate::adapter) fn has_room(&self, event: &HcaEvent) -> bool {
        packet_bytes(event)
            .is_none_or(|bytes| self.packets < MAX_PACKETS && self.bytes.saturating_add(bytes) <= MAX_BYTES)
    }

    /// What waits has the bytes of its packet: their sender may have its memory back meanwhile.
    pub(in crate::adapter) fn count(&mut self, event: &mut HcaEvent) {
        event.fetch_payload();
        if let Some(bytes) = packet_bytes(event) {
            (self.packets, self.bytes) = (self.packets + 1, self.bytes + bytes);
        }
    }

    /// Takes the first input of an object.
    pub(in crate::adapter) fn take(&mut self, object: Object) -> Option<Waiting> {
        let queue = self.queues.get_mut(&object)?;
        let waiting = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&object);
        }
        self.asking.remove(&waiting.input);
        self.held.remove(&waiting.input);
        if let Some(bytes) = packet_bytes(&waiting.event) {
            self.packets = self.packets.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        Some(waiting)
    }

    /// An input is the first of its object and waits, for answers if it is `asking`.
    pub(in crate::adapter) fn put_first(&mut self, object: Object, mut waiting: Waiting, asking: bool) {
        self.count(&mut waiting.event);
        let firsts = if asking { &mut self.asking } else { &mut self.held };
        firsts.insert(waiting.input, object);
        self.queues.entry(object).or_default().push_front(waiting);
    }

    /// An input waits behind others of its object.
    pub(in crate::adapter) fn put_last(&mut self, object: Object, mut waiting: Waiting) {
        self.count(&mut waiting.event);
        self.queues.entry(object).or_default().push_back(waiting);
    }
}

impl Rebase for Parked {
    fn rebase(&mut self, by: Ps) {
        let Self { queues, asking: _, held: _, packets: _, bytes: _, inputs: _, unseen: _, seen: _, .. } =
            self;
        queues.values_mut().flatten().for_each(|waiting| waiting.event.rebase(by));
    }
}
