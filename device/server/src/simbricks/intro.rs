//! The first message of each side of a link: who listens says where the rings are, and each what its upper protocol has to say.

use std::fmt;

/// Version of the protocol.
pub const VERSION: u64 = 1;
/// Bytes of the listener's message, without what the upper protocol adds.
pub const LISTENER: usize = 80;
/// Bytes of the other one.
pub const CONNECTER: usize = 32;
/// Four bytes between that and the upper protocol's part, which SimBricks, where there is nothing between, steps over: the side is a
/// process of softhca, which wakes who sleeps (`Channel::rest`), says what it waits for, and says more than promises (`Channel::outlook`).
const OURS: [u8; 4] = *b"sof4";
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

/// What a link carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Packets, both ways alike.
    Network,
    /// A PCI Express device, and a host.
    Pcie,
}

impl Protocol {
    /// Its number.
    pub const fn number(self) -> u64 {
        match self {
            Protocol::Network => 1,
            Protocol::Pcie => 2,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Network => "a network link",
            Protocol::Pcie => "a PCI Express link",
        })
    }
}

/// The upper protocol of a side, and its part of the first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upper {
    /// Which one it is.
    pub protocol: Protocol,
    /// The side is a process of softhca: not so if a proxy says it for somebody else.
    pub ours: bool,
    /// What the side says.
    pub part: Vec<u8>,
}

impl Upper {
    /// What a process of softhca says.
    pub fn of(protocol: Protocol, part: Vec<u8>) -> Self {
        Self { protocol, ours: true, part }
    }

    /// A network link: four bytes that nobody looks at.
    pub fn network() -> Self {
        Self::of(Protocol::Network, vec![0; 4])
    }
}

/// What the peer said besides its rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// It is a process of softhca.
    pub ours: bool,
    /// Its part of the upper protocol.
    pub part: Vec<u8>,
}

/// What is wrong with a peer's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IntroError {
    /// It is shorter than any.
    #[error("it has {0} bytes, and such a message has {1} at least")]
    Short(usize, usize),
    /// Another version.
    #[error("it speaks version {0} of the protocol, and not {VERSION}")]
    Version(u64),
    /// Another upper protocol.
    #[error("its upper protocol is {0}, and not {number}, {1}", number = .1.number())]
    Protocol(u64, Protocol),
    /// It does not synchronise.
    #[error("it does not synchronise")]
    NoSync,
    /// What the upper protocol adds is said to be where it can't be.
    #[error("the part of the upper protocol is said to be at byte {0}")]
    Upper(u64),
    /// That part is too short.
    #[error("the part of the upper protocol has {0} bytes, and not {1}")]
    Part(usize, usize),
    /// A ring that can't be.
    #[error("its {0} queue has {1}")]
    Queue(Direction, &'static str),
    /// It is softhca, and there is no room for what each side waits for.
    #[error("its memory ends before the cells of who waits")]
    Cells,
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

/// Bytes of what one side of a link waits for (`bell`): on cache lines of its own.
pub const CELL: usize = 128;

/// Where both cells are in memory of ours: behind the queues.
pub fn cells(queues: &Queues) -> usize {
    queues.iter().map(Queue::end).max().unwrap_or_default().next_multiple_of(4096)
}

/// Bytes of memory of such queues that are used: with the cells, if both sides are softhca.
pub fn memory(queues: &Queues, ours: bool) -> usize {
    match ours {
        true => cells(queues) + 2 * CELL,
        false => queues.iter().map(Queue::end).max().unwrap_or_default(),
    }
}

/// What who listens says: these rings, and that it insists on synchronisation.
pub fn listener(queues: &Queues, upper: &Upper) -> Vec<u8> {
    let mut words = vec![VERSION, SYNC | SYNC_FORCED];
    for Queue { offset, entry, count } in queues {
        words.extend([*offset as u64, *entry as u64, *count as u64]);
    }
    bytes(words, upper)
}

/// What who connects says: that it insists on synchronisation.
pub fn connecter(upper: &Upper) -> Vec<u8> {
    bytes(vec![VERSION, SYNC | SYNC_FORCED], upper)
}

/// These words, the upper protocol, where its part is, and that part.
fn bytes(mut words: Vec<u64>, upper: &Upper) -> Vec<u8> {
    let end = 8 * (words.len() + 2);
    let between: &[u8] = if upper.ours { &OURS } else { &[] };
    words.extend([upper.protocol.number(), (end + between.len()) as u64]);
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(between);
    bytes.extend(&upper.part);
    bytes
}

/// What that message, which was found right, says besides. The part of the upper protocol is at `upper`, behind `least` bytes.
fn peer(message: &[u8], upper: u64, least: usize) -> Peer {
    let upper = usize::try_from(upper).unwrap_or(usize::MAX);
    let between = message.get(least..upper).unwrap_or_default();
    Peer { ours: between == OURS, part: message.get(upper..).unwrap_or_default().to_vec() }
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
    [version, flags, number, upper]: [u64; 4],
    protocol: Protocol,
    least: usize,
) -> Result<Peer, IntroError> {
    if version != VERSION {
        return Err(IntroError::Version(version));
    }
    if number != protocol.number() {
        return Err(IntroError::Protocol(number, protocol));
    }
    if flags & (SYNC | SYNC_FORCED) == 0 {
        return Err(IntroError::NoSync);
    }
    let inside = usize::try_from(upper).is_ok_and(|upper| (least..=message.len()).contains(&upper));
    if inside { Ok(peer(message, upper, least)) } else { Err(IntroError::Upper(upper)) }
}

/// Reads what who listens says of memory of that size, in bytes. Returns the rings, and what else it said.
///
/// # Errors
/// An [`IntroError`]: the message is not to be trusted in any part.
pub fn read_listener(message: &[u8], memory: u64, protocol: Protocol) -> Result<(Queues, Peer), IntroError> {
    let [version, flags, o0, e0, c0, o1, e1, c1, number, upper] = words(message)?;
    let peer = check(message, [version, flags, number, upper], protocol, LISTENER)?;
    let from = Queue::check([o0, e0, c0], memory, Direction::FromListener)?;
    let to = Queue::check([o1, e1, c1], memory, Direction::ToListener)?;
    if from.offset < to.end() && to.offset < from.end() {
        return Err(IntroError::Queue(Direction::ToListener, "entries that lie over those of the other"));
    }
    let queues = [from, to];
    if peer.ours && self::memory(&queues, true) as u64 > memory {
        return Err(IntroError::Cells);
    }
    Ok((queues, peer))
}

/// Reads what who connects says.
///
/// # Errors
/// An [`IntroError`].
pub fn read_connecter(message: &[u8], protocol: Protocol) -> Result<Peer, IntroError> {
    let [version, flags, number, upper] = words(message)?;
    check(message, [version, flags, number, upper], protocol, CONNECTER)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUEUES: Queues =
        [Queue { offset: 0, entry: 128, count: 4 }, Queue { offset: 512, entry: 256, count: 8 }];
    const MEMORY: u64 = 4096 + 2 * CELL as u64;
    /// An entry that ends behind that.
    const BEYOND: u64 = MEMORY / 256;

    /// The layouts, byte for byte.
    #[test]
    fn golden() {
        let words = |message: &[u8]| -> Vec<u64> {
            message.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect()
        };
        let message = listener(&QUEUES, &Upper::network());
        assert_eq!(words(&message[..80]), [1, 3, 0, 128, 4, 512, 256, 8, 1, 84]);
        assert_eq!(&message[80..], b"sof4\0\0\0\0");
        let pcie = Upper::of(Protocol::Pcie, vec![7; 119]);
        let message = connecter(&pcie);
        assert_eq!(words(&message[..32]), [1, 3, 2, 36]);
        assert_eq!((&message[32..36], &message[36..]), (&b"sof4"[..], &[7; 119][..]));
        let message = connecter(&Upper { ours: false, ..pcie });
        assert_eq!((words(&message[..32]), &message[32..]), (vec![1, 3, 2, 32], &[7; 119][..]));
    }

    #[test]
    fn what_is_written_is_read() {
        let (upper, protocol) = (Upper::network(), Protocol::Network);
        let peer = Peer { ours: true, part: vec![0; 4] };
        assert_eq!(read_listener(&listener(&QUEUES, &upper), MEMORY, protocol), Ok((QUEUES, peer.clone())));
        assert_eq!(read_connecter(&connecter(&upper), protocol), Ok(peer));
    }

    /// Who has nothing between, as SimBricks does, or something else.
    #[test]
    fn others_are_not_ours() {
        let upper = Upper::network();
        for (mut message, base) in [(listener(&QUEUES, &upper), LISTENER), (connecter(&upper), CONNECTER)] {
            let read = |message: &[u8]| match base {
                LISTENER => read_listener(message, MEMORY, Protocol::Network).map(|(_, peer)| peer.ours),
                _ => read_connecter(message, Protocol::Network).map(|peer| peer.ours),
            };
            message[base] = b'S';
            assert_eq!(read(&message), Ok(false));
            message[base] = b's';
            assert_eq!(read(&message), Ok(true));
            message[base - 8] = base as u8;
            assert_eq!(read(&message), Ok(false));
            message.truncate(base);
            assert_eq!(read(&message), Ok(false));
        }
    }

    /// Each word of the listener's message, changed to what can't be.
    #[test]
    fn each_lie_has_its_words() {
        let lie = |place: usize, value: u64| {
            let mut message = listener(&QUEUES, &Upper::network());
            message[place * 8..place * 8 + 8].copy_from_slice(&value.to_le_bytes());
            read_listener(&message, MEMORY, Protocol::Network).unwrap_err().to_string()
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
            (7, BEYOND, "incoming queue has entries beyond the end"),
            (7, 15, "before the cells"),
            (8, 2, "upper protocol is 2, and not 1, a network link"),
            (9, 79, "at byte 79"),
            (9, 89, "at byte 89"),
        ] {
            let said = lie(place, value);
            assert!(said.contains(words), "{said}");
        }
        let protocol = Protocol::Network;
        assert_eq!(read_listener(&[0; 79], MEMORY, protocol), Err(IntroError::Short(79, 80)));
        assert_eq!(read_connecter(&[1; 7], protocol), Err(IntroError::Short(7, 32)));
        assert!(matches!(read_connecter(&[1; 40], protocol), Err(IntroError::Version(_))));
        let other = read_connecter(&connecter(&Upper::network()), Protocol::Pcie);
        assert_eq!(other, Err(IntroError::Protocol(1, Protocol::Pcie)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_rings_inside_the_memory_or_an_error(
            mut message in prop::collection::vec(any::<u8>(), 0..200),
            // Words that are nearly right get further.
            words in prop::collection::vec((0usize..10, 0u64..600), 0..12),
            memory in 0u64..10_000,
        ) {
            let _ = read_connecter(&message, Protocol::Pcie);
            for (place, value) in [(0, 1), (1, 1), (8, 1), (9, 80)].into_iter().chain(words) {
                if let Some(word) = message.get_mut(place * 8..place * 8 + 8) {
                    word.copy_from_slice(&value.to_le_bytes());
                }
            }
            if let Ok((queues, _)) = read_listener(&message, memory, Protocol::Network) {
                for queue in queues {
                    prop_assert!(queue.end() as u64 <= memory && queue.room() > 0 && queue.count > 0);
                }
            }
        }
    }
}
