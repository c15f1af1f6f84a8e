//! Cross-validation: the numbers are fitted to the rows of some sources and judged by those of the others, all ways.
//!
//! What is fitted is a factor for each number, the same in every profile. Its effect on a row is taken from [`Responses`], as a power:
//! that far a run need not be made for each try. Since the numbers of the profiles were chosen with all rows in sight, each fit begins
//! with every number off by a random factor, up or down by the share by which the responses were measured: what its sources don't tell it stays off. But for
//! numbers that a document tells ([`numbers::is_documented`]), which nobody chose by rows: they begin where they are.
//!
//! One start says as much of the dice as of the sources: a way is fitted from [`STARTS`] of them, and its errors are those of all.

use std::collections::BTreeMap;

use crate::numbers;
use crate::sensitivity::{Response, Responses};
use crate::stats::{self, Random};

/// What a fit takes for the error that a row has in any case.
const NOISE: f64 = 0.1;
/// Rounds in which rows that don't fit get less weight.
const ROUNDS: usize = 8;
/// Starts of each way.
pub const STARTS: u64 = 16;

/// Rows and responses as logarithms.
pub struct Problem {
    sources: Vec<String>,
    /// Of each row: its source, the logarithm of modelled over published.
    rows: Vec<(usize, f64)>,
    /// Of each number: its key, and the exponent with which each row follows it.
    numbers: Vec<(String, Vec<f64>)>,
    /// Those that a document tells, in every profile.
    documented: Vec<bool>,
    by: f64,
}

/// One way to divide the sources, and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// The sources that were fitted to.
    pub fitted: Vec<String>,
    /// The others.
    pub judged: Vec<String>,
    /// The factor of each number by its key, from the first start.
    pub factors: BTreeMap<String, f64>,
    /// Rows judged; of their absolute errors from all starts:
    pub rows: usize,
    /// Half of the errors are not larger.
    pub median: f64,
    /// 90 of 100 are not larger.
    pub p90: f64,
    /// Median and 90th percentile of the first start alone.
    pub first: (f64, f64),
    /// The same of each source that was judged, from all starts.
    pub by_source: Vec<(String, f64, f64)>,
}

impl Problem {
    /// Of the responses, as far as they have logarithms.
    pub fn new(responses: &Responses) -> Self {
        let mut sources: Vec<String> = responses.places.iter().map(|p| p.source.clone()).collect();
        sources.sort();
        sources.dedup();
        let good: Vec<usize> = (0..responses.places.len())
            .filter(|i| responses.places.get(*i).is_some_and(|p| p.measured > 0.0 && p.modelled > 0.0))
            .collect();
        let row = |i: &usize| {
            let place = responses.places.get(*i)?;
            let source = sources.iter().position(|s| *s == place.source)?;
            Some((source, (place.modelled / place.measured).ln()))
        };
        let rows = good.iter().filter_map(row).collect();
        // A count of 4 is 3 and 5, not 3.2 and 4.8: its profile says how far it was moved.
        let exponent = |number: &Response, i: usize| {
            let at = |v: &[f64]| v.get(i).copied().filter(|v| *v > 0.0);
            let profile = responses.places.get(i).map_or("", |place| place.profile.as_str());
            let span = number.ratio(profile, responses.by).ln();
            let moved = at(&number.high).zip(at(&number.low)).filter(|_| span > 0.0);
            moved.map_or(0.0, |(high, low)| (high / low).ln() / span)
        };
        let told = |n: &Response| {
            !n.values.is_empty() && n.values.values().all(|(_, rests_on)| numbers::is_documented(rests_on))
        };
        let (numbers, documented) = responses
            .numbers
            .iter()
            .map(|n| ((n.key.clone(), good.iter().map(|i| exponent(n, *i)).collect::<Vec<f64>>()), told(n)))
            .filter(|((_, exponents), _)| exponents.iter().any(|e| *e != 0.0))
            .unzip();
        Self { sources, rows, numbers, documented, by: responses.by }
    }

    /// Keys of the numbers that begin where they are.
    pub fn documented(&self) -> impl Iterator<Item = &str> {
        self.numbers.iter().zip(&self.documented).filter(|(_, told)| **told).map(|((key, _), _)| key.as_str())
    }

    /// Every way to fit to half of the sources (of an odd number, one more and one less) and judge by the rest.
    pub fn ways(&self, seed: u64) -> Vec<Way> {
        let count = self.sources.len().min(16);
        let halves = [count / 2, count.div_ceil(2)];
        let sets = (0u32..1 << count).filter(|set| halves.contains(&(set.count_ones() as usize)));
        sets.map(|set| self.way(|source| set >> source & 1 == 1, seed ^ u64::from(set))).collect()
    }

    /// Every source judged by what the others say.
    pub fn one_by_one(&self, seed: u64) -> Vec<Way> {
        (0..self.sources.len()).map(|one| self.way(|source| source != one, seed ^ one as u64)).collect()
    }

    fn way(&self, fitted: impl Fn(usize) -> bool, seed: u64) -> Way {
        let mut random = Random::new(seed);
        let mut off = || {
            let sign = if random.below(2) == 0 { -1.0 } else { 1.0 };
            (1.0 + sign * self.by).ln()
        };
        let mut start =
            || -> Vec<f64> { self.documented.iter().map(|told| if *told { 0.0 } else { off() }).collect() };
        let found: Vec<Vec<f64>> = (0..STARTS).map(|_| self.fit(&fitted, &start())).collect();
        let errors = |found: &[Vec<f64>], wanted: &dyn Fn(usize) -> bool| {
            let rows = || (0..self.rows.len()).filter(|i| self.rows.get(*i).is_some_and(|row| wanted(row.0)));
            let sorted = stats::sorted(
                found.iter().flat_map(|x| rows().map(|i| (self.error(i, x).exp() - 1.0).abs())),
            );
            (stats::percentile(&sorted, 50.0), stats::percentile(&sorted, 90.0))
        };
        let judged = |source: usize| !fitted(source);
        let rows = self.rows.iter().filter(|row| judged(row.0)).count();
        let (median, p90) = errors(&found, &judged);
        let first = errors(found.get(..1).unwrap_or_default(), &judged);
        let (mut names, mut others, mut by_source) = (Vec::new(), Vec::new(), Vec::new());
        for (source, name) in self.sources.iter().enumerate() {
            if fitted(source) {
                names.push(name.clone());
                continue;
            }
            others.push(name.clone());
            let (median, p90) = errors(&found, &|s| s == source);
            by_source.push((name.clone(), median, p90));
        }
        let at = found.first().map_or(&[][..], |x| x);
        let factors = self.numbers.iter().zip(at).map(|((key, _), x)| (key.clone(), x.exp())).collect();
        Way { fitted: names, judged: others, factors, rows, median, p90, first, by_source }
    }

    /// The logarithm of modelled over published of row `i` with those logarithms of factors.
    fn error(&self, i: usize, x: &[f64]) -> f64 {
        let own = self.rows.get(i).map_or(0.0, |row| row.1);
        let follows = |((_, exponents), x): (&(String, Vec<f64>), &f64)| {
            exponents.get(i).copied().unwrap_or_default() * x
        };
        own + self.numbers.iter().zip(x).map(follows).sum::<f64>()
    }

    /// Logarithms of factors, from `start` on: least absolute errors of the rows of those sources, and as little moved as that needs.
    fn fit(&self, fitted: impl Fn(usize) -> bool, start: &[f64]) -> Vec<f64> {
        /// What is nearer than that counts as found.
        const CLOSE: f64 = 0.02;
        let rows: Vec<usize> =
            (0..self.rows.len()).filter(|i| self.rows.get(*i).is_some_and(|row| fitted(row.0))).collect();
        // What no row feels stays where it is.
        let felt: Vec<(usize, &Vec<f64>)> = self
            .numbers
            .iter()
            .map(|(_, exponents)| exponents)
            .enumerate()
            .filter(|(_, e)| rows.iter().any(|i| e.get(*i).is_some_and(|e| *e != 0.0)))
            .collect();
        let n = felt.len();
        let stiff = (NOISE / (1.0 + self.by).ln()).powi(2);
        let mut x = start.to_vec();
        for _ in 0..ROUNDS {
            // Normal equations of the step from `start`.
            let mut matrix = vec![vec![0.0; n + 1]; n];
            for &i in &rows {
                let weight = NOISE / self.error(i, &x).abs().max(CLOSE);
                let off = self.error(i, start);
                let exponents: Vec<f64> =
                    felt.iter().map(|(_, e)| e.get(i).copied().unwrap_or_default()).collect();
                for (line, a) in matrix.iter_mut().zip(&exponents) {
                    if *a != 0.0 {
                        line.iter_mut().zip(&exponents).for_each(|(cell, b)| *cell += weight * a * b);
                        line.last_mut().into_iter().for_each(|cell| *cell -= weight * a * off);
                    }
                }
            }
            for (i, line) in matrix.iter_mut().enumerate() {
                line.get_mut(i).into_iter().for_each(|cell| *cell += stiff);
            }
            for ((place, _), step) in felt.iter().zip(solve(matrix)) {
                if let (Some(x), Some(start)) = (x.get_mut(*place), start.get(*place)) {
                    *x = start + step;
                }
            }
        }
        x
    }
}

/// Solves linear equations, each a line with its right side at the end, whose matrix is positive definite.
fn solve(mut lines: Vec<Vec<f64>>) -> Vec<f64> {
    let n = lines.len();
    for i in 0..n {
        let (above, below) = lines.split_at_mut(i + 1);
        let Some(pivot) = above.last() else { break };
        let first = pivot.get(i).copied().unwrap_or(1.0);
        for line in below {
            let share = line.get(i).copied().unwrap_or_default() / first;
            line.iter_mut().zip(pivot).skip(i).for_each(|(cell, p)| *cell -= share * p);
        }
    }
    let mut x = vec![0.0; n];
    for (i, line) in lines.iter().enumerate().rev() {
        let known: f64 = line.iter().zip(&x).skip(i + 1).map(|(a, x)| a * x).sum();
        let right = line.last().copied().unwrap_or_default();
        if let (Some(place), Some(own)) = (x.get_mut(i), line.get(i)) {
            *place = (right - known) / own;
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensitivity::Place;

    /// Rows of four sources that follow three numbers: all follow one, two sources the second, one the third.
    fn responses() -> Responses {
        let mut places = Vec::new();
        let mut follows: Vec<[f64; 3]> = Vec::new();
        for (s, source) in ["A", "B", "C", "D"].iter().enumerate() {
            for i in 0..10 {
                let modelled = 100.0 + 10.0 * i as f64;
                let place = Place {
                    line: places.len() + 2,
                    source: (*source).into(),
                    profile: "p".into(),
                    measured: modelled * if i % 2 == 0 { 1.01 } else { 0.99 },
                    modelled,
                };
                places.push(place);
                follows.push([1.0, if s < 2 { 0.5 } else { 0.0 }, if s == 3 { -1.0 } else { 0.0 }]);
            }
        }
        let number = |k: usize, key: &str| {
            let at = |factor: f64| {
                places.iter().zip(&follows).map(|(p, f)| p.modelled * factor.powf(f[k])).collect()
            };
            Response {
                key: key.into(),
                whole: false,
                values: [("p".to_string(), (7.0, "estimate".to_string()))].into(),
                low: at(0.8),
                high: at(1.2),
            }
        };
        let numbers = vec![number(0, "all"), number(1, "ab"), number(2, "d")];
        Responses { by: 0.2, places, numbers }
    }

    #[test]
    fn what_others_tell_is_found_and_what_they_don_t_is_not() {
        let problem = Problem::new(&responses());
        let ways = problem.one_by_one(1);
        let of = |source: &str| ways.iter().find(|way| way.judged == [source]).expect("judged").median;
        assert!(of("A") < 0.03 && of("B") < 0.03, "{} {}", of("A"), of("B"));
        assert!(of("D") > 0.15, "nobody else follows the third: {}", of("D"));
        assert_eq!(ways[0].by_source.len(), 1);
    }

    #[test]
    fn what_a_document_tells_begins_where_it_is() {
        let mut told = responses();
        for number in &mut told.numbers {
            number.values = [("p".to_string(), (7.0, "PRM: so long".to_string()))].into();
        }
        let problem = Problem::new(&told);
        assert_eq!(problem.documented().count(), 3);
        let ways = problem.one_by_one(1);
        assert!(ways.iter().all(|way| way.median < 0.03), "nothing is off: {ways:?}");
    }

    /// A row that is as fast as its 4 units are many: 3 and 5 of them were asked, which is more than 20 %.
    #[test]
    fn what_counts_something_is_moved_as_far_as_it_was() {
        let mut counted = responses();
        for number in &mut counted.numbers {
            number.whole = true;
            number.values = [("p".to_string(), (4.0, "fitted".to_string()))].into();
            number.low = counted.places.iter().map(|p| p.modelled * 0.75).collect();
            number.high = counted.places.iter().map(|p| p.modelled * 1.25).collect();
        }
        let exponents: Vec<f64> = Problem::new(&counted).numbers.into_iter().flat_map(|(_, e)| e).collect();
        assert!(exponents.iter().all(|e| (e - 1.0).abs() < 1e-9), "{exponents:?}");
    }

    #[test]
    fn all_ways_are_tried() {
        let ways = Problem::new(&responses()).ways(1);
        assert_eq!(ways.len(), 6, "two of four");
        assert!(ways.iter().all(|way| way.rows == 20 && way.fitted.len() == 2 && way.p90 >= way.median));
        assert_eq!(ways, Problem::new(&responses()).ways(1), "the same on any machine");
    }

    #[test]
    fn equations_are_solved() {
        let x = solve(vec![vec![4.0, 1.0, 9.0], vec![1.0, 3.0, 5.0]]);
        assert!((x[0] - 2.0).abs() < 1e-9 && (x[1] - 1.0).abs() < 1e-9, "{x:?}");
    }
}
