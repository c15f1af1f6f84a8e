//! Files and functions that pages name are there, and in each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hca_docs::{files, root};
use regex::Regex;

/// Where the files of a page are: paths on it are from one of these folders on, and of those of the model the end is enough.
const SOURCES: [&str; 4] = ["device/model/src", "device/server/src", "guest-driver/src", "specs/src"];

/// The code between single backticks of a page, with what stands in front of each.
fn spans(page: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = page.split('`').collect();
    parts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Sources by path.
fn sources(root: &Path) -> BTreeMap<String, String> {
    let paths = SOURCES.iter().flat_map(|folder| files(&root.join(folder), "rs").unwrap());
    let name = |path: &Path| path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
    paths.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect()
}

/// Whether a source has a function, of a type if the name says so.
fn has(source: &str, name: &str) -> bool {
    let (of, name) = name.rsplit_once("::").map_or((None, name), |(of, name)| (Some(of), name));
    let is_of = |of: &str| {
        let words =
            |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == of);
        source.lines().any(|line| {
            let line = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            (line.starts_with("impl") || line.starts_with("trait ")) && words(line)
        })
    };
    let begin = format!("fn {name}");
    let follows = |at: usize| source[at + begin.len()..].starts_with(['(', '<']);
    source.match_indices(&begin).any(|(at, _)| follows(at)) && of.is_none_or(is_of)
}

/// `name` or `Type::name`.
fn is_function(span: &str) -> bool {
    let name = span.rsplit("::").next().unwrap_or(span);
    !name.is_empty()
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && span.chars().all(|c| c.is_alphanumeric() || c == '_' || c == ':')
}

/// The page that follows a doorbell from file to file: a function behind a file is in it, every other one in a file of the page, and one
/// of a type is one of that type.
#[test]
fn the_way_of_a_doorbell_is_that_of_the_code() {
    let root = root();
    let (sources, page) =
        (sources(&root), std::fs::read_to_string(root.join("docs/src/doorbell.md")).unwrap());
    let (_, page) = page.split_once("## The files").unwrap();
    let spans = spans(page);
    let ends = |file: &str| {
        let end = format!("/{file}");
        let found = sources.iter().filter(move |(path, _)| format!("/{path}").ends_with(&end));
        found.map(|(_, text)| text.as_str()).collect::<Vec<_>>()
    };
    let named: Vec<&str> =
        spans.iter().filter(|(_, span)| span.ends_with(".rs")).flat_map(|(_, file)| ends(file)).collect();
    let mut behind: Option<&str> = None;
    let mut pairs = 0;
    for (before, span) in spans {
        if span.ends_with(".rs") {
            assert!(!ends(span).is_empty(), "there is no {span}");
            behind = Some(span);
            continue;
        }
        let file = behind.filter(|_| matches!(before, ", " | " and "));
        behind = file;
        if !is_function(span) {
            continue;
        }
        if let Some(file) = file {
            pairs += 1;
            assert!(ends(file).iter().any(|source| has(source, span)), "{span} is not in {file}");
        }
        assert!(named.iter().any(|source| has(source, span)), "{span} is in no file of the page");
    }
    assert!(pairs >= 16, "only {pairs} functions stand behind their files");
}

/// The page of which files a change touches names files that there are.
#[test]
fn files_of_changes_are_there() {
    let root = root();
    let page = std::fs::read_to_string(root.join("docs/src/extending.md")).unwrap();
    let mut seen = 0;
    for (_, span) in spans(&page) {
        let known =
            ["specs/", "firmware-cmds/", "device/", "guest-driver/", "tests/", "docs/", "qemu-configs/"];
        if known.iter().any(|folder| span.starts_with(folder)) && !span.contains(['<', '{', ' ']) {
            seen += 1;
            assert!(root.join(span).exists(), "there is no {span}");
        }
    }
    assert!(seen > 40, "{seen}");
}

/// The page on security says where the server has code that the compiler can't judge, and no file has any besides.
#[test]
fn unsafe_code_is_where_the_page_says() {
    let root = root();
    let page = std::fs::read_to_string(root.join("docs/src/security.md")).unwrap();
    let (_, list) = page.split_once("- **No `unsafe` in layouts").unwrap();
    let (list, _) = list.split_once("\n- **").unwrap();
    let said: BTreeSet<String> = spans(list)
        .into_iter()
        .filter(|(_, span)| span.ends_with(".rs"))
        .map(|(_, span)| format!("device/server/src/{span}"))
        .collect();
    let is_unsafe =
        |text: &str| ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|word| text.contains(word));
    let found: BTreeSet<String> = sources(&root)
        .into_iter()
        .filter(|(path, text)| is_unsafe(text) && !path.ends_with("tests.rs"))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(said, found);
}

/// Each row of who could attack whom names files that stand between, and tests, each behind its file, that try it.
#[test]
fn what_stands_between_is_there_and_is_tried() {
    let root = root();
    let page = std::fs::read_to_string(root.join("docs/src/security.md")).unwrap();
    let (_, table) = page.split_once("## Who could attack whom\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| "))
        .map(|line| line.trim_end_matches(" |").split(" | ").collect())
        .collect();
    let read = |file: &str| {
        std::fs::read_to_string(root.join(file)).unwrap_or_else(|_| panic!("there is no {file}"))
    };
    for row in &rows[1..] {
        let &[from, _, _, files, tests] = &row[..] else { panic!("a row has five cells: {row:?}") };
        let files: Vec<&str> = spans(files).into_iter().map(|(_, file)| file).collect();
        assert!(!files.is_empty(), "{from}: no file");
        files.into_iter().for_each(|file| drop(read(file)));
        let (mut behind, mut tried) = (String::new(), 0);
        for (_, span) in spans(tests) {
            if span.ends_with(".rs") {
                behind = read(span);
                continue;
            }
            // Tests without a harness stand in a table, by name.
            let named = behind.contains(&format!("::{span}\""));
            assert!(named || has(&behind, span), "{from}: there is no test {span} in that file");
            tried += 1;
        }
        assert!(tried > 0, "{from}: no test");
    }
    assert!(rows.len() > 8, "{}", rows.len());
}

/// What a trace can have stands in the table of its units.
#[test]
fn events_of_traces_are_on_their_page() {
    let root = root();
    let page = std::fs::read_to_string(root.join("device/trace/README.md")).unwrap();
    let source = std::fs::read_to_string(root.join("device/model/src/ground/event.rs")).unwrap();
    let rows: BTreeMap<&str, &str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.trim_end_matches(" |").split_once(" | "))
        .collect();
    let unit = Regex::new(r#"Self::(\w+) => "([^"]+)",\n"#).unwrap();
    let (_, names) = source.split_once("impl Unit {").unwrap();
    let (names, _) = names.split_once("\n}\n").unwrap();
    let names: BTreeMap<&str, &str> = unit
        .captures_iter(names)
        .map(|found| found.extract::<2>().1)
        .map(|[unit, name]| (unit, name))
        .collect();
    let event = Regex::new(r#"(?m)^\s+\w+ "([^"]+)" on (\w+) \{"#).unwrap();
    let mut seen = 0;
    for [event, unit] in event.captures_iter(&source).map(|found| found.extract::<2>().1) {
        let name = names[unit];
        let row = rows.get(name).unwrap_or_else(|| panic!("there is no row of {name}"));
        // A row may tell of events that end alike together.
        let words = row.split([',', ':', '(']).map(str::trim).collect::<Vec<_>>();
        assert!(
            words.iter().any(|word| word.starts_with(event)),
            "{event} is not in the row of {name}: {row}"
        );
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}
