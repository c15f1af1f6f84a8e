//! Queues, doorbell records and keys that lie in user memory.
//!
//! A user names memory by number and offset. Such a command is brought into the form that the kernel's
//! commands have, page lists and DMA addresses, before its family sees it; queries don't tell users
//! those addresses.

use hca_spec::caps::uctx_cap;
use hca_spec::cmd::{
    CreateCqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, CreateSqIn, CreateSrqIn, ModifyCqIn, ModifyQpIn,
    PAS_OFFSET, QueryCqOut, QueryQpOut, QueryRmpOut, QuerySqOut, QuerySrqOut,
};
use hca_spec::dct::{CreateDctIn, Dctc};
use hca_spec::mkc::{AccessMode, MTT_READ, MTT_WRITE, Mkc};
use hca_spec::qpc::{Qpc, ServiceType};
use hca_spec::queue::{Cqc, Sqc, Srqc, Wq};
use hca_spec::rq::{CreateRqIn, QueryRqOut, Rqc};
use hca_spec::xrq::{CreateXrqIn, QueryXrqOut};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::access::{is_kernels, is_of_another, uid};
use crate::commands::qp::list_offset;
use crate::commands::row::{Call, Placed};
use crate::failure::{Failure, bad_param, bad_resource};
use crate::firmware::Firmware;
use crate::icm::{Qp, Translation};
use crate::object::{Kind, Object};
use crate::users::{Held, SHARED, Umem};

/// Smallest page of a queue: log2.
const MIN_SHIFT: u32 = 12;
/// Page offsets are given in 64ths of a page.
const OFFSET_STEPS: u32 = 6;
/// Bytes of a doorbell record, and its alignment.
const RECORD: u64 = 8;
/// Most pages of a queue: those of the largest completion queue, 2^22 entries of 128 bytes, in the smallest pages, and one more if
/// it begins within one. A memory of huge pages could hold a queue of any number of small ones.
const MOST_PAGES: u64 = (128 << 22 >> MIN_SHIFT) + 1;
/// MODIFY_CQ op_mod: a new buffer.
const RESIZE: u32 = 1;

/// A queue in user memory, as its command's fields need it.
struct Place {
    log_page_size: u32,
    page_offset: u32,
    pages: Vec<u64>,
}

/// A memory that a command names, if it is the user's and may be accessed so.
fn find<'a>(fw: &'a Firmware, call: &Call<'_>, id: u32, access: u64) -> Result<&'a Umem, Failure> {
    const NONE: Failure = bad_resource("user memory: there is no memory of that number");
    const OTHERS: Failure = bad_resource("user memory: it belongs to another user context");
    const RIGHTS: Failure =
        bad_resource("user memory: its pages don't allow the access that the object needs");
    let umem = fw.icm.users.umems.get(id).ok_or(NONE.of(id))?;
    let (owner, uid) = (fw.icm.users.owner(Object::new(Kind::Umem, id)), uid(call));
    if uid != 0 && uid != SHARED && owner != uid {
        return Err(OTHERS.of(id).got(owner).exactly(uid));
    }
    if access & !umem.access != 0 {
        return Err(RIGHTS.of(id).got(umem.access).exactly(access));
    }
    Ok(umem)
}

/// Where a queue of `len` bytes at `offset` lies. Pages are as large as the offset's alignment allows.
fn place(umem: &Umem, id: u32, offset: u64, len: u64) -> Result<Place, Failure> {
    const BEYOND: Failure = bad_param("user memory: umem_offset: the queue goes beyond its end");
    const ALIGNMENT: Failure =
        bad_param("user memory: umem_offset: a queue must begin at a multiple of 64 bytes");
    const LONG: Failure = bad_param("user memory: log_size: the queue is longer than any that can be made");
    if offset.checked_add(len).is_none_or(|end| end > umem.len()) {
        return Err(BEYOND.of(id).got(offset).limit(umem.len()));
    }
    let start = umem.offset().saturating_add(offset);
    let shift = (start.trailing_zeros() + OFFSET_STEPS).min(umem.page_shift());
    if shift < MIN_SHIFT {
        return Err(ALIGNMENT.of(id).got(start));
    }
    let page = 1u64 << shift;
    let in_page = start & (page - 1);
    let count = (in_page + len).div_ceil(page);
    if count > MOST_PAGES {
        return Err(LONG.of(id).got(count).limit(MOST_PAGES));
    }
    let first = start - in_page;
    let pages = (0..count).map_while(|n| umem.address(first.checked_add(n << shift)?)).collect();
    Ok(Place {
        log_page_size: shift - MIN_SHIFT,
        page_offset: (in_page >> (shift - OFFSET_STEPS)) as u32,
        pages,
    })
}

/// DMA address of a doorbell record.
fn record(fw: &Firmware, call: &Call<'_>, id: u32, offset: u64) -> Result<u64, Failure> {
    const BEYOND: Failure = bad_param("user memory: dbr_addr: the doorbell record goes beyond its end");
    const ALIGNMENT: Failure = bad_param("user memory: dbr_addr: a doorbell record must be 8-byte aligned");
    let umem = find(fw, call, id, MTT_READ)?;
    let (address, left) = umem.at(offset).ok_or(BEYOND.of(id).got(offset))?;
    if !address.is_multiple_of(RECORD) {
        return Err(ALIGNMENT.of(id).got(offset));
    }
    if left < RECORD {
        return Err(BEYOND.of(id).got(offset));
    }
    Ok(address)
}

/// A copy of a command's input to change; `None` if it is too short, which its family reports.
fn copy<T: FromBytes + KnownLayout + Immutable + IntoBytes + Copy>(call: &Call<'_>) -> Option<T> {
    call.view::<T>().ok().copied()
}

/// A changed input: its fixed part, and the list it came with or a new one.
fn finish(call: &Call<'_>, fixed: &[u8], pages: Option<&[u64]>, held: Held) -> Placed {
    let mut input = fixed.to_vec();
    match pages {
        Some(pages) => pages.iter().for_each(|page| input.extend_from_slice(&page.to_be_bytes())),
        None => input.extend_from_slice(call.input.get(fixed.len()..).unwrap_or_default()),
    }
    Placed { input: Some(input), held, user_pages: None }
}

fn cq_bytes(ctx: &Cqc) -> u64 {
    // A size that is too large is refused by the family; here it only must not overflow.
    let cqe: u64 = if ctx.get(Cqc::CQE_SZ) == 1 { 128 } else { 64 };
    cqe << ctx.get(Cqc::LOG_CQ_SIZE)
}

pub(in crate::commands) fn cq(fw: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    let Some(mut c) = copy::<CreateCqIn>(call) else { return Ok(None) };
    let (mut held, mut list) = (Held::default(), None);
    if c.get(CreateCqIn::CQ_UMEM_VALID) == 1 {
        let id = c.get(CreateCqIn::CQ_UMEM_ID);
        let umem = find(fw, call, id, MTT_READ | MTT_WRITE)?;
        let p = place(umem, id, c.get(CreateCqIn::CQ_UMEM_OFFSET), cq_bytes(c.cqc()))?;
        c.cqc_mut().set(Cqc::LOG_PAGE_SIZE, p.log_page_size).set(Cqc::PAGE_OFFSET, p.page_offset);
        (held.queue, list) = (Some(id), Some(p.pages));
    }
    let ctx = c.cqc_mut();
    if ctx.get(Cqc::DBR_UMEM_VALID) == 1 {
        let (id, offset) = (ctx.get(Cqc::DBR_UMEM_ID), ctx.get(Cqc::DBR_ADDR));
        ctx.set(Cqc::DBR_ADDR, record(fw, call, id, offset)?);
        held.record = Some((id, offset));
    }
    Ok((held != Held::default()).then(|| finish(call, c.bytes(), list.as_deref(), held)))
}

pub(in crate::commands) fn resized_cq(fw: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    let Some(mut m) = copy::<ModifyCqIn>(call) else { return Ok(None) };
    if call.op_mod != RESIZE || m.get(ModifyCqIn::CQ_UMEM_VALID) == 0 {
        return Ok(None);
    }
    let id = m.get(ModifyCqIn::CQ_UMEM_ID);
    let umem = find(fw, call, id, MTT_READ | MTT_WRITE)?;
    let p = place(umem, id, m.get(ModifyCqIn::CQ_UMEM_OFFSET), cq_bytes(m.cqc()))?;
    m.cqc_mut().set(Cqc::LOG_PAGE_SIZE, p.log_page_size).set(Cqc::PAGE_OFFSET, p.page_offset);
    Ok(Some(finish(call, m.bytes(), Some(&p.pages), Held { queue: Some(id), record: None })))
}

pub(in crate::commands) fn qp(fw: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    const PRIVILEGED: Failure =
        bad_param("CREATE_QP: fre, rlky: a user's queue pair can't load page lists into keys (REG_UMR)");
    const SOURCE: Failure =
        bad_param("CREATE_QP: deth_sqpn: a user's datagrams come from the queue pair that sends them");
    const SPECIAL: Failure = bad_param("CREATE_QP: st: queue pairs 0 and 1 of a port are the kernel's");
    let Some(mut c) = copy::<CreateQpIn>(call) else { return Ok(None) };
    let of_kernel = is_kernels(call);
    let service = ServiceType::from_bits(c.qpc().get(Qpc::ST));
    if !of_kernel && matches!(service, Some(ServiceType::Qp0 | ServiceType::Qp1)) {
        return Err(SPECIAL);
    }
    if !of_kernel && c.qpc().get(Qpc::DETH_SQPN) != 0 {
        return Err(SOURCE.got(c.qpc().get(Qpc::DETH_SQPN)));
    }
    let registers = service == Some(ServiceType::RegUmr);
    if !of_kernel && (registers || c.qpc().get(Qpc::FRE) == 1 || c.qpc().get(Qpc::RLKY) == 1) {
        return Err(PRIVILEGED);
    }
    let (mut held, mut list) = (Held::default(), None);
    if c.get(CreateQpIn::WQ_UMEM_VALID) == 1 {
        let id = c.get(CreateQpIn::WQ_UMEM_ID);
        let umem = find(fw, call, id, MTT_READ)?;
        let sizes = Qp { ctx: *c.qpc(), ..Qp::default() };
        let len = sizes.rq_bytes() + sizes.sq_bytes();
        let p = place(umem, id, c.get(CreateQpIn::WQ_UMEM_OFFSET), len)?;
        c.qpc_mut().set(Qpc::LOG_PAGE_SIZE, p.log_page_size).set(Qpc::PAGE_OFFSET, p.page_offset);
        (held.queue, list) = (Some(id), Some(p.pages));
    }
    let ctx = c.qpc_mut();
    if ctx.get(Qpc::DBR_UMEM_VALID) == 1 {
        let (id, offset) = (ctx.get(Qpc::DBR_UMEM_ID), ctx.get(Qpc::DBR_ADDR));
        ctx.set(Qpc::DBR_ADDR, record(fw, call, id, offset)?);
        held.record = Some((id, offset));
    }
    Ok((held != Held::default()).then(|| finish(call, c.bytes(), list.as_deref(), held)))
}

/// A user's transition can't move the doorbell record: it would name a DMA address. Nor can it give the
/// queue pair the right to load page lists into keys, which are DMA addresses too, or another's number as the source of its datagrams.
pub(in crate::commands) fn transition(_: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    let Some(mut m) = copy::<ModifyQpIn>(call) else { return Ok(None) };
    let fields = [Qpc::FRE, Qpc::RLKY, Qpc::DETH_SQPN];
    let harmless = m.qpc().get(Qpc::DBR_ADDR) == 0 && fields.iter().all(|f| m.qpc().get(*f) == 0);
    if uid(call) == 0 || harmless {
        return Ok(None);
    }
    m.qpc_mut().set(Qpc::DBR_ADDR, 0);
    for field in fields {
        m.qpc_mut().set(field, 0);
    }
    Ok(Some(finish(call, m.bytes(), None, Held::default())))
}

pub(in crate::commands) fn srq(fw: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    let Some(mut c) = copy::<CreateSrqIn>(call) else { return Ok(None) };
    let (mut held, mut list) = (Held::default(), None);
    if c.get(CreateSrqIn::SRQ_UMEM_VALID) == 1 {
        let id = c.get(CreateSrqIn::SRQ_UMEM_ID);
        let umem = find(fw, call, id, MTT_READ)?;
        let len = 16u64 << (c.srqc().get(Srqc::LOG_SRQ_SIZE) + c.srqc().get(Srqc::LOG_RQ_STRIDE));
        let p = place(umem, id, c.get(CreateSrqIn::SRQ_UMEM_OFFSET), len)?;
        c.srqc_mut().set(Srqc::LOG_PAGE_SIZE, p.log_page_size).set(Srqc::PAGE_OFFSET, p.page_offset);
        (held.queue, list) = (Some(id), Some(p.pages));
    }
    let ctx = c.srqc_mut();
    if ctx.get(Srqc::DBR_UMEM_VALID) == 1 {
        let (id, offset) = (ctx.get(Srqc::DBR_UMEM_ID), ctx.get(Srqc::DBR_ADDR));
        ctx.set(Srqc::DBR_ADDR, record(fw, call, id, offset)?);
        held.record = Some((id, offset));
    }
    Ok((held != Held::default()).then(|| finish(call, c.bytes(), list.as_deref(), held)))
}

pub(in crate::commands) fn rmp(fw: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    let Some(mut c) = copy::<CreateRmpIn>(call) else { return Ok(None) };
    let (held, list) = work_queue(fw, call, c.rmpc_mut().wq_mut())?;
    Ok((held != Held::default()).then(|| finish(call, c.bytes(), list.as_deref(), held)))
}

pub(in crate::commands) fn xrq(fw: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    let Some(mut c) = copy::<CreateXrqIn>(call) else { return Ok(None) };
    let (held, list) = work_queue(fw, call, c.xrqc_mut().wq_mut())?;
    Ok((held != Held::default()).then(|| finish(call, c.bytes(), list.as_deref(), held)))
}

/// A work queue in user memory: fills in where it and its record lie.
fn work_queue(fw: &Firmware, call: &Call<'_>, wq: &mut Wq) -> Result<(Held, Option<Vec<u64>>), Failure> {
    let (mut held, mut list) = (Held::default(), None);
    if wq.get(Wq::WQ_UMEM_VALID) == 1 {
        let id = wq.get(Wq::WQ_UMEM_ID);
        let umem = find(fw, call, id, MTT_READ)?;
        let len = 1u64 << (wq.get(Wq::LOG_WQ_SZ) + wq.get(Wq::LOG_WQ_STRIDE));
        let p = place(umem, id, wq.get(Wq::WQ_UMEM_OFFSET), len)?;
        wq.set(Wq::LOG_WQ_PG_SZ, p.log_page_size).set(Wq::PAGE_OFFSET, p.page_offset);
        (held.queue, list) = (Some(id), Some(p.pages));
    }
    if wq.get(Wq::DBR_UMEM_VALID) == 1 {
        let (id, offset) = (wq.get(Wq::DBR_UMEM_ID), wq.get(Wq::DBR_ADDR));
        wq.set(Wq::DBR_ADDR, record(fw, call, id, offset)?);
        held.record = Some((id, offset));
    }
    Ok((held, list))
}

pub(in crate::commands) fn rq(fw: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    const PRIVILEGED: Failure = bad_param("CREATE_RQ: rlky: a user's queue can't name physical addresses");
    let Some(mut c) = copy::<CreateRqIn>(call) else { return Ok(None) };
    if c.rqc().get(Rqc::RLKY) == 1 && !is_kernels(call) {
        return Err(PRIVILEGED);
    }
    let (held, list) = work_queue(fw, call, c.rqc_mut().wq_mut())?;
    Ok((held != Held::default()).then(|| finish(call, c.bytes(), list.as_deref(), held)))
}

/// A target of a user's lies in no user memory, and names none by itself.
pub(in crate::commands) fn dct(_: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    const PRIVILEGED: Failure =
        bad_param("CREATE_DCT: rlky: what a user's target receives can't go to physical addresses");
    let privileged = call.view::<CreateDctIn>().is_ok_and(|c| c.dctc().get(Dctc::RLKY) == 1);
    if privileged && !is_kernels(call) { Err(PRIVILEGED) } else { Ok(None) }
}

pub(in crate::commands) fn sq(fw: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    const PORT: Failure = bad_param("CREATE_SQ: uid: users have send queues on Ethernet ports only");
    const RAW: Failure = bad_param("CREATE_SQ: the user context may not send raw packets (uctx_cap)");
    const PRIVILEGED: Failure =
        bad_param("CREATE_SQ: a user's queue can't load page lists into keys (fre, rlky, reg_umr)");
    let Some(mut c) = copy::<CreateSqIn>(call) else { return Ok(None) };
    let user = uid(call);
    if ![0, SHARED].contains(&user) {
        if !fw.is_ethernet() {
            return Err(PORT);
        }
        let sqc = c.sqc();
        let may = fw.icm.users.contexts.get(user.into()).is_some_and(|of| of.cap & uctx_cap::RAW_TX != 0);
        if sqc.get(Sqc::TIS_LST_SZ) != 0 && !may {
            return Err(RAW);
        }
        if [Sqc::FRE, Sqc::RLKY, Sqc::REG_UMR].iter().any(|field| sqc.get(*field) == 1) {
            return Err(PRIVILEGED);
        }
    }
    let (held, list) = work_queue(fw, call, c.sqc_mut().wq_mut())?;
    Ok((held != Held::default()).then(|| finish(call, c.bytes(), list.as_deref(), held)))
}

/// A key over user memory: its translations are the memory's pages, with the memory's rights.
pub(in crate::commands) fn mkey(fw: &Firmware, call: &Call<'_>) -> Result<Option<Placed>, Failure> {
    const MODE: Failure =
        bad_param("CREATE_MKEY: access_mode: only a key with a page list can lie in user memory");
    const PHYSICAL: Failure = bad_param(
        "CREATE_MKEY: access_mode: a user can't make a key over physical addresses or device memory",
    );
    const PAGE: Failure =
        bad_param("CREATE_MKEY: log_page_size: its pages are larger than those of the user memory");
    const BEYOND: Failure = bad_param("CREATE_MKEY: len: the key goes beyond the end of the user memory");
    let Some(mut c) = copy::<CreateMkeyIn>(call) else { return Ok(None) };
    let mode = c.mkc().access_mode();
    let valid = c.get(CreateMkeyIn::MKEY_UMEM_VALID) == 1;
    let given = c.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE);
    let lies_there = valid && given > 0;
    let addresses = matches!(mode, Some(AccessMode::Pa | AccessMode::Memic | AccessMode::SwIcm))
        || mode == Some(AccessMode::Mtt) && !lies_there;
    if addresses && !is_kernels(call) {
        return Err(PHYSICAL);
    }
    if !lies_there {
        return Ok(None);
    }
    if mode != Some(AccessMode::Mtt) {
        return Err(MODE);
    }
    let id = c.get(CreateMkeyIn::MKEY_UMEM_ID);
    let umem = find(fw, call, id, MTT_READ)?;
    let shift = c.mkc().get(Mkc::LOG_PAGE_SIZE);
    if shift > umem.page_shift() || shift < MIN_SHIFT {
        return Err(PAGE.of(id).got(shift).limit(umem.page_shift()));
    }
    let start = umem.offset().saturating_add(c.get(CreateMkeyIn::MKEY_UMEM_OFFSET));
    let start = start & !((1 << shift) - 1);
    let in_page = c.mkc().get(Mkc::START_ADDR) & ((1 << shift) - 1);
    let wanted = c.mkc().get(Mkc::LEN).saturating_add(in_page).div_ceil(1 << shift);
    // Whole pages of the memory that begin where the key does.
    let there = umem.offset().saturating_add(umem.len()).saturating_sub(start) >> shift;
    let count = wanted.min(u64::from(given) * 2);
    if count.min(there) < wanted {
        return Err(BEYOND.of(id).got(wanted).limit(count.min(there)));
    }
    // The last 16-byte unit may hold one page only.
    c.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, wanted.div_ceil(2) as u32);
    c.set(CreateMkeyIn::PG_ACCESS, 1);
    let user_pages = Some(umem.part(shift, start, wanted));
    let held = Held { queue: Some(id), record: None };
    Ok(Some(Placed { input: Some(c.bytes().to_vec()), held, user_pages }))
}

/// Takes out of a query's output what its user must not know: pages, and the record's DMA address,
/// instead of which it reads the offset that it gave.
pub(super) fn hide(fw: &Firmware, call: &Call<'_>, output: &mut [u8]) {
    let (Some(hide), Some(object)) = (call.command.user.hide, call.target()) else { return };
    let record = fw.icm.users.held(object).record;
    let of_kernel = is_kernels(call);
    if of_kernel && record.is_none() {
        return;
    }
    hide(output, record.map_or(0, |(_, offset)| offset));
    // Pieces of other keys are the user's own words.
    let pieces = object.kind == Kind::Mkey
        && !is_of_another(fw, call, object)
        && fw.icm.mkeys.get(object.number).is_some_and(|key| matches!(key.translation, Translation::Klm(_)));
    if !of_kernel && !pieces {
        let list = if object.kind == Kind::Qp { list_offset(fw, call) } else { PAS_OFFSET };
        output.get_mut(list..).unwrap_or_default().fill(0);
    }
}

pub(in crate::commands) fn hide_qp(output: &mut [u8], record: u64) {
    if let Ok((out, _)) = QueryQpOut::mut_from_prefix(output) {
        out.qpc_mut().set(Qpc::DBR_ADDR, record);
    }
}

/// A key has no doorbell record.
pub(in crate::commands) fn hide_mkey(_: &mut [u8], _: u64) {}

pub(in crate::commands) fn hide_cq(output: &mut [u8], record: u64) {
    if let Ok((out, _)) = QueryCqOut::mut_from_prefix(output) {
        out.cqc_mut().set(Cqc::DBR_ADDR, record);
    }
}

pub(in crate::commands) fn hide_rmp(output: &mut [u8], record: u64) {
    if let Ok((out, _)) = QueryRmpOut::mut_from_prefix(output) {
        out.rmpc_mut().wq_mut().set(Wq::DBR_ADDR, record);
    }
}

pub(in crate::commands) fn hide_xrq(output: &mut [u8], record: u64) {
    if let Ok((out, _)) = QueryXrqOut::mut_from_prefix(output) {
        out.xrqc_mut().wq_mut().set(Wq::DBR_ADDR, record);
    }
}

pub(in crate::commands) fn hide_rq(output: &mut [u8], record: u64) {
    if let Ok((out, _)) = QueryRqOut::mut_from_prefix(output) {
        out.rqc_mut().wq_mut().set(Wq::DBR_ADDR, record);
    }
}

pub(in crate::commands) fn hide_sq(output: &mut [u8], record: u64) {
    if let Ok((out, _)) = QuerySqOut::mut_from_prefix(output) {
        out.sqc_mut().wq_mut().set(Wq::DBR_ADDR, record);
    }
}

pub(in crate::commands) fn hide_srq(output: &mut [u8], record: u64) {
    if let Ok((out, _)) = QuerySrqOut::mut_from_prefix(output) {
        out.srqc_mut().set(Srqc::DBR_ADDR, record);
    }
}
