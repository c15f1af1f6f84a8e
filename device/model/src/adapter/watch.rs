//! What an adapter does is told to those who look on: carried out for whoever wants it ([`crate::adapter::state::watch`]).

use hca_spec::ids::{Psn, Qpn};
use hca_spec::init_segment;
use hca_spec::wire::Operation;
use hca_spec::wqe::Datagram;

use super::state::watch::{Captured, Executed};
use super::state::watch::{Headers, OUTPUT, executed, kept_input, started, unwanted};
use crate::adapter::core::Core;
use crate::adapter::state::chip::Chip;
use crate::engines::qp::QueuePair;
use crate::engines::qp::wqe::Wqe;
use crate::ground::event::{Audience, Event, Unwanted};
use crate::ground::node::{NodeId, PortRef};
use crate::ground::time::Ps;
use crate::link_layer::{Packet, Path, Station};
use crate::wire::Repr;

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
        self.note(now, started(qp.qpn, wqe, (psn, packets), (dest_qp, peer)));
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
        self.note(now, executed(qp.qpn, path.source(), (psn, operation, bytes)));
    }

    /// A queue pair does not get or take a packet from there; `own` is what it has instead.
    #[cold]
    pub(crate) fn note_unwanted(&mut self, now: Ps, from: Station, repr: &Repr, why: Unwanted, own: u32) {
        self.note(now, unwanted(from, repr, why, own));
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
        self.note_job(at, done, service, Headers::of(packet).received());
    }

    /// A packet arrived that the port drops.
    pub(crate) fn note_dropped(&mut self, at: Ps, packet: &Packet) {
        self.note(at, Headers::of(packet).dropped());
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
