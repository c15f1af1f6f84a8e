//! The program as its users and `hca-vm` run it: standard output, exit codes, signals.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A folder of one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("softhca-program-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that is ended, whatever becomes of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softhca"));
    command.stdin(Stdio::null()).env_remove("SOFTHCA_RUN_DIR");
    command
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// Starts a server and waits until it says that it is ready.
fn serve(arguments: &[&Path]) -> Running {
    let mut command = program();
    command.arg("serve").args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "softhca: ready\n");
    running
}

#[test]
fn serves_until_it_is_told_to_stop() {
    for (name, signal) in [("term", Signal::SIGTERM), ("int", Signal::SIGINT)] {
        let scratch = Scratch::new(name);
        let socket = scratch.0.join("hca.sock");
        let mut server = serve(&[Path::new("--socket"), &socket]);
        let shown = output(program().args(["resources", "--json", "--socket"]).arg(&socket));
        assert!(shown.status.success(), "{shown:?}");
        let answer: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(answer["hcas"][0]["name"], "host/hca0");
        assert_eq!(answer["hcas"][0]["attached"], false);
        kill(Pid::from_raw(server.0.id() as i32), signal).unwrap();
        assert!(server.0.wait().unwrap().success());
        assert!(!socket.exists(), "the socket is removed");
    }
}

#[test]
fn serves_every_adapter_of_a_topology() {
    let scratch = Scratch::new("topology");
    let text = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n\
                [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n";
    let file = scratch.file("pair.toml", text);
    let dir = scratch.0.join("run");
    let _server = serve(&[Path::new("--topology"), &file, Path::new("--run-dir"), &dir]);
    assert!(["a-hca0.sock", "b-hca0.sock", "control.sock"].iter().all(|name| dir.join(name).exists()));
    let links = output(program().args(["ctl", "--run-dir"]).arg(&dir).arg("links"));
    let table = String::from_utf8(links.stdout).unwrap();
    assert!(table.lines().any(|l| l.split_whitespace().take(3).eq(["a/hca0", "b/hca0", "4x"])), "{table}");
    // The environment names the run directory, too, as hca-vm does for commands beside a guest.
    let stat = output(program().args(["stat", "--json"]).env("SOFTHCA_RUN_DIR", &dir));
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!(stat["hcas"].as_array().map(Vec::len), Some(2));
}

#[test]
fn what_is_wrong_is_said_and_fails() {
    let scratch = Scratch::new("wrong");
    let bad = scratch.file("bad.toml", "[[host]]\nname = \"a\"\nmemry = \"1G\"\n");
    let shown = output(program().arg("topology").arg(&bad));
    let said = String::from_utf8(shown.stderr).unwrap();
    assert_eq!(shown.status.code(), Some(1));
    assert!(said.starts_with("softhca: ") && said.contains("bad.toml:3: "), "{said}");
    let alone = output(program().args(["resources", "--socket"]).arg(scratch.0.join("nobody.sock")));
    assert_eq!(alone.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&alone.stderr).contains("nobody.sock"), "{alone:?}");
    assert_eq!(output(program().arg("serve")).status.code(), Some(2), "a wrong command line");
}
