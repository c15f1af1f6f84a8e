//! Tag matching: the list of a shared receive queue, which entry a message is for, and what completions say of it.
//!
//! Entries are looked at in the order in which they were appended. A message that none is for is unexpected: it goes into a receive
//! WQE, and software may find a buffer for it that is in the list by then. So entries that are appended from then on are not looked
//! at before software has told that it has seen as many unexpected messages as came: only then is it certain that it knew of all of
//! them when it appended.
//!
//! Source: rdma-core "Hardware tag matching"; [`hca_spec::xrq`]. Estimates: messages that are shorter than their headers are without
//! a tag; announcements of more than one packet are unexpected.

use std::collections::VecDeque;

use hca_firmware::icm::{Matching, Srq, SrqKind};
use hca_spec::cqe::{Cqe, CqeOpcode};
use hca_spec::ids::{Cqn, Mkey, Pd, Srqn};
use hca_spec::queue::Srqc;
use hca_spec::wqe::SendOpcode;
use hca_spec::xrq::{APP_TAG_MATCHING, ListCqe, Rendezvous, TagHeader, TagSeg, app_op, list_op, message};
use zerocopy::FromBytes;

use super::recv::Receive;
use super::wqe::Wqe;
use super::{NO_USER_INDEX, QueuePair};
use crate::engines::pieces::{Inline, Piece, total};

/// Bytes of both headers of a message that announces data.
pub(crate) const HEADERS: usize = TagHeader::SIZE + Rendezvous::SIZE;
/// Announced data of one queue pair that waits to be fetched, at most: as many as there are entries in a list.
const MOST_OFFLOADS: usize = 128;

/// A buffer that waits for a message.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    index: u16,
    tag: u64,
    mask: u64,
    pieces: Vec<Piece>,
    /// It is looked at.
    active: bool,
}

/// The list of a shared receive queue.
#[derive(Debug)]
pub(crate) struct TagList {
    log_size: u32,
    rendezvous: bool,
    /// In the order in which they were appended.
    entries: VecDeque<Entry>,
    /// The entry that the next one is put into.
    next: u16,
    /// Unexpected messages that software has told it has seen, modulo 2^16.
    seen: u16,
    /// Unexpected messages that came, modulo 2^16.
    came: u16,
}

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Its tag means nothing.
    NoTag,
    /// No entry is for it.
    Unexpected,
    /// The entry of that index.
    Entry(u16),
}

/// Why the list can't be changed so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadChange(pub(crate) &'static str);

/// A queue with tag matching, as completions name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) srqn: Srqn,
    /// Entries' keys belong to this domain.
    pub(crate) pd: Pd,
    pub(crate) cqn: Cqn,
    /// Its number, or what its owner calls it.
    mark: u32,
}

/// What tag matching knows of a message that is received.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tagged {
    pub(crate) owner: Owner,
    /// [`app_op`] of its completion.
    op: u32,
    /// What it is about, if it has used an entry: the receive's index is the entry's.
    header: Option<TagHeader>,
}

/// What the adapter does by itself for a message that announced data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Offload {
    /// It fetches the data into the buffer of the entry that the work request's index says; then it tells the peer, whose headers
    /// these are.
    Fetch { owner: Owner, headers: [u8; HEADERS] },
    /// It tells the peer.
    Finish,
}

impl Owner {
    /// Of that shared receive queue, if it matches tags.
    pub(crate) fn of(srqn: Srqn, srq: &Srq) -> Option<Self> {
        (srq.kind == SrqKind::Xrq).then(|| Self {
            srqn,
            pd: Pd(srq.ctx.get(Srqc::PD)),
            cqn: Cqn(srq.ctx.get(Srqc::CQN)),
            mark: match srq.ctx.get(Srqc::USER_INDEX) {
                NO_USER_INDEX => srqn.0,
                index => index,
            },
        })
    }

    /// A completion of the queue.
    fn fill(&self, cqe: &mut Cqe, op: u32, index: u16) {
        cqe.set(Cqe::SRQN_USER_INDEX, self.mark).set(Cqe::APP, APP_TAG_MATCHING);
        cqe.set(Cqe::APP_OP, op).set(Cqe::APP_INFO, index.into());
    }
}

impl Tagged {
    fn message(owner: Owner, op: u32) -> Self {
        Self { owner, op, header: None }
    }

    /// Whether the message has used an entry.
    pub(crate) fn has_entry(&self) -> bool {
        self.header.is_some()
    }

    /// Says what there is to say in a completion about the message, whose receive has that index.
    pub(crate) fn tell(&self, cqe: &mut Cqe, index: u16) {
        let index = if self.has_entry() { index } else { 0 };
        self.owner.fill(cqe, self.op, index);
        if let Some(header) = self.header.filter(|_| self.op != app_op::EXPECTED) {
            *cqe.matched_mut() = header;
        }
    }
}

impl TagList {
    /// That of a shared receive queue, if it has one.
    pub(crate) fn new(srq: &Srq) -> Option<Self> {
        let Matching { log_size, rendezvous, next, seen, came } = srq.matching;
        let entries = VecDeque::new();
        (srq.kind == SrqKind::Xrq).then_some(Self { log_size, rendezvous, entries, next, seen, came })
    }

    /// Whether data that messages announce is fetched.
    pub(crate) fn fetches(&self) -> bool {
        self.rendezvous
    }

    /// What a message with these first bytes is for; `whole`: it is one packet.
    pub(crate) fn find(&self, first: &[u8], whole: bool) -> Found {
        let Ok((header, rest)) = TagHeader::read_from_prefix(first) else { return Found::NoTag };
        match header.get(TagHeader::OPCODE) {
            message::EAGER => {}
            message::RENDEZVOUS if rest.len() < Rendezvous::SIZE => return Found::NoTag,
            message::RENDEZVOUS if whole => {}
            message::RENDEZVOUS => return Found::Unexpected,
            _ => return Found::NoTag,
        }
        let tag = header.get(TagHeader::TAG);
        let entry = self.entries.iter().find(|entry| entry.active && tag & entry.mask == entry.tag);
        entry.map_or(Found::Unexpected, |entry| Found::Entry(entry.index))
    }

    /// An unexpected message came.
    pub(crate) fn unexpected(&mut self) {
        self.came = self.came.wrapping_add(1);
    }

    /// Takes an entry out. `None`: it is not there.
    pub(crate) fn take(&mut self, index: u16) -> Option<Vec<Piece>> {
        let at = self.entries.iter().position(|entry| entry.index == index)?;
        self.entries.remove(at).map(|entry| entry.pieces)
    }

    /// The buffer of an entry.
    pub(crate) fn pieces(&self, index: u16) -> Option<&[Piece]> {
        self.entries.iter().find(|entry| entry.index == index).map(|entry| &*entry.pieces)
    }

    /// Entries that wait for messages.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Changes the list as a work request says. Returns what is to be told, if it asks for that.
    ///
    /// # Errors
    /// Why it can't be changed so.
    pub(crate) fn change(
        &mut self,
        owner: &Owner,
        wqe: &Wqe,
        change: &TagSeg,
    ) -> Result<Option<Cqe>, BadChange> {
        if change.get(TagSeg::SW_CNT_VALID) == 1 {
            self.seen = change.get(TagSeg::SW_CNT) as u16;
        }
        let in_step = self.seen == self.came;
        if in_step {
            self.entries.iter_mut().for_each(|entry| entry.active = true);
        }
        let index = change.get(TagSeg::INDEX) as u16;
        let (op, index, done) = match change.get(TagSeg::OPCODE) {
            list_op::NOP => (app_op::NOP, 0, true),
            list_op::APPEND => {
                let own = self.append(wqe, change, in_step)?;
                self.next = index;
                (app_op::APPEND, own, true)
            }
            list_op::REMOVE => (app_op::REMOVE, index, self.take(index).is_some()),
            _ => return Err(BadChange("the change of the list is none that there is")),
        };
        if change.get(TagSeg::CQE_REQ) == 0 {
            return Ok(None);
        }
        let mut cqe = Cqe::new();
        cqe.set(Cqe::OPCODE, CqeOpcode::NoPacket as u32).set(Cqe::WQE_COUNTER, wqe.index.into());
        owner.fill(&mut cqe, op, index);
        let list = cqe.list_change_mut();
        list.set(ListCqe::SUCCESS, done.into()).set(ListCqe::HW_PHASE_CNT, self.came.into());
        Ok(Some(cqe))
    }

    /// Puts an entry where the one before it has said. Returns its index.
    fn append(&mut self, wqe: &Wqe, change: &TagSeg, active: bool) -> Result<u16, BadChange> {
        let index = self.next;
        if u32::from(index) >> self.log_size != 0 {
            return Err(BadChange("the entry that was named for the next one is beyond the list"));
        }
        if self.pieces(index).is_some() {
            return Err(BadChange("the entry that was named for the next one is in use"));
        }
        if wqe.pieces.iter().any(|piece| !piece.is_memory()) {
            return Err(BadChange("the buffer of an entry can't be in the WQE"));
        }
        let (tag, mask) = (change.get(TagSeg::TAG), change.get(TagSeg::MASK));
        self.entries.push_back(Entry { index, tag, mask, pieces: wqe.pieces.clone(), active });
        Ok(index)
    }

    /// Writes what moves into what commands know of it.
    pub(crate) fn write_back(&self, matching: &mut Matching) {
        (matching.next, matching.seen, matching.came) = (self.next, self.seen, self.came);
    }
}

impl Receive {
    /// The receive of a message that no entry is for: a WQE of the queue.
    pub(crate) fn untagged(self, owner: Owner, found: Found) -> Self {
        let op = if found == Found::NoTag { app_op::NO_TAG } else { app_op::UNEXPECTED };
        Self { tagged: Some(Tagged::message(owner, op)), ..self }
    }

    /// The receive of a message with these first bytes that an entry is for.
    pub(crate) fn entry(owner: Owner, index: u16, pieces: Vec<Piece>, first: &[u8]) -> Self {
        let header = Some(TagHeader::from_prefix_or_zero(first));
        let tagged = Tagged { header, ..Tagged::message(owner, app_op::CONSUMED_MSG) };
        let room = total(&pieces);
        Self { index, pieces: pieces.into(), room, pd: Some(owner.pd), xrc: None, tagged: Some(tagged) }
    }

    /// Whether it is an entry of a list.
    pub(crate) fn is_entry(&self) -> bool {
        self.tagged.is_some_and(|tagged| tagged.has_entry())
    }

    /// Whether the message announces data.
    pub(crate) fn announces(&self) -> bool {
        let header = self.tagged.and_then(|tagged| tagged.header);
        header.is_some_and(|header| header.get(TagHeader::OPCODE) == message::RENDEZVOUS)
    }

    /// Bytes at the begin of the message that don't go into the buffer: the header of one that carries its data.
    pub(crate) fn skipped(&self) -> usize {
        if self.is_entry() && !self.announces() { TagHeader::SIZE } else { 0 }
    }

    fn with_op(&mut self, op: u32) {
        if let Some(tagged) = &mut self.tagged {
            tagged.op = op;
        }
    }
}

impl QueuePair {
    /// The message has used an entry, whose data is not there yet: the queue and the completion that say so. From now on its completion says
    /// that it is.
    pub(crate) fn consumed(&self, receive: &mut Receive) -> (Cqn, Cqe) {
        receive.with_op(app_op::CONSUMED);
        let told = self.receive_cqe(CqeOpcode::NoPacket, receive);
        receive.with_op(app_op::EXPECTED);
        told
    }

    /// Software has to fetch what the message announces.
    pub(crate) fn left_to_software(&self, receive: &mut Receive) {
        receive.with_op(app_op::CONSUMED_MSG_SW_RENDEZVOUS);
    }

    /// The data of an entry will not come: the queue and the completion that say so.
    pub(crate) fn canceled(&self, receive: &Receive) -> (Cqn, Cqe) {
        let mut receive = receive.clone();
        receive.with_op(app_op::CANCELED);
        self.receive_cqe(CqeOpcode::NoPacket, &receive)
    }

    /// The data that a message has announced, which entry `index` has to take: it is fetched later. `false`: software has to fetch it, as
    /// the entry has no room for it or the queue pair does nothing by itself.
    pub(crate) fn fetch_later(&mut self, receive: &Receive, headers: [u8; HEADERS]) -> bool {
        let (Some(tagged), true) = (&receive.tagged, self.params.offloads) else { return false };
        let (_, second) = headers.split_at(TagHeader::SIZE);
        let announced = Rendezvous::from_prefix_or_zero(second);
        let len = u64::from(announced.get(Rendezvous::LEN));
        if len > receive.room {
            return false;
        }
        let mut wqe = Wqe::new(receive.index, SendOpcode::RdmaRead);
        wqe.remote = Some((announced.get(Rendezvous::VA), Mkey(announced.get(Rendezvous::RKEY))));
        (wqe.pieces, wqe.length) = (receive.pieces.to_vec(), len);
        wqe.offload = Some(Offload::Fetch { owner: tagged.owner, headers });
        self.offload(wqe);
        true
    }

    /// Whether it has as much to fetch as it may have.
    pub(crate) fn fetches_enough(&self) -> bool {
        self.offloads.len() >= MOST_OFFLOADS
    }

    /// A request of the adapter's own is to be done.
    fn offload(&mut self, wqe: Wqe) {
        self.requester.share.take(wqe.bytes());
        self.offloads.push_back(Box::new(wqe));
    }

    /// Takes the next request of the adapter's own.
    pub(crate) fn next_offload(&mut self) -> Option<Box<Wqe>> {
        let wqe = self.offloads.pop_front()?;
        self.requester.share.give(wqe.bytes());
        Some(wqe)
    }

    /// It has to wait.
    pub(crate) fn put_back(&mut self, wqe: Box<Wqe>) {
        self.requester.share.take(wqe.bytes());
        self.offloads.push_front(wqe);
    }

    /// What was fetched is there: the queue and the completion that say so. The peer is told later.
    pub(crate) fn fetched(&mut self, wqe: &Wqe, (owner, headers): (Owner, [u8; HEADERS])) -> (Cqn, Cqe) {
        let mut told = headers;
        if let Some(opcode) = told.first_mut() {
            *opcode = message::FIN as u8;
        }
        let mut finish = Wqe::new(wqe.index, SendOpcode::Send);
        (finish.length, finish.pieces) = (told.len() as u64, vec![Piece::Inline(Inline::from_slice(&told))]);
        finish.offload = Some(Offload::Finish);
        self.offload(finish);
        let (cqn, mut cqe) = self.cqe_of_offload(owner, wqe.index, CqeOpcode::RespSend, app_op::EXPECTED);
        cqe.set(Cqe::BYTE_CNT, wqe.length as u32);
        (cqn, cqe)
    }

    /// What was to be fetched will not come: the queue and the completion that say so.
    pub(crate) fn not_fetched(&self, wqe: &Wqe, owner: Owner) -> (Cqn, Cqe) {
        self.cqe_of_offload(owner, wqe.index, CqeOpcode::NoPacket, app_op::CANCELED)
    }

    fn cqe_of_offload(&self, owner: Owner, index: u16, opcode: CqeOpcode, op: u32) -> (Cqn, Cqe) {
        let mut cqe = self.cqe(opcode, 0);
        owner.fill(&mut cqe, op, index);
        (owner.cqn, cqe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> TagList {
        let matching = Matching { log_size: 2, rendezvous: true, ..Matching::default() };
        TagList::new(&Srq { kind: SrqKind::Xrq, matching, ..Srq::default() }).unwrap()
    }

    fn owner() -> Owner {
        Owner { srqn: Srqn(5), pd: Pd(1), cqn: Cqn(3), mark: 0x77 }
    }

    fn seg(opcode: u32, index: u32) -> TagSeg {
        let mut seg = TagSeg::new();
        seg.set(TagSeg::OPCODE, opcode).set(TagSeg::INDEX, index).set(TagSeg::CQE_REQ, 1);
        seg
    }

    fn change(list: &mut TagList, seg: &TagSeg) -> Result<Cqe, BadChange> {
        let wqe = Wqe::new(9, SendOpcode::TagMatching);
        Ok(list.change(&owner(), &wqe, seg)?.expect("it asks for it"))
    }

    fn append(list: &mut TagList, tag: u64, mask: u64, next: u32) -> Result<Cqe, BadChange> {
        let mut seg = seg(list_op::APPEND, next);
        seg.set(TagSeg::TAG, tag).set(TagSeg::MASK, mask);
        change(list, &seg)
    }

    fn sync(list: &mut TagList, seen: u32) -> Cqe {
        let mut seg = seg(list_op::NOP, 0);
        seg.set(TagSeg::SW_CNT_VALID, 1).set(TagSeg::SW_CNT, seen);
        change(list, &seg).unwrap()
    }

    fn first(opcode: u32, tag: u64) -> Vec<u8> {
        let mut header = TagHeader::new();
        header.set(TagHeader::OPCODE, opcode).set(TagHeader::TAG, tag);
        [header.bytes().as_slice(), &[0; 16]].concat()
    }

    fn eager(tag: u64) -> Vec<u8> {
        first(message::EAGER, tag)
    }

    #[test]
    fn the_first_entry_that_matches() {
        let mut l = list();
        append(&mut l, 0x1200, 0xff00, 1).unwrap();
        append(&mut l, 0x1234, u64::MAX, 2).unwrap();
        append(&mut l, 0, 0, 3).unwrap();
        assert_eq!(l.find(&eager(0x1234), true), Found::Entry(0), "the first, not the one that fits best");
        assert!(l.take(0).is_some() && l.take(0).is_none());
        assert_eq!(l.find(&eager(0x1234), false), Found::Entry(1));
        assert_eq!(l.find(&eager(0x1235), true), Found::Entry(2), "any");
        assert_eq!(l.find(&first(message::RENDEZVOUS, 0x1234), true), Found::Entry(1));
    }

    /// A tag with a bit that its mask doesn't have matches nothing.
    #[test]
    fn masks() {
        let mut l = list();
        append(&mut l, 0x1234, 0xff, 1).unwrap();
        assert_eq!(l.find(&eager(0x1234), true), Found::Unexpected);
        assert_eq!(l.find(&eager(0x34), true), Found::Unexpected);
    }

    #[test]
    fn what_has_no_tag() {
        let mut l = list();
        append(&mut l, 0, 0, 1).unwrap();
        for opcode in [message::NO_TAG, message::FIN, 4, 0xff] {
            assert_eq!(l.find(&first(opcode, 0), true), Found::NoTag, "{opcode}");
        }
        assert_eq!(l.find(&[], true), Found::NoTag);
        assert_eq!(l.find(&eager(0)[..15], true), Found::NoTag, "shorter than its header");
        assert_eq!(l.find(&first(message::RENDEZVOUS, 0)[..31], true), Found::NoTag);
        assert_eq!(l.find(&first(message::RENDEZVOUS, 0), false), Found::Unexpected, "of several packets");
    }

    /// What was appended before an unexpected message is looked at, what came after it is not until software is in step.
    #[test]
    fn phases() {
        let mut l = list();
        append(&mut l, 1, u64::MAX, 1).unwrap();
        assert_eq!(l.find(&eager(2), true), Found::Unexpected);
        l.unexpected();
        let told = append(&mut l, 2, u64::MAX, 2).unwrap();
        assert_eq!(told.list_change().get(ListCqe::HW_PHASE_CNT), 1);
        assert_eq!(l.find(&eager(2), true), Found::Unexpected);
        assert_eq!(l.find(&eager(1), true), Found::Entry(0));
        sync(&mut l, 0);
        assert_eq!(l.find(&eager(2), true), Found::Unexpected);
        let told = sync(&mut l, 1);
        assert_eq!((told.get(Cqe::APP_OP), told.list_change().get(ListCqe::SUCCESS)), (app_op::NOP, 1));
        assert_eq!(l.find(&eager(2), true), Found::Entry(1));
        // An append says so, too, and is active at once.
        l.unexpected();
        let mut seg = seg(list_op::APPEND, 3);
        seg.set(TagSeg::TAG, 3)
            .set(TagSeg::MASK, u64::MAX)
            .set(TagSeg::SW_CNT_VALID, 1)
            .set(TagSeg::SW_CNT, 2);
        change(&mut l, &seg).unwrap();
        assert_eq!(l.find(&eager(3), true), Found::Entry(2));
        let mut matching = Matching::default();
        l.write_back(&mut matching);
        assert_eq!((matching.next, matching.seen, matching.came), (3, 2, 2));
    }

    #[test]
    fn entries_are_removed_or_gone() {
        let mut l = list();
        let told = append(&mut l, 1, u64::MAX, 2).unwrap();
        assert_eq!(
            (told.get(Cqe::OPCODE), told.get(Cqe::APP)),
            (CqeOpcode::NoPacket as u32, APP_TAG_MATCHING)
        );
        assert_eq!((told.get(Cqe::APP_OP), told.get(Cqe::APP_INFO)), (app_op::APPEND, 0));
        assert_eq!((told.get(Cqe::SRQN_USER_INDEX), told.get(Cqe::WQE_COUNTER)), (0x77, 9));
        let remove = seg(list_op::REMOVE, 0);
        let told = change(&mut l, &remove).unwrap();
        assert_eq!((told.get(Cqe::APP_OP), told.list_change().get(ListCqe::SUCCESS)), (app_op::REMOVE, 1));
        assert_eq!(change(&mut l, &remove).unwrap().list_change().get(ListCqe::SUCCESS), 0, "it is gone");
        assert_eq!((l.find(&eager(1), true), l.len()), (Found::Unexpected, 0));
        let mut silent = seg(list_op::NOP, 0);
        silent.set(TagSeg::CQE_REQ, 0);
        let wqe = Wqe::new(0, SendOpcode::TagMatching);
        assert_eq!(l.change(&owner(), &wqe, &silent), Ok(None));
    }

    #[test]
    fn what_is_refused() {
        let mut l = list();
        append(&mut l, 1, u64::MAX, 0).unwrap();
        assert!(append(&mut l, 1, u64::MAX, 1).unwrap_err().0.contains("in use"), "the next is the same");
        let mut l = list();
        append(&mut l, 1, u64::MAX, 4).unwrap();
        assert!(append(&mut l, 1, u64::MAX, 1).unwrap_err().0.contains("beyond"), "it has four");
        assert!(change(&mut l, &seg(3, 0)).is_err());
        let mut wqe = Wqe::new(0, SendOpcode::TagMatching);
        wqe.pieces = vec![Piece::Inline(Inline::from_elem(1, 1))];
        assert!(list().change(&owner(), &wqe, &seg(list_op::APPEND, 1)).is_err());
    }
}
