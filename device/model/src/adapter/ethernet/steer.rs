//! Frames through the flow tables: to TIRs, and by their hash to receive queues.

use hca_firmware::RqSource;
use hca_firmware::steering::{Frame, Sight, Target, Verdict};
use hca_firmware::transport::{Dispatch, MERGE_UNIT, Tir};
use hca_spec::flow::TableType;
use hca_spec::ids::{Qpn, Rqn};

use crate::adapter::core::{Core, Executor};
use crate::adapter::state::event::HcaEvent;
use crate::adapter::state::frames::MergedFrame;
use crate::adapter::state::frames::{Addressed, ChangedFrame, QueuedFrame};
use crate::engines::nic::flow_key::{parser, sight};
use crate::engines::nic::merge::MergeRules;
use crate::engines::nic::receive::Steered;
use crate::engines::nic::rss::{Hash, HashRules, Hasher};
use crate::ground::time::Ps;
use crate::link_layer::Packet;
use crate::units::{Inbound, Lookups};
use crate::wire::ethernet::{Headers, is_multicast};

/// How a frame came to its tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Came {
    /// By that port, in or out.
    pub(super) port: u8,
    /// It is a copy: the frame itself went elsewhere, and its place in the input buffer with it.
    pub(super) copied: bool,
}

impl Executor<'_> {
    /// Takes a frame that came to a port through the flow tables to receive queues. Returns when its place in the input buffer is free.
    pub(super) fn steer(&mut self, now: Ps, came: Came, mut packet: Packet) -> Ps {
        let frame = packet.as_frame();
        let Some(headers) = self.core.headers(frame) else { return now };
        let inner = headers.inner(frame);
        let sight = sight(&headers, inner.as_ref());
        let mut verdict = std::mem::take(&mut self.core.function.frames.verdict);
        self.core.walk(now, TableType::NicRx, frame, &sight, &mut verdict);
        if verdict.missed > 0
            && let Some(ethernet) = self.core.chip.managed.port_mut(came.port).and_then(|p| p.ethernet_mut())
        {
            let missed = &mut ethernet.counters.steering_discards;
            *missed = missed.wrapping_add(verdict.missed.into());
        }
        let free = self.core.hand_out(now, came, &verdict, (&headers, inner.as_ref()), packet);
        self.core.function.frames.verdict = verdict;
        free
    }
}

impl Core<'_> {
    /// The headers of a frame, as far as the adapter looks into it.
    pub(super) fn headers(&self, frame: &[u8]) -> Option<Headers> {
        let steering = &self.function.fw.icm.steering;
        Headers::parse_with(frame, steering.vxlan.as_slice(), steering.offer().geneve)
    }

    /// Takes a frame with those headers through the tables of a type.
    pub(super) fn walk(&self, now: Ps, kind: TableType, bytes: &[u8], sight: &Sight, verdict: &mut Verdict) {
        let steering = &self.function.fw.icm.steering;
        let parser = parser(steering.offer().geneve);
        let now = self.chip.start.absolute(now);
        steering.walk(kind, &Frame { bytes, sight, parser, vxlan: steering.vxlan, now }, verdict);
    }

    /// A frame goes to the receive queues of the TIRs that tables sent it to. Returns when its place in the input buffer is free. Copies
    /// for which there is no room are dropped, and counted at the port.
    pub(super) fn hand_out(
        &mut self,
        now: Ps,
        came: Came,
        verdict: &Verdict,
        (headers, inner): (&Headers, Option<&Headers>),
        packet: Packet,
    ) -> Ps {
        let (from, octets) = (packet.domain(), packet.frame_bytes().len());
        let mut lookups = Lookups { tables: verdict.tables, hashes: 0 };
        let mut queues = std::mem::take(&mut self.function.frames.queues);
        for delivery in &verdict.deliveries {
            let Target::Tir(tirn) = delivery.to else { continue };
            let changed = delivery.frame.as_ref().and_then(|bytes| self.changed(bytes, from));
            let (headers, inner) = match &changed {
                Some(changed) => (&changed.headers, changed.inner.as_ref()),
                None => (headers, inner),
            };
            let Some(found) = self.queue_of(tirn, headers, inner, from) else { continue };
            lookups.hashes += u32::from(found.by_hash);
            let steered = Steered { hash: found.hash, flow_tag: delivery.tag, merged: None };
            queues.push(Addressed { rqn: found.rqn, steered, merge: found.merge, changed });
        }
        let after = self.chip.units.frame_in(now, lookups);
        let mut free = after;
        let mut last = Some(packet);
        let (count, mut dropped) = (queues.len(), 0u64);
        for (i, Addressed { rqn, steered, merge, changed }) in queues.drain(..).enumerate() {
            let is_copy = came.copied || i > 0;
            let octets = changed.as_ref().map_or(octets, |changed| changed.packet.frame_bytes().len());
            let room = if is_copy { self.chip.copies.room(octets) } else { None };
            if is_copy && room.is_none() {
                dropped += 1;
                continue;
            }
            // The last takes the frame, those before it copies; what tables changed is a frame of its own.
            let (headers, packet) = match changed {
                Some(changed) => {
                    let changed = *changed;
                    (changed.headers, Some(changed.packet))
                }
                None => (*headers, if i + 1 == count { last.take() } else { last.clone() }),
            };
            let Some(packet) = packet else { continue };
            let queued = QueuedFrame { rqn, steered, headers, packet, room };
            if let Some(rules) = merge {
                // It keeps its place until what is before it is done: when it is done itself is known when it gets there.
                free = free.max(self.chip.units.handled(rqn.0));
                let frame = Box::new(MergedFrame { queued, rules });
                self.schedule(after, HcaEvent::MergeFrame(frame));
                continue;
            }
            let service = self.chip.timing.deliver();
            let inbound =
                Inbound { after, bytes: octets, takes_receive: true, completes: true, ..Inbound::default() };
            let at = self.chip.units.receive(now, rqn.0, service, inbound);
            self.schedule(at, HcaEvent::QueueFrame(Box::new(queued)));
            free = free.max(at);
        }
        self.function.frames.queues = queues;
        if let Some(packet) = last {
            packet.retire();
        }
        if dropped > 0
            && let Some(ethernet) = self.chip.managed.port_mut(came.port).and_then(|p| p.ethernet_mut())
        {
            let discards = &mut ethernet.counters.rx.discards;
            *discards = discards.wrapping_add(dropped);
            tracing::debug!(hca = self.chip.name, %now, dropped, "copies of a frame were dropped: too many wait");
        }
        free
    }

    /// What tables made of a frame of that sender.
    fn changed(&self, bytes: &[u8], from: Option<u32>) -> Option<Box<ChangedFrame>> {
        let headers = self.headers(bytes)?;
        let inner = headers.inner(bytes);
        let mut packet = match from {
            Some(domain) => Packet::frame_of(bytes.to_vec(), domain, 0),
            None => Packet::frame(bytes.to_vec()),
        };
        packet.as_frame();
        Some(Box::new(ChangedFrame { headers, inner, packet }))
    }
}

/// A receive queue that a TIR leads to.
struct Found {
    rqn: Rqn,
    hash: Hash,
    /// The hash chose it from a table.
    by_hash: bool,
    /// What is merged on the way to it.
    merge: Option<MergeRules>,
}

impl Core<'_> {
    /// The receive queue to which a TIR brings a frame, and the hash by which it was chosen. None: the TIR or what it names is gone,
    /// or the frame comes from a queue of the TIR's own transport domain, and it does not want those.
    fn queue_of(
        &mut self,
        tirn: u32,
        headers: &Headers,
        inner: Option<&Headers>,
        from: Option<u32>,
    ) -> Option<Found> {
        let tir = self.function.fw.icm.tirs.get(tirn)?;
        const NO_DOMAIN: u32 = 0;
        if tir.td != NO_DOMAIN && from == Some(tir.td) {
            let allowed = match is_multicast(headers.dmac) {
                true => tir.allow_self.multicast,
                false => tir.allow_self.unicast,
            };
            if !allowed {
                return None;
            }
        }
        let frames = &mut self.function.frames;
        let rules = rules_of(tir);
        let hasher = match frames.hashers.get(tirn).filter(|(of, _)| *of == rules) {
            Some((_, hasher)) => hasher,
            None => {
                let hasher = Hasher::new(rules, &mut frames.keys);
                frames.hashers.insert(tirn, (rules, hasher));
                &frames.hashers.get(tirn)?.1
            }
        };
        let hash = hasher.hash(headers, inner);
        let (rqn, by_hash) = match tir.dispatch {
            Dispatch::Direct(rqn) => (rqn, false),
            Dispatch::Indirect(table) => {
                let table = self.function.fw.icm.rqts.get(table)?;
                (*table.rqns.get(hash.index(table.rqns.len()))?, true)
            }
        };
        let merge = self.merging(tirn, rqn);
        Some(Found { rqn, hash, by_hash, merge })
    }

    /// What a TIR has merged of its frames to a queue. A queue that writes frame check sequences gets frames as they came; so does
    /// one that shares its WQEs with others: how much room the next has is not the queue's to know.
    fn merging(&self, tirn: u32, rqn: Rqn) -> Option<MergeRules> {
        let merge = self.function.fw.icm.tirs.get(tirn)?.merge;
        if !merge.is_on() {
            return None;
        }
        let rq = self.function.fw.icm.rqs.get(rqn.0)?;
        (rq.source == RqSource::Own && !rq.scatter_fcs).then(|| MergeRules {
            v4: merge.v4,
            v6: merge.v6,
            most: u32::from(merge.most) * MERGE_UNIT,
            timeout: Ps::from_us(merge.timeout.into()),
        })
    }
}

impl Core<'_> {
    /// What leaves of a frame, as the flow tables of frames that are sent say: the frame itself (`None`) or what they make of it, as
    /// often as they let one leave; once if there are none. And how many tables it passed. `sqn` is the queue it comes from,
    /// `metadata` what its WQE says for them.
    pub(super) fn leaves(
        &mut self,
        now: Ps,
        port: u8,
        (sqn, metadata): (Qpn, u32),
        frame: &[u8],
    ) -> (Vec<Option<Vec<u8>>>, Lookups) {
        if self.function.fw.icm.steering.root(TableType::NicTx).is_none() {
            return (vec![None], Lookups::default());
        }
        // A frame that is not one shows nothing: it goes as by default.
        let Some(headers) = self.headers(frame) else { return (vec![None], Lookups::default()) };
        let inner = headers.inner(frame);
        let mut sight = sight(&headers, inner.as_ref());
        (sight.key.source_sqn, sight.key.metadata) = (Some(sqn.0), Some(metadata));
        let mut verdict = std::mem::take(&mut self.function.frames.verdict);
        self.walk(now, TableType::NicTx, frame, &sight, &mut verdict);
        let lookups = Lookups { tables: verdict.tables, hashes: 0 };
        let copies: Vec<Option<Vec<u8>>> = verdict
            .deliveries
            .drain(..)
            .filter(|delivery| delivery.to == Target::Wire)
            .map(|delivery| delivery.frame)
            .collect();
        self.function.frames.verdict = verdict;
        if copies.is_empty() {
            tracing::debug!(hca = self.chip.name, %now, "SQ {sqn}: a frame was dropped by flow tables");
            self.discarded_by_tables(port);
        }
        (copies, lookups)
    }

    /// A frame that is sent does not leave by its port: flow tables say so, or sent it where there is no room.
    pub(super) fn discarded_by_tables(&mut self, port: u8) {
        if let Some(ethernet) = self.chip.managed.port_mut(port).and_then(|p| p.ethernet_mut()) {
            let discards = &mut ethernet.counters.tx.discards;
            *discards = discards.wrapping_add(1);
        }
    }
}

/// What a TIR hashes.
fn rules_of(tir: &Tir) -> HashRules {
    HashRules {
        function: tir.hash,
        symmetric: tir.symmetric,
        key: tir.key,
        outer: tir.outer,
        inner: tir.inner,
    }
}
