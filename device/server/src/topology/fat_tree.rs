//! Fat trees of switches with 36 ports: `fat-tree:N` is one with N hosts.
//!
//! The lowest switches have up to 24 hosts and 12 cables up. Up to 18 of them are a pod, with 12 switches above, each of which has a
//! cable to each of those and 18 cables up. Pods are joined by a third tier: switch `j` of each pod by switches of its own.

use std::fmt::Write;

/// What names begin with.
const PREFIX: &str = "fat-tree:";
/// Ports of a switch.
const PORTS: usize = 36;
/// Hosts of a lowest switch, and its cables up.
const HOSTS: usize = 24;
const UP: usize = PORTS - HOSTS;
/// Lowest switches of a pod, and cables up of one above.
const LEAVES: usize = 18;
/// Most hosts: LIDs of adapters and switches are below 0xc000, and a third tier joins 36 pods.
const MOST: usize = HOSTS * LEAVES * PORTS;

/// The text of the fat tree of that name; `None`: it is no name of one.
pub(super) fn text(name: &str) -> Option<String> {
    let hosts = name.strip_prefix(PREFIX)?.parse().ok().filter(|hosts| (2..=MOST).contains(hosts))?;
    let leaves = usize::div_ceil(hosts, HOSTS);
    let pods = leaves.div_ceil(LEAVES);
    // So many switches of the third tier for each of a pod's, that no one has more cables than ports.
    let tops = (1..=LEAVES).find(|tops| LEAVES.div_ceil(*tops) * pods <= PORTS).filter(|_| pods > 1);
    let tops = tops.unwrap_or(0);
    let mut text = "[fabric]\ntraining_ms = 0\nrouting = \"up-down\"\n".to_owned();
    let mut links = String::new();
    let mut link = |a: String, b: String| {
        // Writing into a String does not fail.
        let _ = writeln!(links, "[[link]]\nbetween = [\"{a}\", \"{b}\"]");
    };
    for host in 0..hosts {
        let _ = writeln!(text, "[[host]]\nname = \"h{host}\"\n[[host.hca]]");
        link(format!("h{host}/hca0"), format!("leaf{}/{}", host / HOSTS, host % HOSTS + 1));
    }
    let mut switch = |name: String| {
        let _ = writeln!(text, "[[switch]]\nname = \"{name}\"\nports = {PORTS}");
    };
    for leaf in 0..leaves {
        switch(format!("leaf{leaf}"));
        for up in 0..UP {
            let middle = format!("mid{}-{up}/{}", leaf / LEAVES, leaf % LEAVES + 1);
            link(format!("leaf{leaf}/{}", HOSTS + 1 + up), middle);
        }
    }
    for pod in 0..pods {
        (0..UP).for_each(|middle| switch(format!("mid{pod}-{middle}")));
    }
    for middle in 0..UP {
        for top in 0..tops {
            switch(format!("top{middle}-{top}"));
            let mut port = 0;
            for pod in 0..pods {
                for up in (top..LEAVES).step_by(tops) {
                    port += 1;
                    link(
                        format!("mid{pod}-{middle}/{}", LEAVES + 1 + up),
                        format!("top{middle}-{top}/{port}"),
                    );
                }
            }
        }
    }
    Some(text + &links)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::topology::{End, Topology};

    #[test]
    fn switches_have_as_many_cables_as_they_should() {
        for (hosts, switches) in [(2, 1 + 12), (64, 3 + 12), (1024, 43 + 36 + 24)] {
            let topology = Topology::parse("t", &text(&format!("fat-tree:{hosts}")).unwrap()).unwrap();
            assert_eq!((topology.hosts.len(), topology.switches.len()), (hosts, switches));
            let mut cables: BTreeMap<&str, usize> = BTreeMap::new();
            for end in topology.links.iter().flat_map(|link| &link.between) {
                if let End::Switch { switch, .. } = end {
                    *cables.entry(switch).or_default() += 1;
                }
            }
            assert!(cables.values().all(|count| *count <= PORTS));
            let full = |name: &str| cables.get(name).copied();
            assert_eq!(full("leaf0"), Some(hosts.min(HOSTS) + UP));
            if hosts == 1024 {
                assert_eq!((full("mid0-0"), full("top11-1")), (Some(LEAVES + LEAVES), Some(27)));
            }
        }
    }

    #[test]
    fn other_names_are_none() {
        for name in ["fat-tree", "fat-tree:", "fat-tree:1", "fat-tree:x", "fat-tree:99999", "two-hosts"] {
            assert_eq!(text(name), None, "{name}");
        }
        assert!(text(&format!("fat-tree:{MOST}")).is_some());
    }
}
