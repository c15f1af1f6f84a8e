//! Pages that the firmware was given: nobody writes there but the firmware, and this one never does.

use std::collections::BTreeMap;

use hca_spec::rules;

use super::{Turn, read_at_once};
use crate::adapter::state::function::Function;
use crate::ground::diagnosis::{Finding, Subject};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Words of a page that are summed up side by side.
const LANES: usize = 8;
/// Pages that are watched, of all that were given.
const WATCHED: usize = 512;
/// Pages that are looked at in one look: 64 KiB.
const LOOKED_AT: usize = 16;

/// Pages of the firmware, by their addresses: what was in them when they were given, or `None` if it was said that they changed.
#[derive(Debug, Default)]
pub(super) struct Pages {
    watched: BTreeMap<u64, Option<u64>>,
    turn: Turn<u64>,
    reader: Reader,
}

/// Reads pages.
#[derive(Debug)]
struct Reader {
    bytes: Box<[u8; PAGE]>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { bytes: Box::new([0; PAGE]) }
    }
}

impl Reader {
    /// A number that stands for what is in a page, as Fletcher's checksum does: of each lane the sum of its words and the sum of
    /// those sums, so that one changed word is always seen. `None`: it can't be read at once.
    fn print(&mut self, function: &Function, page: u64) -> Option<u64> {
        if function.state.outstanding.is_some() {
            // What goes on beside this in a guest may have the page back before it is compared.
            return None;
        }
        read_at_once(function, page, &mut *self.bytes)?;
        let (mut sums, mut places) = ([0u64; LANES], [0u64; LANES]);
        for words in self.bytes.as_chunks::<{ 8 * LANES }>().0 {
            let lanes = words.as_chunks::<8>().0.iter().zip(sums.iter_mut().zip(&mut places));
            for (word, (sum, place)) in lanes {
                *sum = sum.wrapping_add(u64::from_le_bytes(*word));
                *place = place.wrapping_add(*sum);
            }
        }
        let mix = |all: u64, sum: &u64| (all.rotate_left(23) ^ sum).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some(sums.iter().chain(&places).fold(0, mix))
    }

    /// Says it if a page is not as it was.
    fn compare(
        &mut self,
        page: u64,
        before: &mut Option<u64>,
        function: &Function,
        tell: &mut dyn FnMut(Finding),
    ) {
        let Some(now) = before.and_then(|_| self.print(function, page)) else { return };
        if *before == Some(now) {
            return;
        }
        *before = None;
        let found = format!("page {page:#x} was written by the driver");
        let expected = "as it was when MANAGE_PAGES gave it";
        tell(Finding::new(SUBJECT, "page of the firmware", found, expected, &rules::PAGE_OWNED));
    }
}

/// The function's own memory.
const SUBJECT: Subject = Subject::new("function", 0);

impl Pages {
    /// Pages were given, or taken back.
    pub(super) fn managed(&mut self, function: &Function, tell: &mut dyn FnMut(Finding)) {
        let Self { watched, turn: _, reader } = self;
        let mut before = std::mem::take(watched);
        for page in function.state.fw.given_pages().take(WATCHED) {
            let print = before.remove(&page).unwrap_or_else(|| reader.print(function, page));
            watched.insert(page, print);
        }
        // Those that are the host's again, or are not watched any more.
        for (page, mut print) in before {
            reader.compare(page, &mut print, function, tell);
        }
    }

    /// Time has passed.
    pub(super) fn look(&mut self, function: &Function, tell: &mut dyn FnMut(Finding)) {
        let Self { watched, turn, reader } = self;
        for (page, print) in turn.next(watched, LOOKED_AT) {
            reader.compare(*page, print, function, tell);
        }
    }
}
