//! On-demand paging. Source: PRM "PAGE_FAULT_RESUME"; how the mlx5 driver fills it.

use hca_spec::caps::Odp;
use hca_spec::cmd::PageFaultResumeIn;
use hca_spec::eqe::page_fault;
use hca_spec::ids::Qpn;

use super::call::done;
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::effect::{DealtWith, Effect};
use crate::failure::{Failure, bad_param, bad_resource};
use crate::fault_token::FaultToken;
use crate::firmware::Firmware;
use crate::object::Kind;

/// PAGE_FAULT_RESUME, in the words of the scheme that the function's driver has chosen.
///
/// A queue pair that is gone took its faults along, and the driver can't know: that is no error.
pub(super) fn resume(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    let input = call.view::<PageFaultResumeIn>()?;
    let (qpn, fault) = match fw.paging().get(Odp::MEM_PAGE_FAULT) {
        0 => of_queue(fw, input)?,
        _ => of_memory(input)?,
    };
    if fw.icm.qps.get(qpn.0).is_some() || fw.icm.dcts.get(qpn.0).is_some() {
        let error = input.get(PageFaultResumeIn::ERROR) == 1;
        effects.push(Effect::PageFaultResumed { qpn, fault, error });
    }
    Ok(done())
}

/// Transport scheme: the token of a fault is the number of the queue pair that stopped, as a queue pair stops at one fault of a
/// type.
fn of_queue(fw: &Firmware, input: &PageFaultResumeIn) -> Result<(Qpn, DealtWith), Failure> {
    const OTHER: Failure =
        bad_param("PAGE_FAULT_RESUME: wq_number is not the token, which the type asks for");
    const TYPE: Failure = bad_param("PAGE_FAULT_RESUME: no event has that page_fault_type");
    const NO_SRQ: Failure = bad_resource("PAGE_FAULT_RESUME: there is no SRQ of the number wq_number");
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
    Ok((Qpn(token), DealtWith::Kind(kind)))
}

/// Memory scheme: the token is all there is.
fn of_memory(input: &PageFaultResumeIn) -> Result<(Qpn, DealtWith), Failure> {
    const TOKEN: Failure = bad_param("PAGE_FAULT_RESUME: no event has that fault_token");
    let high = u64::from(input.get(PageFaultResumeIn::FAULT_TOKEN_47_32));
    let bits = high << 32 | u64::from(input.get(PageFaultResumeIn::FAULT_TOKEN_31_0));
    let token = FaultToken::from_bits(bits).ok_or(TOKEN.got(bits))?;
    Ok((token.qpn, DealtWith::Token(token)))
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
    use crate::personality::Personality;
    use crate::profile::Config;
    use hca_spec::caps::{OdpScheme, TYPE_ODP, odp};
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
        let resumed = |kind, error| {
            let fault = DealtWith::Kind(kind);
            vec![Effect::PageFaultResumed { qpn: Qpn(qpn), fault, error }]
        };
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
        let paged = |page: &Odp, field| page.transport().get(field);
        assert_eq!((paged(&now, OdpScheme::XRC), paged(&now, OdpScheme::UD)), (0, odp::SEND));
        assert_ne!(paged(&max, OdpScheme::XRC), 0);
        let mut set = SetHcaCapIn::new();
        set.set(SetHcaCapIn::OP_MOD, TYPE_ODP << 1);
        let mut set_caps = |b: &mut Bench, caps: Odp| {
            *set.odp_mut() = caps;
            b.put(Opcode::SetHcaCap, &set, 16).status()
        };
        assert_eq!(set_caps(&mut b, max), Status::Ok);
        assert_eq!(paging(&mut b, CAP_CURRENT), max);
        let mut beyond = max;
        beyond.transport_mut().set(OdpScheme::UC, odp::SEND);
        assert_eq!(set_caps(&mut b, beyond), Status::BadParam);
        beyond = max;
        beyond.set(Odp::MEM_PAGE_FAULT, 1);
        assert_eq!(set_caps(&mut b, beyond), Status::BadParam, "a ConnectX-4 has no memory scheme");
        beyond = max;
        beyond.memory_mut().set(OdpScheme::PAGE_PREFETCH, 1);
        assert_eq!(set_caps(&mut b, beyond), Status::BadParam);
        assert_eq!(paging(&mut b, CAP_CURRENT), max);
    }

    /// The driver of an adapter that has it asks for the memory scheme, and for nothing else.
    #[test]
    fn a_driver_chooses_the_memory_scheme() {
        let personality = Personality::named("connectx6dx").unwrap();
        let plain = Config { personality, ..Config::default() };
        let mut b = Bench::with(plain.clone());
        b.ok(Opcode::EnableHca, 0);
        let max = paging(&mut b, 0);
        assert_eq!((max.get(Odp::MEM_PAGE_FAULT), max.memory()), (0, &OdpScheme::new()), "it is an option");
        let mut b = Bench::with(Config { memory_page_faults: true, ..plain });
        b.ok(Opcode::EnableHca, 0);
        let (max, now) = (paging(&mut b, 0), paging(&mut b, CAP_CURRENT));
        assert_eq!((max.get(Odp::MEM_PAGE_FAULT), now.get(Odp::MEM_PAGE_FAULT)), (1, 0));
        assert_eq!((now.memory(), now.memory().get(OdpScheme::PAGE_PREFETCH)), (max.memory(), 1));
        assert_eq!(now.memory().get(OdpScheme::RC), max.transport().get(OdpScheme::RC));
        let mut set = SetHcaCapIn::new();
        set.set(SetHcaCapIn::OP_MOD, TYPE_ODP << 1);
        *set.odp_mut() = now;
        set.odp_mut().set(Odp::MEM_PAGE_FAULT, 1);
        assert_eq!(b.put(Opcode::SetHcaCap, &set, 16).status(), Status::Ok);
        assert_eq!(paging(&mut b, CAP_CURRENT), *set.odp());
        // Nothing is resumed by type any more, but by token.
        b.give_pages(b.fw.pages.init());
        b.ok(Opcode::InitHca, 0);
        let qpn = b.connection().qp;
        let token = FaultToken::new(Qpn(qpn), true, 77);
        let mut run = |bits: u64, error| {
            let mut r = PageFaultResumeIn::new();
            r.set(PageFaultResumeIn::ERROR, error)
                .set(PageFaultResumeIn::FAULT_TOKEN_47_32, (bits >> 32) as u32);
            r.set(PageFaultResumeIn::FAULT_TOKEN_31_0, bits as u32);
            b.effects.clear();
            let status = b.put(Opcode::PageFaultResume, &r, 16).status();
            (status, std::mem::take(&mut b.effects))
        };
        let fault = DealtWith::Token(token);
        for error in [false, true] {
            let resumed = vec![Effect::PageFaultResumed { qpn: Qpn(qpn), fault, error }];
            assert_eq!(run(token.bits(), error.into()), (Status::Ok, resumed));
        }
        assert_eq!(run(token.bits() | 1 << 24, 0), (Status::BadParam, vec![]), "no such token");
        assert_eq!(run(token.bits() ^ 1 << 20, 0), (Status::Ok, vec![]), "it may be destroyed already");
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
