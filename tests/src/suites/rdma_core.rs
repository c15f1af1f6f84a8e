//! rdma-core's own tests, judged against a list of those that must be ok.
//!
//! A test skips itself when the adapter does not report a capability. So that a capability left out can't turn
//! a failure into a skip, `tests/suites/must-be-ok.txt` names every test that has to run and pass, and each skip has
//! to be explained in `tests/suites/skips.txt`.

use std::collections::BTreeSet;
use std::time::Duration;

use hca_vm::run::{Report, Run};
use serde::Deserialize;

use super::guest::complaints;
use super::{Case, Outcome};
use crate::guests::{self, turn};

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

/// A boot: a topology and what is run there.
struct Boot {
    topology: &'static str,
    /// Regular expression of the tests.
    only: &'static str,
    /// What is done before, and further options.
    before: &'static str,
    options: &'static str,
}

/// Tests of the connection manager want IP addresses on the fabric, and so somebody who manages the subnet; those that drive the adapter from user space want it behind an IOMMU and without its kernel driver; those of UAR pages
/// an adapter with BlueFlame.
const BOOTS: [Boot; 4] = [
    Boot {
        topology: "loopback",
        only: "",
        before: "echo 64 > /proc/sys/vm/nr_hugepages",
        options: "--but 'mlx5_vfio|mlx5_uar|rdmacm'",
    },
    Boot { topology: "cable", only: "rdmacm", before: ". /root/cases.sh; manage && ipoib", options: "" },
    Boot { topology: "iommu", only: "mlx5_vfio", before: "slot=$(hca-vfio-bind)", options: "--pci $slot" },
    Boot { topology: "blueflame", only: "mlx5_uar", before: "true", options: "" },
];

/// All of them, each boot in one guest whose adapter is looped back.
pub fn cases(kernel: &str) -> Vec<Case> {
    boot(&BOOTS, kernel, &must_be_ok())
}

/// Those of one boot whose names have one of these words, which `|` separates.
pub fn some(kernel: &str, words: &'static str) -> Vec<Case> {
    let must_be_ok =
        must_be_ok().into_iter().filter(|name| words.split('|').any(|word| name.contains(word))).collect();
    let boots = [Boot { topology: "loopback", only: words, before: "true", options: "" }];
    boot(&boots, kernel, &must_be_ok)
}

fn boot(boots: &[Boot], kernel: &str, must_be_ok: &BTreeSet<&'static str>) -> Vec<Case> {
    let mut lines = Vec::new();
    let mut logs = Vec::new();
    for boot in boots {
        match boot.run(kernel) {
            Ok(report) => {
                let output = report.host("a").map_or("", |host| host.output.as_str());
                lines.extend(output.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()));
                logs.push(Case::check(format!("kernel log: {}", boot.topology), complaints(&report)));
            }
            Err(error) => logs.push(Case::check(format!("set up: {}", boot.topology), format!("{error:#}"))),
        }
    }
    let mut cases = judge(&lines, must_be_ok, &skips());
    cases.extend(logs);
    cases
}

impl Boot {
    fn run(&self, kernel: &str) -> anyhow::Result<Report> {
        let Self { topology, only, before, options } = self;
        let job = format!(
            "{before}; python3 rdma_core_tests.py --only '{only}' {options}; modprobe -r mlx5_ib mlx5_core"
        );
        let _turn = turn();
        Run::new(*topology)
            .kernel(kernel)
            .timeout(ALL)
            .copy(guests::copy("guest/rdma_core_tests.py"))
            .copy(guests::copy("guest/cases.sh"))
            .host("a", job)
            .watch(|_, line| {
                if let Ok(Line { test, result, .. }) = serde_json::from_str(line) {
                    eprintln!("  {result}: {test}");
                }
            })
            .run()
    }
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
