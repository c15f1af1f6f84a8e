use hca_spec::command::{InHeader, Status};
use hca_spec::dct::{DctState, Dctc};
use hca_spec::qpc::{Qpc, ServiceType};

use super::*;
use crate::commands::fixture::Fixture;
use crate::commands::row::{Action, Call, Outcome, Right};
use crate::commands::testing::{Answer, Bench};
use crate::effect::Effect;
use crate::personality::{Personality, PortKind};
use crate::profile::Config;

/// Kinds in an order in which each names only those before it.
const ORDER: [Kind; 28] = [
    Uar,
    Eq,
    Cq,
    Pd,
    Xrcd,
    TransportDomain,
    QCounter,
    Mkey,
    Psv,
    Srq,
    XrcSrq,
    Rmp,
    Xrq,
    Dct,
    Qp,
    Tis,
    Sq,
    Rq,
    Rqt,
    Tir,
    UserContext,
    Umem,
    GeneralObject,
    FlowTable,
    FlowGroup,
    FlowCounter,
    ReformatContext,
    HeaderContext,
];

fn row(opcode: Opcode) -> &'static Command {
    find(opcode).unwrap()
}

const LAYERS: [PortKind; 2] = [PortKind::InfiniBand, PortKind::Ethernet];

/// An adapter that has every command of its link layer, in that state.
fn bench(port_kind: PortKind, state: State) -> Bench {
    let personality = Personality::named("connectx6dx").expect("the one with the most commands");
    let mut b = Bench::with(Config {
        personality,
        blueflame: true,
        memory_page_faults: true,
        port_kind,
        ..Config::default()
    });
    if state >= State::Enabled {
        b.ok(Opcode::EnableHca, 0);
        // The list of a queue with tag matching is charged as if it was full.
        b.give_pages(b.fw.pages.init() + 256);
    }
    if state == State::Initialized {
        b.ok(Opcode::InitHca, 0);
    }
    b
}

fn run(b: &mut Bench, input: &[u8]) -> Answer {
    b.raw(input, 0x2000)
}

fn make(b: &mut Bench, fixture: &Fixture, kind: Kind) -> u32 {
    let command = maker(kind).unwrap();
    let answer = run(b, &command.template(fixture));
    assert_eq!(answer.status(), Status::Ok, "{}", command.name);
    command.made(&answer.output).next().expect("a number")
}

/// An object of each kind, if the adapter is initialized.
fn populate(b: &mut Bench) -> Fixture {
    let mut fixture = Fixture::new(0x10_0000, 0x20_0000, 0x4000_0000);
    if b.fw.state() != State::Initialized {
        return fixture;
    }
    for kind in ORDER {
        if !maker(kind).is_some_and(|command| (command.offered)(&b.fw)) {
            continue;
        }
        let number = make(b, &fixture, kind);
        fixture.set(kind, number);
    }
    fixture.object_types = b.fw.general_max.get(hca_spec::caps::General::GENERAL_OBJ_TYPES);
    for input in row(Opcode::CreateGeneralObject).templates(&fixture).into_iter().skip(1) {
        let kind = GeneralObjectIn::from_prefix_or_zero(&input).get(GeneralObjectIn::OBJ_TYPE);
        let answer = run(b, &input);
        assert_eq!(answer.status(), Status::Ok, "general object of type {kind:#x}");
        fixture.typed_objects.push((kind, answer.number()));
    }
    fixture.peer_qp = fixture.number(Qp);
    let mut datagram = CreateQpIn::from_prefix_or_zero(&row(Opcode::CreateQp).template(&fixture));
    datagram.qpc_mut().set(Qpc::ST, ServiceType::Ud as u32);
    fixture.datagram_qp = b.put_list(Opcode::CreateQp, &datagram, &[0x10_0000, 0x10_1000]).number();
    fixture
}

/// The commands of an adapter with that link layer.
fn offered(port_kind: PortKind) -> impl Iterator<Item = &'static Command> {
    let b = bench(port_kind, State::Disabled);
    TABLE.iter().filter(move |command| (command.offered)(&b.fw))
}

/// Every row is of an adapter with one of the link layers, and on the others it is BAD_OP.
#[test]
fn every_row_is_offered() {
    for command in TABLE {
        let mut with = 0;
        for kind in LAYERS {
            let mut b = bench(kind, State::Initialized);
            let fixture = populate(&mut b);
            if (command.offered)(&b.fw) {
                with += 1;
            } else {
                let answer = run(&mut b, &command.template(&fixture));
                assert_eq!(answer.status(), Status::BadOp, "{} on {kind:?}", command.name);
            }
        }
        assert!(with > 0, "{}", command.name);
    }
}

/// Brings the fixture's objects into the state in which the command is legal, and gives a command that destroys something
/// an object that nothing uses.
fn prepare(b: &mut Bench, fixture: &mut Fixture, command: &Command) {
    if matches!(command.opcode, Opcode::CreateFlowGroup | Opcode::DestroyFlowGroup) {
        // Groups of a table have no place in common.
        let table = make(b, fixture, FlowTable);
        fixture.set(FlowTable, table);
    }
    if let Some(object) = command.object
        && object.action == Action::Destroy
    {
        let idle = make(b, fixture, object.kind);
        fixture.set(object.kind, idle);
    }
    match command.opcode {
        Opcode::DestroyDct => {
            // The hardware says so.
            let dct = b.fw.icm.dcts.get_mut(fixture.number(Dct)).unwrap();
            dct.ctx.set(Dctc::STATE, DctState::Drained as u32);
        }
        Opcode::QueryFlowTableEntry | Opcode::DeleteFlowTableEntry => {
            let set = row(Opcode::SetFlowTableEntry).template(fixture);
            assert_eq!(run(b, &set).status(), Status::Ok);
        }
        Opcode::DeallocMemic | Opcode::ModifyMemic => {
            let alloc = row(Opcode::AllocMemic).template(fixture);
            assert_eq!(run(b, &alloc).status(), Status::Ok);
        }
        Opcode::DetachFromMcg => {
            let attach = row(Opcode::AttachToMcg).template(fixture);
            assert_eq!(run(b, &attach).status(), Status::Ok);
        }
        opcode => {
            let ours: fn(&mut Firmware, &Call<'_>, &mut Vec<Effect>) -> Outcome = transition::modify;
            if matches!(command.handler, WithEffects(handler) if std::ptr::fn_addr_eq(handler, ours)) {
                let from = transition::transition(opcode).0[0];
                let qp = b.fw.icm.qps.get_mut(fixture.number(Qp)).unwrap();
                qp.ctx.set(Qpc::STATE, from as u32);
            }
        }
    }
}

fn counts(b: &Bench) -> Vec<(Kind, u32)> {
    let tables = Kind::ALL.into_iter().filter(|kind| kind.numbered_as() == *kind);
    tables.map(|kind| (kind, b.fw.icm.objects(kind))).collect()
}

#[test]
fn every_opcode_has_its_row_or_is_absent() {
    assert!(TABLE.is_sorted_by_key(|command| command.opcode as u16));
    let without: Vec<Opcode> = Opcode::ALL.iter().copied().filter(|opcode| find(*opcode).is_none()).collect();
    assert_eq!(without, [Opcode::GenEqe], "what the module's documentation says");
    let mut b = bench(PortKind::InfiniBand, State::Initialized);
    for opcode in without {
        assert_eq!(b.object_into(opcode, 0, 0x2000).status(), Status::BadOp, "{opcode:?}");
    }
    for command in TABLE {
        assert!(find(command.opcode).is_some_and(|found| std::ptr::eq(found, command)), "{}", command.name);
    }
}

/// Each template succeeds in the least state of its row, and does to objects and ICM what the row says; or is refused,
/// for the reason that the row gives.
#[test]
fn every_template_does_what_its_row_says() {
    for (kind, command) in LAYERS.into_iter().flat_map(|kind| offered(kind).map(move |c| (kind, c))) {
        let mut variant = 0;
        while template_does_what_its_row_says(kind, command, variant) {
            variant += 1;
        }
    }
}

/// Of several templates, that one. `false`: it was the last.
fn template_does_what_its_row_says(kind: PortKind, command: &Command, variant: usize) -> bool {
    let name = format!("{} on {kind:?}, template {variant}", command.name);
    let mut b = bench(kind, command.state);
    let mut fixture = populate(&mut b);
    prepare(&mut b, &mut fixture, command);
    let templates = command.templates(&fixture);
    let (input, more) = (&templates[variant], variant + 1 < templates.len());
    assert!(input.len() >= command.input, "{name}");
    let (objects, icm) = (counts(&b), b.fw.icm_used());
    let answer = run(&mut b, input);
    if let Some(why) = command.refused() {
        assert_ne!(answer.status(), Status::Ok, "{name}: {why}");
        assert_eq!((counts(&b), b.fw.icm_used()), (objects, icm), "{name}");
        return more;
    }
    assert_eq!(answer.status(), Status::Ok, "{name}");
    assert!(answer.output.len() >= command.output.min(16), "{name}");
    if command.time == TimeClass::Lifecycle {
        return more;
    }
    let made = command.made(&answer.output).count() as u32;
    let expected = objects.iter().map(|&(kind, n)| match command.object {
        Some(o) if o.kind.numbered_as() == kind && o.action == Action::Create => (kind, n + made),
        Some(o) if o.kind.numbered_as() == kind && o.action == Action::Destroy => (kind, n - 1),
        _ => (kind, n),
    });
    assert_eq!(counts(&b), expected.collect::<Vec<_>>(), "{name}");
    let makes = command.object.is_some_and(|o| o.action == Action::Create);
    assert_eq!(made > 0, makes, "{name}");
    let taken = b.fw.icm_used().saturating_sub(icm);
    assert!(taken <= command.icm_bytes(input), "{name} takes {taken:#x} bytes of ICM");
    assert!(!makes || (taken > 0) == (command.icm_bytes(input) > 0), "{name} takes {taken:#x} bytes");
    if let Some(o) = command.object
        && o.action == Action::Destroy
    {
        assert_ne!(run(&mut b, input).status(), Status::Ok, "{name}: the object is gone");
    }
    more
}

/// One state below it is refused. What is missing of an input is zero, and an output is cut off where the room ends.
#[test]
fn every_row_has_its_bounds() {
    for (kind, command) in LAYERS.into_iter().flat_map(|kind| offered(kind).map(move |c| (kind, c))) {
        let name = format!("{} on {kind:?}", command.name);
        let mut b = bench(kind, command.state);
        let mut fixture = populate(&mut b);
        prepare(&mut b, &mut fixture, command);
        let input = command.template(&fixture);
        let behind =
            command.icm.list.is_some() || matches!(command.opcode, Opcode::ManagePages | Opcode::AccessReg);
        assert!(behind || input.len() == command.input, "{name}: the layout has {} bytes", input.len());
        let before = (counts(&b), b.fw.icm_used(), b.fw.state());
        for len in [InHeader::SIZE, command.input.midpoint(InHeader::SIZE) & !3, command.input - 4] {
            let answer = |zeros: usize| {
                let mut b = bench(kind, command.state);
                let mut fixture = populate(&mut b);
                prepare(&mut b, &mut fixture, command);
                let len = len.max(InHeader::SIZE);
                let short = [&input[..len], &vec![0; zeros * (command.input - len)]].concat();
                let answer = b.raw(&short, 0x2000);
                (answer.output, counts(&b), b.fw.icm_used(), b.fw.state())
            };
            assert_eq!(answer(0), answer(1), "{name} with {len:#x} bytes, and with zeros behind them");
        }
        assert_eq!((counts(&b), b.fw.icm_used(), b.fw.state()), before, "{name}");
        let below = match command.state {
            State::Disabled => continue,
            State::Enabled => State::Disabled,
            State::Initialized => State::Enabled,
        };
        assert_eq!(
            run(&mut bench(kind, below), &input).status(),
            Status::BadSystemState,
            "{name} when {below:?}"
        );
    }
}

/// What a user context may not send is no command for it.
#[test]
fn every_row_has_its_users() {
    LAYERS.into_iter().for_each(rows_have_their_users);
}

fn rows_have_their_users(port_kind: PortKind) {
    use hca_spec::caps::uctx_cap;
    let mut b = bench(port_kind, State::Initialized);
    let fixture = populate(&mut b);
    let mut context = |cap| {
        let mut create = CreateUctxIn::new();
        create.set(CreateUctxIn::CAP, cap);
        b.put(Opcode::CreateUctx, &create, 16).number()
    };
    for (uid, least, tools) in [
        (context(0), Right::Users, false),
        (context(uctx_cap::INTERNAL_DEV_RES), Right::DeviceOwners, false),
        (context(uctx_cap::TOOLS_RESOURCES), Right::Users, true),
    ] {
        for command in offered(port_kind) {
            let mut input = command.template(&fixture);
            let mut header = InHeader::from_prefix_or_zero(&input);
            header.set(InHeader::UID, uid);
            input[..InHeader::SIZE].copy_from_slice(header.bytes());
            let right = command.user.right;
            let may = right == Right::Users || right == least || tools && command.user.tools;
            assert_eq!(run(&mut b, &input).status() != Status::BadOp, may, "{} of {uid}", command.name);
        }
    }
}

/// Rows agree with the verbs of the manual's names, and modelled time with what a command does.
#[test]
fn names_objects_and_times_agree() {
    for command in TABLE {
        let verb = command.name.split('_').next().unwrap();
        let expected = match verb {
            "QUERY" => Some((Action::Query, TimeClass::Query)),
            "CREATE" | "ALLOC" => Some((Action::Create, TimeClass::Create)),
            "DESTROY" | "DEALLOC" => Some((Action::Destroy, TimeClass::Destroy)),
            "MODIFY" | "ARM" => Some((Action::Change, TimeClass::Modify)),
            _ => None,
        };
        let action = command.object.map(|object| object.action);
        match expected {
            Some((expected, time)) => {
                assert!(action.is_none_or(|action| action == expected), "{}: {action:?}", command.name);
                assert_eq!(command.time, time, "{}", command.name);
            }
            None => {
                assert!(action.is_none_or(|action| action == Action::Change), "{}: {action:?}", command.name)
            }
        }
    }
}

/// A command's structure is as long as its row says, or the row has something of another form behind it.
#[test]
fn inputs_are_as_long_as_their_structures() {
    for command in TABLE {
        let (layout, name) = (command.layout, command.name);
        assert!(layout.size <= command.input, "{name}: {}", layout.name);
        // Its end is written down where the input goes on: with a name, a context that is an output elsewhere, parameters of a point.
        let goes_on = matches!(
            command.opcode,
            Opcode::SetDriverVersion | Opcode::ModifyHcaVportContext | Opcode::ModifyCongParams
        );
        assert_eq!(layout.size < command.input, goes_on, "{name}: {}", layout.name);
    }
}

/// Who names an object has a field for its number there.
#[test]
fn objects_have_a_field() {
    for command in TABLE {
        let Some(object) = command.object.filter(|object| object.action != Action::Create) else {
            continue;
        };
        let layout = command.layout;
        let has = layout.fields.iter().any(|field| field.offset == object.at);
        assert!(has, "{}: {} has no field at {:#x}", command.name, layout.name, object.at);
    }
}

mod manners;
mod masks;
mod queue_masks;
mod told;
