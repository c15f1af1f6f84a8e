//! What a flow posts, and what has to come of each request.

use super::net::{End, Layout, SOURCE_EXTRA};
use super::{Fault, Service};
use crate::seeded::Random;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
}

/// A request of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    /// Where its data starts in the source region: the sender's, or for reads the peer's.
    pub(super) start: usize,
    /// Inbound slot at the peer, or own result slot.
    pub(super) slot: usize,
    pub(super) signaled: bool,
    /// Atomics: the word's value before and after.
    pub(super) before: u64,
    pub(super) after: u64,
    /// Compare and swap: what it compares with.
    pub(super) compare: u64,
}

impl Op {
    /// Whether the peer is told of it.
    pub(super) const fn is_told(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::SendImm | Kind::WriteImm)
    }

    pub(super) const fn has_imm(&self) -> bool {
        matches!(self.kind, Kind::SendImm | Kind::WriteImm)
    }

    /// Its data, from the source region of the end that has it.
    pub(super) fn data<'a>(&self, source: &'a [u8], layout: &Layout) -> &'a [u8] {
        source.get(self.start..self.start + layout.message).unwrap_or_default()
    }
}

/// What a fetch and add of request `k` adds: carries into the upper half.
pub(super) const fn addend(k: usize) -> u64 {
    (k as u64 + 1) * 0x4000_0001
}

/// The requests of one flow; each kind occurs as often as the others, in random order.
pub(super) fn plan(service: Service, count: usize, window: usize, random: &mut Random) -> Vec<Op> {
    use Kind::{CompareSwap, FetchAdd, Read, Send, SendImm, Write, WriteImm};
    let kinds: &[Kind] = match service {
        Service::Rc => &[Send, SendImm, Write, WriteImm, Read, FetchAdd, CompareSwap],
        Service::Uc => &[Send, SendImm, Write, WriteImm],
        Service::Ud => &[Send, SendImm],
    };
    let mut order: Vec<Kind> = (0..count).map(|k| kinds[k % kinds.len()]).collect();
    for k in (1..count).rev() {
        order.swap(k, random.below(k + 1));
    }
    let (mut counter, mut word, mut writes) = (0u64, 0u64, 0);
    let mut ops = Vec::new();
    for (k, kind) in order.into_iter().enumerate() {
        let mut op = Op {
            kind,
            start: random.below(SOURCE_EXTRA),
            slot: k % window,
            signaled: k % window == window - 1 || k + 1 == count || random.one_in(2),
            before: 0,
            after: 0,
            compare: 0,
        };
        match kind {
            FetchAdd => {
                op.before = counter;
                counter = counter.wrapping_add(addend(k));
                op.after = counter;
            }
            CompareSwap => {
                op.before = word;
                op.compare = if random.one_in(3) { !word } else { word };
                word = if op.compare == word { random.bits() } else { word };
                op.after = word;
            }
            // Nothing repairs these: each has a place of its own, which is looked at when all is over.
            Write | WriteImm if service == Service::Uc => {
                op.slot = writes;
                writes += 1;
            }
            _ => {}
        }
        ops.push(op);
    }
    ops
}

/// Inbound slots that unreliable writes of a plan of `count` requests need.
pub(super) const fn unreliable_writes(count: usize) -> usize {
    count.div_ceil(4) * 2
}

/// What an unreliable service told a receiver.
pub(super) struct Told<'a> {
    pub(super) imm: Option<u32>,
    pub(super) is_write: bool,
    pub(super) data: &'a [u8],
}

/// Finds the request that a receiver on an unreliable service was told of: a whole message that was sent, and if
/// the network keeps the order and makes no copies, a later one than `last`.
pub(super) fn recognise(
    told: &Told<'_>,
    posted: &[Op],
    last: Option<usize>,
    fault: Fault,
    sender: &End,
    layout: &Layout,
) -> Result<usize, String> {
    let from = if fault.repeats() { 0 } else { last.map_or(0, |k| k + 1) };
    let kind = match (told.is_write, told.imm) {
        (true, _) => Kind::WriteImm,
        (false, Some(_)) => Kind::SendImm,
        (false, None) => Kind::Send,
    };
    // What a write brought is not in the receive buffer.
    let is_it = |op: &Op| op.kind == kind && (told.is_write || op.data(&sender.source, layout) == told.data);
    let mut candidates = posted.iter().enumerate().skip(from);
    let found = match told.imm {
        Some(imm) => candidates.find(|(k, op)| *k == imm as usize && is_it(op)),
        None => candidates.find(|(_, op)| is_it(op)),
    };
    found.map(|(k, _)| k).ok_or_else(|| {
        let what = if told.is_write { "a write" } else { "a send" };
        let later = if fault.repeats() { "" } else { ", or not in this order" };
        format!(
            "{what} of {} bytes with immediate {:?} arrived that was not sent{later}",
            told.data.len(),
            told.imm
        )
    })
}
