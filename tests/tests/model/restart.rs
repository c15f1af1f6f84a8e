//! A start of the firmware that a driver is asked about: what it hears, what it answers, and what runs then.

use hca_driver::{Bus, Config, Dma, Hca};
use hca_model::personality::{FirmwareVersion, Personality};
use hca_model::{FirmwareConfig, HcaConfig, HcaId, Ps, World, WorldConfig};
use hca_spec::cmd::{AccessRegIn, CreateEqIn, FunctionIn, reg};
use hca_spec::command::Opcode;
use hca_spec::eqe::{Eqe, EventType, general, sync_reset};
use hca_spec::init_segment::{InitSegment, NIC_INTERFACE_DISABLED};
use hca_spec::management::{Mcam, Mcc, Mcda, Mfrl, instruction, mcam_feature, reset_level, reset_state};
use hca_spec::queue::Eqc;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::rig::HOST_MEMORY;
use hca_tests::worlds;

const PAGE: usize = 4096;
const ADAPTER: HcaId = HcaId(0);
/// [`InitSegment::NIC_INTERFACE`] in its register.
const MODE: u64 = InitSegment::NIC_INTERFACE.offset() as u64;
const MODE_SHIFT: u32 = 8;

fn kind(name: &str) -> std::sync::Arc<Personality> {
    Personality::named(name).expect("there is such a kind")
}

/// One adapter whose firmware asks drivers.
fn world() -> World {
    let mut firmware = FirmwareConfig::with_guid(0x0002_c903_00a0_0001);
    firmware.personality = kind("connectx5");
    let timing = None;
    World::new(WorldConfig {
        hcas: vec![HcaConfig { name: "hca0".into(), firmware, timing }],
        switches: Vec::new(),
        links: Vec::new(),
        subnet_manager: true,
        management_key: None,
        seed: 1,
        profile: hca_model::timing::Profile::connectx4(),
    })
    .expect("a valid topology")
}

/// Accesses a register; `None`: it was refused.
fn access<B: Bus>(hca: &mut Hca<B>, register: u32, write: bool, data: &[u8]) -> Option<Vec<u8>> {
    let mut input = AccessRegIn::new();
    input.set(AccessRegIn::REGISTER_ID, register);
    let input = [&input.bytes()[..], data].concat();
    let output = hca.execute(Opcode::AccessReg, u32::from(!write), input, 16 + data.len()).ok()?;
    Some(output[16..].to_vec())
}

fn mfrl(change: impl FnOnce(&mut Mfrl)) -> Vec<u8> {
    let mut mfrl = Mfrl::new();
    mfrl.set(Mfrl::RESET_LEVEL, reset_level::PCI_RESET);
    change(&mut mfrl);
    mfrl.bytes().to_vec()
}

fn begin<B: Bus>(hca: &mut Hca<B>) -> bool {
    access(hca, reg::MFRL, true, &mfrl(|m| _ = m.set(Mfrl::PCI_SYNC_START, 1))).is_some()
}

fn answer<B: Bus>(hca: &mut Hca<B>, answer: u32) {
    let data = mfrl(|m| _ = m.set(Mfrl::PCI_SYNC_RESP, answer));
    access(hca, reg::MFRL, true, &data).expect("an answer is taken at any time");
}

fn state<B: Bus>(hca: &mut Hca<B>) -> u32 {
    let data = access(hca, reg::MFRL, false, &[0; 8]).expect("MFRL");
    Mfrl::from_prefix_or_zero(&data).get(Mfrl::RESET_STATE)
}

/// A driver that hears, with an event queue for it.
fn hearing(simulation: &Simulation) -> (Hca<ModelBus>, <ModelBus as Bus>::Dma) {
    let config = Config { hears_of_restarts: true, command_polls: 1000, ..Config::default() };
    let mut hca = Hca::open(simulation.bus(ADAPTER, HOST_MEMORY), config).expect("it comes up");
    let uar = hca.uar().0;
    let mut ring = hca.bus_mut().dma_alloc(PAGE, PAGE).expect("memory");
    (0..64).for_each(|n| ring.store32(n * Eqe::SIZE + 0x3c, 1));
    let mut input = CreateEqIn::new();
    input.set(CreateEqIn::EVENT_BITMASK_0, 1 << EventType::General as u64);
    input.eqc_mut().set(Eqc::LOG_EQ_SIZE, 6).set(Eqc::UAR_PAGE, uar).set(Eqc::INTR, 1);
    let input = [&input.bytes()[..], &ring.bus_address().to_be_bytes()].concat();
    hca.execute(Opcode::CreateEq, 0, input, 16).expect("CREATE_EQ");
    (hca, ring)
}

/// What events say.
fn told(ring: &impl Dma) -> Vec<u8> {
    let written = (0..64).take_while(|n| ring.load32(n * Eqe::SIZE + 0x3c) & 1 == 0);
    let said = written.map(|n| {
        let mut bytes = [0; Eqe::SIZE];
        ring.read(n * Eqe::SIZE, &mut bytes);
        let eqe = Eqe::from_prefix_or_zero(&bytes);
        assert_eq!((eqe.get(Eqe::TYPE), eqe.get(Eqe::SUB_TYPE)), (0x22, general::SYNC_RESET.into()));
        eqe.get(Eqe::SYNC_RESET_STATE) as u8
    });
    said.collect()
}

/// Puts a newer version into flash; returns which.
fn stage<B: Bus>(hca: &mut Hca<B>) -> FirmwareVersion {
    let kind = kind("connectx5");
    let new = FirmwareVersion { subminor: kind.version.subminor + 1, ..kind.version };
    let image = hca_firmware::flash::image(&kind, new, &[5; 100]);
    let mcc = access(hca, reg::MCC, false, &[0; 0x20]).expect("MCC");
    let handle = Mcc::from_prefix_or_zero(&mcc).get(Mcc::UPDATE_HANDLE);
    let update = |hca: &mut Hca<B>, what| {
        let mut mcc = Mcc::new();
        mcc.set(Mcc::INSTRUCTION, what).set(Mcc::UPDATE_HANDLE, handle);
        mcc.set(Mcc::COMPONENT_SIZE, image.len() as u32);
        access(hca, reg::MCC, true, mcc.bytes()).expect("MCC");
    };
    update(hca, instruction::LOCK_UPDATE_HANDLE);
    update(hca, instruction::UPDATE_COMPONENT);
    for (piece, at) in image.chunks(128).zip((0..).step_by(128)) {
        let mut mcda = Mcda::new();
        mcda.set(Mcda::UPDATE_HANDLE, handle).set(Mcda::OFFSET, at).set(Mcda::LEN, piece.len() as u32);
        let words: Vec<u8> = piece.chunks(4).flat_map(|word| word.iter().rev().copied()).collect();
        access(hca, reg::MCDA, true, &[&mcda.bytes()[..], &words].concat()).expect("MCDA");
    }
    update(hca, instruction::VERIFY_COMPONENT);
    update(hca, instruction::ACTIVATE);
    update(hca, instruction::RELEASE_UPDATE_HANDLE);
    new
}

/// TEARDOWN_HCA.
fn close<B: Bus>(hca: &mut Hca<B>, profile: u32) {
    let mut input = FunctionIn::new();
    input.set(FunctionIn::PROFILE, profile);
    hca.execute(Opcode::TeardownHca, 0, input.bytes().to_vec(), 16).expect("TEARDOWN_HCA");
}

fn disable<B: Bus>(hca: &mut Hca<B>) {
    let word = hca.bus_mut().mmio_read32(MODE) | NIC_INTERFACE_DISABLED << MODE_SHIFT;
    hca.bus_mut().mmio_write32(MODE, word);
}

fn mode<B: Bus>(hca: &mut Hca<B>) -> u32 {
    hca.bus_mut().mmio_read32(MODE) >> MODE_SHIFT & 7
}

/// The way of the mlx5 driver: it agrees, closes fast, of which an event tells it, and disables the function. What is in flash
/// runs then.
#[test]
fn what_is_in_flash_runs_when_the_driver_has_let_go() {
    let simulation = Simulation::new(world());
    let (mut hca, ring) = hearing(&simulation);
    let new = stage(&mut hca);
    assert!(begin(&mut hca));
    simulation.run(Ps::from_ms(1));
    assert_eq!((told(&ring), state(&mut hca)), (vec![sync_reset::REQUEST], reset_state::NEGOTIATION));
    assert!(!begin(&mut hca), "it is under way");
    answer(&mut hca, 1);
    simulation.run(Ps::from_ms(1));
    assert_eq!(told(&ring), [sync_reset::REQUEST, sync_reset::NOW]);
    assert_eq!(state(&mut hca), reset_state::IN_PROGRESS);
    close(&mut hca, 2);
    assert_eq!(hca.recovered_commands(), 0, "the command's event queue is there, and tells of the end");
    assert_eq!(mode(&mut hca), 0);
    assert_ne!(simulation.world(|world, _| world.firmware_version(ADAPTER)), Some(new));
    disable(&mut hca);
    assert_eq!(mode(&mut hca), NIC_INTERFACE_DISABLED, "as the driver left it");
    assert_eq!(simulation.world(|world, _| world.firmware_version(ADAPTER)), Some(new));
    drop(hca);
    let mut hca = Hca::open(simulation.bus(ADAPTER, HOST_MEMORY), Config::default()).expect("it comes up");
    assert_eq!((state(&mut hca), mode(&mut hca)), (reset_state::IDLE, 0));
    hca.close().expect("teardown");
}

/// A driver that does not agree, one that says nothing, one that agrees and does not let go: the firmware goes on, and says why.
#[test]
fn nothing_comes_of_it() {
    let simulation = Simulation::new(world());
    let (mut hca, ring) = hearing(&simulation);
    let version = simulation.world(|world, _| world.firmware_version(ADAPTER));
    stage(&mut hca);
    assert!(begin(&mut hca));
    answer(&mut hca, 2);
    assert_eq!(state(&mut hca), reset_state::REFUSED);
    answer(&mut hca, 1);
    simulation.run(Ps::from_ms(1));
    assert_eq!(told(&ring), [sync_reset::REQUEST, sync_reset::ABORT], "too late");
    assert!(begin(&mut hca));
    simulation.run(Ps::from_ms(6000));
    assert_eq!(state(&mut hca), reset_state::NEGOTIATION_TIMEOUT);
    assert!(begin(&mut hca));
    answer(&mut hca, 1);
    simulation.run(Ps::from_ms(6000));
    assert_eq!(state(&mut hca), reset_state::UNLOAD_TIMEOUT);
    let all =
        [sync_reset::REQUEST, sync_reset::ABORT, sync_reset::REQUEST, sync_reset::REQUEST, sync_reset::NOW];
    assert_eq!(told(&ring), all);
    // What it lets go now is its own function.
    close(&mut hca, 2);
    disable(&mut hca);
    simulation.run(Ps::from_ms(1));
    assert_eq!(simulation.world(|world, _| world.firmware_version(ADAPTER)), version);
}

/// What the adapter does not have is refused: other ways and kinds of restart, and on a ConnectX-4 the whole of it.
#[test]
fn what_there_is() {
    let features = |hca: &mut Hca<ModelBus>| {
        let mcam = access(hca, reg::MCAM, false, &[0; Mcam::SIZE]).expect("MCAM");
        let restart = mcam_feature::PCI_SYNC | mcam_feature::RESET_STATE;
        Mcam::from_prefix_or_zero(&mcam).get(Mcam::MNG_FEATURE_CAP_MASK_L) & restart
    };
    let simulation = Simulation::new(world());
    let (mut hca, ring) = hearing(&simulation);
    assert_eq!(features(&mut hca), mcam_feature::PCI_SYNC | mcam_feature::RESET_STATE);
    for (what, data) in [
        ("by firmware", mfrl(|m| _ = m.set(Mfrl::PCI_SYNC_START, 2))),
        ("port alive", mfrl(|m| _ = m.set(Mfrl::PCI_SYNC_START, 1).set(Mfrl::RST_TYPE_SEL, 1))),
        ("both at once", mfrl(|m| _ = m.set(Mfrl::PCI_SYNC_START, 1).set(Mfrl::PCI_SYNC_RESP, 1))),
        ("no answer", mfrl(|m| _ = m.set(Mfrl::PCI_SYNC_RESP, 3))),
        ("at a reboot", {
            mfrl(|m| _ = m.set(Mfrl::PCI_SYNC_START, 1).set(Mfrl::RESET_LEVEL, reset_level::WARM_REBOOT))
        }),
        ("no level", mfrl(|m| _ = m.set(Mfrl::RESET_LEVEL, 0))),
    ] {
        assert!(access(&mut hca, reg::MFRL, true, &data).is_none(), "{what}");
    }
    assert_eq!((told(&ring), state(&mut hca)), (vec![], reset_state::IDLE));
    let simulation = Simulation::new(world());
    let mut hca = Hca::open(simulation.bus(ADAPTER, HOST_MEMORY), Config::default()).expect("it comes up");
    assert!(!begin(&mut hca), "nobody hears");
    let simulation = Simulation::new(worlds::one());
    let mut hca = Hca::open(simulation.bus(ADAPTER, HOST_MEMORY), Config::default()).expect("it comes up");
    assert_eq!((features(&mut hca), begin(&mut hca)), (0, false));
    assert!(access(&mut hca, reg::MFRL, true, &mfrl(|_| {})).is_some(), "a tool's way");
}

/// A driver that closes by force and disables its function: nothing is written to its memory any more.
#[test]
fn a_disabled_function_is_quiet() {
    let simulation = Simulation::new(world());
    let (mut hca, ring) = hearing(&simulation);
    close(&mut hca, 1);
    hca.execute(Opcode::QueryIssi, 0, vec![0; 16], 0x70).expect("commands are executed");
    assert_eq!(hca.recovered_commands(), 0, "and told of");
    disable(&mut hca);
    hca.execute(Opcode::QueryIssi, 0, vec![0; 16], 0x70).expect("QUERY_ISSI");
    assert_eq!((hca.recovered_commands(), told(&ring)), (1, vec![]), "done, and no event");
    drop(hca);
    Hca::open(simulation.bus(ADAPTER, HOST_MEMORY), Config::default()).expect("it comes up").close().unwrap();
}
