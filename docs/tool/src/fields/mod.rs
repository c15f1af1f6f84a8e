//! The fate of every field of every command's input, as the public interface has them: honoured, refused, or ignored for a
//! reason.
//!
//! Three witnesses: the source, which names what it reads (`readers`); the firmware, which is given other values
//! (`probe`); and, of what neither of them knows, a list of reasons (`docs/data/interface/ignored.toml`).

mod answers;
mod bench;
mod interface;
pub mod outputs;
mod probe;
mod readers;
pub mod registers;
mod situations;
mod used;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use hca_firmware::PortKind;
use hca_firmware::commands::{Action, Command, TABLE};
use hca_spec::layout::{FieldInfo, Layout};

use self::interface::{Interface, Place};
use self::probe::{Probe, Seen};
use self::readers::Readers;
use crate::source::row;

/// Where the reasons are, from the root, and what is honoured in forms of an input that are not tried.
const REASONS: &str = "docs/data/interface/ignored.toml";
/// Structures that lie at one place, and the layout of each.
const UNIONS: [(&str, &str); 5] = [
    ("cmd_hca_cap", "General"),
    ("atomic_caps", "Atomic"),
    ("odp_cap", "Odp"),
    ("cong_control_r_roce_ecn_rp", "ReactionParams"),
    ("cong_control_r_roce_ecn_np", "NotificationParams"),
];
/// The command's modifier.
const MODIFIER: &str = "op_mod";
/// Files that a row names.
const FILES: usize = 3;
/// Reasons of refusals that a row has.
const WHYS: usize = 2;

/// What becomes of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    /// It is acted upon: by these files, which may be none if only the answers show it; some values are refused.
    Honoured(BTreeSet<String>, BTreeSet<String>),
    /// Zero is what succeeds; whatever else was tried is refused, for these reasons, by these files, if they name it.
    Refused(BTreeSet<String>, BTreeSet<String>),
    /// It makes no difference, for this reason.
    Ignored(String),
    /// Nobody knows.
    Unknown,
}

/// What is known of a field of a structure, in all commands together.
#[derive(Debug, Default)]
struct Known {
    place: String,
    within: usize,
    files: BTreeSet<String>,
    seen: Vec<Seen>,
    commands: BTreeSet<&'static str>,
}

/// Why fields are ignored, or when they are honoured that the tries don't show.
struct Reasons(Vec<(Vec<String>, String)>);

impl Reasons {
    fn read(root: &Path, list: &str) -> Result<Self> {
        Self::of_file(root, REASONS, list)
    }

    fn of_file(root: &Path, file: &str, list: &str) -> Result<Self> {
        let text = std::fs::read_to_string(root.join(file)).with_context(|| file.to_owned())?;
        let table: toml::Table = text.parse()?;
        let mut reasons = Vec::new();
        for rule in
            table.get(list).and_then(toml::Value::as_array).with_context(|| format!("no list {list}"))?
        {
            let fields =
                rule.get("fields").and_then(toml::Value::as_array).context("a reason without fields")?;
            let names = fields.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect();
            let why = rule.get("why").and_then(toml::Value::as_str).context("a rule without reason")?;
            reasons.push((names, why.to_owned()));
        }
        Ok(Self(reasons))
    }

    /// The name in the list that means the field, and the reason: the field by name first, then the same field of all
    /// structures, then all fields of its structure.
    fn of(&self, key: &str) -> Option<(&str, &str)> {
        let (of, name) = key.split_once('.')?;
        let names = [key.to_owned(), format!("*.{name}"), format!("{of}.*")];
        names.iter().find_map(|name| {
            let rule = self.0.iter().find(|(fields, _)| fields.contains(name))?;
            Some((rule.0.iter().find(|field| *field == name)?.as_str(), rule.1.as_str()))
        })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|(fields, _)| fields.iter().map(String::as_str))
    }
}

/// Called with the layouts that a field is in, the field, and its bits.
type Visit<'v, 'a> = dyn FnMut(&[&'static str], &'a FieldInfo, std::ops::Range<usize>) + 'v;

/// Visits the fields of a layout and of those within it: the bits of each from the input's begin, and the layouts that it is in.
fn flatten<'a>(layout: &'a Layout, base: usize, path: &[&'static str], visit: &mut Visit<'_, 'a>) {
    let path = [path, &[layout.name]].concat();
    for field in layout.fields {
        let (first, bits) = match field.hi {
            63 => (0, 64),
            hi => (31 - usize::from(hi), usize::from(hi - field.lo) + 1),
        };
        let at = base + 8 * field.offset + first;
        visit(&path, field, at..at + bits);
    }
    for view in layout.views {
        if let Some(inner) = view.layout() {
            flatten(inner, base + 8 * view.offset, &path, visit);
        }
    }
}

/// The files that read what lies at that place of the command's input.
fn files_of(command: &Command, place: &Place, readers: &Readers) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    let bits = place.at..place.at + place.bits.max(1);
    let union = UNIONS.iter().find(|(structure, _)| place.path.iter().any(|of| of == structure));
    for (layout, at) in command.layouts() {
        flatten(layout, 8 * at, &[], &mut |path, field, range| {
            let other = UNIONS.iter().any(|(_, layout)| path.contains(layout))
                && !union.is_some_and(|(_, layout)| path.contains(layout));
            if !other && range.start < bits.end && bits.start < range.end {
                let layout = path.last().copied().unwrap_or_default();
                // The modifier is handed to every command, whether it looks at it or not.
                let is_modifier = (layout, field.name) == ("InHeader", "OP_MOD");
                files.extend(readers.files(layout, field.name).filter(|_| !is_modifier).map(short));
            }
        });
    }
    // The command's row says where a list begins, and where the number of its object stands.
    let is_list = place.bits == 0 && command.icm.list.is_some_and(|at| 8 * at == place.at);
    let named = command.object.filter(|object| object.action != Action::Create);
    if is_list || named.is_some_and(|object| bits.contains(&(8 * object.at + 31))) {
        files.insert("commands/table".to_owned());
    }
    files
}

/// A file of sources, as a page says it.
fn short(file: &str) -> String {
    let file = file.strip_suffix(".rs").unwrap_or(file).trim_end_matches("/mod");
    let file = file.strip_prefix("firmware-cmds/src/").unwrap_or(file);
    file.strip_prefix("device/model/src/").unwrap_or(file).to_owned()
}

/// Everything that is known, by structure and field.
fn known(root: &Path) -> Result<BTreeMap<(String, String), Known>> {
    let interface = Interface::read(root)?;
    let readers = Readers::of(root)?;
    let mut known: BTreeMap<(String, String), Known> = BTreeMap::new();
    for command in TABLE {
        let places = interface.places(command.name)?;
        let mut probes = Vec::new();
        for kind in [PortKind::InfiniBand, PortKind::Ethernet] {
            let probe = Probe::new(command, kind, &places)
                .with_context(|| format!("{} on {kind:?}", command.name))?;
            probes.extend(probe);
        }
        for place in places {
            let entry = known.entry((place.of().to_owned(), place.name.clone())).or_default();
            (entry.place, entry.within) = (place.spelled(), place.within);
            entry.commands.insert(command.name);
            entry.files.extend(files_of(command, &place, &readers));
            // What is known to be read is not tried again; another opcode is another command.
            let is_known = !entry.files.is_empty() && entry.seen.iter().any(|seen| *seen != Seen::default());
            if place.name == "opcode" || is_known {
                continue;
            }
            for probe in &mut probes {
                let states = place.name == MODIFIER || !entry.files.is_empty();
                entry.seen.push(probe.field(&place, states).with_context(|| place.key())?);
            }
        }
    }
    Ok(known)
}

impl Known {
    /// A field that a source names is honoured if the tries show that it matters, in answers or in what is kept: the source may read
    /// it elsewhere. Another opcode is another command.
    fn fate(&self, key: &str, reasons: &Reasons, untried: &Reasons) -> Fate {
        let refusals: BTreeSet<String> =
            self.seen.iter().flat_map(|seen| seen.refusals.iter().cloned()).collect();
        let zero = self.seen.iter().filter(|seen| seen.only_zero).count();
        let differs = self.seen.iter().any(|seen| seen.differs);
        if zero > 0 && (zero == self.seen.len() || self.files.is_empty() && !differs) {
            return Fate::Refused(self.files.clone(), refusals);
        }
        let is_read = (!self.files.is_empty() || key.ends_with(MODIFIER))
            && (self.seen.is_empty() || self.seen.iter().any(|seen| seen.kept) || untried.of(key).is_some());
        if differs || is_read || !refusals.is_empty() {
            return Fate::Honoured(self.files.clone(), refusals);
        }
        reasons.of(key).map_or(Fate::Unknown, |(_, why)| Fate::Ignored(why.to_owned()))
    }
}

/// A list, its end as a number.
fn some(all: &BTreeSet<String>, most: usize, between: &str, quote: &str) -> String {
    let shown: Vec<String> = all.iter().take(most).map(|one| format!("{quote}{one}{quote}")).collect();
    let more = all.len().saturating_sub(most);
    let more = if more > 0 { format!("{between}{more} more") } else { String::new() };
    shown.join(between) + &more
}

/// Nothing may be unknown, and each reason of these lists has to be needed.
///
/// # Errors
/// What is, or is not.
fn settled(
    file: &str,
    what: &str,
    unknown: &[String],
    lists: [&Reasons; 2],
    used: &BTreeSet<String>,
) -> Result<()> {
    let names = lists.into_iter().flat_map(Reasons::names);
    let needless: Vec<&str> = names.filter(|name| !used.contains(*name)).collect();
    if unknown.is_empty() && needless.is_empty() {
        return Ok(());
    }
    bail!(
        "{file}: of {} fields nobody knows {what}:\n{}\nneedless: {}",
        unknown.len(),
        unknown.join("\n"),
        needless.join(" ")
    )
}

/// A structure on a page.
#[derive(Default)]
struct Structure<'a> {
    /// The commands that have it.
    commands: BTreeSet<&'a str>,
    /// Its fields, by their places.
    rows: Vec<(usize, String)>,
}

/// All of them, by name.
#[derive(Default)]
struct Structures<'a>(BTreeMap<&'a str, Structure<'a>>);

impl<'a> Structures<'a> {
    /// A field of a structure has that fate.
    fn add(&mut self, of: &'a str, name: &str, at: (usize, &str), commands: &BTreeSet<&'a str>, fate: &str) {
        let structure = self.0.entry(of).or_default();
        structure.commands.extend(commands);
        structure.rows.push((at.0, row(&[at.1, &format!("`{name}`"), fate])));
    }

    /// A table for each, headed by its name and the commands that it is `in` or `from`.
    fn tables(self, relation: &str) -> String {
        let mut out = String::new();
        for (of, Structure { commands, mut rows }) in self.0 {
            rows.sort();
            let commands: Vec<&str> = commands.into_iter().collect();
            let commands = commands.join(", ");
            out.push_str(&format!(
                "**`{of}`**, {relation} {commands}\n\n| place | field | fate |\n|---|---|---|\n"
            ));
            rows.iter().for_each(|(_, row)| out.push_str(row));
            out.push('\n');
        }
        out
    }
}

/// How many fields have which fate, then a table for each structure.
///
/// # Errors
/// A field whose fate nobody knows, or a reason that no field needs.
pub fn tables(root: &Path) -> Result<String> {
    let (known, reasons) = (known(root)?, Reasons::read(root, "ignored")?);
    let untried = Reasons::read(root, "untried")?;
    let mut structures = Structures::default();
    let (mut unknown, mut used) = (Vec::new(), BTreeSet::new());
    let mut counts = [0; 3];
    let mut look_at_modifier: BTreeSet<&str> = BTreeSet::new();
    for ((of, name), known) in &known {
        let key = format!("{of}.{name}");
        let (index, text) = match known.fate(&key, &reasons, &untried) {
            Fate::Honoured(files, refusals) => {
                let silent = known.seen.iter().all(|seen| *seen == Seen::default());
                let when = untried.of(&key).filter(|_| silent && !known.seen.is_empty());
                used.extend(when.map(|(name, _)| name.to_owned()));
                let when = when.map(|(_, when)| format!(" ({when})")).unwrap_or_default();
                let by = match files.len() {
                    0 if known.seen.iter().any(|seen| seen.differs) => "honoured: answers differ".to_owned(),
                    0 if when.is_empty() => "honoured: what is kept differs".to_owned(),
                    0 => format!("honoured{when}"),
                    _ => format!("honoured: {}{when}", some(&files, FILES, ", ", "`")),
                };
                let whys = some(&refusals, WHYS, "; ", "");
                (0, if whys.is_empty() { by } else { format!("{by}. Refused: {whys}") })
            }
            Fate::Refused(files, whys) => {
                let by = if files.is_empty() {
                    String::new()
                } else {
                    format!(" by {}", some(&files, FILES, ", ", "`"))
                };
                (1, format!("all but zero refused{by}: {}", some(&whys, WHYS, "; ", "")))
            }
            Fate::Ignored(why) => {
                used.extend(reasons.of(&key).map(|(name, _)| name.to_owned()));
                (2, format!("ignored: {why}"))
            }
            Fate::Unknown => {
                unknown.push(format!(
                    "{key} ({}); named by: {}",
                    known.commands.iter().copied().collect::<Vec<_>>().join(", "),
                    known.files.iter().cloned().collect::<Vec<_>>().join(", ")
                ));
                continue;
            }
        };
        counts[index] += 1;
        if name == MODIFIER && index < 2 {
            look_at_modifier.extend(&known.commands);
        }
        structures.add(of, name, (known.within, &known.place), &known.commands, &text);
    }
    settled(REASONS, "what becomes of them", &unknown, [&reasons, &untried], &used)?;
    let [honoured, refused, ignored] = counts;
    let mut out = format!(
        "{} commands, {} structures, {} fields: {honoured} honoured, {refused} refused, {ignored} ignored, 0 unknown.\n\n",
        TABLE.len(),
        structures.0.len(),
        honoured + refused + ignored,
    );
    let look: Vec<String> = look_at_modifier.iter().map(|command| format!("`{command}`")).collect();
    out.push_str(&format!(
        "`{MODIFIER}` matters to {} commands, all others accept any: {}.\n\n",
        look.len(),
        look.join(", ")
    ));
    out.push_str(&structures.tables("in"));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None is unknown, and no reason is for nothing.
    #[test]
    fn every_field_has_its_fate() {
        let text = tables(&crate::root()).unwrap();
        assert!(text.contains(" 0 unknown.\n"), "{text}");
    }
}
