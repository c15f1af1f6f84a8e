//! Queue pairs: where their queues stand, and their last work requests, as the driver wrote them.

use hca_firmware::icm::Qp;
use hca_firmware::object::Kind;
use hca_spec::layout::Layout;
use hca_spec::qpc::{Qpc, RqType, ServiceType};
use hca_spec::wqe::{
    AtomicMasks, AtomicSeg, AtomicSeg4, Ctrl, DS_UNIT, Data, Datagram, EthSeg, RemoteAddr, SendOpcode,
    UmrCtrl, WQEBB, XrcSeg, extended_atomic,
};

use super::queues::{entry, with_record};
use super::{ENTRIES, Part, memory};
use crate::adapter::state::function::Function;

/// Basic blocks behind the producer that are looked at for beginnings of work requests.
const BLOCKS: u16 = 128;
/// Scatter entries of a receive request that are shown.
const SCATTERED: usize = 16;

pub(super) fn queue_pair(function: &Function, kind: Kind, number: u32) -> Option<Vec<Part>> {
    let qp = function.state.fw.icm.qps.get(number)?;
    if qp.send_only.is_some() != (kind == Kind::Sq) {
        return None;
    }
    let hardware = function.qps.get(number);
    let record = memory(function, qp.ctx.get(Qpc::DBR_ADDR), 8);
    let word = |at| record.as_deref().map(|record| hca_spec::be32(record, at));
    let received = word(0).map(|word| word as u16);
    let mut context = qp.ctx;
    if let Some(hardware) = hardware {
        hardware.write_back(received, &mut context);
    }
    let mut parts = vec![Part::of("context", &Qpc::LAYOUT, context.bytes())];
    let mut queues = Part::new("queues").saying("state", format!("{:?}", qp.state()));
    queues = queues.saying("service", format!("{:?}", qp.service()));
    if let Some(hardware) = hardware {
        let (consumed, posted) = hardware.rq.counters(received);
        queues = queues
            .with("send_posted", hardware.sq.posted)
            .with("send_executed", hardware.sq.head)
            .with("send_blocks", if qp.sq_bytes() == 0 { 0 } else { qp.sq_bytes() / WQEBB as u64 })
            .with("receive_posted", posted)
            .with("receive_taken", consumed)
            .with("next_psn", hardware.requester.next_psn.get())
            .with("oldest_psn", hardware.requester.oldest().get())
            .with("expected_psn", hardware.responder.epsn.get());
    }
    parts.push(with_record(queues, record.clone(), ["record_receive", "record_send"]));
    if let Some(posted) = hardware.map(|hardware| hardware.sq.posted) {
        parts.extend(sends(function, qp, number, posted));
    }
    if let (Some(posted), Some(RqType::Own)) = (received, RqType::from_bits(qp.ctx.get(Qpc::RQ_TYPE))) {
        parts.extend(receives(function, qp, posted));
    }
    Some(parts)
}

/// The last send requests before `posted`. A basic block begins one if it names itself and its queue pair.
fn sends(function: &Function, qp: &Qp, number: u32, posted: u16) -> Vec<Part> {
    let blocks = qp.sq_bytes() / WQEBB as u64;
    let mut found = Vec::new();
    for back in 1..=BLOCKS.min(u16::try_from(blocks).unwrap_or(u16::MAX)) {
        let index = posted.wrapping_sub(back);
        let at = |block: u16| qp.rq_bytes() + (u64::from(block) & (blocks - 1)) * WQEBB as u64;
        let Some(first) = entry(function, &qp.buffer, at(index), WQEBB) else { break };
        let ctrl = Ctrl::from_prefix_or_zero(&first);
        let size = ctrl.get(Ctrl::DS) as usize * DS_UNIT;
        let own = ctrl.get(Ctrl::WQE_INDEX) == u32::from(index) && ctrl.get(Ctrl::QPN) == number;
        if !own || size == 0 || size.div_ceil(WQEBB) > usize::from(back) {
            continue;
        }
        let mut bytes = first;
        for block in 1..size.div_ceil(WQEBB) as u16 {
            bytes.extend(
                entry(function, &qp.buffer, at(index.wrapping_add(block)), WQEBB).unwrap_or_default(),
            );
        }
        bytes.truncate(size);
        let opcode = SendOpcode::from_bits(ctrl.get(Ctrl::OPCODE));
        let name = opcode.map_or_else(|| "unknown opcode".into(), |opcode| format!("{opcode:?}"));
        let mut part = Part::new(format!("send WQE {index:#x}: {name}"));
        part.structures = send_segments(qp.service(), qp.send_only.is_some(), opcode, &bytes);
        found.push(part);
        if found.len() == ENTRIES as usize {
            break;
        }
    }
    found.reverse();
    found
}

/// The segments of a send request, in order.
fn send_segments(
    service: ServiceType,
    of_frames: bool,
    opcode: Option<SendOpcode>,
    bytes: &[u8],
) -> Vec<(&'static Layout, Vec<u8>)> {
    let mut segments = Segments { left: bytes, taken: Vec::new() };
    let ctrl_opmod = Ctrl::from_prefix_or_zero(bytes).get(Ctrl::OPMOD);
    segments.take(&Ctrl::LAYOUT);
    match service {
        ServiceType::Ud | ServiceType::Qp1 | ServiceType::Qp0 => segments.take(&Datagram::LAYOUT),
        ServiceType::Dci => {
            let whole = Datagram::from_prefix_or_zero(segments.left).get(Datagram::EXT) == 1;
            segments.take_of(&Datagram::LAYOUT, if whole { Datagram::SIZE } else { DS_UNIT });
        }
        ServiceType::Xrc => segments.take(&XrcSeg::LAYOUT),
        _ if of_frames => segments.take(&EthSeg::LAYOUT),
        _ => {}
    }
    use SendOpcode::{RdmaRead, RdmaWrite, RdmaWriteImm, Umr};
    match opcode {
        Some(RdmaRead | RdmaWrite | RdmaWriteImm) => segments.take(&RemoteAddr::LAYOUT),
        Some(opcode) if opcode.is_atomic() => {
            segments.take(&RemoteAddr::LAYOUT);
            let of_words = opcode.is_masked() && ctrl_opmod == extended_atomic(2);
            segments.take(if of_words { &AtomicSeg4::LAYOUT } else { &AtomicSeg::LAYOUT });
            if opcode == SendOpcode::AtomicMaskedCs && !of_words {
                segments.take(&AtomicMasks::LAYOUT);
            }
        }
        Some(Umr) => segments.take(&UmrCtrl::LAYOUT),
        _ => {}
    }
    if opcode.is_some_and(|opcode| !opcode.is_local()) && !of_frames {
        segments.data(usize::MAX);
    }
    segments.taken
}

/// The last receive requests before `posted`.
fn receives(function: &Function, qp: &Qp, posted: u16) -> Vec<Part> {
    let (log_size, stride) = (qp.ctx.get(Qpc::LOG_RQ_SIZE), 16u64 << qp.ctx.get(Qpc::LOG_RQ_STRIDE));
    let most = (1u64 << log_size).min(ENTRIES.into()) as u16;
    let mut parts = Vec::new();
    for index in (1..=most.min(posted)).rev().map(|back| posted.wrapping_sub(back)) {
        let offset = (u64::from(index) & ((1 << log_size) - 1)) * stride;
        let Some(bytes) = entry(function, &qp.buffer, offset, stride as usize) else { continue };
        let mut segments = Segments { left: &bytes, taken: Vec::new() };
        segments.data(SCATTERED);
        let mut part = Part::new(format!("receive WQE {index:#x}"));
        part.structures = segments.taken;
        parts.push(part);
    }
    parts
}

/// Segments that follow each other.
struct Segments<'a> {
    left: &'a [u8],
    taken: Vec<(&'static Layout, Vec<u8>)>,
}

impl Segments<'_> {
    fn take(&mut self, layout: &'static Layout) {
        self.take_of(layout, layout.size);
    }

    /// The next one, of which so many bytes are there.
    fn take_of(&mut self, layout: &'static Layout, size: usize) {
        let (now, left) = self.left.split_at_checked(size).unwrap_or((self.left, &[]));
        if !now.is_empty() {
            self.taken.push((layout, now.to_vec()));
        }
        self.left = left;
    }

    /// Pieces of memory, at most so many: up to the end, the entry that ends a list, or inline data, whose bytes are left out.
    fn data(&mut self, most: usize) {
        for _ in 0..most {
            if self.left.len() < Data::SIZE {
                return;
            }
            let data = Data::from_prefix_or_zero(self.left);
            if data.get(Data::LKEY) == hca_spec::wqe::TERMINATE_LKEY && data.get(Data::INLINE) == 0 {
                return;
            }
            let size = match data.get(Data::INLINE) {
                0 => Data::SIZE,
                _ => (4 + data.get(Data::INLINE_LENGTH) as usize).next_multiple_of(DS_UNIT),
            };
            self.taken.push((&Data::LAYOUT, data.bytes().to_vec()));
            self.left = self.left.get(size..).unwrap_or_default();
        }
    }
}
