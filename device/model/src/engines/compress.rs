//! Compression of completion queue entries: like completions that follow each other closely become one block.
//!
//! Source: mlx5 driver (field use); the manual names the fields and caps only. What a block looks like is in
//! [`hca_spec::cqe::CqeFormat::Compressed`]. Only receive completions of one queue pair without immediate data,
//! solicited event or data in the entry are alike; when the adapter closes a block is its own choice (here: after
//! [`SESSION`], when it is full, or when another completion comes). Of received frames each mini CQE has the hash or the checksum, as the
//! queue's format says; the other of the two is the title's for all, so that it need not be alike.

use hca_firmware::limits::MAX_COMPRESSED;
use hca_spec::cqe::{Cqe, CqeFormat, CqeOpcode, MINI_CQES, MiniCqe};
use hca_spec::queue::mini_format;

use crate::ground::time::Ps;

/// How long the first completion of a block waits for others: the timeout the capabilities tell, taken as
/// microseconds (estimate).
pub(crate) const SESSION: Ps = Ps::from_us(1);
/// Bytes of an entry full of mini CQEs.
pub(crate) const ARRAY: usize = MiniCqe::SIZE * MINI_CQES as usize;

/// Completions of one queue that wait for others.
#[derive(Debug)]
pub(crate) struct Session {
    /// What mini CQEs say.
    format: u32,
    /// The first of them.
    title: Option<Cqe>,
    /// All of them.
    minis: Vec<Mini>,
    generation: u32,
}

/// What became of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joined {
    /// It opened a session; the generation is for the timer.
    First(u32),
    /// It waits with others.
    Next,
    /// It does not belong to what waits, or can't be compressed at all.
    Not,
}

fn can_wait(cqe: &Cqe) -> bool {
    CqeOpcode::from_bits(cqe.get(Cqe::OPCODE)) == Some(CqeOpcode::RespSend)
        && cqe.get(Cqe::SE) == 0
        && cqe.get(Cqe::FORMAT) == CqeFormat::Plain as u32
}

/// What a mini CQE says of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mini {
    /// Bytes received.
    len: u32,
    /// Index of the WQE.
    index: u16,
    /// Hash of a received frame.
    hash: u32,
    /// Checksum of a received frame.
    checksum: u32,
}

impl Mini {
    fn new(cqe: &Cqe) -> Self {
        Self {
            len: cqe.get(Cqe::BYTE_CNT),
            index: cqe.get(Cqe::WQE_COUNTER) as u16,
            hash: cqe.get(Cqe::RSS_HASH_RESULT),
            checksum: cqe.get(Cqe::CHECK_SUM),
        }
    }

    fn entry(self, format: u32) -> MiniCqe {
        let mut mini = MiniCqe::new();
        mini.set(MiniCqe::BYTE_CNT, self.len);
        match format {
            mini_format::CHECKSUM => mini.set(MiniCqe::CHECKSUM, self.checksum),
            mini_format::CHECKSUM_STRIDE => {
                mini.set(MiniCqe::CHECKSUM, self.checksum).set(MiniCqe::STRIDE_INDEX, self.index.into())
            }
            _ => mini.set(MiniCqe::RX_HASH, self.hash),
        };
        mini
    }
}

/// Whether two completions differ only in what mini CQEs can say, and in their time.
fn alike(a: &Cqe, b: &Cqe) -> bool {
    let mut b = *b;
    for field in [Cqe::BYTE_CNT, Cqe::WQE_COUNTER, Cqe::RSS_HASH_RESULT, Cqe::CHECK_SUM] {
        b.set(field, a.get(field));
    }
    b.set(Cqe::TIMESTAMP, a.get(Cqe::TIMESTAMP));
    a.bytes() == b.bytes()
}

impl Session {
    pub(crate) fn new(format: u32) -> Self {
        Self { format, title: None, minis: Vec::new(), generation: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.minis.len() as u32
    }

    pub(crate) fn is_open(&self, generation: u32) -> bool {
        self.generation == generation && self.title.is_some()
    }

    /// Adds a completion, if it can wait with those that do. `left`: entries from the first of them to the end of the ring.
    /// Consumers may count on it that no block goes on at the ring's beginning (DPDK, net/mlx5: the receive functions with
    /// vectors write to the buffers of a block one after another).
    pub(crate) fn join(&mut self, cqe: &Cqe, left: u32) -> Joined {
        if !can_wait(cqe) {
            return Joined::Not;
        }
        let mini = Mini::new(cqe);
        let Some(title) = &self.title else {
            self.title = Some(*cqe);
            self.minis.push(mini);
            self.generation = self.generation.wrapping_add(1);
            return Joined::First(self.generation);
        };
        // Where each mini CQE tells its index, they need not follow each other.
        let next = (title.get(Cqe::WQE_COUNTER) as u16).wrapping_add(self.minis.len() as u16);
        let follows = self.format == mini_format::CHECKSUM_STRIDE || next == mini.index;
        let full = self.len() >= MAX_COMPRESSED.min(left);
        if full || !follows || !alike(title, cqe) {
            return Joined::Not;
        }
        self.minis.push(mini);
        Joined::Next
    }

    /// Ends the session: returns its completions as a block. [`Session::recycle`] takes the block back.
    pub(crate) fn close(&mut self) -> Option<Block> {
        let mut title = self.title.take()?;
        let minis = std::mem::take(&mut self.minis);
        if minis.len() > 1 {
            title.set(Cqe::FORMAT, CqeFormat::Compressed as u32).set(Cqe::BYTE_CNT, minis.len() as u32);
        }
        Some(Block { title, minis, format: self.format })
    }

    /// Keeps the memory of a block that was written for the next session.
    pub(crate) fn recycle(&mut self, block: Block) {
        let mut minis = block.minis;
        if self.minis.is_empty() {
            minis.clear();
            self.minis = minis;
        }
    }
}

/// Completions that are written together: arrays of mini CQEs, then the title.
#[must_use]
#[derive(Debug)]
pub(crate) struct Block {
    title: Cqe,
    /// One for each completion.
    minis: Vec<Mini>,
    /// What mini CQEs say.
    format: u32,
}

impl Block {
    /// Completions in the block: so many entries of the queue belong to it.
    pub(crate) fn len(&self) -> u32 {
        self.minis.len() as u32
    }

    /// The entry that is written last.
    pub(crate) fn title(&self) -> &Cqe {
        &self.title
    }

    /// The entries with mini CQEs, each with its distance from the title in entries. None if the title stands alone.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = (u32, [u8; ARRAY])> {
        let minis = if self.minis.len() < 2 { &[][..] } else { &self.minis[..] };
        let array = |(i, minis): (usize, &[Mini])| {
            let mut bytes = [0; ARRAY];
            for (to, mini) in bytes.chunks_exact_mut(MiniCqe::SIZE).zip(minis) {
                to.copy_from_slice(mini.entry(self.format).bytes());
            }
            (if i == 0 { 1 } else { i as u32 * MINI_CQES }, bytes)
        };
        minis.chunks(MINI_CQES as usize).enumerate().map(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cqe(index: u32, len: u32) -> Cqe {
        let mut c = Cqe::new();
        c.set(Cqe::OPCODE, CqeOpcode::RespSend as u32).set(Cqe::QPN, 0x42);
        c.set(Cqe::WQE_COUNTER, index).set(Cqe::BYTE_CNT, len).set(Cqe::TIMESTAMP, u64::from(index));
        c
    }

    #[test]
    fn one_alone_stays_plain() {
        let mut s = Session::new(mini_format::HASH);
        assert_eq!(s.join(&cqe(5, 10), 64), Joined::First(1));
        let block = s.close().unwrap();
        assert_eq!((block.len(), block.arrays().count()), (1, 0));
        assert_eq!((block.title().get(Cqe::FORMAT), block.title().get(Cqe::BYTE_CNT)), (0, 10));
        assert!(s.close().is_none() && !s.is_open(1));
        s.recycle(block);
        assert_eq!(
            (s.len(), s.join(&cqe(6, 10), 64)),
            (0, Joined::First(2)),
            "nothing is left of the first session"
        );
    }

    #[test]
    fn nine_need_two_arrays() {
        let mut s = Session::new(mini_format::CHECKSUM_STRIDE);
        assert_eq!(s.join(&cqe(0xfffe, 0), 64), Joined::First(1));
        for i in 1..9 {
            assert_eq!(s.join(&cqe((0xfffe + i) & 0xffff, i * 100), 64), Joined::Next);
        }
        let block = s.close().unwrap();
        assert_eq!((block.title().get(Cqe::FORMAT), block.title().get(Cqe::BYTE_CNT)), (3, 9));
        let arrays: Vec<_> = block.arrays().collect();
        assert_eq!(arrays.iter().map(|a| a.0).collect::<Vec<_>>(), [1, 8]);
        assert_eq!(arrays[0].1[16..24], [0, 0, 0, 0, 0, 0, 0, 200]);
        assert_eq!(arrays[0].1[24..32], [0, 0, 0, 1, 0, 0, 1, 44]);
        assert_eq!((&arrays[1].1[..8], &arrays[1].1[8..]), (&[0, 0, 0, 6, 0, 0, 3, 32][..], &[0; 56][..]));
    }

    #[test]
    fn hash_or_checksum_of_frames_is_in_each() {
        for (format, words) in [
            (mini_format::HASH, [[1, 2, 3, 4], [5, 6, 7, 8]]),
            (mini_format::CHECKSUM, [[0xaa, 0xbb, 0, 0], [0xcc, 0xdd, 0, 0]]),
            (mini_format::CHECKSUM_STRIDE, [[0xaa, 0xbb, 0, 3], [0xcc, 0xdd, 0, 4]]),
        ] {
            let mut s = Session::new(format);
            for (i, hash, sum) in [(3, 0x0102_0304, 0xaabb), (4, 0x0506_0708, 0xccdd)] {
                let mut cqe = cqe(i, 64);
                cqe.set(Cqe::RSS_HASH_RESULT, hash).set(Cqe::CHECK_SUM, sum);
                assert_ne!(s.join(&cqe, 64), Joined::Not);
            }
            let block = s.close().unwrap();
            let (_, bytes) = block.arrays().next().unwrap();
            assert_eq!((&bytes[..4], &bytes[8..12]), (&words[0][..], &words[1][..]));
        }
        let mut s = Session::new(mini_format::HASH);
        s.join(&cqe(3, 64), 64);
        let mut tagged = cqe(4, 64);
        tagged.set(Cqe::VLAN_STRIPPED, 1);
        assert_eq!(s.join(&tagged, 64), Joined::Not);
    }

    #[test]
    fn what_differs_does_not_join() {
        let mut s = Session::new(mini_format::HASH);
        s.join(&cqe(0, 10), 8);
        let mut other_qp = cqe(1, 10);
        other_qp.set(Cqe::QPN, 0x43);
        let mut imm = cqe(1, 10);
        imm.set(Cqe::OPCODE, CqeOpcode::RespSendImm as u32);
        let mut solicited = cqe(1, 10);
        solicited.set(Cqe::SE, 1);
        let mut data = cqe(1, 10);
        data.set(Cqe::FORMAT, CqeFormat::Data32 as u32);
        for c in [other_qp, imm, solicited, data, cqe(2, 10)] {
            assert_eq!(s.join(&c, 8), Joined::Not);
        }
        for i in 1..8 {
            assert_eq!(s.join(&cqe(i, 10), 8), Joined::Next);
        }
        assert_eq!(s.join(&cqe(8, 10), 8), Joined::Not, "no more than the ring has entries from there on");
    }
}
