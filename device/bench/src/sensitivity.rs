//! How far the errors move when a number of a profile is off: each number up and down, in all profiles at the same time, against
//! published rows.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::compare::{Comparison, Overrides, compare};
use crate::map::{Map, Run};
use crate::numbers::{self, Number};
use crate::rows::Row;
use crate::{Error, stats};

/// A row, as far as it is judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Line of the row in its file.
    pub line: usize,
    /// Source of the row.
    pub source: String,
    /// Profile of the adapters.
    pub profile: String,
    /// The published value.
    pub measured: f64,
    /// The model's.
    pub modelled: f64,
}

/// What a number of the profiles does to the rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// `section.key`.
    pub key: String,
    /// It counts something, and stays whole.
    pub whole: bool,
    /// By profile: its value, and what that rests on.
    pub values: BTreeMap<String, (f64, String)>,
    /// The model's values with less of it, in the order of the rows.
    pub low: Vec<f64>,
    /// With more of it.
    pub high: Vec<f64>,
}

/// What all of them do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Responses {
    /// By how much a number was less and more, as a share.
    pub by: f64,
    /// The rows.
    pub places: Vec<Place>,
    /// The numbers.
    pub numbers: Vec<Response>,
}

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// By how much numbers are off, as a share.
    pub by: f64,
    /// One of so many rows of each group.
    pub sample: usize,
    /// Runs at the same time.
    pub jobs: usize,
}

impl Choice {
    /// The comparison of the rows chosen.
    fn compare(&self, rows: &[Row], map: &Map, overrides: &Overrides) -> Result<Comparison, Error> {
        let seen: RefCell<BTreeMap<String, usize>> = RefCell::default();
        let keep = |run: &Run| {
            let mut seen = seen.borrow_mut();
            let count = seen.entry(run.group.clone()).or_default();
            *count += 1;
            (*count - 1).is_multiple_of(self.sample.max(1))
        };
        let found = compare(rows, map, overrides, self.jobs, keep)?;
        match found.failed.first() {
            Some(why) => Err(Error::new(why.clone())),
            None => Ok(found),
        }
    }
}

/// Runs the rows with each number less and more than it is. `told` hears how far it is.
///
/// # Errors
/// A rule is wrong for a row, or a run failed.
pub fn measure(
    rows: &[Row],
    map: &Map,
    choice: &Choice,
    mut told: impl FnMut(&str),
) -> Result<Responses, Error> {
    let base = choice.compare(rows, map, &Vec::new())?;
    let places: Vec<Place> = base
        .points
        .iter()
        .map(|p| Place {
            line: p.line,
            source: p.source.clone(),
            profile: p.profile.clone(),
            measured: p.measured,
            modelled: p.modelled,
        })
        .collect();
    let mut by_key: BTreeMap<String, BTreeMap<String, Number>> = BTreeMap::new();
    for place in &places {
        for number in numbers::of_profile(&place.profile)? {
            by_key.entry(number.key.clone()).or_default().entry(place.profile.clone()).or_insert(number);
        }
    }
    let mut found = Vec::new();
    for (key, profiles) in by_key {
        let moved = |factor: f64| -> Result<Vec<f64>, Error> {
            let overrides: Overrides = profiles
                .iter()
                .filter_map(|(name, n)| Some((Some(name.clone()), format!("{key}={}", n.scaled(factor)?))))
                .collect();
            if overrides.is_empty() {
                return Ok(places.iter().map(|p| p.modelled).collect());
            }
            Ok(choice.compare(rows, map, &overrides)?.points.iter().map(|p| p.modelled).collect())
        };
        told(&key);
        let (low, high) = (moved(1.0 - choice.by)?, moved(1.0 + choice.by)?);
        let whole = profiles.values().any(|n| n.whole);
        let values = profiles.into_iter().map(|(name, n)| (name, (n.value, n.rests_on))).collect();
        found.push(Response { key, whole, values, low, high });
    }
    Ok(Responses { by: choice.by, places, numbers: found })
}

/// Median and 90th percentile of absolute errors.
pub(crate) fn errors(pairs: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let all = pairs.filter(|(measured, _)| *measured > 0.0);
    let sorted = stats::sorted(all.map(|(measured, modelled)| (modelled / measured - 1.0).abs()));
    (stats::percentile(&sorted, 50.0), stats::percentile(&sorted, 90.0))
}

/// From which change of its value on a row counts as moved.
const MOVED: f64 = 0.005;

impl Response {
    /// How many times the number of `profile` is with more of it what it is with less of it: what counts something is rounded.
    /// 1 if it is the same, or there is no such number.
    pub fn ratio(&self, profile: &str, by: f64) -> f64 {
        let Some((value, _)) = self.values.get(profile) else { return 1.0 };
        let number = Number { key: String::new(), value: *value, whole: self.whole, rests_on: String::new() };
        let at = |factor: f64| number.at(factor);
        if at(1.0 - by) > 0.0 { at(1.0 + by) / at(1.0 - by) } else { 1.0 }
    }
}

impl Responses {
    /// As JSON, with a line for each row and each number.
    ///
    /// # Errors
    /// A value can't be written.
    pub fn json(&self) -> Result<String, Error> {
        fn lines<T: Serialize>(all: &[T]) -> Result<String, Error> {
            let line = |one| serde_json::to_string(one).map_err(|why| Error::new(why.to_string()));
            Ok(all.iter().map(line).collect::<Result<Vec<String>, Error>>()?.join(",\n"))
        }
        let (places, numbers) = (lines(&self.places)?, lines(&self.numbers)?);
        Ok(format!("{{\"by\":{},\n\"places\":[\n{places}\n],\n\"numbers\":[\n{numbers}\n]}}\n", self.by))
    }

    /// The page: for each profile a table of the numbers that rows feel, those that move most first.
    /// One of `sample` rows of each group was asked.
    pub fn page(&self, sample: usize) -> String {
        let by = self.by * 100.0;
        let mut out = format!(
            "# What each number rests on, and what it moves\n\n\
             Made by `softhca bench sensitivity specs/timing/calibration.csv --map specs/timing/calibration.toml --sample {sample} --responses\n\
             specs/timing/responses.json --page specs/timing/SENSITIVITY.md`: every number of a profile that packets may feel, {by:.0} % less and {by:.0} % more, against the published\n\
             rows. Errors are median and 90th percentile of all rows of the profile that were asked; *moved* is the share of them whose value changes by 0.5 % and\n\
             more. A number that is 0, or that is the same again when it is rounded, is not moved.\n"
        );
        let profiles: std::collections::BTreeSet<&str> =
            self.places.iter().map(|p| p.profile.as_str()).collect();
        for profile in profiles {
            let _ = self.section(&mut out, profile);
        }
        out
    }

    fn section(&self, out: &mut String, profile: &str) -> std::fmt::Result {
        let own: Vec<usize> = (0..self.places.len())
            .filter(|i| self.places.get(*i).is_some_and(|p| p.profile == profile))
            .collect();
        let of = |values: &[f64]| {
            let pair = |i: &usize| Some((self.places.get(*i)?.measured, *values.get(*i)?));
            errors(own.iter().filter_map(pair))
        };
        let base: Vec<f64> = self.places.iter().map(|p| p.modelled).collect();
        let (median, p90) = of(&base);
        let percent = |v: f64| format!("{:.1}", v * 100.0);
        writeln!(
            out,
            "\n## {profile}: {} rows, median {} %, 90th percentile {} %\n\n\
             | number | value | rests on | less: median, 90 % | more: median, 90 % | moved |\n|---|---|---|---|---|---|",
            own.len(),
            percent(median),
            percent(p90)
        )?;
        let (mut lines, mut still) = (Vec::new(), Vec::new());
        for number in &self.numbers {
            let Some((value, rests_on)) = number.values.get(profile) else { continue };
            let moved = own
                .iter()
                .filter(|i| {
                    let at = |v: &[f64]| v.get(**i).copied().unwrap_or_default();
                    let far = |v: &[f64]| (at(v) / at(&base) - 1.0).abs() > MOVED;
                    far(&number.low) || far(&number.high)
                })
                .count();
            if moved == 0 {
                still.push(format!("`{}`", number.key));
                continue;
            }
            let (low, high) = (of(&number.low), of(&number.high));
            let weight =
                (low.0 - median).abs() + (high.0 - median).abs() + (low.1 - p90).abs() + (high.1 - p90).abs();
            let line = format!(
                "| `{}` | {value} | {} | {}, {} | {}, {} | {:.0} % |",
                number.key,
                rests_on.replace('|', "\\|"),
                percent(low.0),
                percent(low.1),
                percent(high.0),
                percent(high.1),
                moved as f64 * 100.0 / own.len().max(1) as f64
            );
            lines.push((weight, line));
        }
        lines.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, line) in lines {
            writeln!(out, "{line}")?;
        }
        match still.is_empty() {
            true => Ok(()),
            false => writeln!(out, "\nNo row that was asked feels {}.", still.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_moves_and_what_does_not() {
        let place = |measured, modelled| Place {
            line: 2,
            source: "S".into(),
            profile: "p".into(),
            measured,
            modelled,
        };
        let number = |key: &str, low: [f64; 2], high: [f64; 2]| Response {
            key: key.into(),
            whole: false,
            values: [("p".to_string(), (7.0, "estimate".to_string()))].into(),
            low: low.to_vec(),
            high: high.to_vec(),
        };
        let all = Responses {
            by: 0.2,
            places: vec![place(100.0, 110.0), place(100.0, 90.0)],
            numbers: vec![
                number("a.still_ns", [110.0, 90.0], [110.0, 90.0]),
                number("a.little_ns", [109.0, 90.0], [111.0, 90.0]),
                number("a.much_ns", [80.0, 60.0], [150.0, 120.0]),
            ],
        };
        assert_eq!(serde_json::from_str::<Responses>(&all.json().unwrap()).unwrap(), all);
        let page = all.page(1);
        assert!(page.contains("## p: 2 rows, median 10.0 %, 90th percentile 10.0 %"), "{page}");
        let (much, little) = (page.find("a.much_ns").unwrap(), page.find("a.little_ns").unwrap());
        assert!(
            much < little
                && page.contains("| `a.much_ns` | 7 | estimate | 30.0, 38.0 | 35.0, 47.0 | 100 % |"),
            "{page}"
        );
        assert!(
            page.contains("| 50 % |") && page.contains("No row that was asked feels `a.still_ns`."),
            "{page}"
        );
    }
}
