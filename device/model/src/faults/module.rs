//! What happens to what is in a cage of the adapter.

use hca_spec::eqe::{module_error, module_status};

/// Why a module can't be used (mlx5 driver, `include/linux/mlx5/port.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleError {
    /// It takes more power than the cage gives.
    PowerBudget,
    /// It is for long ways, and not of the adapter's maker.
    LongRange,
    /// Its bus hangs: its memory can't be read.
    BusStuck,
    /// It has no memory that answers.
    NoEeprom,
    /// Its part number is not in the list of those that may be used.
    PartNumber,
    /// Its identifier is not known.
    UnknownIdentifier,
    /// It is too hot.
    HighTemperature,
    /// The cable is broken or shorted.
    BadCable,
    /// The slot gives less power than it needs.
    PciePower,
}

impl ModuleError {
    /// All, by their names.
    pub const ALL: [(&str, Self); 9] = [
        ("power-budget", Self::PowerBudget),
        ("long-range", Self::LongRange),
        ("bus-stuck", Self::BusStuck),
        ("no-eeprom", Self::NoEeprom),
        ("part-number", Self::PartNumber),
        ("unknown-identifier", Self::UnknownIdentifier),
        ("high-temperature", Self::HighTemperature),
        ("bad-cable", Self::BadCable),
        ("pcie-power", Self::PciePower),
    ];

    /// The one with that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, error)| error)
    }

    /// Its code in events and registers: [`module_error`].
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::PowerBudget => module_error::POWER_BUDGET,
            Self::LongRange => module_error::LONG_RANGE,
            Self::BusStuck => module_error::BUS_STUCK,
            Self::NoEeprom => module_error::NO_EEPROM,
            Self::PartNumber => module_error::PART_NUMBER,
            Self::UnknownIdentifier => module_error::UNKNOWN_IDENTIFIER,
            Self::HighTemperature => module_error::HIGH_TEMPERATURE,
            Self::BadCable => module_error::BAD_CABLE,
            Self::PciePower => module_error::PCIE_POWER,
        }
    }
}

/// What happened to what is in a cage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModuleChange {
    /// It was put in, or can be used again.
    Plugged,
    /// It was pulled out.
    Unplugged,
    /// It can't be used.
    Failed(ModuleError),
}

impl ModuleChange {
    /// What an event says: [`module_status`], and [`module_error`] or 0.
    pub(crate) fn codes(self) -> (u32, u32) {
        match self {
            Self::Plugged => (module_status::PLUGGED, 0),
            Self::Unplugged => (module_status::UNPLUGGED, 0),
            Self::Failed(error) => (module_status::ERROR, error.code()),
        }
    }
}
