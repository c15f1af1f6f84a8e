//! Random numbers for tests: the same seed gives the same numbers on every machine.

/// A small generator (xorshift64*, Vigna 2016).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers are those of `seed`.
    pub const fn new(seed: u64) -> Self {
        // Seeds that differ in one bit shall differ at once, and zero would stay zero.
        let mixed = (seed ^ seed >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    /// 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`, which is not zero.
    pub const fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }

    /// True once in `n` times.
    pub const fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`, which is not empty.
    pub const fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// So many random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 7);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.bits().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_histories() {
        let take = |seed| {
            let mut random = Random::new(seed);
            [random.bits(), random.bits(), random.bits()]
        };
        assert_eq!(take(1), take(1));
        for seed in 0..64 {
            assert_ne!(take(seed), take(seed + 1));
        }
        assert_eq!(Random::new(3).bytes(11).len(), 11);
        assert!((0..100).all(|seed| Random::new(seed).below(7) < 7));
    }
}
