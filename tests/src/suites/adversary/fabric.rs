//! A guest on the same subnet as the victim: management datagrams, floods to the victim's port, a link that comes and goes.

use std::time::Duration;

use hca_driver::qp::{Path, QpConfig};
use hca_driver::vfio_user::{VfioUserBus, WindowMemory};
use hca_driver::wqe::{Datagram, SendOp};
use hca_driver::{InitAttr, Qp, RtrAttr, RtsAttr, SendRequest};
use hca_server::control;
use hca_spec::cmd::{AccessRegIn, MadIfc, reg};
use hca_spec::command::Opcode;
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Lid, Qpn};
use hca_spec::mad::{
    CLASS_PERF, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID_ROUTED, MAD_SIZE, METHOD_GET, METHOD_SET, Mad, PortInfo,
    SMP_DATA, SmpData, attr, port_state,
};
use hca_spec::qpc::ServiceType;

use super::Row;
use super::stage::{Attacker, Failure, Setting};
use super::work::{flood, take};
use crate::pair::{Options, PORT, Pair};
use crate::smp::{directed, mad};

/// The cases.
pub const ROWS: &[Row] = &[
    Row::new("guest, root: SubnSet(PortInfo) to the other's port over its own QP0", |a| {
        datagrams(a, ServiceType::Qp0, 8, &set_port(CLASS_SUBN_LID_ROUTED))
    })
    .switched(),
    Row::new("guest, root: SubnSet(PortInfo) by a directed route through the switch", |a| {
        datagrams(a, ServiceType::Qp0, 8, &directed(set_port(CLASS_SUBN_DIRECTED), &[1, 2]))
    })
    .switched(),
    Row::new("guest, root: SubnSet(LinearForwardingTable) of the switch", routes).switched(),
    Row::new("guest, root: SubnGet flood over QP0", |a| {
        let get = mad(CLASS_SUBN_LID_ROUTED, METHOD_GET, attr::NODE_INFO);
        datagrams(a, ServiceType::Qp0, u64::MAX, &get)
    })
    .switched(),
    Row::new("guest: PerfGet flood over QP1 to the other's port", |a| {
        let mut get = mad(CLASS_PERF, METHOD_GET, attr::PORT_COUNTERS);
        get.bytes_mut()[SMP_DATA + 1] = PORT;
        datagrams(a, ServiceType::Qp1, u64::MAX, &get)
    })
    .switched(),
    Row::new("guest: MAD_IFC flood to its own agent", mad_ifc),
    Row::new("guest: datagrams to the other's LID, nobody's queue pair", |a| {
        datagrams(a, ServiceType::Ud, u64::MAX, &Mad::new())
    })
    .switched(),
    Row::new("guest: RC retries to the other's LID, nobody's queue pair", nobody_there).switched(),
    Row::new("guest: UC messages of 1 MiB to the other's LID, nobody's queue pair", unreliable).switched(),
    Row::new("guest: its link taken down and up", flapping).switched(),
    partitioned(
        "guest, root: datagrams to the other's port with its P_Key, of another partition",
        foreign_key,
    ),
    Row::new("guest: loopback of 1 MiB writes, behind the same switch", |a| {
        const LEN: usize = 1 << 20;
        let options = Options { memory: LEN, mtu: 1, send_blocks: 1024, cqes: 1024, ..Options::default() };
        flood(a, &options, |pair, i| {
            let (near, far) = ([pair.ends[0].sge(0, LEN)], pair.ends[1].mr);
            pair.ends[0].qp.queue_send(&SendRequest::write(i, &near, far.address, far.key))
        })
    })
    .switched(),
];

/// Behind one switch, in different partitions, and none of them in the default one.
const PARTITIONS: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"v\"\n[[host.hca]]\n\
    [[switch]]\nname = \"s\"\nports = 2\n[[link]]\nbetween = [\"a/hca0\", \"s/1\"]\n\
    [[link]]\nbetween = [\"v/hca0\", \"s/2\"]\n[[partition]]\nname = \"default\"\npkey = 0x7fff\n\
    [[partition]]\nname = \"victims\"\npkey = 0x0001\nfull = [\"v/hca0\"]\n\
    [[partition]]\nname = \"attackers\"\npkey = 0x0002\nfull = [\"a/hca0\"]\n";
const VICTIMS: u16 = 0x8001;
const ATTACKERS: u16 = 0x8002;

const fn partitioned(name: &'static str, attack: super::Attack) -> Row {
    let row = Row::new(name, attack);
    Row { setting: Setting { topology: Some(PARTITIONS), ..row.setting }, ..row }
}

/// The attacker's M_Key.
const M_KEY: u64 = 0x6666_6666_6666_6666;
/// Q_Key of QP1 (IBTA 16.1).
const GSI_QKEY: u32 = 0x8001_0000;
/// The LID of directed routes (IBTA 4.1.3).
const PERMISSIVE: Lid = Lid(0xffff);
/// Nobody's queue pair.
const NOBODY: Qpn = Qpn(0xff_fff0);

/// The port is to go down, and to listen to nobody else from now on.
fn set_port(class: u32) -> Mad {
    let mut set = mad(class, METHOD_SET, attr::PORT_INFO);
    let info = set.port_info_mut();
    info.set(PortInfo::M_KEY, M_KEY).set(PortInfo::M_KEY_PROTECT, 3);
    info.set(PortInfo::PORT_STATE, port_state::DOWN).set(PortInfo::LID, 99);
    set
}

/// No LID leads anywhere.
fn set_routes() -> Mad {
    let mut set = mad(CLASS_SUBN_DIRECTED, METHOD_SET, attr::LINEAR_FORWARDING);
    set.smp_data_mut().bytes_mut().fill(0xff);
    set
}

/// A queue pair for datagrams of that kind.
fn datagram_qp(pair: &mut Pair<VfioUserBus>, service: ServiceType) -> Result<Qp<WindowMemory>, Failure> {
    let config = QpConfig {
        service,
        send_blocks: 1024,
        ..QpConfig::ud(pair.ends[0].pd, &pair.ends[0].send_cq, &pair.ends[0].recv_cq)
    };
    let mut qp = pair.hcas[0].create_qp(&config)?;
    pair.hcas[0].qp_to_init(&mut qp, &InitAttr::default())?;
    pair.hcas[0].ud_to_rtr(&mut qp)?;
    pair.hcas[0].qp_to_rts(&mut qp, &RtsAttr::default())?;
    Ok(qp)
}

/// A queue pair for datagrams, and what it says to whom.
struct Sender {
    pair: Pair<VfioUserBus>,
    qp: Qp<WindowMemory>,
    to: Datagram,
    posted: u64,
    done: u64,
    errors: u64,
}

/// Where answers arrive: so many bytes apart, so many at a time. The GRH's place comes first.
const ANSWERS: usize = 4096;
const STEP: usize = 512;
const COUNT: usize = 64;
const GRH: usize = 40;

impl Sender {
    fn new(attacker: &Attacker, service: ServiceType) -> Result<Self, Failure> {
        let mut pair = attacker.pair(&Options { cqes: 4096, ..Options::default() })?;
        let mut qp = datagram_qp(&mut pair, service)?;
        let (qpn, qkey) = match service {
            ServiceType::Qp0 => (Qpn(0), 0),
            ServiceType::Qp1 => (Qpn(1), GSI_QKEY),
            _ => (NOBODY, 1),
        };
        for slot in 0..COUNT {
            let room = pair.ends[0].sge(ANSWERS + slot * STEP, GRH + MAD_SIZE);
            qp.post_recv(slot as u64, &[room])?;
        }
        let to = Datagram { qpn, qkey, lid: attacker.victim(), sl: 0, gid: None };
        Ok(Self { pair, qp, to, posted: 0, done: 0, errors: 0 })
    }

    /// Sends a datagram until the queue is full, `most` times in all.
    fn send(&mut self, mad: &Mad, most: u64) {
        let is_directed = mad.get(Mad::MGMT_CLASS) == CLASS_SUBN_DIRECTED;
        let to = if is_directed { Datagram { lid: PERMISSIVE, ..self.to } } else { self.to };
        self.pair.fill(0, 0, mad.bytes());
        let sge = [self.pair.ends[0].sge(0, MAD_SIZE)];
        let op = SendOp::Datagram { to, imm: None };
        while self.posted < most && self.qp.queue_send(&SendRequest::new(self.posted, op, &sge)).is_ok() {
            self.posted += 1;
        }
        self.qp.ring_doorbell(self.pair.hcas[0].bus_mut());
    }

    /// Takes what was sent and what has come; gives the answers.
    fn take(&mut self) -> Result<Vec<Mad>, Failure> {
        while let Some(completion) = self.pair.ends[0].send_cq.poll() {
            self.qp.finish(&completion);
            self.errors += u64::from(completion.status.is_err());
            self.done += 1;
        }
        let mut answers = Vec::new();
        while let Some(completion) = self.pair.ends[0].recv_cq.poll() {
            let Some(slot) = self.qp.finish(&completion) else { continue };
            let at = ANSWERS + slot as usize * STEP;
            let bytes = self.pair.ends[0].bytes(at + GRH, MAD_SIZE);
            answers.push(Mad::from_prefix_or_zero(&bytes));
            let room = self.pair.ends[0].sge(at, GRH + MAD_SIZE);
            self.qp.post_recv(slot, &[room])?;
        }
        Ok(answers)
    }

    fn said(&self, answers: usize) -> Result<String, Failure> {
        let Self { posted, done, errors, .. } = self;
        match done {
            0 => Err("no datagram was sent".into()),
            _ => {
                Ok(format!("{posted} datagrams posted, {done} done, {errors} with errors, {answers} answers"))
            }
        }
    }
}

/// Sends a datagram over and over to the other host's port, as long as the attack lasts or `most` times.
fn datagrams(attacker: &Attacker, service: ServiceType, most: u64, mad: &Mad) -> Result<String, Failure> {
    let mut sender = Sender::new(attacker, service)?;
    let (mut answers, mut status) = (0, None);
    for _ in attacker.rounds() {
        sender.send(mad, most);
        std::thread::sleep(Duration::from_millis(1));
        let now = sender.take()?;
        answers += now.len();
        status = now.last().map(|answer| answer.get(Mad::STATUS)).or(status);
    }
    let said = sender.said(answers)?;
    Ok(status.map_or(said.clone(), |status| format!("{said} (the last with status {status:#x})")))
}

/// The switch's routes are set by one who is not the subnet manager, and read.
fn routes(attacker: &Attacker) -> Result<String, Failure> {
    let mut sender = Sender::new(attacker, ServiceType::Qp0)?;
    let set = directed(set_routes(), &[1]);
    let get = directed(mad(CLASS_SUBN_DIRECTED, METHOD_GET, attr::LINEAR_FORWARDING), &[1]);
    let mut answers: Vec<Mad> = Vec::new();
    for round in attacker.rounds() {
        sender.send(if round == 0 { &set } else { &get }, round + 1);
        std::thread::sleep(Duration::from_millis(10));
        answers.extend(sender.take()?);
    }
    let last = answers.last().ok_or("the switch does not answer")?;
    match last.smp_data().bytes().iter().all(|port| *port == 0xff) {
        true => Err("the routes of all LIDs are gone".into()),
        false => sender.said(answers.len()),
    }
}

fn mad_ifc(attacker: &Attacker) -> Result<String, Failure> {
    let mut pair = attacker.pair(&Options::default())?;
    let mut done = 0;
    for i in attacker.rounds() {
        let method = if i % 2 == 0 { METHOD_GET } else { METHOD_SET };
        let inputs = (0..pair.hcas[0].command_slots()).map(|slot| {
            let mut input = MadIfc::new();
            input.set(MadIfc::PORT, PORT.into());
            let attribute =
                [attr::NODE_INFO, attr::PORT_INFO, attr::GUID_INFO, attr::VL_ARBITRATION][slot % 4];
            *input.mad_mut() = mad(CLASS_SUBN_LID_ROUTED, method, attribute);
            input.bytes().to_vec()
        });
        // Each one's status is its own.
        let inputs: Vec<_> = inputs.collect();
        for slot in pair.hcas[0].begin_all(Opcode::MadIfc, 3, inputs, MadIfc::SIZE)? {
            let _ = pair.hcas[0].finish(slot);
            done += 1;
        }
    }
    Ok(format!("{done} datagrams"))
}

/// A connection to the other host's port that nobody answers; it begins anew each time it has given up.
fn nobody_there(attacker: &Attacker) -> Result<String, Failure> {
    let mut pair = attacker.pair(&Options { send_blocks: 1024, cqes: 1024, ..Options::default() })?;
    let lid = attacker.victim();
    let rts = RtsAttr { timeout: 1, retries: 7, ..RtsAttr::default() };
    let (mut idle, mut again) = (true, 0);
    for _ in attacker.rounds() {
        while let Some(completion) = pair.ends[0].send_cq.poll() {
            // What was flushed belongs to requests that a reset has forgotten.
            idle |= completion.syndrome() == Some(Syndrome::TransportRetryExceeded);
        }
        if std::mem::take(&mut idle) {
            let Pair { hcas, ends } = &mut pair;
            hcas[0].qp_to_reset(&mut ends[0].qp)?;
            hcas[0].qp_to_init(&mut ends[0].qp, &InitAttr::default())?;
            hcas[0].qp_to_rtr(&mut ends[0].qp, &RtrAttr::new(NOBODY, Path::lid(lid)))?;
            hcas[0].qp_to_rts(&mut ends[0].qp, &rts)?;
            let (sge, far) = ([ends[0].sge(0, 1 << 16)], ends[1].mr);
            while ends[0].qp.queue_send(&SendRequest::write(1, &sge, far.address, far.key)).is_ok() {}
            ends[0].qp.ring_doorbell(hcas[0].bus_mut());
            again += 1;
        }
    }
    Ok(format!("{again} times given up"))
}

/// Packets that nobody acknowledges fill the link to the other host.
fn unreliable(attacker: &Attacker) -> Result<String, Failure> {
    let lid = attacker.victim();
    let mut pair = stranger(attacker, lid)?;
    let mut done = 0;
    for _ in attacker.rounds() {
        pour(&mut pair);
        std::thread::sleep(Duration::from_millis(1));
        done += take(&mut pair).0;
    }
    match done {
        0 => Err("no message was sent".into()),
        _ => Ok(format!("{done} messages to LID {}", lid.0)),
    }
}

/// Bytes of a message that nobody asked for.
const LEN: usize = 1 << 20;

/// A queue pair with a full queue of messages to nobody's queue pair behind another port, that are under way.
///
/// # Errors
/// The adapter or its port does not come up.
pub fn begin_flood(attacker: &Attacker, lid: Lid) -> Result<Pair<VfioUserBus>, Failure> {
    let mut pair = stranger(attacker, lid)?;
    crate::pair::wait_active(&mut pair.hcas[0])?;
    pour(&mut pair);
    Ok(pair)
}

/// As many messages as its queue takes.
fn pour(pair: &mut Pair<VfioUserBus>) {
    let Pair { hcas, ends } = pair;
    let sge = [ends[0].sge(0, LEN)];
    while ends[0].qp.queue_send(&SendRequest::send(1, &sge)).is_ok() {}
    ends[0].qp.ring_doorbell(hcas[0].bus_mut());
}

/// A queue pair of the attacker's that is connected to nobody's behind that port, unreliably.
fn stranger(attacker: &Attacker, lid: Lid) -> Result<Pair<VfioUserBus>, Failure> {
    let service = ServiceType::Uc;
    let options =
        Options { service, memory: LEN, mtu: 5, send_blocks: 1024, cqes: 1024, ..Options::default() };
    let mut pair = attacker.pair(&options)?;
    let Pair { hcas, ends } = &mut pair;
    hcas[0].qp_to_reset(&mut ends[0].qp)?;
    hcas[0].qp_to_init(&mut ends[0].qp, &InitAttr::default())?;
    hcas[0].qp_to_rtr(&mut ends[0].qp, &RtrAttr::new(NOBODY, Path::lid(lid)))?;
    hcas[0].qp_to_rts(&mut ends[0].qp, &RtsAttr::default())?;
    Ok(pair)
}

/// What the switch's ports have dropped for their P_Keys: on the way in by the attacker's, on the way out by the victim's. And what left it to
/// the victim.
fn at_the_switch(attacker: &Attacker) -> Result<[u64; 3], Failure> {
    let stat = control::query(&attacker.control(), "stat")?;
    let count = |port: usize, name: &str| {
        let counters = &stat["switches"][0]["ports"][port]["counters"];
        counters[name].as_u64().ok_or_else(|| format!("no {name} of port {port}: {stat}"))
    };
    Ok([count(0, "rcv_constraint_errors")?, count(1, "xmit_constraint_errors")?, count(1, "xmit_packets")?])
}

/// The attacker gives its own port the victim's P_Key, over and over, as its firmware lets it, and sends; until the subnet manager has set the
/// port right its packets have that P_Key.
fn foreign_key(attacker: &Attacker) -> Result<String, Failure> {
    let mut sender = Sender::new(attacker, ServiceType::Ud)?;
    crate::pair::wait_active(&mut sender.pair.hcas[0])?;
    let table = |sender: &mut Sender| -> Result<[u16; 2], Failure> {
        let table = sender.pair.hcas[0].smp_get(PORT, attr::PKEY_TABLE, 0)?;
        let entries = table.smp_data().bytes().as_chunks::<2>().0;
        Ok([0, 1].map(|at| u16::from_be_bytes(entries[at])))
    };
    if table(&mut sender)? != [ATTACKERS, 0] {
        return Err(format!("its table is {:x?}", table(&mut sender)?).into());
    }
    let before = at_the_switch(attacker)?;
    let mut stolen = SmpData::new();
    stolen.bytes_mut()[..2].copy_from_slice(&VICTIMS.to_be_bytes());
    let mut rounds = 0;
    for _ in attacker.rounds() {
        sender.send(&Mad::new(), u64::MAX);
        sender.pair.hcas[0].smp_set(PORT, attr::PKEY_TABLE, 0, &stolen)?;
        sender.send(&Mad::new(), u64::MAX);
        sender.take()?;
        rounds += 1;
    }
    std::thread::sleep(Duration::from_millis(100));
    let after = at_the_switch(attacker)?;
    let [inward, outward, sent] = std::array::from_fn(|i| after[i] - before[i]);
    let own = table(&mut sender)?;
    if own != [ATTACKERS, 0] {
        return Err(format!("its port has the other's P_Key: {own:x?}").into());
    }
    // What has the attackers' own P_Key goes in, and not out. An adapter that is alone in its process is set right before it sends anything.
    match (inward, outward, sent) {
        (0, 0, 0) => Err("no packet came to the switch".into()),
        (_, _, 1..) => Err(format!("{sent} packets went to the victim").into()),
        _ => Ok(format!(
            "{rounds} times another P_Key; {}; the switch dropped {inward} and {outward}",
            sender.said(0)?
        )),
    }
}

/// PAOS down and up: the link trains, the subnet manager sweeps.
fn flapping(attacker: &Attacker) -> Result<String, Failure> {
    /// Administrative state in bits 11..8: 1 up, 2 down; bit 31 of word 1: the state is set.
    const UP: u32 = 1 << 8;
    const DOWN: u32 = 2 << 8;
    let mut hca = attacker.driver(super::stage::MEMORY)?;
    crate::pair::wait_active(&mut hca)?;
    let (mut done, mut refused) = (0, 0);
    for _ in attacker.rounds() {
        for state in [DOWN, UP] {
            let mut input = AccessRegIn::new();
            input.set(AccessRegIn::REGISTER_ID, reg::PAOS);
            let words = [u32::from(PORT) << 16 | state, 1 << 31, 0, 0];
            let data: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
            let input = [input.bytes(), &data[..]].concat();
            refused += u64::from(hca.execute(Opcode::AccessReg, 0, input, 0x20).is_err());
            done += 1;
        }
    }
    match refused {
        0 => Ok(format!("{done} changes")),
        _ => Err(format!("{refused} of {done} changes refused").into()),
    }
}
