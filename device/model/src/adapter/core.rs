//! What the executor of an adapter works on: the firmware and its tables, guest memory, the engines of event and
//! completion queues, the ports' way out, and the outbox of effects.

use std::sync::Arc;

use hca_firmware::Firmware;
use hca_spec::eqe::EventType;
use hca_spec::ids::{Cqn, Qpn};
use hca_spec::wire::{Grh, Operation};

use crate::adapter::counters::Counting;
use crate::adapter::events::EventRoutes;
use crate::adapter::port::PortOut;
use crate::adapter::watch::Watch;
use crate::engines::cq::CompletionQueue;
use crate::engines::eq::EventQueue;
use crate::engines::qp::QueuePair;
use crate::engines::qp::dct::Peer;
use crate::engines::view::View;
use crate::ground::dma::{DmaError, GuestMemory, NoMemory};
use crate::ground::region::Payload;
use crate::ground::slots::Slots;
use crate::ground::time::Ps;
use crate::ground::timing::Timing;
use crate::link::egress::Sent;
use crate::wire::{Malformed, Packet, Repr};

/// A packet whose headers and checksums were found good.
#[derive(Debug)]
pub(crate) struct Arrived(Packet);

impl From<Packet> for Arrived {
    /// Of a packet that was checked.
    fn from(checked: Packet) -> Self {
        Self(checked)
    }
}

impl From<Arrived> for Packet {
    fn from(arrived: Arrived) -> Self {
        arrived.0
    }
}

impl Arrived {
    /// Checks a packet; returns it with the reason if it is not good.
    pub(crate) fn check(mut packet: Packet) -> Result<Self, (Packet, Malformed)> {
        match packet.open() {
            Ok(()) => Ok(Self(packet)),
            Err(why) => Err((packet, why)),
        }
    }

    #[inline]
    pub(crate) fn packet(&self) -> &Packet {
        &self.0
    }

    #[inline]
    pub(crate) fn repr(&self) -> &Repr {
        self.0.repr()
    }

    #[inline]
    pub(crate) fn payload(&self) -> Payload<'_> {
        self.0.payload()
    }

    /// See [`Packet::payload_bytes`].
    pub(crate) fn payload_bytes(&self) -> &[u8] {
        self.0.payload_bytes()
    }

    /// See [`Packet::settle`].
    pub(crate) fn settle(&mut self) {
        self.0.settle();
    }

    /// The 40 bytes of the GRH as they were on the wire.
    pub(crate) fn grh(&self) -> Option<[u8; Grh::SIZE]> {
        self.0.grh()
    }

    /// Nobody needs it any more.
    pub(crate) fn retire(self) {
        self.0.retire();
    }
}

/// Something an adapter does later.
#[derive(Debug)]
pub(crate) enum HcaEvent {
    /// Fetch and execute the command in that slot.
    Command(u8),
    /// Deliver a command's output.
    CommandDone(Box<crate::adapter::command::Finished>),
    /// A doorbell was rung: look at the send queue.
    SendDoorbell(Qpn),
    /// A WQE came with its doorbell: the copy, in whole basic blocks.
    BlueFlame(Qpn, Box<[u8]>),
    /// The queue pair's turn to send a request packet.
    SendTurn(Qpn),
    /// The queue pair's turn to send a response packet.
    ResponseTurn(Qpn),
    /// A DC target's turn to answer one of its initiators.
    DynamicTurn(Peer),
    /// Nothing may have come from that initiator for long.
    DynamicIdle(Peer),
    /// A DC target drains; at the time given its connections are cut.
    DynamicDrain(Qpn, Ps),
    /// The ACK timer ran out; the deadline may have moved since.
    AckTimeout(Qpn),
    /// A queue pair in error looks for posted work to flush.
    ErrorPoll(Qpn),
    /// The RNR timer set with that generation ran out.
    RnrTimeout(Qpn, u32),
    /// A packet has passed the receive pipeline.
    Receive(Arrived),
    /// A packet has passed the send pipeline and its data is there; so many bytes are kept free for it at the port.
    Depart(Operation, Packet, usize),
    /// Requests without an answer have left: their completions are due.
    Sent(Qpn),
    /// The moderation period set with that generation ran out.
    CqModeration(Cqn, u32),
    /// The compression session of that generation was open long enough.
    CqSession(Cqn, u32),
    /// Raise an interrupt.
    Interrupt(u16),
    /// The port looks at what waits.
    PortTurn,
    /// An answer of the port's agents is ready.
    Answer(Packet),
    /// The port's agents may have something to say.
    AgentPoll,
    /// The link has trained.
    LinkUp,
}

impl HcaEvent {
    /// A packet in it whose payload is still in its sender's memory gets the bytes.
    pub(crate) fn settle(&mut self) {
        match self {
            Self::Receive(arrived) => arrived.settle(),
            Self::Depart(_, packet, _) | Self::Answer(packet) => packet.settle(),
            _ => {}
        }
    }
}

/// Effects that leave the adapter, in the order they happened.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) events: Vec<(Ps, HcaEvent)>,
    /// Packets that never leave the adapter, and when they are back.
    pub(crate) loopback: Vec<(Ps, Packet)>,
    /// Packets on the link.
    pub(crate) sent: Vec<Sent<()>>,
    /// When the port has to look at credits that arrive.
    pub(crate) credit_turn: Option<Ps>,
    pub(crate) vectors: Vec<u16>,
    /// The port went down or up, or its identity changed: the fabric has to look.
    pub(crate) port_changed: bool,
    /// The port lost its link, even if it has it again.
    pub(crate) link_lost: bool,
}

impl Outbox {
    /// Whether nothing is in it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let Self { events, loopback, sent, credit_turn, vectors, port_changed, link_lost } = self;
        events.is_empty()
            && sent.is_empty()
            && vectors.is_empty()
            && loopback.is_empty()
            && credit_turn.is_none()
            && !*port_changed
            && !*link_lost
    }

    /// Packets in it whose payload is still in memory get the bytes.
    pub(crate) fn settle(&mut self) {
        self.events.iter_mut().for_each(|(_, event)| event.settle());
        self.sent.iter_mut().for_each(|sent| sent.packet.settle());
    }
}

/// Counts of guest mistakes; the log is limited to a few lines per model second.
#[derive(Debug, Default)]
pub(crate) struct Diagnoses {
    pub(crate) total: u64,
    second: u64,
    in_second: u32,
}

impl Diagnoses {
    /// Lines per model second that reach the log.
    const LIMIT: u32 = 20;

    fn record(&mut self, now: Ps, text: std::fmt::Arguments<'_>, who: &str) {
        self.total += 1;
        let second = now.0 / Ps::from_ms(1000).0;
        if second != self.second {
            if self.in_second > Self::LIMIT {
                tracing::warn!(hca = who, "{} more diagnoses were not printed", self.in_second - Self::LIMIT);
            }
            (self.second, self.in_second) = (second, 0);
        }
        self.in_second += 1;
        if self.in_second <= Self::LIMIT {
            tracing::warn!(hca = who, at = %now, "{text}");
        }
    }
}

/// Which queue pair sends packets that are alike ([`crate::engines::qp::run`]): one at a time.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    allowed: bool,
    running: Option<Qpn>,
    begun: bool,
}

impl Runs {
    /// Whether there may be any.
    pub(crate) fn allow(&mut self, allowed: bool) {
        self.allowed = allowed;
    }

    #[inline]
    fn may_begin(&self, qpn: Qpn) -> bool {
        self.allowed && self.running.is_none_or(|running| running == qpn)
    }

    fn begin(&mut self, qpn: Qpn) {
        self.begun = self.running.replace(qpn).is_none();
    }

    /// The queue pair that has begun since the last call.
    #[inline]
    pub(crate) fn take_begun(&mut self) -> Option<Qpn> {
        if std::mem::take(&mut self.begun) { self.running } else { None }
    }

    /// Nothing of them is under way any more.
    pub(crate) fn end(&mut self) {
        self.running = None;
    }
}

pub(crate) struct Core {
    pub(crate) name: String,
    pub(crate) fw: Firmware,
    pub(crate) memory: Arc<dyn GuestMemory>,
    pub(crate) eqs: Slots<EventQueue>,
    pub(crate) event_routes: EventRoutes,
    pub(crate) cqs: Slots<CompletionQueue>,
    pub(crate) srqs: Slots<crate::engines::qp::recv::SharedQueue>,
    pub(crate) timing: Arc<Timing>,
    pub(crate) units: crate::units::Units,
    pub(crate) port: PortOut,
    pub(crate) out: Outbox,
    pub(crate) diagnoses: Diagnoses,
    pub(crate) counting: Counting,
    /// Counts what changed memory keys.
    pub(crate) key_changes: u64,
    pub(crate) runs: Runs,
    /// What those who look on want to see.
    pub(crate) watch: Option<Box<Watch>>,
}

impl Core {
    pub(crate) fn new(name: String, fw: Firmware, timing: Arc<Timing>) -> Self {
        Self {
            name,
            fw,
            memory: Arc::new(NoMemory),
            eqs: Slots::default(),
            event_routes: EventRoutes::default(),
            cqs: Slots::default(),
            srqs: Slots::default(),
            units: crate::units::Units::new(&timing),
            port: PortOut::new(timing.agent_queue()),
            timing,
            out: Outbox::default(),
            diagnoses: Diagnoses::default(),
            counting: Counting::default(),
            key_changes: 0,
            runs: Runs::default(),
            watch: None,
        }
    }

    /// Power-on state; the host's memory and the identity stay.
    pub(crate) fn reset(&mut self) {
        // Every field is named, so that a new one cannot be forgotten here.
        let Self {
            name: _,
            fw,
            memory: _,
            eqs,
            event_routes,
            cqs,
            srqs,
            timing,
            units,
            port,
            out,
            diagnoses: _,
            counting,
            key_changes,
            runs: _,
            watch,
        } = self;
        *key_changes += 1;
        fw.reset();
        eqs.clear();
        *event_routes = EventRoutes::default();
        cqs.clear();
        srqs.clear();
        *units = crate::units::Units::new(timing);
        if watch.as_ref().is_some_and(|w| w.records.is_some()) {
            units.start_notes();
        }
        port.reset();
        *out = Outbox::default();
        *counting = Counting::default();
    }

    /// Begins a run of packets of a queue pair with the packet at its cursor, if there can be one.
    #[inline(always)]
    pub(crate) fn begin_run(&mut self, qp: &mut QueuePair) {
        if self.runs.may_begin(qp.qpn) && qp.may_run() {
            qp.run = qp.plan_run(&self.view(), &self.memory, self.key_changes);
            if qp.run.is_some() {
                self.runs.begin(qp.qpn);
            }
        }
    }

    /// What engines may look at.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        View::new(&self.fw, self.event_queue_for(EventType::PageFault).is_some())
    }

    pub(crate) fn schedule(&mut self, at: Ps, event: HcaEvent) {
        self.out.events.push((at, event));
    }

    /// Records a guest's mistake in plain words.
    pub(crate) fn diagnose(&mut self, now: Ps, text: std::fmt::Arguments<'_>) {
        self.diagnoses.record(now, text, &self.name);
    }

    pub(crate) fn read<const N: usize>(&self, iova: u64) -> Result<[u8; N], DmaError> {
        let mut bytes = [0; N];
        self.memory.read(iova, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn read_be32(&self, iova: u64) -> Result<u32, DmaError> {
        self.read(iova).map(u32::from_be_bytes)
    }
}
