//! The checker joined: it sees what adapters do and looks when it is due, and what it finds is diagnosed.

use hca_spec::{init_segment, rules};

use super::World;
use crate::adapter::is_doorbell;
use crate::adapter::state::function::Function;
use crate::checker::Checker;
use crate::ground::diagnosis::{Diagnosis, Finding, Subject};
use crate::ground::event::Audience;
use crate::ground::node::{FunctionRef, HcaId};
use crate::ground::time::Ps;

impl World {
    /// From now on a checker looks on: it diagnoses what an adapter would keep silent about, of what a driver has left undone
    /// after `patience`.
    pub fn start_checker(&mut self, patience: Ps) {
        self.rouse();
        let names = self.hcas.iter().map(|hca| hca.chip.name.clone()).collect();
        self.checker = Some(Box::new(Checker::new(self.now, patience, names)));
        for hca in (0..self.hcas()).map(HcaId) {
            self.record(hca, Audience::CHECKER);
        }
    }

    /// Lets the checker look, if it is due, and takes what it has found.
    #[inline]
    pub(super) fn check(&mut self) {
        if self.quotas.reached {
            self.heed_quotas();
        }
        if let Some(checker) = &self.checker
            && (checker.due() <= self.now || checker.has_found())
        {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        let Some(checker) = &mut self.checker else { return };
        if checker.due() <= self.now {
            let hcas = self.hcas.iter().enumerate();
            checker.look(self.now, hcas.map(|(i, hca)| (HcaId(i), hca.functions.as_slice())));
        }
        let (now, found) = (self.now, checker.take());
        for (at, finding) in found {
            self.found(now, at, finding);
        }
    }

    /// An access to BAR0 is about to be carried out.
    pub(super) fn check_access(&mut self, now: Ps, at: FunctionRef, offset: u64, is_store: bool) {
        let script = self.chip(at.hca).and_then(|chip| chip.script.as_deref());
        if !script.is_some_and(|script| script.firmware.is_initializing()) {
            return;
        }
        let (found, expected) = match is_store {
            true if is_doorbell(offset) => {
                (format!("1 at a doorbell at offset {offset:#x}"), "0: the doorbell is lost")
            }
            false if offset >= init_segment::SIZE as u64 => {
                (format!("1 at a read of offset {offset:#x}"), "0: what is read means nothing")
            }
            _ => return,
        };
        let subject = Subject::new("function", at.function.0.into());
        self.found(now, at, Finding::new(subject, "initializing", found, expected, &rules::INITIALIZING));
    }

    /// A function is about to be reset: what is left there is said, unless it is off the bus, where no driver could have let go of
    /// anything.
    pub(super) fn check_leaving(&mut self, at: FunctionRef, why: &str) {
        if self.is_off_the_bus(self.now, at) {
            return;
        }
        let function = self.hcas.get(at.hca.0).and_then(|hca| hca.function(at.function));
        if let (Some(checker), Some(function)) = (&mut self.checker, function) {
            checker.leaving(at, function, why);
        }
    }

    /// How long a driver may leave something undone; `None`: no checker looks on.
    pub fn patience(&self) -> Option<Ps> {
        self.checker.as_ref().map(|checker| checker.patience())
    }

    /// Whether a checker looks on.
    pub fn is_checked(&self) -> bool {
        self.checker.is_some()
    }

    /// Whoever stands around the model has found what breaks a rule, as PCI does: it is diagnosed with the rest. Without a
    /// checker nothing happens.
    pub fn found(&mut self, now: Ps, at: impl Into<FunctionRef>, finding: Finding) {
        self.rouse();
        let at = at.into();
        if self.checker.is_none() {
            return;
        }
        let Some(hca) = self.hcas.get_mut(at.hca.0) else { return };
        if let Some(Function { state, .. }) = hca.functions.get_mut(usize::from(at.function.0)) {
            state.diagnoses.found(now, finding, &hca.chip.name);
        }
    }

    /// Nothing of before counts for an adapter that was reset, or that a host has left.
    pub(super) fn check_anew(&mut self, at: FunctionRef) {
        if let Some(checker) = &mut self.checker {
            checker.forget(self.now, at);
        }
    }

    /// The host of a function took a window of its memory away: `size` bytes from bus address `iova` on. A checker remembers it
    /// for whoever still reaches there; the model itself does not need to know.
    pub fn unmapped(&mut self, at: impl Into<FunctionRef>, iova: u64, size: u64) {
        self.rouse();
        let (now, at) = (self.now, at.into());
        if let Some(checker) = &mut self.checker {
            checker.unmapped(now, at, iova, size);
        }
    }

    /// Takes what was diagnosed since the last call, in the order of adapters; of each, what was said in words.
    pub fn drain_diagnoses(&mut self) -> Vec<Diagnosis> {
        self.check();
        let mut all = Vec::new();
        let checker = self.checker.as_deref();
        for (hca, node) in self.hcas.iter_mut().enumerate() {
            for (id, function) in (0..node.chip.functions).zip(&mut node.functions) {
                let function_ref = FunctionRef { hca: HcaId(hca), function: hca_firmware::FunctionId(id) };
                let said = function.state.diagnoses.take().into_iter();
                all.extend(said.map(|(at, saying)| {
                    let before =
                        checker.map_or_else(Vec::new, |checker| checker.before(at, function_ref, &saying));
                    Diagnosis { at, function: function_ref, saying, before }
                }));
            }
        }
        all
    }
}
