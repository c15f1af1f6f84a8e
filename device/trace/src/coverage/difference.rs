//! What one run used and another did not.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::{Counts, Coverage, Used};

/// By list: names that only one of the two runs has.
pub type Names = BTreeMap<String, Vec<String>>;

/// What the first of two runs used and the second did not, and the other way round. Each run counts with all its adapters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Difference {
    /// Only the first.
    pub only_first: Names,
    /// Only the second.
    pub only_second: Names,
}

/// Everything that has a name, by list.
fn names(used: &Used) -> BTreeMap<String, Vec<String>> {
    let keys = |counts: &Counts| counts.keys().cloned().collect::<Vec<_>>();
    let mut all = BTreeMap::from([
        ("steps".to_owned(), used.steps.iter().map(|reached| reached.step.clone()).collect::<Vec<_>>()),
        ("commands".to_owned(), used.commands.keys().cloned().collect()),
    ]);
    for (list, counts) in Used::LISTS.iter().zip(used.lists()) {
        all.insert((*list).to_owned(), keys(counts));
    }
    let fields = used.fields.iter();
    let fields =
        fields.flat_map(|(command, fields)| fields.keys().map(move |field| format!("{command} {field}")));
    all.insert("fields".to_owned(), fields.collect());
    all
}

fn only(of: &BTreeMap<String, Vec<String>>, other: &BTreeMap<String, Vec<String>>) -> Names {
    let mut only = Names::new();
    for (list, names) in of {
        let there = other.get(list).map(Vec::as_slice).unwrap_or_default();
        let missing: Vec<String> = names.iter().filter(|name| !there.contains(name)).cloned().collect();
        if !missing.is_empty() {
            only.insert(list.clone(), missing);
        }
    }
    only
}

impl Difference {
    /// Of two runs.
    pub fn new(first: &Coverage, second: &Coverage) -> Self {
        let (first, second) = (names(&first.together()), names(&second.together()));
        Self { only_first: only(&first, &second), only_second: only(&second, &first) }
    }

    /// As text, with the runs' names.
    pub fn text(&self, first: &str, second: &str) -> String {
        let mut out = String::new();
        for (has, names, lacks) in [(first, &self.only_first, second), (second, &self.only_second, first)] {
            _ = writeln!(out, "{has} uses, and {lacks} does not:");
            if names.is_empty() {
                _ = writeln!(out, "  nothing");
            }
            for (list, names) in names {
                _ = writeln!(out, "  {list}");
                names.iter().for_each(|name| _ = writeln!(out, "    {name}"));
            }
        }
        out
    }
}
