//! Transitions of queue pairs.
//!
//! A transition command brings a whole context, of which only some fields count: those that the
//! transition requires, and the optional ones that its mask names. The others keep their values.
//!
//! Source: PRM "QP State Transitions" and its tables of required and optional parameters; IBTA 10.3.1
//! and 11.2.5.2; which fields the mlx5 driver fills.

use hca_spec::caps::General;
use hca_spec::cmd::{ModifyQpExtIn, ModifyQpIn};
use hca_spec::command::{Opcode, Status};
use hca_spec::ids::Qpn;
use hca_spec::layout::Field;
use hca_spec::qpc::{AddressPath, QpState, Qpc, QpcExt, ServiceType, opt, opt_95_32, path_migration};

use super::call::{done, record};
use super::fixture::Fixture;
use super::qp::{Names, check_names, find, hold};
use super::row::{Call, Outcome};
use super::scheduling::{check_group, has_groups};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::object::Kind;

/// States a transition may start from, and where it leads.
pub(super) fn transition(opcode: Opcode) -> (&'static [QpState], QpState) {
    use QpState::*;
    const ANY: &[QpState] = &[Reset, Init, Rtr, Rts, SqError, SqDrained, Error, SqDraining];
    match opcode {
        Opcode::Rst2InitQp => (&[Reset], Init),
        Opcode::Init2InitQp => (&[Init], Init),
        Opcode::Init2RtrQp => (&[Init], Rtr),
        Opcode::Rtr2RtsQp => (&[Rtr], Rts),
        Opcode::Rts2RtsQp => (&[Rts], Rts),
        Opcode::SqErr2RtsQp => (&[SqError], Rts),
        // The adapter says when the queue is drained.
        Opcode::Rts2SqdQp => (&[Rts], SqDraining),
        Opcode::Sqd2SqdQp => (&[SqDrained, SqDraining], SqDrained),
        Opcode::Sqd2RtsQp => (&[SqDrained], Rts),
        Opcode::ToRstQp => (ANY, Reset),
        _ => (ANY, Error),
    }
}

/// Those states, as refusals name them.
fn names_of(states: &[QpState]) -> &'static str {
    match states {
        [QpState::Reset] => "0 (RESET)",
        [QpState::Init] => "1 (INIT)",
        [QpState::Rtr] => "2 (RTR)",
        [QpState::Rts] => "3 (RTS)",
        [QpState::SqError] => "4 (SQER)",
        [QpState::SqDrained, ..] => "5 (SQD)",
        _ => "another",
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

/// Takes the source of datagrams. Linux repeats it in every transition; by inference, one that says nothing changes nothing.
fn copy_source(ctx: &mut Qpc, new: &Qpc) {
    if new.get(Qpc::DETH_SQPN) != 0 {
        copy(ctx, new, &[Qpc::DETH_SQPN]);
    }
}

/// Takes what the transition requires.
fn merge_required(ctx: &mut Qpc, new: &Qpc, opcode: Opcode, mask: u32) {
    use AddressPath as P;
    use Qpc as Q;
    match opcode {
        Opcode::Rst2InitQp => {
            // Nothing to migrate to yet, whatever the command brings (IBTA 17.2.8.1).
            ctx.set(Q::PM_STATE, path_migration::MIGRATED);
            copy(ctx, new, &[Q::RRE, Q::RWE, Q::RAE]);
            copy(ctx, new, &[Q::ATOMIC_MODE, Q::COUNTER_SET_ID, Q::Q_KEY, Q::DETH_SQPN]);
            // Zero: as created. XRC queue pairs have no CQ of their own to send with every transition.
            for field in [Q::PD, Q::CQN_SND, Q::CQN_RCV] {
                if new.get(field) != 0 {
                    copy(ctx, new, &[field]);
                }
            }
            // Creation may have brought these already.
            for field in [Q::FRE, Q::RLKY] {
                ctx.set(field, ctx.get(field) | new.get(field));
            }
            if new.get(Q::DBR_ADDR) != 0 {
                ctx.set(Q::DBR_ADDR, record(new.get(Q::DBR_ADDR)));
            }
            copy_path(ctx.primary_path_mut(), new.primary_path(), &[P::PKEY_INDEX, P::VHCA_PORT_NUM]);
        }
        Opcode::Init2RtrQp => {
            copy(ctx, new, &[Q::MTU, Q::LOG_MSG_MAX, Q::REMOTE_QPN, Q::NEXT_RCV_PSN]);
            copy_source(ctx, new);
            copy(ctx, new, &[Q::LOG_RRA_MAX, Q::MIN_RNR_NAK]);
            // The path comes whole, but for the fields that INIT and RTS own.
            let old = *ctx.primary_path();
            *ctx.primary_path_mut() = *new.primary_path();
            copy_path(ctx.primary_path_mut(), &old, &[P::ACK_TIMEOUT]);
            if mask & opt::PKEY_INDEX == 0 {
                copy_path(ctx.primary_path_mut(), &old, &[P::PKEY_INDEX]);
            }
            if ctx.primary_path().get(P::VHCA_PORT_NUM) == 0 {
                copy_path(ctx.primary_path_mut(), &old, &[P::VHCA_PORT_NUM]);
            }
        }
        Opcode::Rtr2RtsQp => {
            copy(ctx, new, &[Q::RETRY_COUNT, Q::RNR_RETRY, Q::NEXT_SEND_PSN, Q::LOG_SRA_MAX]);
            copy(ctx, new, &[Q::LOG_ACK_REQ_FREQ]);
            copy_source(ctx, new);
            copy_path(ctx.primary_path_mut(), new.primary_path(), &[P::ACK_TIMEOUT]);
        }
        _ => {}
    }
}

/// Takes the optional parameters that the mask names. RST2INIT has none: it takes all it knows.
fn merge_optional(ctx: &mut Qpc, new: &Qpc, opcode: Opcode, mask: u32) {
    use AddressPath as P;
    use Qpc as Q;
    if opcode == Opcode::Rst2InitQp {
        return;
    }
    let optional: [(u32, &[Field<Qpc>]); 14] = [
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
        (opt::CQN_RCV, &[Q::CQN_RCV]),
        (opt::COUNTER_SET, &[Q::COUNTER_SET_ID]),
        (opt::DRAIN_SIGERR, &[Q::DRAIN_SIGERR]),
    ];
    for (bit, fields) in optional {
        if mask & bit != 0 {
            copy(ctx, new, fields);
        }
    }
    if mask & opt::PRIMARY_PATH != 0 && opcode != Opcode::Init2RtrQp {
        *ctx.primary_path_mut() = *new.primary_path();
    }
    let path: [(u32, &[Field<AddressPath>]); 3] = [
        (opt::PKEY_INDEX, &[P::PKEY_INDEX]),
        (opt::PRI_PORT, &[P::VHCA_PORT_NUM]),
        (opt::ACK_TIMEOUT, &[P::ACK_TIMEOUT]),
    ];
    for (bit, fields) in path {
        if mask & bit != 0 {
            copy_path(ctx.primary_path_mut(), new.primary_path(), fields);
        }
    }
    if mask & opt::ALT_PATH != 0 {
        *ctx.secondary_path_mut() = *new.secondary_path();
    }
}

/// Takes what RTS2RTS can change of a path of RoCE. Drivers fill DSCP and traffic class alike; of packets the traffic class is what either
/// says, so by inference both change.
fn merge_address(fw: &Firmware, ctx: &mut Qpc, new: &Qpc, mask: u32) {
    use AddressPath as P;
    if fw.general_max.get(General::RTS2RTS_QP_DSCP) == 0 {
        return;
    }
    let (path, new) = (ctx.primary_path_mut(), new.primary_path());
    if mask & opt::DSCP != 0 {
        const ECN: u32 = 3;
        copy_path(path, new, &[P::DSCP]);
        path.set(P::TCLASS, new.get(P::DSCP) << 2 | path.get(P::TCLASS) & ECN);
    }
    if mask & opt::SRC_ADDR_INDEX != 0 {
        copy_path(path, new, &[P::SRC_ADDR_INDEX]);
    }
}

/// What further optional parameters change beside the context.
#[derive(Default)]
struct Further {
    groups: Option<[u32; 2]>,
    /// The stream that is taken out of error.
    stream: Option<u16>,
}

/// Takes the further optional parameters of RTS2RTS and INIT2INIT.
fn merge_further(fw: &Firmware, ctx: &mut Qpc, call: &Call<'_>, qpn: u32) -> Result<Further, Failure> {
    const UNKNOWN: Failure = bad_param("QP: opt_param_mask_95_32 has bits that the transition does not have");
    const ABSENT: Failure =
        bad_param("RTS2RTS: opt_param_mask_95_32: only RoCE has UDP ports (rts2rts_qp_udp_sport)");
    const EXTENSION: Failure = bad_param("QP: opt_param_mask_95_32: qpc_ext must be 1 for that parameter");
    const GROUPS: Failure =
        bad_param("QP: opt_param_mask_95_32: there are no groups of queues (nic_qp_scheduling)");
    const STREAM: Failure = Failure::new(
        Status::BadResourceState,
        "RTS2RTS: dci_stream_channel_id: no stream of that number is in error",
    );
    let modify = call.view::<ModifyQpIn>()?;
    let mask = modify.get(ModifyQpIn::OPT_PARAM_MASK_95_32);
    let known = match call.command.opcode {
        Opcode::Rts2RtsQp => {
            opt_95_32::UDP_SPORT | opt_95_32::QOS_QUEUE_GROUP_ID | opt_95_32::DCI_STREAM_CHANNEL_ID
        }
        _ => opt_95_32::QOS_QUEUE_GROUP_ID,
    };
    if mask & !known != 0 {
        return Err(UNKNOWN.of(qpn).got(mask).limit(known));
    }
    let mut further = Further::default();
    let extended = ModifyQpExtIn::from_prefix_or_zero(call.input);
    let extends =
        extended.get(ModifyQpExtIn::QPC_EXT) == 1 && fw.general_max.get(General::QPC_EXTENSION) == 1;
    if mask & !opt_95_32::UDP_SPORT != 0 && !extends {
        return Err(EXTENSION.of(qpn).got(mask));
    }
    if mask & opt_95_32::QOS_QUEUE_GROUP_ID != 0 {
        if !has_groups(fw) {
            return Err(GROUPS.of(qpn).got(mask));
        }
        let fields = [QpcExt::QOS_QUEUE_GROUP_ID_REQUESTER, QpcExt::QOS_QUEUE_GROUP_ID_RESPONDER];
        let groups = fields.map(|field| extended.ext().get(field));
        for group in groups {
            check_group(fw, group)?;
        }
        further.groups = Some(groups);
    }
    if mask & opt_95_32::DCI_STREAM_CHANNEL_ID != 0 {
        let stream = extended.ext().get(QpcExt::DCI_STREAM_CHANNEL_ID) as u16;
        find(fw, qpn)?.errored_streams.get(&stream).ok_or(STREAM.of(qpn).got(stream))?;
        further.stream = Some(stream);
    }
    if mask & opt_95_32::UDP_SPORT != 0 {
        if fw.general_max.get(General::RTS2RTS_QP_UDP_SPORT) == 0 {
            return Err(ABSENT.of(qpn).got(mask));
        }
        let from = modify.qpc().primary_path();
        copy_path(ctx.primary_path_mut(), from, &[AddressPath::UDP_SPORT]);
    }
    Ok(further)
}

fn check_path(fw: &Firmware, path: &AddressPath, qpn: u32) -> Result<(), Failure> {
    const PKEY: Failure = Failure::new(Status::BadIndex, "QP: pkey_index is beyond the P_Key table");
    const GID: Failure = Failure::new(Status::BadIndex, "QP: src_addr_index is beyond the GID table");
    const PORT: Failure = bad_param("QP: vhca_port_num: the adapter has no such port");
    let (pkey, gid) = (path.get(AddressPath::PKEY_INDEX), path.get(AddressPath::SRC_ADDR_INDEX));
    let (pkeys, gids) = fw.port_tables();
    if pkey as usize >= pkeys {
        return Err(PKEY.of(qpn).got(pkey).limit(pkeys.saturating_sub(1) as u64));
    }
    if path.get(AddressPath::GRH) == 1 && gid as usize >= gids {
        return Err(GID.of(qpn).got(gid).limit(gids.saturating_sub(1) as u64));
    }
    let port = path.get(AddressPath::VHCA_PORT_NUM);
    if fw.ports.named(port).is_none() {
        return Err(PORT.of(qpn).got(port).limit(fw.ports.numbers().len() as u64));
    }
    Ok(())
}

/// What a connected queue pair must know before it can receive or send.
fn check_connection(fw: &Firmware, ctx: &Qpc, opcode: Opcode, qpn: u32) -> Result<(), Failure> {
    const MTU: Failure = bad_param("INIT2RTR: mtu: the path MTU must be 1 (256 bytes) to 5 (4096)");
    const MESSAGE: Failure = bad_param("INIT2RTR: log_msg_max is above the adapter's log_max_msg");
    const RESPONDER: Failure = bad_param("INIT2RTR: log_rra_max is above log_max_ra_res_qp");
    const REQUESTER: Failure = bad_param("RTR2RTS: log_sra_max is above log_max_ra_req_qp");
    let at_most = |value: u32, cap: Field<General>, failure: Failure| match fw.general.get(cap) {
        limit if value > limit => Err(failure.of(qpn).got(value).limit(limit)),
        _ => Ok(()),
    };
    if opcode == Opcode::Init2RtrQp {
        let mtu = ctx.get(Qpc::MTU);
        hca_spec::qpc::mtu_bytes(mtu).ok_or(MTU.of(qpn).got(mtu))?;
        at_most(ctx.get(Qpc::LOG_MSG_MAX), General::LOG_MAX_MSG, MESSAGE)?;
    }
    at_most(ctx.get(Qpc::LOG_RRA_MAX), General::LOG_MAX_RA_RES_QP, RESPONDER)?;
    at_most(ctx.get(Qpc::LOG_SRA_MAX), General::LOG_MAX_RA_REQ_QP, REQUESTER)
}

/// What software may ask of the path migration state machine (IBTA 17.2.8.1): to wait for the peer, which takes an
/// alternate path, and to use the alternate path. Only the adapter itself gets to "armed".
fn migrate(ctx: &mut Qpc, old: u32, qpn: u32) -> Result<(), Failure> {
    const UNKNOWN: Failure = bad_param("QP: pm_state: software may ask for 1 (rearm) and 3 (migrated) only");
    const NO_PATH: Failure = bad_param("QP: pm_state: rearm needs an alternate path");
    match ctx.get(Qpc::PM_STATE) {
        path_migration::MIGRATED => {
            if old == path_migration::ARMED {
                *ctx.primary_path_mut() = *ctx.secondary_path();
            }
            Ok(())
        }
        path_migration::REARM if ctx.secondary_path().get(AddressPath::RLID) != 0 => Ok(()),
        path_migration::REARM => Err(NO_PATH.of(qpn)),
        path_migration::ARMED if old == path_migration::ARMED => Ok(()),
        other => Err(UNKNOWN.of(qpn).got(other)),
    }
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const STATE: Failure =
        Failure::new(Status::BadQpState, "the queue pair is not in a state that this transition starts from");
    let number = call.number();
    let qp = find(fw, number)?;
    let (old, from, service) = (qp.ctx, qp.state(), qp.service());
    let (allowed, to) = transition(call.command.opcode);
    if !allowed.contains(&from) {
        return Err(STATE.of(number).got(from as u32).wanted(names_of(allowed)));
    }
    // A queue that drains goes on doing so.
    let to = if call.command.opcode == Opcode::Sqd2SqdQp { from } else { to };
    let mut ctx = old;
    let (mut mask, mut drained_event, mut further) = (0, false, Further::default());
    match call.command.opcode {
        Opcode::ToErrQp => {}
        Opcode::ToRstQp => {
            forget_progress(&mut ctx);
            further.groups = Some([0; 2]);
        }
        _ => {
            let modify = call.view::<ModifyQpIn>()?;
            let new = modify.qpc();
            mask = modify.get(ModifyQpIn::OPT_PARAM_MASK);
            drained_event =
                call.command.opcode == Opcode::Rts2SqdQp && modify.get(ModifyQpIn::SQD_EVENT) == 1;
            merge_required(&mut ctx, new, call.command.opcode, mask);
            merge_optional(&mut ctx, new, call.command.opcode, mask);
            if call.command.opcode == Opcode::Rts2RtsQp {
                merge_address(fw, &mut ctx, new, mask);
            }
            // Other transitions have nothing there.
            if matches!(call.command.opcode, Opcode::Rts2RtsQp | Opcode::Init2InitQp) {
                further = merge_further(fw, &mut ctx, call, number)?;
            }
            check_names(fw, &ctx, Names::All)?;
            check_path(fw, ctx.primary_path(), number)?;
            if mask & opt::ALT_PATH != 0 {
                check_path(fw, ctx.secondary_path(), number)?;
            }
            if mask & opt::PM_STATE != 0 {
                migrate(&mut ctx, old.get(Qpc::PM_STATE), number)?;
            }
            if matches!(service, ServiceType::Rc | ServiceType::Uc | ServiceType::Xrc | ServiceType::Dci) {
                check_connection(fw, &ctx, call.command.opcode, number)?;
            }
        }
    }
    ctx.set(Qpc::STATE, to as u32);
    hold(fw, &old, false);
    hold(fw, &ctx, true);
    if let Some(qp) = fw.icm.qps.get_mut(number) {
        qp.ctx = ctx;
        qp.opt_param_mask |= mask;
        qp.drained_event = drained_event;
        if let Some(stream) = further.stream {
            qp.errored_streams.remove(&stream);
        }
        if to == QpState::Reset {
            qp.errored_streams.clear();
        }
        if let Some(groups) = further.groups {
            let old = std::mem::replace(&mut qp.groups, groups);
            fw.icm.hold_elements(groups, true);
            fw.icm.hold_elements(old, false);
        }
    }
    effects.push(Effect::QpModified { qpn: Qpn(number), from, to });
    Ok(done())
}

/// RESET: what the queues have done is forgotten, so that a query does not tell of a former life.
fn forget_progress(ctx: &mut Qpc) {
    for field in [
        Qpc::NEXT_SEND_PSN,
        Qpc::NEXT_RCV_PSN,
        Qpc::LAST_ACKED_PSN,
        Qpc::SSN,
        Qpc::RMSN,
        Qpc::CUR_RETRY_COUNT,
        Qpc::CUR_RNR_RETRY,
        Qpc::HW_SQ_WQEBB_COUNTER,
        Qpc::SW_SQ_WQEBB_COUNTER,
        Qpc::HW_RQ_COUNTER,
        Qpc::SW_RQ_COUNTER,
    ] {
        ctx.set(field, 0);
    }
}

/// A transition that brings a context, with every field that one of them needs.
pub(super) fn template(fixture: &Fixture) -> Vec<u8> {
    let mut modify = ModifyQpIn::new();
    modify.set(ModifyQpIn::QPN, fixture.number(Kind::Qp));
    modify.set(ModifyQpIn::OPT_PARAM_MASK, opt::RRE | opt::RWE | opt::RAE);
    let ctx = modify.qpc_mut();
    ctx.set(Qpc::ST, ServiceType::Rc as u32).set(Qpc::PD, fixture.number(Kind::Pd));
    ctx.set(Qpc::CQN_SND, fixture.number(Kind::Cq)).set(Qpc::CQN_RCV, fixture.number(Kind::Cq));
    ctx.set(Qpc::RRE, 1).set(Qpc::RWE, 1).set(Qpc::RAE, 1).set(Qpc::MTU, 3).set(Qpc::LOG_MSG_MAX, 30);
    ctx.set(Qpc::PM_STATE, path_migration::MIGRATED).set(Qpc::REMOTE_QPN, fixture.peer_qp);
    ctx.set(Qpc::LOG_RRA_MAX, 2).set(Qpc::LOG_SRA_MAX, 2).set(Qpc::MIN_RNR_NAK, 1);
    ctx.set(Qpc::RETRY_COUNT, 3).set(Qpc::RNR_RETRY, 3).set(Qpc::Q_KEY, Fixture::Q_KEY);
    let path = ctx.primary_path_mut();
    path.set(AddressPath::RLID, fixture.peer_lid.0.into()).set(AddressPath::VHCA_PORT_NUM, 1);
    path.set(AddressPath::ACK_TIMEOUT, 4);
    modify.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, Connection};

    const TRANSITIONS: [Opcode; 11] = [
        Opcode::Rst2InitQp,
        Opcode::Init2InitQp,
        Opcode::Init2RtrQp,
        Opcode::Rtr2RtsQp,
        Opcode::Rts2RtsQp,
        Opcode::SqErr2RtsQp,
        Opcode::Rts2SqdQp,
        Opcode::Sqd2SqdQp,
        Opcode::Sqd2RtsQp,
        Opcode::ToErrQp,
        Opcode::ToRstQp,
    ];

    /// What the driver sends with every transition of an RC queue pair.
    fn base(rc: &Connection) -> ModifyQpIn {
        let mut m = ModifyQpIn::new();
        m.set(ModifyQpIn::QPN, rc.qp);
        m.qpc_mut().set(Qpc::PD, rc.pd).set(Qpc::CQN_SND, rc.cq).set(Qpc::CQN_RCV, rc.cq);
        m.qpc_mut().set(Qpc::PM_STATE, 3).set(Qpc::LOG_ACK_REQ_FREQ, 8);
        m
    }

    fn rtr(rc: &Connection) -> ModifyQpIn {
        let mut m = base(rc);
        m.set(ModifyQpIn::OPT_PARAM_MASK, opt::RRE | opt::RAE | opt::RWE);
        let q = m.qpc_mut();
        q.set(Qpc::MTU, 5).set(Qpc::LOG_MSG_MAX, 30).set(Qpc::REMOTE_QPN, 0x55);
        q.set(Qpc::NEXT_RCV_PSN, 0x111).set(Qpc::LOG_RRA_MAX, 2).set(Qpc::MIN_RNR_NAK, 12);
        q.set(Qpc::RRE, 1).set(Qpc::RWE, 1);
        q.primary_path_mut().set(AddressPath::RLID, 9).set(AddressPath::VHCA_PORT_NUM, 1);
        m
    }

    fn rts(rc: &Connection) -> ModifyQpIn {
        let mut m = base(rc);
        let q = m.qpc_mut();
        q.set(Qpc::RETRY_COUNT, 7).set(Qpc::RNR_RETRY, 6).set(Qpc::NEXT_SEND_PSN, 0x222);
        q.set(Qpc::LOG_SRA_MAX, 1);
        q.primary_path_mut().set(AddressPath::ACK_TIMEOUT, 14);
        m
    }

    /// The source of datagrams is the kernel's to choose, in every transition up to RTS; one that says nothing keeps it.
    #[test]
    fn source_of_datagrams() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let mut create = hca_spec::cmd::CreateQpIn::new();
        *create.qpc_mut() = rc.qpc(ServiceType::Ud);
        let number = b.put_list(Opcode::CreateQp, &create, &[0x4000]).number();
        let way = [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp, Opcode::Rts2RtsQp];
        let mut go = |sources: [u32; 4]| {
            b.ok(Opcode::ToRstQp, number);
            let step = |(op, source): (Opcode, u32)| {
                let mut m = base(&rc);
                m.set(ModifyQpIn::QPN, number).qpc_mut().set(Qpc::DETH_SQPN, source);
                assert_eq!(b.put(op, &m, 16).status(), Status::Ok, "{op:?}");
                b.fw.icm.qps.get(number).unwrap().ctx.get(Qpc::DETH_SQPN)
            };
            way.into_iter().zip(sources).map(step).collect::<Vec<_>>()
        };
        assert_eq!(go([1, 1, 1, 0]), [1, 1, 1, 1]);
        assert_eq!(go([0, 1, 0, 5]), [0, 1, 1, 1]);
        assert_eq!(go([0, 0, 1, 5]), [0, 0, 1, 1]);
        assert_eq!(go([0, 0, 0, 0]), [0, 0, 0, 0]);
    }

    /// The whole way of an RC queue pair as the stock driver goes it. Remote reads are only allowed with
    /// INIT2RTR, and RTR2RTS brings a path that is empty but for the timeout.
    #[test]
    fn way_of_a_connection() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let mut init = base(&rc);
        init.qpc_mut().set(Qpc::RWE, 1).set(Qpc::DBR_ADDR, 0x8000);
        init.qpc_mut().primary_path_mut().set(AddressPath::PKEY_INDEX, 3).set(AddressPath::VHCA_PORT_NUM, 1);
        for (op, m) in
            [(Opcode::Rst2InitQp, init), (Opcode::Init2RtrQp, rtr(&rc)), (Opcode::Rtr2RtsQp, rts(&rc))]
        {
            assert_eq!(b.put(op, &m, 16).status(), Status::Ok, "{op:?}");
        }
        let to_rts = Effect::QpModified { qpn: Qpn(rc.qp), from: QpState::Rtr, to: QpState::Rts };
        assert_eq!(b.effects.last(), Some(&to_rts));
        let q = b.fw.icm.qps.get(rc.qp).unwrap().ctx;
        let p = q.primary_path();
        assert_eq!((q.get(Qpc::RRE), q.get(Qpc::RWE), q.get(Qpc::RAE)), (1, 1, 0));
        assert_eq!((q.get(Qpc::REMOTE_QPN), q.get(Qpc::MTU), q.get(Qpc::LOG_RRA_MAX)), (0x55, 5, 2));
        assert_eq!(
            (q.get(Qpc::NEXT_SEND_PSN), q.get(Qpc::RETRY_COUNT), q.get(Qpc::RNR_RETRY)),
            (0x222, 7, 6)
        );
        assert_eq!((q.get(Qpc::DBR_ADDR), q.get(Qpc::LOG_ACK_REQ_FREQ)), (0x8000, 8));
        assert_eq!((p.get(AddressPath::RLID), p.get(AddressPath::PKEY_INDEX)), (9, 3));
        assert_eq!((p.get(AddressPath::ACK_TIMEOUT), p.get(AddressPath::VHCA_PORT_NUM)), (14, 1));

        // An optional field counts only with its bit.
        let mut m = base(&rc);
        m.set(ModifyQpIn::OPT_PARAM_MASK, opt::RNR_TIMEOUT);
        m.qpc_mut().set(Qpc::MIN_RNR_NAK, 1);
        assert_eq!(b.put(Opcode::Rts2RtsQp, &m, 16).status(), Status::Ok);
        let q = b.fw.icm.qps.get(rc.qp).unwrap().ctx;
        assert_eq!((q.get(Qpc::MIN_RNR_NAK), q.get(Qpc::RRE), q.get(Qpc::REMOTE_QPN)), (1, 1, 0x55));

        b.ok(Opcode::ToRstQp, rc.qp);
        let q = b.fw.icm.qps.get(rc.qp).unwrap().ctx;
        assert_eq!((q.get(Qpc::STATE), q.get(Qpc::NEXT_SEND_PSN)), (0, 0));
    }

    /// Every command in every state: it passes where the table says so, and a refusal changes nothing.
    #[test]
    fn state_machine() {
        use QpState::*;
        for from in [Reset, Init, Rtr, Rts, SqError, SqDrained, Error, SqDraining] {
            for op in TRANSITIONS {
                let mut b = Bench::initialized();
                let rc = b.connection();
                b.fw.icm.qps.get_mut(rc.qp).unwrap().ctx.set(Qpc::STATE, from as u32);
                let before = b.fw.icm.qps.get(rc.qp).unwrap().ctx;
                b.effects.clear();
                let status = b.put(op, &rtr(&rc), 16).status();
                let after = b.fw.icm.qps.get(rc.qp).unwrap().ctx;
                let (allowed, to) = match op {
                    Opcode::ToErrQp => (true, Error),
                    Opcode::ToRstQp => (true, Reset),
                    Opcode::Rst2InitQp => (from == Reset, Init),
                    Opcode::Init2InitQp => (from == Init, Init),
                    Opcode::Init2RtrQp => (from == Init, Rtr),
                    Opcode::Rtr2RtsQp => (from == Rtr, Rts),
                    Opcode::Rts2RtsQp => (from == Rts, Rts),
                    Opcode::SqErr2RtsQp => (from == SqError, Rts),
                    Opcode::Rts2SqdQp => (from == Rts, SqDraining),
                    Opcode::Sqd2SqdQp => (matches!(from, SqDrained | SqDraining), from),
                    _ => (from == SqDrained, Rts),
                };
                if allowed {
                    assert_eq!(status, Status::Ok, "{op:?} from {from:?}");
                    assert_eq!(after.get(Qpc::STATE), to as u32);
                    assert_eq!(b.effects, [Effect::QpModified { qpn: Qpn(rc.qp), from, to }]);
                } else {
                    assert_eq!(status, Status::BadQpState, "{op:?} from {from:?}");
                    assert_eq!((after, b.effects.len()), (before, 0));
                }
            }
        }
    }

    #[test]
    fn refusals() {
        let refused = |op: Opcode, change: &dyn Fn(&mut ModifyQpIn)| {
            let mut b = Bench::initialized();
            let rc = b.connection();
            let mut init = base(&rc);
            init.qpc_mut().primary_path_mut().set(AddressPath::VHCA_PORT_NUM, 1);
            let mut m = if op == Opcode::Rst2InitQp { init } else { rtr(&rc) };
            change(&mut m);
            if op != Opcode::Rst2InitQp {
                assert_eq!(b.put(Opcode::Rst2InitQp, &init, 16).status(), Status::Ok);
            }
            b.put(op, &m, 16).status()
        };
        let (init, rtr) = (Opcode::Rst2InitQp, Opcode::Init2RtrQp);
        assert_eq!((refused(init, &|_| {}), refused(rtr, &|_| {})), (Status::Ok, Status::Ok));
        assert_eq!(refused(init, &|m| _ = m.set(ModifyQpIn::QPN, 0xffff)), Status::BadResource);
        assert_eq!(refused(init, &|m| _ = m.qpc_mut().set(Qpc::PD, 0)), Status::Ok, "as created");
        assert_eq!(refused(init, &|m| _ = m.qpc_mut().set(Qpc::PD, 99)), Status::BadResource);
        assert_eq!(refused(init, &|m| _ = m.qpc_mut().set(Qpc::CQN_RCV, 0x99)), Status::BadResource);
        let path =
            |field, value| move |m: &mut ModifyQpIn| _ = m.qpc_mut().primary_path_mut().set(field, value);
        assert_eq!(refused(init, &path(AddressPath::PKEY_INDEX, 32)), Status::BadIndex);
        assert_eq!(refused(init, &path(AddressPath::VHCA_PORT_NUM, 2)), Status::BadParam);
        assert_eq!(refused(rtr, &|m| _ = m.qpc_mut().set(Qpc::MTU, 0)), Status::BadParam);
        assert_eq!(refused(rtr, &|m| _ = m.qpc_mut().set(Qpc::MTU, 6)), Status::BadParam);
        assert_eq!(refused(rtr, &|m| _ = m.qpc_mut().set(Qpc::LOG_MSG_MAX, 31)), Status::BadParam);
        assert_eq!(refused(rtr, &|m| _ = m.qpc_mut().set(Qpc::LOG_RRA_MAX, 5)), Status::BadParam);
        let grh = |m: &mut ModifyQpIn| {
            m.qpc_mut().primary_path_mut().set(AddressPath::GRH, 1).set(AddressPath::SRC_ADDR_INDEX, 8);
        };
        assert_eq!(refused(rtr, &grh), Status::BadIndex);
    }

    /// Paths of RoCE name one of 256 addresses, and the only P_Key.
    #[test]
    fn tables_of_an_ethernet_port() {
        use crate::commands::testing::ethernet;
        let mut b = Bench::initialized_with(ethernet());
        let rc = b.connection();
        let mut init = ModifyQpIn::new();
        init.set(ModifyQpIn::QPN, rc.qp);
        init.qpc_mut().set(Qpc::PD, rc.pd).set(Qpc::CQN_SND, rc.cq).set(Qpc::CQN_RCV, rc.cq);
        init.qpc_mut().primary_path_mut().set(AddressPath::PKEY_INDEX, 1);
        assert_eq!(b.put(Opcode::Rst2InitQp, &init, 16).status(), Status::BadIndex);
        init.qpc_mut().primary_path_mut().set(AddressPath::PKEY_INDEX, 0);
        assert_eq!(b.put(Opcode::Rst2InitQp, &init, 16).status(), Status::Ok);
        let mut rtr = ModifyQpIn::new();
        rtr.set(ModifyQpIn::QPN, rc.qp);
        rtr.qpc_mut().set(Qpc::MTU, 3).set(Qpc::LOG_MSG_MAX, 30);
        let path = rtr.qpc_mut().primary_path_mut();
        path.set(AddressPath::GRH, 1).set(AddressPath::SRC_ADDR_INDEX, 255).set(AddressPath::RMAC_31_0, 7);
        assert_eq!(b.put(Opcode::Init2RtrQp, &rtr, 16).status(), Status::Ok);
        let path = *b.fw.icm.qps.get(rc.qp).unwrap().ctx.primary_path();
        assert_eq!((path.get(AddressPath::SRC_ADDR_INDEX), path.get(AddressPath::RMAC_31_0)), (255, 7));
        let mut rts = ModifyQpIn::new();
        rts.set(ModifyQpIn::QPN, rc.qp);
        assert_eq!(b.put(Opcode::Rtr2RtsQp, &rts, 16).status(), Status::Ok);
        // The UDP source port alone changes.
        rts.set(ModifyQpIn::OPT_PARAM_MASK_95_32, 1 << 2);
        rts.qpc_mut().primary_path_mut().set(AddressPath::UDP_SPORT, 0xc123).set(AddressPath::HOP_LIMIT, 9);
        assert_eq!(b.put(Opcode::Rts2RtsQp, &rts, 16).status(), Status::Ok);
        let path = *b.fw.icm.qps.get(rc.qp).unwrap().ctx.primary_path();
        assert_eq!((path.get(AddressPath::UDP_SPORT), path.get(AddressPath::HOP_LIMIT)), (0xc123, 0));
        assert_eq!(path.get(AddressPath::RMAC_31_0), 7);
        rts.set(ModifyQpIn::OPT_PARAM_MASK_95_32, 1 << 3);
        assert_eq!(b.put(Opcode::Rts2RtsQp, &rts, 16).status(), Status::BadParam);
        // DSCP, with the traffic class, and the own address.
        rts.set(ModifyQpIn::OPT_PARAM_MASK_95_32, 0);
        rts.qpc_mut().primary_path_mut().set(AddressPath::DSCP, 26).set(AddressPath::SRC_ADDR_INDEX, 4);
        for (mask, right) in [(opt::DSCP, (26, 104, 255)), (opt::SRC_ADDR_INDEX, (26, 104, 4))] {
            rts.set(ModifyQpIn::OPT_PARAM_MASK, mask);
            assert_eq!(b.put(Opcode::Rts2RtsQp, &rts, 16).status(), Status::Ok);
            let path = *b.fw.icm.qps.get(rc.qp).unwrap().ctx.primary_path();
            let class = (path.get(AddressPath::DSCP), path.get(AddressPath::TCLASS));
            assert_eq!((class.0, class.1, path.get(AddressPath::SRC_ADDR_INDEX)), right);
            assert_eq!((path.get(AddressPath::RMAC_31_0), path.get(AddressPath::HOP_LIMIT)), (7, 0));
        }
    }

    /// There are no UDP ports on InfiniBand.
    #[test]
    fn no_udp_port_on_infiniband() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let mut init = base(&rc);
        init.qpc_mut().primary_path_mut().set(AddressPath::VHCA_PORT_NUM, 1);
        for (op, m) in
            [(Opcode::Rst2InitQp, init), (Opcode::Init2RtrQp, rtr(&rc)), (Opcode::Rtr2RtsQp, rts(&rc))]
        {
            assert_eq!(b.put(op, &m, 16).status(), Status::Ok, "{op:?}");
        }
        let mut m = base(&rc);
        assert_eq!(b.put(Opcode::Rts2RtsQp, &m, 16).status(), Status::Ok);
        m.set(ModifyQpIn::OPT_PARAM_MASK_95_32, 1 << 2);
        assert_eq!(b.put(Opcode::Rts2RtsQp, &m, 16).status(), Status::BadParam);
    }
}
