//! Contexts of what entries do to packets: headers that are put before them or taken off, and lists of changes.

use hca_spec::rewrite::{FieldAction, field_action, reformat};

use super::frame::{Edit, Passing};
use super::words;

/// What a reformat context does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReformatKind {
    /// The frame becomes the payload of a tunnel.
    L2ToTunnel,
    /// The datagram becomes the payload of a tunnel.
    L3ToTunnel,
    /// The datagram comes out of a tunnel, and gets a header of layer 2.
    TunnelToL2,
}

impl ReformatKind {
    pub(crate) fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            reformat::L2_TO_L2_TUNNEL => Self::L2ToTunnel,
            reformat::L2_TO_L3_TUNNEL => Self::L3ToTunnel,
            reformat::L3_TUNNEL_TO_L2 => Self::TunnelToL2,
            _ => return None,
        })
    }

    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::L2ToTunnel => reformat::L2_TO_L2_TUNNEL,
            Self::L3ToTunnel => reformat::L2_TO_L3_TUNNEL,
            Self::TunnelToL2 => reformat::L3_TUNNEL_TO_L2,
        }
    }
}

/// A reformat context.
#[derive(Debug)]
pub(crate) struct Reformat {
    pub(crate) kind: ReformatKind,
    pub(crate) header: Box<[u8]>,
    /// Entries that name it.
    pub(crate) users: u32,
}

/// A list of changes.
#[derive(Debug)]
pub(crate) struct HeaderChanges {
    pub(crate) actions: Box<[FieldAction]>,
    /// Entries that name it.
    pub(crate) users: u32,
}

/// Whether a list may have an action.
pub(crate) fn is_valid(action: &FieldAction) -> bool {
    let fits = |place: Option<words::Place>, offset: u32, length: u32| {
        place.is_some_and(|(_, _, bits)| offset.saturating_add(length) <= bits)
    };
    let (offset, length) = (action.get(FieldAction::OFFSET), bits_of(action));
    let place = words::place_of(action.get(FieldAction::FIELD));
    match action.get(FieldAction::ACTION_TYPE) {
        field_action::SET => fits(place, offset, length),
        field_action::ADD => place.is_some(),
        field_action::COPY => {
            let to = words::place_of(action.get(FieldAction::DST_FIELD));
            fits(place, offset, length) && fits(to, action.get(FieldAction::DST_OFFSET), length)
        }
        _ => false,
    }
}

fn bits_of(action: &FieldAction) -> u32 {
    match action.get(FieldAction::LENGTH) {
        0 => u32::BITS,
        bits => bits,
    }
}

impl HeaderChanges {
    pub(super) fn apply(&self, packet: &mut Passing<'_>) {
        packet.edit(|edit, registers| {
            for action in &self.actions {
                let Some((word, shift, bits)) = words::place_of(action.get(FieldAction::FIELD)) else {
                    continue;
                };
                let from = shift.saturating_add(action.get(FieldAction::OFFSET));
                let data = action.get(FieldAction::DATA);
                match action.get(FieldAction::ACTION_TYPE) {
                    field_action::SET => edit.write_bits(registers, word, (from, bits_of(action)), data),
                    field_action::ADD => add(edit, registers, word, (shift, bits), data),
                    field_action::COPY => {
                        let Some((to, to_shift, _)) = words::place_of(action.get(FieldAction::DST_FIELD))
                        else {
                            continue;
                        };
                        let to_shift = to_shift.saturating_add(action.get(FieldAction::DST_OFFSET));
                        copy(edit, registers, (word, from), (to, to_shift), bits_of(action));
                    }
                    _ => {}
                }
            }
        });
    }
}

/// Adds to bits of a word; what overflows is lost.
pub(super) fn add(
    edit: &mut Edit,
    registers: &mut super::frame::Registers,
    word: u32,
    (shift, bits): (u32, u32),
    data: u32,
) {
    if let Some(before) = edit.read_word(registers, word) {
        let sum = before.checked_shr(shift).unwrap_or(0).wrapping_add(data);
        edit.write_bits(registers, word, (shift, bits), sum);
    }
}

/// Copies bits of a word to another one.
pub(super) fn copy(
    edit: &mut Edit,
    registers: &mut super::frame::Registers,
    (word, shift): (u32, u32),
    (to, to_shift): (u32, u32),
    bits: u32,
) {
    if let Some(value) = edit.read_word(registers, word) {
        edit.write_bits(registers, to, (to_shift, bits), value.checked_shr(shift).unwrap_or(0));
    }
}

impl Reformat {
    pub(super) fn apply(&self, packet: &mut Passing<'_>) {
        packet.edit(|edit, _| match self.kind {
            ReformatKind::L2ToTunnel => encapsulate(edit, &self.header),
            ReformatKind::L3ToTunnel => {
                let l3 = edit.sight().places.l3;
                edit.remove(0..l3);
                encapsulate(edit, &self.header);
            }
            ReformatKind::TunnelToL2 => {
                // What is in no tunnel stays as it is.
                if let Some(inner) = edit.sight().places.inner_l3 {
                    edit.remove(0..inner);
                    edit.insert(0, &self.header);
                }
            }
        });
    }
}

fn encapsulate(edit: &mut Edit, header: &[u8]) {
    edit.insert(0, header);
    edit.complete_tunnel();
}

/// Takes the tunnel off a frame that is in one.
pub(super) fn decapsulate(packet: &mut Passing<'_>) {
    if let Some(inner) = packet.sight().places.inner {
        packet.edit(|edit, _| edit.remove(0..inner));
    }
}
