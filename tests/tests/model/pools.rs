//! Receive memory pools whose WQEs lie in a ring: with an unused segment in front of the scatter entries, and without
//! (PRM "RMP Context", `wq_type`, `basic_cyclic_rcv_wqe`).

use hca_driver::qp::QpConfig;
use hca_driver::{Bus, Dma, SendRequest};
use hca_spec::cmd::{CreateRmpIn, ObjectIn, ObjectOut};
use hca_spec::command::Opcode;
use hca_spec::ids::Srqn;
use hca_spec::queue::{RMP_READY, Rmpc, Wq};
use hca_spec::wqe::{Data, SrqNext, TERMINATE_LKEY};
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, Pair};
use hca_tests::rig::{close, loopback};

/// Entries of the ring.
const ENTRIES: usize = 4;
/// Bytes that each has room for.
const ROOM: u32 = 64;

/// Makes a pool whose WQEs lie at `at`, and lets end 1 receive from it: the pool, and how the queue pair was made.
pub(super) fn receive_from_pool(
    pair: &mut Pair<ModelBus>,
    create: &CreateRmpIn,
    at: u64,
) -> (Srqn, QpConfig) {
    let hca = &mut pair.hcas[0];
    let input = [&create.bytes()[..], &at.to_be_bytes()].concat();
    let out = hca.execute(Opcode::CreateRmp, 0, input, 16).expect("CREATE_RMP");
    let srqn = Srqn(ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER));
    let end = &pair.ends[1];
    let config = QpConfig { srq: Some(srqn), ..QpConfig::rc(end.pd, &end.send_cq, &end.recv_cq) };
    receive_as(pair, &config);
    pair.hcas[0].qp_to_reset(&mut pair.ends[0].qp).expect("2RST");
    for end in 0..2 {
        pair.to_rts(end, &Options::default()).expect("connect");
    }
    (srqn, config)
}

/// End 1 has a queue of its own again, and the pool is gone.
pub(super) fn leave_pool(pair: &mut Pair<ModelBus>, srqn: Srqn, config: QpConfig) {
    receive_as(pair, &QpConfig { srq: None, ..config });
    let destroy = ObjectIn::new().set(ObjectIn::NUMBER, srqn.0).bytes().to_vec();
    pair.hcas[0].execute(Opcode::DestroyRmp, 0, destroy, 16).expect("DESTROY_RMP");
}

/// End 1 gets another queue pair.
fn receive_as(pair: &mut Pair<ModelBus>, config: &QpConfig) {
    let qp = pair.hcas[0].create_qp(config).expect("CREATE_QP");
    let old = std::mem::replace(&mut pair.ends[1].qp, qp);
    pair.hcas[0].destroy_qp(old).expect("DESTROY_QP");
}

/// Messages go into the ring's entries in turn, however often it goes round, and none that is not posted is used.
#[test]
pub(crate) fn pools_in_a_ring() {
    for basic in [false, true] {
        let head = if basic { 0 } else { SrqNext::SIZE };
        // One scatter entry, and one that ends the list where there is room for it.
        let stride = if basic { Data::SIZE } else { 4 * Data::SIZE };
        let mut pair = loopback(&Options::default());
        let pd = pair.ends[1].pd;
        let hca = &mut pair.hcas[0];
        let mut ring = hca.bus_mut().dma_alloc(4096, 4096).expect("memory");
        let mut record = hca.bus_mut().dma_alloc(64, 64).expect("memory");
        let mut create = CreateRmpIn::new();
        create.rmpc_mut().set(Rmpc::STATE, RMP_READY).set(Rmpc::BASIC_CYCLIC_RCV_WQE, basic.into());
        let wq = create.rmpc_mut().wq_mut();
        wq.set(Wq::WQ_TYPE, 1).set(Wq::PD, pd.0).set(Wq::DBR_ADDR, record.bus_address());
        wq.set(Wq::LOG_WQ_STRIDE, stride.ilog2()).set(Wq::LOG_WQ_SZ, ENTRIES.ilog2());
        let (srqn, config) = receive_from_pool(&mut pair, &create, ring.bus_address());
        for entry in 0..ENTRIES {
            let sge = pair.ends[1].sge(entry * ROOM as usize, ROOM as usize);
            let mut data = Data::new();
            data.set(Data::BYTE_COUNT, ROOM).set(Data::LKEY, sge.key.0).set(Data::ADDRESS, sge.address);
            let mut end = Data::new();
            end.set(Data::LKEY, TERMINATE_LKEY);
            // What stands in front names a WQE that is not the next.
            let mut next = SrqNext::new();
            next.set(SrqNext::NEXT_WQE_INDEX, entry as u32);
            let wqe = [&next.bytes()[..head], data.bytes(), end.bytes()].concat();
            ring.write(entry * stride, &wqe[..stride.min(wqe.len())]);
        }
        for message in 0..3 * ENTRIES as u64 + 1 {
            record.store32(0, message as u32 + 1);
            pair.send(0, &SendRequest::send(message, &[]).inline(&message.to_be_bytes()));
            pair.sent_ok(0, message);
            while pair.ends[1].recv_cq.peek().is_none() {
                pair.hcas[0].wait(None);
            }
            let completion = pair.ends[1].recv_cq.poll().expect("a completion");
            assert_eq!((completion.status, completion.byte_len), (Ok(()), 8));
            assert_eq!(
                usize::from(completion.wqe_index) % ENTRIES,
                message as usize % ENTRIES,
                "basic {basic}"
            );
            let place = message as usize % ENTRIES * ROOM as usize;
            assert_eq!(pair.ends[1].bytes(place, 8), message.to_be_bytes(), "basic {basic}");
        }
        leave_pool(&mut pair, srqn, config);
        drop((ring, record));
        close(pair);
    }
}
