//! A management datagram on its way: what its packet's headers say of it.
//!
//! Source: IBTA 13.5.3 and 13.5.4 (addressing of requests and responses), 14.2.2 (directed routes).

use hca_spec::ids::{Lid, Qpn};
use hca_spec::mad::Mad;

/// The headers of a datagram's packet (LRH, BTH and DETH).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Source LID; [`Lid::PERMISSIVE`] on directed routes.
    pub slid: Lid,
    /// Destination LID; [`Lid::PERMISSIVE`] on directed routes.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// P_Key.
    pub pkey: u16,
    /// Source queue pair, of DETH.
    pub source_qp: Qpn,
    /// Destination queue pair: 0 or 1.
    pub qp: Qpn,
}

impl Address {
    /// Default P_Key, which SMPs carry (IBTA 10.9.1.2).
    const DEFAULT_PKEY: u16 = 0xffff;

    /// Of an SMP from QP0 to QP0. It travels on VL15.
    pub const fn smp(slid: Lid, dlid: Lid) -> Self {
        Self { slid, dlid, sl: 0, pkey: Self::DEFAULT_PKEY, source_qp: Qpn(0), qp: Qpn(0) }
    }

    /// Of an SMP on a directed route without LIDs.
    pub const fn directed() -> Self {
        Self::smp(Lid::PERMISSIVE, Lid::PERMISSIVE)
    }

    /// Whether the datagram is an SMP, and so travels on VL15.
    pub const fn is_smp(&self) -> bool {
        self.qp.0 == 0
    }

    /// Of the answer that the node with LID `own` gives.
    pub const fn answer(&self, own: Lid) -> Self {
        let slid = if self.slid.0 == Lid::PERMISSIVE.0 { Lid::PERMISSIVE } else { own };
        Self { slid, dlid: self.slid, qp: self.source_qp, source_qp: self.qp, ..*self }
    }
}

/// A datagram that came by a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The port: of a switch 1 and up, 0 for one of the switch's own; of an adapter from 1.
    pub port: u8,
    /// Its headers.
    pub address: Address,
    /// The moment, in picoseconds.
    pub now: u64,
}

/// A datagram that leaves by a port.
#[derive(Debug, Clone, PartialEq)]
pub struct Departure {
    /// The port. The port's state was looked at: it is not down.
    pub port: u8,
    /// Its headers. `qp` is the receiver's; the Q_Key of QP1 is the well-known one, 0x8001_0000.
    pub address: Address,
    /// The datagram.
    pub mad: Mad,
}
