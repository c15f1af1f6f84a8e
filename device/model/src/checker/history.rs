//! What happened just before: the last of what drivers did and what came of it, kept for diagnoses.
//!
//! Two rings for each adapter, so that many doorbells and completions do not push the few commands out; of both, what
//! concerns the object of a diagnosis is told. Windows of the host's memory that were taken away have a ring of their own, which
//! is asked for the address that was not reached.

use hca_firmware::FunctionId;
use hca_firmware::commands::{Action, find};
use hca_spec::command::Opcode;

use super::commands::Entry;
use crate::adapter::state::function::Function;
use crate::engines::command::Named;
use crate::ground::diagnosis::{Before, Clue, Parts, RefusedCommand, Saying, Subject};
use crate::ground::epoch::Rebase;
use crate::ground::event::{Event, Value};
use crate::ground::time::Ps;

/// Events of queues that are kept of an adapter.
const EVENTS: usize = 4096;
/// Commands, resets, and windows that were taken away: each so many.
const COMMANDS: usize = 512;
/// What is told of a diagnosis at most.
const TOLD: usize = 4;

/// The last so many.
#[derive(Debug)]
struct Ring<T> {
    kept: Vec<T>,
    /// Where the next one goes when it is full.
    next: usize,
    room: usize,
}

impl<T> Ring<T> {
    const fn new(room: usize) -> Self {
        Self { kept: Vec::new(), next: 0, room }
    }

    #[inline]
    fn push(&mut self, item: T) {
        if self.kept.len() < self.room {
            self.kept.push(item);
            return;
        }
        if let Some(slot) = self.kept.get_mut(self.next) {
            *slot = item;
        }
        self.next = if self.next + 1 < self.room { self.next + 1 } else { 0 };
    }

    /// From the last one back.
    fn back(&self) -> impl Iterator<Item = &T> {
        let (newer, older) = self.kept.split_at(self.next.min(self.kept.len()));
        newer.iter().rev().chain(older.iter().rev())
    }

    /// The last one that is so.
    fn last_mut(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&mut T> {
        let next = self.next.min(self.kept.len());
        let (newer, older) = self.kept.split_at_mut(next);
        newer.iter_mut().rev().chain(older.iter_mut().rev()).find(|item| is_it(item))
    }
}

/// What a driver asked for, or what befell its function.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// A command, about that object; `done`: what came of it, delivery and status.
    Command { slot: u8, opcode: u16, object: Option<Subject>, done: Option<(u8, u8)> },
    /// The function was reset, or its host went.
    Reset,
}

/// What happened at an adapter.
#[derive(Debug)]
pub(super) struct History {
    events: Ring<(Ps, Event)>,
    acts: Ring<(Ps, FunctionId, Act)>,
    /// Windows that the host took away: when, whose, first address and length.
    unmapped: Ring<(Ps, FunctionId, u64, u64)>,
}

impl Default for History {
    fn default() -> Self {
        Self { events: Ring::new(EVENTS), acts: Ring::new(COMMANDS), unmapped: Ring::new(COMMANDS) }
    }
}

impl History {
    /// An event of a queue.
    #[inline]
    pub(super) fn event(&mut self, at: Ps, event: Event) {
        self.events.push((at, event));
    }

    /// A command is about to be answered.
    pub(super) fn command(&mut self, at: Ps, id: FunctionId, (slot, opcode): (u8, u16), function: &Function) {
        let row = Opcode::from_u16(opcode).and_then(find).and_then(|command| command.object);
        let named = row.filter(|object| object.action != Action::Create);
        let object = named.and_then(|object| {
            let number = Entry::read(function, slot)?.input_word(object.at)? & object.kind.number_mask();
            Some(Subject::new(object.kind.name(), number))
        });
        self.acts.push((at, id, Act::Command { slot, opcode, object, done: None }));
    }

    /// A command was answered, with that delivery status.
    pub(super) fn done(&mut self, id: FunctionId, slot: u8, delivery: u8, function: &Function) {
        let is_it = |(_, whose, act): &(Ps, FunctionId, Act)| {
            *whose == id && matches!(act, Act::Command { slot: its, .. } if *its == slot)
        };
        let Some((_, _, Act::Command { opcode, object, done, .. })) = self.acts.last_mut(is_it) else {
            return;
        };
        let Some(entry) = Entry::read(function, slot) else { return };
        *done = Some((delivery, entry.status()));
        let row = Opcode::from_u16(*opcode).and_then(find).and_then(|command| command.object);
        if let Some(made) = row.filter(|object| object.action == Action::Create && entry.is_done()) {
            let number = entry.output_word(made.at).map(|word| word & made.kind.number_mask());
            *object = number.map(|number| Subject::new(made.kind.name(), number));
        }
    }

    /// The function was reset, or its host is gone.
    pub(super) fn reset(&mut self, at: Ps, id: FunctionId) {
        self.acts.push((at, id, Act::Reset));
    }

    /// The host took a window of its memory away.
    pub(super) fn unmapped(&mut self, at: Ps, id: FunctionId, iova: u64, size: u64) {
        self.unmapped.push((at, id, iova, size));
    }

    /// What happened before `now` that explains what is said, the oldest first.
    pub(super) fn before(&self, now: Ps, id: FunctionId, saying: &Saying) -> Vec<Before> {
        let Some(Parts { subject, .. }) = saying.parts() else { return Vec::new() };
        let (mut subjects, mut address) = (vec![subject], None);
        match clue(saying) {
            Some(Clue::Object(object)) => subjects.push(object),
            Some(Clue::Unreached(iova)) => address = Some(iova),
            None => {}
        }
        let mut told: Vec<Before> = Vec::new();
        let reset =
            self.acts.back().find(|(at, whose, act)| *at < now && *whose == id && matches!(act, Act::Reset));
        // What was before a reset is of other objects.
        let since = reset.map_or(Ps::ZERO, |(at, ..)| *at);
        let is_then = |at: Ps| since <= at && at <= now;
        let events = self.events.back().filter(|(at, event)| is_then(*at) && concerns(event, subject));
        told.extend(events.take(TOLD).map(|(at, event)| Before { at: *at, what: event_in_words(event) }));
        // The command that is diagnosed is not before itself.
        let mut own = match saying {
            Saying::Command(RefusedCommand { slot, .. }) => Some(*slot),
            _ => None,
        };
        let acts = self.acts.back().filter(|(at, whose, act)| {
            let concerned = match act {
                Act::Reset => true,
                Act::Command { slot, .. } if own == Some(*slot) => {
                    own = None;
                    false
                }
                Act::Command { object, .. } => {
                    number_field(subject).is_none() || object.is_some_and(|object| subjects.contains(&object))
                }
            };
            is_then(*at) && *whose == id && concerned
        });
        let mut acts: Vec<_> = acts.take(4 * TOLD).collect();
        // Commands about the object itself say more than others.
        let about =
            |act: &Act| matches!(act, Act::Command { object: Some(object), .. } if subjects.contains(object));
        if acts.iter().any(|(_, _, act)| about(act)) {
            acts.retain(|(_, _, act)| about(act));
        }
        told.extend(acts.iter().take(TOLD).map(|(at, _, act)| Before { at: *at, what: act_in_words(act) }));
        told.sort_by_key(|before| before.at);
        told.drain(..told.len().saturating_sub(TOLD));
        if let Some(taken) = address.and_then(|address| self.taken_away(now, id, address)) {
            // However long ago.
            told.truncate(TOLD - 1);
            told.push(taken);
            told.sort_by_key(|before| before.at);
        }
        told
    }

    /// The window that had the address that was not reached.
    fn taken_away(&self, now: Ps, id: FunctionId, address: u64) -> Option<Before> {
        let mut windows = self.unmapped.back().filter(|(at, whose, ..)| *at <= now && *whose == id);
        let (at, _, iova, size) = windows
            .find(|(_, _, iova, size)| address.checked_sub(*iova).is_some_and(|offset| offset < *size))?;
        Some(Before { at: *at, what: format!("the host unmapped {size:#x} bytes at {iova:#x}") })
    }
}

fn clue(saying: &Saying) -> Option<Clue> {
    match saying {
        Saying::Answered(finding) | Saying::Found(finding) => finding.clue,
        Saying::Command(_) | Saying::Refused(_) => None,
    }
}

/// The field of events that has the number of an object of that kind; of other kinds no event tells.
fn number_field(subject: Subject) -> Option<&'static str> {
    match subject.kind() {
        "QP" => Some("qpn"),
        "CQ" => Some("cqn"),
        "EQ" => Some("eqn"),
        _ => None,
    }
}

fn concerns(event: &Event, subject: Subject) -> bool {
    let Some(wanted) = number_field(subject) else { return false };
    let mut is_it = false;
    event.fields(&mut |name, value| {
        is_it |=
            name == wanted && matches!(value, Value::Number(number) if number == subject.number().into());
    });
    is_it
}

fn event_in_words(event: &Event) -> String {
    let mut words = event.name().to_owned();
    event.fields(&mut |name, value| {
        words += &match value {
            Value::Number(number) => format!(", {name} {number:#x}"),
            Value::Named(_, value) => format!(", {name} {value:?}"),
        };
    });
    words
}

fn act_in_words(act: &Act) -> String {
    match act {
        Act::Reset => "the function was reset".into(),
        Act::Command { slot, opcode, object, done } => {
            let name = Named(*opcode);
            let object = object.map_or(String::new(), |object| format!(" of {object}"));
            let done = match done {
                None => "not answered yet".to_owned(),
                Some((0, 0)) => "done".to_owned(),
                Some((0, status)) => format!("refused, status {status:#x}"),
                Some((delivery, _)) => format!("not delivered, {delivery:#x}"),
            };
            format!("{name}{object} in slot {slot:#x}: {done}")
        }
    }
}

impl Rebase for History {
    fn rebase(&mut self, by: Ps) {
        let Self { events, acts, unmapped } = self;
        events.kept.iter_mut().for_each(|(at, _)| at.rebase(by));
        acts.kept.iter_mut().for_each(|(at, ..)| at.rebase(by));
        unmapped.kept.iter_mut().for_each(|(at, ..)| at.rebase(by));
    }
}

#[cfg(test)]
mod tests {
    use hca_spec::ids::Qpn;
    use hca_spec::rules;

    use super::*;
    use crate::ground::diagnosis::Finding;

    #[test]
    fn a_ring_has_the_last_ones() {
        let mut ring = Ring::new(3);
        (0..5).for_each(|i| ring.push(i));
        assert_eq!(ring.back().copied().collect::<Vec<_>>(), [4, 3, 2]);
        assert_eq!(ring.last_mut(|i| i % 2 == 1), Some(&mut 3));
        let mut few = Ring::new(3);
        (0..2).for_each(|i| few.push(i));
        assert_eq!(few.back().copied().collect::<Vec<_>>(), [1, 0]);
    }

    fn saying(subject: Subject) -> Saying {
        Saying::Found(Finding::new(subject, "field", "this", "that", &rules::SEND_COUNTER))
    }

    #[test]
    fn told_is_what_concerns_the_object_in_order_and_not_what_comes_later() {
        let mut history = History::default();
        for (us, qpn) in [(1, 7), (2, 8), (3, 7), (4, 7), (5, 7), (6, 7), (9, 7)] {
            history.event(Ps::from_us(us), Event::Doorbell { qpn: Qpn(qpn), index: 0, blocks: 1 });
        }
        let told = history.before(Ps::from_us(8), FunctionId::FIRST, &saying(Subject::qp(Qpn(7))));
        assert_eq!(told.iter().map(|before| before.at).collect::<Vec<_>>(), [3, 4, 5, 6].map(Ps::from_us));
        assert_eq!(told[0].what, "doorbell, qpn 0x7, index 0x0, blocks 0x1");
        assert!(history.before(Ps::from_us(8), FunctionId::FIRST, &saying(Subject::qp(Qpn(9)))).is_empty());
    }

    #[test]
    fn a_window_that_was_taken_away_is_told_by_the_address_that_it_had() {
        let mut history = History::default();
        history.unmapped(Ps::from_us(1), FunctionId::FIRST, 0x1000, 0x2000);
        history.unmapped(Ps::from_us(2), FunctionId::FIRST, 0x8000, 0x1000);
        let told = |address| {
            let finding = Finding::new(Subject::qp(Qpn(7)), "field", "this", "that", &rules::MEMORY_MAPPED)
                .with(Clue::Unreached(address));
            history.before(Ps::from_us(3), FunctionId::FIRST, &Saying::Answered(finding))
        };
        assert_eq!(told(0x2fff)[0].what, "the host unmapped 0x2000 bytes at 0x1000");
        assert!(told(0x3000).is_empty() && told(0xfff).is_empty());
    }
}
