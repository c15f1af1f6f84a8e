//! Judges of captured packets: tshark, and a reader in Python that knows nothing of us.

use std::path::Path;
use std::process::Command;

use hca_vm::cache::Cache;
use hca_vm::judge::Judge;

/// What tshark finds wrong with a packet: it can't dissect it, has something to say about it, or takes it for another protocol.
pub const COMPLAINTS: &str = "_ws.malformed || _ws.expert || !infiniband";

/// A line of the reader in Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The port, as the file names it.
    pub port: String,
    /// It left the port; otherwise it arrived.
    pub sent: bool,
    /// Nanoseconds.
    pub at: u64,
    /// Bytes, LRH to VCRC, or of a frame with its FCS.
    pub length: u64,
    /// "good", or the checksums that are wrong.
    pub verdict: String,
}

/// Checks the checksums of every packet of a pcapng file: ICRC and VCRC, or FCS and the ICRC of RoCE.
pub fn checksums(path: &Path) -> Vec<Line> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/packets.py");
    let out = Command::new("python3").arg(script).arg(path).output().expect("python3 starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text").lines().map(line).collect()
}

fn line(text: &str) -> Line {
    let mut fields = text.splitn(5, ' ');
    let mut next = || fields.next().unwrap_or_else(|| panic!("{text}"));
    let (port, direction, at, length, verdict) = (next(), next(), next(), next(), next());
    assert!(["in", "out"].contains(&direction), "{text}");
    Line {
        port: port.to_owned(),
        sent: direction == "out",
        at: at.parse().expect("nanoseconds"),
        length: length.parse().expect("bytes"),
        verdict: verdict.to_owned(),
    }
}

/// What tshark prints of a pcapng file, with these arguments.
pub fn tshark(path: &Path, arguments: &[&str]) -> String {
    let tshark = Judge::get(&Cache::open().expect("a cache"), "tshark").expect("tshark");
    let mut command = tshark.command().expect("tshark");
    // It takes short payloads for RPC over RDMA, which they are not.
    command.args(["--disable-heuristic", "rpcrdma_infiniband", "-r"]).arg(path);
    let out = command.args(arguments).output().expect("tshark starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}
