//! Dynamic connections carried out: initiators turn to their targets, targets make and end responders.

use hca_spec::dct::{DctState, Dctc};
use hca_spec::eqe::EventType;
use hca_spec::ids::Qpn;
use hca_spec::qpc::QpState;
use hca_spec::wire::{Operation, aeth};
use hca_spec::wqe::Datagram;

use super::core::{Core, Executor};
use super::state::event::{Arrived, HcaEvent};
use crate::engines::qp::dci::TargetSwitch;
use crate::engines::qp::dct::{
    DRAIN_LIMIT, DRAIN_STEP, DctPacket, Drain, LIFE, MAX_CONNECTIONS, Peer, classify_packet, port_of,
    responder,
};
use crate::engines::qp::{QueuePair, pkeys_match};
use crate::ground::time::Ps;
use crate::link_layer::{Packet, Path};
use crate::wire::{DcEthRepr, Repr};

/// Connections of a target that are looked at in one event, and may be cut or fail: some 1 ms.
pub(super) const SLICE: usize = 512;

impl Core<'_> {
    /// Makes sure that what is sent next goes to `target`. `false`: what is under way to another one comes first.
    pub(crate) fn switch_target(&mut self, now: Ps, qp: &mut QueuePair, target: &Datagram) -> bool {
        match qp.switch_target(now, target) {
            TargetSwitch::There => true,
            TargetSwitch::PageWait => false,
            TargetSwitch::Connects { leaves } => {
                let view = self.view();
                if leaves && let (Some(path), Some(repr)) = (qp.path(&view), qp.disconnect(&view)) {
                    let packet = Packet::build_empty(&path, &repr);
                    let free = self.chip.units.send(now, qp.qpn.0, self.chip.timing.transmit());
                    let at = self.chip.units.depart(qp.qpn.0, free);
                    self.launch_of(at, qp, repr.operation, packet);
                }
                qp.connect_to(&self.view(), (self.chip.start, now), target);
                true
            }
        }
    }

    /// Answers without a connection, for the responder that there would be.
    fn refuse_connection(&mut self, now: Ps, nobody: &QueuePair, repr: &Repr, syndrome: u32) {
        let view = self.view();
        let Some(path) = nobody.path(&view) else { return };
        let Some(answer) = nobody.refusal(&view, repr, syndrome) else { return };
        let packet = Packet::build_empty(&path, &answer);
        let free = self.chip.units.send(now, nobody.qpn.0, Ps::ZERO);
        let at = self.chip.units.answer_departs(nobody.qpn.0, free + self.chip.timing.respond());
        self.launch(at, nobody.port(), answer.operation, packet);
    }
}

impl Executor<'_> {
    /// A request to a DC target.
    pub(crate) fn receive_dynamic(&mut self, now: Ps, arrived: &Arrived) {
        let (path, repr) = (arrived.path(), arrived.repr());
        let core = &mut self.core;
        let (Some(eth), Some(dct)) = (repr.dceth, core.function.fw.icm.dcts.get(repr.dest_qp.0)) else {
            tracing::debug!(hca = core.chip.name, %now, "packet for DCT {} dropped: no such target", repr.dest_qp);
            return;
        };
        let (ctx, state) = (dct.ctx, dct.state());
        let own = port_of(&ctx);
        if own != arrived.port {
            return core.diagnose(
                now,
                format_args!(
                    "packet for DCT {} dropped: it came by port {}, the target is at port {own} (IBTA 9.6.1)",
                    repr.dest_qp, arrived.port
                ),
            );
        }
        if let Some(wrong) = core.chip.managed.port(own).and_then(|port| path.stray_gid(port)) {
            return core.diagnose(
                now,
                format_args!(
                    "packet for DCT {} dropped: {wrong}, which its port does not have",
                    repr.dest_qp
                ),
            );
        }
        let own_pkey = core.chip.managed.port(own).map_or(0, |p| p.pkey(ctx.get(Dctc::PKEY_INDEX)));
        if !pkeys_match(own_pkey, repr.pkey) {
            core.diagnose(
                now,
                format_args!(
                    "packet for DCT {} dropped: its P_Key {:#x} does not match the target's {own_pkey:#x} (IBTA 10.9.3)",
                    repr.dest_qp, repr.pkey
                ),
            );
            core.key_violation(now, arrived, false);
            return;
        }
        if eth.access_key != ctx.get(Dctc::DC_ACCESS_KEY) {
            return self.access_key_violation(now, &ctx, (path, repr), &eth);
        }
        let peer = Peer::of(path, repr, &eth);
        let known = self.dc_responders.get(&peer).and_then(|l| l.session());
        match classify_packet(repr.operation, state, eth.session, known) {
            DctPacket::Again => {
                if let Some(responder) = self.dc_responders.get_mut(&peer).filter(|l| l.state.receives()) {
                    responder.touch(now);
                    self.core.answer(now, responder, repr.psn, aeth::ACK | aeth::CREDITS_INVALID);
                }
            }
            DctPacket::Connect => self.connect(now, &ctx, (path, repr), &eth, peer),
            DctPacket::Disconnect => self.cut(now, peer),
            DctPacket::Request => {
                let Some(responder) = self.dc_responders.get_mut(&peer).filter(|l| l.state.receives()) else {
                    return;
                };
                responder.touch(now);
                self.core.receive_request(now, responder, (path, repr), arrived.payload());
            }
            DctPacket::Nothing => {}
            DctPacket::Unknown => {
                let (dctn, from) = (peer.dctn, peer.initiator);
                tracing::debug!(hca = self.core.chip.name, %now, "packet for DCT {dctn} of QP {from} dropped: no connection");
            }
        }
    }

    fn access_key_violation(&mut self, now: Ps, ctx: &Dctc, (path, repr): (&Path, &Repr), eth: &DcEthRepr) {
        let core = &mut self.core;
        let dctn = repr.dest_qp;
        core.diagnose(
            now,
            format_args!(
                "DCT {dctn}: QP {} of {} came with DC access key {:#x}, which is not the target's",
                eth.src_qp,
                path.source(),
                eth.access_key
            ),
        );
        let mut armed = false;
        if let Some(dct) = core.function.fw.icm.dcts.get_mut(dctn.0) {
            let count = dct.ctx.get(Dctc::DC_ACCESS_KEY_VIOLATION_COUNT);
            dct.ctx.set(Dctc::DC_ACCESS_KEY_VIOLATION_COUNT, count.wrapping_add(1));
            armed = std::mem::take(&mut dct.armed);
        }
        if armed {
            core.push_qp_event(now, EventType::DctKeyViolation, dctn);
        }
        if repr.operation != Operation::Disconnect {
            let nobody = responder(&core.view(), now, ctx, (path, repr), eth);
            core.refuse_connection(now, &nobody, repr, aeth::NAK | aeth::REMOTE_ACCESS_ERROR);
        }
    }

    fn connect(&mut self, now: Ps, ctx: &Dctc, (path, repr): (&Path, &Repr), eth: &DcEthRepr, peer: Peer) {
        self.cut(now, peer);
        let core = &mut self.core;
        let mut made = responder(&core.view(), now, ctx, (path, repr), eth);
        if self.dc_responders.len() >= MAX_CONNECTIONS {
            core.diagnose(
                now,
                format_args!(
                    "DCT {}: the adapter has {MAX_CONNECTIONS} connections, QP {} waits",
                    peer.dctn, eth.src_qp
                ),
            );
            let syndrome = aeth::RNR_NAK | ctx.get(Dctc::MIN_RNR_NAK);
            return core.refuse_connection(now, &made, repr, syndrome);
        }
        core.answer(now, &mut made, repr.psn, aeth::ACK | aeth::CREDITS_INVALID);
        core.schedule(now + LIFE, HcaEvent::DynamicIdle(peer));
        self.dc_responders.insert(peer, made);
    }

    /// Ends a connection. A receive WQE that a message had taken is flushed.
    fn cut(&mut self, now: Ps, peer: Peer) {
        if let Some(mut responder) = self.dc_responders.remove(&peer) {
            self.core.abandon_receive(now, &mut responder);
        }
    }

    pub(crate) fn dynamic_turn(&mut self, now: Ps, peer: Peer) {
        let Some(responder) = self.dc_responders.get_mut(&peer) else { return };
        self.core.take_response_turn(now, responder);
        // It failed, and its last word is said.
        if responder.state == QpState::Error && responder.responder.queue.is_empty() {
            self.dc_responders.remove(&peer);
        }
    }

    pub(crate) fn dynamic_idle(&mut self, now: Ps, peer: Peer) {
        match self.dc_responders.get_mut(&peer).and_then(|responder| responder.is_forgotten(now)) {
            None => {}
            Some(Err(later)) => self.core.schedule(later, HcaEvent::DynamicIdle(peer)),
            Some(Ok(())) => self.cut(now, peer),
        }
    }

    pub(crate) fn dynamic_draining(&mut self, now: Ps, dctn: Qpn) {
        let drain = Box::new(Drain::new(dctn, now + DRAIN_LIMIT));
        self.core.schedule(now + DRAIN_STEP, HcaEvent::DynamicDrain(drain));
    }

    /// A target is destroyed. What it has drained it has none of any more.
    pub(crate) fn forget_connections(&mut self, dctn: Qpn) {
        let gone: Vec<Peer> = self.dc_responders.range(Peer::all_of(dctn)).map(|(peer, _)| *peer).collect();
        for peer in gone {
            self.dc_responders.remove(&peer);
        }
    }

    /// Cuts the connections of a target that drains where nothing is under way, at last all of them: a slice of them in an event.
    pub(crate) fn dynamic_drain(&mut self, now: Ps, mut drain: Box<Drain>) {
        let Drain { dctn, until, .. } = *drain;
        let draining =
            self.core.function.fw.icm.dcts.get(dctn.0).is_some_and(|d| d.state() == DctState::Draining);
        if !draining {
            return;
        }
        let slice = self.dc_responders.range(drain.rest()).take(SLICE);
        let (mut quiet, mut looked_at) = (Vec::new(), 0);
        for (peer, responder) in slice {
            (looked_at, drain.last) = (looked_at + 1, Some(*peer));
            match responder.is_quiet() || now >= until {
                true => quiet.push(*peer),
                false => drain.busy = true,
            }
        }
        for peer in quiet {
            self.cut(now, peer);
        }
        if looked_at == SLICE {
            return self.core.schedule(now, HcaEvent::DynamicDrain(drain));
        }
        if drain.busy {
            *drain = Drain::new(dctn, until);
            return self.core.schedule(now + DRAIN_STEP, HcaEvent::DynamicDrain(drain));
        }
        if let Some(dct) = self.core.function.fw.icm.dcts.get_mut(dctn.0) {
            dct.ctx.set(Dctc::STATE, DctState::Drained as u32);
        }
        self.core.push_qp_event(now, EventType::DctDrained, dctn);
    }
}
