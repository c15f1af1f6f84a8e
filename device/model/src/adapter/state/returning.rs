//! Packets that come back to the port that they were sent by: those for the port itself, and copies of multicast.
//!
//! No link slows them down, and no credits hold them back. So that they don't pile up when they are sent faster than they
//! are received, a port lets a certain number of bytes be on their way; who would send more waits for its turn.

use std::collections::VecDeque;

use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

/// Bytes that may be on their way, those that are being made among them, before senders wait: an estimate, far more than gathers while the receive pipeline keeps
/// up, and little memory of the server.
const MOST: usize = 1 << 20;

/// A packet that comes back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Returned {
    pub(crate) bytes: u32,
    /// It is the sender's copy of one that went over the link.
    pub(crate) copy: bool,
}

/// What is on its way back to a port.
#[derive(Debug, Default)]
pub(crate) struct Returning {
    /// Bytes of packets for the port itself that are being made: they have not come to it yet.
    making: usize,
    bytes: usize,
    /// Of those, copies.
    copies: usize,
    /// Packets that have arrived: when each has passed the receive pipeline, which keeps their order.
    arrived: VecDeque<(Ps, Returned)>,
}

impl Returning {
    /// A packet for the port itself is being made.
    #[inline]
    pub(crate) fn make(&mut self, bytes: usize) {
        self.making = self.making.saturating_add(bytes);
    }

    /// It has come to the port, or will not come.
    #[inline]
    pub(crate) fn made(&mut self, bytes: usize) {
        self.making = self.making.saturating_sub(bytes);
    }

    /// A packet begins its way.
    #[inline]
    pub(crate) fn begin(&mut self, packet: Returned) {
        let bytes = packet.bytes as usize;
        self.bytes = self.bytes.saturating_add(bytes);
        if packet.copy {
            self.copies = self.copies.saturating_add(bytes);
        }
    }

    /// Whether nothing is on its way.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0 && self.arrived.is_empty()
    }

    /// It came back, and is received at `free`.
    #[inline]
    pub(crate) fn arrive(&mut self, packet: Returned, free: Ps) {
        self.arrived.push_back((free, packet));
    }

    /// Time passes. Returns when the next packet is received, of those that have arrived.
    #[inline]
    pub(crate) fn pass(&mut self, now: Ps) -> Option<Ps> {
        while let Some((free, packet)) = self.arrived.front().copied() {
            if free > now {
                return Some(free);
            }
            self.arrived.pop_front();
            let bytes = packet.bytes as usize;
            self.bytes = self.bytes.saturating_sub(bytes);
            if packet.copy {
                self.copies = self.copies.saturating_sub(bytes);
            }
        }
        None
    }

    /// When to look for room again, where there was none: at once if what was received by `now` made some. `None`: not before
    /// something arrives.
    pub(crate) fn look_again(&mut self, now: Ps, own: bool) -> Option<Ps> {
        let next = self.pass(now);
        if self.has_room(own) { Some(now) } else { next }
    }

    /// Whether more may be sent: to the port itself (`own`), or over the link, of which copies may come back.
    #[inline]
    pub(crate) fn has_room(&self, own: bool) -> bool {
        if own { self.has_room_behind(0) } else { self.copies < MOST }
    }

    /// Whether what is for the port itself is less than so many bytes beyond that.
    pub(crate) fn has_room_behind(&self, bytes: usize) -> bool {
        self.making.saturating_add(self.bytes) < MOST.saturating_add(bytes)
    }
}

impl Rebase for Returning {
    fn rebase(&mut self, by: Ps) {
        let Self { making: _, bytes: _, copies: _, arrived } = self;
        arrived.iter_mut().for_each(|(at, _)| at.rebase(by));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_received_makes_room() {
        let mut returning = Returning::default();
        let packet = |copy| Returned { bytes: MOST as u32, copy };
        returning.begin(packet(false));
        assert!(!returning.has_room(true) && returning.has_room(false), "the link is nobody's way back");
        assert_eq!(returning.pass(Ps(9)), None, "it is still on its way");
        returning.arrive(packet(false), Ps(10));
        assert_eq!(returning.pass(Ps(9)), Some(Ps(10)));
        assert!(!returning.has_room(true));
        returning.begin(packet(true));
        returning.arrive(packet(true), Ps(12));
        assert_eq!(returning.pass(Ps(10)), Some(Ps(12)));
        assert!(!returning.has_room(true) && !returning.has_room(false));
        assert_eq!(returning.pass(Ps(12)), None);
        assert!(returning.has_room(true) && returning.has_room(false));
    }

    /// Packets are made faster than they come to the port: those are on their way, too.
    #[test]
    fn what_is_being_made_takes_room() {
        let mut returning = Returning::default();
        returning.make(MOST / 2);
        assert!(returning.has_room(true));
        returning.make(MOST / 2);
        assert!(!returning.has_room(true) && returning.has_room(false));
        assert_eq!(
            returning.look_again(Ps(9), true),
            None,
            "what is made comes to the port, and says so then"
        );
        returning.made(MOST / 2);
        assert!(returning.has_room(true));
        returning.begin(Returned { bytes: MOST as u32 / 2, copy: false });
        assert!(!returning.has_room(true));
    }

    /// Nobody else looks when the last packet has been received before somebody waits.
    #[test]
    fn room_that_nobody_looked_at_is_found() {
        let mut returning = Returning::default();
        let packet = Returned { bytes: MOST as u32 / 2, copy: false };
        for free in [10, 20, 30] {
            returning.begin(packet);
            returning.arrive(packet, Ps(free));
        }
        assert!(!returning.has_room(true));
        assert_eq!(returning.look_again(Ps(9), true), Some(Ps(10)), "nothing is received yet");
        assert_eq!(returning.look_again(Ps(10), true), Some(Ps(20)), "half of the rest is too much");
        assert_eq!(returning.look_again(Ps(40), true), Some(Ps(40)), "all is received: there is room now");
        returning.begin(Returned { bytes: MOST as u32, copy: false });
        assert_eq!(returning.look_again(Ps(40), true), None, "what is on its way says so when it arrives");
    }
}
