//! Landings: where the payload of a long write or send goes that comes in, or that of the response to a long read. Its key and pages
//! are looked up once, for all of its packets that are left or the next of them.
//!
//! A change of keys ends it: its packets then look for themselves again, and meet what any packet meets.

use std::ops::Range;

use hca_spec::ids::{Mkey, Psn};
use hca_spec::wire::Operation;
use hca_spec::wqe::SendOpcode;

use super::QueuePair;
use super::responder::Current;
use crate::engines::mkey::{Access, Accessor, pages_of};
use crate::engines::pieces::{piece_at, spans};
use crate::engines::view::View;
use crate::ground::region::Pages;
use crate::ground::timing::Place;

/// Fewer packets than these are not worth a landing.
const LEAST: u64 = 3;
/// After so many packets of a message that have none it is tried again. How long a send is nobody knows before its last packet: so
/// many are planned at once.
const AGAIN: u64 = 32;

/// Where a part of a message goes.
#[derive(Debug)]
pub(crate) struct Landing {
    pages: Pages,
    /// The part: bytes of the message.
    part: Range<u64>,
    /// What counted the changes of keys when it was planned.
    keys: u64,
}

impl Landing {
    /// The pages, and where the `len` bytes of the message begin in them that are at `at`. `None`: they go elsewhere.
    #[inline]
    pub(crate) fn place(&self, at: u64, len: usize) -> Option<(&Pages, u64)> {
        let offset = at.checked_sub(self.part.start)?;
        (at.saturating_add(len as u64) <= self.part.end).then_some((&self.pages, offset))
    }

    /// How many bytes it has from that place of the message on.
    #[inline]
    pub(crate) fn left(&self, at: u64) -> u64 {
        if at < self.part.start { 0 } else { self.part.end.saturating_sub(at) }
    }
}

/// Where a part of the response to a read goes.
#[derive(Debug)]
pub(crate) struct ReadLanding {
    /// PSN of the read.
    first: Psn,
    landing: Landing,
}

/// Where the payload of packets goes that follow each other, as the units see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    first: Psn,
    count: u32,
    /// That of the first.
    place: Place,
}

impl Places {
    /// Of the packet with that PSN, if it is one of them.
    #[inline]
    pub(crate) fn at(&self, psn: Psn) -> Option<Place> {
        let i = u32::try_from(psn.since(self.first)).ok().filter(|i| *i < self.count)?;
        let offset = u64::from(i) * self.place.len as u64;
        Some(Place { va: self.place.va.wrapping_add(offset), ..self.place })
    }
}

/// Where bytes of a message go that follow each other under one key.
struct Stretch {
    who: Accessor,
    key: Mkey,
    va: u64,
    /// The place of the first in the message, and how many.
    at: u64,
    len: u64,
    access: Access,
}

impl QueuePair {
    /// Where packets of the message in progress go, if that is known; `keys`: the changes of keys so far.
    #[inline]
    pub(crate) fn landing(&self, keys: u64) -> Option<&Landing> {
        self.responder.landing.as_deref().filter(|landing| landing.keys == keys)
    }

    /// The place in the message in progress of the next packet, which is in its middle, and how many bytes there is room for from there
    /// on. `None`: no message goes on with that operation, or the whole of it has to be looked at.
    #[inline]
    pub(crate) fn lands_next(&self, operation: Operation) -> Option<(u64, u64)> {
        match (&self.responder.current, operation) {
            (Some(Current::Write { left, total, srqn: None, .. }), Operation::WriteMiddle) => {
                Some((total.saturating_sub(*left), *left))
            }
            (Some(Current::Send { receive, offset }), Operation::SendMiddle)
                if receive.tagged.is_none() && receive.xrc.is_none() =>
            {
                Some((*offset, receive.room.saturating_sub(*offset)))
            }
            (_, Operation::ReadResponseMiddle) => self.reads_on(),
            _ => None,
        }
    }

    /// Where packets with that operation go, in the middle of what is in progress, if that is known; `keys`: the changes of keys so far.
    #[inline]
    pub(crate) fn landing_of(&self, operation: Operation, keys: u64) -> Option<&Landing> {
        match operation {
            Operation::ReadResponseMiddle => self.read_landing(keys),
            _ => self.landing(keys),
        }
    }

    /// The payload of a packet of the message in progress is where it belongs, and others follow.
    #[inline]
    pub(crate) fn landed(&mut self, payload: usize) {
        match &mut self.responder.current {
            Some(Current::Write { va, left, .. }) => {
                *va = va.wrapping_add(payload as u64);
                *left = left.saturating_sub(payload as u64);
            }
            Some(Current::Send { offset, .. }) => *offset = offset.saturating_add(payload as u64),
            None => {}
        }
    }

    /// Where the next packets of the message in progress go; `who` sends it.
    fn stretch(&self, who: Accessor) -> Option<Stretch> {
        match self.responder.current.as_ref()? {
            Current::Write { va, rkey, left, total, .. } => {
                let (at, access) = (total.saturating_sub(*left), Access::RemoteWrite);
                Some(Stretch { who, key: *rkey, va: *va, at, len: *left, access })
            }
            Current::Send { receive, offset } if receive.tagged.is_none() => {
                let (len, key, va) = piece_at(&receive.pieces, *offset)?;
                let len = len.min(AGAIN * self.params.mtu as u64);
                let (who, access) = (self.local(receive), Access::LocalWrite);
                Some(Stretch { who, key, va, at: *offset, len, access })
            }
            Current::Send { .. } => None,
        }
    }

    /// The place in the read in progress of the packet with that PSN, if it is the next one of its response, and neither the first nor the
    /// last.
    #[inline]
    pub(crate) fn reads_next(&self, psn: Psn) -> Option<u64> {
        let message = self.requester.messages.front()?;
        let next = self.next_response() == Some(psn)
            && message.answered > 0
            && message.answered + 1 < message.packets
            && psn.since(self.requester.sent) < 0;
        next.then(|| u64::from(message.answered) * self.params.mtu as u64)
    }

    /// The place in the read in progress of the next packet of its response, which is in its middle, and how many bytes there are from there
    /// on before its last packet.
    #[inline]
    fn reads_on(&self) -> Option<(u64, u64)> {
        let at = self.reads_next(self.next_response()?)?;
        let message = self.requester.messages.front()?;
        let left = message.packets.saturating_sub(message.answered + 1);
        Some((at, u64::from(left) * self.params.mtu as u64))
    }

    /// PSN of the next packet of the response to the read in progress, if that is what is waited for.
    #[inline]
    pub(crate) fn next_response(&self) -> Option<Psn> {
        let message = self.requester.messages.front().filter(|m| m.wqe.opcode == SendOpcode::RdmaRead)?;
        let waits = self.sends() && self.requester.fault.is_none() && message.failed.is_none();
        waits.then(|| message.first.add(message.answered))
    }

    /// Where the payload of packets in the middle of the response to a read begins to go, from that one on.
    pub(crate) fn response_places(&self, view: &View<'_>, psn: Psn, payload: usize) -> Option<Places> {
        let message = self.requester.message_of(psn)?;
        let offset = psn.since(message.first).max(0) as u64 * self.params.mtu as u64;
        let place = spans(view.icm(), &message.wqe.pieces, offset, payload).next()?;
        let (room, ..) = piece_at(&message.wqe.pieces, offset)?;
        let whole = u32::try_from(room / payload as u64).unwrap_or(u32::MAX);
        let left = message.end().prev().since(psn).max(0) as u32;
        // One that goes into more than one piece stands for itself.
        Some(Places { first: psn, count: whole.min(left).max(1), place })
    }

    /// Where packets of the response to the read in progress go, if that is known; `keys`: the changes of keys so far.
    #[inline]
    pub(crate) fn read_landing(&self, keys: u64) -> Option<&Landing> {
        let first = self.requester.messages.front()?.first;
        let known = self.requester.landing.as_deref()?;
        (known.first == first && known.landing.keys == keys).then_some(&known.landing)
    }

    /// Plans where the next packets of the response to the read in progress go, behind one that has come, if it is long.
    #[inline]
    pub(crate) fn plan_read_landing(
        &mut self,
        view: &View<'_>,
        keys: u64,
        is_there: impl Fn(&Pages, u64) -> bool,
    ) {
        let Some(message) = self.requester.messages.front() else { return };
        if message.answered % AGAIN as u32 != 1 || u64::from(message.packets) <= LEAST + 1 {
            return;
        }
        let Some(at) = self.reads_next(message.first.add(message.answered)) else { return };
        if self.read_landing(keys).is_some_and(|landing| landing.left(at) > 0) {
            return;
        }
        let planned = || {
            let (len, key, va) = piece_at(&message.wqe.pieces, at)?;
            let who = self.requester_of(&message.wqe);
            let pages = pages_of(view.icm(), who, key, va, len, Access::LocalWrite)?;
            let (first, part) = (message.first, at..at.saturating_add(len));
            is_there(&pages, len).then_some(ReadLanding { first, landing: Landing { pages, part, keys } })
        };
        let landing = planned().map(Box::new);
        self.requester.landing = landing;
    }

    /// Plans a landing before the packet is written that is the first to go there. `is_there`: whether memory takes so many bytes at once
    /// from the begin of these pages on.
    #[inline]
    pub(crate) fn plan_landing(
        &mut self,
        view: &View<'_>,
        who: Accessor,
        keys: u64,
        is_there: impl Fn(&Pages, u64) -> bool,
    ) {
        let mtu = self.params.mtu as u64;
        let Some(Stretch { who, key, va, at, len, access }) = self.stretch(who) else { return };
        let has_room = |landing: &Landing| landing.left(at) > 0;
        if len >= LEAST * mtu && at % (AGAIN * mtu) == 0 && !self.landing(keys).is_some_and(has_room) {
            let pages = pages_of(view.icm(), who, key, va, len, access);
            let pages = pages.filter(|pages| is_there(pages, len));
            let part = at..at.saturating_add(len);
            self.responder.landing = pages.map(|pages| Box::new(Landing { pages, part, keys }));
        }
    }
}
