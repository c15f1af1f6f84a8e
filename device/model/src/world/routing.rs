//! Ways through switches: how far each of them is from a target, which port leads there, and a tree over all of them.
//!
//! Shortest paths ([`Routing::MinHop`]) need nothing of the fabric. Where switches are in tiers, paths that first go up and
//! then down ([`Routing::UpDown`]) can't wait for each other in a circle, and each tier spreads its targets by another digit of
//! their LIDs, so that two tiers don't choose alike. The first tier is that of the switches with adapters, the next one that
//! of their neighbours, and so on; of two in the same tier the one that comes later in the order is higher.
//!
//! Source: Schroeder et al., "Autonet: a high-speed, self-configuring local area network using point-to-point links" (1991),
//! section 4.2 (up/down); Zahavi, "D-Mod-K routing providing non-blocking traffic for shift permutations on real life fat
//! trees" (2010).

use std::collections::VecDeque;

use crate::ground::node::{LinkEnd, NodeId, PortRef, SwitchId};

/// "No port" of a linear entry.
pub(super) const NO_PORT: u8 = 0xff;

/// How the built-in subnet manager chooses paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Routing {
    /// Shortest paths, whatever the fabric is.
    #[default]
    MinHop,
    /// Up, then down: for fat trees.
    UpDown,
}

/// A link of a switch that is up.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) port: u8,
    pub(super) to: LinkEnd,
}

impl Way {
    /// The switch that it leads to.
    fn switch(&self) -> Option<(usize, u8)> {
        match self.to {
            LinkEnd::Port(PortRef { node: NodeId::Switch(SwitchId(next)), port }) => Some((next, port)),
            _ => None,
        }
    }
}

/// How far a target is from a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Distance {
    links: u32,
    /// All of them go down.
    down: bool,
}

/// By switch; `None` leads nowhere.
pub(super) type Distances = Vec<Option<Distance>>;

/// The tiers of a fabric.
struct Tiers {
    /// By switch.
    tier: Vec<u32>,
    /// By tier: how many targets in a row its choices take for one.
    rows: Vec<usize>,
    /// The switches, the highest first.
    falling: Vec<usize>,
}

/// By switch: its links that are up, by port. And how paths are chosen.
pub(super) struct Map {
    ways: Vec<Vec<Way>>,
    tiers: Option<Tiers>,
}

impl Map {
    pub(super) fn new(ways: Vec<Vec<Way>>, routing: Routing) -> Self {
        let mut map = Self { ways, tiers: None };
        map.tiers = (routing == Routing::UpDown).then(|| map.tiers());
        map
    }

    pub(super) fn switches(&self) -> usize {
        self.ways.len()
    }

    pub(super) fn ways(&self, switch: usize) -> &[Way] {
        self.ways.get(switch).map_or(&[], Vec::as_slice)
    }

    fn tiers(&self) -> Tiers {
        let mut tier = vec![u32::MAX; self.ways.len()];
        let mut queue = VecDeque::new();
        for (i, tier) in tier.iter_mut().enumerate() {
            if self.ways(i).iter().any(|way| way.switch().is_none()) {
                *tier = 0;
                queue.push_back((i, 0));
            }
        }
        while let Some((i, own)) = queue.pop_front() {
            for (next, _) in self.ways(i).iter().filter_map(Way::switch) {
                if let Some(slot @ &mut u32::MAX) = tier.get_mut(next) {
                    *slot = own + 1;
                    queue.push_back((next, own + 1));
                }
            }
        }
        let of = |switch: usize| tier.get(switch).copied().unwrap_or(u32::MAX);
        let mut falling: Vec<usize> = (0..self.ways.len()).collect();
        falling.sort_by_key(|switch| std::cmp::Reverse((of(*switch), *switch)));
        // What a switch can choose from goes up; a tier above chooses among what one of those below leaves open.
        let mut rows = vec![1usize];
        let highest = tier.iter().copied().filter(|tier| *tier != u32::MAX).max().unwrap_or(0);
        for below in 0..highest {
            let upward = |switch: usize| {
                self.ways(switch).iter().filter(|w| w.switch().is_some_and(|(n, _)| of(n) > below)).count()
            };
            let most = (0..self.ways.len()).filter(|s| of(*s) == below).map(upward).max().unwrap_or(1);
            let before = rows.last().copied().unwrap_or(1);
            rows.push(before.saturating_mul(most.max(1)));
        }
        Tiers { tier, rows, falling }
    }

    /// Whether a way from one switch to another goes down; without tiers each does.
    fn goes_down(&self, from: usize, to: usize) -> bool {
        let Some(tiers) = &self.tiers else { return true };
        let place = |switch: usize| (tiers.tier.get(switch), switch);
        place(to) < place(from)
    }

    /// By switch: how many links are between it and the switch at `target`, a port of an adapter, or that is `target`,
    /// port 0 of a switch.
    pub(super) fn distances(&self, target: Option<LinkEnd>) -> Distances {
        let mut distances: Distances = vec![None; self.ways.len()];
        let mut queue = VecDeque::new();
        for (i, distance) in distances.iter_mut().enumerate() {
            let adapter = self.ways(i).iter().any(|w| Some(w.to) == target);
            if adapter || target == Some(PortRef::of_switch(SwitchId(i), 0).into()) {
                *distance = Some(Distance { links: 0, down: true });
                queue.push_back((i, 0));
            }
        }
        while let Some((i, links)) = queue.pop_front() {
            for way in self.ways(i) {
                if let Some((next, _)) = way.switch()
                    && self.goes_down(next, i)
                    && let Some(slot @ None) = distances.get_mut(next)
                {
                    *slot = Some(Distance { links: links + 1, down: true });
                    queue.push_back((next, links + 1));
                }
            }
        }
        // Whoever can't go down goes up first, to the nearest of those above.
        for switch in self.tiers.iter().flat_map(|tiers| &tiers.falling) {
            let above = |way: &Way| {
                let (next, _) = way.switch().filter(|(next, _)| !self.goes_down(*switch, *next))?;
                distances.get(next).copied().flatten()
            };
            let nearest = self.ways(*switch).iter().filter_map(above).map(|d| d.links).min();
            if let (Some(slot @ None), Some(links)) = (distances.get_mut(*switch), nearest) {
                *slot = Some(Distance { links: links + 1, down: false });
            }
        }
        distances
    }

    /// The port of switch `from` towards `target`, which has that LID.
    pub(super) fn port_towards(
        &self,
        from: usize,
        target: Option<LinkEnd>,
        distances: &Distances,
        lid: usize,
    ) -> u8 {
        // Port 0 is the switch itself.
        if target == Some(PortRef::of_switch(SwitchId(from), 0).into()) {
            return 0;
        }
        let ports = match distances.get(from).copied().flatten() {
            Some(Distance { links: 0, .. }) => {
                self.ways(from).iter().filter(|way| Some(way.to) == target).map(|way| way.port).collect()
            }
            _ => self.nearer(from, distances),
        };
        self.choose(from, &ports, lid)
    }

    /// The ports of switch `from` that lead nearer to where distances are 0, if that is elsewhere.
    pub(super) fn nearer(&self, from: usize, distances: &Distances) -> Vec<u8> {
        let distance = |i: usize| distances.get(i).copied().flatten();
        let Some(own) = distance(from) else { return Vec::new() };
        let leads = |way: &&Way| {
            way.switch().and_then(|(next, _)| Some((next, distance(next)?))).is_some_and(|(next, there)| {
                there.links + 1 == own.links
                    && self.goes_down(from, next) == own.down
                    && (there.down || !own.down)
            })
        };
        self.ways(from).iter().filter(leads).map(|way| way.port).collect()
    }

    /// The one of these ports of switch `from` by which it goes to that LID.
    pub(super) fn choose(&self, from: usize, ports: &[u8], lid: usize) -> u8 {
        let choice = match &self.tiers {
            None => lid,
            Some(tiers) => {
                let tier = tiers.tier.get(from).and_then(|tier| usize::try_from(*tier).ok());
                let row = tier.and_then(|tier| tiers.rows.get(tier)).copied().unwrap_or(1);
                lid.saturating_sub(1) / row.max(1)
            }
        };
        let chosen = choice.checked_rem(ports.len()).and_then(|chosen| ports.get(chosen));
        chosen.copied().unwrap_or(NO_PORT)
    }

    /// By switch: the ports of a spanning tree, and those to adapters.
    pub(super) fn tree(&self) -> Vec<u128> {
        let bit = |port: u8| 1u128.checked_shl(port.into()).unwrap_or(0);
        let mut masks: Vec<u128> = vec![0; self.ways.len()];
        let mut seen = vec![false; self.ways.len()];
        let mut queue = VecDeque::new();
        for root in 0..self.ways.len() {
            if seen.get_mut(root).is_some_and(|seen| !std::mem::replace(seen, true)) {
                queue.push_back(root);
            }
            while let Some(i) = queue.pop_front() {
                for way in self.ways(i) {
                    if let Some((next, port)) = way.switch() {
                        if seen.get_mut(next).is_none_or(|seen| std::mem::replace(seen, true)) {
                            continue;
                        }
                        queue.push_back(next);
                        if let Some(mask) = masks.get_mut(next) {
                            *mask |= bit(port);
                        }
                    }
                    if let Some(mask) = masks.get_mut(i) {
                        *mask |= bit(way.port);
                    }
                }
            }
        }
        masks
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::ground::node::HcaId;

    /// Adapters at each of the lowest switches, and those of each tier joined to all of the next.
    fn tree(adapters: usize, tiers: &[usize]) -> Vec<Vec<Way>> {
        let mut ways: Vec<Vec<Way>> = vec![Vec::new(); tiers.iter().sum()];
        let mut hcas = 0;
        for leaf in ways.iter_mut().take(tiers[0]) {
            for _ in 0..adapters {
                leaf.push(Way { port: leaf.len() as u8 + 1, to: HcaId(hcas).into() });
                hcas += 1;
            }
        }
        let mut first = 0;
        for pair in tiers.windows(2) {
            for low in first..first + pair[0] {
                for high in first + pair[0]..first + pair[0] + pair[1] {
                    let (a, b) = (ways[low].len() as u8 + 1, ways[high].len() as u8 + 1);
                    ways[low].push(Way { port: a, to: PortRef::of_switch(SwitchId(high), b).into() });
                    ways[high].push(Way { port: b, to: PortRef::of_switch(SwitchId(low), a).into() });
                }
            }
            first += pair[0];
        }
        ways
    }

    /// The switches on the way from one to a target.
    fn path(map: &Map, mut from: usize, target: LinkEnd, lid: usize) -> Vec<usize> {
        let distances = map.distances(Some(target));
        let mut path = vec![from];
        loop {
            let port = map.port_towards(from, Some(target), &distances, lid);
            let way = map.ways(from).iter().find(|way| way.port == port).unwrap();
            let Some((next, _)) = way.switch() else { return path };
            from = next;
            path.push(from);
            assert!(path.len() < 20, "a circle: {path:?}");
        }
    }

    #[test]
    fn paths_go_up_and_then_down_and_wait_for_each_other_in_no_circle() {
        let (adapters, tiers) = (3, [4, 3, 2]);
        for routing in [Routing::UpDown, Routing::MinHop] {
            let map = Map::new(tree(adapters, &tiers), routing);
            let tier = |s: usize| if s < 4 { 0 } else { 1 + usize::from(s >= 7) };
            for hca in 0..adapters * tiers[0] {
                for leaf in 0..tiers[0] {
                    let path = path(&map, leaf, HcaId(hca).into(), hca + 1);
                    assert_eq!(path.last(), Some(&(hca / adapters)));
                    assert_eq!(path.len(), if leaf == hca / adapters { 1 } else { 3 });
                    let turns =
                        path.windows(3).filter(|p| tier(p[1]) < tier(p[0]) && tier(p[1]) < tier(p[2]));
                    assert_eq!(turns.count(), 0, "{path:?}");
                }
            }
        }
    }

    /// In a ring shortest paths can wait for each other; up/down never turns from down to up.
    #[test]
    fn a_ring_is_cut() {
        let ring = |n: usize| -> Vec<Vec<Way>> {
            let to = |s: usize, port| PortRef::of_switch(SwitchId(s), port).into();
            (0..n)
                .map(|i| {
                    vec![
                        Way { port: 1, to: HcaId(i).into() },
                        Way { port: 2, to: to((i + 1) % n, 3) },
                        Way { port: 3, to: to((i + n - 1) % n, 2) },
                    ]
                })
                .collect()
        };
        let map = Map::new(ring(6), Routing::UpDown);
        // Which link waits for which: none may come back to itself.
        let mut waits: BTreeMap<(usize, usize), BTreeSet<(usize, usize)>> = BTreeMap::new();
        for hca in 0..6 {
            for from in 0..6 {
                let path = path(&map, from, HcaId(hca).into(), hca + 1);
                for three in path.windows(3) {
                    waits.entry((three[0], three[1])).or_default().insert((three[1], three[2]));
                }
            }
        }
        for start in waits.keys() {
            let (mut seen, mut queue) = (BTreeSet::new(), vec![*start]);
            while let Some(link) = queue.pop() {
                for next in waits.get(&link).into_iter().flatten() {
                    assert_ne!(next, start, "a circle");
                    if seen.insert(*next) {
                        queue.push(*next);
                    }
                }
            }
        }
    }

    /// Targets of one leaf leave another by all of its ways, and reach all switches of the third tier.
    #[test]
    fn tiers_choose_by_different_digits() {
        let map = Map::new(
            {
                // Two pods of two leaves and two switches, two switches of the third tier for each of those.
                let mut ways: Vec<Vec<Way>> = vec![Vec::new(); 12];
                let mut join = |low: usize, high: usize| {
                    let (a, b) = (ways[low].len() as u8 + 1, ways[high].len() as u8 + 1);
                    ways[low].push(Way { port: a, to: PortRef::of_switch(SwitchId(high), b).into() });
                    ways[high].push(Way { port: b, to: PortRef::of_switch(SwitchId(low), a).into() });
                };
                for pod in 0..2 {
                    for (leaf, middle) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                        join(pod * 2 + leaf, 4 + pod * 2 + middle);
                    }
                    for (middle, top) in [(0, 0), (0, 1), (1, 2), (1, 3)] {
                        join(4 + pod * 2 + middle, 8 + top);
                    }
                }
                for hca in 0..8 {
                    let port = ways[hca / 2].len() as u8 + 1;
                    ways[hca / 2].push(Way { port, to: HcaId(hca).into() });
                }
                ways
            },
            Routing::UpDown,
        );
        let tops: BTreeSet<usize> = (4..8).map(|hca| path(&map, 0, HcaId(hca).into(), hca + 1)[2]).collect();
        assert_eq!(tops, BTreeSet::from([8, 9, 10, 11]));
    }
}
