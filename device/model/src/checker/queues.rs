//! Completion and event queues: entries that nobody reads, arming.

use std::collections::BTreeMap;

use hca_spec::eqe::EventType;
use hca_spec::ids::{Cqn, Eqn};
use hca_spec::queue::{Cqc, Eqc};
use hca_spec::rules;

use super::{LOOKED_AT, Turn, record_word, swapped};
use crate::adapter::state::function::Function;
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::epoch::Rebase;
use crate::ground::event::Queue;
use crate::ground::time::Ps;

/// Counters of completion and event queues are 24 bits wide.
pub(super) const COUNTER: u32 = 0xff_ffff;
/// Armings in a row with one sequence number, each after another event: a second thread may arm with the number of before.
const SAME_SEQUENCE: u32 = 8;

/// Armings in a row with one consumer index, while that in the record moved each time: a second thread may arm with the index of before.
const OLD_INDEX: u32 = 8;

#[derive(Debug, Default)]
struct CompletionQueue {
    /// It was armed once.
    armed: bool,
    /// Since when there are entries of which none was read.
    unread: Option<Ps>,
    /// An event that was sent and that the last armings did not know: to which queue, and how often that had been read before.
    event: Option<(u32, u32)>,
    /// Sequence number of the last arming, and armings after an event with the same.
    sequence: u8,
    same: u32,
    /// Consumer index of the last arming and the record then, and armings in a row with that index while the record moved.
    index: Option<(u32, u32)>,
    old: u32,
    told: bool,
}

#[derive(Debug, Default)]
struct EventQueue {
    armed: bool,
    /// Since when there are entries, none of which the driver has said to have read.
    unread: Option<Ps>,
    /// How often the driver said to have read entries.
    reads: u32,
    told: bool,
}

/// The completion and event queues of an adapter.
#[derive(Debug, Default)]
pub(super) struct Queues {
    cqs: BTreeMap<Cqn, CompletionQueue>,
    turn: Turn<Cqn>,
    eqs: BTreeMap<u32, EventQueue>,
}

impl Queues {
    /// The queue is gone.
    pub(super) fn forget(&mut self, what: Queue, number: u32) {
        match what {
            Queue::Cq => drop(self.cqs.remove(&Cqn(number))),
            Queue::Eq => drop(self.eqs.remove(&number)),
            Queue::Qp => {}
        }
    }

    /// An entry was written to a completion queue.
    pub(super) fn completed(&mut self, now: Ps, cqn: Cqn) {
        let queue = self.cqs.entry(cqn).or_default();
        queue.unread.get_or_insert(now);
    }

    /// An event was written.
    pub(super) fn event(&mut self, now: Ps, eqn: Eqn, kind: u8, number: u32) {
        let queue = self.eqs.entry(eqn.0.into()).or_default();
        queue.unread.get_or_insert(now);
        if kind == EventType::Completion as u8 {
            self.cqs.entry(Cqn(number)).or_default().event = Some((eqn.0.into(), queue.reads));
        }
    }

    /// The driver moved the consumer index of an event queue.
    pub(super) fn eq_consumed(&mut self, eqn: Eqn, armed: bool) {
        let queue = self.eqs.entry(eqn.0.into()).or_default();
        queue.armed |= armed;
        queue.reads = queue.reads.wrapping_add(1);
        (queue.unread, queue.told) = (None, false);
    }

    /// A completion queue was armed with a consumer index and a sequence number.
    pub(super) fn armed(
        &mut self,
        cqn: Cqn,
        (consumer, sequence): (u32, u8),
        function: &Function,
    ) -> Option<Finding> {
        let context = &function.state.fw.icm.cqs.get(cqn.0)?.ctx;
        let queue = self.cqs.entry(cqn).or_default();
        queue.armed = true;
        queue.unread = None;
        // Who polls a queue on another's account may arm it before it hears of the queue's own event.
        let eqs = &self.eqs;
        let known = |(eqn, reads): &mut (u32, u32)| eqs.get(eqn).is_none_or(|eq| eq.reads != *reads);
        queue.same = match queue.event.take_if(|event| sequence != queue.sequence || known(event)) {
            _ if sequence != queue.sequence => 0,
            Some(_) => queue.same + 1,
            None => queue.same,
        };
        queue.sequence = sequence;
        let finding = |field, found: String, expected: String, rule| {
            Some(Finding::new(Subject::cq(cqn), field, found, expected, rule))
        };
        if queue.same == SAME_SEQUENCE {
            return finding(
                "sequence number of the arming",
                format!("{sequence} after each of {SAME_SEQUENCE} events"),
                "one more after each event, modulo 4".into(),
                &rules::CQ_ARM_SEQUENCE,
            );
        }
        // The record is written before the doorbell: it may be ahead, since the doorbell is posted, never behind.
        let word = record_word(function, context.get(Cqc::DBR_ADDR), 0)?;
        let before = queue.index.replace((consumer, word));
        queue.old = match before {
            Some((index, record)) if index == consumer && record != word => queue.old + 1,
            Some((index, _)) if index == consumer => queue.old,
            _ => 0,
        };
        if queue.old == OLD_INDEX {
            queue.old = 0;
            return finding(
                "consumer index of the arming",
                format!("{consumer:#x} again, {OLD_INDEX} times in a row"),
                format!("{:#x}, as in the doorbell record", word & COUNTER),
                &rules::CQ_ARM_INDEX,
            );
        }
        let behind = consumer.wrapping_sub(word) & COUNTER;
        if behind != 0 && behind < 1 << 23 && !std::mem::replace(&mut queue.told, true) {
            return finding(
                "consumer index in the doorbell record",
                format!("{:#x}{}", word & COUNTER, swapped(word)),
                format!("{consumer:#x}, with which it was armed, or more"),
                &rules::CQ_CONSUMER,
            );
        }
        None
    }

    /// Entries that nobody has read.
    pub(super) fn look(&mut self, now: Ps, patience: Ps, function: &Function, tell: &mut dyn FnMut(Finding)) {
        let icm = &function.state.fw.icm;
        for (eqn, queue) in &mut self.eqs {
            let Some(since) = queue.unread.filter(|since| !queue.told && now.since(*since) >= patience)
            else {
                continue;
            };
            let Some(context) = icm.eqs.get(*eqn).map(|eq| &eq.ctx) else { continue };
            queue.told = true;
            let vector = context.get(Eqc::INTR);
            let (found, expected, rule) = match queue.armed {
                false => (
                    format!("entries since {since}, and it was never armed"),
                    format!("armed, so that vector {vector} is raised"),
                    &rules::EQ_ARMED,
                ),
                true => (
                    format!("entries since {since}, none of them read"),
                    format!("a consumer index that follows, after the interrupt of vector {vector}"),
                    &rules::EQ_CONSUMER,
                ),
            };
            tell(Finding::new(Subject::eq(Eqn(*eqn as u8)), "consumer index", found, expected, rule));
        }
        // Those that were armed wait for an event; a program may leave the last entries of a queue that it did read.
        let silent = |queue: &CompletionQueue| !queue.armed && !queue.told && queue.unread.is_some();
        for (cqn, queue) in self.turn.next(&mut self.cqs, LOOKED_AT).filter(|(_, queue)| silent(queue)) {
            let Some(since) = queue.unread else { continue };
            let Some(context) = icm.cqs.get(cqn.0).map(|cq| &cq.ctx) else { continue };
            let Some(word) = record_word(function, context.get(Cqc::DBR_ADDR), 0) else { continue };
            if word & COUNTER != 0 {
                // It is read at times.
                queue.unread = None;
                queue.told = true;
            } else if now.since(since) >= patience {
                queue.told = true;
                tell(Finding::new(
                    Subject::cq(*cqn),
                    "consumer index in the doorbell record",
                    format!("0: none of the entries since {since} was read, and it was never armed"),
                    "an index that follows the entries that are there",
                    &rules::CQ_POLLED,
                ));
            }
        }
    }
}

impl Rebase for CompletionQueue {
    fn rebase(&mut self, by: Ps) {
        let Self { unread, armed: _, event: _, sequence: _, same: _, index: _, old: _, told: _ } = self;
        unread.rebase(by);
    }
}

impl Rebase for EventQueue {
    fn rebase(&mut self, by: Ps) {
        let Self { unread, armed: _, reads: _, told: _ } = self;
        unread.rebase(by);
    }
}

impl Rebase for Queues {
    fn rebase(&mut self, by: Ps) {
        let Self { cqs, turn: _, eqs } = self;
        cqs.values_mut().for_each(|queue| queue.rebase(by));
        eqs.values_mut().for_each(|queue| queue.rebase(by));
    }
}
