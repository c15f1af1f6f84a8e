use super::*;
use crate::commands::testing::Bench;
use crate::personality::PortKind;
use crate::profile::Config;
use crate::steering::{Offer, Steering};
use crate::transport::Tir;
use hca_spec::command::Opcode;

/// An adapter with flow tables of all types, and with TIRs that entries may name: all numbers below 64 that there are.
pub(in crate::commands) fn bench() -> Bench {
    let mut b = Bench::initialized_with(Config { port_kind: PortKind::Ethernet, ..Config::default() });
    b.fw.icm.steering = Steering::new(Offer::ethernet());
    while b.fw.icm.tirs.get(63).is_none() {
        b.fw.icm.tirs.insert(Tir::default()).unwrap();
    }
    b
}

/// CREATE_FLOW_TABLE of NIC RX with 128 places, at a level, with the table that misses go to.
pub(in crate::commands) fn new_table(level: u32, miss: Option<u32>) -> CreateFlowTableIn {
    let mut create = CreateFlowTableIn::new();
    let context = create.context_mut();
    context.set(FlowTableContext::LEVEL, level).set(FlowTableContext::LOG_SIZE, 7);
    if let Some(number) = miss {
        context.set(FlowTableContext::TABLE_MISS_ACTION, miss_action::TABLE);
        context.set(FlowTableContext::TABLE_MISS_ID, number);
    }
    create
}

pub(in crate::commands) fn table(b: &mut Bench, level: u32) -> u32 {
    b.put(Opcode::CreateFlowTable, &new_table(level, None), 16).number()
}

/// What a command names.
pub(in crate::commands) fn flow(table: u32, group: u32, place: u32) -> FlowIn {
    let mut flow = FlowIn::new();
    flow.set(FlowIn::TABLE_ID, table).set(FlowIn::GROUP_ID, group).set(FlowIn::FLOW_INDEX, place);
    flow
}

fn set_root(b: &mut Bench, op_mod: u32, change: impl Fn(&mut SetFlowTableRootIn)) -> Status {
    let mut set = SetFlowTableRootIn::new();
    set.set(SetFlowTableRootIn::OP_MOD, op_mod);
    change(&mut set);
    b.put(Opcode::SetFlowTableRoot, &set, 16).status()
}

#[test]
fn life() {
    let mut b = bench();
    let last = table(&mut b, 66);
    let first = b.put(Opcode::CreateFlowTable, &new_table(10, Some(last)), 16).number();
    let out = b.put(Opcode::QueryFlowTable, &flow(first, 0, 0), QueryFlowTableOut::SIZE);
    let out = QueryFlowTableOut::from_prefix_or_zero(&out.output);
    let context = out.context();
    assert_eq!((context.get(FlowTableContext::LEVEL), context.get(FlowTableContext::LOG_SIZE)), (10, 7));
    assert_eq!(context.get(FlowTableContext::TABLE_MISS_ACTION), miss_action::TABLE);
    assert_eq!(context.get(FlowTableContext::TABLE_MISS_ID), last);
    assert_eq!(set_root(&mut b, root::SET, |s| _ = s.set(SetFlowTableRootIn::TABLE_ID, first)), Status::Ok);
    assert_eq!(b.fw.icm.steering.root(TableType::NicRx), Some(first));
    let destroy = |b: &mut Bench, table| b.put(Opcode::DestroyFlowTable, &flow(table, 0, 0), 16).status();
    assert_eq!(destroy(&mut b, last), Status::BadResourceState, "misses lead there");
    let mut modify = ModifyFlowTableIn::new();
    modify.set(ModifyFlowTableIn::TABLE_ID, first);
    assert_eq!(b.put(Opcode::ModifyFlowTable, &modify, 16).status(), Status::Ok, "nothing is selected");
    assert_eq!(destroy(&mut b, last), Status::BadResourceState);
    modify.set(ModifyFlowTableIn::MODIFY_FIELD_SELECT, modify_table::MISS_TABLE_ID);
    assert_eq!(b.put(Opcode::ModifyFlowTable, &modify, 16).status(), Status::Ok);
    assert_eq!(destroy(&mut b, last), Status::Ok);
    // The root goes, and the type has none.
    assert_eq!((destroy(&mut b, first), destroy(&mut b, first)), (Status::Ok, Status::BadResource));
    assert_eq!((b.fw.icm.steering.root(TableType::NicRx), b.fw.resources().now.flow_tables), (None, 0));
}

#[test]
fn roots() {
    let mut b = bench();
    let rx = table(&mut b, 1);
    assert_eq!(set_root(&mut b, root::SET, |_| ()), Status::BadResource, "no table");
    let other = |s: &mut SetFlowTableRootIn| {
        _ = s
            .set(SetFlowTableRootIn::TABLE_ID, rx)
            .set(SetFlowTableRootIn::TABLE_TYPE, TableType::NicTx as u32)
    };
    assert_eq!(set_root(&mut b, root::SET, other), Status::BadResource, "a table of another type");
    let underlay = |s: &mut SetFlowTableRootIn| {
        _ = s.set(SetFlowTableRootIn::TABLE_ID, rx).set(SetFlowTableRootIn::UNDERLAY_QPN, 9)
    };
    assert_eq!(set_root(&mut b, root::SET, underlay), Status::BadParam);
    assert_eq!(set_root(&mut b, 2, |s| _ = s.set(SetFlowTableRootIn::TABLE_ID, rx)), Status::BadParam);
    assert_eq!(set_root(&mut b, root::SET, |s| _ = s.set(SetFlowTableRootIn::TABLE_ID, rx)), Status::Ok);
    assert_eq!(set_root(&mut b, root::DISCONNECT, |_| ()), Status::Ok);
    assert_eq!(b.fw.icm.steering.root(TableType::NicRx), None);
    b.fw.icm.steering = with_rx(|offer| offer.modify_root = false);
    let rx = table(&mut b, 1);
    assert_eq!(
        set_root(&mut b, root::SET, |s| _ = s.set(SetFlowTableRootIn::TABLE_ID, rx)),
        Status::BadParam
    );
}

/// Nobody says a root: it is the first table of level 0, or one that is left, until somebody does.
#[test]
fn roots_that_nobody_says() {
    let mut b = bench();
    let enters = |b: &Bench| b.fw.icm.steering.root(TableType::NicRx);
    table(&mut b, 1);
    assert_eq!(enters(&b), None);
    let (first, second) = (table(&mut b, 0), table(&mut b, 0));
    assert_eq!((enters(&b), b.fw.icm.steering.root(TableType::NicTx)), (Some(first), None));
    let said = |s: &mut SetFlowTableRootIn| _ = s.set(SetFlowTableRootIn::TABLE_ID, second);
    assert_eq!(set_root(&mut b, root::SET, said), Status::Ok);
    assert_eq!(enters(&b), Some(second));
    assert_eq!(set_root(&mut b, root::DISCONNECT, |_| ()), Status::Ok);
    table(&mut b, 0);
    assert_eq!(enters(&b), None, "it was said that there is none");
    let mut b = bench();
    let destroy = |b: &mut Bench, number| {
        assert_eq!(b.put(Opcode::DestroyFlowTable, &flow(number, 0, 0), 16).status(), Status::Ok);
    };
    let first = table(&mut b, 0);
    destroy(&mut b, first);
    assert_eq!(enters(&b), None);
    let [next, second, higher, third, fourth] = [0, 0, 1, 0, 0].map(|level| table(&mut b, level));
    assert_eq!(enters(&b), Some(next));
    destroy(&mut b, second);
    assert_eq!(enters(&b), Some(next));
    destroy(&mut b, next);
    assert_eq!(enters(&b), Some(third));
    destroy(&mut b, third);
    assert_eq!(enters(&b), Some(fourth));
    destroy(&mut b, fourth);
    assert_eq!(enters(&b), None, "table {higher} is of another level");
    // One that was said goes, and none takes its place.
    let (said, left) = (table(&mut b, 0), table(&mut b, 0));
    let root = |s: &mut SetFlowTableRootIn| _ = s.set(SetFlowTableRootIn::TABLE_ID, said);
    assert_eq!(set_root(&mut b, root::SET, root), Status::Ok);
    destroy(&mut b, said);
    assert_eq!((enters(&b), left > said), (None, true));
}

/// Tables of an adapter whose NIC RX tables offer something else.
pub(in crate::commands) fn with_rx(change: impl Fn(&mut TypeOffer)) -> Steering {
    let mut offer = Offer::ethernet();
    change(offer.nic_rx.as_mut().unwrap());
    Steering::new(offer)
}

#[test]
fn refusals() {
    use FlowTableContext as C;
    let mut b = bench();
    let low = table(&mut b, 10);
    let create = |b: &mut Bench, change: &dyn Fn(&mut CreateFlowTableIn)| {
        let mut create = new_table(10, None);
        change(&mut create);
        b.put(Opcode::CreateFlowTable, &create, 16).status()
    };
    let kind = |kind: u32| move |c: &mut CreateFlowTableIn| _ = c.set(CreateFlowTableIn::TABLE_TYPE, kind);
    for wrong in [2, 3, 4, 9, 10, 0xff] {
        assert_eq!(create(&mut b, &kind(wrong)), Status::BadParam, "type {wrong}");
    }
    for right in [0, 1, 5, 6, 7, 8] {
        assert_eq!(create(&mut b, &kind(right)), Status::Ok, "type {right}");
    }
    let bad: [&dyn Fn(&mut CreateFlowTableIn); 10] = [
        &|c| _ = c.set(CreateFlowTableIn::OTHER_VPORT, 1),
        &|c| _ = c.context_mut().set(C::REFORMAT_EN, 1),
        &|c| _ = c.context_mut().set(C::DECAP_EN, 1),
        &|c| _ = c.context_mut().set(C::SW_OWNER, 1),
        &|c| _ = c.context_mut().set(C::TERMINATION_TABLE, 1),
        &|c| _ = c.context_mut().set(C::LOG_SIZE, 23),
        &|c| _ = c.context_mut().set(C::LEVEL, 97),
        &|c| _ = c.context_mut().set(C::TABLE_MISS_ACTION, 3),
        &|c| _ = c.context_mut().set(C::TABLE_MISS_ACTION, miss_action::SWITCH_DOMAIN),
        &|c| _ = c.context_mut().set(C::TABLE_MISS_ACTION, miss_action::TABLE).set(C::TABLE_MISS_ID, low),
    ];
    for (i, change) in bad.into_iter().enumerate() {
        assert_eq!(create(&mut b, change), Status::BadParam, "{i}");
    }
    let missing = |c: &mut CreateFlowTableIn| {
        _ = c.context_mut().set(C::TABLE_MISS_ACTION, miss_action::TABLE).set(C::TABLE_MISS_ID, 0x777)
    };
    assert_eq!(create(&mut b, &missing), Status::BadResource);
    let domain = |c: &mut CreateFlowTableIn| {
        c.set(CreateFlowTableIn::TABLE_TYPE, TableType::RdmaRx as u32);
        c.context_mut().set(C::TABLE_MISS_ACTION, miss_action::SWITCH_DOMAIN);
    };
    assert_eq!(create(&mut b, &domain), Status::Ok);
    let mut modify = ModifyFlowTableIn::new();
    modify.set(ModifyFlowTableIn::TABLE_ID, low);
    for select in [modify_table::LAG_NEXT_TABLE_ID, 1 << 3] {
        modify.set(ModifyFlowTableIn::MODIFY_FIELD_SELECT, select);
        assert_eq!(b.put(Opcode::ModifyFlowTable, &modify, 16).status(), Status::BadParam);
    }
    modify.set(ModifyFlowTableIn::MODIFY_FIELD_SELECT, modify_table::MISS_TABLE_ID);
    *modify.context_mut() = *new_table(0, Some(low)).context();
    assert_eq!(
        b.put(Opcode::ModifyFlowTable, &modify, 16).status(),
        Status::BadParam,
        "its own level counts"
    );
}

#[test]
fn what_is_not_offered() {
    let mut b = Bench::initialized();
    assert_eq!(b.put(Opcode::CreateFlowTable, &new_table(1, None), 16).status(), Status::BadOp);
    let mut b = bench();
    b.fw.icm.steering = with_rx(|offer| {
        (offer.miss_table, offer.modify_tables, offer.log_max_tables) = (false, false, 1);
    });
    let low = table(&mut b, 1);
    assert_eq!(b.put(Opcode::CreateFlowTable, &new_table(0, Some(low)), 16).status(), Status::BadParam);
    let mut modify = ModifyFlowTableIn::new();
    modify.set(ModifyFlowTableIn::TABLE_ID, low);
    assert_eq!(b.put(Opcode::ModifyFlowTable, &modify, 16).status(), Status::BadParam);
    table(&mut b, 1);
    assert_eq!(b.put(Opcode::CreateFlowTable, &new_table(1, None), 16).status(), Status::ExceedLimit);
    // With ignore_flow_level tables may lead anywhere.
    b.fw.icm.steering = with_rx(|offer| offer.ignore_level = true);
    let low = table(&mut b, 1);
    assert_eq!(b.put(Opcode::CreateFlowTable, &new_table(60, Some(low)), 16).status(), Status::Ok);
}

/// Drivers that write entries themselves name tables by addresses: that of a new one is what a query tells.
#[test]
fn address() {
    use hca_spec::flow::{CreateFlowTableOut as Out, QueryFlowTableOut};
    let ask = |software| {
        let mut b = bench();
        b.fw.icm.steering = with_rx(|offer| offer.software = software);
        let made = b.put(Opcode::CreateFlowTable, &new_table(10, None), 16);
        let out = Out::from_prefix_or_zero(&made.output);
        let number = out.get(Out::TABLE_ID);
        let r = b.put(Opcode::QueryFlowTable, &flow(number, 0, 0), QueryFlowTableOut::SIZE);
        let told = QueryFlowTableOut::from_prefix_or_zero(&r.output);
        let high = u64::from(out.get(Out::ICM_ADDRESS_63_40)) << 40
            | u64::from(out.get(Out::ICM_ADDRESS_39_32)) << 32;
        let address = high | u64::from(out.get(Out::ICM_ADDRESS_31_0));
        (address, told.context().get(FlowTableContext::SW_OWNER_ICM_ROOT_0))
    };
    let (made, told) = ask(true);
    assert!(made != 0 && made == told);
    assert_eq!(ask(false), (0, 0), "nobody else does");
}
