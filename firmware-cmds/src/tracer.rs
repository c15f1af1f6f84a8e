//! The firmware's tracer: what it does, as messages, and those as the host reads them.
//!
//! A message is a string of a database, by its address, and up to seven numbers. The host reads the database once and puts both
//! together. Messages wait here until blocks are made of them, which the hardware writes into the host's memory. Source: the mlx5 driver
//! (`diag/fw_tracer.c`) for the formats and what a driver relies on; when blocks are written is an estimate ([`Tracer::wants`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::LazyLock;

use hca_spec::command::Opcode;
use hca_spec::eqe::port_change;
use hca_spec::tracer::{BLOCK, EVENTS, MOST_PARAMETERS, PAGE, StringEvent, TIMESTAMP, TimestampEvent};

use crate::function::FunctionId;
use crate::personality::FirmwareVersion;

/// Most messages that wait: the oldest are lost then.
const MOST: usize = 512;
/// So many are not kept waiting longer.
const MANY: usize = 256;
/// What addresses of strings count from.
pub(crate) const STRINGS_AT: u32 = 0x10_0000;
/// Databases have a multiple of this.
const ALIGNED: usize = 64;
/// Number of the events that are strings and parameters.
pub(crate) const STRING_EVENT: u32 = 1;
/// log2 of the pages of the largest buffer: 4 MiB.
pub(crate) const LOG_MOST_PAGES: u32 = 10;

/// What the firmware did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// It starts.
    Start(FirmwareVersion),
    /// A function was reset.
    Reset(FunctionId),
    /// All objects of a function were dropped.
    AllGone(FunctionId),
    /// A command was executed.
    Command {
        /// Its opcode.
        opcode: u16,
        /// Its variant.
        op_mod: u32,
        /// Status of its output.
        status: u8,
        /// Syndrome of its output.
        syndrome: u32,
    },
    /// A register was accessed by a command.
    Register {
        /// Its number.
        register: u32,
        /// The command's variant: 0 = written, 1 = read.
        op_mod: u32,
        /// Status of its output.
        status: u8,
    },
    /// A command waits for pages.
    Waits(u16),
    /// A tool had the mailbox executed.
    Mailbox {
        /// Its opcode.
        opcode: u32,
        /// What became of it.
        status: u32,
    },
    /// Pages that the firmware wants, or gives back (negative).
    Pages(i32),
    /// A port changed ([`port_change`]).
    Port {
        /// Its number.
        port: u8,
        /// How.
        change: u8,
    },
    /// The firmware was asked what it is about: how far the driver of a function brought it, and pages that it has and uses.
    State {
        /// The function.
        function: FunctionId,
        /// 0 = not enabled, 1 = enabled, 2 = initialized.
        state: u32,
        /// Pages that the host gave.
        given: u32,
        /// Pages in use.
        used: u32,
    },
    /// The same: event queues, completion queues, queue pairs, shared receive queues, memory keys, domains.
    Objects([u32; 6]),
}

/// Strings of messages but those of commands, which have a name each.
const START: &str = "firmware %u.%u.%u starts";
const RESET: &str = "function %u: reset";
const ALL_GONE: &str = "function %u: all objects are gone";
const UNKNOWN: &str = "command 0x%x op_mod 0x%x: status 0x%x syndrome 0x%x";
const READ: &str = "register 0x%x read: status 0x%x";
const WRITTEN: &str = "register 0x%x written: status 0x%x";
const WAITS: &str = "command 0x%x waits for pages";
const MAILBOX: &str = "mailbox: opcode 0x%x: status 0x%x";
const PAGES: &str = "pages: wants %d";
const PORT: &str = "port %u: event %u";
const PORT_CHANGES: [(u8, &str); 7] = [
    (port_change::DOWN, "port %u: down"),
    (port_change::ACTIVE, "port %u: active"),
    (port_change::INITIALIZED, "port %u: link up"),
    (port_change::LID, "port %u: LID changed"),
    (port_change::PKEY, "port %u: P_Keys changed"),
    (port_change::GUID, "port %u: GUIDs changed"),
    (port_change::CLIENT_REREGISTER, "port %u: clients register again"),
];
const STATE: &str = "function %u: state %u, %u pages given, %u used";
const OBJECTS: &str = "objects: %u EQs %u CQs %u QPs %u SRQs %u mkeys %u PDs";
const FIXED: [&str; 12] =
    [START, RESET, ALL_GONE, UNKNOWN, READ, WRITTEN, WAITS, MAILBOX, PAGES, PORT, STATE, OBJECTS];

/// A string, and the numbers that belong into it.
struct Said {
    string: u32,
    parameters: [u32; MOST_PARAMETERS],
    count: usize,
}

/// The database: strings with a zero behind each.
struct Strings {
    bytes: Vec<u8>,
    fixed: BTreeMap<&'static str, u32>,
    commands: BTreeMap<u16, u32>,
}

static STRINGS: LazyLock<Strings> = LazyLock::new(|| {
    // A string's address is behind that of the database.
    let mut bytes = vec![0];
    let mut add = |text: &str| {
        let at = STRINGS_AT.saturating_add(bytes.len() as u32);
        bytes.extend(text.bytes());
        bytes.push(0);
        at
    };
    let ports = PORT_CHANGES.iter().map(|(_, text)| *text);
    let fixed = FIXED.into_iter().chain(ports).map(|text| (text, add(text))).collect();
    let of = |opcode: &Opcode| format!("{} op_mod 0x%x: status 0x%x syndrome 0x%x", name(*opcode));
    let commands = Opcode::ALL.iter().map(|opcode| (*opcode as u16, add(&of(opcode)))).collect();
    bytes.resize(bytes.len().next_multiple_of(ALIGNED), 0);
    Strings { bytes, fixed, commands }
});

/// The name of a command in the way of the PRM.
fn name(opcode: Opcode) -> String {
    let mut name = String::new();
    let mut small = false;
    for c in format!("{opcode:?}").chars() {
        if small && c.is_ascii_uppercase() {
            name.push('_');
        }
        small = c.is_ascii_lowercase();
        name.push(c.to_ascii_uppercase());
    }
    name
}

/// The database of strings, as the host reads it.
pub(crate) fn strings() -> &'static [u8] {
    &STRINGS.bytes
}

impl Message {
    fn said(self) -> Said {
        let fixed = |text, numbers: &[u32]| (STRINGS.fixed.get(text).copied(), numbers.to_vec());
        let (string, numbers) = match self {
            Self::Start(v) => fixed(START, &[v.major.into(), v.minor.into(), v.subminor.into()]),
            Self::Reset(function) => fixed(RESET, &[function.0.into()]),
            Self::AllGone(function) => fixed(ALL_GONE, &[function.0.into()]),
            Self::Command { opcode, op_mod, status, syndrome } => match STRINGS.commands.get(&opcode) {
                Some(string) => (Some(*string), vec![op_mod, status.into(), syndrome]),
                None => fixed(UNKNOWN, &[opcode.into(), op_mod, status.into(), syndrome]),
            },
            Self::Register { register, op_mod: 0, status } => fixed(WRITTEN, &[register, status.into()]),
            Self::Register { register, status, .. } => fixed(READ, &[register, status.into()]),
            Self::Waits(opcode) => fixed(WAITS, &[opcode.into()]),
            Self::Mailbox { opcode, status } => fixed(MAILBOX, &[opcode, status]),
            Self::Pages(count) => fixed(PAGES, &[count as u32]),
            Self::Port { port, change } => match PORT_CHANGES.iter().find(|(of, _)| *of == change) {
                Some((_, text)) => fixed(text, &[port.into()]),
                None => fixed(PORT, &[port.into(), change.into()]),
            },
            Self::State { function, state, given, used } => {
                fixed(STATE, &[function.0.into(), state, given, used])
            }
            Self::Objects(counts) => fixed(OBJECTS, &counts),
        };
        let mut parameters = [0; MOST_PARAMETERS];
        parameters.iter_mut().zip(&numbers).for_each(|(to, from)| *to = *from);
        let count = numbers.len().min(MOST_PARAMETERS);
        Said { string: string.unwrap_or(STRINGS_AT), parameters, count }
    }
}

/// A message that waits.
#[derive(Debug, Clone, Copy)]
struct Trace {
    /// When, in ticks of the adapter's clock.
    at: u64,
    message: Message,
    /// Others before it were lost.
    lost: bool,
}

/// How soon blocks should be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Soon {
    /// Now.
    Now,
    /// After a while: more may come that fill a block.
    Later,
}

/// A block of the trace buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Where in the buffer, bytes from its begin.
    pub offset: u64,
    /// Its bytes.
    pub bytes: [u8; BLOCK],
}

/// The tracer: of an adapter, for one of its functions at a time.
#[derive(Debug, Clone, Default)]
pub struct Tracer {
    /// Ticks of the adapter's clock, as they were last told.
    now: u64,
    owner: Option<FunctionId>,
    pub(crate) on: bool,
    pub(crate) armed: bool,
    /// The key of the buffer, as it was written.
    pub(crate) key: u32,
    pub(crate) log_pages: u32,
    waiting: VecDeque<Trace>,
    lost: bool,
    /// Number of the next message.
    number: u16,
    /// The latest time in the buffer.
    latest: u64,
    /// The next block.
    next: u64,
    /// Blocks were written that no event told of.
    unsaid: bool,
    asked: Option<Soon>,
}

impl Tracer {
    /// It is that late, in ticks of the adapter's clock.
    pub fn set_time(&mut self, ticks: u64) {
        self.now = ticks;
    }

    /// Ticks of the adapter's clock when something last happened.
    pub(crate) fn time(&self) -> u64 {
        self.now
    }

    /// The firmware did something.
    pub fn record(&mut self, message: Message) {
        if self.waiting.len() >= MOST {
            self.waiting.pop_front();
            if let Some(oldest) = self.waiting.front_mut() {
                oldest.lost = true;
            }
        }
        let lost = std::mem::take(&mut self.lost);
        self.waiting.push_back(Trace { at: self.now, message, lost });
    }

    /// The firmware starts: nothing is left.
    pub(crate) fn restart(&mut self, version: FirmwareVersion) {
        *self = Self { now: self.now, ..Self::default() };
        self.record(Message::Start(version));
    }

    /// A function was reset: the tracer is free if it had it, which is returned.
    pub fn function_reset(&mut self, function: FunctionId) -> bool {
        self.record(Message::Reset(function));
        self.release(function)
    }

    /// The driver of a function went without a word: the tracer is free if it had it, which is returned.
    pub(crate) fn function_gone(&mut self, function: FunctionId) -> bool {
        self.release(function)
    }

    /// Whether the function has it.
    pub(crate) fn is_of(&self, function: FunctionId) -> bool {
        self.owner == Some(function)
    }

    /// A function takes it, if nobody has it.
    pub(crate) fn acquire(&mut self, function: FunctionId) {
        self.owner.get_or_insert(function);
    }

    /// A function gives it back: nothing is written from now on. Returns whether it had it.
    pub(crate) fn release(&mut self, function: FunctionId) -> bool {
        if !self.is_of(function) {
            return false;
        }
        (self.owner, self.on, self.armed, self.unsaid, self.asked) = (None, false, false, false, None);
        true
    }

    /// Blocks go into the buffer under that key, from its begin on.
    pub(crate) fn configure(&mut self, key: u32, log_pages: u32) {
        (self.key, self.log_pages, self.next) = (key, log_pages, 0);
    }

    /// Who gets blocks, and the key of the buffer.
    pub fn target(&self) -> Option<(FunctionId, u32)> {
        self.owner.filter(|_| self.on).map(|owner| (owner, self.key))
    }

    /// Whether blocks should be written, if nobody was told to yet: now, when many messages wait; or later.
    pub fn wants(&mut self) -> Option<(FunctionId, Soon)> {
        let (owner, _) = self.target().filter(|_| !self.waiting.is_empty())?;
        let soon = if self.waiting.len() >= MANY { Soon::Now } else { Soon::Later };
        if self.asked == Some(Soon::Now) || self.asked == Some(soon) {
            return None;
        }
        self.asked = Some(soon);
        Some((owner, soon))
    }

    /// The next block of what waits, to be written now; `None`: nothing waits, or nobody gets it.
    pub fn block(&mut self) -> Option<Block> {
        self.asked = None;
        self.target()?;
        self.waiting.front()?;
        let mut events: Vec<[u8; 8]> = Vec::with_capacity(EVENTS);
        let mut open = None;
        while let Some(trace) = self.waiting.front() {
            let Said { string, parameters, count } = trace.message.said();
            let at = trace.at.max(self.latest).max(1);
            let closing = open.filter(|time| *time != at);
            // The string, its parameters, and a time behind them.
            let needs = usize::from(closing.is_some()).saturating_add(count).saturating_add(2);
            if events.len().saturating_add(needs) > EVENTS {
                break;
            }
            if let Some(time) = closing {
                events.push(timestamp(time));
            }
            let head = StringEvent::new()
                .set(StringEvent::STRING_LOST, trace.lost.into())
                .set(StringEvent::STRING_TIMESTAMP, (at & 0x7f) as u32)
                .set(StringEvent::STRING_EVENT_ID, STRING_EVENT)
                .set(StringEvent::TMSN, self.number.into())
                .to_owned();
            let words = std::iter::once(&string).chain(parameters.iter().take(count));
            for (part, word) in (0..).zip(words) {
                let mut event = head;
                event.set(StringEvent::TDSN, part).set(StringEvent::STRING_PARAM, *word);
                events.push(*event.bytes());
            }
            self.number = self.number.wrapping_add(1) & 0x1fff;
            open = Some(at);
            self.waiting.pop_front();
        }
        let last = open.unwrap_or(self.latest);
        // A driver works out a message's time from the next one above it.
        self.latest = last.saturating_add(1);
        events.resize(EVENTS, timestamp(last));
        let mut bytes = [0; BLOCK];
        bytes.iter_mut().zip(events.iter().flatten()).for_each(|(to, from)| *to = *from);
        let blocks = (PAGE << self.log_pages.min(LOG_MOST_PAGES)) / BLOCK as u64;
        let offset = self.next.saturating_mul(BLOCK as u64);
        self.next = self.next.wrapping_add(1) % blocks.max(1);
        self.unsaid = true;
        Some(Block { offset, bytes })
    }

    /// A block could not be written: what was in it is lost.
    pub fn not_written(&mut self) {
        match self.waiting.front_mut() {
            Some(next) => next.lost = true,
            None => self.lost = true,
        }
    }

    /// Whether an event has to tell now that there are blocks; once, until it is armed again.
    pub fn tells(&mut self) -> bool {
        let tells = self.armed && self.unsaid && self.target().is_some();
        if tells {
            (self.armed, self.unsaid) = (false, false);
        }
        tells
    }
}

/// The event behind what happened at that time: one tick later.
fn timestamp(of: u64) -> [u8; 8] {
    let time = of.saturating_add(1);
    let mut event = TimestampEvent::new();
    event.set(TimestampEvent::TIMESTAMP_7_0, (time & 0xff) as u32);
    event.set(TimestampEvent::TIMESTAMP_EVENT_ID, TIMESTAMP);
    event.set(TimestampEvent::TIMESTAMP_39_8, (time >> 8) as u32);
    event.set(TimestampEvent::TIMESTAMP_52_40, (time >> 40) as u32 & 0x1fff);
    *event.bytes()
}

#[cfg(test)]
mod tests;
