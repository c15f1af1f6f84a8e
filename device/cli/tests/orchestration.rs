//! The package for SimBricks: its unit tests, and that the program reads the topology files that it writes.

mod common;

use std::path::Path;
use std::process::Command;

use common::Scratch;

/// Those that need nothing but Python. What needs SimBricks' packages is in `hca-tests suites sim`.
#[test]
fn the_python_package_writes_topologies_that_are_read() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../simbricks-softhca");
    let scratch = Scratch::new("orchestration");
    let tests = Command::new("python3")
        .args(["-m", "unittest", "discover", "-s", "tests"])
        .env("PYTHONPATH", "src")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TOPOLOGY_DIR", &scratch.0)
        .current_dir(package)
        .output();
    let Ok(tests) = tests else { return eprintln!("skipped: there is no python3") };
    let said = String::from_utf8_lossy(&tests.stderr);
    assert!(tests.status.success(), "{said}");
    let sim = Command::new(env!("CARGO_BIN_EXE_softhca"))
        .args(["sim", "--no-hash", "--topology"])
        .arg(scratch.0.join("two-hosts.toml"))
        .output()
        .unwrap();
    let said = [sim.stdout, sim.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(sim.status.success() && said.contains("2 hosts: 2 messages came"), "{said}");
}
