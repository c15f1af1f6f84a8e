//! What the system says of a process.

use std::time::Duration;

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

    /// How long it was ready to run and had no processor, all in all ("schedstat", proc(5)). Zero if the system does not say.
    pub fn waited(self) -> Duration {
        let text = self.file("schedstat").unwrap_or_default();
        let nanoseconds = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(nanoseconds.unwrap_or(0))
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
        assert!(Process(u32::MAX).anonymous_kib().is_err() && Process(u32::MAX).descriptors() == 0);
    }
}
