//! A bench for the tests: an adapter that is brought up, and commands in few words.

use std::sync::Arc;

use hca_spec::cmd::{CreateCqIn, CreateEqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, FunctionIn, PAGES_GIVE};
use hca_spec::command::{Opcode, Status};
use hca_spec::eqe::EventType;
use hca_spec::mkc::{AccessMode, Mkc};
use hca_spec::qpc::{Qpc, ServiceType};
use hca_spec::queue::{Cqc, Eqc, RMP_READY, Rmpc, Wq};
use hca_spec::rq::{CreateRqIn, Rqc};
use hca_spec::transport::{CreateRqtIn, CreateTisIn, Rqtc, Tisc};
use hca_spec::{be32, put_be32};
use zerocopy::{Immutable, IntoBytes};

use crate::effect::Effect;
use crate::firmware::{Execution, Firmware};
use crate::personality::{Personality, PortKind};
use crate::profile::Config;

/// An adapter with two ports.
pub(crate) fn two_ports() -> Config {
    let one = (*Personality::default_kind()).clone();
    let ports = [one.ports.clone(), one.ports.clone()].concat();
    Config { personality: Arc::new(one.with_ports(ports)), ..Config::default() }
}

/// An adapter whose port is Ethernet.
pub(crate) fn ethernet() -> Config {
    Config { port_kind: PortKind::Ethernet, ..Config::default() }
}

/// What queues of an Ethernet port stand on.
#[derive(Clone, Copy)]
pub(crate) struct Nic {
    pub(crate) uar: u32,
    pub(crate) cq: u32,
    pub(crate) pd: u32,
    pub(crate) td: u32,
}

impl Nic {
    /// An adapter whose port is Ethernet, after INIT_HCA, with these objects.
    pub(crate) fn bench() -> (Bench, Self) {
        Self::bench_of(ethernet())
    }

    /// The same of an adapter that is like that.
    pub(crate) fn bench_of(config: Config) -> (Bench, Self) {
        let mut b = Bench::initialized_with(config);
        let uar = b.alloc(Opcode::AllocUar);
        let eq = b.eq(uar, 0);
        let cq = b.cq(eq, uar, 5);
        let (pd, td) = (b.alloc(Opcode::AllocPd), b.alloc(Opcode::AllocTransportDomain));
        (b, Self { uar, cq, pd, td })
    }

    /// A cyclic receive queue of 16 WQEs of 16 bytes.
    pub(crate) fn rq(&self) -> CreateRqIn {
        let mut c = CreateRqIn::new();
        c.rqc_mut().set(Rqc::CQN, self.cq);
        let wq = c.rqc_mut().wq_mut();
        wq.set(Wq::WQ_TYPE, 1).set(Wq::LOG_WQ_STRIDE, 4).set(Wq::LOG_WQ_SZ, 4).set(Wq::PD, self.pd);
        c
    }
}

/// What a command answered.
pub(crate) struct Answer {
    pub(crate) output: Vec<u8>,
}

impl Answer {
    pub(crate) fn status(&self) -> Status {
        use Status::*;
        let all = [
            Ok,
            InternalError,
            BadOp,
            BadParam,
            BadSystemState,
            BadResource,
            ResourceBusy,
            NotReady,
            ExceedLimit,
            BadResourceState,
            BadIndex,
            NoResources,
            BadQpState,
            BadPacket,
            BadSizeOutstandingCqes,
            BadInputLength,
            BadOutputLength,
        ];
        let status = all.into_iter().find(|s| *s as u8 == self.output[0]).expect("a status of the interface");
        let syndrome = be32(&self.output, 4);
        assert_eq!(status == Ok, syndrome == 0, "a refusal, and nothing else, has a syndrome");
        status
    }

    pub(crate) fn number(&self) -> u32 {
        assert_eq!(self.status(), Status::Ok);
        be32(&self.output, 8) & 0xff_ffff
    }
}

/// Numbers of an RC queue pair in RESET and what it stands on.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    pub(crate) uar: u32,
    pub(crate) eq: u32,
    pub(crate) cq: u32,
    pub(crate) pd: u32,
    pub(crate) qp: u32,
}

impl Connection {
    /// The context of a queue pair on the same PD and CQ: 16 receives of 64 bytes, 16 basic blocks.
    pub(crate) fn qpc(&self, service: ServiceType) -> Qpc {
        let mut q = Qpc::new();
        q.set(Qpc::ST, service as u32).set(Qpc::PD, self.pd).set(Qpc::UAR_PAGE, self.uar);
        q.set(Qpc::CQN_SND, self.cq).set(Qpc::CQN_RCV, self.cq);
        q.set(Qpc::LOG_RQ_SIZE, 4).set(Qpc::LOG_RQ_STRIDE, 2).set(Qpc::LOG_SQ_SIZE, 4);
        q
    }
}

/// A firmware and the effects of its commands so far.
pub(crate) struct Bench {
    pub(crate) fw: Firmware,
    pub(crate) effects: Vec<Effect>,
    next_page: u64,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(crate) fn with(config: Config) -> Self {
        Self { fw: Firmware::new(config), effects: Vec::new(), next_page: 0x8000_0000 }
    }

    /// After INIT_HCA, with exactly the pages that were asked for.
    pub(crate) fn initialized() -> Self {
        Self::initialized_with(Config::default())
    }

    /// The same of another adapter.
    pub(crate) fn initialized_with(config: Config) -> Self {
        let mut b = Self::with(config);
        b.ok(Opcode::EnableHca, 0);
        b.give_pages(b.fw.pages.init());
        b.ok(Opcode::InitHca, 0);
        b
    }

    pub(crate) fn raw(&mut self, input: &[u8], output_len: usize) -> Answer {
        match self.fw.execute(input, output_len, &mut self.effects) {
            Execution::Done(output) => Answer { output },
            Execution::NeedPages => panic!("waits for pages"),
        }
    }

    /// A command with `body` behind the 8 bytes of opcode and modifier.
    pub(crate) fn run(&mut self, op: Opcode, op_mod: u32, body: &[u8], output_len: usize) -> Answer {
        let mut input = vec![0; 8];
        put_be32(&mut input, 0, (op as u32) << 16);
        put_be32(&mut input, 4, op_mod);
        input.extend_from_slice(body);
        input.resize(input.len().max(16), 0);
        self.raw(&input, output_len)
    }

    /// Reads or writes a register with that data.
    pub(crate) fn access_reg(&mut self, id: u32, write: bool, data: &[u8]) -> Answer {
        let mut body = vec![0; 8];
        body[2..4].copy_from_slice(&(id as u16).to_be_bytes());
        body.extend_from_slice(data);
        self.run(Opcode::AccessReg, u32::from(!write), &body, 16 + data.len())
    }

    /// A command in its layout; only the opcode is filled in here.
    pub(crate) fn put(
        &mut self,
        op: Opcode,
        input: &(impl IntoBytes + Immutable),
        output_len: usize,
    ) -> Answer {
        let mut bytes = input.as_bytes().to_vec();
        put_be32(&mut bytes, 0, (op as u32) << 16);
        self.raw(&bytes, output_len)
    }

    /// The same with a list of pages or translations behind.
    pub(crate) fn put_list(
        &mut self,
        op: Opcode,
        input: &(impl IntoBytes + Immutable),
        list: &[u64],
    ) -> Answer {
        let mut bytes = input.as_bytes().to_vec();
        put_be32(&mut bytes, 0, (op as u32) << 16);
        list.iter().for_each(|page| bytes.extend_from_slice(&page.to_be_bytes()));
        self.raw(&bytes, 16)
    }

    /// A command that only names an object.
    pub(crate) fn object(&mut self, op: Opcode, number: u32) -> Answer {
        self.object_into(op, number, 16)
    }

    pub(crate) fn object_into(&mut self, op: Opcode, number: u32, output_len: usize) -> Answer {
        self.run(op, 0, &number.to_be_bytes(), output_len)
    }

    pub(crate) fn ok(&mut self, op: Opcode, number: u32) {
        assert_eq!(self.object(op, number).status(), Status::Ok, "{op:?} {number:#x}");
    }

    pub(crate) fn ok_mod(&mut self, op: Opcode, op_mod: u32) {
        assert_eq!(self.run(op, op_mod, &[], 16).status(), Status::Ok, "{op:?} modifier {op_mod}");
    }

    pub(crate) fn alloc(&mut self, op: Opcode) -> u32 {
        self.object(op, 0).number()
    }

    pub(crate) fn give_pages(&mut self, n: u32) {
        let mut input = FunctionIn::new();
        input.set(FunctionIn::INPUT_NUM_ENTRIES, n);
        put_be32(input.bytes_mut(), 4, PAGES_GIVE);
        let pages: Vec<u64> = (0..u64::from(n)).map(|i| self.next_page + (i << 12)).collect();
        self.next_page += u64::from(n) << 12;
        assert_eq!(self.put_list(Opcode::ManagePages, &input, &pages).status(), Status::Ok);
    }

    fn eq(&mut self, uar: u32, events: u64) -> u32 {
        let mut c = CreateEqIn::new();
        c.eqc_mut().set(Eqc::LOG_EQ_SIZE, 6).set(Eqc::UAR_PAGE, uar);
        c.set(CreateEqIn::EVENT_BITMASK_0, events);
        self.put_list(Opcode::CreateEq, &c, &[0x2000]).number()
    }

    /// An EQ that hears of page requests.
    pub(crate) fn page_eq(&mut self, uar: u32) -> u32 {
        self.eq(uar, 1 << EventType::PageRequest as u8)
    }

    pub(crate) fn cq(&mut self, eq: u32, uar: u32, log_size: u32) -> u32 {
        let mut c = CreateCqIn::new();
        c.cqc_mut().set(Cqc::LOG_CQ_SIZE, log_size).set(Cqc::UAR_PAGE, uar).set(Cqc::C_EQN, eq);
        let pages: Vec<u64> =
            (0..(64u64 << log_size).div_ceil(4096)).map(|i| 0x10_0000 + (i << 12)).collect();
        self.put_list(Opcode::CreateCq, &c, &pages).number()
    }

    pub(crate) fn pa_key(&mut self, pd: u32) -> u32 {
        let mut c = CreateMkeyIn::new();
        c.mkc_mut().set_access_mode(AccessMode::Pa).set(Mkc::PD, pd).set(Mkc::LENGTH64, 1).set(Mkc::LW, 1);
        self.put(Opcode::CreateMkey, &c, 16).number()
    }

    pub(crate) fn qp(&mut self, on: &Connection, service: ServiceType) -> u32 {
        let mut c = CreateQpIn::new();
        *c.qpc_mut() = on.qpc(service);
        self.put_list(Opcode::CreateQp, &c, &[0x4000]).number()
    }

    /// One more RC queue pair, whatever becomes of it.
    pub(crate) fn try_qp(&mut self, on: &Connection) -> Execution {
        let mut c = CreateQpIn::new();
        *c.qpc_mut() = on.qpc(ServiceType::Rc);
        let mut bytes = c.bytes().to_vec();
        put_be32(&mut bytes, 0, (Opcode::CreateQp as u32) << 16);
        bytes.extend_from_slice(&0x4000u64.to_be_bytes());
        self.fw.execute(&bytes, 16, &mut self.effects)
    }

    pub(crate) fn tis(&mut self, nic: &Nic) -> u32 {
        let mut c = CreateTisIn::new();
        c.tisc_mut().set(Tisc::TRANSPORT_DOMAIN, nic.td);
        self.put(Opcode::CreateTis, &c, 16).number()
    }

    pub(crate) fn rq(&mut self, nic: &Nic) -> u32 {
        self.put_list(Opcode::CreateRq, &nic.rq(), &[0x4000]).number()
    }

    /// A pool of 8 WQEs of 32 bytes.
    pub(crate) fn rmp(&mut self, nic: &Nic) -> u32 {
        let mut c = CreateRmpIn::new();
        c.rmpc_mut().set(Rmpc::STATE, RMP_READY);
        c.rmpc_mut().wq_mut().set(Wq::LOG_WQ_SZ, 3).set(Wq::LOG_WQ_STRIDE, 5).set(Wq::PD, nic.pd);
        self.put_list(Opcode::CreateRmp, &c, &[0x4000]).number()
    }

    /// A table of these receive queues.
    pub(crate) fn rqt(&mut self, rqns: &[u32]) -> u32 {
        let mut c = CreateRqtIn::new();
        let size = rqns.len() as u32;
        c.rqtc_mut().set(Rqtc::RQT_MAX_SIZE, size).set(Rqtc::RQT_ACTUAL_SIZE, size);
        let mut bytes = c.bytes().to_vec();
        put_be32(&mut bytes, 0, (Opcode::CreateRqt as u32) << 16);
        rqns.iter().for_each(|rqn| bytes.extend_from_slice(&rqn.to_be_bytes()));
        self.raw(&bytes, 16).number()
    }

    pub(crate) fn connection(&mut self) -> Connection {
        let uar = self.alloc(Opcode::AllocUar);
        let eq = self.eq(uar, 0);
        let cq = self.cq(eq, uar, 5);
        let pd = self.alloc(Opcode::AllocPd);
        let mut c = Connection { uar, eq, cq, pd, qp: 0 };
        c.qp = self.qp(&c, ServiceType::Rc);
        c
    }
}

/// A register is read or written by ACCESS_REGISTER.
pub(crate) fn register(b: &mut Bench, id: u32, write: bool, data: &[u8]) -> Answer {
    let mut body = vec![0; 8];
    body[2..4].copy_from_slice(&(id as u16).to_be_bytes());
    body.extend_from_slice(data);
    b.run(Opcode::AccessReg, u32::from(!write), &body, 16 + data.len())
}
