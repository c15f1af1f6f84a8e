//! Multicast groups. Source: PRM "ATTACH_TO_MCG", "DETACH_FROM_MCG"; IBTA 10.5.2.

use hca_spec::caps::General;
use hca_spec::cmd::McgIn;
use hca_spec::ids::{Gid, Qpn};
use hca_spec::qpc::ServiceType;

use super::call::done;
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::Mcg;

const NO_QP: Failure = bad_resource("MCG: there is no QP of that number");

fn names(call: &Call<'_>) -> Result<(Qpn, Gid), Failure> {
    let mcg = call.view::<McgIn>()?;
    Ok((Qpn(mcg.get(McgIn::QPN)), Gid::new(mcg.get(McgIn::GID_H), mcg.get(McgIn::GID_L))))
}

/// Whether it is an IPv4 address of a group (224.0.0.0/4), mapped into IPv6.
fn is_ipv4_group(gid: Gid) -> bool {
    let mapped = std::net::Ipv6Addr::from(gid.0).to_ipv4_mapped();
    mapped.is_some_and(|address| address.is_multicast())
}

pub(super) fn attach(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NOT_UD: Failure =
        bad_param("ATTACH_TO_MCG: qpn: must be that of a UD queue pair: others can't join multicast groups");
    const NOT_MULTICAST: Failure = bad_param("ATTACH_TO_MCG: gid: must be a multicast GID");
    const GROUP_FULL: Failure = no_room("ATTACH_TO_MCG: the group has max_qp_mcg members");
    const TABLE_FULL: Failure = no_room("ATTACH_TO_MCG: there are 2^log_max_mcg groups");
    let (qpn, gid) = names(call)?;
    // RoCE v2 over IPv4 has groups of IPv4, mapped into IPv6 as its GIDs are.
    let is_group = gid.is_multicast() || (fw.is_ethernet() && is_ipv4_group(gid));
    let qp = fw.icm.qps.get_mut(qpn.0).filter(|qp| qp.send_only.is_none()).ok_or(NO_QP.of(qpn.0))?;
    if qp.service() != ServiceType::Ud {
        return Err(NOT_UD.of(qpn.0));
    }
    if !is_group {
        return Err(NOT_MULTICAST.of(qpn.0));
    }
    let members = fw.general.get(General::MAX_QP_MCG);
    let groups = &mut fw.icm.mcgs;
    let full = groups.len() >> fw.general.get(General::LOG_MAX_MCG) != 0;
    match groups.iter_mut().find(|g| g.gid == gid) {
        // A member that joins again stays a member, once.
        Some(group) if group.qps.contains(&qpn) => return Ok(done()),
        Some(group) if group.qps.len() >= members as usize => return Err(GROUP_FULL.limit(members)),
        Some(group) => group.qps.push(qpn),
        None if full => return Err(TABLE_FULL.got(groups.len() as u64)),
        None => groups.push(Mcg { gid, qps: vec![qpn] }),
    }
    qp.multicast += 1;
    Ok(done())
}

pub(super) fn detach(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const NO_MEMBER: Failure = bad_resource("DETACH_FROM_MCG: the queue pair is not in the group");
    let (qpn, gid) = names(call)?;
    let qp = fw.icm.qps.get_mut(qpn.0).ok_or(NO_QP.of(qpn.0))?;
    let groups = &mut fw.icm.mcgs;
    let group = groups.iter_mut().find(|g| g.gid == gid).ok_or(NO_MEMBER.of(qpn.0))?;
    let at = group.qps.iter().position(|q| *q == qpn).ok_or(NO_MEMBER.of(qpn.0))?;
    group.qps.remove(at);
    qp.multicast = qp.multicast.saturating_sub(1);
    groups.retain(|g| !g.qps.is_empty());
    Ok(done())
}

/// ATTACH_TO_MCG and DETACH_FROM_MCG.
pub(super) fn template(fixture: &Fixture) -> Vec<u8> {
    let mut group = McgIn::new();
    group
        .set(McgIn::QPN, fixture.datagram_qp)
        .set(McgIn::GID_H, 0xff12_401b_ffff_0000)
        .set(McgIn::GID_L, 0x1234_5678);
    group.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, ethernet};
    use crate::profile::Config;
    use hca_spec::command::{Opcode, Status};

    /// ff12:401b:ffff::ffff:ffff, the broadcast group of IPoIB.
    const GROUP: [u64; 2] = [0xff12_401b_ffff_0000, 0xffff_ffff];

    fn input(qpn: u32, gid: [u64; 2]) -> McgIn {
        let mut mcg = McgIn::new();
        mcg.set(McgIn::QPN, qpn).set(McgIn::GID_H, gid[0]).set(McgIn::GID_L, gid[1]);
        mcg
    }

    #[test]
    fn join_and_leave() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let ud = b.qp(&rc, ServiceType::Ud);
        let join = |b: &mut Bench, qpn, gid| b.put(Opcode::AttachToMcg, &input(qpn, gid), 16).status();
        assert_eq!(join(&mut b, rc.qp, GROUP), Status::BadParam, "RC queue pairs can't join");
        assert_eq!(join(&mut b, ud, [0xfe80 << 48, 1]), Status::BadParam, "a unicast GID");
        assert_eq!(join(&mut b, 0x999, GROUP), Status::BadResource);
        assert_eq!(join(&mut b, ud, GROUP), Status::Ok);
        assert_eq!(join(&mut b, ud, GROUP), Status::Ok);
        assert_eq!(b.fw.icm.mcgs.len(), 1);
        assert_eq!(b.object(Opcode::DestroyQp, ud).status(), Status::ResourceBusy, "still a member");
        let leave = |b: &mut Bench| b.put(Opcode::DetachFromMcg, &input(ud, GROUP), 16).status();
        assert_eq!((leave(&mut b), leave(&mut b)), (Status::Ok, Status::BadResource));
        assert_eq!(b.fw.resources().now.multicast_groups, 0);
        b.ok(Opcode::DestroyQp, ud);
    }

    #[test]
    fn groups_of_ipv4_are_for_ethernet() {
        let mapped = |address: u32| [0, 0xffff_0000_0000 | u64::from(address)];
        for (config, status) in [(Config::default(), Status::BadParam), (ethernet(), Status::Ok)] {
            let mut b = Bench::initialized_with(config);
            let rc = b.connection();
            let ud = b.qp(&rc, ServiceType::Ud);
            let join = |b: &mut Bench, gid| b.put(Opcode::AttachToMcg, &input(ud, gid), 16).status();
            assert_eq!(join(&mut b, mapped(0xe600_0001)), status, "230.0.0.1");
            assert_eq!(join(&mut b, mapped(0x0a01_0001)), Status::BadParam, "10.1.0.1");
        }
    }

    #[test]
    fn a_group_has_a_bound() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let limit = b.fw.general.get(General::MAX_QP_MCG);
        b.give_pages(limit);
        for _ in 0..limit {
            let ud = b.qp(&rc, ServiceType::Ud);
            assert_eq!(b.put(Opcode::AttachToMcg, &input(ud, GROUP), 16).status(), Status::Ok);
        }
        let ud = b.qp(&rc, ServiceType::Ud);
        assert_eq!(b.put(Opcode::AttachToMcg, &input(ud, GROUP), 16).status(), Status::ExceedLimit);
    }
}
