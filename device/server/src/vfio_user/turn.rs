//! What one client may have done before the others have their turn.

use std::time::{Duration, Instant};

/// Messages, of every kind: as many as the time is enough for, at some 2 us each. A host's stores wait in it without a bound, and where the
/// model is slower than the clock a round executes hundreds of WQEs, of each of which the doorbell is a message.
const MESSAGES: usize = 1024;
/// Bytes taken from the socket: the largest message, and what is beside it. Copying them takes some 0.5 ms.
const BYTES: usize = 2 << 20;
/// Host time, looked at between messages, without that of the model's events: they have a share of their own in a round
/// ([`crate::pacing`]). Writing a megabyte of registers takes as long.
const TIME: Duration = Duration::from_millis(2);

/// A turn of one client.
#[derive(Debug)]
pub struct Turn {
    messages: usize,
    bytes: usize,
    until: Option<Instant>,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn { messages: MESSAGES, bytes: BYTES, until: Instant::now().checked_add(TIME) }
    }
}

impl Turn {
    /// Whether another message may be taken.
    pub(super) fn goes_on(&self) -> bool {
        self.messages > 0 && self.bytes > 0 && self.until.is_none_or(|until| Instant::now() < until)
    }

    /// A whole message was taken.
    pub(super) fn count_message(&mut self) {
        self.messages = self.messages.saturating_sub(1);
    }

    /// It is over: what is left of a message is for the next one.
    pub(super) fn end(&mut self) {
        self.messages = 0;
    }

    /// So much time went to the model's events.
    pub(super) fn excuse(&mut self, time: Duration) {
        self.until = self.until.and_then(|until| until.checked_add(time));
    }

    /// How many bytes may be taken.
    pub(super) fn room(&self) -> usize {
        self.bytes
    }

    /// So many bytes were taken.
    pub(super) fn count_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::super::connection::Connection;
    use super::super::wire::{HEADER_LEN, Header, MAX_MESSAGE};
    use super::*;

    /// Header of a message of `size` bytes; of a reply, or else of a command.
    fn header(size: usize, reply: bool) -> Vec<u8> {
        let flags = u32::from(reply);
        Header { id: 7, command: 99, size: size as u32, flags, error: 0 }.encode().to_vec()
    }

    /// How many turns it takes to get to a command behind these bytes. They have to fit a socket.
    fn turns(before: &[u8], turn: impl Fn() -> Turn) -> usize {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours).unwrap();
        theirs.write_all(before).unwrap();
        theirs.write_all(&header(HEADER_LEN, false)).unwrap();
        (1..).find(|_| connection.next_command(&mut turn()).unwrap().is_some()).unwrap()
    }

    #[test]
    fn replies_count_as_messages() {
        let replies = header(HEADER_LEN, true).repeat(10 * MESSAGES);
        let unhurried = || Turn { until: None, ..Turn::default() };
        // The command is the first message of the last turn.
        assert_eq!(turns(&replies, unhurried), 11);
    }

    #[test]
    fn bytes_count_whether_they_are_kept_or_skipped() {
        let few = || Turn { messages: MESSAGES, bytes: 1000, until: None };
        let mut kept = header(50_000, true);
        kept.resize(50_000, 0);
        assert_eq!(turns(&kept, few), 51);
        let mut skipped = header(MAX_MESSAGE + 1, false);
        skipped.resize(100_000, 0);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours).unwrap();
        theirs.write_all(&skipped).unwrap();
        let mut turn = few();
        assert!(connection.next_command(&mut turn).unwrap().is_none());
        assert_eq!(turn.room(), 0, "the turn is over, not what was sent");
        // The largest message is within the bytes of a turn.
        assert!(Turn::default().room() > MAX_MESSAGE);
    }

    #[test]
    fn time_counts() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours).unwrap();
        theirs.write_all(&header(HEADER_LEN, false)).unwrap();
        let mut over = Turn { until: Some(Instant::now()), ..Turn::default() };
        assert!(connection.next_command(&mut over).unwrap().is_none());
        assert!(connection.next_command(&mut Turn { until: None, ..over }).unwrap().is_some());
    }
}
