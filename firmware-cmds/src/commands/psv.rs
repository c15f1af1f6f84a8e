//! Protection signature values: where the seeds of signature domains stand.
//!
//! Source: "CREATE_PSV", "DESTROY_PSV" as the mlx5 driver uses them; the public manual does not have them.

use hca_spec::bsf::{CreatePsvIn, CreatePsvOut, MAX_PSVS};

use super::call::{done, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::Psv;
use crate::object::Kind;

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const COUNT: Failure = bad_param("CREATE_PSV: num_psv must be 1 to 4");
    const NO_PD: Failure = bad_resource("CREATE_PSV: pd: the protection domain is not allocated");
    const FULL: Failure = no_room("CREATE_PSV: every PSV is in use");
    let create = call.view::<CreatePsvIn>()?;
    let (count, pd) = (create.get(CreatePsvIn::NUM_PSV), create.get(CreatePsvIn::PD));
    if !(1..=MAX_PSVS).contains(&count) {
        return Err(COUNT.got(count).limit(MAX_PSVS));
    }
    if fw.icm.pds.get(pd).is_none() {
        return Err(NO_PD.got(pd));
    }
    if fw.icm.psvs.capacity() - fw.icm.psvs.len() < count {
        return Err(FULL.limit(fw.icm.psvs.capacity()));
    }
    let mut out = CreatePsvOut::new();
    let fields = [CreatePsvOut::PSV0, CreatePsvOut::PSV1, CreatePsvOut::PSV2, CreatePsvOut::PSV3];
    for field in fields.into_iter().take(count as usize) {
        out.set(field, fw.icm.psvs.insert(Psv { pd, value: 0 }).map_err(|_| FULL)?);
    }
    if let Some(domain) = fw.icm.pds.get_mut(pd) {
        domain.psvs += count;
    }
    Ok(reply(&out))
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure = bad_resource("DESTROY_PSV: there is no such PSV");
    let number = call.number();
    let psv = fw.icm.psvs.remove(number).ok_or(NONE.of(number))?;
    if let Some(domain) = fw.icm.pds.get_mut(psv.pd) {
        domain.psvs = domain.psvs.saturating_sub(1);
    }
    Ok(done())
}

/// CREATE_PSV: two.
pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreatePsvIn::new();
    create.set(CreatePsvIn::NUM_PSV, 2).set(CreatePsvIn::PD, fixture.number(Kind::Pd)).bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use hca_spec::command::{Opcode, Status};

    fn create(b: &mut Bench, count: u32, pd: u32) -> (Status, CreatePsvOut) {
        let mut c = CreatePsvIn::new();
        c.set(CreatePsvIn::NUM_PSV, count).set(CreatePsvIn::PD, pd);
        let r = b.put(Opcode::CreatePsv, &c, CreatePsvOut::SIZE);
        (r.status(), CreatePsvOut::from_prefix_or_zero(&r.output))
    }

    #[test]
    fn life_of_psvs() {
        let mut b = Bench::initialized();
        let pd = b.alloc(Opcode::AllocPd);
        let (status, out) = create(&mut b, 2, pd);
        assert_eq!(status, Status::Ok);
        let (one, two) = (out.get(CreatePsvOut::PSV0), out.get(CreatePsvOut::PSV1));
        assert!(one > 0 && two > 0 && one != two, "zero means none");
        assert_eq!(out.get(CreatePsvOut::PSV2), 0);
        assert_eq!(b.object(Opcode::DeallocPd, pd).status(), Status::ResourceBusy);
        b.ok(Opcode::DestroyPsv, one);
        assert_eq!(b.object(Opcode::DestroyPsv, one).status(), Status::BadResource);
        b.ok(Opcode::DestroyPsv, two);
        b.ok(Opcode::DeallocPd, pd);
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized();
        let pd = b.alloc(Opcode::AllocPd);
        assert_eq!(create(&mut b, 0, pd).0, Status::BadParam);
        assert_eq!(create(&mut b, 5, pd).0, Status::BadParam);
        assert_eq!(create(&mut b, 1, 77).0, Status::BadResource);
        b.ok(Opcode::DeallocPd, pd);
    }
}
