use super::*;
use crate::commands::flow_table::tests::{bench, flow, new_table, table, with_rx};
use crate::commands::testing::{Answer, Bench};
use crate::steering::{Delivery, FlowKey, Frame, Ip, L4, Layers, Offer, Target, Traffic, TypeOffer, Verdict};
use hca_spec::command::Opcode;
use hca_spec::flow::{
    AllocFlowCounterIn, CreateFlowGroupIn, CreateFlowTableIn, MatchLayers, MatchMisc, QueryFlowGroupOut,
    SetFlowTableRootIn, criteria,
};

/// A group for places `first ..= last`, by destination port of UDP.
fn new_group(table: u32, first: u32, last: u32) -> CreateFlowGroupIn {
    let mut create = CreateFlowGroupIn::new();
    create.set(CreateFlowGroupIn::TABLE_ID, table);
    create.set(CreateFlowGroupIn::START_FLOW_INDEX, first).set(CreateFlowGroupIn::END_FLOW_INDEX, last);
    create.set(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, criteria::OUTER);
    create.criteria_mut().outer_mut().set(MatchLayers::UDP_DPORT, 0xffff);
    create
}

fn group(b: &mut Bench, table: u32, first: u32, last: u32) -> u32 {
    b.put(Opcode::CreateFlowGroup, &new_group(table, first, last), 16).number()
}

/// An entry for a port.
fn entry(table: u32, group: u32, place: u32, port: u32, action: u32) -> SetFteIn {
    let mut set = SetFteIn::new();
    set.set(SetFteIn::TABLE_ID, table).set(SetFteIn::FLOW_INDEX, place);
    let context = set.context_mut();
    context.set(FlowContext::GROUP_ID, group).set(FlowContext::ACTION, action);
    context.value_mut().outer_mut().set(MatchLayers::UDP_DPORT, port);
    set
}

fn to(kind: u32, number: u32) -> u64 {
    u64::from(kind) << 56 | u64::from(number) << 32
}

/// SET_FLOW_TABLE_ENTRY with a list of so many destinations, and counters behind.
fn put(b: &mut Bench, set: &SetFteIn, destinations: &[u64], counters: &[u32]) -> Answer {
    let mut set = *set;
    set.context_mut().set(FlowContext::DESTINATION_LIST_SIZE, destinations.len() as u32);
    set.context_mut().set(FlowContext::FLOW_COUNTER_LIST_SIZE, counters.len() as u32);
    let counters = counters.iter().map(|id| u64::from(*id) << 32);
    let list: Vec<u64> = destinations.iter().copied().chain(counters).collect();
    b.put_list(Opcode::SetFlowTableEntry, &set, &list)
}

fn udp(port: u16) -> FlowKey {
    let ip = Ip { version: 4, protocol: 17, ..Ip::default() };
    let l4 = L4::Udp { source: 1, destination: port };
    FlowKey {
        outer: Layers { ethertype: 0x800, ip: Some(ip), l4, ..Layers::default() },
        ..FlowKey::default()
    }
}

fn walk(b: &Bench, kind: TableType, key: &FlowKey) -> Verdict {
    let mut verdict = Verdict::default();
    Frame::pass(&b.fw.icm.steering, kind, key, 100, &mut verdict);
    verdict
}

fn tirs(verdict: &Verdict) -> Vec<(u32, u32)> {
    let tir = |delivery: &Delivery| match delivery.to {
        Target::Tir(tirn) => (tirn, delivery.tag),
        other => panic!("{other:?}"),
    };
    verdict.deliveries.iter().map(tir).collect()
}

/// A table of NIC RX that is the root, with a group of 8 places.
fn rooted(b: &mut Bench) -> (u32, u32) {
    let root = table(b, 10);
    let mut set = SetFlowTableRootIn::new();
    set.set(SetFlowTableRootIn::TABLE_ID, root);
    assert_eq!(b.put(Opcode::SetFlowTableRoot, &set, 16).status(), Status::Ok);
    let group = group(b, root, 0, 7);
    (root, group)
}

#[test]
fn life_of_an_entry() {
    let mut b = bench();
    let (root, group) = rooted(&mut b);
    let counter = b.alloc(Opcode::AllocFlowCounter);
    let icm = b.fw.icm_used();
    let mut set = entry(root, group, 3, 4791, action::FORWARD | action::COUNT);
    set.context_mut().set(FlowContext::FLOW_TAG, 0xabc);
    assert_eq!(
        put(&mut b, &set, &[to(destination::TIR, 7), to(destination::TIR, 8)], &[counter]).status(),
        Status::Ok
    );
    assert_eq!(b.fw.icm_used() - icm, crate::steering::ENTRY_BYTES + 3 * 8);
    assert_eq!((b.fw.icm.steering.tir_users(7), b.fw.resources().now.flow_entries), (1, 1));
    assert_eq!(put(&mut b, &set, &[to(destination::TIR, 7)], &[counter]).status(), Status::BadResourceState);
    let verdict = walk(&b, TableType::NicRx, &udp(4791));
    assert_eq!(tirs(&verdict), [(7, 0xabc), (8, 0xabc)]);
    assert_eq!(walk(&b, TableType::NicRx, &udp(4792)).missed, 1);
    assert_eq!(b.fw.icm.steering.counter(counter), Some(Traffic { packets: 1, octets: 100 }));
    let out = b.put(Opcode::QueryFlowTableEntry, &flow(root, 0, 3), 0x400).output;
    let shown = QueryFteOut::from_prefix_or_zero(&out);
    let context = shown.context();
    assert_eq!((context.get(FlowContext::GROUP_ID), context.get(FlowContext::FLOW_TAG)), (group, 0xabc));
    assert_eq!(context.get(FlowContext::ACTION), action::FORWARD | action::COUNT);
    assert_eq!(context.value().outer().get(MatchLayers::UDP_DPORT), 4791);
    let list: Vec<u64> = out[QueryFteOut::SIZE..].chunks(8).map(|e| hca_spec::be64(e, 0)).collect();
    assert_eq!(list, [to(2, 7), to(2, 8), u64::from(counter) << 32]);
    // What is in use stays.
    let used = Status::BadResourceState;
    assert_eq!(b.object(Opcode::DeallocFlowCounter, counter).status(), used);
    assert_eq!(b.put(Opcode::DestroyFlowGroup, &flow(root, group, 0), 16).status(), used);
    assert_eq!(b.put(Opcode::DestroyFlowTable, &flow(root, 0, 0), 16).status(), used);
    let delete = |b: &mut Bench| b.put(Opcode::DeleteFlowTableEntry, &flow(root, 0, 3), 16).status();
    assert_eq!((delete(&mut b), delete(&mut b)), (Status::Ok, Status::BadResource));
    assert_eq!((b.fw.icm.steering.tir_users(7), b.fw.icm_used()), (0, icm));
    assert_eq!(walk(&b, TableType::NicRx, &udp(4791)).missed, 1);
    b.ok(Opcode::DeallocFlowCounter, counter);
    assert_eq!(b.put(Opcode::DestroyFlowGroup, &flow(root, group, 0), 16).status(), Status::Ok);
    assert_eq!(b.put(Opcode::DestroyFlowTable, &flow(root, 0, 0), 16).status(), Status::Ok);
}

/// A change touches what the mask says, and nothing else.
#[test]
fn changes() {
    let mut b = bench();
    let (root, group) = rooted(&mut b);
    let counter = b.alloc(Opcode::AllocFlowCounter);
    let mut set = entry(root, group, 0, 9, action::FORWARD);
    set.context_mut().set(FlowContext::FLOW_TAG, 1);
    assert_eq!(put(&mut b, &set, &[to(2, 7)], &[]).status(), Status::Ok);
    let mut change = entry(root, group, 0, 9, action::DROP | action::COUNT);
    change.set(SetFteIn::OP_MOD, set_entry::MODIFY);
    change.context_mut().set(FlowContext::FLOW_TAG, 2);
    let mut with = |mask: u32, destinations: &[u64], counters: &[u32]| {
        let mut change = change;
        change.set(SetFteIn::MODIFY_ENABLE_MASK, mask);
        let status = put(&mut b, &change, destinations, counters).status();
        let verdict = walk(&b, TableType::NicRx, &udp(9));
        (status, if verdict.dropped == 1 { vec![] } else { tirs(&verdict) })
    };
    assert_eq!(with(0, &[], &[]), (Status::Ok, vec![(7, 1)]));
    assert_eq!(with(modify_entry::FLOW_TAG, &[], &[]), (Status::Ok, vec![(7, 2)]));
    assert_eq!(with(modify_entry::DESTINATIONS, &[], &[]), (Status::BadParam, vec![(7, 2)]), "to nowhere");
    assert_eq!(
        with(modify_entry::DESTINATIONS, &[to(2, 9), to(2, 10)], &[]),
        (Status::Ok, vec![(9, 2), (10, 2)])
    );
    assert_eq!(with(modify_entry::ACTION, &[], &[]).0, Status::BadParam, "counts into nothing");
    assert_eq!(with(modify_entry::COUNTERS, &[], &[counter]).0, Status::Ok);
    assert_eq!(with(modify_entry::ACTION, &[], &[]), (Status::Ok, vec![]), "dropped");
    assert_eq!(with(1 << 4, &[], &[]).0, Status::BadParam);
    assert_eq!(b.fw.icm.steering.counter(counter).unwrap().packets, 2);
    assert_eq!(
        (b.fw.icm.steering.tir_users(7), b.fw.icm.steering.tir_users(9)),
        (0, 1),
        "a list that is kept"
    );
    let mut wrong = change;
    wrong.context_mut().value_mut().outer_mut().set(MatchLayers::UDP_DPORT, 8);
    assert_eq!(put(&mut b, &wrong, &[], &[]).status(), Status::BadParam, "another value");
    let other = super::tests::group(&mut b, root, 8, 8);
    wrong = change;
    wrong.context_mut().set(FlowContext::GROUP_ID, other);
    assert_eq!(put(&mut b, &wrong, &[], &[]).status(), Status::BadParam, "another group");
    wrong = change;
    wrong.set(SetFteIn::FLOW_INDEX, 1);
    assert_eq!(put(&mut b, &wrong, &[], &[]).status(), Status::BadResource, "no entry");
    wrong = change;
    wrong.set(SetFteIn::OP_MOD, 2);
    assert_eq!(put(&mut b, &wrong, &[], &[]).status(), Status::BadParam);
}

#[test]
fn changes_have_to_be_offered() {
    let mut b = bench();
    b.fw.icm.steering = with_rx(|offer| (offer.modify_entries, offer.log_max_counters) = (false, None));
    let (root, group) = rooted(&mut b);
    let mut set = entry(root, group, 0, 9, action::DROP);
    assert_eq!(put(&mut b, &set, &[], &[]).status(), Status::Ok);
    set.set(SetFteIn::OP_MOD, set_entry::MODIFY);
    assert_eq!(put(&mut b, &set, &[], &[]).status(), Status::BadParam);
    let counter = b.alloc(Opcode::AllocFlowCounter);
    let set = entry(root, group, 1, 9, action::DROP | action::COUNT);
    assert_eq!(put(&mut b, &set, &[], &[counter]).status(), Status::BadParam);
}

/// The lowest place wins, whichever group it is in; when it goes, the next does.
#[test]
fn the_lowest_place_wins() {
    let mut b = bench();
    let (root, by_port) = rooted(&mut b);
    let mut any = new_group(root, 8, 9);
    any.set(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, 0);
    let any = b.put(Opcode::CreateFlowGroup, &any, 16).number();
    let late = group(&mut b, root, 10, 20);
    for (group, place, tir) in [(late, 10, 4), (any, 9, 3), (by_port, 5, 2), (by_port, 2, 1)] {
        let set = entry(root, group, place, 53, action::FORWARD);
        assert_eq!(put(&mut b, &set, &[to(2, tir)], &[]).status(), Status::Ok);
    }
    for (place, tir) in [(2, 1), (5, 2), (9, 3), (10, 4)] {
        assert_eq!(tirs(&walk(&b, TableType::NicRx, &udp(53))), [(tir, 0)]);
        assert_eq!(b.put(Opcode::DeleteFlowTableEntry, &flow(root, 0, place), 16).status(), Status::Ok);
    }
    assert_eq!(walk(&b, TableType::NicRx, &udp(53)).missed, 1);
}

/// Tags of entries on the way, misses, copies to tables and TIRs.
#[test]
fn chains() {
    let mut b = bench();
    let (root, group) = rooted(&mut b);
    let last = table(&mut b, 30);
    let middle = b.put(Opcode::CreateFlowTable, &new_table(20, Some(last)), 16).number();
    let (in_middle, in_last) =
        (super::tests::group(&mut b, middle, 0, 7), super::tests::group(&mut b, last, 0, 7));
    let mut first = entry(root, group, 0, 1, action::FORWARD);
    first.context_mut().set(FlowContext::FLOW_TAG, 5);
    let ways = [to(1, middle), to(2, 40), to(1, last)];
    assert_eq!(put(&mut b, &first, &ways, &[]).status(), Status::Ok);
    let set = entry(middle, in_middle, 0, 2, action::DROP);
    assert_eq!(put(&mut b, &set, &[], &[]).status(), Status::Ok);
    let mut set = entry(last, in_last, 0, 1, action::FORWARD);
    set.context_mut().set(FlowContext::FLOW_TAG, 6);
    assert_eq!(put(&mut b, &set, &[to(2, 41)], &[]).status(), Status::Ok);
    let verdict = walk(&b, TableType::NicRx, &udp(1));
    assert_eq!(tirs(&verdict), [(41, 6), (40, 5), (41, 6)], "in the order of destinations");
    assert_eq!(b.put(Opcode::DestroyFlowTable, &flow(middle, 0, 0), 16).status(), Status::BadResourceState);
    // Levels rise.
    let set = entry(last, in_last, 1, 9, action::FORWARD);
    for table in [root, last] {
        assert_eq!(put(&mut b, &set, &[to(1, table)], &[]).status(), Status::BadParam);
    }
    let mut ignoring = set;
    ignoring.set(SetFteIn::IGNORE_FLOW_LEVEL, 1);
    assert_eq!(put(&mut b, &ignoring, &[to(1, root)], &[]).status(), Status::BadParam, "not offered");
}

/// Copies of copies in a circle of tables: the walk ends.
#[test]
fn circles_end() {
    let mut b = bench();
    b.fw.icm.steering = with_rx(|offer| offer.ignore_level = true);
    let (root, group) = rooted(&mut b);
    let mut set = entry(root, group, 0, 1, action::FORWARD);
    assert_eq!(
        put(&mut b, &set, &[to(1, root)], &[]).status(),
        Status::BadParam,
        "the entry has to ask for it"
    );
    set.set(SetFteIn::IGNORE_FLOW_LEVEL, 1);
    let ways = [to(1, root), to(2, 4), to(1, root)];
    assert_eq!(put(&mut b, &set, &ways, &[]).status(), Status::Ok);
    let verdict = walk(&b, TableType::NicRx, &udp(1));
    assert!(verdict.overrun && verdict.deliveries.len() < crate::steering::MOST_TABLES as usize);
    // A table whose misses lead to itself.
    let first = b.put(Opcode::CreateFlowTable, &new_table(5, Some(root)), 16).number();
    let mut modify = hca_spec::flow::ModifyFlowTableIn::new();
    modify.set(hca_spec::flow::ModifyFlowTableIn::TABLE_ID, root);
    modify.set(hca_spec::flow::ModifyFlowTableIn::MODIFY_FIELD_SELECT, 1);
    *modify.context_mut() = *new_table(0, Some(first)).context();
    assert_eq!(b.put(Opcode::ModifyFlowTable, &modify, 16).status(), Status::Ok);
    let verdict = walk(&b, TableType::NicRx, &udp(2));
    assert!(verdict.overrun && verdict.deliveries.is_empty());
    // Tables without entries cost no look-up; they are counted all the same.
    assert_eq!(b.put(Opcode::DeleteFlowTableEntry, &flow(root, 0, 0), 16).status(), Status::Ok);
    assert!(walk(&b, TableType::NicRx, &udp(2)).overrun);
}

/// An entry with many copies, each of which has as many.
#[test]
fn copies_have_a_bound() {
    let mut b = bench();
    let (root, group) = rooted(&mut b);
    let next = table(&mut b, 20);
    let in_next = super::tests::group(&mut b, next, 0, 7);
    let set = entry(root, group, 0, 1, action::FORWARD);
    assert_eq!(put(&mut b, &set, &[to(1, next); 64], &[]).status(), Status::Ok);
    let set = entry(next, in_next, 0, 1, action::FORWARD);
    assert_eq!(put(&mut b, &set, &[to(2, 1); 64], &[]).status(), Status::Ok);
    let verdict = walk(&b, TableType::NicRx, &udp(1));
    assert_eq!((verdict.deliveries.len(), verdict.overrun), (crate::steering::MOST_COPIES, true));
}

/// A table has a bound of different criteria, and a packet one of look-ups.
#[test]
fn different_criteria_have_a_bound() {
    let mut b = bench();
    b.give_pages(2000);
    let mut tables = Vec::new();
    for level in (10..20).rev() {
        let mut create = new_table(level, tables.last().copied());
        create.context_mut().set(hca_spec::flow::FlowTableContext::LOG_SIZE, 16);
        let table = b.put(Opcode::CreateFlowTable, &create, 16).number();
        tables.push(table);
        let mut made = 0;
        let refused = loop {
            let mut create = new_group(table, made, made);
            create.criteria_mut().outer_mut().set(MatchLayers::UDP_DPORT, made + 1);
            let answer = b.put(Opcode::CreateFlowGroup, &create, 16);
            if answer.status() != Status::Ok {
                break answer.status();
            }
            let group = answer.number();
            let set = entry(table, group, made, 0xffff, action::DROP);
            assert_eq!(put(&mut b, &set, &[], &[]).status(), Status::Ok);
            made += 1;
        };
        assert_eq!((refused, made), (Status::ExceedLimit, crate::steering::MOST_CRITERIA as u32));
        // One with criteria that are there is no further one.
        let mut create = new_group(table, made, made);
        create.criteria_mut().outer_mut().set(MatchLayers::UDP_DPORT, 1);
        assert_eq!(b.put(Opcode::CreateFlowGroup, &create, 16).status(), Status::Ok);
    }
    let mut set = SetFlowTableRootIn::new();
    set.set(SetFlowTableRootIn::TABLE_ID, *tables.last().unwrap());
    assert_eq!(b.put(Opcode::SetFlowTableRoot, &set, 16).status(), Status::Ok);
    let verdict = walk(&b, TableType::NicRx, &udp(0));
    assert!(verdict.overrun, "5120 look-ups");
    assert_eq!(walk(&b, TableType::NicRx, &udp(0xffff)).dropped, 1);
}

#[test]
fn refusals() {
    let mut b = bench();
    let (root, group) = rooted(&mut b);
    let up = table(&mut b, 20);
    let counter = b.alloc(Opcode::AllocFlowCounter);
    let good = entry(root, group, 0, 1, action::FORWARD);
    let bits =
        [0, action::COUNT, 3, 6, 5, 7, 0x10, 0x20, 0x40, 0x80, 0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000]
            .into_iter()
            .chain([0x4000, 0x8000, action::ALLOW]);
    for action in bits {
        let mut set = good;
        let action = if action >= 0x10 { action | action::FORWARD } else { action };
        set.context_mut().set(FlowContext::ACTION, action);
        assert_eq!(
            put(&mut b, &set, &[to(2, 1)], &[counter]).status(),
            Status::BadParam,
            "action {action:#x}"
        );
    }
    for (destinations, counters, status) in [
        (&[][..], &[][..], Status::BadParam),
        (&[to(0, 0)], &[], Status::BadParam),
        (&[to(6, 1)], &[], Status::BadParam),
        (&[to(8, 0)], &[], Status::BadParam),
        (&[to(10, 0)], &[], Status::BadParam),
        (&[to(11, 0)], &[], Status::BadParam),
        (&[to(1, 0x777)], &[], Status::BadResource),
        (&[to(2, 1) | 1 << 30], &[], Status::BadParam),
        (&[to(2, 1) | 1 << 31], &[], Status::BadParam),
        (&[to(2, 1)], &[counter + 1], Status::BadResource),
        (&[to(2, 1)], &[0xffff_ffff], Status::BadResource),
        (&[to(2, 1)], &[counter; 5], Status::BadParam),
        (&[to(2, 1); 65], &[], Status::BadParam),
        (&[to(2, 1); 64], &[], Status::Ok),
    ] {
        assert_eq!(
            put(&mut b, &good, destinations, counters).status(),
            status,
            "{destinations:x?} {counters:x?}"
        );
    }
    let changed = |b: &mut Bench, change: &dyn Fn(&mut SetFteIn)| {
        let mut set = entry(root, group, 1, 1, action::FORWARD);
        change(&mut set);
        put(b, &set, &[to(1, up)], &[]).status()
    };
    assert_eq!(
        changed(&mut b, &|s| _ = s.context_mut().set(FlowContext::EXTENDED_DESTINATION, 1)),
        Status::BadParam
    );
    assert_eq!(
        changed(&mut b, &|s| _ = s.set(SetFteIn::FLOW_INDEX, 8)),
        Status::BadParam,
        "beyond the group"
    );
    assert_eq!(changed(&mut b, &|s| _ = s.set(SetFteIn::OTHER_VPORT, 1)), Status::BadParam);
    assert_eq!(changed(&mut b, &|s| _ = s.set(SetFteIn::TABLE_TYPE, 1)), Status::BadResource);
    assert_eq!(
        changed(&mut b, &|s| _ = s.set(SetFteIn::TABLE_ID, up)),
        Status::BadResource,
        "another's group"
    );
    assert_eq!(changed(&mut b, &|s| _ = s.context_mut().set(FlowContext::FLOW_SOURCE, 1)), Status::Ok);
    let mut short = entry(root, group, 2, 1, action::FORWARD);
    short.context_mut().set(FlowContext::DESTINATION_LIST_SIZE, 2);
    assert_eq!(b.put_list(Opcode::SetFlowTableEntry, &short, &[to(2, 1)]).status(), Status::BadInputLength);
    short.context_mut().set(FlowContext::DESTINATION_LIST_SIZE, 0xff_ffff);
    short.context_mut().set(FlowContext::FLOW_COUNTER_LIST_SIZE, 0xff_ffff);
    assert_eq!(b.put_list(Opcode::SetFlowTableEntry, &short, &[to(2, 1)]).status(), Status::BadInputLength);
}

#[test]
fn entries_of_a_type_have_a_bound() {
    let mut b = bench();
    b.fw.icm.steering = with_rx(|offer| offer.log_max_entries = 1);
    let (root, group) = rooted(&mut b);
    let mut set = |place| put(&mut b, &entry(root, group, place, place, action::DROP), &[], &[]).status();
    assert_eq!([set(0), set(1), set(2)], [Status::Ok, Status::Ok, Status::ExceedLimit]);
}

/// What goes out, and what each type does by itself.
#[test]
fn other_types() {
    let mut b = bench();
    let left = |b: &Bench, kind| {
        let verdict = walk(b, kind, &udp(1));
        (verdict.deliveries.first().map(|delivery| delivery.to), verdict.missed)
    };
    let defaults = [
        (TableType::NicRx, None, 1),
        (TableType::NicTx, Some(Target::Wire), 0),
        (TableType::SnifferRx, None, 0),
        (TableType::SnifferTx, None, 0),
        (TableType::RdmaRx, Some(Target::Transport), 0),
        (TableType::RdmaTx, Some(Target::Wire), 0),
    ];
    for (kind, target, missed) in defaults {
        assert_eq!(left(&b, kind), (target, missed), "{kind:?} without a root");
        let mut create = new_table(1, None);
        create.set(CreateFlowTableIn::TABLE_TYPE, kind as u32);
        let table = b.put(Opcode::CreateFlowTable, &create, 16).number();
        let mut root = SetFlowTableRootIn::new();
        root.set(SetFlowTableRootIn::TABLE_TYPE, kind as u32).set(SetFlowTableRootIn::TABLE_ID, table);
        assert_eq!(b.put(Opcode::SetFlowTableRoot, &root, 16).status(), Status::Ok);
        assert_eq!(left(&b, kind), (target, missed), "{kind:?} with an empty root");
        let mut create = new_group(table, 0, 7);
        create.set(CreateFlowGroupIn::TABLE_TYPE, kind as u32);
        let group = b.put(Opcode::CreateFlowGroup, &create, 16).number();
        let mut attempt = |place, port, action, list: &[u64]| {
            let mut set = entry(table, group, place, port, action);
            set.set(SetFteIn::TABLE_TYPE, kind as u32);
            put(&mut b, &set, list, &[]).status() == Status::Ok
        };
        let sent = matches!(kind, TableType::NicTx | TableType::RdmaTx);
        assert_eq!(attempt(0, 2, action::FORWARD, &[to(destination::TIR, 5)]), !sent, "{kind:?}");
        assert_eq!(attempt(1, 3, action::FORWARD, &[to(destination::UPLINK, 0)]), kind == TableType::NicTx);
        assert_eq!(attempt(2, 1, action::ALLOW, &[]), target.is_some(), "{kind:?}");
        assert!(attempt(3, 4, action::DROP, &[]));
        assert_eq!(left(&b, kind), (target, missed), "{kind:?}, allowed");
    }
}

#[test]
fn groups() {
    let mut b = bench();
    let root = table(&mut b, 10);
    let one = group(&mut b, root, 10, 19);
    let mut create = |change: &dyn Fn(&mut CreateFlowGroupIn)| {
        let mut create = new_group(root, 20, 29);
        change(&mut create);
        b.put(Opcode::CreateFlowGroup, &create, 16).status()
    };
    use CreateFlowGroupIn as G;
    let places =
        |first, last| move |g: &mut G| _ = g.set(G::START_FLOW_INDEX, first).set(G::END_FLOW_INDEX, last);
    for (first, last) in [(5, 4), (127, 128), (u32::MAX, u32::MAX)] {
        assert_eq!(create(&places(first, last)), Status::BadParam, "{first}..={last}");
    }
    for (first, last) in [(0, 10), (12, 13), (19, 30), (0, 50), (10, 19)] {
        assert_eq!(create(&places(first, last)), Status::BadResourceState, "{first}..={last}");
    }
    let fields: [&dyn Fn(&mut G); 7] = [
        &|g| _ = g.set(G::GROUP_TYPE, 1),
        &|g| _ = g.set(G::MATCH_DEFINER_ID, 1),
        &|g| _ = g.criteria_mut().outer_mut().set(MatchLayers::IPV4_IHL, 1),
        &|g| {
            g.set(G::MATCH_CRITERIA_ENABLE, criteria::MISC);
            g.criteria_mut().misc_mut().set(MatchMisc::SOURCE_PORT, 1);
        },
        &|g| {
            g.set(G::MATCH_CRITERIA_ENABLE, criteria::MISC);
            g.criteria_mut().misc_mut().set(MatchMisc::SOURCE_SQN, 1);
        },
        &|g| {
            g.set(G::MATCH_CRITERIA_ENABLE, criteria::MISC_3);
            g.criteria_mut().misc_3_mut().bytes_mut()[0x20] = 1;
        },
        &|g| {
            g.set(G::MATCH_CRITERIA_ENABLE, criteria::MISC_6);
            *g.criteria_mut().bytes_mut().last_mut().unwrap() = 1;
        },
    ];
    for (i, change) in fields.into_iter().enumerate() {
        assert_eq!(create(change), Status::BadParam, "{i}");
    }
    // A part that is not enabled does not count.
    assert_eq!(create(&|g| _ = g.criteria_mut().misc_mut().set(MatchMisc::SOURCE_PORT, 1)), Status::Ok);
    assert_eq!(create(&places(0, 9)), Status::Ok);
    assert_eq!(create(&places(127, 127)), Status::Ok);
    let out = b.put(Opcode::QueryFlowGroup, &flow(root, one, 0), 0x400).output;
    let shown = QueryFlowGroupOut::from_prefix_or_zero(&out);
    assert_eq!(
        (shown.get(QueryFlowGroupOut::START_FLOW_INDEX), shown.get(QueryFlowGroupOut::END_FLOW_INDEX)),
        (10, 19)
    );
    assert_eq!(shown.criteria(), new_group(root, 0, 0).criteria());
    let other = table(&mut b, 10);
    assert_eq!(b.put(Opcode::DestroyFlowGroup, &flow(other, one, 0), 16).status(), Status::BadResource);
    let destroy = |b: &mut Bench| b.put(Opcode::DestroyFlowGroup, &flow(root, one, 0), 16).status();
    assert_eq!((destroy(&mut b), destroy(&mut b)), (Status::Ok, Status::BadResource));
}

/// Users find their own objects, and no others.
#[test]
fn objects_of_users() {
    use hca_spec::cmd::CreateUctxIn;
    use hca_spec::put_be32;
    use zerocopy::{Immutable, IntoBytes};
    fn put_as(
        b: &mut Bench,
        uid: u32,
        op: Opcode,
        input: &(impl IntoBytes + Immutable),
        list: &[u64],
    ) -> Answer {
        let mut bytes = input.as_bytes().to_vec();
        put_be32(&mut bytes, 0, (op as u32) << 16 | uid);
        list.iter().for_each(|element| bytes.extend_from_slice(&element.to_be_bytes()));
        b.raw(&bytes, 0x400)
    }
    let mut b = bench();
    let uids = [0, 1].map(|_| b.put(Opcode::CreateUctx, &CreateUctxIn::new(), 16).number());
    let kernels = table(&mut b, 50);
    let kernels_counter = b.alloc(Opcode::AllocFlowCounter);
    let [one, two] = uids;
    let table = put_as(&mut b, one, Opcode::CreateFlowTable, &new_table(10, None), &[]).number();
    let group = put_as(&mut b, one, Opcode::CreateFlowGroup, &new_group(table, 0, 7), &[]).number();
    let counter = put_as(&mut b, one, Opcode::AllocFlowCounter, &AllocFlowCounterIn::new(), &[]).number();
    let refused = Status::BadResource;
    assert_eq!(put_as(&mut b, two, Opcode::CreateFlowGroup, &new_group(table, 8, 9), &[]).status(), refused);
    assert_eq!(
        put_as(&mut b, two, Opcode::CreateFlowGroup, &new_group(kernels, 0, 1), &[]).status(),
        refused
    );
    assert_eq!(
        put_as(&mut b, two, Opcode::CreateFlowTable, &new_table(1, Some(table)), &[]).status(),
        refused
    );
    let mut set = entry(table, group, 0, 1, action::FORWARD | action::COUNT);
    set.context_mut().set(FlowContext::DESTINATION_LIST_SIZE, 1).set(FlowContext::FLOW_COUNTER_LIST_SIZE, 1);
    let with = |table: u32, counter: u32| [to(1, table), u64::from(counter) << 32];
    assert_eq!(
        put_as(&mut b, two, Opcode::SetFlowTableEntry, &set, &with(kernels, counter)).status(),
        refused
    );
    assert_eq!(
        put_as(&mut b, one, Opcode::SetFlowTableEntry, &set, &with(kernels, counter)).status(),
        refused
    );
    let own = put_as(&mut b, one, Opcode::CreateFlowTable, &new_table(20, None), &[]).number();
    let list = with(own, kernels_counter);
    assert_eq!(put_as(&mut b, one, Opcode::SetFlowTableEntry, &set, &list).status(), refused);
    assert_eq!(
        put_as(&mut b, one, Opcode::SetFlowTableEntry, &set, &with(own, counter)).status(),
        Status::Ok
    );
    for op in [Opcode::DeleteFlowTableEntry, Opcode::QueryFlowTableEntry, Opcode::QueryFlowTable] {
        assert_eq!(put_as(&mut b, two, op, &flow(table, group, 0), &[]).status(), refused, "{op:?}");
    }
    let mut root = SetFlowTableRootIn::new();
    root.set(SetFlowTableRootIn::TABLE_ID, table);
    assert_eq!(put_as(&mut b, one, Opcode::SetFlowTableRoot, &root, &[]).status(), Status::BadOp);
    assert_eq!(
        put_as(&mut b, one, Opcode::DeleteFlowTableEntry, &flow(table, 0, 0), &[]).status(),
        Status::Ok
    );
    assert_eq!(put_as(&mut b, two, Opcode::DestroyFlowGroup, &flow(table, group, 0), &[]).status(), refused);
    assert_eq!(
        put_as(&mut b, one, Opcode::DestroyFlowGroup, &flow(table, group, 0), &[]).status(),
        Status::Ok
    );
}

/// The offers of all types are asked, not one's.
#[test]
fn each_type_has_its_offer() {
    let mut b = bench();
    let only = TypeOffer { max_level: 3, ..Offer::ethernet().nic_rx.unwrap() };
    b.fw.icm.steering = Steering::new(Offer { nic_tx: Some(only), nic_rx: None, ..Offer::ethernet() });
    let mut create = new_table(3, None);
    assert_eq!(b.put(Opcode::CreateFlowTable, &create, 16).status(), Status::BadParam);
    create.set(CreateFlowTableIn::TABLE_TYPE, 1);
    assert_eq!(b.put(Opcode::CreateFlowTable, &create, 16).status(), Status::Ok);
    create = new_table(4, None);
    create.set(CreateFlowTableIn::TABLE_TYPE, 1);
    assert_eq!(b.put(Opcode::CreateFlowTable, &create, 16).status(), Status::BadParam);
}

/// A list that no entry could have is refused for its length, before what is in it is looked at.
#[test]
fn lists_have_a_longest() {
    let mut b = bench();
    let (root, group) = rooted(&mut b);
    let set = entry(root, group, 0, 7, action::FORWARD | action::COUNT);
    for (destinations, counters) in [(MOST_LISTED + 1, 1), (1, MOST_LISTED + 1)] {
        // There is no such type of destination, and no such counter.
        let answer = put(&mut b, &set, &vec![to(0xff, 1); destinations], &vec![0xffff; counters]);
        assert_eq!(answer.status(), Status::BadParam);
        let refusal = b.fw.take_refusal().expect("why");
        assert_eq!(refusal.field, "destination_list_size, flow_counter_list_size");
    }
}
