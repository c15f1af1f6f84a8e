//! Flow control of Ethernet links: a port whose input buffer fills asks its peer to wait.
//!
//! Source: IEEE 802.3 annex 31B. Frames of MAC control go before what waits in the port, so they are put on the link at once. When
//! to ask, and when to let go on, is each maker's own: half of the buffer and a quarter here, an estimate.

use hca_firmware::PortKind;

use super::World;
use super::links::End;
use crate::ground::node::{LinkEnd, PortRef};
use crate::ground::time::Ps;
use crate::link_layer::Packet;
use crate::link_layer::eth::Mac;
use crate::link_layer::eth::pause::Pause;

/// For how long a peer is asked to wait; it is let go on before, or asked again.
const QUANTA: u16 = u16::MAX;
/// A peer that sends nevertheless is asked again after that: it waits some 335 us at 100 Gb/s.
const AGAIN: Ps = Ps::from_us(100);

impl End {
    /// Whether its peer was asked to wait.
    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }
}

impl World {
    /// A packet comes into the input buffer at an end of a link without credits, and takes so many blocks. False: there is no room
    /// for it. The ports of switches count for themselves.
    pub(super) fn take_in(&mut self, number: usize, end: usize, port: PortRef, blocks: u8) -> bool {
        let Some(room) = self.room_without_credits(number, port) else { return true };
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return true };
        let fits = near.hold(0, blocks.into(), room);
        if fits {
            self.flow_control(number, end);
        }
        fits
    }

    /// What is in the input buffer at an end of an Ethernet link became more or less: asks its peer to wait, or lets it go on.
    pub(super) fn flow_control(&mut self, number: usize, end: usize) {
        let now = self.now;
        let Some(LinkEnd::Port(port)) = self.links.get(number).and_then(|l| l.ends.get(end)).map(|e| e.at)
        else {
            return;
        };
        let Some(room) = self.room_without_credits(number, port) else { return };
        let Some(ethernet) =
            self.port(port).filter(|p| p.kind() == PortKind::Ethernet).and_then(|p| p.ethernet())
        else {
            return;
        };
        let (sends, mac) = (ethernet.pause.tx, Mac(ethernet.mac));
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        let taken = near.taken(0);
        let quanta = match near.paused {
            None if sends && taken > room / 2 => QUANTA,
            Some(since) if taken > room / 2 && now.since(since) > AGAIN => QUANTA,
            Some(_) if taken <= room / 4 => 0,
            _ => return,
        };
        near.paused = (quanta > 0).then_some(now);
        if let Some(counters) = self.port_mut(port).and_then(|p| p.ethernet_mut()).map(|e| &mut e.counters.tx)
        {
            counters.control = counters.control.wrapping_add(1);
            counters.pause = counters.pause.wrapping_add(1);
        }
        self.transmit(now, number, end, Packet::frame(Pause::all(quanta).frame(mac)));
    }
}
