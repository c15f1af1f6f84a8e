//! The ports of an adapter: they are the chip's, and its functions have them together. [`crate::Firmware`] has them while it
//! executes a command; datagrams and links reach them without a function.

use std::ops::RangeInclusive;

use crate::effect::Effect;
use crate::notice::Notices;
use crate::personality::{PortKind, PortProfile};
use crate::port::{Link, Port, Role};
use crate::profile::Config;
use crate::settings::Settings;

/// A port of an adapter.
#[derive(Debug, Clone)]
pub(crate) struct AdapterPort {
    pub(crate) port: Port,
    /// What its subnet manager is told.
    pub(crate) notices: Notices,
}

impl AdapterPort {
    /// The port of that number at power-on.
    fn new(number: u8, profile: &PortProfile, config: &Config) -> Self {
        let guid = config.guid_of_port(number);
        let mut port = Port::new(Role::Adapter, number, guid, &config.node_description);
        port.equip_as(profile);
        if config.port_kind == PortKind::Ethernet {
            port.make_ethernet(config.mac_of_port(number));
        }
        Self { port, notices: Notices::default() }
    }
}

/// The ports of an adapter with their agents, by number from 1; and its lasting settings, which are the chip's as they are.
#[derive(Debug, Default)]
pub struct Ports {
    pub(crate) config: Config,
    pub(crate) ports: Vec<AdapterPort>,
    /// What outlasts every reset.
    pub(crate) settings: Settings,
}

impl Ports {
    /// Those of the adapter's kind, at power-on.
    pub fn new(config: Config) -> Self {
        let profiles = (1..=u8::MAX).zip(&config.personality.ports);
        let ports = profiles.map(|(number, profile)| AdapterPort::new(number, profile, &config)).collect();
        Self { config, ports, settings: Settings::default() }
    }

    /// Everything to power-on.
    pub fn reset(&mut self) {
        let old = std::mem::take(self);
        *self = Self { settings: old.settings, ..Self::new(old.config) };
        self.ports.iter_mut().zip(&old.ports).for_each(|(new, old)| new.port.succeed(&old.port));
    }

    /// Numbers of the ports: from 1 on.
    pub fn numbers(&self) -> RangeInclusive<u8> {
        1..=u8::try_from(self.ports.len()).unwrap_or(u8::MAX)
    }

    /// The port of that number, from 1.
    #[inline]
    pub fn port(&self, port: u8) -> Option<&Port> {
        self.ports.get(usize::from(port).wrapping_sub(1)).map(|p| &p.port)
    }

    /// The port of that number, to count on.
    #[inline]
    pub fn port_mut(&mut self, port: u8) -> Option<&mut Port> {
        self.adapter_port(port).map(|p| &mut p.port)
    }

    /// The port of that number with what its subnet manager is told.
    #[inline]
    pub(crate) fn adapter_port(&mut self, port: u8) -> Option<&mut AdapterPort> {
        self.ports.get_mut(usize::from(port).wrapping_sub(1))
    }

    /// The port that a field of a command or context names. Drivers of adapters with one port leave it at zero, which
    /// means the first.
    pub(crate) fn named(&self, port: u32) -> Option<u8> {
        u8::try_from(port.max(1)).ok().filter(|port| self.numbers().contains(port))
    }

    /// The link of a port trained (to INIT) or was lost (to DOWN). A port that a subnet manager disabled
    /// stays down.
    pub fn set_link(&mut self, port: u8, link: Option<Link>, effects: &mut Vec<Effect>) {
        if let Some(p) = self.port_mut(port) {
            p.set_link(link, effects);
        }
    }

    /// A good data packet arrived at a port: an armed port is active from now on.
    pub fn data_arrived(&mut self, port: u8, effects: &mut Vec<Effect>) {
        if let Some(p) = self.port_mut(port) {
            p.data_arrived(effects);
        }
    }
}
