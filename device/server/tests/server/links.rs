//! Links by command, and links between two servers over UDP.

use std::fs::Permissions;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::common::Server;
use hca_server::engine::Role;
use hca_server::tunnel::key::Key;
use serde_json::{Value, json};

/// Longer than anything takes on a slow and busy machine; only a test that hangs meets it.
const HANG: Duration = Duration::from_secs(60);

/// Waits until the server's only link is as wanted.
fn wait_for(server: &Server, key: &str, wanted: &Value) {
    let deadline = Instant::now() + HANG;
    loop {
        let links = server.ask("links");
        if links["links"][0][key] == *wanted {
            return;
        }
        assert!(Instant::now() < deadline, "never {key} {wanted}: {links}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_cable_out_and_in() {
    let host = |n| format!("[[host]]\nname = \"{n}\"\n[[host.hca]]\n");
    let text = format!(
        "{}{}{}[[host.hca]]\n[[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n",
        host("a"),
        host("b"),
        host("c")
    );
    let server = Server::serve(&text, &Role::default());
    wait_for(&server, "up", &json!(true));
    for at in ["a", "a:1", "a/hca0", "a/hca0:1", "b", "b:1"] {
        server.link("down", at).unwrap();
        let link = server.ask("links")["links"][0].clone();
        assert_eq!((&link["cable"], &link["up"]), (&json!(false), &json!(false)), "{at}");
        server.link("up", at).unwrap();
        wait_for(&server, "up", &json!(true));
    }
    for (state, at, reason) in [
        ("down", "c/hca0", "no link at \"c/hca0\"; ports with a link: a/hca0, b/hca0"),
        ("down", "a:2", "no link at \"a:2\""),
        ("down", "nobody", "no link at \"nobody\""),
        ("down", "c", "host c has several adapters: c/hca0, c/hca1"),
        ("sideways", "a", "\"up\" or \"down\", not \"sideways\""),
    ] {
        let error = server.link(state, at).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    let error = hca_server::control::query(&server.dir.join("control.sock"), "link").unwrap_err().to_string();
    assert!(error.contains("are needed"), "{error}");
    assert_eq!(server.ask("links")["links"][0]["rate"], "edr");
}

/// Two processes on addresses that are free now.
struct Far(String);

impl Far {
    fn new() -> Far {
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let [left, right] = sockets.map(|socket| socket.local_addr().unwrap());
        Far(format!(
            "[fabric]\nsubnet_manager = \"none\"\ntunnel_timeout_ms = 1000\n\
             [[process]]\nname = \"left\"\naddress = \"{left}\"\n[[process]]\nname = \"right\"\naddress = \"{right}\"\n\
             [[host]]\nname = \"a\"\nprocess = \"left\"\n[[host.hca]]\n\
             [[host]]\nname = \"b\"\nprocess = \"right\"\n[[host.hca]]\n\
             [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n"
        ))
    }

    fn start(&self, process: &str, secret: &str) -> Server {
        let keys = Key::from_secret(secret.as_bytes()).into();
        Server::serve(&self.0, &Role { process: Some(process.into()), keys })
    }
}

#[test]
fn a_link_between_two_servers() {
    let far = Far::new();
    let left = far.start("left", "s");
    wait_for(&left, "peer", &json!(false));
    let right = far.start("right", "s");
    let both_up = |left: &Server, right: &Server| {
        for server in [left, right] {
            wait_for(server, "peer", &json!(true));
            wait_for(server, "up", &json!(true));
        }
    };
    both_up(&left, &right);
    // The cable has two ends, whichever server is told.
    for (told, at) in [(&left, "a"), (&left, "b"), (&right, "a"), (&right, "b")] {
        told.link("down", at).unwrap();
        wait_for(&left, "up", &json!(false));
        wait_for(&right, "up", &json!(false));
        told.link("up", at).unwrap();
        both_up(&left, &right);
    }
    // The other server ends, and comes back.
    drop(right);
    wait_for(&left, "peer", &json!(false));
    wait_for(&left, "up", &json!(false));
    let right = far.start("right", "s");
    both_up(&left, &right);
    let tunnels = left.ask("metrics")["tunnels"].clone();
    assert_eq!(tunnels["links"][0]["sessions"], 2, "{tunnels}");
    assert_eq!(tunnels["links"][0]["peer"], "right");
}

#[test]
fn strangers_take_nothing_down() {
    let far = Far::new();
    let left = far.start("left", "s");
    let right = far.start("right", "s");
    wait_for(&left, "up", &json!(true));
    let address = |name: &str| {
        let topology = hca_server::topology::Topology::parse("t", &far.0).unwrap();
        topology.processes.iter().find(|p| p.name == name).unwrap().address.unwrap()
    };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for bytes in [&[][..], b"HCAT", &[0; 100], &[b'H'; 2000]] {
        socket.send_to(bytes, address("left")).unwrap();
    }
    let deadline = Instant::now() + HANG;
    while left.ask("metrics")["tunnels"]["strangers"] != 4 {
        assert!(Instant::now() < deadline, "{}", left.ask("metrics"));
    }
    // Somebody in the place of the right process, with another key.
    drop(right);
    wait_for(&left, "up", &json!(false));
    let stranger = far.start("right", "guess");
    while left.ask("metrics")["tunnels"]["links"][0]["unauthenticated"] == 0 {
        assert!(Instant::now() < deadline, "{}", left.ask("metrics"));
    }
    assert_eq!(left.ask("links")["links"][0]["peer"], false);
    drop(stranger);
    let right = far.start("right", "s");
    wait_for(&left, "up", &json!(true));
    drop(right);
}

#[test]
fn a_key_is_needed() {
    let far = Far::new();
    let topology = hca_server::topology::Topology::parse("t", &far.0).unwrap();
    let stop = nix::sys::eventfd::EventFd::new().unwrap();
    let stop = std::os::fd::AsFd::as_fd(&stop).try_clone_to_owned().unwrap();
    let role = Role { process: Some("left".into()), ..Role::default() };
    let none = |_: &hca_server::topology::Hca| unreachable!("there is no adapter to serve yet");
    let error = hca_server::engine::Engine::new(&topology, &role, none, None, stop).err().unwrap();
    assert!(error.to_string().contains("tunnel_key_file"), "{error}");
}

#[test]
fn key_files() {
    let dir = std::env::temp_dir().join(format!("softhca-keys-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let load = |text: &str, mode| {
        let file = dir.join("key");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        Key::load(&file).map_err(|e| format!("{e:#}"))
    };
    let good = format!("{}\n", "0a".repeat(32));
    assert!(load(&good, 0o600).is_ok() && load(&good, 0o400).is_ok());
    for mode in [0o666, 0o640, 0o604, 0o610] {
        let error = load(&good, mode).unwrap_err();
        assert!(error.contains("chmod 600") && error.contains("key:"), "{error}");
    }
    for text in ["", "0a", &"0a".repeat(33), &"0x".repeat(32)] {
        let error = load(text, 0o600).unwrap_err();
        assert!(error.contains("64 hexadecimal digits") && error.contains("/key"), "{error}");
    }
    assert!(Key::load(&dir.join("none")).unwrap_err().to_string().contains("none"));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_switch_between_two_hosts() {
    let host = |n| format!("[[host]]\nname = \"{n}\"\n[[host.hca]]\n");
    let text = format!(
        "{}{}[[switch]]\nname = \"sw\"\n[[link]]\nbetween = [\"a/hca0\", \"sw\"]\n[[link]]\nbetween = [\"sw/7\", \"b/hca0\"]\n",
        host("a"),
        host("b")
    );
    let server = Server::serve(&text, &Role::default());
    wait_for(&server, "up", &json!(true));
    for at in ["sw:1", "sw/1", "a"] {
        server.link("down", at).unwrap();
        let links = server.ask("links")["links"].clone();
        assert_eq!((&links[0]["up"], &links[0]["between"][1]), (&json!(false), &json!("sw/1")), "{at}");
        assert_eq!(links[1]["cable"], true);
        server.link("up", at).unwrap();
        wait_for(&server, "up", &json!(true));
    }
    let error = server.link("down", "sw:2").unwrap_err();
    assert!(error.contains("no link at \"sw:2\"; ports with a link: a/hca0, sw:1, sw:7, b/hca0"), "{error}");
}
