//! Objects that are only names: protection domains, XRC domains, transport domains, UAR pages; and
//! multicast groups.
//!
//! Source: PRM "ALLOC_PD", "ALLOC_UAR", "ALLOC_XRCD", "ALLOC_TRANSPORT_DOMAIN", "ATTACH_TO_MCG".

use hca_spec::caps::General;
use hca_spec::cmd::{McgIn, ObjectIn, ObjectOut};
use hca_spec::command::Opcode;
use hca_spec::ids::{Gid, Qpn};
use hca_spec::qpc::ServiceType;

use super::{Outcome, done, view};
use crate::failure::{Failure, bad_param, bad_resource, busy, no_room};
use crate::firmware::Firmware;
use crate::icm::{Domain, Icm, Mcg};
use crate::table::Table;

type Domains = Table<Domain>;

fn table(icm: &mut Icm, opcode: Opcode) -> &mut Domains {
    match opcode {
        Opcode::AllocPd | Opcode::DeallocPd => &mut icm.pds,
        Opcode::AllocXrcd | Opcode::DeallocXrcd => &mut icm.xrcds,
        Opcode::AllocTransportDomain | Opcode::DeallocTransportDomain => &mut icm.tds,
        _ => &mut icm.uars,
    }
}

pub(super) fn execute(fw: &mut Firmware, opcode: Opcode, input: &[u8]) -> Outcome {
    const NONE: Failure = bad_resource("there is no such domain or UAR page");
    const USED: Failure = busy("the domain is still named by other objects");
    let table = table(&mut fw.icm, opcode);
    match opcode {
        Opcode::AllocPd | Opcode::AllocXrcd | Opcode::AllocTransportDomain | Opcode::AllocUar => {
            let number = table.insert(Domain::default()).map_err(|_| no_room("every number is in use"))?;
            Ok(ObjectOut::new().set(ObjectOut::NUMBER, number).bytes().to_vec())
        }
        _ => {
            let number = view::<ObjectIn>(input)?.get(ObjectIn::NUMBER);
            if table.get(number).ok_or(NONE)?.users > 0 {
                return Err(USED);
            }
            table.remove(number);
            Ok(done())
        }
    }
}

pub(super) fn multicast(fw: &mut Firmware, opcode: Opcode, input: &[u8]) -> Outcome {
    const NO_QP: Failure = bad_resource("there is no QP of that number");
    const NOT_UD: Failure = bad_param("only UD queue pairs can join multicast groups");
    const NOT_MULTICAST: Failure = bad_param("the GID is not a multicast GID");
    const FULL: Failure = no_room("the multicast group or the table of groups is full");
    const NO_MEMBER: Failure = bad_resource("the queue pair is not in the group");
    let mcg = view::<McgIn>(input)?;
    let qpn = Qpn(mcg.get(McgIn::QPN));
    let gid = Gid::new(mcg.get(McgIn::GID_H), mcg.get(McgIn::GID_L));
    let qp = fw.icm.qps.get_mut(qpn.0).ok_or(NO_QP)?;
    let groups = &mut fw.icm.mcgs;
    let place = groups.iter().position(|g| g.gid == gid);
    let full = groups.len() >> fw.general.get(General::LOG_MAX_MCG) != 0;
    if opcode == Opcode::AttachToMcg {
        if qp.service() != ServiceType::Ud {
            return Err(NOT_UD);
        }
        if !gid.is_multicast() {
            return Err(NOT_MULTICAST);
        }
        let member = place.and_then(|i| groups.get_mut(i));
        match member {
            Some(group) if group.qps.contains(&qpn) => return Ok(done()),
            Some(group) if group.qps.len() >= fw.general.get(General::MAX_QP_MCG) as usize => {
                return Err(FULL);
            }
            Some(group) => group.qps.push(qpn),
            None if full => return Err(FULL),
            None => groups.push(Mcg { gid, qps: vec![qpn] }),
        }
        qp.multicast += 1;
    } else {
        let group = place.and_then(|i| groups.get_mut(i)).ok_or(NO_MEMBER)?;
        let at = group.qps.iter().position(|q| *q == qpn).ok_or(NO_MEMBER)?;
        group.qps.remove(at);
        qp.multicast = qp.multicast.saturating_sub(1);
        groups.retain(|g| !g.qps.is_empty());
    }
    Ok(done())
}
