//! Frames in a stream: each behind its length, four bytes, the highest first (QEMU, net/stream.c).

use super::frame::MESSAGE;
use super::turn::Turn;

const PREFIX: usize = 4;
/// What is read at a time.
pub(super) const CHUNK: usize = 64 << 10;

/// What has come of a stream and is not taken yet: at most one message with its prefix, and a chunk.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// How many of them are taken.
    taken: usize,
}

/// A length that no frame has: where the next one begins is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl Decoder {
    /// Appends what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken.min(self.bytes.len()));
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Hands whole messages to the turn until it is over. Returns true if there is no other whole one.
    ///
    /// # Errors
    /// A length is none; the stream is of no use any more.
    pub fn drain(&mut self, turn: &mut Turn<'_>) -> Result<bool, Lost> {
        while !turn.is_over() {
            let rest = self.bytes.get(self.taken..).unwrap_or_default();
            let Some((prefix, rest)) = rest.split_first_chunk::<PREFIX>() else { return Ok(true) };
            let length = u32::from_be_bytes(*prefix) as usize;
            if length > MESSAGE {
                return Err(Lost);
            }
            let Some(message) = rest.get(..length) else { return Ok(true) };
            turn.take(message);
            self.taken += PREFIX + length;
        }
        Ok(false)
    }
}

/// Appends a frame with its prefix.
pub fn encode(frame: &[u8], stream: &mut Vec<u8>) {
    stream.extend_from_slice(&(frame.len() as u32).to_be_bytes());
    stream.extend_from_slice(frame);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::turn::Counts;
    use super::*;

    #[test]
    fn lengths_that_are_none() {
        let mut counts = Counts::default();
        let mut decoder = Decoder::default();
        decoder.push(&(MESSAGE as u32).to_be_bytes());
        assert_eq!(decoder.drain(&mut Turn::new(&mut counts)), Ok(true));
        decoder.push(&vec![0; MESSAGE]);
        assert_eq!(decoder.drain(&mut Turn::new(&mut counts)), Ok(true));
        for length in [MESSAGE as u32 + 1, u32::MAX] {
            decoder.push(&length.to_be_bytes());
            assert_eq!(decoder.drain(&mut Turn::new(&mut counts)), Err(Lost));
            decoder = Decoder::default();
        }
        // A length of 0 is a message without a header, not the end of the stream.
        decoder.push(&[0; 8]);
        assert_eq!(decoder.drain(&mut Turn::new(&mut counts)), Ok(true));
        assert_eq!((counts.long, counts.short), (1, 2));
    }

    proptest! {
        /// However a stream is cut, its frames are the same, and no more is kept than needed.
        #[test]
        fn cut_anywhere(lengths in prop::collection::vec(14usize..3000, 0..20), cuts in prop::collection::vec(1usize..2000, 1..50)) {
            let frames: Vec<Vec<u8>> = (0u8..).zip(&lengths).map(|(i, length)| vec![i; *length]).collect();
            let mut stream = Vec::new();
            frames.iter().for_each(|frame| encode(frame, &mut stream));
            let (mut counts, mut decoder, mut seen) = (Counts::default(), Decoder::default(), Vec::new());
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                rest = later;
                decoder.push(now);
                let mut turn = Turn::new(&mut counts);
                prop_assert_eq!(decoder.drain(&mut turn), Ok(true));
                seen.append(&mut turn.frames);
                prop_assert!(decoder.bytes.len() <= MESSAGE + PREFIX + CHUNK);
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(seen.len(), frames.len());
            for (seen, frame) in seen.iter().zip(&frames) {
                prop_assert_eq!(&seen[..frame.len()], &frame[..]);
            }
        }

        #[test]
        fn rubbish(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..20)) {
            let (mut counts, mut decoder) = (Counts::default(), Decoder::default());
            for chunk in chunks {
                decoder.push(&chunk);
                let _ = decoder.drain(&mut Turn::new(&mut counts));
            }
        }
    }
}
