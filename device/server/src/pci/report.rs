//! What is diagnosed of a driver, for its guest to read: a vendor-specific extended capability, if a topology asks for it.
//!
//! | offset | register |
//! |---|---|
//! | 0x00 | head of an extended capability, ID 0x000b (PCIe 7.19) |
//! | 0x04 | bits 15:0: [`ID`], bits 19:16: revision 1, bits 31:20: length, 0x100 bytes |
//! | 0x08 | how many diagnoses there were since the host attached, modulo 2^32; read only |
//! | 0x0c | number of the one that is shown, from 0 on, modulo 2^32; read and written, 0 after reset |
//! | 0x10 | its text, up to 240 bytes of UTF-8 with zeros behind; all zeros: it has not come yet, or is one of the first of more than 64 |

use std::collections::VecDeque;

use super::config::ConfigSpace;

/// "The vendor's" in the capability: what it is, to whoever reads it.
pub const ID: u16 = 0x5d1a;
/// Where it is: behind the capabilities of every personality.
pub(super) const AT: usize = 0x300;
const LEN: usize = 0x100;
const HEADER: usize = AT + 0x04;
const COUNT: usize = AT + 0x08;
const NUMBER: usize = AT + 0x0c;
const TEXT: usize = AT + 0x10;
const ROOM: usize = LEN - 0x10;
/// How many are kept.
const KEPT: usize = 64;
const EXT_CAP_ID_VENDOR: u32 = 0x000b;
/// The first extended capability (PCIe 7.9.2), and most that there can be of them.
const FIRST: usize = 0x100;
const MOST: usize = 64;

/// The last diagnoses of a function.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    kept: VecDeque<String>,
    /// How many there were.
    count: u32,
}

impl Report {
    fn text(&self, number: u32) -> &str {
        let back = self.count.wrapping_sub(number) as usize;
        let at = self.kept.len().checked_sub(back).filter(|_| back > 0);
        at.and_then(|at| self.kept.get(at)).map_or("", String::as_str)
    }
}

/// Puts the capability behind the last one of a fresh space.
pub(super) fn fill(space: &mut ConfigSpace) {
    let (mut last, mut left) = (FIRST, MOST);
    loop {
        let next = space.get_u32(last) as usize >> 20 & 0xffc;
        left -= 1;
        if next == 0 || left == 0 {
            break;
        }
        last = next;
    }
    let put = |space: &mut ConfigSpace, at: usize, value: u32| space.put(at, &value.to_le_bytes());
    let head = space.get_u32(last);
    put(space, last, head | (AT as u32) << 20);
    put(space, AT, EXT_CAP_ID_VENDOR | 1 << 16);
    put(space, HEADER, u32::from(ID) | 1 << 16 | (LEN as u32) << 20);
    space.allow(NUMBER, &[u8::MAX; 4]);
    show(space);
}

/// One more was diagnosed.
pub(super) fn note(space: &mut ConfigSpace, text: &str) {
    let Some(report) = &mut space.report else { return };
    if report.kept.len() == KEPT {
        report.kept.pop_front();
    }
    report.kept.push_back(text.to_owned());
    report.count = report.count.wrapping_add(1);
    show(space);
}

/// Another host is there: what was diagnosed before is not its own.
pub(super) fn forget(space: &mut ConfigSpace) {
    if let Some(report) = &mut space.report {
        *report = Report::default();
        show(space);
    }
}

/// Software wrote so many bytes at `offset`: if that was the number, its text is there.
pub(super) fn written(space: &mut ConfigSpace, offset: usize, len: usize) {
    if offset < NUMBER + 4 && offset.saturating_add(len) > NUMBER {
        show(space);
    }
}

fn show(space: &mut ConfigSpace) {
    let number = space.get_u32(NUMBER);
    let Some(report) = &space.report else { return };
    let (mut room, count) = ([0; ROOM], report.count);
    room.iter_mut().zip(report.text(number).bytes()).for_each(|(to, from)| *to = from);
    space.put(COUNT, &count.to_le_bytes());
    space.put(TEXT, &room);
}

#[cfg(test)]
mod tests {
    use hca_model::PortKind;
    use hca_model::personality::Personality;

    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(&Personality::default_kind(), PortKind::InfiniBand, "")
    }

    fn text(space: &mut ConfigSpace, number: u32) -> String {
        space.write(NUMBER, &number.to_le_bytes());
        let mut text = [0; ROOM];
        space.read(TEXT, &mut text);
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
    }

    #[test]
    fn it_is_the_last_of_the_list() {
        for name in Personality::names() {
            let personality = Personality::named(name).expect("it is there");
            let plain = ConfigSpace::new(&personality, PortKind::InfiniBand, "");
            let space = ConfigSpace::new(&personality, PortKind::InfiniBand, "").with_report();
            let walk = |space: &ConfigSpace| {
                let (mut at, mut found) = (FIRST, Vec::new());
                while at != 0 {
                    found.push((space.get_u32(at) & 0xffff, at));
                    at = space.get_u32(at) as usize >> 20;
                }
                found
            };
            let mut all = walk(&plain);
            assert!(all.iter().all(|(_, at)| *at < AT), "{name}");
            all.push((EXT_CAP_ID_VENDOR, AT));
            assert_eq!(walk(&space), all, "{name}");
            assert_eq!(space.get_u32(HEADER), 0x1001_5d1a);
        }
    }

    #[test]
    fn the_last_ones_can_be_read() {
        let mut space = space().with_report();
        assert_eq!((text(&mut space, 0), space.get_u32(COUNT)), (String::new(), 0));
        space.write(NUMBER, &[0; 4]);
        space.note("QP 0x40: wrong");
        let mut first = [0; 14];
        space.read(TEXT, &mut first);
        assert_eq!((&first, space.get_u32(COUNT)), (b"QP 0x40: wrong", 1));
        space.write(COUNT, &[9; 4]);
        space.write(TEXT, &[9; 4]);
        assert_eq!((text(&mut space, 0).as_str(), space.get_u32(COUNT)), ("QP 0x40: wrong", 1));
        assert_eq!([1, u32::MAX].map(|number| text(&mut space, number)), ["", ""]);
        (1..=KEPT).for_each(|i| space.note(&"x".repeat(ROOM + i)));
        assert_eq!([0, 1, KEPT as u32].map(|number| text(&mut space, number).len()), [0, ROOM, ROOM]);
        space.reset();
        assert_eq!((space.get_u32(NUMBER), space.get_u32(COUNT)), (0, KEPT as u32 + 1), "diagnoses stay");
        assert_eq!(text(&mut space, 1).len(), ROOM);
        space.forget();
        assert_eq!((text(&mut space, 1), space.get_u32(COUNT)), (String::new(), 0), "another host's");
    }

    #[test]
    fn without_it_there_is_nothing() {
        let mut space = space();
        space.note("QP 0x40: wrong");
        assert_eq!(text(&mut space, 0), "");
        assert_eq!([AT, HEADER, COUNT, NUMBER].map(|at| space.get_u32(at)), [0; 4]);
    }
}
