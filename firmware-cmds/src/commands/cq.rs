//! Completion queues. Source: PRM "CREATE_CQ", "DESTROY_CQ", "QUERY_CQ", "MODIFY_CQ".

use hca_spec::caps::General;
use hca_spec::cmd::{CreateCqIn, ModifyCqIn, ObjectIn, ObjectOut, QueryCqOut};
use hca_spec::ids::Cqn;
use hca_spec::queue::Cqc;

use super::{Outcome, done, put_pages, queue_buffer, view};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, busy, no_room};
use crate::firmware::Firmware;
use crate::icm::{Buffer, Cq};

const NO_CQ: Failure = bad_resource("there is no CQ of that number");
const SIZE: Failure = bad_param("CQ: log_cq_size is above the maximum");
const CQE_SIZE: Failure = bad_param("CQ: cqe_sz must be 0 (64 bytes) or 1 (128 bytes)");

fn buffer(fw: &Firmware, input: &[u8], ctx: &Cqc) -> Result<Buffer, Failure> {
    let log_size = ctx.get(Cqc::LOG_CQ_SIZE);
    if log_size > fw.general.get(General::LOG_MAX_CQ_SZ) {
        return Err(SIZE);
    }
    let cqe: u64 = match ctx.get(Cqc::CQE_SZ) {
        0 => 64,
        1 => 128,
        _ => return Err(CQE_SIZE),
    };
    queue_buffer(input, ctx.get(Cqc::LOG_PAGE_SIZE), ctx.get(Cqc::PAGE_OFFSET), cqe << log_size)
}

pub(super) fn create(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const NO_EQ: Failure = bad_resource("CREATE_CQ: c_eqn names no EQ");
    const UAR: Failure = bad_resource("CREATE_CQ: the UAR page is not allocated");
    let ctx = *view::<CreateCqIn>(input)?.cqc();
    if fw.icm.eqs.get(ctx.get(Cqc::C_EQN)).is_none() {
        return Err(NO_EQ);
    }
    if fw.icm.uars.get(ctx.get(Cqc::UAR_PAGE)).is_none() {
        return Err(UAR);
    }
    let buffer = buffer(fw, input, &ctx)?;
    let pages = buffer.pages().len();
    let number = fw
        .icm
        .cqs
        .insert(Cq { ctx, buffer, users: 0 })
        .map_err(|_| no_room("CREATE_CQ: every CQ is in use"))?;
    fw.icm.count_pages(pages);
    effects.push(Effect::CqCreated(Cqn(number)));
    Ok(ObjectOut::new().set(ObjectOut::NUMBER, number).bytes().to_vec())
}

pub(super) fn destroy(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const USED: Failure = busy("DESTROY_CQ: queue pairs or shared receive queues still report to the CQ");
    let number = view::<ObjectIn>(input)?.get(ObjectIn::NUMBER);
    if fw.icm.cqs.get(number).ok_or(NO_CQ)?.users > 0 {
        return Err(USED);
    }
    if let Some(cq) = fw.icm.cqs.remove(number) {
        fw.icm.uncount_pages(cq.buffer.pages().len());
    }
    effects.push(Effect::CqDestroyed(Cqn(number)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, input: &[u8]) -> Outcome {
    let number = view::<ObjectIn>(input)?.get(ObjectIn::NUMBER);
    let cq = fw.icm.cqs.get(number).ok_or(NO_CQ)?;
    let mut out = QueryCqOut::new();
    *out.cqc_mut() = cq.ctx;
    let mut out = out.bytes().to_vec();
    put_pages(&mut out, &cq.buffer);
    Ok(out)
}

pub(super) fn modify(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const MODIFIER: Failure = bad_param("MODIFY_CQ: op_mod must be 0 (moderation) or 1 (resize)");
    let modify = view::<ModifyCqIn>(input)?;
    let cqn = modify.get(ModifyCqIn::CQN);
    let select = modify.get(ModifyCqIn::FIELD_SELECT);
    let new = modify.cqc();
    let old = fw.icm.cqs.get(cqn).ok_or(NO_CQ)?.ctx;
    match modify.get(ModifyCqIn::OP_MOD) {
        0 => {
            let Some(cq) = fw.icm.cqs.get_mut(cqn) else { return Err(NO_CQ) };
            for (bit, field) in [(0, Cqc::CQ_PERIOD), (1, Cqc::CQ_MAX_COUNT), (2, Cqc::OI)] {
                if select >> bit & 1 == 1 {
                    cq.ctx.set(field, new.get(field));
                }
            }
            if select >> 3 & 1 == 1 && fw.icm.eqs.get(new.get(Cqc::C_EQN)).is_some() {
                cq.ctx.set(Cqc::C_EQN, new.get(Cqc::C_EQN));
            }
            effects.push(Effect::CqModerated(Cqn(cqn)));
        }
        1 => {
            let mut ctx = old;
            for field in [Cqc::LOG_CQ_SIZE, Cqc::PAGE_OFFSET, Cqc::LOG_PAGE_SIZE, Cqc::CQE_SZ] {
                ctx.set(field, new.get(field));
            }
            let new_buffer = buffer(fw, input, &ctx)?;
            let pages = new_buffer.pages().len();
            let Some(cq) = fw.icm.cqs.get_mut(cqn) else { return Err(NO_CQ) };
            cq.ctx = ctx;
            let old = std::mem::replace(&mut cq.buffer, new_buffer);
            fw.icm.count_pages(pages);
            fw.icm.uncount_pages(old.pages().len());
            effects.push(Effect::CqResized { cqn: Cqn(cqn), old });
        }
        _ => return Err(MODIFIER),
    }
    Ok(done())
}
