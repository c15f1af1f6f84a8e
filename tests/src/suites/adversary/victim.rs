//! The victim: a driver on an adapter of its own that reads a register every millisecond, and keeps an RDMA write from one
//! of its queue pairs to another going whose data it checks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hca_driver::eth::Mac;
use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Bus, Completion, SendRequest};
use hca_spec::ids::Lid;

use super::stage::{Attacker, Failure, VICTIM, driver};
use crate::pair::{Options, PORT, Pair, pattern};
use crate::process::Process;

/// Time between two reads of a register.
const PERIOD: Duration = Duration::from_millis(1);
/// Bytes of a write.
const LEN: usize = 16 << 10;
/// DMA memory of the victim.
const MEMORY: usize = 16 << 20;
/// Accesses between two looks at the server's memory.
const LOOK: u64 = 16;
/// Looks at its memory between two at its descriptors, which take longer.
const LOOK_CLOSER: u64 = 16;
/// How long the victim's last write may take when nobody attacks any more.
const LAST: Duration = Duration::from_secs(10);

/// One access to a register: a read, or a doorbell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    /// From the request to the answer.
    pub took: Duration,
    /// Of that, how long the server was ready to run and had no processor: that is the machine's doing.
    pub waited: Duration,
}

impl Access {
    /// What the access would have taken on a machine that does nothing else.
    pub fn own(&self) -> Duration {
        self.took.saturating_sub(self.waited)
    }
}

/// What the victim saw, and what the server's process held meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Accesses to registers, in order.
    pub accesses: Vec<Access>,
    /// Writes that were done, each with the right data.
    pub writes: u64,
    /// The longest write.
    pub longest_write: Duration,
    /// The server's anonymous memory at the start and at most, in KiB.
    pub memory_kib: (u64, u64),
    /// The server's descriptors at most.
    pub descriptors: usize,
}

impl Seen {
    /// 99 of 100 accesses took no longer.
    pub fn p99(&self) -> Duration {
        let mut all: Vec<Duration> = self.accesses.iter().map(Access::own).collect();
        all.sort_unstable();
        all.get((all.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
    }

    /// The longest access on a machine that does nothing else.
    pub fn worst(&self) -> Duration {
        self.accesses.iter().map(Access::own).max().unwrap_or_default()
    }

    /// The longest access as it was.
    pub fn longest(&self) -> Duration {
        self.accesses.iter().map(|access| access.took).max().unwrap_or_default()
    }
}

/// A victim that is ready.
pub struct Victim {
    pair: Pair<VfioUserBus>,
    /// What serves it, and the server with all of its workers.
    server: Process,
    whole: Process,
    /// The write under way, and its number.
    under_way: Option<Instant>,
    number: u64,
    seen: Seen,
    /// Number of the access after which the server's memory is looked at.
    next_look: u64,
    looks: u64,
}

impl Victim {
    /// Brings the victim's adapter up, with an Ethernet port or not, and connects two queue pairs of it. `server` is the process that
    /// serves it, and that with all that the server is made of.
    ///
    /// # Errors
    /// The adapter does not come up.
    pub fn new(
        place: &Attacker,
        (server, whole): (Process, Process),
        ethernet: bool,
    ) -> Result<Self, Failure> {
        let hca = driver(place.bus(VICTIM, MEMORY)?)?;
        let pair = Pair::connect(vec![hca], &Options { memory: LEN, roce: ethernet, ..Options::default() })?;
        let memory = whole.family_kib();
        let seen = Seen { memory_kib: (memory, memory), ..Seen::default() };
        Ok(Self { pair, server, whole, under_way: None, number: 0, seen, next_look: 0, looks: 0 })
    }

    /// The LID of its port.
    ///
    /// # Errors
    /// The command failed.
    pub fn lid(&mut self) -> Result<Lid, Failure> {
        Ok(self.pair.hcas[0].lid(PORT)?)
    }

    /// The MAC address of its port.
    ///
    /// # Errors
    /// The command failed.
    pub fn mac(&mut self) -> Result<Mac, Failure> {
        Ok(self.pair.hcas[0].mac()?)
    }

    /// Goes on until `over`, and until its last write is done.
    ///
    /// # Errors
    /// What it saw that it should not have seen.
    pub fn live(mut self, over: &AtomicBool) -> (Seen, Result<(), String>) {
        let result = self.until(over);
        (self.seen, result)
    }

    fn until(&mut self, over: &AtomicBool) -> Result<(), String> {
        let mut next = Instant::now();
        while !over.load(Ordering::Relaxed) {
            self.read()?;
            if self.progress()? || self.under_way.is_none() {
                self.post();
            }
            self.look();
            next = (next + PERIOD).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let last = Instant::now() + LAST;
        while !self.progress()? {
            self.read()?;
            if Instant::now() > last {
                return Err(format!("its last write is not done {} s after the attack", LAST.as_secs()));
            }
            std::thread::sleep(PERIOD);
        }
        Ok(())
    }

    /// One access to a register, with its time.
    fn timed<T>(&mut self, access: impl FnOnce(&mut Pair<VfioUserBus>) -> T) -> T {
        let before = self.server.waited();
        let start = Instant::now();
        let value = access(&mut self.pair);
        let took = start.elapsed();
        let waited = self.server.waited().saturating_sub(before);
        self.seen.accesses.push(Access { took, waited });
        value
    }

    fn read(&mut self) -> Result<(), String> {
        let value = self.timed(|pair| pair.hcas[0].bus_mut().mmio_read32(0));
        match (value, self.pair.hcas[0].bus_mut().error()) {
            (u32::MAX, why) => Err(format!("its register reads as all ones: {}", why.unwrap_or("no error"))),
            _ => Ok(()),
        }
    }

    fn post(&mut self) {
        self.number += 1;
        self.pair.fill(0, 0, &pattern(self.number, LEN));
        let (near, far) = ([self.pair.ends[0].sge(0, LEN)], self.pair.ends[1].mr);
        self.under_way = Some(Instant::now());
        // The doorbell is a register, too.
        let request = SendRequest::write(self.number, &near, far.address, far.key);
        self.timed(|pair| pair.send(0, &request));
    }

    /// Whether the write under way is done.
    fn progress(&mut self) -> Result<bool, String> {
        let Some(since) = self.under_way else { return Ok(true) };
        let Some((number, Completion { status, .. })) = self.pair.try_sent(0) else { return Ok(false) };
        if (number, status) != (self.number, Ok(())) {
            return Err(format!("its write {} ended as {number} with {status:?}", self.number));
        }
        if self.pair.ends[1].bytes(0, LEN) != pattern(self.number, LEN) {
            return Err(format!("its write {} brought other data", self.number));
        }
        self.under_way = None;
        self.seen.writes += 1;
        self.seen.longest_write = self.seen.longest_write.max(since.elapsed());
        Ok(true)
    }

    fn look(&mut self) {
        let number = self.seen.accesses.len() as u64;
        if number < self.next_look {
            return;
        }
        self.next_look = number + LOOK;
        // A process that is gone is told of by reads.
        let memory = self.whole.family_kib();
        self.seen.memory_kib.1 = self.seen.memory_kib.1.max(memory);
        self.looks += 1;
        if self.looks.is_multiple_of(LOOK_CLOSER) {
            let most = self.whole.family().into_iter().map(Process::descriptors).max();
            self.seen.descriptors = self.seen.descriptors.max(most.unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_in_numbers() {
        let access = |took, waited| Access {
            took: Duration::from_millis(took),
            waited: Duration::from_millis(waited),
        };
        let mut seen = Seen { accesses: (1..=200).map(|_| access(1, 0)).collect(), ..Seen::default() };
        assert_eq!((seen.p99(), seen.worst()), (Duration::from_millis(1), Duration::from_millis(1)));
        // Two of two hundred are the last percent; three are more. What the machine took does not count.
        (seen.accesses[7], seen.accesses[8], seen.accesses[9]) =
            (access(70, 0), access(80, 79), access(60, 0));
        assert_eq!((seen.p99(), seen.worst()), (Duration::from_millis(1), Duration::from_millis(70)));
        assert_eq!(seen.longest(), Duration::from_millis(80));
        seen.accesses[10] = access(50, 0);
        assert_eq!(seen.p99(), Duration::from_millis(50));
        assert_eq!((Seen::default().p99(), Seen::default().worst()), (Duration::ZERO, Duration::ZERO));
    }
}
