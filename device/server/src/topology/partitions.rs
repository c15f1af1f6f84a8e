//! `[[partition]]`: which ports may talk to which (IBTA vol 1 10.9), as OpenSM's `partitions.conf` has it in meaning.
//!
//! A port has the default partition's P_Key first, then those of others in the order of the file. Without a partition of that number
//! all InfiniBand ports of adapters are full members of the default one; with one, those that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use hca_model::personality::PortKind;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::check::{Checked, Nodes, Source};
use super::{Fabric, ManagementKey, SubnetManager, Topology};

/// The partition that all ports are in unless a topology says otherwise (IBTA vol 1 10.9.1.2).
pub const DEFAULT: u16 = 0x7fff;
/// Bit of a P_Key: a full member.
const FULL: u16 = 0x8000;
/// Partitions that a port may be in: its table has no more entries.
const MOST: usize = 32;
/// All InfiniBand ports of adapters.
const ALL: &str = "*";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPartition {
    name: Spanned<String>,
    pkey: Spanned<i64>,
    #[serde(default)]
    full: Vec<Spanned<String>>,
    #[serde(default)]
    limited: Vec<Spanned<String>>,
}

/// A port of an adapter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its host.
    pub host: String,
    /// Its adapter.
    pub hca: String,
    /// Port, from 1.
    pub port: u8,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.host, self.hca, self.port)
    }
}

impl Serialize for Member {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// A partition. Full members talk to all, limited ones to full ones only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Partition {
    /// Unique name.
    pub name: String,
    /// Its number: the P_Key without the bit of full members.
    #[serde(serialize_with = "pkey_text")]
    pub pkey: u16,
    /// Full members.
    pub full: BTreeSet<Member>,
    /// Limited ones.
    pub limited: BTreeSet<Member>,
}

fn pkey_text<S: serde::Serializer>(pkey: &u16, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&format_args!("{pkey:#06x}"))
}

impl Partition {
    /// The P_Key of a member.
    fn key_of(&self, member: &Member) -> Option<u16> {
        let full = self.full.contains(member).then_some(self.pkey | FULL);
        full.or_else(|| self.limited.contains(member).then_some(self.pkey))
    }
}

impl Topology {
    /// The P_Keys of an adapter's InfiniBand port, in the order of its table; `None` where there are no partitions to keep.
    pub fn pkeys(&self, host: &str, hca: &str, port: u8) -> Option<Vec<u16>> {
        if self.partitions.is_empty() {
            return None;
        }
        let member = Member { host: host.into(), hca: hca.into(), port };
        let default = match self.partitions.iter().find(|partition| partition.pkey == DEFAULT) {
            Some(said) => said.key_of(&member),
            None => Some(DEFAULT | FULL),
        };
        let others = self.partitions.iter().filter(|partition| partition.pkey != DEFAULT);
        Some(default.into_iter().chain(others.filter_map(|partition| partition.key_of(&member))).collect())
    }
}

impl Source<'_> {
    pub(super) fn partitions(
        &self,
        raw: Vec<Spanned<RawPartition>>,
        nodes: &Nodes,
        fabric: &Fabric,
    ) -> Checked<Vec<Partition>> {
        if let Some(first) = raw.first() {
            let reason = match (fabric.subnet_manager, fabric.m_key) {
                (SubnetManager::None, _) => {
                    Some("only the built-in subnet manager reads it; OpenSM has a partitions.conf of its own")
                }
                (_, ManagementKey::None) => {
                    Some("without an M_Key (fabric.m_key) whoever sends SMPs is in all partitions")
                }
                _ => None,
            };
            if let Some(reason) = reason {
                return Err(self.error(first.span(), "partition", reason));
            }
        }
        let mut all: Vec<Partition> = Vec::new();
        let mut counts: BTreeMap<Member, usize> = BTreeMap::new();
        for raw in raw {
            let (at, raw) = (raw.span(), raw.into_inner());
            let name = self.name("partition.name", &raw.name)?;
            if all.iter().any(|other| other.name == name) {
                let reason = format!("two partitions are called {name:?}");
                return Err(self.error(raw.name.span(), "partition.name", reason));
            }
            let number =
                u16::try_from(*raw.pkey.get_ref()).ok().map(|key| key & !FULL).filter(|key| *key != 0);
            let Some(pkey) = number else {
                let reason =
                    "must be 0x0001 to 0x7fff; that with the uppermost bit (0x8001) is the same partition";
                return Err(self.error(raw.pkey.span(), "partition.pkey", reason));
            };
            if let Some(other) = all.iter().find(|other| other.pkey == pkey) {
                let reason = format!("{pkey:#06x} is the partition {:?} already", other.name);
                return Err(self.error(raw.pkey.span(), "partition.pkey", reason));
            }
            let (mut full, every_full) = self.members("partition.full", &raw.full, nodes)?;
            let (mut limited, every_limited) = self.members("partition.limited", &raw.limited, nodes)?;
            if let Some(both) = full.intersection(&limited).next() {
                let reason = format!("{both} is a full member and a limited one");
                return Err(self.error(at, "partition.limited", reason));
            }
            match (every_full, every_limited) {
                (true, true) => {
                    let reason = format!("{ALL:?} are full members and limited ones");
                    return Err(self.error(at, "partition.limited", reason));
                }
                // Whoever is named is what it is named as.
                (true, false) => full.extend(every(nodes).filter(|member| !limited.contains(member))),
                (false, true) => limited.extend(every(nodes).filter(|member| !full.contains(member))),
                (false, false) => {}
            }
            for member in full.union(&limited).filter(|_| pkey != DEFAULT) {
                let count = counts.entry(member.clone()).or_default();
                *count += 1;
                // One place is the default partition's.
                if *count >= MOST {
                    let reason = format!(
                        "{member} would be in more than {MOST} partitions, the default one among them"
                    );
                    return Err(self.error(at, "partition", reason));
                }
            }
            all.push(Partition { name, pkey, full, limited });
        }
        Ok(all)
    }

    /// Those that a list names, and whether it names all.
    fn members(
        &self,
        key: &str,
        raw: &[Spanned<String>],
        nodes: &Nodes,
    ) -> Checked<(BTreeSet<Member>, bool)> {
        let (mut named, mut every) = (BTreeSet::new(), false);
        for text in raw {
            if text.get_ref() == ALL {
                every = true;
                continue;
            }
            let members = member(text.get_ref(), nodes).map_err(|why| self.error(text.span(), key, why))?;
            for member in members {
                if let Some(twice) = named.replace(member) {
                    return Err(self.error(text.span(), key, format!("{twice} is named twice")));
                }
            }
        }
        Ok((named, every))
    }
}

/// All InfiniBand ports of adapters.
fn every(nodes: &Nodes) -> impl Iterator<Item = Member> {
    let hcas = nodes.hosts.iter().flat_map(|host| host.hcas.iter().map(move |hca| (host, hca)));
    hcas.filter(|(_, hca)| hca.port_type == PortKind::InfiniBand).flat_map(|(host, hca)| {
        (1..).take(hca.personality.ports.len()).map(|port| Member {
            host: host.name.clone(),
            hca: hca.name.clone(),
            port,
        })
    })
}

/// The ports that `HOST/HCA` or `HOST/HCA:PORT` names.
fn member(text: &str, nodes: &Nodes) -> Result<Vec<Member>, String> {
    let (adapter, port) = match text.split_once(':') {
        Some((adapter, port)) => (adapter, Some(port)),
        None => (text, None),
    };
    let (host, hca) = adapter
        .split_once('/')
        .ok_or_else(|| format!("{text:?} is none of \"host/hca\", \"host/hca:port\" and {ALL:?}"))?;
    let of_host = nodes.host(host).ok_or_else(|| format!("{text}: there is no host {host:?}"))?;
    let known = of_host.hcas.iter().find(|known| known.name == hca);
    let known = known.ok_or_else(|| format!("{text}: host {host} has no adapter {hca:?}"))?;
    if known.port_type != PortKind::InfiniBand {
        return Err(format!("{text}: {adapter} is an Ethernet adapter, and partitions are InfiniBand's"));
    }
    let ports = known.personality.ports.len();
    let member = |port| Member { host: host.to_owned(), hca: hca.to_owned(), port };
    match port {
        None => Ok((1..).take(ports).map(member).collect()),
        Some(port) => match port.parse::<u8>() {
            Ok(port) if (1..=ports).contains(&port.into()) => Ok(vec![member(port)]),
            _ => Err(format!("{text}: {adapter} has no port {port:?}, only 1 to {ports}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n\
                         [[host]]\nname = \"c\"\n[[host.hca]]\n[[host.hca]]\nport_type = \"eth\"\n";

    fn with(partitions: &str) -> Result<Topology, String> {
        Topology::parse("t", &format!("{HOSTS}{partitions}")).map_err(|why| why.to_string())
    }

    fn keys(topology: &Topology) -> [Vec<u16>; 3] {
        ["a", "b", "c"].map(|host| topology.pkeys(host, "hca0", 1).expect("keys"))
    }

    #[test]
    fn tables_of_ports() {
        assert_eq!(with("").unwrap().pkeys("a", "hca0", 1), None);
        let one =
            "[[partition]]\nname = \"one\"\npkey = 0x8001\nfull = [\"a/hca0\"]\nlimited = [\"b/hca0:1\"]\n";
        let two = "[[partition]]\nname = \"two\"\npkey = 2\nfull = [\"b/hca0\"]\nlimited = [\"*\"]\n";
        let t = with(&format!("{one}{two}")).unwrap();
        assert_eq!(keys(&t), [vec![0xffff, 0x8001, 2], vec![0xffff, 1, 0x8002], vec![0xffff, 2]]);
        let json = serde_json::to_value(&t).unwrap();
        assert_eq!(json["partitions"][0]["pkey"], "0x0001");
        assert_eq!(json["partitions"][1]["limited"], serde_json::json!(["a/hca0:1", "c/hca0:1"]));
        // The default one is what is said of it, wherever that stands.
        let default =
            "[[partition]]\nname = \"all\"\npkey = 0x7fff\nlimited = [\"*\"]\nfull = [\"c/hca0\"]\n";
        let t = with(&format!("{one}{default}")).unwrap();
        assert_eq!(keys(&t), [vec![0x7fff, 0x8001], vec![0x7fff, 1], vec![0xffff]]);
        let t = with(&format!("{one}[[partition]]\nname = \"none\"\npkey = 0x7fff\n")).unwrap();
        assert_eq!(keys(&t), [vec![0x8001], vec![1], vec![]]);
    }

    #[test]
    fn what_is_wrong() {
        let named = |rest: &str| format!("[[partition]]\nname = \"p\"\n{rest}");
        let pkey = |rest: &str| named(&format!("pkey = 1\n{rest}"));
        let many: String = (1..=32)
            .map(|key| format!("[[partition]]\nname = \"p{key}\"\npkey = {key}\nfull = [\"a/hca0\"]\n"))
            .collect();
        let cases = [
            (named("pkey = 0"), "partition.pkey: must be 0x0001 to 0x7fff"),
            (named("pkey = 0x8000"), "partition.pkey: must be"),
            (named("pkey = 0x10001"), "partition.pkey: must be"),
            (named("pkey = -1"), "partition.pkey: must be"),
            (named("pkey = \"1\""), "pkey: invalid type"),
            (named(""), "missing field `pkey`"),
            (pkey("members = []"), "unknown field `members`"),
            (format!("{}{}", pkey(""), named("pkey = 2")), "partition.name: two partitions are called \"p\""),
            (
                format!("{}[[partition]]\nname = \"q\"\npkey = 0x8001\n", pkey("")),
                "partition.pkey: 0x0001 is the partition \"p\" already",
            ),
            (pkey("full = [\"a\"]"), "partition.full: \"a\" is none of \"host/hca\""),
            (pkey("full = [\"x/hca0\"]"), "partition.full: x/hca0: there is no host \"x\""),
            (pkey("limited = [\"a/hca7\"]"), "partition.limited: a/hca7: host a has no adapter \"hca7\""),
            (
                pkey("full = [\"a/hca0:2\"]"),
                "partition.full: a/hca0:2: a/hca0 has no port \"2\", only 1 to 1",
            ),
            (pkey("full = [\"c/hca1\"]"), "c/hca1 is an Ethernet adapter"),
            (pkey("full = [\"a/hca0\", \"a/hca0:1\"]"), "partition.full: a/hca0:1 is named twice"),
            (
                pkey("full = [\"a/hca0\"]\nlimited = [\"a/hca0\"]"),
                "partition.limited: a/hca0:1 is a full member and a limited one",
            ),
            (pkey("full = [\"*\"]\nlimited = [\"*\"]"), "partition.limited: \"*\" are full members"),
            (many, "partition: a/hca0:1 would be in more than 32 partitions"),
            (
                pkey("[fabric]\nsubnet_manager = \"none\"\n"),
                "partition: only the built-in subnet manager reads it",
            ),
            (pkey("[fabric]\nm_key = \"none\"\n"), "partition: without an M_Key"),
        ];
        for (text, wanted) in cases {
            let why = with(&text).expect_err(&text);
            assert!(why.starts_with("t:") && why.contains(wanted), "{text}: {why}");
        }
    }
}
