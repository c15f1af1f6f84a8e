//! The responding side carried out: requests of the peer executed, refused and answered.

use std::borrow::Cow;

use hca_firmware::QCounter;
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::eqe::EventType;
use hca_spec::ids::{Psn, Qpn};
use hca_spec::qpc::ServiceType;
use hca_spec::rules;
use hca_spec::wire::{Operation, aeth};

use super::core::{Core, Executor};
use super::memory::SignatureErrors;
use super::state::event::HcaEvent;
use crate::engines::mkey::{Access, Accessor, Fault, check_invalidate, span};
use crate::engines::qp::answers::{Answer, ReadLeft, Response};
use crate::engines::qp::recv::Receive;
use crate::engines::qp::responder::{
    Action, Consequence, Current, End, Refusal, Resource, Target, Unreliable, WriteTo, atomic_result, invalid,
};
use crate::engines::qp::run::Half;
use crate::engines::qp::{Dynamic, QueuePair};
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::event::{Event, Unwanted};
use crate::ground::region::{Pages, Payload};
use crate::ground::time::Ps;
use crate::link_layer::{Packet, Path};
use crate::wire::{AtomicRepr, Repr, RethRepr, operand_of};

impl Core<'_> {
    /// A request packet of the peer.
    pub(crate) fn receive_request(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        (path, repr): (&Path, &Repr),
        payload: Payload<'_>,
    ) {
        if qp.establishes() {
            self.push_qp_event(now, EventType::CommEstablished, qp.qpn);
        }
        if qp.service == ServiceType::Uc {
            return self.receive_unreliable(now, qp, (path, repr), payload);
        }
        if !self.passes_page_fault(now, qp, repr) {
            return;
        }
        let distance = repr.psn.since(qp.responder.epsn);
        if distance > 0 {
            self.function.fw.icm.count(qp.qpn, QCounter::OutOfSequence);
            self.note_unwanted(now, path.source(), repr, Unwanted::Ahead, qp.responder.epsn.get());
            // What has no room is said when the next packet comes.
            if qp.has_room_for_answer() && qp.responder.misses() {
                let (psn, syndrome) = (qp.responder.epsn, aeth::NAK | aeth::PSN_SEQUENCE_ERROR);
                self.answer(now, qp, psn, syndrome);
            }
            return;
        }
        if distance < 0 {
            self.function.fw.icm.count(qp.qpn, QCounter::DuplicateRequest);
            self.note(now, Event::Duplicate { qpn: qp.qpn, psn: repr.psn, operation: repr.operation });
            self.note_unwanted(now, path.source(), repr, Unwanted::Behind, qp.responder.epsn.get());
            return self.receive_duplicate(now, qp, repr);
        }
        qp.responder.expected_came();
        match self.execute(now, qp, (path, repr), payload) {
            Ok(()) => {
                self.request_executed(now, qp, (path, repr), payload.len());
                if repr.ack_req && !repr.operation.is_answered_by_itself() {
                    self.answer(now, qp, repr.psn, aeth::ACK);
                }
            }
            Err(refusal) => {
                if let Some(refusal) = self.wait_to_execute(now, qp, repr, payload.len(), refusal) {
                    self.refuse(now, qp, repr, refusal);
                }
            }
        }
    }

    fn request_executed(&mut self, now: Ps, qp: &QueuePair, (path, repr): (&Path, &Repr), payload: usize) {
        self.note_executed(now, qp, (path, repr), payload);
        if let Some(counter) = QueuePair::request_counter(repr.operation) {
            self.function.fw.icm.count(qp.qpn, counter);
        }
    }

    /// UC: a gap or a fault drops the message, nothing is answered.
    fn receive_unreliable(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        (path, repr): (&Path, &Repr),
        payload: Payload<'_>,
    ) {
        let step = qp.unreliable(repr);
        if let Unreliable::Take { dropped: true } | Unreliable::Skip { dropped: true } = step {
            self.drop_message(now, qp);
        }
        if let Unreliable::Skip { .. } = step {
            return;
        }
        match self.execute(now, qp, (path, repr), payload) {
            Ok(()) => self.request_executed(now, qp, (path, repr), payload.len()),
            Err(Refusal::Local(syndrome, fault)) => {
                self.fault(
                    now,
                    Subject::qp(qp.qpn),
                    format_args!("receive buffers"),
                    qp.accessor().pd,
                    &fault,
                );
                self.receive_failed(now, qp, syndrome);
            }
            Err(Refusal::Length) => self.receive_failed(now, qp, Syndrome::LocalLength),
            Err(refusal) => {
                if let Refusal::NotReady = refusal {
                    self.function.fw.icm.count(qp.qpn, QCounter::OutOfBuffer);
                }
                self.drop_message(now, qp);
                qp.responder.epsn = repr.psn.next();
            }
        }
    }

    /// UC: the receive WQE of an unfinished message serves the next message (IBTA 9.8.2.2.1).
    fn drop_message(&mut self, now: Ps, qp: &mut QueuePair) {
        if let Some(receive) = qp.responder.abandon() {
            let index = receive.index;
            tracing::debug!(hca = self.chip.name, %now, "QP {}: message to receive WQE {index} dropped", qp.qpn);
            qp.responder.spare = Some(receive);
        }
    }

    pub(crate) fn receive_failed(&mut self, now: Ps, qp: &mut QueuePair, syndrome: Syndrome) {
        if let Some(receive) = qp.responder.abandon() {
            self.complete_receive_error(now, qp, &receive, syndrome);
        }
        self.fail(now, qp, None);
    }

    /// A request that was executed before.
    fn receive_duplicate(&mut self, now: Ps, qp: &mut QueuePair, repr: &Repr) {
        match repr.operation {
            Operation::ReadRequest => match (qp.read_again(&self.view(), repr), &repr.reth) {
                (Some(Ok(target)), Some(reth)) => self.queue_read(now, qp, &target, repr.psn, reth, true),
                (Some(Err(refusal)), _) => self.refuse(now, qp, repr, refusal),
                _ => {}
            },
            operation if operation.is_atomic() => {
                // One whose result is not kept any more is dropped in silence.
                if let Some(original) = qp.responder.atomic_again(repr.psn) {
                    self.queue_atomic(now, qp, (repr.psn, true), qp.responder.msn, (original, now));
                }
            }
            // Nothing of the kind was ever executed.
            operation if !operation.exists_on(repr.transport) => {}
            _ => {
                // Everything up to the expected PSN is acknowledged again.
                let psn = qp.responder.epsn.prev();
                self.answer(now, qp, psn, aeth::ACK);
            }
        }
    }

    /// Says why a request is refused, unless it is nobody's mistake.
    #[cold]
    fn explain(&mut self, now: Ps, qp: &QueuePair, repr: &Repr, refusal: &Refusal) {
        let (subject, operation, pd) = (Subject::qp(qp.qpn), repr.operation, qp.accessor().pd);
        let tell = |field, found: String, expected: &'static str, rule| {
            move || Finding::new(subject, field, found, expected, rule)
        };
        match *refusal {
            Refusal::NotReady => {}
            Refusal::Invalid { field, found, expected } => {
                let found = format!("{found:#x}, for a {operation:?} from the peer");
                self.answer_mistake(now, tell(field, found, expected, &rules::REQUEST_VALID));
            }
            Refusal::Access(fault) => {
                self.fault(now, subject, format_args!("{operation:?} from the peer"), pd, &fault);
            }
            Refusal::Local(_, fault) => {
                self.fault(now, subject, format_args!("receive buffers"), pd, &fault);
            }
            Refusal::Length => {
                let found = format!("less room than the {operation:?} from the peer needs");
                let expected = "scatter entries for the whole message";
                self.answer_mistake(now, tell("receive WQE", found, expected, &rules::RECEIVE_ROOM));
            }
            Refusal::Broken => {
                let expected = "memory that is mapped, by an IOMMU too";
                let found = "memory that the adapter does not reach".into();
                self.answer_mistake(now, tell("receive queue", found, expected, &rules::MEMORY_MAPPED));
            }
        }
    }

    fn refuse(&mut self, now: Ps, qp: &mut QueuePair, repr: &Repr, refusal: Refusal) {
        self.explain(now, qp, repr, &refusal);
        let consequence = refusal.consequence(qp.params.min_rnr_nak);
        if let Some(counter) = consequence.counter {
            self.function.fw.icm.count(qp.qpn, counter);
        }
        if consequence.end == End::None {
            self.note_unwanted(now, qp.params.route.peer(), repr, Unwanted::NoReceive, 0);
            qp.responder.wait_for_again();
        }
        self.answer(now, qp, repr.psn, consequence.syndrome);
        match consequence.end {
            End::None => {}
            End::Receive(syndrome) => self.receive_failed(now, qp, syndrome),
            End::Told(syndrome, _) if qp.responder.had_receive(repr) => {
                self.receive_failed(now, qp, syndrome)
            }
            End::Told(_, event) | End::Event(event) => {
                self.fail(now, qp, None);
                self.raise(now, qp, event);
            }
        }
    }

    /// Executes a request packet with the expected PSN.
    fn execute(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        (path, repr): (&Path, &Repr),
        payload: Payload<'_>,
    ) -> Result<(), Refusal> {
        qp.check_sequence(repr, payload.len())?;
        let view = self.view();
        let target = qp.target(&view, repr)?;
        match qp.request(&view, &target, repr, payload.len())? {
            Action::Receive { starts } => {
                let mut payload = payload;
                if starts {
                    let receive = match self.take_tagged(now, qp, repr, payload)? {
                        Some(receive) => receive,
                        None => self.take_receive(now, qp, target.xrc)?,
                    };
                    if receive.announces() {
                        match self.take_announcement(now, qp, receive, payload) {
                            None => {
                                qp.responder.epsn = repr.psn.next();
                                return Ok(());
                            }
                            Some((receive, headers)) => {
                                payload = headers;
                                qp.responder.begin(Current::Send { receive, offset: 0 });
                            }
                        }
                    } else {
                        payload = payload.split_at(receive.skipped()).1;
                        qp.responder.begin(Current::Send { receive, offset: 0 });
                    }
                }
                self.receive_payload(now, qp, &target, (path, repr), payload)?;
            }
            Action::Write { starts: Some(reth) } => {
                let (left, srqn) = (u64::from(reth.len), target.xrc.map(|s| s.srqn));
                let begun = Current::Write { va: reth.va, rkey: reth.rkey, left, total: left, srqn };
                qp.responder.begin(begun);
                if let Err(refusal) = self.write_payload(now, qp, &target, (path, repr), payload) {
                    qp.responder.current = None;
                    return Err(refusal);
                }
            }
            Action::Write { starts: None } => self.write_payload(now, qp, &target, (path, repr), payload)?,
            Action::Read(reth) => {
                qp.begin_read(repr.psn, &reth);
                self.queue_read(now, qp, &target, repr.psn, &reth, false);
                return Ok(());
            }
            Action::Atomic(atomic) => self.execute_atomic(now, qp, &target, repr, &atomic)?,
        }
        qp.responder.epsn = repr.psn.next();
        Ok(())
    }

    fn receive_payload(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        target: &Target,
        (path, repr): (&Path, &Repr),
        payload: Payload<'_>,
    ) -> Result<(), Refusal> {
        if QueuePair::ends_receive(repr.operation).is_none() {
            self.plan_landing(qp, target.who);
        }
        let Some(Current::Send { receive, offset }) = &qp.responder.current else {
            return Err(invalid("opcode", 0, "that of a first packet"));
        };
        let (who, begin, end) = (qp.local(receive), *offset, *offset + payload.len() as u64);
        if end > receive.room {
            return Err(Refusal::Length);
        }
        // A small message may go into the completion: it then is there whole, and not in the buffers.
        let only =
            matches!(repr.operation, Operation::SendOnly | Operation::SendOnlyImm | Operation::SendOnlyInval);
        let cqn = qp.receive_cqn(receive);
        let entry = receive.is_entry();
        let inline = only && !entry && payload.len() <= self.scatter_room(cqn, qp.params.scatter_response);
        if !inline {
            let landing = qp.landing(self.function.key_changes);
            let found = match landing.and_then(|landing| landing.place(begin, payload.len())) {
                None => self.keyed().scatter(who, &receive.pieces, begin, payload),
                Some((pages, at)) => self.write_pages(pages, at, payload),
            };
            let found = found.map_err(|fault| Refusal::Local(Syndrome::LocalProtection, fault))?;
            self.report_signature_errors(now, qp, cqn, found);
        }
        qp.landed(payload.len());
        if begin == 0 && !only && entry {
            self.tell_consumed(now, qp);
        }
        let Some(opcode) = QueuePair::ends_receive(repr.operation) else { return Ok(()) };
        let mut word = repr.imm.unwrap_or(0);
        if let Some(key) = repr.ieth {
            word = key.0;
            self.function.key_changes += 1;
            check_invalidate(&self.function.fw.icm, target.who, key).map_err(Refusal::Access)?;
            self.free_key(key);
        }
        if let Some(receive) = qp.responder.end_receive() {
            qp.responder.next_msn();
            let data = if inline { payload.bytes().unwrap_or_default() } else { Cow::default() };
            self.complete_receive(now, qp, (opcode, &receive), (end, word), (path, repr), &data);
        }
        Ok(())
    }

    fn write_payload(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        target: &Target,
        (path, repr): (&Path, &Repr),
        payload: Payload<'_>,
    ) -> Result<(), Refusal> {
        let to = qp.write_to(repr, payload.len())?;
        // The immediate consumes a receive WQE: it must be there before anything is written.
        let receive = match repr.imm {
            Some(_) => Some(self.take_receive(now, qp, target.xrc)?),
            None => None,
        };
        if !payload.is_empty() {
            match self.land(qp, target.who, &to, payload) {
                Ok(found) => self.report_signature_errors(now, qp, qp.params.cqn_rcv, found),
                Err(fault) => {
                    if receive.is_some() {
                        qp.responder.spare = receive;
                    }
                    return Err(Refusal::Access(fault));
                }
            }
        }
        qp.written(payload.len(), to.last);
        if let Some(receive) = receive {
            let imm = repr.imm.unwrap_or(0);
            self.complete_receive(
                now,
                qp,
                (CqeOpcode::RespWrImm, &receive),
                (to.total, imm),
                (path, repr),
                &[],
            );
        }
        Ok(())
    }

    /// Writes the payload of a write packet.
    fn land(
        &mut self,
        qp: &mut QueuePair,
        who: Accessor,
        to: &WriteTo,
        payload: Payload<'_>,
    ) -> Result<SignatureErrors, Fault> {
        self.plan_landing(qp, who);
        let landing = qp.landing(self.function.key_changes);
        match landing.and_then(|landing| landing.place(to.at, payload.len())) {
            None => self.keyed().write(who, to.rkey, to.va, payload, Access::RemoteWrite),
            Some((pages, at)) => self.write_pages(pages, at, payload),
        }
    }

    /// Plans where the message in progress goes that `who` sends, if it is long.
    fn plan_landing(&self, qp: &mut QueuePair, who: Accessor) {
        let (memory, record) = (&*self.function.memory, qp.params.doorbell_record);
        qp.plan_landing(&self.view(), who, self.function.key_changes, |pages, len| {
            // Answers tell of credits, which the record has.
            self.function.outstanding.is_none()
                || pages.is_mapped(memory, len) && memory.is_mapped(record, size_of::<u32>())
        });
    }

    fn write_pages(&self, pages: &Pages, at: u64, payload: Payload<'_>) -> Result<SignatureErrors, Fault> {
        pages.write(&*self.function.memory, at, payload)?;
        Ok(SignatureErrors::default())
    }

    fn execute_atomic(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        target: &Target,
        repr: &Repr,
        atomic: &AtomicRepr,
    ) -> Result<(), Refusal> {
        let (who, key, va) = (target.who, atomic.rkey, atomic.va);
        let (mut word, size) = ([0; 8], atomic.size());
        let read =
            self.keyed().read(who, key, va, word.get_mut(..size).unwrap_or_default(), Access::RemoteAtomic);
        let found = read.map_err(Refusal::Access)?;
        let original = u64::from_le_bytes(word);
        let new = atomic_result(repr.operation, atomic, original).to_le_bytes();
        let written = self
            .keyed()
            .write(who, key, va, Payload::Bytes(operand_of(&new, size)), Access::RemoteAtomic)
            .map_err(Refusal::Access)?;
        self.report_signature_errors(now, qp, qp.params.cqn_rcv, found);
        self.report_signature_errors(now, qp, qp.params.cqn_rcv, written);
        qp.remember(Resource::Atomic { psn: repr.psn, original });
        let msn = qp.responder.next_msn();
        let ready = self.chip.units.atomic(now, qp.qpn.0, va);
        self.queue_atomic(now, qp, (repr.psn, false), msn, (original, ready));
        Ok(())
    }

    /// Completes a receive WQE; `(bytes, word)`: of the message, and its immediate or the key that it invalidated.
    fn complete_receive(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        (opcode, receive): (CqeOpcode, &Receive),
        (bytes, word): (u64, u32),
        (path, repr): (&Path, &Repr),
        data: &[u8],
    ) {
        let (cqn, mut cqe) = qp.receive_cqe(opcode, receive);
        cqe.set(Cqe::BYTE_CNT, bytes as u32).set(Cqe::IMM_INVAL_PKEY, word);
        cqe.set(Cqe::SE, repr.solicited.into());
        path.tell_source(&mut cqe);
        // Completions about tags tell of no GRH (rdma-core, `test_tag_matching.py`).
        if receive.tagged.is_some() {
            cqe.set(Cqe::GRH, 0);
        }
        if qp.service == ServiceType::Dct {
            cqe.set(Cqe::RQPN, qp.params.remote_qpn.0);
        }
        self.complete_for(now, qp, cqn, cqe, data);
    }

    fn queue_read(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        target: &Target,
        psn: Psn,
        reth: &RethRepr,
        again: bool,
    ) {
        let (syndrome, msn, left) = (self.positive(qp), qp.responder.msn, reth.len.into());
        let (who, va, rkey) = (target.who, reth.va, reth.rkey);
        let read = ReadLeft { who, psn, syndrome, msn, va, rkey, left, passed: 0, again };
        self.queue_response(now, qp, Response::Read(read));
    }

    /// Queues the answer to an atomic, which is executed at `ready`; `again`: the request is a duplicate.
    fn queue_atomic(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        (psn, again): (Psn, bool),
        msn: u32,
        (original, ready): (u64, Ps),
    ) {
        let syndrome = self.positive(qp);
        self.queue_response(now, qp, Response::Atomic { psn, syndrome, msn, original, ready, again });
    }

    /// Queues an ACK (to which the credits are added) or a NAK. One that the peer asks for again is lost if more wait than those of a peer that
    /// keeps to the rules.
    pub(crate) fn answer(&mut self, now: Ps, qp: &mut QueuePair, psn: Psn, syndrome: u32) {
        let positive = syndrome & aeth::KIND_MASK == aeth::ACK;
        let syndrome = if positive { self.positive(qp) } else { syndrome };
        let coalesced = positive && qp.responder.coalesce(psn, syndrome);
        if !coalesced && is_asked_for_again(syndrome) && !qp.has_room_for_answer() {
            return;
        }
        self.note(now, Event::Answer { qpn: qp.qpn, psn, syndrome: syndrome as u8 });
        if !coalesced {
            let msn = qp.responder.msn;
            self.queue_response(now, qp, Response::Ack { psn, syndrome, msn });
        }
    }

    /// The syndrome of a positive answer: the credits that belong to the MSN of now.
    fn positive(&self, qp: &mut QueuePair) -> u32 {
        if qp.counts_few_receives() {
            let posted = self.receives_posted(qp);
            qp.rq.post(posted);
        }
        qp.positive()
    }

    fn queue_response(&mut self, now: Ps, qp: &mut QueuePair, response: Response) {
        let wait = match response {
            Response::Ack { .. } => self.chip.timing.acknowledge(),
            _ => self.chip.timing.respond(),
        };
        qp.responder.queue.push_back(response);
        if !std::mem::replace(&mut qp.responder.turn, true) {
            self.schedule(now + wait, response_turn(qp));
        }
    }

    /// One response packet leaves. Answers still leave in the error state.
    pub(crate) fn take_response_turn(&mut self, now: Ps, qp: &mut QueuePair) {
        qp.responder.turn = false;
        // Data that is read is held as requests are; what only says that something arrived is not.
        let data = qp.congestion.is_some() && matches!(qp.responder.queue.front(), Some(Response::Read(_)));
        let held = if data { self.rate_holds(now, qp) } else { None };
        let Some(at) = held.or_else(|| self.send_response(now, qp)) else { return };
        if !qp.responder.queue.is_empty() && !std::mem::replace(&mut qp.responder.turn, true) {
            self.await_turn(at, qp.port_lane(), response_turn(qp));
        }
    }

    /// Sends one response packet. Returns when the next may follow.
    fn send_response(&mut self, now: Ps, qp: &mut QueuePair) -> Option<Ps> {
        if let (Some(run), Some(psn)) = (qp.run_of(Half::Responder), qp.cursor(Half::Responder)) {
            match run.packet(psn, self.function.key_changes, &mut Vec::new()) {
                Some(planned) => return Some(self.respond_of_run(now, qp, planned)),
                None => qp.run = None,
            }
        }
        let path = qp.path(&self.view())?;
        let Answer { mut repr, read, executed } = qp.next_answer(&self.view(), now)?;
        let len = read.as_ref().map_or(0, |read| read.asked.packet);
        let mut found = Default::default();
        let built = Packet::build_with(&path, &repr, len, |buf| {
            if let Some(read) = read.as_ref().filter(|_| !buf.is_empty()) {
                let asked = &read.asked;
                found = self.keyed().read(read.who, asked.rkey, asked.va, buf, Access::RemoteRead)?;
            }
            Ok::<(), Fault>(())
        });
        self.report_signature_errors(now, qp, qp.params.cqn_rcv, found);
        let (mut data, mut refused) = (None, None);
        let packet = match (built, read) {
            (Ok(packet), read) => {
                if let Some(read) = read {
                    data =
                        (len > 0).then(|| span(&self.function.fw.icm, read.asked.rkey, read.asked.va, len));
                    if let Some(rest) = read.rest {
                        qp.responder.queue.push_front(Response::Read(rest));
                    }
                }
                packet
            }
            (Err(fault), read) => {
                repr.operation = Operation::Acknowledge;
                let syndrome = match read {
                    Some(read) if self.wait_to_answer(now, qp, fault, read.asked) => {
                        aeth::RNR_NAK | qp.params.min_rnr_nak
                    }
                    _ => {
                        // The region went away between the request and its turn.
                        let subject = Subject::qp(qp.qpn);
                        self.fault(
                            now,
                            subject,
                            format_args!("response to a read"),
                            qp.accessor().pd,
                            &fault,
                        );
                        let consequence = Refusal::Access(fault).consequence(qp.params.min_rnr_nak);
                        let syndrome = consequence.syndrome;
                        refused = Some(consequence);
                        syndrome
                    }
                };
                repr.aeth = qp.aeth(syndrome);
                Packet::build_empty(&path, &repr)
            }
        };
        let service = match repr.operation {
            // No source tells what it takes from what its request does.
            Operation::Acknowledge => Ps::ZERO,
            _ => self.chip.timing.transmit(),
        };
        let free = self.chip.units.send(now, qp.qpn.0, service);
        let carries = data.is_some();
        let units = &mut self.chip.units;
        let ready = match repr.operation {
            Operation::Acknowledge => free,
            _ => units.put_together(now, qp.qpn.0, free, || 0, data.into_iter()),
        };
        let ready = ready.max(executed);
        let departs = self.chip.units.answer_departs(qp.qpn.0, ready);
        let (qpn, psn, operation, bytes) = (qp.qpn, repr.psn, repr.operation, packet.len() as u32);
        self.note_job(now, free, service, Event::Respond { qpn, psn, operation, bytes });
        qp.lane = self.launch_of(departs, qp, operation, packet);
        if carries && qp.congestion.is_some() {
            self.limited_sent(now, qp, bytes);
        }
        if let Some(Consequence { end, counter, .. }) = refused {
            // It is as if the request had been refused when it came: what is behind it is not answered.
            qp.responder.queue.clear();
            if let Some(counter) = counter {
                self.function.fw.icm.count(qp.qpn, counter);
            }
            if let End::Told(_, event) | End::Event(event) = end {
                self.fail(now, qp, None);
                self.raise(now, qp, event);
            }
            return None;
        }
        self.begin_run(qp, Half::Responder);
        Some(free)
    }
}

/// Whether a peer that does not get that answer asks again: the connection goes on.
fn is_asked_for_again(syndrome: u32) -> bool {
    matches!(syndrome & aeth::KIND_MASK, aeth::ACK | aeth::RNR_NAK)
        || syndrome == aeth::NAK | aeth::PSN_SEQUENCE_ERROR
}

/// Whose turn it is to answer.
fn response_turn(qp: &QueuePair) -> HcaEvent {
    match &qp.dynamic {
        Dynamic::Responder(link) => HcaEvent::DynamicTurn(link.peer),
        _ => HcaEvent::ResponseTurn(qp.qpn),
    }
}

impl Executor<'_> {
    /// A queue pair's turn to answer.
    pub(crate) fn response_turn(&mut self, now: Ps, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(qpn.0) {
            self.core.take_response_turn(now, qp);
        }
    }
}
