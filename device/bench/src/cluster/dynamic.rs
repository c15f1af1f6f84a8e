//! The program of a host whose connections are dynamic (DC): some initiators that go from peer to peer, and one target for all
//! of them. What it takes does not grow with the number of hosts.

use std::collections::BTreeMap;

use hca_driver::qp::QpConfig;
use hca_driver::{
    Access, Bus, Completion, Cq, CqConfig, DctConfig, Hca, InitAttr, Mr, Qp, RtsAttr, ScatterToCqe, SendOp,
    SendRequest, Sge, Srq, Target,
};
use hca_spec::ids::Qpn;

use super::connect::{MTU, bring_up, start, wait_for};
use super::memory::{HostBus, Piece};
use super::outcome::Account;
use super::plan::{Address, Plan};
use crate::Error;

/// Initiators of a host, and requests of each that are under way.
const INITIATORS: usize = 4;
const WINDOW: usize = 4;
/// Receive requests that wait.
const RECEIVES: usize = 64;
/// What initiators know of targets.
const KEY: u64 = 0x736f_6674_6863_6121;
/// How long an initiator waits for a receive request: 0.64 ms (IBTA table 45).
const RNR_TIMER: u8 = 12;
/// Messages of a flow are told apart by so many bits of immediate data; the sender is in the others.
const MESSAGE_BITS: u32 = 12;

/// Bytes of what it sends and receives.
pub(super) fn data(plan: &Plan) -> usize {
    (INITIATORS * WINDOW + RECEIVES) * plan.size
}

/// Messages that came.
struct Seen {
    /// The place of each that sends to this host.
    from: BTreeMap<usize, usize>,
    /// By place and message.
    messages: Vec<bool>,
}

impl Seen {
    /// Notes one of so many of a flow. Whether it had come before; `None`: it is of no flow to this host.
    fn note(&mut self, from: usize, message: usize, messages: usize) -> Option<bool> {
        let place = self.from.get(&from).filter(|_| message < messages)? * messages + message;
        self.messages.get_mut(place).map(|seen| std::mem::replace(seen, true))
    }
}

/// A host that is up.
struct Host<'a> {
    plan: &'a Plan,
    me: usize,
    hca: Hca<HostBus<'a>>,
    sends: Cq<Piece>,
    receives: Cq<Piece>,
    memory: Piece,
    mr: Mr,
    srq: Srq<Piece>,
    target: Qpn,
    initiators: Vec<Qp<Piece>>,
    first: u32,
    /// Peers that it sends to, its neighbour first, so that not all begin with the same.
    to: Vec<usize>,
}

/// Runs it.
///
/// # Errors
/// A command failed, or a byte is wrong.
pub(super) fn run(bus: HostBus<'_>, plan: &Plan, me: usize, account: &mut Account) -> Result<(), Error> {
    let mut host = Host::open(bus, plan, me)?;
    for slot in 0..RECEIVES {
        host.post_receive(slot)?;
    }
    start(&mut host.hca, plan)?;
    host.exchange(account)
}

impl<'a> Host<'a> {
    fn open(bus: HostBus<'a>, plan: &'a Plan, me: usize) -> Result<Self, Error> {
        let mut hca = bring_up(bus, plan, me)?;
        let pd = hca.alloc_pd()?;
        let sends = hca.create_cq(CqConfig::new((INITIATORS * WINDOW) as u32))?;
        let receives = hca.create_cq(CqConfig::new(2 * RECEIVES as u32))?;
        let memory = hca.bus_mut().dma_alloc(data(plan), 4096).ok_or(Error::new("its memory is used up"))?;
        let mr = hca.register(pd, &memory, data(plan), Access::ALL)?;
        let srq = hca.create_srq(pd, RECEIVES as u32, 1)?;
        let dct = hca.create_dct(&DctConfig {
            pd,
            cq: receives.number(),
            srq: srq.number(),
            access_key: KEY,
            access: Access::ALL,
            mtu: MTU,
            rnr_timer: RNR_TIMER,
            scatter_to_cqe: ScatterToCqe::Off,
        })?;
        let mut initiators = Vec::new();
        for _ in 0..INITIATORS {
            // A request to a target takes up to four blocks.
            let blocks = 4 * WINDOW as u32;
            let mut qp = hca.create_qp(&QpConfig { send_blocks: blocks, ..QpConfig::dci(pd, &sends) })?;
            hca.qp_to_init(&mut qp, &InitAttr::default())?;
            hca.dci_to_rtr(&mut qp, MTU)?;
            hca.qp_to_rts(&mut qp, &RtsAttr { timeout: plan.timeout, ..RtsAttr::default() })?;
            initiators.push(qp);
        }
        let first = initiators.first().map_or(0, |qp| qp.number().0);
        let to = plan.receivers(me).collect();
        // All hosts make the same objects in the same order: a peer's target has the number of ours.
        let target = dct.number();
        Ok(Self { plan, me, hca, sends, receives, memory, mr, srq, target, initiators, first, to })
    }

    fn sge(&self, place: usize) -> [Sge; 1] {
        let offset = (place * self.plan.size) as u64;
        [Sge { address: self.mr.address + offset, len: self.plan.size as u32, key: self.mr.key }]
    }

    fn post_receive(&mut self, slot: usize) -> Result<(), Error> {
        let sge = self.sge(INITIATORS * WINDOW + slot);
        Ok(self.srq.post_recv(slot as u64, &sge)?)
    }

    /// Sends message `number` of all, from place `place`.
    fn send(&mut self, number: usize, place: usize) -> Result<(), Error> {
        let (message, peer) = (number / self.to.len(), self.to.get(number % self.to.len()).copied());
        let peer = peer.ok_or(Error::new("there is no such peer"))?;
        let data = self.plan.data(self.me, peer, message);
        self.memory.fill(place * self.plan.size, self.plan.size, |bytes| data.put(bytes));
        let Some(Address::Lid(lid)) = self.plan.addresses.get(peer).copied() else {
            return Err(Error::new("there is no such peer on InfiniBand"));
        };
        let target = Target { dctn: self.target, access_key: KEY, lid, gid: None, roce: None };
        let imm = (self.me as u32) << MESSAGE_BITS | message as u32;
        let sge = self.sge(place);
        let request = SendRequest::new(place as u64, SendOp::Send { imm: Some(imm) }, &sge).to_target(target);
        if let Some(qp) = self.initiators.get_mut(place / WINDOW) {
            qp.post_send(self.hca.bus_mut(), &request)?;
        }
        Ok(())
    }

    /// Sends all, and takes all that is meant for it.
    fn exchange(&mut self, account: &mut Account) -> Result<(), Error> {
        let all = self.to.len() * self.plan.messages;
        let from: BTreeMap<usize, usize> = self.plan.senders(self.me).zip(0..).collect();
        let (mut sent, mut left, mut to_come) = (0, all, from.len() * self.plan.messages);
        let mut seen = Seen { messages: vec![false; to_come], from };
        for place in 0..(INITIATORS * WINDOW).min(all) {
            self.send(sent, place)?;
            sent += 1;
        }
        while left > 0 || to_come > 0 {
            let now = self.hca.bus_mut().turns().now();
            while let Some(done) = self.sends.poll() {
                account.note(now, &done);
                done.status.as_ref().map_err(|why| Error::new(format!("a send failed: {why:?}")))?;
                let initiator = done.qpn.0.wrapping_sub(self.first) as usize;
                let place = self.initiators.get_mut(initiator).and_then(|qp| qp.finish(&done));
                let place = place.ok_or(Error::new("a completion of nothing"))? as usize;
                left = left.checked_sub(1).ok_or(Error::new("a send completed twice"))?;
                if sent < all {
                    self.send(sent, place)?;
                    sent += 1;
                }
            }
            while let Some(done) = self.receives.poll() {
                account.note(now, &done);
                done.status.as_ref().map_err(|why| Error::new(format!("a receive failed: {why:?}")))?;
                let slot = self.srq.finish(&done).ok_or(Error::new("a completion of nothing"))? as usize;
                self.check(&done, slot, &mut seen)?;
                self.post_receive(slot)?;
                account.take(self.plan.size);
                to_come = to_come.checked_sub(1).ok_or(Error::new("a message too many"))?;
            }
            wait_for(&mut self.hca, left, to_come)?;
        }
        Ok(())
    }

    fn check(&self, done: &Completion, slot: usize, seen: &mut Seen) -> Result<(), Error> {
        let imm = done.imm.ok_or(Error::new("a message without immediate data"))?;
        let (from, message) = ((imm >> MESSAGE_BITS) as usize, (imm & ((1 << MESSAGE_BITS) - 1)) as usize);
        let before = seen.note(from, message, self.plan.messages);
        let size = self.plan.size;
        let data = self.plan.data(from, self.me, message);
        let same = self.memory.look((INITIATORS * WINDOW + slot) * size, size, |bytes| data.is_in(bytes));
        if same && done.byte_len as usize == size && before == Some(false) && self.plan.sends(from, self.me) {
            return Ok(());
        }
        Err(Error::new(format!("message {message} of host {from} was garbled, or came twice")))
    }
}
