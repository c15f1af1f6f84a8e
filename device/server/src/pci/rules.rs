//! Rules of PCI that a driver can break without a word: what the checker says of them.

use hca_model::rules::{self, Rule};
use hca_model::{Finding, Subject, is_doorbell};

use super::config::{COMMAND_MEMORY, ConfigSpace};

/// What was said and is still wrong: each is said once.
#[derive(Debug, Default)]
pub struct Told {
    master: bool,
    memory: bool,
    power: bool,
    msix: bool,
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

    /// A vector is raised; `heard`: somebody is told of it.
    pub fn raised(&mut self, config: &ConfigSpace, vector: u16, heard: bool) -> Option<Finding> {
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
}

#[cfg(test)]
mod tests {
    use hca_model::PortKind;
    use hca_model::personality::Personality;

    use super::*;

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
        let vector = |told: &mut Told, heard| told.raised(&config, 3, heard).is_some();
        assert_eq!([false, true, true].map(|heard| vector(&mut told, heard)), [true, false, false]);
    }
}
