//! A thread that receives messages and posts new receive requests for them.

use hca_driver::Sge;
use hca_model::Ps;

use super::{Next, POLL_BATCH, Program, Shared, good};
use crate::Error;
use crate::host::ns;
use crate::scenario::Scenario;
use crate::testbed::{EndRef, Testbed, Worker};

/// Receives for one worker.
pub(super) struct Receiver {
    ends: Vec<EndRef>,
    srq: Option<usize>,
    cq: usize,
    sge: Sge,
}

impl Receiver {
    /// Posts every receive request, and watches for messages as `token`.
    pub(super) fn new(
        testbed: &mut Testbed,
        scenario: &Scenario,
        worker: &Worker,
        token: usize,
    ) -> Result<Self, Error> {
        let head = worker.slot.min(crate::testbed::GRH);
        let len =
            if scenario.transport == crate::scenario::Transport::Ud { head } else { 0 } + scenario.bytes();
        let sge = Sge { address: worker.local_mr.address, len: len as u32, key: worker.local_mr.key };
        let receiver = Self { ends: worker.ends.clone(), srq: worker.srq, cq: worker.recv_cq, sge };
        if let Some(cq) = testbed.cqs.get(receiver.cq) {
            cq.memory().watch(token);
        }
        let queues: Vec<usize> = match receiver.srq {
            Some(_) => vec![0],
            None => receiver.ends.iter().map(|end| end.qp).collect(),
        };
        for qp in queues {
            for _ in 0..worker.depth {
                testbed.post_receive(receiver.srq, qp, sge)?;
            }
        }
        Ok(receiver)
    }
}

impl Program for Receiver {
    fn act(&mut self, now: Ps, testbed: &mut Testbed, shared: &mut Shared<'_>) -> Result<Next, Error> {
        let mut taken = 0;
        while taken < POLL_BATCH
            && let Some(completion) = testbed.cqs.get_mut(self.cq).and_then(hca_driver::Cq::poll)
        {
            good(&completion)?;
            taken += 1;
            let named = |e: &&EndRef| testbed.qps.get(e.qp).is_some_and(|q| q.number() == completion.qpn);
            let qp = match self.srq {
                Some(_) => Some(0),
                None => self.ends.iter().find(named).map(|end| end.qp),
            };
            let Some(qp) = qp else { continue };
            testbed.finish_receive(self.srq, qp, &completion);
            testbed.post_receive(self.srq, qp, self.sge)?;
        }
        let host = &shared.host;
        if taken == 0 {
            return Ok(Next::Look(ns(host.poll_ns)));
        }
        if shared.scenario.count_received {
            shared.meter.count(now, taken as u64);
        }
        Ok(Next::At(now + ns((host.cqe_ns + host.recv_ns) * taken as f64)))
    }
}
