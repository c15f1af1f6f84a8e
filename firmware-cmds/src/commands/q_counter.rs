//! Q counters. Source: PRM "ALLOC_Q_COUNTER", "DEALLOC_Q_COUNTER", "QUERY_Q_COUNTER".

use hca_spec::cmd::QueryQCounterIn;

use super::call::{done, named};
use super::devx::is_of_another;
use super::nic_vport::own;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::q_counters::CounterSet;

/// Length of QUERY_Q_COUNTER's output.
pub(super) const OUTPUT: usize = 0x100;
const NONE: Failure = bad_resource("there is no Q counter set of that number");

pub(super) fn alloc(fw: &mut Firmware, _: &Call<'_>) -> Outcome {
    const FULL: Failure = no_room("ALLOC_Q_COUNTER: there are max_qp_cnt sets");
    named(fw.icm.q_counters.insert(CounterSet::default()).map_err(|_| FULL)?)
}

/// Queue pairs may still name the set: they count into nothing from now on.
pub(super) fn dealloc(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let set = call.number();
    fw.icm.q_counters.remove(set).ok_or(NONE.of(set))?;
    Ok(done())
}

pub(super) fn query(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let query = call.view::<QueryQCounterIn>()?;
    own(fw, call)?;
    let number = call.number();
    // Tools look at the sets of others, and leave them as they are.
    let may_clear = !call.target().is_some_and(|set| is_of_another(fw, call, set));
    let set = fw.icm.q_counters.get_mut(number).ok_or(NONE.of(number))?;
    let mut out = vec![0; OUTPUT];
    set.report(&mut out);
    if query.get(QueryQCounterIn::CLEAR) == 1 && may_clear {
        *set = CounterSet::default();
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use crate::q_counters::QCounter;
    use hca_spec::be32;
    use hca_spec::command::{Opcode, Status};

    #[test]
    fn life_of_a_set() {
        let mut b = Bench::initialized();
        let set = b.alloc(Opcode::AllocQCounter);
        assert!(set > 0 && set < 256);
        let counters = b.fw.icm.q_counters.get_mut(set).unwrap();
        counters.count(QCounter::RxWriteRequests);
        counters.count(QCounter::ReqCqeFlushError);
        counters.count(QCounter::ReqCqeFlushError);
        let mut query = QueryQCounterIn::new();
        query.set(QueryQCounterIn::COUNTER_SET_ID, set).set(QueryQCounterIn::CLEAR, 1);
        let r = b.put(Opcode::QueryQCounter, &query, 0x100);
        assert_eq!((be32(&r.output, 0x10), be32(&r.output, 0xc0)), (1, 2));
        let r = b.put(Opcode::QueryQCounter, &query, 0x100);
        assert_eq!(be32(&r.output, 0x10), 0, "cleared");
        let mut other = query.bytes().to_vec();
        other[8..12].copy_from_slice(&(1u32 << 31 | 3).to_be_bytes());
        other[..4].copy_from_slice(&((Opcode::QueryQCounter as u32) << 16).to_be_bytes());
        assert_eq!(b.raw(&other, 0x100).status(), Status::BadParam, "of another virtual port");
        b.ok(Opcode::DeallocQCounter, set);
        assert_eq!(b.put(Opcode::QueryQCounter, &query, 0x100).status(), Status::BadResource);
        assert_eq!(b.object(Opcode::DeallocQCounter, set).status(), Status::BadResource);
    }

    #[test]
    fn as_many_as_announced() {
        use hca_spec::caps::General;
        let mut b = Bench::initialized();
        let most = b.fw.general.get(General::MAX_QP_CNT);
        let made = (0..300).take_while(|_| b.object(Opcode::AllocQCounter, 0).status() == Status::Ok).count();
        assert_eq!(made as u32, most);
    }
}
