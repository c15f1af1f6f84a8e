//! How fast a program on a host is: what its processor takes to post work and to look for completions.

use hca_model::Ps;
use serde::Deserialize;

use crate::Error;
use crate::scenario::Scenario;

/// Times of a host's processor and program, in nanoseconds. Files: `device/bench/hosts/*.toml`, each number with its
/// source.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Building one WQE in the ring, with the program's own work around it.
    pub wqe_ns: f64,
    /// A doorbell: the record, the barrier, the 8-byte store.
    pub doorbell_ns: f64,
    /// A BlueFlame copy: the record, the barriers, the flush of the write-combining buffer.
    pub blueflame_ns: f64,
    /// Each 64 bytes of such a copy.
    pub line_ns: f64,
    /// Posting a receive request.
    pub recv_ns: f64,
    /// Polling an empty completion queue.
    pub poll_ns: f64,
    /// Polling a completion queue that has entries, without the time for each entry.
    pub take_ns: f64,
    /// Taking a completion.
    pub cqe_ns: f64,
    /// Polling a byte of memory that has not changed.
    pub look_ns: f64,
    /// What a latency program does between two messages besides posting and polling: reading the clock.
    pub turn_ns: f64,
    /// Where its threads run, if that matters.
    pub cores: Option<Cores>,
    /// A programmable adapter that does PCIe transfers.
    pub pcie: Option<PcieProgram>,
}

/// The cores of a host: its threads are bound to one after the other, then to the second hardware threads of all.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cores {
    /// Cores in all.
    pub count: u64,
    /// Those of the adapter's socket, which come first.
    pub near: u64,
    /// One crossing of the interconnect between sockets: a thread on another socket than the adapter's waits for it with each store
    /// to the adapter, and sees the adapter's writes so much later.
    pub far_ns: f64,
    /// Slowdown of two threads that share a core: 1.0 is none.
    pub sharing: f64,
}

impl Cores {
    /// Slowdown of thread `thread` of `threads`.
    pub fn slowness(&self, thread: u64, threads: u64) -> f64 {
        match thread >= self.count || thread + self.count < threads {
            true => self.sharing,
            false => 1.0,
        }
    }

    /// How long the way between thread `thread` and the adapter's socket is.
    pub fn crossing(&self, thread: u64) -> Ps {
        match thread % self.count.max(1) >= self.near {
            true => ns(self.far_ns),
            false => Ps::ZERO,
        }
    }
}

/// The program of an adapter that measures PCIe, and its DMA engines.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieProgram {
    /// Issuing one command, after which the next can be issued.
    pub command_ns: f64,
    /// Setting a DMA up and learning that it is done, beyond a command.
    pub dma_ns: f64,
    /// Moving a DMA's data on within the adapter, in picoseconds per byte.
    pub stage_ps_per_byte: u64,
    /// Reads that its engine has under way at most.
    pub reads: u64,
    /// How often the engine for reads begins one that touches no memory, and what each line of memory that it touches adds.
    pub read_interval_ns: f64,
    /// See `read_interval_ns`.
    pub read_line_ns: f64,
    /// How often the engine for writes begins one.
    pub write_interval_ns: f64,
}

/// The descriptions that are built into the crate.
const HOSTS: [(&str, &str); 7] = [
    ("xeon", include_str!("../hosts/xeon.toml")),
    ("tuned", include_str!("../hosts/tuned.toml")),
    ("perftest", include_str!("../hosts/perftest.toml")),
    ("snabb", include_str!("../hosts/snabb.toml")),
    ("swarm", include_str!("../hosts/swarm.toml")),
    ("smart", include_str!("../hosts/smart.toml")),
    ("nfp6000", include_str!("../hosts/nfp6000.toml")),
];

/// The file of a description: an embedded one, or one of that path.
///
/// # Errors
/// There is neither.
pub(crate) fn text(name: &str) -> Result<String, Error> {
    match HOSTS.iter().find(|(n, _)| *n == name) {
        Some((_, text)) => Ok((*text).to_string()),
        None => std::fs::read_to_string(name).map_err(|why| {
            let names: Vec<_> = HOSTS.iter().map(|(n, _)| *n).collect();
            Error::new(format!(
                "host {name:?} is none of {} and no file that can be read ({why})",
                names.join(", ")
            ))
        }),
    }
}

/// The numbers of a description, as they are set: those of sections behind the section's name.
fn keys(table: &toml::Table) -> Vec<String> {
    let mut all = Vec::new();
    for (key, value) in table {
        match value {
            toml::Value::Table(section) => all.extend(section.keys().map(|inner| format!("{key}.{inner}"))),
            toml::Value::Integer(_) | toml::Value::Float(_) => all.push(key.clone()),
            _ => {}
        }
    }
    all
}

impl Host {
    /// The description of that name, or in the file of that name.
    ///
    /// # Errors
    /// There is neither, or it is no description.
    pub fn load(name: &str) -> Result<Self, Error> {
        Self::with(name, std::iter::empty())
    }

    /// The description of a scenario's host, with the numbers that the scenario has otherwise.
    ///
    /// # Errors
    /// As [`Host::load`], or it has no such number.
    pub fn of(scenario: &Scenario) -> Result<Self, Error> {
        Self::with(&scenario.host, scenario.host_overrides())
    }

    fn with<'a>(name: &str, numbers: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Self, Error> {
        let fail = |why: &dyn std::fmt::Display| Error::new(format!("host {name:?}: {why}"));
        let mut table: toml::Table = text(name)?.parse().map_err(|why| fail(&why))?;
        for (key, value) in numbers {
            let known = keys(&table).join(", ");
            let place = match key.split_once('.') {
                Some((section, key)) => {
                    table.get_mut(section).and_then(|s| s.as_table_mut()).and_then(|s| s.get_mut(key))
                }
                None => table.get_mut(key),
            };
            let number = value
                .parse()
                .map(toml::Value::Float)
                .map_err(|why| fail(&format!("{key}={value}: {why}")))?;
            *place.ok_or_else(|| fail(&format!("it has no number {key}, only {known}")))? = number;
        }
        let host: Self = table.try_into().map_err(|why| fail(&why))?;
        let mut times = vec![
            host.wqe_ns,
            host.doorbell_ns,
            host.blueflame_ns,
            host.line_ns,
            host.recv_ns,
            host.poll_ns,
            host.take_ns,
            host.cqe_ns,
            host.look_ns,
            host.turn_ns,
        ];
        if let Some(cores) = &host.cores {
            times.extend([cores.far_ns, cores.sharing]);
        }
        if let Some(pcie) = &host.pcie {
            let reads = [pcie.read_interval_ns, pcie.read_line_ns];
            times.extend([pcie.command_ns, pcie.dma_ns, pcie.write_interval_ns].iter().chain(&reads));
        }
        if times.iter().any(|t| !(0.0..1e6).contains(t)) {
            return Err(Error::new(format!("host {name:?}: every time is from 0 to 1e6 ns")));
        }
        if host.poll_ns < 1.0 || host.look_ns < 1.0 {
            return Err(Error::new(format!("host {name:?}: poll_ns and look_ns are at least 1")));
        }
        Ok(host)
    }
}

/// A duration in nanoseconds as model time.
pub fn ns(time: f64) -> Ps {
    Ps((time.max(0.0) * 1e3).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_hosts_load() {
        for (name, _) in HOSTS {
            assert_eq!(Host::load(name).map(|h| h.name), Ok(name.to_string()));
        }
    }

    #[test]
    fn threads_share_cores_when_there_are_more_of_them() {
        let cores = Cores { count: 4, near: 2, far_ns: 100.0, sharing: 1.5 };
        let slow = |threads: u64| (0..threads).map(|t| cores.slowness(t, threads)).collect::<Vec<_>>();
        assert_eq!(slow(4), [1.0; 4]);
        assert_eq!(slow(6), [1.5, 1.5, 1.0, 1.0, 1.5, 1.5]);
        let far: Vec<_> = (0..8).map(|t| cores.crossing(t).as_ns()).collect();
        assert_eq!(far, [0, 0, 100, 100, 0, 0, 100, 100]);
    }

    #[test]
    fn errors_say_what_there_is() {
        let error = Host::load("no-such-host").unwrap_err().to_string();
        assert!(error.contains("no-such-host") && error.contains("xeon"), "{error}");
        let mut scenario = Scenario::default();
        scenario.set("set", "program.pol_ns=1").unwrap();
        let error = Host::of(&scenario).unwrap_err().to_string();
        assert!(error.contains("no number pol_ns, only ") && error.contains("poll_ns"), "{error}");
        assert!(!error.contains("name,"), "that is no number: {error}");
    }
}
