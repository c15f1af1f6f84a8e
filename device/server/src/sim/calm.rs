//! Up to when nothing happens anywhere: what all parts find out together where each alone would only go on by a link's time.
//!
//! What a neighbour promises holds as long as nothing comes to him from another. Where links close a circle (several to one
//! neighbour are none: [`super::neighbours`]) each promise comes round to who made it, later by what the circle takes: parts with nothing to do for a millisecond would promise each other that
//! in thousands of steps. So a part that goes on by such steps asks for a *wave*. It begins at one part, the root of a tree that all know from the
//! topology, goes down the tree, and each part answers up the tree, for those below as well:
//!
//! * the earliest time at which something of it may be at a link's far connector, if nothing comes to it that has not come yet; of all the least;
//! * how many messages it sent and took by each link, each number times a factor of that direction, those taken negative; of all the sum.
//!
//! If the sum is none, then whatever was sent before its sender's answer was taken before its receiver's, and nothing else was: all answers are of one
//! moment (a consistent cut) in which nothing is on its way. From there on whatever happens has its cause in what the parts had to do, so nothing is
//! at a connector before the least time, whoever has gone on since. That goes down the tree: *calm* until then. (Mattern, "Efficient Algorithms for
//! Distributed Snapshots and Global Virtual Time Approximation", 1993, counts messages so.) Factors are 64 bits without a pattern: other numbers have no
//! sum by chance of 2^-64.
//!
//! A link also has a number that one end adds and the other takes off, so that nothing is found where one of both did not answer.

use std::collections::BTreeMap;

use hca_model::Ps;

use super::joint::Joint;
use super::{Edge, Partition};
use crate::simbricks::{LinkError, Word};
use crate::topology::Topology;

/// Steps of a link's time after which a part asks for a wave, and the most of them if waves find nothing.
const LEAST: u32 = 4;
const MOST: u32 = 1024;
/// What a part answers to each wave when it has ended.
const ENDED: u64 = u64::MAX;

/// A part's neighbours in the tree, by the numbers of links.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tree {
    up: Option<u16>,
    down: Vec<u16>,
}

impl Tree {
    /// Of the trees along the links of the topology one that is least deep. Each process finds the same.
    pub(super) fn of(topology: &Topology, process: &str) -> Self {
        let names: Vec<&str> = topology.processes.iter().map(|process| process.name.as_str()).collect();
        let place: BTreeMap<&str, usize> = names.iter().copied().zip(0..).collect();
        let nodes: BTreeMap<&str, &str> = topology.nodes_of_processes().collect();
        let mut links: Vec<Vec<(usize, u16)>> = vec![Vec::new(); names.len()];
        for (link, number) in topology.links.iter().zip(0..).filter(|(link, _)| !link.leaves()) {
            let ends = link.between.each_ref().map(|end| place.get(nodes.get(end.node())?).copied());
            let [Some(a), Some(b)] = ends else { continue };
            if a != b {
                links[a].push((b, number));
                links[b].push((a, number));
            }
        }
        let Some(own) = place.get(process).copied() else { return Self::default() };
        let trees = (0..names.len()).map(|root| grown(root, &links));
        // Where the topology is in pieces each has a tree of its own, somewhere.
        let with_own = trees.filter(|(_, tree)| tree[own].is_some());
        let Some((_, mut tree)) = with_own.min_by_key(|(depth, _)| *depth) else { return Self::default() };
        tree[own].take().unwrap_or_default()
    }
}

/// The tree from a root: how deep it is, and the place of each in it.
fn grown(root: usize, links: &[Vec<(usize, u16)>]) -> (usize, Vec<Option<Tree>>) {
    let mut tree: Vec<Option<Tree>> = vec![None; links.len()];
    tree[root] = Some(Tree::default());
    let (mut level, mut depth) = (vec![root], 0);
    while !level.is_empty() {
        let mut next = Vec::new();
        for from in level {
            for &(to, number) in &links[from] {
                if tree[to].is_none() {
                    tree[to] = Some(Tree { up: Some(number), down: Vec::new() });
                    tree[from].get_or_insert_default().down.push(number);
                    next.push(to);
                }
            }
        }
        depth += usize::from(!next.is_empty());
        level = next;
    }
    (depth, tree)
}

/// A neighbour in the tree: its place among the joints, and what it had said when it was looked at.
#[derive(Debug)]
struct Neighbour {
    place: usize,
    said: [u64; 2],
}

/// What is said down the tree: the wave that has begun, and up to when it is calm.
const ABOVE: [Word; 2] = [Word::Begun, Word::Calm];
/// What is said up the tree: the wave that is asked for, and the one that is answered.
const BELOW: [Word; 2] = [Word::Asks, Word::Answered];

impl Neighbour {
    /// What it says now.
    fn says(&self, words: [Word; 2], joints: &[Joint]) -> Result<[u64; 2], LinkError> {
        let Some(joint) = joints.get(self.place) else { return Ok(self.said) };
        let [first, second] = words;
        Ok([joint.channel().said(first)?, joint.channel().said(second)?])
    }

    /// It is told that, one behind the other.
    fn tell<const N: usize>(&self, words: [(Word, u64); N], joints: &[Joint]) -> Result<(), LinkError> {
        joints.get(self.place).map_or(Ok(()), |joint| joint.channel().say(words))
    }
}

/// What a part knows of waves.
#[derive(Debug, Default)]
pub(super) struct Calm {
    up: Option<Neighbour>,
    down: Vec<Neighbour>,
    /// The last wave that is known, that was passed on, that was answered, and that was asked for. The first is 1.
    begun: u64,
    passed: u64,
    answered: u64,
    asked: u64,
    /// Nothing is at a connector before this; what was passed on of that; and what was known when a wave was asked for.
    until: Ps,
    told: Ps,
    known: Ps,
    /// Steps with nothing to do since there was something, and how many are borne.
    idle: u32,
    patience: u32,
}

impl Calm {
    pub(super) fn new(tree: &Tree, joints: &[Joint]) -> Self {
        // Who is not of ours, and so has no number, knows of no waves: what is behind him is a tree by itself.
        let neighbour = |number: &u16| {
            let place = joints.iter().position(|joint| joint.number() == Some(*number))?;
            Some(Neighbour { place, said: [0; 2] })
        };
        let (up, down) =
            (tree.up.as_ref().and_then(neighbour), tree.down.iter().filter_map(neighbour).collect());
        Self { up, down, patience: LEAST, ..Self::default() }
    }

    /// Time went on. Was there something to do?
    pub(super) fn went_on(&mut self, busy: bool) {
        self.idle = if busy { 0 } else { self.idle.saturating_add(1) };
    }

    /// Whether the neighbours in the tree say what they did.
    pub(super) fn is_still(&self, joints: &[Joint]) -> Result<bool, LinkError> {
        let up = self.up.iter().map(|up| (up, ABOVE));
        for (neighbour, words) in up.chain(self.down.iter().map(|down| (down, BELOW))) {
            if neighbour.says(words, joints)? != neighbour.said {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn hear(&mut self, joints: &[Joint]) -> Result<(), LinkError> {
        for down in &mut self.down {
            down.said = down.says(BELOW, joints)?;
        }
        if let Some(up) = &mut self.up {
            up.said = up.says(ABOVE, joints)?;
            let [begun, until] = up.said;
            (self.begun, self.until) = (self.begun.max(begun), self.until.max(Ps(until)));
        }
        Ok(())
    }

    /// Whether one more wave is wanted here.
    fn is_wanted(&mut self) -> bool {
        if self.idle < self.patience || self.asked > self.begun || self.answered < self.begun {
            return false;
        }
        // If the last one found nothing new, they are worth less.
        let found = self.until > self.known;
        self.patience = if found { LEAST } else { self.patience.saturating_mul(2).min(MOST) };
        (self.idle, self.known) = (0, self.until);
        true
    }

    /// Answers, if all below have; `own`: what this part answers.
    fn answer(&mut self, joints: &[Joint], own: impl FnOnce() -> (Ps, u64)) -> Result<(), LinkError> {
        let has = |down: &Neighbour| [ENDED, self.begun].contains(&down.said[1]);
        if self.answered == self.begun || !self.down.iter().all(has) {
            return Ok(());
        }
        let (Ps(mut time), mut sum) = own();
        // Who has ended does nothing, and counts nothing.
        for down in self.down.iter().filter(|down| down.said[1] != ENDED) {
            let Some(joint) = joints.get(down.place) else { continue };
            time = time.min(joint.channel().said(Word::Time)?);
            sum = sum.wrapping_add(joint.channel().said(Word::Sum)?);
        }
        self.answered = self.begun;
        match &self.up {
            Some(up) => {
                up.tell([(Word::Time, time), (Word::Sum, sum), (Word::Answered, self.answered)], joints)
            }
            None if sum == 0 => {
                self.until = self.until.max(Ps(time));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Asks for the next wave, if that is wanted here or below, or begins it.
    fn ask(&mut self, joints: &[Joint]) -> Result<(), LinkError> {
        let wanted = self.is_wanted();
        let wave = self.begun.saturating_add(1);
        if !wanted && !self.down.iter().any(|down| down.said[0] == wave) {
            return Ok(());
        }
        match &self.up {
            Some(up) if self.asked < wave => {
                self.asked = wave;
                up.tell([(Word::Asks, wave)], joints)
            }
            None if self.answered == self.begun => {
                self.begun = wave;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Passes on what comes from the root.
    fn pass(&mut self, joints: &[Joint]) -> Result<(), LinkError> {
        if (self.told, self.passed) != (self.until, self.begun) {
            (self.told, self.passed) = (self.until, self.begun);
            for down in &self.down {
                down.tell([(Word::Calm, self.told.0), (Word::Begun, self.passed)], joints)?;
            }
        }
        Ok(())
    }

    /// This part has ended, and does nothing more. Who has others below says no more of them: there are no waves from then on.
    pub(super) fn end(&self, joints: &[Joint]) -> Result<(), LinkError> {
        let Some(up) = self.up.as_ref().filter(|_| self.down.is_empty()) else { return Ok(()) };
        up.tell([(Word::Answered, ENDED)], joints)
    }
}

impl Partition {
    /// Hears and says what there is of waves. Nothing happens here before `next`, if nothing comes. True: it is calm for longer than was known.
    pub(super) fn confer(&mut self, next: Ps) -> Result<bool, LinkError> {
        if self.calm.up.is_none() && self.calm.down.is_empty() {
            return Ok(false);
        }
        let mut calm = std::mem::take(&mut self.calm);
        let before = calm.until;
        let joints = &self.joints[..];
        let said = calm
            .hear(joints)
            .and_then(|()| calm.answer(joints, || self.answer(next)))
            .and_then(|()| calm.ask(joints))
            .and_then(|()| calm.pass(joints));
        let until = calm.until;
        self.calm = calm;
        said?;
        if until > before {
            self.joints.iter_mut().for_each(|joint| joint.is_calm_until(until));
        }
        Ok(until > before)
    }

    /// When something of this part is at a connector, if nothing comes from other parts that is not here, and the sum of its messages.
    fn answer(&self, next: Ps) -> (Ps, u64) {
        let leaves = self.first_to_leave(next);
        let strangers = self.joints.iter().filter(|joint| joint.number().is_none());
        let edges = strangers.map(|joint| joint as &dyn Edge);
        let edges = edges.chain(self.hosts.iter().map(|host| host as &dyn Edge));
        let next = edges.map(|edge| edge.felt(next, leaves)).fold(next, Ps::min);
        let sum = self.joints.iter().map(Joint::balance).fold(0, u64::wrapping_add);
        (self.first_to_leave(next), sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(of: &[(usize, usize)], count: usize) -> Vec<Vec<(usize, u16)>> {
        let mut links = vec![Vec::new(); count];
        for (&(a, b), number) in of.iter().zip(0..) {
            links[a].push((b, number));
            links[b].push((a, number));
        }
        links
    }

    #[test]
    fn a_tree_takes_the_shortest_ways_and_each_link_once() {
        // A circle of four, one of its links twice, and one more at an end.
        let links = links(&[(0, 1), (0, 1), (1, 2), (2, 3), (3, 0), (3, 4)], 5);
        let (depth, tree) = grown(0, &links);
        assert_eq!(depth, 2);
        let ends: Vec<_> = tree.into_iter().map(|tree| tree.unwrap()).collect();
        assert_eq!(ends[0], Tree { up: None, down: vec![0, 4] });
        assert_eq!(ends[1], Tree { up: Some(0), down: vec![2] });
        assert_eq!(ends[2], Tree { up: Some(2), down: vec![] });
        assert_eq!(ends[3], Tree { up: Some(4), down: vec![5] });
        assert_eq!(ends[4], Tree { up: Some(5), down: vec![] });
    }
}
