//! The program of a host: it comes up, connects to its peers, sends at a given time, and checks what arrives.

use hca_driver::eth::{Hop, Mac, RoceAddress, RoceVersion};
use hca_driver::qp::{Path, QpConfig};
use hca_driver::{
    Access, Bus, Completion, Config, Cq, CqConfig, Dma, Hca, InitAttr, Qp, RtrAttr, RtsAttr, SendOp,
    SendRequest, Sge,
};
use hca_spec::ids::{Gid, Qpn};
use hca_spec::mad::{PortInfo, port_state};

use super::dynamic;
use super::memory::{HostBus, Piece};
use super::outcome::Account;
use super::plan::{Address, Operation, Plan, Transport};
use crate::Error;

/// The port that is used.
const PORT: u8 = 1;
/// Memory for queues: so much for each host, and for each peer.
const QUEUES: usize = 3 << 20;
const QUEUES_OF_PEER: usize = 16 << 10;
/// Bytes of a WQE in a ring, roughly.
const WQE: usize = 128;
/// Bytes that an atomic operation adds to.
const COUNTER: usize = 8;
/// Path MTU of 4096 bytes.
pub(super) const MTU: u8 = 5;
/// Path MTU of 1024 bytes: what a frame of 1500 has room for.
const ETHERNET_MTU: u8 = 3;
/// The place of the port's own RoCE address.
const INDEX: u8 = 0;

/// Lets time pass, if something is still to complete.
///
/// # Errors
/// The simulation is over before that.
pub(super) fn wait_for(hca: &mut Hca<HostBus>, sends: usize, receives: usize) -> Result<(), Error> {
    if sends == 0 && receives == 0 {
        return Ok(());
    }
    if hca.bus_mut().turns().is_over() {
        return Err(Error::new(format!("{sends} sends and {receives} receives are not done")));
    }
    hca.wait(None);
    Ok(())
}

/// Memory that a host needs, in bytes.
pub(super) fn memory(plan: &Plan, me: usize) -> usize {
    if plan.transport == Transport::Dc {
        return QUEUES + dynamic::data(plan).next_multiple_of(4096);
    }
    let peers = plan.peers(me).len();
    let rings = peers * (QUEUES_OF_PEER + 4 * plan.messages.next_power_of_two() * WQE);
    QUEUES + rings + data(plan, me).next_multiple_of(4096)
}

/// Flows out of and into a host.
fn flows(plan: &Plan, me: usize) -> [Vec<usize>; 2] {
    let all = 0..plan.addresses.len();
    [
        all.clone().filter(|to| plan.sends(me, *to)).collect(),
        all.filter(|from| plan.sends(*from, me)).collect(),
    ]
}

/// Bytes of what it sends and receives.
fn messages(plan: &Plan, me: usize) -> usize {
    let bytes = flows(plan, me).iter().map(|flows| flows.len() * plan.messages * plan.size).sum::<usize>();
    bytes.max(64).next_multiple_of(COUNTER)
}

/// The same, and a counter for each host behind it.
fn data(plan: &Plan, me: usize) -> usize {
    messages(plan, me) + plan.addresses.len() * COUNTER
}

/// Where a host has a message from or to `peer`: what goes out lies before what comes in.
fn offset_for(plan: &Plan, host: usize, peer: usize, message: usize, inward: bool) -> Option<usize> {
    let [out, from] = flows(plan, host);
    let (before, peers) = if inward { (out.len(), from) } else { (0, out) };
    let place = peers.iter().position(|known| *known == peer)?;
    Some(((before + place) * plan.messages + message) * plan.size)
}

/// A host that is up.
struct Host<'a> {
    plan: &'a Plan,
    me: usize,
    hca: Hca<HostBus>,
    sends: Cq<Piece>,
    receives: Cq<Piece>,
    memory: Piece,
    address: u64,
    key: hca_spec::ids::Mkey,
    /// By peer.
    qps: Vec<Option<Qp<Piece>>>,
    /// By queue pair's number, from the first on: the peer.
    first: u32,
    out: Vec<usize>,
    inward: Vec<usize>,
}

/// Runs it.
///
/// # Errors
/// A command failed, or a byte is wrong.
pub(super) fn run(bus: HostBus, plan: &Plan, me: usize, account: &mut Account) -> Result<(), Error> {
    let mut bus = bus;
    // Programs begin when they are told to, and not when their threads do.
    bus.turns().begin();
    if plan.transport == Transport::Dc {
        return dynamic::run(bus, plan, me, account);
    }
    let mut host = Host::open(bus, plan, me)?;
    host.connect()?;
    host.post_receives()?;
    start(&mut host.hca, plan)?;
    host.post_requests()?;
    host.finish(account)
}

/// Brings an adapter up, and waits for its port.
pub(super) fn bring_up(bus: HostBus, plan: &Plan, me: usize) -> Result<Hca<HostBus>, Error> {
    let mut hca = Hca::open(bus, Config::default())?;
    if let Some(Address::Mac(mac)) = plan.addresses.get(me) {
        bring_up_ethernet(&mut hca, Mac(*mac))?;
        return Ok(hca);
    }
    while hca.port_info(PORT)?.get(PortInfo::PORT_STATE) != port_state::ACTIVE {
        if hca.bus_mut().turns().is_over() {
            return Err(Error::new("its port does not come up"));
        }
        hca.wait(None);
    }
    let lid = hca.lid(PORT)?;
    let expected = plan.addresses.get(me);
    if expected != Some(&Address::Lid(lid)) {
        return Err(Error::new(format!("has {lid:?}, and {expected:?} was expected")));
    }
    Ok(hca)
}

/// Waits for an Ethernet port, and gives it its RoCE address.
fn bring_up_ethernet(hca: &mut Hca<HostBus>, expected: Mac) -> Result<(), Error> {
    while !hca.vport_is_up()? {
        if hca.bus_mut().turns().is_over() {
            return Err(Error::new("its port does not come up"));
        }
        hca.wait(None);
    }
    let mac = hca.mac()?;
    if mac != expected {
        return Err(Error::new(format!("has {mac:?}, and {expected:?} was expected")));
    }
    hca.set_roce(true)?;
    let address = RoceAddress { gid: link_local(mac), mac, vlan: None, version: RoceVersion::V2 };
    Ok(hca.set_roce_address(PORT, INDEX, Some(&address))?)
}

/// The link-local address of a station (RFC 4291 2.5.6 and appendix A).
fn link_local(Mac([a, b, c, d, e, f]): Mac) -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// The way to a peer, and the path MTU.
fn way(plan: &Plan, peer: usize) -> Result<(Path, u8), Error> {
    match plan.addresses.get(peer) {
        Some(Address::Lid(lid)) => Ok((Path::lid(*lid), MTU)),
        Some(Address::Mac(mac)) => {
            Ok((Path::roce(link_local(Mac(*mac)), INDEX, Hop::to(Mac(*mac))), ETHERNET_MTU))
        }
        None => Err(Error::new("there is no such peer")),
    }
}

/// Waits for the time at which all begin.
pub(super) fn start(hca: &mut Hca<HostBus>, plan: &Plan) -> Result<(), Error> {
    let now = hca.bus_mut().turns().now();
    if now > plan.start {
        return Err(Error::new(format!(
            "is up and connected only at {} us: traffic can't start at {} us (--start)",
            now.as_ns() / 1000,
            plan.start.as_ns() / 1000
        )));
    }
    hca.bus_mut().sleep_until(plan.start);
    Ok(())
}

impl<'a> Host<'a> {
    fn open(bus: HostBus, plan: &'a Plan, me: usize) -> Result<Self, Error> {
        let mut hca = bring_up(bus, plan, me)?;
        let pd = hca.alloc_pd()?;
        let [out, inward] = flows(plan, me);
        // First, so that it has the same address and key at all hosts.
        let len = data(plan, me);
        let memory = hca.bus_mut().dma_alloc(len, 4096).ok_or(Error::new("its memory is used up"))?;
        let mr = hca.register(pd, &memory, len, Access::ALL)?;
        let entries = |flows: usize| ((flows * plan.messages).max(64).next_power_of_two()) as u32;
        let requests = if plan.operation == Operation::Read { inward.len() } else { out.len() };
        let sends = hca.create_cq(CqConfig::new(entries(requests)))?;
        let receives = hca.create_cq(CqConfig::new(entries(inward.len())))?;
        let mut qps: Vec<Option<Qp<Piece>>> = (0..plan.addresses.len()).map(|_| None).collect();
        let mut first = None;
        for (place, peer) in plan.peers(me).into_iter().enumerate() {
            let defaults = QpConfig::rc(pd, &sends, &receives);
            let slots = plan.messages.next_power_of_two().max(4) as u32;
            let qp = hca.create_qp(&QpConfig { recv_requests: slots, send_blocks: slots, ..defaults })?;
            let number = qp.number().0;
            if *first.get_or_insert(number) + place as u32 != number {
                return Err(Error::new("its queue pairs are not numbered in a row: peers can't know them"));
            }
            if let Some(slot) = qps.get_mut(peer) {
                *slot = Some(qp);
            }
        }
        let (address, key) = (mr.address, mr.key);
        let first = first.unwrap_or(0);
        Ok(Self { plan, me, hca, sends, receives, memory, address, key, qps, first, out, inward })
    }

    fn connect(&mut self) -> Result<(), Error> {
        for peer in self.plan.peers(self.me) {
            // It has made its queue pairs in its order, from the same number on.
            let number = Qpn(self.first + self.plan.place(peer, self.me) as u32);
            let (path, mtu) = way(self.plan, peer)?;
            let Some(qp) = self.qps.get_mut(peer).and_then(Option::as_mut) else { continue };
            self.hca.qp_to_init(qp, &InitAttr { access: Access::ALL, ..InitAttr::default() })?;
            self.hca.qp_to_rtr(qp, &RtrAttr { mtu, ..RtrAttr::new(number, path) })?;
            self.hca.qp_to_rts(qp, &RtsAttr { timeout: self.plan.timeout, ..RtsAttr::default() })?;
        }
        Ok(())
    }

    /// Where a message is: what goes out lies before what comes in.
    fn offset(&self, place: usize, message: usize, inward: bool) -> usize {
        let before = if inward { self.out.len() } else { 0 };
        ((before + place) * self.plan.messages + message) * self.plan.size
    }

    /// Whether receives complete.
    fn receives(&self) -> bool {
        matches!(self.plan.operation, Operation::Send | Operation::Write)
    }

    fn sge(&self, offset: usize) -> [Sge; 1] {
        [Sge { address: self.address + offset as u64, len: self.plan.size as u32, key: self.key }]
    }

    fn post_receives(&mut self) -> Result<(), Error> {
        if !self.receives() {
            return Ok(());
        }
        for (place, peer) in self.inward.clone().into_iter().enumerate() {
            for message in 0..self.plan.messages {
                let sge = self.sge(self.offset(place, message, true));
                if let Some(qp) = self.qps.get_mut(peer).and_then(Option::as_mut) {
                    qp.post_recv((place * self.plan.messages + message) as u64, &sge)?;
                }
            }
        }
        Ok(())
    }

    /// What goes out is in its place; requests are posted.
    fn post_requests(&mut self) -> Result<(), Error> {
        let Self { plan, me, .. } = *self;
        for message in 0..plan.messages {
            for (place, peer) in self.out.clone().into_iter().enumerate() {
                let data: Vec<u8> = plan.data(me, peer, message).collect();
                let offset = self.offset(place, message, false);
                self.memory.write(offset, &data);
                if plan.operation != Operation::Read {
                    self.post_request(place, peer, message)?;
                }
            }
        }
        if plan.operation == Operation::Read {
            for message in 0..plan.messages {
                for (place, peer) in self.inward.clone().into_iter().enumerate() {
                    self.post_request(place, peer, message)?;
                }
            }
        }
        Ok(())
    }

    /// The peer's memory is where this host's is, and laid out by the same rule.
    fn remote(&self, offset: Option<usize>) -> Result<u64, Error> {
        let offset = offset.ok_or(Error::new("a peer knows nothing of a message"))?;
        Ok(self.address + offset as u64)
    }

    fn post_request(&mut self, place: usize, peer: usize, message: usize) -> Result<(), Error> {
        let Self { plan, me, key: rkey, .. } = *self;
        let inward = plan.operation == Operation::Read;
        let mut sge = self.sge(self.offset(place, message, inward));
        let op = match plan.operation {
            Operation::Send => SendOp::Send { imm: None },
            Operation::Write => {
                let address = self.remote(offset_for(plan, peer, me, message, true))?;
                SendOp::Write { address, rkey, imm: Some(message as u32) }
            }
            Operation::Read => {
                let address = self.remote(offset_for(plan, peer, me, message, false))?;
                SendOp::Read { address, rkey }
            }
            Operation::Atomic => {
                sge.iter_mut().for_each(|sge| sge.len = COUNTER as u32);
                let address = self.remote(Some(messages(plan, peer) + me * COUNTER))?;
                SendOp::FetchAdd { address, rkey, add: addend(plan, me, peer, message) }
            }
        };
        let number = (place * plan.messages + message) as u64;
        if let Some(qp) = self.qps.get_mut(peer).and_then(Option::as_mut) {
            qp.post_send(self.hca.bus_mut(), &SendRequest::new(number, op, &sge))?;
        }
        Ok(())
    }

    /// Takes all completions.
    fn finish(&mut self, account: &mut Account) -> Result<(), Error> {
        let read = self.plan.operation == Operation::Read;
        let requests = if read { self.inward.len() } else { self.out.len() };
        let receives = if self.receives() { self.inward.len() } else { 0 };
        let (mut left, mut to_come) = (requests * self.plan.messages, receives * self.plan.messages);
        while left > 0 || to_come > 0 {
            let now = self.hca.bus_mut().turns().now();
            while let Some(done) = self.sends.poll() {
                account.note(now, &done);
                let wr_id = self.retire(&done)? as usize;
                match self.plan.operation {
                    Operation::Send | Operation::Write => {}
                    Operation::Read => self.check(wr_id)?,
                    Operation::Atomic => self.check_counter(wr_id)?,
                }
                account.came += u64::from(!self.receives());
                left = left.checked_sub(1).ok_or(Error::new("a send completed twice"))?;
            }
            while let Some(done) = self.receives.poll() {
                account.note(now, &done);
                let wr_id = self.retire(&done)? as usize;
                if done.byte_len as usize != self.plan.size {
                    return Err(Error::new(format!("a message of {} bytes came", done.byte_len)));
                }
                self.check(wr_id)?;
                account.came += 1;
                to_come = to_come.checked_sub(1).ok_or(Error::new("a receive completed twice"))?;
            }
            wait_for(&mut self.hca, left, to_come)?;
        }
        Ok(())
    }

    /// The work request that a completion is of.
    fn retire(&mut self, done: &Completion) -> Result<u64, Error> {
        done.status.as_ref().map_err(|why| Error::new(format!("a request failed: {why:?}")))?;
        let qps = self.qps.iter_mut().flatten();
        let mut qps = qps.skip(done.qpn.0.saturating_sub(self.first) as usize);
        let qp = qps.next().filter(|qp| qp.number() == done.qpn);
        qp.and_then(|qp| qp.finish(done)).ok_or(Error::new(format!("a completion of nothing: {done:?}")))
    }

    fn check(&self, wr_id: usize) -> Result<(), Error> {
        let (place, message) = (wr_id / self.plan.messages, wr_id % self.plan.messages);
        let from = self.inward.get(place).copied().unwrap_or(usize::MAX);
        let offset = self.offset(place, message, true);
        let same = self.memory.look(offset, self.plan.size, |bytes| {
            bytes.iter().copied().eq(self.plan.data(from, self.me, message))
        });
        if same {
            return Ok(());
        }
        Err(Error::new(format!("message {message} of host {from} was garbled")))
    }

    /// What a counter had is what was added before.
    fn check_counter(&self, wr_id: usize) -> Result<(), Error> {
        let (place, message) = (wr_id / self.plan.messages, wr_id % self.plan.messages);
        let to = self.out.get(place).copied().unwrap_or(usize::MAX);
        let before =
            (0..message).fold(0u64, |sum, before| sum.wrapping_add(addend(self.plan, self.me, to, before)));
        let mut old = [0; COUNTER];
        self.memory.read(self.offset(place, message, false), &mut old);
        if u64::from_le_bytes(old) == before {
            return Ok(());
        }
        Err(Error::new(format!("addition {message} to a counter of host {to} found another value")))
    }
}

/// What a message adds to a counter.
fn addend(plan: &Plan, from: usize, to: usize, message: usize) -> u64 {
    plan.data(from, to, message)
        .take(COUNTER)
        .enumerate()
        .fold(0, |sum, (i, byte)| sum | u64::from(byte) << (8 * i))
}
