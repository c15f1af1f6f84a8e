//! Links that lead out of the model, as whoever runs a server sees them.

use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::Server;
use hca_server::engine::Role;
use serde_json::{Value, json};

/// Longer than anything takes on a slow and busy machine; only a test that hangs meets it.
const HANG: Duration = Duration::from_secs(60);

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG;
    while !is() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder for sockets that both sides know.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let dir = std::env::temp_dir().join(format!("softhca-outside-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn serve(outside: &str) -> Server {
    let text = format!(
        "[fabric]\ntraining_ms = 0\n[[host]]\nname = \"a\"\n[[host.hca]]\nport_type = \"eth\"\n\
         [[outside]]\nname = \"net\"\n{outside}\n[[link]]\nbetween = [\"a/hca0\", \"net\"]\n"
    );
    Server::serve(&text, &Role::default())
}

fn link(server: &Server) -> Value {
    server.ask("links")["links"][0].clone()
}

fn end(server: &Server) -> Value {
    server.ask("stat")["outsides"][0].clone()
}

fn unix(folder: &Path, name: &str) -> String {
    format!("unix:{}", folder.join(name).display())
}

#[test]
fn a_peer_that_comes_and_goes_is_the_links_light() {
    let folder = Folder::new("light");
    let server = serve(&format!("kind = \"stream\"\nlisten = \"{}\"", unix(&folder.0, "s")));
    let first = link(&server);
    assert_eq!(
        (&first["up"], &first["peer"], &first["outside"]),
        (&json!(false), &json!(false), &json!(true))
    );
    for connections in 1..=2 {
        let peer = UnixStream::connect(folder.0.join("s")).unwrap();
        until("up", || link(&server)["up"] == json!(true));
        let end = end(&server);
        assert_eq!(
            (&end["name"], &end["medium"], &end["lit"]),
            (&json!("net"), &json!("stream"), &json!(true))
        );
        assert_eq!(end["connections"], json!(connections));
        // The cable has a name at both ends.
        for at in ["a", "net"] {
            server.link("down", at).unwrap();
            assert_eq!(link(&server)["up"], json!(false));
            server.link("up", at).unwrap();
            until("up again", || link(&server)["up"] == json!(true));
        }
        drop(peer);
        until("down", || link(&server)["up"] == json!(false) && link(&server)["peer"] == json!(false));
    }
}

/// Whatever comes, the server lives, counts it and answers.
#[test]
fn any_bytes_from_outside() {
    let folder = Folder::new("any");
    let (ours, theirs) = (unix(&folder.0, "ours"), unix(&folder.0, "theirs"));
    let server = serve(&format!("kind = \"dgram\"\nlocal = \"{ours}\"\nremote = \"{theirs}\""));
    until("up", || link(&server)["up"] == json!(true));
    let peer = UnixDatagram::bind(folder.0.join("theirs")).unwrap();
    let mut state = 1u64;
    let mut sent = 0;
    for round in 0..400usize {
        let length = match round % 8 {
            0 => round % 20,
            1 => 9990 + round % 20,
            _ => 14 + round * 7 % 1600,
        };
        let frame: Vec<u8> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        peer.send_to(&frame, folder.0.join("ours")).unwrap();
        sent += 1;
    }
    until("all are counted", || {
        let end = end(&server);
        let of = |key: &str| end[key].as_u64().unwrap();
        of("frames_received") + of("short") + of("long") == sent
    });
    assert_eq!(link(&server)["up"], json!(true));
}

#[test]
fn metrics_have_what_stat_has() {
    let folder = Folder::new("metrics");
    let server = serve(&format!("kind = \"stream\"\nlisten = \"{}\"", unix(&folder.0, "s")));
    let mut peer = UnixStream::connect(folder.0.join("s")).unwrap();
    peer.write_all(&u32::MAX.to_be_bytes()).unwrap();
    assert_eq!(peer.read(&mut [0; 4]).unwrap(), 0);
    until("it is counted", || end(&server)["malformed"] == json!(1));
}
