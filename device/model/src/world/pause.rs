//! Flow control of Ethernet links: a port whose buffer fills asks its peer to wait, all of it or single priorities.
//!
//! Source: IEEE 802.3 annex 31B (PAUSE), 802.1Q clause 36 and 802.3 annex 31D (PFC). Frames of MAC control go before what waits in
//! the port, so they are put on the link at once. When to ask and when to let go on is each maker's own: an adapter does at half
//! and a quarter of what a priority may take of its buffer, an estimate.

use hca_firmware::port::ethernet::StallWatermarks;

use super::links::End;
use super::{Class, Event, World};
use crate::ground::node::{LinkEnd, NodeId, PortRef};
use crate::ground::time::Ps;
use crate::link_layer::eth::Mac;
use crate::link_layer::eth::pause::{PRIORITIES, Pause, count_pause};
use crate::link_layer::{LANES, Packet};

/// For how long a peer is asked to wait; it is let go on before, or asked again.
const QUANTA: u16 = u16::MAX;
/// A peer that is to wait still is asked again after that: it waits some 335 us at 100 Gb/s, 840 at 40.
const AGAIN: Ps = Ps::from_us(100);
/// All priorities.
pub(super) const ALL: u8 = u8::MAX;

/// How full a buffer is, by priority as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Fullness {
    /// No more is to come.
    pub(super) full: u8,
    /// There is room again.
    pub(super) roomy: u8,
}

/// What a port asked its peer for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// Until when the priorities wait that are to wait.
    waiting: [Option<Ps>; PRIORITIES],
    /// When it asked last for somebody to wait.
    since: Ps,
    /// They were asked for by priority (PFC).
    by_priority: bool,
    /// When it is looked at again.
    timer: Option<Ps>,
    /// Since when priorities wait without a break.
    stalled: [Option<Ps>; PRIORITIES],
    /// Bit n: that priority n waits for long was counted.
    told: u8,
    /// Bit n: it was given up to have priority n wait, until there is room again.
    given_up: u8,
}

impl Asked {
    /// Follows who has waited for how long, and gives up those who have for too long. Returns whom that was counted of, as bits:
    /// those beyond the minor watermark, and those beyond the critical one.
    fn watch(&mut self, now: Ps, marks: StallWatermarks, fullness: &mut Fullness) -> (u8, u8) {
        self.given_up &= !fullness.roomy;
        let beyond = |since: Ps, mark: u16| mark != 0 && now.since(since) >= Ps::from_ms(mark.into());
        let (mut minor, mut critical) = (0, 0);
        for (lane, (waits, stalled)) in self.waiting.iter().zip(&mut self.stalled).enumerate() {
            let bit = 1 << lane;
            let Some(since) = waits.and(Some(*stalled.get_or_insert(now))) else {
                (*stalled, self.told) = (None, self.told & !bit);
                continue;
            };
            if self.told & bit == 0 && beyond(since, marks.minor) {
                minor |= bit;
            }
            if beyond(since, marks.critical) {
                critical |= bit;
            }
        }
        self.told |= minor;
        self.given_up |= critical;
        fullness.full &= !self.given_up;
        fullness.roomy |= self.given_up;
        (minor, critical)
    }

    /// Whether somebody is to wait.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.iter().any(Option::is_some)
    }

    /// The link went down: nobody waits. A look that is to come is still to come.
    pub(super) fn forget(&mut self) {
        *self = Self { timer: self.timer, ..Self::default() };
    }

    /// Whether somebody waits who was asked long ago.
    fn is_old(&self, now: Ps) -> bool {
        self.is_waited_for() && now.since(self.since) >= AGAIN
    }

    /// The priorities that are to wait, as bits.
    fn lanes(&self) -> u8 {
        self.waiting.iter().rev().fold(0, |bits, until| bits << 1 | u8::from(until.is_some()))
    }

    /// Which priorities to stop and which to let go on; `again`: those that are to wait still are asked again.
    fn step(&self, Fullness { full, roomy }: Fullness, again: bool) -> (u8, u8) {
        let waits = self.lanes();
        let stop = full & !waits | if again { waits & !roomy } else { 0 };
        (stop, waits & roomy & !full)
    }
}

impl End {
    /// How full the input buffer of so many blocks is, if single priorities are stopped: each of those has a share of its own, and
    /// all others together have one.
    fn fullness(&self, lossless: u8, room: u32) -> Fullness {
        if lossless == 0 {
            return Fullness::default();
        }
        let share = room / (lossless.count_ones() + 1);
        let bits = |such: &dyn Fn(u32) -> bool| {
            let of = |lane: &u8| lossless >> lane & 1 == 1 && such(self.taken(*lane));
            (0..PRIORITIES as u8).filter(of).fold(0, |bits, lane| bits | 1 << lane)
        };
        Fullness {
            full: bits(&|taken| taken > share / 2),
            roomy: bits(&|taken| taken <= share / 4) | !lossless,
        }
    }

    /// The same, if it stops everything.
    fn all_fullness(&self, room: u32) -> Fullness {
        let taken = self.all_taken();
        let bits = |such| if such { ALL } else { 0 };
        Fullness { full: bits(taken > room / 2), roomy: bits(taken <= room / 4) }
    }

    /// Whether a frame of a priority has room that takes so many blocks.
    fn has_room(&self, lane: u8, blocks: u32, lossless: u8, room: u32) -> bool {
        let share = room / (lossless.count_ones() + 1);
        // Lanes beyond the priorities are of no class that is lossless.
        let is_lossless = |lane: &u8| u16::from(lossless) >> (lane & 0xf) & 1 == 1;
        let taken = match is_lossless(&lane) {
            true => self.taken(lane),
            false => (0..LANES as u8).filter(|lane| !is_lossless(lane)).map(|lane| self.taken(lane)).sum(),
        };
        taken.saturating_add(blocks) <= share
    }
}

impl World {
    /// A packet of that lane comes into the input buffer at an end of a link without credits, and takes so many blocks. False:
    /// there is no room for it. The ports of switches count for themselves.
    pub(super) fn take_in(&mut self, number: usize, end: usize, port: PortRef, lane: u8, blocks: u8) -> bool {
        let Some(room) = self.room_without_credits(number, port) else { return true };
        let now = self.now;
        let lossless = self.port(port).and_then(|p| p.ethernet()).map_or(0, |e| e.pause.pfc_tx);
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return true };
        near.release_due(now);
        let fits =
            near.has_room(lane, blocks.into(), lossless, room) && near.hold(lane, blocks.into(), u32::MAX);
        if fits {
            self.flow_control(number, end, false);
        }
        fits
    }

    /// What is in the input buffer at an end of an Ethernet link became more or less: asks its peer to wait, or lets it go
    /// on; `again`: it is time to ask once more.
    pub(super) fn flow_control(&mut self, number: usize, end: usize, again: bool) {
        let now = self.now;
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        near.release_due(now);
        let LinkEnd::Port(port) = near.at else { return };
        if let NodeId::Switch(id) = port.node {
            return self.switch_flow_control(id, port.port, again);
        }
        let Some(room) = self.room_without_credits(number, port) else { return };
        let Some(sends) = self.port(port).and_then(|p| p.ethernet()).map(|e| e.pause) else { return };
        let Some(near) = self.links.get(number).and_then(|l| l.ends.get(end)) else { return };
        let mut fullness = match sends.pfc_tx {
            0 if sends.tx => near.all_fullness(room),
            // Whoever was asked before that was switched off goes on.
            0 => Fullness { full: 0, roomy: ALL },
            lossless => near.fullness(lossless, room),
        };
        self.watch_for_stalls(number, end, port, &mut fullness);
        self.ask(number, end, fullness, again);
    }

    /// An adapter that has its peer wait for too long lets it go on, and drops what it has no room for: so one that is stuck does not stop a
    /// whole fabric (storms of PAUSE).
    fn watch_for_stalls(&mut self, number: usize, end: usize, port: PortRef, fullness: &mut Fullness) {
        let now = self.now;
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        if !near.asked.is_waited_for() && near.asked.given_up == 0 {
            return;
        }
        let mut asked = near.asked;
        let Some(ethernet) = self.port_mut(port).and_then(|p| p.ethernet_mut()) else { return };
        let (minor, critical) = asked.watch(now, ethernet.stall, fullness);
        for (lane, of) in ethernet.counters.tx.priorities.iter_mut().enumerate() {
            of.stall_minor = of.stall_minor.wrapping_add(u64::from(minor >> lane & 1));
            of.stall_critical = of.stall_critical.wrapping_add(u64::from(critical >> lane & 1));
        }
        if let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) {
            near.asked = asked;
        }
    }

    /// Asks the peer at the other end of an Ethernet link to wait, or to go on, if how full the buffer at this end is asks for that.
    pub(super) fn ask(&mut self, number: usize, end: usize, fullness: Fullness, again: bool) {
        let now = self.now;
        let Some(near) = self.links.get(number).and_then(|l| l.ends.get(end)) else { return };
        let (LinkEnd::Port(port), line, mut asked) = (near.at, near.line, near.asked) else { return };
        let (stop, release) = asked.step(fullness, again);
        let Some(ethernet) =
            self.port_mut(port).and_then(|p| p.ethernet_mut()).filter(|_| stop | release != 0)
        else {
            return;
        };
        // Whoever was stopped in one way is let go on in that way.
        if !asked.is_waited_for() {
            asked.by_priority = ethernet.pause.pfc_tx != 0;
        }
        let mut pause =
            Pause { by_priority: asked.by_priority, lanes: stop | release, quanta: [0; PRIORITIES] };
        let stopped = |(lane, _): &(usize, &mut u16)| stop >> lane & 1 == 1;
        pause.quanta.iter_mut().enumerate().filter(stopped).for_each(|(_, quanta)| *quanta = QUANTA);
        asked.since = if stop != 0 { now } else { asked.since };
        let (mac, counters) = (Mac(ethernet.mac), &mut ethernet.counters.tx);
        counters.control = counters.control.wrapping_add(1);
        counters.pause = counters.pause.wrapping_add(u64::from(!pause.by_priority));
        for (lane, time) in pause.times(line) {
            let (place, until) = (usize::from(lane), now + time);
            if let (Some(waiting), Some(of)) =
                (asked.waiting.get_mut(place), counters.priorities.get_mut(place))
            {
                count_pause(of, now, waiting.unwrap_or(now), until);
                *waiting = (until > now).then_some(until);
            }
        }
        if let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) {
            near.asked = asked;
        }
        self.look_again(number, end, now + AGAIN);
        self.transmit(now, number, end, Packet::frame(pause.frame(mac)));
    }

    /// A packet leaves the input buffer at an end of a link without credits at `at`, later than now.
    pub(super) fn free_later(&mut self, number: usize, end: usize, (lane, blocks): (u8, u8), at: Ps) {
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        near.release_at(at, lane, blocks);
        self.look_again(number, end, at);
    }

    /// If the peer at an end of a link waits: looks at `at` whether it is to wait still.
    fn look_again(&mut self, number: usize, end: usize, at: Ps) {
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        let LinkEnd::Port(port) = near.at else { return };
        if near.asked.is_waited_for() && near.asked.timer.is_none_or(|timer| at < timer) {
            near.asked.timer = Some(at);
            let source = self.source(Class::Node, port);
            self.heap.push(at, source, Event::Pause(port));
        }
    }

    /// It is time to look whether the peer of a port is to wait still.
    pub(super) fn pause_again(&mut self, port: PortRef) {
        let Some((number, end)) = self.plug(port) else { return };
        let now = self.now;
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        // Another look came before this one, and there is one to come.
        if near.asked.timer.is_none_or(|timer| timer > now) {
            return;
        }
        near.asked.timer = None;
        let again = near.asked.is_old(now);
        self.flow_control(number, end, again);
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        let next = near.release_due(now);
        self.look_again(number, end, next.map_or(now + AGAIN, |next| next.min(now + AGAIN)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_too_long_is_given_up() {
        let marks = StallWatermarks { minor: 85, critical: 100 };
        let mut asked = Asked::default();
        let full = Fullness { full: 0b11, roomy: !0b11 };
        let at = |asked: &mut Asked, ms: u64, marks, mut fullness: Fullness| {
            let counted = asked.watch(Ps::from_ms(ms), marks, &mut fullness);
            (counted, fullness)
        };
        asked.waiting[0] = Some(Ps(1));
        assert_eq!(at(&mut asked, 10, marks, full), ((0, 0), full));
        asked.waiting[1] = Some(Ps(1));
        assert_eq!(at(&mut asked, 50, marks, full), ((0, 0), full));
        assert_eq!(at(&mut asked, 95, marks, full), ((0b01, 0), full));
        assert_eq!(at(&mut asked, 96, marks, full), ((0, 0), full), "once");
        let (counted, left) = at(&mut asked, 110, marks, full);
        assert_eq!((counted, left.full, left.roomy & 0b11), ((0, 0b01), 0b10, 0b01));
        // It goes on, and is not asked again until there is room.
        asked.waiting[0] = None;
        assert_eq!(at(&mut asked, 120, marks, full).1.full, 0b10);
        assert_eq!(at(&mut asked, 125, marks, Fullness { full: 0b10, roomy: !0b10 }).1.full, 0b10);
        assert_eq!(at(&mut asked, 126, marks, full).1, full);
        // Without watermarks it waits for ever; a break begins anew.
        let never = StallWatermarks { minor: 0, critical: 0 };
        assert_eq!(at(&mut asked, 1_000_000, never, full), ((0, 0), full));
        asked.waiting[1] = None;
        at(&mut asked, 1_000_001, marks, full);
        asked.waiting[1] = Some(Ps(1));
        assert_eq!(at(&mut asked, 1_000_002, marks, full), ((0, 0), full));
    }

    #[test]
    fn who_is_stopped_and_who_goes_on() {
        let waiting = |lanes: u8| {
            let mut asked = Asked::default();
            let bits = asked.waiting.iter_mut().enumerate().filter(|(lane, _)| lanes >> lane & 1 == 1);
            bits.for_each(|(_, until)| *until = Some(Ps(1)));
            asked
        };
        for (waits, full, roomy, again, stop, release) in [
            (0, 0, ALL, false, 0, 0),
            (0, 0b11, 0, false, 0b11, 0),
            (0b01, 0b11, 0, false, 0b10, 0),
            (0b01, 0b11, 0, true, 0b11, 0),
            (0b11, 0b10, 0b01, true, 0b10, 0b01),
            (0b11, 0, 0, false, 0, 0),
            (0b11, 0, 0, true, 0b11, 0),
        ] {
            let step = waiting(waits).step(Fullness { full, roomy }, again);
            assert_eq!(step, (stop, release), "{waits:b} {full:b} {roomy:b} {again}");
        }
    }
}
