//! Which package is meant by `--kernel`: the newest of a series, or one by its name.
//!
//! What was found is kept for as long as package indexes count as fresh; without a network what was found last goes on.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Result, bail};

use crate::apt::{Apt, Candidate, INDEX_AGE};
use crate::cache::Cache;
use crate::progress;

/// A kernel of Debian's archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The newest generic one of a series, such as 6.12.
    Series(u32, u32),
    /// That package, `linux-image-*`, whatever its flavour.
    Package(String),
}

/// Where a kernel is looked for: releases with their security updates, and their backports.
const OLDER: &[&str] = &["bookworm", "bookworm-security"];
const OLDER_BACKPORTS: &[&str] = &["bookworm", "bookworm-security", "bookworm-backports"];
const NEWER: &[&str] = &["trixie", "trixie-security", "trixie-backports"];
/// Flavours that are taken by their names only.
const OTHERS: [&str; 5] = ["-cloud-", "-rt-", "-dbg", "-unsigned", "~"];

impl Wanted {
    /// What this is called in errors and file names.
    fn name(&self) -> String {
        match self {
            Self::Series(major, minor) => format!("linux-{major}.{minor}"),
            Self::Package(name) => name.clone(),
        }
    }

    /// The suites that have it.
    pub(super) fn suites(&self) -> &'static [&'static str] {
        // Newer kernels that were made for Debian 12 say so in their names.
        if matches!(self, Self::Package(name) if name.contains("+deb12")) {
            return OLDER_BACKPORTS;
        }
        // 6.1 is the kernel of Debian 12; everything newer is in Debian 13 or its backports.
        let series = match self {
            Self::Series(major, minor) => Some((*major, *minor)),
            Self::Package(name) => match numbers(name).as_slice() {
                [major, minor, ..] => u32::try_from(*major).ok().zip(u32::try_from(*minor).ok()),
                _ => None,
            },
        };
        if series.is_some_and(|series| series < (6, 12)) { OLDER } else { NEWER }
    }

    /// A private apt that can install it.
    pub(super) fn apt(&self, cache: &Cache) -> Apt {
        apt(cache, self.suites())
    }

    /// The package, asking the archive if that was not done lately.
    ///
    /// # Errors
    /// There is none, or the archive can't be asked and never was.
    pub(super) fn find(&self, cache: &Cache) -> Result<Candidate> {
        let known = self.known(cache);
        if let Some((found, true)) = known {
            return Ok(found);
        }
        match (self.ask(cache), known) {
            (Ok(found), _) => {
                fs::write(self.note(cache), format!("{} {}\n", found.name, found.version))?;
                Ok(found)
            }
            (Err(error), Some((found, _))) => {
                progress::note(&format!(
                    "cannot ask for a newer kernel, taking {} {}: {error:#}",
                    found.name, found.version
                ));
                Ok(found)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// What was found the last time, and whether that was lately.
    pub(super) fn known(&self, cache: &Cache) -> Option<(Candidate, bool)> {
        let note = self.note(cache);
        let text = fs::read_to_string(&note).ok()?;
        let (name, version) = text.trim().split_once(' ')?;
        let asked = fs::metadata(&note).and_then(|meta| meta.modified()).ok()?;
        let is_fresh = SystemTime::now().duration_since(asked).is_ok_and(|age| age < INDEX_AGE);
        Some((Candidate { name: name.to_owned(), version: version.to_owned() }, is_fresh))
    }

    fn note(&self, cache: &Cache) -> PathBuf {
        cache.root().join("apt").join(format!("{}.found", self.name()))
    }

    fn ask(&self, cache: &Cache) -> Result<Candidate> {
        let pattern = match self {
            Self::Series(major, minor) => format!("^linux-image-{major}\\.{minor}[.-].*-amd64$"),
            Self::Package(name) => format!("^{}$", name.replace('.', "\\.").replace('+', "\\+")),
        };
        let found = self.apt(cache).search(&pattern)?;
        let newest = match self {
            Self::Series(..) => newest(&found),
            Self::Package(_) => found.first(),
        };
        match newest {
            Some(newest) => Ok(newest.clone()),
            None => bail!(
                "no kernel {} among the packages of {}; the archive has the series {}. A package's name, a .deb file \
                 or a folder can be given instead",
                self.name().trim_start_matches("linux-"),
                self.suites().join(", "),
                offered(cache).join(", ")
            ),
        }
    }
}

fn apt(cache: &Cache, suites: &[&str]) -> Apt {
    let apt = Apt::new(cache, suites);
    // A kernel from backports needs helpers of its own age.
    match suites.iter().find(|suite| suite.ends_with("-backports")) {
        Some(backports) => apt.prefer(backports),
        None => apt,
    }
}

/// Every kernel for x86-64 of the archives in reach, of all flavours, oldest first.
///
/// # Errors
/// The archive can't be asked.
pub fn all(cache: &Cache) -> Result<Vec<Candidate>> {
    let mut all = Vec::new();
    for suites in [OLDER, OLDER_BACKPORTS, NEWER] {
        let found = match apt(cache, suites).search("^linux-image-[0-9].*-amd64$") {
            // Archives let go of the backports of an older release before they let go of the release.
            Err(error) if suites == OLDER_BACKPORTS => {
                progress::note(&format!("no kernels of {}: {error:#}", suites.join(", ")));
                Vec::new()
            }
            found => found?,
        };
        all.extend(
            found.into_iter().filter(|one| !["-dbg", "-unsigned"].iter().any(|part| one.name.contains(part))),
        );
    }
    all.sort_by_key(|one| (numbers(&one.version), one.name.clone()));
    all.dedup();
    Ok(all)
}

/// The series that there are, as far as the archive can be asked.
fn offered(cache: &Cache) -> Vec<String> {
    let mut all: Vec<_> = all(cache)
        .unwrap_or_default()
        .iter()
        .filter_map(|one| Some((*numbers(&one.version).first()?, *numbers(&one.version).get(1)?)))
        .collect();
    all.sort_unstable();
    all.dedup();
    all.iter().map(|(major, minor)| format!("{major}.{minor}")).collect()
}

/// The newest of these packages by its version, leaving out the cloud, realtime and debug flavours.
fn newest(found: &[Candidate]) -> Option<&Candidate> {
    found
        .iter()
        .filter(|one| !OTHERS.iter().any(|part| one.name.contains(part)))
        .max_by_key(|one| numbers(&one.version))
}

/// The numbers in a text, for ordering versions.
pub(super) fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, version: &str) -> Candidate {
        Candidate { name: name.into(), version: version.into() }
    }

    #[test]
    fn newest_is_by_version_and_of_the_generic_flavour() {
        let found = [
            candidate("linux-image-6.1.0-50-amd64", "6.1.176-1"),
            candidate("linux-image-6.1.0-9-amd64", "6.1.192-1"),
            candidate("linux-image-6.1.0-60-cloud-amd64", "6.1.200-1"),
            candidate("linux-image-6.1.0-61-rt-amd64", "6.1.201-1"),
        ];
        assert_eq!(newest(&found), Some(&found[1]));
        assert_eq!(newest(&[]), None);
    }

    #[test]
    fn suites_of_a_series() {
        assert_eq!(Wanted::Series(6, 1).suites(), OLDER);
        assert_eq!(Wanted::Series(6, 12).suites(), NEWER);
        assert_eq!(Wanted::Package("linux-image-6.1.0-50-rt-amd64".into()).suites(), OLDER);
        assert_eq!(Wanted::Package("linux-image-6.12.117+deb12-amd64".into()).suites(), OLDER_BACKPORTS);
        assert_eq!(Wanted::Package("linux-image-6.12.117+deb13-amd64".into()).suites(), NEWER);
        assert_eq!(Wanted::Package("linux-image-7.2.12+deb13-cloud-amd64".into()).suites(), NEWER);
    }

    #[test]
    fn what_was_found_is_kept() {
        let dir = std::env::temp_dir().join(format!("hca-vm-series-{}", std::process::id()));
        let cache = Cache::at(dir.clone()).unwrap();
        let wanted = Wanted::Series(6, 1);
        assert_eq!(wanted.known(&cache), None);
        fs::create_dir_all(cache.root().join("apt")).unwrap();
        fs::write(wanted.note(&cache), "linux-image-x 6.1.192-1\n").unwrap();
        assert_eq!(wanted.known(&cache), Some((candidate("linux-image-x", "6.1.192-1"), true)));
        assert_eq!(wanted.find(&cache).unwrap().version, "6.1.192-1");
        fs::remove_dir_all(dir).unwrap();
    }
}
