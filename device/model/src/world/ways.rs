//! Ways between the Ethernet switches of a fabric: all that are shortest, and a tree for what goes to many or to nobody knows whom.
//!
//! A frame for a station that the world knows goes by any of the shortest ways, each flow by one of them. Everything else goes by a
//! tree, so that no frame goes in circles, whatever the cables.
//!
//! Source: IEEE 802.1Q clauses 27 and 44 (shortest path bridging, equal cost multiple paths), which say what the ways are; that all
//! switches of a world know at once which cables are up stands in for their protocol. Where a [plan](super::planned) is followed they know
//! all cables beforehand, and each of its own whether it is up.

/// A cable between two switches, whose link is up, or may be where ways are planned: switch and port of either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cable {
    pub(super) ends: [(usize, u8); 2],
}

impl Cable {
    /// From a switch by a port to another.
    pub(super) fn from(&self, switch: usize) -> impl Iterator<Item = (u8, usize)> {
        let [a, b] = self.ends;
        [(a, b), (b, a)]
            .into_iter()
            .filter(move |(near, _)| near.0 == switch)
            .map(|(near, far)| (near.1, far.0))
    }
}

/// What a switch knows of the others. Ports are bits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ways {
    /// Ports at which there is another switch, whether the link is up or not.
    pub(super) inner: u128,
    /// Of these, those of the tree.
    pub(super) tree: u128,
    /// By switch: the ports that are the first of a shortest way there.
    toward: Vec<u128>,
}

fn bit(port: u8) -> u128 {
    1u128.checked_shl(port.into()).unwrap_or(0)
}

impl Ways {
    /// The ports that are the first of a shortest way to a switch.
    pub(super) fn toward(&self, switch: usize) -> u128 {
        self.toward.get(switch).copied().unwrap_or(0)
    }
}

/// The switches next to each.
fn neighbours(switches: usize, cables: &[Cable]) -> Vec<Vec<usize>> {
    let mut neighbours = vec![Vec::new(); switches];
    for Cable { ends: [(a, _), (b, _)] } in cables {
        for (near, far) in [(a, b), (b, a)] {
            if let Some(of) = neighbours.get_mut(*near) {
                of.push(*far);
            }
        }
    }
    neighbours
}

/// How many cables each switch is away from one; `None`: there is no way.
fn distances(from: usize, neighbours: &[Vec<usize>]) -> Vec<Option<usize>> {
    let mut away = vec![None; neighbours.len()];
    let mut next = vec![from];
    for distance in 0..neighbours.len() {
        let mut found = Vec::new();
        for switch in next {
            let (Some(place @ None), Some(of)) = (away.get_mut(switch), neighbours.get(switch)) else {
                continue;
            };
            *place = Some(distance);
            found.extend(of);
        }
        next = found;
    }
    away
}

/// The ways of all switches, by these cables between them. Each part of a fabric that hangs together has a tree from its
/// first switch.
pub(super) fn all(switches: usize, cables: &[Cable]) -> Vec<Ways> {
    let mut ways = vec![Ways { toward: vec![0; switches], ..Ways::default() }; switches];
    let mut parents = vec![None; switches];
    let neighbours = neighbours(switches, cables);
    for to in 0..switches {
        let away = distances(to, &neighbours);
        let distance = |switch: usize| away.get(switch).copied().flatten();
        for cable in cables {
            let [a, b] = cable.ends;
            for ((near, port), (far, far_port)) in [(a, b), (b, a)] {
                let (Some(here), Some(there)) = (distance(near), distance(far)) else { continue };
                if there + 1 != here {
                    continue;
                }
                if let Some(bits) = ways.get_mut(near).and_then(|w| w.toward.get_mut(to)) {
                    *bits |= bit(port);
                }
                // The first switch of a part is where its tree begins; the first cable to each leads there.
                let first = (0..to).all(|other| distance(other).is_none());
                if let Some(parent @ None) = parents.get_mut(near).filter(|_| first) {
                    *parent = Some(((near, port), (far, far_port)));
                }
            }
        }
    }
    for (near, far) in parents.into_iter().flatten() {
        for (switch, port) in [near, far] {
            if let Some(way) = ways.get_mut(switch) {
                way.tree |= bit(port);
            }
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A switch and one of its ports.
    type Place = (usize, u8);

    fn cables(list: &[(Place, Place)]) -> Vec<Cable> {
        list.iter().map(|(a, b)| Cable { ends: [*a, *b] }).collect()
    }

    /// Two leaves, two spines, two cables from each to each.
    #[test]
    fn every_shortest_way_and_one_tree() {
        let mut list = Vec::new();
        for leaf in 0..2 {
            for (n, up) in (1u8..).zip([(2, 1), (2, 2), (3, 1), (3, 2)]) {
                list.push(((leaf, n), (up.0, up.1 + 2 * leaf as u8)));
            }
        }
        let ways = all(4, &cables(&list));
        assert_eq!((ways[0].toward(1), ways[0].toward(2), ways[0].toward(0)), (0b1_1110, 0b110, 0));
        assert_eq!(ways[2].toward(0), 0b110);
        // The tree has a cable less than there are switches, and reaches all.
        let ends: u32 = ways.iter().map(|way| way.tree.count_ones()).sum();
        assert_eq!(ends, 2 * 3);
        assert!(ways.iter().all(|way| way.tree != 0));
    }

    #[test]
    fn parts_that_hang_not_together() {
        let ways = all(4, &cables(&[((0, 1), (1, 1)), ((2, 1), (3, 9)), ((2, 2), (3, 8))]));
        assert_eq!((ways[0].toward(1), ways[0].toward(2)), (2, 0));
        assert_eq!(
            (ways[3].toward(2), ways[3].tree.count_ones(), ways[2].tree.count_ones()),
            (1 << 9 | 1 << 8, 1, 1)
        );
        assert_eq!(all(1, &[])[0], Ways { toward: vec![0], ..Ways::default() });
        assert!(all(0, &[]).is_empty());
    }
}
