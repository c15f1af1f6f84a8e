//! Performance management (PMA) of an adapter's port and of a switch's ports.
//!
//! Source: IBTA 16.1.3.1 (ClassPortInfo), 16.1.3.5 (PortCounters), 16.1.4.11 (PortCountersExtended).

use hca_spec::layout::{Field, Field64};
use hca_spec::mad::{
    ClassPortInfo, Mad, PortCounters as Short, PortCountersExtended as Long, SMP_DATA, STATUS_BAD_ATTRIBUTE,
    STATUS_INVALID_VALUE, attr, perf_cap,
};

use crate::port::{Port, PortCounters};

/// PortSelect that means every port.
const ALL_PORTS: u32 = 0xff;
/// Where the bits of CounterSelect2 begin among all.
const SELECT2: u32 = 16;

/// The counters of PortCounters with up to 32 bits: bit of CounterSelect, place, and where they are kept.
type Narrow = (u32, Field<Short>, fn(&mut PortCounters) -> &mut u32);
const NARROW: [Narrow; 10] = [
    (0, Short::SYMBOL_ERRORS, |c| &mut c.symbol_errors),
    (1, Short::LINK_ERROR_RECOVERY, |c| &mut c.link_error_recovery),
    (2, Short::LINK_DOWNED, |c| &mut c.link_downed),
    (3, Short::RCV_ERRORS, |c| &mut c.rcv_errors),
    (4, Short::RCV_REMOTE_PHYSICAL_ERRORS, |c| &mut c.rcv_remote_physical_errors),
    (5, Short::RCV_SWITCH_RELAY_ERRORS, |c| &mut c.rcv_switch_relay_errors),
    (6, Short::XMIT_DISCARDS, |c| &mut c.xmit_discards),
    (7, Short::XMIT_CONSTRAINT_ERRORS, |c| &mut c.xmit_constraint_errors),
    (8, Short::RCV_CONSTRAINT_ERRORS, |c| &mut c.rcv_constraint_errors),
    (11, Short::VL15_DROPPED, |c| &mut c.vl15_dropped),
];
/// Those that are kept with 64 bits.
type Wide = (u32, Field<Short>, fn(&mut PortCounters) -> &mut u64);
const WIDE: [Wide; 5] = [
    (12, Short::XMIT_DATA, |c| &mut c.xmit_data),
    (13, Short::RCV_DATA, |c| &mut c.rcv_data),
    (14, Short::XMIT_PACKETS, |c| &mut c.xmit_packets),
    (15, Short::RCV_PACKETS, |c| &mut c.rcv_packets),
    (SELECT2, Short::XMIT_WAIT, |c| &mut c.xmit_wait),
];
/// The counters of PortCountersExtended that can be set. Unicast is what is not multicast: it can't be set on its
/// own.
type Extended = (u32, Field64<Long>, fn(&mut PortCounters) -> &mut u64);
const EXTENDED: [Extended; 6] = [
    (0, Long::XMIT_DATA, |c| &mut c.xmit_data),
    (1, Long::RCV_DATA, |c| &mut c.rcv_data),
    (2, Long::XMIT_PACKETS, |c| &mut c.xmit_packets),
    (3, Long::RCV_PACKETS, |c| &mut c.rcv_packets),
    (6, Long::MULTICAST_XMIT_PACKETS, |c| &mut c.multicast_xmit_packets),
    (7, Long::MULTICAST_RCV_PACKETS, |c| &mut c.multicast_rcv_packets),
];

fn short(mut c: PortCounters) -> Short {
    let mut out = Short::new();
    // Counters stop at their end.
    for (_, field, counter) in NARROW {
        out.set(field, (*counter(&mut c)).min(field.max()));
    }
    for (_, field, counter) in WIDE {
        out.set(field, u32::try_from(*counter(&mut c)).unwrap_or(u32::MAX));
    }
    out
}

/// The counters of PortCounters as they are behind what selects ports and counters.
pub(crate) fn counters(c: &PortCounters) -> impl Iterator<Item = u8> + use<> {
    (*short(*c).bytes()).into_iter().skip(Short::SYMBOL_ERRORS.offset())
}

fn set_short(c: &mut PortCounters, select: u32, new: &Short) {
    for (bit, field, counter) in NARROW {
        if select >> bit & 1 == 1 {
            *counter(c) = new.get(field);
        }
    }
    for (bit, field, counter) in WIDE {
        if select >> bit & 1 == 1 {
            *counter(c) = new.get(field).into();
        }
    }
}

fn long(mut c: PortCounters) -> Long {
    let mut out = Long::new();
    for (_, field, counter) in EXTENDED {
        out.set(field, *counter(&mut c));
    }
    out.set(Long::UNICAST_XMIT_PACKETS, c.unicast_xmit_packets());
    out.set(Long::UNICAST_RCV_PACKETS, c.unicast_rcv_packets());
    out
}

fn set_long(c: &mut PortCounters, select: u32, new: &Long) {
    for (bit, field, counter) in EXTENDED {
        if select >> bit & 1 == 1 {
            *counter(c) = new.get(field);
        }
    }
}

/// Get or Set of performance management at the ports of a node; the status. Counters of all ports at once are
/// their sum, without a switch's port 0, whose packets an external port counted too.
pub(crate) fn performance(ports: &mut [Port], set: bool, mad: &Mad, response: &mut Mad) -> u32 {
    let Some(request) = mad.bytes().get(SMP_DATA..) else { return STATUS_BAD_ATTRIBUTE };
    let (new_short, new_long) = (Short::from_prefix_or_zero(request), Long::from_prefix_or_zero(request));
    let attribute = mad.get(Mad::ATTRIBUTE_ID);
    let extended = match attribute {
        attr::CLASS_PORT_INFO if !set => {
            let mut info = ClassPortInfo::new();
            info.set(ClassPortInfo::BASE_VERSION, 1).set(ClassPortInfo::CLASS_VERSION, 1);
            let capabilities = perf_cap::ALL_PORT_SELECT | perf_cap::EXTENDED_WIDTH | perf_cap::XMIT_WAIT;
            info.set(ClassPortInfo::CAPABILITY_MASK, capabilities);
            // 4.096 us * 2^16: a quarter of a second, as PortInfo says.
            info.set(ClassPortInfo::RESP_TIME_VALUE, 16);
            put(response, info.bytes());
            return 0;
        }
        attr::PORT_COUNTERS => false,
        attr::PORT_COUNTERS_EXT => true,
        _ => return STATUS_BAD_ATTRIBUTE,
    };
    let port = new_short.get(Short::PORT_SELECT);
    let meant = |p: &&mut Port| match port {
        ALL_PORTS => p.number() != 0,
        _ => u32::from(p.number()) == port,
    };
    let mut selected: Vec<&mut Port> = ports.iter_mut().filter(meant).collect();
    if selected.is_empty() {
        return STATUS_INVALID_VALUE;
    }
    let first = new_short.get(Short::COUNTER_SELECT);
    let second = new_short.get(Short::COUNTER_SELECT2);
    let mut sum = PortCounters::default();
    for port in &mut selected {
        match (set, extended) {
            (true, false) => set_short(&mut port.counters, first | second << SELECT2, &new_short),
            (true, true) => set_long(&mut port.counters, first, &new_long),
            (false, _) => {}
        }
        sum.add(&port.counters);
    }
    if extended {
        let mut out = long(sum);
        out.set(Long::PORT_SELECT, port).set(Long::COUNTER_SELECT, first);
        put(response, out.bytes());
    } else {
        let mut out = short(sum);
        out.set(Short::PORT_SELECT, port).set(Short::COUNTER_SELECT, first);
        out.set(Short::COUNTER_SELECT2, second);
        put(response, out.bytes());
    }
    0
}

/// Puts an attribute into the answer; what is behind it is zero.
fn put(response: &mut Mad, attribute: &[u8]) {
    let bytes = attribute.iter().copied().chain(std::iter::repeat(0));
    response.bytes_mut().iter_mut().skip(SMP_DATA).zip(bytes).for_each(|(to, from)| *to = from);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Role;
    use hca_spec::mad::{MAD_SIZE, METHOD_GET, METHOD_SET};

    type Data = [u8; MAD_SIZE - SMP_DATA];

    fn port() -> Port {
        Port::new(Role::Adapter, 1, 1, "")
    }

    fn ask(port: &mut Port, method: u32, attribute: u32, data: &[u8]) -> (u32, Data) {
        let mut m = Mad::new();
        m.set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute);
        m.smp_data_mut().bytes_mut()[..data.len()].copy_from_slice(data);
        let mut r = m;
        let status = performance(std::slice::from_mut(port), method == METHOD_SET, &m, &mut r);
        (status, *r.bytes().last_chunk().unwrap())
    }

    #[test]
    fn golden_class_port_info() {
        let mut p = port();
        let (status, data) = ask(&mut p, METHOD_GET, attr::CLASS_PORT_INFO, &[]);
        assert_eq!((status, &data[..8]), (0, &[1, 1, 0x13, 0, 0, 0, 0, 16][..]));
    }

    #[test]
    fn counters_stop_at_their_end() {
        let mut p = port();
        p.counters.xmit_data = 1 << 32;
        p.counters.rcv_packets = 0x0102_0304;
        p.counters.link_downed = 300;
        p.counters.rcv_errors = 0x1234;
        let (status, data) = ask(&mut p, METHOD_GET, attr::PORT_COUNTERS, &[0, 1]);
        assert_eq!(status, 0);
        assert_eq!((data[1], data[7], &data[8..10]), (1, 0xff, &[0x12, 0x34][..]));
        assert_eq!((&data[24..28], &data[36..40]), (&[0xff; 4][..], &[1, 2, 3, 4][..]));
        let (_, data) = ask(&mut p, METHOD_GET, attr::PORT_COUNTERS_EXT, &[0, 1]);
        assert_eq!(data[8..16], (1u64 << 32).to_be_bytes());
        p.counters.rcv_multicast(4);
        let (_, data) = ask(&mut p, METHOD_GET, attr::PORT_COUNTERS_EXT, &[0, 1]);
        assert_eq!(
            (&data[48..56], &data[64..72]),
            (&0x0102_0304u64.to_be_bytes()[..], &1u64.to_be_bytes()[..])
        );
    }

    #[test]
    fn only_what_is_selected_is_set() {
        let mut p = port();
        let c = &mut p.counters;
        (c.symbol_errors, c.rcv_errors, c.xmit_packets, c.rcv_packets) = (5, 6, 7, 8);
        // Select receive errors (3) and sent packets (14).
        let (_, data) = ask(&mut p, METHOD_SET, attr::PORT_COUNTERS, &[0, 1, 0x40, 0x08]);
        assert_eq!((&data[4..6], &data[8..10]), (&[0, 5][..], &[0, 0][..]));
        let c = &p.counters;
        assert_eq!((c.symbol_errors, c.rcv_errors, c.xmit_packets, c.rcv_packets), (5, 0, 0, 8));
        ask(&mut p, METHOD_SET, attr::PORT_COUNTERS_EXT, &[0, 1, 0, 0x08]);
        assert_eq!(p.counters.rcv_packets, 0);
    }

    #[test]
    fn refusals() {
        let mut p = port();
        assert_eq!(ask(&mut p, METHOD_GET, attr::PORT_COUNTERS, &[0, 2]).0, STATUS_INVALID_VALUE);
        assert_eq!(ask(&mut p, METHOD_GET, attr::PORT_COUNTERS, &[0, 0xff]).0, 0, "every port");
        assert_eq!(ask(&mut p, METHOD_GET, 0x7777, &[]).0, STATUS_BAD_ATTRIBUTE);
        assert_eq!(ask(&mut p, METHOD_SET, attr::CLASS_PORT_INFO, &[]).0, STATUS_BAD_ATTRIBUTE);
    }

    /// Places of the counters that a Set of every kind selects, and what stays.
    #[test]
    fn counters_beyond_the_first() {
        let mut p = port();
        let c = &mut p.counters;
        (c.rcv_switch_relay_errors, c.xmit_discards, c.vl15_dropped, c.xmit_wait) = (1, 2, 3, 1 << 32 | 4);
        let (_, data) = ask(&mut p, METHOD_GET, attr::PORT_COUNTERS, &[0, 1]);
        assert_eq!((&data[12..16], &data[22..24]), (&[0, 1, 0, 2][..], &[0, 3][..]));
        assert_eq!(data[40..44], [0xff; 4]);
        // CounterSelect2 is byte 18.
        let mut clear = [0; 44];
        (clear[1], clear[18]) = (1, 1);
        let (_, data) = ask(&mut p, METHOD_SET, attr::PORT_COUNTERS, &clear);
        assert_eq!((&data[12..16], &data[40..44], data[18]), (&[0, 1, 0, 2][..], &[0; 4][..], 1));
        assert_eq!(p.counters.xmit_wait, 0);
    }

    #[test]
    fn all_ports_of_a_switch() {
        let mut ports: Vec<_> = [Role::SwitchZero, Role::External, Role::External]
            .into_iter()
            .zip(0..)
            .map(|(role, n)| Port::new(role, n, 1, ""))
            .collect();
        for p in &mut ports {
            p.counters.xmit_discards = 10 + u32::from(p.number());
        }
        let mut ask = |set, port: u32, select| {
            let (mut m, mut r) = (Mad::new(), Mad::new());
            m.set(Mad::ATTRIBUTE_ID, attr::PORT_COUNTERS);
            hca_spec::put_be32(m.bytes_mut(), SMP_DATA, port << 16 | select);
            let status = performance(&mut ports, set, &m, &mut r);
            (status, hca_spec::be32(r.bytes(), SMP_DATA + 12) & 0xffff)
        };
        assert_eq!([ask(false, 0, 0), ask(false, 2, 0), ask(false, 255, 0)], [(0, 10), (0, 12), (0, 23)]);
        assert_eq!(ask(false, 3, 0).0, STATUS_INVALID_VALUE);
        assert_eq!((ask(true, 255, 1 << 6), ask(false, 0, 0)), ((0, 0), (0, 10)));
    }
}
