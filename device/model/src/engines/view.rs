//! What an engine may look at besides its own state.

use hca_firmware::port::Port;
use hca_firmware::{Firmware, Icm, PortKind, Ports};
use hca_spec::caps::{Atomic, Odp, OdpScheme, atomic_operations};
use hca_spec::layout::Field;
use hca_spec::mkc::NULL_MKEY;
use hca_spec::qpc::{AddressPath, ServiceType};

use crate::engines::mkey::Fault;
use crate::link_layer::Route;

/// A read-only view of a function: the contexts that its firmware keeps, and the adapter's ports.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    firmware: &'a Firmware,
    ports: &'a Ports,
    /// An event queue wants to know of page faults.
    page_faults: bool,
    /// How many page faults the driver was told of.
    faults_told: u16,
}

impl<'a> View<'a> {
    #[inline]
    pub(crate) fn new(firmware: &'a Firmware, ports: &'a Ports, page_faults: bool, faults_told: u16) -> Self {
        Self { firmware, ports, page_faults, faults_told }
    }

    /// Contexts of queues, keys and domains.
    #[inline]
    pub(crate) fn icm(&self) -> &'a Icm {
        &self.firmware.icm
    }

    /// Where an address path of a context leads, as of now.
    pub(crate) fn route_of(&self, path: &AddressPath) -> Route {
        Route::of_context(self.kind_of(Route::port_of(path)), path)
    }

    /// The link layer of a port; that of the default where there is none.
    pub(crate) fn kind_of(&self, port: u8) -> PortKind {
        self.port(port).map_or(PortKind::InfiniBand, Port::kind)
    }

    /// A route with the addresses that its port has now.
    pub(crate) fn resolved(&self, route: Route) -> Route {
        let port = self.port(route.port());
        route.resolved(port)
    }

    /// A port, from 1.
    #[inline]
    pub(crate) fn port(&self, port: u8) -> Option<&'a Port> {
        self.ports.port(port)
    }

    /// Bit n: there are masked atomics of 2^n bytes; `sizes` tells of queue pairs or of dynamic connections.
    pub(crate) fn masked_sizes(&self, sizes: Field<Atomic>) -> u32 {
        let atomic = &self.firmware.personality().capabilities.atomic;
        match atomic.get(Atomic::ATOMIC_OPERATIONS) & atomic_operations::MASKED == atomic_operations::MASKED {
            true => atomic.get(sizes),
            false => 0,
        }
    }

    /// If page faults name keys and addresses (the memory scheme): the serial number of the next one.
    pub(crate) fn memory_faults(&self) -> Option<u16> {
        (self.firmware.paging().get(Odp::MEM_PAGE_FAULT) == 1).then_some(self.faults_told)
    }

    /// Whether faults of the memory scheme ask for pages ahead of their use, too.
    pub(crate) fn prefetches(&self) -> bool {
        self.firmware.paging().memory().get(OdpScheme::PAGE_PREFETCH) == 1
    }

    /// Whether a fault is one that a queue pair of that service waits for: its transport pages on demand for what is in
    /// `uses` ([`hca_spec::caps::odp`]) in the scheme in use, and an event queue wants to know.
    pub(crate) fn pages_on_demand(&self, service: ServiceType, fault: Fault, uses: u32) -> bool {
        let field: Field<OdpScheme> = match service {
            ServiceType::Rc => OdpScheme::RC,
            ServiceType::Xrc => OdpScheme::XRC,
            ServiceType::Ud => OdpScheme::UD,
            ServiceType::Dci | ServiceType::Dct => OdpScheme::DC,
            _ => return false,
        };
        let Fault::Page { key, .. } = fault else { return false };
        let paging = self.firmware.paging();
        let (scheme, can_be_told) = match self.memory_faults() {
            None => (paging.transport(), true),
            // The null key is no driver's: nobody could bring pages of it.
            Some(_) => (paging.memory(), key.0 != NULL_MKEY),
        };
        can_be_told && self.page_faults && scheme.get(field) & uses != 0
    }
}
