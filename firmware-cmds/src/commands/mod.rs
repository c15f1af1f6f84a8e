//! The commands, one file for each family of objects.

mod cq;
mod eq;
mod hca;
mod mad;
mod mkey;
mod names;
mod qp;
mod register;
mod srq;

use hca_spec::command::{InHeader, Opcode, OutHeader};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::effect::Effect;
use crate::failure::{Failure, SHORT, bad_param};
use crate::firmware::{Firmware, State};
use crate::icm::Buffer;
use hca_spec::command::Status;

/// Output of a command, or why it is refused.
pub(crate) type Outcome = Result<Vec<u8>, Failure>;

/// ICM bytes of a queue pair: context, responder resources, alternate context.
pub(crate) const QP_BYTES: u64 = 1024;
/// ICM bytes of a completion queue.
pub(crate) const CQ_BYTES: u64 = 64;
/// ICM bytes of a shared receive queue.
pub(crate) const SRQ_BYTES: u64 = 64;
/// ICM bytes of an event queue.
pub(crate) const EQ_BYTES: u64 = 64;
/// ICM bytes of a memory key without its translations.
pub(crate) const MKEY_BYTES: u64 = 64;

/// ICM bytes of a protection, XRC or transport domain.
pub(crate) const DOMAIN_BYTES: u64 = 64;

/// ICM bytes that a command needs, for those that create something. Event queues must come without
/// waiting: requests for pages arrive through them.
pub(crate) fn icm_bytes(opcode: Opcode, input: &[u8]) -> Option<u64> {
    let page_list = input.len().saturating_sub(hca_spec::cmd::PAS_OFFSET) as u64;
    Some(match opcode {
        Opcode::CreateQp => QP_BYTES + page_list,
        Opcode::CreateCq => CQ_BYTES + page_list,
        Opcode::ModifyCq => page_list,
        Opcode::CreateSrq | Opcode::CreateXrcSrq | Opcode::CreateRmp => SRQ_BYTES + page_list,
        Opcode::AllocPd | Opcode::AllocXrcd | Opcode::AllocTransportDomain => DOMAIN_BYTES,
        Opcode::CreateMkey => MKEY_BYTES + mkey::given_octwords(input) * 16,
        _ => return None,
    })
}

/// The input as a command's layout.
pub(crate) fn view<T: FromBytes + KnownLayout + Immutable>(input: &[u8]) -> Result<&T, Failure> {
    T::ref_from_prefix(input).map(|(view, _)| view).map_err(|_| SHORT)
}

/// An output that only says "done".
pub(crate) fn done() -> Vec<u8> {
    vec![0; OutHeader::SIZE]
}

/// The page list of an input: as many entries as `buffer_len` bytes need.
pub(crate) fn queue_buffer(
    input: &[u8],
    log_page_size: u32,
    page_offset: u32,
    buffer_len: u64,
) -> Result<Buffer, Failure> {
    const BAD_PAGE: Failure = bad_param("the queue's page size is out of range");
    const FEW: Failure = Failure::new(Status::BadInputLength, "the page list is shorter than the queue");
    let shift = 12 + log_page_size;
    if shift > 40 {
        return Err(BAD_PAGE);
    }
    // The offset is given in 64ths of a page.
    let offset = u64::from(page_offset) << (shift - 6);
    let pages = (offset + buffer_len).div_ceil(1 << shift);
    let list = input.get(hca_spec::cmd::PAS_OFFSET..).unwrap_or_default();
    if pages > list.len() as u64 / 8 {
        return Err(FEW);
    }
    let pages =
        list.chunks_exact(8).take(pages as usize).map(|p| hca_spec::be64(p, 0) & hca_spec::mkc::MTT_ADDRESS);
    Buffer::new(pages.collect(), shift, offset, buffer_len).ok_or(FEW)
}

/// Puts a page list into a query's output.
pub(crate) fn put_pages(output: &mut Vec<u8>, buffer: &Buffer) {
    output.truncate(hca_spec::cmd::PAS_OFFSET);
    for page in buffer.pages() {
        output.extend_from_slice(&page.to_be_bytes());
    }
}

/// Executes a command.
pub(crate) fn dispatch(
    fw: &mut Firmware,
    opcode: Opcode,
    input: &[u8],
    output_len: usize,
    effects: &mut Vec<Effect>,
) -> Outcome {
    use Opcode as Op;
    const NOT_ENABLED: Failure =
        Failure::new(Status::BadSystemState, "the command is legal only after ENABLE_HCA");
    const NOT_INITIALIZED: Failure =
        Failure::new(Status::BadSystemState, "the command is legal only after INIT_HCA");
    const SHORT_OUTPUT: Failure =
        Failure::new(Status::BadOutputLength, "the output is shorter than the status and syndrome");
    if output_len < 8 {
        return Err(SHORT_OUTPUT);
    }
    if input.len() < InHeader::SIZE {
        return Err(SHORT);
    }
    let before_enable = matches!(
        opcode,
        Op::EnableHca | Op::DisableHca | Op::QueryIssi | Op::SetIssi | Op::QueryPages | Op::ManagePages
    );
    let before_init = before_enable
        || matches!(
            opcode,
            Op::QueryHcaCap
                | Op::SetHcaCap
                | Op::QueryAdapter
                | Op::InitHca
                | Op::TeardownHca
                | Op::AccessReg
        );
    if fw.state == State::Disabled && !before_enable {
        return Err(NOT_ENABLED);
    }
    if fw.state != State::Initialized && !before_init {
        return Err(NOT_INITIALIZED);
    }
    match opcode {
        Op::EnableHca => hca::enable(fw),
        Op::DisableHca => hca::disable(fw, effects),
        Op::InitHca => hca::init(fw),
        Op::TeardownHca => hca::teardown(fw, effects),
        Op::QueryIssi => hca::query_issi(fw),
        Op::SetIssi => hca::set_issi(fw, input),
        Op::QueryPages => hca::query_pages(fw, input),
        Op::ManagePages => hca::manage_pages(fw, input, output_len),
        Op::QueryHcaCap => hca::query_cap(fw, input),
        Op::SetHcaCap => hca::set_cap(fw, input),
        Op::QueryAdapter => hca::query_adapter(fw),
        Op::QuerySpecialContexts => hca::query_special_contexts(),
        Op::SetDriverVersion => Ok(done()),

        Op::CreateEq => eq::create(fw, input, effects),
        Op::DestroyEq => eq::destroy(fw, input, effects),
        Op::QueryEq => eq::query(fw, input),

        Op::CreateCq => cq::create(fw, input, effects),
        Op::DestroyCq => cq::destroy(fw, input, effects),
        Op::QueryCq => cq::query(fw, input),
        Op::ModifyCq => cq::modify(fw, input, effects),

        Op::CreateQp => qp::create(fw, input, effects),
        Op::DestroyQp => qp::destroy(fw, input, effects),
        Op::QueryQp => qp::query(fw, input),
        Op::Rst2InitQp
        | Op::Init2RtrQp
        | Op::Rtr2RtsQp
        | Op::Rts2RtsQp
        | Op::SqErr2RtsQp
        | Op::Rts2SqdQp
        | Op::Sqd2SqdQp
        | Op::Sqd2RtsQp
        | Op::Init2InitQp
        | Op::ToErrQp
        | Op::ToRstQp => qp::modify(fw, opcode, input, effects),

        Op::CreateSrq => srq::create_basic(fw, input, effects),
        Op::CreateXrcSrq => srq::create_xrc(fw, input, effects),
        Op::CreateRmp => srq::create_rmp(fw, input, effects),
        Op::DestroySrq | Op::DestroyXrcSrq | Op::DestroyRmp => srq::destroy(fw, opcode, input, effects),
        Op::QuerySrq | Op::QueryXrcSrq | Op::QueryRmp => srq::query(fw, opcode, input),
        Op::ArmRq | Op::ArmXrcSrq => srq::arm(fw, opcode, input, effects),
        Op::ModifyRmp => srq::modify_rmp(fw, input, effects),

        Op::CreateMkey => mkey::create(fw, input),
        Op::DestroyMkey => mkey::destroy(fw, input),
        Op::QueryMkey => mkey::query(fw, input, output_len),

        Op::AllocPd
        | Op::DeallocPd
        | Op::AllocUar
        | Op::DeallocUar
        | Op::AllocXrcd
        | Op::DeallocXrcd
        | Op::AllocTransportDomain
        | Op::DeallocTransportDomain => names::execute(fw, opcode, input),
        Op::AttachToMcg | Op::DetachFromMcg => names::multicast(fw, opcode, input),

        Op::MadIfc => mad::mad_ifc(fw, input, effects),
        Op::QueryHcaVportContext => mad::vport_context(fw, input),
        Op::ModifyHcaVportContext => mad::modify_vport_context(fw, input),
        Op::QueryHcaVportGid | Op::QueryHcaVportPkey => mad::vport_table(fw, opcode, input),
        Op::AccessReg => register::access(fw, input),

        Op::GenEqe
        | Op::QueryVportCounter
        | Op::AllocQCounter
        | Op::DeallocQCounter
        | Op::QueryQCounter
        | Op::ConfigIntModeration
        | Op::CreateUctx
        | Op::DestroyUctx => Err(Failure::new(Status::BadOp, "this adapter does not have the command")),
    }
}
