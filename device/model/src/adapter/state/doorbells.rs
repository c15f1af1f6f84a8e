//! Send doorbells that wait.

use std::collections::BTreeSet;

use hca_firmware::FunctionId;
use hca_spec::ids::Qpn;

/// Send doorbells of an adapter that wait.
#[derive(Debug, Default)]
pub(crate) struct Doorbells {
    /// They do from now on.
    pub(crate) wait: bool,
    /// Whose: one for each queue pair.
    pub(crate) queues: BTreeSet<(FunctionId, Qpn)>,
    /// So many did.
    pub(crate) held: u64,
}
