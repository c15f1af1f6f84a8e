//! Accesses to the host's memory through keys: what an engine asks to be read and written.

use hca_firmware::Icm;
use hca_spec::bsf::sig_err;
use hca_spec::ids::{Cqn, Mkey};
use hca_spec::mkc::Mkc;

use super::core::Core;
use crate::engines::crypto::Bytes;
use crate::engines::mkey::{
    Access, Accessor, Behind, Fault, KnownPages, Space, Span, Steps, Target, Walked, target,
};
use crate::engines::qp::QueuePair;
use crate::engines::qp::pieces::{Piece, walk};
use crate::engines::signature::{Backing, SignatureError};
use crate::ground::dma::GuestMemory;
use crate::ground::region::Payload;
use crate::ground::time::Ps;
use crate::wire::Room;

/// Signatures that an access found wrong. They are told of by completions ([`Core::report_signature_errors`]), or dropped with a reason.
#[must_use = "wrong signatures are told of (Core::report_signature_errors), or dropped with a reason (SignatureErrors::ignore)"]
#[derive(Debug, Default)]
pub(crate) struct SignatureErrors(Vec<SignatureError>);

impl SignatureErrors {
    fn add(&mut self, other: SignatureErrors) {
        if !other.0.is_empty() {
            self.0.extend(other.0);
        }
    }

    /// Nobody is told.
    pub(crate) fn ignore(self, _why: &'static str) {}
}

/// The memory behind a signature key or one that encrypts, and what is found in it.
struct InMemory<'a> {
    keyed: &'a Keyed<'a>,
    behind: &'a Behind<'a>,
    found: SignatureErrors,
}

impl Bytes for InMemory<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Fault> {
        let (len, mut rest) = (buf.len(), buf);
        self.behind.spans(offset, len, Access::LocalRead, &self.keyed.steps, &mut |span| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(span.len);
            rest = later;
            Ok(self.keyed.space(span).read(span.iova, now)?)
        })
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Fault> {
        let mut rest = data;
        self.behind.spans(offset, data.len(), Access::LocalWrite, &self.keyed.steps, &mut |span| {
            let (now, later) = rest.split_at(span.len);
            rest = later;
            Ok(self.keyed.space(span).write(span.iova, now)?)
        })
    }
}

impl Backing for InMemory<'_> {
    fn found(&mut self, error: SignatureError) {
        self.found.0.push(error);
    }
}

/// The host's memory as keys translate it, for one access.
pub(crate) struct Keyed<'a> {
    icm: &'a Icm,
    memory: &'a dyn GuestMemory,
    /// What is looked at in indirect keys.
    steps: Steps<'a>,
    /// Where the last accesses went, and the changes of keys so far.
    known: (&'a KnownPages, u64),
}

impl<'k> Keyed<'k> {
    pub(crate) fn new(
        icm: &'k Icm,
        memory: &'k dyn GuestMemory,
        known: (&'k KnownPages, u64),
        walked: &'k Walked,
    ) -> Self {
        Self { icm, memory, steps: Steps::new(walked), known }
    }

    /// The bus address of a range that is in the page of the last access of this kind.
    #[inline]
    fn known(&self, who: Accessor, key: Mkey, range: (u64, usize), access: Access) -> Option<u64> {
        let (known, keys) = self.known;
        known.find(who, key, range, access, keys)
    }

    /// Entries of indirect keys that were looked at.
    pub(crate) fn looked_at(&self) -> u32 {
        self.steps.taken()
    }

    /// Reads `buf.len()` bytes at `va` under `key`: all of `buf` is written if it goes well.
    ///
    /// Through a signature key: what is read goes to the wire. An access that fails has found no wrong signatures: it is
    /// done again, or nobody hears of its data.
    pub(crate) fn read(
        &self,
        who: Accessor,
        key: Mkey,
        va: u64,
        buf: &mut [u8],
        access: Access,
    ) -> Result<SignatureErrors, Fault> {
        if let Some(iova) = self.known(who, key, (va, buf.len()), access) {
            self.memory.read(iova, buf)?;
            return Ok(SignatureErrors::default());
        }
        match target(self.icm, who, key, va, buf.len() as u64, access)? {
            Target::Plain(plain) => {
                if let Some(iova) = plain.in_page(self.known.0, self.known.1) {
                    self.memory.read(iova, buf)?;
                    return Ok(SignatureErrors::default());
                }
                let mut room = Room::new(buf);
                plain.spans(&self.steps, &mut |span: Span| {
                    Ok(self.space(span).read(span.iova, room.next(span.len))?)
                })?;
                Ok(SignatureErrors::default())
            }
            Target::Signed(behind) => {
                buf.fill(0);
                let mut backing = self.behind(&behind);
                behind.gather(&mut backing, buf)?;
                Ok(backing.found)
            }
        }
    }

    /// Writes `data` at `va` under `key`.
    ///
    /// Through a signature key: what is written comes from the wire.
    pub(crate) fn write(
        &self,
        who: Accessor,
        key: Mkey,
        va: u64,
        data: Payload<'_>,
        access: Access,
    ) -> Result<SignatureErrors, Fault> {
        if let Some(iova) = self.known(who, key, (va, data.len()), access) {
            data.write_to(self.memory, iova)?;
            return Ok(SignatureErrors::default());
        }
        match target(self.icm, who, key, va, data.len() as u64, access)? {
            Target::Plain(plain) => {
                if let Some(iova) = plain.in_page(self.known.0, self.known.1) {
                    data.write_to(self.memory, iova)?;
                    return Ok(SignatureErrors::default());
                }
                let mut rest = data;
                plain.spans(&self.steps, &mut |span: Span| {
                    let (now, later) = rest.split_at(span.len);
                    rest = later;
                    Ok(now.write_to(self.space(span), span.iova)?)
                })?;
                Ok(SignatureErrors::default())
            }
            Target::Signed(behind) => {
                let mut backing = self.behind(&behind);
                behind.scatter(&mut backing, &data.bytes()?)?;
                Ok(backing.found)
            }
        }
    }

    /// The memory that a span is of.
    #[inline]
    fn space(&self, span: Span) -> &dyn GuestMemory {
        match span.space {
            Space::Host => self.memory,
            Space::Device => &self.icm.device_memory,
            Space::Icm => &self.icm.steering.memory,
        }
    }

    fn behind<'a>(&'a self, behind: &'a Behind<'a>) -> InMemory<'a> {
        InMemory { keyed: self, behind, found: SignatureErrors::default() }
    }

    /// Reads `buf.len()` bytes of a list from byte `offset` on. What lies beyond the list's end is zero.
    pub(crate) fn gather(
        &self,
        who: Accessor,
        pieces: &[Piece],
        offset: u64,
        buf: &mut [u8],
    ) -> Result<SignatureErrors, Fault> {
        let len = buf.len();
        let (mut room, mut found) = (Room::new(buf), SignatureErrors::default());
        walk(pieces, offset, len, |piece, skip, n| {
            let now = room.next(n);
            match piece {
                Piece::Memory { key, va, .. } => {
                    found.add(self.read(who, *key, va.wrapping_add(skip), now, Access::LocalRead)?);
                }
                Piece::Inline(data) => {
                    let mut now = Room::new(now);
                    let from = data.get(skip as usize..).unwrap_or_default();
                    let from = from.get(..n).unwrap_or(from);
                    now.next(from.len()).copy_from_slice(from);
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Writes `data` into a list from byte `offset` on. Nothing can be written into a WQE.
    pub(crate) fn scatter(
        &self,
        who: Accessor,
        pieces: &[Piece],
        offset: u64,
        data: Payload<'_>,
    ) -> Result<SignatureErrors, Fault> {
        let (mut rest, mut found) = (data, SignatureErrors::default());
        walk(pieces, offset, data.len(), |piece, skip, n| {
            let (now, later) = rest.split_at(n);
            rest = later;
            if let Piece::Memory { key, va, .. } = piece {
                found.add(self.write(who, *key, va.wrapping_add(skip), now, Access::LocalWrite)?);
            }
            Ok(())
        })?;
        Ok(found)
    }
}

impl Core<'_> {
    /// The host's memory as keys translate it.
    #[inline]
    pub(crate) fn keyed(&self) -> Keyed<'_> {
        self.keyed_in(&*self.function.memory)
    }

    /// The same through other memory.
    pub(crate) fn keyed_in<'a>(&'a self, memory: &'a dyn GuestMemory) -> Keyed<'a> {
        let function = &*self.function;
        let known = (&function.known, function.key_changes);
        Keyed::new(&function.fw.icm, memory, known, &function.walked)
    }

    /// Tells of signatures that were found wrong, by completions to the queue `cqn`: of each key the first one until the
    /// driver has seen it.
    #[inline]
    pub(crate) fn report_signature_errors(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        cqn: Cqn,
        findings: SignatureErrors,
    ) {
        for error in findings.0 {
            self.report_one(now, qp, cqn, error);
        }
    }

    #[cold]
    fn report_one(&mut self, now: Ps, qp: &mut QueuePair, cqn: Cqn, error: SignatureError) {
        let Some(entry) = self.function.fw.icm.mkeys.get_mut(error.key.index()) else { return };
        let count = entry.ctx.get(Mkc::EXPECTED_SIGERR_COUNT);
        let Some(signature) = entry.signature.as_mut().filter(|s| s.told != Some(count)) else { return };
        signature.told = Some(count);
        let domain = if error.side == sig_err::WIRE { "wire" } else { "memory" };
        self.diagnose(
            now,
            format_args!(
                "QP {}: key {}: the signature of the block at {} of the {domain} domain is wrong (syndrome {:#x})",
                qp.qpn, error.key, error.offset, error.syndrome
            ),
        );
        self.complete_for(now, qp, cqn, error.cqe(qp.qpn), &[]);
        if qp.params.drain_sigerr {
            self.drain_for_signature(now, qp);
        }
    }
}
