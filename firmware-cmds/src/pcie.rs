//! What the firmware knows of the PCI Express link: what it trained to, and counts of what went wrong ([`Mpcnt`]).
//!
//! [`Mpcnt`]: hca_spec::pcie::Mpcnt

use hca_spec::pcie::{PcieLanes, PciePerformance, PcieStates, mpcnt_group};

/// Something that goes wrong with the link, or has it train anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkTrouble {
    /// An error of the receiver (PCIe 4.2.4.8, framing among them).
    Receiver,
    /// A DLLP with a wrong checksum (PCIe 3.6.2.2).
    BadDllp,
    /// A TLP with a wrong checksum (PCIe 3.6.3.1).
    BadTlp,
    /// A TLP was sent four times for nothing: the data link layer has the link trained (PCIe 3.6.2.1).
    ReplayRollover,
    /// The other end has it trained, to another width or speed.
    Retrained,
}

/// A message about an error that the function sent (PCIe 2.2.8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorMessage {
    /// ERR_COR.
    Correctable,
    /// ERR_NONFATAL.
    NonFatal,
    /// ERR_FATAL.
    Fatal,
}

/// The link, and its counters since the firmware's start.
#[derive(Debug, Clone, Default)]
pub struct Pcie {
    /// What it trained to: lanes, and the speed's code in the link registers (PCIe 7.8.6); `None`: to what the connector can do.
    pub trained: Option<(u8, u8)>,
    receiver: u32,
    bad_dllps: u32,
    bad_tlps: u32,
    rollovers: u32,
    retrained: u32,
    lane_errors: u32,
    correctable: u32,
    non_fatal: u32,
    fatal: u32,
}

fn count(counter: &mut u32) {
    *counter = counter.saturating_add(1);
}

impl Pcie {
    /// That happened.
    pub fn trouble(&mut self, trouble: LinkTrouble) {
        match trouble {
            LinkTrouble::Receiver => {
                count(&mut self.receiver);
                count(&mut self.lane_errors);
            }
            LinkTrouble::BadDllp => count(&mut self.bad_dllps),
            LinkTrouble::BadTlp => count(&mut self.bad_tlps),
            LinkTrouble::ReplayRollover => count(&mut self.rollovers),
            LinkTrouble::Retrained => count(&mut self.retrained),
        }
    }

    /// That message was sent.
    pub fn sent(&mut self, message: ErrorMessage) {
        count(match message {
            ErrorMessage::Correctable => &mut self.correctable,
            ErrorMessage::NonFatal => &mut self.non_fatal,
            ErrorMessage::Fatal => &mut self.fatal,
        });
    }

    /// The firmware starts: it counts from 0. The link is what it is.
    pub(crate) fn restart(&mut self) {
        *self = Self { trained: self.trained, ..Self::default() };
    }

    /// The counters of a group, as they are behind the head of the register. `None`: there is no such group.
    pub(crate) fn group(&self, group: u32) -> Option<Vec<u8>> {
        Some(match group {
            mpcnt_group::PERFORMANCE => {
                let mut c = PciePerformance::new();
                let received = self.receiver.saturating_add(self.bad_dllps).saturating_add(self.bad_tlps);
                c.set(PciePerformance::RX_ERRORS, received).set(PciePerformance::TX_ERRORS, self.retrained);
                c.set(PciePerformance::L0_TO_RECOVERY_TS, self.retrained);
                c.set(PciePerformance::L0_TO_RECOVERY_FRAMING, self.receiver);
                c.set(PciePerformance::L0_TO_RECOVERY_RETRAIN, self.rollovers);
                c.set(PciePerformance::CRC_ERROR_DLLP, self.bad_dllps);
                c.set(PciePerformance::CRC_ERROR_TLP, self.bad_tlps);
                c.bytes().to_vec()
            }
            mpcnt_group::LANES => {
                let mut c = PcieLanes::new();
                c.set(PcieLanes::ERROR_COUNTER_LANE0, self.lane_errors).bytes().to_vec()
            }
            mpcnt_group::STATES => {
                let mut c = PcieStates::new();
                c.set(PcieStates::CORRECTABLE_ERR_MSG_SENT, self.correctable);
                c.set(PcieStates::NON_FATAL_ERR_MSG_SENT, self.non_fatal);
                c.set(PcieStates::FATAL_ERR_MSG_SENT, self.fatal);
                c.bytes().to_vec()
            }
            _ => return None,
        })
    }

    /// The counters of a group begin anew.
    pub(crate) fn clear(&mut self, group: u32) {
        let zero: &mut [&mut u32] = match group {
            mpcnt_group::PERFORMANCE => &mut [
                &mut self.receiver,
                &mut self.bad_dllps,
                &mut self.bad_tlps,
                &mut self.rollovers,
                &mut self.retrained,
            ],
            mpcnt_group::LANES => &mut [&mut self.lane_errors],
            mpcnt_group::STATES => &mut [&mut self.correctable, &mut self.non_fatal, &mut self.fatal],
            _ => &mut [],
        };
        zero.iter_mut().for_each(|counter| **counter = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn performance(pcie: &Pcie) -> [u32; 7] {
        let bytes = pcie.group(mpcnt_group::PERFORMANCE).unwrap();
        let c = PciePerformance::from_prefix_or_zero(&bytes);
        [
            PciePerformance::RX_ERRORS,
            PciePerformance::TX_ERRORS,
            PciePerformance::L0_TO_RECOVERY_TS,
            PciePerformance::L0_TO_RECOVERY_FRAMING,
            PciePerformance::L0_TO_RECOVERY_RETRAIN,
            PciePerformance::CRC_ERROR_DLLP,
            PciePerformance::CRC_ERROR_TLP,
        ]
        .map(|field| c.get(field))
    }

    #[test]
    fn each_trouble_has_its_counters() {
        for (trouble, expected) in [
            (LinkTrouble::Receiver, [1, 0, 0, 1, 0, 0, 0]),
            (LinkTrouble::BadDllp, [1, 0, 0, 0, 0, 1, 0]),
            (LinkTrouble::BadTlp, [1, 0, 0, 0, 0, 0, 1]),
            (LinkTrouble::ReplayRollover, [0, 0, 0, 0, 1, 0, 0]),
            (LinkTrouble::Retrained, [0, 1, 1, 0, 0, 0, 0]),
        ] {
            let mut pcie = Pcie::default();
            pcie.trouble(trouble);
            assert_eq!(performance(&pcie), expected, "{trouble:?}");
        }
        assert_eq!(Pcie::default().group(3), None);
    }

    #[test]
    fn groups_are_cleared_one_by_one_and_all_by_a_start() {
        let mut pcie = Pcie { trained: Some((8, 3)), ..Pcie::default() };
        let lanes_and_messages = |pcie: &Pcie| {
            let lanes = pcie.group(mpcnt_group::LANES).unwrap();
            (lanes[0xb], pcie.group(mpcnt_group::STATES).unwrap()[0x50..0x5c].to_vec())
        };
        pcie.trouble(LinkTrouble::Receiver);
        pcie.sent(ErrorMessage::Correctable);
        pcie.sent(ErrorMessage::Fatal);
        assert_eq!(lanes_and_messages(&pcie), (1, vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]));
        pcie.clear(mpcnt_group::PERFORMANCE);
        assert_eq!((performance(&pcie), lanes_and_messages(&pcie).0), ([0; 7], 1));
        pcie.clear(mpcnt_group::LANES);
        assert_eq!(lanes_and_messages(&pcie), (0, vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]));
        pcie.clear(mpcnt_group::STATES);
        assert_eq!(lanes_and_messages(&pcie), (0, vec![0; 12]));
        pcie.trouble(LinkTrouble::Retrained);
        pcie.sent(ErrorMessage::NonFatal);
        pcie.restart();
        assert_eq!(
            (performance(&pcie), lanes_and_messages(&pcie), pcie.trained),
            ([0; 7], (0, vec![0; 12]), Some((8, 3)))
        );
    }
}
