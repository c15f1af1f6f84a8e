//! Strides of a receive WQE: what a frame takes of it, and what its completion says of that.
//!
//! A frame begins at a stride and takes as many as it needs, one behind the other, of one WQE. What is left at the end of a
//! WQE and too little for the frame that comes is passed over: a filler says so.
//!
//! Source: PRM "Striding RQ"; mlx5 driver (`en_rx.c`, `mpwrq_get_cqe_consumed_strides` and beside it).

use hca_firmware::Strides;
use hca_spec::cqe::{Cqe, CqeOpcode};

use super::receive::{ReceiveRules, empty_cqe};

/// Bytes that a queue with `two_byte_shift_en` leaves in front of a frame.
pub(crate) const SHIFT: usize = 2;

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Into so many strides of the WQE that is open.
    Here(u32),
    /// Into the next WQE: of the open one so many strides are passed over.
    Next(u32),
    /// It is longer than a whole WQE.
    Never,
}

/// Where a frame of so many bytes goes, if so many strides of the open WQE are taken.
pub(crate) fn fit(strides: &Strides, used: u32, len: usize) -> Fit {
    let len = len.saturating_add(strides.front()).max(1) as u64;
    let needed = len.div_ceil(strides.size());
    let (count, left) = (strides.count(), strides.count().saturating_sub(used));
    match u32::try_from(needed) {
        Ok(needed) if needed <= left => Fit::Here(needed),
        Ok(needed) if needed <= count => Fit::Next(left),
        _ => Fit::Never,
    }
}

/// Puts the place of a frame into its completion: the WQE, its first stride, and how many there are.
pub(crate) fn tell_place(cqe: &mut Cqe, wqe: u16, first: u32, count: u32) {
    cqe.set(Cqe::WQE_ID, wqe.into()).set(Cqe::WQE_COUNTER, first);
    // Frames have less than 64 KiB.
    let bytes = cqe.get(Cqe::BYTE_CNT);
    cqe.set(Cqe::BYTE_CNT, 0).set(Cqe::STRIDE_BYTES, bytes).set(Cqe::CONSUMED_STRIDES, count);
}

/// The completion of strides that are passed over.
pub(crate) fn filler(rules: &ReceiveRules, wqe: u16, first: u32, count: u32) -> Cqe {
    let mut cqe = empty_cqe(rules, CqeOpcode::RespSend, 0);
    tell_place(&mut cqe, wqe, first, count);
    cqe.set(Cqe::FILLER, 1);
    cqe
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIDES: Strides = Strides { log_size: 6, log_count: 9, shifted: false };

    #[test]
    fn frames_take_whole_strides_of_one_wqe() {
        for (used, len, fits) in [
            (0, 1, Fit::Here(1)),
            (0, 0, Fit::Here(1)),
            (0, 64, Fit::Here(1)),
            (0, 65, Fit::Here(2)),
            (510, 128, Fit::Here(2)),
            (510, 129, Fit::Next(2)),
            (512, 1, Fit::Next(0)),
            (0, 512 * 64, Fit::Here(512)),
            (1, 512 * 64, Fit::Next(511)),
            (0, 512 * 64 + 1, Fit::Never),
            (0, usize::MAX, Fit::Never),
        ] {
            assert_eq!(fit(&STRIDES, used, len), fits, "{len} bytes at {used}");
        }
        let shifted = Strides { shifted: true, ..STRIDES };
        assert_eq!((fit(&shifted, 0, 62), fit(&shifted, 0, 63)), (Fit::Here(1), Fit::Here(2)));
    }

    /// As the driver takes it apart.
    #[test]
    fn completions_say_where() {
        let rules = ReceiveRules::default();
        let cqe = filler(&rules, 0x123, 510, 2);
        let b = cqe.bytes();
        assert_eq!((b[2..4].to_vec(), b[0x3c..0x3e].to_vec()), (vec![1, 0x23], vec![1, 0xfe]));
        assert_eq!(b[0x2c..0x30], [0x80, 2, 0, 0]);
        let mut cqe = empty_cqe(&rules, CqeOpcode::RespSend, 7);
        cqe.set(Cqe::BYTE_CNT, 1514);
        tell_place(&mut cqe, 5, 8, 24);
        assert_eq!(cqe.bytes()[0x2c..0x30], [0, 24, 5, 0xea]);
    }
}
