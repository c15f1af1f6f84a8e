//! BlueFlame: WQEs that come with their doorbell.

use hca_driver::qp::BLUEFLAME_BYTES;
use hca_driver::{Bus, CqConfig, Dma, SendRequest};
use hca_model::link::Faults;
use hca_model::{HcaId, Ps};
use hca_spec::caps::General;
use hca_spec::cmd::{CreateSqIn, ModifySqIn, ObjectIn, ObjectOut};
use hca_spec::command::Opcode;
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Mkey, Qpn};
use hca_spec::queue::{SQ_READY, Sqc, Wq};
use hca_spec::uar::{PAGE_SIZE, SEND_DOORBELL, SEND_DOORBELL_STEP};
use hca_spec::wqe::{CE_ALWAYS, Ctrl, SendOpcode, WQEBB};
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{close, open};
use hca_tests::worlds;

/// First word of an inline segment: data follows, of that many bytes (PRM "Inline Data Segment").
const INLINE: u32 = 1 << 31;

/// Two queue pairs of an adapter with BlueFlame.
fn pair(options: &Options) -> Pair<ModelBus> {
    let simulation = Simulation::new(worlds::with_blueflame(Faults::default(), 1));
    let hcas = vec![open(&simulation, 0), open(&simulation, 1)];
    Pair::connect(hcas, options).expect("the queue pairs connect")
}

fn simulation(pair: &mut Pair<ModelBus>) -> Simulation {
    pair.hcas[0].bus_mut().simulation().clone()
}

/// A WQE without data at `index`, that completes or not.
fn nop(pair: &Pair<ModelBus>, index: u16, signaled: bool) -> [u8; WQEBB] {
    let mut ctrl = Ctrl::new();
    ctrl.set(Ctrl::OPCODE, SendOpcode::Nop as u32).set(Ctrl::WQE_INDEX, index.into());
    ctrl.set(Ctrl::QPN, pair.ends[0].qp.number().0).set(Ctrl::DS, 1);
    ctrl.set(Ctrl::CE, if signaled { CE_ALWAYS } else { 0 });
    let mut block = [0; WQEBB];
    block[..Ctrl::SIZE].copy_from_slice(ctrl.bytes());
    block
}

/// A request that does nothing to see: a write of no bytes.
fn nothing(wr_id: u64) -> SendRequest<'static> {
    SendRequest::write(wr_id, &[], 0, Mkey(0))
}

/// Offset in BAR0 of a send register of the first adapter.
fn register(pair: &Pair<ModelBus>, half: u64) -> u64 {
    u64::from(pair.hcas[0].uar().0) * PAGE_SIZE + SEND_DOORBELL + half * SEND_DOORBELL_STEP
}

fn write(pair: &mut Pair<ModelBus>, at: u64, bytes: &[u8]) {
    pair.hcas[0].bus_mut().mmio_write_block(at, bytes);
}

/// Puts a request that does not complete into the ring and counts it.
fn queue_quiet(pair: &mut Pair<ModelBus>, index: u16) {
    let quiet = nothing(index.into()).unsignaled();
    pair.ends[0].qp.queue_send(&quiet).expect("room");
    pair.ends[0].qp.count_sends();
}

#[test]
pub(crate) fn messages_of_every_size() {
    let mut pair = pair(&Options::default());
    assert_eq!(pair.hcas[0].caps().get(General::BF), 1);
    let start = simulation(&mut pair).now();
    // Inline data from a part of a basic block to more than a register takes.
    for (i, len) in [0, 1, 28, 44, 45, 108, 200, 236, 237, 400].into_iter().enumerate() {
        let data = pattern(i as u64, len);
        pair.recv(1, i as u64, 4096, 1024);
        let request = SendRequest::send(i as u64, &[]).inline(&data);
        let home = pair.ends[0].home;
        pair.ends[0].qp.post_send_blueflame(pair.hcas[home].bus_mut(), &request).expect("posted");
        pair.sent_ok(0, i as u64);
        assert_eq!(pair.received_ok(1, i as u64).byte_len, len as u32);
        assert_eq!(pair.ends[1].bytes(4096, len), data);
    }
    assert!(simulation(&mut pair).now() > start);
    close(pair);
}

/// What the drivers' test of write combining does: the copy asks for a completion, the WQE in memory does not.
#[test]
pub(crate) fn the_copy_is_executed_and_only_once() {
    let mut pair = pair(&Options::default());
    let mut half = 0;
    for index in 0..300 {
        queue_quiet(&mut pair, index);
        let (at, copy) = (register(&pair, half), nop(&pair, index, true));
        write(&mut pair, at, &copy);
        half ^= 1;
        pair.sent_ok(0, index.into());
    }
    // Doorbells afterwards execute nothing again, and a copy of what is done neither.
    for bytes in [&nop(&pair, 299, true)[..8], &nop(&pair, 299, true), &nop(&pair, 300, true)] {
        let at = register(&pair, 0);
        write(&mut pair, at, bytes);
        simulation(&mut pair).run(Ps::from_us(50));
        assert_eq!(pair.try_sent(0), None);
    }
    close(pair);
}

/// Stores that don't make a whole copy in one go are doorbells: the WQE in memory counts.
#[test]
pub(crate) fn torn_copies_are_doorbells() {
    let mut pair = pair(&Options::default());
    type Store = fn(&mut Pair<ModelBus>, u64, &[u8; WQEBB]);
    let ways: [Store; 6] = [
        |pair, at, copy| write(pair, at, &copy[..8]),
        |pair, at, copy| write(pair, at, &copy[..56]),
        // Time passes in between.
        |pair, at, copy| {
            write(pair, at, &copy[..32]);
            simulation(pair).run(Ps::from_us(10));
            write(pair, at + 32, &copy[32..]);
        },
        // A read, another register of the page, a doorbell of another kind.
        |pair, at, copy| {
            write(pair, at, &copy[..32]);
            pair.hcas[0].bus_mut().mmio_read32(0);
            write(pair, at + 32, &copy[32..]);
        },
        |pair, at, copy| {
            write(pair, at, &copy[..32]);
            write(pair, at ^ SEND_DOORBELL_STEP, &copy[..8]);
            write(pair, at + 32, &copy[32..]);
        },
        |pair, at, copy| {
            write(pair, at, &copy[..32]);
            pair.hcas[0].bus_mut().mmio_write32(at / PAGE_SIZE * PAGE_SIZE + hca_spec::uar::EQ_UPDATE, 0);
            write(pair, at + 32, &copy[32..]);
        },
    ];
    let mut index = 0;
    for (n, way) in ways.into_iter().enumerate() {
        queue_quiet(&mut pair, index);
        let (at, copy) = (register(&pair, 0), nop(&pair, index, true));
        way(&mut pair, at, &copy);
        simulation(&mut pair).run(Ps::from_us(50));
        assert_eq!(pair.try_sent(0), None, "way {n}: the copy was executed");
        // The same whole: the next one completes, and the one before is done as well.
        queue_quiet(&mut pair, index + 1);
        let copy = nop(&pair, index + 1, true);
        write(&mut pair, at, &copy);
        pair.sent_ok(0, u64::from(index) + 1);
        index += 2;
    }
    close(pair);
}

/// A copy that is not the next WQE, or that the doorbell record does not count, is a doorbell; one of another queue
/// pair's or without sense is no danger.
#[test]
pub(crate) fn copies_that_do_not_fit() {
    let mut pair = pair(&Options::default());
    let at = register(&pair, 0);
    // Not counted.
    let copy = nop(&pair, 0, true);
    write(&mut pair, at, &copy);
    simulation(&mut pair).run(Ps::from_us(50));
    assert_eq!(pair.try_sent(0), None);
    // Another index: both WQEs in memory are executed.
    queue_quiet(&mut pair, 0);
    pair.ends[0].qp.queue_send(&nothing(1)).expect("room");
    pair.ends[0].qp.count_sends();
    let copy = nop(&pair, 1, false);
    write(&mut pair, at, &copy);
    pair.sent_ok(0, 1);
    // No such queue pair; a store of nothing.
    let before = simulation(&mut pair).world(|w, _| w.diagnoses(HcaId(0)));
    for bytes in [[0xff; WQEBB], [0; WQEBB]] {
        write(&mut pair, at, &bytes);
        simulation(&mut pair).run(Ps::from_us(50));
    }
    assert_eq!(simulation(&mut pair).world(|w, _| w.diagnoses(HcaId(0))), before + 2);
    // An operation that does not exist: the queue pair goes to error as for any such WQE.
    queue_quiet(&mut pair, 2);
    let mut copy = nop(&pair, 2, true);
    copy[3] = 0x7f;
    write(&mut pair, at, &copy);
    let (wr_id, completion) = pair.sent(0);
    assert_eq!(
        (wr_id, completion.status.map_err(|f| f.syndrome)),
        (2, Err(Some(Syndrome::LocalQpOperation)))
    );
    close(pair);
}

/// A WQE that is longer than the copy goes on in memory.
#[test]
pub(crate) fn long_wqes_go_on_in_memory() {
    let mut pair = pair(&Options::default());
    let data = pattern(5, 600);
    pair.recv(1, 1, 0, 1024);
    pair.ends[0].qp.queue_send(&SendRequest::send(7, &[]).inline(&data)).expect("room");
    pair.ends[0].qp.count_sends();
    let mut ctrl = Ctrl::new();
    ctrl.set(Ctrl::OPCODE, SendOpcode::Send as u32).set(Ctrl::QPN, pair.ends[0].qp.number().0);
    ctrl.set(Ctrl::CE, CE_ALWAYS).set(Ctrl::DS, (Ctrl::SIZE as u32 + 4 + 600).div_ceil(16));
    let mut copy = ctrl.bytes().to_vec();
    copy.extend((INLINE | 600).to_be_bytes());
    copy.extend(&data);
    copy.truncate(BLUEFLAME_BYTES);
    // The copy's second block differs from memory's: it is the copy's that is sent.
    copy[WQEBB..].fill(0x5a);
    let at = register(&pair, 0);
    write(&mut pair, at, &copy);
    pair.sent_ok(0, 7);
    pair.received_ok(1, 1);
    let got = pair.ends[1].bytes(0, 600);
    let inline_start = Ctrl::SIZE + 4;
    let split = [WQEBB - inline_start, BLUEFLAME_BYTES - inline_start];
    assert_eq!(got[..split[0]], data[..split[0]]);
    assert!(got[split[0]..split[1]].iter().all(|b| *b == 0x5a));
    assert_eq!(got[split[1]..], data[split[1]..]);
    close(pair);
}

/// Without the capability a copy's first word is the doorbell, and nothing waits.
#[test]
pub(crate) fn off_unless_asked_for() {
    let mut pair = hca_tests::rig::loopback(&Options::default());
    assert_eq!(pair.hcas[0].caps().get(General::BF), 0);
    queue_quiet(&mut pair, 0);
    let (at, copy) = (register(&pair, 0), nop(&pair, 0, true));
    write(&mut pair, at, &copy[..8]);
    assert_eq!(simulation(&mut pair).world(|w, _| w.combining(HcaId(0))), None);
    pair.ends[0].qp.queue_send(&nothing(1)).expect("room");
    pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
    pair.sent_ok(0, 1);
    close(pair);
}

/// The driver's test of write combining on newer kernels: a send queue on its own, NOPs that complete in the copy only.
#[test]
pub(crate) fn a_send_queue_on_its_own() {
    let mut pair = pair(&Options::default());
    let hca = &mut pair.hcas[0];
    let mut cq = hca.create_cq(CqConfig::new(256)).expect("CREATE_CQ");
    let page = hca.uar().0;
    let mut memory = hca.bus_mut().dma_alloc(2 * 4096, 4096).expect("memory");
    let mut create = CreateSqIn::new();
    create.sqc_mut().set(Sqc::CQN, cq.number().0);
    let wq = create.sqc_mut().wq_mut();
    wq.set(Wq::WQ_TYPE, 1).set(Wq::LOG_WQ_STRIDE, 6).set(Wq::LOG_WQ_SZ, 6).set(Wq::UAR_PAGE, page);
    wq.set(Wq::DBR_ADDR, memory.bus_address() + 4096);
    let mut input = create.bytes().to_vec();
    input.extend_from_slice(&memory.bus_address().to_be_bytes());
    let out = hca.execute(Opcode::CreateSq, 0, input, 16).expect("CREATE_SQ");
    let sqn = ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER);
    let mut modify = ModifySqIn::new();
    modify.set(ModifySqIn::SQN, sqn).sqc_mut().set(Sqc::STATE, SQ_READY);
    hca.execute(Opcode::ModifySq, 0, modify.bytes().to_vec(), 16).expect("MODIFY_SQ");
    for index in 0..100_u16 {
        let mut ctrl = Ctrl::new();
        ctrl.set(Ctrl::OPCODE, SendOpcode::Nop as u32).set(Ctrl::WQE_INDEX, index.into());
        ctrl.set(Ctrl::QPN, sqn).set(Ctrl::DS, 1);
        memory.write(usize::from(index % 64) * WQEBB, ctrl.bytes());
        memory.store32(4096 + 4, u32::from(index) + 1);
        let mut copy = [0; WQEBB];
        copy[..Ctrl::SIZE].copy_from_slice(ctrl.set(Ctrl::CE, CE_ALWAYS).bytes());
        let at = u64::from(page) * PAGE_SIZE + SEND_DOORBELL + u64::from(index % 2) * SEND_DOORBELL_STEP;
        hca.bus_mut().mmio_write_block(at, &copy);
        hca.bus_mut().simulation().clone().run(Ps::from_us(20));
        let completion = cq.poll().expect("the copy completes");
        assert_eq!((completion.status, completion.wqe_index, completion.qpn), (Ok(()), index, Qpn(sqn)));
    }
    assert!(cq.poll().is_none());
    let mut destroy = ObjectIn::new();
    destroy.set(ObjectIn::NUMBER, sqn);
    hca.execute(Opcode::DestroySq, 0, destroy.bytes().to_vec(), 16).expect("DESTROY_SQ");
    hca.destroy_cq(cq).expect("DESTROY_CQ");
    drop(memory);
    close(pair);
}
