//! Hosts and switches of an incast, brought up through our driver.

use hca_driver::eth::{Hop, Mac, RoceAddress, RoceVersion, ipv4_gid};
use hca_driver::qp::{Path, QpConfig};
use hca_driver::{
    Access, Bus, Config, Cq, CqConfig, Dma, Hca, InitAttr, Mr, Qp, RtrAttr, RtsAttr, SendOp, SendRequest, Sge,
};
use hca_firmware::PortKind;
use hca_model::link::Faults;
use hca_model::timing::Profile;
use hca_model::{
    HcaConfig, HcaId, LinkConfig, LinkEnd, PortRef, PriorityQueue, Ps, Queueing, SwitchConfig, SwitchId,
    World, WorldConfig,
};
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::Opcode;
use hca_spec::congestion::{
    CongParamsIn, CongStatisticsIn, CongStatisticsOut, CongStatusIn, MODIFY_PARAMS, NotificationParams,
    ReactionParams, protocol,
};
use hca_spec::ids::{Gid, Pd, Qpn};
use hca_spec::register::Pfcc;

use super::{Conditions, Incast};
use crate::Error;
use crate::in_process::{ModelBus, ModelMemory, Simulation};

/// Priority of the traffic.
pub(super) const PRIORITY: u8 = 3;
/// Bytes of a message.
pub(super) const MESSAGE: usize = 64 << 10;
/// Messages of a sender that are under way.
const WINDOW: u64 = 16;
/// VLAN of its tag.
const VLAN: u16 = 7;
/// Place of the addresses in the ports' tables.
const INDEX: u8 = 3;
/// Payload of a packet, and its code.
pub(super) const PAYLOAD: usize = 1024;
const MTU: u8 = 3;
/// Memory of a host.
const MEMORY: usize = 16 << 20;
/// Polls of a port before it is given up.
const POLLS: u32 = 1_000_000;
/// What a cable takes: 10 m.
const CABLE: Ps = Ps::from_ns(50);
/// Cables between a switch of the first tier and each of the second.
const SPINES: u8 = 2;
/// Switches of the first tier with senders, of two tiers.
const LEAVES: u8 = 2;

/// The hosts.
pub(super) struct Site {
    receiver: Host,
    senders: Vec<Sender>,
    /// Queue pairs of the receiver.
    queue_pairs: Vec<Qpn>,
}

/// A host that writes.
struct Sender {
    hca: Hca<ModelBus>,
    cq: Cq<ModelMemory>,
    qp: Qp<ModelMemory>,
    source: Sge,
    posted: u64,
    done: u64,
    /// A request failed: the connection is over.
    failed: bool,
}

struct Host {
    hca: Hca<ModelBus>,
    mac: Mac,
    cq: Cq<ModelMemory>,
    memory: ModelMemory,
    region: Mr,
    pd: Pd,
}

impl Site {
    /// All hosts with their connections.
    pub(super) fn bring_up(sim: &Simulation, incast: &Incast) -> Result<Self, Error> {
        let mut receiver = Host::new(sim, 0, incast)?;
        let (mut senders, mut queue_pairs) = (Vec::new(), Vec::new());
        for number in 1..=u8::try_from(incast.senders).unwrap_or(u8::MAX) {
            let (sender, peer) = Host::new(sim, number, incast)?.connect(&mut receiver, number)?;
            senders.push(sender);
            queue_pairs.push(peer);
        }
        Ok(Self { receiver, senders, queue_pairs })
    }

    /// Takes completions, and posts as many requests as may be under way.
    pub(super) fn post(&mut self) -> Result<(), Error> {
        let to = &self.receiver.region;
        self.senders.iter_mut().try_for_each(|sender| sender.post(to))
    }

    /// Bytes of payload that the receiver took of each sender.
    pub(super) fn taken(&self, sim: &Simulation) -> Vec<u64> {
        let qps = sim.world(|world, _| world.counters(HcaId(0)).map(|c| c.qps).unwrap_or_default());
        let of = |qpn: &Qpn| qps.iter().find(|qp| qp.qpn == *qpn).map_or(0, |qp| qp.counters.executed_bytes);
        self.queue_pairs.iter().map(of).collect()
    }

    /// Request packets that were built, and what messages have that were begun.
    pub(super) fn packets(&self, sim: &Simulation) -> [u64; 2] {
        let of =
            |id| sim.world(|world, _| world.totals(HcaId(id)).map(|c| c.adapter.traffic)).unwrap_or_default();
        let all: Vec<_> = (1..=self.senders.len()).map(of).collect();
        let begun = all.iter().map(|of| of.requests_started * (MESSAGE / PAYLOAD) as u64);
        [all.iter().map(|of| of.request_packets).sum(), begun.sum()]
    }

    /// CNPs that the receiver sent.
    pub(super) fn told(&mut self) -> Result<u64, Error> {
        let input = CongStatisticsIn::new().bytes().to_vec();
        let out =
            self.receiver.hca.execute(Opcode::QueryCongStatistics, 0, input, CongStatisticsOut::SIZE)?;
        Ok(CongStatisticsOut::from_prefix_or_zero(&out).get(CongStatisticsOut::NP_CNP_SENT))
    }

    /// Connections that broke.
    pub(super) fn broken(&self) -> usize {
        self.senders.iter().filter(|sender| sender.failed).count()
    }
}

fn gid(number: u8) -> Gid {
    ipv4_gid([10, 0, 0, number.wrapping_add(1)])
}

impl Host {
    fn new(sim: &Simulation, number: u8, incast: &Incast) -> Result<Self, Error> {
        let mut hca = Hca::open(sim.bus(HcaId(number.into()), MEMORY), Config::default())?;
        let mut left = POLLS;
        while !hca.vport_is_up()? {
            hca.wait(None);
            left = left.checked_sub(1).ok_or(Error::new("a port does not come up"))?;
        }
        let mac = hca.mac()?;
        hca.set_roce(true)?;
        let address = RoceAddress { gid: gid(number), mac, vlan: Some(VLAN), version: RoceVersion::V2 };
        hca.set_roce_address(1, INDEX, Some(&address))?;
        flow_control(&mut hca, incast.control.pfc)?;
        congestion_control(&mut hca, incast.control.dcqcn.then_some(&incast.conditions))?;
        let pd = hca.alloc_pd()?;
        let cq = hca.create_cq(CqConfig::new(64))?;
        let memory =
            hca.bus_mut().dma_alloc(MESSAGE, 4096).ok_or(Error::new("the host's memory is used up"))?;
        let region = hca.register(pd, &memory, MESSAGE, Access::ALL)?;
        Ok(Self { hca, mac, cq, memory, region, pd })
    }

    fn queue_pair(&mut self) -> Result<Qp<ModelMemory>, Error> {
        let mut qp = self.hca.create_qp(&QpConfig::rc(self.pd, &self.cq, &self.cq))?;
        self.hca.qp_to_init(&mut qp, &InitAttr { access: Access::ALL, ..InitAttr::default() })?;
        Ok(qp)
    }

    fn bring_up(
        &mut self,
        qp: &mut Qp<ModelMemory>,
        peer: &Qp<ModelMemory>,
        (number, mac): (u8, Mac),
    ) -> Result<(), Error> {
        let hop = Hop { priority: PRIORITY, ..Hop::to(mac) };
        let path = Path::roce(gid(number), INDEX, hop);
        self.hca.qp_to_rtr(qp, &RtrAttr { mtu: MTU, ..RtrAttr::new(peer.number(), path) })?;
        self.hca.qp_to_rts(qp, &RtsAttr::default())?;
        Ok(())
    }

    /// A connection from this host to the receiver, and the receiver's queue pair.
    fn connect(mut self, receiver: &mut Host, number: u8) -> Result<(Sender, Qpn), Error> {
        let (mut near, mut far) = (self.queue_pair()?, receiver.queue_pair()?);
        self.bring_up(&mut near, &far, (0, receiver.mac))?;
        receiver.bring_up(&mut far, &near, (number, self.mac))?;
        let source = Sge { address: self.region.address, len: MESSAGE as u32, key: self.region.key };
        self.memory.write(0, &[1]);
        let sender =
            Sender { hca: self.hca, cq: self.cq, qp: near, source, posted: 0, done: 0, failed: false };
        Ok((sender, far.number()))
    }
}

impl Sender {
    fn post(&mut self, to: &Mr) -> Result<(), Error> {
        while let Some(completion) = self.cq.poll() {
            self.qp.finish(&completion);
            self.failed |= completion.status.is_err();
            self.done += u64::from(completion.status.is_ok());
        }
        while !self.failed && self.posted < self.done + WINDOW {
            let op = SendOp::Write { address: to.address, rkey: to.key, imm: None };
            let source = [self.source];
            self.qp.post_send(self.hca.bus_mut(), &SendRequest::new(self.posted, op, &source))?;
            self.posted += 1;
        }
        Ok(())
    }
}

/// PFC for the traffic's priority, or nothing (register PFCC).
fn flow_control(hca: &mut Hca<ModelBus>, pfc: bool) -> Result<(), Error> {
    let mut input = AccessRegIn::new();
    input.set(AccessRegIn::REGISTER_ID, reg::PFCC);
    let lanes = if pfc { 1 << PRIORITY } else { 0 };
    let mut pfcc = Pfcc::new();
    pfcc.set(Pfcc::LOCAL_PORT, 1).set(Pfcc::PRIO_MASK_TX, 0xff).set(Pfcc::PRIO_MASK_RX, 0xff);
    pfcc.set(Pfcc::PFCTX, lanes).set(Pfcc::PFCRX, lanes);
    hca.execute(Opcode::AccessReg, 0, [input.bytes(), &pfcc.bytes()[..]].concat(), 16 + Pfcc::SIZE)?;
    Ok(())
}

/// These parameters, or nothing.
fn congestion_control(hca: &mut Hca<ModelBus>, how: Option<&Conditions>) -> Result<(), Error> {
    for which in [protocol::REACTION_POINT, protocol::NOTIFICATION_POINT] {
        for priority in 0..8 {
            let mut input = CongStatusIn::new();
            input.set(CongStatusIn::CONG_PROTOCOL, which).set(CongStatusIn::PRIORITY, priority);
            input.set(CongStatusIn::ENABLE, how.is_some().into());
            hca.execute(Opcode::ModifyCongStatus, 0, input.bytes().to_vec(), 16)?;
        }
    }
    let Some(&Conditions { timers: [rise, cut, tell, alpha], bytes, threshold, increases, clamp, .. }) = how
    else {
        return Ok(());
    };
    let mut rp = ReactionParams::new();
    rp.set(ReactionParams::CLAMP_TGT_RATE, clamp.into()).set(ReactionParams::RPG_TIME_RESET, rise);
    rp.set(ReactionParams::RPG_BYTE_RESET, bytes).set(ReactionParams::RPG_THRESHOLD, threshold);
    rp.set(ReactionParams::RPG_AI_RATE, increases[0]).set(ReactionParams::RPG_HAI_RATE, increases[1]);
    // g = 1/256, in both papers.
    rp.set(ReactionParams::DCE_TCP_G, 1020).set(ReactionParams::DCE_TCP_RTT, alpha);
    rp.set(ReactionParams::RATE_REDUCE_MONITOR_PERIOD, cut).set(ReactionParams::RPG_MIN_RATE, 10);
    let mut np = NotificationParams::new();
    np.set(NotificationParams::MIN_TIME_BETWEEN_CNPS, tell);
    // Bits of the fields above, as the driver has them: "clamp" to "monitor period".
    let fields = [1, 3, 4, 5, 7, 8, 10, 12, 13, 14].into_iter().fold(0, |bits, bit| bits | 1 << bit);
    for (which, fields, params) in [(1, fields, &rp.bytes()[..]), (2, 1 << 2, &np.bytes()[..])] {
        let mut input = CongParamsIn::new();
        input.set(CongParamsIn::CONG_PROTOCOL, which).set(CongParamsIn::FIELD_SELECT, fields);
        let mut bytes = input.bytes().to_vec();
        bytes.resize(MODIFY_PARAMS, 0);
        bytes.extend_from_slice(params);
        hca.execute(Opcode::ModifyCongParams, 0, bytes, 16)?;
    }
    Ok(())
}

/// A cable: a host and the switch's port, or two ports of switches.
type Cable = [LinkEnd; 2];

fn port(switch: usize, port: u8) -> LinkEnd {
    PortRef::of_switch(SwitchId(switch), port).into()
}

/// Ports of each switch, the receiver's first, and the cables. Port 1 of the first switch is the receiver's.
fn wiring(senders: usize, tiers: u8) -> Option<(Vec<u8>, Vec<Cable>)> {
    let host = |number: u8| LinkEnd::from(HcaId(number.into()));
    let all = u8::try_from(senders).ok().filter(|all| (1..=60).contains(all))?;
    if tiers == 1 {
        let cables = (0..=all).map(|n| [host(n), port(0, n + 1)]).collect();
        return Some((vec![all + 1], cables));
    }
    // Switch 0 with the receiver, 1 and 2 with senders by turns, then those of the second tier.
    let each = all.div_ceil(LEAVES);
    let mut ports = vec![1 + SPINES];
    let mut cables = vec![[host(0), port(0, 1)]];
    for n in 1..=all {
        let (leaf, place) = ((n - 1) % LEAVES, (n - 1) / LEAVES);
        cables.push([host(n), port(1 + usize::from(leaf), 1 + place)]);
    }
    ports.extend((0..LEAVES).map(|_| each + SPINES));
    ports.extend((0..SPINES).map(|_| 1 + LEAVES));
    for (n, spine) in (0..SPINES).zip(1 + usize::from(LEAVES)..) {
        cables.push([port(0, 2 + n), port(spine, 1)]);
        for leaf in 0..LEAVES {
            cables.push([port(1 + usize::from(leaf), each + 1 + n), port(spine, 2 + leaf)]);
        }
    }
    (tiers == 2).then_some((ports, cables))
}

/// All ports of the switches.
pub(super) fn switch_ports(incast: &Incast) -> Vec<PortRef> {
    let (ports, _) = wiring(incast.senders, incast.tiers).unwrap_or_default();
    let of = |(switch, ports): (usize, u8)| (1..=ports).map(move |n| PortRef::of_switch(SwitchId(switch), n));
    ports.into_iter().enumerate().flat_map(of).collect()
}

/// The hosts' adapters, the receiver's first, and the switches.
pub(super) fn world(incast: &Incast) -> Result<World, Error> {
    let Incast { senders, tiers, conditions: Conditions { link, buffer, red, .. }, control, .. } = *incast;
    let (ports, cables) =
        wiring(senders, tiers).ok_or(Error::new("--senders must be 1 to 60, --tiers 1 or 2"))?;
    let hca = |i: usize| {
        let mut firmware = hca_firmware::Config::with_guid(0x0002_c903_00b0_0001 + i as u64 * 0x100);
        firmware.port_kind = PortKind::Ethernet;
        HcaConfig { name: format!("hca{i}"), firmware, timing: None }
    };
    let mut queueing = Queueing { buffer, ..Queueing::default() };
    if let Some(queue) = queueing.priorities.get_mut(usize::from(PRIORITY)) {
        let alpha = if control.pfc { PriorityQueue::LOSSLESS_ALPHA } else { PriorityQueue::LOSSY_ALPHA };
        let ecn = control.dcqcn.then_some(red);
        *queue = PriorityQueue { lossless: control.pfc, alpha, ecn, weight: None };
    }
    let switch = |(i, ports): (usize, u8)| {
        let guid = 0x0002_c903_00b8_0000 + i as u64 * 0x100;
        let firmware = hca_firmware::SwitchConfig {
            node_guid: guid,
            system_image_guid: guid,
            node_description: format!("switch{i}"),
            ports,
            kind: PortKind::Ethernet,
        };
        SwitchConfig { name: format!("switch{i}"), firmware, queueing }
    };
    let cable = |ends: Cable| LinkConfig {
        ends,
        rate: link.rate,
        width: link.width,
        line: None,
        delay: CABLE,
        faults: Faults::default(),
        seed: None,
        room: 1,
    };
    let mut profile = Profile::connectx4();
    profile.set_link_training(Ps::from_us(1));
    let config = WorldConfig {
        hcas: (0..=senders).map(hca).collect(),
        switches: ports.into_iter().enumerate().map(switch).collect(),
        links: cables.into_iter().map(cable).collect(),
        subnet_manager: true,
        management_key: None,
        seed: 1,
        profile,
    };
    World::new(config).map_err(|why| Error::new(format!("the topology is impossible: {why}")))
}
