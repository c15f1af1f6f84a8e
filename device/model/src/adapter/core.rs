//! What every engine of an adapter may use: the firmware and its tables, guest memory, event and
//! completion queues, the ports' way out, and the outbox of effects.

use std::cell::RefCell;
use std::sync::Arc;

use hca_firmware::Firmware;
use hca_spec::eqe::{Eqe, EventType};
use hca_spec::ids::{Cqn, Eqn, Qpn};
use hca_spec::wire::{Grh, Operation};

use crate::adapter::counters::Counting;
use crate::adapter::port::PortOut;
use crate::adapter::watch::Watch;
use crate::engines::cq::CompletionQueue;
use crate::engines::eq::EventQueue;
use crate::engines::signature::SignatureError;
use crate::engines::transport::dct::Peer;
use crate::ground::dma::{DmaError, GuestMemory, NoMemory};
use crate::ground::event::Event;
use crate::ground::slots::Slots;
use crate::ground::time::Ps;
use crate::ground::timing::Timing;
use crate::link::egress::Sent;
use crate::wire::{Malformed, Packet, Repr};

/// A packet whose headers and checksums were found good.
#[derive(Debug)]
pub(crate) struct Arrived(Packet);

impl Arrived {
    /// Checks a packet; gives it back with the reason if it is not good.
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
    pub(crate) fn payload(&self) -> &[u8] {
        self.0.payload()
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

pub(crate) struct Core {
    pub(crate) name: String,
    pub(crate) fw: Firmware,
    pub(crate) memory: Arc<dyn GuestMemory>,
    pub(crate) eqs: Slots<EventQueue>,
    pub(crate) cqs: Slots<CompletionQueue>,
    pub(crate) srqs: Slots<crate::engines::transport::recv::SharedQueue>,
    pub(crate) timing: Arc<Timing>,
    pub(crate) units: crate::units::Units,
    pub(crate) port: PortOut,
    pub(crate) out: Outbox,
    /// Signatures that were found wrong and are to be told of.
    pub(crate) signature_errors: RefCell<Vec<SignatureError>>,
    pub(crate) diagnoses: Diagnoses,
    pub(crate) counting: Counting,
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
            cqs: Slots::default(),
            srqs: Slots::default(),
            units: crate::units::Units::new(&timing),
            port: PortOut::new(timing.agent_queue()),
            timing,
            out: Outbox::default(),
            signature_errors: RefCell::default(),
            diagnoses: Diagnoses::default(),
            counting: Counting::default(),
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
            cqs,
            srqs,
            timing,
            units,
            port,
            out,
            signature_errors,
            diagnoses: _,
            counting,
            watch,
        } = self;
        fw.reset();
        eqs.clear();
        cqs.clear();
        srqs.clear();
        *units = crate::units::Units::new(timing);
        if watch.as_ref().is_some_and(|w| w.records.is_some()) {
            units.start_notes();
        }
        port.reset();
        *out = Outbox::default();
        signature_errors.take();
        *counting = Counting::default();
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

    /// Sends an event to one event queue and raises its interrupt if it is armed.
    pub(crate) fn push_eqe(&mut self, now: Ps, eqn: Eqn, eqe: Eqe) {
        let Some(eq) = self.eqs.get_mut(eqn.0.into()) else { return };
        match eq.push(&*self.memory, eqe) {
            Ok(Some(vector)) => {
                let at = now + self.timing.interrupt();
                self.note_eqe(now, eqn, &eqe);
                self.schedule(at, HcaEvent::Interrupt(vector));
            }
            Ok(None) => self.note_eqe(now, eqn, &eqe),
            Err(why) => self.diagnose(now, format_args!("EQ {eqn}: event {eqe:?} lost: {why}")),
        }
    }

    fn note_eqe(&mut self, now: Ps, eqn: Eqn, eqe: &Eqe) {
        let kind = eqe.get(Eqe::TYPE) as u8;
        let completion = kind == EventType::Completion as u8;
        let number = eqe.get(if completion { Eqe::COMPLETION_CQN } else { Eqe::QUEUE_NUMBER });
        self.note(now, Event::Eqe { eqn, kind, number });
    }

    /// The event queue that asked for events of that type.
    pub(crate) fn event_queue_for(&self, event: EventType) -> Option<Eqn> {
        self.fw.icm.eqs.iter().find(|(_, eq)| eq.wants(event as u8)).map(|(n, _)| Eqn(n as u8))
    }

    /// Sends an asynchronous event to the event queue that asked for its type, if one did.
    pub(crate) fn push_event(&mut self, now: Ps, event: EventType, eqe: &mut Eqe) {
        eqe.set(Eqe::TYPE, event as u32);
        match self.event_queue_for(event) {
            Some(eqn) => self.push_eqe(now, eqn, *eqe),
            None => tracing::debug!(hca = self.name, ?event, "no event queue asked for this event"),
        }
    }

    /// Sends an asynchronous event about a queue pair.
    pub(crate) fn push_qp_event(&mut self, now: Ps, event: EventType, qpn: Qpn) {
        let mut eqe = Eqe::new();
        eqe.set(Eqe::QUEUE_NUMBER, qpn.0);
        self.push_event(now, event, &mut eqe);
    }
}
