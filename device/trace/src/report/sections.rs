//! The parts of the page.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::html::{Page, Table, escape, fold, pairs};
use super::session::{Answered, Session};
use crate::coverage::steps::STEPS;
use crate::coverage::{Coverage, Used, time, universe};
use crate::explain::Life;
use crate::picture;

/// Commands of which each has a row: the first ones.
const COMMANDS: usize = 1500;
/// Objects of a kind of which each has a row.
const OBJECTS: usize = 500;
/// Diagnoses that are shown.
const DIAGNOSES: usize = 1000;
/// Steps of a work request's life that are shown.
const STEPS_SHOWN: usize = 500;
/// Width of a line of time, in the picture's own units.
const WIDTH: f64 = 1000.0;
/// Height of it.
const HEIGHT: f64 = 60.0;
/// Names of port states (IBTA PortInfo).
const PORT_STATES: [&str; 5] = ["?", "Down", "Initialize", "Armed", "Active"];

/// So many were left out.
fn left_out(page: &mut Page, all: usize, shown: usize) {
    if all > shown {
        page.paragraph(&format!("{} more are not shown.", all - shown));
    }
}

pub(super) fn overview(page: &mut Page, name: &str, session: &Session, coverage: &Coverage, lives: &[Life]) {
    page.section("overview", "Overview");
    let refused = session.commands.iter().filter(|command| command.refused).count();
    let steps: Vec<String> = coverage
        .adapters
        .iter()
        .map(|(adapter, used)| format!("{adapter}: {} of {} steps", used.steps.len(), STEPS.len()))
        .collect();
    let facts = [
        ("Trace", name.to_owned()),
        ("Adapters", session.adapters.join(", ")),
        ("Model time", format!("{} to {}", time(session.begin), time(session.end))),
        ("Events", session.events.to_string()),
        ("Bring-up", steps.join("; ")),
        ("Commands", format!("{}, of which {refused} were refused", session.commands.len())),
        ("Diagnoses", diagnosed(session).count().to_string()),
        ("Objects made", session.objects.len().to_string()),
        ("Work requests", lives.len().to_string()),
    ];
    page.markup(&pairs(&facts.map(|(name, value)| (name.to_owned(), value))));
}

pub(super) fn checklist(page: &mut Page, coverage: &Coverage) {
    page.section("checklist", "Bring-up");
    for (adapter, used) in &coverage.adapters {
        let mut table = Table::new(
            &format!("Steps of the driver of {adapter}"),
            &["Step", "Reached", "First", "Took", "Times", "Status"],
        );
        for step in STEPS {
            match used.steps.iter().find(|reached| reached.step == step.name) {
                Some(reached) => {
                    let failed = !matches!(reached.status.as_str(), "" | "Ok");
                    let cells = [
                        step.name.to_owned(),
                        "yes".to_owned(),
                        time(reached.first_ps),
                        reached.took_ps.map_or_else(String::new, time),
                        reached.times.to_string(),
                        reached.status.clone(),
                    ];
                    table.row(if failed { "bad" } else { "good" }, &cells, "");
                }
                None => {
                    let never = format!("never ({})", step.need.name());
                    let empty = String::new();
                    let cells =
                        [step.name.to_owned(), never, empty.clone(), empty.clone(), empty.clone(), empty];
                    table.row("never", &cells, "");
                }
            }
        }
        page.table(&table);
    }
}

fn diagnosed(session: &Session) -> impl Iterator<Item = &super::session::Note> {
    session.notes.iter().filter(|note| note.name == "diagnosis")
}

pub(super) fn diagnoses(page: &mut Page, session: &Session) {
    page.section("diagnoses", "Diagnoses");
    let all = diagnosed(session).count();
    if all == 0 {
        return page.paragraph("None: nothing was refused, and what looked on found nothing.");
    }
    let mut table = Table::new("What the server said of drivers", &["When", "Adapter", "What"]);
    for note in diagnosed(session).take(DIAGNOSES) {
        let word =
            |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let parts = ["object", "field", "found", "expected"];
        let mut parts: Vec<(String, String)> =
            parts.iter().map(|key| ((*key).to_owned(), word(&note.args, key))).collect();
        if let Some(rule) = note.args.get("rule") {
            parts.push(("rule".into(), word(rule, "name")));
            parts.push(("says".into(), word(rule, "says")));
            parts.push(("page".into(), word(rule, "page")));
        }
        parts.retain(|(_, value)| !value.is_empty());
        let below = if parts.is_empty() { String::new() } else { fold(false, "parts", &pairs(&parts)) };
        let cells = [time(note.at), note.adapter.clone(), word(&note.args, "text")];
        table.row("bad", &cells, &below);
    }
    page.table(&table);
    left_out(page, all, DIAGNOSES);
}

/// Commands on a line of time.
fn timeline(session: &Session) -> String {
    let span = (session.end - session.begin).max(1) as f64;
    let x = |at: u64| at.saturating_sub(session.begin) as f64 / span * WIDTH;
    let mut out = format!(
        "<figure><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" \
         aria-labelledby=\"timeline-title\"><title id=\"timeline-title\">Commands on a line of time; refused ones are \
         lower</title><line class=\"axis\" x1=\"0\" y1=\"30\" x2=\"{WIDTH}\" y2=\"30\"/>\n"
    );
    let mut last = [-1.0f64; 2];
    for command in &session.commands {
        let (left, width) = (x(command.at), (command.took as f64 / span * WIDTH).max(1.0));
        let lane = usize::from(command.refused);
        // What would lie on the same point is there already.
        let Some(drawn) = last.get_mut(lane).filter(|drawn| left + width > **drawn + 0.5) else { continue };
        *drawn = left + width;
        let (y, class) = if command.refused { (32, "mark bad") } else { (4, "mark") };
        _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"24\"/>"
        );
    }
    _ = write!(
        out,
        "</svg><figcaption>{} to {} of model time</figcaption></figure>",
        escape(&time(session.begin)),
        escape(&time(session.end))
    );
    out
}

pub(super) fn commands(page: &mut Page, session: &Session) {
    page.section("commands", "Commands");
    if session.commands.is_empty() {
        return page.paragraph("None were answered.");
    }
    page.markup(&timeline(session));
    let mut table = Table::new("Commands in their order", &["Command", "When", "Took", "Adapter", "Status"]);
    for command in session.commands.iter().take(COMMANDS) {
        let Answered { at, took, adapter, name, status, refused, fields, .. } = command;
        let below = match fields.len() {
            0 => String::new(),
            1 => fold(false, "1 field", &pairs(fields)),
            n => fold(false, &format!("{n} fields"), &pairs(fields)),
        };
        let cells = [name.clone(), time(*at), time(*took), adapter.clone(), status.clone()];
        table.row(if *refused { "bad" } else { "" }, &cells, &below);
    }
    page.table(&table);
    left_out(page, session.commands.len(), COMMANDS);
}

pub(super) fn objects(page: &mut Page, session: &Session) {
    page.section("objects", "Objects");
    let mut kinds: BTreeMap<(&str, &str), Vec<_>> = BTreeMap::new();
    for made in &session.objects {
        kinds.entry((&made.adapter, made.kind)).or_default().push(made);
    }
    if kinds.is_empty() {
        page.paragraph("None were made.");
    }
    for ((adapter, kind), all) in kinds {
        let left = all.iter().filter(|made| made.until.is_none()).count();
        let mut inside =
            Table::new(&format!("{kind} of {adapter}"), &["Number", "Made", "Destroyed", "Changes"]);
        for made in all.iter().take(OBJECTS) {
            let below = if made.fields.is_empty() {
                String::new()
            } else {
                fold(false, "made with", &pairs(&made.fields))
            };
            let until = made.until.map_or_else(|| "not in this trace".to_owned(), time);
            inside.row(
                "",
                &[format!("{:#x}", made.number), time(made.at), until, made.changes.to_string()],
                &below,
            );
        }
        let mut part = Page::new("");
        part.table(&inside);
        left_out(&mut part, all.len(), OBJECTS);
        let title = format!("{adapter}, {kind}: {} made, {left} left at the end", all.len());
        page.fold(false, &title, &part.body());
    }
}

pub(super) fn links(page: &mut Page, session: &Session) {
    page.section("links", "Links");
    let mut said = false;
    // The last says how they are at the end.
    if let Some(note) = session.notes.iter().rev().find(|note| note.name == "links") {
        let mut table = Table::new("Links at the end of the trace", &["Ends", "Rate", "Cable", "State"]);
        for link in note.args.get("links").and_then(Value::as_array).into_iter().flatten() {
            let end = |i: usize| {
                let end = link.get("between").and_then(|ends| ends.get(i)).and_then(Value::as_str);
                end.unwrap_or("?").to_owned()
            };
            let yes = |key: &str| link.get(key).and_then(Value::as_bool) == Some(true);
            let width = link.get("width").and_then(Value::as_u64).unwrap_or(0);
            let rate = link.get("rate").and_then(Value::as_str).unwrap_or("?");
            let cells = [
                format!("{} and {}", end(0), end(1)),
                format!("{width}x {rate}"),
                if yes("cable") { "in" } else { "out" }.to_owned(),
                if yes("up") { "up" } else { "down" }.to_owned(),
            ];
            table.row(if yes("up") { "" } else { "bad" }, &cells, "");
            said = true;
        }
        if said {
            page.table(&table);
        }
    }
    if !session.ports.is_empty() {
        let mut table = Table::new("States of ports", &["Adapter", "When", "State"]);
        for (at, adapter, state) in session.ports.iter().take(OBJECTS) {
            let name = usize::try_from(*state).ok().and_then(|state| PORT_STATES.get(state)).unwrap_or(&"?");
            table.row("", &[adapter.clone(), time(*at), (*name).to_owned()], "");
        }
        page.table(&table);
        left_out(page, session.ports.len(), OBJECTS);
    } else if !said {
        page.paragraph("The trace does not tell of links.");
    }
}

/// Rows of a distribution of times.
fn distribution(table: &mut Table, name: &str, mut times: Vec<u64>) {
    times.sort_unstable();
    let at = |part: usize| times.get((times.len().saturating_sub(1)) * part / 100).copied().unwrap_or(0);
    let cells =
        [name.to_owned(), times.len().to_string(), time(at(0)), time(at(50)), time(at(99)), time(at(100))];
    table.row("", &cells, "");
}

pub(super) fn latencies(page: &mut Page, session: &Session, lives: &[Life]) {
    const COLUMNS: [&str; 6] = ["What", "Times", "Least", "Median", "99 %", "Most"];
    page.section("latencies", "Latencies");
    let mut requests: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for life in lives {
        requests.entry(life.what().to_owned()).or_default().push(life.duration());
    }
    for (caption, of) in [
        ("Work requests, from doorbell to completion", requests),
        ("Commands, from fetch to answer", session.durations()),
    ] {
        if of.is_empty() {
            continue;
        }
        let mut table = Table::new(caption, &COLUMNS);
        of.into_iter().for_each(|(name, times)| distribution(&mut table, &name, times));
        page.table(&table);
    }
    if lives.is_empty() && session.commands.is_empty() {
        page.paragraph("Nothing took time.");
    }
}

pub(super) fn life(page: &mut Page, life: Option<&Life>) {
    page.section("life", "The life of a work request");
    let Some(life) = life else { return page.paragraph("The trace has no work request.") };
    page.heading(&format!(
        "{} {:#x}:{} of {}, {}",
        life.what(),
        life.qpn,
        life.index,
        life.adapter,
        time(life.duration())
    ));
    page.markup(&format!(
        "<figure class=\"light\" role=\"img\" aria-label=\"The steps as bars on a line of time; the table below has them\">{}</figure>",
        picture::svg(life)
    ));
    let begin = life.steps.first().map_or(0, |step| step.at);
    let mut table = Table::new("Its steps", &["What", "After", "Took", "Waited", "Where"]);
    for step in life.steps.iter().take(STEPS_SHOWN) {
        let fields =
            if step.fields.is_empty() { String::new() } else { fold(false, "fields", &pairs(&step.fields)) };
        let cells = [
            step.label(),
            time(step.at - begin),
            time(step.took),
            time(step.waited),
            format!("{}, {}", step.adapter, step.unit),
        ];
        table.row("", &cells, &fields);
    }
    page.table(&table);
    left_out(page, life.steps.len(), STEPS_SHOWN);
}

fn names(names: &[String]) -> String {
    let items: String = names.iter().map(|name| format!("<li>{}</li>\n", escape(name))).collect();
    format!("<ul class=\"names\">\n{items}</ul>\n")
}

pub(super) fn reached(page: &mut Page, coverage: &Coverage) {
    page.section("coverage", "Coverage");
    for (adapter, used) in &coverage.adapters {
        page.heading(adapter);
        let commands =
            used.commands.iter().map(|(name, command)| format!("{name} ({})", command.count)).collect();
        list(page, "commands", commands, universe::commands(), &|name| used.commands.contains_key(name));
        for (command, fields) in used.fields.iter().filter(|(_, fields)| !fields.is_empty()) {
            let reached = fields.keys().cloned().collect();
            let title = format!("fields of {command}");
            list(page, &title, reached, universe::fields(command), &|name| fields.contains_key(name));
        }
        for (title, counts) in Used::LISTS.iter().zip(used.lists()) {
            let reached = counts.iter().map(|(name, count)| format!("{name} ({count})")).collect();
            list(page, title, reached, universe::names(title), &|name| counts.contains_key(name));
        }
    }
}

fn list(page: &mut Page, title: &str, reached: Vec<String>, all: Vec<String>, is: &dyn Fn(&str) -> bool) {
    let missing: Vec<String> = all.into_iter().filter(|name| !is(name)).collect();
    let never = if missing.is_empty() { String::new() } else { format!(", {} never", missing.len()) };
    if reached.is_empty() && missing.is_empty() {
        return page.paragraph(&format!("{title}: none"));
    }
    let mut inside = if reached.is_empty() { String::new() } else { names(&reached) };
    if !missing.is_empty() {
        inside += &fold(false, "never", &names(&missing));
    }
    page.fold(false, &format!("{title}: {} reached{never}", reached.len()), &inside);
}
