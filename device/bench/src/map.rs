//! From published rows to scenarios: rules that are data. `specs/timing/MAP.md` describes the format.
//!
//! A rule looks at every column of a row but its value, and names groups of its regular expressions that become
//! variables; its options are texts with `{variable}` or `{threads * 2}` in them.

use std::collections::BTreeMap;

use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::rows::Row;
use crate::scenario::Scenario;

/// The rules of a file.
#[derive(Debug, Clone)]
pub struct Map {
    rules: Vec<Rule>,
}

/// What a row becomes.
#[derive(Debug, Clone, PartialEq)]
pub enum Mapped {
    /// A run.
    Run(Box<Run>),
    /// It is not modelled, for that reason.
    Not(String),
}

/// A run that answers a row, or a part of its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Which of the row's values, from 0.
    pub part: usize,
    /// The rule's name.
    pub rule: String,
    /// Rows are summed up by group.
    pub group: String,
    /// Name of the curve that it is a point of, and the place there.
    pub curve: Option<(String, f64)>,
    /// Where the curve is drawn.
    pub figure: Option<Figure>,
    /// What to take from the outcome.
    pub quantity: Quantity,
    /// Why the model is believed to be wrong here, if that is known.
    pub note: Option<String>,
    /// What to run.
    pub scenario: Scenario,
}

/// What of an outcome answers a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// The shortest latency.
    Min,
    /// The median latency.
    P50,
    /// The mean latency.
    Avg,
    /// The 99th percentile of latency.
    P99,
    /// The 99.9th percentile of latency.
    P999,
    /// Operations per second, of all adapters together.
    Rate,
    /// Operations per second of one initiating adapter.
    RateEach,
    /// Payload bytes per second.
    Bandwidth,
    /// Cache lines that the first initiator reads over PCIe per second.
    PcieReadLines,
}

/// Where a curve is drawn.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Name of the file, without `.svg`.
    pub file: String,
    /// Its title.
    pub title: String,
    /// The horizontal axis.
    pub x: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMap {
    #[serde(default)]
    base: BTreeMap<String, BTreeMap<String, toml::Value>>,
    #[serde(default)]
    figure: Vec<Figure>,
    rule: Vec<RawRule>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    name: String,
    #[serde(default)]
    r#match: BTreeMap<String, String>,
    part: Option<usize>,
    unmapped: Option<String>,
    group: Option<String>,
    curve: Option<String>,
    x: Option<String>,
    figure: Option<String>,
    quantity: Option<Quantity>,
    note: Option<String>,
    #[serde(default)]
    base: Vec<String>,
    #[serde(default)]
    run: BTreeMap<String, toml::Value>,
}

#[derive(Debug, Clone)]
struct Rule {
    raw: RawRule,
    matches: Vec<(String, Regex)>,
    figure: Option<Figure>,
    /// Options of the bases, then the rule's own.
    options: Vec<(String, String)>,
}

impl Map {
    /// Reads rules.
    ///
    /// # Errors
    /// The rule, the key and the reason.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let raw: RawMap = toml::from_str(text).map_err(|why| Error::new(why.to_string().trim_end()))?;
        let mut rules = Vec::new();
        for rule in raw.rule {
            let name = rule.name.clone();
            rules.push(
                Rule::new(rule, &raw.base, &raw.figure).map_err(|why| why.at(format!("rule {name:?}")))?,
            );
        }
        Ok(Self { rules })
    }

    /// The runs that answer a row: one, or one for each part of its value that a rule maps; or the reason why there is
    /// none. The first rule that fits decides.
    ///
    /// # Errors
    /// An option of the rule is wrong for this row, or the row has text for a number.
    pub fn apply(&self, row: &Row) -> Result<Vec<Mapped>, Error> {
        let mut found = Vec::new();
        let parts = row.values.len();
        for part in 0..parts {
            let fits = |rule: &&Rule| match rule.raw.part {
                Some(wanted) => wanted == part + 1 && parts > 1,
                None => parts == 1 || rule.raw.unmapped.is_some(),
            };
            let mut rules = self.rules.iter().filter(fits);
            let Some((rule, variables)) = rules.find_map(|rule| Some((rule, rule.variables(row)?))) else {
                continue;
            };
            let mapped = match &row.unreadable {
                Some(why) if rule.raw.unmapped.is_none() => Err(Error::new(why.clone())),
                _ => rule.apply(part, &variables),
            };
            found.push(mapped.map_err(|why| why.at(format!("rule {:?}", rule.raw.name)))?);
        }
        if found.is_empty() {
            found.push(Mapped::Not("no rule fits".into()));
        }
        found.dedup();
        Ok(found)
    }
}

impl Rule {
    fn new(
        raw: RawRule,
        bases: &BTreeMap<String, BTreeMap<String, toml::Value>>,
        figures: &[Figure],
    ) -> Result<Self, Error> {
        const COLUMNS: [&str; 8] = ["source", "device", "link", "op", "size", "metric", "unit", "conditions"];
        let mut matches = Vec::new();
        for (column, pattern) in &raw.r#match {
            if !COLUMNS.contains(&column.as_str()) {
                return Err(Error::new(format!("match.{column}: the columns are {}", COLUMNS.join(", "))));
            }
            // Conditions are many things in one cell, the others one thing.
            let whole = if column == "conditions" { pattern.clone() } else { format!("^(?:{pattern})$") };
            let regex = Regex::new(&whole).map_err(|why| Error::new(format!("match.{column}: {why}")))?;
            matches.push((column.clone(), regex));
        }
        if raw.unmapped.is_some() != raw.run.is_empty() {
            return Err(Error::new("a rule has either options in [rule.run] or a reason in unmapped"));
        }
        if raw.part == Some(0) {
            return Err(Error::new("part counts from 1"));
        }
        if raw.curve.is_some() != raw.x.is_some() {
            return Err(Error::new("curve and x belong together"));
        }
        let figure = match &raw.figure {
            Some(_) if raw.curve.is_none() => {
                return Err(Error::new("a figure draws a curve: curve and x are missing"));
            }
            Some(file) => {
                let found = figures.iter().find(|f| f.file == *file);
                Some(
                    found
                        .cloned()
                        .ok_or_else(|| Error::new(format!("there is no [[figure]] with file = {file:?}")))?,
                )
            }
            None => None,
        };
        let mut options = Vec::new();
        for base in &raw.base {
            let base = bases.get(base).ok_or_else(|| Error::new(format!("there is no [base.{base}]")))?;
            options.extend(base.iter());
        }
        options.extend(raw.run.iter());
        let options: Vec<(String, String)> =
            options.into_iter().map(|(key, value)| (key.clone(), plain(value))).collect();
        // Whatever needs no variable is checked now and not at the first row.
        let mut scenario = Scenario::default();
        for (key, value) in options.iter().filter(|(_, value)| !value.contains('{')) {
            scenario.set(key, value)?;
        }
        Ok(Self { raw, matches, figure, options })
    }

    /// The variables of a row that fits.
    fn variables(&self, row: &Row) -> Option<BTreeMap<String, String>> {
        let mut variables = BTreeMap::new();
        for column in ["source", "device", "link", "op", "size", "metric", "unit"] {
            variables.insert(column.to_string(), row.cell(column)?);
        }
        for (column, regex) in &self.matches {
            let cell = row.cell(column)?;
            let found = regex.captures(&cell)?;
            for name in regex.capture_names().flatten() {
                if let Some(text) = found.name(name) {
                    variables.insert(name.to_string(), text.as_str().to_string());
                }
            }
        }
        Some(variables)
    }

    fn apply(&self, part: usize, variables: &BTreeMap<String, String>) -> Result<Mapped, Error> {
        if let Some(why) = &self.raw.unmapped {
            return Ok(Mapped::Not(why.clone()));
        }
        let mut scenario = Scenario::default();
        for (key, value) in &self.options {
            scenario.set(key, &fill(value, variables).map_err(|why| why.at(key))?)?;
        }
        scenario.check()?;
        let fill_in = |text: &Option<String>| text.as_ref().map(|t| fill(t, variables)).transpose();
        let curve = match (fill_in(&self.raw.curve)?, fill_in(&self.raw.x)?) {
            (Some(curve), Some(x)) => {
                let place = x.trim().parse().map_err(|_| Error::new(format!("x = {x:?} is no number")))?;
                Some((curve, place))
            }
            _ => None,
        };
        use crate::scenario::Metric;
        let quantity = self.raw.quantity.unwrap_or(match scenario.metric {
            Metric::Latency => Quantity::P50,
            Metric::Rate => Quantity::Rate,
            Metric::Bandwidth => Quantity::Bandwidth,
        });
        let (rule, note) = (self.raw.name.clone(), self.raw.note.clone());
        let group = fill_in(&self.raw.group)?.unwrap_or_else(|| rule.clone());
        let figure = self.figure.clone();
        Ok(Mapped::Run(Box::new(Run { part, rule, group, curve, figure, quantity, note, scenario })))
    }
}

/// A TOML value as the text that [`Scenario::set`] takes.
fn plain(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// Replaces each `{...}`: a variable as it is, or a whole number from variables and numbers with + - * / between them,
/// from left to right.
fn fill(text: &str, variables: &BTreeMap<String, String>) -> Result<String, Error> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((inside, behind)) = after.split_once('}') else {
            return Err(Error::new(format!("{text:?}: a brace is not closed")));
        };
        out += before;
        out += &match variables.get(inside.trim()) {
            Some(value) => value.clone(),
            None => calculate(inside, variables).map_err(|why| why.at(format!("{text:?}")))?.to_string(),
        };
        rest = behind;
    }
    Ok(out + rest)
}

fn calculate(text: &str, variables: &BTreeMap<String, String>) -> Result<i64, Error> {
    let term = |word: &str| -> Result<i64, Error> {
        let word = word.trim();
        let value = variables.get(word).map_or(word, String::as_str);
        value
            .trim()
            .parse()
            .map_err(|_| Error::new(format!("{word:?} is neither a variable of the rule nor a number")))
    };
    let mut rest = text;
    let mut result = None;
    let mut operator = '+';
    loop {
        let end = rest.find(['+', '-', '*', '/']).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        let value = term(word)?;
        let sum = result.unwrap_or(0i64);
        let next = match operator {
            '+' => sum.checked_add(value),
            '-' => sum.checked_sub(value),
            '*' => sum.checked_mul(value),
            _ => sum.checked_div(value),
        };
        result = Some(next.ok_or_else(|| Error::new(format!("{text:?} can't be calculated")))?);
        let Some(next) = behind.chars().next() else { return Ok(result.unwrap_or(0)) };
        operator = next;
        rest = behind.get(1..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Metric, Op};

    const MAP: &str = r#"
[base.fast]
profile = "connectx4"
metric = "rate"
window = 16

[[rule]]
name = "reads"
match = { source = "S", op = "(?<verb>read)s?", conditions = 'threads=(?<threads>\d+); window=(?<window>\d+)' }
base = ["fast"]
group = "{source}"
curve = "{threads} threads"
x = "{window * threads}"
[rule.run]
op = "{verb}"
size = "{size}"
threads = "{threads}"
qps = "{threads*2}"
window = "{window}"

[[rule]]
name = "second of two"
match = { op = "both" }
part = 2
base = ["fast"]
run = { op = "write" }

[[rule]]
name = "rest"
match = { source = "S" }
unmapped = "nobody knows"
"#;

    fn row(op: &str, values: &[f64], conditions: &str) -> Row {
        let text = |t: &str| t.to_string();
        let (source, device, link) = (text("S"), text("D"), text("L"));
        let (op, metric, unit, conditions) = (text(op), text("rate"), text("Mops"), text(conditions));
        Row {
            file: String::new(),
            line: 2,
            source,
            device,
            link,
            op,
            size: Some(64),
            metric,
            values: values.into(),
            unit,
            conditions,
            unreadable: None,
        }
    }

    fn only_run(mapped: &[Mapped]) -> &Run {
        match mapped {
            [Mapped::Run(run)] => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn captures_become_options() {
        let map = Map::parse(MAP).unwrap();
        let mapped = map.apply(&row("reads", &[9.0], "x; threads=4; window=8; y")).unwrap();
        let run = only_run(&mapped);
        assert_eq!((run.scenario.op, run.scenario.metric, run.scenario.size), (Op::Read, Metric::Rate, 64));
        assert_eq!((run.scenario.threads, run.scenario.qps, run.scenario.window), (4, 8, 8));
        assert_eq!((run.group.as_str(), run.curve.clone()), ("S", Some(("4 threads".into(), 32.0))));
        assert_eq!(run.quantity, Quantity::Rate);
    }

    #[test]
    fn a_value_does_not_answer_itself() {
        let map = Map::parse(MAP).unwrap();
        let at = |value: f64| map.apply(&row("reads", &[value], "threads=4; window=8")).unwrap();
        assert_eq!(at(1.0), at(1000.0));
        let error = Map::parse(&MAP.replace("source = \"S\", op", "value = \"1\", op")).unwrap_err();
        assert!(error.to_string().contains("match.value"), "{error}");
    }

    #[test]
    fn parts_and_reasons() {
        let map = Map::parse(MAP).unwrap();
        let mapped = map.apply(&row("both", &[1.0, 2.0], "")).unwrap();
        assert_eq!(mapped[0], Mapped::Not("nobody knows".into()), "the first part");
        assert_eq!(only_run(&mapped[1..]).part, 1);
        assert_eq!(map.apply(&row("else", &[1.0], "")).unwrap(), [Mapped::Not("nobody knows".into())]);
        let text = |op: &str| Row {
            unreadable: Some("value".into()),
            ..row(op, &[f64::NAN], "threads=1; window=8")
        };
        assert_eq!(map.apply(&text("else")).unwrap(), [Mapped::Not("nobody knows".into())]);
        assert!(map.apply(&text("reads")).unwrap_err().to_string().contains("value"));
        let other = Row { source: "T".into(), ..row("else", &[1.0], "") };
        assert_eq!(map.apply(&other).unwrap(), [Mapped::Not("no rule fits".into())]);
    }

    #[test]
    fn errors_name_the_rule_and_the_key() {
        for (from, to, reasons) in [
            ("qps = \"{threads*2}\"", "qps = \"{threads*x}\"", ["reads", "\"x\""]),
            ("qps = \"{threads*2}\"", "qps = \"{threads*2\"", ["reads", "not closed"]),
            ("threads = \"{threads}\"", "thread = \"{threads}\"", ["reads", "thread"]),
            ("x = \"{window * threads}\"", "x = \"far\"", ["reads", "far"]),
        ] {
            let map = Map::parse(&MAP.replacen(from, to, 1)).unwrap();
            let error = map.apply(&row("reads", &[9.0], "threads=4; window=8")).unwrap_err().to_string();
            assert!(reasons.iter().all(|r| error.contains(r)), "{to}: {error}");
        }
        for (from, to, reasons) in [
            ("window = 16", "windows = 16", ["reads", "windows"]),
            ("base = [\"fast\"]", "base = [\"slow\"]", ["reads", "slow"]),
            ("part = 2", "part = 0", ["second of two", "from 1"]),
            ("unmapped = \"nobody knows\"", "", ["rest", "unmapped"]),
            ("(?<threads>", "(?<threads", ["reads", "match.conditions"]),
            ("unmapped =", "unmaped =", ["unmaped", "unknown field"]),
        ] {
            let error = Map::parse(&MAP.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(reasons.iter().all(|r| error.contains(r)), "{to}: {error}");
        }
    }

    #[test]
    fn sums_go_from_left_to_right() {
        let variables = BTreeMap::from([("a".to_string(), "6".to_string())]);
        let sum = |text| calculate(text, &variables).ok();
        assert_eq!(
            (sum("a*2+1"), sum("1+a*2"), sum("a/4"), sum("a-8")),
            (Some(13), Some(14), Some(1), Some(-2))
        );
        assert_eq!((sum("a/0"), sum("a*"), sum("b")), (None, None, None));
    }
}
