//! The performance management agent (PMA) of the port.
//!
//! Source: IBTA 16.1.3.1 (ClassPortInfo), 16.1.3.5 (PortCounters), 16.1.4.11 (PortCountersExtended).

use hca_spec::mad::{MAD_SIZE, Mad, SMP_DATA, STATUS_BAD_ATTRIBUTE, STATUS_INVALID_VALUE, attr};
use hca_spec::{be32, be64};

use crate::firmware::Firmware;
use crate::port::PortCounters;

/// PortSelect that means every port.
const ALL_PORTS: u8 = 0xff;
/// CapabilityMask: every port can be selected at once (bit 8), counters of 64 bits are there (bit 9).
const CAPABILITIES: u16 = 1 << 8 | 1 << 9;

/// Attribute data of a performance management datagram: the rest of it from byte 64 on.
type Data = [u8; DATA];
const DATA: usize = MAD_SIZE - SMP_DATA;

fn put<const N: usize>(data: &mut Data, at: usize, bytes: [u8; N]) {
    if let Some(to) = data.get_mut(at..).and_then(|d| d.first_chunk_mut()) {
        *to = bytes;
    }
}

/// The low bytes of a counter, or all ones if it does not fit: counters stop at their end.
fn short<const N: usize>(value: u64) -> [u8; N] {
    let bytes = value.to_be_bytes();
    match bytes.last_chunk::<N>() {
        Some(low) if value >> (8 * N).min(63) == 0 => *low,
        _ => [0xff; N],
    }
}

fn counters(c: &PortCounters, data: &mut Data) {
    put(data, 4, short::<2>(c.symbol_errors.into()));
    put(data, 6, short::<1>(c.link_error_recovery.into()));
    put(data, 7, short::<1>(c.link_downed.into()));
    put(data, 8, short::<2>(c.rcv_errors.into()));
    put(data, 10, short::<2>(c.rcv_remote_physical_errors.into()));
    put(data, 14, short::<2>(c.xmit_discards.into()));
    put(data, 16, short::<1>(c.xmit_constraint_errors.into()));
    put(data, 17, short::<1>(c.rcv_constraint_errors.into()));
    put(data, 22, short::<2>(c.vl15_dropped.into()));
    put(data, 24, short::<4>(c.xmit_data));
    put(data, 28, short::<4>(c.rcv_data));
    put(data, 32, short::<4>(c.xmit_packets));
    put(data, 36, short::<4>(c.rcv_packets));
}

/// Sets the counters that the mask selects, mostly to zero.
fn set_counters(c: &mut PortCounters, select: u32, new: &Data) {
    let byte = |at: usize| u32::from(new.get(at).copied().unwrap_or(0));
    let half = |at: usize| byte(at) << 8 | byte(at + 1);
    for (bit, counter, value) in [
        (0, &mut c.symbol_errors, half(4)),
        (1, &mut c.link_error_recovery, byte(6)),
        (2, &mut c.link_downed, byte(7)),
        (3, &mut c.rcv_errors, half(8)),
        (4, &mut c.rcv_remote_physical_errors, half(10)),
        (6, &mut c.xmit_discards, half(14)),
        (7, &mut c.xmit_constraint_errors, byte(16)),
        (8, &mut c.rcv_constraint_errors, byte(17)),
        (11, &mut c.vl15_dropped, half(22)),
    ] {
        if select >> bit & 1 == 1 {
            *counter = value;
        }
    }
    for (bit, counter, at) in [
        (12, &mut c.xmit_data, 24),
        (13, &mut c.rcv_data, 28),
        (14, &mut c.xmit_packets, 32),
        (15, &mut c.rcv_packets, 36),
    ] {
        if select >> bit & 1 == 1 {
            *counter = be32(new, at).into();
        }
    }
}

/// PortCountersExtended in order: xmit and rcv data, xmit and rcv packets, unicast both, multicast both.
const EXTENDED: usize = 8;

fn extended(c: &PortCounters, data: &mut Data) {
    let values = [
        c.xmit_data,
        c.rcv_data,
        c.xmit_packets,
        c.rcv_packets,
        c.unicast_xmit_packets(),
        c.unicast_rcv_packets(),
        c.multicast_xmit_packets,
        c.multicast_rcv_packets,
    ];
    for (i, value) in values.into_iter().enumerate() {
        put(data, 8 + i * 8, value.to_be_bytes());
    }
}

fn set_extended(c: &mut PortCounters, select: u32, new: &Data) {
    let counters: [Option<&mut u64>; EXTENDED] = [
        Some(&mut c.xmit_data),
        Some(&mut c.rcv_data),
        Some(&mut c.xmit_packets),
        Some(&mut c.rcv_packets),
        // Unicast is what is not multicast: it can't be set on its own.
        None,
        None,
        Some(&mut c.multicast_xmit_packets),
        Some(&mut c.multicast_rcv_packets),
    ];
    for (i, counter) in counters.into_iter().enumerate() {
        if select >> i & 1 == 1
            && let Some(counter) = counter
        {
            *counter = be64(new, 8 + i * 8);
        }
    }
}

impl Firmware {
    /// Get or Set of performance management; the status.
    pub(crate) fn performance(&mut self, set: bool, mad: &Mad, response: &mut Mad) -> u32 {
        let c = &mut self.port.counters;
        let (Some(new), Some(data)) =
            (mad.bytes().last_chunk::<DATA>(), response.bytes_mut().last_chunk_mut::<DATA>())
        else {
            return STATUS_BAD_ATTRIBUTE;
        };
        let select = be32(new, 0);
        let (port, select) = ((select >> 16) as u8, select & 0xffff);
        let attribute = mad.get(Mad::ATTRIBUTE_ID);
        match attribute {
            attr::CLASS_PORT_INFO if !set => {
                data.fill(0);
                // Base and class version.
                put(data, 0, [1, 1]);
                put(data, 2, CAPABILITIES.to_be_bytes());
                return 0;
            }
            attr::PORT_COUNTERS | attr::PORT_COUNTERS_EXT => {}
            _ => return STATUS_BAD_ATTRIBUTE,
        }
        if port != 1 && port != ALL_PORTS {
            return STATUS_INVALID_VALUE;
        }
        let extended_width = attribute == attr::PORT_COUNTERS_EXT;
        if set && extended_width {
            set_extended(c, select, new);
        } else if set {
            set_counters(c, select, new);
        }
        data.fill(0);
        put(data, 1, [port]);
        put(data, 2, (select as u16).to_be_bytes());
        if extended_width {
            extended(c, data)
        } else {
            counters(c, data)
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Config;
    use hca_spec::mad::{CLASS_PERF, METHOD_GET, METHOD_SET};

    fn ask(f: &mut Firmware, method: u32, attribute: u32, data: &[u8]) -> (u32, Data) {
        let mut m = Mad::new();
        m.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_PERF).set(Mad::CLASS_VERSION, 1);
        m.set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute);
        m.smp_data_mut().bytes_mut()[..data.len()].copy_from_slice(data);
        let r = f.mad(1, &m, &mut Vec::new()).unwrap();
        (r.get(Mad::STATUS), *r.bytes().last_chunk().unwrap())
    }

    #[test]
    fn golden_class_port_info() {
        let mut f = Firmware::new(Config::default());
        let (status, data) = ask(&mut f, METHOD_GET, attr::CLASS_PORT_INFO, &[]);
        assert_eq!((status, &data[..8]), (0, &[1, 1, 3, 0, 0, 0, 0, 0][..]));
    }

    #[test]
    fn counters_stop_at_their_end() {
        let mut f = Firmware::new(Config::default());
        f.port.counters.xmit_data = 1 << 32;
        f.port.counters.rcv_packets = 0x0102_0304;
        f.port.counters.link_downed = 300;
        f.port.counters.rcv_errors = 0x1234;
        let (status, data) = ask(&mut f, METHOD_GET, attr::PORT_COUNTERS, &[0, 1]);
        assert_eq!(status, 0);
        assert_eq!((data[1], data[7], &data[8..10]), (1, 0xff, &[0x12, 0x34][..]));
        assert_eq!((&data[24..28], &data[36..40]), (&[0xff; 4][..], &[1, 2, 3, 4][..]));
        let (_, data) = ask(&mut f, METHOD_GET, attr::PORT_COUNTERS_EXT, &[0, 1]);
        assert_eq!(data[8..16], (1u64 << 32).to_be_bytes());
        f.port.counters.rcv_multicast(4);
        let (_, data) = ask(&mut f, METHOD_GET, attr::PORT_COUNTERS_EXT, &[0, 1]);
        assert_eq!(
            (&data[48..56], &data[64..72]),
            (&0x0102_0304u64.to_be_bytes()[..], &1u64.to_be_bytes()[..])
        );
    }

    #[test]
    fn only_what_is_selected_is_set() {
        let mut f = Firmware::new(Config::default());
        let c = &mut f.port.counters;
        (c.symbol_errors, c.rcv_errors, c.xmit_packets, c.rcv_packets) = (5, 6, 7, 8);
        // Select receive errors (3) and sent packets (14).
        let (_, data) = ask(&mut f, METHOD_SET, attr::PORT_COUNTERS, &[0, 1, 0x40, 0x08]);
        assert_eq!((&data[4..6], &data[8..10]), (&[0, 5][..], &[0, 0][..]));
        let c = &f.port.counters;
        assert_eq!((c.symbol_errors, c.rcv_errors, c.xmit_packets, c.rcv_packets), (5, 0, 0, 8));
        ask(&mut f, METHOD_SET, attr::PORT_COUNTERS_EXT, &[0, 1, 0, 0x08]);
        assert_eq!(f.port.counters.rcv_packets, 0);
    }

    #[test]
    fn refusals() {
        let mut f = Firmware::new(Config::default());
        assert_eq!(ask(&mut f, METHOD_GET, attr::PORT_COUNTERS, &[0, 2]).0, STATUS_INVALID_VALUE);
        assert_eq!(ask(&mut f, METHOD_GET, attr::PORT_COUNTERS, &[0, 0xff]).0, 0, "every port");
        assert_eq!(ask(&mut f, METHOD_GET, 0x7777, &[]).0, STATUS_BAD_ATTRIBUTE);
        assert_eq!(ask(&mut f, METHOD_SET, attr::CLASS_PORT_INFO, &[]).0, STATUS_BAD_ATTRIBUTE);
    }
}
