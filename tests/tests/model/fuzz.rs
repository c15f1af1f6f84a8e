//! The fuzz targets, each for a fixed number of seeded inputs: the same ones on every machine.
//!
//! `HCA_FUZZ_ROUNDS=100` makes it a hundred times as many; `cargo fuzz` in `tests/fuzz` looks further.

use hca_tests::fuzz;
use hca_tests::fuzz::feed::seeded;

/// What the fuzzers change bytes in is valid: a template is refused for the state of things only.
#[test]
pub(crate) fn templates_are_valid() {
    use hca_spec::command::Status::*;
    let of_state = [Ok, BadSystemState, ResourceBusy, BadResourceState, BadQpState, NoResources];
    let of_state = of_state.map(|status| status as u32);
    let statuses = fuzz::template_statuses();
    for (name, status) in &statuses {
        let nothing_to_change = *name == "MODIFY_GENERAL_OBJECT";
        let not_joined = *name == "DETACH_FROM_MCG" && *status == BadResource as u32;
        assert!(of_state.contains(status) || nothing_to_change || not_joined, "{name}: {status:#x}");
    }
    let good = statuses.iter().filter(|(_, status)| *status == 0).count();
    assert!(good > statuses.len() / 2, "{good} of {}", statuses.len());
}

/// Runs `target` on `count` inputs of up to `longest` bytes; names the input that panics.
fn run(target: fn(&[u8]), count: u64, longest: u64) {
    let rounds = std::env::var("HCA_FUZZ_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(1);
    for seed in 0..count * rounds {
        let input = seeded(seed, (seed * 7919 % longest) as usize);
        let outcome = std::panic::catch_unwind(|| target(&input));
        assert!(outcome.is_ok(), "seed {seed}, {} bytes", input.len());
    }
}

#[test]
pub(crate) fn command_mailboxes() {
    run(fuzz::command_mailbox, 1500, 700);
}

#[test]
pub(crate) fn fields() {
    run(fuzz::fields, 1000, 1500);
}

/// One by one: what no fuzzer may miss.
#[test]
fn every_field_of_the_table_at_its_edges() {
    let fields = fuzz::every_field_at_its_edges();
    assert!(fields > 3000, "{fields}");
}

#[test]
fn steering_entries() {
    run(fuzz::entries, 300, 6000);
}

#[test]
pub(crate) fn work_queue_entries() {
    run(fuzz::wqe, 250, 3000);
}

#[test]
pub(crate) fn register_accesses() {
    run(fuzz::mmio, 250, 1500);
}

#[test]
pub(crate) fn packets() {
    run(fuzz::packet, 250, 2500);
}

#[test]
pub(crate) fn management_datagrams() {
    run(fuzz::management, 1000, 6000);
}

#[test]
pub(crate) fn frames_from_outside() {
    run(fuzz::outside, 500, 6000);
}

#[test]
pub(crate) fn network_links() {
    run(fuzz::network_link, 300, 6000);
}

#[test]
pub(crate) fn tunnels() {
    run(fuzz::tunnel, 300, 6000);
}

#[test]
pub(crate) fn hosts_elsewhere() {
    run(fuzz::host, 60, 3000);
}
