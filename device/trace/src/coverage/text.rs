//! Coverage as text for people.

use std::fmt::Write as _;

use super::steps::STEPS;
use super::{Coverage, Used, time, universe};

/// Characters of a line of names.
const LINE: usize = 110;

/// All of it. `never`: also the names of what was not reached.
pub fn text(coverage: &Coverage, never: bool) -> String {
    let mut out = String::new();
    for (adapter, used) in &coverage.adapters {
        _ = writeln!(out, "{adapter}");
        checklist(&mut out, used);
        commands(&mut out, used, never);
        fields(&mut out, used);
        for (list, counts) in Used::LISTS.iter().zip(used.lists()) {
            let reached: Vec<String> =
                counts.iter().map(|(name, count)| format!("{name} ({count})")).collect();
            let missing = missing(universe::names(list), &|name| counts.contains_key(name));
            section(&mut out, list, &reached, missing.as_deref(), never);
        }
    }
    out
}

/// Names that were not reached; `None`: what there is to be reached has an open end.
fn missing(all: Vec<String>, reached: &dyn Fn(&str) -> bool) -> Option<Vec<String>> {
    (!all.is_empty()).then(|| all.into_iter().filter(|name| !reached(name)).collect())
}

fn checklist(out: &mut String, used: &Used) {
    _ = writeln!(out, "  bring-up");
    _ = writeln!(out, "    {:<36} {:>14} {:>12} {:>6}  status", "step", "first", "took", "times");
    for step in STEPS {
        match used.steps.iter().find(|reached| reached.step == step.name) {
            Some(reached) => {
                let took = reached.took_ps.map_or(String::new(), time);
                let (first, status) = (time(reached.first_ps), &reached.status);
                let line = format!(
                    "    [x] {:<32} {first:>14} {took:>12} {:>6}  {status}",
                    step.name, reached.times
                );
                _ = writeln!(out, "{}", line.trim_end());
            }
            None => _ = writeln!(out, "    [ ] {:<32} {:>14}  ({})", step.name, "never", step.need.name()),
        }
    }
}

fn commands(out: &mut String, used: &Used, never: bool) {
    let missing = missing(universe::commands(), &|name| used.commands.contains_key(name)).unwrap_or_default();
    let reached = used.commands.len();
    _ = writeln!(out, "  commands: {reached} reached, {} never", missing.len());
    _ = writeln!(
        out,
        "    {:<28} {:>8} {:>14} {:>12} {:>12}  status",
        "command", "times", "first", "mean", "longest"
    );
    for (name, command) in &used.commands {
        let mean = time(command.took_ps / command.count.max(1));
        let statuses: Vec<String> =
            command.statuses.iter().map(|(status, n)| format!("{status} ({n})")).collect();
        let (first, longest) = (time(command.first_ps), time(command.longest_ps));
        let (count, statuses) = (command.count, statuses.join(", "));
        _ = writeln!(out, "    {name:<28} {count:>8} {first:>14} {mean:>12} {longest:>12}  {statuses}");
    }
    if never {
        _ = writeln!(out, "    never:");
        wrap(out, &missing, "      ");
    }
}

fn fields(out: &mut String, used: &Used) {
    _ = writeln!(out, "  fields other than zero");
    for (command, fields) in used.fields.iter().filter(|(_, fields)| !fields.is_empty()) {
        let all = universe::fields(command).len();
        _ = writeln!(out, "    {command}: {} of {all}", fields.len());
        wrap(out, &fields.keys().cloned().collect::<Vec<_>>(), "      ");
    }
}

fn section(out: &mut String, title: &str, reached: &[String], missing: Option<&[String]>, never: bool) {
    match missing {
        Some(missing) => _ = writeln!(out, "  {title}: {} reached, {} never", reached.len(), missing.len()),
        None => _ = writeln!(out, "  {title}: {}", reached.len()),
    }
    wrap(out, reached, "    ");
    if let Some(missing) = missing.filter(|missing| never && !missing.is_empty()) {
        _ = writeln!(out, "    never:");
        wrap(out, missing, "      ");
    }
}

/// Names with commas, in lines.
fn wrap(out: &mut String, names: &[String], indent: &str) {
    let mut line = String::new();
    for (i, name) in names.iter().enumerate() {
        let separator = if i + 1 < names.len() { "," } else { "" };
        if !line.is_empty() && line.len() + name.len() + 2 > LINE {
            _ = writeln!(out, "{indent}{line}");
            line.clear();
        }
        line += &format!("{}{name}{separator}", if line.is_empty() { "" } else { " " });
    }
    if !line.is_empty() {
        _ = writeln!(out, "{indent}{line}");
    }
}
