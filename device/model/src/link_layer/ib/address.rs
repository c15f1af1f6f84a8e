//! What the local route header says (IBTA vol 1 7.7).

use hca_spec::ids::Lid;
use hca_spec::wire::{LNH_BTH, LNH_GRH, Lrh};

/// Addresses and lane of a packet in an InfiniBand subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Address {
    /// Service level, 0..=15.
    pub sl: u8,
    /// Virtual lane, 0..=15; 15 is management.
    pub vl: u8,
    /// Destination LID.
    pub dlid: Lid,
    /// Source LID.
    pub slid: Lid,
    /// It comes back to its port, which may have no LID yet. Nothing of it is on the link.
    pub forced: bool,
}

impl Address {
    /// From one LID to another, at service level 0.
    pub const fn between(slid: Lid, dlid: Lid) -> Self {
        Self { sl: 0, vl: 0, dlid, slid, forced: false }
    }

    /// Bytes of an LRH.
    pub(in crate::link_layer) const SIZE: usize = Lrh::SIZE;

    /// As much of it as the fields of an LRH have room for.
    pub(in crate::link_layer) fn travelling(self) -> Self {
        const BITS_4: u8 = 0xf;
        Self { sl: self.sl & BITS_4, vl: self.vl & BITS_4, ..self }
    }

    /// What stands in front of a packet's bytes, unchecked; zeroes if there are too few.
    pub(in crate::link_layer) fn of_bytes(bytes: &[u8]) -> Self {
        Self::of(&Lrh::from_prefix_or_zero(bytes))
    }

    pub(super) fn of(lrh: &Lrh) -> Self {
        Self {
            sl: lrh.get(Lrh::SL) as u8,
            vl: lrh.get(Lrh::VL) as u8,
            dlid: Lid(lrh.get(Lrh::DLID) as u16),
            slid: Lid(lrh.get(Lrh::SLID) as u16),
            forced: false,
        }
    }

    /// The header of a packet with so many bytes from it to the end of the ICRC.
    pub(super) fn lrh(&self, global: bool, bytes_to_icrc: usize) -> Lrh {
        let mut lrh = Lrh::new();
        lrh.set(Lrh::VL, self.vl.into())
            .set(Lrh::SL, self.sl.into())
            .set(Lrh::LNH, if global { LNH_GRH } else { LNH_BTH })
            .set(Lrh::DLID, self.dlid.0.into())
            .set(Lrh::PKT_LEN, (bytes_to_icrc / 4) as u32)
            .set(Lrh::SLID, self.slid.0.into());
        lrh
    }
}
