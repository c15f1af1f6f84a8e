//! A trace file line by line: an event each.

use anyhow::Context;
use serde_json::Value;

/// Picoseconds of a microsecond, the unit of a trace file.
const PS_PER_US: f64 = 1e6;

/// An event of a trace file.
pub(crate) struct Line(Value);

/// The events of a file, of which the end may be missing: one that ends within a line is good up to there.
///
/// # Errors
/// It is no trace.
pub(crate) fn lines(text: &str) -> anyhow::Result<impl Iterator<Item = Line>> {
    let lines = text.strip_prefix('[').context("it does not begin with '['")?.lines();
    let events = lines.map(|line| line.trim_end_matches(',')).filter(|line| line.starts_with('{'));
    Ok(events.map_while(|line| serde_json::from_str(line).ok().map(Line)))
}

impl Line {
    /// A text of the event.
    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    /// A whole number of the event.
    pub(crate) fn whole(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(Value::as_u64)
    }

    /// An argument of the event.
    pub(crate) fn arg(&self, name: &str) -> Option<&Value> {
        self.args()?.get(name)
    }

    /// All arguments.
    pub(crate) fn args(&self) -> Option<&Value> {
        self.0.get("args")
    }

    /// A time in picoseconds.
    pub(crate) fn ps(&self, name: &str) -> u64 {
        (self.0.get(name).and_then(Value::as_f64).unwrap_or(0.0) * PS_PER_US).round() as u64
    }

    /// How long it waited before it began, in picoseconds.
    pub(crate) fn waited_ps(&self) -> u64 {
        (self.arg("waited_ns").and_then(Value::as_f64).unwrap_or(0.0) * 1e3).round() as u64
    }

    /// Whether it is of that phase and name.
    pub(crate) fn is(&self, phase: &str, name: &str) -> bool {
        self.word("ph") == Some(phase) && self.word("name") == Some(name)
    }
}
