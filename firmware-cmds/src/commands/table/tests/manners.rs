//! What firmware does with less room, more input and reserved bits: each command's answer and the state that it leaves are the same.

use hca_spec::layout::Layout;

use super::*;

/// What a command was answered, and the adapter behind it.
type Left = (Vec<u8>, Vec<(Kind, u32)>, u64, u64);

/// Executes a command on an adapter of its own, its valid input changed so, with room for so many bytes.
fn left(kind: PortKind, command: &Command, change: impl Fn(&mut Vec<u8>), room: usize) -> Left {
    let mut b = bench(kind, command.state);
    let mut fixture = populate(&mut b);
    prepare(&mut b, &mut fixture, command);
    let mut input = command.template(&fixture);
    change(&mut input);
    let answer = b.raw(&input, room);
    (answer.output, counts(&b), b.fw.icm_used(), b.fw.fingerprint())
}

/// Every command of every link layer with which `differs` finds something, by name.
fn those_that(differs: impl Fn(PortKind, &Command, &Left) -> bool) -> Vec<&'static str> {
    let mut found = Vec::new();
    for (kind, command) in LAYERS.into_iter().flat_map(|kind| offered(kind).map(move |c| (kind, c))) {
        let whole = left(kind, command, |_| {}, 0x2000);
        if differs(kind, command, &whole) && !found.contains(&command.name) {
            found.push(command.name);
        }
    }
    found
}

/// Commands that look at the room.
const ROOMY: [(&str, &str); 1] =
    [("QUERY_FLOW_COUNTER", "room for fewer counters than are asked for is refused")];

/// An output is cut off where the room ends, and the command is executed all the same.
#[test]
fn outputs_are_cut_off() {
    let cut = those_that(|kind, command, whole| {
        let len = whole.0.len();
        let rooms = [8, 12, 16, len.midpoint(8) & !3, len.saturating_sub(4)];
        rooms.into_iter().filter(|room| (8..len).contains(room)).any(|room| {
            let mut expected = whole.clone();
            expected.0.truncate(room);
            left(kind, command, |_| {}, room) != expected
        })
    });
    assert_eq!(cut, ROOMY.map(|(name, _)| name));
}

/// Commands that take what is behind their layouts, whose length says how much there is of it.
const OPEN: [(&str, &str); 0] = [];

/// What is behind an input has no meaning.
#[test]
fn longer_inputs_are_the_same() {
    let more = |input: &mut Vec<u8>| input.extend([0xff; 0x40]);
    let open = those_that(|kind, command, whole| left(kind, command, more, 0x2000) != *whole);
    assert_eq!(open, OPEN.map(|(name, _)| name));
}

/// Marks the bits of a structure's fields, and of those of the structures within it.
fn mark(layout: &Layout, base: usize, known: &mut [bool]) {
    for field in layout.fields {
        let bits = match field.hi {
            63 => 0..64,
            hi => 31 - usize::from(hi)..32 - usize::from(field.lo),
        };
        let at = 8 * (base + field.offset);
        known.iter_mut().skip(at + bits.start).take(bits.len()).for_each(|bit| *bit = true);
    }
    for view in layout.views {
        if let Some(inner) = view.layout() {
            mark(inner, base + view.offset, known);
        }
    }
}

/// Commands that look at bits which no field of their layouts has.
const RESERVED: [(&str, &str); 4] = [
    ("MAD_IFC", "the MAD, which has layouts of its own"),
    ("QUERY_ROCE_ADDRESS", "the index of the address, before the port of its common layout"),
    ("CREATE_FLOW_GROUP", "criteria: bits of headers that cannot be compared are refused"),
    ("ALLOC_PACKET_REFORMAT_CONTEXT", "the bytes of the header"),
];

/// Bits of an input that are no field's have no meaning.
#[test]
fn reserved_bits_are_ignored() {
    let looking = those_that(|kind, command, whole| {
        let mut known = vec![false; 8 * command.input];
        for (layout, at) in command.layouts() {
            mark(layout, at, &mut known);
        }
        assert!(known.iter().any(|known| !known), "{} has no reserved bits", command.name);
        let set = |input: &mut Vec<u8>| {
            for (n, _) in known.iter().enumerate().filter(|(_, known)| !**known) {
                input[n / 8] |= 1 << (7 - n % 8);
            }
        };
        left(kind, command, set, 0x2000) != *whole
    });
    assert_eq!(looking, RESERVED.map(|(name, _)| name));
}
