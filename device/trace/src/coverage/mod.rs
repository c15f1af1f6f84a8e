//! What a driver uses of the interface: its bring-up as a checklist, commands with their fields, opcodes, events, transitions,
//! error paths and registers, each reached or never.
//!
//! [`Coverage`] is filled with what a world records ([`Coverage::record`], [`Coverage::command`]) or with what a trace file has
//! of that ([`read`]). It is written as JSON, compared ([`Difference`]) and shown ([`text`]). What there is to be reached is
//! in [`universe`], from the tables and layouts of the interface.

pub mod difference;
pub mod read;
pub mod steps;
pub mod text;
pub mod universe;

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context, ensure};
use hca_firmware::commands::find;
use hca_model::trace::{Event, Executed, Record, Status as Ended};
use hca_spec::be32;
use hca_spec::command::{Delivery, InHeader, Opcode, Status};
use hca_spec::eqe::EventType;
use serde::{Deserialize, Serialize};

pub use difference::Difference;
use steps::{STEPS, Sign};

/// What a file of coverage says of its form.
const FORM: &str = "softhca coverage 1";
/// Names that a list may have: guests choose some of them. What is beyond is counted as [`OTHERS`].
const MOST: usize = 4096;
/// Stands for names that are too many.
const OTHERS: &str = "(others)";
/// Slots of a command queue.
const SLOTS: usize = 32;

/// How often each name occurred.
pub type Counts = BTreeMap<String, u64>;

/// What the drivers of some adapters used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Which form this is.
    pub form: String,
    /// By the adapters' names.
    pub adapters: BTreeMap<String, Used>,
    /// What is under way.
    #[serde(skip)]
    open: BTreeMap<String, Open>,
}

/// What the driver of an adapter used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Used {
    /// Steps of [`STEPS`] that were reached, in their order.
    pub steps: Vec<Reached>,
    /// Commands by their names.
    pub commands: BTreeMap<String, Command>,
    /// Fields of commands' inputs that were other than zero: by command, then field.
    pub fields: BTreeMap<String, Counts>,
    /// Commands with their modifiers, registers of ACCESS_REGISTER.
    pub variants: Counts,
    /// Opcodes of send work requests.
    pub opcodes: Counts,
    /// Types of events.
    pub events: Counts,
    /// Transitions of queue pairs.
    pub transitions: Counts,
    /// What went wrong.
    pub errors: Counts,
    /// Registers of BAR0, read or written.
    pub registers: Counts,
}

/// A step that was reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// Its name in [`STEPS`].
    pub step: String,
    /// When first, picoseconds of model time.
    pub first_ps: u64,
    /// How it ended then; empty of what has no end.
    pub status: String,
    /// How long that took, if it took time.
    pub took_ps: Option<u64>,
    /// How often.
    pub times: u64,
}

/// Uses of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Command {
    /// How often.
    pub count: u64,
    /// When first, picoseconds of model time.
    pub first_ps: u64,
    /// All of them together, from the doorbell's fetch to the answer, picoseconds.
    pub took_ps: u64,
    /// The longest.
    pub longest_ps: u64,
    /// By status, and syndrome if it has one.
    pub statuses: Counts,
}

/// What has begun at an adapter.
#[derive(Debug, Clone, PartialEq, Default)]
struct Open {
    /// When the command in each slot was fetched.
    begun: [Option<u64>; SLOTS],
    /// Commands that were carried out and not answered.
    executed: [VecDeque<Carried>; SLOTS],
}

/// A command that was carried out.
#[derive(Debug, Clone, PartialEq)]
struct Carried {
    at: u64,
    name: String,
    op_mod: u32,
    status: String,
    /// It was refused.
    refused: Option<String>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self { form: FORM.into(), adapters: BTreeMap::new(), open: BTreeMap::new() }
    }
}

/// Counts one of that name.
fn count(counts: &mut Counts, name: String) {
    let name = if counts.len() >= MOST && !counts.contains_key(&name) { OTHERS.to_owned() } else { name };
    *counts.entry(name).or_default() += 1;
}

impl Coverage {
    /// Nothing yet, of adapters of these names.
    pub fn new(names: &[String]) -> Self {
        let adapters = names.iter().map(|name| (name.clone(), Used::default())).collect();
        Self { adapters, ..Self::default() }
    }

    /// Takes the text of a file that was written.
    ///
    /// # Errors
    /// It is none, or of another form.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let coverage: Self = serde_json::from_str(text).context("not a file of coverage")?;
        ensure!(coverage.form == FORM, "its form is {:?}, and this program knows {FORM:?}", coverage.form);
        Ok(coverage)
    }

    /// As JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn of(&mut self, adapter: &str) -> (&mut Used, &mut Open) {
        if !self.adapters.contains_key(adapter) {
            self.adapters.insert(adapter.to_owned(), Used::default());
        }
        if !self.open.contains_key(adapter) {
            self.open.insert(adapter.to_owned(), Open::default());
        }
        // Both were put there if they were not.
        let used = self.adapters.entry(adapter.to_owned()).or_default();
        (used, self.open.entry(adapter.to_owned()).or_default())
    }

    /// A command was carried out, with that input and the begin of its output.
    pub fn command(&mut self, adapter: &str, command: &Executed) {
        self.carried(adapter, command.at.0, command.slot, &command.input, &command.output);
    }

    fn carried(&mut self, adapter: &str, at: u64, slot: u8, input: &[u8], output: &[u8]) {
        let (used, open) = self.of(adapter);
        let header = InHeader::from_prefix_or_zero(input);
        let (number, op_mod) = (header.get(InHeader::OPCODE), header.get(InHeader::OP_MOD));
        let row = u16::try_from(number).ok().and_then(Opcode::from_u16).and_then(find);
        let name = row.map_or_else(|| "unknown opcode".to_owned(), |row| row.name.to_owned());
        let (status, syndrome) = (be32(output, 0) >> 24, be32(output, 4));
        let known = Status::from_bits(status);
        let said = known.map_or_else(|| format!("{status:#x}"), |status| format!("{status:?}"));
        let refused = (known != Some(Status::Ok)).then(|| format!("command {said}"));
        let status = if refused.is_some() { format!("{said} {syndrome:#010x}") } else { said };
        if let Some(row) = row {
            let fields = used.fields.entry(name.clone()).or_default();
            row.layout.decode(input, &mut |view, field, value| {
                if value != 0 && !universe::is_header(view, field) {
                    count(fields, universe::field_name(view, field));
                }
            });
            let variant = match row.opcode {
                Opcode::AccessReg => {
                    let what = if op_mod == 0 { "write" } else { "read" };
                    format!("{name} {:#06x} {what}", be32(input, 8) & 0xffff)
                }
                _ => format!("{name} op_mod {op_mod:#x}"),
            };
            count(&mut used.variants, variant);
        }
        if let Some(slot) = open.executed.get_mut(usize::from(slot)) {
            slot.push_back(Carried { at, name, op_mod, status, refused });
        }
    }

    /// Something happened at an adapter.
    pub fn record(&mut self, adapter: &str, record: &Record) {
        let at = record.at.0;
        match record.event {
            Event::Command { slot, .. } => self.begun(adapter, at, slot),
            Event::CommandDone { slot, delivery } => self.answered(adapter, at, slot, delivery),
            Event::Register { offset, write } => self.register(adapter, at, offset, write),
            Event::QpModified { from, to, .. } => {
                self.transition(adapter, at, &format!("{from:?}"), &format!("{to:?}"));
            }
            Event::Started { opcode, .. } => {
                count(&mut self.of(adapter).0.opcodes, format!("{opcode:?}"));
            }
            Event::Done { status: Ended(Some(why)), .. } => {
                self.error(adapter, format!("completion {why:?}"))
            }
            Event::Eqe { kind, .. } => self.event(adapter, at, kind.into()),
            Event::Timeout { .. } => self.error(adapter, "retry Timeout".into()),
            Event::Retry { why, .. } => self.error(adapter, format!("retry {why:?}")),
            Event::Unwanted { why, .. } => self.error(adapter, format!("packet {why:?}")),
            Event::Dropped { .. } => self.error(adapter, "packet Dropped".into()),
            Event::Fault { .. } => self.error(adapter, "fault on script".into()),
            Event::Port { state } => self.port(adapter, at, state.into()),
            ref other => self.happened(adapter, at, other.name()),
        }
    }

    fn begun(&mut self, adapter: &str, at: u64, slot: u8) {
        let (_, open) = self.of(adapter);
        if let Some(begun) = open.begun.get_mut(usize::from(slot)) {
            // One that waited for pages is executed again.
            begun.get_or_insert(at);
        }
    }

    fn answered(&mut self, adapter: &str, at: u64, slot: u8, delivery: u8) {
        let (used, open) = self.of(adapter);
        let (Some(begun), Some(executed)) =
            (open.begun.get_mut(usize::from(slot)), open.executed.get_mut(usize::from(slot)))
        else {
            return;
        };
        let begun = begun.take();
        if delivery != Delivery::Ok as u8 {
            return self.error(adapter, format!("delivery {delivery:#x}"));
        }
        // Those of before were never answered, as faults on script do.
        let mut last = None;
        while let Some(carried) = executed.pop_front_if(|carried| carried.at <= at) {
            last = Some(carried);
        }
        let Some(Carried { at: done, name, op_mod, status, refused }) = last else { return };
        let from = begun.filter(|begun| *begun <= at).unwrap_or(done);
        let took = at.saturating_sub(from);
        let command = used.commands.entry(name.clone()).or_default();
        if command.count == 0 {
            command.first_ps = from;
        }
        command.count += 1;
        command.took_ps = command.took_ps.saturating_add(took);
        command.longest_ps = command.longest_ps.max(took);
        count(&mut command.statuses, status.clone());
        if let Some(refused) = refused {
            count(&mut used.errors, refused);
        }
        self.reach(adapter, from, Some(took), &status, &|sign| match sign {
            Sign::Command(of, None) => *of == name,
            Sign::Command(of, Some(wanted)) => *of == name && *wanted == op_mod,
            _ => false,
        });
    }

    fn register(&mut self, adapter: &str, at: u64, offset: u32, write: bool) {
        count(&mut self.of(adapter).0.registers, universe::register_name(offset, write));
        self.reach(adapter, at, None, "", &|sign| match sign {
            Sign::Read(of) => !write && *of == offset,
            Sign::Written(of) => write && *of == offset,
            _ => false,
        });
    }

    fn transition(&mut self, adapter: &str, at: u64, from: &str, to: &str) {
        count(&mut self.of(adapter).0.transitions, format!("{from} to {to}"));
        self.reach(adapter, at, None, "", &|sign| matches!(sign, Sign::State(state) if *state == to));
    }

    fn event(&mut self, adapter: &str, at: u64, kind: u32) {
        let name =
            EventType::from_bits(kind).map_or_else(|| format!("{kind:#x}"), |kind| format!("{kind:?}"));
        count(&mut self.of(adapter).0.events, name);
        self.happened(adapter, at, "EQE");
    }

    fn error(&mut self, adapter: &str, what: String) {
        count(&mut self.of(adapter).0.errors, what);
    }

    fn port(&mut self, adapter: &str, at: u64, state: u64) {
        self.reach(adapter, at, None, "", &|sign| matches!(sign, Sign::Port(of) if *of == state));
    }

    /// What has no name of its own here but for steps and doorbells.
    fn happened(&mut self, adapter: &str, at: u64, name: &str) {
        if let Some(register) = universe::doorbell_of(name) {
            count(&mut self.of(adapter).0.registers, register.to_owned());
        }
        // A work request that comes with its doorbell is one, too.
        let is = |of: &str| of == name || (of == "doorbell" && name == "BlueFlame");
        self.reach(adapter, at, None, "", &|sign| matches!(sign, Sign::Event(of) if is(of)));
    }

    /// Steps that this is a sign of are reached.
    fn reach(&mut self, adapter: &str, at: u64, took: Option<u64>, status: &str, is: &dyn Fn(&Sign) -> bool) {
        let (used, _) = self.of(adapter);
        for (place, step) in STEPS.iter().enumerate().filter(|(_, step)| is(&step.sign)) {
            let place_of = |reached: &Reached| STEPS.iter().position(|step| step.name == reached.step);
            match used.steps.iter_mut().find(|reached| reached.step == step.name) {
                Some(reached) => reached.times += 1,
                None => {
                    let before = used.steps.partition_point(|reached| place_of(reached) < Some(place));
                    let (step, status) = (step.name.to_owned(), status.to_owned());
                    used.steps
                        .insert(before, Reached { step, first_ps: at, status, took_ps: took, times: 1 });
                }
            }
        }
    }

    /// All adapters as one: what any of them used. Times are the earliest.
    pub fn together(&self) -> Used {
        let mut all = Used::default();
        self.adapters.values().for_each(|used| all.add(used));
        all
    }

    /// Adds what another run used, to adapters of the same names. Times are the earliest, each from its own start.
    pub fn add(&mut self, other: &Self) {
        for (name, used) in &other.adapters {
            self.adapters.entry(name.clone()).or_default().add(used);
        }
    }
}

/// Adds counts of the same names.
fn add(to: &mut Counts, from: &Counts) {
    for (name, n) in from {
        let known = to.entry(name.clone()).or_default();
        *known = known.saturating_add(*n);
    }
}

impl Used {
    /// Names of the lists of [`Used::lists`].
    pub const LISTS: [&'static str; 6] =
        ["variants", "opcodes", "events", "transitions", "errors", "registers"];

    /// What is counted by name alone.
    pub fn lists(&self) -> [&Counts; 6] {
        let Self {
            steps: _,
            commands: _,
            fields: _,
            variants,
            opcodes,
            events,
            transitions,
            errors,
            registers,
        } = self;
        [variants, opcodes, events, transitions, errors, registers]
    }

    /// Adds what another driver used. Times are the earliest.
    fn add(&mut self, other: &Self) {
        for (to, from) in self.lists_mut().into_iter().zip(other.lists()) {
            add(to, from);
        }
        for (name, fields) in &other.fields {
            add(self.fields.entry(name.clone()).or_default(), fields);
        }
        for (name, command) in &other.commands {
            let known = self.commands.entry(name.clone()).or_default();
            let first = if known.count == 0 { u64::MAX } else { known.first_ps };
            known.first_ps = first.min(command.first_ps);
            known.count = known.count.saturating_add(command.count);
            known.took_ps = known.took_ps.saturating_add(command.took_ps);
            known.longest_ps = known.longest_ps.max(command.longest_ps);
            add(&mut known.statuses, &command.statuses);
        }
        for reached in &other.steps {
            match self.steps.iter_mut().find(|known| known.step == reached.step) {
                Some(known) => {
                    let times = known.times.saturating_add(reached.times);
                    let first = if reached.first_ps < known.first_ps { reached } else { &*known };
                    *known = Reached { times, ..first.clone() };
                }
                None => self.steps.push(reached.clone()),
            }
        }
        let place = |reached: &Reached| STEPS.iter().position(|step| step.name == reached.step);
        self.steps.sort_by_key(place);
    }

    fn lists_mut(&mut self) -> [&mut Counts; 6] {
        let Self {
            steps: _,
            commands: _,
            fields: _,
            variants,
            opcodes,
            events,
            transitions,
            errors,
            registers,
        } = self;
        [variants, opcodes, events, transitions, errors, registers]
    }
}

/// A time for people, in the unit that fits, with three decimals.
pub(crate) fn time(ps: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "us"), (1000, "ns")];
    let unit = UNITS.into_iter().find(|(size, _)| ps >= *size);
    let (size, name) = unit.unwrap_or((1000, "ns"));
    format!("{}.{:03} {name}", ps / size, ps % size / (size / 1000))
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_have_units_that_fit() {
        let times = [0, 1, 999_999, 1_000_000, 8_222_192, 19_755_233_145_000].map(time);
        assert_eq!(times, ["0.000 ns", "0.001 ns", "999.999 ns", "1.000 us", "8.222 us", "19.755 s"]);
    }
}
