//! Page faults in the memory scheme: the driver is told which pages of which key are missing, not which work request needs them.
//!
//! The adapter walks through indirect keys itself and names the key that has the pages, so nothing of a work request has to be
//! looked at again, and whoever posted it may have queues that the driver does not know. One event tells of a fault and is its last;
//! PAGE_FAULT_RESUME repeats its token. Who waits, and from where on, is the same in both schemes ([`super::page_fault`]).
//!
//! Source: the mlx5 driver (`odp.c: mlx5_ib_mr_memory_pfault_handler`, `device.h: mlx5_eqe_page_fault`); what is fetched ahead is a
//! choice.

use hca_firmware::{DealtWith, FaultToken};
use hca_spec::eqe::{Eqe, page_fault as kind};
use hca_spec::mkc::Mkc;

use super::QueuePair;
use crate::engines::mkey::Fault;
use crate::engines::view::View;

/// Pages of 4 KiB that a fault asks for ahead of their use at most: estimate.
const MOST_AHEAD: u64 = 64;
/// Pages that an event can ask for: 20 bits.
const MOST_NEEDED: u64 = (1 << 20) - 1;

/// Pages of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    /// Where the first one begins.
    va: u64,
    /// So many are needed.
    needed: u64,
    /// So many behind them will be needed soon.
    ahead: u64,
}

impl Wanted {
    /// For `len` bytes at `va`, and `rest` bytes behind them as far as the region goes, which ends at `end`.
    fn of(va: u64, len: u64, rest: u64, end: u64) -> Self {
        const PAGE: u64 = 1 << kind::LOG_PAGE;
        let page_of = |at: u64| at >> kind::LOG_PAGE;
        let last = va.saturating_add(len.saturating_sub(1));
        let soon = last.saturating_add(rest).min(end.saturating_sub(1)).max(last);
        Self {
            va: va & !(PAGE - 1),
            needed: (page_of(last) - page_of(va) + 1).min(MOST_NEEDED),
            ahead: (page_of(soon) - page_of(last)).min(MOST_AHEAD),
        }
    }
}

/// Where the region of a key ends.
fn end_of(ctx: &Mkc) -> u64 {
    match ctx.get(Mkc::LENGTH64) {
        1 => u64::MAX,
        _ => ctx.get(Mkc::START_ADDR).saturating_add(ctx.get(Mkc::LEN)),
    }
}

impl QueuePair {
    /// How the driver is told of a fault of that type: what it has to repeat, and the event, that of the transport scheme being
    /// `of_queue`. `rest`: bytes of the message behind the packet.
    pub(super) fn tell(
        &self,
        view: &View<'_>,
        (fault, rest): (Fault, u64),
        of_type: u8,
        of_queue: Eqe,
    ) -> (DealtWith, Eqe) {
        let (Some(serial), Fault::Page { key, va, len }) = (view.memory_faults(), fault) else {
            return (DealtWith::Kind(of_type), of_queue);
        };
        let token = FaultToken::new(self.qpn, of_type & kind::REQUESTOR != 0, serial);
        let end = view.icm().mkeys.get(key.index()).map_or(0, |entry| end_of(&entry.ctx));
        let rest = if view.prefetches() { rest } else { 0 };
        let wanted = Wanted::of(va, len, rest, end);
        let mut eqe = Eqe::new();
        eqe.set(Eqe::SUB_TYPE, kind::MEMORY.into()).set(Eqe::MEMORY_FAULT_FLAGS, kind::LAST.into());
        eqe.set(Eqe::MEMORY_FAULT_TOKEN_47_32, (token.bits() >> 32) as u32);
        eqe.set(Eqe::MEMORY_FAULT_TOKEN_31_0, token.bits() as u32);
        eqe.set(Eqe::MEMORY_FAULT_MKEY, key.0).set(Eqe::MEMORY_FAULT_VA, wanted.va);
        eqe.set(Eqe::MEMORY_FAULT_PAGES, wanted.needed as u32);
        eqe.set(Eqe::MEMORY_FAULT_POST_PAGES, wanted.ahead as u32);
        (DealtWith::Token(token), eqe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_asked_for() {
        let wanted = |va, len, rest, end| {
            let w = Wanted::of(va, len, rest, end);
            (w.va, w.needed, w.ahead)
        };
        assert_eq!(wanted(0x5fff, 1, 0, u64::MAX), (0x5000, 1, 0));
        assert_eq!(wanted(0x5fff, 2, 0, u64::MAX), (0x5000, 2, 0));
        assert_eq!(wanted(0x5000, 0x1000, 1, u64::MAX), (0x5000, 1, 1));
        assert_eq!(wanted(0x5000, 0x1000, 0x2000, 0x6800), (0x5000, 1, 1), "as far as the region goes");
        assert_eq!(wanted(0x5000, 0x1000, 0x2000, 0x6000), (0x5000, 1, 0));
        assert_eq!(wanted(0x5000, 0x1000, 0x2000, 0), (0x5000, 1, 0));
        assert_eq!(wanted(0, 0x1000, u64::MAX, u64::MAX), (0, 1, MOST_AHEAD));
        assert_eq!(wanted(0, u64::MAX, 0, u64::MAX), (0, MOST_NEEDED, 0));
        assert_eq!(wanted(u64::MAX, u64::MAX, u64::MAX, u64::MAX), (!0xfff, 1, 0));
    }
}
