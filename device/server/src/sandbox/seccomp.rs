//! Filters of system calls (seccomp(2)): which a process may make, and with which arguments.
//!
//! A call that is not on the list of a role ends the process. Some get an error instead: libraries try them and go on
//! without.

use std::collections::BTreeMap;

use anyhow::{Context, anyhow};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

use super::calls::List;

/// Calls, each with rules of which one has to hold; none: with any arguments.
pub(super) type Calls = BTreeMap<i64, Vec<SeccompRule>>;

/// Sets the filter of a list for all threads, for good.
///
/// # Errors
/// The kernel has no filters, or refuses.
pub(super) fn filter(list: List) -> anyhow::Result<()> {
    let List { mut allowed, refused } = list;
    let mut errors: BTreeMap<i32, Calls> = BTreeMap::new();
    for (call, errno) in refused {
        errors.entry(errno).or_default().insert(call, Vec::new());
        allowed.insert(call, Vec::new());
    }
    let mut programs = Vec::new();
    for (errno, calls) in errors {
        let error = SeccompAction::Errno(u32::try_from(errno).context("errno")?);
        programs.push(program(calls, SeccompAction::Allow, error)?);
    }
    // The strictest answer of several filters counts. This one comes last: with it no other can be set.
    programs.push(program(allowed, SeccompAction::KillProcess, SeccompAction::Allow)?);
    programs.iter().try_for_each(|program| apply_filter_all_threads(program).map_err(failed))
}

/// `of_others` is done with all calls but these.
fn program(calls: Calls, of_others: SeccompAction, of_these: SeccompAction) -> anyhow::Result<BpfProgram> {
    let machine: TargetArch = std::env::consts::ARCH.try_into().map_err(failed)?;
    let filter = SeccompFilter::new(calls, of_others, of_these, machine).map_err(failed)?;
    filter.try_into().map_err(failed)
}

fn failed(why: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("system calls can't be filtered: {why}")
}
