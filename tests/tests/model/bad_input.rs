//! A guest that does what it must not gets the status, completion or event that hardware gives, and the
//! adapter lives on.

use hca_model::Ps;
use hca_spec::cmd::{CreateMkeyIn, ObjectOut};
use hca_spec::command::{Opcode, OutHeader, Status};
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::eqe::{Eqe, EventType, cq_syndrome};
use hca_spec::mkc::{AccessMode, Klm, Mkc};
use hca_spec::qpc::ServiceType;
use hca_spec::wqe::{CE_ALWAYS, Ctrl, Data, SendOpcode, UmrCtrl, WQEBB};
use hca_tests::fuzz::commands::{self, Key};
use hca_tests::fuzz::memory;
use hca_tests::fuzz::objects::QueuePair;
use hca_tests::fuzz::two_adapters::{TwoAdapters, VICTIM};

fn status(output: &[u8]) -> u32 {
    OutHeader::from_prefix_or_zero(output).get(OutHeader::STATUS)
}

fn number(output: &[u8]) -> u32 {
    assert_eq!(status(output), 0);
    ObjectOut::from_prefix_or_zero(output).get(ObjectOut::NUMBER)
}

/// A WQE of whole basic blocks, signalled.
fn wqe(qp: QueuePair, index: u16, opcode: u32, imm: u32, segments: &[&[u8]]) -> Vec<u8> {
    let body = segments.concat();
    let mut ctrl = Ctrl::new();
    ctrl.set(Ctrl::OPCODE, opcode).set(Ctrl::WQE_INDEX, index.into()).set(Ctrl::QPN, qp.number);
    ctrl.set(Ctrl::DS, ((Ctrl::SIZE + body.len()) / 16) as u32).set(Ctrl::CE, CE_ALWAYS).set(Ctrl::IMM, imm);
    let mut wqe = [&ctrl.bytes()[..], &body].concat();
    wqe.resize(wqe.len().next_multiple_of(WQEBB), 0);
    wqe
}

fn data(key: u32, address: u64, len: u32) -> Data {
    let mut data = Data::new();
    data.set(Data::LKEY, key).set(Data::ADDRESS, address).set(Data::BYTE_COUNT, len);
    data
}

fn syndromes(adapters: &TwoAdapters) -> Vec<u32> {
    let bad = |c: &Cqe| c.get(Cqe::OPCODE) == CqeOpcode::ReqErr as u32;
    adapters.completions().iter().map(|c| if bad(c) { c.get(Cqe::SYNDROME) } else { 0 }).collect()
}

#[test]
pub(crate) fn a_slot_that_is_rung_again_is_executed_once() {
    let mut adapters = TwoAdapters::new();
    let before = adapters.world.resources(VICTIM).now.pds;
    adapters.command(3, &commands::object(Opcode::AllocPd, 0), 16);
    for _ in 0..5 {
        adapters.write(0x18, &(1u32 << 3).to_be_bytes());
    }
    adapters.advance(Ps::from_ms(1));
    assert_eq!(adapters.world.resources(VICTIM).now.pds, before + 1);
    assert!(adapters.world.diagnoses(VICTIM) >= 5, "each superfluous doorbell is noted");
    // The slot works again afterwards.
    adapters.command(3, &commands::object(Opcode::AllocPd, 0), 16);
    adapters.advance(Ps::from_ms(1));
    assert_eq!(adapters.world.resources(VICTIM).now.pds, before + 2);
}

#[test]
pub(crate) fn a_command_that_waits_for_pages_is_answered_at_teardown() {
    let mut adapters = TwoAdapters::new();
    let (uar, pd) = (adapters.objects.uar, adapters.objects.pd);
    // Someone listens to page requests, but never gives a page.
    adapters.execute(&commands::create_eq(uar, 0, 1 << EventType::PageRequest as u32, memory::SPARE), 16);
    let mut waiting = None;
    for _ in 0..1000 {
        adapters.command(5, &large_key(pd), 16);
        adapters.advance(Ps::from_ms(5));
        if owned_by_hardware(&adapters, 5) {
            waiting = Some(());
            break;
        }
    }
    waiting.expect("the pages run out");
    assert_eq!(status(&adapters.execute(&commands::object(Opcode::TeardownHca, 0), 16)), 0);
    adapters.advance(Ps::from_ms(5));
    assert!(!owned_by_hardware(&adapters, 5));
    let output = adapters.ram().take(memory::COMMANDS + 5 * 64 + 0x20, 16);
    assert_eq!(status(&output), Status::BadSystemState as u32);
}

fn owned_by_hardware(adapters: &TwoAdapters, slot: u64) -> bool {
    adapters.ram().take(memory::COMMANDS + slot * 64 + 0x3f, 1)[0] & 1 == 1
}

/// CREATE_MKEY with a few thousand translations.
fn large_key(pd: u32) -> Vec<u8> {
    const OCTWORDS: u32 = 900;
    let mut input = commands::create_mkey(pd, Key::Free);
    let mut create = CreateMkeyIn::from_prefix_or_zero(&input);
    create.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, OCTWORDS);
    create.mkc_mut().set(Mkc::TRANSLATIONS_OCTWORD_SIZE, OCTWORDS);
    input[..CreateMkeyIn::SIZE].copy_from_slice(create.bytes());
    input.resize(CreateMkeyIn::SIZE + OCTWORDS as usize * 16, 0);
    input
}

#[test]
pub(crate) fn doorbells_of_nothing_are_noted() {
    let mut adapters = TwoAdapters::new();
    let uar = u64::from(adapters.objects.uar) * 4096;
    let nobody: [u8; 8] = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0];
    for (offset, bytes) in [
        (uar + 0x800, &nobody[..]),      // a QP
        (uar + 0x20, &nobody[..]),       // a CQ
        (uar + 0x40, &nobody[4..]),      // an EQ
        (uar + 0x100, &nobody[..]),      // no doorbell
        (uar + 0x1800, &nobody[..]),     // a UAR page that nobody has
        (u64::MAX - 0xfdf, &nobody[..]), // a CQ, far away
        (0x3000 - 1, &nobody[..]),       // not aligned
    ] {
        let before = adapters.world.diagnoses(VICTIM);
        adapters.write(offset, bytes);
        adapters.advance(Ps::from_us(10));
        assert_eq!(adapters.world.diagnoses(VICTIM), before + 1, "BAR0+{offset:#x}");
    }
    // The last bytes there are. In a send register they may be the end of a WQE that was executed already.
    adapters.write(u64::MAX - 7, &nobody);
    adapters.advance(Ps::from_us(10));
    adapters.assert_alive();
}

#[test]
pub(crate) fn a_completion_queue_outside_memory_is_an_event() {
    let mut adapters = TwoAdapters::new();
    let o = adapters.objects.clone();
    let cq = number(&adapters.execute(&commands::create_cq(o.uar, o.eq, 1 << 40, memory::RECORDS), 16));
    let mut objects = o.clone();
    objects.cq = cq;
    let input = commands::create_qp(&objects, ServiceType::Rc, None, memory::SPARE, memory::record(30));
    let qp =
        QueuePair { number: number(&adapters.execute(&input, 16)), record: memory::record(30), ..o.qps[0] };
    let qp = QueuePair { buffer: memory::SPARE, ..qp };
    for opcode in [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp] {
        let input = commands::modify_qp(&objects, opcode, &qp, qp.number);
        assert_eq!(status(&adapters.execute(&input, 16)), 0);
    }
    let end = adapters.post(qp, 0, &wqe(qp, 0, SendOpcode::Nop as u32, 0, &[]));
    adapters.ring(qp, end);
    adapters.advance(Ps::from_us(100));
    let events = adapters.events();
    let cq_error = events.iter().find(|e| e.get(Eqe::TYPE) == EventType::CqError as u32).expect("a CQ error");
    assert_eq!(cq_error.get(Eqe::CQ_ERROR_CQN), cq);
    assert_eq!(cq_error.get(Eqe::CQ_ERROR_SYNDROME), cq_syndrome::ACCESS);
    assert!(events.iter().any(|e| e.get(Eqe::TYPE) == EventType::WqCatastrophic as u32));
    adapters.assert_alive();
}

#[test]
pub(crate) fn a_send_queue_outside_memory_completes_with_an_error() {
    let mut adapters = TwoAdapters::new();
    let o = adapters.objects.clone();
    let input = commands::create_qp(&o, ServiceType::Rc, None, 1 << 40, memory::record(30));
    let qp =
        QueuePair { number: number(&adapters.execute(&input, 16)), record: memory::record(30), ..o.qps[0] };
    for opcode in [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp] {
        assert_eq!(status(&adapters.execute(&commands::modify_qp(&o, opcode, &qp, qp.number), 16)), 0);
    }
    adapters.ring(qp, 1);
    adapters.advance(Ps::from_us(100));
    assert_eq!(syndromes(&adapters), [Syndrome::LocalQpOperation as u32]);
    assert_eq!(adapters.completions()[0].get(Cqe::QPN), qp.number);
    adapters.assert_alive();
}

/// A bad request behind one whose packet is lost waits for the retries: it must not stop them.
#[test]
pub(crate) fn a_bad_request_waits_for_the_retries_of_its_predecessor() {
    let mut adapters = TwoAdapters::new();
    let (qp, peer) = (adapters.objects.qps[0], adapters.objects.qps[1]);
    // The peer drops everything in silence.
    assert_eq!(status(&adapters.execute(&commands::object(Opcode::ToRstQp, peer.number), 16)), 0);
    let key = adapters.objects.keys[1];
    let end =
        adapters.post(qp, 0, &wqe(qp, 0, SendOpcode::Send as u32, 0, &[data(key, memory::DATA, 8).bytes()]));
    let end = adapters.post(qp, end, &wqe(qp, end, 0x7f, 0, &[]));
    adapters.ring(qp, end);
    adapters.advance(Ps::from_ms(10));
    let expected = [Syndrome::TransportRetryExceeded, Syndrome::WorkRequestFlushed].map(|s| s as u32);
    assert_eq!(syndromes(&adapters), expected);
}

/// The UMR queue pair's log_msg_max is for messages, not for the translations that a WQE loads.
#[test]
pub(crate) fn loads_may_be_longer_than_messages() {
    let mut adapters = TwoAdapters::new();
    let o = adapters.objects.clone();
    let qp = *o.qps.iter().find(|q| q.service == ServiceType::RegUmr).expect("a UMR queue pair");
    let mut input = commands::create_mkey(o.pd, Key::Free);
    let mut create = CreateMkeyIn::from_prefix_or_zero(&input);
    create.mkc_mut().set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 1024);
    input[..CreateMkeyIn::SIZE].copy_from_slice(create.bytes());
    let key = number(&adapters.execute(&input, 16)) << 8;
    assert_eq!(status(&adapters.execute(&commands::object(Opcode::ToRstQp, qp.number), 16)), 0);
    for opcode in [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp] {
        let mut input = commands::modify_qp(&o, opcode, &qp, 0);
        // log_msg_max 12, as the mlx5 driver has it.
        input[0x18 + 8] = input[0x18 + 8] & 0xe0 | 12;
        assert_eq!(status(&adapters.execute(&input, 16)), 0);
    }
    let bytes = 1024 * 16;
    let mut ctrl = UmrCtrl::new();
    ctrl.set(UmrCtrl::XLT_OCTOWORDS, 1024);
    let source = data(o.keys[0], memory::DATA, bytes);
    let load = wqe(qp, 0, SendOpcode::Umr as u32, key, &[ctrl.bytes(), Mkc::new().bytes(), source.bytes()]);
    let end = adapters.post(qp, 0, &load);
    adapters.ring(qp, end);
    adapters.advance(Ps::from_ms(1));
    assert_eq!(syndromes(&adapters), [0]);
}

/// Indirect keys whose pieces are of nothing, in lists within lists: an access ends all the same.
#[test]
pub(crate) fn indirect_keys_do_not_multiply_for_ever() {
    const PIECES: u32 = 1500;
    let mut adapters = TwoAdapters::new();
    let o = adapters.objects.clone();
    let mut inner = o.keys[1];
    for _ in 0..4 {
        let mut input = commands::create_mkey(o.pd, Key::Pieces(inner));
        let mut create = CreateMkeyIn::from_prefix_or_zero(&input);
        create.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, PIECES);
        let mkc = create.mkc_mut();
        mkc.set_access_mode(AccessMode::Klm).set(Mkc::TRANSLATIONS_OCTWORD_SIZE, PIECES);
        mkc.set(Mkc::START_ADDR, 0).set(Mkc::LEN, u64::from(PIECES));
        input.truncate(CreateMkeyIn::SIZE);
        input[..CreateMkeyIn::SIZE].copy_from_slice(create.bytes());
        let mut piece = Klm::new();
        // Each byte is the last of the list within.
        piece.set(Klm::BYTE_COUNT, 1).set(Klm::MKEY, inner).set(Klm::ADDRESS, u64::from(PIECES) - 1);
        if inner == o.keys[1] {
            piece.set(Klm::ADDRESS, memory::DATA);
        }
        for _ in 0..PIECES {
            input.extend_from_slice(piece.bytes());
        }
        inner = number(&adapters.execute(&input, 16)) << 8;
    }
    let qp = o.qps[0];
    adapters.post_receives();
    let end = adapters.post(qp, 0, &wqe(qp, 0, SendOpcode::Send as u32, 0, &[data(inner, 0, 1024).bytes()]));
    adapters.ring(qp, end);
    adapters.advance(Ps::from_us(100));
    assert!(syndromes(&adapters).contains(&(Syndrome::LocalProtection as u32)), "too many steps");
    adapters.assert_alive();
}

#[test]
pub(crate) fn an_idle_queue_pair_in_error_costs_next_to_nothing() {
    let mut adapters = TwoAdapters::new();
    let qps = adapters.objects.qps.clone();
    for qp in &qps {
        // Over and over: each life must leave no timer behind.
        for _ in 0..5 {
            for opcode in [Opcode::ToErrQp, Opcode::ToRstQp, Opcode::ToErrQp] {
                assert_eq!(status(&adapters.execute(&commands::object(opcode, qp.number), 16)), 0);
            }
        }
    }
    adapters.advance(Ps::from_ms(1000));
    let (start, end) = (adapters.now(), adapters.now() + Ps::from_ms(1000));
    let mut events = 0;
    while let Some(at) = adapters.world.next_event().filter(|at| *at <= end) {
        events += 1;
        assert!(events < 100_000, "at {at} since {start}");
        adapters.world.advance(at);
    }
    assert!(events <= 20 * qps.len(), "{events} events in a second");
    // A receive that is posted now is flushed all the same.
    let qp = qps[0];
    adapters.ram().put(qp.record, &1u32.to_be_bytes());
    adapters.advance(Ps::from_ms(2000));
    let last = adapters.completions().pop().expect("a completion");
    assert_eq!(
        (last.get(Cqe::QPN), last.get(Cqe::SYNDROME)),
        (qp.number, Syndrome::WorkRequestFlushed as u32)
    );
}
