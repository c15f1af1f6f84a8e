//! `hca-docs`: fills the generated blocks of the pages, checks the pages, builds the book.

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

/// Builds the book, fills its generated tables and checks its links.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write what the code says into the generated blocks of the pages, and draw what was measured.
    Update,
    /// Say which pages have old blocks, which pictures are old, and which links lead nowhere.
    Check,
    /// Check, then build the book into target/book.
    Build,
}

fn main() -> Result<()> {
    let root = hca_docs::root();
    match Cli::parse().command {
        Command::Update => {
            for page in hca_docs::blocks::update(&root)? {
                println!("changed: {page}");
            }
            for picture in hca_docs::charts::update(&root)? {
                println!("changed: {picture}");
            }
        }
        Command::Check => check(&root)?,
        Command::Build => {
            check(&root)?;
            let to = hca_docs::book::build(&root)?;
            println!("book: {}", to.display());
        }
    }
    Ok(())
}

fn check(root: &std::path::Path) -> Result<()> {
    let mut wrong = hca_docs::blocks::stale(root)?;
    wrong.extend(hca_docs::charts::stale(root)?);
    wrong.extend(hca_docs::links::broken(root)?);
    wrong.extend(hca_docs::book::unlisted(root)?);
    for line in &wrong {
        eprintln!("{line}");
    }
    if !wrong.is_empty() {
        bail!("{} mistakes in the pages", wrong.len());
    }
    Ok(())
}
