//! User contexts: which object belongs to which user's program, and the memory such programs lend.
//!
//! A command carries the number of the user context it is executed for. Context 0 is the kernel. What a
//! user context makes is its own; only objects of the shared context may be named by everybody.
//!
//! Source: PRM "CREATE_UCTX", "CREATE_UMEM"; the mlx5 driver (which commands carry which number).

use std::sync::Arc;

use hca_spec::mkc::{MTT_ADDRESS, MTT_READ, MTT_WRITE};

use crate::list::List;
use crate::object::Object;
use crate::steady::SteadyMap;
use crate::table::Table;

/// Number of the user context whose objects everybody may name.
pub(crate) const SHARED: u16 = 0xffff;

/// A user context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserContext {
    /// What it may do beyond its own objects ([`hca_spec::caps::uctx_cap`]).
    pub(crate) cap: u32,
    /// Objects that it made and that are still there.
    pub(crate) objects: u32,
}

/// Memory that a user lends: queues, doorbell records and keys are placed in it by offset, because a
/// user doesn't know DMA addresses.
#[derive(Debug, Clone)]
pub(crate) struct Umem {
    /// Its pages, as the driver wrote them: two million may be given at once.
    list: Arc<List>,
    page_shift: u32,
    offset: u64,
    len: u64,
    /// Access that every page allows: [`MTT_READ`], [`MTT_WRITE`].
    pub(crate) access: u64,
    /// Queues, doorbell records and keys in it.
    pub(crate) users: u32,
}

impl Umem {
    /// Memory of that page list, whose entries are MTTs of 8 bytes; `None` if the offset is beyond it.
    pub(crate) fn new(mtts: List, page_shift: u32, offset: u64) -> Option<Self> {
        let pages = (mtts.len() / 8) as u64;
        let room = pages.checked_shl(page_shift)?;
        let whole = page_shift < 52 && room >> page_shift == pages;
        let len = room.checked_sub(offset).filter(|_| whole)?;
        let rights = |all: u64, mtt: &[u8; 8]| all & u64::from_be_bytes(*mtt);
        let access = mtts.pieces::<8>().flatten().fold(MTT_READ | MTT_WRITE, rights);
        Some(Self { list: Arc::new(mtts), page_shift, offset, len, access, users: 0 })
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// log2 of the size of a page.
    pub(crate) fn page_shift(&self) -> u32 {
        self.page_shift
    }

    /// Where in the first page the memory begins, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// How many pages it has.
    pub(crate) fn pages(&self) -> usize {
        self.list.len() / 8
    }

    /// The DMA address of the byte at `offset`, and how many bytes follow it in the same page.
    pub(crate) fn at(&self, offset: u64) -> Option<(u64, u64)> {
        let left = self.len.checked_sub(offset).filter(|left| *left > 0)?;
        let at = self.offset.checked_add(offset)?;
        let in_page = at & ((1 << self.page_shift) - 1);
        Some((self.address(at)?, ((1 << self.page_shift) - in_page).min(left)))
    }

    /// The DMA address of a byte, counted from the beginning of the first page.
    pub(crate) fn address(&self, at: u64) -> Option<u64> {
        address(&self.list, self.page_shift, at)
    }

    /// A part of the memory as pages of `1 << shift` bytes, no larger than its own: `count` of them, from `start` bytes into the
    /// first page on.
    pub(crate) fn part(&self, shift: u32, start: u64, count: u64) -> UserPages {
        let (list, access) = (self.list.clone(), self.access);
        UserPages { list, list_shift: self.page_shift, shift, start, count, access }
    }
}

fn address(list: &List, shift: u32, at: u64) -> Option<u64> {
    let page = u64::from_be_bytes(list.get(usize::try_from(at >> shift).ok()?)?) & MTT_ADDRESS;
    Some(page.wrapping_add(at & ((1 << shift) - 1)))
}

/// Pages of a key that lies in user memory. The list is that of the memory, whose pages may be larger: the key has no list of its
/// own, which could be any number of times as long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserPages {
    list: Arc<List>,
    list_shift: u32,
    shift: u32,
    start: u64,
    count: u64,
    access: u64,
}

impl UserPages {
    /// How many pages there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The MTT of a page.
    pub fn get(&self, index: usize) -> Option<u64> {
        let index = u64::try_from(index).ok().filter(|index| *index < self.count)?;
        let at = self.start.checked_add(index.checked_shl(self.shift)?)?;
        Some(address(&self.list, self.list_shift, at)? | self.access)
    }
}

/// What of an object lies in user memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Held {
    /// Memory of the queue or key.
    pub(crate) queue: Option<u32>,
    /// Memory of the doorbell record, and its offset there.
    pub(crate) record: Option<(u32, u64)>,
}

/// User contexts, their memory and their objects.
#[derive(Debug)]
pub(crate) struct Users {
    /// User contexts, numbers from 1.
    pub(crate) contexts: Table<UserContext>,
    /// User memory.
    pub(crate) umems: Table<Umem>,
    /// Owners of objects that are not the kernel's.
    owners: SteadyMap<Object, u16>,
    held: SteadyMap<Object, Held>,
}

impl Users {
    /// Nobody. `contexts` and `umems` are the most there can be.
    pub(crate) fn new(contexts: u32, umems: u32) -> Self {
        Self {
            contexts: Table::new(1, contexts),
            umems: Table::new(1, umems),
            owners: SteadyMap::default(),
            held: SteadyMap::default(),
        }
    }

    /// The context that an object belongs to; 0 is the kernel.
    pub(crate) fn owner(&self, object: Object) -> u16 {
        self.owners.get(&object).copied().unwrap_or(0)
    }

    /// A context made an object.
    pub(crate) fn made(&mut self, object: Object, uid: u16) {
        if uid != 0 {
            self.owners.insert(object, uid);
            if let Some(context) = self.contexts.get_mut(uid.into()) {
                context.objects += 1;
            }
        }
    }

    /// An object is gone.
    pub(crate) fn gone(&mut self, object: Object) {
        if let Some(uid) = self.owners.remove(&object)
            && let Some(context) = self.contexts.get_mut(uid.into())
        {
            context.objects = context.objects.saturating_sub(1);
        }
        self.hold(object, Held::default());
    }

    /// What of an object lies in user memory.
    pub(crate) fn held(&self, object: Object) -> Held {
        self.held.get(&object).copied().unwrap_or_default()
    }

    /// An object lies in that user memory from now on.
    pub(crate) fn hold(&mut self, object: Object, held: Held) {
        let old = match held == Held::default() {
            true => self.held.remove(&object),
            false => self.held.insert(object, held),
        };
        let ids = |held: Held| held.queue.into_iter().chain(held.record.map(|(id, _)| id));
        for id in ids(held) {
            if let Some(umem) = self.umems.get_mut(id) {
                umem.users += 1;
            }
        }
        for id in old.into_iter().flat_map(ids) {
            if let Some(umem) = self.umems.get_mut(id) {
                umem.users = umem.users.saturating_sub(1);
            }
        }
    }
}
