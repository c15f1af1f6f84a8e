//! Event queue: where entries go, arming, overrun, interrupts.
//!
//! The engine has no memory: it returns the entry to write ([`EqeWrite`]) and the vector to raise.
//!
//! Source: PRM "Event Queues", "EQ arming".

use std::fmt;

use hca_firmware::icm::{Buffer, Eq};
use hca_spec::eqe::Eqe;
use hca_spec::queue::{Eqc, ST_ARMED, ST_FIRED, STATUS_OVERRUN};

/// Counters of event queues are 24 bits wide.
const COUNTER_MASK: u32 = 0xff_ffff;

/// State of an event queue.
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

/// An entry to write to host memory. Its last byte, at [`hca_spec::eqe::OWNER_BYTE`], hands it over: it is written last, with
/// release ordering.
#[must_use]
#[derive(Debug)]
pub(crate) struct EqeWrite {
    /// DMA address.
    pub(crate) at: u64,
    /// The entry, with its owner bit.
    pub(crate) eqe: Eqe,
}

/// Why an event has no place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The queue is full, or was when an earlier event came.
    Overrun,
    /// The entry lies beyond the queue's pages.
    Address,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overrun => f.write_str("the queue is full (driver does not update its consumer index)"),
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

    /// Places `eqe` in the queue. Once it is written, [`EventQueue::written`] is due; if it can't be written, nothing.
    pub(crate) fn push(&mut self, mut eqe: Eqe) -> Result<EqeWrite, Lost> {
        let used = self.producer.wrapping_sub(self.consumer) & COUNTER_MASK;
        if self.overrun || used >> self.log_size != 0 {
            self.overrun = true;
            return Err(Lost::Overrun);
        }
        let index = self.producer & ((1 << self.log_size) - 1);
        let (at, _) = self.buffer.at(u64::from(index) * Eqe::SIZE as u64).ok_or(Lost::Address)?;
        eqe.set(Eqe::OWNER, self.producer >> self.log_size & 1);
        Ok(EqeWrite { at, eqe })
    }

    /// The queue overflows: no event has a place in it any more.
    pub(crate) fn overflow(&mut self) {
        self.overrun = true;
    }

    /// The entry is in memory. Returns the vector to raise if the queue was armed.
    pub(crate) fn written(&mut self, _entry: EqeWrite) -> Option<u16> {
        self.producer = (self.producer + 1) & COUNTER_MASK;
        std::mem::take(&mut self.armed).then_some(self.vector)
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

    /// Producer and consumer index, and how many entries there are.
    pub(crate) fn indices(&self) -> (u32, u32, u32) {
        (self.producer, self.consumer, 1 << self.log_size)
    }

    /// Writes the state into the context, for queries.
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

    fn queue() -> EventQueue {
        let mut eq = Eq { buffer: Buffer::new(Box::new([0x1000]), 12, 0, 256).unwrap(), ..Eq::default() };
        eq.ctx.set(Eqc::LOG_EQ_SIZE, 2).set(Eqc::INTR, 5);
        EventQueue::new(&eq)
    }

    /// Address and owner bit of the next entry.
    fn push(q: &mut EventQueue) -> Result<(u64, u32), Lost> {
        let write = q.push(Eqe::new())?;
        let entry = (write.at, write.eqe.get(Eqe::OWNER));
        q.written(write);
        Ok(entry)
    }

    #[test]
    fn owner_alternates_and_full_is_lost() {
        let mut q = queue();
        assert_eq!(
            [(); 4].map(|()| push(&mut q).unwrap()),
            [(0x1000, 0), (0x1040, 0), (0x1080, 0), (0x10c0, 0)]
        );
        assert_eq!(push(&mut q), Err(Lost::Overrun));
        q.doorbell(4, false);
        assert_eq!(push(&mut q), Err(Lost::Overrun), "an event is missing from now on");
        let mut ctx = Eqc::new();
        q.write_back(&mut ctx);
        assert_eq!((ctx.get(Eqc::STATUS), ctx.get(Eqc::PRODUCER_COUNTER)), (STATUS_OVERRUN, 4));
        let mut q = queue();
        for i in 0..4 {
            q.doorbell(i, false);
            push(&mut q).unwrap();
        }
        q.doorbell(4, false);
        assert_eq!((push(&mut q), push(&mut q)), (Ok((0x1000, 1)), Ok((0x1040, 1))));
    }

    #[test]
    fn an_entry_that_was_not_written_leaves_no_gap() {
        let mut q = queue();
        q.doorbell(0, true);
        let lost = q.push(Eqe::new()).unwrap();
        assert_eq!(lost.at, 0x1000);
        drop(lost);
        let again = q.push(Eqe::new()).unwrap();
        assert_eq!((again.at, q.written(again)), (0x1000, Some(5)), "and the queue is still armed");
    }

    #[test]
    fn a_page_list_that_is_too_short_is_no_panic() {
        let mut eq = Eq { buffer: Buffer::new(Box::new([0x1000]), 12, 0, 64).unwrap(), ..Eq::default() };
        eq.ctx.set(Eqc::LOG_EQ_SIZE, 2);
        let mut q = EventQueue::new(&eq);
        assert_eq!((push(&mut q), push(&mut q)), (Ok((0x1000, 0)), Err(Lost::Address)));
    }

    #[test]
    fn armed_once() {
        let mut q = queue();
        let vector = |q: &mut EventQueue| {
            let write = q.push(Eqe::new()).unwrap();
            q.written(write)
        };
        assert_eq!(q.doorbell(0, true), None);
        assert_eq!(vector(&mut q), Some(5));
        assert_eq!(vector(&mut q), None);
        assert_eq!(q.doorbell(1, true), Some(5), "an event beyond the index is already there");
        assert_eq!(q.doorbell(2, true), None);
    }
}
