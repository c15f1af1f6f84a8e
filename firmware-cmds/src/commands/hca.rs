//! Bringing the adapter up and down, capabilities.
//!
//! Source: PRM "ENABLE_HCA", "INIT_HCA", "TEARDOWN_HCA", "QUERY_ISSI", "QUERY_HCA_CAP", "SET_HCA_CAP",
//! "QUERY_ADAPTER".

use hca_spec::caps::{
    Atomic, Debug, General, Odp, OdpScheme, Roce, TYPE_ATOMIC, TYPE_CRYPTO, TYPE_DEBUG, TYPE_DEVICE_MEMORY,
    TYPE_ETHERNET, TYPE_FLOW_TABLE, TYPE_GENERAL, TYPE_GENERAL_2, TYPE_ODP, TYPE_QOS, TYPE_ROCE,
};
use hca_spec::cmd::{
    CAP_CURRENT, FunctionIn, QueryAdapterOut, QueryHcaCapIn, QueryHcaCapOut, QueryIssiOut, QueryLagOut,
    QuerySpecialContextsOut, SetHcaCapIn, SetIssiIn,
};
use hca_spec::command::Status;
use hca_spec::layout::Field;
use hca_spec::mkc::{NULL_MKEY, RESERVED_LKEY};

use super::call::{done, reply};
use super::crypto;
use super::fixture::{Fixture, input};
use super::functions::{self, Function};
use super::row::{Call, Outcome};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param};
use crate::firmware::{Firmware, State};
use crate::limits::VENDOR_ID;
use crate::virtual_functions::Capabilities;

/// A function that is enabled already starts anew: its driver went without a word, as a crashed kernel
/// does whose successor (kdump) then finds the function as it was.
pub(super) fn enable(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    match functions::named(fw, call)? {
        Function::Own => {
            functions::may_begin(fw)?;
            if fw.state != State::Disabled {
                functions::leave(fw, effects);
            }
            functions::begin(fw);
        }
        Function::Virtual(number) => functions::enable(fw, number, effects)?,
    }
    Ok(done())
}

/// Disables the function, or a virtual function of the caller's.
pub(super) fn disable(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    match functions::named(fw, call)? {
        Function::Own => functions::leave(fw, effects),
        Function::Virtual(number) => functions::disable(fw, number, effects)?,
    }
    Ok(done())
}

pub(super) fn init(fw: &mut Firmware, _: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const TWICE: Failure =
        Failure::new(Status::BadSystemState, "INIT_HCA: the adapter is initialized already");
    const PAGES: Failure = Failure::new(
        Status::NoResources,
        "INIT_HCA: the host has not given the pages that QUERY_PAGES asks for (boot and init)",
    );
    if fw.state == State::Initialized {
        return Err(TWICE.got(fw.state as u32).wanted("1: enabled"));
    }
    if fw.pages.init() > 0 {
        return Err(PAGES.got(fw.pages.given()).least(fw.pages.given() + fw.pages.init()));
    }
    fw.state = State::Initialized;
    let hears = fw.general.get(General::PCI_SYNC_FOR_FW_UPDATE_EVENT) == 1;
    fw.ports.sync_reset.hears(fw.config.function, hears, effects);
    Ok(done())
}

/// [`FunctionIn::PROFILE`] of TEARDOWN_HCA.
const FORCED: u32 = 1;
const FAST: u32 = 2;

/// Objects that a driver leaves are dropped. One that closes by force or fast has destroyed none: it hears by an event that it
/// is done, and then disables the function.
pub(super) fn teardown(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    fw.teardown_snapshot = Some(fw.snapshot());
    if matches!(call.view::<FunctionIn>()?.get(FunctionIn::PROFILE), FORCED | FAST) {
        fw.drop_all_but_events(effects);
        if fw.ports.tracer.function_gone(fw.config.function) {
            effects.push(Effect::TracerReleased);
        }
    } else {
        fw.drop_objects(effects);
    }
    fw.ports.sync_reset.hears(fw.config.function, false, effects);
    fw.state = State::Enabled;
    Ok(done())
}

/// Length of SET_DRIVER_VERSION's input: 64 characters behind the header.
pub(super) const DRIVER_VERSION_LEN: usize = 0x50;

/// NOP and SET_DRIVER_VERSION: nothing to do.
pub(super) fn nothing(_: &Firmware, _: &Call<'_>) -> Outcome {
    Ok(done())
}

pub(super) fn query_issi(fw: &Firmware, _: &Call<'_>) -> Outcome {
    let mut out = QueryIssiOut::new();
    // ISSI 0 and 1.
    out.set(QueryIssiOut::CURRENT_ISSI, fw.issi).set(QueryIssiOut::SUPPORTED_ISSI_DW0, 0b11);
    Ok(reply(&out))
}

pub(super) fn set_issi(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const UNKNOWN: Failure = bad_param("SET_ISSI: current_issi: must be 0 or 1");
    const LATE: Failure = Failure::new(Status::BadSystemState, "SET_ISSI: legal only before INIT_HCA");
    let issi = call.view::<SetIssiIn>()?.get(SetIssiIn::CURRENT_ISSI);
    if issi > 1 {
        return Err(UNKNOWN.got(issi));
    }
    if fw.state == State::Initialized {
        return Err(LATE.got(fw.state as u32).wanted("1: enabled"));
    }
    fw.issi = issi;
    Ok(done())
}

/// The last capability type that the interface defines (mlx5 driver, field use: advanced virtualization). Drivers ask
/// for types that the general capabilities announce; user contexts ask for others too, and read zeros.
const LAST_TYPE: u32 = 0x26;

pub(super) fn query_cap(fw: &Firmware, call: &Call<'_>) -> Outcome {
    const TYPE: Failure = bad_param("QUERY_HCA_CAP: op_mod: this adapter does not have the capability type");
    let current = call.op_mod & 1 == CAP_CURRENT;
    let mut out = Box::new(QueryHcaCapOut::new());
    let c = match functions::other(fw, call.view::<QueryHcaCapIn>()?)? {
        Function::Own if current => fw.current(),
        Function::Own => fw.most(),
        Function::Virtual(number) => functions::capabilities(fw, number, current)?,
    };
    let max = &fw.personality().capabilities;
    let has_roce = fw.is_ethernet() && c.general.get(General::ROCE) == 1;
    match call.op_mod >> 1 {
        TYPE_GENERAL => *out.general_mut() = c.general,
        TYPE_ATOMIC => *out.atomic_mut() = c.atomic,
        TYPE_ODP => *out.odp_mut() = c.odp,
        TYPE_DEBUG => {
            let debug = out.debug_mut();
            debug.set(Debug::STALL_DETECT, fw.is_ethernet().into()).set(Debug::CORE_DUMP_GENERAL, 1);
            debug.set(Debug::RESOURCE_DUMP, 1);
        }
        TYPE_DEVICE_MEMORY => *out.device_memory_mut() = max.device_memory,
        TYPE_CRYPTO => *out.crypto_mut() = crypto::capabilities(fw),
        TYPE_GENERAL_2 => *out.general_2_mut() = max.general_2,
        TYPE_ETHERNET if fw.is_ethernet() => *out.ethernet_mut() = max.ethernet.offloads,
        TYPE_ROCE if has_roce => *out.roce_mut() = c.roce,
        TYPE_QOS if fw.is_ethernet() => *out.qos_mut() = max.ethernet.qos,
        TYPE_FLOW_TABLE if fw.is_ethernet() => *out.flow_tables_mut() = fw.icm.steering.offer().page(),
        // The adapter can do nothing of these: all zeros, as its general capabilities say by their own bits.
        other if other <= LAST_TYPE => {}
        other => return Err(TYPE.got(other)),
    }
    Ok(reply(&*out))
}

/// Values that a driver may lower. Zero leaves the maximum: iPXE's driver sends zero for queue pairs and makes three of them, on
/// every firmware that it drives.
const SETTABLE: [Field<General>; 9] = [
    General::LOG_MAX_QP,
    General::LOG_MAX_CQ,
    General::LOG_MAX_MKEY,
    General::LOG_MAX_EQ,
    General::LOG_MAX_SRQ,
    General::LOG_MAX_PD,
    General::LOG_MAX_XRCD,
    General::LOG_MAX_MCG,
    General::LOG_MAX_CURRENT_UC_LIST,
];

/// SET_HCA_CAP. A function sets what it uses of what it can do; a physical function sets what a virtual one can do at most.
pub(super) fn set_cap(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const LATE: Failure = Failure::new(Status::BadSystemState, "SET_HCA_CAP: legal only before INIT_HCA");
    let new = call.view::<SetHcaCapIn>()?;
    match functions::other(fw, new)? {
        Function::Own if fw.state == State::Initialized => {
            return Err(LATE.got(fw.state as u32).wanted("1: enabled"));
        }
        Function::Own => {
            let mut c = fw.current();
            set_in(&mut c, new, &fw.most(), call.op_mod >> 1)?;
            fw.set_current(c);
            functions::tell(fw);
        }
        Function::Virtual(number) => {
            let mut c = functions::capabilities(fw, number, false)?;
            // A physical function lets others have all that the adapter can do, whatever it uses itself.
            let most = Capabilities::most(&fw.config);
            set_in(&mut c, new, &most, call.op_mod >> 1)?;
            if call.op_mod >> 1 == TYPE_GENERAL {
                within(new.general(), &most.general, &[General::ROCE])?;
                c.general.set(General::ROCE, new.general().get(General::ROCE));
            }
            functions::grant(fw, number, c)?;
        }
    }
    Ok(done())
}

/// These fields are not above the most.
fn within(new: &General, most: &General, fields: &[Field<General>]) -> Result<(), Failure> {
    const ABOVE: Failure = bad_param("SET_HCA_CAP: hca_cap: a value is above the adapter's maximum");
    let (new, most) = (|field| new.get(field), |field| most.get(field));
    match fields.iter().find(|field| new(**field) > most(**field)) {
        Some(field) => Err(ABOVE.of(field.offset() as u32).got(new(*field)).limit(most(*field))),
        None => Ok(()),
    }
}

/// What can be set of a group, in `into`.
fn set_in(into: &mut Capabilities, new: &SetHcaCapIn, max: &Capabilities, group: u32) -> Result<(), Failure> {
    const TYPE: Failure = bad_param("SET_HCA_CAP: op_mod: the capability type can't be set");
    const SCHEME: Failure =
        bad_param("SET_HCA_CAP: mem_page_fault must be 0: the adapter's page faults name queues only");
    const CHECKSUM: Failure =
        bad_param("SET_HCA_CAP: cmdif_checksum: must be 0: command signatures are not supported");
    const UAR: Failure = bad_param("SET_HCA_CAP: UAR pages have 4 KiB: log_uar_page_sz must be 0");
    const ASKED: Field<General> = General::PCI_SYNC_FOR_FW_UPDATE_EVENT;
    const MODE: Failure = bad_param("SET_HCA_CAP: atomic_req_8B_endianness_mode must be 0 or 1");
    match group {
        TYPE_GENERAL => {
            let new = new.general();
            within(new, &max.general, &SETTABLE)?;
            if new.get(General::CMDIF_CHECKSUM) != 0 {
                return Err(CHECKSUM.got(new.get(General::CMDIF_CHECKSUM)));
            }
            if new.get(General::LOG_UAR_PAGE_SZ) != 0 {
                return Err(UAR.got(new.get(General::LOG_UAR_PAGE_SZ)));
            }
            within(new, &max.general, &[ASKED])?;
            for field in SETTABLE {
                let wanted = match new.get(field) {
                    0 => max.general.get(field),
                    value => value,
                };
                into.general.set(field, wanted);
            }
            into.general.set(General::PKEY_TABLE_SIZE, new.get(General::PKEY_TABLE_SIZE));
            into.general.set(ASKED, new.get(ASKED));
        }
        TYPE_ATOMIC => {
            let mode = new.atomic().get(Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE);
            if mode > 1 {
                return Err(MODE.got(mode));
            }
            into.atomic.set(Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE, mode);
        }
        TYPE_ODP => {
            let (new, max) = (new.odp(), &max.odp);
            let scheme = new.get(Odp::MEM_PAGE_FAULT);
            if scheme > max.get(Odp::MEM_PAGE_FAULT) {
                return Err(SCHEME.got(scheme).limit(0u32));
            }
            let mut paging = into.odp;
            paging.set(Odp::MEM_PAGE_FAULT, scheme);
            set_scheme(paging.transport_mut(), new.transport(), max.transport())?;
            set_scheme(paging.memory_mut(), new.memory(), max.memory())?;
            into.odp = paging;
        }
        // Of the page nothing else can be set: drivers give the rest back as they read it. By inference: where the ports can't be chosen, to wish
        // it is like any wish for what the adapter has not: it changes nothing. Linux asks for the maximum before, tinygrad's driver does not.
        TYPE_ROCE if max.general.get(General::ROCE) == 1 => {
            const PORTS: Field<Roce> = Roce::SW_R_ROCE_SRC_UDP_PORT;
            into.roce.set(PORTS, new.roce().get(PORTS).min(max.roce.get(PORTS)));
        }
        other => return Err(TYPE.got(other)),
    }
    Ok(())
}

/// What may meet a page that is not present in a scheme.
fn set_scheme(into: &mut OdpScheme, new: &OdpScheme, max: &OdpScheme) -> Result<(), Failure> {
    const PAGING: Failure = bad_param("SET_HCA_CAP: odp_caps: the adapter can't page on demand there");
    for field in OdpScheme::TRANSPORTS.into_iter().chain([OdpScheme::PAGE_PREFETCH]) {
        let (wanted, most) = (new.get(field), max.get(field));
        if wanted & !most != 0 {
            return Err(PAGING.of(field.offset() as u32).got(wanted).limit(most));
        }
        into.set(field, wanted);
    }
    Ok(())
}

pub(super) fn query_adapter(fw: &Firmware, _: &Call<'_>) -> Outcome {
    let mut out = QueryAdapterOut::new();
    out.set(QueryAdapterOut::IEEE_VENDOR_ID, VENDOR_ID);
    let [high, low] = fw.personality().psid();
    out.set(QueryAdapterOut::PSID_H, high).set(QueryAdapterOut::PSID_L, low);
    Ok(reply(&out))
}

/// There is no link aggregation: no capability announces that one can be made, and programs ask all the same (UCX).
pub(super) fn query_lag(_: &Firmware, _: &Call<'_>) -> Outcome {
    Ok(reply(QueryLagOut::new().set(QueryLagOut::LAG_STATE, 0)))
}

pub(super) fn query_special_contexts(_: &Firmware, _: &Call<'_>) -> Outcome {
    // There is no key that fills dumps: the capability that announces it is off.
    let mut out = QuerySpecialContextsOut::new();
    out.set(QuerySpecialContextsOut::RESD_LKEY, RESERVED_LKEY);
    Ok(reply(out.set(QuerySpecialContextsOut::NULL_MKEY, NULL_MKEY)))
}

/// SET_HCA_CAP: the general capabilities as they are from the start.
pub(super) fn set_cap_template(_: &Fixture) -> Vec<u8> {
    let mut set = SetHcaCapIn::new();
    *set.general_mut() = crate::profile::general_max(&crate::profile::Config::default());
    input(set.bytes(), TYPE_GENERAL << 1, [])
}

/// SET_ISSI: interface step 1.
pub(super) fn set_issi_template(_: &Fixture) -> Vec<u8> {
    SetIssiIn::new().set(SetIssiIn::CURRENT_ISSI, 1).bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use hca_spec::command::Opcode;

    #[test]
    fn states_in_order() {
        use Opcode as Op;
        let mut b = Bench::new();
        let status = |b: &mut Bench, op| b.object(op, 0).status();
        for op in [Op::InitHca, Op::TeardownHca, Op::DisableHca, Op::AllocPd, Op::QueryAdapter] {
            assert_eq!(status(&mut b, op), Status::BadSystemState, "{op:?} before ENABLE_HCA");
        }
        assert_eq!(status(&mut b, Op::EnableHca), Status::Ok);
        assert_eq!(status(&mut b, Op::AllocPd), Status::BadSystemState, "before INIT_HCA");
        assert_eq!(b.fw.state(), State::Enabled);
        b.give_pages(1000);
        assert_eq!(status(&mut b, Op::InitHca), Status::Ok);
        assert_eq!(status(&mut b, Op::InitHca), Status::BadSystemState);
        assert_eq!(status(&mut b, Op::SetIssi), Status::BadSystemState);
        assert_eq!(b.fw.state(), State::Initialized);
        assert_eq!(status(&mut b, Op::AllocPd), Status::Ok);
        assert_eq!(status(&mut b, Op::TeardownHca), Status::Ok);
        assert_eq!(b.effects, [Effect::AllGone]);
        assert_eq!(b.fw.resources().now.pds, 0);
        assert_eq!(status(&mut b, Op::DisableHca), Status::Ok);
        let left = b.fw.resources().at_last_teardown.unwrap();
        assert_eq!((left.pds, left.pages), (1, 1000), "what was not given back shows");
        assert_eq!(status(&mut b, Op::EnableHca), Status::Ok, "and again");
    }

    /// A kernel crashed; its successor enables the function again.
    #[test]
    fn enabled_again() {
        let mut b = Bench::initialized();
        b.alloc(Opcode::AllocPd);
        b.ok(Opcode::EnableHca, 0);
        assert_eq!(b.fw.state(), State::Enabled);
        assert_eq!(b.effects, [Effect::AllGone]);
        assert_eq!((b.fw.resources().now.pds, b.fw.resources().now.pages), (0, 0));
        assert_eq!(b.object(Opcode::InitHca, 0).status(), Status::NoResources, "its pages are forgotten");
        b.give_pages(b.fw.pages.init());
        b.ok(Opcode::InitHca, 0);
    }

    /// Whoever runs the adapter gets what it had, to let go of it; it is not dropped by the command or reset that ends it.
    #[test]
    fn objects_are_let_go_elsewhere() {
        use crate::disposal::{Burden, Disposal};
        use crate::icm::Icm;
        use std::sync::{Arc, Mutex};

        let given: Arc<Mutex<Vec<Burden>>> = Arc::default();
        let mut b = Bench::initialized();
        let to = given.clone();
        b.fw.disposal = Disposal::by(move |what| to.lock().unwrap().push(what));
        b.alloc(Opcode::AllocPd);
        b.ok(Opcode::TeardownHca, 0);
        let objects = given.lock().unwrap().pop().unwrap();
        assert_eq!(objects.downcast_ref::<Icm>().map(|icm| icm.pds.len()), Some(1));
        b.ok(Opcode::DisableHca, 0);
        assert_eq!(given.lock().unwrap().drain(..).count(), 2, "no objects any more, and the pages");
        b.ok(Opcode::EnableHca, 0);
        b.fw.reset();
        b.fw.reset();
        assert_eq!(given.lock().unwrap().len(), 2, "the same after a reset");
    }

    #[test]
    fn interface_steps() {
        let mut b = Bench::new();
        let r = b.object_into(Opcode::QueryIssi, 0, 0x70);
        assert_eq!(r.output[0x6c..], [0, 0, 0, 3], "steps 0 and 1");
        b.ok(Opcode::EnableHca, 0);
        let mut step = SetIssiIn::new();
        step.set(SetIssiIn::CURRENT_ISSI, 2);
        assert_eq!(b.put(Opcode::SetIssi, &step, 16).status(), Status::BadParam);
        step.set(SetIssiIn::CURRENT_ISSI, 1);
        assert_eq!(b.put(Opcode::SetIssi, &step, 16).status(), Status::Ok);
        let r = b.object_into(Opcode::QueryIssi, 0, 0x70);
        assert_eq!(QueryIssiOut::from_prefix_or_zero(&r.output).get(QueryIssiOut::CURRENT_ISSI), 1);
    }

    fn caps(b: &mut Bench, op_mod: u32) -> QueryHcaCapOut {
        let r = b.run(Opcode::QueryHcaCap, op_mod, &[], 0x1010);
        assert_eq!((r.status(), r.output.len()), (Status::Ok, 0x1010));
        QueryHcaCapOut::from_prefix_or_zero(&r.output)
    }

    /// What mlx5_core does at an adapter that offers it, and nothing else changes; elsewhere the wish is in vain.
    #[test]
    fn ports_of_roce_are_chosen() {
        use crate::commands::testing::ethernet;
        use crate::{Config, Personality};
        const PORTS: Field<Roce> = Roce::SW_R_ROCE_SRC_UDP_PORT;
        let set = |b: &mut Bench, page: &Roce| {
            let mut set = SetHcaCapIn::new();
            *set.set(SetHcaCapIn::OP_MOD, TYPE_ROCE << 1).roce_mut() = *page;
            b.put(Opcode::SetHcaCap, &set, 16).status()
        };
        for (kind, most) in [("connectx4", 0), ("connectx5", 0), ("connectx6dx", 1)] {
            let personality = Personality::named(kind).expect("a kind");
            let mut b = Bench::with(Config { personality, ..ethernet() });
            b.ok(Opcode::EnableHca, 0);
            assert_eq!(caps(&mut b, TYPE_ROCE << 1).roce().get(PORTS), most, "{kind}");
            let before = *caps(&mut b, TYPE_ROCE << 1 | 1).roce();
            assert_eq!((before.get(PORTS), set(&mut b, &before)), (0, Status::Ok), "{kind}");
            let mut wanted = before;
            wanted.set(PORTS, 1).set(Roce::ROCE_VERSION, 0);
            assert_eq!(set(&mut b, &wanted), Status::Ok, "{kind}");
            let mut expected = before;
            expected.set(PORTS, most);
            assert_eq!(*caps(&mut b, TYPE_ROCE << 1 | 1).roce(), expected, "{kind}");
            b.ok(Opcode::DisableHca, 0);
            b.ok(Opcode::EnableHca, 0);
            assert_eq!(*caps(&mut b, TYPE_ROCE << 1 | 1).roce(), before, "{kind}");
        }
        let mut b = Bench::new();
        b.ok(Opcode::EnableHca, 0);
        assert_eq!(set(&mut b, &Roce::new()), Status::BadParam, "InfiniBand has none");
    }

    /// The driver reads maximum and current, writes the current back with changes, and reads again.
    #[test]
    fn capabilities_that_are_set_are_current() {
        let mut b = Bench::new();
        b.ok(Opcode::EnableHca, 0);
        assert_eq!(caps(&mut b, 0).general(), caps(&mut b, 1).general());
        let mut set = SetHcaCapIn::new();
        *set.general_mut() = *caps(&mut b, 1).general();
        set.general_mut().set(General::LOG_MAX_QP, 12);
        assert_eq!(b.put(Opcode::SetHcaCap, &set, 16).status(), Status::Ok);
        assert_eq!(caps(&mut b, 1).general().get(General::LOG_MAX_QP), 12);
        assert_eq!(caps(&mut b, 0).general().get(General::LOG_MAX_QP), 18, "the maximum stays");
        set.general_mut().set(General::LOG_MAX_QP, 0);
        assert_eq!(b.put(Opcode::SetHcaCap, &set, 16).status(), Status::Ok);
        assert_eq!(caps(&mut b, 1).general().get(General::LOG_MAX_QP), 18, "zero is no limit");
        for (field, value) in [
            (General::LOG_MAX_QP, 19),
            (General::LOG_MAX_EQ, 8),
            (General::CMDIF_CHECKSUM, 1),
            (General::LOG_UAR_PAGE_SZ, 4),
        ] {
            let mut bad = set;
            bad.general_mut().set(field, value);
            assert_eq!(b.put(Opcode::SetHcaCap, &bad, 16).status(), Status::BadParam, "{}", field.name());
        }
        let mut atomic = SetHcaCapIn::new();
        atomic.set(SetHcaCapIn::OP_MOD, TYPE_ATOMIC << 1);
        atomic.atomic_mut().set(Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE, 1);
        assert_eq!(b.put(Opcode::SetHcaCap, &atomic, 16).status(), Status::Ok);
        let current = caps(&mut b, TYPE_ATOMIC << 1 | 1);
        assert_eq!(current.atomic().get(Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE), 1);
        assert_eq!(current.atomic().get(Atomic::ATOMIC_OPERATIONS), 3);
        let ethernet = caps(&mut b, 1 << 1 | 1);
        assert!(ethernet.bytes()[16..].iter().all(|byte| *byte == 0), "nothing of Ethernet");
        assert_eq!(b.run(Opcode::QueryHcaCap, 0x27 << 1 | 1, &[], 0x1010).status(), Status::BadParam);
    }

    /// Values without which the stock driver or library does not work.
    #[test]
    fn capabilities_that_drivers_lean_on() {
        let mut b = Bench::new();
        b.ok(Opcode::EnableHca, 0);
        let c = *caps(&mut b, 1).general();
        for field in [General::XRC, General::UD, General::UC, General::RC, General::NUM_PORTS] {
            assert_eq!(c.get(field), 1, "{}", field.name());
        }
        for field in [General::BF, General::IB_VIRT] {
            assert_eq!(c.get(field), 0, "{}", field.name());
        }
        assert_eq!((c.get(General::LOG_BF_REG_SIZE), c.get(General::LOG_PG_SZ)), (9, 12));
        assert!(c.get(General::CQE_VERSION) <= 1 && c.get(General::LOG_MAX_EQ) > 2);
        assert!(c.get(General::MAX_WQE_SZ_SQ) >= 512 && c.get(General::LOG_MAX_KLM_LIST_SIZE) < 31);
        assert_eq!(c.get(General::UMR_MODIFY_ENTITY_SIZE_DISABLED), 0);
    }

    /// Values without which the stock driver makes no network device, or none with RoCE.
    #[test]
    fn capabilities_of_ethernet_ports() {
        use crate::commands::testing::ethernet;
        use hca_spec::caps::{EthernetOffloads, FlowTableProperties, FlowTables, Roce};
        let mut b = Bench::with(ethernet());
        b.ok(Opcode::EnableHca, 0);
        for current in [0, 1] {
            let c = *caps(&mut b, TYPE_GENERAL << 1 | current).general();
            for field in [
                General::PORT_TYPE,
                General::ETH_NET_OFFLOADS,
                General::NIC_FLOW_TABLE,
                General::ROCE,
                General::XRC,
            ] {
                assert_eq!(c.get(field), 1, "{}", field.name());
            }
            assert!(c.get(General::LOG_MAX_TRANSPORT_DOMAIN) > 0 && c.get(General::MAX_WQE_SZ_SQ) >= 1024);
            assert!(c.get(General::LOG_MAX_SQ) > 0 && c.get(General::BF) == 0);
            let group = |b: &mut Bench, kind| caps(b, kind << 1 | current);
            let eth = *group(&mut b, TYPE_ETHERNET).ethernet();
            for field in
                [EthernetOffloads::CSUM_CAP, EthernetOffloads::VLAN_CAP, EthernetOffloads::SCATTER_FCS]
            {
                assert_eq!(eth.get(field), 1, "{}", field.name());
            }
            assert!(eth.get(EthernetOffloads::MAX_LSO_CAP) > 0);
            assert_eq!(eth.get(EthernetOffloads::RSS_IND_TBL_CAP), c.get(General::LOG_MAX_RQT_SIZE));
            let roce = *group(&mut b, TYPE_ROCE).roce();
            assert_eq!((roce.get(Roce::L3_TYPE) & 6, roce.get(Roce::R_ROCE_DEST_UDP_PORT)), (6, 4791));
            let tables: FlowTables = *group(&mut b, TYPE_FLOW_TABLE).flow_tables();
            let receive = tables.nic_receive();
            assert!(receive.get(FlowTableProperties::MAX_FT_LEVEL) >= 67, "drivers use levels up to that");
            assert!(receive.get(FlowTableProperties::LOG_MAX_FT_SIZE) >= 16);
        }
    }

    /// `max_macs` of devlink: the list of unicast addresses may be shorter, and then it has to be.
    #[test]
    fn fewer_addresses() {
        use crate::commands::testing::ethernet;
        use hca_spec::nic_vport::nic_vport_select as select;
        use hca_spec::nic_vport::{ModifyNicVportContextIn, NicVportContext, list_type};
        const FIELD: Field<General> = General::LOG_MAX_CURRENT_UC_LIST;
        let mut b = Bench::with(ethernet());
        b.ok(Opcode::EnableHca, 0);
        let most = caps(&mut b, 0).general().get(FIELD);
        assert_eq!(caps(&mut b, 0).general().get(General::LOG_MAX_CURRENT_UC_LIST_WR_SUPPORTED), 1);
        let mut set = SetHcaCapIn::new();
        *set.general_mut() = *caps(&mut b, 1).general();
        for (wanted, status, then) in [
            (most - 2, Status::Ok, most - 2),
            (most + 1, Status::BadParam, most - 2),
            (0, Status::Ok, most),
            (3, Status::Ok, 3),
        ] {
            set.general_mut().set(FIELD, wanted);
            assert_eq!(b.put(Opcode::SetHcaCap, &set, 16).status(), status);
            assert_eq!(caps(&mut b, 1).general().get(FIELD), then);
        }
        b.give_pages(1000);
        b.ok(Opcode::InitHca, 0);
        for (count, status) in [(8u32, Status::Ok), (9, Status::BadParam)] {
            let mut modify = ModifyNicVportContextIn::new();
            modify.set(ModifyNicVportContextIn::FIELD_SELECT, select::ADDRESSES_LIST);
            let context = modify.context_mut();
            context.set(NicVportContext::ALLOWED_LIST_TYPE, list_type::UNICAST);
            context.set(NicVportContext::ALLOWED_LIST_SIZE, count);
            let list = vec![0x0000_0200_0000_0007; count as usize];
            assert_eq!(b.put_list(Opcode::ModifyNicVportContext, &modify, &list).status(), status);
        }
    }

    /// What an Ethernet port has more is not seen on InfiniBand.
    #[test]
    fn infiniband_has_nothing_of_it() {
        let mut b = Bench::new();
        b.ok(Opcode::EnableHca, 0);
        let c = *caps(&mut b, 1).general();
        let ethernet = crate::Personality::default_kind().capabilities.ethernet.general;
        for field in [
            General::PORT_TYPE,
            General::ETH_NET_OFFLOADS,
            General::NIC_FLOW_TABLE,
            General::ROCE,
            General::LOG_MAX_RQ,
            General::LOG_MAX_TIR,
            General::PCAM_REG,
            General::QOS,
            General::VPORT_COUNTERS,
        ] {
            assert_eq!((c.get(field), ethernet.get(field) != 0), (0, true), "{}", field.name());
        }
        for kind in [TYPE_ETHERNET, TYPE_ROCE, TYPE_QOS, TYPE_FLOW_TABLE] {
            let group = caps(&mut b, kind << 1);
            assert!(group.bytes()[16..].iter().all(|byte| *byte == 0), "{kind}");
        }
    }

    #[test]
    fn board_id() {
        let mut b = Bench::initialized();
        let r = b.object_into(Opcode::QueryAdapter, 0, 0x110);
        assert_eq!(r.output[0x100..0x110], *b"SHC_2180110032\0\0");
        assert_eq!(r.output[0x28..0x2c], [0, 0, 2, 0xc9]);
    }
}
