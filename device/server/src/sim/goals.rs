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

/// From when on something can be felt that is not here yet: by the edge where that is soonest, and by all others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Felt {
    place: usize,
    first: Ps,
    second: Ps,
}

impl Felt {
    fn of(edges: impl Iterator<Item = Ps>) -> Self {
        let none = Self { place: 0, first: Ps::MAX, second: Ps::MAX };
        edges.enumerate().fold(none, |known, (place, at)| match at < known.first {
            true => Self { place, first: at, second: known.first },
            false => Self { second: known.second.min(at), ..known },
        })
    }

    /// By any edge.
    pub(super) fn first(&self) -> Ps {
        self.first
    }

    /// By any other edge.
    pub(super) fn without(&self, place: usize) -> Ps {
        if place == self.place { self.second } else { self.first }
    }
}

impl Partition {
    /// From when on something can be felt that is not here yet, if nothing happens here before `next`.
    pub(super) fn felt(&self, next: Ps) -> Felt {
        let leaves = self.first_to_leave(next);
        Felt::of(self.edges().map(|edge| edge.felt(next, leaves)))
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
            can |= need.is_some_and(|need| edge.tells(felt.without(place).min(next)) >= need);
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
        // Of all edges but one, that of the least far has to come to where nothing is felt before `from`. For a neighbour that is a few links
        // at a time: where parts are joined in a circle, each need comes round to who has it, earlier by what the circle takes, until
        // somebody can promise it; so it is not to begin far ahead.
        let mut strive = |from: Ps, but: Option<usize>| {
            let others = felt.iter().zip(&mut needs).enumerate().filter(|(place, _)| Some(*place) != but);
            if let Some((_, ((felt, (leaves, lag)), need))) = others.min_by_key(|(_, ((felt, _), _))| *felt)
                && *felt < from
            {
                let ahead = Ps((leaves.0 + lag.0).saturating_mul(LINKS));
                let from = if but.is_some() { from.min(*felt + ahead) } else { from };
                *need = from.since(*lag).min(*need);
            }
        };
        strive(goal + Ps(1), None);
        let mut first = goal;
        for ((place, edge), needed) in self.edges().enumerate().zip(&goals.needed) {
            let at = needed.map(|need| need.since(edge.lookahead().0)).filter(|at| *at < goal);
            if let Some(at) = at {
                strive(at, Some(place));
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
        let felt = Felt::of([5, 3, 9, 3].map(Ps).into_iter());
        assert_eq!((felt.first(), [0, 1, 2, 3].map(|place| felt.without(place).0)), (Ps(3), [3; 4]));
        let felt = Felt::of([5, 4, 9].map(Ps).into_iter());
        assert_eq!((felt.first(), [0, 1, 2].map(|place| felt.without(place).0)), (Ps(4), [4, 5, 4]));
        let alone = Felt::of([Ps(7)].into_iter());
        assert_eq!((alone.first(), alone.without(0)), (Ps(7), Ps::MAX));
    }
}
