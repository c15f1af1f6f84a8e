use hca_spec::caps::{General, object_type, uctx_cap};
use hca_spec::cmd::{
    CreateCqIn, CreateMkeyIn, CreateQpIn, CreateUctxIn, CreateUmemIn, GeneralObjectIn, ModifyQpIn,
    QueryCqOut, QueryQpOut,
};
use hca_spec::command::{Opcode, Status};
use hca_spec::mkc::{AccessMode, MTT_READ, MTT_WRITE, Mkc};
use hca_spec::put_be32;
use hca_spec::qpc::{QpState, Qpc, ServiceType};
use hca_spec::queue::Cqc;
use zerocopy::{Immutable, IntoBytes};

use hca_spec::cmd::{CreateSqIn, QuerySqOut};
use hca_spec::queue::{Sqc, Wq};
use hca_spec::rq::{CreateRqIn, QueryRqOut, Rqc};
use hca_spec::transport::{CreateRqtIn, CreateTirIn, CreateTisIn, Rqtc, Tirc, Tisc};

use crate::commands::testing::{Answer, Bench, Connection, Nic};
use crate::limits::{LOG_RESERVED_QPNS, MAX_KEY_OCTWORDS};
use crate::object::{Kind, Object};

const RW: u64 = MTT_READ | MTT_WRITE;

fn context(b: &mut Bench, cap: u32) -> u32 {
    let mut c = CreateUctxIn::new();
    c.set(CreateUctxIn::CAP, cap);
    b.put(Opcode::CreateUctx, &c, 16).number()
}

/// A command in its layout, sent by a user, with a list behind.
fn put_as(
    b: &mut Bench,
    uid: u32,
    op: Opcode,
    input: &(impl IntoBytes + Immutable),
    list: &[u64],
    out: usize,
) -> Answer {
    let mut bytes = input.as_bytes().to_vec();
    put_be32(&mut bytes, 0, (op as u32) << 16 | uid);
    list.iter().for_each(|page| bytes.extend_from_slice(&page.to_be_bytes()));
    b.raw(&bytes, out)
}

fn object_as(b: &mut Bench, uid: u32, op: Opcode, number: u32, out: usize) -> Answer {
    let mut input = [0; 16];
    put_be32(&mut input, 8, number);
    put_as(b, uid, op, &input, &[], out)
}

fn umem(b: &mut Bench, uid: u32, pages: &[u64], log_page_size: u32, offset: u32) -> Answer {
    let mut c = CreateUmemIn::new();
    c.set(CreateUmemIn::LOG_PAGE_SIZE, log_page_size).set(CreateUmemIn::PAGE_OFFSET, offset);
    c.set(CreateUmemIn::NUM_OF_MTT, pages.len() as u64);
    put_as(b, uid, Opcode::CreateUmem, &c, pages, 16)
}

/// A bench with an EQ that all may use, and two user contexts.
fn users() -> (Bench, Connection, [u32; 2]) {
    let mut b = Bench::initialized();
    let rc = b.connection();
    b.fw.icm.users.made(Object::new(Kind::Eq, rc.eq), crate::users::SHARED);
    let uids = [context(&mut b, 0), context(&mut b, 0)];
    (b, rc, uids)
}

/// A CQ of 64 entries at 0x1000 of a memory, its doorbell record at 0x40.
fn cq_in(rc: &Connection, umem: u32) -> CreateCqIn {
    let mut c = CreateCqIn::new();
    c.set(CreateCqIn::CQ_UMEM_VALID, 1)
        .set(CreateCqIn::CQ_UMEM_ID, umem)
        .set(CreateCqIn::CQ_UMEM_OFFSET, 0x1000);
    c.cqc_mut().set(Cqc::LOG_CQ_SIZE, 6).set(Cqc::UAR_PAGE, rc.uar).set(Cqc::C_EQN, rc.eq);
    c.cqc_mut().set(Cqc::DBR_UMEM_VALID, 1).set(Cqc::DBR_UMEM_ID, umem).set(Cqc::DBR_ADDR, 0x40);
    c
}

#[test]
fn contexts_come_and_go() {
    let mut b = Bench::initialized();
    let uid = context(&mut b, uctx_cap::INTERNAL_DEV_RES);
    assert_ne!(uid, 0, "0 is the kernel");
    let mut c = CreateUctxIn::new();
    c.set(CreateUctxIn::CAP, uctx_cap::RAW_TX);
    assert_eq!(b.put(Opcode::CreateUctx, &c, 16).status(), Status::BadParam);
    let pd = object_as(&mut b, uid, Opcode::AllocPd, 0, 16).number();
    assert_eq!(b.object(Opcode::DestroyUctx, uid).status(), Status::ResourceBusy);
    assert_eq!(object_as(&mut b, uid, Opcode::DeallocPd, pd, 16).status(), Status::Ok);
    b.ok(Opcode::DestroyUctx, uid);
    assert_eq!(b.object(Opcode::DestroyUctx, uid).status(), Status::BadResource);
    assert_eq!(object_as(&mut b, uid, Opcode::AllocPd, 0, 16).status(), Status::BadParam, "no such context");
}

#[test]
fn the_number_of_contexts_has_a_bound() {
    let mut b = Bench::initialized();
    b.give_pages(1000);
    let most = 1 << b.fw.general.get(General::LOG_MAX_UCTX);
    let made =
        (0..most).take_while(|_| b.put(Opcode::CreateUctx, &CreateUctxIn::new(), 16).status() == Status::Ok);
    assert_eq!(made.count(), most - 1);
}

#[test]
fn privileged_commands() {
    let (mut b, rc, [uid, _]) = users();
    let owner = context(&mut b, uctx_cap::INTERNAL_DEV_RES);
    for op in
        [Opcode::TeardownHca, Opcode::DisableHca, Opcode::CreateUctx, Opcode::DestroyUctx, Opcode::QueryPages]
    {
        assert_eq!(object_as(&mut b, uid, op, 0, 0x110).status(), Status::BadOp, "{op:?}");
    }
    assert_eq!(object_as(&mut b, uid, Opcode::QueryEq, rc.eq, 0x110).status(), Status::BadOp);
    assert_eq!(object_as(&mut b, owner, Opcode::QueryEq, rc.eq, 0x110).status(), Status::Ok);
    assert_eq!(object_as(&mut b, owner, Opcode::TeardownHca, 0, 16).status(), Status::BadOp);
    for op in [Opcode::QueryHcaCap, Opcode::QueryHcaVportContext, Opcode::Nop] {
        assert_eq!(object_as(&mut b, uid, op, 0, 0x1010).status(), Status::Ok, "{op:?}");
    }
    assert_eq!(object_as(&mut b, uid, Opcode::CreateGeneralObject, 0, 16).status(), Status::BadParam);
}

/// A context of fwctl reads and writes registers and looks at anybody's objects; it changes and destroys none, and one without the
/// capability does none of it.
#[test]
fn contexts_of_tools() {
    let personality = crate::Personality::named("connectx5").expect("a kind");
    let mut b = Bench::initialized_with(crate::Config { personality, ..crate::Config::default() });
    let rc = b.connection();
    let (tools, other) = (context(&mut b, uctx_cap::TOOLS_RESOURCES), context(&mut b, 0));
    let register = |b: &mut Bench, uid: u32, write: bool| {
        const NODE_DESC: u32 = 0x6001;
        let mut input = [0; 0x50];
        put_be32(&mut input, 0, (Opcode::AccessReg as u32) << 16 | uid);
        put_be32(&mut input, 4, u32::from(!write));
        put_be32(&mut input, 8, NODE_DESC);
        b.raw(&input, 0x50).status()
    };
    assert_eq!((register(&mut b, tools, true), register(&mut b, tools, false)), (Status::Ok, Status::Ok));
    assert_eq!(register(&mut b, other, false), Status::BadOp);
    for (op, number) in [(Opcode::QueryQp, rc.qp), (Opcode::QueryCq, rc.cq), (Opcode::QueryEq, rc.eq)] {
        assert_eq!(object_as(&mut b, tools, op, number, 0x200).status(), Status::Ok, "{op:?}");
        assert_ne!(object_as(&mut b, other, op, number, 0x200).status(), Status::Ok, "{op:?}");
    }
    for (op, number) in [(Opcode::DestroyQp, rc.qp), (Opcode::ToErrQp, rc.qp), (Opcode::DeallocPd, rc.pd)] {
        assert_eq!(object_as(&mut b, tools, op, number, 16).status(), Status::BadResource, "{op:?}");
    }
    for op in [Opcode::TeardownHca, Opcode::CreateEq, Opcode::ManagePages] {
        assert_eq!(object_as(&mut b, tools, op, 0, 0x110).status(), Status::BadOp, "{op:?}");
    }
}

/// Who asks for counters may have them cleared if they are his or everybody's; tools see those of others as well, and leave them.
#[test]
fn counters_are_cleared_by_those_who_have_them() {
    use crate::q_counters::QCounter;
    use hca_spec::cmd::QueryQCounterIn;
    let personality = crate::Personality::named("connectx5").expect("a kind");
    let mut b = Bench::initialized_with(crate::Config { personality, ..crate::Config::default() });
    let (tools, user) = (context(&mut b, uctx_cap::TOOLS_RESOURCES), context(&mut b, 0));
    let clears = |b: &mut Bench, set: u32, uid: u32| {
        b.fw.icm.q_counters.get_mut(set).unwrap().count(QCounter::RxWriteRequests);
        let mut query = QueryQCounterIn::new();
        query.set(QueryQCounterIn::COUNTER_SET_ID, set).set(QueryQCounterIn::CLEAR, 1);
        let status = put_as(b, uid, Opcode::QueryQCounter, &query, &[], 0x100).status();
        let mut left = [0; 0x100];
        b.fw.icm.q_counters.get_mut(set).unwrap().report(&mut left);
        (status, left == [0; 0x100])
    };
    let (kernels, everybodys) = (b.alloc(Opcode::AllocQCounter), b.alloc(Opcode::AllocQCounter));
    b.fw.icm.users.made(Object::new(Kind::QCounter, everybodys), crate::users::SHARED);
    assert_eq!(clears(&mut b, everybodys, user), (Status::Ok, true));
    assert_eq!(clears(&mut b, everybodys, tools), (Status::Ok, true));
    assert_eq!(clears(&mut b, kernels, tools), (Status::Ok, false));
    assert_ne!(clears(&mut b, kernels, user).0, Status::Ok);
    assert_eq!(clears(&mut b, kernels, 0), (Status::Ok, true));
}

/// What belongs to one user is not there for another, neither as an object nor as a name in a context.
#[test]
fn others_objects() {
    let (mut b, rc, [one, two]) = users();
    let pd = object_as(&mut b, one, Opcode::AllocPd, 0, 16).number();
    assert_eq!(object_as(&mut b, two, Opcode::DeallocPd, pd, 16).status(), Status::BadResource);
    let mut reserved = GeneralObjectIn::new();
    reserved.set(GeneralObjectIn::OBJ_TYPE, object_type::RESERVED_QPN);
    reserved.set(GeneralObjectIn::LOG_OBJ_RANGE, LOG_RESERVED_QPNS);
    let first = put_as(&mut b, one, Opcode::CreateGeneralObject, &reserved, &[], 16).number();
    reserved.set(GeneralObjectIn::OBJ_ID, first);
    let mut destroy = |uid| put_as(&mut b, uid, Opcode::DestroyGeneralObject, &reserved, &[], 16).status();
    assert_eq!((destroy(two), destroy(one)), (Status::BadResource, Status::Ok));
    assert_eq!(
        object_as(&mut b, two, Opcode::DestroyCq, rc.cq, 16).status(),
        Status::BadResource,
        "the kernel's"
    );
    assert_eq!(object_as(&mut b, two, Opcode::QueryQp, rc.qp, 0x110).status(), Status::BadResource);
    let m = umem(&mut b, one, &[0xa_0000 | RW, 0xb_0000 | RW], 0, 0).number();
    let cq = put_as(&mut b, one, Opcode::CreateCq, &cq_in(&rc, m), &[], 16).number();
    assert_eq!(put_as(&mut b, two, Opcode::CreateCq, &cq_in(&rc, m), &[], 16).status(), Status::BadResource);
    let mut c = CreateQpIn::new();
    *c.qpc_mut() = rc.qpc(ServiceType::Rc);
    let mut try_qp = |b: &mut Bench, uid, pd, cq| {
        c.qpc_mut().set(Qpc::PD, pd).set(Qpc::CQN_SND, cq).set(Qpc::CQN_RCV, cq);
        put_as(b, uid, Opcode::CreateQp, &c, &[0x4000], 16)
    };
    assert_eq!(try_qp(&mut b, one, rc.pd, cq).status(), Status::BadResource, "the kernel's PD");
    assert_eq!(try_qp(&mut b, one, pd, rc.cq).status(), Status::BadResource, "the kernel's CQ");
    assert_eq!(try_qp(&mut b, two, pd, cq).status(), Status::BadResource);
    let qp = try_qp(&mut b, one, pd, cq).number();
    assert_eq!(object_as(&mut b, two, Opcode::ToErrQp, qp, 16).status(), Status::BadResource);
    assert_eq!(b.object_into(Opcode::QueryQp, qp, 0x110).status(), Status::Ok, "the kernel may look at all");
    let mut init = ModifyQpIn::new();
    init.set(ModifyQpIn::QPN, qp);
    init.qpc_mut().set(Qpc::PD, rc.pd);
    assert_eq!(put_as(&mut b, one, Opcode::Rst2InitQp, &init, &[], 16).status(), Status::BadResource);
    for (op, number) in
        [(Opcode::DestroyQp, qp), (Opcode::DestroyCq, cq), (Opcode::DestroyUmem, m), (Opcode::DeallocPd, pd)]
    {
        assert_eq!(b.object(Opcode::DestroyUctx, one).status(), Status::ResourceBusy);
        assert_eq!(object_as(&mut b, one, op, number, 16).status(), Status::Ok, "{op:?}");
    }
    b.ok(Opcode::DestroyUctx, one);
}

#[test]
fn queues_in_user_memory() {
    let (mut b, rc, [uid, _]) = users();
    let pd = object_as(&mut b, uid, Opcode::AllocPd, 0, 16).number();
    let m = umem(&mut b, uid, &[0xa_0000 | RW, 0xb_0000 | RW, 0xc_0000 | RW], 0, 0x800).number();
    let cq = put_as(&mut b, uid, Opcode::CreateCq, &cq_in(&rc, m), &[], 16).number();
    let made = b.fw.icm.cqs.get(cq).unwrap();
    assert_eq!(
        (made.buffer.at(0), made.buffer.at(0x800)),
        (Some((0xb_0800, 0x800)), Some((0xc_0000, 0x800)))
    );
    assert_eq!(made.ctx.get(Cqc::DBR_ADDR), 0xa_0840);
    let r = object_as(&mut b, uid, Opcode::QueryCq, cq, 0x118);
    assert_eq!(
        QueryCqOut::from_prefix_or_zero(&r.output).cqc().get(Cqc::DBR_ADDR),
        0x40,
        "as the user gave it"
    );
    assert_eq!(r.output[0x110..], [0; 8], "no addresses for users");
    assert_eq!(b.object(Opcode::DestroyUmem, m).status(), Status::ResourceBusy);

    let mut c = CreateQpIn::new();
    *c.qpc_mut() = rc.qpc(ServiceType::Rc);
    c.set(CreateQpIn::WQ_UMEM_VALID, 1)
        .set(CreateQpIn::WQ_UMEM_ID, m)
        .set(CreateQpIn::WQ_UMEM_OFFSET, 0x2040 - 0x1800);
    c.qpc_mut().set(Qpc::PD, pd).set(Qpc::CQN_SND, cq).set(Qpc::CQN_RCV, cq);
    c.qpc_mut().set(Qpc::DBR_UMEM_VALID, 1).set(Qpc::DBR_UMEM_ID, m).set(Qpc::DBR_ADDR, 8);
    let qp = put_as(&mut b, uid, Opcode::CreateQp, &c, &[], 16).number();
    let made = b.fw.icm.qps.get(qp).unwrap();
    assert_eq!((made.buffer.at(0), made.ctx.get(Qpc::DBR_ADDR)), (Some((0xb_0040, 0x800)), 0xa_0808));
    let mut init = ModifyQpIn::new();
    init.set(ModifyQpIn::QPN, qp);
    init.qpc_mut().set(Qpc::DBR_ADDR, 0xdead_0000).set(Qpc::FRE, 1).set(Qpc::RLKY, 1).set(Qpc::DETH_SQPN, 1);
    assert_eq!(put_as(&mut b, uid, Opcode::Rst2InitQp, &init, &[], 16).status(), Status::Ok);
    let made = b.fw.icm.qps.get(qp).unwrap();
    assert_eq!(
        (made.state(), made.ctx.get(Qpc::DBR_ADDR)),
        (QpState::Init, 0xa_0808),
        "a user can't name addresses"
    );
    assert_eq!((made.ctx.get(Qpc::FRE), made.ctx.get(Qpc::RLKY)), (0, 0), "nor load them into keys");
    assert_eq!(made.ctx.get(Qpc::DETH_SQPN), 0, "nor speak for another");
    let r = object_as(&mut b, uid, Opcode::QueryQp, qp, 0x118);
    assert_eq!(QueryQpOut::from_prefix_or_zero(&r.output).qpc().get(Qpc::DBR_ADDR), 8);

    let privileged: [fn(&mut Qpc); 6] = [
        |q| _ = q.set(Qpc::ST, ServiceType::Qp0 as u32),
        |q| _ = q.set(Qpc::ST, ServiceType::Qp1 as u32),
        |q| _ = q.set(Qpc::DETH_SQPN, 1),
        |q| _ = q.set(Qpc::FRE, 1),
        |q| _ = q.set(Qpc::RLKY, 1),
        |q| _ = q.set(Qpc::ST, ServiceType::RegUmr as u32),
    ];
    for change in privileged {
        let mut c = c;
        change(c.qpc_mut());
        assert_eq!(put_as(&mut b, uid, Opcode::CreateQp, &c, &[], 16).status(), Status::BadParam);
    }

    c.set(CreateQpIn::WQ_UMEM_OFFSET, 0x2040);
    assert_eq!(
        put_as(&mut b, uid, Opcode::CreateQp, &c, &[], 16).status(),
        Status::BadParam,
        "beyond the end"
    );
    c.set(CreateQpIn::WQ_UMEM_OFFSET, 0x20);
    assert_eq!(put_as(&mut b, uid, Opcode::CreateQp, &c, &[], 16).status(), Status::BadParam, "unaligned");
    c.set(CreateQpIn::WQ_UMEM_OFFSET, 0);
    c.qpc_mut().set(Qpc::DBR_ADDR, 0x27fc);
    assert_eq!(put_as(&mut b, uid, Opcode::CreateQp, &c, &[], 16).status(), Status::BadParam);
    c.qpc_mut().set(Qpc::DBR_UMEM_ID, 99);
    assert_eq!(put_as(&mut b, uid, Opcode::CreateQp, &c, &[], 16).status(), Status::BadResource);
    for (op, number) in [(Opcode::DestroyQp, qp), (Opcode::DestroyCq, cq), (Opcode::DestroyUmem, m)] {
        assert_eq!(object_as(&mut b, uid, op, number, 16).status(), Status::Ok, "{op:?}");
    }
}

/// Large pages: the queue's pages are as large as its alignment allows.
#[test]
fn large_pages() {
    let (mut b, rc, [uid, _]) = users();
    let m = umem(&mut b, uid, &[0x20_0000 | RW], 9, 0).number();
    let cq = put_as(&mut b, uid, Opcode::CreateCq, &cq_in(&rc, m), &[], 16).number();
    let made = b.fw.icm.cqs.get(cq).unwrap();
    assert_eq!((made.buffer.at(0), made.buffer.pages().len()), (Some((0x20_1000, 0x1000)), 1));
    let read_only = umem(&mut b, uid, &[0x20_0000 | MTT_READ], 9, 0).number();
    let refused = put_as(&mut b, uid, Opcode::CreateCq, &cq_in(&rc, read_only), &[], 16);
    assert_eq!(refused.status(), Status::BadResource, "a CQ is written");
    assert_eq!(umem(&mut b, uid, &[], 0, 0).status(), Status::BadParam);
    assert_eq!(umem(&mut b, uid, &[RW], 0, 0x1001).status(), Status::BadParam);
    assert_eq!(umem(&mut b, uid, &[RW], 31, 0x1001).status(), Status::Ok);
    let mut short = CreateUmemIn::new();
    short.set(CreateUmemIn::NUM_OF_MTT, u64::MAX);
    assert_eq!(put_as(&mut b, uid, Opcode::CreateUmem, &short, &[0], 16).status(), Status::BadInputLength);
}

#[test]
fn keys_over_user_memory() {
    let (mut b, _, [uid, _]) = users();
    let pd = object_as(&mut b, uid, Opcode::AllocPd, 0, 16).number();
    let m = umem(&mut b, uid, &[0x20_0000 | MTT_READ], 9, 0).number();
    let mut c = CreateMkeyIn::new();
    c.set(CreateMkeyIn::MKEY_UMEM_VALID, 1)
        .set(CreateMkeyIn::MKEY_UMEM_ID, m)
        .set(CreateMkeyIn::MKEY_UMEM_OFFSET, 0x3000);
    c.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, 2);
    let mkc = c.mkc_mut();
    mkc.set_access_mode(AccessMode::Mtt).set(Mkc::PD, pd).set(Mkc::LR, 1).set(Mkc::LW, 1);
    mkc.set(Mkc::START_ADDR, 0x7000).set(Mkc::LEN, 0x3000);
    mkc.set(Mkc::LOG_PAGE_SIZE, 12).set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 2);
    let key = put_as(&mut b, uid, Opcode::CreateMkey, &c, &[], 16).number();
    let made = b.fw.icm.mkeys.get(key).unwrap();
    let pages: Vec<_> = (0..4).map(|page| made.translation.page(page)).collect();
    assert_eq!(pages, [Some(0x20_3001), Some(0x20_4001), Some(0x20_5001), None]);
    assert!(made.pg_access, "the memory can only be read");
    let r = object_as(&mut b, uid, Opcode::QueryMkey, key, 0x120);
    assert_eq!(r.output[0x110..], [0; 16]);
    let mut bad = c;
    bad.mkc_mut().set(Mkc::LEN, 0x1f_f000);
    assert_eq!(put_as(&mut b, uid, Opcode::CreateMkey, &bad, &[], 16).status(), Status::BadParam);
    bad = c;
    bad.mkc_mut().set_access_mode(AccessMode::Pa);
    assert_eq!(
        put_as(&mut b, uid, Opcode::CreateMkey, &bad, &[], 16).status(),
        Status::BadParam,
        "all of memory"
    );
    bad = c;
    bad.set(CreateMkeyIn::MKEY_UMEM_VALID, 0);
    assert_eq!(put_as(&mut b, uid, Opcode::CreateMkey, &bad, &[0x1003; 4], 16).status(), Status::BadParam);
    assert_eq!(b.object(Opcode::DestroyUmem, m).status(), Status::ResourceBusy);
    assert_eq!(object_as(&mut b, uid, Opcode::DestroyMkey, key, 16).status(), Status::Ok);
    b.ok(Opcode::DestroyUmem, m);
}

/// A memory of few huge pages holds any number of small ones: neither a queue nor a key gets a list of them.
#[test]
fn huge_pages_are_not_cut_into_lists() {
    const LOG_HUGE: u32 = 31;
    let (mut b, nic) = Nic::bench();
    let uid = context(&mut b, uctx_cap::RAW_TX);
    let pd = object_as(&mut b, uid, Opcode::AllocPd, 0, 16).number();
    b.fw.icm.users.made(Object::new(Kind::Cq, nic.cq), uid as u16);
    let m = umem(&mut b, uid, &[RW; 64], LOG_HUGE, 0).number();
    let mut rq = CreateRqIn::new();
    rq.rqc_mut().set(Rqc::CQN, nic.cq);
    let wq = rq.rqc_mut().wq_mut();
    wq_in(wq, m, pd);
    wq.set(Wq::LOG_WQ_STRIDE, 15).set(Wq::LOG_WQ_SZ, 31).set(Wq::WQ_UMEM_OFFSET, 64);
    assert_eq!(put_as(&mut b, uid, Opcode::CreateRq, &rq, &[], 16).status(), Status::BadParam);
    let mut key = CreateMkeyIn::new();
    key.set(CreateMkeyIn::MKEY_UMEM_VALID, 1).set(CreateMkeyIn::MKEY_UMEM_ID, m);
    key.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, MAX_KEY_OCTWORDS);
    let mkc = key.mkc_mut();
    mkc.set_access_mode(AccessMode::Mtt).set(Mkc::PD, pd).set(Mkc::LR, 1).set(Mkc::LOG_PAGE_SIZE, 12);
    mkc.set(Mkc::LEN, u64::from(MAX_KEY_OCTWORDS) << 13);
    mkc.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, MAX_KEY_OCTWORDS);
    let before = b.fw.icm.translation_bytes;
    let key = put_as(&mut b, uid, Opcode::CreateMkey, &key, &[], 16).number();
    assert_eq!(b.fw.icm.translation_bytes, before, "the memory's own list serves");
    let made = &b.fw.icm.mkeys.get(key).unwrap().translation;
    let last = MAX_KEY_OCTWORDS as usize * 2 - 1;
    assert_eq!(made.page(last), Some((last as u64) << 12 | RW));
    assert_eq!(made.page(last + 1), None);
}

/// A work queue of a user: 16 WQEs of 64 bytes at 0x1000 of a memory, its record at 0x40.
fn wq_in(wq: &mut Wq, umem: u32, pd: u32) {
    wq.set(Wq::WQ_TYPE, 1).set(Wq::LOG_WQ_STRIDE, 6).set(Wq::LOG_WQ_SZ, 4).set(Wq::PD, pd);
    wq.set(Wq::WQ_UMEM_VALID, 1).set(Wq::WQ_UMEM_ID, umem).set(Wq::WQ_UMEM_OFFSET, 0x1000);
    wq.set(Wq::DBR_UMEM_VALID, 1).set(Wq::DBR_UMEM_ID, umem).set(Wq::DBR_ADDR, 0x40);
}

/// What a program that receives and sends packets makes by itself, and what another one may name of it: nothing.
#[test]
fn queues_for_packets() {
    let (mut b, nic) = Nic::bench();
    let [one, two] = [context(&mut b, uctx_cap::RAW_TX), context(&mut b, 0)];
    let of = |b: &mut Bench, uid| {
        let [pd, td] = [Opcode::AllocPd, Opcode::AllocTransportDomain];
        let pd = object_as(b, uid, pd, 0, 16).number();
        (
            pd,
            object_as(b, uid, td, 0, 16).number(),
            umem(b, uid, &[0xa_0000 | RW, 0xb_0000 | RW], 0, 0).number(),
        )
    };
    let ((pd, td, m), (_, other_td, _)) = (of(&mut b, one), of(&mut b, two));
    b.fw.icm.users.made(Object::new(Kind::Cq, nic.cq), one as u16);
    let mut rq = CreateRqIn::new();
    rq.rqc_mut().set(Rqc::CQN, nic.cq);
    wq_in(rq.rqc_mut().wq_mut(), m, pd);
    assert_eq!(put_as(&mut b, two, Opcode::CreateRq, &rq, &[], 16).status(), Status::BadResource);
    let mut physical = rq;
    physical.rqc_mut().set(Rqc::RLKY, 1);
    assert_eq!(put_as(&mut b, one, Opcode::CreateRq, &physical, &[], 16).status(), Status::BadParam);
    let rqn = put_as(&mut b, one, Opcode::CreateRq, &rq, &[], 16).number();
    let made = b.fw.icm.rqs.get(rqn).unwrap();
    assert_eq!((made.buffer.at(0), made.ctx.wq().get(Wq::DBR_ADDR)), (Some((0xb_0000, 0x400)), 0xa_0040));
    let r = object_as(&mut b, one, Opcode::QueryRq, rqn, 0x118);
    let out = QueryRqOut::from_prefix_or_zero(&r.output);
    assert_eq!((out.rqc().wq().get(Wq::DBR_ADDR), &r.output[0x110..]), (0x40, &[0; 8][..]));
    assert_eq!(b.object(Opcode::DestroyUmem, m).status(), Status::ResourceBusy);

    let mut rqt = CreateRqtIn::new();
    rqt.rqtc_mut().set(Rqtc::RQT_MAX_SIZE, 2).set(Rqtc::RQT_ACTUAL_SIZE, 2);
    let list = [u64::from(rqn) << 32 | u64::from(rqn)];
    assert_eq!(put_as(&mut b, two, Opcode::CreateRqt, &rqt, &list, 16).status(), Status::BadResource);
    let rqtn = put_as(&mut b, one, Opcode::CreateRqt, &rqt, &list, 16).number();

    let mut tir = CreateTirIn::new();
    tir.tirc_mut().set(Tirc::DISP_TYPE, 1).set(Tirc::INDIRECT_TABLE, rqtn).set(Tirc::TRANSPORT_DOMAIN, td);
    assert_eq!(put_as(&mut b, two, Opcode::CreateTir, &tir, &[], 16).status(), Status::BadResource);
    tir.tirc_mut().set(Tirc::TRANSPORT_DOMAIN, other_td);
    assert_eq!(put_as(&mut b, one, Opcode::CreateTir, &tir, &[], 16).status(), Status::BadResource);
    tir.tirc_mut().set(Tirc::TRANSPORT_DOMAIN, td);
    let tirn = put_as(&mut b, one, Opcode::CreateTir, &tir, &[], 16).number();
    assert_eq!(object_as(&mut b, two, Opcode::QueryTir, tirn, 0x110).status(), Status::BadResource);

    let mut tis = CreateTisIn::new();
    tis.tisc_mut().set(Tisc::TRANSPORT_DOMAIN, td);
    assert_eq!(put_as(&mut b, two, Opcode::CreateTis, &tis, &[], 16).status(), Status::BadResource);
    let tisn = put_as(&mut b, one, Opcode::CreateTis, &tis, &[], 16).number();
    let mut sq = CreateSqIn::new();
    sq.sqc_mut().set(Sqc::CQN, nic.cq).set(Sqc::TIS_LST_SZ, 1).set(Sqc::TIS_NUM_0, tisn);
    wq_in(sq.sqc_mut().wq_mut(), m, pd);
    sq.sqc_mut().wq_mut().set(Wq::UAR_PAGE, nic.uar);
    for (field, value) in [(Sqc::FRE, 1), (Sqc::RLKY, 1), (Sqc::REG_UMR, 1)] {
        let mut sq = sq;
        sq.sqc_mut().set(field, value);
        let refused = put_as(&mut b, one, Opcode::CreateSq, &sq, &[], 16);
        assert_eq!(refused.status(), Status::BadParam, "{}", field.name());
    }
    let sqn = put_as(&mut b, one, Opcode::CreateSq, &sq, &[], 16).number();
    let r = object_as(&mut b, one, Opcode::QuerySq, sqn, 0x118);
    let out = QuerySqOut::from_prefix_or_zero(&r.output);
    assert_eq!((out.sqc().wq().get(Wq::DBR_ADDR), &r.output[0x110..]), (0x40, &[0; 8][..]));
    assert_eq!(object_as(&mut b, two, Opcode::DestroySq, sqn, 16).status(), Status::BadResource);
    for (op, number) in [
        (Opcode::DestroySq, sqn),
        (Opcode::DestroyTis, tisn),
        (Opcode::DestroyTir, tirn),
        (Opcode::DestroyRqt, rqtn),
        (Opcode::DestroyRq, rqn),
        (Opcode::DestroyUmem, m),
    ] {
        assert_eq!(object_as(&mut b, one, op, number, 16).status(), Status::Ok, "{op:?}");
    }
}

/// Packets are sent by contexts that may, and on Ethernet ports.
#[test]
fn raw_packets_need_a_right() {
    let (mut b, nic) = Nic::bench();
    let uid = context(&mut b, 0);
    b.fw.icm.users.made(Object::new(Kind::Cq, nic.cq), uid as u16);
    let td = object_as(&mut b, uid, Opcode::AllocTransportDomain, 0, 16).number();
    let mut tis = CreateTisIn::new();
    tis.tisc_mut().set(Tisc::TRANSPORT_DOMAIN, td);
    let tisn = put_as(&mut b, uid, Opcode::CreateTis, &tis, &[], 16).number();
    let mut sq = CreateSqIn::new();
    sq.sqc_mut().set(Sqc::CQN, nic.cq).set(Sqc::TIS_LST_SZ, 1).set(Sqc::TIS_NUM_0, tisn);
    sq.sqc_mut().wq_mut().set(Wq::WQ_TYPE, 1).set(Wq::LOG_WQ_STRIDE, 6).set(Wq::UAR_PAGE, nic.uar);
    assert_eq!(put_as(&mut b, uid, Opcode::CreateSq, &sq, &[0x4000], 16).status(), Status::BadParam);
    let mut b = Bench::with(crate::Config { blueflame: true, ..crate::Config::default() });
    b.ok(Opcode::EnableHca, 0);
    b.give_pages(b.fw.pages.init());
    b.ok(Opcode::InitHca, 0);
    let uid = context(&mut b, 0);
    let sq = CreateSqIn::new();
    assert_eq!(put_as(&mut b, uid, Opcode::CreateSq, &sq, &[0x4000], 16).status(), Status::BadParam);
}
