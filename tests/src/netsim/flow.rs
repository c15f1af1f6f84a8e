//! Plays a history: every end posts requests to its peer, and every completion is checked.

use super::net::{EMPTY, End, GUARD, Layout, Network, Parameters};
use super::oracle::{Kind, Op, Told, addend, plan, recognise, unreliable_writes};
use super::{Cell, Fault, Report, Service, Size, Traced};
use crate::in_process::Simulation;
use crate::seeded::Random;
use hca_driver::wqe::{SendOp, SendRequest};
use hca_driver::{Completion, Dma};
use hca_model::Ps;
use hca_spec::cqe::{CqeOpcode, Syndrome};
use std::collections::VecDeque;

/// Bytes in front of a received datagram.
const GRH: usize = 40;
/// Time goes on by at least this much between two looks at the completion queues.
const STEP: Ps = Ps::from_us(2);
/// After all is done: what is still on its way arrives within this.
const SETTLE: Ps = Ps::from_ms(20);
/// A history that takes longer is stuck.
const LIMIT: Ps = Ps::from_ms(60_000);

/// Requests from one end to its peer.
struct Flow {
    ops: Vec<Op>,
    /// Requests posted, and those known to be done.
    posted: usize,
    done: usize,
    /// The request that failed.
    failed: Option<usize>,
    /// Completions of requests behind it.
    flushed: usize,
    /// Requests that the peer was told of; the last of them.
    delivered: u64,
    last: Option<usize>,
    /// Receive requests to post at the peer: when, and for which request.
    receives: VecDeque<(Ps, usize)>,
}

impl Flow {
    fn is_over(&self) -> bool {
        match self.failed {
            Some(failed) => failed + 1 + self.flushed >= self.posted,
            None => self.done == self.ops.len(),
        }
    }
}

struct History<'a> {
    cell: &'a Cell,
    network: Network,
    /// One per end: what it sends.
    flows: Vec<Flow>,
    window: usize,
    random: Random,
}

fn parameters(cell: &Cell, look: Option<u64>, random: &mut Random) -> (Parameters, usize, usize) {
    // A mebibyte in packets of 256 bytes only takes longer.
    let code = if cell.size == Size::Mebibyte { 3 + random.below(3) } else { 1 + random.below(5) };
    let mtu = if cell.service == Service::Ud { super::cell::DATAGRAM_MTU } else { 128 << code };
    let message = cell.size.bytes(mtu);
    let (count, window) = match (cell.service, cell.size) {
        (_, Size::Mebibyte) => (7, 2),
        (Service::Rc, Size::Several) => (14, 4),
        (Service::Rc, _) => (21, 1 << random.below(4)),
        (_, _) => (24, 8),
    };
    let inbound = match cell.service {
        Service::Uc => unreliable_writes(count) + window,
        _ => window,
    };
    let before = if cell.service == Service::Ud { GRH } else { 0 };
    let results = if cell.service == Service::Rc { window } else { 0 };
    let layout = Layout::new(message, before, inbound, results);
    let retries = if cell.fault == Fault::Storm { 1 } else { 7 };
    // 4.096 us * 2^n: longer than the longest queue before a port.
    let ack_timeout = if cell.size == Size::Mebibyte { 13 } else { 10 };
    let (faults, traced) = (look.unwrap_or_default(), look.is_some());
    (Parameters { layout, mtu: code as u8, retries, ack_timeout, faults, traced }, count, window)
}

/// Plays the history `seed` of `cell`.
pub(super) fn play(cell: &Cell, seed: u64) -> Result<Report, String> {
    let (history, _) = start(cell, seed, None)?;
    history.finish()
}

/// Plays the same with these other faults, and hashes everything that happens.
pub(super) fn traced(cell: &Cell, seed: u64, faults: u64) -> Result<Traced, String> {
    let (history, simulation) = start(cell, seed, Some(faults))?;
    let report = history.finish()?;
    let trace = simulation.world(|world, _| world.trace().map(|trace| (trace.hash(), trace.count())));
    let (hash, events) = trace.ok_or("no trace")?;
    Ok(Traced { report, hash, events })
}

/// Plays a history until every request is over.
fn start(cell: &Cell, seed: u64, look: Option<u64>) -> Result<(History<'_>, Simulation), String> {
    let mut random = Random::new(seed);
    let (parameters, count, window) = parameters(cell, look, &mut random);
    let network = Network::new(cell, &parameters, &mut random)?;
    let flows = network.ends.iter().map(|_| Flow {
        ops: plan(cell.service, count, window, &mut random),
        posted: 0,
        done: 0,
        failed: None,
        flushed: 0,
        delivered: 0,
        last: None,
        receives: VecDeque::new(),
    });
    let flows = flows.collect();
    let mut history = History { cell, network, flows, window, random };
    history.prepare()?;
    history.play()?;
    let simulation = history.network.simulation.clone();
    Ok((history, simulation))
}

impl History<'_> {
    fn layout(&self) -> Layout {
        self.network.layout
    }

    fn is_reliable(&self) -> bool {
        self.cell.service == Service::Rc
    }

    /// Datagrams of more than a packet can't be sent.
    fn is_too_long(&self) -> bool {
        self.cell.service == Service::Ud && self.layout().message > super::cell::DATAGRAM_MTU
    }

    /// First of the slots that receive requests of unreliable services use.
    fn receive_slot(&self, i: usize) -> usize {
        self.layout().inbound - self.window + i
    }

    /// Unreliable services never wait for a receive request, so these are there before.
    fn prepare(&mut self) -> Result<(), String> {
        if self.is_reliable() {
            return Ok(());
        }
        for end in 0..self.network.ends.len() {
            for i in 0..self.window {
                self.post_receive(end, i as u64, self.receive_slot(i))?;
            }
        }
        Ok(())
    }

    fn post_receive(&mut self, end: usize, wr_id: u64, slot: usize) -> Result<(), String> {
        let layout = self.layout();
        let len = match self.cell.service {
            Service::Ud => layout.message.min(super::cell::DATAGRAM_MTU) + GRH,
            _ => layout.message,
        };
        let end = &mut self.network.ends[end];
        let at = layout.inbound(slot);
        // Two pieces, so that packets are scattered over their border.
        let cut = self.random.below(len + 1);
        let sges = [end.sge(at, cut), end.sge(at + cut, len - cut)];
        end.qp.post_recv(wr_id, &sges).map_err(|e| format!("post_recv: {e}"))
    }

    fn play(&mut self) -> Result<(), String> {
        loop {
            for flow in 0..self.flows.len() {
                self.post_due_receives(flow)?;
                self.poll_receives(flow)?;
            }
            for flow in 0..self.flows.len() {
                self.poll_sends(flow)?;
                self.post(flow)?;
            }
            if self.flows.iter().all(Flow::is_over) {
                return Ok(());
            }
            let simulation = &self.network.simulation;
            let now = simulation.now();
            if now > LIMIT {
                let stuck = self.flows.iter().position(|f| !f.is_over());
                let flow = stuck.map(|i| (i, self.flows[i].posted, self.flows[i].done));
                return Err(format!("stuck: flow, posted, done: {flow:?}"));
            }
            let next = simulation.world(|world, _| world.next_event()).unwrap_or(now);
            simulation.run(STEP.max(Ps(next.0.saturating_sub(now.0))));
        }
    }

    /// Posts what fits into the window, now and then less.
    fn post(&mut self, flow: usize) -> Result<(), String> {
        loop {
            let f = &self.flows[flow];
            let k = f.posted;
            if f.failed.is_some() || k == f.ops.len() || k >= f.done + self.window || self.random.one_in(4) {
                return Ok(());
            }
            // Requests behind one that failed unseen are flushed; nothing is lost by posting them.
            self.post_one(flow, k)?;
            self.flows[flow].posted += 1;
        }
    }

    fn post_one(&mut self, flow: usize, k: usize) -> Result<(), String> {
        let layout = self.layout();
        let op = self.flows[flow].ops[k];
        let peer = self.network.ends[flow].peer;
        if self.is_reliable() {
            let blank = vec![EMPTY; layout.message.max(8) + 2 * GUARD];
            let here = matches!(op.kind, Kind::Read | Kind::FetchAdd | Kind::CompareSwap);
            let (at, end) =
                if here { (layout.result(op.slot), flow) } else { (layout.inbound(op.slot), peer) };
            self.network.ends[end].memory.write(at - GUARD, &blank);
            if op.is_told() {
                // Some receive requests are late: the sender meets "not ready".
                let late = if self.random.one_in(6) { self.random.below(40) as u64 } else { 0 };
                let due = self.network.simulation.now() + Ps::from_us(late);
                self.flows[flow].receives.push_back((due, k));
                self.post_due_receives(flow)?;
            }
        }
        let (far_address, rkey) = {
            let mr = self.network.ends[peer].mr;
            (mr.address, mr.key)
        };
        let far = |offset: usize| far_address + offset as u64;
        let imm = op.has_imm().then_some(k as u32);
        let near = &mut self.network.ends[flow];
        let sends = matches!(op.kind, Kind::Send | Kind::SendImm);
        let send_op = match op.kind {
            _ if sends && self.cell.service == Service::Ud => SendOp::Datagram { to: near.to, imm },
            Kind::Send | Kind::SendImm => SendOp::Send { imm },
            Kind::Write | Kind::WriteImm => {
                SendOp::Write { address: far(layout.inbound(op.slot)), rkey, imm }
            }
            Kind::Read => SendOp::Read { address: far(layout.source() + op.start), rkey },
            Kind::FetchAdd => SendOp::FetchAdd { address: far(layout.word(0)), rkey, add: addend(k) },
            Kind::CompareSwap => {
                let (address, compare) = (far(layout.word(1)), op.compare);
                // What is swapped in when the comparison fails must not matter.
                let swap = if op.compare == op.before { op.after } else { !op.after };
                SendOp::CompareSwap { address, rkey, compare, swap }
            }
        };
        let (at, len) = match op.kind {
            Kind::FetchAdd | Kind::CompareSwap => (layout.result(op.slot), 8),
            Kind::Read => (layout.result(op.slot), layout.message),
            _ => (layout.source() + op.start, layout.message),
        };
        let cut = if len == 8 { len } else { self.random.below(len + 1) };
        let sges = [near.sge(at, cut), near.sge(at + cut, len - cut)];
        let data = near.source.get(op.start..op.start + layout.message).unwrap_or_default().to_vec();
        let writes = sends || matches!(op.kind, Kind::Write | Kind::WriteImm);
        let request = SendRequest { signaled: op.signaled, ..SendRequest::new(k as u64, send_op, &sges) };
        let request = match writes && layout.message <= 200 && self.random.one_in(2) {
            true => request.inline(&data),
            false => request,
        };
        let hca = &mut self.network.hcas[near.home];
        near.qp.post_send(hca.bus_mut(), &request).map_err(|e| format!("post_send: {e}"))
    }

    fn post_due_receives(&mut self, flow: usize) -> Result<(), String> {
        let peer = self.network.ends[flow].peer;
        while let Some((due, k)) = self.flows[flow].receives.front().copied() {
            if due > self.network.simulation.now() {
                break;
            }
            self.flows[flow].receives.pop_front();
            self.post_receive(peer, k as u64, self.flows[flow].ops[k].slot)?;
        }
        Ok(())
    }

    /// What the peer of a flow was told.
    fn poll_receives(&mut self, flow: usize) -> Result<(), String> {
        let peer = self.network.ends[flow].peer;
        while let Some(completion) = self.network.ends[peer].recv_cq.poll() {
            let wr_id = self.network.ends[peer].qp.finish(&completion);
            let wr_id = wr_id.ok_or_else(|| format!("a completion of nothing: {completion:?}"))?;
            if completion.status.is_err() {
                // Only a queue pair that went to error flushes its receives.
                let gave_up = self.is_too_long() || self.cell.fault == Fault::Storm;
                if gave_up && completion.syndrome() == Some(Syndrome::WorkRequestFlushed) {
                    continue;
                }
                return Err(format!("receive {wr_id} failed: {completion:?}"));
            }
            match self.is_reliable() {
                true => self.told_reliably(flow, wr_id as usize, &completion)?,
                false => self.told_unreliably(flow, wr_id as usize, &completion)?,
            }
            self.flows[flow].delivered += 1;
        }
        Ok(())
    }

    /// RC: exactly the next request that tells the peer, whole.
    fn told_reliably(&mut self, flow: usize, wr_id: usize, completion: &Completion) -> Result<(), String> {
        let layout = self.layout();
        let f = &mut self.flows[flow];
        let from = f.last.map_or(0, |k| k + 1);
        let next = (from..f.posted).find(|k| f.ops[*k].is_told());
        let Some(k) = next else { return Err(format!("told of more than was sent: {completion:?}")) };
        f.last = Some(k);
        let op = f.ops[k];
        let imm = op.has_imm().then_some(k as u32);
        let bytes = completion.byte_len as usize;
        if (wr_id, completion.imm, bytes) != (k, imm, layout.message) || !opcode_fits(&op, completion) {
            return Err(format!("expected request {k} ({op:?}), told of receive {wr_id}: {completion:?}"));
        }
        self.check_inbound(flow, k)
    }

    /// The message of request `k` is in its slot at the peer, and nothing around it.
    fn check_inbound(&self, flow: usize, k: usize) -> Result<(), String> {
        let layout = self.layout();
        let (near, op) = (&self.network.ends[flow], &self.flows[flow].ops[k]);
        let far = &self.network.ends[near.peer];
        check_slot(far, layout.inbound(op.slot), op.data(&near.source, &layout))
            .map_err(|e| format!("request {k} ({:?}) at the peer: {e}", op.kind))
    }

    /// UC and UD: some whole message.
    fn told_unreliably(&mut self, flow: usize, wr_id: usize, completion: &Completion) -> Result<(), String> {
        let layout = self.layout();
        let near = &self.network.ends[flow];
        let far = &self.network.ends[near.peer];
        let slot = self.receive_slot(wr_id);
        let is_write = completion.opcode == Some(CqeOpcode::RespWrImm);
        let grh = if self.cell.service == Service::Ud { GRH } else { 0 };
        let bytes = completion.byte_len as usize;
        let expected = layout.message + grh;
        if bytes != expected {
            return Err(format!("a message of {bytes} bytes arrived, {expected} were sent: {completion:?}"));
        }
        let data = if is_write { Vec::new() } else { far.bytes(layout.inbound(slot) + grh, layout.message) };
        if grh > 0 {
            let who = (completion.source_qpn, completion.source_lid, completion.has_grh);
            if who != (near.qp.number(), far.to.lid, near.global) {
                return Err(format!("a datagram from {who:?}"));
            }
        }
        let f = &self.flows[flow];
        let told = Told { imm: completion.imm, is_write, data: &data };
        let posted = f.ops.get(..f.posted).unwrap_or_default();
        let k = recognise(&told, posted, f.last, self.cell.fault, near, &layout)?;
        if is_write {
            self.check_inbound(flow, k)?;
        } else {
            let len = data.len() + grh;
            check_guards(far, layout.inbound(slot), len)?;
        }
        self.flows[flow].last = Some(k);
        let (peer, at) = (self.network.ends[flow].peer, layout.inbound(slot));
        let blank = vec![EMPTY; layout.message + grh];
        self.network.ends[peer].memory.write(at, &blank);
        self.post_receive(peer, wr_id as u64, slot)
    }

    fn poll_sends(&mut self, flow: usize) -> Result<(), String> {
        while let Some(completion) = self.network.ends[flow].send_cq.poll() {
            let wr_id = self.network.ends[flow].qp.finish(&completion);
            let k = wr_id.ok_or_else(|| format!("a completion of nothing: {completion:?}"))? as usize;
            let done = self.flows[flow].done;
            if completion.status.is_err() {
                self.sent_in_error(flow, k, &completion)?;
                continue;
            }
            let f = &self.flows[flow];
            if k < done || k >= f.posted || f.failed.is_some() || !f.ops[k].signaled {
                return Err(format!("request {k} completed, {done} were done, {} posted", f.posted));
            }
            if let Some(unseen) = (done..k).find(|j| f.ops[*j].signaled) {
                return Err(format!("request {k} completed before {unseen}"));
            }
            self.all_done_before(flow, k + 1)?;
        }
        Ok(())
    }

    /// Requests up to `end` completed without error: what they did is visible.
    fn all_done_before(&mut self, flow: usize, end: usize) -> Result<(), String> {
        for j in self.flows[flow].done..end {
            if self.is_reliable() {
                self.check_done(flow, j)?;
            }
        }
        self.flows[flow].done = end;
        Ok(())
    }

    fn check_done(&self, flow: usize, k: usize) -> Result<(), String> {
        let layout = self.layout();
        let (near, f) = (&self.network.ends[flow], &self.flows[flow]);
        let op = &f.ops[k];
        match op.kind {
            Kind::Write => self.check_inbound(flow, k),
            Kind::Send | Kind::SendImm | Kind::WriteImm => match f.last {
                Some(last) if last >= k => Ok(()),
                _ => Err(format!("request {k} ({:?}) completed, but the peer was not told", op.kind)),
            },
            Kind::Read => {
                let source = &self.network.ends[near.peer].source;
                check_slot(near, layout.result(op.slot), op.data(source, &layout))
            }
            Kind::FetchAdd | Kind::CompareSwap => {
                check_slot(near, layout.result(op.slot), &op.before.to_ne_bytes())
            }
        }
        .map_err(|e| format!("request {k} ({:?}): {e}", op.kind))
    }

    fn sent_in_error(&mut self, flow: usize, k: usize, completion: &Completion) -> Result<(), String> {
        let syndrome = completion.syndrome();
        if let Some(failed) = self.flows[flow].failed {
            self.flows[flow].flushed += 1;
            let next = failed + self.flows[flow].flushed;
            return match syndrome == Some(Syndrome::WorkRequestFlushed) && k == next {
                true => Ok(()),
                false => Err(format!("request {next} is to be flushed, request {k}: {completion:?}")),
            };
        }
        let expected =
            if self.is_too_long() { Syndrome::LocalLength } else { Syndrome::TransportRetryExceeded };
        let may_fail = self.is_too_long() || self.cell.fault == Fault::Storm;
        if !may_fail || syndrome != Some(expected) {
            return Err(format!("request {k} failed: {completion:?}"));
        }
        // What is before it is done, or it would have failed itself.
        self.all_done_before(flow, k)?;
        self.flows[flow].failed = Some(k);
        Ok(())
    }

    fn finish(mut self) -> Result<Report, String> {
        self.network.simulation.run(SETTLE);
        let mut report = Report::default();
        for flow in 0..self.flows.len() {
            self.poll_receives(flow)?;
            if let Some(extra) = self.network.ends[flow].send_cq.poll() {
                return Err(format!("one completion more than requests: {extra:?}"));
            }
            self.check_end(flow)?;
            let f = &self.flows[flow];
            report.posted += f.posted as u64;
            report.completed += f.done as u64;
            report.delivered += f.delivered;
            report.gave_up += u64::from(f.failed.is_some());
        }
        report.refused = self.network.refused()?;
        self.network.close()?;
        Ok(report)
    }

    /// What memory must hold when all is over.
    fn check_end(&self, flow: usize) -> Result<(), String> {
        let layout = self.layout();
        let (near, f) = (&self.network.ends[flow], &self.flows[flow]);
        let far = &self.network.ends[near.peer];
        if far.bytes(layout.source(), far.source.len()) != far.source {
            return Err("the peer's source region changed".to_string());
        }
        if self.is_too_long() {
            return match (f.delivered, f.failed) {
                (0, Some(0)) => Ok(()),
                other => Err(format!("a datagram of more than a packet: delivered, failed: {other:?}")),
            };
        }
        if self.is_reliable() {
            // Requests that are known to be done are done once; those that failed may have been done, in order.
            let words = [Kind::FetchAdd, Kind::CompareSwap];
            for (i, kind) in words.into_iter().enumerate() {
                let of_kind = || f.ops.iter().enumerate().filter(move |(_, op)| op.kind == kind);
                let sure = of_kind().rfind(|(k, _)| *k < f.done).map_or(0, |(_, op)| op.after);
                let maybe = of_kind().filter(|(k, _)| *k >= f.done && *k < f.posted).map(|(_, op)| op.after);
                let mut word = [0; 8];
                far.memory.read(layout.word(i), &mut word);
                let word = u64::from_ne_bytes(word);
                if !std::iter::once(sure).chain(maybe).any(|value| value == word) {
                    return Err(format!("{kind:?}: the word is {word:#x}, expected {sure:#x}"));
                }
            }
            return Ok(());
        }
        for (k, op) in
            f.ops.iter().enumerate().filter(|(_, op)| matches!(op.kind, Kind::Write | Kind::WriteImm))
        {
            let at = layout.inbound(op.slot);
            let data = op.data(&near.source, &layout);
            let held = far.bytes(at, data.len());
            // An unfinished write may have left any of its packets.
            if held.iter().zip(data).any(|(held, sent)| held != sent && *held != EMPTY) {
                return Err(format!("request {k}: the peer's memory holds what was never written"));
            }
            check_guards(far, at, data.len())?;
        }
        Ok(())
    }
}

fn opcode_fits(op: &Op, completion: &Completion) -> bool {
    let expected = match op.kind {
        Kind::SendImm => CqeOpcode::RespSendImm,
        Kind::WriteImm => CqeOpcode::RespWrImm,
        _ => CqeOpcode::RespSend,
    };
    completion.opcode == Some(expected)
}

/// The slot holds `data` and its guards are as they were.
fn check_slot(end: &End, at: usize, data: &[u8]) -> Result<(), String> {
    let held = end.bytes(at, data.len());
    if let Some(first) = held.iter().zip(data).position(|(held, sent)| held != sent) {
        let wrong = held.iter().zip(data).filter(|(held, sent)| held != sent).count();
        return Err(format!("{wrong} of {} bytes are wrong, the first is byte {first}", data.len()));
    }
    check_guards(end, at, data.len())
}

fn check_guards(end: &End, at: usize, len: usize) -> Result<(), String> {
    let intact = |from: usize| end.bytes(from, GUARD).iter().all(|b| *b == EMPTY);
    match intact(at - GUARD) && intact(at + len) {
        true => Ok(()),
        false => Err(format!("something was written around the {len} bytes of a message")),
    }
}
