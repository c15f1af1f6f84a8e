//! The command line of the launcher.

mod cli;
#[cfg(test)]
#[path = "../../packaging/pages.rs"]
mod pages;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::main() {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("hca-vm: error: {error:#}");
            ExitCode::from(2)
        }
    }
}
