//! Event queues (EQ): how the adapter reports that something happened.
//!
//! An EQ is a ring of 64-byte entries with an owner bit each, a consumer index that the driver writes to
//! the UAR page, and an MSI-X vector. The adapter raises the vector only while the EQ is armed
//! (PRM "Event Queues").

use crate::bus::{Bus, Dma, pages_of};
use crate::error::Error;
use crate::hca::Hca;
use crate::odp::PageFault;
use alloc::vec::Vec;
use hca_spec::cmd::CreateEqIn;
use hca_spec::command::Opcode;
use hca_spec::eqe::{Eqe, EventType};
use hca_spec::ids::{Cqn, Eqn, Qpn, Srqn, UarIndex};
use hca_spec::queue::Eqc;
use hca_spec::uar;

/// The word of an EQE that holds the owner bit.
const OWNER_WORD: usize = 0x3c;

/// An event queue.
pub struct Eq<D> {
    number: Eqn,
    ring: D,
    log_size: u32,
    consumer: u32,
    uar: UarIndex,
    vector: u16,
}

impl<D: Dma> Eq<D> {
    /// The queue's number.
    pub fn number(&self) -> Eqn {
        self.number
    }

    /// The MSI-X vector the queue raises.
    pub fn vector(&self) -> u16 {
        self.vector
    }

    /// Takes the next event, if there is one.
    ///
    /// The adapter learns of the room only by [`Eq::update`] or [`Eq::arm`].
    pub fn poll(&mut self) -> Option<Event> {
        let at = (self.consumer as usize & ((1 << self.log_size) - 1)) * Eqe::SIZE;
        let owner = self.ring.load32(at + OWNER_WORD) & Eqe::OWNER.max();
        if !is_ours(owner, self.consumer, self.log_size) {
            return None;
        }
        let mut eqe = Eqe::new();
        self.ring.read(at, eqe.bytes_mut());
        self.consumer = self.consumer.wrapping_add(1);
        Some(Event::decode(&eqe))
    }

    /// Tells the adapter which events were taken.
    pub fn update<B: Bus>(&self, bus: &mut B) {
        self.ring(bus, uar::EQ_UPDATE);
    }

    /// Tells the adapter which events were taken and asks for an interrupt at the next one.
    ///
    /// If the next one is there already the interrupt comes at once.
    pub fn arm<B: Bus>(&self, bus: &mut B) {
        self.ring(bus, uar::EQ_ARM);
    }

    fn ring<B: Bus>(&self, bus: &mut B, register: u64) {
        let mut doorbell = uar::EqDoorbell::new();
        doorbell.set(uar::EqDoorbell::EQN, self.number.0.into());
        doorbell.set(uar::EqDoorbell::CONSUMER_INDEX, self.consumer);
        bus.mmio_write32(page(self.uar) + register, u32::from_be_bytes(*doorbell.bytes()));
    }
}

/// Whether an entry with this owner bit is for software: the adapter writes 0 on its first way through
/// the ring, 1 on the second, and so on.
pub(crate) fn is_ours(owner: u32, consumer: u32, log_size: u32) -> bool {
    (owner ^ (consumer >> log_size)) & 1 == 0
}

/// Offset of a UAR page in BAR0.
pub(crate) fn page(uar: UarIndex) -> u64 {
    u64::from(uar.0) * uar::PAGE_SIZE
}

/// An event, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A completion queue that was armed has entries.
    Completion(Cqn),
    /// Commands in these slots are done.
    Commands(u32),
    /// The firmware wants pages (positive) or would give some back (negative).
    PageRequest {
        /// The function that asks.
        function: u16,
        /// How many.
        count: i32,
    },
    /// The port changed; see `hca_spec::eqe::port_change`.
    PortChange {
        /// The port, from 1.
        port: u8,
        /// What changed.
        change: u8,
    },
    /// Something happened to what is in a cage; see `hca_spec::eqe::module_status`.
    Module {
        /// The cage, from 0.
        module: u8,
        /// What happened.
        status: u8,
        /// Why it can't be used, if it can't; see `hca_spec::eqe::module_error`.
        error: u8,
    },
    /// Sensors are above their upper limits.
    TemperatureWarning {
        /// Which, a bit each.
        sensors: u128,
    },
    /// A completion queue is in error; see `hca_spec::eqe::cq_syndrome`.
    CqError {
        /// The queue.
        cqn: Cqn,
        /// What happened.
        syndrome: u8,
    },
    /// Something about a queue pair.
    Qp {
        /// The queue pair.
        qpn: Qpn,
        /// What: the event's type number.
        kind: u8,
    },
    /// Something about a shared receive queue.
    Srq {
        /// The queue.
        srqn: Srqn,
        /// What: the event's type number.
        kind: u8,
    },
    /// Something about a DC target.
    Dct {
        /// The target.
        dctn: Qpn,
        /// What: the event's type number.
        kind: u8,
    },
    /// A queue pair waits for a page of an on-demand region.
    PageFault(PageFault),
    /// A type this driver does not know.
    Other {
        /// The event's type number.
        kind: u8,
        /// The event's sub-type.
        sub_type: u8,
    },
}

impl Event {
    /// Decodes an entry.
    pub fn decode(eqe: &Eqe) -> Self {
        const QP_EVENTS: [EventType; 8] = [
            EventType::PathMigrated,
            EventType::CommEstablished,
            EventType::SqDrained,
            EventType::WqCatastrophic,
            EventType::PathMigrationFailed,
            EventType::InvalidRequest,
            EventType::AccessError,
            EventType::LastWqe,
        ];
        let kind = eqe.get(Eqe::TYPE) as u8;
        let is = |event: EventType| kind == event as u8;
        if is(EventType::Completion) {
            Event::Completion(Cqn(eqe.get(Eqe::COMPLETION_CQN)))
        } else if is(EventType::CommandCompletion) {
            Event::Commands(eqe.get(Eqe::COMMAND_VECTOR))
        } else if is(EventType::PageRequest) {
            let function = eqe.get(Eqe::PAGE_FUNCTION_ID) as u16;
            Event::PageRequest { function, count: eqe.get(Eqe::PAGE_COUNT) as i32 }
        } else if is(EventType::PortChange) {
            Event::PortChange { port: eqe.get(Eqe::PORT) as u8, change: eqe.get(Eqe::SUB_TYPE) as u8 }
        } else if is(EventType::PortModule) {
            let byte = |field: u32| field as u8;
            Event::Module {
                module: byte(eqe.get(Eqe::MODULE)),
                status: byte(eqe.get(Eqe::MODULE_STATUS)),
                error: byte(eqe.get(Eqe::MODULE_ERROR)),
            }
        } else if is(EventType::TemperatureWarning) {
            let words = [eqe.get(Eqe::HOT_SENSORS_HIGH), eqe.get(Eqe::HOT_SENSORS_LOW)];
            Event::TemperatureWarning { sensors: u128::from(words[0]) << 64 | u128::from(words[1]) }
        } else if is(EventType::CqError) {
            let syndrome = eqe.get(Eqe::CQ_ERROR_SYNDROME) as u8;
            Event::CqError { cqn: Cqn(eqe.get(Eqe::CQ_ERROR_CQN)), syndrome }
        } else if is(EventType::PageFault) {
            Event::PageFault(PageFault::decode(eqe))
        } else if is(EventType::SrqLimit) || is(EventType::SrqCatastrophic) {
            Event::Srq { srqn: Srqn(eqe.get(Eqe::QUEUE_NUMBER)), kind }
        } else if is(EventType::DctDrained) || is(EventType::DctKeyViolation) {
            Event::Dct { dctn: Qpn(eqe.get(Eqe::QUEUE_NUMBER)), kind }
        } else if QP_EVENTS.into_iter().any(is) {
            Event::Qp { qpn: Qpn(eqe.get(Eqe::QUEUE_NUMBER)), kind }
        } else {
            Event::Other { kind, sub_type: eqe.get(Eqe::SUB_TYPE) as u8 }
        }
    }
}

impl<B: Bus> Hca<B> {
    /// Creates an event queue for completions of at least `entries` events on MSI-X vector `vector`.
    ///
    /// It is born disarmed.
    pub fn create_eq(&mut self, entries: u32, vector: u16) -> Result<Eq<B::Dma>, Error> {
        self.create_eq_for(entries, vector, 0)
    }

    /// Creates an event queue that gets the events whose type's bit is set in `events`
    /// (PRM "CREATE_EQ").
    pub(crate) fn create_eq_for(
        &mut self,
        entries: u32,
        vector: u16,
        events: u64,
    ) -> Result<Eq<B::Dma>, Error> {
        if vector >= self.bus_mut().vectors() {
            return Err(Error::Invalid("no such MSI-X vector"));
        }
        let entries = entries.checked_next_power_of_two().ok_or(Error::Invalid("too many events"))?;
        let log_size = entries.max(64).ilog2();
        let size = Eqe::SIZE << log_size;
        let mut ring = self.dma_alloc(size)?;
        for i in 0..1 << log_size {
            // Owner 1: not yet written by the adapter.
            ring.store32(i * Eqe::SIZE + OWNER_WORD, 1);
        }
        let mut input = CreateEqIn::new();
        input.set(CreateEqIn::EVENT_BITMASK_0, events);
        let uar = self.uar();
        let eqc = input.eqc_mut();
        eqc.set(Eqc::LOG_EQ_SIZE, log_size).set(Eqc::UAR_PAGE, uar.0).set(Eqc::INTR, vector.into());
        let input = with_pages(input.bytes(), pages_of(ring.bus_address(), size));
        let number = self.create(Opcode::CreateEq, 0, input)?;
        Ok(Eq { number: Eqn(number as u8), ring, log_size, consumer: 0, uar, vector })
    }

    /// Destroys an event queue; no completion queue may use it any more.
    pub fn destroy_eq(&mut self, eq: Eq<B::Dma>) -> Result<(), Error> {
        self.destroy(Opcode::DestroyEq, eq.number.0.into(), eq)
    }
}

/// A command's fixed part followed by its page list.
pub(crate) fn with_pages(fixed: &[u8], pages: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut input = fixed.to_vec();
    input.extend(pages.flat_map(u64::to_be_bytes));
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_bit_alternates_with_each_pass() {
        assert!(is_ours(0, 0, 2) && is_ours(0, 3, 2));
        assert!(!is_ours(0, 4, 2) && is_ours(1, 4, 2) && is_ours(1, 7, 2));
        assert!(is_ours(0, 8, 2) && !is_ours(1, 8, 2));
    }

    #[test]
    fn events_decode() {
        let mut e = Eqe::new();
        e.set(Eqe::TYPE, EventType::PageRequest as u32).set(Eqe::PAGE_COUNT, -3i32 as u32);
        assert_eq!(Event::decode(&e), Event::PageRequest { function: 0, count: -3 });
        let mut e = Eqe::new();
        e.set(Eqe::TYPE, EventType::CqError as u32).set(Eqe::CQ_ERROR_CQN, 5).set(Eqe::CQ_ERROR_SYNDROME, 1);
        assert_eq!(Event::decode(&e), Event::CqError { cqn: Cqn(5), syndrome: 1 });
        let mut e = Eqe::new();
        e.set(Eqe::TYPE, 0x16).set(Eqe::MODULE, 1).set(Eqe::MODULE_STATUS, 3).set(Eqe::MODULE_ERROR, 6);
        assert_eq!(Event::decode(&e), Event::Module { module: 1, status: 3, error: 6 });
        let mut e = Eqe::new();
        e.set(Eqe::TYPE, 0x17).set(Eqe::HOT_SENSORS_HIGH, 1).set(Eqe::HOT_SENSORS_LOW, 2);
        assert_eq!(Event::decode(&e), Event::TemperatureWarning { sensors: 1 << 64 | 2 });
        let mut e = Eqe::new();
        e.set(Eqe::TYPE, 0x77);
        assert_eq!(Event::decode(&e), Event::Other { kind: 0x77, sub_type: 0 });
    }
}
