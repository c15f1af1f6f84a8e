//! Shared receive queues that match tags (XRQ).
//!
//! Source: [`hca_spec::xrq`].

use hca_spec::caps::General;
use hca_spec::queue::{SRQ_ERROR, Srqc, Wq};
use hca_spec::xrq::{
    CreateXrqIn, OFFLOAD_RENDEZVOUS, QueryXrqOut, STATE_ERROR, STATE_GOOD, TOPOLOGY_TAG_MATCHING, Xrqc,
};

use super::call::{reply, with_pages};
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use super::srq::{arm_input, find, from_work_queue, insert, tell_queue};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource};
use crate::firmware::Firmware;
use crate::icm::{Matching, Srq, SrqKind, SrqOrder};
use crate::object::Kind;
use crate::rq::WqKind;

/// Whether the adapter matches tags.
pub(super) fn has_matching(fw: &Firmware) -> bool {
    fw.general_max.get(General::TAG_MATCHING) == 1
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const STRIDING: Failure =
        bad_param("CREATE_XRQ: wq_type must be 0 (linked list) or 1 (cyclic): such queues have no strides");
    const STRIDE: Failure = bad_param("CREATE_XRQ: log_wq_stride must be 5 to 11");
    const TOPOLOGY: Failure = bad_param("CREATE_XRQ: topology: must be 1 (tag matching)");
    const OFFLOAD: Failure = bad_param("CREATE_XRQ: offload: must be 0 (none) or 1 (rndv_offload_rc)");
    const DC: Failure =
        bad_param("CREATE_XRQ: dc: must be 0: nothing is fetched for DC targets (rndv_offload_dc)");
    const LIST: Failure = bad_param("CREATE_XRQ: log_matching_list_sz is above log_tag_matching_list_sz");
    const NO_CQ: Failure = bad_resource("CREATE_XRQ: cqn: there is no CQ of that number");
    let ctx = call.view::<CreateXrqIn>()?.xrqc();
    let order = match WqKind::from_bits(ctx.wq().get(Wq::WQ_TYPE)) {
        Some(WqKind::Linked) => SrqOrder::List,
        Some(WqKind::Cyclic) => SrqOrder::Cyclic,
        _ => return Err(STRIDING.got(ctx.wq().get(Wq::WQ_TYPE))),
    };
    if ctx.get(Xrqc::TOPOLOGY) != TOPOLOGY_TAG_MATCHING {
        return Err(TOPOLOGY.got(ctx.get(Xrqc::TOPOLOGY)));
    }
    let rendezvous = match ctx.get(Xrqc::OFFLOAD) {
        0 => false,
        OFFLOAD_RENDEZVOUS if fw.general_max.get(General::RNDV_OFFLOAD_RC) == 1 => true,
        other => return Err(OFFLOAD.got(other)),
    };
    if ctx.get(Xrqc::DC) != 0 {
        return Err(DC.got(ctx.get(Xrqc::DC)));
    }
    let (log_size, limit) =
        (ctx.get(Xrqc::LOG_MATCHING_LIST_SZ), fw.general_max.get(General::LOG_TAG_MATCHING_LIST_SZ));
    if log_size > limit {
        return Err(LIST.got(log_size).limit(limit));
    }
    let cqn = ctx.get(Xrqc::CQN);
    if fw.icm.cqs.get(cqn).is_none() {
        return Err(NO_CQ.got(cqn));
    }
    let mut srq = from_work_queue(fw, call, ctx.wq(), order, STRIDE)?;
    srq.ctx.set(Srqc::CQN, cqn).set(Srqc::USER_INDEX, ctx.get(Xrqc::USER_INDEX));
    let matching = Matching { log_size, rendezvous, ..Matching::default() };
    insert(fw, Srq { kind: SrqKind::Xrq, matching, ..srq }, effects)
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let srq = find(fw, call)?;
    let Matching { log_size, rendezvous, next, seen, came } = srq.matching;
    let mut out = QueryXrqOut::new();
    let ctx = out.xrqc_mut();
    let failed = srq.ctx.get(Srqc::STATE) == SRQ_ERROR;
    ctx.set(Xrqc::STATE, if failed { STATE_ERROR } else { STATE_GOOD });
    ctx.set(Xrqc::TOPOLOGY, TOPOLOGY_TAG_MATCHING);
    ctx.set(Xrqc::OFFLOAD, if rendezvous { OFFLOAD_RENDEZVOUS } else { 0 });
    ctx.set(Xrqc::USER_INDEX, srq.ctx.get(Srqc::USER_INDEX)).set(Xrqc::CQN, srq.ctx.get(Srqc::CQN));
    ctx.set(Xrqc::LOG_MATCHING_LIST_SZ, log_size).set(Xrqc::APPEND_NEXT_INDEX, next.into());
    ctx.set(Xrqc::SW_PHASE_CNT, seen.into()).set(Xrqc::HW_PHASE_CNT, came.into());
    tell_queue(srq, ctx.wq_mut());
    Ok(with_pages(reply(&out), &srq.buffer))
}

pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateXrqIn::new();
    let ctx = create.xrqc_mut();
    ctx.set(Xrqc::TOPOLOGY, TOPOLOGY_TAG_MATCHING).set(Xrqc::OFFLOAD, OFFLOAD_RENDEZVOUS);
    ctx.set(Xrqc::CQN, fixture.number(Kind::Cq)).set(Xrqc::LOG_MATCHING_LIST_SZ, Fixture::LOG_LIST);
    ctx.set(Xrqc::USER_INDEX, Xrqc::USER_INDEX.max());
    let wq = ctx.wq_mut();
    wq.set(Wq::LOG_WQ_SZ, Fixture::LOG_RECV).set(Wq::LOG_WQ_STRIDE, Fixture::RECV_STRIDE + 4);
    wq.set(Wq::PD, fixture.number(Kind::Pd)).set(Wq::DBR_ADDR, fixture.record);
    input(create.bytes(), 0, [fixture.queue])
}

pub(super) fn arm_template(fixture: &Fixture) -> Vec<u8> {
    arm_input(fixture.number(Kind::Xrq))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, Connection};
    use crate::personality::Personality;
    use crate::profile::Config;
    use hca_spec::cmd::{CreateQpIn, ObjectIn};
    use hca_spec::command::{Opcode, Status};
    use hca_spec::put_be32;
    use hca_spec::qpc::{Qpc, RqType, ServiceType};

    fn bench(personality: &str) -> (Bench, Connection) {
        let personality = Personality::named(personality).unwrap();
        let mut b = Bench::initialized_with(Config { personality, ..Config::default() });
        let rc = b.connection();
        (b, rc)
    }

    /// A queue of 8 WQEs of 32 bytes, with a list of 16 entries.
    fn xrq(rc: &Connection) -> CreateXrqIn {
        let mut c = CreateXrqIn::new();
        let ctx = c.xrqc_mut();
        ctx.set(Xrqc::TOPOLOGY, TOPOLOGY_TAG_MATCHING).set(Xrqc::OFFLOAD, OFFLOAD_RENDEZVOUS);
        ctx.set(Xrqc::CQN, rc.cq).set(Xrqc::LOG_MATCHING_LIST_SZ, 4).set(Xrqc::USER_INDEX, 77);
        ctx.wq_mut().set(Wq::LOG_WQ_SZ, 3).set(Wq::LOG_WQ_STRIDE, 5).set(Wq::PD, rc.pd).set(Wq::LWM, 2);
        c
    }

    #[test]
    fn life() {
        let (mut b, rc) = bench("connectx5");
        let made = b.put_list(Opcode::CreateXrq, &xrq(&rc), &[0x5000]);
        let number = made.number();
        let r = b.object_into(Opcode::QueryXrq, number, QueryXrqOut::SIZE + 8);
        let out = QueryXrqOut::from_prefix_or_zero(&r.output);
        let ctx = out.xrqc();
        assert_eq!((ctx.get(Xrqc::STATE), ctx.get(Xrqc::TOPOLOGY), ctx.get(Xrqc::OFFLOAD)), (0, 1, 1));
        assert_eq!((ctx.get(Xrqc::CQN), ctx.get(Xrqc::USER_INDEX)), (rc.cq, 77));
        assert_eq!((ctx.get(Xrqc::LOG_MATCHING_LIST_SZ), ctx.get(Xrqc::APPEND_NEXT_INDEX)), (4, 0));
        assert_eq!((ctx.wq().get(Wq::LOG_WQ_SZ), ctx.wq().get(Wq::PD), ctx.wq().get(Wq::LWM)), (3, rc.pd, 2));
        assert_eq!(hca_spec::be64(&r.output, QueryXrqOut::SIZE), 0x5000);
        // By its own command, and as mlx5 drivers do.
        for (op, op_mod) in [(Opcode::ArmXrq, 0), (Opcode::ArmRq, 2)] {
            for (lwm, expected) in [(5, Status::Ok), (9, Status::BadParam)] {
                let mut arm = ObjectIn::new();
                arm.set(ObjectIn::NUMBER, number).set(ObjectIn::LWM, lwm);
                put_be32(arm.bytes_mut(), 4, op_mod);
                assert_eq!(b.put(op, &arm, 16).status(), expected, "{op:?} {lwm}");
            }
        }
        for other in [Opcode::QueryRmp, Opcode::DestroyRmp, Opcode::QuerySrq] {
            assert_eq!(b.object(other, number).status(), Status::BadResource, "{other:?}");
        }
        assert_eq!(b.object(Opcode::DestroyCq, rc.cq).status(), Status::ResourceBusy);
        b.ok(Opcode::DestroyXrq, number);
        assert_eq!(b.object(Opcode::QueryXrq, number).status(), Status::BadResource);
    }

    #[test]
    fn what_is_refused() {
        let (mut b, rc) = bench("connectx6dx");
        let mut with = |change: fn(&mut Xrqc)| {
            let mut c = xrq(&rc);
            change(c.xrqc_mut());
            b.put_list(Opcode::CreateXrq, &c, &[0x5000]).status()
        };
        assert_eq!(with(|_| {}), Status::Ok);
        assert_eq!(with(|c| _ = c.set(Xrqc::OFFLOAD, 0)), Status::Ok);
        assert_eq!(with(|c| _ = c.wq_mut().set(Wq::WQ_TYPE, 1)), Status::Ok, "a ring");
        assert_eq!(with(|c| _ = c.set(Xrqc::LOG_MATCHING_LIST_SZ, 7)), Status::Ok);
        assert_eq!(with(|c| _ = c.set(Xrqc::LOG_MATCHING_LIST_SZ, 8)), Status::BadParam);
        assert_eq!(with(|c| _ = c.set(Xrqc::TOPOLOGY, 0)), Status::BadParam);
        assert_eq!(with(|c| _ = c.set(Xrqc::OFFLOAD, 2)), Status::BadParam);
        assert_eq!(with(|c| _ = c.set(Xrqc::DC, 1)), Status::BadParam);
        assert_eq!(with(|c| _ = c.set(Xrqc::CQN, 99)), Status::BadResource);
        assert_eq!(with(|c| _ = c.wq_mut().set(Wq::WQ_TYPE, 2)), Status::BadParam, "strides");
        assert_eq!(with(|c| _ = c.wq_mut().set(Wq::LOG_WQ_STRIDE, 4)), Status::BadParam);
        assert_eq!(with(|c| _ = c.wq_mut().set(Wq::PD, 99)), Status::BadResource);
    }

    /// It came with the ConnectX-5, and is for RC alone.
    #[test]
    fn who_has_and_uses_it() {
        let (mut b, rc) = bench("connectx4");
        assert_eq!(b.put_list(Opcode::CreateXrq, &xrq(&rc), &[0x5000]).status(), Status::BadOp);
        let (mut b, rc) = bench("connectx5");
        let number = b.put_list(Opcode::CreateXrq, &xrq(&rc), &[0x5000]).number();
        for (service, expected) in [
            (ServiceType::Ud, Status::BadResource),
            (ServiceType::Xrc, Status::BadResource),
            (ServiceType::Rc, Status::Ok),
        ] {
            let mut c = CreateQpIn::new();
            *c.qpc_mut() = rc.qpc(service);
            c.qpc_mut().set(Qpc::RQ_TYPE, RqType::Shared as u32).set(Qpc::SRQN_RMPN, number);
            assert_eq!(b.put_list(Opcode::CreateQp, &c, &[0x4000]).status(), expected, "{service:?}");
        }
        assert_eq!(b.object(Opcode::DestroyXrq, number).status(), Status::ResourceBusy);
    }
}
