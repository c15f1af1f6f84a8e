//! Kernels with bugs of their own that RDMA programs meet, so that nobody looks for them here.

/// A bug of stock kernels.
#[derive(Debug)]
pub struct Bug {
    /// The series that have it, as far as that is known: major, minor.
    series: &'static [(u64, u64)],
    /// The first release of the series without it, if there is one.
    mended: Option<u64>,
    /// Whether ordinary programs meet it: runs say so, too. Others want a fault of the adapter, or a rare moment.
    pub is_common: bool,
    /// What happens.
    pub what: &'static str,
}

/// Those that were met here. Which releases have them was looked up in the sources where `mended` says so; of the others the series in
/// which they were seen are listed.
const KNOWN: [Bug; 7] = [
    Bug {
        series: &[(6, 1)],
        mended: Some(192),
        is_common: true,
        what: "crashes in process_one_work after a program has used an implicit on-demand paging region: its child is \
               destroyed twice (mlx5_ib_invalidate_range); mended in 6.1.192",
    },
    Bug {
        series: &[(6, 1), (6, 12)],
        mended: None,
        is_common: false,
        what: "may warn in ib_umem_odp_map_dma_and_lock (umem_odp.c) when a page fault of the adapter comes between a \
               prefetch's look at the page tables and its lock; some dozens of runs of rdma-core's tests met it once",
    },
    Bug {
        series: &[(6, 12)],
        mended: None,
        is_common: false,
        what: "crashes at the reload after a start of the firmware has made an Ethernet port one of InfiniBand: its flow \
               tables are freed twice (root_ns); seen on 6.12.117",
    },
    Bug {
        series: &[(7, 2)],
        mended: None,
        is_common: false,
        what: "crashed once in its work of multicast joins (mcast_work_handler) when a cable came back; seen on 7.2.12, why \
               is not known",
    },
    Bug {
        series: &[(6, 1), (6, 12), (7, 2)],
        mended: None,
        is_common: false,
        what: "lets go of a command's entry twice when the event of that command comes twice (refcount_t: underflow below \
               cmd_ent_put); 6.1 may be lost by it",
    },
    Bug {
        series: &[(6, 1)],
        mended: None,
        is_common: false,
        what: "may not get to the end of removing an adapter that is taken out of its slot without a word: the work upon a \
               transmit timeout and the removal wait for each other's lock",
    },
    Bug {
        series: &[(6, 1)],
        mended: None,
        is_common: false,
        what: "tells `ethtool -m` that no byte was read, and no error, when firmware does not answer: what is printed is \
               ethtool's own buffer",
    },
];

/// What is known of a kernel of this version (`6.1.176-1`, or what `uname -r` says of one that was built from the sources).
pub fn known(version: &str) -> Vec<&'static Bug> {
    let mut numbers = version.split(['.', '-', '+', '~']).map_while(|number| number.parse::<u64>().ok());
    let (Some(major), Some(minor), Some(release)) = (numbers.next(), numbers.next(), numbers.next()) else {
        return Vec::new();
    };
    KNOWN
        .iter()
        .filter(|bug| {
            bug.series.contains(&(major, minor)) && bug.mended.is_none_or(|mended| release < mended)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_series_until_mended() {
        let count = |version: &str| known(version).len();
        assert_eq!(count("6.1.176-1"), count("6.1.192-1") + 1, "one of them was mended");
        assert!(known("6.1.176-1").iter().any(|bug| bug.is_common), "the one that runs tell");
        assert!(!known("6.1.192-1").iter().any(|bug| bug.is_common));
        let says = |version: &str, word: &str| known(version).iter().any(|bug| bug.what.contains(word));
        assert!(says("6.12.107-1", "root_ns") && !says("6.1.192-1", "root_ns"));
        assert!(says("7.2.12-1~bpo13+1", "mcast_work_handler") && !says("6.12.107-1", "mcast_work_handler"));
        assert!(says("6.1.192-1", "ethtool") && !says("7.2.12-1", "ethtool"));
        assert!(says("7.2.12-1", "cmd_ent_put") && says("6.12.118-1", "umem_odp.c"));
        assert_eq!([count("7.3.4-1"), count("5.10.200-1"), count("")], [0; 3]);
    }
}
