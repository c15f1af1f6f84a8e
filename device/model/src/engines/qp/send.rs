//! Send queues: which WQEs are posted, fetched and executed, and which completions the host has not seen yet.
//!
//! Source: PRM "Send Queue", "Doorbell Records", "Posting a Work Request to a Work Queue".

use std::collections::VecDeque;

use hca_firmware::QCounter;
use hca_spec::cqe::{Cqe, Syndrome};
use hca_spec::ids::Qpn;
use hca_spec::wqe::{Ctrl, DS_UNIT, WQEBB};

use super::wqe::BadWqe;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;
use crate::ground::timing::Mark;

/// Largest send WQE in bytes: DS has 6 bits.
pub(crate) const MAX_WQE: usize = 64 * DS_UNIT;

/// A part of the send queue that was fetched, or came with a doorbell.
#[derive(Debug, Clone, Copy)]
struct Fetch {
    /// First basic block beyond it.
    end: u16,
    /// When it is on the chip.
    at: Ps,
    /// What the WQE cache knows it by, if it came with a doorbell: then others may take its place there before it is
    /// executed. What is fetched lies in a buffer until then, too.
    mark: Option<Mark>,
    /// How many basic blocks had come into the cache before it: [`crate::units::Units::wqes_taken`].
    came: u64,
}

/// A completion that the host does not see yet.
#[derive(Debug)]
pub(crate) struct DeferredCompletion {
    /// When it does.
    at: Ps,
    pub(crate) cqe: Cqe,
    /// What comes with it.
    pub(crate) data: Vec<u8>,
}

/// The moving parts of a send queue. Counters are in WQE basic blocks, modulo 2^16.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// First basic block not fetched yet.
    pub(crate) head: u16,
    /// First basic block not posted yet.
    pub(crate) posted: u16,
    /// First basic block beyond the WQEs that doorbells have named; `None`: the last one [named none](names_wqe), or none has come.
    pub(crate) rung: Option<u16>,
    /// What the doorbell record counts from that basic block on waits for its doorbell, since then.
    withheld: Option<(u16, Ps)>,
    /// A turn is scheduled.
    pub(crate) turn: bool,
    /// That turn was put off, for packets that arrive.
    pub(crate) yielded: bool,
    /// The WQE at `head` was looked at, and waits for responses to others.
    pub(crate) waits_for_responses: bool,
    /// The WQE at `head`, or the begin of it, as it came by BlueFlame.
    pub(crate) copy: Option<Box<[u8]>>,
    /// What lies on the chip from the head on, or is on its way there. This is about time only: bytes are read when they
    /// are parsed.
    fetched: VecDeque<Fetch>,
    /// Something of that came with its doorbell, since all of it was fetched last.
    marked: bool,
    /// What the WQE cache knows the WQE at the head by, if it is there.
    pub(crate) mark: Option<Mark>,
    /// How many basic blocks had come into the WQE cache before that at the head.
    pub(crate) came: u64,
    /// Completions that the host does not see before their time.
    sent: VecDeque<DeferredCompletion>,
    /// The doorbell record counts more than what doorbells have said.
    pub(crate) behind: bool,
    /// The completion of what is executed last is not seen before.
    pub(crate) due: Ps,
}

impl SendQueue {
    /// Basic blocks that are posted and not executed.
    pub(crate) fn waiting(&self) -> u16 {
        self.posted.wrapping_sub(self.head)
    }

    /// Forgets what was fetched of before the head. Returns the first basic block that was not fetched.
    pub(crate) fn first_unfetched(&mut self) -> u16 {
        let (waiting, head) = (self.waiting(), self.head);
        let passed = |f: &mut Fetch| !(1..=waiting).contains(&f.end.wrapping_sub(head));
        while self.fetched.pop_front_if(passed).is_some() {}
        self.marked &= !self.fetched.is_empty();
        self.fetched.back().map_or(head, |f| f.end)
    }

    /// Whether anything that is on the chip may have come with its doorbell: then others may have driven it out.
    pub(crate) fn has_marks(&self) -> bool {
        self.marked
    }

    /// The basic blocks and the mark of the `n`th part from the head on that is on the chip or on its way there.
    pub(crate) fn part(&self, n: usize) -> Option<(u16, Option<Mark>)> {
        let known = self.fetched.get(n)?;
        let begin = n.checked_sub(1).and_then(|before| self.fetched.get(before)).map_or(self.head, |f| f.end);
        Some((known.end.wrapping_sub(begin), known.mark))
    }

    /// The `n`th part was driven out of the cache and is read again: it is there at `at`, after `came` basic blocks.
    pub(crate) fn read_again(&mut self, n: usize, at: Ps, came: u64) {
        if let Some(known) = self.fetched.get_mut(n) {
            (known.at, known.mark, known.came) = (at, None, came);
        }
    }

    /// Basic blocks to fetch next, from `from` on: at most `most` of them, if fewer than `fetches` parts are there.
    pub(crate) fn next_fetch(&self, from: u16, most: u16, fetches: usize) -> Option<u16> {
        let blocks = self.posted.wrapping_sub(from).min(most);
        (self.fetched.len() < fetches && blocks > 0).then_some(blocks)
    }

    /// What lies up to `end` is on the chip at `at`, and in the WQE cache after `came` basic blocks; `mark`: it came with a
    /// doorbell.
    pub(crate) fn fetching(&mut self, end: u16, at: Ps, mark: Option<Mark>, came: u64) {
        self.marked |= mark.is_some();
        self.fetched.push_back(Fetch { end, at, mark, came });
    }

    /// When the WQE at the head is on the chip.
    pub(crate) fn head_at(&mut self) -> Option<Ps> {
        let first = self.fetched.front()?;
        (self.mark, self.came) = (first.mark, first.came);
        Some(first.at)
    }

    /// Whether everything that was posted is fetched and parsed.
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.posted
    }

    /// Whether the host sees all completions.
    pub(crate) fn all_seen(&self) -> bool {
        self.sent.is_empty()
    }

    /// How many completions the host does not see yet.
    pub(crate) fn deferred(&self) -> usize {
        self.sent.len()
    }

    /// A completion is to be seen at `at`, behind those before it. Returns when it will be.
    pub(crate) fn defer_completion(&mut self, at: Ps, cqe: Cqe, data: Vec<u8>) -> Ps {
        let at = self.sent.back().map_or(at, |last| at.max(last.at));
        self.sent.push_back(DeferredCompletion { at, cqe, data });
        at
    }

    /// The next completion that is to be seen by `until`.
    pub(crate) fn next_due_completion(&mut self, until: Ps) -> Option<DeferredCompletion> {
        self.sent.pop_front_if(|c| c.at <= until)
    }

    /// A WQE came with its doorbell, as this copy; the doorbell record counts up to `posted`, and `known` basic blocks were
    /// waiting before. Moves the queue's end to what the doorbell says: the record may count WQEs whose own doorbells are
    /// still on their way. Returns whether the record counts more than that.
    pub(crate) fn rung_with(&mut self, copy: &[u8], known: u16) -> bool {
        self.ends_at(copy_index(copy).wrapping_add(copy_blocks(copy)), known)
    }

    /// The same with all doorbells that have come, at `now`. What they have not named within `long` of its being counted is taken without.
    pub(crate) fn rung_before(&mut self, known: u16, now: Ps, long: Ps) -> bool {
        let counted = self.posted;
        let withheld = self.withheld.take();
        if !self.rung.is_some_and(|end| self.ends_at(end, known)) {
            return false;
        }
        let since = withheld.filter(|(from, _)| *from == self.posted).map_or(now, |(_, since)| since);
        if now >= since + long {
            self.posted = counted;
            return false;
        }
        self.withheld = Some((self.posted, since));
        true
    }

    /// The queue's end is what a doorbell says, but not before the `known` blocks that were waiting. Returns whether more is posted.
    fn ends_at(&mut self, end: u16, known: u16) -> bool {
        let counted = self.waiting();
        // One that says nothing new is late: its WQE is fetched or executed already.
        let rung = end.wrapping_sub(self.head);
        let rung = if rung <= counted { rung.max(known) } else { known };
        if rung < counted {
            self.posted = self.head.wrapping_add(rung);
        }
        rung < counted
    }

    /// Whether a WQE that came with its doorbell stays on the chip: if it is whole, follows what lies there, and that is
    /// less than `most` bytes.
    pub(crate) fn keeps(&mut self, copy: &[u8], most: usize) -> bool {
        let (index, blocks) = (copy_index(copy), copy_blocks(copy));
        let ahead = usize::from(index.wrapping_sub(self.head)) * WQEBB;
        index == self.first_unfetched()
            && index != self.posted
            && ahead < most
            && usize::from(blocks) * WQEBB <= copy.len()
    }
}

/// The index that a WQE that came by BlueFlame says it has.
pub(crate) fn copy_index(copy: &[u8]) -> u16 {
    Ctrl::from_prefix_or_zero(copy).get(Ctrl::WQE_INDEX) as u16
}

/// Basic blocks that a WQE that came by BlueFlame says it has.
pub(crate) fn copy_blocks(copy: &[u8]) -> u16 {
    blocks_of(&Ctrl::from_prefix_or_zero(copy))
}

/// Whether a doorbell is the begin of a WQE, as it is to be: one that has no size at least rings for what the record counts.
pub(crate) fn names_wqe(begin: &[u8]) -> bool {
    Ctrl::from_prefix_or_zero(begin).get(Ctrl::DS) > 0
}

/// Basic blocks of a WQE, at least one.
pub(crate) fn blocks_of(ctrl: &Ctrl) -> u16 {
    (ctrl.get(Ctrl::DS) as usize * DS_UNIT).div_ceil(WQEBB).max(1) as u16
}

/// Checks the control segment of the next WQE of queue pair `qpn`, of which `available` basic blocks are posted in a queue
/// of 2^`log_size`. Returns its bytes and basic blocks.
///
/// # Errors
/// Why the WQE can't be executed.
pub(crate) fn check_control(
    ctrl: &Ctrl,
    qpn: Qpn,
    available: u16,
    log_size: u32,
) -> Result<(usize, u16), BadWqe> {
    if u32::from(available) > 1 << log_size {
        return Err(BadWqe("the doorbell record's send counter is more than a whole queue ahead"));
    }
    if ctrl.get(Ctrl::QPN) != qpn.0 {
        return Err(BadWqe("the control segment names another QP"));
    }
    let size = ctrl.get(Ctrl::DS) as usize * DS_UNIT;
    if size < Ctrl::SIZE {
        return Err(BadWqe("DS is zero"));
    }
    let blocks = size.div_ceil(WQEBB) as u16;
    if blocks > available {
        return Err(BadWqe("the WQE is longer than what was posted"));
    }
    Ok((size, blocks))
}

/// The counters that a send which completes in error moves: the sum, and that of its cause.
pub(crate) fn error_counters(syndrome: Syndrome) -> [Option<QCounter>; 2] {
    let cause = match syndrome {
        Syndrome::WorkRequestFlushed => return [Some(QCounter::ReqCqeFlushError), None],
        Syndrome::LocalLength => Some(QCounter::ReqLocalLengthError),
        Syndrome::LocalQpOperation => Some(QCounter::LocalOperationError),
        Syndrome::LocalProtection => Some(QCounter::ReqLocalProtection),
        Syndrome::MemoryWindowBind => Some(QCounter::ReqMwBinding),
        Syndrome::BadResponse => Some(QCounter::ReqBadResponse),
        Syndrome::RemoteInvalidRequest => Some(QCounter::ReqRemoteInvalidRequest),
        Syndrome::RemoteAccess => Some(QCounter::ReqRemoteAccessErrors),
        Syndrome::RemoteOperation => Some(QCounter::ReqRemoteOperationErrors),
        Syndrome::TransportRetryExceeded => Some(QCounter::ReqTransportRetriesExceeded),
        Syndrome::LocalAccess | Syndrome::RnrRetryExceeded | Syndrome::RemoteAborted => None,
    };
    [Some(QCounter::ReqCqeError), cause]
}

impl Rebase for Fetch {
    fn rebase(&mut self, by: Ps) {
        let Self { at, end: _, mark: _, came: _ } = self;
        at.rebase(by);
    }
}

impl Rebase for DeferredCompletion {
    fn rebase(&mut self, by: Ps) {
        let Self { at, cqe: _, data: _ } = self;
        at.rebase(by);
    }
}

impl Rebase for SendQueue {
    fn rebase(&mut self, by: Ps) {
        let Self {
            fetched,
            sent,
            due,
            withheld,
            head: _,
            posted: _,
            rung: _,
            turn: _,
            yielded: _,
            copy: _,
            marked: _,
            mark: _,
            came: _,
            behind: _,
            waits_for_responses: _,
        } = self;
        fetched.rebase(by);
        sent.rebase(by);
        due.rebase(by);
        if let Some((_, since)) = withheld {
            since.rebase(by);
        }
    }
}
