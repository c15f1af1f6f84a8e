//! Debian packages without root: the machine's own apt with a private state, into the cache directory only.
//!
//! Proxy, authentication and the like come from the machine's apt configuration, which apt reads before
//! the file we pass with `-c`. Nothing is installed: packages are resolved against an empty dpkg status,
//! downloaded, verified by apt, and unpacked with `dpkg-deb`. Maintainer scripts never run on this machine.

pub mod sources;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};

use crate::cache::Cache;
use crate::child::tie;
use crate::progress::Step;

/// Package indexes older than this are fetched again before packages are resolved.
pub(crate) const INDEX_AGE: Duration = Duration::from_secs(24 * 3600);

/// A private apt for one set of suites.
pub struct Apt {
    cache: Cache,
    dir: PathBuf,
    suites: Vec<String>,
    prefer: Option<String>,
}

/// One resolved package file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Address it comes from.
    pub uri: String,
    /// Name of the file, `name_version_arch.deb` (with `:` of the version as `%3a`).
    pub file: String,
    /// Bytes.
    pub size: u64,
}

/// A package, and what came out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// The package.
    pub package: Package,
    /// Its file.
    pub file: PathBuf,
    /// Everything in it: absolute paths, directories too, in the order of the archive.
    pub paths: Vec<String>,
}

/// A package that could be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The package's name.
    pub name: String,
    /// The version.
    pub version: String,
}

impl Package {
    /// The package's name.
    pub fn name(&self) -> &str {
        self.file.split('_').next().unwrap_or(&self.file)
    }
}

impl Apt {
    /// A private apt that sees these suites of the Debian archive. Suites of security updates are seen if this machine
    /// uses such an archive.
    pub fn new(cache: &Cache, suites: &[&str]) -> Self {
        Self {
            cache: cache.clone(),
            dir: cache.root().join("apt").join(suites.join("+")),
            suites: suites.iter().map(ToString::to_string).collect(),
            prefer: None,
        }
    }

    /// Takes packages, dependencies too, from this suite rather than from the others.
    pub fn prefer(mut self, suite: &str) -> Self {
        self.prefer = Some(suite.to_owned());
        self
    }

    /// Resolves, downloads and unpacks `wanted` (names, or `name/suite`) with everything they depend on,
    /// except packages for which `skip` says so. Returns what was unpacked.
    pub fn unpack(
        &self,
        wanted: &[String],
        into: &Path,
        skip: impl Fn(&Package) -> bool,
    ) -> Result<Vec<Unpacked>> {
        let packages = self.download(wanted, skip)?;
        let mut step = Step::start(format!("unpacking {} packages", packages.len()));
        let unpack = |package: Package| -> Result<Unpacked> {
            let file = self.file_of(&package);
            let paths = unpack_deb(&file, into)?;
            Ok(Unpacked { package, file, paths })
        };
        // base-files carries the links /bin -> usr/bin that the others rely on.
        let (first, rest): (Vec<_>, Vec<_>) =
            packages.into_iter().partition(|package| package.name() == "base-files");
        let mut done = first.into_iter().map(unpack).collect::<Result<Vec<_>>>()?;
        let next = AtomicUsize::new(0);
        let (next, rest, unpack) = (&next, &rest, &unpack);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
        std::thread::scope(|scope| -> Result<()> {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(move || -> Result<Vec<Unpacked>> {
                        let mut done = Vec::new();
                        while let Some(package) = rest.get(next.fetch_add(1, Ordering::Relaxed)) {
                            done.push(unpack(package.clone())?);
                        }
                        Ok(done)
                    })
                })
                .collect();
            while workers.iter().any(|worker| !worker.is_finished()) {
                step.at(next.load(Ordering::Relaxed).min(rest.len()), rest.len(), "");
                std::thread::sleep(Duration::from_millis(50));
            }
            for worker in workers {
                done.extend(worker.join().map_err(|_| anyhow!("an unpacking thread panicked"))??);
            }
            Ok(())
        })?;
        step.done();
        done.sort_by(|a, b| a.package.file.cmp(&b.package.file));
        Ok(done)
    }

    /// Downloads `wanted` with dependencies, except packages for which `skip` says so.
    pub fn download(&self, wanted: &[String], skip: impl Fn(&Package) -> bool) -> Result<Vec<Package>> {
        self.with_indexes(|| self.resolve_and_fetch(wanted, &skip))
    }

    /// Names of `wanted` and of everything they depend on.
    pub fn needs(&self, wanted: &[String]) -> Result<BTreeSet<String>> {
        let packages = self.with_indexes(|| self.resolve(wanted))?;
        Ok(packages.iter().map(|package| package.name().to_owned()).collect())
    }

    /// What `get` makes of the indexes; if that is nothing, of new ones: an index can be younger than a day and still name packages that
    /// the archive has replaced.
    fn with_indexes<T>(&self, get: impl Fn() -> Result<T>) -> Result<T> {
        let _lock = self.cache.lock("apt")?;
        self.prepare()?;
        self.update(INDEX_AGE)?;
        get().or_else(|_| {
            self.update(Duration::ZERO)?;
            get()
        })
    }

    /// Packages whose names match a regular expression of apt-cache(8), with the versions that would be installed.
    pub fn search(&self, pattern: &str) -> Result<Vec<Candidate>> {
        let _lock = self.cache.lock("apt")?;
        self.prepare()?;
        self.update(INDEX_AGE)?;
        let names = self.cache_says(&["search", "--names-only", pattern])?;
        let names: Vec<&str> = names.lines().filter_map(|line| line.split_whitespace().next()).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut question = vec!["show", "--no-all-versions"];
        question.extend(names);
        Ok(candidates(&self.cache_says(&question)?))
    }

    fn cache_says(&self, question: &[&str]) -> Result<String> {
        let output = self.command("apt-cache").args(question).output()?;
        if !output.status.success() {
            bail!("apt-cache {} failed: {}", question[0], String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn archives(&self) -> PathBuf {
        self.cache.root().join("debs")
    }

    fn prepare(&self) -> Result<()> {
        if !cfg!(target_arch = "x86_64") {
            bail!("only x86-64 machines are supported: guests and the private QEMU are amd64 packages");
        }
        for folder in ["state/lists/partial", "cache/none/partial"] {
            fs::create_dir_all(self.dir.join(folder))?;
        }
        fs::create_dir_all(self.archives().join("partial"))?;
        fs::write(self.dir.join("status"), "")?;
        let main = sources::find()?;
        let security = sources::find_security();
        let list: String = self
            .suites
            .iter()
            .filter_map(|suite| {
                let archive = if sources::is_security_suite(suite) { security.as_ref()? } else { &main };
                let signed = archive.signed_by.as_ref();
                let signed = signed.map_or(String::new(), |path| format!(" signed-by={}", path.display()));
                Some(format!("deb [arch=amd64{signed}] {} {suite} main\n", archive.uri))
            })
            .collect();
        fs::write(self.dir.join("sources.list"), list)?;
        fs::write(self.dir.join("apt.conf"), self.configuration())?;
        Ok(())
    }

    /// What differs from the machine's configuration: other folders, and none of its hooks.
    fn configuration(&self) -> String {
        let dir = self.dir.display();
        let archives = self.archives();
        let archives = archives.display();
        let mut text = format!(
            "Dir::State \"{dir}/state\";\nDir::State::lists \"{dir}/state/lists\";\n\
             Dir::State::status \"{dir}/status\";\nDir::State::extended_states \"{dir}/state/extended\";\n\
             Dir::Cache \"{dir}/cache\";\nDir::Cache::archives \"{archives}/\";\n\
             Dir::Log \"{dir}/cache\";\n\
             Dir::Etc::sourcelist \"{dir}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
             Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
             APT::Default-Release \"\";\nAPT::Install-Recommends \"false\";\nAPT::Install-Suggests \"false\";\n\
             APT::Get::Assume-Yes \"true\";\nAcquire::Languages \"none\";\nAcquire::Retries \"3\";\n\
             Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
             #clear APT::Architectures;\nAPT::Architecture \"amd64\";\nAPT::Architectures {{ \"amd64\"; }};\n"
        );
        for hook in [
            "APT::Update::Pre-Invoke",
            "APT::Update::Post-Invoke",
            "APT::Update::Post-Invoke-Success",
            "DPkg::Pre-Invoke",
            "DPkg::Post-Invoke",
            "DPkg::Pre-Install-Pkgs",
        ] {
            text.push_str(&format!("#clear {hook};\n"));
        }
        if let Some(suite) = &self.prefer {
            text.push_str(&format!("APT::Default-Release \"{suite}\";\n"));
        }
        if nix::unistd::geteuid().is_root() {
            // The unprivileged user that apt downloads as can't write below root's home.
            text.push_str("APT::Sandbox::User \"root\";\n");
        }
        text
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .arg("-c")
            .arg(self.dir.join("apt.conf"))
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        tie(&mut command, &[]);
        command
    }

    fn update(&self, max_age: Duration) -> Result<()> {
        let stamp = self.dir.join("updated");
        let fresh = fs::metadata(&stamp)
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|time| SystemTime::now().duration_since(time).ok())
            .is_some_and(|age| age < max_age);
        if fresh {
            return Ok(());
        }
        let step = Step::start(format!("fetching the package indexes of {}", self.suites.join(", ")));
        let output = self
            .command("apt-get")
            .args(["-q", "-o", "APT::Update::Error-Mode=any", "update"])
            .output()
            .context("cannot run apt-get (package apt)")?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let hint = if text.contains("NO_PUBKEY") || text.contains("not signed") {
                "\nThe archive keyring of this machine is too old: upgrade the package debian-archive-keyring, or set \
                 HCA_VM_DEBIAN_KEYRING to a newer one"
            } else {
                "\nCheck the network and proxy settings in /etc/apt; anything that `apt-get update` needs, this needs too"
            };
            bail!("apt-get update for {} failed:\n{}{hint}", self.suites.join(", "), text.trim());
        }
        fs::write(stamp, "")?;
        step.done();
        Ok(())
    }

    /// `wanted` with everything they depend on.
    fn resolve(&self, wanted: &[String]) -> Result<Vec<Package>> {
        let output = self
            .command("apt-get")
            // An empty archive folder: files that are there already would not be listed.
            .arg("-o")
            .arg(format!("Dir::Cache::archives={}/cache/none/", self.dir.display()))
            .args(["-q", "--print-uris", "install"])
            .args(wanted)
            .output()
            .context("cannot run apt-get (package apt)")?;
        if !output.status.success() {
            if let Some(incomplete) = Incomplete::of(&String::from_utf8_lossy(&output.stdout)) {
                return Err(incomplete.into());
            }
            bail!(
                "cannot resolve the packages {}:\n{}",
                wanted.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(parse_uris(&String::from_utf8_lossy(&output.stdout)))
    }

    fn resolve_and_fetch(&self, wanted: &[String], skip: &impl Fn(&Package) -> bool) -> Result<Vec<Package>> {
        let mut packages = self.resolve(wanted)?;
        packages.retain(|package| !skip(package));
        packages.sort_by(|a, b| a.file.cmp(&b.file));
        if packages.is_empty() {
            bail!("apt resolved the packages {} to nothing", wanted.join(" "));
        }
        let missing = packages.iter().filter(|package| !self.file_of(package).is_file()).count();
        if missing > 0 {
            self.fetch(wanted, missing, &packages)?;
        }
        let mut files = packages.iter().map(|package| self.file_of(package));
        if let Some(absent) = files.find(|file| !file.is_file()) {
            bail!("apt-get did not leave the expected file {}", absent.display());
        }
        Ok(packages)
    }

    /// Where the file of a downloaded package is.
    pub fn file_of(&self, package: &Package) -> PathBuf {
        match package.uri.strip_prefix("file:") {
            // Local archives are used where they are.
            Some(path) => PathBuf::from(path.trim_start_matches("//")),
            None => self.archives().join(&package.file),
        }
    }

    fn fetch(&self, wanted: &[String], missing: usize, packages: &[Package]) -> Result<()> {
        let bytes: u64 = packages
            .iter()
            .filter(|package| !self.file_of(package).is_file())
            .map(|package| package.size)
            .sum();
        let mut step =
            Step::start(format!("downloading {missing} packages, {} MB", bytes.div_ceil(1_000_000)));
        let mut child = self
            .command("apt-get")
            .args(["-q", "--download-only", "install"])
            .args(wanted)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run apt-get (package apt)")?;
        let errors = child.stderr.take();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            if let Some(mut errors) = errors {
                let _ = errors.read_to_string(&mut text);
            }
            text
        });
        let mut got = 0;
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.starts_with("Get:") {
                    got += 1;
                    step.at(got, missing, line.split_whitespace().nth(4).unwrap_or(""));
                }
            }
        }
        let status = child.wait()?;
        let errors = errors.join().unwrap_or_default();
        if !status.success() {
            bail!("downloading packages failed:\n{}", errors.trim());
        }
        step.done();
        Ok(())
    }
}

/// Packages that are in the archives and need others that are not: what apt says of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Incomplete(Vec<String>);

impl Incomplete {
    /// From what `apt-get install` prints when it fails.
    fn of(text: &str) -> Option<Self> {
        const NOWHERE: &str = " but it is not installable";
        let needs = text.lines().filter_map(|line| line.strip_suffix(NOWHERE)?.split_once("Depends: "));
        let missing: Vec<_> = needs.map(|(_, needed)| needed.to_string()).collect();
        if missing.is_empty() { None } else { Some(Self(missing)) }
    }
}

impl std::fmt::Display for Incomplete {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the archives lack what it needs: {}", self.0.join(", "))
    }
}

impl std::error::Error for Incomplete {}

/// Lines of `apt-get --print-uris`: `'address' file size [hash]`.
fn parse_uris(text: &str) -> Vec<Package> {
    text.lines()
        .filter_map(|line| {
            let (uri, rest) = line.strip_prefix('\'')?.split_once('\'')?;
            let mut words = rest.split_whitespace();
            Some(Package {
                uri: uri.to_owned(),
                file: words.next()?.to_owned(),
                size: words.next()?.parse().ok()?,
            })
        })
        .collect()
}

/// Stanzas of `apt-cache show`.
fn candidates(text: &str) -> Vec<Candidate> {
    let field = |stanza: &str, name: &str| {
        let value = stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(value.trim().to_owned())
    };
    text.split("\n\n")
        .filter_map(|stanza| {
            Some(Candidate { name: field(stanza, "Package")?, version: field(stanza, "Version")? })
        })
        .collect()
}

/// Unpacks the files of one package, without its maintainer scripts. Returns the paths of what was in it.
pub fn unpack_deb(deb: &Path, into: &Path) -> Result<Vec<String>> {
    let listing = dpkg_deb(&["-X".as_ref(), deb.as_ref(), into.as_ref()])?;
    let absolute = |line: &str| match line.trim_start_matches('.').trim_end_matches('/') {
        // What dpkg calls the root of its lists.
        "" => "/.".to_owned(),
        path => path.to_owned(),
    };
    Ok(listing.lines().map(absolute).collect())
}

/// Runs dpkg-deb(1); returns what it prints.
pub(crate) fn dpkg_deb(arguments: &[&std::ffi::OsStr]) -> Result<String> {
    let output = tie(&mut Command::new("dpkg-deb"), &[])
        .args(arguments)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .context("cannot run dpkg-deb (package dpkg)")?;
    if !output.status.success() {
        bail!("dpkg-deb {arguments:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stanzas_of_candidates() {
        let text = "Package: a\nVersion: 1:2-3\nDescription: x\n Version: no\n\nPackage: b\n\n";
        assert_eq!(candidates(text), [Candidate { name: "a".into(), version: "1:2-3".into() }]);
    }

    #[test]
    fn what_the_archives_lack() {
        let text = "The following packages have unmet dependencies:\n \
                    image : Depends: base (= 7.1.13-1) but it is not installable\n         \
                    Depends: binary (= 7.1.13-1) but it is not going to be installed\n";
        let incomplete = Incomplete::of(text).unwrap();
        assert_eq!(incomplete.to_string(), "the archives lack what it needs: base (= 7.1.13-1)");
        let conflict = " a : Depends: b but it is not going to be installed\nE: Unable to correct problems\n";
        assert_eq!(Incomplete::of(conflict), None);
    }

    #[test]
    fn print_uris_lines() {
        let text = "Reading package lists...\n\
                    'http://m.example/pool/main/k/kmod/kmod_34.2-2_amd64.deb' kmod_34.2-2_amd64.deb 96532 SHA256:00\n\
                    'http://m.example/x%3a1_all.deb' x_1%3a1_all.deb 7 \n'broken\n'u' f many\n";
        let packages = parse_uris(text);
        assert_eq!(packages.len(), 2);
        assert_eq!(packages[0].name(), "kmod");
        assert_eq!(packages[0].size, 96532);
        assert_eq!(packages[1].file, "x_1%3a1_all.deb");
    }
}
