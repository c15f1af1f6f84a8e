//! What an engine may look at besides its own state.

use hca_firmware::port::Port;
use hca_firmware::{Firmware, Icm, PortKind, Ports};
use hca_spec::caps::{Atomic, Odp, atomic_operations};
use hca_spec::layout::Field;
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
}

impl<'a> View<'a> {
    #[inline]
    pub(crate) fn new(firmware: &'a Firmware, ports: &'a Ports, page_faults: bool) -> Self {
        Self { firmware, ports, page_faults }
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

    /// Whether a fault is one that a queue pair of that service waits for: its transport pages on demand for what is in
    /// `uses` ([`hca_spec::caps::odp`]), and an event queue wants to know.
    pub(crate) fn pages_on_demand(&self, service: ServiceType, fault: Fault, uses: u32) -> bool {
        let field: Field<Odp> = match service {
            ServiceType::Rc => Odp::RC,
            ServiceType::Xrc => Odp::XRC,
            ServiceType::Ud => Odp::UD,
            ServiceType::Dci | ServiceType::Dct => Odp::DC,
            _ => return false,
        };
        matches!(fault, Fault::Page { .. })
            && self.page_faults
            && self.firmware.paging().get(field) & uses != 0
    }
}
