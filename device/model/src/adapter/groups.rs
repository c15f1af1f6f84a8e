//! Groups of queues keep to their rates: an element ([`hca_firmware::icm::Element`]) that has sent goes on when its rate allows it, and so do those above it.
//!
//! A queue is held back before a packet, and what it sends is counted afterwards, so at most one packet is ahead of the rate. Weights have no part in it:
//! queues of a port take turns packet by packet.
//!
//! Source: `mlx5dv_sched_node_create(3)`.

use super::core::Core;
use crate::ground::time::Ps;

/// Picoseconds of a byte at 1 Mb/s.
const BYTE: u64 = 8_000_000;

impl Core<'_> {
    /// When a queue of that group may send, if not now.
    #[inline(always)]
    pub(crate) fn group_holds(&self, now: Ps, group: u32) -> Option<Ps> {
        if group == 0 { None } else { self.elements_hold(now, group) }
    }

    #[cold]
    fn elements_hold(&self, now: Ps, group: u32) -> Option<Ps> {
        let elements = self.function.fw.icm.elements(group).filter(|(_, element)| element.rate != 0);
        let free = elements.filter_map(|(number, _)| self.function.groups.get(&number)).max()?;
        (*free > now).then_some(*free)
    }

    /// A queue of that group sent bytes of frames or packets.
    #[inline(always)]
    pub(crate) fn group_sent(&mut self, now: Ps, group: u32, bytes: u64) {
        if group != 0 {
            self.elements_sent(now, group, bytes);
        }
    }

    #[cold]
    fn elements_sent(&mut self, now: Ps, group: u32, bytes: u64) {
        for (number, element) in self.function.fw.icm.elements(group) {
            let Some(took) = bytes.saturating_mul(BYTE).checked_div(element.rate.into()) else { continue };
            let free = self.function.groups.entry(number).or_insert(now);
            *free = now.max(*free) + Ps(took);
        }
    }
}
