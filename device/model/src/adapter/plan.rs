//! What an input reads, before it is carried out: asked for where memory answers later.
//!
//! A plan changes nothing. It makes the reads that carrying out the input will make, in their order where one says where the
//! next is (a counter, then the WQE, then what it gathers), as [`OutstandingReads`] hands out what is there. It may read
//! more than is needed, never less: `World::unforeseen_reads` counts what was missing.
//!
//! [`OutstandingReads`]: crate::ground::outstanding::OutstandingReads

use std::borrow::Cow;

use hca_firmware::RqSource;
use hca_firmware::commands::find;
use hca_firmware::object::Kind;
use hca_spec::be32;
use hca_spec::command::{CommandEntry, Opcode};
use hca_spec::ether::FCS_SIZE;
use hca_spec::ids::{Cqn, Pd, Qpn, Rqn, Srqn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::queue::{Cqc, Srqc, Wq};
use hca_spec::rq::Rqc;
use hca_spec::wire::{Operation, Transport};
use hca_spec::wqe::{Ctrl, WQEBB};

use super::core::{Core, Executor};
use super::dynamic::SLICE;
use super::flush::FLUSH_STEP;
use super::send::Posted;
use super::state::event::{Arrived, HcaEvent};
use super::state::frames::QueuedFrame;
use crate::engines::command::{Fetch, FetchStep, MAX_READ, OutputStep};
use crate::engines::cq::CompletionQueue;
use crate::engines::mkey::{Access, Accessor};
use crate::engines::nic::wqe::EthWqe;
use crate::engines::pieces::{Piece, total};
use crate::engines::qp::QueuePair;
use crate::engines::qp::answers::{ReadLeft, Response};
use crate::engines::qp::datagram::GRH_ROOM;
use crate::engines::qp::dct::Peer;
use crate::engines::qp::recv::{MAX_STRIDE, Receive, ReceiveQueue, XrcSrq};
use crate::engines::qp::replies::Data;
use crate::engines::qp::requester::{Cursor, Next, WqeAction};
use crate::engines::qp::responder::Current;
use crate::engines::qp::run::Half;
use crate::engines::qp::send::{blocks_of, copy_index};
use crate::engines::qp::umr;
use crate::engines::qp::wqe::SpareWqes;
use crate::faults::Held;
use crate::ground::outstanding::Touched;
use crate::ground::region::Payload;
use crate::wire::{Repr, operand_of};

/// Completions of one input besides those of messages that are under way: receives, and signatures that are wrong.
const OTHER_COMPLETIONS: usize = 64;

impl Executor<'_> {
    /// Reads what carrying out `event` reads.
    pub(crate) fn plan(&self, event: &HcaEvent) {
        let core = &self.core;
        match event {
            HcaEvent::Command(slot) => {
                let at = self.side.registers.command_queue() + u64::from(*slot) * CommandEntry::SIZE as u64;
                core.touch(at, CommandEntry::SIZE);
            }
            HcaEvent::FetchCommand(fetch) => {
                if let FetchStep::Read { at, len } = fetch.next() {
                    core.touch(at, len);
                }
            }
            HcaEvent::ExecuteCommand(fetch) => self.plan_command(fetch),
            HcaEvent::CommandDone(output) => {
                if let OutputStep::Read { at } = output.next() {
                    core.touch(at, size_of::<u64>());
                }
            }
            HcaEvent::SendDoorbell(qpn) | HcaEvent::BlueFlame(qpn, _) => {
                self.of(*qpn, |qp| core.plan_doorbell(qp));
            }
            HcaEvent::SendTurn(qpn) => self.of(*qpn, |qp| core.plan_send(qp)),
            HcaEvent::ResponseTurn(qpn) => self.of(*qpn, |qp| core.plan_response(qp)),
            HcaEvent::DynamicTurn(peer) => {
                if let Some(link) = self.dc_responders.get(peer) {
                    core.plan_response(link);
                }
            }
            HcaEvent::DynamicIdle(peer) => {
                if let Some(link) = self.dc_responders.get(peer) {
                    core.plan_completions(link);
                }
            }
            HcaEvent::DynamicDrain(drain) => {
                let next = self.dc_responders.range(drain.rest()).take(SLICE);
                next.for_each(|(_, link)| core.plan_completions(link));
            }
            HcaEvent::DynamicFault(told) => {
                let next = self.dc_responders.range(told.rest()).take(SLICE);
                next.for_each(|(_, link)| core.plan_completions(link));
            }
            HcaEvent::ErrorPoll(qpn) => self.of(*qpn, |qp| {
                core.touch(qp.params.doorbell_record, 4);
                core.plan_flush(qp);
            }),
            HcaEvent::AckTimeout(qpn) | HcaEvent::RnrTimeout(qpn, _) | HcaEvent::Sent(qpn) => {
                self.of(*qpn, |qp| core.plan_completions(qp));
            }
            HcaEvent::Receive(arrived) => self.plan_receive(arrived),
            HcaEvent::ReceiveCopy(qpn, arrived) => {
                self.of(*qpn, |qp| core.plan_datagram_received(qp, arrived));
            }
            HcaEvent::QueueFrame(queued) => core.plan_frame_received(queued),
            HcaEvent::FlushFrames(rqn) => {
                if let Some(rq) = core.function.fw.icm.rqs.get(rqn.0) {
                    core.plan_consumer(Cqn(rq.cqn), usize::MAX);
                }
                core.plan_flush_rq(*rqn);
            }
            HcaEvent::Scripted(held) => match &**held {
                Held::Completion(cqn, ..) => core.plan_consumer(*cqn, 1),
                Held::FailQp(qpn) | Held::FailSends(qpn) => self.of(*qpn, |qp| {
                    core.touch(qp.params.doorbell_record, 4);
                    core.plan_flush(qp);
                    core.plan_completions(qp);
                }),
                Held::FailRq(rqn) => {
                    if let Some(rq) = core.function.fw.icm.rqs.get(rqn.0) {
                        core.plan_consumer(Cqn(rq.cqn), usize::MAX);
                    }
                    core.plan_flush_rq(*rqn);
                }
                Held::Interrupt(..) | Held::Event(..) => {}
            },
            HcaEvent::Depart(..)
            | HcaEvent::MergeFrame(_)
            | HcaEvent::MergeTimeout(..)
            | HcaEvent::CqModeration(..)
            | HcaEvent::CqSession(..)
            | HcaEvent::Interrupt(_)
            | HcaEvent::PortTurn(_)
            | HcaEvent::GroupTurn
            | HcaEvent::Resume
            | HcaEvent::Answer(..)
            | HcaEvent::AgentPoll(_)
            | HcaEvent::LinkUp(_)
            | HcaEvent::PortChange(..)
            | HcaEvent::Module(..)
            | HcaEvent::Heat(_)
            | HcaEvent::Traces
            | HcaEvent::TakenAway
            | HcaEvent::SyncReset(_)
            | HcaEvent::SyncResetLate(_)
            | HcaEvent::TracerFree => {}
        }
    }

    fn of(&self, qpn: Qpn, plan: impl FnOnce(&QueuePair)) {
        if let Some(qp) = self.qps.get(qpn.0) {
            plan(qp);
        }
    }

    /// What executing a command reads: counters of the object that it is about.
    fn plan_command(&self, fetch: &Fetch) {
        let (core, input) = (&self.core, fetch.input());
        let opcode = Opcode::from_u16((be32(input, 0) >> 16) as u16);
        let Some(object) = opcode.and_then(find).and_then(|command| command.object) else { return };
        let number = be32(input, object.at) & object.kind.number_mask();
        match object.kind {
            Kind::Cq => {
                if let Some(cq) = core.function.fw.icm.cqs.get(number) {
                    core.touch(cq.ctx.get(Cqc::DBR_ADDR), 4);
                }
            }
            Kind::Srq | Kind::XrcSrq | Kind::Rmp | Kind::Xrq => {
                if let Some(srq) = core.function.srqs.get(number) {
                    core.touch(srq.doorbell_record(), 4);
                }
            }
            Kind::Qp => {
                self.of(Qpn(number), |qp| {
                    core.touch(qp.params.doorbell_record, 4);
                    core.plan_completions(qp);
                });
                // A page fault may be one of a DC target.
                let first = self.dc_responders.range(Peer::all_of(Qpn(number))).take(SLICE);
                first.for_each(|(_, link)| core.plan_completions(link));
            }
            Kind::Rq => {
                if let Some(rq) = core.function.fw.icm.rqs.get(number) {
                    if rq.source == RqSource::Own {
                        core.touch(rq.ctx.wq().get(Wq::DBR_ADDR), 4);
                    }
                    core.plan_flush_rq(Rqn(number));
                    core.plan_consumer(Cqn(rq.cqn), usize::MAX);
                }
            }
            _ => {}
        }
    }

    fn plan_receive(&self, arrived: &Arrived) {
        let (core, repr) = (&self.core, arrived.repr());
        if repr.transport == Transport::Dc && !repr.operation.is_response() {
            let Some(eth) = repr.dceth else { return };
            let peer = Peer::of(arrived.path(), repr, &eth);
            if let Some(link) = self.dc_responders.get(&peer) {
                core.plan_request(link, repr, arrived.payload());
            }
            return;
        }
        let Some(qp) = self.receiver_of(arrived).and_then(|qpn| self.qps.get(qpn.0)) else {
            return;
        };
        match qp.service {
            ServiceType::Ud | ServiceType::Qp0 | ServiceType::Qp1 => core.plan_datagram_received(qp, arrived),
            _ if repr.operation.is_response() => core.plan_answer(qp, repr, arrived.payload()),
            _ => core.plan_request(qp, repr, arrived.payload()),
        }
    }
}

impl Core<'_> {
    /// Reads; what comes of it matters later.
    fn touch(&self, iova: u64, len: usize) {
        let mut bytes = [0; MAX_READ];
        if let Some(bytes) = bytes.get_mut(..len) {
            _ = self.function.memory.read(iova, bytes);
        }
    }

    /// Whether all that the plan has read so far is there.
    fn planned(&self) -> bool {
        self.function.outstanding.as_ref().is_none_or(|outstanding| outstanding.all_there())
    }

    /// The consumer counter of a completion queue that gets up to `most` completions, if it is looked at.
    fn plan_consumer(&self, cqn: Cqn, most: usize) {
        let Some(context) = self.function.fw.icm.cqs.get(cqn.0) else { return };
        let record = match self.function.cqs.get(cqn.0) {
            Some(cq) => cq.reads_consumer(most),
            None => CompletionQueue::new(context).reads_consumer(most),
        };
        if let Some(record) = record {
            self.touch(record, 4);
        }
    }

    /// What completing anything of a queue pair's reads.
    fn plan_completions(&self, qp: &QueuePair) {
        let most = qp.requester.messages.len() + qp.sq.deferred() + OTHER_COMPLETIONS;
        for cqn in [qp.params.cqn_snd, qp.params.cqn_rcv] {
            self.plan_consumer(cqn, most);
        }
        if let Some(owner) = qp.rq.shared().and_then(|srqn| self.owner_of(srqn)) {
            self.plan_consumer(owner.cqn, OTHER_COMPLETIONS);
        }
        if let Some(Current::Send { receive, .. }) = &qp.responder.current {
            self.plan_consumer(qp.receive_cqn(receive), OTHER_COMPLETIONS);
        }
        if let Some(spare) = &qp.responder.spare {
            self.plan_consumer(qp.receive_cqn(spare), OTHER_COMPLETIONS);
        }
    }

    /// Of a queue that is flushed, any number is completed.
    fn plan_flush(&self, qp: &QueuePair) {
        for cqn in [qp.params.cqn_snd, qp.params.cqn_rcv] {
            self.plan_consumer(cqn, usize::MAX);
        }
        self.plan_completions(qp);
    }

    fn plan_doorbell(&self, qp: &QueuePair) {
        let Ok(word) = self.read_be32(qp.params.doorbell_record.wrapping_add(4)) else { return };
        if !self.planned() || !matches!(qp.state, QpState::Error | QpState::SqError) {
            return;
        }
        self.plan_flush(qp);
        let Some(context) = self.function.fw.icm.qps.get(qp.qpn.0) else { return };
        let (mut head, posted) = (qp.sq.head, word as u16);
        for _ in 0..FLUSH_STEP {
            let (left, mut block) = (posted.wrapping_sub(head), [0; WQEBB]);
            let read = left > 0 && self.read_block(context, qp.params.log_sq_size, head, &mut block).is_ok();
            if !read || !self.planned() {
                return;
            }
            head = head.wrapping_add(blocks_of(&Ctrl::from_prefix_or_zero(&block)).min(left));
        }
    }

    fn plan_send(&self, qp: &QueuePair) {
        self.plan_completions(qp);
        if !qp.sends() {
            return;
        }
        match qp.next() {
            Next::Held(_) | Next::Nothing => {}
            // Its payload stays where it is.
            Next::Packet if qp.is_in_run(Half::Requester, self.function.key_changes) => {}
            Next::Packet => {
                if let Cursor::Packet(plan) = qp.plan(&self.view(), &mut Repr::default())
                    && let Some(wqe) = qp.requester.wqe_of(&plan)
                {
                    self.plan_gather(qp, &wqe.pieces, plan.offset, plan.payload);
                }
            }
            Next::Message => self.plan_message(qp),
        }
    }

    fn plan_message(&self, qp: &QueuePair) {
        let available = qp.sq.waiting();
        if qp.state == QpState::Rts && self.has_begun(qp) {
            return self.plan_frames(qp, None);
        }
        if qp.state != QpState::Rts || available == 0 || !qp.params.has_sq {
            return;
        }
        let copy = qp.sq.copy.as_deref().filter(|copy| copy_index(copy) == qp.sq.head);
        let wqe = self.read_wqe(qp, available, copy.unwrap_or_default(), &mut SpareWqes::default());
        let wqe = match wqe.ok().filter(|_| self.planned()) {
            Some((Posted::Request(wqe), _)) => wqe,
            Some((Posted::Frames(Ok(wqe)), _)) => return self.plan_frames(qp, Some(&wqe)),
            Some((Posted::Frames(Err(_)), _)) | None => return,
        };
        let bytes = match qp.classify_wqe(&wqe) {
            WqeAction::Held(_) | WqeAction::Refused(..) => 0,
            WqeAction::Datagram => match qp.plan_datagram(&self.view(), &wqe) {
                Ok(_) => wqe.length as usize,
                Err(_) => 0,
            },
            WqeAction::Local => umr::list_bytes(&wqe),
            WqeAction::Packets(_) if wqe.wants_response() => 0,
            WqeAction::Packets(_) => wqe.length.min(qp.params.mtu as u64) as usize,
        };
        self.plan_gather(qp, &wqe.pieces, 0, bytes);
    }

    /// Frames of a WQE, as many as a turn sends; read as they will be, the data of one after the other.
    fn plan_frames(&self, qp: &QueuePair, wqe: Option<&EthWqe>) {
        self.plan_completions(qp);
        for (pieces, offset, len) in self.plan_turn(qp, wqe) {
            self.plan_gather(qp, &pieces, offset, len);
        }
    }

    /// A frame for a receive queue.
    fn plan_frame_received(&self, queued: &QueuedFrame) {
        let Some(rq) = self.function.fw.icm.rqs.get(queued.rqn.0) else { return };
        self.plan_consumer(Cqn(rq.cqn), usize::MAX);
        let mut frame = Cow::Borrowed(queued.packet.frame_bytes());
        if rq.scatter_fcs {
            frame.to_mut().extend_from_slice(&[0; FCS_SIZE]);
        }
        let pieces = match (self.plan_open(queued.rqn, rq, frame.len()), rq.source) {
            (Some(open), _) => open,
            (None, RqSource::Own) => self.plan_next_wqe(queued.rqn),
            (None, RqSource::Pool(srqn)) => match self.plan_take_shared(Srqn(srqn)) {
                Some(receive) => receive.pieces.into_vec(),
                None => return,
            },
        };
        let pd = self.wqe_domain(rq);
        let rlky = rq.ctx.get(Rqc::RLKY) == 1;
        let who = Accessor { qpn: Qpn(queued.rqn.0), pd, rlky };
        let fits = total(&pieces) >= frame.len() as u64;
        let written = self.planned_access(who).scatter(&pieces, 0, Payload::Bytes(&frame));
        if !written || !fits {
            // The queue will fail, and be flushed up to what its record says.
            self.plan_flush_rq(queued.rqn);
        }
    }

    fn plan_gather(&self, qp: &QueuePair, pieces: &[Piece], offset: u64, len: usize) {
        let memory = Touched(&*self.function.memory);
        self.planned_access_in(&memory, qp.accessor()).gather(pieces, offset, len);
    }

    fn plan_scatter(&self, qp: &QueuePair, receive: &Receive, offset: u64, data: Payload<'_>) {
        _ = self.planned_access(qp.local(receive)).scatter(&receive.pieces, offset, data);
    }

    fn plan_response(&self, qp: &QueuePair) {
        // Its payload stays where it is.
        if qp.is_in_run(Half::Responder, self.function.key_changes) {
            return;
        }
        self.plan_completions(qp);
        if let Some(Response::Read(ReadLeft { who, va, rkey, left, .. })) = qp.responder.queue.front() {
            let mut bytes = vec![0; (*left).min(qp.params.mtu as u64) as usize];
            let memory = Touched(&*self.function.memory);
            self.planned_access_in(&memory, *who).read(*rkey, *va, &mut bytes, Access::RemoteRead);
        }
    }

    /// Takes the next receive WQE, as far as it is there.
    fn plan_take(&self, qp: &QueuePair, xrc: Option<XrcSrq>) -> Option<Receive> {
        if let Some(spare) = qp.responder.spare.as_ref().filter(|spare| spare.xrc == xrc) {
            return Some(spare.clone());
        }
        if let Some(srq) = xrc {
            let receive = Receive { xrc, ..self.plan_take_shared(srq.srqn)? };
            self.plan_consumer(qp.receive_cqn(&receive), OTHER_COMPLETIONS);
            return Some(receive);
        }
        match &qp.rq {
            ReceiveQueue::None => None,
            ReceiveQueue::Shared(srqn) => self.plan_take_shared(*srqn),
            ReceiveQueue::Own { head, posted, .. } => {
                let posted = if head == posted { self.receives_posted(qp)? } else { *posted };
                if *head == posted || !self.planned() {
                    return None;
                }
                self.read_receive(qp).ok().filter(|_| self.planned())
            }
        }
    }

    fn plan_take_shared(&self, srqn: Srqn) -> Option<Receive> {
        let queue = self.function.srqs.get(srqn.0)?;
        let counted = match queue.available() == 0 || queue.is_armed() {
            true => self.receive_counter(queue.doorbell_record()),
            false => None,
        };
        let posted = queue.available() > 0 || queue.counts(counted) > 0;
        if !posted || !self.planned() {
            return None;
        }
        let context = self.function.fw.icm.srqs.get(srqn.0)?;
        let mut bytes = [0; MAX_STRIDE];
        let bytes = self.read_shared(srqn, &mut bytes).ok()?;
        let (_, receive) = queue.parse(bytes, Some(Pd(context.ctx.get(Srqc::PD))))?;
        self.planned().then_some(receive)
    }

    fn plan_datagram_received(&self, qp: &QueuePair, arrived: &Arrived) {
        if !qp.takes_datagram(arrived.path(), arrived.repr(), arrived.payload().len()) {
            return;
        }
        self.plan_completions(qp);
        if let Some(receive) = self.plan_take(qp, None) {
            if let Some(grh) = arrived.grh() {
                self.plan_scatter(qp, &receive, 0, Payload::Bytes(&grh));
            }
            self.plan_scatter(qp, &receive, GRH_ROOM as u64, arrived.payload());
        }
    }

    /// A request of the peer.
    fn plan_request(&self, qp: &QueuePair, repr: &Repr, payload: Payload<'_>) {
        self.plan_completions(qp);
        // Answers tell of credits. Of a message of many packets only the last one asks for an answer, as a rule.
        let is_again = repr.psn.since(qp.responder.epsn) < 0;
        let is_answered = repr.ack_req || repr.operation.is_answered_by_itself() || is_again;
        if is_answered && matches!(qp.rq, ReceiveQueue::Own { .. }) {
            self.touch(qp.params.doorbell_record, 4);
        }
        let Ok(target) = qp.target(&self.view(), repr) else { return };
        use Operation as Op;
        match repr.operation {
            Op::SendFirst | Op::SendOnly | Op::SendOnlyImm | Op::SendOnlyInval => {
                let tagged = self.plan_tagged(qp, repr, payload);
                if let Some(receive) = tagged.or_else(|| self.plan_take(qp, target.xrc)) {
                    self.plan_scatter(qp, &receive, 0, payload.split_at(receive.skipped()).1);
                }
            }
            Op::SendMiddle | Op::SendLast | Op::SendLastImm | Op::SendLastInval => {
                if let Some(Current::Send { receive, offset }) = &qp.responder.current {
                    self.plan_scatter(qp, receive, *offset, payload);
                }
            }
            operation if operation.is_atomic() => {
                let Some(atomic) = &repr.atomic else { return };
                let mut word = [0; 8];
                let word = word.get_mut(..atomic.size()).unwrap_or_default();
                let mut planned = self.planned_access(target.who);
                planned.read(atomic.rkey, atomic.va, word, Access::RemoteAtomic);
                planned.write(atomic.rkey, atomic.va, Payload::Bytes(word), Access::RemoteAtomic);
            }
            _ => {}
        }
        if repr.imm.is_some() && !matches!(qp.responder.current, Some(Current::Send { .. })) {
            _ = self.plan_take(qp, target.xrc);
        }
        let to = match (&repr.reth, &qp.responder.current) {
            (Some(reth), _) if repr.operation != Op::ReadRequest => Some((reth.rkey, reth.va)),
            (None, Some(Current::Write { rkey, va, .. })) => Some((*rkey, *va)),
            _ => None,
        };
        if let Some((rkey, va)) = to {
            self.planned_access(target.who).write(rkey, va, payload, Access::RemoteWrite);
        }
    }

    /// An answer of the peer.
    fn plan_answer(&self, qp: &QueuePair, repr: &Repr, payload: Payload<'_>) {
        self.plan_completions(qp);
        let original = repr.atomic_ack.unwrap_or_default().to_le_bytes();
        let atomic = repr.operation == Operation::AtomicAcknowledge;
        let data = if atomic { Payload::Bytes(operand_of(&original, qp.operand(repr.psn))) } else { payload };
        if let Data::IntoBuffers { place, offset } = qp.locate_data(repr, data.len(), 0)
            && let Some(message) = qp.requester.messages.get(place)
        {
            let mut planned = self.planned_access(qp.requester_of(&message.wqe));
            _ = planned.scatter(&message.wqe.pieces, offset, data);
        }
    }
}
