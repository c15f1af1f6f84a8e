//! Topologies that come with the program, each known by its name.

use std::io;
use std::path::Path;

/// Name and text of each.
const ALL: [(&str, &str); 13] = [
    ("loopback", include_str!("../../topologies/loopback.toml")),
    ("two-hosts", include_str!("../../topologies/two-hosts.toml")),
    ("cable", include_str!("../../topologies/cable.toml")),
    ("switch", include_str!("../../topologies/switch.toml")),
    ("two-switches", include_str!("../../topologies/two-switches.toml")),
    ("two-processes", include_str!("../../topologies/two-processes.toml")),
    ("iommu", include_str!("../../topologies/iommu.toml")),
    ("blueflame", include_str!("../../topologies/blueflame.toml")),
    ("eth", include_str!("../../topologies/eth.toml")),
    ("eth-two-hosts", include_str!("../../topologies/eth-two-hosts.toml")),
    ("eth-dpdk", include_str!("../../topologies/eth-dpdk.toml")),
    ("eth-switch", include_str!("../../topologies/eth-switch.toml")),
    ("rxe", include_str!("../../topologies/rxe.toml")),
];

/// The names.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().map(|(name, _)| name)
}

/// The text of a file, or of what is built in under this name. A file of the same name has to be called `./NAME`.
///
/// # Errors
/// There is neither.
pub(super) fn read(path: &Path) -> io::Result<String> {
    if let Some((_, text)) = ALL.iter().find(|(name, _)| path.as_os_str() == *name) {
        return Ok((*text).to_owned());
    }
    if let Some(text) = path.to_str().and_then(super::fat_tree::text) {
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let names = names().collect::<Vec<_>>().join(", ");
            io::Error::new(
                error.kind(),
                format!("no such file; built in are: {names}, and fat-tree:N with 2 to 15552 hosts"),
            )
        }
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    #[test]
    fn each_is_valid() {
        for name in names() {
            let topology = Topology::load(Path::new(name)).unwrap_or_else(|error| panic!("{error}"));
            assert!(!topology.hosts.is_empty(), "{name}");
        }
    }

    #[test]
    fn what_is_not_there_lists_the_names() {
        let error = Topology::load(Path::new("loopbakc")).unwrap_err().to_string();
        assert!(error.starts_with("loopbakc: no such file") && error.contains("two-hosts"), "{error}");
    }
}
