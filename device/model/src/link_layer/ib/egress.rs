//! The sending side of a port: a queue and credits for each virtual lane, and one packet after another on the link.
//!
//! Source: IBTA vol 1 7.6 (virtual lanes), 7.9 (flow control: credits of 64 bytes for each lane but VL15), 14.2.5.4
//! and 14.2.5.6 (lifetime of packets in a switch), 16.1.3.5 (counters).
//!
//! Flow control packets take no room on the link. What they tell is: when room in the peer's input buffer comes free the
//! credits for it are here one link latency later, and count from then on. Credits on their way need no event, unless
//! a packet waits for them.

mod lifted;

use std::collections::VecDeque;

use hca_firmware::port::classes::Classes;

use super::VL15;
use super::arbiter::{Arbiter, Tables};
use crate::ground::epoch::Rebase;
use crate::ground::rate::LineRate;
use crate::ground::time::Ps;
use crate::link_layer::eth::selection::{Selection, Waits};
use crate::link_layer::outlet::{BLOCK, blocks};
use crate::link_layer::{LANES, Next, Outcome, Packet, Sent, Wait};

/// The room in a peer's input buffer, as far as this end knows.
#[derive(Debug, Clone, Default)]
struct Credits {
    /// `None`: there is always room.
    free: Option<u32>,
    /// What comes free, by time.
    coming: VecDeque<(Ps, u32)>,
    /// What packets have taken, and was not given back: no more can come free, whatever the peer says.
    taken: u32,
}

impl Credits {
    /// A buffer that is empty, with room for so many; `None`: without end.
    fn of(free: Option<u32>) -> Self {
        Self { free, ..Self::default() }
    }

    /// When so many were or will be here; `None`: that is not known yet.
    fn when(&self, wanted: u32) -> Option<Ps> {
        let Some(mut have) = self.free else { return Some(Ps::ZERO) };
        if have >= wanted {
            return Some(Ps::ZERO);
        }
        self.coming.iter().find_map(|(at, n)| {
            have = have.saturating_add(*n);
            (have >= wanted).then_some(*at)
        })
    }

    /// Whether so many are here at `now`.
    #[inline]
    fn has(&self, now: Ps, wanted: u32) -> bool {
        self.free.is_none_or(|free| free >= wanted) || self.when(wanted).is_some_and(|at| at <= now)
    }

    /// Takes so many of those that are here at `now`.
    #[inline]
    fn take(&mut self, now: Ps, wanted: u32) {
        let Some(free) = &mut self.free else { return };
        while let Some((_, n)) = self.coming.pop_front_if(|(at, _)| *at <= now) {
            *free = free.saturating_add(n);
        }
        *free = free.saturating_sub(wanted);
        self.taken = self.taken.saturating_add(wanted);
    }

    /// So many come free at `at`. What the peer never had is left out, so that there are at most as many of these as packets were sent
    /// into its buffer.
    #[inline]
    fn add(&mut self, at: Ps, n: u32) {
        let n = n.min(self.taken);
        if n == 0 || self.free.is_none() {
            return;
        }
        self.taken -= n;
        match self.coming.back() {
            Some((last, _)) if *last > at => {
                let place = self.coming.partition_point(|(other, _)| *other <= at);
                self.coming.insert(place, (at, n));
            }
            _ => self.coming.push_back((at, n)),
        }
    }
}

/// A packet that waits, and what it keeps occupied meanwhile.
#[derive(Debug)]
struct Queued<H> {
    packet: Packet,
    hold: H,
    /// When it can leave at the earliest.
    ready: Ps,
    /// When it became the first of its queue.
    first_since: Ps,
    /// When its switch discards it at the latest.
    dies: Ps,
}

/// What waits for a virtual lane.
#[derive(Debug)]
struct LaneQueue<H> {
    queue: VecDeque<Queued<H>>,
    bytes: usize,
    /// Bytes of packets that are being made.
    coming: usize,
    credits: Credits,
}

impl<H> Default for LaneQueue<H> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), bytes: 0, coming: 0, credits: Credits::default() }
    }
}

/// Limits of a port.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// How long a packet may be the first of its queue (PortInfo:HOQLife).
    pub(crate) head_of_queue: Option<Ps>,
    /// VL15: packets that wait at most.
    pub(crate) management: usize,
}

/// Whose turn it is among lanes.
#[derive(Debug)]
enum Turns {
    /// As the tables of a subnet manager say.
    Tables(Arbiter),
    /// As the traffic classes of an Ethernet port say.
    Classes(Box<Selection>),
}

impl Turns {
    /// Whether a lane may have to wait because of what it sends.
    #[inline]
    fn is_limited(&self, vl: u8) -> bool {
        match self {
            Self::Tables(_) => false,
            Self::Classes(selection) => selection.is_limited(vl),
        }
    }

    /// The lane that sends at `start`, of those whose bits are set, a packet of so many bytes; and, where there are limits, which
    /// lanes, a bit each, wait until when because of that.
    #[inline]
    fn pick(
        &mut self,
        candidates: u16,
        start: Ps,
        size: impl Fn(u8) -> usize,
    ) -> Option<(u8, Option<Waits>)> {
        match self {
            Self::Tables(arbiter) => Some((arbiter.pick(candidates, size)?, None)),
            Self::Classes(selection) => {
                let vl = selection.pick(candidates, &size)?;
                Some((vl, selection.limit(vl, start, size(vl))))
            }
        }
    }
}

/// The sending side of a port. `H` is what a packet keeps occupied until it has left.
#[derive(Debug)]
pub(crate) struct Egress<H> {
    /// What packets occupy of the link.
    line: Option<LineRate>,
    /// Symbol time of it, in picoseconds.
    symbol: u64,
    busy_until: Ps,
    lanes: [LaneQueue<H>; LANES],
    /// Bit n: something waits in lane n.
    waiting: u16,
    turns: Turns,
    pub(crate) limits: Limits,
    /// Picoseconds for which packets were ready and had no credits.
    starved: u64,
    /// For when somebody was asked to look at credits that arrive.
    credit_timer: Option<Ps>,
    /// Until when lanes wait because the peer asked for it.
    paused: [Ps; LANES],
    /// Until when they wait because they sent what they may.
    limited: [Ps; LANES],
    /// The later of both.
    held: [Ps; LANES],
}

impl<H> Default for Egress<H> {
    fn default() -> Self {
        Self {
            line: None,
            symbol: 0,
            busy_until: Ps::ZERO,
            lanes: Default::default(),
            waiting: 0,
            turns: Turns::Tables(Arbiter::default()),
            limits: Limits::default(),
            starved: 0,
            credit_timer: None,
            paused: [Ps::ZERO; LANES],
            limited: [Ps::ZERO; LANES],
            held: [Ps::ZERO; LANES],
        }
    }
}

impl<H> Egress<H> {
    /// A cable is plugged in, or its link trained to this.
    pub(crate) fn plug(&mut self, line: LineRate) {
        (self.line, self.symbol) = (Some(line), line.symbol().0);
    }

    /// The link trained: the peer's buffers are empty, with room for so many bytes in each lane; `None`: without end.
    pub(crate) fn train(&mut self, room: Option<usize>) {
        for lane in self.lanes.iter_mut().take(VL15.into()) {
            lane.credits = Credits::of(room.map(|bytes| (bytes / BLOCK) as u32));
        }
        self.paused = [Ps::ZERO; LANES];
        self.held = self.limited;
    }

    /// The peer asks for a lane to wait until then; not later than now: it may go on. Says when to call
    /// [`Egress::credits_arrive`], if a packet waits for that.
    #[must_use]
    pub(crate) fn pause(&mut self, now: Ps, lane: u8, until: Ps) -> Option<Ps> {
        *self.paused.get_mut(usize::from(lane))? = until;
        let limited = self.limited.get(usize::from(lane)).copied().unwrap_or_default();
        *self.held.get_mut(usize::from(lane))? = until.max(limited);
        let waits = self.waiting >> lane & 1 == 1 && until > now;
        if waits { self.ask_for_credits(now, until) } else { None }
    }

    /// Until when a lane waits because the peer asked for it.
    pub(crate) fn paused_until(&self, lane: u8) -> Ps {
        self.paused.get(usize::from(lane)).copied().unwrap_or_default()
    }

    /// What its packets occupy of the link, if a cable is in.
    pub(crate) fn line(&self) -> Option<LineRate> {
        self.line
    }

    /// The link went down: everything that waits is discarded.
    pub(crate) fn clear(&mut self, now: Ps) -> Vec<Outcome<H>> {
        self.waiting = 0;
        self.credit_timer = None;
        let queues = self.lanes.iter_mut().flat_map(|lane| {
            lane.bytes = 0;
            lane.queue.drain(..)
        });
        queues.map(|q| Outcome::Discarded { at: now, hold: q.hold }).collect()
    }

    /// Every packet that waits has its payload's bytes itself from now on.
    pub(crate) fn fetch_payload(&mut self) {
        self.lanes
            .iter_mut()
            .flat_map(|lane| &mut lane.queue)
            .for_each(|queued| queued.packet.fetch_payload());
    }

    /// Of the packets that wait, the first of a lane that is such.
    pub(crate) fn first(&self, such: impl Fn(&Packet) -> bool) -> Option<&Packet> {
        let lanes = if self.waiting == 0 { &[] } else { self.lanes.as_slice() };
        lanes.iter().flat_map(|lane| &lane.queue).map(|queued| &queued.packet).find(|packet| such(packet))
    }

    /// The subnet manager wrote the arbitration tables.
    pub(crate) fn program(&mut self, tables: Tables) {
        if let Turns::Tables(arbiter) = &mut self.turns {
            arbiter.program(tables);
        }
    }

    /// Software set the traffic classes of an Ethernet port.
    pub(in crate::link_layer) fn classify(&mut self, classes: &Classes) {
        if let Turns::Tables(_) = self.turns {
            self.turns = Turns::Classes(Box::default());
        }
        if let Turns::Classes(selection) = &mut self.turns {
            selection.configure(classes);
        }
    }

    /// Lanes may send again from then on, if they had to stop before.
    fn hold(&mut self, lanes: u16, until: Ps) {
        let times = self.limited.iter_mut().zip(&mut self.held).zip(&self.paused).enumerate();
        for (_, ((limited, held), paused)) in times.filter(|(lane, _)| lanes >> lane & 1 == 1) {
            *limited = (*limited).max(until);
            *held = (*limited).max(*paused);
        }
    }

    /// How long `bytes` of a packet occupy the link.
    pub(crate) fn serialisation(&self, bytes: usize) -> Ps {
        self.line.map_or(Ps::ZERO, |line| line.serialisation(bytes))
    }

    /// Takes a packet that may leave from `ready` on, on the lane that its LRH says; it is discarded if it is still
    /// here when it `dies`. Returns its hold if there is no room, which is so on VL15 only.
    pub(crate) fn push(&mut self, ready: Ps, dies: Ps, packet: Packet, hold: H) -> Result<(), H> {
        let vl = packet.lane();
        let Some(lane) = self.lanes.get_mut(usize::from(vl)) else { return Err(hold) };
        if vl == VL15 && lane.queue.len() >= self.limits.management {
            return Err(hold);
        }
        lane.bytes += packet.len();
        lane.queue.push_back(Queued { packet, hold, ready, first_since: ready, dies });
        self.waiting |= 1 << vl;
        Ok(())
    }

    /// Whether a packet that comes to a lane now only makes its queue longer: others wait there, and the link is busy. Says
    /// until when.
    #[inline]
    pub(crate) fn is_behind(&self, now: Ps, vl: u8) -> Option<Ps> {
        let behind = self.busy_until > now && self.lanes.get(usize::from(vl))?.queue.front().is_some();
        behind.then_some(self.busy_until)
    }

    /// Credits of a lane arrive at `at`. Says when to call [`Egress::credits_arrive`], if a packet waits for them.
    #[must_use]
    #[inline]
    pub(crate) fn credit(&mut self, now: Ps, vl: u8, n: u32, at: Ps) -> Option<Ps> {
        let lane = self.lanes.get_mut(usize::from(vl))?;
        lane.credits.add(at, n);
        let head = lane.queue.front()?;
        let enough = lane.credits.when(blocks(head.packet.len()))?;
        self.ask_for_credits(now, enough)
    }

    /// Credits that were waited for arrive at `now`. Says whether the first packet of a lane has enough since this
    /// moment, so that it may leave; otherwise, when to come again.
    ///
    /// The first depends on what arrives at `now` alone, not on when it became known that it would.
    pub(crate) fn credits_arrive(&mut self, now: Ps) -> Result<(), Option<Ps>> {
        self.credit_timer = self.credit_timer.filter(|timer| *timer > now);
        let mut next = None;
        for (lane, held) in self.lanes.iter().zip(&self.held) {
            let Some(head) = lane.queue.front() else { continue };
            match lane.credits.when(blocks(head.packet.len())).map(|at| at.max(*held)) {
                Some(at) if at == now => return Ok(()),
                Some(at) if at > now => next = Some(next.map_or(at, |next: Ps| next.min(at))),
                _ => {}
            }
        }
        Err(next.and_then(|at| self.ask_for_credits(now, at)))
    }

    /// When somebody has to look at credits that arrive at `at`, if nobody was asked to.
    fn ask_for_credits(&mut self, now: Ps, at: Ps) -> Option<Ps> {
        let new = at > now && self.credit_timer.is_none_or(|timer| at < timer);
        new.then(|| *self.credit_timer.insert(at))
    }

    /// Whether something waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting != 0
    }

    /// A packet of so many bytes is being made for a lane.
    pub(crate) fn reserve(&mut self, vl: u8, bytes: usize) {
        if let Some(lane) = self.lanes.get_mut(usize::from(vl)) {
            lane.coming = lane.coming.saturating_add(bytes);
        }
    }

    /// It is there, or will not come.
    pub(crate) fn unreserve(&mut self, vl: u8, bytes: usize) {
        if let Some(lane) = self.lanes.get_mut(usize::from(vl)) {
            lane.coming = lane.coming.saturating_sub(bytes);
        }
    }

    /// Nothing that is being made will come.
    pub(crate) fn forget_reserved(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.coming = 0);
    }

    /// Bytes that wait for a lane.
    pub(crate) fn waiting_bytes(&self, lane: u8) -> usize {
        self.lanes.get(usize::from(lane)).map_or(0, |lane| lane.bytes)
    }

    /// Whether a sender may make another packet for a lane: less than `limit` bytes wait there or are being made.
    pub(crate) fn has_room(&self, vl: u8, limit: usize) -> bool {
        self.lanes.get(usize::from(vl)).is_none_or(|lane| lane.bytes.saturating_add(lane.coming) < limit)
    }

    /// Symbol times of the link for which packets were ready and had no credits since the last call (IBTA vol 1
    /// 16.1.4.11, PortXmitWait).
    pub(crate) fn take_waits(&mut self) -> u64 {
        if self.starved < self.symbol {
            return 0;
        }
        let symbol = self.symbol.max(1);
        let ticks = self.starved / symbol;
        self.starved %= symbol;
        ticks
    }

    /// Sends a packet that comes at `now`, on the lane that it is on, and waits for nothing: nothing else waits, the link is free, and
    /// its lane has credits. The same as [`Egress::push`] and [`Egress::next`]. Returns it otherwise.
    #[inline]
    pub(crate) fn pass(&mut self, now: Ps, packet: Packet, hold: H) -> Result<Sent<H>, (Packet, H)> {
        let (vl, len) = (packet.lane(), packet.len());
        let place = usize::from(vl);
        let open = self.waiting == 0
            && self.busy_until <= now
            && vl != VL15
            && self.limits.head_of_queue.is_none()
            && self.held.get(place).is_some_and(|held| *held <= now)
            && self.lanes.get(place).is_some_and(|lane| lane.credits.has(now, blocks(len)));
        if !open {
            return Err((packet, hold));
        }
        let Some((_, limits)) = self.turns.pick(1 << vl, now, |_| len) else { return Err((packet, hold)) };
        limits.into_iter().flatten().for_each(|(lanes, until)| self.hold(lanes, until));
        if let Some(lane) = self.lanes.get_mut(place) {
            lane.credits.take(now, blocks(len));
        }
        Ok(self.begin(now, packet, hold))
    }

    /// A packet begins to leave at `start`.
    #[inline]
    fn begin(&mut self, start: Ps, packet: Packet, hold: H) -> Sent<H> {
        let end = start + self.serialisation(packet.len());
        self.busy_until = end;
        Sent { start, end, packet, hold }
    }

    /// Sends everything that can leave up to `horizon`. Returns what became of packets, and when to come again.
    pub(crate) fn pump(&mut self, now: Ps, horizon: Ps, out: &mut Vec<Outcome<H>>) -> Wait {
        loop {
            match self.next(now, horizon) {
                Next::Outcome(outcome) => out.push(outcome),
                Next::Wait(wait) => return wait,
            }
        }
    }

    /// Sends the next packet, if one can leave up to `horizon` with the credits that are here at `now`.
    pub(crate) fn next(&mut self, now: Ps, horizon: Ps) -> Next<H> {
        let (mut start, mut ready, mut deadline, mut enough) = (Ps::MAX, Ps::MAX, Ps::MAX, Ps::MAX);
        let mut candidates = 0u16;
        let mut lanes = self.waiting;
        while lanes != 0 {
            let vl = lanes.trailing_zeros() as usize;
            lanes &= lanes - 1;
            let Some(lane) = self.lanes.get(vl) else { continue };
            let Some(head) = lane.queue.front() else { continue };
            let could = head.ready.max(self.busy_until);
            ready = ready.min(could);
            let dies =
                self.limits.head_of_queue.map_or(head.dies, |life| head.dies.min(head.first_since + life));
            if dies <= now {
                match self.drop_head(vl, now) {
                    Some(outcome) => return Next::Outcome(outcome),
                    None => continue,
                }
            }
            deadline = deadline.min(dies);
            let held = self.held.get(vl).copied().unwrap_or_default();
            let Some(credits) = lane.credits.when(blocks(head.packet.len())) else { continue };
            let credits = credits.max(held);
            if credits > now {
                enough = enough.min(credits);
                continue;
            }
            let at = could.max(credits);
            // It will not leave while it is fit to.
            if at >= dies {
                continue;
            }
            if at < start {
                (start, candidates) = (at, 0);
            }
            if at == start {
                candidates |= 1 << vl;
            }
        }
        if self.waiting == 0 {
            return Next::Wait(Wait::default());
        }
        if start > horizon || candidates == 0 {
            // To be in time for what starts then; what dies is looked for when it is dead.
            let next = if start == Ps::MAX { start } else { start.since(horizon.since(now)).max(now) };
            let next = next.min(deadline);
            let until = (next != Ps::MAX).then_some(next);
            let credits = if enough == Ps::MAX { None } else { self.ask_for_credits(now, enough) };
            return Next::Wait(Wait { until, credits });
        }
        self.send(now, start, ready, candidates)
            .map_or(Next::Wait(Wait::default()), |sent| Next::Outcome(Outcome::Sent(sent)))
    }

    /// One of the candidates' packets leaves at `start`.
    #[inline]
    fn send(&mut self, now: Ps, start: Ps, ready: Ps, candidates: u16) -> Option<Sent<H>> {
        let lanes = &self.lanes;
        let size = |vl: u8| {
            let head = lanes.get(usize::from(vl)).and_then(|l| l.queue.front());
            head.map_or(0, |h| h.packet.len())
        };
        let (vl, limits) = self.turns.pick(candidates, start, size)?;
        limits.into_iter().flatten().for_each(|(lanes, until)| self.hold(lanes, until));
        self.starved = self.starved.saturating_add(start.since(ready).0);
        let lane = self.lanes.get_mut(usize::from(vl))?;
        let Queued { packet, hold, .. } = lane.queue.pop_front()?;
        lane.bytes = lane.bytes.saturating_sub(packet.len());
        lane.credits.take(now, blocks(packet.len()));
        match lane.queue.front_mut() {
            Some(next) => next.first_since = next.first_since.max(start),
            None => self.waiting &= !(1 << vl),
        }
        Some(self.begin(start, packet, hold))
    }

    fn drop_head(&mut self, vl: usize, now: Ps) -> Option<Outcome<H>> {
        let lane = self.lanes.get_mut(vl)?;
        let head = lane.queue.pop_front()?;
        lane.bytes = lane.bytes.saturating_sub(head.packet.len());
        match lane.queue.front_mut() {
            Some(next) => next.first_since = next.first_since.max(now),
            None => self.waiting &= !(1 << vl),
        }
        Some(Outcome::Discarded { at: now, hold: head.hold })
    }
}

impl Rebase for Credits {
    fn rebase(&mut self, by: Ps) {
        let Self { free: _, coming, taken: _ } = self;
        coming.iter_mut().for_each(|(at, _)| at.rebase(by));
    }
}

impl<H> Rebase for Queued<H> {
    fn rebase(&mut self, by: Ps) {
        let Self { packet: _, hold: _, ready, first_since, dies } = self;
        ready.rebase(by);
        first_since.rebase(by);
        dies.rebase(by);
    }
}

impl<H> Rebase for LaneQueue<H> {
    fn rebase(&mut self, by: Ps) {
        let Self { queue, bytes: _, coming: _, credits } = self;
        queue.rebase(by);
        credits.rebase(by);
    }
}

impl<H> Rebase for Egress<H> {
    fn rebase(&mut self, by: Ps) {
        let Self {
            busy_until,
            lanes,
            credit_timer,
            paused,
            limited,
            held,
            line: _,
            symbol: _,
            waiting: _,
            turns: _,
            limits: _,
            starved: _,
        } = self;
        busy_until.rebase(by);
        lanes.rebase(by);
        credit_timer.rebase(by);
        paused.rebase(by);
        limited.rebase(by);
        held.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use hca_spec::ids::Lid;

    use super::*;
    use crate::ground::rate::LinkRate;
    use crate::link_layer::ib;
    use crate::wire::Repr;

    /// 4x EDR: 80 ps for a byte.
    fn port(room: Option<usize>) -> Egress<u32> {
        let mut egress = Egress::default();
        egress.plug(LineRate::new(LinkRate::Edr, 4));
        egress.limits.management = 2;
        egress.train(room);
        egress
    }

    fn packet(vl: u8, payload: usize) -> Packet {
        let path = ib::Address { vl, dlid: Lid(1), ..ib::Address::default() }.into();
        Packet::build(&path, &Repr::default(), payload, |_| Ok::<(), ()>(())).expect("nothing to fail")
    }

    const PAYLOAD: usize = 1024;
    const SIZE: usize = PAYLOAD + Packet::MIN_SIZE;
    const TIME: Ps = Ps((SIZE as u64 + 2) * 80);

    /// What was sent, as hold and start.
    fn sent(egress: &mut Egress<u32>, now: Ps) -> (Vec<(u32, Ps)>, Option<Ps>) {
        let mut out = Vec::new();
        let next = egress.pump(now, now, &mut out);
        let sent = out.into_iter().map(|o| match o {
            Outcome::Sent(s) => (s.hold, s.start),
            Outcome::Discarded { at, hold } => (hold + 1000, at),
        });
        assert_eq!(next.credits, None);
        (sent.collect(), next.until)
    }

    #[test]
    fn one_after_another() {
        let mut e = port(None);
        for hold in 0..3 {
            e.push(Ps(100), Ps::MAX, packet(0, PAYLOAD), hold).unwrap();
        }
        assert_eq!(sent(&mut e, Ps(50)), (vec![], Some(Ps(100))));
        assert_eq!(sent(&mut e, Ps(100)), (vec![(0, Ps(100))], Some(Ps(100) + TIME)));
        let far = Ps::from_us(1);
        assert_eq!(sent(&mut e, far).0, [(1, Ps(100) + TIME), (2, Ps(100) + TIME.times(2))]);
        assert!(!e.is_waiting() && e.take_waits() == 0);
    }

    /// Whatever the peer says of its buffer, there is no more room than there was, and no more is kept of it than packets were sent.
    #[test]
    fn credits_that_no_packet_took_are_none() {
        let mut e = port(Some(2 * 17 * BLOCK));
        for hold in 0..5 {
            e.push(Ps::ZERO, Ps::MAX, packet(1, PAYLOAD), hold).unwrap();
        }
        let far = Ps::from_us(10);
        assert_eq!(sent(&mut e, far).0.len(), 2);
        for i in 0..1000 {
            // Of a lane that sends nothing, nothing at all, and all that there may be.
            let _ = e.credit(far, 2, 5, far + Ps(i));
            let _ = e.credit(far, 1, 0, far + Ps(i));
        }
        for i in 0..1000 {
            let _ = e.credit(far, 1, u32::MAX, far + Ps(i));
        }
        assert_eq!((e.lanes[1].credits.coming.len(), e.lanes[2].credits.coming.len()), (1, 0));
        assert_eq!(sent(&mut e, far + TIME.times(9)).0.len(), 2, "two fit again, and no more");
    }

    #[test]
    fn no_more_than_the_peer_has_room_for() {
        // 17 blocks a packet: two fit.
        let mut e = port(Some(2 * 17 * BLOCK));
        for hold in 0..4 {
            e.push(Ps::ZERO, Ps::MAX, packet(1, PAYLOAD), hold).unwrap();
        }
        let far = Ps::from_us(10);
        assert_eq!(sent(&mut e, far), (vec![(0, Ps::ZERO), (1, TIME)], None), "nobody knows when");
        // A part of what is needed now, the rest later: it leaves then.
        assert_eq!(e.credit(far, 1, 10, far), None);
        assert_eq!(sent(&mut e, far), (vec![], None));
        assert_eq!(e.credit(far, 1, 8, far + Ps(5)), Some(far + Ps(5)), "it is to be looked at then");
        assert_eq!(e.credit(far, 1, 1, far + Ps(7)), None, "it is, before");
        assert_eq!(sent(&mut e, far), (vec![], None));
        assert_eq!(e.credits_arrive(far + Ps(4)), Err(None), "not yet, and somebody comes");
        assert_eq!(e.credits_arrive(far + Ps(5)), Ok(()));
        assert_eq!(sent(&mut e, far + Ps(5)), (vec![(2, far + Ps(5))], None));
        assert_eq!(e.credits_arrive(far + Ps(7)), Err(None), "nobody waits for these");
        // From the end of the second packet on the third waited: a symbol time is 320 ps.
        let waited = (far + Ps(5)) - TIME.times(2);
        assert!(e.take_waits().abs_diff(waited.0 / 320) <= waited.0 / 32_000, "1 %");
        // Another lane has credits of its own, and management needs none.
        e.push(far, Ps::MAX, packet(2, PAYLOAD), 7).unwrap();
        e.push(far, Ps::MAX, packet(VL15, 256), 8).unwrap();
        assert_eq!(sent(&mut e, far + TIME.times(3)).0.iter().map(|s| s.0).collect::<Vec<_>>(), [8, 7]);
    }

    #[test]
    fn nothing_waits_for_ever() {
        let mut e = port(Some(17 * BLOCK));
        e.limits.head_of_queue = Some(Ps::from_us(5));
        for hold in 0..4 {
            e.push(Ps::ZERO, Ps::from_us(8), packet(0, PAYLOAD), hold).unwrap();
        }
        assert_eq!(sent(&mut e, Ps::ZERO), (vec![(0, Ps::ZERO)], Some(Ps::from_us(5))));
        assert_eq!(sent(&mut e, Ps::from_us(5)), (vec![(1001, Ps::from_us(5))], Some(Ps::from_us(8))));
        let at = Ps::from_us(8);
        assert_eq!(sent(&mut e, at), (vec![(1002, at), (1003, at)], None), "the packets' own limit");
        e.push(at, Ps::MAX, packet(0, 4), 9).unwrap();
        assert_eq!(e.clear(at).len(), 1);
        assert!(!e.is_waiting());
    }

    #[test]
    fn room_for_senders() {
        const LIMIT: usize = 2 * SIZE;
        let mut e = port(Some(17 * BLOCK));
        for hold in 0..2 {
            assert!(e.has_room(0, LIMIT));
            e.reserve(0, SIZE);
            assert_eq!(e.has_room(0, LIMIT), hold == 0, "what is being made counts");
        }
        for hold in 0..2 {
            e.unreserve(0, SIZE);
            e.push(Ps::ZERO, Ps::MAX, packet(0, PAYLOAD), hold).unwrap();
        }
        assert!(!e.has_room(0, LIMIT) && e.has_room(1, LIMIT));
        // One has left, the other has no credits.
        sent(&mut e, Ps::from_us(1));
        e.reserve(0, SIZE);
        assert!(!e.has_room(0, LIMIT));
        for hold in 0..2 {
            e.push(Ps::ZERO, Ps::MAX, packet(VL15, 256), hold).unwrap();
        }
        assert_eq!(e.push(Ps::ZERO, Ps::MAX, packet(VL15, 256), 2), Err(2), "no third");
    }
}
