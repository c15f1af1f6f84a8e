//! The program of a host: it comes up, connects to its peers, sends at a given time, and checks what arrives.

use hca_driver::{Dma, SendOp};

use super::connect::{Connected, Needs, QUEUES, start, wait_for};
use super::memory::HostBus;
use super::outcome::Account;
use super::plan::{Operation, Pattern, Plan, Transport};
use super::{dynamic, reduce, storage};
use crate::Error;

/// Bytes that an atomic operation adds to.
const COUNTER: usize = 8;

/// Memory that a host needs, in bytes.
pub(super) fn memory(plan: &Plan, me: usize) -> usize {
    if plan.transport == Transport::Dc {
        return QUEUES + dynamic::data(plan).next_multiple_of(4096);
    }
    let needs = match plan.pattern {
        Pattern::RingAllReduce | Pattern::TreeAllReduce => reduce::needs(plan, me),
        Pattern::StorageReads => storage::needs(plan, me),
        Pattern::AllToAll | Pattern::Incast | Pattern::Ring | Pattern::None => needs(plan, me),
    };
    needs.memory(plan.peers(me).len())
}

/// What a host of flows needs.
fn needs(plan: &Plan, me: usize) -> Needs {
    let [out, inward] = flows(plan, me);
    let requests = if plan.operation == Operation::Read { inward.len() } else { out.len() };
    let completions = [requests, inward.len()].map(|flows| flows * plan.messages);
    Needs { data: data(plan, me), slots: plan.messages, completions }
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
    connected: Connected<'a>,
    out: Vec<usize>,
    inward: Vec<usize>,
}

/// Runs it.
///
/// # Errors
/// A command failed, or a byte is wrong.
pub(super) fn run(bus: HostBus<'_>, plan: &Plan, me: usize, account: &mut Account) -> Result<(), Error> {
    if plan.transport == Transport::Dc {
        return dynamic::run(bus, plan, me, account);
    }
    match plan.pattern {
        Pattern::RingAllReduce | Pattern::TreeAllReduce => return reduce::run(bus, plan, me, account),
        Pattern::StorageReads => return storage::run(bus, plan, me, account),
        Pattern::AllToAll | Pattern::Incast | Pattern::Ring | Pattern::None => {}
    }
    let mut connected = Connected::open(bus, plan, me, needs(plan, me))?;
    connected.connect(plan, me)?;
    let [out, inward] = flows(plan, me);
    let mut host = Host { plan, me, connected, out, inward };
    host.post_receives()?;
    start(&mut host.connected.hca, plan)?;
    host.post_requests()?;
    host.finish(account)
}

impl Host<'_> {
    /// Where a message is: what goes out lies before what comes in.
    fn offset(&self, place: usize, message: usize, inward: bool) -> usize {
        let before = if inward { self.out.len() } else { 0 };
        ((before + place) * self.plan.messages + message) * self.plan.size
    }

    /// Whether receives complete.
    fn receives(&self) -> bool {
        matches!(self.plan.operation, Operation::Send | Operation::Write)
    }

    fn post_receives(&mut self) -> Result<(), Error> {
        if !self.receives() {
            return Ok(());
        }
        for (place, peer) in self.inward.clone().into_iter().enumerate() {
            for message in 0..self.plan.messages {
                let offset = self.offset(place, message, true);
                let number = (place * self.plan.messages + message) as u64;
                self.connected.post_recv(peer, number, (offset, self.plan.size))?;
            }
        }
        Ok(())
    }

    /// What goes out is in its place; requests are posted.
    fn post_requests(&mut self) -> Result<(), Error> {
        let Self { plan, me, .. } = *self;
        for message in 0..plan.messages {
            for (place, peer) in self.out.clone().into_iter().enumerate() {
                let (data, offset) = (plan.data(me, peer, message), self.offset(place, message, false));
                self.connected.memory.fill(offset, plan.size, |bytes| data.put(bytes));
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
        Ok(self.connected.at(offset))
    }

    fn post_request(&mut self, place: usize, peer: usize, message: usize) -> Result<(), Error> {
        let Self { plan, me, .. } = *self;
        let (rkey, inward) = (self.connected.key, plan.operation == Operation::Read);
        let (offset, mut len) = (self.offset(place, message, inward), plan.size);
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
                len = COUNTER;
                let address = self.remote(Some(messages(plan, peer) + me * COUNTER))?;
                SendOp::FetchAdd { address, rkey, add: addend(plan, me, peer, message) }
            }
        };
        let number = (place * plan.messages + message) as u64;
        self.connected.post_send(peer, number, op, (offset, len))
    }

    /// Takes all completions.
    fn finish(&mut self, account: &mut Account) -> Result<(), Error> {
        let read = self.plan.operation == Operation::Read;
        let requests = if read { self.inward.len() } else { self.out.len() };
        let receives = if self.receives() { self.inward.len() } else { 0 };
        let (mut left, mut to_come) = (requests * self.plan.messages, receives * self.plan.messages);
        while left > 0 || to_come > 0 {
            let now = self.connected.hca.bus_mut().turns().now();
            while let Some(done) = self.connected.sends.poll() {
                account.note(now, &done);
                let wr_id = self.connected.retire(&done)?.1 as usize;
                match self.plan.operation {
                    Operation::Send | Operation::Write => {}
                    Operation::Read => self.check(wr_id)?,
                    Operation::Atomic => self.check_counter(wr_id)?,
                }
                if !self.receives() {
                    account.take(self.plan.size);
                }
                left = left.checked_sub(1).ok_or(Error::new("a send completed twice"))?;
            }
            while let Some(done) = self.connected.receives.poll() {
                account.note(now, &done);
                let wr_id = self.connected.retire(&done)?.1 as usize;
                if done.byte_len as usize != self.plan.size {
                    return Err(Error::new(format!("a message of {} bytes came", done.byte_len)));
                }
                self.check(wr_id)?;
                account.take(self.plan.size);
                to_come = to_come.checked_sub(1).ok_or(Error::new("a receive completed twice"))?;
            }
            wait_for(&mut self.connected.hca, left, to_come)?;
        }
        Ok(())
    }

    fn check(&self, wr_id: usize) -> Result<(), Error> {
        let (place, message) = (wr_id / self.plan.messages, wr_id % self.plan.messages);
        let from = self.inward.get(place).copied().unwrap_or(usize::MAX);
        let offset = self.offset(place, message, true);
        let data = self.plan.data(from, self.me, message);
        let same = self.connected.memory.look(offset, self.plan.size, |bytes| data.is_in(bytes));
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
        self.connected.memory.read(self.offset(place, message, false), &mut old);
        if u64::from_le_bytes(old) == before {
            return Ok(());
        }
        Err(Error::new(format!("addition {message} to a counter of host {to} found another value")))
    }
}

/// What a message adds to a counter.
fn addend(plan: &Plan, from: usize, to: usize, message: usize) -> u64 {
    u64::from_le_bytes(plan.data(from, to, message).word(0))
}
