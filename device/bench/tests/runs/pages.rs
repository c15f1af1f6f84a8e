//! The pages of `specs/timing` say what the files beside them say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hca_bench::sensitivity::Responses;
use hca_bench::{Error, judge, numbers};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// What stands between backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Profiles and hosts: the file's name, its key, value, and whether it calls itself effective.
fn numbers_of_files() -> Vec<(String, String, f64, bool)> {
    let mut found = Vec::new();
    for folder in ["device/model/profiles", "device/bench/hosts"] {
        let files = std::fs::read_dir(root().join(folder)).unwrap();
        for path in
            files.map(|file| file.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "toml"))
        {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            for number in numbers::parse(&std::fs::read_to_string(&path).unwrap()) {
                let effective = number.rests_on.contains("effective");
                found.push((name.clone(), number.key, number.value, effective));
            }
        }
    }
    found
}

/// A number without a mechanism says so where it stands, and in the table of the page; and the table has no others.
#[test]
fn effective_numbers_are_in_the_table() {
    let page = text("specs/timing/README.md");
    let section = page.split("## Numbers that are effective").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut told: BTreeSet<(String, String, String)> = BTreeSet::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').collect();
        for number in quoted(cells[1]) {
            let (key, value) = number.split_once(" = ").unwrap_or_else(|| panic!("{number}"));
            for file in quoted(cells[2]) {
                told.insert((file.into(), key.into(), value.into()));
            }
        }
    }
    let effective: BTreeSet<(String, String, String)> = numbers_of_files()
        .into_iter()
        .filter(|(.., effective)| *effective)
        .map(|(file, key, value, _)| (file, key, value.to_string()))
        .collect();
    assert!(effective.len() > 8, "{effective:?}");
    // An option of a rule is no number of a file; its rule says it.
    let (options, told): (BTreeSet<_>, BTreeSet<_>) =
        told.into_iter().partition(|(file, ..)| file == "calibration.toml");
    for (file, key, value) in options {
        let rules = text(&format!("specs/timing/{file}"));
        assert!(
            rules.contains("effective") && rules.contains(&format!("{key} = {value}")),
            "{key} = {value}"
        );
    }
    assert_eq!(told, effective, "left: the table, right: the files");
}

/// Both are what their commands print of the same responses, and those are of today's numbers.
#[test]
fn what_moves_and_what_others_say_is_of_the_responses() {
    let responses: Responses = serde_json::from_str(&text("specs/timing/responses.json")).unwrap();
    assert_eq!(responses.page(10), text("specs/timing/SENSITIVITY.md"));
    let unasked = |_: &_| Err(Error::new("nobody asked"));
    assert_eq!(judge::of_all_ways(&responses, 1, 0, unasked).unwrap(), text("specs/timing/CROSS.md"));
    for number in &responses.numbers {
        for (profile, (value, _)) in &number.values {
            let today = numbers::of_profile(profile).unwrap();
            let today = today.into_iter().find(|n| n.key == number.key).unwrap_or_else(|| {
                panic!("{profile} has no {}: run softhca bench sensitivity again", number.key)
            });
            assert_eq!(today.value, *value, "{profile}: {}: run softhca bench sensitivity again", number.key);
        }
    }
}
