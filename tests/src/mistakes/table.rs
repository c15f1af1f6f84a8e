//! The table of mistakes: run, judged, printed.

use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use hca_driver::Error;

use super::bench::Bench;
use super::{AREAS, Act, Mistake, Said};

/// What is to be there: mistakes, and of them those that are named with all five parts.
const MISTAKES: usize = 110;
const NAMED: usize = 100;

/// How well a mistake is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Object, field, what was found and expected, and the rule.
    Named,
    /// Something was said, but not all of that, or of something else.
    Partly,
    /// Nothing was said.
    Silent,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Named => "named",
            Self::Partly => "partly",
            Self::Silent => "SILENT",
        })
    }
}

/// A mistake that was made.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its area.
    pub area: &'static str,
    /// What was done.
    pub what: &'static str,
    /// What the driver got beside what was said.
    pub driver: String,
    /// What was said, the best of it.
    pub said: String,
    /// How well.
    pub verdict: Verdict,
    /// What was said of the twin, or why it failed; nothing, if all is well.
    pub twin: Vec<String>,
}

/// Every mistake.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// In order of areas.
    pub rows: Vec<Row>,
}

/// Makes the mistake, or the twin.
fn make(mistake: &Mistake, wrong: bool) -> (Vec<Said>, Vec<Error>) {
    match mistake.act {
        Act::Server(act) => (act(wrong), Vec::new()),
        Act::Driver(act) => {
            let mut bench = Bench::new(wrong, mistake);
            act(&mut bench);
            bench.end()
        }
        Act::Command(opcode, spoil) => {
            let mut bench = Bench::new(wrong, mistake);
            let mut hca = bench.open(0);
            let fixture = bench.fixture(&mut hca);
            let mut command = bench.template(opcode, &fixture);
            if wrong {
                spoil(&mut command);
            }
            let sent = Bench::send(&mut hca, opcode, command);
            bench.note(sent);
            bench.keep(hca);
            bench.end()
        }
    }
}

fn attempt(mistake: &Mistake, wrong: bool) -> Result<(Vec<Said>, Vec<Error>), String> {
    catch_unwind(AssertUnwindSafe(|| make(mistake, wrong))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or(panic.downcast_ref::<&str>().map(|text| (*text).into())).unwrap_or_default()
    })
}

fn judge(area: &'static str, mistake: &Mistake) -> Row {
    let Mistake { what, field, before, .. } = *mistake;
    let told = |said: &Said| before.and_then(|words| said.before.iter().find(|b| b.contains(words)).cloned());
    let is_it = |said: &&Said| {
        let whole = said.parts.as_ref().is_some_and(|p| p.field == field && p.is_whole());
        whole && told(said).is_some() == before.is_some()
    };
    let (said, driver) = match attempt(mistake, true) {
        Ok(made) => made,
        Err(why) => (Vec::new(), vec![Error::Unsupported(leak(why))]),
    };
    let driver: Vec<String> = driver.iter().map(Error::to_string).collect();
    let named = said.iter().find(is_it);
    let (verdict, best) = match named.or(said.first()) {
        Some(best) if named.is_some() => {
            let before = told(best).map_or(String::new(), |what| format!("; before: {what}"));
            (Verdict::Named, best.text.clone() + &before)
        }
        Some(best) => (Verdict::Partly, best.text.clone()),
        None => (Verdict::Silent, String::new()),
    };
    let twin = match attempt(mistake, false) {
        Ok((said, driver)) => {
            let refused = driver.iter().map(Error::to_string);
            said.into_iter().map(|said| said.text).chain(refused).collect()
        }
        Err(why) => vec![format!("panicked: {why}")],
    };
    Row { area, what, driver: driver.join("; "), said: best, verdict, twin }
}

/// A text that a row keeps; there are few.
fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// Makes every mistake whose area or description contains `filter`.
pub fn run(filter: &str) -> Table {
    let all = AREAS.iter().flat_map(|(area, mistakes)| mistakes.iter().map(move |m| (*area, m)));
    let wanted = all.filter(|(area, mistake)| area.contains(filter) || mistake.what.contains(filter));
    Table { rows: wanted.map(|(area, mistake)| judge(area, mistake)).collect() }
}

impl Table {
    fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// Whether none is silent, and no twin speaks.
    pub fn is_good(&self) -> bool {
        self.count(Verdict::Silent) == 0 && self.rows.iter().all(|row| row.twin.is_empty())
    }

    /// Whether there are as many as there are to be, and as many of them named.
    pub fn is_complete(&self) -> bool {
        self.rows.len() >= MISTAKES && self.count(Verdict::Named) >= NAMED
    }

    /// The last line.
    pub fn summary(&self) -> String {
        let count = |verdict| self.count(verdict);
        let twins = self.rows.iter().filter(|row| !row.twin.is_empty()).count();
        format!(
            "{} mistakes: {} named with object, field, found, expected and rule, {} partly, {} silent; {twins} twins speak",
            self.rows.len(),
            count(Verdict::Named),
            count(Verdict::Partly),
            count(Verdict::Silent),
        )
    }

    /// The table as a page's: area, mistake, what was said, verdict.
    pub fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|");
        let mut out = String::from("| area | what was done | what was said | verdict |\n|---|---|---|---|\n");
        for row in &self.rows {
            let (what, said) = (cell(row.what), cell(&row.said));
            let _ = writeln!(out, "| {} | {what} | {said} | {} |", row.area, row.verdict);
        }
        out
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            writeln!(f, "{:<7} {}: {}", row.verdict, row.area, row.what)?;
            writeln!(f, "        {}", row.said)?;
            if !row.driver.is_empty() {
                writeln!(f, "        driver: {}", row.driver)?;
            }
            for said in &row.twin {
                writeln!(f, "        TWIN: {said}")?;
            }
        }
        writeln!(f, "{}", self.summary())
    }
}
