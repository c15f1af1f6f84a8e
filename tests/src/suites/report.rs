//! The outcome of suites, as a table for people and as JSON.

use std::fmt;

use serde::Serialize;

use super::{Case, Outcome};

/// One suite that was run.
#[derive(Debug, Serialize)]
pub struct Ran {
    /// Its name, with the kernel's behind it if it ran in guests.
    pub suite: String,
    /// Its cases.
    pub cases: Vec<Case>,
    /// Seconds of wall time for the whole.
    pub seconds: f64,
}

impl Ran {
    fn count(&self, outcome: Outcome) -> usize {
        self.cases.iter().filter(|case| case.outcome == outcome).count()
    }

    /// Cases that failed; a suite without cases is a failure of its own.
    pub fn failures(&self) -> usize {
        if self.cases.is_empty() { 1 } else { self.count(Outcome::Failed) }
    }

    /// Each failure with the end of what was printed; empty if there is none.
    pub fn what_failed(&self) -> String {
        let failed = self.cases.iter().filter(|case| case.outcome == Outcome::Failed);
        let mut text: String = failed
            .map(|case| format!("\nFAILED {} / {}\n{}\n", self.suite, case.name, indented(&case.detail)))
            .collect();
        if self.cases.is_empty() {
            text = format!("\nFAILED {}: no case was run\n", self.suite);
        }
        text
    }
}

/// All suites that were run.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// In the order they ran.
    pub suites: Vec<Ran>,
}

impl Summary {
    /// Did everything pass?
    pub fn passed(&self) -> bool {
        self.suites.iter().all(|ran| ran.failures() == 0)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<18} {:>6} {:>7} {:>7} {:>8} {:>8}",
            "suite", "cases", "passed", "failed", "skipped", "s"
        )?;
        for ran in &self.suites {
            let [passed, failed, skipped] =
                [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(|outcome| ran.count(outcome));
            writeln!(
                f,
                "{:<18} {:>6} {passed:>7} {failed:>7} {skipped:>8} {:>8.0}",
                ran.suite,
                ran.cases.len(),
                ran.seconds
            )?;
        }
        self.suites.iter().try_for_each(|ran| write!(f, "{}", ran.what_failed()))
    }
}

/// The end of a text, which says most, moved to the right.
fn indented(text: &str) -> String {
    const LINES: usize = 30;
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let shown = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
    shown.iter().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(outcomes: &[Outcome]) -> Ran {
        let case = |(index, outcome): (usize, &Outcome)| Case::new(index.to_string(), *outcome, 1.0, "why");
        Ran { suite: "s".into(), cases: outcomes.iter().enumerate().map(case).collect(), seconds: 2.0 }
    }

    #[test]
    fn a_failure_is_shown_and_counts() {
        let good = Summary { suites: vec![ran(&[Outcome::Passed, Outcome::Skipped])] };
        assert!(good.passed());
        assert!(!good.to_string().contains("FAILED"));
        let bad = Summary { suites: vec![ran(&[Outcome::Passed, Outcome::Failed])] };
        assert!(!bad.passed());
        assert!(bad.to_string().contains("FAILED s / 1\n    why"), "{bad}");
    }

    #[test]
    fn a_suite_that_ran_nothing_has_failed() {
        assert!(!Summary { suites: vec![ran(&[])] }.passed());
    }
}
