//! BlueFlame: a send WQE that comes with its doorbell.
//!
//! Software may store the whole WQE to the send register instead of its first 8 bytes only. A processor collects such
//! stores in a write-combining buffer, and an adapter that gets the block whole executes it without fetching the WQE.
//! Where stores come one by one, because the BAR is trapped, the [`Combiner`] is that buffer: stores that continue each
//! other collect; a complete block is a WQE; what is flushed before is a plain doorbell.
//!
//! There is no clock here: who hands in the stores says when nothing more is to be expected ([`Combiner::flush`]).
//!
//! Source: PRM "UAR Page Format", "BlueFlame"; mlx5 driver (field use).

use hca_spec::uar::{PAGE_SIZE, SEND_DOORBELL, SEND_DOORBELL_STEP};
use hca_spec::wqe::{Ctrl, DS_UNIT, WQEBB};

/// Buffers that collect at the same time; there is at most one for each UAR page.
const BUFFERS: usize = 8;
/// Size of a register, that is of half a BlueFlame register, in bytes.
const REGISTER: usize = SEND_DOORBELL_STEP as usize;

/// What was stored to a send register: from its begin on, in whole words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Offset of the register in BAR0.
    pub(crate) at: u64,
    /// What was stored, at most a register full.
    pub(crate) bytes: Vec<u8>,
}

impl Block {
    /// The copy of a WQE that the block holds: whole basic blocks.
    pub(crate) fn copy(&self) -> Option<&[u8]> {
        let whole = self.bytes.len() / WQEBB * WQEBB;
        self.bytes.get(..whole).filter(|copy| !copy.is_empty())
    }

    fn end(&self) -> u64 {
        self.at.wrapping_add(self.bytes.len() as u64)
    }

    fn is_complete(&self) -> bool {
        let size = Ctrl::from_prefix_or_zero(&self.bytes).get(Ctrl::DS) as usize * DS_UNIT;
        self.bytes.len() >= size.next_multiple_of(WQEBB).clamp(WQEBB, REGISTER)
    }
}

/// Collects the stores to send registers.
#[derive(Debug, Default)]
pub(crate) struct Combiner {
    /// The oldest first.
    open: Vec<Block>,
    /// Stores so far.
    stores: u64,
}

impl Combiner {
    /// Whether the offset in BAR0 (beyond the initialization segment) is one of a send register.
    pub(crate) fn covers(offset: u64) -> bool {
        offset % PAGE_SIZE >= SEND_DOORBELL
    }

    /// Stores collected so far; `None` if nothing waits for more.
    pub(crate) fn pending(&self) -> Option<u64> {
        (!self.open.is_empty()).then_some(self.stores)
    }

    /// Takes one word. What is to be acted on goes to `out`.
    pub(crate) fn store(&mut self, offset: u64, word: [u8; 4], out: &mut Vec<Block>) {
        self.stores = self.stores.wrapping_add(1);
        let of_page = self.open.iter().position(|b| b.at / PAGE_SIZE == offset / PAGE_SIZE);
        if let Some(i) = of_page {
            let continued = self.open.get_mut(i).filter(|b| b.end() == offset && b.bytes.len() < REGISTER);
            if let Some(block) = continued {
                block.bytes.extend_from_slice(&word);
                if block.is_complete() {
                    out.push(self.open.remove(i));
                }
                return;
            }
            out.push(self.open.remove(i));
        }
        if !offset.is_multiple_of(SEND_DOORBELL_STEP) {
            // The rest of a copy whose begin has been acted on, as a doorbell.
            tracing::trace!("store to BAR0+{offset:#x} continues nothing");
            return;
        }
        if self.open.len() >= BUFFERS {
            out.push(self.open.remove(0));
        }
        self.open.push(Block { at: offset, bytes: word.to_vec() });
    }

    /// Something else happens in the page of `offset`: what it has collected is complete.
    pub(crate) fn flush_page(&mut self, offset: u64, out: &mut Vec<Block>) {
        out.extend(self.open.extract_if(.., |b| b.at / PAGE_SIZE == offset / PAGE_SIZE));
    }

    /// Nothing more comes.
    pub(crate) fn flush(&mut self) -> Vec<Block> {
        std::mem::take(&mut self.open)
    }
}

/// Where copies of WQEs go on whose first 8 bytes were taken as a doorbell: an adapter that does not execute copies hears
/// the rest of them all the same (UCX stores whole WQEs wherever it is given a page that may be write combining).
#[derive(Debug, Default)]
pub(crate) struct Rests([u64; BUFFERS]);

impl Rests {
    /// A doorbell was rung at the begin of a register: 8 bytes.
    pub(crate) fn begin(&mut self, offset: u64) {
        let (page, end) = (offset / PAGE_SIZE, offset.wrapping_add(8));
        let known = self.0.iter().position(|at| *at / PAGE_SIZE == page);
        self.0.rotate_right(known.map_or(1, |_| 0));
        if let Some(to) = self.0.get_mut(known.unwrap_or(0)) {
            *to = end;
        }
    }

    /// Whether 8 bytes at an offset go on with a copy.
    pub(crate) fn goes_on(&mut self, offset: u64) -> bool {
        let inside = !offset.is_multiple_of(SEND_DOORBELL_STEP);
        let known = self.0.iter_mut().find(|at| inside && **at == offset);
        known.map(|at| *at = at.wrapping_add(8)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 0x10 * PAGE_SIZE;
    const HERE: u64 = PAGE + SEND_DOORBELL;

    /// A WQE of `ds` 16-byte units.
    fn wqe(ds: u32, len: usize) -> Vec<u8> {
        let mut ctrl = Ctrl::new();
        ctrl.set(Ctrl::DS, ds).set(Ctrl::QPN, 0x77);
        let mut bytes = ctrl.bytes().to_vec();
        bytes.resize(len, 0xab);
        bytes
    }

    fn store(combiner: &mut Combiner, at: u64, bytes: &[u8]) -> Vec<Block> {
        let mut out = Vec::new();
        for (i, word) in bytes.chunks_exact(4).enumerate() {
            combiner.store(at + 4 * i as u64, word.try_into().unwrap(), &mut out);
        }
        out
    }

    #[test]
    fn a_whole_block_is_a_copy() {
        let mut c = Combiner::default();
        for (ds, len) in [(0, 64), (1, 64), (4, 64), (5, 128), (16, 256), (63, 256)] {
            let bytes = wqe(ds, len);
            assert_eq!(store(&mut c, HERE, &bytes[..len - 4]), []);
            assert!(c.pending().is_some());
            assert_eq!(
                store(&mut c, HERE + len as u64 - 4, &bytes[len - 4..]),
                [Block { at: HERE, bytes: bytes.clone() }]
            );
            assert_eq!((c.pending(), c.flush()), (None, vec![]));
        }
    }

    #[test]
    fn anything_else_is_a_doorbell() {
        let mut c = Combiner::default();
        let bytes = wqe(2, 64);
        // The other half, the same again, a gap; each shows what came before.
        for next in [HERE + SEND_DOORBELL_STEP, HERE, HERE + 0x40] {
            assert_eq!(store(&mut c, HERE, &bytes[..8]), []);
            let out = store(&mut c, next, &bytes[..4]);
            assert_eq!(out, [Block { at: HERE, bytes: bytes[..8].to_vec() }]);
            assert_eq!(out[0].copy(), None);
            c.flush();
        }
        // Nothing to continue: dropped.
        assert_eq!((store(&mut c, HERE + 8, &bytes[8..]), c.pending()), (vec![], None));
        // Two basic blocks of three: a copy that goes on in memory.
        store(&mut c, HERE, &wqe(12, 132));
        let out = c.flush();
        assert_eq!(out[0].copy().map(<[u8]>::len), Some(128));
    }

    #[test]
    fn pages_collect_side_by_side() {
        let mut c = Combiner::default();
        let bytes = wqe(2, 64);
        for page in 0..BUFFERS as u64 {
            assert_eq!(store(&mut c, HERE + page * PAGE_SIZE, &bytes[..16]), []);
        }
        assert_eq!(store(&mut c, HERE + PAGE_SIZE + 16, &bytes[16..]).len(), 1);
        let mut out = Vec::new();
        c.flush_page(PAGE + 2 * PAGE_SIZE + 0x20, &mut out);
        assert_eq!((out.len(), out[0].at), (1, HERE + 2 * PAGE_SIZE));
        // As many as there are buffers, and one more: the oldest gives way.
        let mut shown = Vec::new();
        for page in 100..100 + BUFFERS as u64 {
            shown.extend(store(&mut c, HERE + page * PAGE_SIZE, &bytes[..8]));
        }
        assert_eq!((shown.len(), shown[0].at, c.flush().len()), (BUFFERS - 2, HERE, BUFFERS));
    }

    /// What follows a doorbell in its register is the rest of a copy; what follows nothing is not, and neither is what is
    /// behind the register.
    #[test]
    fn rests_follow_doorbells() {
        let mut rests = Rests::default();
        assert!(!rests.goes_on(HERE + 8));
        rests.begin(HERE);
        assert_eq!([8, 16, 16, 32, 24].map(|at| rests.goes_on(HERE + at)), [true, true, false, false, true]);
        rests.begin(HERE + 2 * SEND_DOORBELL_STEP);
        assert!(!rests.goes_on(HERE + 32), "another register of the page");
        for at in (8..SEND_DOORBELL_STEP).step_by(8) {
            assert!(rests.goes_on(HERE + 2 * SEND_DOORBELL_STEP + at), "{at:#x}");
        }
        assert!(!rests.goes_on(HERE + 3 * SEND_DOORBELL_STEP));
        for page in 1..=BUFFERS as u64 {
            rests.begin(HERE + page * PAGE_SIZE);
        }
        assert!(!rests.goes_on(HERE + 3 * SEND_DOORBELL_STEP + 8), "forgotten");
        assert!((1..=BUFFERS as u64).all(|page| rests.goes_on(HERE + page * PAGE_SIZE + 8)));
    }
}
