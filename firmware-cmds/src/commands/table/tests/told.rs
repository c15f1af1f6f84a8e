//! What can be made can be asked for, and is told as it was said; what no mask chooses stays as it is.

use hca_spec::layout::Layout;
use hca_spec::{layout_named, put_be32};

use super::*;

/// Kinds that the public interface has no query for.
const UNTOLD: [(Kind, &str); 8] = [
    (Pd, "nothing but a number"),
    (Xrcd, "nothing but a number"),
    (TransportDomain, "nothing but a number"),
    (Uar, "nothing but a number"),
    (Psv, "QUERY_MKEY tells what signatures of a key say"),
    (UserContext, "no such command"),
    (Umem, "no such command"),
    (HeaderContext, "QUERY_MODIFY_HEADER_CONTEXT is a number without a public layout"),
];

/// Contexts, and where they are in inputs and in outputs of QUERY.
const CONTEXTS: [(Kind, &str, usize, usize); 15] = [
    (Eq, "Eqc", 0x10, 0x10),
    (Cq, "Cqc", 0x10, 0x10),
    (Qp, "Qpc", 0x18, 0x18),
    (Srq, "Srqc", 0x10, 0x10),
    (XrcSrq, "Srqc", 0x10, 0x10),
    (Rmp, "Rmpc", 0x20, 0x20),
    (Xrq, "Xrqc", 0x10, 0x10),
    (Dct, "Dctc", 0x10, 0x10),
    (Mkey, "Mkc", 0x10, 0x10),
    (Tis, "Tisc", 0x20, 0x10),
    (Tir, "Tirc", 0x20, 0x20),
    (Sq, "Sqc", 0x20, 0x20),
    (Rq, "Rqc", 0x20, 0x20),
    (Rqt, "Rqtc", 0x20, 0x20),
    (FlowTable, "FlowTableContext", 0x18, 0x18),
];

fn query_of(kind: Kind) -> Option<&'static Command> {
    TABLE.iter().find(|command| command.object.is_some_and(|o| o.kind == kind && o.action == Action::Query))
}

/// The context of an object as QUERY tells it.
pub(super) fn told(b: &mut Bench, fixture: &Fixture, kind: Kind) -> Vec<u8> {
    let query = query_of(kind).expect("it can be asked for");
    let answer = run(b, &query.template(fixture));
    assert_eq!(answer.status(), Status::Ok, "{}", query.name);
    answer.output
}

pub(super) fn fields(layout: &Layout, bytes: &[u8]) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    layout.decode(bytes, &mut |view, field, value| all.push((format!("{view}.{}", field.name), value)));
    all
}

#[test]
fn what_can_be_made_can_be_asked_for() {
    for command in TABLE {
        let Some(object) = command.object.filter(|object| object.action == Action::Create) else { continue };
        let untold = UNTOLD.iter().any(|(kind, _)| *kind == object.kind);
        assert_eq!(query_of(object.kind).is_none(), untold, "{}", command.name);
    }
}

#[test]
fn what_was_said_is_told() {
    let mut otherwise = Vec::new();
    for (port, (kind, name, at, out)) in LAYERS.into_iter().flat_map(|port| CONTEXTS.map(|c| (port, c))) {
        let mut b = bench(port, State::Initialized);
        let mut fixture = populate(&mut b);
        let command = maker(kind).expect("it can be made");
        if !(command.offered)(&b.fw) {
            continue;
        }
        let input = command.template(&fixture);
        let number = make(&mut b, &fixture, kind);
        fixture.set(kind, number);
        let output = told(&mut b, &fixture, kind);
        let layout = layout_named(name).expect("there is such a context");
        let (said, told) = (fields(layout, &input[at..]), fields(layout, &output[out..]));
        for ((field, said), (_, told)) in said.into_iter().zip(told) {
            if said != 0 && said != told {
                otherwise.push(format!("{name} {field}: said {said:#x}, told {told:#x}"));
            }
        }
    }
    assert!(otherwise.is_empty(), "{otherwise:#?}");
}

#[test]
fn what_no_mask_chooses_stays() {
    /// Where the mask is, whose fields a context has, and the field that is a demand without a mask.
    const MASKED: [(Opcode, Kind, usize, usize); 6] = [
        (Opcode::ModifyCq, Cq, 0xc, 0x10),
        (Opcode::ModifyRmp, Rmp, 0x14, 0x20),
        (Opcode::ModifySq, Sq, 0x14, 0x20),
        (Opcode::ModifyRq, Rq, 0x14, 0x20),
        (Opcode::ModifyTir, Tir, 0x14, 0x20),
        (Opcode::ModifyTis, Tis, 0x14, 0x20),
    ];
    let mut b = bench(PortKind::Ethernet, State::Initialized);
    let fixture = populate(&mut b);
    let mut random = 1u64;
    for (opcode, kind, mask, at) in MASKED {
        let before = told(&mut b, &fixture, kind);
        let mut taken = 0;
        for _ in 0..200 {
            let mut input = row(opcode).template(&fixture);
            // CQs are not resized: what has no mask at all.
            put_be32(&mut input, 4, 0);
            input[mask - 4 * usize::from(mask != 0xc)..mask + 4].fill(0);
            for byte in &mut input[at..] {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (random >> 56) as u8;
            }
            // A state is no matter of masks: as it is.
            let now = hca_spec::be32(&before, at);
            put_be32(&mut input, at, now);
            taken += u32::from(run(&mut b, &input).status() == Status::Ok);
            assert_eq!(told(&mut b, &fixture, kind), before, "{opcode:?}");
        }
        assert!(taken > 0, "{opcode:?} was never taken");
    }
}
