//! What reached the adapters of a server from outside, in a file, and the same adapters run by it again.
//!
//! ```text
//! host ─ front end ─▶ Endpoint ─┐                          ┌─▶ Endpoint
//! host's clock ─────▶ Pacer ────┼─▶ Recorder ─▶ file ─▶ Recording ─▶ Player ─┼─▶ Pacer
//! host's memory ────▶ model ────┘   (zstd)                 └─▶ memory of the model
//! ```
//!
//! Cut is where outside meets the adapters of one process: calls of the front ends, what the clock made of the host's time, what
//! accesses to hosts' memory gave, what came by links that leave the process, and what the operator asked for. What passes between two
//! adapters of the process is the model's own doing, and is not in the file: it happens again. So a recording is of all adapters of a
//! process, from power-on.
//!
//! A file is a sequence of [`Record`]s. Some are *steps*: something reached an adapter, or the model ran on. What the adapters did of
//! it follows, up to the next step: reads of memory with what they gave, writes, interrupts. [`Recording`] reads them one after the
//! other, for whoever wants to know what a driver did; [`Replay`] has the adapters do it again, and compares.
//!
//! | file | what |
//! |---|---|
//! | `record` | what is kept, and how it is said in words |
//! | `file` | the file: header, chunks, checksums, compression |
//! | `recorder` | who writes it; the seam that is off unless asked for |
//! | `memory` | hosts' memory that is written down, and memory that answers from a recording |
//! | `player` | the records of a step, handed out to whoever asks for them; the first divergence |
//! | `replay` | the adapters without their hosts |
//!
//! Not here: recordings of servers with a process for each host; those that begin in the middle, because the model's state can't be
//! kept: so a recording ends at its limit, and does not drop its beginning.

mod file;
mod memory;
mod player;
mod record;
mod recorder;
mod replay;
mod seam;
#[cfg(test)]
mod tests;

pub use file::{Ending, Header, Item, Recording, RecordingError, VERSION};
pub use player::Divergence;
pub use record::{Became, Bytes, DmaAnswer, End, Names, Record};
pub use recorder::Options;
pub use replay::{Outcome, Replay};

pub(crate) use recorder::Recorder;
pub(crate) use replay::memory_of;
pub(crate) use seam::Seam;
