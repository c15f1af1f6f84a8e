//! What one host's memory may cost this process: its share of what the system gives, so that no host takes another's.

use std::fs;

/// What the kernel allows without having been told otherwise (`DEFAULT_MAX_MAP_COUNT`, include/linux/mm.h).
const DEFAULT_MAP_COUNT: usize = 65530;
/// Mappings that are nobody's share: programs, libraries, stacks, and above all the heap, which ends the process when it
/// gets no further mapping. A server with hundreds of adapters has some hundred.
const OWN_MAPPINGS: usize = 8192;
/// A host with 256 GiB behind an IOMMU of its own, page by page, needs that many blocks ([`BLOCK`]); one without, a few.
const MOST_MAPPINGS: usize = 4096;
/// Half of the addresses that a process has on x86-64 and AArch64 (2^47 and 2^48): the rest is the heap's.
const ADDRESSES: u64 = 1 << 46;
/// More memory than a host has.
const MOST_BYTES: u64 = 1 << 44;
/// A window is mapped with what is beside it in its file up to multiples of this, so that page-sized windows (a guest with
/// an IOMMU makes thousands) share mappings.
pub(super) const BLOCK: u64 = 64 << 20;

/// Limits for the memory of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Mappings, those that are being undone included.
    pub mappings: usize,
    /// Bytes of address space of these.
    pub bytes: u64,
}

impl Limits {
    /// Equal shares for so many hosts of this process.
    pub fn shared_by(hosts: usize) -> Limits {
        let text = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
        Limits::of(text.trim().parse().unwrap_or(DEFAULT_MAP_COUNT), hosts)
    }

    fn of(map_count: usize, hosts: usize) -> Limits {
        let hosts = hosts.max(1);
        let mappings = map_count.saturating_sub(OWN_MAPPINGS) / hosts;
        let bytes = ADDRESSES / u64::try_from(hosts).unwrap_or(u64::MAX);
        Limits { mappings: mappings.clamp(1, MOST_MAPPINGS), bytes: bytes.min(MOST_BYTES) }
    }
}

impl Default for Limits {
    /// Those of a process with one host, if the system says nothing of its own.
    fn default() -> Limits {
        Limits::of(DEFAULT_MAP_COUNT, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_leave_room() {
        for hosts in [0, 1, 2, 13, 14, 64, 1000, 50_000] {
            let limits = Limits::of(DEFAULT_MAP_COUNT, hosts);
            assert!(limits.mappings * hosts + OWN_MAPPINGS <= DEFAULT_MAP_COUNT, "{hosts}: {limits:?}");
            assert!(limits.bytes * hosts as u64 <= ADDRESSES, "{hosts}: {limits:?}");
        }
        assert_eq!(Limits::of(DEFAULT_MAP_COUNT, 1), Limits { mappings: 4096, bytes: MOST_BYTES });
        assert_eq!(Limits::of(0, 4).mappings, 1);
    }
}
