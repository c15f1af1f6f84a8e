//! The chip's sensor of temperature. The model has no heat: it measures the same always, but what a script says.

/// An eighth of a degree Celsius.
pub(crate) type Eighths = u16;

/// Values of [`Sensor::events`] (MTMP `tee`).
mod tee {
    /// Warnings are off.
    pub(super) const OFF: u32 = 0;
    /// Each time that the limit is passed.
    pub(super) const EACH: u32 = 1;
    /// Once.
    pub(super) const ONCE: u32 = 2;
}

/// The sensor, and what software wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sensor {
    /// What the script says that it measures.
    heat: Option<Eighths>,
    /// The highest value is kept.
    pub(crate) keeps_highest: bool,
    /// That, since it is kept.
    highest: Eighths,
    /// Whether events tell that the upper limit is passed: [`tee`].
    pub(crate) events: u32,
    /// Upper limit.
    pub(crate) high: Eighths,
    /// Lower limit.
    pub(crate) low: Eighths,
    /// It passed the upper limit, and was not below the lower one since.
    is_hot: bool,
}

impl Sensor {
    /// Its name.
    pub(crate) const NAME: [u8; 8] = *b"asic\0\0\0\0";
    /// 45 degrees: what a card at rest has.
    const AT_REST: Eighths = 45 * 8;

    pub(crate) fn measure(&self) -> Eighths {
        self.heat.unwrap_or(Self::AT_REST)
    }

    /// The highest that was measured since that is kept; 0: it is not.
    pub(crate) fn highest(&self) -> Eighths {
        if self.keeps_highest { self.highest } else { 0 }
    }

    /// The highest value begins anew.
    pub(crate) fn forget_highest(&mut self) {
        self.highest = self.measure();
    }

    /// From now on it is so hot, in degrees Celsius, or as at rest. Returns whether there has to be a warning.
    pub(crate) fn heat(&mut self, degrees: Option<u8>) -> bool {
        self.heat = degrees.map(|degrees| Eighths::from(degrees).saturating_mul(8));
        self.look()
    }

    /// Looks what is measured now. Returns whether there has to be a warning.
    pub(crate) fn look(&mut self) -> bool {
        let now = self.measure();
        self.highest = self.highest.max(now);
        let passed = !self.is_hot && now > self.high;
        self.is_hot = passed || self.is_hot && now >= self.low;
        let warns = passed && self.events != tee::OFF;
        if warns && self.events == tee::ONCE {
            self.events = tee::OFF;
        }
        warns
    }

    /// At power-on; how hot it is nobody changes by that.
    pub(crate) fn reset(&mut self) {
        *self = Self { heat: self.heat, ..Self::default() };
    }
}

impl Default for Sensor {
    /// Limits of real cards: 105 and 95 degrees. Warnings are on: real cards warn though Linux's driver never asks for that by MTMP.
    fn default() -> Self {
        Self {
            heat: None,
            keeps_highest: false,
            highest: 0,
            events: tee::EACH,
            high: 105 * 8,
            low: 95 * 8,
            is_hot: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_warns_when_the_limit_is_passed_and_again_when_it_was_cool() {
        let mut sensor = Sensor::default();
        let warnings = [105, 106, 107, 100, 106, 94, 106].map(|degrees| sensor.heat(Some(degrees)));
        assert_eq!(warnings, [false, true, false, false, false, false, true]);
        sensor.events = tee::OFF;
        assert!(!sensor.heat(None) && !sensor.heat(Some(120)));
        sensor.heat(None);
        sensor.events = tee::ONCE;
        assert!(sensor.heat(Some(120)));
        assert!(!sensor.heat(None) && !sensor.heat(Some(120)));
    }

    #[test]
    fn the_highest_is_kept_if_that_is_asked_for() {
        let mut sensor = Sensor::default();
        sensor.heat(Some(60));
        assert_eq!(sensor.highest(), 0);
        sensor.keeps_highest = true;
        sensor.heat(None);
        assert_eq!((sensor.measure(), sensor.highest()), (45 * 8, 60 * 8));
        sensor.forget_highest();
        assert_eq!(sensor.highest(), 45 * 8);
    }

    #[test]
    fn a_reset_does_not_cool() {
        let mut sensor = Sensor::default();
        sensor.heat(Some(60));
        sensor.high = 10;
        sensor.reset();
        assert_eq!((sensor.measure(), sensor.high), (60 * 8, 105 * 8));
    }
}
