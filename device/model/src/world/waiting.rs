//! Events that wait, and those among them that nothing comes of any more.
//!
//! What an adapter does later is bounded by what it has: a timer for each queue pair, an event for each slot of the command queue, packets that have credits. But an event that
//! was scheduled stays, also when its queue pair is reset or destroyed, or its function: with the longest ACK timeout for more than two
//! hours (IBTA 9.7.6.1.3: 4.096 us * 2^31). A guest that does this over and over would fill the host's memory. So they
//! are taken out when twice as many wait as there were after the last time.

use std::collections::HashMap;

use hca_firmware::FunctionId;
use hca_spec::ids::Qpn;

use super::{Event, World};
use crate::adapter::core::HcaEvent;
use crate::ground::node::HcaId;
use crate::ground::time::Ps;

/// With fewer events it isn't worth while.
pub(super) const LEAST: usize = 4096;

impl World {
    /// How many events wait.
    pub fn waiting_events(&self) -> usize {
        self.heap.len()
    }

    /// Takes out events that nothing comes of, if there may be many: the time for it is in proportion to what was scheduled
    /// since the last time.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.heap.len() >= self.tidy_at {
            self.tidy_now();
        }
    }

    #[cold]
    fn tidy_now(&mut self) {
        // A timer needs one event: that looks when the timer runs out, and comes again.
        let mut timers: HashMap<(HcaId, FunctionId, Qpn), Ps> = HashMap::new();
        for (at, event) in self.heap.iter() {
            if let Some(timer) = timer_of(event) {
                timers.entry(timer).and_modify(|first| *first = at.min(*first)).or_insert(at);
            }
        }
        let hcas = &self.hcas;
        self.heap.retain(|at, event| {
            let Event::Hca { hca, function, epoch, .. } = event else { return true };
            let Some(function) = hcas.get(hca.0).and_then(|hca| hca.function(*function)) else {
                return false;
            };
            let Some(timer) = timer_of(event) else { return function.epoch == *epoch };
            // Of several at the same time one stays: the others are gone from the map.
            let running = function.qps.get(timer.2.0).is_some_and(|qp| qp.requester.timer_running);
            function.epoch == *epoch
                && running
                && timers.get(&timer) == Some(&at)
                && timers.remove(&timer).is_some()
        });
        self.tidy_at = LEAST.max(self.heap.len() * 2);
    }
}

/// Whose ACK timer an event is.
fn timer_of(event: &Event) -> Option<(HcaId, FunctionId, Qpn)> {
    match event {
        Event::Hca { hca, function, event: HcaEvent::AckTimeout(qpn), .. } => Some((*hca, *function, *qpn)),
        _ => None,
    }
}
