//! Flow meters: packets get a color by two buckets (RFC 2697, RFC 2698).
//!
//! By inference: a bucket that is not empty, or just empty, lets a packet of any length pass, which is taken off then; so a
//! bucket without a size still lets its rate pass. A bucket that nothing fills and that has no size is not there. A meter that is
//! not active, or whose parameters are not valid, leaves packets the color that they come with.

use std::cell::Cell;

use hca_spec::rewrite::{FlowMeterIn, meter_color, meter_field, meter_mode};

use super::frame::Sight;

/// A meter.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Where packets go on.
    pub(crate) table: u32,
    /// The register C that the color is written into.
    pub(crate) register: u32,
    parameters: Parameters,
    state: Cell<State>,
}

/// Size and rate of a bucket, each as mantissa and exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Bucket {
    size: (u32, u32),
    rate: (u32, u32),
}

/// What a driver says of a meter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Parameters {
    active: bool,
    valid: bool,
    overflow: bool,
    start: u32,
    both: bool,
    mode: u32,
    committed: Bucket,
    excess: Bucket,
}

/// What is in a bucket: bytes, less than none if it is in debt, and what is not a byte yet.
#[derive(Debug, Clone, Copy, Default)]
struct Level {
    bytes: i64,
    rest: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Picoseconds since the very first start.
    at: u128,
    committed: Level,
    excess: Level,
}

/// Bytes that a packet counts as where packets are counted (mlx5 driver, `en/tc/meter.c`).
const PACKET: u64 = 128;
/// Bytes of a frame check sequence; of preamble and gap.
const FCS: u64 = 4;
const GAP: u64 = 20;
/// Picoseconds of a nanosecond, in which a rate of 1 / 2^0 gives a byte.
const UNIT: u64 = 1000;

impl Bucket {
    fn is_there(self) -> bool {
        self.size.0 != 0 || self.rate.0 != 0
    }

    fn room(self) -> i64 {
        let (mantissa, exponent) = self.size;
        i64::from(mantissa) << exponent.min(31)
    }

    /// Fills a bucket for so long; what it has no room for is returned.
    fn fill(self, level: &mut Level, time: u64) -> i64 {
        let (mantissa, exponent) = self.rate;
        let unit = UNIT << exponent.min(31);
        let total = u128::from(time) * u128::from(mantissa) + u128::from(level.rest);
        let (bytes, rest) = (total / u128::from(unit), total % u128::from(unit));
        level.rest = rest as u64;
        self.put(level, i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    fn put(self, level: &mut Level, bytes: i64) -> i64 {
        let all = level.bytes.saturating_add(bytes);
        level.bytes = all.min(self.room());
        all.saturating_sub(level.bytes)
    }
}

impl Parameters {
    /// What an input says. `None`: a color that there is none of.
    pub(crate) fn of(input: &FlowMeterIn) -> Option<Self> {
        let start = input.get(FlowMeterIn::START_COLOR);
        (start <= meter_color::GREEN).then(|| Self {
            active: input.get(FlowMeterIn::ACTIVE) == 1,
            valid: input.get(FlowMeterIn::VALID) == 1,
            overflow: input.get(FlowMeterIn::BUCKET_OVERFLOW) == 1,
            start,
            both: input.get(FlowMeterIn::BOTH_BUCKETS_ON_GREEN) == 1,
            mode: input.get(FlowMeterIn::METER_MODE),
            committed: Bucket {
                size: (input.get(FlowMeterIn::CBS_MANTISSA), input.get(FlowMeterIn::CBS_EXPONENT)),
                rate: (input.get(FlowMeterIn::CIR_MANTISSA), input.get(FlowMeterIn::CIR_EXPONENT)),
            },
            excess: Bucket {
                size: (input.get(FlowMeterIn::EBS_MANTISSA), input.get(FlowMeterIn::EBS_EXPONENT)),
                rate: (input.get(FlowMeterIn::EIR_MANTISSA), input.get(FlowMeterIn::EIR_EXPONENT)),
            },
        })
    }

    /// The same with what `select` chooses of another.
    fn with(self, other: Self, select: u32) -> Self {
        let pick = |bit: u32, new: (u32, u32), old: (u32, u32)| if select & bit != 0 { new } else { old };
        Self {
            active: if select & meter_field::ACTIVE != 0 { other.active } else { self.active },
            committed: Bucket {
                size: pick(meter_field::CBS, other.committed.size, self.committed.size),
                rate: pick(meter_field::CIR, other.committed.rate, self.committed.rate),
            },
            excess: Bucket {
                size: pick(meter_field::EBS, other.excess.size, self.excess.size),
                rate: pick(meter_field::EIR, other.excess.rate, self.excess.rate),
            },
            ..self
        }
    }

    /// What QUERY_GENERAL_OBJECT tells.
    fn describe(&self, out: &mut FlowMeterIn) {
        out.set(FlowMeterIn::ACTIVE, self.active.into()).set(FlowMeterIn::VALID, self.valid.into());
        out.set(FlowMeterIn::BUCKET_OVERFLOW, self.overflow.into()).set(FlowMeterIn::START_COLOR, self.start);
        out.set(FlowMeterIn::BOTH_BUCKETS_ON_GREEN, self.both.into()).set(FlowMeterIn::METER_MODE, self.mode);
        let (c, e) = (self.committed, self.excess);
        out.set(FlowMeterIn::CBS_MANTISSA, c.size.0).set(FlowMeterIn::CBS_EXPONENT, c.size.1);
        out.set(FlowMeterIn::CIR_MANTISSA, c.rate.0).set(FlowMeterIn::CIR_EXPONENT, c.rate.1);
        out.set(FlowMeterIn::EBS_MANTISSA, e.size.0).set(FlowMeterIn::EBS_EXPONENT, e.size.1);
        out.set(FlowMeterIn::EIR_MANTISSA, e.rate.0).set(FlowMeterIn::EIR_EXPONENT, e.rate.1);
    }
}

impl Meter {
    /// One with full buckets.
    pub(crate) fn new(table: u32, register: u32, parameters: Parameters) -> Self {
        let full = |bucket: Bucket| Level { bytes: bucket.room(), rest: 0 };
        let state = State { at: 0, committed: full(parameters.committed), excess: full(parameters.excess) };
        Self { table, register, parameters, state: Cell::new(state) }
    }

    /// Changes what `select` says ([`meter_field`]).
    pub(crate) fn modify(&mut self, parameters: Parameters, select: u32) {
        self.parameters = self.parameters.with(parameters, select);
        let mut state = self.state.get();
        let (committed, excess) = (self.parameters.committed, self.parameters.excess);
        committed.put(&mut state.committed, 0);
        excess.put(&mut state.excess, 0);
        self.state.set(state);
    }

    /// What QUERY_GENERAL_OBJECT tells of it.
    pub(crate) fn describe(&self, out: &mut FlowMeterIn) {
        self.parameters.describe(out);
        out.set(FlowMeterIn::RETURN_REG_ID, self.register).set(FlowMeterIn::DESTINATION_TABLE_ID, self.table);
    }

    /// The color of a packet of so many bytes that comes now.
    pub(super) fn mark(&self, now: u128, octets: u64, sight: &Sight) -> u32 {
        let p = &self.parameters;
        if !p.active || !p.valid {
            return p.start;
        }
        let bytes = match p.mode {
            meter_mode::IP_LENGTH => octets.saturating_sub(sight.places.l3 as u64),
            meter_mode::WITH_L2 => octets.saturating_add(FCS),
            meter_mode::WITH_L2_AND_GAP => octets.saturating_add(FCS + GAP),
            _ => PACKET,
        };
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut state = self.state.get();
        let time = u64::try_from(now.saturating_sub(state.at)).unwrap_or(u64::MAX);
        state.at = state.at.max(now);
        let over = p.committed.fill(&mut state.committed, time);
        p.excess.fill(&mut state.excess, time);
        if p.overflow {
            p.excess.put(&mut state.excess, over);
        }
        let passes = |bucket: Bucket, level: &Level| bucket.is_there() && level.bytes >= 0;
        let take = |level: &mut Level| level.bytes = level.bytes.saturating_sub(bytes);
        let color = if p.start >= meter_color::GREEN && passes(p.committed, &state.committed) {
            take(&mut state.committed);
            if p.both {
                take(&mut state.excess);
            }
            meter_color::GREEN
        } else if p.start >= meter_color::YELLOW && passes(p.excess, &state.excess) {
            take(&mut state.excess);
            meter_color::YELLOW
        } else {
            meter_color::RED
        };
        self.state.set(state);
        color
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEN: u32 = meter_color::GREEN;
    const SECOND: u64 = 1_000_000_000_000;

    fn input() -> FlowMeterIn {
        let mut input = FlowMeterIn::new();
        input.set(FlowMeterIn::ACTIVE, 1).set(FlowMeterIn::VALID, 1);
        input.set(FlowMeterIn::START_COLOR, GREEN).set(FlowMeterIn::METER_MODE, meter_mode::PACKETS);
        // 1,000,000 bytes a second, near enough.
        input.set(FlowMeterIn::CIR_MANTISSA, 132).set(FlowMeterIn::CIR_EXPONENT, 17);
        input.set(FlowMeterIn::CBS_MANTISSA, 10).set(FlowMeterIn::CBS_EXPONENT, 7);
        input
    }

    fn meter(input: &FlowMeterIn) -> Meter {
        Meter::new(1, 2, Parameters::of(input).expect("valid"))
    }

    /// Packets of each color of `count` that come so far apart.
    fn colors(meter: &Meter, from: u64, count: u64, apart: u64) -> [u64; 3] {
        let mut seen = [0; 3];
        for n in 0..count {
            seen[meter.mark((from + n * apart).into(), 64, &Sight::default()) as usize] += 1;
        }
        seen
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let m = meter(&input());
        // The bucket has ten packets, and one more goes into debt.
        assert_eq!(colors(&m, 0, 100, 0), [89, 0, 11]);
        // A second of twice the rate: half of it.
        let [red, yellow, green] = colors(&m, SECOND, 15_625, SECOND / 15_625);
        assert_eq!(yellow, 0);
        assert!(green.abs_diff(7_813) < 100 && red + green == 15_625, "{red} red, {green} green");
    }

    #[test]
    fn a_rate_without_a_burst() {
        let mut input = input();
        input.set(FlowMeterIn::CBS_MANTISSA, 0).set(FlowMeterIn::CBS_EXPONENT, 0);
        let m = meter(&input);
        let [red, _, green] = colors(&m, 0, 15_625, SECOND / 15_625);
        assert!(green.abs_diff(7_813) < 100 && red > 0, "{red} red, {green} green");
    }

    #[test]
    fn time_goes_on_beyond_64_bits() {
        let m = meter(&input());
        let end = u128::from(u64::MAX);
        let color = |now| m.mark(now, 64, &Sight::default());
        (0..20).for_each(|_| _ = color(end));
        assert_eq!(color(end), meter_color::RED);
        assert_eq!(color(end + u128::from(SECOND)), GREEN);
    }

    #[test]
    fn excess_is_yellow() {
        let mut input = input();
        input.set(FlowMeterIn::EBS_MANTISSA, 5).set(FlowMeterIn::EBS_EXPONENT, 7);
        let m = meter(&input);
        assert_eq!(colors(&m, 0, 100, 0), [83, 6, 11]);
        // What fills it is what the other has no room for, if that is said.
        assert_eq!(colors(&m, SECOND, 100, 0), [89, 0, 11]);
        input.set(FlowMeterIn::BUCKET_OVERFLOW, 1);
        let m = meter(&input);
        colors(&m, 0, 100, 0);
        assert_eq!(colors(&m, SECOND, 100, 0), [83, 6, 11]);
        input.set(FlowMeterIn::BUCKET_OVERFLOW, 0).set(FlowMeterIn::EIR_MANTISSA, 1);
        let m = meter(&input);
        colors(&m, 0, 100, 0);
        assert_eq!(colors(&m, SECOND, 100, 0), [83, 6, 11]);
        // Green packets taken off both leave less for yellow ones.
        input.set(FlowMeterIn::BOTH_BUCKETS_ON_GREEN, 1);
        assert_eq!(colors(&meter(&input), 0, 100, 0), [89, 0, 11]);
    }

    #[test]
    fn colors_that_packets_come_with_do_not_get_better() {
        for (start, expected) in [(0, [20, 0, 0]), (1, [14, 6, 0]), (2, [3, 6, 11])] {
            let mut input = input();
            input.set(FlowMeterIn::START_COLOR, start);
            input.set(FlowMeterIn::EBS_MANTISSA, 5).set(FlowMeterIn::EBS_EXPONENT, 7);
            assert_eq!(colors(&meter(&input), 0, 20, 0), expected);
        }
        let mut off = input();
        off.set(FlowMeterIn::ACTIVE, 0);
        assert_eq!(colors(&meter(&off), 0, 100, 0), [0, 0, 100]);
        off.set(FlowMeterIn::START_COLOR, 3);
        assert!(Parameters::of(&off).is_none());
    }

    #[test]
    fn what_is_counted() {
        for (mode, expected) in [(0, 100 - 14), (1, 104), (2, 124), (3, 128)] {
            let mut input = input();
            input.set(FlowMeterIn::METER_MODE, mode);
            let m = meter(&input);
            let mut sight = Sight::default();
            sight.places.l3 = 14;
            m.mark(0, 100, &sight);
            assert_eq!(m.state.get().committed.bytes, 1280 - expected, "mode {mode}");
        }
    }

    #[test]
    fn changes_are_those_that_are_chosen() {
        let mut m = meter(&input());
        let mut other = input();
        other.set(FlowMeterIn::ACTIVE, 0).set(FlowMeterIn::CBS_MANTISSA, 1).set(FlowMeterIn::CIR_MANTISSA, 7);
        other.set(FlowMeterIn::EBS_MANTISSA, 3).set(FlowMeterIn::EIR_MANTISSA, 4);
        let told = |m: &Meter| {
            let mut out = FlowMeterIn::new();
            m.describe(&mut out);
            let get = |field| out.get(field);
            [
                get(FlowMeterIn::ACTIVE),
                get(FlowMeterIn::CBS_MANTISSA),
                get(FlowMeterIn::CIR_MANTISSA),
                get(FlowMeterIn::EBS_MANTISSA),
                get(FlowMeterIn::EIR_MANTISSA),
            ]
        };
        let mut expected = [1, 10, 132, 0, 0];
        for (n, new) in [0, 1, 7, 3, 4].into_iter().enumerate() {
            m.modify(Parameters::of(&other).expect("valid"), 1 << n);
            expected[n] = new;
            assert_eq!(told(&m), expected, "bit {n}");
        }
    }
}
