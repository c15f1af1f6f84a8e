//! The records of a step, handed out to whoever asks for them; the first divergence.
//!
//! Whoever asks for something that is not the next record, or does not ask for all of them, does something else than when it was
//! recorded: that is the divergence, and nothing happens behind it.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use hca_model::{Ps, World};

use super::file::Item;
use super::record::{Became, Bytes, DmaAnswer, Record};
use crate::sync::lock;

/// Where the adapters did something else than when it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Number of the record.
    pub number: u64,
    /// Model time in ps of the world then.
    pub time: u64,
    /// The step that it happened in, with its number.
    pub step: (u64, String),
    /// What the recording has.
    pub expected: String,
    /// What the adapters do.
    pub found: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Divergence { number, time, step: (step, words), expected, found } = self;
        writeln!(f, "first divergence: record {number}, at {}", Ps(*time))?;
        writeln!(f, "  step:     record {step}: {words}")?;
        writeln!(f, "  expected: {expected}")?;
        write!(f, "  found:    {found}")
    }
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) dma_reads: u64,
    pub(super) dma_writes: u64,
    pub(super) interrupts: u64,
    pub(super) packets: u64,
}

#[derive(Debug, Default)]
struct State {
    names: Vec<String>,
    /// The step that happens.
    step: (u64, String),
    /// What came of it and is left.
    rest: VecDeque<Item>,
    /// What the checker read in it.
    looks: VecDeque<Item>,
    /// Number of the record before those.
    number: u64,
    /// Adapters that have memory that answers later.
    later: BTreeSet<u16>,
    divergence: Option<Divergence>,
    /// Model time that is known.
    time: u64,
    counts: Counts,
    /// Nothing happens after this model time.
    until: Option<Ps>,
}

/// Hands out what is recorded. Clones play the same recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct Player {
    state: Arc<Mutex<State>>,
}

impl State {
    fn words(&self, record: &Record) -> String {
        record.words(&self.names).to_string()
    }

    fn diverge(&mut self, found: String) {
        if self.divergence.is_some() {
            return;
        }
        let (number, expected) = match self.rest.front() {
            Some(item) => (item.number, self.words(&item.record)),
            None => (self.number, "nothing more comes of this step".to_owned()),
        };
        let (time, step) = (self.time, self.step.clone());
        self.divergence = Some(Divergence { number, time, step, expected, found });
        self.rest.clear();
    }

    fn pop(&mut self) -> Option<Item> {
        let item = self.rest.pop_front()?;
        self.number = item.number;
        self.time = item.record.time().unwrap_or(self.time);
        Some(item)
    }

    fn of(&self, hca: Option<u16>, what: &str) -> String {
        match hca.and_then(|hca| self.names.get(usize::from(hca))) {
            Some(name) => format!("{name}: {what}"),
            None => what.to_owned(),
        }
    }
}

impl Player {
    /// For adapters of these names, up to that model time.
    pub(super) fn new(names: Vec<String>, until: Option<Ps>) -> Player {
        let state = State { names, until, ..State::default() };
        Player { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A step begins, of which this is to come.
    pub(super) fn begin(&self, step: &Item, rest: VecDeque<Item>) {
        let state = &mut *self.state();
        state.step = (step.number, state.words(&step.record));
        state.number = step.number;
        let (looks, rest) = rest.into_iter().partition(|item| item.record.is_look());
        (state.looks, state.rest) = (looks, rest);
    }

    /// The step has ended: whether all of what was recorded came of it.
    pub(super) fn end(&self) -> bool {
        let state = &mut *self.state();
        if !state.rest.is_empty() && !state.is_over() {
            state.diverge("nothing more comes of this step".to_owned());
        }
        state.divergence.is_none()
    }

    pub(super) fn divergence(&self) -> Option<Divergence> {
        self.state().divergence.clone()
    }

    pub(super) fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Memory of an adapter answers later, or it has a new host.
    pub(super) fn set_defers(&self, hca: u16, later: bool) {
        let later_ones = &mut self.state().later;
        match later {
            true => drop(later_ones.insert(hca)),
            false => drop(later_ones.remove(&hca)),
        }
    }

    pub(super) fn defers(&self, hca: u16) -> bool {
        self.state().later.contains(&hca)
    }

    /// The next record, if it answers what is asked. `asked` says it in words.
    pub(super) fn answer<T>(
        &self,
        hca: Option<u16>,
        asked: impl FnOnce() -> String,
        take: impl FnOnce(&mut Record) -> Option<T>,
    ) -> Option<T> {
        let state = &mut *self.state();
        if state.is_done() {
            return None;
        }
        let is_read = |item: &Item| {
            matches!(
                item.record,
                Record::DmaRead { .. } | Record::Answer { answer: DmaAnswer::Read { .. }, .. }
            )
        };
        let read = state.rest.front().is_some_and(is_read);
        match state.rest.front_mut().and_then(|item| take(&mut item.record)) {
            Some(answer) => {
                state.pop();
                state.counts.dma_reads += u64::from(read);
                Some(answer)
            }
            None => {
                let found = state.of(hca, &asked());
                state.diverge(found);
                None
            }
        }
    }

    /// Something came of the step that has to be the next record.
    pub(crate) fn came(&self, found: &Record) {
        let state = &mut *self.state();
        if state.is_done() {
            return;
        }
        if state.rest.front().is_some_and(|item| item.record == *found) {
            state.pop();
            state.counts.packets += u64::from(matches!(found, Record::Left { .. }));
            return;
        }
        let found = state.words(found);
        state.diverge(found);
    }

    /// An adapter writes to memory. Returns whether the write is done.
    pub(super) fn write(&self, hca: u16, iova: u64, data: &[u8]) -> bool {
        let state = &mut *self.state();
        if state.is_done() {
            return false;
        }
        let found = Bytes::of(data);
        let front = state.rest.front().map(|item| &item.record);
        let Some(Record::DmaWrite { hca: h, iova: i, data: expected, done }) = front else {
            let words = state.words(&Record::DmaWrite { hca, iova, data: found, done: true });
            state.diverge(words);
            return false;
        };
        if (*h, *i) == (hca, iova) && *expected == found {
            let done = *done;
            state.pop();
            state.counts.dma_writes += 1;
            return done;
        }
        let done = *done;
        let differs = match (expected, &found) {
            (Bytes::Whole(a), Bytes::Whole(b)) if (*h, *i) == (hca, iova) && a.len() == b.len() => {
                differing(a, b)
            }
            _ => String::new(),
        };
        let words = state.words(&Record::DmaWrite { hca, iova, data: found, done });
        state.diverge(format!("{words}{differs}"));
        false
    }

    /// Whether an interrupt waits for writes before it.
    pub(crate) fn is_behind(&self, hca: u16, vector: u16) -> bool {
        let state = self.state();
        let wanted = Record::Interrupt { hca, vector, became: Became::Behind };
        state.rest.front().is_some_and(|item| item.record == wanted)
    }

    /// An interrupt was raised.
    pub(crate) fn interrupt(&self, hca: u16, vector: u16, became: Became) {
        let state = &mut *self.state();
        if state.is_done() {
            return;
        }
        state.counts.interrupts += 1;
        let same = state.rest.front().is_some_and(|item| match &item.record {
            Record::Interrupt { hca: h, vector: v, became: b } => {
                // That its host could not be told was the host's doing.
                let told = [*b, became].map(|b| if b == Became::Dropped { Became::Signalled } else { b });
                (*h, *v) == (hca, vector) && told[0] == told[1]
            }
            _ => false,
        });
        if same {
            state.pop();
            return;
        }
        let found = state.words(&Record::Interrupt { hca, vector, became });
        state.diverge(found);
    }

    /// What the checker read there in this step.
    pub(super) fn look(&self, hca: u16, iova: u64, len: usize) -> Option<Vec<u8>> {
        let looks = &mut self.state().looks;
        let at = looks.iter().position(|item| match &item.record {
            Record::Look { hca: h, iova: i, len: l, .. } => (*h, *i, *l) == (hca, iova, len as u64),
            _ => false,
        })?;
        match looks.remove(at)?.record {
            Record::Look { data: Some(data), .. } if data.len() == len => Some(data.into_vec()),
            _ => None,
        }
    }

    /// Whether the checker found that it could be written there; if it did not look, yes.
    pub(super) fn look_reaches(&self, hca: u16, iova: u64, len: usize) -> bool {
        let looks = &mut self.state().looks;
        let at = looks.iter().position(|item| match &item.record {
            Record::LookReaches { hca: h, iova: i, len: l, .. } => (*h, *i, *l) == (hca, iova, len as u64),
            _ => false,
        });
        let found = at.and_then(|at| looks.remove(at));
        !matches!(found, Some(Item { record: Record::LookReaches { yes: false, .. }, .. }))
    }

    /// The model is brought to the present as it was. Returns the time of the access.
    pub(crate) fn catch_up(&self, world: &mut World) -> Ps {
        while self.run_next(world) {}
        let at = self.answer(
            None,
            || "an access happens".to_owned(),
            |record| match record {
                Record::Now { at } => Some(Ps(*at)),
                _ => None,
            },
        );
        at.unwrap_or(world.now())
    }

    /// Something came over a wire whose time is the host's. Returns its time.
    pub(crate) fn arrival(&self, world: &World) -> Ps {
        let at = self.answer(
            None,
            || "something comes over a wire".to_owned(),
            |record| match record {
                Record::Now { at } => Some(Ps(*at)),
                _ => None,
            },
        );
        at.unwrap_or(world.now())
    }

    /// The model runs as it did.
    pub(crate) fn run(&self, world: &mut World) {
        while self.run_next(world) {}
    }

    /// Runs what the next record is of, if it is of a run.
    fn run_next(&self, world: &mut World) -> bool {
        let next = {
            let state = &mut *self.state();
            match state.rest.front().map(|item| &item.record) {
                Some(Record::Advance { .. } | Record::Skip { .. }) if !state.is_over() => state.pop(),
                _ => None,
            }
        };
        match next.map(|item| item.record) {
            Some(Record::Advance { until }) => {
                let mut events = 0u32;
                world.advance_within(Ps(until), |world: &World| {
                    events = events.wrapping_add(1);
                    self.may(world, events)
                });
            }
            Some(Record::Skip { to }) => world.advance(Ps(to)),
            _ => return false,
        }
        self.state().time = world.now().0;
        true
    }

    /// So many events have happened: whether another one did.
    fn may(&self, world: &World, events: u32) -> bool {
        let state = &mut *self.state();
        state.time = world.now().0;
        if state.is_done() {
            return false;
        }
        let stopped = matches!(state.rest.front(), Some(Item { record: Record::Stopped { events: e }, .. }) if *e == events);
        if stopped {
            state.pop();
        }
        !stopped
    }

    /// Whether nothing more is to happen.
    pub(super) fn is_over(&self) -> bool {
        self.state().is_over()
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| self.time > until.0)
    }

    /// Nothing more happens: behind the end, or a divergence.
    fn is_done(&self) -> bool {
        self.divergence.is_some() || self.is_over()
    }
}

/// Where two of the same length differ.
fn differing(expected: &[u8], found: &[u8]) -> String {
    let all: Vec<(usize, u8, u8)> =
        (0..).zip(expected).zip(found).filter_map(|((at, a), b)| (a != b).then_some((at, *a, *b))).collect();
    match all.as_slice() {
        [] => String::new(),
        [(at, a, b), rest @ ..] => {
            let more =
                if rest.is_empty() { String::new() } else { format!(", and {} more bytes", rest.len()) };
            format!("\n            byte {at:#x} is {b:#04x} where {a:#04x} was{more}")
        }
    }
}
