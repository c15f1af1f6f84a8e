//! rdma-core's own tests, judged against a list of those that must be ok.
//!
//! A test skips itself when the adapter does not report a capability. So that a capability left out can't turn
//! a failure into a skip, `tests/suites/must-be-ok.txt` names every test that has to run and pass, and each skip has
//! to be explained in `tests/suites/skips.txt`.

use std::collections::BTreeSet;
use std::time::Duration;

use hca_vm::guest::Copy;
use hca_vm::run::Run;
use serde::Deserialize;

use super::guest::complaints;
use super::{Case, Outcome};
use crate::guests::{file, turn};

const MUST_BE_OK: &str = include_str!("../../suites/must-be-ok.txt");
const SKIPS: &str = include_str!("../../suites/skips.txt");
const ALL: Duration = Duration::from_secs(1800);

/// One line of `rdma_core_tests.py`.
#[derive(Deserialize)]
struct Line {
    test: String,
    result: String,
    seconds: f64,
    reason: String,
}

/// A skip that is expected: words of the test's name, words of its reason, and why that is so.
struct Skip {
    test: &'static str,
    reason: &'static str,
    why: &'static str,
}

/// All of them, in one guest whose adapter is looped back.
pub fn cases(kernel: &str) -> Vec<Case> {
    let copy =
        Copy::parse(&file("guest/rdma_core_tests.py").display().to_string()).expect("a file of this crate");
    let run = Run::new("loopback").kernel(kernel).timeout(ALL).copy(copy).host(
        "a",
        "echo 64 > /proc/sys/vm/nr_hugepages; python3 rdma_core_tests.py; echo; modprobe -r mlx5_ib mlx5_core",
    );
    let report = {
        let _turn = turn();
        match run.run() {
            Ok(report) => report,
            Err(error) => return vec![Case::check("set up", format!("{error:#}"))],
        }
    };
    let output = report.host("a").map_or("", |host| host.output.as_str());
    let lines: Vec<Line> = output
        .lines()
        .filter(|line| line.starts_with('{'))
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let mut cases = judge(&lines, &must_be_ok(), &skips());
    cases.push(Case::check("kernel log", complaints(&report)));
    cases
}

fn must_be_ok() -> BTreeSet<&'static str> {
    words(MUST_BE_OK).collect()
}

fn skips() -> Vec<Skip> {
    words(SKIPS)
        .map(|line| {
            let mut parts = line.splitn(3, '|').map(str::trim);
            let mut next = || parts.next().unwrap_or_else(|| panic!("skips.txt: three parts, not '{line}'"));
            Skip { test: next(), reason: next(), why: next() }
        })
        .collect()
}

/// Lines that are neither empty nor remarks.
fn words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn judge(lines: &[Line], must_be_ok: &BTreeSet<&str>, skips: &[Skip]) -> Vec<Case> {
    let mut cases: Vec<Case> = lines
        .iter()
        .map(|line| {
            let (outcome, detail) = match line.result.as_str() {
                "ok" => (Outcome::Passed, String::new()),
                "skipped" if must_be_ok.contains(line.test.as_str()) => {
                    (Outcome::Failed, format!("must be ok, but was skipped: {}", line.reason))
                }
                "skipped" => match explanation(line, skips) {
                    Some(why) => (Outcome::Skipped, format!("{} ({why})", line.reason)),
                    None => (Outcome::Failed, format!("a skip that nobody has explained: {}", line.reason)),
                },
                other => (Outcome::Failed, format!("{other}: {}", line.reason)),
            };
            Case::new(&line.test, outcome, line.seconds, detail)
        })
        .collect();
    for missing in must_be_ok.iter().filter(|name| lines.iter().all(|line| line.test != **name)) {
        cases.push(Case::check(*missing, "must be ok, but was not run"));
    }
    cases
}

fn explanation(line: &Line, skips: &[Skip]) -> Option<&'static str> {
    skips
        .iter()
        .find(|skip| line.test.contains(skip.test) && line.reason.contains(skip.reason))
        .map(|skip| skip.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(test: &str, result: &str, reason: &str) -> Line {
        Line { test: test.into(), result: result.into(), seconds: 0.0, reason: reason.into() }
    }

    #[test]
    fn a_skip_is_a_failure_unless_explained() {
        let must = BTreeSet::from(["m.ok", "m.gone"]);
        let skips = [Skip { test: "t.", reason: "no dice", why: "because" }];
        let lines = [
            line("m.ok", "skipped", "no dice"),
            line("t.a", "skipped", "no dice here"),
            line("t.b", "skipped", "no luck"),
            line("t.c", "crashed", "SIGSEGV"),
            line("t.d", "ok", ""),
        ];
        let outcomes: Vec<_> =
            judge(&lines, &must, &skips).into_iter().map(|case| (case.name, case.outcome)).collect();
        let expected = [
            ("m.ok", Outcome::Failed),
            ("t.a", Outcome::Skipped),
            ("t.b", Outcome::Failed),
            ("t.c", Outcome::Failed),
            ("t.d", Outcome::Passed),
            ("m.gone", Outcome::Failed),
        ];
        assert_eq!(outcomes, expected.map(|(name, outcome)| (name.to_owned(), outcome)));
    }

    #[test]
    fn the_lists_can_be_read() {
        assert!(must_be_ok().len() >= 100);
        assert!(!skips().is_empty());
        for Skip { test, reason, why } in skips() {
            assert!(!why.is_empty());
            assert!(!(test.is_empty() && reason.is_empty()), "explains everything: {why}");
        }
    }
}
