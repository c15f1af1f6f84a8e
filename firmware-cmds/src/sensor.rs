//! The chip's sensor of temperature. The model has no heat: it measures the same always.

/// An eighth of a degree Celsius.
pub(crate) type Eighths = u16;

/// The sensor, and what software wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sensor {
    /// The highest value is kept.
    pub(crate) keeps_highest: bool,
    /// Whether events tell of limits, as it was written.
    pub(crate) events: u32,
    /// Upper limit.
    pub(crate) high: Eighths,
    /// Lower limit.
    pub(crate) low: Eighths,
}

impl Sensor {
    /// Its name.
    pub(crate) const NAME: [u8; 8] = *b"asic\0\0\0\0";

    /// 45 degrees: what a card at rest has.
    pub(crate) fn measure(&self) -> Eighths {
        45 * 8
    }
}

impl Default for Sensor {
    /// Limits of real cards: 105 and 95 degrees.
    fn default() -> Self {
        Self { keeps_highest: false, events: 0, high: 105 * 8, low: 95 * 8 }
    }
}
