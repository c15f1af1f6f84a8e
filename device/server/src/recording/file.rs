//! The file. Little endian.
//!
//! | bytes | what |
//! |---|---|
//! | 16 | `softhca record\r\n` |
//! | 4 | [`VERSION`] |
//! | chunk | [`Header`], JSON |
//! | chunks | together one stream of zstd (RFC 8878), each ended by a flush: what came before a crash can be read |
//!
//! A chunk is its length (4), the CRC-32 of its bytes (4), and its bytes. In the stream each record is its length, as a LEB128
//! number, and [`Record`] as postcard writes it (the specification of postcard is public: numbers are LEB128, signed ones zigzag, a variant is its number).
//!
//! Nothing in a file is trusted: chunks, records and what is unpacked have bounds, and what is wrong is an error that names the record.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::record::{End, Record};

/// The version of the format that is written, and the only one that is read.
pub const VERSION: u32 = 1;
const MAGIC: &[u8; 16] = b"softhca record\r\n";
/// Bytes of a chunk, at most.
const MAX_CHUNK: usize = 64 << 20;
/// Bytes of a record, at most: more than an adapter reads at once.
const MAX_RECORD: u64 = 16 << 20;
/// Bytes of records between two steps, at most: more than a server does in a second.
const MAX_STEP: usize = 1 << 30;

/// What a recording is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the program that recorded.
    pub softhca: String,
    /// The topology, as its file has it.
    pub topology: String,
    /// Which process of the topology it was.
    pub process: Option<String>,
    /// Whether the checker looked on.
    pub check: bool,
    /// The M_Key of the built-in subnet manager, which the topology may leave to chance.
    pub m_key: Option<u64>,
    /// Names of the adapters, `HOST/HCA`, in the order of their numbers.
    pub adapters: Vec<String>,
}

/// How a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was ended.
    Whole(End),
    /// In the middle: whoever wrote it crashed, or the file was cut.
    Cut,
}

/// A record with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its number, from 0.
    pub number: u64,
    /// Model time in ps that was known last.
    pub time: u64,
    /// What it is.
    pub record: Record,
}

/// Why a recording can't be read.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The system says no.
    #[error("{file}: {why}")]
    Read {
        /// The file.
        file: String,
        /// What it says.
        why: io::Error,
    },
    /// It is another kind of file.
    #[error("{file}: is no recording of softhca")]
    Stranger {
        /// The file.
        file: String,
    },
    /// It has another version.
    #[error(
        "{file}: has version {found} of the format, and this program reads version {VERSION}; record anew"
    )]
    Version {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
    },
    /// Its header can't be understood.
    #[error("{file}: its header is damaged: {why}")]
    Header {
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// A record can't be understood.
    #[error("{file}: damaged in record {number}, after {time}: {why}", time = hca_model::Ps(*time))]
    Damaged {
        /// The file.
        file: String,
        /// Number of the record.
        number: u64,
        /// Model time in ps up to there.
        time: u64,
        /// What is wrong.
        why: String,
    },
}

/// The beginning of a file with that header.
pub(super) fn beginning(header: &Header) -> serde_json::Result<Vec<u8>> {
    let json = serde_json::to_vec(header)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&chunk_head(&json));
    bytes.extend_from_slice(&json);
    Ok(bytes)
}

/// What stands before the bytes of a chunk.
pub(super) fn chunk_head(bytes: &[u8]) -> [u8; 8] {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    let crc = crc32fast::hash(bytes).to_le_bytes();
    let mut head = [0; 8];
    head.iter_mut().zip(len.into_iter().chain(crc)).for_each(|(to, byte)| *to = byte);
    head
}

/// Appends a record to a stream.
///
/// # Errors
/// postcard can't write it.
pub(super) fn put(out: &mut Vec<u8>, record: &Record, room: &mut Vec<u8>) -> postcard::Result<()> {
    room.clear();
    let bytes = postcard::to_extend(record, std::mem::take(room))?;
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push((len & 0x7f) as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(&bytes);
    *room = bytes;
    Ok(())
}

/// Fills `buf`; `false`: the end came before.
fn fill(from: &mut impl Read, buf: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buf) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

fn damage(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.into())
}

/// A chunk; `None`: there is no whole one.
fn chunk(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let (mut len, mut crc) = ([0; 4], [0; 4]);
    if !fill(from, &mut len)? || !fill(from, &mut crc)? {
        return Ok(None);
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_CHUNK {
        return Err(damage(format!("a chunk of {len} bytes is longer than any")));
    }
    let mut bytes = Vec::new();
    from.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Ok(None);
    }
    match crc32fast::hash(&bytes) == u32::from_le_bytes(crc) {
        true => Ok(Some(bytes)),
        false => Err(damage("the checksum of a chunk is wrong")),
    }
}

/// The length of the next record of a stream; `None`: there is none.
fn length(from: &mut impl Read) -> io::Result<Option<u64>> {
    let mut len = 0u64;
    for shift in (0..35).step_by(7) {
        let mut byte = [0];
        if !fill(from, &mut byte)? {
            return Ok(None);
        }
        let [byte] = byte;
        len |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return match len <= MAX_RECORD {
                true => Ok(Some(len)),
                false => Err(damage(format!("a record of {len} bytes is longer than any"))),
            };
        }
    }
    Err(damage("a record is longer than any"))
}

/// The next record of a stream; `None`: there is no whole one.
fn record(from: &mut impl Read) -> io::Result<Option<Record>> {
    let Some(len) = length(from)? else { return Ok(None) };
    let mut bytes = Vec::new();
    from.take(len).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < len {
        return Ok(None);
    }
    match postcard::take_from_bytes(&bytes) {
        Ok((record, [])) => Ok(Some(record)),
        Ok((_, rest)) => Err(damage(format!("{} bytes of it are not understood", rest.len()))),
        Err(why) => Err(damage(why.to_string())),
    }
}

/// The chunks of a file as one stream.
struct Chunks<R> {
    from: R,
    bytes: Vec<u8>,
    at: usize,
}

impl<R: Read> Read for Chunks<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.bytes.len() {
            let Some(bytes) = chunk(&mut self.from)? else { return Ok(0) };
            (self.bytes, self.at) = (bytes, 0);
        }
        let n = self.bytes.get(self.at..).unwrap_or_default().read(buf)?;
        self.at += n;
        Ok(n)
    }
}

/// Where records come from.
enum Source {
    /// What was unpacked of a file.
    Stream(Box<dyn Read + Send>),
    Records(std::vec::IntoIter<Record>),
}

/// A recording that is read: an iterator over its records.
///
/// ```no_run
/// # fn main() -> Result<(), hca_server::recording::RecordingError> {
/// use hca_server::recording::{Record, Recording};
/// let mut recording = Recording::open("session.rec".as_ref())?;
/// let names = recording.header().adapters.clone();
/// while let Some(item) = recording.next_record()? {
///     println!("{} {}: {}", item.number, hca_model::Ps(item.time), item.record.words(&names));
/// }
/// println!("{:?}", recording.ending());
/// # Ok(())
/// # }
/// ```
pub struct Recording {
    file: String,
    header: Header,
    from: Source,
    number: u64,
    time: u64,
    ending: Option<Ending>,
    /// The first record of the next step.
    ahead: Option<Item>,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording")
            .field("file", &self.file)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Recording {
    /// Whether a file begins as a recording does.
    ///
    /// # Errors
    /// It can't be read.
    pub fn is_one(path: &Path) -> io::Result<bool> {
        let mut magic = [0; MAGIC.len()];
        Ok(fill(&mut File::open(path)?, &mut magic)? && magic == *MAGIC)
    }

    /// Opens a file.
    ///
    /// # Errors
    /// It can't be read, or is no recording.
    pub fn open(path: &Path) -> Result<Recording, RecordingError> {
        let file = path.display().to_string();
        let opened = File::open(path).map_err(|why| RecordingError::Read { file: file.clone(), why })?;
        Recording::read(file, BufReader::new(opened))
    }

    /// Reads from anything. `file` is what errors call it.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub fn read(
        file: impl Into<String>,
        from: impl Read + Send + 'static,
    ) -> Result<Recording, RecordingError> {
        let (file, mut from) = (file.into(), from);
        let system = |why| RecordingError::Read { file: file.clone(), why };
        let (mut magic, mut version) = ([0; 16], [0; 4]);
        if !fill(&mut from, &mut magic).map_err(system)? || magic != *MAGIC {
            return Err(RecordingError::Stranger { file });
        }
        if !fill(&mut from, &mut version).map_err(system)? {
            return Err(RecordingError::Stranger { file });
        }
        let found = u32::from_le_bytes(version);
        if found != VERSION {
            return Err(RecordingError::Version { file, found });
        }
        let header = |why: String| RecordingError::Header { file: file.clone(), why };
        let json = chunk(&mut from).map_err(|why| header(why.to_string()))?;
        let json = json.ok_or_else(|| header("the file ends in it".into()))?;
        let parsed: Header = serde_json::from_slice(&json).map_err(|why| header(why.to_string()))?;
        let chunks = Chunks { from, bytes: Vec::new(), at: 0 };
        let unpacked = zstd::stream::read::Decoder::new(chunks).map_err(system)?;
        Ok(Recording {
            file,
            header: parsed,
            from: Source::Stream(Box::new(BufReader::new(unpacked))),
            number: 0,
            time: 0,
            ending: None,
            ahead: None,
        })
    }

    /// A recording of these, which is in no file.
    pub fn of(header: Header, records: Vec<Record>) -> Recording {
        let (file, from) = ("recording".into(), Source::Records(records.into_iter()));
        Recording { file, header, from, number: 0, time: 0, ending: None, ahead: None }
    }

    /// What it is of.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.file
    }

    /// How it ends; `None` before the end was reached.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    fn damaged(&self, why: impl Into<String>) -> RecordingError {
        let (file, number, time) = (self.file.clone(), self.number, self.time);
        RecordingError::Damaged { file, number, time, why: why.into() }
    }

    /// The next record; `None`: there is none, and [`Recording::ending`] says why.
    ///
    /// # Errors
    /// [`RecordingError::Damaged`]: nothing more can be read.
    pub fn next_record(&mut self) -> Result<Option<Item>, RecordingError> {
        if let Some(item) = self.ahead.take() {
            return Ok(Some(item));
        }
        if self.ending.is_some() {
            return Ok(None);
        }
        let read = match &mut self.from {
            Source::Stream(from) => record(from),
            Source::Records(records) => Ok(records.next()),
        };
        let record = match read {
            Ok(Some(record)) => record,
            Ok(None) => {
                self.ending = Some(Ending::Cut);
                return Ok(None);
            }
            // So says the decoder of a stream that is cut.
            Err(why) if why.kind() == ErrorKind::UnexpectedEof => {
                self.ending = Some(Ending::Cut);
                return Ok(None);
            }
            Err(why) => {
                self.ending = Some(Ending::Cut);
                return Err(self.damaged(why.to_string()));
            }
        };
        self.time = record.time().unwrap_or(self.time);
        let item = Item { number: self.number, time: self.time, record };
        self.number += 1;
        if let Record::End { why } = item.record {
            self.ending = Some(Ending::Whole(why));
        }
        Ok(Some(item))
    }

    /// The next step, with what came of it; empty at the end. A step that is not all there, because the recording is cut, is left out.
    ///
    /// # Errors
    /// As [`Recording::next_record`]; the first record is no step.
    pub fn next_step(&mut self) -> Result<VecDeque<Item>, RecordingError> {
        let mut step = VecDeque::new();
        let Some(first) = self.next_record()? else { return Ok(step) };
        if !first.record.is_step() {
            return Err(self.damaged("it is of no step"));
        }
        let last = matches!(first.record, Record::End { .. });
        step.push_back(first);
        if last {
            return Ok(step);
        }
        let mut bytes = 0usize;
        loop {
            match self.next_record()? {
                Some(item) if item.record.is_step() => {
                    self.ahead = Some(item);
                    return Ok(step);
                }
                Some(item) => {
                    bytes = bytes.saturating_add(item.record.weight());
                    step.push_back(item);
                    if bytes > MAX_STEP {
                        return Err(self.damaged("more came of a step than a server does at once"));
                    }
                }
                None => return Ok(VecDeque::new()),
            }
        }
    }
}

impl Iterator for Recording {
    type Item = Result<Item, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

impl Record {
    /// What it takes of memory, about.
    fn weight(&self) -> usize {
        let bytes = match self {
            Record::DmaRead { data, .. } | Record::Returned { data } => data.len(),
            Record::Look { data: Some(data), .. } => data.len(),
            Record::Answer { answer: super::record::DmaAnswer::Read { data, .. }, .. } => data.len(),
            _ => 0,
        };
        bytes.saturating_add(size_of::<Item>())
    }
}
