//! The program as its users and `hca-vm` run it: standard output, exit codes, signals.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::{Running, Scratch};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softhca"));
    command.stdin(Stdio::null()).env_remove("SOFTHCA_RUN_DIR");
    command
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// The same, with these arguments and no log.
fn serve(arguments: &[&Path]) -> Running {
    let mut command = program();
    ready(command.arg("serve").args(arguments).stderr(Stdio::null()))
}

/// Starts a server and waits until it says that it is ready.
fn ready(command: &mut Command) -> Running {
    command.stdout(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "softhca: ready\n");
    running
}

/// As behind `| head`: who no longer reads is no mistake to tell of.
#[test]
fn a_closed_pipe_ends_it_in_silence() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = output(program().args(["syndrome", "send-state"]).stdout(writer).stderr(Stdio::piped()));
    assert_eq!((ended.status.code(), &*ended.stderr), (Some(141), &[][..]), "{ended:?}");
}

#[test]
fn serves_until_it_is_told_to_stop() {
    for (name, signal) in [("term", Signal::SIGTERM), ("int", Signal::SIGINT), ("hup", Signal::SIGHUP)] {
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

/// Whatever the umask is, nobody else can use the sockets, or read what is written.
#[test]
fn what_is_made_is_its_owners() {
    let scratch = Scratch::new("umask");
    let text = "[[host]]\nname = \"a\"\n[[host.hca]]\n";
    let file = scratch.file("one.toml", text);
    let (dir, capture) = (scratch.0.join("run"), scratch.file("packets", "what was there"));
    std::fs::set_permissions(&capture, Permissions::from_mode(0o666)).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_softhca"), "serve"]);
    shell.args([Path::new("--topology"), &file, Path::new("--run-dir"), &dir, Path::new("--pcap"), &capture]);
    let _server = ready(shell.stderr(Stdio::null()));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    assert_eq!([dir.join("control.sock"), dir.join("a-hca0.sock"), capture].map(|p| mode(&p)), [0o600; 3]);
}

#[test]
fn links_are_not_followed() {
    let scratch = Scratch::new("links");
    let precious = scratch.file("precious", "dear");
    let link = scratch.0.join("trace.json");
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    for option in ["--trace", "--pcap"] {
        let socket = scratch.0.join("hca.sock");
        let mut command = program();
        command.args(["serve", "--socket"]).arg(&socket).arg(option).arg(&link);
        let mut server = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let mut ready = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "", "it does not serve");
        let mut said = String::new();
        server.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("trace.json: is a symbolic link"), "{said}");
        assert_eq!(server.0.wait().unwrap().code(), Some(1));
    }
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "dear");
}

/// What is made of a trace has what the trace has: it is its owner's only, whatever the umask is, and no link leads it elsewhere.
#[test]
fn what_is_made_of_a_trace_is_private() {
    let scratch = Scratch::new("made");
    let trace = scratch.0.join("trace.json");
    let free = |command: &str, arguments: &[&Path]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "umask 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_softhca"), command]);
        output(shell.args(arguments))
    };
    let path = Path::new;
    let made =
        free("bench", &[path("--op"), path("write"), path("--size"), path("64"), path("--trace"), &trace]);
    assert!(made.status.success(), "{made:?}");
    let list = free("explain", &[&trace]);
    let list = String::from_utf8(list.stdout).unwrap();
    let request = list.split_whitespace().find(|word| word.starts_with("0x") && word.contains(':'));
    let request = path(request.unwrap_or_else(|| panic!("{list}")));
    let (page, picture) = (scratch.0.join("page.html"), scratch.0.join("life.svg"));
    let precious = scratch.file("precious", "dear");
    let ways: [(&str, &[&Path], &Path); 2] = [
        ("report", &[&trace, path("--output"), &page], &page),
        ("explain", &[&trace, path("--wr"), request, path("--svg"), &picture], &picture),
    ];
    for (command, arguments, file) in ways {
        let made = free(command, arguments);
        assert!(made.status.success(), "{made:?}");
        assert_eq!(std::fs::metadata(file).unwrap().mode() & 0o777, 0o600, "{command}");
        std::fs::remove_file(file).unwrap();
        std::os::unix::fs::symlink(&precious, file).unwrap();
        let refused = free(command, arguments);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains("is a symbolic link"), "{command}: {said}");
    }
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "dear");
}

/// Connections to the control socket that say nothing don't keep the operator out.
#[test]
fn silent_connections_give_way() {
    let scratch = Scratch::new("silent");
    let socket = scratch.0.join("hca.sock");
    let _server = serve(&[Path::new("--socket"), &socket]);
    let silent: Vec<_> =
        (0..100).map(|_| UnixStream::connect(scratch.0.join("hca.sock.control")).unwrap()).collect();
    let shown = output(program().args(["resources", "--socket"]).arg(&socket));
    assert!(shown.status.success(), "{shown:?}");
    drop(silent);
}

/// Messages that nobody reads: clients cause more than a pipe holds, the server goes on and ends as ever.
#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let scratch = Scratch::new("pipe");
    let socket = scratch.0.join("hca.sock");
    let mut command = program();
    // A line for each message that is refused: some 80 bytes, where a pipe holds 64 KiB.
    command.env("RUST_LOG", "debug").args(["serve", "--socket"]).arg(&socket).stderr(Stdio::piped());
    let mut server = ready(&mut command);
    let mut client = UnixStream::connect(&socket).unwrap();
    // Only a server that is stuck meets it.
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let message = |command: u16, flags: u32, payload: &[u8]| {
        let size = 16 + payload.len() as u32;
        let numbers = [size.to_ne_bytes(), flags.to_ne_bytes(), [0; 4]].concat();
        [&[1, 0][..], &command.to_ne_bytes(), &numbers, payload].concat()
    };
    client.write_all(&message(1, 0, b"\0\0\0\0{}\0")).unwrap();
    let (no_reply, unknown) = (1 << 4, 0xff99u16);
    client.write_all(&message(unknown, no_reply, &[]).repeat(5000)).unwrap();
    client.write_all(&message(unknown, 0, &[])).unwrap();
    // The answer to the first message has some 200 bytes and none of these.
    let (mut answers, mut chunk) = (Vec::new(), [0; 256]);
    while !answers.windows(2).any(|pair| pair == unknown.to_ne_bytes()) {
        let n = client.read(&mut chunk).expect("the last message is answered");
        assert!(n > 0, "the client is served");
        answers.extend_from_slice(&chunk[..n]);
    }
    for _ in 0..3 {
        let shown = output(program().args(["resources", "--socket"]).arg(&socket));
        assert!(shown.status.success(), "{shown:?}");
    }
    kill(Pid::from_raw(server.0.id() as i32), Signal::SIGTERM).unwrap();
    assert!(server.0.wait().unwrap().success());
}

/// What one client causes is said so many times, and how often it was left out.
#[test]
fn a_client_has_so_many_lines() {
    let scratch = Scratch::new("lines");
    let socket = scratch.0.join("hca.sock");
    let log = scratch.file("log", "");
    let mut command = program();
    command.args(["serve", "--socket"]).arg(&socket).stderr(std::fs::File::create(&log).unwrap());
    let mut server = ready(&mut command);
    for _ in 0..500 {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.write_all(&[0; 16]).unwrap();
        while client.read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
    }
    kill(Pid::from_raw(server.0.id() as i32), Signal::SIGTERM).unwrap();
    assert!(server.0.wait().unwrap().success());
    let lines = std::fs::read_to_string(&log).unwrap().lines().count();
    // Some for each ten seconds, however slow this machine is.
    assert!((1..300).contains(&lines), "{lines} lines for 500 connections");
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
    let nothing = output(program().arg("serve"));
    assert_eq!(nothing.status.code(), Some(2), "a wrong command line");
    let said = String::from_utf8_lossy(&nothing.stderr);
    assert!(
        said.contains("--socket PATH") && said.contains("two-hosts"),
        "what could be said instead: {said}"
    );
}

/// Who asks for what there is not hears what there is.
#[test]
fn faults_that_there_are_not() {
    let scratch = Scratch::new("faults");
    let socket = scratch.0.join("hca.sock");
    let _server = serve(&[Path::new("--socket"), &socket]);
    let fault = |arguments: &[&str]| {
        let shown = output(program().args(["ctl", "--socket"]).arg(&socket).arg("fault").args(arguments));
        let said = [shown.stdout, shown.stderr].concat();
        (shown.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = fault(&["remove", "7"]);
    assert!(code == Some(1) && said.contains("no fault 7, there are none"), "{said}");
    let (code, said) = fault(&["add", "at=host", "on=interrupt", "action=lose", "nth=1000"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = fault(&["remove", "7"]);
    assert!(code == Some(1) && said.contains("no fault 7, only 0"), "{said}");
    assert_eq!(fault(&["remove", "0"]), (Some(0), String::new()));
}

/// Two processes on addresses that are free now, and a link between them.
fn processes() -> String {
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let [left, right] = sockets.map(|socket| socket.local_addr().unwrap());
    format!(
        "[fabric]\nsubnet_manager = \"none\"\n\
         [[process]]\nname = \"left\"\naddress = \"{left}\"\n[[process]]\nname = \"right\"\naddress = \"{right}\"\n\
         [[host]]\nname = \"a\"\nprocess = \"left\"\n[[host.hca]]\n\
         [[host]]\nname = \"b\"\nprocess = \"right\"\n[[host.hca]]\n\
         [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n"
    )
}

#[test]
fn keys_of_processes() {
    let scratch = Scratch::new("tunnel-keys");
    let topology = scratch.file("far.toml", &processes());
    let out = scratch.0.join("keys");
    let make = || output(program().arg("tunnel-keys").arg(&topology).arg("--out").arg(&out));
    let made = make();
    assert!(made.status.success(), "{made:?}");
    let files = ["left", "right"].map(|name| out.join(format!("{name}.keys")));
    let listed: String = files.iter().map(|file| format!("{}\n", file.display())).collect();
    assert_eq!(String::from_utf8_lossy(&made.stdout), listed);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&out), files.each_ref().map(|file| mode(file))), (0o700, [0o600; 2]));
    // Keys that are there stay.
    let before = std::fs::read(&files[0]).unwrap();
    let again = make();
    assert!(
        !again.status.success() && String::from_utf8_lossy(&again.stderr).contains("left.keys"),
        "{again:?}"
    );
    assert_eq!(std::fs::read(&files[0]).unwrap(), before);
    // A server takes its own file, and not one that names others' links.
    let run = scratch.0.join("run");
    let arguments = |file: &Path| {
        let mut command = program();
        command.arg("serve").arg("--topology").arg(&topology).args(["--process", "left", "--run-dir"]);
        command.arg(&run).arg("--tunnel-key-file").arg(file);
        command
    };
    let foreign = scratch.file("foreign", &format!("a/hca0 c/hca0 {}\n", "0a".repeat(32)));
    std::fs::set_permissions(&foreign, Permissions::from_mode(0o600)).unwrap();
    let refused = output(&mut arguments(&foreign));
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("no link between a/hca0 and c/hca0"), "{error}");
    drop(ready(arguments(&files[0]).stderr(Stdio::null())));
}

/// Of a recording there is the page that there is of its trace, and the trace does not stay.
#[test]
fn a_page_of_a_recording() {
    let scratch = Scratch::new("page-of-recording");
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/recordings/7.2.rec");
    let page = scratch.0.join("page.html");
    let mut command = program();
    command.env("TMPDIR", &scratch.0).arg("report").arg(&recording).arg("--output").arg(&page);
    let made = output(&mut command);
    assert!(made.status.success(), "{made:?}");
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("7.2.rec") && text.contains("ENABLE_HCA") && text.contains("TEARDOWN_HCA"));
    let left: Vec<_> =
        std::fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["page.html"]);
}

/// A recording is played for it; what is collected is what a replay collects.
#[test]
fn coverage_of_a_recording() {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/recordings/6.1.rec");
    let scratch = Scratch::new("coverage-of-a-recording");
    let collected = scratch.0.join("collected.json");
    let argument = format!("--coverage={}", collected.display());
    let replayed = output(program().arg("replay").arg(&recording).arg(argument));
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
    let of = |file: &Path| {
        let shown = output(program().args(["coverage", "--json"]).arg(file));
        assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
        String::from_utf8(shown.stdout).unwrap()
    };
    let (played, kept) = (of(&recording), of(&collected));
    assert!(played.contains("CREATE_EQ"), "{played}");
    assert_eq!(played, kept);
}
