//! A frame on its way through the tables: as it came, until an entry changes it; then a copy that was changed.
//!
//! Offsets are those that whoever knows headers found ([`Sight`]). Checksums of IPv4, TCP and UDP follow what is changed under
//! them, by the difference (RFC 1624): one that was wrong stays wrong.

use std::ops::Range;
use std::sync::Arc;

use super::key::{FlowKey, MatchValue};
use super::vxlan::VxlanPorts;
use super::words;

/// Where headers of a frame are: bytes from its begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Places {
    /// Behind the ethertype.
    pub l3: usize,
    /// Behind the IP header, if that is known.
    pub l4: Option<usize>,
    /// The header of a tunnel.
    pub tunnel: Option<usize>,
    /// The frame in the tunnel, if it is one.
    pub inner: Option<usize>,
    /// The IP header in the tunnel, or what is in its place.
    pub inner_l3: Option<usize>,
    /// What is behind that.
    pub inner_l4: Option<usize>,
    /// The base transport header of RoCE.
    pub bth: Option<usize>,
}

/// What the headers of a frame say, and where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sight {
    /// What they say.
    pub key: FlowKey,
    /// Where they are.
    pub places: Places,
}

/// Looks at the headers of a frame of any bytes, with VXLAN at those ports.
pub type Parser = fn(&[u8], &VxlanPorts) -> Sight;

/// A frame that passes tables.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Without its frame check sequence.
    pub bytes: &'a [u8],
    /// Its headers, and who sent it.
    pub sight: &'a Sight,
    /// Finds the headers of what entries make of it.
    pub parser: Parser,
    /// Where those are looked into for VXLAN.
    pub vxlan: VxlanPorts,
    /// When it passes, in picoseconds since the very first start: what meters go by, which keep it.
    pub now: u128,
}

#[cfg(test)]
impl Frame<'_> {
    /// Takes a frame with those headers, of zeros, through tables.
    pub(crate) fn pass(
        steering: &super::Steering,
        kind: hca_spec::flow::TableType,
        key: &FlowKey,
        octets: usize,
        verdict: &mut super::Verdict,
    ) {
        let sight = Sight { key: *key, ..Sight::default() };
        steering.walk(
            kind,
            &Frame {
                bytes: &vec![0; octets],
                sight: &sight,
                parser: |_, _| Sight::default(),
                vxlan: VxlanPorts::default(),
                now: 0,
            },
            verdict,
        );
    }
}

/// Registers that a frame has on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Registers {
    /// C0 to C7.
    pub(super) c: [u32; 8],
    /// A, if an entry wrote it.
    pub(super) a: Option<u32>,
    /// B: what the completion shows.
    pub(super) b: u32,
}

/// What entries made of a frame.
#[derive(Debug, PartialEq)]
struct Changed {
    bytes: Vec<u8>,
    sight: Sight,
    value: MatchValue,
}

/// A frame, or a copy of it, at a table.
#[derive(Debug, Clone)]
pub(super) struct Passing<'a> {
    came: &'a Frame<'a>,
    value: &'a MatchValue,
    changed: Option<Arc<Changed>>,
    pub(super) tag: u32,
    pub(super) registers: Registers,
}

impl<'a> Passing<'a> {
    pub(super) fn new(came: &'a Frame<'a>, value: &'a MatchValue) -> Self {
        Self { came, value, changed: None, tag: 0, registers: Registers::default() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.changed.as_ref().map_or(self.came.bytes, |changed| &changed.bytes)
    }

    pub(super) fn sight(&self) -> &Sight {
        self.changed.as_ref().map_or(self.came.sight, |changed| &changed.sight)
    }

    #[inline]
    pub(super) fn value(&self) -> &MatchValue {
        self.changed.as_ref().map_or(self.value, |changed| &changed.value)
    }

    pub(super) fn octets(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Metadata of its sender (register A).
    pub(super) fn metadata(&self) -> u32 {
        self.registers.a.or(self.came.sight.key.metadata).unwrap_or(0)
    }

    /// The bytes, if they are others than those that came.
    pub(super) fn changed(&self) -> Option<Vec<u8>> {
        self.changed.as_ref().map(|changed| changed.bytes.clone())
    }

    /// Changes a copy. Costs as much as a copy of the frame and a look at its headers, and `change`.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut Edit, &mut Registers)) {
        let mut edit = Edit {
            bytes: self.bytes().to_vec(),
            sight: *self.sight(),
            parser: self.came.parser,
            vxlan: self.came.vxlan,
            moved: false,
        };
        change(&mut edit, &mut self.registers);
        let mut sight = (self.came.parser)(&edit.bytes, &self.came.vxlan);
        // Who sent it is no matter of headers.
        sight.key.source_sqn = self.came.sight.key.source_sqn;
        sight.key.metadata = self.registers.a.or(self.came.sight.key.metadata);
        let value = sight.key.lay_out();
        self.changed = Some(Arc::new(Changed { bytes: edit.bytes, sight, value }));
    }
}

/// A frame that is changed. Headers are looked at again when they have moved and somebody asks where they are.
pub(super) struct Edit {
    bytes: Vec<u8>,
    sight: Sight,
    parser: Parser,
    vxlan: VxlanPorts,
    moved: bool,
}

/// Bytes that a frame may have at most: more is not put before it.
const MOST_BYTES: usize = 1 << 14;
/// Protocols with checksums over addresses.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Where their checksums are.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// The same of IPv4.
const IPV4_CHECKSUM: usize = 10;
/// Source and destination address of IPv4 and of IPv6.
const IPV4_ADDRESSES: Range<usize> = 12..20;
const IPV6_ADDRESSES: Range<usize> = 8..40;

impl Edit {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where headers are now, and what they say.
    pub(super) fn sight(&mut self) -> Sight {
        if std::mem::take(&mut self.moved) {
            self.sight = (self.parser)(&self.bytes, &self.vxlan);
        }
        self.sight
    }

    /// Takes bytes out, as far as they are there.
    pub(super) fn remove(&mut self, range: Range<usize>) {
        let (start, end) = (range.start.min(self.bytes.len()), range.end.min(self.bytes.len()));
        if start < end {
            self.bytes.drain(start..end);
            self.moved = true;
        }
    }

    /// Puts bytes in, unless the frame would become too long or has no such place.
    pub(super) fn insert(&mut self, at: usize, bytes: &[u8]) {
        if at <= self.bytes.len() && self.bytes.len().saturating_add(bytes.len()) <= MOST_BYTES {
            self.bytes.splice(at..at, bytes.iter().copied());
            self.moved = true;
        }
    }

    /// Two bytes at a place.
    pub(super) fn half(&self, at: usize) -> Option<u16> {
        self.bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Four bytes at a place.
    pub(super) fn word(&self, at: usize) -> Option<u32> {
        self.bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Writes bytes of headers; checksums follow.
    pub(super) fn put(&mut self, at: usize, new: &[u8]) {
        let Some(old) = self.bytes.get(at..).and_then(|old| old.get(..new.len())).map(<[u8]>::to_vec) else {
            return;
        };
        let Sight { key, places } = self.sight();
        if let Some(to) = self.bytes.get_mut(at..).and_then(|to| to.get_mut(..new.len())) {
            to.copy_from_slice(new);
        }
        let Some(ip) = key.outer.ip else { return };
        let change = (at, &old[..], new);
        let l4 = places.l4;
        let header_end = l4.unwrap_or(usize::MAX);
        if ip.version == 4 {
            self.follow(places.l3.saturating_add(IPV4_CHECKSUM), change, places.l3..header_end, false);
        }
        // Of a fragment the checksum covers more than is here, but a difference is a difference.
        let (Some(l4), protocol) = (l4, ip.protocol) else { return };
        let checksum = match protocol {
            TCP => TCP_CHECKSUM,
            UDP => UDP_CHECKSUM,
            _ => return,
        };
        let addresses = if ip.version == 4 { IPV4_ADDRESSES } else { IPV6_ADDRESSES };
        let addresses = places.l3.saturating_add(addresses.start)..places.l3.saturating_add(addresses.end);
        let checksum = l4.saturating_add(checksum);
        self.follow(checksum, change, addresses, protocol == UDP);
        self.follow(checksum, change, l4..usize::MAX, protocol == UDP);
    }

    /// Lets a checksum follow a change within what it covers. `optional`: zero is none.
    fn follow(
        &mut self,
        checksum: usize,
        (at, old, new): (usize, &[u8], &[u8]),
        covers: Range<usize>,
        optional: bool,
    ) {
        let Some(sum) = self.half(checksum).filter(|sum| !optional || *sum != 0) else { return };
        let mut folded = u32::from(!sum);
        for (i, (old, new)) in old.iter().zip(new).enumerate() {
            let place = at.saturating_add(i);
            if !covers.contains(&place) || (checksum..checksum.saturating_add(2)).contains(&place) {
                continue;
            }
            let shift = if place.wrapping_sub(covers.start).is_multiple_of(2) { 8 } else { 0 };
            let less = !(u16::from(*old) << shift);
            folded = folded.wrapping_add(u32::from(less)).wrapping_add(u32::from(*new) << shift);
            folded = (folded & 0xffff) + (folded >> 16);
        }
        folded = (folded & 0xffff) + (folded >> 16);
        let mut sum = !(folded as u16);
        if optional && sum == 0 {
            sum = 0xffff;
        }
        if let Some(to) = self.bytes.get_mut(checksum..).and_then(|to| to.first_chunk_mut::<2>()) {
            *to = sum.to_be_bytes();
        }
    }

    /// A header of a tunnel was put before the frame: the lengths in it are what is behind them, and IPv4 has its checksum. A
    /// checksum of UDP stays as it was given.
    pub(super) fn complete_tunnel(&mut self) {
        let Sight { key, places } = self.sight();
        let Some(ip) = key.outer.ip else { return };
        let length = |bytes: &[u8], from: usize| {
            u16::try_from(bytes.len().saturating_sub(from)).unwrap_or(u16::MAX).to_be_bytes()
        };
        let write = |bytes: &mut Vec<u8>, at: usize, value: [u8; 2]| {
            if let Some(to) = bytes.get_mut(at..).and_then(|to| to.first_chunk_mut::<2>()) {
                *to = value;
            }
        };
        let l3 = places.l3;
        if ip.version == 4 {
            let total = length(&self.bytes, l3);
            write(&mut self.bytes, l3.saturating_add(2), total);
            write(&mut self.bytes, l3.saturating_add(IPV4_CHECKSUM), [0; 2]);
            let words = usize::from(self.bytes.get(l3).copied().unwrap_or(0) & 0xf);
            let header = self.bytes.get(l3..).unwrap_or_default();
            let header = header.get(..words.saturating_mul(4)).unwrap_or_default();
            let sum = header
                .as_chunks::<2>()
                .0
                .iter()
                .map(|half| u32::from(u16::from_be_bytes(*half)))
                .sum::<u32>();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            write(&mut self.bytes, l3.saturating_add(IPV4_CHECKSUM), (!(sum as u16)).to_be_bytes());
        } else {
            const HEADER: usize = 40;
            let payload = length(&self.bytes, l3.saturating_add(HEADER));
            write(&mut self.bytes, l3.saturating_add(4), payload);
        }
        if ip.protocol == UDP
            && let Some(l4) = places.l4
        {
            let datagram = length(&self.bytes, l4);
            write(&mut self.bytes, l4.saturating_add(4), datagram);
        }
        self.moved = true;
    }

    /// Bits of a word of a header or register; `None`: the frame has no such header.
    pub(super) fn read_word(&mut self, registers: &Registers, word: u32) -> Option<u32> {
        words::read(self, registers, word)
    }

    /// Writes `length` bits of a word from bit `shift` on.
    pub(super) fn write_bits(
        &mut self,
        registers: &mut Registers,
        word: u32,
        (shift, length): (u32, u32),
        data: u32,
    ) {
        let mask = if length >= 32 { u32::MAX } else { (1 << length) - 1 };
        let mask = mask.checked_shl(shift).unwrap_or(0);
        let Some(before) = self.read_word(registers, word) else { return };
        let after = before & !mask | data.checked_shl(shift).unwrap_or(0) & mask;
        if after != before {
            words::write(self, registers, word, after);
        }
    }
}
