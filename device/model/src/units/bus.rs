//! The PCIe link as a thing that both directions of traffic share.

use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;

use super::cache::Cache;
use super::calendar::{Ahead, Calendar};
use crate::ground::timing::{PcieCost, Profile, Timing};

/// log2 of the calendar pages of a link direction in ps: 16 ns, about a TLP of 256 bytes.
const LINK_PAGE: u32 = 14;
/// Requests at the most that may be outstanding: more tags than PCIe has.
const MAX_TAGS: u64 = 1 << 12;
/// Page of an IOMMU.
const IO_PAGE_SHIFT: u32 = 12;

/// Walkers of an IOMMU at the most.
const MAX_WALKERS: u64 = 1 << 10;

/// What translates the adapter's addresses: translations it has, and walkers that look up the others, some at a time.
#[derive(Clone, Debug)]
struct Iommu {
    translations: Cache,
    /// When each walker is free.
    walkers: Vec<Ps>,
    /// What a walk takes.
    walk: Ps,
}

impl Iommu {
    /// When the translation of `address` is known that is asked for at `asked`. One look at each walker, [`MAX_WALKERS`] at the most.
    fn translated(&mut self, asked: Ps, address: u64) -> Ps {
        if self.translations.touch(address >> IO_PAGE_SHIFT) {
            return asked;
        }
        let Some(walker) = self.walkers.iter_mut().min() else { return asked };
        *walker = asked.max(*walker) + self.walk;
        *walker
    }
}

/// What went over the link, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcieCounts {
    /// Read requests.
    pub reads: u64,
    /// Bytes that they asked for.
    pub read_bytes: u64,
    /// Memory writes (DMA, not TLPs).
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Stores of the processor that arrived.
    pub stores: u64,
    /// Their bytes.
    pub stored_bytes: u64,
}

/// What reads cost that are as long as one request may be.
#[derive(Clone, Copy, Debug)]
struct Whole {
    /// Bytes of it.
    bytes: usize,
    /// What a request takes of the link, for so many bytes or fewer.
    request: Ps,
    /// What its data takes, from a place where completions begin.
    completion: Ps,
    /// Requests one behind the other are whole completions: the data of each takes the same.
    alike: bool,
}

impl Whole {
    fn new(cost: &PcieCost) -> Self {
        let bytes = cost.max_read_request().max(1);
        Self {
            bytes,
            request: cost.request(bytes),
            completion: cost.completion(bytes),
            alike: bytes.is_multiple_of(cost.completion_chunk().max(1)),
        }
    }
}

/// What reads take that are several whole requests each.
#[derive(Clone, Copy, Debug)]
pub(super) struct AlikeReads {
    /// Requests of one.
    pub(super) count: usize,
    /// What each takes of the link.
    pub(super) request: Ps,
    /// What its data takes.
    pub(super) completion: Ps,
    /// From a request's departure to its data.
    pub(super) latency: Ps,
}

/// The link between adapter and host. Writes, read requests and interrupts share the direction to the host, completions
/// and the processor's stores the one from it; a read holds a tag until its data is there.
#[derive(Clone, Debug)]
pub struct Bus {
    cost: PcieCost,
    whole: Whole,
    up: Calendar,
    down: Calendar,
    store_latency: Ps,
    /// When the last of the processor's stores has left.
    stored: Ps,
    /// Per tag, when it is free: tags are used in turn.
    tags: Vec<Ps>,
    next_tag: usize,
    /// The IOMMU, if there is one.
    iommu: Option<Iommu>,
    counts: PcieCounts,
}

impl Bus {
    /// A fresh, idle link.
    pub fn new(timing: &Timing) -> Self {
        let (profile, cost): (&Profile, PcieCost) = (timing.profile(), timing.pcie());
        let (pcie, host) = (&profile.pcie, &profile.host);
        Self {
            cost,
            whole: Whole::new(&cost),
            up: Calendar::new(1, LINK_PAGE),
            down: Calendar::new(1, LINK_PAGE),
            store_latency: pcie.mmio_write_ns.0,
            stored: Ps::ZERO,
            tags: vec![Ps::ZERO; pcie.read_tags.get().min(MAX_TAGS) as usize],
            next_tag: 0,
            iommu: host.iommu.then(|| Iommu {
                translations: Cache::new(host.iommu_entries.get()),
                walkers: vec![Ps::ZERO; host.iommu_walkers.get().clamp(1, MAX_WALKERS) as usize],
                walk: host.iommu_ns.0,
            }),
            counts: PcieCounts::default(),
        }
    }

    /// What accesses cost from now on.
    pub(super) fn retrain(&mut self, cost: PcieCost) {
        (self.cost, self.whole) = (cost, Whole::new(&cost));
    }

    /// When an access to `address` (any number that is the same for the same page) that the host has at `asked` is translated.
    #[inline]
    fn remap(iommu: &mut Option<Iommu>, asked: Ps, address: u64) -> Ps {
        iommu.as_mut().map_or(asked, |iommu| iommu.translated(asked, address))
    }

    /// When a read of `bytes` at `address` that is issued at `start` has its last byte. No bytes take no time.
    pub fn read(&mut self, now: Ps, start: Ps, address: u64, bytes: usize) -> Ps {
        let Whole { bytes: most, alike, .. } = self.whole;
        // A whole request at a time; what would need more than all tags several times over is one
        // long transfer, whose requests hide behind its data.
        let most = if bytes > most * self.tags.len() { bytes } else { most };
        self.counts.read_bytes += bytes as u64;
        if bytes <= most {
            return if bytes > 0 { self.request(now, start, address, bytes) } else { start };
        }
        let (whole, rest) = (bytes / most, bytes % most);
        let done = match alike {
            true => self.requests(now, start, address, whole, most),
            false => (0..whole)
                .map(|i| self.request(now, start, address.wrapping_add((i * most) as u64), most))
                .fold(start, Ps::max),
        };
        match rest {
            0 => done,
            rest => done.max(self.request(now, start, address.wrapping_add((bytes - rest) as u64), rest)),
        }
    }

    /// When a single request has its last byte.
    #[inline]
    fn request(&mut self, now: Ps, start: Ps, address: u64, bytes: usize) -> Ps {
        let request = if bytes <= self.whole.bytes { self.whole.request } else { self.cost.request(bytes) };
        let Some(tag) = self.tags.get_mut(self.next_tag) else { return start };
        let issued = self.up.admit(now, start.max(*tag), request);
        let found = Self::remap(&mut self.iommu, issued, address) + self.cost.read_latency();
        let done = self.down.admit(now, found, self.cost.completion_at(address, bytes));
        *tag = done;
        self.next_tag = if self.next_tag + 1 < self.tags.len() { self.next_tag + 1 } else { 0 };
        self.counts.reads += 1;
        done
    }

    /// When the last of `count` requests for `bytes` each, one behind the other from `address` on, has its last byte.
    fn requests(&mut self, now: Ps, start: Ps, mut address: u64, count: usize, bytes: usize) -> Ps {
        let Self { cost, whole, up, down, tags, iommu, .. } = self;
        let completion = match address.is_multiple_of(cost.completion_chunk() as u64) {
            true => whole.completion,
            false => cost.completion_at(address, bytes),
        };
        let (request, latency) = (whole.request, cost.read_latency());
        let (mut done, mut left) = (start, count);
        while left > 0 {
            // Tags are used in turn, and each of these once: what has one is asked for when it is free.
            let Some(tags) = tags.get_mut(self.next_tag..).filter(|tags| !tags.is_empty()) else { break };
            let (last, all) = (tags.len() <= left, left.min(tags.len()));
            let Some(tags) = tags.get_mut(..all) else { break };
            self.next_tag = if last { 0 } else { self.next_tag + all };
            left -= all;
            // All at once, if none of them waits for its tag and the data of each for that of the one before.
            let free = tags.iter().fold(true, |free, tag| free & (*tag <= start));
            if iommu.is_none()
                && free
                && let Some(requests) = up.admit_row(now, (start, start), request, all as u64)
            {
                let ends = (requests.done(0) + latency, requests.done(all as u64 - 1) + latency);
                if let Some(row) = down.admit_row(now, ends, completion, all as u64) {
                    row.write_to(tags);
                    done = done.max(row.done(all as u64 - 1));
                    continue;
                }
                tags.iter_mut().zip(0..).for_each(|(tag, i)| *tag = requests.done(i));
            } else {
                tags.iter_mut().for_each(|tag| *tag = start.max(*tag));
                up.admit_all(now, tags, request);
            }
            for tag in tags.iter_mut() {
                *tag = Self::remap(iommu, *tag, address) + latency;
                address = address.wrapping_add(bytes as u64);
            }
            down.admit_all(now, tags, completion);
            done = tags.iter().fold(done, |done, tag| done.max(*tag));
        }
        self.counts.reads += (count - left) as u64;
        done
    }

    /// What a read of `bytes` at `address` takes that is several whole requests, if all such at places that many bytes apart take the same,
    /// and so many of them have tags of their own.
    pub(super) fn alike_reads(&self, address: u64, bytes: usize, reads: usize) -> Option<AlikeReads> {
        let Whole { bytes: most, alike, request, .. } = self.whole;
        let count = bytes / most;
        let regular = alike && count > 1 && count * reads <= self.tags.len() && bytes.is_multiple_of(most);
        (regular && self.iommu.is_none()).then(|| AlikeReads {
            count,
            request,
            completion: self.cost.completion_at(address, most),
            latency: self.cost.read_latency(),
        })
    }

    /// How far both directions are booked: to the host, and from it.
    pub(super) fn ahead(&self) -> (Ahead, Ahead) {
        (self.up.ahead(), self.down.ahead())
    }

    /// The tag that the next read takes.
    pub(super) fn next_tag(&self) -> usize {
        self.next_tag
    }

    /// The one behind `count` tags from that one on.
    #[inline]
    pub(super) fn tag_after(&self, tag: usize, count: usize) -> usize {
        let next = tag + count;
        if next < self.tags.len() { next } else { next - self.tags.len() }
    }

    /// Whether `count` tags from that one on, used in turn, are free at `start`.
    #[inline]
    pub(super) fn are_free(&self, tag: usize, count: usize, start: Ps) -> bool {
        let free = |tags: &[Ps]| tags.iter().fold(true, |free, tag| free & (*tag <= start));
        match self.tags.get(tag..tag + count) {
            Some(tags) => free(tags),
            None => {
                let after = self.tag_after(tag, count);
                self.tags.get(tag..).is_some_and(free) && self.tags.get(..after).is_some_and(free)
            }
        }
    }

    /// Books a read of so many requests from `start` on, of which is known that it waits for nothing; its tags begin at `tag`.
    pub(super) fn book_alike(
        &mut self,
        (now, start): (Ps, Ps),
        tag: usize,
        (count, request): (usize, Ps),
        (latency, completion): (Ps, Ps),
    ) {
        let last = count as u64 - 1;
        let Some(requests) = self.up.admit_row(now, (start, start), request, count as u64) else { return };
        let ends = (requests.done(0) + latency, requests.done(last) + latency);
        let Some(row) = self.down.admit_row(now, ends, completion, count as u64) else { return };
        let mut tag = tag;
        for i in 0..count as u64 {
            if let Some(tag) = self.tags.get_mut(tag) {
                *tag = row.done(i);
            }
            tag = self.tag_after(tag, 1);
        }
    }

    /// So many reads of so many whole requests were made, and `next` is the tag of the next.
    pub(super) fn count_alike(&mut self, reads: u64, requests: usize, next: usize) {
        self.counts.reads += reads * requests as u64;
        self.counts.read_bytes += reads * (requests * self.whole.bytes) as u64;
        self.next_tag = next;
    }

    /// What a write of `bytes` takes of the link, and then until the host sees it, if that is always the same.
    pub(super) fn idle_write(&self, bytes: usize) -> Option<(Ps, Ps)> {
        self.iommu.is_none().then(|| (self.cost.write(bytes), self.cost.write_latency()))
    }

    /// Books a write that takes so much of the link from `start` on.
    pub(super) fn book_write(&mut self, (now, start): (Ps, Ps), write: Ps) {
        self.up.admit(now, start, write);
    }

    /// So many writes of `bytes` each were made.
    pub(super) fn count_writes(&mut self, writes: u64, bytes: usize) {
        self.counts.writes += writes;
        self.counts.written_bytes += writes * bytes as u64;
    }

    /// When the host sees the last byte of a write of `bytes` to `address` that is issued at `start`. Writes keep their
    /// order. No bytes take no time.
    pub fn write(&mut self, now: Ps, start: Ps, address: u64, bytes: usize) -> Ps {
        if bytes == 0 {
            return start;
        }
        self.counts.writes += 1;
        self.counts.written_bytes += bytes as u64;
        let left = self.up.admit(now, start, self.cost.write(bytes));
        Self::remap(&mut self.iommu, left, address) + self.cost.write_latency()
    }

    /// From the departure of a write until the host sees it.
    pub const fn write_latency(&self) -> Ps {
        self.cost.write_latency()
    }

    /// The read and the write of an atomic that begins at `start`: they take room on the link.
    pub fn atomic(&mut self, now: Ps, start: Ps) {
        const OPERAND: usize = 8;
        self.up.admit(now, start, self.cost.request(OPERAND) + self.cost.write(OPERAND));
        self.down.admit(now, start, self.cost.completion(OPERAND));
        self.counts.reads += 1;
        self.counts.read_bytes += OPERAND as u64;
        self.counts.writes += 1;
        self.counts.written_bytes += OPERAND as u64;
    }

    /// When the link has taken all stores so far: until then a processor's write-combining buffers are full.
    pub const fn stores_taken(&self) -> Ps {
        self.stored
    }

    /// When the adapter has stores of `bytes` that the processor makes at `now`.
    pub fn store(&mut self, now: Ps, bytes: usize) -> Ps {
        self.counts.stores += 1;
        self.counts.stored_bytes += bytes as u64;
        let taken = self.down.admit(now, now, self.cost.stores(bytes));
        self.stored = self.stored.max(taken);
        taken + self.store_latency
    }

    /// What went over the link so far.
    pub const fn counts(&self) -> PcieCounts {
        self.counts
    }
}

impl Rebase for Bus {
    fn rebase(&mut self, by: Ps) {
        let Self {
            up,
            down,
            stored,
            tags,
            cost: _,
            whole: _,
            store_latency: _,
            next_tag: _,
            iommu: _,
            counts: _,
        } = self;
        up.rebase(by);
        down.rebase(by);
        stored.rebase(by);
        tags.rebase(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::random::SplitMix64;
    use crate::ground::timing::Memory;

    const NS: fn(u64) -> Ps = Ps::from_ns;

    fn bus(profile: &Profile) -> Bus {
        Bus::new(&Timing::new(profile))
    }

    #[test]
    fn a_read_takes_latency_and_its_data_s_time() {
        let profile = Profile::connectx4();
        let mut bus = bus(&profile);
        let cost = bus.cost;
        let idle = bus.read(NS(10), NS(10), 0, 64);
        assert_eq!(idle, NS(10) + cost.request(64) + cost.read_latency() + cost.completion(64));
        assert_eq!(bus.read(NS(5000), NS(5000), 0, 0), NS(5000));
        assert_eq!(bus.counts().reads, 1);
    }

    /// Request by request, as a read is defined.
    fn plain(bus: &mut Bus, now: Ps, start: Ps, address: u64, bytes: usize) -> Ps {
        let most = bus.cost.max_read_request();
        let pieces = (0..bytes).step_by(most).map(|at| (at, most.min(bytes - at)));
        pieces.map(|(at, len)| bus.request(now, start, address + at as u64, len)).fold(start, Ps::max)
    }

    #[test]
    fn a_read_is_its_requests() {
        for (tags, iommu) in [("9", false), ("16", false), ("64", false), ("64", true)] {
            let mut profile = Profile::connectx4();
            profile.set("pcie.read_tags", tags).unwrap();
            profile.set_iommu(iommu);
            let (mut fast, mut each) = (bus(&profile), bus(&profile));
            let mut random = SplitMix64(3);
            let mut now = Ps::ZERO;
            for i in 0..5_000 {
                now += Ps(random.below(1 << 19));
                let start = now + Ps(random.below(2) * random.below(1 << 18));
                let (address, bytes) = (random.below(1 << 40), [8, 64, 512, 700, 4096][i % 5]);
                let bytes = if random.below(4) == 0 { bytes / 2 } else { bytes };
                let expected = plain(&mut each, now, start, address, bytes);
                assert_eq!(fast.read(now, start, address, bytes), expected, "read {i} with {tags} tags");
                assert_eq!(fast.write(now, start, address, bytes), each.write(now, start, address, bytes));
                assert_eq!(fast.store(now, 64), each.store(now, 64), "store {i}");
            }
            assert_eq!(fast.counts().reads, each.counts().reads);
        }
    }

    #[test]
    fn tags_bound_reads() {
        let mut profile = Profile::connectx4();
        profile.set("pcie.read_tags", "2").unwrap();
        let mut bus = bus(&profile);
        let ends: Vec<_> = (0..4).map(|_| bus.read(Ps::ZERO, Ps::ZERO, 0, 64)).collect();
        let latency = bus.cost.read_latency();
        assert!(ends[1] < latency + NS(100), "two side by side");
        assert!(ends[2] > latency + latency, "the third waits for a tag");
    }

    #[test]
    fn stores_and_completions_share_a_direction() {
        let profile = Profile::connectx4();
        let mut one = bus(&profile);
        let idle = one.store(Ps::ZERO, 64);
        // 1 MiB of data comes in from the begin on.
        let mut other = bus(&profile);
        other.down.admit(Ps::ZERO, Ps::ZERO, other.cost.completion(1 << 20));
        assert!(other.store(Ps::ZERO, 64) > idle + Ps::from_us(50));
    }

    #[test]
    fn an_iommu_costs_where_it_does_not_know_the_page() {
        let mut profile = Profile::connectx4();
        profile.set_iommu(true);
        let mut bus = bus(&profile);
        let first = bus.read(Ps::ZERO, Ps::ZERO, 0x1000, 8);
        let then = NS(10_000);
        let second = bus.read(then, then, 0x1008, 8) - then;
        assert_eq!(first - second, profile.host.iommu_ns.0);
    }

    #[test]
    fn dram_and_the_other_socket_are_farther_away() {
        let near = Profile::connectx4();
        let mut far = near.clone();
        far.set_memory(Memory::Dram);
        let latency = |p: &Profile| bus(p).read(Ps::ZERO, Ps::ZERO, 0, 8);
        assert_eq!(latency(&far) - latency(&near), near.host.dram_ns.0);
        far.set_remote(true);
        assert_eq!(latency(&far) - latency(&near), near.host.dram_ns.0 + near.host.remote_ns.0);
    }
}
