//! Adapters on the model, ready for a test: open, connected, closed and checked.

use crate::in_process::{ModelBus, Simulation};
use crate::pair::{Options, Pair};
use crate::worlds;
use hca_driver::qp::QpConfig;
use hca_driver::{Bus, Config, Cq, Event, Hca, InitAttr, Qp, RtsAttr};
use hca_model::link::Faults;
use hca_model::{HcaId, Ps};
use hca_spec::ids::Pd;
use hca_spec::qpc::{QpState, Qpc};

/// DMA memory of a host.
pub const HOST_MEMORY: usize = 64 << 20;
/// Path MTU of [`Options::default`].
pub const MTU: usize = 1024;

/// Brings an adapter up.
pub fn open(simulation: &Simulation, hca: usize) -> Hca<ModelBus> {
    open_with(simulation, hca, Config::default())
}

/// Brings an adapter up with a driver's choices.
pub fn open_with(simulation: &Simulation, hca: usize, config: Config) -> Hca<ModelBus> {
    Hca::open(simulation.bus(HcaId(hca), HOST_MEMORY), config).expect("the adapter comes up")
}

/// The driver's choices that options ask for.
fn choices(options: &Options) -> Config {
    Config { memory_page_faults: options.memory_page_faults, ..Config::default() }
}

/// Of the kind of adapter that options ask for.
fn kind(options: &Options) -> &'static str {
    if options.memory_page_faults { worlds::WITH_MEMORY_PAGE_FAULTS } else { worlds::COMMON_KIND }
}

/// Two queue pairs of one adapter.
pub fn loopback(options: &Options) -> Pair<ModelBus> {
    let simulation = Simulation::new(worlds::of_kind(kind(options), worlds::config(1, Vec::new(), 1)));
    let hca = open_with(&simulation, 0, choices(options));
    Pair::connect(vec![hca], options).expect("the queue pairs connect")
}

/// Two adapters over a link with faults.
pub fn linked(options: &Options, faults: Faults, seed: u64) -> Pair<ModelBus> {
    let world = match options.roce {
        true => worlds::ethernet(worlds::between(faults)),
        false => worlds::of_kind(kind(options), worlds::config(2, vec![worlds::between(faults)], seed)),
    };
    let simulation = Simulation::new(world);
    let hcas = [0, 1].map(|hca| open_with(&simulation, hca, choices(options))).into();
    Pair::connect(hcas, options).expect("the queue pairs connect")
}

/// A queue pair for datagrams, ready to send.
pub fn datagrams<B: Bus>(
    hca: &mut Hca<B>,
    pd: Pd,
    (sends, receives): (&Cq<B::Dma>, &Cq<B::Dma>),
    qkey: u32,
) -> Qp<B::Dma> {
    let mut qp = hca.create_qp(&QpConfig::ud(pd, sends, receives)).expect("CREATE_QP");
    hca.qp_to_init(&mut qp, &InitAttr { qkey, ..InitAttr::default() }).expect("INIT");
    hca.ud_to_rtr(&mut qp).expect("RTR");
    hca.qp_to_rts(&mut qp, &RtsAttr::default()).expect("RTS");
    qp
}

/// Closes everything and checks that the adapter kept nothing.
pub fn close(pair: Pair<ModelBus>) {
    for bus in pair.close().expect("teardown") {
        assert_eq!(bus.free_memory(), HOST_MEMORY, "DMA memory was leaked");
        worlds::assert_nothing_held(bus.simulation(), bus.hca());
    }
}

/// Both on one adapter and over a link.
pub fn everywhere(options: &Options, test: impl Fn(&mut Pair<ModelBus>)) {
    for mut pair in [loopback(options), linked(options, Faults::default(), 1)] {
        test(&mut pair);
        close(pair);
    }
}

/// Checks what the adapter says of a queue pair's state.
pub fn assert_state(pair: &mut Pair<ModelBus>, end: usize, state: QpState) {
    let home = pair.ends[end].home;
    let qpc = pair.hcas[home].query_qp(&pair.ends[end].qp).expect("QUERY_QP");
    assert_eq!(QpState::from_bits(qpc.get(Qpc::STATE)), Some(state), "end {end}");
}

/// Takes every asynchronous event that comes within 100 us.
pub fn drain_events(hca: &mut Hca<ModelBus>) -> Vec<Event> {
    hca.bus_mut().simulation().clone().run(Ps::from_us(100));
    let mut events = Vec::new();
    while let Some(event) = hca.poll_event().expect("events") {
        events.push(event);
    }
    events
}
