//! What a mask chooses is taken, and nothing else: each command with a mask, bit by bit.

use std::collections::BTreeSet;

use hca_spec::cmd::{ModifyQpIn, QueryHcaVportContextOut as HcaVport};
use hca_spec::flow::{FlowTableContext, ModifyFlowTableIn, miss_action, modify_table};
use hca_spec::layout::{FieldInfo, Layout};
use hca_spec::mad::PortInfo;
use hca_spec::nic_vport::{
    ModifyNicVportContextIn, NicVportContext, VportIn, list_type, nic_vport_select as select,
};
use hca_spec::qpc::{AddressPath, QpState, opt, path_migration};
use hca_spec::transport::{MODIFY_RQT_LIST, ModifyRqtIn, Rqtc};
use hca_spec::{be32, be64, put_be32, put_be64};

use super::told::{fields, told};
use super::*;
use crate::port::SETTABLE_CAPABILITIES;

/// Fields that are masks, by name.
const MASKS: [&str; 7] = [
    "BITMASK",
    "CAP_MASK1_FIELD_SELECT",
    "FIELD_SELECT",
    "MODIFY_BITMASK",
    "MODIFY_ENABLE_MASK",
    "MODIFY_FIELD_SELECT",
    "OPT_PARAM_MASK",
];

/// Commands whose masks are tested elsewhere, and where: files of this folder, or of the commands.
const ELSEWHERE: [(Opcode, &str); 10] = [
    // What it says is taken whole; its mask is told by QUERY_QP and chooses nothing.
    (Opcode::CreateQp, "commands/qp"),
    (Opcode::ModifyCq, "queue_masks"),
    (Opcode::ModifyRmp, "queue_masks"),
    (Opcode::ModifySq, "queue_masks"),
    (Opcode::ModifyRq, "queue_masks"),
    (Opcode::ModifyTir, "queue_masks"),
    (Opcode::ModifyTis, "queue_masks"),
    (Opcode::SetFlowTableEntry, "commands/flow_entry"),
    (Opcode::ModifyCongParams, "commands/congestion"),
    (Opcode::ModifySchedulingElement, "commands/scheduling"),
];

/// Commands of this file.
const HERE: [Opcode; 13] = [
    Opcode::Rst2InitQp,
    Opcode::Init2InitQp,
    Opcode::Init2RtrQp,
    Opcode::Rtr2RtsQp,
    Opcode::Rts2RtsQp,
    Opcode::SqErr2RtsQp,
    Opcode::Rts2SqdQp,
    Opcode::Sqd2SqdQp,
    Opcode::Sqd2RtsQp,
    Opcode::ModifyRqt,
    Opcode::ModifyFlowTable,
    Opcode::ModifyNicVportContext,
    Opcode::ModifyHcaVportContext,
];

#[test]
fn every_mask_has_its_test() {
    // It has the layout of the change, and changes nothing.
    let questions = [Opcode::QueryCongParams];
    for command in TABLE.iter().filter(|command| !questions.contains(&command.opcode)) {
        let masks = |layout: &Layout| layout.fields.iter().any(|field| MASKS.contains(&field.name));
        let has = command.layouts().any(|(layout, _)| masks(layout));
        let tested = HERE.contains(&command.opcode) || ELSEWHERE.iter().any(|(o, _)| *o == command.opcode);
        assert_eq!(has, tested, "{}", command.name);
    }
}

fn layout(name: &str) -> &'static Layout {
    hca_spec::layout_named(name).expect("there is such a structure")
}

/// The input of a command.
fn command(opcode: Opcode, bytes: &[u8]) -> Vec<u8> {
    let mut input = bytes.to_vec();
    put_be32(&mut input, 0, (opcode as u32) << 16);
    input
}

/// Bytes of no meaning, the same in each run.
pub(super) struct Garbage(pub(super) u64);

impl Garbage {
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (self.0 >> 56) as u8;
        }
    }
}

/// A structure's fields, with those of the structures in it: name, and where it is.
pub(super) fn places(layout: &'static Layout) -> Vec<(String, usize, &'static FieldInfo)> {
    let mut all: Vec<_> = layout.fields.iter().map(|field| (format!(".{}", field.name), 0, field)).collect();
    for inner in layout.views {
        let of = inner.layout().expect("a structure");
        all.extend(
            of.fields.iter().map(|field| (format!("{}.{}", inner.name, field.name), inner.offset, field)),
        );
    }
    all
}

/// Copies a field.
pub(super) fn copy(to: &mut [u8], from: &[u8], at: usize, field: &FieldInfo) {
    let place = at + field.offset;
    if field.hi > 31 {
        return put_be64(to, place, be64(from, place));
    }
    let mask = (u64::from(u32::MAX) >> (31 - (field.hi - field.lo))) << field.lo;
    let mask = mask as u32;
    put_be32(to, place, be32(to, place) & !mask | be32(from, place) & mask);
}

/// Whether one of the names is meant: a name of a structure with its point means all of it.
pub(super) fn means(names: &[&str], name: &str) -> bool {
    names.iter().any(|n| *n == name || n.ends_with('.') && name.starts_with(n))
}

/// What a transition takes without a mask: state, and fields (IBTA 11.2.5.2; what the mlx5 driver fills).
fn required(opcode: Opcode) -> (QpState, &'static [&'static str]) {
    match opcode {
        Opcode::Rst2InitQp => (
            QpState::Reset,
            &[
                ".PM_STATE",
                ".RRE",
                ".RWE",
                ".RAE",
                ".ATOMIC_MODE",
                ".COUNTER_SET_ID",
                ".Q_KEY",
                ".DETH_SQPN",
                ".PD",
                ".CQN_SND",
                ".CQN_RCV",
                ".FRE",
                ".RLKY",
                ".DBR_ADDR",
                "primary_path.PKEY_INDEX",
                "primary_path.VHCA_PORT_NUM",
            ],
        ),
        Opcode::Init2RtrQp => (
            QpState::Init,
            &[
                ".MTU",
                ".LOG_MSG_MAX",
                ".REMOTE_QPN",
                ".NEXT_RCV_PSN",
                ".LOG_RRA_MAX",
                ".MIN_RNR_NAK",
                ".DETH_SQPN",
                "primary_path.FL",
                "primary_path.GRH",
                "primary_path.MLID",
                "primary_path.RLID",
                "primary_path.SRC_ADDR_INDEX",
                "primary_path.STAT_RATE",
                "primary_path.HOP_LIMIT",
                "primary_path.TCLASS",
                "primary_path.FLOW_LABEL",
                "primary_path.RGID_H",
                "primary_path.RGID_L",
                "primary_path.ECN",
                "primary_path.DSCP",
                "primary_path.UDP_SPORT",
                "primary_path.DEI_CFI",
                "primary_path.ETH_PRIO",
                "primary_path.SL",
                "primary_path.VHCA_PORT_NUM",
                "primary_path.RMAC_47_32",
                "primary_path.RMAC_31_0",
            ],
        ),
        Opcode::Rtr2RtsQp => (
            QpState::Rtr,
            &[
                ".RETRY_COUNT",
                ".RNR_RETRY",
                ".NEXT_SEND_PSN",
                ".LOG_SRA_MAX",
                ".LOG_ACK_REQ_FREQ",
                ".DETH_SQPN",
                "primary_path.ACK_TIMEOUT",
            ],
        ),
        Opcode::Init2InitQp => (QpState::Init, &[]),
        Opcode::SqErr2RtsQp => (QpState::SqError, &[]),
        Opcode::Sqd2SqdQp | Opcode::Sqd2RtsQp => (QpState::SqDrained, &[]),
        _ => (QpState::Rts, &[]),
    }
}

/// What a bit of the mask chooses.
fn chosen(opcode: Opcode, bit: u32) -> &'static [&'static str] {
    match 1 << bit {
        // RST2INIT takes all that it knows.
        _ if opcode == Opcode::Rst2InitQp => &[],
        opt::ALT_PATH => &["secondary_path."],
        opt::RRE => &[".RRE"],
        opt::RAE => &[".RAE", ".ATOMIC_MODE"],
        opt::RWE => &[".RWE"],
        opt::PKEY_INDEX => &["primary_path.PKEY_INDEX"],
        opt::Q_KEY => &[".Q_KEY"],
        opt::RNR_TIMEOUT => &[".MIN_RNR_NAK"],
        // INIT2RTR takes it without.
        opt::PRIMARY_PATH if opcode != Opcode::Init2RtrQp => &["primary_path."],
        opt::SRA_MAX => &[".LOG_SRA_MAX"],
        opt::RRA_MAX => &[".LOG_RRA_MAX"],
        opt::PM_STATE => &[".PM_STATE"],
        opt::DRAIN_SIGERR => &[".DRAIN_SIGERR"],
        opt::RETRY_COUNT => &[".RETRY_COUNT"],
        opt::RNR_RETRY => &[".RNR_RETRY"],
        opt::ACK_TIMEOUT => &["primary_path.ACK_TIMEOUT"],
        opt::PRI_PORT => &["primary_path.VHCA_PORT_NUM"],
        opt::SRQN => &[".SRQN_RMPN"],
        opt::CQN_RCV => &[".CQN_RCV"],
        opt::COUNTER_SET => &[".COUNTER_SET_ID"],
        _ => &[],
    }
}

/// A context before a transition.
fn old_context(ctx: &mut Qpc) {
    ctx.set(Qpc::MTU, 1).set(Qpc::LOG_MSG_MAX, 20).set(Qpc::REMOTE_QPN, 5).set(Qpc::Q_KEY, 1);
    ctx.set(Qpc::MIN_RNR_NAK, 7).set(Qpc::LOG_SRA_MAX, 1).set(Qpc::LOG_RRA_MAX, 1);
    ctx.set(Qpc::RETRY_COUNT, 1).set(Qpc::RNR_RETRY, 1).set(Qpc::PM_STATE, path_migration::MIGRATED);
    let path = ctx.primary_path_mut();
    path.set(AddressPath::RLID, 1).set(AddressPath::ACK_TIMEOUT, 1).set(AddressPath::VHCA_PORT_NUM, 1);
    let path = ctx.secondary_path_mut();
    path.set(AddressPath::RLID, 9).set(AddressPath::ACK_TIMEOUT, 2).set(AddressPath::VHCA_PORT_NUM, 1);
}

/// A context of which every field that a transition may take is another one, and may be.
fn new_context(fixture: &Fixture, cq: u32) -> Qpc {
    let mut ctx = Qpc::new();
    ctx.set(Qpc::ST, ServiceType::Rc as u32).set(Qpc::PD, fixture.number(Pd));
    ctx.set(Qpc::CQN_SND, fixture.number(Cq)).set(Qpc::CQN_RCV, cq).set(Qpc::DBR_ADDR, 0x30_0000);
    ctx.set(Qpc::FRE, 1).set(Qpc::RLKY, 1).set(Qpc::RRE, 1).set(Qpc::RWE, 1).set(Qpc::RAE, 1);
    ctx.set(Qpc::ATOMIC_MODE, 1).set(Qpc::MTU, 3).set(Qpc::LOG_MSG_MAX, 30).set(Qpc::REMOTE_QPN, 6);
    ctx.set(Qpc::PM_STATE, path_migration::REARM).set(Qpc::COUNTER_SET_ID, fixture.number(QCounter));
    ctx.set(Qpc::LOG_RRA_MAX, 2).set(Qpc::LOG_SRA_MAX, 2).set(Qpc::MIN_RNR_NAK, 3).set(Qpc::Q_KEY, 2);
    ctx.set(Qpc::RETRY_COUNT, 3).set(Qpc::RNR_RETRY, 3).set(Qpc::LOG_ACK_REQ_FREQ, 8);
    ctx.set(Qpc::NEXT_SEND_PSN, 0x123).set(Qpc::NEXT_RCV_PSN, 0x456).set(Qpc::DRAIN_SIGERR, 1);
    ctx.set(Qpc::SRQN_RMPN, fixture.number(Srq)).set(Qpc::DETH_SQPN, 1);
    let mut path = AddressPath::new();
    path.set(AddressPath::RLID, 17).set(AddressPath::VHCA_PORT_NUM, 1).set(AddressPath::ACK_TIMEOUT, 4);
    path.set(AddressPath::PKEY_INDEX, 1).set(AddressPath::SL, 2).set(AddressPath::MLID, 3);
    path.set(AddressPath::TCLASS, 4).set(AddressPath::STAT_RATE, 7);
    *ctx.primary_path_mut() = path;
    *ctx.secondary_path_mut() = *path.set(AddressPath::RLID, 18);
    ctx
}

/// A transition with every bit of the mask, and without one: what it has to take and what the bit chooses is taken, whatever else the
/// context says.
#[test]
fn transitions_take_what_their_mask_chooses() {
    const CONTEXT: usize = 0x18;
    let qpc = layout("Qpc");
    let mut garbage = Garbage(1);
    // Of each field that some bit chooses is seen that it can change.
    let mut changed = BTreeSet::new();
    for opcode in HERE.into_iter().filter(|opcode| row(*opcode).object.is_some_and(|o| o.kind == Qp)) {
        for bit in (0..u32::BITS).map(Some).chain([None]) {
            let mut b = bench(PortKind::InfiniBand, State::Initialized);
            let fixture = populate(&mut b);
            let cq = make(&mut b, &fixture, Cq);
            let (state, takes) = required(opcode);
            let ctx = &mut b.fw.icm.qps.get_mut(fixture.number(Qp)).unwrap().ctx;
            old_context(ctx);
            ctx.set(Qpc::STATE, state as u32);
            let before = told(&mut b, &fixture, Qp);
            let new = new_context(&fixture, cq);
            let chooses = bit.map_or(&[][..], |bit| chosen(opcode, bit));
            let mut modify = ModifyQpIn::new();
            modify.set(ModifyQpIn::QPN, fixture.number(Qp));
            modify.set(ModifyQpIn::OPT_PARAM_MASK, bit.map_or(0, |bit| 1 << bit));
            let context = modify.qpc_mut().bytes_mut();
            garbage.fill(context);
            for (name, at, field) in places(qpc) {
                if means(takes, &name) || means(chooses, &name) {
                    copy(context, new.bytes(), at, field);
                }
            }
            let input = command(opcode, modify.bytes());
            assert_eq!(run(&mut b, &input).status(), Status::Ok, "{opcode:?} {bit:?}");
            let after = told(&mut b, &fixture, Qp);
            let [before, new, after] =
                [&before[CONTEXT..], new.bytes(), &after[CONTEXT..]].map(|bytes| fields(qpc, bytes));
            for (((name, before), (_, new)), (_, after)) in before.into_iter().zip(new).zip(after) {
                let expected = match name.as_str() {
                    ".STATE" => continue,
                    // There is nothing yet to migrate to.
                    ".PM_STATE" if opcode == Opcode::Rst2InitQp => path_migration::MIGRATED.into(),
                    name if means(takes, name) || means(chooses, name) => new,
                    _ => before,
                };
                assert_eq!(after, expected, "{opcode:?} {bit:?}: {name}");
                if after != before && means(chooses, &name) {
                    changed.insert(name);
                }
            }
        }
    }
    let choosable: BTreeSet<String> = places(qpc).into_iter().map(|(name, ..)| name).collect();
    let still: Vec<_> = (0..u32::BITS)
        .flat_map(|bit| chosen(Opcode::Rts2RtsQp, bit))
        .filter(|name| !name.ends_with('.') && choosable.contains(**name) && !changed.contains(**name))
        .collect();
    // There is one port.
    assert_eq!(still, [&"primary_path.VHCA_PORT_NUM"]);
}

/// What the driver said of the virtual port, and its three lists.
fn nic(b: &mut Bench) -> (Vec<(String, u64)>, [Vec<u8>; 3]) {
    const CONTEXT: usize = 0x10;
    let lists = [list_type::UNICAST, list_type::MULTICAST, list_type::VLAN];
    let answers = lists.map(|kind| {
        let mut query = VportIn::new();
        query.set(VportIn::ALLOWED_LIST_TYPE, kind);
        b.put(Opcode::QueryNicVportContext, &query, 0x1000).output
    });
    let told = fields(layout("NicVportContext"), &answers[0][CONTEXT..]);
    (told, answers.map(|answer| answer[CONTEXT + NicVportContext::SIZE..].to_vec()))
}

#[test]
fn the_virtual_port_takes_what_is_selected() {
    /// What a bit selects; the others are refused.
    const SELECTED: [(u32, &[&str]); 6] = [
        (select::ROCE_EN, &[".ROCE_EN"]),
        (select::ADDRESSES_LIST, &[".ALLOWED_LIST_SIZE"]),
        (select::PERMANENT_ADDRESS, &[".PERMANENT_ADDRESS_47_32", ".PERMANENT_ADDRESS_31_0"]),
        (select::PROMISC, &[".PROMISC_UC", ".PROMISC_MC", ".PROMISC_ALL"]),
        (select::MTU, &[".MTU"]),
        (select::MIN_INLINE, &[".MIN_WQE_INLINE_MODE"]),
    ];
    const ENTRY: [u8; 8] = [0, 0, 2, 4, 6, 8, 10, 12];
    let mut garbage = Garbage(2);
    for bit in (0..u32::BITS).map(Some).chain([None]) {
        let mut b = bench(PortKind::Ethernet, State::Initialized);
        let before = nic(&mut b);
        let selected = bit.map_or(0, |bit| 1 << bit);
        let known = SELECTED.iter().find(|(mask, _)| *mask == selected).map(|(_, fields)| *fields);
        let mut new = NicVportContext::new();
        new.set(NicVportContext::ROCE_EN, u32::from(before.0[3].1 == 0)).set(NicVportContext::MTU, 9000);
        new.set(NicVportContext::PERMANENT_ADDRESS_47_32, 0x0204);
        new.set(NicVportContext::PERMANENT_ADDRESS_31_0, 0x0608_0a0c);
        new.set(NicVportContext::PROMISC_UC, 1).set(NicVportContext::PROMISC_MC, 1);
        new.set(NicVportContext::PROMISC_ALL, 1).set(NicVportContext::MIN_WQE_INLINE_MODE, 2);
        new.set(NicVportContext::ALLOWED_LIST_SIZE, 1);
        new.set(NicVportContext::ALLOWED_LIST_TYPE, list_type::UNICAST);
        let mut modify = ModifyNicVportContextIn::new();
        modify.set(ModifyNicVportContextIn::FIELD_SELECT, selected);
        garbage.fill(modify.context_mut().bytes_mut());
        for (name, at, field) in places(layout("NicVportContext")) {
            let list = selected == select::ADDRESSES_LIST && name == ".ALLOWED_LIST_TYPE";
            if list || means(known.unwrap_or_default(), &name) {
                copy(modify.context_mut().bytes_mut(), new.bytes(), at, field);
            }
        }
        let mut input = command(Opcode::ModifyNicVportContext, modify.bytes());
        input.extend(ENTRY);
        let status = run(&mut b, &input).status();
        let after = nic(&mut b);
        let taken = bit.is_none() || known.is_some();
        assert_eq!(status == Status::Ok, taken, "{selected:#x}: {status:?}");
        if !taken {
            assert_eq!(after, before, "{selected:#x}");
            continue;
        }
        let mut changes = 0;
        let new = fields(layout("NicVportContext"), new.bytes());
        for ((name, now), ((_, was), (_, new))) in after.0.iter().zip(before.0.iter().zip(&new)) {
            let chosen = means(known.unwrap_or_default(), name);
            assert_eq!(now, if chosen { new } else { was }, "{selected:#x}: {name}");
            changes += usize::from(now != was);
        }
        assert_eq!(changes, known.map_or(0, <[_]>::len), "{selected:#x}");
        let list = if selected == select::ADDRESSES_LIST { ENTRY.to_vec() } else { Vec::new() };
        assert_eq!(after.1, [list, Vec::new(), Vec::new()], "{selected:#x}");
    }
}

#[test]
fn an_rqt_takes_its_list_and_nothing_else() {
    let mut garbage = Garbage(3);
    for bit in (0..u64::BITS).map(Some).chain([None]) {
        let mut b = bench(PortKind::Ethernet, State::Initialized);
        let fixture = populate(&mut b);
        let other = make(&mut b, &fixture, Rq);
        let before = told(&mut b, &fixture, Rqt);
        let mask = bit.map_or(0, |bit| 1 << bit);
        let mut modify = ModifyRqtIn::new();
        modify.set(ModifyRqtIn::RQTN, fixture.number(Rqt)).set(ModifyRqtIn::BITMASK, mask);
        garbage.fill(modify.rqtc_mut().bytes_mut());
        let with_list = mask == MODIFY_RQT_LIST;
        if with_list {
            // What its entries are.
            modify.rqtc_mut().set(Rqtc::LIST_Q_TYPE, 0).set(Rqtc::RQ_VHCA_ID_FORMAT, 0);
            modify.rqtc_mut().set(Rqtc::RQT_ACTUAL_SIZE, 2);
        }
        let mut input = command(Opcode::ModifyRqt, modify.bytes());
        input.extend([other, other].into_iter().flat_map(u32::to_be_bytes));
        let status = run(&mut b, &input).status();
        let after = told(&mut b, &fixture, Rqt);
        assert_eq!(status == Status::Ok, bit.is_none() || with_list, "{mask:#x}: {status:?}");
        if with_list {
            let max = |bytes: &[u8]| Rqtc::from_prefix_or_zero(&bytes[0x20..]).get(Rqtc::RQT_MAX_SIZE);
            assert_eq!(max(&after), max(&before), "its size is for ever");
            let list = &after[after.len() - 8..];
            assert_eq!(list, [other, other].map(u32::to_be_bytes).concat());
        } else {
            assert_eq!(after, before, "{mask:#x}");
        }
    }
}

#[test]
fn a_flow_table_takes_where_packets_go_on_and_nothing_else() {
    const CONTEXT: usize = 0x18;
    let layout = layout("FlowTableContext");
    let mut garbage = Garbage(4);
    for bit in (0..u16::BITS).map(Some).chain([None]) {
        let mut b = bench(PortKind::Ethernet, State::Initialized);
        let fixture = populate(&mut b);
        // A table of a higher level, to go on at.
        let mut create = row(Opcode::CreateFlowTable).template(&fixture);
        let level = FlowTableContext::from_prefix_or_zero(&create[CONTEXT..]).get(FlowTableContext::LEVEL);
        let mut higher = FlowTableContext::from_prefix_or_zero(&create[CONTEXT..]);
        higher.set(FlowTableContext::LEVEL, level + 1);
        create[CONTEXT..CONTEXT + FlowTableContext::SIZE].copy_from_slice(higher.bytes());
        let next = run(&mut b, &create).number();
        let before = told(&mut b, &fixture, FlowTable);
        let select = bit.map_or(0, |bit| 1 << bit);
        let mut modify =
            ModifyFlowTableIn::from_prefix_or_zero(&row(Opcode::ModifyFlowTable).template(&fixture));
        modify.set(ModifyFlowTableIn::MODIFY_FIELD_SELECT, select);
        garbage.fill(modify.context_mut().bytes_mut());
        let misses = select == modify_table::MISS_TABLE_ID;
        if misses {
            let context = modify.context_mut();
            context.set(FlowTableContext::TABLE_MISS_ACTION, miss_action::TABLE);
            context.set(FlowTableContext::TABLE_MISS_ID, next);
        }
        let input = command(Opcode::ModifyFlowTable, modify.bytes());
        let status = run(&mut b, &input).status();
        assert_eq!(status == Status::Ok, bit.is_none() || misses, "{select:#x}: {status:?}");
        let after = told(&mut b, &fixture, FlowTable);
        for ((name, now), (_, was)) in
            fields(layout, &after[CONTEXT..]).into_iter().zip(fields(layout, &before[CONTEXT..]))
        {
            let expected = match name.as_str() {
                ".TABLE_MISS_ACTION" if misses => miss_action::TABLE.into(),
                ".TABLE_MISS_ID" if misses => next.into(),
                _ => was,
            };
            assert_eq!(now, expected, "{select:#x}: {name}");
        }
    }
}

/// Of a port's capabilities those change that are selected, if software may set them.
#[test]
fn capabilities_of_a_port_are_selected() {
    let now = |b: &Bench| b.fw.ports.port(1).unwrap().info().get(PortInfo::CAPABILITY_MASK);
    let mut garbage = Garbage(5);
    let mut changes = 0;
    for (bit, value) in (0..u32::BITS).flat_map(|bit| [(bit, 0), (bit, u32::MAX)]) {
        let mut b = bench(PortKind::InfiniBand, State::Initialized);
        let before = now(&b);
        let mut modify = HcaVport::new();
        garbage.fill(&mut modify.bytes_mut()[0x10..]);
        modify.set(HcaVport::CAP_MASK1, value).set(HcaVport::CAP_MASK1_FIELD_SELECT, 1 << bit);
        let answer = run(&mut b, &command(Opcode::ModifyHcaVportContext, modify.bytes()));
        assert_eq!(answer.status(), Status::Ok);
        let chosen = 1 << bit & SETTABLE_CAPABILITIES;
        assert_eq!(now(&b), before & !chosen | value & chosen, "bit {bit}");
        changes += u32::from(now(&b) != before);
    }
    assert_eq!(changes, SETTABLE_CAPABILITIES.count_ones());
}
