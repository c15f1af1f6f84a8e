//! The documents of the project: what of them is generated, whether their links lead somewhere, and the book.
//!
//! Pages are Markdown files. What can be read from the code stands in *generated blocks* ([`blocks`]):
//!
//! ```text
//! <!-- generated: layout Eqe -->
//! ...
//! <!-- /generated -->
//! ```
//!
//! `cargo run -p hca-docs -- update` fills them, a test fails when a page does not say what the code says. It draws pictures of what was
//! measured, too ([`charts`]).
//! [`links`] checks every relative link of every page, [`book`] builds `docs` with mdBook. A page of the book may be a
//! symbolic link to a page that lives beside the code it is about.
//!
//! Not here: the documentation of the crates' items (`cargo doc`), and links to other machines.
#![forbid(unsafe_code)]

pub mod blocks;
pub mod book;
pub mod capabilities;
pub mod charts;
pub mod commands;
pub mod coverage;
pub mod fields;
pub mod layouts;
pub mod links;
pub mod rooms;
pub mod rules;
pub mod source;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the crate lies in docs/tool")
}

/// Every Markdown file of the project below `root`, in order. Symbolic links are not followed.
///
/// # Errors
/// A folder that can't be read.
pub fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    files(root, "md")
}

/// Every file below `folder` whose name ends with `.extension`, in order; not those in `target` or a hidden folder.
///
/// # Errors
/// A folder that can't be read.
pub fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let name = entry.file_name();
            let hidden = name == "target" || name.to_string_lossy().starts_with('.');
            if kind.is_dir() && !hidden {
                folders.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
