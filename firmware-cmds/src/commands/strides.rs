//! Strides of receive WQEs, as the work queues of RQs and pools say them. Source: PRM "Striding RQ", "Work Queue"; mlx5 driver
//! (which codes stand for how many strides).

use hca_spec::caps::General;
use hca_spec::queue::Wq;

use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::rq::{Strides, WqKind};

/// log2 of a stride's bytes, for code 0.
const LEAST_SIZE: u32 = 6;
/// log2 of the strides of a WQE, for code 0.
const COUNT: u32 = 9;
/// Codes of more strides than that: log2 less 9.
const MORE: std::ops::RangeInclusive<u32> = 0..=7;
/// Codes of fewer: log2 less 9, a number of 4 bits with a sign.
const FEWER: std::ops::RangeInclusive<u32> = 10..=15;
const CODES: u32 = 16;

/// The strides of a queue's WQEs, if its kind has some.
pub(super) fn of(fw: &Firmware, kind: WqKind, wq: &Wq) -> Result<Option<Strides>, Failure> {
    const STRIDES: Failure =
        bad_param("WQ: wq_type: packets can't take strides of a WQE (striding_rq is not announced)");
    const SHIFT: Failure = bad_param("WQ: two_byte_shift_en: only queues whose packets take strides have it");
    let shifted = wq.get(Wq::TWO_BYTE_SHIFT_EN) == 1;
    if !kind.is_striding() {
        return if shifted { Err(SHIFT) } else { Ok(None) };
    }
    if fw.general.get(General::STRIDING_RQ) == 0 {
        return Err(STRIDES.got(wq.get(Wq::WQ_TYPE)));
    }
    let log_count = log_count(wq.get(Wq::LOG_WQE_NUM_OF_STRIDES), fw.personality().few_strides)?;
    Ok(Some(Strides { log_size: wq.get(Wq::LOG_WQE_STRIDE_SIZE) + LEAST_SIZE, log_count, shifted }))
}

/// log2 of the number that a code stands for; `few`: those of few strides, too.
fn log_count(code: u32, few: bool) -> Result<u32, Failure> {
    const MANY: Failure = bad_param(
        "WQ: log_wqe_num_of_strides must be 0 to 7 (2^9 to 2^16 strides), or 10 to 15 (2^3 to 2^8) of an adapter later than ConnectX-4",
    );
    match code {
        code if MORE.contains(&code) => Ok(COUNT + code),
        code if few && FEWER.contains(&code) => Ok((COUNT + code).saturating_sub(CODES)),
        other => Err(MANY.got(other)),
    }
}

/// Puts strides into a work queue, as [`of`] reads them.
pub(super) fn tell(strides: &Strides, wq: &mut Wq) {
    wq.set(Wq::LOG_WQE_STRIDE_SIZE, strides.log_size.saturating_sub(LEAST_SIZE));
    wq.set(Wq::LOG_WQE_NUM_OF_STRIDES, strides.log_count.wrapping_sub(COUNT) % CODES);
    wq.set(Wq::TWO_BYTE_SHIFT_EN, strides.shifted.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The driver's list: 3 to 8 are 10 to 15, 9 to 16 are 0 to 7.
    #[test]
    fn codes_of_numbers() {
        for (allowed, few) in [(false, None), (true, Some(3))] {
            let got: Vec<_> = (0..CODES).map(|code| log_count(code, allowed).ok()).collect();
            assert_eq!(got[..8], [9, 10, 11, 12, 13, 14, 15, 16].map(Some));
            assert_eq!(got[8..10], [None; 2]);
            assert_eq!(got[10..], [0, 1, 2, 3, 4, 5].map(|n| few.map(|few| few + n)));
        }
        for log_count in 3..=16 {
            let mut wq = Wq::new();
            tell(&Strides { log_size: 13, log_count, shifted: true }, &mut wq);
            assert_eq!(super::log_count(wq.get(Wq::LOG_WQE_NUM_OF_STRIDES), true), Ok(log_count));
            assert_eq!((wq.get(Wq::LOG_WQE_STRIDE_SIZE), wq.get(Wq::TWO_BYTE_SHIFT_EN)), (7, 1));
        }
    }
}
