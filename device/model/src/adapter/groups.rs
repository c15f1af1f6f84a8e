//! Queues of groups have their turns: what [`crate::adapter::state::groups`] says is carried out.

use hca_firmware::icm::MOST_LEVELS;
use hca_spec::ids::Qpn;

use super::core::Core;
use super::state::event::HcaEvent;
use super::state::groups::{GroupHold, Level, PATIENCE};
use crate::ground::time::Ps;

/// Picoseconds of a byte at 1 Mb/s.
const BYTE: u64 = 8_000_000;
/// Queues that have waited for too long and have their turn in one event.
const MOST_LATE: usize = 256;

impl Core<'_> {
    /// The element of a group and those above it, with their nodes and weights: how many, and which.
    fn levels(&self, group: u32) -> (usize, [Level; MOST_LEVELS]) {
        let mut levels = [(0, 0, 1); MOST_LEVELS];
        let mut count = 0;
        for (to, (number, element)) in levels.iter_mut().zip(self.function.fw.icm.elements(group)) {
            *to = (number, element.node(), element.weight());
            count += 1;
        }
        (count, levels)
    }

    /// Why a queue of that group may not send now.
    #[inline(always)]
    pub(crate) fn group_holds(&mut self, now: Ps, qpn: Qpn, group: u32) -> Option<GroupHold> {
        if group == 0 { None } else { self.elements_hold(now, qpn, group) }
    }

    #[cold]
    fn elements_hold(&mut self, now: Ps, qpn: Qpn, group: u32) -> Option<GroupHold> {
        let (count, levels) = self.levels(group);
        let levels = levels.get(..count).unwrap_or_default();
        // The first element that has used up its rate, and when all have some again.
        let (mut limited, mut free) = (None, None);
        for (i, (number, element)) in self.function.fw.icm.elements(group).enumerate() {
            let until = self.function.groups.rates.get(&number).filter(|free| **free > now);
            if let Some(until) = until.filter(|_| element.rate != 0) {
                limited = limited.or(Some(i));
                free = free.max(Some(*until));
            }
        }
        let groups = &mut self.function.groups;
        groups.compete(qpn, group, levels, limited.unwrap_or(count));
        if let Some(free) = free {
            self.give_group_turns(now, levels);
            return Some(GroupHold::Until(free));
        }
        let mut below = levels.iter().filter(|(_, node, _)| *node != 0);
        let first = below.find_map(|level| groups.waits_for(now, *level))?;
        // Who is waited for may wait itself.
        if let Some(qpn) = groups.held.take_below(first) {
            self.schedule(now, HcaEvent::SendTurn(qpn));
        }
        Some(GroupHold::Waits)
    }

    /// A queue of that group, which others come before, waits for its turn.
    #[cold]
    pub(crate) fn wait_in_group(&mut self, now: Ps, qpn: Qpn, group: u32) {
        let (count, levels) = self.levels(group);
        let held = &mut self.function.groups.held;
        held.put(now, qpn, levels.get(..count).unwrap_or_default());
        if !std::mem::replace(&mut held.timed, true) {
            self.schedule(now + PATIENCE, HcaEvent::GroupTurn);
        }
    }

    /// Something has changed at the nodes of these levels: queues of those that may be next there have a turn.
    fn give_group_turns(&mut self, now: Ps, levels: &[Level]) {
        for (_, node, _) in levels.iter().filter(|(_, node, _)| *node != 0) {
            if self.function.groups.held.queues.is_empty() {
                return;
            }
            let icm = &self.function.fw.icm;
            let weight = |child| icm.elements(child).next().map_or(1, |(_, element)| element.weight());
            for child in self.function.groups.next(*node, weight).into_iter().flatten() {
                if let Some(qpn) = self.function.groups.held.take_below(child) {
                    self.schedule(now, HcaEvent::SendTurn(qpn));
                }
            }
        }
    }

    /// Queues that have waited for too long have a turn.
    pub(crate) fn group_turn(&mut self, now: Ps) {
        let mut left = MOST_LATE;
        self.function.groups.held.timed = false;
        while let Some((number, since)) = self.function.groups.held.oldest() {
            if left == 0 || now < since + PATIENCE {
                self.function.groups.held.timed = true;
                return self.schedule(now.max(since + PATIENCE), HcaEvent::GroupTurn);
            }
            left -= 1;
            if let Some(qpn) = self.function.groups.held.take(number) {
                self.schedule(now, HcaEvent::SendTurn(qpn));
            }
        }
    }

    /// A queue is no longer of its group, which may go before the queue would have its turn. True: it waited there, and has no turn.
    pub(crate) fn leave_group(&mut self, now: Ps, qpn: Qpn) -> bool {
        self.group_left(now, qpn);
        let held = &mut self.function.groups.held;
        let number = held.numbers.get(&qpn).copied();
        number.and_then(|number| held.take(number)).is_some()
    }

    /// A queue has nothing to send for now.
    #[inline(always)]
    pub(crate) fn group_left(&mut self, now: Ps, qpn: Qpn) {
        if !self.function.groups.asking.is_empty() {
            self.group_dry(now, qpn);
        }
    }

    #[cold]
    fn group_dry(&mut self, now: Ps, qpn: Qpn) {
        let Some((group, _)) = self.function.groups.asking.get(&qpn).copied() else { return };
        let (count, levels) = self.levels(group);
        let groups = &mut self.function.groups;
        let levels = levels.get(..count).unwrap_or_default();
        groups.compete(qpn, group, levels, 0);
        groups.asking.remove(&qpn);
        self.give_group_turns(now, levels);
    }

    /// A queue of that group sent bytes of frames or packets.
    #[inline(always)]
    pub(crate) fn group_sent(&mut self, now: Ps, group: u32, bytes: u64) {
        if group != 0 {
            self.elements_sent(now, group, bytes);
        }
    }

    #[cold]
    fn elements_sent(&mut self, now: Ps, group: u32, bytes: u64) {
        for (number, element) in self.function.fw.icm.elements(group) {
            let Some(took) = bytes.saturating_mul(BYTE).checked_div(element.rate.into()) else { continue };
            let free = self.function.groups.rates.entry(number).or_insert(now);
            *free = now.max(*free) + Ps(took);
        }
        let (count, levels) = self.levels(group);
        for level in levels.iter().take(count).filter(|(_, node, _)| *node != 0) {
            self.function.groups.count(*level, bytes);
        }
        self.give_group_turns(now, levels.get(..count).unwrap_or_default());
    }
}
