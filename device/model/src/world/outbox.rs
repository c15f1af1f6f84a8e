//! What an adapter's function left in its outbox is taken out: its own events, packets, interrupts, changes of ports.

use hca_firmware::FunctionId;

use super::transfer::Ingress;
use super::{Class, Effect, Event, World};
use crate::adapter::Hca;
use crate::adapter::state::chip::Chip;
use crate::adapter::state::event::HcaEvent;
use crate::adapter::state::function::{Function, FunctionState};
use crate::adapter::state::outbox::{PortChanged, Rare};
use crate::ground::node::{HcaId, PortRef};
use crate::ground::time::{EventHeap, Ps};
use crate::link_layer::{Packet, Sent};

/// Takes what is there, in order: a single one, mostly.
#[inline(always)]
pub(super) fn take_all<T>(from: &mut Vec<T>, mut take: impl FnMut(T)) {
    match from.len() {
        0 => {}
        1 => from.pop().into_iter().for_each(take),
        _ => from.drain(..).for_each(&mut take),
    }
}

/// What is left in an adapter's outbox when the events of a function were taken out.
#[must_use]
enum Left {
    Nothing,
    /// A packet, and the port that it leaves by.
    Packet(u8, Sent<()>),
    /// Several.
    Packets,
    /// Nothing was taken: there are effects that are seldom, or somebody looks on.
    All,
}

impl World {
    /// Takes what a function left in its adapter's outbox.
    #[inline(never)]
    pub(super) fn collect(&mut self, id: HcaId, function: FunctionId) {
        let left = match self.hcas.get_mut(id.0) {
            Some(Hca { chip, functions }) => match functions.get(usize::from(function.0)) {
                Some(of) => Self::take_events(
                    &mut self.heap,
                    !self.trains.is_empty(),
                    self.now,
                    (id, function),
                    chip,
                    of,
                ),
                None => return,
            },
            None => return,
        };
        self.take_left(id, function, left);
    }

    /// Something happens to a function, unless it was reset since that epoch, and what comes of it is taken.
    #[inline(always)]
    pub(super) fn event_of(&mut self, id: HcaId, function: FunctionId, epoch: u32, event: HcaEvent) {
        let Some(Hca { chip, functions }) = self.hcas.get_mut(id.0) else { return };
        let Some(of) = functions.get_mut(usize::from(function.0)) else { return };
        if of.epoch == epoch {
            of.executor(chip, function).handle(self.now, event);
        }
        let left =
            Self::take_events(&mut self.heap, !self.trains.is_empty(), self.now, (id, function), chip, of);
        self.take_left(id, function, left);
    }

    /// A packet that was checked comes to an adapter by one of its ports, and what comes of that is taken. Returns the function that it is
    /// for, and when its place in the input buffer is free.
    #[inline(always)]
    pub(super) fn arrive_checked(
        &mut self,
        at: Ps,
        id: HcaId,
        port: u8,
        packet: Packet,
    ) -> Option<(FunctionId, Ps)> {
        let hca = self.hcas.get_mut(id.0)?;
        let (function, free) = hca.arrive(at, port, packet);
        let Hca { chip, functions } = hca;
        if let Some(of) = functions.get(usize::from(function.0)) {
            let left = Self::take_events(
                &mut self.heap,
                !self.trains.is_empty(),
                self.now,
                (id, function),
                chip,
                of,
            );
            self.take_left(id, function, left);
        }
        Some((function, free))
    }

    /// Takes the events that a function left in its chip's outbox: mostly there is what it does later itself, and nothing else.
    #[inline(always)]
    fn take_events(
        heap: &mut EventHeap<Event>,
        has_trains: bool,
        now: Ps,
        (id, function): (HcaId, FunctionId),
        Chip { out, watch, .. }: &mut Chip,
        Function { epoch, state, .. }: &Function,
    ) -> Left {
        let watched = watch.as_ref().is_some_and(|watch| watch.has_news());
        if watched || has_trains || state.runs.has_begun() || out.has_rare() {
            return Left::All;
        }
        let (epoch, own) = (*epoch, Class::Node.at(id, 0));
        // Mostly it is one, or two, which needs no loop.
        match out.events.len() {
            0 => {}
            1 => {
                if let Some((at, event)) = out.events.pop() {
                    let key = heap.reserve(at.max(now), own);
                    heap.push_reserved(key, Event::Hca { hca: id, function, epoch, event });
                }
            }
            2 => {
                if let (Some((later, second)), Some((at, first))) = (out.events.pop(), out.events.pop()) {
                    heap.push(at.max(now), own, Event::Hca { hca: id, function, epoch, event: first });
                    heap.push(later.max(now), own, Event::Hca { hca: id, function, epoch, event: second });
                }
            }
            _ => {
                for (at, event) in out.events.drain(..) {
                    heap.push(at.max(now), own, Event::Hca { hca: id, function, epoch, event });
                }
            }
        }
        match out.sent.len() {
            0 => Left::Nothing,
            1 => out.sent.pop().map_or(Left::Nothing, |(port, sent)| Left::Packet(port, sent)),
            _ => Left::Packets,
        }
    }

    /// Takes the rest.
    #[inline(always)]
    fn take_left(&mut self, id: HcaId, function: FunctionId, left: Left) {
        match left {
            Left::Nothing => {}
            Left::Packet(port, sent) => self.transmit_from(id, port, sent),
            Left::Packets => self.transmit_all(id),
            Left::All => self.collect_all(id, function),
        }
    }

    /// A packet that an adapter sent begins to go over its link.
    #[inline(always)]
    pub(super) fn transmit_from(&mut self, id: HcaId, port: u8, sent: Sent<()>) {
        if let Some((number, end)) = self.plug(PortRef::of_hca(id, port)) {
            self.transmit(sent.start, number, end, sent.packet);
        }
    }

    /// All of them.
    pub(super) fn transmit_all(&mut self, id: HcaId) {
        let Some(out) = self.hcas.get_mut(id.0).map(|hca| &mut hca.chip.out) else { return };
        // The vectors change places, so that nothing is allocated anew for each packet.
        std::mem::swap(&mut out.sent, &mut self.spare);
        let mut sent = std::mem::take(&mut self.spare);
        sent.drain(..).for_each(|(port, sent)| self.transmit_from(id, port, sent));
        self.spare = sent;
    }

    /// Those who look on get what an adapter gathered for them.
    fn hand_over(&mut self, id: HcaId) {
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        if let Some(checker) = &mut self.checker {
            checker.see(hca);
        }
        let Hca { chip: Chip { watch, units, .. }, .. } = hca;
        if let Some(watch) = watch {
            watch.hand_over(units, self.trace.as_mut(), &mut self.commands, &mut self.captured);
        }
    }

    /// The same, whatever is in the outbox.
    pub(super) fn collect_all(&mut self, id: HcaId, function: FunctionId) {
        loop {
            self.hand_over(id);
            let Some(Hca { chip: Chip { out, .. }, functions }) = self.hcas.get_mut(id.0) else { return };
            let Some(Function { epoch, state: FunctionState { runs, .. }, .. }) =
                functions.get_mut(usize::from(function.0))
            else {
                return;
            };
            let epoch = *epoch;
            if let Some(sender) = runs.take_begun() {
                self.begin_train(id, sender);
                continue;
            }
            let (now, heap) = (self.now, &mut self.heap);
            let own = Class::Node.at(id, 0);
            if out.has_rare() {
                for (at, function, event) in out.rare().for_others.drain(..) {
                    let Some(other) = functions.get(usize::from(function.0)) else { continue };
                    heap.push(at.max(now), own, Event::Hca { hca: id, function, epoch: other.epoch, event });
                }
            }
            if self.trains.is_empty() {
                take_all(&mut out.events, |(at, event)| {
                    heap.push(at.max(now), own, Event::Hca { hca: id, function, epoch, event });
                });
            } else if !out.events.is_empty() {
                self.collect_with_trains(id, function);
                continue;
            }
            if !out.has_others() {
                return;
            }
            let Rare { for_others: _, loopback, credit_turns, vectors, ports_changed } = out.take_rare();
            while let Some((port, at)) = credit_turns.pop() {
                let source = Class::Credit.at(id, port);
                heap.push(at, source, Event::Credits { port: PortRef::of_hca(id, port) });
            }
            self.effects.extend(vectors.drain(..).map(|vector| Effect::Msix { hca: id, function, vector }));
            for (at, port, packet, returned) in loopback.drain(..) {
                let ingress = Ingress::Loopback { hca: id, port, returned };
                heap.push(at, own, Event::Arrive { hca: id, port, packet, ingress });
            }
            let changes = std::mem::take(ports_changed);
            self.transmit_all(id);
            for PortChanged { port, link_lost } in changes {
                self.port_changed(PortRef::of_hca(id, port), link_lost);
            }
        }
    }
}
