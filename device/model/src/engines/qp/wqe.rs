//! Parsing a send WQE into an owned value: it is read from guest memory once.
//!
//! Source: PRM "Work Queue Element (WQE) Format".

use hca_spec::bsf::SetPsv;
use hca_spec::ids::Mkey;
use hca_spec::mkc::Mkc;
use hca_spec::qpc::ServiceType;
use hca_spec::wqe::{
    AtomicMasks, AtomicSeg, AtomicSeg4, CE_ALWAYS, CE_ON_FIRST_ERROR, Ctrl, DS_UNIT, Data, Datagram,
    RemoteAddr, SendOpcode, UmrCtrl, WQEBB, XrcSeg, extended_atomic, without_opcode,
};
use hca_spec::xrq::TagSeg;
use zerocopy::FromBytes;

use super::tags::Offload;
use crate::engines::pieces::{Inline, Piece, total};
use crate::wire::Masks;

/// [`Ctrl::FM`]: wait for earlier changes of memory keys, not for reads.
const FENCE_SMALL: u32 = 1;
/// The same: wait for everything.
const STRONG_ORDERING: u32 = 3;
/// log2 of the bytes of an atomic's operand without masks.
const LOG_OPERAND: u8 = 3;

/// What a UMR WQE asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Umr {
    pub(crate) ctrl: UmrCtrl,
    pub(crate) mkc: Mkc,
    /// What follows: inline translations, or empty.
    pub(crate) inline: Vec<u8>,
}

/// A send WQE.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wqe {
    pub(crate) index: u16,
    pub(crate) opcode: SendOpcode,
    pub(crate) signaled: bool,
    /// Nobody is told if it is flushed ([`CE_ON_FIRST_ERROR`]).
    pub(crate) quiet: bool,
    pub(crate) solicited: bool,
    /// It waits for reads and atomics before it.
    pub(crate) fence: bool,
    /// It waits until all before it are complete.
    pub(crate) ordered: bool,
    pub(crate) imm: u32,
    pub(crate) remote: Option<(u64, Mkey)>,
    pub(crate) atomic: Option<(u64, u64)>,
    pub(crate) masks: Option<Masks>,
    pub(crate) datagram: Option<Datagram>,
    pub(crate) xrc_srqn: Option<u32>,
    /// Of a DC initiator: where to.
    pub(crate) target: Option<Datagram>,
    /// Initiators of dynamic connections: its stream, if it could be read.
    pub(crate) stream: Option<u16>,
    pub(crate) umr: Option<Box<Umr>>,
    pub(crate) psv: Option<SetPsv>,
    /// What is changed in a list of tags.
    pub(crate) tags: Option<TagSeg>,
    /// It is no WQE of the driver: the adapter does it by itself.
    pub(crate) offload: Option<Offload>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) length: u64,
}

impl Wqe {
    /// What it takes of the server's memory.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        let umr = if self.umr.is_some() { size_of::<Umr>() } else { 0 };
        size_of::<Self>() + umr + self.pieces.capacity() * size_of::<Piece>()
    }
}

/// Why a WQE can't be executed: in plain words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadWqe(pub(crate) &'static str);

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + Copy>(
        &mut self,
    ) -> Result<T, BadWqe> {
        let (value, rest) =
            T::read_from_prefix(self.0).map_err(|_| BadWqe("DS is too small for its segments"))?;
        self.0 = rest;
        Ok(value)
    }

    /// A DC initiator's address vector: its second half is there if it says so.
    fn target(&mut self) -> Result<Datagram, BadWqe> {
        const SHORT: usize = 16;
        let mut vector = Datagram::from_prefix_or_zero(self.0);
        if vector.get(Datagram::EXT) == 1 {
            return self.take();
        }
        let short = self.bytes(SHORT)?;
        vector = Datagram::new();
        vector.bytes_mut().iter_mut().zip(short).for_each(|(to, from)| *to = *from);
        Ok(vector)
    }

    /// The segments of a masked atomic, whose operand has the size that `opmod` tells.
    fn masked(&mut self, opcode: SendOpcode, opmod: u32) -> Result<((u64, u64), Masks), BadWqe> {
        const WORD: u8 = 2;
        const DOUBLE: u8 = 3;
        if opmod == extended_atomic(WORD) {
            let seg: AtomicSeg4 = self.take()?;
            let operands = (seg.get(AtomicSeg4::SWAP_ADD).into(), seg.get(AtomicSeg4::COMPARE).into());
            let mut masks = Masks { log_size: WORD, ..Masks::default() };
            if opcode == SendOpcode::AtomicMaskedCs {
                masks.swap = seg.get(AtomicSeg4::SWAP_MASK).into();
                masks.compare = seg.get(AtomicSeg4::COMPARE_MASK).into();
            }
            return Ok((operands, masks));
        }
        if opmod != extended_atomic(DOUBLE) {
            return Err(BadWqe("opmod names no operand of a masked atomic: 8 for 4 bytes, 9 for 8"));
        }
        let seg: AtomicSeg = self.take()?;
        let mut masks = Masks { log_size: DOUBLE, ..Masks::default() };
        if opcode == SendOpcode::AtomicMaskedCs {
            let more: AtomicMasks = self.take()?;
            (masks.swap, masks.compare) = (more.get(AtomicMasks::SWAP), more.get(AtomicMasks::COMPARE));
        }
        Ok(((seg.get(AtomicSeg::SWAP_ADD), seg.get(AtomicSeg::COMPARE)), masks))
    }

    fn bytes(&mut self, n: usize) -> Result<&'a [u8], BadWqe> {
        let (now, rest) = self.0.split_at_checked(n).ok_or(BadWqe("inline data is longer than the WQE"))?;
        self.0 = rest;
        Ok(now)
    }
}

impl Wqe {
    /// Lines of 64 bytes that it has behind the first, as data in it makes them.
    pub(crate) fn further_lines(&self) -> u64 {
        /// Bytes before the data, which say how long it is.
        const HEADER: u64 = 4;
        let inline: u64 = self.pieces.iter().filter(|piece| !piece.is_memory()).map(Piece::len).sum();
        if inline == 0 {
            return 0;
        }
        let vector = if self.datagram.is_some() || self.target.is_some() { Datagram::SIZE } else { 0 };
        let remote = self.remote.map_or(0, |_| RemoteAddr::SIZE);
        ((Ctrl::SIZE + vector + remote) as u64 + HEADER + inline).div_ceil(WQEBB as u64) - 1
    }

    /// A WQE of which no more is known.
    pub(super) const fn new(index: u16, opcode: SendOpcode) -> Self {
        Self {
            index,
            opcode,
            signaled: false,
            quiet: false,
            solicited: false,
            fence: false,
            ordered: false,
            imm: 0,
            remote: None,
            atomic: None,
            masks: None,
            datagram: None,
            xrc_srqn: None,
            target: None,
            stream: None,
            umr: None,
            psv: None,
            tags: None,
            offload: None,
            pieces: Vec::new(),
            length: 0,
        }
    }

    /// Whether it is a read or an atomic: what the peer answers goes into its pieces.
    pub(crate) fn wants_response(&self) -> bool {
        self.opcode == SendOpcode::RdmaRead || self.opcode.is_atomic()
    }

    /// Bytes of an atomic's operand.
    pub(crate) fn operand(&self) -> u64 {
        1 << self.masks.map_or(LOG_OPERAND, |masks| masks.log_size)
    }

    /// Stands for a WQE that could not be read, so that it can be completed with an error.
    pub(crate) fn unreadable(index: u16) -> Self {
        Self { signaled: true, ..Self::new(index, SendOpcode::Nop) }
    }

    /// As a new one; the room for pieces stays.
    #[inline]
    fn clear(&mut self) {
        // Every field is named, so that a new one cannot be forgotten here.
        let Self {
            index,
            opcode,
            signaled,
            quiet,
            solicited,
            fence,
            ordered,
            imm,
            remote,
            atomic,
            masks,
            datagram,
            xrc_srqn,
            target,
            stream,
            umr,
            psv,
            tags,
            offload,
            pieces,
            length,
        } = self;
        (*index, *opcode, *imm, *length) = (0, SendOpcode::Nop, 0, 0);
        (*signaled, *quiet, *solicited) = (false, false, false);
        (*fence, *ordered) = (false, false);
        (*remote, *atomic, *masks, *xrc_srqn) = (None, None, None, None);
        (*datagram, *target, *umr, *psv) = (None, None, None, None);
        (*stream, *tags, *offload) = (None, None, None);
        pieces.clear();
    }

    /// Parses the `DS * 16` bytes of a WQE of a queue pair with that service type. Nothing is left of what was here before.
    #[inline(always)]
    pub(crate) fn parse(
        &mut self,
        bytes: &[u8],
        service: ServiceType,
        xrc_initiator: bool,
    ) -> Result<(), BadWqe> {
        self.clear();
        let mut cursor = Cursor(bytes);
        let ctrl: Ctrl = cursor.take()?;
        let opcode = SendOpcode::from_bits(ctrl.get(Ctrl::OPCODE))
            .ok_or(BadWqe(without_opcode(ctrl.get(Ctrl::OPCODE))))?;
        (self.index, self.opcode) = (ctrl.get(Ctrl::WQE_INDEX) as u16, opcode);
        let told = ctrl.get(Ctrl::CE);
        (self.signaled, self.quiet) = (told >= CE_ALWAYS, told == CE_ON_FIRST_ERROR);
        self.solicited = ctrl.get(Ctrl::SE) == 1;
        // The small fence orders memory keys, which change in order anyway. A fence waits for reads and atomics, strong ordering for all.
        self.fence = ctrl.get(Ctrl::FM) > FENCE_SMALL;
        self.ordered = ctrl.get(Ctrl::FM) == STRONG_ORDERING;
        self.imm = ctrl.get(Ctrl::IMM);
        self.stream = Some(ctrl.get(Ctrl::DCI_STREAM_CHANNEL_ID) as u16);
        let wqe = self;
        match opcode {
            SendOpcode::Nop | SendOpcode::LocalInval => return Ok(()),
            SendOpcode::SetPsv => {
                wqe.psv = Some(cursor.take()?);
                return Ok(());
            }
            SendOpcode::TagMatching => wqe.tags = Some(cursor.take()?),
            SendOpcode::Umr => {
                wqe.umr =
                    Some(Box::new(Umr { ctrl: cursor.take()?, mkc: cursor.take()?, inline: Vec::new() }));
            }
            _ if service.is_datagram() => wqe.datagram = Some(cursor.take()?),
            _ if service == ServiceType::Dci => wqe.target = Some(cursor.target()?),
            _ if xrc_initiator => wqe.xrc_srqn = Some(cursor.take::<XrcSeg>()?.get(XrcSeg::SRQN)),
            _ => {}
        }
        let reads = wqe.wants_response();
        if reads || matches!(opcode, SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm) {
            let raddr: RemoteAddr = cursor.take()?;
            wqe.remote = Some((raddr.get(RemoteAddr::VA), Mkey(raddr.get(RemoteAddr::RKEY))));
        }
        if opcode.is_masked() {
            let (operands, masks) = cursor.masked(opcode, ctrl.get(Ctrl::OPMOD))?;
            (wqe.atomic, wqe.masks) = (Some(operands), Some(masks));
        } else if opcode.is_atomic() {
            let atomic: AtomicSeg = cursor.take()?;
            wqe.atomic = Some((atomic.get(AtomicSeg::SWAP_ADD), atomic.get(AtomicSeg::COMPARE)));
        }
        if let Some(umr) = wqe.umr.as_mut().filter(|u| u.ctrl.get(UmrCtrl::INLINE) == 1) {
            umr.inline = cursor.0.to_vec();
            return Ok(());
        }
        while cursor.0.len() >= DS_UNIT {
            let word: [u8; 4] = cursor.0.first_chunk().copied().unwrap_or_default();
            let mut head = Data::new();
            head.bytes_mut()[..4].copy_from_slice(&word);
            if head.get(Data::INLINE) == 1 {
                let len = head.get(Data::INLINE_LENGTH) as usize;
                let padded = (4 + len).next_multiple_of(DS_UNIT).min(cursor.0.len());
                let all = cursor.bytes(padded)?;
                let data = all.get(4..4 + len).ok_or(BadWqe("inline data is longer than the WQE"))?;
                wqe.pieces.push(Piece::Inline(Inline::from_slice(data)));
            } else {
                let data: Data = cursor.take()?;
                let len = data.get(Data::BYTE_COUNT);
                if len > 0 {
                    wqe.pieces.push(Piece::Memory {
                        key: Mkey(data.get(Data::LKEY)),
                        va: data.get(Data::ADDRESS),
                        len,
                    });
                }
            }
        }
        wqe.length = total(&wqe.pieces);
        if reads && wqe.pieces.iter().any(|p| matches!(p, Piece::Inline(_))) {
            return Err(BadWqe("what is read can't go into the WQE"));
        }
        if wqe.atomic.is_some() && wqe.pieces.is_empty() {
            return Err(BadWqe("an atomic operation needs a local buffer"));
        }
        Ok(())
    }
}

/// WQEs that are done: others take their memory, so that they cost no allocation.
#[derive(Debug, Default)]
#[allow(clippy::vec_box, reason = "they change hands as boxes")]
pub(crate) struct SpareWqes(Vec<Box<Wqe>>);

impl SpareWqes {
    /// So many are kept at most.
    const KEPT: usize = 64;

    /// A WQE of any content.
    #[inline]
    pub(crate) fn take(&mut self) -> Box<Wqe> {
        self.0.pop().unwrap_or_else(|| Box::new(Wqe::unreadable(0)))
    }

    /// Nobody needs that one any more.
    #[inline]
    pub(crate) fn give(&mut self, wqe: Box<Wqe>) {
        if self.0.len() < Self::KEPT {
            self.0.push(wqe);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ctrl(opcode: SendOpcode, ds: u32) -> Ctrl {
        let mut c = Ctrl::new();
        c.set(Ctrl::OPCODE, opcode as u32).set(Ctrl::DS, ds).set(Ctrl::CE, 2).set(Ctrl::WQE_INDEX, 7);
        c
    }

    fn parse(bytes: &[u8]) -> Result<Wqe, BadWqe> {
        let mut wqe = Wqe::unreadable(9);
        wqe.pieces = vec![Piece::Inline(Inline::from_elem(1, 4)); 3];
        wqe.parse(bytes, ServiceType::Rc, false).map(|()| wqe)
    }

    /// An opcode that others of the family have is named.
    #[test]
    fn opcodes_that_are_not_there() {
        for (opcode, name) in [(0x0f, "WAIT"), (0x23, "DUMP"), (0x2f, "MMO"), (0x7f, "unknown opcode")] {
            let mut c = ctrl(SendOpcode::Nop, 1);
            c.set(Ctrl::OPCODE, opcode);
            let BadWqe(why) = parse(c.bytes()).unwrap_err();
            assert!(why.contains(name), "{opcode:#x}: {why}");
        }
    }

    #[test]
    fn write_with_inline() {
        let mut b = ctrl(SendOpcode::RdmaWrite, 3).bytes().to_vec();
        let mut r = RemoteAddr::new();
        r.set(RemoteAddr::VA, 0x1000).set(RemoteAddr::RKEY, 0x42);
        b.extend(r.bytes());
        b.extend([0x80, 0, 0, 5]);
        b.extend(b"hello.......");
        let w = parse(&b).unwrap();
        assert_eq!((w.index, w.signaled, w.length, w.remote), (7, true, 5, Some((0x1000, Mkey(0x42)))));
        assert_eq!(w.pieces, [Piece::Inline(Inline::from_slice(b"hello"))]);
    }

    #[test]
    fn data_makes_further_lines() {
        let mut wqe = Wqe::unreadable(9);
        let mut lines = |pieces: &[Piece]| {
            wqe.pieces = pieces.to_vec();
            wqe.further_lines()
        };
        let inline = |len| [Piece::Inline(Inline::from_elem(1, len))];
        assert_eq!([lines(&inline(44)), lines(&inline(45))], [0, 1], "16 and 4 bytes are before it");
        let memory = Piece::Memory { key: Mkey(1), va: 0, len: 4096 };
        assert_eq!([lines(&[]), lines(&[memory])], [0, 0], "what it points to is not in it");
        wqe.remote = Some((0, Mkey(1)));
        wqe.pieces = inline(28).to_vec();
        assert_eq!(wqe.further_lines(), 0);
        (wqe.remote, wqe.datagram) = (None, Some(Datagram::new()));
        wqe.pieces = inline(60).to_vec();
        assert_eq!(wqe.further_lines(), 1);
    }

    #[test]
    fn masked_atomics_tell_their_size() {
        let whole = |opcode, opmod: u32, segments: &[u8], len: u32| {
            let mut c = ctrl(opcode, 0);
            let mut data = Data::new();
            data.set(Data::BYTE_COUNT, len).set(Data::LKEY, 5).set(Data::ADDRESS, 64);
            let remote = [0; RemoteAddr::SIZE];
            let b = [c.set(Ctrl::OPMOD, opmod).bytes(), &remote[..], segments, data.bytes()].concat();
            parse(&b)
        };
        let (cs, fa) = (SendOpcode::AtomicMaskedCs, SendOpcode::AtomicMaskedFa);
        let words: Vec<u8> = (1..=4u32).flat_map(u32::to_be_bytes).collect();
        let doubles: Vec<u8> = (1..=4u64).flat_map(u64::to_be_bytes).collect();
        let w = whole(cs, 8, &words, 4).unwrap();
        assert_eq!((w.atomic, w.masks), (Some((1, 2)), Some(Masks { swap: 3, compare: 4, log_size: 2 })));
        let w = whole(cs, 9, &doubles, 8).unwrap();
        assert_eq!((w.atomic, w.masks), (Some((1, 2)), Some(Masks { swap: 3, compare: 4, log_size: 3 })));
        let w = whole(fa, 8, &words, 4).unwrap();
        assert_eq!((w.atomic, w.masks), (Some((1, 2)), Some(Masks { log_size: 2, ..Masks::default() })));
        let w = whole(fa, 9, &doubles[..16], 8).unwrap();
        assert_eq!((w.atomic, w.masks), (Some((1, 2)), Some(Masks { log_size: 3, ..Masks::default() })));
        // Whether the buffer has that size is asked when the WQE is begun.
        for (opmod, len) in [(8, 8), (8, 2), (9, 4), (9, 16)] {
            let segments = if opmod == 8 { &words } else { &doubles };
            let w = whole(cs, opmod, segments, len).unwrap();
            assert_eq!((w.operand(), w.length), (1 << (opmod - 6), len.into()));
        }
        for (opmod, len) in [(0, 8), (1, 8), (7, 2), (10, 16), (0xff, 8)] {
            assert!(whole(cs, opmod, &doubles, len).is_err(), "{opmod:#x} {len}");
            assert!(whole(fa, opmod, &doubles[..16], len).is_err(), "{opmod:#x} {len}");
        }
    }

    #[test]
    fn truncated_is_bad() {
        let b = ctrl(SendOpcode::RdmaRead, 1).bytes().to_vec();
        assert!(parse(&b).is_err());
        assert!(parse(&[]).is_err());
        let mut b = ctrl(SendOpcode::Send, 2).bytes().to_vec();
        b.extend([0x80, 0, 3, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(parse(&b).is_err(), "inline length beyond the end");
    }
}
