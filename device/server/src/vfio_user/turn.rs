//! What one client may have done before the others have their turn.

use std::time::{Duration, Instant};

/// Messages, of every kind. A busy guest sends a few in a round.
const MESSAGES: usize = 128;
/// Bytes taken from the socket: the largest message, and what is beside it. Copying them takes some 0.5 ms.
const BYTES: usize = 2 << 20;
/// Host time, looked at between messages. Writing a megabyte of registers takes as long.
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

    /// How many bytes may be taken.
    pub(super) fn room(&self) -> usize {
        self.bytes
    }

    /// So many bytes were taken.
    pub(super) fn count_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
