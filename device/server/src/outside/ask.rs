//! Flow control at the border: while more waits to leave than the other side takes, the port at the link's near end is asked to
//! wait, as a device with a small buffer would ask it (IEEE 802.3 annex 31B).
//!
//! So what a port sends at 100 Gbit/s to software that takes a thousandth of that waits in its queues, where it costs nothing and
//! where it is not lost. A port that does not heed frames of MAC control goes on, and the queue's bound holds.

use std::time::{Duration, Instant};

/// Bytes that wait when the port is asked to wait, and when it may go on. Little, since what waits here is late.
const ASK: usize = 256 << 10;
const GO: usize = 64 << 10;
/// Asked once, a port waits for 335 us at 100 Gbit/s, and longer at other rates: it is asked again in time.
const AGAIN: Duration = Duration::from_micros(100);
/// Where frames of MAC control go; an address of nobody's that they come from; their type; PAUSE.
const HEAD: [u8; 16] =
    [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01, 0x02, 0x00, 0x00, 0x00, 0x00, 0x01, 0x88, 0x08, 0x00, 0x01];

/// Whether the port was asked to wait.
#[derive(Debug, Default)]
pub(super) struct Ask(Option<Instant>);

impl Ask {
    /// What to send to the port, now that so many bytes wait: a frame that asks it to wait, or to go on.
    pub(super) fn look(&mut self, waiting: usize) -> Option<Vec<u8>> {
        let quanta = match self.0 {
            None if waiting > ASK => u16::MAX,
            Some(since) if waiting > GO && since.elapsed() >= AGAIN => u16::MAX,
            Some(_) if waiting <= GO => 0,
            _ => return None,
        };
        self.0 = (quanta > 0).then(Instant::now);
        Some([&HEAD[..], &quanta.to_be_bytes()].concat())
    }

    /// When it is to be asked again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.map(|since| since + AGAIN)
    }

    /// Whether there is something to say, of so many bytes that wait.
    pub(super) fn is_news(&self, waiting: usize) -> bool {
        self.0.is_none() && waiting > ASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_asked_to_wait_and_to_go_on() {
        let mut ask = Ask::default();
        assert_eq!((ask.look(ASK), ask.due(), ask.is_news(ASK)), (None, None, false));
        assert!(ask.is_news(ASK + 1));
        let frame = ask.look(ASK + 1).unwrap();
        assert_eq!((frame.len(), &frame[16..]), (18, &[0xff, 0xff][..]));
        assert!(ask.due().is_some() && !ask.is_news(ASK + 1));
        // Less waits, but not little: it is asked again when it is time.
        ask.0 = Instant::now().checked_sub(AGAIN);
        assert_eq!(ask.look(GO + 1).unwrap()[16..], [0xff, 0xff]);
        assert_eq!(ask.look(GO).unwrap()[16..], [0, 0]);
        assert_eq!((ask.look(GO), ask.due()), (None, None));
    }
}
