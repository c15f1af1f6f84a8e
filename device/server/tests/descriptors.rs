//! A process that may have no more descriptors. One test, in a process of its own: the limit is everybody's.

mod common;

use std::fs::File;

use common::{IDENTITY, Raw, Server};
use nix::libc::EMFILE;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Who can't be accepted is told so; if not, the connection would wait, and wake the server all the time.
#[test]
fn connections_without_a_descriptor_are_ended() {
    let server = Server::start(&["a", "b"]);
    let mut victim = server.client("b");
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 200.min(hard), hard).unwrap();
    for _ in 0..3 {
        let mut taken = Vec::new();
        let error = loop {
            match File::open("/dev/null") {
                Ok(file) => taken.push(file),
                Err(e) => break e,
            }
        };
        assert_eq!(error.raw_os_error(), Some(EMFILE));
        // One for the client's own end.
        taken.pop();
        assert!(Raw::connect(&server.socket("a")).is_closed());
        assert_eq!(victim.identity(), IDENTITY);
    }
    assert_eq!(server.client("a").identity(), IDENTITY);
}
