//! Runs: packets of one message that are alike but for their PSN and their place in it. What is the same for all is
//! worked out once, and their payload stays in memory until their receiver takes it.
//!
//! The message is one that the queue pair sends, or the response to a read of its peer's. Neither its first nor its last packet
//! is in a run: they have headers of their own; nor is the one before the last of a write with immediate, which may ask for a credit.
//! What makes the packets of a run other than they were planned ends it: a change of keys, of the path, of the queue pair's state.

use std::num::NonZeroU32;
use std::sync::Arc;

use hca_spec::ids::{Mkey, Psn, Qpn};
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wire::Operation;
use hca_spec::wqe::SendOpcode;

use super::QueuePair;
use super::answers::{ReadLeft, Response};
use super::requester::{Cursor, Plan};
use crate::engines::mkey::{Access, Accessor, pages_of, span};
use crate::engines::pieces::piece_at;
use crate::engines::view::View;
use crate::ground::dma::GuestMemory;
use crate::ground::event::Event;
use crate::ground::region::{Payload, Region};
use crate::ground::timing::Place;
use crate::link_layer::{Packet, Path};
use crate::wire::Repr;

/// Fewer packets than these are not worth a run.
const LEAST: u32 = 3;
/// The most packets of a run: a longer message has several.
const MOST: u32 = 1024;
/// After so many packets of a message that could not be sent in a run it is tried again.
const AGAIN: u32 = 32;

/// Which half of a queue pair: each sends packets of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Half {
    /// Sends messages.
    Requester,
    /// Answers those of its peer's; in runs, reads.
    Responder,
}

impl Half {
    /// What is told of a packet that was made, with so many bytes on the link; `index`: that of a message's WQE.
    #[inline]
    pub(crate) fn made(self, (qpn, index): (Qpn, u16), psn: Psn, operation: Operation, bytes: u32) -> Event {
        match self {
            Self::Requester => Event::Build { qpn, index, psn, operation, bytes },
            Self::Responder => Event::Respond { qpn, psn, operation, bytes },
        }
    }
}

/// Packets that are alike.
#[derive(Debug)]
pub(crate) struct Run {
    half: Half,
    /// What they travel by.
    path: Path,
    /// Headers of the first of them.
    repr: Repr,
    /// PSN after the last of them.
    end: Psn,
    /// Place of the first in its message.
    place: u32,
    /// Every so many packets of the message one asks for an acknowledgement; of a response none does.
    often: Option<NonZeroU32>,
    region: Arc<Region>,
    key: Mkey,
    /// Address of the payload of the first.
    va: u64,
    /// log2 of the key's pages, for the units.
    page: Option<u32>,
    /// Bytes of payload, and on the link.
    payload: usize,
    len: usize,
    /// The WQE's index; of a response nothing.
    index: u16,
    /// What counted the changes of keys when it was planned.
    keys: u64,
}

/// What a run is planned from: what is known of its packets without a look at keys, memory and path.
struct Begin {
    half: Half,
    /// Headers of the first.
    repr: Repr,
    place: u32,
    often: Option<NonZeroU32>,
    index: u16,
    /// Where the payload of the first is; all of it that may be theirs.
    key: Mkey,
    va: u64,
    bytes: u64,
    /// Packets that may be alike.
    most: u32,
    /// Who asks for what is there, and what for.
    who: Accessor,
    access: Access,
}

/// A packet of a run.
pub(crate) struct Planned {
    pub(crate) packet: Packet,
    pub(crate) psn: Psn,
    pub(crate) operation: Operation,
    /// The WQE's index.
    pub(crate) index: u16,
    /// Where its payload is, as the units see it.
    pub(crate) data: Place,
}

impl Run {
    /// Whether the packet with that PSN is one of them; `keys`: the changes of keys so far.
    #[inline]
    pub(crate) fn covers(&self, psn: Psn, keys: u64) -> bool {
        psn.since(self.repr.psn) >= 0 && self.end.since(psn) > 0 && self.keys == keys
    }

    /// The same, whatever has become of keys.
    #[inline]
    pub(crate) fn has(&self, psn: Psn) -> bool {
        self.covers(psn, self.keys)
    }

    /// The changes of keys when it was planned.
    pub(crate) fn keys(&self) -> u64 {
        self.keys
    }

    /// What its packets travel by.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its packets travel by that path, too, and are like that one but for PSN and payload.
    pub(crate) fn is_like(&self, path: &Path, packet: &Packet) -> bool {
        let repr = Repr { psn: packet.repr().psn, ack_req: packet.repr().ack_req, ..self.repr };
        self.len == packet.len()
            && self.payload == packet.payload().len()
            && repr == *packet.repr()
            && self.path == *path
    }

    /// Whether that packet, whatever its PSN, is one of them.
    #[inline]
    pub(crate) fn is_of(&self, packet: &Packet) -> bool {
        packet.region().is_some_and(|region| Arc::ptr_eq(region, &self.region))
    }

    /// The packet with that PSN, if it is one of them; `keys`: the changes of keys so far. `again`: packets that nobody needs
    /// any more. One of the same run has all that is alike.
    #[inline]
    pub(crate) fn packet(&self, psn: Psn, keys: u64, again: &mut Vec<Packet>) -> Option<Planned> {
        if !self.covers(psn, keys) {
            return None;
        }
        let offset = psn.since(self.repr.psn) as u64 * self.payload as u64;
        let ack_req = self.asks(psn);
        let source = (&self.region, offset);
        let renew = |packet: Packet| packet.renew(&self.path, (psn, ack_req), source);
        let packet = again.pop().and_then(renew).unwrap_or_else(|| {
            let repr = Repr { psn, ack_req, ..self.repr };
            Packet::referring(&self.path, &repr, self.payload, self.len, source)
        });
        Some(Planned {
            packet,
            psn,
            operation: self.repr.operation,
            index: self.index,
            data: self.data(offset),
        })
    }

    /// Whether the packet with that PSN asks for an acknowledgement.
    #[inline]
    pub(crate) fn asks(&self, psn: Psn) -> bool {
        let i = psn.since(self.repr.psn) as u32;
        let number = self.place.wrapping_add(i).wrapping_add(1);
        self.often.is_some_and(|often| number.is_multiple_of(often.get()))
    }

    /// Where a payload is that begins so many bytes behind that of the first packet.
    #[inline]
    fn data(&self, offset: u64) -> Place {
        Place { key: self.key.index(), va: self.va.wrapping_add(offset), len: self.payload, page: self.page }
    }

    /// What is planned of the packet with that PSN, but for the packet itself: the WQE's index, and where its payload is.
    #[inline]
    pub(crate) fn outline(&self, psn: Psn, keys: u64) -> Option<(u16, Place)> {
        let offset = psn.since(self.repr.psn) as u64 * self.payload as u64;
        self.covers(psn, keys).then(|| (self.index, self.data(offset)))
    }

    /// The payload of the packet with that PSN.
    #[inline]
    pub(crate) fn payload(&self, psn: Psn) -> Payload<'_> {
        self.payloads(psn, 1)
    }

    /// The payloads of so many packets from that PSN on, as one.
    #[inline]
    pub(crate) fn payloads(&self, psn: Psn, count: u32) -> Payload<'_> {
        let offset = psn.since(self.repr.psn) as u64 * self.payload as u64;
        Payload::Region { region: &self.region, offset, len: count as usize * self.payload }
    }

    /// How many packets from that PSN on ask for no acknowledgement.
    #[inline]
    pub(crate) fn silent(&self, psn: Psn) -> u32 {
        let i = psn.since(self.repr.psn) as u32;
        self.often.map_or(u32::MAX, |often| often.get() - 1 - self.place.wrapping_add(i) % often)
    }

    /// How many of them are left from that PSN on.
    #[inline]
    pub(crate) fn left(&self, psn: Psn) -> u32 {
        u32::try_from(self.end.since(psn)).unwrap_or(0)
    }

    /// Whether a packet with that PSN is one of them that was made before.
    #[inline]
    pub(crate) fn has_made(&self, packet: &Packet, psn: Psn) -> bool {
        packet.repr().psn == psn && packet.region().is_some_and(|region| Arc::ptr_eq(region, &self.region))
    }

    /// Headers of the first, bytes of payload, and bytes on the link.
    #[inline]
    pub(crate) fn shape(&self) -> (&Repr, usize, usize) {
        (&self.repr, self.payload, self.len)
    }
}

impl QueuePair {
    /// Whether a run might begin with the packet at the cursor, behind one that was made.
    #[inline]
    pub(crate) fn may_run(&self) -> bool {
        let r = &self.requester;
        self.service.is_reliable()
            && !r.all_sent()
            && r.messages.back().is_some_and(|m| {
                let place = r.cursor.since(m.first);
                place > 0 && place as u32 % AGAIN == 1 && m.packets > LEAST + 1 && r.cursor == r.sent
            })
    }

    /// The run of that half.
    #[inline]
    pub(crate) fn run_of(&self, half: Half) -> Option<&Run> {
        self.run.as_deref().filter(|run| run.half == half)
    }

    /// PSN of the next packet of that half.
    #[inline]
    pub(crate) fn cursor(&self, half: Half) -> Option<Psn> {
        match half {
            Half::Requester => Some(self.requester.cursor),
            Half::Responder => self.responder.queue.front().map(Response::psn),
        }
    }

    /// Whether the next packet of that half is one of a run; `keys`: the changes of keys so far.
    #[inline]
    pub(crate) fn is_in_run(&self, half: Half, keys: u64) -> bool {
        let cursor = self.cursor(half);
        self.run_of(half).zip(cursor).is_some_and(|(run, cursor)| run.covers(cursor, keys))
    }

    /// So many packets of a run were made, from `psn` on.
    #[inline]
    pub(crate) fn made(&mut self, half: Half, psn: Psn, count: u32) {
        match (half, self.responder.queue.front_mut()) {
            (Half::Requester, _) => self.requester.advance(psn, count),
            (Half::Responder, Some(Response::Read(read))) => read.pass(count, self.params.mtu as u64),
            (Half::Responder, _) => {}
        }
    }

    /// Whether the queue pair's state lets it send packets of that half.
    #[inline]
    pub(crate) fn may_send_runs(&self, half: Half) -> bool {
        match half {
            Half::Requester => self.state == QpState::Rts,
            Half::Responder => self.state.receives(),
        }
    }

    /// Whether a turn is scheduled for that half.
    #[inline]
    pub(crate) fn turn(&mut self, half: Half) -> &mut bool {
        match half {
            Half::Requester => &mut self.sq.turn,
            Half::Responder => &mut self.responder.turn,
        }
    }

    /// Whether a run might begin with the next packet of a response, behind one that was made.
    #[inline]
    pub(crate) fn may_run_responses(&self) -> bool {
        let mtu = self.params.mtu as u64;
        self.service == ServiceType::Rc
            && self.responder.queue.front().is_some_and(|next| match next {
                Response::Read(ReadLeft { passed, left, .. }) => {
                    *passed > 0 && passed % AGAIN == 1 && *left > u64::from(LEAST) * mtu
                }
                _ => false,
            })
    }

    /// Plans a run that begins with the next packet of a response, which is neither its first nor its last; otherwise as
    /// [`QueuePair::plan_run`] does.
    #[inline(never)]
    pub(crate) fn plan_response_run(
        &self,
        view: &View<'_>,
        memory: &Arc<dyn GuestMemory>,
        keys: u64,
    ) -> Option<Box<Run>> {
        let Some(Response::Read(read)) = self.responder.queue.front() else { return None };
        let ReadLeft { who, psn, va, rkey: key, left, passed: place, .. } = *read;
        let repr = Repr { operation: Operation::ReadResponseMiddle, psn, ..self.connected_repr(view)? };
        let (half, access) = (Half::Responder, Access::RemoteRead);
        // The last packet is none of them.
        let (bytes, most) = (left.saturating_sub(1), MOST);
        let begin = Begin { half, repr, place, often: None, index: 0, key, va, bytes, most, who, access };
        self.begin_run(view, memory, keys, begin)
    }

    /// The run of what is planned, if it is worth one and can be had.
    fn begin_run(
        &self,
        view: &View<'_>,
        memory: &Arc<dyn GuestMemory>,
        keys: u64,
        begin: Begin,
    ) -> Option<Box<Run>> {
        let Begin { half, repr, place, often, index, key, va, bytes, most, who, access } = begin;
        let payload = self.params.mtu;
        let count = u32::try_from(bytes / payload as u64).unwrap_or(u32::MAX).min(most).min(MOST);
        if count < LEAST {
            return None;
        }
        let bytes = u64::from(count) * payload as u64;
        let pages = pages_of(view.icm(), who, key, va, bytes, access)?;
        let region = Arc::new(Region::new(Arc::clone(memory), pages, bytes)?);
        let path = self.path(view)?;
        let len = Packet::len_of(&path, &repr, payload)?;
        let page = span(view.icm(), key, va, payload).page;
        let (end, repr) = (repr.psn.add(count), repr.as_sent()?);
        Some(Box::new(Run {
            half,
            path,
            repr,
            end,
            place,
            often,
            region,
            key,
            va,
            page,
            payload,
            len,
            index,
            keys,
        }))
    }

    /// Plans a run that begins with the packet at the cursor; `keys`: the changes of keys so far. `None`: what it would be
    /// made of has to be looked at packet by packet.
    #[inline(never)]
    pub(crate) fn plan_run(
        &self,
        view: &View<'_>,
        memory: &Arc<dyn GuestMemory>,
        keys: u64,
    ) -> Option<Box<Run>> {
        let mut repr = Repr::default();
        let Cursor::Packet(plan) = self.plan(view, &mut repr) else { return None };
        let Plan { offset, payload, opcode, .. } = plan;
        let alike = matches!(
            (repr.operation, opcode),
            (Operation::WriteMiddle, SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm)
                | (Operation::SendMiddle, SendOpcode::Send | SendOpcode::SendImm | SendOpcode::SendInval)
        );
        let message = self.requester.messages.back().filter(|m| m.contains(repr.psn))?;
        if !alike || payload != self.params.mtu || !self.requester.allows(message) {
            return None;
        }
        let (bytes, key, va) = piece_at(&message.wqe.pieces, offset)?;
        let place = repr.psn.since(message.first) as u32;
        // The packet before the one that needs a credit may have to ask for it.
        let apart = if message.wqe.opcode == SendOpcode::RdmaWriteImm { 2 } else { 1 };
        let most = message.packets.saturating_sub(place + apart);
        let often = NonZeroU32::new(1 << self.params.log_ack_req_freq);
        let (half, access, index, who) = (Half::Requester, Access::LocalRead, plan.index, self.accessor());
        let begin = Begin { half, repr, place, often, index, key, va, bytes, most, who, access };
        self.begin_run(view, memory, keys, begin)
    }
}
