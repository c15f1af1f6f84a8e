//! Signature keys: keys through which data gets, loses or passes with the signatures of its blocks.
//!
//! A signature key is a key of pieces with room for a signature part ([`Bsf`]), which a work request loads
//! together with the pieces ([`KeyChange::signatures`](crate::KeyChange::signatures)). Each of its domains, memory
//! and wire, has a signature value (PSV), whose seed a work request sets ([`SendOp::SetPsv`](crate::SendOp::SetPsv)).
//! A wrong signature comes as a completion of its own ([`SignatureError`]).
//!
//! Source: the mlx5 driver (field use); the public manual does not have them.

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use crate::umr::{KeyChange, KeyKind, Parts};
use alloc::vec::Vec;
use hca_spec::bsf::{Bsf, CreatePsvIn, CreatePsvOut, MAX_PSVS, SigErrCqe};
use hca_spec::command::Opcode;
use hca_spec::cqe::{Cqe, CqeOpcode};
use hca_spec::ids::{Mkey, Pd};
use hca_spec::mkc::Mkc;
use hca_spec::wqe::umr_mask;

/// What a completion says of a wrong signature.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SignatureError {
    /// The key.
    pub key: Mkey,
    /// Which parts are wrong ([`hca_spec::bsf::sig_err`]).
    pub syndrome: u32,
    /// [`hca_spec::bsf::sig_err::WIRE`] or [`hca_spec::bsf::sig_err::MEMORY`].
    pub domain: u32,
    /// Where in that domain the block begins, in bytes, signatures included.
    pub offset: u64,
    /// The signature that came, from the highest bit on.
    pub expected: u64,
    /// The signature of the data that came.
    pub actual: u64,
}

impl SignatureError {
    pub(crate) fn decode(cqe: &Cqe) -> Option<Self> {
        if cqe.get(Cqe::OPCODE) != CqeOpcode::SigErr as u32 {
            return None;
        }
        let cqe = SigErrCqe::from_prefix_or_zero(cqe.bytes());
        let whole = |high, low| u64::from(cqe.get(high)) << 32 | u64::from(cqe.get(low));
        Some(Self {
            key: Mkey(cqe.get(SigErrCqe::MKEY)),
            syndrome: cqe.get(SigErrCqe::SYNDROME),
            domain: cqe.get(SigErrCqe::DOMAIN),
            offset: cqe.get(SigErrCqe::OFFSET),
            expected: whole(SigErrCqe::EXPECTED_HIGH, SigErrCqe::EXPECTED_LOW),
            actual: whole(SigErrCqe::ACTUAL_HIGH, SigErrCqe::ACTUAL_LOW),
        })
    }
}

impl KeyChange {
    /// Data passes these domains from now on. `errors` is how many signature errors of the key were seen: an
    /// error is reported once until the number changes. The translations must be inline.
    pub fn signatures(mut self, bsf: Bsf, errors: u32) -> Self {
        self.mkc.set(Mkc::BSF_EN, 1).set(Mkc::EXPECTED_SIGERR_COUNT, errors & 1);
        self.bsf = Some(bsf);
        self.mask(umr_mask::BSF_EN | umr_mask::SIG_ERR)
    }
}

impl<B: Bus> Hca<B> {
    /// Creates that many signature values, 1 to 4, in a protection domain.
    pub fn create_psvs(&mut self, pd: Pd, count: u32) -> Result<Vec<u32>, Error> {
        if !(1..=MAX_PSVS).contains(&count) {
            return Err(Error::Invalid("a command makes 1 to 4 PSVs"));
        }
        let mut input = CreatePsvIn::new();
        input.set(CreatePsvIn::NUM_PSV, count).set(CreatePsvIn::PD, pd.0);
        let out = self.execute(Opcode::CreatePsv, 0, input.bytes().to_vec(), CreatePsvOut::SIZE)?;
        let out = CreatePsvOut::from_prefix_or_zero(&out);
        let fields = [CreatePsvOut::PSV0, CreatePsvOut::PSV1, CreatePsvOut::PSV2, CreatePsvOut::PSV3];
        Ok(fields.iter().take(count as usize).map(|field| out.get(*field)).collect())
    }

    /// Destroys a signature value.
    pub fn destroy_psv(&mut self, psv: u32) -> Result<(), Error> {
        self.object_command(Opcode::DestroyPsv, psv)
    }

    /// Makes a free key of pieces with room for that many, and for a signature part.
    pub fn alloc_signature_key(&mut self, pd: Pd, room: u32) -> Result<Mkey, Error> {
        self.alloc_key_with(pd, KeyKind::Pieces, room, false, Parts::Signature)
    }
}
