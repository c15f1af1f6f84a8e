//! What messages cost in allocations: nothing, once everything has its size.

use hca_driver::{SendOp, SendRequest};
use hca_model::Ps;
use hca_model::link::Faults;
use hca_spec::ids::Mkey;
use hca_spec::qpc::ServiceType;
use hca_tests::pair::Options;
use hca_tests::rig::linked;

use super::{ALLOCATOR, alone};

/// Messages that are posted at once.
const BATCH: u64 = 16;
/// Batches before it is counted.
const WARM: usize = 6;
/// Longest time for one.
const TIME: Ps = Ps::from_us(200);

/// Queue pairs of that service, and messages of that kind: bytes of a piece of memory, or `None`: inline data.
fn allocates_nothing(service: ServiceType, roce: bool, messages: &[(&str, MakeOp, Option<usize>)]) {
    const MEMORY: usize = 1 << 20;
    let options = Options { memory: MEMORY, send_blocks: 64, mtu: 5, roce, service, ..Options::default() };
    let mut pair = linked(&options, Faults::default(), 1);
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let inline = [7; 32];
    for (what, op, len) in messages {
        let op = op(pair.ends[1].mr.address, pair.ends[1].mr.key);
        let received = matches!(op, SendOp::Send { .. });
        let mut allocated = 0;
        for _ in 0..=WARM {
            for i in 0..BATCH {
                if received {
                    pair.recv(1, i, 0, 4096);
                }
                let sge = len.map(|len| pair.ends[0].sge(0, len));
                let request = SendRequest::new(i, op, sge.as_slice());
                pair.send(0, &if len.is_none() { request.inline(&inline) } else { request });
            }
            let before = ALLOCATOR.total_allocated();
            simulation.run(TIME);
            allocated = ALLOCATOR.total_allocated() - before;
            for i in 0..BATCH {
                pair.sent_ok(0, i);
                if received {
                    pair.received_ok(1, i);
                }
            }
        }
        assert_eq!(allocated, 0, "{what}: bytes allocated by {BATCH} of them, {service:?}, RoCE {roce}");
    }
}

/// What is to be done, with the address and the key of the peer's memory.
type MakeOp = fn(u64, Mkey) -> SendOp;

const WRITE: MakeOp = |address, rkey| SendOp::Write { address, rkey, imm: None };
const READ: MakeOp = |address, rkey| SendOp::Read { address, rkey };
const SEND: MakeOp = |_, _| SendOp::Send { imm: None };
const FETCH_ADD: MakeOp = |address, rkey| SendOp::FetchAdd { address, rkey, add: 1 };
const COMPARE_SWAP: MakeOp = |address, rkey| SendOp::CompareSwap { address, rkey, compare: 0, swap: 1 };

#[test]
fn messages_allocate_nothing() {
    let _alone = alone();
    let unreliable = [
        ("a write in its WQE", WRITE, None),
        ("a write", WRITE, Some(8)),
        ("a write of 4 KiB", WRITE, Some(4096)),
        ("a send in its WQE", SEND, None),
        ("a send", SEND, Some(100)),
    ];
    let reliable = [
        ("a read", READ, Some(8)),
        ("a read of 4 KiB", READ, Some(4096)),
        ("an addition", FETCH_ADD, Some(8)),
        ("a compare and swap", COMPARE_SWAP, Some(8)),
    ];
    for roce in [false, true] {
        allocates_nothing(ServiceType::Rc, roce, &unreliable);
        allocates_nothing(ServiceType::Rc, roce, &reliable);
        allocates_nothing(ServiceType::Uc, roce, &unreliable);
    }
}
