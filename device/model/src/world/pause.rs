//! Flow control of Ethernet links: a port whose buffer fills asks its peer to wait, all of it or single priorities.
//!
//! Source: IEEE 802.3 annex 31B (PAUSE), 802.1Q clause 36 and 802.3 annex 31D (PFC). Frames of MAC control go before what waits in
//! the port, so they are put on the link at once. How an adapter's memory is divided, and when one of its buffers asks and lets go
//! on, its registers say ([`hca_firmware::port::buffers`]).

use hca_firmware::port::buffers::{BUFFERS, CELL, Layout};
use hca_firmware::port::ethernet::StallWatermarks;

use super::links::End;
use super::{Class, Event, World};
use crate::ground::epoch::Rebase;
use crate::ground::node::{LinkEnd, NodeId, PortRef};
use crate::ground::rate::LineRate;
use crate::ground::time::Ps;
use crate::link_layer::eth::Mac;
use crate::link_layer::eth::pause::{PRIORITIES, Pause, count_pause};
use crate::link_layer::{Packet, blocks};

/// For how long a switch asks a peer to wait, and after how many quanta it asks again.
const OF_SWITCH: (u16, u16) = (u16::MAX, 19_531);
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

    /// Whether somebody is to wait, or was to for too long.
    pub(super) fn concerns_somebody(&self) -> bool {
        self.is_waited_for() || self.given_up != 0
    }

    /// The link went down: nobody waits. A look that is to come is still to come.
    pub(super) fn forget(&mut self) {
        *self = Self { timer: self.timer, ..Self::default() };
    }

    /// Whether somebody waits who was asked that long ago.
    fn is_old(&self, now: Ps, refresh: Ps) -> bool {
        self.is_waited_for() && now.since(self.since) >= refresh
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

/// What blocks an adapter's port takes in, as its registers divide its memory.
#[derive(Debug, Clone, Copy)]
struct Memory<'p> {
    layout: &'p Layout,
    /// How much more of everything the port has.
    times: u32,
}

impl Memory<'_> {
    fn blocks(&self, cells: u16) -> u32 {
        blocks(CELL).saturating_mul(cells.into()).saturating_mul(self.times)
    }

    /// Blocks that are taken of each buffer.
    fn taken(&self, end: &End) -> [u32; BUFFERS] {
        let mut taken = [0; BUFFERS];
        for (lane, held) in end.taken() {
            if let Some(of) = taken.get_mut(usize::from(self.layout.of(lane))) {
                *of += held;
            }
        }
        taken
    }

    /// Buffers that lose nothing and have more taken than is to be before the peer waits, as bits; and those that have more than is to be
    /// when it goes on.
    fn filled(&self, end: &End) -> (u8, u8) {
        let (mut full, mut filled) = (0, 0);
        for (buffer, (of, taken)) in self.layout.buffers.iter().zip(self.taken(end)).enumerate() {
            if taken > 0 && !of.lossy {
                full |= u8::from(taken > self.blocks(of.xoff)) << buffer;
                filled |= u8::from(taken > self.blocks(of.xon)) << buffer;
            }
        }
        (full, filled)
    }

    /// How full its buffers are, if single priorities are stopped.
    fn fullness(&self, end: &End, lossless: u8) -> Fullness {
        if lossless == 0 {
            return Fullness::default();
        }
        let (full, filled) = self.filled(end);
        let lanes = |buffers: u8| {
            let of = |lane: &u8| lossless >> lane & 1 == 1 && buffers >> (self.layout.of(*lane) & 7) & 1 == 1;
            (0..PRIORITIES as u8).filter(of).fold(0, |bits, lane| bits | 1 << lane)
        };
        Fullness { full: lanes(full), roomy: !lanes(filled) }
    }

    /// The same, if everything is stopped.
    fn all_fullness(&self, end: &End) -> Fullness {
        let all = |such| if such { ALL } else { 0 };
        let (full, filled) = self.filled(end);
        Fullness { full: all(full != 0), roomy: all(filled == 0) }
    }

    /// Whether a frame of a priority has room that takes so many blocks.
    fn has_room(&self, end: &End, lane: u8, blocks: u32) -> bool {
        let buffer = self.layout.of(lane);
        let size = self.layout.buffers.get(usize::from(buffer)).map_or(0, |of| self.blocks(of.size));
        let of_buffer = end.taken().filter(|(lane, _)| self.layout.of(*lane) == buffer);
        let taken: u32 = of_buffer.map(|(_, held)| held).sum();
        taken.saturating_add(blocks) <= size
    }
}

/// How the memory of an adapter's port is divided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Intake {
    layout: Layout,
    times: u32,
}

/// What became of a packet that came into the memory of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// There is no room for it.
    Not,
    /// It is in, and the peer may have to be asked to wait.
    Asking,
    /// It is in, and nothing comes of it.
    Quietly,
}

impl Intake {
    #[inline]
    fn memory(&self) -> Memory<'_> {
        Memory { layout: &self.layout, times: self.times }
    }

    /// A packet of that lane comes, which takes so many blocks.
    #[inline]
    fn take(&self, now: Ps, near: &mut End, lane: u8, blocks: u8) -> Taken {
        near.release_due(now);
        let memory = self.memory();
        if !memory.has_room(near, lane, blocks.into()) || !near.hold(lane, blocks.into(), u32::MAX) {
            return Taken::Not;
        }
        // Where nobody waits and no buffer is full there is nothing to ask for.
        match near.asked.concerns_somebody() || memory.filled(near).0 != 0 {
            true => Taken::Asking,
            false => Taken::Quietly,
        }
    }

    /// The same, if the peer is not to be asked for anything then. False: it is not taken in.
    #[inline]
    pub(super) fn take_quietly(&self, now: Ps, near: &mut End, lane: u8, blocks: u8) -> bool {
        if near.asked.concerns_somebody() {
            return false;
        }
        let taken = self.take(now, near, lane, blocks);
        if taken == Taken::Asking {
            near.release(lane, blocks);
        }
        taken == Taken::Quietly
    }
}

impl World {
    /// A packet of that lane comes into the input buffer at an end of a link without credits, and takes so many blocks. False:
    /// there is no room for it. The ports of switches count for themselves.
    pub(super) fn take_in(&mut self, number: usize, end: usize, port: PortRef, lane: u8, blocks: u8) -> bool {
        let Some(intake) = self.intake(number, port) else { return true };
        let now = self.now;
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return true };
        let taken = intake.take(now, near, lane, blocks);
        if taken == Taken::Asking {
            self.flow_control(number, end, false);
        }
        taken != Taken::Not
    }

    /// The same, if the peer is not to be asked for anything then. False: it is not taken in.
    pub(super) fn takes_quietly(
        &mut self,
        (number, end): (usize, usize),
        port: PortRef,
        lane: u8,
        blocks: u8,
    ) -> bool {
        let Some(intake) = self.intake(number, port) else { return true };
        let now = self.now;
        let near = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end));
        near.is_none_or(|near| intake.take_quietly(now, near, lane, blocks))
    }

    /// What a port of an adapter takes in by that link. `None`: there are credits, or the port counts for itself.
    pub(super) fn intake(&self, number: usize, port: PortRef) -> Option<Intake> {
        let times = self.room_without_credits(number, port)?;
        let layout = *self.port(port)?.ethernet()?.buffers.layout();
        Some(Intake { layout, times })
    }

    /// For how many quanta a port asks its peer to wait; and when it asks again, at that rate.
    fn pause_times(&self, port: PortRef, line: LineRate) -> (u16, Ps) {
        let own = match port.node {
            NodeId::Hca(_) => self.port(port).and_then(|p| p.ethernet()),
            NodeId::Switch(_) => None,
        };
        let (timer, refresh) =
            own.map_or(OF_SWITCH, |own| (own.buffers.xoff_timer, own.buffers.xoff_refresh));
        (timer, Pause::quanta(refresh, line))
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
        let Some(times) = self.room_without_credits(number, port) else { return };
        let Some(ethernet) = self.port(port).and_then(|p| p.ethernet()) else { return };
        let Some(near) = self.links.get(number).and_then(|l| l.ends.get(end)) else { return };
        let (sends, memory) = (ethernet.pause, Memory { layout: ethernet.buffers.layout(), times });
        let mut fullness = match sends.pfc_tx {
            0 if sends.tx => memory.all_fullness(near),
            // Whoever was asked before that was switched off goes on.
            0 => Fullness { full: 0, roomy: ALL },
            lossless => memory.fullness(near, lossless),
        };
        self.watch_for_stalls(number, end, port, &mut fullness);
        self.ask(number, end, fullness, again);
    }

    /// An adapter that has its peer wait for too long lets it go on, and drops what it has no room for: so one that is stuck does not stop a
    /// whole fabric (storms of PAUSE).
    fn watch_for_stalls(&mut self, number: usize, end: usize, port: PortRef, fullness: &mut Fullness) {
        let now = self.now;
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        if !near.asked.concerns_somebody() {
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
        if stop | release == 0 {
            return;
        }
        let (timer, refresh) = self.pause_times(port, line);
        let Some(ethernet) = self.port_mut(port).and_then(|p| p.ethernet_mut()) else { return };
        // Whoever was stopped in one way is let go on in that way.
        if !asked.is_waited_for() {
            asked.by_priority = ethernet.pause.pfc_tx != 0;
        }
        let mut pause =
            Pause { by_priority: asked.by_priority, lanes: stop | release, quanta: [0; PRIORITIES] };
        let stopped = |(lane, _): &(usize, &mut u16)| stop >> lane & 1 == 1;
        pause.quanta.iter_mut().enumerate().filter(stopped).for_each(|(_, quanta)| *quanta = timer);
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
        self.look_again(number, end, now + refresh);
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
        let line = near.line;
        let (_, refresh) = self.pause_times(port, line);
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        let again = near.asked.is_old(now, refresh);
        self.flow_control(number, end, again);
        let Some(near) = self.links.get_mut(number).and_then(|l| l.ends.get_mut(end)) else { return };
        let next = near.release_due(now);
        self.look_again(number, end, next.map_or(now + refresh, |next| next.min(now + refresh)));
    }
}

impl Rebase for Asked {
    fn rebase(&mut self, by: Ps) {
        let Self { waiting, since, timer, stalled, by_priority: _, told: _, given_up: _ } = self;
        waiting.rebase(by);
        since.rebase(by);
        timer.rebase(by);
        stalled.rebase(by);
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
