//! Send queues: the send counter in the doorbell record, and the doorbell.

use std::collections::BTreeMap;

use hca_spec::ids::Qpn;
use hca_spec::qpc::{QpState, Qpc, send_dbr_mode};
use hca_spec::rules::{self, Rule};

use super::{LOOKED_AT, Turn, record_word, record_words, swapped};
use crate::adapter::state::function::Function;
use crate::engines::qp::QueuePair;
use crate::engines::qp::recv::ReceiveQueue;
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

#[derive(Debug)]
struct SendQueue {
    /// The record's words at the last doorbell.
    send: u16,
    receive: u32,
    /// When that was.
    rung: Ps,
    /// Place of the WQE that it named.
    named: Option<u16>,
    /// By how many basic blocks the record was ahead of that place, however many numbers that is.
    ahead: i64,
    /// The send counter that was seen without a doorbell, and since when.
    silent: Option<(u16, Ps)>,
    /// The receive counter was said to be out of its range.
    receive_told: bool,
}

impl SendQueue {
    /// Nothing was posted yet.
    fn new(now: Ps) -> Self {
        Self { send: 0, receive: 0, rung: now, named: None, ahead: 0, silent: None, receive_told: false }
    }
}

/// The send queues of an adapter.
#[derive(Debug, Default)]
pub(super) struct SendQueues {
    queues: BTreeMap<Qpn, SendQueue>,
    turn: Turn<Qpn>,
}

impl SendQueues {
    /// A send doorbell was rung, with the begin of a WQE that says this place in the queue.
    ///
    /// A store to a register is posted, and a host may be slow to bring it: what was posted since may be counted already when it comes. So a counter
    /// that does not move is right if it has counted the WQE of a doorbell that has not come before.
    pub(super) fn rung(
        &mut self,
        now: Ps,
        patience: Ps,
        qpn: Qpn,
        named: Option<u16>,
        function: &Function,
    ) -> Option<Finding> {
        let context = &function.state.fw.icm.qps.get(qpn.0)?.ctx;
        // The engines know no queue pair in RESET.
        let qp = function.qps.get(qpn.0);
        let state = qp.map_or(QpState::Reset, |qp| qp.state);
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Some(Finding::new(
                Subject::qp(qpn),
                "state",
                format!("{state:?} when a send doorbell was rung"),
                "Rts: before that nothing is sent",
                &rules::SEND_STATE,
            ));
        }
        if context.get(Qpc::SEND_DBR_MODE) != send_dbr_mode::RECORD {
            return None;
        }
        let record = context.get(Qpc::DBR_ADDR);
        let (receive, word) = record_words(function, record)?;
        let queue = self.queues.entry(qpn).or_insert(SendQueue::new(now));
        queue.silent = None;
        let moved = (word as u16).wrapping_sub(queue.send);
        let size = 1u32 << context.get(Qpc::LOG_SQ_SIZE).min(15);
        let before = queue.send;
        let receive_moved = receive != std::mem::replace(&mut queue.receive, receive);
        let last_rung = std::mem::replace(&mut queue.rung, now);
        let last_named = std::mem::replace(&mut queue.named, named);
        queue.send = word as u16;
        queue.ahead = match (named, last_named) {
            // A record that went back tells nothing of how far it had come.
            (Some(index), Some(last)) if moved <= 1 << 15 => {
                queue.ahead + i64::from(moved) - i64::from(index.wrapping_sub(last))
            }
            (Some(index), _) => (word as u16).wrapping_sub(index).into(),
            (None, _) => 0,
        };
        let ahead = queue.ahead;
        let finding = |rule: &'static Rule, found: String, expected: String| {
            Some(Finding::new(Subject::qp(qpn), "send counter", found, expected, rule))
        };
        if moved == 0 {
            let is_right = match named {
                // Of those that are not counted there is room for a queue's length at most: any other is late. So is one that follows late ones,
                // though numbers have come round since.
                Some(index) => {
                    let is_counted = u32::from(index.wrapping_sub(word as u16)) >= size || ahead > 0;
                    is_counted && last_named != Some(index)
                }
                // It rings for what the record counts, whatever that is.
                None => now.since(last_rung) < patience,
            };
            if is_right {
                return None;
            }
            if function.state.fw.blueflame() {
                // A copy that the processor did not send in one piece is several doorbells.
                return None;
            }
            if !swapped(word).is_empty() {
                let found = format!("{word:#x}{}", swapped(word));
                return finding(&rules::BYTE_ORDER, found, format!("{:#x}", word.swap_bytes()));
            }
            let receive = if receive_moved { "; the receive counter, word 0, moved" } else { "" };
            let other = self.silent_other(qpn, function);
            let other =
                other.map_or(String::new(), |qpn| format!("; that of QP {qpn} moved, which nobody rang"));
            return finding(
                &rules::SEND_COUNTER,
                format!("{:#x} as at the last doorbell{receive}{other}", word as u16),
                "more: raised by the basic blocks that were posted".into(),
            );
        }
        // WQEs that the adapter has taken have given their room away.
        let taken = qp.map_or(before, |qp| qp.sq.head);
        if moved > 1 << 15 || u32::from((word as u16).wrapping_sub(taken)) > size {
            return finding(
                &rules::SEND_COUNTER_RANGE,
                format!("{word:#x}{}", swapped(word)),
                format!("{before:#x} or more, and at most {size:#x} more than {taken:#x}"),
            );
        }
        None
    }

    /// Another queue pair whose send counter moved without a doorbell, if one of the first few did.
    fn silent_other(&self, rung: Qpn, function: &Function) -> Option<Qpn> {
        self.queues.iter().take(LOOKED_AT).find_map(|(qpn, queue)| {
            let record = function.state.fw.icm.qps.get(qpn.0)?.ctx.get(Qpc::DBR_ADDR);
            let moved = record_word(function, record, 1)? as u16 != queue.send;
            (*qpn != rung && moved).then_some(*qpn)
        })
    }

    /// A command brought a queue pair to a state.
    pub(super) fn modified(&mut self, now: Ps, qpn: Qpn, to: QpState, function: &Function) {
        match to {
            QpState::Reset | QpState::Init => self.forget(qpn),
            QpState::Rts => {
                let Some(qp) = function.state.fw.icm.qps.get(qpn.0) else { return };
                let counted = qp.ctx.get(Qpc::SEND_DBR_MODE) == send_dbr_mode::RECORD;
                if qp.ctx.get(Qpc::NO_SQ) == 1 || !counted {
                    return;
                }
                self.queues.entry(qpn).or_insert(SendQueue::new(now));
            }
            _ => {}
        }
    }

    /// The queue pair is gone.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.queues.remove(&qpn);
    }

    /// Counters that were raised, and nobody rang.
    pub(super) fn look(&mut self, now: Ps, patience: Ps, function: &Function, tell: &mut dyn FnMut(Finding)) {
        for (qpn, queue) in self.turn.next(&mut self.queues, LOOKED_AT) {
            let Some(qp) = function.qps.get(qpn.0).filter(|qp| qp.state == QpState::Rts) else { continue };
            if !queue.receive_told
                && let Some(finding) = receive_counter(*qpn, qp, function)
            {
                queue.receive_told = true;
                tell(finding);
            }
            let Some(word) = record_word(function, qp.params.doorbell_record, 1) else { continue };
            let counter = word as u16;
            if counter == queue.send {
                queue.silent = None;
                continue;
            }
            match queue.silent {
                Some((seen, since)) if seen == counter => {
                    if since != Ps::ZERO && now.since(since) >= patience {
                        // Told once.
                        queue.silent = Some((counter, Ps::ZERO));
                        tell(Finding::new(
                            Subject::qp(*qpn),
                            "send counter",
                            format!("{counter:#x}{}, and no doorbell since {:#x}", swapped(word), queue.send),
                            "a doorbell after it was raised",
                            &rules::SEND_DOORBELL,
                        ));
                    }
                }
                _ => queue.silent = Some((counter, now)),
            }
        }
    }
}

/// The receive counter of a queue pair with a receive queue of its own: no more WQEs are posted than there is room for.
fn receive_counter(qpn: Qpn, qp: &QueuePair, function: &Function) -> Option<Finding> {
    let ReceiveQueue::Own { log_size, head, .. } = qp.rq else { return None };
    let word = record_word(function, qp.params.doorbell_record, 0)?;
    let (posted, room) = ((word as u16).wrapping_sub(head), 1u32 << log_size.min(15));
    // Who counts in more than 16 bits has numbers that look swapped.
    let swapped = if posted == 0 || u32::from(posted) > room { swapped(word) } else { "" };
    if swapped.is_empty() && u32::from(posted) <= room {
        return None;
    }
    let (rule, expected) = match swapped.is_empty() {
        true => (
            &rules::RECEIVE_COUNTER_RANGE,
            format!("{head:#x}, the WQEs that were taken, and at most {room:#x} more"),
        ),
        false => (&rules::BYTE_ORDER, format!("{:#x}", word.swap_bytes())),
    };
    let found = format!("{word:#x}{swapped}");
    Some(Finding::new(Subject::qp(qpn), "receive counter", found, expected, rule))
}

impl Rebase for SendQueue {
    fn rebase(&mut self, by: Ps) {
        let Self { send: _, receive: _, rung, named: _, ahead: _, silent, receive_told: _ } = self;
        rung.rebase(by);
        if let Some((_, since)) = silent {
            since.rebase(by);
        }
    }
}

impl Rebase for SendQueues {
    fn rebase(&mut self, by: Ps) {
        let Self { queues, turn: _ } = self;
        queues.values_mut().for_each(|queue| queue.rebase(by));
    }
}
