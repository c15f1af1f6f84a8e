//! The life of one work request, out of a trace file: what happened when, and what it waited for.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::lines::lines;
use crate::perfetto::{ASIDE, FLOW, SLICE};

/// How many work requests a list shows.
const LISTED: usize = 20;
/// Work requests that an error names.
const NAMED: usize = 8;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// When it began, in picoseconds of model time.
    pub at: u64,
    /// How long it took.
    pub took: u64,
    /// How long it waited before: for the unit, a pipeline, cache misses or DMA.
    pub waited: u64,
    /// The adapter's name.
    pub adapter: String,
    /// Place of adapter and unit in a picture.
    pub order: (u64, u64),
    /// Part of the adapter.
    pub unit: String,
    /// What happened.
    pub name: String,
    /// It was done for another step: DMA, cache misses.
    pub aside: bool,
    /// Its fields, by name.
    pub fields: Vec<(String, String)>,
}

impl Step {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// What happened, in a word or two: of reads and writes with what they are of.
    pub(crate) fn label(&self) -> String {
        match self.field("what") {
            Some(what) => format!("{} {what}", self.name),
            None => self.name.clone(),
        }
    }

    /// The fields that the table has no column for.
    fn details(&self) -> String {
        const KNOWN: [&str; 6] = ["waited_ns", "wr", "since_doorbell_ns", "since_previous_ns", "why", ASIDE];
        const HEX: [&str; 8] = ["qpn", "dest_qp", "slid", "dlid", "syndrome", "cqn", "queue", "key"];
        let mut text = String::new();
        for (name, value) in self.fields.iter().filter(|(n, _)| !KNOWN.contains(&n.as_str())) {
            let number = value.parse::<u64>().ok().filter(|_| HEX.contains(&name.as_str()));
            let value = match (name.as_str(), value.parse::<u8>().ok()) {
                ("opcode", Some(code)) if self.unit == "port" || self.unit.starts_with("receive") => {
                    hca_model::trace::operation_name(code).unwrap_or_else(|| value.clone())
                }
                _ => number.map_or_else(|| value.clone(), |n| format!("{n:#x}")),
            };
            _ = write!(text, "{}{name} {value}", if text.is_empty() { "" } else { ", " });
        }
        text
    }

    fn why(&self) -> String {
        let held = |why: &str| match why {
            "ReceiverNotReady" => "the peer had no receive request: its timer runs".to_string(),
            "NoCredit" => "the peer's credits are used up".to_string(),
            "ReadDepth" => "as many reads are outstanding as the peer has resources for".to_string(),
            "Fence" => "a fence: earlier reads come first".to_string(),
            "Window" => "too many packets are in flight".to_string(),
            "Memory" => "requests under way take as much of the adapter's memory as they may".to_string(),
            "PageFault" => "a page is not there: the driver has to bring it".to_string(),
            "Connecting" => "the dynamic connection is being made".to_string(),
            "Timeout" => "no answer came in time".to_string(),
            "SequenceNak" => "the peer missed a packet".to_string(),
            "MissingResponse" => "a response did not come".to_string(),
            other => other.to_string(),
        };
        match self.field("why") {
            Some(why) => held(why),
            None if self.waited > 0 => {
                format!("{} ns more than its own work: queue, pipeline, misses or DMA", nanos(self.waited))
            }
            None => String::new(),
        }
    }
}

/// A work request of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    /// The adapter that it was posted to.
    pub adapter: String,
    /// Its queue pair.
    pub qpn: u64,
    /// Its place in the send queue.
    pub index: u64,
    /// What happened, in order of time.
    pub steps: Vec<Step>,
}

/// Names a work request: queue pair and place in its send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRequest {
    /// The queue pair.
    pub qpn: u64,
    /// Its place in the send queue, which a CQE shows as `wqe_counter`.
    pub index: u64,
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl std::str::FromStr for WorkRequest {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(q, i)| Some((number(q)?, number(i)?)));
        let (qpn, index) = parts.ok_or("QPN:INDEX is wanted, such as 0x42:7")?;
        Ok(Self { qpn, index })
    }
}

/// A trace file that was read.
#[derive(Debug)]
pub struct File {
    slices: Vec<(u64, Step)>,
    /// Places in `slices`, by flow.
    flows: Vec<(u64, Vec<usize>)>,
    /// What held a queue pair (process and number) back or made it send again: places in `slices`.
    held: HashMap<(u64, u64), Vec<usize>>,
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read or is no trace, with the place and the reason.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}: not a trace of softhca", path.display()))
    }

    /// Takes the text of a file; the end may be missing.
    ///
    /// # Errors
    /// It is no trace.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut processes = HashMap::new();
        let mut threads = HashMap::new();
        let mut file = File { slices: Vec::new(), flows: Vec::new(), held: HashMap::new() };
        let mut last = HashMap::new();
        let mut places: HashMap<u64, usize> = HashMap::new();
        for line in lines(text)? {
            let (Some(pid), Some(tid)) = (line.whole("pid"), line.whole("tid")) else {
                bail!("an event without place")
            };
            let named = || line.arg("name").and_then(Value::as_str).unwrap_or_default().to_string();
            match (line.word("ph"), line.word("name")) {
                (Some("M"), Some("process_name")) => _ = processes.insert(pid, named()),
                (Some("M"), Some("thread_name")) => _ = threads.insert((pid, tid), named()),
                (Some("X"), Some(name)) if line.word("cat") == Some(SLICE) => {
                    let show = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
                    let fields = line.args().and_then(Value::as_object).into_iter().flatten();
                    let fields: Vec<_> = fields.map(|(name, value)| (name.clone(), show(value))).collect();
                    let place = file.slices.len();
                    last.insert((pid, tid, line.ps("ts")), place);
                    let of = |name: &str| line.arg(name).and_then(Value::as_u64);
                    if let (true, Some(qpn)) = (matches!(name, "held" | "timeout" | "retry"), of("qpn")) {
                        file.held.entry((pid, qpn)).or_default().push(place);
                    }
                    let aside = of(ASIDE);
                    if let Some(id) = aside {
                        file.belongs(&mut places, id, place);
                    }
                    file.slices.push((
                        pid,
                        Step {
                            at: line.ps("ts"),
                            took: line.ps("dur"),
                            waited: line.waited_ps(),
                            adapter: processes.get(&pid).cloned().unwrap_or_default(),
                            order: (pid, tid),
                            unit: threads.get(&(pid, tid)).cloned().unwrap_or_default(),
                            name: name.to_owned(),
                            aside: aside.is_some(),
                            fields,
                        },
                    ));
                }
                (Some("s" | "t" | "f"), _) if line.word("cat") == Some(FLOW) => {
                    let slice = last.get(&(pid, tid, line.ps("ts")));
                    let (Some(id), Some(&slice)) = (line.whole("id"), slice) else {
                        bail!("a flow that is bound to nothing");
                    };
                    file.belongs(&mut places, id, slice);
                }
                _ => {}
            }
        }
        if processes.is_empty() && file.slices.is_empty() {
            bail!("it has no event of an adapter");
        }
        Ok(file)
    }

    /// A slice is of that flow; `places`: where each flow is.
    fn belongs(&mut self, places: &mut HashMap<u64, usize>, flow: u64, slice: usize) {
        let place = *places.entry(flow).or_insert_with(|| {
            self.flows.push((flow, Vec::new()));
            self.flows.len() - 1
        });
        if let Some((_, slices)) = self.flows.get_mut(place) {
            slices.push(slice);
        }
    }

    /// Every work request, in the order they began.
    pub fn lives(&self) -> impl Iterator<Item = Life> {
        self.flows.iter().filter_map(|(_, slices)| self.life(slices))
    }

    fn life(&self, slices: &[usize]) -> Option<Life> {
        let all = || slices.iter().filter_map(|i| self.slices.get(*i));
        let (pid, start) = all().find(|(_, s)| s.name == "start")?;
        let value = |name| start.field(name).and_then(number);
        let (qpn, index) = (value("qpn")?, value("index")?);
        let mut steps: Vec<Step> = all().map(|(_, s)| s.clone()).collect();
        let (from, to) = (steps.iter().map(|s| s.at).min()?, steps.iter().map(|s| s.at + s.took).max()?);
        // What held its queue pair back, or made it send again, while it lived.
        let held = self.held.get(&(*pid, qpn)).into_iter().flatten();
        let held = held.filter_map(|i| self.slices.get(*i)).filter(|(_, s)| (from..=to).contains(&s.at));
        steps.extend(held.map(|(_, s)| s.clone()));
        steps.sort_by_key(|s| s.at);
        steps.dedup_by(|b, a| {
            // Held at each look for the same reason is said once.
            a.name == "held" && b.name == "held" && a.fields == b.fields
        });
        Some(Life { adapter: start.adapter.clone(), qpn, index, steps })
    }

    /// The life of a work request; of several with the same number (the index is 16 bits wide), the `nth` from 1.
    ///
    /// # Errors
    /// There is none in the trace; the message says which are.
    pub fn find(&self, wr: WorkRequest, adapter: Option<&str>, nth: usize) -> anyhow::Result<Life> {
        let is_it = |l: &Life| {
            (l.qpn, l.index) == (wr.qpn, wr.index) && adapter.is_none_or(|adapter| l.adapter == adapter)
        };
        let found = self.lives().filter(is_it).nth(nth.max(1) - 1);
        found.with_context(|| {
            let mut all: Vec<String> =
                self.lives().map(|l| format!("{}: {:#x}:{}", l.adapter, l.qpn, l.index)).collect();
            let count = all.len();
            all.truncate(NAMED);
            let more = if count > NAMED { format!(" and {} more", count - NAMED) } else { String::new() };
            let known = match count {
                0 => "which has none".to_owned(),
                _ => format!("only {}{more}", all.join(", ")),
            };
            format!(
                "no work request {:#x}:{} is in the trace, {known}; without --wr they are listed",
                wr.qpn, wr.index
            )
        })
    }

    /// A table of the work requests that took longest.
    pub fn list(&self) -> String {
        let mut lives: Vec<Life> = self.lives().collect();
        let count = lives.len();
        lives.sort_by_key(|l| std::cmp::Reverse(l.duration()));
        lives.truncate(LISTED);
        let mut out = format!("{count} work requests; those that took longest:\n");
        _ = writeln!(
            out,
            "{:>16}  {:<14} {:<16} {:<12} {:>9} {:>14}",
            "began at ns", "adapter", "QPN:INDEX", "what", "bytes", "took ns"
        );
        for l in lives {
            let start = l.steps.iter().find(|s| s.name == "start");
            let field = |name| start.and_then(|s| s.field(name)).unwrap_or_default();
            let began = l.steps.first().map_or(0, |s| s.at);
            _ = writeln!(
                out,
                "{:>16}  {:<14} {:<16} {:<12} {:>9} {:>14}",
                nanos(began),
                l.adapter,
                format!("{:#x}:{}", l.qpn, l.index),
                field("opcode"),
                field("length"),
                nanos(l.duration()),
            );
        }
        out
    }
}

fn nanos(ps: u64) -> String {
    format!("{}.{:03}", ps / 1000, ps % 1000)
}

impl Life {
    /// What it asked for: its opcode.
    pub fn what(&self) -> &str {
        let start = self.steps.iter().find(|step| step.name == "start");
        start.and_then(|start| start.field("opcode")).unwrap_or("?")
    }

    /// From the first step to the end of the last, in picoseconds; what was done aside does not count.
    pub fn duration(&self) -> u64 {
        let steps = || self.steps.iter().filter(|s| !s.aside);
        let end = steps().map(|s| s.at + s.took).max().unwrap_or(0);
        end - steps().map(|s| s.at).min().unwrap_or(end)
    }

    /// A table: when each step was (nanoseconds since the first), how long after the end of the ones before it, how
    /// long it took, where, what, and why it waited. What was done aside stands among them.
    pub fn table(&self) -> String {
        let begin = self.steps.first().map_or(0, |s| s.at);
        let mut out = format!(
            "work request {:#x}:{} of {}, from {} ns of model time on: {} ns\n\n",
            self.qpn,
            self.index,
            self.adapter,
            nanos(begin),
            nanos(self.duration())
        );
        let adapter = self.steps.iter().map(|s| s.adapter.len()).max().unwrap_or(0).max(7);
        let unit = self.steps.iter().map(|s| s.unit.len()).max().unwrap_or(0).max(4);
        _ = writeln!(
            out,
            "{:>12} {:>10} {:>10}  {:<adapter$}  {:<unit$}  {:<13}  details",
            "at ns", "after ns", "took ns", "adapter", "unit", "what"
        );
        let mut end = begin;
        let mut sent = false;
        for step in &self.steps {
            let mut why = step.why();
            if step.name == "received" && sent {
                let then = if why.is_empty() { "" } else { ", then " };
                why = format!("was on the way{then}{why}");
            }
            let details = step.details();
            let separator = if why.is_empty() || details.is_empty() { "" } else { "; " };
            _ = writeln!(
                out,
                "{:>12} {:>10} {:>10}  {:<adapter$}  {:<unit$}  {:<13}  {details}{separator}{why}",
                nanos(step.at - begin),
                nanos(step.at.saturating_sub(end)),
                nanos(step.took),
                step.adapter,
                step.unit,
                step.name,
            );
            if !step.aside {
                end = end.max(step.at + step.took);
                sent = step.name == "sent";
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(count: u64) -> File {
        let start = |index: u64| {
            let fields = vec![("qpn".to_owned(), "0x42".to_owned()), ("index".to_owned(), index.to_string())];
            let step = Step {
                at: 10 * index,
                took: 1,
                waited: 0,
                adapter: "a/hca0".into(),
                order: (1, 1),
                unit: "send".into(),
                name: "start".into(),
                aside: false,
                fields,
            };
            (1, step)
        };
        let flows = (0..count).map(|index| (index, vec![index as usize])).collect();
        File { slices: (0..count).map(start).collect(), flows, held: HashMap::new() }
    }

    #[test]
    fn who_asks_for_a_work_request_that_is_not_there_hears_which_are() {
        let refused = |count: u64| {
            let wanted = WorkRequest { qpn: 1, index: 1 };
            file(count).find(wanted, None, 1).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(file(2).find(WorkRequest { qpn: 0x42, index: 1 }, None, 1).is_ok());
        assert!(refused(2).contains("only a/hca0: 0x42:0, a/hca0: 0x42:1;"), "{}", refused(2));
        assert!(refused(100).contains("0x42:7 and 92 more;"), "{}", refused(100));
        assert!(refused(0).contains("which has none;"), "{}", refused(0));
    }
}
