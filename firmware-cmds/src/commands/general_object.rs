//! General objects. There is one kind: QP numbers that no queue pair has. A program names them in connections whose
//! traffic takes another way, as rdma_cm with a queue pair of its own making does with DC.
//!
//! Source: PRM "General Object Commands"; `mlx5dv_reserved_qpn_alloc(3)`. By inference: an object begins at a multiple of
//! the count of its numbers.

use hca_spec::caps::object_type;
use hca_spec::cmd::{GeneralObjectIn, QueryReservedQpnOut};

use super::call::{done, named, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::limits::LOG_RESERVED_QPNS;
use crate::object::Kind;

/// The command, if it is about the kind that there is.
fn admit<'a>(call: &Call<'a>) -> Result<&'a GeneralObjectIn, Failure> {
    const KIND: Failure = bad_param("general objects: the adapter has none of that kind (general_obj_types)");
    let input = call.view::<GeneralObjectIn>()?;
    match input.get(GeneralObjectIn::OBJ_TYPE) {
        object_type::RESERVED_QPN => Ok(input),
        other => Err(KIND.got(other)),
    }
}

/// The entry of an object that there is.
fn entry(fw: &Firmware, call: &Call<'_>) -> Result<u32, Failure> {
    const NONE: Failure = bad_resource("general objects: there is no such object");
    let first = admit(call)?.get(GeneralObjectIn::OBJ_ID);
    let entry = first >> LOG_RESERVED_QPNS;
    let there = entry << LOG_RESERVED_QPNS == first && fw.icm.reserved_qpns.get(entry).is_some();
    if there { Ok(entry) } else { Err(NONE.of(first)) }
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const RANGE: Failure =
        bad_param("CREATE_GENERAL_OBJECT: log_obj_range is not what the capabilities allow for QP numbers");
    const FULL: Failure = no_room("CREATE_GENERAL_OBJECT: every reserved QP number is in use");
    let range = admit(call)?.get(GeneralObjectIn::LOG_OBJ_RANGE);
    if range != LOG_RESERVED_QPNS {
        return Err(RANGE.got(range).limit(LOG_RESERVED_QPNS));
    }
    let capacity = fw.icm.reserved_qpns.capacity();
    let entry = fw.icm.reserved_qpns.insert(()).map_err(|_| FULL.limit(capacity))?;
    named(entry << LOG_RESERVED_QPNS)
}

pub(super) fn modify(fw: &Firmware, call: &Call<'_>) -> Outcome {
    const NOTHING: Failure =
        bad_param("MODIFY_GENERAL_OBJECT: modify_field_select: reserved QP numbers have nothing to change");
    entry(fw, call)?;
    Err(NOTHING)
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let first = entry(fw, call)? << LOG_RESERVED_QPNS;
    Ok(reply(QueryReservedQpnOut::new().set(QueryReservedQpnOut::OBJ_ID, first)))
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let entry = entry(fw, call)?;
    fw.icm.reserved_qpns.remove(entry);
    Ok(done())
}

/// CREATE_GENERAL_OBJECT: QP numbers.
pub(super) fn create_template(_: &Fixture) -> Vec<u8> {
    let mut create = GeneralObjectIn::new();
    create.set(GeneralObjectIn::OBJ_TYPE, object_type::RESERVED_QPN);
    create.set(GeneralObjectIn::LOG_OBJ_RANGE, LOG_RESERVED_QPNS).bytes().to_vec()
}

/// The other commands: the object that there is.
pub(super) fn template(fixture: &Fixture) -> Vec<u8> {
    let mut named = GeneralObjectIn::new();
    named.set(GeneralObjectIn::OBJ_TYPE, object_type::RESERVED_QPN);
    named.set(GeneralObjectIn::OBJ_ID, fixture.number(Kind::ReservedQpn)).bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Answer, Bench};
    use hca_spec::command::{Opcode, Status};

    fn send(b: &mut Bench, op: Opcode, kind: u32, id: u32, range: u32) -> Answer {
        let mut input = GeneralObjectIn::new();
        input.set(GeneralObjectIn::OBJ_TYPE, kind).set(GeneralObjectIn::OBJ_ID, id);
        input.set(GeneralObjectIn::LOG_OBJ_RANGE, range);
        b.put(op, &input, 32)
    }

    #[test]
    fn numbers_that_no_queue_pair_has() {
        const KIND: u32 = object_type::RESERVED_QPN;
        let mut b = Bench::initialized();
        let reserve = |b: &mut Bench| send(b, Opcode::CreateGeneralObject, KIND, 0, LOG_RESERVED_QPNS);
        let (one, two) = (reserve(&mut b).number(), reserve(&mut b).number());
        assert!(one.abs_diff(two) >= 1 << LOG_RESERVED_QPNS, "{one:#x} and {two:#x} overlap");
        assert_eq!(b.fw.resources().now.general_objects, 2);
        let rc = b.connection();
        for first in [one, two] {
            assert!(first < 1 << 24 && !(first..first + (1 << LOG_RESERVED_QPNS)).contains(&rc.qp));
            let answer = send(&mut b, Opcode::QueryGeneralObject, KIND, first, 0);
            assert_eq!((answer.status(), answer.number()), (Status::Ok, first));
        }
        let modified = send(&mut b, Opcode::ModifyGeneralObject, KIND, one, 0);
        assert_eq!(modified.status(), Status::BadParam);
        let inside = send(&mut b, Opcode::DestroyGeneralObject, KIND, one + 1, 0);
        assert_eq!(inside.status(), Status::BadResource, "a number is not the object");
        for expected in [Status::Ok, Status::BadResource] {
            assert_eq!(send(&mut b, Opcode::DestroyGeneralObject, KIND, one, 0).status(), expected);
        }
        assert_eq!(b.fw.resources().now.general_objects, 1);
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        let mut b = Bench::initialized();
        let other = send(&mut b, Opcode::CreateGeneralObject, 1, 0, LOG_RESERVED_QPNS);
        assert_eq!(other.status(), Status::BadParam);
        for range in [0, LOG_RESERVED_QPNS + 1, 31] {
            let answer = send(&mut b, Opcode::CreateGeneralObject, object_type::RESERVED_QPN, 0, range);
            assert_eq!(answer.status(), Status::BadParam, "2^{range} numbers");
        }
    }
}
