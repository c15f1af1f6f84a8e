//! The peer's answers: what they complete, and what they make the requester send again.
//!
//! Source: IBTA 9.7.5.1.2 (which responses count), 9.7.6 (retries and timers), 9.7.7.2 (credits), 9.9.2
//! (requester error behaviour), tables 45 and 46.

use hca_spec::cqe::Syndrome;
use hca_spec::ids::Psn;
use hca_spec::qpc::rnr_timer_ns;
use hca_spec::wire::{Operation, aeth};
use hca_spec::wqe::SendOpcode;

use super::message::Message;
use super::requester::Requester;
use super::{Params, QueuePair, credits};
use crate::engines::pieces::spans;
use crate::engines::view::View;
use crate::ground::time::Ps;
use crate::ground::timing::{Mark, Place};
use crate::wire::{AethRepr, Repr};

/// Bytes of an atomic's operand.
const OPERAND: usize = 8;
/// RNR retry count that means "for ever".
const RNR_FOR_EVER: u32 = 7;

/// Whether an answer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acceptance {
    /// It is outside what is outstanding, or must wait for a page.
    Ghost,
    /// It is the last one again, and may have brought credits.
    CreditsOnly,
    /// It answers something.
    Answer,
}

/// What an ACK packet says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything up to and with its PSN is done.
    Ack,
    /// The receiver was not ready; to be tried again after that time.
    NotReady(Ps),
    /// A packet is missing.
    Sequence,
    /// The request at its PSN was refused.
    Refused(Syndrome),
    /// Nothing that is known.
    Nothing,
}

impl Verdict {
    /// Reads an AETH (IBTA tables 45 and 46).
    pub(crate) fn of(aeth: AethRepr) -> Self {
        let syndrome = u32::from(aeth.syndrome);
        let value = syndrome & aeth::VALUE_MASK;
        match syndrome & aeth::KIND_MASK {
            aeth::ACK => Self::Ack,
            aeth::RNR_NAK => Self::NotReady(Ps::from_ns(rnr_timer_ns(value))),
            aeth::NAK => match value {
                aeth::PSN_SEQUENCE_ERROR => Self::Sequence,
                aeth::INVALID_REQUEST => Self::Refused(Syndrome::RemoteInvalidRequest),
                aeth::REMOTE_ACCESS_ERROR => Self::Refused(Syndrome::RemoteAccess),
                aeth::REMOTE_OPERATIONAL_ERROR => Self::Refused(Syndrome::RemoteOperation),
                _ => Self::Refused(Syndrome::BadResponse),
            },
            _ => Self::Nothing,
        }
    }
}

/// What an acknowledgement moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// The response that is missing, if one is: from there on it has to be asked for again.
    pub(crate) missing: Option<Psn>,
    /// Something was acknowledged that was not before.
    pub(crate) progressed: bool,
}

/// What is done with the data of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    /// Nothing: it belongs to nothing, or came before.
    Nothing,
    /// One before it is missing, from this PSN on.
    Gap(Psn),
    /// It is not what was asked for.
    Bad,
    /// It goes into the completion.
    IntoCompletion(usize),
    /// It goes into the buffers of the message at that place, from that byte on.
    IntoBuffers { place: usize, offset: u64 },
}

/// What a response does to the units: where its data goes, whether it completes something, and what its WQE is known by,
/// which is needed again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) bytes: usize,
    pub(crate) to: Option<Place>,
    pub(crate) completes: bool,
    pub(crate) wqe: Option<Mark>,
}

impl Requester {
    /// Everything before `psn` is acknowledged, except responses that have not come.
    pub(crate) fn acknowledge(&mut self, psn: Psn) -> Acknowledged {
        let mut missing = None;
        let before = self.oldest();
        for m in &mut self.messages {
            let covered = psn.since(m.first);
            if covered <= 0 {
                break;
            }
            if m.wants_response() {
                if m.answered < m.packets {
                    missing = Some(m.first.add(m.answered));
                    break;
                }
            } else {
                m.answered = m.answered.max((covered as u32).min(m.packets));
            }
        }
        Acknowledged { missing, progressed: self.oldest() != before }
    }

    /// What a positive answer says of the peer's receive queue.
    fn take_credits(&mut self, aeth: AethRepr) {
        let syndrome = u32::from(aeth.syndrome);
        if syndrome & aeth::KIND_MASK == aeth::ACK {
            self.limit.update(aeth.msn, credits::decode(syndrome & aeth::VALUE_MASK));
        }
    }

    /// The receiver was not ready for packet `psn`: it is sent again at `until`. Returns the generation of the timer.
    ///
    /// # Errors
    /// The RNR retries are used up.
    pub(crate) fn receiver_not_ready(
        &mut self,
        psn: Psn,
        until: Ps,
        params: &Params,
    ) -> Result<u32, Syndrome> {
        if params.rnr_retry != RNR_FOR_EVER {
            self.rnr_left = self.rnr_left.checked_sub(1).ok_or(Syndrome::RnrRetryExceeded)?;
        }
        self.cursor = psn;
        self.deadline = None;
        self.rnr_until = Some(until);
        self.rnr_generation = self.rnr_generation.wrapping_add(1);
        Ok(self.rnr_generation)
    }

    /// Whether packet `psn` waits until the receiver is ready: a NAK of it says nothing new then. Who sent the RNR NAK may send one for each
    /// packet that was behind this one, too, as soft-RoCE does (`rxe_resp.c`, a sequence error).
    pub(crate) fn waits_for_receiver(&self, psn: Psn) -> bool {
        self.rnr_until.is_some() && self.cursor == psn
    }

    /// The RNR timer of that generation ran out. Returns whether it still counted.
    pub(crate) fn ready_again(&mut self, generation: u32) -> bool {
        self.rnr_generation == generation && self.rnr_until.take().is_some()
    }

    /// The message that owns `psn` fails, when all before it are complete. Returns whether there is one.
    pub(crate) fn fail_at(&mut self, psn: Psn, syndrome: Syndrome) -> bool {
        let place = self.place_of(psn);
        let Some(m) = place.and_then(|place| self.messages.get_mut(place)) else { return false };
        m.failed = Some(syndrome);
        self.poisoned = true;
        true
    }

    /// The response `missing` did not come although later ones did. Returns whether it is to be asked for again: once.
    pub(crate) fn is_new_gap(&mut self, missing: Psn) -> bool {
        self.gap.replace(missing) != Some(missing)
    }

    /// What the ACK timer, which ran out at `now`, is for.
    pub(crate) fn timer_ran_out(&mut self, now: Ps) -> Timer {
        if self.timer.take_if(|at| *at <= now).is_none() {
            return Timer::Stopped;
        }
        match self.deadline {
            None => Timer::Stopped,
            Some(deadline) if deadline > now => {
                self.timer = Some(deadline);
                Timer::Later(deadline)
            }
            Some(_) => {
                (self.deadline, self.gap) = (None, None);
                Timer::Timeout(self.oldest())
            }
        }
    }

    /// The ACK timer shall run until then. Returns whether an event has to be scheduled for it.
    pub(crate) fn run_timer(&mut self, deadline: Ps) -> bool {
        self.deadline = Some(deadline);
        let sooner = self.timer.is_none_or(|at| deadline < at);
        if sooner {
            self.timer = Some(deadline);
        }
        sooner
    }

    /// Sends again from `psn` on: one retry less.
    pub(crate) fn retry(&mut self, psn: Psn) {
        self.retries_left = self.retries_left.saturating_sub(1);
        self.repeat(psn);
    }

    /// Sends again from `psn` on, which costs no retry.
    pub(crate) fn repeat(&mut self, psn: Psn) {
        self.cursor = psn;
        self.deadline = None;
        if let Some(patience) = &mut self.patience {
            patience.sent_again();
        }
    }

    /// The first PSN of the message that a response is of.
    pub(crate) fn request_of(&self, psn: Psn) -> Option<Psn> {
        self.message_of(psn).map(|m| m.first)
    }
}

/// The ACK timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Nothing is waited for.
    Stopped,
    /// The deadline has moved to then.
    Later(Ps),
    /// The packet with that PSN was not answered in time.
    Timeout(Psn),
}

impl QueuePair {
    /// What a response that arrives will do. One that belongs to nothing does nothing.
    #[inline(always)]
    pub(crate) fn expect_response(&self, view: &View<'_>, repr: &Repr, payload: usize) -> Expected {
        let mut expected = Expected { bytes: payload, ..Expected::default() };
        let Some(message) = self.requester.message_of(repr.psn) else {
            return Expected::default();
        };
        let last = message.end().prev() == repr.psn;
        expected.completes = message.wqe.signaled && last;
        if !message.wants_response() || repr.operation == Operation::Acknowledge {
            return expected;
        }
        let offset = repr.psn.since(message.first).max(0) as u64 * self.params.mtu as u64;
        if repr.operation == Operation::AtomicAcknowledge {
            expected.bytes = message.operand();
        }
        expected.to = spans(view.icm(), &message.wqe.pieces, offset, expected.bytes).next();
        let first = repr.psn == message.first;
        expected.wqe = message.mark.filter(|_| first);
        expected
    }

    /// Whether a response packet counts (IBTA 9.7.5.1.2); takes the credits that it brings.
    pub(crate) fn accept_response(&mut self, repr: &Repr) -> Acceptance {
        if !self.service.is_reliable() || !self.sends() {
            return Acceptance::Ghost;
        }
        let r = &mut self.requester;
        let distance = repr.psn.since(r.oldest());
        if distance < -1 || repr.psn.since(r.sent) >= 0 || r.held(repr.psn) {
            return Acceptance::Ghost;
        }
        if let Some(aeth) = repr.aeth {
            r.take_credits(aeth);
        }
        if distance < 0 { Acceptance::CreditsOnly } else { Acceptance::Answer }
    }

    /// What is done with the data of a response, of which there are `len` bytes; a completion of the send queue has room
    /// for `room`. Everything before the request was acknowledged.
    pub(crate) fn locate_data(&self, repr: &Repr, len: usize, room: usize) -> Data {
        let found = self.requester.place_of(repr.psn);
        let found = found.and_then(|place| Some((place, self.requester.messages.get(place)?)));
        let Some((place, message)) = found else { return Data::Nothing };
        if !message.wants_response() {
            // A send or a write is acknowledged, and has no data (IBTA 9.9.2.2).
            return Data::Bad;
        }
        let expected = message.first.add(message.answered);
        match repr.psn.since(expected) {
            distance if distance < 0 => return Data::Nothing,
            0 => {}
            _ => return Data::Gap(expected),
        }
        let offset = u64::from(message.answered) * self.params.mtu as u64;
        let is_read = message.wqe.opcode == SendOpcode::RdmaRead;
        let due = match is_read {
            true => {
                (message.wqe.length - offset.min(message.wqe.length)).min(self.params.mtu as u64) as usize
            }
            false => message.operand(),
        };
        // A read's response ends where its request said, no matter from where on it was asked for again.
        let ends = matches!(repr.operation, Operation::ReadResponseLast | Operation::ReadResponseOnly);
        let misplaced = is_read && ends != (message.answered + 1 == message.packets);
        if len != due || misplaced || is_read == (repr.operation == Operation::AtomicAcknowledge) {
            return Data::Bad;
        }
        let small = message.packets == 1 && message.wqe.signaled;
        match small && len <= room {
            true => Data::IntoCompletion(place),
            false => Data::IntoBuffers { place, offset },
        }
    }

    /// Bytes of the operand of the atomic with that PSN; of 8 if it is none.
    pub(crate) fn operand(&self, psn: Psn) -> usize {
        self.requester.message_of(psn).map_or(OPERAND, Message::operand)
    }

    /// Whether packets may be sent again from `psn` on.
    pub(crate) fn may_retry(&self, psn: Psn) -> bool {
        let r = &self.requester;
        self.sends() && psn.since(r.sent) < 0 && !r.held(psn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_of_answers() {
        let of = |syndrome: u32| Verdict::of(AethRepr { syndrome: syndrome as u8, msn: 0 });
        assert_eq!(of(aeth::ACK | 5), Verdict::Ack);
        assert_eq!(of(aeth::RNR_NAK | 1), Verdict::NotReady(Ps::from_ns(rnr_timer_ns(1))));
        assert_eq!(of(aeth::NAK | aeth::PSN_SEQUENCE_ERROR), Verdict::Sequence);
        assert_eq!(of(aeth::NAK | aeth::REMOTE_ACCESS_ERROR), Verdict::Refused(Syndrome::RemoteAccess));
        assert_eq!(of(aeth::NAK | 0x1e), Verdict::Refused(Syndrome::BadResponse), "a reserved code");
        let reserved = (0..=0xff).filter(|s| ![aeth::ACK, aeth::RNR_NAK, aeth::NAK].contains(&(s & 0xe0)));
        assert!(reserved.map(of).all(|verdict| verdict == Verdict::Nothing), "reserved kinds");
    }

    #[test]
    fn the_rnr_timer_counts_once_and_the_retries_end() {
        let mut r = Requester::default();
        let params = Params { rnr_retry: 1, ..Params::default() };
        r.start(Psn::new(5), &params);
        let generation = r.receiver_not_ready(Psn::new(5), Ps(7), &params).unwrap();
        assert!(!r.ready_again(generation.wrapping_add(1)));
        assert!(r.ready_again(generation) && !r.ready_again(generation));
        assert_eq!(r.receiver_not_ready(Psn::new(5), Ps(7), &params), Err(Syndrome::RnrRetryExceeded));
        let for_ever = Params { rnr_retry: RNR_FOR_EVER, ..Params::default() };
        assert!((0..100).all(|_| r.receiver_not_ready(Psn::new(5), Ps(7), &for_ever).is_ok()));
    }

    #[test]
    fn the_ack_timer_follows_its_deadline() {
        let mut r = Requester::default();
        assert!(r.run_timer(Ps(5)) && !r.run_timer(Ps(10)), "one event is enough");
        assert_eq!(r.timer_ran_out(Ps(5)), Timer::Later(Ps(10)));
        assert_eq!(r.timer_ran_out(Ps(10)), Timer::Timeout(r.oldest()));
        assert_eq!(r.timer_ran_out(Ps(11)), Timer::Stopped);
        // One that is to come sooner has an event of its own, and the other means nothing.
        assert!(r.run_timer(Ps(100)) && r.run_timer(Ps(50)));
        assert_eq!(r.timer_ran_out(Ps(50)), Timer::Timeout(r.oldest()));
        assert!(r.run_timer(Ps(200)));
        assert_eq!(r.timer_ran_out(Ps(100)), Timer::Stopped);
        assert_eq!(r.timer_ran_out(Ps(200)), Timer::Timeout(r.oldest()));
    }
}
