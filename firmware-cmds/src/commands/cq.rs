//! Completion queues. Source: PRM "CREATE_CQ", "DESTROY_CQ", "QUERY_CQ", "MODIFY_CQ".

use hca_spec::caps::General;
use hca_spec::cmd::{CreateCqIn, MODIFY_CQ_RESIZE, ModifyCqIn, QueryCqOut, resize_cq};
use hca_spec::command::Status;
use hca_spec::ids::Cqn;
use hca_spec::queue::{Cqc, cqe_size, mini_format};

use super::call::{check_uar, done, named, record, reply, with_pages};
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use crate::buffer::Buffer;
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, busy, no_room};
use crate::firmware::Firmware;
use crate::icm::Cq;
use crate::object::Kind;

const NO_CQ: Failure = bad_resource("there is no CQ of that number");
const NO_EQ: Failure = bad_resource("CQ: c_eqn names no EQ");
const SIZE: Failure = bad_param("CQ: log_cq_size is above log_max_cq_sz");
const CQE_SIZE: Failure = bad_param("CQ: cqe_sz must be 0 (64 bytes), 1 or 2 (128 bytes)");
const COLLAPSED: Failure =
    bad_param("CQ: cqe_comp_en: a collapsed CQ has one entry, blocks of compressed ones need several");
const MINI: Failure = bad_param("CQ: mini_cqe_res_format is reserved");

/// MODIFY_CQ op_mod: moderation and the like.
const MODERATE: u32 = 0;

fn buffer(fw: &Firmware, call: &Call<'_>, ctx: &Cqc) -> Result<Buffer, Failure> {
    let log_size = ctx.get(Cqc::LOG_CQ_SIZE);
    let limit = fw.general.get(General::LOG_MAX_CQ_SZ);
    if log_size > limit {
        return Err(SIZE.got(log_size).limit(limit));
    }
    let cqe: u64 = match ctx.get(Cqc::CQE_SZ) {
        cqe_size::B64 => 64,
        cqe_size::B128 | cqe_size::B128_PADDED => 128,
        other => return Err(CQE_SIZE.got(other)),
    };
    call.buffer(ctx.get(Cqc::LOG_PAGE_SIZE), ctx.get(Cqc::PAGE_OFFSET), cqe << log_size)
}

/// One more CQ reports to that EQ.
fn report_to(fw: &mut Firmware, eqn: u32) {
    if let Some(eq) = fw.icm.eqs.get_mut(eqn) {
        eq.users += 1;
    }
}

/// One CQ less reports to that EQ.
fn report_no_more(fw: &mut Firmware, eqn: u32) {
    if let Some(eq) = fw.icm.eqs.get_mut(eqn) {
        eq.users = eq.users.saturating_sub(1);
    }
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const UAR: Failure = bad_resource("CREATE_CQ: uar_page: the UAR page is not allocated");
    const FULL: Failure = no_room("CREATE_CQ: every CQ is in use");
    let mut ctx = *call.view::<CreateCqIn>()?.cqc();
    let eqn = ctx.get(Cqc::C_EQN);
    if fw.icm.eqs.get(eqn).is_none() {
        return Err(NO_EQ.got(eqn));
    }
    check_uar(fw, ctx.get(Cqc::UAR_PAGE), UAR)?;
    ctx.set(Cqc::DBR_ADDR, record(ctx.get(Cqc::DBR_ADDR)));
    // By inference.
    if ctx.get(Cqc::CC) == 1 && ctx.get(Cqc::CQE_COMP_EN) == 1 {
        return Err(COLLAPSED.got(1u32).exactly(0u32));
    }
    let mini = ctx.get(Cqc::MINI_CQE_RES_FORMAT);
    if !matches!(mini, mini_format::HASH | mini_format::CHECKSUM | mini_format::CHECKSUM_STRIDE) {
        return Err(MINI.got(mini));
    }
    let buffer = buffer(fw, call, &ctx)?;
    for field in [Cqc::STATUS, Cqc::CONSUMER_COUNTER, Cqc::PRODUCER_COUNTER] {
        ctx.set(field, 0);
    }
    let pages = buffer.pages().len();
    let number = fw.icm.cqs.insert(Cq { ctx, buffer, users: 0 }).map_err(|_| FULL)?;
    fw.icm.count_pages(pages);
    report_to(fw, eqn);
    effects.push(Effect::CqCreated(Cqn(number)));
    named(number)
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const USED: Failure = busy("DESTROY_CQ: queue pairs or shared receive queues still report to the CQ");
    let number = call.number();
    let users = fw.icm.cqs.get(number).ok_or(NO_CQ.of(number))?.users;
    if users > 0 {
        return Err(USED.of(number).got(users));
    }
    let cq = fw.icm.cqs.remove(number).ok_or(NO_CQ.of(number))?;
    fw.icm.uncount_pages(cq.buffer.pages().len());
    report_no_more(fw, cq.ctx.get(Cqc::C_EQN));
    effects.push(Effect::CqDestroyed(Cqn(number)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let number = call.number();
    let cq = fw.icm.cqs.get(number).ok_or(NO_CQ.of(number))?;
    let mut out = QueryCqOut::new();
    *out.cqc_mut() = cq.ctx;
    Ok(with_pages(reply(&out), &cq.buffer))
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const MODIFIER: Failure = bad_param("MODIFY_CQ: op_mod must be 0 (moderation) or 1 (resize)");
    let modify = call.view::<ModifyCqIn>()?;
    match call.op_mod {
        MODERATE => moderate(fw, modify, effects),
        MODIFY_CQ_RESIZE => resize(fw, call, modify, effects),
        other => Err(MODIFIER.got(other)),
    }
}

fn moderate(fw: &mut Firmware, modify: &ModifyCqIn, effects: &mut Vec<Effect>) -> Outcome {
    const SELECT: Failure = bad_param("MODIFY_CQ: modify_field_select has reserved bits");
    /// Bits of modify_field_select (PRM "MODIFY_CQ"): period, count, overrun ignore, EQ, period mode.
    const PERIOD: u32 = 1 << 0;
    const COUNT: u32 = 1 << 1;
    const OI: u32 = 1 << 2;
    const EQ: u32 = 1 << 3;
    const PERIOD_MODE: u32 = 1 << 4;
    let cqn = modify.get(ModifyCqIn::CQN);
    let select = modify.get(ModifyCqIn::FIELD_SELECT);
    let new = modify.cqc();
    if select & !(PERIOD | COUNT | OI | EQ | PERIOD_MODE) != 0 {
        return Err(SELECT.of(cqn).got(select));
    }
    if select & EQ != 0 && fw.icm.eqs.get(new.get(Cqc::C_EQN)).is_none() {
        return Err(NO_EQ.of(cqn).got(new.get(Cqc::C_EQN)));
    }
    let cq = fw.icm.cqs.get_mut(cqn).ok_or(NO_CQ.of(cqn))?;
    let old_eq = cq.ctx.get(Cqc::C_EQN);
    for (bit, field) in [
        (PERIOD, Cqc::CQ_PERIOD),
        (COUNT, Cqc::CQ_MAX_COUNT),
        (OI, Cqc::OI),
        (EQ, Cqc::C_EQN),
        (PERIOD_MODE, Cqc::CQ_PERIOD_MODE),
    ] {
        if select & bit != 0 {
            cq.ctx.set(field, new.get(field));
        }
    }
    if select & EQ != 0 {
        report_no_more(fw, old_eq);
        report_to(fw, new.get(Cqc::C_EQN));
    }
    effects.push(Effect::CqModerated(Cqn(cqn)));
    Ok(done())
}

fn resize(fw: &mut Firmware, call: &Call<'_>, modify: &ModifyCqIn, effects: &mut Vec<Effect>) -> Outcome {
    const SMALL: Failure = Failure::new(
        Status::BadSizeOutstandingCqes,
        "MODIFY_CQ: the CQ holds more entries than the new size has room for",
    );
    const NO_PLACE: Failure = Failure::new(
        Status::BadSizeOutstandingCqes,
        "MODIFY_CQ: the CQ is full: its last entry, which tells of the resize, has no place",
    );
    const SELECT: Failure = bad_param("MODIFY_CQ: resize_field_select has reserved bits");
    /// Counters of a CQ have 24 bits.
    const COUNTER: u32 = 0xff_ffff;
    let cqn = modify.get(ModifyCqIn::CQN);
    let mut ctx = fw.icm.cqs.get(cqn).ok_or(NO_CQ.of(cqn))?.ctx;
    let select = modify.get(ModifyCqIn::FIELD_SELECT);
    if select & !(resize_cq::LOG_SIZE | resize_cq::PAGE_OFFSET | resize_cq::LOG_PAGE_SIZE) != 0 {
        return Err(SELECT.of(cqn).got(select));
    }
    for (bit, field) in [
        (resize_cq::LOG_SIZE, Cqc::LOG_CQ_SIZE),
        (resize_cq::PAGE_OFFSET, Cqc::PAGE_OFFSET),
        (resize_cq::LOG_PAGE_SIZE, Cqc::LOG_PAGE_SIZE),
    ] {
        if select & bit != 0 {
            ctx.set(field, modify.cqc().get(field));
        }
    }
    ctx.set(Cqc::CQE_SZ, modify.cqc().get(Cqc::CQE_SZ));
    let buffer = buffer(fw, call, &ctx)?;
    let old_room = 1u32 << fw.icm.cqs.get(cqn).map_or(0, |cq| cq.ctx.get(Cqc::LOG_CQ_SIZE));
    let held = ctx.get(Cqc::PRODUCER_COUNTER).wrapping_sub(ctx.get(Cqc::CONSUMER_COUNTER)) & COUNTER;
    let room = 1u32 << ctx.get(Cqc::LOG_CQ_SIZE);
    if held > room {
        return Err(SMALL.of(cqn).got(held).limit(room));
    }
    if held >= old_room {
        return Err(NO_PLACE.of(cqn).got(held));
    }
    let pages = buffer.pages().len();
    let cq = fw.icm.cqs.get_mut(cqn).ok_or(NO_CQ.of(cqn))?;
    cq.ctx = ctx;
    let old = std::mem::replace(&mut cq.buffer, buffer);
    fw.icm.count_pages(pages);
    fw.icm.uncount_pages(old.pages().len());
    effects.push(Effect::CqResized { cqn: Cqn(cqn), old });
    Ok(done())
}

pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateCqIn::new();
    let ctx = create.cqc_mut();
    ctx.set(Cqc::LOG_CQ_SIZE, Fixture::LOG_QUEUE).set(Cqc::UAR_PAGE, fixture.number(Kind::Uar));
    ctx.set(Cqc::C_EQN, fixture.number(Kind::Eq)).set(Cqc::DBR_ADDR, fixture.record);
    input(create.bytes(), 0, [fixture.queue])
}

/// MODIFY_CQ: a new buffer.
pub(super) fn modify_template(fixture: &Fixture) -> Vec<u8> {
    let mut modify = ModifyCqIn::new();
    modify.set(ModifyCqIn::CQN, fixture.number(Kind::Cq)).set(ModifyCqIn::FIELD_SELECT, 7);
    modify
        .cqc_mut()
        .set(Cqc::LOG_CQ_SIZE, Fixture::LOG_QUEUE)
        .set(Cqc::CQ_MAX_COUNT, 4)
        .set(Cqc::CQ_PERIOD, 2);
    input(modify.bytes(), MODIFY_CQ_RESIZE, [fixture.queue])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use hca_spec::command::Opcode;
    use hca_spec::ids::Eqn;

    #[test]
    fn life_of_a_cq() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let cq = b.cq(rc.eq, rc.uar, 4);
        assert_eq!(b.effects.last(), Some(&Effect::CqCreated(Cqn(cq))));
        let r = b.object_into(Opcode::QueryCq, cq, 0x118);
        let out = QueryCqOut::from_prefix_or_zero(&r.output);
        assert_eq!((out.cqc().get(Cqc::C_EQN), out.cqc().get(Cqc::LOG_CQ_SIZE)), (rc.eq, 4));
        assert_eq!(hca_spec::be64(&r.output, 0x110), 0x10_0000);
        assert_eq!(b.object(Opcode::DestroyCq, rc.cq).status(), Status::ResourceBusy, "a QP reports to it");
        assert_eq!(b.object(Opcode::DestroyEq, rc.eq).status(), Status::ResourceBusy, "CQs report to it");
        b.ok(Opcode::DestroyCq, cq);
        assert_eq!(b.effects.last(), Some(&Effect::CqDestroyed(Cqn(cq))));
        assert_eq!(b.object_into(Opcode::QueryCq, cq, 0x110).status(), Status::BadResource);
        assert!(!b.effects.contains(&Effect::EqDestroyed(Eqn(rc.eq as u8))));
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let mut try_cq = |change: fn(&mut Cqc), pages: usize| {
            let mut c = CreateCqIn::new();
            c.cqc_mut().set(Cqc::LOG_CQ_SIZE, 7).set(Cqc::UAR_PAGE, rc.uar).set(Cqc::C_EQN, rc.eq);
            change(c.cqc_mut());
            b.put_list(Opcode::CreateCq, &c, &vec![0x1000; pages]).status()
        };
        assert_eq!(try_cq(|_| {}, 2), Status::Ok);
        assert_eq!(try_cq(|c| _ = c.set(Cqc::CQE_SZ, 1), 2), Status::BadInputLength, "twice the size");
        assert_eq!(try_cq(|c| _ = c.set(Cqc::PAGE_OFFSET, 1), 2), Status::BadInputLength);
        assert_eq!(try_cq(|c| _ = c.set(Cqc::CQE_SZ, 3), 2), Status::BadParam);
        assert_eq!(try_cq(|c| _ = c.set(Cqc::MINI_CQE_RES_FORMAT, 2), 2), Status::BadParam);
        assert_eq!(try_cq(|c| _ = c.set(Cqc::CC, 1), 2), Status::Ok);
        assert_eq!(try_cq(|c| _ = c.set(Cqc::CC, 1).set(Cqc::CQE_COMP_EN, 1), 2), Status::BadParam);
        assert_eq!(try_cq(|c| _ = c.set(Cqc::LOG_CQ_SIZE, 31), 2), Status::BadParam);
        assert_eq!(try_cq(|c| _ = c.set(Cqc::C_EQN, 77), 2), Status::BadResource);
        assert_eq!(try_cq(|c| _ = c.set(Cqc::UAR_PAGE, 0xff_ffff), 2), Status::BadResource);
    }

    #[test]
    fn moderation_takes_only_what_is_selected() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let mut m = ModifyCqIn::new();
        m.set(ModifyCqIn::CQN, rc.cq).set(ModifyCqIn::FIELD_SELECT, 0b10);
        m.cqc_mut().set(Cqc::CQ_PERIOD, 9).set(Cqc::CQ_MAX_COUNT, 5).set(Cqc::LOG_CQ_SIZE, 3);
        assert_eq!(b.put(Opcode::ModifyCq, &m, 16).status(), Status::Ok);
        let ctx = b.fw.icm.cqs.get(rc.cq).unwrap().ctx;
        assert_eq!((ctx.get(Cqc::CQ_PERIOD), ctx.get(Cqc::CQ_MAX_COUNT)), (0, 5));
        assert_ne!(ctx.get(Cqc::LOG_CQ_SIZE), 3);
        m.set(ModifyCqIn::FIELD_SELECT, 1 << 3);
        m.cqc_mut().set(Cqc::C_EQN, 99);
        assert_eq!(b.put(Opcode::ModifyCq, &m, 16).status(), Status::BadResource);
        m.set(ModifyCqIn::FIELD_SELECT, 1 << 9);
        assert_eq!(b.put(Opcode::ModifyCq, &m, 16).status(), Status::BadParam);
    }

    #[test]
    fn resize_hands_the_old_buffer_over() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let cq = b.cq(rc.eq, rc.uar, 6);
        let before = b.fw.icm.page_lists;
        let mut m = ModifyCqIn::new();
        m.set(ModifyCqIn::CQN, cq).set(ModifyCqIn::OP_MOD, MODIFY_CQ_RESIZE).set(ModifyCqIn::FIELD_SELECT, 7);
        m.cqc_mut().set(Cqc::LOG_CQ_SIZE, 8);
        assert_eq!(b.put_list(Opcode::ModifyCq, &m, &[0x7000, 0x8000]).status(), Status::BadInputLength);
        let list = [0x7000, 0x8000, 0x9000, 0xa000];
        assert_eq!(b.put_list(Opcode::ModifyCq, &m, &list).status(), Status::Ok);
        let Some(Effect::CqResized { cqn, old }) = b.effects.last() else { panic!("no effect") };
        assert_eq!((*cqn, old.at(0)), (Cqn(cq), Some((0x10_0000, 0x1000))));
        assert_eq!(b.fw.icm.cqs.get(cq).unwrap().buffer.at(0x1000), Some((0x8000, 0x1000)));
        assert_eq!(b.fw.icm.page_lists, before + 3);

        // Nine entries are unread: eight have no room for them.
        b.fw.icm.cqs.get_mut(cq).unwrap().ctx.set(Cqc::PRODUCER_COUNTER, 9);
        m.cqc_mut().set(Cqc::LOG_CQ_SIZE, 3);
        assert_eq!(b.put_list(Opcode::ModifyCq, &m, &list).status(), Status::BadSizeOutstandingCqes);
    }

    /// Every number that a CQ or a QP can have is handed out once. 2.5 GB and half a minute, so on demand only:
    /// `cargo test --release -p hca-firmware every_number -- --ignored`.
    #[test]
    #[ignore = "2.5 GB of memory"]
    fn every_number() {
        const CQS: u32 = (1 << 24) - 1;
        const QPS: u32 = 1 << 18;
        let mut b = Bench::initialized();
        b.give_pages(400_000);
        let rc = b.connection();
        for _ in 1..QPS {
            b.qp(&rc, hca_spec::qpc::ServiceType::Rc);
            b.effects.clear();
        }
        assert_eq!(b.fw.icm.qps.len(), QPS);
        for _ in 1..CQS {
            b.cq(rc.eq, rc.uar, 5);
            b.effects.clear();
        }
        assert_eq!((b.fw.icm.cqs.len(), b.fw.icm.cqs.get(0).is_none()), (CQS, true));
        let mut c = CreateCqIn::new();
        c.cqc_mut().set(Cqc::LOG_CQ_SIZE, 5).set(Cqc::UAR_PAGE, rc.uar).set(Cqc::C_EQN, rc.eq);
        assert_eq!(b.put_list(Opcode::CreateCq, &c, &[0x1000]).status(), Status::ExceedLimit);
        assert!(
            matches!(b.try_qp(&rc), crate::firmware::Execution::Done(out) if out[0] == Status::ExceedLimit as u8)
        );
    }
}
