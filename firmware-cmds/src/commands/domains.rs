//! Objects that are only names: protection domains, XRC domains, transport domains, UAR pages.
//!
//! Source: PRM "ALLOC_PD", "ALLOC_UAR", "ALLOC_XRCD", "ALLOC_TRANSPORT_DOMAIN" and their companions.

use hca_spec::command::Status;
use hca_spec::queue::Eqc;

use super::call::{done, named};
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_resource, busy, no_room};
use crate::firmware::Firmware;
use crate::icm::Domain;
use crate::object::Kind;

pub(super) fn alloc(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const FULL: Failure = no_room("ALLOC: every number of the table is in use");
    let table = match call.kind() {
        Some(Kind::Pd) => &mut fw.icm.pds,
        Some(Kind::Xrcd) => &mut fw.icm.xrcds,
        Some(Kind::TransportDomain) => &mut fw.icm.tds,
        _ => &mut fw.icm.uars,
    };
    let capacity = table.capacity();
    named(table.insert(Domain::default()).map_err(|_| FULL.limit(capacity))?)
}

pub(super) fn dealloc_pd(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure = bad_resource("DEALLOC_PD: the protection domain is not allocated");
    const QUEUES: Failure = busy("DEALLOC_PD: queue pairs or shared receive queues are in the domain");
    const KEYS: Failure = busy("DEALLOC_PD: memory keys are in the domain");
    const PSVS: Failure = busy("DEALLOC_PD: protection signature values are in the domain");
    let pd = call.number();
    let domain = *fw.icm.pds.get(pd).ok_or(NONE.of(pd))?;
    if domain.users > 0 {
        return Err(QUEUES.of(pd).got(domain.users));
    }
    // Free ones too: what fills them later must not find another program's domain under the number.
    if domain.keys > 0 {
        return Err(KEYS.of(pd).got(domain.keys));
    }
    if domain.psvs > 0 {
        return Err(PSVS.of(pd).got(domain.psvs));
    }
    fw.icm.pds.remove(pd);
    Ok(done())
}

/// A page goes although completion queues and queue pairs have their doorbells there: the stock user-space driver
/// closes its context that way round, and leaves them to the kernel. Nobody rings for them any more.
pub(super) fn dealloc_uar(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure = bad_resource("DEALLOC_UAR: the UAR page is not allocated");
    const EQ: Failure = busy("DEALLOC_UAR: an EQ has its doorbell in the page");
    let uar = call.number();
    let icm = &mut fw.icm;
    icm.uars.get(uar).ok_or(NONE.of(uar))?;
    if let Some((n, _)) = icm.eqs.iter().find(|(_, eq)| eq.ctx.get(Eqc::UAR_PAGE) == uar) {
        return Err(EQ.of(uar).got(n));
    }
    icm.uars.remove(uar);
    Ok(done())
}

pub(super) fn dealloc_xrcd(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure = bad_resource("DEALLOC_XRCD: the XRC domain is not allocated");
    const USED: Failure = busy("DEALLOC_XRCD: SRQs or XRC queue pairs are in the domain");
    let xrcd = call.number();
    let icm = &mut fw.icm;
    let users = icm.xrcds.get(xrcd).ok_or(NONE.of(xrcd))?.users;
    if users > 0 {
        return Err(USED.of(xrcd).got(users));
    }
    icm.xrcds.remove(xrcd);
    Ok(done())
}

pub(super) fn dealloc_transport_domain(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NONE: Failure = bad_resource("DEALLOC_TRANSPORT_DOMAIN: the domain is not allocated");
    const USED: Failure =
        Failure::new(Status::BadResourceState, "DEALLOC_TRANSPORT_DOMAIN: TISs or TIRs are in the domain");
    let domain = call.number();
    let users = fw.icm.tds.get(domain).ok_or(NONE.of(domain))?.users;
    if users > 0 {
        return Err(USED.of(domain).got(users));
    }
    fw.icm.tds.remove(domain);
    Ok(done())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::Bench;
    use hca_spec::command::{Opcode, Status};

    #[test]
    fn names_come_and_go() {
        for (alloc, dealloc) in [
            (Opcode::AllocPd, Opcode::DeallocPd),
            (Opcode::AllocXrcd, Opcode::DeallocXrcd),
            (Opcode::AllocUar, Opcode::DeallocUar),
            (Opcode::AllocTransportDomain, Opcode::DeallocTransportDomain),
        ] {
            let mut b = Bench::initialized();
            let (one, two) = (b.alloc(alloc), b.alloc(alloc));
            assert_ne!(one, two);
            assert!(one > 0, "zero means none");
            b.ok(dealloc, one);
            assert_eq!(b.object(dealloc, one).status(), Status::BadResource, "twice");
            b.ok(dealloc, two);
        }
    }

    #[test]
    fn a_full_table_refuses() {
        let mut b = Bench::initialized();
        let mut last = 0;
        let refused = loop {
            let r = b.run(Opcode::AllocUar, 0, &[], 16);
            if r.status() != Status::Ok {
                break r;
            }
            assert!(r.number() > last, "the page is beyond the initialization segment and fresh");
            last = r.number();
        };
        assert_eq!(refused.status(), Status::ExceedLimit);
        assert_eq!(last, 8191);
    }

    #[test]
    fn what_is_named_stays() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let key = b.pa_key(rc.pd);
        assert_eq!(b.object(Opcode::DeallocPd, rc.pd).status(), Status::ResourceBusy, "by a queue pair");
        assert_eq!(b.object(Opcode::DeallocUar, rc.uar).status(), Status::ResourceBusy);
        b.ok(Opcode::DestroyQp, rc.qp);
        assert_eq!(b.object(Opcode::DeallocPd, rc.pd).status(), Status::ResourceBusy, "by a key");
        b.ok(Opcode::DestroyMkey, key);
        b.ok(Opcode::DeallocPd, rc.pd);
        assert_eq!(b.object(Opcode::DeallocUar, rc.uar).status(), Status::ResourceBusy, "by the CQ");
        b.ok(Opcode::DestroyCq, rc.cq);
        assert_eq!(b.object(Opcode::DeallocUar, rc.uar).status(), Status::ResourceBusy, "by the EQ");
        b.ok(Opcode::DestroyEq, rc.eq);
        b.ok(Opcode::DeallocUar, rc.uar);
    }
}
