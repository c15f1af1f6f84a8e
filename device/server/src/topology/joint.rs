//! Links that join two processes of a simulation, and adapters to hosts elsewhere.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::Link;
use super::check::{Checked, Nodes, Source};
use crate::simbricks::Role;

/// How a link joins two processes of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joint {
    /// What the process of each end does. With one socket one listens and the other connects to it; with two of them there is something
    /// between that carries what comes by one to the other.
    pub ends: [Place; 2],
    /// What packets look like on the way.
    pub framing: Framing,
}

/// What a process does at its end of a link, or an adapter at that of a host elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whether it makes the socket.
    pub role: Role,
    /// The socket; from the directory of the run, if it is not absolute.
    pub path: PathBuf,
}

/// What packets between two processes look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// Messages of softhca, and nothing else.
    #[default]
    Raw,
    /// The same in Ethernet frames, which others' switches and wires carry.
    Ethernet,
}

/// What a file says of sockets: `"listen:PATH"` of the first end, or of each end.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawJoint {
    First(String),
    Both([String; 2]),
}

impl Joint {
    /// Paths that are not absolute are in `folder`.
    pub(super) fn put_into(&mut self, folder: &Path) {
        self.ends.iter_mut().for_each(|end| end.put_into(folder));
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.ends.iter().map(|end| end.path.as_path())
    }
}

impl Place {
    /// What the other end of a link with one socket does.
    pub fn far(&self) -> Self {
        Self { role: self.role.other(), path: self.path.clone() }
    }

    /// A path that is not absolute is in `folder`.
    pub(super) fn put_into(&mut self, folder: &Path) {
        self.path = folder.join(&self.path);
    }

    fn parse(text: &str) -> Option<Self> {
        let (role, path) = text.split_once(':').filter(|(_, path)| !path.is_empty())?;
        let role = match role {
            "listen" => Role::Listen,
            "connect" => Role::Connect,
            _ => return None,
        };
        Some(Self { role, path: path.into() })
    }
}

/// Who has which socket of SimBricks: each is of one link. Paths are compared as they are written, but for `.` in them.
#[derive(Debug, Default)]
pub(super) struct Sockets(BTreeMap<PathBuf, (String, Option<Role>)>);

impl Sockets {
    fn key(path: &Path) -> PathBuf {
        path.components().filter(|part| !matches!(part, Component::CurDir)).collect()
    }

    /// `who` has a socket. With a role it is as good as the far end of whoever has the other one there: both are links to others, and
    /// what they carry is the same. Returns who has it already.
    pub(super) fn take(&mut self, path: &Path, who: String, role: Option<Role>) -> Option<String> {
        match self.0.entry(Self::key(path)) {
            Entry::Vacant(free) => {
                free.insert((who, role));
                None
            }
            Entry::Occupied(mut taken) => match taken.get_mut() {
                (other, Some(known)) if role == Some(known.other()) => {
                    let both = format!("{other} and {who}");
                    taken.insert((both, None));
                    None
                }
                (other, _) => Some(other.clone()),
            },
        }
    }

    /// Who has a socket.
    fn owner(&self, path: &Path) -> Option<&str> {
        self.0.get(&Self::key(path)).map(|(who, _)| who.as_str())
    }
}

impl Source<'_> {
    /// A text that says what is done at a socket; `key` is where, `who` does it.
    pub(super) fn place(&self, key: &str, text: &str, at: Range<usize>, who: &str) -> Checked<Place> {
        Place::parse(text).ok_or_else(|| {
            let reason = format!("must be \"listen:PATH\" or \"connect:PATH\", which is what {who}");
            self.error(at, key, reason)
        })
    }

    /// What a link says of a simulation.
    pub(super) fn joint(
        &self,
        raw: Option<&Spanned<RawJoint>>,
        framing: Option<&Spanned<String>>,
    ) -> Checked<Option<Joint>> {
        let Some(raw) = raw else {
            let Some(framing) = framing else { return Ok(None) };
            let reason = "is for a link between two processes of a simulation (simbricks)";
            return Err(self.error(framing.span(), "link.framing", reason));
        };
        let wrong = |reason: &str| self.error(raw.span(), "link.simbricks", reason);
        let who = "the first end does, or two of them";
        let place = |text: &String| self.place("link.simbricks", text, raw.span(), who);
        let ends = match raw.get_ref() {
            RawJoint::First(first) => {
                let first = place(first)?;
                let second = first.far();
                [first, second]
            }
            RawJoint::Both([first, second]) => [place(first)?, place(second)?],
        };
        let [first, second] = &ends;
        if first == second {
            return Err(wrong("both ends do the same at the same socket"));
        }
        let framing = match framing.map(|text| (text, text.get_ref().as_str())) {
            None | Some((_, "raw")) => Framing::Raw,
            Some((_, "ethernet")) => Framing::Ethernet,
            Some((text, other)) => {
                let reason = format!("{other:?} is neither \"raw\" nor \"ethernet\"");
                return Err(self.error(text.span(), "link.framing", reason));
            }
        };
        Ok(Some(Joint { ends, framing }))
    }

    /// A link of simulations joins two processes, at sockets of its own.
    pub(super) fn joins(
        &self,
        link: &Link,
        at: Option<Range<usize>>,
        nodes: &Nodes,
        before: &[(Range<usize>, Link)],
    ) -> Checked<()> {
        let (Some(joint), Some(at)) = (&link.simbricks, at) else { return Ok(()) };
        let shares = |(_, other): &&(Range<usize>, Link)| {
            let mut theirs = other.simbricks.iter().flat_map(Joint::paths).map(Sockets::key);
            theirs.any(|path| joint.paths().any(|own| Sockets::key(own) == path))
        };
        let link_there = before.iter().find(shares).map(|(_, other)| {
            let [a, b] = &other.between;
            format!("the link between {a} and {b}")
        });
        let node_there = joint.paths().find_map(|path| nodes.simbricks.owner(path)).map(str::to_owned);
        let wrong = if !nodes.spans(link) {
            "the link does not join two processes".to_owned()
        } else if let Some(other) = link_there.or(node_there) {
            format!("{other} has this socket")
        } else if link.tunnel_key_file.is_some() {
            "the link has a key, which is for tunnels".to_owned()
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

    fn joint(link: &str) -> Joint {
        parse(link).unwrap().links[0].simbricks.clone().unwrap()
    }

    #[test]
    fn one_end_listens_and_the_other_connects() {
        let place = |role, path: &str| Place { role, path: path.into() };
        let listen = joint("simbricks = \"listen:ab.sock\"");
        assert_eq!(listen.ends, [place(Role::Listen, "ab.sock"), place(Role::Connect, "ab.sock")]);
        assert_eq!(listen.framing, Framing::Raw);
        let connect = joint("simbricks = \"connect:/run/x\"");
        assert_eq!(connect.ends, [place(Role::Connect, "/run/x"), place(Role::Listen, "/run/x")]);
    }

    #[test]
    fn something_may_be_between() {
        let both = joint("simbricks = [\"listen:a\", \"listen:b\"]\nframing = \"ethernet\"");
        let place = |path: &str| Place { role: Role::Listen, path: path.into() };
        assert_eq!(both, Joint { ends: [place("a"), place("b")], framing: Framing::Ethernet });
        let one = joint("simbricks = [\"listen:a\", \"connect:a\"]\nframing = \"raw\"");
        assert_eq!(one, joint("simbricks = \"listen:a\""));
    }

    /// An adapter whose host is another simulator.
    #[test]
    fn adapters_are_joined_to_hosts() {
        let parse = |hca: &str, link: &str| {
            let text = format!(
                "[[host]]\nname = \"a\"\n[[host.hca]]\n{hca}\n[[host.hca]]\nsimbricks = \"connect:b.sock\"\n\
                 [[link]]\nbetween = [\"a/hca0\", \"a/hca1\"]\n{link}\n"
            );
            Topology::parse("t", &text).map_err(|why| why.to_string())
        };
        let topology = parse("simbricks = \"listen:a.sock\"\npcie_latency_ns = 100", "").unwrap();
        let [a, b] = &topology.hosts[0].hcas[..] else { panic!() };
        let place = a.simbricks.clone().unwrap();
        assert_eq!(
            (place.role, place.far().role, a.pcie_latency_ns),
            (Role::Listen, Role::Connect, Some(100))
        );
        assert_eq!((b.simbricks.clone().unwrap().role, b.pcie_latency_ns), (Role::Connect, None));
        for (hca, link, words) in [
            ("simbricks = \"a.sock\"", "", "t:4: host.hca.simbricks: must be \"listen:PATH\""),
            (
                "pcie_latency_ns = 100",
                "",
                "t:4: host.hca.pcie_latency_ns: must be 1 or more, of an adapter with",
            ),
            ("simbricks = \"listen:x\"\npcie_latency_ns = 0", "", "t:5: host.hca.pcie_latency_ns: must be 1"),
            ("simbricks = \"listen:b.sock\"", "", "a/hca0 and a/hca1 would share the socket b.sock"),
        ] {
            let why = parse(hca, link).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    /// A socket is of one link, whatever is at its ends.
    #[test]
    fn sockets_have_one_owner() {
        let outside = |name: &str, socket: &str| {
            format!(
                "[[outside]]\nname = \"{name}\"\nkind = \"simbricks\"\n{socket}\n\
                 [[link]]\nbetween = [\"{name}\", \"{name}s\"]\n\
                 [[switch]]\nname = \"{name}s\"\ntype = \"eth\"\nprocess = \"p\"\n"
            )
        };
        let processes = "[[process]]\nname = \"p\"\n[[process]]\nname = \"q\"\n";
        let host = |name: &str, process: &str, hca: &str| {
            format!("[[host]]\nname = \"{name}\"\nprocess = \"{process}\"\n[[host.hca]]\n{hca}\n")
        };
        let adapter = host("a", "p", "simbricks = \"listen:x\"");
        let link = |a: &str, b: &str| {
            let hosts = host(a, "p", "") + &host(b, "q", "");
            let ends = format!("[[link]]\nbetween = [\"{a}/hca0\", \"{b}/hca0\"]\n");
            format!("{hosts}{ends}simbricks = \"listen:x\"\n")
        };
        let (link, second) = (link("b", "c"), link("d", "e"));
        let (listens, connects) =
            (outside("o", "listen = \"unix:./x\""), outside("n", "connect = \"unix:x\""));
        let why = |parts: &[&str]| {
            let text = format!("{processes}{}{}", host("z", "p", ""), parts.concat());
            Topology::parse("t", &text).map(|_| ()).map_err(|why| why.to_string())
        };
        for (parts, words) in [
            ([&adapter[..], &listens], "outside: a/hca0 and o would share the socket ./x"),
            ([&adapter, &connects], "outside: a/hca0 and n would share the socket x"),
            ([&link, &listens], "link.simbricks: o has this socket"),
            ([&link, &connects], "link.simbricks: n has this socket"),
            ([&link, &adapter], "link.simbricks: a/hca0 has this socket"),
            ([&listens, &outside("m", "listen = \"unix:x\"")], "outside: o and m would share the socket x"),
            ([&connects, &outside("m", "connect = \"unix:x\"")], "outside: n and m would share the socket x"),
        ] {
            let why = why(&parts).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        let two = why(&[&link, &second]).unwrap_err();
        assert!(two.contains("the link between b/hca0 and c/hca0 has this socket"), "{two}");
        // Two processes may be joined as two strangers would be, but no third one.
        why(&[&listens, &connects]).unwrap();
        let three = why(&[&listens, &connects, &outside("m", "connect = \"unix:x\"")]).unwrap_err();
        assert!(three.contains("o and n and m would share the socket x"), "{three}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (link, words) in [
            ("simbricks = \"x\"", "must be \"listen:PATH\""),
            ("simbricks = \"listen:\"", "must be \"listen:PATH\""),
            ("simbricks = [\"listen:x\", \"y\"]", "must be \"listen:PATH\""),
            ("simbricks = [\"listen:x\", \"listen:x\"]", "both ends do the same"),
            ("simbricks = \"listen:x\"\ntunnel_key_file = \"k\"", "which is for tunnels"),
            ("simbricks = \"listen:x\"\nframing = \"x\"", "is neither \"raw\" nor \"ethernet\""),
            ("framing = \"raw\"", "is for a link between two processes of a simulation"),
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
