//! The ports of an adapter: they are the chip's, and its functions have them together. [`crate::Firmware`] has them while it
//! executes a command; datagrams and links reach them without a function.

use std::ops::RangeInclusive;

use hca_spec::eqe::{module_error, module_status};

use crate::crypto::Officer;
use crate::effect::Effect;
use crate::flash::{Flash, Work};
use crate::function::FunctionId;
use crate::module::Module;
use crate::notice::Notices;
use crate::pcie::Pcie;
use crate::personality::{FirmwareVersion, PortKind, PortProfile};
use crate::port::{Port, PortLink, Role};
use crate::profile::Config;
use crate::sensor::Sensor;
use crate::settings::{Delivered, Settings};
use crate::sync_reset::SyncReset;
use crate::tracer::Tracer;
use crate::virtual_functions::VirtualFunctions;

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

/// The ports of an adapter with their agents, by number from 1; and what else is the chip's: flash memory, which outlasts every
/// reset, a sensor, and what the firmware did.
#[derive(Debug)]
pub struct Ports {
    pub(crate) config: Config,
    pub(crate) ports: Vec<AdapterPort>,
    /// What is kept in flash.
    pub(crate) settings: Settings,
    /// Firmware that is kept in flash.
    pub(crate) flash: Flash,
    pub(crate) sensor: Sensor,
    /// The PCI Express link.
    pub pcie: Pcie,
    /// What the firmware did. Who has it is told of each function's reset ([`Tracer::function_reset`]).
    pub tracer: Tracer,
    /// Credential and key of keys, of an adapter with wrapped keys that is operational: kept in flash.
    pub(crate) officer: Option<Officer>,
    /// A start of the firmware that drivers are asked about.
    pub sync_reset: SyncReset,
    /// Functions that the first one enables.
    pub virtual_functions: VirtualFunctions,
    /// What is in the cage of each port, which no reset changes.
    cages: Vec<Cage>,
}

/// The cage of a port.
#[derive(Debug, Clone, Copy, Default)]
struct Cage {
    module: Module,
    /// Why what is in it can't be used: [`hca_spec::eqe::module_error`].
    trouble: Option<u32>,
}

/// Number of the chip's sensor.
pub(crate) const CHIP_SENSOR: u32 = 0;

impl Default for Ports {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

/// The ports of an adapter of that kind at power-on.
fn fresh(config: &Config) -> Vec<AdapterPort> {
    let profiles = (1..=u8::MAX).zip(&config.personality.ports);
    profiles.map(|(number, profile)| AdapterPort::new(number, profile, config)).collect()
}

impl Ports {
    /// Those of the adapter's kind, at power-on for the first time.
    pub fn new(config: Config) -> Self {
        let ports = fresh(&config);
        // With several ports they would have to be of one kind.
        let choice = matches!(&*config.personality.ports, [only] if only.kinds.len() > 1);
        let settings = Settings::new(&Delivered {
            ethernet: choice.then_some(config.port_kind == PortKind::Ethernet),
            guid: config.port_guid,
            mac: config.mac_of_port(1),
            ports: ports.len() as u8,
        });
        let flash = Flash::new(config.personality.version);
        let mut tracer = Tracer::default();
        tracer.restart(flash.running());
        let cages = vec![Cage::default(); ports.len()];
        let (sensor, pcie, sync_reset, virtual_functions) = Default::default();
        Self {
            ports,
            settings,
            flash,
            sensor,
            pcie,
            tracer,
            officer: None,
            sync_reset,
            virtual_functions,
            cages,
            config,
        }
    }

    /// Everything to power-on, but for what is kept in flash.
    pub fn reset(&mut self) {
        // Every field is named, so that a new one cannot be forgotten here.
        let Self {
            config,
            ports,
            settings: _,
            flash: _,
            sensor,
            pcie: _,
            tracer: _,
            officer: _,
            sync_reset: _,
            virtual_functions,
            cages: _,
        } = self;
        virtual_functions.drop_all(config);
        let old = std::mem::replace(ports, fresh(config));
        ports.iter_mut().zip(&old).for_each(|(new, old)| new.port.succeed(&old.port));
        sensor.reset();
    }

    /// The adapter's firmware starts: with what is in flash. Everything to power-on.
    pub fn restart(&mut self) {
        self.settings.restart();
        self.flash.restart();
        self.tracer.restart(self.flash.running());
        self.sync_reset = SyncReset::default();
        self.pcie.restart();
        let kind = match self.settings.ethernet(1) {
            Some(true) => PortKind::Ethernet,
            Some(false) => PortKind::InfiniBand,
            None => self.config.port_kind,
        };
        if kind != self.config.port_kind {
            self.config.port_kind = kind;
            // Nothing of the old ones is worth keeping.
            self.ports = fresh(&self.config);
        }
        self.reset();
    }

    /// That function is from now on a virtual one of the first.
    pub fn add_virtual_function(&mut self, function: FunctionId) {
        self.virtual_functions.add(function, &self.config);
    }

    /// The physical function is reset, and its virtual ones are gone. Returns those that were enabled.
    pub fn drop_virtual_functions(&mut self) -> Vec<FunctionId> {
        self.virtual_functions.drop_all(&self.config)
    }

    /// Version of the firmware that runs.
    pub fn firmware_version(&self) -> FirmwareVersion {
        self.flash.running()
    }

    /// What was done to the flash memory since the last call.
    pub fn take_flash_work(&mut self) -> Work {
        self.flash.take_work()
    }

    /// Link layer of the ports.
    pub fn kind(&self) -> PortKind {
        self.config.port_kind
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

    /// What is in the cage of that number, from 0: that of port 1.
    pub(crate) fn in_cage(&self, cage: u32) -> Option<Module> {
        self.cage(cage).map(|cage| cage.module)
    }

    fn cage(&self, cage: u32) -> Option<&Cage> {
        usize::try_from(cage).ok().and_then(|cage| self.cages.get(cage))
    }

    /// The state of what is in the cage of that number, from 0: [`module_status`], and [`module_error`] or 0.
    pub(crate) fn state_of_module(&self, cage: u32) -> Option<(u32, u32)> {
        let Cage { module, trouble } = *self.cage(cage)?;
        Some(match (module, trouble) {
            (Module::Empty, _) => (module_status::UNPLUGGED, 0),
            (_, Some(error)) => (module_status::ERROR, error),
            (Module::Stuck, None) => (module_status::ERROR, module_error::BUS_STUCK),
            (Module::Loopback | Module::Copper(_), None) => (module_status::PLUGGED, 0),
        })
    }

    /// What is in the cage of a port can't be used any more, for that reason ([`module_error`]), or (`None`) again.
    pub fn set_module_trouble(&mut self, port: u8, error: Option<u32>) {
        let cage = usize::from(port).checked_sub(1).and_then(|cage| self.cages.get_mut(cage));
        cage.into_iter().for_each(|cage| cage.trouble = error);
    }

    /// Something was put into the cage of a port, or taken out of it. Returns what was there.
    pub fn put_in_cage(&mut self, port: u8, module: Module) -> Option<Module> {
        let cage = usize::from(port).checked_sub(1).and_then(|cage| self.cages.get_mut(cage));
        cage.map(|cage| std::mem::replace(&mut cage.module, module))
    }

    /// The chip is so hot from now on, in degrees Celsius; `None`: as at rest. Returns the sensors of which there has to be a
    /// warning, a bit each.
    pub fn heat(&mut self, degrees: Option<u8>) -> u64 {
        if self.sensor.heat(degrees) { 1 << CHIP_SENSOR } else { 0 }
    }

    /// The port that a field of a command or context names. Drivers of adapters with one port leave it at zero, which
    /// means the first.
    pub(crate) fn named(&self, port: u32) -> Option<u8> {
        u8::try_from(port.max(1)).ok().filter(|port| self.numbers().contains(port))
    }

    /// The link of a port trained (to INIT) or was lost (to DOWN). A port that a subnet manager disabled
    /// stays down.
    pub fn set_link(&mut self, port: u8, link: Option<PortLink>, effects: &mut Vec<Effect>) {
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
