//! Protection domains and memory keys.
//!
//! A memory key names host memory in work requests. It translates a range of (virtual) addresses to
//! a list of pages (MTT), or passes bus addresses through (PA); rights and the protection domain are
//! checked at each use (PRM "Memory Key Context").

use crate::bus::{Bus, Dma, pages_of};
use crate::error::Error;
use crate::events::with_pages;
use crate::hca::Hca;
use core::ops::BitOr;
use hca_spec::cmd::{CreateMkeyIn, ObjectIn};
use hca_spec::command::Opcode;
use hca_spec::ids::{Mkey, Pd};
use hca_spec::mkc::{ANY_QP, AccessMode, MTT_READ, MTT_WRITE, Mkc};

/// MTT entries come in pairs of 16 bytes.
const MTTS_PER_OCTWORD: usize = 2;

/// What a key allows. Local reads are always allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access(u8);

impl Access {
    /// The adapter may read for local work requests.
    pub const LOCAL_READ: Access = Access(0);
    /// The adapter may write for local work requests (receives, RDMA reads).
    pub const LOCAL_WRITE: Access = Access(1);
    /// The remote side may write.
    pub const REMOTE_WRITE: Access = Access(2);
    /// The remote side may read.
    pub const REMOTE_READ: Access = Access(4);
    /// The remote side may do atomics.
    pub const REMOTE_ATOMIC: Access = Access(8);
    /// Everything.
    pub const ALL: Access = Access(15);

    /// Whether every right of `other` is there.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Writes the rights into a context, but for that to read locally.
    pub(crate) fn write_to(self, mkc: &mut Mkc) {
        let has = |right| u32::from(self.contains(right));
        mkc.set(Mkc::LW, has(Access::LOCAL_WRITE)).set(Mkc::RR, has(Access::REMOTE_READ));
        mkc.set(Mkc::RW, has(Access::REMOTE_WRITE)).set(Mkc::A, has(Access::REMOTE_ATOMIC));
    }
}

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// A registered memory region. The memory behind it is the caller's and must outlive it.
#[must_use = "a region stays registered until it is deregistered"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mr {
    /// The key: both lkey and rkey.
    pub key: Mkey,
    /// First address under the key.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
}

impl<B: Bus> Hca<B> {
    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<Pd, Error> {
        Ok(Pd(self.create(Opcode::AllocPd, 0, ObjectIn::new().bytes().to_vec())?))
    }

    /// Frees a protection domain.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Error> {
        self.object_command(Opcode::DeallocPd, pd.0)
    }

    /// Creates a key under which bus addresses are used as they are, for trusted local use.
    pub fn register_all(&mut self, pd: Pd) -> Result<Mr, Error> {
        let mut input = CreateMkeyIn::new();
        input.mkc_mut().set_access_mode(AccessMode::Pa).set(Mkc::LENGTH64, 1);
        self.create_key(pd, Access::LOCAL_WRITE, input, &[], 0, u64::MAX)
    }

    /// Registers contiguous memory under its own bus address.
    pub fn register(&mut self, pd: Pd, memory: &B::Dma, len: usize, access: Access) -> Result<Mr, Error> {
        let address = memory.bus_address();
        let first = address & !(crate::PAGE_SIZE as u64 - 1);
        let span = len + (address - first) as usize;
        let pages: alloc::vec::Vec<u64> = pages_of(first, span).collect();
        self.register_pages(pd, &pages, crate::PAGE_SIZE.ilog2(), address, len as u64, access)
    }

    /// Registers a list of pages of `1 << log_page_size` bytes.
    ///
    /// The region starts at `address`, which is the caller's choice but has the place within the first
    /// page that the data has, and is `len` bytes long.
    pub fn register_pages(
        &mut self,
        pd: Pd,
        pages: &[u64],
        log_page_size: u32,
        address: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr, Error> {
        if !(12..=31).contains(&log_page_size) {
            return Err(Error::Invalid("page size"));
        }
        let page = 1u64 << log_page_size;
        let covered = len.checked_add(address & (page - 1)).map(|span| span.div_ceil(page));
        if covered != Some(pages.len() as u64) || address.checked_add(len).is_none() {
            return Err(Error::Invalid("the pages do not cover the region"));
        }
        if pages.iter().any(|p| p & (page - 1) != 0) {
            return Err(Error::Invalid("a page is not aligned to its size"));
        }
        let octwords = pages.len().div_ceil(MTTS_PER_OCTWORD) as u32;
        let mut input = CreateMkeyIn::new();
        input.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, octwords);
        let mkc = input.mkc_mut();
        mkc.set_access_mode(AccessMode::Mtt);
        mkc.set(Mkc::START_ADDR, address).set(Mkc::LEN, len).set(Mkc::LOG_PAGE_SIZE, log_page_size);
        mkc.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, octwords);
        self.create_key(pd, access, input, pages, address, len)
    }

    pub(crate) fn create_key(
        &mut self,
        pd: Pd,
        access: Access,
        mut input: CreateMkeyIn,
        pages: &[u64],
        address: u64,
        len: u64,
    ) -> Result<Mr, Error> {
        let variant = self.next_key_variant();
        let mkc = input.mkc_mut();
        mkc.set(Mkc::PD, pd.0).set(Mkc::QPN, ANY_QP).set(Mkc::MKEY_7_0, variant.into());
        mkc.set(Mkc::LR, 1);
        access.write_to(mkc);
        // Entries with neither bit set count as not present where the adapter looks at them; the list's
        // length is even.
        let padding = pages.len() % MTTS_PER_OCTWORD;
        let entries = pages.iter().map(|p| p | MTT_READ | MTT_WRITE).chain(core::iter::repeat_n(0, padding));
        let index = self.create(Opcode::CreateMkey, 0, with_pages(input.bytes(), entries))?;
        Ok(Mr { key: Mkey::new(index, variant), address, len })
    }

    /// Destroys a key. The memory is the caller's again once this returns.
    pub fn deregister(&mut self, mr: Mr) -> Result<(), Error> {
        self.object_command(Opcode::DestroyMkey, mr.key.index())
    }
}
