//! What messages cost in allocations: nothing, once everything has its size.

use hca_driver::{SendOp, SendRequest};
use hca_model::Ps;
use hca_model::link::Faults;
use hca_tests::pair::Options;
use hca_tests::rig::linked;

use super::{ALLOCATOR, alone};

/// Messages that are posted at once.
const BATCH: u64 = 16;
/// Batches before it is counted.
const WARM: usize = 6;
/// Longest time for one.
const TIME: Ps = Ps::from_us(200);

#[test]
fn messages_allocate_nothing() {
    const MEMORY: usize = 1 << 20;
    let _alone = alone();
    for roce in [false, true] {
        let options = Options { memory: MEMORY, send_blocks: 64, mtu: 5, roce, ..Options::default() };
        let mut pair = linked(&options, Faults::default(), 1);
        let simulation = pair.hcas[0].bus_mut().simulation().clone();
        let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
        let write = SendOp::Write { address, rkey, imm: None };
        let read = SendOp::Read { address, rkey };
        let send = SendOp::Send { imm: None };
        let inline = [7; 32];
        for (what, op, len) in [
            ("a write in its WQE", write, None),
            ("a write", write, Some(8)),
            ("a write of 4 KiB", write, Some(4096)),
            ("a send", send, Some(100)),
            ("a read", read, Some(8)),
        ] {
            let mut allocated = 0;
            for _ in 0..=WARM {
                for i in 0..BATCH {
                    if op == send {
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
                    if op == send {
                        pair.received_ok(1, i);
                    }
                }
            }
            assert_eq!(allocated, 0, "{what}: bytes allocated by {BATCH} of them, RoCE {roce}");
        }
    }
}
