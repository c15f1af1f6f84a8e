//! What two proxies say to each other over TCP. Little endian.
//!
//! Each says first `softhca sim-proxy 3\n`, then its number of links (2), then of each whether it listens (1) or connects (0) there. Then come
//! frames: kind (1), link (2), length of what follows (4), and that:
//!
//! | kind | what follows |
//! |---|---|
//! | 1 who listens has said | of both queues, the one from it first: bytes of an entry (4), entries (4); whether it is softhca (1) |
//! | 2 who connects has said | whether it is softhca (1) |
//! | 3 an entry | time in ps (8), type (1), the message's own part of its header (48), payload |
//! | 4 the end there is gone | nothing |
//! | 5 the end there needs a promise before it goes on | up to when, ps (8) |
//! | 6 the end there says something of all parts of its simulation | its words, in the order in which they are said (8 each) |
//!
//! What came is not trusted: lengths are bounded, and what is no frame ends the connection.

use super::super::bell::Word;
use super::super::ring::{Entry, OWN};

/// What each side says first.
pub(super) const GREETING: &[u8] = b"softhca sim-proxy 3\n";
/// Bytes before what a frame holds.
const HEADER: usize = 7;
/// The longest that a frame holds: no entry is longer than a mebibyte.
const LONGEST: usize = (1 << 20) + 64;

/// Sizes of the queues of a link: bytes of an entry, entries.
pub(super) type Sizes = [[u32; 2]; 2];

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Listener { sizes: Sizes, ours: bool },
    Connecter { ours: bool },
    Entry { entry: Entry, payload: Vec<u8> },
    Closed,
    Need(u64),
    Words([u64; WORDS]),
}

/// Words that an end says of all parts of its simulation.
pub(super) const WORDS: usize = Word::ALL.len();

/// What came is no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other proxy sent what is no frame: is it softhca sim-proxy, of the same version?")]
pub(super) struct NoFrame;

/// Appends a frame of a link.
pub(super) fn write(to: &mut Vec<u8>, link: u16, frame: &Frame) {
    let start = to.len();
    let kind = match frame {
        Frame::Listener { .. } => 1,
        Frame::Connecter { .. } => 2,
        Frame::Entry { .. } => 3,
        Frame::Closed => 4,
        Frame::Need(_) => 5,
        Frame::Words(_) => 6,
    };
    to.push(kind);
    to.extend_from_slice(&link.to_le_bytes());
    to.extend_from_slice(&[0; 4]);
    match frame {
        Frame::Listener { sizes, ours } => {
            sizes.iter().flatten().for_each(|size| to.extend_from_slice(&size.to_le_bytes()));
            to.push((*ours).into());
        }
        Frame::Connecter { ours } => to.push((*ours).into()),
        Frame::Entry { entry: Entry { own, time, kind }, payload } => {
            to.extend_from_slice(&time.to_le_bytes());
            to.push(*kind);
            to.extend_from_slice(own);
            to.extend_from_slice(payload);
        }
        Frame::Need(need) => to.extend_from_slice(&need.to_le_bytes()),
        Frame::Words(words) => words.iter().for_each(|word| to.extend_from_slice(&word.to_le_bytes())),
        Frame::Closed => {}
    }
    let len = to.len().saturating_sub(start + HEADER);
    let len = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    if let Some(place) = to.get_mut(start + 3..).and_then(|rest| rest.first_chunk_mut()) {
        *place = len;
    }
}

/// The next frame, and how many bytes it took; `None`: it is not whole yet.
///
/// # Errors
/// What is there is none.
pub(super) fn read(bytes: &[u8]) -> Result<Option<(u16, Frame, usize)>, NoFrame> {
    let Some((&[kind, a, b, c, d, e, f], rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let len = usize::try_from(u32::from_le_bytes([c, d, e, f])).unwrap_or(usize::MAX);
    if len > LONGEST {
        return Err(NoFrame);
    }
    let Some(body) = rest.get(..len) else { return Ok(None) };
    let frame = match kind {
        1 => {
            let (sizes, ours) = body.split_first_chunk::<16>().ok_or(NoFrame)?;
            let mut words = sizes.chunks_exact(4).filter_map(|word| word.first_chunk());
            let mut word = || words.next().map_or(0, |word| u32::from_le_bytes(*word));
            let sizes = [[word(), word()], [word(), word()]];
            Frame::Listener { sizes, ours: flag(ours)? }
        }
        2 => Frame::Connecter { ours: flag(body)? },
        3 => {
            let (time, rest) = body.split_first_chunk().ok_or(NoFrame)?;
            let (kind, rest) = rest.split_first().ok_or(NoFrame)?;
            let (own, payload) = rest.split_first_chunk::<OWN>().ok_or(NoFrame)?;
            let entry = Entry { own: *own, time: u64::from_le_bytes(*time), kind: *kind };
            Frame::Entry { entry, payload: payload.to_vec() }
        }
        4 if body.is_empty() => Frame::Closed,
        5 => Frame::Need(u64::from_le_bytes(body.try_into().map_err(|_| NoFrame)?)),
        6 => {
            let (words, rest) = body.as_chunks();
            let words: [[u8; 8]; WORDS] = words.try_into().map_err(|_| NoFrame)?;
            if !rest.is_empty() {
                return Err(NoFrame);
            }
            Frame::Words(words.map(u64::from_le_bytes))
        }
        _ => return Err(NoFrame),
    };
    Ok(Some((u16::from_le_bytes([a, b]), frame, HEADER + len)))
}

fn flag(bytes: &[u8]) -> Result<bool, NoFrame> {
    match bytes {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(NoFrame),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_pass_in_pieces() {
        let entry = Entry { own: [7; OWN], time: u64::MAX - 3, kind: 0x40 };
        let frames = [
            Frame::Listener { sizes: [[1600, 512], [9088, 4]], ours: true },
            Frame::Connecter { ours: false },
            Frame::Entry { entry, payload: vec![9; 300] },
            Frame::Entry { entry, payload: Vec::new() },
            Frame::Closed,
            Frame::Need(u64::MAX - 7),
            Frame::Words([1, 2, 3, u64::MAX, 5, 6]),
        ];
        let mut bytes = Vec::new();
        frames.iter().zip(5..).for_each(|(frame, link)| write(&mut bytes, link, frame));
        let mut rest = &bytes[..];
        for (frame, link) in frames.into_iter().zip(5..) {
            let (got_link, got, len) = read(rest).unwrap().unwrap();
            assert_eq!((got_link, got), (link, frame));
            for cut in 0..len {
                assert_eq!(read(&rest[..cut]), Ok(None), "{cut}");
            }
            rest = &rest[len..];
        }
        assert!(rest.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_none(
            mut bytes in prop::collection::vec(any::<u8>(), 0..100),
            kind in 0u8..8,
            len in 0u32..100,
        ) {
            let _ = read(&bytes);
            if let Some(head) = bytes.first_chunk_mut::<HEADER>() {
                let [a, b, c, d] = len.to_le_bytes();
                *head = [kind, head[1], head[2], a, b, c, d];
            }
            if let Ok(Some((_, _, taken))) = read(&bytes) {
                prop_assert!(taken <= bytes.len());
            }
        }
    }
}
