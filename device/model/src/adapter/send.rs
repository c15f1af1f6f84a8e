//! The sending side carried out: from a doorbell to WQEs, whose turn it is to send, and packets on their way to the port.

use hca_firmware::icm::Qp;
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::eqe::page_fault;
use hca_spec::ids::{Psn, Qpn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::rules;
use hca_spec::wire::Operation;
use hca_spec::wqe::{Ctrl, EthOpcode, WQEBB};

use super::core::{Core, Executor};
use super::flush::FLUSH_MOST;
use super::state::event::HcaEvent;
use super::state::groups::GroupHold;
use crate::engines::mkey::Fault;
use crate::engines::nic::Refused;
use crate::engines::nic::wqe::EthWqe;
use crate::engines::pieces::spans;
use crate::engines::qp::QueuePair;
use crate::engines::qp::message::Message;
use crate::engines::qp::page_fault::FaultedWqe;
use crate::engines::qp::requester::{Cursor, Next, WqeAction};
use crate::engines::qp::run::{Half, Planned};
use crate::engines::qp::send::{MAX_WQE, check_control, copy_blocks, copy_index};
use crate::engines::qp::wqe::{BadWqe, SpareWqes, Wqe};
use crate::ground::diagnosis::{Clue, Finding, Subject};
use crate::ground::event::{Event, Hold, Status};
use crate::ground::time::Ps;
use crate::link_layer::Packet;
use crate::wire::Repr;

/// What the doorbell record counts is looked at this much later, even if no doorbell says so.
const LATE_DOORBELL: Ps = Ps::from_ms(5);

/// What the send queue holds next.
enum Fetched {
    Nothing,
    Wqe(Box<Wqe>),
    /// Frames to send; or why not, and the index.
    Frames(Result<EthWqe, (u16, Refused)>),
    /// A WQE that can't be executed, at that index.
    Bad(u16, BadWqe),
}

/// What a WQE asks for.
pub(super) enum Posted {
    /// Of the transport, or of the adapter itself.
    Request(Box<Wqe>),
    /// Frames; or why they can't be sent.
    Frames(Result<EthWqe, Refused>),
}

/// Whether a WQE of a queue for frames sends some: others are like those of queue pairs.
fn sends_frames(ctrl: &Ctrl) -> bool {
    !matches!(EthOpcode::from_bits(ctrl.get(Ctrl::OPCODE)), None | Some(EthOpcode::Nop | EthOpcode::Umr))
}

/// When things happen to a packet that is sent.
struct Sending {
    /// The queue pair may go on.
    free: Ps,
    /// The packet leaves.
    departs: Ps,
}

impl Core<'_> {
    pub(super) fn read_block(
        &self,
        qp: &Qp,
        log_size: u32,
        index: u16,
        into: &mut [u8],
    ) -> Result<(), BadWqe> {
        let slot = u64::from(index) & ((1 << log_size) - 1);
        let (at, _) = qp
            .buffer
            .at(qp.rq_bytes() + slot * WQEBB as u64)
            .ok_or(BadWqe("the send queue has no memory"))?;
        self.function.memory.read(at, into).map_err(|_| BadWqe("the send queue's memory can't be read"))
    }

    /// Reads the send counter of the doorbell record.
    pub(super) fn fetch_posted(&self, qp: &mut QueuePair) -> bool {
        if !qp.params.has_record {
            return true;
        }
        let Ok(word) = self.read_be32(qp.params.doorbell_record.wrapping_add(4)) else { return false };
        qp.sq.posted = word as u16;
        true
    }

    /// When the WQE at the head is on the chip. What is not there is fetched: as many WQEs as one fetch reads, and as many
    /// fetches ahead as there may be. `None`: nothing is posted.
    fn at_hand(&mut self, now: Ps, qp: &mut QueuePair) -> Option<Ps> {
        if qp.sq.is_empty() || !qp.params.has_sq {
            return None;
        }
        let (number, fetches) = (qp.qpn.0, self.chip.timing.wqe_prefetches());
        let mut next = qp.sq.first_unfetched();
        // What was driven out is read again: it alone, and as many ahead as there may be fetches.
        for n in 0..if qp.sq.has_marks() { fetches } else { 0 } {
            let Some((blocks, mark)) = qp.sq.part(n) else { break };
            if let Some(at) = mark.and_then(|mark| self.chip.units.fetch_lost(now, number, mark, blocks)) {
                qp.sq.read_again(n, at, self.chip.units.wqes_taken());
            }
        }
        let most = u16::try_from(self.chip.timing.wqe_prefetch() / WQEBB).unwrap_or(u16::MAX).max(1);
        while let Some(blocks) = qp.sq.next_fetch(next, most, fetches) {
            let at = self.chip.units.fetch(now, number, blocks);
            next = next.wrapping_add(blocks);
            qp.sq.fetching(next, at, None, self.chip.units.wqes_taken());
        }
        qp.sq.head_at()
    }

    /// A doorbell has come: WQEs are fetched, and there is a turn to send them. The doorbell itself says how far the queue
    /// goes: that the record is read takes no time of its own.
    fn doorbell_rung(&mut self, now: Ps, qp: &mut QueuePair) {
        let at = self.at_hand(now, qp).unwrap_or(now);
        if !qp.sq.is_empty() {
            let (qpn, head, posted) = (qp.qpn, qp.sq.head, qp.sq.posted);
            self.note_span(now, Ps::ZERO, at.since(now), Event::Fetch { qpn, head, posted });
        }
        self.ask_turn(at, qp);
    }

    /// The doorbell record counts more than doorbells have said: it is looked at later, even if none comes.
    fn look_again(&mut self, now: Ps, qp: &mut QueuePair) {
        if !std::mem::replace(&mut qp.sq.behind, true) {
            self.schedule(now + LATE_DOORBELL, HcaEvent::SendDoorbell(qp.qpn));
        }
    }

    /// Reads the WQE at the head; the head moves beyond it.
    fn fetch_wqe(&mut self, qp: &mut QueuePair) -> Fetched {
        let available = qp.sq.waiting();
        if available == 0 || !qp.params.has_sq {
            return Fetched::Nothing;
        }
        let index = qp.sq.head;
        let copy = qp.sq.copy.take().filter(|copy| copy_index(copy) == index);
        let mut spare = std::mem::take(&mut self.function.wqes);
        let read = self.read_wqe(qp, available, copy.as_deref().unwrap_or_default(), &mut spare);
        self.function.wqes = spare;
        match read {
            Ok((work, blocks)) => {
                qp.sq.head = index.wrapping_add(blocks);
                match work {
                    Posted::Request(wqe) => Fetched::Wqe(wqe),
                    Posted::Frames(wqe) => Fetched::Frames(wqe.map_err(|refused| (index, refused))),
                }
            }
            Err(why) => {
                // Where the next WQE starts is unknown: the queue can only be flushed from here.
                qp.sq.head = index.wrapping_add(1);
                Fetched::Bad(index, why)
            }
        }
    }

    /// Reads the WQE at the head, into a spare one: what `copy` has of it from there, the rest from memory. Inlined where it is begun.
    #[inline(always)]
    pub(super) fn read_wqe(
        &self,
        hw: &QueuePair,
        available: u16,
        copy: &[u8],
        spare: &mut SpareWqes,
    ) -> Result<(Posted, u16), BadWqe> {
        let qp = self.function.fw.icm.qps.get(hw.qpn.0).ok_or(BadWqe("no such queue pair"))?;
        let log_size = hw.params.log_sq_size;
        let mut first = [0; WQEBB];
        let mut copied = copy.chunks_exact(WQEBB);
        match copied.next() {
            Some(block) => first.copy_from_slice(block),
            None => self.read_block(qp, log_size, hw.sq.head, &mut first)?,
        }
        let (size, blocks) = check_control(&Ctrl::from_prefix_or_zero(&first), hw.qpn, available, log_size)?;
        // Most WQEs are one block: room for the longest is made for those that are not.
        let mut longer;
        let bytes: &[u8] = if blocks == 1 {
            &first
        } else {
            longer = [0; MAX_WQE];
            let (begin, rest) = longer.split_at_mut(WQEBB);
            begin.copy_from_slice(&first);
            for (i, block) in (1..blocks).zip(rest.chunks_exact_mut(WQEBB)) {
                let index = hw.sq.head.wrapping_add(i);
                match copied.next() {
                    Some(from) => block.copy_from_slice(from),
                    None => self.read_block(qp, log_size, index, block)?,
                }
            }
            &longer
        };
        let bytes = bytes.get(..size).ok_or(BadWqe("DS is too large"))?;
        if hw.frames.is_some() && sends_frames(&Ctrl::from_prefix_or_zero(bytes)) {
            return Ok((Posted::Frames(EthWqe::parse(bytes)), blocks));
        }
        let mut wqe = spare.take();
        wqe.parse(bytes, hw.service, hw.service == ServiceType::Xrc)?;
        Ok((Posted::Request(wqe), blocks))
    }

    /// Schedules a turn to send, unless one is.
    #[inline]
    pub(crate) fn ask_turn(&mut self, at: Ps, qp: &mut QueuePair) {
        if !std::mem::replace(&mut qp.sq.turn, true) {
            self.await_turn(at, qp.port_lane(), HcaEvent::SendTurn(qp.qpn));
        }
    }

    /// Completes a message that went well.
    fn complete_send(&mut self, now: Ps, qp: &mut QueuePair, mut message: Message) {
        self.tell_done(now, qp, &mut message);
        self.function.wqes.give(message.wqe);
    }

    /// Tells that a message went well.
    fn tell_done(&mut self, now: Ps, qp: &mut QueuePair, message: &mut Message) {
        if let Some(offload) = message.wqe.offload {
            return self.offload_done(now, qp, &message.wqe, offload);
        }
        if !message.connect {
            let (qpn, index) = (qp.qpn, message.wqe.index);
            self.note(now, Event::Done { qpn, index, status: Status(None) });
        }
        if !message.wqe.signaled {
            return;
        }
        let mut cqe = qp.cqe(CqeOpcode::Req, message.wqe.index);
        cqe.set(Cqe::SEND_WQE_OPCODE, message.wqe.opcode as u32);
        cqe.set(Cqe::BYTE_CNT, message.wqe.length as u32);
        if qp.sq.due > now || !qp.sq.all_seen() {
            return self.complete_at(qp.sq.due, qp, cqe, std::mem::take(&mut message.data));
        }
        self.complete_for(now, qp, qp.params.cqn_snd, cqe, &message.data);
    }

    /// Completes a request at `at`, behind those before it.
    pub(crate) fn complete_at(&mut self, at: Ps, qp: &mut QueuePair, cqe: Cqe, data: Vec<u8>) {
        let at = qp.sq.defer_completion(at, cqe, data);
        self.schedule(at, HcaEvent::Sent(qp.qpn));
    }

    /// The host sees the completions that are due by `until`.
    pub(super) fn write_due_completions(&mut self, now: Ps, qp: &mut QueuePair, until: Ps) {
        while let Some(deferred) = qp.sq.next_due_completion(until) {
            self.complete_for(now, qp, qp.params.cqn_snd, deferred.cqe, &deferred.data);
        }
    }

    /// Sends the next packet, fetching a WQE if all fetched ones are sent.
    #[inline(always)]
    pub(super) fn send_packet(&mut self, now: Ps, qp: &mut QueuePair) {
        match qp.next() {
            Next::Held(why) => return self.note(now, Event::Held { qpn: qp.qpn, why }),
            Next::Nothing => return,
            Next::Message => {
                if !self.next_message(now, qp) {
                    return;
                }
            }
            Next::Packet => {}
        }
        let Some(sent) = self.transmit_cursor(now, qp) else { return };
        if !qp.service.is_reliable() {
            self.complete_front(now, qp, sent.departs);
        }
        let done = qp.requester.all_sent();
        // Whatever comes later asks for a turn itself.
        if qp.sends() && !(done && qp.has_nothing_to_begin()) {
            let pause = if done { self.chip.units.pause() } else { Ps::ZERO };
            self.ask_turn(sent.free + pause, qp);
        }
    }

    /// Fetches one WQE and begins it. `false`: it has no packet to send now. What is done at once (datagrams,
    /// local operations) asks for the next turn itself: one WQE a turn, so that none is free of time.
    fn next_message(&mut self, now: Ps, qp: &mut QueuePair) -> bool {
        qp.sq.waits_for_responses = false;
        if qp.state != QpState::Rts {
            return false;
        }
        if let Some(at) = self.go_on_with_frames(now, qp) {
            if let Some(at) = at {
                self.ask_turn(at, qp);
            }
            return false;
        }
        if let Some(begun) = self.begin_offload(now, qp) {
            return begun;
        }
        // The depth of outstanding reads holds back whatever comes next only if that is one itself, but
        // what comes next is known after the fetch: look first, fetch when it can start.
        match self.at_hand(now, qp) {
            None => return false,
            Some(at) if at > now => {
                self.ask_turn(at, qp);
                return false;
            }
            Some(_) => {}
        }
        if let Some(at) = qp.frames.map(|queue| queue.not_before).filter(|at| *at > now) {
            self.ask_turn(at, qp);
            return false;
        }
        let (qpn, head) = (qp.qpn, qp.sq.head);
        let wqe = match self.fetch_wqe(qp) {
            Fetched::Nothing => return false,
            Fetched::Bad(index, why) => {
                self.answer_mistake(now, || {
                    let found = format!("WQE {index}: {}", why.0);
                    let expected = "a known opcode, and the segments that it needs";
                    Finding::new(Subject::qp(qpn), "send WQE", found, expected, &rules::WQE_FORMAT)
                });
                self.note(now, Event::Unreadable { qpn, index });
                self.push_failed(now, qp, Box::new(Wqe::unreadable(index)), Syndrome::LocalQpOperation);
                return false;
            }
            Fetched::Frames(wqe) => {
                if let Some(at) = self.send_frames(now, qp, wqe) {
                    self.ask_turn(at, qp);
                }
                return false;
            }
            Fetched::Wqe(wqe) => wqe,
        };
        if qp.has_streams() && wqe.stream.is_some_and(|stream| !qp.switch_stream(stream, FLUSH_MOST.into())) {
            qp.sq.head = head;
            return false;
        }
        if self.is_stream_in_error(qp, &wqe) {
            self.push_failed(now, qp, wqe, Syndrome::WorkRequestFlushed);
            return false;
        }
        let action = qp.classify_wqe(&wqe);
        // The others are not kept until somebody answers.
        if matches!(action, WqeAction::Packets(_) | WqeAction::Local) && self.waits_for_memory(now, qp) {
            qp.sq.head = head;
            return false;
        }
        match action {
            WqeAction::Held(why) => {
                qp.sq.head = head;
                qp.sq.waits_for_responses = matches!(why, Hold::ReadDepth | Hold::Fence);
                self.note(now, Event::Held { qpn, why });
                false
            }
            WqeAction::Datagram => {
                self.note_started(now, qp, &wqe, qp.requester.next_psn, 1);
                if let Some(at) = self.send_datagram(now, qp, &wqe, head) {
                    self.ask_turn(at, qp);
                }
                false
            }
            WqeAction::Refused(syndrome, why) => {
                let index = wqe.index;
                self.answer_mistake(now, || {
                    let found = format!("WQE {index}: {why}");
                    let expected = "what the service and log_msg_max allow";
                    Finding::new(Subject::qp(qpn), "send WQE", found, expected, &rules::WQE_OPERATION)
                });
                self.push_failed(now, qp, wqe, syndrome);
                false
            }
            WqeAction::Local => {
                self.local_message(now, qp, wqe);
                false
            }
            WqeAction::Packets(packets) => {
                if let Some(target) = wqe.target
                    && !self.switch_target(now, qp, &target)
                {
                    qp.sq.head = head;
                    return false;
                }
                let first = qp.requester.next_psn;
                self.note_started(now, qp, &wqe, first, packets);
                // The response needs the WQE again. One that was fetched makes room in the queue's own buffer as it is executed,
                // if others wait behind it: from then on it is in the cache only, where it is as old as its fetch.
                if qp.sq.mark.is_none() && wqe.wants_response() && !qp.sq.is_empty() {
                    let blocks = qp.sq.head.wrapping_sub(head);
                    qp.sq.mark = Some(self.chip.units.keep(now, (qp.qpn.0, head), blocks, qp.sq.came));
                }
                qp.begin(wqe, packets);
                true
            }
        }
    }

    pub(super) fn push_failed(&mut self, now: Ps, qp: &mut QueuePair, wqe: Box<Wqe>, syndrome: Syndrome) {
        qp.requester.push_failed(wqe, syndrome);
        self.retire(now, qp);
    }

    /// Builds and sends the packet at the cursor.
    #[inline(always)]
    fn transmit_cursor(&mut self, now: Ps, qp: &mut QueuePair) -> Option<Sending> {
        if let Some(run) = qp.run_of(Half::Requester) {
            match run.packet(qp.requester.cursor, self.function.key_changes, &mut Vec::new()) {
                Some(planned) => return Some(self.transmit_run(now, qp, planned)),
                None => qp.run = None,
            }
        }
        let mut repr = Repr::default();
        let plan = match qp.plan(&self.view(), &mut repr) {
            Cursor::Nothing => return None,
            Cursor::NoCredit => {
                self.note(now, Event::Held { qpn: qp.qpn, why: Hold::NoCredit });
                return None;
            }
            Cursor::Packet(plan) => plan,
        };
        let path = qp.path(&self.view())?;
        let (qpn, who) = (qp.qpn, qp.accessor());
        let wqe = qp.requester.wqe_of(&plan)?;
        let mut found = Default::default();
        let built = Packet::build_with(&path, &repr, plan.payload, |buf| {
            found = self.keyed().gather(who, &wqe.pieces, plan.offset, buf)?;
            Ok::<(), Fault>(())
        });
        self.report_signature_errors(now, qp, qp.params.cqn_snd, found);
        let (index, psn) = (plan.index, repr.psn);
        let packet = match built {
            Ok(packet) => packet,
            Err(fault) => {
                let (kind, opcode) = (page_fault::SEND_OR_WRITE, plan.opcode);
                let met = FaultedWqe { kind, psn, index, opcode, committed: plan.offset };
                if !self.wait_to_send(now, qp, fault, met) {
                    self.fault(now, Subject::qp(qpn), format_args!("send WQE {index}"), who.pd, &fault);
                    self.fail_message(now, qp, psn, Syndrome::LocalProtection);
                }
                return None;
            }
        };
        qp.requester.advance(psn, plan.step);
        let timing = &self.chip.timing;
        let parsed = if plan.first { timing.wqe() } else { Ps::ZERO };
        let gathering = if plan.gathers { timing.gather() } else { Ps::ZERO };
        let service = timing.transmit() + parsed + gathering;
        let free = self.chip.units.send(now, qpn.0, service);
        let mut ready = free;
        if let Some(wqe) = qp.requester.wqe_of(&plan) {
            let data = spans(&self.function.fw.icm, &wqe.pieces, plan.offset, plan.payload);
            let further = || if plan.first { wqe.further_lines() } else { 0 };
            ready = self.chip.units.put_together(now, qpn.0, free, further, data);
        }
        let built = (packet, index, psn, repr.operation);
        let sent = self.launch_request(now, qp, (free, ready), service, built);
        self.begin_run(qp, Half::Requester);
        Some(sent)
    }

    /// Takes a request packet to the port: the unit is done with it at `free` and its data is there at `ready`.
    #[inline(always)]
    fn launch_request(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        (free, ready): (Ps, Ps),
        service: Ps,
        (packet, index, psn, operation): (Packet, u16, Psn, Operation),
    ) -> Sending {
        let qpn = qp.qpn;
        let departs = self.chip.units.depart(qpn.0, ready);
        let bytes = packet.len() as u32;
        self.note_job(now, free, service, Event::Build { qpn, index, psn, operation, bytes });
        qp.lane = self.launch_of(departs, qp, operation, packet);
        if qp.congestion.is_some() {
            self.limited_sent(now, qp, bytes);
        }
        self.group_sent(now, qp.group, bytes.into());
        if qp.service.is_reliable() && qp.requester.deadline.is_none() {
            self.start_timer(departs, qp);
        }
        Sending { free, departs }
    }

    /// Sends a packet of a run.
    fn transmit_run(&mut self, now: Ps, qp: &mut QueuePair, planned: Planned) -> Sending {
        let Planned { packet, psn, operation, index, data } = planned;
        qp.requester.advance(psn, 1);
        let (qpn, service) = (qp.qpn, self.chip.timing.transmit());
        let free = self.chip.units.send(now, qpn.0, service);
        let ready = self.chip.units.put_together(now, qpn.0, free, || 0, std::iter::once(data));
        self.launch_request(now, qp, (free, ready), service, (packet, index, psn, operation))
    }

    /// Unreliable: a message is complete when its last packet has left.
    fn complete_front(&mut self, now: Ps, qp: &mut QueuePair, departs: Ps) {
        qp.sq.due = departs + self.chip.units.completion_latency();
        while let Some(message) = qp.requester.next_sent() {
            self.complete_send(now, qp, message);
        }
        self.drain(now, qp);
    }

    /// The ACK timer runs from `now` on.
    fn start_timer(&mut self, now: Ps, qp: &mut QueuePair) {
        let Some(own) = qp.params.ack_timeout else { return };
        let adaptive = self.acceleration(qp.port()).adaptive_retransmission;
        let requester = &mut qp.requester;
        let timeout = match adaptive {
            true => requester.patience.get_or_insert_default().wait(now, requester.sent, own),
            false => {
                requester.patience = None;
                own
            }
        };
        let deadline = now + timeout;
        if requester.run_timer(deadline) {
            self.schedule(deadline, HcaEvent::AckTimeout(qp.qpn));
        }
    }

    /// Something was acknowledged: the timer starts anew if more is outstanding.
    pub(crate) fn progress(&mut self, now: Ps, qp: &mut QueuePair) {
        if qp.requester.progressed(now, &qp.params) {
            self.start_timer(now, qp);
        }
    }

    /// Completes, in order, what can be completed at the front; what is more than [`FLUSH_MOST`] in events of its own.
    pub(crate) fn retire(&mut self, now: Ps, qp: &mut QueuePair) {
        for _ in 0..FLUSH_MOST {
            match qp.requester.next_done() {
                Ok(Some(done)) => self.complete_send(now, qp, done),
                Ok(None) => {
                    qp.requester.skip_acknowledged();
                    return self.drain(now, qp);
                }
                Err(syndrome) => return self.fail_requests(now, qp, syndrome),
            }
        }
        // One answer may complete all that a ring has.
        self.schedule(now, HcaEvent::Sent(qp.qpn));
    }
}

impl Executor<'_> {
    /// A send doorbell was rung.
    pub(crate) fn send_doorbell(&mut self, now: Ps, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        match qp.state {
            QpState::Rts => {
                let known = qp.sq.waiting();
                if !self.core.fetch_posted(qp) {
                    let record = qp.params.doorbell_record;
                    self.core.answer_mistake(now, || {
                        let found = format!("{record:#x}, which the adapter does not reach");
                        let expected = "memory that is mapped, by an IOMMU too";
                        Finding::new(Subject::qp(qpn), "dbr_addr", found, expected, &rules::RECORD_READ)
                            .with(Clue::Unreached(record))
                    });
                    return;
                }
                qp.sq.behind = false;
                // What the host stores on the adapter comes as doorbells do, in order, but the record is memory. On a bus a read of it brings
                // the stores before it; here it may count WQEs whose stores have not come.
                let stores = !self.core.function.fw.icm.device_memory.is_empty() && qp.params.has_record;
                if stores && qp.sq.rung_before(known, now, LATE_DOORBELL) {
                    self.core.look_again(now, qp);
                }
                self.core.doorbell_rung(now, qp);
            }
            QpState::Error | QpState::SqError if !qp.requester.messages.is_empty() => {
                self.core.flush_sends(now, qp, None);
            }
            QpState::Error | QpState::SqError if self.core.function.outstanding.is_some() => {
                self.core.flush_posted(now, qp);
            }
            QpState::Error | QpState::SqError => self.core.flush_unfetched(now, qp),
            // PRM: a WQE posted before RTS waits; in RESET it is ignored.
            _ => {}
        }
    }

    /// A WQE came with its doorbell. If it is the next to execute there is nothing to fetch; otherwise, because others
    /// wait before it or because the doorbell record does not count it yet, it is a doorbell like any other.
    pub(crate) fn blueflame(&mut self, now: Ps, qpn: Qpn, copy: Box<[u8]>) {
        let Some(qp) = self.qps.get_mut(qpn.0).filter(|qp| qp.state == QpState::Rts) else {
            return self.send_doorbell(now, qpn);
        };
        let known = qp.sq.waiting();
        if !self.core.fetch_posted(qp) || qp.sq.is_empty() {
            return self.send_doorbell(now, qpn);
        }
        if qp.sq.rung_with(&copy, known) {
            self.core.look_again(now, qp);
        }
        let (index, blocks) = (copy_index(&copy), copy_blocks(&copy));
        let most = self.core.chip.timing.wqe_prefetch() * self.core.chip.timing.wqe_prefetches();
        if qp.sq.keeps(&copy, most)
            && let mark @ Some(_) = self.core.chip.units.cache_from_doorbell(now, qpn.0, index, blocks)
        {
            qp.sq.fetching(index.wrapping_add(blocks), now, mark, 0);
        }
        if index == qp.sq.head {
            tracing::trace!(hca = self.core.chip.name, %now, "QP {qpn}: WQE {index} by BlueFlame");
            qp.sq.copy = Some(copy);
        }
        self.core.doorbell_rung(now, qp);
    }

    /// Completions of requests without an answer are due.
    pub(crate) fn sent(&mut self, now: Ps, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        self.core.write_due_completions(now, qp, now);
        match qp.state {
            // What is left is flushed.
            QpState::Error | QpState::SqError => return self.core.drain(now, qp),
            _ => self.core.retire(now, qp),
        }
        // What waits for all before it to be complete had its turn when the first of them were.
        if qp.sends() && qp.is_waiting_for_responses() && qp.requester.is_idle() {
            self.core.ask_turn(now, qp);
        }
    }

    /// A queue pair's turn: at most one packet leaves, then the next turn is asked for.
    pub(crate) fn send_turn(&mut self, now: Ps, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return };
        qp.sq.turn = false;
        if qp.sends() {
            // Packets that arrive go first: what the units have to do already, and what comes until they are done.
            let idle_from = self.core.chip.units.idle_from(now);
            qp.sq.yielded = idle_from > now && !qp.sq.yielded;
            if qp.sq.yielded {
                return self.core.ask_turn(idle_from, qp);
            }
            let until = self.core.rate_holds(now, qp);
            match (until, self.core.group_holds(now, qpn, qp.group)) {
                (until, Some(GroupHold::Until(free))) => {
                    return self.core.ask_turn(until.map_or(free, |until| until.max(free)), qp);
                }
                (Some(until), _) => return self.core.ask_turn(until, qp),
                (None, Some(GroupHold::Waits)) => {
                    qp.sq.turn = true;
                    return self.core.wait_in_group(now, qpn, qp.group);
                }
                (None, None) => {}
            }
            self.core.send_packet(now, qp);
        }
        if !qp.sq.turn {
            self.core.group_left(now, qpn);
        }
    }
}
