//! What is kept, and how it is said in words.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};

use crate::pci::Space;
use crate::pci::msix::Raised;
use crate::tunnel::Light;

/// Bytes of a write to memory that are kept as they are: completions, events, outputs of commands. Of longer ones there is a checksum.
const WHOLE: usize = 256;
/// Bytes that are shown.
const SHOWN: usize = 64;

/// What an adapter wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bytes {
    /// All of it.
    Whole(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Its length, and the CRC-32 of it (IEEE 802.3).
    Sum {
        /// In bytes.
        len: u64,
        /// Of all bytes.
        crc: u32,
    },
}

impl Bytes {
    /// What is kept of these.
    pub fn of(bytes: &[u8]) -> Bytes {
        match bytes.len() > WHOLE {
            true => Bytes::Sum { len: bytes.len() as u64, crc: crc32fast::hash(bytes) },
            false => Bytes::Whole(bytes.to_vec()),
        }
    }

    /// How many there were.
    pub fn len(&self) -> u64 {
        match self {
            Bytes::Whole(bytes) => bytes.len() as u64,
            Bytes::Sum { len, .. } => *len,
        }
    }

    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What became of an interrupt that an adapter raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Became {
    /// The host was told.
    Signalled,
    /// It waits: the vector is masked, not connected, or bus mastering is off.
    Pending,
    /// There is no such vector, or the host could not be told.
    Dropped,
    /// It waits for writes before it, which the host has not acknowledged.
    Behind,
}

impl From<Raised> for Became {
    fn from(raised: Raised) -> Became {
        match raised {
            Raised::Signalled => Became::Signalled,
            Raised::Pending => Became::Pending,
            Raised::Dropped => Became::Dropped,
        }
    }
}

/// What came of an access to memory that answers later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DmaAnswer {
    /// Nothing has come.
    None,
    /// A read was answered.
    Read {
        /// The adapter's name for it.
        ticket: u64,
        /// Its bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// A read failed.
    ReadFailed {
        /// The adapter's name for it.
        ticket: u64,
        /// Its address.
        iova: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// A posted write failed.
    WriteFailed {
        /// Its address.
        iova: u64,
        /// Its length in bytes.
        len: u64,
    },
}

/// Why a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The server ended.
    Stopped,
    /// It had as many bytes as it may have.
    Limit,
}

/// One record. `hca` is the adapter's place among those of the process, as in [`Header::adapters`](super::Header::adapters); times are
/// model time in ps.
///
/// The order of the variants is the format: new ones come last, and a change of one is a new version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(
    missing_docs,
    reason = "fields are named as in the calls that they are of, and each variant says what it is"
)]
pub enum Record {
    /// Step: a host is there.
    Attach { hca: u16 },
    /// Step: it is gone; the adapter is reset.
    Detach { hca: u16, reason: String },
    /// Step: the host reads so many bytes. [`Record::Returned`] has what it got.
    Read { hca: u16, space: Space, offset: u64, len: u32 },
    /// Step: the host writes.
    Write {
        hca: u16,
        space: Space,
        offset: u64,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Step: a window of the host's memory appears. `later`: it has no descriptor, so that accesses are messages. `done`: it was not refused.
    Map { hca: u16, iova: u64, size: u64, readable: bool, writable: bool, later: bool, done: bool },
    /// Step: windows disappear; without a range, all of them: first address and length in bytes.
    Unmap { hca: u16, range: Option<(u64, u64)>, done: bool },
    /// Step: memory that answers later has changed; the adapter looks again.
    MemoryChanged { hca: u16 },
    /// Step: the host wants to hear of a vector, or not any more.
    Connect { hca: u16, vector: u32, connected: bool },
    /// Step: the host holds a vector back, or lets it through.
    Mask { hca: u16, vector: u32, masked: bool },
    /// Step: the host has a vector raised itself.
    Trigger { hca: u16, vector: u32 },
    /// Step: the host resets the function.
    Reset { hca: u16 },
    /// Step: stores to a BlueFlame register were not continued in time.
    StoresEnd { hca: u16 },
    /// Step: the host has answered accesses to its memory. `all_written`: it sees all that was written; `news`: the adapter looks.
    Answers { hca: u16, all_written: bool, news: bool },
    /// Step: the model runs on by itself.
    Run,
    /// Step: the interrupts that the model has raised are delivered.
    Signal,
    /// Step: something came by a tunnel. The model is brought to the present; what came are the next steps.
    Arrivals,
    /// Step: the same of other software on a wire, which keeps the host's time.
    Frames,
    /// Step: a packet came by that link.
    Packet {
        link: u16,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Step: a frame without FCS came by that link.
    Frame {
        link: u16,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Step: the far side of a link shows so many lanes, with that speed as the server's messages number it, or is dark.
    Light { link: u16, light: Option<(u8, u8)> },
    /// Step: what has left by tunnels is taken from the model.
    Drain,
    /// Step: the operator asked for something, in the words (JSON) of the control socket.
    Control { request: String },
    /// Step: what was diagnosed is taken, for which the checker may look.
    Diagnose,
    /// Step: so many events were traced so far, with that hash.
    Mark { hash: u64, count: u64 },
    /// Step: the recording ends.
    End { why: End },

    /// The model runs events that are due up to that time.
    Advance { until: u64 },
    /// It stopped after so many of them: the host's time for them was over.
    Stopped { events: u32 },
    /// It runs to that time, where nothing happens in it.
    Skip { to: u64 },
    /// An access happens at that time.
    Now { at: u64 },
    /// What the host read.
    Returned {
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// The adapter read the host's memory.
    DmaRead {
        hca: u16,
        iova: u64,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// It tried to.
    DmaReadFailed { hca: u16, iova: u64, len: u64 },
    /// It wrote to the host's memory. `done`: it did not fail.
    DmaWrite { hca: u16, iova: u64, data: Bytes, done: bool },
    /// It asked whether a range may be written.
    Reaches { hca: u16, iova: u64, len: u64, yes: bool },
    /// The checker read the host's memory beside the adapter; `None`: it could not.
    Look { hca: u16, iova: u64, len: u64, data: Option<serde_bytes::ByteBuf> },
    /// The checker asked whether a range may be written.
    LookReaches { hca: u16, iova: u64, len: u64, yes: bool },
    /// Whether memory answers a read at once.
    AtOnce { hca: u16, iova: u64, len: u64, yes: bool },
    /// The adapter asks for bytes that come later. `asked`: 0 on its way, 1 too many are, 2 it failed.
    Ask { hca: u16, ticket: u64, iova: u64, len: u64, asked: u8 },
    /// It takes an answer.
    Answer { hca: u16, answer: DmaAnswer },
    /// Whether further writes may be posted.
    TakesWrites { hca: u16, yes: bool },
    /// It raised an interrupt.
    Interrupt { hca: u16, vector: u16, became: Became },
    /// Something left by that link.
    Left { link: u16, what: Bytes },
    /// Step: the start of time moved ([`hca_model::World::rebase_if_due`]); times are counted from there.
    Epoch,
    /// Step: the firmware of the host's platform has the function report errors.
    Reports { hca: u16 },
}

impl Record {
    /// What the far side of a link shows.
    pub(crate) fn light(link: u16, light: Option<Light>) -> Record {
        Record::Light { link, light: light.map(|Light { width, speed }| (width, speed)) }
    }

    /// Whether something reached an adapter, or the model ran on; the others say what came of it.
    pub fn is_step(&self) -> bool {
        use Record::*;
        match self {
            Attach { .. } | Detach { .. } | Read { .. } | Write { .. } | Map { .. } | Unmap { .. } => true,
            MemoryChanged { .. } | Connect { .. } | Mask { .. } | Trigger { .. } | Reset { .. } => true,
            StoresEnd { .. } | Answers { .. } | Run | Signal | Arrivals | Frames => true,
            Packet { .. } | Frame { .. } | Light { .. } | Drain | Control { .. } | Diagnose => true,
            Mark { .. } | End { .. } | Epoch | Reports { .. } => true,
            Advance { .. } | Stopped { .. } | Skip { .. } | Now { .. } | Returned { .. } => false,
            DmaRead { .. } | DmaReadFailed { .. } | DmaWrite { .. } | Reaches { .. } => false,
            Look { .. } | LookReaches { .. } | AtOnce { .. } | Ask { .. } | Answer { .. } => false,
            TakesWrites { .. } | Interrupt { .. } | Left { .. } => false,
        }
    }

    /// Whether it is the checker's, and no doing of an adapter.
    pub fn is_look(&self) -> bool {
        matches!(self, Record::Look { .. } | Record::LookReaches { .. })
    }

    /// The model time, in ps, that it tells of.
    pub fn time(&self) -> Option<u64> {
        match self {
            Record::Skip { to } => Some(*to),
            Record::Now { at } => Some(*at),
            _ => None,
        }
    }

    /// Its adapter, if it is of one.
    pub fn hca(&self) -> Option<u16> {
        use Record::*;
        match self {
            Attach { hca } | Detach { hca, .. } | Read { hca, .. } | Write { hca, .. } | Map { hca, .. } => {
                Some(*hca)
            }
            Unmap { hca, .. } | MemoryChanged { hca } | Connect { hca, .. } | Mask { hca, .. } => Some(*hca),
            Trigger { hca, .. } | Reset { hca } | StoresEnd { hca } | Answers { hca, .. } => Some(*hca),
            DmaRead { hca, .. } | DmaReadFailed { hca, .. } | DmaWrite { hca, .. } | Reaches { hca, .. } => {
                Some(*hca)
            }
            Look { hca, .. } | LookReaches { hca, .. } | AtOnce { hca, .. } | Ask { hca, .. } => Some(*hca),
            Answer { hca, .. } | TakesWrites { hca, .. } | Interrupt { hca, .. } | Reports { hca } => {
                Some(*hca)
            }
            _ => None,
        }
    }

    /// The record in words. `names` are those of the adapters.
    pub fn words<'a>(&'a self, names: &'a [String]) -> Names<'a> {
        Names { record: self, names }
    }
}

/// A record with the names of the adapters, to be shown.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    record: &'a Record,
    names: &'a [String],
}

/// The first bytes, as digits.
fn shown(bytes: &[u8]) -> String {
    let mut text = bytes.iter().take(SHOWN).fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    if bytes.len() > SHOWN {
        text += "...";
    }
    text
}

fn space_name(space: Space) -> &'static str {
    match space {
        Space::Config => "configuration space",
        Space::Bar0 => "BAR0",
        Space::Bar2 => "BAR2",
        Space::Rom => "the expansion ROM",
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bytes::Whole(bytes) => f.write_str(&shown(bytes)),
            Bytes::Sum { crc, .. } => write!(f, "with CRC-32 {crc:08x}"),
        }
    }
}

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Record::*;
        if let Some(hca) = self.record.hca() {
            match self.names.get(usize::from(hca)) {
                Some(name) => write!(f, "{name}: ")?,
                None => write!(f, "adapter {hca}: ")?,
            }
        }
        let or_failed = |done: &bool| if *done { "" } else { ", which failed" };
        let or_not = |yes: &bool| if *yes { "yes" } else { "no" };
        match self.record {
            Attach { .. } => f.write_str("a host is there"),
            Reports { .. } => f.write_str("its errors are to be reported"),
            Detach { reason, .. } => write!(f, "the host is gone ({reason})"),
            Read { space, offset, len, .. } => {
                write!(f, "the host reads {len} bytes at {offset:#x} of {}", space_name(*space))
            }
            Write { space, offset, data, .. } => {
                let (len, space) = (data.len(), space_name(*space));
                write!(f, "the host writes {len} bytes at {offset:#x} of {space}: {}", shown(data))
            }
            Map { iova, size, later, done, .. } => {
                let how = if *later { "without a descriptor" } else { "with a descriptor" };
                let refused = if *done { "" } else { ", refused" };
                write!(f, "a window of {size:#x} bytes at {iova:#x} is mapped {how}{refused}")
            }
            Unmap { range: Some((iova, size)), done, .. } => {
                write!(f, "{size:#x} bytes at {iova:#x} are unmapped{}", or_failed(done))
            }
            Unmap { range: None, .. } => f.write_str("all memory is unmapped"),
            MemoryChanged { .. } => f.write_str("memory that answers later has changed"),
            Connect { vector, connected: true, .. } => write!(f, "vector {vector} is connected"),
            Connect { vector, .. } => write!(f, "vector {vector} is disconnected"),
            Mask { vector, masked: true, .. } => write!(f, "vector {vector} is masked"),
            Mask { vector, .. } => write!(f, "vector {vector} is unmasked"),
            Trigger { vector, .. } => write!(f, "the host triggers vector {vector}"),
            Reset { .. } => f.write_str("the host resets the function"),
            Epoch => f.write_str("the start of time moves"),
            StoresEnd { .. } => f.write_str("stores to a BlueFlame register are not continued"),
            Answers { .. } => f.write_str("the host has answered accesses to its memory"),
            Run => f.write_str("the model runs on"),
            Signal => f.write_str("interrupts are delivered"),
            Arrivals | Frames => f.write_str("something comes by links that leave the process"),
            Packet { link, data } => write!(f, "a packet of {} bytes comes by link {link}", data.len()),
            Frame { link, data } => write!(f, "a frame of {} bytes comes by link {link}", data.len()),
            Light { link, light: Some((width, speed)) } => {
                write!(f, "link {link} shows {width} lanes of speed {speed}")
            }
            Light { link, light: None } => write!(f, "link {link} is dark"),
            Drain => f.write_str("what has left by tunnels is taken"),
            Control { request } => write!(f, "the operator asks: {request}"),
            Diagnose => f.write_str("diagnoses are taken"),
            Mark { hash, count } => write!(f, "{count} events were traced, with hash {hash:016x}"),
            End { why: self::End::Stopped } => f.write_str("the server ends"),
            End { why: self::End::Limit } => f.write_str("the recording has reached its limit"),
            Advance { until } => write!(f, "events that are due up to {} happen", hca_model::Ps(*until)),
            Stopped { events } => write!(f, "the model stops after {events} events"),
            Skip { to } => write!(f, "time goes on to {}", hca_model::Ps(*to)),
            Now { at } => write!(f, "it is {}", hca_model::Ps(*at)),
            Returned { data } => write!(f, "it reads {}", shown(data)),
            DmaRead { iova, data, .. } => write!(f, "DMA read of {} bytes at {iova:#x}", data.len()),
            DmaReadFailed { iova, len, .. } => {
                write!(f, "DMA read of {len} bytes at {iova:#x}, which failed")
            }
            DmaWrite { iova, data, done, .. } => {
                let failed = or_failed(done);
                write!(f, "DMA write of {} bytes at {iova:#x}: {data}{failed}", data.len())
            }
            Reaches { iova, len, yes, .. } => {
                write!(f, "whether {len} bytes at {iova:#x} may be written: {}", or_not(yes))
            }
            Look { iova, len, .. } => write!(f, "the checker reads {len} bytes at {iova:#x}"),
            LookReaches { iova, len, yes, .. } => {
                write!(f, "the checker asks whether {len} bytes at {iova:#x} may be written: {}", or_not(yes))
            }
            AtOnce { iova, len, yes, .. } => {
                write!(f, "whether {len} bytes at {iova:#x} are answered at once: {}", or_not(yes))
            }
            Ask { ticket, iova, len, .. } => {
                write!(f, "{len} bytes at {iova:#x} are asked for as request {ticket}")
            }
            Answer { answer: DmaAnswer::None, .. } => f.write_str("no answer of memory"),
            Answer { answer: DmaAnswer::Read { ticket, data }, .. } => {
                write!(f, "request {ticket} is answered with {} bytes", data.len())
            }
            Answer { answer: DmaAnswer::ReadFailed { ticket, .. }, .. } => {
                write!(f, "request {ticket} is answered with an error")
            }
            Answer { answer: DmaAnswer::WriteFailed { iova, len }, .. } => {
                write!(f, "a write of {len} bytes at {iova:#x} has failed")
            }
            TakesWrites { yes, .. } => write!(f, "whether further writes may be posted: {}", or_not(yes)),
            Interrupt { vector, became, .. } => write!(f, "interrupt of vector {vector} ({became:?})"),
            Left { link, what } => write!(f, "{} bytes leave by link {link}: {what}", what.len()),
        }
    }
}
