//! Dynamic connections (DC): targets. Initiators are queue pairs, see [`crate::QpConfig::dci`] and
//! [`crate::SendRequest::to_target`].
//!
//! A target has no queue of its own: it receives from a shared receive queue, and completes to a completion queue.
//! Before it is destroyed it has to be drained; an event says when that is done (mlx5 driver, field use).

use crate::bus::Bus;
use crate::error::Error;
use crate::eth::Hop;
use crate::hca::Hca;
use crate::mr::Access;
use crate::qp::ScatterToCqe;
use crate::wqe::roce_way;
use hca_spec::cmd::ObjectIn;
use hca_spec::command::Opcode;
use hca_spec::dct::{CreateDctIn, DctState, Dctc, QueryDctOut};
use hca_spec::ids::{Cqn, Gid, Lid, Pd, Qpn, Srqn};
use hca_spec::wqe::Datagram as AddressVector;

/// How often the state of a target that drains is queried.
const POLLS: u32 = 100_000;

/// How a DC target shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DctConfig {
    /// Protection domain: of remote accesses.
    pub pd: Pd,
    /// Completion queue of the receives.
    pub cq: Cqn,
    /// Where receive requests come from.
    pub srq: Srqn,
    /// What initiators have to know.
    pub access_key: u64,
    /// What initiators may do.
    pub access: Access,
    /// Path MTU, IBTA code 1..=5 = 256..=4096 bytes; initiators must have the same.
    pub mtu: u8,
    /// How long initiators shall wait when there is no receive request (IBTA table 45).
    pub rnr_timer: u8,
    /// Whether small messages come in the completion instead of the buffers.
    pub scatter_to_cqe: ScatterToCqe,
}

/// The way to a DC target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The target.
    pub dctn: Qpn,
    /// Its access key.
    pub access_key: u64,
    /// Its port.
    pub lid: Lid,
    /// Its GID; with one, packets carry a GRH.
    pub gid: Option<Gid>,
    /// RoCE, where the LID is 0 and the GID is needed: the index of the port's own address, and the rest of the way.
    pub roce: Option<(u8, Hop)>,
}

impl Target {
    /// The address vector of a WQE.
    pub(crate) fn vector(&self) -> AddressVector {
        let mut av = AddressVector::new();
        av.set(AddressVector::DC_KEY, self.access_key);
        av.set(AddressVector::EXT, 1).set(AddressVector::DQPN, self.dctn.0);
        av.set(AddressVector::RLID, self.lid.0.into());
        if let Some(gid) = self.gid {
            av.set(AddressVector::GRH, 1).set(AddressVector::HOP_LIMIT, 0xff);
            av.set(AddressVector::RGID_H, hca_spec::be64(&gid.0, 0));
            av.set(AddressVector::RGID_L, hca_spec::be64(&gid.0, 8));
        }
        if let Some((sgid_index, hop)) = &self.roce {
            roce_way(&mut av, *sgid_index, hop);
        }
        av
    }
}

/// A DC target.
#[derive(Debug)]
#[must_use = "destroy it with Hca::destroy_dct"]
pub struct Dct(Qpn);

impl Dct {
    /// The target's number: what initiators name, and completions.
    pub fn number(&self) -> Qpn {
        self.0
    }
}

impl<B: Bus> Hca<B> {
    /// Creates a DC target, ready for initiators ("CREATE_DCT").
    pub fn create_dct(&mut self, config: &DctConfig) -> Result<Dct, Error> {
        let mut input = CreateDctIn::new();
        let ctx = input.dctc_mut();
        ctx.set(Dctc::PD, config.pd.0).set(Dctc::CQN, config.cq.0).set(Dctc::SRQN, config.srq.0);
        ctx.set(Dctc::DC_ACCESS_KEY, config.access_key).set(Dctc::MTU, config.mtu.into()).set(Dctc::PORT, 1);
        ctx.set(Dctc::MIN_RNR_NAK, config.rnr_timer.into()).set(Dctc::HOP_LIMIT, 0xff);
        ctx.set(Dctc::CS_RES, config.scatter_to_cqe.codes().1);
        ctx.set(Dctc::RRE, config.access.contains(Access::REMOTE_READ).into());
        ctx.set(Dctc::RWE, config.access.contains(Access::REMOTE_WRITE).into());
        if config.access.contains(Access::REMOTE_ATOMIC) {
            ctx.set(Dctc::RAE, 1).set(Dctc::ATOMIC_MODE, self.atomic_mode());
        }
        // No index of our own: completions name the shared receive queue.
        ctx.set(Dctc::USER_INDEX, Dctc::USER_INDEX.max());
        self.create(Opcode::CreateDct, 0, input.bytes().to_vec()).map(|n| Dct(Qpn(n)))
    }

    /// Asks the adapter for a target's context.
    pub fn query_dct(&mut self, dct: &Dct) -> Result<Dctc, Error> {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, dct.0.0);
        let out = self.execute(Opcode::QueryDct, 0, input.bytes().to_vec(), QueryDctOut::SIZE)?;
        Ok(*QueryDctOut::from_prefix_or_zero(&out).dctc())
    }

    /// Asks for an event ([`crate::Event::Dct`]) when the next initiator comes with another access key.
    pub fn arm_dct(&mut self, dct: &Dct) -> Result<(), Error> {
        self.object_command(Opcode::ArmDctForKeyViolation, dct.0.0)
    }

    /// Lets a target take no new connection; an event ([`crate::Event::Dct`]) says when none is left.
    pub fn drain_dct(&mut self, dct: &Dct) -> Result<(), Error> {
        self.object_command(Opcode::DrainDct, dct.0.0)
    }

    /// Drains and destroys a target.
    ///
    /// # Errors
    /// [`Error::Timeout`]: it does not drain. Or a command failed.
    pub fn destroy_dct(&mut self, dct: Dct) -> Result<(), Error> {
        self.drain_dct(&dct)?;
        for _ in 0..POLLS {
            if self.query_dct(&dct)?.get(Dctc::STATE) == DctState::Drained as u32 {
                return self.object_command(Opcode::DestroyDct, dct.0.0);
            }
            self.wait(None);
        }
        Err(Error::Timeout { what: "a DC target to drain", polls: POLLS })
    }
}
