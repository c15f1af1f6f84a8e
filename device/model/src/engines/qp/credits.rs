//! End-to-end credits: how many receive requests the responder has, told in its answers, and how far they let
//! the requester go.
//!
//! Source: IBTA 9.7.7.2, table 46 (credit codes).

use hca_spec::wire::aeth;

/// Message numbers have 24 bits.
const MASK: u32 = 0xff_ffff;
/// Half of their range: what lies further ahead is behind.
const HALF: u32 = 1 << 23;
/// The largest code that stands for a number.
const LAST_CODE: u32 = aeth::CREDITS_INVALID - 1;

/// What a credit code stands for; `None`: the responder does not count.
pub(super) fn decode(code: u32) -> Option<u32> {
    match code {
        0 | 1 => Some(code),
        // Powers of two and their one and a half folds take turns.
        2..=LAST_CODE => Some((2 + (code & 1)) << (code / 2 - 1)),
        _ => None,
    }
}

/// The code of the largest number that is not above `credits`.
pub(super) fn encode(credits: u32) -> u32 {
    match credits.checked_ilog2() {
        None | Some(0) => credits,
        Some(log) => (2 * log + (credits >> (log - 1) & 1)).min(LAST_CODE),
    }
}

/// Up to which message the requester may go. Nothing is known before the first answer: then the responder's
/// RNR NAK is the only limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Limit(Option<u32>);

impl Limit {
    /// The responder has completed `msn` messages and has `credits` requests for more.
    pub(super) fn update(&mut self, msn: u32, credits: Option<u32>) {
        self.0 = credits.map(|credits| {
            let told = msn.wrapping_add(credits) & MASK;
            match self.0 {
                // An older answer takes nothing back.
                Some(known) if known.wrapping_sub(told) & MASK < HALF => known,
                _ => told,
            }
        });
    }

    /// Whether message number `ssn` has its credit.
    pub(super) fn allows(&self, ssn: u32) -> bool {
        self.0.is_none_or(|limit| limit.wrapping_sub(ssn) & MASK < HALF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 46, as printed.
    #[test]
    fn codes() {
        const TABLE: [u32; 31] = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
            3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, credits) in (0..).zip(TABLE) {
            assert_eq!((decode(code), encode(credits)), (Some(credits), code));
        }
        assert_eq!(decode(31), None);
        assert_eq!((encode(5), encode(7), encode(47), encode(u32::MAX)), (4, 5, 10, 30));
    }

    #[test]
    fn limits() {
        let mut limit = Limit::default();
        assert!(limit.allows(1) && limit.allows(MASK));
        limit.update(0xff_fffe, Some(3));
        assert!(limit.allows(0xff_ffff) && limit.allows(1) && !limit.allows(2));
        limit.update(0xff_fffd, Some(3));
        assert!(limit.allows(1), "an older answer");
        limit.update(1, Some(0));
        assert!(limit.allows(1) && !limit.allows(2));
        limit.update(1, None);
        assert!(limit.allows(2));
    }
}
