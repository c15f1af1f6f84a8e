//! A packet of any link layer: headers and payload, or bytes.

mod flow;
mod frame;
mod spare;

use std::ops::Range;
use std::sync::Arc;

use hca_firmware::PortKind;
use hca_spec::ids::{Psn, Qpn};
use hca_spec::layout::be32;
use hca_spec::wire::{Bth, Grh, ICRC_SIZE, Lrh, VCRC_SIZE};

use super::path::{LinkAddress, Path};
use super::{eth, ib};
use crate::ground::region::{Payload, Region, Sink};
use crate::wire::{ExtendedHeaders, MAX_PAYLOAD, Malformed, Repr};

/// One packet, as a frame of the link layer of its path: on InfiniBand LRH to VCRC.
///
/// A packet that was built here and never left the process is good by construction: it is kept as what its headers say
/// and its payload, and is bytes with checksums only for who asks for them ([`Packet::into_bytes`]). One that came in as
/// bytes is checked in [`Packet::parse`]. Whoever looks at the link sees no difference.
#[derive(Clone)]
pub struct Packet(Box<Body>);

struct Body {
    form: Form,
    /// What it travels by: of a built packet, and of bytes once they were parsed. Its link layer is known always.
    path: Path,
    /// What the headers say: of a built packet as they would be parsed, of bytes once they were.
    repr: Repr,
    /// Of a built packet its payload and what else there is room for, otherwise all bytes on the link.
    data: Vec<u8>,
    /// Where the payload is in it: of a built packet, and of bytes once they were parsed.
    payload: Range<usize>,
    /// Bytes on the link.
    len: usize,
    /// Of a packet whose payload is still in its sender's memory: where.
    source: Option<(Arc<Region>, u64)>,
    /// Of a frame that a send queue of the same adapter sent: the queue's transport domain.
    domain: Option<u32>,
    /// Of a transport packet that a queue pair of this adapter made: that one.
    sender: Option<Qpn>,
    /// Of a frame: the priority that a port on its way gave it.
    class: u8,
}

impl Default for Body {
    fn default() -> Self {
        Self {
            form: Form::PRESENT,
            path: Path::default(),
            repr: Repr::default(),
            data: Vec::new(),
            payload: 0..0,
            len: 0,
            source: None,
            domain: None,
            sender: None,
            class: flow::UNCLASSED,
        }
    }
}

impl Clone for Body {
    fn clone(&self) -> Self {
        let Self { form, path, repr, len, .. } = *self;
        let (data, payload) = match form {
            Form::Built => (self.copied_payload(), 0..self.payload.len()),
            _ => (self.data.clone(), self.payload.clone()),
        };
        let (domain, sender, class) = (self.domain, self.sender, self.class);
        Self { form, path, repr, data, payload, len, source: None, domain, sender, class }
    }
}

/// Bytes in front of a payload, at most: those of any link layer and of all headers together.
const LONGEST_HEAD: usize = 256;
/// What is behind a payload while its checksums are due: pad, checksums, and what makes a short frame long enough.
const ZEROES: [u8; 128] = [0; 128];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Headers and payload, no bytes yet.
    Built,
    /// Bytes of which these checksums are not computed yet, since nobody wanted them or a port on the way changed a header; others are
    /// right or wrong.
    Bytes(Due),
}

impl Form {
    /// Bytes with checksums, right or wrong.
    const PRESENT: Form = Form::Bytes(Due::Nothing);
}

/// Checksums of a packet's bytes that nobody has computed, as they are right by construction: in their places is anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// All are there.
    Nothing,
    /// The link's: VCRC or FCS.
    Link,
    /// The link's, and the transport's, which goes from end to end: the ICRC.
    All,
}

impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        match (self.0.form, other.0.form) {
            (Form::Built, Form::Built) => {
                self.0.repr == other.0.repr
                    && self.0.path == other.0.path
                    && self.0.copied_payload() == other.0.copied_payload()
            }
            (Form::PRESENT, Form::PRESENT) => self.0.data == other.0.data,
            _ => self.clone().into_bytes() == other.clone().into_bytes(),
        }
    }
}

impl Eq for Packet {}

impl Packet {
    /// The smallest transport packet on InfiniBand: LRH, BTH, ICRC, VCRC.
    pub const MIN_SIZE: usize = Lrh::SIZE + Bth::SIZE + ICRC_SIZE + VCRC_SIZE;

    /// Builds a packet with `payload_len` bytes of payload, which `fill` writes in place: it is given zeroes.
    ///
    /// The only error is `fill`'s; see `Packet::build_with`.
    pub fn build<E>(
        path: &Path,
        repr: &Repr,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Packet, E> {
        Self::build_with(path, repr, payload_len, |payload| {
            payload.fill(0);
            fill(payload)
        })
    }

    /// Builds a packet with `payload_len` bytes of payload, which `fill` writes in place, *all of them*: what is there
    /// before may be of another guest. Those that fill from guest memory do it with a [`crate::wire::Room`], or zero it first.
    ///
    /// Lengths and pad count are computed. The only error is `fill`'s. A payload longer
    /// than [`MAX_PAYLOAD`], payload on an opcode without one, or an opcode that its transport
    /// doesn't have is an error of the caller: the payload is cut off, the receiver will complain.
    pub(crate) fn build_with<E>(
        path: &Path,
        repr: &Repr,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Packet, E> {
        let known = ExtendedHeaders::by(repr.transport, repr.operation);
        debug_assert!(known.is_some(), "no opcode {:?} on {:?}", repr.operation, repr.transport);
        let extended = known.unwrap_or_default();
        let max = if extended.payload { MAX_PAYLOAD } else { 0 };
        debug_assert!(payload_len <= max, "{payload_len} bytes of payload on {:?}", repr.operation);
        let payload_len = payload_len.min(max);

        let mut packet = spare::take();
        let body = &mut *packet.0;
        if body.data.len() < payload_len {
            body.data.resize(payload_len, 0);
        }
        fill(body.data.get_mut(..payload_len).unwrap_or_default())?;
        repr.copy_as_sent(extended, &mut body.repr);
        body.path = *path;
        body.form = Form::Built;
        body.payload = 0..payload_len;
        body.source = None;
        (body.domain, body.sender, body.class) = (None, None, flow::UNCLASSED);
        body.len = Self::bytes_on_link(path, extended, payload_len);
        if known.is_none() {
            packet.be_bytes();
        }
        Ok(packet)
    }

    fn bytes_on_link(path: &Path, extended: ExtendedHeaders, payload: usize) -> usize {
        match &path.link {
            LinkAddress::Ib(_) => ib::frame::len(path.grh.is_some(), extended, payload),
            LinkAddress::Eth(address) => eth::frame::len(address, extended, payload),
        }
    }

    /// Bytes on the link of a packet with such headers and so much payload; `None`: its transport does not have its
    /// operation.
    pub(crate) fn len_of(path: &Path, repr: &Repr, payload: usize) -> Option<usize> {
        ExtendedHeaders::by(repr.transport, repr.operation)
            .map(|known| Self::bytes_on_link(path, known, payload))
    }

    /// A packet with the `payload` bytes that a region has from `offset` on: they stay there until somebody wants them
    /// ([`Packet::fetch_payload`]). `len`: its bytes on the link ([`Packet::len_of`]); its opcode carries no extended headers but
    /// those that are set.
    #[inline]
    pub(crate) fn referring(
        path: &Path,
        repr: &Repr,
        payload: usize,
        len: usize,
        (region, offset): (&Arc<Region>, u64),
    ) -> Packet {
        let mut packet = spare::take();
        let body = &mut *packet.0;
        body.form = Form::Built;
        body.path = *path;
        body.repr = *repr;
        body.payload = 0..payload;
        body.len = len;
        (body.domain, body.sender, body.class) = (None, None, flow::UNCLASSED);
        body.source = Some((Arc::clone(region), offset));
        packet
    }

    /// A packet like this one, which referred to that region, too: of the same path, and with other headers in these. `None`: it
    /// did not, and is retired.
    #[inline]
    pub(crate) fn renew(
        mut self,
        path: &Path,
        (psn, ack_req): (Psn, bool),
        (region, place): (&Arc<Region>, u64),
    ) -> Option<Packet> {
        let body = &mut *self.0;
        match &mut body.source {
            Some((own, offset)) if Arc::ptr_eq(own, region) => {
                *offset = place;
                (body.repr.psn, body.repr.ack_req) = (psn, ack_req);
                // A port that it came to may have written into the address.
                if let LinkAddress::Eth(_) = &path.link {
                    body.path = *path;
                }
                (body.domain, body.sender, body.class) = (None, None, flow::UNCLASSED);
                Some(self)
            }
            _ => {
                self.retire();
                None
            }
        }
    }

    /// Gives it another PSN.
    pub(crate) fn set_psn(&mut self, psn: Psn) {
        self.0.repr.psn = psn;
    }

    /// Where its payload is, if that is still in its sender's memory.
    #[inline]
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        self.0.source.as_ref().map(|(region, _)| region)
    }

    /// Whether its payload is still in its sender's memory.
    #[inline]
    pub(crate) fn is_referring(&self) -> bool {
        self.0.source.is_some()
    }

    /// From now on it has its payload's bytes itself. If they are not to be had any more it is bad from then on.
    pub(crate) fn fetch_payload(&mut self) {
        let body = &mut *self.0;
        let Some((region, offset)) = body.source.take() else { return };
        let len = body.payload.len();
        if body.data.len() < len {
            body.data.resize(len, 0);
        }
        let into = body.data.get_mut(..len).unwrap_or_default();
        if region.read(offset, into).is_err() {
            into.fill(0);
            self.mark_bad();
        }
    }

    /// Builds a packet without payload.
    pub fn build_empty(path: &Path, repr: &Repr) -> Packet {
        match Self::build(path, repr, 0, |_| Ok::<(), std::convert::Infallible>(())) {
            Ok(packet) => packet,
            Err(never) => match never {},
        }
    }

    /// Checks every byte that a receiving port checks; gives what it travelled by, its headers and the payload without pad.
    pub fn parse(&self) -> Result<(Path, Repr, &[u8]), Malformed> {
        match self.0.form {
            Form::Built => Ok((self.0.path, self.0.repr, self.payload_bytes())),
            _ => {
                let (path, repr, payload) = self.parse_bytes()?;
                Ok((path, repr, self.0.data.get(payload).unwrap_or_default()))
            }
        }
    }

    /// The same, for those who look at headers and payload more than once: from then on [`Packet::path`], [`Packet::repr`]
    /// and [`Packet::payload`] give them.
    pub(crate) fn open(&mut self) -> Result<(), Malformed> {
        if self.0.form != Form::Built {
            (self.0.path, self.0.repr, self.0.payload) = self.parse_bytes()?;
        }
        Ok(())
    }

    /// What it travels by; only of a packet that is good.
    #[inline]
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// What the headers say; only of a packet that is good.
    #[inline]
    pub(crate) fn repr(&self) -> &Repr {
        &self.0.repr
    }

    /// The payload without pad; only of a packet that is good.
    #[inline]
    pub(crate) fn payload(&self) -> Payload<'_> {
        match &self.0.source {
            None => Payload::Bytes(self.0.payload()),
            Some((region, offset)) => Payload::Region { region, offset: *offset, len: self.0.payload.len() },
        }
    }

    /// The same as bytes: nothing of a packet whose payload is still in its sender's memory, which only messages of
    /// reliable services have.
    #[inline]
    pub(crate) fn payload_bytes(&self) -> &[u8] {
        match self.is_referring() {
            true => &[],
            false => self.0.payload(),
        }
    }

    /// Parses bytes: the headers, and where the payload is.
    fn parse_bytes(&self) -> Result<(Path, Repr, Range<usize>), Malformed> {
        match &self.0.path.link {
            LinkAddress::Ib(_) => {
                let (address, grh, repr, payload) = ib::frame::parse(&self.0.data, self.due())?;
                Ok((Path { link: LinkAddress::Ib(address), grh }, repr, payload))
            }
            LinkAddress::Eth(_) => {
                let (address, grh, repr, payload) = eth::frame::parse(&self.0.data, self.due())?;
                Ok((Path { link: LinkAddress::Eth(address), grh }, repr, payload))
            }
        }
    }

    /// Which of its bytes' checksums nobody computed, as they are right by construction.
    pub fn due(&self) -> Due {
        match self.0.form {
            Form::Built => Due::All,
            Form::Bytes(due) => due,
        }
    }

    /// Checks what every port on the way checks, switches too.
    pub(crate) fn check_link(&self) -> Result<(), Malformed> {
        match (self.0.form, &self.0.path.link) {
            (Form::Built, _) => Ok(()),
            (_, LinkAddress::Ib(_)) => ib::frame::check(&self.0.data, self.due()).map(drop),
            (_, LinkAddress::Eth(_)) => eth::frame::check(&self.0.data, self.due()).map(drop),
        }
    }

    /// Marks it as bad: every port that it still comes to knows.
    pub(crate) fn mark_bad(&mut self) {
        self.be_bytes();
        self.0.form = Form::PRESENT;
        match &self.0.path.link {
            LinkAddress::Ib(_) => ib::frame::mark_bad(&mut self.0.data),
            LinkAddress::Eth(_) => eth::frame::mark_bad(&mut self.0.data),
        }
    }

    /// Puts the packet on another lane of the link. Its link checksum, which must have been right, is right again.
    #[inline]
    pub(crate) fn set_lane(&mut self, lane: u8) {
        let body = &mut *self.0;
        match &mut body.path.link {
            LinkAddress::Ib(address) if body.form == Form::Built => address.vl = lane & 0xf,
            LinkAddress::Ib(_) => {
                if ib::frame::set_vl(&mut body.data, lane) {
                    body.header_changed();
                }
            }
            // What its tag says stays.
            LinkAddress::Eth(_) => body.class = lane,
        }
    }

    /// The P_Key of its BTH, unchecked; `None` of a raw packet.
    pub(crate) fn pkey(&self) -> Option<u16> {
        match (self.0.form, &self.0.path.link) {
            (Form::Built, _) => Some(self.0.repr.pkey),
            (_, LinkAddress::Ib(_)) if !ib::frame::is_transport(&self.0.data) => None,
            (_, LinkAddress::Ib(_)) => ib::frame::bth(&self.0.data).map(|bth| bth.get(Bth::P_KEY) as u16),
            (_, LinkAddress::Eth(_)) => eth::frame::bth(&self.0.data).map(|bth| bth.get(Bth::P_KEY) as u16),
        }
    }

    /// The BTH as it stands there, unchecked; zeroes if there is none.
    pub(crate) fn bth(&self) -> Bth {
        self.transport_header().unwrap_or_default()
    }

    /// The BTH as it stands there, unchecked, if there is one: other frames have none.
    pub(crate) fn transport_header(&self) -> Option<Bth> {
        match (self.0.form, &self.0.path.link) {
            (Form::Built, _) => Some(self.0.bth()),
            (_, LinkAddress::Ib(_)) => ib::frame::bth(&self.0.data),
            (_, LinkAddress::Eth(_)) => eth::frame::bth(&self.0.data),
        }
    }

    /// The 40 bytes that a datagram's receiver finds in front of the payload: the GRH as it is on the wire, or what stands in
    /// its place; only of a packet that is good.
    pub(crate) fn grh(&self) -> Option<[u8; Grh::SIZE]> {
        let extended = ExtendedHeaders::by(self.0.repr.transport, self.0.repr.operation).unwrap_or_default();
        let from_bth = extended.bytes_from_bth(self.0.payload.len().next_multiple_of(4));
        let grh = self.0.path.grh.as_ref()?;
        Some(match &self.0.path.link {
            LinkAddress::Ib(_) => grh.to_bytes(from_bth),
            LinkAddress::Eth(address) => eth::frame::network_header(address, grh, from_bth),
        })
    }

    /// Takes bytes as they came from an InfiniBand link; nothing is checked before [`Packet::parse`].
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(Box::new(Body { len: bytes.len(), data: bytes, ..Body::default() }))
    }

    /// Takes bytes as they came from a link at a port of that kind; nothing is checked before [`Packet::parse`].
    pub(crate) fn from_link(kind: PortKind, bytes: Vec<u8>) -> Self {
        match kind {
            PortKind::InfiniBand => Self::from_bytes(bytes),
            PortKind::Ethernet => Self::from_frame_bytes(bytes),
        }
    }

    /// Of which kind of port's link it is.
    pub fn kind(&self) -> PortKind {
        match &self.0.path.link {
            LinkAddress::Ib(_) => PortKind::InfiniBand,
            LinkAddress::Eth(_) => PortKind::Ethernet,
        }
    }

    /// Whether it is a transport packet that was built here and is no bytes yet.
    pub(crate) fn is_built(&self) -> bool {
        self.0.form == Form::Built
    }

    /// The same link layer's packet with other bytes: checksums are not computed again.
    #[must_use]
    pub(crate) fn with_changed_bytes(self, change: impl FnOnce(&mut [u8])) -> Self {
        let kind = self.kind();
        let mut bytes = self.into_bytes();
        change(&mut bytes);
        Self::from_link(kind, bytes)
    }

    /// From now on it is bytes, which have all checksums but the link's.
    fn be_bytes(&mut self) {
        self.fetch_payload();
        let body = &mut *self.0;
        if body.form == Form::Built {
            body.data = body.sealed();
            body.form = Form::Bytes(Due::All);
        }
        if body.form == Form::Bytes(Due::All) {
            match &body.path.link {
                LinkAddress::Ib(_) => ib::frame::set_icrc(&mut body.data),
                LinkAddress::Eth(_) => eth::frame::set_icrc(&mut body.data),
            }
            body.form = Form::Bytes(Due::Link);
        }
    }

    /// The bytes on the link, checksums included.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.be_bytes();
        let due = self.due() == Due::Link;
        let mut bytes = std::mem::take(&mut self.0.data);
        if due {
            match &self.0.path.link {
                LinkAddress::Ib(_) => ib::frame::set_vcrc(&mut bytes),
                LinkAddress::Eth(_) => eth::frame::set_fcs(&mut bytes),
            }
        }
        bytes
    }

    /// Hands its bytes on a link that garbles nothing to `sink`, without the checksums that are [`Packet::due`]: [`Packet::len`] of them.
    /// Payload in its sender's memory is as it is there now.
    pub fn put_on_link(self, sink: &mut dyn Sink) {
        let body = &*self.0;
        match body.form {
            Form::Built => {
                let mut head = [0; LONGEST_HEAD];
                let head_len = LONGEST_HEAD - body.put_head(&mut head);
                sink.put(head.get(..head_len).unwrap_or_default());
                match &body.source {
                    None => sink.put(body.payload()),
                    Some((region, offset)) => region.put(*offset, body.payload.len(), sink),
                }
                let behind = body.len.saturating_sub(head_len + body.payload.len());
                sink.put(ZEROES.get(..behind).unwrap_or_default());
            }
            Form::Bytes(_) => sink.put(&body.data),
        }
        self.retire();
    }

    /// Takes `len` bytes as they came from such a link at a port of that kind, which `fill` writes, *all of them*; nothing else is checked before
    /// [`Packet::parse`].
    pub fn of_link(kind: PortKind, due: Due, len: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let mut packet = spare::take();
        let body = &mut *packet.0;
        body.data.resize(len, 0);
        fill(&mut body.data);
        let link = match kind {
            PortKind::InfiniBand => LinkAddress::Ib(ib::Address::default()),
            PortKind::Ethernet => LinkAddress::Eth(eth::frame::peek(&body.data).0),
        };
        body.path = Path { link, grh: None };
        body.form = Form::Bytes(due);
        (body.len, body.payload, body.source, body.repr) = (len, 0..0, None, Repr::default());
        (body.domain, body.sender, body.class) = (None, None, flow::UNCLASSED);
        packet
    }

    /// The packet has done what it was for: another one may have its memory.
    pub(crate) fn retire(mut self) {
        self.0.source = None;
        spare::give(self);
    }

    /// Bytes on the link; of InfiniBand, LRH to VCRC.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The addresses on InfiniBand as they stand there, unchecked; zeroes if the packet is too short, and of a frame.
    #[inline]
    pub fn ib(&self) -> ib::Address {
        match (self.0.form, &self.0.path.link) {
            (Form::Built, LinkAddress::Ib(address)) => *address,
            (_, LinkAddress::Ib(_)) => ib::Address::of_bytes(&self.0.data),
            (_, LinkAddress::Eth(_)) => ib::Address::default(),
        }
    }

    /// The lane that it is on, unchecked.
    #[inline(always)]
    pub(crate) fn lane(&self) -> u8 {
        match &self.0.path.link {
            LinkAddress::Ib(address) if self.0.form == Form::Built => address.vl,
            _ => self.lane_of_others(),
        }
    }

    /// The same of what was not built here for InfiniBand.
    #[inline(never)]
    fn lane_of_others(&self) -> u8 {
        match &self.0.path.link {
            LinkAddress::Ib(_) => self.ib().vl,
            LinkAddress::Eth(address) if self.0.class == flow::UNCLASSED => address.priority(),
            LinkAddress::Eth(_) => self.0.class,
        }
    }

    /// Whether many may receive it, unchecked.
    #[inline]
    pub(crate) fn is_multicast(&self) -> bool {
        match &self.0.path.link {
            LinkAddress::Ib(address) if self.0.form == Form::Built => address.dlid.is_multicast(),
            LinkAddress::Ib(_) => self.ib().dlid.is_multicast(),
            LinkAddress::Eth(address) => address.dmac.is_group(),
        }
    }

    /// Whether it manages the network: such packets pass ports that take no data yet.
    #[inline]
    pub(crate) fn is_management(&self) -> bool {
        match &self.0.path.link {
            LinkAddress::Ib(_) => self.lane() == ib::VL15,
            LinkAddress::Eth(_) => false,
        }
    }
}

impl Body {
    #[inline]
    fn payload(&self) -> &[u8] {
        self.data.get(self.payload.clone()).unwrap_or_default()
    }

    /// A copy of the payload; zeroes for what can't be read any more.
    fn copied_payload(&self) -> Vec<u8> {
        let Some((region, offset)) = &self.source else { return self.payload().to_vec() };
        let mut bytes = vec![0; self.payload.len()];
        if region.read(*offset, &mut bytes).is_err() {
            bytes.fill(0);
        }
        bytes
    }

    /// Of a built packet.
    fn bth(&self) -> Bth {
        let len = self.payload.len();
        self.repr.bth(len.next_multiple_of(4) - len)
    }

    /// Writes what a built packet has in front of its payload. Returns how much is left of `bytes`.
    fn put_head(&self, bytes: &mut [u8]) -> usize {
        let (grh, repr, payload) = (self.path.grh.as_ref(), &self.repr, self.payload.len());
        match &self.path.link {
            LinkAddress::Ib(address) => ib::frame::head(address, grh, repr, payload, bytes),
            LinkAddress::Eth(address) => eth::frame::head(address, grh, repr, payload, bytes),
        }
    }

    /// A built packet as bytes; all checksums are still to be computed.
    fn sealed(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        let left = self.put_head(&mut bytes);
        let place = self.len.saturating_sub(left);
        let payload = self.payload();
        if let Some(room) = bytes.get_mut(place..place.saturating_add(payload.len())) {
            room.copy_from_slice(payload);
        }
        bytes
    }

    /// A port on the way changed what the link's checksum covers, and nothing that goes from end to end. That checksum was right.
    fn header_changed(&mut self) {
        if self.form == Form::PRESENT {
            self.form = Form::Bytes(Due::Link);
        }
    }
}

impl std::fmt::Debug for Packet {
    /// Short: length, LIDs and the word with the opcode of a packet without GRH; MAC addresses of a frame.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = be32(self.bth().bytes(), 0);
        match &self.0.path.link {
            LinkAddress::Ib(_) => {
                let ib::Address { slid, dlid, .. } = self.ib();
                write!(f, "Packet({} bytes, {slid} to {dlid}, {word:08x}..)", self.len())
            }
            LinkAddress::Eth(eth::Address { smac, dmac, .. }) => {
                write!(f, "Frame({} bytes, {smac} to {dmac})", self.len())
            }
        }
    }
}
