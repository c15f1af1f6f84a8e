//! Packets of a flow that wait for a port's link, as times: those of one lane, while nothing else waits.

use std::collections::VecDeque;

use super::{Credits, Egress, Queued};
use crate::ground::time::Ps;
use crate::link_layer::ib::VL15;
use crate::link_layer::outlet::blocks;
use crate::link_layer::{Leaving, Lifted, Packet, Size};

impl Egress<()> {
    /// Takes out what waits for a lane, if these are so many packets each of which `belongs`, and nothing else waits or may become too old.
    /// They are counted as waiting still. Most have `len` bytes.
    pub(crate) fn lift(
        &mut self,
        vl: u8,
        (count, len): (usize, usize),
        mut belongs: impl FnMut(&Packet) -> bool,
        mut take: impl FnMut(Packet),
    ) -> Option<Lifted> {
        let line = self.line?;
        let size = |len| Size { len, blocks: blocks(len), time: line.serialisation(len) };
        let lane = self.lanes.get_mut(usize::from(vl))?;
        let plain = vl != VL15
            && self.waiting & !(1 << vl) == 0
            && self.limits.head_of_queue.is_none()
            && lane.queue.len() == count
            && lane.queue.iter().all(|q| q.dies == Ps::MAX && belongs(&q.packet));
        if !plain {
            return None;
        }
        let first_since = lane.queue.front().map_or(Ps::ZERO, |first| first.first_since);
        let (others, ready) = (VecDeque::new(), VecDeque::with_capacity(count));
        let mut lifted = Lifted { vl, alike: size(len), others, number: 0, ready, first_since };
        for Queued { packet, ready, .. } in lane.queue.drain(..) {
            let len = packet.len();
            lifted.join(ready, || size(len), len);
            take(packet);
        }
        self.waiting = 0;
        Some(lifted)
    }

    /// Puts them back, each as `make` makes it of its place.
    pub(crate) fn lower(&mut self, lifted: Lifted, mut make: impl FnMut(usize) -> Option<Packet>) {
        let Lifted { vl, ready, first_since, .. } = lifted;
        let Some(lane) = self.lanes.get_mut(usize::from(vl)) else { return };
        for (i, ready) in ready.into_iter().enumerate() {
            let Some(packet) = make(i) else { continue };
            let first_since = if i == 0 { first_since } else { ready };
            lane.queue.push_back(Queued { packet, hold: (), ready, first_since, dies: Ps::MAX });
            self.waiting |= 1 << vl;
        }
    }

    /// Until when the link is busy, if a packet that comes at `now` only makes the queue longer.
    #[inline]
    pub(crate) fn lifted_until(&self, lifted: &Lifted, now: Ps) -> Option<Ps> {
        (self.busy_until > now && !lifted.ready.is_empty()).then_some(self.busy_until)
    }

    /// One more comes, at `now`, of `len` bytes.
    #[inline]
    pub(crate) fn push_lifted(&mut self, lifted: &mut Lifted, now: Ps, len: usize) {
        if lifted.ready.is_empty() {
            lifted.first_since = now;
        }
        lifted.join(now, || Size { len, blocks: blocks(len), time: self.serialisation(len) }, len);
        if let Some(lane) = self.lanes.get_mut(usize::from(lifted.vl)) {
            lane.bytes += len;
            lane.coming = lane.coming.saturating_sub(len);
        }
    }

    /// The first leaves at `now`, if it can.
    #[inline]
    pub(crate) fn next_lifted(&mut self, lifted: &mut Lifted, now: Ps) -> Leaving {
        let Some(ready) = lifted.ready.front() else { return Leaving::None };
        let could = (*ready).max(self.busy_until);
        let Size { len, blocks, time } = lifted.first();
        let vl = usize::from(lifted.vl);
        let (Some(lane), Some(held)) = (self.lanes.get_mut(vl), self.held.get(vl)) else {
            return Leaving::Held;
        };
        let credits = lane.credits.when(blocks).map(|at| at.max(*held));
        let Some(credits) = credits.filter(|at| *at <= now) else { return Leaving::Held };
        let start = could.max(credits);
        if start > now {
            return Leaving::Then(start);
        }
        let picked = self.turns.pick(1 << vl, start, |_| len);
        let Some((_, limits)) = picked.filter(|(picked, _)| *picked == lifted.vl) else {
            return Leaving::Held;
        };
        self.starved = self.starved.saturating_add(start.since(could).0);
        lifted.leave();
        lane.bytes = lane.bytes.saturating_sub(len);
        lane.credits.take(now, blocks);
        if let Some(next) = lifted.ready.front() {
            lifted.first_since = (*next).max(start);
        }
        self.busy_until = start + time;
        limits.into_iter().flatten().for_each(|(lanes, until)| self.hold(lanes, until));
        Leaving::Sent(start, len)
    }

    /// Whether the first leaves at `now`, and the next one when the link is free again: two calls of [`Egress::next_lifted`] would say
    /// so. If not, they may say so yet.
    #[inline]
    pub(crate) fn may_leave_lifted(&mut self, lifted: &Lifted, now: Ps) -> bool {
        let vl = usize::from(lifted.vl);
        let (Some(lane), Some(held)) = (self.lanes.get(vl), self.held.get(vl)) else { return false };
        self.busy_until == now
            && lifted.are_alike()
            && lifted.ready.len() > 1
            && lifted.ready.front().is_some_and(|ready| *ready <= now)
            && *held <= now
            && lane.credits.free.is_none_or(|free| free >= lifted.alike.blocks.saturating_mul(2))
            && !self.turns.is_limited(lifted.vl)
    }

    /// It does. Returns when the link is free again.
    #[inline]
    pub(crate) fn leave_lifted(&mut self, lifted: &mut Lifted, now: Ps) -> Ps {
        self.turns.pick(1 << lifted.vl, now, |_| lifted.alike.len);
        lifted.ready.pop_front();
        if let Some(lane) = self.lanes.get_mut(usize::from(lifted.vl)) {
            lane.bytes = lane.bytes.saturating_sub(lifted.alike.len);
            lane.credits.take(now, lifted.alike.blocks);
        }
        if let Some(next) = lifted.ready.front() {
            lifted.first_since = (*next).max(now);
        }
        self.busy_until = now + lifted.alike.time;
        self.busy_until
    }

    /// Whether packets that leave one after the other from now on, `gap` apart, find as many credits as the one that left at `now`: what
    /// comes free is one packet's credits, `gap` apart, the last at `last`.
    pub(crate) fn has_regular_credits(&self, lifted: &Lifted, now: Ps, gap: Ps, last: Ps) -> bool {
        let Some(Credits { free, coming, .. }) =
            self.lanes.get(usize::from(lifted.vl)).map(|lane| &lane.credits)
        else {
            return false;
        };
        let Some(free) = free else { return true };
        let mut expected = now;
        let alike = coming.iter().enumerate().all(|(i, (at, n))| {
            let fits = if i == 0 { *at > now && *at <= now + gap } else { *at == expected + gap };
            expected = *at;
            fits && *n == lifted.alike.blocks
        });
        alike && !coming.is_empty() && expected == last && *free >= lifted.alike.blocks.saturating_mul(2)
    }

    /// So many packets have left, the last of them at `now`, and so many have come, as [`Egress::leave_lifted`] and
    /// [`Egress::push_lifted`] let them; for each that left one is being made, and credits came, `gap` apart.
    pub(crate) fn turned_over(
        &mut self,
        lifted: &mut Lifted,
        (now, gap): (Ps, Ps),
        [left, joined]: [usize; 2],
    ) {
        for _ in 0..left {
            self.turns.pick(1 << lifted.vl, now, |_| lifted.alike.len);
        }
        if let Some(lane) = self.lanes.get_mut(usize::from(lifted.vl)) {
            lane.bytes = (lane.bytes + joined * lifted.alike.len).saturating_sub(left * lifted.alike.len);
            lane.coming = (lane.coming + left * lifted.alike.len).saturating_sub(joined * lifted.alike.len);
            let later = gap.times(left as u64);
            lane.credits.coming.iter_mut().for_each(|(at, _)| *at += later);
        }
        if let Some(next) = lifted.ready.front() {
            lifted.first_since = (*next).max(now);
        }
        self.busy_until = now + lifted.alike.time;
    }

    /// The same as [`Egress::credit`] while what waits is taken out.
    #[inline]
    pub(crate) fn credit_lifted(&mut self, now: Ps, lifted: &Lifted, n: u32, at: Ps) -> Option<Ps> {
        let lane = self.lanes.get_mut(usize::from(lifted.vl))?;
        lane.credits.add(at, n);
        if lifted.ready.is_empty() {
            return None;
        }
        let enough = lane.credits.when(lifted.first().blocks)?;
        self.ask_for_credits(now, enough)
    }
}
