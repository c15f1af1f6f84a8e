//! Targets of dynamic connections (DCT).
//!
//! The driver creates a target when its user takes it to RTR: a DCT knows no RESET nor INIT. Before it is
//! destroyed it is drained, and an event says when no connection is left.
//!
//! Source: mlx5 driver (field use).

use hca_spec::command::Status;
use hca_spec::dct::{CreateDctIn, DctState, Dctc, QueryDctOut};
use hca_spec::ids::Qpn;

use super::call::{done, named, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::{Dct, Srq, SrqKind};
use crate::object::Kind;

const NO_DCT: Failure = bad_resource("there is no DCT of that number");

fn hold(fw: &mut Firmware, ctx: &Dctc, held: bool) {
    let change = |users: &mut u32| *users = if held { *users + 1 } else { users.saturating_sub(1) };
    if let Some(pd) = fw.icm.pds.get_mut(ctx.get(Dctc::PD)) {
        change(&mut pd.users);
    }
    if let Some(cq) = fw.icm.cqs.get_mut(ctx.get(Dctc::CQN)) {
        change(&mut cq.users);
    }
    if let Some(srq) = fw.icm.srqs.get_mut(ctx.get(Dctc::SRQN)) {
        change(&mut srq.users);
    }
}

fn check(fw: &Firmware, ctx: &Dctc) -> Result<(), Failure> {
    const NO_PD: Failure = bad_resource("CREATE_DCT: pd: the protection domain is not allocated");
    const NO_CQ: Failure = bad_resource("CREATE_DCT: cqn: there is no CQ of that number");
    const NO_SRQ: Failure = bad_resource(
        "CREATE_DCT: srqn_xrqn names no SRQ, or one of XRC, with tag matching (rndv_offload_dc), or with strides",
    );
    const MTU: Failure = bad_param("CREATE_DCT: mtu: must be 1 to 5");
    const PORT: Failure = bad_param("CREATE_DCT: port: the adapter has no such port");
    const PKEY: Failure = Failure::new(Status::BadIndex, "CREATE_DCT: pkey_index is beyond the table");
    const GID: Failure = Failure::new(Status::BadIndex, "CREATE_DCT: my_addr_index is beyond the GID table");
    let (pd, cqn, srqn) = (ctx.get(Dctc::PD), ctx.get(Dctc::CQN), ctx.get(Dctc::SRQN));
    if fw.icm.pds.get(pd).is_none() {
        return Err(NO_PD.got(pd));
    }
    if fw.icm.cqs.get(cqn).is_none() {
        return Err(NO_CQ.got(cqn));
    }
    let serves = |srq: &Srq| !matches!(srq.kind, SrqKind::Xrc | SrqKind::Xrq) && srq.strides.is_none();
    if !fw.icm.srqs.get(srqn).is_some_and(serves) {
        return Err(NO_SRQ.got(srqn));
    }
    let (mtu, port) = (ctx.get(Dctc::MTU), ctx.get(Dctc::PORT));
    if hca_spec::qpc::mtu_bytes(mtu).is_none() {
        return Err(MTU.got(mtu));
    }
    if port == 0 || fw.ports.named(port).is_none() {
        return Err(PORT.got(port).limit(fw.ports.numbers().len() as u64));
    }
    let (pkey, gid) = (ctx.get(Dctc::PKEY_INDEX), ctx.get(Dctc::MY_ADDR_INDEX));
    let (pkeys, gids) = fw.port_tables();
    if pkey as usize >= pkeys {
        return Err(PKEY.got(pkey).limit(pkeys.saturating_sub(1) as u64));
    }
    if gid as usize >= gids {
        return Err(GID.got(gid).limit(gids.saturating_sub(1) as u64));
    }
    Ok(())
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const FULL: Failure = no_room("CREATE_DCT: every DC target is in use");
    let mut ctx = *call.view::<CreateDctIn>()?.dctc();
    check(fw, &ctx)?;
    ctx.set(Dctc::STATE, DctState::Active as u32).set(Dctc::DC_ACCESS_KEY_VIOLATION_COUNT, 0);
    let number = fw.icm.dcts.insert(Dct { ctx, armed: false }).map_err(|_| FULL)?;
    hold(fw, &ctx, true);
    named(number)
}

/// DRAIN_DCT. Once more is no error: the event comes again.
pub(super) fn drain(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    let number = call.number();
    let dct = fw.icm.dcts.get_mut(number).ok_or(NO_DCT.of(number))?;
    dct.ctx.set(Dctc::STATE, DctState::Draining as u32);
    effects.push(Effect::DctDraining(Qpn(number)));
    Ok(done())
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const STATE: Failure = Failure::new(
        Status::BadResourceState,
        "DESTROY_DCT: the target is not drained (DRAIN_DCT comes first)",
    );
    let number = call.number();
    let dct = fw.icm.dcts.get(number).ok_or(NO_DCT.of(number))?;
    if dct.state() != DctState::Drained {
        return Err(STATE.of(number).got(dct.state() as u32));
    }
    let dct = fw.icm.dcts.remove(number).ok_or(NO_DCT.of(number))?;
    hold(fw, &dct.ctx, false);
    effects.push(Effect::DctDestroyed(Qpn(number)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let number = call.number();
    let dct = fw.icm.dcts.get(number).ok_or(NO_DCT.of(number))?;
    let mut out = QueryDctOut::new();
    *out.dctc_mut() = dct.ctx;
    Ok(reply(&out))
}

/// ARM_DCT_FOR_KEY_VIOLATION: the next violation raises an event.
pub(super) fn arm(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let number = call.number();
    fw.icm.dcts.get_mut(number).ok_or(NO_DCT.of(number))?.armed = true;
    Ok(done())
}

pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateDctIn::new();
    let ctx = create.dctc_mut();
    ctx.set(Dctc::PD, fixture.number(Kind::Pd)).set(Dctc::CQN, fixture.number(Kind::Cq));
    ctx.set(Dctc::SRQN, fixture.number(Kind::Rmp)).set(Dctc::MTU, 3).set(Dctc::PORT, 1);
    ctx.set(Dctc::RRE, 1).set(Dctc::RWE, 1).set(Dctc::RAE, 1).set(Dctc::MIN_RNR_NAK, 1);
    ctx.set(Dctc::DC_ACCESS_KEY, Fixture::DC_KEY).set(Dctc::USER_INDEX, Dctc::USER_INDEX.max());
    create.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, Connection};
    use hca_spec::cmd::CreateRmpIn;
    use hca_spec::command::Opcode;
    use hca_spec::queue::{RMP_READY, Rmpc, Wq};

    fn pool(b: &mut Bench, rc: &Connection) -> u32 {
        let mut c = CreateRmpIn::new();
        c.rmpc_mut().set(Rmpc::STATE, RMP_READY);
        let wq = c.rmpc_mut().wq_mut();
        wq.set(Wq::WQ_TYPE, 0).set(Wq::PD, rc.pd).set(Wq::LOG_WQ_STRIDE, 5).set(Wq::LOG_WQ_SZ, 4);
        let r = b.put_list(Opcode::CreateRmp, &c, &[0x5000]);
        assert_eq!(r.status(), Status::Ok);
        r.number()
    }

    fn dct(rc: &Connection, srqn: u32) -> CreateDctIn {
        let mut c = CreateDctIn::new();
        c.dctc_mut().set(Dctc::PD, rc.pd).set(Dctc::CQN, rc.cq).set(Dctc::SRQN, srqn);
        c.dctc_mut().set(Dctc::MTU, 3).set(Dctc::PORT, 1).set(Dctc::DC_ACCESS_KEY, 0x1234);
        c
    }

    #[test]
    fn life_of_a_target() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let srqn = pool(&mut b, &rc);
        let number = b.put(Opcode::CreateDct, &dct(&rc, srqn), 16).number();
        assert!(b.fw.icm.qps.get(number).is_none());
        assert_eq!(b.fw.icm.srqs.get(srqn).map(|s| s.users), Some(1));
        assert_eq!(b.object(Opcode::DestroyRmp, srqn).status(), Status::ResourceBusy);
        let r = b.object_into(Opcode::QueryDct, number, QueryDctOut::SIZE);
        let ctx = *QueryDctOut::from_prefix_or_zero(&r.output).dctc();
        assert_eq!((ctx.get(Dctc::DC_ACCESS_KEY), ctx.get(Dctc::STATE)), (0x1234, 0));
        b.ok(Opcode::ArmDctForKeyViolation, number);
        assert!(b.fw.icm.dcts.get(number).unwrap().armed);
        assert_eq!(b.object(Opcode::DestroyDct, number).status(), Status::BadResourceState);
        b.ok(Opcode::DrainDct, number);
        assert_eq!(b.effects.last(), Some(&Effect::DctDraining(Qpn(number))));
        assert_eq!(b.object(Opcode::DestroyDct, number).status(), Status::BadResourceState);
        b.fw.icm.dcts.get_mut(number).unwrap().ctx.set(Dctc::STATE, DctState::Drained as u32);
        b.ok(Opcode::DestroyDct, number);
        assert_eq!(b.effects.last(), Some(&Effect::DctDestroyed(Qpn(number))));
        for op in [Opcode::DestroyDct, Opcode::DrainDct, Opcode::ArmDctForKeyViolation] {
            assert_eq!(b.object(op, number).status(), Status::BadResource, "{op:?}");
        }
        b.ok(Opcode::DestroyRmp, srqn);
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let srqn = pool(&mut b, &rc);
        let mut refused = |change: fn(&mut Dctc)| {
            let mut c = dct(&rc, srqn);
            change(c.dctc_mut());
            b.put(Opcode::CreateDct, &c, 16).status()
        };
        assert_eq!(refused(|_| {}), Status::Ok);
        assert_eq!(refused(|d| _ = d.set(Dctc::PD, 99)), Status::BadResource);
        assert_eq!(refused(|d| _ = d.set(Dctc::CQN, 0x99)), Status::BadResource);
        assert_eq!(refused(|d| _ = d.set(Dctc::SRQN, 0)), Status::BadResource);
        assert_eq!(refused(|d| _ = d.set(Dctc::MTU, 0)), Status::BadParam);
        assert_eq!(refused(|d| _ = d.set(Dctc::MTU, 6)), Status::BadParam);
        assert_eq!(refused(|d| _ = d.set(Dctc::PORT, 2)), Status::BadParam);
        assert_eq!(refused(|d| _ = d.set(Dctc::PKEY_INDEX, 32)), Status::BadIndex);
        assert_eq!(refused(|d| _ = d.set(Dctc::MY_ADDR_INDEX, 8)), Status::BadIndex);
        assert_eq!(b.fw.icm.dcts.len(), 1);
    }
}
