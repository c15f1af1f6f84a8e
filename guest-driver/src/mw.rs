//! Memory windows: keys that open a part of a region to peers for as long as they are bound.
//!
//! A window is a free indirect key with room for one piece. Binding is a work request: of type 1 for any
//! queue pair of the domain, of type 2 for the one that binds; unbinding is another, and a window of type 2
//! can also be invalidated by the peer (IBTA 10.6.7.2, memory windows; type 2B: bound to a queue pair).

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use crate::mr::{Access, Mr};
use crate::umr::{KeyChange, KeyKind, MAX_PIECE, pieces};
use crate::wqe::Sge;
use alloc::vec::Vec;
use hca_spec::ids::{Mkey, Pd, Qpn};

/// Who may use a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowType {
    /// Every queue pair of the domain.
    One,
    /// The queue pair it is bound with.
    Two,
}

/// A memory window.
#[must_use = "a window stays allocated until it is freed"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The key that peers use once the window is bound.
    pub rkey: Mkey,
    kind: WindowType,
}

/// The part of a region that a window exposes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// First address, in the region's own addresses.
    pub address: u64,
    /// Length in bytes, 1 to 2^31.
    pub len: u64,
    /// What the peer may do. Writes and atomics need a region that allows local writes.
    pub access: Access,
    /// Whether the peer's addresses start at 0 instead of `address`.
    pub zero_based: bool,
}

impl Window {
    /// The work request that binds the window to a part of `region`, and the translations in it. `qpn` is the
    /// queue pair that it will be posted to. The window has a new key from now on.
    ///
    /// # Errors
    /// A window can't be so long.
    pub fn bind(&mut self, qpn: Qpn, region: &Mr, opening: &Opening) -> Result<(KeyChange, Vec<u8>), Error> {
        if opening.len == 0 || opening.len > MAX_PIECE {
            return Err(Error::Invalid("a window has 1 byte to 2 GiB"));
        }
        let variant = self.rkey.variant().wrapping_add(1);
        self.rkey = Mkey::new(self.rkey.index(), variant);
        let start = if opening.zero_based { 0 } else { opening.address };
        let change = KeyChange::new(self.rkey).enable(variant).access(opening.access);
        let change = change.range(start, opening.len).at(0);
        let change = match self.kind {
            WindowType::One => change,
            WindowType::Two => change.if_free().bound_to(Some(qpn)),
        };
        let piece = Sge { address: opening.address, len: opening.len as u32, key: region.key };
        Ok((change, pieces(&[piece])))
    }

    /// The work request that closes the window.
    pub fn unbind(&self) -> KeyChange {
        let change = KeyChange::new(self.rkey).free();
        match self.kind {
            WindowType::One => change,
            WindowType::Two => change.if_mine().bound_to(None),
        }
    }
}

impl<B: Bus> Hca<B> {
    /// Allocates a window. It exposes nothing before it is bound.
    pub fn alloc_window(&mut self, pd: Pd, kind: WindowType) -> Result<Window, Error> {
        let rkey = self.alloc_key(pd, KeyKind::Pieces, 1, kind == WindowType::Two)?;
        Ok(Window { rkey, kind })
    }

    /// Frees a window, bound or not.
    pub fn free_window(&mut self, window: Window) -> Result<(), Error> {
        self.free_key(window.rkey)
    }
}
