//! Generated blocks of pages: found, filled, compared.
//!
//! A block begins with the line `<!-- generated: KIND NAME... -->` and ends with `<!-- /generated -->`. Kinds:
//!
//! | kind | shows |
//! |---|---|
//! | `layout NAME...` | the fields of structures made by `layout!` |
//! | `enum MODULE::NAME` | the values of an enumeration of `hca-spec` |
//! | `statuses` | the command statuses, by both of their names |
//! | `values MODULE::NAME` | the constants of a module within a module of `hca-spec` |
//! | `capabilities` | what the adapter reports, field by field, as the firmware answers |
//! | `commands` | the firmware's table of commands, a row for each |
//! | `rooms CRATE` | the rooms of a crate's `floors.toml`, and what their modules are for |
//! | `files FOLDER` | what the source files of a folder are for |
//! | `rules` | the rules of `hca-spec` that nothing enforces |
//! | `coverage LIST RUN...` | what runs used of the interface, from `docs/data/coverage` |
//! | `fields` | every field of every command in the public interface, and whether it is honoured, refused or ignored |
//! | `outputs` | every field of every command's output, and whether it is filled |
//! | `registers` | every field of every register, and whether it is read, asks, is written or is ignored |
//! | `refusals FILE...` | the refusals that stand in those files of `firmware-cmds/src`: status, syndrome, reason |

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{capabilities, commands, coverage, fields, layouts, pages, rooms, rules, source};

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- /generated -->";

/// The page with every block filled from the code.
///
/// # Errors
/// A block that does not end, or that names what is not there.
pub fn fill(root: &Path, page: &str) -> Result<String> {
    let mut out = String::with_capacity(page.len());
    let mut fenced = false;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        fenced ^= line.starts_with("```");
        let Some(what) = line.strip_prefix(BEGIN).and_then(|l| l.strip_suffix(" -->")).filter(|_| !fenced)
        else {
            continue;
        };
        if !lines.any(|l| l == END) {
            bail!("the block {what:?} does not end");
        }
        let mut words = what.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let names: Vec<&str> = words.collect();
        let body = match kind {
            "layout" => layouts::tables(&names)?,
            "enum" => source::enumeration(root, single(&names)?)?,
            "statuses" => commands::statuses(root)?,
            "values" => source::values(root, single(&names)?)?,
            "capabilities" => capabilities::table(),
            "commands" => commands::table(),
            "rooms" => rooms::table(root, single(&names)?)?,
            "files" => rooms::files(root, single(&names)?)?,
            "rules" => rules::table(),
            "coverage" => coverage::table(root, &names)?,
            "fields" => fields::tables(root)?,
            "outputs" => fields::outputs::tables(root)?,
            "registers" => fields::registers::tables(root)?,
            "refusals" => commands::refusals(root, &names)?,
            _ => bail!("no generated block is of the kind {kind:?}"),
        };
        out.push('\n');
        out.push_str(body.trim_end());
        out.push_str("\n\n");
        out.push_str(END);
        out.push('\n');
    }
    Ok(out)
}

fn single<'a>(names: &[&'a str]) -> Result<&'a str> {
    match names {
        [name] => Ok(name),
        _ => bail!("one name is wanted, not {names:?}"),
    }
}

/// The names of all blocks of `kind` on all pages.
///
/// # Errors
/// A page that can't be read.
pub fn names(root: &Path, kind: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for page in pages(root)? {
        for line in std::fs::read_to_string(&page)?.lines() {
            let block = line.strip_prefix(BEGIN).and_then(|l| l.strip_suffix(" -->"));
            if let Some(rest) = block.and_then(|b| b.strip_prefix(kind)) {
                names.extend(rest.split_whitespace().map(String::from));
            }
        }
    }
    Ok(names)
}

/// Pages whose blocks are not what the code says, a line of explanation each.
///
/// # Errors
/// A page that can't be read, or a block that can't be filled.
pub fn stale(root: &Path) -> Result<Vec<String>> {
    let differ = |page: &Path, _: &str| {
        let name = page.strip_prefix(root).unwrap_or(page).display();
        Ok(format!("{name}: not what the code says: cargo run -p hca-docs -- update"))
    };
    changed(root, differ)
}

/// Writes what the code says into all pages; returns the names of those that changed.
///
/// # Errors
/// As [`stale`], or a page that can't be written.
pub fn update(root: &Path) -> Result<Vec<String>> {
    changed(root, |page, text| {
        std::fs::write(page, text)?;
        Ok(page.strip_prefix(root).unwrap_or(page).display().to_string())
    })
}

fn changed(root: &Path, then: impl Fn(&Path, &str) -> Result<String>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for page in pages(root)? {
        let old = std::fs::read_to_string(&page)?;
        if !old.contains(BEGIN) {
            continue;
        }
        let new = fill(root, &old).with_context(|| format!("{}", page.display()))?;
        if new != old {
            found.push(then(&page, &new)?);
        }
    }
    Ok(found)
}
