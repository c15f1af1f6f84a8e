//! For system tests: what stock guests do with the adapter, one run of several guests at a time, or some of one guest each.
//!
//! A [`Session`] is a run of `hca_vm` whose jobs are made of named steps in `sh`; `tests/guest/prelude.sh` has the
//! words they may use. Emulated guests are slow, so tests put many steps into one boot.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hca_vm::cache::Cache;
use hca_vm::guest::Copy;
use hca_vm::run::{HostReport, Report, Run};

const PRELUDE: &str = concat!(include_str!("../guest/post.sh"), include_str!("../guest/prelude.sh"));
/// Begins the line that opens a step's output.
const MARK: &str = "@@ ";
/// Longer than anything takes on a slow and busy machine; only a test that hangs meets it.
pub const HANG: Duration = Duration::from_secs(900);

/// A file of this crate.
pub fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The topology of that name: one of `tests/topologies`, or a built-in one.
pub fn topology(name: &str) -> String {
    let ours = file("topologies").join(name);
    if ours.is_file() { ours.display().to_string() } else { name.to_owned() }
}

/// A file of this crate, to be put into root's home, where jobs start.
pub fn copy(path: &str) -> Copy {
    Copy::parse(&file(path).display().to_string()).expect("a file of this crate")
}

/// Resource counts of an adapter by kind: `which` is `now`, or `last_teardown` when its driver was last removed.
///
/// # Errors
/// What the run's report does not have.
pub fn counts(report: &Report, adapter: &str, which: &str) -> Result<Vec<(String, u64)>, String> {
    let resources = report.resources.as_ref().ok_or("no resource counts")?;
    let entry = resources["hcas"]
        .as_array()
        .and_then(|hcas| hcas.iter().find(|hca| hca["name"] == adapter))
        .ok_or_else(|| format!("no {adapter} in {resources}"))?;
    let counts = entry[which].as_object().ok_or_else(|| format!("no {which} in {entry}"))?;
    counts
        .iter()
        .map(|(kind, count)| {
            let count = count.as_u64().ok_or_else(|| format!("{kind} is {count}, not a number"))?;
            Ok((kind.clone(), count))
        })
        .collect()
}

/// Waits for its turn with so many guests. Several keep a machine busy, and would only slow down those of another test; one alone leaves a
/// processor idle while it starts, so that as many tests with one each go on at once as there are threads for them. Keep what it returns.
///
/// The lock belongs to an open file (`flock`), not to a process: it keeps apart the threads of one process as well.
pub fn turn(guests: usize) -> File {
    let cache = Cache::open().expect("a cache directory");
    let lock = opened(&cache.root().join("locks/system-tests"));
    let locked = if guests > 1 { lock.lock() } else { lock.lock_shared() };
    locked.expect("the lock of the system tests");
    lock
}

/// A lock file, not yet locked.
fn opened(path: &Path) -> File {
    File::create(path).expect("a lock file")
}

/// A job: named steps, which end at the first that fails.
#[derive(Clone, Default)]
pub struct Job(Vec<(&'static str, String)>);

impl Job {
    /// A job without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step: a script in `sh`, which passes if its last command does. The name must be unique.
    pub fn step(mut self, name: &'static str, script: impl Into<String>) -> Self {
        assert!(self.0.iter().all(|(known, _)| *known != name), "two steps {name}");
        self.0.push((name, script.into()));
        self
    }

    /// The whole, for `sh`.
    pub fn text(&self) -> String {
        let mut text = PRELUDE.to_owned();
        for (index, (name, script)) in self.0.iter().enumerate() {
            text.push_str(&format!("step_{index}() {{\n{script}\n}}\nstep '{name}' step_{index}\n"));
        }
        text
    }
}

/// What the named step printed, of a job's output. Empty if it was not reached.
pub fn printed<'a>(output: &'a str, step: &str) -> &'a str {
    let opening = format!("{MARK}{step}\n");
    match output.split_once(&opening) {
        Some((_, rest)) => rest.split(MARK).next().unwrap_or(rest),
        None => "",
    }
}

/// A run with jobs made of steps.
pub struct Session {
    run: Run,
    guests: usize,
}

impl Session {
    /// In a built-in topology, or one of `tests/topologies`.
    pub fn new(topology: &str) -> Self {
        Self { run: Run::new(self::topology(topology)).timeout(HANG), guests: 0 }
    }

    /// Boots this kernel.
    pub fn kernel(self, kernel: &str) -> Self {
        Self { run: self.run.kernel(kernel), ..self }
    }

    /// One more argument of `softhca serve`.
    pub fn serve(self, argument: String) -> Self {
        Self { run: self.run.serve(argument), ..self }
    }

    /// Puts a file of this crate into root's home, where jobs start.
    pub fn copy(self, path: &str) -> Self {
        Self { run: self.run.copy(copy(path)), ..self }
    }

    /// What this host does.
    pub fn host(self, name: &str, job: &Job) -> Self {
        Self { run: self.run.host(name, job.text()), guests: self.guests + 1 }
    }

    /// Runs to the end. Panics if it can't be set up or a job fails or the server doesn't live to the end;
    /// kernel logs are the caller's to judge.
    pub fn jobs_pass(self) -> Done {
        let _turn = turn(self.guests);
        let report = self.run.run().unwrap_or_else(|error| panic!("no run: {error:#}"));
        assert!(report.cut_short.is_none(), "{report}");
        assert!(report.hosts.iter().all(|host| host.exit.unwrap_or(0) == 0), "{report}");
        assert!(report.hosts.iter().all(|host| host.problems.is_empty()), "{report}");
        Done(report)
    }

    /// As [`Session::jobs_pass`], and panics if a kernel had something to complain about.
    pub fn passes(self) -> Done {
        let done = self.jobs_pass();
        assert_eq!(done.0.exit_code(), 0, "{}", done.0);
        done
    }
}

/// A session that has passed.
pub struct Done(pub Report);

impl Done {
    /// The report of a host.
    pub fn host(&self, name: &str) -> &HostReport {
        self.0.host(name).unwrap_or_else(|| panic!("no host {name}"))
    }

    /// What a step of a host printed.
    pub fn printed(&self, host: &str, step: &str) -> &str {
        let text = printed(&self.host(host).output, step);
        assert!(!text.is_empty(), "step {step} of {host} printed nothing");
        text
    }

    /// Checks the resource counts of an adapter: some now, while its driver is loaded, and none when its driver was
    /// last removed.
    pub fn nothing_was_left(&self, adapter: &str) {
        let kinds = |which| counts(&self.0, adapter, which).unwrap_or_else(|why| panic!("{why}"));
        let count = |of: &[(String, u64)], kind: &str| of.iter().find(|(k, _)| k == kind).map(|(_, n)| *n);
        let now = kinds("now");
        for kind in ["eqs", "cqs", "pds", "mkeys", "uars", "pages"] {
            assert!(count(&now, kind) > Some(0), "a loaded driver has {kind}: {now:?}");
        }
        let left: Vec<_> = kinds("last_teardown").into_iter().filter(|(_, count)| *count != 0).collect();
        assert!(left.is_empty(), "left behind by the driver: {left:?}");
    }
}

/// The value after `key:` in the output of `ibv_devinfo` and the like.
pub fn value<'a>(text: &'a str, key: &str) -> &'a str {
    text.lines()
        .find_map(|line| line.trim().strip_prefix(key)?.trim_start().strip_prefix(':'))
        .unwrap_or_else(|| panic!("no {key} in\n{text}"))
        .trim()
}

/// The number at the beginning of [`value`].
pub fn number(text: &str, key: &str) -> u64 {
    let value = value(text, key);
    let digits = value.split_whitespace().next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("{key} is {value}, not a number"))
}

#[cfg(test)]
mod tests {
    use std::fs::TryLockError;

    use super::*;
    use crate::files::Temporary;

    #[test]
    fn threads_take_turns() {
        let file = Temporary::new("turn");
        let mine = opened(file.path());
        mine.lock_shared().expect("a lock");
        let taken = || matches!(opened(file.path()).try_lock(), Err(TryLockError::WouldBlock));
        let shared = || opened(file.path()).try_lock_shared().is_ok();
        assert!(std::thread::scope(|scope| scope.spawn(shared).join().expect("a thread")));
        assert!(std::thread::scope(|scope| scope.spawn(taken).join().expect("a thread")));
        drop(mine);
        assert!(!taken());
    }

    #[test]
    fn output_by_step() {
        let output = "before\n@@ one\n1\n2\n@@ two\n3\n";
        assert_eq!(printed(output, "one"), "1\n2\n");
        assert_eq!(printed(output, "two"), "3\n");
        assert_eq!(printed(output, "three"), "");
    }

    #[test]
    fn values() {
        let text = "\tmax_qp:\t\t\t262144\n\tmax_qp_wr: 8192\n\t\tstate:  PORT_ACTIVE (4)\n";
        assert_eq!((number(text, "max_qp"), number(text, "max_qp_wr")), (262144, 8192));
        assert_eq!(value(text, "state"), "PORT_ACTIVE (4)");
    }
}
