//! Flow counters. Source: PRM "ALLOC_FLOW_COUNTER" and its companions; mlx5 driver (bulks).

use hca_spec::be32;
use hca_spec::command::{InHeader, OutHeader, Status};
use hca_spec::flow::{AllocFlowCounterIn, QueryFlowCounterIn, TrafficCounter};

use super::call::{done, named};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::object::Kind;
use crate::steering::{NoCounter, Steering};

/// Counters of the smallest bulk.
const BULK: u32 = 128;

/// How many counters an input asks for.
fn count(bits: u32, log: u32) -> u32 {
    match (bits, log) {
        (0, 0) => 1,
        // Several bits ask for all of their bulks, in a row.
        (bits, 0) => BULK.saturating_mul(bits),
        (_, log) => 1u32.checked_shl(log).unwrap_or(u32::MAX),
    }
}

/// Bytes of ICM that ALLOC_FLOW_COUNTER takes beside the object.
pub(super) fn icm_bytes(input: &[u8]) -> u64 {
    let alloc = AllocFlowCounterIn::from_prefix_or_zero(input);
    let bits = alloc.get(AllocFlowCounterIn::FLOW_COUNTER_BULK);
    match count(bits, alloc.get(AllocFlowCounterIn::FLOW_COUNTER_BULK_LOG_SIZE)) {
        1 => 0,
        count => u64::from(count) * crate::steering::COUNTER_BYTES,
    }
}

pub(super) fn alloc(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const BITS: Failure = bad_param(
        "ALLOC_FLOW_COUNTER: flow_counter_bulk has bits that flow_counter_bulk_alloc does not offer",
    );
    const SIZE: Failure =
        bad_param("ALLOC_FLOW_COUNTER: flow_counter_bulk_log_size is above flow_counter_bulk_log_max_alloc");
    const FULL: Failure = no_room("ALLOC_FLOW_COUNTER: there are max_flow_counter counters");
    let alloc = call.view::<AllocFlowCounterIn>()?;
    let bits = alloc.get(AllocFlowCounterIn::FLOW_COUNTER_BULK);
    let log = alloc.get(AllocFlowCounterIn::FLOW_COUNTER_BULK_LOG_SIZE);
    let offer = fw.icm.steering.offer();
    if bits & !offer.counter_bulks != 0 {
        return Err(BITS.got(bits).limit(offer.counter_bulks));
    }
    if log > offer.log_max_counter_bulk {
        return Err(SIZE.got(log).limit(offer.log_max_counter_bulk));
    }
    let (count, most) = (count(bits, log), offer.max_counters);
    named(fw.icm.steering.alloc_counters(count).map_err(|_| FULL.got(count).limit(most))?)
}

pub(super) fn dealloc(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure = bad_resource("DEALLOC_FLOW_COUNTER: nothing was allocated under that number");
    const USED: Failure =
        Failure::new(Status::BadResourceState, "DEALLOC_FLOW_COUNTER: entries count into the counter");
    let id = call.number();
    fw.icm.steering.dealloc_counters(id).map_err(|why| match why {
        NoCounter::Used(users) => USED.of(id).got(users),
        NoCounter::None | NoCounter::Full => NONE.of(id),
    })?;
    Ok(done())
}

/// Counters in a row, whichever of them are there: drivers read more than they have. The time is bounded by the room for
/// the output.
pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure = bad_resource("QUERY_FLOW_COUNTER: the counter is not allocated");
    const ROOM: Failure = Failure::new(
        Status::BadOutputLength,
        "QUERY_FLOW_COUNTER: the room for output is less than num_of_counters",
    );
    let query = call.view::<QueryFlowCounterIn>()?;
    let first = query.get(QueryFlowCounterIn::FLOW_COUNTER_ID);
    let many = query.get(QueryFlowCounterIn::NUM_OF_COUNTERS);
    let steering = &fw.icm.steering;
    if many <= 1 && steering.counter(first).is_none() {
        return Err(NONE.of(first));
    }
    let count = many.max(1);
    let room = call.output_len.saturating_sub(OutHeader::SIZE) / TrafficCounter::SIZE;
    if count as usize > room {
        return Err(ROOM.got(room as u64).least(count));
    }
    // A user's own are those that it allocated together: it named one of them.
    let user = be32(call.input, 0) & InHeader::UID.max() != 0;
    let mut output = vec![0; OutHeader::SIZE];
    for id in (0..count).map(|i| first.wrapping_add(i)) {
        let mine = !user || Steering::first_of_bulk(id) == Steering::first_of_bulk(first);
        let traffic = if mine { steering.counter(id).unwrap_or_default() } else { Default::default() };
        let mut entry = TrafficCounter::new();
        entry.set(TrafficCounter::PACKETS, traffic.packets).set(TrafficCounter::OCTETS, traffic.octets);
        output.extend_from_slice(entry.bytes());
        if mine && query.get(QueryFlowCounterIn::CLEAR) == 1 {
            steering.clear_counter(id);
        }
    }
    Ok(output)
}

/// QUERY_FLOW_COUNTER: one.
pub(super) fn query_template(fixture: &Fixture) -> Vec<u8> {
    let mut query = QueryFlowCounterIn::new();
    query.set(QueryFlowCounterIn::FLOW_COUNTER_ID, fixture.number(Kind::FlowCounter));
    query.bytes().to_vec()
}

#[cfg(test)]
mod tests;
