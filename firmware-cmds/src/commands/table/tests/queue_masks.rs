//! Masks of queues, and of what hands packets to them: bit by bit, each takes what it chooses or is refused.

use std::collections::BTreeSet;

use hca_spec::caps::EthernetOffloads;
use hca_spec::cmd::{MODIFY_CQ_RESIZE, MODIFY_RMP_LWM, resize_cq};
use hca_spec::queue::{Cqc, RMP_READY, Rmpc, Sqc, Wq};
use hca_spec::rq::{Rqc, modify_rq};
use hca_spec::transport::{Tirc, Tisc, modify_tir, modify_tis};
use hca_spec::{layout_named, put_be32, put_be64};

use super::masks::{Garbage, copy, means, places};
use super::told::{fields, told};
use super::*;

/// A command with a mask.
struct Masked {
    opcode: Opcode,
    op_mod: u32,
    kind: Kind,
    /// Where the mask is in the input, and its bits.
    mask: (usize, u32),
    /// The context: its structure, where it is in the input, and in the output of QUERY.
    context: (&'static str, usize, usize),
    /// What it takes without a bit.
    always: &'static [&'static str],
    /// What each mask of one bit chooses. All other bits are refused.
    chosen: &'static [(u64, &'static [&'static str])],
    /// A context of which all that can be chosen is another one, and may be.
    new: fn(&mut Bench, &Fixture) -> Vec<u8>,
}

const MASKED: [Masked; 7] = [
    Masked {
        opcode: Opcode::ModifyCq,
        op_mod: 0,
        kind: Cq,
        mask: (0xc, u32::BITS),
        context: ("Cqc", 0x10, 0x10),
        always: &[],
        chosen: &[
            (1 << 0, &[".CQ_PERIOD"]),
            (1 << 1, &[".CQ_MAX_COUNT"]),
            (1 << 2, &[".OI"]),
            (1 << 3, &[".C_EQN"]),
            (1 << 4, &[".CQ_PERIOD_MODE"]),
        ],
        new: |b, fixture| {
            let mut cqc = Cqc::new();
            cqc.set(Cqc::CQ_PERIOD, 7).set(Cqc::CQ_MAX_COUNT, 9).set(Cqc::OI, 1).set(Cqc::CQ_PERIOD_MODE, 1);
            cqc.set(Cqc::C_EQN, make(b, fixture, Eq)).bytes().to_vec()
        },
    },
    Masked {
        opcode: Opcode::ModifyCq,
        op_mod: MODIFY_CQ_RESIZE,
        kind: Cq,
        mask: (0xc, u32::BITS),
        context: ("Cqc", 0x10, 0x10),
        always: &[".CQE_SZ"],
        chosen: &[
            (resize_cq::LOG_SIZE as u64, &[".LOG_CQ_SIZE"]),
            (resize_cq::PAGE_OFFSET as u64, &[".PAGE_OFFSET"]),
            (resize_cq::LOG_PAGE_SIZE as u64, &[".LOG_PAGE_SIZE"]),
        ],
        new: |_, _| {
            let mut cqc = Cqc::new();
            cqc.set(Cqc::LOG_CQ_SIZE, 5).set(Cqc::PAGE_OFFSET, 1).set(Cqc::LOG_PAGE_SIZE, 1);
            cqc.bytes().to_vec()
        },
    },
    Masked {
        opcode: Opcode::ModifyRmp,
        op_mod: 0,
        kind: Rmp,
        mask: (0x10, u64::BITS),
        context: ("Rmpc", 0x20, 0x20),
        always: &[".STATE"],
        chosen: &[(MODIFY_RMP_LWM, &["wq.LWM"])],
        new: |_, _| {
            let mut rmpc = Rmpc::new();
            rmpc.set(Rmpc::STATE, RMP_READY).wq_mut().set(Wq::LWM, 3);
            rmpc.bytes().to_vec()
        },
    },
    Masked {
        opcode: Opcode::ModifySq,
        op_mod: 0,
        kind: Sq,
        mask: (0x10, u64::BITS),
        context: ("Sqc", 0x20, 0x20),
        always: &[".STATE"],
        chosen: &[(1 << 0, &[".PACKET_PACING_RATE_LIMIT_INDEX"]), (1 << 2, &[".QOS_QUEUE_GROUP_ID"])],
        new: |_, _| {
            let mut sqc = Sqc::new();
            sqc.set(Sqc::PACKET_PACING_RATE_LIMIT_INDEX, 5).bytes().to_vec()
        },
    },
    Masked {
        opcode: Opcode::ModifyRq,
        op_mod: 0,
        kind: Rq,
        mask: (0x10, u64::BITS),
        context: ("Rqc", 0x20, 0x20),
        always: &[".STATE"],
        chosen: &[
            (modify_rq::VSD, &[".VSD"]),
            (modify_rq::SCATTER_FCS, &[".SCATTER_FCS"]),
            (modify_rq::COUNTER_SET_ID, &[".COUNTER_SET_ID"]),
        ],
        new: |b, fixture| {
            let mut rqc = Rqc::new();
            rqc.set(Rqc::VSD, 1).set(Rqc::SCATTER_FCS, 1);
            rqc.set(Rqc::COUNTER_SET_ID, make(b, fixture, QCounter)).bytes().to_vec()
        },
    },
    Masked {
        opcode: Opcode::ModifyTir,
        op_mod: 0,
        kind: Tir,
        mask: (0x10, u64::BITS),
        context: ("Tirc", 0x20, 0x20),
        always: &[],
        chosen: &[
            (
                modify_tir::PACKET_MERGE,
                &[".PACKET_MERGE_MASK", ".LRO_TIMEOUT_PERIOD_USECS", ".LRO_MAX_IP_PAYLOAD_SIZE"],
            ),
            (modify_tir::INDIRECT_TABLE, &[".INDIRECT_TABLE"]),
            (
                modify_tir::HASH,
                &[
                    ".RX_HASH_FN",
                    ".RX_HASH_SYMMETRIC",
                    ".RX_HASH_KEY_0",
                    ".RX_HASH_KEY_1",
                    ".RX_HASH_KEY_2",
                    ".RX_HASH_KEY_3",
                    ".RX_HASH_KEY_4",
                    ".RX_HASH_FIELD_OUTER",
                    ".RX_HASH_FIELD_INNER",
                ],
            ),
            (modify_tir::TUNNELED_OFFLOAD_EN, &[".TUNNELED_OFFLOAD_EN"]),
            (modify_tir::SELF_LB, &[".SELF_LB_BLOCK"]),
        ],
        new: |b, fixture| {
            let offers = b.fw.personality().capabilities.ethernet.offloads;
            let period = offers.get(EthernetOffloads::LRO_TIMER_SUPPORTED_PERIODS_0);
            let mut tirc = Tirc::new();
            tirc.set(Tirc::PACKET_MERGE_MASK, 3).set(Tirc::LRO_TIMEOUT_PERIOD_USECS, period);
            tirc.set(Tirc::LRO_MAX_IP_PAYLOAD_SIZE, 0x20).set(Tirc::SELF_LB_BLOCK, 3);
            tirc.set(Tirc::INDIRECT_TABLE, make(b, fixture, Rqt)).set(Tirc::TUNNELED_OFFLOAD_EN, 1);
            tirc.set(Tirc::RX_HASH_FN, 1).set(Tirc::RX_HASH_SYMMETRIC, 1);
            tirc.set(Tirc::RX_HASH_FIELD_OUTER, 3).set(Tirc::RX_HASH_FIELD_INNER, 3);
            let mut bytes = tirc.bytes().to_vec();
            (0..5).for_each(|key| put_be64(&mut bytes, 0x28 + 8 * key, 0x0102_0304 + key as u64));
            bytes
        },
    },
    Masked {
        opcode: Opcode::ModifyTis,
        op_mod: 0,
        kind: Tis,
        mask: (0x10, u64::BITS),
        context: ("Tisc", 0x20, 0x10),
        always: &[],
        chosen: &[
            (modify_tis::PRIO, &[".PRIO"]),
            (modify_tis::STRICT_LAG_TX_PORT_AFFINITY, &[".STRICT_LAG_TX_PORT_AFFINITY"]),
            (modify_tis::LAG_TX_PORT_AFFINITY, &[".LAG_TX_PORT_AFFINITY"]),
        ],
        new: |_, _| {
            let mut tisc = Tisc::new();
            tisc.set(Tisc::PRIO, 6).set(Tisc::STRICT_LAG_TX_PORT_AFFINITY, 1);
            tisc.set(Tisc::LAG_TX_PORT_AFFINITY, 2).bytes().to_vec()
        },
    },
];

/// What can be chosen, and has no other value here: see [`what_is_chosen_is_looked_at`].
const SAME: [&str; 1] = [".QOS_QUEUE_GROUP_ID"];

/// An adapter, the objects, what the object was told as, and the input with that mask: the context has what is taken from `new`, and
/// no meaning elsewhere.
fn changed(masked: &Masked, mask: u64, garbage: &mut Garbage) -> (Bench, Fixture, Vec<u8>, Vec<u8>, Vec<u8>) {
    let mut b = bench(PortKind::Ethernet, State::Initialized);
    let fixture = populate(&mut b);
    let new = (masked.new)(&mut b, &fixture);
    let before = told(&mut b, &fixture, masked.kind);
    let (name, at, _) = masked.context;
    let mut input = row(masked.opcode).template(&fixture);
    put_be32(&mut input, 4, masked.op_mod);
    match masked.mask {
        (place, u32::BITS) => put_be32(&mut input, place, mask as u32),
        (place, _) => put_be64(&mut input, place, mask),
    }
    let layout = layout_named(name).expect("a context");
    let context = &mut input[at..at + layout.size];
    garbage.fill(context);
    let chosen = masked.chosen.iter().find(|(bit, _)| *bit == mask).map_or(&[][..], |(_, names)| names);
    for (name, inner, field) in places(layout) {
        if means(masked.always, &name) || means(chosen, &name) {
            copy(context, &new, inner, field);
        }
    }
    if (masked.opcode, masked.op_mod) == (Opcode::ModifyCq, MODIFY_CQ_RESIZE) {
        // Room enough for each shape.
        input.truncate(hca_spec::cmd::PAS_OFFSET);
        input.extend((0..4u64).flat_map(|page| (0x40_0000 + (page << 13)).to_be_bytes()));
    }
    (b, fixture, before, new, input)
}

#[test]
fn each_bit_takes_what_it_chooses_or_is_refused() {
    let mut garbage = Garbage(6);
    for masked in &MASKED {
        let (name, _, out) = masked.context;
        let layout = layout_named(name).expect("a context");
        let mut taken = BTreeSet::new();
        for bit in (0..masked.mask.1).map(Some).chain([None]) {
            let what = format!("{:?} op_mod {} bit {bit:?}", masked.opcode, masked.op_mod);
            let mask = bit.map_or(0, |bit| 1u64 << bit);
            let chosen = masked.chosen.iter().find(|(bit, _)| *bit == mask).map(|(_, names)| *names);
            let (mut b, fixture, before, new, input) = changed(masked, mask, &mut garbage);
            let status = run(&mut b, &input).status();
            let legal = bit.is_none() || chosen.is_some();
            assert_eq!(status, if legal { Status::Ok } else { Status::BadParam }, "{what}");
            let after = told(&mut b, &fixture, masked.kind);
            let values = |bytes: &[u8]| fields(layout, bytes);
            let rows = values(&before[out..]).into_iter().zip(values(&new)).zip(values(&after[out..]));
            for (((name, was), (_, new)), (_, is)) in rows {
                let takes = chosen.is_some_and(|names| means(names, &name));
                assert_eq!(is, if takes { new } else { was }, "{what}: {name}");
                if takes && is != was {
                    taken.insert(name);
                }
            }
        }
        for name in masked.chosen.iter().flat_map(|(_, names)| *names) {
            assert_eq!(taken.contains(*name), !SAME.contains(name), "{:?}: {name}", masked.opcode);
        }
    }
}

/// What can't be another one here is refused if it is chosen, and not looked at if it is not.
#[test]
fn what_is_chosen_is_looked_at() {
    /// Puts something wrong into a context.
    type Spoil = fn(&mut [u8]);
    let wrong: [(Opcode, u64, Spoil); 1] = [(Opcode::ModifySq, 1 << 2, |context| {
        let mut sqc = Sqc::from_prefix_or_zero(context);
        context[..Sqc::SIZE].copy_from_slice(sqc.set(Sqc::QOS_QUEUE_GROUP_ID, 0x77).bytes());
    })];
    let mut garbage = Garbage(7);
    for (opcode, mask, spoil) in wrong {
        let masked = MASKED.iter().find(|masked| masked.opcode == opcode).expect("it is above");
        for chosen in [true, false] {
            let mask = if chosen { mask } else { 0 };
            let (mut b, fixture, before, _, mut input) = changed(masked, mask, &mut garbage);
            spoil(&mut input[masked.context.1..]);
            let refused = run(&mut b, &input).status() != Status::Ok;
            assert_eq!(refused, chosen, "{opcode:?}");
            assert_eq!(told(&mut b, &fixture, masked.kind), before, "{opcode:?}");
        }
    }
}
