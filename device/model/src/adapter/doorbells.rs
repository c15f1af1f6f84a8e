//! Send doorbells that wait: the adapter has as much to do as it may have ([`crate::world`]).

use hca_spec::ids::Qpn;

use crate::adapter::core::Core;
use crate::adapter::state::event::HcaEvent;
use crate::ground::time::Ps;

impl Core<'_> {
    /// A send doorbell of a queue pair was rung: it is heeded at `at`, or when the adapter takes work again. `event` is a doorbell or a WQE that
    /// came with one, which is then read from the queue.
    #[inline]
    pub(crate) fn ring(&mut self, at: Ps, qpn: Qpn, event: HcaEvent) {
        match self.chip.doorbells.wait {
            false => self.schedule(at, event),
            true => {
                self.chip.doorbells.queues.insert((self.id, qpn));
                self.chip.doorbells.held += 1;
            }
        }
    }
}
