//! What the functions of an adapter share: units, ports, time, and the outbox of effects.

use std::sync::Arc;

use hca_firmware::pcie::LinkTrouble;
use hca_firmware::{Config, Port};

use crate::adapter::state::copies::Copies;
use crate::adapter::state::doorbells::Doorbells;
use crate::adapter::state::outbox::Outbox;
use crate::adapter::state::ports::Ports;
use crate::adapter::state::watch::Watch;
use crate::engines::gateway::Spaces;
use crate::faults::{PcieLink, Script};
use crate::ground::epoch::{Rebase, Start};
use crate::ground::time::Ps;
use crate::ground::timing::Timing;
use crate::units::Units;

/// The chip.
pub(crate) struct Chip {
    pub(crate) name: String,
    pub(crate) timing: Arc<Timing>,
    /// Where its times are counted from.
    pub(crate) start: Start,
    pub(crate) units: Units,
    /// The ports as software sees them: state, tables, counters, agents.
    pub(crate) managed: hca_firmware::Ports,
    /// The ports' sending sides.
    pub(crate) ports: Ports,
    pub(crate) out: Outbox,
    /// What those who look on want to see.
    pub(crate) watch: Option<Box<Watch>>,
    /// How many functions there are.
    pub(crate) functions: u8,
    /// What is behind the window of tools.
    pub(crate) spaces: Spaces,
    /// Send doorbells that wait.
    pub(crate) doorbells: Doorbells,
    /// Copies of frames that wait for receive queues.
    pub(crate) copies: Copies,
    /// What goes wrong.
    pub(crate) script: Option<Box<Script>>,
}

impl Chip {
    pub(crate) fn new(name: String, config: Config, timing: Arc<Timing>) -> Self {
        let managed = hca_firmware::Ports::new(config);
        Self {
            name,
            units: Units::new(&timing),
            ports: sending(&managed, &timing),
            managed,
            timing,
            start: Start::default(),
            out: Outbox::default(),
            watch: None,
            functions: 1,
            spaces: Spaces::default(),
            doorbells: Doorbells::default(),
            copies: Copies::default(),
            script: None,
        }
    }

    /// Power-on state; the identity stays.
    pub(crate) fn reset(&mut self) {
        // Every field is named, so that a new one cannot be forgotten here.
        let Self {
            name: _,
            timing,
            start: _,
            units,
            managed,
            ports,
            out,
            watch,
            functions: _,
            spaces,
            doorbells,
            // Each has its room until it is gone.
            copies: _,
            script,
        } = self;
        *units = Units::new(timing);
        if watch.as_ref().is_some_and(|w| w.records_all()) {
            units.start_notes();
        }
        managed.reset();
        ports.reset();
        *spaces = Spaces::default();
        // Whether others wait is found out when events are counted.
        doorbells.queues.clear();
        *out = Outbox::default();
        if let Some(script) = script {
            script.was_reset();
        }
    }

    /// The firmware starts, with what is in flash: ports may be of another kind then.
    pub(crate) fn restart(&mut self) {
        let before = self.managed.kind();
        self.managed.restart();
        if self.managed.kind() != before {
            self.ports = sending(&self.managed, &self.timing);
        }
        self.reset();
    }

    /// The PCI Express link has trained to that on script, or (`None`) to what it should. What is under way is not touched.
    pub(crate) fn retrain(&mut self, link: Option<PcieLink>) {
        let Some(script) = &mut self.script else { return };
        self.managed.pcie.trained = link.map(|link| (link.lanes, link.speed));
        self.managed.pcie.trouble(LinkTrouble::Retrained);
        let full = match script.pcie.link.take() {
            Some((_, full)) => full,
            None => Arc::clone(&self.timing),
        };
        self.timing = match link {
            Some(link) => {
                let slow = Timing::new(&full.profile().clone().with_pcie_link(link.gt_per_s(), link.lanes));
                script.pcie.link = Some((link, full));
                Arc::new(slow)
            }
            None => full,
        };
        self.units.retrain(&self.timing);
    }

    /// Whether packets at the port are gathered.
    pub(crate) fn captures(&self) -> bool {
        self.watch.as_ref().is_some_and(|w| w.captures_any())
    }
}

/// The sending sides of those ports.
fn sending(managed: &hca_firmware::Ports, timing: &Timing) -> Ports {
    let kinds: Vec<_> = managed.numbers().filter_map(|n| managed.port(n)).map(Port::kind).collect();
    Ports::new(kinds.into_iter(), timing.agent_queue())
}

impl Rebase for Chip {
    fn rebase(&mut self, by: Ps) {
        let Self {
            name: _,
            timing: _,
            start,
            units,
            managed,
            ports,
            out,
            watch,
            functions: _,
            spaces: _,
            doorbells: _,
            copies: _,
            script,
        } = self;
        start.moves(by);
        units.rebase(by);
        managed.rebase(by.0);
        ports.rebase(by);
        debug_assert!(out.is_empty(), "between two events nothing is in it");
        watch.rebase(by);
        script.rebase(by);
    }
}
