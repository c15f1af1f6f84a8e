//! Who may import whom: an arrow is a file that names something of another, and it has to point downwards.
//!
//! Inside `device/model` and `firmware-cmds`, each crate's `floors.toml` says which modules are a room and on which floor it
//! is ([`floors`]); between the crates of the workspace [`crates`] says it. Sources are parsed ([`modules`]), names are followed
//! through re-exports to the file that has them ([`names`]), and [`rules`], [`doors`] and [`circles`] judge. What is only compiled for tests is free, and so is
//! `lib.rs`, which stands above all floors. Calls of methods name no module, so they are no arrows; one rule about those of the world is in [`turns`].

mod circles;
mod crates;
mod doors;
mod floors;
mod mentions;
mod modules;
mod names;
mod rules;
mod turns;

use std::path::Path;

use floors::Floors;
use modules::{Crate, Sources};

/// The root of the workspace.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A text of the workspace.
fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Judges the sources of a crate by its `floors.toml`.
fn judge(folder: &str) {
    let sources =
        Sources::read(&root().join(folder).join("src")).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let parsed = Crate::parse(&sources).unwrap_or_else(|error| panic!("{folder}/src/{error}"));
    let table = format!("{folder}/floors.toml");
    let floors = Floors::parse(&text(&table)).unwrap_or_else(|error| panic!("{table}: {error}"));
    let arrows = names::arrows(&parsed);
    assert!(arrows.len() > parsed.files().len(), "{folder}: hardly an arrow was found");
    let mut faults = rules::faults(&parsed, &arrows, &floors);
    faults.extend(floors.doors.iter().flat_map(|door| door.faults(&parsed, &arrows)));
    faults.extend(floors.circles.faults(&arrows));
    assert!(faults.is_empty(), "{} faults of {folder}, by {table}:\n{}", faults.len(), faults.join("\n"));
}

/// What an engine may look at is read-only, and its own state changes where it says so: it has nothing that changes behind a reference.
#[test]
fn engines_change_nothing_behind_a_reference() {
    const WORDS: [&str; 6] = ["Cell", "OnceCell", "RefCell", "Mutex", "RwLock", "UnsafeCell"];
    let sources = Sources::read(&root().join("device/model/src")).unwrap();
    let parsed = Crate::parse(&sources).unwrap();
    let engines: Vec<_> = parsed.modules.iter().filter(|module| module.path.starts_with("engines")).collect();
    assert!(engines.len() > 50, "hardly an engine was found");
    for module in engines {
        let said = WORDS.iter().find(|word| module.words.contains_key(**word));
        let imported = WORDS.iter().find(|word| module.uses.contains_key(**word));
        assert_eq!((said, imported), (None, None), "src/{}", module.file);
    }
}

#[test]
fn of_the_model() {
    judge("device/model");
}

#[test]
fn of_the_firmware() {
    judge("firmware-cmds");
}

#[test]
fn between_crates() {
    let faults = crates::faults(&text("Cargo.toml"), &|member| text(&format!("{member}/Cargo.toml")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
