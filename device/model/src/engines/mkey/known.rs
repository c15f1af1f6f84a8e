//! Where the last accesses of a function went: small messages go to the same pages again and again, and what is asked of the key and
//! of its translation for one of them holds for the next.
//!
//! A change of keys ends it, as it ends landings and runs.

use hca_spec::ids::Mkey;

use super::access::{Access, Accessor};
use super::walk::PagePart;

/// A part of a page, to which somebody has an access under a key.
#[derive(Debug, Clone, Copy)]
struct Known {
    who: Accessor,
    key: Mkey,
    place: PagePart,
    /// The changes of keys when it was found.
    keys: u64,
}

/// Queue pairs that have a place of their own for each kind of access; of more, those whose numbers are equal modulo this share one.
const QUEUES: usize = 8;

/// The last ones of each kind of access.
#[derive(Debug, Default)]
pub(crate) struct KnownPages([[Option<Known>; QUEUES]; Access::KINDS]);

impl KnownPages {
    /// The bus address of `len` bytes at `va` under `key`, if they are in the page of the last access of this kind, by the same one;
    /// `keys`: the changes of keys so far.
    #[inline]
    pub(crate) fn find(
        &self,
        who: Accessor,
        key: Mkey,
        (va, len): (u64, usize),
        access: Access,
        keys: u64,
    ) -> Option<u64> {
        let known = self.0.get(access as usize)?.get(who.qpn.0 as usize % QUEUES)?.as_ref()?;
        let PagePart { va: begin, len: room, iova } = known.place;
        let offset = va.wrapping_sub(begin);
        let same = known.key == key && known.keys == keys && known.who == who;
        let inside = len > 0 && offset < room && len as u64 <= room - offset;
        (same && inside).then(|| iova.wrapping_add(offset))
    }

    /// Keeps where an access went.
    pub(crate) fn keep(&mut self, who: Accessor, key: Mkey, place: PagePart, access: Access, keys: u64) {
        let of_kind = self.0.get_mut(access as usize);
        if let Some(last) = of_kind.and_then(|kind| kind.get_mut(who.qpn.0 as usize % QUEUES)) {
            *last = Some(Known { who, key, place, keys });
        }
    }
}

#[cfg(test)]
mod tests {
    use hca_spec::ids::{Pd, Qpn};

    use super::*;

    #[test]
    fn only_what_was_asked_for_is_known() {
        let mut pages = KnownPages::default();
        let (who, key) = (Accessor { qpn: Qpn(1), pd: Pd(2), rlky: false }, Mkey(3));
        let place = PagePart { va: 0x1080, len: 0xf80, iova: 0x7_0080 };
        pages.keep(who, key, place, Access::LocalRead, 5);
        let find = |va, len| pages.find(who, key, (va, len), Access::LocalRead, 5);
        assert_eq!((find(0x1080, 8), find(0x1ff8, 8)), (Some(0x7_0080), Some(0x7_0ff8)));
        for (va, len) in [(0x107f, 8), (0x1ff9, 8), (0x2000, 1), (0x1080, 0), (0, 1), (u64::MAX, 1)] {
            assert_eq!(find(va, len), None, "{len} bytes at {va:#x}");
        }
        let other = Accessor { qpn: Qpn(9), ..who };
        assert_eq!(pages.find(who, Mkey(4), (0x1080, 8), Access::LocalRead, 5), None);
        assert_eq!(pages.find(other, key, (0x1080, 8), Access::LocalRead, 5), None);
        assert_eq!(pages.find(who, key, (0x1080, 8), Access::LocalWrite, 5), None);
        assert_eq!(pages.find(who, key, (0x1080, 8), Access::LocalRead, 6), None, "keys have changed");
    }
}
