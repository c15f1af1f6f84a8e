//! Writes the manual pages and completions of `hca-vm`: `cargo run -p hca-vm --example hca-vm-pages -- DIR`.
#![allow(dead_code, unused_imports)] // the program's file, of which only the command line is used

#[path = "../src/cli.rs"]
mod cli;
#[path = "../../packaging/pages.rs"]
mod pages;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("the folder to write to is needed")?;
    pages::write(<cli::Cli as clap::CommandFactory>::command(), folder.as_ref())
}
