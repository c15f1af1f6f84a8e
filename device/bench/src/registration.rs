//! Registrations by work request (UMR): the keys of a thread, and the list of pages that each request loads.

use hca_driver::umr::page_list;
use hca_driver::{Access, Bus, Dma, Hca, KeyChange, KeyKind, SendOp, Sge};
use hca_spec::ids::{Mkey, Pd};

use crate::Error;
use crate::in_process::{ModelBus, ModelMemory};
use crate::scenario::Scenario;

/// What a thread registers.
pub struct Registration {
    /// One for each request that may be outstanding.
    keys: Vec<Mkey>,
    /// The range that a key gets.
    address: u64,
    len: u64,
    /// Its pages, if they go in the WQE.
    inline: Option<Vec<u8>>,
    /// Where they are otherwise, and that memory.
    list: Sge,
    _memory: ModelMemory,
}

impl Registration {
    /// Keys for the requests of a thread, each of which registers the same pages of `local`, in turn.
    ///
    /// # Errors
    /// A command failed, or there is no memory.
    pub(crate) fn new(
        hca: &mut Hca<ModelBus>,
        pd: Pd,
        scenario: &Scenario,
        local: &ModelMemory,
    ) -> Result<Self, Error> {
        let (len, page) = (scenario.size, scenario.page_size);
        let address = local.bus_address() & !(page - 1);
        let pages: Vec<u64> = (0..len.div_ceil(page)).map(|_| address).collect();
        let list = page_list(&pages);
        let bytes = list.len().next_multiple_of(hca_driver::PAGE_SIZE);
        let mut memory = hca
            .bus_mut()
            .dma_alloc(bytes, hca_driver::PAGE_SIZE)
            .ok_or(Error::new("the host's memory is used up: less --threads or --size"))?;
        memory.write(0, &list);
        let mr = hca.register(pd, &memory, bytes, Access::LOCAL_WRITE)?;
        let room = (list.len() / 16) as u32;
        let kind = KeyKind::Pages(page.ilog2());
        let keys =
            (0..scenario.window).map(|_| hca.alloc_key(pd, kind, room, false)).collect::<Result<_, _>>()?;
        let sge = Sge { address: mr.address, len: list.len() as u32, key: mr.key };
        Ok(Self {
            keys,
            address,
            len,
            inline: scenario.is_inline().then_some(list),
            list: sge,
            _memory: memory,
        })
    }

    /// Request number `number` of the thread: what it does, where its list is, or the list itself.
    pub(crate) fn request(&self, number: u64) -> (SendOp, Sge, Option<&[u8]>) {
        let count = self.keys.len().max(1) as u64;
        let key = self.keys.get((number % count) as usize).copied().unwrap_or(Mkey(0));
        let change = KeyChange::new(key).enable((number / count) as u8);
        let change = change.access(Access::ALL).range(self.address, self.len);
        (SendOp::Change(change), self.list, self.inline.as_deref())
    }
}
