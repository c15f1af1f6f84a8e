//! Virtual functions of an adapter: which there are, whether the physical function has enabled them, and what it lets them do.
//!
//! The first function is the physical one. It names its virtual functions by their numbers from 1 on, and itself by 0. A virtual
//! function is at work only while it is enabled: its own ENABLE_HCA is refused before. What it can do at most is set before; its own
//! driver finds that from its next ENABLE_HCA on.
//!
//! Source: PRM "ENABLE_HCA", "DISABLE_HCA", "SET_HCA_CAP" (other_function); the mlx5 driver (`sriov.c`, `vport.c:
//! mlx5_vport_set_other_func_cap`) for numbers and order.

use hca_spec::caps::{Atomic, General, Odp, OdpScheme, Roce};

use crate::function::FunctionId;
use crate::profile::{Config, general_max, initial, paging_max};

/// What two pages about a scheme of paging have in common.
fn common_paging(a: &OdpScheme, b: &OdpScheme) -> OdpScheme {
    let mut common = *a;
    for field in OdpScheme::TRANSPORTS.into_iter().chain([OdpScheme::PAGE_PREFETCH]) {
        common.set(field, a.get(field) & b.get(field));
    }
    common
}

/// What a function can do: the groups of capabilities that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub(crate) general: General,
    pub(crate) atomic: Atomic,
    pub(crate) odp: Odp,
    pub(crate) roce: Roce,
}

impl Capabilities {
    /// The most that a function of such an adapter can do.
    pub(crate) fn most(config: &Config) -> Self {
        let capabilities = &config.personality.capabilities;
        let (atomic, roce) = (capabilities.atomic, capabilities.ethernet.roce);
        Self { general: general_max(config), atomic, odp: paging_max(config), roce }
    }

    /// What a function that can do this at most begins with.
    pub(crate) fn initial(&self, config: &Config) -> Self {
        let (mut odp, first) = (self.odp, &config.personality.capabilities.odp_initial);
        *odp.transport_mut() = common_paging(odp.transport(), first.transport());
        *odp.memory_mut() = common_paging(odp.memory(), first.memory());
        odp.set(Odp::MEM_PAGE_FAULT, odp.get(Odp::MEM_PAGE_FAULT) & first.get(Odp::MEM_PAGE_FAULT));
        let mut roce = self.roce;
        // A driver says by itself that it chooses ports.
        roce.set(Roce::SW_R_ROCE_SRC_UDP_PORT, 0);
        Self { general: initial(self.general), atomic: self.atomic, odp, roce }
    }
}

/// A virtual function, as the physical one sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VirtualFunction {
    pub(crate) function: FunctionId,
    pub(crate) enabled: bool,
    /// What it can do at most, from its next ENABLE_HCA on.
    pub(crate) most: Capabilities,
    /// What it can do now, if its driver has it up.
    pub(crate) now: Option<Capabilities>,
}

/// The virtual functions of an adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VirtualFunctions(Vec<VirtualFunction>);

impl VirtualFunctions {
    /// One more, with all that the adapter can do; not enabled.
    pub(crate) fn add(&mut self, function: FunctionId, config: &Config) {
        let most = Capabilities::most(config);
        self.0.push(VirtualFunction { function, enabled: false, most, now: None });
    }

    /// That of the number by which the physical function names it, from 1.
    pub(crate) fn numbered(&self, number: u32) -> Option<&VirtualFunction> {
        self.0.get((number as usize).checked_sub(1)?)
    }

    /// The same, to change.
    pub(crate) fn numbered_mut(&mut self, number: u32) -> Option<&mut VirtualFunction> {
        self.0.get_mut((number as usize).checked_sub(1)?)
    }

    /// That function, if it is a virtual one.
    pub(crate) fn of(&self, function: FunctionId) -> Option<&VirtualFunction> {
        self.0.iter().find(|virtual_function| virtual_function.function == function)
    }

    /// The same, to change.
    pub(crate) fn of_mut(&mut self, function: FunctionId) -> Option<&mut VirtualFunction> {
        self.0.iter_mut().find(|virtual_function| virtual_function.function == function)
    }

    /// The physical function is gone: none is enabled, and nothing that was set holds. Returns those that were enabled.
    pub(crate) fn drop_all(&mut self, config: &Config) -> Vec<FunctionId> {
        let mut gone = Vec::new();
        for VirtualFunction { function, enabled, most, now } in &mut self.0 {
            if std::mem::take(enabled) {
                gone.push(*function);
            }
            (*most, *now) = (Capabilities::most(config), None);
        }
        gone
    }

    /// A virtual function was reset: its driver does not have it up.
    pub fn function_reset(&mut self, function: FunctionId) {
        if let Some(of) = self.of_mut(function) {
            of.now = None;
        }
    }

    /// Their functions.
    pub fn iter(&self) -> impl Iterator<Item = FunctionId> {
        self.0.iter().map(|virtual_function| virtual_function.function)
    }
}
