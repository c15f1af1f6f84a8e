//! Arrows between the crates of the workspace.

use std::collections::BTreeMap;

use toml::{Table, Value};

const SPEC: &str = "hca-spec";
const FIRMWARE: &str = "hca-firmware";
const MODEL: &str = "hca-model";
const TRACE: &str = "hca-trace";
const DRIVER: &str = "hca-driver";
const BENCH: &str = "hca-bench";
const SERVER: &str = "hca-server";

/// Whom a crate may depend on, tests included. Driver and model never see each other: that they agree is evidence.
const MAY_SEE: &[(&str, &[&str])] = &[
    (SPEC, &[]),
    (FIRMWARE, &[SPEC]),
    (MODEL, &[SPEC, FIRMWARE]),
    (TRACE, &[SPEC, FIRMWARE, MODEL]),
    (DRIVER, &[SPEC]),
    (BENCH, &[SPEC, FIRMWARE, MODEL, TRACE, DRIVER]),
    (SERVER, &[SPEC, FIRMWARE, MODEL, TRACE]),
    ("softhca", &[SPEC, FIRMWARE, MODEL, TRACE, BENCH, SERVER]),
    ("hca-vm", &[]),
    ("hca-docs", &[SPEC, FIRMWARE]),
    ("hca-tests", &[SPEC, FIRMWARE, MODEL, TRACE, DRIVER, BENCH, SERVER, "softhca", "hca-vm"]),
];

/// Keys of a manifest, or of a target's part of one, that name dependencies.
const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// What is wrong, a line each, with the text of the workspace's manifest and those of its members by their folders.
pub(crate) fn faults(workspace: &str, manifest: &dyn Fn(&str) -> String) -> Vec<String> {
    let workspace = parse("Cargo.toml", workspace);
    let members = workspace["workspace"]["members"].as_array().expect("a list of members");
    let mut crates = BTreeMap::new();
    for member in members {
        let folder = member.as_str().expect("a folder");
        let table = parse(folder, &manifest(folder));
        let name = table["package"]["name"].as_str().expect("a name").to_owned();
        crates.insert(name, (folder, dependencies(&table)));
    }
    let mut faults = Vec::new();
    for (name, (folder, dependencies)) in &crates {
        let Some((_, may_see)) = MAY_SEE.iter().find(|(of, _)| of == name) else {
            faults.push(format!("{folder}/Cargo.toml: the table of crates has no {name}"));
            continue;
        };
        let ours = dependencies.iter().filter(|dependency| crates.contains_key(*dependency));
        let wrong = ours.filter(|dependency| !may_see.contains(&dependency.as_str()));
        faults.extend(wrong.map(|dependency| {
            format!("{folder}/Cargo.toml: {name} must not depend on {dependency}, only on {may_see:?}")
        }));
    }
    faults
}

fn parse(what: &str, text: &str) -> Table {
    text.parse().unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Packages that a manifest names, for whatever target.
fn dependencies(manifest: &Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(|targets| targets.values().filter_map(Value::as_table));
    std::iter::once(manifest)
        .chain(targets)
        .flat_map(|part| KINDS.iter().filter_map(|kind| part.get(*kind)?.as_table()))
        .flatten()
        .map(|(name, value)| match value.get("package").and_then(Value::as_str) {
            Some(renamed) => renamed.to_owned(),
            None => name.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges a workspace of the model and one other crate.
    fn judge(model: &str, name: &str, other: &str) -> Vec<String> {
        let workspace = "[workspace]\nmembers = [\"model\", \"other\"]";
        faults(workspace, &|folder| match folder {
            "model" => format!("[package]\nname = \"hca-model\"\n{model}"),
            _ => format!("[package]\nname = \"{name}\"\n{other}"),
        })
    }

    #[test]
    fn right_and_wrong_directions() {
        let on_model = "[dependencies]\nhca-model.workspace = true\nserde = \"1\"";
        assert_eq!(judge("", TRACE, on_model), [""; 0]);
        let faults = judge("[dependencies]\nhca-trace.workspace = true", TRACE, on_model);
        assert_eq!(
            faults,
            [
                "model/Cargo.toml: hca-model must not depend on hca-trace, only on [\"hca-spec\", \"hca-firmware\"]"
            ]
        );
    }

    #[test]
    fn every_kind_of_dependency() {
        for text in [
            "[dev-dependencies]\nhca-driver.workspace = true",
            "[build-dependencies]\nhca-driver = { path = \"x\" }",
            "[target.'cfg(unix)'.dependencies]\nhca-driver = { path = \"x\" }",
            "[dependencies]\nother = { path = \"x\", package = \"hca-driver\" }",
        ] {
            assert_eq!(judge(text, DRIVER, "").len(), 1, "{text}");
            assert_eq!(judge("", DRIVER, &text.replace(DRIVER, MODEL)).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_crate_that_nobody_has_placed() {
        assert_eq!(judge("", "hca-new", ""), ["other/Cargo.toml: the table of crates has no hca-new"]);
    }
}
