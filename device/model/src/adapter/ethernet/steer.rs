//! Frames through the flow tables: to TIRs, and by their hash to receive queues.

use hca_firmware::steering::Target;
use hca_firmware::transport::{Dispatch, Tir};
use hca_spec::flow::TableType;
use hca_spec::ids::{Qpn, Rqn};

use super::receive::QueuedFrame;
use crate::adapter::Executor;
use crate::adapter::core::{Core, HcaEvent};
use crate::engines::nic::flow_key::flow_key;
use crate::engines::nic::receive::Steered;
use crate::engines::nic::rss::{Hash, HashRules, Hasher};
use crate::ground::time::Ps;
use crate::link_layer::Packet;
use crate::wire::ethernet::{Headers, is_multicast};

impl Executor<'_> {
    /// A frame has passed the receive pipeline: through the flow tables to receive queues.
    pub(crate) fn receive_frame(&mut self, now: Ps, port: u8, mut packet: Packet) {
        let from = packet.domain();
        let frame = packet.as_frame();
        let Some(headers) = Headers::parse(frame) else { return };
        let inner = headers.inner(frame);
        let key = flow_key(&headers, inner.as_ref()).lay_out();
        let octets = frame.len() as u64;
        let mut verdict = std::mem::take(&mut self.core.function.frames.verdict);
        self.core.function.fw.icm.steering.walk(TableType::NicRx, &key, octets, &mut verdict);
        if verdict.missed > 0
            && let Some(ethernet) = self.core.chip.managed.port_mut(port).and_then(|p| p.ethernet_mut())
        {
            let missed = &mut ethernet.counters.steering_discards;
            *missed = missed.wrapping_add(verdict.missed.into());
        }
        for delivery in &verdict.deliveries {
            let Target::Tir(tirn) = delivery.to else { continue };
            let Some((rqn, hash)) = self.core.queue_of(tirn, &headers, inner.as_ref(), from) else {
                continue;
            };
            let steered = Steered { hash, flow_tag: delivery.tag };
            match self.core.function.outstanding {
                None => self.core.frame_to_queue(now, rqn, frame, &headers, steered),
                // Each queue waits for itself.
                Some(_) => {
                    let queued = QueuedFrame { rqn, steered, bytes: frame.to_vec() };
                    self.admit(now, HcaEvent::QueueFrame(Box::new(queued)));
                }
            }
        }
        self.core.function.frames.verdict = verdict;
        packet.retire();
    }
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
    ) -> Option<(Rqn, Hash)> {
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
        let rqn = match tir.dispatch {
            Dispatch::Direct(rqn) => rqn,
            Dispatch::Indirect(table) => {
                let table = self.function.fw.icm.rqts.get(table)?;
                *table.rqns.get(hash.index(table.rqns.len()))?
            }
        };
        Some((rqn, hash))
    }
}

impl Core<'_> {
    /// How many times the flow tables of frames that are sent let one leave: once if there are none. `sqn` is the queue it
    /// comes from, `metadata` what its WQE says for them.
    pub(super) fn leaves(&mut self, now: Ps, port: u8, (sqn, metadata): (Qpn, u32), frame: &[u8]) -> usize {
        let steering = &self.function.fw.icm.steering;
        if steering.root(TableType::NicTx).is_none() {
            return 1;
        }
        // A frame that is not one shows nothing: it goes as by default.
        let Some(headers) = Headers::parse(frame) else { return 1 };
        let inner = headers.inner(frame);
        let mut key = flow_key(&headers, inner.as_ref());
        (key.source_sqn, key.metadata) = (Some(sqn.0), Some(metadata));
        let verdict = &mut self.function.frames.verdict;
        steering.walk(TableType::NicTx, &key.lay_out(), frame.len() as u64, verdict);
        let copies = verdict.deliveries.iter().filter(|delivery| delivery.to == Target::Wire).count();
        if copies == 0 {
            tracing::debug!(hca = self.chip.name, %now, "SQ {sqn}: a frame was dropped by flow tables");
            if let Some(ethernet) = self.chip.managed.port_mut(port).and_then(|p| p.ethernet_mut()) {
                let discards = &mut ethernet.counters.tx.discards;
                *discards = discards.wrapping_add(1);
            }
        }
        copies
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
