//! Rubbish in, status out: seeded streams of random, damaged and well-formed commands. Nothing may
//! panic, every answer keeps to its bounds, and a refusal changes nothing.

use hca_firmware::{Config, Effect, Execution, Firmware, Snapshot, State};
use hca_spec::cmd::{
    CreateCqIn, CreateEqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, CreateSrqIn, FunctionIn, MadIfc as MadIn,
    McgIn, ModifyCqIn, ModifyQpIn, ModifyRmpIn, PAGES_GIVE, PAGES_INIT, SetHcaCapIn,
};
use hca_spec::command::Opcode;
use hca_spec::dct::{CreateDctIn, Dctc};
use hca_spec::mad::Mad;
use hca_spec::mkc::{AccessMode, Mkc};
use hca_spec::qpc::Qpc;
use hca_spec::queue::{Cqc, Eqc, RMP_READY, Rmpc, Srqc, Wq};
use hca_spec::{be32, put_be32};

/// SplitMix64: small, seeded, good enough to be rubbish.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Numbers of objects that were made, so that commands often hit something.
#[derive(Default)]
struct Made {
    eqs: Vec<u32>,
    cqs: Vec<u32>,
    qps: Vec<u32>,
    srqs: Vec<u32>,
    mkeys: Vec<u32>,
    pds: Vec<u32>,
    xrcds: Vec<u32>,
    dcts: Vec<u32>,
    uars: Vec<u32>,
}

impl Made {
    fn of(&mut self, op: Opcode) -> Option<&mut Vec<u32>> {
        use Opcode::*;
        Some(match op {
            CreateEq | DestroyEq | QueryEq => &mut self.eqs,
            CreateCq | DestroyCq | QueryCq | ModifyCq => &mut self.cqs,
            CreateSrq | CreateXrcSrq | CreateRmp | DestroySrq | QuerySrq | ArmRq | DestroyXrcSrq
            | QueryXrcSrq | ArmXrcSrq | ModifyRmp | DestroyRmp | QueryRmp => &mut self.srqs,
            CreateDct | DestroyDct | DrainDct | QueryDct | ArmDctForKeyViolation => &mut self.dcts,
            CreateMkey | DestroyMkey | QueryMkey => &mut self.mkeys,
            AllocPd | DeallocPd => &mut self.pds,
            AllocXrcd | DeallocXrcd => &mut self.xrcds,
            AllocUar | DeallocUar => &mut self.uars,
            MadIfc => return None,
            op if (0x500..0x510).contains(&(op as u16)) => &mut self.qps,
            AttachToMcg | DetachFromMcg => &mut self.qps,
            _ => return None,
        })
    }
}

fn any(rng: &mut Rng, of: &[u32]) -> u32 {
    if of.is_empty() || rng.one_in(20) { rng.below(0x1000) as u32 } else { rng.pick(of) }
}

/// A command that is well-formed, on objects that are mostly there.
fn command(rng: &mut Rng, made: &mut Made) -> Vec<u8> {
    use Opcode::*;
    let op = rng.pick(Opcode::ALL);
    let (uar, pd) = (any(rng, &made.uars), any(rng, &made.pds));
    let (eq, cq) = (any(rng, &made.eqs), any(rng, &made.cqs));
    let (srq, xrcd) = (any(rng, &made.srqs), any(rng, &made.xrcds));
    let number = match made.of(op) {
        Some(list) => {
            let list = list.clone();
            any(rng, &list)
        }
        None => 0,
    };
    let log_size = rng.below(7) as u32;
    let mut bytes = match op {
        CreateEq => {
            let mut c = CreateEqIn::new();
            c.eqc_mut().set(Eqc::LOG_EQ_SIZE, log_size).set(Eqc::UAR_PAGE, uar);
            c.set(CreateEqIn::EVENT_BITMASK_0, 1 << rng.below(16));
            c.bytes().to_vec()
        }
        CreateCq => {
            let mut c = CreateCqIn::new();
            c.cqc_mut().set(Cqc::LOG_CQ_SIZE, log_size).set(Cqc::UAR_PAGE, uar).set(Cqc::C_EQN, eq);
            c.bytes().to_vec()
        }
        ModifyCq => {
            let mut c = ModifyCqIn::new();
            c.set(ModifyCqIn::FIELD_SELECT, rng.below(32) as u32)
                .set(ModifyCqIn::OP_MOD, rng.below(3) as u32);
            c.cqc_mut().set(Cqc::LOG_CQ_SIZE, log_size).set(Cqc::C_EQN, eq);
            c.bytes().to_vec()
        }
        CreateQp => {
            let mut c = CreateQpIn::new();
            let q = c.qpc_mut();
            q.set(Qpc::ST, rng.pick(&[0, 1, 2, 3, 5, 7, 8, 12])).set(Qpc::PD, pd).set(Qpc::UAR_PAGE, uar);
            q.set(Qpc::CQN_SND, cq).set(Qpc::CQN_RCV, cq).set(Qpc::SRQN_RMPN, srq).set(Qpc::XRCD, xrcd);
            q.set(Qpc::RQ_TYPE, rng.pick(&[0, 1, 3])).set(Qpc::LOG_SQ_SIZE, log_size);
            c.bytes().to_vec()
        }
        CreateSrq | CreateXrcSrq => {
            let mut c = CreateSrqIn::new();
            let s = c.srqc_mut();
            s.set(Srqc::LOG_SRQ_SIZE, log_size).set(Srqc::PD, pd).set(Srqc::CQN, cq).set(Srqc::XRCD, xrcd);
            c.bytes().to_vec()
        }
        CreateDct => {
            let mut c = CreateDctIn::new();
            let d = c.dctc_mut();
            d.set(Dctc::PD, pd).set(Dctc::CQN, cq).set(Dctc::SRQN, srq).set(Dctc::MTU, 3).set(Dctc::PORT, 1);
            c.bytes().to_vec()
        }
        CreateRmp => {
            let mut c = CreateRmpIn::new();
            c.rmpc_mut().set(Rmpc::STATE, RMP_READY);
            c.rmpc_mut().wq_mut().set(Wq::LOG_WQ_STRIDE, 5).set(Wq::LOG_WQ_SZ, log_size).set(Wq::PD, pd);
            c.bytes().to_vec()
        }
        ModifyRmp => {
            let mut c = ModifyRmpIn::new();
            c.set(ModifyRmpIn::RMP_STATE, RMP_READY).set(ModifyRmpIn::BITMASK_LWM, 1);
            c.rmpc_mut().set(Rmpc::STATE, RMP_READY);
            c.rmpc_mut().wq_mut().set(Wq::LWM, log_size);
            c.bytes().to_vec()
        }
        CreateMkey => {
            let mut c = CreateMkeyIn::new();
            let mode = rng.pick(&[AccessMode::Pa, AccessMode::Mtt, AccessMode::Klm, AccessMode::Ksm]);
            c.mkc_mut().set_access_mode(mode).set(Mkc::PD, pd).set(Mkc::FREE, rng.below(2) as u32);
            c.mkc_mut().set(Mkc::LOG_PAGE_SIZE, 12).set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 8);
            c.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, rng.below(4) as u32);
            c.bytes().to_vec()
        }
        SetHcaCap => SetHcaCapIn::new().bytes().to_vec(),
        MadIfc => {
            let mut c = MadIn::new();
            c.set(MadIn::PORT, 1).set(MadIn::OP_MOD, rng.below(4) as u32);
            c.mad_mut().set(Mad::BASE_VERSION, 1).set(Mad::METHOD, rng.pick(&[1, 2, 3, 7]));
            c.mad_mut().set(Mad::MGMT_CLASS, rng.pick(&[1, 0x81, 4, 9]));
            c.mad_mut()
                .set(Mad::ATTRIBUTE_ID, rng.pick(&[1, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x1d]));
            c.bytes().to_vec()
        }
        AttachToMcg | DetachFromMcg => {
            let mut c = McgIn::new();
            c.set(McgIn::GID_H, 0xff00 << 48).set(McgIn::GID_L, rng.below(4));
            c.bytes().to_vec()
        }
        op if (0x502..=0x50e).contains(&(op as u16)) => {
            let mut c = ModifyQpIn::new();
            c.set(ModifyQpIn::OPT_PARAM_MASK, rng.next() as u32 & rng.next() as u32 & rng.next() as u32);
            let st = rng.pick(&[0, 1, 2, 3, 7, 8, 12]);
            c.qpc_mut().set(Qpc::ST, st).set(Qpc::PD, pd).set(Qpc::CQN_SND, cq).set(Qpc::CQN_RCV, cq);
            c.qpc_mut().set(Qpc::MTU, 3).set(Qpc::SRQN_RMPN, srq);
            c.bytes().to_vec()
        }
        _ => vec![0; 0x20],
    };
    put_be32(&mut bytes, 0, (op as u32) << 16);
    if !matches!(op, SetHcaCap | MadIfc | CreateQp) && number != 0 {
        let word = be32(&bytes, 8);
        put_be32(&mut bytes, 8, word & 0xff00_0000 | number);
    }
    if bytes.len() == 0x110 {
        (0..rng.below(8)).for_each(|i| bytes.extend_from_slice(&(0x1000 * (i + 1)).to_be_bytes()));
    }
    bytes
}

/// Bits flipped, words replaced, ends cut off.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len().max(1) as u64) as usize;
        match rng.below(3) {
            0 => {
                let bit = 1 << rng.below(8);
                bytes[at] ^= bit;
            }
            1 => {
                let value = rng.pick(&[0, 1, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX]);
                put_be32(bytes, at & !3, value);
            }
            _ => bytes.truncate((at & !3).max(1)),
        }
    }
}

fn power_on() -> Firmware {
    let mut fw = Firmware::new(Config::default());
    let mut run = |input: &[u8], room| {
        let Execution::Done(out) = fw.execute(input, room, &mut Vec::new()) else { panic!("waits") };
        assert_eq!(out[0], 0);
        out
    };
    let bare = |op: Opcode, op_mod: u32| {
        let mut input = FunctionIn::new();
        put_be32(input.bytes_mut(), 0, (op as u32) << 16);
        put_be32(input.bytes_mut(), 4, op_mod);
        input.bytes().to_vec()
    };
    run(&bare(Opcode::EnableHca, 0), 16);
    let pages = be32(&run(&bare(Opcode::QueryPages, PAGES_INIT), 16), 0xc);
    let mut give = bare(Opcode::ManagePages, PAGES_GIVE);
    put_be32(&mut give, 0xc, pages);
    (0..u64::from(pages)).for_each(|i| give.extend_from_slice(&(i << 12).to_be_bytes()));
    run(&give, 16);
    run(&bare(Opcode::InitHca, 0), 16);
    fw
}

/// Runs a stream of commands; how many were executed, and the most objects that there were.
fn stream(seed: u64, commands: usize, rubbish: bool) -> (usize, Snapshot) {
    let mut rng = Rng(seed);
    let mut fw = power_on();
    let mut made = Made::default();
    let (mut executed, mut most) = (0, Snapshot::default());
    for _ in 0..commands {
        if fw.state() != State::Initialized {
            fw = power_on();
            made = Made::default();
        }
        let mut input = command(&mut rng, &mut made);
        let teardown = matches!(be32(&input, 0) >> 16, 0x102..=0x105);
        if teardown && !rng.one_in(500) {
            continue;
        }
        if rubbish {
            damage(&mut rng, &mut input);
        }
        let room = if rng.one_in(8) { rng.below(0x1100) as usize } else { 0x1010 };
        let mut effects = Vec::new();
        let before = fw.resources().now;
        let Execution::Done(output) = fw.execute(&input, room, &mut effects) else { continue };
        assert!(output.len() <= room, "{} bytes into {room}", output.len());
        let ok = output.first() == Some(&0);
        if ok {
            executed += 1;
        } else {
            assert!(room < 8 || be32(&output, 4) != 0, "a refusal has a syndrome");
            assert_eq!(fw.resources().now, before, "a refusal changes nothing: {input:x?}");
            let asks = |e: &Effect| matches!(e, Effect::PageRequest { .. });
            assert!(effects.iter().all(asks), "a refusal has no effects: {effects:?}");
        }
        let op = Opcode::from_u16((be32(&input, 0) >> 16) as u16);
        if let Some(list) = op.and_then(|op| made.of(op))
            && ok
            && output.len() >= 12
            && be32(&output, 8) != 0
        {
            list.push(be32(&output, 8) & 0xff_ffff);
        }
        let now = fw.resources().now;
        most.qps = most.qps.max(now.qps);
        most.cqs = most.cqs.max(now.cqs);
        most.srqs = most.srqs.max(now.srqs);
        most.mkeys = most.mkeys.max(now.mkeys);
    }
    (executed, most)
}

#[test]
fn well_formed_commands_in_any_order() {
    let mut most = Snapshot::default();
    for seed in 0..20 {
        let (executed, m) = stream(seed, 4_000, false);
        assert!(executed > 100, "seed {seed}: the stream reaches the commands ({executed} executed)");
        most.qps = most.qps.max(m.qps);
        most.srqs = most.srqs.max(m.srqs);
        most.mkeys = most.mkeys.max(m.mkeys);
    }
    assert!(most.qps > 0 && most.srqs > 0 && most.mkeys > 0, "{most:?}");
}

#[test]
fn damaged_commands() {
    for seed in 100..140 {
        stream(seed, 4_000, true);
    }
}

#[test]
fn noise() {
    let mut rng = Rng(7);
    let mut fw = power_on();
    let mut refused = 0;
    for _ in 0..100_000 {
        let len = rng.below(0x180) as usize;
        let mut input: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        // A known opcode in every other one: noise alone would hardly ever hit one.
        if rng.one_in(2) {
            let op = rng.pick(Opcode::ALL);
            if !matches!(op, Opcode::TeardownHca | Opcode::DisableHca) {
                put_be32(&mut input, 0, (op as u32) << 16);
            }
        }
        let room = rng.below(0x200) as usize;
        if let Execution::Done(output) = fw.execute(&input, room, &mut Vec::new()) {
            assert!(output.len() <= room);
            refused += usize::from(output.first().is_some_and(|status| *status != 0));
        }
    }
    assert!(refused > 10_000);
}

#[test]
fn every_length_of_every_command() {
    let mut fw = power_on();
    for op in Opcode::ALL.iter().filter(|op| !matches!(op, Opcode::TeardownHca | Opcode::DisableHca)) {
        for len in (0..0x120).chain([0x210, 0x1010, 0x1100]) {
            let mut input = vec![0xff; len];
            put_be32(&mut input, 0, (*op as u32) << 16);
            for room in [0, 4, 8, 15, 16, 0x110] {
                if let Execution::Done(output) = fw.execute(&input, room, &mut Vec::new()) {
                    assert!(output.len() <= room);
                }
            }
        }
    }
}
