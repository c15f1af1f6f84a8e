//! The fate of every field of every command's output: filled, or zero for a reason.
//!
//! Every command is answered in all forms of its input that succeed (`probe`); a query also tells of objects that were made otherwise,
//! field by field. What is filled then is known; of what is not, a list has reasons (`docs/data/interface/outputs.toml`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use hca_firmware::PortKind;
use hca_firmware::commands::{Action, Command, TABLE, maker};

use super::Reasons;
use super::bench::Bench;
use super::interface::{Interface, Place};
use super::probe::{Probe, bits_of, put_bits};
use crate::source::row;

/// Where the reasons are, from the root.
const REASONS: &str = "docs/data/interface/outputs.toml";
/// What each output begins with.
const HEADER: [&str; 2] = ["status", "syndrome"];

/// What was seen of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Seen {
    #[default]
    Nothing,
    /// A query told what was said when its object was made.
    AsSaid,
    /// It was not zero.
    Filled,
}

/// A field of a structure, in all commands together.
#[derive(Debug, Default)]
struct Known {
    place: String,
    within: usize,
    seen: Seen,
    commands: BTreeSet<&'static str>,
}

/// Whether an output has something there.
fn is_filled(output: &[u8], place: &Place) -> bool {
    let end = if place.bits == 0 { 8 * output.len() } else { place.at + place.bits };
    let bit = |at: usize| output.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    (place.at..end).any(bit)
}

/// The same field in the input of the command that makes the object.
fn said_at<'a>(place: &Place, inputs: &'a [Place]) -> Option<&'a Place> {
    let short = (1..=64).contains(&place.bits) && place.path.len() > 1;
    inputs.iter().find(|input| short && input.path.len() > 1 && input.key() == place.key())
}

/// Whether what an object is made with is told there.
fn is_told(bench: &mut Bench, maker: &Command, query: &Command, from: &Place, to: &Place) -> Result<bool> {
    let usual = bench.template(maker);
    let all = u64::MAX >> (64 - from.bits);
    let mut values: BTreeSet<u64> = [1, 2, all, all ^ all >> 1, bits_of(&usual, from.at, from.bits)].into();
    values.retain(|value| (1..=all).contains(value));
    for value in values {
        let mut input = usual.clone();
        input.resize(input.len().max((from.at + from.bits).div_ceil(8)), 0);
        put_bits(&mut input, from.at, from.bits, value);
        if let Some(output) = bench.told(maker, &input, query)?
            && 8 * output.len() >= to.at + to.bits
            && bits_of(&output, to.at, to.bits) == value
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn known(root: &Path) -> Result<BTreeMap<(String, String), Known>> {
    let (inputs, outputs) = (Interface::read(root)?, Interface::outputs(root)?);
    let mut known: BTreeMap<(String, String), Known> = BTreeMap::new();
    for command in TABLE {
        let places = outputs.places(command.name)?;
        for place in &places {
            let entry = known.entry((place.of().to_owned(), place.name.clone())).or_default();
            (entry.place, entry.within) = (place.spelled(), place.within);
            entry.commands.insert(command.name);
        }
        let asked = command.object.filter(|object| object.action == Action::Query);
        let maker = asked.and_then(|object| maker(object.kind));
        for kind in [PortKind::InfiniBand, PortKind::Ethernet] {
            let forms = inputs.places(command.name)?;
            let probe =
                Probe::new(command, kind, &forms).with_context(|| format!("{} on {kind:?}", command.name))?;
            let Some(probe) = probe else { continue };
            for place in &places {
                let key = (place.of().to_owned(), place.name.clone());
                let Some(entry) = known.get_mut(&key) else { continue };
                if probe.outputs().any(|output| is_filled(output, place)) {
                    entry.seen = Seen::Filled;
                }
                let Some(maker) = maker.filter(|_| entry.seen == Seen::Nothing) else { continue };
                let said = inputs.places(maker.name)?;
                let Some(from) = said_at(place, &said) else { continue };
                let mut bench = Bench::new(command, kind)?.context("the adapter has the command")?;
                if is_told(&mut bench, maker, command, from, place)? {
                    entry.seen = Seen::AsSaid;
                }
            }
        }
    }
    Ok(known)
}

/// How many fields have which fate, then a table for each structure.
///
/// # Errors
/// A field whose fate nobody knows, or a reason that no field needs.
pub fn tables(root: &Path) -> Result<String> {
    let known = known(root)?;
    let (zero, later) = (Reasons::of_file(root, REASONS, "zero")?, Reasons::of_file(root, REASONS, "later")?);
    let mut rows: BTreeMap<&str, Vec<(usize, String)>> = BTreeMap::new();
    let mut commands: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // What a context does not keep of an input, a query does not tell.
    let ignored = Reasons::read(root, "ignored")?;
    let (mut unknown, mut used) = (0, BTreeSet::new());
    let (mut filled, mut empty) = (0, 0);
    for ((of, name), known) in &known {
        let key = format!("{of}.{name}");
        let is_header = HEADER.contains(&name.as_str());
        let text = match (known.seen, later.of(&key), zero.of(&key)) {
            _ if is_header => "filled: of what is refused".to_owned(),
            (Seen::Filled, ..) => "filled".to_owned(),
            (Seen::AsSaid, ..) => "filled: as it was said".to_owned(),
            (Seen::Nothing, Some((name, when)), _) => {
                used.insert(name.to_owned());
                format!("filled: {when}")
            }
            (Seen::Nothing, None, Some((name, why))) => {
                used.insert(name.to_owned());
                format!("zero: {why}")
            }
            (Seen::Nothing, None, None) if ignored.of(&key).is_some() => {
                format!("zero: {}", ignored.of(&key).map_or("", |(_, why)| why))
            }
            (Seen::Nothing, None, None) => {
                unknown += 1;
                "unknown".to_owned()
            }
        };
        match text.split(':').next() {
            Some("zero") => empty += 1,
            Some("filled") => filled += 1,
            _ => {}
        }
        if is_header {
            continue;
        }
        rows.entry(of).or_default().push((known.within, row(&[&known.place, &format!("`{name}`"), &text])));
        commands.entry(of).or_default().extend(&known.commands);
    }
    let needless: Vec<&str> =
        zero.names().chain(later.names()).filter(|name| !used.contains(*name)).collect();
    if !needless.is_empty() {
        bail!("{REASONS}: needless: {}", needless.join(" "));
    }
    let mut out = format!(
        "{} commands, {} fields: {filled} filled, {empty} zero, {unknown} unknown. Outputs that are status and syndrome only are left out.\n\n",
        TABLE.len(),
        known.len(),
    );
    for (of, mut rows) in rows {
        rows.sort();
        let commands: Vec<&str> = commands.get(of).into_iter().flatten().copied().collect();
        out.push_str(&format!(
            "**`{of}`**, from {}\n\n| place | field | fate |\n|---|---|---|\n",
            commands.join(", ")
        ));
        rows.iter().for_each(|(_, row)| out.push_str(row));
        out.push('\n');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled() {
        let place = |at, bits| Place { path: vec!["out".into()], name: "x".into(), within: at, at, bits };
        let output = [0, 0, 0x10, 0];
        assert!(is_filled(&output, &place(16, 8)) && is_filled(&output, &place(19, 1)));
        assert!(is_filled(&output, &place(8, 0)), "a list to the end");
        assert!(!is_filled(&output, &place(20, 12)) && !is_filled(&output, &place(64, 8)));
    }

    /// No reason is for nothing.
    #[test]
    fn reasons_are_needed() {
        tables(&crate::root()).unwrap();
    }
}
