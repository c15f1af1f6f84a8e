//! Scenarios from a file: many runs under names.
//!
//! ```toml
//! [defaults]                # options of all scenarios, by their long names without --
//! profile = "connectx5"
//! metric = "rate"
//!
//! [[scenario]]
//! name = "small reads"
//! op = "read"
//! size = 8
//! sweep = "window=1..64"    # as --sweep: a run for each
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Error;
use crate::scenario::{Scenario, number};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    defaults: BTreeMap<String, toml::Value>,
    scenario: Vec<BTreeMap<String, toml::Value>>,
}

/// Values that an option takes one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sweep {
    /// The option; empty if there is only one run.
    pub option: String,
    /// Its values.
    pub values: Vec<String>,
}

impl Sweep {
    /// `size=2..8M` in powers of two, or `qps=1,4,16`.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong =
            || Error::new(format!("sweep {text:?}: must be like size=2..8M (powers of two) or qps=1,4,16"));
        let (option, values) = text.split_once('=').ok_or_else(wrong)?;
        let option = option.trim().to_string();
        let Some((from, to)) = values.split_once("..") else {
            return Ok(Self { option, values: values.split(',').map(|v| v.trim().to_string()).collect() });
        };
        let (Some(from), Some(to)) = (number(from), number(to)) else { return Err(wrong()) };
        if from == 0 || from > to {
            return Err(wrong());
        }
        let all = std::iter::successors(Some(from), |n| n.checked_mul(2)).take_while(|n| *n <= to);
        Ok(Self { option, values: all.map(|n| n.to_string()).collect() })
    }

    /// The runs: the scenario with each value, and that value.
    ///
    /// # Errors
    /// A value is none of the option.
    pub fn runs(&self, base: &Scenario) -> Result<Vec<(String, Scenario)>, Error> {
        if self.option.is_empty() {
            return Ok(vec![(String::new(), base.clone())]);
        }
        let run = |value: &String| {
            let mut scenario = base.clone();
            scenario.set(&self.option, value)?;
            Ok((value.clone(), scenario))
        };
        self.values.iter().map(run).collect()
    }
}

/// The runs of a scenario with the values of no sweep, one or two: the options, the values, and what runs. The second sweep goes
/// through its values for each of the first.
///
/// # Errors
/// A value is none of its option, or there are more than two sweeps.
pub fn combine(base: &Scenario, sweeps: &[Sweep]) -> Result<Vec<(String, String, Scenario)>, Error> {
    let (first, second) = match sweeps {
        [] => (Sweep::default(), None),
        [one] => (one.clone(), None),
        [one, two] => (one.clone(), Some(two)),
        _ => return Err(Error::new("--sweep is given twice at most")),
    };
    let mut all = Vec::new();
    for (value, scenario) in first.runs(base)? {
        let Some(second) = second else {
            all.push((first.option.clone(), value, scenario));
            continue;
        };
        for (other, scenario) in second.runs(&scenario)? {
            all.push((format!("{}/{}", first.option, second.option), format!("{value}/{other}"), scenario));
        }
    }
    Ok(all)
}

/// Reads the scenarios of a file.
///
/// # Errors
/// The scenario, the key and the reason.
pub fn parse(text: &str) -> Result<Vec<(Scenario, Sweep)>, Error> {
    let raw: Raw = toml::from_str(text).map_err(|why| Error::new(why.to_string().trim_end()))?;
    let mut all = Vec::new();
    for (i, options) in raw.scenario.iter().enumerate() {
        let name = options.get("name").and_then(toml::Value::as_str);
        let place = name.map_or(format!("scenario {}", i + 1), |name| format!("scenario {name:?}"));
        let mut scenario = Scenario::default();
        let mut sweep = Sweep::default();
        let read = || -> Result<(), Error> {
            for (key, value) in raw.defaults.iter().chain(options) {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
                match key.as_str() {
                    "sweep" => sweep = Sweep::parse(&value)?,
                    key => scenario.set(key, &value)?,
                }
            }
            Ok(())
        };
        let mut read = read;
        read().map_err(|why| why.at(&place))?;
        all.push((scenario, sweep));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[defaults]
metric = "rate"
size = 8

[[scenario]]
name = "reads"
op = "read"
sweep = "window=1..4"

[[scenario]]
name = "large"
size = "64K"
bidirectional = true
"#;

    #[test]
    fn scenarios_have_defaults_and_sweeps() {
        let all = parse(FILE).unwrap();
        let (reads, sweep) = &all[0];
        assert_eq!((reads.name.as_str(), reads.size, all.len()), ("reads", 8, 2));
        let windows: Vec<u64> = sweep.runs(reads).unwrap().into_iter().map(|(_, s)| s.window).collect();
        assert_eq!(windows, [1, 2, 4]);
        let (large, sweep) = &all[1];
        assert_eq!((large.size, large.bidirectional, sweep.runs(large).unwrap().len()), (65536, true, 1));
    }

    #[test]
    fn errors_name_the_scenario_and_the_key() {
        for (from, to, reasons) in [
            ("op = \"read\"", "op = \"reed\"", ["\"reads\"", "op"]),
            ("bidirectional = true", "bidirectional = 7", ["\"large\"", "bidirectional"]),
            ("name = \"large\"\nsize", "sise", ["scenario 2", "sise"]),
            ("window=1..4", "window=4..1", ["\"reads\"", "powers of two"]),
            ("[defaults]", "[default]", ["default", "unknown field"]),
        ] {
            let error = parse(&FILE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(reasons.iter().all(|r| error.contains(r)), "{to}: {error}");
        }
    }

    #[test]
    fn sweeps_are_powers_of_two_or_lists() {
        let sweep = |text| Sweep::parse(text).map(|s| (s.option, s.values.join(" ")));
        assert_eq!(sweep("size=2..16"), Ok(("size".into(), "2 4 8 16".into())));
        assert_eq!(sweep("size=1K..4K"), Ok(("size".into(), "1024 2048 4096".into())));
        assert_eq!(sweep("qps=1,4,16"), Ok(("qps".into(), "1 4 16".into())));
        for wrong in ["size", "size=8..2", "size=0..2", "size=a..b"] {
            assert!(sweep(wrong).unwrap_err().to_string().contains("powers of two"), "{wrong}");
        }
    }
}
