//! On-demand paging: regions whose pages the driver brings when the adapter needs them.
//!
//! A region starts without any page. A queue pair that meets a page that is not there stops and the adapter
//! raises an event; the driver makes the page present with a work request on a queue pair of its own (a
//! [`Registrar`]) and says with PAGE_FAULT_RESUME that the other may go on. The event names the work request or the peer's request
//! that needs the page (transport scheme), or the page (memory scheme, [`crate::Config::memory_page_faults`]). Pages that the host needs back
//! are taken out the same way: once that work request is complete the adapter does not touch them any more
//! (the mlx5 driver, field use).

use crate::bus::Bus;
use crate::cq::{Cq, CqConfig};
use crate::error::Error;
use crate::events::Eq;
use crate::hca::Hca;
use crate::mr::Access;
use crate::qp::{InitAttr, Path, Qp, QpConfig, RtrAttr, RtsAttr};
use crate::umr::{KeyChange, KeyKind, pieces};
use crate::wqe::{SendOp, SendRequest, Sge};
use alloc::vec;
use alloc::vec::Vec;
use hca_spec::cmd::{CreateMkeyIn, PageFaultResumeIn};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::eqe::{Eqe, EventType, page_fault};
use hca_spec::ids::{Lid, Mkey, Pd, Qpn};
use hca_spec::mkc::{ANY_QP, AccessMode, MTT_READ, MTT_WRITE, Mkc, NULL_MKEY};
use hca_spec::qpc::ServiceType;

/// Page entries are loaded in chunks of 64 bytes.
const CHUNK: usize = 8;
/// Page entries that one work request carries inline.
const MAX_INLINE: usize = 64;

/// A queue pair waits for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// Which of the queue pair's sides waits, and for what: `hca_spec::eqe::page_fault`. Not told in the memory scheme: 0, as
    /// are queue, bytes and payload.
    pub kind: u8,
    /// What PAGE_FAULT_RESUME has to repeat.
    pub token: u64,
    /// Of a WQE: the queue that it is in, a QP or an SRQ.
    pub queue: u32,
    /// Bytes of the message that are done.
    pub committed: u32,
    /// Responder: payload of the packet.
    pub packet: u16,
    /// What names the page.
    pub place: FaultPlace,
}

/// What names a page that is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultPlace {
    /// The data segments of a WQE.
    Wqe {
        /// Its index.
        index: u16,
    },
    /// A request of the peer.
    Rdma {
        /// Its key.
        rkey: Mkey,
        /// Start of the whole operation.
        address: u64,
        /// Length of the whole operation.
        len: u32,
    },
    /// Key and address, in the memory scheme.
    Memory {
        /// The key that has the page, by whatever keys it was found.
        key: Mkey,
        /// Where the first page that is needed begins under it.
        address: u64,
        /// Bytes that are needed, in pages of 4 KiB.
        len: u64,
        /// Bytes before them that may be brought, too.
        before: u64,
        /// The same behind them.
        after: u64,
        /// Whether PAGE_FAULT_RESUME is waited for: further events of the token come before.
        last: bool,
    },
}

/// Bytes of so many pages, as events count them.
fn bytes_of(pages: u32) -> u64 {
    u64::from(pages) << page_fault::LOG_PAGE
}

impl PageFault {
    /// Decodes an entry.
    pub(crate) fn decode(eqe: &Eqe) -> Self {
        if eqe.get(Eqe::SUB_TYPE) == u32::from(page_fault::MEMORY) {
            return Self::decode_memory(eqe);
        }
        let rdma = eqe.get(Eqe::SUB_TYPE) == u32::from(page_fault::RDMA);
        let queue = eqe.get(Eqe::FAULT_QUEUE);
        Self {
            kind: eqe.get(Eqe::FAULT_TYPE) as u8,
            token: if rdma { queue } else { eqe.get(Eqe::FAULT_WQE_TOKEN) }.into(),
            queue,
            committed: eqe.get(Eqe::FAULT_COMMITTED),
            packet: eqe.get(Eqe::FAULT_PACKET) as u16,
            place: if rdma {
                let (rkey, address) = (Mkey(eqe.get(Eqe::FAULT_RKEY)), eqe.get(Eqe::FAULT_ADDRESS));
                FaultPlace::Rdma { rkey, address, len: eqe.get(Eqe::FAULT_LENGTH) }
            } else {
                FaultPlace::Wqe { index: eqe.get(Eqe::FAULT_WQE_INDEX) as u16 }
            },
        }
    }

    fn decode_memory(eqe: &Eqe) -> Self {
        let high = u64::from(eqe.get(Eqe::MEMORY_FAULT_TOKEN_47_32));
        Self {
            kind: 0,
            token: high << 32 | u64::from(eqe.get(Eqe::MEMORY_FAULT_TOKEN_31_0)),
            queue: 0,
            committed: 0,
            packet: 0,
            place: FaultPlace::Memory {
                key: Mkey(eqe.get(Eqe::MEMORY_FAULT_MKEY)),
                address: eqe.get(Eqe::MEMORY_FAULT_VA),
                len: bytes_of(eqe.get(Eqe::MEMORY_FAULT_PAGES)),
                before: bytes_of(eqe.get(Eqe::MEMORY_FAULT_PRE_PAGES)),
                after: bytes_of(eqe.get(Eqe::MEMORY_FAULT_POST_PAGES)),
                last: eqe.get(Eqe::MEMORY_FAULT_FLAGS) as u8 & page_fault::LAST != 0,
            },
        }
    }
}

/// A region whose pages come and go.
#[must_use = "a region stays registered until its key is freed"]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnDemand {
    /// The key: both lkey and rkey.
    pub key: Mkey,
    /// First address under the key, at the start of a page.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// The entries that the adapter has; 0 = not present. Padded to whole chunks.
    entries: Vec<u64>,
}

/// A region over addresses from 0 on whose blocks come and go.
#[must_use = "a region stays registered until its key is freed"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Implicit {
    /// The key: both lkey and rkey.
    pub key: Mkey,
    /// The key that stands where no block is: the adapter's, or one of the region's own if page faults have to name it.
    pub null: Mkey,
    /// log2 of the bytes of a block.
    pub log2: u32,
}

impl Implicit {
    /// What stands for block number `n` while it is not there. Under a key of the region's own, faults tell the address.
    fn absent(&self, n: usize) -> Sge {
        let address = if self.null == Mkey(NULL_MKEY) { 0 } else { (n as u64) << self.log2 };
        Sge { address, len: 1 << self.log2, key: self.null }
    }
}

/// A queue pair of the driver's own that changes keys.
pub struct Registrar<B: Bus> {
    cq: Cq<B::Dma>,
    qp: Qp<B::Dma>,
    pd: Pd,
    polls: u32,
}

impl<B: Bus> Registrar<B> {
    /// Makes a queue pair that registers memory.
    ///
    /// # Errors
    /// A command failed.
    pub fn new(hca: &mut Hca<B>) -> Result<Self, Error> {
        let pd = hca.alloc_pd()?;
        let cq = hca.create_cq(CqConfig::new(64))?;
        let config =
            QpConfig { service: ServiceType::RegUmr, recv_requests: 0, ..QpConfig::rc(pd, &cq, &cq) };
        let mut qp = hca.create_qp(&config)?;
        hca.qp_to_init(&mut qp, &InitAttr::default())?;
        // It has no peer.
        hca.qp_to_rtr(&mut qp, &RtrAttr::new(Qpn(0), Path::lid(Lid(0))))?;
        hca.qp_to_rts(&mut qp, &RtsAttr::default())?;
        Ok(Self { cq, qp, pd, polls: hca.polls() })
    }

    /// Destroys it. The keys it changed stay as they are.
    ///
    /// # Errors
    /// A command failed.
    pub fn close(self, hca: &mut Hca<B>) -> Result<(), Error> {
        hca.destroy_qp(self.qp)?;
        hca.destroy_cq(self.cq)?;
        hca.dealloc_pd(self.pd)
    }

    /// Changes a key and waits until that is done. `translations` are 16-byte units.
    ///
    /// # Errors
    /// The adapter refused the change, or does not complete it.
    pub fn change(&mut self, hca: &mut Hca<B>, change: KeyChange, translations: &[u8]) -> Result<(), Error> {
        let request = SendRequest::new(0, SendOp::Change(change), &[]).inline(translations);
        self.qp.post_send(hca.bus_mut(), &request)?;
        for _ in 0..self.polls {
            if let Some(completion) = self.cq.poll() {
                self.qp.finish(&completion);
                return completion
                    .status
                    .map_err(|_| Error::Invalid("the adapter refuses to change the key"));
            }
            hca.wait(None);
        }
        Err(Error::Timeout { what: "change of a key", polls: self.polls })
    }

    /// Registers `pages` pages of 4 KiB at `address`, none of them present.
    ///
    /// # Errors
    /// A command failed, or the adapter refused the change.
    pub fn register(
        &mut self,
        hca: &mut Hca<B>,
        pd: Pd,
        address: u64,
        pages: usize,
        access: Access,
    ) -> Result<OnDemand, Error> {
        let padded = pages.next_multiple_of(CHUNK);
        let shift = crate::PAGE_SIZE.ilog2();
        let key = hca.alloc_key(pd, KeyKind::Pages(shift), (padded / 2) as u32, false)?;
        let len = (pages * crate::PAGE_SIZE) as u64;
        let mut region = OnDemand { key, address, len, entries: vec![0; padded] };
        let change = KeyChange::new(key).if_free().enable(key.variant()).access(access).range(address, len);
        self.change(hca, change, &[])?;
        self.load(hca, &mut region, 0, padded)?;
        Ok(region)
    }

    /// Makes the pages from number `first` on present: bus addresses, writable or not.
    ///
    /// # Errors
    /// The adapter refused the change, or the region ends before.
    pub fn map(
        &mut self,
        hca: &mut Hca<B>,
        region: &mut OnDemand,
        first: usize,
        pages: &[u64],
        writable: bool,
    ) -> Result<(), Error> {
        let rights = if writable { MTT_READ | MTT_WRITE } else { MTT_READ };
        let entries: Vec<u64> = pages.iter().map(|p| p | rights).collect();
        self.set(hca, region, first, &entries)
    }

    /// Takes pages away. The adapter does not touch them any more once this returns.
    ///
    /// # Errors
    /// The adapter refused the change, or the region ends before.
    pub fn unmap(
        &mut self,
        hca: &mut Hca<B>,
        region: &mut OnDemand,
        first: usize,
        count: usize,
    ) -> Result<(), Error> {
        self.set(hca, region, first, &vec![0; count])
    }

    fn set(
        &mut self,
        hca: &mut Hca<B>,
        region: &mut OnDemand,
        first: usize,
        entries: &[u64],
    ) -> Result<(), Error> {
        let end = first + entries.len();
        let slots = region.entries.get_mut(first..end).ok_or(Error::Invalid("no such page"))?;
        slots.copy_from_slice(entries);
        self.load(hca, region, first, end)
    }

    /// Loads the whole chunks that hold entries `first..end`.
    fn load(
        &mut self,
        hca: &mut Hca<B>,
        region: &mut OnDemand,
        first: usize,
        end: usize,
    ) -> Result<(), Error> {
        let mut at = first / CHUNK * CHUNK;
        let end = end.next_multiple_of(CHUNK);
        while at < end {
            let n = (end - at).min(MAX_INLINE);
            let entries = region.entries.get(at..at + n).unwrap_or_default();
            let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_be_bytes()).collect();
            self.change(hca, KeyChange::new(region.key).at(at as u64 / 2), &bytes)?;
            at += n;
        }
        Ok(())
    }

    /// Registers `blocks` blocks of `1 << log2` bytes from address 0 on, none of them there: an implicit
    /// region.
    ///
    /// # Errors
    /// A command failed, or the adapter refused the change.
    pub fn register_implicit(
        &mut self,
        hca: &mut Hca<B>,
        pd: Pd,
        log2: u32,
        blocks: usize,
        access: Access,
    ) -> Result<Implicit, Error> {
        let key = hca.alloc_key(pd, KeyKind::Blocks(log2), blocks as u32, false)?;
        let null = match hca.has_memory_page_faults() {
            true => hca.create_null_key(pd)?,
            false => Mkey(NULL_MKEY),
        };
        let region = Implicit { key, null, log2 };
        let change = KeyChange::new(key).if_free().enable(key.variant()).access(access);
        self.change(hca, change.range(0, (blocks as u64) << log2), &[])?;
        for first in (0..blocks).step_by(MAX_INLINE / 2) {
            let last = blocks.min(first + MAX_INLINE / 2);
            let list: Vec<Sge> = (first..last).map(|n| region.absent(n)).collect();
            self.change(hca, KeyChange::new(key).at(first as u64), &pieces(&list))?;
        }
        Ok(region)
    }

    /// Puts regions where the four blocks from number `first` on are, a multiple of four. `None`: not there.
    ///
    /// # Errors
    /// The adapter refused the change.
    pub fn map_blocks(
        &mut self,
        hca: &mut Hca<B>,
        region: Implicit,
        first: usize,
        blocks: [Option<&OnDemand>; 4],
    ) -> Result<(), Error> {
        let mut list = [0, 1, 2, 3].map(|n| region.absent(first + n));
        for (slot, block) in list.iter_mut().zip(blocks) {
            if let Some(block) = block {
                *slot = Sge { address: block.address, len: 1 << region.log2, key: block.key };
            }
        }
        self.change(hca, KeyChange::new(region.key).at(first as u64), &pieces(&list))
    }
}

impl<B: Bus> Hca<B> {
    /// Creates the event queue of page faults on MSI-X vector `vector`. It is born disarmed.
    ///
    /// # Errors
    /// The command failed.
    pub fn create_page_fault_eq(&mut self, entries: u32, vector: u16) -> Result<Eq<B::Dma>, Error> {
        self.create_eq_for(entries, vector, 1 << EventType::PageFault as u32)
    }

    /// Makes a key over all addresses, none of whose pages is ever present: every access is a page fault that names the key and
    /// the address (the mlx5 driver, `alloc_implicit_mr_null_mkey`).
    ///
    /// # Errors
    /// The command failed.
    pub fn create_null_key(&mut self, pd: Pd) -> Result<Mkey, Error> {
        /// log2 of the bytes of each of its eight pages.
        const LOG_PAGE: u32 = 61;
        let variant = self.next_key_variant();
        let mut input = CreateMkeyIn::new();
        let octwords = (CHUNK / 2) as u32;
        input.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, octwords).set(CreateMkeyIn::PG_ACCESS, 1);
        let mkc = input.mkc_mut();
        mkc.set_access_mode(AccessMode::Mtt).set(Mkc::LOG_PAGE_SIZE, LOG_PAGE).set(Mkc::LENGTH64, 1);
        mkc.set(Mkc::LR, 1).set(Mkc::LW, 1).set(Mkc::RR, 1).set(Mkc::RW, 1).set(Mkc::A, 1);
        mkc.set(Mkc::PD, pd.0).set(Mkc::QPN, ANY_QP).set(Mkc::MKEY_7_0, variant.into());
        mkc.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, octwords);
        let mut bytes = input.bytes().to_vec();
        bytes.resize(bytes.len() + CHUNK * size_of::<u64>(), 0);
        Ok(Mkey::new(self.create(Opcode::CreateMkey, 0, bytes)?, variant))
    }

    /// The queue pair that waits may go on; with `error`, the pages can't be had and what waits fails.
    ///
    /// # Errors
    /// The command failed.
    pub fn resume_page_fault(&mut self, fault: &PageFault, error: bool) -> Result<(), Error> {
        let mut input = PageFaultResumeIn::new();
        input.set(PageFaultResumeIn::ERROR, error.into());
        match fault.place {
            FaultPlace::Memory { .. } => {
                input.set(PageFaultResumeIn::FAULT_TOKEN_47_32, (fault.token >> 32) as u32);
                input.set(PageFaultResumeIn::FAULT_TOKEN_31_0, fault.token as u32);
            }
            FaultPlace::Wqe { .. } | FaultPlace::Rdma { .. } => {
                input.set(PageFaultResumeIn::TYPE, fault.kind.into());
                input.set(PageFaultResumeIn::WQ_NUMBER, fault.queue);
                input.set(PageFaultResumeIn::TOKEN, fault.token as u32);
            }
        }
        self.execute(Opcode::PageFaultResume, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_decode() {
        let mut e = Eqe::new();
        e.set(Eqe::SUB_TYPE, page_fault::WQE.into()).set(Eqe::FAULT_TYPE, 3).set(Eqe::FAULT_QUEUE, 0x42);
        e.set(Eqe::FAULT_WQE_TOKEN, 0x99).set(Eqe::FAULT_WQE_INDEX, 7).set(Eqe::FAULT_COMMITTED, 4096);
        let fault = PageFault::decode(&e);
        assert_eq!((fault.kind, fault.token, fault.queue, fault.committed), (3, 0x99, 0x42, 4096));
        assert_eq!(fault.place, FaultPlace::Wqe { index: 7 });
        let mut e = Eqe::new();
        e.set(Eqe::SUB_TYPE, page_fault::RDMA.into()).set(Eqe::FAULT_TYPE, 6).set(Eqe::FAULT_QUEUE, 0x42);
        e.set(Eqe::FAULT_RKEY, 0x1234).set(Eqe::FAULT_ADDRESS, 1 << 40).set(Eqe::FAULT_LENGTH, 9);
        let fault = PageFault::decode(&e);
        assert_eq!((fault.kind, fault.token), (6, 0x42));
        assert_eq!(fault.place, FaultPlace::Rdma { rkey: Mkey(0x1234), address: 1 << 40, len: 9 });
        let mut e = Eqe::new();
        e.set(Eqe::SUB_TYPE, page_fault::MEMORY.into()).set(Eqe::MEMORY_FAULT_FLAGS, 0x80);
        e.set(Eqe::MEMORY_FAULT_TOKEN_47_32, 0x8001).set(Eqe::MEMORY_FAULT_TOKEN_31_0, 0x42);
        e.set(Eqe::MEMORY_FAULT_MKEY, 0x1234).set(Eqe::MEMORY_FAULT_VA, 1 << 40);
        e.set(Eqe::MEMORY_FAULT_PAGES, 2).set(Eqe::MEMORY_FAULT_PRE_PAGES, 3);
        e.set(Eqe::MEMORY_FAULT_POST_PAGES, 4);
        let fault = PageFault::decode(&e);
        assert_eq!((fault.kind, fault.token), (0, 0x8001_0000_0042));
        let (key, address, len) = (Mkey(0x1234), 1 << 40, 0x2000);
        let place = FaultPlace::Memory { key, address, len, before: 0x3000, after: 0x4000, last: true };
        assert_eq!(fault.place, place);
    }
}
