//! Faults of kernels and programs that are not ours, in cases that meet them now and then.
//!
//! `tests/suites/known.txt` lists them, with how each was seen without an adapter of ours. A case that fails as its entry says is skipped for
//! that reason; one that fails otherwise has failed. That a case is listed does not excuse anything else. Lines of kernels' logs are listed by
//! themselves, and don't count as bad.

use regex::Regex;

use super::{Case, Outcome};

const LIST: &str = include_str!("../../suites/known.txt");
/// Stands for whatever is between two words of what a failure shows.
const GAP: &str = "...";

/// A fault.
#[derive(Debug)]
struct Entry {
    /// Kernels that have it; none: all.
    kernels: Vec<&'static str>,
    /// Words of the case's name.
    case: &'static str,
    /// What the failure shows, in order.
    shows: Vec<&'static str>,
    /// What it is, and how that is known.
    why: &'static str,
}

impl Entry {
    fn new(line: &'static str) -> Self {
        let mut parts = line.splitn(4, '|').map(str::trim);
        let mut next = || parts.next().unwrap_or_else(|| panic!("known.txt: four parts, not '{line}'"));
        let (kernels, case, shows, why) = (next(), next(), next(), next());
        let told = [case, shows, why].iter().all(|part| !part.is_empty());
        assert!(told, "known.txt: '{line}' excuses everything, or for no reason");
        let shows = shows.split(GAP).map(str::trim).collect();
        Self { kernels: kernels.split_whitespace().collect(), case, shows, why }
    }

    fn is_it(&self, kernel: &str, case: &Case) -> bool {
        let mut rest = case.detail.as_str();
        let in_order = self.shows.iter().all(|words| match rest.split_once(words) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        });
        in_order
            && case.name.contains(self.case)
            && (self.kernels.is_empty() || self.kernels.contains(&kernel))
    }
}

/// The section of lines of kernels' logs.
const LINES: &str = "kernel logs";

/// What a kernel's log may say: for [`hca_vm::run::Run::allow_dmesg`].
pub fn lines(kernel: &str) -> Vec<Regex> {
    lines_by(LIST, kernel)
}

fn lines_by(list: &'static str, kernel: &str) -> Vec<Regex> {
    let of = |entry: &Entry| {
        let words: Vec<String> = entry.shows.iter().map(|words| regex::escape(words)).collect();
        Regex::new(&words.join(".*")).expect("words, and gaps between them")
    };
    let entries = entries(list, LINES);
    entries
        .iter()
        .filter(|entry| entry.kernels.is_empty() || entry.kernels.contains(&kernel))
        .map(of)
        .collect()
}

/// Entries of a suite.
fn entries(list: &'static str, suite: &str) -> Vec<Entry> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut wanted, mut entries) = (false, Vec::new());
    for line in lines {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(section) => wanted = section == suite,
            None if wanted => entries.push(Entry::new(line)),
            None => {}
        }
    }
    entries
}

/// Cases of a suite that failed by a known fault of others are skipped, and say so before what they printed.
pub fn excuse(suite: &str, kernel: &str, cases: &mut [Case]) {
    excuse_by(LIST, suite, kernel, cases);
}

fn excuse_by(list: &'static str, suite: &str, kernel: &str, cases: &mut [Case]) {
    let entries = entries(list, suite);
    for case in cases.iter_mut().filter(|case| case.outcome == Outcome::Failed) {
        if let Some(entry) = entries.iter().find(|entry| entry.is_it(kernel, case)) {
            case.outcome = Outcome::Skipped;
            case.detail = format!("known: {}\n{}", entry.why, case.detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a remark\n[x]\n7.2 | pingpong | status 124 ... sent again | it hangs\n[y]\n | other | gone | y's\n";

    fn ended(suite: &str, kernel: &str, name: &str, detail: &str) -> Case {
        let mut cases = [Case::check(name, detail)];
        excuse_by(TEXT, suite, kernel, &mut cases);
        let [case] = cases;
        case
    }

    #[test]
    fn only_what_is_listed_is_excused() {
        let hang = "a: status 124\nb: status 124\nsent again 3";
        let case = ended("x", "7.2", "rc pingpong, from here", hang);
        assert_eq!(case.outcome, Outcome::Skipped);
        assert_eq!(case.detail, format!("known: it hangs\n{hang}"));
        for (suite, kernel, name, detail) in [
            ("x", "6.12", "rc pingpong", hang),
            ("x", "7.2", "rping", hang),
            ("y", "7.2", "rc pingpong", hang),
            ("x", "7.2", "rc pingpong", "a: status 124"),
            ("x", "7.2", "rc pingpong", "sent again\na: status 124"),
            ("x", "7.2", "rc pingpong", "wrong data; sent again"),
        ] {
            assert_eq!(ended(suite, kernel, name, detail).outcome, Outcome::Failed, "{name} on {kernel}");
        }
        assert_eq!(ended("y", "6.1", "rcopy", "all is gone").outcome, Outcome::Failed, "not its name");
        assert_eq!(ended("y", "6.1", "the other", "all is gone").outcome, Outcome::Skipped);
        assert_eq!(ended("x", "7.2", "rc pingpong", "").outcome, Outcome::Passed);
    }

    #[test]
    fn only_listed_lines_may_be_said() {
        const LOG: &str = "[kernel logs]\n7.2 | param show | X(0x805) ... syndrome (0x1) | it asks all\n";
        let may = |kernel, line: &str| lines_by(LOG, kernel).iter().any(|regex| regex.is_match(line));
        assert!(may("7.2", "mlx5: X(0x805) failed, syndrome (0x1), err(-22)"));
        assert!(!may("7.2", "mlx5: X(0x805) failed, syndrome (0x2), err(-22)"));
        assert!(!may("6.12", "mlx5: X(0x805) failed, syndrome (0x1), err(-22)"));
    }

    #[test]
    fn the_list_can_be_read() {
        assert!(!lines("7.2").is_empty());
        for suite in super::super::all() {
            entries(LIST, suite.name);
        }
    }
}
