//! The cache directory: where everything that takes long to make is kept.
//!
//! Layout below `$XDG_CACHE_HOME/softhca` (or `~/.cache/softhca`):
//! `apt/` private package indexes, `debs/` downloaded packages, and one folder per finished artefact
//! named `<kind>-<hash of its recipe>`. A folder appears under its final name only when it is complete;
//! programs that want the same one at the same time wait for the first.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::progress;

/// Handle on the cache directory.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens (and creates) the user's cache directory, following the XDG base directory rules.
    pub fn open() -> Result<Self> {
        let base = match std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from) {
            // The XDG specification says that relative values are to be ignored.
            Some(dir) if dir.is_absolute() => dir,
            _ => match std::env::var_os("HOME") {
                Some(home) if !home.is_empty() => PathBuf::from(home).join(".cache"),
                _ => bail!("neither XDG_CACHE_HOME nor HOME is set; set one to say where to cache guests"),
            },
        };
        Self::at(base.join("softhca"))
    }

    /// Opens a cache in a given directory.
    pub fn at(root: PathBuf) -> Result<Self> {
        fs::create_dir_all(root.join("locks"))
            .with_context(|| format!("cannot create the cache directory {}", root.display()))?;
        let root = root.canonicalize()?;
        Ok(Self { root })
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the artefact with this kind and recipe is, or would be.
    pub fn path_of(&self, kind: &str, recipe: &str) -> PathBuf {
        self.root.join(format!("{kind}-{:016x}", fingerprint(recipe)))
    }

    /// Returns the artefact's folder, making it first if it isn't there.
    ///
    /// `build` gets an empty temporary folder, which becomes the artefact by a rename when it succeeds. The
    /// recipe is everything that decides the content; it is written into the folder as `recipe`.
    pub fn get_or_build(
        &self,
        kind: &str,
        recipe: &str,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let done = self.path_of(kind, recipe);
        if done.is_dir() {
            return Ok(done);
        }
        let _lock = self.lock(kind)?;
        if done.is_dir() {
            return Ok(done);
        }
        // Left by a run that was killed: nobody else can be using it while we hold the lock.
        let temporary = self.root.join(format!(".building-{kind}"));
        remove_tree(&temporary)?;
        fs::create_dir_all(&temporary)?;
        build(&temporary)?;
        fs::write(temporary.join("recipe"), recipe)?;
        fs::rename(&temporary, &done)
            .with_context(|| format!("cannot move the finished {kind} to {}", done.display()))?;
        Ok(done)
    }

    /// Takes the named lock, waiting (and saying so) while another process holds it.
    pub fn lock(&self, name: &str) -> Result<File> {
        let path = self.root.join("locks").join(format!("{name}.lock"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open the lock file {}", path.display()))?;
        if file.try_lock().is_err() {
            progress::note(&format!("another hca-vm is preparing '{name}'; waiting for it"));
            file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(file)
    }
}

/// Removes a folder of unpacked packages, whose directories may lack write permission.
pub fn remove_tree(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fn make_writable(path: &Path) -> std::io::Result<()> {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o755))?;
                make_writable(&entry.path())?;
            }
        }
        Ok(())
    }
    if !path.exists() {
        return Ok(());
    }
    make_writable(path)
        .and_then(|()| fs::remove_dir_all(path))
        .with_context(|| format!("cannot remove {}", path.display()))
}

/// 64-bit FNV-1a: stable between Rust releases, which is all a cache key needs.
fn fingerprint(text: &str) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    text.bytes().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> Cache {
        let dir = std::env::temp_dir().join(format!("hca-vm-cache-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Cache::at(dir).unwrap()
    }

    #[test]
    fn fingerprint_is_the_published_fnv1a() {
        assert_eq!(fingerprint(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint("a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn builds_once_and_only_on_success() {
        let cache = scratch("once");
        assert!(cache.get_or_build("x", "r", |_| bail!("no")).is_err());
        assert!(!cache.path_of("x", "r").exists());
        let first = cache.get_or_build("x", "r", |dir| Ok(fs::write(dir.join("f"), "1")?)).unwrap();
        let second = cache.get_or_build("x", "r", |_| bail!("must not build again")).unwrap();
        assert_eq!(first, second);
        assert_eq!(fs::read_to_string(first.join("f")).unwrap(), "1");
        assert_ne!(cache.path_of("x", "r"), cache.path_of("x", "s"));
        fs::remove_dir_all(cache.root()).unwrap();
    }
}
