//! The fate of every field of every command's output: filled, or zero for a reason.
//!
//! Every command is tried (`answers`). What is filled then is known; of what is not, a list has reasons
//! (`docs/data/interface/outputs.toml`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use hca_firmware::PortKind;
use hca_firmware::commands::TABLE;

use super::answers::{Seen, Tries, is_header};
use super::interface::Interface;
use super::{Fate, Reasons, Structures, settled};

/// Where the reasons are, from the root.
const REASONS: &str = "docs/data/interface/outputs.toml";

/// A field of a structure, in all commands together.
#[derive(Debug, Default)]
struct Known {
    place: String,
    within: usize,
    seen: Seen,
    is_header: bool,
    commands: BTreeSet<&'static str>,
}

fn known(root: &Path, untold: &BTreeMap<String, String>) -> Result<BTreeMap<(String, String), Known>> {
    let (inputs, outputs) = (Interface::read(root)?, Interface::outputs(root)?);
    let mut known: BTreeMap<(String, String), Known> = BTreeMap::new();
    for command in TABLE {
        let places = outputs.places(command.name)?;
        let mut seen = vec![Seen::Nothing; places.len()];
        for kind in [PortKind::InfiniBand, PortKind::Ethernet] {
            let mut tries = Tries {
                command,
                kind,
                inputs: &inputs,
                places: &places,
                untold,
                seen: &mut seen,
                spare: None,
            };
            tries.all().with_context(|| format!("{} on {kind:?}", command.name))?;
        }
        for (place, seen) in places.iter().zip(seen) {
            let entry = known.entry((place.of().to_owned(), place.name.clone())).or_default();
            (entry.place, entry.within) = (place.spelled(), place.within);
            entry.is_header = is_header(place);
            entry.commands.insert(command.name);
            entry.seen = entry.seen.max(seen);
        }
    }
    Ok(known)
}

/// What an input does not say, by structure and field: nothing but zero is understood, or it is ignored for a reason.
fn untold(root: &Path) -> Result<BTreeMap<String, String>> {
    let (ignored, untried) = (Reasons::read(root, "ignored")?, Reasons::read(root, "untried")?);
    let mut untold = BTreeMap::new();
    for ((of, name), known) in super::known(root)? {
        let key = format!("{of}.{name}");
        match known.fate(&key, &ignored, &untried) {
            Fate::Refused(..) => _ = untold.insert(key, "whatever else is said is refused".to_owned()),
            Fate::Ignored(why) => _ = untold.insert(key, why),
            Fate::Honoured(..) | Fate::Unknown => {}
        }
    }
    Ok(untold)
}

/// How many fields have which fate, then a table for each structure.
///
/// # Errors
/// A field whose fate nobody knows, or a reason that no field needs.
pub fn tables(root: &Path) -> Result<String> {
    let untold = untold(root)?;
    let known = known(root, &untold)?;
    let (zero, later) = (Reasons::of_file(root, REASONS, "zero")?, Reasons::of_file(root, REASONS, "later")?);
    let mut structures = Structures::default();
    let (mut unknown, mut used) = (Vec::new(), BTreeSet::new());
    let (mut filled, mut empty) = (0, 0);
    for ((of, name), known) in &known {
        let key = format!("{of}.{name}");
        let text = match (known.seen, later.of(&key), zero.of(&key)) {
            _ if known.is_header => "filled: of what is refused".to_owned(),
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
            (Seen::Nothing, None, None) if untold.contains_key(&key) => {
                format!("zero: {}", untold.get(&key).map_or("", String::as_str))
            }
            (Seen::Nothing, None, None) => {
                let commands: Vec<&str> = known.commands.iter().copied().collect();
                unknown.push(format!("{key} ({})", commands.join(", ")));
                continue;
            }
        };
        match text.starts_with("zero") {
            true => empty += 1,
            false => filled += 1,
        }
        if known.is_header {
            continue;
        }
        structures.add(of, name, (known.within, &known.place), &known.commands, &text);
    }
    settled(REASONS, "whether they are filled", &unknown, [&zero, &later], &used)?;
    let head = format!(
        "{} commands, {} fields: {filled} filled, {empty} zero, 0 unknown. Outputs that are status and syndrome only are left out.\n\n",
        TABLE.len(),
        filled + empty,
    );
    Ok(head + &structures.tables("from"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None is unknown, and no reason is for nothing.
    #[test]
    fn every_field_has_its_fate() {
        let text = tables(&crate::root()).unwrap();
        assert!(text.contains(" 0 unknown. "), "{text}");
    }
}
