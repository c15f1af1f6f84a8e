//! The global route header: the network layer of a packet, whatever link carries it.

use hca_spec::ids::Gid;
use hca_spec::wire::{GRH_NXT_IBA, Grh};

use super::Malformed;

const IP_VERSION: u32 = 6;

/// Global route header (IBTA vol 1 8.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GrhRepr {
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
}

impl GrhRepr {
    /// The header of a packet with `bytes_after` bytes from BTH to ICRC.
    pub(crate) fn grh(&self, bytes_after: usize) -> Grh {
        let mut grh = Grh::new();
        grh.set(Grh::IP_VER, IP_VERSION)
            .set(Grh::TCLASS, self.tclass.into())
            .set(Grh::FLOW_LABEL, self.flow_label)
            .set(Grh::PAY_LEN, bytes_after as u32)
            .set(Grh::NXT_HDR, GRH_NXT_IBA)
            .set(Grh::HOP_LMT, self.hop_limit.into());
        let halves = |gid: Gid| {
            let all = u128::from_be_bytes(gid.0);
            ((all >> 64) as u64, all as u64)
        };
        let (sgid, dgid) = (halves(self.sgid), halves(self.dgid));
        grh.set(Grh::SGID_H, sgid.0)
            .set(Grh::SGID_L, sgid.1)
            .set(Grh::DGID_H, dgid.0)
            .set(Grh::DGID_L, dgid.1);
        grh
    }

    /// What a header says that is followed by `len` bytes up to and with the ICRC, if it may stand there (IBTA vol 1
    /// 9.6.1.2).
    pub(crate) fn check(grh: &Grh, len: usize) -> Result<Self, Malformed> {
        let (version, next) = (grh.get(Grh::IP_VER), grh.get(Grh::NXT_HDR));
        let said = grh.get(Grh::PAY_LEN) as usize;
        if version != IP_VERSION || next != GRH_NXT_IBA || said != len {
            return Err(Malformed::Grh { version: version as u8, next: next as u8, said, len });
        }
        Ok(Self::read(grh))
    }

    /// What a header says, unchecked; an IPv6 header is one.
    pub(crate) fn read(grh: &Grh) -> Self {
        Self {
            tclass: grh.get(Grh::TCLASS) as u8,
            flow_label: grh.get(Grh::FLOW_LABEL),
            hop_limit: grh.get(Grh::HOP_LMT) as u8,
            sgid: Gid::new(grh.get(Grh::SGID_H), grh.get(Grh::SGID_L)),
            dgid: Gid::new(grh.get(Grh::DGID_H), grh.get(Grh::DGID_L)),
        }
    }

    /// The header as the ICRC covers it: with ones for what a router may change (IBTA vol 1 7.8.1).
    pub(crate) fn masked(grh: &Grh) -> Grh {
        let mut grh = *grh;
        grh.set(Grh::TCLASS, Grh::TCLASS.max())
            .set(Grh::FLOW_LABEL, Grh::FLOW_LABEL.max())
            .set(Grh::HOP_LMT, Grh::HOP_LMT.max());
        grh
    }

    /// The 40 bytes a UD receiver finds in front of the payload (IBTA vol 1 11.4.1.2), for a packet
    /// with `bytes_after` bytes from BTH to ICRC.
    pub fn to_bytes(&self, bytes_after: usize) -> [u8; Grh::SIZE] {
        *self.grh(bytes_after).bytes()
    }
}
