//! What a part waits for when its neighbours have not promised enough: it says so to them, and they wake it for that alone.
//!
//! A part has goals. One is to do what it has to do next, for which all neighbours have to promise that nothing comes before that. Others are to
//! promise what a neighbour needs, for which all *others* have to. To the neighbour of each goal that is least far it says what it needs of him;
//! when he has promised that, it looks again. A neighbour that is needed has a goal more, and so a need passes on, earlier by a link's time
//! with each, until it comes to one who has said that already or has something to do before: so it ends, and somebody can always go on.
//!
//! Why: of all that wait take the one whose first goal is the earliest. It needs a promise for a time that is a link earlier than that. Who
//! is to make it either knows of that need, and then has a goal that is as early, or something to do before; or it sleeps without having looked, for a
//! goal that is earlier still. Both can't be.

use hca_model::Ps;

use super::{Edge, Partition};
use crate::simbricks::{Channel, LinkError};

/// So many times what a link takes is the most that a neighbour is asked for on behalf of another, beyond what he has promised.
const LINKS: u64 = 4;

/// What was last said and seen, by edge.
#[derive(Debug, Default)]
pub(super) struct Goals {
    /// What this part needs of its neighbours, and up to where it does not look what they need.
    said: Vec<(Ps, Ps)>,
    /// What they need of it.
    needed: Vec<Option<Ps>>,
}

impl Goals {
    /// Whether the neighbours, whose channels these are, need what was seen.
    pub(super) fn are_still<'a>(
        &self,
        channels: impl Iterator<Item = &'a Channel>,
    ) -> Result<bool, LinkError> {
        for (channel, needed) in channels.zip(&self.needed) {
            if channel.needed()? != *needed {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// From when on something can be felt that is not here yet: by edges of the neighbour where that is soonest, and by those of all others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Felt {
    neighbour: usize,
    first: Ps,
    second: Ps,
}

impl Felt {
    /// Of edges, each with its neighbour.
    fn of(edges: impl Iterator<Item = (usize, Ps)>) -> Self {
        let none = Self { neighbour: usize::MAX, first: Ps::MAX, second: Ps::MAX };
        edges.fold(none, |known, (neighbour, at)| match at < known.first {
            true if neighbour == known.neighbour => Self { first: at, ..known },
            true => Self { neighbour, first: at, second: known.first },
            false if neighbour == known.neighbour => known,
            false => Self { second: known.second.min(at), ..known },
        })
    }

    /// By any edge.
    pub(super) fn first(&self) -> Ps {
        self.first
    }

    /// By any edge of others than that neighbour.
    pub(super) fn without(&self, neighbour: usize) -> Ps {
        if neighbour == self.neighbour { self.second } else { self.first }
    }
}

impl Partition {
    /// From when on something can be felt that is not here yet, if nothing happens here before `next`.
    pub(super) fn felt(&self, next: Ps) -> Felt {
        let leaves = self.first_to_leave(next);
        let felt = |(place, edge): (usize, &dyn Edge)| (self.neighbours.of(place), edge.felt(next, leaves));
        Felt::of(self.edges().enumerate().map(felt))
    }

    /// When all has happened up to this, there is something to do, or what was held back leaves; `next`: when something happens here by
    /// itself.
    pub(super) fn goal(&self, next: Ps) -> Ps {
        let holds = self.edges().filter_map(Edge::holds).fold(next, Ps::min);
        // Who is not of ours says not what he needs.
        if self.eager { holds.min(self.reached + Ps(1)) } else { holds }
    }

    /// Whether a neighbour can be promised what he needs, as it is now; it is that until this is asked again.
    pub(super) fn can_help(&mut self, next: Ps, felt: Felt) -> Result<bool, LinkError> {
        let mut needed = std::mem::take(&mut self.goals.needed);
        needed.clear();
        let mut can = false;
        for (place, edge) in self.edges().enumerate() {
            let need = edge.needed()?;
            can |= need
                .is_some_and(|need| edge.tells(felt.without(self.neighbours.of(place)).min(next)) >= need);
            needed.push(need);
        }
        self.goals.needed = needed;
        Ok(can)
    }

    /// Says to the neighbours what is waited for.
    pub(super) fn say_needs(&self, goals: &mut Goals, next: Ps, goal: Ps) -> Result<(), LinkError> {
        let leaves = self.first_to_leave(next);
        let felt: Vec<(Ps, (Ps, Ps))> =
            self.edges().map(|edge| (edge.felt(next, leaves), edge.lookahead())).collect();
        let mut needs = vec![Ps::MAX; felt.len()];
        // Of all neighbours but one, the least far has to come to where nothing is felt before `from`. For a neighbour that is a few links
        // at a time: where parts are joined in a circle, each need comes round to who has it, earlier by what the circle takes, until
        // somebody can promise it; so it is not to begin far ahead.
        let mut strive = |from: Ps, but: Option<usize>| {
            let is_other = |place: usize| but.is_none_or(|but| self.neighbours.of(place) != but);
            let others = felt.iter().enumerate().filter(|(place, _)| is_other(*place));
            let Some((least, _)) = others.min_by_key(|(_, (felt, _))| *felt) else { return };
            // Who has several links promises by all of them, and wakes once.
            let neighbour = self.neighbours.of(least);
            for ((place, (felt, (leaves, lag))), need) in felt.iter().enumerate().zip(&mut needs) {
                if self.neighbours.of(place) == neighbour && *felt < from {
                    let ahead = Ps((leaves.0 + lag.0).saturating_mul(LINKS));
                    let from = if but.is_some() { from.min(*felt + ahead) } else { from };
                    *need = from.since(*lag).min(*need);
                }
            }
        };
        strive(goal + Ps(1), None);
        let mut first = goal;
        for ((place, edge), needed) in self.edges().enumerate().zip(&goals.needed) {
            let at = needed.map(|need| need.since(edge.lookahead().0)).filter(|at| *at < goal);
            if let Some(at) = at {
                strive(at, Some(self.neighbours.of(place)));
                first = first.min(at);
            }
        }
        goals.said.resize(needs.len(), (Ps::ZERO, Ps::ZERO));
        for ((edge, said), need) in self.edges().zip(&mut goals.said).zip(needs) {
            let says = (need, first + edge.lookahead().0);
            if std::mem::replace(said, says) != says {
                edge.wait_for(need, says.1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soonest_of_others() {
        let felt = |of: &[(usize, u64)]| Felt::of(of.iter().map(|(neighbour, at)| (*neighbour, Ps(*at))));
        let of = felt(&[(0, 5), (1, 3), (2, 9), (3, 3)]);
        assert_eq!((of.first(), [0, 1, 2, 3].map(|place| of.without(place).0)), (Ps(3), [3; 4]));
        let of = felt(&[(0, 5), (1, 4), (2, 9)]);
        assert_eq!((of.first(), [0, 1, 2].map(|place| of.without(place).0)), (Ps(4), [4, 5, 4]));
        let alone = felt(&[(0, 7)]);
        assert_eq!((alone.first(), alone.without(0)), (Ps(7), Ps::MAX));
        // Two links to one, whichever comes first, and two to two.
        for of in [[(0, 5), (0, 3), (1, 9), (1, 8)], [(1, 9), (0, 3), (1, 8), (0, 5)]] {
            let of = felt(&of);
            assert_eq!((of.first(), of.without(0), of.without(1)), (Ps(3), Ps(8), Ps(3)));
        }
    }
}
