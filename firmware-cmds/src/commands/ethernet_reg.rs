//! ACCESS_REGISTER: registers that only Ethernet ports have, or that say something else there.
//!
//! Source: PRM "Port registers"; IEEE 802.3 clause 30, RFC 2863 and RFC 2819 for what counters count.

use hca_spec::cmd::reg;
use hca_spec::register::{
    MCIA_NO_MEMORY, Mcia, PPCNT_COUNTERS, PROTO_ETHERNET, Pcam, Pcmr, Pfcc, Pmlp, Pmtu, Ppcnt, Pplm, Ptys,
    Qcam, Qetcr, Qpdpm, Qpts, Qtct, ppcnt_group,
};
use hca_spec::{put_be32, put_be64};
use zerocopy::FromBytes;

use super::priority_reg;
use crate::effect::Effect;
use crate::failure::{Failure, SHORT, bad_param};
use crate::port::error_correction::{FOUR_LANES_OF_25, LANES_OF_25, SLOW, Wanted};
use crate::port::ethernet::{DURATION_UNIT, FCS, MAX_MTU, MTU_OVERHEAD, PriorityCounters};
use crate::port::{Ethernet, EthernetCounters, Port};

/// Least MTU that may be set: 68 bytes of IPv4 (RFC 791).
const MIN_MTU: u16 = 68 + MTU_OVERHEAD;
/// Bytes of MCIA that every driver brings; newer ones have room for more.
const MCIA: usize = 0x40;
/// Registers of ports that an Ethernet port has, as PCAM tells them.
const PRESENT: [u32; 9] =
    [reg::PMLP, reg::PMTU, reg::PTYS, reg::PAOS, reg::PFCC, reg::PPCNT, reg::PPLM, reg::PCMR, reg::PCAM];

/// Least bytes of a register of an Ethernet port, without the command's header. `None`: that of all ports, if there is one.
pub(super) fn length(register: u32) -> Option<usize> {
    Some(match register {
        reg::PMTU => Pmtu::SIZE,
        reg::PTYS => Ptys::SIZE,
        reg::PFCC => Pfcc::SIZE,
        reg::PPCNT => Ppcnt::SIZE,
        reg::PMLP => Pmlp::SIZE,
        reg::MCIA => MCIA,
        reg::PCMR => Pcmr::SIZE,
        reg::PCAM => Pcam::SIZE,
        reg::PPLM => Pplm::SIZE,
        reg::QTCT => Qtct::SIZE,
        reg::QETCR => Qetcr::SIZE,
        reg::QPTS => Qpts::SIZE,
        reg::QPDPM => Qpdpm::SIZE,
        reg::QCAM => Qcam::SIZE,
        _ => return None,
    })
}

/// Whether the register's first word names a port.
pub(super) fn names_a_port(register: u32) -> bool {
    matches!(
        register,
        reg::PFCC
            | reg::PPCNT
            | reg::PMLP
            | reg::PCMR
            | reg::PPLM
            | reg::QTCT
            | reg::QETCR
            | reg::QPTS
            | reg::QPDPM
    )
}

/// What an access does with a register's value.
type Access<T> = fn(&mut Port, bool, &mut T) -> Result<(), Failure>;

fn on<T: FromBytes + zerocopy::IntoBytes + zerocopy::KnownLayout + zerocopy::Immutable>(
    port: &mut Port,
    write: bool,
    value: &mut [u8],
    access: Access<T>,
) -> Result<(), Failure> {
    let (view, _) = T::mut_from_prefix(value).map_err(|_| SHORT)?;
    access(port, write, view)
}

/// Reads or writes a register of [`length`]: `value` is what came and what goes back.
pub(super) fn access(
    register: u32,
    port: &mut Port,
    write: bool,
    value: &mut [u8],
    effects: &mut Vec<Effect>,
) -> Result<(), Failure> {
    if write && matches!(register, reg::QTCT | reg::QETCR) {
        effects.push(Effect::PortConfigured { port: port.number() });
    }
    match register {
        reg::PMTU => on(port, write, value, mtu),
        reg::PTYS => on(port, write, value, rates),
        reg::PFCC => on(port, write, value, flow_control),
        reg::PPCNT => on(port, write, value, counters),
        reg::PMLP => on(port, write, value, lanes),
        reg::MCIA => on(port, write, value, module),
        reg::PCMR => on(port, write, value, checks),
        reg::PPLM => on(port, write, value, correction),
        reg::QTCT => on(port, write, value, |p, w, v| priority_reg::class(&mut ethernet(p)?.classes, w, v)),
        reg::QETCR => {
            on(port, write, value, |p, w, v| priority_reg::selection(&mut ethernet(p)?.classes, w, v))
        }
        reg::QPTS => on(port, write, value, |p, w, v| priority_reg::trust(&mut ethernet(p)?.classes, w, v)),
        reg::QPDPM => {
            on(port, write, value, |p, w, v| priority_reg::code_points(&mut ethernet(p)?.classes, w, v))
        }
        reg::QCAM => on(port, write, value, |_, write, value| {
            if write {
                return Err(READ_ONLY.of(reg::QCAM));
            }
            priority_reg::present(value);
            Ok(())
        }),
        _ => on(port, write, value, present),
    }
}

const READ_ONLY: Failure = bad_param("ACCESS_REGISTER: the register of an Ethernet port can't be written");

fn ethernet(port: &mut Port) -> Result<&mut Ethernet, Failure> {
    const NONE: Failure = bad_param("ACCESS_REGISTER: the port is not Ethernet");
    port.ethernet_mut().ok_or(NONE)
}

fn mtu(port: &mut Port, write: bool, value: &mut Pmtu) -> Result<(), Failure> {
    const RANGE: Failure = bad_param("PMTU: admin_mtu is above max_mtu, or below what IPv4 needs");
    let eth = ethernet(port)?;
    if write {
        let wanted = value.get(Pmtu::ADMIN_MTU);
        let legal = u16::try_from(wanted).ok().filter(|mtu| (MIN_MTU..=MAX_MTU).contains(mtu));
        eth.mtu = legal.ok_or(RANGE.got(wanted).limit(MAX_MTU))?;
    }
    value.set(Pmtu::MAX_MTU, MAX_MTU.into());
    value.set(Pmtu::ADMIN_MTU, eth.mtu.into()).set(Pmtu::OPER_MTU, eth.mtu.into());
    Ok(())
}

fn rates(port: &mut Port, write: bool, value: &mut Ptys) -> Result<(), Failure> {
    const PROTOCOL: Failure = bad_param("PTYS: proto_mask must be 4 (Ethernet)");
    const RATE: Failure = bad_param("PTYS: eth_proto_admin has no rate that the port can do");
    /// Negotiation is complete.
    const COMPLETE: u32 = 1;
    const LINK_DOWN: u32 = 4;
    if write {
        // AN_DISABLE_ADMIN is ignored: links always find their rate among those wanted, which AN_DISABLE_CAP 0 says.
        if value.get(Ptys::PROTO_MASK) != PROTO_ETHERNET {
            return Err(PROTOCOL.got(value.get(Ptys::PROTO_MASK)));
        }
        let wanted = value.get(Ptys::ETH_PROTO_ADMIN);
        if !port.want_rates(wanted) {
            return Err(RATE.got(wanted).limit(port.rates().capable));
        }
    }
    let rates = port.rates();
    let mut out = Ptys::new();
    out.set(Ptys::LOCAL_PORT, value.get(Ptys::LOCAL_PORT)).set(Ptys::PROTO_MASK, PROTO_ETHERNET);
    out.set(Ptys::AN_STATUS, if rates.active == 0 { LINK_DOWN } else { COMPLETE });
    out.set(Ptys::DATA_RATE_OPER, rates.rate).set(Ptys::ETH_PROTO_CAPABILITY, rates.capable);
    out.set(Ptys::ETH_PROTO_ADMIN, rates.wanted).set(Ptys::ETH_PROTO_OPER, rates.active);
    // All that is known of the other end: it does what the link does.
    out.set(Ptys::ETH_PROTO_LP_ADVERTISE, rates.active);
    *value = out;
    Ok(())
}

fn flow_control(port: &mut Port, write: bool, value: &mut Pfcc) -> Result<(), Failure> {
    const BOTH: Failure =
        bad_param("PFCC: PAUSE and PFC exclude each other in one direction (802.1Q 36.1.3)");
    let eth = ethernet(port)?;
    if write {
        let mut new = eth.pause;
        let merge = |old: u8, mask: u32, bits: u32| old & !(mask as u8) | (bits & mask) as u8;
        new.pfc_tx = merge(new.pfc_tx, value.get(Pfcc::PRIO_MASK_TX), value.get(Pfcc::PFCTX));
        new.pfc_rx = merge(new.pfc_rx, value.get(Pfcc::PRIO_MASK_RX), value.get(Pfcc::PFCRX));
        if value.get(Pfcc::PPTX_MASK_N) == 0 {
            new.tx = value.get(Pfcc::PPTX) == 1;
        }
        if value.get(Pfcc::PPRX_MASK_N) == 0 {
            new.rx = value.get(Pfcc::PPRX) == 1;
        }
        // APTX and APRX are ignored: flow control is not negotiated.
        if new.tx && new.pfc_tx != 0 || new.rx && new.pfc_rx != 0 {
            return Err(BOTH.got(u32::from(new.pfc_tx) << 8 | u32::from(new.pfc_rx)));
        }
        eth.pause = new;
    }
    let pause = eth.pause;
    let mut out = Pfcc::new();
    out.set(Pfcc::LOCAL_PORT, value.get(Pfcc::LOCAL_PORT));
    out.set(Pfcc::PRIO_MASK_TX, 0xff).set(Pfcc::PRIO_MASK_RX, 0xff);
    out.set(Pfcc::PPTX, pause.tx.into()).set(Pfcc::PFCTX, pause.pfc_tx.into());
    out.set(Pfcc::PPRX, pause.rx.into()).set(Pfcc::PFCRX, pause.pfc_rx.into());
    *value = out;
    Ok(())
}

fn counters(port: &mut Port, write: bool, value: &mut Ppcnt) -> Result<(), Failure> {
    const GROUP: Failure = bad_param("PPCNT: the adapter does not have the group of counters");
    const PRIORITY: Failure = bad_param("PPCNT: prio_tc is beyond the priorities");
    if write {
        return Err(READ_ONLY.of(reg::PPCNT));
    }
    let c = ethernet(port)?.counters;
    let (group, priority) = (value.get(Ppcnt::GRP), value.get(Ppcnt::PRIO_TC));
    let clear = value.get(Ppcnt::CLR) == 1;
    let bytes = value.bytes_mut().get_mut(PPCNT_COUNTERS..).unwrap_or_default();
    bytes.fill(0);
    let mut put = |counters: &[(usize, u64)]| counters.iter().for_each(|(at, n)| put_be64(bytes, *at, *n));
    match group {
        ppcnt_group::IEEE_802_3 => put(&ieee_802_3(&c)),
        ppcnt_group::RFC_2863 => put(&rfc_2863(&c)),
        ppcnt_group::RFC_2819 => put(&rfc_2819(&c)),
        ppcnt_group::PER_PRIORITY => {
            let of = |all: &[PriorityCounters]| all.get(priority as usize).copied();
            let none = PRIORITY.got(priority);
            put(&per_priority(&of(&c.rx.priorities).ok_or(none)?, &of(&c.tx.priorities).ok_or(none)?));
        }
        ppcnt_group::PHYSICAL => {
            /// Behind 64-bit counters of errors, of which there are none.
            const LINK_DOWN_EVENTS: usize = 0xc0;
            put_be32(bytes, LINK_DOWN_EVENTS, c.link_down_events);
        }
        ppcnt_group::INFINIBAND => infiniband(&c, bytes),
        other => return Err(GROUP.got(other)),
    }
    if clear {
        ethernet(port)?.counters = EthernetCounters::default();
    }
    Ok(())
}

/// Bytes of frames with their frame check sequences.
fn with_fcs(octets: u64, frames: u64) -> u64 {
    octets.wrapping_add(frames.wrapping_mul(FCS))
}

fn ieee_802_3(c: &EthernetCounters) -> [(usize, u64); 14] {
    [
        (0x00, c.tx.frames),
        (0x08, c.rx.frames),
        (0x10, c.fcs_errors),
        (0x20, with_fcs(c.tx.octets, c.tx.frames)),
        (0x28, with_fcs(c.rx.octets, c.rx.frames)),
        (0x30, c.tx.multicast),
        (0x38, c.tx.broadcast),
        (0x40, c.rx.multicast),
        (0x48, c.rx.broadcast),
        (0x60, c.oversize),
        (0x70, c.tx.control),
        (0x78, c.rx.control),
        (0x88, c.rx.pause),
        (0x90, c.tx.pause),
    ]
}

fn rfc_2863(c: &EthernetCounters) -> [(usize, u64); 12] {
    [
        (0x00, with_fcs(c.rx.octets, c.rx.frames)),
        (0x08, c.rx.unicast),
        (0x10, c.rx.discards),
        (0x18, c.rx.errors),
        (0x28, with_fcs(c.tx.octets, c.tx.frames)),
        (0x30, c.tx.unicast),
        (0x38, c.tx.discards),
        (0x40, c.tx.errors),
        (0x48, c.rx.multicast),
        (0x50, c.rx.broadcast),
        (0x58, c.tx.multicast),
        (0x60, c.tx.broadcast),
    ]
}

fn rfc_2819(c: &EthernetCounters) -> Vec<(usize, u64)> {
    /// The histogram.
    const SIZES: usize = 0x58;
    let mut counters = vec![
        (0x00, c.rx.discards),
        (0x08, with_fcs(c.rx.octets, c.rx.frames)),
        (0x10, c.rx.frames),
        (0x18, c.rx.broadcast),
        (0x20, c.rx.multicast),
        (0x28, c.fcs_errors),
        (0x30, c.undersize),
        (0x38, c.oversize),
    ];
    counters.extend((SIZES..).step_by(8).zip(c.rx_sizes));
    counters
}

fn per_priority(rx: &PriorityCounters, tx: &PriorityCounters) -> [(usize, u64); 10] {
    [
        (0x00, with_fcs(rx.octets, rx.frames)),
        (0x20, rx.frames),
        (0x28, with_fcs(tx.octets, tx.frames)),
        (0x48, tx.frames),
        (0x50, rx.pause),
        (0x58, rx.pause_duration / DURATION_UNIT),
        (0x60, tx.pause),
        (0x68, tx.pause_duration / DURATION_UNIT),
        (0x70, rx.pause_transition),
        (0x78, rx.discards),
    ]
}

/// PortCounters (IBTA 16.1.3.5), as far as an Ethernet port has something to tell; they stop at their ends.
fn infiniband(c: &EthernetCounters, bytes: &mut [u8]) {
    /// Four bytes: symbol errors, recoveries, and how often the link went down.
    const LINK_DOWNED: usize = 0x0;
    /// Two bytes: packets with errors.
    const RCV_ERRORS: usize = 0x4;
    /// Lower two bytes: packets that could not leave.
    const XMIT_DISCARDS: usize = 0x8;
    let short = |n: u64| u32::from(u16::try_from(n).unwrap_or(u16::MAX));
    put_be32(bytes, LINK_DOWNED, c.link_down_events.min(0xff));
    put_be32(bytes, RCV_ERRORS, short(c.rx.errors) << 16);
    put_be32(bytes, XMIT_DISCARDS, short(c.tx.discards));
}

fn lanes(port: &mut Port, write: bool, value: &mut Pmlp) -> Result<(), Failure> {
    if write {
        return Err(READ_ONLY.of(reg::PMLP));
    }
    // A module for each port, with all its lanes in order.
    let (module, width) = (u32::from(port.number()).saturating_sub(1), port.widest().min(4));
    let mut out = Pmlp::new();
    out.set(Pmlp::LOCAL_PORT, value.get(Pmlp::LOCAL_PORT)).set(Pmlp::WIDTH, width.into());
    for lane in 0..u32::from(width) {
        put_be32(out.bytes_mut(), Pmlp::LANE0_MODULE.offset() + 4 * lane as usize, lane << 16 | module);
    }
    *value = out;
    Ok(())
}

fn module(_: &mut Port, write: bool, value: &mut Mcia) -> Result<(), Failure> {
    if write {
        return Err(READ_ONLY.of(reg::MCIA));
    }
    // The cables of the model have no memory.
    value.set(Mcia::STATUS, MCIA_NO_MEMORY);
    Ok(())
}

fn checks(_: &mut Port, write: bool, value: &mut Pcmr) -> Result<(), Failure> {
    const OFF: Failure = bad_param("PCMR: fcs_chk: the check of frame check sequences can't be switched off");
    if write && value.get(Pcmr::FCS_CHK) == 0 {
        return Err(OFF);
    }
    let mut out = Pcmr::new();
    out.set(Pcmr::LOCAL_PORT, value.get(Pcmr::LOCAL_PORT)).set(Pcmr::FCS_CHK, 1);
    *value = out;
    Ok(())
}

fn correction(port: &mut Port, write: bool, value: &mut Pplm) -> Result<(), Failure> {
    const MISSING: Failure =
        bad_param("PPLM: fec_override_admin: a kind of error correction that the rate does not have");
    let wanted = Wanted {
        at_10_40: value.get(Pplm::FEC_OVERRIDE_ADMIN_10G_40G),
        at_25: value.get(Pplm::FEC_OVERRIDE_ADMIN_25G),
        at_50: value.get(Pplm::FEC_OVERRIDE_ADMIN_50G),
        at_56: value.get(Pplm::FEC_OVERRIDE_ADMIN_56G),
        at_100: value.get(Pplm::FEC_OVERRIDE_ADMIN_100G),
    };
    if write {
        for (wanted, there) in [
            (wanted.at_10_40, SLOW),
            (wanted.at_25, LANES_OF_25),
            (wanted.at_50, LANES_OF_25),
            (wanted.at_56, SLOW),
            (wanted.at_100, FOUR_LANES_OF_25),
        ] {
            if wanted & !there != 0 {
                return Err(MISSING.got(wanted).limit(there));
            }
        }
        ethernet(port)?.correction = wanted;
    }
    let Wanted { at_10_40, at_25, at_50, at_56, at_100 } = ethernet(port)?.correction;
    let mut out = Pplm::new();
    out.set(Pplm::LOCAL_PORT, value.get(Pplm::LOCAL_PORT));
    out.set(Pplm::FEC_MODE_ACTIVE, port.active_correction());
    out.set(Pplm::FEC_OVERRIDE_CAP_10G_40G, SLOW).set(Pplm::FEC_OVERRIDE_ADMIN_10G_40G, at_10_40);
    out.set(Pplm::FEC_OVERRIDE_CAP_25G, LANES_OF_25).set(Pplm::FEC_OVERRIDE_ADMIN_25G, at_25);
    out.set(Pplm::FEC_OVERRIDE_CAP_50G, LANES_OF_25).set(Pplm::FEC_OVERRIDE_ADMIN_50G, at_50);
    out.set(Pplm::FEC_OVERRIDE_CAP_56G, SLOW).set(Pplm::FEC_OVERRIDE_ADMIN_56G, at_56);
    out.set(Pplm::FEC_OVERRIDE_CAP_100G, FOUR_LANES_OF_25).set(Pplm::FEC_OVERRIDE_ADMIN_100G, at_100);
    *value = out;
    Ok(())
}

fn present(_: &mut Port, write: bool, value: &mut Pcam) -> Result<(), Failure> {
    /// The first register of group 0.
    const FIRST: u32 = 0x5000;
    if write {
        return Err(READ_ONLY.of(reg::PCAM));
    }
    let mut out = Pcam::new();
    let (features, registers) = (value.get(Pcam::FEATURE_GROUP), value.get(Pcam::ACCESS_REG_GROUP));
    out.set(Pcam::FEATURE_GROUP, features).set(Pcam::ACCESS_REG_GROUP, registers);
    // Other groups have nothing, and there are no features.
    if registers == 0 {
        let mask = PRESENT.iter().fold(0u128, |mask, register| mask | 1 << (register - FIRST));
        out.set(Pcam::PORT_ACCESS_REG_CAP_MASK_H, (mask >> 64) as u64);
        out.set(Pcam::PORT_ACCESS_REG_CAP_MASK_L, mask as u64);
    }
    *value = out;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Answer, Bench, ethernet};
    use crate::port::{FrameClass, Link};
    use hca_spec::command::{Opcode, Status};
    use hca_spec::register::eth_proto;
    use hca_spec::{be32, be64};

    fn register(b: &mut Bench, id: u32, write: bool, data: &[u8]) -> Answer {
        let mut body = vec![0; 8];
        body[2..4].copy_from_slice(&(id as u16).to_be_bytes());
        body.extend_from_slice(data);
        b.run(Opcode::AccessReg, u32::from(!write), &body, 16 + data.len())
    }

    fn bench() -> Bench {
        let mut b = Bench::initialized_with(ethernet());
        b.fw.ports.set_link(1, Some(Link::default()), &mut Vec::new());
        b
    }

    #[test]
    fn mtu_in_bytes() {
        let mut b = bench();
        let mut p = Pmtu::new();
        p.set(Pmtu::LOCAL_PORT, 1);
        let r = register(&mut b, reg::PMTU, false, p.bytes());
        assert_eq!((be32(&r.output, 0x14) >> 16, be32(&r.output, 0x1c) >> 16), (10_000, 1522));
        p.set(Pmtu::ADMIN_MTU, 9022);
        let r = register(&mut b, reg::PMTU, true, p.bytes());
        assert_eq!((r.status(), be32(&r.output, 0x1c) >> 16), (Status::Ok, 9022));
        assert_eq!(b.fw.ports.port(1).unwrap().ethernet().unwrap().mtu, 9022);
        for wrong in [0, 89, 10_001] {
            p.set(Pmtu::ADMIN_MTU, wrong);
            assert_eq!(register(&mut b, reg::PMTU, true, p.bytes()).status(), Status::BadParam);
        }
        p.set(Pmtu::LOCAL_PORT, 2);
        assert_eq!(register(&mut b, reg::PMTU, false, p.bytes()).status(), Status::BadParam);
    }

    #[test]
    fn rates_of_the_link() {
        let mut b = bench();
        let mut p = Ptys::new();
        p.set(Ptys::LOCAL_PORT, 1).set(Ptys::PROTO_MASK, PROTO_ETHERNET);
        let read = |b: &mut Bench, p: &Ptys, write| {
            let r = register(b, reg::PTYS, write, p.bytes());
            assert_eq!(r.status(), Status::Ok);
            Ptys::from_prefix_or_zero(&r.output[16..])
        };
        let got = read(&mut b, &p, false);
        assert_eq!(got.get(Ptys::ETH_PROTO_OPER), eth_proto::CR4_100G);
        assert_eq!((got.get(Ptys::DATA_RATE_OPER), got.get(Ptys::EXT_ETH_PROTO_CAPABILITY)), (1000, 0));
        p.set(Ptys::ETH_PROTO_ADMIN, eth_proto::CR_25G);
        assert_eq!(read(&mut b, &p, true).get(Ptys::ETH_PROTO_ADMIN), eth_proto::CR_25G);
        b.fw.ports.set_link(1, Some(Link::default()), &mut Vec::new());
        assert_eq!(read(&mut b, &p, false).get(Ptys::ETH_PROTO_OPER), eth_proto::CR_25G);
        b.fw.ports.set_link(1, None, &mut Vec::new());
        let got = read(&mut b, &p, false);
        assert_eq!((got.get(Ptys::ETH_PROTO_OPER), got.get(Ptys::AN_STATUS)), (0, 4));
        p.set(Ptys::ETH_PROTO_ADMIN, 1);
        assert_eq!(register(&mut b, reg::PTYS, true, p.bytes()).status(), Status::BadParam);
        p.set(Ptys::ETH_PROTO_ADMIN, eth_proto::CR_25G).set(Ptys::PROTO_MASK, 1);
        assert_eq!(register(&mut b, reg::PTYS, true, p.bytes()).status(), Status::BadParam);
    }

    #[test]
    fn pause_and_priorities() {
        let mut b = bench();
        let mut p = Pfcc::new();
        p.set(Pfcc::LOCAL_PORT, 1).set(Pfcc::PPTX, 1).set(Pfcc::PPRX, 1).set(Pfcc::PFCTX, 0xff);
        assert_eq!(register(&mut b, reg::PFCC, true, p.bytes()).status(), Status::Ok, "no priority is named");
        let pause = |b: &Bench| b.fw.ports.port(1).unwrap().ethernet().unwrap().pause;
        assert_eq!((pause(&b).tx, pause(&b).rx, pause(&b).pfc_tx), (true, true, 0));
        p.set(Pfcc::PRIO_MASK_TX, 0x0f);
        assert_eq!(register(&mut b, reg::PFCC, true, p.bytes()).status(), Status::BadParam);
        p.set(Pfcc::PPTX, 0).set(Pfcc::PPRX, 0).set(Pfcc::PPRX_MASK_N, 1);
        let r = register(&mut b, reg::PFCC, true, p.bytes());
        let got = Pfcc::from_prefix_or_zero(&r.output[16..]);
        assert_eq!((got.get(Pfcc::PFCTX), got.get(Pfcc::PPTX), got.get(Pfcc::PPRX)), (0xf, 0, 1));
        let read = register(&mut b, reg::PFCC, false, Pfcc::new().set(Pfcc::LOCAL_PORT, 1).bytes());
        assert_eq!(read.output, r.output);
    }

    #[test]
    fn groups_of_counters() {
        let mut b = bench();
        let c = &mut b.fw.ports.port_mut(1).unwrap().ethernet_mut().unwrap().counters;
        c.received(FrameClass::Unicast, 60, 5);
        c.received(FrameClass::Broadcast, 1514, 0);
        c.sent(FrameClass::Multicast, 100, 0);
        c.link_down_events = 3;
        let read = |b: &mut Bench, group, priority, clear| {
            let mut p = Ppcnt::new();
            p.set(Ppcnt::LOCAL_PORT, 1).set(Ppcnt::GRP, group).set(Ppcnt::PRIO_TC, priority);
            p.set(Ppcnt::CLR, clear);
            register(b, reg::PPCNT, false, p.bytes())
        };
        let at = |r: &Answer, at: usize| be64(&r.output, 0x18 + at);
        let r = read(&mut b, 0, 0, 0);
        assert_eq!((at(&r, 0), at(&r, 8), at(&r, 0x28), at(&r, 0x30), at(&r, 0x48)), (1, 2, 1582, 1, 1));
        let r = read(&mut b, 1, 0, 0);
        assert_eq!((at(&r, 0), at(&r, 8), at(&r, 0x28), at(&r, 0x50), at(&r, 0x58)), (1582, 1, 104, 1, 1));
        let r = read(&mut b, 2, 0, 0);
        assert_eq!((at(&r, 0x10), at(&r, 0x18), at(&r, 0x58), at(&r, 0x80)), (2, 1, 1, 1));
        let r = read(&mut b, 0x10, 5, 0);
        assert_eq!((at(&r, 0), at(&r, 0x20)), (64, 1));
        assert_eq!(read(&mut b, 0x10, 8, 0).status(), Status::BadParam);
        assert_eq!(be32(&read(&mut b, 0x12, 0, 0).output, 0x18 + 0xc0), 3);
        assert_eq!(be32(&read(&mut b, 0x20, 0, 1).output, 0x18), 3, "and clears");
        assert_eq!(at(&read(&mut b, 0, 0, 0), 8), 0);
        assert_eq!(read(&mut b, 0x3f, 0, 0).status(), Status::BadParam);
        assert_eq!(register(&mut b, reg::PPCNT, true, &[0; 0x100]).status(), Status::BadParam);
    }

    #[test]
    fn module_and_checks() {
        let mut b = bench();
        let r = register(
            &mut b,
            reg::PMLP,
            false,
            &[0, 1, 0, 0].into_iter().chain([0; 0x3c]).collect::<Vec<_>>(),
        );
        assert_eq!(r.output[16..32], [0, 1, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0]);
        for len in [0x40, 0x90] {
            let r = register(&mut b, reg::MCIA, false, &vec![0; len]);
            assert_eq!((r.status(), r.output.len(), r.output[19]), (Status::Ok, 16 + len, 1));
        }
        let mut p = Pcmr::new();
        let r = register(&mut b, reg::PCMR, false, p.bytes());
        assert_eq!(r.output[16..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(register(&mut b, reg::PCMR, true, p.bytes()).status(), Status::BadParam);
        p.set(Pcmr::FCS_CHK, 1);
        assert_eq!(register(&mut b, reg::PCMR, true, p.bytes()).status(), Status::Ok);
        let r = register(&mut b, reg::PCAM, false, &[0; 0x50]);
        assert_eq!(be32(&r.output, 0x10 + 0x14), 0b1_1101_1100, "PMLP, PMTU, PTYS, PAOS, PFCC, PPCNT");
        for read_only in [reg::PMLP, reg::PCAM, reg::MCIA] {
            assert_eq!(register(&mut b, read_only, true, &[0; 0x90]).status(), Status::BadParam);
        }
    }

    #[test]
    fn error_correction() {
        use hca_spec::register::fec;
        let mut b = bench();
        let mut p = Pplm::new();
        p.set(Pplm::LOCAL_PORT, 1);
        let access = |b: &mut Bench, p: &Pplm, write| {
            let r = register(b, reg::PPLM, write, p.bytes());
            (r.status(), Pplm::from_prefix_or_zero(r.output.get(16..).unwrap_or_default()))
        };
        let (_, got) = access(&mut b, &p, false);
        assert_eq!(got.get(Pplm::FEC_MODE_ACTIVE), fec::RS_528_514, "as 100 Gb/s over copper have it");
        assert_eq!((got.get(Pplm::FEC_OVERRIDE_CAP_100G), got.get(Pplm::FEC_OVERRIDE_ADMIN_100G)), (5, 0));
        p.set(Pplm::FEC_OVERRIDE_ADMIN_100G, fec::NONE).set(Pplm::FEC_OVERRIDE_ADMIN_25G, fec::FIRECODE);
        let (status, got) = access(&mut b, &p, true);
        assert_eq!((status, got.get(Pplm::FEC_MODE_ACTIVE)), (Status::Ok, fec::NONE));
        assert_eq!(got.get(Pplm::FEC_OVERRIDE_ADMIN_25G), fec::FIRECODE);
        p.set(Pplm::FEC_OVERRIDE_ADMIN_100G, fec::FIRECODE);
        assert_eq!(access(&mut b, &p, true).0, Status::BadParam);
        b.fw.ports.set_link(1, None, &mut Vec::new());
        p.set(Pplm::FEC_OVERRIDE_ADMIN_100G, 0);
        assert_eq!(access(&mut b, &p, true).1.get(Pplm::FEC_MODE_ACTIVE), 0, "the link is down");
    }

    /// Registers of InfiniBand are not there, and those of Ethernet are not on InfiniBand ports.
    #[test]
    fn each_layer_has_its_own() {
        let mut b = bench();
        for other in [reg::PCAP, reg::PVLC] {
            assert_eq!(register(&mut b, other, false, &[0; 0x40]).status(), Status::BadParam);
        }
        let mut b = Bench::initialized();
        for other in [reg::PFCC, reg::PPCNT, reg::PMLP, reg::MCIA, reg::PCMR, reg::PCAM] {
            assert_eq!(register(&mut b, other, false, &[0; 0x100]).status(), Status::BadParam);
        }
    }

    /// The link comes up behind PAOS.
    #[test]
    fn switched_off_and_on() {
        use crate::effect::Effect;
        use hca_spec::eqe::port_change;
        let mut b = bench();
        let paos = |b: &mut Bench, admin: u32| {
            let data = [1 << 16 | admin << 8, 1 << 31, 0, 0].map(u32::to_be_bytes).concat();
            b.effects.clear();
            let r = register(b, reg::PAOS, true, &data);
            assert_eq!(r.status(), Status::Ok);
            r.output[19] & 0xf
        };
        assert_eq!(paos(&mut b, 2), 2);
        assert_eq!(b.effects, [Effect::PortChange { port: 1, sub_type: port_change::DOWN }]);
        assert_eq!(paos(&mut b, 1), 2, "not trained yet");
        assert_eq!(b.effects, [Effect::PortEnabled { port: 1 }]);
        let mut effects = Vec::new();
        b.fw.ports.set_link(1, Some(Link::default()), &mut effects);
        assert_eq!(effects, [Effect::PortChange { port: 1, sub_type: port_change::ACTIVE }]);
        assert_eq!(b.fw.ports.port(1).unwrap().ethernet().unwrap().counters.link_down_events, 1);
    }
}
