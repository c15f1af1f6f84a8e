//! Malformed packets: dropped, counted where the port sees it, and without effect.

use hca_driver::{Access, RtsAttr};
use hca_model::Ps;
use hca_model::link_layer::{Packet, Path, ib::Address};
use hca_model::wire::Repr;
use hca_spec::ids::{Lid, Psn, Qpn};
use hca_spec::wire::{ICRC_SIZE, Lrh, VCRC_SIZE};
use hca_tests::counters::port_counters;
use hca_tests::fuzz::seal;
use hca_tests::pair::PORT;
use hca_tests::reference::peer::{Options, PEER_LID, Peer};

/// Places in a packet without GRH.
const BTH: usize = Lrh::SIZE;

/// Spoils the bytes before the checksums (`true`: they are computed anew) or all of them.
type Spoil = fn(&mut Vec<u8>);

#[test]
pub(crate) fn malformed_packets_are_counted_and_dropped() {
    let options = Options {
        memory: 4096,
        exposed: 4096,
        mtu: 1,
        receive_psn: 0,
        access: Access::ALL,
        responder_reads: 1,
        rnr_timer: 1,
        rts: RtsAttr::default(),
    };
    // (what, checksums are right, counted in PortRcvErrors)
    let cases: [(&str, bool, u32, Spoil); 12] = [
        ("a bit of the payload flipped", false, 1, |b| b[BTH + 12] ^= 1),
        ("a bit of the VCRC flipped", false, 1, |b| *b.last_mut().expect("a byte") ^= 0x80),
        ("cut off", false, 1, |b| b.truncate(20)),
        ("empty", false, 1, |b| b.clear()),
        ("link version 1", true, 1, |b| b[0] |= 1),
        ("longer than the LRH says", true, 1, |b| b[5] -= 1),
        ("shorter than the LRH says", true, 1, |b| b[5] += 1),
        ("a raw packet", true, 0, |b| b[1] &= !3),
        ("transport version 1", true, 0, |b| b[BTH + 1] |= 1),
        ("a reserved opcode of a connection that answers nothing", true, 0, |b| b[BTH] = 0x3f),
        ("reliable datagram", true, 0, |b| b[BTH] = 0x44),
        ("an acknowledge with payload", true, 0, |b| b[BTH] = 0x11),
    ];
    let mut peer = Peer::new(&options).expect("bring-up");
    let lid = peer.hca.lid(PORT).expect("PortInfo").0;
    let repr = Repr { dest_qp: Qpn(peer.qp.number().0), psn: Psn::new(0), ack_req: true, ..Repr::default() };
    for (what, sealed, counted, spoil) in cases {
        let good =
            Packet::build(&Path::from(Address::between(PEER_LID, Lid(lid))), &repr, 8, |_| Ok::<(), ()>(()))
                .expect("nothing to fail");
        let mut bytes = good.into_bytes();
        if sealed {
            bytes.truncate(bytes.len() - ICRC_SIZE - VCRC_SIZE);
        }
        spoil(&mut bytes);
        if sealed {
            seal(&mut bytes, false);
        }
        let before = port_counters(&mut peer.hca, PORT).expect("PortCounters");
        peer.inject_packet(Packet::from_bytes(bytes));
        let answers = peer.run(Ps::from_us(100));
        assert_eq!(answers, [], "{what}: answered");
        assert!(peer.recv_cq.poll().is_none() && peer.send_cq.poll().is_none(), "{what}: completed");
        let after = port_counters(&mut peer.hca, PORT).expect("PortCounters");
        assert_eq!(after.rcv_errors - before.rcv_errors, counted, "{what}: PortRcvErrors");
    }
    // The same packet unspoilt is heard: there is no receive request, so it is asked to come again.
    peer.inject(Repr { ack_req: true, ..Repr::default() }, &[0; 8]);
    assert_eq!(peer.run(Ps::from_us(100)).len(), 1);
}
