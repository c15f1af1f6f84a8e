use hca_firmware::icm::{Domain, MemoryKey, Translation};
use hca_firmware::list::List;
use hca_firmware::piece_list::EVERY;
use hca_firmware::{Config, Firmware};
use hca_spec::ids::{Pd, Qpn};
use hca_spec::mkc::{ANY_QP, AccessMode, Klm, Mkc, REPEAT_BLOCK, RepeatBlock, RepeatPiece};
use proptest::prelude::*;

use super::*;

/// What a list has: a piece of that length, or so many cycles of pieces with a length and a stride each.
#[derive(Debug, Clone)]
enum Item {
    Piece(u32),
    Layout(u32, Vec<(u32, u32)>),
}

/// The bytes of a list whose pieces are all of one key, each somewhere else.
fn list(items: &[Item], key: Mkey) -> Vec<u8> {
    let mut bytes = Vec::new();
    for item in items {
        let at = (bytes.len() as u64) << 20;
        match item {
            Item::Piece(len) => {
                let mut piece = Klm::new();
                piece.set(Klm::BYTE_COUNT, *len).set(Klm::MKEY, key.0).set(Klm::ADDRESS, at);
                bytes.extend(piece.bytes());
            }
            Item::Layout(cycles, pieces) => {
                let mut block = RepeatBlock::new();
                block.set(RepeatBlock::OP, REPEAT_BLOCK).set(RepeatBlock::REPEAT_COUNT, *cycles);
                block.set(RepeatBlock::NUM_ENTRIES, pieces.len() as u32);
                bytes.extend(block.bytes());
                for (n, (len, stride)) in pieces.iter().enumerate() {
                    let mut piece = RepeatPiece::new();
                    piece.set(RepeatPiece::BYTE_COUNT, *len).set(RepeatPiece::STRIDE, *stride);
                    piece.set(RepeatPiece::MKEY, key.0).set(RepeatPiece::ADDRESS, at + ((n as u64) << 20));
                    bytes.extend(piece.bytes());
                }
            }
        }
    }
    bytes
}

/// A function with a key of all memory and one of a list.
struct Keys {
    fw: Firmware,
    who: Accessor,
    key: Mkey,
}

impl Keys {
    fn new(items: &[Item]) -> Self {
        let mut fw = Firmware::new(Config::default());
        let pd = fw.icm.pds.insert(Domain::default()).unwrap();
        let mut made = |mode, translation| {
            let mut key = MemoryKey { translation, ..MemoryKey::default() };
            key.ctx.set_access_mode(mode).set(Mkc::PD, pd).set(Mkc::QPN, ANY_QP).set(Mkc::LENGTH64, 1);
            key.ctx.set(Mkc::LR, 1).set(Mkc::LW, 1);
            Mkey::new(fw.icm.mkeys.insert(key).unwrap(), 0)
        };
        let all = made(AccessMode::Pa, Translation::None);
        let key = made(AccessMode::Klm, Translation::Klm(List::of(&list(items, all)).into()));
        Self { fw, who: Accessor { qpn: Qpn(7), pd: Pd(pd), rlky: false }, key }
    }

    /// Where an access goes, and how many entries it took and looked at. What it has found is kept.
    fn access(&mut self, va: u64, len: u64) -> (Result<Vec<Span>, Fault>, u32, u32) {
        let (mut steps, mut spans) = (Steps::default(), Vec::new());
        let target = target(&self.fw.icm, self.who, self.key, va, len, Access::LocalRead).unwrap();
        let Target::Plain(plain) = target else { panic!("it is signed") };
        let done = plain.spans(&mut steps, &mut |span| {
            spans.push(span);
            Ok(())
        });
        steps.keep(&mut self.fw.icm);
        (done.map(|()| spans), steps.taken(), steps.take_looks())
    }

    /// Nobody has come by anything.
    fn forget(&mut self) {
        let key = self.fw.icm.mkeys.get_mut(self.key.index()).unwrap();
        *key = key.clone();
    }
}

fn item() -> impl Strategy<Value = Item> {
    let lens = prop::collection::vec((0u32..4, 0u32..9), 0..4);
    // Some as long as others are many.
    let long = (0u32..3, EVERY..3 * EVERY, 0u32..3)
        .prop_map(|(cycles, count, len)| Item::Layout(cycles, vec![(len, 5); count]));
    prop_oneof![
        400 => (0u32..4).prop_map(Item::Piece),
        20 => (0u32..4, lens).prop_map(|(cycles, pieces)| Item::Layout(cycles, pieces)),
        1 => long,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever was accessed before, an access goes where the first one would, and takes as many entries.
    #[test]
    fn marks_change_nothing(
        items in prop::collection::vec(item(), 0..2000),
        accesses in prop::collection::vec((any::<prop::sample::Index>(), 1u64..40), 1..30),
    ) {
        let (mut fresh, mut marked) = (Keys::new(&items), Keys::new(&items));
        let bytes = items.iter().map(|item| match item {
            Item::Piece(len) => u64::from(*len),
            Item::Layout(cycles, pieces) => pieces.iter().map(|(len, _)| u64::from(*len)).sum::<u64>() * u64::from(*cycles),
        });
        let whole = bytes.sum::<u64>() as usize;
        for (place, len) in accesses {
            // Some of them end behind the last piece.
            let va = place.index(whole + 20) as u64;
            fresh.forget();
            let (expected, steps, _) = fresh.access(va, len);
            let (found, taken, looks) = marked.access(va, len);
            prop_assert_eq!((&found, taken), (&expected, steps), "{} bytes at {}", len, va);
            // No more than all of the list, and what a layout's size is.
            prop_assert!(looks <= 2 * steps + 1 + items.len() as u32, "{} of {}", looks, steps);
        }
    }
}

/// Packet by packet through the longest list, forwards and then anywhere: all of it once, and a piece of it for each packet.
#[test]
fn a_message_goes_through_a_list_once() {
    const PIECES: usize = 1 << 16;
    const PACKET: u64 = 4096;
    let near = 2 * EVERY as u32;
    let layout = |cycles, pieces| vec![Item::Layout(cycles, vec![(16, 64); pieces])];
    for (items, bytes) in [
        (vec![Item::Piece(16); PIECES], 16 * PIECES as u64),
        (layout(1, PIECES - 1), 16 * (PIECES as u64 - 1)),
        // Of more pieces, an access at the end of a cycle is one too long.
        (layout(8, PIECES / 2), 8 * 8 * PIECES as u64),
    ] {
        let mut keys = Keys::new(&items);
        let (mut looked_at, mut taken) = (0, 0);
        for packet in 0..bytes / PACKET {
            let (found, steps, looks) = keys.access(packet * PACKET, PACKET);
            assert_eq!(found.map(|spans| spans.iter().map(|span| span.len).sum()), Ok(PACKET as usize));
            // The first one looks at all pieces of a layout.
            let most = near + 1 + if packet == 0 { PIECES as u32 } else { 0 };
            assert!(looks <= most, "packet {packet}: {looks}");
            looked_at += u64::from(looks);
            taken += u64::from(steps);
        }
        assert!(looked_at < (bytes / PACKET) * u64::from(near) + PIECES as u64, "{looked_at}");
        assert!(taken > 40 * looked_at, "{taken} without marks, {looked_at} with them");
        for va in [bytes - 1, bytes / 2, 0, bytes - PACKET] {
            let (_, _, looks) = keys.access(va, 1);
            assert!(looks <= near, "{looks} to {va}");
        }
    }
}

/// An access at the end of a list that nobody has walked looks at all of it; the bound is for an access, not for a list.
#[test]
fn what_is_too_long_stays_so() {
    let mut keys = Keys::new(&vec![Item::Piece(1); 1 << 16]);
    let (mut walked, mut steps) = (Walked::default(), Steps::default());
    let key = keys.key;
    let mut last = |steps: &mut Steps| {
        let Target::Plain(plain) =
            target(&keys.fw.icm, keys.who, keys.key, (1 << 16) - 1, 1, Access::LocalRead).unwrap()
        else {
            panic!("it is signed")
        };
        let done = plain.spans(steps, &mut |_| Ok(()));
        assert_eq!(steps.has_places(), steps.taken() == 1 << 16, "the first one finds all marks");
        steps.keep(&mut keys.fw.icm);
        let looks = steps.take_looks();
        walked.add(looks);
        (done, steps.taken(), looks)
    };

    assert_eq!(last(&mut steps), (Ok(()), 1 << 16, 1 << 16));
    let (done, taken, second) = last(&mut steps);
    assert_eq!((done, taken), (Ok(()), 1 << 17));
    assert!(second <= EVERY as u32, "{second}");
    let (refused, _, third) = last(&mut steps);
    assert_eq!(refused, Err(Fault::Translation { key, va: (1 << 16) - 1 }));
    // What is charged is what was looked at, once.
    let looks = (1 << 16) + second + third;
    assert_eq!([walked.charge(), walked.charge()], [looks - (1 << 10), 0]);
}
