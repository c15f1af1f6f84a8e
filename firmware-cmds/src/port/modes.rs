//! Widths and speeds of an InfiniBand port in the code of registers, and what a host wants of them.
//!
//! The register and PortInfo are two views of one state: what either of them sets holds from the next training on, until it is
//! set again or the device is reset. Source: PRM "PTYS"; Linux `include/linux/mlx5/port.h` (`mlx5_ptys_width`, `mlx5_ptys_rate`).

use hca_spec::mad::{PortInfo, port_state};
use hca_spec::register::Ptys;

use super::Port;
use super::link::width_code;
use crate::failure::{Failure, bad_param};

/// Lanes and their bit in the register, which counts them in order; PortInfo's code for the same is another one.
const WIDTHS: [(u8, u32); 5] = [(1, 1 << 0), (2, 1 << 1), (4, 1 << 2), (8, 1 << 3), (12, 1 << 4)];
/// Speeds: SDR, DDR and QDR are those of PortInfo:LinkSpeedEnabled,
const STANDARD: u32 = 0x7;
/// then comes FDR10, which is the vendor's,
const VENDOR_SHIFT: u32 = 3;
/// then FDR, EDR and HDR, those of PortInfo:LinkSpeedExtEnabled.
const EXTENDED_SHIFT: u32 = 4;

/// A set of widths and one of speeds, in the register's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Modes {
    /// A bit for each of 1x, 2x, 4x, 8x and 12x.
    pub(crate) widths: u32,
    /// A bit for each of SDR, DDR, QDR, FDR10, FDR, EDR and HDR.
    pub(crate) speeds: u32,
}

impl Modes {
    fn new(widths: u32, (standard, extended, vendor): (u32, u32, u32)) -> Self {
        let widths = WIDTHS.iter().filter(|(lanes, _)| width_code(*lanes) & widths != 0);
        Self {
            widths: widths.fold(0, |all, (_, bit)| all | bit),
            speeds: standard | vendor << VENDOR_SHIFT | extended << EXTENDED_SHIFT,
        }
    }

    /// Both in one word: widths above, speeds below.
    pub(crate) fn word(self) -> u32 {
        self.widths << 16 | self.speeds
    }
}

impl Port {
    /// What an InfiniBand port can do.
    pub(crate) fn capable_modes(&self) -> Modes {
        let get = |field| self.info.get(field);
        let extended = get(PortInfo::LINK_SPEED_EXT_SUPPORTED);
        let speeds = (get(PortInfo::LINK_SPEED_SUPPORTED), extended, self.vendor_speeds().0);
        Modes::new(get(PortInfo::LINK_WIDTH_SUPPORTED), speeds)
    }

    /// What its next training may come to.
    pub(crate) fn wanted_modes(&self) -> Modes {
        let get = |field| self.info.get(field);
        let extended = get(PortInfo::LINK_SPEED_EXT_ENABLED);
        let speeds = (get(PortInfo::LINK_SPEED_ENABLED), extended, self.vendor_speeds().1);
        Modes::new(get(PortInfo::LINK_WIDTH_ENABLED), speeds)
    }

    /// What its last training came to: one width and one speed; none while the link is down.
    pub(crate) fn active_modes(&self) -> Modes {
        if self.state == port_state::DOWN {
            return Modes::default();
        }
        let get = |field| self.info.get(field);
        // LinkSpeedActive of links at other speeds than its own is that of QDR.
        let speeds = match (get(PortInfo::LINK_SPEED_EXT_ACTIVE), self.vendor_speeds().2) {
            (0, 0) => (get(PortInfo::LINK_SPEED_ACTIVE), 0, 0),
            (0, vendor) => (0, 0, vendor),
            (extended, _) => (0, extended, 0),
        };
        Modes::new(get(PortInfo::LINK_WIDTH_ACTIVE), speeds)
    }

    /// Software wants these widths and speeds, from the next training on; of either, zero leaves what was wanted before.
    ///
    /// # Errors
    /// The port can't do one of them. Nothing has changed then.
    pub(crate) fn want_modes(&mut self, wanted: Modes) -> Result<(), Failure> {
        const WIDTH: Failure = bad_param("PTYS: ib_link_width_admin has a width that the port can't do");
        const SPEED: Failure = bad_param("PTYS: ib_proto_admin has a speed that the port can't do");
        let capable = self.capable_modes();
        if wanted.widths & !capable.widths != 0 {
            return Err(WIDTH.got(wanted.widths).limit(capable.widths));
        }
        if wanted.speeds & !capable.speeds != 0 {
            return Err(SPEED.got(wanted.speeds).limit(capable.speeds));
        }
        if wanted.widths != 0 {
            let widths = WIDTHS.iter().filter(|(_, bit)| bit & wanted.widths != 0);
            let code = widths.fold(0, |all, (lanes, _)| all | width_code(*lanes));
            self.info.set(PortInfo::LINK_WIDTH_ENABLED, code);
        }
        if wanted.speeds != 0 {
            self.info.set(PortInfo::LINK_SPEED_ENABLED, wanted.speeds & STANDARD);
            self.info.set(PortInfo::LINK_SPEED_EXT_ENABLED, wanted.speeds >> EXTENDED_SHIFT);
            self.enable_vendor_speeds(wanted.speeds >> VENDOR_SHIFT);
        }
        Ok(())
    }

    /// Reads or writes PTYS of an InfiniBand port.
    ///
    /// # Errors
    /// What is written is not for InfiniBand, or [`Port::want_modes`] refuses it.
    pub(crate) fn access_modes(&mut self, write: bool, value: &mut Ptys) -> Result<(), Failure> {
        const PROTOCOL: Failure = bad_param("PTYS: proto_mask must be 1 (InfiniBand)");
        /// [`Ptys::PROTO_MASK`]: InfiniBand.
        const INFINIBAND: u32 = 1;
        if write {
            if value.get(Ptys::PROTO_MASK) != INFINIBAND {
                return Err(PROTOCOL.got(value.get(Ptys::PROTO_MASK)));
            }
            let (widths, speeds) = (value.get(Ptys::IB_LINK_WIDTH_ADMIN), value.get(Ptys::IB_PROTO_ADMIN));
            self.want_modes(Modes { widths, speeds })?;
        }
        let mut out = Ptys::new();
        out.set(Ptys::LOCAL_PORT, value.get(Ptys::LOCAL_PORT)).set(Ptys::PROTO_MASK, INFINIBAND);
        let (capable, wanted, active) = (self.capable_modes(), self.wanted_modes(), self.active_modes());
        out.set(Ptys::IB_LINK_WIDTH_CAPABILITY, capable.widths)
            .set(Ptys::IB_PROTO_CAPABILITY, capable.speeds);
        out.set(Ptys::IB_LINK_WIDTH_ADMIN, wanted.widths).set(Ptys::IB_PROTO_ADMIN, wanted.speeds);
        out.set(Ptys::IB_LINK_WIDTH_OPER, active.widths).set(Ptys::IB_PROTO_OPER, active.speeds);
        *value = out;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Effect;
    use crate::port::{PortLink, Role};
    use crate::speed::LinkSpeed;

    const SDR: u32 = 1;
    const FDR10: u32 = 8;
    const FDR: u32 = 0x10;
    const EDR: u32 = 0x20;

    fn up(port: &mut Port) -> Modes {
        let e = &mut Vec::<Effect>::new();
        port.set_link(None, e);
        assert_eq!(port.active_modes(), Modes::default(), "down");
        port.set_link(Some(PortLink::default()), e);
        port.active_modes()
    }

    #[test]
    fn what_is_wanted_holds_from_the_next_training_on() {
        let mut port = Port::new(Role::Adapter, 1, 1, "");
        // 1x and 4x, everything up to EDR.
        assert_eq!(port.capable_modes(), Modes { widths: 5, speeds: 0x3f });
        assert_eq!(port.wanted_modes(), port.capable_modes());
        assert_eq!(up(&mut port), Modes { widths: 4, speeds: EDR });
        for (widths, speeds, trained) in [
            (0, SDR, (4, SDR)),
            (1, 0, (1, SDR)),
            (5, SDR | FDR, (4, FDR)),
            (4, SDR | FDR10, (4, FDR10)),
            (1, EDR, (1, EDR)),
        ] {
            let before = port.active_modes();
            assert_eq!(port.want_modes(Modes { widths, speeds }), Ok(()));
            assert_eq!(port.active_modes(), before, "until it trains");
            assert_eq!(up(&mut port), Modes { widths: trained.0, speeds: trained.1 });
        }
    }

    #[test]
    fn what_the_port_can_not_do_is_refused() {
        let mut port = Port::new(Role::Adapter, 1, 1, "");
        let old = port.wanted_modes();
        for (widths, speeds) in [(2, 0), (4 | 8, SDR), (4, 0x40), (1, SDR | 1 << 15), (1 << 15, 0)] {
            assert!(port.want_modes(Modes { widths, speeds }).is_err(), "{widths:#x} {speeds:#x}");
        }
        assert_eq!(port.want_modes(Modes::default()), Ok(()));
        assert_eq!(port.wanted_modes(), old);
    }

    /// Every width and speed has its bit, the one that a subnet manager reads as another.
    #[test]
    fn bits_of_links() {
        for (width, speed, modes) in [
            (1, LinkSpeed::Sdr, (1, 1)),
            (2, LinkSpeed::Hdr, (2, 0x40)),
            (4, LinkSpeed::Ddr, (4, 2)),
            (8, LinkSpeed::Qdr, (8, 4)),
            (12, LinkSpeed::Fdr, (0x10, 0x10)),
        ] {
            let mut port = Port::new(Role::Adapter, 1, 1, "");
            port.set_link(Some(PortLink { width, speed }), &mut Vec::<Effect>::new());
            assert_eq!(port.active_modes(), Modes { widths: modes.0, speeds: modes.1 });
            assert_eq!(port.capable_modes().widths & modes.0, modes.0);
        }
    }
}
