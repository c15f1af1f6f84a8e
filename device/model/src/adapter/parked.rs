//! Inputs that wait for answers of the host's memory: each is carried out in one go when all that it reads is there.
//!
//! Only where a part of the memory answers later ([`OutstandingReads`]); otherwise an input passes here at once. Inputs of one
//! object (a queue pair, a command slot) keep their order: what comes later waits behind, other objects go on. An input that
//! waited is carried out at the model's time of then.

use std::sync::Arc;

use hca_firmware::commands::{Action, find};
use hca_firmware::object::Kind;
use hca_spec::be32;
use hca_spec::command::Opcode;
use hca_spec::cqe::Cqe;
use hca_spec::ids::Qpn;

use super::core::Executor;
use super::state::event::HcaEvent;
use super::state::parked::{Object, Parked, Waiting};
use crate::engines::command::Fetch;
use crate::engines::qp::datagram::MULTICAST_QP;
use crate::faults::Held;
use crate::ground::dma::GuestMemory;
use crate::ground::outstanding::{InputId, OutstandingReads};
use crate::ground::time::Ps;

/// Inputs that waited and are looked at in one event, whether they are carried out or wait on: each is a command, a turn, or a packet, which may
/// walk a long list.
const MOST_AT_ONCE: usize = 16;

/// The queue pair that a command is about.
fn queue_pair_of(fetch: &Fetch) -> Option<Qpn> {
    let input = fetch.input();
    let object = find(Opcode::from_u16((be32(input, 0) >> 16) as u16)?)?.object?;
    let of_qp = object.kind == Kind::Qp && object.action != Action::Create;
    of_qp.then(|| Qpn(be32(input, object.at) & object.kind.number_mask()))
}

impl Executor<'_> {
    /// The host's memory is there.
    pub(crate) fn attach(&mut self, memory: Arc<dyn GuestMemory>) {
        self.core.function.memory = memory.clone();
        self.core.function.outstanding = None;
        self.side.host = memory;
        (self.side.parked, self.side.planned) = (Parked::default(), false);
        self.follow_memory();
    }

    /// From the time on when a part of the host's memory answers later, inputs are planned before they are carried out.
    fn follow_memory(&mut self) {
        if self.core.function.outstanding.is_none() && self.side.host.deferred().is_some() {
            let outstanding = Arc::new(OutstandingReads::new(self.side.host.clone()));
            self.core.function.memory = outstanding.clone();
            self.core.function.outstanding = Some(outstanding);
        }
        self.spoil_memory();
    }

    /// Answers came, or memory answers otherwise than before: what waited is looked at again.
    pub(crate) fn memory_changed(&mut self, now: Ps) {
        self.follow_memory();
        let Some(outstanding) = self.core.function.outstanding.clone() else { return };
        // What is known of pages may be of windows that are gone: it is looked up again.
        self.core.function.key_changes += 1;
        outstanding.take_answers(|why| {
            self.core.diagnose(now, format_args!("a write that was posted failed: {why}"));
        });
        self.side.parked.unseen = outstanding.inputs();
        self.go_on_with_held(now, &outstanding);
    }

    /// Inputs that could have been carried out go on, as those before them took what one event may.
    pub(crate) fn resume(&mut self, now: Ps) {
        self.side.parked.resumes = false;
        let Some(outstanding) = self.core.function.outstanding.clone() else { return };
        self.go_on_with_held(now, &outstanding);
    }

    /// Carries out what waits for no answer, as much as one event may; the rest in an event of its own.
    fn go_on_with_held(&mut self, now: Ps, outstanding: &OutstandingReads) {
        let mut left = MOST_AT_ONCE;
        // Those that have begun to read first: the others can't begin before they end.
        while left > 0
            && let Some(input) = self.side.parked.next_unseen()
        {
            let Parked { asking, held, .. } = &self.side.parked;
            if let Some(object) = asking.get(&input).or_else(|| held.get(&input))
                && outstanding.may_go_on(input)
            {
                self.go_on(now, *object, &mut left);
            }
        }
        while left > 0
            && let Some((input, object)) = self.side.parked.held.first_key_value().map(|(i, o)| (*i, *o))
        {
            self.go_on(now, object, &mut left);
            if self.side.parked.held.contains_key(&input) {
                break;
            }
        }
        if left == 0 && !std::mem::replace(&mut self.side.parked.resumes, true) {
            self.core.schedule(now, HcaEvent::Resume);
        }
    }

    /// Carries out what waits of an object, as far as all is there; `left` inputs are looked at, at most.
    fn go_on(&mut self, now: Ps, object: Object, left: &mut usize) {
        while let Some(Waiting { input, event }) = self.side.parked.take(object) {
            if *left == 0 {
                return self.park_first(object, Waiting { input, event });
            }
            *left -= 1;
            if let Err(event) = self.try_input(now, input, event) {
                return self.park_first(object, Waiting { input, event });
            }
        }
    }

    fn park_first(&mut self, object: Object, waiting: Waiting) {
        let asking = self.core.function.outstanding.as_ref().is_some_and(|reads| reads.waits(waiting.input));
        self.side.parked.put_first(object, waiting, asking);
    }

    /// Whether too many packets wait for the host's memory.
    #[inline]
    pub(crate) fn is_backed_up(&self) -> bool {
        self.side.parked.is_backed_up()
    }

    /// What [`Executor::handle`] does where memory answers later. A turn that waits for room at the port reads nothing yet.
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
        let input = self.side.parked.next_input();
        if !self.side.parked.holds(object) {
            if let Err(event) = self.try_input(now, input, event) {
                match self.side.parked.has_room(&event) {
                    true => self.park_first(object, Waiting { input, event }),
                    false => self.drop_packet(now, input, &event),
                }
            }
            return;
        }
        let event = match event {
            // The WQE is in memory as well.
            HcaEvent::BlueFlame(qpn, _) => HcaEvent::SendDoorbell(qpn),
            event => event,
        };
        match self.side.parked.has_room(&event) {
            true if self.side.parked.repeats(object, &event) => {}
            true => self.side.parked.put_last(object, Waiting { input, event }),
            false => self.drop_packet(now, input, &event),
        }
    }

    /// There is no room for a packet that would have to wait.
    fn drop_packet(&mut self, now: Ps, input: InputId, event: &HcaEvent) {
        if let HcaEvent::Receive(arrived) | HcaEvent::ReceiveCopy(_, arrived) = event {
            self.note_drop(
                now,
                arrived.packet(),
                format_args!("too many packets wait for the host's memory"),
            );
        }
        if let Some(outstanding) = &self.core.function.outstanding {
            outstanding.give_up(input);
        }
    }

    /// Has an event handled that was planned, or reads nothing.
    fn carry_out(&mut self, now: Ps, event: HcaEvent) {
        self.side.planned = true;
        self.handle(now, event);
    }

    /// Carries an input out if all that it reads is there; asks for it otherwise.
    fn try_input(&mut self, now: Ps, input: InputId, event: HcaEvent) -> Result<(), HcaEvent> {
        if let Some(outstanding) = self.core.function.outstanding.clone() {
            if !outstanding.takes_writes() || !outstanding.plan(input, || self.plan(&event)) {
                return Err(event);
            }
            let begun = outstanding.begin(input);
            match event {
                turn @ (HcaEvent::SendTurn(_) | HcaEvent::ResponseTurn(_) | HcaEvent::DynamicTurn(_)) => {
                    self.take_turn(now, &turn);
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
            | HcaEvent::ReceiveCopy(qpn, _) => Object::Qp(*qpn),
            HcaEvent::DynamicDrain(drain) => Object::Qp(drain.dctn),
            HcaEvent::DynamicFault(told) => Object::Qp(told.dctn),
            HcaEvent::DynamicTurn(peer) | HcaEvent::DynamicIdle(peer) => Object::Qp(peer.dctn),
            // A copy for each member of the group waits for itself.
            HcaEvent::Receive(arrived) if arrived.repr().dest_qp == MULTICAST_QP => return None,
            HcaEvent::QueueFrame(queued) => Object::Rq(queued.rqn),
            HcaEvent::FlushFrames(rqn) => Object::Rq(*rqn),
            HcaEvent::Receive(arrived) => Object::Qp(self.receiver_of(arrived)?),
            HcaEvent::Scripted(held) => match &**held {
                Held::Completion(_, cqe, ..) => Object::Qp(Qpn(cqe.get(Cqe::QPN))),
                Held::FailQp(qpn) | Held::FailSends(qpn) => Object::Qp(*qpn),
                Held::FailRq(rqn) => Object::Rq(*rqn),
                Held::Interrupt(..) | Held::Event(..) => return None,
            },
            HcaEvent::Depart(..)
            | HcaEvent::MergeFrame(_)
            | HcaEvent::MergeTimeout(..)
            | HcaEvent::CqModeration(..)
            | HcaEvent::CqSession(..)
            | HcaEvent::Interrupt(_)
            | HcaEvent::PortTurn(_)
            | HcaEvent::GroupTurn
            | HcaEvent::Resume
            | HcaEvent::Answer(..)
            | HcaEvent::AgentPoll(_)
            | HcaEvent::LinkUp(_)
            | HcaEvent::PortChange(..)
            | HcaEvent::Module(..)
            | HcaEvent::Heat(_)
            | HcaEvent::Traces
            | HcaEvent::TakenAway
            | HcaEvent::SyncReset(_)
            | HcaEvent::SyncResetLate(_)
            | HcaEvent::TracerFree => return None,
        })
    }
}
