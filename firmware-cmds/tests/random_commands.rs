//! Rubbish in, status out: seeded streams of random, damaged and well-formed commands. Nothing may
//! panic, every answer keeps to its bounds, and a refusal changes nothing.

use std::collections::{HashMap, HashSet};

use hca_firmware::commands::{Action, Command, Fixture, TABLE, find};
use hca_firmware::object::Kind;
use hca_firmware::{Config, Effect, Execution, Firmware, Personality, PortKind, RqState, Snapshot, State};
use hca_spec::cmd::{CreateQpIn, FunctionIn, ObjectIn, PAGES_INIT};
use hca_spec::command::Opcode;
use hca_spec::dct::{DctState, Dctc};
use hca_spec::layout::Layout;
use hca_spec::qpc::{QpState, Qpc};
use hca_spec::{be32, put_be32};

/// SplitMix64: small, seeded, good enough to be rubbish.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Numbers of objects that were made, so that commands often hit something.
type Made = HashMap<Kind, Vec<u32>>;

fn any(rng: &mut Rng, made: &Made, kind: Kind) -> u32 {
    match made.get(&kind) {
        Some(numbers) if !numbers.is_empty() && !rng.one_in(20) => rng.pick(numbers),
        _ => rng.below(0x1000) as u32,
    }
}

/// Gives a field of a structure, or of one within it, a value at its bounds.
fn bound(rng: &mut Rng, layout: &'static Layout, at: usize, input: &mut [u8]) {
    let inner: Vec<_> = layout.views.iter().filter_map(|v| Some((v.layout()?, at + v.offset))).collect();
    if !inner.is_empty() && (layout.fields.is_empty() || rng.one_in(2)) {
        let (layout, at) = rng.pick(&inner);
        return bound(rng, layout, at, input);
    }
    if layout.fields.is_empty() {
        return;
    }
    let field = rng.pick(&layout.fields.iter().collect::<Vec<_>>());
    let (place, long) = (at + field.offset, field.hi == 63);
    let all = if long { u64::MAX } else { u64::from(u32::MAX >> (31 - field.hi + field.lo)) };
    let value = rng.pick(&[0, 1, all >> 1, all - 1, all]);
    // The command stays what it is.
    if place < 4 || place + if long { 8 } else { 4 } > input.len() {
        return;
    }
    match long {
        true => input[place..place + 8].copy_from_slice(&value.to_be_bytes()),
        false => {
            let mask = (all as u32) << field.lo;
            put_be32(input, place, be32(input, place) & !mask | (value as u32) << field.lo);
        }
    }
}

/// A valid input of some command, on objects that are mostly there.
fn command(rng: &mut Rng, made: &Made) -> Vec<u8> {
    let command = &TABLE[rng.below(TABLE.len() as u64) as usize];
    let page = rng.below(1 << 40) << 12;
    let mut fixture = Fixture::new(0x1000, 0x8000, page);
    for kind in Kind::ALL {
        fixture.set(kind, any(rng, made, kind));
    }
    (fixture.datagram_qp, fixture.peer_qp) = (any(rng, made, Kind::Qp), any(rng, made, Kind::Qp));
    let mut input = command.template(&fixture);
    // Other kinds of queue pairs than the template's.
    if command.object.is_some_and(|object| object.kind == Kind::Qp) && input.len() >= CreateQpIn::SIZE {
        let mut create = CreateQpIn::from_prefix_or_zero(&input);
        create.qpc_mut().set(Qpc::ST, rng.pick(&[0, 1, 2, 3, 5, 7, 8, 12]));
        input[..CreateQpIn::SIZE].copy_from_slice(create.bytes());
    }
    if rng.one_in(3) {
        // One bit of the fields, which lie in the first bytes of most inputs.
        let at = 4 + rng.below(input.len().min(0x60) as u64 - 4) as usize;
        input[at] ^= 1 << rng.below(8);
    }
    if rng.one_in(3) {
        let (layout, at) = rng.pick(&command.layouts().collect::<Vec<_>>());
        bound(rng, layout, at, &mut input);
    }
    if rng.one_in(4) {
        let uid = any(rng, made, Kind::UserContext);
        put_be32(&mut input, 0, (command.opcode as u32) << 16 | uid);
    }
    input
}

/// Changes of the same queue pairs in any order: most are refused, and in time all are executed.
fn changes(rng: &mut Rng, made: &Made) -> Vec<Vec<u8>> {
    // Those that name no more than the queue pair take it to RESET or to ERROR.
    let says_more = |c: &&Command| {
        c.input > ObjectIn::SIZE && c.object.is_some_and(|o| (o.kind, o.action) == (Kind::Qp, Action::Change))
    };
    let rows: Vec<&Command> = TABLE.iter().filter(says_more).collect();
    let mut fixture = Fixture::default();
    for kind in Kind::ALL {
        fixture.set(kind, any(rng, made, kind));
    }
    fixture.datagram_qp = any(rng, made, Kind::Qp);
    (0..60).map(|_| rng.pick(&rows).template(&fixture)).collect()
}

/// Bits flipped, words replaced, ends cut off.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len().max(1) as u64) as usize;
        match rng.below(3) {
            0 => {
                let bit = 1 << rng.below(8);
                bytes[at] ^= bit;
            }
            1 => {
                let value = rng.pick(&[0, 1, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX]);
                put_be32(bytes, at & !3, value);
            }
            _ => bytes.truncate((at & !3).max(1)),
        }
    }
}

/// An adapter after INIT_HCA, brought there by the templates; adds the commands to `executed`.
fn power_on(port_kind: PortKind, executed: &mut HashSet<Opcode>) -> Firmware {
    let personality = Personality::named("connectx6dx").expect("the one with the most commands");
    let mut fw = Firmware::new(Config {
        personality,
        blueflame: true,
        memory_page_faults: true,
        port_kind,
        ..Config::default()
    });
    let mut run = |input: &[u8]| {
        let Execution::Done(out) = fw.execute(input, 0x1010, &mut Vec::new()) else { panic!("waits") };
        assert_eq!(out[0], 0);
        executed.extend(Opcode::from_u16((be32(input, 0) >> 16) as u16));
        out
    };
    let template = |op: Opcode| find(op).unwrap().template(&Fixture::default());
    run(&template(Opcode::SetIssi));
    run(&template(Opcode::EnableHca));
    run(&template(Opcode::SetHcaCap));
    let mut query = template(Opcode::QueryPages);
    put_be32(&mut query, 4, PAGES_INIT);
    let pages = be32(&run(&query), 0xc);
    let mut give = template(Opcode::ManagePages);
    give.truncate(FunctionIn::SIZE);
    put_be32(&mut give, 0xc, pages);
    (0..u64::from(pages)).for_each(|i| give.extend_from_slice(&(i << 12).to_be_bytes()));
    run(&give);
    run(&template(Opcode::InitHca));
    fw
}

/// What the hardware does by itself: DC targets drain, send queues fail now and then.
fn hardware(rng: &mut Rng, fw: &mut Firmware, effects: &[Effect]) {
    for effect in effects {
        match effect {
            Effect::DctDraining(dctn) => {
                if let Some(dct) = fw.icm.dcts.get_mut(dctn.0) {
                    dct.ctx.set(Dctc::STATE, DctState::Drained as u32);
                }
            }
            Effect::QpModified { qpn, to, .. } => {
                let state = match to {
                    QpState::Rts if rng.one_in(4) => QpState::SqError,
                    QpState::SqDraining => QpState::SqDrained,
                    _ => continue,
                };
                if let Some(qp) = fw.icm.qps.get_mut(qpn.0) {
                    qp.ctx.set(Qpc::STATE, state as u32);
                }
            }
            Effect::RqModified { rqn, to: RqState::Ready, .. } if rng.one_in(4) => {
                if let Some(rq) = fw.icm.rqs.get_mut(rqn.0) {
                    rq.state = RqState::Error;
                }
            }
            _ => {}
        }
    }
}

/// Streams take turns.
fn kind_of(seed: u64) -> PortKind {
    if seed.is_multiple_of(2) { PortKind::InfiniBand } else { PortKind::Ethernet }
}

/// Runs a stream of commands; adds those that were executed, and tells how many.
fn stream(
    port_kind: PortKind,
    seed: u64,
    commands: usize,
    rubbish: bool,
    executed: &mut HashSet<Opcode>,
) -> usize {
    let mut rng = Rng(seed);
    let mut fw = power_on(port_kind, executed);
    let (mut made, mut next) = (Made::default(), Vec::new());
    let mut count = 0;
    for _ in 0..commands {
        if fw.state() != State::Initialized {
            fw = power_on(port_kind, executed);
            made = Made::default();
        }
        if rng.one_in(100) {
            next = changes(&mut rng, &made);
        }
        let mut input = next.pop().unwrap_or_else(|| command(&mut rng, &made));
        let teardown = matches!(be32(&input, 0) >> 16, 0x102..=0x105);
        if teardown && !rng.one_in(500) {
            continue;
        }
        if rubbish {
            damage(&mut rng, &mut input);
        }
        let room = if rng.one_in(8) { rng.below(0x1100) as usize } else { 0x1010 };
        let mut effects = Vec::new();
        let before = fw.resources().now;
        let Execution::Done(output) = fw.execute(&input, room, &mut effects) else { continue };
        hardware(&mut rng, &mut fw, &effects);
        assert!(output.len() <= room, "{} bytes into {room}", output.len());
        let op = Opcode::from_u16((be32(&input, 0) >> 16) as u16);
        // Without room nobody is told what came of it.
        let Some(status) = output.first() else { continue };
        if *status != 0 {
            assert!(room < 8 || be32(&output, 4) != 0, "a refusal has a syndrome");
            assert_eq!(fw.resources().now, before, "a refusal changes nothing: {input:x?}");
            let asks = |e: &Effect| matches!(e, Effect::PageRequest { .. });
            assert!(effects.iter().all(asks), "a refusal has no effects: {effects:?}");
            continue;
        }
        count += 1;
        executed.extend(op);
        if let Some(command) = op.and_then(find)
            && let Some(object) = command.object
        {
            made.entry(object.kind).or_default().extend(command.made(&output));
        }
    }
    for op in [Opcode::TeardownHca, Opcode::DisableHca] {
        let input = find(op).unwrap().template(&Fixture::default());
        if let Execution::Done(output) = fw.execute(&input, 0x10, &mut Vec::new())
            && output[0] == 0
        {
            executed.insert(op);
        }
    }
    assert_eq!(fw.resources().now, Snapshot::default(), "objects survive DISABLE_HCA");
    count
}

/// Between them, the streams execute every command that can be executed.
#[test]
fn well_formed_commands_in_any_order() {
    let mut executed = HashSet::new();
    for seed in 0..80 {
        let count = stream(kind_of(seed), seed, 4_200, false, &mut executed);
        assert!(count > 300, "seed {seed}: the stream reaches the commands ({count} executed)");
    }
    let never = TABLE.iter().filter(|c| c.refused().is_none() && !executed.contains(&c.opcode));
    assert_eq!(never.map(|c| c.name).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn damaged_commands() {
    for seed in 100..140 {
        stream(kind_of(seed), seed, 4_000, true, &mut HashSet::new());
    }
}

#[test]
fn noise() {
    let mut rng = Rng(7);
    let mut fw = power_on(PortKind::Ethernet, &mut HashSet::new());
    let mut refused = 0;
    for _ in 0..100_000 {
        let len = rng.below(0x180) as usize;
        let mut input: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        // A known opcode in every other one: noise alone would hardly ever hit one.
        if rng.one_in(2) {
            let op = rng.pick(Opcode::ALL);
            if !matches!(op, Opcode::TeardownHca | Opcode::DisableHca) {
                put_be32(&mut input, 0, (op as u32) << 16);
            }
        }
        let room = rng.below(0x200) as usize;
        if let Execution::Done(output) = fw.execute(&input, room, &mut Vec::new()) {
            assert!(output.len() <= room);
            refused += usize::from(output.first().is_some_and(|status| *status != 0));
        }
    }
    assert!(refused > 10_000);
}

#[test]
fn every_length_of_every_command() {
    let mut fw = power_on(PortKind::Ethernet, &mut HashSet::new());
    for op in Opcode::ALL.iter().filter(|op| !matches!(op, Opcode::TeardownHca | Opcode::DisableHca)) {
        for len in (0..0x120).chain([0x210, 0x1010, 0x1100]) {
            let mut input = vec![0xff; len];
            put_be32(&mut input, 0, (*op as u32) << 16);
            for room in [0, 4, 8, 15, 16, 0x110] {
                if let Execution::Done(output) = fw.execute(&input, room, &mut Vec::new()) {
                    assert!(output.len() <= room);
                }
            }
        }
    }
}
