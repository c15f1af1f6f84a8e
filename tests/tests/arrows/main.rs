//! Who may import whom: an arrow is a file that names something of another, and it has to point downwards.
//!
//! Inside `device/model` and `firmware-cmds`, each crate's `floors.toml` says which modules are a room and on which floor it
//! is ([`floors`]); between the crates of the workspace [`crates`] says it. Sources are parsed ([`modules`]), names are followed
//! through re-exports to the file that has them ([`names`]), and [`rules`] and [`doors`] judge. What is only compiled for tests is free, and so is
//! `lib.rs`, which stands above all floors. Calls of methods name no module, so they are no arrows; one rule about those of the world is in [`turns`].

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
    assert!(faults.is_empty(), "{} faults of {folder}, by {table}:\n{}", faults.len(), faults.join("\n"));
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
