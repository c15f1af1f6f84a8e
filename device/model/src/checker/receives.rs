//! Receive queues: the receive counter in the doorbell record.

use std::collections::BTreeMap;

use hca_firmware::icm::SrqKind;
use hca_firmware::object::Kind;
use hca_firmware::rq::{RqSource, RqState};
use hca_spec::ids::{Cqn, Qpn, Rqn, Srqn};
use hca_spec::qpc::rnr_timer_ns;
use hca_spec::queue::{SRQ_ERROR, Srqc, Wq};
use hca_spec::rules::{self, Rule};

use super::queues::COUNTER;
use super::{LOOKED_AT, record_word, record_words, swapped};
use crate::adapter::state::function::Function;
use crate::engines::qp::recv::ReceiveQueue;
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

/// Longest time between two attempts of a peer that waits: twice the longest RNR timer, code 0.
const LONGEST_WAIT: Ps = Ps(2 * 1000 * rnr_timer_ns(0));

/// A program may let its peers wait on purpose until it has dealt with what it has: it was looked at so many times, a patience apart each,
/// and had nothing left to read.
const LENIENCE: u32 = 4;

const FIELD: &str = "receive counter";

/// A receive queue of which peers wait for a WQE.
#[derive(Debug, Clone, Copy)]
struct Starved {
    /// The first and the last of the packets that found none, since the counter moved.
    since: Ps,
    last: Ps,
    /// How many did.
    packets: u64,
    counter: u32,
    /// When completions of the queue were looked for last, and how often in a row all were read.
    looked: Ps,
    idle: u32,
    told: bool,
}

/// Where queue pairs take receive WQEs from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Own(Qpn),
    Shared(Srqn),
}

/// The receive queues of an adapter.
#[derive(Debug, Default)]
pub(super) struct ReceiveQueues {
    starved: BTreeMap<Source, Starved>,
    /// Queues whose counter was wrong when it was looked at last, and whether that was said.
    suspects: BTreeMap<Subject, bool>,
    /// Behind which number a look goes on: at shared queues, at those of frames.
    turn: [u32; 2],
}

impl ReceiveQueues {
    /// A packet of the peer found no receive WQE. A driver may be late, and a program may let its peers wait; that the counter does not
    /// move for a multiple of the patience while peers try again and again, and all completions are read, is what is said, once until it moves.
    pub(super) fn starves(
        &mut self,
        now: Ps,
        patience: Ps,
        qpn: Qpn,
        function: &Function,
    ) -> Option<Finding> {
        let qp = function.qps.get(qpn.0)?;
        let (source, record) = match qp.rq {
            ReceiveQueue::Own { .. } => (Source::Own(qpn), qp.params.doorbell_record),
            ReceiveQueue::Shared(srqn) => {
                (Source::Shared(srqn), function.state.srqs.get(srqn.0)?.doorbell_record())
            }
            // Those of XRC are named by each request.
            ReceiveQueue::None => return None,
        };
        let (counter, other) = record_words(function, record)?;
        let new = Starved { since: now, last: now, packets: 0, counter, looked: now, idle: 0, told: false };
        let queue = self.starved.entry(source).or_insert(new);
        if queue.counter != counter || now.since(queue.last) > patience.max(LONGEST_WAIT) {
            *queue = new;
        }
        queue.last = now;
        queue.packets += 1;
        if queue.told || now.since(queue.looked) < patience {
            return None;
        }
        queue.looked = now;
        // Who has not read what it received is late.
        queue.idle = if has_unread(source, function) { 0 } else { queue.idle + 1 };
        if queue.idle < LENIENCE {
            return None;
        }
        queue.told = true;
        let (subject, other) = match source {
            // The other word of a queue pair's own is its send counter.
            Source::Own(qpn) => (Subject::qp(qpn), String::new()),
            Source::Shared(srqn) => {
                let kind = function.state.fw.icm.srqs.get(srqn.0).map_or(Kind::Srq, |srq| kind_of(srq.kind));
                let other = match other {
                    0 => String::new(),
                    other => format!("; the word behind it, which nobody reads, is {other:#x}"),
                };
                (Subject::new(kind.name(), srqn.0), other)
            }
        };
        let found = format!(
            "{counter:#x}{} since {}, while {} packets of peers found no receive WQE{other}",
            swapped(counter),
            queue.since,
            queue.packets
        );
        let expected = "more: receive WQEs posted, then counted";
        Some(Finding::new(subject, FIELD, found, expected, &rules::RECEIVE_COUNTER))
    }

    /// The queue pair is gone, or begins anew.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.starved.remove(&Source::Own(qpn));
    }

    /// Counters of queues that are not a queue pair's own. What is wrong in one look may be a queue that its driver is just about to begin
    /// anew: it is said when it is wrong in the next, too.
    pub(super) fn look(&mut self, function: &Function, tell: &mut dyn FnMut(Finding)) {
        let icm = &function.state.fw.icm;
        let Self { starved, suspects, turn: [shared, frames] } = self;
        starved.retain(|source, _| match source {
            Source::Own(qpn) => icm.qps.get(qpn.0).is_some(),
            Source::Shared(srqn) => icm.srqs.get(srqn.0).is_some(),
        });
        suspects.retain(|queue, _| match queue.kind() == Kind::Rq.name() {
            true => icm.rqs.get(queue.number()).is_some(),
            false => icm.srqs.get(queue.number()).is_some_and(|srq| kind_of(srq.kind).name() == queue.kind()),
        });
        for (number, srq) in turn(icm.srqs.iter(), shared) {
            let Some(queue) = function.state.srqs.get(number) else { continue };
            let word = match srq.ctx.get(Srqc::STATE) == SRQ_ERROR {
                true => None,
                false => record_word(function, queue.doorbell_record(), 0),
            };
            let Some(word) = word else { continue };
            let wrong = wrong(word, queue.counts(Some(word as u16)), srq.log_size);
            judge(suspects, Subject::new(kind_of(srq.kind).name(), number), word, wrong, tell);
        }
        for (number, rq) in turn(icm.rqs.iter(), frames) {
            let own = rq.state == RqState::Ready && rq.source == RqSource::Own;
            let Some(taken) = function.state.frames.taken(Rqn(number)).filter(|_| own) else { continue };
            let Some(word) = record_word(function, rq.ctx.wq().get(Wq::DBR_ADDR), 0) else { continue };
            let wrong = wrong(word, (word as u16).wrapping_sub(taken), rq.log_size);
            judge(suspects, Subject::new(Kind::Rq.name(), number), word, wrong, tell);
        }
    }
}

/// The objects, in order of number, that have their turn: those behind the number at which the last look ended, which moves on, or begins
/// anew behind the last.
fn turn<'a, T>(objects: impl Iterator<Item = (u32, &'a T)>, from: &mut u32) -> Vec<(u32, &'a T)> {
    let mut rest = objects.filter(|(number, _)| *number > *from);
    let now: Vec<_> = rest.by_ref().take(LOOKED_AT).collect();
    let goes_on = rest.next().is_some();
    drop(rest);
    *from = now.last().filter(|_| goes_on).map_or(0, |(number, _)| *number);
    now
}

/// Whether a program has completions before it of queue pairs that take receive WQEs from there. Where nobody sees how far it has read there
/// may be.
fn has_unread(source: Source, function: &Function) -> bool {
    let unread = |cqn: Cqn| {
        let Some(cq) = function.state.cqs.get(cqn.0) else { return false };
        let (producer, _, _) = cq.indices();
        record_word(function, cq.doorbell_record(), 0).is_none_or(|word| (producer ^ word) & COUNTER != 0)
    };
    match source {
        Source::Own(qpn) => function.qps.get(qpn.0).is_some_and(|qp| unread(qp.params.cqn_rcv)),
        Source::Shared(srqn) => {
            function.qps.iter().any(|(_, qp)| qp.rq.shared() == Some(srqn) && unread(qp.params.cqn_rcv))
        }
    }
}

fn kind_of(kind: SrqKind) -> Kind {
    match kind {
        SrqKind::Basic => Kind::Srq,
        SrqKind::Xrc => Kind::XrcSrq,
        SrqKind::Rmp => Kind::Rmp,
        SrqKind::Xrq => Kind::Xrq,
    }
}

/// Which rule a counter breaks by which so many WQEs are posted and not taken, and what would be right. In doubt none: the hardware may
/// not have seen yet that a WQE is used up which is posted again already, so that there may be more than the queue holds, but not
/// twice as many. Drivers may count on beyond 16 bits.
fn wrong(word: u32, posted: u16, log_size: u32) -> Option<(&'static Rule, String)> {
    let room = 1u32 << log_size.min(16);
    if posted == 0 && !swapped(word).is_empty() && word.swap_bytes() <= room {
        return Some((&rules::BYTE_ORDER, format!("{:#x}", word.swap_bytes())));
    }
    let taken = (word as u16).wrapping_sub(posted);
    (u32::from(posted) > 2 * room).then(|| {
        let expected = format!("{taken:#x}, the WQEs that were taken, and at most {room:#x} more");
        (&rules::RECEIVE_COUNTER_RANGE, expected)
    })
}

fn judge(
    suspects: &mut BTreeMap<Subject, bool>,
    queue: Subject,
    word: u32,
    wrong: Option<(&'static Rule, String)>,
    tell: &mut dyn FnMut(Finding),
) {
    let Some((rule, expected)) = wrong else {
        suspects.remove(&queue);
        return;
    };
    let Some(told) = suspects.get_mut(&queue) else {
        suspects.insert(queue, false);
        return;
    };
    if !std::mem::replace(told, true) {
        let found = format!("{word:#x}{}", swapped(word));
        tell(Finding::new(queue, FIELD, found, expected, rule));
    }
}

impl Rebase for Starved {
    fn rebase(&mut self, by: Ps) {
        let Self { since, last, looked, packets: _, counter: _, idle: _, told: _ } = self;
        since.rebase(by);
        last.rebase(by);
        looked.rebase(by);
    }
}

impl Rebase for ReceiveQueues {
    fn rebase(&mut self, by: Ps) {
        let Self { starved, suspects: _, turn: _ } = self;
        starved.values_mut().for_each(|queue| queue.rebase(by));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(word: u32, taken: u16, log_size: u32) -> Option<&'static str> {
        wrong(word, (word as u16).wrapping_sub(taken), log_size).map(|(rule, _)| rule.name)
    }

    #[test]
    fn only_what_is_surely_wrong_is_wrong() {
        // Empty, full, one that is posted again before the hardware has seen that it is used up.
        for (word, taken) in
            [(0, 0), (64, 0), (65, 0), (0x40, 0xfff0), (0x1_0000, 0xffff), (0x1_0000, 0xffc0)]
        {
            assert_eq!(rule(word, taken, 6), None, "{word:#x} {taken:#x}");
        }
        // All sizes, at any time of a queue that counts in 32 bits.
        for log_size in 0..=15 {
            for taken in (0..0x3_0000u32).step_by(61) {
                for posted in [1, 1 << log_size] {
                    assert_eq!(rule(taken + posted, taken as u16, log_size), None, "{taken:#x} {log_size}");
                }
            }
        }
        assert_eq!(rule(3u32.swap_bytes(), 0, 6), Some("byte-order"));
        assert_eq!(rule(65u32.swap_bytes(), 0, 6), None, "no number that it could have counted");
        assert_eq!(rule(129, 0, 6), Some("receive-counter-range"));
        assert_eq!(rule(0xffff, 0, 6), Some("receive-counter-range"), "backwards");
    }
}
