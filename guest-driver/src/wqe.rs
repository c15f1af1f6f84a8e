//! Send work queue entries (WQE), built in memory of our own before they go to the ring.
//!
//! A WQE is a list of 16-byte segments, padded to basic blocks of 64 bytes: a control segment, then by
//! operation a datagram or remote address segment, then data (PRM "Work Queue Element (WQE) Format").

use crate::dct::Target;
use crate::error::Error;
use crate::eth::Hop;
use crate::tags::TagChange;
use crate::umr::KeyChange;
use hca_spec::bsf::{BSF_OCTWORDS, SetPsv};
use hca_spec::ids::{Gid, Lid, Mkey, Qpn, Srqn};
use hca_spec::wqe::{
    AtomicMasks, AtomicSeg, AtomicSeg4, CE_ALWAYS, CE_ON_ERROR, CE_ON_FIRST_ERROR, Ctrl, DS_UNIT, Data,
    Datagram as DatagramSeg, RemoteAddr, SendOpcode, TERMINATE_LKEY, UmrCtrl, WQEBB, XrcSeg, extended_atomic,
};

mod frame;

pub use frame::{FrameRequest, FrameWork};

/// The largest send WQE: the control segment counts 16-byte units in 6 bits.
pub const MAX_WQE: usize = 63 * DS_UNIT;
/// Fence mode "small fence and read fence": starts after every earlier RDMA read.
const FENCE: u32 = 4;
/// Fence mode "strong ordering": starts after everything before it is complete.
const STRONG_ORDERING: u32 = 3;

/// One piece of local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Address under the key.
    pub address: u64,
    /// Bytes; at most 2^31 - 1.
    pub len: u32,
    /// The local key.
    pub key: Mkey,
}

/// What a request operates on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// Pieces of registered memory.
    Gather(&'a [Sge]),
    /// Bytes that are copied into the WQE; not for RDMA reads and atomics.
    Inline(&'a [u8]),
}

/// Operands of masked atomics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicSize {
    /// 4 bytes.
    Word,
    /// 8 bytes.
    Double,
}

/// Where a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Queue pair at the other end.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
    /// Its port.
    pub lid: Lid,
    /// Service level.
    pub sl: u8,
    /// Destination GID; with one, the packet carries a GRH.
    pub gid: Option<Gid>,
}

/// Where a datagram goes over RoCE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoceDatagram {
    /// Queue pair at the other end.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
    /// Destination GID.
    pub gid: Gid,
    /// Index of the port's own RoCE address.
    pub sgid_index: u8,
    /// The rest of the way.
    pub hop: Hop,
}

/// What a send request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// Nothing, but it completes.
    Nop,
    /// Sends a message into a receive request of the peer.
    Send {
        /// Immediate data.
        imm: Option<u32>,
    },
    /// Sends a datagram.
    Datagram {
        /// Where to.
        to: Datagram,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// Sends a datagram over RoCE.
    RoceDatagram {
        /// Where to.
        to: RoceDatagram,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// Writes the peer's memory.
    Write {
        /// Address under the key.
        address: u64,
        /// The peer's key.
        rkey: Mkey,
        /// Immediate data; uses up a receive request of the peer.
        imm: Option<u32>,
    },
    /// Reads the peer's memory.
    Read {
        /// Address under the key.
        address: u64,
        /// The peer's key.
        rkey: Mkey,
    },
    /// Adds to 8 bytes of the peer's memory; the old value goes to the local piece, in host order.
    FetchAdd {
        /// Address under the key, a multiple of 8.
        address: u64,
        /// The peer's key.
        rkey: Mkey,
        /// What to add.
        add: u64,
    },
    /// Replaces 8 bytes of the peer's memory if they are as expected; the old value goes to the local
    /// piece, in host order.
    CompareSwap {
        /// Address under the key, a multiple of 8.
        address: u64,
        /// The peer's key.
        rkey: Mkey,
        /// The value expected.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds to fields of 4 or 8 bytes of the peer's memory; the old value goes to the local piece, in host order. For
    /// adapters with masked atomics.
    MaskedFetchAdd {
        /// Address under the key, a multiple of the size.
        address: u64,
        /// The peer's key.
        rkey: Mkey,
        /// How many bytes.
        size: AtomicSize,
        /// What to add.
        add: u64,
        /// The last bit of each field; nothing is carried beyond it.
        last: u64,
    },
    /// Replaces some bits of 4 or 8 bytes of the peer's memory if some are as expected; the old value goes to the local
    /// piece, in host order. For adapters with masked atomics.
    MaskedCompareSwap {
        /// Address under the key, a multiple of the size.
        address: u64,
        /// The peer's key.
        rkey: Mkey,
        /// How many bytes.
        size: AtomicSize,
        /// The value expected, and its bits that count.
        compare: (u64, u64),
        /// The new value, and its bits that are written.
        swap: (u64, u64),
    },
    /// Sends a message into a receive request of the peer, which also invalidates a key there.
    SendInvalidate {
        /// The peer's key.
        rkey: Mkey,
    },
    /// Changes a memory key. The payload, if there is any, is its new translations.
    Change(KeyChange),
    /// Sets a signature value of the queue pair's protection domain.
    SetPsv {
        /// Which.
        psv: u32,
        /// Its new value: the guard's seed in the highest bits.
        value: u64,
    },
    /// Changes the list of tags of the queue that the queue pair receives from; the payload is the buffer of a new entry.
    Tags(TagChange),
}

/// A send request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest<'a> {
    /// The caller's number; [`crate::Qp::finish`] gives it back.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// With which data.
    pub payload: Payload<'a>,
    /// Whether success is reported. Failure always is, but for what `quiet` says.
    pub signaled: bool,
    /// Of one whose success is not reported: nor that it was flushed behind another's failure.
    pub quiet: bool,
    /// Whether the peer's completion is solicited.
    pub solicited: bool,
    /// Whether to start only after all earlier RDMA reads are done.
    pub fence: bool,
    /// Whether to start only after all earlier requests are complete.
    pub ordered: bool,
    /// XRC: the peer's shared receive queue; its domain decides over remote accesses too.
    pub srq: Option<Srqn>,
    /// Dynamic connections: where to.
    pub target: Option<Target>,
    /// An initiator with streams: its stream.
    pub stream: u16,
}

impl<'a> SendRequest<'a> {
    /// A signalled request.
    pub const fn new(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> Self {
        let payload = Payload::Gather(sges);
        let (signaled, quiet, solicited, fence, ordered) = (true, false, false, false, false);
        let (srq, target, stream) = (None, None, 0);
        Self { wr_id, op, payload, signaled, quiet, solicited, fence, ordered, srq, target, stream }
    }

    /// A signalled send.
    pub const fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, SendOp::Send { imm: None }, sges)
    }

    /// A signalled RDMA write.
    pub const fn write(wr_id: u64, sges: &'a [Sge], address: u64, rkey: Mkey) -> Self {
        Self::new(wr_id, SendOp::Write { address, rkey, imm: None }, sges)
    }

    /// A signalled RDMA read.
    pub const fn read(wr_id: u64, sges: &'a [Sge], address: u64, rkey: Mkey) -> Self {
        Self::new(wr_id, SendOp::Read { address, rkey }, sges)
    }

    /// The same request with data in the WQE.
    pub const fn inline(self, data: &'a [u8]) -> Self {
        Self { payload: Payload::Inline(data), ..self }
    }

    /// The same request, not signalled.
    pub const fn unsignaled(self) -> Self {
        Self { signaled: false, ..self }
    }

    /// The same request, solicited.
    pub const fn solicited(self) -> Self {
        Self { solicited: true, ..self }
    }

    /// The same request, started only after all earlier RDMA reads and atomics are done.
    pub const fn fenced(self) -> Self {
        Self { fence: true, ..self }
    }

    /// The same request, started only after all earlier ones are complete.
    pub const fn ordered(self) -> Self {
        Self { ordered: true, ..self }
    }

    /// The same request to an XRC shared receive queue of the peer.
    pub const fn to_srq(self, srqn: Srqn) -> Self {
        Self { srq: Some(srqn), ..self }
    }

    /// The same request to a DC target.
    pub const fn to_target(self, target: Target) -> Self {
        Self { target: Some(target), ..self }
    }
}

/// A WQE under construction.
pub struct Wqe {
    bytes: [u8; MAX_WQE.next_multiple_of(WQEBB)],
    len: usize,
}

impl Default for Wqe {
    fn default() -> Self {
        Self { bytes: [0; MAX_WQE.next_multiple_of(WQEBB)], len: 0 }
    }
}

impl Wqe {
    /// Builds the WQE of `request` for the send queue of `qpn`, to stand at basic block `index`. What was built here before
    /// is gone: it is too large to be handed about, or to be made anew each time.
    ///
    /// # Errors
    /// The request does not fit into a WQE or is contradictory.
    pub fn send(&mut self, qpn: Qpn, index: u16, request: &SendRequest<'_>) -> Result<(), Error> {
        self.bytes[..self.len].fill(0);
        self.len = 0;
        let mut ctrl = Ctrl::new();
        self.push(ctrl.bytes())?;
        if let Some(srqn) = request.srq {
            self.push(XrcSeg::new().set(XrcSeg::SRQN, srqn.0).bytes())?;
        }
        if let Some(target) = request.target {
            self.push(target.vector().bytes())?;
        }
        let mut opmod = 0;
        let (opcode, imm) = match request.op {
            SendOp::Nop => (SendOpcode::Nop, None),
            SendOp::Send { imm } => (if imm.is_some() { SendOpcode::SendImm } else { SendOpcode::Send }, imm),
            SendOp::Datagram { to, imm } => {
                self.push(datagram(&to).bytes())?;
                (if imm.is_some() { SendOpcode::SendImm } else { SendOpcode::Send }, imm)
            }
            SendOp::RoceDatagram { to, imm } => {
                self.push(roce_datagram(&to).bytes())?;
                (if imm.is_some() { SendOpcode::SendImm } else { SendOpcode::Send }, imm)
            }
            SendOp::Write { address, rkey, imm } => {
                self.push(remote(address, rkey).bytes())?;
                (if imm.is_some() { SendOpcode::RdmaWriteImm } else { SendOpcode::RdmaWrite }, imm)
            }
            SendOp::Read { address, rkey } => {
                self.push(remote(address, rkey).bytes())?;
                (SendOpcode::RdmaRead, None)
            }
            SendOp::FetchAdd { address, rkey, add } => {
                self.push(remote(address, rkey).bytes())?;
                self.push(atomic(add, 0).bytes())?;
                (SendOpcode::AtomicFa, None)
            }
            SendOp::CompareSwap { address, rkey, compare, swap } => {
                self.push(remote(address, rkey).bytes())?;
                self.push(atomic(swap, compare).bytes())?;
                (SendOpcode::AtomicCs, None)
            }
            SendOp::MaskedFetchAdd { address, rkey, size, add, last } => {
                self.push(remote(address, rkey).bytes())?;
                match size {
                    AtomicSize::Word => self.push(words([add, last, 0, 0]).bytes())?,
                    AtomicSize::Double => self.push(atomic(add, last).bytes())?,
                }
                opmod = size.opmod();
                (SendOpcode::AtomicMaskedFa, None)
            }
            SendOp::MaskedCompareSwap { address, rkey, size, compare, swap } => {
                self.push(remote(address, rkey).bytes())?;
                match size {
                    AtomicSize::Word => self.push(words([swap.0, compare.0, swap.1, compare.1]).bytes())?,
                    AtomicSize::Double => {
                        let mut masks = AtomicMasks::new();
                        masks.set(AtomicMasks::SWAP, swap.1).set(AtomicMasks::COMPARE, compare.1);
                        self.push(atomic(swap.0, compare.0).bytes())?;
                        self.push(masks.bytes())?;
                    }
                }
                opmod = size.opmod();
                (SendOpcode::AtomicMaskedCs, None)
            }
            SendOp::SendInvalidate { rkey } => (SendOpcode::SendInval, Some(rkey.0)),
            SendOp::Change(change) => {
                self.push_change(&change, &request.payload)?;
                (SendOpcode::Umr, Some(change.key.0))
            }
            SendOp::SetPsv { psv, value } => {
                self.push(SetPsv::new().set(SetPsv::PSV, psv).set(SetPsv::VALUE, value).bytes())?;
                (SendOpcode::SetPsv, None)
            }
            SendOp::Tags(change) => {
                self.push(change.segment().bytes())?;
                (SendOpcode::TagMatching, None)
            }
        };
        match request.payload {
            // Translations are not a message: they have no header.
            Payload::Inline(bytes) if opcode == SendOpcode::Umr => self.push(bytes)?,
            // Empty pieces are left out: a byte count of 0 would mean 2 GiB (PRM "Memory Pointer Data Segment").
            Payload::Gather(sges) => {
                sges.iter().filter(|s| s.len > 0).try_for_each(|s| self.push(data(s).bytes()))?
            }
            Payload::Inline(_) if opcode == SendOpcode::RdmaRead || opcode.is_atomic() => {
                return Err(Error::Invalid("what is read can't be inline"));
            }
            Payload::Inline(bytes) => self.push_inline(bytes)?,
        }
        if let SendOp::Change(KeyChange { bsf, crypto, .. }) = &request.op {
            bsf.iter().try_for_each(|part| self.push(part.bytes()))?;
            crypto.iter().try_for_each(|part| self.push(part.bytes()))?;
        }
        ctrl.set(Ctrl::WQE_INDEX, index.into()).set(Ctrl::OPCODE, opcode as u32).set(Ctrl::QPN, qpn.0);
        ctrl.set(Ctrl::DS, (self.len / DS_UNIT) as u32).set(Ctrl::IMM, imm.unwrap_or(0));
        ctrl.set(Ctrl::OPMOD, opmod);
        let told = match (request.signaled, request.quiet) {
            (true, _) => CE_ALWAYS,
            (false, true) => CE_ON_FIRST_ERROR,
            (false, false) => CE_ON_ERROR,
        };
        ctrl.set(Ctrl::CE, told);
        ctrl.set(Ctrl::SE, request.solicited.into());
        ctrl.set(
            Ctrl::FM,
            match (request.ordered, request.fence) {
                (true, _) => STRONG_ORDERING,
                (false, true) => FENCE,
                (false, false) => 0,
            },
        );
        ctrl.set(Ctrl::DCI_STREAM_CHANNEL_ID, request.stream.into());
        self.bytes[..Ctrl::SIZE].copy_from_slice(ctrl.bytes());
        Ok(())
    }

    /// The WQE's bytes, padded to whole basic blocks.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.next_multiple_of(WQEBB)]
    }

    /// Basic blocks the WQE takes in the ring.
    pub fn blocks(&self) -> u16 {
        self.len.div_ceil(WQEBB) as u16
    }

    /// The doorbell that announces this WQE: its first 8 bytes.
    pub fn doorbell(&self) -> u64 {
        hca_spec::be64(&self.bytes, 0)
    }

    fn push(&mut self, segment: &[u8]) -> Result<(), Error> {
        let end = self.len + segment.len();
        if end > MAX_WQE {
            return Err(Error::Invalid("the request does not fit into a WQE"));
        }
        self.bytes[self.len..end].copy_from_slice(segment);
        self.len = end.next_multiple_of(DS_UNIT);
        Ok(())
    }

    /// UMR control segment and memory key context; translations follow.
    fn push_change(&mut self, change: &KeyChange, payload: &Payload<'_>) -> Result<(), Error> {
        let (inline, len) = match payload {
            Payload::Inline(bytes) => (1, bytes.len()),
            Payload::Gather([]) => (1, 0),
            Payload::Gather(sges) => (0, sges.iter().map(|s| s.len as usize).sum()),
        };
        let units = len.div_ceil(DS_UNIT);
        if units > UmrCtrl::XLT_OCTOWORDS.max() as usize {
            return Err(Error::Invalid("more translations than one request can load"));
        }
        let mut ctrl = change.ctrl;
        ctrl.set(UmrCtrl::INLINE, inline).set(UmrCtrl::XLT_OCTOWORDS, units as u32);
        let parts = u32::from(change.bsf.is_some()) + u32::from(change.crypto.is_some());
        if parts > 0 {
            if inline == 0 {
                return Err(Error::Invalid("signature and encryption parts need inline translations"));
            }
            ctrl.set(UmrCtrl::BSF_OCTOWORDS, parts * BSF_OCTWORDS);
        }
        self.push(ctrl.bytes())?;
        self.push(change.mkc.bytes())
    }

    /// Inline data follows the first word of its segment directly and is padded to 16 bytes.
    fn push_inline(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.len + size_of::<u32>() + bytes.len() > MAX_WQE {
            return Err(Error::Invalid("the request does not fit into a WQE"));
        }
        let mut head = Data::new();
        head.set(Data::INLINE, 1).set(Data::INLINE_LENGTH, bytes.len() as u32);
        let start = self.len;
        self.push(&head.bytes()[..size_of::<u32>()])?;
        self.bytes[start + size_of::<u32>()..][..bytes.len()].copy_from_slice(bytes);
        self.len = (start + size_of::<u32>() + bytes.len()).next_multiple_of(DS_UNIT);
        Ok(())
    }
}

/// Builds a receive WQE of `room` segments in `out`; a shorter list is ended by the terminating key.
pub fn receive(sges: &[Sge], room: usize, out: &mut [u8]) -> Result<(), Error> {
    if sges.len() > room || room * Data::SIZE > out.len() {
        return Err(Error::Invalid("more scatter entries than the queue was made for"));
    }
    out.fill(0);
    let mut segments = out.chunks_exact_mut(Data::SIZE);
    let filled = sges.iter().filter(|s| s.len > 0);
    for (sge, segment) in filled.zip(&mut segments) {
        segment.copy_from_slice(data(sge).bytes());
    }
    if let Some(segment) = segments.next() {
        let mut end = Data::new();
        end.set(Data::LKEY, TERMINATE_LKEY);
        segment.copy_from_slice(end.bytes());
    }
    Ok(())
}

fn data(sge: &Sge) -> Data {
    let mut data = Data::new();
    data.set(Data::BYTE_COUNT, sge.len).set(Data::LKEY, sge.key.0).set(Data::ADDRESS, sge.address);
    data
}

fn remote(address: u64, rkey: Mkey) -> RemoteAddr {
    let mut segment = RemoteAddr::new();
    segment.set(RemoteAddr::VA, address).set(RemoteAddr::RKEY, rkey.0);
    segment
}

fn atomic(swap_add: u64, compare: u64) -> AtomicSeg {
    let mut segment = AtomicSeg::new();
    segment.set(AtomicSeg::SWAP_ADD, swap_add).set(AtomicSeg::COMPARE, compare);
    segment
}

/// The segment of a masked atomic of 4 bytes: new value, value expected, and the masks of both.
fn words([swap_add, compare, swap_mask, compare_mask]: [u64; 4]) -> AtomicSeg4 {
    let mut segment = AtomicSeg4::new();
    segment.set(AtomicSeg4::SWAP_ADD, swap_add as u32).set(AtomicSeg4::COMPARE, compare as u32);
    segment.set(AtomicSeg4::SWAP_MASK, swap_mask as u32).set(AtomicSeg4::COMPARE_MASK, compare_mask as u32);
    segment
}

impl AtomicSize {
    /// `Ctrl::OPMOD` of a request.
    fn opmod(self) -> u32 {
        extended_atomic(match self {
            Self::Word => 2,
            Self::Double => 3,
        })
    }
}

fn datagram(to: &Datagram) -> DatagramSeg {
    let mut segment = DatagramSeg::new();
    segment.set(DatagramSeg::QKEY, to.qkey).set(DatagramSeg::EXT, 1).set(DatagramSeg::DQPN, to.qpn.0);
    segment.set(DatagramSeg::SL, to.sl.into()).set(DatagramSeg::RLID, to.lid.0.into());
    if let Some(gid) = to.gid {
        segment.set(DatagramSeg::GRH, 1).set(DatagramSeg::HOP_LIMIT, 0xff);
        segment.set(DatagramSeg::RGID_H, hca_spec::be64(&gid.0, 0));
        segment.set(DatagramSeg::RGID_L, hca_spec::be64(&gid.0, 8));
    }
    segment
}

fn roce_datagram(to: &RoceDatagram) -> DatagramSeg {
    let mut segment = DatagramSeg::new();
    segment.set(DatagramSeg::QKEY, to.qkey).set(DatagramSeg::EXT, 1).set(DatagramSeg::DQPN, to.qpn.0);
    segment.set(DatagramSeg::RGID_H, hca_spec::be64(&to.gid.0, 0));
    segment.set(DatagramSeg::RGID_L, hca_spec::be64(&to.gid.0, 8));
    roce_way(&mut segment, to.sgid_index, &to.hop);
    segment
}

/// Sets what RoCE has of an address vector beside GID and number: the port's own address, and the rest of the way.
pub(crate) fn roce_way(segment: &mut DatagramSeg, sgid_index: u8, hop: &Hop) {
    let mac = hop.mac.0;
    segment.set(DatagramSeg::GRH, 1).set(DatagramSeg::SGID_INDEX, sgid_index.into());
    segment.set(DatagramSeg::ETH_PRIO, hop.priority.into());
    segment.set(DatagramSeg::UDP_SPORT, hop.source_port.into());
    segment.set(DatagramSeg::RMAC_H, hca_spec::be32(&mac, 0));
    segment.set(DatagramSeg::RMAC_L, u32::from(u16::from_be_bytes([mac[4], mac[5]])));
    segment.set(DatagramSeg::TCLASS, hop.traffic_class.into());
    segment.set(DatagramSeg::HOP_LIMIT, hop.hop_limit.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const SGE: Sge = Sge { address: 0x1122_3344_5566_7788, len: 0x1000, key: Mkey(0x0102_0304) };
    const DATA: [u8; 16] = [0, 0, 0x10, 0, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];

    fn built(qpn: Qpn, index: u16, request: &SendRequest<'_>) -> Result<Wqe, Error> {
        let mut wqe = Wqe::default();
        wqe.send(qpn, index, request).map(|()| wqe)
    }

    #[test]
    fn golden_send() {
        let wqe = built(Qpn(0x102), 0x1234, &SendRequest::send(0, &[SGE]).solicited()).unwrap();
        let mut expected = [0; 64];
        expected[..16].copy_from_slice(&[0, 0x12, 0x34, 0x0a, 0, 1, 2, 2, 0, 0, 0, 0x0a, 0, 0, 0, 0]);
        expected[16..32].copy_from_slice(&DATA);
        assert_eq!(wqe.bytes(), expected);
        assert_eq!((wqe.blocks(), wqe.doorbell()), (1, 0x0012_340a_0001_0202));
    }

    #[test]
    fn nothing_is_left_of_the_one_before() {
        let mut wqe = Wqe::default();
        let long = [0xff; 200];
        wqe.send(Qpn(1), 0, &SendRequest::send(0, &[]).inline(&long)).unwrap();
        wqe.send(Qpn(1), 0, &SendRequest::send(0, &[]).inline(&[0xff; MAX_WQE])).unwrap_err();
        for request in [SendRequest::send(0, &[SGE]), SendRequest::new(0, SendOp::Nop, &[])] {
            wqe.send(Qpn(2), 7, &request).unwrap();
            assert_eq!(wqe.bytes(), built(Qpn(2), 7, &request).unwrap().bytes());
        }
    }

    #[test]
    fn golden_write_imm_unsignaled() {
        let op = SendOp::Write { address: 0x10, rkey: Mkey(0x20), imm: Some(0xaabb_ccdd) };
        let wqe = built(Qpn(1), 0, &SendRequest::new(0, op, &[SGE]).unsignaled()).unwrap();
        let b = wqe.bytes();
        assert_eq!(b[..16], [0, 0, 0, 9, 0, 0, 1, 3, 0, 0, 0, 0, 0xaa, 0xbb, 0xcc, 0xdd]);
        assert_eq!(b[16..32], [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0, 0]);
        assert_eq!(b[32..48], DATA);
    }

    #[test]
    fn golden_read_with_fence_skips_empty_pieces() {
        let sges = [Sge { len: 0, ..SGE }, SGE];
        let request = SendRequest { fence: true, ..SendRequest::read(0, &sges, 0x10, Mkey(0x20)) };
        let wqe = built(Qpn(1), 1, &request).unwrap();
        assert_eq!(wqe.bytes()[..12], [0, 0, 1, 0x10, 0, 0, 1, 3, 0, 0, 0, 0x88]);
        assert_eq!(wqe.bytes()[32..48], DATA);
    }

    #[test]
    fn golden_inline() {
        let wqe = built(Qpn(1), 0, &SendRequest::send(0, &[]).inline(b"hello world, hi")).unwrap();
        let b = wqe.bytes();
        assert_eq!(b[7], 3);
        assert_eq!(b[16..20], [0x80, 0, 0, 15]);
        assert_eq!(&b[20..35], b"hello world, hi");
        // 12 bytes fit beside the first word, 13 do not.
        for (len, ds) in [(0, 1), (1, 2), (12, 2), (13, 3), (28, 3), (29, 4)] {
            let data = std::vec![7; len];
            let wqe = built(Qpn(1), 0, &SendRequest::send(0, &[]).inline(&data)).unwrap();
            assert_eq!(wqe.bytes()[7], ds, "{len} bytes");
        }
    }

    #[test]
    fn golden_datagram() {
        let to = Datagram { qpn: Qpn(5), qkey: 0x1111_1111, lid: Lid(7), sl: 0, gid: None };
        let op = SendOp::Datagram { to, imm: None };
        let wqe = built(Qpn(1), 0, &SendRequest::new(0, op, &[SGE])).unwrap();
        let b = wqe.bytes();
        assert_eq!((b[7], wqe.blocks()), (5, 2));
        assert_eq!(b[16..32], [0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0, 0x80, 0, 0, 5, 0, 0, 0, 7]);
        assert_eq!(b[64..80], DATA);
    }

    #[test]
    fn golden_compare_swap() {
        let op = SendOp::CompareSwap { address: 8, rkey: Mkey(9), compare: 0x11, swap: 0x22 };
        let wqe = built(Qpn(1), 0, &SendRequest::new(0, op, &[Sge { len: 8, ..SGE }])).unwrap();
        let b = wqe.bytes();
        assert_eq!((b[3], b[7], b[23], b[27]), (0x11, 4, 8, 9));
        assert_eq!(b[32..48], [0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0, 0x11]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let sges = [SGE; 63];
        assert!(built(Qpn(1), 0, &SendRequest::send(0, &sges[..62])).is_ok());
        assert!(built(Qpn(1), 0, &SendRequest::send(0, &sges)).is_err());
        let data = [0; 1024];
        assert!(built(Qpn(1), 0, &SendRequest::send(0, &[]).inline(&data[..988])).is_ok());
        assert!(built(Qpn(1), 0, &SendRequest::send(0, &[]).inline(&data[..989])).is_err());
        assert!(built(Qpn(1), 0, &SendRequest::read(0, &[], 0, Mkey(0)).inline(&data[..1])).is_err());
    }

    #[test]
    fn golden_xrc_write() {
        let request = SendRequest::write(0, &[SGE], 0x10, Mkey(0x20)).to_srq(Srqn(0x4_0506));
        let wqe = built(Qpn(1), 0, &request).unwrap();
        let b = wqe.bytes();
        assert_eq!((b[3], b[7]), (8, 4));
        assert_eq!(b[16..32], [0, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(b[32..48], [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0, 0]);
        assert_eq!(b[48..], DATA);
    }

    #[test]
    fn golden_receive() {
        let mut out = [0xff; 64];
        receive(&[SGE], 3, &mut out).unwrap();
        assert_eq!(out[..16], DATA);
        assert_eq!(out[16..32], [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(out[32..].iter().all(|b| *b == 0));
        let full: Vec<Sge> = std::vec![SGE; 4];
        receive(&full, 4, &mut out).unwrap();
        assert_eq!(out[48..], DATA);
        assert!(receive(&full, 3, &mut out).is_err());
    }
}
