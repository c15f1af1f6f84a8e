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
        let receiver = Self { ends: worker.ends.clone(), cq: worker.recv_cq, sge };
        if let Some(cq) = testbed.cqs.get(receiver.cq) {
            cq.memory().watch(token);
        }
        for end in &receiver.ends {
            for _ in 0..worker.depth {
                receiver.post(testbed, end)?;
            }
        }
        Ok(receiver)
    }

    fn post(&self, testbed: &mut Testbed, end: &EndRef) -> Result<(), Error> {
        let sges = [self.sge];
        let sges = if self.sge.len > 0 { &sges[..] } else { &[] };
        let Some(qp) = testbed.qps.get_mut(end.qp) else { return Ok(()) };
        Ok(qp.post_recv(0, sges)?)
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
            let end = self
                .ends
                .iter()
                .find(|e| testbed.qps.get(e.qp).is_some_and(|q| q.number() == completion.qpn));
            let Some(end) = end.copied() else { continue };
            if let Some(qp) = testbed.qps.get_mut(end.qp) {
                qp.finish(&completion);
            }
            self.post(testbed, &end)?;
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
