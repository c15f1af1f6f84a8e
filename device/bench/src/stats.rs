//! Percentiles and ranks.

/// The `p`-th percentile (0 to 100) of sorted values, between neighbours by proportion; NaN without values.
pub fn percentile(sorted: &[f64], p: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = (p / 100.0).clamp(0.0, 1.0) * last as f64;
    let low = place.floor();
    let at = |i: f64| sorted.get(i as usize).copied().unwrap_or(f64::NAN);
    let (a, b) = (at(low), at((low + 1.0).min(last as f64)));
    a + (b - a) * (place - low)
}

/// The values in ascending order.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The mean; NaN without values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Spearman's rank correlation of pairs: 1 if both orders agree. Equal values share the mean of their ranks. `None` for
/// fewer than two pairs, or if one side has only one value.
pub fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let xs = ranks(&pairs.iter().map(|p| p.0).collect::<Vec<_>>());
    let ys = ranks(&pairs.iter().map(|p| p.1).collect::<Vec<_>>());
    let middle = (pairs.len() as f64 + 1.0) / 2.0;
    let products =
        |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(x, y)| (x - middle) * (y - middle)).sum() };
    let spread = (products(&xs, &xs) * products(&ys, &ys)).sqrt();
    (pairs.len() > 1 && spread > 0.0).then(|| products(&xs, &ys) / spread)
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let below = |v: &f64| values.iter().filter(|o| o.total_cmp(v).is_lt()).count() as f64;
    let equal = |v: &f64| values.iter().filter(|o| o.total_cmp(v).is_eq()).count() as f64;
    values.iter().map(|v| below(v) + (equal(v) + 1.0) / 2.0).collect()
}

/// Random numbers from a seed: the same ones on any machine (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Numbers of that seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_their_neighbours() {
        let values = sorted([40.0, 10.0, 30.0, 20.0]);
        let p = |p| percentile(&values, p);
        assert_eq!((p(0.0), p(50.0), p(100.0)), (10.0, 25.0, 40.0));
        assert!((p(90.0) - 37.0).abs() < 1e-9);
        assert_eq!((percentile(&[7.0], 99.9), percentile(&[7.0], 0.0)), (7.0, 7.0));
        assert!(percentile(&[], 50.0).is_nan());
        assert_eq!(p(1000.0), 40.0, "beyond the end is the end");
    }

    #[test]
    fn ranks_share_ties() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 9.0]), [2.5, 1.0, 2.5, 4.0]);
    }

    #[test]
    fn spearman_looks_at_order_only() {
        let up = [(1.0, 1.0), (2.0, 10.0), (3.0, 11.0), (4.0, 1000.0)];
        assert_eq!(spearman(&up), Some(1.0));
        let down = up.map(|(x, y)| (x, -y));
        assert_eq!(spearman(&down), Some(-1.0));
        // One neighbouring pair of four in the wrong order: 1 - 6 * 2 / (4 * 15).
        let swapped = spearman(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)]);
        assert!((swapped.unwrap_or(0.0) - 0.8).abs() < 1e-9);
        assert_eq!(spearman(&[(1.0, 2.0)]), None);
        assert_eq!(spearman(&[(1.0, 2.0), (2.0, 2.0)]), None, "one side does not vary");
    }
}
