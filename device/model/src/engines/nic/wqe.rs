//! A WQE of an Ethernet send queue as an owned value: it is read from guest memory once.
//!
//! Source: PRM "Work Queue Element (WQE) Format", "Ethernet segment"; mlx5 driver (field use); `specs/doc/wqe.md`, "Ethernet send WQEs".

use hca_spec::ether::{HEADER_SIZE, ethertype};
use hca_spec::ids::Mkey;
use hca_spec::wqe::{CE_ALWAYS, CE_ON_FIRST_ERROR, Ctrl, DS_UNIT, Data, EthOpcode, EthSeg, without_opcode};

use super::Refused;
use super::segment::MAX_DATA;
use super::transmit::Checksums;
use crate::engines::pieces::{Inline, Piece, total, walk};
use crate::wire::ethernet::Tag;

/// Bytes of the inline header that are in the Ethernet segment.
const INLINE_START: usize = 2;
/// [`Ctrl::OPMOD`] of LSO: a multi-packet WQE of the old form.
const MULTI_PACKET: u32 = 1;
/// The most frames of a multi-packet WQE: it has at most 63 units of 16 bytes, and no driver packs more than one frame into one.
const MAX_FRAMES: u64 = 63;

/// What becomes one frame, or what LSO cuts into frames.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    pub(crate) checksums: Checksums,
    /// What flow tables of frames that are sent compare as register A.
    pub(crate) metadata: u32,
    /// A tag to insert; there is no inline header then.
    pub(crate) vlan: Option<Tag>,
    /// The inline header: the first bytes of the frame.
    pub(crate) header: Vec<u8>,
    /// What follows it.
    pub(crate) pieces: Vec<Piece>,
    /// Bytes of all pieces.
    pub(crate) data: u64,
}

impl Frame {
    /// Whether a frame of this length may be gathered at all: its bytes are not read otherwise. `max_frame` as in
    /// [`super::transmit::Finish`].
    pub(crate) fn check(&self, max_frame: usize) -> Result<(), Refused> {
        if self.data.saturating_add(self.header.len() as u64) > max_frame as u64 {
            return Err(Refused::length("the frame is longer than any port's"));
        }
        Ok(())
    }
}

/// What a WQE asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Work {
    /// Nothing.
    Nop,
    /// One frame.
    Frame(Frame),
    /// Frames of `mss` bytes of data each: [`super::segment::Lso`].
    Lso { mss: u16, frame: Frame },
    /// Frames one after the other.
    Frames(Vec<Frame>),
    /// A change of a memory key: [`crate::engines::qp::wqe`] reads it.
    Umr,
}

/// A send WQE.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EthWqe {
    /// Index of its first basic block: what the completion says.
    pub(crate) index: u16,
    /// The send queue that it says it is of.
    pub(crate) sqn: u32,
    /// What the completion says.
    pub(crate) opcode: u8,
    pub(crate) signaled: bool,
    /// Nobody is told if it is flushed ([`CE_ON_FIRST_ERROR`]).
    pub(crate) quiet: bool,
    pub(crate) solicited: bool,
    pub(crate) work: Work,
}

/// Bytes of a WQE that are not read yet.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, n: usize, why: &'static str) -> Result<&'a [u8], Refused> {
        let (now, rest) = self.0.split_at_checked(n).ok_or(Refused::malformed(why))?;
        self.0 = rest;
        Ok(now)
    }

    /// The inline header, whose first bytes are at the end of `segment`.
    fn header(&mut self, segment: &EthSeg) -> Result<Vec<u8>, Refused> {
        let size = segment.get(EthSeg::INLINE_HEADER_SIZE) as usize;
        let more = size.saturating_sub(INLINE_START);
        let start = segment.bytes().last_chunk::<INLINE_START>().copied().unwrap_or_default();
        let rest = self.bytes(more.next_multiple_of(DS_UNIT), "the inline header is longer than the WQE")?;
        let mut header = Vec::with_capacity(size);
        header.extend(start.iter().take(size));
        header.extend(rest.iter().take(more));
        Ok(header)
    }

    /// The data segments up to the end of the WQE.
    fn pieces(&mut self) -> Result<Vec<Piece>, Refused> {
        let mut pieces = Vec::new();
        while self.0.len() >= DS_UNIT {
            let data = Data::from_prefix_or_zero(self.0);
            if data.get(Data::INLINE) == 1 {
                const WORD: usize = 4;
                const LONG: &str = "inline data is longer than the WQE";
                let len = data.get(Data::INLINE_LENGTH) as usize;
                let padded = (WORD + len).next_multiple_of(DS_UNIT);
                let all = self.bytes(padded, LONG)?;
                let inline = all.get(WORD..WORD + len).ok_or(Refused::malformed(LONG))?;
                if !inline.is_empty() {
                    pieces.push(Piece::Inline(Inline::from_slice(inline)));
                }
            } else {
                self.bytes(DS_UNIT, "DS is too small for its segments")?;
                let len = data.get(Data::BYTE_COUNT);
                if len > 0 {
                    let (key, va) = (Mkey(data.get(Data::LKEY)), data.get(Data::ADDRESS));
                    pieces.push(Piece::Memory { key, va, len });
                }
            }
        }
        Ok(pieces)
    }
}

/// Bytes `offset..offset + len` of a list, as a list.
fn part(pieces: &[Piece], offset: u64, len: u16) -> Vec<Piece> {
    let mut part = Vec::new();
    let visited = walk(pieces, offset, len.into(), |piece, skip, n| {
        part.push(match piece {
            Piece::Memory { key, va, .. } => {
                Piece::Memory { key: *key, va: va.wrapping_add(skip), len: n as u32 }
            }
            Piece::Inline(data) => Piece::Inline(data.iter().skip(skip as usize).take(n).copied().collect()),
        });
        Ok(())
    });
    debug_assert!(visited.is_ok(), "the visitor has no errors");
    part
}

impl EthWqe {
    /// Reads the `DS * 16` bytes of a WQE.
    ///
    /// Fences are not looked at: nothing in an Ethernet send queue is read back, so there is nothing to wait for. Software parser
    /// offsets and flow table metadata are not looked at either: the capabilities that offer them are 0.
    ///
    /// # Errors
    /// What it says can't be done.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        let mut cursor = Cursor(bytes);
        const SHORT: &str = "DS is too small for its segments";
        let ctrl = Ctrl::from_prefix_or_zero(cursor.bytes(Ctrl::SIZE, SHORT)?);
        let opcode = ctrl.get(Ctrl::OPCODE);
        let known = EthOpcode::from_bits(opcode).ok_or(Refused::malformed(without_opcode(opcode)))?;
        let mut wqe = Self {
            index: ctrl.get(Ctrl::WQE_INDEX) as u16,
            sqn: ctrl.get(Ctrl::QPN),
            opcode: opcode as u8,
            signaled: ctrl.get(Ctrl::CE) >= CE_ALWAYS,
            quiet: ctrl.get(Ctrl::CE) == CE_ON_FIRST_ERROR,
            solicited: ctrl.get(Ctrl::SE) == 1,
            work: match known {
                EthOpcode::Umr => Work::Umr,
                _ => Work::Nop,
            },
        };
        if matches!(known, EthOpcode::Nop | EthOpcode::Umr) {
            return Ok(wqe);
        }
        let segment = EthSeg::from_prefix_or_zero(cursor.bytes(EthSeg::SIZE, SHORT)?);
        let vlan = (segment.get(EthSeg::INSERT_VLAN) == 1).then(|| Tag {
            tpid: if segment.get(EthSeg::INSERT_SVLAN) == 1 { ethertype::S_TAG } else { ethertype::C_TAG },
            tci: segment.get(EthSeg::VLAN_TCI) as u16,
        });
        let header = if vlan.is_some() { Vec::new() } else { cursor.header(&segment)? };
        let pieces = cursor.pieces()?;
        let data = total(&pieces);
        let checksums = Checksums::from_bits(segment.get(EthSeg::CS_FLAGS));
        let metadata = segment.get(EthSeg::FLOW_TABLE_METADATA);
        let frame = Frame { checksums, metadata, vlan, header, pieces, data };
        let mss = segment.get(EthSeg::MSS) as u16;
        wqe.work = match known {
            EthOpcode::Send => Work::Frame(frame),
            EthOpcode::Lso if ctrl.get(Ctrl::OPMOD) == MULTI_PACKET => Work::Frames(frames_of(frame, mss)?),
            EthOpcode::Lso => {
                if frame.vlan.is_some() {
                    return Err(Refused::malformed("LSO that inserts a tag: the inline header has no place"));
                }
                if frame.data > MAX_DATA {
                    return Err(Refused::length("LSO with more data than the adapter sends at once"));
                }
                Work::Lso { mss, frame }
            }
            EthOpcode::EnhancedMpsw => Work::Frames(one_each(frame)?),
            EthOpcode::Nop | EthOpcode::Umr => Work::Nop,
        };
        Ok(wqe)
    }

    /// How many frames leave, at least one; with it the executor books the WQE.
    pub(crate) fn frames(&self) -> u64 {
        match &self.work {
            Work::Nop | Work::Umr => 0,
            Work::Frame(_) => 1,
            Work::Lso { mss, frame } => frame.data.div_ceil(u64::from(*mss).max(1)).max(1),
            Work::Frames(frames) => frames.len() as u64,
        }
    }
}

fn no_inline_header(frame: &Frame) -> Result<(), Refused> {
    if frame.header.is_empty() {
        return Ok(());
    }
    Err(Refused::malformed("a multi-packet WQE with an inline header"))
}

/// The frames of a multi-packet WQE of the old form: equal parts of its data.
fn frames_of(all: Frame, len: u16) -> Result<Vec<Frame>, Refused> {
    no_inline_header(&all)?;
    if usize::from(len) < HEADER_SIZE {
        return Err(Refused::length("the frames of a multi-packet WQE are shorter than an Ethernet header"));
    }
    let count = all.data / u64::from(len);
    if !all.data.is_multiple_of(len.into()) || count == 0 || count > MAX_FRAMES {
        return Err(Refused::malformed(
            "the data of a multi-packet WQE is not a number of frames of its length",
        ));
    }
    let frame = |i: u64| Frame {
        pieces: part(&all.pieces, i * u64::from(len), len),
        data: len.into(),
        header: Vec::new(),
        ..all
    };
    Ok((0..count).map(frame).collect())
}

/// The frames of an enhanced multi-packet WQE: its data segments.
fn one_each(all: Frame) -> Result<Vec<Frame>, Refused> {
    no_inline_header(&all)?;
    if all.pieces.is_empty() {
        return Err(Refused::malformed("a multi-packet WQE without frames"));
    }
    let Frame { checksums, metadata, vlan, pieces, .. } = all;
    let frame = |piece: Piece| {
        let pieces = vec![piece];
        Frame { checksums, metadata, vlan, header: Vec::new(), data: total(&pieces), pieces }
    };
    Ok(pieces.into_iter().map(frame).collect())
}

#[cfg(test)]
mod tests;
