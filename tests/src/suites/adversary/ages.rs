//! Nobody attacks but time: a server that is so old that what counts its picoseconds comes to an end.

use std::time::{Duration, Instant};

use hca_driver::Bus;
use hca_driver::vfio_user::VfioUserBus;
use hca_model::DUE;

use super::Row;
use super::stage::{Attacker, Driver, Failure, MEMORY, Setting};

/// The cases. Each begins some seconds before its moment.
pub const ROWS: &[Row] = &[
    Row::new("nobody: model time reaches 2^64 ps, after 213 days", |a| passes(a, 1 << 64, SECOND))
        .with(&["--age", "18446739"]),
    dilated("nobody: model time reaches 2^64 ps, after 5 hours with dilation = 0.001", |a| {
        passes(a, 1 << 64, 1000 * SECOND)
    })
    .with(&["--age", "18441"]),
    dilated("nobody: the start of model time moves, with dilation = 0.001", |a| {
        passes(a, u128::from(DUE.0), 1000 * SECOND)
    })
    .with(&["--age", "13819"]),
];

/// Two adapters, and a thousand seconds of the model in each of the host's.
const DILATED: &str = "[time]\ndilation = 0.001\n[[host]]\nname = \"a\"\n[[host.hca]]\n\
    [[host]]\nname = \"v\"\n[[host.hca]]\n";
/// The adapter's clock runs at 156.25 MHz: picoseconds of a tick.
const TICK: u128 = 6_400;
/// A second, in picoseconds.
const SECOND: u128 = 1_000_000_000_000;
/// The moment comes by then.
const LIMIT: Duration = Duration::from_secs(30);

const fn dilated(name: &'static str, attack: super::Attack) -> Row {
    let row = Row::new(name, attack);
    Row { setting: Setting { topology: Some(DILATED), ..row.setting }, ..row }
}

/// The adapter's clock (PRM "Initialization segment", internal_timer_h and _l), in picoseconds.
fn clock(hca: &mut Driver) -> u128 {
    let mut word = |at| VfioUserBus::mmio_read32(hca.bus_mut(), at);
    loop {
        let [high, low, again] = [0x1000, 0x1004, 0x1000].map(&mut word);
        if high == again {
            return u128::from(u64::from(high) << 32 | u64::from(low)) * TICK;
        }
    }
}

/// Model time comes from before a moment to so long behind it, in picoseconds.
fn passes(attacker: &Attacker, moment: u128, behind: u128) -> Result<String, Failure> {
    let mut hca = attacker.driver(MEMORY)?;
    let first = clock(&mut hca);
    if first >= moment {
        return Err(format!("{first} ps have passed already: this machine is too slow for the case").into());
    }
    let (mut last, until) = (first, Instant::now() + LIMIT);
    while last < moment + behind {
        std::thread::sleep(Duration::from_millis(1));
        let now = clock(&mut hca);
        if now < last {
            return Err(format!("the adapter's clock goes from {last} ps back to {now}").into());
        }
        if Instant::now() > until {
            return Err(format!("model time stands at {now} ps").into());
        }
        last = now;
    }
    Ok(format!("model time went from {first} to {last} ps"))
}
