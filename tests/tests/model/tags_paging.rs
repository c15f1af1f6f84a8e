//! Entries of lists of tags whose pages come when they are needed. In the transport scheme the driver has no work request to look at, so
//! that such a page is an error; in the memory scheme it is told the page.

use hca_driver::tags::eager;
use hca_driver::{Access, Config, Dma, Eq, Event, FaultPlace, OnDemand, Registrar, Sge, TagChange};
use hca_spec::cqe::Syndrome;
use hca_spec::xrq::app_op;
use hca_tests::in_process::{ModelBus, ModelMemory, Simulation};
use hca_tests::paged::{BASE, PAGE};
use hca_tests::pair::pattern;

use crate::device_memory::world_of;
use crate::tags::{FETCHING, Tags};

/// Where in the memory of end 1 the pages of its region lie, and how many there are.
const MEMORY: usize = 8 * PAGE;
const PAGES: usize = 8;
const TAG: u64 = 7;

struct Paged {
    tags: Tags,
    eq: Eq<ModelMemory>,
    registrar: Registrar<ModelBus>,
    region: OnDemand,
}

impl Paged {
    fn new(memory_page_faults: bool) -> Self {
        let config = Config { memory_page_faults, ..Config::default() };
        let mut tags = Tags::with(&Simulation::new(world_of("connectx6dx")), 1, FETCHING, config);
        let pd = tags.pair.ends[1].pd;
        let hca = &mut tags.pair.hcas[0];
        let eq = hca.create_page_fault_eq(64, 1).expect("CREATE_EQ");
        let mut registrar = Registrar::new(hca).expect("a registration queue pair");
        let region = registrar.register(hca, pd, BASE, PAGES, Access::ALL).expect("a region");
        Self { tags, eq, registrar, region }
    }

    /// Appends an entry whose data goes to the begin of the region.
    fn append(&mut self, len: usize) -> u16 {
        let (index, append) = self.tags.list.append(TAG, u64::MAX).expect("an entry is free");
        let sge = Sge { address: BASE, len: len as u32, key: self.region.key };
        self.tags.post_pieces(TagChange::told(append), &[sge]);
        let (_, report) = self.tags.next();
        assert_eq!((report.what, report.index, report.done), (app_op::APPEND, index, true));
        index
    }

    /// Brings the pages that are needed, and no others, until `done`. Returns how many faults there were.
    fn bring(&mut self, pages: usize) {
        for page in 0..pages {
            let fault = loop {
                match self.eq.poll() {
                    Some(Event::PageFault(fault)) => break fault,
                    Some(other) => panic!("{other:?}"),
                    None => self.tags.pair.hcas[0].wait(None),
                }
            };
            let hca = &mut self.tags.pair.hcas[0];
            self.eq.update(hca.bus_mut());
            let FaultPlace::Memory { key, address, .. } = fault.place else { panic!("{fault:?}") };
            assert_eq!((key, address), (self.region.key, BASE + (page * PAGE) as u64));
            let iova = self.tags.pair.ends[1].memory.bus_address() + (MEMORY + page * PAGE) as u64;
            self.registrar.map(hca, &mut self.region, page, &[iova], true).expect("UMR");
            hca.resume_page_fault(&fault, false).expect("PAGE_FAULT_RESUME");
        }
    }

    fn close(self) {
        let Self { mut tags, eq, registrar, region } = self;
        let hca = &mut tags.pair.hcas[0];
        hca.free_key(region.key).expect("DESTROY_MKEY");
        registrar.close(hca).expect("close");
        hca.destroy_eq(eq).expect("DESTROY_EQ");
        tags.close();
    }
}

#[test]
pub(crate) fn messages_wait_for_the_pages_of_their_entry() {
    let mut p = Paged::new(true);
    // Of one packet, and of several into three pages.
    for (n, pages) in [(100, 1), (2 * PAGE + 100, 3)] {
        let (index, data) = (p.append(n), pattern(n as u64, n));
        p.tags.send(&[eager(TAG, 0xabcd).bytes().as_slice(), &data].concat());
        p.bring(pages);
        p.tags.pair.sent_ok(0, 1);
        if pages == 1 {
            p.tags.used(app_op::CONSUMED_MSG, index, TAG);
            p.tags.list.release(index);
        } else {
            p.tags.used(app_op::CONSUMED, index, TAG);
            p.tags.there(index, n);
        }
        assert!(p.tags.pair.ends[1].bytes(MEMORY, n) == data);
        p.registrar.unmap(&mut p.tags.pair.hcas[0], &mut p.region, 0, PAGES).expect("UMR");
    }
    p.close();
}

#[test]
pub(crate) fn data_that_is_fetched_waits_for_pages() {
    const LEN: usize = PAGE + 100;
    let mut p = Paged::new(true);
    let data = pattern(3, LEN);
    p.tags.pair.fill(0, 0x1000, &data);
    let index = p.append(LEN);
    p.tags.announce(TAG, LEN, None);
    p.bring(2);
    p.tags.pair.sent_ok(0, 1);
    p.tags.used(app_op::CONSUMED, index, TAG);
    p.tags.there(index, LEN);
    assert!(p.tags.pair.ends[1].bytes(MEMORY, LEN) == data);
    p.close();
}

/// In the transport scheme nobody could be told.
#[test]
pub(crate) fn an_entry_without_a_page_is_an_error_in_the_transport_scheme() {
    let mut p = Paged::new(false);
    p.append(100);
    p.tags.send(&[eager(TAG, 0xabcd).bytes().as_slice(), &[1; 100]].concat());
    assert_eq!(p.tags.pair.sent(0).1.syndrome(), Some(Syndrome::RemoteOperation));
    assert!(p.eq.poll().is_none());
}
