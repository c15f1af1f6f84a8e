//! Stations on Ethernet: adapters with a send queue and a receive queue, on a cable or at a switch.

use hca_driver::eth::{
    Destination, FlowEntry, FlowGroup, FlowTable, FrameRequest, Mac, QueueState, Rq, RqConfig, Sq, SqConfig,
    Tir, TransportDomain,
};
use hca_driver::{Access, Bus, Completion, CounterSet, Cq, CqConfig, Dma, Hca, Mr, Sge};
use hca_firmware::{EthernetCounters, PortKind};
use hca_model::timing::Profile;
use hca_model::{HcaId, LinkConfig, Ps, Queueing, World};
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::Opcode;
use hca_spec::flow::{MatchParam, TableType, criteria};
use hca_spec::ids::Pd;
use hca_spec::register::Pfcc;

use crate::fabric::Plan;
use crate::in_process::{ModelBus, ModelMemory, Simulation};
use crate::{rig, worlds};

/// Bytes of a receive request.
pub const ROOM: usize = 2048;
/// Receive requests of a station.
pub const REQUESTS: usize = 64;
/// Bytes from which frames are sent.
const OUT: usize = 1 << 18;
/// In that time everything that was posted is done, also with memory that answers later.
pub const SOON: Ps = Ps::from_us(200);
/// Places of a station's flow table. The last takes everything to the station's queue.
const LOG_PLACES: u8 = 5;
/// The last.
const ANYTHING: u32 = (1 << LOG_PLACES) - 1;

/// An adapter with queues for frames.
pub struct Station {
    /// The adapter.
    pub hca: Hca<ModelBus>,
    /// Its address.
    pub mac: Mac,
    /// Protection domain of all its memory.
    pub pd: Pd,
    /// Transport domain.
    pub domain: TransportDomain,
    /// Completions of the send queue.
    pub sends: Cq<ModelMemory>,
    /// Completions of the receive queue.
    pub receives: Cq<ModelMemory>,
    /// The send queue.
    pub sq: Sq<ModelMemory>,
    /// The receive queue; request `i` is at `i * ROOM`.
    pub rq: Rq<ModelMemory>,
    /// To the receive queue.
    pub tir: Tir,
    /// The root of NIC RX.
    pub table: FlowTable,
    /// The group of the last place.
    pub anything: FlowGroup,
    /// Counters of the receive queue.
    pub counters: CounterSet,
    /// Memory: what is received, then what is sent.
    pub memory: ModelMemory,
    /// Its key.
    pub mr: Mr,
    sent: u64,
}

/// A frame that arrived.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What was said of it.
    pub completion: Completion,
}

impl Station {
    fn new(simulation: &Simulation, id: usize) -> Self {
        let mut hca = rig::open(simulation, id);
        let mac = hca.mac().expect("QUERY_NIC_VPORT_CONTEXT");
        let pd = hca.alloc_pd().expect("ALLOC_PD");
        let domain = hca.alloc_transport_domain().expect("ALLOC_TRANSPORT_DOMAIN");
        let sends = hca.create_cq(CqConfig::new(1024)).expect("CREATE_CQ");
        let receives = hca.create_cq(CqConfig::new(1024)).expect("CREATE_CQ");
        let len = REQUESTS * ROOM + OUT;
        let memory = hca.bus_mut().dma_alloc(len, 4096).expect("memory");
        let mr = hca.register(pd, &memory, len, Access::LOCAL_WRITE).expect("CREATE_MKEY");
        let tis = hca.create_tis(domain, 0).expect("CREATE_TIS");
        let mut sq = hca.create_sq(&SqConfig::new(tis, pd, &sends)).expect("CREATE_SQ");
        hca.modify_sq(&mut sq, QueueState::Ready).expect("MODIFY_SQ");
        let counters = hca.create_counters().expect("ALLOC_Q_COUNTER");
        let config = RqConfig {
            requests: REQUESTS as u32,
            sges: 1,
            counters: Some(counters),
            ..RqConfig::new(pd, &receives)
        };
        let mut rq = hca.create_rq(&config).expect("CREATE_RQ");
        hca.modify_rq(&mut rq, QueueState::Ready).expect("MODIFY_RQ");
        let tir = hca.create_direct_tir(domain, rq.number()).expect("CREATE_TIR");
        let table = hca.create_flow_table(TableType::NicRx, 64, LOG_PLACES, None).expect("CREATE_FLOW_TABLE");
        hca.set_flow_root(table).expect("SET_FLOW_TABLE_ROOT");
        let nothing = MatchParam::new();
        let anything =
            hca.create_flow_group(table, ANYTHING..=ANYTHING, 0, &nothing).expect("CREATE_FLOW_GROUP");
        let mut station = Self {
            hca,
            mac,
            pd,
            domain,
            sends,
            receives,
            sq,
            rq,
            tir,
            table,
            anything,
            counters,
            memory,
            mr,
            sent: 0,
        };
        station.take_anything();
        station.post_all();
        station
    }

    /// Everything that no other entry takes goes to the receive queue.
    pub fn take_anything(&mut self) {
        let entry = FlowEntry {
            value: &MatchParam::new(),
            destinations: &[Destination::Tir(self.tir)],
            counters: &[],
            tag: 0,
        };
        self.hca.set_flow_entry(self.anything, ANYTHING, &entry).expect("SET_FLOW_TABLE_ENTRY");
    }

    /// Nothing is taken any more but by other entries.
    pub fn take_nothing(&mut self) {
        self.hca.delete_flow_entry(self.table, ANYTHING).expect("DELETE_FLOW_TABLE_ENTRY");
    }

    /// So many destinations that each bring a frame to the receive queue.
    pub fn copies(&mut self, count: usize) -> Vec<Destination> {
        let direct = |_| self.hca.create_direct_tir(self.domain, self.rq.number()).expect("CREATE_TIR");
        (0..count).map(direct).map(Destination::Tir).collect()
    }

    /// A group of these places that compares those fields of layers 2 to 4.
    pub fn group(&mut self, places: std::ops::RangeInclusive<u32>, fields: &MatchParam) -> FlowGroup {
        self.hca.create_flow_group(self.table, places, criteria::OUTER, fields).expect("CREATE_FLOW_GROUP")
    }

    /// Posts a request of the receive queue.
    pub fn post(&mut self, request: usize) {
        let room =
            Sge { address: self.mr.address + (request * ROOM) as u64, len: ROOM as u32, key: self.mr.key };
        self.rq.post(request as u64, &[room]).expect("a free place");
    }

    /// Posts all requests of the receive queue, which is empty.
    pub fn post_all(&mut self) {
        (0..REQUESTS).for_each(|request| self.post(request));
    }

    /// Puts bytes where they can be sent from.
    pub fn out(&mut self, offset: usize, bytes: &[u8]) -> Sge {
        let at = REQUESTS * ROOM + offset;
        self.memory.write(at, bytes);
        Sge { address: self.mr.address + at as u64, len: bytes.len() as u32, key: self.mr.key }
    }

    /// Posts a request of the send queue.
    pub fn request(&mut self, request: &FrameRequest<'_>) {
        self.sq.post(self.hca.bus_mut(), request).expect("a free place");
    }

    /// Sends a frame as it is.
    pub fn send(&mut self, frame: &[u8]) {
        let data = [self.out((self.sent as usize % 64) * ROOM, frame)];
        self.sent += 1;
        self.request(&FrameRequest::new(self.sent, &[], &data));
    }

    /// Completions of the send queue that came.
    pub fn sent(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| {
            let completion = self.sends.poll()?;
            assert!(self.sq.finish(&completion).is_some(), "a completion of nothing: {completion:?}");
            Some(completion)
        })
        .collect()
    }

    /// Frames that came to the receive queue, whose places are posted again.
    pub fn received(&mut self) -> Vec<Arrived> {
        let mut all = Vec::new();
        while let Some(completion) = self.receives.poll() {
            let request = self.rq.finish(&completion).expect("a completion of something") as usize;
            assert_eq!(completion.status, Ok(()));
            let mut bytes = vec![0; completion.byte_len as usize];
            self.memory.read(request * ROOM, &mut bytes);
            all.push(Arrived { bytes, completion });
            self.post(request);
        }
        all
    }

    /// Bytes of the frames that came.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        self.received().into_iter().map(|arrived| arrived.bytes).collect()
    }

    /// Frames that found no receive request.
    pub fn out_of_buffer(&mut self) -> u32 {
        const OUT_OF_BUFFER: usize = 0x30;
        self.hca.counters(self.counters).expect("QUERY_Q_COUNTER").at(OUT_OF_BUFFER)
    }

    /// Whether PAUSE is sent and heeded (register PFCC).
    pub fn set_pause(&mut self, sent: bool, heeded: bool) {
        self.set_flow_control(sent, heeded, 0);
    }

    /// Sends and heeds PFC for these priorities, as bits, and no PAUSE (register PFCC).
    pub fn set_pfc(&mut self, priorities: u8) {
        self.set_flow_control(false, false, priorities);
    }

    fn set_flow_control(&mut self, sent: bool, heeded: bool, priorities: u8) {
        let mut input = AccessRegIn::new();
        input.set(AccessRegIn::REGISTER_ID, reg::PFCC);
        let mut pfcc = Pfcc::new();
        pfcc.set(Pfcc::LOCAL_PORT, 1).set(Pfcc::PPTX, sent.into()).set(Pfcc::PPRX, heeded.into());
        pfcc.set(Pfcc::PRIO_MASK_TX, 0xff).set(Pfcc::PRIO_MASK_RX, 0xff);
        pfcc.set(Pfcc::PFCTX, priorities.into()).set(Pfcc::PFCRX, priorities.into());
        let input = [input.bytes(), &pfcc.bytes()[..]].concat();
        self.hca.execute(Opcode::AccessReg, 0, input, 16 + Pfcc::SIZE).expect("ACCESS_REG");
    }
}

/// Stations and their time.
pub struct Lan {
    /// Time and world.
    pub simulation: Simulation,
    /// The stations.
    pub stations: Vec<Station>,
}

impl Lan {
    /// The stations of a world, whose ports are up.
    pub fn new(world: World) -> Self {
        let simulation = Simulation::new(world);
        let count = simulation.world(|world, _| world.hcas());
        let mut stations: Vec<_> = (0..count).map(|id| Station::new(&simulation, id)).collect();
        for station in &mut stations {
            let mut left = 100_000;
            while !station.hca.vport_is_up().expect("QUERY_VPORT_STATE") {
                station.hca.wait(None);
                left -= 1;
                assert!(left > 0, "the port does not come up");
            }
        }
        Self { simulation, stations }
    }

    /// Two stations on a cable.
    pub fn cable() -> Self {
        Self::linked(worlds::cable(HcaId(0), HcaId(1)))
    }

    /// Two stations of that kind on a cable.
    pub fn of_kind(name: &str) -> Self {
        let mut config = worlds::config(2, vec![worlds::cable(HcaId(0), HcaId(1))], 1);
        worlds::set_kind(&mut config, name);
        Self::new(ethernet(config))
    }

    /// Two stations on that link.
    pub fn linked(link: LinkConfig) -> Self {
        Self::new(ethernet(worlds::config(2, vec![link], 1)))
    }

    /// So many stations at a switch.
    pub fn switch(stations: u8) -> Self {
        Self::switched(&Plan::around(&[stations], 0), Queueing::default())
    }

    /// Stations and switches, all of which queue like that.
    pub fn switched(plan: &Plan, queueing: Queueing) -> Self {
        let mut config = plan.config(1);
        config.switches.iter_mut().for_each(|switch| switch.queueing = queueing);
        Self::new(ethernet(config))
    }

    /// Two stations on a cable, of which the second is as slow as its one lane of PCIe.
    pub fn slow_cable() -> Self {
        Self::long_slow_cable(Ps::from_ns(5))
    }

    /// The same on a cable with that propagation time.
    pub fn long_slow_cable(delay: Ps) -> Self {
        let text = Profile::text("connectx4").expect("it is built in");
        let slow = text.replacen("\nlanes = 16", "\nlanes = 1", 1);
        assert_ne!(slow, text, "the profile has lanes of PCIe");
        let slow = Profile::from_toml(&slow).expect("a profile");
        let mut config =
            worlds::config(2, vec![LinkConfig { delay, ..worlds::cable(HcaId(0), HcaId(1)) }], 1);
        config.hcas[1].timing = Some(slow);
        Self::new(ethernet(config))
    }

    /// Lets everything happen that was begun.
    pub fn run(&self) {
        self.simulation.run(SOON);
    }

    /// What a station's port counted.
    pub fn counted(&self, station: usize) -> EthernetCounters {
        let counters = self.simulation.world(|world, _| world.ethernet_counters(HcaId(station)).cloned());
        counters.expect("an Ethernet port")
    }
}

/// A world whose ports are Ethernet.
pub fn ethernet(mut config: hca_model::WorldConfig) -> World {
    config.hcas.iter_mut().for_each(|hca| hca.firmware.port_kind = PortKind::Ethernet);
    config.switches.iter_mut().for_each(|switch| switch.firmware.kind = PortKind::Ethernet);
    World::new(config).expect("a valid topology")
}
