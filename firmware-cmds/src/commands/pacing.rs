//! Rates that send queues of packets keep to. Source: mlx5 driver, field use (SET_PP_RATE_LIMIT).

use hca_spec::caps::Qos;
use hca_spec::command::Status;
use hca_spec::queue::SetPpRateLimitIn;

use super::call::done;
use super::devx::uid;
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource};
use crate::firmware::Firmware;
use crate::icm::Rate;
use crate::limits::{MAX_RATE, MIN_RATE, RATES};
use crate::users::SHARED;

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
    const USERS: Failure = Failure::new(
        Status::BadOp,
        "SET_PP_RATE_LIMIT: uid: user contexts can't set rates (packet_pacing_uid)",
    );
    const OTHERS: Failure = bad_resource("SET_PP_RATE_LIMIT: rate_limit_index: the rate was set by another");
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
    let user = uid(call);
    if !is_kernel(user) && fw.personality().capabilities.ethernet.qos.get(Qos::PACKET_PACING_UID) == 0 {
        return Err(USERS.of(user));
    }
    let (index, rate) = (set.get(SetPpRateLimitIn::RATE_LIMIT_INDEX), set.get(SetPpRateLimitIn::RATE_LIMIT));
    if rate != 0 && !(MIN_RATE..=MAX_RATE).contains(&rate) {
        return Err(RATE.got(rate).limit(MAX_RATE));
    }
    let entry = (index as usize).checked_sub(1).and_then(|at| fw.icm.rates.get_mut(at));
    let entry = entry.ok_or(INDEX.got(index).limit(RATES))?;
    if !is_kernel(user) && entry.kbps != 0 && entry.owner != user {
        return Err(OTHERS.of(index).got(entry.owner).exactly(user));
    }
    *entry = Rate { kbps: rate, owner: if rate == 0 { 0 } else { user } };
    Ok(done())
}

/// Whether a queue of that user context may keep to a rate: to its own, the kernel's, and to those that are not set.
pub(super) fn may_name(fw: &Firmware, call: &Call<'_>, index: u32) -> Result<(), Failure> {
    const OTHERS: Failure =
        bad_resource("SQ: packet_pacing_rate_limit_index: the rate belongs to another user context");
    let (user, owner) = (uid(call), fw.icm.rate_owner(index));
    match is_kernel(user) || is_kernel(owner) || owner == user {
        true => Ok(()),
        false => Err(OTHERS.of(index).got(owner).exactly(user)),
    }
}

fn is_kernel(user: u16) -> bool {
    [0, SHARED].contains(&user)
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
    use crate::personality::Personality;
    use crate::profile::Config;
    use hca_spec::cmd::{CreateUctxIn, ObjectIn};
    use hca_spec::command::Opcode;
    use hca_spec::put_be32;

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
    fn of_user_contexts() {
        let personality = Personality::named("connectx6dx").expect("it is there");
        let mut b = Bench::initialized_with(Config { personality, ..ethernet() });
        let user = |b: &mut Bench| b.put(Opcode::CreateUctx, &CreateUctxIn::new(), 16).number() as u16;
        let (one, other) = (user(&mut b), user(&mut b));
        let set_as = |b: &mut Bench, user: u16, index: u32, rate: u32| {
            let mut set = SetPpRateLimitIn::new();
            set.set(SetPpRateLimitIn::RATE_LIMIT_INDEX, index).set(SetPpRateLimitIn::RATE_LIMIT, rate);
            let mut input = set.bytes().to_vec();
            put_be32(&mut input, 0, (Opcode::SetPpRateLimit as u32) << 16 | u32::from(user));
            b.raw(&input, 16).status()
        };
        assert_eq!(set_as(&mut b, one, 3, 1000), Status::Ok);
        assert_eq!(set_as(&mut b, one, 3, 2000), Status::Ok);
        for rate in [1000, 0] {
            assert_eq!(set_as(&mut b, other, 3, rate), Status::BadResource, "it is another's");
        }
        assert_eq!(b.fw.icm.rate(3), Some(2000));
        assert_eq!(set(&mut b, 4, 1000, |_| ()), Status::Ok);
        assert_eq!(set_as(&mut b, one, 4, 1000), Status::BadResource, "it is the kernel's");
        let mut destroy = ObjectIn::new();
        destroy.set(ObjectIn::NUMBER, one.into());
        assert_eq!(b.put(Opcode::DestroyUctx, &destroy, 16).status(), Status::ResourceBusy, "it has a rate");
        assert_eq!(set_as(&mut b, one, 3, 0), Status::Ok);
        assert_eq!(b.put(Opcode::DestroyUctx, &destroy, 16).status(), Status::Ok);
        assert_eq!(set_as(&mut b, other, 3, 5000), Status::Ok, "it is free");

        let mut b = Bench::initialized_with(ethernet());
        let one = user(&mut b);
        assert_eq!(set_as(&mut b, one, 3, 1000), Status::BadOp, "a ConnectX-4");
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
