//! Rows to runs to errors, from end to end.

use hca_bench::compare::{Comparison, compare};
use hca_bench::map::Map;
use hca_bench::rows;

const ROWS: &str = "source,device,link,op,size_bytes,metric,value,unit,conditions
S,D,edr,WRITE,2,lat,0.8,us,perftest
S,D,edr,READ,2,lat,1300,ns,perftest
S,D,edr,READ,64,rate,20/3,Mops,window=8
S,D,edr,READ,64,rate,40/3,Mops,window=32
S,D,edr,WRITE,65536,bw,11000,MiB/s,window=128
S,D,edr,barrier,,rate,1,Mops,
";

const MAP: &str = r#"
[[figure]]
file = "windows"
title = "READs by window"
x = "requests"

[[rule]]
name = "latency"
match = { op = "(?<verb>WRITE|READ)", metric = "lat" }
run = { op = "{verb}", size = "{size}", link = "{link}", metric = "latency" }

[[rule]]
name = "window"
match = { op = "READ", metric = "rate", conditions = 'window=(?<window>\d+)' }
part = 1
curve = "window"
x = "{window}"
figure = "windows"
run = { op = "read", size = "{size}", metric = "rate", threads = 2, qps = 4, window = "{window}" }

[[rule]]
name = "bandwidth"
match = { metric = "bw" }
run = { size = "{size}", metric = "bandwidth" }

[[rule]]
name = "others"
match = { op = "barrier" }
unmapped = "no such thing"
"#;

fn run(rows: &str, map: &str, jobs: usize) -> Result<Comparison, String> {
    let rows = rows::parse(rows).map_err(|why| why.to_string())?;
    let map = Map::parse(map).map_err(|why| why.to_string())?;
    compare(&rows, &map, &Vec::new(), jobs, |_| true).map_err(|why| why.to_string())
}

#[test]
fn rows_are_answered() {
    let all = run(ROWS, MAP, 1).unwrap();
    assert_eq!((all.rows, all.mapped, all.points.len(), all.unmapped.len()), (6, 5, 5, 1));
    assert_eq!((all.unmapped[0].line, all.unmapped[0].reason.as_str()), (7, "no such thing"));
    let (write, read) = (&all.points[0], &all.points[1]);
    assert!((0.1..10.0).contains(&write.modelled), "microseconds: {}", write.modelled);
    assert!((100.0..10_000.0).contains(&read.modelled), "nanoseconds: {}", read.modelled);
    for point in &all.points {
        let error = point.error.expect("nothing measured is zero");
        assert!((point.modelled / point.measured - 1.0 - error).abs() < 1e-12);
    }
    assert_eq!(all.curves.len(), 1);
    assert_eq!(all.curves[0].rank_correlation, Some(1.0), "more outstanding, more done");
    let names: Vec<_> = all.summary.iter().map(|s| (s.name.as_str(), s.points)).collect();
    let kinds = [("all latency", 2), ("all rate", 2), ("all bandwidth", 1), ("all", 5)];
    assert_eq!(names, [&[("latency", 2), ("window", 2), ("bandwidth", 1)][..], &kinds].concat());
    let table = all.table();
    assert!(table.contains("5 of 6 rows mapped") && table.contains("no such thing"), "{table}");
}

#[test]
fn curves_are_drawn() {
    let pictures = hca_bench::plot::pictures(&run(ROWS, MAP, 1).unwrap()).unwrap();
    let [picture] = &pictures[..] else { panic!("{} pictures", pictures.len()) };
    assert_eq!(picture.file, "windows");
    let svg = &picture.svg;
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for text in ["READs by window", "requests", "Mops"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    assert!(svg.contains("<polyline") && svg.matches("<circle").count() == 2, "a line and two points: {svg}");
}

#[test]
fn jobs_change_nothing() {
    assert_eq!(run(ROWS, MAP, 3), run(ROWS, MAP, 1));
}

#[test]
fn what_was_measured_does_not_matter_to_the_model() {
    let modelled =
        |rows: &str| run(rows, MAP, 1).unwrap().points.iter().map(|p| p.modelled).collect::<Vec<_>>();
    let other = ROWS.replace(",0.8,us", ",80,us").replace(",20/3,", ",2/30,").replace(",11000,", ",11,");
    assert_eq!(modelled(ROWS), modelled(&other));
}

#[test]
fn errors_name_line_and_rule() {
    let wrong_unit = run(&ROWS.replace(",us,", ",Gb/s,"), MAP, 1).unwrap();
    let [failed] = &wrong_unit.failed[..] else { panic!("{:?}", wrong_unit.failed) };
    assert!(failed.contains("line 2") && failed.contains("Gb/s"), "{failed}");
    assert_eq!(wrong_unit.points.len(), 4, "the others count");
    assert!(wrong_unit.table().contains(failed));
    let wrong_value = run(ROWS, &MAP.replace("threads = 2", "threads = 3"), 1).unwrap_err();
    assert!(wrong_value.contains("line 4") && wrong_value.contains("--threads"), "{wrong_value}");
    assert_eq!(wrong_value.lines().count(), 2, "both rows: {wrong_value}");
}

/// Of several files, a line without its name says nothing.
#[test]
fn errors_and_tables_name_the_file() {
    let named = |file: &str, text: &str| -> Vec<rows::Row> {
        let all = rows::parse(text).unwrap();
        all.into_iter().map(|row| rows::Row { file: file.into(), ..row }).collect()
    };
    let two = |second: &str| {
        let all = [named("a.csv", ROWS), named("b.csv", second)].concat();
        let map = Map::parse(&MAP.replace("window=8", "window=(8)")).unwrap();
        compare(&all, &map, &Vec::new(), 1, |run| run.rule == "latency").map_err(|why| why.to_string())
    };
    let wrong = two(&ROWS.replace(",11000,", ",fast,")).unwrap_err();
    assert!(wrong.starts_with("b.csv: line 6: rule \"bandwidth\"") && wrong.contains("\"fast\""), "{wrong}");
    let table = two(ROWS).unwrap().table();
    for part in ["latency, a.csv\n", "latency, b.csv\n", "S, a.csv line 7: no such thing", "S, b.csv line 7"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn a_number_is_of_a_profile_that_a_run_has() {
    let rows = rows::parse(ROWS).unwrap();
    let with = |profile: &str| {
        let numbers = vec![(Some(profile.to_string()), "pcie.read_ns=500".to_string())];
        let wanted = |run: &hca_bench::map::Run| run.rule == "latency";
        compare(&rows, &Map::parse(MAP).unwrap(), &numbers, 1, wanted).map_err(|why| why.to_string())
    };
    assert!(with("connectx4").is_ok());
    let wrong = with("connectx9").unwrap_err();
    assert!(wrong.contains("connectx9:pcie.read_ns=500") && wrong.contains("connectx4"), "{wrong}");
}

#[test]
fn the_calibration_is_mapped() {
    let file = |name: &str| {
        let path = format!("{}/../../specs/timing/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path}: {why}"))
    };
    let map = Map::parse(&file("calibration.toml")).unwrap();
    for name in ["calibration.csv", "further.csv", "kept.csv"] {
        let rows = rows::parse(&file(name)).unwrap();
        let mapped = rows.iter().filter(|row| {
            let found = map.apply(row).unwrap_or_else(|why| panic!("line {}: {why}", row.line));
            found.iter().any(|m| matches!(m, hca_bench::map::Mapped::Run(_)))
        });
        let share = mapped.count() as f64 / rows.len() as f64;
        assert!(share >= 0.8, "{name}: {share}");
    }
}
