//! Signalling rates.

/// Signalling rate of a link's lanes, the slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[allow(missing_docs, reason = "the rates' names")]
pub enum LinkSpeed {
    Sdr,
    Ddr,
    Qdr,
    /// The vendor's: the lanes of QDR with the line code of FDR.
    Fdr10,
    Fdr,
    #[default]
    Edr,
    Hdr,
}
