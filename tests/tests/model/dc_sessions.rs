//! A DC target and an initiator made by hand: which packets belong to a connection, and which don't.

use hca_driver::{Access, Completion, Dct, DctConfig, Event, ScatterToCqe, Sge, Srq};
use hca_model::link_layer::{Packet, Path, ib::Address};
use hca_model::wire::{DcEthRepr, GrhRepr, Repr};
use hca_model::{HcaId, Ps, World};
use hca_spec::cqe::Syndrome;
use hca_spec::dct::{DctState, Dctc};
use hca_spec::ids::{Gid, Psn, Qpn};
use hca_spec::wire::{Operation, Transport};
use hca_tests::in_process::{ModelBus, ModelMemory};
use hca_tests::paged::Paged;
use hca_tests::pair::{Options, PORT, Pair};
use hca_tests::rig::{MTU, close, loopback};

const KEY: u64 = 7;

struct DcTarget {
    pair: Pair<ModelBus>,
    dct: Dct,
    srq: Srq<ModelMemory>,
}

/// A packet of the initiator.
#[derive(Clone, Copy)]
struct Sent {
    operation: Operation,
    session: u32,
    psn: u32,
    len: usize,
    access_key: u64,
    from: u32,
}

const fn sent(operation: Operation, session: u32, psn: u32) -> Sent {
    Sent { operation, session, psn, len: 0, access_key: KEY, from: 0x777 }
}

impl DcTarget {
    fn new() -> Self {
        Self::with_receives(12)
    }

    fn with_receives(receives: u32) -> Self {
        let pair = loopback(&Options { cqes: 4096, ..Options::default() });
        let buffer = pair.ends[1].sge(0, 4096);
        Self::with_buffer(pair, buffer, receives)
    }

    /// All receive requests are for the same memory.
    fn with_buffer(mut pair: Pair<ModelBus>, buffer: Sge, receives: u32) -> Self {
        let (pd, cq) = (pair.ends[1].pd, pair.ends[1].recv_cq.number());
        let mut srq = pair.hcas[0].create_srq(pd, receives + 3, 1).expect("CREATE_RMP");
        for wr_id in 0..receives.into() {
            srq.post_recv(wr_id, &[buffer]).expect("post_recv");
        }
        let (access, scatter_to_cqe) = (Access::ALL, ScatterToCqe::Off);
        let (number, access_key) = (srq.number(), KEY);
        let config =
            DctConfig { pd, cq, srq: number, access_key, access, mtu: 3, rnr_timer: 7, scatter_to_cqe };
        let dct = pair.hcas[0].create_dct(&config).expect("CREATE_DCT");
        Self { pair, dct, srq }
    }

    /// Sends a packet; what completes then.
    fn send(&mut self, sent: Sent) -> Option<Completion> {
        self.send_to(sent, None)
    }

    /// The same with a GRH for that GID.
    fn send_to(&mut self, sent: Sent, dgid: Option<Gid>) -> Option<Completion> {
        let lid = self.pair.hcas[0].lid(PORT).expect("LID");
        let path = Path::from(Address::between(lid, lid));
        let path = match dgid {
            Some(dgid) => path.with_grh(GrhRepr { dgid, ..GrhRepr::default() }),
            None => path,
        };
        let repr = Repr {
            transport: Transport::Dc,
            operation: sent.operation,
            dest_qp: self.dct.number(),
            psn: Psn::new(sent.psn),
            ack_req: true,
            dceth: Some(DcEthRepr {
                access_key: sent.access_key,
                session: sent.session,
                src_qp: Qpn(sent.from),
            }),
            ..Repr::default()
        };
        let packet = Packet::build(&path, &repr, sent.len, |_| Ok::<(), ()>(())).expect("a packet");
        let simulation = self.pair.hcas[0].bus_mut().simulation().clone();
        simulation.world(|world, now| world.inject_packet(now, HcaId(0), packet));
        simulation.run(Ps::from_us(50));
        let completion = self.pair.ends[1].recv_cq.poll()?;
        self.srq.finish(&completion).expect("of the SRQ");
        Some(completion)
    }

    /// Sends a message of one packet; whether it was received.
    fn message(&mut self, session: u32, psn: u32) -> bool {
        self.send(sent(Operation::SendOnly, session, psn)).is_some_and(|c| c.status.is_ok())
    }

    fn nothing(&mut self, sent: Sent) {
        assert_eq!(self.send(sent), None);
    }

    fn state(&mut self) -> DctState {
        let ctx = self.pair.hcas[0].query_dct(&self.dct).expect("QUERY_DCT");
        DctState::from_bits(ctx.get(Dctc::STATE)).expect("a state")
    }

    fn close(mut self) {
        self.pair.hcas[0].destroy_dct(self.dct).expect("DESTROY_DCT");
        self.pair.hcas[0].destroy_srq(self.srq).expect("DESTROY_RMP");
        close(self.pair);
    }
}

#[test]
pub(crate) fn only_packets_of_the_connection_count() {
    use Operation::{Connect, Disconnect, SendOnly};
    let mut target = DcTarget::new();
    assert!(!target.message(5, 100), "no connection yet");
    target.nothing(sent(Connect, 5, 99));
    assert!(target.message(5, 100));
    assert!(!target.message(5, 100), "a duplicate");
    assert!(!target.message(6, 101) && !target.message(4, 101), "other connections");
    target.nothing(Sent { from: 0x778, ..sent(SendOnly, 5, 101) });

    // Connect again, and an older one that was late: neither begins anything.
    target.nothing(sent(Connect, 5, 99));
    target.nothing(sent(Connect, 4, 300));
    assert!(!target.message(5, 100) && !target.message(4, 301));
    assert!(target.message(5, 101));

    // A newer one does, with a PSN that is behind.
    target.nothing(sent(Connect, 6, 10));
    assert!(!target.message(5, 102));
    assert!(target.message(6, 11));
    target.nothing(sent(Disconnect, 5, 0));
    assert!(target.message(6, 12));
    target.nothing(sent(Disconnect, 6, 0));
    assert!(!target.message(6, 13));

    // Numbers are on a circle.
    target.nothing(sent(Connect, u32::MAX, 0));
    assert!(target.message(u32::MAX, 1));
    target.nothing(sent(Connect, 1, 20));
    assert!(target.message(1, 21));
    target.close();
}

/// A reserved opcode is an invalid request: the connection is over, the target is not.
#[test]
pub(crate) fn a_reserved_opcode_ends_a_connection() {
    use Operation::{Connect, Reserved1c, Reserved1d, Reserved1e, Reserved1f, Reserved15};
    let mut target = DcTarget::new();
    for (session, opcode) in (1..).zip([Reserved15, Reserved1c, Reserved1d, Reserved1e, Reserved1f]) {
        target.nothing(sent(Connect, session, 10));
        assert!(target.message(session, 11));
        target.nothing(Sent { len: 20, ..sent(opcode, session, 12) });
        assert!(!target.message(session, 12) && !target.message(session, 13), "{opcode:?}");
    }
    target.close();
}

/// A GRH is for a GID of the target's port.
#[test]
pub(crate) fn a_grh_is_for_the_targets_port() {
    let mut target = DcTarget::new();
    let own = target.pair.hcas[0].gid(PORT, 0).expect("a GID");
    let other = Gid::new(0xfe80 << 48, 0x0bad);
    assert_eq!(target.send_to(sent(Operation::Connect, 1, 0), Some(other)), None);
    assert_eq!(target.send_to(sent(Operation::SendOnly, 1, 1), Some(own)), None, "no connection");
    assert_eq!(target.send_to(sent(Operation::Connect, 1, 0), Some(own)), None);
    assert_eq!(target.send_to(sent(Operation::SendOnly, 1, 1), Some(other)), None);
    assert!(target.send_to(sent(Operation::SendOnly, 1, 1), Some(own)).is_some_and(|c| c.status.is_ok()));
    target.close();
}

#[test]
pub(crate) fn a_message_that_is_not_finished_is_flushed() {
    let mut target = DcTarget::new();
    target.nothing(sent(Operation::Connect, 1, 0));
    target.nothing(Sent { len: MTU, ..sent(Operation::SendFirst, 1, 1) });
    let flushed = target.send(sent(Operation::Connect, 2, 50)).expect("a completion");
    assert_eq!(flushed.syndrome(), Some(Syndrome::WorkRequestFlushed));
    assert!(target.message(2, 51));
    target.nothing(Sent { len: MTU, ..sent(Operation::SendFirst, 2, 52) });
    // Draining waits for the rest of the message.
    target.pair.hcas[0].drain_dct(&target.dct).expect("DRAIN_DCT");
    target.pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_ms(1));
    assert_eq!(target.state(), DctState::Draining);
    let done = target.send(Sent { len: 4, ..sent(Operation::SendLast, 2, 53) }).expect("a completion");
    assert_eq!((done.status, done.byte_len as usize), (Ok(()), MTU + 4));
    target.pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_ms(1));
    assert_eq!(target.state(), DctState::Drained);
    assert!(!target.message(2, 54));
    target.close();
}

#[test]
pub(crate) fn the_key_counts_in_every_packet() {
    let mut target = DcTarget::new();
    target.nothing(sent(Operation::Connect, 1, 0));
    target.nothing(Sent { access_key: KEY + 1, ..sent(Operation::SendOnly, 1, 1) });
    target.nothing(Sent { access_key: KEY + 1, ..sent(Operation::Disconnect, 1, 1) });
    let dct = target.pair.hcas[0].query_dct(&target.dct).expect("QUERY_DCT");
    assert_eq!(dct.get(Dctc::DC_ACCESS_KEY_VIOLATION_COUNT), 2);
    assert!(target.message(1, 1), "the connection of the right key goes on");
    target.close();
}

/// A message that never ends does not keep its target from draining.
#[test]
pub(crate) fn draining_has_an_end() {
    let mut target = DcTarget::new();
    target.nothing(sent(Operation::Connect, 1, 0));
    target.nothing(Sent { len: MTU, ..sent(Operation::SendFirst, 1, 1) });
    target.pair.hcas[0].drain_dct(&target.dct).expect("DRAIN_DCT");
    target.pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_ms(30));
    assert_eq!(target.state(), DctState::Drained);
    let flushed = target.pair.ends[1].recv_cq.poll().expect("a completion");
    assert_eq!(flushed.syndrome(), Some(Syndrome::WorkRequestFlushed));
    target.close();
}

/// A target with more connections than one event may cut, each in the middle of a message: all are cut when the target has drained for long enough,
/// some at a time.
#[test]
pub(crate) fn many_connections_are_cut_in_pieces() {
    use Operation::{Connect, SendFirst};
    const CONNECTIONS: u32 = 1100;
    /// Connections of one event (`adapter/dynamic.rs`).
    const MOST: usize = 512;
    let mut target = DcTarget::with_receives(CONNECTIONS);
    for from in 0..CONNECTIONS {
        target.nothing(Sent { from: 0x1000 + from, ..sent(Connect, 1, 0) });
        target.nothing(Sent { from: 0x1000 + from, len: MTU, ..sent(SendFirst, 1, 1) });
    }
    target.pair.hcas[0].drain_dct(&target.dct).expect("DRAIN_DCT");
    let simulation = target.pair.hcas[0].bus_mut().simulation().clone();
    let (mut all, mut most, mut end) = (0, 0, false);
    while !end {
        end = simulation.world(|world, now| world.advance_within(now + Ps::from_ms(30), |_: &World| false));
        let mut of_one = 0;
        while let Some(completion) = target.pair.ends[1].recv_cq.poll() {
            assert_eq!(completion.status.expect_err("flushed").syndrome, Some(Syndrome::WorkRequestFlushed));
            target.srq.finish(&completion).expect("of the SRQ");
            of_one += 1;
        }
        (all, most) = (all + of_one, most.max(of_one));
    }
    assert_eq!(all, CONNECTIONS as usize);
    assert!(most <= MOST, "{most} connections in one event");
    assert_eq!(target.state(), DctState::Drained);
    target.close();
}

/// Connections of a target that all wait for one page are more than one event tells that there is no such page: each hears of it.
#[test]
pub(crate) fn all_connections_hear_of_a_page_fault() {
    use Operation::{Connect, SendOnly};
    const CONNECTIONS: u32 = 1100;
    let paged = Paged::new(loopback(&Options { cqes: 4096, ..Options::default() }));
    let buffer = paged.sge(1, 0, 4096);
    let Paged { pair, mut eqs, registrars, regions } = paged;
    let mut target = DcTarget::with_buffer(pair, buffer, CONNECTIONS);
    let mut told = Vec::new();
    for from in 0..CONNECTIONS {
        target.nothing(Sent { from: 0x1000 + from, ..sent(Connect, 1, 0) });
        target.nothing(Sent { from: 0x1000 + from, len: MTU, ..sent(SendOnly, 1, 1) });
        while let Some(event) = eqs[0].poll() {
            let Event::PageFault(fault) = event else { panic!("{event:?}") };
            told.push(fault);
        }
        eqs[0].update(target.pair.hcas[0].bus_mut());
    }
    // One after the other they took a receive request and gave it back, so all meet the first one's page.
    assert_eq!(told.len(), CONNECTIONS as usize);
    let hca = &mut target.pair.hcas[0];
    hca.resume_page_fault(&told[0], true).expect("PAGE_FAULT_RESUME");
    hca.bus_mut().simulation().clone().run(Ps::from_ms(1));
    let mut failed = 0;
    while let Some(completion) = target.pair.ends[1].recv_cq.poll() {
        assert_eq!(completion.syndrome(), Some(Syndrome::LocalProtection));
        target.srq.finish(&completion).expect("of the SRQ");
        failed += 1;
    }
    assert_eq!(failed, CONNECTIONS);
    let DcTarget { mut pair, dct, srq } = target;
    pair.hcas[0].destroy_dct(dct).expect("DESTROY_DCT");
    pair.hcas[0].destroy_srq(srq).expect("DESTROY_RMP");
    Paged { pair, eqs, registrars, regions }.close();
}
