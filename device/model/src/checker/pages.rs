//! Pages that the firmware was given: nobody writes there but the firmware, and this one never does.

use std::collections::BTreeMap;

use hca_spec::rules;

use super::Turn;
use crate::adapter::function::Function;
use crate::ground::diagnosis::{Finding, Subject};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that are watched, of all that were given.
const WATCHED: usize = 512;
/// Pages that are looked at in one look: 64 KiB.
const LOOKED_AT: usize = 16;

/// Pages of the firmware, by their addresses: what was in them when they were given, or `None` if it was said that they changed.
#[derive(Debug, Default)]
pub(super) struct Pages {
    watched: BTreeMap<u64, Option<u64>>,
    turn: Turn<u64>,
}

/// A number that stands for what is in a page; `None`: it can't be read at once.
fn print(function: &Function, page: u64) -> Option<u64> {
    if function.state.outstanding.is_some() {
        return None;
    }
    let mut bytes = [0; PAGE];
    function.state.seen_memory().read(page, &mut bytes).ok()?;
    let mix =
        |sum: u64, word: &[u8; 8]| (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Some(bytes.as_chunks::<8>().0.iter().fold(0, |sum, word| mix(sum, word).rotate_left(23)))
}

/// Says it if a page is not as it was.
fn compare(page: u64, before: &mut Option<u64>, function: &Function, tell: &mut dyn FnMut(Finding)) {
    let Some(now) = before.and_then(|_| print(function, page)) else { return };
    if *before == Some(now) {
        return;
    }
    *before = None;
    let found = format!("page {page:#x} was written by the driver");
    let expected = "as it was when MANAGE_PAGES gave it";
    tell(Finding::new(SUBJECT, "page of the firmware", found, expected, &rules::PAGE_OWNED));
}

/// The function's own memory.
const SUBJECT: Subject = Subject::new("function", 0);

impl Pages {
    /// Pages were given, or taken back.
    pub(super) fn managed(&mut self, function: &Function, tell: &mut dyn FnMut(Finding)) {
        let mut before = std::mem::take(&mut self.watched);
        for page in function.state.fw.given_pages().take(WATCHED) {
            let print = before.remove(&page).or_else(|| Some(print(function, page)));
            self.watched.insert(page, print.flatten());
        }
        // Those that are the host's again, or are not watched any more.
        for (page, mut print) in before {
            compare(page, &mut print, function, tell);
        }
    }

    /// Time has passed.
    pub(super) fn look(&mut self, function: &Function, tell: &mut dyn FnMut(Finding)) {
        for (page, print) in self.turn.next(&mut self.watched, LOOKED_AT) {
            compare(*page, print, function, tell);
        }
    }
}
