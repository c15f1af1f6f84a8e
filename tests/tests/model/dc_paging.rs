//! On-demand paging over dynamic connections: initiators and targets wait for pages as queue pairs do.

use hca_driver::qp::QpConfig;
use hca_driver::{
    Access, Dct, DctConfig, FaultPlace, PageFault, Qp, RtsAttr, ScatterToCqe, SendRequest, Srq, Target,
};
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::page_fault;
use hca_spec::ids::Mkey;
use hca_tests::in_process::{ModelBus, ModelMemory};
use hca_tests::paged::{BASE, PAGE, PAGES, Paged, everywhere, told};
use hca_tests::pair::{Options, PORT, Pair, pattern};
use hca_tests::rig::MTU;

/// From the middle of page 0 into page 3.
const FROM: usize = 1000;
const LEN: usize = 3 * PAGE;

/// An initiator at end 0, a target with its shared receive queue at end 1.
struct Ends {
    dci: Qp<ModelMemory>,
    dct: Dct,
    srq: Srq<ModelMemory>,
    to: Target,
}

fn ends(pair: &mut Pair<ModelBus>) -> Ends {
    let (near, far) = (pair.ends[0].home, pair.ends[1].home);
    let hca = &mut pair.hcas[near];
    let mut dci = hca.create_qp(&QpConfig::dci(pair.ends[0].pd, &pair.ends[0].send_cq)).expect("CREATE_QP");
    hca.qp_to_init(&mut dci, &Default::default()).expect("RST2INIT");
    hca.dci_to_rtr(&mut dci, 3).expect("INIT2RTR");
    hca.qp_to_rts(&mut dci, &RtsAttr::default()).expect("RTR2RTS");
    let hca = &mut pair.hcas[far];
    let (pd, cq) = (pair.ends[1].pd, pair.ends[1].recv_cq.number());
    let srq = hca.create_srq(pd, 7, 2).expect("CREATE_RMP");
    let (access_key, access, scatter_to_cqe) = (42, Access::ALL, ScatterToCqe::Off);
    let config =
        DctConfig { pd, cq, srq: srq.number(), access_key, access, mtu: 3, rnr_timer: 7, scatter_to_cqe };
    let dct = hca.create_dct(&config).expect("CREATE_DCT");
    let to =
        Target { dctn: dct.number(), access_key, lid: hca.lid(PORT).expect("LID"), gid: None, roce: None };
    Ends { dci, dct, srq, to }
}

impl Ends {
    fn post(&mut self, paged: &mut Paged, request: &SendRequest<'_>) {
        let bus = paged.pair.hcas[paged.pair.ends[0].home].bus_mut();
        self.dci.post_send(bus, &request.to_target(self.to)).expect("post_send");
    }

    /// The initiator's next completion.
    fn sent(&mut self, paged: &mut Paged) -> (u64, Option<Syndrome>) {
        for _ in 0..1_000_000 {
            if let Some(completion) = paged.pair.ends[0].send_cq.poll() {
                let wr_id = self.dci.finish(&completion).expect("a request under way");
                return (wr_id, completion.syndrome());
            }
            paged.pair.hcas[0].wait(None);
        }
        panic!("no send completion");
    }

    fn close(self, paged: &mut Paged) {
        let (near, far) = (paged.pair.ends[0].home, paged.pair.ends[1].home);
        paged.pair.hcas[far].destroy_dct(self.dct).expect("DESTROY_DCT");
        paged.pair.hcas[far].destroy_srq(self.srq).expect("DESTROY_RMP");
        paged.pair.hcas[near].destroy_qp(self.dci).expect("DESTROY_QP");
    }
}

/// Whether a fault is that of the initiator's data, which is under that key.
fn is_of_sender(fault: &PageFault, dci: u32, data: Mkey) -> bool {
    match fault.place {
        FaultPlace::Memory { key, .. } => key == data,
        place => {
            let of_sender = fault.kind == page_fault::SEND_OR_WRITE;
            if of_sender {
                assert_eq!(
                    (fault.token, fault.queue, place),
                    (dci.into(), dci, FaultPlace::Wqe { index: 0 })
                );
            }
            of_sender
        }
    }
}

/// A fault is that of the target's receive buffer, which is under that key.
fn assert_of_target(fault: &PageFault, dct: u32, srq: u32, buffer: Mkey) {
    if let FaultPlace::Memory { key, .. } = fault.place {
        return assert_eq!(key, buffer);
    }
    assert_eq!((fault.kind, fault.token), (page_fault::SHARED_RECEIVE, dct.into()));
    assert_eq!((fault.queue, usize::from(fault.packet)), (srq, MTU));
}

#[test]
pub(crate) fn sender_and_receiver_wait() {
    everywhere(&Options::default(), |paged| {
        let mut ends = ends(&mut paged.pair);
        let data = pattern(5, LEN);
        paged.fill(0, FROM, &data);
        paged.map(0, 0..1);
        let receive = paged.sge(1, FROM, LEN);
        ends.srq.post_recv(3, &[receive]).expect("post_recv");
        let sge = [paged.sge(0, FROM, LEN)];
        ends.post(paged, &SendRequest::send(1, &sge));

        // Both ends wait, in whatever order that is seen.
        let (mut of_sender, mut of_receiver) = (0, 0);
        let one_adapter = paged.pair.hcas.len() == 1;
        while of_sender == 0 || of_receiver == 0 {
            let end = usize::from(!one_adapter && of_sender > 0);
            let fault = paged.fault(end);
            // Two adapters may have given both regions the same key.
            let near = one_adapter || end == 0;
            if near && is_of_sender(&fault, ends.dci.number().0, paged.regions[0].key) {
                paged.map(0, 1..PAGES);
                paged.resume(0, &fault, false);
                of_sender += 1;
            } else {
                assert_of_target(&fault, ends.dct.number().0, ends.srq.number().0, paged.regions[1].key);
                paged.map(1, 0..PAGES);
                paged.resume(1, &fault, false);
                of_receiver += 1;
            }
        }
        assert_eq!(ends.sent(paged), (1, None));
        let completion = paged.pair.ends[1].recv_cq.poll().expect("a receive completion");
        assert_eq!(ends.srq.finish(&completion), Some(3));
        assert!(paged.bytes(1, FROM, LEN) == data);
        ends.close(paged);
    });
}

#[test]
pub(crate) fn the_target_of_a_write_is_waited_for() {
    everywhere(&Options::default(), |paged| {
        let mut ends = ends(&mut paged.pair);
        let data = pattern(6, LEN);
        paged.fill(0, FROM, &data);
        paged.map(0, 0..PAGES);
        paged.map(1, 0..2);
        let (sge, rkey) = ([paged.sge(0, FROM, LEN)], paged.regions[1].key);
        ends.post(paged, &SendRequest::write(1, &sge, BASE + FROM as u64, rkey));
        let (number, committed) = (ends.dct.number().0, (2 * PAGE - FROM) / MTU * MTU);
        let place = FaultPlace::Rdma { rkey, address: BASE + FROM as u64, len: LEN as u32 };
        let fault = paged.fault_is(1, &told(page_fault::RDMA_WRITE, number, committed, MTU, place), 2 * PAGE);
        paged.map(1, 2..4);
        paged.resume(1, &fault, false);
        assert_eq!(ends.sent(paged), (1, None));
        assert!(paged.bytes(1, FROM, LEN) == data);

        // There are no such pages: the initiator is told, and the target lives on.
        ends.post(paged, &SendRequest::write(2, &sge, BASE + (5 * PAGE) as u64, rkey));
        let fault = paged.fault(1);
        paged.resume(1, &fault, true);
        assert_eq!(ends.sent(paged), (2, Some(Syndrome::RemoteAccess)));
        ends.close(paged);
    });
}
