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
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::congestion::{CongParamsIn, CongStatisticsIn, CongStatisticsOut, CongStatusIn, CongStatusOut};
use hca_spec::dct::{CreateDctIn, QueryDctOut};
use hca_spec::flow::*;
use hca_spec::nic_vport::{
    ModifyNicVportContextIn, QueryNicVportContextOut, QueryRoceAddressOut, QueryVportStateOut, RoceAddressIn,
    VportIn,
};
use hca_spec::queue::SetPpRateLimitIn;
use hca_spec::rewrite::{AllocModifyHeaderContextIn, AllocPacketReformatContextIn, QueryPacketReformatOut};
use hca_spec::rq::{CreateRqIn, ModifyRqIn, QueryRqOut};
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
    makes_psvs, queries, queries_at,
};
use super::{
    access_reg, cq, dct, domains, eq, flow_counter, flow_entry, flow_group, flow_table, general_object, hca,
};
use super::{congestion, mad, mcg, memic, mkey, moderation, nic_vport, odp, pacing, pages};
use super::{
    psv, q_counter, qp, qp_transition as transition, rewrite, roce_address, rq, rqt, sq, srq, tir, tis,
    vport, vxlan, xrq,
};
use crate::firmware::{Firmware, State};
use crate::object::Kind::{self, *};

/// Commands that say no more than "done" may have as little room as status and syndrome.
const DONE: usize = 8;
/// An input that names one object, or nothing.
const OBJECT: usize = ObjectIn::SIZE;
/// An output that names the object that was made.
const NAME: usize = ObjectOut::SIZE;
/// QUERY_HCA_CAP: drivers may leave out the end, which is reserved.
const CAPS: usize = OutHeader::SIZE + caps::General::SIZE;
/// Where the numbers of CREATE_PSV's output begin.
const PSVS: usize = CreatePsvOut::PSV0.offset();
/// Where QUERY_Q_COUNTER names its set.
const COUNTER_SET: usize = QueryQCounterIn::COUNTER_SET_ID.offset();
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
        $op:ident, $name:literal, $state:ident, ($input:expr, $output:expr), $object:expr, $icm:ident,
        $user:expr, $time:ident, $handler:expr, $template:expr $(, if $offered:expr)?;
    )*) => {
        /// Every command of the adapter, in order of opcodes.
        pub static TABLE: &[Command] = &[$(Command {
            opcode: Opcode::$op,
            name: $name,
            state: State::$state,
            input: $input,
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
    (@offered) => { |_| true };
    (@offered $offered:expr) => { $offered };
}

// opcode, name, least state, (input, output), object, ICM,
//     user contexts, time, handler, template [, if the adapter has it];
rows! {
    QueryHcaCap, "QUERY_HCA_CAP", Enabled, (OBJECT, CAPS), NONE, OBJECT,
        User::ALL, Query, ReadOnly(hca::query_cap), Object;
    QueryAdapter, "QUERY_ADAPTER", Enabled, (OBJECT, QueryAdapterOut::SIZE), NONE, OBJECT,
        User::ALL, Query, ReadOnly(hca::query_adapter), Object;
    InitHca, "INIT_HCA", Enabled, (OBJECT, DONE), NONE, OBJECT,
        User::KERNEL, Lifecycle, WithEffects(hca::init), Object;
    TeardownHca, "TEARDOWN_HCA", Initialized, (OBJECT, DONE), NONE, OBJECT,
        User::KERNEL, Lifecycle, WithEffects(hca::teardown), Object;
    EnableHca, "ENABLE_HCA", Disabled, (OBJECT, DONE), NONE, OBJECT,
        User::KERNEL, Lifecycle, WithEffects(hca::enable), Object;
    DisableHca, "DISABLE_HCA", Enabled, (OBJECT, DONE), NONE, OBJECT,
        User::KERNEL, Lifecycle, WithEffects(hca::disable), Object;
    QueryPages, "QUERY_PAGES", Enabled, (FunctionIn::SIZE, QueryPagesOut::SIZE), NONE, OBJECT,
        User::OWNERS, Query, ReadOnly(pages::query), Input(pages::query_template);
    ManagePages, "MANAGE_PAGES", Enabled, (FunctionIn::SIZE, ManagePagesOut::SIZE), NONE, OBJECT,
        User::KERNEL, Pages, Update(pages::manage), Input(pages::manage_template);
    SetHcaCap, "SET_HCA_CAP", Enabled, (SetHcaCapIn::SIZE, DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(hca::set_cap), Input(hca::set_cap_template);
    QueryIssi, "QUERY_ISSI", Disabled, (OBJECT, QueryIssiOut::SIZE), NONE, OBJECT,
        User::ALL, Query, ReadOnly(hca::query_issi), Object;
    SetIssi, "SET_ISSI", Disabled, (SetIssiIn::SIZE, DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(hca::set_issi), Input(hca::set_issi_template);
    SetDriverVersion, "SET_DRIVER_VERSION", Enabled, (hca::DRIVER_VERSION_LEN, DONE), NONE, OBJECT,
        User::KERNEL, Modify, ReadOnly(hca::nothing), Object;

    CreateMkey, "CREATE_MKEY", Initialized, (CreateMkeyIn::SIZE, NAME), makes(Mkey), TRANSLATIONS,
        User::naming(names::create_mkey).placed(place::mkey), Create, Update(mkey::create),
        Input(mkey::create_template);
    QueryMkey, "QUERY_MKEY", Initialized, (OBJECT, QueryMkeyOut::SIZE), queries(Mkey), OBJECT,
        User::hiding(place::hide_mkey), Query, ReadOnly(mkey::query), Object;
    DestroyMkey, "DESTROY_MKEY", Initialized, (OBJECT, DONE), destroys(Mkey), OBJECT,
        User::ALL, Destroy, Update(mkey::destroy), Object;
    QuerySpecialContexts, "QUERY_SPECIAL_CONTEXTS", Initialized, (OBJECT, QuerySpecialContextsOut::SIZE), NONE, OBJECT,
        User::ALL, Query, ReadOnly(hca::query_special_contexts), Object;
    PageFaultResume, "PAGE_FAULT_RESUME", Initialized, (PageFaultResumeIn::SIZE, DONE), changes_at(Qp, FAULT), OBJECT,
        User::KERNEL, Other, WithEffects(odp::resume), Input(odp::template);
    AllocMemic, "ALLOC_MEMIC", Initialized, (AllocMemicIn::SIZE, AllocMemicOut::SIZE), NONE, OBJECT,
        User::KERNEL, Create, Update(memic::alloc), Input(memic::alloc_template), if Firmware::has_device_memory;
    DeallocMemic, "DEALLOC_MEMIC", Initialized, (DeallocMemicIn::SIZE, DONE), NONE, OBJECT,
        User::KERNEL, Destroy, Update(memic::dealloc), Input(memic::dealloc_template), if Firmware::has_device_memory;
    ModifyMemic, "MODIFY_MEMIC", Initialized, (ModifyMemicIn::SIZE, ModifyMemicOut::SIZE), NONE, OBJECT,
        User::KERNEL, Modify, Update(memic::modify), Input(memic::modify_template), if memic::has_operations;

    CreateEq, "CREATE_EQ", Initialized, (CreateEqIn::SIZE, NAME), makes(Eq), LIST_AT_ONCE,
        User::KERNEL, Create, WithEffects(eq::create), Input(eq::create_template);
    DestroyEq, "DESTROY_EQ", Initialized, (OBJECT, DONE), destroys(Eq), OBJECT,
        User::KERNEL, Destroy, WithEffects(eq::destroy), Object;
    QueryEq, "QUERY_EQ", Initialized, (OBJECT, QueryEqOut::SIZE), queries(Eq), OBJECT,
        User::OWNERS, Query, ReadOnly(eq::query), Object;

    CreateCq, "CREATE_CQ", Initialized, (CreateCqIn::SIZE, NAME), makes(Cq), LIST,
        User::naming(names::create_cq).placed(place::cq), Create, WithEffects(cq::create), Input(cq::create_template);
    DestroyCq, "DESTROY_CQ", Initialized, (OBJECT, DONE), destroys(Cq), OBJECT,
        User::ALL, Destroy, WithEffects(cq::destroy), Object;
    QueryCq, "QUERY_CQ", Initialized, (OBJECT, QueryCqOut::SIZE), queries(Cq), OBJECT,
        User::hiding(place::hide_cq), Query, ReadOnly(cq::query), Object;
    ModifyCq, "MODIFY_CQ", Initialized, (ModifyCqIn::SIZE, DONE), changes(Cq), LIST,
        User::naming(names::modify_cq).placed(place::resized_cq), Modify, WithEffects(cq::modify),
        Input(cq::modify_template);

    CreateQp, "CREATE_QP", Initialized, (CreateQpIn::SIZE, NAME), makes(Qp), LIST,
        User::naming(names::create_qp).placed(place::qp), Create, WithEffects(qp::create), Input(qp::create_template);
    DestroyQp, "DESTROY_QP", Initialized, (OBJECT, DONE), destroys(Qp), OBJECT,
        User::ALL, Destroy, WithEffects(qp::destroy), Object;
    Rst2InitQp, "RST2INIT_QP", Initialized, (ModifyQpIn::SIZE, DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    Init2RtrQp, "INIT2RTR_QP", Initialized, (ModifyQpIn::SIZE, DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    Rtr2RtsQp, "RTR2RTS_QP", Initialized, (ModifyQpIn::SIZE, DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    Rts2RtsQp, "RTS2RTS_QP", Initialized, (ModifyQpIn::SIZE, DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    SqErr2RtsQp, "SQERR2RTS_QP", Initialized, (ModifyQpIn::SIZE, DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    ToErrQp, "2ERR_QP", Initialized, (OBJECT, DONE), changes(Qp), OBJECT,
        User::ALL, Modify, WithEffects(transition::modify), Object;
    Rts2SqdQp, "RTS2SQD_QP", Initialized, (ModifyQpIn::SIZE, DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    Sqd2SqdQp, "SQD2SQD_QP", Initialized, (ModifyQpIn::SIZE, DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    ToRstQp, "2RST_QP", Initialized, (OBJECT, DONE), changes(Qp), OBJECT,
        User::ALL, Modify, WithEffects(transition::modify), Object;
    QueryQp, "QUERY_QP", Initialized, (OBJECT, QueryQpOut::SIZE), queries(Qp), OBJECT,
        User::hiding(place::hide_qp), Query, ReadOnly(qp::query), Object;
    Sqd2RtsQp, "SQD2RTS_QP", Initialized, (ModifyQpIn::SIZE, DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);
    MadIfc, "MAD_IFC", Initialized, (MadIfc::SIZE, MadIfc::SIZE), NONE, OBJECT,
        User::KERNEL, Mad, WithEffects(mad::mad_ifc), Input(mad::template), if Firmware::is_infiniband;
    Init2InitQp, "INIT2INIT_QP", Initialized, (ModifyQpIn::SIZE, DONE), changes(Qp), OBJECT,
        TRANSITION, Modify, WithEffects(transition::modify), Input(transition::template);

    CreatePsv, "CREATE_PSV", Initialized, (CreatePsvIn::SIZE, CreatePsvOut::SIZE), makes_psvs(PSVS), OBJECT,
        User::naming(names::create_psv), Create, Update(psv::create), Input(psv::create_template);
    DestroyPsv, "DESTROY_PSV", Initialized, (OBJECT, DONE), destroys(Psv), OBJECT,
        User::ALL, Destroy, Update(psv::destroy), Object;

    CreateSrq, "CREATE_SRQ", Initialized, (CreateSrqIn::SIZE, NAME), makes(Srq), LIST,
        User::naming(names::create_srq), Create, WithEffects(srq::create_basic), Input(srq::create_template);
    DestroySrq, "DESTROY_SRQ", Initialized, (OBJECT, DONE), destroys(Srq), OBJECT,
        User::ALL, Destroy, WithEffects(srq::destroy), Object;
    QuerySrq, "QUERY_SRQ", Initialized, (OBJECT, QuerySrqOut::SIZE), queries(Srq), OBJECT,
        User::hiding(place::hide_srq), Query, ReadOnly(srq::query), Object;
    ArmRq, "ARM_RQ", Initialized, (OBJECT, DONE), changes(Srq), OBJECT,
        User::ALL, Modify, WithEffects(srq::arm), Input(srq::arm_template);
    CreateXrcSrq, "CREATE_XRC_SRQ", Initialized, (CreateSrqIn::SIZE, NAME), makes(XrcSrq), LIST,
        User::naming(names::create_srq).placed(place::srq), Create, WithEffects(srq::create_xrc),
        Input(srq::create_xrc_template);
    DestroyXrcSrq, "DESTROY_XRC_SRQ", Initialized, (OBJECT, DONE), destroys(XrcSrq), OBJECT,
        User::ALL, Destroy, WithEffects(srq::destroy), Object;
    QueryXrcSrq, "QUERY_XRC_SRQ", Initialized, (OBJECT, QuerySrqOut::SIZE), queries(XrcSrq), OBJECT,
        User::hiding(place::hide_srq), Query, ReadOnly(srq::query), Object;
    ArmXrcSrq, "ARM_XRC_SRQ", Initialized, (OBJECT, DONE), changes(XrcSrq), OBJECT,
        User::ALL, Modify, WithEffects(srq::arm), Input(srq::arm_xrc_template);

    CreateDct, "CREATE_DCT", Initialized, (CreateDctIn::SIZE, NAME), makes(Dct), OBJECT,
        User::naming(names::create_dct).placed(place::dct), Create, Update(dct::create), Input(dct::create_template);
    DestroyDct, "DESTROY_DCT", Initialized, (OBJECT, DONE), destroys(Dct), OBJECT,
        User::ALL, Destroy, WithEffects(dct::destroy), Object;
    DrainDct, "DRAIN_DCT", Initialized, (OBJECT, DONE), changes(Dct), OBJECT,
        User::ALL, Other, WithEffects(dct::drain), Object;
    QueryDct, "QUERY_DCT", Initialized, (OBJECT, QueryDctOut::SIZE), queries(Dct), OBJECT,
        User::ALL, Query, ReadOnly(dct::query), Object;
    ArmDctForKeyViolation, "ARM_DCT_FOR_KEY_VIOLATION", Initialized, (OBJECT, DONE), changes(Dct), OBJECT,
        User::ALL, Modify, Update(dct::arm), Object;

    CreateXrq, "CREATE_XRQ", Initialized, (CreateXrqIn::SIZE, NAME), makes(Xrq), XRQ_LIST,
        User::naming(names::create_xrq).placed(place::xrq), Create, WithEffects(xrq::create),
        Input(xrq::create_template), if xrq::has_matching;
    DestroyXrq, "DESTROY_XRQ", Initialized, (OBJECT, DONE), destroys(Xrq), OBJECT,
        User::ALL, Destroy, WithEffects(srq::destroy), Object, if xrq::has_matching;
    QueryXrq, "QUERY_XRQ", Initialized, (OBJECT, QueryXrqOut::SIZE), queries(Xrq), OBJECT,
        User::hiding(place::hide_xrq), Query, ReadOnly(xrq::query), Object, if xrq::has_matching;
    ArmXrq, "ARM_XRQ", Initialized, (OBJECT, DONE), changes(Xrq), OBJECT,
        User::ALL, Modify, WithEffects(srq::arm), Input(xrq::arm_template), if xrq::has_matching;

    QueryVportState, "QUERY_VPORT_STATE", Initialized, (VportIn::SIZE, QueryVportStateOut::SIZE), NONE, OBJECT,
        User::ALL, Query, ReadOnly(nic_vport::query_state), Object, if Firmware::is_ethernet;
    ModifyVportState, "MODIFY_VPORT_STATE", Initialized, (VportIn::SIZE, DONE), NONE, OBJECT,
        User::KERNEL, Modify, WithEffects(nic_vport::modify_state), Input(nic_vport::modify_state_template),
        if Firmware::is_ethernet;
    QueryNicVportContext, "QUERY_NIC_VPORT_CONTEXT", Initialized, (VportIn::SIZE, QueryNicVportContextOut::SIZE),
        NONE, OBJECT, User::ALL, Query, ReadOnly(nic_vport::query), Object, if Firmware::is_ethernet;
    ModifyNicVportContext, "MODIFY_NIC_VPORT_CONTEXT", Initialized, (ModifyNicVportContextIn::SIZE, DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(nic_vport::modify), Input(nic_vport::modify_template), if Firmware::is_ethernet;
    QueryRoceAddress, "QUERY_ROCE_ADDRESS", Initialized, (roce_address::QUERY_LEN, QueryRoceAddressOut::SIZE),
        NONE, OBJECT, User::ALL, Query, ReadOnly(roce_address::query), Object, if Firmware::is_ethernet;
    SetRoceAddress, "SET_ROCE_ADDRESS", Initialized, (RoceAddressIn::SIZE, DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(roce_address::set), Input(roce_address::set_template), if Firmware::is_ethernet;
    QueryHcaVportContext, "QUERY_HCA_VPORT_CONTEXT", Initialized, (QueryHcaVportIn::SIZE, QueryHcaVportContextOut::SIZE),
        NONE, OBJECT, User::ALL, Query, ReadOnly(vport::context), Object, if Firmware::is_infiniband;
    ModifyHcaVportContext, "MODIFY_HCA_VPORT_CONTEXT", Initialized, (vport::MODIFY_CONTEXT_LEN, DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(vport::modify_context), Object, if Firmware::is_infiniband;
    QueryHcaVportGid, "QUERY_HCA_VPORT_GID", Initialized, (QueryHcaVportIn::SIZE, NAME), NONE, OBJECT,
        User::ALL, Query, ReadOnly(vport::gids), Input(vport::table_template), if Firmware::is_infiniband;
    QueryHcaVportPkey, "QUERY_HCA_VPORT_PKEY", Initialized, (QueryHcaVportIn::SIZE, NAME), NONE, OBJECT,
        User::ALL, Query, ReadOnly(vport::pkeys), Input(vport::table_template);
    QueryVnicEnv, "QUERY_VNIC_ENV", Initialized, (VportIn::SIZE, nic_vport::VNIC_ENV_LEN), NONE, OBJECT,
        User::ALL, Query, ReadOnly(nic_vport::query_environment), Object, if Firmware::is_ethernet;
    QueryVportCounter, "QUERY_VPORT_COUNTER", Initialized, (QueryVportCounterIn::SIZE, vport::COUNTERS_LEN), NONE, OBJECT,
        User::ALL, Query, Update(vport::counters), Object;
    AllocQCounter, "ALLOC_Q_COUNTER", Initialized, (OBJECT, NAME), makes(QCounter), OBJECT,
        User::ALL, Create, Update(q_counter::alloc), Object;
    DeallocQCounter, "DEALLOC_Q_COUNTER", Initialized, (OBJECT, DONE), destroys(QCounter), OBJECT,
        User::ALL, Destroy, Update(q_counter::dealloc), Object;
    QueryQCounter, "QUERY_Q_COUNTER", Initialized, (QueryQCounterIn::SIZE, q_counter::OUTPUT),
        queries_at(QCounter, COUNTER_SET), OBJECT, User::ALL, Query, Update(q_counter::query), Object;

    SetPpRateLimit, "SET_PP_RATE_LIMIT", Initialized, (SetPpRateLimitIn::SIZE, DONE), NONE, OBJECT,
        User::ALL, Modify, Update(pacing::set), Input(pacing::template), if pacing::has_rates;

    AllocPd, "ALLOC_PD", Initialized, (OBJECT, NAME), makes(Pd), OBJECT,
        User::ALL, Create, Update(domains::alloc), Object;
    DeallocPd, "DEALLOC_PD", Initialized, (OBJECT, DONE), destroys(Pd), OBJECT,
        User::ALL, Destroy, Update(domains::dealloc_pd), Object;
    AllocUar, "ALLOC_UAR", Initialized, (OBJECT, NAME), makes(Uar), OBJECT,
        User::ALL, Create, Update(domains::alloc), Object;
    DeallocUar, "DEALLOC_UAR", Initialized, (OBJECT, DONE), destroys(Uar), OBJECT,
        User::ALL, Destroy, Update(domains::dealloc_uar), Object;
    ConfigIntModeration, "CONFIG_INT_MODERATION", Initialized, (IntModeration::SIZE, DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(moderation::config), Input(moderation::template);
    AccessReg, "ACCESS_REGISTER", Enabled, (AccessRegIn::SIZE, AccessRegIn::SIZE), NONE, OBJECT,
        User::KERNEL, Other, WithEffects(access_reg::access), Input(access_reg::template);
    AttachToMcg, "ATTACH_TO_MCG", Initialized, (McgIn::SIZE, DONE), changes(Qp), OBJECT,
        User::ALL, Other, Update(mcg::attach), Input(mcg::template);
    DetachFromMcg, "DETACH_FROM_MCG", Initialized, (McgIn::SIZE, DONE), changes(Qp), OBJECT,
        User::ALL, Other, Update(mcg::detach), Input(mcg::template);
    Nop, "NOP", Enabled, (OBJECT, DONE), NONE, OBJECT,
        User::ALL, Other, ReadOnly(hca::nothing), Object;
    AllocXrcd, "ALLOC_XRCD", Initialized, (OBJECT, NAME), makes(Xrcd), OBJECT,
        User::ALL, Create, Update(domains::alloc), Object;
    DeallocXrcd, "DEALLOC_XRCD", Initialized, (OBJECT, DONE), destroys(Xrcd), OBJECT,
        User::ALL, Destroy, Update(domains::dealloc_xrcd), Object;
    AllocTransportDomain, "ALLOC_TRANSPORT_DOMAIN", Initialized, (OBJECT, NAME), makes(TransportDomain), OBJECT,
        User::ALL, Create, Update(domains::alloc), Object;
    DeallocTransportDomain, "DEALLOC_TRANSPORT_DOMAIN", Initialized, (OBJECT, DONE), destroys(TransportDomain), OBJECT,
        User::ALL, Destroy, Update(domains::dealloc_transport_domain), Object;
    QueryCongStatus, "QUERY_CONG_STATUS", Initialized, (CongStatusIn::SIZE, CongStatusOut::SIZE), NONE, OBJECT,
        User::ALL, Query, Update(congestion::status), Input(congestion::status_template), if Firmware::is_ethernet;
    ModifyCongStatus, "MODIFY_CONG_STATUS", Initialized, (CongStatusIn::SIZE, DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(congestion::modify_status), Input(congestion::status_template), if Firmware::is_ethernet;
    QueryCongParams, "QUERY_CONG_PARAMS", Initialized, (CongParamsIn::SIZE, congestion::QUERY_LEN), NONE, OBJECT,
        User::ALL, Query, Update(congestion::params), Input(congestion::params_template), if Firmware::is_ethernet;
    ModifyCongParams, "MODIFY_CONG_PARAMS", Initialized, (congestion::MODIFY_LEN, DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(congestion::modify_params), Input(congestion::params_template), if Firmware::is_ethernet;
    QueryCongStatistics, "QUERY_CONG_STATISTICS", Initialized, (CongStatisticsIn::SIZE, CongStatisticsOut::SIZE), NONE, OBJECT,
        User::ALL, Query, Update(congestion::statistics), Object, if Firmware::is_ethernet;
    AddVxlanUdpDport, "ADD_VXLAN_UDP_DPORT", Initialized, (VxlanUdpDportIn::SIZE, DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(vxlan::add), Input(vxlan::template), if Firmware::is_ethernet;
    DeleteVxlanUdpDport, "DELETE_VXLAN_UDP_DPORT", Initialized, (VxlanUdpDportIn::SIZE, DONE), NONE, OBJECT,
        User::KERNEL, Modify, Update(vxlan::delete), Input(vxlan::template), if Firmware::is_ethernet;

    QueryLag, "QUERY_LAG", Initialized, (OBJECT, QueryLagOut::SIZE), NONE, OBJECT,
        User::ALL, Query, ReadOnly(hca::query_lag), Object;
    CreateTir, "CREATE_TIR", Initialized, (CreateTirIn::SIZE, NAME), makes(Tir), OBJECT,
        User::naming(names::create_tir), Create, Update(tir::create), Input(tir::create_template),
        if Firmware::is_ethernet;
    ModifyTir, "MODIFY_TIR", Initialized, (ModifyTirIn::SIZE, DONE), changes(Tir), OBJECT,
        User::naming(names::modify_tir), Modify, Update(tir::modify), Input(tir::modify_template),
        if Firmware::is_ethernet;
    DestroyTir, "DESTROY_TIR", Initialized, (OBJECT, DONE), destroys(Tir), OBJECT,
        User::ALL, Destroy, Update(tir::destroy), Object, if Firmware::is_ethernet;
    QueryTir, "QUERY_TIR", Initialized, (OBJECT, QueryTirOut::SIZE), queries(Tir), OBJECT,
        User::ALL, Query, ReadOnly(tir::query), Object, if Firmware::is_ethernet;

    // On InfiniBand ports nothing uses them without BlueFlame, and the capability is not set.
    CreateSq, "CREATE_SQ", Initialized, (CreateSqIn::SIZE, NAME), makes(Sq), LIST,
        User::naming(names::create_sq).placed(place::sq), Create, WithEffects(sq::create),
        Input(sq::create_template), if Firmware::has_send_queues;
    ModifySq, "MODIFY_SQ", Initialized, (ModifySqIn::SIZE, DONE), changes(Sq), OBJECT,
        User::naming(names::modify_sq), Modify, WithEffects(sq::modify), Input(sq::modify_template), if Firmware::has_send_queues;
    DestroySq, "DESTROY_SQ", Initialized, (OBJECT, DONE), destroys(Sq), OBJECT,
        User::ALL, Destroy, WithEffects(sq::destroy), Object, if Firmware::has_send_queues;
    QuerySq, "QUERY_SQ", Initialized, (OBJECT, QuerySqOut::SIZE), queries(Sq), OBJECT,
        User::hiding(place::hide_sq), Query, ReadOnly(sq::query), Object, if Firmware::has_send_queues;

    CreateRq, "CREATE_RQ", Initialized, (CreateRqIn::SIZE, NAME), makes(Rq), LIST,
        User::naming(names::create_rq).placed(place::rq), Create, WithEffects(rq::create),
        Input(rq::create_template), if Firmware::is_ethernet;
    ModifyRq, "MODIFY_RQ", Initialized, (ModifyRqIn::SIZE, DONE), changes(Rq), OBJECT,
        User::naming(names::modify_rq), Modify, WithEffects(rq::modify), Input(rq::modify_template),
        if Firmware::is_ethernet;
    DestroyRq, "DESTROY_RQ", Initialized, (OBJECT, DONE), destroys(Rq), OBJECT,
        User::ALL, Destroy, WithEffects(rq::destroy), Object, if Firmware::is_ethernet;
    QueryRq, "QUERY_RQ", Initialized, (OBJECT, QueryRqOut::SIZE), queries(Rq), OBJECT,
        User::hiding(place::hide_rq), Query, ReadOnly(rq::query), Object, if Firmware::is_ethernet;

    CreateRmp, "CREATE_RMP", Initialized, (CreateRmpIn::SIZE, NAME), makes(Rmp), LIST,
        User::naming(names::create_rmp).placed(place::rmp), Create, WithEffects(srq::create_rmp),
        Input(srq::create_rmp_template);
    ModifyRmp, "MODIFY_RMP", Initialized, (ModifyRmpIn::SIZE, DONE), changes(Rmp), OBJECT,
        User::ALL, Modify, WithEffects(srq::modify_rmp), Input(srq::modify_rmp_template);
    DestroyRmp, "DESTROY_RMP", Initialized, (OBJECT, DONE), destroys(Rmp), OBJECT,
        User::ALL, Destroy, WithEffects(srq::destroy), Object;
    QueryRmp, "QUERY_RMP", Initialized, (OBJECT, QueryRmpOut::SIZE), queries(Rmp), OBJECT,
        User::hiding(place::hide_rmp), Query, ReadOnly(srq::query), Object;

    CreateTis, "CREATE_TIS", Initialized, (CreateTisIn::SIZE, NAME), makes(Tis), OBJECT,
        User::naming(names::create_tis), Create, Update(tis::create), Input(tis::create_template),
        if Firmware::is_ethernet;
    ModifyTis, "MODIFY_TIS", Initialized, (ModifyTisIn::SIZE, DONE), changes(Tis), OBJECT,
        User::ALL, Modify, Update(tis::modify), Input(tis::modify_template), if Firmware::is_ethernet;
    DestroyTis, "DESTROY_TIS", Initialized, (OBJECT, DONE), destroys(Tis), OBJECT,
        User::ALL, Destroy, Update(tis::destroy), Object, if Firmware::is_ethernet;
    QueryTis, "QUERY_TIS", Initialized, (OBJECT, QueryTisOut::SIZE), queries(Tis), OBJECT,
        User::ALL, Query, ReadOnly(tis::query), Object, if Firmware::is_ethernet;
    CreateRqt, "CREATE_RQT", Initialized, (CreateRqtIn::SIZE, NAME), makes(Rqt), RQ_LIST,
        User::naming(names::rqt), Create, Update(rqt::create), Input(rqt::create_template),
        if Firmware::is_ethernet;
    ModifyRqt, "MODIFY_RQT", Initialized, (ModifyRqtIn::SIZE, DONE), changes(Rqt), RQ_LIST,
        User::naming(names::rqt), Modify, Update(rqt::modify), Input(rqt::modify_template),
        if Firmware::is_ethernet;
    DestroyRqt, "DESTROY_RQT", Initialized, (OBJECT, DONE), destroys(Rqt), OBJECT,
        User::ALL, Destroy, Update(rqt::destroy), Object, if Firmware::is_ethernet;
    QueryRqt, "QUERY_RQT", Initialized, (OBJECT, QueryRqtOut::SIZE), queries(Rqt), OBJECT,
        User::ALL, Query, ReadOnly(rqt::query), Object, if Firmware::is_ethernet;
    SetFlowTableRoot, "SET_FLOW_TABLE_ROOT", Initialized, (SetFlowTableRootIn::SIZE, DONE),
        changes_at(FlowTable, TABLE_ID), OBJECT, User::KERNEL, Modify, Update(flow_table::set_root),
        Input(flow_table::root_template), if flow_table::has_steering;
    CreateFlowTable, "CREATE_FLOW_TABLE", Initialized, (CreateFlowTableIn::SIZE, NAME), makes(FlowTable), OBJECT,
        User::naming(flow_table::names), Create, Update(flow_table::create), Input(flow_table::create_template),
        if flow_table::has_steering;
    DestroyFlowTable, "DESTROY_FLOW_TABLE", Initialized, (FlowIn::SIZE, DONE), destroys_at(FlowTable, TABLE_ID), OBJECT,
        User::ALL, Destroy, Update(flow_table::destroy), Input(flow_table::template), if flow_table::has_steering;
    QueryFlowTable, "QUERY_FLOW_TABLE", Initialized, (FlowIn::SIZE, QueryFlowTableOut::SIZE),
        queries_at(FlowTable, TABLE_ID), OBJECT, User::ALL, Query, ReadOnly(flow_table::query),
        Input(flow_table::template), if flow_table::has_steering;
    CreateFlowGroup, "CREATE_FLOW_GROUP", Initialized, (CreateFlowGroupIn::SIZE, NAME), makes(FlowGroup), OBJECT,
        User::naming(flow_group::names), Create, Update(flow_group::create), Input(flow_group::create_template),
        if flow_table::has_steering;
    DestroyFlowGroup, "DESTROY_FLOW_GROUP", Initialized, (FlowIn::SIZE, DONE), destroys_at(FlowGroup, GROUP_ID), OBJECT,
        User::ALL, Destroy, Update(flow_group::destroy), Input(flow_table::template), if flow_table::has_steering;
    QueryFlowGroup, "QUERY_FLOW_GROUP", Initialized, (FlowIn::SIZE, QueryFlowGroupOut::SIZE),
        queries_at(FlowGroup, GROUP_ID), OBJECT, User::ALL, Query, ReadOnly(flow_group::query),
        Input(flow_table::template), if flow_table::has_steering;
    SetFlowTableEntry, "SET_FLOW_TABLE_ENTRY", Initialized, (SetFteIn::SIZE, DONE), changes_at(FlowTable, TABLE_ID),
        FLOW_ENTRY, User::naming(flow_entry::names), Modify, Update(flow_entry::set), Input(flow_entry::set_template),
        if flow_table::has_steering;
    QueryFlowTableEntry, "QUERY_FLOW_TABLE_ENTRY", Initialized, (FlowIn::SIZE, QueryFteOut::SIZE),
        queries_at(FlowTable, TABLE_ID), OBJECT, User::ALL, Query, ReadOnly(flow_entry::query),
        Input(flow_table::template), if flow_table::has_steering;
    DeleteFlowTableEntry, "DELETE_FLOW_TABLE_ENTRY", Initialized, (FlowIn::SIZE, DONE), changes_at(FlowTable, TABLE_ID),
        OBJECT, User::ALL, Modify, Update(flow_entry::delete), Input(flow_table::template),
        if flow_table::has_steering;
    AllocFlowCounter, "ALLOC_FLOW_COUNTER", Initialized, (OBJECT, NAME), makes(FlowCounter), FLOW_COUNTERS,
        User::ALL, Create, Update(flow_counter::alloc), Object, if flow_table::has_steering;
    DeallocFlowCounter, "DEALLOC_FLOW_COUNTER", Initialized, (OBJECT, DONE), destroys(FlowCounter), OBJECT,
        User::ALL, Destroy, Update(flow_counter::dealloc), Object, if flow_table::has_steering;
    QueryFlowCounter, "QUERY_FLOW_COUNTER", Initialized, (QueryFlowCounterIn::SIZE, TRAFFIC),
        queries_at(FlowCounter, COUNTER_ID), OBJECT, User::ALL, Query, ReadOnly(flow_counter::query),
        Input(flow_counter::query_template), if flow_table::has_steering;
    ModifyFlowTable, "MODIFY_FLOW_TABLE", Initialized, (ModifyFlowTableIn::SIZE, DONE), changes_at(FlowTable, TABLE_ID),
        OBJECT, User::naming(flow_table::names), Modify, Update(flow_table::modify),
        Input(flow_table::modify_template), if flow_table::has_steering;
    AllocPacketReformatContext, "ALLOC_PACKET_REFORMAT_CONTEXT", Initialized, (AllocPacketReformatContextIn::SIZE, NAME),
        makes(ReformatContext), REFORMAT_DATA, User::ALL, Create, Update(rewrite::alloc_reformat),
        Input(rewrite::reformat_template), if rewrite::has_rewriting;
    DeallocPacketReformatContext, "DEALLOC_PACKET_REFORMAT_CONTEXT", Initialized, (OBJECT, DONE),
        destroys(ReformatContext), OBJECT, User::ALL, Destroy, Update(rewrite::dealloc_reformat), Object,
        if rewrite::has_rewriting;
    QueryPacketReformatContext, "QUERY_PACKET_REFORMAT_CONTEXT", Initialized, (OBJECT, QueryPacketReformatOut::SIZE),
        queries(ReformatContext), OBJECT, User::ALL, Query, ReadOnly(rewrite::query_reformat),
        Input(rewrite::template), if rewrite::has_rewriting;
    AllocModifyHeaderContext, "ALLOC_MODIFY_HEADER_CONTEXT", Initialized, (AllocModifyHeaderContextIn::SIZE, NAME),
        makes(HeaderContext), HEADER_CHANGES, User::ALL, Create, Update(rewrite::alloc_changes),
        Input(rewrite::changes_template), if rewrite::has_rewriting;
    DeallocModifyHeaderContext, "DEALLOC_MODIFY_HEADER_CONTEXT", Initialized, (OBJECT, DONE), destroys(HeaderContext),
        OBJECT, User::ALL, Destroy, Update(rewrite::dealloc_changes), Object, if rewrite::has_rewriting;

    CreateGeneralObject, "CREATE_GENERAL_OBJECT", Initialized, (GeneralObjectIn::SIZE, NAME), makes(GeneralObject), OBJECT,
        User::naming(general_object::names), Create, Update(general_object::create),
        Several(general_object::create_templates);
    ModifyGeneralObject, "MODIFY_GENERAL_OBJECT", Initialized, (OBJECT, DONE), changes(GeneralObject), OBJECT,
        User::ALL, Modify, Update(general_object::modify),
        Refused(general_object::template, "reserved QP numbers have nothing to change");
    QueryGeneralObject, "QUERY_GENERAL_OBJECT", Initialized, (GeneralObjectIn::SIZE, general_object::QUERY_LEN),
        queries(GeneralObject), OBJECT, User::ALL, Query, ReadOnly(general_object::query), Several(general_object::templates);
    DestroyGeneralObject, "DESTROY_GENERAL_OBJECT", Initialized, (OBJECT, DONE), destroys(GeneralObject), OBJECT,
        User::ALL, Destroy, Update(general_object::destroy), Several(general_object::templates);
    CreateUctx, "CREATE_UCTX", Initialized, (CreateUctxIn::SIZE, CreateUctxOut::SIZE), makes(UserContext), OBJECT,
        User::KERNEL, Create, Update(devx::create_context), Object;
    DestroyUctx, "DESTROY_UCTX", Initialized, (DestroyUctxIn::SIZE, DONE), destroys(UserContext), OBJECT,
        User::KERNEL, Destroy, Update(devx::destroy_context), Object;
    CreateUmem, "CREATE_UMEM", Initialized, (CreateUmemIn::SIZE, NAME), makes(Umem), UMEM_LIST,
        User::ALL, Create, Update(devx::create_umem), Input(devx::create_umem_template);
    DestroyUmem, "DESTROY_UMEM", Initialized, (OBJECT, DONE), destroys(Umem), OBJECT,
        User::ALL, Destroy, Update(devx::destroy_umem), Object;
    SyncSteering, "SYNC_STEERING", Initialized, (OBJECT, DONE), NONE, OBJECT,
        User::ALL, Other, ReadOnly(rewrite::sync), Object, if rewrite::has_software;
}

/// Transitions of queue pairs that bring a context: a user's names are checked in it, and it can't move the record.
const TRANSITION: User = User::naming(names::transition).placed(place::transition);

/// The row of a command. `None`: the adapter does not have it.
pub fn find(opcode: Opcode) -> Option<&'static Command> {
    let at = TABLE.binary_search_by_key(&(opcode as u16), |command| command.opcode as u16).ok()?;
    TABLE.get(at)
}

/// The command that makes objects of a kind.
pub fn maker(kind: Kind) -> Option<&'static Command> {
    TABLE.iter().find(|command| {
        command.object.is_some_and(|object| object.action == Action::Create && object.kind == kind)
    })
}

#[cfg(test)]
mod tests;
