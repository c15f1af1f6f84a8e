//! How fast flow steering is: `cargo bench -p hca-tests --bench steering`.
//!
//! - `look-up`: a packet of UDP through the tables of a driver's interface (VLAN, layer 2, transport, with the rules that it
//!   has when it is up) and through one table with so many rules, each for another address and port: packets per second.
//! - `rule`: such a rule added and removed again, by commands, in a table with so many others.
//!
//! Both should be the same with one rule and with a million.

#![allow(missing_docs, reason = "criterion_group makes a public function")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use hca_firmware::commands::{Fixture, find, maker};
use hca_firmware::object::Kind;
use hca_firmware::steering::{FlowKey, Frame, Ip, L4, Layers, Sight, Verdict, VxlanPorts};
use hca_firmware::{Config, Execution, Firmware, PortKind};
use hca_spec::be32;
use hca_spec::cmd::FunctionIn;
use hca_spec::command::{InHeader, Opcode};
use hca_spec::flow::{
    CreateFlowGroupIn, CreateFlowTableIn, FlowContext, FlowIn, FlowTableContext, MatchLayers, MatchParam,
    SetFlowTableRootIn, SetFteIn, TableType, action, criteria, destination,
};
use hca_spec::put_be32;

/// A firmware that executes commands which must succeed, and the TIR that all rules lead to.
struct Adapter(Firmware, u32);

impl Adapter {
    /// One with flow tables and pages for a million entries.
    fn new() -> Self {
        const PAGES: u64 = 200_000;
        let mut adapter =
            Self(Firmware::new(Config { port_kind: PortKind::Ethernet, ..Config::default() }), 0);
        let template = |opcode| find(opcode).expect("a command").template(&Fixture::default());
        adapter.run(template(Opcode::EnableHca));
        let pages: Vec<u64> = (0..PAGES).map(|page| page << 12).collect();
        for some in pages.chunks(10_000) {
            let mut give = template(Opcode::ManagePages);
            give.truncate(FunctionIn::SIZE);
            put_be32(&mut give, 0xc, some.len() as u32);
            some.iter().for_each(|page| give.extend_from_slice(&page.to_be_bytes()));
            adapter.run(give);
        }
        adapter.run(template(Opcode::InitHca));
        let mut fixture = Fixture::new(PAGES << 12, (PAGES + 16) << 12, 0);
        for kind in
            [Kind::Uar, Kind::Eq, Kind::Cq, Kind::Pd, Kind::TransportDomain, Kind::Rq, Kind::Rqt, Kind::Tir]
        {
            let number = adapter.run(maker(kind).expect("a command").template(&fixture));
            fixture.set(kind, number);
        }
        adapter.1 = fixture.number(Kind::Tir);
        adapter
    }

    fn run(&mut self, input: Vec<u8>) -> u32 {
        let Execution::Done(out) = self.0.execute(&input, 0x400, &mut Vec::new()) else { panic!("waits") };
        assert_eq!(out[0], 0, "{:?}", self.0.take_refusal());
        be32(&out, 8) & 0xff_ffff
    }

    fn put(&mut self, opcode: Opcode, input: &[u8], list: &[u64]) -> u32 {
        let mut bytes = input.to_vec();
        put_be32(&mut bytes, InHeader::OPCODE.offset(), (opcode as u32) << 16);
        list.iter().for_each(|element| bytes.extend_from_slice(&element.to_be_bytes()));
        self.run(bytes)
    }

    fn table(&mut self, level: u32, log_size: u32) -> u32 {
        let mut create = CreateFlowTableIn::new();
        let context = create.context_mut();
        context.set(FlowTableContext::LEVEL, level).set(FlowTableContext::LOG_SIZE, log_size);
        self.put(Opcode::CreateFlowTable, create.bytes(), &[])
    }

    fn group(&mut self, table: u32, first: u32, last: u32, mask: impl Fn(&mut MatchParam)) -> u32 {
        let mut create = CreateFlowGroupIn::new();
        create
            .set(CreateFlowGroupIn::TABLE_ID, table)
            .set(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, criteria::OUTER);
        create.set(CreateFlowGroupIn::START_FLOW_INDEX, first).set(CreateFlowGroupIn::END_FLOW_INDEX, last);
        mask(create.criteria_mut());
        self.put(Opcode::CreateFlowGroup, create.bytes(), &[])
    }

    fn forward(
        &mut self,
        table: u32,
        group: u32,
        place: u32,
        value: impl Fn(&mut MatchParam),
        kind: u32,
        to: u32,
    ) {
        let mut set = SetFteIn::new();
        set.set(SetFteIn::TABLE_ID, table).set(SetFteIn::FLOW_INDEX, place);
        let context = set.context_mut();
        context.set(FlowContext::GROUP_ID, group).set(FlowContext::ACTION, action::FORWARD);
        context.set(FlowContext::DESTINATION_LIST_SIZE, 1);
        value(context.value_mut());
        self.put(Opcode::SetFlowTableEntry, set.bytes(), &[u64::from(kind) << 56 | u64::from(to) << 32]);
    }

    fn root(&mut self, table: u32) {
        let mut set = SetFlowTableRootIn::new();
        set.set(SetFlowTableRootIn::TABLE_ID, table);
        self.put(Opcode::SetFlowTableRoot, set.bytes(), &[]);
    }
}

/// The mask of rules for a flow, or the values of the rule of that number.
fn flow(param: &mut MatchParam, of: Option<u32>) {
    use MatchLayers as L;
    let layers = param.outer_mut();
    let value = |value: u32| of.map_or(u32::MAX, |_| value);
    let number = of.unwrap_or(u32::MAX);
    layers
        .set(L::IP_VERSION, value(4))
        .set(L::IP_PROTOCOL, value(17))
        .set(L::UDP_DPORT, value(number & 0xff));
    layers.set(L::SRC_31_0, number).set(L::DST_31_0, value(9));
}

/// A packet of the rule of that number.
fn packet(number: u32) -> FlowKey {
    let mut ip = Ip { version: 4, protocol: 17, ttl: 64, ..Ip::default() };
    ip.source[12..].copy_from_slice(&number.to_be_bytes());
    ip.destination[15] = 9;
    let l4 = L4::Udp { source: 1, destination: (number & 0xff) as u16 };
    let outer = Layers { dmac: [2, 0, 0, 0, 0, 1], ethertype: 0x800, ip: Some(ip), l4, ..Layers::default() };
    FlowKey { outer, ..FlowKey::default() }
}

/// A table with so many rules for flows; its group.
fn rules(adapter: &mut Adapter, count: u32) -> (u32, u32) {
    let table = adapter.table(1, 21);
    let group = adapter.group(table, 0, (1 << 21) - 1, |mask| flow(mask, None));
    for number in 0..count {
        let tir = adapter.1;
        adapter.forward(table, group, number, |value| flow(value, Some(number)), destination::TIR, tir);
    }
    (table, group)
}

/// The tables of an interface: VLAN, layer 2, transport; the root of received frames.
fn interface(adapter: &mut Adapter) {
    use MatchLayers as L;
    let tir = adapter.1;
    let transport = adapter.table(57, 7);
    let both = adapter.group(transport, 0, 13, |mask| {
        _ = mask.outer_mut().set(L::IP_VERSION, 0xf).set(L::IP_PROTOCOL, 0xff);
    });
    for (place, protocol) in [6, 17, 50, 51].into_iter().enumerate() {
        for (i, version) in [4, 6].into_iter().enumerate() {
            let value = |value: &mut MatchParam| {
                _ = value.outer_mut().set(L::IP_VERSION, version).set(L::IP_PROTOCOL, protocol);
            };
            adapter.forward(transport, both, (2 * place + i) as u32, value, destination::TIR, tir);
        }
    }
    let version = adapter.group(transport, 14, 15, |mask| _ = mask.outer_mut().set(L::IP_VERSION, 0xf));
    for (place, number) in [(14, 4), (15, 6)] {
        let value = |value: &mut MatchParam| _ = value.outer_mut().set(L::IP_VERSION, number);
        adapter.forward(transport, version, place, value, destination::TIR, tir);
    }
    let any = adapter.group(transport, 16, 16, |_| ());
    adapter.forward(transport, any, 16, |_| (), destination::TIR, tir);
    let addresses = adapter.table(56, 16);
    let full = adapter.group(addresses, 0, 32767, |mask| {
        _ = mask.outer_mut().set(L::DMAC_47_16, u32::MAX).set(L::DMAC_15_0, 0xffff);
    });
    for (place, (high, low)) in
        [(u32::MAX, 0xffff), (0x0200_0000, 1), (0x3333_0000, 1)].into_iter().enumerate()
    {
        let value = |value: &mut MatchParam| {
            _ = value.outer_mut().set(L::DMAC_47_16, high).set(L::DMAC_15_0, low);
        };
        adapter.forward(addresses, full, place as u32, value, destination::FLOW_TABLE, transport);
    }
    let vlans = adapter.table(55, 16);
    let untagged = adapter.group(vlans, 8192, 8193, |mask| _ = mask.outer_mut().set(L::CVLAN_TAG, 1));
    adapter.forward(vlans, untagged, 8192, |_| (), destination::FLOW_TABLE, addresses);
    adapter.root(vlans);
}

/// Packets of a batch.
const PACKETS: u32 = 1024;

fn walks(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    name: &str,
    fw: &Firmware,
    count: u32,
) {
    let key = |i: u32| packet(i.wrapping_mul(0x9e37_79b9) % count);
    let packets: Vec<Sight> = (0..PACKETS).map(|i| Sight { key: key(i), ..Sight::default() }).collect();
    let mut verdict = Verdict::default();
    group.throughput(Throughput::Elements(PACKETS.into()));
    group.bench_function(name, |b| {
        b.iter(|| {
            for sight in &packets {
                let frame = Frame {
                    bytes: &[0; 60],
                    sight: black_box(sight),
                    parser: |_, _| Sight::default(),
                    vxlan: VxlanPorts::default(),
                    now: 0,
                };
                fw.icm.steering.walk(TableType::NicRx, &frame, &mut verdict);
                assert_eq!(verdict.deliveries.len(), 1);
            }
        });
    });
}

fn look_up(c: &mut Criterion) {
    let mut group = c.benchmark_group("look-up");
    let mut adapter = Adapter::new();
    interface(&mut adapter);
    walks(&mut group, "an interface's tables", &adapter.0, PACKETS);
    for count in COUNTS {
        let mut adapter = Adapter::new();
        let (table, _) = rules(&mut adapter, count);
        adapter.root(table);
        walks(&mut group, &format!("{count} rules"), &adapter.0, count);
    }
    group.finish();
}

const COUNTS: [u32; 3] = [1, 1_000, 1_000_000];

fn rule(c: &mut Criterion) {
    let mut group = c.benchmark_group("rule");
    group.throughput(Throughput::Elements(1));
    for count in COUNTS {
        let mut adapter = Adapter::new();
        let (table, of) = rules(&mut adapter, count);
        let place = count;
        let mut gone = FlowIn::new();
        gone.set(FlowIn::TABLE_ID, table).set(FlowIn::FLOW_INDEX, place);
        let adapter = std::cell::RefCell::new(adapter);
        group.bench_function(format!("added and removed beside {count}"), |b| {
            b.iter_batched(
                || (),
                |()| {
                    let mut adapter = adapter.borrow_mut();
                    let tir = adapter.1;
                    adapter.forward(
                        table,
                        of,
                        place,
                        |value| flow(value, Some(place)),
                        destination::TIR,
                        tir,
                    );
                    adapter.put(Opcode::DeleteFlowTableEntry, gone.bytes(), &[]);
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn quick() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
}

criterion_group! { name = benches; config = quick(); targets = look_up, rule }
criterion_main!(benches);
