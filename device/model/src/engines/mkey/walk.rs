//! From a key and an address to bus addresses, through as many indirect keys as there are.

use hca_firmware::Icm;
use hca_firmware::icm::{MemoryKey, Translation};
use hca_firmware::list::List;
use hca_firmware::piece_list::{Cycle, EVERY, Mark, PieceList};
use hca_spec::ids::Mkey;
use hca_spec::mkc::{
    ANY_QP, AccessMode, Klm, MTT_ADDRESS, MTT_READ, MTT_WRITE, Mkc, NULL_MKEY, REPEAT_BLOCK, RESERVED_LKEY,
    RepeatBlock, RepeatPiece,
};

use super::access::{Access, Accessor, Fault, Space, Span};
use crate::ground::region::Pages;

/// Indirect keys may point to indirect keys this deep (the capability `max_indirection`).
const MAX_DEPTH: u32 = 4;
/// Entries of indirect keys that one access may come by, all pieces of a gather or scatter list together: lists within
/// lists multiply. A list of the greatest length (2^16) may be walked twice; host time for it is about a millisecond.
const MAX_STEPS: u32 = 1 << 17;
/// Entries of indirect keys after which an event that has more accesses to make leaves them to others.
pub(crate) const TURN_STEPS: u32 = 1 << 14;

/// Entries that an event looks at for nothing: they cost no more than what else an event does. For those beyond, the adapter pays with
/// its time ([`crate::units::Units`]). What lies behind a mark is near it, so a list that is in use is below that.
const FREE: u32 = 1 << 10;

/// Entries of indirect keys that accesses of a function have looked at, and that nobody has been charged for.
#[derive(Debug, Default)]
pub(crate) struct Walked(u32);

impl Walked {
    /// An event is over: the entries to be charged for it.
    #[inline]
    pub(crate) fn charge(&mut self) -> u32 {
        match std::mem::take(&mut self.0) {
            0 => 0,
            entries => entries.saturating_sub(FREE),
        }
    }

    /// An access has looked at so many.
    pub(crate) fn add(&mut self, entries: u32) {
        self.0 = self.0.saturating_add(entries);
    }
}

/// What a walk has found of a long list: the next one begins there.
#[derive(Debug)]
enum Place {
    /// An entry, and what lies before it.
    Entry(Mark),
    /// A strided layout.
    Cycle(Cycle),
}

/// Entries of indirect keys that an access has come by, and what is to be kept of them ([`Steps::keep`]).
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// From the begin of each list on, marks or not: so whether an access is too long does not depend on those before it.
    taken: u32,
    /// Those that were looked at, behind a mark, and that nobody was told of.
    looks: u32,
    /// Marks that the lists of these keys get: at most one for each [`EVERY`] entries taken.
    places: Vec<(Mkey, Place)>,
}

impl Steps {
    /// How many there were, from the begins of lists on.
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// Those that were looked at since this was asked.
    #[inline]
    pub(crate) fn take_looks(&mut self) -> u32 {
        std::mem::take(&mut self.looks)
    }

    /// Whether there are marks to be kept.
    #[inline]
    pub(crate) fn has_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// Puts the marks that walks have found into their lists.
    #[cold]
    pub(crate) fn keep(&mut self, icm: &mut Icm) {
        for (key, place) in self.places.drain(..) {
            let translation = icm.mkeys.get_mut(key.index()).map(|entry| &mut entry.translation);
            let Some(Translation::Klm(list)) = translation else { continue };
            match place {
                Place::Entry(mark) => list.leave(mark),
                Place::Cycle(cycle) => list.keep_cycle(cycle),
            }
        }
    }

    /// So many more. Returns whether they are few enough yet.
    fn add(&mut self, n: u32) -> bool {
        self.taken = self.taken.saturating_add(n);
        self.taken <= MAX_STEPS
    }

    /// So many are looked at.
    fn look(&mut self, n: u32) {
        self.looks = self.looks.saturating_add(n);
    }
}

/// Bytes of an entry of an indirect key.
const OCTWORD: usize = 16;
/// Smallest and largest page: log2. Smaller ones can't be made; what UMR sets is brought into the range. With pages of 2^61 bytes
/// the private null keys of the mlx5 driver's implicit regions cover the whole address space (`alloc_implicit_mr_null_mkey`).
const PAGE_SHIFTS: std::ops::RangeInclusive<u32> = 12..=63;

/// The key of that number, if it exists, is in use, and has that variant byte.
pub(super) fn find(icm: &Icm, key: Mkey) -> Result<&MemoryKey, Fault> {
    icm.mkeys
        .get(key.index())
        .filter(|k| k.ctx.get(Mkc::MKEY_7_0) == u32::from(key.variant()) && k.ctx.get(Mkc::FREE) == 0)
        .or_else(|| (key.0 == RESERVED_LKEY).then_some(&icm.reserved_lkey))
        .ok_or(Fault::Key(key))
}

/// Whether `who` may use a key: its protection domain, and its queue pair if it is bound to one; the reserved key, if its context
/// says so.
pub(super) fn check_owner(ctx: &Mkc, key: Mkey, who: Accessor) -> Result<(), Fault> {
    if key.0 == RESERVED_LKEY {
        return if who.rlky { Ok(()) } else { Err(Fault::Reserved(key)) };
    }
    if ctx.get(Mkc::PD) != who.pd.0 {
        return Err(Fault::Domain(key));
    }
    let owner = ctx.get(Mkc::QPN);
    if owner != ANY_QP && owner != who.qpn.0 {
        return Err(Fault::Owner(key));
    }
    Ok(())
}

/// Whether `len` bytes at `va` are inside the region of the key.
pub(super) fn check_bounds(ctx: &Mkc, key: Mkey, va: u64, len: u64) -> Result<(), Fault> {
    let bounds = Fault::Bounds { key, va, len };
    // The region may end at the very end of the address space.
    va.checked_add(len.saturating_sub(1)).ok_or(bounds)?;
    if ctx.get(Mkc::LENGTH64) == 1 {
        return Ok(());
    }
    let offset = va.checked_sub(first_address(ctx)).ok_or(bounds)?;
    match offset.checked_add(len) {
        Some(end) if end <= ctx.get(Mkc::LEN) => Ok(()),
        _ => Err(bounds),
    }
}

/// The first address under a key.
pub(super) fn first_address(ctx: &Mkc) -> u64 {
    match ctx.access_mode() {
        Some(AccessMode::Memic | AccessMode::SwIcm) => 0,
        _ => ctx.get(Mkc::START_ADDR),
    }
}

/// A range under a key.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) key: Mkey,
    pub(super) va: u64,
    pub(super) len: u64,
}

impl Range {
    /// Nothing is loaded for the byte `done` bytes into the range.
    fn untranslated(self, done: u64) -> Fault {
        Fault::Translation { key: self.key, va: self.va.wrapping_add(done) }
    }

    /// The page of that byte is not present.
    fn absent(self, done: u64) -> Fault {
        Fault::Page { key: self.key, va: self.va.wrapping_add(done), len: self.len.saturating_sub(done) }
    }
}

/// The pages of a range, if the key names memory itself and all of them are there for that access.
pub(super) fn pages_of(entry: &MemoryKey, range: Range, access: Access) -> Option<Pages> {
    let ctx = &entry.ctx;
    check_bounds(ctx, range.key, range.va, range.len).ok()?;
    match (ctx.access_mode(), &entry.translation) {
        // One page, from address 0 on.
        (Some(AccessMode::Pa), _) => {
            let mut all = Pages::new(u64::BITS - 1, range.va);
            all.push(0);
            Some(all)
        }
        (Some(AccessMode::Mtt), translation) => {
            let (shift, at) = in_pages(ctx, range.va);
            let mask = (1u64 << shift) - 1;
            let last = at.checked_add(range.len.checked_sub(1)?)?;
            let place = |at: u64| usize::try_from(at >> shift).ok();
            let needed = if entry.pg_access { needed(access) } else { 0 };
            let mut pages = Pages::new(shift, at & mask);
            let mut push = |mtt: u64| {
                let allowed = needed == 0 || mtt & needed != 0;
                allowed.then(|| pages.push(mtt & MTT_ADDRESS))
            };
            let (mut next, end) = (place(at)?, place(last)?.checked_add(1)?);
            while next < end {
                let given = translation.entries_from(next);
                if given.is_empty() {
                    push(translation.page(next)?)?;
                    next += 1;
                }
                for mtt in given.iter().take(end - next) {
                    push(u64::from_be_bytes(*mtt))?;
                    next += 1;
                }
            }
            Some(pages)
        }
        _ => None,
    }
}

/// A part of a page under a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PagePart {
    /// Its first address.
    pub(super) va: u64,
    pub(super) len: u64,
    /// Its bus address.
    pub(super) iova: u64,
}

impl PagePart {
    /// The bus address of an address in it.
    #[inline]
    pub(crate) fn address(&self, va: u64) -> u64 {
        self.iova.wrapping_add(va.wrapping_sub(self.va))
    }
}

/// The page that a range is in, as far as it belongs to the key, if the key names memory itself and the page is there for that access.
/// `None`: the key is of another kind, or a walk has to find what is there.
pub(super) fn page_of(entry: &MemoryKey, range: Range, access: Access) -> Option<PagePart> {
    let ctx = &entry.ctx;
    if ctx.access_mode() != Some(AccessMode::Mtt) || range.len == 0 {
        return None;
    }
    check_bounds(ctx, range.key, range.va, range.len).ok()?;
    let (shift, at) = in_pages(ctx, range.va);
    let in_page = at & ((1 << shift) - 1);
    let mtt = entry.translation.page(usize::try_from(at >> shift).ok()?)?;
    if entry.pg_access && mtt & needed(access) == 0 {
        return None;
    }
    let (before, behind) = match ctx.get(Mkc::LENGTH64) {
        1 => (range.va, u64::MAX - range.va),
        _ => {
            let offset = range.va.checked_sub(ctx.get(Mkc::START_ADDR))?;
            (offset, ctx.get(Mkc::LEN).checked_sub(offset)?)
        }
    };
    let (before, behind) = (before.min(in_page), behind.min((1 << shift) - in_page));
    let iova = (mtt & MTT_ADDRESS).wrapping_add(in_page - before);
    (range.len <= behind).then_some(PagePart { va: range.va - before, len: before + behind, iova })
}

/// What a page's entry has to allow for an access.
fn needed(access: Access) -> u64 {
    if access.writes() { MTT_WRITE } else { MTT_READ }
}

/// A walk of one access.
pub(super) struct Walk<'a> {
    pub(super) icm: &'a Icm,
    pub(super) who: Accessor,
    pub(super) access: Access,
    pub(super) steps: &'a mut Steps,
}

type Visit<'v> = dyn FnMut(Span) -> Result<(), Fault> + 'v;

impl Walk<'_> {
    /// Visits the bus addresses of a range, whose owner and rights were checked.
    pub(super) fn key(
        &mut self,
        entry: &MemoryKey,
        range: Range,
        depth: u32,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        let ctx = &entry.ctx;
        check_bounds(ctx, range.key, range.va, range.len)?;
        if range.len == 0 {
            return Ok(());
        }
        match (ctx.access_mode(), &entry.translation) {
            (Some(AccessMode::Pa), _) => {
                visit(Span { space: Space::Host, iova: range.va, len: range.len as usize })
            }
            (Some(AccessMode::Memic), _) => self.piece_of_device(ctx, range, visit),
            (Some(AccessMode::SwIcm), _) => self.piece_of_icm(ctx, range, visit),
            (Some(AccessMode::Mtt), translation) => self.pages(entry, translation, range, visit),
            (Some(AccessMode::Klm), Translation::Klm(list)) if depth < MAX_DEPTH => {
                self.pieces(ctx, list, range, depth, visit)
            }
            (Some(AccessMode::Ksm), Translation::Klm(list)) if depth < MAX_DEPTH => {
                self.blocks(ctx, list.list(), range, depth, visit)
            }
            _ => Err(range.untranslated(0)),
        }
    }

    /// A range of the adapter's own memory, if it is (still) allocated.
    fn piece_of_device(&self, ctx: &Mkc, range: Range, visit: &mut Visit<'_>) -> Result<(), Fault> {
        let at = ctx.get(Mkc::START_ADDR).checked_add(range.va);
        let at = at.filter(|at| self.icm.device_memory.has(*at, range.len)).ok_or(range.untranslated(0))?;
        visit(Span { space: Space::Device, iova: at, len: range.len as usize })
    }

    /// A range of memory for entries of flow tables, if it is (still) allocated.
    fn piece_of_icm(&self, ctx: &Mkc, range: Range, visit: &mut Visit<'_>) -> Result<(), Fault> {
        let at = ctx.get(Mkc::START_ADDR).checked_add(range.va);
        let at = at.filter(|at| self.icm.steering.memory.has(*at, range.len)).ok_or(range.untranslated(0))?;
        visit(Span { space: Space::Icm, iova: at, len: range.len as usize })
    }

    fn pages(
        &self,
        entry: &MemoryKey,
        pages: &Translation,
        range: Range,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        let (shift, mut at) = in_pages(&entry.ctx, range.va);
        let page_size = 1u64 << shift;
        let needed = needed(self.access);
        let mut done = 0;
        while done < range.len {
            // Where entries say what they allow, one that says nothing is a page that is not present.
            let none = if entry.pg_access { range.absent(done) } else { range.untranslated(done) };
            let mtt = usize::try_from(at >> shift).ok().and_then(|p| pages.page(p)).ok_or(none)?;
            if entry.pg_access && mtt & needed == 0 {
                return Err(none);
            }
            let in_page = at & (page_size - 1);
            let n = (page_size - in_page).min(range.len - done);
            let iova = (mtt & MTT_ADDRESS).wrapping_add(in_page);
            visit(Span { space: Space::Host, iova, len: n as usize })?;
            at = at.wrapping_add(n);
            done += n;
        }
        Ok(())
    }

    /// A list of equally long pieces.
    fn blocks(
        &mut self,
        ctx: &Mkc,
        list: &List,
        range: Range,
        depth: u32,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        let shift = page_shift(ctx);
        let size = 1u64 << shift;
        let mut at = range.va.wrapping_sub(ctx.get(Mkc::START_ADDR));
        let mut done = 0;
        while done < range.len {
            let none = range.untranslated(done);
            let block = usize::try_from(at >> shift).ok().and_then(|b| list.get(b)).ok_or(none)?;
            let block = entry_of(&block);
            let inside = at & (size - 1);
            let n = (size - inside).min(range.len - done);
            let va = block.get(Klm::ADDRESS).wrapping_add(inside);
            self.piece(Range { key: Mkey(block.get(Klm::MKEY)), va, len: n }, depth, visit)?;
            at = at.wrapping_add(n);
            done += n;
        }
        Ok(())
    }

    /// A list of pieces of any length, and of strided layouts.
    fn pieces(
        &mut self,
        ctx: &Mkc,
        list: &PieceList,
        range: Range,
        depth: u32,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        let begin = range.va.wrapping_sub(ctx.get(Mkc::START_ADDR));
        let mut left = Left { skip: begin, bytes: range.len, whole: range };
        let (mut place, mut unmarked) = (list.mark(begin), list.unmarked());
        self.step(place.looks, &left)?;
        left.skip -= place.before;
        while let Some(entry) = list.list().get(place.entry) {
            let entry = entry_of(&entry);
            let layout = place.entry;
            self.steps.look(1);
            place.entry = place.entry.saturating_add(1);
            if entry.get(Klm::MKEY) == REPEAT_BLOCK {
                let block = RepeatBlock::from_prefix_or_zero(entry.bytes());
                let count = block.get(RepeatBlock::NUM_ENTRIES);
                let strides = Strides {
                    key: range.key,
                    list,
                    layout,
                    pieces: place.entry..place.entry.saturating_add(count as usize),
                    cycles: block.get(RepeatBlock::REPEAT_COUNT).into(),
                };
                if strides.pieces.end > list.count() {
                    return Err(left.untranslated());
                }
                let size = self.repeat(&strides, &mut left, depth, visit)?;
                place.entry = strides.pieces.end;
                place.looks = place.looks.saturating_add(count);
                place.before = place.before.saturating_add(size.saturating_mul(strides.cycles));
            } else {
                self.step(1, &left)?;
                let size = entry.get(Klm::BYTE_COUNT).into();
                let piece = Range { key: Mkey(entry.get(Klm::MKEY)), va: entry.get(Klm::ADDRESS), len: size };
                if let Some(part) = left.take(piece) {
                    self.piece(part, depth, visit)?;
                }
                place.looks = place.looks.saturating_add(1);
                place.before = place.before.saturating_add(size);
            }
            if place.entry >= unmarked {
                self.steps.places.push((range.key, Place::Entry(place)));
                unmarked = place.entry.saturating_add(EVERY);
            }
            if left.bytes == 0 {
                return Ok(());
            }
        }
        Err(left.untranslated())
    }

    /// The cycles of a strided layout. Returns how many bytes each has.
    fn repeat(
        &mut self,
        strides: &Strides<'_>,
        left: &mut Left,
        depth: u32,
        visit: &mut Visit<'_>,
    ) -> Result<u64, Fault> {
        self.step(strides.pieces.len() as u32, left)?;
        let size = self.size_of(strides);
        if size == 0 {
            return Ok(0);
        }
        let first = (left.skip / size).min(strides.cycles);
        left.skip -= first * size;
        let mut from = strides.pieces.start;
        if first < strides.cycles
            && let Some(mark) = strides.list.in_cycle(strides.layout, left.skip)
        {
            self.step(mark.looks, left)?;
            left.skip -= mark.before;
            from = mark.entry;
        }
        for cycle in first..strides.cycles {
            for piece in strides.from(from) {
                self.steps.look(1);
                self.step(1, left)?;
                let moved = cycle * u64::from(piece.get(RepeatPiece::STRIDE));
                let va = piece.get(RepeatPiece::ADDRESS).wrapping_add(moved);
                let len = piece.get(RepeatPiece::BYTE_COUNT).into();
                if let Some(part) = left.take(Range { key: Mkey(piece.get(RepeatPiece::MKEY)), va, len }) {
                    self.piece(part, depth, visit)?;
                }
                if left.bytes == 0 {
                    return Ok(size);
                }
            }
            from = strides.pieces.start;
        }
        Ok(size)
    }

    /// Bytes of a cycle: at most 2^16 pieces of less than 2^16 bytes. Of many pieces marks are kept.
    fn size_of(&mut self, strides: &Strides<'_>) -> u64 {
        if let Some(size) = strides.list.cycle_size(strides.layout) {
            return size;
        }
        let Strides { key, list: _, layout, ref pieces, cycles: _ } = *strides;
        self.steps.look(pieces.len() as u32);
        let (mut size, mut marks) = (0u64, Vec::new());
        let many = pieces.len() >= EVERY;
        for (n, piece) in strides.from(pieces.start).enumerate() {
            if many && n % EVERY == 0 {
                marks.push(Mark { entry: pieces.start.saturating_add(n), before: size, looks: n as u32 });
            }
            size += u64::from(piece.get(RepeatPiece::BYTE_COUNT));
        }
        if many {
            self.steps.places.push((key, Place::Cycle(Cycle { layout, size, marks })));
        }
        size
    }

    /// A piece that an indirect key names: its own key must belong to the same domain and give the local
    /// right, whatever the indirect key allows (IBTA 10.6.7.2.3: a window can't give more than its region).
    fn piece(&mut self, range: Range, depth: u32, visit: &mut Visit<'_>) -> Result<(), Fault> {
        if range.key == Mkey(NULL_MKEY) {
            return Err(range.absent(0));
        }
        let inner = find(self.icm, range.key)?;
        check_owner(&inner.ctx, range.key, self.who)?;
        // What a list names is memory: signatures are made and taken, and data is encrypted, where the wire is.
        let passes = inner.signature.is_some() || inner.ctx.get(Mkc::CRYPTO_EN) != 0;
        if inner.ctx.get(Mkc::BSF_EN) == 1 && passes {
            return Err(range.untranslated(0));
        }
        let access = self.access.local_equivalent();
        if !access.allowed_by(&inner.ctx) {
            return Err(Fault::Rights(range.key, access));
        }
        self.key(inner, range, depth + 1, visit)
    }

    fn step(&mut self, entries: u32, left: &Left) -> Result<(), Fault> {
        if self.steps.add(entries) { Ok(()) } else { Err(left.untranslated()) }
    }
}

/// A strided layout: some pieces, over and over, moved by their strides each time (2^32 times at most).
struct Strides<'a> {
    /// Whose list it is in.
    key: Mkey,
    list: &'a PieceList,
    /// The entry that says so.
    layout: usize,
    /// Those of the pieces.
    pieces: std::ops::Range<usize>,
    cycles: u64,
}

impl Strides<'_> {
    /// The pieces of a cycle from that entry on.
    fn from(&self, entry: usize) -> impl Iterator<Item = RepeatPiece> {
        let entries = (entry..self.pieces.end).map_while(|n| self.list.list().get::<OCTWORD>(n));
        entries.map(|piece| RepeatPiece::from_prefix_or_zero(&piece))
    }
}

/// What is still to be found of a range in a list of pieces.
struct Left {
    /// Bytes of the list before the range.
    skip: u64,
    /// Bytes of the range.
    bytes: u64,
    whole: Range,
}

impl Left {
    /// The part of `piece` that belongs to the range, if any does.
    fn take(&mut self, piece: Range) -> Option<Range> {
        if self.skip >= piece.len {
            self.skip -= piece.len;
            return None;
        }
        let len = (piece.len - self.skip).min(self.bytes);
        let part = Range { va: piece.va.wrapping_add(self.skip), len, ..piece };
        self.skip = 0;
        self.bytes -= len;
        Some(part)
    }

    fn untranslated(&self) -> Fault {
        self.whole.untranslated(self.whole.len.saturating_sub(self.bytes))
    }
}

/// log2 of the size of a key's pages, and where an address is in them, from the begin of the first page on: no sum of that and
/// a length that is within the key's bounds overflows.
#[inline]
fn in_pages(ctx: &Mkc, va: u64) -> (u32, u64) {
    let (shift, start) = (page_shift(ctx), ctx.get(Mkc::START_ADDR));
    (shift, va.wrapping_sub(start).wrapping_add(start & ((1 << shift) - 1)))
}

fn entry_of(bytes: &[u8; OCTWORD]) -> Klm {
    Klm::from_prefix_or_zero(bytes)
}

fn page_shift(ctx: &Mkc) -> u32 {
    ctx.get(Mkc::LOG_PAGE_SIZE).clamp(*PAGE_SHIFTS.start(), *PAGE_SHIFTS.end())
}
