//! Reads of an adapter that are answered later: what was asked for, and the answers, kept by the input that needs them.
//!
//! [`OutstandingReads`] stands before memory with [`DeferredReads`](super::dma::DeferredReads). What the memory answers at
//! once passes through. For the rest an input is *planned* first: its reads are asked for, bytes that are not there yet are
//! zero, and nothing is written. When all answers are there it is carried out, and its reads find their bytes here.
//!
//! An adapter agrees with itself, as it does on memory that answers at once: what it writes makes answers to other inputs
//! old, and they are asked for anew, behind the write.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::dma::{Answer, Asked, DeferredReads, DmaError, GuestMemory};

/// Reads that one input may need: a packet of the largest MTU in pieces of one byte, and what leads to it. Beyond this a read
/// fails.
const MAX_READS: usize = 4096 + 256;
/// Inputs whose reads are kept at a time: others wait before they ask.
const MAX_INPUTS: usize = 64;

/// An input whose reads are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InputId(pub(crate) u64);

/// A read of an input: whose, where, how many bytes.
type Key = (InputId, u64, usize);

#[derive(Debug)]
enum Read {
    /// Asked for under that ticket. `old`: the adapter wrote there since.
    Sent {
        ticket: u64,
        old: bool,
    },
    Answered(Result<Vec<u8>, DmaError>),
}

/// For whom memory is accessed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// For nobody whose reads are kept.
    #[default]
    Nobody,
    /// An input that is planned; whether something it reads is not there.
    Planned(InputId, bool),
    /// An input that is carried out.
    CarriedOut(InputId),
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    reads: BTreeMap<Key, Read>,
    /// How many of them each input has.
    inputs: BTreeMap<InputId, usize>,
    tickets: BTreeMap<u64, Key>,
    next_ticket: u64,
    unforeseen: u64,
}

impl State {
    fn of(&self, input: InputId) -> impl Iterator<Item = (&Key, &Read)> {
        self.reads.range((input, 0, 0)..=(input, u64::MAX, usize::MAX))
    }

    fn insert(&mut self, key: Key, read: Read) {
        if self.reads.insert(key, read).is_none() {
            *self.inputs.entry(key.0).or_default() += 1;
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Read> {
        let read = self.reads.remove(key)?;
        self.forget_one(key.0);
        Some(read)
    }

    fn forget_one(&mut self, input: InputId) {
        if let Some(count) = self.inputs.get_mut(&input) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.inputs.remove(&input);
            }
        }
    }
}

/// The reads of an adapter that are answered later.
pub(crate) struct OutstandingReads {
    memory: Arc<dyn GuestMemory>,
    beside: AtOnce,
    state: Mutex<State>,
}

/// What the memory answers at once, for who looks on beside the adapter: nothing is asked for.
struct AtOnce(Arc<dyn GuestMemory>);

impl GuestMemory for AtOnce {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.0.read_at_once(iova, buf)
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        // Who looks on does not write.
        Err(DmaError { iova, len: data.len() })
    }

    fn reaches(&self, iova: u64, len: usize) -> bool {
        self.0.reaches(iova, len)
    }
}

fn overlaps(iova: u64, len: usize, other: u64, other_len: usize) -> bool {
    let (last, other_last) = (iova.saturating_add(len as u64), other.saturating_add(other_len as u64));
    iova < other_last && other < last
}

impl OutstandingReads {
    pub(crate) fn new(memory: Arc<dyn GuestMemory>) -> Self {
        Self { beside: AtOnce(memory.clone()), memory, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what is accessed now is only planned: it is carried out later.
    pub(crate) fn is_planning(&self) -> bool {
        matches!(self.state().phase, Phase::Planned(..))
    }

    fn deferred(&self, iova: u64, len: usize) -> Option<&dyn DeferredReads> {
        self.memory.deferred().filter(|deferred| len > 0 && !deferred.answers_at_once(iova, len))
    }

    /// Whether further writes may be posted.
    pub(crate) fn takes_writes(&self) -> bool {
        self.memory.deferred().is_none_or(DeferredReads::takes_writes)
    }

    /// Runs `plan`, whose reads are those of `input`. Returns whether all of them are there. It is not run if too many
    /// other inputs have reads.
    pub(crate) fn plan(&self, input: InputId, plan: impl FnOnce()) -> bool {
        let state = self.state();
        if state.inputs.len() >= MAX_INPUTS && !state.inputs.contains_key(&input) {
            return false;
        }
        drop(state);
        let before = std::mem::replace(&mut self.state().phase, Phase::Planned(input, false));
        plan();
        let planned = std::mem::replace(&mut self.state().phase, before);
        planned == Phase::Planned(input, false)
    }

    /// Of the plan that runs: whether all that it has read so far is there.
    pub(crate) fn all_there(&self) -> bool {
        !matches!(self.state().phase, Phase::Planned(_, true))
    }

    /// What is read from now on is of `input`. Returns what [`OutstandingReads::end`] takes.
    pub(crate) fn begin(&self, input: InputId) -> Begun {
        let before = std::mem::replace(&mut self.state().phase, Phase::CarriedOut(input));
        Begun { input, before }
    }

    /// The input was carried out: its answers are dropped.
    pub(crate) fn end(&self, begun: Begun) {
        let mut state = self.state();
        state.phase = begun.before;
        drop_reads(&mut state, begun.input);
    }

    /// The input is not carried out any more.
    pub(crate) fn give_up(&self, input: InputId) {
        drop_reads(&mut self.state(), input);
    }

    /// Whether a read of the input that is carried out now finds its bytes.
    pub(crate) fn is_there(&self, iova: u64, len: usize) -> bool {
        if self.deferred(iova, len).is_none() {
            return true;
        }
        let state = self.state();
        let Phase::CarriedOut(input) = state.phase else { return false };
        matches!(state.reads.get(&(input, iova, len)), Some(Read::Answered(_)))
    }

    /// The inputs whose reads are kept: a bounded number.
    pub(crate) fn inputs(&self) -> Vec<InputId> {
        self.state().inputs.keys().copied().collect()
    }

    /// Whether answers to `input` are on their way.
    pub(crate) fn waits(&self, input: InputId) -> bool {
        self.state().of(input).any(|(_, read)| matches!(read, Read::Sent { .. }))
    }

    /// Takes the answers that came; `failed` is told of writes that were refused. Returns the inputs that the answers are for.
    pub(crate) fn take_answers(&self, mut failed: impl FnMut(DmaError)) -> BTreeSet<InputId> {
        let mut inputs = BTreeSet::new();
        let Some(deferred) = self.memory.deferred() else { return inputs };
        while let Some(answer) = deferred.next_answer() {
            match answer {
                Answer::WriteFailed(why) => failed(why),
                Answer::Read { ticket, data } => {
                    let mut state = self.state();
                    let Some(key) = state.tickets.remove(&ticket) else { continue };
                    let (input, iova, len) = key;
                    inputs.insert(input);
                    let data = data.and_then(|data| match data.len() == len {
                        true => Ok(data),
                        false => Err(DmaError { iova, len }),
                    });
                    match state.reads.get(&key) {
                        Some(Read::Sent { ticket: t, old: false }) if *t == ticket => {
                            state.insert(key, Read::Answered(data));
                        }
                        Some(Read::Sent { ticket: t, old: true }) if *t == ticket => {
                            state.remove(&key);
                        }
                        _ => {}
                    }
                }
            }
        }
        inputs
    }

    /// Nobody waits for anything any more.
    pub(crate) fn reset(&self) {
        if let Some(deferred) = self.memory.deferred() {
            deferred.forget();
        }
        let mut state = self.state();
        state.reads.clear();
        state.inputs.clear();
        state.tickets.clear();
    }

    /// Reads of inputs that were carried out without having been planned: 0, or the plan is wrong.
    pub(crate) fn unforeseen(&self) -> u64 {
        self.state().unforeseen
    }

    /// Asks for a read of an input that is planned.
    fn ask(&self, state: &mut State, deferred: &dyn DeferredReads, key: Key) -> Result<(), DmaError> {
        let (input, iova, len) = key;
        if state.inputs.get(&input).is_some_and(|reads| *reads >= MAX_READS) {
            let why = DmaError { iova, len };
            state.insert(key, Read::Answered(Err(why)));
            return Err(why);
        }
        let ticket = state.next_ticket;
        match deferred.ask(ticket, iova, len) {
            Asked::OnItsWay => {
                state.next_ticket += 1;
                state.tickets.insert(ticket, key);
                state.insert(key, Read::Sent { ticket, old: false });
            }
            Asked::Busy => {}
            Asked::Failed(why) => {
                state.insert(key, Read::Answered(Err(why)));
                return Err(why);
            }
        }
        state.phase = Phase::Planned(input, true);
        Ok(())
    }
}

/// Memory for a plan that only wants to know what will be read: it reads by [`GuestMemory::touch`].
pub(crate) struct Touched<'a>(pub(crate) &'a dyn GuestMemory);

impl GuestMemory for Touched<'_> {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.0.touch(iova, buf)
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        self.0.write(iova, data)
    }
}

/// What [`OutstandingReads::begin`] found.
#[must_use]
pub(crate) struct Begun {
    input: InputId,
    before: Phase,
}

/// A read for which nobody has asked: a fault of the plan, not of the guest.
fn unforeseen(state: &mut State, iova: u64, len: usize) -> DmaError {
    state.unforeseen += 1;
    if state.unforeseen == 1 {
        tracing::error!("a read of {len} bytes at {iova:#x} was not planned");
    }
    DmaError { iova, len }
}

fn drop_reads(state: &mut State, input: InputId) {
    let keys: Vec<Key> = state.of(input).map(|(key, _)| *key).collect();
    for key in keys {
        if let Some(Read::Sent { ticket, .. }) = state.remove(&key) {
            state.tickets.remove(&ticket);
        }
    }
}

impl GuestMemory for OutstandingReads {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len();
        let Some(deferred) = self.deferred(iova, len) else { return self.memory.read(iova, buf) };
        let state = &mut *self.state();
        match state.phase {
            Phase::Planned(input, _) => {
                let key = (input, iova, len);
                match state.reads.get(&key) {
                    Some(Read::Answered(Ok(data))) => buf.copy_from_slice(data),
                    Some(Read::Answered(Err(why))) => return Err(*why),
                    Some(Read::Sent { .. }) => {
                        state.phase = Phase::Planned(input, true);
                        buf.fill(0);
                    }
                    None => {
                        buf.fill(0);
                        return self.ask(state, deferred, key);
                    }
                }
                Ok(())
            }
            Phase::CarriedOut(input) => match state.reads.get(&(input, iova, len)) {
                Some(Read::Answered(Ok(data))) => {
                    buf.copy_from_slice(data);
                    Ok(())
                }
                Some(Read::Answered(Err(why))) => Err(*why),
                _ => Err(unforeseen(state, iova, len)),
            },
            Phase::Nobody => Err(unforeseen(state, iova, len)),
        }
    }

    fn touch(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        match self.deferred(iova, buf.len()) {
            None => Ok(()),
            Some(_) => self.read(iova, buf),
        }
    }

    fn is_mapped(&self, iova: u64, len: usize) -> bool {
        self.memory.is_mapped(iova, len)
    }

    fn is_unwatched(&self, iova: u64, len: usize) -> bool {
        // Answers that are kept are to be asked for anew at once.
        self.state().reads.is_empty() && self.memory.is_unwatched(iova, len)
    }

    fn reaches(&self, iova: u64, len: usize) -> bool {
        self.memory.reaches(iova, len)
    }

    fn aside(&self) -> Option<&dyn GuestMemory> {
        Some(self.memory.aside().unwrap_or(&self.beside))
    }

    fn copy_from(&self, iova: u64, source: &dyn GuestMemory, from: u64, len: usize) -> Result<(), DmaError> {
        let state = self.state();
        if matches!(state.phase, Phase::Planned(..)) {
            return Ok(());
        }
        // Who keeps answers from there needs to know the bytes.
        let kept = state.reads.keys().any(|&(_, at, n)| overlaps(iova, len, at, n));
        drop(state);
        if !kept {
            return self.memory.copy_from(iova, source, from, len);
        }
        let mut bytes = vec![0; len];
        source.read(from, &mut bytes)?;
        self.write(iova, &bytes)
    }

    /// The memory's own: what passes through needs nobody between.
    fn as_any(&self) -> Option<&dyn Any> {
        self.memory.as_any()
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        let state = &mut *self.state();
        let current = match state.phase {
            Phase::Planned(..) => return Ok(()),
            Phase::CarriedOut(input) => Some(input),
            Phase::Nobody => None,
        };
        self.memory.write(iova, data)?;
        let mut dropped = Vec::new();
        state.reads.retain(|&(input, at, len), read| {
            if !overlaps(iova, data.len(), at, len) {
                return true;
            }
            match read {
                Read::Sent { old, .. } => *old = true,
                // What it reads again of what it has written itself is new.
                Read::Answered(Ok(bytes)) if Some(input) == current => {
                    let skip = iova.saturating_sub(at) as usize;
                    let from = data.iter().skip(at.saturating_sub(iova) as usize);
                    bytes.iter_mut().skip(skip).zip(from).for_each(|(to, byte)| *to = *byte);
                }
                Read::Answered(_) if Some(input) == current => {}
                Read::Answered(_) => {
                    dropped.push(input);
                    return false;
                }
            }
            true
        });
        dropped.into_iter().for_each(|input| state.forget_one(input));
        Ok(())
    }
}
