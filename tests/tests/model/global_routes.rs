//! Which packets with and without a global route header an InfiniBand port's queue pairs take (IBTA 9.6.1.2).

use hca_driver::SendRequest;
use hca_model::link::Faults;
use hca_model::link_layer::{Packet, Path, ib::Address};
use hca_model::wire::{AethRepr, DethRepr, GrhRepr, Repr};
use hca_model::{HcaId, Ps};
use hca_spec::cmd::McgIn;
use hca_spec::command::Opcode;
use hca_spec::ids::{Gid, Lid, Qpn};
use hca_spec::qpc::ServiceType;
use hca_spec::wire::{Operation, Transport, aeth};
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, PORT, Pair};
use hca_tests::rig::{close, datagrams, linked};

/// What nobody has.
const OTHER: Gid = Gid::new(0xfe80 << 48, 0x0002_c903_0bad_0bad);
const GROUP: Gid = Gid::new(0xff12_401b_ffff_0000, 0x1234);
const OTHER_GROUP: Gid = Gid::new(0xff12_401b_ffff_0000, 0x1235);

/// The second end's queue pair is deaf from now on; what comes from its LID is ours.
fn played(options: &Options) -> (Pair<ModelBus>, [Gid; 2]) {
    let mut pair = linked(options, Faults::default(), 1);
    let gids = [0, 1].map(|hca: usize| pair.hcas[hca].gid(PORT, 0).expect("a GID"));
    pair.hcas[1].qp_to_reset(&mut pair.ends[1].qp).expect("2RST");
    (pair, gids)
}

/// Sends a packet without payload to the first adapter, with these GIDs in a GRH: source, destination.
fn inject(pair: &mut Pair<ModelBus>, repr: &Repr, gids: Option<(Gid, Gid)>) {
    let path = Path::from(Address::between(Lid(2), Lid(1)));
    let path = match gids {
        Some((sgid, dgid)) => path.with_grh(GrhRepr { sgid, dgid, hop_limit: 1, ..GrhRepr::default() }),
        None => path,
    };
    let packet = Packet::build(&path, repr, 0, |_| Ok::<(), ()>(())).expect("a packet");
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    simulation.world(|world, now| world.inject_packet(now, HcaId(0), packet));
    simulation.run(Ps::from_us(50));
}

/// A connection with a global route takes nothing but what has both GIDs, requests and answers.
#[test]
pub(crate) fn connections_with_one() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        let options = Options { global: true, service, ..Options::default() };
        let (mut pair, [own, far]) = played(&options);
        let transport = if service == ServiceType::Rc { Transport::Rc } else { Transport::Uc };
        let dest_qp = pair.ends[0].qp.number();
        let psn = options.rts.send_psn;
        let send = Repr { transport, psn, dest_qp, migrated: true, ..Repr::default() };
        pair.recv(0, 3, 0, 64);
        for wrong in [None, Some((OTHER, own)), Some((far, OTHER)), Some((own, far))] {
            inject(&mut pair, &send, wrong);
            assert!(pair.try_received(0).is_none(), "{service:?}: {wrong:?}");
        }
        inject(&mut pair, &send, Some((far, own)));
        assert_eq!(pair.try_received(0).map(|got| got.0), Some(3), "{service:?}");
        if service == ServiceType::Uc {
            continue;
        }
        pair.send(0, &SendRequest::send(1, &[]).inline(b"hello"));
        let ack = Some(AethRepr { syndrome: aeth::CREDITS_INVALID as u8, msn: 1 });
        let ack = Repr { operation: Operation::Acknowledge, aeth: ack, ..send };
        for wrong in [None, Some((OTHER, own)), Some((far, OTHER))] {
            inject(&mut pair, &ack, wrong);
            assert!(pair.try_sent(0).is_none(), "{wrong:?}");
        }
        inject(&mut pair, &ack, Some((far, own)));
        assert_eq!(pair.try_sent(0).map(|sent| sent.0), Some(1));
    }
}

/// One without takes what has a GRH for its port, and for no other.
#[test]
pub(crate) fn connections_without_one() {
    let (mut pair, [own, far]) = played(&Options::default());
    let (dest_qp, psn) = (pair.ends[0].qp.number(), Options::default().rts.send_psn);
    (0..2).for_each(|i| pair.recv(0, i, 0, 64));
    let send = |psn| Repr { psn, dest_qp, migrated: true, ..Repr::default() };
    inject(&mut pair, &send(psn), Some((far, OTHER)));
    assert!(pair.try_received(0).is_none());
    inject(&mut pair, &send(psn), Some((OTHER, own)));
    inject(&mut pair, &send(psn.next()), None);
    assert_eq!([0, 1].map(|_| pair.try_received(0).map(|got| got.0)), [Some(0), Some(1)]);
}

/// A datagram is for a GID of its port, or for a group of the queue pair that it names; the general services have other ones, too.
#[test]
pub(crate) fn datagrams_are_for_their_port() {
    const QKEY: u32 = 0x1111;
    /// Where subnet administration is, whatever port it is at.
    const WELL_KNOWN: Gid = Gid::new(0xfe80 << 48, 2);
    let (mut pair, [own, far]) = played(&Options::default());
    let (hca, here) = (&mut pair.hcas[0], &pair.ends[0]);
    let mut qp = datagrams(hca, here.pd, (&here.send_cq, &here.recv_cq), QKEY);
    let mut mcg = McgIn::new();
    mcg.set(McgIn::QPN, qp.number().0);
    mcg.set(McgIn::GID_H, hca_spec::be64(&GROUP.0, 0)).set(McgIn::GID_L, hca_spec::be64(&GROUP.0, 8));
    hca.execute(Opcode::AttachToMcg, 0, mcg.bytes().to_vec(), 16).expect("ATTACH_TO_MCG");
    let deth = Some(DethRepr { q_key: QKEY, src_qp: Qpn(7) });
    let repr = Repr { transport: Transport::Ud, dest_qp: qp.number(), deth, ..Repr::default() };
    // There is always somewhere to put one.
    for _ in 0..8 {
        qp.post_recv(3, &[pair.ends[0].sge(0, 256)]).expect("post_recv");
    }
    for (gids, taken) in [
        (None, true),
        (Some((far, own)), true),
        (Some((far, OTHER)), false),
        (Some((far, far)), false),
        (Some((far, WELL_KNOWN)), false),
        (Some((far, GROUP)), true),
        (Some((far, OTHER_GROUP)), false),
        (Some((OTHER, own)), true),
    ] {
        inject(&mut pair, &repr, gids);
        let got = pair.ends[0].recv_cq.poll();
        assert_eq!(got.is_some(), taken, "{gids:?}");
        if let Some(got) = got {
            assert_eq!((qp.finish(&got), got.has_grh), (Some(3), gids.is_some()));
        }
    }
    let detached = pair.hcas[0].execute(Opcode::DetachFromMcg, 0, mcg.bytes().to_vec(), 16);
    detached.expect("DETACH_FROM_MCG");
    pair.hcas[0].destroy_qp(qp).expect("DESTROY_QP");
    close(pair);
}
