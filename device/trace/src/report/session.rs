//! What of a trace file a page shows beside work requests and coverage: commands one by one, objects, what the server said.

use std::collections::{BTreeMap, HashMap, VecDeque};

use hca_firmware::commands::{Action, Command, find};
use hca_spec::be32;
use hca_spec::command::{Delivery, InHeader, Opcode, Status};
use serde_json::Value;

use crate::coverage::read::executed;
use crate::coverage::universe::{field_name, is_header};
use crate::lines::lines;
use crate::perfetto::{COMMAND, NOTE, SLICE};

/// A command that was answered.
#[derive(Clone)]
pub(super) struct Answered {
    /// When it was fetched, picoseconds.
    pub(super) at: u64,
    pub(super) took: u64,
    pub(super) adapter: String,
    pub(super) name: String,
    pub(super) status: String,
    pub(super) refused: bool,
    /// Fields of its input that are other than zero.
    pub(super) fields: Vec<(String, String)>,
    opcode: Option<&'static Command>,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// An object that was made.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) adapter: String,
    pub(super) kind: &'static str,
    pub(super) number: u32,
    pub(super) at: u64,
    /// Until when; `None`: to the end.
    pub(super) until: Option<u64>,
    pub(super) changes: u64,
    /// Of the command that made it.
    pub(super) fields: Vec<(String, String)>,
}

/// Something that the server said.
#[derive(Debug, Clone)]
pub(super) struct Note {
    pub(super) at: u64,
    pub(super) adapter: String,
    pub(super) name: String,
    pub(super) args: Value,
}

/// A session.
#[derive(Default)]
pub(super) struct Session {
    pub(super) adapters: Vec<String>,
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) events: u64,
    pub(super) commands: Vec<Answered>,
    pub(super) objects: Vec<Made>,
    pub(super) notes: Vec<Note>,
    /// When a port came to a state: time, adapter, state.
    pub(super) ports: Vec<(u64, String, u64)>,
    /// Places of objects that were made and not destroyed: by adapter, kind and number.
    alive: HashMap<(String, &'static str, u32), usize>,
}

/// What is under way in a slot.
#[derive(Default)]
struct Slot {
    begun: Option<u64>,
    executed: VecDeque<Answered>,
}

impl Session {
    /// Out of a trace file.
    ///
    /// # Errors
    /// It is no trace.
    pub(super) fn read(text: &str) -> anyhow::Result<Self> {
        let mut session = Self { begin: u64::MAX, ..Self::default() };
        let mut names: HashMap<u64, String> = HashMap::new();
        let mut slots: HashMap<(u64, u64), Slot> = HashMap::new();
        for line in lines(text)? {
            let Some(pid) = line.whole("pid") else { continue };
            if line.is("M", "process_name") {
                let name = line.arg("name").and_then(Value::as_str).unwrap_or_default();
                names.insert(pid, name.to_owned());
                session.adapters.push(name.to_owned());
                continue;
            }
            let Some(adapter) = names.get(&pid) else { continue };
            let number = |name: &str| line.arg(name).and_then(Value::as_u64).unwrap_or(0);
            let at = line.ps("ts");
            match (line.word("ph"), line.word("cat"), line.word("name").unwrap_or_default()) {
                (Some("i"), Some(COMMAND), _) => {
                    let command = executed(&line);
                    let answered = Answered::new(at, adapter, command.input, command.output);
                    slots.entry((pid, command.slot.into())).or_default().executed.push_back(answered);
                    continue;
                }
                (Some("i"), Some(NOTE), name) => {
                    let args = line.args().cloned().unwrap_or_default();
                    session.notes.push(Note { at, adapter: adapter.clone(), name: name.to_owned(), args });
                    continue;
                }
                (Some("X"), Some(SLICE), "command") => {
                    slots.entry((pid, number("slot"))).or_default().begun.get_or_insert(at);
                }
                (Some("X"), Some(SLICE), "command done") => {
                    let slot = slots.entry((pid, number("slot"))).or_default();
                    let begun = slot.begun.take();
                    let mut last = None;
                    while let Some(answered) = slot.executed.pop_front_if(|answered| answered.at <= at) {
                        last = Some(answered);
                    }
                    if let Some(mut answered) = last.filter(|_| number("delivery") == Delivery::Ok as u64) {
                        answered.at = begun.unwrap_or(answered.at).min(answered.at);
                        answered.took = at.saturating_sub(answered.at);
                        session.account(&answered, at);
                        session.commands.push(answered);
                    }
                }
                (Some("X"), Some(SLICE), "port state") => {
                    session.ports.push((at, adapter.clone(), number("state")));
                }
                (Some("X"), Some(SLICE), _) => {}
                _ => continue,
            }
            session.events += 1;
            session.begin = session.begin.min(at);
            session.end = session.end.max(at + line.ps("dur"));
        }
        session.begin = session.begin.min(session.end);
        Ok(session)
    }

    /// What a command that was answered did to objects.
    fn account(&mut self, answered: &Answered, at: u64) {
        let Some((row, object)) = answered.opcode.and_then(|row| Some((row, row.object?))) else { return };
        if answered.refused {
            return;
        }
        let kind = object.kind.numbered_as();
        if object.action == Action::Create {
            for number in row.made(&answered.output) {
                self.alive.insert((answered.adapter.clone(), kind.name(), number), self.objects.len());
                self.objects.push(Made {
                    adapter: answered.adapter.clone(),
                    kind: kind.name(),
                    number,
                    at,
                    until: None,
                    changes: 0,
                    fields: answered.fields.clone(),
                });
            }
            return;
        }
        let number = be32(&answered.input, object.at) & object.kind.number_mask();
        let key = (answered.adapter.clone(), kind.name(), number);
        let place = match object.action {
            Action::Destroy => self.alive.remove(&key),
            _ => self.alive.get(&key).copied(),
        };
        if let Some(made) = place.and_then(|place| self.objects.get_mut(place)) {
            match object.action {
                Action::Destroy => made.until = Some(at),
                Action::Change => made.changes += 1,
                Action::Create | Action::Query => {}
            }
        }
    }

    /// How long commands took, by their names.
    pub(super) fn durations(&self) -> BTreeMap<String, Vec<u64>> {
        let mut all: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for command in &self.commands {
            all.entry(command.name.clone()).or_default().push(command.took);
        }
        all
    }
}

impl Answered {
    fn new(at: u64, adapter: &str, input: Vec<u8>, output: Vec<u8>) -> Self {
        let number = InHeader::from_prefix_or_zero(&input).get(InHeader::OPCODE);
        let row = u16::try_from(number).ok().and_then(Opcode::from_u16).and_then(find);
        let (status, syndrome) = (be32(&output, 0) >> 24, be32(&output, 4));
        let known = Status::from_bits(status);
        let refused = known != Some(Status::Ok);
        let said = known.map_or_else(|| format!("{status:#x}"), |status| format!("{status:?}"));
        let mut fields = Vec::new();
        if let Some(row) = row {
            row.layout.decode(&input, &mut |view, field, value| {
                if value != 0 && !is_header(view, field) {
                    fields.push((field_name(view, field), format!("{value:#x}")));
                }
            });
        }
        Self {
            at,
            took: 0,
            adapter: adapter.to_owned(),
            name: row.map_or_else(|| format!("{number:#x}"), |row| row.name.to_owned()),
            status: if refused { format!("{said}, syndrome {syndrome:#010x}") } else { said },
            refused,
            fields,
            opcode: row,
            input,
            output,
        }
    }
}
