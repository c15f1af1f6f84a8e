//! Storage: the first hosts have blocks, and all others read them.
//!
//! With [`Operation::Read`] a client reads a block from the memory of its host, who does nothing. With [`Operation::Write`] it is as with
//! NVMe over Fabrics' RDMA transport: the client sends a command with the address of its buffer, and the target writes the block there
//! and sends a response behind it. A client has so many blocks under way at each target ([`Plan::depth`]).

use hca_driver::{Dma, SendOp};
use hca_model::Ps;

use super::connect::{Connected, Needs, start, wait_for};
use super::memory::HostBus;
use super::outcome::Account;
use super::plan::{Operation, Plan};
use crate::Error;

/// Blocks that a target has.
const BLOCKS: usize = 64;
/// Bytes of a command and of a response (NVM Express base specification: 64 and 16). Here they are: address of the buffer, block,
/// and tag; the tag.
const COMMAND: usize = 64;
const RESPONSE: usize = 16;

/// Where things are in a host's memory: blocks or buffers first, then slots of commands and of responses for each peer.
#[derive(Debug, Clone, Copy)]
struct Layout {
    size: usize,
    blocks: usize,
    slots: usize,
    peers: usize,
}

impl Layout {
    fn of(plan: &Plan, me: usize) -> Self {
        let (size, peers) = (plan.size, plan.peers(me).len());
        let slots = slots(plan);
        let blocks = if is_target(plan, me) { BLOCKS } else { peers * plan.depth };
        Self { size, blocks, slots, peers }
    }

    fn block(self, number: usize) -> (usize, usize) {
        (number * self.size, self.size)
    }

    fn commands(self) -> usize {
        (self.blocks * self.size).next_multiple_of(COMMAND)
    }

    fn command(self, lane: usize, slot: usize) -> (usize, usize) {
        (self.commands() + (lane * self.slots + slot) * COMMAND, COMMAND)
    }

    fn responses(self) -> usize {
        self.commands() + self.peers * self.slots * COMMAND
    }

    fn response(self, lane: usize, slot: usize) -> (usize, usize) {
        (self.responses() + (lane * self.slots + slot) * RESPONSE, RESPONSE)
    }

    fn end(self) -> usize {
        self.responses() + self.peers * self.slots * RESPONSE
    }
}

fn is_target(plan: &Plan, host: usize) -> bool {
    host < plan.targets
}

/// Commands and responses of a connection that there is room for: a response that was not acknowledged yet may be under way while its
/// slot at the client is used again.
pub(super) fn slots(plan: &Plan) -> usize {
    2 * plan.depth
}

/// The block that a client reads as its `number`th of a target.
fn wanted(client: usize, target: usize, number: usize) -> usize {
    let seed = (client as u64) << 40 | (target as u64) << 20 | number as u64;
    let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize % BLOCKS
}

/// What a host needs.
pub(super) fn needs(plan: &Plan, me: usize) -> Needs {
    let layout = Layout::of(plan, me);
    let slots = 2 * layout.slots;
    Needs {
        data: layout.end().max(64),
        slots,
        completions: [layout.peers * slots, layout.peers * layout.slots],
    }
}

/// Runs it.
///
/// # Errors
/// A command failed, or a byte is wrong.
pub(super) fn run(bus: HostBus<'_>, plan: &Plan, me: usize, account: &mut Account) -> Result<(), Error> {
    let mut connected = Connected::open(bus, plan, me, needs(plan, me))?;
    connected.connect(plan, me)?;
    let (layout, peers) = (Layout::of(plan, me), plan.peers(me));
    if is_target(plan, me) {
        let mut target = Target { plan, connected, layout, peers };
        target.prepare(me)?;
        start(&mut target.connected.hca, plan)?;
        return target.serve(account);
    }
    let slots = vec![Slot::default(); peers.len() * plan.depth];
    let begun = vec![0; peers.len()];
    let mut client = Client { plan, me, connected, layout, peers, slots, begun };
    client.prepare()?;
    start(&mut client.connected.hca, plan)?;
    client.read(account)
}

/// The place of a peer among all.
fn lane(peers: &[usize], peer: usize) -> Result<usize, Error> {
    peers.binary_search(&peer).map_err(|_| Error::new("a completion of nobody's"))
}

struct Target<'a> {
    plan: &'a Plan,
    connected: Connected<'a>,
    layout: Layout,
    peers: Vec<usize>,
}

impl Target<'_> {
    fn prepare(&mut self, me: usize) -> Result<(), Error> {
        for block in 0..BLOCKS {
            let (data, size) = (self.plan.data(me, me, block), self.plan.size);
            self.connected.memory.fill(self.layout.block(block).0, size, |bytes| data.put(bytes));
        }
        if self.plan.operation == Operation::Write {
            for lane in 0..self.peers.len() {
                (0..self.layout.slots).try_for_each(|slot| self.await_command(lane, slot))?;
            }
        }
        Ok(())
    }

    fn await_command(&mut self, lane: usize, slot: usize) -> Result<(), Error> {
        let Some(peer) = self.peers.get(lane) else { return Ok(()) };
        self.connected.post_recv(*peer, slot as u64, self.layout.command(lane, slot))
    }

    /// Answers all commands that are to come.
    fn serve(&mut self, account: &mut Account) -> Result<(), Error> {
        if self.plan.operation != Operation::Write {
            return Ok(());
        }
        let mut to_come = self.peers.len() * self.plan.messages;
        // A block and a response each.
        let mut left = 2 * to_come;
        while left > 0 {
            let now = self.connected.hca.bus_mut().turns().now();
            while let Some(done) = self.connected.sends.poll() {
                account.note(now, &done);
                let (peer, number) = self.connected.retire(&done)?;
                left = left.checked_sub(1).ok_or(Error::new("a send completed twice"))?;
                if number % 2 == 1 {
                    self.await_command(lane(&self.peers, peer)?, number as usize / 2)?;
                }
            }
            while let Some(done) = self.connected.receives.poll() {
                account.note(now, &done);
                let (peer, slot) = self.connected.retire(&done)?;
                to_come = to_come.checked_sub(1).ok_or(Error::new("a command too many"))?;
                self.answer(peer, slot as usize)?;
            }
            wait_for(&mut self.connected.hca, left, to_come)?;
        }
        Ok(())
    }

    fn answer(&mut self, peer: usize, slot: usize) -> Result<(), Error> {
        let lane = lane(&self.peers, peer)?;
        let mut command = [0; COMMAND];
        self.connected.memory.read(self.layout.command(lane, slot).0, &mut command);
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = command;
        let address = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let block = u32::from_le_bytes([i, j, k, l]) as usize;
        if block >= BLOCKS {
            return Err(Error::new(format!("host {peer} wants block {block}")));
        }
        let write = SendOp::Write { address, rkey: self.connected.key, imm: None };
        self.connected.post_send(peer, 2 * slot as u64, write, self.layout.block(block))?;
        let place = self.layout.response(lane, slot);
        self.connected.memory.write(place.0, &[m, n, o, p]);
        self.connected.post_send(peer, 2 * slot as u64 + 1, SendOp::Send { imm: None }, place)
    }
}

/// A block that is under way.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    block: usize,
    asked: Ps,
    /// What it still waits for: that its request is done, and that its block is there.
    requested: bool,
    awaited: bool,
}

struct Client<'a> {
    plan: &'a Plan,
    me: usize,
    connected: Connected<'a>,
    layout: Layout,
    /// Targets.
    peers: Vec<usize>,
    /// Of all targets, [`Plan::depth`] for each.
    slots: Vec<Slot>,
    /// How many blocks were asked for, of each target.
    begun: Vec<usize>,
}

impl Client<'_> {
    fn prepare(&mut self) -> Result<(), Error> {
        if self.plan.operation == Operation::Write {
            for lane in 0..self.peers.len() {
                (0..self.layout.slots).try_for_each(|slot| self.await_response(lane, slot))?;
            }
        }
        Ok(())
    }

    fn await_response(&mut self, lane: usize, slot: usize) -> Result<(), Error> {
        let Some(peer) = self.peers.get(lane) else { return Ok(()) };
        self.connected.post_recv(*peer, slot as u64, self.layout.response(lane, slot))
    }

    /// Asks for the next block of a target, if there is one, for a slot that is free.
    fn ask(&mut self, lane: usize, tag: usize) -> Result<(), Error> {
        let Self { plan, me, connected, layout, peers, slots, begun } = self;
        let depth = plan.depth;
        let (Some(peer), Some(begun)) = (peers.get(lane).copied(), begun.get_mut(lane)) else {
            return Ok(());
        };
        let place = lane * depth + tag;
        let Some(slot) = slots.get_mut(place).filter(|slot| !slot.requested && !slot.awaited) else {
            return Ok(());
        };
        if *begun == plan.messages {
            return Ok(());
        }
        let block = wanted(*me, peer, *begun);
        let asked = connected.hca.bus_mut().turns().now();
        *slot = Slot { block, asked, requested: true, awaited: true };
        *begun += 1;
        let buffer = layout.block(place);
        if plan.operation == Operation::Read {
            let op = SendOp::Read { address: connected.at(layout.block(block).0), rkey: connected.key };
            return connected.post_send(peer, tag as u64, op, buffer);
        }
        let command = layout.command(lane, tag);
        let words = [
            &connected.at(buffer.0).to_le_bytes()[..],
            &(block as u32).to_le_bytes(),
            &(tag as u32).to_le_bytes(),
        ];
        connected.memory.write(command.0, &words.concat());
        connected.post_send(peer, tag as u64, SendOp::Send { imm: None }, command)
    }

    /// A block is there.
    fn arrived(&mut self, lane: usize, tag: usize, account: &mut Account) -> Result<(), Error> {
        let place = lane * self.plan.depth + tag;
        let now = self.connected.hca.bus_mut().turns().now();
        let target = self.peers.get(lane).copied().unwrap_or(usize::MAX);
        let slot = self.slots.get_mut(place).filter(|slot| slot.awaited && tag < self.plan.depth);
        let slot = slot.ok_or(Error::new(format!("host {target} answers what nobody asked")))?;
        slot.awaited = false;
        let block = slot.block;
        account.latencies.push(now.since(slot.asked));
        let (start, size) = self.layout.block(place);
        let data = self.plan.data(target, target, block);
        if !self.connected.memory.look(start, size, |bytes| data.is_in(bytes)) {
            return Err(Error::new(format!("block {block} of host {target} was garbled")));
        }
        account.take(size);
        // The next has to come here, not just to be there from before.
        self.connected.memory.fill(start, size, |bytes| bytes.fill(0));
        Ok(())
    }

    /// Reads all.
    fn read(&mut self, account: &mut Account) -> Result<(), Error> {
        let mut left = self.peers.len() * self.plan.messages;
        let mut requests = left;
        for tag in 0..self.plan.depth {
            (0..self.peers.len()).try_for_each(|lane| self.ask(lane, tag))?;
        }
        while left > 0 || requests > 0 {
            let now = self.connected.hca.bus_mut().turns().now();
            while let Some(done) = self.connected.sends.poll() {
                account.note(now, &done);
                let (peer, tag) = self.connected.retire(&done)?;
                let (lane, tag) = (lane(&self.peers, peer)?, tag as usize);
                if let Some(slot) = self.slots.get_mut(lane * self.plan.depth + tag) {
                    slot.requested = false;
                }
                requests = requests.checked_sub(1).ok_or(Error::new("a request completed twice"))?;
                if self.plan.operation == Operation::Read {
                    self.arrived(lane, tag, account)?;
                    left = left.checked_sub(1).ok_or(Error::new("a block too many"))?;
                }
                self.ask(lane, tag)?;
            }
            while let Some(done) = self.connected.receives.poll() {
                account.note(now, &done);
                let (peer, slot) = self.connected.retire(&done)?;
                let (lane, slot) = (lane(&self.peers, peer)?, slot as usize);
                let tag =
                    self.connected.memory.load32(self.layout.response(lane, slot).0).swap_bytes() as usize;
                self.await_response(lane, slot)?;
                self.arrived(lane, tag, account)?;
                left = left.checked_sub(1).ok_or(Error::new("a block too many"))?;
                self.ask(lane, tag)?;
            }
            wait_for(&mut self.connected.hca, requests, left)?;
        }
        Ok(())
    }
}
