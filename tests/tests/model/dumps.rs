//! Resource dumps in the way of a driver: into memory, under a key of everything.

use hca_driver::{Bus, Config, CqConfig, Dma, Hca, QpConfig};
use hca_model::HcaId;
use hca_spec::cmd::{AccessRegIn, QueryQpOut, reg};
use hca_spec::command::Opcode;
use hca_spec::dump::{DumpCommand, DumpInfo, DumpObject, ResourceDump};
use hca_spec::qpc::{QpState, Qpc};
use hca_tests::in_process::Simulation;
use hca_tests::rig::HOST_MEMORY;
use hca_tests::worlds;

/// Numbers of the menu (`specs/doc/management.md`).
const FULL_CQC: u32 = 0x1002;
const PRM_QUERY_QP: u32 = 0x1101;
/// Where the first object of a dump begins.
const FIRST: usize = DumpInfo::SIZE + DumpCommand::SIZE;

/// The bytes of one object, dumped at once.
fn object<B: Bus>(hca: &mut Hca<B>, key: u32, memory: &B::Dma, kind: u32, number: u32) -> Vec<u8> {
    let mut request = ResourceDump::new();
    request.set(ResourceDump::SEGMENT_TYPE, kind).set(ResourceDump::INDEX1, number);
    request.set(ResourceDump::MKEY, key).set(ResourceDump::DUMP_SIZE, 4096);
    request.set(ResourceDump::ADDRESS, memory.bus_address());
    let mut input = AccessRegIn::new();
    input.set(AccessRegIn::REGISTER_ID, reg::RESOURCE_DUMP);
    let input = [&input.bytes()[..], request.bytes()].concat();
    let output = hca.execute(Opcode::AccessReg, 0, input, 16 + ResourceDump::SIZE).expect("RESOURCE_DUMP");
    let answer = ResourceDump::from_prefix_or_zero(&output[16..]);
    assert_eq!(answer.get(ResourceDump::MORE_DUMP), 0);
    let mut bytes = vec![0; answer.get(ResourceDump::DUMP_SIZE) as usize];
    memory.read(0, &mut bytes);
    let head = DumpObject::from_prefix_or_zero(&bytes[FIRST..]);
    assert_eq!((head.get(DumpObject::OBJECT_KIND), head.get(DumpObject::OBJECT_INDEX1)), (kind, number));
    let end = FIRST + head.get(DumpObject::OBJECT_LENGTH_DW) as usize * 4;
    bytes[FIRST + DumpObject::SIZE..end].to_vec()
}

/// What is dumped is what a query says, moving parts included.
#[test]
fn contexts_are_those_of_queries() {
    let simulation = Simulation::new(worlds::one());
    let mut hca = Hca::open(simulation.bus(HcaId(0), HOST_MEMORY), Config::default()).expect("it comes up");
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let key = hca.register_all(pd).expect("CREATE_MKEY").key.0;
    let memory = hca.bus_mut().dma_alloc(4096, 4096).expect("memory");
    let mut cq = hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
    cq.arm(hca.bus_mut(), false);
    let mut qp = hca.create_qp(&QpConfig::rc(pd, &cq, &cq)).expect("CREATE_QP");
    hca.qp_to_init(&mut qp, &Default::default()).expect("RST2INIT");
    let dumped = object(&mut hca, key, &memory, FULL_CQC, cq.number().0);
    assert_eq!(dumped, hca.query_cq(&cq).expect("QUERY_CQ").bytes());
    let dumped = object(&mut hca, key, &memory, PRM_QUERY_QP, qp.number().0);
    let state = QueryQpOut::from_prefix_or_zero(&dumped).qpc().get(Qpc::STATE);
    assert_eq!(state, QpState::Init as u32);
}
