//! Events to the host: carries out what event queues ask for. [`crate::engines::eq`] has the queue.

use hca_spec::eqe::{Eqe, EventType, OWNER_BYTE, general};
use hca_spec::ids::{Eqn, Qpn};
use hca_spec::queue::Eqc;
use hca_spec::rules;
use hca_spec::uar::{EQ_ARM, EqDoorbell, PAGE_SIZE};

use crate::adapter::core::{Core, Executor, nobodys_doorbell};
use crate::adapter::state::event::HcaEvent;
use crate::engines::eq::{EqeWrite, Lost};
use crate::faults::ModuleChange;
use crate::ground::diagnosis::{Clue, Finding, Subject};
use crate::ground::dma::{DmaError, GuestMemory};
use crate::ground::event::Event;
use crate::ground::time::Ps;

/// Writes an entry, ownership last.
fn write_eqe(memory: &dyn GuestMemory, write: &EqeWrite) -> Result<(), DmaError> {
    let bytes = write.eqe.bytes();
    memory.write(write.at, &bytes[..OWNER_BYTE])?;
    memory.write_release(write.at.wrapping_add(OWNER_BYTE as u64), bytes[OWNER_BYTE])
}

/// An event that has no place, in words.
fn lost(eqe: &Eqe) -> String {
    format!("event of type {:#x} lost", eqe.get(Eqe::TYPE))
}

/// An event queue that is full.
fn overrun(eqn: Eqn, why: Lost, (producer, consumer, entries): (u32, u32, u32), eqe: &Eqe) -> Finding {
    let found = format!("{consumer:#x}, and {producer:#x} events written: {why}; {}", lost(eqe));
    let expected = format!("fewer than {entries:#x} events ahead of the consumer index");
    Finding::new(Subject::eq(eqn), "consumer index", found, expected, &rules::EQ_ROOM)
}

impl Core<'_> {
    /// Sends an event to one event queue and raises its interrupt if it is armed.
    pub(super) fn tell(&mut self, now: Ps, eqn: Eqn, eqe: Eqe) {
        let Some(eq) = self.function.eqs.get_mut(eqn.0.into()) else { return };
        let vector = match eq.push(eqe) {
            Ok(write) => match write_eqe(&*self.function.memory, &write) {
                Ok(()) => eq.written(write),
                Err(why) => {
                    return self.answer_mistake(now, || {
                        let found =
                            format!("{:#x}, which the adapter does not reach: {}", why.iova, lost(&eqe));
                        let expected = "memory that is mapped, by an IOMMU too";
                        Finding::new(Subject::eq(eqn), "queue memory", found, expected, &rules::MEMORY_MAPPED)
                            .with(Clue::Unreached(why.iova))
                    });
                }
            },
            Err(why) => {
                let indices = eq.indices();
                return self.answer_mistake(now, || overrun(eqn, why, indices, &eqe));
            }
        };
        let kind = eqe.get(Eqe::TYPE) as u8;
        let completion = kind == EventType::Completion as u8;
        let number = eqe.get(if completion { Eqe::COMPLETION_CQN } else { Eqe::QUEUE_NUMBER });
        self.note(now, Event::Eqe { eqn, kind, number });
        if let Some(vector) = vector {
            self.interrupt_at(now + self.chip.timing.interrupt(), vector);
        }
    }

    /// Raises the interrupt of a vector at that time, or later, if the driver wants more time between two. One that waits for that
    /// stands for all that come meanwhile.
    fn interrupt_at(&mut self, at: Ps, vector: u16) {
        let delay = self.function.fw.interrupt_delay(vector);
        let last = self.function.vectors.get(&vector).copied();
        let at = match last {
            _ if delay == 0 => at,
            Some(last) if last > at => return,
            Some(last) => at.max(last + Ps::from_us(delay.into())),
            None => at,
        };
        match delay {
            0 if last.is_none() => {}
            0 => _ = self.function.vectors.remove(&vector),
            _ => _ = self.function.vectors.insert(vector, at),
        }
        self.schedule(at, HcaEvent::Interrupt(vector));
    }

    /// The event queue that asked for events of that type: of several the one that was made last (by inference, from Caladan, whose second queue has to be told).
    pub(crate) fn event_queue_for(&self, event: EventType) -> Option<Eqn> {
        self.event_queue_of(event as u8)
    }

    /// The same by the number of the type, whether or not it has a name.
    pub(crate) fn event_queue_of(&self, kind: u8) -> Option<Eqn> {
        self.function.event_routes.0.get(usize::from(kind)).copied().flatten()
    }

    /// Whether the end of a command is told by an event.
    pub(crate) fn tells_of_commands(&self) -> bool {
        self.event_queue_for(EventType::CommandCompletion).is_some()
    }

    /// An event queue came: what it asks for goes there from now on.
    pub(crate) fn route_events_to(&mut self, eqn: Eqn) {
        let Some(eq) = self.function.fw.icm.eqs.get(eqn.0.into()) else { return };
        for (event, route) in (0..=u8::MAX).zip(&mut self.function.event_routes.0) {
            if eq.wants(event) {
                *route = Some(eqn);
            }
        }
    }

    /// Event queues went: what went there goes to others that asked for it.
    pub(crate) fn route_events(&mut self) {
        let eqs = &self.function.fw.icm.eqs;
        for (event, route) in (0..=u8::MAX).zip(&mut self.function.event_routes.0) {
            let stays = route.and_then(|eqn| eqs.get(eqn.0.into())).is_some_and(|eq| eq.wants(event));
            if !stays {
                let other = eqs.iter().find(|(_, eq)| eq.wants(event));
                *route = other.map(|(n, _)| Eqn(n as u8));
            }
        }
    }

    /// Sends an asynchronous event to the event queue that asked for its type, if one did.
    pub(crate) fn push_event(&mut self, now: Ps, event: EventType, eqe: &mut Eqe) {
        eqe.set(Eqe::TYPE, event as u32);
        match self.event_queue_for(event) {
            Some(eqn) => self.push_eqe(now, eqn, *eqe),
            None => tracing::debug!(hca = self.chip.name, ?event, "no event queue asked for this event"),
        }
    }

    /// Sends an asynchronous event about a queue pair.
    pub(crate) fn push_qp_event(&mut self, now: Ps, event: EventType, qpn: Qpn) {
        let mut eqe = Eqe::new();
        eqe.set(Eqe::QUEUE_NUMBER, qpn.0);
        self.push_event(now, event, &mut eqe);
    }

    /// Sends an event about a port.
    pub(crate) fn push_port_change(&mut self, now: Ps, port: u8, sub_type: u8) {
        let mut eqe = Eqe::new();
        eqe.set(Eqe::SUB_TYPE, sub_type.into()).set(Eqe::PORT, port.into());
        self.push_event(now, EventType::PortChange, &mut eqe);
    }

    /// Sends an event about what is in the cage of a port.
    pub(crate) fn push_module_event(&mut self, now: Ps, port: u8, change: ModuleChange) {
        let (status, error) = change.codes();
        let mut eqe = Eqe::new();
        eqe.set(Eqe::MODULE, u32::from(port.saturating_sub(1)));
        eqe.set(Eqe::MODULE_STATUS, status).set(Eqe::MODULE_ERROR, error);
        self.push_event(now, EventType::PortModule, &mut eqe);
    }

    /// Tells the drivers of all functions that something happened to what is in the cage of a port.
    pub(crate) fn tell_of_module(&mut self, now: Ps, port: u8, change: ModuleChange) {
        self.push_module_event(now, port, change);
        for other in self.others() {
            self.schedule_for(now, other, HcaEvent::Module(port, change));
        }
    }

    /// Sends a warning that sensors are too hot, a bit each.
    pub(crate) fn push_temperature_warning(&mut self, now: Ps, sensors: u64) {
        let mut eqe = Eqe::new();
        eqe.set(Eqe::HOT_SENSORS_LOW, sensors);
        self.push_event(now, EventType::TemperatureWarning, &mut eqe);
    }

    /// Warns the drivers of all functions.
    pub(crate) fn warn_of_heat(&mut self, now: Ps, sensors: u64) {
        self.push_temperature_warning(now, sensors);
        for other in self.others() {
            self.schedule_for(now, other, HcaEvent::Heat(sensors));
        }
    }

    /// Asks the driver, or tells it, about a start of the firmware.
    pub(crate) fn push_sync_reset(&mut self, now: Ps, what: u8) {
        let mut eqe = Eqe::new();
        eqe.set(Eqe::SUB_TYPE, general::SYNC_RESET.into()).set(Eqe::SYNC_RESET_STATE, what.into());
        self.push_event(now, EventType::General, &mut eqe);
    }

    /// Asks the host for pages.
    pub(crate) fn request_pages(&mut self, now: Ps, pages: u32) {
        let mut eqe = Eqe::new();
        eqe.set(Eqe::PAGE_COUNT, pages);
        self.push_event(now, EventType::PageRequest, &mut eqe);
    }
}

impl Executor<'_> {
    /// The driver moved the consumer index of an event queue, and armed it if `offset` in BAR0 is that of the arming
    /// register (PRM "EQ arming").
    pub(crate) fn eq_doorbell(&mut self, now: Ps, offset: u64, value: u32) {
        let mut doorbell = EqDoorbell::new();
        doorbell.bytes_mut().copy_from_slice(&value.to_be_bytes());
        let eqn = Eqn(doorbell.get(EqDoorbell::EQN) as u8);
        let page = self.core.function.fw.icm.eqs.get(eqn.0.into()).map(|eq| eq.ctx.get(Eqc::UAR_PAGE));
        if !self.may_ring(now, page, offset, "EQ", eqn.0.into()) {
            return;
        }
        let Some(eq) = self.core.function.eqs.get_mut(eqn.0.into()) else {
            if self.is_disabled() {
                return;
            }
            return self.core.answer_mistake(now, || nobodys_doorbell(Subject::eq(eqn), "eqn"));
        };
        let (consumer, armed) = (doorbell.get(EqDoorbell::CONSUMER_INDEX), offset % PAGE_SIZE == EQ_ARM);
        let vector = eq.doorbell(consumer, armed);
        self.core.note(now, Event::EqConsumed { eqn, consumer, armed });
        if let Some(vector) = vector {
            let at = self.core.chip.units.store(now, 4) + self.core.chip.timing.interrupt();
            self.core.interrupt_at(at, vector);
        }
    }
}
