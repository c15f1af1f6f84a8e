//! PPCNT: what a port of either link layer counts, a group at a time.
//!
//! A port has its counters once: groups, agents and virtual ports tell the same of them. Source: PRM "PPCNT"; IEEE 802.3 clause 30, RFC 2863,
//! RFC 2819, RFC 3635 and IBTA 16.1.3.5 for what counters count; [`hca_spec::port_counters`] for where they are.

use hca_spec::port_counters::{
    EtherLikeCounters, EthernetExtendedCounters, LongPortCounters, PPCNT_COUNTERS, PPCNT_GROUP_BYTES,
    PhysicalCounters, PhysicalStatistics, Ppcnt, ppcnt_group,
};
use hca_spec::{put_be32, put_be64};

use crate::failure::{Failure, bad_param};
use crate::pma;
use crate::port::ethernet::{DURATION_UNIT, FCS, PriorityCounters};
use crate::port::{EthernetCounters, Port, PortCounters};

/// Counters of a group, as they are behind the head of the register.
type Group = [u8; PPCNT_GROUP_BYTES];

/// Reads them, or clears them: `value` is what came and what goes back. Cleared, they are all cleared, whatever group is named, since groups
/// share them; what comes back is what they were.
pub(super) fn access(port: &mut Port, write: bool, value: &mut [u8]) -> Result<(), Failure> {
    const ONLY_CLEARS: Failure = bad_param("PPCNT: op_mod: counters can't be written, only cleared (clr 1)");
    let head = Ppcnt::from_prefix_or_zero(value);
    let clear = head.get(Ppcnt::CLR) == 1;
    if write && !clear {
        return Err(ONLY_CLEARS);
    }
    let counters = match head.get(Ppcnt::GRP) {
        ppcnt_group::ALL if write => [0; PPCNT_GROUP_BYTES],
        group => read(port, group, head.get(Ppcnt::PRIO_TC))?,
    };
    value.iter_mut().skip(PPCNT_COUNTERS).zip(counters).for_each(|(to, from)| *to = from);
    if clear {
        match port.ethernet_mut() {
            Some(ethernet) => ethernet.counters = EthernetCounters::default(),
            None => port.counters = PortCounters::default(),
        }
    }
    Ok(())
}

fn read(port: &Port, group: u32, priority: u32) -> Result<Group, Failure> {
    const GROUP: Failure = bad_param("PPCNT: grp: the port does not have the group of counters");
    let known = match port.ethernet() {
        Some(ethernet) => of_ethernet(&ethernet.counters, group, priority)?,
        None => of_infiniband(&port.counters, group),
    };
    known.ok_or(GROUP.got(group))
}

/// `None`: there is no such group.
fn of_ethernet(c: &EthernetCounters, group: u32, priority: u32) -> Result<Option<Group>, Failure> {
    const PRIORITY: Failure = bad_param("PPCNT: prio_tc is beyond the priorities");
    let lines = Lines {
        received_bits: with_fcs(c.rx.octets, c.rx.frames).wrapping_mul(8),
        link_downed: c.link_down_events,
        ..Lines::default()
    };
    Ok(Some(match group {
        ppcnt_group::IEEE_802_3 => at(&ieee_802_3(c)),
        ppcnt_group::RFC_2863 => at(&rfc_2863(c)),
        ppcnt_group::RFC_2819 => at(&rfc_2819(c)),
        ppcnt_group::RFC_3635 => rfc_3635(c),
        ppcnt_group::ETHERNET_EXTENDED => extended(c),
        ppcnt_group::PER_PRIORITY => {
            let of = |all: &[PriorityCounters]| all.get(priority as usize).copied();
            let none = PRIORITY.got(priority);
            at(&per_priority(&of(&c.rx.priorities).ok_or(none)?, &of(&c.tx.priorities).ok_or(none)?))
        }
        ppcnt_group::PHYSICAL => lines.counters(),
        ppcnt_group::PHYSICAL_STATISTICS => lines.statistics(),
        ppcnt_group::INFINIBAND => infiniband(c),
        _ => return Ok(None),
    }))
}

/// `None`: there is no such group.
fn of_infiniband(c: &PortCounters, group: u32) -> Option<Group> {
    let lines = Lines {
        // Data is counted in words.
        received_bits: c.rcv_data.wrapping_mul(32),
        symbol_errors: c.symbol_errors.into(),
        link_downed: c.link_downed,
        recovered: c.link_error_recovery,
    };
    Some(match group {
        ppcnt_group::PHYSICAL => lines.counters(),
        ppcnt_group::PHYSICAL_STATISTICS => lines.statistics(),
        ppcnt_group::INFINIBAND => {
            let mut out = [0; PPCNT_GROUP_BYTES];
            out.iter_mut().zip(pma::counters(c)).for_each(|(to, from)| *to = from);
            out
        }
        ppcnt_group::INFINIBAND_LONG => infiniband_long(c),
        // Links of the model have none.
        ppcnt_group::PHYSICAL_RETRANSMISSION => [0; PPCNT_GROUP_BYTES],
        _ => return None,
    })
}

/// What is known of a port's lines.
#[derive(Default)]
struct Lines {
    /// Of packets; idle time is not counted.
    received_bits: u64,
    symbol_errors: u64,
    link_downed: u32,
    recovered: u32,
}

impl Lines {
    fn counters(&self) -> Group {
        let mut out = PhysicalCounters::new();
        out.set(PhysicalCounters::SYMBOL_ERRORS, self.symbol_errors);
        out.set(PhysicalCounters::LINK_DOWN_EVENTS, self.link_downed);
        out.set(PhysicalCounters::SUCCESSFUL_RECOVERY_EVENTS, self.recovered);
        *out.bytes()
    }

    /// Lines of the model have no bit errors. The firmware has no clock, so how long it has counted is left zero.
    fn statistics(&self) -> Group {
        use PhysicalStatistics as S;
        /// What adapters say of a line without errors: 15E-255 in `mlxlink` (a ConnectX-4, field use).
        const NO_ERRORS: (u32, u32) = (15, 255);
        let mut out = S::new();
        out.set(S::PHY_RECEIVED_BITS, self.received_bits).set(S::PHY_SYMBOL_ERRORS, self.symbol_errors);
        let (coefficient, magnitude) = NO_ERRORS;
        out.set(S::RAW_BER_COEF, coefficient).set(S::RAW_BER_MAGNITUDE, magnitude);
        let (coefficient, magnitude) =
            error_rate(self.symbol_errors, self.received_bits).unwrap_or(NO_ERRORS);
        out.set(S::EFFECTIVE_BER_COEF, coefficient).set(S::EFFECTIVE_BER_MAGNITUDE, magnitude);
        out.set(S::SYMBOL_BER_COEF, coefficient).set(S::SYMBOL_BER_MAGNITUDE, magnitude);
        *out.bytes()
    }
}

/// Errors by bits, as a number below 10 and by which power of ten it is divided; `None`: there are none. At most twenty steps.
fn error_rate(errors: u64, bits: u64) -> Option<(u32, u32)> {
    let bits = u128::from(bits.max(1));
    let mut scaled = u128::from(errors);
    let mut magnitude = 0;
    while errors != 0 && scaled < bits {
        scaled = scaled.saturating_mul(10);
        magnitude += 1;
    }
    let coefficient = u32::try_from(scaled / bits).unwrap_or(9).min(9);
    (errors != 0).then_some((coefficient, magnitude))
}

/// Counters of 64 bits at these places.
fn at(counters: &[(usize, u64)]) -> Group {
    let mut out = [0; PPCNT_GROUP_BYTES];
    counters.iter().for_each(|(at, n)| put_be64(&mut out, *at, *n));
    out
}

/// Bytes of frames with their frame check sequences.
fn with_fcs(octets: u64, frames: u64) -> u64 {
    octets.wrapping_add(frames.wrapping_mul(FCS))
}

fn ieee_802_3(c: &EthernetCounters) -> [(usize, u64); 14] {
    [
        (0x00, c.tx.frames),
        (0x08, c.rx.frames),
        (0x10, c.fcs_errors),
        (0x20, with_fcs(c.tx.octets, c.tx.frames)),
        (0x28, with_fcs(c.rx.octets, c.rx.frames)),
        (0x30, c.tx.multicast),
        (0x38, c.tx.broadcast),
        (0x40, c.rx.multicast),
        (0x48, c.rx.broadcast),
        (0x60, c.oversize),
        (0x70, c.tx.control),
        (0x78, c.rx.control),
        (0x88, c.rx.pause),
        (0x90, c.tx.pause),
    ]
}

fn rfc_2863(c: &EthernetCounters) -> [(usize, u64); 12] {
    [
        (0x00, with_fcs(c.rx.octets, c.rx.frames)),
        (0x08, c.rx.unicast),
        (0x10, c.rx.discards),
        (0x18, c.rx.errors),
        (0x28, with_fcs(c.tx.octets, c.tx.frames)),
        (0x30, c.tx.unicast),
        (0x38, c.tx.discards),
        (0x40, c.tx.errors),
        (0x48, c.rx.multicast),
        (0x50, c.rx.broadcast),
        (0x58, c.tx.multicast),
        (0x60, c.tx.broadcast),
    ]
}

fn rfc_2819(c: &EthernetCounters) -> Vec<(usize, u64)> {
    /// The histogram.
    const SIZES: usize = 0x58;
    let mut counters = vec![
        (0x00, c.rx.discards),
        (0x08, with_fcs(c.rx.octets, c.rx.frames)),
        (0x10, c.rx.frames),
        (0x18, c.rx.broadcast),
        (0x20, c.rx.multicast),
        (0x28, c.fcs_errors),
        (0x30, c.undersize),
        (0x38, c.oversize),
    ];
    counters.extend((SIZES..).step_by(8).zip(c.rx_sizes));
    counters
}

fn per_priority(rx: &PriorityCounters, tx: &PriorityCounters) -> [(usize, u64); 12] {
    [
        (0x00, with_fcs(rx.octets, rx.frames)),
        (0x20, rx.frames),
        (0x28, with_fcs(tx.octets, tx.frames)),
        (0x48, tx.frames),
        (0x50, rx.pause),
        (0x58, rx.pause_duration / DURATION_UNIT),
        (0x60, tx.pause),
        (0x68, tx.pause_duration / DURATION_UNIT),
        (0x70, rx.pause_transition),
        (0x78, rx.discards),
        (0x80, tx.stall_minor),
        (0x88, tx.stall_critical),
    ]
}

fn rfc_3635(c: &EthernetCounters) -> Group {
    use EtherLikeCounters as E;
    let mut out = E::new();
    out.set(E::DOT3STATS_FCS_ERRORS, c.fcs_errors).set(E::DOT3STATS_FRAME_TOO_LONGS, c.oversize);
    out.set(E::DOT3IN_PAUSE_FRAMES, c.rx.pause).set(E::DOT3OUT_PAUSE_FRAMES, c.tx.pause);
    *out.bytes()
}

fn extended(c: &EthernetCounters) -> Group {
    use EthernetExtendedCounters as E;
    let mut out = E::new();
    out.set(E::ECN_MARKED, c.ecn_marked);
    for (field, frames) in E::TX_SIZES.into_iter().zip(c.tx_sizes) {
        out.set(field, frames);
    }
    *out.bytes()
}

fn infiniband_long(c: &PortCounters) -> Group {
    use LongPortCounters as L;
    let mut out = L::new();
    for (field, n) in [
        (L::SYMBOL_ERROR_COUNTER, c.symbol_errors),
        (L::LINK_ERROR_RECOVERY_COUNTER, c.link_error_recovery),
        (L::LINK_DOWNED_COUNTER, c.link_downed),
        (L::PORT_RCV_ERRORS, c.rcv_errors),
        (L::PORT_RCV_REMOTE_PHYSICAL_ERRORS, c.rcv_remote_physical_errors),
        (L::PORT_RCV_SWITCH_RELAY_ERRORS, c.rcv_switch_relay_errors),
        (L::PORT_XMIT_DISCARDS, c.xmit_discards),
        (L::PORT_XMIT_CONSTRAINT_ERRORS, c.xmit_constraint_errors),
        (L::PORT_RCV_CONSTRAINT_ERRORS, c.rcv_constraint_errors),
        (L::VL_15_DROPPED, c.vl15_dropped),
    ] {
        out.set(field, n.into());
    }
    for (field, n) in [
        (L::PORT_XMIT_DATA, c.xmit_data),
        (L::PORT_RCV_DATA, c.rcv_data),
        (L::PORT_XMIT_PKTS, c.xmit_packets),
        (L::PORT_RCV_PKTS, c.rcv_packets),
        (L::PORT_XMIT_WAIT, c.xmit_wait),
        (L::PORT_UNICAST_XMIT_PKTS, c.unicast_xmit_packets()),
        (L::PORT_MULTICAST_XMIT_PKTS, c.multicast_xmit_packets),
        (L::PORT_UNICAST_RCV_PKTS, c.unicast_rcv_packets()),
        (L::PORT_MULTICAST_RCV_PKTS, c.multicast_rcv_packets),
    ] {
        out.set(field, n);
    }
    *out.bytes()
}

/// PortCounters (IBTA 16.1.3.5), as far as an Ethernet port has something to tell; they stop at their ends.
fn infiniband(c: &EthernetCounters) -> Group {
    /// Four bytes: symbol errors, recoveries, and how often the link went down.
    const LINK_DOWNED: usize = 0x0;
    /// Two bytes: packets with errors.
    const RCV_ERRORS: usize = 0x4;
    /// Lower two bytes: packets that could not leave.
    const XMIT_DISCARDS: usize = 0x8;
    let mut out = [0; PPCNT_GROUP_BYTES];
    let short = |n: u64| u32::from(u16::try_from(n).unwrap_or(u16::MAX));
    put_be32(&mut out, LINK_DOWNED, c.link_down_events.min(0xff));
    put_be32(&mut out, RCV_ERRORS, short(c.rx.errors) << 16);
    put_be32(&mut out, XMIT_DISCARDS, short(c.tx.discards));
    out
}

#[cfg(test)]
mod tests;
