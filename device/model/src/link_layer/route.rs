//! Where a queue pair's packets go.

use std::fmt;

use hca_firmware::{Port, PortKind};
use hca_spec::dct::Dctc;
use hca_spec::ids::Gid;
use hca_spec::qpc::AddressPath;
use hca_spec::wqe::Datagram;

use super::path::{LinkAddress, Path, Station};
use super::{eth, ib};
use crate::wire::GrhRepr;

/// Where packets go, and the path that comes of that: worked out once, when a context or an address vector is read, and again
/// when the addresses of the port where it begins have become others ([`Port::addresses`]).
#[derive(Debug, Clone, Default)]
pub(crate) struct Route {
    /// The port that it begins at.
    port: u8,
    pkey_index: u16,
    /// Which of the port's GIDs is the sender's.
    gid_index: u8,
    own: Own,
    /// It leads back to its port, whatever addresses the context or the vector names (PRM "Address Path", `fl`): on Ethernet they are
    /// the port's first ones, on InfiniBand its LID, which need not be assigned.
    forced: bool,
    /// With the sender's addresses of when the port's were of that number.
    path: Path,
    pkey: u16,
    as_of: u32,
}

/// Which of the port's addresses on the link is the sender's.
#[derive(Debug, Clone, Copy)]
enum Own {
    /// InfiniBand: path bits of the LID.
    Ib { path_bits: ib::PathBits },
    /// Ethernet: the address of the GID index, with this.
    Eth(eth::Sender),
}

impl Default for Own {
    fn default() -> Self {
        Self::Ib { path_bits: 0 }
    }
}

/// A GID that a packet has and should not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongGid {
    /// Which of the GRH.
    pub(crate) field: &'static str,
    /// `None`: the packet has no GRH.
    pub(crate) found: Option<Gid>,
    pub(crate) expected: Gid,
}

impl fmt::Display for WrongGid {
    /// What was found.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.found {
            Some(gid) => write!(f, "{gid} in the GRH of a packet"),
            None => f.write_str("a packet without a GRH"),
        }
    }
}

impl Route {
    /// Of an address path in a queue pair's context (PRM "Address Path"), with its P_Key.
    /// `kind` is that of its port ([`Route::port_of`]).
    pub(crate) fn of_context(kind: PortKind, path: &AddressPath) -> Self {
        let global = |tclass| GrhRepr {
            sgid: Gid::default(),
            dgid: Gid::new(path.get(AddressPath::RGID_H), path.get(AddressPath::RGID_L)),
            tclass,
            flow_label: path.get(AddressPath::FLOW_LABEL),
            hop_limit: path.get(AddressPath::HOP_LIMIT) as u8,
        };
        let tclass = path.get(AddressPath::TCLASS) as u8;
        let (link, own, grh) = match kind {
            PortKind::InfiniBand => {
                let (address, path_bits) = ib::Address::of_context(path);
                let grh = (path.get(AddressPath::GRH) == 1).then(|| global(tclass));
                (LinkAddress::Ib(address), Own::Ib { path_bits }, grh)
            }
            PortKind::Ethernet => {
                let (address, sender) = eth::Address::of_context(path);
                (LinkAddress::Eth(address), Own::Eth(sender), Some(global(tclass | eth::tos_of(path))))
            }
        };
        Self {
            port: Self::port_of(path),
            pkey_index: path.get(AddressPath::PKEY_INDEX) as u16,
            gid_index: path.get(AddressPath::SRC_ADDR_INDEX) as u8,
            own,
            forced: path.get(AddressPath::FL) == 1,
            path: Path { link, grh },
            ..Self::default()
        }
    }

    /// The port of an address path. Drivers of adapters with one port may leave it at zero.
    pub(crate) fn port_of(path: &AddressPath) -> u8 {
        path.get(AddressPath::VHCA_PORT_NUM).max(1) as u8
    }

    /// The same port and partition, to where an address vector of a work request leads (PRM "Datagram Segment").
    #[must_use]
    pub(crate) fn to_vector(&self, av: &Datagram) -> Self {
        let global = GrhRepr {
            sgid: Gid::default(),
            dgid: Gid::new(av.get(Datagram::RGID_H), av.get(Datagram::RGID_L)),
            tclass: av.get(Datagram::TCLASS) as u8,
            flow_label: av.get(Datagram::FLOW_LABEL),
            hop_limit: av.get(Datagram::HOP_LIMIT) as u8,
        };
        let (link, own, grh) = match self.path.link {
            LinkAddress::Ib(_) => {
                let (address, path_bits) = ib::Address::of_vector(av);
                let grh = (av.get(Datagram::GRH) == 1).then_some(global);
                (LinkAddress::Ib(address), Own::Ib { path_bits }, grh)
            }
            LinkAddress::Eth(_) => {
                let (address, sender) = eth::Address::of_vector(av);
                (LinkAddress::Eth(address), Own::Eth(sender), Some(global))
            }
        };
        Self {
            port: self.port,
            pkey_index: self.pkey_index,
            gid_index: av.get(Datagram::SGID_INDEX) as u8,
            own,
            forced: av.get(Datagram::FL) == 1,
            path: Path { link, grh },
            ..Self::default()
        }
    }

    /// From a DC target at its port back to where a packet came from; the rest of a GRH is as its context says.
    pub(crate) fn back(came: &Path, ctx: &Dctc, port: Option<&Port>) -> Self {
        let (link, own) = match &came.link {
            LinkAddress::Ib(address) => {
                let (address, path_bits) = address.back(port);
                (LinkAddress::Ib(address), Own::Ib { path_bits })
            }
            LinkAddress::Eth(address) => {
                let (address, sender) = address.back();
                (LinkAddress::Eth(address), Own::Eth(sender))
            }
        };
        let grh = came.grh.map(|grh| GrhRepr {
            sgid: Gid::default(),
            dgid: grh.sgid,
            tclass: ctx.get(Dctc::TCLASS) as u8,
            flow_label: ctx.get(Dctc::FLOW_LABEL),
            hop_limit: ctx.get(Dctc::HOP_LIMIT) as u8,
        });
        Self {
            port: ctx.get(Dctc::PORT) as u8,
            pkey_index: ctx.get(Dctc::PKEY_INDEX) as u16,
            gid_index: ctx.get(Dctc::MY_ADDR_INDEX) as u8,
            own,
            forced: came.is_forced(),
            path: Path { link, grh },
            ..Self::default()
        }
    }

    /// It leads through the lane of subnet management: that of a QP0.
    #[must_use]
    pub(crate) fn managing(mut self) -> Self {
        match &mut self.path.link {
            LinkAddress::Ib(address) => *address = address.managing(),
            // There is no QP0 on Ethernet.
            LinkAddress::Eth(_) => {}
        }
        self
    }

    /// With the addresses that the port has now.
    #[must_use]
    pub(crate) fn resolved(mut self, port: Option<&Port>) -> Self {
        let Some(port) = port else { return self };
        if self.forced {
            self.lead_back(port);
        }
        match (&mut self.path.link, self.own) {
            (LinkAddress::Ib(address), Own::Ib { path_bits }) => {
                *address = match (address.sent_by(port, path_bits), self.forced) {
                    (sent, true) => sent.led_back(),
                    (sent, false) => sent,
                };
            }
            (LinkAddress::Eth(address), Own::Eth(sender)) => {
                *address = match port.ethernet().filter(|_| self.forced) {
                    Some(own) if own.roce_addresses().next().is_none() => {
                        eth::Address::led_back(eth::Mac(own.mac))
                    }
                    _ => address.with_sender(port, self.gid_index, sender),
                };
                address.forced = self.forced;
                if let Some(grh) = &mut self.path.grh {
                    grh.tclass = sender.traffic_class(port, address, grh.tclass);
                }
            }
            // Both are of one kind.
            (LinkAddress::Ib(_), Own::Eth(_)) | (LinkAddress::Eth(_), Own::Ib { .. }) => {}
        }
        if let Some(grh) = &mut self.path.grh {
            grh.sgid = port.gid(self.gid_index.into());
            if self.forced && self.path.link.kind() == PortKind::InfiniBand {
                grh.dgid = grh.sgid;
            }
        }
        self.pkey = port.pkey(self.pkey_index.into());
        self.as_of = port.addresses();
        self
    }

    /// From the port's first RoCE address to itself; without any, from and to its own MAC address. InfiniBand: as its LID is found.
    fn lead_back(&mut self, port: &Port) {
        if self.path.link.kind() == PortKind::InfiniBand {
            return;
        }
        let Some((index, own)) = port.ethernet().and_then(|ethernet| ethernet.roce_addresses().next()) else {
            // Nobody else has it: without addresses the port's transport takes nothing but this.
            self.path.grh.get_or_insert_default().dgid = Gid::default();
            return;
        };
        self.gid_index = index;
        if let LinkAddress::Eth(address) = &mut self.path.link {
            address.dmac = eth::Mac(own.mac);
        }
        if let Some(grh) = &mut self.path.grh {
            grh.dgid = own.gid;
        }
    }

    /// The port that it begins at, from 1.
    #[inline]
    pub(crate) fn port(&self) -> u8 {
        self.port
    }

    /// What packets travel by that begin at `port`, which is the route's.
    #[inline]
    pub(crate) fn path(&self, port: &Port) -> Path {
        match self.as_of == port.addresses() {
            true => self.path,
            false => self.clone().resolved(Some(port)).path,
        }
    }

    /// The P_Key of such packets.
    #[inline]
    pub(crate) fn pkey(&self, port: &Port) -> u16 {
        match self.as_of == port.addresses() {
            true => self.pkey,
            false => port.pkey(self.pkey_index.into()),
        }
    }

    /// A GID in the GRH that a packet came with which is not the one of this way, or a GRH that it lacks: of a connection both GIDs are
    /// checked (IBTA 9.6.1.2; qib driver, `qib_ruc_check_hdr`; rxe, `check_addr`). A GRH that this way has not is let pass if it is for a GID
    /// of the port. `port` is the one that it came by. RoCE: who sent it [says its source](Path::source).
    #[inline]
    pub(crate) fn wrong_gid(&self, port: &Port, came: &Path) -> Option<WrongGid> {
        match (&self.path.grh, came.grh()) {
            (None, None) => None,
            (Some(own), Some(grh)) if came.eth().is_some() => {
                let own = if self.as_of == port.addresses() { own.sgid } else { self.path(port).grh()?.sgid };
                let wrong = WrongGid { field: "dgid", found: Some(grh.dgid), expected: own };
                (grh.dgid != own).then_some(wrong)
            }
            (None, Some(_)) => came.stray_gid(port),
            (Some(_), grh) => self.other_gid(port, grh),
        }
    }

    /// The same where this way has a GRH.
    fn other_gid(&self, port: &Port, came: Option<&GrhRepr>) -> Option<WrongGid> {
        let own = *self.path(port).grh()?;
        let wrong = |field, found, expected| Some(WrongGid { field, found, expected });
        match came {
            None => wrong("dgid", None, own.sgid),
            Some(grh) if !grh.dgid.is_or_defaults_to(own.sgid) => wrong("dgid", Some(grh.dgid), own.sgid),
            Some(grh) if !grh.sgid.is_or_defaults_to(own.dgid) => wrong("sgid", Some(grh.sgid), own.dgid),
            Some(_) => None,
        }
    }

    /// Whether what came by `came` is of this way: one that leads back has no other peer, and what is forced back never leaves its port.
    #[inline]
    pub(crate) fn is_led_back(&self, came: &Path) -> bool {
        self.forced && came.is_forced()
    }

    /// Where it leads to.
    #[inline]
    pub(crate) fn peer(&self) -> Station {
        match &self.path.link {
            LinkAddress::Ib(address) => Station::Ib(address.dlid),
            LinkAddress::Eth(_) => Station::Eth(self.path.grh.map_or(Gid::default(), |grh| grh.dgid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use hca_firmware::port::Role;
    use hca_spec::ids::Lid;

    use super::*;

    #[test]
    fn a_route_follows_its_port() {
        let mut context = AddressPath::new();
        context.set(AddressPath::RLID, 7).set(AddressPath::SL, 3).set(AddressPath::GRH, 1);
        context.set(AddressPath::RGID_L, 0x1234).set(AddressPath::HOP_LIMIT, 9);
        let port = |guid| Port::new(Role::Adapter, 1, guid, "");
        let (one, other) = (port(1), port(2));
        let never = Route::of_context(PortKind::InfiniBand, &context);
        assert_eq!((never.port(), never.peer()), (1, Station::Ib(Lid(7))), "port 0 is the first");
        let route = never.clone().resolved(Some(&one));
        assert_eq!(route.path(&one), never.path(&one), "worked out when it is asked for, if not before");
        assert_eq!((never.pkey(&one), route.pkey(&one)), (0xffff, 0xffff));
        let path = route.path(&one);
        assert_eq!(path.ib().map(|a| (a.dlid, a.sl)), Some((Lid(7), 3)));
        let grh = path.grh().expect("a GRH");
        assert_eq!((grh.sgid, grh.hop_limit), (one.gid(0), 9));
        assert_ne!(one.gid(0), other.gid(0));
    }

    /// On InfiniBand a way that is forced back leads to the port's LID, with its own GID, and to nothing else.
    #[test]
    fn a_way_that_leads_back() {
        let port = Port::new(Role::Adapter, 1, 1, "");
        let mut context = AddressPath::new();
        context.set(AddressPath::RLID, 7).set(AddressPath::GRH, 1).set(AddressPath::FL, 1);
        let route = Route::of_context(PortKind::InfiniBand, &context).resolved(Some(&port));
        let path = route.path(&port);
        assert!(path.is_forced() && route.is_led_back(&path));
        assert_eq!(path.ib().map(|address| (address.slid, address.dlid)), Some((Lid(0), Lid(0))));
        assert_eq!(path.grh().map(|grh| (grh.sgid, grh.dgid)), Some((port.gid(0), port.gid(0))));
        let elsewhere = Path::from(ib::Address::between(Lid(7), Lid(0)));
        assert!(!route.is_led_back(&elsewhere));
        // Of one that is not, an address vector can be.
        context.set(AddressPath::FL, 0);
        let other = Route::of_context(PortKind::InfiniBand, &context);
        let mut av = Datagram::new();
        assert!(!other.to_vector(&av).resolved(Some(&port)).path(&port).is_forced());
        av.set(Datagram::FL, 1).set(Datagram::RLID, 9);
        let path = other.to_vector(&av).resolved(Some(&port)).path(&port);
        assert!(path.is_forced() && path.is_from(&port));
        let back = Route::back(&path, &Dctc::new(), Some(&port)).resolved(Some(&port));
        assert!(back.path(&port).is_forced());
    }

    #[test]
    fn the_way_back() {
        let came = ib::Address { sl: 2, vl: 1, ..ib::Address::between(Lid(0x11), Lid(0x22)) };
        let grh = GrhRepr { sgid: Gid([1; 16]), dgid: Gid([2; 16]), ..GrhRepr::default() };
        let port = Port::new(Role::Adapter, 1, 1, "");
        let back = Route::back(&Path::from(came).with_grh(grh), &Dctc::new(), Some(&port));
        assert_eq!(back.peer(), Station::Ib(Lid(0x11)));
        let path = back.path(&port);
        assert_eq!(path.grh().map(|grh| (grh.dgid, grh.sgid)), Some((Gid([1; 16]), port.gid(0))));
        assert_eq!(path.ib().map(|a| (a.sl, a.vl)), Some((2, 0)));
    }
}
