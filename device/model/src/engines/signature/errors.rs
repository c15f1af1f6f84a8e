//! Telling of wrong signatures.
//!
//! The key's context has a count that the driver changes when it has seen an error. Until then the key's
//! further errors are not told: they would overwrite what the driver is to read.

use hca_spec::bsf::{SigErrCqe, sig_err};
use hca_spec::cqe::{Cqe, CqeOpcode};
use hca_spec::ids::{Cqn, Mkey};
use hca_spec::mkc::Mkc;
use zerocopy::FromBytes;

use crate::adapter::core::Core;
use crate::engines::transport::QueuePair;
use crate::ground::time::Ps;

/// A block's signature is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SignatureError {
    pub(crate) key: Mkey,
    /// [`sig_err::WIRE`] or [`sig_err::MEMORY`].
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
    fn cqe(&self, qp: &QueuePair) -> Cqe {
        let mut cqe = SigErrCqe::new();
        cqe.set(SigErrCqe::EXPECTED_HIGH, self.expected.0).set(SigErrCqe::EXPECTED_LOW, self.expected.1);
        cqe.set(SigErrCqe::ACTUAL_HIGH, self.actual.0).set(SigErrCqe::ACTUAL_LOW, self.actual.1);
        cqe.set(SigErrCqe::SYNDROME, self.syndrome).set(SigErrCqe::DOMAIN, self.side);
        cqe.set(SigErrCqe::MKEY, self.key.0).set(SigErrCqe::OFFSET, self.offset);
        cqe.set(SigErrCqe::QPN, qp.qpn.0).set(SigErrCqe::OPCODE, CqeOpcode::SigErr as u32);
        Cqe::read_from_bytes(cqe.bytes()).unwrap_or_default()
    }
}

impl QueuePair {
    /// Tells of the signatures that were found wrong since, by completions to the queue `cqn`.
    pub(crate) fn tell_signature_errors(&mut self, core: &mut Core, now: Ps, cqn: Cqn) {
        for error in core.signature_errors.take() {
            let Some(entry) = core.fw.icm.mkeys.get_mut(error.key.index()) else { continue };
            let count = entry.ctx.get(Mkc::EXPECTED_SIGERR_COUNT);
            let Some(signature) = entry.signature.as_mut().filter(|s| s.told != Some(count)) else {
                continue;
            };
            signature.told = Some(count);
            let domain = if error.side == sig_err::WIRE { "wire" } else { "memory" };
            core.diagnose(
                now,
                format_args!(
                    "QP {}: key {}: the signature of the block at {} of the {domain} domain is wrong (syndrome {:#x})",
                    self.qpn, error.key, error.offset, error.syndrome
                ),
            );
            let cqe = error.cqe(self);
            self.complete(core, now, cqn, cqe);
            if self.params.drain_sigerr {
                self.drain_for_signature(core, now);
            }
        }
    }
}
