//! Memory that the firmware borrows from the host for its tables (ICM), in 4 KiB pages.
//!
//! It asks at boot and at initialization (QUERY_PAGES), and later by events; the driver gives pages and
//! takes them back with MANAGE_PAGES (PRM "Pages management").

use crate::bus::{Bus, Dma};
use crate::error::Error;
use crate::hca::Hca;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use hca_spec::cmd::{FunctionIn, ManagePagesOut, PAGES_CANT_GIVE, PAGES_GIVE, PAGES_TAKE, QueryPagesOut};
use hca_spec::command::{Opcode, OutHeader};

/// Pages taken back with one command.
const TAKE_AT_ONCE: usize = 512;

/// The pages that the firmware holds, by their bus address.
pub struct FirmwarePages<D>(BTreeMap<u64, D>);

impl<D> Default for FirmwarePages<D> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<D> FirmwarePages<D> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl<B: Bus> Hca<B> {
    /// Lends the pages that QUERY_PAGES asks for at this point of the bring-up.
    pub(crate) fn give_startup_pages(&mut self, when: u32) -> Result<(), Error> {
        let out =
            self.execute(Opcode::QueryPages, when, FunctionIn::new().bytes().to_vec(), QueryPagesOut::SIZE)?;
        let out = QueryPagesOut::from_prefix_or_zero(&out);
        let function = out.get(QueryPagesOut::FUNCTION_ID) as u16;
        match usize::try_from(out.get(QueryPagesOut::NUM_PAGES) as i32) {
            Ok(0) | Err(_) => Ok(()),
            Ok(count) => self.give_pages(function, count),
        }
    }

    /// Serves a page request event. Without memory it answers "can't give" and goes on.
    pub(crate) fn serve_page_request(&mut self, function: u16, count: i32) -> Result<(), Error> {
        let wanted = count.unsigned_abs() as usize;
        if count >= 0 {
            return self.give_pages(function, wanted);
        }
        let mut left = wanted.min(self.pages_mut().count());
        while left > 0 {
            let taken = self.take_pages(function, left.min(TAKE_AT_ONCE))?;
            if taken == 0 {
                break;
            }
            left = left.saturating_sub(taken);
        }
        Ok(())
    }

    fn give_pages(&mut self, function: u16, count: usize) -> Result<(), Error> {
        let mut pages = Vec::new();
        for _ in 0..count {
            match self.bus_mut().dma_alloc(crate::PAGE_SIZE, crate::PAGE_SIZE) {
                Some(page) => pages.push(page),
                None => {
                    self.manage_pages(function, PAGES_CANT_GIVE, 0, &[], 0)?;
                    return Err(Error::OutOfMemory);
                }
            }
        }
        let addresses: Vec<u8> = pages.iter().flat_map(|p| p.bus_address().to_be_bytes()).collect();
        let result = self.manage_pages(function, PAGES_GIVE, count as u32, &addresses, 0);
        match result {
            // Not executed, so the firmware never saw the pages.
            Err(Error::Command { .. } | Error::Delivery { .. }) => {}
            // They are the firmware's now, or nobody knows (timeout): keep them either way.
            _ => self.pages_mut().0.extend(pages.into_iter().map(|p| (p.bus_address(), p))),
        }
        result.map(drop)
    }

    /// Asks for up to `count` pages back; returns how many came.
    fn take_pages(&mut self, function: u16, count: usize) -> Result<usize, Error> {
        let out = self.manage_pages(function, PAGES_TAKE, count as u32, &[], count * 8)?;
        let returned =
            ManagePagesOut::from_prefix_or_zero(&out).get(ManagePagesOut::OUTPUT_NUM_ENTRIES) as usize;
        let list = out.get(ManagePagesOut::SIZE..).unwrap_or_default();
        let mut taken = 0;
        for address in list.chunks_exact(8).take(returned.min(count)) {
            // An address that was never given would be the firmware's mistake: nothing to free.
            taken += usize::from(self.pages_mut().0.remove(&hca_spec::be64(address, 0)).is_some());
        }
        Ok(taken)
    }

    /// Takes every page back, at teardown.
    pub(crate) fn take_all_pages(&mut self) -> Result<(), Error> {
        while self.pages_mut().count() > 0 {
            let count = self.pages_mut().count().min(TAKE_AT_ONCE);
            if self.take_pages(0, count)? == 0 {
                return Err(Error::Timeout { what: "pages to come back", polls: 1 });
            }
        }
        Ok(())
    }

    fn manage_pages(
        &mut self,
        function: u16,
        op_mod: u32,
        count: u32,
        list: &[u8],
        output_list: usize,
    ) -> Result<Vec<u8>, Error> {
        let mut input = FunctionIn::new();
        input.set(FunctionIn::FUNCTION_ID, function.into()).set(FunctionIn::INPUT_NUM_ENTRIES, count);
        let mut input = input.bytes().to_vec();
        input.extend_from_slice(list);
        self.execute_urgent(Opcode::ManagePages, op_mod, input, OutHeader::SIZE + output_list)
    }
}
