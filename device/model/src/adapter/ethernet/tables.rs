//! Tables beside those of the NIC: sniffers, which get copies of everything, and tables of RoCE packets between port and transport.
//!
//! ```text
//! port ─▶ sniffer RX (copies) ─▶ RDMA RX ─┬▶ transport
//!                                         └▶ NIC RX, TIRs, or nowhere
//! transport ─▶ RDMA TX ─┬▶ port ─▶ sniffer TX (copies)
//!                       └▶ nowhere
//! ```
//!
//! Who sets no such table pays for a look at its root. What passes one is looked at as bytes.

use hca_firmware::steering::{Target, Verdict};
use hca_spec::flow::TableType;

use super::steer::Came;
use crate::adapter::core::{Core, Executor};
use crate::engines::nic::flow_key::sight;
use crate::ground::time::Ps;
use crate::link_layer::Packet;

impl Core<'_> {
    /// Whether what arrives for the transport passes tables before.
    #[inline]
    pub(crate) fn looks_at_arrivals(&self) -> bool {
        let steering = &self.function.fw.icm.steering;
        steering.root(TableType::SnifferRx).is_some() || steering.root(TableType::RdmaRx).is_some()
    }

    /// Whether what leaves passes tables of those kinds before.
    #[inline]
    pub(crate) fn looks_at_departures(&self) -> bool {
        let steering = &self.function.fw.icm.steering;
        steering.root(TableType::SnifferTx).is_some() || steering.root(TableType::RdmaTx).is_some()
    }

    /// What becomes of a packet of a port in the tables of a type, if there are some: copies for TIRs are on their way then. Nothing is
    /// known of one without headers.
    fn look(&mut self, now: Ps, (kind, port): (TableType, u8), packet: &Packet) -> Option<Verdict> {
        self.function.fw.icm.steering.root(kind)?;
        let mut copy = packet.clone();
        // Copies are for whoever wants them, its own sender's too.
        copy.forget_domain();
        let frame = copy.as_frame();
        let headers = self.headers(frame)?;
        let inner = headers.inner(frame);
        let mut verdict = Verdict::default();
        let mut sight = sight(&headers, inner.as_ref());
        if kind == TableType::RdmaTx {
            sight.key.source_sqn = packet.sender().map(|qpn| qpn.0);
        }
        self.walk(now, kind, frame, &sight, &mut verdict);
        if verdict.deliveries.iter().any(|delivery| matches!(delivery.to, Target::Tir(_))) {
            let came = Came { port, copied: true };
            self.hand_out(now, came, &verdict, (&headers, inner.as_ref()), copy);
        }
        Some(verdict)
    }

    /// Copies of a packet of a port, to whom a sniffer's tables send them.
    pub(super) fn sniff(&mut self, now: Ps, tables: (TableType, u8), packet: &Packet) {
        drop(self.look(now, tables, packet));
    }

    /// Whether what is sent by a port leaves, as far as tables of RoCE packets say so; sniffers get a copy of what does.
    #[cold]
    pub(crate) fn lets_leave(&mut self, now: Ps, port: u8, packet: &Packet) -> bool {
        if !packet.is_frame() {
            return true;
        }
        if packet.is_built()
            && let Some(verdict) = self.look(now, (TableType::RdmaTx, port), packet)
            && !verdict.deliveries.iter().any(|delivery| delivery.to == Target::Wire)
        {
            tracing::debug!(hca = self.chip.name, %now, "packet dropped: tables of RoCE packets that are sent");
            self.note_dropped(now, packet);
            return false;
        }
        self.sniff(now, (TableType::SnifferTx, port), packet);
        true
    }
}

impl Executor<'_> {
    /// A packet for the transport arrived where tables look at it: whether it goes there.
    #[cold]
    pub(crate) fn goes_up(&mut self, now: Ps, port: u8, packet: &Packet) -> bool {
        if !packet.is_frame() || packet.check_link().is_err() {
            return true;
        }
        self.core.sniff(now, (TableType::SnifferRx, port), packet);
        let Some(verdict) = self.core.look(now, (TableType::RdmaRx, port), packet) else { return true };
        if verdict.deliveries.iter().any(|delivery| delivery.to == Target::Onward) {
            self.steer(now, Came { port, copied: true }, packet.clone());
        }
        let up = verdict.deliveries.iter().any(|delivery| delivery.to == Target::Transport);
        if !up {
            self.count_arrival(now, port, packet);
        }
        if verdict.deliveries.is_empty() {
            self.note_drop(now, packet, format_args!("tables of RoCE packets that are received"));
        }
        up
    }
}
