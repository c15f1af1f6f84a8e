//! Bringing an adapter up and down.

use hca_driver::{Bus, CqConfig};
use hca_model::fault::{Ailment, Fault, Lasting, TimeAction, Trigger, What};
use hca_model::{HcaId, Ps};
use hca_spec::caps::{Atomic, General, TYPE_ATOMIC};
use hca_spec::cmd::{CreateUctxIn, MadIfc, McgIn, ObjectIn, QueryHcaVportIn, SetIssiIn};
use hca_spec::command::{CommandEntry, InHeader, Opcode, OutHeader};
use hca_spec::init_segment::InitSegment;

use super::Mistake;
use super::bench::{Bench, Hand};

pub(super) const ALL: &[Mistake] = &[
    Mistake::driver("SET_ISSI with a step that the adapter does not have", "current_issi", |b| {
        bring_up_with(b, 2, |entry| set_issi(entry, 9));
    }),
    Mistake::driver("INIT_HCA without the pages that QUERY_PAGES asks for", "pages", |b| {
        bring_up_with(b, 4, |entry| set_opcode(entry, Opcode::InitHca));
    }),
    Mistake::driver("ALLOC_PD before ENABLE_HCA", "state", |b| {
        bring_up_with(b, 0, |entry| set_opcode(entry, Opcode::AllocPd));
    }),
    Mistake::driver("ALLOC_PD before INIT_HCA", "state", |b| {
        bring_up_with(b, 3, |entry| set_opcode(entry, Opcode::AllocPd));
    }),
    Mistake::driver("INIT_HCA twice", "state", |b| {
        let mut hca = b.open(0);
        if b.is_wrong() {
            b.object(&mut hca, Opcode::InitHca, 0);
        }
        b.keep(hca);
    }),
    Mistake::driver("SET_ISSI after INIT_HCA", "state", |b| late(b, Opcode::SetIssi)),
    Mistake::driver("SET_HCA_CAP after INIT_HCA", "state", |b| late(b, Opcode::SetHcaCap)),
    Mistake::driver("SET_HCA_CAP with more queue pairs than there can be", "hca_cap", |b| {
        capabilities(b, |c| _ = c.set(General::LOG_MAX_QP, 31));
    }),
    Mistake::driver("SET_HCA_CAP with signatures of commands", "cmdif_checksum", |b| {
        capabilities(b, |c| _ = c.set(General::CMDIF_CHECKSUM, 3));
    }),
    Mistake::driver("SET_HCA_CAP with UAR pages of 64 KiB", "log_uar_page_sz", |b| {
        capabilities(b, |c| _ = c.set(General::LOG_UAR_PAGE_SZ, 4));
    }),
    Mistake::driver(
        "SET_HCA_CAP with a reserved byte order of atomics",
        "atomic_req_8B_endianness_mode",
        |b| {
            let wrong = b.is_wrong();
            let bus = b.bus(0);
            if wrong {
                bus.spoil_caps(TYPE_ATOMIC, |bytes| {
                    let mut atomic = Atomic::from_prefix_or_zero(bytes);
                    atomic.set(Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE, 3);
                    bytes[..Atomic::SIZE].copy_from_slice(atomic.bytes());
                });
            }
            try_open(b, bus);
        },
    ),
    Mistake::command("QUERY_HCA_CAP of a type that there is not", "op_mod", Opcode::QueryHcaCap, |c| {
        c.set(0, InHeader::OP_MOD, 0x70 << 1);
    }),
    Mistake::command("MAD_IFC by a port that there is not", "port", Opcode::MadIfc, |c| {
        c.set(0, MadIfc::PORT, 9);
    }),
    Mistake::command(
        "a virtual port of a port that there is not",
        "port_num",
        Opcode::QueryHcaVportContext,
        |c| {
            c.set(0, QueryHcaVportIn::PORT_NUM, 5);
        },
    ),
    Mistake::command("a GID beyond the table", "index", Opcode::QueryHcaVportGid, |c| {
        c.set(0, QueryHcaVportIn::INDEX, 0x4000);
    }),
    Mistake::command("ATTACH_TO_MCG of an RC queue pair", "qpn", Opcode::AttachToMcg, |c| {
        let rc = hca_spec::be32(&c.input, 8) - 1;
        c.set(0, McgIn::QPN, rc);
    }),
    Mistake::command("ATTACH_TO_MCG with a GID of one port", "gid", Opcode::AttachToMcg, |c| {
        c.set(0, McgIn::GID_H, 0xfe80 << 48);
    }),
    Mistake::driver("doorbell while the firmware initializes", "initializing", |b| {
        let mut bus = b.bus(0);
        slow_start(b);
        if b.is_wrong() {
            bus.mmio_write32(InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64, 1);
        }
        b.keep(Bench::open_on(bus));
    }),
    Mistake::driver("read of a UAR page while the firmware initializes", "initializing", |b| {
        let mut bus = b.bus(0);
        slow_start(b);
        if b.is_wrong() {
            bus.mmio_read32(0x10_0000);
        } else {
            bus.mmio_read32(InitSegment::INITIALIZING.offset() as u64);
        }
        b.keep(Bench::open_on(bus));
    }),
    Mistake::driver("command about an object of another user context", "uid", |b| {
        let mut hca = b.open(0);
        let [one, other] = [0; 2].map(|_| {
            let made = hca.execute(Opcode::CreateUctx, 0, vec![0; CreateUctxIn::SIZE], OutHeader::SIZE);
            made_by(&made.expect("CREATE_UCTX"))
        });
        let pd = hca.execute(Opcode::AllocPd, 0, as_user(one, 0), OutHeader::SIZE).expect("ALLOC_PD");
        let sent =
            hca.execute(Opcode::DeallocPd, 0, as_user(b.pick(other, one), made_by(&pd)), OutHeader::SIZE);
        b.note(sent);
        b.keep(hca);
    }),
    Mistake::driver("command of a user context about an object of the kernel's", "uid", |b| {
        let mut hca = b.open(0);
        let made = hca.execute(Opcode::CreateUctx, 0, vec![0; CreateUctxIn::SIZE], OutHeader::SIZE);
        let user = made_by(&made.expect("CREATE_UCTX"));
        let owner = b.pick(0, user);
        let pd = hca.execute(Opcode::AllocPd, 0, as_user(owner, 0), OutHeader::SIZE).expect("ALLOC_PD");
        let sent = hca.execute(Opcode::DeallocPd, 0, as_user(user, made_by(&pd)), OutHeader::SIZE);
        b.note(sent);
        b.keep(hca);
    }),
    Mistake::driver("command of a user context that there is not", "uid", |b| {
        let mut hca = b.open(0);
        let made = hca.execute(Opcode::CreateUctx, 0, vec![0; CreateUctxIn::SIZE], OutHeader::SIZE);
        let user = made_by(&made.expect("CREATE_UCTX"));
        let sent = hca.execute(Opcode::AllocPd, 0, as_user(b.pick(0x1234, user), 0), OutHeader::SIZE);
        b.note(sent);
        b.keep(hca);
    }),
    Mistake::driver("objects alive at TEARDOWN_HCA", "objects", |b| {
        let mut hca = b.open(0);
        let cq = hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
        match b.is_wrong() {
            true => b.keep(cq),
            false => hca.destroy_cq(cq).expect("DESTROY_CQ"),
        }
        let closed = hca.close().map(drop);
        b.note(closed);
    }),
    Mistake::driver("objects alive when the function is reset", "objects", |b| {
        let hca = b.open(0);
        let hca = closed_or_not(b, hca);
        b.simulation.world(|world, now| world.reset(now, HcaId(0)));
        std::mem::forget(hca);
    }),
    Mistake::driver("objects alive when the host goes", "objects", |b| {
        let hca = b.open(0);
        let hca = closed_or_not(b, hca);
        b.simulation.world(|world, now| world.detach(now, HcaId(0)));
        std::mem::forget(hca);
    }),
    Mistake::driver("DISABLE_HCA without taking the pages back", "pages of the firmware", |b| {
        let mut hca = b.open(0);
        if b.is_wrong() {
            b.object(&mut hca, Opcode::DisableHca, 0);
            std::mem::forget(hca);
        } else {
            let closed = hca.close().map(drop);
            b.note(closed);
        }
    }),
];

/// The input of a command that a user context sends about an object.
fn as_user(user: u32, number: u32) -> Vec<u8> {
    let mut input = ObjectIn::new();
    input.set(ObjectIn::NUMBER, number);
    let mut bytes = input.bytes().to_vec();
    let mut header = InHeader::from_prefix_or_zero(&bytes);
    header.set(InHeader::UID, user);
    bytes[..InHeader::SIZE].copy_from_slice(header.bytes());
    bytes
}

/// The number of the object that a command has made.
fn made_by(output: &[u8]) -> u32 {
    super::bench::made(output)
}

fn closed_or_not(b: &mut Bench, hca: hca_driver::Hca<Hand>) -> Option<hca_driver::Hca<Hand>> {
    if b.is_wrong() {
        return Some(hca);
    }
    let closed = hca.close().map(drop);
    b.note(closed);
    None
}

fn set_opcode(entry: &mut CommandEntry, opcode: Opcode) {
    let at = hca_spec::command::INLINE_INPUT;
    entry.bytes_mut()[at..at + 2].copy_from_slice(&(opcode as u16).to_be_bytes());
}

/// The firmware initializes for a while from now on.
fn slow_start(b: &Bench) {
    let ailment =
        Ailment { initializing: true, lasting: Lasting::For(Ps::from_us(50)), ..Ailment::default() };
    let what = What::Time { every: None, action: TimeAction::Ail(ailment) };
    let fault = Fault { name: "slow start".into(), what, trigger: Trigger::default() };
    let added = b.simulation.world(|world, now| world.add_fault(now, HcaId(0), fault));
    added.expect("there is such an adapter");
    b.simulation.run(Ps::from_us(1));
}

fn set_issi(entry: &mut CommandEntry, step: u8) {
    entry.bytes_mut()[hca_spec::command::INLINE_INPUT + SetIssiIn::CURRENT_ISSI.offset() + 3] = step;
}

fn try_open(b: &mut Bench, bus: Hand) {
    let opened =
        hca_driver::Hca::open(bus, hca_driver::Config { command_polls: 2_000, ..Default::default() });
    if let Some(hca) = b.note(opened) {
        b.keep(hca);
    }
}

/// Brings the adapter up; the command after `others` is spoiled.
fn bring_up_with(b: &mut Bench, others: u32, spoil: fn(&mut CommandEntry)) {
    let bus = b.bus(0);
    if b.is_wrong() {
        bus.spoil_after(others, move |handed| handed.entry(spoil));
    }
    try_open(b, bus);
}

/// Brings the adapter up with other general capabilities.
fn capabilities(b: &mut Bench, change: fn(&mut General)) {
    let bus = b.bus(0);
    if b.is_wrong() {
        bus.spoil_caps(0, move |bytes| {
            let mut general = General::from_prefix_or_zero(bytes);
            change(&mut general);
            bytes[..General::SIZE].copy_from_slice(general.bytes());
        });
    }
    try_open(b, bus);
}

/// A command of bring-up, after that.
fn late(b: &mut Bench, opcode: Opcode) {
    let mut hca = b.open(0);
    if b.is_wrong() {
        let mut input = ObjectIn::new().bytes().to_vec();
        input.resize(0x1010, 0);
        let sent = hca.execute(opcode, 0, input, OutHeader::SIZE);
        b.note(sent);
    }
    b.keep(hca);
}
