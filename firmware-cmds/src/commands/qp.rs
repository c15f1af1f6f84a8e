//! Queue pairs: creation, transitions, queries.
//!
//! Source: PRM "CREATE_QP", "QP State Transitions", tables of required and optional parameters; IBTA
//! 10.3.1 and 11.2.5.2.

use hca_spec::caps::General;
use hca_spec::cmd::{CreateQpIn, ModifyQpIn, ObjectIn, ObjectOut, QueryQpOut};
use hca_spec::command::{Opcode, Status};
use hca_spec::ids::Qpn;
use hca_spec::layout::Field;
use hca_spec::qpc::{AddressPath, QpState, Qpc, RqType, ServiceType, opt};

use super::{Outcome, done, put_pages, queue_buffer, view};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, busy, no_room};
use crate::firmware::Firmware;
use crate::icm::{Buffer, Qp};

const NO_QP: Failure = bad_resource("there is no QP of that number");
const NO_PD: Failure = bad_resource("QP: the protection domain is not allocated");
const NO_SEND_CQ: Failure = bad_resource("QP: cqn_snd names no CQ");
const NO_RECEIVE_CQ: Failure = bad_resource("QP: cqn_rcv names no CQ");
const NO_SRQ: Failure = bad_resource("QP: srqn_rmpn names no SRQ");

/// What a queue pair holds on to, so that it can't be destroyed under it.
fn hold(fw: &mut Firmware, ctx: &Qpc, held: bool) {
    let change = |users: &mut u32| *users = if held { *users + 1 } else { users.saturating_sub(1) };
    for cqn in [ctx.get(Qpc::CQN_SND), ctx.get(Qpc::CQN_RCV)] {
        if let Some(cq) = fw.icm.cqs.get_mut(cqn) {
            change(&mut cq.users);
        }
    }
    if let Some(pd) = fw.icm.pds.get_mut(ctx.get(Qpc::PD)) {
        change(&mut pd.users);
    }
    if ctx.get(Qpc::RQ_TYPE) == RqType::Shared as u32
        && let Some(srq) = fw.icm.srqs.get_mut(ctx.get(Qpc::SRQN_RMPN))
    {
        change(&mut srq.users);
    }
}

/// Whether what a context names is there. PD and CQs may come as late as RST2INIT: zero names none.
fn check_named(fw: &Firmware, ctx: &Qpc) -> Result<(), Failure> {
    for (field, failure) in [(Qpc::CQN_SND, NO_SEND_CQ), (Qpc::CQN_RCV, NO_RECEIVE_CQ)] {
        let cqn = ctx.get(field);
        if cqn != 0 && fw.icm.cqs.get(cqn).is_none() {
            return Err(failure);
        }
    }
    if ctx.get(Qpc::PD) != 0 && fw.icm.pds.get(ctx.get(Qpc::PD)).is_none() {
        return Err(NO_PD);
    }
    let shared = ctx.get(Qpc::RQ_TYPE) == RqType::Shared as u32;
    if shared && fw.icm.srqs.get(ctx.get(Qpc::SRQN_RMPN)).is_none() {
        return Err(NO_SRQ);
    }
    Ok(())
}

/// Whether the PD and the CQs of the queues that a context has exist.
fn check_names(fw: &Firmware, ctx: &Qpc) -> Result<(), Failure> {
    let has_sq = ctx.get(Qpc::NO_SQ) == 0;
    let has_rq = ctx.get(Qpc::RQ_TYPE) != RqType::Zero as u32;
    if has_sq && fw.icm.cqs.get(ctx.get(Qpc::CQN_SND)).is_none() {
        return Err(NO_SEND_CQ);
    }
    if has_rq && fw.icm.cqs.get(ctx.get(Qpc::CQN_RCV)).is_none() {
        return Err(NO_RECEIVE_CQ);
    }
    if fw.icm.pds.get(ctx.get(Qpc::PD)).is_none() {
        return Err(NO_PD);
    }
    Ok(())
}

pub(super) fn create(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const SERVICE: Failure = bad_param("CREATE_QP: the service type is not one this adapter has");
    const RQ: Failure = bad_param("CREATE_QP: the kind of receive queue is reserved");
    const SIZE: Failure = bad_param("CREATE_QP: a work queue is larger than the maximum");
    const UAR: Failure = bad_resource("CREATE_QP: the UAR page is not allocated");
    let create = view::<CreateQpIn>(input)?;
    let mut ctx = *create.qpc();
    ServiceType::from_bits(ctx.get(Qpc::ST)).ok_or(SERVICE)?;
    RqType::from_bits(ctx.get(Qpc::RQ_TYPE)).ok_or(RQ)?;
    let max = fw.general.get(General::LOG_MAX_QP_SZ);
    if ctx.get(Qpc::LOG_RQ_SIZE) > max || ctx.get(Qpc::LOG_SQ_SIZE) > max {
        return Err(SIZE);
    }
    if ctx.get(Qpc::NO_SQ) == 0 && fw.icm.uars.get(ctx.get(Qpc::UAR_PAGE)).is_none() {
        return Err(UAR);
    }
    check_named(fw, &ctx)?;
    ctx.set(Qpc::STATE, QpState::Reset as u32);
    let mut qp = Qp {
        ctx,
        opt_param_mask: create.get(CreateQpIn::OPT_PARAM_MASK),
        buffer: Buffer::default(),
        multicast: 0,
    };
    let bytes = qp.rq_bytes() + qp.sq_bytes();
    if bytes > 0 {
        qp.buffer = queue_buffer(input, ctx.get(Qpc::LOG_PAGE_SIZE), ctx.get(Qpc::PAGE_OFFSET), bytes)?;
    }
    let pages = qp.buffer.pages().len();
    let number = fw.icm.qps.insert(qp).map_err(|_| no_room("CREATE_QP: every QP is in use"))?;
    fw.icm.count_pages(pages);
    hold(fw, &ctx, true);
    effects.push(Effect::QpCreated(Qpn(number)));
    Ok(ObjectOut::new().set(ObjectOut::NUMBER, number).bytes().to_vec())
}

pub(super) fn destroy(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const ATTACHED: Failure = busy("DESTROY_QP: the queue pair is still in a multicast group");
    let number = view::<ObjectIn>(input)?.get(ObjectIn::NUMBER);
    if fw.icm.qps.get(number).ok_or(NO_QP)?.multicast > 0 {
        return Err(ATTACHED);
    }
    if let Some(qp) = fw.icm.qps.remove(number) {
        hold(fw, &qp.ctx, false);
        fw.icm.uncount_pages(qp.buffer.pages().len());
    }
    effects.push(Effect::QpDestroyed(Qpn(number)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, input: &[u8]) -> Outcome {
    let qp = fw.icm.qps.get(view::<ObjectIn>(input)?.get(ObjectIn::NUMBER)).ok_or(NO_QP)?;
    let mut out = QueryQpOut::new();
    out.set(QueryQpOut::OPT_PARAM_MASK, qp.opt_param_mask);
    *out.qpc_mut() = qp.ctx;
    let mut out = out.bytes().to_vec();
    put_pages(&mut out, &qp.buffer);
    Ok(out)
}

/// States a transition may start from, and where it leads.
fn transition(opcode: Opcode) -> (&'static [QpState], QpState) {
    use QpState::*;
    match opcode {
        Opcode::Rst2InitQp => (&[Reset], Init),
        Opcode::Init2InitQp => (&[Init], Init),
        Opcode::Init2RtrQp => (&[Init], Rtr),
        Opcode::Rtr2RtsQp => (&[Rtr], Rts),
        Opcode::Rts2RtsQp => (&[Rts], Rts),
        Opcode::SqErr2RtsQp => (&[SqError], Rts),
        Opcode::Rts2SqdQp => (&[Rts], SqDrained),
        Opcode::Sqd2SqdQp => (&[SqDrained, SqDraining], SqDrained),
        Opcode::Sqd2RtsQp => (&[SqDrained], Rts),
        Opcode::ToRstQp => (&[Reset, Init, Rtr, Rts, SqError, SqDrained, Error, SqDraining], Reset),
        _ => (&[Init, Rtr, Rts, SqError, SqDrained, Error, SqDraining, Reset], Error),
    }
}

fn copy(to: &mut Qpc, from: &Qpc, fields: &[Field<Qpc>]) {
    for field in fields {
        to.set(*field, from.get(*field));
    }
}

fn copy_path(to: &mut AddressPath, from: &AddressPath, fields: &[Field<AddressPath>]) {
    for field in fields {
        to.set(*field, from.get(*field));
    }
}

/// Takes the fields that the transition requires, and the optional ones that the mask names.
fn merge(ctx: &mut Qpc, new: &Qpc, opcode: Opcode, mask: u32) {
    use Qpc as Q;
    match opcode {
        Opcode::Rst2InitQp => {
            copy(
                ctx,
                new,
                &[
                    Q::PD,
                    Q::CQN_SND,
                    Q::CQN_RCV,
                    Q::PM_STATE,
                    Q::RRE,
                    Q::RWE,
                    Q::RAE,
                    Q::ATOMIC_MODE,
                    Q::RLKY,
                    Q::COUNTER_SET_ID,
                    Q::Q_KEY,
                    Q::FRE,
                ],
            );
            if new.get(Q::DBR_ADDR) != 0 {
                ctx.set(Q::DBR_ADDR, new.get(Q::DBR_ADDR));
            }
            copy_path(
                ctx.primary_path_mut(),
                new.primary_path(),
                &[AddressPath::PKEY_INDEX, AddressPath::VHCA_PORT_NUM],
            );
        }
        Opcode::Init2RtrQp => {
            copy(
                ctx,
                new,
                &[Q::MTU, Q::LOG_MSG_MAX, Q::REMOTE_QPN, Q::NEXT_RCV_PSN, Q::LOG_RRA_MAX, Q::MIN_RNR_NAK],
            );
            // The path comes whole, but for the fields that INIT and RTS own.
            let old = *ctx.primary_path();
            *ctx.primary_path_mut() = *new.primary_path();
            copy_path(ctx.primary_path_mut(), &old, &[AddressPath::ACK_TIMEOUT]);
            if mask & opt::PKEY_INDEX == 0 {
                copy_path(ctx.primary_path_mut(), &old, &[AddressPath::PKEY_INDEX]);
            }
            if ctx.primary_path().get(AddressPath::VHCA_PORT_NUM) == 0 {
                copy_path(ctx.primary_path_mut(), &old, &[AddressPath::VHCA_PORT_NUM]);
            }
        }
        Opcode::Rtr2RtsQp => {
            copy(
                ctx,
                new,
                &[Q::RETRY_COUNT, Q::RNR_RETRY, Q::NEXT_SEND_PSN, Q::LOG_SRA_MAX, Q::LOG_ACK_REQ_FREQ],
            );
            let timeout = new.primary_path().get(AddressPath::ACK_TIMEOUT);
            ctx.primary_path_mut().set(AddressPath::ACK_TIMEOUT, timeout);
        }
        _ => {}
    }
    if opcode == Opcode::Rst2InitQp {
        return;
    }
    let optional: [(u32, &[Field<Qpc>]); 12] = [
        (opt::RRE, &[Q::RRE]),
        (opt::RAE, &[Q::RAE, Q::ATOMIC_MODE]),
        (opt::RWE, &[Q::RWE]),
        (opt::Q_KEY, &[Q::Q_KEY]),
        (opt::RNR_TIMEOUT, &[Q::MIN_RNR_NAK]),
        (opt::SRA_MAX, &[Q::LOG_SRA_MAX]),
        (opt::RRA_MAX, &[Q::LOG_RRA_MAX]),
        (opt::PM_STATE, &[Q::PM_STATE]),
        (opt::RETRY_COUNT, &[Q::RETRY_COUNT]),
        (opt::RNR_RETRY, &[Q::RNR_RETRY]),
        (opt::SRQN, &[Q::SRQN_RMPN]),
        (opt::COUNTER_SET, &[Q::COUNTER_SET_ID]),
    ];
    for (bit, fields) in optional {
        if mask & bit != 0 {
            copy(ctx, new, fields);
        }
    }
    if mask & opt::PKEY_INDEX != 0 {
        copy_path(ctx.primary_path_mut(), new.primary_path(), &[AddressPath::PKEY_INDEX]);
    }
    if mask & opt::PRI_PORT != 0 {
        copy_path(ctx.primary_path_mut(), new.primary_path(), &[AddressPath::VHCA_PORT_NUM]);
    }
    if mask & opt::ACK_TIMEOUT != 0 {
        copy_path(ctx.primary_path_mut(), new.primary_path(), &[AddressPath::ACK_TIMEOUT]);
    }
    if mask & opt::PRIMARY_PATH != 0 && opcode != Opcode::Init2RtrQp {
        *ctx.primary_path_mut() = *new.primary_path();
    }
    if mask & opt::ALT_PATH != 0 {
        *ctx.secondary_path_mut() = *new.secondary_path();
    }
}

pub(super) fn modify(fw: &mut Firmware, opcode: Opcode, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const STATE: Failure =
        Failure::new(Status::BadQpState, "the queue pair is not in a state that this transition starts from");
    const MTU: Failure = bad_param("INIT2RTR: the path MTU must be 1 (256) to 5 (4096)");
    const MESSAGE: Failure = bad_param("INIT2RTR: log_msg_max is above the adapter's maximum");
    const PKEY: Failure = Failure::new(Status::BadIndex, "QP: pkey_index is beyond the P_Key table");
    const GID: Failure = Failure::new(Status::BadIndex, "QP: src_addr_index is beyond the GID table");
    let number = view::<ObjectIn>(input)?.get(ObjectIn::NUMBER);
    let qp = fw.icm.qps.get(number).ok_or(NO_QP)?;
    let (old, from) = (qp.ctx, qp.state());
    let (allowed, to) = transition(opcode);
    // A UMR queue pair has no peer; its transitions only name the state.
    let umr = qp.service() == ServiceType::RegUmr;
    if !allowed.contains(&from) {
        return Err(STATE);
    }
    let mut ctx = old;
    let mut mask = 0;
    if !matches!(opcode, Opcode::ToErrQp | Opcode::ToRstQp) {
        let modify = view::<ModifyQpIn>(input)?;
        mask = modify.get(ModifyQpIn::OPT_PARAM_MASK);
        merge(&mut ctx, modify.qpc(), opcode, mask);
        let connected = matches!(qp.service(), ServiceType::Rc | ServiceType::Uc | ServiceType::Xrc);
        check_named(fw, &ctx)?;
        if opcode == Opcode::Rst2InitQp {
            check_names(fw, &ctx)?;
        }
        // Longer messages would have more packets than half the PSN space.
        let too_long = ctx.get(Qpc::LOG_MSG_MAX) > fw.general.get(General::LOG_MAX_MSG);
        if opcode == Opcode::Init2RtrQp && too_long {
            return Err(MESSAGE);
        }
        if opcode == Opcode::Init2RtrQp
            && connected
            && !umr
            && hca_spec::qpc::mtu_bytes(ctx.get(Qpc::MTU)).is_none()
        {
            return Err(MTU);
        }
        let path = ctx.primary_path();
        if path.get(AddressPath::PKEY_INDEX) as usize >= crate::profile::PKEYS {
            return Err(PKEY);
        }
        if path.get(AddressPath::GRH) == 1
            && path.get(AddressPath::SRC_ADDR_INDEX) as usize >= crate::profile::GUIDS
        {
            return Err(GID);
        }
    }
    ctx.set(Qpc::STATE, to as u32);
    hold(fw, &old, false);
    hold(fw, &ctx, true);
    if let Some(qp) = fw.icm.qps.get_mut(number) {
        qp.ctx = ctx;
        qp.opt_param_mask |= mask;
    }
    effects.push(Effect::QpModified { qpn: Qpn(number), from, to });
    Ok(done())
}
