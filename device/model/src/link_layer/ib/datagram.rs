//! Management datagrams as packets.
//!
//! Source: IBTA vol 1 9.6.1.4.1 (QP0 asks for no Q_Key), 13.4 (a datagram is 256 bytes), 13.5.3 (SMPs: QP0, VL15), 13.5.4 (others: QP1
//! and its Q_Key).

use hca_firmware::{Address, Departure};
use hca_spec::ids::Qpn;
use hca_spec::mad::{MAD_SIZE, Mad};
use hca_spec::wire::{Operation, Transport};

use super::VL15;
use crate::link_layer::{Packet, Path, ib};
use crate::wire::{DethRepr, Repr};

/// Q_Key of QP1 (IBTA 10.2.5).
const QP1_Q_KEY: u32 = 0x8001_0000;
/// The special queue pairs.
const QP0: Qpn = Qpn(0);
const QP1: Qpn = Qpn(1);

/// The datagram in a packet whose headers were found good, if it is one to QP0 or QP1.
pub(crate) fn parse(path: &Path, repr: &Repr, payload: &[u8]) -> Option<(Address, Mad)> {
    let link = path.ib()?;
    let deth = repr.deth?;
    let smp = repr.dest_qp == QP0;
    // SMPs and nothing else travel on VL15.
    let placed = smp == (link.vl == VL15) && (smp || repr.dest_qp == QP1);
    let plain = repr.transport == Transport::Ud && repr.operation == Operation::SendOnly;
    if !placed || !plain || !(smp || deth.q_key == QP1_Q_KEY) || payload.len() != MAD_SIZE {
        return None;
    }
    let mut mad = Mad::new();
    mad.bytes_mut().copy_from_slice(payload);
    let address = Address {
        slid: link.slid,
        dlid: link.dlid,
        sl: link.sl,
        pkey: repr.pkey,
        source_qp: deth.src_qp,
        qp: repr.dest_qp,
    };
    Some((address, mad))
}

/// The packet of a datagram; others than SMPs are on `lane`.
pub(crate) fn build(departure: &Departure, lane: u8) -> Option<Packet> {
    let Departure { address, mad, .. } = departure;
    let smp = address.is_smp();
    let path = ib::Address {
        sl: address.sl,
        vl: if smp { VL15 } else { lane },
        dlid: address.dlid,
        slid: address.slid,
        forced: false,
    };
    let repr = Repr {
        transport: Transport::Ud,
        operation: Operation::SendOnly,
        pkey: address.pkey,
        dest_qp: address.qp,
        deth: Some(DethRepr { q_key: if smp { 0 } else { QP1_Q_KEY }, src_qp: address.source_qp }),
        ..Repr::default()
    };
    let fill = |payload: &mut [u8]| {
        payload.copy_from_slice(mad.bytes());
        Ok::<(), std::convert::Infallible>(())
    };
    Packet::build(&path.into(), &repr, MAD_SIZE, fill).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca_spec::ids::Lid;

    #[test]
    fn there_and_back() {
        let mut mad = Mad::new();
        mad.set(Mad::TRANSACTION_ID, 0x1234_5678);
        let smp = Address::directed();
        let other = Address { slid: Lid(3), dlid: Lid(4), sl: 2, qp: QP1, source_qp: Qpn(0x77), ..smp };
        for (address, lane) in [(smp, VL15), (other, 1)] {
            let packet = build(&Departure { port: 1, address, mad }, 1).expect("a packet");
            let (path, repr, payload) = packet.parse().expect("a good one");
            let on = |vl| ib::Address { vl, ..*path.ib().expect("addresses") }.into();
            assert_eq!((packet.lane(), parse(&path, &repr, payload)), (lane, Some((address, mad))));
            assert_eq!(parse(&on(3), &repr, payload).is_none(), address.is_smp(), "an SMP outside of VL15");
            assert_eq!(parse(&on(VL15), &repr, payload).is_none(), !address.is_smp());
            let other_key = parse(&path, &repr_with_key(&packet), payload);
            assert_eq!(other_key.is_some(), address.is_smp(), "QP0 asks for no Q_Key, QP1 for its own");
        }
    }

    fn repr_with_key(packet: &Packet) -> Repr {
        let (_, repr, _) = packet.parse().expect("a good one");
        let deth = repr.deth.map(|d| DethRepr { q_key: d.q_key + 1, ..d });
        Repr { deth, ..repr }
    }
}
