//! Queue pairs: creation, destruction, queries. Transitions are in [`super::qp_transition`].
//!
//! Source: PRM "CREATE_QP", "DESTROY_QP", "QUERY_QP".

use std::collections::BTreeSet;

use hca_spec::caps::{General, General2};
use hca_spec::cmd::{CreateQpIn, PAS_OFFSET, QueryQpIn, QueryQpOut};
use hca_spec::ids::Qpn;
use hca_spec::qpc::{QpState, Qpc, QpcExt, RqType, ServiceType, send_dbr_mode};

use super::call::{check_uar, done, named, record, reply, with_pages};
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use crate::buffer::Buffer;
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, busy, no_room};
use crate::firmware::Firmware;
use crate::icm::{MAX_MANAGEMENT_QPS, Qp, SrqKind};
use crate::object::Kind;

pub(super) const NO_QP: Failure = bad_resource("there is no QP of that number");

/// What a queue pair holds on to, so that it can't be destroyed under it.
pub(super) fn hold(fw: &mut Firmware, ctx: &Qpc, held: bool) {
    let change = |users: &mut u32| *users = if held { *users + 1 } else { users.saturating_sub(1) };
    for cqn in [ctx.get(Qpc::CQN_SND), ctx.get(Qpc::CQN_RCV)] {
        if let Some(cq) = fw.icm.cqs.get_mut(cqn) {
            change(&mut cq.users);
        }
    }
    if let Some(pd) = fw.icm.pds.get_mut(ctx.get(Qpc::PD)) {
        change(&mut pd.users);
    }
    // Other service types carry a domain that means nothing.
    if ctx.get(Qpc::ST) == ServiceType::Xrc as u32
        && let Some(xrcd) = fw.icm.xrcds.get_mut(ctx.get(Qpc::XRCD))
    {
        change(&mut xrcd.users);
    }
    if ctx.get(Qpc::RQ_TYPE) == RqType::Shared as u32
        && let Some(srq) = fw.icm.srqs.get_mut(ctx.get(Qpc::SRQN_RMPN))
    {
        change(&mut srq.users);
    }
}

/// The queue pair of that number, which is not a send queue on its own.
pub(super) fn find(fw: &Firmware, number: u32) -> Result<&Qp, Failure> {
    fw.icm.qps.get(number).filter(|qp| qp.send_only.is_none()).ok_or(NO_QP.of(number))
}

/// How much of what a context names has to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// At creation: PD and CQs may come later, as zero for now.
    Given,
    /// From INIT on.
    All,
}

/// Whether the objects that a context names exist.
pub(super) fn check_names(fw: &Firmware, ctx: &Qpc, names: Names) -> Result<(), Failure> {
    const NO_PD: Failure = bad_resource("QP: pd: the protection domain is not allocated");
    const NO_SEND_CQ: Failure = bad_resource("QP: cqn_snd names no CQ");
    const NO_RECEIVE_CQ: Failure = bad_resource("QP: cqn_rcv names no CQ");
    const NO_SRQ: Failure = bad_resource("QP: srqn_rmpn names no SRQ");
    const SRQ_KIND: Failure =
        bad_resource("QP: srqn_rmpn: XRC queue pairs receive from XRC SRQs, those of RC alone from XRQs");
    const STRIDES: Failure =
        bad_resource("QP: srqn_rmpn: messages take whole WQEs, and packets strides of those of that pool");
    const NO_XRCD: Failure = bad_resource("QP: xrcd: the XRC domain is not allocated");
    let later = |number: u32| number == 0 && names == Names::Given;
    let (pd, send, receive) = (ctx.get(Qpc::PD), ctx.get(Qpc::CQN_SND), ctx.get(Qpc::CQN_RCV));
    if !later(pd) && fw.icm.pds.get(pd).is_none() {
        return Err(NO_PD.got(pd));
    }
    // A queue that the QP does not have needs no CQ.
    if ctx.get(Qpc::NO_SQ) == 0 && !later(send) && fw.icm.cqs.get(send).is_none() {
        return Err(NO_SEND_CQ.got(send));
    }
    let rq_type = RqType::from_bits(ctx.get(Qpc::RQ_TYPE));
    let xrc = ctx.get(Qpc::ST) == ServiceType::Xrc as u32;
    // A DC initiator receives nothing, although drivers name an SRQ.
    let initiator = ctx.get(Qpc::ST) == ServiceType::Dci as u32;
    // An XRC receive completes to its SRQ's CQ; drivers leave the queue pair's out.
    let needs_cq = rq_type != Some(RqType::Zero) && !((xrc || initiator) && receive == 0);
    if needs_cq && !later(receive) && fw.icm.cqs.get(receive).is_none() {
        return Err(NO_RECEIVE_CQ.got(receive));
    }
    if rq_type == Some(RqType::Shared) {
        let number = ctx.get(Qpc::SRQN_RMPN);
        let srq = fw.icm.srqs.get(number).ok_or(NO_SRQ.got(number))?;
        // With ISSI 0, CREATE_SRQ makes both kinds.
        let fits = match srq.kind {
            _ if initiator => true,
            SrqKind::Basic => true,
            SrqKind::Xrc => xrc,
            SrqKind::Rmp => !xrc,
            SrqKind::Xrq => ctx.get(Qpc::ST) == ServiceType::Rc as u32,
        };
        if !fits {
            return Err(SRQ_KIND.got(number));
        }
        if srq.strides.is_some() && !initiator {
            return Err(STRIDES.got(number));
        }
    }
    // Other service types carry a domain that means nothing.
    let xrcd = ctx.get(Qpc::XRCD);
    if xrc && !later(xrcd) && fw.icm.xrcds.get(xrcd).is_none() {
        return Err(NO_XRCD.got(xrcd));
    }
    Ok(())
}

/// Refuses what this adapter does not have of an initiator's streams and of queues without a record; what no capability tells of means nothing.
fn check_options(fw: &Firmware, create: &CreateQpIn, ctx: &mut Qpc) -> Result<(), Failure> {
    const EXTENSION: Failure =
        bad_param("CREATE_QP: qpc_ext: the extension of a context is set by INIT2INIT and RTS2RTS");
    const STREAMS: Failure =
        bad_param("CREATE_QP: log_num_dci_stream_channels is above log_max_dci_stream_channels");
    const ERRORED: Failure =
        bad_param("CREATE_QP: log_num_dci_errored_streams is above log_max_dci_errored_streams");
    const CROSS: Failure =
        bad_param("CREATE_QP: cd_master, cd_slave_send, cd_slave_receive: queues can't wait for each other");
    const MODE: Failure =
        bad_param("CREATE_QP: send_dbr_mode must be 0 (record) or 1 (no record, send_dbr_mode_no_dbr_ext)");
    if create.get(CreateQpIn::QPC_EXT) == 1 && fw.general_max.get(General::QPC_EXTENSION) == 1 {
        return Err(EXTENSION);
    }
    if [Qpc::CD_MASTER, Qpc::CD_SLAVE_SEND, Qpc::CD_SLAVE_RECEIVE].iter().any(|field| ctx.get(*field) == 1) {
        return Err(CROSS);
    }
    for (field, cap, failure) in [
        (Qpc::LOG_NUM_DCI_STREAM_CHANNELS, General::LOG_MAX_DCI_STREAM_CHANNELS, STREAMS),
        (Qpc::LOG_NUM_DCI_ERRORED_STREAMS, General::LOG_MAX_DCI_ERRORED_STREAMS, ERRORED),
    ] {
        let limit = fw.general_max.get(cap);
        match ctx.get(field) {
            _ if limit == 0 || ctx.get(Qpc::ST) != ServiceType::Dci as u32 => _ = ctx.set(field, 0),
            value if value > limit => return Err(failure.got(value).limit(limit)),
            _ => {}
        }
    }
    let recordless = fw.personality().capabilities.general_2.get(General2::SEND_DBR_MODE_NO_DBR_EXT) == 1;
    match ctx.get(Qpc::SEND_DBR_MODE) {
        _ if !recordless => _ = ctx.set(Qpc::SEND_DBR_MODE, send_dbr_mode::RECORD),
        send_dbr_mode::RECORD | send_dbr_mode::NO_RECORD => {}
        other => return Err(MODE.got(other)),
    }
    Ok(())
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const SERVICE: Failure = bad_param("CREATE_QP: st: the service type is not one this adapter has");
    const NO_QP0: Failure = bad_param("CREATE_QP: st: there is no QP0 on Ethernet ports (IBTA A16.4)");
    const RQ: Failure = bad_param("CREATE_QP: rq_type: the kind of receive queue is reserved");
    const SIZE: Failure =
        bad_param("CREATE_QP: log_sq_size, log_rq_size: a work queue is larger than log_max_qp_sz");
    const UAR: Failure = bad_resource("CREATE_QP: uar_page: the UAR page is not allocated");
    const FULL: Failure = no_room("CREATE_QP: there are 2^log_max_qp queue pairs");
    const MANAGEMENT: Failure =
        no_room("CREATE_QP: st: the function has as many queue pairs 0 and 1 as it can");
    let create = call.view::<CreateQpIn>()?;
    let mut ctx = *create.qpc();
    let service = ctx.get(Qpc::ST);
    // A DC target is no queue pair.
    ServiceType::from_bits(service).filter(|s| *s != ServiceType::Dct).ok_or(SERVICE.got(service))?;
    if service == ServiceType::Qp0 as u32 && fw.is_ethernet() {
        return Err(NO_QP0);
    }
    let rq_type = ctx.get(Qpc::RQ_TYPE);
    let rq_type = RqType::from_bits(rq_type).ok_or(RQ.got(rq_type))?;
    let limit = fw.general.get(General::LOG_MAX_QP_SZ);
    let rq_size = if rq_type == RqType::Own { ctx.get(Qpc::LOG_RQ_SIZE) } else { 0 };
    let size = rq_size.max(ctx.get(Qpc::LOG_SQ_SIZE));
    if size > limit {
        return Err(SIZE.got(size).limit(limit));
    }
    check_options(fw, create, &mut ctx)?;
    if ctx.get(Qpc::NO_SQ) == 0 {
        check_uar(fw, ctx.get(Qpc::UAR_PAGE), UAR)?;
    }
    check_names(fw, &ctx, Names::Given)?;
    ctx.set(Qpc::DBR_ADDR, record(ctx.get(Qpc::DBR_ADDR)));
    if fw.icm.qps.len() >> fw.general.get(General::LOG_MAX_QP) != 0 {
        return Err(FULL.got(fw.icm.qps.len()));
    }
    let management = service == ServiceType::Qp0 as u32 || service == ServiceType::Qp1 as u32;
    if management && fw.icm.management.len() >= MAX_MANAGEMENT_QPS {
        return Err(MANAGEMENT.got(fw.icm.management.len() as u32).limit(MAX_MANAGEMENT_QPS as u32));
    }
    // The state is the adapter's to say, whatever the input holds there.
    ctx.set(Qpc::STATE, QpState::Reset as u32);
    let mut qp = Qp {
        ctx,
        opt_param_mask: create.get(CreateQpIn::OPT_PARAM_MASK),
        buffer: Buffer::default(),
        multicast: 0,
        drained_event: false,
        groups: [0; 2],
        errored_streams: BTreeSet::new(),
        send_only: None,
    };
    let bytes = qp.rq_bytes() + qp.sq_bytes();
    if bytes > 0 {
        qp.buffer = call.buffer(ctx.get(Qpc::LOG_PAGE_SIZE), ctx.get(Qpc::PAGE_OFFSET), bytes)?;
    }
    let pages = qp.buffer.pages().len();
    let number = fw.icm.qps.insert(qp).map_err(|_| FULL)?;
    if management {
        fw.icm.management.insert(Qpn(number));
    }
    fw.icm.count_pages(pages);
    hold(fw, &ctx, true);
    effects.push(Effect::QpCreated(Qpn(number)));
    named(number)
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const ATTACHED: Failure = busy("DESTROY_QP: the queue pair is still in multicast groups");
    let number = call.number();
    let groups = find(fw, number)?.multicast;
    if groups > 0 {
        return Err(ATTACHED.of(number).got(groups));
    }
    let qp = fw.icm.qps.remove(number).ok_or(NO_QP.of(number))?;
    fw.icm.management.remove(&Qpn(number));
    fw.icm.uncount_pages(qp.buffer.pages().len());
    hold(fw, &qp.ctx, false);
    fw.icm.hold_elements(qp.groups, false);
    effects.push(Effect::QpDestroyed(Qpn(number)));
    Ok(done())
}

/// Where QUERY_QP's page list begins: behind the context, and its extension if that is asked for.
pub(super) fn list_offset(fw: &Firmware, call: &Call<'_>) -> usize {
    let asked = QueryQpIn::from_prefix_or_zero(call.input).get(QueryQpIn::QPC_EXT) == 1;
    let extended = asked && fw.general_max.get(General::QPC_EXTENSION) == 1;
    if extended { PAS_OFFSET + QpcExt::SIZE } else { PAS_OFFSET }
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let number = call.number();
    let qp = find(fw, number)?;
    let mut out = QueryQpOut::new();
    out.set(QueryQpOut::OPT_PARAM_MASK, qp.opt_param_mask);
    *out.qpc_mut() = qp.ctx;
    let mut out = with_pages(reply(&out), &qp.buffer);
    if list_offset(fw, call) > PAS_OFFSET {
        let [requester, responder] = qp.groups;
        let mut ext = QpcExt::new();
        ext.set(QpcExt::QOS_QUEUE_GROUP_ID_REQUESTER, requester);
        ext.set(QpcExt::QOS_QUEUE_GROUP_ID_RESPONDER, responder);
        let list = out.split_off(PAS_OFFSET.min(out.len()));
        out.extend_from_slice(ext.bytes());
        out.extend(list);
    }
    Ok(out)
}

/// CREATE_QP: an RC queue pair.
pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    /// The second page of the queue.
    const PAGE: u64 = 0x1000;
    let mut create = CreateQpIn::new();
    let ctx = create.qpc_mut();
    ctx.set(Qpc::ST, ServiceType::Rc as u32).set(Qpc::PD, fixture.number(Kind::Pd));
    ctx.set(Qpc::UAR_PAGE, fixture.number(Kind::Uar)).set(Qpc::LOG_SQ_SIZE, Fixture::LOG_SEND);
    ctx.set(Qpc::LOG_RQ_SIZE, Fixture::LOG_RECV).set(Qpc::LOG_RQ_STRIDE, Fixture::RECV_STRIDE);
    ctx.set(Qpc::CQN_SND, fixture.number(Kind::Cq)).set(Qpc::CQN_RCV, fixture.number(Kind::Cq));
    ctx.set(Qpc::DBR_ADDR, fixture.record).set(Qpc::USER_INDEX, Qpc::USER_INDEX.max());
    input(create.bytes(), 0, [fixture.queue, fixture.queue + PAGE])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use hca_spec::command::{Opcode, Status};

    #[test]
    fn life_of_a_queue_pair() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let qp = b.fw.icm.qps.get(rc.qp).unwrap();
        assert!(rc.qp >= 0x40, "0 and 1 are special");
        assert_eq!((qp.state(), qp.service()), (QpState::Reset, ServiceType::Rc));
        // 16 receive WQEs of 64 bytes, then 16 basic blocks.
        assert_eq!((qp.rq_bytes(), qp.sq_bytes(), qp.buffer.len()), (1024, 1024, 2048));
        assert_eq!(b.fw.icm.cqs.get(rc.cq).map(|c| c.users), Some(2));
        let r = b.object_into(Opcode::QueryQp, rc.qp, 0x110);
        assert_eq!(QueryQpOut::from_prefix_or_zero(&r.output).qpc().get(Qpc::PD), rc.pd);
        b.ok(Opcode::DestroyQp, rc.qp);
        assert_eq!(b.effects.last(), Some(&Effect::QpDestroyed(Qpn(rc.qp))));
        assert_eq!(b.fw.icm.cqs.get(rc.cq).map(|c| c.users), Some(0));
        assert_eq!(b.object(Opcode::DestroyQp, rc.qp).status(), Status::BadResource);
        b.ok(Opcode::DestroyCq, rc.cq);
        b.ok(Opcode::DeallocPd, rc.pd);
    }

    /// A MAD looks at all queue pairs 0 and 1: there are never many.
    #[test]
    fn few_queue_pairs_are_for_management() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let create = |b: &mut Bench, service| {
            let mut c = CreateQpIn::new();
            *c.qpc_mut() = rc.qpc(service);
            b.put_list(Opcode::CreateQp, &c, &[0x4000])
        };
        let made: Vec<_> =
            (0..MAX_MANAGEMENT_QPS).map(|_| create(&mut b, ServiceType::Qp1).status()).collect();
        assert_eq!(made, vec![Status::Ok; MAX_MANAGEMENT_QPS]);
        assert_eq!(create(&mut b, ServiceType::Qp0).status(), Status::ExceedLimit);
        assert_eq!(create(&mut b, ServiceType::Rc).status(), Status::Ok);
        let first = b.fw.icm.management.first().unwrap().0;
        b.ok(Opcode::DestroyQp, first);
        assert_eq!(create(&mut b, ServiceType::Qp0).status(), Status::Ok);
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let mut try_qp = |change: fn(&mut Qpc)| {
            let mut c = CreateQpIn::new();
            *c.qpc_mut() = rc.qpc(ServiceType::Rc);
            change(c.qpc_mut());
            b.put_list(Opcode::CreateQp, &c, &[0x4000]).status()
        };
        assert_eq!(try_qp(|_| {}), Status::Ok);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::STATE, 3)), Status::Ok, "the adapter's to say");
        assert_eq!(try_qp(|q| _ = q.set(Qpc::ST, 6)), Status::BadParam);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::RQ_TYPE, 2)), Status::BadParam);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::CD_MASTER, 1)), Status::BadParam);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::CD_SLAVE_SEND, 1)), Status::BadParam);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::CD_SLAVE_RECEIVE, 1)), Status::BadParam);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::PD, 77)), Status::BadResource);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::CQN_SND, 0x777)), Status::BadResource);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::CQN_RCV, 0x777)), Status::BadResource);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::UAR_PAGE, 0x777)), Status::BadResource);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::RQ_TYPE, 1)), Status::BadResource, "no SRQ");
        assert_eq!(try_qp(|q| _ = q.set(Qpc::LOG_SQ_SIZE, 7)), Status::BadInputLength);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::LOG_PAGE_SIZE, 31)), Status::BadParam);
        assert_eq!(try_qp(|q| _ = q.set(Qpc::ST, 3).set(Qpc::XRCD, 99)), Status::BadResource);
        assert_eq!(b.fw.icm.qps.len(), 3, "what is refused leaves nothing");
        assert_eq!(b.fw.icm.pds.get(rc.pd).map(|p| p.users), Some(3));
    }

    /// The queue pair of the driver's UMR work requests: no receive queue, the PD comes with RST2INIT.
    #[test]
    fn umr_queue_pair() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let mut c = CreateQpIn::new();
        *c.qpc_mut() = rc.qpc(ServiceType::RegUmr);
        c.qpc_mut().set(Qpc::PD, 0).set(Qpc::RQ_TYPE, RqType::Zero as u32).set(Qpc::CQN_RCV, 0);
        let r = b.put_list(Opcode::CreateQp, &c, &[0x4000]);
        assert_eq!(r.status(), Status::Ok);
        let qp = r.number();
        assert_eq!(b.fw.icm.qps.get(qp).unwrap().buffer.len(), 1024);
        for op in [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp] {
            let mut m = hca_spec::cmd::ModifyQpIn::new();
            m.set(hca_spec::cmd::ModifyQpIn::QPN, qp);
            m.qpc_mut().set(Qpc::ST, 0xc).set(Qpc::PD, rc.pd).set(Qpc::CQN_SND, rc.cq);
            m.qpc_mut().set(Qpc::MTU, 5).set(Qpc::LOG_MSG_MAX, 12);
            assert_eq!(b.put(op, &m, 16).status(), Status::Ok, "{op:?}");
        }
        assert_eq!(b.fw.icm.pds.get(rc.pd).map(|p| p.users), Some(2));
    }

    #[test]
    fn the_number_of_queue_pairs_has_a_bound() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        b.fw.general.set(General::LOG_MAX_QP, 2);
        assert!((0..4).all(|i| {
            let Execution::Done(out) = b.try_qp(&rc) else { return false };
            out[0] == if i < 3 { 0 } else { Status::ExceedLimit as u8 }
        }));
    }

    use crate::firmware::Execution;
}
