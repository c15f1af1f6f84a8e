//! What two stock guests say to each other over the wire, as tshark and a program of our own see it.

use hca_tests::files::Temporary;
use hca_tests::guests::{Job, Session};
use hca_tests::packets::{COMPLAINTS, checksums, tshark};

/// Opcodes of RC (IBTA vol 1 9.2.1).
const SEND_ONLY: &str = "4";
const ACKNOWLEDGE: &str = "17";
const MESSAGES: usize = 100;
/// Of `ib_send_bw`; fits into a packet with the largest MTU.
const SIZE: &str = "4096";

#[test]
fn a_capture_of_ib_send_bw() {
    let file = Temporary::new("ib_send_bw.pcapng");
    let command = format!("ib_send_bw -F -n {MESSAGES} -s {SIZE}");
    let a = Job::new().step("send", format!("offer b {command}"));
    let b = Job::new().step("send", format!("accept {command} a"));
    let session = Session::new("two-hosts").serve(format!("--pcap={}", file.path().display()));
    let done = session.host("a", &a).host("b", &b).passes();
    assert!(done.printed("b", "send").contains("BW average"), "{}", done.printed("b", "send"));

    let bad = tshark(file.path(), &["-Y", COMPLAINTS]);
    assert!(bad.is_empty(), "tshark complains:\n{}", bad.lines().take(20).collect::<Vec<_>>().join("\n"));
    let lines = checksums(file.path());
    let wrong: Vec<_> = lines.iter().filter(|l| l.verdict != "good").take(20).collect();
    assert!(wrong.is_empty(), "bad checksums: {wrong:#?}");
    assert!(lines.is_sorted_by_key(|l| l.at), "packets are in the order of time");

    // Every message is there, at both ports, and was acknowledged.
    let fields = ["frame.interface_name", "infiniband.bth.opcode", "data.len"];
    let fields: Vec<_> =
        ["-T", "fields"].into_iter().chain(fields.into_iter().flat_map(|f| ["-e", f])).collect();
    let table = tshark(file.path(), &fields);
    assert_eq!(table.lines().count(), lines.len(), "tshark reads every packet");
    let rows: Vec<Vec<&str>> = table.lines().map(|l| l.split('\t').collect()).collect();
    for port in ["a/hca0:1", "b/hca0:1"] {
        let count =
            |opcode: &str, length: &str| rows.iter().filter(|r| r[..] == [port, opcode, length]).count();
        assert!(count(SEND_ONLY, SIZE) >= MESSAGES, "{} messages at {port}", count(SEND_ONLY, SIZE));
        assert!(count(ACKNOWLEDGE, "") > 0, "no acknowledgement at {port}");
    }
}
