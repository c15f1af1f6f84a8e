//! Whether every host can reach the others.

use std::collections::BTreeMap;
use std::ops::Range;

use super::check::{Checked, Nodes, Source};
use super::{Host, Link};

impl Source<'_> {
    /// Refuses a file whose linked hosts are not all joined. A host stands for all its adapters: two of them may
    /// be on two fabrics that nothing else joins. A host without links is alone on purpose.
    pub(super) fn reach(&self, nodes: &Nodes, links: &[(Range<usize>, Link)]) -> Checked<()> {
        let mut group: BTreeMap<&str, usize> =
            nodes.names.keys().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
        for (_, link) in links {
            let [a, b] = link.between.each_ref().map(|end| group.get(end.node()).copied());
            if let (Some(a), Some(b)) = (a, b) {
                group.values_mut().filter(|g| **g == b).for_each(|g| *g = a);
            }
        }
        let is_linked = |host: &&Host| {
            links.iter().any(|(_, link)| link.between.iter().any(|end| end.node() == host.name))
        };
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
