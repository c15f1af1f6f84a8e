//! Frames into receive queues: a WQE is taken, the frame written where that says, and its completion behind it.

use hca_firmware::QCounter;
use hca_firmware::{Rq, RqSource, RqState};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Cqn, Pd, Qpn, Rqn, Srqn};
use hca_spec::queue::Wq;
use hca_spec::rq::Rqc;

use crate::adapter::Executor;
use crate::adapter::core::Core;
use crate::engines::mkey::{Access, Accessor, Fault};
use crate::engines::nic::receive::{ReceiveRules, Steered, error_cqe};
use crate::engines::nic::ring::FrameRing;
use crate::engines::nic::scatter::ScatterList;
use crate::engines::qp::pieces::Piece;
use crate::engines::qp::recv::{MAX_STRIDE, NoReceive, Receive};
use crate::ground::region::Payload;
use crate::ground::time::Ps;
use crate::link_layer::Packet;
use crate::wire::ethernet::Headers;

/// A frame on its way to a receive queue.
#[derive(Debug)]
pub(crate) struct QueuedFrame {
    pub(crate) rqn: Rqn,
    pub(crate) steered: Steered,
    pub(crate) headers: Headers,
    /// Its bytes are there ([`Packet::as_frame`] was called).
    pub(crate) packet: Packet,
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
        let QueuedFrame { rqn, steered, headers, mut packet } = queued;
        self.core.frame_to_queue(now, rqn, packet.as_frame(), &headers, steered);
        packet.retire();
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
        let (rules, cqn, counters) = (rules_of(rq), Cqn(rq.cqn), rq.counter_set);
        let own = Pd(rq.ctx.wq().get(Wq::PD));
        let taken = match rq.source {
            RqSource::Own => self.take_wqe(rqn, list).map(|index| (index, own)),
            RqSource::Pool(srqn) => self.take_shared(now, Srqn(srqn)).map(|receive| {
                list.set(&receive.pieces);
                (receive.index, receive.pd.unwrap_or(own))
            }),
        };
        let (index, pd) = match taken {
            Ok(taken) => taken,
            Err(NoReceive::NotReady) => {
                return self.function.fw.icm.count_in(counters, QCounter::OutOfBuffer);
            }
            Err(NoReceive::Broken) => {
                self.diagnose(now, format_args!("RQ {:#x}: its receive queue can't be read", rqn.0));
                return self.fail_rq(now, rqn);
            }
        };
        let received = rules.receive(frame, headers, steered, index, list.room());
        let Some(data) = received.data else {
            self.diagnose(
                now,
                format_args!(
                    "RQ {:#x}: receive WQE {index} has room for {} bytes, the frame has {}",
                    rqn.0,
                    list.room(),
                    frame.len()
                ),
            );
            _ = self.complete(now, cqn, received.cqe, &[]);
            return self.fail_rq(now, rqn);
        };
        let who = Accessor { qpn: Qpn(rqn.0), pd };
        let written = list.place(&data.parts(), |to, bytes| {
            let keyed = self.keyed();
            let found = keyed.write(who, to.key, to.va, Payload::Bytes(bytes), Access::LocalWrite)?;
            found.ignore("frames have no signatures");
            Ok::<(), Fault>(())
        });
        if let Err(fault) = written {
            self.diagnose(now, format_args!("RQ {:#x}: receive WQE {index}: {fault}", rqn.0));
            _ = self.complete(now, cqn, error_cqe(&rules, index, Syndrome::LocalProtection), &[]);
            return self.fail_rq(now, rqn);
        }
        if !self.complete(now, cqn, received.cqe, &[]) {
            self.fail_rq(now, rqn);
        }
    }

    /// Takes the next WQE of a receive queue of its own: its index, and in `list` where it leads.
    fn take_wqe(&mut self, rqn: Rqn, list: &mut ScatterList) -> Result<u16, NoReceive> {
        let FrameRing { head, posted } = *self.function.frames.rings.get(rqn.0).ok_or(NoReceive::NotReady)?;
        let rq = self.function.fw.icm.rqs.get(rqn.0).ok_or(NoReceive::NotReady)?;
        let posted = match head == posted {
            true => self.receive_counter(rq.ctx.wq().get(Wq::DBR_ADDR)).ok_or(NoReceive::Broken)?,
            false => posted,
        };
        let ring = FrameRing { head, posted };
        if ring.waiting(rq.log_size).ok_or(NoReceive::Broken)? == 0 {
            return Err(NoReceive::NotReady);
        }
        let mut bytes = [0; MAX_STRIDE];
        let stride = 1usize.checked_shl(rq.log_stride).unwrap_or(usize::MAX);
        let bytes = bytes.get_mut(..stride).ok_or(NoReceive::Broken)?;
        let (at, _) = rq.buffer.at(ring.slot(rq.log_size) << rq.log_stride).ok_or(NoReceive::Broken)?;
        self.function.memory.read(at, bytes).map_err(|_| NoReceive::Broken)?;
        list.read(bytes);
        if let Some(known) = self.function.frames.rings.get_mut(rqn.0) {
            *known = FrameRing { head: head.wrapping_add(1), posted };
        }
        Ok(head)
    }

    /// Where the next WQE of a queue of its own leads to, as far as that is there.
    pub(crate) fn plan_take_frame(&self, rqn: Rqn) -> Vec<Piece> {
        let (Some(rq), Some(ring)) =
            (self.function.fw.icm.rqs.get(rqn.0), self.function.frames.rings.get(rqn.0))
        else {
            return Vec::new();
        };
        let counted = match ring.head == ring.posted {
            true => self.receive_counter(rq.ctx.wq().get(Wq::DBR_ADDR)),
            false => Some(ring.posted),
        };
        let mut bytes = [0; MAX_STRIDE];
        let stride = 1usize.checked_shl(rq.log_stride).unwrap_or(usize::MAX);
        let at = rq.buffer.at(ring.slot(rq.log_size) << rq.log_stride);
        match (counted, bytes.get_mut(..stride), at) {
            (Some(counted), Some(bytes), Some((at, _))) if counted != ring.head => {
                match self.function.memory.read(at, bytes) {
                    Ok(()) => Receive::parse(ring.head, bytes).pieces,
                    Err(_) => Vec::new(),
                }
            }
            _ => Vec::new(),
        }
    }

    /// A receive queue goes to error by itself: what is posted is flushed.
    fn fail_rq(&mut self, now: Ps, rqn: Rqn) {
        if let Some(rq) = self.function.fw.icm.rqs.get_mut(rqn.0) {
            rq.state = RqState::Error;
            rq.ctx.set(Rqc::STATE, RqState::Error.bits());
        }
        self.flush_rq(now, rqn);
    }

    /// Completes what is posted as flushed, if the driver wants to hear of it. A pool keeps its WQEs.
    fn flush_rq(&mut self, now: Ps, rqn: Rqn) {
        let Some(rq) = self.function.fw.icm.rqs.get(rqn.0) else { return };
        let (rules, cqn, log_size) = (rules_of(rq), Cqn(rq.cqn), rq.log_size);
        if rq.ctx.get(Rqc::FLUSH_IN_ERROR_EN) == 0 || rq.source != RqSource::Own {
            return;
        }
        let Some(posted) = self.receive_counter(rq.ctx.wq().get(Wq::DBR_ADDR)) else { return };
        let Some(ring) = self.function.frames.rings.get_mut(rqn.0) else { return };
        ring.posted = posted;
        let (first, waiting) = (ring.head, ring.waiting(log_size).unwrap_or(0));
        ring.head = posted;
        for index in 0..waiting {
            let cqe = error_cqe(&rules, first.wrapping_add(index), Syndrome::WorkRequestFlushed);
            if !self.complete(now, cqn, cqe, &[]) {
                return;
            }
        }
    }
}
