//! What an end counts, what it takes in one turn, and what waits to leave by it.

use std::collections::VecDeque;

use serde::Serialize;

use super::frame::{MESSAGE, Refused, to_frame};

/// Messages that one end takes before others get their turn, good and bad.
const MESSAGES: usize = 256;
/// Bytes of them. The last message may go beyond by its length.
const BYTES: usize = 2 << 20;
/// Bytes of frames that may wait to leave by one end; what comes then is lost. 0.3 ms of 100 Gbit/s, more than the receive
/// window of most TCP connections.
const WAITING: usize = 4 << 20;
/// What a frame costs beside its bytes, so that many short ones are bounded, too.
const OVERHEAD: usize = 64;

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Frames that went out.
    pub frames_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Frames that came in.
    pub frames_received: u64,
    /// Their bytes, without padding.
    pub bytes_received: u64,
    /// Messages without a whole header.
    pub short: u64,
    /// Messages longer than any frame.
    pub long: u64,
    /// Frames that found too many others waiting to leave.
    pub crowded: u64,
    /// Frames for nobody: there is no connection, or the system did not take them.
    pub unsent: u64,
    /// Datagrams of others than the peer.
    pub strangers: u64,
    /// Connections.
    pub connections: u64,
    /// Connections that ended because a length was none.
    pub malformed: u64,
}

/// What one end takes in one turn.
#[derive(Debug)]
pub struct Turn<'a> {
    pub(super) counts: &'a mut Counts,
    /// Frames for the model.
    pub frames: Vec<Vec<u8>>,
    messages: usize,
    bytes: usize,
}

impl<'a> Turn<'a> {
    /// One whose counts go there.
    pub fn new(counts: &'a mut Counts) -> Turn<'a> {
        Turn { counts, frames: Vec::new(), messages: 0, bytes: 0 }
    }

    /// Takes a message: a frame for the model, or something to be counted.
    pub fn take(&mut self, message: &[u8]) {
        self.spend(message.len());
        match to_frame(message) {
            Ok(frame) => {
                self.counts.frames_received += 1;
                self.counts.bytes_received += message.len() as u64;
                self.frames.push(frame);
            }
            Err(Refused::Short) => self.counts.short += 1,
            Err(Refused::Long) => self.counts.long += 1,
        }
    }

    /// A datagram of somebody else.
    pub(super) fn stranger(&mut self) {
        self.spend(0);
        self.counts.strangers += 1;
    }

    /// Something was taken that may be no message.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Others are to have their turn.
    pub fn is_over(&self) -> bool {
        self.messages >= MESSAGES || self.bytes >= BYTES
    }
}

/// Frames that wait to leave by one end.
#[derive(Debug, Default)]
pub(super) struct Queue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Queue {
    /// Appends a frame. Returns false if there is no room.
    pub(super) fn push(&mut self, frame: Vec<u8>) -> bool {
        let cost = cost(&frame);
        let fits = self.bytes.saturating_add(cost) <= WAITING;
        if fits {
            self.bytes += cost;
            self.frames.push_back(frame);
        }
        fits
    }

    /// The one that has waited longest.
    pub(super) fn front(&self) -> Option<&[u8]> {
        self.frames.front().map(Vec::as_slice)
    }

    /// Takes it.
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes = self.bytes.saturating_sub(cost(&frame));
        Some(frame)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// What they all cost.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives all up. Returns how many there were.
    pub(super) fn clear(&mut self) -> u64 {
        let count = self.frames.len() as u64;
        *self = Queue::default();
        count
    }
}

fn cost(frame: &[u8]) -> usize {
    frame.len().saturating_add(OVERHEAD)
}

/// Room for one message, and one byte more: what fills it is too long.
pub(super) fn room() -> Vec<u8> {
    vec![0; MESSAGE + 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends() {
        let mut counts = Counts::default();
        let mut turn = Turn::new(&mut counts);
        let mut taken = 0;
        while !turn.is_over() {
            turn.take(&[0; 5]);
            taken += 1;
        }
        assert_eq!((taken, turn.frames.len()), (MESSAGES, 0));
        let mut turn = Turn::new(&mut counts);
        let mut taken = 0;
        while !turn.is_over() {
            turn.take(&[0; MESSAGE]);
            taken += MESSAGE;
        }
        assert!((BYTES..BYTES + MESSAGE).contains(&taken), "{taken}");
        let mut turn = Turn::new(&mut counts);
        while !turn.is_over() {
            turn.stranger();
        }
        assert_eq!((counts.short, counts.strangers), (256, 256));
    }

    #[test]
    fn a_queue_is_bounded_whatever_the_frames_are() {
        for length in [0, 14, 1500, 9996] {
            let mut queue = Queue::default();
            let mut pushed = 0;
            while queue.push(vec![0; length]) {
                pushed += 1;
            }
            assert_eq!(pushed, WAITING / (length + OVERHEAD));
            assert!(queue.pop().is_some() && queue.push(vec![0; length]) && !queue.push(vec![0; length]));
            assert_eq!(queue.clear(), pushed as u64);
            assert!(queue.is_empty() && queue.push(vec![0; length]));
        }
    }
}
