//! The checker: says what an adapter keeps silent about.
//!
//! It stands beside the model and changes nothing in it. It sees the records of the trace, as they are made ([`Checker::see`]), and
//! looks now and then at contexts and doorbell records ([`Checker::look`]): what a driver has left undone can only be seen by
//! waiting, for the checker's *patience*. What it knows of an object is forgotten when the object is destroyed or reset.
//!
//! A rule that ordinary drivers break at times is no rule: each says beside it what it has to tolerate, such as doorbells that
//! come late, since a store to a register is posted.

mod commands;
mod doorbells;
mod history;
mod pages;
mod peers;
mod queues;
mod receives;

use std::collections::BTreeMap;
use std::ops::Bound;

use hca_firmware::FunctionId;
use hca_spec::ids::Qpn;
use hca_spec::qpc::QpState;

use crate::adapter::Hca;
use crate::adapter::state::function::Function;
use crate::ground::diagnosis::{Before, Finding, Saying, Subject};
use crate::ground::epoch::Rebase;
use crate::ground::event::{Event, Queue, Unwanted};
use crate::ground::node::{FunctionRef, HcaId};
use crate::ground::record::Record;
use crate::ground::time::Ps;
use doorbells::SendQueues;
use history::History;
use pages::Pages;
use peers::Peers;
use queues::Queues;
use receives::ReceiveQueues;

/// Objects of a kind that are looked at in one look: the next ones have their turn in the next.
const LOOKED_AT: usize = 1024;

/// What the checker knows of an adapter.
#[derive(Debug, Default)]
struct Shadow {
    sends: SendQueues,
    receives: ReceiveQueues,
    queues: Queues,
    pages: Pages,
    inputs: commands::Inputs,
    /// What happened just before, whatever was reset since.
    history: History,
}

/// The checker of a world.
#[derive(Debug)]
pub(crate) struct Checker {
    /// How long a driver may leave something undone.
    patience: Ps,
    /// When it looks again.
    due: Ps,
    /// By the numbers of adapters.
    shadows: Vec<Shadow>,
    peers: Peers,
    found: Vec<(FunctionRef, Finding)>,
}

impl Checker {
    /// One that says after `patience` what was left undone, for adapters of these names.
    pub(crate) fn new(now: Ps, patience: Ps, names: Vec<String>) -> Self {
        Self {
            patience,
            due: now + patience,
            shadows: names.iter().map(|_| Shadow::default()).collect(),
            peers: Peers::new(names),
            found: Vec::new(),
        }
    }

    /// How long a driver may leave something undone.
    pub(crate) fn patience(&self) -> Ps {
        self.patience
    }

    /// When [`Checker::look`] is due.
    pub(crate) fn due(&self) -> Ps {
        self.due
    }

    /// What happened at an adapter since its records were taken.
    pub(crate) fn see(&mut self, hca: &Hca) {
        let records = hca.chip.watch.as_ref().map_or(&[][..], |watch| watch.records());
        records.iter().for_each(|record| self.see_one(record, hca));
    }

    fn see_one(&mut self, record: &Record, hca: &Hca) {
        let id = function_of(&record.event);
        let Some(function) = hca.function(id) else { return };
        let at = FunctionRef { hca: record.hca, function: id };
        let Some(shadow) = self.shadows.get_mut(record.hca.0) else { return };
        let now = record.at;
        let found = match record.event {
            Event::Doorbell { qpn, index, blocks } => {
                let named = (blocks > 0).then_some(index);
                shadow.sends.rung(now, self.patience, qpn, named, function)
            }
            Event::BlueFlame { qpn, index } => {
                shadow.sends.rung(now, self.patience, qpn, Some(index), function)
            }
            Event::QpModified { qpn, to, .. } => {
                shadow.sends.modified(now, qpn, to, function);
                if matches!(to, QpState::Reset | QpState::Init) {
                    shadow.receives.forget(qpn);
                }
                None
            }
            Event::Destroyed { what: Queue::Qp, number } => {
                shadow.sends.forget(Qpn(number));
                shadow.receives.forget(Qpn(number));
                None
            }
            Event::Destroyed { what, number } => {
                shadow.queues.forget(what, number);
                None
            }
            Event::Armed { cqn, consumer, sequence, .. } => {
                shadow.queues.armed(cqn, (consumer, sequence), function)
            }
            Event::EqConsumed { eqn, armed, .. } => {
                shadow.queues.eq_consumed(eqn, armed);
                None
            }
            Event::Cqe { cqn, .. } => {
                shadow.queues.completed(now, cqn);
                None
            }
            Event::Eqe { eqn, kind, number } => {
                shadow.queues.event(now, eqn, kind, number);
                None
            }
            Event::Unwanted { qpn, slid, interface, psn, why, own } => {
                self.peers.unwanted(now, (at, function), (slid, interface, qpn), (psn, why, own));
                match why {
                    Unwanted::NoReceive => shadow.receives.starves(now, self.patience, qpn, function),
                    _ => None,
                }
            }
            Event::Command { slot, opcode } => {
                let tell = &mut |finding| self.found.push((at, finding));
                commands::executed(slot, opcode, &mut shadow.inputs, function, tell);
                shadow.history.command(now, id, (slot, opcode), function);
                None
            }
            Event::CommandDone { slot, delivery } => {
                shadow.history.done(id, slot, delivery, function);
                let tell = &mut |finding| self.found.push((at, finding));
                commands::done(slot, &mut shadow.inputs, function, tell);
                if commands::Entry::read(function, slot).is_some_and(|entry| entry.manages_pages()) {
                    shadow.pages.managed(function, tell);
                }
                None
            }
            Event::Done { qpn, status, .. } => self.peers.done(now, qpn, status, (function, &hca.chip)),
            _ => None,
        };
        if !matches!(record.event, Event::Command { .. } | Event::CommandDone { .. }) {
            shadow.history.event(now, record.event);
        }
        if let Some(finding) = found {
            self.found.push((at, finding));
        }
    }

    /// What happened before something was diagnosed of a function, the oldest first.
    pub(crate) fn before(&self, at: Ps, function: FunctionRef, saying: &Saying) -> Vec<Before> {
        let shadow = self.shadows.get(function.hca.0);
        shadow.map_or_else(Vec::new, |shadow| shadow.history.before(at, function.function, saying))
    }

    /// The host of a function took a window of its memory away.
    pub(crate) fn unmapped(&mut self, now: Ps, at: FunctionRef, iova: u64, size: u64) {
        if let Some(shadow) = self.shadows.get_mut(at.hca.0) {
            shadow.history.unmapped(now, at.function, iova, size);
        }
    }

    /// Time has passed: looks at what drivers have left undone. `functions` are those of an adapter.
    pub(crate) fn look<'a>(&mut self, now: Ps, hcas: impl Iterator<Item = (HcaId, &'a [Function])>) {
        self.due = now + Ps(self.patience.0 / 4 + 1);
        for (hca, functions) in hcas {
            let (Some(shadow), Some(function)) = (self.shadows.get_mut(hca.0), functions.first()) else {
                continue;
            };
            let at = FunctionRef::from(hca);
            let found = &mut self.found;
            let mut tell = |finding| found.push((at, finding));
            shadow.sends.look(now, self.patience, function, &mut tell);
            shadow.receives.look(function, &mut tell);
            shadow.queues.look(now, self.patience, function, &mut tell);
            shadow.pages.look(function, &mut tell);
        }
    }

    /// What it has found since the last call.
    pub(crate) fn take(&mut self) -> Vec<(FunctionRef, Finding)> {
        std::mem::take(&mut self.found)
    }

    /// Whether it has found something.
    pub(crate) fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// A function is about to be reset, because of that.
    pub(crate) fn leaving(&mut self, at: FunctionRef, function: &Function, why: &str) {
        let left = function.state.fw.resources().now;
        let subject = Subject::new("function", at.function.0.into());
        commands::objects_left(subject, &left, why, &mut |finding| self.found.push((at, finding)));
    }

    /// A host is gone, or its function was reset: nothing of before counts.
    pub(crate) fn forget(&mut self, now: Ps, at: FunctionRef) {
        let Some(Shadow { sends, receives, queues, pages, inputs, history }) = self.shadows.get_mut(at.hca.0)
        else {
            return;
        };
        (*sends, *receives) = (SendQueues::default(), ReceiveQueues::default());
        (*queues, *pages, *inputs) = (Queues::default(), Pages::default(), commands::Inputs::default());
        history.reset(now, at.function);
    }
}

/// The function that an event is of: that of its queue pair; that of other objects is the first.
fn function_of(event: &Event) -> FunctionId {
    match event {
        Event::Doorbell { qpn, .. }
        | Event::BlueFlame { qpn, .. }
        | Event::QpModified { qpn, .. }
        | Event::Unwanted { qpn, .. }
        | Event::Done { qpn, .. } => FunctionId::of_qpn(*qpn),
        _ => FunctionId::FIRST,
    }
}

/// Where a look at objects goes on: each is of at most so many, and behind the last it begins anew.
#[derive(Debug)]
struct Turn<K>(Option<K>);

impl<K> Default for Turn<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: Ord + Copy> Turn<K> {
    /// The objects that have their turn.
    fn next<'a, V>(
        &mut self,
        objects: &'a mut BTreeMap<K, V>,
        most: usize,
    ) -> impl Iterator<Item = (&'a K, &'a mut V)> {
        let from = self.0.map_or(Bound::Unbounded, Bound::Excluded);
        self.0 = objects.range((from, Bound::Unbounded)).nth(most.saturating_sub(1)).map(|(key, _)| *key);
        objects.range_mut((from, self.0.map_or(Bound::Unbounded, Bound::Included)))
    }
}

/// A 32-bit word of a doorbell record; `None` where it can't be read at once.
fn record_word(function: &Function, record: u64, word: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    read_at_once(function, record.checked_add(4 * word)?, &mut bytes)?;
    Some(u32::from_be_bytes(bytes))
}

/// Both words of a queue pair's doorbell record, receive and send; `None` where they can't be read at once.
fn record_words(function: &Function, record: u64) -> Option<(u32, u32)> {
    let mut bytes = [0; 8];
    read_at_once(function, record, &mut bytes)?;
    let words = u64::from_be_bytes(bytes);
    Some(((words >> 32) as u32, words as u32))
}

/// Reads what is in the host's memory at that address; `None` if that would take time.
fn read_at_once(function: &Function, at: u64, bytes: &mut [u8]) -> Option<()> {
    function.state.seen_memory().read(at, bytes).ok()
}

/// What to say of a counter that looks as if its bytes stood in the other order.
fn swapped(word: u32) -> &'static str {
    match word != 0 && word & 0xffff == 0 && word.swap_bytes() <= 0xffff {
        true => " (little-endian?)",
        false => "",
    }
}

impl Rebase for Checker {
    fn rebase(&mut self, by: Ps) {
        let Self { patience: _, due, shadows, peers, found: _ } = self;
        due.rebase(by);
        for Shadow { sends, receives, queues, pages: _, inputs: _, history } in shadows {
            sends.rebase(by);
            receives.rebase(by);
            queues.rebase(by);
            history.rebase(by);
        }
        peers.rebase(by);
    }
}
