//! What goes wrong on script between an adapter and its host: accesses to memory, errors of PCI Express, its link.

use hca_driver::{Dma, Hca, SendRequest};
use hca_model::fault::{
    DmaAction, ErrorMessage, Fault, FaultId, PcieError, PcieEvent, PcieLink, SlotEvent, TimeAction, Trigger,
    What,
};
use hca_model::link::Faults;
use hca_model::trace::{self, Seam};
use hca_model::{HcaId, Ps};
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::Opcode;
use hca_spec::cqe::Syndrome;
use hca_spec::management::{Mcam, Mpein, mcam_feature};
use hca_spec::pcie::{MPCNT_COUNTERS, Mpcnt, PciePerformance, PcieStates, mpcnt_group};
use hca_spec::qpc::QpState;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, Pair};
use hca_tests::rig::{assert_state, linked};

/// Bytes of a message.
const SIZE: usize = 64;

fn pair() -> (Simulation, Pair<ModelBus>) {
    let mut pair = linked(&Options::default(), Faults::default(), 1);
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    (simulation, pair)
}

fn add(simulation: &Simulation, hca: usize, what: What) -> FaultId {
    let fault = Fault { name: "test".into(), what, trigger: Trigger::default() };
    simulation.world(|world, now| world.add_fault(now, HcaId(hca), fault)).expect("there is such an adapter")
}

fn timed(action: TimeAction) -> What {
    What::Time { every: None, action }
}

/// Accesses to the memory of an end.
fn memory_of(pair: &Pair<ModelBus>, end: usize, action: DmaAction) -> What {
    let first = pair.ends[end].memory.bus_address();
    What::Dma { range: Some((first, first + SIZE as u64)), action }
}

fn write(pair: &mut Pair<ModelBus>, wr_id: u64, len: usize) {
    let (sge, far) = ([pair.ends[0].sge(0, len)], pair.ends[1].mr);
    pair.send(0, &SendRequest::write(wr_id, &sge, far.address, far.key));
}

/// A read without data ends its work request, whatever the reason; the registers say which it was.
#[test]
fn a_read_that_fails() {
    let reasons = [
        (DmaAction::Unsupported, PcieEvent::ReceivedMasterAbort),
        (DmaAction::Abort, PcieEvent::ReceivedTargetAbort),
        (DmaAction::Poison, PcieEvent::Error(PcieError::POISONED, [0; 4])),
    ];
    for (action, event) in reasons {
        let (simulation, mut pair) = pair();
        simulation.world(|world, _| world.start_trace(1 << 16));
        let id = add(&simulation, 0, memory_of(&pair, 0, action));
        write(&mut pair, 1, SIZE);
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::LocalProtection)), "{action:?}");
        assert_state(&mut pair, 0, QpState::Error);
        let (events, report) =
            simulation.world(|world, _| (world.take_pcie_events(HcaId(0)), world.faults().remove(0).1));
        assert_eq!(events, [event], "{action:?}");
        assert_eq!((report.id, report.fired), (id, 1));
        let page = (pair.ends[0].memory.bus_address() >> 12) as u32;
        let traced = simulation.world(|world, _| {
            let fault = |event| matches!(event, trace::Event::Fault { number: 0, seam: Seam::Dma, object } if object == page);
            world.drain_trace().filter(|record| fault(record.event)).count()
        });
        assert_eq!(traced, 1, "{action:?}");
    }
}

/// A write that is lost is not heard of: the request is answered, and the data is not there.
#[test]
fn a_write_that_is_lost() {
    let (simulation, mut pair) = pair();
    pair.fill(0, 0, &[0xaa; SIZE]);
    add(&simulation, 1, memory_of(&pair, 1, DmaAction::Lose));
    write(&mut pair, 1, SIZE);
    pair.sent_ok(0, 1);
    assert_ne!(pair.ends[1].bytes(0, SIZE), [0xaa; SIZE]);
    write(&mut pair, 2, SIZE);
    pair.sent_ok(0, 2);
    assert_eq!(pair.ends[1].bytes(0, SIZE), [0xaa; SIZE], "once");
    assert!(simulation.world(|world, _| world.take_pcie_events(HcaId(1))).is_empty());
}

/// Memory that is attached later has the faults, too; without the fault it is as before.
#[test]
fn faults_of_memory_come_and_go() {
    let (simulation, mut pair) = pair();
    let id = add(&simulation, 0, What::Dma { range: Some((0, 1)), action: DmaAction::Abort });
    write(&mut pair, 1, SIZE);
    pair.sent_ok(0, 1);
    assert!(simulation.world(|world, _| world.remove_fault(id)));
    write(&mut pair, 2, 4096);
    pair.sent_ok(0, 2);
}

/// A link of PCI Express that trained to less takes longer, and says so; with its width it has its times back.
#[test]
fn a_slot_that_degrades() {
    const LONG: usize = 1 << 16;
    let (simulation, mut pair) = pair();
    let mut took = |wr_id| {
        let began = simulation.now();
        write(&mut pair, wr_id, LONG);
        pair.sent_ok(0, wr_id);
        simulation.now().since(began)
    };
    took(1);
    let usual = took(2);
    let link = PcieLink { lanes: 4, speed: 1 };
    let (lasting, trained) =
        (Some(Ps::from_ms(10)), || simulation.world(|world, _| world.pcie_link(HcaId(0))));
    add(&simulation, 0, timed(TimeAction::Retrain { link, lasting }));
    simulation.run(Ps::from_us(1));
    assert_eq!(trained(), Some(link));
    let slow = took(3);
    // 64 KiB at 1 GB/s less what the link takes for headers.
    assert!(slow > Ps::from_us(65) && slow > Ps(4 * usual.0), "{slow} instead of {usual}");
    simulation.run(Ps::from_ms(10));
    assert_eq!(trained(), None);
    took(4);
    let again = took(5);
    assert!(again < Ps(2 * usual.0), "{again} instead of {usual}");
}

/// An adapter that is taken out is off the bus until it is put in again; whoever has the slot hears of all of it, once.
#[test]
fn out_of_its_slot_and_in_again() {
    let (simulation, _pair) = pair();
    let back = Some(Ps::from_ms(2));
    let at = HcaId(0);
    let take = || simulation.world(|world, _| (world.has_pcie_news(at), world.take_slot_events(at)));
    let away = || simulation.world(|world, now| world.is_off_the_bus(now, at));
    add(&simulation, 0, timed(TimeAction::Slot { event: SlotEvent::Removed, back }));
    simulation.run(Ps::from_us(1));
    assert_eq!((take(), take(), away()), ((true, vec![SlotEvent::Removed]), (false, vec![]), true));
    // A reset does not bring it back.
    simulation.world(|world, now| world.reset(now, at));
    assert!(away());
    simulation.run(Ps::from_ms(3));
    assert_eq!((take(), away()), ((true, vec![SlotEvent::Inserted]), false));
    // Software is asked: until it has let go, the adapter works.
    add(&simulation, 0, timed(TimeAction::Slot { event: SlotEvent::Ejected, back: None }));
    simulation.run(Ps::from_ms(3));
    assert_eq!((take(), away()), ((true, vec![SlotEvent::Ejected]), false));
}

/// Errors are kept for whoever has the registers, each once.
#[test]
fn errors_of_the_link() {
    let (simulation, _pair) = pair();
    let error = hca_model::fault::pcie_error_named("completion-timeout").expect("a name");
    let header = [1, 2, 3, 4];
    add(&simulation, 1, timed(TimeAction::PcieError { error, header }));
    simulation.run(Ps::from_us(1));
    let take = |hca| simulation.world(|world, _| world.take_pcie_events(HcaId(hca)));
    assert_eq!((take(0), take(1), take(1)), (vec![], vec![PcieEvent::Error(error, header)], vec![]));
}

/// A register of an adapter, asked for with that; `None`: refused.
fn register(hca: &mut Hca<ModelBus>, register: u32, data: &[u8]) -> Option<Vec<u8>> {
    const READ: u32 = 1;
    let mut head = AccessRegIn::new();
    head.set(AccessRegIn::REGISTER_ID, register);
    let input = [&head.bytes()[..], data].concat();
    let output = hca.execute(Opcode::AccessReg, READ, input, AccessRegIn::SIZE + data.len()).ok()?;
    Some(output[AccessRegIn::SIZE..].to_vec())
}

/// A group of counters of the link.
fn counters(hca: &mut Hca<ModelBus>, group: u32, clear: bool) -> Option<Vec<u8>> {
    let mut ask = Mpcnt::new();
    ask.set(Mpcnt::GRP, group).set(Mpcnt::CLR, clear.into());
    Some(register(hca, reg::MPCNT, ask.bytes())?[MPCNT_COUNTERS..].to_vec())
}

/// What goes wrong with the link on script is counted where drivers look, and the link is told as it is.
#[test]
fn troubles_of_the_link_are_counted() {
    let (simulation, mut pair) = pair();
    let mcam = register(&mut pair.hcas[0], reg::MCAM, Mcam::new().bytes()).expect("MCAM");
    let features = Mcam::from_prefix_or_zero(&mcam).get(Mcam::MNG_FEATURE_CAP_MASK_L);
    assert_ne!(features & mcam_feature::PCIE_PERFORMANCE, 0);
    for (name, times) in [
        ("receiver-error", 1),
        ("bad-tlp", 2),
        ("bad-dllp", 3),
        ("replay-rollover", 4),
        ("replay-timeout", 5),
    ] {
        let error = hca_model::fault::pcie_error_named(name).expect("a name");
        (0..times)
            .for_each(|_| _ = add(&simulation, 0, timed(TimeAction::PcieError { error, header: [0; 4] })));
    }
    let link = PcieLink { lanes: 4, speed: 2 };
    add(&simulation, 0, timed(TimeAction::Retrain { link, lasting: Some(Ps::from_ms(1)) }));
    simulation.run(Ps::from_us(1));
    let trained = |hca: &mut Hca<ModelBus>| {
        let mpein =
            Mpein::from_prefix_or_zero(&register(hca, reg::MPEIN, Mpein::new().bytes()).expect("MPEIN"));
        [Mpein::LINK_WIDTH_ACTIVE, Mpein::LINK_SPEED_ACTIVE].map(|field| mpein.get(field))
    };
    assert_eq!(trained(&mut pair.hcas[0]), [4, 1 << 1]);
    simulation.run(Ps::from_ms(1));
    assert_eq!(trained(&mut pair.hcas[0]), [16, 1 << 2], "it has its width again");
    let performance = |hca: &mut Hca<ModelBus>, clear| {
        let bytes = counters(hca, mpcnt_group::PERFORMANCE, clear).expect("the group");
        let group = PciePerformance::from_prefix_or_zero(&bytes);
        [
            PciePerformance::RX_ERRORS,
            PciePerformance::TX_ERRORS,
            PciePerformance::L0_TO_RECOVERY_RETRAIN,
            PciePerformance::CRC_ERROR_DLLP,
            PciePerformance::CRC_ERROR_TLP,
        ]
        .map(|field| group.get(field))
    };
    assert_eq!(performance(&mut pair.hcas[0], true), [6, 2, 4, 3, 2]);
    assert_eq!(performance(&mut pair.hcas[0], false), [0; 5], "cleared when they were read");
    assert_eq!(performance(&mut pair.hcas[1], false), [0; 5], "another adapter's link");
    let lanes = counters(&mut pair.hcas[0], mpcnt_group::LANES, false).expect("the group");
    assert_eq!(lanes[8..0x10], [0, 0, 0, 1, 0, 0, 0, 0], "of the first lane and the next");
    // Whoever has the registers says what was sent.
    simulation.world(|world, _| world.sent_error_message(HcaId(0), ErrorMessage::NonFatal));
    let states = counters(&mut pair.hcas[0], mpcnt_group::STATES, false).expect("the group");
    let states = PcieStates::from_prefix_or_zero(&states);
    assert_eq!(states.get(PcieStates::NON_FATAL_ERR_MSG_SENT), 1);
    assert_eq!(counters(&mut pair.hcas[0], 4, false), None, "a group of later adapters");
}
