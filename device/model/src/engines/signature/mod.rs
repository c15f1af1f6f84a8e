//! Signature keys: data gets, loses, or passes with the signatures of its blocks between memory and wire.
//!
//! A signature key has a memory domain and a wire domain ([`domain`]); each may have signatures of a kind
//! ([`crc`]) behind blocks of a size. What is read through the key goes from memory to the wire: the
//! memory's signatures are checked and taken out, the wire's put in. What is written goes the other way. Where
//! both domains have the same blocks, bytes of the signature can be copied instead.
//!
//! A wrong signature does not stop the data: a CQE tells of it ([`errors`]), once until the driver has seen it,
//! and a queue pair that was asked to drains its send queue.
//!
//! Source: the mlx5 driver and mlx5dv (field use; mlx5dv_wr_set_mkey_sig_block: what is done in which direction).

mod crc;
mod domain;
pub(crate) mod errors;

use hca_firmware::Icm;
use hca_firmware::icm::MemoryKey;
use hca_spec::bsf::{MAX_BLOCK, sig_err};
use hca_spec::ids::Mkey;
use hca_spec::mkc::Mkc;

use crate::engines::crypto::Bytes;
use crate::engines::mkey::Fault;
use domain::{Domain, Tuple};

pub(crate) use domain::Plan;
pub(crate) use errors::SignatureError;

/// The memory behind a key, by offset from its start, signatures included.
pub(crate) trait Backing: Bytes {
    /// A block's signature is wrong.
    fn found(&mut self, error: SignatureError);
}

/// A signature key in use.
pub(crate) struct Signed {
    key: Mkey,
    plan: Plan,
    memory_psv: u64,
    wire_psv: u64,
}

/// How a key's signature part is used, if it has one that is in use, and a block's signature as far as it has come from the wire.
///
/// # Errors
/// It names a PSV that is not there, or is of another domain.
pub(crate) fn signed(icm: &Icm, entry: &MemoryKey, key: Mkey) -> Result<Option<(Signed, [u8; 8])>, Fault> {
    let Some(signature) = entry.signature.as_ref().filter(|_| entry.ctx.get(Mkc::BSF_EN) == 1) else {
        return Ok(None);
    };
    let plan = Plan::new(&signature.bsf).map_err(|_| Fault::Psv(key))?;
    let value = |domain: &Option<Domain>| match domain {
        None => Ok(0),
        Some(d) => icm
            .psvs
            .get(d.psv)
            .filter(|psv| psv.pd == entry.ctx.get(Mkc::PD))
            .map(|psv| psv.value)
            .ok_or(Fault::Psv(key)),
    };
    let (memory_psv, wire_psv) = (value(&plan.memory)?, value(&plan.wire)?);
    Ok(Some((Signed { key, plan, memory_psv, wire_psv }, signature.arriving)))
}

/// A stretch of what travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stretch {
    /// Data, from that offset in the data on.
    Data(u64),
    /// Bytes of the signature of that block, from that byte on.
    Tuple(u64, usize),
}

impl Signed {
    /// Bytes of memory, from the key's start, that the first `len` bytes on the wire touch.
    pub(crate) fn memory_len(&self, len: u64) -> u64 {
        self.plan.memory_len(len)
    }

    /// What the wire carries at `offset`, and for at most how many of `left` bytes.
    fn on_wire(&self, offset: u64, left: usize) -> (Stretch, usize) {
        let Some(wire) = &self.plan.wire else { return (Stretch::Data(offset), left) };
        let (block, inside) = (offset / wire.stride(), offset % wire.stride());
        let room = |n: u64| n.min(left as u64) as usize;
        if inside < wire.block {
            (Stretch::Data(block * wire.block + inside), room(wire.block - inside))
        } else {
            let from = inside - wire.block;
            (Stretch::Tuple(block, from as usize), room(wire.stride() - inside))
        }
    }

    /// Memory to wire: fills `buf` with what the wire carries from `offset` on.
    pub(crate) fn gather(&self, memory: &mut dyn Backing, offset: u64, buf: &mut [u8]) -> Result<(), Fault> {
        let (mut rest, mut at) = (buf, offset);
        while !rest.is_empty() {
            let (stretch, n) = self.on_wire(at, rest.len());
            let (now, later) = std::mem::take(&mut rest).split_at_mut(n);
            match stretch {
                Stretch::Data(data) => self.load(memory, data, now)?,
                Stretch::Tuple(block, from) => {
                    let tuple = self.outgoing(memory, block)?;
                    let bytes = tuple.as_slice().iter().skip(from);
                    now.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
                }
            }
            (rest, at) = (later, at.saturating_add(n as u64));
        }
        Ok(())
    }

    /// Wire to memory: stores what the wire brought from `offset` on. `arriving`: the block's signature as far as it has come, before
    /// and then after it.
    pub(crate) fn scatter(
        &self,
        memory: &mut dyn Backing,
        offset: u64,
        data: &[u8],
        arriving: &mut [u8; 8],
    ) -> Result<(), Fault> {
        let (mut rest, mut at) = (data, offset);
        while !rest.is_empty() {
            let (stretch, n) = self.on_wire(at, rest.len());
            let (now, later) = rest.split_at(n);
            match stretch {
                Stretch::Data(data) => self.store(memory, data, now)?,
                Stretch::Tuple(block, from) => {
                    arriving.iter_mut().skip(from).zip(now).for_each(|(to, byte)| *to = *byte);
                    if let Some(wire) = self.plan.wire.as_ref().filter(|w| from + n == w.tuple_len()) {
                        self.arrived(memory, wire, block, Tuple::new(*arriving, wire.tuple_len()))?;
                    }
                }
            }
            (rest, at) = (later, at.saturating_add(n as u64));
        }
        Ok(())
    }

    /// Splits a stretch of data at the blocks of the memory domain: visits the offset in the data, the bytes,
    /// and the block that they complete.
    fn by_block(
        &self,
        offset: u64,
        len: usize,
        mut visit: impl FnMut(u64, usize, Option<(&Domain, u64)>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Some(domain) = &self.plan.memory else { return visit(offset, len, None) };
        let (mut at, mut left) = (offset, len);
        while left > 0 {
            let inside = at % domain.block;
            let n = (domain.block - inside).min(left as u64);
            let complete = inside + n == domain.block;
            visit(at, n as usize, complete.then_some((domain, at / domain.block)))?;
            (at, left) = (at.saturating_add(n), left - n as usize);
        }
        Ok(())
    }

    /// Data out of memory; signatures of blocks that are complete with it are checked.
    fn load(&self, memory: &mut dyn Backing, offset: u64, buf: &mut [u8]) -> Result<(), Fault> {
        let len = buf.len();
        let mut rest = buf;
        self.by_block(offset, len, |at, n, complete| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(n);
            rest = later;
            memory.read(self.plan.in_memory(at), now)?;
            if let Some((domain, block)) = complete {
                let came = self.in_memory(memory, domain, block)?;
                let good = self.computed(memory, domain, block, self.memory_psv)?;
                self.check(memory, (domain, sig_err::MEMORY, block), &came, &good);
            }
            Ok(())
        })
    }

    /// Data into memory; the signatures of blocks that are complete with it follow, unless they need what
    /// the wire's signatures say.
    fn store(&self, memory: &mut dyn Backing, offset: u64, data: &[u8]) -> Result<(), Fault> {
        let mut rest = data;
        self.by_block(offset, data.len(), |at, n, complete| {
            let (now, later) = rest.split_at(n);
            rest = later;
            memory.write(self.plan.in_memory(at), now)?;
            if let Some((domain, block)) = complete
                && self.plan.copy_mask.is_none()
            {
                let tuple = self.computed(memory, domain, block, self.memory_psv)?;
                memory.write(behind(domain, block), tuple.as_slice())?;
            }
            Ok(())
        })
    }

    /// The signature that the wire gets behind a block.
    fn outgoing(&self, memory: &mut dyn Backing, block: u64) -> Result<Tuple, Fault> {
        let Some(wire) = &self.plan.wire else { return Ok(Tuple::new([0; 8], 0)) };
        let tuple = self.computed(memory, wire, block, self.wire_psv)?;
        match (&self.plan.memory, self.plan.copy_mask) {
            (Some(domain), Some(mask)) => Ok(tuple.with(&self.in_memory(memory, domain, block)?, mask)),
            _ => Ok(tuple),
        }
    }

    /// A block's signature has come from the wire.
    fn arrived(&self, memory: &mut dyn Backing, wire: &Domain, block: u64, came: Tuple) -> Result<(), Fault> {
        let good = self.computed(memory, wire, block, self.wire_psv)?;
        self.check(memory, (wire, sig_err::WIRE, block), &came, &good);
        if let (Some(domain), Some(mask)) = (&self.plan.memory, self.plan.copy_mask) {
            let tuple = self.computed(memory, domain, block, self.memory_psv)?.with(&came, mask);
            memory.write(behind(domain, block), tuple.as_slice())?;
        }
        Ok(())
    }

    /// The signature that stands in memory behind a block.
    fn in_memory(&self, memory: &mut dyn Backing, domain: &Domain, block: u64) -> Result<Tuple, Fault> {
        let mut bytes = [0; 8];
        let len = domain.tuple_len();
        memory.read(behind(domain, block), bytes.get_mut(..len).unwrap_or_default())?;
        Ok(Tuple::new(bytes, len))
    }

    /// The signature that a block of a domain should have, from its data in memory.
    fn computed(
        &self,
        memory: &mut dyn Backing,
        domain: &Domain,
        block: u64,
        psv: u64,
    ) -> Result<Tuple, Fault> {
        let mut data = [0; MAX_BLOCK];
        let data = data.get_mut(..domain.block as usize).unwrap_or_default();
        let mut rest = &mut *data;
        self.by_block(block.saturating_mul(domain.block), rest.len(), |at, n, _| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(n);
            rest = later;
            memory.read(self.plan.in_memory(at), now)
        })?;
        Ok(domain.generate(block, data, psv))
    }

    /// Compares the signature of a block of one side with the right one.
    fn check(
        &self,
        memory: &mut dyn Backing,
        (domain, side, block): (&Domain, u32, u64),
        came: &Tuple,
        good: &Tuple,
    ) {
        let syndrome = domain.compare(came, good, self.plan.check_mask);
        if syndrome != 0 {
            memory.found(SignatureError {
                key: self.key,
                side,
                syndrome,
                offset: block.saturating_mul(domain.stride()),
                expected: came.halves(),
                actual: good.halves(),
            });
        }
    }
}

/// Where in memory the signature of a block is.
fn behind(domain: &Domain, block: u64) -> u64 {
    block.saturating_mul(domain.stride()).saturating_add(domain.block)
}

#[cfg(test)]
mod tests;
