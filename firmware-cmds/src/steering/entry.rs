//! Entries that drivers write into the adapter's memory, carried out ([`hca_spec::ste`]).

use hca_spec::ste::{Ste, SteAction, action, anchor, entry_format, insert};

use super::Steering;
use super::frame::{Edit, Passing, Registers};
use super::rewrite::{add, copy};
use super::tags;

/// Where the memory and everything else that packets are sent to by address lies: addresses have 40 bits, and those of objects
/// their number from bit 6 on. An estimate: which they are on a real adapter is nobody's to know.
mod base {
    pub(super) const TIR: u64 = 0x40_0000_0000;
    pub(super) const TABLE: u64 = 0x50_0000_0000;
    pub(super) const DROP: u64 = 0x60_0000_0000;
    pub(super) const ALLOW: u64 = 0x61_0000_0000;
    pub(super) const SAMPLER: u64 = 0x70_0000_0000;
    pub(super) const METER: u64 = 0x80_0000_0000;
    pub(super) const SIZE: u64 = 1 << 32;
    pub(super) const SHIFT: u32 = 6;
}

/// What a packet is sent to by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    /// An entry.
    Entry(u64),
    Tir(u32),
    /// A table whose entries are made by commands.
    Table(u32),
    Sampler(u32),
    Meter(u32),
    /// It is dropped.
    Drop,
    /// It goes where packets of the type go by themselves.
    Allow,
}

/// The address of a TIR.
pub(crate) const fn address_of_tir(tirn: u32) -> u64 {
    base::TIR + ((tirn as u64) << base::SHIFT)
}

/// The address of a table.
pub(crate) const fn address_of_table(number: u32) -> u64 {
    base::TABLE + ((number as u64) << base::SHIFT)
}

/// The address of a sampler.
pub(crate) const fn address_of_sampler(number: u32) -> u64 {
    base::SAMPLER + ((number as u64) << base::SHIFT)
}

/// The address of a meter.
pub(crate) const fn address_of_meter(number: u32) -> u64 {
    base::METER + ((number as u64) << base::SHIFT)
}

/// The address that drops packets.
pub(crate) const DROP: u64 = base::DROP;
/// The address that lets packets leave.
pub(crate) const ALLOW: u64 = base::ALLOW;

/// What a packet meets at an address. What lies nowhere drops it.
pub(super) fn landing(steering: &Steering, address: u64) -> Landing {
    let number = |from: u64| {
        let at = address.checked_sub(from).filter(|at| *at < base::SIZE)?;
        u32::try_from(at >> base::SHIFT).ok()
    };
    if steering.memory.is_entry(address) {
        Landing::Entry(address)
    } else if let Some(tirn) = number(base::TIR) {
        Landing::Tir(tirn)
    } else if let Some(table) = number(base::TABLE) {
        Landing::Table(table)
    } else if let Some(sampler) = number(base::SAMPLER) {
        Landing::Sampler(sampler)
    } else if let Some(meter) = number(base::METER) {
        Landing::Meter(meter)
    } else if address == ALLOW {
        Landing::Allow
    } else {
        Landing::Drop
    }
}

/// Bytes of a unit of lists of changes.
const LIST_UNIT: u64 = 64;
/// Bytes of an action in such a list.
const LIST_ACTION: usize = 8;

/// What is known of an entry once a packet is at it.
pub(super) struct Met {
    ste: Ste,
    pub(super) hit: bool,
}

impl Met {
    /// Reads the entry at an address and compares. `None`: nothing is allocated there.
    pub(super) fn at(steering: &Steering, address: u64, packet: &Passing<'_>) -> Option<Self> {
        let mut bytes = [0; Ste::SIZE];
        steering.memory.read(address, &mut bytes).then_some(())?;
        let ste = Ste::from_prefix_or_zero(&bytes);
        let format = ste.get(Ste::ENTRY_FORMAT);
        let kind = ste.get(Ste::MATCH_DEFINER);
        let same = if format < entry_format::MATCH {
            let tag = tags::tag(packet, format << 8 | kind);
            let mask = bytes.get(Ste::MASK..).unwrap_or_default();
            let value = bytes.get(Ste::TAG..).unwrap_or_default();
            tag.iter().zip(mask).zip(value).all(|((tag, mask), value)| tag & mask == *value)
        } else if kind == entry_format::NO_DEFINER {
            true
        } else {
            let value = bytes.get(Ste::MATCH_TAG..).unwrap_or_default();
            steering.definer(kind).is_some_and(|definer| definer.tag(packet) == value)
        };
        Some(Self { ste, hit: same != (ste.get(Ste::MATCH_POLARITY) == 1) })
    }

    /// Its counter; 0 = none.
    pub(super) fn counter(&self) -> u32 {
        self.ste.get(Ste::COUNTER_ID)
    }

    /// Where a packet goes that it does not match.
    pub(super) fn miss(&self) -> u64 {
        u64::from(self.ste.get(Ste::MISS_ADDRESS_39_32)) << 32
            | u64::from(self.ste.get(Ste::MISS_ADDRESS_31_6)) << 6
    }

    /// Where a packet goes that it matched, after the actions.
    pub(super) fn next(&self, steering: &Steering, packet: &Passing<'_>) -> u64 {
        const UNIT: u32 = 5;
        let place = u64::from(self.ste.get(Ste::NEXT_TABLE_39_32)) << (32 - UNIT)
            | u64::from(self.ste.get(Ste::NEXT_TABLE_31_5));
        let entries = place & place.wrapping_neg();
        let table = (place ^ entries) << UNIT;
        if entries <= 1 {
            return table;
        }
        let kind = self.ste.get(Ste::HASH_DEFINER);
        let index = if self.is_match() {
            let tag = steering.definer(kind).map(|definer| definer.tag(packet));
            tag.map_or(0, |tag| tags::place(&tag, entries))
        } else {
            let kind = self.ste.get(Ste::NEXT_ENTRY_FORMAT) << 8 | kind;
            tags::index(tags::tag(packet, kind), self.ste.get(Ste::BYTE_MASK), entries)
        };
        table.wrapping_add(index.wrapping_mul(Ste::SIZE as u64))
    }

    fn is_match(&self) -> bool {
        self.ste.get(Ste::ENTRY_FORMAT) >= entry_format::MATCH
    }

    /// Whether there are actions.
    pub(super) fn acts(&self) -> bool {
        let start = if self.is_match() { Ste::MATCH_ACTIONS } else { Ste::ACTIONS };
        self.ste.bytes().get(start..Ste::ACTIONS_END).is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0))
    }

    /// Its actions, in their order. What is of no kind here does nothing, and what is behind it has no known place.
    fn actions(&self) -> impl Iterator<Item = SteAction> {
        let start = if self.is_match() { Ste::MATCH_ACTIONS } else { Ste::ACTIONS };
        let mut rest = self.ste.bytes().get(start..Ste::ACTIONS_END).unwrap_or_default();
        std::iter::from_fn(move || {
            let one = (!rest.is_empty()).then(|| SteAction::from_prefix_or_zero(rest))?;
            let words = action::words(one.get(SteAction::ACTION_ID))?;
            rest = rest.get(words * 4..).unwrap_or_default();
            Some(one)
        })
    }

    /// Changes in its lists.
    pub(super) fn listed(&self) -> u32 {
        let lists = self.actions().filter(|one| one.get(SteAction::ACTION_ID) == action::MODIFY_LIST);
        lists.map(|one| one.get(SteAction::LIST_LENGTH)).sum()
    }

    /// Does the actions. At most three, and lists of up to 255 changes.
    pub(super) fn act(&self, steering: &Steering, packet: &mut Passing<'_>) {
        for one in self.actions() {
            match one.get(SteAction::ACTION_ID) {
                action::NOP => {}
                action::FLOW_TAG => packet.tag = one.get(SteAction::FLOW_TAG),
                action::MODIFY_LIST => self.change(steering, packet, &one),
                _ => packet.edit(|edit, registers| do_one(steering, edit, registers, &one)),
            }
        }
    }

    /// A list of changes that a driver wrote.
    fn change(&self, steering: &Steering, packet: &mut Passing<'_>, one: &SteAction) {
        let at = u64::from(one.get(SteAction::LIST_POINTER)) * LIST_UNIT;
        let mut list = vec![0; one.get(SteAction::LIST_LENGTH) as usize * LIST_ACTION];
        if !steering.memory.read(steering.memory.lists().saturating_add(at), &mut list) {
            return;
        }
        packet.edit(|edit, registers| {
            for bytes in list.as_chunks::<LIST_ACTION>().0 {
                do_one(steering, edit, registers, &SteAction::from_prefix_or_zero(bytes));
            }
        });
    }
}

/// Bits are counted in a pair of words, of which the second is meant.
const PAIR: u32 = 32;
/// Bytes of a unit of lengths and offsets.
const UNIT: usize = 2;

fn do_one(steering: &Steering, edit: &mut Edit, registers: &mut Registers, one: &SteAction) {
    let destination = one.get(SteAction::DESTINATION);
    let shift = one.get(SteAction::DESTINATION_SHIFT).wrapping_sub(PAIR);
    let (length, data) = (one.get(SteAction::LENGTH), one.get(SteAction::DATA));
    let offset = || one.get(SteAction::START_OFFSET) as usize * UNIT;
    match one.get(SteAction::ACTION_ID) {
        action::SET => edit.write_bits(registers, destination, (shift, length), data),
        action::ADD => add(edit, registers, destination, (shift, length), data),
        action::COPY => {
            let from = (one.get(SteAction::SOURCE), one.get(SteAction::SOURCE_SHIFT).wrapping_sub(PAIR));
            copy(edit, registers, from, (destination, shift), length);
        }
        action::REMOVE_HEADERS => {
            let (start, end) =
                (place(edit, one, SteAction::START_ANCHOR), place(edit, one, SteAction::END_ANCHOR));
            if let (Some(start), Some(end)) = (start, end) {
                edit.remove(start..end);
            }
        }
        action::REMOVE_BY_SIZE => {
            if let Some(start) = place(edit, one, SteAction::START_ANCHOR) {
                let start = start.saturating_add(offset());
                edit.remove(start..start.saturating_add(one.get(SteAction::REMOVE_SIZE) as usize * UNIT));
            }
        }
        action::INSERT_INLINE => {
            if let Some(start) = place(edit, one, SteAction::START_ANCHOR) {
                edit.insert(start.saturating_add(offset()), &data.to_be_bytes());
            }
        }
        action::INSERT_POINTER => {
            let size = one.get(SteAction::INSERT_SIZE) as usize * UNIT;
            let header = steering.reformat(data).and_then(|context| context.header.get(..size));
            if let (Some(header), Some(start)) = (header, place(edit, one, SteAction::START_ANCHOR)) {
                edit.insert(start.saturating_add(offset()), header);
                if one.get(SteAction::INSERT_ATTRIBUTES) == insert::ENCAP {
                    edit.complete_tunnel();
                }
            }
        }
        _ => {}
    }
}

/// Where an anchor is in a frame. `None`: it has no such header.
fn place(edit: &mut Edit, one: &SteAction, field: hca_spec::layout::Field<SteAction>) -> Option<usize> {
    const TAGS: usize = 12;
    let at = one.get(field);
    if at == anchor::START {
        return Some(0);
    }
    let sight = edit.sight();
    match at {
        anchor::FIRST_VLAN => sight.key.outer.tags[0].map(|_| TAGS),
        anchor::IP => sight.key.outer.ip.map(|_| sight.places.l3),
        anchor::INNER_MAC => sight.places.inner,
        anchor::INNER_IP => sight.places.inner_l3,
        _ => None,
    }
}
