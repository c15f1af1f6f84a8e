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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InputId(pub(crate) u64);

/// A read of an input: where, how many bytes.
type Key = (u64, usize);

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

/// The reads of one input.
#[derive(Debug, Default)]
struct Reads {
    reads: BTreeMap<Key, Read>,
    /// How many of them are asked for and not answered.
    sent: usize,
    /// What the input needs beside was not asked for, as the memory took no more.
    cut: bool,
}

impl Reads {
    fn insert(&mut self, key: Key, read: Read) {
        self.sent += usize::from(matches!(read, Read::Sent { .. }));
        let before = self.reads.insert(key, read);
        self.sent -= usize::from(matches!(before, Some(Read::Sent { .. })));
    }

    fn remove(&mut self, key: &Key) -> Option<Read> {
        let read = self.reads.remove(key)?;
        self.sent -= usize::from(matches!(read, Read::Sent { .. }));
        Some(read)
    }
}

/// Where reads are, of all inputs, so that a write finds those that it overlaps without a look at others. They are by the power of two that is
/// not less than their length: of each such class only those count that begin less than that before the write. Others among these are few: an
/// input has few long reads, as all together are no longer than what it moves.
#[derive(Debug, Default)]
struct Places(BTreeMap<u32, BTreeSet<(u64, usize, InputId)>>);

impl Places {
    fn class(len: usize) -> u32 {
        len.next_power_of_two().trailing_zeros()
    }

    fn insert(&mut self, input: InputId, (at, len): Key) {
        self.0.entry(Self::class(len)).or_default().insert((at, len, input));
    }

    fn remove(&mut self, input: InputId, (at, len): Key) {
        let class = Self::class(len);
        if let Some(of) = self.0.get_mut(&class) {
            of.remove(&(at, len, input));
            if of.is_empty() {
                self.0.remove(&class);
            }
        }
    }

    /// Reads that are looked at for a write there.
    fn near(&self, iova: u64, len: usize) -> impl Iterator<Item = (InputId, Key)> {
        let end = iova.saturating_add(len as u64);
        let near = self.0.iter().flat_map(move |(class, of)| {
            let before = 1u64.checked_shl(*class).unwrap_or(u64::MAX) - 1;
            of.range((iova.saturating_sub(before), 0, InputId(0))..(end, 0, InputId(0)))
        });
        near.map(|&(at, n, input)| (input, (at, n)))
    }

    /// Reads of which some bytes are among these.
    fn overlapping(&self, iova: u64, len: usize) -> impl Iterator<Item = (InputId, Key)> {
        self.near(iova, len).filter(move |(_, (at, n))| overlaps(iova, len, *at, *n))
    }
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// The reads of each input that has any.
    inputs: BTreeMap<InputId, Reads>,
    places: Places,
    tickets: BTreeMap<u64, (InputId, Key)>,
    next_ticket: u64,
    /// The memory took no further read since answers came last.
    busy: bool,
    unforeseen: u64,
}

impl State {
    fn get(&self, input: InputId, key: Key) -> Option<&Read> {
        self.inputs.get(&input)?.reads.get(&key)
    }

    fn insert(&mut self, input: InputId, key: Key, read: Read) {
        self.places.insert(input, key);
        self.inputs.entry(input).or_default().insert(key, read);
    }

    fn remove(&mut self, input: InputId, key: Key) {
        let Some(reads) = self.inputs.get_mut(&input) else { return };
        if reads.remove(&key).is_some() {
            self.places.remove(input, key);
        }
        if reads.reads.is_empty() {
            self.inputs.remove(&input);
        }
    }

    /// Nothing of an input is kept any more.
    fn forget(&mut self, input: InputId) {
        for (key, read) in self.inputs.remove(&input).unwrap_or_default().reads {
            self.places.remove(input, key);
            if let Read::Sent { ticket, .. } = read {
                self.tickets.remove(&ticket);
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
        let mut state = self.state();
        if state.inputs.len() >= MAX_INPUTS && !state.inputs.contains_key(&input) {
            return false;
        }
        if let Some(reads) = state.inputs.get_mut(&input) {
            reads.cut = false;
        }
        let before = std::mem::replace(&mut state.phase, Phase::Planned(input, false));
        drop(state);
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
        state.forget(begun.input);
    }

    /// The input is not carried out any more.
    pub(crate) fn give_up(&self, input: InputId) {
        self.state().forget(input);
    }

    /// Whether a read of the input that is carried out now finds its bytes.
    pub(crate) fn is_there(&self, iova: u64, len: usize) -> bool {
        if self.deferred(iova, len).is_none() {
            return true;
        }
        let state = self.state();
        let Phase::CarriedOut(input) = state.phase else { return false };
        matches!(state.get(input, (iova, len)), Some(Read::Answered(_)))
    }

    /// The inputs whose reads are kept: a bounded number.
    pub(crate) fn inputs(&self) -> BTreeSet<InputId> {
        self.state().inputs.keys().copied().collect()
    }

    /// Whether answers to `input` are on their way.
    pub(crate) fn waits(&self, input: InputId) -> bool {
        self.state().inputs.get(&input).is_some_and(|reads| reads.sent > 0)
    }

    /// Whether another plan of an input can come to more than the one before it: answers came, and the memory takes what it needs beside.
    pub(crate) fn may_go_on(&self, input: InputId) -> bool {
        let state = self.state();
        state.inputs.get(&input).is_none_or(|reads| reads.sent == 0 && !(reads.cut && state.busy))
    }

    /// Takes the answers that came; `failed` is told of writes that were refused.
    pub(crate) fn take_answers(&self, mut failed: impl FnMut(DmaError)) {
        let Some(deferred) = self.memory.deferred() else { return };
        self.state().busy = false;
        while let Some(answer) = deferred.next_answer() {
            match answer {
                Answer::WriteFailed(why) => failed(why),
                Answer::Read { ticket, data } => {
                    let mut state = self.state();
                    let Some((input, key)) = state.tickets.remove(&ticket) else { continue };
                    let (iova, len) = key;
                    let data = data.and_then(|data| match data.len() == len {
                        true => Ok(data),
                        false => Err(DmaError { iova, len }),
                    });
                    match state.get(input, key) {
                        Some(Read::Sent { ticket: t, old: false }) if *t == ticket => {
                            state.insert(input, key, Read::Answered(data));
                        }
                        Some(Read::Sent { ticket: t, old: true }) if *t == ticket => {
                            state.remove(input, key);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Nobody waits for anything any more.
    pub(crate) fn reset(&self) {
        if let Some(deferred) = self.memory.deferred() {
            deferred.forget();
        }
        let mut state = self.state();
        state.inputs.clear();
        state.places = Places::default();
        state.tickets.clear();
        state.busy = false;
    }

    /// Reads of inputs that were carried out without having been planned: 0, or the plan is wrong.
    pub(crate) fn unforeseen(&self) -> u64 {
        self.state().unforeseen
    }

    /// Asks for a read of an input that is planned.
    ///
    /// # Errors
    /// It fails; or the memory takes no more, which ends the plan: what else it would read is asked for when it is made again.
    fn ask(
        &self,
        state: &mut State,
        deferred: &dyn DeferredReads,
        input: InputId,
        key: Key,
    ) -> Result<(), DmaError> {
        let (iova, len) = key;
        let why = DmaError { iova, len };
        if state.inputs.get(&input).is_some_and(|reads| reads.reads.len() >= MAX_READS) {
            state.insert(input, key, Read::Answered(Err(why)));
            return Err(why);
        }
        let ticket = state.next_ticket;
        let asked = match deferred.ask(ticket, iova, len) {
            Asked::OnItsWay => {
                state.next_ticket += 1;
                state.tickets.insert(ticket, (input, key));
                state.insert(input, key, Read::Sent { ticket, old: false });
                Ok(())
            }
            Asked::Busy => {
                state.busy = true;
                if let Some(reads) = state.inputs.get_mut(&input) {
                    reads.cut = true;
                }
                Err(why)
            }
            Asked::Failed(why) => {
                state.insert(input, key, Read::Answered(Err(why)));
                return Err(why);
            }
        };
        state.phase = Phase::Planned(input, true);
        asked
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

impl GuestMemory for OutstandingReads {
    fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len();
        let Some(deferred) = self.deferred(iova, len) else { return self.memory.read(iova, buf) };
        let state = &mut *self.state();
        match state.phase {
            Phase::Planned(input, _) => {
                let key = (iova, len);
                match state.get(input, key) {
                    Some(Read::Answered(Ok(data))) => buf.copy_from_slice(data),
                    Some(Read::Answered(Err(why))) => return Err(*why),
                    Some(Read::Sent { .. }) => {
                        state.phase = Phase::Planned(input, true);
                        buf.fill(0);
                    }
                    None => {
                        buf.fill(0);
                        return self.ask(state, deferred, input, key);
                    }
                }
                Ok(())
            }
            Phase::CarriedOut(input) => match state.get(input, (iova, len)) {
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
        self.state().inputs.is_empty() && self.memory.is_unwatched(iova, len)
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
        let kept = state.places.overlapping(iova, len).next().is_some();
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
        if state.inputs.is_empty() {
            return Ok(());
        }
        let overlapping: Vec<_> = state.places.overlapping(iova, data.len()).collect();
        for (input, key) in overlapping {
            let read = state.inputs.get_mut(&input).and_then(|reads| reads.reads.get_mut(&key));
            let (at, _) = key;
            match read {
                Some(Read::Sent { old, .. }) => *old = true,
                // What it reads again of what it has written itself is new.
                Some(Read::Answered(Ok(bytes))) if Some(input) == current => {
                    let skip = iova.saturating_sub(at) as usize;
                    let from = data.iter().skip(at.saturating_sub(iova) as usize);
                    bytes.iter_mut().skip(skip).zip(from).for_each(|(to, byte)| *to = *byte);
                }
                Some(Read::Answered(_)) if Some(input) == current => {}
                Some(Read::Answered(_)) => state.remove(input, key),
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::random::SplitMix64;

    /// What a write finds is what overlaps it, and it looks at little beside that, however many reads are kept.
    #[test]
    fn a_write_finds_what_it_overlaps() {
        let mut random = SplitMix64(3);
        let (mut places, mut all) = (Places::default(), BTreeSet::new());
        for input in 0..63u64 {
            // Thousands of bytes, and some longer pieces.
            let mut add = |at: u64, len: usize| {
                places.insert(InputId(input), (at, len));
                all.insert((InputId(input), (at, len)));
            };
            (0..500).for_each(|_| add(random.below(20_000), 1));
            (0..8).for_each(|_| add(random.below(20_000), 1 + random.below(600) as usize));
            add(random.below(20_000), 4096);
        }
        for _ in 0..300 {
            let (iova, len) = (random.below(24_000), 1 + random.below(64) as usize);
            let found: BTreeSet<_> = places.overlapping(iova, len).collect();
            let overlap = all.iter().filter(|(_, (at, n))| overlaps(iova, len, *at, *n));
            assert_eq!(found, overlap.copied().collect());
            let looked_at = places.near(iova, len).count();
            assert!(looked_at <= found.len() + 63 * 9, "{looked_at} for {}", found.len());
        }
        for (input, key) in std::mem::take(&mut all) {
            places.remove(input, key);
        }
        assert!(places.0.is_empty());
    }
}
