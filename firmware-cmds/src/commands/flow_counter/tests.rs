use super::*;
use crate::commands::flow_table::tests::bench;
use crate::commands::testing::{Answer, Bench};
use crate::steering::{Offer, Steering};
use hca_spec::be64;
use hca_spec::command::Opcode;

fn alloc(b: &mut Bench, bits: u32, log: u32) -> Answer {
    let mut alloc = AllocFlowCounterIn::new();
    alloc.set(AllocFlowCounterIn::FLOW_COUNTER_BULK, bits);
    alloc.set(AllocFlowCounterIn::FLOW_COUNTER_BULK_LOG_SIZE, log);
    b.put(Opcode::AllocFlowCounter, &alloc, 16)
}

fn read(b: &mut Bench, id: u32, count: u32, clear: u32, room: usize) -> Answer {
    let mut query = QueryFlowCounterIn::new();
    query.set(QueryFlowCounterIn::FLOW_COUNTER_ID, id).set(QueryFlowCounterIn::NUM_OF_COUNTERS, count);
    query.set(QueryFlowCounterIn::CLEAR, clear);
    b.put(Opcode::QueryFlowCounter, &query, room)
}

#[test]
fn single_counters() {
    let mut b = bench();
    let id = alloc(&mut b, 0, 0).number();
    assert_eq!(read(&mut b, id, 0, 0, 0x20).output, [0; 0x20]);
    assert_eq!(read(&mut b, id + 1, 1, 0, 0x20).status(), Status::BadResource);
    assert_eq!(b.object(Opcode::DeallocFlowCounter, id + 1).status(), Status::BadResource);
    b.ok(Opcode::DeallocFlowCounter, id);
    assert_eq!(b.object(Opcode::DeallocFlowCounter, id).status(), Status::BadResource);
    assert_eq!(b.fw.resources().now.flow_counters, 0);
}

/// Drivers read a bulk at once, from its first number on, and further than it goes.
#[test]
fn bulks() {
    let mut b = bench();
    let icm = b.fw.icm_used();
    let id = alloc(&mut b, 1, 0).number();
    assert_eq!((id % 4, b.fw.icm_used() - icm), (0, 64 + 128 * 16));
    b.fw.icm.steering.count_for_tests(id + 127, 60);
    let out = read(&mut b, id, 132, 1, 0x10 + 132 * 16);
    let at = 0x10 + 127 * 16;
    assert_eq!(
        (be64(&out.output, at), be64(&out.output, at + 8), out.output.len()),
        (1, 60, 0x10 + 132 * 16)
    );
    let out = read(&mut b, id, 128, 0, 0x10 + 128 * 16);
    assert_eq!(be64(&out.output, at), 0, "cleared");
    assert_eq!(read(&mut b, id, 128, 0, 0x10 + 127 * 16).status(), Status::BadOutputLength);
    assert_eq!(read(&mut b, id, 0xffff, 0, 0x110).status(), Status::BadOutputLength);
    b.ok(Opcode::DeallocFlowCounter, id);
    assert_eq!(b.fw.icm_used(), icm);
}

#[test]
fn what_is_offered() {
    let mut b = bench();
    assert_eq!(alloc(&mut b, 2, 0).status(), Status::BadParam);
    assert_eq!(alloc(&mut b, 0, 1).status(), Status::BadParam);
    let offer =
        Offer { counter_bulks: 0xff, log_max_counter_bulk: 4, max_counters: 1000, ..Offer::ethernet() };
    b.fw.icm.steering = Steering::new(offer);
    assert_eq!(alloc(&mut b, 0x80, 0).status(), Status::ExceedLimit, "16384 at once");
    let id = alloc(&mut b, 0b110, 0).number();
    assert!(b.fw.icm.steering.counter(id + 767).is_some() && b.fw.icm.steering.counter(id + 768).is_none());
    assert_eq!(alloc(&mut b, 0, 4).number() % 16, 0);
    assert_eq!(alloc(&mut b, 0, 5).status(), Status::BadParam);
}
