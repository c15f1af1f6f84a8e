//! Which event queues the driver wants to hear of what by.

use hca_spec::ids::Eqn;

/// Which event queue gets which asynchronous events.
#[derive(Debug)]
pub(crate) struct EventRoutes(pub(in crate::adapter) [Option<Eqn>; 256]);

impl Default for EventRoutes {
    fn default() -> Self {
        Self([None; 256])
    }
}
