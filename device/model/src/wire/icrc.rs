//! The invariant CRC (IBTA vol 1 7.8.1): it covers what no switch or router may change.
//!
//! It is the CRC-32 of Ethernet (polynomial 0x04C11DB7, seed and final complement all ones) over all headers and the
//! payload to the end of the pad, with the fields that may change read as ones. Which those are in front of the BTH is the
//! link layer's knowledge. Bits of a byte count from the least significant on and travel in that order, so in the
//! bit-reflected form used here the register goes out in little-endian byte order.

use hca_spec::wire::{Bth, ICRC_SIZE};

/// The ICRC of a packet, as it travels: `before` is what stands in front of its BTH, with ones for what may change, and
/// `rest` all between BTH and ICRC.
pub(crate) fn icrc(before: &[&[u8]], bth: &Bth, rest: &[u8]) -> [u8; ICRC_SIZE] {
    let mut crc = crc32fast::Hasher::new();
    before.iter().for_each(|part| crc.update(part));
    crc.update(masked(bth).bytes());
    crc.update(rest);
    crc.finalize().to_le_bytes()
}

/// The BTH with its variable byte (Resv8a, beside the destination QP) as ones.
fn masked(bth: &Bth) -> Bth {
    const RESV8A: usize = 4;
    let mut bth = *bth;
    bth.bytes_mut()[RESV8A] = 0xff;
    bth
}
