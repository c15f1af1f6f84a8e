//! Brings an adapter up to INIT_HCA and creates objects of every kind, by commands alone.

use hca_firmware::commands::{Command, Fixture, maker};
use hca_firmware::object::Kind;
use hca_spec::caps::General;
use hca_spec::cmd::{GeneralObjectIn, QueryHcaCapOut, QueryPagesOut};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::ids::Lid;
use hca_spec::qpc::ServiceType;

use super::commands::{self, Key};
use super::memory;

/// Whatever executes a command and gives its output.
pub trait Executor {
    /// Executes `input`; the output has at most `output_len` bytes.
    fn execute(&mut self, input: &[u8], output_len: usize) -> Vec<u8>;
}

/// A queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePair {
    /// Its number.
    pub number: u32,
    /// Its service type.
    pub service: ServiceType,
    /// Bus address of its buffer: the receive queue, then the send queue.
    pub buffer: u64,
    /// Bus address of its doorbell record.
    pub record: u64,
    /// Whether the receive queue is its own.
    pub own_receive_queue: bool,
    /// Which of [`Objects::srqs`] it receives from.
    pub shared: Option<usize>,
}

/// The numbers of what was created.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "each names the object of its name")]
pub struct Objects {
    pub lid: Lid,
    /// One of each kind, for templates.
    pub fixture: Fixture,
    pub uar: u32,
    pub eq: u32,
    pub cq: u32,
    pub pd: u32,
    pub xrcd: u32,
    /// Full keys: physical, pages, free, pieces.
    pub keys: [u32; 4],
    /// Basic, XRC, receive memory pool, with tag matching; 0 if the adapter has none of a kind.
    pub srqs: [u32; 4],
    /// A DC target on the receive memory pool.
    pub dct: u32,
    /// Two RC connected to each other, two UC, two UD, one RC on the shared queue, XRC, UMR, QP1, a DC initiator; and if there is a queue
    /// with tag matching, one of RC that receives from it, and two connected to each other, of which one fetches what messages announce.
    pub qps: Vec<QueuePair>,
}

/// Service types of the queue pairs, and which shared receive queue they use.
const QPS: [(ServiceType, Option<usize>); 11] = [
    (ServiceType::Rc, None),
    (ServiceType::Rc, None),
    (ServiceType::Uc, None),
    (ServiceType::Uc, None),
    (ServiceType::Ud, None),
    (ServiceType::Ud, None),
    (ServiceType::Rc, Some(0)),
    (ServiceType::Xrc, Some(1)),
    (ServiceType::RegUmr, None),
    (ServiceType::Qp1, None),
    (ServiceType::Dci, Some(2)),
];

/// The same of those that have to do with tag matching, and whether the adapter fetches data by itself for them.
const TAGGED: [(Option<usize>, bool); 3] = [(Some(3), false), (None, false), (Some(3), true)];

/// Kinds of which one is made as its template says.
const OTHERS: [Kind; 7] = [
    Kind::Dct,
    Kind::TransportDomain,
    Kind::QCounter,
    Kind::Psv,
    Kind::UserContext,
    Kind::Umem,
    Kind::GeneralObject,
];

/// Asynchronous events: all but completions (0), commands (0xa) and page requests (0xb).
const EVENTS: u64 = !(1 << 0 | 1 << 0xa | 1 << 0xb);

/// Executes a command that must succeed.
pub fn good(e: &mut dyn Executor, input: &[u8], output_len: usize) -> Vec<u8> {
    let output = e.execute(input, output_len);
    let header = OutHeader::from_prefix_or_zero(&output);
    let status = header.get(OutHeader::STATUS);
    assert_eq!(status, 0, "command {:02x?}: {header:?}", &input[..16]);
    output
}

fn made_by(kind: Kind) -> &'static Command {
    maker(kind).expect("every kind of object is made by a command")
}

/// Executes a command that makes an object; its number.
fn create(e: &mut dyn Executor, input: &[u8]) -> u32 {
    let command = commands::row_of(input).expect("a command of the adapter");
    command.made(&good(e, input, command.output)).next().expect("a number")
}

/// Executes the template of a command that makes an object, which not every adapter has; its number.
fn try_create(e: &mut dyn Executor, kind: Kind, fixture: &Fixture) -> Option<u32> {
    let command = made_by(kind);
    let answer = e.execute(&command.template(fixture), command.output);
    let status = OutHeader::from_prefix_or_zero(&answer).get(OutHeader::STATUS);
    command.made(&answer).next().filter(|_| status == 0)
}

/// ENABLE_HCA to INIT_HCA, with the pages that the firmware asks for, and some for what is made then.
pub fn bring_up(e: &mut dyn Executor) {
    /// Pages of objects: the list of a queue with tag matching takes some hundred.
    const MORE: u32 = 256;
    good(e, &commands::object(Opcode::EnableHca, 0), OutHeader::SIZE);
    let mut given = 0;
    for boot in [true, false] {
        let out = good(e, &commands::query_pages(boot), QueryPagesOut::SIZE);
        let count = QueryPagesOut::from_prefix_or_zero(&out).get(QueryPagesOut::NUM_PAGES);
        let count = count + if boot { 0 } else { MORE };
        good(e, &commands::give_pages(given, count), OutHeader::SIZE);
        given += u64::from(count);
    }
    good(e, &commands::object(Opcode::InitHca, 0), OutHeader::SIZE);
}

impl Objects {
    /// Creates everything; the queue pairs are connected by `lid` and end in RTS.
    pub fn create(e: &mut dyn Executor, lid: Lid) -> Self {
        let fixture = commands::fixture(memory::SPARE, memory::RECORDS);
        let mut o = Objects { lid, fixture, ..Objects::default() };
        o.uar = create(e, &commands::object(Opcode::AllocUar, 0));
        o.eq = create(e, &commands::create_eq(o.uar, 0, EVENTS, memory::EQ));
        o.cq = create(e, &commands::create_cq(o.uar, o.eq, memory::CQ, memory::record(0)));
        o.pd = create(e, &commands::object(Opcode::AllocPd, 0));
        o.xrcd = create(e, &commands::object(Opcode::AllocXrcd, 0));
        for (i, kind) in [Key::Physical, Key::Pages, Key::Free].into_iter().enumerate() {
            o.keys[i] = create(e, &commands::create_mkey(o.pd, kind)) << 8;
        }
        o.keys[3] = create(e, &commands::create_mkey(o.pd, Key::Pieces(o.keys[1]))) << 8;
        let xrc = Some((o.xrcd, o.cq));
        o.srqs[0] = create(e, &commands::create_srq(o.pd, None, memory::srq(0), memory::record(1)));
        o.srqs[1] = create(e, &commands::create_srq(o.pd, xrc, memory::srq(1), memory::record(2)));
        o.srqs[2] = create(e, &commands::create_rmp(o.pd, memory::srq(2), memory::record(3)));
        for (kind, number) in [
            (Kind::Uar, o.uar),
            (Kind::Eq, o.eq),
            (Kind::Cq, o.cq),
            (Kind::Pd, o.pd),
            (Kind::Xrcd, o.xrcd),
            (Kind::Mkey, o.keys[1] >> 8),
            (Kind::Srq, o.srqs[0]),
            (Kind::XrcSrq, o.srqs[1]),
            (Kind::Rmp, o.srqs[2]),
        ] {
            o.fixture.set(kind, number);
        }
        // Not every adapter matches tags.
        let mut own = o.fixture.clone();
        (own.queue, own.record) = (memory::srq(3), memory::record(4));
        o.srqs[3] = try_create(e, Kind::Xrq, &own).unwrap_or(0);
        o.fixture.set(Kind::Xrq, o.srqs[3]);
        for kind in OTHERS {
            let number = create(e, &made_by(kind).template(&o.fixture));
            o.fixture.set(kind, number);
        }
        o.dct = o.fixture.number(Kind::Dct);
        let types = good(e, &commands::general_caps(), QueryHcaCapOut::SIZE);
        o.fixture.object_types =
            QueryHcaCapOut::from_prefix_or_zero(&types).general().get(General::GENERAL_OBJ_TYPES);
        // InfiniBand ports have none of these, but send queues with BlueFlame.
        const ETHERNET: [Kind; 10] = [
            Kind::Tis,
            Kind::Sq,
            Kind::Rq,
            Kind::Rqt,
            Kind::Tir,
            Kind::FlowTable,
            Kind::FlowGroup,
            Kind::FlowCounter,
            Kind::ReformatContext,
            Kind::HeaderContext,
        ];
        for kind in ETHERNET {
            if let Some(number) = try_create(e, kind, &o.fixture) {
                o.fixture.set(kind, number);
            }
        }
        let entry = commands::of(Opcode::SetFlowTableEntry, &o.fixture);
        e.execute(&entry, OutHeader::SIZE);
        // Nor does every adapter have device memory.
        e.execute(&commands::of(Opcode::AllocMemic, &o.fixture), OutHeader::SIZE);
        for (service, srq) in QPS {
            o.create_qp(e, service, srq, false);
        }
        let tagged = if o.srqs[3] != 0 { &TAGGED[..] } else { &[] };
        for &(srq, fetches) in tagged {
            o.create_qp(e, ServiceType::Rc, srq, fetches);
        }
        o.fixture.set(Kind::Qp, o.qps[0].number);
        o.fixture.peer_qp = o.qps[1].number;
        o.fixture.peer_lid = lid;
        o.fixture.datagram_qp = o.qps[4].number;
        for i in 0..o.qps.len() {
            o.connect(e, i);
        }
        o.create_typed(e);
        o
    }

    fn create_qp(&mut self, e: &mut dyn Executor, service: ServiceType, srq: Option<usize>, fetches: bool) {
        let i = self.qps.len();
        let (buffer, record) = (memory::qp(i), memory::record(8 + i));
        let shared = srq.map(|s| self.srqs[s]);
        let input = commands::create_qp(self, service, shared, buffer, record);
        let input = if fetches { commands::fetching(input) } else { input };
        let number = create(e, &input);
        let own_receive_queue = srq.is_none() && service != ServiceType::RegUmr;
        self.qps.push(QueuePair { number, service, buffer, record, own_receive_queue, shared: srq });
    }

    /// A general object of each further type.
    fn create_typed(&mut self, e: &mut dyn Executor) {
        for input in made_by(Kind::GeneralObject).templates(&self.fixture).iter().skip(1) {
            let kind = GeneralObjectIn::from_prefix_or_zero(input).get(GeneralObjectIn::OBJ_TYPE);
            let number = create(e, input);
            self.fixture.typed_objects.push((kind, number));
        }
    }

    /// One more queue pair, in RTS.
    pub fn add(&mut self, e: &mut dyn Executor, service: ServiceType) {
        self.create_qp(e, service, None, false);
        self.connect(e, self.qps.len() - 1);
    }

    /// Takes a queue pair from RESET to RTS; its peer is its neighbour.
    fn connect(&self, e: &mut dyn Executor, i: usize) {
        for opcode in [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp] {
            good(e, &self.transition(opcode, i), OutHeader::SIZE);
        }
    }

    /// The input of a transition of queue pair `i`.
    pub fn transition(&self, opcode: Opcode, i: usize) -> Vec<u8> {
        let peer = self.qps.get(i ^ 1).map_or(0, |q| q.number);
        commands::modify_qp(self, opcode, &self.qps[i], peer)
    }
}
