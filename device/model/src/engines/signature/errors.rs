//! Telling of wrong signatures.
//!
//! The key's context has a count that the driver changes when it has seen an error. Until then the key's
//! further errors are not told: they would overwrite what the driver is to read.

use hca_spec::bsf::SigErrCqe;
use hca_spec::cqe::{Cqe, CqeOpcode};
use hca_spec::ids::{Mkey, Qpn};
use zerocopy::FromBytes;

/// A block's signature is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SignatureError {
    pub(crate) key: Mkey,
    /// [`hca_spec::bsf::sig_err::WIRE`] or `MEMORY`.
    pub(crate) side: u32,
    /// Which parts are wrong.
    pub(crate) syndrome: u32,
    /// Where in that domain the block begins.
    pub(crate) offset: u64,
    /// What the signature that came says: its high and low half.
    pub(crate) expected: (u32, u32),
    /// What the data that came has.
    pub(crate) actual: (u32, u32),
}

impl SignatureError {
    /// The completion that tells queue pair `qpn` of it.
    pub(crate) fn cqe(&self, qpn: Qpn) -> Cqe {
        let mut cqe = SigErrCqe::new();
        cqe.set(SigErrCqe::EXPECTED_HIGH, self.expected.0).set(SigErrCqe::EXPECTED_LOW, self.expected.1);
        cqe.set(SigErrCqe::ACTUAL_HIGH, self.actual.0).set(SigErrCqe::ACTUAL_LOW, self.actual.1);
        cqe.set(SigErrCqe::SYNDROME, self.syndrome).set(SigErrCqe::DOMAIN, self.side);
        cqe.set(SigErrCqe::MKEY, self.key.0).set(SigErrCqe::OFFSET, self.offset);
        cqe.set(SigErrCqe::QPN, qpn.0).set(SigErrCqe::OPCODE, CqeOpcode::SigErr as u32);
        Cqe::read_from_bytes(cqe.bytes()).unwrap_or_default()
    }
}
