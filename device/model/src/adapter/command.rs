//! The command queue: fetching entries and mailboxes, executing, delivering.
//!
//! Source: PRM "Command Queue", "Command Mailboxes". Lengths rule the walk along a mailbox chain, not
//! its `next` pointers: drivers reuse longer chains.

use hca_firmware::commands::{Action, find};
use hca_firmware::object::Kind;
use hca_firmware::{Effect, Execution};
use hca_spec::be32;
use hca_spec::command::{
    CommandEntry, Delivery, ENTRY_TYPE_PCIE, INLINE, INLINE_INPUT, INLINE_OUTPUT, MAILBOX_DATA, MailboxBlock,
    OWNERSHIP_BYTE, Opcode,
};
use hca_spec::eqe::{Eqe, EventType, port_change};
use hca_spec::ids::{Cqn, Eqn};

use crate::adapter::Executor;
use crate::adapter::core::{Core, HcaEvent};
use crate::engines::qp::recv::SharedQueue;
use crate::ground::event::Event;
use crate::ground::time::Ps;

/// Largest input accepted: a CREATE_MKEY with 2^21 page addresses and its header.
const MAX_INPUT: usize = (8 << 21) + 0x110;
/// Largest output: more than any command's.
const MAX_OUTPUT: usize = 1 << 20;

/// A command whose output waits for its modelled time.
#[derive(Debug)]
pub(crate) struct Finished {
    slot: u8,
    entry_at: u64,
    output: Vec<u8>,
    output_mailbox: u64,
    delivery: Delivery,
    /// A command event queue was there when the command was fetched: the one that creates it completes
    /// without an event, because software still polls for it.
    event: bool,
}

/// Which command slots the adapter works on: bit i = slot i.
#[derive(Debug, Default)]
pub(crate) struct CommandSlots {
    /// Handed over by a doorbell and not given back.
    busy: u32,
    /// Of those, the ones that wait for pages from the host.
    stalled: u32,
}

fn slots_of(bits: u32) -> impl Iterator<Item = u8> {
    (0..32u8).filter(move |slot| bits >> slot & 1 == 1)
}

impl CommandSlots {
    fn give_back(&mut self, slot: u8) {
        self.busy &= !(1u32.checked_shl(slot.into()).unwrap_or(0));
    }

    fn stall(&mut self, slot: u8) {
        self.stalled |= 1u32.checked_shl(slot.into()).unwrap_or(0);
    }

    fn take_stalled(&mut self) -> impl Iterator<Item = u8> {
        slots_of(std::mem::take(&mut self.stalled))
    }
}

fn fetch_input(core: &Core, entry: &CommandEntry) -> Result<Vec<u8>, Delivery> {
    let len = entry.get(CommandEntry::INPUT_LENGTH) as usize;
    if !(INLINE..=MAX_INPUT).contains(&len) {
        return Err(Delivery::BadInputLength);
    }
    let mut input = Vec::with_capacity(len.min(4096));
    input.extend(entry.bytes().iter().skip(INLINE_INPUT).take(INLINE));
    let mut next = entry.get(CommandEntry::INPUT_MAILBOX);
    while input.len() < len {
        let block = core.read::<{ MailboxBlock::SIZE }>(next).map_err(|_| Delivery::BadInputPointer)?;
        let view = MailboxBlock::from_prefix_or_zero(&block);
        if view.get(MailboxBlock::TOKEN) != entry.get(CommandEntry::TOKEN) {
            return Err(Delivery::Token);
        }
        input.extend(block.iter().take(MAILBOX_DATA.min(len - input.len())));
        next = view.get(MailboxBlock::NEXT);
    }
    Ok(input)
}

fn deliver_output(core: &Core, done: &Finished) -> Result<(), Delivery> {
    let (inline, mut rest) = done.output.split_at(done.output.len().min(INLINE));
    let mut at = done.output_mailbox;
    while !rest.is_empty() {
        let (block, later) = rest.split_at(rest.len().min(MAILBOX_DATA));
        core.memory.write(at, block).map_err(|_| Delivery::BadOutputPointer)?;
        rest = later;
        if !rest.is_empty() {
            let next = at.wrapping_add(MailboxBlock::NEXT.offset() as u64);
            at = core.read(next).map(u64::from_be_bytes).map_err(|_| Delivery::BadOutputPointer)?;
        }
    }
    core.memory.write(done.entry_at + INLINE_OUTPUT as u64, inline).map_err(|_| Delivery::BadOutputPointer)
}

impl Executor<'_> {
    /// Doorbell bits: each hands one entry to the hardware.
    pub(crate) fn command_doorbell(&mut self, now: Ps, bits: u32) {
        let again = bits & self.commands.busy;
        if again != 0 {
            self.core.diagnose(
                now,
                format_args!(
                    "command doorbell {bits:#x}: the adapter still works on slots {again:#x} (PRM Command Queue)"
                ),
            );
        }
        let new = bits & !again;
        self.commands.busy |= new;
        for slot in slots_of(new) {
            let at = self.core.units.store(now, 4) + self.core.timing.dma_read(CommandEntry::SIZE);
            self.core.schedule(at, HcaEvent::Command(slot));
        }
    }

    /// Fetches and executes the command of a slot.
    pub(crate) fn command(&mut self, now: Ps, slot: u8) {
        let entry_at = self.registers.command_queue() + u64::from(slot) * CommandEntry::SIZE as u64;
        let bytes = match self.core.read::<{ CommandEntry::SIZE }>(entry_at) {
            Ok(bytes) => bytes,
            Err(why) => {
                self.commands.give_back(slot);
                return self.core.diagnose(now, format_args!("command entry {slot} can't be read: {why}"));
            }
        };
        let entry = CommandEntry::from_prefix_or_zero(&bytes);
        if entry.get(CommandEntry::OWNERSHIP) == 0 {
            self.commands.give_back(slot);
            return self.core.diagnose(
                now,
                format_args!(
                    "command doorbell {slot} was rung, but software owns the entry (PRM Command Queue)"
                ),
            );
        }
        let mut done = Finished {
            slot,
            entry_at,
            output: Vec::new(),
            output_mailbox: entry.get(CommandEntry::OUTPUT_MAILBOX),
            delivery: Delivery::Ok,
            event: self.core.event_queue_for(EventType::CommandCompletion).is_some(),
        };
        let output_len = (entry.get(CommandEntry::OUTPUT_LENGTH) as usize).min(MAX_OUTPUT);
        let fetched = if entry.get(CommandEntry::TYPE) != ENTRY_TYPE_PCIE {
            Err(Delivery::BadType)
        } else if output_len < INLINE / 2 {
            Err(Delivery::BadOutputLength)
        } else {
            fetch_input(&self.core, &entry)
        };
        let mut duration = self.core.timing.dma_write(CommandEntry::SIZE);
        match fetched {
            Err(delivery) => {
                self.core.diagnose(now, format_args!("command entry {slot} is not executable: {delivery:?}"));
                done.delivery = delivery;
            }
            Ok(input) => {
                let opcode = (be32(&input, 0) >> 16) as u16;
                self.core.note(now, Event::Command { slot, opcode });
                self.write_back(opcode, &input);
                let mut effects = Vec::new();
                let core = &mut self.core;
                let execution = core.fw.execute_at(core.managed, &input, output_len, &mut effects);
                if let Some(why) = self.core.fw.take_refusal() {
                    self.core.diagnose(now, format_args!("{why}"));
                }
                match execution {
                    Execution::Done(output) => {
                        tracing::debug!(
                            hca = self.core.name,
                            slot,
                            status = output.first(),
                            syndrome = be32(&output, 4),
                            "command {:?} {opcode:#x}",
                            Opcode::from_u16(opcode),
                        );
                        done.output = output;
                        duration += self.core.timing.command(opcode, input.len());
                    }
                    Execution::NeedPages => {
                        tracing::debug!(hca = self.core.name, slot, "command {opcode:#x} waits for pages");
                        self.commands.stall(slot);
                        self.apply(now, effects);
                        return;
                    }
                }
                self.apply(now, effects);
                self.core.agents_poll_later(now);
                if opcode == Opcode::MadIfc as u16 {
                    self.core.configure_ports();
                }
                if opcode == Opcode::ManagePages as u16 {
                    for slot in self.commands.take_stalled() {
                        self.core.schedule(now + duration, HcaEvent::Command(slot));
                    }
                }
            }
        }
        self.core.schedule(now + duration, HcaEvent::CommandDone(Box::new(done)));
    }

    /// Writes a command's output: data, then ownership, then the event.
    pub(crate) fn command_done(&mut self, now: Ps, mut done: Finished) {
        self.commands.give_back(done.slot);
        if let Err(delivery) = deliver_output(&self.core, &done) {
            self.core.diagnose(now, format_args!("output of command {} can't be written", done.slot));
            done.delivery = delivery;
        }
        self.core.note(now, Event::CommandDone { slot: done.slot, delivery: done.delivery as u8 });
        let status = (done.delivery as u8) << 1;
        if let Err(why) = self.core.memory.write_release(done.entry_at + OWNERSHIP_BYTE as u64, status) {
            return self.core.diagnose(now, format_args!("command {} can't be completed: {why}", done.slot));
        }
        if !done.event {
            return;
        }
        let mut eqe = Eqe::new();
        eqe.set(Eqe::COMMAND_VECTOR, 1u32.checked_shl(done.slot.into()).unwrap_or(0));
        self.core.push_event(now, EventType::CommandCompletion, &mut eqe);
    }

    /// Before a query, or a change that depends on it, the state of an object goes into its context.
    fn write_back(&mut self, opcode: u16, input: &[u8]) {
        let Some(object) = Opcode::from_u16(opcode).and_then(find).and_then(|command| command.object) else {
            return;
        };
        let number = be32(input, object.at) & object.kind.number_mask();
        let core = &mut self.core;
        match (object.kind, object.action) {
            (_, Action::Create) => {}
            (Kind::Eq, Action::Query) => {
                if let (Some(eq), Some(hw)) = (core.fw.icm.eqs.get_mut(number), core.eqs.get(number)) {
                    hw.write_back(&mut eq.ctx);
                }
            }
            (Kind::Cq, Action::Query | Action::Change) => {
                core.cq_write_back(Cqn(number));
            }
            (Kind::Srq | Kind::XrcSrq | Kind::Rmp, Action::Query) => {
                let record = core.srqs.get(number).map(SharedQueue::doorbell_record);
                let posted = record.and_then(|record| core.receive_counter(record));
                if let (Some(srq), Some(hw)) = (core.fw.icm.srqs.get_mut(number), core.srqs.get_mut(number)) {
                    hw.write_back(posted, &mut srq.ctx);
                }
            }
            (Kind::Qp, _) => {
                let Some(hw) = self.qps.get(number) else { return };
                let posted = core.receives_posted(hw);
                if let Some(qp) = core.fw.icm.qps.get_mut(number) {
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
                if let Some(eq) = core.fw.icm.eqs.get(n.into()) {
                    core.eqs.insert(n.into(), crate::engines::eq::EventQueue::new(eq));
                }
                core.route_events();
            }
            Effect::EqDestroyed(Eqn(n)) => {
                drop(core.eqs.remove(n.into()));
                core.route_events();
            }
            // Objects have no state here before they are used.
            Effect::CqCreated(_) | Effect::QpCreated(_) => {}
            Effect::CqModerated(Cqn(n)) => {
                if let (Some(cq), Some(hw)) = (core.fw.icm.cqs.get(n), core.cqs.get_mut(n)) {
                    hw.modify(&cq.ctx);
                }
            }
            Effect::CqResized { cqn, old } => core.cq_resized(now, cqn, &old),
            Effect::CqDestroyed(Cqn(n)) => drop(core.cqs.remove(n)),
            Effect::QpModified { qpn, from, to } => self.qp_modified(now, qpn, from, to),
            Effect::QpDestroyed(qpn) => {
                core.counting.forget(qpn);
                drop(self.qps.remove(qpn.0));
            }
            Effect::SrqCreated(srqn) => {
                if let Some(srq) = core.fw.icm.srqs.get(srqn.0) {
                    core.srqs.insert(srqn.0, SharedQueue::new(srqn, srq));
                }
            }
            Effect::SrqArmed(srqn) => {
                if let (Some(srq), Some(hw)) = (core.fw.icm.srqs.get(srqn.0), core.srqs.get_mut(srqn.0)) {
                    hw.arm(srq);
                }
                core.srq_limit(now, srqn);
            }
            Effect::PageFaultResumed { qpn, kind, error } => {
                self.page_fault_resumed(now, qpn, kind, error);
            }
            Effect::DctDraining(dctn) => self.dynamic_draining(now, dctn),
            Effect::DctDestroyed(dctn) => {
                core.counting.forget(dctn);
                self.dc_responders.retain(|peer, _| peer.dctn != dctn);
            }
            Effect::SrqDestroyed(srqn) => drop(core.srqs.remove(srqn.0)),
            Effect::PortChange { port, sub_type } => {
                core.out.port_changed(port, sub_type == port_change::DOWN);
                let state = core.managed.port(port).map_or(0, |p| p.state as u8);
                core.note(now, Event::Port { state });
                core.push_port_change(now, port, sub_type);
                for other in core.others() {
                    core.schedule_for(now, other, HcaEvent::PortChange(port, sub_type));
                }
            }
            Effect::PortEnabled { port } => core.out.port_changed(port, false),
            Effect::PageRequest { pages } => core.request_pages(now, pages as u32),
            Effect::AllGone => {
                core.counting.forget_all();
                core.eqs.clear();
                core.route_events();
                core.cqs.clear();
                core.srqs.clear();
                self.qps.clear();
                self.dc_responders.clear();
                // Pages will not come any more: the commands that wait for them are answered.
                for slot in self.commands.take_stalled() {
                    core.schedule(now, HcaEvent::Command(slot));
                }
            }
        }
    }
}
