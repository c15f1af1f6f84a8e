//! `softhca syndrome`: what a syndrome means that a driver has printed.
//!
//! The pages of the interface are the tables: those of refused commands and of completions with error are made from the code
//! and tested against it (`cargo test -p hca-docs`).

use std::fmt::Write as _;

use clap::Args;
use hca_spec::cqe::Syndrome as CqeSyndrome;
use hca_spec::rules::RULES;
use serde_json::json;

use crate::cli::print;

const COMMANDS: &str = include_str!("../../../specs/doc/command-reference.md");
const COMPLETIONS: &str = include_str!("../../../specs/doc/cqe.md");
/// Syndromes of completions are 8 bits wide; those of commands are hashes.
const LARGEST_OF_COMPLETIONS: u32 = 0xff;

/// Explain a syndrome that a driver has printed, or a rule that a diagnosis names
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    softhca syndrome 0x3096efaf\n      \
    the kernel's \"CREATE_EQ(0x301) failed, status bad input length, syndrome (0x3096efaf)\"\n  \
    softhca syndrome 0x15\n      \
    a completion with error: its syndrome, and the vendor's\n  \
    softhca syndrome send-counter\n      \
    a rule, in brackets at the end of what the checker says")]
pub(crate) struct Syndrome {
    /// The number, as 0x... or decimal, or the name of a rule
    what: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is known of a number.
#[derive(Debug, PartialEq, Eq)]
struct Meaning {
    /// Status of the command, or what kind of thing it is.
    status: String,
    /// In words.
    reason: String,
    /// Page of `specs/doc`.
    page: String,
}

/// Does what `softhca syndrome` is asked for.
///
/// # Errors
/// No number, or one that nothing here gives.
pub(crate) fn run(args: &Syndrome) -> anyhow::Result<()> {
    let meanings = meanings(&args.what)?;
    if args.json {
        let all = meanings.iter().map(|m| json!({"status": m.status, "reason": m.reason, "page": m.page}));
        return print(&serde_json::to_string_pretty(&all.collect::<Vec<_>>())?);
    }
    let mut out = String::new();
    for Meaning { status, reason, page } in meanings {
        writeln!(out, "{status}: {reason}\n  specs/doc/{page}")?;
    }
    print(out.trim_end())
}

fn meanings(what: &str) -> anyhow::Result<Vec<Meaning>> {
    if let Some(rule) = RULES.iter().find(|rule| rule.name == what) {
        let (status, page) = (format!("rule {}", rule.name), rule.page.into());
        return Ok(vec![Meaning { status, reason: rule.says.into(), page }]);
    }
    let number = match what.strip_prefix("0x").or(what.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => what.parse(),
    };
    let Ok(number) = number else {
        let rules: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        anyhow::bail!(
            "{what:?} is neither a 32-bit number (0x3096efaf) nor a rule; rules: {}",
            rules.join(", ")
        );
    };
    let found = if number <= LARGEST_OF_COMPLETIONS { of_completions(number) } else { of_commands(number) };
    anyhow::ensure!(
        !found.is_empty(),
        "{what}: no command of this version is refused with that syndrome, and no completion has it; \
         syndromes of commands are hashes of their reasons and change with them: ask the version that gave it, or read its log"
    );
    Ok(found)
}

/// Cells of the rows of a page's tables, each with the heading that it stands under.
fn rows(page: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    let mut heading = "";
    page.lines().filter_map(move |line| {
        if let Some(text) = line.strip_prefix('#') {
            heading = text.trim_start_matches('#').trim();
        }
        let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
        Some((heading, row.split(" | ").collect()))
    })
}

/// The refusals of commands with that syndrome: one, but for reasons with equal hashes.
fn of_commands(number: u32) -> Vec<Meaning> {
    let wanted = format!("{number:#010x}");
    let refusal = |(heading, cells): (&str, Vec<&str>)| match cells[..] {
        [status, syndrome, reason] if syndrome == wanted => Some(Meaning {
            status: status.into(),
            reason: reason.replace('\\', ""),
            page: format!("command-reference.md, {heading}"),
        }),
        _ => None,
    };
    rows(COMMANDS).filter_map(refusal).collect()
}

/// Completions with that syndrome, and those with which the vendor's syndrome is that number.
fn of_completions(number: u32) -> Vec<Meaning> {
    let describe = |syndrome: CqeSyndrome, status: String| {
        let name = format!("`{syndrome:?}`");
        let row = rows(COMPLETIONS).find(|(_, cells)| cells.get(1) == Some(&name.as_str()));
        let reason = row.and_then(|(_, cells)| cells.last().map(|text| (*text).to_owned()));
        Meaning { status, reason: reason.unwrap_or_default(), page: "cqe.md, Which fields mean what".into() }
    };
    let own = CqeSyndrome::from_bits(number)
        .map(|syndrome| describe(syndrome, format!("completion with error, syndrome {syndrome:?}")));
    let of_vendor = (1..=LARGEST_OF_COMPLETIONS)
        .filter_map(CqeSyndrome::from_bits)
        .filter(|syndrome| number != 0 && u32::from(syndrome.vendor()) == number)
        .map(|syndrome| {
            describe(
                syndrome,
                format!("vendor syndrome of a completion with error, mostly with {syndrome:?}"),
            )
        });
    own.into_iter().chain(of_vendor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_commands_completions_and_the_vendor() {
        let [refusal] = &meanings("0x3096efaf").unwrap()[..] else { panic!("one meaning") };
        assert_eq!(refusal.status, "BAD_INPUT_LEN");
        assert!(refusal.reason.contains("shorter"), "{refusal:?}");
        let [retry] = &meanings("21").unwrap()[..] else { panic!("one meaning") };
        assert!(
            retry.status.ends_with("TransportRetryExceeded") && retry.reason.contains("retries"),
            "{retry:?}"
        );
        let [vendor] = &meanings("0x81").unwrap()[..] else { panic!("one meaning") };
        assert!(vendor.status.starts_with("vendor syndrome"), "{vendor:?}");
        assert_eq!(meanings("send-counter").unwrap().len(), 1);
    }

    #[test]
    fn every_syndrome_of_a_completion_is_explained() {
        for number in 0..=LARGEST_OF_COMPLETIONS {
            assert!(of_completions(number).iter().all(|m| !m.reason.is_empty()), "{number:#x}");
        }
    }

    #[test]
    fn what_is_unknown_is_an_error_that_says_what_to_do() {
        assert!(meanings("0x12345678").unwrap_err().to_string().contains("log"));
        assert!(meanings("often").unwrap_err().to_string().contains("send-counter"));
    }
}
