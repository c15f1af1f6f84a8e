//! On-demand paging. Source: PRM "PAGE_FAULT_RESUME"; how the mlx5 driver fills it.

use hca_spec::cmd::PageFaultResumeIn;
use hca_spec::eqe::page_fault;
use hca_spec::ids::Qpn;

use super::call::done;
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource};
use crate::firmware::Firmware;
use crate::object::Kind;

/// PAGE_FAULT_RESUME: the token of a fault is the number of the queue pair that stopped, as a queue pair
/// stops at one fault of a type.
///
/// A queue pair that is gone took its faults along, and the driver can't know: that is no error.
pub(super) fn resume(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const OTHER: Failure =
        bad_param("PAGE_FAULT_RESUME: wq_number is not the token, which the type asks for");
    const TYPE: Failure = bad_param("PAGE_FAULT_RESUME: no event has that page_fault_type");
    const NO_SRQ: Failure = bad_resource("PAGE_FAULT_RESUME: there is no SRQ of the number wq_number");
    let input = call.view::<PageFaultResumeIn>()?;
    let (kind, token) = (input.get(PageFaultResumeIn::TYPE) as u8, input.get(PageFaultResumeIn::TOKEN));
    let queue = input.get(PageFaultResumeIn::WQ_NUMBER);
    match kind {
        page_fault::SHARED_RECEIVE if fw.icm.srqs.get(queue).is_none() => return Err(NO_SRQ.of(queue)),
        page_fault::SHARED_RECEIVE => {}
        page_fault::SEND_OR_WRITE
        | page_fault::RECEIVE
        | page_fault::READ_OR_ATOMIC
        | page_fault::RDMA_READ
        | page_fault::RDMA_WRITE => {
            if queue != token {
                return Err(OTHER.of(token).got(queue).exactly(token));
            }
        }
        _ => return Err(TYPE.of(token).got(kind)),
    }
    if fw.icm.qps.get(token).is_some() || fw.icm.dcts.get(token).is_some() {
        let error = input.get(PageFaultResumeIn::ERROR) == 1;
        effects.push(Effect::PageFaultResumed { qpn: Qpn(token), kind, error });
    }
    Ok(done())
}

/// PAGE_FAULT_RESUME: of a send.
pub(super) fn template(fixture: &Fixture) -> Vec<u8> {
    let (mut resume, qpn) = (PageFaultResumeIn::new(), fixture.number(Kind::Qp));
    resume.set(PageFaultResumeIn::TYPE, page_fault::SEND_OR_WRITE.into());
    resume.set(PageFaultResumeIn::WQ_NUMBER, qpn).set(PageFaultResumeIn::TOKEN, qpn).bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use hca_spec::caps::{Odp, TYPE_ODP, odp};
    use hca_spec::cmd::{CAP_CURRENT, QueryHcaCapOut, QuerySpecialContextsOut, SetHcaCapIn};
    use hca_spec::command::{Opcode, Status};
    use hca_spec::mkc::NULL_MKEY;

    fn resume(kind: u8, queue: u32, token: u32, error: u32) -> PageFaultResumeIn {
        let mut r = PageFaultResumeIn::new();
        r.set(PageFaultResumeIn::TYPE, kind.into()).set(PageFaultResumeIn::WQ_NUMBER, queue);
        r.set(PageFaultResumeIn::TOKEN, token).set(PageFaultResumeIn::ERROR, error);
        r
    }

    #[test]
    fn resumes_what_exists() {
        let mut b = Bench::initialized();
        let qpn = b.connection().qp;
        let mut run = |kind, queue, token, error| {
            b.effects.clear();
            let status = b.put(Opcode::PageFaultResume, &resume(kind, queue, token, error), 16).status();
            (status, std::mem::take(&mut b.effects))
        };
        let resumed = |kind, error| vec![Effect::PageFaultResumed { qpn: Qpn(qpn), kind, error }];
        assert_eq!(run(page_fault::SEND_OR_WRITE, qpn, qpn, 0), (Status::Ok, resumed(1, false)));
        assert_eq!(run(page_fault::RDMA_WRITE, qpn, qpn, 1), (Status::Ok, resumed(6, true)));
        assert_eq!(run(page_fault::RECEIVE, qpn + 1, qpn, 0), (Status::BadParam, vec![]));
        assert_eq!(run(5, qpn, qpn, 0), (Status::BadParam, vec![]), "no such type");
        assert_eq!(run(page_fault::SHARED_RECEIVE, 0x1234, qpn, 0), (Status::BadResource, vec![]));
        let gone = qpn + 0x1000;
        assert_eq!(
            run(page_fault::RECEIVE, gone, gone, 0),
            (Status::Ok, vec![]),
            "it may be destroyed already"
        );
    }

    fn paging(b: &mut Bench, current: u32) -> Odp {
        let r = b.run(Opcode::QueryHcaCap, TYPE_ODP << 1 | current, &[], QueryHcaCapOut::SIZE);
        assert_eq!(r.status(), Status::Ok);
        *QueryHcaCapOut::from_prefix_or_zero(&r.output).odp()
    }

    /// The driver asks for what is not on by itself.
    #[test]
    fn capabilities() {
        let mut b = Bench::new();
        b.ok(Opcode::EnableHca, 0);
        let (max, now) = (paging(&mut b, 0), paging(&mut b, CAP_CURRENT));
        assert_eq!((now.get(Odp::XRC), now.get(Odp::UD)), (0, odp::SEND));
        assert_ne!(max.get(Odp::XRC), 0);
        let mut set = SetHcaCapIn::new();
        set.set(SetHcaCapIn::OP_MOD, TYPE_ODP << 1);
        let mut set_caps = |b: &mut Bench, caps: Odp| {
            *set.odp_mut() = caps;
            b.put(Opcode::SetHcaCap, &set, 16).status()
        };
        assert_eq!(set_caps(&mut b, max), Status::Ok);
        assert_eq!(paging(&mut b, CAP_CURRENT), max);
        let mut beyond = max;
        beyond.set(Odp::UC, odp::SEND);
        assert_eq!(set_caps(&mut b, beyond), Status::BadParam);
        assert_eq!(paging(&mut b, CAP_CURRENT), max);
    }

    #[test]
    fn the_null_key_has_a_name() {
        let mut b = Bench::initialized();
        let r = b.object_into(Opcode::QuerySpecialContexts, 0, QuerySpecialContextsOut::SIZE);
        let out = QuerySpecialContextsOut::from_prefix_or_zero(&r.output);
        assert_eq!(out.get(QuerySpecialContextsOut::NULL_MKEY), NULL_MKEY);
        assert!(b.fw.icm.mkeys.get(NULL_MKEY >> 8).is_none());
    }
}
