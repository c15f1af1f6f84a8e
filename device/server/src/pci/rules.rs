//! Rules of PCI that a driver can break without a word: what the checker says of them.

use std::collections::BTreeMap;

use hca_model::rules::{self, Rule};
use hca_model::{Finding, Ps, Subject, is_doorbell};

use super::config::{COMMAND_MEMORY, ConfigSpace};
use super::msix::Msix;

/// What was said and is still wrong: each is said once.
#[derive(Debug, Default)]
pub struct Told {
    master: bool,
    memory: bool,
    power: bool,
    msix: bool,
    /// Vectors that are masked and were raised, and when first; `None`: it was said. At most as many as there are vectors.
    masked: BTreeMap<u16, Option<Ps>>,
}

fn finding(field: &'static str, found: String, expected: &'static str, rule: &'static Rule) -> Finding {
    Finding::new(Subject::new("function", 0), field, found, expected, rule)
}

impl Told {
    /// An access to BAR0 at byte `offset`.
    pub fn access(&mut self, config: &ConfigSpace, offset: u64, store: bool) -> Option<Finding> {
        let power = config.power_state();
        if power == 0 {
            self.power = false;
        } else if !std::mem::replace(&mut self.power, true) {
            let found = format!("D{power} at an access to BAR0, offset {offset:#x}");
            return Some(finding("power state", found, "D0", &rules::POWER_STATE));
        }
        if config.command() & COMMAND_MEMORY != 0 {
            self.memory = false;
        } else if !std::mem::replace(&mut self.memory, true) {
            let found =
                format!("{:#x}, no memory space, at an access to BAR0, offset {offset:#x}", config.command());
            return Some(finding(
                "command register",
                found,
                "bit 1, memory space enable",
                &rules::MEMORY_SPACE,
            ));
        }
        if config.may_master() {
            self.master = false;
        } else if store && is_doorbell(offset) && !std::mem::replace(&mut self.master, true) {
            let found =
                format!("{:#x}, no bus master, at a doorbell at offset {offset:#x}", config.command());
            return Some(finding("command register", found, "bit 2, bus master enable", &rules::BUS_MASTER));
        }
        None
    }

    /// A vector is raised.
    pub fn raised(&mut self, now: Ps, config: &ConfigSpace, msix: &Msix, vector: u16) -> Option<Finding> {
        let heard = msix.is_connected(vector);
        if masked_by(config, msix, vector).is_some() && (config.msix_enabled() || heard) {
            self.masked.entry(vector).or_insert(Some(now));
        }
        if config.msix_enabled() || heard {
            self.msix = false;
            return None;
        }
        if std::mem::replace(&mut self.msix, true) {
            return None;
        }
        let found = format!("MSI-X off, and vector {vector:#x} raised");
        Some(finding("MSI-X message control", found, "bit 15, MSI-X enable", &rules::MSIX_ENABLED))
    }

    /// Time has passed: a vector that was raised `patience` ago, and is masked ever since.
    pub fn look(&mut self, now: Ps, patience: Ps, config: &ConfigSpace, msix: &Msix) -> Option<Finding> {
        self.masked.retain(|vector, _| masked_by(config, msix, *vector).is_some());
        // The start that times are counted from may have moved: what was before it is as if it were now.
        self.masked.values_mut().flatten().for_each(|since| *since = now.min(*since));
        let late = |since: &Option<Ps>| since.is_some_and(|since| now.since(since) >= patience);
        let (vector, since) = self.masked.iter_mut().find(|(_, since)| late(since))?;
        *since = None;
        let found = format!("masked by {} since it was raised", masked_by(config, msix, *vector)?);
        let subject = Subject::new("vector", (*vector).into());
        Some(Finding::new(
            subject,
            "mask",
            found,
            "unmasked while an event queue raises it",
            &rules::MSIX_ENABLED,
        ))
    }

    /// Whether a vector waits to be unmasked.
    pub fn waits(&self) -> bool {
        !self.masked.is_empty()
    }

    /// The function was reset, or its host is gone.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// By what a vector is masked, if it is.
fn masked_by(config: &ConfigSpace, msix: &Msix, vector: u16) -> Option<&'static str> {
    if config.msix_function_masked() {
        return Some("the function's mask in message control");
    }
    msix.is_masked(vector).then_some("its mask bit in vector control")
}

#[cfg(test)]
mod tests {
    use std::io;

    use hca_model::PortKind;
    use hca_model::personality::Personality;

    use super::super::msix::Signal;
    use super::*;

    #[derive(Debug)]
    struct Nobody;

    impl Signal for Nobody {
        fn signal(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_masked_vector_is_said_once_and_after_a_while() {
        let config = ConfigSpace::new(&Personality::default_kind(), PortKind::InfiniBand, "");
        let (mut told, mut msix) = (Told::default(), Msix::new(4));
        msix.connect(1, Some(Box::new(Nobody))).unwrap();
        let patience = Ps::from_ms(5);
        let look =
            |told: &mut Told, msix: &Msix, ms| told.look(Ps::from_ms(ms), patience, &config, msix).is_some();
        assert_eq!(told.raised(Ps::ZERO, &config, &msix, 1), None);
        assert!(!told.waits());
        msix.mask(1, true).unwrap();
        assert_eq!(told.raised(Ps::from_ms(1), &config, &msix, 1), None);
        assert_eq!([2, 6, 7].map(|ms| look(&mut told, &msix, ms)), [false, true, false]);
        msix.mask(1, false).unwrap();
        assert!(!look(&mut told, &msix, 8) && !told.waits());
        // For a moment, as a kernel does: nothing is said.
        msix.mask(1, true).unwrap();
        told.raised(Ps::from_ms(9), &config, &msix, 1);
        msix.mask(1, false).unwrap();
        assert!(!look(&mut told, &msix, 20));
    }

    #[test]
    fn each_is_said_once_until_it_is_right() {
        let mut config = ConfigSpace::new(&Personality::default_kind(), PortKind::InfiniBand, "");
        let mut told = Told::default();
        let mut rule = |config: &ConfigSpace| told.access(config, 0x1000, true).map(|f| f.rule.name);
        assert_eq!([(); 3].map(|()| rule(&config)), [Some("memory-space"), Some("bus-master"), None]);
        config.write(4, &[6, 0]);
        assert_eq!(rule(&config), None);
        config.write(4, &[2, 0]);
        assert_eq!([(); 2].map(|()| rule(&config)), [Some("bus-master"), None]);
        let mut msix = Msix::new(4);
        let mut vector = |msix: &Msix| told.raised(Ps::ZERO, &config, msix, 3).is_some();
        assert!(vector(&msix));
        msix.connect(3, Some(Box::new(Nobody))).unwrap();
        assert_eq!([(); 2].map(|()| vector(&msix)), [false, false]);
    }
}
