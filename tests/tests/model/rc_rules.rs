//! The rules of a reliable connection, one at a time: the peer is made by hand, packet by packet.

use hca_driver::qp::RtsAttr;
use hca_driver::wqe::SendOp;
use hca_driver::{Completion, Event, SendRequest};
use hca_model::link::Faults;
use hca_model::link_layer::{Packet, Path, ib::Address};
use hca_model::wire::{AethRepr, AtomicRepr, Repr, RethRepr};
use hca_model::{HcaId, Ps};
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::ids::{Lid, Psn};
use hca_spec::mad::{CLASS_PERF, METHOD_GET, Mad, attr};
use hca_spec::qpc::{QpState, rnr_timer_ns};
use hca_spec::wire::{Operation, Transport, aeth};
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, PORT, Pair};
use hca_tests::rig::{MTU, assert_state, drain_events, linked};

/// No ACK timeout.
const NEVER: u8 = 0;

/// A queue pair, connected to one that we play.
struct PlayedPeer {
    pair: Pair<ModelBus>,
    simulation: Simulation,
    counted: u32,
}

impl PlayedPeer {
    fn new(rts: RtsAttr) -> Self {
        Self::of(&Options { rts, ..Options::default() })
    }

    fn of(options: &Options) -> Self {
        let mut pair = linked(options, Faults::default(), 1);
        // The real peer falls silent; its number and LID are ours.
        pair.hcas[1].qp_to_reset(&mut pair.ends[1].qp).expect("2RST");
        let simulation = pair.hcas[0].bus_mut().simulation().clone();
        let mut played = Self { pair, simulation, counted: 0 };
        played.sent_packets();
        played
    }

    fn silent(initiator_reads: u8) -> Self {
        Self::new(RtsAttr { timeout: NEVER, initiator_reads, ..RtsAttr::default() })
    }

    /// Lets what is due happen, but no timer of milliseconds.
    fn settle(&self) {
        self.simulation.run(Ps::from_us(100));
    }

    /// Packets that left since the last call.
    fn sent_packets(&mut self) -> u32 {
        self.settle();
        let now = transmitted(&mut self.pair);
        let new = now.wrapping_sub(self.counted);
        self.counted = now;
        new
    }

    fn inject(&mut self, change: impl FnOnce(&mut Repr), payload: &[u8]) {
        self.inject_at_once(change, payload);
        self.settle();
    }

    /// The same, before anything else happens.
    fn inject_at_once(&mut self, change: impl FnOnce(&mut Repr), payload: &[u8]) {
        let mut repr = Repr {
            transport: Transport::Rc,
            migrated: true,
            dest_qp: self.pair.ends[0].qp.number(),
            ..Repr::default()
        };
        change(&mut repr);
        let path = Path::from(Address::between(Lid(2), Lid(1)));
        let packet = Packet::build(&path, &repr, payload.len(), |buf| {
            buf.copy_from_slice(payload);
            Ok::<(), ()>(())
        });
        let packet = packet.expect("the payload is there");
        self.simulation.world(|world, now| world.inject_packet(now, HcaId(0), packet));
    }

    /// An ACK or NAK of the peer.
    fn answer(&mut self, psn: u32, syndrome: u32, msn: u32) {
        self.inject(
            |r| {
                (r.operation, r.psn) = (Operation::Acknowledge, Psn::new(psn));
                r.aeth = Some(AethRepr { syndrome: syndrome as u8, msn });
            },
            &[],
        );
    }

    fn completion(&mut self) -> Option<(u64, Completion)> {
        self.pair.try_sent(0)
    }

    fn failure(&mut self) -> (Option<Syndrome>, u8) {
        let (_, completion) = self.completion().expect("a completion");
        let failure = completion.status.expect_err("a failure");
        (failure.syndrome, failure.vendor)
    }

    /// Posts a send of that many packets.
    fn post_send(&mut self, wr_id: u64, packets: usize) {
        let sge = [self.pair.ends[0].sge(0, packets * MTU)];
        self.pair.send(0, &SendRequest::send(wr_id, &sge));
        self.settle();
    }

    fn post_read(&mut self, wr_id: u64) {
        let sge = [self.pair.ends[0].sge(0, 16)];
        let far = self.pair.ends[1].mr;
        self.pair.send(0, &SendRequest::read(wr_id, &sge, far.address, far.key));
    }

    fn read_request(&mut self, psn: u32, packets: usize) {
        let here = self.pair.ends[0].mr;
        let reth = RethRepr { va: here.address, rkey: here.key, len: (packets * MTU) as u32 };
        self.inject(
            |r| (r.operation, r.psn, r.reth) = (Operation::ReadRequest, Psn::new(psn), Some(reth)),
            &[],
        );
    }
}

/// PortXmitPkts of the first adapter.
fn transmitted(pair: &mut Pair<ModelBus>) -> u32 {
    /// Offset in the datagram: 64 bytes of header, then the counters.
    const XMIT_PKTS: usize = 64 + 32;
    /// The port selected.
    const PORT_SELECT: usize = 64 + 1;
    let mut mad = Mad::new();
    mad.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_PERF).set(Mad::CLASS_VERSION, 1);
    mad.set(Mad::METHOD, METHOD_GET).set(Mad::ATTRIBUTE_ID, attr::PORT_COUNTERS);
    mad.bytes_mut()[PORT_SELECT] = PORT;
    let answer = pair.hcas[0].mad(PORT, &mad).expect("PortCounters");
    hca_spec::be32(answer.bytes(), XMIT_PKTS)
}

/// IBTA 9.7.7.2: without a credit only the packet goes out that asks for one.
#[test]
pub(crate) fn credits_hold_sends_back() {
    let mut played = PlayedPeer::silent(16);
    played.post_send(1, 10);
    assert_eq!(played.sent_packets(), 10, "before the first answer nothing is known");
    played.answer(9, aeth::ACK, 1);
    assert_eq!(played.completion().map(|c| c.0), Some(1));
    played.post_send(2, 10);
    played.post_send(3, 1);
    assert_eq!(played.sent_packets(), 1, "the peer has no receive request");
    // It has found one: code 2 = two messages beyond the one that is complete.
    played.answer(10, aeth::ACK | 2, 1);
    assert_eq!(played.sent_packets(), 9 + 1);
    played.answer(20, aeth::ACK, 3);
    assert_eq!([played.completion(), played.completion()].map(|c| c.map(|c| c.0)), [Some(2), Some(3)]);
    // Messages that need no receive request are not held back.
    let far = played.pair.ends[1].mr;
    let sge = [played.pair.ends[0].sge(0, 3 * MTU)];
    played.pair.send(0, &SendRequest::write(4, &sge, far.address, far.key));
    let imm = SendOp::Write { address: far.address, rkey: far.key, imm: Some(1) };
    played.pair.send(0, &SendRequest::new(5, imm, &sge));
    assert_eq!(played.sent_packets(), 3 + 2, "the last packet of the write with immediate waits");
    played.answer(25, aeth::ACK | aeth::CREDITS_INVALID, 4);
    assert_eq!(played.sent_packets(), 1);
}

/// IBTA table 45: each RNR NAK code is a time to wait.
#[test]
pub(crate) fn rnr_timers() {
    let mut played = PlayedPeer::silent(16);
    played.post_send(1, 1);
    assert_eq!(played.sent_packets(), 1);
    for code in [7, 12, 20, 31, 0] {
        played.answer(0, aeth::RNR_NAK | code, 0);
        let wait = Ps::from_ns(rnr_timer_ns(code));
        played.simulation.run(Ps(wait.0 - Ps::from_us(2 * 100).0.min(wait.0)));
        let early = transmitted(&mut played.pair) - played.counted;
        assert_eq!(early, 0, "code {code}: sent again too early");
        played.simulation.run(Ps::from_us(200));
        assert_eq!(played.sent_packets(), 1, "code {code}");
    }
}

#[test]
pub(crate) fn retries_are_counted() {
    let rts = RtsAttr { timeout: 8, retries: 3, rnr_retries: 2, ..RtsAttr::default() };
    let mut played = PlayedPeer::new(rts);
    played.post_send(1, 1);
    played.simulation.run(Ps::from_ms(20));
    assert_eq!(played.sent_packets(), 1 + 3);
    assert_eq!(played.failure(), (Some(Syndrome::TransportRetryExceeded), 0x81));
    assert_state(&mut played.pair, 0, QpState::Error);

    let mut played = PlayedPeer::new(RtsAttr { timeout: NEVER, ..rts });
    played.post_send(1, 1);
    for _ in 0..2 {
        played.answer(0, aeth::RNR_NAK | 1, 0);
        assert_eq!(played.completion(), None);
        played.simulation.run(Ps::from_ms(1));
    }
    played.answer(0, aeth::RNR_NAK | 1, 0);
    assert_eq!(played.failure(), (Some(Syndrome::RnrRetryExceeded), 0x87));
    assert_eq!(played.sent_packets(), 1 + 2);
}

/// A responder without a receive request that answers each packet, as soft-RoCE does: an RNR NAK of the first, sequence errors for those behind it.
/// While the first waits to be sent again they say nothing new, and cost no retry.
#[test]
pub(crate) fn naks_behind_an_rnr_nak_cost_nothing() {
    for rnr_retries in [7, 4] {
        let mut played =
            PlayedPeer::new(RtsAttr { timeout: NEVER, retries: 3, rnr_retries, ..RtsAttr::default() });
        played.post_send(1, 2);
        assert_eq!(played.sent_packets(), 2);
        let rounds = if rnr_retries == 7 { 10 } else { 4 };
        for round in 0..rounds {
            played.answer(0, aeth::RNR_NAK | 20, 0);
            for _ in 0..3 {
                played.answer(0, aeth::NAK | aeth::PSN_SEQUENCE_ERROR, 0);
                played.answer(0, aeth::RNR_NAK | 20, 0);
            }
            assert_eq!((played.completion(), played.sent_packets()), (None, 0), "round {round}: too early");
            played.simulation.run(Ps::from_ns(rnr_timer_ns(20)));
            assert_eq!((played.completion(), played.sent_packets()), (None, 2), "round {round}");
        }
        // One more is too many if they are counted, and what was sent again can be missed.
        match rnr_retries {
            7 => played.answer(1, aeth::ACK | aeth::CREDITS_INVALID, 1),
            _ => played.answer(0, aeth::RNR_NAK | 20, 0),
        }
        let (_, completion) = played.completion().expect("a completion");
        let expected = if rnr_retries == 7 { None } else { Some(Syndrome::RnrRetryExceeded) };
        assert_eq!(completion.syndrome(), expected);
    }
    // A NAK of what is behind it says that it has arrived.
    let mut played = PlayedPeer::silent(16);
    played.post_send(1, 3);
    played.sent_packets();
    played.answer(0, aeth::RNR_NAK | 20, 0);
    played.answer(1, aeth::NAK | aeth::PSN_SEQUENCE_ERROR, 0);
    played.simulation.run(Ps::from_ns(rnr_timer_ns(20)));
    assert_eq!(played.sent_packets(), 2, "packets 1 and 2");
}

#[test]
pub(crate) fn naks_have_their_completions() {
    for (code, syndrome, vendor) in [
        (aeth::INVALID_REQUEST, Syndrome::RemoteInvalidRequest, 0x8a),
        (aeth::REMOTE_ACCESS_ERROR, Syndrome::RemoteAccess, 0x88),
        (aeth::REMOTE_OPERATIONAL_ERROR, Syndrome::RemoteOperation, 0x89),
    ] {
        let mut played = PlayedPeer::silent(16);
        played.post_send(1, 2);
        played.post_send(2, 1);
        played.post_send(3, 1);
        // A NAK of the second message completes the first.
        played.answer(2, aeth::NAK | code, 1);
        assert_eq!(played.completion().map(|(wr_id, c)| (wr_id, c.status)), Some((1, Ok(()))));
        assert_eq!(played.failure(), (Some(syndrome), vendor));
        assert_eq!(played.failure(), (Some(Syndrome::WorkRequestFlushed), 0xf9));
        assert_state(&mut played.pair, 0, QpState::Error);
    }
}

/// Kinds of AETH that are reserved acknowledge nothing, and bring no credits (qib driver, `do_rc_ack`).
#[test]
pub(crate) fn reserved_syndromes_say_nothing() {
    let mut played = PlayedPeer::silent(16);
    played.post_send(1, 1);
    assert_eq!(played.sent_packets(), 1);
    for kind in [0x40, 0x80, 0xa0, 0xc0, 0xe0] {
        played.answer(0, kind | aeth::CREDITS_INVALID, 1);
        assert_eq!((played.completion(), played.sent_packets()), (None, 0), "kind {kind:#x}");
    }
    played.answer(0, aeth::ACK, 1);
    assert_eq!(played.completion().map(|c| c.0), Some(1));
    // Of two packets that need a credit one may go, and nothing of the kind makes it two.
    played.post_send(2, 2);
    assert_eq!(played.sent_packets(), 1);
    played.answer(1, 0x80 | aeth::CREDITS_INVALID, 1);
    assert_eq!(played.sent_packets(), 0);
    played.answer(1, aeth::ACK | aeth::CREDITS_INVALID, 1);
    assert_eq!(played.sent_packets(), 1);
}

/// The response to a read is lost, and the send behind it is refused: the read did not fail, and is asked for again (qib driver, `do_rc_ack`).
#[test]
pub(crate) fn a_nak_behind_a_lost_response_asks_for_it() {
    for code in [aeth::INVALID_REQUEST, aeth::REMOTE_ACCESS_ERROR, aeth::REMOTE_OPERATIONAL_ERROR] {
        let mut played = PlayedPeer::silent(16);
        played.post_read(1);
        played.post_send(2, 1);
        assert_eq!(played.sent_packets(), 2);
        played.answer(1, aeth::NAK | code, 1);
        assert_eq!((played.completion(), played.sent_packets()), (None, 2), "both again");
        played.answer(1, aeth::NAK | code, 1);
        assert_eq!((played.completion(), played.sent_packets()), (None, 0), "once for a lost response");
        let ack = Some(AethRepr { syndrome: aeth::CREDITS_INVALID as u8, msn: 1 });
        played.inject(
            |r| (r.operation, r.psn, r.aeth) = (Operation::ReadResponseOnly, Psn::new(0), ack),
            &[7; 16],
        );
        assert_eq!(played.completion().map(|(wr_id, c)| (wr_id, c.status)), Some((1, Ok(()))));
        played.answer(1, aeth::NAK | code, 1);
        assert_ne!(played.failure().0, Some(Syndrome::WorkRequestFlushed));
        // A read that is refused itself, at its first packet and in the middle of its response.
        for psn in [0, 2] {
            let mut played = PlayedPeer::silent(16);
            let sge = [played.pair.ends[0].sge(0, 3 * MTU)];
            let far = played.pair.ends[1].mr;
            played.pair.send(0, &SendRequest::read(1, &sge, far.address, far.key));
            played.settle();
            for came in 0..psn {
                let ack = Some(AethRepr { syndrome: aeth::CREDITS_INVALID as u8, msn: 1 });
                let (operation, ack) = match came {
                    0 => (Operation::ReadResponseFirst, ack),
                    _ => (Operation::ReadResponseMiddle, None),
                };
                played.inject(|r| (r.operation, r.psn, r.aeth) = (operation, Psn::new(came), ack), &[7; MTU]);
            }
            played.answer(psn, aeth::NAK | code, 1);
            assert!(played.failure().0.is_some(), "refused at {psn}");
        }
    }
}

/// A sequence error is answered by sending again from there on, and by nothing else.
#[test]
pub(crate) fn a_sequence_error_repeats_from_there() {
    let mut played = PlayedPeer::silent(16);
    played.post_send(1, 4);
    played.post_send(2, 4);
    assert_eq!(played.sent_packets(), 8);
    played.answer(5, aeth::NAK | aeth::PSN_SEQUENCE_ERROR, 1);
    assert_eq!(played.completion().map(|c| c.0), Some(1));
    assert_eq!(played.sent_packets(), 3, "packets 5, 6 and 7");
    // Answers to what is not outstanding are ghosts.
    played.answer(2, aeth::NAK | aeth::REMOTE_ACCESS_ERROR, 1);
    played.answer(8, aeth::ACK | aeth::CREDITS_INVALID, 2);
    played.answer(0x80_0000, aeth::NAK | aeth::INVALID_REQUEST, 2);
    assert_eq!((played.completion(), played.sent_packets()), (None, 0));
    played.answer(7, aeth::ACK | aeth::CREDITS_INVALID, 2);
    assert_eq!(played.completion().map(|c| c.0), Some(2));
}

#[test]
pub(crate) fn a_fence_waits_for_reads() {
    for fence in [false, true] {
        let mut played = PlayedPeer::silent(16);
        played.post_read(1);
        let request = SendRequest::send(2, &[]).inline(b"behind");
        played.pair.send(0, &if fence { request.fenced() } else { request });
        assert_eq!(played.sent_packets(), if fence { 1 } else { 2 });
        let ack = Some(AethRepr { syndrome: aeth::CREDITS_INVALID as u8, msn: 1 });
        played.inject(
            |r| (r.operation, r.psn, r.aeth) = (Operation::ReadResponseOnly, Psn::new(0), ack),
            &[7; 16],
        );
        assert_eq!(played.completion().map(|c| c.0), Some(1));
        assert_eq!(played.pair.ends[0].bytes(0, 16), [7; 16]);
        assert_eq!(played.sent_packets(), if fence { 1 } else { 0 });
    }
}

/// Strong ordering (what Linux asks for of a registration or an invalidation): what is before it can't be sent again any more.
#[test]
pub(crate) fn strong_ordering_waits_for_everything() {
    for ordered in [false, true] {
        let mut played = PlayedPeer::silent(16);
        played.post_send(1, 2);
        let request = SendRequest::send(2, &[]).inline(b"behind");
        played.pair.send(0, &if ordered { request.ordered() } else { request });
        assert_eq!(played.sent_packets(), if ordered { 2 } else { 3 });
        played.answer(0, aeth::ACK | aeth::CREDITS_INVALID, 0);
        assert_eq!((played.completion(), played.sent_packets()), (None, 0));
        played.answer(1, aeth::ACK | aeth::CREDITS_INVALID, 1);
        assert_eq!(played.completion().map(|c| c.0), Some(1));
        assert_eq!(played.sent_packets(), if ordered { 1 } else { 0 });
    }
}

/// IBTA 9.9.2.2: data that answers a send is a bad response.
#[test]
pub(crate) fn a_send_is_not_answered_with_data() {
    let mut played = PlayedPeer::silent(16);
    played.post_send(1, 1);
    let ack = Some(AethRepr { syndrome: aeth::CREDITS_INVALID as u8, msn: 1 });
    played
        .inject(|r| (r.operation, r.psn, r.aeth) = (Operation::ReadResponseOnly, Psn::new(0), ack), &[7; 16]);
    assert_eq!(played.failure().0, Some(Syndrome::BadResponse));
}

/// A packet for another LID is not for this port, whoever it is from and whatever queue pair it names (IBTA 7.3.1); the permissive one is for
/// QP0 alone (IBTA 9.6.1.4.1).
#[test]
pub(crate) fn packets_to_other_lids_are_dropped() {
    let mut played = PlayedPeer::silent(16);
    played.post_send(1, 1);
    for (to, taken) in [(7, false), (0xffff, false), (1, true)] {
        let repr = Repr {
            transport: Transport::Rc,
            migrated: true,
            dest_qp: played.pair.ends[0].qp.number(),
            operation: Operation::Acknowledge,
            aeth: Some(AethRepr { syndrome: aeth::CREDITS_INVALID as u8, msn: 1 }),
            ..Repr::default()
        };
        let packet =
            Packet::build(&Path::from(Address::between(Lid(2), Lid(to))), &repr, 0, |_| Ok::<(), ()>(()));
        let packet = packet.expect("a packet");
        played.simulation.world(|world, now| world.inject_packet(now, HcaId(0), packet));
        played.settle();
        assert_eq!(played.completion().is_some(), taken, "LID {to}");
    }
}

#[test]
pub(crate) fn reads_and_atomics_keep_to_the_initiators_depth() {
    let mut played = PlayedPeer::silent(2);
    (0..3).for_each(|i| played.post_read(i));
    let word = [played.pair.ends[0].sge(64, 8)];
    let far = played.pair.ends[1].mr;
    let add = SendOp::FetchAdd { address: far.address, rkey: far.key, add: 1 };
    played.pair.send(0, &SendRequest::new(3, add, &word));
    assert_eq!(played.sent_packets(), 2);
    for psn in 0..3 {
        let ack = Some(AethRepr { syndrome: aeth::CREDITS_INVALID as u8, msn: psn + 1 });
        played.inject(
            |r| (r.operation, r.psn, r.aeth) = (Operation::ReadResponseOnly, Psn::new(psn), ack),
            &[0; 16],
        );
        assert_eq!(played.sent_packets(), u32::from(psn < 2), "after {} answers", psn + 1);
    }
}

/// What the receive queue of a queue pair that refused something completed, and which events told its driver of that.
fn refused(played: &mut PlayedPeer) -> (Vec<(u64, Option<Syndrome>)>, Vec<u8>) {
    assert_state(&mut played.pair, 0, QpState::Error);
    let received = std::iter::from_fn(|| played.pair.try_received(0)).map(|(id, done)| (id, done.syndrome()));
    let received = received.collect();
    let events = drain_events(&mut played.pair.hcas[0]);
    let of_qp = |event: &Event| if let Event::Qp { kind, .. } = event { Some(*kind) } else { None };
    (received, events.iter().filter_map(of_qp).collect())
}

/// The receive request of a message that is refused says why; an event is for messages without one (IBTA 9.9.3, class C; rxe,
/// `do_class_ac_error`).
#[test]
pub(crate) fn a_refused_message_completes_its_receive_request() {
    let flushed = Some(Syndrome::WorkRequestFlushed);
    let start = || {
        let mut played = PlayedPeer::silent(16);
        (0..2).for_each(|i| played.pair.recv(0, i, 4 * MTU * i as usize, 4 * MTU));
        drain_events(&mut played.pair.hcas[0]);
        played
    };
    let send = |played: &mut PlayedPeer, operation, psn, len| {
        played.inject(|r| (r.operation, r.psn) = (operation, Psn::new(psn)), &vec![1; len]);
    };
    // A send goes on as a write.
    let mut played = start();
    send(&mut played, Operation::SendFirst, 0, MTU);
    send(&mut played, Operation::WriteMiddle, 1, MTU);
    let invalid = Some(Syndrome::RemoteInvalidRequest);
    assert_eq!(refused(&mut played), (vec![(0, invalid), (1, flushed)], Vec::new()));
    // Nothing was begun.
    let mut played = start();
    send(&mut played, Operation::SendMiddle, 0, MTU);
    let event = EventType::InvalidRequest as u8;
    assert_eq!(refused(&mut played), (vec![(0, flushed), (1, flushed)], vec![event]));
    // The key of a write goes before its last packet, which takes a receive request or does not.
    for imm in [Some(7), None] {
        let mut played = start();
        let here = played.pair.ends[0].mr;
        let reth = Some(RethRepr { va: here.address, rkey: here.key, len: MTU as u32 + 8 });
        played
            .inject(|r| (r.operation, r.psn, r.reth) = (Operation::WriteFirst, Psn::new(0), reth), &[1; MTU]);
        played.pair.hcas[0].free_key(here.key).expect("DESTROY_MKEY");
        let last = if imm.is_some() { Operation::WriteLastImm } else { Operation::WriteLast };
        played.inject(|r| (r.operation, r.psn, r.imm) = (last, Psn::new(1), imm), &[1; 8]);
        let expected = match imm {
            Some(_) => (vec![(0, Some(Syndrome::RemoteAccess)), (1, flushed)], Vec::new()),
            None => (vec![(0, flushed), (1, flushed)], vec![EventType::AccessError as u8]),
        };
        assert_eq!(refused(&mut played), expected, "{imm:?}");
    }
}

#[test]
pub(crate) fn requests_are_executed_in_order_and_once() {
    let mut played = PlayedPeer::silent(16);
    (0..3).for_each(|i| played.pair.recv(0, i, 64 * i as usize, 64));
    let send = |played: &mut PlayedPeer, psn: u32| {
        played.inject(
            |r| (r.operation, r.psn, r.ack_req) = (Operation::SendOnly, Psn::new(psn), true),
            b"data",
        );
    };
    send(&mut played, 1);
    send(&mut played, 2);
    assert!(played.pair.try_received(0).is_none());
    assert_eq!(played.sent_packets(), 1, "one NAK for a gap");
    for psn in [0, 1, 0, 1, 2, 0] {
        send(&mut played, psn);
    }
    assert_eq!(played.sent_packets(), 6, "each asked for an answer");
    for i in 0..3 {
        assert_eq!(played.pair.received(0).0, i);
    }
    assert!(played.pair.try_received(0).is_none());
}

#[test]
pub(crate) fn atomics_are_executed_once() {
    let mut played = PlayedPeer::silent(16);
    let here = played.pair.ends[0].mr;
    let add = |played: &mut PlayedPeer, psn: u32| {
        let eth = AtomicRepr { va: here.address, rkey: here.key, swap_add: 1, compare: 0, masks: None };
        played.inject(
            |r| (r.operation, r.psn, r.atomic) = (Operation::FetchAdd, Psn::new(psn), Some(eth)),
            &[],
        );
    };
    for psn in [0, 1, 0, 1, 1, 2] {
        add(&mut played, psn);
    }
    assert_eq!(played.sent_packets(), 6);
    assert_eq!(played.pair.ends[0].bytes(0, 8), 3u64.to_le_bytes());
    // Beyond the responder's resources nothing is known any more, and nothing is answered or done.
    (3..40).for_each(|psn| add(&mut played, psn));
    played.sent_packets();
    add(&mut played, 0);
    assert_eq!((played.sent_packets(), played.pair.ends[0].bytes(0, 8)), (0, 40u64.to_le_bytes().to_vec()));
}

#[test]
pub(crate) fn duplicate_reads_are_answered_from_where_they_ask() {
    let mut played = PlayedPeer::silent(16);
    played.read_request(0, 5);
    assert_eq!(played.sent_packets(), 5);
    played.read_request(0, 5);
    assert_eq!(played.sent_packets(), 5);
    played.read_request(3, 2);
    assert_eq!(played.sent_packets(), 2);
    played.read_request(3, 3);
    assert_eq!(played.sent_packets(), 0, "it would end beyond the read that was executed");
    played.read_request(0x7f_0000, 1);
    assert_eq!(played.sent_packets(), 1, "a sequence error");
}

/// Answers wait behind a long response: of a peer that asks on and on no more than of one that keeps to the rules.
#[test]
pub(crate) fn answers_that_wait_are_few() {
    const LEN: u32 = 4 << 20;
    const AGAIN: usize = 1000;
    /// Those that are not responses (`engines/qp/answers.rs`), with 16 resources.
    const MOST: u32 = 4 * 16 + 64;
    let packets = LEN / MTU as u32;
    for atomic in [true, false] {
        let rts = RtsAttr { timeout: NEVER, ..RtsAttr::default() };
        let mut played = PlayedPeer::of(&Options { rts, memory: LEN as usize, ..Options::default() });
        let here = played.pair.ends[0].mr;
        let reth = Some(RethRepr { va: here.address, rkey: here.key, len: LEN });
        played.inject_at_once(
            |r| (r.operation, r.psn, r.reth) = (Operation::ReadRequest, Psn::new(0), reth),
            &[],
        );
        let eth = AtomicRepr { va: here.address, rkey: here.key, swap_add: 1, compare: 0, masks: None };
        for _ in 0..AGAIN {
            // The same atomic; or a send, for which there is no receive.
            let request = |r: &mut Repr| {
                (r.operation, r.psn) = (Operation::SendOnly, Psn::new(packets));
                if atomic {
                    (r.operation, r.atomic) = (Operation::FetchAdd, Some(eth));
                }
            };
            played.inject_at_once(request, &[]);
        }
        played.simulation.run(Ps::from_ms(2));
        let answers = played.sent_packets() - packets;
        assert!(
            (1..=if atomic { 1 } else { MOST }).contains(&answers),
            "{answers} answers, atomic: {atomic}"
        );
        if atomic {
            assert_eq!(played.pair.ends[0].bytes(0, 8), 1u64.to_le_bytes());
        }
        assert_state(&mut played.pair, 0, QpState::Rts);
    }
}

/// More atomics at once than the responder has resources for, too.
#[test]
pub(crate) fn the_responders_depth_is_a_limit_of_atomics() {
    let mut played = PlayedPeer::silent(16);
    let here = played.pair.ends[0].mr;
    let reth = Some(RethRepr { va: here.address, rkey: here.key, len: 1 << 16 });
    let first = (1 << 16) / MTU as u32;
    played
        .inject_at_once(|r| (r.operation, r.psn, r.reth) = (Operation::ReadRequest, Psn::new(0), reth), &[]);
    for i in 0..16 {
        let eth = AtomicRepr { va: here.address, rkey: here.key, swap_add: 1, compare: 0, masks: None };
        played.inject_at_once(
            |r| (r.operation, r.psn, r.atomic) = (Operation::FetchAdd, Psn::new(first + i), Some(eth)),
            &[],
        );
    }
    played.settle();
    assert_state(&mut played.pair, 0, QpState::Error);
    assert_eq!(played.pair.ends[0].bytes(0, 8), 15u64.to_le_bytes());
}

/// More reads at once than the responder has resources for: an invalid request.
#[test]
pub(crate) fn the_responders_depth_is_a_limit() {
    let mut played = PlayedPeer::silent(16);
    let here = played.pair.ends[0].mr;
    let dest_qp = played.pair.ends[0].qp.number();
    let simulation = played.simulation.clone();
    // So long that none is answered before the last has come.
    const LEN: u32 = 1 << 16;
    for i in 0..17 {
        let reth = Some(RethRepr { va: here.address, rkey: here.key, len: LEN });
        let path = Path::from(Address::between(Lid(2), Lid(1)));
        let repr = Repr {
            operation: Operation::ReadRequest,
            psn: Psn::new(i * (LEN / MTU as u32)),
            dest_qp,
            reth,
            ..Repr::default()
        };
        simulation.world(|world, now| world.inject_packet(now, HcaId(0), Packet::build_empty(&path, &repr)));
    }
    played.settle();
    assert_state(&mut played.pair, 0, QpState::Error);
}
