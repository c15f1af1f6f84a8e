//! What looks random and is the same on every platform, for the same seed.
//!
//! Source: SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).

/// 2^64 over the golden ratio: multiples of it lie far apart.
pub(crate) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of a number: like ones give unlike ones.
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A source of random numbers, by its seed: small, and without a dependency.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(SPREAD);
        mix(self.0)
    }

    /// True with that probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        // 53 random bits: each is a double in 0.0..1.0.
        let draw = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        draw < probability
    }

    /// A number below `n`; 0 if `n` is 0. The bias (n / 2^64) doesn't matter here.
    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        ((self.next() as u128 * n as u128) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_first_values_of_splitmix64() {
        // Seed 1234567, as in the reference implementation's widely used test vector.
        let mut r = SplitMix64(1_234_567);
        let first = [r.next(), r.next(), r.next()];
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
