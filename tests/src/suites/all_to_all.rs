//! 64 adapters and 8 switches in one process: everyone sends to everyone, every byte is checked.

use std::time::Instant;

use super::{Case, Outcome};
use crate::fabric64;

/// Messages of each of the 4032 connections, and bytes of each.
const MESSAGES: usize = 4;
const LEN: usize = 6000;

/// In virtual time; what it took is said.
pub fn cases() -> Vec<Case> {
    const NAME: &str = "64 adapters, 8 switches";
    let start = Instant::now();
    let result = std::panic::catch_unwind(|| fabric64::run(1, MESSAGES, LEN));
    let seconds = start.elapsed().as_secs_f64();
    vec![match result {
        Ok(Ok(report)) => {
            println!("{report}");
            Case::new(NAME, Outcome::Passed, seconds, report.to_string())
        }
        Ok(Err(error)) => Case::new(NAME, Outcome::Failed, seconds, error.to_string()),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Case::new(NAME, Outcome::Failed, seconds, words.unwrap_or_default())
        }
    }]
}
