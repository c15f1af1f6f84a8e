//! The sandbox: what can't be done in it, and what still can.
//!
//! It is entered for good, and by a process with one thread. So this program starts itself again for each attempt and
//! each server, and has no harness.

#[path = "../common/mod.rs"]
mod common;

mod attempts;
mod forbidden;
mod scene;
mod server;
mod serving;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// The tests, by name.
type Tests = &'static [(&'static str, fn())];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--attempt", name, role, dir] => forbidden::attempt(name, role, dir.as_ref()),
        ["--serve", dir, ref options @ ..] => server::serve(dir.as_ref(), options),
        // What `cargo test` passes on: parts of names.
        ref filters => run(filters),
    }
}

fn run(filters: &[&str]) -> ExitCode {
    let filters: Vec<_> = filters.iter().filter(|word| !word.starts_with('-')).collect();
    let mut failed = 0;
    for (name, test) in [forbidden::TESTS, serving::TESTS].into_iter().flatten() {
        if !filters.is_empty() && !filters.iter().any(|part| name.contains(**part)) {
            continue;
        }
        let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    ExitCode::from(u8::from(failed > 0))
}
