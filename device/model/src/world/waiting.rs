//! Events that wait, and those among them that nothing comes of any more.
//!
//! What an adapter does later is bounded by what it has: a timer for each queue pair, an event for each slot of the command queue, packets that have credits. But an event that
//! was scheduled stays, also when its queue pair is reset or destroyed, or its function, or a DC connection is given up for another: with the
//! longest ACK timeout for more than two hours (IBTA 9.7.6.1.3: 4.096 us * 2^31). A guest that does this over and over would fill the host's memory. So they
//! are taken out when twice as many wait as there were after the last time: some at once, and if there are more, in further events of the same time.

use super::{Class, Event, World};
use crate::adapter::state::event::HcaEvent;
use crate::ground::time::{Ps, Source};

/// With fewer events it isn't worth while.
pub(super) const LEAST: usize = 4096;
/// Events that are looked at in one go: less than a millisecond.
const STEP: usize = 4096;

impl World {
    /// How many events wait.
    pub fn waiting_events(&self) -> usize {
        self.heap.len()
    }

    /// Takes out events that nothing comes of, if there may be many: the time for it is in proportion to what was scheduled
    /// since the last time. To be called wherever something comes from outside: by a host, or by a tunnel.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.heap.len() >= self.tidy_at {
            self.begin_tidying();
        }
        if self.heap.len() >= self.quotas.least {
            self.heed_quotas();
        }
    }

    /// Begins with it, if it is not under way.
    #[cold]
    pub(super) fn begin_tidying(&mut self) {
        if self.tidying.is_none() {
            self.tidy_from(0);
        }
    }

    /// Goes on with it.
    #[cold]
    pub(super) fn tidy_on(&mut self) {
        if let Some(from) = self.tidying.take() {
            self.tidy_from(from);
            if self.tidying.is_none() && self.quotas.reached {
                self.heed_counts();
            }
        }
    }

    fn tidy_from(&mut self, from: usize) {
        let hcas = &self.hcas;
        let counts = |at: Ps, event: &Event| {
            let Event::Hca { hca, function, epoch, event } = event else { return true };
            let function = hcas.get(hca.0).and_then(|hca| hca.function(*function));
            let Some(function) = function.filter(|function| function.epoch == *epoch) else { return false };
            // A timer that looks at a deadline when it runs out, and is started again if that has moved, knows when its event is.
            match event {
                HcaEvent::AckTimeout(qpn) => {
                    function.qps.get(qpn.0).is_some_and(|qp| qp.requester.timer == Some(at))
                }
                HcaEvent::DynamicIdle(peer) => {
                    function.dc_responders.get(peer).is_some_and(|responder| responder.is_looked_at(at))
                }
                _ => true,
            }
        };
        self.tidying = self.heap.sweep(from, STEP, counts);
        match self.tidying {
            Some(_) => {
                let source = Source::new(Class::Manager as u8, 0, 0);
                self.heap.push(self.now, source, Event::Tidy);
            }
            None => self.tidy_at = LEAST.max(self.heap.len() * 2),
        }
    }
}
