//! The programmer's interface of a ConnectX-4-class host channel adapter (HCA), as code.
//!
//! Layout only: the initialization segment, the command entry and its mailboxes, each command's
//! input and output, the contexts (queue pair, completion queue, event queue, shared receive queue,
//! memory key), work queue entries, completion and event queue entries, the UAR page, the doorbell
//! record, management datagrams, and the headers of InfiniBand and Ethernet on the wire. Nothing here *does*
//! anything; firmware, hardware model and driver all read these definitions.
//!
//! Every structure is a view over big-endian bytes made by the `layout!` macro (see [`layout`]):
//! a field is a typed constant, read with `get` and written with `set`.
//!
//! Sources are named at each structure: "PRM" is the Mellanox Adapters Programmer's Reference Manual
//! (ConnectX-4), "IBTA" the InfiniBand Architecture Specification volume 1, release 1.3. Where the
//! public manual is silent the field's place was taken from how the mlx5 driver uses it.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod layout;

pub mod bsf;
pub mod caps;
pub mod cmd;
pub mod command;
pub mod congestion;
pub mod cqe;
pub mod crypto;
pub mod dct;
pub mod definer;
pub mod dump;
pub mod eqe;
pub mod ether;
pub mod flow;
pub mod ids;
pub mod init_segment;
pub mod mad;
pub mod management;
pub mod mkc;
pub mod module;
pub mod nic_vport;
pub mod pcie;
pub mod port_counters;
pub mod qpc;
pub mod queue;
pub mod register;
pub mod rewrite;
pub mod rq;
pub mod rules;
pub mod sched;
pub mod ste;
pub mod tracer;
pub mod transport;
pub mod uar;
pub mod wire;
pub mod wqe;
pub mod xrq;

/// Every structure of this crate as data, by the module that holds it.
pub const LAYOUTS: &[(&str, &[layout::Layout])] = &[
    ("bsf", bsf::LAYOUTS),
    ("caps", caps::LAYOUTS),
    ("cmd", cmd::LAYOUTS),
    ("command", command::LAYOUTS),
    ("congestion", congestion::LAYOUTS),
    ("cqe", cqe::LAYOUTS),
    ("crypto", crypto::LAYOUTS),
    ("dct", dct::LAYOUTS),
    ("definer", definer::LAYOUTS),
    ("dump", dump::LAYOUTS),
    ("eqe", eqe::LAYOUTS),
    ("flow", flow::LAYOUTS),
    ("ether", ether::LAYOUTS),
    ("init_segment", init_segment::LAYOUTS),
    ("mad", mad::LAYOUTS),
    ("management", management::LAYOUTS),
    ("pcie", pcie::LAYOUTS),
    ("port_counters", port_counters::LAYOUTS),
    ("mkc", mkc::LAYOUTS),
    ("module", module::LAYOUTS),
    ("nic_vport", nic_vport::LAYOUTS),
    ("qpc", qpc::LAYOUTS),
    ("queue", queue::LAYOUTS),
    ("register", register::LAYOUTS),
    ("rewrite", rewrite::LAYOUTS),
    ("rq", rq::LAYOUTS),
    ("sched", sched::LAYOUTS),
    ("ste", ste::LAYOUTS),
    ("tracer", tracer::LAYOUTS),
    ("transport", transport::LAYOUTS),
    ("uar", uar::LAYOUTS),
    ("wire", wire::LAYOUTS),
    ("wqe", wqe::LAYOUTS),
    ("xrq", xrq::LAYOUTS),
];

/// The structure of that name, as data.
pub fn layout_named(name: &str) -> Option<&'static layout::Layout> {
    LAYOUTS.iter().flat_map(|(_, layouts)| *layouts).find(|layout| layout.name == name)
}

pub use layout::{be32, be64, put_be32, put_be64};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// As data a structure reads as its own fields do, and so do the structures within it.
    #[test]
    fn decoded_by_layout() {
        let mut out = cmd::QueryQpOut::new();
        out.qpc_mut().set(qpc::Qpc::STATE, 3).set(qpc::Qpc::REMOTE_QPN, 0x1234);
        out.qpc_mut().primary_path_mut().set(qpc::AddressPath::RLID, 0x77);
        let mut seen = BTreeMap::new();
        cmd::QueryQpOut::LAYOUT.decode(out.bytes(), &mut |view, field, value| {
            if value != 0 {
                seen.insert((view, field.name), value);
            }
        });
        let expected =
            [(("qpc", "STATE"), 3), (("qpc", "REMOTE_QPN"), 0x1234), (("primary_path", "RLID"), 0x77)];
        assert_eq!(seen, BTreeMap::from(expected));
    }

    /// What has a number is listed, and what is listed has its number.
    #[test]
    fn lists_are_whole() {
        for bits in 0..=0xff {
            let of = |listed: bool, known: bool| assert_eq!(listed, known, "{bits:#x}");
            of(
                wqe::SendOpcode::ALL.iter().any(|o| *o as u32 == bits),
                wqe::SendOpcode::from_bits(bits).is_some(),
            );
            of(
                cqe::Syndrome::ALL.iter().any(|s| *s as u32 == bits),
                cqe::Syndrome::from_bits(bits).is_some(),
            );
            of(qpc::QpState::ALL.iter().any(|s| *s as u32 == bits), qpc::QpState::from_bits(bits).is_some());
        }
    }

    /// Every structure within another is known by its name, and names are not used twice.
    #[test]
    fn views_are_known() {
        let all = || LAYOUTS.iter().flat_map(|(_, layouts)| *layouts);
        for layout in all() {
            assert_eq!(all().filter(|other| other.name == layout.name).count(), 1, "{}", layout.name);
            for view in layout.views {
                assert!(view.layout().is_some(), "{}::{} is a {}", layout.name, view.name, view.of);
            }
        }
    }
}
