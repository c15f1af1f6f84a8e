//! Tables of what kernels use of the interface, from files of coverage (`softhca coverage --json`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use hca_firmware::commands::TABLE;
use serde_json::Value;

use crate::source::row;

/// Where the files are, from the root: `NAME.json` each, the names in the page's order.
const FOLDER: &str = "docs/data/coverage";

/// The lists of a file.
const LISTS: [&str; 9] =
    ["steps", "commands", "fields", "variants", "opcodes", "events", "transitions", "errors", "registers"];

/// What one run used: by list, names and how often.
struct Run {
    name: String,
    /// Of all adapters together.
    lists: BTreeMap<String, BTreeMap<String, u64>>,
}

fn read(root: &Path, name: &str) -> Result<Run> {
    let path = root.join(FOLDER).join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let whole: Value = serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
    let mut lists: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let mut add = |list: &str, name: &str, times: u64| {
        *lists.entry(list.to_owned()).or_default().entry(name.to_owned()).or_default() += times;
    };
    let adapters = whole.get("adapters").and_then(Value::as_object).context("no adapters")?;
    for used in adapters.values() {
        for step in used.get("steps").and_then(Value::as_array).into_iter().flatten() {
            let step_name = step.get("step").and_then(Value::as_str).context("a step without name")?;
            add("steps", step_name, step.get("times").and_then(Value::as_u64).unwrap_or(0));
        }
        for (command, of) in used.get("commands").and_then(Value::as_object).into_iter().flatten() {
            add("commands", command, of.get("count").and_then(Value::as_u64).unwrap_or(0));
        }
        for (command, fields) in used.get("fields").and_then(Value::as_object).into_iter().flatten() {
            for (field, times) in fields.as_object().into_iter().flatten() {
                add("fields", &format!("{command} {field}"), times.as_u64().unwrap_or(0));
            }
        }
        for list in LISTS.into_iter().skip(3) {
            for (of, times) in used.get(list).and_then(Value::as_object).into_iter().flatten() {
                add(list, of, times.as_u64().unwrap_or(0));
            }
        }
    }
    Ok(Run { name: name.to_owned(), lists })
}

/// A table of a list of some runs: how often each name. Of `fields` and `variants`, which are long, what not all of them use.
/// `names` are the list and the runs.
///
/// # Errors
/// No such file or list.
pub fn table(root: &Path, names: &[&str]) -> Result<String> {
    let [list, runs @ ..] = names else { bail!("a list and runs are wanted") };
    if !LISTS.contains(list) {
        bail!("there is no list {list:?}, but {}", LISTS.join(", "));
    }
    let runs = runs.iter().map(|name| read(root, name)).collect::<Result<Vec<_>>>()?;
    let all: BTreeSet<&String> =
        runs.iter().filter_map(|run| run.lists.get(*list)).flat_map(|l| l.keys()).collect();
    if all.is_empty() {
        return Ok("None, in any of them.\n".into());
    }
    let times = |run: &Run, name: &str| run.lists.get(*list).and_then(|l| l.get(name)).copied().unwrap_or(0);
    let mut out =
        row(&std::iter::once(*list).chain(runs.iter().map(|run| run.name.as_str())).collect::<Vec<_>>());
    out.push_str(&format!("|---|{}\n", "---|".repeat(runs.len())));
    let mut same = 0;
    for name in all {
        let of: Vec<u64> = runs.iter().map(|run| times(run, name)).collect();
        if matches!(*list, "fields" | "variants") && of.iter().all(|n| *n > 0) {
            same += 1;
            continue;
        }
        let cells = of.iter().map(|n| if *n == 0 { "-".to_owned() } else { n.to_string() });
        let cells: Vec<String> = std::iter::once(name.clone()).chain(cells).collect();
        out.push_str(&row(&cells.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    if same > 0 {
        out.push_str(&format!("\n{same} more are used by all of them.\n"));
    }
    if *list == "commands" {
        let used = |name: &str| runs.iter().any(|run| times(run, name) > 0);
        let never: Vec<&str> = TABLE.iter().map(|command| command.name).filter(|name| !used(name)).collect();
        out.push_str(&format!("\nBy none of them: {}.\n", never.join(", ")));
    }
    Ok(out)
}
