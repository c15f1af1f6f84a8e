//! Adapters that fail on script: the gallery of `qemu-configs/faults`, and what the stock driver makes of each.

use super::Case;
use super::guest::{Command, ended, report};
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
}

const fn row(fault: &'static str, outcome: Outcome, script: &'static str) -> Row {
    Row { fault, outcome, script }
}

/// In this order, in one boot: those that the driver gets over first.
const ROWS: [Row; 16] = [
    row(
        "tx-error-cqe",
        Outcome::Recovers,
        "fault; provoke; said 'ERR CQE on SQ' && counted tx && traffic && unhurt",
    ),
    row("rx-error-cqe", Outcome::Recovers, "fault; provoke; counted rx && traffic && unhurt"),
    row("unknown-event", Outcome::Recovers, "fault; traffic && unhurt"),
    row("module-unplugged", Outcome::Recovers, "fault; traffic && unhurt"),
    row("module-overheats", Outcome::Recovers, "fault; traffic && unhurt"),
    row("temperature", Outcome::Recovers, "fault; traffic && unhurt"),
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
    // cmd_ent_put() of what the first event has released already.
    row(
        "command-event-twice",
        Outcome::Bug,
        "fault; for i in 1 2 3 4 5; do ip -s link show hca0; sleep 1; done; said 'refcount_t: underflow'",
    ),
];

/// Between two guests, of which the adapter of the first fails.
pub fn cases(kernel: &str) -> Vec<Case> {
    let commands: Vec<Command> = ROWS.iter().map(command).collect();
    match report(&FILES, &[], &[], "eth-two-hosts", kernel, &commands) {
        Ok(report) => ended("", "eth-two-hosts", &commands, &report),
        Err(error) => vec![Case::check("set up", format!("{error:#}"))],
    }
}

fn command(Row { fault, outcome, script }: &Row) -> Command {
    let outcome = match outcome {
        Outcome::Recovers => "recovers",
        Outcome::GivesUp => "gives up cleanly",
        Outcome::Bug => "has a bug",
    };
    let path = file(&format!("../qemu-configs/faults/{fault}.toml"));
    let script = format!("trap 'dmesg | tail -n 40' EXIT; . /root/ethernet.sh; . /root/faults.sh; {script}");
    Command::alone(format!("{fault}: {outcome}"), script).with_outside(format!(
        "softhca ctl fault load --now {}",
        super::guest::quoted(&path.display().to_string())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_file_and_each_is_once() {
        for Row { fault, .. } in &ROWS {
            assert!(file(&format!("../qemu-configs/faults/{fault}.toml")).is_file(), "{fault}");
            assert_eq!(ROWS.iter().filter(|row| row.fault == *fault).count(), 1, "{fault}");
        }
    }
}
