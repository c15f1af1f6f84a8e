//! Two connected queue pairs whose registered memory comes page by page, and the one who brings the pages.

use crate::in_process::{ModelBus, ModelMemory};
use crate::pair::{Options, Pair};
use crate::rig::{close, linked, loopback};
use hca_driver::{Access, Dma, Eq, Event, FaultPlace, OnDemand, PageFault, Registrar, Sge};
use hca_model::Ps;
use hca_model::link::Faults;
use hca_spec::ids::Mkey;

/// Size of a page.
pub const PAGE: usize = 4096;
/// Where each end's region begins under its key.
pub const BASE: u64 = 0x7f12_3450_0000;
/// Pages of each end's region. They lie in the end's memory in reverse order.
pub const PAGES: usize = 16;
/// MSI-X vector of page faults.
const VECTOR: u16 = 1;

/// Two connected queue pairs whose memory comes page by page.
pub struct Paged {
    /// The queue pairs.
    pub pair: Pair<ModelBus>,
    /// Page fault event queue of each adapter.
    pub eqs: Vec<Eq<ModelMemory>>,
    /// Registration queue pair of each adapter.
    pub registrars: Vec<Registrar<ModelBus>>,
    /// Region of each end.
    pub regions: [OnDemand; 2],
}

impl Paged {
    /// No page is present.
    pub fn new(mut pair: Pair<ModelBus>) -> Self {
        let mut eqs = Vec::new();
        let mut registrars = Vec::new();
        for hca in &mut pair.hcas {
            eqs.push(hca.create_page_fault_eq(64, VECTOR).expect("CREATE_EQ"));
            registrars.push(Registrar::new(hca).expect("a registration queue pair"));
        }
        let regions = [0, 1].map(|end: usize| {
            let (home, pd) = (pair.ends[end].home, pair.ends[end].pd);
            let region = registrars[home].register(&mut pair.hcas[home], pd, BASE, PAGES, Access::ALL);
            region.expect("a region")
        });
        Self { pair, eqs, registrars, regions }
    }

    /// Closes everything and checks that the adapters kept nothing.
    pub fn close(self) {
        let Self { mut pair, eqs, registrars, regions } = self;
        for (end, region) in regions.into_iter().enumerate() {
            let home = pair.ends[end].home;
            pair.hcas[home].free_key(region.key).expect("DESTROY_MKEY");
        }
        for (hca, (eq, registrar)) in pair.hcas.iter_mut().zip(eqs.into_iter().zip(registrars)) {
            registrar.close(hca).expect("close");
            hca.destroy_eq(eq).expect("DESTROY_EQ");
        }
        close(pair);
    }

    /// Bus address of a page of an end.
    pub fn page(&self, end: usize, page: usize) -> u64 {
        self.pair.ends[end].memory.bus_address() + ((PAGES - 1 - page) * PAGE) as u64
    }

    /// Makes pages present.
    pub fn map(&mut self, end: usize, pages: std::ops::Range<usize>) {
        self.map_as(end, pages, true);
    }

    /// Makes pages present, writable or not.
    pub fn map_as(&mut self, end: usize, pages: std::ops::Range<usize>, writable: bool) {
        let home = self.pair.ends[end].home;
        let list: Vec<u64> = pages.clone().map(|p| self.page(end, p)).collect();
        let (hca, region) = (&mut self.pair.hcas[home], &mut self.regions[end]);
        self.registrars[home].map(hca, region, pages.start, &list, writable).expect("UMR");
    }

    /// Takes pages away.
    pub fn unmap(&mut self, end: usize, pages: std::ops::Range<usize>) {
        let home = self.pair.ends[end].home;
        let (hca, region) = (&mut self.pair.hcas[home], &mut self.regions[end]);
        self.registrars[home].unmap(hca, region, pages.start, pages.len()).expect("UMR");
    }

    /// What the region holds, past the adapter.
    pub fn bytes(&self, end: usize, offset: usize, len: usize) -> Vec<u8> {
        (offset..offset + len)
            .map(|at| self.pair.ends[end].bytes((PAGES - 1 - at / PAGE) * PAGE + at % PAGE, 1)[0])
            .collect()
    }

    /// Fills what the region holds, past the adapter.
    pub fn fill(&mut self, end: usize, offset: usize, data: &[u8]) {
        for (at, byte) in (offset..).zip(data) {
            self.pair.fill(end, (PAGES - 1 - at / PAGE) * PAGE + at % PAGE, &[*byte]);
        }
    }

    /// A piece of the region.
    pub fn sge(&self, end: usize, offset: usize, len: usize) -> Sge {
        Sge { address: BASE + offset as u64, len: len as u32, key: self.regions[end].key }
    }

    /// Posts a receive request into the region.
    pub fn recv(&mut self, end: usize, wr_id: u64, offset: usize, len: usize) {
        let sge = self.sge(end, offset, len);
        self.pair.ends[end].qp.post_recv(wr_id, &[sge]).expect("post_recv");
    }

    /// A page fault, if one was told.
    pub fn poll_fault(&mut self, end: usize) -> Option<PageFault> {
        let home = self.pair.ends[end].home;
        let event = self.eqs[home].poll()?;
        self.eqs[home].update(self.pair.hcas[home].bus_mut());
        match event {
            Event::PageFault(fault) => Some(fault),
            other => panic!("not a page fault: {other:?}"),
        }
    }

    /// Waits for the page fault that an end's adapter tells of.
    pub fn fault(&mut self, end: usize) -> PageFault {
        for _ in 0..100_000 {
            if let Some(fault) = self.poll_fault(end) {
                return fault;
            }
            self.pair.hcas[0].wait(None);
        }
        panic!("no page fault");
    }

    /// Waits for a fault of an end, which is this one in the words of the transport scheme. In the memory scheme it is told as the
    /// page of the end's region in which the byte at `missing` lies.
    pub fn fault_is(&mut self, end: usize, told: &PageFault, missing: usize) -> PageFault {
        let key = self.regions[end].key;
        self.fault_under(end, told, key, BASE + missing as u64)
    }

    /// The same of any key and address under it.
    pub fn fault_under(&mut self, end: usize, told: &PageFault, missing: Mkey, at: u64) -> PageFault {
        let fault = self.fault(end);
        if !self.pair.hcas[self.pair.ends[end].home].has_memory_page_faults() {
            assert_eq!(fault, *told);
            return fault;
        }
        let FaultPlace::Memory { key, address, len, before: 0, after: _, last: true } = fault.place else {
            panic!("not a fault of memory: {fault:?}");
        };
        let page = PAGE as u64;
        assert_eq!((key, address, len), (missing, at / page * page, page), "{told:?}");
        let PageFault { kind, token: _, queue, committed, packet, place: _ } = fault;
        assert_eq!((kind, queue, committed, packet), (0, 0, 0, 0));
        fault
    }

    /// Says that a fault is dealt with.
    pub fn resume(&mut self, end: usize, fault: &PageFault, error: bool) {
        let home = self.pair.ends[end].home;
        self.pair.hcas[home].resume_page_fault(fault, error).expect("PAGE_FAULT_RESUME");
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Ps) {
        self.pair.hcas[0].bus_mut().simulation().clone().run(time);
    }

    /// Nothing more happens by itself: no event, no completion.
    pub fn stands_still(&mut self) {
        self.run(Ps::from_ms(20));
        for end in 0..2 {
            assert_eq!(self.poll_fault(end), None, "one event for one fault");
            assert_eq!(self.pair.try_sent(end), None);
            assert_eq!(self.pair.ends[end].recv_cq.peek(), None);
        }
    }

    /// Number of an end's queue pair.
    pub fn qpn(&self, end: usize) -> u32 {
        self.pair.ends[end].qp.number().0
    }
}

/// A fault as the transport scheme tells of it, whose queue is the token.
pub fn told(kind: u8, queue: u32, committed: usize, packet: usize, place: FaultPlace) -> PageFault {
    let (committed, packet) = (committed as u32, packet as u16);
    PageFault { kind, token: queue.into(), queue, committed, packet, place }
}

/// Both on one adapter and over a link, in both schemes.
pub fn everywhere(options: &Options, test: impl Fn(&mut Paged)) {
    for memory_page_faults in [false, true] {
        in_scheme(&Options { memory_page_faults, ..options.clone() }, &test);
    }
}

/// Both on one adapter and over a link, in the scheme of the options.
pub fn in_scheme(options: &Options, test: impl Fn(&mut Paged)) {
    for pair in [loopback(options), linked(options, Faults::default(), 1)] {
        assert!(pair.hcas.iter().all(|hca| hca.has_memory_page_faults() == options.memory_page_faults));
        let mut paged = Paged::new(pair);
        test(&mut paged);
        paged.close();
    }
}
