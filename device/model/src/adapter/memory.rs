//! Accesses to the host's memory through keys: what an engine asks to be read and written.

use hca_firmware::Icm;
use hca_spec::bsf::sig_err;
use hca_spec::ids::{Cqn, Mkey};
use hca_spec::mkc::Mkc;

use super::core::Core;
use super::state::function::FunctionState;
use crate::engines::crypto::Bytes;
use crate::engines::mkey::{
    Access, Accessor, Behind, Fault, KnownPages, PagePart, Remains, Space, Span, Steps, Target, Walked,
    target,
};
use crate::engines::pieces::{Piece, walk};
use crate::engines::qp::QueuePair;
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

/// The memory that a span is of.
#[inline]
fn space<'a>(icm: &'a Icm, memory: &'a dyn GuestMemory, span: Span) -> &'a dyn GuestMemory {
    match span.space {
        Space::Host => memory,
        Space::Device => &icm.device_memory,
        Space::Icm => &icm.steering.memory,
    }
}

/// The memory behind a signature key or one that encrypts, and what is found in it.
struct InMemory<'a> {
    icm: &'a Icm,
    memory: &'a dyn GuestMemory,
    steps: &'a mut Steps,
    behind: &'a Behind<'a>,
    found: SignatureErrors,
}

impl Bytes for InMemory<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Fault> {
        let (len, mut rest) = (buf.len(), buf);
        self.behind.spans(offset, len, Access::LocalRead, self.steps, &mut |span| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(span.len);
            rest = later;
            Ok(space(self.icm, self.memory, span).read(span.iova, now)?)
        })
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Fault> {
        let mut rest = data;
        self.behind.spans(offset, data.len(), Access::LocalWrite, self.steps, &mut |span| {
            let (now, later) = rest.split_at(span.len);
            rest = later;
            Ok(space(self.icm, self.memory, span).write(span.iova, now)?)
        })
    }
}

impl Backing for InMemory<'_> {
    fn found(&mut self, error: SignatureError) {
        self.found.0.push(error);
    }
}

/// What has become of an access that went well, and what is to be kept of it.
struct Done {
    found: SignatureErrors,
    /// All of it is in that page.
    page: Option<PagePart>,
    /// Of a key with signatures or one that encrypts, when it is written.
    remains: Option<Remains>,
}

impl Done {
    /// Nothing but bytes.
    const PLAIN: Self = Self { found: SignatureErrors(Vec::new()), page: None, remains: None };

    fn in_page(page: PagePart) -> Self {
        Self { page: Some(page), ..Self::PLAIN }
    }
}

/// The host's memory as keys translate it. Accesses change nothing but bytes.
#[derive(Clone, Copy)]
struct Reach<'a> {
    icm: &'a Icm,
    memory: &'a dyn GuestMemory,
}

impl Reach<'_> {
    fn read(
        self,
        steps: &mut Steps,
        who: Accessor,
        (key, va): (Mkey, u64),
        buf: &mut [u8],
        access: Access,
    ) -> Result<Done, Fault> {
        let Self { icm, memory } = self;
        match target(icm, who, key, va, buf.len() as u64, access)? {
            Target::Plain(plain) => {
                if let Some(page) = plain.in_page() {
                    memory.read(page.address(va), buf)?;
                    return Ok(Done::in_page(page));
                }
                let mut room = Room::new(buf);
                plain.spans(steps, &mut |span: Span| {
                    Ok(space(icm, memory, span).read(span.iova, room.next(span.len))?)
                })?;
                Ok(Done::PLAIN)
            }
            Target::Signed(behind) => {
                buf.fill(0);
                let found = SignatureErrors::default();
                let mut backing = InMemory { icm, memory, steps, behind: &behind, found };
                behind.gather(&mut backing, buf)?;
                Ok(Done { found: backing.found, ..Done::PLAIN })
            }
        }
    }

    fn write(
        self,
        steps: &mut Steps,
        who: Accessor,
        (key, va): (Mkey, u64),
        data: Payload<'_>,
        access: Access,
    ) -> Result<Done, Fault> {
        let Self { icm, memory } = self;
        match target(icm, who, key, va, data.len() as u64, access)? {
            Target::Plain(plain) => {
                if let Some(page) = plain.in_page() {
                    data.write_to(memory, page.address(va))?;
                    return Ok(Done::in_page(page));
                }
                let mut rest = data;
                plain.spans(steps, &mut |span: Span| {
                    let (now, later) = rest.split_at(span.len);
                    rest = later;
                    Ok(now.write_to(space(icm, memory, span), span.iova)?)
                })?;
                Ok(Done::PLAIN)
            }
            Target::Signed(behind) => {
                let found = SignatureErrors::default();
                let mut backing = InMemory { icm, memory, steps, behind: &behind, found };
                let remains = Some(behind.scatter(&mut backing, &data.bytes()?)?);
                Ok(Done { found: backing.found, remains, ..Done::PLAIN })
            }
        }
    }
}

/// Reads `buf.len()` bytes of a list from byte `offset` on, `read` what is in memory. What lies beyond the list's end is zero.
#[inline]
fn gather(
    pieces: &[Piece],
    offset: u64,
    buf: &mut [u8],
    mut read: impl FnMut(Mkey, u64, &mut [u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let len = buf.len();
    let mut room = Room::new(buf);
    walk(pieces, offset, len, |piece, skip, n| {
        let now = room.next(n);
        match piece {
            Piece::Memory { key, va, .. } => read(*key, va.wrapping_add(skip), now)?,
            Piece::Inline(data) => {
                let mut now = Room::new(now);
                let from = data.get(skip as usize..).unwrap_or_default();
                let from = from.get(..n).unwrap_or(from);
                now.next(from.len()).copy_from_slice(from);
            }
        }
        Ok(())
    })
}

/// Writes `data` into a list from byte `offset` on, with `write`. Nothing can be written into a WQE.
#[inline]
fn scatter<'a>(
    pieces: &[Piece],
    offset: u64,
    data: Payload<'a>,
    mut write: impl FnMut(Mkey, u64, Payload<'a>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut rest = data;
    walk(pieces, offset, data.len(), |piece, skip, n| {
        let (now, later) = rest.split_at(n);
        rest = later;
        match piece {
            Piece::Memory { key, va, .. } => write(*key, va.wrapping_add(skip), now),
            Piece::Inline(_) => Ok(()),
        }
    })
}

/// The host's memory as keys translate it, for one access.
///
/// The keys' engine says where an access goes and what is to be kept of it: here it is made and kept.
pub(crate) struct Keyed<'a> {
    icm: &'a mut Icm,
    memory: &'a dyn GuestMemory,
    /// What is looked at in indirect keys.
    steps: Steps,
    /// The same of all accesses.
    walked: &'a mut Walked,
    /// Where the last accesses went.
    known: &'a mut KnownPages,
    /// The changes of keys so far.
    keys: u64,
}

impl Keyed<'_> {
    /// Entries of indirect keys that were looked at.
    pub(crate) fn looked_at(&self) -> u32 {
        self.steps.taken()
    }

    /// Reads `buf.len()` bytes at `va` under `key`: all of `buf` is written if it goes well.
    ///
    /// Through a signature key: what is read goes to the wire. An access that fails has found no wrong signatures: it is
    /// done again, or nobody hears of its data.
    pub(crate) fn read(
        &mut self,
        who: Accessor,
        key: Mkey,
        va: u64,
        buf: &mut [u8],
        access: Access,
    ) -> Result<SignatureErrors, Fault> {
        if let Some(iova) = self.known.find(who, key, (va, buf.len()), access, self.keys) {
            self.memory.read(iova, buf)?;
            return Ok(SignatureErrors::default());
        }
        let reach = Reach { icm: self.icm, memory: self.memory };
        let done = reach.read(&mut self.steps, who, (key, va), buf, access);
        self.keep(who, key, access, done)
    }

    /// Writes `data` at `va` under `key`.
    ///
    /// Through a signature key: what is written comes from the wire.
    pub(crate) fn write(
        &mut self,
        who: Accessor,
        key: Mkey,
        va: u64,
        data: Payload<'_>,
        access: Access,
    ) -> Result<SignatureErrors, Fault> {
        if let Some(iova) = self.known.find(who, key, (va, data.len()), access, self.keys) {
            data.write_to(self.memory, iova)?;
            return Ok(SignatureErrors::default());
        }
        let reach = Reach { icm: self.icm, memory: self.memory };
        let done = reach.write(&mut self.steps, who, (key, va), data, access);
        self.keep(who, key, access, done)
    }

    /// Keeps what is to be kept of an access. Entries that it looked at are paid for, even if it failed.
    fn keep(
        &mut self,
        who: Accessor,
        key: Mkey,
        access: Access,
        done: Result<Done, Fault>,
    ) -> Result<SignatureErrors, Fault> {
        self.walked.add(self.steps.take_looks());
        if self.steps.has_places() {
            self.steps.keep(self.icm);
        }
        let Done { found, page, remains } = done?;
        if let Some(page) = page {
            self.known.keep(who, key, page, access, self.keys);
        }
        if let Some(remains) = remains {
            remains.keep(self.icm, key);
        }
        Ok(found)
    }

    /// Reads `buf.len()` bytes of a list from byte `offset` on. What lies beyond the list's end is zero.
    pub(crate) fn gather(
        &mut self,
        who: Accessor,
        pieces: &[Piece],
        offset: u64,
        buf: &mut [u8],
    ) -> Result<SignatureErrors, Fault> {
        let mut found = SignatureErrors::default();
        gather(pieces, offset, buf, |key, va, now| {
            found.add(self.read(who, key, va, now, Access::LocalRead)?);
            Ok(())
        })?;
        Ok(found)
    }

    /// Writes `data` into a list from byte `offset` on. Nothing can be written into a WQE.
    pub(crate) fn scatter(
        &mut self,
        who: Accessor,
        pieces: &[Piece],
        offset: u64,
        data: Payload<'_>,
    ) -> Result<SignatureErrors, Fault> {
        let mut found = SignatureErrors::default();
        scatter(pieces, offset, data, |key, va, now| {
            found.add(self.write(who, key, va, now, Access::LocalWrite)?);
            Ok(())
        })?;
        Ok(found)
    }
}

/// The same memory for an access that is only planned: nothing of it is kept, and nobody hears how it ends.
pub(crate) struct PlannedAccess<'a> {
    reach: Reach<'a>,
    steps: Steps,
    who: Accessor,
}

impl PlannedAccess<'_> {
    /// Reads `buf.len()` bytes at `va` under `key`.
    pub(crate) fn read(&mut self, key: Mkey, va: u64, buf: &mut [u8], access: Access) {
        _ = self.reach.read(&mut self.steps, self.who, (key, va), buf, access);
    }

    /// Writes `data` at `va` under `key`.
    pub(crate) fn write(&mut self, key: Mkey, va: u64, data: Payload<'_>, access: Access) {
        _ = self.reach.write(&mut self.steps, self.who, (key, va), data, access);
    }

    /// Reads `len` bytes of a list from byte `offset` on.
    pub(crate) fn gather(&mut self, pieces: &[Piece], offset: u64, len: usize) {
        let Self { reach, steps, who } = self;
        _ = gather(pieces, offset, &mut vec![0; len], |key, va, now| {
            reach.read(steps, *who, (key, va), now, Access::LocalRead).map(|_| ())
        });
    }

    /// Writes `data` into a list from byte `offset` on. Returns whether that goes well.
    pub(crate) fn scatter(&mut self, pieces: &[Piece], offset: u64, data: Payload<'_>) -> bool {
        let Self { reach, steps, who } = self;
        let done = scatter(pieces, offset, data, |key, va, now| {
            reach.write(steps, *who, (key, va), now, Access::LocalWrite).map(|_| ())
        });
        done.is_ok()
    }
}

impl Core<'_> {
    /// The host's memory as keys translate it.
    #[inline]
    pub(crate) fn keyed(&mut self) -> Keyed<'_> {
        let FunctionState { fw, memory, known, walked, key_changes, .. } = &mut *self.function;
        Keyed {
            icm: &mut fw.icm,
            memory: &**memory,
            steps: Steps::default(),
            walked,
            known,
            keys: *key_changes,
        }
    }

    /// The host's memory as keys translate it for `who`, for what is only planned.
    pub(crate) fn planned_access(&self, who: Accessor) -> PlannedAccess<'_> {
        self.planned_access_in(&*self.function.memory, who)
    }

    /// The same through other memory.
    pub(crate) fn planned_access_in<'a>(
        &'a self,
        memory: &'a dyn GuestMemory,
        who: Accessor,
    ) -> PlannedAccess<'a> {
        PlannedAccess { reach: Reach { icm: &self.function.fw.icm, memory }, steps: Steps::default(), who }
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
