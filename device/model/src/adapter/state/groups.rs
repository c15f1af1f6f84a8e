//! Groups of queues ([`hca_firmware::icm::Element`]) keep to their rates, and share what there is by their weights.
//!
//! Rates: an element that has sent goes on when its rate allows it, and so do those above it. A queue is held back before a packet, and what
//! it sends is counted afterwards, so at most one packet is ahead of the rate.
//!
//! Weights: of the children of a node that have something to send, the one that had the least for its weight comes first (start-time fair
//! queueing, Goyal, Vin, Cheng 1997); the others may be ahead of it by a packet, and are held back otherwise. Who had nothing to send has
//! nothing saved up. Queues without a group take no part in it.
//!
//! Each packet of a queue in a group costs some looks into ordered sets for each of at most [`MOST_LEVELS`] elements. A queue that is held
//! back by weights waits without an event of its own: it has a turn when others below a node of its have sent or have nothing more to send and its
//! element may be next, when somebody waits for it, and when it has waited for [`PATIENCE`].
//!
//! Source: `mlx5dv_sched_node_create(3)`.

use std::collections::{BTreeMap, BTreeSet};

use hca_firmware::icm::MOST_LEVELS;
use hca_spec::ids::Qpn;

use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

/// Somebody who is waited for so long has nothing to send, whatever he said.
pub(in crate::adapter) const PATIENCE: Ps = Ps::from_us(100);
/// Children of a node that may be next, and of which a queue has its turn, when one of them has sent.
const MOST_NEXT: usize = 4;
/// log2 of the steps of a byte at weight 1.
const STEPS: u32 = 20;
/// Bytes that an element may be ahead of the one that comes first.
const AHEAD: u64 = 4096;

/// What elements have sent.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Until when they have used up their rates.
    pub(in crate::adapter) rates: BTreeMap<u32, Ps>,
    shares: BTreeMap<u32, Share>,
    /// Queues that have something to send: their groups, and how many of their elements, from the group up, ask for their turn. Those
    /// above an element that has used up its rate don't.
    pub(in crate::adapter) asking: BTreeMap<Qpn, (u32, usize)>,
    pub(in crate::adapter) held: Held,
}

/// Queues that are held back by weights.
#[derive(Debug, Default)]
pub(in crate::adapter) struct Held {
    /// In the order in which they came: since when, which elements they are below, and how many those are.
    pub(in crate::adapter) queues: BTreeMap<u64, (Qpn, Ps, [u32; MOST_LEVELS])>,
    /// The same by element, and by queue.
    below: BTreeSet<(u32, u64)>,
    pub(in crate::adapter) numbers: BTreeMap<Qpn, u64>,
    came: u64,
    /// An event comes for those that have waited for too long.
    pub(in crate::adapter) timed: bool,
}

impl Held {
    pub(in crate::adapter) fn put(&mut self, now: Ps, qpn: Qpn, levels: &[Level]) {
        let mut elements = [0; MOST_LEVELS];
        elements.iter_mut().zip(levels).for_each(|(to, (element, ..))| *to = *element);
        if let Some(before) = self.numbers.get(&qpn) {
            self.take(*before);
        }
        self.came += 1;
        self.numbers.insert(qpn, self.came);
        self.below
            .extend(elements.iter().filter(|element| **element != 0).map(|element| (*element, self.came)));
        self.queues.insert(self.came, (qpn, now, elements));
    }

    pub(in crate::adapter) fn take(&mut self, number: u64) -> Option<Qpn> {
        let (qpn, _, elements) = self.queues.remove(&number)?;
        self.numbers.remove(&qpn);
        for element in elements {
            self.below.remove(&(element, number));
        }
        Some(qpn)
    }

    /// The first of those below an element.
    pub(in crate::adapter) fn take_below(&mut self, element: u32) -> Option<Qpn> {
        let (_, number) = self.below.range((element, 0)..=(element, u64::MAX)).next()?;
        self.take(*number)
    }

    /// Since when the first one waits.
    pub(in crate::adapter) fn oldest(&self) -> Option<(u64, Ps)> {
        self.queues.first_key_value().map(|(number, (_, since, _))| (*number, *since))
    }
}

/// Why a queue may not send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupHold {
    /// A rate is used up until then.
    Until(Ps),
    /// Others come first.
    Waits,
}

/// An element among its siblings, and as a node of its children.
#[derive(Debug, Default)]
struct Share {
    /// When it has had what it sent, in its node's time.
    finish: u64,
    /// When it comes next, if it is among those that have something to send.
    comes: Option<u64>,
    /// Queues below it that have something to send.
    queues: u32,
    /// A node's time: that of the child that came first last.
    time: u64,
    /// Its children that have something to send, by the time at which they come.
    asking: BTreeSet<(u64, u32)>,
    /// The child that is waited for, and since when.
    awaited: Option<(u32, Ps)>,
}

/// An element, its node, and its weight.
pub(in crate::adapter) type Level = (u32, u32, u32);

impl Groups {
    /// Nothing was sent.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// All elements and queues are gone. The event that comes still comes.
    pub(crate) fn all_gone(&mut self) {
        let timed = self.held.timed;
        self.clear();
        self.held.timed = timed;
    }

    fn share(&mut self, number: u32) -> &mut Share {
        self.shares.entry(number).or_default()
    }

    /// When a child comes, in its node's time.
    fn place(&mut self, node: u32, child: u32) -> u64 {
        let time = self.share(node).time;
        let child = self.share(child);
        child.comes.unwrap_or(time.max(child.finish))
    }

    /// A queue more or less below elements has something to send.
    fn ask(&mut self, levels: &[Level], asks: bool) {
        for (child, node, _) in levels.iter().filter(|(_, node, _)| *node != 0) {
            let share = self.share(*child);
            let before = share.queues;
            share.queues = if asks { before.saturating_add(1) } else { before.saturating_sub(1) };
            match (before, asks) {
                (0, true) => self.enter(*node, *child),
                (1, false) => {
                    if let Some(at) = self.share(*child).comes.take() {
                        self.share(*node).asking.remove(&(at, *child));
                    }
                }
                _ => {}
            }
        }
    }

    /// So many of a queue's elements ask for their turn from now on.
    pub(in crate::adapter) fn compete(&mut self, qpn: Qpn, group: u32, levels: &[Level], upto: usize) {
        let (_, before) = self.asking.insert(qpn, (group, upto)).unwrap_or((group, 0));
        self.ask(levels.get(before..upto).unwrap_or_default(), true);
        // Of elements that are gone nothing is left to say.
        self.ask(levels.get(upto..before.min(levels.len())).unwrap_or_default(), false);
        self.ask_again(levels.get(..upto).unwrap_or_default());
    }

    /// Those that were waited for in vain, and have something to send after all, come again.
    fn ask_again(&mut self, levels: &[Level]) {
        for (child, node, _) in levels.iter().filter(|(_, node, _)| *node != 0) {
            let share = self.share(*child);
            if share.queues > 0 && share.comes.is_none() {
                self.enter(*node, *child);
            }
        }
    }

    /// A child is among those that have something to send, and nobody has waited for it yet.
    fn enter(&mut self, node: u32, child: u32) {
        let at = self.place(node, child);
        self.share(child).comes = Some(at);
        let share = self.share(node);
        share.asking.insert((at, child));
        share.awaited = share.awaited.filter(|(awaited, _)| *awaited != child);
    }

    /// Which other child of the node a child has to wait for, if any.
    pub(in crate::adapter) fn waits_for(&mut self, now: Ps, (child, node, weight): Level) -> Option<u32> {
        let ahead = scaled(AHEAD, weight);
        let at = self.place(node, child);
        let mut gone = Vec::new();
        let share = self.share(node);
        while let Some((first, who)) = share.asking.first().copied() {
            if who == child || at <= first.saturating_add(ahead) {
                break;
            }
            let (awaited, since) = share.awaited.filter(|(awaited, _)| *awaited == who).unwrap_or((who, now));
            share.awaited = Some((awaited, since));
            if now.since(since) < PATIENCE {
                gone.into_iter().for_each(|who: u32| self.share(who).comes = None);
                return Some(who);
            }
            share.asking.pop_first();
            gone.push(who);
        }
        gone.into_iter().for_each(|who| self.share(who).comes = None);
        None
    }

    /// Children of a node that come first or are no further behind than the first may be ahead.
    pub(in crate::adapter) fn next(
        &self,
        node: u32,
        weight: impl Fn(u32) -> u32,
    ) -> [Option<u32>; MOST_NEXT] {
        let mut next = [None; MOST_NEXT];
        let Some(share) = self.shares.get(&node) else { return next };
        let first = share.asking.first().map_or(0, |(first, _)| *first);
        let may = |(at, child): &&(u64, u32)| *at <= first.saturating_add(scaled(AHEAD, weight(*child)));
        next.iter_mut()
            .zip(share.asking.iter().take_while(may))
            .for_each(|(to, (_, child))| *to = Some(*child));
        next
    }

    /// A child has sent bytes.
    pub(in crate::adapter) fn count(&mut self, (child, node, weight): Level, bytes: u64) {
        let at = self.place(node, child);
        let finish = at.saturating_add(scaled(bytes, weight));
        self.share(child).finish = finish;
        let share = self.share(node);
        share.awaited = share.awaited.filter(|(awaited, _)| *awaited != child);
        let first = share.asking.first().is_none_or(|(first, _)| at <= *first);
        if first {
            share.time = share.time.max(at);
        }
        if share.asking.remove(&(at, child)) {
            share.asking.insert((finish, child));
            self.share(child).comes = Some(finish);
        }
    }
}

/// Bytes as time at that weight.
fn scaled(bytes: u64, weight: u32) -> u64 {
    (bytes << STEPS).checked_div(weight.into()).unwrap_or(0).max(1)
}

impl Rebase for Groups {
    fn rebase(&mut self, by: Ps) {
        let Self { rates, shares, asking: _, held } = self;
        let Held { queues, below: _, numbers: _, came: _, timed: _ } = held;
        queues.values_mut().for_each(|(_, since, _)| since.rebase(by));
        rates.values_mut().for_each(|free| free.rebase(by));
        for share in shares.values_mut() {
            let Share { finish: _, comes: _, queues: _, time: _, asking: _, awaited } = share;
            if let Some((_, since)) = awaited {
                since.rebase(by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u32 = 9;

    impl Groups {
        fn waits(&mut self, now: Ps, level: Level) -> bool {
            self.waits_for(now, level).is_some()
        }
    }

    /// Who is held back is found by each of its elements, first come first.
    #[test]
    fn held_queues_are_found_by_their_elements() {
        let mut held = Held::default();
        let levels = |leaf| [(leaf, 5, 1), (5, NODE, 1)];
        for (qpn, leaf) in [(1, 2), (2, 3), (3, 2)] {
            held.put(Ps(qpn.into()), Qpn(qpn), &levels(leaf));
        }
        assert_eq!(held.take_below(3), Some(Qpn(2)));
        assert_eq!(held.take_below(3), None);
        assert_eq!(held.oldest().map(|(_, since)| since), Some(Ps(1)));
        assert_eq!(
            [held.take_below(5), held.take_below(2), held.take_below(5)],
            [Some(Qpn(1)), Some(Qpn(3)), None]
        );
        held.put(Ps(1), Qpn(4), &levels(2));
        held.put(Ps(2), Qpn(4), &levels(3));
        assert_eq!([held.take_below(2), held.take_below(3), held.take_below(5)], [None, Some(Qpn(4)), None]);
        assert!(held.queues.is_empty() && held.below.is_empty() && held.numbers.is_empty());
    }

    /// Who was waited for in vain, and has something to send after all, is waited for again; and not when its queue has left.
    #[test]
    fn who_was_given_up_comes_again() {
        let mut groups = Groups::default();
        let [one, other] = [(1, NODE, 1), (2, NODE, 1)];
        for (qpn, level) in [(Qpn(1), one), (Qpn(2), other)] {
            groups.compete(qpn, level.0, &[level], 1);
        }
        groups.count(one, 100_000);
        assert!(groups.waits(Ps(0), one));
        assert!(!groups.waits(PATIENCE, one), "it is given up");
        assert!(!groups.waits(PATIENCE, one));
        groups.compete(Qpn(2), 2, &[other], 1);
        assert!(groups.waits(PATIENCE, one));
        groups.compete(Qpn(2), 2, &[other], 0);
        assert!(!groups.waits(PATIENCE, one));
        groups.compete(Qpn(2), 2, &[other], 1);
        assert!(groups.waits(PATIENCE, one), "with nothing saved up, and nothing owed");
        groups.all_gone();
        assert!(!groups.waits(PATIENCE, one));
    }

    /// Bytes of children that always have something to send, after so many packets, by their weights.
    fn shared(weights: &[u32], packets: usize) -> Vec<u64> {
        let mut groups = Groups::default();
        let levels: Vec<Level> = (1..).zip(weights).map(|(child, weight)| (child, NODE, *weight)).collect();
        levels.iter().for_each(|level| groups.ask(&[*level], true));
        let mut sent = vec![0; weights.len()];
        let mut turns = (0..weights.len()).cycle();
        for _ in 0..packets {
            let who = turns.by_ref().find(|who| !groups.waits(Ps::ZERO, levels[*who])).expect("one may");
            groups.count(levels[who], 1000);
            sent[who] += 1000;
        }
        sent
    }

    #[test]
    fn children_share_by_their_weights() {
        assert_eq!(shared(&[1], 100), [100_000]);
        for (weights, parts) in
            [(vec![1, 1], vec![1, 1]), (vec![1, 3], vec![1, 3]), (vec![2, 5, 1], vec![2, 5, 1])]
        {
            let (sent, all) = (shared(&weights, 8000), parts.iter().sum::<u64>());
            for (sent, part) in sent.iter().zip(parts) {
                let expected = 8_000_000 * part / all;
                assert!(sent.abs_diff(expected) < 12_000, "{weights:?}: {sent} for {expected}");
            }
        }
    }

    #[test]
    fn who_had_nothing_to_send_has_nothing_saved_up() {
        let (a, b) = ((1, NODE, 1), (2, NODE, 1));
        let mut groups = Groups::default();
        groups.ask(&[a], true);
        (0..100).for_each(|_| groups.count(a, 1000));
        groups.ask(&[b], true);
        // The one that comes has its turn, and not a hundred of them.
        let mut first = 0;
        while groups.waits(Ps::ZERO, a) {
            groups.count(b, 1000);
            first += 1;
        }
        assert!(first <= 5, "{first}");
        // Nobody waits for who has left.
        (0..20).for_each(|_| groups.count(a, 1000));
        assert!(groups.waits(Ps::ZERO, a));
        groups.ask(&[b], false);
        assert!(!groups.waits(Ps::ZERO, a));
    }

    #[test]
    fn nobody_waits_for_ever() {
        let (a, b) = ((1, NODE, 1), (2, NODE, 1));
        let mut groups = Groups::default();
        [a, b].iter().for_each(|level| groups.ask(&[*level], true));
        (0..20).for_each(|_| groups.count(a, 1000));
        assert!(groups.waits(Ps::ZERO, a));
        assert!(!groups.waits(PATIENCE, a));
    }
}
