//! Valid command inputs, as a driver lays them out: what the fuzzers bring an adapter up with, and
//! what they change bytes in.

use hca_spec::caps;
use hca_spec::cmd::{
    AccessRegIn, CAP_CURRENT, CreateCqIn, CreateEqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, CreateSrqIn,
    FunctionIn, MadIfc, McgIn, ModifyCqIn, ModifyQpIn, ModifyRmpIn, ObjectIn, PAGES_BOOT, PAGES_GIVE,
    PAGES_INIT, PAGES_TAKE, QueryHcaVportIn, SetHcaCapIn, SetIssiIn, reg,
};
use hca_spec::command::{InHeader, Opcode};
use hca_spec::dct::{CreateDctIn, Dctc};
use hca_spec::mad::{CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_SET, Mad, attr};
use hca_spec::mkc::{ANY_QP, AccessMode, Klm, Mkc};
use hca_spec::qpc::{AddressPath, Qpc, RqType, ServiceType, opt};
use hca_spec::queue::{Cqc, Eqc, RMP_READY, Rmpc, Srqc, Wq};

use super::feed::Feed;
use super::memory;
use super::objects::{Objects, QueuePair};

/// log2 of the entries of event and completion queues: one page of 64-byte entries.
pub const LOG_QUEUE: u32 = 6;
/// log2 of the entries of receive queues.
pub const LOG_RECV: u32 = 4;
/// log2 of the basic blocks of send queues.
pub const LOG_SEND: u32 = 6;
/// Stride code of receive queues: 16 << 2 = 64 bytes.
const RECV_STRIDE: u32 = 2;
/// A multicast GID.
const GROUP: (u64, u64) = (0xff12_401b_ffff_0000, 0x1234_5678);

/// Puts the header into `input` and a page list behind it.
fn command(opcode: Opcode, op_mod: u32, input: &[u8], list: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = input.to_vec();
    bytes.resize(bytes.len().max(InHeader::SIZE), 0);
    let mut header = InHeader::from_prefix_or_zero(&bytes);
    header.set(InHeader::OPCODE, opcode as u32).set(InHeader::OP_MOD, op_mod);
    bytes[..InHeader::SIZE].copy_from_slice(header.bytes());
    bytes.extend(list.into_iter().flat_map(u64::to_be_bytes));
    bytes
}

/// A command whose only input is an object's number.
pub fn object(opcode: Opcode, number: u32) -> Vec<u8> {
    command(opcode, 0, ObjectIn::new().set(ObjectIn::NUMBER, number).bytes(), [])
}

/// QUERY_PAGES, "boot" or "init".
pub fn query_pages(boot: bool) -> Vec<u8> {
    command(Opcode::QueryPages, if boot { PAGES_BOOT } else { PAGES_INIT }, &[], [])
}

/// MANAGE_PAGES: gives `count` pages from number `first` on.
pub fn give_pages(first: u64, count: u32) -> Vec<u8> {
    let mut input = FunctionIn::new();
    input.set(FunctionIn::INPUT_NUM_ENTRIES, count);
    let list = (first..first + u64::from(count)).map(|n| memory::FIRMWARE_PAGES + n * memory::PAGE);
    command(Opcode::ManagePages, PAGES_GIVE, input.bytes(), list)
}

/// CREATE_EQ with the events of `mask`.
pub fn create_eq(uar: u32, vector: u32, mask: u64, page: u64) -> Vec<u8> {
    let mut input = CreateEqIn::new();
    input.eqc_mut().set(Eqc::LOG_EQ_SIZE, LOG_QUEUE).set(Eqc::UAR_PAGE, uar).set(Eqc::INTR, vector);
    input.set(CreateEqIn::EVENT_BITMASK_0, mask);
    command(Opcode::CreateEq, 0, input.bytes(), [page])
}

/// CREATE_CQ.
pub fn create_cq(uar: u32, eqn: u32, page: u64, record: u64) -> Vec<u8> {
    let mut input = CreateCqIn::new();
    let cqc = input.cqc_mut();
    cqc.set(Cqc::LOG_CQ_SIZE, LOG_QUEUE).set(Cqc::UAR_PAGE, uar).set(Cqc::C_EQN, eqn);
    cqc.set(Cqc::DBR_ADDR, record);
    command(Opcode::CreateCq, 0, input.bytes(), [page])
}

/// Kinds of memory keys that the fuzzers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Bus addresses as they are.
    Physical,
    /// The data area, page by page.
    Pages,
    /// Room for translations, to be filled by UMR.
    Free,
    /// Two pieces of the `Pages` key with that full key.
    Pieces(u32),
}

/// CREATE_MKEY.
pub fn create_mkey(pd: u32, kind: Key) -> Vec<u8> {
    let mut input = CreateMkeyIn::new();
    let mut list = Vec::new();
    let mkc = input.mkc_mut();
    mkc.set(Mkc::PD, pd).set(Mkc::QPN, ANY_QP).set(Mkc::UMR_EN, 1).set(Mkc::EN_RINVAL, 1);
    for right in [Mkc::LR, Mkc::LW, Mkc::RR, Mkc::RW, Mkc::A] {
        mkc.set(right, 1);
    }
    mkc.set(Mkc::START_ADDR, memory::DATA).set(Mkc::LEN, memory::DATA_LEN).set(Mkc::LOG_PAGE_SIZE, 12);
    match kind {
        Key::Physical => {
            mkc.set_access_mode(AccessMode::Pa).set(Mkc::LENGTH64, 1);
        }
        Key::Pages => {
            mkc.set_access_mode(AccessMode::Mtt);
            list.extend((0..memory::DATA_LEN / memory::PAGE).map(|i| memory::DATA + i * memory::PAGE));
        }
        Key::Free => {
            mkc.set_access_mode(AccessMode::Mtt).set(Mkc::FREE, 1).set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 64);
        }
        Key::Pieces(key) => {
            mkc.set_access_mode(AccessMode::Klm);
            for half in [memory::DATA_LEN / 2, 0] {
                let mut piece = Klm::new();
                piece.set(Klm::BYTE_COUNT, (memory::DATA_LEN / 2) as u32).set(Klm::MKEY, key);
                piece.set(Klm::ADDRESS, memory::DATA + half);
                list.extend(piece.bytes().chunks_exact(8).map(|w| hca_spec::be64(w, 0)));
            }
        }
    }
    let octwords = list.len().div_ceil(2) as u32;
    if octwords > 0 {
        mkc.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, octwords);
    }
    input.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, octwords);
    command(Opcode::CreateMkey, 0, input.bytes(), list)
}

/// CREATE_SRQ, or CREATE_XRC_SRQ with an XRC domain and a completion queue.
pub fn create_srq(pd: u32, xrc: Option<(u32, u32)>, page: u64, record: u64) -> Vec<u8> {
    let mut input = CreateSrqIn::new();
    let srqc = input.srqc_mut();
    srqc.set(Srqc::LOG_SRQ_SIZE, LOG_RECV).set(Srqc::LOG_RQ_STRIDE, RECV_STRIDE).set(Srqc::PD, pd);
    srqc.set(Srqc::DBR_ADDR, record);
    let opcode = match xrc {
        Some((xrcd, cqn)) => {
            srqc.set(Srqc::XRCD, xrcd).set(Srqc::CQN, cqn);
            Opcode::CreateXrcSrq
        }
        None => Opcode::CreateSrq,
    };
    command(opcode, 0, input.bytes(), [page])
}

/// Access key of the DC target.
pub const DC_KEY: u64 = 0x0123_4567_89ab_cdef;

/// CREATE_DCT.
pub fn create_dct(o: &Objects) -> Vec<u8> {
    let mut input = CreateDctIn::new();
    let ctx = input.dctc_mut();
    ctx.set(Dctc::PD, o.pd).set(Dctc::CQN, o.cq).set(Dctc::SRQN, o.srqs[2]).set(Dctc::MTU, 3);
    ctx.set(Dctc::PORT, 1).set(Dctc::RRE, 1).set(Dctc::RWE, 1).set(Dctc::RAE, 1).set(Dctc::MIN_RNR_NAK, 1);
    ctx.set(Dctc::DC_ACCESS_KEY, DC_KEY).set(Dctc::USER_INDEX, 0xff_ffff);
    command(Opcode::CreateDct, 0, input.bytes(), [])
}

/// CREATE_RMP.
pub fn create_rmp(pd: u32, page: u64, record: u64) -> Vec<u8> {
    let mut input = CreateRmpIn::new();
    let rmpc = input.rmpc_mut();
    rmpc.set(Rmpc::STATE, RMP_READY);
    let wq = rmpc.wq_mut();
    wq.set(Wq::LOG_WQ_SZ, LOG_RECV).set(Wq::LOG_WQ_STRIDE, RECV_STRIDE + 4).set(Wq::PD, pd);
    wq.set(Wq::DBR_ADDR, record);
    command(Opcode::CreateRmp, 0, input.bytes(), [page])
}

/// CREATE_QP. With a shared receive queue there is none of its own.
pub fn create_qp(o: &Objects, service: ServiceType, srq: Option<u32>, buffer: u64, record: u64) -> Vec<u8> {
    let mut input = CreateQpIn::new();
    let qpc = input.qpc_mut();
    qpc.set(Qpc::ST, service as u32).set(Qpc::PD, o.pd).set(Qpc::UAR_PAGE, o.uar);
    qpc.set(Qpc::LOG_SQ_SIZE, LOG_SEND).set(Qpc::CQN_SND, o.cq).set(Qpc::CQN_RCV, o.cq);
    qpc.set(Qpc::DBR_ADDR, record).set(Qpc::USER_INDEX, 0xff_ffff).set(Qpc::XRCD, o.xrcd);
    match (service, srq) {
        (ServiceType::RegUmr, _) => qpc.set(Qpc::RQ_TYPE, RqType::Zero as u32),
        (_, Some(srq)) => qpc.set(Qpc::RQ_TYPE, RqType::Shared as u32).set(Qpc::SRQN_RMPN, srq),
        _ => qpc.set(Qpc::LOG_RQ_SIZE, LOG_RECV).set(Qpc::LOG_RQ_STRIDE, RECV_STRIDE),
    };
    command(Opcode::CreateQp, 0, input.bytes(), [buffer, buffer + memory::PAGE])
}

/// A transition of a queue pair whose peer is `remote` on the same port, with every field that it may need.
pub fn modify_qp(o: &Objects, opcode: Opcode, qp: &QueuePair, remote: u32) -> Vec<u8> {
    let mut input = ModifyQpIn::new();
    input.set(ModifyQpIn::QPN, qp.number);
    input.set(ModifyQpIn::OPT_PARAM_MASK, opt::RRE | opt::RWE | opt::RAE);
    let qpc = input.qpc_mut();
    qpc.set(Qpc::ST, qp.service as u32);
    qpc.set(Qpc::PD, o.pd).set(Qpc::CQN_SND, o.cq).set(Qpc::CQN_RCV, o.cq);
    qpc.set(Qpc::RRE, 1).set(Qpc::RWE, 1).set(Qpc::RAE, 1).set(Qpc::PM_STATE, 3).set(Qpc::MTU, 3);
    qpc.set(Qpc::LOG_MSG_MAX, 30).set(Qpc::REMOTE_QPN, remote).set(Qpc::LOG_RRA_MAX, 2);
    qpc.set(Qpc::LOG_SRA_MAX, 2).set(Qpc::RETRY_COUNT, 3).set(Qpc::RNR_RETRY, 3).set(Qpc::MIN_RNR_NAK, 1);
    qpc.set(Qpc::Q_KEY, Q_KEY);
    let path = qpc.primary_path_mut();
    path.set(AddressPath::RLID, o.lid.0.into()).set(AddressPath::VHCA_PORT_NUM, 1);
    path.set(AddressPath::ACK_TIMEOUT, 4);
    command(opcode, 0, input.bytes(), [])
}

/// Q_Key of the datagram queue pairs.
pub const Q_KEY: u32 = 0x1111_1111;

/// One of `templates`; those that end everything seldom.
pub fn pick(feed: &mut Feed<'_>, templates: &[Vec<u8>]) -> Vec<u8> {
    let input = &templates[feed.below(templates.len())];
    let opcode = Opcode::from_u16((hca_spec::be32(input, 0) >> InHeader::OPCODE.shift()) as u16);
    let ends = matches!(opcode, Some(Opcode::TeardownHca | Opcode::DisableHca));
    if ends && !feed.one_in(8) { object(Opcode::QueryIssi, 0) } else { input.clone() }
}

fn mad(method: u32, attribute: u32) -> Vec<u8> {
    let mut input = MadIfc::new();
    input.set(MadIfc::PORT, 1);
    let mad = input.mad_mut();
    mad.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED).set(Mad::CLASS_VERSION, 1);
    mad.set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute).set(Mad::ATTRIBUTE_MODIFIER, 1);
    command(Opcode::MadIfc, 0, input.bytes(), [])
}

/// At least one valid input of every command, about those objects.
pub fn templates(o: &Objects) -> Vec<Vec<u8>> {
    let qp = o.qps[0].number;
    let ud = o.qps.iter().find(|q| q.service == ServiceType::Ud).map_or(qp, |q| q.number);
    let mut all = Vec::new();
    for opcode in Opcode::ALL {
        let op = *opcode;
        all.push(match op {
            Opcode::ManagePages => give_pages(0x1000, 16),
            Opcode::QueryPages => query_pages(true),
            Opcode::QueryHcaCap => command(op, caps::TYPE_GENERAL << 1 | CAP_CURRENT, &[], []),
            Opcode::SetHcaCap => command(op, caps::TYPE_GENERAL << 1, SetHcaCapIn::new().bytes(), []),
            Opcode::SetIssi => command(op, 0, SetIssiIn::new().set(SetIssiIn::CURRENT_ISSI, 1).bytes(), []),
            Opcode::SetDriverVersion => command(op, 0, &[0; 80], []),
            Opcode::CreateMkey => create_mkey(o.pd, Key::Pages),
            Opcode::DestroyMkey | Opcode::QueryMkey => object(op, o.keys[1] >> 8),
            Opcode::CreateEq => create_eq(o.uar, 1, 0, memory::SPARE),
            Opcode::DestroyEq | Opcode::QueryEq => object(op, o.eq),
            Opcode::CreateCq => create_cq(o.uar, o.eq, memory::SPARE, memory::RECORDS),
            Opcode::DestroyCq | Opcode::QueryCq => object(op, o.cq),
            Opcode::ModifyCq => {
                let mut input = ModifyCqIn::new();
                input.set(ModifyCqIn::CQN, o.cq).set(ModifyCqIn::FIELD_SELECT, 7);
                input.cqc_mut().set(Cqc::LOG_CQ_SIZE, LOG_QUEUE).set(Cqc::CQ_MAX_COUNT, 4);
                input.cqc_mut().set(Cqc::CQ_PERIOD, 2);
                command(op, 1, input.bytes(), [memory::SPARE])
            }
            Opcode::CreateQp => create_qp(o, ServiceType::Rc, None, memory::SPARE, memory::RECORDS),
            Opcode::Rst2InitQp
            | Opcode::Init2RtrQp
            | Opcode::Rtr2RtsQp
            | Opcode::Rts2RtsQp
            | Opcode::SqErr2RtsQp
            | Opcode::Rts2SqdQp
            | Opcode::Sqd2SqdQp
            | Opcode::Sqd2RtsQp
            | Opcode::Init2InitQp => modify_qp(o, op, &o.qps[0], o.qps[1].number),
            Opcode::DestroyQp | Opcode::QueryQp | Opcode::ToErrQp | Opcode::ToRstQp => object(op, qp),
            Opcode::MadIfc => mad(METHOD_SET, attr::PORT_INFO),
            Opcode::CreateSrq => create_srq(o.pd, None, memory::SPARE, memory::RECORDS),
            Opcode::CreateXrcSrq => create_srq(o.pd, Some((o.xrcd, o.cq)), memory::SPARE, memory::RECORDS),
            Opcode::CreateRmp => create_rmp(o.pd, memory::SPARE, memory::RECORDS),
            Opcode::DestroySrq | Opcode::QuerySrq => object(op, o.srqs[0]),
            Opcode::DestroyXrcSrq | Opcode::QueryXrcSrq => object(op, o.srqs[1]),
            Opcode::DestroyRmp | Opcode::QueryRmp => object(op, o.srqs[2]),
            Opcode::CreateDct => create_dct(o),
            Opcode::DestroyDct | Opcode::DrainDct | Opcode::QueryDct | Opcode::ArmDctForKeyViolation => {
                object(op, o.dct)
            }
            Opcode::ArmRq | Opcode::ArmXrcSrq => {
                let srq = o.srqs[usize::from(op == Opcode::ArmXrcSrq)];
                let mut input = ObjectIn::new();
                command(op, 1, input.set(ObjectIn::NUMBER, srq).set(ObjectIn::LWM, 2).bytes(), [])
            }
            Opcode::ModifyRmp => {
                let mut input = ModifyRmpIn::new();
                input.set(ModifyRmpIn::RMPN, o.srqs[2]).set(ModifyRmpIn::BITMASK_LWM, 1);
                input.rmpc_mut().wq_mut().set(Wq::LWM, 3);
                command(op, 0, input.bytes(), [])
            }
            Opcode::QueryHcaVportGid | Opcode::QueryHcaVportPkey => {
                let mut input = QueryHcaVportIn::new();
                command(op, 0, input.set(QueryHcaVportIn::INDEX, 0xffff).bytes(), [])
            }
            Opcode::ModifyHcaVportContext => command(op, 0, &[0; 0x220], []),
            Opcode::DeallocPd => object(op, o.pd),
            Opcode::DeallocUar => object(op, o.uar),
            Opcode::DeallocXrcd => object(op, o.xrcd),
            Opcode::AccessReg => {
                let mut input = AccessRegIn::new();
                input.set(AccessRegIn::REGISTER_ID, reg::PCAP);
                command(op, 0, input.bytes(), [0, 0])
            }
            Opcode::AttachToMcg | Opcode::DetachFromMcg => {
                let mut input = McgIn::new();
                input.set(McgIn::QPN, ud).set(McgIn::GID_H, GROUP.0).set(McgIn::GID_L, GROUP.1);
                command(op, 0, input.bytes(), [])
            }
            _ => command(op, 0, &[], []),
        });
    }
    // Variants that the fuzzers would hardly find by changing single bytes.
    all.push(mad(METHOD_GET, attr::PORT_INFO));
    all.push(mad(METHOD_SET, attr::GUID_INFO));
    all.push(mad(METHOD_SET, attr::PKEY_TABLE));
    all.push(create_mkey(o.pd, Key::Pieces(o.keys[1])));
    all.push(create_mkey(o.pd, Key::Free));
    let mut take = FunctionIn::new();
    take.set(FunctionIn::INPUT_NUM_ENTRIES, 64);
    all.push(command(Opcode::ManagePages, PAGES_TAKE, take.bytes(), []));
    let mut read = AccessRegIn::new();
    read.set(AccessRegIn::REGISTER_ID, reg::NODE_DESC);
    all.push(command(Opcode::AccessReg, 1, read.bytes(), [0; 8]));
    all
}
