//! Event queues: writing entries, arming, interrupts.
//!
//! Source: PRM "Event Queues", "EQ arming".

use std::fmt;

use hca_firmware::icm::{Buffer, Eq};
use hca_spec::eqe::{Eqe, OWNER_BYTE};
use hca_spec::queue::{Eqc, ST_ARMED, ST_FIRED, STATUS_OVERRUN};

use crate::ground::dma::{DmaError, GuestMemory};

/// Counters of event queues are 24 bits wide.
const COUNTER_MASK: u32 = 0xff_ffff;

/// The moving parts of an event queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    buffer: Buffer,
    log_size: u32,
    vector: u16,
    producer: u32,
    consumer: u32,
    armed: bool,
    overrun: bool,
}

/// Why an event could not be written.
#[derive(Debug)]
pub(crate) enum Lost {
    Overrun,
    Dma(DmaError),
    Address,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overrun => f.write_str("the queue is full (driver does not update its consumer index)"),
            Self::Dma(e) => write!(f, "{e}"),
            Self::Address => f.write_str("the queue's page list is too short"),
        }
    }
}

impl EventQueue {
    pub(crate) fn new(eq: &Eq) -> Self {
        Self {
            buffer: eq.buffer.clone(),
            log_size: eq.ctx.get(Eqc::LOG_EQ_SIZE),
            vector: eq.ctx.get(Eqc::INTR) as u16,
            producer: 0,
            consumer: 0,
            armed: false,
            overrun: false,
        }
    }

    /// Writes `eqe`, ownership last. Returns the vector to raise if the queue was armed.
    pub(crate) fn push(&mut self, memory: &dyn GuestMemory, mut eqe: Eqe) -> Result<Option<u16>, Lost> {
        let used = self.producer.wrapping_sub(self.consumer) & COUNTER_MASK;
        if self.overrun || used >> self.log_size != 0 {
            self.overrun = true;
            return Err(Lost::Overrun);
        }
        let index = self.producer & ((1 << self.log_size) - 1);
        let (at, _) = self.buffer.at(u64::from(index) * 64).ok_or(Lost::Address)?;
        eqe.set(Eqe::OWNER, self.producer >> self.log_size & 1);
        memory.write(at, &eqe.bytes()[..OWNER_BYTE]).map_err(Lost::Dma)?;
        memory.write_release(at + OWNER_BYTE as u64, eqe.bytes()[OWNER_BYTE]).map_err(Lost::Dma)?;
        self.producer = (self.producer + 1) & COUNTER_MASK;
        Ok(std::mem::take(&mut self.armed).then_some(self.vector))
    }

    /// The driver's consumer index moved; with `arm`, the next event (or one already there) interrupts.
    pub(crate) fn doorbell(&mut self, consumer: u32, arm: bool) -> Option<u16> {
        self.consumer = consumer & COUNTER_MASK;
        if !arm {
            return None;
        }
        self.armed = self.producer == self.consumer;
        (!self.armed).then_some(self.vector)
    }

    /// Writes the moving parts into the context, for queries.
    pub(crate) fn write_back(&self, ctx: &mut Eqc) {
        ctx.set(Eqc::PRODUCER_COUNTER, self.producer).set(Eqc::CONSUMER_COUNTER, self.consumer);
        ctx.set(Eqc::ST, if self.armed { ST_ARMED } else { ST_FIRED });
        if self.overrun {
            ctx.set(Eqc::STATUS, STATUS_OVERRUN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Ram(Mutex<Vec<u8>>);

    impl GuestMemory for Ram {
        fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
            buf.copy_from_slice(&self.0.lock().unwrap()[iova as usize..][..buf.len()]);
            Ok(())
        }
        fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
            self.0.lock().unwrap()[iova as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }
    }

    fn queue() -> (EventQueue, Ram) {
        let mut eq = Eq { buffer: Buffer::new(Box::new([0]), 12, 0, 256).unwrap(), ..Eq::default() };
        eq.ctx.set(Eqc::LOG_EQ_SIZE, 2).set(Eqc::INTR, 5);
        (EventQueue::new(&eq), Ram(Mutex::new(vec![0xff; 4096])))
    }

    #[test]
    fn owner_alternates_and_full_is_lost() {
        let (mut q, ram) = queue();
        for _ in 0..4 {
            q.push(&ram, Eqe::new()).unwrap();
        }
        assert!(matches!(q.push(&ram, Eqe::new()), Err(Lost::Overrun)));
        let owner = |i: usize| ram.0.lock().unwrap()[i * 64 + OWNER_BYTE];
        assert_eq!((owner(0), owner(3)), (0, 0));
        let (mut q, ram) = queue();
        for i in 0..6 {
            q.doorbell(i, false);
            q.push(&ram, Eqe::new()).unwrap();
        }
        let owner = |i: usize| ram.0.lock().unwrap()[i * 64 + OWNER_BYTE];
        assert_eq!((owner(0), owner(1), owner(2)), (1, 1, 0));
    }

    #[test]
    fn armed_once() {
        let (mut q, ram) = queue();
        assert_eq!(q.doorbell(0, true), None);
        assert_eq!(q.push(&ram, Eqe::new()).unwrap(), Some(5));
        assert_eq!(q.push(&ram, Eqe::new()).unwrap(), None);
        assert_eq!(q.doorbell(1, true), Some(5), "an event beyond the index is already there");
        assert_eq!(q.doorbell(2, true), None);
    }
}
