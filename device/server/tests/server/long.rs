//! Messages as long as the protocol lets them be, longer than anyone sends.

use crate::common::{IDENTITY, Raw, Server, access};

/// Bytes of a message that a server takes: a transfer of 1 MiB, and what is around it.
const MESSAGE: usize = 1 << 20;
const WRITE_MULTI: u16 = 15;
/// BAR2, which has the table of interrupts.
const TABLE: u32 = 2;
/// Bytes of its entries, and where one has the data of its message.
const ENTRY: u64 = 16;
const DATA: u64 = 8;

/// A client gets its turns between those of another whose message has tens of thousands of writes.
#[test]
fn more_writes_than_a_turn_has() {
    const ENTRIES: u64 = 64;
    const WRITES: u64 = 40_000;
    let server = Server::start(&["a", "b"]);
    let (mut long, mut other) = (server.client("a"), server.client("b"));
    let mut payload = WRITES.to_ne_bytes().to_vec();
    for i in 0..WRITES {
        payload.extend_from_slice(&access(TABLE, i % ENTRIES * ENTRY + DATA, 4));
        payload.extend_from_slice(&i.to_ne_bytes());
    }
    assert!(payload.len() < MESSAGE);
    let message = long.message(WRITE_MULTI, &payload, 0);
    long.send_fds(&message, &[]);
    // What comes behind is answered behind.
    let behind = long.message(9, &access(TABLE, 0, (ENTRIES * ENTRY) as u32), 0);
    long.send_fds(&behind, &[]);
    (0..100).for_each(|_| assert_eq!(other.identity(), IDENTITY));
    assert_eq!(long.reply().unwrap().ok(), WRITES.to_ne_bytes());
    let table = long.reply().unwrap().ok();
    for (entry, place) in table[16..].chunks_exact(16).zip(0..) {
        let last = WRITES - ENTRIES + place;
        assert_eq!(u32::from_le_bytes(entry[8..12].try_into().unwrap()), last as u32, "{place}");
    }
    assert_eq!(server.ask("metrics")["hcas"][0]["writes"], WRITES);
}

/// The same, and the client goes before all are done: the next one gets the adapter.
#[test]
fn a_client_that_goes_between() {
    let server = Server::start(&["a"]);
    let mut long = server.client("a");
    let mut payload = 40_000u64.to_ne_bytes().to_vec();
    payload.extend((0..40_000u64).flat_map(|_| [access(TABLE, DATA, 4), vec![1; 8]].concat()));
    let message = long.message(WRITE_MULTI, &payload, 0);
    long.send_fds(&message, &[]);
    drop(long);
    assert_eq!(server.client("a").identity(), IDENTITY);
}

#[test]
fn version_data_as_long_as_a_message() {
    let server = Server::start(&["a", "b"]);
    let mut c = Raw::connect(&server.socket("a"));
    c.negotiate_with(&format!("{{\"unheard_of\":\"{}\",\"max_msg_fds\":1}}", "x".repeat(MESSAGE - 200)));
    assert_eq!(c.identity(), IDENTITY);
    // Longer than any message: it is refused as such.
    let mut c = Raw::connect(&server.socket("b"));
    assert_eq!(c.call(1, &vec![b' '; MESSAGE + 1000]).errno(), nix::errno::Errno::EMSGSIZE as i32);
    assert!(c.is_closed());
}
