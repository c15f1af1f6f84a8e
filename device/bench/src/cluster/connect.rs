//! A host that is up: its adapter, one region of memory, and a reliable connection to each of its peers.
//!
//! All hosts make the same objects in the same order, so that a host knows the numbers of its peers' queue pairs, and the address
//! and key of their memory, without being told.

use hca_driver::eth::{Hop, Mac, RoceAddress, RoceVersion};
use hca_driver::qp::{Path, QpConfig};
use hca_driver::{
    Access, Bus, Completion, Config, Cq, CqConfig, Hca, InitAttr, Qp, RtrAttr, RtsAttr, SendOp, SendRequest,
    Sge,
};
use hca_spec::ids::{Gid, Mkey, Qpn};
use hca_spec::mad::{PortInfo, port_state};

use super::memory::{HostBus, Piece};
use super::plan::{Address, Plan};
use crate::Error;

/// The port that is used.
const PORT: u8 = 1;
/// Memory for queues: so much for each host, and for each peer.
pub(super) const QUEUES: usize = 3 << 20;
const QUEUES_OF_PEER: usize = 16 << 10;
/// Bytes of a WQE in a ring, roughly.
const WQE: usize = 128;
/// Asynchronous events that may wait: there are hardly any, and their queue is written when it is made.
const EVENTS: u32 = 64;
/// Path MTU of 4096 bytes.
pub(super) const MTU: u8 = 5;
/// Path MTU of 1024 bytes: what a frame of 1500 has room for.
const ETHERNET_MTU: u8 = 3;
/// The place of the port's own RoCE address.
const INDEX: u8 = 0;

/// What a host needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    /// Bytes of its memory.
    pub(super) data: usize,
    /// Requests of a connection that are under way at most, each way.
    pub(super) slots: usize,
    /// Completions of sends and of receives that wait at most.
    pub(super) completions: [usize; 2],
}

impl Needs {
    /// Memory of a host with so many peers, in bytes.
    pub(super) fn memory(self, peers: usize) -> usize {
        let rings = peers * (QUEUES_OF_PEER + 4 * self.slots.next_power_of_two() * WQE);
        QUEUES + rings + self.data.next_multiple_of(4096)
    }
}

/// Lets time pass, if something is still to complete.
///
/// # Errors
/// The simulation is over before that.
pub(super) fn wait_for(hca: &mut Hca<HostBus<'_>>, sends: usize, receives: usize) -> Result<(), Error> {
    if sends == 0 && receives == 0 {
        return Ok(());
    }
    if hca.bus_mut().turns().is_over() {
        return Err(Error::new(format!("{sends} sends and {receives} receives are not done")));
    }
    hca.wait(None);
    Ok(())
}

/// Brings an adapter up, and waits for its port.
pub(super) fn bring_up<'a>(bus: HostBus<'a>, plan: &Plan, me: usize) -> Result<Hca<HostBus<'a>>, Error> {
    let mut hca = Hca::open(bus, Config { async_events: EVENTS, ..Config::default() })?;
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
fn bring_up_ethernet(hca: &mut Hca<HostBus<'_>>, expected: Mac) -> Result<(), Error> {
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
pub(super) fn start(hca: &mut Hca<HostBus<'_>>, plan: &Plan) -> Result<(), Error> {
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

/// A host that is up.
pub(super) struct Connected<'a> {
    pub(super) hca: Hca<HostBus<'a>>,
    pub(super) sends: Cq<Piece>,
    pub(super) receives: Cq<Piece>,
    pub(super) memory: Piece,
    address: u64,
    /// Of its memory, and of its peers'.
    pub(super) key: Mkey,
    peers: Vec<usize>,
    /// In the order of peers, numbered in a row.
    qps: Vec<Qp<Piece>>,
    first: u32,
}

impl<'a> Connected<'a> {
    /// Brings a host up, and makes its objects.
    ///
    /// # Errors
    /// A command failed.
    pub(super) fn open(bus: HostBus<'a>, plan: &Plan, me: usize, needs: Needs) -> Result<Self, Error> {
        let mut hca = bring_up(bus, plan, me)?;
        let pd = hca.alloc_pd()?;
        // First, so that it has the same address and key at all hosts.
        let memory = hca.bus_mut().dma_alloc(needs.data, 4096).ok_or(Error::new("its memory is used up"))?;
        let mr = hca.register(pd, &memory, needs.data, Access::ALL)?;
        let [sends, receives] =
            needs.completions.map(|count| CqConfig::new(count.max(64).next_power_of_two() as u32));
        let (sends, receives) = (hca.create_cq(sends)?, hca.create_cq(receives)?);
        let slots = needs.slots.next_power_of_two().max(4) as u32;
        let peers = plan.peers(me);
        let mut qps: Vec<Qp<Piece>> = Vec::with_capacity(peers.len());
        for _ in &peers {
            let defaults = QpConfig::rc(pd, &sends, &receives);
            let qp = hca.create_qp(&QpConfig { recv_requests: slots, send_blocks: slots, ..defaults })?;
            let first = qps.first().map_or(qp.number(), Qp::number).0;
            if first + qps.len() as u32 != qp.number().0 {
                return Err(Error::new("its queue pairs are not numbered in a row: peers can't know them"));
            }
            qps.push(qp);
        }
        let first = qps.first().map_or(0, |qp| qp.number().0);
        let (address, key) = (mr.address, mr.key);
        Ok(Self { hca, sends, receives, memory, address, key, peers, qps, first })
    }

    /// Connects to all peers.
    ///
    /// # Errors
    /// A command failed.
    pub(super) fn connect(&mut self, plan: &Plan, me: usize) -> Result<(), Error> {
        for (peer, qp) in self.peers.iter().zip(&mut self.qps) {
            // It has made its queue pairs in its order, from the same number on.
            let number = Qpn(self.first + plan.place(*peer, me) as u32);
            let (path, mtu) = way(plan, *peer)?;
            self.hca.qp_to_init(qp, &InitAttr { access: Access::ALL, ..InitAttr::default() })?;
            self.hca.qp_to_rtr(qp, &RtrAttr { mtu, ..RtrAttr::new(number, path) })?;
            self.hca.qp_to_rts(qp, &RtsAttr { timeout: plan.timeout, ..RtsAttr::default() })?;
        }
        Ok(())
    }

    /// Its address, and at a peer that of the same offset.
    pub(super) fn at(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    fn sge(&self, offset: usize, len: usize) -> [Sge; 1] {
        [Sge { address: self.at(offset), len: len as u32, key: self.key }]
    }

    fn place(&self, peer: usize) -> Result<usize, Error> {
        self.peers.binary_search(&peer).map_err(|_| Error::new(format!("host {peer} is no peer")))
    }

    /// Posts a receive request of so many bytes at an offset.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn post_recv(
        &mut self,
        peer: usize,
        wr_id: u64,
        (offset, len): (usize, usize),
    ) -> Result<(), Error> {
        let (place, sge) = (self.place(peer)?, self.sge(offset, len));
        self.qps.get_mut(place).map_or(Ok(()), |qp| Ok(qp.post_recv(wr_id, &sge)?))
    }

    /// Posts a request whose bytes are at an offset.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn post_send(
        &mut self,
        peer: usize,
        wr_id: u64,
        op: SendOp,
        (offset, len): (usize, usize),
    ) -> Result<(), Error> {
        let (place, sge) = (self.place(peer)?, self.sge(offset, len));
        let Some(qp) = self.qps.get_mut(place) else { return Ok(()) };
        Ok(qp.post_send(self.hca.bus_mut(), &SendRequest::new(wr_id, op, &sge))?)
    }

    /// The peer and the work request that a completion is of.
    ///
    /// # Errors
    /// The request failed, or there is none.
    pub(super) fn retire(&mut self, done: &Completion) -> Result<(usize, u64), Error> {
        done.status.as_ref().map_err(|why| Error::new(format!("a request failed: {why:?}")))?;
        let place = done.qpn.0.wrapping_sub(self.first) as usize;
        let wr_id = self.qps.get_mut(place).and_then(|qp| qp.finish(done));
        let found = self.peers.get(place).copied().zip(wr_id);
        found.ok_or_else(|| Error::new(format!("a completion of nothing: {done:?}")))
    }
}
