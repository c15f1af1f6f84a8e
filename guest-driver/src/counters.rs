//! Q counters: events of the queue pairs that count into a set.

use alloc::vec;
use hca_spec::be32;
use hca_spec::cmd::{ObjectIn, ObjectOut, QueryQCounterIn};
use hca_spec::command::Opcode;

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;

/// Bytes of QUERY_Q_COUNTER's output.
const OUTPUT: usize = 0x100;

/// A set of counters; queue pairs get it with [`crate::InitAttr::counter_set`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterSet(pub u8);

/// Values of a set of counters (PRM "QUERY_Q_COUNTER").
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters([u8; OUTPUT]);

impl Counters {
    /// The counter at that offset of the command's output, e.g. 0x10: write requests received.
    pub fn at(&self, offset: usize) -> u32 {
        be32(&self.0, offset)
    }
}

impl<B: Bus> Hca<B> {
    /// Allocates a set of counters.
    ///
    /// # Errors
    /// The adapter refuses: it has no set left.
    pub fn create_counters(&mut self) -> Result<CounterSet, Error> {
        let output = self.execute(Opcode::AllocQCounter, 0, vec![0; ObjectIn::SIZE], ObjectOut::SIZE)?;
        Ok(CounterSet(ObjectOut::from_prefix_or_zero(&output).get(ObjectOut::NUMBER) as u8))
    }

    /// Frees a set of counters.
    ///
    /// # Errors
    /// The adapter refuses.
    pub fn destroy_counters(&mut self, set: CounterSet) -> Result<(), Error> {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, set.0.into());
        self.execute(Opcode::DeallocQCounter, 0, input.bytes().to_vec(), 8).map(|_| ())
    }

    /// Reads a set of counters.
    ///
    /// # Errors
    /// The adapter refuses.
    pub fn counters(&mut self, set: CounterSet) -> Result<Counters, Error> {
        let mut input = QueryQCounterIn::new();
        input.set(QueryQCounterIn::COUNTER_SET_ID, set.0.into());
        let output = self.execute(Opcode::QueryQCounter, 0, input.bytes().to_vec(), OUTPUT)?;
        let mut values = [0; OUTPUT];
        values.iter_mut().zip(output).for_each(|(to, from)| *to = from);
        Ok(Counters(values))
    }
}
