//! Packets as bytes: LRH to VCRC.
//!
//! Source: IBTA vol 1 7.7 (LRH), 7.8 (checksums), 7.3 (packets that end as bad).

use std::ops::Range;

use hca_spec::wire::{Bth, Grh, ICRC_SIZE, LNH_BTH, LNH_GRH, Lrh, VCRC_SIZE};

use super::Address;
use super::vcrc::vcrc;
use crate::link_layer::Due;
use crate::wire::{ExtendedHeaders, GrhRepr, Malformed, Reader, Repr, Writer, icrc};

/// Bytes of a packet on the link: all of them but headers and payload of the transport.
pub(in crate::link_layer) const fn len(global: bool, extended: ExtendedHeaders, payload: usize) -> usize {
    let grh = if global { Grh::SIZE } else { 0 };
    Lrh::SIZE + grh + extended.bytes_from_bth(payload.next_multiple_of(4)) + VCRC_SIZE
}

/// Writes what a packet with so many bytes of `payload` has in front of that. Returns how much is left of `bytes`.
pub(in crate::link_layer) fn head(
    address: &Address,
    grh: Option<&GrhRepr>,
    repr: &Repr,
    payload: usize,
    bytes: &mut [u8],
) -> usize {
    let extended = ExtendedHeaders::by(repr.transport, repr.operation).unwrap_or_default();
    let from_bth = extended.bytes_from_bth(payload.next_multiple_of(4));
    let len = len(grh.is_some(), extended, payload);
    let mut writer = Writer(bytes);
    writer.put(address.lrh(grh.is_some(), len.saturating_sub(VCRC_SIZE)).bytes());
    if let Some(grh) = grh {
        writer.put(grh.grh(from_bth).bytes());
    }
    repr.write(extended, payload, &mut writer);
    writer.0.len()
}

/// Computes the ICRC anew, of what is a transport packet.
pub(in crate::link_layer) fn set_icrc(bytes: &mut [u8]) {
    if !is_transport(bytes) {
        return;
    }
    if let Some((covered, _)) = bytes.split_last_chunk_mut::<VCRC_SIZE>()
        && let Some((body, icrc)) = covered.split_last_chunk_mut::<ICRC_SIZE>()
        && let Some(front) = Front::of(body)
    {
        *icrc = front.icrc();
    }
}

/// Computes the VCRC anew.
pub(in crate::link_layer) fn set_vcrc(bytes: &mut [u8]) {
    if let Some((covered, last)) = bytes.split_last_chunk_mut::<VCRC_SIZE>() {
        *last = vcrc(covered);
    }
}

/// Marks a packet as bad. On a link it would end with EBP instead of EGP (IBTA vol 1 7.3); delimiters are no bytes of a
/// packet, so here the complement of its VCRC says that.
pub(in crate::link_layer) fn mark_bad(bytes: &mut [u8]) {
    if let Some((covered, last)) = bytes.split_last_chunk_mut::<VCRC_SIZE>() {
        *last = vcrc(covered).map(|byte| !byte);
    }
}

/// Puts a packet on another virtual lane. Whether that changed it: then its VCRC is due. The ICRC does not cover the lane
/// (IBTA vol 1 7.8.1).
pub(in crate::link_layer) fn set_vl(bytes: &mut [u8], vl: u8) -> bool {
    const VL_SHIFT: u32 = 4;
    let Some(first) = bytes.first_mut() else { return false };
    let changed = *first & 0xf | vl << VL_SHIFT;
    std::mem::replace(first, changed) != changed
}

/// The BTH as it stands there, unchecked, if there are so many bytes.
pub(in crate::link_layer) fn bth(bytes: &[u8]) -> Option<Bth> {
    let grh = if Lrh::from_prefix_or_zero(bytes).get(Lrh::LNH) == LNH_GRH { Grh::SIZE } else { 0 };
    bytes.get(Lrh::SIZE + grh..).map(Bth::from_prefix_or_zero)
}

/// Whether it says to have a BTH; otherwise it is a raw packet.
pub(in crate::link_layer) fn is_transport(bytes: &[u8]) -> bool {
    matches!(Lrh::from_prefix_or_zero(bytes).get(Lrh::LNH), LNH_BTH | LNH_GRH)
}

/// Checks what every port on the way checks, switches too: VCRC (unless it is due), link version and length. Returns what the VCRC
/// covers.
pub(in crate::link_layer) fn check(bytes: &[u8], due: Due) -> Result<&[u8], Malformed> {
    let truncated = Malformed::Truncated { len: bytes.len() };
    let (covered, found) = bytes.split_last_chunk::<VCRC_SIZE>().ok_or(truncated)?;
    if due == Due::Nothing && *found != vcrc(covered) {
        let expected = vcrc(covered);
        if found.map(|byte| !byte) == expected {
            return Err(Malformed::Marked);
        }
        let (found, expected) = (u16::from_be_bytes(*found), u16::from_be_bytes(expected));
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

/// Headers in front of a packet's payload, unchecked, and what follows the BTH up to the ICRC.
struct Front<'a> {
    lrh: Lrh,
    grh: Option<Grh>,
    bth: Bth,
    rest: &'a [u8],
}

impl<'a> Front<'a> {
    /// Of what is in front of the ICRC. `None`: it ends before the headers do.
    fn of(body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(body);
        let lrh = Lrh::from_prefix_or_zero(reader.take(Lrh::SIZE)?);
        let grh = match lrh.get(Lrh::LNH) {
            LNH_GRH => Some(Grh::from_prefix_or_zero(reader.take(Grh::SIZE)?)),
            _ => None,
        };
        let bth = Bth::from_prefix_or_zero(reader.take(Bth::SIZE)?);
        Some(Self { lrh, grh, bth, rest: reader.0 })
    }

    /// Its ICRC, as it travels. A router replaces the whole LRH, so it counts as ones where there is a GRH (IBTA vol 1
    /// 7.8.1).
    fn icrc(&self) -> [u8; ICRC_SIZE] {
        match &self.grh {
            None => {
                let mut lrh = self.lrh;
                lrh.set(Lrh::VL, Lrh::VL.max());
                icrc(&[lrh.bytes()], &self.bth, self.rest)
            }
            Some(grh) => icrc(&[&[0xff; Lrh::SIZE], GrhRepr::masked(grh).bytes()], &self.bth, self.rest),
        }
    }
}

/// What a good packet says.
pub(in crate::link_layer) type Parsed = (Address, Option<GrhRepr>, Repr, Range<usize>);

/// Checks every byte that a receiving port checks, but checksums that are due; gives the headers, and where the payload is.
pub(in crate::link_layer) fn parse(bytes: &[u8], due: Due) -> Result<Parsed, Malformed> {
    let truncated = Malformed::Truncated { len: bytes.len() };
    let covered = check(bytes, due)?;
    let (body, found) = covered.split_last_chunk::<ICRC_SIZE>().ok_or(truncated)?;
    let raw = Lrh::from_prefix_or_zero(body.get(..Lrh::SIZE).ok_or(truncated)?).get(Lrh::LNH);
    if !matches!(raw, LNH_BTH | LNH_GRH) {
        return Err(Malformed::Raw(raw as u8));
    }
    let front = Front::of(body).ok_or(truncated)?;
    if due != Due::All {
        let computed = front.icrc();
        if *found != computed {
            let (found, expected) = (u32::from_be_bytes(*found), u32::from_be_bytes(computed));
            return Err(Malformed::Icrc { found, expected });
        }
    }
    let Front { lrh, grh, bth, rest } = front;
    let from_bth = Bth::SIZE + rest.len() + ICRC_SIZE;
    let grh = grh.map(|grh| GrhRepr::check(&grh, from_bth)).transpose()?;
    let (repr, payload) = Repr::read(&bth, rest, bytes.len())?;
    let start = body.len().saturating_sub(rest.len());
    Ok((Address::of(&lrh), grh, repr, start + payload.start..start + payload.end))
}
