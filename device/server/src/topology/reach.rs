//! Whether every host can reach the others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::check::{Checked, Nodes, Source};
use super::{Host, Link};

/// Which of so many are joined.
struct Groups(Vec<usize>);

impl Groups {
    /// None with another.
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    /// One of those that it is joined with, the same for all of them.
    fn of(&mut self, mut place: usize) -> usize {
        while let Some(above) = self.0.get(place).copied().filter(|above| *above != place) {
            // Ways become shorter.
            let next = self.0.get(above).copied().unwrap_or(above);
            if let Some(known) = self.0.get_mut(place) {
                *known = next;
            }
            place = next;
        }
        place
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.of(a), self.of(b));
        if let Some(above) = self.0.get_mut(b) {
            *above = a;
        }
    }
}

impl Source<'_> {
    /// Refuses a file whose linked hosts are not all joined. A host stands for all its adapters: two of them may
    /// be on two fabrics that nothing else joins. A host without links is alone on purpose.
    pub(super) fn reach(&self, nodes: &Nodes, links: &[(Range<usize>, Link)]) -> Checked<()> {
        let places: BTreeMap<&str, usize> =
            nodes.names.keys().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
        let (mut groups, mut linked) = (Groups::new(places.len()), BTreeSet::new());
        for (_, link) in links {
            linked.extend(link.between.iter().map(|end| end.node()));
            let [a, b] = link.between.each_ref().map(|end| places.get(end.node()).copied());
            if let (Some(a), Some(b)) = (a, b) {
                groups.join(a, b);
            }
        }
        let mut group: BTreeMap<&str, usize> = BTreeMap::new();
        group.extend(places.into_iter().map(|(name, place)| (name, groups.of(place))));
        let is_linked = |host: &&Host| linked.contains(host.name.as_str());
        let mut linked = nodes.hosts.iter().filter(is_linked);
        let Some(first) = linked.next() else { return Ok(()) };
        let home = group.get(first.name.as_str());
        let Some(lost) = linked.find(|host| group.get(host.name.as_str()) != home) else { return Ok(()) };
        let there = group.get(lost.name.as_str());
        let others: Vec<_> =
            group.iter().filter(|(n, g)| Some(*g) == there && **n != lost.name).map(|(n, _)| *n).collect();
        let reason = format!(
            "host {} can't reach host {}: no links join them; {} is joined to {} only",
            lost.name,
            first.name,
            lost.name,
            others.join(", ")
        );
        let at = nodes.lines.iter().find(|(name, _)| *name == lost.name).map_or(0..0, |(_, at)| at.clone());
        Err(self.error(at, "host", reason))
    }
}
