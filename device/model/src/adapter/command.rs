//! The command queue carried out: commands fetched, executed and delivered. [`crate::engines::command`] has the walks.

use hca_firmware::commands::dump_reg::objects_of_command as dumped_by;
use hca_firmware::commands::{Action, find};
use hca_firmware::object::Kind;
use hca_firmware::sync_reset::PATIENCE_US;
use hca_firmware::tracer::Message;
use hca_firmware::{Effect, Execution};
use hca_spec::be32;
use hca_spec::command::{CommandEntry, Delivery, Opcode};
use hca_spec::eqe::{Eqe, EventType, port_change};
use hca_spec::ids::{Cqn, Eqn, Rqn};
use hca_spec::rules;

use crate::adapter::core::Executor;
use crate::adapter::state::commands::slots_of;
use crate::adapter::state::event::HcaEvent;
use crate::engines::command::{
    Fetch, FetchStep, MAX_READ, Named, NoCommand, Output, OutputStep, Undelivered,
};
use crate::engines::qp::recv::SharedQueue;
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::event::{Event, Queue};
use crate::ground::time::Ps;

/// Blocks of a command's input that are read in one event: half a MiB, some 0.2 ms of host time.
const READS: u32 = 1024;
/// Bytes of a page that the host gives to the firmware.
const PAGE: usize = 4096;

/// A command that is not delivered, as a rule that was broken.
fn undelivered(slot: u8, why: &Undelivered) -> Finding {
    let Undelivered { delivery, block, field, found, expected } = *why;
    let rule = match delivery {
        Delivery::Token => &rules::MAILBOX_TOKEN,
        Delivery::BadBlockNumber => &rules::MAILBOX_NUMBER,
        Delivery::BadInputPointer => &rules::MAILBOX_POINTER,
        _ => &rules::COMMAND_ENTRY,
    };
    let found = match block {
        Some(block) => format!("{found:#x} in input mailbox {block} ({delivery:?})"),
        None => format!("{found:#x} in the entry ({delivery:?})"),
    };
    Finding::new(Subject::command(slot), field, found, expected.to_string(), rule)
}

/// A doorbell that brought no command, as a rule that was broken.
fn not_taken(slot: u8, entry: u64, why: NoCommand) -> Finding {
    let (field, found, expected) = match why {
        NoCommand::Unreadable(_) => {
            let found = format!("{entry:#x}, the entry of which the adapter does not reach");
            ("cmdq_phy_addr", found, "memory that is mapped, by an IOMMU too, and bus mastering")
        }
        NoCommand::NotHandedOver => {
            ("ownership", "0: software owns the entry".into(), "1 before the doorbell")
        }
    };
    Finding::new(Subject::command(slot), field, found, expected, &rules::COMMAND_OWNERSHIP)
}

impl Executor<'_> {
    /// Doorbell bits: each hands one entry to the hardware.
    pub(crate) fn command_doorbell(&mut self, now: Ps, bits: u32) {
        let again = bits & self.side.commands.busy;
        if again != 0 {
            self.core.answer_mistake(now, || {
                let subject = Subject::command(again.trailing_zeros() as u8);
                let found = format!("{bits:#x}, and the adapter still works on slots {again:#x}");
                let expected = "bits of slots that were handed back";
                Finding::new(subject, "command_doorbell_vector", found, expected, &rules::COMMAND_BUSY)
            });
        }
        let new = bits & !again;
        self.side.commands.busy |= new;
        for slot in slots_of(new) {
            let at = self.core.chip.units.store(now, 4) + self.core.chip.timing.dma_read(CommandEntry::SIZE);
            self.core.schedule(at, HcaEvent::Command(slot));
        }
    }

    /// A doorbell handed over the command of a slot.
    pub(crate) fn command(&mut self, now: Ps, slot: u8) {
        let entry_at = self.side.registers.command_queue() + u64::from(slot) * CommandEntry::SIZE as u64;
        self.fetch_command(now, Fetch::new(slot, entry_at));
    }

    /// Fetches a command, and what follows from it.
    pub(crate) fn fetch_command(&mut self, now: Ps, mut fetch: Fetch) {
        let slot = fetch.slot;
        let mut reads = 0;
        loop {
            match fetch.next() {
                // The longest input has 32,768 blocks: events of others that are due now come in between.
                FetchStep::Read { .. } if reads == READS && self.core.function.outstanding.is_none() => {
                    return self.core.schedule(now, HcaEvent::FetchCommand(Box::new(fetch)));
                }
                FetchStep::Read { .. } if !self.side.commands.may_read_on(&fetch) => {
                    return self.side.commands.behind.push_back(Box::new(fetch));
                }
                FetchStep::Read { at, len } => {
                    reads += 1;
                    if !self.core.is_there(at, len) {
                        return self.admit(now, HcaEvent::FetchCommand(Box::new(fetch)));
                    }
                    let mut bytes = [0; MAX_READ];
                    let bytes = bytes.get_mut(..len).unwrap_or_default();
                    let read = self.core.function.memory.read(at, bytes);
                    fetch.read(read.map(|()| &*bytes));
                }
                FetchStep::Execute => {
                    return match self.core.function.outstanding {
                        None => self.execute_command(now, &mut fetch),
                        // Behind what the command's object waits for.
                        Some(_) => self.admit(now, HcaEvent::ExecuteCommand(Box::new(fetch))),
                    };
                }
                FetchStep::Refuse(why) => {
                    self.let_go(now, slot);
                    let delivery = why.delivery;
                    self.core.answer_mistake(now, || undelivered(slot, &why));
                    let event = self.core.tells_of_commands();
                    let at = now + self.core.chip.timing.dma_write(CommandEntry::SIZE);
                    let output = Box::new(fetch.output(delivery, Vec::new(), event));
                    return self.core.schedule(at, HcaEvent::CommandDone(output));
                }
                FetchStep::Ignore(why) => {
                    self.let_go(now, slot);
                    self.side.commands.give_back(slot);
                    let at = fetch.entry_at();
                    return self.core.answer_mistake(now, || not_taken(slot, at, why));
                }
            }
        }
    }

    /// The input of a slot is executed, or refused: another long one is read on.
    fn let_go(&mut self, now: Ps, slot: u8) {
        if let Some(next) = self.side.commands.let_go(slot) {
            self.core.schedule(now, HcaEvent::FetchCommand(next));
        }
    }

    /// Executes a command whose input is whole.
    pub(super) fn execute(&mut self, now: Ps, fetch: &mut Fetch) {
        let (slot, output_len) = (fetch.slot, fetch.output_len());
        self.let_go(now, slot);
        let input = fetch.take_input();
        let len = input.bytes.len().saturating_add(input.list.len());
        let opcode = (be32(input.bytes, 0) >> 16) as u16;
        let event = self.core.tells_of_commands();
        self.core.note(now, Event::Command { slot, opcode });
        self.write_back(opcode, input.bytes);
        let watched = self.core.watched_input(input.bytes);
        let mut effects = Vec::new();
        self.core.trace_time(now);
        self.core.function.key_changes += 1;
        let core = &mut self.core;
        let state = &mut *core.function;
        let reaches = |page| state.memory.reaches(page, PAGE);
        let execution =
            state.fw.execute_at(&mut core.chip.managed, &reaches, input, output_len, &mut effects);
        if let Some(why) = self.core.function.fw.take_refusal() {
            self.core.function.diagnoses.command(now, slot, why, &self.core.chip.name);
        }
        let output = match execution {
            Execution::Done(output) => output,
            Execution::NeedPages => {
                tracing::debug!(hca = self.core.chip.name, slot, "{} waits for pages", Named(opcode));
                self.side.commands.stall(slot);
                self.apply(now, effects);
                return self.core.plan_traces(now);
            }
        };
        tracing::debug!(
            hca = self.core.chip.name,
            slot,
            status = output.first(),
            syndrome = be32(&output, 4),
            "{}",
            Named(opcode),
        );
        self.core.note_command(now, slot, watched, &output);
        let work = self.core.chip.managed.take_flash_work();
        let timing = &self.core.chip.timing;
        let done =
            now + timing.dma_write(CommandEntry::SIZE) + timing.command(opcode, len) + timing.flash(work);
        self.apply(now, effects);
        self.core.plan_traces(now);
        self.core.agents_poll_later(now);
        if opcode == Opcode::MadIfc as u16 {
            self.core.configure_ports();
        }
        if opcode == Opcode::ManagePages as u16 {
            for slot in self.side.commands.take_stalled() {
                self.core.schedule(done, HcaEvent::Command(slot));
            }
        }
        let output = fetch.output(Delivery::Ok, output, event);
        self.core.schedule(done, HcaEvent::CommandDone(Box::new(output)));
    }

    /// Writes a command's output: data, then ownership, then the event.
    pub(crate) fn command_done(&mut self, now: Ps, mut output: Box<Output>) {
        let slot = output.slot;
        loop {
            match output.next() {
                OutputStep::Write { at, bytes } => {
                    let written = self.core.function.memory.write(at, bytes);
                    output.written(written);
                }
                OutputStep::Read { at } => {
                    if !self.core.is_there(at, size_of::<u64>()) {
                        return self.admit(now, HcaEvent::CommandDone(output));
                    }
                    output.read(self.core.read(at).map(u64::from_be_bytes));
                }
                OutputStep::HandOver { at, status } => {
                    self.side.commands.give_back(slot);
                    if output.delivery == Delivery::BadOutputPointer {
                        let (block, at) = output.stuck_at();
                        self.core.answer_mistake(now, || {
                            let found = format!("{at:#x}, output mailbox {block}");
                            let expected = "an address of the host's memory, a multiple of 1024";
                            let rule = &rules::MAILBOX_POINTER;
                            Finding::new(
                                Subject::command(slot),
                                "output mailbox pointer",
                                found,
                                expected,
                                rule,
                            )
                        });
                    }
                    self.core.note(now, Event::CommandDone { slot, delivery: output.delivery as u8 });
                    if let Err(why) = self.core.function.memory.write_release(at, status) {
                        let why = NoCommand::Unreadable(why);
                        return self.core.answer_mistake(now, || not_taken(slot, at, why));
                    }
                    break;
                }
            }
        }
        if !output.event {
            return;
        }
        let mut eqe = Eqe::new();
        eqe.set(Eqe::COMMAND_VECTOR, 1u32.checked_shl(slot.into()).unwrap_or(0));
        self.core.push_event(now, EventType::CommandCompletion, &mut eqe);
    }

    /// Before a query, or a change that depends on it, the state of an object goes into its context.
    fn write_back(&mut self, opcode: u16, input: &[u8]) {
        if opcode == Opcode::AccessReg as u16 {
            let objects = dumped_by(&self.core.function.fw, input);
            return self.write_back_all(&objects);
        }
        let Some(object) = Opcode::from_u16(opcode).and_then(find).and_then(|command| command.object) else {
            return;
        };
        self.write_back_one(object.kind, object.action, be32(input, object.at) & object.kind.number_mask());
    }

    /// The same of objects that are dumped.
    pub(crate) fn write_back_all(&mut self, objects: &[(Kind, u32)]) {
        for (kind, number) in objects {
            self.write_back_one(*kind, Action::Query, *number);
        }
    }

    fn write_back_one(&mut self, kind: Kind, action: Action, number: u32) {
        let core = &mut self.core;
        match (kind, action) {
            (_, Action::Create) => {}
            (Kind::Eq, Action::Query) => {
                if let (Some(eq), Some(hw)) =
                    (core.function.fw.icm.eqs.get_mut(number), core.function.eqs.get(number))
                {
                    hw.write_back(&mut eq.ctx);
                }
            }
            (Kind::Cq, Action::Query | Action::Change) => {
                core.cq_write_back(Cqn(number));
            }
            (Kind::Srq | Kind::XrcSrq | Kind::Rmp | Kind::Xrq, Action::Query) => {
                let record = core.function.srqs.get(number).map(SharedQueue::doorbell_record);
                let posted = record.and_then(|record| core.receive_counter(record));
                if let (Some(srq), Some(hw)) =
                    (core.function.fw.icm.srqs.get_mut(number), core.function.srqs.get_mut(number))
                {
                    hw.write_back(posted, srq);
                }
            }
            (Kind::Rq, Action::Query) => core.rq_write_back(Rqn(number)),
            (Kind::Sq, Action::Query) => {
                if let (Some(hw), Some(qp)) = (self.qps.get(number), core.function.fw.icm.qps.get_mut(number))
                {
                    hw.write_back(None, &mut qp.ctx);
                }
            }
            (Kind::Qp, _) => {
                let Some(hw) = self.qps.get(number) else { return };
                let posted = core.receives_posted(hw);
                if let Some(qp) = core.function.fw.icm.qps.get_mut(number) {
                    hw.write_back(posted, &mut qp.ctx);
                }
            }
            _ => {}
        }
    }

    /// Follows what the firmware decided.
    pub(crate) fn apply(&mut self, now: Ps, effects: Vec<Effect>) {
        for effect in effects {
            self.apply_one(now, effect);
        }
    }

    fn apply_one(&mut self, now: Ps, effect: Effect) {
        let core = &mut self.core;
        match effect {
            Effect::EqCreated(Eqn(n)) => {
                if let Some(eq) = core.function.fw.icm.eqs.get(n.into()) {
                    core.function.eqs.insert(n.into(), crate::engines::eq::EventQueue::new(eq));
                }
                core.route_events_to(Eqn(n));
            }
            Effect::EqDestroyed(Eqn(n)) => {
                core.note(now, Event::Destroyed { what: Queue::Eq, number: n.into() });
                drop(core.function.eqs.remove(n.into()));
                core.route_events();
            }
            // Objects have no state here before they are used.
            Effect::CqCreated(_) | Effect::QpCreated(_) | Effect::RqCreated(_) => {}
            Effect::CqModerated(Cqn(n)) => {
                if let (Some(cq), Some(hw)) = (core.function.fw.icm.cqs.get(n), core.function.cqs.get_mut(n))
                {
                    hw.modify(&cq.ctx);
                }
            }
            Effect::CqResized { cqn, old } => core.cq_resized(now, cqn, &old),
            Effect::CqDestroyed(Cqn(n)) => {
                core.note(now, Event::Destroyed { what: Queue::Cq, number: n });
                drop(core.function.cqs.remove(n));
            }
            Effect::QpModified { qpn, from, to } => {
                core.note(now, Event::QpModified { qpn, from, to });
                self.qp_modified(now, qpn, from, to);
            }
            Effect::QpDestroyed(qpn) => {
                core.note(now, Event::Destroyed { what: Queue::Qp, number: qpn.0 });
                core.function.counting.forget(qpn);
                core.function.frames.abandon(qpn);
                core.leave_group(now, qpn);
                if let Some(gone) = self.qps.remove(qpn.0) {
                    core.flow_ends(&gone);
                }
            }
            Effect::SrqCreated(srqn) => {
                if let Some(srq) = core.function.fw.icm.srqs.get(srqn.0) {
                    core.function.srqs.insert(srqn.0, SharedQueue::new(srqn, srq));
                }
            }
            Effect::SrqArmed(srqn) => {
                if let (Some(srq), Some(hw)) =
                    (core.function.fw.icm.srqs.get(srqn.0), core.function.srqs.get_mut(srqn.0))
                {
                    hw.arm(srq);
                }
                core.srq_limit(now, srqn);
            }
            Effect::RqModified { rqn, from, to } => self.rq_modified(now, rqn, from, to),
            Effect::RqDestroyed(rqn) => core.function.frames.stop(rqn),
            Effect::PageFaultResumed { qpn, fault, error } => {
                self.page_fault_resumed(now, qpn, fault, error);
            }
            Effect::DctDraining(dctn) => self.dynamic_draining(now, dctn),
            Effect::DctDestroyed(dctn) => {
                core.function.counting.forget(dctn);
                self.forget_connections(dctn);
            }
            Effect::SrqDestroyed(srqn) => {
                core.function.frames.forget_pool(srqn);
                drop(core.function.srqs.remove(srqn.0));
            }
            Effect::PortChange { port, sub_type } => {
                core.chip.out.port_changed(port, sub_type == port_change::DOWN);
                let state = core.chip.managed.port(port).map_or(0, |p| p.state as u8);
                core.note(now, Event::Port { state });
                core.trace(now, Message::Port { port, change: sub_type });
                core.push_port_change(now, port, sub_type);
                for other in core.others() {
                    core.schedule_for(now, other, HcaEvent::PortChange(port, sub_type));
                }
            }
            Effect::VportChange { port, sub_type } => core.push_port_change(now, port, sub_type),
            Effect::PortEnabled { port } => core.chip.out.port_changed(port, false),
            Effect::PortConfigured { port } => core.configure_port(port),
            Effect::PageRequest { pages } => {
                core.trace(now, Message::Pages(pages));
                core.request_pages(now, pages as u32);
            }
            Effect::TemperatureWarning { sensors } => core.warn_of_heat(now, sensors),
            Effect::TracerTurned => {
                core.plan_traces(now);
                core.tell_of_traces(now);
            }
            Effect::WriteByKey { key, address, bytes } => {
                if let Err(fault) = core.write_by_key(key, address, &bytes) {
                    core.firmware_fault(now, key, format_args!("dump of {} bytes", bytes.len()), &fault);
                }
            }
            Effect::FunctionTaken(function) => core.schedule_for(now, function, HcaEvent::TakenAway),
            Effect::SyncReset { functions, what } => {
                for function in functions.iter() {
                    core.schedule_for(now, function, HcaEvent::SyncReset(what));
                }
            }
            Effect::SyncResetWaits(wait) => {
                core.schedule_port(now + Ps::from_us(PATIENCE_US), HcaEvent::SyncResetLate(wait));
            }
            Effect::TracesDue => core.write_traces(now),
            Effect::TracerReleased => core.tracer_is_free(now),
            Effect::AllGone | Effect::AllButEventsGone => {
                let stay = effect == Effect::AllButEventsGone;
                let events = stay.then(|| std::mem::take(&mut core.function.eqs));
                core.trace(now, Message::AllGone(core.id));
                core.function.counting.forget_all();
                core.function.groups.all_gone();
                core.function.drop_objects((std::mem::take(self.qps), std::mem::take(self.dc_responders)));
                if let Some(eqs) = events {
                    core.function.eqs = eqs;
                }
                core.route_events();
                // Pages will not come any more: the commands that wait for them are answered.
                for slot in self.side.commands.take_stalled() {
                    core.schedule(now, HcaEvent::Command(slot));
                }
            }
        }
    }
}
