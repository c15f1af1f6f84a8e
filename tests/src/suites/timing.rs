//! The modelled times against the published rows of `specs/timing`, and the goals for their errors.

use hca_bench::compare::{Comparison, compare};
use hca_bench::map::Map;
use hca_bench::rows;

use super::Case;

/// Share of the rows that a rule maps, at least.
const MAPPED: f64 = 0.8;
/// Errors over all latencies, rates and bandwidths, as shares of the published values, at most.
const MEDIAN: f64 = 0.06;
const P90: f64 = 0.18;
/// The default adapter's own rows, and the most that their median error may be.
const DEFAULT: (&str, f64) = ("latency, ConnectX-4", 0.05);
/// What the names of curves begin with that are to be followed in shape: outstanding requests and queue pairs.
const RANKED: [&str; 2] = ["outstanding ", "queue pairs"];

/// Every row, in virtual time.
pub fn cases() -> Vec<Case> {
    match comparison() {
        Ok(comparison) => judge(&comparison),
        Err(why) => vec![Case::check("comparison", why)],
    }
}

fn comparison() -> Result<Comparison, String> {
    let file = |name: &str| {
        let path = format!("{}/../specs/timing/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).map_err(|why| format!("{path}: {why}"))
    };
    let rows = rows::parse(&file("calibration.csv")?).map_err(|why| why.to_string())?;
    let map = Map::parse(&file("calibration.toml")?).map_err(|why| why.to_string())?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    compare(&rows, &map, &Vec::new(), threads, |_| true).map_err(|why| why.to_string())
}

fn judge(comparison: &Comparison) -> Vec<Case> {
    let case = |name: String, good: bool, said: String| Case::check(name, if good { "" } else { &said });
    let mut cases = vec![Case::check("every run", comparison.failed.join("\n"))];
    let mapped = comparison.mapped as f64 / comparison.rows as f64;
    cases.push(case("rows mapped".into(), mapped >= MAPPED, format!("{mapped:.3} of them")));
    let all = comparison.summary.last();
    let own = comparison.summary.iter().find(|s| s.name == DEFAULT.0);
    for (name, limit, value) in [
        ("median error", MEDIAN, all.map(|s| s.median)),
        ("90th percentile", P90, all.map(|s| s.p90)),
        (DEFAULT.0, DEFAULT.1, own.map(|s| s.median)),
    ] {
        let said = format!("{value:?}, at most {limit}");
        cases.push(case(name.into(), value.is_some_and(|value| value <= limit), said));
    }
    let ranked =
        comparison.curves.iter().filter(|curve| RANKED.iter().any(|name| curve.name.starts_with(name)));
    let ranks = ranked.map(|curve| {
        case(
            curve.name.clone(),
            curve.is_followed(),
            format!("rank correlation {:?}", curve.rank_correlation),
        )
    });
    cases.extend(ranks);
    cases
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;
    use hca_bench::compare::{Curve, Summary};

    #[test]
    fn goals_can_be_missed() {
        let failed = |mapped, [own, all]: [f64; 2], rank| {
            let summary = |name: &str, median| {
                let name = name.into();
                Summary { name, points: 9, median, p90: 2.0 * median, worst: 1.0, bias: 0.0 }
            };
            let curve =
                |name: &str, rank_correlation| Curve { name: name.into(), points: 5, rank_correlation };
            let comparison = Comparison {
                rows: 10,
                mapped,
                points: Vec::new(),
                unmapped: Vec::new(),
                failed: Vec::new(),
                summary: vec![summary(DEFAULT.0, own), summary("all", all)],
                curves: vec![curve("outstanding READs", rank), curve("bandwidth", Some(0.1))],
            };
            let cases = judge(&comparison).into_iter().filter(|case| case.outcome == Outcome::Failed);
            cases.map(|case| case.name).collect::<Vec<_>>()
        };
        assert_eq!(failed(8, [0.05, 0.06], Some(0.9)), Vec::<String>::new());
        assert_eq!(failed(7, [0.05, 0.06], Some(1.0)), ["rows mapped"]);
        assert_eq!(failed(8, [0.05, 0.07], Some(1.0)), ["median error"]);
        assert_eq!(failed(8, [0.05, 0.1], Some(1.0)), ["median error", "90th percentile"]);
        assert_eq!(failed(8, [0.06, 0.06], Some(1.0)), [DEFAULT.0]);
        assert_eq!(failed(8, [0.05, 0.06], Some(0.89)), ["outstanding READs"]);
        assert_eq!(failed(8, [0.05, 0.06], None), ["outstanding READs"]);
    }
}
