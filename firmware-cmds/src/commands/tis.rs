//! Transport interfaces of senders (TIS). Source: PRM "CREATE_TIS", "MODIFY_TIS", "DESTROY_TIS", "QUERY_TIS".

use hca_spec::caps::General;
use hca_spec::command::Status;
use hca_spec::transport::{CreateTisIn, ModifyTisIn, QueryTisOut, Tisc, modify_tis};

use super::call::{done, named, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::object::Kind;
use crate::transport::Tis;

const NO_TIS: Failure = bad_resource("there is no TIS of that number");

/// Counts the TIS among the users of what it names.
fn hold(fw: &mut Firmware, tis: &Tis, held: bool) {
    let change = |users: &mut u32| *users = if held { *users + 1 } else { users.saturating_sub(1) };
    if let Some(td) = fw.icm.tds.get_mut(tis.td) {
        change(&mut td.users);
    }
    if let Some(pd) = fw.icm.pds.get_mut(tis.pd) {
        change(&mut pd.users);
    }
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const TLS: Failure = bad_param("CREATE_TIS: tls_en: the adapter does not encrypt records");
    const UNDERLAY: Failure =
        bad_param("CREATE_TIS: underlay_qpn: only IP over InfiniBand has one, and the port is Ethernet");
    const NO_TD: Failure = bad_resource("CREATE_TIS: transport_domain: it is not allocated");
    const NO_PD: Failure = bad_resource("CREATE_TIS: pd: the protection domain is not allocated");
    const FULL: Failure = no_room("CREATE_TIS: there are 2^log_max_tis transport interfaces");
    let tisc = call.view::<CreateTisIn>()?.tisc();
    if tisc.get(Tisc::TLS_EN) == 1 {
        return Err(TLS);
    }
    if tisc.get(Tisc::UNDERLAY_QPN) != 0 {
        return Err(UNDERLAY.got(tisc.get(Tisc::UNDERLAY_QPN)));
    }
    let (td, pd) = (tisc.get(Tisc::TRANSPORT_DOMAIN), tisc.get(Tisc::PD));
    // Domain 0 is none.
    if td != 0 && fw.icm.tds.get(td).is_none() {
        return Err(NO_TD.got(td));
    }
    // Only TLS needs one.
    if pd != 0 && fw.icm.pds.get(pd).is_none() {
        return Err(NO_PD.got(pd));
    }
    if fw.icm.tiss.len() >> fw.general.get(General::LOG_MAX_TIS) != 0 {
        return Err(FULL.got(fw.icm.tiss.len()));
    }
    let tis = Tis {
        td,
        prio: tisc.get(Tisc::PRIO) as u8,
        pd,
        lag_tx_port_affinity: tisc.get(Tisc::LAG_TX_PORT_AFFINITY) as u8,
        strict_lag_affinity: tisc.get(Tisc::STRICT_LAG_TX_PORT_AFFINITY) == 1,
        users: 0,
    };
    let number = fw.icm.tiss.insert(tis).map_err(|_| FULL)?;
    hold(fw, &tis, true);
    named(number)
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const BITS: Failure = bad_param("MODIFY_TIS: bitmask: it has reserved bits");
    const ALL: u64 =
        modify_tis::PRIO | modify_tis::STRICT_LAG_TX_PORT_AFFINITY | modify_tis::LAG_TX_PORT_AFFINITY;
    let modify = call.view::<ModifyTisIn>()?;
    let number = call.number();
    let (bits, new) = (modify.get(ModifyTisIn::BITMASK), modify.tisc());
    let tis = fw.icm.tiss.get_mut(number).ok_or(NO_TIS.of(number))?;
    if bits & !ALL != 0 {
        return Err(BITS.of(number).got(bits));
    }
    if bits & modify_tis::PRIO != 0 {
        tis.prio = new.get(Tisc::PRIO) as u8;
    }
    if bits & modify_tis::STRICT_LAG_TX_PORT_AFFINITY != 0 {
        tis.strict_lag_affinity = new.get(Tisc::STRICT_LAG_TX_PORT_AFFINITY) == 1;
    }
    if bits & modify_tis::LAG_TX_PORT_AFFINITY != 0 {
        tis.lag_tx_port_affinity = new.get(Tisc::LAG_TX_PORT_AFFINITY) as u8;
    }
    Ok(done())
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const USED: Failure =
        Failure::new(Status::BadResourceState, "DESTROY_TIS: send queues still send by the TIS");
    let number = call.number();
    let users = fw.icm.tiss.get(number).ok_or(NO_TIS.of(number))?.users;
    if users > 0 {
        return Err(USED.of(number).got(users));
    }
    let tis = fw.icm.tiss.remove(number).ok_or(NO_TIS.of(number))?;
    hold(fw, &tis, false);
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let number = call.number();
    let tis = fw.icm.tiss.get(number).ok_or(NO_TIS.of(number))?;
    let mut out = QueryTisOut::new();
    let tisc = out.tisc_mut();
    tisc.set(Tisc::TRANSPORT_DOMAIN, tis.td).set(Tisc::PD, tis.pd).set(Tisc::PRIO, tis.prio.into());
    tisc.set(Tisc::LAG_TX_PORT_AFFINITY, tis.lag_tx_port_affinity.into());
    tisc.set(Tisc::STRICT_LAG_TX_PORT_AFFINITY, tis.strict_lag_affinity.into());
    Ok(reply(&out))
}

pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateTisIn::new();
    create.tisc_mut().set(Tisc::TRANSPORT_DOMAIN, fixture.number(Kind::TransportDomain)).set(Tisc::PRIO, 2);
    create.bytes().to_vec()
}

/// MODIFY_TIS: another priority.
pub(super) fn modify_template(fixture: &Fixture) -> Vec<u8> {
    let mut modify = ModifyTisIn::new();
    modify.set(ModifyTisIn::TISN, fixture.number(Kind::Tis)).set(ModifyTisIn::BITMASK, modify_tis::PRIO);
    modify.tisc_mut().set(Tisc::PRIO, 4);
    modify.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, ethernet};
    use hca_spec::command::Opcode;

    fn tis(td: u32) -> CreateTisIn {
        let mut c = CreateTisIn::new();
        c.tisc_mut().set(Tisc::TRANSPORT_DOMAIN, td).set(Tisc::PRIO, 6);
        c
    }

    #[test]
    fn life() {
        let mut b = Bench::initialized_with(ethernet());
        let td = b.alloc(Opcode::AllocTransportDomain);
        let number = b.put(Opcode::CreateTis, &tis(td), 16).number();
        let mut m = ModifyTisIn::new();
        m.set(ModifyTisIn::TISN, number).set(ModifyTisIn::BITMASK, modify_tis::LAG_TX_PORT_AFFINITY);
        m.tisc_mut().set(Tisc::LAG_TX_PORT_AFFINITY, 1).set(Tisc::PRIO, 14);
        assert_eq!(b.put(Opcode::ModifyTis, &m, 16).status(), Status::Ok);
        let r = b.object_into(Opcode::QueryTis, number, QueryTisOut::SIZE);
        let out = QueryTisOut::from_prefix_or_zero(&r.output);
        let read = |field| out.tisc().get(field);
        assert_eq!((read(Tisc::TRANSPORT_DOMAIN), read(Tisc::PRIO)), (td, 6), "only what is selected");
        assert_eq!(read(Tisc::LAG_TX_PORT_AFFINITY), 1);
        assert_eq!(hca_spec::be32(&r.output, 0x34), td, "where drivers read it");
        assert_eq!(b.object(Opcode::DeallocTransportDomain, td).status(), Status::BadResourceState);
        b.ok(Opcode::DestroyTis, number);
        assert_eq!(b.object(Opcode::DestroyTis, number).status(), Status::BadResource);
        b.ok(Opcode::DeallocTransportDomain, td);
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized_with(ethernet());
        let td = b.alloc(Opcode::AllocTransportDomain);
        let mut attempt = |change: fn(&mut Tisc)| {
            let mut c = tis(td);
            change(c.tisc_mut());
            b.put(Opcode::CreateTis, &c, 16).status()
        };
        assert_eq!(attempt(|t| _ = t.set(Tisc::TLS_EN, 1)), Status::BadParam);
        assert_eq!(attempt(|t| _ = t.set(Tisc::UNDERLAY_QPN, 1)), Status::BadParam);
        assert_eq!(attempt(|t| _ = t.set(Tisc::TRANSPORT_DOMAIN, 0x777)), Status::BadResource);
        assert_eq!(attempt(|t| _ = t.set(Tisc::PD, 77)), Status::BadResource);
        let number = b.put(Opcode::CreateTis, &tis(td), 16).number();
        let mut m = ModifyTisIn::new();
        m.set(ModifyTisIn::TISN, number).set(ModifyTisIn::BITMASK, 8);
        assert_eq!(b.put(Opcode::ModifyTis, &m, 16).status(), Status::BadParam);
        b.fw.general.set(General::LOG_MAX_TIS, 0);
        assert_eq!(b.put(Opcode::CreateTis, &tis(td), 16).status(), Status::ExceedLimit);
    }

    #[test]
    fn not_on_infiniband() {
        let mut b = Bench::initialized();
        assert_eq!(b.put(Opcode::CreateTis, &tis(1), 16).status(), Status::BadOp);
    }
}
