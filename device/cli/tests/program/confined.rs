//! What `softhca serve` has given up when it says that it is ready.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

/// A number that no user of a usual system has.
const SOMEBODY: u32 = 61_234;

/// A running server with a folder of its own.
struct Server {
    dir: PathBuf,
    child: Child,
    /// What it said when it was ready: nothing if it never was.
    said: String,
}

impl Server {
    /// Starts `softhca serve` in the hands of `wrapper`, which is to execute what comes after it.
    fn start(name: &str, wrapper: &[&str], arguments: &[&str]) -> Server {
        Server::of(name, "[[host]]\nname = \"a\"\n[[host.hca]]\n", wrapper, arguments)
    }

    /// The same with that topology.
    fn of(name: &str, topology: &str, wrapper: &[&str], arguments: &[&str]) -> Server {
        let dir = std::env::temp_dir().join(format!("softhca-confined-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("one.toml"), topology).unwrap();
        let program = env!("CARGO_BIN_EXE_softhca");
        let mut words = wrapper.iter().copied().chain([program, "serve", "--topology"]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).arg(dir.join("one.toml")).arg("--run-dir").arg(dir.join("run")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        Server { dir, child, said }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    fn proc(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.child.id().to_string()).join(name)
    }

    /// The states of all threads (proc(5)).
    fn threads(&self) -> Vec<String> {
        threads(self.child.id().into())
    }

    /// What `softhca stat --json` says.
    fn stat(&self) -> serde_json::Value {
        let mut ask = Command::new(env!("CARGO_BIN_EXE_softhca"));
        let answer = ask.args(["stat", "--json", "--run-dir"]).arg(self.run_dir()).output().unwrap();
        assert!(answer.status.success(), "{answer:?}");
        serde_json::from_slice(&answer.stdout).unwrap()
    }

    /// Ends it; what it has written to stderr.
    fn end(mut self) -> String {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        self.child.wait().unwrap();
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The states of all threads of a process (proc(5)).
fn threads(process: u64) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok()).collect()
}

/// Processes that a process has started (proc(5)).
fn children(process: u64) -> Vec<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of = |task: PathBuf| std::fs::read_to_string(task.join("children")).unwrap_or_default();
    let text: Vec<String> = tasks.map(|task| of(task.unwrap().path())).collect();
    text.iter().flat_map(|ids| ids.split_whitespace()).map(|id| id.parse().unwrap()).collect()
}

fn assert_confined(threads: &[String]) {
    assert_confined_but(threads, 0);
}

/// They are in a sandbox, and have no capabilities but those `left` to them.
fn assert_confined_but(threads: &[String], left: u64) {
    assert!(!threads.is_empty());
    for status in threads {
        assert_eq!((value(status, "Seccomp"), value(status, "NoNewPrivs")), ("2", "1"), "{status}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            let set = u64::from_str_radix(value(status, set), 16).unwrap();
            assert_eq!(set & !left, 0, "{status}");
        }
    }
}

fn value<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}: {status}")).trim()
}

#[test]
fn a_server_is_in_its_sandbox() {
    let server = Server::start("sandbox", &["env"], &[]);
    assert_eq!(server.said, "softhca: ready\n");
    let threads = server.threads();
    // That of the log is one of them.
    assert!(threads.len() >= 2, "{threads:?}");
    assert_confined(&threads);
    let log = server.end();
    assert!(
        log.contains("sandbox: system calls filtered: yes, no new privileges: yes, no capabilities: yes"),
        "{log}"
    );
}

/// Each worker of a server with a process for each host, their supervisor too; and without a sandbox, none of them.
#[test]
fn workers_are_in_their_sandboxes() {
    const TOPOLOGY: &str = "[[switch]]\nname = \"s\"\nports = 2\n[[host]]\nname = \"a\"\n[[host.hca]]\n\
        [[host]]\nname = \"b\"\n[[host.hca]]\n[[link]]\nbetween = [\"a/hca0\", \"s/1\"]\n\
        [[link]]\nbetween = [\"b/hca0\", \"s/2\"]\n";
    for sandbox in [&[][..], &["--no-sandbox"]] {
        let name = format!("workers{}", sandbox.len());
        let arguments = [&["--isolation", "process"][..], sandbox].concat();
        let server = Server::of(&name, TOPOLOGY, &["env"], &arguments);
        assert_eq!(server.said, "softhca: ready\n");
        // Whoever answers is in its sandbox already.
        let workers = loop {
            let pids: Vec<(String, u64)> = match server.stat()["engine"].as_object() {
                Some(engines) => {
                    engines.iter().map(|(who, of)| (who.clone(), of["pid"].as_u64().unwrap())).collect()
                }
                None => Vec::new(),
            };
            if pids.len() == 3 {
                break pids;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        let names: Vec<&str> = workers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["host a", "host b", "switches"]);
        for (name, pid) in &workers {
            assert_ne!(*pid, u64::from(server.child.id()), "{name} is a process of its own");
            let threads = threads(*pid);
            if !sandbox.is_empty() {
                assert!(threads.iter().all(|status| value(status, "Seccomp") == "0"), "{name}: {threads:?}");
                continue;
            }
            // That of the log is one of them.
            assert!(threads.len() >= 2, "{name}: {threads:?}");
            assert_confined(&threads);
            let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
            let limit = |what: &str| -> Vec<u64> {
                let line = limits
                    .lines()
                    .find_map(|line| line.strip_prefix(what))
                    .unwrap_or_else(|| panic!("{limits}"));
                line.split_whitespace().take(2).map(|word| word.parse().unwrap_or(u64::MAX)).collect()
            };
            assert_eq!(limit("Max core file size"), [0, 0], "{name}");
            // A host has one adapter and one link here.
            let files = limit("Max open files");
            assert!(files[0] == files[1] && files[1] <= 512 + 8192 + 2 * 4, "{name}: {files:?}");
        }
        let supervisor = u64::from(server.child.id());
        // What looks at clients' mappings is started beside the workers.
        let helpers: Vec<u64> = children(supervisor)
            .into_iter()
            .filter(|child| workers.iter().all(|(_, worker)| worker != child))
            .collect();
        assert_eq!(helpers.len(), usize::from(sandbox.is_empty()), "{helpers:?}");
        if sandbox.is_empty() {
            assert_confined(&server.threads());
            // One right of a server that root started is left to it (linux/capability.h): CAP_SYS_PTRACE.
            assert_confined_but(&threads(helpers[0]), 1 << 19);
        }
        server.end();
    }
}

#[test]
fn without_it_that_is_said_loudly() {
    let server = Server::start("open", &["env"], &["--no-sandbox"]);
    assert!(server.threads().iter().all(|status| value(status, "Seccomp") == "0"));
    let log = server.end();
    assert!(log.contains("WARN NO SANDBOX"), "{log}");
}

#[test]
fn inherited_descriptors_are_closed() {
    let open = "exec 9</dev/null 8>&1; exec 3</proc/version; exec \"$@\"";
    for sandbox in [&[][..], &["--no-sandbox"]] {
        let server = Server::start(&format!("fds{}", sandbox.len()), &["sh", "-c", open, "sh"], sandbox);
        assert_eq!(server.said, "softhca: ready\n");
        let fds = std::fs::read_dir(server.proc("fd")).unwrap().map(|fd| fd.unwrap().path());
        let fds: Vec<(PathBuf, PathBuf)> =
            fds.filter_map(|fd| Some((fd.clone(), std::fs::read_link(fd).ok()?))).collect();
        let stdin = |fd: &Path| fd.ends_with("0");
        for what in ["/proc/version", "/dev/null"] {
            let has = fds.iter().any(|(fd, to)| to == Path::new(what) && !stdin(fd));
            assert!(!has, "{what}: {fds:?}");
        }
        // Only standard output is the pipe of standard output.
        let out = fds.iter().find(|(fd, _)| fd.ends_with("1")).map(|(_, to)| to.clone());
        assert_eq!(fds.iter().filter(|(_, to)| Some(to) == out.as_ref()).count(), 1, "{fds:?}");
    }
}

#[test]
fn root_becomes_another_user() {
    let user = SOMEBODY.to_string();
    if !geteuid().is_root() {
        let server = Server::start("user", &["env"], &["--uid", &user, "--gid", &user]);
        assert_eq!(server.said, "");
        let log = server.end();
        return assert!(log.contains("only root can become another user"), "{log}");
    }
    // The folder of the test is root's: what is made in it has to be made before.
    let server = Server::start("user", &["env"], &["--uid", &user, "--gid", &user]);
    assert_eq!(server.said, "softhca: ready\n");
    let run = server.run_dir();
    for path in [run.clone(), run.join("control.sock"), run.join("a-hca0.sock")] {
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (SOMEBODY, SOMEBODY), "{}", path.display());
    }
    for status in server.threads() {
        for id in ["Uid", "Gid"] {
            assert!(value(&status, id).split_whitespace().all(|word| word == user), "{status}");
        }
        assert_eq!((value(&status, "Groups"), value(&status, "CapBnd")), ("", "0000000000000000"));
    }
    // Root is served as before.
    let mut ask = Command::new(env!("CARGO_BIN_EXE_softhca"));
    assert!(ask.args(["resources", "--run-dir"]).arg(&run).output().unwrap().status.success());
    let dir = server.dir.clone();
    let log = server.end();
    assert!(!dir.join("run/control.sock").exists(), "{log}");
}

/// Even if somebody has let everybody connect to the control socket: it serves the server's user, and root.
#[test]
fn another_user_has_no_answer() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !geteuid().is_root() {
        return println!("skipped: only root can be two users");
    }
    let server = Server::start("asked", &["env"], &[]);
    assert_eq!(server.said, "softhca: ready\n");
    let open = |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (run, program) = (server.run_dir(), server.dir.join("softhca"));
    // Where the program was built may be closed to others.
    std::fs::copy(env!("CARGO_BIN_EXE_softhca"), &program).unwrap();
    [&server.dir, &run, &run.join("control.sock"), &program].into_iter().for_each(|path| open(path));
    let asked = |user: u32| {
        let mut ask = Command::new(&program);
        ask.uid(user).gid(user).args(["resources", "--run-dir"]).arg(&run).output().unwrap()
    };
    let refused = asked(SOMEBODY);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    assert!(asked(0).status.success());
    let log = server.end();
    assert!(log.contains(&format!("a connection of user Ok({SOMEBODY}) was refused")), "{log}");
}

#[test]
fn a_run_directory_of_another_user_is_refused() {
    if !geteuid().is_root() {
        return println!("skipped: only root can be two users");
    }
    let user = SOMEBODY.to_string();
    let dir = std::env::temp_dir().join(format!("softhca-confined-{}-theirs", std::process::id()));
    std::fs::create_dir_all(dir.join("run")).unwrap();
    let server = Server::start("theirs", &["env"], &["--uid", &user, "--gid", &user]);
    assert_eq!(server.said, "");
    let log = server.end();
    assert!(log.contains("is user 0's and not user 61234's"), "{log}");
}

/// A run directory that others may write to is refused, whoever it is of, with and without `--uid`, and left as it is.
#[test]
fn a_run_directory_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let user = SOMEBODY.to_string();
    let (as_it_is, become_somebody): (&[&str], &[&str]) = (&[], &["--uid", &user, "--gid", &user]);
    let mut cases = vec![(0o777, as_it_is), (0o770, as_it_is), (0o1777, as_it_is)];
    if geteuid().is_root() {
        cases.push((0o720, become_somebody));
    }
    for (mode, arguments) in cases {
        let name = format!("open-{mode:o}");
        let dir = std::env::temp_dir().join(format!("softhca-confined-{}-{name}", std::process::id()));
        let run = dir.join("run");
        std::fs::create_dir_all(&run).unwrap();
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(mode)).unwrap();
        if !arguments.is_empty() {
            std::os::unix::fs::chown(&run, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        }
        let server = Server::start(&name, &["env"], arguments);
        assert_eq!(server.said, "", "{mode:o}");
        assert_eq!(std::fs::metadata(&run).unwrap().mode() & 0o7777, mode);
        let log = server.end();
        assert!(log.contains("others may write there"), "{log}");
    }
}

/// What a line of the page is: a comment, or a metric with its labels and a number.
fn check_line(line: &str) {
    if line.starts_with("# HELP softhca_") || line.starts_with("# TYPE softhca_") {
        return;
    }
    let (metric, number) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
    assert!(number.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
    let (name, labels) = metric.split_once('{').map_or((metric, None), |(name, rest)| (name, Some(rest)));
    assert!(
        name.starts_with("softhca_") && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'),
        "{line}"
    );
    for label in labels
        .into_iter()
        .flat_map(|all| all.strip_suffix('}').unwrap_or_else(|| panic!("{line}")).split(','))
    {
        let (_, value) = label.split_once('=').unwrap_or_else(|| panic!("{line}"));
        assert!(value.len() >= 2 && value.starts_with('"') && value.ends_with('"'), "{line}");
    }
}

#[test]
fn metrics_are_read_from_inside_the_sandbox() {
    let get = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap();
    drop(free);
    let path = std::env::temp_dir().join(format!("softhca-metrics-{}.sock", std::process::id()));
    let unix = format!("unix:{}", path.display());
    for (name, address) in [("tcp", port.to_string()), ("unix", unix)] {
        let server = Server::start(&format!("metrics-{name}"), &["env"], &["--metrics", &address]);
        assert_eq!(server.said, "softhca: ready\n");
        let mut answer = String::new();
        if name == "tcp" {
            let mut stream = std::net::TcpStream::connect(port).unwrap();
            stream.write_all(get).unwrap();
            stream.read_to_string(&mut answer).unwrap();
        } else {
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
            stream.write_all(get).unwrap();
            stream.read_to_string(&mut answer).unwrap();
        }
        let (head, page) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{head}");
        page.lines().for_each(check_line);
        assert!(page.contains("\nsofthca_adapter_attached{adapter=\"a/hca0\"} 0\n"), "{page}");
        assert!(page.contains("\nsofthca_adapter_commands_total{adapter=\"a/hca0\"} 0\n"), "{page}");
        server.end();
        assert!(!path.exists(), "the socket is removed");
    }
}
