//! Files that go with their test.

use std::fs;
use std::path::{Path, PathBuf};

/// The path of a file, which is removed when this is dropped.
pub struct Temporary(PathBuf);

impl Temporary {
    /// A path with a name that is this process's and ends with `name`. Nothing is there yet.
    pub fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("softhca-{}-{name}", std::process::id())))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What it holds.
    pub fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap_or_else(|error| panic!("{}: {error}", self.0.display()))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}
