//! The window of tools: what they do with an adapter without its driver, and what no access may do.

use hca_driver::{Config, Hca};
use hca_model::personality::FirmwareVersion;
use hca_model::{HcaId, PortKind, PortRef, Ps, World};
use hca_spec::cmd::reg;
use hca_spec::management::{
    CLASS_REGISTER, METHOD_GET, METHOD_SET, Mcc, Mcda, Mcqs, NvVpiLinkType, OperationTlv, RegisterTlv, cr,
    icmd, instruction, semaphore, space, tlv_status, update_state, vsc,
};
use hca_spec::register::Mnvda;
use hca_tests::in_process::Simulation;
use hca_tests::rig::HOST_MEMORY;
use hca_tests::worlds;

/// The registers of the capability, as software accesses them.
struct Tool<'a> {
    world: &'a mut World,
    hca: HcaId,
}

impl Tool<'_> {
    fn register(&mut self, register: usize, value: u32) {
        let now = self.world.now();
        self.world.window_write(now, self.hca, register, value);
    }

    fn get(&mut self, space: u32, address: u32) -> u32 {
        self.register(vsc::CONTROL, space);
        self.register(vsc::ADDRESS, address);
        let now = self.world.now();
        assert_ne!(self.world.window_read(now, self.hca, vsc::ADDRESS) & vsc::FLAG, 0);
        self.world.window_read(now, self.hca, vsc::DATA)
    }

    fn put(&mut self, space: u32, address: u32, word: u32) {
        self.register(vsc::CONTROL, space);
        self.register(vsc::DATA, word);
        self.register(vsc::ADDRESS, address | vsc::FLAG);
        let now = self.world.now();
        assert_eq!(self.world.window_read(now, self.hca, vsc::ADDRESS) & vsc::FLAG, 0);
    }

    /// Accesses a register by the mailbox: status and bytes.
    fn access(&mut self, register: u32, method: u32, data: &[u8]) -> (u32, Vec<u8>) {
        self.put(space::SEMAPHORES, semaphore::ICMD, 77);
        assert_eq!(self.get(space::SEMAPHORES, semaphore::ICMD), 77);
        let mut operation = OperationTlv::new();
        operation.set(OperationTlv::TYPE, 1).set(OperationTlv::LEN, 4).set(OperationTlv::METHOD, method);
        operation.set(OperationTlv::REGISTER_ID, register).set(OperationTlv::CLASS, CLASS_REGISTER);
        let mut tlv = RegisterTlv::new();
        tlv.set(RegisterTlv::TYPE, 3).set(RegisterTlv::LEN, data.len() as u32 / 4 + 1);
        let mailbox = [&operation.bytes()[..], tlv.bytes(), data].concat();
        for (at, word) in (icmd::MAILBOX..).step_by(4).zip(mailbox.chunks(4)) {
            self.put(space::ICMD, at, u32::from_be_bytes(word.try_into().unwrap()));
        }
        self.put(space::ICMD, icmd::CONTROL, icmd::REGISTER << 16 | icmd::BUSY);
        assert_eq!(self.get(space::ICMD, icmd::CONTROL), icmd::REGISTER << 16, "done");
        let words = (0..mailbox.len() as u32).step_by(4);
        let out: Vec<u8> =
            words.flat_map(|at| self.get(space::ICMD, icmd::MAILBOX + at).to_be_bytes()).collect();
        self.put(space::SEMAPHORES, semaphore::ICMD, 0);
        (OperationTlv::from_prefix_or_zero(&out).get(OperationTlv::STATUS), out[0x14..].to_vec())
    }

    fn set(&mut self, register: u32, data: &[u8]) -> Vec<u8> {
        let (status, out) = self.access(register, METHOD_SET, data);
        assert_eq!(status, tlv_status::OK, "{register:#x}");
        out
    }

    /// What `mstconfig set LINK_TYPE_P1=` does.
    fn set_link_type(&mut self, kind: u32) {
        let mut header = Mnvda::new();
        header.set(Mnvda::LENGTH, 4).set(Mnvda::TYPE_CLASS, 1).set(Mnvda::PARAMETER, 1 << 16 | 0x12);
        let mut link = NvVpiLinkType::new();
        link.set(NvVpiLinkType::DEFAULT_LINK_TYPE, kind);
        self.set(reg::MNVDA, &[&header.bytes()[..], link.bytes()].concat());
    }

    fn update(&mut self, what: u32, handle: u32, size: u32) {
        let mut mcc = Mcc::new();
        mcc.set(Mcc::INSTRUCTION, what).set(Mcc::UPDATE_HANDLE, handle).set(Mcc::COMPONENT_SIZE, size);
        self.set(reg::MCC, mcc.bytes());
    }
}

fn run(world: &mut World, ms: u64) {
    let until = world.now() + Ps::from_ms(ms);
    world.advance(until);
}

/// The link layer that was set holds from the firmware's next start on, not from a reset of the function on; a link between
/// ports of two kinds stays dark, and one between two that have both changed carries data of the other kind.
#[test]
fn the_link_layer_changes_with_the_next_start() {
    let mut world = worlds::two(0.0, 1);
    let [a, b] = [HcaId(0), HcaId(1)];
    run(&mut world, 500);
    assert!(world.link_is_up(0));
    Tool { world: &mut world, hca: a }.set_link_type(2);
    let now = world.now();
    world.reset(now, a);
    run(&mut world, 500);
    assert_eq!((world.kind_of_ports(a), world.link_is_up(0)), (PortKind::InfiniBand, true));
    let now = world.now();
    world.restart_firmware(now, a);
    run(&mut world, 500);
    assert_eq!((world.kind_of_ports(a), world.link_is_up(0)), (PortKind::Ethernet, false), "two kinds");
    Tool { world: &mut world, hca: b }.set_link_type(2);
    let now = world.now();
    world.restart_firmware(now, b);
    run(&mut world, 500);
    assert_eq!((world.port_kind(PortRef::of_hca(b, 1)), world.link_is_up(0)), (PortKind::Ethernet, true));
    // And back.
    for hca in [a, b] {
        Tool { world: &mut world, hca }.set(reg::MNVIA, &[0; 8]);
        let now = world.now();
        world.restart_firmware(now, hca);
    }
    run(&mut world, 500);
    assert_eq!((world.kind_of_ports(a), world.link_is_up(0)), (PortKind::InfiniBand, true));
    let simulation = Simulation::new(world);
    let hca = Hca::open(simulation.bus(a, HOST_MEMORY), Config::default()).expect("the adapter comes up");
    assert_eq!(hca.close().expect("teardown").free_memory(), HOST_MEMORY);
}

/// An image by the mailbox: it runs from the next start on, and the initialization segment says so.
#[test]
fn an_update() {
    let mut world = worlds::one();
    let hca = HcaId(0);
    let old = world.firmware_version(hca).unwrap();
    let kind = hca_model::personality::Personality::default_kind();
    let new = FirmwareVersion { subminor: old.subminor + 1, ..old };
    let image = hca_firmware::flash::image(&kind, new, &[5; 300]);
    let mut tool = Tool { world: &mut world, hca };
    let (_, mcc) = tool.access(reg::MCC, METHOD_GET, &[0; 0x20]);
    let handle = Mcc::from_prefix_or_zero(&mcc).get(Mcc::UPDATE_HANDLE);
    tool.update(instruction::LOCK_UPDATE_HANDLE, handle, 0);
    tool.update(instruction::UPDATE_COMPONENT, handle, image.len() as u32);
    for (piece, at) in image.chunks(128).zip((0..).step_by(128)) {
        let mut mcda = Mcda::new();
        mcda.set(Mcda::UPDATE_HANDLE, handle).set(Mcda::OFFSET, at).set(Mcda::LEN, piece.len() as u32);
        let words: Vec<u8> = piece.chunks(4).flat_map(|word| word.iter().rev().copied()).collect();
        tool.set(reg::MCDA, &[&mcda.bytes()[..], &words].concat());
    }
    tool.update(instruction::VERIFY_COMPONENT, handle, 0);
    tool.update(instruction::ACTIVATE, handle, 0);
    tool.update(instruction::RELEASE_UPDATE_HANDLE, handle, 0);
    let (_, mcqs) = tool.access(reg::MCQS, METHOD_GET, &[0; 0x10]);
    let state = Mcqs::from_prefix_or_zero(&mcqs).get(Mcqs::COMPONENT_UPDATE_STATE);
    assert_eq!((state, world.firmware_version(hca)), (update_state::ACTIVE_PENDING_RESET, Some(old)));
    let now = world.now();
    world.reset(now, hca);
    assert_eq!(world.firmware_version(hca), Some(old), "a reset of the function is no start");
    world.restart_firmware(now, hca);
    assert_eq!(world.firmware_version(hca), Some(new));
    let mut word = [0; 4];
    world.mmio_read(now, hca, 4, &mut word);
    assert_eq!(u16::from_be_bytes([word[2], word[3]]), new.subminor);
}

/// Anything in the window: the adapter and its neighbour live on.
#[test]
fn anything_in_the_window() {
    let spaces = [
        0,
        space::ICMD_EXT,
        space::CR,
        space::ICMD,
        4,
        space::CR_PROTECTED,
        space::SCAN,
        space::SEMAPHORES,
        0xffff,
    ];
    let places =
        [icmd::CONTROL, icmd::MAILBOX, icmd::MAILBOX + 0x33c, icmd::MAILBOX + 0x340, cr::HARDWARE_ID];
    let registers = [
        reg::MNVDA,
        reg::MCC,
        reg::MCDA,
        reg::MCQI,
        reg::MTMP,
        reg::PTYS,
        reg::PAOS,
        reg::PDDR,
        reg::PMAOS,
        reg::PPCNT,
    ];
    for seed in 1..=40u64 {
        let mut world = worlds::two(0.0, seed);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..2000 {
            let r = random();
            let now = world.now();
            let value = random() as u32;
            let hca = HcaId(0);
            match r % 16 {
                0..4 => world.window_write(now, hca, vsc::CONTROL, spaces[(r >> 8) as usize % spaces.len()]),
                4..7 => world.window_write(now, hca, vsc::ADDRESS, value),
                7..10 => {
                    let at = places[(r >> 8) as usize % places.len()] | (r >> 16) as u32 & 0xfc;
                    world.window_write(now, hca, vsc::ADDRESS, at | value & vsc::FLAG);
                }
                10..12 => world.window_write(now, hca, vsc::DATA, value),
                12 => world.window_write(now, hca, (r >> 8) as usize % 0x20, value),
                13 => _ = world.window_read(now, hca, (r >> 8) as usize % 0x20),
                14 => {
                    // A mailbox that makes sense up to its data.
                    world.window_write(now, hca, vsc::CONTROL, space::ICMD);
                    let register = registers[(r >> 8) as usize % registers.len()];
                    let method = 1 + (r >> 20) as u32 % 2;
                    let words =
                        [1 << 27 | 4 << 16, register << 16 | method << 8 | 1, 0, 0, 3 << 27 | 0x44 << 16];
                    let words = words.into_iter().chain([value & 0x00ff_00ff, 0, value, r as u32 & 0xff]);
                    for (word, at) in words.zip((icmd::MAILBOX..).step_by(4)) {
                        world.window_write(now, hca, vsc::DATA, word);
                        world.window_write(now, hca, vsc::ADDRESS, at | vsc::FLAG);
                    }
                    world.window_write(now, hca, vsc::DATA, icmd::REGISTER << 16 | icmd::BUSY);
                    world.window_write(now, hca, vsc::ADDRESS, icmd::CONTROL | vsc::FLAG);
                }
                _ => world.restart_firmware(now, hca),
            }
        }
        run(&mut world, 10);
        let now = world.now();
        world.reset(now, HcaId(0));
        assert_eq!(world.window_peek(HcaId(0), vsc::SEMAPHORE), 0, "freed");
        let simulation = Simulation::new(world);
        let hca = Hca::open(simulation.bus(HcaId(1), HOST_MEMORY), Config::default()).expect("it comes up");
        hca.close().expect("teardown");
    }
}
