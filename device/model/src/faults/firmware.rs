//! Firmware that fails: what the registers of the initialization segment say of it, and how it ends.
//!
//! Source: PRM "Initialization Segment", "Health buffer"; the mlx5 driver's health poll for what it looks at.

use hca_spec::init_segment::{InitSegment, NIC_INTERFACE_SW_RESET};

use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

/// How long something lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasting {
    /// So long.
    For(Ps),
    /// Until the function is reset, or the driver resets the firmware.
    UntilReset,
    /// For ever, whatever is reset.
    ForEver,
}

impl Lasting {
    /// When what begins now ends of itself.
    pub(crate) fn end(self, now: Ps) -> Ps {
        match self {
            Self::For(time) => now + time,
            Self::UntilReset | Self::ForEver => Ps::MAX,
        }
    }
}

/// What an assert of the firmware leaves in the health buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Assert {
    /// Variables.
    pub vars: [u32; 5],
    /// Exit pointer.
    pub exit_ptr: u32,
    /// Call address.
    pub callra: u32,
    /// Which interrupt controller.
    pub irisc: u8,
}

/// How the firmware fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ailment {
    /// Health syndrome; 0 = none is shown.
    pub syndrome: u8,
    /// Extended syndrome.
    pub extended: u16,
    /// The health buffer says that a reset is required, and the driver may ask the firmware for it by the register of its mode.
    pub reset_required: bool,
    /// The health counter stands still.
    pub frozen: bool,
    /// The firmware says that it initializes.
    pub initializing: bool,
    /// What an assert leaves.
    pub assert: Assert,
    /// The firmware executes no command.
    pub stopped: bool,
    /// How long. Firmware that was stopped starts again afterwards, as from power-on.
    pub lasting: Lasting,
}

impl Default for Ailment {
    /// Stopped until reset, without a word.
    fn default() -> Self {
        Self {
            syndrome: 0,
            extended: 0,
            reset_required: false,
            frozen: false,
            initializing: false,
            assert: Assert::default(),
            stopped: true,
            lasting: Lasting::UntilReset,
        }
    }
}

/// Firmware starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Of itself.
    Itself,
    /// The driver has asked for it: its mode is "disabled" afterwards.
    Asked,
}

/// "Reset by the driver is supported", beside [`InitSegment::INITIALIZING`] (mlx5 driver, field use).
const RESET_SUPPORTED: u32 = 1 << 30;
/// What an assert leaves begins there.
const HEALTH: usize = InitSegment::HEALTH_ASSERT_VAR0.offset();
/// The register of the driver's mode.
const MODE: u64 = InitSegment::NIC_INTERFACE.offset() as u64;

#[derive(Debug, Clone, Copy)]
struct Illness {
    ailment: Ailment,
    since: Ps,
    until: Ps,
    /// The driver has asked for a reset.
    asked: bool,
}

/// The firmware's health on script.
#[derive(Debug, Default)]
pub(crate) struct Firmware(Option<Illness>);

impl Firmware {
    /// It fails from now on.
    pub(crate) fn ail(&mut self, now: Ps, ailment: Ailment) {
        self.0 = Some(Illness { ailment, since: now, until: ailment.lasting.end(now), asked: false });
    }

    pub(crate) fn is_ill(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it executes commands.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.is_some_and(|illness| illness.ailment.stopped)
    }

    /// Whether it says that it initializes.
    pub(crate) fn is_initializing(&self) -> bool {
        self.0.is_some_and(|illness| illness.ailment.initializing)
    }

    /// The function was reset.
    pub(crate) fn reset(&mut self) {
        self.0 = self.0.filter(|illness| illness.ailment.lasting == Lasting::ForEver);
    }

    /// Ends what is over by now; whether the firmware starts again with that.
    pub(crate) fn look(&mut self, now: Ps) -> Option<Restart> {
        let illness = self.0.as_ref().filter(|illness| illness.asked || illness.until <= now)?;
        let restart = if illness.asked { Restart::Asked } else { Restart::Itself };
        let restarts = illness.ailment.stopped || illness.asked;
        self.0 = None;
        restarts.then_some(restart)
    }

    /// When it ends of itself.
    pub(crate) fn until(&self) -> Ps {
        self.0.map_or(Ps::MAX, |illness| illness.until)
    }

    /// The driver writes a register.
    pub(crate) fn written(&mut self, offset: u64, data: &[u8]) {
        let Some(illness) = self.0.as_mut().filter(|illness| illness.ailment.reset_required) else { return };
        let Some(word) = data.first_chunk().map(|word| u32::from_be_bytes(*word)) else { return };
        if offset == MODE && word >> 8 & 7 == NIC_INTERFACE_SW_RESET {
            illness.asked = true;
        }
    }

    /// What the driver reads at `offset` of BAR0 instead. `tick`: of the health counter.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8], tick: Ps) {
        let Some(Illness { ailment, since, .. }) = &self.0 else { return };
        let mut put = |at: usize, mask: u32, value: u32| {
            for (i, (mask, value)) in mask.to_be_bytes().into_iter().zip(value.to_be_bytes()).enumerate() {
                let place = (at.wrapping_add(i) as u64).checked_sub(offset);
                let byte = place.and_then(|place| buf.get_mut(usize::try_from(place).ok()?));
                if let Some(byte) = byte {
                    *byte = *byte & !mask | value & mask;
                }
            }
        };
        let Ailment { syndrome, extended, reset_required, frozen, initializing, assert, .. } = ailment;
        if *initializing {
            put(InitSegment::INITIALIZING.offset(), 1 << 31, 1 << 31);
        }
        if *reset_required {
            put(InitSegment::INITIALIZING.offset(), RESET_SUPPORTED, RESET_SUPPORTED);
            put(InitSegment::HEALTH_RFR.offset(), 1 << 31, 1 << 31);
        }
        if *frozen {
            let counter = since.0.checked_div(tick.0).unwrap_or(0) as u32;
            put(InitSegment::HEALTH_COUNTER.offset(), 0xff_ffff, counter);
        }
        if *syndrome != 0 {
            let Assert { vars, exit_ptr, callra, irisc } = assert;
            for (i, var) in vars.iter().enumerate() {
                put(HEALTH.wrapping_add(4 * i), u32::MAX, *var);
            }
            put(InitSegment::HEALTH_EXIT_PTR.offset(), u32::MAX, *exit_ptr);
            put(InitSegment::HEALTH_CALLRA.offset(), u32::MAX, *callra);
            let word = u32::from(*irisc) << 24 | u32::from(*syndrome) << 16 | u32::from(*extended);
            put(InitSegment::HEALTH_SYNDROME.offset(), u32::MAX, word);
        }
    }
}

impl Rebase for Illness {
    fn rebase(&mut self, by: Ps) {
        let Self { since, until, ailment: _, asked: _ } = self;
        since.rebase(by);
        until.rebase(by);
    }
}

impl Rebase for Firmware {
    fn rebase(&mut self, by: Ps) {
        self.0.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Ps = Ps::from_ms(10);

    fn word(firmware: &Firmware, at: u64) -> u32 {
        let mut word = [0; 4];
        firmware.read(at, &mut word, TICK);
        u32::from_be_bytes(word)
    }

    #[test]
    fn what_is_read() {
        let mut firmware = Firmware::default();
        assert_eq!(word(&firmware, 0x23c), 0);
        let assert = Assert { vars: [1, 2, 3, 4, 5], exit_ptr: 6, callra: 7, irisc: 8 };
        let ailment =
            Ailment { syndrome: 0x10, extended: 0x1234, assert, frozen: true, ..Ailment::default() };
        firmware.ail(Ps::from_ms(50), ailment);
        let words = [0x200, 0x210, 0x220, 0x224, 0x23c, 0x1010, 0x1fc].map(|at| word(&firmware, at));
        assert_eq!(words, [1, 5, 6, 7, 0x0810_1234, 5, 0]);
        // Any piece of the registers.
        let mut bytes = [0xff; 3];
        firmware.read(0x23e, &mut bytes, TICK);
        assert_eq!(bytes, [0x12, 0x34, 0xff]);
    }

    #[test]
    fn how_it_ends() {
        let now = Ps::from_ms(1);
        let ail = |ailment| {
            let mut firmware = Firmware::default();
            firmware.ail(now, ailment);
            firmware
        };
        let mut timed = ail(Ailment { lasting: Lasting::For(Ps::from_ms(2)), ..Ailment::default() });
        assert_eq!((timed.look(Ps::from_ms(2)), timed.until()), (None, Ps::from_ms(3)));
        assert_eq!((timed.look(Ps::from_ms(3)), timed.is_ill()), (Some(Restart::Itself), false));
        let mut harmless = ail(Ailment {
            stopped: false,
            frozen: true,
            lasting: Lasting::For(Ps::from_ms(2)),
            ..Ailment::default()
        });
        assert_eq!((harmless.look(Ps::from_ms(3)), harmless.is_ill()), (None, false));
        for (lasting, survives) in
            [(Lasting::UntilReset, false), (Lasting::ForEver, true), (Lasting::For(now), false)]
        {
            let mut firmware = ail(Ailment { lasting, ..Ailment::default() });
            firmware.reset();
            assert_eq!(firmware.is_ill(), survives, "{lasting:?}");
        }
        let required = Ailment { syndrome: 1, reset_required: true, ..Ailment::default() };
        let mut asked = ail(required);
        asked.written(0x14, &0x700u32.to_be_bytes());
        assert_eq!((asked.look(now), asked.is_ill()), (Some(Restart::Asked), false));
        let mut other = ail(Ailment { reset_required: false, ..required });
        other.written(0x14, &0x700u32.to_be_bytes());
        assert_eq!(other.look(now), None, "it said that this is not supported");
    }
}
