//! Control socket: one JSON request per line, one JSON reply per line.
//!
//! Requests: `{"cmd":"ping"}`, `{"cmd":"resources"}`, `{"cmd":"metrics"}`, `{"cmd":"stat"}`, `{"cmd":"totals"}` (the
//! same without queue pairs), `{"cmd":"inspect","what":"qp","number":64,"at":"a/hca0"}` (one object; `at` may be left out), `{"cmd":"coverage"}` (what drivers used, if that is collected), `{"cmd":"diagnoses","since":NEXT}` (those since an answer that said `"next":NEXT`), `{"cmd":"links"}`,
//! `{"cmd":"link","at":"a/hca0","state":"down"}`, `{"cmd":"fault"}` (what goes wrong on script),
//! `{"cmd":"fault","add":{"at":"a/hca0","on":"command","action":"hang"}}` (keys as in a topology),
//! `{"cmd":"fault","remove":NUMBER}`, `{"cmd":"slots","since":NEXT}` (what happened in slots, for who has them),
//! `{"cmd":"slot","at":"a/hca0","state":"empty"}` (it is out). A reply has `"ok":true` and the answer, or `"ok":false` and
//! `"error"`. Rubbish gets an error reply; a line that is too long or a client that doesn't read ends that connection,
//! nothing else. So does half a line that is not completed within 5 s, an answer that is not taken within 10 s, and silence of 60 s.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use serde_json::{Value, json};

use crate::log::Source;

/// Name of the control socket in a run directory.
pub const SOCKET: &str = "control.sock";
/// Connections at a time: when another comes, the one that has been silent longest gives way.
const MAX_CLIENTS: usize = 32;
/// Longest request line.
const MAX_LINE: usize = 4096;
/// Reply bytes a client may leave unread.
pub(crate) const MAX_UNSENT: usize = 4 << 20;
/// From the first byte of a request to its last.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long an answer may lie.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long a client may have nothing to say.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// How long [`ask`] waits for a server.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// One client of the control socket.
#[derive(Debug)]
pub struct ControlClient {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// More may come.
    open: bool,
    /// When it last said something.
    heard: Instant,
    /// When the request began that is half there, or the last one was answered, or it came.
    since: Instant,
}

/// Takes a connection to the control socket, if it is the operator's: the user's that runs this process, or root's. The
/// socket's permissions say the same, until somebody changes them.
pub(crate) fn admit(clients: &mut Vec<ControlClient>, stream: UnixStream, log: &Source) {
    let uid = getsockopt(&stream, PeerCredentials).map(|peer| peer.uid());
    if !uid.is_ok_and(|uid| uid == 0 || uid == geteuid().as_raw()) {
        return log.say(|| tracing::warn!("control: a connection of user {uid:?} was refused"));
    }
    if clients.len() >= MAX_CLIENTS
        && let Some((idle, _)) = clients.iter().enumerate().min_by_key(|(_, client)| client.heard)
    {
        clients.remove(idle);
        log.say(|| {
            tracing::warn!("control: too many connections, the one that was silent longest is closed")
        });
    }
    if let Ok(client) = ControlClient::new(stream) {
        clients.push(client);
    }
}

impl ControlClient {
    /// Takes over a connected stream.
    pub fn new(stream: UnixStream) -> io::Result<ControlClient> {
        stream.set_nonblocking(true)?;
        let (input, output, now) = (Vec::new(), Vec::new(), Instant::now());
        Ok(ControlClient { stream, input, output, open: true, heard: now, since: now })
    }

    /// The socket, for `poll`.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// True while replies wait to be read.
    pub fn is_congested(&self) -> bool {
        !self.output.is_empty()
    }

    /// True if a request can be answered that was read already. While the client does not read, none is.
    pub fn has_request(&self) -> bool {
        !self.is_congested() && self.input.contains(&b'\n')
    }

    /// When its time is over; `None`: it waits for this server.
    pub fn due(&self) -> Option<Instant> {
        let time = match (self.is_congested(), self.has_request(), self.input.is_empty()) {
            (true, ..) => ANSWER_TIME,
            (_, true, _) => return None,
            (_, _, false) => REQUEST_TIME,
            _ => IDLE_TIME,
        };
        Some(self.since + time)
    }

    /// Answers one request; reads first what there is if none waits. Returns false at the end of the connection.
    ///
    /// One, since an answer may take long: who sends many waits for its turns, and hosts have theirs between.
    pub fn serve(&mut self, mut answer: impl FnMut(&str, &Value) -> Result<Value, String>) -> bool {
        if !self.take() {
            return false;
        }
        if self.is_congested() {
            return true;
        }
        if let Some(end) = self.input.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let reply = match request(&line).and_then(|(cmd, all)| answer(&cmd, &all)) {
                Ok(mut value) => {
                    if let Some(map) = value.as_object_mut() {
                        map.insert("ok".into(), Value::Bool(true));
                    }
                    value
                }
                Err(error) => json!({"ok": false, "error": error}),
            };
            self.output.extend_from_slice(reply.to_string().as_bytes());
            self.output.push(b'\n');
            self.since = Instant::now();
            if self.output.len() > MAX_UNSENT {
                return false;
            }
        }
        self.flush() && (self.open || self.is_congested() || self.has_request())
    }

    /// Does everything but answering: another client has its turn. Returns false at the end of the connection.
    pub(crate) fn wait(&mut self) -> bool {
        self.take() && (self.open || self.is_congested() || self.has_request())
    }

    /// Sends what waits; reads what there is if no request waits. Returns false if the connection is of no use any more.
    fn take(&mut self) -> bool {
        self.flush() && (self.is_congested() || self.has_request() || self.read())
    }

    /// Reads what there is, a bounded amount. Returns false if the connection is of no use any more.
    fn read(&mut self) -> bool {
        let mut chunk = [0; 1024];
        for _ in 0..16 {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    self.open = false;
                    break;
                }
                Ok(n) => {
                    self.heard = Instant::now();
                    if self.input.is_empty() {
                        self.since = self.heard;
                    }
                    self.input.extend_from_slice(chunk.get(..n).unwrap_or_default());
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        let tail = self.input.iter().rev().position(|&b| b == b'\n').unwrap_or(self.input.len());
        tail <= MAX_LINE
    }

    fn flush(&mut self) -> bool {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return false,
                Ok(n) => drop(self.output.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

fn request(line: &[u8]) -> Result<(String, Value), String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| format!("not JSON: {e}"))?;
    let cmd = value.get("cmd").and_then(Value::as_str).ok_or("no \"cmd\"")?;
    Ok((cmd.to_owned(), value))
}

/// Where the control socket of a server with a single adapter is: beside that adapter's socket.
pub fn beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".control");
    name.into()
}

/// Asks the server at the control socket `path` what needs no more than a word.
///
/// # Errors
/// If no server answers in time, or it answers with an error; the message names the path.
pub fn query(path: &Path, cmd: &str) -> anyhow::Result<Value> {
    ask(path, &json!({ "cmd": cmd }))
}

/// Sends a request to the server at the control socket `path`.
///
/// # Errors
/// As [`query`].
pub fn ask(path: &Path, request: &Value) -> anyhow::Result<Value> {
    let shown = path.display();
    let stream = UnixStream::connect(path).with_context(|| format!("{shown}: no server answers there"))?;
    converse(stream, request, QUERY_TIMEOUT).map_err(|why| anyhow!("{shown}: {why:#}"))
}

/// Asks by a connection, and waits so long for the answer.
///
/// # Errors
/// There is none, it is too long, or it is an error.
fn converse(mut stream: UnixStream, request: &Value, patience: Duration) -> anyhow::Result<Value> {
    let until = Instant::now() + patience;
    stream.set_write_timeout(Some(patience))?;
    writeln!(stream, "{request}").context("request")?;
    let mut reply = Vec::new();
    let mut chunk = [0; 4096];
    while !reply.ends_with(b"\n") && reply.len() <= MAX_UNSENT {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("no answer within {patience:?}");
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => reply.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(e) => bail!("no answer: {e}"),
        }
    }
    understand(&reply)
}

/// What a reply says.
///
/// # Errors
/// It is an error, or no reply at all.
pub(crate) fn understand(reply: &[u8]) -> anyhow::Result<Value> {
    let value: Value = serde_json::from_slice(reply).context("answer is not JSON")?;
    if value.get("ok") != Some(&Value::Bool(true)) {
        bail!("{}", value.get("error").and_then(Value::as_str).unwrap_or("refused"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(input: &[u8]) -> (Vec<Value>, bool) {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut client = ControlClient::new(theirs).unwrap();
        ours.write_all(input).unwrap();
        let mut alive = true;
        let mut turns = 0;
        while alive && (client.has_request() || turns <= input.len() / 1024) {
            turns += 1;
            alive &= client.serve(|cmd, _| match cmd {
                "ping" => Ok(json!({"pong": 1})),
                other => Err(format!("unknown cmd {other:?}")),
            });
        }
        drop(client);
        let mut text = String::new();
        ours.read_to_string(&mut text).unwrap();
        let lines = text.lines().map(|l| serde_json::from_str(l).unwrap());
        (lines.collect(), alive)
    }

    #[test]
    fn requests_are_answered_in_order() {
        let (replies, alive) = answers(b"{\"cmd\":\"ping\"}\n{\"cmd\":\"x\"}\n");
        assert!(alive);
        assert_eq!(replies[0], json!({"ok": true, "pong": 1}));
        assert_eq!(replies[1]["ok"], false);
    }

    #[test]
    fn rubbish_gets_an_error_and_the_connection_lives() {
        let input = b"\n\xff\xfe\n[]\n{\"cmd\":3}\n{\n{\"cmd\":\"ping\"}\n";
        let (replies, alive) = answers(input);
        assert!(alive);
        assert_eq!(replies.len(), 6);
        assert!(replies[..5].iter().all(|r| r["ok"] == false));
        assert_eq!(replies[5]["ok"], true);
    }

    #[test]
    fn many_requests_take_turns() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut client = ControlClient::new(theirs).unwrap();
        ours.write_all(&b"{\"cmd\":\"ping\"}\n".repeat(500)).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let (mut alive, mut turns) = (true, 0);
        // It does not read: after some hundred no more are answered.
        for _ in 0..1000 {
            let mut answered = 0;
            alive &= client.serve(|_, _| {
                answered += 1;
                Ok(json!({}))
            });
            assert!(answered <= 1, "hosts have their turn between");
            turns += answered;
        }
        assert!(alive && client.is_congested() && !client.has_request() && turns < 500, "{turns}");
        // It reads: all are.
        let mut text = Vec::new();
        let mut chunk = [0; 4096];
        while alive {
            let n = ours.read(&mut chunk).unwrap();
            text.extend_from_slice(&chunk[..n]);
            alive = client.serve(|_, _| Ok(json!({})));
        }
        drop(client);
        ours.read_to_end(&mut text).unwrap();
        assert_eq!(text.iter().filter(|&&b| b == b'\n').count(), 500);
    }

    /// Half a request, an answer that nobody takes and silence have their times; a request that waits for its answer has none.
    #[test]
    fn clients_have_their_times() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut client = ControlClient::new(theirs).unwrap();
        let time = |client: &ControlClient| client.due().map(|due| due - client.since);
        let answer = |client: &mut ControlClient, len: usize| {
            client.serve(|_, _| Ok(json!({ "text": "x".repeat(len) })))
        };
        assert_eq!(time(&client), Some(IDLE_TIME));
        let came = client.since;
        ours.write_all(b"{\"cmd\":").unwrap();
        assert!(answer(&mut client, 1));
        assert_eq!(time(&client), Some(REQUEST_TIME));
        let began = client.since;
        assert!(began > came, "of this request");
        // Another byte of it is no new beginning.
        ours.write_all(b"\"ping\"").unwrap();
        assert!(answer(&mut client, 1));
        assert_eq!((client.since, time(&client)), (began, Some(REQUEST_TIME)));
        ours.write_all(b"}\n{\"cmd\":\"ping\"}\n").unwrap();
        assert!(answer(&mut client, 1));
        assert_eq!((client.has_request(), client.due()), (true, None));
        assert!(answer(&mut client, 1));
        assert_eq!(time(&client), Some(IDLE_TIME));
        assert!(client.since > began, "it was answered");
        ours.write_all(b"{\"cmd\":\"ping\"}\n").unwrap();
        assert!(answer(&mut client, 3 << 20));
        assert_eq!((client.is_congested(), time(&client)), (true, Some(ANSWER_TIME)));
    }

    #[test]
    fn endless_lines_end_the_connection() {
        let (replies, alive) = answers(&[b'x'; 3 * MAX_LINE]);
        assert!(!alive && replies.is_empty());
    }
}
