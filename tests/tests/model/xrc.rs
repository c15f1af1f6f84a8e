//! Extended reliable connections (XRC): one queue pair of a host serves all shared receive queues of its
//! XRC domain; every request names the one it is for.

use hca_driver::qp::QpConfig;
use hca_driver::wqe::SendOp;
use hca_driver::{Completion, Event, SendRequest, Srq, XrcSrqConfig};
use hca_model::Ps;
use hca_model::link::Faults;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::ids::{Pd, Srqn, Xrcd};
use hca_spec::qpc::QpState;
use hca_tests::in_process::{ModelBus, ModelMemory};
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{assert_state, close, drain_events, linked, loopback};

/// What end 1 has beside its queue pair.
pub(crate) struct XrcPair {
    pub(crate) pair: Pair<ModelBus>,
    /// Of the two ends, and others.
    domains: Vec<Xrcd>,
    pub(crate) srqs: Vec<Srq<ModelMemory>>,
}

/// End 0 sends, end 1 is a target: with a send queue of its own, or only that.
pub(crate) fn connect(mut pair: Pair<ModelBus>, target_only: bool) -> XrcPair {
    let mut domains = Vec::new();
    for end in 0..2 {
        let home = pair.ends[end].home;
        let hca = &mut pair.hcas[home];
        let xrcd = hca.alloc_xrcd().expect("ALLOC_XRCD");
        domains.push(xrcd);
        let here = &mut pair.ends[end];
        let config = match target_only && end == 1 {
            true => QpConfig::xrc_target(here.pd, xrcd),
            false => QpConfig::xrc(here.pd, xrcd, &here.send_cq),
        };
        let qp = hca.create_qp(&config).expect("CREATE_QP of XRC");
        hca.destroy_qp(std::mem::replace(&mut here.qp, qp)).expect("DESTROY_QP");
    }
    for end in 0..2 {
        pair.to_rts(end, &Options::default()).expect("connect");
    }
    let mut xrc = XrcPair { pair, domains, srqs: Vec::new() };
    let (pd, xrcd) = (xrc.pair.ends[1].pd, xrc.domains[1]);
    xrc.add_srq(pd, xrcd, None);
    xrc.add_srq(pd, xrcd, Some(0x77));
    xrc
}

fn both(target_only: bool, test: impl Fn(&mut XrcPair)) {
    let options = Options::default();
    for pair in [loopback(&options), linked(&options, Faults::default(), 1)] {
        let mut xrc = connect(pair, target_only);
        test(&mut xrc);
        let XrcPair { mut pair, domains, srqs } = xrc;
        let home = pair.ends[1].home;
        for srq in srqs {
            pair.hcas[home].destroy_srq(srq).expect("DESTROY_XRC_SRQ");
        }
        for (here, domain) in pair.ends.iter_mut().zip(&domains) {
            let (pd, hca) = (here.pd, &mut pair.hcas[here.home]);
            assert!(hca.dealloc_xrcd(*domain).is_err(), "a queue pair is in the domain");
            let rc = hca.create_qp(&QpConfig::rc(pd, &here.send_cq, &here.recv_cq)).expect("CREATE_QP");
            hca.destroy_qp(std::mem::replace(&mut here.qp, rc)).expect("DESTROY_QP");
            hca.dealloc_xrcd(*domain).expect("DEALLOC_XRCD");
        }
        for other in &domains[2..] {
            pair.hcas[home].dealloc_xrcd(*other).expect("DEALLOC_XRCD");
        }
        close(pair);
    }
}

impl XrcPair {
    fn add_srq(&mut self, pd: Pd, xrcd: Xrcd, user_index: Option<u32>) -> Srqn {
        let cq = self.pair.ends[1].recv_cq.number();
        let config = XrcSrqConfig { pd, xrcd, cq, requests: 7, sges: 2, user_index };
        let hca = &mut self.pair.hcas[self.pair.ends[1].home];
        let srq = hca.create_xrc_srq(&config).expect("CREATE_XRC_SRQ");
        let number = srq.number();
        self.srqs.push(srq);
        number
    }

    fn recv(&mut self, srq: usize, wr_id: u64, offset: usize, len: usize) {
        let sge = self.pair.ends[1].sge(offset, len);
        self.srqs[srq].post_recv(wr_id, &[sge]).expect("post_recv");
    }

    /// The next receive completion, whatever the queue.
    fn received(&mut self) -> Completion {
        for _ in 0..100_000 {
            if let Some(completion) = self.pair.ends[1].recv_cq.poll() {
                return completion;
            }
            self.pair.hcas[0].wait(None);
        }
        panic!("no receive completion");
    }

    fn events(&mut self, end: usize) -> Vec<Event> {
        let home = self.pair.ends[end].home;
        drain_events(&mut self.pair.hcas[home])
    }

    /// Sends what must be refused, and checks how.
    fn refused(&mut self, request: &SendRequest<'_>, syndrome: Syndrome, event: EventType) {
        self.events(1);
        self.pair.send(0, request);
        assert_eq!(self.pair.sent(0).1.syndrome(), Some(syndrome));
        assert_state(&mut self.pair, 0, QpState::Error);
        assert_state(&mut self.pair, 1, QpState::Error);
        let told = Event::Qp { qpn: self.pair.ends[1].qp.number(), kind: event as u8 };
        assert_eq!(self.events(1), [told]);
        assert!(self.pair.ends[1].recv_cq.peek().is_none());
    }
}

#[test]
pub(crate) fn sends_go_to_the_queue_they_name() {
    for target_only in [false, true] {
        both(target_only, |xrc| {
            let data = pattern(1, 5000);
            xrc.pair.fill(0, 0, &data);
            let target = xrc.pair.ends[1].qp.number();
            let numbers = [xrc.srqs[0].number(), xrc.srqs[1].number()];
            for round in 0..20 {
                let (which, at) = (round % 2, 8192 * (1 + round % 2));
                xrc.recv(which, round as u64, at, 5000);
                let sge = [xrc.pair.ends[0].sge(0, 5000)];
                let imm = (round % 3 == 0).then_some(round as u32);
                let request = SendRequest::new(9, SendOp::Send { imm }, &sge).to_srq(numbers[which]);
                xrc.pair.send(0, &request);
                xrc.pair.sent_ok(0, 9);
                let completion = xrc.received();
                assert_eq!((completion.status, completion.byte_len), (Ok(()), 5000));
                assert_eq!((completion.imm, completion.qpn), (imm, target));
                // An SRQ without a user index is called by its number, the other by its index.
                let mark = [numbers[0].0, 0x77][which];
                assert_eq!(completion.srqn.0, mark, "the SRQ's name in the completion");
                assert_eq!(xrc.srqs[which].finish(&completion), Some(round as u64));
                assert!(xrc.pair.ends[1].bytes(at, 5000) == data);
            }
        });
    }
}

#[test]
pub(crate) fn every_operation() {
    both(true, |xrc| {
        let (far, srqn) = (xrc.pair.ends[1].mr, xrc.srqs[0].number());
        let data = pattern(2, 3000);
        xrc.pair.fill(0, 0, &data);
        let sge = [xrc.pair.ends[0].sge(0, 3000)];
        xrc.pair.send(0, &SendRequest::write(1, &sge, far.address, far.key).to_srq(srqn));
        xrc.pair.sent_ok(0, 1);
        assert!(xrc.pair.ends[1].bytes(0, 3000) == data);

        xrc.recv(0, 5, 0, 64);
        let op = SendOp::Write { address: far.address + 4096, rkey: far.key, imm: Some(0xabcd) };
        xrc.pair.send(0, &SendRequest::new(2, op, &sge).to_srq(srqn));
        xrc.pair.sent_ok(0, 2);
        let completion = xrc.received();
        assert_eq!((completion.imm, completion.byte_len), (Some(0xabcd), 3000));
        assert_eq!(xrc.srqs[0].finish(&completion), Some(5));

        let back = [xrc.pair.ends[0].sge(8192, 3000)];
        xrc.pair.send(0, &SendRequest::read(3, &back, far.address + 4096, far.key).to_srq(srqn));
        xrc.pair.sent_ok(0, 3);
        assert!(xrc.pair.ends[0].bytes(8192, 3000) == data);

        let word = [xrc.pair.ends[0].sge(16384, 8)];
        xrc.pair.fill(1, 16384, &40u64.to_le_bytes());
        let add = SendOp::FetchAdd { address: far.address + 16384, rkey: far.key, add: 2 };
        xrc.pair.send(0, &SendRequest::new(4, add, &word).to_srq(srqn));
        xrc.pair.sent_ok(0, 4);
        assert_eq!(xrc.pair.ends[0].bytes(16384, 8), 40u64.to_le_bytes());
        assert_eq!(xrc.pair.ends[1].bytes(16384, 8), 42u64.to_le_bytes());
    });
}

#[test]
pub(crate) fn an_empty_queue_is_waited_for() {
    both(true, |xrc| {
        let (empty, filled) = (xrc.srqs[0].number(), xrc.srqs[1].number());
        xrc.recv(1, 1, 0, 64);
        xrc.pair.send(0, &SendRequest::send(1, &[]).inline(b"waits").to_srq(empty));
        xrc.pair.send(0, &SendRequest::send(2, &[]).inline(b"behind").to_srq(filled));
        let simulation = xrc.pair.hcas[0].bus_mut().simulation().clone();
        simulation.run(Ps::from_ms(5));
        assert!(xrc.pair.try_sent(0).is_none() && xrc.pair.ends[1].recv_cq.peek().is_none());
        xrc.recv(0, 2, 64, 64);
        xrc.pair.sent_ok(0, 1);
        xrc.pair.sent_ok(0, 2);
        let (first, second) = (xrc.received(), xrc.received());
        assert_eq!((xrc.srqs[0].finish(&first), xrc.srqs[1].finish(&second)), (Some(2), Some(1)));
        assert_eq!(xrc.pair.ends[1].bytes(64, 5), b"waits");
    });
}

/// A number that names no SRQ, an SRQ of another kind, or one of another domain.
#[test]
pub(crate) fn wrong_queues_are_refused() {
    let refused = |which: fn(&mut XrcPair) -> Srqn| {
        both(true, |xrc| {
            let srqn = which(xrc);
            let request = SendRequest::send(1, &[]).inline(b"x").to_srq(srqn);
            xrc.refused(&request, Syndrome::RemoteInvalidRequest, EventType::InvalidRequest);
            assert_eq!(xrc.pair.ends[1].bytes(0, 64), [0; 64]);
        });
    };
    refused(|_| Srqn(0x00ab_cdef));
    refused(|xrc| {
        let home = xrc.pair.ends[1].home;
        let pd = xrc.pair.ends[1].pd;
        let pool = xrc.pair.hcas[home].create_srq(pd, 7, 1).expect("CREATE_RMP");
        let number = pool.number();
        xrc.srqs.push(pool);
        xrc.recv(2, 1, 0, 64);
        number
    });
    refused(|xrc| {
        let home = xrc.pair.ends[1].home;
        let other = xrc.pair.hcas[home].alloc_xrcd().expect("ALLOC_XRCD");
        xrc.domains.push(other);
        let pd = xrc.pair.ends[1].pd;
        let number = xrc.add_srq(pd, other, None);
        xrc.recv(2, 1, 0, 64);
        number
    });
}

/// The SRQ's protection domain, not the queue pair's, decides which keys a request may use.
#[test]
pub(crate) fn the_queue_decides_over_the_domain() {
    both(true, |xrc| {
        let home = xrc.pair.ends[1].home;
        let far = xrc.pair.ends[1].mr;
        let (xrcd, pd) = (xrc.domains[1], xrc.pair.hcas[home].alloc_pd().expect("ALLOC_PD"));
        let foreign = xrc.add_srq(pd, xrcd, None);
        let sge = [xrc.pair.ends[0].sge(0, 8)];
        let own = xrc.srqs[0].number();
        xrc.pair.send(0, &SendRequest::write(1, &sge, far.address, far.key).to_srq(own));
        xrc.pair.sent_ok(0, 1);
        let request = SendRequest::write(2, &sge, far.address, far.key).to_srq(foreign);
        xrc.refused(&request, Syndrome::RemoteAccess, EventType::AccessError);
        let srq = xrc.srqs.pop().expect("the foreign queue");
        xrc.pair.hcas[home].destroy_srq(srq).expect("DESTROY_XRC_SRQ");
        xrc.pair.hcas[home].dealloc_pd(pd).expect("DEALLOC_PD");
    });
}

#[test]
pub(crate) fn limit_event() {
    both(true, |xrc| {
        let home = xrc.pair.ends[1].home;
        let srqn = xrc.srqs[0].number();
        (0..5).for_each(|i| xrc.recv(0, i, 64 * i as usize, 64));
        xrc.events(1);
        xrc.pair.hcas[home].arm_srq(&xrc.srqs[0], 4).expect("ARM_XRC_SRQ");
        assert_eq!((xrc.events(1), xrc.pair.hcas[home].srq_limit(&xrc.srqs[0])), (vec![], Ok(4)));
        for i in 0..3 {
            xrc.pair.send(0, &SendRequest::send(i, &[]).inline(b"x").to_srq(srqn));
            xrc.pair.sent_ok(0, i);
        }
        let limit = Event::Srq { srqn, kind: EventType::SrqLimit as u8 };
        let told: Vec<Event> = xrc.events(1).into_iter().filter(|e| *e == limit).collect();
        assert_eq!(told.len(), 1, "once for an arming");
        assert_eq!(xrc.pair.hcas[home].srq_limit(&xrc.srqs[0]), Ok(0));
    });
}
