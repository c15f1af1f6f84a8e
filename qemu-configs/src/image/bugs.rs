//! Kernels with bugs of their own that RDMA programs meet, so that nobody looks for them here.

/// A bug of stock kernels.
#[derive(Debug)]
pub struct Bug {
    /// The series that has it: major, minor.
    series: (u64, u64),
    /// The first release of the series without it, if there is one.
    mended: Option<u64>,
    /// What happens.
    pub what: &'static str,
}

/// Those that were met here and looked up in the sources.
const KNOWN: [Bug; 1] = [Bug {
    series: (6, 1),
    mended: Some(192),
    what: "crashes in process_one_work after a program has used an implicit on-demand paging region: its child is \
           destroyed twice (mlx5_ib_invalidate_range); mended in 6.1.192",
}];

/// What is known of a kernel of this version (`6.1.176-1`, or what `uname -r` says of one that was built from the sources).
pub fn known(version: &str) -> Vec<&'static Bug> {
    let mut numbers = version.split(['.', '-', '+', '~']).map_while(|number| number.parse::<u64>().ok());
    let (Some(major), Some(minor), Some(release)) = (numbers.next(), numbers.next(), numbers.next()) else {
        return Vec::new();
    };
    KNOWN
        .iter()
        .filter(|bug| bug.series == (major, minor) && bug.mended.is_none_or(|mended| release < mended))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_mended() {
        assert_eq!(known("6.1.176-1").len(), 1);
        assert_eq!(known("6.1.192-1").len(), 0);
        assert_eq!(known("6.12.107-1").len(), 0);
        assert_eq!(known("7.2.12-1~bpo13+1").len(), 0);
        assert_eq!(known("").len(), 0);
    }
}
