//! The whole matrix of simulated networks ([`crate::netsim`]), in virtual time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::{Case, Outcome};
use crate::netsim::{self, Cell};

/// The history that every cell plays; others are a matter of `--example netsim`.
const SEED: u64 = 1;

/// One case for each cell.
pub fn cases() -> Vec<Case> {
    let cells = netsim::matrix();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let case = play(cell);
                    done.lock().unwrap_or_else(|e| e.into_inner()).push(case);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(|e| e.into_inner())
}

fn play(cell: &Cell) -> Case {
    let began = Instant::now();
    let (outcome, detail) = match netsim::run(cell, SEED) {
        Ok(report) => (Outcome::Passed, format!("{report:?}")),
        Err(failure) => (Outcome::Failed, failure.to_string()),
    };
    Case::new(cell.to_string(), outcome, began.elapsed().as_secs_f64(), detail)
}
