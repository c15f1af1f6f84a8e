//! Adapters that fail on script: the gallery of `qemu-configs/faults`, and what the stock driver makes of each.

use super::Case;
use super::guest::{Command, HOST, Ready, ended, is_chosen, quoted, report};
use crate::guests::file;

/// Files of these cases in the guests.
const FILES: [&str; 2] = ["guest/ethernet.sh", "guest/faults.sh"];

/// What the stock driver does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Nobody notices, or it recovers by itself.
    Recovers,
    /// What was asked for fails with an error, and the next time it works.
    GivesUp,
    /// It has a bug.
    Bug,
}

/// A file of the gallery, and what shows what the driver makes of it.
struct Row {
    /// Of `qemu-configs/faults`, without its ending.
    fault: &'static str,
    outcome: Outcome,
    /// In host `a`, in words of `tests/guest/faults.sh`.
    script: &'static str,
    /// Longest time, s.
    limit: u32,
    /// What both hosts run behind it, with each other.
    then: Option<fn() -> Command>,
    /// What the driver of one kernel does instead, and what shows that.
    but: Option<(&'static str, Outcome, &'static str)>,
}

impl Row {
    /// The same, but for that kernel.
    const fn but(self, kernel: &'static str, outcome: Outcome, script: &'static str) -> Row {
        Row { but: Some((kernel, outcome, script)), ..self }
    }
}

const fn row(fault: &'static str, outcome: Outcome, script: &'static str) -> Row {
    Row { fault, outcome, script, limit: 200, then: None, but: None }
}

/// A row that waits for time limits of the driver, up to some 400 s together, or for the grace period of its reporter of fatal errors (a minute).
const fn patient(fault: &'static str, outcome: Outcome, script: &'static str) -> Row {
    Row { fault, outcome, script, limit: 900, then: None, but: None }
}

/// A row of an InfiniBand port, and what both hosts run behind it.
const fn subnet(fault: &'static str, outcome: Outcome, script: &'static str, then: fn() -> Command) -> Row {
    Row { fault, outcome, script, limit: 200, then: Some(then), but: None }
}

/// Rows that follow each other in one boot of two guests.
struct Boot {
    topology: &'static str,
    rows: &'static [Row],
}

/// In each boot the rows come first that the driver gets over.
const BOOTS: [Boot; 6] = [
    Boot { topology: "eth-two-hosts", rows: SLOT },
    Boot { topology: "two-hosts", rows: SUBNET },
    Boot { topology: "eth-slots.toml", rows: PLUGGED },
    Boot { topology: "eth-two-hosts", rows: AILING },
    Boot { topology: "eth-two-hosts", rows: HANGING },
    Boot { topology: "eth-two-hosts", rows: DISTURBED },
];

/// Queues, events, commands and modules.
const DISTURBED: &[Row] = &[
    row(
        "tx-error-cqe",
        Outcome::Recovers,
        "fault; provoke; said 'ERR CQE on SQ' && counted tx && traffic && unhurt",
    ),
    row("rx-error-cqe", Outcome::Recovers, "fault; provoke; counted rx && traffic && unhurt"),
    row("unknown-event", Outcome::Recovers, "fault; traffic && unhurt"),
    row(
        "module-unplugged",
        Outcome::Recovers,
        "fault; said 'Port module event: module 0, Cable unplugged' && said 'module 0, Cable plugged' &&
        told module_unplug && traffic && unhurt",
    ),
    row(
        "module-overheats",
        Outcome::Recovers,
        "fault; said 'module 0, Cable error, High Temperature' && said 'module 0, Cable plugged' &&
        told module_high_temp && traffic && unhurt",
    ),
    row(
        "module-bus-stuck",
        Outcome::Recovers,
        "fault; said 'module 0, Cable error, Bus stuck' && told module_bus_stuck && fails ethtool -m hca0 &&
        said 'module 0, Cable plugged' && ethtool -m hca0 && traffic && unhurt",
    )
    .but(
        "6.1",
        Outcome::Bug,
        // As of firmware that stays ailing: no byte was read, and ethtool prints what else lies there.
        "fault; said 'module 0, Cable error, Bus stuck' && told module_bus_stuck && ethtool -m hca0 &&
        said 'query_module_eeprom_by_page failed' && said 'module 0, Cable plugged' && ethtool -m hca0 && traffic && unhurt",
    ),
    row(
        "temperature",
        Outcome::Recovers,
        "fault; said 'High temperature on sensors with bit set' && traffic && unhurt",
    ),
    row("page-storm", Outcome::Recovers, "fault; sleep 3; traffic && reopen && traffic && unhurt"),
    row("page-return-storm", Outcome::Recovers, "fault; sleep 3; traffic && reopen && traffic && unhurt"),
    row("cable-flaps", Outcome::Recovers, "fault; said 'Link down' && sleep 20; traffic && unhurt"),
    row(
        "command-fails",
        Outcome::GivesUp,
        "fault; fails reopen && said 'CREATE_CQ.*no resources' && ip link set hca0 up && traffic && unhurt",
    ),
    row(
        "command-undelivered",
        Outcome::GivesUp,
        "fault; fails reopen && ip link set hca0 up && traffic && unhurt",
    ),
    row("command-late", Outcome::Recovers, "fault; reopen && traffic && unhurt"),
    row(
        "command-interrupt-lost",
        Outcome::Recovers,
        "fault; reopen; traffic || { ip link set hca0 up && traffic; } && unhurt",
    ),
    row(
        "cq-overflows",
        Outcome::Recovers,
        "fault; provoke; said 'mlx5e_cq_error_event' && said 'TX timeout' && counted tx && traffic && unhurt",
    ),
    row(
        "firmware-error",
        Outcome::Recovers,
        "fault; said 'health recovery succeeded' && { up; ip link set hca0 up; traffic; } && unhurt",
    ),
    // What these two leak of the driver's commands, a recovery would wait for without end.
    patient(
        "command-event-lost",
        Outcome::Recovers,
        "fault; reopen && said 'ACCESS_REG.*No done completion' && traffic && unhurt",
    ),
    patient(
        "command-hangs",
        Outcome::GivesUp,
        "fault; fails reopen && said 'timeout. Will cause a leak of a command resource' &&
        ip link set hca0 up && traffic && unhurt",
    ),
    // cmd_ent_put() of what the first event has released already.
    row(
        "command-event-twice",
        Outcome::Bug,
        "fault; for i in 1 2 3 4 5; do ip -s link show hca0; sleep 1; done; said 'refcount_t: underflow'",
    ),
];

/// Accesses to the host's memory, PCI Express, and lanes.
const SLOT: &[Row] = &[
    row(
        "port-degrades",
        Outcome::Recovers,
        "fault; until_true 30 speed 25000 && traffic && until_true 60 speed 100000 && traffic && unhurt",
    ),
    row(
        "slot-degrades",
        Outcome::Recovers,
        "fault; slot 2.5 4 && traffic && until_true 90 slot 8.0 16 && traffic && unhurt",
    ),
    row("pcie-correctable", Outcome::Recovers, "fault; errors CESta BadTLP && traffic && unhurt"),
    row(
        "pcie-nonfatal",
        Outcome::Recovers,
        "fault; said 'AER: Uncorrect[a-z]* (Non-Fatal) error' && said 'device recovery successful' && up && traffic && unhurt",
    ),
    row(
        "pcie-fatal",
        Outcome::Recovers,
        "fault; said 'AER: Uncorrect[a-z]* (Fatal) error' && said 'device recovery successful' && up && traffic && unhurt",
    ),
    row("dma-read-unsupported", Outcome::Recovers, "fault; provoke; counted tx && traffic && unhurt"),
    row("dma-read-aborted", Outcome::Recovers, "fault; provoke; counted tx && traffic && unhurt"),
    // An error CQE first, and a message about an error of PCI Express, upon which the driver unloads.
    row(
        "dma-read-poisoned",
        Outcome::Recovers,
        "fault; provoke; said 'ERR CQE on SQ' && said 'AER: Uncorrect[a-z]* (Non-Fatal) error' &&
        said 'device recovery successful' && up && traffic && unhurt",
    ),
    row("dma-write-lost", Outcome::Recovers, "fault; provoke; traffic && unhurt"),
];

/// What a subnet manager changes.
const SUBNET: &[Row] = &[
    subnet(
        "gid-prefix-changes",
        Outcome::Recovers,
        "fault; until_true 30 port gids/0 fec0: && unhurt",
        || Command::pair("ibv_rc_pingpong -g 0 -n 100", 18515),
    ),
    subnet("lid-changes", Outcome::Recovers, "fault; until_true 30 port lid 0x77 && unhurt", || {
        Command::pair("ibv_rc_pingpong -n 100", 18515)
    }),
    // The partition of one is not that of the other.
    subnet("pkey-changes", Outcome::GivesUp, "fault; until_true 30 port pkeys/0 0x8001 && unhurt", || {
        let client = format!("fails ibv_rc_pingpong -n 100 {HOST}");
        Command::sides("ibv_rc_pingpong -n 100", Ready::Tcp(18515), &client).that_stays()
    }),
];

/// An adapter that is taken out of its slot, and put in again.
const PLUGGED: &[Row] = &[
    patient(
        "adapter-ejected",
        Outcome::Recovers,
        "fault; said '[Bb]utton press' && until_true 120 fails present && until_true 120 present &&
        until_true 60 up && traffic && unhurt",
    ),
    // Work upon the transmit timeout has the lock of network devices and waits for devlink's, which the removal has.
    patient(
        "adapter-removed",
        Outcome::Recovers,
        "fault; said 'Card not present' && until_true 120 fails present && until_true 120 present &&
        until_true 60 up && traffic && unhurt",
    )
    .but(
        "6.1",
        Outcome::Bug,
        // In some runs only.
        "fault; said 'Card not present' && if until_true 120 fails present; then
            until_true 120 present && until_true 60 up && traffic
        else
            said 'TX timeout' && until_true 200 sh -c \"dmesg | grep -q 'Workqueue: mlx5e mlx5e_tx_timeout_work'\"
        fi",
    ),
];

/// Firmware that answers late or no more, and buses that are away.
const AILING: &[Row] = &[
    patient("reset-is-slow", Outcome::Recovers, "unload && fault; reset && load && traffic && unhurt"),
    patient(
        "health-counter-frozen",
        Outcome::Recovers,
        "fault; said 'reached miss count' && traffic && sleep 20 && reopen && traffic && unhurt",
    ),
    patient(
        "off-the-bus",
        Outcome::Recovers,
        "sleep 70; fault; said 'health recovery succeeded' && { up; ip link set hca0 up; traffic; } && unhurt",
    ),
    patient(
        "firmware-asks-for-reset",
        Outcome::Recovers,
        "sleep 70; fault; said 'health recovery succeeded' && { up; ip link set hca0 up; traffic; } && unhurt",
    ),
    patient("slow-start", Outcome::Recovers, "unload && fault; reset && load && traffic && unhurt"),
    patient(
        "firmware-error-stays",
        Outcome::GivesUp,
        "fault; until_true 60 heard fw && fails ethtool -m hca0 && said 'ACCESS_REG.*timeout' && unhurt",
    )
    .but(
        "6.1",
        Outcome::Bug,
        // It says that no byte was read, where it should say the error: ethtool prints what else lies there, and is content.
        "fault; until_true 60 heard fw && ethtool -m hca0 && said 'query_module_eeprom_by_page failed' &&
            said 'ACCESS_REG.*timeout' && unhurt",
    ),
];

/// What the adapter never comes back from.
const HANGING: &[Row] = &[patient(
    "reset-hangs",
    Outcome::GivesUp,
    "unload && fault; reset; said 'not ready .*giving up' && fails load && unhurt",
)];

/// Between two guests, of which the adapter of the first fails.
pub fn cases(kernel: &str) -> Vec<Case> {
    BOOTS.iter().flat_map(|boot| boot_cases(boot, kernel)).collect()
}

fn boot_cases(Boot { topology, rows }: &Boot, kernel: &str) -> Vec<Case> {
    let rows = rows.iter().filter(|row| is_chosen(row.fault));
    let commands: Vec<Command> =
        rows.flat_map(|row| [Some(command(row, kernel)), behind(row)]).flatten().collect();
    if commands.is_empty() {
        return Vec::new();
    }
    match report(&FILES, &[], &[], topology, kernel, &commands) {
        Ok(report) => ended("", topology, &commands, &report),
        Err(error) => vec![Case::check("set up", format!("{error:#}"))],
    }
}

fn behind(Row { fault, then, .. }: &Row) -> Option<Command> {
    then.map(|then| then().named(format!("{fault}: ibv_rc_pingpong")))
}

fn command(Row { fault, outcome, script, limit, but, .. }: &Row, kernel: &str) -> Command {
    let other = but.filter(|(only, ..)| *only == kernel);
    let (outcome, script) = other.map_or((*outcome, *script), |(_, outcome, script)| (outcome, script));
    let outcome = match outcome {
        Outcome::Recovers => "recovers",
        Outcome::GivesUp => "gives up cleanly",
        Outcome::Bug => "has a bug",
    };
    let path = file(&format!("../qemu-configs/faults/{fault}.toml"));
    let script = format!("trap 'dmesg | tail -n 40' EXIT; . /root/ethernet.sh; . /root/faults.sh; {script}");
    Command::alone(format!("{fault}: {outcome}"), script)
        .with_outside(format!("softhca ctl fault load --now {}", quoted(&path.display().to_string())))
        .within(*limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_a_row_and_each_row_a_file() {
        let mut rows: Vec<&str> = BOOTS.iter().flat_map(|boot| boot.rows).map(|row| row.fault).collect();
        rows.sort_unstable();
        let gallery = file("../qemu-configs/faults");
        let mut files: Vec<String> = gallery
            .read_dir()
            .unwrap_or_else(|error| panic!("{}: {error}", gallery.display()))
            .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
            .collect();
        files.sort_unstable();
        assert_eq!(rows, files);
    }
}
