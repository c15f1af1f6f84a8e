//! What an adapter gathers for those who look on: records of events, and packets at its port.

use hca_firmware::commands::find;
use hca_spec::be32;
use hca_spec::command::Opcode;
use hca_spec::ids::{Lid, Psn, Qpn};
use hca_spec::wire::{Bth, Operation};

use crate::engines::qp::wqe::Wqe;
use crate::ground::epoch::Rebase;
use crate::ground::event::{Audience, Event, Unwanted};
use crate::ground::node::{HcaId, PortRef};
use crate::ground::record::Record;
use crate::ground::ring::Trace;
use crate::ground::time::Ps;
use crate::link_layer::{Packet, Station, ib};
use crate::units::{Note, Units};
use crate::wire::Repr;

/// A packet that left or reached a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// When its first byte left, or its last byte was there.
    pub at: Ps,
    /// The port.
    pub port: PortRef,
    /// It left; otherwise it arrived.
    pub sent: bool,
    /// The packet.
    pub packet: Packet,
}

/// A command that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// When; its answer is delivered later, as [`Event::CommandDone`] says.
    pub at: Ps,
    /// The adapter.
    pub hca: HcaId,
    /// Its slot in the queue.
    pub slot: u8,
    /// Its input, header included, at most as long as its layout.
    pub input: Vec<u8>,
    /// The first bytes of its output: status, syndrome, and the numbers of what it has made.
    pub output: Vec<u8>,
}

/// Commands that wait to be taken: the last ones, at least so many and at most twice that.
const COMMANDS: usize = 1 << 16;
/// Bytes of a command's output that are kept.
pub(in crate::adapter) const OUTPUT: usize = 64;
/// Bytes of an input that no layout is known of.
const UNKNOWN_INPUT: usize = 16;

/// What of a command's input is kept.
pub(in crate::adapter) fn kept_input(input: &[u8]) -> &[u8] {
    let opcode = Opcode::from_u16((be32(input, 0) >> 16) as u16);
    let most = opcode.and_then(find).map_or(UNKNOWN_INPUT, |command| command.input);
    input.get(..most).unwrap_or(input)
}

/// What an adapter gathers for those who look on.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) hca: HcaId,
    records: Vec<Record>,
    /// Who wants records.
    pub(in crate::adapter) audience: Audience,
    /// Commands that were carried out, for a trace and for coverage.
    pub(in crate::adapter) commands: Vec<Executed>,
    pub(crate) packets: Vec<Captured>,
    /// Bit n: packets at port n are wanted. 256 ports.
    captured: [u64; 4],
}

impl Watch {
    /// Of an adapter of which nothing is wanted yet.
    pub(crate) fn new(hca: HcaId) -> Self {
        Self {
            hca,
            records: Vec::new(),
            audience: Audience::default(),
            commands: Vec::new(),
            packets: Vec::new(),
            captured: [0; 4],
        }
    }

    /// Somebody wants records.
    pub(crate) fn record(&mut self, audience: Audience) {
        self.audience = self.audience.and(audience);
    }

    /// Whether it has something to hand over.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.records_all()
            || !self.packets.is_empty()
            || !self.records.is_empty()
            || !self.commands.is_empty()
    }

    /// Whether all records are wanted.
    #[inline(always)]
    pub(crate) fn records_all(&self) -> bool {
        self.audience.meets(Audience::TRACE)
    }

    /// Packets at that port are wanted.
    pub(crate) fn capture(&mut self, port: u8) {
        if let Some(bits) = self.captured.get_mut(usize::from(port >> 6)) {
            *bits |= 1 << (port & 0x3f);
        }
    }

    pub(crate) fn captures_any(&self) -> bool {
        self.captured != [0; 4]
    }

    pub(in crate::adapter) fn captures(&self, port: u8) -> bool {
        self.captured.get(usize::from(port >> 6)).is_some_and(|bits| bits >> (port & 0x3f) & 1 == 1)
    }

    /// What was recorded since it was handed over.
    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Keeps that something was asked for at a time, waited, and took its time.
    pub(in crate::adapter) fn keep(
        &mut self,
        units: &mut Units,
        (at, wait, took): (Ps, Ps, Ps),
        event: Event,
    ) {
        if self.records_all() {
            // Only then do the units write notes.
            take_notes(&mut self.records, self.hca, units);
        }
        self.records.push(Record { at, wait, took, hca: self.hca, event });
    }

    /// The same as [`Core::note_job`], which counts it, too.
    #[cold]
    pub(in crate::adapter) fn note_job(
        &mut self,
        units: &mut Units,
        (at, done, service): (Ps, Ps, Ps),
        event: Event,
    ) {
        if self.audience.meets(event.audience()) {
            let took = service.min(done.since(at));
            self.keep(units, (at, done.since(at).since(took), took), event);
        }
    }

    /// The same as [`Core::note_sent`].
    #[cold]
    pub(in crate::adapter) fn note_sent(&mut self, units: &mut Units, at: Ps, packet: &Packet) {
        self.keep(units, (at, Ps::ZERO, Ps::ZERO), Headers::of(packet).sent());
    }

    /// Hands what was gathered to the world.
    pub(crate) fn hand_over(
        &mut self,
        units: &mut Units,
        trace: Option<&mut Trace>,
        commands: &mut Vec<Executed>,
        packets: &mut Vec<Captured>,
    ) {
        let keeps = trace.as_ref().is_some_and(|trace| trace.keeps());
        match trace {
            Some(trace) => {
                take_notes(&mut self.records, self.hca, units);
                self.records.drain(..).for_each(|record| trace.add(record));
            }
            None => self.records.clear(),
        }
        if !keeps {
            // A hash is made of records alone.
            self.commands.clear();
        } else if !self.commands.is_empty() {
            if commands.len() >= 2 * COMMANDS {
                commands.drain(..COMMANDS);
            }
            commands.append(&mut self.commands);
        }
        packets.append(&mut self.packets);
    }
}

/// Puts what the units noted behind what is there.
fn take_notes(records: &mut Vec<Record>, hca: HcaId, units: &mut Units) {
    let record = |Note { at, wait, took, event }| Record { at, wait, took, hca, event };
    records.extend(units.drain_notes().map(record));
}

/// The address that events have of a port, with that of an Ethernet port: LID, or the low half of the GID.
pub(crate) fn address_in_events(port: Station) -> (Lid, u64) {
    match port {
        Station::Ib(lid) => (lid, 0),
        Station::Eth(gid) => (Lid(0), hca_spec::be64(&gid.0, 8)),
    }
}

/// A work request begins, with so many PSNs, for that queue pair behind that port.
pub(in crate::adapter) fn started(
    qpn: Qpn,
    wqe: &Wqe,
    (psn, packets): (Psn, u32),
    (dest_qp, peer): (Qpn, Station),
) -> Event {
    let Wqe { index, opcode, length, signaled, .. } = *wqe;
    let (dlid, _) = address_in_events(peer);
    Event::Started { qpn, index, opcode, length, psn, packets, dest_qp, dlid, signaled }
}

/// A request that came from there was executed.
#[inline]
pub(in crate::adapter) fn executed(
    qpn: Qpn,
    from: Station,
    (psn, operation, bytes): (Psn, Operation, u32),
) -> Event {
    let (slid, _) = address_in_events(from);
    Event::Executed { qpn, slid, psn, operation, bytes }
}

/// A queue pair does not get or take a packet from there.
pub(in crate::adapter) fn unwanted(from: Station, repr: &Repr, why: Unwanted, own: u32) -> Event {
    let (slid, interface) = address_in_events(from);
    Event::Unwanted { qpn: repr.dest_qp, slid, interface, psn: repr.psn, why, own }
}

/// What of a packet's headers an event says.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::adapter) struct Headers {
    slid: Lid,
    dlid: Lid,
    dest_qp: Qpn,
    psn: Psn,
    opcode: u8,
    bytes: u32,
}

impl Headers {
    /// A packet that comes to its port.
    fn sent(self) -> Event {
        let Self { slid, dlid, dest_qp, psn, opcode, bytes } = self;
        Event::Sent { slid, dlid, dest_qp, psn, opcode, bytes }
    }

    /// A packet that arrives.
    pub(in crate::adapter) fn received(self) -> Event {
        let Self { slid, dlid, dest_qp, psn, opcode, bytes } = self;
        Event::Received { slid, dlid, dest_qp, psn, opcode, bytes }
    }

    /// A packet that a port drops.
    pub(in crate::adapter) fn dropped(self) -> Event {
        let Self { slid, dlid, dest_qp, psn, opcode, bytes } = self;
        Event::Dropped { slid, dlid, dest_qp, psn, opcode, bytes }
    }

    /// What stands there, unchecked.
    pub(in crate::adapter) fn of(packet: &Packet) -> Self {
        let (bth, ib::Address { slid, dlid, .. }) = (packet.bth(), packet.ib());
        Self {
            slid,
            dlid,
            dest_qp: Qpn(bth.get(Bth::DEST_QP)),
            psn: Psn::new(bth.get(Bth::PSN)),
            opcode: bth.get(Bth::OPCODE) as u8,
            bytes: packet.len() as u32,
        }
    }
}

impl Rebase for Captured {
    fn rebase(&mut self, by: Ps) {
        let Self { at, port: _, sent: _, packet: _ } = self;
        at.rebase(by);
    }
}

impl Rebase for Executed {
    fn rebase(&mut self, by: Ps) {
        let Self { at, hca: _, slot: _, input: _, output: _ } = self;
        at.rebase(by);
    }
}

impl Rebase for Watch {
    fn rebase(&mut self, by: Ps) {
        let Self { hca: _, records, audience: _, commands, packets, captured: _ } = self;
        records.rebase(by);
        commands.rebase(by);
        packets.rebase(by);
    }
}
