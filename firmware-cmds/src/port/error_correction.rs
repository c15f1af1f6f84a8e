//! Forward error correction of an Ethernet port.
//!
//! Source: IEEE 802.3 clauses 74 (BASE-R), 91 and 108 (Reed-Solomon), and which rates have them (table 80-2, 110.1, 69.1);
//! PRM "PPLM". The links of the model have no bit errors: what is chosen is told, and changes nothing else.

use hca_spec::register::fec;

use super::Port;

/// What software wants, for each kind of rate; 0 = the port chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wanted {
    /// At 10 and 40 Gb/s.
    pub(crate) at_10_40: u32,
    /// At 25 Gb/s.
    pub(crate) at_25: u32,
    /// At 50 Gb/s.
    pub(crate) at_50: u32,
    /// At 56 Gb/s.
    pub(crate) at_56: u32,
    /// At 100 Gb/s.
    pub(crate) at_100: u32,
}

/// What there is at 10, 40 and 56 Gb/s.
pub(crate) const SLOW: u32 = fec::NONE | fec::FIRECODE;
/// What there is at 25 and 50 Gb/s.
pub(crate) const LANES_OF_25: u32 = fec::NONE | fec::FIRECODE | fec::RS_528_514;
/// What there is at 100 Gb/s.
pub(crate) const FOUR_LANES_OF_25: u32 = fec::NONE | fec::RS_528_514;

impl Port {
    /// What holds; 0: the link is down.
    pub(crate) fn active_correction(&self) -> u32 {
        let rates = self.rates();
        let Some(wanted) = self.ethernet().map(|eth| eth.correction).filter(|_| rates.active != 0) else {
            return 0;
        };
        // Rates are in 100 Mb/s.
        let (wanted, otherwise) = match rates.rate {
            ..=100 | 400 => (wanted.at_10_40, fec::NONE),
            250 => (wanted.at_25, fec::RS_528_514),
            500 => (wanted.at_50, fec::RS_528_514),
            560 => (wanted.at_56, fec::NONE),
            _ => (wanted.at_100, fec::RS_528_514),
        };
        // The strongest of several.
        match wanted.checked_ilog2() {
            Some(strongest) => 1 << strongest,
            None => otherwise,
        }
    }
}
