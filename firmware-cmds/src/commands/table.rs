//! The table of commands: one row for each that this adapter has, in order of their opcodes.
//!
//! A row says all that holds for a command: who may send it, when, with what lengths, what it does to objects and ICM,
//! how long it takes, what executes it, and what a valid input looks like. Execution, the rights of user contexts, the
//! accounting of pages, modelled time and the fuzzers read it here.
//!
//! Of the opcodes of [`Opcode`], GEN_EQE has no row: no driver makes its own events, and the adapter answers BAD_OP.
//!
//! Source: PRM "Command Reference": the layouts of inputs and outputs.

use hca_spec::bsf::{CreatePsvIn, CreatePsvOut};
use hca_spec::caps;
use hca_spec::cmd::*;
use hca_spec::command::{InHeader, Opcode, OutHeader};
use hca_spec::congestion::{
    CongParamsIn, CongStatisticsIn, CongStatisticsOut, CongStatusIn, CongStatusOut, MODIFY_PARAMS,
    NotificationParams, ReactionParams,
};
use hca_spec::dct::{CreateDctIn, QueryDctOut};
use hca_spec::flow::*;
use hca_spec::nic_vport::{
    ModifyNicVportContextIn, QueryNicVportContextOut, QueryRoceAddressOut, QueryVportStateOut, RoceAddressIn,
    VportIn,
};
use hca_spec::queue::SetPpRateLimitIn;
use hca_spec::rewrite::{AllocModifyHeaderContextIn, AllocPacketReformatContextIn, QueryPacketReformatOut};
use hca_spec::rq::{CreateRqIn, ModifyRqIn, QueryRqOut};
use hca_spec::sched::{
    CreateSchedulingElementIn, CreateSchedulingElementOut, ModifySchedulingElementIn,
    QuerySchedulingElementOut, SchedulingElementIn,
};
use hca_spec::transport::{
    CreateRqtIn, CreateTirIn, CreateTisIn, ModifyRqtIn, ModifyTirIn, ModifyTisIn, QueryRqtOut, QueryTirOut,
    QueryTisOut,
};
use hca_spec::xrq::{CreateXrqIn, QueryXrqOut};

use super::devx::{self, names, place};
use super::row::Handler::{ReadOnly, Update, WithEffects};
use super::row::Template::{Input, Object, Refused, Several};
use super::row::{
    Action, Command, IcmUse, NONE, TimeClass, User, changes, changes_at, destroys, destroys_at, makes,
    makes_at, makes_psvs, queries, queries_at,
};
use super::{
    access_reg, cq, dct, domains, eq, flow_counter, flow_entry, flow_group, flow_table, general_object, hca,
};
use super::{congestion, mad, mcg, memic, mkey, moderation, nic_vport, odp, pacing, pages};
use super::{
    psv, q_counter, qp, qp_transition as transition, rewrite, roce_address, rq, rqt, scheduling, sq, srq,
    tir, tis, vport, vxlan, xrq,
};
use crate::firmware::{Firmware, State};
use crate::object::Kind::{self, *};

/// Commands that say no more than "done" may have as little room as status and syndrome.
const DONE: usize = 8;
/// An output that names the object that was made.
const NAME: usize = ObjectOut::SIZE;
/// QUERY_HCA_CAP: drivers may leave out the end, which is reserved.
const CAPS: usize = OutHeader::SIZE + caps::General::SIZE;
/// Where the numbers of CREATE_PSV's output begin.
const PSVS: usize = CreatePsvOut::PSV0.offset();
/// Where QUERY_Q_COUNTER names its set.
const COUNTER_SET: usize = QueryQCounterIn::COUNTER_SET_ID.offset();
/// Where commands name an element of scheduling, and where the one that makes it does.
const ELEMENT: usize = SchedulingElementIn::SCHEDULING_ELEMENT_ID.offset();
const MADE_ELEMENT: usize = CreateSchedulingElementOut::SCHEDULING_ELEMENT_ID.offset();
/// Where PAGE_FAULT_RESUME names the queue pair.
const FAULT: usize = PageFaultResumeIn::TOKEN.offset();

/// Where commands name flow tables, groups and counters.
const TABLE_ID: usize = FlowIn::TABLE_ID.offset();
const GROUP_ID: usize = FlowIn::GROUP_ID.offset();
const COUNTER_ID: usize = QueryFlowCounterIn::FLOW_COUNTER_ID.offset();
/// QUERY_FLOW_COUNTER: the smallest output has one.
const TRAFFIC: usize = OutHeader::SIZE + TrafficCounter::SIZE;

macro_rules! rows {
    ($(
        $op:ident, $name:literal, $state:ident,
        ($layout:ident $([$($form:ident @ $at:expr),+])? $(.. $end:expr)? => $output:expr),
        $object:expr, $icm:ident, $user:expr, $time:ident, $handler:expr, $template:expr $(, if $offered:expr)?;
    )*) => {
        /// Every command of the adapter, in order of opcodes.
        pub static TABLE: &[Command] = &[$(Command {
            opcode: Opcode::$op,
            name: $name,
            state: State::$state,
            layout: &$layout::LAYOUT,
            forms: &[$($((&$form::LAYOUT, $at)),+)?],
            input: rows!(@input $layout $($end)?),
            output: $output,
            object: $object,
            icm: IcmUse::$icm,
            user: $user,
            time: TimeClass::$time,
            handler: $handler,
            template: $template,
            offered: rows!(@offered $($offered)?),
        },)*];
    };
    (@input $layout:ident) => { $layout::SIZE };
    (@input $layout:ident $end:expr) => { $end };
    (@offered) => { |_| true };
    (@offered $offered:expr) => { $offered };
}

// opcode, name, least state, (input [other forms of it @ byte] .. its end if that is behind the input's structure => bytes of output),
//     object, ICM, user contexts, time, handler, template [, if the adapter has it];
rows! {
    QueryHcaCap, "QUERY_HCA_CAP", Enabled, (QueryHcaCapIn => CAPS), NONE, OBJECT,
        User::ALL, Query, ReadOnly(hca::query_cap), Object;
    QueryAdapter, "QUERY_ADAPTER", Enabled, (InHeader => QueryAdapterOut::SIZE), NONE, OBJECT,
        User::ALL, Query, ReadOnly(hca::query_adapter), Object;
    InitHca, "INIT_HCA", Enabled, (InHeader => DONE), NONE, OBJECT,
        User::KERNEL, Lifecycle, WithEffects(hca::init), Object;
    TeardownHca, "TEARDOWN_HCA", Initialized, (InHeader => DONE), NONE, OBJECT,
        User::KERNEL, Lifecycle, WithEffects(hca::teardown), Object;
    EnableHca, "ENABLE_HCA", Disabled, (FunctionIn => DONE), NONE, OBJECT,
        User::KERNEL, Lifecycle, WithEffects(hca::enable), Object;
    DisableHca, "DISABLE_HCA", Enabled, (FunctionIn => DONE), NONE, OBJECT,
        User::KERNEL, Lifecycle, WithEffects(hca::disable), Object;
    QueryPages, "QUERY_PAGES", Enabled, (FunctionIn => QueryPagesOut::SIZE), NONE, OBJECT,
        User::OWNERS.and_tools(), Query, ReadOnly(pages::query), Input(pages::query_template);
    ManagePages, "MANAGE_PAGES", Enabled, (FunctionIn => ManagePagesOut::SIZE), NONE, OBJECT,
        User::KERNEL, Pages, Update(pages::manage), Input(pages::manage_template);
    SetHcaCap, "SET_HCA_CAP", Enabled, (SetHcaCapIn => DONE), NONE, OBJECT,
        User::KERNEL.and_tools(), Modify, Update(hca::set_cap), Input(hca::set_cap_template);
    QueryIssi, "QUERY_ISSI", Disabled, (InHeader => QueryIssiOut::SIZE), NONE, OBJECT,
        User::ALL, Query, ReadOnly(hca::query_issi), Object;
    SetIssi, "SET_ISSI", Disabled, (SetIssiIn => DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(hca::set_issi), Input(hca::set_issi_template);
    SetDriverVersion, "SET_DRIVER_VERSION", Enabled, (InHeader .. hca::DRIVER_VERSION_LEN => DONE), NONE, OBJECT,
        User::KERNEL, Modify, ReadOnly(hca::nothing), Object;

    CreateMkey, "CREATE_MKEY", Initialized, (CreateMkeyIn => NAME), makes(Mkey), TRANSLATIONS,
        User::naming(names::create_mkey).placed(place::mkey), Create, Update(mkey::create),
        Input(mkey::create_template);
    QueryMkey, "QUERY_MKEY", Initialized, (ObjectIn => QueryMkeyOut::SIZE), queries(Mkey), OBJECT,
        User::hiding(place::hide_mkey), Query, ReadOnly(mkey::query), Object;
    DestroyMkey, "DESTROY_MKEY", Initialized, (ObjectIn => DONE), destroys(Mkey), OBJECT,
        User::ALL, Destroy, Update(mkey::destroy), Object;
    QuerySpecialContexts, "QUERY_SPECIAL_CONTEXTS", Initialized, (InHeader => QuerySpecialContextsOut::SIZE), NONE, OBJECT,
        User::ALL, Query, ReadOnly(hca::query_special_contexts), Object;
    PageFaultResume, "PAGE_FAULT_RESUME", Initialized, (PageFaultResumeIn => DONE), changes_at(Qp, FAULT), OBJECT,
        User::KERNEL, Other, WithEffects(odp::resume), Input(odp::template);
    AllocMemic, "ALLOC_MEMIC", Initialized, (AllocMemicIn => AllocMemicOut::SIZE), NONE, OBJECT,
        User::KERNEL, Create, Update(memic::alloc), Input(memic::alloc_template), if Firmware::has_device_memory;
    DeallocMemic, "DEALLOC_MEMIC", Initialized, (DeallocMemicIn => DONE), NONE, OBJECT,
        User::KERNEL, Destroy, Update(memic::dealloc), Input(memic::dealloc_template), if Firmware::has_device_memory;
    ModifyMemic, "MODIFY_MEMIC", Initialized, (ModifyMemicIn => ModifyMemicOut::SIZE), NONE, OBJECT,
        User::KERNEL, Modify, Update(memic::modify), Input(memic::modify_template), if memic::has_operations;

    CreateEq, "CREATE_EQ", Initialized, (CreateEqIn => NAME), makes(Eq), LIST_AT_ONCE,
        User::KERNEL, Create, WithEffects(eq::create), Input(eq::create_template);
    DestroyEq, "DESTROY_EQ", Initialized, (ObjectIn => DONE), destroys(Eq), OBJECT,
        User::KERNEL, Destroy, WithEffects(eq::destroy), Object;
    QueryEq, "QUERY_EQ", Initialized, (ObjectIn => QueryEqOut::SIZE), queries(Eq), OBJECT,
        User::OWNERS.and_tools(), Query, ReadOnly(eq::query), Object;

    CreateCq, "CREATE_CQ", Initialized, (CreateCqIn => NAME), makes(Cq), LIST,
        User::naming(names::create_cq).placed(place::cq), Create, WithEffects(cq::create), Input(cq::create_template);
    DestroyCq, "DESTROY_CQ", Initialized, (ObjectIn => DONE), destroys(Cq), OBJECT,
        User::ALL, Destroy, WithEffects(cq::destroy), Object;
    QueryCq, "QUERY_CQ", Initialized, (ObjectIn => QueryCqOut::SIZE), queries(Cq), OBJECT,
        User::hiding(place::hide_cq), Query, ReadOnly(cq::query), Object;
    ModifyCq, "MODIFY_CQ", Initialized, (ModifyCqIn => DONE), changes(Cq), LIST,
        User::naming(names::modify_cq).placed(place::resized_cq), Modify, WithEffects(cq::modify),
        Input(cq::modify_template);

    CreateQp, "CREATE_QP", Initialized, (CreateQpIn => NAME), makes(Qp), LIST,
        User::naming(names::create_qp).placed(place::qp), Create, WithEffects(qp::create), Input(qp::create_template);
    DestroyQp, "DESTROY_QP", Initialized, (ObjectIn => DONE), destroys(Qp), OBJECT,
        User::ALL, Destroy, WithEffects(qp::destroy), Object;
    Rst2InitQp, "RST2INIT_QP", Initialized, (ModifyQpIn => DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    Init2RtrQp, "INIT2RTR_QP", Initialized, (ModifyQpIn => DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    Rtr2RtsQp, "RTR2RTS_QP", Initialized, (ModifyQpIn => DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    Rts2RtsQp, "RTS2RTS_QP", Initialized, (ModifyQpIn => DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    SqErr2RtsQp, "SQERR2RTS_QP", Initialized, (ModifyQpIn => DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    ToErrQp, "2ERR_QP", Initialized, (ObjectIn => DONE), changes(Qp), OBJECT,
        User::ALL, Modify, WithEffects(transition::modify), Object;
    Rts2SqdQp, "RTS2SQD_QP", Initialized, (ModifyQpIn => DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    Sqd2SqdQp, "SQD2SQD_QP", Initialized, (ModifyQpIn => DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    ToRstQp, "2RST_QP", Initialized, (ObjectIn => DONE), changes(Qp), OBJECT,
        User::ALL, Modify, WithEffects(transition::modify), Object;
    QueryQp, "QUERY_QP", Initialized, (QueryQpIn => QueryQpOut::SIZE), queries(Qp), OBJECT,
        User::hiding(place::hide_qp), Query, ReadOnly(qp::query), Object;
    Sqd2RtsQp, "SQD2RTS_QP", Initialized, (ModifyQpIn => DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    MadIfc, "MAD_IFC", Initialized, (MadIfc => MadIfc::SIZE), NONE, OBJECT,
        User::KERNEL, Mad, WithEffects(mad::mad_ifc), Input(mad::template), if Firmware::is_infiniband;
    Init2InitQp, "INIT2INIT_QP", Initialized, (ModifyQpIn => DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);

    CreatePsv, "CREATE_PSV", Initialized, (CreatePsvIn => CreatePsvOut::SIZE), makes_psvs(PSVS), OBJECT,
        User::naming(names::create_psv), Create, Update(psv::create), Input(psv::create_template);
    DestroyPsv, "DESTROY_PSV", Initialized, (ObjectIn => DONE), destroys(Psv), OBJECT,
        User::ALL, Destroy, Update(psv::destroy), Object;

    CreateSrq, "CREATE_SRQ", Initialized, (CreateSrqIn => NAME), makes(Srq), LIST,
        User::naming(names::create_srq), Create, WithEffects(srq::create_basic), Input(srq::create_template);
    DestroySrq, "DESTROY_SRQ", Initialized, (ObjectIn => DONE), destroys(Srq), OBJECT,
        User::ALL, Destroy, WithEffects(srq::destroy), Object;
    QuerySrq, "QUERY_SRQ", Initialized, (ObjectIn => QuerySrqOut::SIZE), queries(Srq), OBJECT,
        User::hiding(place::hide_srq), Query, ReadOnly(srq::query), Object;
    ArmRq, "ARM_RQ", Initialized, (ObjectIn => DONE), changes(Srq), OBJECT,
        User::ALL, Modify, WithEffects(srq::arm), Input(srq::arm_template);
    CreateXrcSrq, "CREATE_XRC_SRQ", Initialized, (CreateSrqIn => NAME), makes(XrcSrq), LIST,
        User::naming(names::create_srq).placed(place::srq), Create, WithEffects(srq::create_xrc),
        Input(srq::create_xrc_template);
    DestroyXrcSrq, "DESTROY_XRC_SRQ", Initialized, (ObjectIn => DONE), destroys(XrcSrq), OBJECT,
        User::ALL, Destroy, WithEffects(srq::destroy), Object;
    QueryXrcSrq, "QUERY_XRC_SRQ", Initialized, (ObjectIn => QuerySrqOut::SIZE), queries(XrcSrq), OBJECT,
        User::hiding(place::hide_srq), Query, ReadOnly(srq::query), Object;
    ArmXrcSrq, "ARM_XRC_SRQ", Initialized, (ObjectIn => DONE), changes(XrcSrq), OBJECT,
        User::ALL, Modify, WithEffects(srq::arm), Input(srq::arm_xrc_template);

    CreateDct, "CREATE_DCT", Initialized, (CreateDctIn => NAME), makes(Dct), OBJECT,
        User::naming(names::create_dct).placed(place::dct), Create, Update(dct::create), Input(dct::create_template);
    DestroyDct, "DESTROY_DCT", Initialized, (ObjectIn => DONE), destroys(Dct), OBJECT,
        User::ALL, Destroy, WithEffects(dct::destroy), Object;
    DrainDct, "DRAIN_DCT", Initialized, (ObjectIn => DONE), changes(Dct), OBJECT,
        User::ALL, Other, WithEffects(dct::drain), Object;
    QueryDct, "QUERY_DCT", Initialized, (ObjectIn => QueryDctOut::SIZE), queries(Dct), OBJECT,
        User::ALL, Query, ReadOnly(dct::query), Object;
    ArmDctForKeyViolation, "ARM_DCT_FOR_KEY_VIOLATION", Initialized, (ObjectIn => DONE), changes(Dct), OBJECT,
        User::ALL, Modify, Update(dct::arm), Object;

    CreateXrq, "CREATE_XRQ", Initialized, (CreateXrqIn => NAME), makes(Xrq), XRQ_LIST,
        User::naming(names::create_xrq).placed(place::xrq), Create, WithEffects(xrq::create),
        Input(xrq::create_template), if xrq::has_matching;
    DestroyXrq, "DESTROY_XRQ", Initialized, (ObjectIn => DONE), destroys(Xrq), OBJECT,
        User::ALL, Destroy, WithEffects(srq::destroy), Object, if xrq::has_matching;
    QueryXrq, "QUERY_XRQ", Initialized, (ObjectIn => QueryXrqOut::SIZE), queries(Xrq), OBJECT,
        User::hiding(place::hide_xrq), Query, ReadOnly(xrq::query), Object, if xrq::has_matching;
    ArmXrq, "ARM_XRQ", Initialized, (ObjectIn => DONE), changes(Xrq), OBJECT,
        User::ALL, Modify, WithEffects(srq::arm), Input(xrq::arm_template), if xrq::has_matching;

    QueryVportState, "QUERY_VPORT_STATE", Initialized, (VportIn => QueryVportStateOut::SIZE), NONE, OBJECT,
        User::ALL, Query, ReadOnly(nic_vport::query_state), Object, if Firmware::is_ethernet;
    ModifyVportState, "MODIFY_VPORT_STATE", Initialized, (VportIn => DONE), NONE, OBJECT,
        User::KERNEL, Modify, WithEffects(nic_vport::modify_state), Input(nic_vport::modify_state_template),
        if Firmware::is_ethernet;
    QueryNicVportContext, "QUERY_NIC_VPORT_CONTEXT", Initialized, (VportIn => QueryNicVportContextOut::SIZE),
        NONE, OBJECT, User::ALL, Query, ReadOnly(nic_vport::query), Object, if Firmware::is_ethernet;
    ModifyNicVportContext, "MODIFY_NIC_VPORT_CONTEXT", Initialized, (ModifyNicVportContextIn [VportIn @ 0] => DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(nic_vport::modify), Input(nic_vport::modify_template), if Firmware::is_ethernet;
    QueryRoceAddress, "QUERY_ROCE_ADDRESS", Initialized, (VportIn => QueryRoceAddressOut::SIZE),
        NONE, OBJECT, User::ALL, Query, ReadOnly(roce_address::query), Object, if Firmware::is_ethernet;
    SetRoceAddress, "SET_ROCE_ADDRESS", Initialized, (RoceAddressIn => DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(roce_address::set), Input(roce_address::set_template), if Firmware::is_ethernet;
    QueryHcaVportContext, "QUERY_HCA_VPORT_CONTEXT", Initialized, (QueryHcaVportIn => QueryHcaVportContextOut::SIZE),
        NONE, OBJECT, User::ALL, Query, ReadOnly(vport::context), Object, if Firmware::is_infiniband;
    ModifyHcaVportContext, "MODIFY_HCA_VPORT_CONTEXT", Initialized, (QueryHcaVportIn [QueryHcaVportContextOut @ 0] .. vport::MODIFY_CONTEXT_LEN => DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(vport::modify_context), Object, if Firmware::is_infiniband;
    QueryHcaVportGid, "QUERY_HCA_VPORT_GID", Initialized, (QueryHcaVportIn => NAME), NONE, OBJECT,
        User::ALL, Query, ReadOnly(vport::gids), Input(vport::table_template), if Firmware::is_infiniband;
    QueryHcaVportPkey, "QUERY_HCA_VPORT_PKEY", Initialized, (QueryHcaVportIn => NAME), NONE, OBJECT,
        User::ALL, Query, ReadOnly(vport::pkeys), Input(vport::table_template);
    QueryVnicEnv, "QUERY_VNIC_ENV", Initialized, (VportIn => nic_vport::VNIC_ENV_LEN), NONE, OBJECT,
        User::ALL, Query, ReadOnly(nic_vport::query_environment), Object, if Firmware::is_ethernet;
    QueryVportCounter, "QUERY_VPORT_COUNTER", Initialized, (QueryVportCounterIn => vport::COUNTERS_LEN), NONE, OBJECT,
        User::ALL, Query, Update(vport::counters), Object;
    AllocQCounter, "ALLOC_Q_COUNTER", Initialized, (ObjectIn => NAME), makes(QCounter), OBJECT,
        User::ALL, Create, Update(q_counter::alloc), Object;
    DeallocQCounter, "DEALLOC_Q_COUNTER", Initialized, (ObjectIn => DONE), destroys(QCounter), OBJECT,
        User::ALL, Destroy, Update(q_counter::dealloc), Object;
    QueryQCounter, "QUERY_Q_COUNTER", Initialized, (QueryQCounterIn [VportIn @ 0] => q_counter::OUTPUT),
        queries_at(QCounter, COUNTER_SET), OBJECT, User::ALL, Query, Update(q_counter::query), Object;

    SetPpRateLimit, "SET_PP_RATE_LIMIT", Initialized, (SetPpRateLimitIn => DONE), NONE, OBJECT,
        User::ALL, Modify, Update(pacing::set), Input(pacing::template), if pacing::has_rates;
    CreateSchedulingElement, "CREATE_SCHEDULING_ELEMENT", Initialized,
        (CreateSchedulingElementIn => CreateSchedulingElementOut::SIZE), makes_at(GeneralObject, MADE_ELEMENT), OBJECT,
        User::naming(scheduling::names), Create, Update(scheduling::create), Input(scheduling::create_template),
        if scheduling::has_groups;
    DestroySchedulingElement, "DESTROY_SCHEDULING_ELEMENT", Initialized, (SchedulingElementIn => DONE),
        destroys_at(GeneralObject, ELEMENT), OBJECT, User::ALL, Destroy, Update(scheduling::destroy),
        Input(scheduling::template), if scheduling::has_groups;
    QuerySchedulingElement, "QUERY_SCHEDULING_ELEMENT", Initialized,
        (SchedulingElementIn => QuerySchedulingElementOut::SIZE), queries_at(GeneralObject, ELEMENT), OBJECT,
        User::ALL, Query, ReadOnly(scheduling::query), Input(scheduling::template), if scheduling::has_groups;
    ModifySchedulingElement, "MODIFY_SCHEDULING_ELEMENT", Initialized, (ModifySchedulingElementIn => DONE),
        changes_at(GeneralObject, ELEMENT), OBJECT, User::ALL, Modify, Update(scheduling::modify),
        Input(scheduling::modify_template), if scheduling::has_groups;

    AllocPd, "ALLOC_PD", Initialized, (ObjectIn => NAME), makes(Pd), OBJECT,
        User::ALL, Create, Update(domains::alloc), Object;
    DeallocPd, "DEALLOC_PD", Initialized, (ObjectIn => DONE), destroys(Pd), OBJECT,
        User::ALL, Destroy, Update(domains::dealloc_pd), Object;
    AllocUar, "ALLOC_UAR", Initialized, (ObjectIn => NAME), makes(Uar), OBJECT,
        User::ALL, Create, Update(domains::alloc), Object;
    DeallocUar, "DEALLOC_UAR", Initialized, (ObjectIn => DONE), destroys(Uar), OBJECT,
        User::ALL, Destroy, Update(domains::dealloc_uar), Object;
    ConfigIntModeration, "CONFIG_INT_MODERATION", Initialized, (IntModeration => DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(moderation::config), Input(moderation::template);
    AccessReg, "ACCESS_REGISTER", Enabled, (AccessRegIn => AccessRegIn::SIZE), NONE, OBJECT,
        User::KERNEL.and_tools(), Other, WithEffects(access_reg::access), Input(access_reg::template);
    AttachToMcg, "ATTACH_TO_MCG", Initialized, (McgIn => DONE), changes(Qp), OBJECT,
        User::ALL, Other, Update(mcg::attach), Input(mcg::template);
    DetachFromMcg, "DETACH_FROM_MCG", Initialized, (McgIn => DONE), changes(Qp), OBJECT,
        User::ALL, Other, Update(mcg::detach), Input(mcg::template);
    Nop, "NOP", Enabled, (InHeader => DONE), NONE, OBJECT,
        User::ALL, Other, ReadOnly(hca::nothing), Object;
    AllocXrcd, "ALLOC_XRCD", Initialized, (ObjectIn => NAME), makes(Xrcd), OBJECT,
        User::ALL, Create, Update(domains::alloc), Object;
    DeallocXrcd, "DEALLOC_XRCD", Initialized, (ObjectIn => DONE), destroys(Xrcd), OBJECT,
        User::ALL, Destroy, Update(domains::dealloc_xrcd), Object;
    AllocTransportDomain, "ALLOC_TRANSPORT_DOMAIN", Initialized, (ObjectIn => NAME), makes(TransportDomain), OBJECT,
        User::ALL, Create, Update(domains::alloc), Object;
    DeallocTransportDomain, "DEALLOC_TRANSPORT_DOMAIN", Initialized, (ObjectIn => DONE), destroys(TransportDomain), OBJECT,
        User::ALL, Destroy, Update(domains::dealloc_transport_domain), Object;
    QueryCongStatus, "QUERY_CONG_STATUS", Initialized, (CongStatusIn => CongStatusOut::SIZE), NONE, OBJECT,
        User::ALL, Query, Update(congestion::status), Input(congestion::status_template), if Firmware::is_ethernet;
    ModifyCongStatus, "MODIFY_CONG_STATUS", Initialized, (CongStatusIn => DONE), NONE, OBJECT,
        User::KERNEL.and_tools(), Modify, Update(congestion::modify_status), Input(congestion::status_template), if Firmware::is_ethernet;
    QueryCongParams, "QUERY_CONG_PARAMS", Initialized, (CongParamsIn => congestion::QUERY_LEN), NONE, OBJECT,
        User::ALL, Query, Update(congestion::params), Input(congestion::params_template), if Firmware::is_ethernet;
    ModifyCongParams, "MODIFY_CONG_PARAMS", Initialized, (CongParamsIn [ReactionParams @ MODIFY_PARAMS, NotificationParams @ MODIFY_PARAMS] .. congestion::MODIFY_LEN => DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(congestion::modify_params), Input(congestion::params_template), if Firmware::is_ethernet;
    QueryCongStatistics, "QUERY_CONG_STATISTICS", Initialized, (CongStatisticsIn => CongStatisticsOut::SIZE), NONE, OBJECT,
        User::ALL, Query, Update(congestion::statistics), Object, if Firmware::is_ethernet;
    AddVxlanUdpDport, "ADD_VXLAN_UDP_DPORT", Initialized, (VxlanUdpDportIn => DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(vxlan::add), Input(vxlan::template), if Firmware::is_ethernet;
    DeleteVxlanUdpDport, "DELETE_VXLAN_UDP_DPORT", Initialized, (VxlanUdpDportIn => DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(vxlan::delete), Input(vxlan::template), if Firmware::is_ethernet;

    QueryLag, "QUERY_LAG", Initialized, (InHeader => QueryLagOut::SIZE), NONE, OBJECT,
        User::ALL, Query, ReadOnly(hca::query_lag), Object;
    CreateTir, "CREATE_TIR", Initialized, (CreateTirIn => NAME), makes(Tir), OBJECT,
        User::naming(names::create_tir), Create, Update(tir::create), Input(tir::create_template),
        if Firmware::is_ethernet;
    ModifyTir, "MODIFY_TIR", Initialized, (ModifyTirIn => DONE), changes(Tir), OBJECT,
        User::naming(names::modify_tir), Modify, Update(tir::modify), Input(tir::modify_template),
        if Firmware::is_ethernet;
    DestroyTir, "DESTROY_TIR", Initialized, (ObjectIn => DONE), destroys(Tir), OBJECT,
        User::ALL, Destroy, Update(tir::destroy), Object, if Firmware::is_ethernet;
    QueryTir, "QUERY_TIR", Initialized, (ObjectIn => QueryTirOut::SIZE), queries(Tir), OBJECT,
        User::ALL, Query, ReadOnly(tir::query), Object, if Firmware::is_ethernet;

    // On InfiniBand ports nothing uses them without BlueFlame, and the capability is not set.
    CreateSq, "CREATE_SQ", Initialized, (CreateSqIn => NAME), makes(Sq), LIST,
        User::naming(names::create_sq).placed(place::sq), Create, WithEffects(sq::create),
        Input(sq::create_template), if Firmware::has_send_queues;
    ModifySq, "MODIFY_SQ", Initialized, (ModifySqIn => DONE), changes(Sq), OBJECT,
        User::naming(names::modify_sq), Modify, WithEffects(sq::modify), Input(sq::modify_template), if Firmware::has_send_queues;
    DestroySq, "DESTROY_SQ", Initialized, (ObjectIn => DONE), destroys(Sq), OBJECT,
        User::ALL, Destroy, WithEffects(sq::destroy), Object, if Firmware::has_send_queues;
    QuerySq, "QUERY_SQ", Initialized, (ObjectIn => QuerySqOut::SIZE), queries(Sq), OBJECT,
        User::hiding(place::hide_sq), Query, ReadOnly(sq::query), Object, if Firmware::has_send_queues;

    CreateRq, "CREATE_RQ", Initialized, (CreateRqIn => NAME), makes(Rq), LIST,
        User::naming(names::create_rq).placed(place::rq), Create, WithEffects(rq::create),
        Input(rq::create_template), if Firmware::is_ethernet;
    ModifyRq, "MODIFY_RQ", Initialized, (ModifyRqIn => DONE), changes(Rq), OBJECT,
        User::naming(names::modify_rq), Modify, WithEffects(rq::modify), Input(rq::modify_template),
        if Firmware::is_ethernet;
    DestroyRq, "DESTROY_RQ", Initialized, (ObjectIn => DONE), destroys(Rq), OBJECT,
        User::ALL, Destroy, WithEffects(rq::destroy), Object, if Firmware::is_ethernet;
    QueryRq, "QUERY_RQ", Initialized, (ObjectIn => QueryRqOut::SIZE), queries(Rq), OBJECT,
        User::hiding(place::hide_rq), Query, ReadOnly(rq::query), Object, if Firmware::is_ethernet;

    CreateRmp, "CREATE_RMP", Initialized, (CreateRmpIn => NAME), makes(Rmp), LIST,
        User::naming(names::create_rmp).placed(place::rmp), Create, WithEffects(srq::create_rmp),
        Input(srq::create_rmp_template);
    ModifyRmp, "MODIFY_RMP", Initialized, (ModifyRmpIn => DONE), changes(Rmp), OBJECT,
        User::ALL, Modify, WithEffects(srq::modify_rmp), Input(srq::modify_rmp_template);
    DestroyRmp, "DESTROY_RMP", Initialized, (ObjectIn => DONE), destroys(Rmp), OBJECT,
        User::ALL, Destroy, WithEffects(srq::destroy), Object;
    QueryRmp, "QUERY_RMP", Initialized, (ObjectIn => QueryRmpOut::SIZE), queries(Rmp), OBJECT,
        User::hiding(place::hide_rmp), Query, ReadOnly(srq::query), Object;

    CreateTis, "CREATE_TIS", Initialized, (CreateTisIn => NAME), makes(Tis), OBJECT,
        User::naming(names::create_tis), Create, Update(tis::create), Input(tis::create_template),
        if Firmware::is_ethernet;
    ModifyTis, "MODIFY_TIS", Initialized, (ModifyTisIn => DONE), changes(Tis), OBJECT,
        User::ALL, Modify, Update(tis::modify), Input(tis::modify_template), if Firmware::is_ethernet;
    DestroyTis, "DESTROY_TIS", Initialized, (ObjectIn => DONE), destroys(Tis), OBJECT,
        User::ALL, Destroy, Update(tis::destroy), Object, if Firmware::is_ethernet;
    QueryTis, "QUERY_TIS", Initialized, (ObjectIn => QueryTisOut::SIZE), queries(Tis), OBJECT,
        User::ALL, Query, ReadOnly(tis::query), Object, if Firmware::is_ethernet;
    CreateRqt, "CREATE_RQT", Initialized, (CreateRqtIn => NAME), makes(Rqt), RQ_LIST,
        User::naming(names::rqt), Create, Update(rqt::create), Input(rqt::create_template),
        if Firmware::is_ethernet;
    ModifyRqt, "MODIFY_RQT", Initialized, (ModifyRqtIn => DONE), changes(Rqt), RQ_LIST,
        User::naming(names::rqt), Modify, Update(rqt::modify), Input(rqt::modify_template),
        if Firmware::is_ethernet;
    DestroyRqt, "DESTROY_RQT", Initialized, (ObjectIn => DONE), destroys(Rqt), OBJECT,
        User::ALL, Destroy, Update(rqt::destroy), Object, if Firmware::is_ethernet;
    QueryRqt, "QUERY_RQT", Initialized, (ObjectIn => QueryRqtOut::SIZE), queries(Rqt), OBJECT,
        User::ALL, Query, ReadOnly(rqt::query), Object, if Firmware::is_ethernet;
    SetFlowTableRoot, "SET_FLOW_TABLE_ROOT", Initialized, (SetFlowTableRootIn => DONE),
        changes_at(FlowTable, TABLE_ID), OBJECT, User::KERNEL, Modify, Update(flow_table::set_root),
        Input(flow_table::root_template), if flow_table::has_steering;
    CreateFlowTable, "CREATE_FLOW_TABLE", Initialized, (CreateFlowTableIn => CreateFlowTableOut::SIZE), makes(FlowTable), OBJECT,
        User::naming(flow_table::names), Create, Update(flow_table::create), Input(flow_table::create_template),
        if flow_table::has_steering;
    DestroyFlowTable, "DESTROY_FLOW_TABLE", Initialized, (FlowIn => DONE), destroys_at(FlowTable, TABLE_ID), OBJECT,
        User::ALL, Destroy, Update(flow_table::destroy), Input(flow_table::template), if flow_table::has_steering;
    QueryFlowTable, "QUERY_FLOW_TABLE", Initialized, (FlowIn => QueryFlowTableOut::SIZE),
        queries_at(FlowTable, TABLE_ID), OBJECT, User::ALL, Query, ReadOnly(flow_table::query),
        Input(flow_table::template), if flow_table::has_steering;
    CreateFlowGroup, "CREATE_FLOW_GROUP", Initialized, (CreateFlowGroupIn => NAME), makes(FlowGroup), OBJECT,
        User::naming(flow_group::names), Create, Update(flow_group::create), Input(flow_group::create_template),
        if flow_table::has_steering;
    DestroyFlowGroup, "DESTROY_FLOW_GROUP", Initialized, (FlowIn => DONE), destroys_at(FlowGroup, GROUP_ID), OBJECT,
        User::ALL, Destroy, Update(flow_group::destroy), Input(flow_table::template), if flow_table::has_steering;
    QueryFlowGroup, "QUERY_FLOW_GROUP", Initialized, (FlowIn => QueryFlowGroupOut::SIZE),
        queries_at(FlowGroup, GROUP_ID), OBJECT, User::ALL, Query, ReadOnly(flow_group::query),
        Input(flow_table::template), if flow_table::has_steering;
    SetFlowTableEntry, "SET_FLOW_TABLE_ENTRY", Initialized, (SetFteIn [FlowListEntry @ SetFteIn::SIZE] => DONE), changes_at(FlowTable, TABLE_ID),
        FLOW_ENTRY, User::naming(flow_entry::names), Modify, Update(flow_entry::set), Input(flow_entry::set_template),
        if flow_table::has_steering;
    QueryFlowTableEntry, "QUERY_FLOW_TABLE_ENTRY", Initialized, (FlowIn => QueryFteOut::SIZE),
        queries_at(FlowTable, TABLE_ID), OBJECT, User::ALL, Query, ReadOnly(flow_entry::query),
        Input(flow_table::template), if flow_table::has_steering;
    DeleteFlowTableEntry, "DELETE_FLOW_TABLE_ENTRY", Initialized, (FlowIn => DONE), changes_at(FlowTable, TABLE_ID),
        OBJECT, User::ALL, Modify, Update(flow_entry::delete), Input(flow_table::template),
        if flow_table::has_steering;
    AllocFlowCounter, "ALLOC_FLOW_COUNTER", Initialized, (AllocFlowCounterIn => NAME), makes(FlowCounter), FLOW_COUNTERS,
        User::ALL, Create, Update(flow_counter::alloc), Object, if flow_table::has_steering;
    DeallocFlowCounter, "DEALLOC_FLOW_COUNTER", Initialized, (ObjectIn => DONE), destroys(FlowCounter), OBJECT,
        User::ALL, Destroy, Update(flow_counter::dealloc), Object, if flow_table::has_steering;
    QueryFlowCounter, "QUERY_FLOW_COUNTER", Initialized, (QueryFlowCounterIn => TRAFFIC),
        queries_at(FlowCounter, COUNTER_ID), OBJECT, User::ALL, Query, ReadOnly(flow_counter::query),
        Input(flow_counter::query_template), if flow_table::has_steering;
    ModifyFlowTable, "MODIFY_FLOW_TABLE", Initialized, (ModifyFlowTableIn => DONE), changes_at(FlowTable, TABLE_ID),
        OBJECT, User::naming(flow_table::names), Modify, Update(flow_table::modify),
        Input(flow_table::modify_template), if flow_table::has_steering;
    AllocPacketReformatContext, "ALLOC_PACKET_REFORMAT_CONTEXT", Initialized, (AllocPacketReformatContextIn => NAME),
        makes(ReformatContext), REFORMAT_DATA, User::ALL, Create, Update(rewrite::alloc_reformat),
        Input(rewrite::reformat_template), if rewrite::has_rewriting;
    DeallocPacketReformatContext, "DEALLOC_PACKET_REFORMAT_CONTEXT", Initialized, (ObjectIn => DONE),
        destroys(ReformatContext), OBJECT, User::ALL, Destroy, Update(rewrite::dealloc_reformat), Object,
        if rewrite::has_rewriting;
    QueryPacketReformatContext, "QUERY_PACKET_REFORMAT_CONTEXT", Initialized, (ObjectIn => QueryPacketReformatOut::SIZE),
        queries(ReformatContext), OBJECT, User::ALL, Query, ReadOnly(rewrite::query_reformat),
        Input(rewrite::template), if rewrite::has_rewriting;
    AllocModifyHeaderContext, "ALLOC_MODIFY_HEADER_CONTEXT", Initialized, (AllocModifyHeaderContextIn => NAME),
        makes(HeaderContext), HEADER_CHANGES, User::ALL, Create, Update(rewrite::alloc_changes),
        Input(rewrite::changes_template), if rewrite::has_rewriting;
    DeallocModifyHeaderContext, "DEALLOC_MODIFY_HEADER_CONTEXT", Initialized, (ObjectIn => DONE), destroys(HeaderContext),
        OBJECT, User::ALL, Destroy, Update(rewrite::dealloc_changes), Object, if rewrite::has_rewriting;

    CreateGeneralObject, "CREATE_GENERAL_OBJECT", Initialized, (GeneralObjectIn => NAME), makes(GeneralObject), OBJECT,
        User::naming(general_object::names), Create, Update(general_object::create),
        Several(general_object::create_templates);
    ModifyGeneralObject, "MODIFY_GENERAL_OBJECT", Initialized, (GeneralObjectIn => DONE), changes(GeneralObject), OBJECT,
        User::ALL, Modify, Update(general_object::modify),
        Refused(general_object::template, "reserved QP numbers have nothing to change");
    QueryGeneralObject, "QUERY_GENERAL_OBJECT", Initialized, (GeneralObjectIn => general_object::QUERY_LEN),
        queries(GeneralObject), OBJECT, User::ALL, Query, ReadOnly(general_object::query), Several(general_object::templates);
    DestroyGeneralObject, "DESTROY_GENERAL_OBJECT", Initialized, (GeneralObjectIn => DONE), destroys(GeneralObject), OBJECT,
        User::ALL, Destroy, Update(general_object::destroy), Several(general_object::templates);
    CreateUctx, "CREATE_UCTX", Initialized, (CreateUctxIn => CreateUctxOut::SIZE), makes(UserContext), OBJECT,
        User::KERNEL, Create, Update(devx::create_context), Object;
    DestroyUctx, "DESTROY_UCTX", Initialized, (DestroyUctxIn => DONE), destroys(UserContext), OBJECT,
        User::KERNEL, Destroy, Update(devx::destroy_context), Object;
    CreateUmem, "CREATE_UMEM", Initialized, (CreateUmemIn => NAME), makes(Umem), UMEM_LIST,
        User::ALL, Create, Update(devx::create_umem), Input(devx::create_umem_template);
    DestroyUmem, "DESTROY_UMEM", Initialized, (ObjectIn => DONE), destroys(Umem), OBJECT,
        User::ALL, Destroy, Update(devx::destroy_umem), Object;
    SyncSteering, "SYNC_STEERING", Initialized, (InHeader => DONE), NONE, OBJECT,
        User::ALL, Other, ReadOnly(rewrite::sync), Object, if rewrite::has_software;
}

/// Transitions of queue pairs that bring a context: a user's names are checked in it, and it can't move the record.
const TRANSITION: User = User::naming(names::transition).placed(place::transition);

/// The row of a command. `None`: the adapter does not have it.
pub fn find(opcode: Opcode) -> Option<&'static Command> {
    let at = TABLE.binary_search_by_key(&(opcode as u16), |command| command.opcode as u16).ok()?;
    TABLE.get(at)
}

/// The command that makes objects of a kind; where several do, that for all of its types.
pub fn maker(kind: Kind) -> Option<&'static Command> {
    TABLE.iter().rfind(|command| {
        command.object.is_some_and(|object| object.action == Action::Create && object.kind == kind)
    })
}

#[cfg(test)]
mod tests;
