//! Rates that send queues of packets keep to. Source: mlx5 driver, field use (SET_PP_RATE_LIMIT).

use hca_spec::queue::SetPpRateLimitIn;

use super::call::done;
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::limits::{MAX_RATE, MIN_RATE, RATES};

/// Whether send queues can keep to rates: those of Ethernet ports can.
pub(super) fn has_rates(fw: &Firmware) -> bool {
    fw.is_ethernet()
}

/// Sets a rate, or with 0 takes it away. Queues that name it keep to the new one from their next WQE on.
pub(super) fn set(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const INDEX: Failure =
        bad_param("SET_PP_RATE_LIMIT: rate_limit_index is 0 or beyond packet_pacing_rate_table_size");
    const RATE: Failure =
        bad_param("SET_PP_RATE_LIMIT: rate_limit is beyond packet_pacing_min_rate to _max_rate");
    const BURST: Failure =
        bad_param("SET_PP_RATE_LIMIT: burst_upper_bound can't be set (packet_pacing_burst_bound)");
    const TYPICAL: Failure =
        bad_param("SET_PP_RATE_LIMIT: typical_packet_size can't be set (packet_pacing_typical_size)");
    const MODE: Failure = bad_param("SET_PP_RATE_LIMIT: rate_mode must be 0 (bits of packets)");
    let set = call.view::<SetPpRateLimitIn>()?;
    for (field, refusal) in [
        (SetPpRateLimitIn::BURST_UPPER_BOUND, BURST),
        (SetPpRateLimitIn::TYPICAL_PACKET_SIZE, TYPICAL),
        (SetPpRateLimitIn::RATE_MODE, MODE),
    ] {
        if set.get(field) != 0 {
            return Err(refusal.got(set.get(field)));
        }
    }
    let (index, rate) = (set.get(SetPpRateLimitIn::RATE_LIMIT_INDEX), set.get(SetPpRateLimitIn::RATE_LIMIT));
    if rate != 0 && !(MIN_RATE..=MAX_RATE).contains(&rate) {
        return Err(RATE.got(rate).limit(MAX_RATE));
    }
    let entry = (index as usize).checked_sub(1).and_then(|at| fw.icm.rates.get_mut(at));
    *entry.ok_or(INDEX.got(index).limit(RATES))? = rate;
    Ok(done())
}

/// SET_PP_RATE_LIMIT: 1 Gb/s.
pub(super) fn template(_: &Fixture) -> Vec<u8> {
    let mut set = SetPpRateLimitIn::new();
    set.set(SetPpRateLimitIn::RATE_LIMIT_INDEX, 1).set(SetPpRateLimitIn::RATE_LIMIT, 1_000_000);
    set.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, ethernet};
    use hca_spec::command::{Opcode, Status};

    fn set(b: &mut Bench, index: u32, rate: u32, change: impl Fn(&mut SetPpRateLimitIn)) -> Status {
        let mut s = SetPpRateLimitIn::new();
        s.set(SetPpRateLimitIn::RATE_LIMIT_INDEX, index).set(SetPpRateLimitIn::RATE_LIMIT, rate);
        change(&mut s);
        b.put(Opcode::SetPpRateLimit, &s, 16).status()
    }

    #[test]
    fn rates_come_and_go() {
        let mut b = Bench::initialized_with(ethernet());
        assert_eq!((b.fw.icm.rate(0), b.fw.icm.rate(5)), (None, None));
        assert_eq!(set(&mut b, 5, 1_000_000, |_| ()), Status::Ok);
        assert_eq!(set(&mut b, 127, MAX_RATE, |_| ()), Status::Ok);
        assert_eq!(
            (b.fw.icm.rate(4), b.fw.icm.rate(5), b.fw.icm.rate(127)),
            (None, Some(1_000_000), Some(MAX_RATE))
        );
        assert_eq!(set(&mut b, 5, 0, |_| ()), Status::Ok);
        assert_eq!(b.fw.icm.rate(5), None);
        b.ok(Opcode::DisableHca, 0);
        assert_eq!(b.fw.icm.rate(127), None, "its driver is gone");
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized_with(ethernet());
        for (index, rate) in [(0, 1000), (128, 1000), (0xffff, 0), (1, MAX_RATE + 1), (1, u32::MAX)] {
            assert_eq!(set(&mut b, index, rate, |_| ()), Status::BadParam, "{index} {rate}");
        }
        let changes: [fn(&mut SetPpRateLimitIn); 3] = [
            |s| _ = s.set(SetPpRateLimitIn::BURST_UPPER_BOUND, 1),
            |s| _ = s.set(SetPpRateLimitIn::TYPICAL_PACKET_SIZE, 64),
            |s| _ = s.set(SetPpRateLimitIn::RATE_MODE, 1),
        ];
        for change in changes {
            assert_eq!(set(&mut b, 1, 1000, change), Status::BadParam);
        }
        assert_eq!(b.fw.icm.rate(1), None);
        let mut b = Bench::initialized();
        assert_eq!(set(&mut b, 1, 1000, |_| ()), Status::BadOp, "InfiniBand");
    }
}
