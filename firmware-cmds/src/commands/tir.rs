//! Transport interfaces of receivers (TIR). Source: PRM "CREATE_TIR", "MODIFY_TIR", "DESTROY_TIR", "QUERY_TIR"; the mlx5
//! driver for what the bits about packets of the own domain mean.

use hca_spec::caps::{EthernetOffloads, General};
use hca_spec::command::Status;
use hca_spec::ids::Rqn;
use hca_spec::transport::{
    CreateTirIn, CreateTirOut, ModifyTirIn, QueryTirOut, TIR_DIRECT, TIR_HASH_KEY, TIR_INDIRECT, Tirc,
    modify_tir,
};

use super::call::{done, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::object::Kind;
use crate::steering::address_of_tir;
use crate::transport::{AllowSelf, Dispatch, HASH_KEY, HashFields, HashFunction, Merge, Tir};

const NO_TIR: Failure = bad_resource("there is no TIR of that number");
const NO_RQT: Failure = bad_resource("TIR: indirect_table names no RQT");
const MERGE: Failure = bad_param(
    "TIR: packet_merge_mask: bits 0 (TCP over IPv4) and 1 (over IPv6), if the adapter merges packets",
);
const PERIOD: Failure = bad_param("TIR: lro_timeout_period_usecs is none of the lro_timer_supported_periods");
/// [`Tirc::SELF_LB_BLOCK`]: to one station.
const UNICAST: u32 = 1;
/// [`Tirc::SELF_LB_BLOCK`]: to groups.
const MULTICAST: u32 = 2;

/// One use more or less of what a TIR dispatches to.
fn hold_dispatch(fw: &mut Firmware, dispatch: Dispatch, held: bool) {
    let users = match dispatch {
        Dispatch::Direct(rqn) => fw.icm.rqs.get_mut(rqn.0).map(|rq| &mut rq.users),
        Dispatch::Indirect(rqtn) => fw.icm.rqts.get_mut(rqtn).map(|rqt| &mut rqt.users),
    };
    if let Some(users) = users {
        *users = if held { *users + 1 } else { users.saturating_sub(1) };
    }
}

/// One use more or less of what a TIR names.
fn hold(fw: &mut Firmware, tir: &Tir, held: bool) {
    hold_dispatch(fw, tir.dispatch, held);
    if let Some(td) = fw.icm.tds.get_mut(tir.td) {
        td.users = if held { td.users + 1 } else { td.users.saturating_sub(1) };
    }
}

/// Takes the fields about the hash over into a TIR.
fn set_hash(tir: &mut Tir, tirc: &Tirc) -> Result<(), Failure> {
    const FUNCTION: Failure = bad_param("TIR: rx_hash_fn must be 0 (none), 1 (XOR8) or 2 (Toeplitz)");
    const FIELDS: Failure = bad_param("TIR: rx_hash_field_selector has reserved bits");
    let function = tirc.get(Tirc::RX_HASH_FN);
    let fields = |field| {
        let bits = tirc.get(field);
        HashFields::from_bits(bits).ok_or(FIELDS.got(bits))
    };
    tir.hash = HashFunction::from_bits(function).ok_or(FUNCTION.got(function))?;
    tir.outer = fields(Tirc::RX_HASH_FIELD_OUTER)?;
    // Counts only where tunnels are looked into, which they are not.
    tir.inner = fields(Tirc::RX_HASH_FIELD_INNER)?;
    tir.symmetric = tirc.get(Tirc::RX_HASH_SYMMETRIC) == 1;
    tir.key = [0; HASH_KEY];
    let key = tirc.bytes().get(TIR_HASH_KEY..).unwrap_or_default();
    tir.key.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    Ok(())
}

fn allow_self(tirc: &Tirc) -> AllowSelf {
    let bits = tirc.get(Tirc::SELF_LB_BLOCK);
    AllowSelf { unicast: bits & UNICAST != 0, multicast: bits & MULTICAST != 0 }
}

/// The fields about packets that are merged.
fn merge_of(fw: &Firmware, tirc: &Tirc) -> Result<Merge, Failure> {
    const V4: u32 = 1 << 0;
    const V6: u32 = 1 << 1;
    let offers = &fw.personality().capabilities.ethernet.offloads;
    let mask = tirc.get(Tirc::PACKET_MERGE_MASK);
    let legal = if offers.get(EthernetOffloads::LRO_CAP) == 1 { V4 | V6 } else { 0 };
    if mask & !legal != 0 {
        return Err(MERGE.got(mask).limit(legal));
    }
    let timeout = tirc.get(Tirc::LRO_TIMEOUT_PERIOD_USECS);
    let periods = [
        EthernetOffloads::LRO_TIMER_SUPPORTED_PERIODS_0,
        EthernetOffloads::LRO_TIMER_SUPPORTED_PERIODS_1,
        EthernetOffloads::LRO_TIMER_SUPPORTED_PERIODS_2,
        EthernetOffloads::LRO_TIMER_SUPPORTED_PERIODS_3,
    ];
    if mask != 0 && periods.into_iter().all(|period| offers.get(period) != timeout) {
        return Err(PERIOD.got(timeout));
    }
    Ok(Merge {
        v4: mask & V4 != 0,
        v6: mask & V6 != 0,
        most: tirc.get(Tirc::LRO_MAX_IP_PAYLOAD_SIZE) as u8,
        timeout: timeout as u16,
    })
}

fn check_offloads(tirc: &Tirc) -> Result<(), Failure> {
    const TLS: Failure = bad_param("TIR: tls_en: the adapter does not decrypt records");
    if tirc.get(Tirc::TLS_EN) == 1 {
        return Err(TLS);
    }
    Ok(())
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const TYPE: Failure = bad_param("CREATE_TIR: disp_type must be 0 (direct) or 1 (indirect)");
    const NO_RQ: Failure = bad_resource("CREATE_TIR: inline_rqn names no RQ");
    const NO_TD: Failure = bad_resource("CREATE_TIR: transport_domain: it is not allocated");
    const FULL: Failure = no_room("CREATE_TIR: there are 2^log_max_tir transport interfaces");
    let tirc = call.view::<CreateTirIn>()?.tirc();
    check_offloads(tirc)?;
    let merge = merge_of(fw, tirc)?;
    let dispatch = match tirc.get(Tirc::DISP_TYPE) {
        TIR_DIRECT => {
            let rqn = tirc.get(Tirc::INLINE_RQN);
            fw.icm.rqs.get(rqn).ok_or(NO_RQ.got(rqn))?;
            Dispatch::Direct(Rqn(rqn))
        }
        TIR_INDIRECT => {
            let rqtn = tirc.get(Tirc::INDIRECT_TABLE);
            fw.icm.rqts.get(rqtn).ok_or(NO_RQT.got(rqtn))?;
            Dispatch::Indirect(rqtn)
        }
        other => return Err(TYPE.got(other)),
    };
    // Domain 0 is none: programs make receivers before they know their senders' domain (DPDK's mlx5 driver does).
    let td = tirc.get(Tirc::TRANSPORT_DOMAIN);
    if td != 0 && fw.icm.tds.get(td).is_none() {
        return Err(NO_TD.got(td));
    }
    // Tunnels are none to the adapter (tunnel_stateless_*): their packets are hashed, and their sums checked, by what is outside.
    let tunnels = tirc.get(Tirc::TUNNELED_OFFLOAD_EN) == 1;
    let mut tir = Tir { dispatch, td, allow_self: allow_self(tirc), merge, tunnels, ..Tir::default() };
    set_hash(&mut tir, tirc)?;
    if fw.icm.tirs.len() >> fw.general.get(General::LOG_MAX_TIR) != 0 {
        return Err(FULL.got(fw.icm.tirs.len()));
    }
    let number = fw.icm.tirs.insert(tir).map_err(|_| FULL)?;
    hold(fw, &tir, true);
    let mut out = CreateTirOut::new();
    out.set(CreateTirOut::TIRN, number);
    if fw.icm.steering.offer().has_software() {
        // Where entries that drivers write send packets to come here.
        let address = address_of_tir(number);
        out.set(CreateTirOut::ICM_ADDRESS_63_40, (address >> 40) as u32);
        out.set(CreateTirOut::ICM_ADDRESS_39_32, (address >> 32) as u32 & 0xff);
        out.set(CreateTirOut::ICM_ADDRESS_31_0, address as u32);
    }
    Ok(reply(&out))
}

pub(super) fn modify(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const BITS: Failure = bad_param("MODIFY_TIR: bitmask: it has reserved bits");
    const DIRECT: Failure = bad_param("MODIFY_TIR: indirect_table: the TIR is direct, and stays so");
    const ALL: u64 = modify_tir::PACKET_MERGE
        | modify_tir::INDIRECT_TABLE
        | modify_tir::HASH
        | modify_tir::TUNNELED_OFFLOAD_EN
        | modify_tir::SELF_LB;
    let modify = call.view::<ModifyTirIn>()?;
    let number = call.number();
    let (bits, new) = (modify.get(ModifyTirIn::BITMASK), modify.tirc());
    let old = *fw.icm.tirs.get(number).ok_or(NO_TIR.of(number))?;
    let mut tir = old;
    if bits & !ALL != 0 {
        return Err(BITS.of(number).got(bits));
    }
    if bits & modify_tir::PACKET_MERGE != 0 {
        tir.merge = merge_of(fw, new).map_err(|failure| failure.of(number))?;
    }
    if bits & modify_tir::TUNNELED_OFFLOAD_EN != 0 {
        tir.tunnels = new.get(Tirc::TUNNELED_OFFLOAD_EN) == 1;
    }
    if bits & modify_tir::INDIRECT_TABLE != 0 {
        let Dispatch::Indirect(table) = &mut tir.dispatch else { return Err(DIRECT.of(number)) };
        *table = new.get(Tirc::INDIRECT_TABLE);
        fw.icm.rqts.get(*table).ok_or(NO_RQT.of(number).got(*table))?;
    }
    if bits & modify_tir::HASH != 0 {
        set_hash(&mut tir, new)?;
    }
    if bits & modify_tir::SELF_LB != 0 {
        tir.allow_self = allow_self(new);
    }
    hold_dispatch(fw, tir.dispatch, true);
    hold_dispatch(fw, old.dispatch, false);
    if let Some(to) = fw.icm.tirs.get_mut(number) {
        *to = tir;
    }
    Ok(done())
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const USED: Failure =
        Failure::new(Status::BadResourceState, "DESTROY_TIR: flow table entries still name the TIR");
    let number = call.number();
    let others = fw.icm.tirs.get(number).ok_or(NO_TIR.of(number))?.users;
    let users = others.saturating_add(fw.icm.steering.tir_users(number));
    if users > 0 {
        return Err(USED.of(number).got(users));
    }
    let tir = fw.icm.tirs.remove(number).ok_or(NO_TIR.of(number))?;
    hold(fw, &tir, false);
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let number = call.number();
    let tir = fw.icm.tirs.get(number).ok_or(NO_TIR.of(number))?;
    let mut out = QueryTirOut::new();
    let tirc = out.tirc_mut();
    match tir.dispatch {
        Dispatch::Direct(rqn) => tirc.set(Tirc::DISP_TYPE, TIR_DIRECT).set(Tirc::INLINE_RQN, rqn.0),
        Dispatch::Indirect(rqtn) => tirc.set(Tirc::DISP_TYPE, TIR_INDIRECT).set(Tirc::INDIRECT_TABLE, rqtn),
    };
    let allowed =
        (u32::from(tir.allow_self.unicast) * UNICAST) | (u32::from(tir.allow_self.multicast) * MULTICAST);
    tirc.set(Tirc::RX_HASH_SYMMETRIC, tir.symmetric.into()).set(Tirc::RX_HASH_FN, tir.hash as u32);
    tirc.set(Tirc::SELF_LB_BLOCK, allowed).set(Tirc::TRANSPORT_DOMAIN, tir.td);
    tirc.set(Tirc::TUNNELED_OFFLOAD_EN, tir.tunnels.into());
    let merge = tir.merge;
    tirc.set(Tirc::PACKET_MERGE_MASK, u32::from(merge.v4) | u32::from(merge.v6) << 1);
    tirc.set(Tirc::LRO_MAX_IP_PAYLOAD_SIZE, merge.most.into());
    tirc.set(Tirc::LRO_TIMEOUT_PERIOD_USECS, merge.timeout.into());
    tirc.set(Tirc::RX_HASH_FIELD_OUTER, tir.outer.bits()).set(Tirc::RX_HASH_FIELD_INNER, tir.inner.bits());
    let key = tirc.bytes_mut().get_mut(TIR_HASH_KEY..).unwrap_or_default();
    key.iter_mut().zip(tir.key).for_each(|(to, from)| *to = from);
    Ok(reply(&out))
}

/// CREATE_TIR: by hash from a table.
pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateTirIn::new();
    let tirc = create.tirc_mut();
    tirc.set(Tirc::DISP_TYPE, TIR_INDIRECT).set(Tirc::INDIRECT_TABLE, fixture.number(Kind::Rqt));
    tirc.set(Tirc::RX_HASH_FN, HashFunction::Toeplitz as u32).set(Tirc::RX_HASH_KEY_0, 0x2cc6_81d1_5bdb_f4f7);
    tirc.set(Tirc::RX_HASH_FIELD_OUTER, 0xf);
    tirc.set(Tirc::TRANSPORT_DOMAIN, fixture.number(Kind::TransportDomain));
    create.bytes().to_vec()
}

/// MODIFY_TIR: takes packets of its own domain.
pub(super) fn modify_template(fixture: &Fixture) -> Vec<u8> {
    let mut modify = ModifyTirIn::new();
    modify.set(ModifyTirIn::TIRN, fixture.number(Kind::Tir)).set(ModifyTirIn::BITMASK, modify_tir::SELF_LB);
    modify.tirc_mut().set(Tirc::SELF_LB_BLOCK, UNICAST);
    modify.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Nic;
    use hca_spec::command::Opcode;

    fn direct(rq: u32, td: u32) -> CreateTirIn {
        let mut c = CreateTirIn::new();
        c.tirc_mut().set(Tirc::INLINE_RQN, rq).set(Tirc::TRANSPORT_DOMAIN, td);
        c
    }

    fn indirect(rqt: u32, td: u32) -> CreateTirIn {
        let mut c = CreateTirIn::new();
        let t = c.tirc_mut();
        t.set(Tirc::DISP_TYPE, TIR_INDIRECT).set(Tirc::INDIRECT_TABLE, rqt).set(Tirc::TRANSPORT_DOMAIN, td);
        t.set(Tirc::RX_HASH_FN, 2).set(Tirc::RX_HASH_KEY_0, 0x0102_0304_0506_0708);
        t.set(Tirc::RX_HASH_KEY_4, 0x2122_2324_2526_2728).set(Tirc::RX_HASH_SYMMETRIC, 1);
        t.set(Tirc::RX_HASH_FIELD_OUTER, 0x8000_000f).set(Tirc::SELF_LB_BLOCK, 2);
        c
    }

    #[test]
    fn life() {
        let (mut b, nic) = Nic::bench();
        let rq = b.rq(&nic);
        let [one, two] = [b.rqt(&[rq]), b.rqt(&[rq])];
        let number = b.put(Opcode::CreateTir, &indirect(one, nic.td), 16).number();
        let tir = *b.fw.icm.tirs.get(number).unwrap();
        assert_eq!(
            (tir.dispatch, tir.hash, tir.symmetric),
            (Dispatch::Indirect(one), HashFunction::Toeplitz, true)
        );
        assert_eq!((tir.key[..3].to_vec(), tir.key[39]), (vec![1, 2, 3], 0x28));
        assert!(tir.outer.v6 && !tir.outer.udp && tir.outer.dst_port && !tir.allow_self.unicast);
        assert!(tir.allow_self.multicast);
        let r = b.object_into(Opcode::QueryTir, number, QueryTirOut::SIZE);
        assert_eq!(r.output[0x20..], indirect(one, nic.td).bytes()[0x20..], "as it was given");
        assert_eq!(b.object(Opcode::DestroyRqt, one).status(), Status::BadResourceState);
        assert_eq!(b.object(Opcode::DeallocTransportDomain, nic.td).status(), Status::BadResourceState);
        let mut m = ModifyTirIn::new();
        m.set(ModifyTirIn::TIRN, number);
        m.set(ModifyTirIn::BITMASK, modify_tir::INDIRECT_TABLE | modify_tir::SELF_LB);
        m.tirc_mut().set(Tirc::INDIRECT_TABLE, two).set(Tirc::SELF_LB_BLOCK, 1).set(Tirc::RX_HASH_FN, 1);
        assert_eq!(b.put(Opcode::ModifyTir, &m, 16).status(), Status::Ok);
        let tir = *b.fw.icm.tirs.get(number).unwrap();
        assert_eq!((tir.dispatch, tir.hash), (Dispatch::Indirect(two), HashFunction::Toeplitz));
        assert!(tir.allow_self.unicast && !tir.allow_self.multicast);
        b.ok(Opcode::DestroyRqt, one);
        assert_eq!(b.object(Opcode::DestroyRqt, two).status(), Status::BadResourceState);
        m.set(ModifyTirIn::BITMASK, modify_tir::HASH);
        assert_eq!(b.put(Opcode::ModifyTir, &m, 16).status(), Status::Ok);
        assert_eq!(b.fw.icm.tirs.get(number).unwrap().hash, HashFunction::InvertedXor8);
        b.fw.icm.tirs.get_mut(number).unwrap().users = 1;
        assert_eq!(b.object(Opcode::DestroyTir, number).status(), Status::BadResourceState);
        b.fw.icm.tirs.get_mut(number).unwrap().users = 0;
        b.ok(Opcode::DestroyTir, number);
        b.ok(Opcode::DestroyRqt, two);
        b.ok(Opcode::DestroyRq, rq);
        b.ok(Opcode::DeallocTransportDomain, nic.td);
    }

    #[test]
    fn packets_are_merged_on_request() {
        let (mut b, nic) = Nic::bench();
        let rq = b.rq(&nic);
        let mut c = direct(rq, nic.td);
        let set = |t: &mut Tirc, mask, most, timeout| {
            t.set(Tirc::PACKET_MERGE_MASK, mask).set(Tirc::LRO_MAX_IP_PAYLOAD_SIZE, most);
            t.set(Tirc::LRO_TIMEOUT_PERIOD_USECS, timeout);
        };
        set(c.tirc_mut(), 1, 16, 8);
        let number = b.put(Opcode::CreateTir, &c, 16).number();
        let of = |b: &crate::commands::testing::Bench| b.fw.icm.tirs.get(number).unwrap().merge;
        assert_eq!(of(&b), Merge { v4: true, v6: false, most: 16, timeout: 8 });
        let r = b.object_into(Opcode::QueryTir, number, QueryTirOut::SIZE);
        assert_eq!(r.output[0x20..], c.bytes()[0x20..], "as it was given");
        let mut m = ModifyTirIn::new();
        m.set(ModifyTirIn::TIRN, number).set(ModifyTirIn::BITMASK, modify_tir::PACKET_MERGE);
        set(m.tirc_mut(), 3, 255, 32);
        assert_eq!(b.put(Opcode::ModifyTir, &m, 16).status(), Status::Ok);
        assert_eq!(of(&b), Merge { v4: true, v6: true, most: 255, timeout: 32 });
        set(m.tirc_mut(), 0, 0, 0);
        assert_eq!(b.put(Opcode::ModifyTir, &m, 16).status(), Status::Ok);
        assert!(!of(&b).is_on());
    }

    #[test]
    fn a_direct_one_holds_its_queue() {
        let (mut b, nic) = Nic::bench();
        let rq = b.rq(&nic);
        let number = b.put(Opcode::CreateTir, &direct(rq, nic.td), 16).number();
        assert_eq!(b.object(Opcode::DestroyRq, rq).status(), Status::BadResourceState);
        let mut m = ModifyTirIn::new();
        m.set(ModifyTirIn::TIRN, number).set(ModifyTirIn::BITMASK, modify_tir::INDIRECT_TABLE);
        assert_eq!(b.put(Opcode::ModifyTir, &m, 16).status(), Status::BadParam);
        b.ok(Opcode::DestroyTir, number);
        b.ok(Opcode::DestroyRq, rq);
    }

    #[test]
    fn refusals() {
        let (mut b, nic) = Nic::bench();
        let rq = b.rq(&nic);
        let mut attempt = |change: fn(&mut Tirc)| {
            let mut c = direct(rq, nic.td);
            change(c.tirc_mut());
            b.put(Opcode::CreateTir, &c, 16).status()
        };
        for change in [
            (|t| _ = t.set(Tirc::DISP_TYPE, 2)) as fn(&mut Tirc),
            |t| _ = t.set(Tirc::TLS_EN, 1),
            |t| _ = t.set(Tirc::PACKET_MERGE_MASK, 4).set(Tirc::LRO_TIMEOUT_PERIOD_USECS, 32),
            |t| _ = t.set(Tirc::PACKET_MERGE_MASK, 1).set(Tirc::LRO_TIMEOUT_PERIOD_USECS, 33),
            |t| _ = t.set(Tirc::RX_HASH_FN, 3),
            |t| _ = t.set(Tirc::RX_HASH_FIELD_OUTER, 1 << 5),
            |t| _ = t.set(Tirc::RX_HASH_FIELD_INNER, 1 << 29),
        ] {
            assert_eq!(attempt(change), Status::BadParam);
        }
        assert_eq!(attempt(|t| _ = t.set(Tirc::INLINE_RQN, 0)), Status::BadResource);
        assert_eq!(attempt(|t| _ = t.set(Tirc::TRANSPORT_DOMAIN, 0x777)), Status::BadResource);
        assert_eq!(attempt(|t| _ = t.set(Tirc::DISP_TYPE, 1)), Status::BadResource);
        assert_eq!(attempt(|_| {}), Status::Ok);
        let rqt = b.rqt(&[rq]);
        let number = b.put(Opcode::CreateTir, &indirect(rqt, nic.td), 16).number();
        let before = *b.fw.icm.tirs.get(number).unwrap();
        for (bits, change) in [
            (modify_tir::PACKET_MERGE, (|t| _ = t.set(Tirc::PACKET_MERGE_MASK, 8)) as fn(&mut Tirc)),
            (modify_tir::SELF_LB | modify_tir::HASH, |t| _ = t.set(Tirc::RX_HASH_FN, 9)),
            (1 << 5, |_| {}),
        ] {
            let mut m = ModifyTirIn::new();
            m.set(ModifyTirIn::TIRN, number).set(ModifyTirIn::BITMASK, bits);
            change(m.tirc_mut());
            assert_eq!(b.put(Opcode::ModifyTir, &m, 16).status(), Status::BadParam, "{bits:#x}");
        }
        assert_eq!(*b.fw.icm.tirs.get(number).unwrap(), before, "a refusal changes nothing");
        b.fw.general.set(General::LOG_MAX_TIR, 0);
        assert_eq!(b.put(Opcode::CreateTir, &direct(rq, nic.td), 16).status(), Status::ExceedLimit);
    }
}
