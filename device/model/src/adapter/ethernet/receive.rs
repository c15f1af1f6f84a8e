//! Frames into receive queues: a WQE is taken, the frame written where that says, and its completion behind it.

use hca_firmware::QCounter;
use hca_firmware::{Rq, RqSource, RqState, Strides, WqKind};
use hca_spec::cqe::{Cqe, Syndrome};
use hca_spec::ids::{Cqn, Pd, Qpn, Rqn, Srqn};
use hca_spec::queue::{Srqc, Wq};
use hca_spec::rq::Rqc;
use hca_spec::wqe::SrqNext;

use crate::adapter::core::{Core, Executor};
use crate::adapter::flush::FLUSH_MOST;
use crate::adapter::state::event::HcaEvent;
use crate::adapter::state::frames::QueuedFrame;
use crate::engines::mkey::{Access, Accessor, Fault};
use crate::engines::nic::receive::{ReceiveRules, Received, Steered, error_cqe};
use crate::engines::nic::ring::{FrameRing, OpenWqe};
use crate::engines::nic::scatter::ScatterList;
use crate::engines::nic::strides::{Fit, SHIFT, filler, fit, tell_place};
use crate::engines::pieces::Piece;
use crate::engines::qp::recv::{MAX_STRIDE, NoReceive};
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::region::Payload;
use crate::ground::time::Ps;
use crate::wire::ethernet::Headers;

/// A queue that a frame goes to.
#[derive(Debug, Clone, Copy)]
struct Target {
    rqn: Rqn,
    /// Where its WQEs come from.
    source: RqSource,
    rules: ReceiveRules,
    cqn: Cqn,
    /// The domain of its WQEs' memory: of the pool's, if they come from one.
    pd: Pd,
    /// Its WQEs may name the reserved local key.
    rlky: bool,
    /// Its frames take strides.
    has_strides: bool,
    counters: u32,
}

/// Why a frame is not in a queue's memory.
enum Unwritten {
    /// There is room for so many bytes, and the frame has so many.
    Room(u64, usize),
    /// Memory that can't be written.
    Fault(Fault),
}

/// What completions call the queue: entries of version 0 say nothing.
const NO_USER_INDEX: u32 = 0xff_ffff;

fn rules_of(rq: &Rq) -> ReceiveRules {
    ReceiveRules {
        strip_vlan: !rq.vsd,
        scatter_fcs: rq.scatter_fcs,
        user_index: if rq.user_index == NO_USER_INDEX { 0 } else { rq.user_index },
    }
}

impl Executor<'_> {
    /// A frame has passed the receive pipeline, to its queue.
    pub(crate) fn queue_frame(&mut self, now: Ps, queued: QueuedFrame) {
        let QueuedFrame { rqn, steered, headers, mut packet, room } = queued;
        self.core.frame_to_queue(now, rqn, packet.as_frame(), &headers, steered);
        packet.retire();
        drop(room);
    }

    /// A receive queue was modified.
    pub(crate) fn rq_modified(&mut self, now: Ps, rqn: Rqn, from: RqState, to: RqState) {
        match (from, to) {
            (RqState::Reset, RqState::Ready) => self.core.function.frames.start(rqn),
            (_, RqState::Reset) => self.core.function.frames.stop(rqn),
            (_, RqState::Error) => self.core.flush_rq(now, rqn),
            _ => {}
        }
    }
}

impl Core<'_> {
    /// A frame for a receive queue. A queue that is not ready drops it.
    fn frame_to_queue(&mut self, now: Ps, rqn: Rqn, frame: &[u8], headers: &Headers, steered: Steered) {
        let mut list = std::mem::take(&mut self.function.frames.list);
        self.fill_wqe(now, rqn, frame, headers, steered, &mut list);
        self.function.frames.list = list;
    }

    fn fill_wqe(
        &mut self,
        now: Ps,
        rqn: Rqn,
        frame: &[u8],
        headers: &Headers,
        steered: Steered,
        list: &mut ScatterList,
    ) {
        let Some(rq) = self.function.fw.icm.rqs.get(rqn.0).filter(|rq| rq.state == RqState::Ready) else {
            return;
        };
        let target = Target {
            rqn,
            source: rq.source,
            rules: rules_of(rq),
            cqn: Cqn(rq.cqn),
            pd: self.wqe_domain(rq),
            rlky: rq.ctx.get(Rqc::RLKY) == 1,
            counters: rq.counter_set,
            has_strides: rq.strides.is_some(),
        };
        if let Some(strides) = rq.strides {
            let received = target.rules.receive(frame, headers, steered, 0, u64::MAX);
            return self.fill_strides(now, &target, &strides, received);
        }
        let index = match self.take_from(now, &target, list) {
            Ok(index) => index,
            Err(why) => return self.not_taken(now, &target, why),
        };
        let received = target.rules.receive(frame, headers, steered, index, list.room());
        let written = match &received.data {
            None => Err(Unwritten::Room(list.room(), target.rules.most_of(frame))),
            Some(data) => self.write_frame(target, list, 0, &data.parts()),
        };
        self.frame_written(now, &target, index, received.cqe, written);
    }

    /// The domain of the memory that a queue's WQEs lead to.
    pub(crate) fn wqe_domain(&self, rq: &Rq) -> Pd {
        Pd(match rq.source {
            RqSource::Own => rq.ctx.wq().get(Wq::PD),
            RqSource::Pool(srqn) => {
                self.function.fw.icm.srqs.get(srqn).map_or(0, |srq| srq.ctx.get(Srqc::PD))
            }
        })
    }

    /// Takes the next WQE for a queue, its own or of its pool: its index, and in `list` where it leads.
    fn take_from(&mut self, now: Ps, target: &Target, list: &mut ScatterList) -> Result<u16, NoReceive> {
        match target.source {
            RqSource::Own => self.take_wqe(target.rqn, list),
            RqSource::Pool(srqn) => {
                let receive = self.take_shared(now, Srqn(srqn))?;
                list.set(&receive.pieces);
                Ok(receive.index)
            }
        }
    }

    /// There is no WQE for a frame.
    fn not_taken(&mut self, now: Ps, target: &Target, why: NoReceive) {
        match why {
            NoReceive::NotReady => self.function.fw.icm.count_in(target.counters, QCounter::OutOfBuffer),
            NoReceive::Broken => {
                let rqn = target.rqn;
                self.diagnose(now, format_args!("RQ {:#x}: its receive queue can't be read", rqn.0));
                self.fail_rq(now, rqn);
            }
        }
    }

    /// Writes a frame into the memory of a WQE, from that byte of its list on.
    fn write_frame(
        &mut self,
        target: Target,
        list: &ScatterList,
        offset: u64,
        parts: &[&[u8]],
    ) -> Result<(), Unwritten> {
        let who = Accessor { qpn: Qpn(target.rqn.0), pd: target.pd, rlky: target.rlky };
        let mut keyed = self.keyed();
        let written = list.place(offset, parts, |to, bytes| {
            let found = keyed.write(who, to.key, to.va, Payload::Bytes(bytes), Access::LocalWrite)?;
            found.ignore("frames have no signatures");
            Ok::<(), Fault>(())
        });
        written.map_err(Unwritten::Fault)
    }

    /// A frame was written, or not: its completion, with error if need be. One that found no room is the matter of its WQE alone: the queue goes
    /// on with the next, as DPDK's driver counts on (it recovers from three syndromes, and this is none of them).
    fn frame_written(
        &mut self,
        now: Ps,
        target: &Target,
        index: u16,
        cqe: Cqe,
        written: Result<(), Unwritten>,
    ) {
        let (rqn, rules) = (target.rqn, &target.rules);
        let (syndrome, goes_on) = match written {
            Ok(()) if self.complete(now, target.cqn, cqe, &[]) => return,
            Ok(()) => return self.fail_rq(now, rqn),
            Err(Unwritten::Room(room, len)) => {
                self.answer_mistake(now, || {
                    let found = format!("WQE {index} with room for {room} bytes");
                    let expected = format!("room for {len} bytes, those of the frame");
                    let rule = &hca_spec::rules::RECEIVE_ROOM;
                    Finding::new(Subject::new("RQ", rqn.0), "receive WQE", found, expected, rule)
                });
                (Syndrome::LocalLength, true)
            }
            Err(Unwritten::Fault(fault)) => {
                let (subject, pd) = (Subject::new("RQ", rqn.0), target.pd);
                self.fault(now, subject, format_args!("receive WQE {index}"), pd, &fault);
                (Syndrome::LocalProtection, false)
            }
        };
        let mut failed = error_cqe(rules, index, syndrome);
        failed.set(Cqe::WQE_ID, index.into());
        if target.has_strides {
            // Drivers count strides of frames with errors, too.
            failed.set(Cqe::WQE_COUNTER, cqe.get(Cqe::WQE_COUNTER));
            failed.set(Cqe::CONSUMED_STRIDES, cqe.get(Cqe::CONSUMED_STRIDES));
        }
        let told = self.complete(now, target.cqn, failed, &[]);
        if !(told && goes_on) {
            self.fail_rq(now, rqn);
        }
    }

    /// A frame for a queue whose frames take strides. Those of a pool's WQE go to the frames of all its queues as they come: it is the queue
    /// whose frame finds too few left that is told of those.
    fn fill_strides(&mut self, now: Ps, target: &Target, strides: &Strides, received: Received<'_>) {
        let rqn = target.rqn;
        let Some(data) = received.data else { return };
        let (kept, number) = self.function.frames.open_of(rqn, target.source);
        let mut open = kept.remove(number);
        let needed = loop {
            let used = open.as_ref().map_or(strides.count(), |wqe| wqe.used);
            match fit(strides, used, data.len()) {
                Fit::Here(needed) => break Some(needed),
                Fit::Never => break None,
                Fit::Next(left) => {
                    if let Some(wqe) = open.take().filter(|_| left > 0) {
                        let cqe = filler(&target.rules, wqe.index, wqe.used, left);
                        if !self.complete(now, target.cqn, cqe, &[]) {
                            return self.fail_rq(now, rqn);
                        }
                    }
                    let mut wqe = OpenWqe::default();
                    match self.take_from(now, target, &mut wqe.list) {
                        Ok(index) => open = Some(OpenWqe { index: self.place(target.source, index), ..wqe }),
                        Err(why) => return self.not_taken(now, target, why),
                    }
                }
            }
        };
        let Some(needed) = needed else {
            let index = open.as_ref().map_or(0, |wqe| wqe.index);
            if let Some(wqe) = open {
                self.keep_open(target, wqe);
            }
            let whole = strides.size().saturating_mul(strides.count().into());
            let too_long = Err(Unwritten::Room(whole, data.len()));
            let mut cqe = received.cqe;
            // It takes none.
            tell_place(&mut cqe, index, 0, 0);
            return self.frame_written(now, target, index, cqe, too_long);
        };
        let mut wqe = open.unwrap_or_default();
        let offset = u64::from(wqe.used).saturating_mul(strides.size());
        let front = [0; SHIFT];
        let [a, b, c] = data.parts();
        let parts = [front.get(..strides.front()).unwrap_or_default(), a, b, c];
        let end = offset.saturating_add((data.len() as u64).saturating_add(strides.front() as u64));
        let written = match end > wqe.list.room() {
            true => Err(Unwritten::Room(wqe.list.room().saturating_sub(offset), data.len())),
            false => self.write_frame(*target, &wqe.list, offset, &parts),
        };
        let (index, mut cqe) = (wqe.index, received.cqe);
        tell_place(&mut cqe, index, wqe.used, needed);
        wqe.used = wqe.used.saturating_add(needed);
        if wqe.used < strides.count() {
            self.keep_open(target, wqe);
        }
        self.frame_written(now, target, index, cqe, written);
    }

    /// A WQE has strides left.
    fn keep_open(&mut self, target: &Target, wqe: OpenWqe) {
        let (kept, number) = self.function.frames.open_of(target.rqn, target.source);
        kept.insert(number, wqe);
    }

    /// What completions of strides call a WQE: its place in the queue, of a pool's, too, whose WQEs count on.
    fn place(&self, source: RqSource, index: u16) -> u16 {
        match source {
            RqSource::Own => index,
            RqSource::Pool(srqn) => {
                let log_size = self.function.fw.icm.srqs.get(srqn).map_or(0, |srq| srq.log_size);
                index & 1u16.checked_shl(log_size).unwrap_or(0).wrapping_sub(1)
            }
        }
    }

    /// The next WQE of a receive queue of its own, read into `list`: its index, and the queue once it is taken.
    fn next_wqe(&self, rqn: Rqn, list: &mut ScatterList) -> Result<(u16, FrameRing), NoReceive> {
        let mut ring = *self.function.frames.rings.get(rqn.0).ok_or(NoReceive::NotReady)?;
        let rq = self.function.fw.icm.rqs.get(rqn.0).ok_or(NoReceive::NotReady)?;
        if ring.head == ring.posted {
            ring.posted = self.receive_counter(rq.ctx.wq().get(Wq::DBR_ADDR)).ok_or(NoReceive::Broken)?;
        }
        if ring.waiting(rq.log_size).ok_or(NoReceive::Broken)? == 0 {
            return Err(NoReceive::NotReady);
        }
        let slot = ring.slot(rq.log_size, rq.kind.is_linked());
        let mut bytes = [0; MAX_STRIDE];
        let bytes = self.wqe_at(rq, slot, &mut bytes)?;
        let next = SrqNext::from_prefix_or_zero(bytes).get(SrqNext::NEXT_WQE_INDEX) as u16;
        let segments = if rq.kind.has_next_segment() { SrqNext::SIZE } else { 0 };
        list.read(bytes.get(segments..).unwrap_or_default());
        // Completions of cyclic queues count on, those of others name the place.
        let index = if rq.kind == WqKind::Cyclic { ring.head } else { slot as u16 };
        Ok((index, ring.taken(next)))
    }

    /// Reads a WQE.
    fn wqe_at<'b>(&self, rq: &Rq, slot: u64, into: &'b mut [u8; MAX_STRIDE]) -> Result<&'b [u8], NoReceive> {
        let stride = 1usize.checked_shl(rq.log_stride).unwrap_or(usize::MAX);
        let bytes = into.get_mut(..stride).ok_or(NoReceive::Broken)?;
        let (at, _) = rq.buffer.at(slot << rq.log_stride).ok_or(NoReceive::Broken)?;
        self.function.memory.read(at, bytes).map_err(|_| NoReceive::Broken)?;
        Ok(bytes)
    }

    /// Takes the next WQE of a receive queue of its own: its index, and in `list` where it leads.
    fn take_wqe(&mut self, rqn: Rqn, list: &mut ScatterList) -> Result<u16, NoReceive> {
        let (index, ring) = self.next_wqe(rqn, list)?;
        if let Some(known) = self.function.frames.rings.get_mut(rqn.0) {
            *known = ring;
        }
        Ok(index)
    }

    /// Where the next frame of so many bytes goes, if a WQE has strides left for it.
    pub(crate) fn plan_open(&self, rqn: Rqn, rq: &Rq, len: usize) -> Option<Vec<Piece>> {
        let (strides, wqe) = rq.strides.zip(self.function.frames.opened(rqn, rq.source))?;
        let here = matches!(fit(&strides, wqe.used, len), Fit::Here(_));
        here.then(|| wqe.list.pieces(u64::from(wqe.used).saturating_mul(strides.size())))
    }

    /// Where the next WQE of a queue of its own leads, as far as that is there.
    pub(crate) fn plan_next_wqe(&self, rqn: Rqn) -> Vec<Piece> {
        let mut list = ScatterList::default();
        match self.next_wqe(rqn, &mut list) {
            Ok(_) => list.pieces(0),
            Err(_) => Vec::new(),
        }
    }

    /// A receive queue goes to error by itself: what is posted is flushed.
    pub(crate) fn fail_rq(&mut self, now: Ps, rqn: Rqn) {
        if let Some(rq) = self.function.fw.icm.rqs.get_mut(rqn.0) {
            rq.state = RqState::Error;
            rq.ctx.set(Rqc::STATE, RqState::Error.bits());
        }
        self.flush_rq(now, rqn);
    }

    /// Completes what is posted as flushed, if the driver wants to hear of it. A pool keeps its WQEs.
    fn flush_rq(&mut self, now: Ps, rqn: Rqn) {
        let Some(rq) = self.function.fw.icm.rqs.get(rqn.0) else { return };
        if rq.ctx.get(Rqc::FLUSH_IN_ERROR_EN) == 0 || rq.source != RqSource::Own {
            return;
        }
        let log_size = rq.log_size;
        let Some(posted) = self.flush_end(rqn) else { return };
        self.function.frames.open.remove(rqn.0);
        let Some(ring) = self.function.frames.rings.get_mut(rqn.0) else { return };
        ring.posted = posted;
        if ring.waiting(log_size).is_none() {
            // More than the queue holds: nothing sensible can be flushed.
            ring.head = posted;
        }
        self.flush_more(now, rqn);
    }

    /// Flushes what is left of a receive queue in error, as much as one event may ([`FLUSH_MOST`]).
    pub(crate) fn flush_more(&mut self, now: Ps, rqn: Rqn) {
        let Some(posted) = self.function.frames.rings.get(rqn.0).map(|ring| ring.posted) else { return };
        let (places, linked) = self.flush_places(rqn, posted);
        let rq = self.function.fw.icm.rqs.get(rqn.0).filter(|rq| rq.state == RqState::Error);
        let (Some(rq), Some(ring)) = (rq, self.function.frames.rings.get_mut(rqn.0)) else { return };
        let (rules, cqn, first) = (rules_of(rq), Cqn(rq.cqn), ring.head);
        let waiting = posted.wrapping_sub(first);
        let flushed = waiting.min(FLUSH_MOST);
        (ring.head, ring.linked) = (first.wrapping_add(flushed), linked);
        for index in 0..flushed {
            let counted = first.wrapping_add(index);
            let place = places.get(usize::from(index)).copied();
            let mut cqe = error_cqe(&rules, place.unwrap_or(counted), Syndrome::WorkRequestFlushed);
            cqe.set(Cqe::WQE_ID, place.unwrap_or_default().into());
            if !self.complete(now, cqn, cqe, &[]) {
                return;
            }
        }
        if waiting > flushed {
            self.schedule(now, HcaEvent::FlushFrames(rqn));
        }
    }

    /// Before a query how many WQEs were taken, and how many posted, goes into the context of a queue that has some of its own.
    pub(crate) fn rq_write_back(&mut self, rqn: Rqn) {
        let posted = self.flush_end(rqn);
        let Some(head) = self.function.frames.rings.get(rqn.0).map(|ring| ring.head) else { return };
        let rq = self.function.fw.icm.rqs.get_mut(rqn.0);
        if let Some(rq) = rq.filter(|rq| rq.source == RqSource::Own && rq.state != RqState::Reset) {
            let wq = rq.ctx.wq_mut();
            wq.set(Wq::HW_COUNTER, head.into());
            wq.set(Wq::SW_COUNTER, posted.unwrap_or(head).into());
        }
    }

    /// How many WQEs of a queue of its own are posted.
    fn flush_end(&self, rqn: Rqn) -> Option<u16> {
        let rq = self.function.fw.icm.rqs.get(rqn.0)?;
        self.receive_counter(rq.ctx.wq().get(Wq::DBR_ADDR))
    }

    /// Places of the WQEs that one event flushes, in a queue whose completions name them: of linked ones, as far as they can be read;
    /// and the link that comes next.
    fn flush_places(&self, rqn: Rqn, posted: u16) -> (Vec<u16>, u16) {
        let (rqs, rings) = (&self.function.fw.icm.rqs, &self.function.frames.rings);
        let Some((rq, ring)) = rqs.get(rqn.0).zip(rings.get(rqn.0)) else { return Default::default() };
        if rq.kind == WqKind::Cyclic {
            return (Vec::new(), ring.linked);
        }
        let mut ring = FrameRing { posted, ..*ring };
        let mut places = Vec::new();
        let mut bytes = [0; MAX_STRIDE];
        for _ in 0..ring.waiting(rq.log_size).unwrap_or(0).min(FLUSH_MOST) {
            let slot = ring.slot(rq.log_size, rq.kind.is_linked());
            let Ok(wqe) = self.wqe_at(rq, slot, &mut bytes) else { break };
            places.push(slot as u16);
            ring = ring.taken(SrqNext::from_prefix_or_zero(wqe).get(SrqNext::NEXT_WQE_INDEX) as u16);
        }
        (places, ring.linked)
    }

    /// What a flush of a queue reads.
    pub(crate) fn plan_flush_rq(&self, rqn: Rqn) {
        if let Some(posted) = self.flush_end(rqn) {
            drop(self.flush_places(rqn, posted));
        }
    }
}
