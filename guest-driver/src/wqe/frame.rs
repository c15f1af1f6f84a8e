//! WQEs that send frames.
//!
//! Source: PRM "Ethernet segment"; `specs/doc/wqe.md`, "Ethernet send WQEs".

use hca_spec::ids::Qpn;
use hca_spec::wqe::{CE_ALWAYS, CE_ON_ERROR, Ctrl, DS_UNIT, EthOpcode, EthSeg};

use super::{Sge, Wqe, data};
use crate::error::Error;

/// Bytes of the inline header that are in the Ethernet segment itself.
const INLINE_START: usize = 2;
/// [`Ctrl::OPMOD`] of LSO: frames of equal length.
const EQUAL: u32 = 1;

/// What becomes of the bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameWork {
    /// Nothing is sent, but it completes.
    Nop,
    /// One frame: inline header and data.
    One,
    /// Large send: a frame for each so many bytes of data, each with the inline header, edited.
    Large {
        /// Bytes of data in a frame.
        mss: u16,
    },
    /// The data is frames of so many bytes, one behind the other.
    Equal {
        /// Bytes of a frame.
        len: u16,
    },
    /// Each piece of the data is a frame.
    Each,
}

/// A request to send frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRequest<'a> {
    /// The caller's number; [`crate::eth::Sq::finish`] gives it back.
    pub wr_id: u64,
    /// What is done.
    pub work: FrameWork,
    /// The inline header: first bytes of the frame.
    pub header: &'a [u8],
    /// What follows it.
    pub data: &'a [Sge],
    /// Checksums that are inserted: bits of [`hca_spec::wqe::cs_flags`].
    pub checksums: u32,
    /// TCI of a tag that is inserted; there is no inline header then.
    pub vlan: Option<u16>,
    /// Whether success is reported. Failure always is.
    pub signaled: bool,
}

impl<'a> FrameRequest<'a> {
    /// One frame, signalled, as it is.
    pub const fn new(wr_id: u64, header: &'a [u8], data: &'a [Sge]) -> Self {
        Self { wr_id, work: FrameWork::One, header, data, checksums: 0, vlan: None, signaled: true }
    }

    /// The same with checksums.
    pub const fn checksums(self, checksums: u32) -> Self {
        Self { checksums, ..self }
    }

    /// The same as another work.
    pub const fn work(self, work: FrameWork) -> Self {
        Self { work, ..self }
    }
}

impl Wqe {
    /// Builds the WQE of `request` for the send queue `sqn`, to stand at basic block `index`. What was built here before is
    /// gone.
    ///
    /// # Errors
    /// The request does not fit into a WQE or is contradictory.
    pub fn frame(&mut self, sqn: Qpn, index: u16, request: &FrameRequest<'_>) -> Result<(), Error> {
        self.bytes[..self.len].fill(0);
        self.len = 0;
        let mut ctrl = Ctrl::new();
        self.push(ctrl.bytes())?;
        let (opcode, modifier, mss) = match request.work {
            FrameWork::Nop => (EthOpcode::Nop, 0, 0),
            FrameWork::One => (EthOpcode::Send, 0, 0),
            FrameWork::Large { mss } => (EthOpcode::Lso, 0, mss),
            FrameWork::Equal { len } => (EthOpcode::Lso, EQUAL, len),
            FrameWork::Each => (EthOpcode::EnhancedMpsw, 0, 0),
        };
        if request.work != FrameWork::Nop {
            self.push_frame(request, mss)?;
        }
        ctrl.set(Ctrl::WQE_INDEX, index.into()).set(Ctrl::OPCODE, opcode as u32).set(Ctrl::QPN, sqn.0);
        ctrl.set(Ctrl::OPMOD, modifier).set(Ctrl::DS, (self.len / DS_UNIT) as u32);
        ctrl.set(Ctrl::CE, if request.signaled { CE_ALWAYS } else { CE_ON_ERROR });
        self.bytes[..Ctrl::SIZE].copy_from_slice(ctrl.bytes());
        Ok(())
    }

    fn push_frame(&mut self, request: &FrameRequest<'_>, mss: u16) -> Result<(), Error> {
        let mut segment = EthSeg::new();
        segment.set(EthSeg::CS_FLAGS, request.checksums).set(EthSeg::MSS, mss.into());
        let header = request.header;
        if let Some(tci) = request.vlan {
            if !header.is_empty() {
                return Err(Error::Invalid("a tag is inserted, or there is an inline header"));
            }
            segment.set(EthSeg::INSERT_VLAN, 1).set(EthSeg::VLAN_TCI, tci.into());
            self.push(segment.bytes())?;
        } else {
            if header.len() > EthSeg::INLINE_HEADER_SIZE.max() as usize {
                return Err(Error::Invalid("the request does not fit into a WQE"));
            }
            segment.set(EthSeg::INLINE_HEADER_SIZE, header.len() as u32);
            let (start, rest) = header.split_at(header.len().min(INLINE_START));
            let at = EthSeg::SIZE - INLINE_START;
            segment.bytes_mut()[at..at + start.len()].copy_from_slice(start);
            self.push(segment.bytes())?;
            self.push(rest)?;
        }
        request.data.iter().filter(|s| s.len > 0).try_for_each(|s| self.push(data(s).bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca_spec::ids::Mkey;
    use hca_spec::wqe::cs_flags;
    use std::vec::Vec;

    #[test]
    fn golden_frame() {
        let sge = [Sge { address: 0x1122_3344_5566_7788, len: 0x1000, key: Mkey(0x0102_0304) }];
        let header: Vec<u8> = (1..=18).collect();
        let mut wqe = Wqe::default();
        let request = FrameRequest::new(1, &header, &sge).checksums(cs_flags::L3 | cs_flags::L4);
        wqe.frame(Qpn(0x77), 5, &request.work(FrameWork::Large { mss: 1448 })).unwrap();
        let b = wqe.bytes();
        assert_eq!(b[..16], [0, 0, 5, 0x0e, 0, 0, 0x77, 4, 0, 0, 0, 8, 0, 0, 0, 0]);
        assert_eq!(b[16..32], [0, 0, 0, 0, 0xc0, 0, 5, 0xa8, 0, 0, 0, 0, 0, 18, 1, 2]);
        assert_eq!(b[32..48], (3..=18).collect::<Vec<u8>>()[..]);
        assert_eq!(b[48..56], [0, 0, 0x10, 0, 1, 2, 3, 4]);
        let tagged = FrameRequest { vlan: Some(0x2064), header: &[], ..request };
        wqe.frame(Qpn(0x77), 6, &tagged).unwrap();
        assert_eq!((wqe.bytes()[3], wqe.bytes()[7]), (0x0a, 3));
        assert_eq!(wqe.bytes()[28..32], [0x80, 0, 0x20, 0x64]);
        assert!(wqe.frame(Qpn(0x77), 6, &FrameRequest { vlan: Some(1), ..request }).is_err());
        wqe.frame(Qpn(0x77), 7, &request.work(FrameWork::Nop)).unwrap();
        assert_eq!((wqe.bytes()[3], wqe.bytes()[7], wqe.blocks()), (0, 1, 1));
        wqe.frame(Qpn(0x77), 8, &FrameRequest::new(1, &[], &sge).work(FrameWork::Equal { len: 64 })).unwrap();
        assert_eq!(wqe.bytes()[..8], [1, 0, 8, 0x0e, 0, 0, 0x77, 3]);
    }
}
