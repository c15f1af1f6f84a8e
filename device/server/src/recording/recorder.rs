//! Who writes a recording.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use hca_model::World;
use serde_json::{Value, json};

use super::file::{self, Header};
use super::record::{End, Record};
use crate::sync::lock;

/// Bytes of records that wait for compression.
const GATHERED: usize = 256 << 10;
/// How long records wait at most before they are in the file: what a crash may cost.
const FLUSH: Duration = Duration::from_millis(200);
/// zstd's own default: a good tenth of a second for 64 MiB.
const LEVEL: i32 = 3;
/// Bytes of a file unless told.
const LIMIT: u64 = 4 << 30;

/// What to record.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file. It has what guests send: only its owner can read it.
    pub file: PathBuf,
    /// The recording ends when its file has so many bytes.
    pub limit: Option<u64>,
}

struct Writer {
    file: File,
    /// Packs into memory what a chunk is made of.
    packer: zstd::stream::write::Encoder<'static, Vec<u8>>,
    gathered: Vec<u8>,
    room: Vec<u8>,
    /// Bytes of the file.
    written: u64,
    limit: u64,
    records: u64,
    /// When the oldest record that is not in the file came.
    since: Option<Instant>,
    news: Vec<String>,
    ended: bool,
    /// A step that is kept if something comes of it.
    may_come: Option<Record>,
}

impl Writer {
    fn keep(&mut self, record: &Record) {
        if self.ended {
            return;
        }
        if let Some(step) = self.may_come.take() {
            self.keep(&step);
        }
        if let Err(why) = file::put(&mut self.gathered, record, &mut self.room) {
            return self.give_up(&why.into());
        }
        self.records += 1;
        if self.gathered.len() >= GATHERED {
            self.pack(false);
        } else if self.since.is_none() {
            self.since = Some(Instant::now());
        }
    }

    fn give_up(&mut self, why: &anyhow::Error) {
        self.ended = true;
        self.news.push(format!("recording: {why:#}: nothing more is recorded"));
    }

    /// What was gathered goes into the file; `last`: nothing comes behind it.
    fn pack(&mut self, last: bool) {
        if let Err(why) = self.try_pack(last) {
            self.give_up(&why);
        }
    }

    fn try_pack(&mut self, last: bool) -> anyhow::Result<()> {
        self.since = None;
        self.packer.write_all(&self.gathered)?;
        self.gathered.clear();
        match last {
            true => self.packer.do_finish()?,
            false => self.packer.flush()?,
        }
        let packed = self.packer.get_mut();
        self.file.write_all(&file::chunk_head(packed))?;
        self.file.write_all(packed)?;
        self.written += 8 + packed.len() as u64;
        packed.clear();
        Ok(())
    }

    fn end(&mut self, why: End) {
        if self.ended {
            return;
        }
        self.keep(&Record::End { why });
        self.pack(true);
        self.ended = true;
    }
}

/// A recording that is written. Clones write the same one.
#[derive(Clone)]
pub(crate) struct Recorder {
    writer: Arc<Mutex<Writer>>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// Begins a file.
    ///
    /// # Errors
    /// It can't be made.
    pub(crate) fn begin(options: &Options, header: &Header) -> anyhow::Result<Recorder> {
        let mut file = hca_trace::create_private(&options.file)?;
        let beginning = file::beginning(header)?;
        file.write_all(&beginning).with_context(|| options.file.display().to_string())?;
        let writer = Writer {
            file,
            packer: zstd::stream::write::Encoder::new(Vec::new(), LEVEL)?,
            gathered: Vec::new(),
            room: Vec::new(),
            written: beginning.len() as u64,
            limit: options.limit.unwrap_or(LIMIT),
            records: 0,
            since: None,
            news: Vec::new(),
            ended: false,
            may_come: None,
        };
        Ok(Recorder { writer: Arc::new(Mutex::new(writer)) })
    }

    /// Keeps a record.
    pub(crate) fn keep(&self, record: &Record) {
        lock(&self.writer).keep(record);
    }

    /// Keeps a step as soon as something comes of it.
    pub(super) fn may_come(&self, step: Record) {
        lock(&self.writer).may_come = Some(step);
    }

    /// Such a step is over. `yes`: it is kept in any case.
    pub(super) fn has_come(&self, yes: bool) {
        let mut writer = lock(&self.writer);
        if let Some(step) = writer.may_come.take().filter(|_| yes) {
            writer.keep(&step);
        }
    }

    /// Between two steps: what has waited goes into the file, and a recording that has its limit ends.
    pub(crate) fn look(&self, world: &World) -> Vec<String> {
        let mut writer = lock(&self.writer);
        if writer.since.is_some_and(|since| since.elapsed() >= FLUSH) {
            if let Some(trace) = world.trace() {
                writer.keep(&Record::Mark { hash: trace.hash(), count: trace.count() });
            }
            writer.pack(false);
        }
        if writer.written >= writer.limit && !writer.ended {
            writer.end(End::Limit);
            let news = format!("the recording has {} bytes, its limit: it ends", writer.written);
            writer.news.push(news);
        }
        std::mem::take(&mut writer.news)
    }

    /// What was kept so far goes into the file.
    #[cfg(test)]
    pub(super) fn flush(&self) {
        lock(&self.writer).pack(false);
    }

    /// How long may pass until something has to go into the file.
    pub(crate) fn sleep(&self) -> Option<Duration> {
        lock(&self.writer).since.map(|since| FLUSH.saturating_sub(since.elapsed()))
    }

    /// The server ends.
    pub(crate) fn end(&self, world: &World) -> Vec<String> {
        let mut writer = lock(&self.writer);
        if let Some(trace) = world.trace() {
            writer.keep(&Record::Mark { hash: trace.hash(), count: trace.count() });
        }
        writer.end(End::Stopped);
        let mut news = std::mem::take(&mut writer.news);
        news.push(format!("recorded: {} records, {} bytes", writer.records, writer.written));
        news
    }

    /// For `softhca stat`.
    pub(crate) fn status(&self) -> Value {
        let writer = lock(&self.writer);
        json!({ "bytes": writer.written, "limit": writer.limit, "recording": !writer.ended })
    }
}
