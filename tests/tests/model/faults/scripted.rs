//! What goes wrong on script, as our driver sees it: each action once, and what stays as it was.

use hca_driver::eth::QueueState;
use hca_driver::{Bus, Config, Eq, Error, Event, Hca, SendOp, SendRequest};
use hca_model::fault::{
    Ailment, Assert, CommandAction, Delivery, EntryAction, Fault, FaultId, InterruptAction, Lasting, Side,
    TimeAction, Trigger, What, event_named,
};
use hca_model::link::Faults;
use hca_model::trace::{self, Seam};
use hca_model::{HcaId, Ps};
use hca_spec::be32;
use hca_spec::cmd::ObjectIn;
use hca_spec::command::{CommandEntry, INLINE_INPUT, Opcode, OutHeader};
use hca_spec::cqe::{CqeOpcode, Syndrome};
use hca_spec::eqe::{EventType, cq_syndrome};
use hca_spec::ids::Cqn;
use hca_spec::init_segment::{InitSegment, NIC_INTERFACE_DISABLED, NIC_INTERFACE_SW_RESET};
use hca_spec::qpc::QpState;
use hca_tests::frames::plain;
use hca_tests::in_process::{ModelBus, ModelMemory, Simulation};
use hca_tests::lan::Lan;
use hca_tests::pair::{Options, Pair};
use hca_tests::rig::{HOST_MEMORY, assert_state, drain_events, linked, open};
use hca_tests::worlds;

/// An adapter, and a driver that gives a command up soon.
fn one() -> (Simulation, Hca<ModelBus>) {
    let simulation = Simulation::new(worlds::one());
    let config = Config { command_polls: 20_000, ..Config::default() };
    let hca = Hca::open(simulation.bus(HcaId(0), HOST_MEMORY), config).expect("the adapter comes up");
    (simulation, hca)
}

fn add_with(simulation: &Simulation, hca: usize, what: What, trigger: Trigger) -> FaultId {
    let fault = Fault { name: "test".into(), what, trigger };
    simulation.world(|world, now| world.add_fault(now, HcaId(hca), fault)).expect("there is such an adapter")
}

/// It happens to the first that matches.
fn add(simulation: &Simulation, what: What) -> FaultId {
    add_with(simulation, 0, what, Trigger::default())
}

fn happened(simulation: &Simulation, id: FaultId) -> (u64, u64) {
    let faults = simulation.world(|world, _| world.faults());
    let report = faults.into_iter().map(|(_, report)| report).find(|report| report.id == id);
    report.map(|report| (report.seen, report.fired)).expect("it is there")
}

fn commands(opcode: Opcode, action: CommandAction) -> What {
    What::Command { opcode: Some(opcode as u16), object: None, action }
}

fn completions(side: Side, action: EntryAction) -> What {
    What::Completion { cqn: None, queue: None, side: Some(side), wqe: None, action }
}

/// Events of completion queues.
fn events(action: EntryAction) -> What {
    What::Event { eqn: None, kind: Some(EventType::Completion as u8), number: None, port: None, action }
}

#[test]
pub(crate) fn a_command_that_fails_is_not_executed() {
    let (simulation, mut hca) = one();
    let pds = |simulation: &Simulation| simulation.world(|world, _| world.resources(HcaId(0)).now.pds);
    let before = pds(&simulation);
    let action = CommandAction::Fail { status: 0xf, syndrome: 0x1234 };
    let trigger = Trigger { nth: 2, count: Some(2), ..Trigger::default() };
    let id = add_with(&simulation, 0, commands(Opcode::AllocPd, action), trigger);
    let refused = Err(Error::Command { opcode: Opcode::AllocPd as u16, status: 0xf, syndrome: 0x1234 });
    let first = hca.alloc_pd().expect("the first");
    assert_eq!((hca.alloc_pd(), hca.alloc_pd()), (refused, refused));
    let last = hca.alloc_pd().expect("the fourth");
    assert_eq!((pds(&simulation), happened(&simulation, id)), (before + 2, (4, 2)));
    assert!(
        simulation.world(|world, _| world.remove_fault(id))
            && !simulation.world(|world, _| world.remove_fault(id))
    );
    hca.dealloc_pd(first).expect("DEALLOC_PD");
    hca.dealloc_pd(last).expect("DEALLOC_PD");
    hca.close().expect("teardown");
}

#[test]
pub(crate) fn a_command_about_one_object() {
    let (simulation, mut hca) = one();
    let [a, b] = [(); 2].map(|()| hca.alloc_pd().expect("ALLOC_PD"));
    let action = CommandAction::Fail { status: 6, syndrome: 1 };
    add(&simulation, What::Command { opcode: None, object: Some(b.0), action });
    hca.dealloc_pd(a).expect("the other");
    assert!(hca.dealloc_pd(b).is_err());
    hca.dealloc_pd(b).expect("once");
}

#[test]
pub(crate) fn commands_that_do_not_come_back() {
    let (simulation, mut hca) = one();
    add(&simulation, commands(Opcode::AllocPd, CommandAction::Hang));
    assert!(matches!(hca.alloc_pd(), Err(Error::Timeout { .. })));
    hca.alloc_pd().expect("the next one");
    let delivery = CommandAction::Undelivered(Delivery::Internal);
    add(&simulation, commands(Opcode::AllocPd, delivery));
    let undelivered = Error::Delivery { opcode: Opcode::AllocPd as u16, status: Delivery::Internal as u8 };
    assert_eq!(hca.alloc_pd(), Err(undelivered));
}

#[test]
pub(crate) fn a_late_command() {
    let (simulation, mut hca) = one();
    let mut took = || {
        let before = simulation.now();
        hca.alloc_pd().expect("ALLOC_PD");
        simulation.now().since(before)
    };
    let usual = took();
    add(&simulation, commands(Opcode::AllocPd, CommandAction::Late(Ps::from_ms(3))));
    let late = took();
    assert!(late >= Ps::from_ms(3) && late < Ps::from_ms(4) + usual, "{late} instead of {usual}");
    assert!(took() < Ps::from_ms(1));
}

#[test]
pub(crate) fn a_corrupted_output() {
    let (simulation, mut hca) = one();
    let query = |hca: &mut Hca<ModelBus>| {
        hca.execute(Opcode::QueryAdapter, 0, ObjectIn::new().bytes().to_vec(), 0x110).expect("status good")
    };
    let good = query(&mut hca);
    add(&simulation, commands(Opcode::QueryAdapter, CommandAction::Corrupt(9)));
    let bad = query(&mut hca);
    let flipped: u32 = good.iter().zip(&bad).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!((good[..8] == bad[..8], good.len() == bad.len(), flipped), (true, true, 9));
    assert_eq!(query(&mut hca), good);
    assert_eq!(OutHeader::from_prefix_or_zero(&bad).get(OutHeader::STATUS), 0);
}

/// It is executed as it always is; the byte of the entry's signature has no bit as it should be.
#[test]
pub(crate) fn a_command_with_a_wrong_signature() {
    let (simulation, mut hca) = one();
    let signature = |hca: &mut Hca<ModelBus>| {
        let bus = hca.bus_mut();
        let at = [InitSegment::CMDQ_PHY_ADDR_HIGH.offset(), InitSegment::CMDQ_PHY_ADDR_LOW.offset()];
        let [high, low] = at.map(|at| bus.mmio_read32(at as u64));
        let queue = u64::from(high) << 32 | u64::from(low & !0xfff);
        let mut entries = (0..32).map(|slot| {
            let mut entry = CommandEntry::new();
            bus.peek(queue + slot * CommandEntry::SIZE as u64, entry.bytes_mut());
            entry
        });
        let opcode = |entry: &CommandEntry| be32(entry.bytes(), INLINE_INPUT) >> 16;
        let entry = entries.find(|entry| opcode(entry) == Opcode::AllocPd as u32).expect("it was sent");
        entry.get(CommandEntry::SIGNATURE)
    };
    hca.alloc_pd().expect("ALLOC_PD");
    let right = signature(&mut hca);
    let pds = |simulation: &Simulation| simulation.world(|world, _| world.resources(HcaId(0)).now.pds);
    let before = pds(&simulation);
    add(&simulation, commands(Opcode::AllocPd, CommandAction::Signature));
    hca.alloc_pd().expect("our driver does not look at it");
    assert_eq!((signature(&mut hca), pds(&simulation)), (!right & 0xff, before + 1));
    hca.alloc_pd().expect("ALLOC_PD");
    assert_eq!(signature(&mut hca), right);
}

/// The vector of [`Told`]'s event queue.
const VECTOR: u16 = 3;

/// What came: interrupts so far, events, completions with their requests.
type Came = (u64, Vec<Event>, Vec<(u64, Result<(), Option<Syndrome>>)>);

/// Two queue pairs; completions of the first are told by an event queue of their own.
struct Told {
    simulation: Simulation,
    pair: Pair<ModelBus>,
    eq: Eq<ModelMemory>,
    posted: u64,
}

impl Told {
    fn new() -> Self {
        Self::with(&Options::default())
    }

    fn with(options: &Options) -> Self {
        let mut pair = linked(options, Faults::default(), 1);
        let simulation = pair.hcas[0].bus_mut().simulation().clone();
        let eq = pair.hcas[0].create_eq(64, VECTOR).expect("CREATE_EQ");
        pair.hcas[0].remap_cq(&pair.ends[0].send_cq, eq.number()).expect("MODIFY_CQ");
        Self { simulation, pair, eq, posted: 0 }
    }

    fn cqn(&self) -> Cqn {
        self.pair.ends[0].send_cq.number()
    }

    /// Arms everything, and posts a write.
    fn post(&mut self) {
        let hca = &mut self.pair.hcas[0];
        self.eq.arm(hca.bus_mut());
        self.pair.ends[0].send_cq.arm(hca.bus_mut(), false);
        let (address, rkey) = (self.pair.ends[1].mr.address, self.pair.ends[1].mr.key);
        let (op, sge) = (SendOp::Write { address, rkey, imm: None }, [self.pair.ends[0].sge(0, 8)]);
        self.pair.send(0, &SendRequest::new(self.posted, op, &sge));
        self.posted += 1;
    }

    /// What comes within `time`: interrupts so far, events, completions with their requests.
    fn comes(&mut self, time: Ps) -> Came {
        self.simulation.run(time);
        let interrupts = self.simulation.interrupts(HcaId(0), VECTOR);
        let events: Vec<Event> = std::iter::from_fn(|| self.eq.poll()).collect();
        if events.iter().any(|event| *event == Event::Completion(self.cqn())) {
            self.pair.ends[0].send_cq.event_taken();
        }
        let mut completions = Vec::new();
        while let Some((wr_id, completion)) = self.pair.try_sent(0) {
            completions.push((wr_id, completion.status.map_err(|_| completion.syndrome())));
        }
        (interrupts, events, completions)
    }

    /// What comes of a write soon.
    fn soon(&mut self) -> Came {
        self.post();
        self.comes(SOON)
    }
}

/// Everything that comes of a write comes within this.
const SOON: Ps = Ps::from_us(50);
/// Something comes so much later.
const LATE: Ps = Ps::from_us(200);

#[test]
pub(crate) fn interrupts() {
    let mut told = Told::new();
    let event = Event::Completion(told.cqn());
    let interrupt = |action| What::Interrupt { vector: Some(VECTOR), action };
    assert_eq!(told.soon(), (1, vec![event], vec![(0, Ok(()))]));
    add(&told.simulation, interrupt(InterruptAction::Lose));
    assert_eq!(told.soon(), (1, vec![event], vec![(1, Ok(()))]), "all but the interrupt");
    add(&told.simulation, interrupt(InterruptAction::Late(LATE)));
    assert_eq!(told.soon().0, 1);
    assert_eq!(told.comes(LATE).0, 2);
    add(&told.simulation, interrupt(InterruptAction::Twice));
    assert_eq!(told.soon().0, 4);
    add(&told.simulation, interrupt(InterruptAction::Other(9)));
    assert_eq!((told.soon().0, told.simulation.interrupts(HcaId(0), 9)), (4, 1));
    assert_eq!(told.soon().0, 5, "each of them happened once");
}

/// However late things come, so many wait: what is more is lost.
#[test]
fn what_comes_late_has_a_bound() {
    const MOST: usize = 4096;
    let late = Ps::from_ms(1_000);
    let interrupt = What::Interrupt { vector: Some(VECTOR), action: InterruptAction::Late(late) };
    /// How many of a kind came.
    type Count = fn(&Came) -> usize;
    let cases: [(What, Count); 3] = [
        (interrupt, |came| came.0 as usize),
        (events(EntryAction::Late(late)), |came| came.1.len()),
        (completions(Side::Send, EntryAction::Late(late)), |came| came.2.len()),
    ];
    for (what, count) in cases {
        let options = Options { send_blocks: 8192, cqes: 8192, ..Options::default() };
        let mut told = Told::with(&options);
        let id = add_with(&told.simulation, 0, what.clone(), Trigger { count: None, ..Trigger::default() });
        let posted = MOST + 20;
        (0..posted).for_each(|_| assert_eq!(count(&told.soon()), 0, "{what:?}"));
        assert_eq!(happened(&told.simulation, id).1 as usize, posted);
        // All of them come.
        let came = (0..1_000).map(|_| {
            told.eq.arm(told.pair.hcas[0].bus_mut());
            count(&told.comes(Ps::from_ms(1)))
        });
        let came: Vec<usize> = came.collect();
        let is_counter = matches!(what, What::Interrupt { .. });
        let all = if is_counter { came.last().copied().unwrap_or_default() } else { came.iter().sum() };
        assert_eq!(all, MOST, "{what:?}");
    }
}

#[test]
pub(crate) fn entries_of_event_queues() {
    let mut told = Told::new();
    let event = Event::Completion(told.cqn());
    add(&told.simulation, events(EntryAction::Lose));
    assert_eq!(told.soon(), (0, vec![], vec![(0, Ok(()))]));
    // The queue did not move, and is still armed: the next event takes its place.
    assert_eq!(told.soon(), (1, vec![event], vec![(1, Ok(()))]));
    add(&told.simulation, events(EntryAction::Late(LATE)));
    assert_eq!(told.soon(), (1, vec![], vec![(2, Ok(()))]));
    assert_eq!(told.comes(LATE), (2, vec![event], vec![]));
    add(&told.simulation, events(EntryAction::Twice));
    assert_eq!(told.soon(), (3, vec![event, event], vec![(3, Ok(()))]));
    add(&told.simulation, events(EntryAction::Kind(0x77)));
    assert_eq!(told.soon().1, [Event::Other { kind: 0x77, sub_type: 0 }]);
    // All of its bits behind the first word but those of the owner's byte: the CQ's number is another one, too.
    add(&told.simulation, events(EntryAction::Corrupt(472)));
    assert_eq!(told.soon().1, [Event::Completion(Cqn(!told.cqn().0 & 0xff_ffff))]);
    add(&told.simulation, events(EntryAction::Overflow));
    assert_eq!(told.soon(), (5, vec![], vec![(6, Ok(()))]));
    assert_eq!(told.soon(), (5, vec![], vec![(7, Ok(()))]), "it stays so");
}

#[test]
pub(crate) fn entries_of_completion_queues() {
    let mut told = Told::new();
    let event = Event::Completion(told.cqn());
    let sends = |action| completions(Side::Send, action);
    add(&told.simulation, sends(EntryAction::Late(LATE)));
    assert_eq!(told.soon(), (0, vec![], vec![]));
    assert_eq!(told.comes(LATE), (1, vec![event], vec![(0, Ok(()))]));
    add(&told.simulation, sends(EntryAction::Lose));
    assert_eq!(told.soon(), (1, vec![], vec![]));
    assert_eq!(told.soon(), (2, vec![event], vec![(2, Ok(()))]), "the next one stands for both");
}

/// Completions as they lie in memory, of a write each.
#[test]
pub(crate) fn spoiled_completions() {
    let mut told = Told::new();
    let mut raw = |action: Option<EntryAction>| {
        action.into_iter().for_each(|action| {
            add(&told.simulation, completions(Side::Send, action));
        });
        told.post();
        told.simulation.run(SOON);
        let cq = &mut told.pair.ends[0].send_cq;
        std::iter::from_fn(|| cq.poll()).map(|c| (c.opcode, c.wqe_index)).collect::<Vec<_>>()
    };
    let good = Some(CqeOpcode::Req);
    assert_eq!(raw(None), [(good, 0)]);
    assert_eq!(raw(Some(EntryAction::Twice)), [(good, 1), (good, 1)]);
    assert_eq!(raw(Some(EntryAction::Kind(7))), [(None, 2)]);
    // Everything but the last byte: the index is inverted, too.
    assert_eq!(raw(Some(EntryAction::Corrupt(504))), [(good, !3)]);
    assert_eq!(raw(None), [(good, 4)]);
}

#[test]
pub(crate) fn a_completion_queue_that_overflows() {
    let mut told = Told::new();
    add(&told.simulation, completions(Side::Send, EntryAction::Overflow));
    let cqn = told.cqn();
    assert_eq!(told.soon(), (0, vec![], vec![]));
    let heard = drain_events(&mut told.pair.hcas[0]);
    assert!(heard.contains(&Event::CqError { cqn, syndrome: cq_syndrome::OVERRUN as u8 }), "{heard:?}");
    assert_state(&mut told.pair, 0, QpState::Error);
}

#[test]
pub(crate) fn a_request_that_ends_with_an_error() {
    let error = EntryAction::Error { syndrome: Syndrome::RemoteOperation as u8, vendor: 0x89 };
    let mut told = Told::new();
    let event = Event::Completion(told.cqn());
    add_with(&told.simulation, 0, completions(Side::Send, error), Trigger { nth: 2, ..Trigger::default() });
    assert_eq!(told.soon().2, [(0, Ok(()))]);
    told.post();
    let flushed = Some(Syndrome::WorkRequestFlushed);
    assert_eq!(told.soon().1, [event]);
    let (_, _, more) = told.comes(SOON);
    assert_eq!(more, []);
    assert_state(&mut told.pair, 0, QpState::Error);
    assert_eq!(told.soon().2, [(3, Err(flushed))]);
    assert_state(&mut told.pair, 1, QpState::Rts);
}

/// Send queues and receive queues of Ethernet: the completion has an error, the queue is in error, what is posted is flushed, and
/// the queue goes on after a reset. That is what the health reporters of mlx5e see.
#[test]
pub(crate) fn queues_of_frames_that_fail() {
    let mut lan = Lan::cable();
    let error = EntryAction::Error { syndrome: Syndrome::LocalQpOperation as u8, vendor: 0x68 };
    let frame = plain(lan.stations[1].mac, lan.stations[0].mac, &[7; 100]);
    let trigger = Trigger { nth: 2, ..Trigger::default() };
    add_with(&lan.simulation, 0, completions(Side::Send, error), trigger.clone());
    for _ in 0..3 {
        lan.stations[0].send(&frame);
        lan.run();
    }
    let ends: Vec<_> = lan.stations[0].sent().iter().map(|c| c.syndrome()).collect();
    let flushed = Some(Syndrome::WorkRequestFlushed);
    assert_eq!(ends, [None, Some(Syndrome::LocalQpOperation), flushed]);
    let station = &mut lan.stations[0];
    assert_eq!(station.hca.sq_state(&mut station.sq), Ok(QueueState::Error));
    station.hca.modify_sq(&mut station.sq, QueueState::Reset).expect("MODIFY_SQ");
    station.hca.modify_sq(&mut station.sq, QueueState::Ready).expect("MODIFY_SQ");
    assert_eq!(lan.stations[1].frames().len(), 2, "those that were sent came");

    add_with(&lan.simulation, 1, completions(Side::Receive, error), trigger);
    for _ in 0..3 {
        lan.stations[0].send(&frame);
        lan.run();
    }
    let station = &mut lan.stations[1];
    let ends: Vec<_> = std::iter::from_fn(|| station.receives.poll()).map(|c| c.syndrome()).collect();
    assert_eq!(ends[..3], [None, Some(Syndrome::LocalQpOperation), flushed]);
    assert_eq!(station.hca.rq_state(&mut station.rq), Ok(QueueState::Error));
}

fn timed(action: TimeAction) -> What {
    What::Time { every: None, action }
}

#[test]
pub(crate) fn events_that_nothing_caused() {
    let (simulation, mut hca) = one();
    drain_events(&mut hca);
    let change = |sub_type| {
        let mut data = [0; 28];
        data[8] = 1 << 4;
        TimeAction::Event { kind: event_named("port-change").expect("it has a name"), sub_type, data }
    };
    let from = simulation.now() + Ps::from_us(20);
    let trigger = Trigger { from, count: Some(3), ..Trigger::default() };
    let what = What::Time { every: Some(Ps::from_us(10)), action: change(4) };
    let id = add_with(&simulation, 0, what, trigger);
    simulation.run(Ps::from_us(15));
    assert_eq!(hca.poll_event(), Ok(None), "it is not the time");
    assert_eq!(drain_events(&mut hca), [Event::PortChange { port: 1, change: 4 }; 3]);
    assert_eq!(happened(&simulation, id), (3, 3));
    add(&simulation, timed(TimeAction::Interrupt(7)));
    simulation.run(Ps::from_us(1));
    assert_eq!(simulation.interrupts(HcaId(0), 7), 1);
}

#[test]
pub(crate) fn events_of_a_port() {
    let loses = |port| {
        let mut told = Told::new();
        drain_events(&mut told.pair.hcas[0]);
        let (port, action) = (Some(port), EntryAction::Lose);
        let what = What::Event { eqn: None, kind: None, number: None, port, action };
        let id = add_with(&told.simulation, 0, what, Trigger { count: None, ..Trigger::default() });
        add(&told.simulation, timed(TimeAction::Unplug { port: 1, lasting: Lasting::ForEver }));
        told.simulation.run(Ps::from_ms(50));
        let events = drain_events(&mut told.pair.hcas[0]);
        let came = events.iter().any(|event| matches!(event, Event::PortChange { port: 1, .. }));
        (came, happened(&told.simulation, id).1 > 0)
    };
    assert_eq!((loses(2), loses(1)), ((true, false), (false, true)));
}

/// The firmware asks for pages, and for their return, again and again: the driver serves it, and nothing is lost.
#[test]
pub(crate) fn pages_are_asked_for_again_and_again() {
    let (simulation, mut hca) = one();
    let before = hca.firmware_pages();
    let storm = |pages| {
        let what = What::Time { every: Some(Ps::from_us(1)), action: TimeAction::Pages(pages) };
        add_with(&simulation, 0, what, Trigger { count: Some(100), ..Trigger::default() });
    };
    storm(16);
    for _ in 0..200 {
        drain_events(&mut hca);
    }
    assert_eq!(hca.firmware_pages(), before + 1600);
    storm(-16);
    for _ in 0..200 {
        drain_events(&mut hca);
    }
    assert!(hca.firmware_pages() < before + 1600, "{} of {before}", hca.firmware_pages());
    hca.close().expect("all pages come back");
}

#[test]
pub(crate) fn firmware_that_fails_and_starts_again() {
    let (simulation, mut hca) = one();
    assert_eq!(hca.health().syndrome, 0);
    let assert = Assert { vars: [1, 2, 3, 4, 5], exit_ptr: 6, callra: 7, irisc: 8 };
    let lasting = Lasting::For(Ps::from_ms(500));
    let ailment = Ailment { syndrome: 1, assert, frozen: true, lasting, ..Ailment::default() };
    add(&simulation, timed(TimeAction::Ail(ailment)));
    simulation.run(Ps::from_us(1));
    let ill = hca.health();
    simulation.run(Ps::from_ms(200));
    assert_eq!((ill.syndrome, hca.health()), (1, ill), "its counter stands still");
    let exit_ptr = InitSegment::HEALTH_EXIT_PTR.offset() as u64;
    assert_eq!(hca.bus_mut().mmio_read32(exit_ptr), 6);
    assert!(matches!(hca.alloc_pd(), Err(Error::Timeout { .. })), "it executes nothing");
    simulation.run(Ps::from_ms(600));
    let mode = hca.bus_mut().mmio_read32(InitSegment::NIC_INTERFACE.offset() as u64) >> 8 & 7;
    assert_eq!((hca.health().syndrome, mode), (0, NIC_INTERFACE_DISABLED));
    // As after power-on: the driver has to begin anew.
    simulation.world(|world, _| assert_eq!(world.resources(HcaId(0)).now.pages, 0));
    let mut hca = open(&simulation, 0);
    hca.alloc_pd().expect("ALLOC_PD");
}

/// The driver asks for a reset by the register of its mode, which says "disabled" when it is done.
#[test]
pub(crate) fn firmware_that_the_driver_resets() {
    let (simulation, mut hca) = one();
    let ailment = Ailment { syndrome: 1, reset_required: true, ..Ailment::default() };
    add(&simulation, timed(TimeAction::Ail(ailment)));
    simulation.run(Ps::from_ms(100));
    let mode = InitSegment::NIC_INTERFACE.offset() as u64;
    let shown = |hca: &mut Hca<ModelBus>| hca.bus_mut().mmio_read32(mode) >> 8 & 7;
    let rfr = hca.bus_mut().mmio_read32(InitSegment::HEALTH_RFR.offset() as u64);
    let supported = hca.bus_mut().mmio_read32(InitSegment::INITIALIZING.offset() as u64);
    assert_eq!((rfr >> 31, supported >> 30 & 1, hca.health().syndrome), (1, 1, 1));
    let word = hca.bus_mut().mmio_read32(mode);
    hca.bus_mut().mmio_write32(mode, word | NIC_INTERFACE_SW_RESET << 8);
    simulation.run(Ps::from_ms(100));
    assert_eq!((shown(&mut hca), hca.health().syndrome), (NIC_INTERFACE_DISABLED, 0));
    open(&simulation, 0).alloc_pd().expect("ALLOC_PD");
}

#[test]
pub(crate) fn firmware_that_takes_its_time() {
    let simulation = Simulation::new(worlds::one());
    let lasting = Lasting::For(Ps::from_ms(100));
    let ailment = Ailment { initializing: true, lasting, ..Ailment::default() };
    add(&simulation, What::Reset { action: TimeAction::Ail(ailment) });
    simulation.world(|world, now| world.reset(now, HcaId(0)));
    let patient = Config { init_polls: u32::MAX, ..Config::default() };
    Hca::open(simulation.bus(HcaId(0), HOST_MEMORY), patient).expect("it comes up in the end");
    assert!(simulation.now() >= Ps::from_ms(100), "{}", simulation.now());
    let for_ever = Ailment { lasting: Lasting::ForEver, ..ailment };
    add(&simulation, timed(TimeAction::Ail(for_ever)));
    simulation.world(|world, now| world.reset(now, HcaId(0)));
    simulation.run(Ps::from_us(1));
    simulation.world(|world, now| world.reset(now, HcaId(0)));
    let soon = Config { init_polls: 1000, ..Config::default() };
    let given_up = Hca::open(simulation.bus(HcaId(0), HOST_MEMORY), soon).map(drop);
    assert!(matches!(given_up, Err(Error::Timeout { .. })), "{given_up:?}");
}

#[test]
pub(crate) fn off_the_bus() {
    let (simulation, mut hca) = one();
    let lasting = Lasting::For(Ps::from_ms(10));
    add(&simulation, timed(TimeAction::Away(lasting)));
    simulation.run(Ps::from_us(1));
    let away = || simulation.world(|world, now| world.is_off_the_bus(now, HcaId(0)));
    assert_eq!((hca.bus_mut().mmio_read32(0), away()), (u32::MAX, true));
    simulation.run(Ps::from_ms(10));
    assert_eq!((hca.bus_mut().mmio_read32(0) == u32::MAX, away()), (false, false));
    hca.alloc_pd().expect("ALLOC_PD");
}

#[test]
pub(crate) fn a_cable_that_is_unplugged() {
    let mut pair = linked(&Options::default(), Faults::default(), 1);
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let up = || simulation.world(|world, _| world.link_is_up(0));
    let lasting = Lasting::For(Ps::from_us(100));
    add(&simulation, timed(TimeAction::Unplug { port: 1, lasting }));
    simulation.run(Ps::from_us(10));
    assert!(!up());
    simulation.run(Ps::from_ms(5000));
    assert!(up());
    let heard = drain_events(&mut pair.hcas[0]);
    assert!(heard.contains(&Event::PortChange { port: 1, change: 1 }), "{heard:?}");
}

/// Each fault is in the trace, and the same seed gives the same ones.
#[test]
pub(crate) fn traced_and_the_same_for_the_same_seed() {
    let run = |seed| {
        let mut told = Told::new();
        told.simulation.world(|world, _| world.start_trace(1 << 16));
        let what = events(EntryAction::Lose);
        let trigger = Trigger { count: None, probability: 0.5, seed, ..Trigger::default() };
        add_with(&told.simulation, 0, what, trigger);
        let interrupts: Vec<u64> = (0..20).map(|_| told.soon().0).collect();
        let eqn = u32::from(told.eq.number().0);
        let faults = told.simulation.world(|world, _| {
            let faults = world.drain_trace().filter_map(|record| match record.event {
                trace::Event::Fault { number, seam, object } => Some((number, seam, object)),
                _ => None,
            });
            faults.collect::<Vec<_>>()
        });
        assert_eq!(faults, vec![(0, Seam::Event, eqn); faults.len()]);
        assert_eq!(faults.len() as u64 + interrupts[19], 20);
        interrupts
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
