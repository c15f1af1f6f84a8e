//! Dynamic connections (DC) of a testbed: initiators, and the targets that they go to in turn.

use hca_driver::eth::Hop;
use hca_driver::{Access, DctConfig, InitAttr, RtsAttr, ScatterToCqe, Target};

use crate::Error;
use crate::scenario::{Op, Scenario};
use crate::testbed::{Address, Destination, EndRef, ROCE_INDEX, Testbed, Worker, mtu_code};

/// What initiators know of targets.
const KEY: u64 = 0x736f_6674_6863_6121;
/// How long an initiator waits for a receive request: as connections ([`hca_driver::RtrAttr`]).
const RNR_TIMER: u8 = 7;

impl Testbed {
    /// Gives threads of different hosts initiators and targets: all of them both if it is `mutual`, otherwise the first
    /// initiators and the others targets. The requests of an initiator go to all targets of all others in turn; each begins with
    /// another one.
    ///
    /// # Errors
    /// A command failed.
    pub(crate) fn connect_dynamically(
        &mut self,
        scenario: &Scenario,
        workers: &mut [Worker],
        mutual: bool,
    ) -> Result<(), Error> {
        let mut targets = Vec::new();
        for (i, worker) in workers.iter_mut().enumerate() {
            let own = if mutual || i > 0 { self.add_targets(scenario, worker)? } else { Vec::new() };
            targets.push(own);
        }
        for (i, worker) in workers.iter_mut().enumerate().filter(|(i, _)| mutual || *i == 0) {
            let others = || targets.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, own)| own);
            // One of each host before the second of any.
            let to: Vec<Destination> = (0..scenario.dcts as usize)
                .flat_map(|place| others().filter_map(move |own| own.get(place).copied()))
                .collect();
            self.add_initiators(scenario, worker, &to)?;
        }
        Ok(())
    }

    /// Targets of a thread, on one shared receive queue.
    fn add_targets(&mut self, scenario: &Scenario, worker: &mut Worker) -> Result<Vec<Destination>, Error> {
        let cq = self.cq_number(worker.recv_cq);
        let requests = if scenario.op == Op::Send { worker.depth as u32 } else { 1 };
        let Some(side) = self.hosts.get_mut(worker.host) else { return Ok(Vec::new()) };
        let srq = side.hca.create_srq(side.pd, requests, 1)?;
        let config = DctConfig {
            pd: side.pd,
            cq,
            srq: srq.number(),
            access_key: KEY,
            access: Access::ALL,
            mtu: mtu_code(scenario),
            rnr_timer: RNR_TIMER,
            scatter_to_cqe: ScatterToCqe::Off,
        };
        let mut all = Vec::new();
        for _ in 0..scenario.dcts {
            let dct = side.hca.create_dct(&config)?;
            let (dctn, access_key) = (dct.number(), KEY);
            let target = match side.address {
                Address::Lid(lid) => Target { dctn, access_key, lid, gid: None, roce: None },
                Address::Roce(gid, mac) => Target {
                    dctn,
                    access_key,
                    lid: Default::default(),
                    gid: Some(gid),
                    roce: Some((ROCE_INDEX, Hop::to(mac))),
                },
            };
            all.push(Destination { peer: worker.host, datagram: None, target: Some(target) });
            self.dcts.push(dct);
        }
        worker.srq = Some(self.srqs.len());
        self.srqs.push(srq);
        Ok(all)
    }

    fn add_initiators(
        &mut self,
        scenario: &Scenario,
        worker: &mut Worker,
        to: &[Destination],
    ) -> Result<(), Error> {
        let Some(first) = to.first().map(|to| to.peer) else { return Ok(()) };
        let qps = (scenario.qps / scenario.threads) as usize;
        let cqs = self.send_cqs(scenario, worker.host, qps)?;
        for i in 0..qps {
            let Some(send_cq) = cqs.get(i % cqs.len().max(1)).copied() else { continue };
            let qp = self.create_qp(scenario, worker, send_cq)?;
            let (Some(side), Some(own)) = (self.hosts.get_mut(worker.host), self.qps.get_mut(qp)) else {
                continue;
            };
            side.hca.qp_to_init(own, &InitAttr { access: Access::ALL, ..InitAttr::default() })?;
            side.hca.dci_to_rtr(own, mtu_code(scenario))?;
            let initiator_reads = scenario.outstanding as u8;
            side.hca.qp_to_rts(own, &RtsAttr { initiator_reads, ..RtsAttr::default() })?;
            let mut order = to.to_vec();
            order.rotate_left((qp + worker.thread as usize) % to.len());
            self.set_destinations(qp, order);
            worker.ends.push(EndRef { qp, send_cq, peer: first });
        }
        Ok(())
    }
}
