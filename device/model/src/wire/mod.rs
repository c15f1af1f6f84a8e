//! InfiniBand packets, as the bytes that are on the link.
//!
//! ```text
//! LRH | GRH? | BTH | extended headers? | payload | pad 0..3 | ICRC | VCRC
//! ```
//!
//! [`Repr`] is what the headers say. [`Packet::build`] makes a [`Packet`] of a `Repr` and a payload,
//! [`Packet::into_bytes`] bytes of that, [`Packet::parse`] checks bytes and turns them back. Whatever passes
//! `parse` is complete and consistent, so nothing behind it has to check a length again.
//!
//! Not here: raw packets (LNH 0 and 1), RD and link packets (flow control is modelled without its packets).

mod crc;
mod malformed;
mod repr;
mod room;
mod spare;

use std::ops::Range;
use std::sync::Arc;

use hca_spec::ids::{Lid, Psn, Qpn};
use hca_spec::layout::be32;
use hca_spec::wire::{
    Bth, GRH_NXT_IBA, Grh, ICRC_SIZE, LNH_BTH, LNH_GRH, Lrh, Operation, Transport, VCRC_SIZE,
};

pub use malformed::{Malformed, PortCounter};
pub(crate) use room::Room;

pub use repr::{AethRepr, AtomicRepr, Carried, DcEthRepr, DethRepr, GrhRepr, Repr, RethRepr};
use repr::{Reader, Writer};

use crate::ground::region::{Payload, Region};

/// The largest payload: a path MTU of 4096 bytes.
pub const MAX_PAYLOAD: usize = 4096;

/// One packet: LRH to VCRC.
///
/// A packet that was built here and never left the process is good by construction: it is kept as what its headers say
/// and its payload, and is bytes with checksums only for who asks for them ([`Packet::into_bytes`]). One that came in as
/// bytes is checked in [`Packet::parse`]. Whoever looks at the link sees no difference.
#[derive(Clone)]
pub struct Packet(Box<Body>);

struct Body {
    form: Form,
    /// What the headers say: of a built packet as they would be parsed, of bytes once they were.
    repr: Repr,
    /// Of a built packet its payload and what else there is room for, otherwise LRH to VCRC.
    data: Vec<u8>,
    /// Where the payload is in it: of a built packet, and of bytes once they were parsed.
    payload: Range<usize>,
    /// Bytes on the link.
    len: usize,
    /// Of a packet whose payload is still in its sender's memory: where.
    source: Option<(Arc<Region>, u64)>,
}

impl Default for Body {
    fn default() -> Self {
        Self {
            form: Form::Present,
            repr: Repr::default(),
            data: Vec::new(),
            payload: 0..0,
            len: 0,
            source: None,
        }
    }
}

impl Clone for Body {
    fn clone(&self) -> Self {
        let Self { form, repr, len, .. } = *self;
        let (data, payload) = match form {
            Form::Built => (self.copied_payload(), 0..self.payload.len()),
            _ => (self.data.clone(), self.payload.clone()),
        };
        Self { form, repr, data, payload, len, source: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Headers and payload, no bytes yet.
    Built,
    /// Bytes. The ICRC is right or wrong; the VCRC is not computed yet, since a switch changed the LRH.
    VcrcDue,
    /// Bytes, with checksums right or wrong.
    Present,
}

impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        match (self.0.form, other.0.form) {
            (Form::Built, Form::Built) => {
                self.0.repr == other.0.repr && self.0.copied_payload() == other.0.copied_payload()
            }
            (Form::Present, Form::Present) => self.0.data == other.0.data,
            _ => self.clone().into_bytes() == other.clone().into_bytes(),
        }
    }
}

impl Eq for Packet {}

fn icrc_of(lrh: &Lrh, grh: Option<&Grh>, bth: &Bth, rest: &[u8]) -> [u8; ICRC_SIZE] {
    match grh {
        None => crc::icrc_local(lrh, bth, rest),
        Some(grh) => crc::icrc_global(grh, bth, rest),
    }
}

/// Computes the checksums of a packet built here into its last bytes.
fn seal(bytes: &mut [u8]) {
    let Some((covered, vcrc)) = bytes.split_last_chunk_mut::<VCRC_SIZE>() else { return };
    let Some((body, icrc)) = covered.split_last_chunk_mut::<ICRC_SIZE>() else { return };
    let mut reader = Reader(body);
    let lrh = Lrh::from_prefix_or_zero(reader.take(Lrh::SIZE).unwrap_or_default());
    let grh = match lrh.get(Lrh::LNH) {
        LNH_GRH => reader.take(Grh::SIZE).map(Grh::from_prefix_or_zero),
        _ => None,
    };
    let bth = Bth::from_prefix_or_zero(reader.take(Bth::SIZE).unwrap_or_default());
    *icrc = icrc_of(&lrh, grh.as_ref(), &bth, reader.0);
    *vcrc = crc::vcrc(covered);
}

impl Packet {
    /// The smallest IBA transport packet: LRH, BTH, ICRC, VCRC.
    pub const MIN_SIZE: usize = Lrh::SIZE + Bth::SIZE + ICRC_SIZE + VCRC_SIZE;

    /// Builds a packet with `payload_len` bytes of payload, which `fill` writes in place: it is given zeroes.
    ///
    /// The only error is `fill`'s; see `Packet::build_with`.
    pub fn build<E>(
        repr: &Repr,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Packet, E> {
        Self::build_with(repr, payload_len, |payload| {
            payload.fill(0);
            fill(payload)
        })
    }

    /// Builds a packet with `payload_len` bytes of payload, which `fill` writes in place, *all of them*: what is there
    /// before may be of another guest. Those that fill from guest memory do it with a [`Room`], or zero it first.
    ///
    /// Lengths and pad count are computed. The only error is `fill`'s. A payload longer
    /// than [`MAX_PAYLOAD`], payload on an opcode without one, or an opcode that its transport
    /// doesn't have is an error of the caller: the payload is cut off, the receiver will complain.
    pub(crate) fn build_with<E>(
        repr: &Repr,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Packet, E> {
        let known = Carried::by(repr.transport, repr.operation);
        debug_assert!(known.is_some(), "no opcode {:?} on {:?}", repr.operation, repr.transport);
        let carried = known.unwrap_or_default();
        let max = if carried.payload { MAX_PAYLOAD } else { 0 };
        debug_assert!(payload_len <= max, "{payload_len} bytes of payload on {:?}", repr.operation);
        let payload_len = payload_len.min(max);

        let mut packet = spare::take();
        let body = &mut *packet.0;
        if body.data.len() < payload_len {
            body.data.resize(payload_len, 0);
        }
        fill(body.data.get_mut(..payload_len).unwrap_or_default())?;
        repr.put_carried(carried, &mut body.repr);
        body.form = Form::Built;
        body.payload = 0..payload_len;
        body.source = None;
        body.len = Self::bytes_on_link(repr, carried, payload_len);
        if known.is_none() {
            packet.be_bytes();
        }
        Ok(packet)
    }

    fn bytes_on_link(repr: &Repr, carried: Carried, payload: usize) -> usize {
        let grh = if repr.grh.is_some() { Grh::SIZE } else { 0 };
        Lrh::SIZE + grh + repr::bytes_from_bth(carried, payload.next_multiple_of(4)) + VCRC_SIZE
    }

    /// Bytes on the link of a packet with such headers and so much payload; `None`: its transport does not have its
    /// operation.
    pub(crate) fn len_of(repr: &Repr, payload: usize) -> Option<usize> {
        Carried::by(repr.transport, repr.operation).map(|known| Self::bytes_on_link(repr, known, payload))
    }

    /// A packet with the `payload` bytes that a region has from `offset` on: they stay there until somebody wants them
    /// ([`Packet::settle`]). `len`: its bytes on the link ([`Packet::len_of`]); its opcode carries no extended headers but
    /// those that are set.
    #[inline]
    pub(crate) fn referring(
        repr: &Repr,
        payload: usize,
        len: usize,
        (region, offset): (&Arc<Region>, u64),
    ) -> Packet {
        let mut packet = spare::take();
        let body = &mut *packet.0;
        body.form = Form::Built;
        body.repr = *repr;
        body.payload = 0..payload;
        body.len = len;
        body.source = Some((Arc::clone(region), offset));
        packet
    }

    /// Whether its payload is still in its sender's memory.
    #[inline]
    pub(crate) fn is_referring(&self) -> bool {
        self.0.source.is_some()
    }

    /// From now on it has its payload's bytes itself. If they are not to be had any more it is bad from then on.
    pub(crate) fn settle(&mut self) {
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
    pub fn build_empty(repr: &Repr) -> Packet {
        match Self::build(repr, 0, |_| Ok::<(), std::convert::Infallible>(())) {
            Ok(packet) => packet,
            Err(never) => match never {},
        }
    }

    /// Checks every byte that a receiving port checks; gives the headers and the payload without pad.
    pub fn parse(&self) -> Result<(Repr, &[u8]), Malformed> {
        match self.0.form {
            Form::Built => Ok((self.0.repr, self.payload_bytes())),
            _ => {
                let (repr, payload) = self.parse_bytes()?;
                Ok((repr, self.0.data.get(payload).unwrap_or_default()))
            }
        }
    }

    /// The same, for those who look at headers and payload more than once: from then on [`Packet::repr`] and
    /// [`Packet::payload`] give them.
    pub(crate) fn open(&mut self) -> Result<(), Malformed> {
        if self.0.form != Form::Built {
            (self.0.repr, self.0.payload) = self.parse_bytes()?;
        }
        Ok(())
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
    fn parse_bytes(&self) -> Result<(Repr, Range<usize>), Malformed> {
        let len = self.len();
        let truncated = Malformed::Truncated { len };
        let covered = self.check_bytes()?;
        let (body, icrc) = covered.split_last_chunk::<ICRC_SIZE>().ok_or(truncated)?;

        let mut reader = Reader(body);
        let lrh = Lrh::from_prefix_or_zero(reader.take(Lrh::SIZE).ok_or(truncated)?);
        let grh = match lrh.get(Lrh::LNH) {
            LNH_BTH => None,
            LNH_GRH => Some(Grh::from_prefix_or_zero(reader.take(Grh::SIZE).ok_or(truncated)?)),
            raw => return Err(Malformed::Raw(raw as u8)),
        };
        let from_bth = reader.0.len() + ICRC_SIZE;
        let bth = Bth::from_prefix_or_zero(reader.take(Bth::SIZE).ok_or(truncated)?);
        let computed = icrc_of(&lrh, grh.as_ref(), &bth, reader.0);
        if *icrc != computed {
            let (found, expected) = (u32::from_be_bytes(*icrc), u32::from_be_bytes(computed));
            return Err(Malformed::Icrc { found, expected });
        }
        let grh = grh.map(|g| check_grh(&g, from_bth)).transpose()?;
        let mut repr = transport_header(&bth)?;
        repr.sl = lrh.get(Lrh::SL) as u8;
        repr.vl = lrh.get(Lrh::VL) as u8;
        repr.dlid = Lid(lrh.get(Lrh::DLID) as u16);
        repr.slid = Lid(lrh.get(Lrh::SLID) as u16);
        repr.grh = grh;
        let opcode = Malformed::Opcode(bth.get(Bth::OPCODE) as u8);
        let carried = Carried::by(repr.transport, repr.operation).ok_or(opcode)?;
        repr.read_extended(carried, &mut reader).ok_or(truncated)?;

        let padded = reader.0.len();
        let pad = bth.get(Bth::PAD_CNT) as usize;
        let payload = padded.checked_sub(pad).ok_or(Malformed::Pad { pad, len: padded })?;
        let max = if carried.payload { MAX_PAYLOAD } else { 0 };
        if payload > max || (max == 0 && pad != 0) {
            return Err(Malformed::Payload { operation: repr.operation, len: payload, max });
        }
        let start = body.len().saturating_sub(padded);
        Ok((repr, start..start + payload))
    }

    /// Checks what every port on the way checks, switches too: VCRC, link version and length.
    pub(crate) fn check_link(&self) -> Result<(), Malformed> {
        match self.0.form {
            Form::Built => Ok(()),
            _ => self.check_bytes().map(drop),
        }
    }

    /// The same of bytes. Gives what the VCRC covers.
    fn check_bytes(&self) -> Result<&[u8], Malformed> {
        let truncated = Malformed::Truncated { len: self.len() };
        let (covered, vcrc) = self.0.data.split_last_chunk::<VCRC_SIZE>().ok_or(truncated)?;
        if self.0.form == Form::Present && *vcrc != crc::vcrc(covered) {
            let expected = crc::vcrc(covered);
            if vcrc.map(|byte| !byte) == expected {
                return Err(Malformed::Marked);
            }
            let (found, expected) = (u16::from_be_bytes(*vcrc), u16::from_be_bytes(expected));
            return Err(Malformed::Vcrc { found, expected });
        }
        let lrh = Lrh::from_prefix_or_zero(covered.get(..Lrh::SIZE).ok_or(truncated)?);
        let link_version = lrh.get(Lrh::LVER) as u8;
        if link_version != 0 {
            return Err(Malformed::LinkVersion(link_version));
        }
        let said = lrh.get(Lrh::PKT_LEN) as usize * 4;
        if said != covered.len() {
            return Err(Malformed::Length { said, len: covered.len() });
        }
        Ok(covered)
    }

    /// Marks it as bad. On a link it would end with EBP instead of EGP (IBTA vol 1 7.3); delimiters are no bytes of a
    /// packet, so here the complement of its VCRC says that.
    pub(crate) fn mark_bad(&mut self) {
        self.be_bytes();
        self.0.form = Form::Present;
        if let Some((covered, vcrc)) = self.0.data.split_last_chunk_mut::<VCRC_SIZE>() {
            *vcrc = crc::vcrc(covered).map(|byte| !byte);
        }
    }

    /// Puts the packet on another virtual lane. Its VCRC, which must have been right, is right again; the ICRC does
    /// not cover the lane (IBTA vol 1 7.8.1).
    pub(crate) fn set_vl(&mut self, vl: u8) {
        const VL_SHIFT: u32 = 4;
        let body = &mut *self.0;
        if body.form == Form::Built {
            return body.repr.vl = vl & 0xf;
        }
        let Some(first) = body.data.first_mut() else { return };
        let changed = *first & 0xf | vl << VL_SHIFT;
        if *first != changed {
            *first = changed;
            body.form = Form::VcrcDue;
        }
    }

    /// The P_Key of its BTH, unchecked; `None` of a raw packet.
    pub(crate) fn pkey(&self) -> Option<u16> {
        match self.0.form {
            Form::Built => Some(self.0.repr.pkey),
            _ if !matches!(self.lrh().get(Lrh::LNH), LNH_BTH | LNH_GRH) => None,
            _ => self.bth_at().map(|bth| bth.get(Bth::P_KEY) as u16),
        }
    }

    /// The BTH as it stands there, unchecked; zeroes if there is none.
    pub(crate) fn bth(&self) -> Bth {
        match self.0.form {
            Form::Built => self.0.bth(),
            _ => self.bth_at().unwrap_or_default(),
        }
    }

    /// Of bytes, if there are so many.
    fn bth_at(&self) -> Option<Bth> {
        let grh = if self.lrh().get(Lrh::LNH) == LNH_GRH { Grh::SIZE } else { 0 };
        self.0.data.get(Lrh::SIZE + grh..).map(Bth::from_prefix_or_zero)
    }

    /// The 40 bytes of the GRH as they are on the wire; only of a packet that is good.
    pub(crate) fn grh(&self) -> Option<[u8; Grh::SIZE]> {
        let from_bth = self.len().saturating_sub(Lrh::SIZE + Grh::SIZE + VCRC_SIZE);
        self.0.repr.grh.as_ref().map(|grh| grh.to_bytes(from_bth))
    }

    /// Takes bytes as they came from a link; nothing is checked before [`Packet::parse`].
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(Box::new(Body { len: bytes.len(), data: bytes, ..Body::default() }))
    }

    /// From now on it is bytes.
    fn be_bytes(&mut self) {
        self.settle();
        if self.0.form == Form::Built {
            self.0.data = self.0.sealed();
            self.0.form = Form::Present;
        }
    }

    /// The bytes on the link, checksums included.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.be_bytes();
        let mut bytes = std::mem::take(&mut self.0.data);
        if self.0.form == Form::VcrcDue
            && let Some((covered, vcrc)) = bytes.split_last_chunk_mut::<VCRC_SIZE>()
        {
            *vcrc = crc::vcrc(covered);
        }
        bytes
    }

    /// The packet has done what it was for: another one may have its memory.
    pub(crate) fn retire(mut self) {
        self.0.source = None;
        spare::give(self);
    }

    /// Bytes on the link, LRH to VCRC.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The destination LID as it stands there, unchecked; 0 if the packet is too short.
    #[inline]
    pub fn dlid(&self) -> Lid {
        match self.0.form {
            Form::Built => self.0.repr.dlid,
            _ => Lid(self.lrh().get(Lrh::DLID) as u16),
        }
    }

    /// The source LID as it stands there, unchecked; 0 if the packet is too short.
    pub fn slid(&self) -> Lid {
        match self.0.form {
            Form::Built => self.0.repr.slid,
            _ => Lid(self.lrh().get(Lrh::SLID) as u16),
        }
    }

    /// The virtual lane as it stands there, unchecked; 0 if the packet is too short.
    #[inline]
    pub fn vl(&self) -> u8 {
        match self.0.form {
            Form::Built => self.0.repr.vl,
            _ => self.lrh().get(Lrh::VL) as u8,
        }
    }

    /// The service level as it stands there, unchecked; 0 if the packet is too short.
    #[inline]
    pub fn sl(&self) -> u8 {
        match self.0.form {
            Form::Built => self.0.repr.sl,
            _ => self.lrh().get(Lrh::SL) as u8,
        }
    }

    /// Of bytes.
    fn lrh(&self) -> Lrh {
        Lrh::from_prefix_or_zero(&self.0.data)
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

    /// A built packet as bytes, checksums computed.
    fn sealed(&self) -> Vec<u8> {
        let carried = Carried::by(self.repr.transport, self.repr.operation).unwrap_or_default();
        let from_bth = repr::bytes_from_bth(carried, self.payload.len().next_multiple_of(4));
        let grh = self.repr.grh.map(|g| g.grh(from_bth));
        let lrh = self.repr.lrh(self.len.saturating_sub(VCRC_SIZE));
        let mut bytes = vec![0; self.len];
        let mut writer = Writer(&mut bytes);
        writer.put(lrh.bytes());
        if let Some(grh) = &grh {
            writer.put(grh.bytes());
        }
        writer.put(self.bth().bytes());
        self.repr.write_extended(carried, &mut writer);
        if let Some((payload, _)) = writer.0.split_at_mut_checked(self.payload.len()) {
            payload.copy_from_slice(self.payload());
        }
        seal(&mut bytes);
        bytes
    }
}

impl std::fmt::Debug for Packet {
    /// Short: length, LIDs and the word with the opcode of a packet without GRH.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = be32(self.bth().bytes(), 0);
        write!(f, "Packet({} bytes, {} to {}, {word:08x}..)", self.len(), self.slid(), self.dlid())
    }
}

/// The GRH checks of IBTA vol 1 9.6.1.2.
fn check_grh(grh: &Grh, len: usize) -> Result<GrhRepr, Malformed> {
    const IP_VERSION: u32 = 6;
    let (version, next) = (grh.get(Grh::IP_VER), grh.get(Grh::NXT_HDR));
    let said = grh.get(Grh::PAY_LEN) as usize;
    if version != IP_VERSION || next != GRH_NXT_IBA || said != len {
        return Err(Malformed::Grh { version: version as u8, next: next as u8, said, len });
    }
    Ok(GrhRepr::from_grh(grh))
}

/// The BTH checks of IBTA vol 1 9.6.1.1 that need no queue pair.
fn transport_header(bth: &Bth) -> Result<Repr, Malformed> {
    let version = bth.get(Bth::TVER) as u8;
    if version != 0 {
        return Err(Malformed::TransportVersion(version));
    }
    let opcode = bth.get(Bth::OPCODE);
    let unknown = Malformed::Opcode(opcode as u8);
    Ok(Repr {
        transport: Transport::from_opcode(opcode).ok_or(unknown)?,
        operation: Operation::from_opcode(opcode).ok_or(unknown)?,
        solicited: bth.get(Bth::SE) == 1,
        migrated: bth.get(Bth::M) == 1,
        pkey: bth.get(Bth::P_KEY) as u16,
        dest_qp: Qpn(bth.get(Bth::DEST_QP)),
        ack_req: bth.get(Bth::ACK_REQ) == 1,
        psn: Psn::new(bth.get(Bth::PSN)),
        ..Repr::default()
    })
}

#[cfg(test)]
mod tests;
