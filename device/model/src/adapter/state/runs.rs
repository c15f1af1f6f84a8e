//! Which queue pair's packets the world may carry as a train.

use hca_spec::ids::Qpn;

use crate::engines::qp::run::Half;

/// Which queue pair sends packets that are alike ([`crate::engines::qp::run`]): one at a time.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    allowed: bool,
    running: Option<(Qpn, Half)>,
    begun: bool,
}

impl Runs {
    /// Whether there may be any.
    pub(crate) fn allow(&mut self, allowed: bool) {
        self.allowed = allowed;
    }

    #[inline]
    pub(in crate::adapter) fn may_begin(&self, sender: (Qpn, Half)) -> bool {
        self.allowed && self.running.is_none_or(|running| running == sender)
    }

    pub(in crate::adapter) fn begin(&mut self, sender: (Qpn, Half)) {
        self.begun = self.running.replace(sender).is_none();
    }

    /// Whether one has begun since the last call of [`Runs::take_begun`].
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// The queue pair that has begun since the last call, and with which of its packets.
    #[inline]
    pub(crate) fn take_begun(&mut self) -> Option<(Qpn, Half)> {
        if std::mem::take(&mut self.begun) { self.running } else { None }
    }

    /// Nothing of them is under way any more.
    pub(crate) fn end(&mut self) {
        self.running = None;
    }
}
