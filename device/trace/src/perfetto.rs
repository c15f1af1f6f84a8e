//! Traces in the Trace Event Format (JSON), which Perfetto and `chrome://tracing` open.
//!
//! Source: "Trace Event Format", the array form, whose closing bracket may be missing: the file of a server that was
//! killed can be read as well. An adapter is a process, each of its units a thread; a unit that does several things at once
//! has as many threads. What takes time is a complete event (`X`), and a work request a flow (`s`, `t`, `f`) of the
//! slices it passes. What was done for it aside (DMA, cache misses) names its flow among its arguments. Times are microseconds with six decimals: picoseconds.
//! Perfetto cuts them off to nanoseconds, beginnings and durations each: what lay apart then still does.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use hca_firmware::commands::find;
use hca_model::trace::{Executed, Record, Unit, Value};
use hca_model::{HcaId, Ps, Start};
use hca_spec::be32;
use hca_spec::command::Opcode;
use serde_json::json;

use crate::follow::{Belongs, Follower, Place, Step, StepKind, done_for, is_aside};

/// Category of slices.
pub const SLICE: &str = "unit";
/// Category of commands that were carried out: instants with the bytes of input and output.
pub const COMMAND: &str = "command";
/// Category of what the server said while it happened: diagnoses, links.
pub const NOTE: &str = "note";
/// Argument that names the flow of what was done aside.
pub(crate) const ASIDE: &str = "flow";
/// Category of flows.
pub const FLOW: &str = "work request";
/// Threads that a unit may have.
const LANES: u32 = 1000;

/// A time in picoseconds as the format wants it.
pub(crate) fn micros(ps: u128) -> String {
    const PS_PER_US: u128 = 1_000_000;
    format!("{}.{:06}", ps / PS_PER_US, ps % PS_PER_US)
}

/// Writes records as they come.
pub struct Writer<W: Write> {
    out: W,
    follower: Follower,
    /// Until when each thread of a unit is busy.
    lanes: HashMap<(HcaId, Unit), Vec<Ps>>,
    /// What was done at an adapter for the event that comes next there.
    asides: HashMap<HcaId, Vec<Record>>,
    first: bool,
    /// Where times are counted from.
    from: Start,
}

impl<W: Write> Writer<W> {
    /// Starts a file about adapters of these names.
    ///
    /// # Errors
    /// Writing failed.
    pub fn new(mut out: W, names: &[String]) -> io::Result<Self> {
        out.write_all(b"[")?;
        let mut writer = Self {
            out,
            follower: Follower::default(),
            lanes: HashMap::new(),
            asides: HashMap::new(),
            first: true,
            from: Start::default(),
        };
        for (i, name) in names.iter().enumerate() {
            let (pid, name) = (process(HcaId(i)), serde_json::Value::from(name.as_str()));
            writer.line(format_args!(
                r#"{{"ph":"M","name":"process_name","pid":{pid},"tid":0,"args":{{"name":{name}}}}}"#
            ))?;
            writer.line(format_args!(
                r#"{{"ph":"M","name":"process_sort_index","pid":{pid},"tid":0,"args":{{"sort_index":{pid}}}}}"#
            ))?;
        }
        Ok(writer)
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        self.out.write_fmt(line)
    }

    /// Writes one record.
    ///
    /// # Errors
    /// Writing failed.
    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        if is_aside(&record.event) {
            self.asides.entry(record.hca).or_default().push(*record);
            return Ok(());
        }
        let start = record.at + record.wait;
        let track = self.track(record.hca, record.event.unit(), start, record.end())?;
        let place = Place { start, hca: record.hca, track };
        let (steps, belongs) = self.follower.steps(record, place);
        if let Some(asides) = self.asides.get_mut(&record.hca).map(std::mem::take) {
            for (aside, is_its) in asides.iter().zip(done_for(&record.event, &asides)) {
                self.aside(aside, belongs.filter(|_| is_its))?;
            }
        }
        let since = |b: Belongs| {
            let before = nanos(start.since(b.before));
            format!("{},\"since_previous_ns\":{before}", whose(&b, start))
        };
        self.slice(record, track, &belongs.map_or(String::new(), since))?;
        steps.iter().try_for_each(|step| self.step(step))
    }

    /// Writes what was done for something, perhaps for a work request.
    fn aside(&mut self, record: &Record, belongs: Option<Belongs>) -> io::Result<()> {
        let start = record.at + record.wait;
        let track = self.track(record.hca, record.event.unit(), start, record.end())?;
        let of = belongs.map_or(String::new(), |b| format!("{},\"{ASIDE}\":{}", whose(&b, start), b.flow));
        self.slice(record, track, &of)
    }

    /// `more`: arguments behind the fields of the event, each after a comma.
    fn slice(&mut self, record: &Record, track: u32, more: &str) -> io::Result<()> {
        let mut args = String::new();
        let mut arg = |name: &str, value: std::fmt::Arguments<'_>| {
            args += &format!(",\"{name}\":{value}");
        };
        record.event.fields(&mut |name, value| match value {
            Value::Number(n) => arg(name, format_args!("{n}")),
            // Names are identifiers, or numbers for those that have none.
            Value::Named(_, what) => arg(name, format_args!("\"{what:?}\"")),
        });
        if record.wait > Ps::ZERO {
            arg("waited_ns", format_args!("{}", nanos(record.wait)));
        }
        args += more;
        let args = args.trim_start_matches(',');
        let (name, pid, ts) =
            (record.event.name(), process(record.hca), self.micros(record.at + record.wait));
        let dur = micros(record.took.0.into());
        self.line(format_args!(
            r#"{{"ph":"X","cat":"{SLICE}","name":"{name}","pid":{pid},"tid":{track},"ts":{ts},"dur":{dur},"args":{{{args}}}}}"#
        ))
    }

    /// The start of time moved. Work requests that are under way then have no beginning.
    pub fn start_moved(&mut self, start: Start) {
        self.from = start;
        self.follower = Follower::default();
        self.asides.clear();
        // Everybody is free: what was busy until later is, too, as long ago.
        self.lanes.values_mut().flatten().for_each(|busy| *busy = Ps::ZERO);
    }

    fn micros(&self, time: Ps) -> String {
        micros(self.from.absolute(time))
    }

    /// Writes a command that was carried out.
    ///
    /// # Errors
    /// Writing failed.
    pub fn command(&mut self, command: &Executed) -> io::Result<()> {
        let opcode = (be32(&command.input, 0) >> 16) as u16;
        let row = Opcode::from_u16(opcode).and_then(find);
        let name = row.map_or_else(|| format!("{opcode:#x}"), |row| row.name.to_owned());
        let args =
            json!({ "slot": command.slot, "input": hex(&command.input), "output": hex(&command.output) });
        self.instant(command.at, command.hca, Unit::Command, (COMMAND, &name), &args)
    }

    /// Writes what else is to be known of an adapter at a time, under that name.
    ///
    /// # Errors
    /// Writing failed.
    pub fn note(&mut self, at: Ps, hca: HcaId, name: &str, args: &serde_json::Value) -> io::Result<()> {
        self.instant(at, hca, Unit::Fault, (NOTE, name), args)
    }

    fn instant(
        &mut self,
        at: Ps,
        hca: HcaId,
        unit: Unit,
        (category, name): (&str, &str),
        args: &serde_json::Value,
    ) -> io::Result<()> {
        // It takes no time: what is under way does not matter.
        let track = self.track(hca, unit, Ps::MAX, Ps::ZERO)?;
        let (pid, ts) = (process(hca), self.micros(at));
        self.line(format_args!(
            r#"{{"ph":"i","s":"t","cat":"{category}","name":"{name}","pid":{pid},"tid":{track},"ts":{ts},"args":{args}}}"#
        ))
    }

    fn step(&mut self, step: &Step) -> io::Result<()> {
        let phase = match step.kind {
            StepKind::First => r#""ph":"s""#,
            StepKind::Middle => r#""ph":"t","bp":"e""#,
            StepKind::Last => r#""ph":"f","bp":"e""#,
        };
        let Place { start, hca, track } = step.place;
        let (pid, ts, id) = (process(hca), self.micros(start), step.flow);
        self.line(format_args!(
            r#"{{{phase},"cat":"{FLOW}","name":"{FLOW}","id":{id},"pid":{pid},"tid":{track},"ts":{ts}}}"#
        ))
    }

    /// The thread of a unit that is free from `start` on; it is busy until `end` then.
    fn track(&mut self, hca: HcaId, unit: Unit, start: Ps, end: Ps) -> io::Result<u32> {
        let place = Unit::ALL.iter().position(|u| *u == unit).unwrap_or_default() as u32;
        let lanes = self.lanes.entry((hca, unit)).or_default();
        let free = lanes.iter().position(|busy| *busy <= start).unwrap_or(lanes.len());
        let lane = free.min(LANES as usize - 1);
        let tid = 1 + place * LANES + lane as u32;
        let new = lane == lanes.len();
        match lanes.get_mut(lane) {
            Some(busy) => *busy = (*busy).max(end),
            None => lanes.push(end),
        }
        if new {
            let name = match lane {
                0 => unit.name().to_string(),
                _ => format!("{} {}", unit.name(), lane + 1),
            };
            let pid = process(hca);
            self.line(format_args!(
                r#"{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"args":{{"name":"{name}"}}}}"#
            ))?;
            self.line(format_args!(
                r#"{{"ph":"M","name":"thread_sort_index","pid":{pid},"tid":{tid},"args":{{"sort_index":{tid}}}}}"#
            ))?;
        }
        Ok(tid)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Writing failed.
    pub fn finish(mut self) -> io::Result<()> {
        let mut asides: Vec<Record> = std::mem::take(&mut self.asides).into_values().flatten().collect();
        asides.sort_by_key(|aside| (aside.hca.0, aside.at));
        asides.iter().try_for_each(|aside| self.aside(aside, None))?;
        self.out.write_all(b"\n]\n")?;
        self.out.flush()
    }

    /// Where it writes.
    pub fn out(&self) -> &W {
        &self.out
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// Writing failed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Bytes as digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

/// Digits as bytes; up to the first that is none.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().as_chunks::<2>().0;
    digits.iter().map_while(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Arguments of what belongs to a work request.
fn whose(b: &Belongs, start: Ps) -> String {
    let (qpn, index, since) = (b.qpn.0, b.index, nanos(start.since(b.begin)));
    format!(",\"wr\":\"{qpn:#x}:{index}\",\"since_doorbell_ns\":{since}")
}

/// Nanoseconds with three decimals.
fn nanos(time: Ps) -> String {
    format!("{}.{:03}", time.0 / 1000, time.0 % 1000)
}

/// The process that stands for an adapter; there is no process 0.
pub(crate) fn process(hca: HcaId) -> usize {
    hca.0 + 1
}
