//! Packets that follow each other in a flow, each of which finds the units idle: when each is done follows from when it comes, and
//! nothing of the packets before it. So it is worked out without a look at the calendars, and they get, when the series is
//! over, those bookings that are not past: others nobody finds there any more. Where one does not find them idle the series ends.

use super::calendar::Ahead;
use super::{LINE_SHIFT, Units};
use crate::ground::time::Ps;
use crate::ground::timing::Place;

/// Packets at most whose bookings are not past.
const RECENT: usize = 8;
/// log2 of picoseconds, those of the longest pages: what is over before such a page is past in it.
const PAGE: u32 = super::POOL_PAGE;

/// What a packet has booked.
#[derive(Clone, Copy, Debug, Default)]
struct Booked {
    /// When it was booked, and when it is over.
    now: Ps,
    done: Ps,
    /// The first of the tags of its reads, if it has any.
    tag: usize,
}

/// The last packets of a series, as what they booked is known by.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    jobs: [Booked; RECENT],
    count: usize,
}

impl Recent {
    /// Whether there is a place for one that is booked at `now`: what had it is past.
    #[inline]
    fn has_place(&self, now: Ps) -> bool {
        self.count < RECENT || self.jobs.get(self.count % RECENT).is_some_and(|job| is_past(job.done, now))
    }

    #[inline]
    fn push(&mut self, job: Booked) {
        if let Some(place) = self.jobs.get_mut(self.count % RECENT) {
            *place = job;
        }
        self.count += 1;
    }

    /// Those that are not past at the last of them, in order.
    fn present(&self) -> impl Iterator<Item = Booked> + '_ {
        let first = self.count.saturating_sub(RECENT);
        let job = |i: usize| self.jobs.get(i % RECENT).copied();
        let now = self.count.checked_sub(1).and_then(job).map_or(Ps::ZERO, |last| last.now);
        (first..self.count).filter_map(job).filter(move |job| !is_past(job.done, now))
    }
}

/// The tags of the first and the last line of translations that a range needs: a line covers eight pages, so a packet needs two at most.
/// `None`: it needs none.
#[inline]
pub(super) fn lines_of(data: &Place) -> Option<[u64; 2]> {
    let page = data.page.filter(|_| data.len > 0)?;
    let shift = page.saturating_add(LINE_SHIFT).min(63);
    let (first, last) = (data.va >> shift, data.va.saturating_add(data.len as u64 - 1) >> shift);
    Some([first, last.min(first.saturating_add(1))].map(|line| u64::from(data.key) << 40 ^ line))
}

impl Receives {
    /// The key under which the payload of all goes, if where it goes is looked up.
    #[inline]
    pub(crate) fn key(&self) -> Option<u32> {
        self.key
    }
}

#[inline]
fn is_past(end: Ps, now: Ps) -> bool {
    end.0 >> PAGE < now.0 >> PAGE
}

/// Packets of one queue pair that are made.
#[derive(Debug)]
pub(crate) struct Sends {
    number: u32,
    /// They are answers, which keep their order among themselves.
    answers: bool,
    service: Ps,
    /// Requests that the data of a packet takes, what each takes of the link and what its data does.
    requests: usize,
    request: Ps,
    completion: Ps,
    /// What all take but one, of both.
    others: (Ps, Ps),
    latency: Ps,
    units: Ahead,
    up: Ahead,
    down: Ahead,
    /// When a unit is done with the last packet, and when that comes to its port.
    free: Ps,
    departs: Ps,
    tag: usize,
    recent: Recent,
}

/// Packets with payload of so many bytes for one queue pair.
#[derive(Debug)]
pub(crate) struct Receives {
    number: u32,
    service: Ps,
    bytes: usize,
    /// The key under which the payload of all goes, if where it goes is looked up as they come.
    key: Option<u32>,
    /// What a write takes of the link, and then until the host sees it.
    write: Ps,
    latency: Ps,
    units: Ahead,
    up: Ahead,
    free: Ps,
    handled: Ps,
    recent: Recent,
}

impl Units {
    /// Begins a series of packets that queue pair `number` sends, with data like that; `answers`: they are responses. `None`: they have to
    /// be booked one by one.
    pub(crate) fn begin_sends(
        &mut self,
        (number, answers): (u32, bool),
        service: Ps,
        data: &Place,
    ) -> Option<Sends> {
        // A packet whose bookings are not past has tags of its own.
        let reads =
            self.bus.alike_reads(data.va, data.len, RECENT + 1).filter(|_| !self.shared.is_there())?;
        let lane = *self.lane(number);
        let known = self.contexts.used_last(number.into()) && self.keys.used_last(data.key.into());
        let (up, down) = self.bus.ahead();
        let others = reads.count as u64 - 1;
        (known && service > Ps::ZERO).then(|| Sends {
            number,
            answers,
            service,
            requests: reads.count,
            request: reads.request,
            completion: reads.completion,
            others: (reads.request.times(others), reads.completion.times(others)),
            latency: reads.latency,
            units: self.senders.ahead(),
            up,
            down,
            free: lane.sends,
            departs: if answers { lane.answers } else { lane.departs },
            tag: self.bus.next_tag(),
            recent: Recent::default(),
        })
    }

    /// The next one is made at `now`. Returns when the unit is done with it, and when it comes to its port. `None`: it has to wait for
    /// something, and nothing has happened.
    #[inline]
    pub(crate) fn send_next(&mut self, sends: &mut Sends, now: Ps, data: &Place) -> Option<(Ps, Ps)> {
        let Sends { service, requests, request, completion, latency, tag, .. } = *sends;
        let (other_requests, other_completions) = sends.others;
        if sends.free.max(self.walks.until) > now || !sends.recent.has_place(now) {
            return None;
        }
        sends.units.begin(now)?;
        let free = now + service;
        let asked = sends.up.begin(free)?;
        let first = free + request + latency;
        let last = free.max(asked + other_requests) + request + latency;
        let coming = sends.down.begin(first)?;
        if last > first && last > coming + completion || !self.bus.are_free(tag, requests, free) {
            return None;
        }
        if !self.finds_translation(data) {
            return None;
        }
        let done = last.max(coming + other_completions) + completion;
        sends.units.put(now, service);
        sends.up.put(free, other_requests + request);
        sends.down.put(first, other_completions + completion);
        sends.recent.push(Booked { now, done, tag });
        sends.tag = self.bus.tag_after(tag, requests);
        (sends.free, sends.departs) = (free, sends.departs.max(done + self.send_pipeline));
        Some((free, sends.departs))
    }

    /// Whether the lines of translations of a packet's data are in their cache; they are used now, if they are.
    #[inline]
    fn finds_translation(&mut self, data: &Place) -> bool {
        let Some([first, last]) = lines_of(data) else { return true };
        if first == last && self.translations.used_last(first) {
            return self.translations.touch(first);
        }
        self.holds_translation(data) && {
            self.translations.touch(first);
            first == last || self.translations.touch(last)
        }
    }

    /// Whether they are there.
    #[inline]
    pub(crate) fn holds_translation(&self, data: &Place) -> bool {
        let holds = |line: u64| self.translations.used_last(line) || self.translations.holds(line);
        lines_of(data).is_none_or(|[first, last]| holds(first) && (first == last || holds(last)))
    }

    /// A series is over.
    pub(crate) fn end_sends(&mut self, sends: &Sends) {
        let Sends { number, service, requests, request, completion, latency, .. } = *sends;
        let count = sends.recent.count as u64;
        if count == 0 {
            return;
        }
        for Booked { now, tag, .. } in sends.recent.present() {
            let free = self.senders.admit(now, now, service);
            self.bus.book_alike((now, free), tag, (requests, request), (latency, completion));
        }
        let lane = self.lane(number);
        lane.sends = sends.free;
        match sends.answers {
            true => lane.answers = sends.departs,
            false => lane.departs = sends.departs,
        }
        self.jobs += count;
        self.busy += service.times(count);
        self.contexts.use_again(count);
        self.keys.use_again(count);
        self.bus.count_alike(count, requests, sends.tag);
    }

    /// Begins a series of packets with payload of so many bytes that come for queue pair `number`; where it goes is looked up under `key`.
    /// `None`: they have to be booked one by one.
    pub(crate) fn begin_receives(
        &mut self,
        number: u32,
        service: Ps,
        (bytes, key): (usize, Option<u32>),
    ) -> Option<Receives> {
        let (write, latency) = self.bus.idle_write(bytes)?;
        let lane = *self.lane(number);
        let (up, _) = self.bus.ahead();
        let known =
            self.contexts.used_last(number.into()) && key.is_none_or(|key| self.keys.used_last(key.into()));
        (known && service > Ps::ZERO && bytes > 0 && !self.has_further_pieces(bytes)).then(|| Receives {
            number,
            service,
            bytes,
            key,
            write,
            latency,
            units: self.receivers.ahead(),
            up,
            free: lane.receives,
            handled: lane.handled,
            recent: Recent::default(),
        })
    }

    /// The next one comes at `now`, and its payload goes there: the same as [`Units::receive`]. `None`: it has to wait for something, and
    /// nothing has happened.
    #[inline]
    pub(crate) fn receive_next(
        &mut self,
        receives: &mut Receives,
        now: Ps,
        to: Option<&Place>,
    ) -> Option<Ps> {
        let Receives { service, write, latency, key, .. } = *receives;
        let free = receives.free.max(self.walks.until);
        if free > now || !receives.recent.has_place(now) || key != to.map(|to| to.key) {
            return None;
        }
        receives.units.begin(now)?;
        let worked = now + service;
        receives.up.begin(worked)?;
        if to.is_some_and(|to| !self.finds_translation(to)) {
            return None;
        }
        let done = worked + write;
        receives.units.put(now, service);
        receives.up.put(worked, write);
        receives.recent.push(Booked { now, done, tag: 0 });
        receives.free = worked;
        receives.handled = receives.handled.max(done + latency);
        Some(receives.handled)
    }

    /// When one that comes at `now` would be handled, if more follow it `gap` apart each and all of them wait for nothing.
    #[inline]
    pub(crate) fn receives_regularly(&self, receives: &Receives, now: Ps, gap: Ps) -> Option<Ps> {
        let Receives { service, write, latency, .. } = *receives;
        let worked = now + service;
        let is_idle = receives.units.begin(now).is_some()
            && receives.up.begin(worked).is_some()
            && receives.units.has_room_for(service, gap)
            && receives.up.has_room_for(write, gap)
            && receives.free.max(self.walks.until) <= now
            && service <= gap
            // Those that give their places to others are past.
            && service + write + Ps(1 << PAGE) <= gap.times(RECENT as u64);
        let handled = worked + write + latency;
        (is_idle && handled >= receives.handled).then_some(handled)
    }

    /// So many come as [`Units::receives_regularly`] asks, the first at `first`. Where their payload goes was [looked
    /// up](Units::find_place).
    #[inline]
    pub(crate) fn receive_all(&self, receives: &mut Receives, first: Ps, gap: Ps, count: u64) {
        let Receives { service, write, latency, .. } = *receives;
        let kept = count.min(RECENT as u64);
        receives.recent.count += (count - kept) as usize;
        for i in count - kept..count {
            let now = first + gap.times(i);
            receives.recent.push(Booked { now, done: now + service + write, tag: 0 });
        }
        let last = first + gap.times(count.saturating_sub(1));
        let worked = last + service;
        receives.units.put(last, service);
        receives.up.put(worked, write);
        (receives.free, receives.handled) = (worked, worked + write + latency);
    }

    /// Where the payload of a packet of such a series goes is looked up, if that [is known](Units::holds_translation).
    #[inline]
    pub(crate) fn find_place(&mut self, to: &Place) {
        self.finds_translation(to);
    }

    /// A series is over.
    pub(crate) fn end_receives(&mut self, receives: &Receives) {
        let Receives { number, service, bytes, key, write, .. } = *receives;
        let count = receives.recent.count as u64;
        if count == 0 {
            return;
        }
        for Booked { now, .. } in receives.recent.present() {
            let worked = self.receivers.admit(now, now, service);
            self.bus.book_write((now, worked), write);
        }
        let lane = self.lane(number);
        (lane.receives, lane.handled) = (receives.free, receives.handled);
        self.jobs += count;
        self.busy += service.times(count);
        self.contexts.use_again(count);
        if key.is_some() {
            self.keys.use_again(count);
        }
        self.bus.count_writes(count, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::random::SplitMix64;
    use crate::ground::timing::{Profile, Timing};
    use crate::units::Inbound;

    const LEN: usize = 4096;
    const SERVICE: Ps = Ps::from_ns(60);

    fn place(i: u64, offset: u64) -> Place {
        Place { key: 7, va: 0x10_0000 + offset + i % 200 * LEN as u64, len: LEN, page: Some(12) }
    }

    /// One by one, as packets are booked.
    fn send(units: &mut Units, answers: bool, now: Ps, data: Place) -> (Ps, Ps) {
        let free = units.send(now, 3, SERVICE);
        let ready = units.put_together(now, 3, free, || 0, std::iter::once(data));
        (free, if answers { units.answer_departs(3, ready) } else { units.depart(3, ready) })
    }

    /// Of what finds the units idle and of what does not, whatever comes behind it.
    #[test]
    fn a_series_is_what_one_by_one_is() {
        let cases = [("256", 0), ("84", 0), ("200", 100), ("40", 0)];
        for ((tags, offset), answers) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
            let mut profile = Profile::connectx4();
            profile.set("pcie.read_tags", tags).unwrap();
            let timing = Timing::new(&profile);
            let (mut fast, mut each) = (Units::new(&timing), Units::new(&timing));
            let mut random = SplitMix64(5);
            let (mut now, mut number, mut alike) = (Ps::from_us(1), 0, 0);
            for round in 0..600 {
                let mut series = fast.begin_sends((3, answers), SERVICE, &place(number, offset));
                let gap = 250_000 + random.below(200_000);
                for i in 0..random.below(40) {
                    let data = place(number, offset);
                    let booked = series.as_mut().and_then(|series| fast.send_next(series, now, &data));
                    alike += u64::from(booked.is_some());
                    let booked = booked.unwrap_or_else(|| {
                        series.take().iter().for_each(|series| fast.end_sends(series));
                        send(&mut fast, answers, now, data)
                    });
                    assert_eq!(
                        booked,
                        send(&mut each, answers, now, data),
                        "{tags} tags, round {round}, packet {i}"
                    );
                    (now, number) = (now + Ps(gap + random.below(2) * random.below(3) * 16_000), number + 1);
                }
                series.iter().for_each(|series| fast.end_sends(series));
                if round % 40 == 0 {
                    for units in [&mut fast, &mut each] {
                        units.walk(now, 500);
                    }
                }
                for _ in 0..random.below(3) {
                    let other = Place { len: 1 + random.below(600) as usize, ..place(random.below(200), 0) };
                    let booked = send(&mut fast, !answers, now, other);
                    assert_eq!(booked, send(&mut each, !answers, now, other), "behind {round}");
                    now += Ps(random.below(300_000));
                }
                assert_eq!(fast.counts(), each.counts(), "{tags} tags, round {round}");
            }
            assert!(alike > 3_000 || tags == "40", "{alike} with {tags} tags");
        }
    }

    /// Whether where payload goes is looked up or not.
    #[test]
    fn a_series_of_packets_that_come_is_what_one_by_one_is() {
        for looked_up in [false, true] {
            let timing = Timing::new(&Profile::connectx4());
            let (mut fast, mut each) = (Units::new(&timing), Units::new(&timing));
            let mut random = SplitMix64(6);
            let (mut now, mut alike, mut number) = (Ps::from_us(1), 0, 0);
            for round in 0..600 {
                let key = looked_up.then(|| place(0, 0).key);
                let mut series = fast.begin_receives(3, SERVICE, (LEN, key));
                let gap = 250_000 + random.below(200_000);
                for i in 0..random.below(40) {
                    let to = looked_up.then(|| place(number, 64));
                    let inbound = Inbound { bytes: LEN, to, ..Inbound::default() };
                    let booked =
                        series.as_mut().and_then(|series| fast.receive_next(series, now, to.as_ref()));
                    alike += u64::from(booked.is_some());
                    let booked = booked.unwrap_or_else(|| {
                        series.take().iter().for_each(|series| fast.end_receives(series));
                        fast.receive(now, 3, SERVICE, inbound)
                    });
                    assert_eq!(booked, each.receive(now, 3, SERVICE, inbound), "round {round}, packet {i}");
                    (now, number) = (now + Ps(gap + random.below(2) * random.below(3) * 16_000), number + 1);
                }
                series.iter().for_each(|series| fast.end_receives(series));
                if round % 40 == 0 {
                    for units in [&mut fast, &mut each] {
                        units.walk(now, 500);
                    }
                }
                for _ in 0..random.below(3) {
                    let inbound = Inbound { bytes: random.below(600) as usize, ..Inbound::default() };
                    let booked = fast.receive(now, 3, SERVICE, inbound);
                    assert_eq!(booked, each.receive(now, 3, SERVICE, inbound), "behind {round}");
                    now += Ps(random.below(300_000));
                }
                assert_eq!(fast.counts(), each.counts(), "round {round}");
            }
            assert!(alike > 3_000, "{alike}");
        }
    }
}
