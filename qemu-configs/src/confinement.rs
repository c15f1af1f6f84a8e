//! What this kernel has for `softhca serve` to confine itself: asked without using it.

use std::io::Error;

use nix::libc;

/// Flag of `landlock_create_ruleset`: no ruleset is made, the version of the interface is told (linux/landlock.h).
const VERSION: u32 = 1;

/// Versions of landlock's interface, and what each added that the server uses (landlock(7)).
const LANDLOCK: [(i64, &str); 4] =
    [(1, "files"), (3, "truncation"), (4, "TCP"), (6, "signals and abstract sockets of others")];

/// Version of landlock's interface.
///
/// # Errors
/// The kernel has none, or was started without it.
pub fn landlock() -> Result<i64, Error> {
    let none: *const u8 = std::ptr::null();
    // SAFETY: with this flag the call takes no memory and makes nothing.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, VERSION) };
    if version > 0 { Ok(version) } else { Err(Error::last_os_error()) }
}

/// What a version of landlock restricts, and what is missing.
pub fn landlock_words(version: i64) -> String {
    let words = |has: bool| {
        let of = LANDLOCK.iter().filter(|(since, _)| (*since <= version) == has);
        of.map(|(_, what)| *what).collect::<Vec<_>>().join(", ")
    };
    match words(false).as_str() {
        "" => format!("version {version}: {}", words(true)),
        missing => format!("version {version}: {}; not {missing}", words(true)),
    }
}

/// Whether system calls can be filtered, by the list of what a filter may answer: the sandbox ends a process.
pub fn filters() -> bool {
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    actions.split_whitespace().any(|action| action == "kill_process")
}

/// Whether a process can do without new privileges.
pub fn no_new_privileges() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("NoNewPrivs:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_in_words() {
        assert_eq!(
            landlock_words(1),
            "version 1: files; not truncation, TCP, signals and abstract sockets of others"
        );
        assert!(landlock_words(7).ends_with("TCP, signals and abstract sockets of others"));
        assert!(!landlock_words(7).contains("not"));
    }

    /// The kernel says the same in two places.
    #[test]
    fn filters_are_what_the_status_has() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(filters(), status.contains("\nSeccomp:"));
    }
}
