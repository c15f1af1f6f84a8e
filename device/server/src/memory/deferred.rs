//! Accesses to memory without a descriptor: what was asked for, what was answered, and what has to wait for that.
//!
//! Reads are answered later. Writes are posted: sent, and acknowledged later. What PCIe says of their order holds between
//! the two kinds of memory. A write to mapped memory that comes behind posted writes is held until the host has
//! acknowledged those, so that it is not seen before them, and so are all writes behind it. A read of mapped memory finds
//! what is held for it; a read that is asked for goes the way of the writes before it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hca_model::{Answer, DmaError};

use super::file::FileMap;
use super::{RemoteAnswer, RemoteMemory};

/// Reads on their way, and their bytes.
const MAX_READS: usize = 64;
const MAX_READ_BYTES: usize = 1 << 20;
/// Writes on their way or held, and their bytes: beyond these the adapter begins nothing new.
const MAX_WRITES: usize = 256;
const MAX_WRITE_BYTES: usize = 4 << 20;

/// What a message to the host is for.
#[derive(Debug)]
enum Message {
    /// Bytes of the read with that ticket, from that place on.
    Read {
        ticket: u64,
        offset: usize,
        len: usize,
    },
    Write {
        iova: u64,
        len: usize,
    },
}

/// A read that was asked for.
#[derive(Debug)]
struct Read {
    iova: u64,
    data: Vec<u8>,
    /// Messages that are not answered yet.
    missing: usize,
}

/// A write that waits for posted ones before it.
#[derive(Debug)]
struct Held {
    iova: u64,
    data: Vec<u8>,
    /// Its place, if the memory is mapped.
    mapped: Option<(Arc<FileMap>, usize)>,
}

/// A part of a read.
#[derive(Debug)]
pub(super) enum Source {
    /// What mapped memory has now.
    Here(Vec<u8>),
    /// Bytes at that address that the host has.
    There(u64, usize),
}

/// Accesses that are under way.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    next: u64,
    messages: BTreeMap<u64, Message>,
    read_bytes: usize,
    /// By the tickets of the model.
    reads: BTreeMap<u64, Read>,
    /// Posted writes on their way.
    writes: usize,
    write_bytes: usize,
    held: VecDeque<Held>,
    answers: VecDeque<Answer>,
}

impl Deferred {
    /// Whether another read may be sent.
    pub(super) fn takes_reads(&self) -> bool {
        let reads = self.messages.len().saturating_sub(self.writes);
        reads < MAX_READS && self.read_bytes < MAX_READ_BYTES && !self.holds_messages()
    }

    /// Whether writes wait that are messages: what is asked for now would pass them.
    fn holds_messages(&self) -> bool {
        self.held.iter().any(|held| held.mapped.is_none())
    }

    /// Whether further writes may be posted.
    pub(super) fn takes_writes(&self) -> bool {
        self.writes + self.held.len() < MAX_WRITES && self.write_bytes < MAX_WRITE_BYTES
    }

    /// Whether posted writes are not visible to the host yet.
    pub(super) fn is_writing(&self) -> bool {
        self.writes > 0 || !self.held.is_empty()
    }

    /// Whether anything is under way or was answered.
    pub(super) fn is_busy(&self) -> bool {
        !self.messages.is_empty() || !self.answers.is_empty()
    }

    /// Sends a read of these parts.
    ///
    /// # Errors
    /// The host can't be asked.
    pub(super) fn ask(
        &mut self,
        remote: &dyn RemoteMemory,
        ticket: u64,
        iova: u64,
        parts: Vec<Source>,
    ) -> Result<(), super::RemoteError> {
        let (mut data, mut missing) = (Vec::new(), 0);
        for part in parts {
            match part {
                Source::Here(bytes) => data.extend(bytes),
                Source::There(at, len) => {
                    remote.read(self.next, at, len)?;
                    self.messages.insert(self.next, Message::Read { ticket, offset: data.len(), len });
                    self.next += 1;
                    self.read_bytes += len;
                    missing += 1;
                    data.resize(data.len() + len, 0);
                }
            }
        }
        self.reads.insert(ticket, Read { iova, data, missing });
        Ok(())
    }

    /// Posts a write to the host.
    ///
    /// # Errors
    /// It can't be sent.
    pub(super) fn post(
        &mut self,
        remote: &dyn RemoteMemory,
        iova: u64,
        data: &[u8],
    ) -> Result<(), super::RemoteError> {
        if self.held.is_empty() {
            return self.send(remote, iova, data);
        }
        self.hold(Held { iova, data: data.to_vec(), mapped: None });
        Ok(())
    }

    fn send(&mut self, remote: &dyn RemoteMemory, iova: u64, data: &[u8]) -> Result<(), super::RemoteError> {
        remote.write(self.next, iova, data)?;
        self.messages.insert(self.next, Message::Write { iova, len: data.len() });
        self.next += 1;
        self.writes += 1;
        self.write_bytes += data.len();
        Ok(())
    }

    /// Writes to mapped memory, behind what was posted.
    pub(super) fn write(&mut self, iova: u64, map: &Arc<FileMap>, offset: usize, data: &[u8]) -> Option<()> {
        if !self.is_writing() {
            return map.write(offset, data);
        }
        self.hold(Held { iova, data: data.to_vec(), mapped: Some((Arc::clone(map), offset)) });
        Some(())
    }

    fn hold(&mut self, held: Held) {
        self.write_bytes += held.data.len();
        self.held.push_back(held);
    }

    /// Puts over `buf`, which was read from mapped memory at `iova`, what is held for it.
    pub(super) fn overlay(&self, iova: u64, buf: &mut [u8]) {
        for held in &self.held {
            let skip = usize::try_from(held.iova.saturating_sub(iova)).unwrap_or(usize::MAX);
            let from = usize::try_from(iova.saturating_sub(held.iova)).unwrap_or(usize::MAX);
            let to = buf.get_mut(skip..).unwrap_or_default();
            to.iter_mut().zip(held.data.iter().skip(from)).for_each(|(to, byte)| *to = *byte);
        }
    }

    /// Does what is held, as far as nothing before it has to be acknowledged first; with `all`, all of it. Returns how many
    /// writes failed.
    pub(super) fn settle(&mut self, remote: Option<&dyn RemoteMemory>, all: bool) -> u64 {
        let mut failed = 0;
        while let Some(held) = self.held.pop_front_if(|held| all || held.mapped.is_none() || self.writes == 0)
        {
            let Held { iova, data, mapped } = held;
            self.write_bytes = self.write_bytes.saturating_sub(data.len());
            let written = match mapped {
                Some((map, offset)) => map.write(offset, &data).is_some(),
                None => remote.is_some_and(|remote| self.send(remote, iova, &data).is_ok()),
            };
            if !written {
                failed += 1;
                self.answers.push_back(Answer::WriteFailed(DmaError { iova, len: data.len() }));
            }
        }
        failed
    }

    /// Takes what the host answered. Returns how many accesses failed.
    pub(super) fn take(&mut self, remote: &dyn RemoteMemory) -> u64 {
        let mut failed = 0;
        while let Some(RemoteAnswer { ticket, result }) = remote.next_answer() {
            match self.messages.remove(&ticket) {
                None => {}
                Some(Message::Write { iova, len }) => {
                    self.writes = self.writes.saturating_sub(1);
                    self.write_bytes = self.write_bytes.saturating_sub(len);
                    if let Err(why) = result {
                        tracing::debug!("DMA failed: a write of {len} bytes at {iova:#x}: {why}");
                        failed += 1;
                        self.answers.push_back(Answer::WriteFailed(DmaError { iova, len }));
                    }
                    failed += self.settle(Some(remote), false);
                }
                Some(Message::Read { ticket, offset, len }) => {
                    self.read_bytes = self.read_bytes.saturating_sub(len);
                    let Some(read) = self.reads.get_mut(&ticket) else { continue };
                    let to = read.data.get_mut(offset..).and_then(|data| data.get_mut(..len));
                    match (result, to) {
                        (Ok(data), Some(to)) if data.len() == len => to.copy_from_slice(&data),
                        (result, _) => {
                            if let Err(why) = result {
                                tracing::debug!("DMA failed: a read of {len} bytes: {why}");
                            }
                            failed += 1;
                            self.fail(ticket);
                            continue;
                        }
                    }
                    read.missing = read.missing.saturating_sub(1);
                    if read.missing == 0
                        && let Some(Read { data, .. }) = self.reads.remove(&ticket)
                    {
                        self.answers.push_back(Answer::Read { ticket, data: Ok(data) });
                    }
                }
            }
        }
        failed
    }

    fn fail(&mut self, ticket: u64) {
        if let Some(Read { iova, data, .. }) = self.reads.remove(&ticket) {
            let data = Err(DmaError { iova, len: data.len() });
            self.answers.push_back(Answer::Read { ticket, data });
        }
    }

    /// The reads that touch `first..=last` fail: what the host still answers is not for them.
    pub(super) fn fail_within(&mut self, first: u64, last: u64) {
        let touches = |read: &Read| {
            let end = read.iova.saturating_add((read.data.len() as u64).saturating_sub(1));
            read.iova <= last && end >= first
        };
        let hit: Vec<u64> =
            self.reads.iter().filter(|(_, r)| touches(r)).map(|(ticket, _)| *ticket).collect();
        hit.into_iter().for_each(|ticket| self.fail(ticket));
    }

    /// Nobody waits for reads any more.
    pub(super) fn forget(&mut self) {
        self.reads.clear();
        self.answers.retain(|answer| matches!(answer, Answer::WriteFailed(_)));
    }

    pub(super) fn next_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// Whether answers wait to be taken.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }
}
