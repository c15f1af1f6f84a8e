//! The PCI Express link and its errors on script: what a function's registers say of them. Who keeps those takes it from here.
//!
//! Source: PCIe 6.2 (errors), 7.8.8 (link status), 7.10 (advanced error reporting).

use std::sync::Arc;

use hca_firmware::pcie::LinkTrouble;

use crate::ground::timing::Timing;

/// An error that a function detects: the bit of its status register in the advanced error reporting capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PcieError {
    /// PCIe 7.10.5.
    Correctable(u8),
    /// PCIe 7.10.2; whether it is fatal is what the severity register says.
    Uncorrectable(u8),
}

impl PcieError {
    /// A TLP that was received poisoned.
    pub const POISONED: Self = Self::Uncorrectable(12);
    /// A request that is not supported.
    pub const UNSUPPORTED_REQUEST: Self = Self::Uncorrectable(20);

    /// What the firmware counts of it, if that is something.
    pub(crate) fn trouble(self) -> Option<LinkTrouble> {
        match self {
            Self::Correctable(0) => Some(LinkTrouble::Receiver),
            Self::Correctable(6) => Some(LinkTrouble::BadTlp),
            Self::Correctable(7) => Some(LinkTrouble::BadDllp),
            Self::Correctable(8) => Some(LinkTrouble::ReplayRollover),
            Self::Correctable(_) | Self::Uncorrectable(_) => None,
        }
    }
}

/// Names of errors.
const NAMES: &[(&str, PcieError)] = &[
    ("receiver-error", PcieError::Correctable(0)),
    ("bad-tlp", PcieError::Correctable(6)),
    ("bad-dllp", PcieError::Correctable(7)),
    ("replay-rollover", PcieError::Correctable(8)),
    ("replay-timeout", PcieError::Correctable(12)),
    ("advisory-non-fatal", PcieError::Correctable(13)),
    ("data-link-protocol", PcieError::Uncorrectable(4)),
    ("poisoned-tlp", PcieError::POISONED),
    ("flow-control", PcieError::Uncorrectable(13)),
    ("completion-timeout", PcieError::Uncorrectable(14)),
    ("completer-abort", PcieError::Uncorrectable(15)),
    ("unexpected-completion", PcieError::Uncorrectable(16)),
    ("receiver-overflow", PcieError::Uncorrectable(17)),
    ("malformed-tlp", PcieError::Uncorrectable(18)),
    ("ecrc", PcieError::Uncorrectable(19)),
    ("unsupported-request", PcieError::UNSUPPORTED_REQUEST),
];

/// The error of that name: that of its bit in PCIe 7.10, in words with hyphens.
pub fn pcie_error_named(name: &str) -> Option<PcieError> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, error)| *error)
}

/// Something that a function's registers say from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PcieEvent {
    /// A request of its own was completed with Unsupported Request (status register, bit 13).
    ReceivedMasterAbort,
    /// A request of its own was completed with Completer Abort (status register, bit 12).
    ReceivedTargetAbort,
    /// It has detected an error; the header of the TLP, if there was one, else zeros.
    Error(PcieError, [u32; 4]),
}

/// What a PCI Express link trained to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcieLink {
    /// Lanes.
    pub lanes: u8,
    /// 1 for 2.5 GT/s, 2 for 5, 3 for 8, 4 for 16 (PCIe 7.8.6).
    pub speed: u8,
}

impl PcieLink {
    /// GT/s of a lane.
    pub(crate) fn gt_per_s(self) -> f64 {
        match self.speed {
            ..=1 => 2.5,
            2 => 5.0,
            3 => 8.0,
            4.. => 16.0,
        }
    }
}

/// What happens to an adapter in its slot. Whoever has the slot takes it from here: a model has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotEvent {
    /// It is taken out without a word (surprise removal): it is off the bus from then on.
    Removed,
    /// Somebody presses the attention button, to take it out when software has let go of it.
    Ejected,
    /// It is put in, and on the bus again.
    Inserted,
}

/// Events that are kept until they are taken: registers say of each kind only that it happened.
const KEPT: usize = 32;

/// What is on script at an adapter's PCI Express link.
#[derive(Debug, Default)]
pub(crate) struct Pcie {
    /// What it trained to instead, and how long everything takes at full width and speed.
    pub(crate) link: Option<(PcieLink, Arc<Timing>)>,
    events: Vec<PcieEvent>,
    /// What happened in the slot, in its order.
    slot: Vec<SlotEvent>,
}

impl Pcie {
    /// Whether there is something to take.
    pub(crate) fn has_news(&self) -> bool {
        !self.events.is_empty() || !self.slot.is_empty()
    }

    /// Something happens in the slot. Of what happens faster than it is taken, the first is kept: nobody acts so fast.
    pub(crate) fn note_slot(&mut self, event: SlotEvent) {
        if self.slot.len() < KEPT {
            self.slot.push(event);
        }
    }

    pub(crate) fn take_slot(&mut self) -> Vec<SlotEvent> {
        std::mem::take(&mut self.slot)
    }

    pub(crate) fn note(&mut self, event: PcieEvent) {
        if self.events.len() < KEPT && !self.events.contains(&event) {
            self.events.push(event);
        }
    }

    pub(crate) fn take(&mut self) -> Vec<PcieEvent> {
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_events_bounded() {
        for (i, (name, error)) in NAMES.iter().enumerate() {
            assert_eq!(pcie_error_named(name), Some(*error));
            assert!(NAMES.iter().skip(i + 1).all(|(other, of)| other != name && of != error), "{name}");
        }
        assert_eq!(pcie_error_named("none"), None);
        let mut pcie = Pcie::default();
        for bit in 0..100 {
            pcie.note(PcieEvent::Error(PcieError::Correctable(bit), [0; 4]));
            pcie.note(PcieEvent::ReceivedMasterAbort);
        }
        assert!(pcie.has_news());
        assert_eq!((pcie.take().len(), pcie.take().len()), (KEPT, 0));
        assert!(!pcie.has_news());
        for _ in 0..100 {
            pcie.note_slot(SlotEvent::Removed);
            pcie.note_slot(SlotEvent::Inserted);
        }
        assert!(pcie.has_news());
        let slot = pcie.take_slot();
        assert_eq!((slot.len(), slot.get(..2)), (KEPT, Some(&[SlotEvent::Removed, SlotEvent::Inserted][..])));
        assert!(!pcie.has_news());
    }
}
