//! What goes wrong on script between an adapter and its host: accesses to memory, errors of PCI Express, its link.

use hca_driver::{Dma, SendRequest};
use hca_model::fault::{
    DmaAction, Fault, FaultId, PcieError, PcieEvent, PcieLink, SlotEvent, TimeAction, Trigger, What,
};
use hca_model::link::Faults;
use hca_model::trace::{self, Seam};
use hca_model::{HcaId, Ps};
use hca_spec::cqe::Syndrome;
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
