//! Landings: where the payload of a long write or send goes that comes in. Its key and pages are looked up once, for all of its
//! packets that are left or the next of them.
//!
//! A change of keys ends it: its packets then look for themselves again, and meet what any packet meets.

use std::ops::Range;

use hca_spec::ids::Mkey;
use hca_spec::wire::Operation;

use super::QueuePair;
use super::pieces::piece_at;
use super::responder::Current;
use crate::engines::mkey::{Access, Accessor, pages_of};
use crate::engines::view::View;
use crate::ground::region::Pages;

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
            _ => None,
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
