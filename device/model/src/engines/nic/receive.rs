//! What a frame becomes in a receive queue: bytes for the host's memory, and a completion.
//!
//! Source: PRM "Completion Queue Entry Format" and the mlx5 driver (field use); `specs/doc/cqe.md`, "Received frames".

use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome, l3_header_type, l4_header_type};
use hca_spec::ether::{ADDRESSES_SIZE, FCS_SIZE, VlanTag, ethertype, tcp_flags};

use super::rss::Hash;
use super::transmit::check;
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{Fragment, Headers, IpVersion, Layer4, fcs};

/// What a receive queue does with frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceiveRules {
    /// A C-tag is taken out (`vsd` is 0).
    pub strip_vlan: bool,
    /// The frame check sequence is written, too.
    pub scatter_fcs: bool,
    /// What completions call the queue: its user index, or 0 with entries of version 0.
    pub user_index: u32,
}

/// What a completion says of segments that were merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    /// How many they were.
    pub segments: u8,
    /// The last was pushed.
    pub pushed: bool,
    /// The last acknowledgement number.
    pub acknowledged: u32,
    /// The last window.
    pub window: u16,
    /// The least time to live.
    pub ttl: u8,
    /// The sum of their data.
    pub sum: Sum,
}

/// What was found out about a frame on its way to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Steered {
    /// The hash that chose the queue.
    pub hash: Hash,
    /// The flow tag of the last entry that set one, 24 bits.
    pub flow_tag: u32,
    /// It is several segments that were merged.
    pub merged: Option<Merged>,
}

/// The bytes that are written, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameData<'a> {
    front: &'a [u8],
    rest: &'a [u8],
    fcs: Option<[u8; FCS_SIZE]>,
}

impl FrameData<'_> {
    /// The stretches that follow each other.
    pub fn parts(&self) -> [&[u8]; 3] {
        [self.front, self.rest, self.fcs.as_ref().map_or(&[], |fcs| fcs)]
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A frame in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received<'a> {
    /// The completion, but for timestamp and owner.
    pub cqe: Cqe,
    /// What is written; none if the completion is one with error.
    pub data: Option<FrameData<'a>>,
}

/// A completion with error of the receive WQE with that index: a flushed one, or one whose memory can't be written.
pub fn error_cqe(rules: &ReceiveRules, index: u16, syndrome: Syndrome) -> Cqe {
    let mut cqe = empty_cqe(rules, CqeOpcode::RespErr, index);
    cqe.set(Cqe::SYNDROME, syndrome as u32).set(Cqe::VENDOR_ERR_SYND, syndrome.vendor().into());
    cqe
}

/// A completion that says nothing yet but for whose it is.
pub(super) fn empty_cqe(rules: &ReceiveRules, opcode: CqeOpcode, index: u16) -> Cqe {
    let mut cqe = Cqe::new();
    cqe.set(Cqe::OPCODE, opcode as u32).set(Cqe::WQE_COUNTER, index.into());
    cqe.set(Cqe::SRQN_USER_INDEX, rules.user_index);
    cqe
}

impl ReceiveRules {
    /// Bytes that are written of a frame without FCS, if no tag is taken out.
    pub(crate) fn most_of(&self, frame: &[u8]) -> usize {
        frame.len().saturating_add(if self.scatter_fcs { FCS_SIZE } else { 0 })
    }

    /// Takes a frame without FCS, whose headers are known, for the receive WQE `index` with `room` bytes.
    ///
    /// Each byte is summed once; the rest does not depend on the frame's length.
    pub fn receive<'a>(
        &self,
        frame: &'a [u8],
        headers: &Headers,
        steered: Steered,
        index: u16,
        room: u64,
    ) -> Received<'a> {
        let tag = headers.outer_tag(ethertype::C_TAG).filter(|_| self.strip_vlan);
        let (front, behind) = frame.split_at_checked(ADDRESSES_SIZE).unwrap_or((frame, &[]));
        let tag_len = tag.map_or(0, |_| VlanTag::SIZE);
        let data = FrameData {
            front,
            rest: behind.get(tag_len..).unwrap_or_default(),
            // That of the frame as it came: it covers a tag that was taken out.
            fcs: self.scatter_fcs.then(|| fcs(frame)),
        };
        if data.len() as u64 > room {
            return Received { cqe: error_cqe(self, index, Syndrome::LocalLength), data: None };
        }
        let mut cqe = empty_cqe(self, CqeOpcode::RespSend, index);
        cqe.set(Cqe::BYTE_CNT, data.len() as u32).set(Cqe::FLOW_TAG, steered.flow_tag);
        if let Some(tag) = tag {
            cqe.set(Cqe::VLAN_STRIPPED, 1).set(Cqe::VLAN_INFO, tag.tci.into());
        }
        let hash = steered.hash;
        cqe.set(Cqe::RSS_HASH_RESULT, hash.value)
            .set(Cqe::RSS_HASH_L3, hash.l3)
            .set(Cqe::RSS_HASH_L4, hash.l4);
        match &steered.merged {
            None => describe(&mut cqe, frame, headers),
            Some(merged) => describe_merged(&mut cqe, headers, merged),
        }
        Received { cqe, data: Some(data) }
    }
}

/// What the completion says of merged segments: their checksums were right, and software makes the headers of all from those of
/// the first.
fn describe_merged(cqe: &mut Cqe, headers: &Headers, merged: &Merged) {
    cqe.set(Cqe::L2_OK, 1).set(Cqe::L3_OK, 1).set(Cqe::L4_OK, 1);
    cqe.set(Cqe::CHECK_SUM, merged.sum.value().into()).set(Cqe::LRO_NUM_SEG, merged.segments.into());
    cqe.set(Cqe::LRO_TCPPSH, merged.pushed.into()).set(Cqe::LRO_MIN_TTL, merged.ttl.into());
    cqe.set(Cqe::LRO_TCP_WIN, merged.window.into()).set(Cqe::LRO_ACK_SEQ_NUM, merged.acknowledged);
    if let Some(ip) = headers.ip {
        cqe.set(Cqe::L3_HEADER_TYPE, l3_type(ip.version));
    }
    cqe.set(Cqe::L4_HEADER_TYPE, l4_header_type::TCP_ACK_AND_DATA);
}

const fn l3_type(version: IpVersion) -> u32 {
    match version {
        IpVersion::V4 => l3_header_type::IPV4,
        IpVersion::V6 => l3_header_type::IPV6,
    }
}

/// What the completion says of headers and checksums.
fn describe(cqe: &mut Cqe, frame: &[u8], headers: &Headers) {
    cqe.set(Cqe::L2_OK, 1);
    let Some(ip) = headers.ip else { return };
    let checked = check(frame, headers);
    cqe.set(Cqe::CHECK_SUM, checked.complete.value().into());
    cqe.set(Cqe::L3_OK, checked.l3.into()).set(Cqe::L4_OK, checked.l4.into());
    let is_fragment = ip.fragment != Fragment::Whole;
    cqe.set(Cqe::L3_HEADER_TYPE, l3_type(ip.version)).set(Cqe::IP_OPTIONS, ip.options.into());
    cqe.set(Cqe::IP_FRAGMENT, is_fragment.into());
    let l4 = match headers.layer4 {
        _ if is_fragment => l4_header_type::NONE,
        Layer4::Tcp { flags, header, .. } => {
            let data = headers.l4.and_then(|l4| ip.end.checked_sub(l4.saturating_add(header)));
            match (u32::from(flags) & tcp_flags::ACK, data) {
                (0, _) => l4_header_type::TCP_NO_ACK,
                (_, None | Some(0)) => l4_header_type::TCP_ACK_NO_DATA,
                _ => l4_header_type::TCP_ACK_AND_DATA,
            }
        }
        Layer4::Udp { .. } => l4_header_type::UDP,
        _ => l4_header_type::NONE,
    };
    cqe.set(Cqe::L4_HEADER_TYPE, l4);
}

#[cfg(test)]
mod tests;
