//! Around what the executor does at its seams: what goes wrong there on script ([`crate::faults`]).
//!
//! Each of these asks whether there is a script, and without one does what it is around.

use std::sync::Arc;

use hca_firmware::commands::find;
use hca_spec::be32;
use hca_spec::command::{CommandEntry, Delivery, Opcode, OutHeader};
use hca_spec::cqe::{Cqe, OP_OWN_BYTE};
use hca_spec::eqe::{Eqe, EventType, OWNER_BYTE};
use hca_spec::ids::{Cqn, Eqn, Qpn, Rqn};
use hca_spec::qpc::QpState;

use super::core::{Core, Executor};
use super::state::event::HcaEvent;
use crate::engines::command::{Fetch, Named};
use crate::faults::{
    CommandAction, EntryAction, FaultId, Fired, Held, InterruptAction, Lasting, PcieEvent, Place, Side,
    SlotEvent, SpoiltMemory, TimeAction, error_cqe, flip_bits, side,
};
use crate::ground::dma::GuestMemory;
use crate::ground::event::Event;
use crate::ground::random::SplitMix64;
use crate::ground::time::Ps;

/// Times that a fault is put in words; after that only those that are a power of two.
const SAID: u64 = 20;

/// Status and syndrome of a command's output.
const HEADER: usize = 8;
/// What is behind the first word of an event, with its type.
const BEHIND_TYPE: usize = 4;

impl Executor<'_> {
    /// An event is carried out at an adapter for which something is on script.
    #[cold]
    pub(crate) fn handle_on_script(&mut self, now: Ps, event: HcaEvent) {
        let spoiler = self.core.chip.script.as_ref().and_then(|script| script.spoiler.clone());
        let Some(spoiler) = spoiler else { return self.handle_now(now, event) };
        spoiler.at(now);
        self.handle_now(now, event);
        for spoilt in spoiler.take() {
            let (what, iova, len) = (spoilt.action, spoilt.iova, spoilt.len);
            self.core.say_fault(now, &spoilt.fired(), format_args!("{what:?}, {len} bytes at {iova:#x}"));
            if let (Some(event), Some(script)) = (what.event(), &mut self.core.chip.script) {
                script.pcie.note(event);
            }
        }
    }

    /// Puts what goes wrong with accesses around the host's memory, if there is such a fault.
    pub(crate) fn spoil_memory(&mut self) {
        let spoiler = self.core.chip.script.as_ref().and_then(|script| script.spoiler.clone());
        let Some(spoiler) = spoiler else { return };
        let function = &mut *self.core.function;
        let inner: Arc<dyn GuestMemory> = match &function.outstanding {
            Some(outstanding) => outstanding.clone(),
            None => self.side.host.clone(),
        };
        function.memory = Arc::new(SpoiltMemory::new(inner, function.outstanding.clone(), spoiler));
    }

    /// A command's input is whole: it is executed, unless something goes wrong with it.
    pub(crate) fn execute_command(&mut self, now: Ps, fetch: &mut Fetch) {
        let Some((action, random)) = self.core.command_fault(now, fetch) else {
            return self.execute(now, fetch);
        };
        match action {
            CommandAction::Hang => {}
            CommandAction::Fail { status, syndrome } => {
                let mut header = OutHeader::new();
                header.set(OutHeader::STATUS, status.into()).set(OutHeader::SYNDROME, syndrome);
                self.core.hand_back(now, fetch, Delivery::Ok, header.bytes().to_vec());
            }
            CommandAction::Undelivered(delivery) => self.core.hand_back(now, fetch, delivery, Vec::new()),
            // What is left happens to the output.
            CommandAction::Late(_) | CommandAction::Corrupt(_) | CommandAction::Signature => {
                let before = self.core.chip.out.events.len();
                self.execute(now, fetch);
                self.core.spoil_output(before, action, random);
            }
        }
    }

    /// An interrupt is raised, unless something goes wrong with it.
    pub(crate) fn interrupt(&mut self, now: Ps, vector: u16) {
        let Some(script) = &mut self.core.chip.script else { return self.core.raise_vector(now, vector) };
        if script.is_away(now) {
            return;
        }
        let Some((fired, action)) = script.interrupt(now, vector) else {
            return self.core.raise_vector(now, vector);
        };
        self.core.say_fault(now, &fired, format_args!("{action:?}"));
        match action {
            InterruptAction::Lose => {}
            InterruptAction::Late(by) => self.core.hold_interrupt(now + by, vector),
            InterruptAction::Other(other) => self.core.raise_vector(now, other),
            InterruptAction::Twice => {
                self.core.raise_vector(now, vector);
                // The host sees two if there is something between them.
                self.core.hold_interrupt(now + self.core.chip.timing.interrupt(), vector);
            }
        }
    }

    /// The host reads BAR0.
    pub(crate) fn mmio_read(&mut self, now: Ps, offset: u64, buf: &mut [u8]) {
        self.read_registers(now, offset, buf);
        if let Some(script) = &self.core.chip.script {
            if script.is_away(now) {
                return buf.fill(u8::MAX);
            }
            script.firmware.read(offset, buf, self.core.chip.timing.health_tick());
        }
    }

    /// The host writes BAR0.
    #[inline]
    pub(crate) fn mmio_write(&mut self, now: Ps, offset: u64, data: &[u8]) {
        if let Some(script) = &mut self.core.chip.script {
            if script.is_away(now) {
                return;
            }
            script.firmware.written(offset, data);
        }
        self.store(now, offset, data);
    }

    /// Something that was put off on script happens.
    pub(crate) fn release(&mut self, now: Ps, held: Held) {
        let Self { core, qps, .. } = self;
        match held {
            Held::Interrupt(vector, place) => {
                place.free();
                core.raise_vector(now, vector);
            }
            Held::Event(eqn, eqe, place) => {
                place.free();
                core.tell(now, eqn, eqe);
            }
            Held::Completion(cqn, cqe, data, place) => {
                place.free();
                core.deliver(now, cqn, cqe, &data);
            }
            Held::FailQp(qpn) => {
                if let Some(qp) = qps.get_mut(qpn.0).filter(|qp| qp.state != QpState::Error) {
                    core.fail(now, qp, None);
                }
            }
            Held::FailSends(qpn) => {
                if let Some(qp) = qps.get_mut(qpn.0).filter(|qp| qp.state != QpState::Error) {
                    core.fail_sends(now, qp, None);
                }
            }
            Held::FailRq(rqn) => core.fail_rq(now, rqn),
        }
    }

    /// The chip is so hot from now on, in degrees Celsius, or as at rest.
    pub(crate) fn heat(&mut self, now: Ps, degrees: Option<u8>) {
        let sensors = self.core.chip.managed.heat(degrees);
        if sensors != 0 {
            self.core.warn_of_heat(now, sensors);
        }
    }

    /// What happens of itself at an adapter, but for what concerns its ports.
    pub(crate) fn happen(&mut self, now: Ps, action: &TimeAction) {
        match action {
            TimeAction::Ail(ailment) => {
                if let Some(script) = &mut self.core.chip.script {
                    script.firmware.ail(now, *ailment);
                }
            }
            TimeAction::Away(lasting) => {
                if let Some(script) = &mut self.core.chip.script {
                    script.leave(now, *lasting);
                }
            }
            TimeAction::Event { kind, sub_type, data } => {
                let eqe = TimeAction::eqe(*kind, *sub_type, data);
                match self.core.event_queue_of(*kind) {
                    Some(eqn) => self.core.tell(now, eqn, eqe),
                    None => tracing::info!(
                        hca = self.core.chip.name,
                        "no event queue asked for events of type {kind:#x}"
                    ),
                }
            }
            TimeAction::Pages(pages) => self.core.request_pages(now, *pages as u32),
            TimeAction::Interrupt(vector) => self.core.raise_vector(now, *vector),
            TimeAction::PcieError { error, header } => {
                let chip = &mut self.core.chip;
                if let Some(script) = &mut chip.script {
                    script.pcie.note(PcieEvent::Error(*error, *header));
                    error.trouble().into_iter().for_each(|trouble| chip.managed.pcie.trouble(trouble));
                }
            }
            TimeAction::Slot { event, .. } => {
                if let Some(script) = &mut self.core.chip.script {
                    match event {
                        SlotEvent::Removed => script.leave(now, Lasting::ForEver),
                        SlotEvent::Ejected => {}
                        SlotEvent::Inserted => script.come_back(),
                    }
                    script.pcie.note_slot(*event);
                }
            }
            TimeAction::Retrain { link, .. } => self.core.chip.retrain(Some(*link)),
            TimeAction::Heat { degrees, .. } => self.heat(now, Some(*degrees)),
            TimeAction::Degrade { .. }
            | TimeAction::Module { .. }
            | TimeAction::Port { .. }
            | TimeAction::Unplug { .. } => {}
        }
    }
}

impl Core<'_> {
    /// A fault happens: it is in the log and in the trace.
    pub(crate) fn say_fault(&mut self, now: Ps, fired: &Fired, what: std::fmt::Arguments<'_>) {
        let Fired { id: FaultId(number), seam, object, times } = *fired;
        if times <= SAID || times.is_power_of_two() {
            let name = self.chip.script.as_ref().map_or("", |script| script.name(fired.id));
            tracing::info!(hca = self.chip.name, at = %now, times, "fault {name:?}: {seam} {object:#x}: {what}");
        }
        self.note(now, Event::Fault { number, seam, object });
    }

    fn hold(&mut self, at: Ps, held: Held) {
        self.schedule(at, HcaEvent::Scripted(Box::new(held)));
    }

    /// A vector is raised then, if not too many interrupts wait.
    fn hold_interrupt(&mut self, at: Ps, vector: u16) {
        if let Some(place) = self.chip.script.as_ref().and_then(|script| script.late_interrupts.take()) {
            self.hold(at, Held::Interrupt(vector, place));
        }
    }

    /// A place for an entry of a queue that comes late, if not too many do.
    fn place_of_entry(&self) -> Option<Place> {
        self.chip.script.as_ref()?.late_entries.take()
    }

    fn raise_vector(&mut self, now: Ps, vector: u16) {
        self.note(now, Event::Interrupt { vector });
        self.chip.out.rare().vectors.push(vector);
    }

    /// What goes wrong with a command.
    fn command_fault(&mut self, now: Ps, fetch: &Fetch) -> Option<(CommandAction, SplitMix64)> {
        let script = self.chip.script.as_mut()?;
        let opcode = (be32(fetch.input(), 0) >> 16) as u16;
        let about = Opcode::from_u16(opcode).and_then(find).and_then(|command| command.object);
        let number = about.map(|object| be32(fetch.input(), object.at) & object.kind.number_mask());
        if script.firmware.is_stopped() {
            tracing::debug!(hca = self.chip.name, "{}: the firmware is stopped", Named(opcode));
            return Some((CommandAction::Hang, SplitMix64(0)));
        }
        let (fired, action, random) = script.command(now, opcode, number)?;
        let random = SplitMix64(random.next());
        self.say_fault(now, &fired, format_args!("{action:?}"));
        Some((action, random))
    }

    /// A command is handed back that was not executed.
    fn hand_back(&mut self, now: Ps, fetch: &Fetch, delivery: Delivery, output: Vec<u8>) {
        let event = self.tells_of_commands();
        let at = now + self.chip.timing.dma_write(CommandEntry::SIZE);
        let watched = self.watched_input(fetch.input());
        self.note_command(now, fetch.slot, watched.filter(|_| delivery == Delivery::Ok), &output);
        let output = fetch.output(delivery, output, event);
        self.schedule(at, HcaEvent::CommandDone(Box::new(output)));
    }

    /// Something happens to the output of the command that was executed, if it was: it is among the events that are new since there
    /// were `before`.
    fn spoil_output(&mut self, before: usize, action: CommandAction, mut random: SplitMix64) {
        for (at, event) in self.chip.out.events.iter_mut().skip(before) {
            let HcaEvent::CommandDone(output) = event else { continue };
            match action {
                CommandAction::Late(by) => *at += by,
                CommandAction::Corrupt(bits) => {
                    flip_bits(output.data_mut().get_mut(HEADER..).unwrap_or_default(), bits, &mut random);
                }
                _ => {
                    let (place, mut byte) = (output.signature_at(), [0]);
                    _ = self.function.memory.read(place, &mut byte);
                    _ = self.function.memory.write(place, &byte.map(|byte| !byte));
                }
            }
        }
    }

    /// Writes a completion and raises what is armed, unless something goes wrong with it. See [`Core::deliver`].
    #[inline(always)]
    pub(crate) fn complete(&mut self, now: Ps, cqn: Cqn, cqe: Cqe, data: &[u8]) -> bool {
        match self.chip.script {
            None => self.deliver(now, cqn, cqe, data),
            Some(_) => self.complete_on_script(now, cqn, cqe, data),
        }
    }

    #[cold]
    fn complete_on_script(&mut self, now: Ps, cqn: Cqn, mut cqe: Cqe, data: &[u8]) -> bool {
        let found = self.chip.script.as_mut().and_then(|script| script.completion(now, cqn, &cqe));
        let Some((fired, action, random)) = found else { return self.deliver(now, cqn, cqe, data) };
        if let EntryAction::Corrupt(bits) = action {
            let bytes = cqe.bytes_mut();
            flip_bits(bytes.get_mut(..OP_OWN_BYTE).unwrap_or_default(), bits, random);
        }
        self.say_fault(now, &fired, format_args!("{action:?}"));
        match action {
            EntryAction::Lose => true,
            EntryAction::Late(by) => {
                if let Some(place) = self.place_of_entry() {
                    self.hold(now + by, Held::Completion(cqn, cqe, data.to_vec(), place));
                }
                true
            }
            EntryAction::Twice => self.deliver(now, cqn, cqe, data) && self.deliver(now, cqn, cqe, data),
            EntryAction::Corrupt(_) => self.deliver(now, cqn, cqe, data),
            EntryAction::Kind(opcode) => {
                cqe.set(Cqe::OPCODE, opcode.into());
                self.deliver(now, cqn, cqe, data)
            }
            EntryAction::Overflow => {
                self.overflow(now, cqn);
                false
            }
            EntryAction::Error { syndrome, vendor } => {
                let held = match (side(&cqe), self.receive_queue_of(cqn)) {
                    (Side::Send, _) => Held::FailSends(Qpn(cqe.get(Cqe::QPN))),
                    (Side::Receive, Some(rqn)) => Held::FailRq(rqn),
                    (Side::Receive, None) => Held::FailQp(Qpn(cqe.get(Cqe::QPN))),
                };
                let delivered = self.deliver(now, cqn, error_cqe(&cqe, syndrome, vendor), &[]);
                self.hold(now, held);
                delivered
            }
        }
    }

    /// The first receive queue of frames that completes there.
    fn receive_queue_of(&self, cqn: Cqn) -> Option<Rqn> {
        let mut rqs = self.function.fw.icm.rqs.iter();
        rqs.find(|(_, rq)| rq.cqn == cqn.0).map(|(rqn, _)| Rqn(rqn))
    }

    /// Sends an event to one event queue, unless something goes wrong with it. See [`Core::tell`].
    pub(crate) fn push_eqe(&mut self, now: Ps, eqn: Eqn, eqe: Eqe) {
        match self.chip.script {
            None => self.tell(now, eqn, eqe),
            Some(_) => self.push_on_script(now, eqn, eqe),
        }
    }

    #[cold]
    fn push_on_script(&mut self, now: Ps, eqn: Eqn, mut eqe: Eqe) {
        let kind = eqe.get(Eqe::TYPE) as u8;
        let completion = kind == EventType::Completion as u8;
        let number = eqe.get(if completion { Eqe::COMPLETION_CQN } else { Eqe::QUEUE_NUMBER });
        let port = (kind == EventType::PortChange as u8).then(|| eqe.get(Eqe::PORT) as u8);
        let found = self.chip.script.as_mut().and_then(|script| script.event(now, eqn, (kind, number, port)));
        let Some((fired, action, random)) = found else { return self.tell(now, eqn, eqe) };
        if let EntryAction::Corrupt(bits) = action {
            // Neither its type nor its owner.
            let bytes = eqe.bytes_mut();
            flip_bits(bytes.get_mut(BEHIND_TYPE..OWNER_BYTE).unwrap_or_default(), bits, random);
        }
        self.say_fault(now, &fired, format_args!("{action:?}"));
        match action {
            EntryAction::Lose => {}
            EntryAction::Late(by) => {
                if let Some(place) = self.place_of_entry() {
                    self.hold(now + by, Held::Event(eqn, eqe, place));
                }
            }
            EntryAction::Twice => {
                self.tell(now, eqn, eqe);
                self.tell(now, eqn, eqe);
            }
            EntryAction::Corrupt(_) => self.tell(now, eqn, eqe),
            EntryAction::Kind(kind) => {
                eqe.set(Eqe::TYPE, kind.into());
                self.tell(now, eqn, eqe);
            }
            EntryAction::Overflow => {
                if let Some(eq) = self.function.eqs.get_mut(eqn.0.into()) {
                    eq.overflow();
                }
                self.tell(now, eqn, eqe);
            }
            // Of completions only.
            EntryAction::Error { .. } => self.tell(now, eqn, eqe),
        }
    }
}
