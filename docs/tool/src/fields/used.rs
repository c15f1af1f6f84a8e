//! An adapter that was used: its link is up, a cable is in its cage, and whatever the hardware counts was counted.

use hca_firmware::module::{Copper, Module};
use hca_firmware::object::Kind;
use hca_firmware::pcie::{ErrorMessage, LinkTrouble};
use hca_firmware::port::congestion::CongestionCounters;
use hca_firmware::{FrameClass, PortLink, QCounter};

use super::bench::Bench;

/// The port that is used.
const PORT: u8 = 1;
/// Bytes of the packets.
const BYTES: usize = 256;
/// Ticks of the clock.
const TICKS: u64 = 0x0001_2345_6789_abcd;

impl Bench {
    /// Does what the hardware does to the firmware's books.
    pub(super) fn wear(&mut self) {
        let firmware = &mut self.firmware;
        let ports = &mut firmware.ports;
        ports.put_in_cage(PORT, Module::Copper(Copper { most: PortLink::default(), metres: 1, serial: 7 }));
        ports.set_link(PORT, Some(PortLink::default()), &mut Vec::new());
        ports.tracer.set_time(TICKS);
        for trouble in [
            LinkTrouble::Receiver,
            LinkTrouble::BadDllp,
            LinkTrouble::BadTlp,
            LinkTrouble::ReplayRollover,
            LinkTrouble::Retrained,
        ] {
            ports.pcie.trouble(trouble);
        }
        for message in [ErrorMessage::Correctable, ErrorMessage::NonFatal, ErrorMessage::Fatal] {
            ports.pcie.sent(message);
        }
        if let Some(port) = ports.port_mut(PORT) {
            port.counters.xmit(BYTES);
            port.counters.xmit_multicast(BYTES);
            port.counters.rcv(BYTES);
            port.counters.rcv_multicast(BYTES);
            port.counters.rcv_error();
            port.counters.xmit_discard();
            if let Some(ethernet) = port.ethernet_mut() {
                for class in [FrameClass::Unicast, FrameClass::Multicast, FrameClass::Broadcast] {
                    ethernet.counters.received(class, BYTES as u64, 0);
                    ethernet.counters.sent(class, BYTES as u64, 0);
                }
                ethernet.counters.rx.count_roce(FrameClass::Unicast, BYTES as u64);
                ethernet.counters.tx.count_roce(FrameClass::Unicast, BYTES as u64);
                ethernet.counters.steering_discards = 1;
                (ethernet.counters.loopback, ethernet.counters.loopback_octets) = (1, BYTES as u64);
                ethernet.congestion.counters = CongestionCounters {
                    limited: 1,
                    ever_limited: 1,
                    ignored: u64::MAX,
                    handled: u64::MAX,
                    marked: u64::MAX,
                    sent: u64::MAX,
                };
            }
        }
        (firmware.nic.received_down, firmware.nic.sent_down) = (1, 1);
        if let Some(set) = firmware.icm.q_counters.get_mut(self.fixture.number(Kind::QCounter)) {
            QCounter::ALL.into_iter().for_each(|counter| set.count(counter));
        }
    }
}
