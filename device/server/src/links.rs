//! The links that a server has: their names, and taking their cables out and in.

use hca_model::{PortRef, Ps, World};
use serde_json::{Value, json};

use crate::topology::{End, Link, Topology};

/// One link. Its place among the others is its number in the world.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) link: Link,
    /// The ports at its ends, as far as they are here.
    pub(crate) ports: [Option<PortRef>; 2],
    /// Its number as a tunnel, if one of the ends is elsewhere.
    pub(crate) tunnel: Option<u16>,
    /// The cable is in.
    pub(crate) cable: bool,
}

/// All links of a server.
#[derive(Debug, Default)]
pub(crate) struct Links {
    rows: Vec<Row>,
    /// Adapters by name, with what they are called if their host has no other.
    adapters: Vec<(String, Option<String>)>,
}

impl Links {
    /// These links of that topology.
    pub(crate) fn new(topology: &Topology, rows: Vec<Row>) -> Links {
        let short = |host: &crate::topology::Host| (host.hcas.len() == 1).then(|| host.name.clone());
        let adapters =
            topology.hcas().map(|(host, hca)| (format!("{}/{}", host.name, hca.name), short(host))).collect();
        Links { rows, adapters }
    }

    /// All links of a topology, for whoever has none of their ends.
    pub(crate) fn of(topology: &Topology) -> Links {
        let row = |link: &Link| Row { link: link.clone(), ports: [None; 2], tunnel: None, cable: true };
        Links::new(topology, topology.links.iter().map(row).collect())
    }

    /// Takes the cable of the link at `target` out, or puts it in.
    ///
    /// # Errors
    /// If `target` names no port with a link, with what there is.
    pub(crate) fn set(
        &mut self,
        world: &mut World,
        now: Ps,
        target: &str,
        state: &str,
    ) -> Result<Value, String> {
        let up = match state {
            "up" => true,
            "down" => false,
            other => return Err(format!("a link can be \"up\" or \"down\", not {other:?}")),
        };
        let number = self.find(target)?;
        let Some(row) = self.rows.get_mut(number) else { return Err("no such link".into()) };
        row.cable = up;
        world.set_cable(now, number, up);
        let [a, b] = &row.link.between;
        tracing::info!("link {a} - {b}: cable {}", if up { "in" } else { "out" });
        Ok(json!({ "between": row.link.between, "cable": up }))
    }

    /// The link at `HOST`, `HOST:PORT`, `HOST/HCA`, `HOST/HCA:PORT`, `SWITCH:PORT` or `SWITCH/PORT`.
    ///
    /// # Errors
    /// If `target` names no port with a link, with what there is.
    pub(crate) fn find(&self, target: &str) -> Result<usize, String> {
        let found = self
            .rows
            .iter()
            .position(|row| row.link.between.iter().any(|end| self.names(end).iter().any(|n| n == target)));
        found.ok_or_else(|| {
            let node = target.split([':', '/']).next().unwrap_or_default();
            let of_host: Vec<_> = self
                .adapters
                .iter()
                .map(|(id, _)| id.as_str())
                .filter(|id| id.split('/').next() == Some(node))
                .collect();
            let known: Vec<_> = self
                .rows
                .iter()
                .flat_map(|row| &row.link.between)
                .filter_map(|end| self.names(end).into_iter().next())
                .collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            if target == node && of_host.len() > 1 {
                return format!("host {node} has several adapters: {}", of_host.join(", "));
            }
            format!("no link at {target:?}; ports with a link: {known}")
        })
    }

    /// The link that is a tunnel with this number.
    pub(crate) fn of_tunnel(&self, tunnel: u16) -> Option<&Link> {
        self.rows.iter().find(|row| row.tunnel == Some(tunnel)).map(|row| &row.link)
    }

    /// The port here of the link that is a tunnel with this number.
    pub(crate) fn near_port(&self, tunnel: u16) -> Option<PortRef> {
        self.rows.iter().find(|row| row.tunnel == Some(tunnel))?.ports.into_iter().flatten().next()
    }

    /// What a user may call an end, the clearest first.
    fn names(&self, end: &End) -> Vec<String> {
        match end {
            // A link that leaves the model is at its other end, too.
            End::Outside { .. } | End::Nic { .. } => vec![end.to_string()],
            End::Switch { switch, port } => vec![format!("{switch}:{port}"), format!("{switch}/{port}")],
            End::Hca { host, hca, port } => {
                let id = format!("{host}/{hca}");
                let short =
                    self.adapters.iter().find(|(adapter, _)| *adapter == id).and_then(|(_, s)| s.clone());
                let mut names = vec![format!("{id}:{port}")];
                names.extend(short.iter().map(|short| format!("{short}:{port}")));
                if *port == 1 {
                    names.insert(0, id);
                    names.extend(short);
                }
                names
            }
        }
    }

    /// All links with their states.
    pub(crate) fn list(&self, world: &World, is_joined: impl Fn(u16) -> bool) -> Value {
        let rows = self.rows.iter().enumerate().map(|(number, row)| {
            let Row { link, ports, tunnel, cable } = row;
            let mut value = json!({
                "between": link.between,
                "rate": link.rate,
                "width": link.width,
                "cable": cable,
                "up": world.link_is_up(number),
            });
            if let (Some(map), Some(tunnel)) = (value.as_object_mut(), tunnel) {
                map.insert("here".into(), ports.iter().position(Option::is_some).into());
                map.insert("outside".into(), link.leaves().into());
                map.insert("peer".into(), is_joined(*tunnel).into());
            }
            value
        });
        json!({ "links": rows.collect::<Vec<_>>() })
    }
}
