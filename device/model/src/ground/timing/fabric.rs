//! What ports and switches take.

use super::Timing;
use crate::ground::time::Ps;

impl Timing {
    /// From a packet's first bit into a switch to its first bit out of it, if nothing is in its way.
    pub const fn hop(&self) -> Ps {
        self.profile.fabric.hop_ns.0
    }

    /// What of a hop MAC and PHY take at a port of a switch, in either direction: a part of what the link takes.
    pub const fn switch_phy(&self) -> Ps {
        let (hop, phy) = (self.hop().0, self.profile.fabric.switch_phy_ns.0.0);
        Ps(if phy < hop / 2 { phy } else { hop / 2 })
    }

    /// The rest of a hop: from where the header is decoded to where the packet may be sent.
    pub const fn hop_inside(&self) -> Ps {
        self.hop().since(self.switch_phy().times(2))
    }

    /// Bytes that a switch's port takes in for each virtual lane.
    pub const fn switch_buffer(&self) -> usize {
        self.profile.fabric.switch_buffer.get() as usize
    }

    /// Bytes that an adapter's port takes in for each virtual lane.
    pub const fn adapter_buffer(&self) -> usize {
        self.profile.fabric.adapter_buffer.get() as usize
    }

    /// Bytes of packets for each virtual lane that an adapter gathers or keeps before the link takes them.
    pub const fn egress_buffer(&self) -> usize {
        self.profile.fabric.egress_bytes.get() as usize
    }

    /// From a datagram to its agent's answer.
    pub const fn agent(&self) -> Ps {
        self.profile.fabric.agent_us.0
    }

    /// Datagrams of management that wait at a port, or for a switch's agent, at most.
    pub const fn agent_queue(&self) -> usize {
        self.profile.fabric.agent_queue.get() as usize
    }
}
