//! What an adapter gathers for those who look on: records of events, and packets at its port.

use hca_firmware::commands::find;
use hca_spec::command::Opcode;
use hca_spec::ids::{Lid, Psn, Qpn};
use hca_spec::wire::{Bth, Operation};
use hca_spec::wqe::Datagram;
use hca_spec::{be32, init_segment};

use crate::adapter::chip::Chip;
use crate::adapter::core::Core;
use crate::engines::qp::QueuePair;
use crate::engines::qp::wqe::Wqe;
use crate::ground::epoch::Rebase;
use crate::ground::event::{Audience, Event, Unwanted};
use crate::ground::node::{HcaId, NodeId, PortRef};
use crate::ground::record::Record;
use crate::ground::ring::Trace;
use crate::ground::time::Ps;
use crate::link_layer::{Packet, Path, Station, ib};
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
const OUTPUT: usize = 64;
/// Bytes of an input that no layout is known of.
const UNKNOWN_INPUT: usize = 16;

/// What of a command's input is kept.
fn kept_input(input: &[u8]) -> &[u8] {
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
    audience: Audience,
    /// Commands that were carried out, for a trace and for coverage.
    commands: Vec<Executed>,
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

    fn captures(&self, port: u8) -> bool {
        self.captured.get(usize::from(port >> 6)).is_some_and(|bits| bits >> (port & 0x3f) & 1 == 1)
    }

    /// What was recorded since it was handed over.
    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Keeps that something was asked for at a time, waited, and took its time.
    fn keep(&mut self, units: &mut Units, (at, wait, took): (Ps, Ps, Ps), event: Event) {
        if self.records_all() {
            // Only then do the units write notes.
            take_notes(&mut self.records, self.hca, units);
        }
        self.records.push(Record { at, wait, took, hca: self.hca, event });
    }

    /// The same as [`Core::note_job`], which counts it, too.
    #[cold]
    pub(super) fn note_job(&mut self, units: &mut Units, (at, done, service): (Ps, Ps, Ps), event: Event) {
        if self.audience.meets(event.audience()) {
            let took = service.min(done.since(at));
            self.keep(units, (at, done.since(at).since(took), took), event);
        }
    }

    /// The same as [`Core::note_sent`].
    #[cold]
    pub(super) fn note_sent(&mut self, units: &mut Units, at: Ps, packet: &Packet) {
        let Headers { slid, dlid, dest_qp, psn, opcode, bytes } = Headers::of(packet);
        let event = Event::Sent { slid, dlid, dest_qp, psn, opcode, bytes };
        self.keep(units, (at, Ps::ZERO, Ps::ZERO), event);
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

impl Core<'_> {
    /// Whether all records are wanted: asked before something is computed for them alone.
    #[inline]
    pub(crate) fn traces(&self) -> bool {
        self.chip.watch.as_ref().is_some_and(|w| w.records_all())
    }

    /// Something happened.
    #[inline(always)]
    pub(crate) fn note(&mut self, at: Ps, event: Event) {
        self.note_span(at, Ps::ZERO, Ps::ZERO, event);
    }

    /// Something was asked for at `at`, waited, and took its time.
    #[inline(always)]
    pub(crate) fn note_span(&mut self, at: Ps, wait: Ps, took: Ps, event: Event) {
        self.function.counting.count(&event);
        if let Some(watch) = &self.chip.watch
            && watch.audience.meets(event.audience())
        {
            self.record(at, wait, took, event);
        }
    }

    #[cold]
    fn record(&mut self, at: Ps, wait: Ps, took: Ps, event: Event) {
        let Chip { watch, units, .. } = &mut *self.chip;
        if let Some(watch) = watch {
            watch.keep(units, (at, wait, took), event);
        }
    }

    /// A copy of a command's input, if somebody wants to know of commands.
    #[inline]
    pub(crate) fn watched_input(&self, input: &[u8]) -> Option<Vec<u8>> {
        let watch = self.chip.watch.as_ref()?;
        let wanted = watch.audience.meets(Audience::TRACE.and(Audience::COVERAGE));
        wanted.then(|| kept_input(input).to_vec())
    }

    /// The command with that input was answered.
    pub(crate) fn note_command(&mut self, at: Ps, slot: u8, input: Option<Vec<u8>>, output: &[u8]) {
        if let (Some(input), Some(watch)) = (input, self.chip.watch.as_deref_mut()) {
            let output = output.get(..OUTPUT).unwrap_or(output).to_vec();
            watch.commands.push(Executed { at, hca: watch.hca, slot, input, output });
        }
    }

    /// The host accesses registers of the initialization segment, 32 bits each.
    pub(crate) fn note_registers(&mut self, now: Ps, offset: u64, len: usize, write: bool) {
        if self.chip.watch.is_some() && offset < init_segment::SIZE as u64 {
            let words = (offset..offset.saturating_add(len as u64)).step_by(4);
            for offset in words.filter_map(|offset| u32::try_from(offset).ok()) {
                self.note(now, Event::Register { offset, write });
            }
        }
    }

    /// A work request begins, with so many PSNs from `psn` on.
    pub(crate) fn note_started(&mut self, now: Ps, qp: &QueuePair, wqe: &Wqe, psn: Psn, packets: u32) {
        let route = &qp.params.route;
        let (dest_qp, peer) = match &wqe.datagram {
            Some(av) => (Qpn(av.get(Datagram::DQPN)), Station::of_vector(self.view().kind_of(qp.port()), av)),
            None => (qp.params.remote_qpn, route.peer()),
        };
        let (qpn, index, opcode, length) = (qp.qpn, wqe.index, wqe.opcode, wqe.length);
        let (dlid, signaled) = (lid(peer), wqe.signaled);
        let event = Event::Started { qpn, index, opcode, length, psn, packets, dest_qp, dlid, signaled };
        self.note(now, event);
    }

    /// A request of the peer was executed, with so many bytes of payload.
    pub(crate) fn note_executed(
        &mut self,
        now: Ps,
        qp: &QueuePair,
        (path, repr): (&Path, &Repr),
        payload: usize,
    ) {
        self.note_executed_at(now, qp, path, (repr.psn, repr.operation, payload as u32));
    }

    /// The same of a request with that PSN.
    #[inline]
    pub(crate) fn note_executed_at(
        &mut self,
        now: Ps,
        qp: &QueuePair,
        path: &Path,
        (psn, operation, bytes): (Psn, Operation, u32),
    ) {
        let (qpn, slid) = (qp.qpn, lid(path.source()));
        self.note(now, Event::Executed { qpn, slid, psn, operation, bytes });
    }

    /// A queue pair does not get or take a packet from there; `own` is what it has instead.
    #[cold]
    pub(crate) fn note_unwanted(&mut self, now: Ps, from: Station, repr: &Repr, why: Unwanted, own: u32) {
        let (qpn, (slid, interface), psn) = (repr.dest_qp, address_in_events(from), repr.psn);
        self.note(now, Event::Unwanted { qpn, slid, interface, psn, why, own });
    }

    /// A packet comes to its port at `at`.
    #[inline]
    pub(crate) fn note_sent(&mut self, at: Ps, packet: &Packet) {
        let Chip { watch, units, .. } = &mut *self.chip;
        if let Some(watch) = watch.as_deref_mut().filter(|watch| watch.records_all()) {
            watch.note_sent(units, at, packet);
        }
    }

    /// A packet arrived; its checks take `service` and are done at `done`.
    #[inline]
    pub(crate) fn note_received(&mut self, at: Ps, done: Ps, service: Ps, packet: &Packet) {
        if self.traces() {
            self.record_received(at, done, service, packet);
        }
    }

    #[cold]
    fn record_received(&mut self, at: Ps, done: Ps, service: Ps, packet: &Packet) {
        let Headers { slid, dlid, dest_qp, psn, opcode, bytes } = Headers::of(packet);
        self.note_job(at, done, service, Event::Received { slid, dlid, dest_qp, psn, opcode, bytes });
    }

    /// A packet arrived that the port drops.
    pub(crate) fn note_dropped(&mut self, at: Ps, packet: &Packet) {
        let Headers { slid, dlid, dest_qp, psn, opcode, bytes } = Headers::of(packet);
        self.note(at, Event::Dropped { slid, dlid, dest_qp, psn, opcode, bytes });
    }

    /// A unit that got a job at `at` is done with it at `done`, of which `service` is its own time: it was busy
    /// with others before.
    #[inline(always)]
    pub(crate) fn note_job(&mut self, at: Ps, done: Ps, service: Ps, event: Event) {
        let took = service.min(done.since(at));
        self.note_span(at, done.since(at).since(took), took, event);
    }

    /// A packet leaves a port or has reached it.
    #[inline(always)]
    pub(crate) fn capture(&mut self, at: Ps, port: u8, sent: bool, packet: &Packet) {
        if self.chip.watch.is_some() {
            self.capture_watched(at, port, sent, packet);
        }
    }

    #[cold]
    fn capture_watched(&mut self, at: Ps, port: u8, sent: bool, packet: &Packet) {
        if let Some(watch) = self.chip.watch.as_deref_mut()
            && watch.captures(port)
        {
            let port = PortRef { node: NodeId::Hca(watch.hca), port };
            watch.packets.push(Captured { at, port, sent, packet: packet.clone() });
        }
    }
}

/// The address that events have of a port, with that of an Ethernet port: LID, or the low half of the GID.
pub(crate) fn address_in_events(port: Station) -> (Lid, u64) {
    match port {
        Station::Ib(lid) => (lid, 0),
        Station::Eth(gid) => (Lid(0), hca_spec::be64(&gid.0, 8)),
    }
}

/// The address that events have of a port.
fn lid(port: Station) -> Lid {
    address_in_events(port).0
}

/// What of a packet's headers an event says.
#[derive(Debug, Clone, Copy, Default)]
struct Headers {
    slid: Lid,
    dlid: Lid,
    dest_qp: Qpn,
    psn: Psn,
    opcode: u8,
    bytes: u32,
}

impl Headers {
    /// What stands there, unchecked.
    fn of(packet: &Packet) -> Self {
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
