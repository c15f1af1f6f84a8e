//! Event queues. Source: PRM "CREATE_EQ", "DESTROY_EQ", "QUERY_EQ".

use hca_spec::cmd::{CreateEqIn, ObjectIn, ObjectOut, QueryEqOut};
use hca_spec::ids::Eqn;
use hca_spec::queue::Eqc;

use super::{Outcome, done, put_pages, queue_buffer, view};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::Eq;

const NO_EQ: Failure = bad_resource("there is no EQ of that number");

pub(super) fn create(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const SIZE: Failure = bad_param("CREATE_EQ: log_eq_size is above the maximum");
    const UAR: Failure = bad_resource("CREATE_EQ: the UAR page is not allocated");
    let create = view::<CreateEqIn>(input)?;
    let ctx = *create.eqc();
    let log_size = ctx.get(Eqc::LOG_EQ_SIZE);
    if log_size > fw.general.get(hca_spec::caps::General::LOG_MAX_EQ_SZ) {
        return Err(SIZE);
    }
    if fw.icm.uars.get(ctx.get(Eqc::UAR_PAGE)).is_none() {
        return Err(UAR);
    }
    let buffer = queue_buffer(input, ctx.get(Eqc::LOG_PAGE_SIZE), ctx.get(Eqc::PAGE_OFFSET), 64 << log_size)?;
    let events = [
        create.get(CreateEqIn::EVENT_BITMASK_0),
        create.get(CreateEqIn::EVENT_BITMASK_1),
        create.get(CreateEqIn::EVENT_BITMASK_2),
        create.get(CreateEqIn::EVENT_BITMASK_3),
    ];
    let number = fw
        .icm
        .eqs
        .insert(Eq { ctx, events, buffer })
        .map_err(|_| no_room("CREATE_EQ: every EQ is in use"))?;
    effects.push(Effect::EqCreated(Eqn(number as u8)));
    Ok(ObjectOut::new().set(ObjectOut::NUMBER, number).bytes().to_vec())
}

pub(super) fn destroy(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    let number = view::<ObjectIn>(input)?.get(ObjectIn::NUMBER) & 0xff;
    fw.icm.eqs.remove(number).ok_or(NO_EQ)?;
    effects.push(Effect::EqDestroyed(Eqn(number as u8)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, input: &[u8]) -> Outcome {
    let number = view::<ObjectIn>(input)?.get(ObjectIn::NUMBER) & 0xff;
    let eq = fw.icm.eqs.get(number).ok_or(NO_EQ)?;
    let mut out = QueryEqOut::new();
    *out.eqc_mut() = eq.ctx;
    out.set(QueryEqOut::EVENT_BITMASK_0, eq.events[0]);
    let mut out = out.bytes().to_vec();
    put_pages(&mut out, &eq.buffer);
    Ok(out)
}
