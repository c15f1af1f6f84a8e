//! Completion, event and shared receive queues: their indices, and their last entries.

use hca_firmware::icm::Buffer;
use hca_firmware::object::Kind;
use hca_spec::cqe::Cqe;
use hca_spec::eqe::Eqe;
use hca_spec::queue::{Cqc, Eqc, Srqc, cqe_size};

use super::{ENTRIES, Part, memory, reported};
use crate::adapter::state::function::Function;
use crate::engines::cq::CompletionQueue;

pub(super) fn completion(function: &Function, number: u32) -> Option<Vec<Part>> {
    let cq = function.state.fw.icm.cqs.get(number)?;
    // The state of a queue that was never used begins when it is.
    let fresh;
    let hardware = match function.state.cqs.get(number) {
        Some(hardware) => hardware,
        None => {
            fresh = CompletionQueue::new(cq);
            &fresh
        }
    };
    let mut context = cq.ctx;
    hardware.write_back(&mut context);
    let (producer, consumer, size) = hardware.indices();
    let record = memory(function, hardware.doorbell_record(), 8);
    let mut queue =
        Part::new("queue").with("producer", producer).with("consumer", consumer).with("entries", size);
    queue = with_record(queue, record, ["record_consumer", "record_arm"]);
    queue = queue.with("users", cq.users);
    let stride = if cq.ctx.get(Cqc::CQE_SZ) == cqe_size::B64 { 64 } else { 128 };
    let mut parts = vec![Part::of("context", &Cqc::LAYOUT, context.bytes()), queue];
    for index in last(producer, size) {
        let offset = u64::from(index & (size - 1)) * stride + (stride - Cqe::SIZE as u64);
        let title = format!("CQE {index:#x}");
        parts.extend(
            entry(function, &cq.buffer, offset, Cqe::SIZE).map(|e| Part::of(title, &Cqe::LAYOUT, &e)),
        );
    }
    Some(parts)
}

pub(super) fn event(function: &Function, number: u32) -> Option<Vec<Part>> {
    let eq = function.state.fw.icm.eqs.get(number)?;
    let hardware = function.state.eqs.get(number)?;
    let mut context = eq.ctx;
    hardware.write_back(&mut context);
    let (producer, consumer, size) = hardware.indices();
    let wanted = (0..=u8::MAX).filter(|kind| eq.wants(*kind)).map(|kind| format!("{kind:#x}"));
    let wanted: Vec<String> = wanted.collect();
    let queue = Part::new("queue")
        .with("producer", producer)
        .with("consumer", consumer)
        .with("entries", size)
        .with("users", eq.users)
        .saying("event_types", if wanted.is_empty() { "completions".into() } else { wanted.join(", ") });
    let mut parts = vec![Part::of("context", &Eqc::LAYOUT, context.bytes()), queue];
    for index in last(producer, size) {
        let offset = u64::from(index & (size - 1)) * Eqe::SIZE as u64;
        let title = format!("EQE {index:#x}");
        parts.extend(
            entry(function, &eq.buffer, offset, Eqe::SIZE).map(|e| Part::of(title, &Eqe::LAYOUT, &e)),
        );
    }
    Some(parts)
}

pub(super) fn shared(function: &Function, kind: Kind, number: u32) -> Option<Vec<Part>> {
    // Found by its own kind only.
    let context = reported(function, kind, number)?;
    let srq = function.state.fw.icm.srqs.get(number)?;
    let record = memory(function, srq.ctx.get(Srqc::DBR_ADDR), 4);
    let counter = record.as_deref().map(|record| hca_spec::be32(record, 0) as u16);
    let mut queue = Part::new("queue").with("entries", 1u64 << srq.log_size).with("users", srq.users);
    if let Some(hardware) = function.state.srqs.get(number) {
        let (next, _) = hardware.next_wqe();
        queue = queue
            .with("posted_and_not_taken", hardware.counts(counter))
            .with("next_index", next >> srq.log_stride)
            .with("limit_armed", hardware.is_armed());
        if let Some(tags) = &hardware.tags {
            queue = queue.with("tags_that_wait", tags.len() as u64);
        }
    }
    queue = with_record(queue, record, ["record_counter", ""]);
    Some(vec![context, queue])
}

/// The words of a doorbell record behind what is known otherwise.
pub(super) fn with_record(mut part: Part, record: Option<Vec<u8>>, names: [&'static str; 2]) -> Part {
    match record {
        Some(record) => {
            for (at, name) in [0, 4].into_iter().zip(names).filter(|(_, name)| !name.is_empty()) {
                part = part.with(name, hca_spec::be32(&record, at));
            }
            part
        }
        None => part.saying("record", "can't be read"),
    }
}

/// Counters of the last entries before `producer` of a queue of that size.
fn last(producer: u32, size: u32) -> impl Iterator<Item = u32> {
    let from = producer.saturating_sub(ENTRIES.min(size));
    from..producer
}

/// An entry of a queue; `None`: it can't be read.
pub(super) fn entry(function: &Function, buffer: &Buffer, offset: u64, len: usize) -> Option<Vec<u8>> {
    let (at, rest) = buffer.at(offset)?;
    if rest < len as u64 {
        return None;
    }
    memory(function, at, len)
}
