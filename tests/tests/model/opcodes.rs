//! Packets of opcodes that are reserved: a transport that answers refuses them, others drop them in silence (IBTA 9.9.3).

use hca_driver::wqe::{Datagram, SendOp};
use hca_driver::{Access, RtsAttr, SendRequest};
use hca_model::link::Faults;
use hca_model::link_layer::{Packet, Path, ib::Address};
use hca_model::wire::{AethRepr, DethRepr, Repr};
use hca_model::{HcaId, Ps};
use hca_spec::ids::{Lid, Psn, Qpn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wire::{ICRC_SIZE, Lrh, Operation, Transport, VCRC_SIZE, aeth};
use hca_tests::fuzz::seal;
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, PORT, Pair};
use hca_tests::reference::peer::{self, Peer};
use hca_tests::rig::{assert_state, close, datagrams, linked};

use crate::xrc;

/// Those of a reliable connection. 0x1a and 0x1b are the vendor's masked atomics.
const RESERVED: [u32; 7] = [0x15, 0x18, 0x19, 0x1c, 0x1d, 0x1e, 0x1f];

fn build(path: &Path, repr: &Repr, payload: usize) -> Packet {
    Packet::build(path, repr, payload, |_| Ok::<(), ()>(())).expect("nothing to fail")
}

/// A packet with another opcode than the one it was built with.
fn with_opcode(packet: Packet, opcode: u8) -> Packet {
    let mut bytes = packet.into_bytes();
    bytes.truncate(bytes.len() - ICRC_SIZE - VCRC_SIZE);
    bytes[Lrh::SIZE] = opcode;
    seal(&mut bytes, false);
    Packet::from_bytes(bytes)
}

fn answer(psn: u32, code: u32, msn: u32) -> (Psn, Option<AethRepr>) {
    (Psn::new(psn), Some(AethRepr { syndrome: (aeth::NAK | code) as u8, msn }))
}

/// Of a reliable connection the PSN is looked at first, as of any request. Then it is an invalid request, whatever follows the BTH.
#[test]
pub(crate) fn a_reliable_connection_refuses_them() {
    let options = peer::Options {
        memory: 4096,
        exposed: 4096,
        mtu: 1,
        receive_psn: 5,
        access: Access::ALL,
        responder_reads: 1,
        rnr_timer: 1,
        rts: RtsAttr::default(),
    };
    for (opcode, begun) in RESERVED.into_iter().flat_map(|opcode| [(opcode, false), (opcode, true)]) {
        let mut peer = Peer::new(&options).expect("bring-up");
        let request = |psn| Repr {
            operation: Operation::from_opcode(opcode),
            psn: Psn::new(psn),
            ack_req: true,
            ..Repr::default()
        };
        let mut psn = options.receive_psn;
        if begun {
            let sge = hca_driver::Sge { address: peer.mr.address, len: 4096, key: peer.mr.key };
            peer.qp.post_recv(1, &[sge]).expect("post_recv");
            peer.inject(
                Repr { operation: Operation::SendFirst, psn: Psn::new(psn), ..Repr::default() },
                &[1; 256],
            );
            psn += 1;
        }
        let answered = |peer: &mut Peer| -> Vec<_> {
            peer.run(Ps::from_us(100)).iter().map(|(repr, _)| (repr.psn, repr.aeth)).collect()
        };
        peer.inject(request(psn - 2), &[]);
        assert_eq!(answered(&mut peer), [], "{opcode:#x}: nothing of the kind was ever executed");
        peer.inject(request(psn + 1), &[]);
        assert_eq!(answered(&mut peer), [answer(psn, aeth::PSN_SEQUENCE_ERROR, 0)], "{opcode:#x}: ahead");
        // As long as other opcodes must not be.
        peer.inject(request(psn), &[7; 261]);
        assert_eq!(answered(&mut peer), [answer(psn, aeth::INVALID_REQUEST, 0)], "{opcode:#x}");
        let state = peer.hca.query_qp(&peer.qp).expect("QUERY_QP").get(hca_spec::qpc::Qpc::STATE);
        assert_eq!(state, QpState::Error as u32, "{opcode:#x}");
        assert_eq!(
            peer.recv_cq.poll().is_some(),
            begun,
            "{opcode:#x}: the receive that the message had taken"
        );
    }
}

/// Sends a packet to the second end, from the first one's LID.
fn inject(pair: &mut Pair<ModelBus>, packet: Packet) {
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    simulation.world(|world, now| world.inject_packet(now, HcaId(1), packet));
    simulation.run(Ps::from_us(100));
}

fn way() -> Path {
    Path::from(Address::between(Lid(1), Lid(2)))
}

/// An extended reliable connection does, too: which SRQ it would be for is not asked.
#[test]
pub(crate) fn an_extended_one_does() {
    for opcode in RESERVED {
        let mut xrc = xrc::connect(linked(&Options::default(), Faults::default(), 1), true);
        let pair = &mut xrc.pair;
        let repr = Repr {
            transport: Transport::Xrc,
            operation: Operation::from_opcode(opcode),
            psn: RtsAttr::default().send_psn,
            dest_qp: pair.ends[1].qp.number(),
            migrated: true,
            ..Repr::default()
        };
        inject(pair, build(&way(), &repr, 16));
        assert_state(pair, 1, QpState::Error);
    }
}

/// Services that answer nothing drop them, and go on.
#[test]
pub(crate) fn others_drop_them() {
    const QKEY: u32 = 0x1111;
    let options = Options { service: ServiceType::Uc, ..Options::default() };
    let mut pair = linked(&options, Faults::default(), 1);
    let psn = options.rts.send_psn;
    // Of a connection: reads, atomics, sends with invalidate and what nobody has.
    for opcode in (0x0c..0x20).map(|operation| 0x20 | operation) {
        let repr = Repr {
            transport: Transport::Uc,
            psn,
            dest_qp: pair.ends[1].qp.number(),
            migrated: true,
            ..Repr::default()
        };
        inject(&mut pair, with_opcode(build(&way(), &repr, 32), opcode));
    }
    assert_state(&mut pair, 1, QpState::Rts);
    pair.recv(1, 9, 0, 64);
    let sge = [pair.ends[0].sge(0, 32)];
    pair.send(0, &SendRequest::send(1, &sge));
    pair.sent_ok(0, 1);
    pair.received_ok(1, 9);

    let ud = [0, 1].map(|end: usize| {
        let (hca, here) = (&mut pair.hcas[end], &pair.ends[end]);
        datagrams(hca, here.pd, (&here.send_cq, &here.recv_cq), QKEY)
    });
    let [near, mut far] = ud;
    let mut near = near;
    far.post_recv(3, &[pair.ends[1].sge(0, 256)]).expect("post_recv");
    for opcode in (0..0x20).map(|operation| 0x60 | operation).filter(|opcode| ![0x64, 0x65].contains(opcode))
    {
        let deth = Some(DethRepr { q_key: QKEY, src_qp: Qpn(7) });
        let repr = Repr { transport: Transport::Ud, dest_qp: far.number(), deth, ..Repr::default() };
        inject(&mut pair, with_opcode(build(&way(), &repr, 32), opcode));
    }
    assert!(pair.ends[1].recv_cq.poll().is_none());
    let lid = pair.hcas[1].lid(PORT).expect("a LID");
    let to = Datagram { qpn: far.number(), qkey: QKEY, lid, sl: 0, gid: None };
    let request = SendRequest::new(2, SendOp::Datagram { to, imm: None }, &sge);
    near.post_send(pair.hcas[0].bus_mut(), &request).expect("post_send");
    pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_us(100));
    let got = pair.ends[1].recv_cq.poll().expect("the datagram");
    assert_eq!((far.finish(&got), got.status), (Some(3), Ok(())));
    assert!(pair.ends[0].send_cq.poll().is_some());
    pair.hcas[0].destroy_qp(near).expect("DESTROY_QP");
    pair.hcas[1].destroy_qp(far).expect("DESTROY_QP");
    close(pair);
}
