//! Links that join two processes of a simulation.

use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;

use super::Link;
use super::check::{Checked, Nodes, Source};
use crate::simbricks::Role;

/// How a link joins two processes of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joint {
    /// What the process of its first end does; that of the other does the other.
    pub first: Role,
    /// The socket; from the directory of the run, if it is not absolute.
    pub path: PathBuf,
}

impl Joint {
    /// What the process does whose end of the link that is: 0 or 1.
    pub fn role(&self, end: usize) -> Role {
        match (self.first, end) {
            (first, 0) => first,
            (Role::Listen, _) => Role::Connect,
            (Role::Connect, _) => Role::Listen,
        }
    }
}

impl Source<'_> {
    /// What a link says of a simulation.
    pub(super) fn joint(&self, raw: Option<&Spanned<String>>) -> Checked<Option<Joint>> {
        let Some(raw) = raw else { return Ok(None) };
        let split = raw.get_ref().split_once(':').filter(|(_, path)| !path.is_empty());
        let (first, path) = match split {
            Some(("listen", path)) => (Role::Listen, path),
            Some(("connect", path)) => (Role::Connect, path),
            _ => {
                let reason = "must be \"listen:PATH\" or \"connect:PATH\", which is what the first end does";
                return Err(self.error(raw.span(), "link.simbricks", reason));
            }
        };
        Ok(Some(Joint { first, path: path.into() }))
    }

    /// A link of simulations joins two processes, at a socket of its own.
    pub(super) fn joins(
        &self,
        link: &Link,
        at: Option<Range<usize>>,
        nodes: &Nodes,
        before: &[(Range<usize>, Link)],
    ) -> Checked<()> {
        let (Some(joint), Some(at)) = (&link.simbricks, at) else { return Ok(()) };
        let has_it = |(_, other): &(Range<usize>, Link)| {
            other.simbricks.as_ref().is_some_and(|other| other.path == joint.path)
        };
        let wrong = if !nodes.spans(link) {
            "the link does not join two processes"
        } else if before.iter().any(has_it) {
            "another link has this socket"
        } else if link.tunnel_key_file.is_some() {
            "the link has a key, which is for tunnels"
        } else {
            return Ok(());
        };
        Err(self.error(at, "link.simbricks", wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    fn parse(link: &str) -> Result<Topology, String> {
        let text = format!(
            "[[process]]\nname = \"p\"\n[[process]]\nname = \"q\"\n[[host]]\nname = \"a\"\nprocess = \"p\"\n[[host.hca]]\n\
             [[host]]\nname = \"b\"\nprocess = \"q\"\n[[host.hca]]\n[[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n{link}\n"
        );
        Topology::parse("t", &text).map_err(|why| why.to_string())
    }

    #[test]
    fn one_end_listens_and_the_other_connects() {
        let topology = parse("simbricks = \"listen:ab.sock\"").unwrap();
        let joint = topology.links[0].simbricks.clone().unwrap();
        assert_eq!((joint.role(0), joint.role(1)), (Role::Listen, Role::Connect));
        assert_eq!(joint.path, PathBuf::from("ab.sock"));
        let other = parse("simbricks = \"connect:/run/x\"").unwrap().links[0].simbricks.clone().unwrap();
        assert_eq!((other.role(0), other.role(1)), (Role::Connect, Role::Listen));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (link, words) in [
            ("simbricks = \"x\"", "must be \"listen:PATH\""),
            ("simbricks = \"listen:\"", "must be \"listen:PATH\""),
            ("simbricks = \"listen:x\"\ntunnel_key_file = \"k\"", "which is for tunnels"),
            // Without it the built-in manager can't reach the other process.
            ("", "reaches one process only"),
        ] {
            let why = parse(link).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        let one = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n[[link]]\n\
                   between = [\"a/hca0\", \"b/hca0\"]\nsimbricks = \"listen:x\"\n";
        let why = Topology::parse("t", one).unwrap_err().to_string();
        assert!(why.starts_with("t:9: link.simbricks: the link does not join two processes"), "{why}");
    }
}
