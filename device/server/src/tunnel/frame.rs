//! What a datagram looks like. Big endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | "HCAT" |
//! | 4 | version, 1 |
//! | 5 | kind |
//! | 6..8 | number of the link |
//! | 8..16 | name of the session; 0 in hellos |
//! | 16..24 | number of the datagram in its session; 0 in hellos |
//! | 24..n-16 | body |
//! | n-16..n | keyed hash of all before |
//!
//! | kind | body |
//! |---|---|
//! | 1 hello, 2 welcome | number of the sender (16), the receiver's number as far as known (16), digest of the link's properties (16) |
//! | 3 data | place of this piece, pieces of the packet, bytes of the packet (2), the piece |
//! | 4 alive | 1 if the sender's end is lit, else 0; lanes; speed: 0 SDR, 1 DDR, 2 QDR, 3 FDR10, 4 FDR, 5 EDR, 6 HDR |
//! | 5 bye | nothing |
//! | 6 taken | highest number of a datagram that came (8) |

use super::key::{Key, NONCE_SIZE, Nonce, TAG_SIZE};

/// First bytes of every datagram.
pub const MAGIC: [u8; 4] = *b"HCAT";
/// The version described here.
pub const VERSION: u8 = 1;
/// Bytes before the body.
pub const HEADER_SIZE: usize = 24;
/// Bytes of a piece's header.
pub const PIECE_SIZE: usize = 4;
/// Bytes of a datagram with a piece that are not the piece.
pub const OVERHEAD: usize = HEADER_SIZE + PIECE_SIZE + TAG_SIZE;
/// Bytes of the digest of a link's properties.
pub const DIGEST_SIZE: usize = 16;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const DATA: u8 = 3;
const ALIVE: u8 = 4;
const BYE: u8 = 5;
const TAKEN: u8 = 6;

/// One datagram, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Number of the link.
    pub link: u16,
    /// Name of the session, 0 in hellos.
    pub session: u64,
    /// Number in the session, 0 in hellos.
    pub sequence: u64,
    /// The rest.
    pub body: Body<'a>,
}

/// What is in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Begins a session.
    Hello(Hello),
    /// Answers a hello.
    Welcome(Hello),
    /// A piece of a packet.
    Data {
        /// Its place.
        index: u8,
        /// How many there are.
        count: u8,
        /// Bytes of the packet.
        total: u16,
        /// Its bytes.
        piece: &'a [u8],
    },
    /// The sender lives.
    Alive {
        /// Whether its end of the cable is lit.
        lit: bool,
        /// Lanes.
        width: u8,
        /// Rate of a lane, see above.
        speed: u8,
    },
    /// The sender ends.
    Bye,
    /// The sender has taken what came.
    Taken {
        /// The highest number among it.
        highest: u64,
    },
}

/// What a hello says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender's number.
    pub own: Nonce,
    /// The receiver's number as the sender knows it; zeros if it does not.
    pub echo: Nonce,
    /// Of the link's properties.
    pub terms: [u8; DIGEST_SIZE],
}

/// Why bytes are no datagram of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Too short, too long, or not what the kind asks for.
    Shape,
    /// Another version.
    Version(u8),
}

impl<'a> Frame<'a> {
    /// Takes a datagram apart; also what its tag is of, and the tag, which is the caller's to check.
    pub fn parse(datagram: &'a [u8]) -> Result<(Frame<'a>, &'a [u8], [u8; TAG_SIZE]), Malformed> {
        let (message, tag) = datagram.split_last_chunk::<TAG_SIZE>().ok_or(Malformed::Shape)?;
        let mut r = Reader(message);
        if r.array()? != MAGIC {
            return Err(Malformed::Shape);
        }
        let [version, kind] = r.array()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let link = u16::from_be_bytes(r.array()?);
        let session = u64::from_be_bytes(r.array()?);
        let sequence = u64::from_be_bytes(r.array()?);
        let body = match kind {
            HELLO => Body::Hello(r.hello()?),
            WELCOME => Body::Welcome(r.hello()?),
            DATA => {
                let [index, count] = r.array()?;
                let total = u16::from_be_bytes(r.array()?);
                Body::Data { index, count, total, piece: std::mem::take(&mut r.0) }
            }
            ALIVE => {
                let [lit, width, speed] = r.array()?;
                Body::Alive { lit: lit != 0, width, speed }
            }
            BYE => Body::Bye,
            TAKEN => Body::Taken { highest: u64::from_be_bytes(r.array()?) },
            _ => return Err(Malformed::Shape),
        };
        let numbered = session != 0 || sequence != 0;
        if !r.0.is_empty() || (numbered && matches!(body, Body::Hello(_) | Body::Welcome(_))) {
            return Err(Malformed::Shape);
        }
        Ok((Frame { link, session, sequence, body }, message, *tag))
    }

    /// The datagram, with its tag.
    pub fn seal(&self, key: &Key) -> Vec<u8> {
        let mut out = Vec::with_capacity(OVERHEAD + 64);
        let kind = match self.body {
            Body::Hello(_) => HELLO,
            Body::Welcome(_) => WELCOME,
            Body::Data { .. } => DATA,
            Body::Alive { .. } => ALIVE,
            Body::Bye => BYE,
            Body::Taken { .. } => TAKEN,
        };
        out.extend(MAGIC);
        out.extend([VERSION, kind]);
        out.extend(self.link.to_be_bytes());
        out.extend(self.session.to_be_bytes());
        out.extend(self.sequence.to_be_bytes());
        match self.body {
            Body::Hello(Hello { own, echo, terms }) | Body::Welcome(Hello { own, echo, terms }) => {
                out.extend(own);
                out.extend(echo);
                out.extend(terms);
            }
            Body::Data { index, count, total, piece } => {
                out.extend([index, count]);
                out.extend(total.to_be_bytes());
                out.extend(piece);
            }
            Body::Alive { lit, width, speed } => out.extend([u8::from(lit), width, speed]),
            Body::Taken { highest } => out.extend(highest.to_be_bytes()),
            Body::Bye => {}
        }
        let tag = key.tag(&out);
        out.extend(tag);
        out
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Shape)?;
        self.0 = rest;
        Ok(*head)
    }

    fn hello(&mut self) -> Result<Hello, Malformed> {
        Ok(Hello {
            own: self.array::<NONCE_SIZE>()?,
            echo: self.array::<NONCE_SIZE>()?,
            terms: self.array::<DIGEST_SIZE>()?,
        })
    }
}
