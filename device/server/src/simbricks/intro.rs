//! The first message of each side of a link: who listens says where the rings are.

use std::fmt;

/// Version of the protocol.
pub const VERSION: u64 = 1;
/// Its upper protocol: a network link.
pub const NETWORK: u64 = 1;
/// Bytes of the listener's message, without what the upper protocol adds.
pub const LISTENER: usize = 80;
/// Bytes of the other one.
pub const CONNECTER: usize = 32;
/// What a network link adds: four bytes that SimBricks writes as zero and does not look at.
const UPPER: usize = 4;
/// In these: the side is a process of softhca, which wakes who sleeps (`Channel::rest`) and says more than promises
/// (`Channel::outlook`).
const OURS: u32 = 1;
/// The longest message of either side, in bytes.
pub const LONGEST: usize = 2048;
/// The side wants synchronisation.
const SYNC: u64 = 1;
/// It insists.
const SYNC_FORCED: u64 = 2;
/// Bytes of an entry's header.
pub const HEADER: usize = 64;
/// Longest entry that is taken.
const LONGEST_ENTRY: u64 = 1 << 20;
/// Most memory of a link that is mapped, in bytes.
const MOST_MEMORY: u64 = 1 << 30;

/// What is wrong with a peer's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IntroError {
    /// It is shorter than any.
    #[error("it has {0} bytes, and such a message has {1} at least")]
    Short(usize, usize),
    /// Another version.
    #[error("it speaks version {0} of the protocol, and not {VERSION}")]
    Version(u64),
    /// Not a network link.
    #[error("its upper protocol is {0}, and not {NETWORK}, a network link")]
    Protocol(u64),
    /// It does not synchronise.
    #[error("it does not synchronise")]
    NoSync,
    /// What the upper protocol adds is said to be where it can't be.
    #[error("the part of the upper protocol is said to be at byte {0}")]
    Upper(u64),
    /// A ring that can't be.
    #[error("its {0} queue has {1}")]
    Queue(Direction, &'static str),
    /// It has to bring the memory, and did not.
    #[error("no memory came with it")]
    NoMemory,
    /// Memory or other files that nobody asked for.
    #[error("{0} descriptors came with it")]
    Descriptors(usize),
}

/// Which of the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From who listens to who connects.
    FromListener,
    /// The other way.
    ToListener,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::FromListener => "outgoing",
            Direction::ToListener => "incoming",
        })
    }
}

/// Where a ring is in the memory: checked against its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// Offset of the first entry.
    pub offset: usize,
    /// Bytes of an entry, header included.
    pub entry: usize,
    /// How many entries there are.
    pub count: usize,
}

impl Queue {
    /// The offset behind the last entry.
    pub const fn end(&self) -> usize {
        self.offset + self.entry * self.count
    }

    /// Bytes behind the header of an entry.
    pub const fn room(&self) -> usize {
        self.entry - HEADER
    }

    fn check(of: [u64; 3], memory: u64, direction: Direction) -> Result<Self, IntroError> {
        let wrong = |what| IntroError::Queue(direction, what);
        let [offset, entry, count] = of;
        if count == 0 {
            return Err(wrong("no entries"));
        }
        if entry < HEADER as u64 + 1 {
            return Err(wrong("entries that are no longer than their header"));
        }
        if entry > LONGEST_ENTRY {
            return Err(wrong("entries of more than a mebibyte"));
        }
        let end = entry.checked_mul(count).and_then(|len| len.checked_add(offset));
        if end.is_none_or(|end| end > memory.min(MOST_MEMORY)) {
            return Err(wrong("entries beyond the end of the memory"));
        }
        let size = |of: u64| usize::try_from(of).map_err(|_| wrong("entries beyond the end of the memory"));
        Ok(Self { offset: size(offset)?, entry: size(entry)?, count: size(count)? })
    }
}

/// The rings of a link: that from who listens, and that to it.
pub type Queues = [Queue; 2];

/// What who listens says: these rings, and that it insists on synchronisation.
pub fn listener(queues: &Queues) -> Vec<u8> {
    let mut words = vec![VERSION, SYNC | SYNC_FORCED];
    for Queue { offset, entry, count } in queues {
        words.extend([*offset as u64, *entry as u64, *count as u64]);
    }
    words.extend([NETWORK, LISTENER as u64]);
    bytes(&words)
}

/// What who connects says: that it insists on synchronisation.
pub fn connecter() -> Vec<u8> {
    bytes(&[VERSION, SYNC | SYNC_FORCED, NETWORK, CONNECTER as u64])
}

fn bytes(words: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend::<[u8; UPPER]>(OURS.to_le_bytes());
    bytes
}

/// Whether the side whose message that is, one that was found right, is a process of softhca. Its part of the upper protocol
/// is at `upper`.
fn is_ours(message: &[u8], upper: u64) -> bool {
    let part = usize::try_from(upper).ok().and_then(|upper| message.get(upper..)?.first_chunk::<UPPER>());
    part.is_some_and(|part| u32::from_le_bytes(*part) & OURS != 0)
}

/// The first `N` words of a message; what follows them is the upper protocol's.
fn words<const N: usize>(message: &[u8]) -> Result<[u64; N], IntroError> {
    let short = IntroError::Short(message.len(), 8 * N);
    let mut words = [0; N];
    let mut chunks = message.chunks_exact(8);
    for word in &mut words {
        let chunk = chunks.next().and_then(|chunk| chunk.first_chunk()).ok_or(short)?;
        *word = u64::from_le_bytes(*chunk);
    }
    Ok(words)
}

fn check(
    message: &[u8],
    [version, flags, protocol, upper]: [u64; 4],
    least: usize,
) -> Result<(), IntroError> {
    if version != VERSION {
        return Err(IntroError::Version(version));
    }
    if protocol != NETWORK {
        return Err(IntroError::Protocol(protocol));
    }
    if flags & (SYNC | SYNC_FORCED) == 0 {
        return Err(IntroError::NoSync);
    }
    let inside = usize::try_from(upper).is_ok_and(|upper| (least..=message.len()).contains(&upper));
    if inside { Ok(()) } else { Err(IntroError::Upper(upper)) }
}

/// Reads what who listens says of memory of that size, in bytes. Returns the rings, and whether it is a process of softhca.
///
/// # Errors
/// An [`IntroError`]: the message is not to be trusted in any part.
pub fn read_listener(message: &[u8], memory: u64) -> Result<(Queues, bool), IntroError> {
    let [version, flags, o0, e0, c0, o1, e1, c1, protocol, upper] = words(message)?;
    check(message, [version, flags, protocol, upper], LISTENER)?;
    let from = Queue::check([o0, e0, c0], memory, Direction::FromListener)?;
    let to = Queue::check([o1, e1, c1], memory, Direction::ToListener)?;
    if from.offset < to.end() && to.offset < from.end() {
        return Err(IntroError::Queue(Direction::ToListener, "entries that lie over those of the other"));
    }
    Ok(([from, to], is_ours(message, upper)))
}

/// Reads what who connects says. Returns whether it is a process of softhca.
///
/// # Errors
/// An [`IntroError`].
pub fn read_connecter(message: &[u8]) -> Result<bool, IntroError> {
    let [version, flags, protocol, upper] = words(message)?;
    check(message, [version, flags, protocol, upper], CONNECTER)?;
    Ok(is_ours(message, upper))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUEUES: Queues =
        [Queue { offset: 0, entry: 128, count: 4 }, Queue { offset: 512, entry: 256, count: 8 }];
    const MEMORY: u64 = 512 + 8 * 256;

    /// The layouts, byte for byte.
    #[test]
    fn golden() {
        let message = listener(&QUEUES);
        assert_eq!(message.len(), 84);
        let words: Vec<u64> =
            message[..80].chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [1, 3, 0, 128, 4, 512, 256, 8, 1, 80]);
        let message = connecter();
        assert_eq!(message.len(), 36);
        let words: Vec<u64> =
            message[..32].chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [1, 3, 1, 32]);
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read_listener(&listener(&QUEUES), MEMORY), Ok((QUEUES, true)));
        assert_eq!(read_connecter(&connecter()), Ok(true));
    }

    /// Who writes zero there, as SimBricks does, or nothing.
    #[test]
    fn others_are_not_ours() {
        for (mut message, part) in [(listener(&QUEUES), LISTENER), (connecter(), CONNECTER)] {
            let read = |message: &[u8]| match part {
                LISTENER => read_listener(message, MEMORY).map(|(_, ours)| ours),
                _ => read_connecter(message),
            };
            message[part] = 0;
            assert_eq!(read(&message), Ok(false));
            message.truncate(part);
            assert_eq!(read(&message), Ok(false));
        }
    }

    /// Each word of the listener's message, changed to what can't be.
    #[test]
    fn each_lie_has_its_words() {
        let lie = |place: usize, value: u64| {
            let mut message = listener(&QUEUES);
            message[place * 8..place * 8 + 8].copy_from_slice(&value.to_le_bytes());
            read_listener(&message, MEMORY).unwrap_err().to_string()
        };
        for (place, value, words) in [
            (0, 2, "version 2"),
            (1, 0, "does not synchronise"),
            (2, 400, "lie over"),
            (3, 64, "no longer than their header"),
            (3, u64::MAX, "more than a mebibyte"),
            (4, 0, "no entries"),
            (4, u64::MAX, "beyond the end"),
            (5, u64::MAX - 1, "beyond the end"),
            (7, 9, "incoming queue has entries beyond the end"),
            (8, 2, "upper protocol is 2"),
            (9, 79, "at byte 79"),
            (9, 85, "at byte 85"),
        ] {
            let said = lie(place, value);
            assert!(said.contains(words), "{said}");
        }
        assert_eq!(read_listener(&[0; 79], MEMORY), Err(IntroError::Short(79, 80)));
        assert_eq!(read_connecter(&[1; 7]), Err(IntroError::Short(7, 32)));
        assert!(matches!(read_connecter(&[1; 40]), Err(IntroError::Version(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_rings_inside_the_memory_or_an_error(
            mut message in prop::collection::vec(any::<u8>(), 0..200),
            // Words that are nearly right get further.
            words in prop::collection::vec((0usize..10, 0u64..600), 0..12),
            memory in 0u64..10_000,
        ) {
            let _ = read_connecter(&message);
            for (place, value) in [(0, 1), (1, 1), (8, 1), (9, 80)].into_iter().chain(words) {
                if let Some(word) = message.get_mut(place * 8..place * 8 + 8) {
                    word.copy_from_slice(&value.to_le_bytes());
                }
            }
            if let Ok((queues, _)) = read_listener(&message, memory) {
                for queue in queues {
                    prop_assert!(queue.end() as u64 <= memory && queue.room() > 0 && queue.count > 0);
                }
            }
        }
    }
}
