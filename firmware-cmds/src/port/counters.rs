//! What a port counts.
//!
//! Source: IBTA 16.1.3.5 (PortCounters), 16.1.4.11 (PortCountersExtended).

/// Counters of a port (IBTA 16.1.3.5, 16.1.4.11). Data is counted in 4-byte words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "named as in PortCounters")]
pub struct PortCounters {
    /// All words sent, multicast included.
    pub xmit_data: u64,
    /// All words received, multicast included.
    pub rcv_data: u64,
    /// All packets sent, multicast included.
    pub xmit_packets: u64,
    /// All packets received, multicast included.
    pub rcv_packets: u64,
    pub multicast_xmit_packets: u64,
    pub multicast_rcv_packets: u64,
    pub multicast_xmit_data: u64,
    pub multicast_rcv_data: u64,
    pub symbol_errors: u32,
    /// Packets that came with errors; at an adapter, SMPs too that name an impossible route.
    pub rcv_errors: u32,
    /// Packets received that were already marked bad.
    pub rcv_remote_physical_errors: u32,
    /// Packets that could not leave: the port is down, or not active for what is no SMP; too long; too old.
    pub xmit_discards: u32,
    /// Packets not sent for their P_Key, or because they were raw.
    pub xmit_constraint_errors: u32,
    /// Packets received with a P_Key that the partition does not allow.
    pub rcv_constraint_errors: u32,
    pub link_error_recovery: u32,
    pub link_downed: u32,
    /// SMPs that came when there was no room for them.
    pub vl15_dropped: u32,
    /// Packets that a switch could not forward: no route, no virtual lane, or back where they came from.
    pub rcv_switch_relay_errors: u32,
    /// Ticks in which a packet was ready and had no credits.
    pub xmit_wait: u64,
}

/// A counter that stops at its end.
fn up(counter: &mut u32) {
    *counter = counter.saturating_add(1);
}

impl PortCounters {
    /// A packet of `len` bytes left.
    pub fn xmit(&mut self, len: usize) {
        self.xmit_packets = self.xmit_packets.wrapping_add(1);
        self.xmit_data = self.xmit_data.wrapping_add(len as u64 / 4);
    }

    /// A multicast packet of `len` bytes left.
    pub fn xmit_multicast(&mut self, len: usize) {
        self.xmit(len);
        self.multicast_xmit_packets = self.multicast_xmit_packets.wrapping_add(1);
        self.multicast_xmit_data = self.multicast_xmit_data.wrapping_add(len as u64 / 4);
    }

    /// A packet of `len` bytes came.
    pub fn rcv(&mut self, len: usize) {
        self.rcv_packets = self.rcv_packets.wrapping_add(1);
        self.rcv_data = self.rcv_data.wrapping_add(len as u64 / 4);
    }

    /// A multicast packet of `len` bytes came.
    pub fn rcv_multicast(&mut self, len: usize) {
        self.rcv(len);
        self.multicast_rcv_packets = self.multicast_rcv_packets.wrapping_add(1);
        self.multicast_rcv_data = self.multicast_rcv_data.wrapping_add(len as u64 / 4);
    }

    /// A packet came that has errors.
    pub fn rcv_error(&mut self) {
        up(&mut self.rcv_errors);
    }

    /// A packet could not leave.
    pub fn xmit_discard(&mut self) {
        up(&mut self.xmit_discards);
    }

    /// A packet that came by this port could not be forwarded.
    pub fn relay_error(&mut self) {
        up(&mut self.rcv_switch_relay_errors);
    }

    /// An SMP came and there was no room.
    pub fn vl15_drop(&mut self) {
        up(&mut self.vl15_dropped);
    }

    /// Packets sent that were not multicast.
    pub fn unicast_xmit_packets(&self) -> u64 {
        self.xmit_packets.wrapping_sub(self.multicast_xmit_packets)
    }

    /// Packets received that were not multicast.
    pub fn unicast_rcv_packets(&self) -> u64 {
        self.rcv_packets.wrapping_sub(self.multicast_rcv_packets)
    }

    /// Words sent that were not multicast.
    pub fn unicast_xmit_data(&self) -> u64 {
        self.xmit_data.wrapping_sub(self.multicast_xmit_data)
    }

    /// Words received that were not multicast.
    pub fn unicast_rcv_data(&self) -> u64 {
        self.rcv_data.wrapping_sub(self.multicast_rcv_data)
    }

    /// Adds another port's counters to these.
    pub fn add(&mut self, other: &Self) {
        // Taken apart, so that a new counter can't be forgotten.
        let Self {
            xmit_data,
            rcv_data,
            xmit_packets,
            rcv_packets,
            multicast_xmit_packets,
            multicast_rcv_packets,
            multicast_xmit_data,
            multicast_rcv_data,
            symbol_errors,
            rcv_errors,
            rcv_remote_physical_errors,
            xmit_discards,
            xmit_constraint_errors,
            rcv_constraint_errors,
            link_error_recovery,
            link_downed,
            vl15_dropped,
            rcv_switch_relay_errors,
            xmit_wait,
        } = other;
        for (sum, value) in [
            (&mut self.xmit_data, xmit_data),
            (&mut self.rcv_data, rcv_data),
            (&mut self.xmit_packets, xmit_packets),
            (&mut self.rcv_packets, rcv_packets),
            (&mut self.multicast_xmit_packets, multicast_xmit_packets),
            (&mut self.multicast_rcv_packets, multicast_rcv_packets),
            (&mut self.multicast_xmit_data, multicast_xmit_data),
            (&mut self.multicast_rcv_data, multicast_rcv_data),
            (&mut self.xmit_wait, xmit_wait),
        ] {
            *sum = sum.wrapping_add(*value);
        }
        for (sum, value) in [
            (&mut self.symbol_errors, symbol_errors),
            (&mut self.rcv_errors, rcv_errors),
            (&mut self.rcv_remote_physical_errors, rcv_remote_physical_errors),
            (&mut self.xmit_discards, xmit_discards),
            (&mut self.xmit_constraint_errors, xmit_constraint_errors),
            (&mut self.rcv_constraint_errors, rcv_constraint_errors),
            (&mut self.link_error_recovery, link_error_recovery),
            (&mut self.link_downed, link_downed),
            (&mut self.vl15_dropped, vl15_dropped),
            (&mut self.rcv_switch_relay_errors, rcv_switch_relay_errors),
        ] {
            *sum = sum.saturating_add(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_adds_up() {
        let mut c = PortCounters::default();
        c.xmit(64);
        c.xmit_multicast(32);
        c.rcv_multicast(16);
        assert_eq!((c.xmit_packets, c.xmit_data, c.unicast_xmit_packets()), (2, 24, 1));
        assert_eq!((c.unicast_xmit_data(), c.unicast_rcv_packets(), c.multicast_rcv_data), (16, 0, 4));
    }

    #[test]
    fn ports_add_up() {
        let mut sum = PortCounters { rcv_errors: u32::MAX, xmit_wait: 2, ..Default::default() };
        sum.add(&PortCounters { rcv_errors: 1, xmit_wait: 3, vl15_dropped: 4, ..Default::default() });
        assert_eq!((sum.rcv_errors, sum.xmit_wait, sum.vl15_dropped), (u32::MAX, 5, 4));
    }
}
