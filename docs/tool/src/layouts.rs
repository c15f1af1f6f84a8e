//! Tables of the structures that `layout!` makes.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use hca_spec::LAYOUTS;
use hca_spec::layout::Layout;

use crate::source::{prose, row};

/// The structure of that name.
pub fn find(name: &str) -> Option<&'static Layout> {
    LAYOUTS.iter().flat_map(|(_, of)| of.iter()).find(|layout| layout.name == name)
}

/// One table for each structure named.
///
/// # Errors
/// A name that no structure has.
pub fn tables(names: &[&str]) -> Result<String> {
    let mut out = String::new();
    for name in names {
        table(&mut out, find(name).with_context(|| format!("no structure is called {name}"))?);
    }
    Ok(out)
}

fn table(out: &mut String, layout: &Layout) {
    let _ = writeln!(out, "**`{}`** ({:#x} bytes): {}\n", layout.name, layout.size, prose(layout.doc));
    if layout.fields.is_empty() && layout.views.is_empty() {
        return;
    }
    out.push_str("| place | field | meaning |\n|---|---|---|\n");
    let mut rows: Vec<(usize, u8, String)> = Vec::new();
    for field in layout.fields {
        let bits = if field.hi == 63 { "u64".into() } else { format!("[{}:{}]", field.hi, field.lo) };
        let place = format!("{:#x} {bits}", field.offset);
        rows.push((field.offset, field.hi, row(&[&place, &format!("`{}`", field.name), &prose(field.doc)])));
    }
    for view in layout.views {
        let inner = format!("{} `{}`", prose(view.doc), view.of.rsplit("::").next().unwrap_or(view.of));
        rows.push((view.offset, 0, row(&[&format!("{:#x}", view.offset), view.name, &inner])));
    }
    // By place, the higher bits of a word first, as the manual draws it.
    rows.sort_by_key(|(offset, hi, _)| (*offset, std::cmp::Reverse(*hi)));
    rows.iter().for_each(|(_, _, line)| out.push_str(line));
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table() {
        let text = tables(&["EqDoorbell"]).unwrap();
        assert_eq!(
            text,
            "**`EqDoorbell`** (0x4 bytes): EQ doorbell, 4 bytes.\n\n\
             | place | field | meaning |\n|---|---|---|\n\
             | 0x0 [31:24] | `EQN` | The event queue. |\n\
             | 0x0 [23:0] | `CONSUMER_INDEX` | Consumer index. |\n\n"
        );
        assert!(tables(&["NoSuchThing"]).is_err());
    }

    #[test]
    fn structures_within_structures() {
        let text = tables(&["QueryEqOut"]).unwrap();
        assert!(text.contains("| 0x10 | eqc | The queue's context. `Eqc` |"), "{text}");
        let names: Vec<&str> = LAYOUTS.iter().flat_map(|(_, of)| of.iter()).map(|l| l.name).collect();
        assert!(names.len() > 80, "{names:?}");
    }
}
