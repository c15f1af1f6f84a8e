//! What the system says of a process.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A process of this machine, by its id.
#[derive(Clone, Copy, Debug)]
pub struct Process(pub u32);

impl Process {
    fn file(self, name: &str) -> std::io::Result<String> {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.0))
    }

    /// Anonymous memory in KiB: what the process itself holds, without memory that others share with it and without the
    /// program's text ("RssAnon", proc(5)).
    ///
    /// # Errors
    /// The process is gone, or the system does not say.
    pub fn anonymous_kib(self) -> Result<u64, Box<dyn std::error::Error>> {
        let status = self.file("status")?;
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).ok_or("no RssAnon in /proc")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// It and the processes that it has started, and those of theirs ("children", proc(5)). It alone if the system does not say.
    pub fn family(self) -> Vec<Self> {
        let mut all = vec![self];
        let mut next = 0;
        while let Some(one) = all.get(next) {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", one.0)).into_iter().flatten().flatten();
            let children =
                tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
            let ids: Vec<_> = children
                .flat_map(|ids| ids.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
                .collect();
            all.extend(ids.into_iter().map(Self));
            next += 1;
        }
        all
    }

    /// Anonymous memory of [all of them](Self::family) in KiB. Of those that are gone meanwhile, none.
    pub fn family_kib(self) -> u64 {
        self.family().into_iter().filter_map(|process| process.anonymous_kib().ok()).sum()
    }

    /// How long it was ready to run and had no processor, all in all ("schedstat", proc(5)). Zero if the system does not say.
    pub fn waited(self) -> Duration {
        let text = self.file("schedstat").unwrap_or_default();
        let nanoseconds = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(nanoseconds.unwrap_or(0))
    }

    /// Stops it (SIGSTOP), and waits until all of its threads stand: one of them takes the signal, and until it has the others go on.
    ///
    /// # Errors
    /// It is gone, or may not be stopped.
    pub fn stop(self) -> Result<(), Box<dyn std::error::Error>> {
        kill(Pid::from_raw(self.0.try_into()?), Signal::SIGSTOP)?;
        while !self.stands()? {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    /// It is gone, or may not be told.
    pub fn go_on(self) -> Result<(), Box<dyn std::error::Error>> {
        Ok(kill(Pid::from_raw(self.0.try_into()?), Signal::SIGCONT)?)
    }

    /// Whether all of its threads are stopped ("stat", proc(5)).
    fn stands(self) -> std::io::Result<bool> {
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.0))? {
            let stat = std::fs::read_to_string(thread?.path().join("stat"))?;
            // The name before the state is in brackets, and may have brackets.
            if !stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// How many descriptors it has open. Zero if it is gone.
    pub fn descriptors(self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.0)).map_or(0, Iterator::count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own() {
        let own = Process(std::process::id());
        assert!(own.anonymous_kib().unwrap() > 0);
        let _more = [(); 3].map(|()| std::fs::File::open("/dev/null").unwrap());
        assert!(own.descriptors() >= 3);
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(own.family().iter().any(|process| process.0 == child.id()));
        assert!(own.family_kib() >= own.anonymous_kib().unwrap() / 2);
        let child_too = Process(child.id());
        assert!(!child_too.stands().unwrap());
        child_too.stop().unwrap();
        assert!(child_too.stands().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Process(u32::MAX).anonymous_kib().is_err() && Process(u32::MAX).descriptors() == 0);
    }
}
