//! Receive WQEs taken from the host's memory: of own queues, of shared ones, and of those that XRC requests name.

use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::eqe::{Eqe, EventType};
use hca_spec::ids::{Pd, Srqn};
use hca_spec::queue::{SRQ_ERROR, Srqc};

use super::core::Core;
use super::flush::FLUSH_MOST;
use crate::engines::qp::QueuePair;
use crate::engines::qp::recv::{MAX_STRIDE, NoReceive, Receive, ReceiveQueue, XrcSrq, error_counters};
use crate::engines::qp::tags::Found;
use crate::ground::time::Ps;

impl Core<'_> {
    /// The receive counter of a doorbell record.
    pub(crate) fn receive_counter(&self, doorbell_record: u64) -> Option<u16> {
        self.read_be32(doorbell_record).ok().map(|word| word as u16)
    }

    /// The receive counter of a queue pair's doorbell record.
    pub(crate) fn receives_posted(&self, qp: &QueuePair) -> Option<u16> {
        self.receive_counter(qp.params.doorbell_record)
    }

    /// Takes the next WQE of a shared receive queue.
    pub(crate) fn take_shared(&mut self, now: Ps, srqn: Srqn) -> Result<Receive, NoReceive> {
        let taken = self.fetch_shared(srqn);
        match taken {
            Ok(_) => self.srq_limit(now, srqn),
            Err(NoReceive::Broken) => self.srq_broken(now, srqn),
            Err(NoReceive::NotReady) => {}
        }
        taken
    }

    /// A shared receive queue that can't be read goes to error and says so, once.
    fn srq_broken(&mut self, now: Ps, srqn: Srqn) {
        let Some(srq) =
            self.function.fw.icm.srqs.get_mut(srqn.0).filter(|s| s.ctx.get(Srqc::STATE) != SRQ_ERROR)
        else {
            return;
        };
        srq.ctx.set(Srqc::STATE, SRQ_ERROR);
        self.diagnose(now, format_args!("SRQ {srqn} went to error: its memory can't be read"));
        let mut eqe = Eqe::new();
        eqe.set(Eqe::QUEUE_NUMBER, srqn.0);
        self.push_event(now, EventType::SrqCatastrophic, &mut eqe);
    }

    fn fetch_shared(&mut self, srqn: Srqn) -> Result<Receive, NoReceive> {
        let known = self.function.srqs.get(srqn.0).ok_or(NoReceive::NotReady)?;
        let counted = match known.available() {
            0 => self.receive_counter(known.doorbell_record()),
            _ => None,
        };
        let queue = self.function.srqs.get_mut(srqn.0).ok_or(NoReceive::NotReady)?;
        queue.post(counted);
        if queue.available() == 0 {
            return Err(NoReceive::NotReady);
        }
        let mut bytes = [0; MAX_STRIDE];
        let bytes = self.read_shared(srqn, &mut bytes)?;
        let context = self.function.fw.icm.srqs.get(srqn.0).ok_or(NoReceive::Broken)?;
        let queue = self.function.srqs.get_mut(srqn.0).ok_or(NoReceive::Broken)?;
        queue.take(bytes, Some(Pd(context.ctx.get(Srqc::PD)))).ok_or(NoReceive::Broken)
    }

    /// Reads the next WQE of a shared receive queue.
    pub(crate) fn read_shared<'b>(
        &self,
        srqn: Srqn,
        bytes: &'b mut [u8; MAX_STRIDE],
    ) -> Result<&'b [u8], NoReceive> {
        let queue = self.function.srqs.get(srqn.0).ok_or(NoReceive::Broken)?;
        let context = self.function.fw.icm.srqs.get(srqn.0).ok_or(NoReceive::Broken)?;
        let (offset, stride) = queue.next_wqe();
        let (at, _) = context.buffer.at(offset).ok_or(NoReceive::Broken)?;
        let bytes = bytes.get_mut(..stride).ok_or(NoReceive::Broken)?;
        self.function.memory.read(at, bytes).map_err(|_| NoReceive::Broken)?;
        Ok(bytes)
    }

    /// Reads the next WQE of a queue pair's own receive queue.
    pub(crate) fn read_receive(&self, qp: &QueuePair) -> Result<Receive, NoReceive> {
        let ReceiveQueue::Own { log_size, stride, head, .. } = &qp.rq else { return Err(NoReceive::Broken) };
        let slot = u64::from(*head) & ((1 << *log_size) - 1);
        let buffer = self.function.fw.icm.qps.get(qp.qpn.0).map(|q| &q.buffer);
        let at = buffer.and_then(|b| b.at(slot * *stride)).ok_or(NoReceive::Broken)?.0;
        let mut bytes = [0; MAX_STRIDE];
        let bytes = bytes.get_mut(..*stride as usize).ok_or(NoReceive::Broken)?;
        self.function.memory.read(at, bytes).map_err(|_| NoReceive::Broken)?;
        Ok(Receive::parse(*head, bytes))
    }

    /// Raises the limit event if fewer WQEs are left than the armed limit says; it disarms.
    pub(crate) fn srq_limit(&mut self, now: Ps, srqn: Srqn) {
        let Some(record) =
            self.function.srqs.get(srqn.0).filter(|s| s.is_armed()).map(|s| s.doorbell_record())
        else {
            return;
        };
        let counted = self.receive_counter(record);
        let Some(queue) = self.function.srqs.get_mut(srqn.0) else { return };
        queue.post(counted);
        if queue.reaches_limit() {
            let number = queue.srqn.0;
            if let Some(srq) = self.function.fw.icm.srqs.get_mut(number) {
                srq.ctx.set(Srqc::LWM, 0);
            }
            let mut eqe = Eqe::new();
            eqe.set(Eqe::QUEUE_NUMBER, number);
            self.push_event(now, EventType::SrqLimit, &mut eqe);
        }
    }

    /// Takes the next receive WQE: of the queue pair's queue, or of the XRC SRQ that the request names.
    pub(crate) fn take_receive(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        xrc: Option<XrcSrq>,
    ) -> Result<Receive, NoReceive> {
        match qp.responder.spare.take() {
            Some(spare) if spare.xrc == xrc => return Ok(spare),
            // The peer changed its mind about the SRQ that the message goes to.
            Some(spare) => self.complete_receive_error(now, qp, &spare, Syndrome::WorkRequestFlushed),
            None => {}
        }
        if let Some(srq) = xrc {
            let receive = self.take_shared(now, srq.srqn)?;
            return Ok(Receive { xrc, ..receive });
        }
        match &mut qp.rq {
            ReceiveQueue::None => Err(NoReceive::NotReady),
            ReceiveQueue::Shared(srqn) => {
                let srqn = *srqn;
                let receive = self.take_shared(now, srqn)?;
                Ok(match self.owner_of(srqn) {
                    Some(owner) => receive.untagged(owner, Found::NoTag),
                    None => receive,
                })
            }
            ReceiveQueue::Own { head, posted, .. } => {
                if *head == *posted {
                    *posted = self.receive_counter(qp.params.doorbell_record).ok_or(NoReceive::Broken)?;
                }
                if *head == *posted {
                    return Err(NoReceive::NotReady);
                }
                let receive = self.read_receive(qp)?;
                if let ReceiveQueue::Own { head, .. } = &mut qp.rq {
                    *head = head.wrapping_add(1);
                }
                Ok(receive)
            }
        }
    }

    /// Completes the receive that a message had taken as flushed.
    pub(crate) fn abandon_receive(&mut self, now: Ps, qp: &mut QueuePair) {
        if let Some(started) = qp.responder.abandon() {
            self.complete_receive_error(now, qp, &started, Syndrome::WorkRequestFlushed);
        }
    }

    /// Completes posted receives as flushed, as many as one event may ([`FLUSH_MOST`]). A shared queue's WQEs stay. Returns how many
    /// were posted; `None`: the doorbell record can't be read, or there is none.
    pub(crate) fn flush_receives(&mut self, now: Ps, qp: &mut QueuePair) -> Option<u16> {
        let record = qp.params.doorbell_record;
        let ReceiveQueue::Own { log_size, head, posted, .. } = &mut qp.rq else { return None };
        *posted = self.receive_counter(record)?;
        let waiting = posted.wrapping_sub(*head);
        if u32::from(waiting) > 1 << *log_size {
            // More than the queue holds: the record is rubbish, nothing sensible can be flushed.
            *head = *posted;
            return Some(0);
        }
        for _ in 0..waiting.min(FLUSH_MOST) {
            let ReceiveQueue::Own { head, .. } = &mut qp.rq else { return None };
            let receive = Receive::parse(*head, &[]);
            *head = head.wrapping_add(1);
            self.complete_receive_error(now, qp, &receive, Syndrome::WorkRequestFlushed);
        }
        Some(waiting)
    }

    pub(crate) fn complete_receive_error(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        receive: &Receive,
        syndrome: Syndrome,
    ) {
        if receive.is_entry() {
            let (cqn, cqe) = qp.canceled(receive);
            return self.complete_for(now, qp, cqn, cqe, &[]);
        }
        for counter in error_counters(syndrome).into_iter().flatten() {
            self.function.fw.icm.count(qp.qpn, counter);
        }
        let (cqn, mut cqe) = qp.receive_cqe(CqeOpcode::RespErr, receive);
        cqe.set(Cqe::SYNDROME, syndrome as u32).set(Cqe::VENDOR_ERR_SYND, syndrome.vendor().into());
        self.complete_for(now, qp, cqn, cqe, &[]);
    }
}
