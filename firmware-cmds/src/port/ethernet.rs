//! What a port has that is Ethernet: its address, its RoCE addresses, flow control and counters.
//!
//! Source: IEEE 802.3 clauses 4, 30 and 31 (MAC, its counters, PAUSE), IEEE 802.1Q clause 36 (PFC), RFC 2819 (histogram of
//! sizes), IBTA A16 and A17 (RoCE); PRM "Port registers".

use hca_spec::ids::Gid;

use super::Port;
use super::acceleration::Acceleration;
use super::buffers::Buffers;
use super::classes::Classes;
use super::congestion::CongestionControl;
use super::error_correction::Wanted;
use crate::limits::ROCE_ADDRESSES;
use crate::personality::PortKind;

/// Largest frame that a port can take, in bytes: header, a VLAN tag and frame check sequence included.
pub const MAX_MTU: u16 = 10_000;
/// Bytes of a frame beyond what an operating system calls its MTU: header, a VLAN tag and frame check sequence.
pub const MTU_OVERHEAD: u16 = 22;
/// Bytes of the frame check sequence.
pub const FCS: u64 = 4;
/// Priorities of IEEE 802.1Q.
pub const PRIORITIES: usize = 8;
/// Classes of the histogram of sizes.
pub const SIZES: usize = 10;
/// Least size of a frame, frame check sequence included (IEEE 802.3 4.4.2).
pub const MIN_FRAME: u64 = 64;
/// The largest size of each class of the histogram but the last, frame check sequence included (RFC 2819, and beyond).
const SIZE_CLASSES: [u64; SIZES - 1] = [64, 127, 255, 511, 1023, 1518, 2047, 4095, 8191];

/// A MAC address, in the order of the wire.
pub type Mac = [u8; 6];

/// Version of a RoCE address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoceVersion {
    /// Version 1: a GRH behind the Ethernet header.
    V1,
    /// Version 2: UDP over IPv4 or IPv6.
    V2,
}

/// An entry of the table of RoCE addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoceAddress {
    /// The GID; that of an IPv4 address is the address mapped into IPv6.
    pub gid: Gid,
    /// MAC address of packets from it.
    pub mac: Mac,
    /// VLAN of packets from and to it.
    pub vlan: Option<u16>,
    /// Version.
    pub version: RoceVersion,
    /// The packets are IPv4.
    pub ipv4: bool,
}

/// Flow control of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pause {
    /// PAUSE is sent.
    pub tx: bool,
    /// PAUSE is heeded.
    pub rx: bool,
    /// Bit n: PFC is sent for priority n.
    pub pfc_tx: u8,
    /// Bit n: PFC is heeded for priority n.
    pub pfc_rx: u8,
}

/// How long a port may ask its peer to wait without a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallWatermarks {
    /// Until that is counted, in ms; 0: for ever.
    pub minor: u16,
    /// Until the port gives up, in ms; 0: it never does.
    pub critical: u16,
}

impl Default for StallWatermarks {
    /// As the driver calls the default: 8 s, and 85 percent of it (mlx5 driver, field use).
    fn default() -> Self {
        Self { minor: 6800, critical: 8000 }
    }
}

/// Whom a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameClass {
    /// One station.
    Unicast,
    /// A group.
    Multicast,
    /// All.
    Broadcast,
}

impl FrameClass {
    /// That of a destination address.
    pub const fn of(destination: Mac) -> Self {
        match destination {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => Self::Broadcast,
            [first, ..] if first & 1 == 1 => Self::Multicast,
            _ => Self::Unicast,
        }
    }
}

/// Picoseconds of a unit of pauses' durations in registers: microseconds.
pub(crate) const DURATION_UNIT: u64 = 1_000_000;

/// What is counted of a priority in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PriorityCounters {
    /// Frames.
    pub frames: u64,
    /// Their bytes, without frame check sequences.
    pub octets: u64,
    /// PFC frames that paused the priority.
    pub pause: u64,
    /// How long it was paused, in picoseconds; what a frame asks for counts when it comes.
    pub pause_duration: u64,
    /// How often a pause began.
    pub pause_transition: u64,
    /// Frames dropped for want of buffers.
    pub discards: u64,
    /// How often the peer was asked to wait for longer than the minor watermark.
    pub stall_minor: u64,
    /// The same of the critical watermark.
    pub stall_critical: u64,
}

/// What is counted in one direction. Octets are counted without frame check sequences; registers add these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectionCounters {
    /// Good frames, those of MAC control left out.
    pub frames: u64,
    /// Their bytes.
    pub octets: u64,
    /// Of these, frames to one station, and their bytes.
    pub unicast: u64,
    /// Bytes of frames to one station.
    pub unicast_octets: u64,
    /// Frames to groups but all.
    pub multicast: u64,
    /// Bytes of frames to groups.
    pub multicast_octets: u64,
    /// Frames to all.
    pub broadcast: u64,
    /// Bytes of frames to all.
    pub broadcast_octets: u64,
    /// Frames with errors.
    pub errors: u64,
    /// Good frames that were dropped.
    pub discards: u64,
    /// Frames of MAC control, PAUSE and PFC included.
    pub control: u64,
    /// PAUSE frames; those of PFC are in the counters of priorities.
    pub pause: u64,
    /// Of `frames` and `octets`, packets of RoCE to one queue pair.
    pub roce_unicast: u64,
    /// Bytes of these.
    pub roce_unicast_octets: u64,
    /// Packets of RoCE to groups.
    pub roce_multicast: u64,
    /// Bytes of these.
    pub roce_multicast_octets: u64,
    /// By priority; frames without a tag are of priority 0.
    pub priorities: [PriorityCounters; PRIORITIES],
}

fn add(counter: &mut u64, n: u64) {
    *counter = counter.wrapping_add(n);
}

impl DirectionCounters {
    /// Counts a good frame of so many bytes without its frame check sequence.
    pub fn count(&mut self, class: FrameClass, octets: u64, priority: u8) {
        add(&mut self.frames, 1);
        add(&mut self.octets, octets);
        let (frames, bytes) = match class {
            FrameClass::Unicast => (&mut self.unicast, &mut self.unicast_octets),
            FrameClass::Multicast => (&mut self.multicast, &mut self.multicast_octets),
            FrameClass::Broadcast => (&mut self.broadcast, &mut self.broadcast_octets),
        };
        add(frames, 1);
        add(bytes, octets);
        if let Some(of) = self.priorities.get_mut(usize::from(priority)) {
            add(&mut of.frames, 1);
            add(&mut of.octets, octets);
        }
    }

    /// Counts that a frame that [`DirectionCounters::count`] counted was a packet of RoCE.
    pub fn count_roce(&mut self, class: FrameClass, octets: u64) {
        let (packets, bytes) = match class {
            FrameClass::Unicast => (&mut self.roce_unicast, &mut self.roce_unicast_octets),
            _ => (&mut self.roce_multicast, &mut self.roce_multicast_octets),
        };
        add(packets, 1);
        add(bytes, octets);
    }
}

/// Counters of an Ethernet port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EthernetCounters {
    /// What came.
    pub rx: DirectionCounters,
    /// What was sent.
    pub tx: DirectionCounters,
    /// Frames that came, by size with frame check sequence: 64, 65 to 127, .. 1518, 2047, 4095, 8191, 10239 bytes.
    pub rx_sizes: [u64; SIZES],
    /// The same of frames that were sent.
    pub tx_sizes: [u64; SIZES],
    /// Frames that came with a wrong frame check sequence.
    pub fcs_errors: u64,
    /// Frames that came and were shorter than 64 bytes.
    pub undersize: u64,
    /// Frames that came and were longer than the port's MTU.
    pub oversize: u64,
    /// Frames that the port, a switch's, marked: they were to wait in a long queue (RFC 3168).
    pub ecn_marked: u64,
    /// Frames that no entry of flow steering took.
    pub steering_discards: u64,
    /// Frames that came back to the adapter without having been on the wire.
    pub loopback: u64,
    /// Bytes of these.
    pub loopback_octets: u64,
    /// How often the link went down.
    pub link_down_events: u32,
}

/// Counts a frame of so many bytes without its frame check sequence in a histogram.
fn count_size(sizes: &mut [u64; SIZES], octets: u64) {
    let size = octets.saturating_add(FCS);
    let class = SIZE_CLASSES.iter().position(|most| size <= *most).unwrap_or(SIZES - 1);
    if let Some(count) = sizes.get_mut(class) {
        add(count, 1);
    }
}

impl EthernetCounters {
    /// Counts a good frame that came, of so many bytes without its frame check sequence.
    pub fn received(&mut self, class: FrameClass, octets: u64, priority: u8) {
        self.rx.count(class, octets, priority);
        count_size(&mut self.rx_sizes, octets);
    }

    /// Counts a frame that was sent, of so many bytes without its frame check sequence.
    pub fn sent(&mut self, class: FrameClass, octets: u64, priority: u8) {
        self.tx.count(class, octets, priority);
        count_size(&mut self.tx_sizes, octets);
    }
}

/// What a port has that is Ethernet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ethernet {
    /// Its permanent address.
    pub mac: Mac,
    /// Largest frame, in bytes: header, a VLAN tag and frame check sequence included.
    pub mtu: u16,
    /// Flow control.
    pub pause: Pause,
    /// Receive buffers.
    pub buffers: Buffers,
    /// How long it may send PAUSE and PFC.
    pub stall: StallWatermarks,
    /// Priorities and traffic classes.
    pub classes: Classes,
    /// Congestion control of RoCE.
    pub congestion: CongestionControl,
    /// What its RoCE connections do about loss.
    pub acceleration: Acceleration,
    /// Counters.
    pub counters: EthernetCounters,
    /// Forward error correction that software wants.
    pub(crate) correction: Wanted,
    /// Software switched the negotiation of rates off.
    pub(crate) negotiation_off: bool,
    /// Rates that software wants, as bits of PTYS; all at power-on.
    pub(super) rates_wanted: u32,
    roce_addresses: Vec<Option<RoceAddress>>,
    /// Indices of those that there are, in order: every frame asks for all of them.
    roce_indices: Vec<u8>,
}

impl Ethernet {
    /// Of an operating system's MTU of 1500.
    const DEFAULT_MTU: u16 = 1500 + MTU_OVERHEAD;

    /// At power-on.
    pub fn new(mac: Mac) -> Self {
        // As such adapters come: PAUSE is sent and heeded.
        let pause = Pause { tx: true, rx: true, ..Pause::default() };
        Self {
            mac,
            mtu: Self::DEFAULT_MTU,
            pause,
            buffers: Buffers::new(pause),
            stall: StallWatermarks::default(),
            classes: Classes::default(),
            congestion: CongestionControl::default(),
            acceleration: Acceleration::default(),
            counters: EthernetCounters::default(),
            correction: Wanted::default(),
            negotiation_off: false,
            rates_wanted: u32::MAX,
            roce_addresses: vec![None; ROCE_ADDRESSES],
            roce_indices: Vec::new(),
        }
    }

    /// The RoCE addresses that there are, with their indices.
    pub fn roce_addresses(&self) -> impl Iterator<Item = (u8, &RoceAddress)> {
        let entry = |index: &u8| Some((*index, self.roce_addresses.get(usize::from(*index))?.as_ref()?));
        self.roce_indices.iter().filter_map(entry)
    }
}

impl Port {
    /// Its link layer.
    #[inline]
    pub fn kind(&self) -> PortKind {
        match self.ethernet {
            Some(_) => PortKind::Ethernet,
            None => PortKind::InfiniBand,
        }
    }

    /// What an Ethernet port has.
    #[inline]
    pub fn ethernet(&self) -> Option<&Ethernet> {
        self.ethernet.as_deref()
    }

    /// The same, to count on.
    #[inline]
    pub fn ethernet_mut(&mut self) -> Option<&mut Ethernet> {
        self.ethernet.as_deref_mut()
    }

    /// Makes it an Ethernet port at power-on.
    pub(crate) fn make_ethernet(&mut self, mac: Mac) {
        self.ethernet = Some(Box::new(Ethernet::new(mac)));
    }

    /// The RoCE address of that index; `None` if there is none, or the port is not Ethernet.
    #[inline]
    pub fn roce_address(&self, index: u8) -> Option<&RoceAddress> {
        self.ethernet()?.roce_addresses.get(usize::from(index))?.as_ref()
    }

    /// Sets or takes out the RoCE address of an index. Whether there is such an index.
    pub(crate) fn set_roce_address(&mut self, index: usize, address: Option<RoceAddress>) -> bool {
        let Some(eth) = self.ethernet_mut() else { return false };
        let Some(entry) = eth.roce_addresses.get_mut(index) else { return false };
        if *entry != address {
            *entry = address;
            let there = (0..=u8::MAX).zip(&eth.roce_addresses).filter(|(_, entry)| entry.is_some());
            eth.roce_indices = there.map(|(index, _)| index).collect();
            self.readdress();
        }
        true
    }

    /// Takes out all RoCE addresses: their driver is gone.
    pub(crate) fn forget_roce_addresses(&mut self) {
        for index in 0..ROCE_ADDRESSES {
            self.set_roce_address(index, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Role;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];

    fn port() -> Port {
        let mut port = Port::new(Role::Adapter, 1, 1, "");
        port.make_ethernet(MAC);
        port
    }

    #[test]
    fn addresses_come_and_go() {
        let mut p = port();
        let address = RoceAddress {
            gid: Gid::new(0xfe80 << 48, 7),
            mac: MAC,
            vlan: Some(9),
            version: RoceVersion::V2,
            ipv4: false,
        };
        let before = p.addresses();
        assert!(p.set_roce_address(255, Some(address)) && !p.set_roce_address(256, None));
        assert_ne!(p.addresses(), before, "routes are worked out again");
        assert_eq!((p.roce_address(255), p.roce_address(0)), (Some(&address), None));
        assert_eq!((p.gid(255), p.gid(0), p.gid(256)), (address.gid, Gid::default(), Gid::default()));
        let same = p.addresses();
        assert!(p.set_roce_address(255, Some(address)));
        assert_eq!(p.addresses(), same, "nothing changed");
        assert_eq!(p.ethernet().unwrap().roce_addresses().collect::<Vec<_>>(), [(255, &address)]);
        p.forget_roce_addresses();
        assert_eq!(p.roce_address(255), None);
    }

    #[test]
    fn an_infiniband_port_has_none_of_it() {
        let mut p = Port::new(Role::Adapter, 1, 1, "");
        assert_eq!((p.kind(), p.ethernet(), p.roce_address(0)), (PortKind::InfiniBand, None, None));
        assert!(!p.set_roce_address(0, None));
        assert_eq!(port().kind(), PortKind::Ethernet);
    }

    #[test]
    fn frames_are_counted() {
        let mut c = EthernetCounters::default();
        for (octets, class) in [(60, 0), (61, 1), (1514, 5), (1515, 6), (8187, 8), (8188, 9), (u64::MAX, 9)] {
            let before = c.rx_sizes[class];
            c.received(FrameClass::of([0xff; 6]), octets, 7);
            assert_eq!(c.rx_sizes[class], before + 1, "{octets}");
            let before = c.tx_sizes;
            c.sent(FrameClass::Unicast, octets, 9);
            let counted = c.tx_sizes.iter().zip(before).position(|(now, before)| *now != before);
            assert_eq!(counted, Some(class), "{octets}");
        }
        c.tx = DirectionCounters::default();
        c.sent(FrameClass::of([1, 0, 0, 0, 0, 0]), 100, 3);
        c.sent(FrameClass::of(MAC), 50, 9);
        c.tx.count_roce(FrameClass::Unicast, 50);
        assert_eq!((c.rx.frames, c.rx.broadcast, c.rx.priorities[7].frames), (7, 7, 7));
        assert_eq!((c.tx.octets, c.tx.multicast_octets, c.tx.unicast_octets), (150, 100, 50));
        assert_eq!((c.tx.priorities[3].octets, c.tx.roce_unicast), (100, 1));
    }
}
