//! What the modules of a crate are for: the first sentence of each module's own documentation, by rooms of its
//! `floors.toml` or by files of a folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::source::{prose, row};

/// The first sentence of a file's documentation.
///
/// # Errors
/// A file that can't be read or says nothing of itself.
fn summary(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let lines: Vec<&str> =
        text.lines().map_while(|line| line.strip_prefix("//!")).take_while(|line| !line.is_empty()).collect();
    let text = prose(&lines);
    let sentence = text.split(". ").next().unwrap_or_default().trim_end_matches('.');
    if sentence.is_empty() {
        bail!("{} does not begin with what it is", file.display());
    }
    Ok(sentence.into())
}

/// The file of a module, as `engines::cq`.
fn file_of(sources: &Path, module: &str) -> PathBuf {
    let path = sources.join(module.replace("::", "/"));
    let folder = path.join("mod.rs");
    if folder.exists() { folder } else { path.with_extension("rs") }
}

/// The rooms of a crate from the ground up, each with its modules.
///
/// # Errors
/// No `floors.toml` in the crate's folder, or a module without a file.
pub fn table(root: &Path, krate: &str) -> Result<String> {
    let file = root.join(krate).join("floors.toml");
    let text = std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    let floors: toml::Table = text.parse()?;
    let floors = floors.get("floor").and_then(toml::Value::as_array).context("no floors")?;
    let mut out = String::from("| floor | room | modules |\n|---|---|---|\n");
    for (number, rooms) in floors.iter().enumerate() {
        for (room, modules) in rooms.as_table().context("a floor is a table of rooms")? {
            let mut cells = Vec::new();
            for module in modules.as_array().context("a room is a list of modules")? {
                let module = module.as_str().context("a module is named by a string")?;
                let summary = summary(&file_of(&root.join(krate).join("src"), module))?;
                cells.push(format!("`{module}`: {summary}"));
            }
            out.push_str(&row(&[&number.to_string(), room, &cells.join("; ")]));
        }
    }
    Ok(out)
}

/// The files of a folder, `mod.rs` first.
///
/// # Errors
/// A folder that can't be read, or a file that says nothing of itself.
pub fn files(root: &Path, folder: &str) -> Result<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root.join(folder)).with_context(|| folder.to_string())? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_test = name.starts_with("test");
        if path.extension().is_some_and(|e| e == "rs") && !is_test {
            found.push((name != "mod.rs", name, summary(&path)?));
        }
    }
    if found.is_empty() {
        bail!("{folder} has no files");
    }
    found.sort();
    let mut out = String::from("| file | what |\n|---|---|\n");
    for (_, name, summary) in found {
        out.push_str(&row(&[&format!("`{name}`"), &summary]));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_and_files_say_what_they_are() {
        let root = crate::root();
        let rooms = table(&root, "device/model").unwrap();
        assert!(rooms.contains("\n| 0 | ground | `ground`: "), "{rooms}");
        assert!(rooms.contains("`engines::eq`: Event queue"), "{rooms}");
        let files = files(&root, "device/model/src/adapter").unwrap();
        assert!(
            files.contains(
                "\n| `mod.rs` | One adapter: register accesses and events in, effects out |\n| `agent.rs`"
            ),
            "{files}"
        );
        assert!(table(&root, "specs").is_err() && super::files(&root, "specs/doc").is_err());
    }
}
