//! Events that wait, and those among them that nothing comes of any more.
//!
//! What an adapter does later is bounded by what it has: a timer for each queue pair, an event for each slot of the command queue, packets that have credits. But an event that
//! was scheduled stays, also when its queue pair is reset or destroyed, or its function, or a DC connection is given up for another: with the
//! longest ACK timeout for more than two hours (IBTA 9.7.6.1.3: 4.096 us * 2^31). A guest that does this over and over would fill the host's memory. So they
//! are taken out when twice as many wait as there were after the last time.

use std::collections::HashMap;

use hca_firmware::FunctionId;
use hca_spec::ids::Qpn;

use super::{Event, World};
use crate::adapter::core::HcaEvent;
use crate::engines::qp::dct::Peer;
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
    /// since the last time. To be called wherever something comes from outside: by a host, or by a tunnel.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.heap.len() >= self.tidy_at {
            self.tidy_now();
        }
        if self.heap.len() >= self.quotas.least {
            self.heed_quotas();
        }
    }

    #[cold]
    pub(super) fn tidy_now(&mut self) {
        let hcas = &self.hcas;
        let function_of =
            |hca: &HcaId, function: &FunctionId| hcas.get(hca.0).and_then(|hca| hca.function(*function));
        // What a timer waits for. One that comes before the ACK timer's time is left over, and means nothing.
        let counts = |at: Ps, (hca, function, timer): &(HcaId, FunctionId, Timer)| {
            function_of(hca, function).is_some_and(|function| match timer {
                Timer::Ack(qpn) => {
                    let timer = function.qps.get(qpn.0).and_then(|qp| qp.requester.timer);
                    timer.is_some_and(|timer| timer <= at)
                }
                Timer::Idle(peer) => function.dc_responders.contains_key(peer),
            })
        };
        // A timer needs one event: the first that counts.
        let mut timers: HashMap<(HcaId, FunctionId, Timer), Ps> = HashMap::new();
        for (at, event) in self.heap.iter() {
            if let Some(timer) = timer_of(event).filter(|timer| counts(at, timer)) {
                timers.entry(timer).and_modify(|first| *first = at.min(*first)).or_insert(at);
            }
        }
        self.heap.retain(|at, event| {
            let Event::Hca { hca, function, epoch, .. } = event else { return true };
            let Some(function) = function_of(hca, function) else { return false };
            let Some(timer) = timer_of(event) else { return function.epoch == *epoch };
            // Of several at the same time one stays: the others are gone from the map.
            function.epoch == *epoch && timers.get(&timer) == Some(&at) && timers.remove(&timer).is_some()
        });
        self.tidy_at = LEAST.max(self.heap.len() * 2);
    }
}

/// A timer that looks at a deadline when it runs out, and is started again if that has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Timer {
    /// For the ACK of a queue pair's oldest request.
    Ack(Qpn),
    /// Of a DC connection that is not used.
    Idle(Peer),
}

/// Whose timer an event is.
fn timer_of(event: &Event) -> Option<(HcaId, FunctionId, Timer)> {
    let Event::Hca { hca, function, event, .. } = event else { return None };
    let timer = match event {
        HcaEvent::AckTimeout(qpn) => Timer::Ack(*qpn),
        HcaEvent::DynamicIdle(peer) => Timer::Idle(*peer),
        _ => return None,
    };
    Some((*hca, *function, timer))
}
