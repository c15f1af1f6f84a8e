//! What the package installs is there, and is for this program.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_softhca"))
}

#[test]
fn files_of_the_package_are_there() {
    let manifest = read("device/cli/Cargo.toml");
    let assets: Vec<&str> =
        manifest.lines().filter_map(|line| line.trim().strip_prefix("[\"")?.split('"').next()).collect();
    assert!(assets.len() > 10, "{assets:?}");
    // What is built is not there yet.
    for asset in assets.iter().filter(|asset| !asset.contains("target/")) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(asset);
        let (folder, name) = (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap());
        let start = name.trim_end_matches('*');
        let mut files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
        assert!(files.any(|file| file.to_str().unwrap().starts_with(start)), "{asset}");
    }
}

#[test]
fn the_unit_uses_options_that_there_are() {
    let unit = read("packaging/systemd/softhca@.service");
    let help = String::from_utf8(program().args(["serve", "--help"]).output().unwrap().stdout).unwrap();
    let options = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| c.is_whitespace() || c == '=');
        words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
    };
    let start: String = unit
        .lines()
        .filter(|line| line.contains("ExecStart=") || line.contains("SOFTHCA_OPTIONS="))
        .collect();
    let used = options(&start);
    assert!(used.len() >= 3, "{used:?}");
    used.iter().for_each(|option| assert!(help.contains(&format!("{option} ")), "{option}"));
    // What it does by itself is not undone.
    for line in ["NoNewPrivileges=yes", "CapabilityBoundingSet=", "User=softhca", "ProtectSystem=strict"] {
        assert!(unit.lines().any(|of| of == line), "{line}");
    }
}

#[test]
fn the_example_is_a_topology() {
    let checked =
        program().arg("topology").arg(root().join("packaging/examples/pair.toml")).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn scripts_are_scripts() {
    for script in [
        "packaging/build-deb",
        "packaging/debian/postinst",
        "packaging/debian/prerm",
        "packaging/debian/postrm",
    ] {
        let checked = Command::new("sh").arg("-n").arg(root().join(script)).output().unwrap();
        assert!(checked.status.success(), "{script}: {}", String::from_utf8_lossy(&checked.stderr));
    }
}
