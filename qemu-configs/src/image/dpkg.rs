//! The database of dpkg for a tree whose packages were unpacked without it, so that dpkg itself can go on from there.
//!
//! Format: dpkg(1), deb-triggers(5), and `/var/lib/dpkg` of any Debian system.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::apt::{Unpacked, dpkg_deb};

/// Members of a package's control archive that dpkg keeps.
const KEPT: [&str; 9] =
    ["preinst", "postinst", "prerm", "postrm", "conffiles", "config", "templates", "triggers", "md5sums"];

/// Writes the database: these are installed, except those with the names in `unconfigured`, whose scripts are to run yet.
pub(super) fn write(tree: &Path, packages: &[Unpacked], unconfigured: &[&str]) -> Result<()> {
    let folder = tree.join("var/lib/dpkg");
    let info = folder.join("info");
    for name in ["info", "updates", "triggers", "alternatives", "parts"] {
        fs::create_dir_all(folder.join(name))?;
    }
    let scratch = folder.join("control");
    let mut status = String::new();
    let mut triggers = Triggers::default();
    for Unpacked { package, file, paths } in packages {
        dpkg_deb(&["-e".as_ref(), file.as_ref(), scratch.as_ref()])?;
        let control = fs::read_to_string(scratch.join("control"))
            .with_context(|| format!("no control file in {}", file.display()))?;
        let state = if unconfigured.contains(&package.name()) { "unpacked" } else { "installed" };
        status.push_str(&stanza(&control, state));
        let name = name_in_database(&control);
        let mut list = paths.join("\n");
        list.push('\n');
        fs::write(info.join(format!("{name}.list")), list)?;
        for kept in KEPT {
            let from = scratch.join(kept);
            if from.is_file() {
                fs::rename(from, info.join(format!("{name}.{kept}")))?;
            }
        }
        if let Ok(text) = fs::read_to_string(info.join(format!("{name}.triggers"))) {
            triggers.add(&name, &text);
        }
        fs::remove_dir_all(&scratch)?;
    }
    fs::write(folder.join("status"), status)?;
    fs::write(folder.join("available"), "")?;
    fs::write(folder.join("diversions"), "")?;
    fs::write(folder.join("statoverride"), "")?;
    fs::write(info.join("format"), "1\n")?;
    for (name, text) in triggers.files() {
        fs::write(folder.join("triggers").join(name), text)?;
    }
    Ok(())
}

/// A stanza of `status`, from one of a control file.
fn stanza(control: &str, state: &str) -> String {
    let mut stanza = String::new();
    for line in control.trim_end().lines() {
        stanza.push_str(line);
        stanza.push('\n');
        if line.starts_with("Package:") {
            stanza.push_str(&format!("Status: install ok {state}\n"));
        }
    }
    stanza.push('\n');
    stanza
}

/// Packages of which there can be one for each architecture have it in the names of their files.
fn name_in_database(control: &str) -> String {
    let field = |name: &str| {
        control.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map_or("", str::trim)
    };
    let name = field("Package");
    match field("Multi-Arch") {
        "same" => format!("{name}:{}", field("Architecture")),
        _ => name.to_owned(),
    }
}

/// Who wants to be told of what.
#[derive(Debug, Default)]
struct Triggers {
    /// Of paths.
    paths: String,
    /// Of names: the packages of each.
    names: BTreeMap<String, String>,
}

impl Triggers {
    /// Takes in what a package's `triggers` says of its interests.
    fn add(&mut self, package: &str, text: &str) {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(directive), Some(what)) = (words.next(), words.next()) else { continue };
            let package = match directive {
                "interest" | "interest-await" => package.to_owned(),
                "interest-noawait" => format!("{package}/noawait"),
                _ => continue,
            };
            if what.starts_with('/') {
                self.paths.push_str(&format!("{what} {package}\n"));
            } else {
                self.names.entry(what.to_owned()).or_default().push_str(&format!("{package}\n"));
            }
        }
    }

    /// The files of `triggers`.
    fn files(self) -> impl Iterator<Item = (String, String)> {
        [("File".to_owned(), self.paths), ("Unincorp".to_owned(), String::new())]
            .into_iter()
            .chain(self.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: &str =
        "Package: libx1\nArchitecture: amd64\nMulti-Arch: same\nVersion: 1-2\nDescription: x\n more\n";

    #[test]
    fn stanzas() {
        assert_eq!(name_in_database(CONTROL), "libx1:amd64");
        assert_eq!(name_in_database("Package: x\nMulti-Arch: foreign\n"), "x");
        let stanza = stanza(CONTROL, "installed");
        assert!(stanza.starts_with("Package: libx1\nStatus: install ok installed\nArchitecture"), "{stanza}");
        assert!(stanza.ends_with(" more\n\n"));
    }

    #[test]
    fn interests() {
        let mut triggers = Triggers::default();
        triggers.add("libc-bin", "# note\ninterest-noawait ldconfig\n");
        triggers.add("x", "interest /usr/share/x\nactivate ldconfig\n");
        let files: BTreeMap<_, _> = triggers.files().collect();
        assert_eq!(files["ldconfig"], "libc-bin/noawait\n");
        assert_eq!(files["File"], "/usr/share/x x\n");
        assert_eq!(files.len(), 3);
    }
}
