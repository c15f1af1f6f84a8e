//! Frames that leave by one call each, over what does not say when it has room again.

use std::io;
use std::time::{Duration, Instant};

use super::SENDS;
use super::turn::{Counts, Queue};

/// When what took no more is tried again.
const PAUSE: Duration = Duration::from_micros(250);

/// How far sending has come.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// Nothing is taken until then.
    blocked: Option<Instant>,
}

impl Sending {
    /// When to try again, if frames are waiting.
    pub(super) fn due(&self, waiting: bool) -> Option<Instant> {
        self.blocked.filter(|_| waiting)
    }

    /// Sends up to [`SENDS`] frames of the queue by `send`; a frame that it fails to send is counted and dropped. Whether more
    /// are left that could leave at once.
    pub(super) fn run(
        &mut self,
        queue: &mut Queue,
        counts: &mut Counts,
        mut send: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> bool {
        if self.blocked.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.blocked = None;
        for _ in 0..SENDS {
            let Some(frame) = queue.front() else { return false };
            let length = frame.len() as u64;
            match send(frame) {
                Ok(_) => {
                    counts.frames_sent += 1;
                    counts.bytes_sent += length;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = Some(Instant::now() + PAUSE);
                    return false;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => counts.unsent += 1,
            }
            queue.pop();
        }
        !queue.is_empty()
    }
}
