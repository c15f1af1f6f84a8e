//! The firmware's tracer in the way of a driver: it takes it, gives it a buffer, and is told when there is something in it.

use hca_driver::{Access, Bus, Config, Dma, Hca, Mr};
use hca_model::{HcaId, Ps};
use hca_spec::cmd::{AccessRegIn, CreateEqIn, reg};
use hca_spec::command::Opcode;
use hca_spec::eqe::{Eqe, EventType};
use hca_spec::queue::Eqc;
use hca_spec::tracer::{
    BLOCK, MtrcCap, MtrcConf, MtrcCtrl, SELECT_STATUS, TIMESTAMP, TraceEvent, tracer_event,
};
use hca_tests::in_process::Simulation;
use hca_tests::rig::HOST_MEMORY;
use hca_tests::worlds;

const PAGE: usize = 4096;
/// log2 of the buffer's pages.
const LOG_PAGES: u32 = 1;
/// Blocks of the buffer.
const BLOCKS: usize = (PAGE << LOG_PAGES) / BLOCK;

fn write<B: Bus>(hca: &mut Hca<B>, register: u32, data: &[u8]) -> Vec<u8> {
    let mut input = AccessRegIn::new();
    input.set(AccessRegIn::REGISTER_ID, register);
    let input = [&input.bytes()[..], data].concat();
    let output = hca.execute(Opcode::AccessReg, 0, input, 16 + data.len()).expect("ACCESS_REGISTER");
    output[16..].to_vec()
}

fn control<B: Bus>(hca: &mut Hca<B>, on: bool) {
    let mut control = MtrcCtrl::new();
    control.set(MtrcCtrl::MODIFY_FIELD_SELECT, SELECT_STATUS).set(MtrcCtrl::TRACE_STATUS, on.into());
    write(hca, reg::MTRC_CTRL, control.set(MtrcCtrl::ARM_EVENT, 1).bytes());
}

fn arm<B: Bus>(hca: &mut Hca<B>) {
    write(hca, reg::MTRC_CTRL, MtrcCtrl::new().set(MtrcCtrl::ARM_EVENT, 1).bytes());
}

/// An event queue of 64 entries for one type of event.
fn event_queue<B: Bus>(hca: &mut Hca<B>, kind: EventType) -> B::Dma {
    let mut ring = hca.bus_mut().dma_alloc(PAGE, PAGE).expect("memory");
    (0..64).for_each(|n| ring.store32(n * Eqe::SIZE + 0x3c, 1));
    let mut input = CreateEqIn::new();
    input.set(CreateEqIn::EVENT_BITMASK_0, 1 << kind as u32);
    let uar = hca.uar().0;
    input.eqc_mut().set(Eqc::LOG_EQ_SIZE, 6).set(Eqc::UAR_PAGE, uar).set(Eqc::INTR, 1);
    let input = [&input.bytes()[..], &ring.bus_address().to_be_bytes()].concat();
    hca.execute(Opcode::CreateEq, 0, input, 16).expect("CREATE_EQ");
    ring
}

/// The entries of an event queue that were written: their sub-types.
fn told(ring: &impl Dma) -> Vec<u8> {
    let written = (0..64).take_while(|n| ring.load32(n * Eqe::SIZE + 0x3c) & 1 == 0);
    written.map(|n| ring.load32(n * Eqe::SIZE) as u8).collect()
}

/// Blocks that were written, by their last event.
fn written(buffer: &impl Dma) -> usize {
    let last = |n: &usize| {
        let mut event = [0; 8];
        buffer.read(n * BLOCK + BLOCK - 8, &mut event);
        TraceEvent::from_prefix_or_zero(&event).get(TraceEvent::EVENT_ID) == TIMESTAMP
    };
    (0..BLOCKS).filter(last).count()
}

/// An adapter with the tracer on, into a buffer of its own.
fn traced<B: Bus>(bus: B) -> (Hca<B>, B::Dma, B::Dma, Mr) {
    let mut hca = Hca::open(bus, Config::default()).expect("the adapter comes up");
    let events = event_queue(&mut hca, EventType::DeviceTracer);
    let buffer = hca.bus_mut().dma_alloc(PAGE << LOG_PAGES, PAGE).expect("memory");
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let key = hca.register(pd, &buffer, PAGE << LOG_PAGES, Access::LOCAL_WRITE).expect("CREATE_MKEY");
    let cap = write(&mut hca, reg::MTRC_CAP, MtrcCap::new().set(MtrcCap::TRACE_OWNER, 1).bytes());
    assert_eq!(MtrcCap::from_prefix_or_zero(&cap).get(MtrcCap::TRACE_OWNER), 1);
    let mut conf = MtrcConf::new();
    conf.set(MtrcConf::TRACE_MODE, 1).set(MtrcConf::LOG_TRACE_BUFFER_SIZE, LOG_PAGES);
    write(&mut hca, reg::MTRC_CONF, conf.set(MtrcConf::TRACE_MKEY, key.key.0).bytes());
    control(&mut hca, true);
    (hca, events, buffer, key)
}

/// What happened before the tracer was on is there a second later, and what a driver asks for at once.
#[test]
fn messages_come_to_the_host() {
    let simulation = Simulation::new(worlds::one());
    let (mut hca, events, buffer, key) = traced(simulation.bus(HcaId(0), HOST_MEMORY));
    simulation.run(Ps::from_ms(500));
    assert_eq!((told(&events), written(&buffer)), (vec![], 0), "they wait for others");
    simulation.run(Ps::from_ms(600));
    assert_eq!(told(&events), [tracer_event::TRACES]);
    let first = written(&buffer);
    assert!(first > 1, "{first} blocks");
    simulation.run(Ps::from_ms(5000));
    arm(&mut hca);
    simulation.run(Ps::from_ms(5000));
    assert_eq!((told(&events).len(), written(&buffer)), (1, first), "nothing is new; to arm is no message");
    write(&mut hca, reg::CORE_DUMP, &[0; 0x40]);
    assert_eq!((told(&events).len(), written(&buffer)), (2, first + 1), "at once");
    // Nothing is written under a key that is gone, and the adapter lives on.
    hca.deregister(key).expect("DESTROY_MKEY");
    write(&mut hca, reg::CORE_DUMP, &[0; 0x40]);
    assert_eq!(written(&buffer), first + 1);
    control(&mut hca, false);
    simulation.run(Ps::from_ms(2000));
    assert_eq!(told(&events).len(), 2);
}

/// A driver that does nothing with what it is told is told once, and the ring goes round.
#[test]
fn the_ring_goes_round() {
    let simulation = Simulation::new(worlds::one());
    let (mut hca, events, buffer, _) = traced(simulation.bus(HcaId(0), HOST_MEMORY));
    for _ in 0..BLOCKS * 10 {
        hca.health();
        let pd = hca.alloc_pd().expect("ALLOC_PD");
        hca.dealloc_pd(pd).expect("DEALLOC_PD");
    }
    simulation.run(Ps::from_ms(2000));
    assert_eq!((told(&events).len(), written(&buffer)), (1, BLOCKS));
}

/// A reset of the function takes the tracer from it: what it had for a buffer is not written any more.
#[test]
fn a_reset_takes_it_back() {
    let simulation = Simulation::new(worlds::one());
    let (hca, _, buffer, _) = traced(simulation.bus(HcaId(0), HOST_MEMORY));
    drop(hca);
    simulation.world(|world, now| world.reset(now, HcaId(0)));
    simulation.run(Ps::from_ms(3000));
    assert_eq!(written(&buffer), 0);
    let (_, events, ..) = traced(simulation.bus(HcaId(0), HOST_MEMORY));
    simulation.run(Ps::from_ms(2000));
    assert_eq!(told(&events), [tracer_event::TRACES]);
}
