//! Landings: where the payload of a long write goes that comes in. Its key and pages are looked up once, for all of its
//! packets that are left.
//!
//! A change of keys ends it: its packets then look for themselves again, and meet what any packet meets.

use super::QueuePair;
use super::responder::{Current, WriteTo};
use crate::engines::mkey::{Access, Accessor, pages_of};
use crate::engines::view::View;
use crate::ground::region::Pages;

/// Fewer packets than these are not worth a landing.
const LEAST: u64 = 3;
/// After so many packets of a message that have none it is tried again.
const AGAIN: u64 = 32;

/// Where the rest of a message goes.
#[derive(Debug)]
pub(crate) struct Landing {
    pages: Pages,
    /// Address of its first byte.
    va: u64,
    /// What counted the changes of keys when it was planned.
    keys: u64,
}

impl Landing {
    /// The pages, and where the payload of a packet begins in them.
    #[inline]
    pub(crate) fn place(&self, to: &WriteTo) -> (&Pages, u64) {
        (&self.pages, to.va.wrapping_sub(self.va))
    }
}

impl QueuePair {
    /// Where the packets of the write in progress go, if that is known; `keys`: the changes of keys so far.
    #[inline]
    pub(crate) fn landing(&self, keys: u64) -> Option<&Landing> {
        self.responder.landing.as_deref().filter(|landing| landing.keys == keys)
    }

    /// Plans the landing of a write that has so many packets left, before the packet that goes there is written. `is_there`: whether
    /// memory takes so many bytes at once from the begin of these pages on.
    #[inline]
    pub(crate) fn plan_landing(
        &mut self,
        view: &View<'_>,
        who: Accessor,
        to: &WriteTo,
        keys: u64,
        is_there: impl Fn(&Pages, u64) -> bool,
    ) {
        let Some(Current::Write { left, total, .. }) = &self.responder.current else { return };
        let (left, mtu) = (*left, self.params.mtu as u64);
        let written = total.saturating_sub(left);
        if left >= LEAST * mtu && written % (AGAIN * mtu) == 0 && self.landing(keys).is_none() {
            let pages = pages_of(view.icm(), who, to.rkey, to.va, left, Access::RemoteWrite);
            let pages = pages.filter(|pages| is_there(pages, left));
            self.responder.landing = pages.map(|pages| Box::new(Landing { pages, va: to.va, keys }));
        }
    }
}
