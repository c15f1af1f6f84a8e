//! Transmission selection: which priority of an Ethernet port sends next.
//!
//! Priorities are in traffic classes, classes in groups. The highest group that has something sends; among its classes each
//! gets its share of what is sent while it has something (IEEE 802.1Q 8.6.8.3). A class that was idle has no claim on what it
//! did not use: shares are start times of fair queueing (Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996), told
//! from the class that sent last.

use hca_firmware::port::classes::{CLASSES, Class, Classes};

use crate::ground::time::Ps;

/// Picoseconds of a byte at 1 Mb/s.
const BYTE: u64 = 8_000_000;
/// The smallest unit of a share, and how much all of a group is.
const WHOLE: u64 = 100;

/// Priorities that wait because of a limit, a bit each, and until when: that of their class, and that of the port.
pub(in crate::link_layer) type Waits = [(u16, Ps); 2];

/// Takes turns among priorities.
#[derive(Debug, Clone)]
pub(in crate::link_layer) struct Selection {
    rules: Classes,
    /// How far each class is ahead of the one of its group that sent last: bytes over its share.
    ahead: [u64; CLASSES],
    /// The priority of each class that sent last.
    last: [u8; CLASSES],
}

impl Default for Selection {
    fn default() -> Self {
        Self { rules: Classes::default(), ahead: [0; CLASSES], last: [0; CLASSES] }
    }
}

impl Selection {
    /// Software set the classes.
    pub(in crate::link_layer) fn configure(&mut self, rules: &Classes) {
        if self.rules != *rules {
            *self = Self { rules: *rules, ..Self::default() };
        }
    }

    fn class_of(&self, priority: u8) -> (usize, Class) {
        const NONE: Class = Class { group: 0, share: 0, limit: None };
        let class = self.rules.of_priority.get(usize::from(priority)).copied().map_or(0, usize::from);
        (class, self.rules.classes.get(class).copied().unwrap_or(NONE))
    }

    /// The priority that sends next, of those whose bits are set in `ready`: a packet of so many `bytes`.
    pub(in crate::link_layer) fn pick(&mut self, ready: u16, bytes: impl Fn(u8) -> usize) -> Option<u8> {
        let candidates = (0..=7u8).filter(|priority| ready >> priority & 1 == 1);
        let key = |priority: &u8| {
            let (class, rules) = self.class_of(*priority);
            let ahead = self.ahead.get(class).copied().unwrap_or(0);
            // Priorities of one class take turns.
            let last = self.last.get(class).copied().unwrap_or(0);
            let turn = priority.wrapping_sub(last).wrapping_sub(1) & 7;
            (u8::MAX.wrapping_sub(rules.group), rules.share == 0, ahead, turn)
        };
        // Mostly one has something, and there is nothing to compare.
        let priority = match ready & 0xff {
            only if only.is_power_of_two() => only.trailing_zeros() as u8,
            _ => candidates.min_by_key(key)?,
        };
        let (class, rules) = self.class_of(priority);
        let base = self.ahead.get(class).copied().unwrap_or(0);
        for (ahead, other) in self.ahead.iter_mut().zip(&self.rules.classes) {
            if other.group == rules.group {
                *ahead = ahead.saturating_sub(base);
            }
        }
        let cost = (bytes(priority) as u64).saturating_mul(WHOLE);
        if let (Some(ahead), Some(last)) = (self.ahead.get_mut(class), self.last.get_mut(class)) {
            *ahead = ahead.saturating_add(cost / u64::from(rules.share.max(1)));
            *last = priority;
        }
        Some(priority)
    }

    /// Whether [`Selection::limit`] has priorities wait because of this one.
    #[inline]
    pub(in crate::link_layer) fn is_limited(&self, priority: u8) -> bool {
        self.rules.limit.is_some() || self.class_of(priority).1.limit.is_some()
    }

    /// Until when priorities wait because a packet of this one began to leave at `start`, if there are limits: which ones, a
    /// bit each.
    pub(in crate::link_layer) fn limit(&self, priority: u8, start: Ps, bytes: usize) -> Option<Waits> {
        let (class, rules) = self.class_of(priority);
        if rules.limit.is_none() && self.rules.limit.is_none() {
            return None;
        }
        let until = |mbps: Option<u32>| {
            let mbps = mbps.filter(|mbps| *mbps > 0)?;
            Some(start + Ps((bytes as u64).saturating_mul(BYTE) / u64::from(mbps)))
        };
        let in_class = |other: &u8| self.class_of(*other).0 == class;
        let lanes = (0..=7u8).filter(in_class).fold(0u16, |lanes, lane| lanes | 1 << lane);
        let of_class = until(rules.limit).map_or((0, Ps::ZERO), |until| (lanes, until));
        Some([of_class, until(self.rules.limit).map_or((0, Ps::ZERO), |until| (0xff, until))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: usize = 1000;

    fn shares(selection: &mut Selection, ready: u16, packets: usize) -> [usize; 8] {
        let mut sent = [0; 8];
        for _ in 0..packets {
            sent[usize::from(selection.pick(ready, |_| PACKET).unwrap())] += 1;
        }
        sent
    }

    fn with(classes: impl Fn(&mut Classes)) -> Selection {
        let mut rules = Classes::default();
        classes(&mut rules);
        let mut selection = Selection::default();
        selection.configure(&rules);
        selection
    }

    #[test]
    fn shares_of_a_group() {
        let mut s = with(|c| {
            c.classes[0].share = 10;
            c.classes[1].share = 30;
            c.classes[2].share = 60;
        });
        assert_eq!(shares(&mut s, 0b111, 1000)[..3], [100, 300, 600]);
        // What one does not use is the others'.
        assert_eq!(shares(&mut s, 0b11, 400)[..2], [100, 300]);
        // It has no claim on it later.
        let back = shares(&mut s, 0b111, 100);
        assert!((58..=62).contains(&back[2]), "{back:?}");
        assert_eq!(s.pick(0, |_| PACKET), None);
    }

    #[test]
    fn higher_groups_come_first_and_classes_without_a_share_last() {
        let mut s = with(|c| {
            c.classes[5].group = 3;
            c.classes[1].share = 0;
        });
        assert_eq!(shares(&mut s, 0b10_0011, 10)[5], 10);
        assert_eq!(shares(&mut s, 0b11, 10)[..2], [10, 0]);
        assert_eq!(shares(&mut s, 0b10, 10)[1], 10);
    }

    /// By bytes, not by packets.
    #[test]
    fn long_packets_count_for_more() {
        let mut s = Selection::default();
        let mut bytes = [0usize; 2];
        for _ in 0..1100 {
            let size = |lane| if lane == 0 { 100 } else { 1000 };
            let lane = s.pick(0b11, size).unwrap();
            bytes[usize::from(lane)] += size(lane);
        }
        assert_eq!(bytes, [100_000, 100_000]);
    }

    #[test]
    fn priorities_of_a_class_take_turns() {
        let mut s = with(|c| {
            c.of_priority = [0; 8];
            c.of_priority[7] = 1;
        });
        assert_eq!(shares(&mut s, 0b1000_0110, 400), [0, 100, 100, 0, 0, 0, 0, 200]);
    }

    #[test]
    fn limits() {
        let s = with(|c| {
            c.of_priority[3] = 2;
            c.classes[2].limit = Some(1000);
            c.limit = Some(10_000);
        });
        assert_eq!(s.limit(3, Ps(5), 1000), Some([(0b1100, Ps(5 + 8_000_000)), (0xff, Ps(5 + 800_000))]));
        assert_eq!(s.limit(0, Ps(5), 1000), Some([(0, Ps::ZERO), (0xff, Ps(5 + 800_000))]));
        assert_eq!(Selection::default().limit(0, Ps(5), 1000), None);
    }
}
