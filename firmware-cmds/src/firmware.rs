//! The firmware's state.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

use hca_spec::caps::{Atomic, General, Odp, Roce};
use hca_spec::eqe::EventType;

use crate::device_memory::DeviceMemory;
use crate::disposal::Disposal;
use crate::effect::Effect;
use crate::failure::Refusal;
use crate::function::FunctionId;
use crate::icm::Icm;
use crate::limits::{GUIDS, PKEYS, ROCE_ADDRESSES};
use crate::list::Input;
use crate::nic::NicVport;
use crate::object::Kind;
use crate::pages::Pages;
use crate::personality::{Personality, PortKind};
use crate::ports::Ports;
use crate::profile::Config;
use crate::steering::{Offer, Steering};
use crate::sw_icm::SwIcm;
use crate::virtual_functions::Capabilities;

/// How far the driver has brought the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum State {
    /// Before ENABLE_HCA.
    #[default]
    Disabled,
    /// After ENABLE_HCA.
    Enabled,
    /// After INIT_HCA.
    Initialized,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Execution {
    /// Executed: its output, status included.
    Done(Vec<u8>),
    /// No page is left for the object. The command has to be tried again after the next MANAGE_PAGES;
    /// nothing was changed.
    NeedPages,
}

/// Counts of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each counts the objects of its name")]
pub struct Snapshot {
    pub eqs: u32,
    pub cqs: u32,
    pub qps: u32,
    pub srqs: u32,
    pub dcts: u32,
    pub rqs: u32,
    pub rqts: u32,
    pub tirs: u32,
    pub tiss: u32,
    pub mkeys: u32,
    pub pds: u32,
    pub xrcds: u32,
    pub transport_domains: u32,
    pub uars: u32,
    pub multicast_groups: u32,
    pub user_contexts: u32,
    pub user_memories: u32,
    pub general_objects: u32,
    pub flow_tables: u32,
    pub flow_groups: u32,
    pub flow_entries: u32,
    pub flow_counters: u32,
    /// Pages that the host gave and did not get back.
    pub pages: u32,
}

impl Snapshot {
    /// The kinds of objects of which there are some, with their counts; pages are none.
    pub fn objects(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let all = [
            ("EQs", self.eqs),
            ("CQs", self.cqs),
            ("QPs", self.qps),
            ("SRQs", self.srqs),
            ("DCTs", self.dcts),
            ("RQs", self.rqs),
            ("RQTs", self.rqts),
            ("TIRs", self.tirs),
            ("TISs", self.tiss),
            ("mkeys", self.mkeys),
            ("PDs", self.pds),
            ("XRCDs", self.xrcds),
            ("transport domains", self.transport_domains),
            ("UAR pages", self.uars),
            ("multicast groups", self.multicast_groups),
            ("user contexts", self.user_contexts),
            ("user memories", self.user_memories),
            ("general objects", self.general_objects),
            ("flow tables", self.flow_tables),
            ("flow groups", self.flow_groups),
            ("flow table entries", self.flow_entries),
            ("flow counters", self.flow_counters),
        ];
        all.into_iter().filter(|(_, count)| *count > 0)
    }
}

/// Pages that the host has given, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageAccounts {
    /// Pages that the host gave and did not get back.
    pub given: u32,
    /// Of those, in use for objects.
    pub used: u32,
    /// Pages that were asked for by an event and have not come.
    pub asked: u32,
    /// Pages that are missing before INIT_HCA.
    pub missing_for_boot: u32,
    /// Pages that are missing before the adapter works.
    pub missing_for_init: u32,
    /// Bytes of all objects.
    pub object_bytes: u64,
}

/// Objects that the adapter holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// Now.
    pub now: Snapshot,
    /// When the driver last executed DISABLE_HCA, before anything was dropped: what it left behind.
    pub at_last_teardown: Option<Snapshot>,
}

/// The firmware of a function: what its driver brings up and makes.
pub struct Firmware {
    /// The tables of contexts.
    pub icm: Icm,
    /// The NIC virtual port.
    pub nic: NicVport,
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) issi: u32,
    pub(crate) general: General,
    pub(crate) general_max: General,
    pub(crate) atomic: Atomic,
    pub(crate) odp: Odp,
    pub(crate) roce: Roce,
    /// What a virtual function can do at most, once its driver has enabled it.
    pub(crate) granted: Option<Box<Capabilities>>,
    /// Least times between interrupts of vectors, us.
    pub(crate) interrupt_delays: BTreeMap<u16, u16>,
    pub(crate) pages: Pages,
    /// Those of the adapter; of a function that shares them with others, only while a command is executed.
    pub ports: Ports,
    pub(crate) at_last_teardown: Option<Snapshot>,
    /// Objects at TEARDOWN_HCA, until DISABLE_HCA adds the pages.
    pub(crate) teardown_snapshot: Option<Snapshot>,
    /// Opcodes that are not known and were told of.
    pub(crate) unknown: HashSet<u16>,
    pub(crate) refusal: Option<Refusal>,
    /// Where its objects go when all go at once.
    pub disposal: Disposal,
}

/// Empty tables of what such a function can have.
fn tables(config: &Config) -> Icm {
    let offer = match config.port_kind {
        PortKind::InfiniBand => Offer::none(),
        PortKind::Ethernet => config.personality.capabilities.ethernet.steering,
    };
    let device_memory = DeviceMemory::new(&config.personality.capabilities.device_memory);
    let icm = Icm::new(config.function).with_device_memory(device_memory);
    let mut steering = Steering::new(offer);
    if offer.has_software() {
        steering.memory = SwIcm::new(&config.personality.capabilities.device_memory);
    }
    Icm { steering, ..icm }
}

/// Takes text in and gives a number for it.
struct Digest(DefaultHasher);

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Firmware {
    /// A number for all that commands change: adapters with different numbers are in different states. What is secret has no part in it
    /// (keys of data), nor have lists that are kept as they are. To compare two adapters that were made alike, not to be kept.
    pub fn fingerprint(&self) -> u64 {
        let Self {
            icm,
            nic,
            config: _,
            state,
            issi,
            general,
            general_max: _,
            atomic,
            odp,
            roce,
            granted,
            interrupt_delays,
            pages,
            ports,
            at_last_teardown: _,
            teardown_snapshot,
            unknown: _,
            refusal: _,
            disposal: _,
        } = self;
        let mut digest = Digest(DefaultHasher::new());
        // It never fails.
        _ = write!(digest, "{icm:?} {nic:?} {state:?} {issi} {general:?} {atomic:?} {odp:?} {roce:?}");
        _ = write!(digest, "{interrupt_delays:?} {} {teardown_snapshot:?} {granted:?}", pages.given());
        // What the firmware's tracer has seen tells of every command that there was one.
        let Ports { ports, settings, pcie, sync_reset, virtual_functions, .. } = ports;
        _ = write!(digest, "{ports:?} {settings:?} {pcie:?} {sync_reset:?} {virtual_functions:?}");
        digest.0.finish()
    }

    /// An adapter at power-on.
    pub fn new(config: Config) -> Self {
        let most = Capabilities::most(&config);
        let Capabilities { general, atomic, odp, roce } = most.initial(&config);
        Self {
            icm: tables(&config),
            nic: NicVport::new(&config),
            ports: Ports::new(config.clone()),
            state: State::Disabled,
            issi: 0,
            general,
            general_max: most.general,
            atomic,
            odp,
            roce,
            granted: None,
            interrupt_delays: BTreeMap::new(),
            pages: Pages::new(config.icm_pages),
            at_last_teardown: None,
            teardown_snapshot: None,
            unknown: HashSet::new(),
            refusal: None,
            disposal: Disposal::default(),
            config,
        }
    }

    /// Function level reset: everything to power-on. What the last teardown left is remembered.
    pub fn reset(&mut self) {
        let new = Self { disposal: self.disposal.clone(), ..Self::new(self.config.clone()) };
        let Self { icm, pages, at_last_teardown, .. } = std::mem::replace(self, new);
        self.at_last_teardown = at_last_teardown;
        self.disposal.give((icm, pages));
    }

    /// The adapter's firmware starts, with ports of that kind.
    pub fn restart(&mut self, kind: PortKind) {
        self.config.port_kind = kind;
        self.reset();
    }

    /// What the function can do now.
    pub(crate) fn current(&self) -> Capabilities {
        Capabilities { general: self.general, atomic: self.atomic, odp: self.odp, roce: self.roce }
    }

    /// From now on the function can do that.
    pub(crate) fn set_current(&mut self, current: Capabilities) {
        Capabilities { general: self.general, atomic: self.atomic, odp: self.odp, roce: self.roce } = current;
    }

    /// The most that the function can do now.
    pub(crate) fn most(&self) -> Capabilities {
        match &self.granted {
            Some(granted) => **granted,
            None => Capabilities { general: self.general_max, ..Capabilities::most(&self.config) },
        }
    }

    /// How far the driver has brought the adapter.
    pub fn state(&self) -> State {
        self.state
    }

    /// Identity and options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Of which kind the adapter is.
    pub fn personality(&self) -> &Personality {
        &self.config.personality
    }

    /// Whether send WQEs may come with their doorbell (BlueFlame).
    pub fn blueflame(&self) -> bool {
        self.config.blueflame
    }

    /// The least time between two interrupts of a vector, in us; 0: they come as they come.
    pub fn interrupt_delay(&self, vector: u16) -> u16 {
        self.interrupt_delays.get(&vector).copied().unwrap_or(0)
    }

    /// Whether its ports are Ethernet.
    pub fn is_ethernet(&self) -> bool {
        self.config.port_kind == PortKind::Ethernet
    }

    /// Whether its ports are InfiniBand.
    pub fn is_infiniband(&self) -> bool {
        self.config.port_kind == PortKind::InfiniBand
    }

    /// Whether it has send queues without a queue pair: on InfiniBand ports only to test BlueFlame.
    pub fn has_send_queues(&self) -> bool {
        self.is_ethernet() || self.blueflame()
    }

    /// Whether programs can have memory of the adapter's own.
    pub fn has_device_memory(&self) -> bool {
        self.general_max.get(General::DEVICE_MEMORY) == 1
    }

    /// What may meet a page that is not present.
    pub fn paging(&self) -> &Odp {
        &self.odp
    }

    /// Executes a command about these ports: a function has the ports of its chip while it executes. `reaches` says whether
    /// a page at a bus address is in the host's memory.
    pub fn execute_at(
        &mut self,
        ports: &mut Ports,
        reaches: &dyn Fn(u64) -> bool,
        input: Input<'_>,
        output_len: usize,
        effects: &mut Vec<Effect>,
    ) -> Execution {
        std::mem::swap(&mut self.ports, ports);
        let execution = self.execute_with(reaches, input, output_len, effects);
        std::mem::swap(&mut self.ports, ports);
        execution
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let count = |kind| self.icm.objects(kind);
        Snapshot {
            eqs: count(Kind::Eq),
            cqs: count(Kind::Cq),
            qps: count(Kind::Qp),
            srqs: count(Kind::Srq),
            dcts: count(Kind::Dct),
            rqs: count(Kind::Rq),
            rqts: count(Kind::Rqt),
            tirs: count(Kind::Tir),
            tiss: count(Kind::Tis),
            mkeys: count(Kind::Mkey),
            pds: count(Kind::Pd),
            xrcds: count(Kind::Xrcd),
            transport_domains: count(Kind::TransportDomain),
            uars: count(Kind::Uar),
            multicast_groups: self.icm.mcgs.len() as u32,
            user_contexts: count(Kind::UserContext),
            user_memories: count(Kind::Umem),
            general_objects: count(Kind::GeneralObject),
            flow_tables: count(Kind::FlowTable),
            flow_groups: count(Kind::FlowGroup),
            flow_entries: self.icm.steering.entries(),
            flow_counters: count(Kind::FlowCounter),
            pages: self.pages.given(),
        }
    }

    /// Objects that the adapter holds.
    pub fn resources(&self) -> Resources {
        Resources { now: self.snapshot(), at_last_teardown: self.at_last_teardown }
    }

    /// Drops every object.
    pub(crate) fn drop_objects(&mut self, effects: &mut Vec<Effect>) {
        let objects = std::mem::replace(&mut self.icm, tables(&self.config));
        self.disposal.give(objects);
        self.pages.account(0);
        effects.push(Effect::AllGone);
    }

    /// Drops every object but event queues, and the pages that they are armed by.
    pub(crate) fn drop_all_but_events(&mut self, effects: &mut Vec<Effect>) {
        let mut left = tables(&self.config);
        std::mem::swap(&mut left.eqs, &mut self.icm.eqs);
        std::mem::swap(&mut left.uars, &mut self.icm.uars);
        let gone = std::mem::replace(&mut self.icm, left);
        self.disposal.give(gone);
        self.account_pages();
        effects.push(Effect::AllButEventsGone);
    }

    /// The driver has disabled the function by its register: it reaches for no memory of the host any more. `ports`: of its
    /// chip.
    pub fn disable(&mut self, ports: &mut Ports, effects: &mut Vec<Effect>) {
        if self.state == State::Disabled || (self.state == State::Enabled && self.icm.eqs.is_empty()) {
            return;
        }
        self.drop_objects(effects);
        ports.sync_reset.hears(self.config.function, false, effects);
        self.state = State::Enabled;
    }

    /// Entries of its ports' tables: P_Keys, and GIDs, of which Ethernet ports have those of RoCE addresses.
    pub(crate) fn port_tables(&self) -> (usize, usize) {
        match self.config.port_kind {
            PortKind::InfiniBand => (PKEYS, GUIDS),
            PortKind::Ethernet => (1, ROCE_ADDRESSES),
        }
    }

    /// What the driver said of its ports is forgotten: it is gone. The ports are those of the first function.
    pub(crate) fn forget_driver(&mut self) {
        self.nic = NicVport::new(&self.config);
        if self.config.function == FunctionId::FIRST {
            for number in self.ports.numbers() {
                if let Some(port) = self.ports.port_mut(number) {
                    port.forget_roce_addresses();
                }
            }
        }
    }

    /// Counts what is in use now. How many pages to ask the host for, if any.
    pub(crate) fn account_pages(&mut self) -> Option<u32> {
        self.pages.account(self.icm_used());
        if self.host_serves_pages() {
            self.pages.want()
        } else {
            self.pages.forget_request();
            None
        }
    }

    /// What there was at TEARDOWN_HCA, until DISABLE_HCA.
    pub fn at_teardown(&self) -> Option<Snapshot> {
        self.teardown_snapshot
    }

    /// The accounts of pages.
    pub fn page_accounts(&self) -> PageAccounts {
        PageAccounts {
            given: self.pages.given(),
            used: self.pages.used(),
            asked: self.pages.regular(),
            missing_for_boot: self.pages.boot(),
            missing_for_init: self.pages.init(),
            object_bytes: self.icm_used(),
        }
    }

    /// Addresses of the pages that the host has given and not got back, in order.
    pub fn given_pages(&self) -> impl Iterator<Item = u64> {
        self.pages.all()
    }

    /// Why the command executed last was refused; taken by whoever keeps the diagnoses.
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// Whether an event queue asked for page requests.
    pub(crate) fn host_serves_pages(&self) -> bool {
        self.icm.eqs.iter().any(|(_, eq)| eq.wants(EventType::PageRequest as u8))
    }

    /// Bytes of ICM that all objects use.
    pub(crate) fn icm_used(&self) -> u64 {
        /// A page in the page list of a queue.
        const PAGE_LIST_ENTRY: u64 = 8;
        /// A queue in a table of receive queues.
        const RQT_ENTRY: u64 = 4;
        let objects = |kind: &Kind| u64::from(self.icm.objects(*kind)) * kind.icm_bytes();
        let tables = Kind::ALL.iter().filter(|kind| kind.numbered_as() == **kind);
        tables.map(objects).sum::<u64>()
            + self.icm.translation_bytes
            + self.icm.page_lists * PAGE_LIST_ENTRY
            + self.icm.steering.icm_bytes()
            + self.icm.rqt_entries * RQT_ENTRY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::two_ports;
    use crate::port::PortLink;
    use crate::speed::LinkSpeed;
    use hca_spec::eqe::port_change;
    use hca_spec::mad::{
        CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_SET, Mad, NodeInfo, PortInfo, attr, port_state,
    };

    fn event(sub_type: u8) -> Effect {
        Effect::PortChange { port: 1, sub_type }
    }

    #[test]
    fn the_link_comes_and_goes() {
        let mut f = Firmware::new(Config::default());
        let mut effects = Vec::new();
        f.ports.set_link(1, None, &mut effects);
        f.ports.set_link(2, Some(PortLink::default()), &mut effects);
        assert_eq!(effects, [], "nothing changed");
        f.ports.set_link(1, Some(PortLink { width: 1, speed: LinkSpeed::Fdr }), &mut effects);
        f.ports.set_link(1, Some(PortLink { width: 1, speed: LinkSpeed::Fdr }), &mut effects);
        assert_eq!(effects, [event(port_change::INITIALIZED)]);
        let info = f.ports.ports[0].port.info();
        assert_eq!((info.get(PortInfo::LINK_WIDTH_ACTIVE), info.get(PortInfo::LINK_SPEED_ACTIVE)), (1, 4));
        assert_eq!(info.get(PortInfo::LINK_SPEED_EXT_ACTIVE), 1);
        f.ports.set_link(1, None, &mut effects);
        assert_eq!(effects[1..], [event(port_change::DOWN)]);
        assert_eq!(
            (f.ports.ports[0].port.counters.link_downed, f.ports.ports[0].port.state),
            (1, port_state::DOWN)
        );
        f.reset();
        assert_eq!(f.ports.ports[0].port.counters.link_downed, 0);
    }

    /// Each port has its own state, LID and identity; a port that is not there has none.
    #[test]
    fn an_adapter_with_two_ports() {
        let mut f = Firmware::new(two_ports());
        let mut effects = Vec::new();
        assert_eq!(
            (f.ports.numbers(), f.ports.port(0).is_some(), f.ports.port(3).is_some()),
            (1..=2, false, false)
        );
        f.ports.set_link(2, Some(PortLink::default()), &mut effects);
        assert_eq!(effects, [Effect::PortChange { port: 2, sub_type: port_change::INITIALIZED }]);
        let states = |f: &Firmware| f.ports.ports.iter().map(|p| p.port.state).collect::<Vec<_>>();
        assert_eq!(states(&f), [port_state::DOWN, port_state::INIT]);
        let mut get = Mad::new();
        get.set(Mad::BASE_VERSION, 1).set(Mad::CLASS_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED);
        get.set(Mad::METHOD, METHOD_GET).set(Mad::ATTRIBUTE_ID, attr::NODE_INFO);
        let node = *f.ports.mad(2, &get, &mut effects).unwrap().node_info();
        assert_eq!((node.get(NodeInfo::NUM_PORTS), node.get(NodeInfo::LOCAL_PORT_NUM)), (2, 2));
        assert_eq!(node.get(NodeInfo::PORT_GUID), f.config.port_guid + 1);
        assert_eq!(f.ports.mad(3, &get, &mut effects), None);
        get.set(Mad::ATTRIBUTE_ID, attr::PORT_INFO).set(Mad::ATTRIBUTE_MODIFIER, 1);
        assert_ne!(f.ports.mad(2, &get, &mut effects).unwrap().get(Mad::STATUS), 0, "another port");
        get.set(Mad::METHOD, METHOD_SET).set(Mad::ATTRIBUTE_MODIFIER, 2);
        *get.port_info_mut() = f.ports.ports[1].port.info();
        get.port_info_mut().set(PortInfo::LID, 9).set(PortInfo::PORT_STATE, port_state::ARMED);
        assert_eq!(f.ports.mad(2, &get, &mut effects).unwrap().get(Mad::STATUS), 0);
        assert_eq!(f.ports.ports.iter().map(|p| p.port.lid().0).collect::<Vec<_>>(), [0, 9]);
        assert_eq!(states(&f), [port_state::DOWN, port_state::ARMED]);
    }
}
