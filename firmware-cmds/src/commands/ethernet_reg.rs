//! ACCESS_REGISTER: registers that only Ethernet ports have, or that say something else there.
//!
//! Source: PRM "Port registers". Counters, which ports of both layers have, are in [`super::counter_reg`].

use hca_spec::cmd::reg;
use hca_spec::register::{
    PFCC_BY_FIRMWARE, PFCC_BY_SOFTWARE, PROTO_ETHERNET, Pbmc, Pcam, Pcmr, Pfcc, Pmlp, Pmtu, Pplm, Pptb, Ptys,
    Qcam, Qetcr, Qpdpm, Qpts, Qtct, RoceAccl, pcam_feature,
};
use hca_spec::{be32, put_be32};
use zerocopy::FromBytes;

use super::{buffer_reg, priority_reg};
use crate::effect::Effect;
use crate::failure::{Failure, SHORT, bad_param};
use crate::port::error_correction::{FOUR_LANES_OF_25, LANES_OF_25, SLOW, Wanted};
use crate::port::ethernet::{MAX_MTU, MTU_OVERHEAD};
use crate::port::{Ethernet, Port};

/// Least MTU that may be set: 68 bytes of IPv4 (RFC 791).
const MIN_MTU: u16 = 68 + MTU_OVERHEAD;
/// Registers of ports that an Ethernet port has, as PCAM tells them.
const PRESENT: [u32; 16] = [
    reg::PMLP,
    reg::PMTU,
    reg::PTYS,
    reg::PAOS,
    reg::PFCC,
    reg::PPCNT,
    reg::PPTB,
    reg::PBMC,
    reg::PMAOS,
    reg::PPLR,
    reg::PPLM,
    reg::SLTP,
    reg::SLRG,
    reg::PDDR,
    reg::PCMR,
    reg::PCAM,
];

/// Least bytes of a register of an Ethernet port, without the command's header. `None`: that of all ports, if there is one.
pub(super) fn length(register: u32) -> Option<usize> {
    Some(match register {
        reg::PMTU => Pmtu::SIZE,
        reg::PTYS => Ptys::SIZE,
        reg::PFCC => Pfcc::SIZE,
        reg::PMLP => Pmlp::SIZE,
        reg::PCMR => Pcmr::SIZE,
        reg::PCAM => Pcam::SIZE,
        reg::PPLM => Pplm::SIZE,
        reg::PBMC => Pbmc::SIZE,
        reg::PPTB => Pptb::SIZE,
        reg::QTCT => Qtct::SIZE,
        reg::QETCR => Qetcr::SIZE,
        reg::QPTS => Qpts::SIZE,
        reg::QPDPM => Qpdpm::SIZE,
        reg::QCAM => Qcam::SIZE,
        reg::ROCE_ACCL => RoceAccl::SIZE,
        _ => return None,
    })
}

/// Whether the register's first word names a port.
pub(super) fn names_a_port(register: u32) -> bool {
    matches!(
        register,
        reg::PFCC
            | reg::PMLP
            | reg::PCMR
            | reg::PPLM
            | reg::PBMC
            | reg::PPTB
            | reg::QTCT
            | reg::QETCR
            | reg::QPTS
            | reg::QPDPM
    )
}

/// What an access does with a register's value.
type Access<T> = fn(&mut Port, bool, &mut T) -> Result<(), Failure>;

/// Gives the register's layout, at the front of its bytes, to an access.
pub(super) fn on<T: FromBytes + zerocopy::IntoBytes + zerocopy::KnownLayout + zerocopy::Immutable>(
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
        reg::PMLP => on(port, write, value, lanes),
        reg::PCMR => on(port, write, value, checks),
        reg::PPLM => on(port, write, value, correction),
        reg::PBMC => on(port, write, value, |p, w, v| buffer_reg::memory(ethernet(p)?, w, v)),
        reg::PPTB => on(port, write, value, |p, w, v| buffer_reg::priorities(ethernet(p)?, w, v)),
        reg::QTCT => on(port, write, value, |p, w, v| priority_reg::class(&mut ethernet(p)?.classes, w, v)),
        reg::QETCR => {
            on(port, write, value, |p, w, v| priority_reg::selection(&mut ethernet(p)?.classes, w, v))
        }
        reg::QPTS => on(port, write, value, |p, w, v| priority_reg::trust(&mut ethernet(p)?.classes, w, v)),
        reg::QPDPM => {
            on(port, write, value, |p, w, v| priority_reg::code_points(&mut ethernet(p)?.classes, w, v))
        }
        reg::ROCE_ACCL => on(port, write, value, acceleration),
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

const READ_ONLY: Failure =
    bad_param("ACCESS_REGISTER: op_mod: the register of an Ethernet port can't be written");

fn ethernet(port: &mut Port) -> Result<&mut Ethernet, Failure> {
    const NONE: Failure = bad_param("ACCESS_REGISTER: local_port: the port is not Ethernet");
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
    /// Negotiation is switched off.
    const UNAVAILABLE: u32 = 0;
    /// Negotiation is complete.
    const COMPLETE: u32 = 1;
    const LINK_DOWN: u32 = 4;
    if write {
        if value.get(Ptys::PROTO_MASK) != PROTO_ETHERNET {
            return Err(PROTOCOL.got(value.get(Ptys::PROTO_MASK)));
        }
        let wanted = value.get(Ptys::ETH_PROTO_ADMIN);
        if !port.want_rates(wanted) {
            return Err(RATE.got(wanted).limit(port.rates().capable));
        }
        // Links find their rate among those wanted either way; without negotiation software wants one.
        ethernet(port)?.negotiation_off = value.get(Ptys::AN_DISABLE_ADMIN) == 1;
    }
    let negotiation_off = ethernet(port)?.negotiation_off;
    let rates = port.rates();
    let mut out = Ptys::new();
    out.set(Ptys::LOCAL_PORT, value.get(Ptys::LOCAL_PORT)).set(Ptys::PROTO_MASK, PROTO_ETHERNET);
    out.set(Ptys::AN_DISABLE_CAP, 1).set(Ptys::AN_DISABLE_ADMIN, negotiation_off.into());
    let status = match (negotiation_off, rates.active) {
        (true, _) => UNAVAILABLE,
        (false, 0) => LINK_DOWN,
        (false, _) => COMPLETE,
    };
    out.set(Ptys::AN_STATUS, status);
    out.set(Ptys::DATA_RATE_OPER, rates.rate).set(Ptys::ETH_PROTO_CAPABILITY, rates.capable);
    out.set(Ptys::ETH_PROTO_ADMIN, rates.wanted).set(Ptys::ETH_PROTO_OPER, rates.active);
    // All that is known of the other end: it does what the link does.
    out.set(Ptys::ETH_PROTO_LP_ADVERTISE, rates.active);
    *value = out;
    Ok(())
}

fn flow_control(port: &mut Port, write: bool, value: &mut Pfcc) -> Result<(), Failure> {
    const BOTH: Failure =
        bad_param("PFCC: pptx, pprx: PAUSE and PFC exclude each other in one direction (802.1Q 36.1.3)");
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
        eth.buffers.follow(new);
    }
    if write {
        let word = |field| value.get(field) as u16;
        if value.get(Pfcc::MINOR_STALL_MASK) == 1 {
            eth.stall.minor = word(Pfcc::DEVICE_STALL_MINOR_WATERMARK);
        }
        if value.get(Pfcc::CRITICAL_STALL_MASK) == 1 {
            eth.stall.critical = word(Pfcc::DEVICE_STALL_CRITICAL_WATERMARK);
        }
    }
    let (pause, stall) = (eth.pause, eth.stall);
    let mut out = Pfcc::new();
    out.set(Pfcc::DEVICE_STALL_MINOR_WATERMARK, stall.minor.into());
    out.set(Pfcc::DEVICE_STALL_CRITICAL_WATERMARK, stall.critical.into());
    let owner = if eth.buffers.is_by_software() { PFCC_BY_SOFTWARE } else { PFCC_BY_FIRMWARE };
    out.set(Pfcc::LOCAL_PORT, value.get(Pfcc::LOCAL_PORT)).set(Pfcc::BUF_OWNERSHIP, owner);
    out.set(Pfcc::PRIO_MASK_TX, 0xff).set(Pfcc::PRIO_MASK_RX, 0xff);
    out.set(Pfcc::PPTX, pause.tx.into()).set(Pfcc::PFCTX, pause.pfc_tx.into());
    out.set(Pfcc::PPRX, pause.rx.into()).set(Pfcc::PFCRX, pause.pfc_rx.into());
    *value = out;
    Ok(())
}

/// A window, and a slow start after idle time, are not configurable: how large and how long is not public.
fn acceleration(port: &mut Port, write: bool, value: &mut RoceAccl) -> Result<(), Failure> {
    const FIELD: Failure = bad_param("ROCE_ACCL: field_select: this is not configurable");
    let eth = ethernet(port)?;
    if write {
        let fixed = [RoceAccl::ROCE_TX_WINDOW_FIELD_SELECT, RoceAccl::ROCE_SLOW_RESTART_IDLE_FIELD_SELECT];
        if fixed.into_iter().any(|field| value.get(field) == 1) {
            return Err(FIELD.got(be32(value.bytes(), 0)));
        }
        let new = &mut eth.acceleration;
        if value.get(RoceAccl::ROCE_ADP_RETRANS_FIELD_SELECT) == 1 {
            new.adaptive_retransmission = value.get(RoceAccl::ROCE_ADP_RETRANS_EN) == 1;
        }
        if value.get(RoceAccl::ROCE_SLOW_RESTART_FIELD_SELECT) == 1 {
            new.slow_restart = value.get(RoceAccl::ROCE_SLOW_RESTART_EN) == 1;
        }
    }
    let holds = eth.acceleration;
    let mut out = RoceAccl::new();
    out.set(RoceAccl::ROCE_ADP_RETRANS_FIELD_SELECT, 1).set(RoceAccl::ROCE_SLOW_RESTART_FIELD_SELECT, 1);
    out.set(RoceAccl::ROCE_ADP_RETRANS_EN, holds.adaptive_retransmission.into());
    out.set(RoceAccl::ROCE_SLOW_RESTART_EN, holds.slow_restart.into());
    *value = out;
    Ok(())
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
    // Other groups have nothing.
    if features == 0 {
        let mask = pcam_feature::PHYSICAL_STATISTICS
            | pcam_feature::SIZES_SENT
            | pcam_feature::PFCC_MASK
            | pcam_feature::BUFFER_OWNERSHIP;
        out.set(Pcam::FEATURE_CAP_MASK_L, mask);
    }
    if registers == 0 {
        let mask = PRESENT.iter().fold(0u128, |mask, register| mask | 1 << (register - FIRST));
        out.set(Pcam::PORT_ACCESS_REG_CAP_MASK_H, (mask >> 64) as u64);
        out.set(Pcam::PORT_ACCESS_REG_CAP_MASK_L, mask as u64);
    }
    *value = out;
    Ok(())
}

#[cfg(test)]
mod tests;
