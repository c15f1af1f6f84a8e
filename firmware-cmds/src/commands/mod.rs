//! The commands, one file for each family of objects.

mod access_reg;
mod cq;
mod dct;
mod devx;
mod domains;
mod eq;
mod general_object;
mod hca;
mod mad;
mod mcg;
pub(crate) mod mkey;
mod odp;
mod pages;
mod psv;
mod q_counter;
mod qp;
mod qp_transition;
mod sq;
mod srq;
#[cfg(test)]
mod testing;
mod vport;

use hca_spec::cmd;
use hca_spec::command::{Opcode, OutHeader, Status};
use hca_spec::dct::{CreateDctIn, QueryDctOut};
use hca_spec::ids::UarIndex;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) use devx::{admit, settle};

use crate::effect::Effect;
use crate::failure::{Failure, SHORT, SHORT_OUTPUT, bad_param};
use crate::firmware::{Firmware, State};
use crate::icm::Buffer;

/// Output of a command, or why it is refused.
pub(crate) type Outcome = Result<Vec<u8>, Failure>;

/// ICM bytes of a queue pair: context, responder resources, alternate context.
pub(crate) const QP_BYTES: u64 = 1024;
/// ICM bytes of a completion queue without its page list.
pub(crate) const CQ_BYTES: u64 = 64;
/// ICM bytes of a shared receive queue without its page list.
pub(crate) const SRQ_BYTES: u64 = 64;
/// ICM bytes of a DC target.
pub(crate) const DCT_BYTES: u64 = 64;
/// ICM bytes of an event queue without its page list.
pub(crate) const EQ_BYTES: u64 = 64;
/// ICM bytes of a memory key without its translations.
pub(crate) const MKEY_BYTES: u64 = 64;

/// ICM bytes of a protection signature value.
pub(crate) const PSV_BYTES: u64 = 64;
/// ICM bytes of a protection, XRC or transport domain.
pub(crate) const DOMAIN_BYTES: u64 = 64;
/// ICM bytes of a queue's page, in its page list.
pub(crate) const PAGE_LIST_ENTRY: u64 = 8;

/// A command as it came.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) opcode: Opcode,
    pub(crate) op_mod: u32,
    /// Header included.
    pub(crate) input: &'a [u8],
    /// Room for output, header included.
    pub(crate) output_len: usize,
}

impl<'a> Call<'a> {
    /// The input as a command's layout.
    fn view<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<&'a T, Failure> {
        T::ref_from_prefix(self.input).map(|(view, _)| view).map_err(|_| SHORT)
    }

    /// The number of the object that the command names.
    fn number(&self) -> Result<u32, Failure> {
        Ok(self.view::<cmd::ObjectIn>()?.get(cmd::ObjectIn::NUMBER))
    }

    /// The list of pages or translations behind a CREATE_* or MODIFY_CQ input.
    fn list(&self) -> &'a [u8] {
        self.input.get(cmd::PAS_OFFSET..).unwrap_or_default()
    }

    /// A queue's memory: as many pages of the input's list as `len` bytes need.
    fn buffer(&self, log_page_size: u32, page_offset: u32, len: u64) -> Result<Buffer, Failure> {
        const BAD_PAGE: Failure = bad_param("log_page_size: the queue's pages are larger than 2^40 bytes");
        const FEW: Failure = Failure::new(Status::BadInputLength, "the page list is shorter than the queue");
        const MAX_SHIFT: u32 = 40;
        let shift = 12 + log_page_size;
        if shift > MAX_SHIFT {
            return Err(BAD_PAGE.got(shift));
        }
        // The offset is given in 64ths of a page.
        let offset = u64::from(page_offset) << (shift - 6);
        let pages = (offset + len).div_ceil(1 << shift);
        let list = self.list();
        if pages > list.len() as u64 / 8 {
            return Err(FEW.got(list.len() as u64 / 8).limit(pages));
        }
        let pages = list
            .chunks_exact(8)
            .take(pages as usize)
            .map(|p| hca_spec::be64(p, 0) & hca_spec::mkc::MTT_ADDRESS);
        Buffer::new(pages.collect(), shift, offset, len).ok_or(FEW)
    }
}

/// An output that only says "done".
fn done() -> Vec<u8> {
    vec![0; OutHeader::SIZE]
}

/// An output that names the object that was made.
fn named(number: u32) -> Outcome {
    Ok(cmd::ObjectOut::new().set(cmd::ObjectOut::NUMBER, number).bytes().to_vec())
}

/// An output as a command's layout.
fn reply(out: &(impl IntoBytes + Immutable)) -> Vec<u8> {
    out.as_bytes().to_vec()
}

/// Puts a page list behind a query's output; the caller cuts it to the room there is.
fn with_pages(mut output: Vec<u8>, buffer: &Buffer) -> Vec<u8> {
    output.truncate(cmd::PAS_OFFSET);
    for page in buffer.pages() {
        output.extend_from_slice(&page.to_be_bytes());
    }
    output
}

/// Whether the UAR page of a queue's doorbells is allocated.
fn check_uar(fw: &Firmware, page: u32, none: Failure) -> Result<(), Failure> {
    match fw.icm.uars.get(UarIndex(page).0) {
        Some(_) => Ok(()),
        None => Err(none.got(page)),
    }
}

/// Transitions of queue pairs that bring a context.
const WITH_CONTEXT: [Opcode; 9] = [
    Opcode::Rst2InitQp,
    Opcode::Init2InitQp,
    Opcode::Init2RtrQp,
    Opcode::Rtr2RtsQp,
    Opcode::Rts2RtsQp,
    Opcode::SqErr2RtsQp,
    Opcode::Rts2SqdQp,
    Opcode::Sqd2SqdQp,
    Opcode::Sqd2RtsQp,
];

/// ICM bytes that a command needs, for those that create something.
///
/// The input may turn out to be malformed; the bytes are then an upper bound of what it could ask for.
/// Event queues must come without waiting: requests for pages arrive through them.
pub(crate) fn icm_bytes(call: &Call<'_>) -> Option<u64> {
    let list = call.list().len() as u64;
    Some(match call.opcode {
        Opcode::CreateQp | Opcode::CreateSq => QP_BYTES + list,
        Opcode::CreateCq => CQ_BYTES + list,
        Opcode::ModifyCq => list,
        Opcode::AllocPd | Opcode::AllocXrcd | Opcode::AllocTransportDomain => DOMAIN_BYTES,
        Opcode::CreateSrq | Opcode::CreateXrcSrq | Opcode::CreateRmp => SRQ_BYTES + list,
        Opcode::CreateDct => DCT_BYTES,
        Opcode::CreateMkey => MKEY_BYTES + list,
        Opcode::CreateUctx | Opcode::CreateGeneralObject => DOMAIN_BYTES,
        Opcode::CreatePsv => PSV_BYTES * u64::from(hca_spec::bsf::MAX_PSVS),
        Opcode::CreateUmem => DOMAIN_BYTES + call.input.len() as u64,
        _ => return None,
    })
}

/// The least lengths of a command's input and output, headers included.
fn lengths(opcode: Opcode) -> (usize, usize) {
    use Opcode as Op;
    use cmd::*;
    /// Commands that say no more than "done" may have as little as status and syndrome.
    const DONE: usize = 8;
    const NAME: usize = ObjectOut::SIZE;
    const OBJECT: usize = ObjectIn::SIZE;
    match opcode {
        Op::QueryIssi => (OBJECT, QueryIssiOut::SIZE),
        Op::QueryPages => (FunctionIn::SIZE, QueryPagesOut::SIZE),
        Op::ManagePages => (FunctionIn::SIZE, ManagePagesOut::SIZE),
        // Drivers may leave out the end, which is reserved.
        Op::QueryHcaCap => (OBJECT, OBJECT + hca_spec::caps::General::SIZE),
        Op::SetHcaCap => (SetHcaCapIn::SIZE, DONE),
        Op::QueryAdapter => (OBJECT, QueryAdapterOut::SIZE),
        Op::QuerySpecialContexts => (OBJECT, QuerySpecialContextsOut::SIZE),
        Op::AccessReg => (AccessRegIn::SIZE, AccessRegIn::SIZE),
        Op::CreateMkey => (CreateMkeyIn::SIZE, NAME),
        Op::QueryMkey => (OBJECT, QueryMkeyOut::SIZE),
        Op::CreateEq => (CreateEqIn::SIZE, NAME),
        Op::QueryEq => (OBJECT, QueryEqOut::SIZE),
        Op::CreateCq => (CreateCqIn::SIZE, NAME),
        Op::QueryCq => (OBJECT, QueryCqOut::SIZE),
        Op::ModifyCq => (ModifyCqIn::SIZE, DONE),
        Op::CreateQp => (CreateQpIn::SIZE, NAME),
        Op::QueryQp => (OBJECT, QueryQpOut::SIZE),
        Op::CreateSrq | Op::CreateXrcSrq => (CreateSrqIn::SIZE, NAME),
        Op::QuerySrq | Op::QueryXrcSrq => (OBJECT, QuerySrqOut::SIZE),
        Op::CreateDct => (CreateDctIn::SIZE, NAME),
        Op::QueryDct => (OBJECT, QueryDctOut::SIZE),
        Op::CreateSq => (CreateSqIn::SIZE, NAME),
        Op::ModifySq => (ModifySqIn::SIZE, DONE),
        Op::QuerySq => (OBJECT, QuerySqOut::SIZE),
        Op::CreateRmp => (CreateRmpIn::SIZE, NAME),
        Op::ModifyRmp => (ModifyRmpIn::SIZE, DONE),
        Op::QueryRmp => (OBJECT, QueryRmpOut::SIZE),
        Op::MadIfc => (MadIfc::SIZE, MadIfc::SIZE),
        Op::AttachToMcg | Op::DetachFromMcg => (McgIn::SIZE, DONE),
        Op::QueryHcaVportContext => (QueryHcaVportIn::SIZE, QueryHcaVportContextOut::SIZE),
        Op::ModifyHcaVportContext => (vport::MODIFY_CONTEXT_LEN, DONE),
        Op::QueryHcaVportGid | Op::QueryHcaVportPkey => (QueryHcaVportIn::SIZE, OBJECT),
        Op::QueryVportCounter => (vport::QUERY_COUNTER_LEN, vport::COUNTERS_LEN),
        Op::AllocPd | Op::AllocUar | Op::AllocXrcd | Op::AllocTransportDomain => (OBJECT, NAME),
        Op::AllocQCounter => (OBJECT, NAME),
        Op::CreatePsv => (OBJECT, hca_spec::bsf::CreatePsvOut::SIZE),
        Op::QueryQCounter => (QueryQCounterIn::SIZE, q_counter::OUTPUT),
        Op::CreateUctx => (CreateUctxIn::SIZE, CreateUctxOut::SIZE),
        Op::CreateUmem => (CreateUmemIn::SIZE, NAME),
        Op::CreateGeneralObject => (GeneralObjectIn::SIZE, NAME),
        Op::QueryGeneralObject => (GeneralObjectIn::SIZE, QueryReservedQpnOut::SIZE),
        op if WITH_CONTEXT.contains(&op) => (ModifyQpIn::SIZE, DONE),
        _ => (OBJECT, DONE),
    }
}

/// The least state of the adapter in which a command is legal.
fn state_for(opcode: Opcode) -> State {
    use Opcode as Op;
    match opcode {
        Op::EnableHca | Op::DisableHca | Op::QueryIssi | Op::SetIssi => State::Disabled,
        Op::QueryHcaCap
        | Op::SetHcaCap
        | Op::QueryAdapter
        | Op::InitHca
        | Op::TeardownHca
        | Op::QueryPages
        | Op::ManagePages
        | Op::AccessReg
        | Op::Nop
        | Op::SetDriverVersion => State::Enabled,
        _ => State::Initialized,
    }
}

/// Executes a command: checks what all commands have in common, then hands it to its family.
pub(crate) fn dispatch(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    use Opcode as Op;
    const NOT_ENABLED: Failure =
        Failure::new(Status::BadSystemState, "the command is legal only after ENABLE_HCA");
    const NOT_INITIALIZED: Failure =
        Failure::new(Status::BadSystemState, "the command is legal only after INIT_HCA");
    const ABSENT: Failure = Failure::new(Status::BadOp, "this adapter does not have the command");

    let (input_len, output_len) = lengths(call.opcode);
    if call.input.len() < input_len {
        return Err(SHORT.got(call.input.len() as u64).limit(input_len as u64));
    }
    if call.output_len < output_len {
        return Err(SHORT_OUTPUT.got(call.output_len as u64).limit(output_len as u64));
    }
    if fw.state < state_for(call.opcode) {
        return Err(if fw.state == State::Disabled { NOT_ENABLED } else { NOT_INITIALIZED });
    }
    match call.opcode {
        Op::EnableHca => hca::enable(fw, effects),
        Op::DisableHca => hca::disable(fw, effects),
        Op::InitHca => hca::init(fw),
        Op::TeardownHca => hca::teardown(fw, effects),
        Op::QueryIssi => hca::query_issi(fw),
        Op::SetIssi => hca::set_issi(fw, call),
        Op::QueryHcaCap => hca::query_cap(fw, call),
        Op::SetHcaCap => hca::set_cap(fw, call),
        Op::QueryAdapter => hca::query_adapter(fw),
        Op::QuerySpecialContexts => hca::query_special_contexts(),
        Op::PageFaultResume => odp::resume(fw, call, effects),
        Op::SetDriverVersion => Ok(done()),

        Op::QueryPages => pages::query(fw, call),
        Op::ManagePages => pages::manage(fw, call),

        Op::CreateEq => eq::create(fw, call, effects),
        Op::DestroyEq => eq::destroy(fw, call, effects),
        Op::QueryEq => eq::query(fw, call),

        Op::CreateCq => cq::create(fw, call, effects),
        Op::DestroyCq => cq::destroy(fw, call, effects),
        Op::QueryCq => cq::query(fw, call),
        Op::ModifyCq => cq::modify(fw, call, effects),

        Op::CreateQp => qp::create(fw, call, effects),
        Op::DestroyQp => qp::destroy(fw, call, effects),
        Op::QueryQp => qp::query(fw, call),
        Op::ToErrQp | Op::ToRstQp => qp_transition::modify(fw, call, effects),
        op if WITH_CONTEXT.contains(&op) => qp_transition::modify(fw, call, effects),

        // Without BlueFlame nothing uses them, and the capability is not set.
        Op::CreateSq | Op::ModifySq | Op::DestroySq | Op::QuerySq if !fw.blueflame() => Err(ABSENT),
        Op::CreateSq => sq::create(fw, call, effects),
        Op::ModifySq => sq::modify(fw, call, effects),
        Op::DestroySq => sq::destroy(fw, call, effects),
        Op::QuerySq => sq::query(fw, call),

        Op::CreateSrq => srq::create_basic(fw, call, effects),
        Op::CreateXrcSrq => srq::create_xrc(fw, call, effects),
        Op::CreateRmp => srq::create_rmp(fw, call, effects),
        Op::DestroySrq | Op::DestroyXrcSrq | Op::DestroyRmp => srq::destroy(fw, call, effects),
        Op::QuerySrq | Op::QueryXrcSrq | Op::QueryRmp => srq::query(fw, call),
        Op::ArmRq | Op::ArmXrcSrq => srq::arm(fw, call, effects),
        Op::ModifyRmp => srq::modify_rmp(fw, call, effects),

        Op::CreateDct => dct::create(fw, call),
        Op::DestroyDct => dct::destroy(fw, call, effects),
        Op::DrainDct => dct::drain(fw, call, effects),
        Op::QueryDct => dct::query(fw, call),
        Op::ArmDctForKeyViolation => dct::arm(fw, call),

        Op::CreateMkey => mkey::create(fw, call),
        Op::DestroyMkey => mkey::destroy(fw, call),
        Op::QueryMkey => mkey::query(fw, call),

        Op::CreatePsv => psv::create(fw, call),
        Op::DestroyPsv => psv::destroy(fw, call),

        Op::AllocPd | Op::AllocUar | Op::AllocXrcd | Op::AllocTransportDomain => domains::alloc(fw, call),
        Op::DeallocPd => domains::dealloc_pd(fw, call),
        Op::DeallocUar => domains::dealloc_uar(fw, call),
        Op::DeallocXrcd => domains::dealloc_xrcd(fw, call),
        Op::DeallocTransportDomain => domains::dealloc_transport_domain(fw, call),
        Op::AttachToMcg => mcg::attach(fw, call),
        Op::DetachFromMcg => mcg::detach(fw, call),

        Op::MadIfc => mad::mad_ifc(fw, call, effects),
        Op::QueryHcaVportContext => vport::context(fw, call),
        Op::ModifyHcaVportContext => vport::modify_context(fw, call),
        Op::QueryHcaVportGid => vport::gids(fw, call),
        Op::QueryHcaVportPkey => vport::pkeys(fw, call),
        Op::QueryVportCounter => vport::counters(fw, call),
        Op::AccessReg => access_reg::access(fw, call, effects),

        Op::AllocQCounter => q_counter::alloc(fw),
        Op::DeallocQCounter => q_counter::dealloc(fw, call),
        Op::QueryQCounter => q_counter::query(fw, call),

        Op::CreateUctx => devx::create_context(fw, call),
        Op::DestroyUctx => devx::destroy_context(fw, call),
        Op::CreateUmem => devx::create_umem(fw, call),
        Op::DestroyUmem => devx::destroy_umem(fw, call),
        Op::CreateGeneralObject => general_object::create(fw, call),
        Op::ModifyGeneralObject => general_object::modify(fw, call),
        Op::QueryGeneralObject => general_object::query(fw, call),
        Op::DestroyGeneralObject => general_object::destroy(fw, call),
        Op::Nop => Ok(done()),

        _ => Err(ABSENT),
    }
}
