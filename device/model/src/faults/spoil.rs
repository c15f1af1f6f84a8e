//! Bits that flip.

use super::Random;

/// Flips `bits` random bits of `bytes`: different ones, as long as there are so many.
pub(crate) fn flip_bits(bytes: &mut [u8], bits: u32, random: Random<'_>) {
    let all = (bytes.len() as u64).saturating_mul(8);
    let mut flipped = Vec::new();
    for _ in 0..u64::from(bits).min(all) {
        let mut bit = random.below(all);
        while flipped.contains(&bit) {
            bit = (bit + 1) % all.max(1);
        }
        flipped.push(bit);
        if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::random::SplitMix64;

    #[test]
    fn as_many_as_asked_for() {
        for (len, bits, expected) in [(64, 1, 1), (64, 17, 17), (2, 16, 16), (2, 99, 16), (0, 5, 0)] {
            let mut bytes = vec![0u8; len];
            flip_bits(&mut bytes, bits, &mut SplitMix64(7));
            let ones: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(ones, expected, "{bits} of {len} bytes");
        }
    }
}
