//! Who is at the other end of each edge: some have several links to the same neighbour.
//!
//! What a neighbour answers is felt by any of its links, so they are one when it comes to what others may do meanwhile. If each counted for itself,
//! this part would promise by one that something may come by the other, and be promised the same, and so both would go on by a link's time at a step.

use super::joint::Joint;

/// The neighbour of each edge, by number.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    of: Vec<usize>,
    /// Joints of those that have several.
    several: Vec<Vec<usize>>,
}

impl Neighbours {
    /// Of joints, and of so many edges more that have a neighbour each.
    pub(super) fn new(joints: &[Joint], more: usize) -> Self {
        Self::of_peers(joints.iter().map(Joint::peer), more)
    }

    fn of_peers<'a>(peers: impl Iterator<Item = Option<&'a str>>, more: usize) -> Self {
        let mut known: Vec<(Option<&str>, Vec<usize>)> = Vec::new();
        let mut of = Vec::new();
        for (place, peer) in peers.chain(std::iter::repeat_n(None, more)).enumerate() {
            let same = known.iter().position(|(other, _)| peer.is_some() && *other == peer);
            let number = same.unwrap_or(known.len());
            match known.get_mut(number) {
                Some((_, joints)) => joints.push(place),
                None => known.push((peer, vec![place])),
            }
            of.push(number);
        }
        let several = known.into_iter().map(|(_, joints)| joints).filter(|joints| joints.len() > 1);
        Self { of, several: several.collect() }
    }

    /// That of an edge.
    pub(super) fn of(&self, place: usize) -> usize {
        self.of.get(place).copied().unwrap_or(usize::MAX)
    }

    /// Something came or went: each link to a neighbour knows what did by all others.
    pub(super) fn count(&self, joints: &mut [Joint]) {
        let add = |[a, b]: [u64; 2], [c, d]: [u64; 2]| [a.wrapping_add(c), b.wrapping_add(d)];
        for places in &self.several {
            let counts = |place: &usize| joints.get(*place).map_or([0; 2], |joint| joint.channel().counts());
            let all = places.iter().map(counts).fold([0; 2], add);
            for place in places {
                if let Some(joint) = joints.get_mut(*place) {
                    let [sent, taken] = joint.channel().counts();
                    joint.set_beside([all[0].wrapping_sub(sent), all[1].wrapping_sub(taken)]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_one_part_are_of_one_neighbour() {
        let peers = [Some("a"), None, Some("b"), Some("a"), None];
        let neighbours = Neighbours::of_peers(peers.into_iter(), 2);
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(|place| neighbours.of(place)), [0, 1, 2, 0, 3, 4, 5]);
        assert_eq!(neighbours.several, [[0, 3]]);
    }
}
