//! What adapters diagnosed of the guests' drivers and programs while a suite ran: every message has to be one that a test provokes.
//!
//! `tests/suites/diagnoses.txt` lists those, with reasons. A message that no entry explains fails the suite, and so does an entry that
//! explains nothing or is for a case that there is not, if the suite ran to its end: a false alarm can't hide behind it. Suites that the list does not name are counted, not judged.

use std::collections::BTreeMap;
use std::fmt::Write;

use hca_vm::diagnoses::PRINTED;
use hca_vm::run::Report;
use serde_json::Value;

use super::{Case, Outcome};

const LIST: &str = include_str!("../../suites/diagnoses.txt");
/// In place of kernels: it is a matter of time whether it is heard.
const AT_TIMES: &str = "?";
/// Stands for whatever is between two words of a message.
const GAP: &str = "...";
/// A message is heard up to a fifth of a second late, or later on a busy machine: it may be of one of so many cases before the one that it came in,
const LATE: usize = 3;
/// or of one that ended so many seconds before that one began.
const SOON: f64 = 1.0;
/// Unexplained messages that are shown.
const SHOWN: usize = 40;

/// An expected message.
#[derive(Debug)]
struct Entry {
    /// Kernels on which it is expected to occur; none: on all; [`AT_TIMES`]: it need not.
    kernels: Vec<&'static str>,
    /// Words of the case's name.
    case: &'static str,
    /// Words of the message, in order.
    message: Vec<&'static str>,
}

impl Entry {
    fn new(line: &'static str) -> Self {
        let mut parts = line.splitn(4, '|').map(str::trim);
        let mut next = || parts.next().unwrap_or_else(|| panic!("diagnoses.txt: four parts, not '{line}'"));
        let (kernels, case, message, why) = (next(), next(), next(), next());
        assert!(
            !message.is_empty() && !why.is_empty(),
            "diagnoses.txt: '{line}' explains everything, or nothing"
        );
        let message = message.split(GAP).map(str::trim).collect();
        Self { kernels: kernels.split_whitespace().collect(), case, message }
    }

    fn explains<'a>(&self, mut cases: impl Iterator<Item = &'a str>, message: &str) -> bool {
        let mut rest = message;
        let said = self.message.iter().all(|words| match rest.split_once(words) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        });
        said && cases.any(|case| case.contains(self.case))
    }

    fn is_due(&self, kernel: &str) -> bool {
        self.kernels.is_empty() || self.kernels.contains(&kernel) && kernel != AT_TIMES
    }

    /// Whether it may be said on that kernel.
    fn may_be(&self, kernel: &str) -> bool {
        self.is_due(kernel) || self.kernels.contains(&AT_TIMES)
    }
}

/// Entries of a suite; `None`: the list does not name it.
fn entries(list: &'static str, suite: &str) -> Option<Vec<Entry>> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut named, mut wanted, mut entries) = (false, false, Vec::new());
    for line in lines {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(section) => {
                wanted = section.split_whitespace().any(|name| name == suite);
                named |= wanted;
            }
            None if wanted => entries.push(Entry::new(line)),
            None => {}
        }
    }
    named.then_some(entries)
}

/// The messages of a run: for each, how many bytes a host had printed when it came, and what it says.
pub fn of_host<'a>(report: &'a Report, host: &str) -> Vec<(usize, &'a str)> {
    let printed = |diagnosis: &Value| {
        diagnosis.get(PRINTED)?.get(host)?.as_u64().and_then(|bytes| usize::try_from(bytes).ok())
    };
    let text = |diagnosis: &'a Value| diagnosis.get("text").and_then(Value::as_str).unwrap_or_default();
    report.diagnoses.iter().map(|d| (printed(d).unwrap_or(usize::MAX), text(d))).collect()
}

/// All messages of a run, as those of this case.
pub fn all(mut case: Case, report: &Report) -> Case {
    case.diagnoses.extend(of_host(report, "").into_iter().map(|(_, text)| text.to_owned()));
    case
}

/// The cases that a message may be of that came in the one at `place`, the last ones first.
fn near(cases: &[Case], place: usize) -> impl Iterator<Item = &Case> {
    let mut since = 0.0;
    cases.iter().take(place + 1).rev().enumerate().map_while(move |(back, case)| {
        let is_near = back <= LATE || since < SOON;
        since += if back > 0 { case.seconds } else { 0.0 };
        is_near.then_some(case)
    })
}

/// The case that says what adapters have diagnosed in all of a suite's.
pub fn judge(suite: &str, kernel: &str, cases: &[Case]) -> Case {
    judge_by(LIST, suite, kernel, cases)
}

fn judge_by(list: &'static str, suite: &str, kernel: &str, cases: &[Case]) -> Case {
    let total: usize = cases.iter().map(|case| case.diagnoses.len()).sum();
    let listed = entries(list, suite);
    let (entries, is_judged) = (listed.as_deref().unwrap_or_default(), listed.is_some());
    let mut explained = vec![false; entries.len()];
    let mut others: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (i, case) in cases.iter().enumerate() {
        let near = || near(cases, i).map(|case| case.name.as_str());
        for message in &case.diagnoses {
            // It may be of several cases, each with an entry of its own.
            let mut is_explained = false;
            for (entry, said) in entries.iter().zip(&mut explained) {
                let explains = entry.explains(near(), message);
                *said |= explains;
                is_explained |= explains;
            }
            if !is_explained {
                *others.entry((&case.name, message)).or_default() += 1;
            }
        }
    }
    let unexplained: usize = others.values().sum();
    let mut detail = format!("{total} messages, {unexplained} unexplained");
    for ((case, message), count) in others.iter().take(SHOWN) {
        _ = write!(detail, "\n{count} in {case}: {message}");
    }
    // What a test did not get to, it did not provoke.
    let complete = cases.iter().all(|case| case.outcome != Outcome::Failed);
    let never = entries.iter().zip(&explained).filter(|(entry, said)| !**said && entry.is_due(kernel));
    let never: Vec<String> = never.map(|(entry, _)| entry.message.join(GAP)).collect();
    for message in &never {
        _ = write!(detail, "\nlisted, and never said: {message}");
    }
    // Such an entry would explain nothing, ever.
    let is_there = |entry: &Entry| cases.iter().any(|case| case.name.contains(entry.case));
    let nowhere: Vec<&Entry> =
        entries.iter().filter(|entry| entry.may_be(kernel) && !is_there(entry)).collect();
    for Entry { case, message, .. } in &nowhere {
        _ = write!(detail, "\nlisted for '{case}', which is in no case's name: {}", message.join(GAP));
    }
    let failed = is_judged && (unexplained > 0 || complete && !(never.is_empty() && nowhere.is_empty()));
    let outcome = match (is_judged, failed) {
        (false, _) => Outcome::Skipped,
        (true, true) => Outcome::Failed,
        (true, false) => Outcome::Passed,
    };
    Case::new("diagnoses", outcome, 0.0, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a remark\n[x y]\n | provokes | QP ... key ... [key-exists] | a wrong key\n6.1 | | old | of 6.1\n? | | power | cut\n[z]\n[w]\n? | noone | once | of a case that had another name\n[v]\n | two | same | why\n | one | same | why\n";

    fn case(name: &str, said: &[&str]) -> Case {
        let diagnoses = said.iter().map(|text| (*text).to_owned()).collect();
        Case { diagnoses, ..Case::check(name, "") }
    }

    #[test]
    fn what_is_listed_and_said_is_fine() {
        let key = "QP 0x40: key: found 0x1 [key-exists]";
        let outcome = |suite, kernel, cases: &[Case]| judge_by(TEXT, suite, kernel, cases).outcome;
        let good = [case("it provokes it", &[key]), case("other", &[])];
        assert_eq!(outcome("x", "6.12", &good), Outcome::Passed);
        // Heard late.
        let late = [case("it provokes it", &[]), case("other", &[key])];
        assert_eq!(outcome("y", "6.12", &late), Outcome::Passed);
        assert_eq!(outcome("y", "6.1", &late), Outcome::Failed, "of 6.1 another one is expected");
        assert_eq!(outcome("x", "6.12", &[case("it provokes it", &[])]), Outcome::Failed);
        // Two cases provoke the same, one behind the other: who of them was heard is not to be told.
        let both = [case("one", &[]), case("two", &["same"])];
        assert_eq!(outcome("v", "6.12", &both), Outcome::Passed);
        let cut = [case("it provokes it", &[key]), case("end", &["power"])];
        assert_eq!(outcome("x", "6.12", &cut), Outcome::Passed);
        assert_eq!(outcome("z", "6.12", &[case("a", &[])]), Outcome::Passed);
        assert_eq!(outcome("z", "6.12", &[case("a", &[key])]), Outcome::Failed);
        assert_eq!(outcome("w", "6.12", &[case("somebody", &[])]), Outcome::Failed, "no such case");
        assert_eq!(outcome("w", "6.12", &[case("noone", &[])]), Outcome::Passed);
        assert_eq!(outcome("unnamed", "6.12", &[case("a", &[key])]), Outcome::Skipped);
        let elsewhere = [case("other", &[key])];
        let judged = judge_by(TEXT, "x", "6.12", &elsewhere);
        assert!(
            judged.detail.contains("1 messages, 1 unexplained\n1 in other: QP 0x40"),
            "{}",
            judged.detail
        );
    }

    #[test]
    fn messages_come_late() {
        let cases = |seconds| {
            let of = |i: usize| Case { seconds, ..case(&format!("case {i}"), &[]) };
            (0..20).map(of).collect::<Vec<_>>()
        };
        let names = |seconds| near(&cases(seconds), 15).map(|case| case.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(5.0), ["case 15", "case 14", "case 13", "case 12"]);
        assert_eq!(names(0.125).last().map(String::as_str), Some("case 7"), "what ended within a second");
    }

    #[test]
    fn the_list_can_be_read() {
        for suite in super::super::all() {
            entries(LIST, suite.name);
        }
    }
}
