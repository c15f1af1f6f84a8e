//! User contexts: which object belongs to which user's program, and the memory such programs lend.
//!
//! A command carries the number of the user context it is executed for. Context 0 is the kernel. What a
//! user context makes is its own; only objects of the shared context may be named by everybody.
//!
//! Source: PRM "CREATE_UCTX", "CREATE_UMEM"; the mlx5 driver (which commands carry which number).

use std::collections::HashMap;

use hca_spec::mkc::{MTT_ADDRESS, MTT_READ, MTT_WRITE};

use crate::buffer::Buffer;
use crate::object::Object;
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
    /// Its pages.
    pub(crate) buffer: Buffer,
    /// Access that every page allows: [`MTT_READ`], [`MTT_WRITE`].
    pub(crate) access: u64,
    /// Queues, doorbell records and keys in it.
    pub(crate) users: u32,
}

impl Umem {
    /// Memory of that page list, whose entries are MTTs; `None` if the offset is beyond it.
    pub(crate) fn new(mtts: impl Iterator<Item = u64>, shift: u32, offset: u64) -> Option<Self> {
        let mut access = MTT_READ | MTT_WRITE;
        let pages: Box<[u64]> = mtts
            .map(|mtt| {
                access &= mtt;
                mtt & MTT_ADDRESS
            })
            .collect();
        let len = (pages.len() as u64).checked_shl(shift)?.checked_sub(offset)?;
        Some(Self { buffer: Buffer::new(pages, shift, offset, len)?, access, users: 0 })
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
    owners: HashMap<Object, u16>,
    held: HashMap<Object, Held>,
}

impl Users {
    /// Nobody. `contexts` and `umems` are the most there can be.
    pub(crate) fn new(contexts: u32, umems: u32) -> Self {
        Self {
            contexts: Table::new(1, contexts),
            umems: Table::new(1, umems),
            owners: HashMap::new(),
            held: HashMap::new(),
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
