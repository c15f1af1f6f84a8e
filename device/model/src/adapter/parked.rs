//! Inputs that wait for answers of the host's memory: each is carried out in one go when all that it reads is there.
//!
//! Only where a part of the memory answers later ([`OutstandingReads`]); otherwise an input passes here at once. Inputs of one
//! object (a queue pair, a command slot) keep their order: what comes later waits behind, other objects go on. An input that
//! waited is carried out at the model's time of then.

use std::collections::{BTreeSet, VecDeque};
use std::mem::discriminant;
use std::sync::Arc;

use hca_firmware::commands::{Action, find};
use hca_firmware::object::Kind;
use hca_spec::be32;
use hca_spec::command::Opcode;
use hca_spec::ids::Qpn;

use super::Hca;
use super::core::HcaEvent;
use crate::engines::command::Fetch;
use crate::engines::qp::datagram::MULTICAST_QP;
use crate::ground::dma::GuestMemory;
use crate::ground::outstanding::{InputId, OutstandingReads};
use crate::ground::time::Ps;

/// With so many packets waiting no credits go back to who sends by a link: it stops when the input buffer is full.
const BACKED_UP: usize = 64;
/// Packets that may wait in all, and their bytes: what comes beyond, by loopback or without credits, is dropped.
const MAX_PACKETS: usize = 4096;
const MAX_BYTES: usize = 16 << 20;

/// What inputs keep their order for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    /// A queue pair, or a DC target with its connections.
    Qp(Qpn),
    /// A command slot.
    Slot(u8),
}

#[derive(Debug)]
struct Waiting {
    input: InputId,
    object: Object,
    event: HcaEvent,
}

/// Inputs that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    queue: VecDeque<Waiting>,
    /// How many of them are packets, and their bytes.
    packets: usize,
    bytes: usize,
    inputs: u64,
}

/// The bytes of the packet that an event brings.
fn packet_bytes(event: &HcaEvent) -> Option<usize> {
    match event {
        HcaEvent::Receive(arrived) | HcaEvent::ReceiveCopy(_, arrived) => Some(arrived.packet().len()),
        _ => None,
    }
}

impl Parked {
    fn holds(&self, object: Object) -> bool {
        self.queue.iter().any(|waiting| waiting.object == object)
    }

    fn next_input(&mut self) -> InputId {
        self.inputs += 1;
        InputId(self.inputs)
    }

    /// Whether an event says no more than one that waits and has read nothing yet: one that only makes its queue pair look.
    fn repeats(&self, object: Object, event: &HcaEvent) -> bool {
        let looks = matches!(
            event,
            HcaEvent::SendDoorbell(_)
                | HcaEvent::SendTurn(_)
                | HcaEvent::ResponseTurn(_)
                | HcaEvent::AckTimeout(_)
                | HcaEvent::Sent(_)
        );
        let mut of_object = self.queue.iter().filter(|waiting| waiting.object == object);
        // The first one may have read already.
        of_object.next();
        looks && of_object.any(|waiting| discriminant(&waiting.event) == discriminant(event))
    }

    fn has_room(&self, event: &HcaEvent) -> bool {
        packet_bytes(event)
            .is_none_or(|bytes| self.packets < MAX_PACKETS && self.bytes.saturating_add(bytes) <= MAX_BYTES)
    }

    fn count(&mut self, event: &HcaEvent) {
        if let Some(bytes) = packet_bytes(event) {
            (self.packets, self.bytes) = (self.packets + 1, self.bytes + bytes);
        }
    }

    fn take(&mut self, at: usize) -> Option<Waiting> {
        let waiting = self.queue.remove(at)?;
        if let Some(bytes) = packet_bytes(&waiting.event) {
            self.packets = self.packets.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        Some(waiting)
    }

    fn put(&mut self, at: usize, waiting: Waiting) {
        self.count(&waiting.event);
        self.queue.insert(at.min(self.queue.len()), waiting);
    }
}

/// The queue pair that a command is about.
fn queue_pair_of(fetch: &Fetch) -> Option<Qpn> {
    let input = fetch.input();
    let object = find(Opcode::from_u16((be32(input, 0) >> 16) as u16)?)?.object?;
    let of_qp = object.kind == Kind::Qp && object.action != Action::Create;
    of_qp.then(|| Qpn(be32(input, object.at) & object.kind.number_mask()))
}

impl Hca {
    /// The host's memory is there.
    pub(crate) fn attach(&mut self, memory: Arc<dyn GuestMemory>) {
        self.core.memory = memory.clone();
        self.core.outstanding = None;
        self.host = memory;
        self.parked = Parked::default();
        self.follow_memory();
    }

    /// From the time on when a part of the host's memory answers later, inputs are planned before they are carried out.
    fn follow_memory(&mut self) {
        if self.core.outstanding.is_none() && self.host.deferred().is_some() {
            let outstanding = Arc::new(OutstandingReads::new(self.host.clone()));
            self.core.memory = outstanding.clone();
            self.core.outstanding = Some(outstanding);
        }
    }

    /// Answers came, or memory answers otherwise than before: what waited is looked at again.
    pub(crate) fn memory_changed(&mut self, now: Ps) {
        self.follow_memory();
        let Some(outstanding) = self.core.outstanding.clone() else { return };
        outstanding.take_answers(|why| {
            self.core.diagnose(now, format_args!("a write that was posted failed: {why}"));
        });
        let (mut blocked, mut at) = (BTreeSet::new(), 0);
        while let Some(Waiting { input, object, .. }) = self.parked.queue.get(at) {
            if blocked.contains(object) || outstanding.waits(*input) {
                blocked.insert(*object);
                at += 1;
                continue;
            }
            let Some(Waiting { input, object, event }) = self.parked.take(at) else { return };
            if let Err(event) = self.try_input(now, input, event) {
                blocked.insert(object);
                self.parked.put(at, Waiting { input, object, event });
                at += 1;
            }
        }
    }

    /// What [`Hca::handle`] does where memory answers later. A turn that waits for room at the port reads nothing yet.
    #[cold]
    pub(crate) fn plan_first(&mut self, now: Ps, event: HcaEvent) {
        match event {
            turn @ (HcaEvent::SendTurn(_) | HcaEvent::ResponseTurn(_) | HcaEvent::DynamicTurn(_)) => {
                self.try_turn(now, turn);
            }
            event => self.admit(now, event),
        }
    }

    /// Carries an input out, now or when all that it reads is there.
    #[cold]
    pub(crate) fn admit(&mut self, now: Ps, event: HcaEvent) {
        let Some(object) = self.object_of(&event) else { return self.carry_out(now, event) };
        let input = self.parked.next_input();
        let event = match self.parked.holds(object) {
            false => match self.try_input(now, input, event) {
                Ok(()) => return,
                Err(event) => event,
            },
            true => match event {
                // The WQE is in memory as well.
                HcaEvent::BlueFlame(qpn, _) => HcaEvent::SendDoorbell(qpn),
                event => event,
            },
        };
        if self.parked.repeats(object, &event) {
            return;
        }
        if !self.parked.has_room(&event) {
            if let HcaEvent::Receive(arrived) | HcaEvent::ReceiveCopy(_, arrived) = event {
                self.note_drop(
                    now,
                    arrived.packet(),
                    format_args!("too many packets wait for the host's memory"),
                );
            }
            return;
        }
        let at = self.parked.queue.len();
        self.parked.put(at, Waiting { input, object, event });
    }

    /// Carries an input out if all that it reads is there; asks for it otherwise.
    fn try_input(&mut self, now: Ps, input: InputId, event: HcaEvent) -> Result<(), HcaEvent> {
        if let Some(outstanding) = self.core.outstanding.clone() {
            if !outstanding.takes_writes() || !outstanding.plan(input, || self.plan(&event)) {
                return Err(event);
            }
            let begun = outstanding.begin(input);
            match event {
                turn @ (HcaEvent::SendTurn(_) | HcaEvent::ResponseTurn(_) | HcaEvent::DynamicTurn(_)) => {
                    self.take_turn(now, turn);
                }
                event => self.carry_out(now, event),
            }
            outstanding.end(begun);
        }
        Ok(())
    }

    /// What an input keeps its order for; `None`: it reads nothing.
    fn object_of(&self, event: &HcaEvent) -> Option<Object> {
        Some(match event {
            HcaEvent::Command(slot) => Object::Slot(*slot),
            HcaEvent::FetchCommand(fetch) => Object::Slot(fetch.slot),
            HcaEvent::ExecuteCommand(fetch) => match queue_pair_of(fetch) {
                Some(qpn) => Object::Qp(qpn),
                None => Object::Slot(fetch.slot),
            },
            HcaEvent::CommandDone(output) => Object::Slot(output.slot),
            HcaEvent::SendDoorbell(qpn)
            | HcaEvent::BlueFlame(qpn, _)
            | HcaEvent::SendTurn(qpn)
            | HcaEvent::ResponseTurn(qpn)
            | HcaEvent::AckTimeout(qpn)
            | HcaEvent::ErrorPoll(qpn)
            | HcaEvent::RnrTimeout(qpn, _)
            | HcaEvent::Sent(qpn)
            | HcaEvent::DynamicDrain(qpn, _)
            | HcaEvent::ReceiveCopy(qpn, _) => Object::Qp(*qpn),
            HcaEvent::DynamicTurn(peer) | HcaEvent::DynamicIdle(peer) => Object::Qp(peer.dctn),
            // A copy for each member of the group waits for itself.
            HcaEvent::Receive(arrived) if arrived.repr().dest_qp == MULTICAST_QP => return None,
            HcaEvent::Receive(arrived) => Object::Qp(self.receiver_of(arrived.repr())?),
            HcaEvent::Depart(..)
            | HcaEvent::CqModeration(..)
            | HcaEvent::CqSession(..)
            | HcaEvent::Interrupt(_)
            | HcaEvent::PortTurn
            | HcaEvent::Answer(_)
            | HcaEvent::AgentPoll
            | HcaEvent::LinkUp => return None,
        })
    }

    /// Whether too many packets wait for the host's memory.
    #[inline]
    pub(crate) fn is_backed_up(&self) -> bool {
        self.parked.packets >= BACKED_UP
    }

    /// Inputs that wait.
    pub(crate) fn parked(&self) -> usize {
        self.parked.queue.len()
    }
}
