//! What a worker's engine has to do with others: it takes what came by their rings, and gives what the model has for them.

use hca_model::{PortKind, TunnelEvent, TunnelId};

use super::Engine;
use crate::workers::{Heard, is_unbound};

impl Engine {
    /// Lets the model have what came from other workers; `rung`: whether one of their bells, or the supervisor, may say something. Returns
    /// whether more waits; `None`: the supervisor has ended.
    pub(super) fn take_from_workers(&mut self, rung: bool) -> Option<bool> {
        let Self { joints: Some(joints), world, pacer, operator, links, .. } = self else {
            return Some(false);
        };
        let (mut now, mut ended) = (None, false);
        // What comes by a link comes together.
        let mut known = None;
        let more = joints.take(rung, |heard| {
            let now = *now.get_or_insert_with(|| pacer.catch_up(world));
            match heard {
                // The sender's clock may be ahead: who waited for that would fall behind.
                Heard::Message(link, at, message) => {
                    let unbound = is_unbound(&message, || match known {
                        Some((of, kind)) if of == link => kind == PortKind::Ethernet,
                        _ => {
                            let kind = links.near_port(link).map(|port| world.port_kind(port));
                            let (_, kind) = *known.insert((link, kind.unwrap_or_default()));
                            kind == PortKind::Ethernet
                        }
                    });
                    let at = world.start().unwrapped(at, now).min(now + pacer.quantum());
                    world.deliver(TunnelId(link.into()), at, message);
                    return unbound;
                }
                Heard::Lost(link) => world.tunnel_link(now, TunnelId(link.into()), None),
                Heard::Renewed(link) => {
                    world.tunnel_link(now, TunnelId(link.into()), None);
                    world.greet_tunnel(now, TunnelId(link.into()));
                }
                Heard::Control(stream) => operator.adopt(stream),
                Heard::End => ended = true,
            }
            false
        });
        (!ended).then_some(more)
    }

    /// Sends what the model has for other workers.
    pub(super) fn give_to_workers(&mut self) {
        let Self { joints: Some(joints), world, .. } = self else { return };
        // The time at which it is there goes with it.
        let start = world.start();
        world.take_leaving(|TunnelEvent { tunnel, at, message }| {
            if let Ok(link) = u16::try_from(tunnel.0) {
                joints.send(link, start.wrapped(at), message);
            }
        });
        let now = world.now();
        joints.flush(|link| world.tunnel_link(now, TunnelId(link.into()), None));
    }
}
