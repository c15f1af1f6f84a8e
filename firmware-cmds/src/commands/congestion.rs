//! Congestion control of RoCE. Source: mlx5 driver, field use (QUERY_CONG_PARAMS and its family); NVIDIA, "DCQCN CC Parameters"
//! (values that parameters may have).

use std::ops::RangeInclusive;

use hca_spec::congestion::{
    CongParamsIn, CongStatisticsIn, CongStatisticsOut, CongStatusIn, CongStatusOut, MODIFY_PARAMS,
    NotificationParams, QUERY_PARAMS, ReactionParams, protocol,
};

use super::call::done;
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::port::congestion::{CongestionControl, CongestionCounters, NotificationPoint, ReactionPoint};

/// Length of MODIFY_CONG_PARAMS's input.
pub(super) const MODIFY_LEN: usize = MODIFY_PARAMS + ReactionParams::SIZE;
/// Length of QUERY_CONG_PARAMS's output.
pub(super) const QUERY_LEN: usize = QUERY_PARAMS + ReactionParams::SIZE;

/// Alpha and its parts are in 1/1024.
const ALPHA_UNITS: u32 = 1023;
/// The longest time between updates of alpha, us.
const ALPHA_PERIODS: u32 = 131_071;
/// By how many bits alpha may be shifted: an estimate; documented are 10 and 11.
const SHIFT: u32 = 15;
/// Parts in a whole.
const PERCENT: u32 = 100;
/// A field that may have any value.
const ANY: RangeInclusive<u32> = 0..=u32::MAX;
/// The first port's: commands name none.
const PORT: u8 = 1;

const NOT_THERE: Failure = bad_param("congestion control: the port is not Ethernet");
const PROTOCOL: Failure =
    bad_param("congestion control: cong_protocol must be 1 (reaction point) or 2 (notification point)");

fn control(fw: &mut Firmware) -> Result<&mut CongestionControl, Failure> {
    let port = fw.ports.port_mut(PORT).and_then(|port| port.ethernet_mut());
    port.map(|ethernet| &mut ethernet.congestion).ok_or(NOT_THERE)
}

/// A parameter: its bit in field_select, its field, its values, and where it is.
type Parameter<L, P> = (u32, fn(&L) -> u32, fn(&mut L, u32), RangeInclusive<u32>, fn(&mut P) -> Slot<'_>);

/// Where a parameter is kept.
enum Slot<'a> {
    Word(&'a mut u32),
    Byte(&'a mut u8),
    Flag(&'a mut bool),
}

impl Slot<'_> {
    fn get(&self) -> u32 {
        match self {
            Self::Word(word) => **word,
            Self::Byte(byte) => u32::from(**byte),
            Self::Flag(flag) => u32::from(**flag),
        }
    }

    fn set(self, value: u32) {
        match self {
            Self::Word(word) => *word = value,
            Self::Byte(byte) => *byte = value as u8,
            Self::Flag(flag) => *flag = value != 0,
        }
    }
}

macro_rules! parameters {
    ($layout:ident, $of:ty: $($bit:literal $field:ident $values:expr, $slot:ident $name:ident;)*) => {
        [$((
            $bit,
            |from: &$layout| from.get($layout::$field),
            |to: &mut $layout, value| _ = to.set($layout::$field, value),
            $values,
            |of: &mut $of| Slot::$slot(&mut of.$name),
        )),*]
    };
}

const REACTION: [Parameter<ReactionParams, ReactionPoint>; 16] = parameters! { ReactionParams, ReactionPoint:
    1 CLAMP_TGT_RATE 0..=1, Flag clamp;
    2 CLAMP_TGT_RATE_AFTER_TIME_INC 0..=1, Flag clamp_after_time;
    3 RPG_TIME_RESET ANY, Word time_reset;
    4 RPG_BYTE_RESET ANY, Word byte_reset;
    5 RPG_THRESHOLD ANY, Word threshold;
    6 RPG_MAX_RATE ANY, Word most;
    7 RPG_AI_RATE ANY, Word additive;
    8 RPG_HAI_RATE ANY, Word hyper;
    9 RPG_MIN_DEC_FAC 0..=PERCENT, Word least_left;
    10 RPG_MIN_RATE ANY, Word least;
    11 RATE_TO_SET_ON_FIRST_CNP ANY, Word first_rate;
    12 DCE_TCP_G 0..=ALPHA_UNITS, Word alpha_keep;
    13 DCE_TCP_RTT 1..=ALPHA_PERIODS, Word alpha_period;
    14 RATE_REDUCE_MONITOR_PERIOD 1..=u32::MAX, Word monitor_period;
    15 INITIAL_ALPHA_VALUE 1..=ALPHA_UNITS, Word initial_alpha;
    16 RPG_GD 0..=SHIFT, Word gd;
};

/// The bit of the mode is that of the priority, too.
const NOTIFICATION: [Parameter<NotificationParams, NotificationPoint>; 4] = parameters! { NotificationParams, NotificationPoint:
    2 MIN_TIME_BETWEEN_CNPS ANY, Word min_time;
    3 CNP_DSCP 0..=63, Byte dscp;
    4 CNP_PRIO_MODE 0..=1, Flag same_priority;
    4 CNP_802P_PRIO 0..=7, Byte priority;
};

fn change<L, P: Clone>(list: &[Parameter<L, P>], selected: u32, from: &L, to: &mut P) -> Result<(), Failure> {
    const FIELD: Failure = bad_param("MODIFY_CONG_PARAMS: field_select names a parameter that is not there");
    const VALUE: Failure = bad_param("MODIFY_CONG_PARAMS: a parameter is beyond its range");
    let known = list.iter().fold(0, |bits, (bit, ..)| bits | 1 << bit);
    if selected & !known != 0 {
        return Err(FIELD.got(selected));
    }
    let mut new = to.clone();
    for (_, get, _, values, slot) in list.iter().filter(|(bit, ..)| selected >> bit & 1 == 1) {
        let value = get(from);
        if !values.contains(&value) {
            return Err(VALUE.got(value).limit(*values.end()));
        }
        slot(&mut new).set(value);
    }
    *to = new;
    Ok(())
}

fn show<L, P>(list: &[Parameter<L, P>], of: &mut P, into: &mut L) {
    for (_, _, set, _, slot) in list {
        set(into, slot(of).get());
    }
}

/// QUERY_CONG_PARAMS.
pub(super) fn params(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let which = call.view::<CongParamsIn>()?.get(CongParamsIn::CONG_PROTOCOL);
    let CongestionControl { mut reaction, mut notification, .. } = *control(fw)?;
    let mut out = vec![0; QUERY_PARAMS];
    match which {
        protocol::REACTION_POINT => {
            let mut params = ReactionParams::new();
            show(&REACTION, &mut reaction, &mut params);
            out.extend_from_slice(params.bytes());
        }
        protocol::NOTIFICATION_POINT => {
            let mut params = NotificationParams::new();
            show(&NOTIFICATION, &mut notification, &mut params);
            out.extend_from_slice(params.bytes());
        }
        other => return Err(PROTOCOL.got(other)),
    }
    Ok(out)
}

/// MODIFY_CONG_PARAMS.
pub(super) fn modify_params(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let input = call.view::<CongParamsIn>()?;
    let (which, selected) = (input.get(CongParamsIn::CONG_PROTOCOL), input.get(CongParamsIn::FIELD_SELECT));
    let bytes = call.input.get(MODIFY_PARAMS..).unwrap_or_default();
    let control = control(fw)?;
    match which {
        protocol::REACTION_POINT => {
            change(&REACTION, selected, &ReactionParams::from_prefix_or_zero(bytes), &mut control.reaction)?;
        }
        protocol::NOTIFICATION_POINT => {
            let params = NotificationParams::from_prefix_or_zero(bytes);
            change(&NOTIFICATION, selected, &params, &mut control.notification)?;
        }
        other => return Err(PROTOCOL.got(other)),
    }
    Ok(done())
}

/// Which part a command of the status is about, as bits of priorities, and the bit.
fn status_of<'a>(fw: &'a mut Firmware, input: &CongStatusIn) -> Result<(&'a mut u8, u8), Failure> {
    const PRIORITY: Failure = bad_param("congestion control: priority is beyond 7");
    let (which, priority) = (input.get(CongStatusIn::CONG_PROTOCOL), input.get(CongStatusIn::PRIORITY));
    let bit = 1u8.checked_shl(priority).ok_or(PRIORITY.got(priority).limit(7u32))?;
    let control = control(fw)?;
    match which {
        protocol::REACTION_POINT => Ok((&mut control.reacts, bit)),
        protocol::NOTIFICATION_POINT => Ok((&mut control.notifies, bit)),
        other => Err(PROTOCOL.got(other)),
    }
}

/// QUERY_CONG_STATUS.
pub(super) fn status(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let (on, bit) = status_of(fw, call.view::<CongStatusIn>()?)?;
    let mut out = CongStatusOut::new();
    out.set(CongStatusOut::ENABLE, u32::from(*on & bit != 0));
    Ok(out.bytes().to_vec())
}

/// MODIFY_CONG_STATUS.
pub(super) fn modify_status(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const TAG: Failure = bad_param("MODIFY_CONG_STATUS: tag_enable: RoCE tags no packets");
    let input = call.view::<CongStatusIn>()?;
    if input.get(CongStatusIn::TAG_ENABLE) != 0 {
        return Err(TAG);
    }
    let (on, bit) = status_of(fw, input)?;
    *on = if input.get(CongStatusIn::ENABLE) == 1 { *on | bit } else { *on & !bit };
    // Packets say whether their flow reacts.
    if let Some(port) = fw.ports.port_mut(PORT) {
        port.readdress();
    }
    Ok(done())
}

/// QUERY_CONG_STATISTICS.
pub(super) fn statistics(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let clear = call.view::<CongStatisticsIn>()?.get(CongStatisticsIn::CLEAR) == 1;
    let counters = &mut control(fw)?.counters;
    let mut out = CongStatisticsOut::new();
    out.set(CongStatisticsOut::RP_CUR_FLOWS, counters.limited)
        .set(CongStatisticsOut::SUM_FLOWS, counters.ever_limited);
    out.set(CongStatisticsOut::RP_CNP_IGNORED, counters.ignored);
    out.set(CongStatisticsOut::RP_CNP_HANDLED, counters.handled);
    out.set(CongStatisticsOut::NP_ECN_MARKED_ROCE_PACKETS, counters.marked);
    out.set(CongStatisticsOut::NP_CNP_SENT, counters.sent);
    if clear {
        // How many flows are limited now is no count.
        *counters = CongestionCounters { limited: counters.limited, ..CongestionCounters::default() };
    }
    Ok(out.bytes().to_vec())
}

/// Parameters of the reaction point.
pub(super) fn params_template(_: &Fixture) -> Vec<u8> {
    CongParamsIn::new().set(CongParamsIn::CONG_PROTOCOL, protocol::REACTION_POINT).bytes().to_vec()
}

/// The status of priority 0.
pub(super) fn status_template(_: &Fixture) -> Vec<u8> {
    CongStatusIn::new().set(CongStatusIn::CONG_PROTOCOL, protocol::REACTION_POINT).bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, ethernet};
    use hca_spec::command::{Opcode, Status};

    fn read(b: &mut Bench, which: u32) -> Vec<u8> {
        let mut input = CongParamsIn::new();
        let r = b.put(Opcode::QueryCongParams, input.set(CongParamsIn::CONG_PROTOCOL, which), QUERY_LEN);
        assert_eq!(r.status(), Status::Ok);
        r.output[QUERY_PARAMS..].to_vec()
    }

    fn write(b: &mut Bench, which: u32, fields: u32, params: &[u8]) -> Status {
        let mut input = CongParamsIn::new();
        input.set(CongParamsIn::CONG_PROTOCOL, which).set(CongParamsIn::FIELD_SELECT, fields);
        let mut bytes = input.bytes().to_vec();
        bytes.resize(MODIFY_PARAMS, 0);
        bytes.extend_from_slice(params);
        bytes[..2].copy_from_slice(&(Opcode::ModifyCongParams as u16).to_be_bytes());
        b.raw(&bytes, 16).status()
    }

    #[test]
    fn parameters_one_by_one() {
        let mut b = Bench::initialized_with(ethernet());
        let before = ReactionParams::from_prefix_or_zero(&read(&mut b, 1));
        assert_eq!((before.get(ReactionParams::DCE_TCP_G), before.get(ReactionParams::RPG_GD)), (1019, 11));
        let mut all = ReactionParams::new();
        for (n, (_, _, set, values, _)) in (2u32..).zip(&REACTION) {
            set(&mut all, n.min(*values.end()));
        }
        for (bit, get, ..) in &REACTION {
            let old = ReactionParams::from_prefix_or_zero(&read(&mut b, 1));
            assert_eq!(write(&mut b, 1, 1 << bit, all.bytes()), Status::Ok);
            let new = ReactionParams::from_prefix_or_zero(&read(&mut b, 1));
            assert_eq!(get(&new), get(&all), "bit {bit}");
            let others = REACTION.iter().filter(|(other, ..)| other != bit);
            assert!(others.into_iter().all(|(_, get, ..)| get(&new) == get(&old)), "bit {bit} alone");
        }
        let mut np = NotificationParams::new();
        np.set(NotificationParams::CNP_DSCP, 12).set(NotificationParams::CNP_802P_PRIO, 3);
        np.set(NotificationParams::MIN_TIME_BETWEEN_CNPS, 50).set(NotificationParams::CNP_PRIO_MODE, 1);
        assert_eq!(write(&mut b, 2, 0b1_1100, np.bytes()), Status::Ok);
        assert_eq!(NotificationParams::from_prefix_or_zero(&read(&mut b, 2)), np);
        // Nothing is changed if one is refused.
        all.set(ReactionParams::RPG_AI_RATE, 77).set(ReactionParams::RPG_MIN_DEC_FAC, 101);
        let old = read(&mut b, 1);
        for (which, fields) in [(1, 1 << 7 | 1 << 9), (1, 1), (1, 1 << 17), (0, 2), (3, 2), (2, 2)] {
            assert_eq!(write(&mut b, which, fields, all.bytes()), Status::BadParam, "{which} {fields:#x}");
        }
        assert_eq!(read(&mut b, 1), old);
    }

    #[test]
    fn priorities_and_counters() {
        let mut b = Bench::initialized_with(ethernet());
        let status = |b: &mut Bench, opcode, which, priority, on| {
            let mut input = CongStatusIn::new();
            input.set(CongStatusIn::CONG_PROTOCOL, which).set(CongStatusIn::PRIORITY, priority);
            let r = b.put(opcode, input.set(CongStatusIn::ENABLE, on), 16);
            // The bit lies where drivers read it: first of the last word.
            (r.status(), r.output.get(0xc).map_or(0, |byte| byte >> 7))
        };
        assert_eq!(status(&mut b, Opcode::QueryCongStatus, 1, 5, 0), (Status::Ok, 1));
        assert_eq!(status(&mut b, Opcode::ModifyCongStatus, 1, 5, 0).0, Status::Ok);
        assert_eq!(status(&mut b, Opcode::QueryCongStatus, 1, 5, 0), (Status::Ok, 0));
        assert_eq!(status(&mut b, Opcode::QueryCongStatus, 2, 5, 0), (Status::Ok, 1));
        for (which, priority) in [(1, 8), (2, 15), (0, 0), (3, 0)] {
            assert_eq!(status(&mut b, Opcode::QueryCongStatus, which, priority, 0).0, Status::BadParam);
        }
        control(&mut b.fw).unwrap().counters =
            CongestionCounters { limited: 1, sent: 1 << 40, ..CongestionCounters::default() };
        for sent in [1 << 40, 0] {
            let mut input = CongStatisticsIn::new();
            let r = b.put(
                Opcode::QueryCongStatistics,
                input.set(CongStatisticsIn::CLEAR, 1),
                CongStatisticsOut::SIZE,
            );
            let out = CongStatisticsOut::from_prefix_or_zero(&r.output);
            assert_eq!(
                (out.get(CongStatisticsOut::NP_CNP_SENT), out.get(CongStatisticsOut::RP_CUR_FLOWS)),
                (sent, 1)
            );
        }
    }

    #[test]
    fn infiniband_has_none() {
        let mut b = Bench::initialized();
        let mut input = CongParamsIn::new();
        let r = b.put(Opcode::QueryCongParams, input.set(CongParamsIn::CONG_PROTOCOL, 1), QUERY_LEN);
        assert_eq!(r.status(), Status::BadOp);
    }
}
