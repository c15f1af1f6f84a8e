//! The start of a world's time moves, so that time does not end: see [`crate::ground::epoch`].

use super::{Event, World};
use crate::ground::epoch::{DUE, EPOCH, Rebase, Start, UNIT};
use crate::ground::time::Ps;

impl Rebase for Event {
    fn rebase(&mut self, by: Ps) {
        match self {
            Self::Hca { event, .. } => event.rebase(by),
            Self::Forward(forwarded) | Self::Agent(forwarded) => forwarded.rebase(by),
            Self::Arrive { .. }
            | Self::SwitchTurn { .. }
            | Self::SwitchPoll(_)
            | Self::Light { .. }
            | Self::Credits { .. }
            | Self::Trained { .. }
            | Self::Pause(_)
            | Self::Sweep
            | Self::Program(_)
            | Self::Script { .. }
            | Self::Tidy
            | Self::Doorbells(_) => {}
        }
    }
}

impl World {
    /// When this world's times begin, counted from its very first start: a world whose times end moves its start.
    pub fn start(&self) -> Start {
        self.start
    }

    /// Moves the start if it is time to; `present` is the owner's time, which may be ahead of an idle world's. Returns by how much it moved:
    /// so much earlier are all times from now on, those of the world and those that its owner keeps. To be called between two inputs, at
    /// least once in 50 days of model time. What it takes is in proportion to what there is: a look at each queue pair and each event.
    pub fn rebase_if_due(&mut self, present: Ps) -> Option<Ps> {
        if present.max(self.now) < DUE {
            return None;
        }
        let reached = self.next_event().map_or(present, |next| next.min(present)).max(self.now);
        if reached < DUE {
            return None;
        }
        // Nothing is due before that.
        self.now = self.now.max(EPOCH);
        Some(self.rebase(EPOCH))
    }

    /// Moves the start by `by`, or by less: a whole number of 2^22 ps, and not beyond now. What passed before the new start is as if it
    /// had passed then, so nothing that still matters may have: keep as much time before now as the longest interval that somebody
    /// measures has. Returns by how much.
    pub fn rebase(&mut self, by: Ps) -> Ps {
        self.rouse();
        let by = Ps(by.min(self.now).0 >> UNIT << UNIT);
        self.settle_all();
        if by == Ps::ZERO {
            return by;
        }
        // Every field is named, so that a new one can't be forgotten.
        let Self {
            hcas,
            hca_plugs: _,
            switches,
            links,
            tunnels: _,
            heap,
            trains: _,
            flow: _,
            trains_allowed: _,
            trains_leave: _,
            trains_begun: _,
            now,
            start,
            effects: _,
            tidy_at: _,
            tidying: _,
            quotas: _,
            spare: _,
            deliveries: _,
            tunnel_events,
            left: _,
            left_referring: _,
            held_credits: _,
            subnet_manager: _,
            management_key: _,
            partitions: _,
            subnet: _,
            planned: _,
            routing: _,
            sweep_due: _,
            sweep: _,
            timing: _,
            checker,
            faults_added: _,
            trace,
            commands,
            captured,
            lids_on_script: _,
        } = self;
        now.rebase(by);
        start.moves(by);
        heap.rebase(by, |event| event.rebase(by));
        for hca in hcas {
            hca.chip.rebase(by);
            hca.functions.rebase(by);
        }
        switches.rebase(by);
        links.rebase(by);
        let moved = |((mut at, number), mut event): ((Ps, u64), crate::TunnelEvent)| {
            at.rebase(by);
            event.rebase(by);
            ((at, number), event)
        };
        *tunnel_events = std::mem::take(tunnel_events).into_iter().map(moved).collect();
        checker.rebase(by);
        if let Some(trace) = trace {
            trace.rebase(by);
        }
        commands.rebase(by);
        captured.rebase(by);
        by
    }
}
