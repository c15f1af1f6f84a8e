//! The operator's questions to workers: they are asked at once, and all of them have the same time to answer.
//!
//! A worker may have been taken over: its answer has a bounded length, one that dribbles is as late as one that is silent, and one with
//! [descriptors](super::wary) is none.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use serde_json::Value;

use super::wary::{self, Wary};
use crate::closer::Closer;
use crate::control;

/// How long workers may take to answer the operator, all together.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);
/// How long one that was silent is not asked again.
pub(super) const REST: Duration = Duration::from_secs(30);

/// Nothing came in time.
#[derive(Debug)]
pub(super) struct Silent;

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "silent: no answer within {PATIENCE:?}")
    }
}

impl std::error::Error for Silent {}

/// A question that is asked: here the answer is awaited, and there is who is to get the other end. What comes beside an answer is let
/// go of by `closer`.
///
/// # Errors
/// The system has no sockets, or no room for the question.
pub(super) fn ask(request: &Value, closer: &Closer) -> anyhow::Result<(Wary, OwnedFd)> {
    let (ours, theirs) = wary::pair()?;
    let ours = Wary::new(ours, closer.clone());
    let line = format!("{request}\n");
    // It is shorter than what a new socket takes.
    anyhow::ensure!(ours.send(line.as_bytes())? == line.len(), "a question is too long");
    Ok((ours, theirs))
}

/// A question under way.
struct Asked {
    socket: Wary,
    reply: Vec<u8>,
    /// All has come that will be taken.
    done: bool,
    /// Why it is no answer.
    refused: Option<io::Error>,
}

impl Asked {
    /// Takes some of what has come.
    fn take(&mut self) {
        let mut chunk = [0; 16 << 10];
        match self.socket.receive(&mut chunk) {
            Ok(0) => self.done = true,
            Ok(n) => self.reply.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(e) => {
                self.done = true;
                self.refused = (e.kind() == io::ErrorKind::Other).then_some(e);
            }
        }
        self.done |= self.reply.ends_with(b"\n") || self.reply.len() > control::MAX_UNSENT;
    }
}

/// Waits for the answers to questions, those that could be asked, until all are there or that time has come. They have the questions' order.
///
/// An answer is an error if the worker refuses, says what is no answer, or is [`Silent`].
pub(super) fn gather(asked: Vec<anyhow::Result<Wary>>, until: Instant) -> Vec<anyhow::Result<Value>> {
    let new = |socket| Asked { socket, reply: Vec::new(), done: false, refused: None };
    let mut asked: Vec<anyhow::Result<Asked>> = asked.into_iter().map(|socket| socket.map(new)).collect();
    loop {
        let waiting: Vec<&mut Asked> = asked.iter_mut().flatten().filter(|asked| !asked.done).collect();
        let left = until.saturating_duration_since(Instant::now());
        if waiting.is_empty() || left.is_zero() {
            break;
        }
        let mut fds: Vec<PollFd<'_>> = waiting
            .iter()
            .filter_map(|asked| Some(PollFd::new(asked.socket.as_fd()?, PollFlags::POLLIN)))
            .collect();
        // A signal may come between: who has nothing is read in vain.
        let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None);
        let ready: Vec<bool> =
            fds.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect();
        waiting.into_iter().zip(ready).filter(|(_, ready)| *ready).for_each(|(asked, _)| asked.take());
    }
    let answer = |asked: Asked| match (asked.done, asked.refused) {
        (true, None) => control::understand(&asked.reply),
        (true, Some(why)) => Err(why.into()),
        (false, _) => Err(Silent.into()),
    };
    asked.into_iter().map(|asked| asked.and_then(answer)).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use nix::sys::socket::MsgFlags;
    use serde_json::json;

    use super::wary::tests::{Slow, at_once};
    use super::*;

    fn question() -> (Wary, UnixStream) {
        let (ours, theirs) = ask(&json!({ "cmd": "ping" }), &Closer::default()).unwrap();
        (ours, theirs.into())
    }

    /// An answer with descriptors is refused, one that is not looked at is dropped, and nobody waits for what they do when they are closed.
    #[test]
    fn descriptors_hold_nobody() {
        let (mut slow, mut slower) = (Slow::new(), Slow::new());
        let (refused, theirs) = question();
        slow.send(theirs.as_fd(), b"{\"ok\":true}\n", MsgFlags::empty());
        let (answers, mut others) = question();
        others.write_all(b"{\"ok\":true}\n").unwrap();
        slower.send(others.as_fd(), b"x", MsgFlags::empty());
        let asked = vec![Ok(refused), Ok(answers)];
        let answers = at_once(|| gather(asked, Instant::now() + Duration::from_secs(600)));
        let why = |answer: &anyhow::Result<Value>| answer.as_ref().unwrap_err().to_string();
        assert_eq!(
            (why(&answers[0]), why(&answers[1])),
            (wary::DESCRIPTORS.into(), wary::DESCRIPTORS.into())
        );
    }

    /// Who asks one after the other waits for the first for ever: it answers when the last has its question.
    #[test]
    fn all_are_asked_at_once() {
        let (ours, theirs): (Vec<_>, Vec<_>) = (0..3).map(|_| question()).unzip();
        let far = std::thread::spawn(move || {
            for stream in &theirs {
                let mut line = String::new();
                BufReader::new(stream).read_line(&mut line).unwrap();
                assert_eq!(line, "{\"cmd\":\"ping\"}\n");
            }
            for (i, mut stream) in theirs.iter().enumerate() {
                let answer = json!({ "ok": i != 1, "i": i, "error": "not here" }).to_string() + "\n";
                let (first, last) = answer.as_bytes().split_at(5);
                stream.write_all(first).unwrap();
                stream.write_all(last).unwrap();
            }
        });
        let answers = gather(ours.into_iter().map(Ok).collect(), Instant::now() + Duration::from_secs(600));
        far.join().unwrap();
        assert_eq!(answers[0].as_ref().unwrap()["i"], 0);
        assert_eq!(answers[1].as_ref().unwrap_err().to_string(), "not here");
        assert_eq!(answers[2].as_ref().unwrap()["i"], 2);
    }

    #[test]
    fn who_is_silent_dribbles_or_is_gone_holds_nobody() {
        let (silent, _silent) = question();
        let (slow, mut dribbles) = question();
        dribbles.write_all(b"{\"ok\":").unwrap();
        let (lost, gone) = question();
        drop(gone);
        let (heard, mut there) = question();
        there.write_all(b"{\"ok\":true,\"here\":1}\n").unwrap();
        let not_asked = Err(anyhow::anyhow!("it does not run"));
        let asked = vec![Ok(silent), Ok(slow), Ok(lost), Ok(heard), not_asked];
        let answers = gather(asked, Instant::now() + Duration::from_millis(200));
        assert!(answers[0].as_ref().unwrap_err().is::<Silent>());
        assert!(answers[1].as_ref().unwrap_err().is::<Silent>());
        let lost = answers[2].as_ref().unwrap_err();
        assert!(!lost.is::<Silent>() && lost.to_string().contains("not JSON"), "{lost}");
        assert_eq!(answers[3].as_ref().unwrap()["here"], 1);
        assert_eq!(answers[4].as_ref().unwrap_err().to_string(), "it does not run");
    }
}
