//! Device memory. Source: "ALLOC_MEMIC", "DEALLOC_MEMIC" as the mlx5 driver uses them; the public manual does not have them.

use hca_spec::caps::DeviceMemory;
use hca_spec::cmd::{
    AllocMemicIn, AllocMemicOut, DeallocMemicIn, ModifyMemicIn, ModifyMemicOut, modify_memic,
};
use hca_spec::command::Status;

use super::call::{done, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource};
use crate::firmware::Firmware;

/// The driver gives pages of BAR0, the adapter puts the piece there. `NoResources` has the stock driver try other pages.
pub(super) fn alloc(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const RANGE: Failure = bad_param(
        "ALLOC_MEMIC: range_start_addr, range_size: must be whole pages of the window of device memory",
    );
    const SIZE: Failure = bad_param(
        "ALLOC_MEMIC: memic_size: no multiple of the smallest piece, or more than the largest or the range",
    );
    const ALIGNMENT: Failure =
        bad_param("ALLOC_MEMIC: log_memic_addr_alignment: more than log_max_memic_addr_alignment");
    const TAKEN: Failure =
        Failure::new(Status::NoResources, "ALLOC_MEMIC: range_start_addr: another piece has these pages");
    let alloc = call.view::<AllocMemicIn>()?;
    let capabilities = fw.personality().capabilities.device_memory;
    let start = alloc.get(AllocMemicIn::RANGE_START_ADDR);
    let (range, size) = (alloc.get(AllocMemicIn::RANGE_SIZE), alloc.get(AllocMemicIn::MEMIC_SIZE));
    // A page is aligned as well as any piece may ask for.
    let alignment = alloc.get(AllocMemicIn::LOG_MEMIC_ADDR_ALIGNMENT);
    let most = capabilities.get(DeviceMemory::LOG_MAX_MEMIC_ADDR_ALIGNMENT);
    if alignment > most {
        return Err(ALIGNMENT.got(alignment).limit(most));
    }
    if !fw.icm.device_memory.is_range(start, range.into()) {
        return Err(RANGE.got(start));
    }
    let unit = 1 << capabilities.get(DeviceMemory::LOG_MIN_MEMIC_ALLOC_SIZE);
    let most = range.min(capabilities.get(DeviceMemory::MAX_MEMIC_SIZE));
    if size == 0 || !size.is_multiple_of(unit) || size > most {
        return Err(SIZE.got(size).limit(most));
    }
    if !fw.icm.device_memory.allocate(start, range.into(), size.into()) {
        return Err(TAKEN.got(start));
    }
    Ok(reply(AllocMemicOut::new().set(AllocMemicOut::MEMIC_START_ADDR, start)))
}

/// A key that names the piece finds nothing there any more.
pub(super) fn dealloc(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure =
        bad_resource("DEALLOC_MEMIC: memic_start_addr: no piece of device memory begins there");
    const SIZE: Failure = bad_param("DEALLOC_MEMIC: memic_size: the piece has another");
    const OPERATIONS: Failure = Failure::new(
        Status::BadResourceState,
        "DEALLOC_MEMIC: memic_start_addr: operations on the piece have addresses (MODIFY_MEMIC)",
    );
    let dealloc = call.view::<DeallocMemicIn>()?;
    let start = dealloc.get(DeallocMemicIn::MEMIC_START_ADDR);
    let size = dealloc.get(DeallocMemicIn::MEMIC_SIZE);
    let len = fw.icm.device_memory.len_at(start).ok_or(NONE.got(start))?;
    if u64::from(size) != len {
        return Err(SIZE.got(size).exactly(len));
    }
    let operations = fw.icm.device_memory.operations_at(start).unwrap_or(0);
    if operations != 0 {
        return Err(OPERATIONS.got(operations));
    }
    fw.icm.device_memory.free(start);
    Ok(done())
}

/// Whether pieces have operations: those of a ConnectX-6 Dx.
pub(super) fn has_operations(fw: &Firmware) -> bool {
    fw.personality().capabilities.device_memory.get(DeviceMemory::MEMIC_OPERATIONS) != 0
}

/// Gives an operation on a piece addresses, or takes them away. A second time is answered like the first.
pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure =
        bad_resource("MODIFY_MEMIC: memic_start_addr: no piece of device memory begins there");
    const MODE: Failure = bad_param("MODIFY_MEMIC: op_mod must be 0 (addresses) or 1 (no longer)");
    const OPERATION: Failure =
        bad_param("MODIFY_MEMIC: memic_operation_type: there is no such operation (memic_operations)");
    const UNUSED: Failure =
        bad_resource("MODIFY_MEMIC: memic_operation_type: that operation on the piece has no addresses");
    let modify = call.view::<ModifyMemicIn>()?;
    let (mode, start) = (modify.get(ModifyMemicIn::OP_MOD), modify.get(ModifyMemicIn::MEMIC_START_ADDR));
    let operation = modify.get(ModifyMemicIn::MEMIC_OPERATION_TYPE);
    let memory = &mut fw.icm.device_memory;
    if !memory.has_operation(operation) {
        return Err(OPERATION.got(operation));
    }
    let bit = 1_u32.checked_shl(operation).unwrap_or(0);
    let operations = memory.operations_at(start).ok_or(NONE.got(start))?;
    match mode {
        modify_memic::ALLOC => memory.set_operations(start, operations | bit),
        modify_memic::DEALLOC if operations & bit == 0 => return Err(UNUSED.got(operation)),
        modify_memic::DEALLOC => memory.set_operations(start, operations & !bit),
        _ => return Err(MODE.got(mode)),
    }
    let mut out = ModifyMemicOut::new();
    if mode == modify_memic::ALLOC {
        out.set(ModifyMemicOut::MEMIC_OPERATION_ADDR, memory.operation_address(start, operation));
    }
    Ok(reply(&out))
}

/// Where the templates' piece lies: the window's begin, of every kind of adapter that has one.
const START: u64 = (32 << 20) - (256 << 10);
/// Its bytes.
const SIZE: u32 = 4096;

/// ALLOC_MEMIC: a page.
pub(super) fn alloc_template(_: &Fixture) -> Vec<u8> {
    let mut alloc = AllocMemicIn::new();
    alloc.set(AllocMemicIn::RANGE_START_ADDR, START).set(AllocMemicIn::RANGE_SIZE, SIZE);
    alloc.set(AllocMemicIn::MEMIC_SIZE, SIZE).bytes().to_vec()
}

/// DEALLOC_MEMIC: that page.
pub(super) fn dealloc_template(_: &Fixture) -> Vec<u8> {
    let mut dealloc = DeallocMemicIn::new();
    dealloc
        .set(DeallocMemicIn::MEMIC_START_ADDR, START)
        .set(DeallocMemicIn::MEMIC_SIZE, SIZE)
        .bytes()
        .to_vec()
}

/// MODIFY_MEMIC: addresses at which that page's bytes are incremented.
pub(super) fn modify_template(_: &Fixture) -> Vec<u8> {
    let mut modify = ModifyMemicIn::new();
    modify.set(ModifyMemicIn::MEMIC_START_ADDR, START).bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use crate::personality::Personality;
    use crate::profile::Config;
    use hca_spec::cmd::CreateMkeyIn;
    use hca_spec::command::Opcode;
    use hca_spec::mkc::{ANY_QP, AccessMode, Mkc};

    fn bench() -> Bench {
        let personality = Personality::named("connectx5").expect("it is there");
        Bench::initialized_with(Config { personality, ..Config::default() })
    }

    fn alloc(b: &mut Bench, start: u64, range: u32, size: u32, alignment: u32) -> (Status, u64) {
        let mut input = AllocMemicIn::new();
        input.set(AllocMemicIn::RANGE_START_ADDR, start).set(AllocMemicIn::RANGE_SIZE, range);
        input.set(AllocMemicIn::MEMIC_SIZE, size).set(AllocMemicIn::LOG_MEMIC_ADDR_ALIGNMENT, alignment);
        let answer = b.put(Opcode::AllocMemic, &input, AllocMemicOut::SIZE);
        let out = AllocMemicOut::from_prefix_or_zero(&answer.output);
        (answer.status(), out.get(AllocMemicOut::MEMIC_START_ADDR))
    }

    fn dealloc(b: &mut Bench, start: u64, size: u32) -> Status {
        let mut input = DeallocMemicIn::new();
        input.set(DeallocMemicIn::MEMIC_START_ADDR, start).set(DeallocMemicIn::MEMIC_SIZE, size);
        b.put(Opcode::DeallocMemic, &input, 8).status()
    }

    #[test]
    fn life_of_a_piece() {
        let mut b = bench();
        assert_eq!(b.fw.icm.device_memory.window(), START..32 << 20);
        assert_eq!(alloc(&mut b, START, 0x2000, 0x1040, 6), (Status::Ok, START));
        assert_eq!(alloc(&mut b, START + 0x1000, 0x1000, 64, 0).0, Status::NoResources, "one page of it");
        assert_eq!(alloc(&mut b, START + 0x2000, 0x1000, 64, 0), (Status::Ok, START + 0x2000));
        assert_eq!(dealloc(&mut b, START, 0x1000), Status::BadParam);
        assert_eq!(dealloc(&mut b, START, 0x1040), Status::Ok);
        assert_eq!(dealloc(&mut b, START, 0x1040), Status::BadResource);
        assert_eq!(alloc(&mut b, START, 0x1000, 0x1000, 0), (Status::Ok, START));
        b.ok(Opcode::TeardownHca, 0);
        assert!(!b.fw.icm.device_memory.has(START, 1), "it goes with all objects");
    }

    #[test]
    fn refusals() {
        let mut b = bench();
        for (start, range, size, alignment) in [
            (START - 0x1000, 0x1000, 64, 0),
            ((32 << 20) - 0x1000, 0x2000, 64, 0),
            (START + 64, 0x1000, 64, 0),
            (START, 0, 64, 0),
            (START, 0x1000, 0, 0),
            (START, 0x1000, 65, 0),
            (START, 0x1000, 0x1040, 0),
            (START, 0x4_0000, 0x2_0040, 0),
            (START, 0x1000, 64, 7),
        ] {
            assert_eq!(
                alloc(&mut b, start, range, size, alignment).0,
                Status::BadParam,
                "{start:#x} {range:#x} {size:#x}"
            );
        }
        let mut other = Bench::initialized();
        assert_eq!(alloc(&mut other, START, 0x1000, 64, 0).0, Status::BadOp, "a ConnectX-4 has none");
    }

    /// What operations do, what they leave, and that a piece is not freed below them.
    #[test]
    fn operations_have_addresses_of_their_own() {
        use hca_spec::caps::memic_operation::{INCREMENT, TEST_AND_SET};
        let personality = Personality::named("connectx6dx").expect("it is there");
        let mut b = Bench::initialized_with(Config { personality, ..Config::default() });
        let modify = |b: &mut Bench, mode: u32, operation: u32, start: u64| {
            let mut input = ModifyMemicIn::new();
            input.set(ModifyMemicIn::OP_MOD, mode).set(ModifyMemicIn::MEMIC_OPERATION_TYPE, operation);
            input.set(ModifyMemicIn::MEMIC_START_ADDR, start);
            let answer = b.put(Opcode::ModifyMemic, &input, ModifyMemicOut::SIZE);
            let out = ModifyMemicOut::from_prefix_or_zero(&answer.output);
            (answer.status(), out.get(ModifyMemicOut::MEMIC_OPERATION_ADDR))
        };
        let piece = START + 0x1000;
        assert_eq!(modify(&mut b, 0, INCREMENT, piece).0, Status::BadResource);
        assert_eq!(alloc(&mut b, piece, 0x1000, 0x1000, 0).0, Status::Ok);
        for (mode, operation, start, expected) in [
            (2, INCREMENT, piece, Status::BadParam),
            (0, 2, piece, Status::BadParam),
            (0, 255, piece, Status::BadParam),
            (0, INCREMENT, piece + 64, Status::BadResource),
            (1, INCREMENT, piece, Status::BadResource),
        ] {
            assert_eq!(modify(&mut b, mode, operation, start).0, expected, "{mode} {operation} {start:#x}");
        }
        let (_, add) = modify(&mut b, 0, INCREMENT, piece);
        assert!(!b.fw.icm.device_memory.load(add - (256 << 10), &mut [0]), "one without addresses yet");
        let (_, test) = modify(&mut b, 0, TEST_AND_SET, piece);
        assert_eq!((add, test), (piece - (256 << 10), piece - (512 << 10)));
        assert_eq!(modify(&mut b, 0, INCREMENT, piece), (Status::Ok, add), "asked for again");
        let memory = &b.fw.icm.device_memory;
        let at = |offset: u64| {
            let mut found = [0xaa];
            assert!(memory.load(offset, &mut found));
            found[0]
        };
        assert!(memory.store(piece + 0xfff, &[0xfe]) && memory.store(add + 0xfff, &[5]), "it wraps");
        assert_eq!((at(add + 0xfff), at(piece + 0xfff)), (3, 3), "a read there changes nothing");
        assert_eq!((at(test + 0xfff), at(test + 0xfff), at(piece + 0xfff)), (3, 1, 1));
        assert!(!memory.store(test, &[7]) && !memory.store(add, &[1, 2]), "neither operation nor width");
        assert!(!memory.load(test, &mut [0; 4]) && at(piece) == 0);
        assert!(!memory.load(add + 0x1000, &mut [0]) && !memory.store(add - 1, &[1]), "other pieces");
        assert!(!memory.load(test - 0x1001, &mut [0]) && !memory.load(0, &mut [0]));
        assert_eq!(dealloc(&mut b, piece, 0x1000), Status::BadResourceState);
        for (operation, address) in [(INCREMENT, add), (TEST_AND_SET, test)] {
            assert_eq!(modify(&mut b, 1, operation, piece), (Status::Ok, 0));
            assert!(!b.fw.icm.device_memory.load(address, &mut [0]));
        }
        assert_eq!(dealloc(&mut b, piece, 0x1000), Status::Ok);
        let mut five = bench();
        assert_eq!(modify(&mut five, 0, INCREMENT, START).0, Status::BadOp, "a ConnectX-5 has none");
    }

    /// Doorbells end where device memory begins.
    #[test]
    fn no_doorbell_lies_there() {
        let mut b = bench();
        let last = std::iter::from_fn(|| {
            let answer = b.run(Opcode::AllocUar, 0, &[], 16);
            (answer.status() == Status::Ok).then(|| answer.number())
        })
        .last();
        assert_eq!(last.map(|page| u64::from(page + 1) * 4096), Some(START));
    }

    #[test]
    fn keys_name_what_was_allocated() {
        let mut b = bench();
        let pd = b.alloc(Opcode::AllocPd);
        let mut key = CreateMkeyIn::new();
        let ctx = key.mkc_mut();
        ctx.set_access_mode(AccessMode::Memic).set(Mkc::PD, pd).set(Mkc::QPN, ANY_QP).set(Mkc::LR, 1);
        ctx.set(Mkc::START_ADDR, START + 4).set(Mkc::LEN, 60);
        let create = |b: &mut Bench, key: &CreateMkeyIn| b.put(Opcode::CreateMkey, key, 16).status();
        assert_eq!(create(&mut b, &key), Status::BadParam, "nothing is there");
        assert_eq!(alloc(&mut b, START, 0x1000, 64, 0).0, Status::Ok);
        assert_eq!(create(&mut b, &key), Status::Ok);
        key.mkc_mut().set(Mkc::LEN, 61);
        assert_eq!(create(&mut b, &key), Status::BadParam, "beyond its end");
        let mut other = Bench::initialized();
        let pd = other.alloc(Opcode::AllocPd);
        key.mkc_mut().set(Mkc::LEN, 0).set(Mkc::PD, pd);
        assert_eq!(create(&mut other, &key), Status::BadParam, "a ConnectX-4 has no such keys");
    }
}
