//! Management datagrams as tests send them, and the packets that carry them between subnet managers and agents.

use hca_model::link_layer::{Packet, Path, ib::Address};
use hca_model::wire::{DethRepr, Repr};
use hca_spec::ids::{Lid, Qpn};
use hca_spec::mad::{INITIAL_PATH, MAD_SIZE, Mad};
use hca_spec::wire::{Operation, Transport};

/// The lane of subnet management (IBTA vol 1 7.6.4).
pub const VL15: u8 = 15;

/// A datagram of that class (version 1), method and attribute.
pub fn mad(class: u32, method: u32, attribute: u32) -> Mad {
    let mut mad = Mad::new();
    mad.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, class).set(Mad::CLASS_VERSION, 1);
    mad.set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute).set(Mad::TRANSACTION_ID, 7);
    mad
}

/// By a directed route: out of these ports, hop by hop. The first hop is done: it is the sender's own (IBTA vol 1 14.2.2.1).
pub fn directed(mut mad: Mad, path: &[u8]) -> Mad {
    let permissive = u32::from(Lid::PERMISSIVE.0);
    mad.set(Mad::HOP_POINTER, 1).set(Mad::HOP_COUNT, path.len() as u32);
    mad.set(Mad::DR_SLID, permissive).set(Mad::DR_DLID, permissive);
    mad.bytes_mut()[INITIAL_PATH + 1..=INITIAL_PATH + path.len()].copy_from_slice(path);
    mad
}

/// The packet that takes it over one link, from QP0 to QP0.
pub fn packet(mad: &Mad) -> Packet {
    let path = Path::from(Address { vl: VL15, ..Address::between(Lid::PERMISSIVE, Lid::PERMISSIVE) });
    let repr = Repr {
        transport: Transport::Ud,
        operation: Operation::SendOnly,
        pkey: 0xffff,
        deth: Some(DethRepr { q_key: 0, src_qp: Qpn(0) }),
        ..Repr::default()
    };
    let fill = |payload: &mut [u8]| {
        payload.copy_from_slice(mad.bytes());
        Ok::<(), ()>(())
    };
    Packet::build(&path, &repr, MAD_SIZE, fill).expect("it fits")
}
