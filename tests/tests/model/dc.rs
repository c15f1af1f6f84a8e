//! Dynamic connections (DC): initiators go from target to target, targets serve whoever knows their key.

use hca_driver::qp::QpConfig;
use hca_driver::wqe::SendOp;
use hca_driver::{
    Access, Completion, Dct, DctConfig, Event, Failure, Qp, RtsAttr, ScatterToCqe, SendRequest, Srq, Target,
};
use hca_model::Ps;
use hca_model::link::Faults;
use hca_spec::cqe::Syndrome;
use hca_spec::dct::Dctc;
use hca_spec::eqe::EventType;
use hca_spec::ids::Psn;
use hca_spec::qpc::{QpState, Qpc};
use hca_tests::in_process::{ModelBus, ModelMemory};
use hca_tests::pair::{Options, PORT, Pair, pattern};
use hca_tests::rig::{MTU, close, drain_events, linked, loopback};

const KEY: u64 = 0x0123_4567_89ab_cdef;
/// Path MTU code of [`MTU`].
const MTU_CODE: u8 = 3;

/// End 0 of the pair has initiators, end 1 has targets on one shared receive queue.
pub(crate) struct DcPair {
    pub(crate) pair: Pair<ModelBus>,
    pub(crate) initiators: Vec<Qp<ModelMemory>>,
    targets: Vec<Dct>,
    srq: Srq<ModelMemory>,
    global: bool,
}

pub(crate) fn dc_pair(mut pair: Pair<ModelBus>, global: bool) -> DcPair {
    let (pd, home) = (pair.ends[1].pd, pair.ends[1].home);
    let srq = pair.hcas[home].create_srq(pd, 31, 2).expect("CREATE_RMP");
    let mut dc = DcPair { pair, initiators: Vec::new(), targets: Vec::new(), srq, global };
    dc.add_initiator(RtsAttr::default());
    dc.add_target(Access::ALL, ScatterToCqe::Off);
    dc
}

impl DcPair {
    fn add_initiator(&mut self, rts: RtsAttr) -> usize {
        self.add_initiator_with(rts, |config| config)
    }

    pub(crate) fn add_initiator_with(
        &mut self,
        rts: RtsAttr,
        change: impl FnOnce(QpConfig) -> QpConfig,
    ) -> usize {
        let here = &self.pair.ends[0];
        let hca = &mut self.pair.hcas[here.home];
        let config = change(QpConfig::dci(here.pd, &here.send_cq));
        let mut qp = hca.create_qp(&config).expect("CREATE_QP");
        hca.qp_to_init(&mut qp, &Default::default()).expect("RST2INIT");
        hca.dci_to_rtr(&mut qp, MTU_CODE).expect("INIT2RTR");
        hca.qp_to_rts(&mut qp, &rts).expect("RTR2RTS");
        self.initiators.push(qp);
        self.initiators.len() - 1
    }

    fn add_target(&mut self, access: Access, scatter_to_cqe: ScatterToCqe) -> usize {
        let (here, srq) = (&self.pair.ends[1], self.srq.number());
        let (pd, cq) = (here.pd, here.recv_cq.number());
        let config =
            DctConfig { pd, cq, srq, access_key: KEY, access, mtu: MTU_CODE, rnr_timer: 7, scatter_to_cqe };
        let hca = &mut self.pair.hcas[here.home];
        self.targets.push(hca.create_dct(&config).expect("CREATE_DCT"));
        self.targets.len() - 1
    }

    pub(crate) fn target(&mut self, which: usize) -> Target {
        let hca = &mut self.pair.hcas[self.pair.ends[1].home];
        let lid = hca.lid(PORT).expect("LID");
        let gid = self.global.then(|| hca.gid(PORT, 0).expect("GID"));
        Target { dctn: self.targets[which].number(), access_key: KEY, lid, gid, roce: None }
    }

    pub(crate) fn post(&mut self, initiator: usize, request: &SendRequest<'_>) {
        let bus = self.pair.hcas[self.pair.ends[0].home].bus_mut();
        self.initiators[initiator].post_send(bus, request).expect("post_send");
    }

    /// The next completion of any initiator: which one, its request, and the completion.
    pub(crate) fn sent(&mut self) -> (usize, u64, Completion) {
        for _ in 0..1_000_000 {
            if let Some(c) = self.pair.ends[0].send_cq.poll() {
                let which = self.initiators.iter().position(|qp| qp.number() == c.qpn).expect("an initiator");
                let wr_id = self.initiators[which].finish(&c).expect("a request under way");
                return (which, wr_id, c);
            }
            self.pair.hcas[0].wait(None);
        }
        panic!("no send completion");
    }

    pub(crate) fn sent_ok(&mut self, wr_id: u64) {
        let (_, got, completion) = self.sent();
        assert_eq!((got, completion.status), (wr_id, Ok(())));
    }

    pub(crate) fn received(&mut self) -> (u64, Completion) {
        for _ in 0..1_000_000 {
            if let Some(completion) = self.pair.ends[1].recv_cq.poll() {
                return (self.srq.finish(&completion).expect("of the SRQ"), completion);
            }
            self.pair.hcas[0].wait(None);
        }
        panic!("no receive completion");
    }

    pub(crate) fn recv(&mut self, wr_id: u64, offset: usize, len: usize) {
        let sge = self.pair.ends[1].sge(offset, len);
        self.srq.post_recv(wr_id, &[sge]).expect("post_recv");
    }

    fn run(&mut self, time: Ps) {
        self.pair.hcas[0].bus_mut().simulation().clone().run(time);
    }

    fn events(&mut self, end: usize) -> Vec<Event> {
        let home = self.pair.ends[end].home;
        drain_events(&mut self.pair.hcas[home])
    }

    pub(crate) fn state(&mut self, initiator: usize) -> Option<QpState> {
        let hca = &mut self.pair.hcas[self.pair.ends[0].home];
        let qpc = hca.query_qp(&self.initiators[initiator]).expect("QUERY_QP");
        QpState::from_bits(qpc.get(Qpc::STATE))
    }

    /// Takes an initiator through RESET.
    pub(crate) fn revive(&mut self, initiator: usize) {
        let hca = &mut self.pair.hcas[self.pair.ends[0].home];
        let qp = &mut self.initiators[initiator];
        hca.qp_to_reset(qp).expect("2RST");
        hca.qp_to_init(qp, &Default::default()).expect("RST2INIT");
        hca.dci_to_rtr(qp, MTU_CODE).expect("INIT2RTR");
        hca.qp_to_rts(qp, &RtsAttr::default()).expect("RTR2RTS");
    }

    pub(crate) fn close(self) {
        let DcPair { mut pair, initiators, targets, srq, .. } = self;
        let (near, far) = (pair.ends[0].home, pair.ends[1].home);
        for target in targets {
            pair.hcas[far].destroy_dct(target).expect("DESTROY_DCT");
        }
        pair.hcas[far].destroy_srq(srq).expect("DESTROY_RMP");
        for qp in initiators {
            pair.hcas[near].destroy_qp(qp).expect("DESTROY_QP");
        }
        close(pair);
    }
}

fn both(test: impl Fn(&mut DcPair)) {
    let options = Options::default();
    for pair in [loopback(&options), linked(&options, Faults::default(), 1)] {
        let mut dc = dc_pair(pair, false);
        test(&mut dc);
        dc.close();
    }
}

#[test]
pub(crate) fn every_operation() {
    both(|dc| {
        let far = dc.pair.ends[1].mr;
        let data = pattern(1, 5000);
        dc.pair.fill(0, 0, &data);
        let to = dc.target(0);
        let sge = [dc.pair.ends[0].sge(0, 5000)];
        let source = dc.initiators[0].number();

        for (i, imm) in [None, Some(0x1234_5678)].into_iter().enumerate() {
            dc.recv(7, 8192, 5000);
            dc.post(0, &SendRequest::new(i as u64, SendOp::Send { imm }, &sge).to_target(to));
            dc.sent_ok(i as u64);
            let (wr_id, c) = dc.received();
            assert_eq!((wr_id, c.status, c.byte_len, c.imm), (7, Ok(()), 5000, imm));
            assert_eq!((c.qpn, c.source_qpn), (to.dctn, source), "target and initiator");
            assert!(dc.pair.ends[1].bytes(8192, 5000) == data);
        }

        dc.post(0, &SendRequest::write(2, &sge, far.address, far.key).to_target(to));
        dc.sent_ok(2);
        assert!(dc.pair.ends[1].bytes(0, 5000) == data);

        dc.recv(8, 60_000, 0);
        let op = SendOp::Write { address: far.address + 16384, rkey: far.key, imm: Some(9) };
        dc.post(0, &SendRequest::new(3, op, &sge).to_target(to));
        dc.sent_ok(3);
        let (wr_id, c) = dc.received();
        assert_eq!((wr_id, c.imm, c.byte_len), (8, Some(9), 5000));

        let back = [dc.pair.ends[0].sge(16384, 5000)];
        dc.post(0, &SendRequest::read(4, &back, far.address + 16384, far.key).to_target(to));
        dc.sent_ok(4);
        assert!(dc.pair.ends[0].bytes(16384, 5000) == data);

        dc.pair.fill(1, 0, &40u64.to_le_bytes());
        let word = [dc.pair.ends[0].sge(0, 8)];
        let (address, rkey) = (far.address, far.key);
        dc.post(0, &SendRequest::new(5, SendOp::FetchAdd { address, rkey, add: 2 }, &word).to_target(to));
        dc.sent_ok(5);
        assert_eq!(dc.pair.ends[0].bytes(0, 8), 40u64.to_le_bytes());
        let op = SendOp::CompareSwap { address, rkey, compare: 42, swap: 7 };
        dc.post(0, &SendRequest::new(6, op, &word).to_target(to));
        dc.sent_ok(6);
        assert_eq!(dc.pair.ends[0].bytes(0, 8), 42u64.to_le_bytes());
        assert_eq!(dc.pair.ends[1].bytes(0, 8), 7u64.to_le_bytes());
    });
}

/// Requests to several targets in turn, posted at once: in order, each where it belongs.
#[test]
pub(crate) fn from_target_to_target() {
    both(|dc| {
        dc.add_target(Access::ALL, ScatterToCqe::Off);
        dc.add_target(Access::ALL, ScatterToCqe::Off);
        let far = dc.pair.ends[1].mr;
        let data = pattern(3, 3000);
        dc.pair.fill(0, 0, &data);
        let sge = [dc.pair.ends[0].sge(0, 3000)];
        let targets = [dc.target(0), dc.target(1), dc.target(2)];
        for i in 0..18u64 {
            let to = targets[(i / 2 % 3) as usize];
            dc.recv(i, 32768, 3000);
            match i % 2 {
                0 => dc.post(0, &SendRequest::send(i, &sge).to_target(to)),
                _ => dc.post(0, &SendRequest::read(i, &sge, far.address, far.key).to_target(to)),
            }
        }
        (0..18).for_each(|i| dc.sent_ok(i));
        for i in 0..9 {
            let (_, c) = dc.received();
            assert_eq!((c.status, c.qpn), (Ok(()), targets[i % 3].dctn), "message {i}");
        }
    });
}

/// Many initiators at one target: each has a sequence of its own.
#[test]
pub(crate) fn several_initiators() {
    both(|dc| {
        (1..5u32).for_each(|i| {
            _ = dc.add_initiator(RtsAttr { send_psn: Psn::new(i * 1000), ..RtsAttr::default() })
        });
        let to = dc.target(0);
        let data = pattern(4, 2500);
        dc.pair.fill(0, 0, &data);
        let sge = [dc.pair.ends[0].sge(0, 2500)];
        let mut of = [0; 5];
        for round in 0..4u64 {
            (0..5).for_each(|i| dc.recv(i, 4096 * i as usize, 2500));
            (0..5).for_each(|i| dc.post(i, &SendRequest::send(round, &sge).to_target(to)));
            for _ in 0..5 {
                let (which, wr_id, c) = dc.sent();
                assert_eq!((wr_id, c.status), (round, Ok(())));
                of[which] += 1;
                let (wr_id, c) = dc.received();
                assert_eq!(c.byte_len, 2500);
                assert!(dc.initiators.iter().any(|qp| qp.number() == c.source_qpn));
                assert!(dc.pair.ends[1].bytes(4096 * wr_id as usize, 2500) == data);
            }
        }
        assert_eq!(of, [4; 5]);
    });
}

#[test]
pub(crate) fn packets_with_grh() {
    let options = Options { global: true, ..Options::default() };
    for pair in [loopback(&options), linked(&options, Faults::default(), 1)] {
        let mut dc = dc_pair(pair, true);
        dc.recv(1, 0, 64);
        let (to, sge) = (dc.target(0), [dc.pair.ends[0].sge(0, 64)]);
        dc.post(0, &SendRequest::send(1, &sge).to_target(to));
        dc.sent_ok(1);
        let (_, c) = dc.received();
        assert!(c.has_grh);
        dc.close();
    }
}

#[test]
pub(crate) fn small_messages_in_the_completion() {
    both(|dc| {
        let which = dc.add_target(Access::ALL, ScatterToCqe::Data32);
        dc.pair.fill(0, 0, b"within");
        dc.recv(1, 0, 64);
        let (to, sge) = (dc.target(which), [dc.pair.ends[0].sge(0, 6)]);
        dc.post(0, &SendRequest::send(1, &sge).to_target(to));
        dc.sent_ok(1);
        let (_, c) = dc.received();
        assert_eq!(c.data.map(|d| d.bytes()[..6].to_vec()), Some(b"within".to_vec()));
    });
}

/// No receive request yet: RNR NAKs until there is one.
#[test]
pub(crate) fn receiver_not_ready() {
    both(|dc| {
        let (to, sge) = (dc.target(0), [dc.pair.ends[0].sge(0, 3000)]);
        dc.post(0, &SendRequest::send(1, &sge).to_target(to));
        dc.run(Ps::from_ms(1));
        assert!(dc.pair.ends[0].send_cq.poll().is_none());
        dc.recv(2, 0, 3000);
        dc.sent_ok(1);
        assert_eq!(dc.received().0, 2);
    });
}

#[test]
pub(crate) fn a_wrong_key_is_counted_and_told() {
    both(|dc| {
        let to = Target { access_key: KEY ^ 1, ..dc.target(0) };
        let sge = [dc.pair.ends[0].sge(0, 64)];
        let home = dc.pair.ends[1].home;
        dc.events(1);
        dc.pair.hcas[home].arm_dct(&dc.targets[0]).expect("ARM_DCT_FOR_KEY_VIOLATION");
        for round in 1..=2 {
            dc.recv(round, 0, 64);
            dc.post(0, &SendRequest::send(1, &sge).to_target(to));
            dc.post(0, &SendRequest::send(2, &sge).to_target(to));
            let failed = |c: &Completion| c.status.map_err(|f: Failure| f.syndrome);
            let (_, first, c) = dc.sent();
            assert_eq!((first, c.syndrome()), (1, Some(Syndrome::RemoteAccess)), "{:?}", failed(&c));
            let (_, second, c) = dc.sent();
            assert_eq!((second, c.syndrome()), (2, Some(Syndrome::WorkRequestFlushed)));
            assert_eq!(dc.state(0), Some(QpState::Error));
            let ctx = dc.pair.hcas[home].query_dct(&dc.targets[0]).expect("QUERY_DCT");
            assert_eq!(ctx.get(Dctc::DC_ACCESS_KEY_VIOLATION_COUNT), round as u32);
            let dctn = dc.targets[0].number();
            let told = Event::Dct { dctn, kind: EventType::DctKeyViolation as u8 };
            let told: &[Event] = if round == 1 { &[told] } else { &[] };
            assert_eq!(dc.events(1), told, "armed once");
            dc.revive(0);
        }
        // The target is as it was.
        let to = dc.target(0);
        dc.post(0, &SendRequest::send(3, &sge).to_target(to));
        dc.sent_ok(3);
        assert_eq!(dc.received().0, 1);
    });
}

/// A request that is refused ends the connection; the target and its other initiators go on.
#[test]
pub(crate) fn a_refused_request_costs_the_initiator() {
    both(|dc| {
        dc.add_initiator(RtsAttr::default());
        let none = dc.add_target(Access::LOCAL_WRITE, ScatterToCqe::Off);
        let (far, to) = (dc.pair.ends[1].mr, dc.target(0));
        let strict = dc.target(none);
        let sge = [dc.pair.ends[0].sge(0, 64)];
        dc.recv(1, 0, 64);
        dc.recv(2, 0, 64);
        dc.post(1, &SendRequest::send(9, &sge).to_target(to));
        dc.sent_ok(9);
        assert_eq!(dc.received().0, 1);
        dc.events(1);
        for (request, syndrome) in [
            (
                SendRequest::write(1, &sge, far.address, hca_spec::ids::Mkey(far.key.0 ^ 1)).to_target(to),
                Syndrome::RemoteAccess,
            ),
            (
                SendRequest::write(1, &sge, far.address, far.key).to_target(strict),
                Syndrome::RemoteInvalidRequest,
            ),
            (
                SendRequest::read(1, &sge, far.address, far.key).to_target(strict),
                Syndrome::RemoteInvalidRequest,
            ),
        ] {
            dc.post(0, &request);
            let (_, wr_id, c) = dc.sent();
            assert_eq!((wr_id, c.syndrome()), (1, Some(syndrome)));
            assert_eq!(dc.state(0), Some(QpState::Error));
            assert_eq!(dc.events(1), [], "a target has no such event");
            dc.revive(0);
        }
        dc.post(1, &SendRequest::send(10, &sge).to_target(to));
        dc.sent_ok(10);
        assert_eq!(dc.received().0, 2);
        dc.recv(3, 0, 64);
        dc.post(0, &SendRequest::send(11, &sge).to_target(to));
        dc.sent_ok(11);
    });
}

/// A message longer than its buffers: both ends are told, and the next one is received.
#[test]
pub(crate) fn a_message_too_long() {
    both(|dc| {
        let (to, sge) = (dc.target(0), [dc.pair.ends[0].sge(0, 3000)]);
        dc.recv(1, 0, 2000);
        dc.post(0, &SendRequest::send(1, &sge).to_target(to));
        assert_eq!(dc.sent().2.syndrome(), Some(Syndrome::RemoteInvalidRequest));
        let (wr_id, c) = dc.received();
        assert_eq!((wr_id, c.syndrome()), (1, Some(Syndrome::LocalLength)));
        dc.revive(0);
        dc.recv(2, 0, 3000);
        dc.post(0, &SendRequest::send(2, &sge).to_target(to));
        dc.sent_ok(2);
        assert_eq!((dc.received().0, MTU), (2, 1024));
    });
}

/// A target that is not there does not answer.
#[test]
pub(crate) fn no_such_target() {
    both(|dc| {
        let rts = RtsAttr { timeout: 8, retries: 2, ..RtsAttr::default() };
        let which = dc.add_initiator(rts);
        let mut to = dc.target(0);
        to.dctn.0 += 100;
        let sge = [dc.pair.ends[0].sge(0, 64)];
        dc.post(which, &SendRequest::send(1, &sge).to_target(to));
        assert_eq!(dc.sent().2.syndrome(), Some(Syndrome::TransportRetryExceeded));
    });
}

/// A target that drains takes no new connection and says when it has none.
#[test]
pub(crate) fn draining() {
    both(|dc| {
        let rts = RtsAttr { timeout: 8, retries: 2, ..RtsAttr::default() };
        let late = dc.add_initiator(rts);
        let (to, sge) = (dc.target(0), [dc.pair.ends[0].sge(0, 64)]);
        let home = dc.pair.ends[1].home;
        dc.recv(1, 0, 64);
        dc.post(0, &SendRequest::send(1, &sge).to_target(to));
        dc.sent_ok(1);
        dc.events(1);
        dc.pair.hcas[home].drain_dct(&dc.targets[0]).expect("DRAIN_DCT");
        let told = Event::Dct { dctn: to.dctn, kind: EventType::DctDrained as u8 };
        assert_eq!(dc.events(1), [told]);
        dc.post(late, &SendRequest::send(2, &sge).to_target(to));
        assert_eq!(dc.sent().2.syndrome(), Some(Syndrome::TransportRetryExceeded));
    });
}

/// The initiator comes back after so long that the target has forgotten it.
#[test]
pub(crate) fn connections_are_made_anew() {
    both(|dc| {
        let (to, sge) = (dc.target(0), [dc.pair.ends[0].sge(0, 64)]);
        for round in 0..3 {
            dc.recv(round, 0, 64);
            dc.post(0, &SendRequest::send(round, &sge).to_target(to));
            dc.sent_ok(round);
            assert_eq!(dc.received().0, round);
            dc.run(Ps::from_ms(30_000 * (1 + round * 3)));
        }
    });
}

/// Each byte once and in order, although packets get lost, doubled and overtaken, from target to target.
#[test]
pub(crate) fn over_a_bad_link() {
    for seed in 0..6 {
        let faults = Faults {
            loss: 0.03,
            duplicate: 0.03,
            reorder: 0.03,
            delay_by: Ps::from_us(20),
            ..Faults::default()
        };
        let pair = linked(&Options::default(), faults, seed);
        let mut dc = dc_pair(pair, false);
        dc.add_target(Access::ALL, ScatterToCqe::Off);
        let which = dc.add_initiator(RtsAttr { timeout: 8, ..RtsAttr::default() });
        let (far, targets) = (dc.pair.ends[1].mr, [dc.target(0), dc.target(1)]);
        dc.pair.fill(1, 0, &0u64.to_le_bytes());
        for i in 0..60u64 {
            let to = targets[(i / 3 % 2) as usize];
            let data = pattern(seed * 1000 + i, 2500);
            dc.pair.fill(0, 0, &data);
            let sge = [dc.pair.ends[0].sge(0, 2500)];
            dc.recv(i, 8192, 2500);
            dc.post(which, &SendRequest::send(i, &sge).to_target(to));
            let word = [dc.pair.ends[0].sge(4096, 8)];
            let op = SendOp::FetchAdd { address: far.address, rkey: far.key, add: 1 };
            dc.post(which, &SendRequest::new(1000 + i, op, &word).to_target(to));
            dc.sent_ok(i);
            dc.sent_ok(1000 + i);
            assert_eq!(dc.received().0, i, "seed {seed}");
            assert!(dc.pair.ends[1].bytes(8192, 2500) == data, "seed {seed}, message {i}");
            assert_eq!(dc.pair.ends[0].bytes(4096, 8), i.to_le_bytes(), "each atomic once, seed {seed}");
        }
        dc.close();
    }
}

/// Each connection that is given up for another one leaves a timer of a minute: they don't pile up.
#[test]
fn timers_of_connections_that_are_gone() {
    const TIMES: u64 = 20_000;
    const MOST: usize = 4096 + 64;
    let mut dc = dc_pair(loopback(&Options::default()), false);
    dc.add_target(Access::ALL, ScatterToCqe::Off);
    let targets = [dc.target(0), dc.target(1)];
    let simulation = dc.pair.hcas[0].bus_mut().simulation().clone();
    let (far, sge) = (dc.pair.ends[1].mr, [dc.pair.ends[0].sge(0, 8)]);
    let mut most = 0;
    for i in 0..TIMES {
        let op = SendOp::Write { address: far.address, rkey: far.key, imm: None };
        dc.post(0, &SendRequest::new(i, op, &sge).to_target(targets[i as usize % 2]));
        dc.sent_ok(i);
        most = most.max(simulation.world(|world, _| world.waiting_events()));
    }
    assert!((MOST / 2..=MOST).contains(&most), "{most} events waited");
    // The timer of the last connection runs.
    assert!(simulation.world(|world, _| world.waiting_events()) > 0);
}
