//! What the executor works on beside queue pairs. Of the chip: units, ports, the outbox of effects. Of the function: the firmware and its
//! tables, guest memory, the engines of event and completion queues.

use hca_firmware::FunctionId;
use hca_spec::eqe::EventType;
use hca_spec::ids::{Cqn, Pd, Qpn, Rqn};
use hca_spec::wire::{Grh, Operation};

use crate::adapter::chip::Chip;
use crate::adapter::ethernet::{MergedFrame, QueuedFrame};
use crate::adapter::function::FunctionState;
use crate::adapter::returning::Returned;
use crate::engines::command::{Fetch, Output};
use crate::engines::mkey::Fault;
use crate::engines::qp::QueuePair;
use crate::engines::qp::dct::{Drain, FaultTold, Peer};
use crate::engines::qp::run::Half;
use crate::engines::view::View;
use crate::faults::{Held, ModuleChange};
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::dma::DmaError;
use crate::ground::epoch::Rebase;
use crate::ground::region::Payload;
use crate::ground::time::Ps;
use crate::link_layer::{Packet, Path, Sent};
use crate::wire::{Malformed, Repr};

/// A packet whose headers and checksums were found good, and the port that it came by.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    packet: Packet,
    pub(crate) port: u8,
}

impl From<Arrived> for Packet {
    fn from(arrived: Arrived) -> Self {
        arrived.packet
    }
}

impl Arrived {
    /// Of a packet that was checked.
    pub(crate) fn checked(port: u8, packet: Packet) -> Self {
        Self { packet, port }
    }

    /// Checks a packet; returns it with the reason if it is not good.
    #[inline(always)]
    pub(crate) fn check(port: u8, mut packet: Packet) -> Result<Self, (Packet, Malformed)> {
        match packet.open() {
            Ok(()) => Ok(Self { packet, port }),
            Err(why) => Err((packet, why)),
        }
    }

    #[inline]
    pub(crate) fn packet(&self) -> &Packet {
        &self.packet
    }

    #[inline]
    pub(crate) fn path(&self) -> &Path {
        self.packet.path()
    }

    #[inline]
    pub(crate) fn repr(&self) -> &Repr {
        self.packet.repr()
    }

    #[inline]
    pub(crate) fn payload(&self) -> Payload<'_> {
        self.packet.payload()
    }

    /// See [`Packet::payload_bytes`].
    pub(crate) fn payload_bytes(&self) -> &[u8] {
        self.packet.payload_bytes()
    }

    /// See [`Packet::fetch_payload`].
    pub(crate) fn fetch_payload(&mut self) {
        self.packet.fetch_payload();
    }

    /// The 40 bytes of the GRH as they were on the wire.
    pub(crate) fn grh(&self) -> Option<[u8; Grh::SIZE]> {
        self.packet.grh()
    }

    /// Nobody needs it any more.
    #[inline(always)]
    pub(crate) fn retire(self) {
        self.packet.retire();
    }
}

/// Something an adapter does later.
#[derive(Debug)]
pub(crate) enum HcaEvent {
    /// Fetch and execute the command in that slot.
    Command(u8),
    /// Go on fetching a command that waited for an answer of memory.
    FetchCommand(Box<Fetch>),
    /// Execute a command whose input is whole, behind what its object waits for.
    ExecuteCommand(Box<Fetch>),
    /// Deliver a command's output.
    CommandDone(Box<Output>),
    /// Inputs whose answers came go on: there were more than one event carries out.
    Resume,
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
    /// A DC target drains.
    DynamicDrain(Box<Drain>),
    /// Further connections of a DC target hear that a page fault was dealt with.
    DynamicFault(Box<FaultTold>),
    /// The ACK timer ran out; the deadline may have moved since.
    AckTimeout(Qpn),
    /// Queues that their groups' weights hold back may have waited for too long.
    GroupTurn,
    /// A queue pair in error looks for posted work to flush.
    ErrorPoll(Qpn),
    /// The RNR timer set with that generation ran out.
    RnrTimeout(Qpn, u32),
    /// A packet has passed the receive pipeline.
    Receive(Arrived),
    /// A copy of a multicast datagram for a member of its group.
    ReceiveCopy(Qpn, Arrived),
    /// A frame that is no transport packet has passed the receive pipeline, to a receive queue.
    QueueFrame(Box<QueuedFrame>),
    /// A frame that its receiver may have merged has passed steering.
    MergeFrame(Box<MergedFrame>),
    /// That session of a receive queue's merging was open long enough.
    MergeTimeout(Rqn, u32),
    /// A receive queue of frames is in error: flush more of what was posted.
    FlushFrames(Rqn),
    /// A packet has passed the send pipeline and its data is there: to its port.
    Depart(Departing),
    /// Requests without an answer have left: their completions are due.
    Sent(Qpn),
    /// The moderation period set with that generation ran out.
    CqModeration(Cqn, u32),
    /// The compression session of that generation was open long enough.
    CqSession(Cqn, u32),
    /// Raise an interrupt.
    Interrupt(u16),
    /// A port looks at what waits.
    PortTurn(u8),
    /// An answer of a port's agents is ready.
    Answer(u8, Packet),
    /// A port's agents may have something to say.
    AgentPoll(u8),
    /// A port begins to train its link.
    LinkUp(u8),
    /// A port changed: an event of that sub-type for the driver.
    PortChange(u8, u8),
    /// Tell that something happened to what is in a port's cage.
    Module(u8, ModuleChange),
    /// Warn that sensors are too hot, a bit each.
    Heat(u64),
    /// Write the firmware's traces.
    Traces,
    /// The firmware's tracer may be taken: an event for the driver.
    TracerFree,
    /// The physical function has disabled this virtual one.
    TakenAway,
    /// The driver is asked, or told, about a start of the firmware.
    SyncReset(u8),
    /// Drivers were waited for: the wait of that number is over.
    SyncResetLate(u32),
    /// What was put off on script.
    Scripted(Box<Held>),
}

/// A packet on its way to a port.
#[derive(Debug)]
pub(crate) struct Departing {
    pub(crate) port: u8,
    pub(crate) operation: Operation,
    /// So many bytes are kept free for it at the port.
    pub(crate) reserved: u32,
    /// Not on a lane of the link: it is for the port itself.
    pub(crate) own: bool,
    pub(crate) packet: Packet,
}

impl HcaEvent {
    /// A queue pair's turn to send a packet of that half.
    #[inline]
    pub(crate) const fn turn(half: Half, qpn: Qpn) -> Self {
        match half {
            Half::Requester => Self::SendTurn(qpn),
            Half::Responder => Self::ResponseTurn(qpn),
        }
    }

    /// Whether it is that turn.
    #[inline]
    pub(crate) fn is_turn(&self, half: Half, of: Qpn) -> bool {
        match self {
            Self::SendTurn(qpn) => half == Half::Requester && *qpn == of,
            Self::ResponseTurn(qpn) => half == Half::Responder && *qpn == of,
            _ => false,
        }
    }

    /// A packet in it whose payload is still in its sender's memory gets the bytes.
    pub(crate) fn fetch_payload(&mut self) {
        match self {
            Self::Receive(arrived) | Self::ReceiveCopy(_, arrived) => arrived.fetch_payload(),
            Self::Depart(Departing { packet, .. }) | Self::Answer(_, packet) => packet.fetch_payload(),
            Self::QueueFrame(queued) => queued.packet.fetch_payload(),
            Self::MergeFrame(frame) => frame.queued.packet.fetch_payload(),
            _ => {}
        }
    }
}

/// Effects that leave the adapter, in the order they happened.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// What the function that acts does later.
    pub(crate) events: Vec<(Ps, HcaEvent)>,
    /// Packets on the link of a port.
    pub(crate) sent: Vec<(u8, Sent<()>)>,
    /// Everything else, and whether there may be any of it.
    rare: Rare,
    has_rare: bool,
}

/// Effects that few events have.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// What other functions do later.
    pub(crate) for_others: Vec<(Ps, FunctionId, HcaEvent)>,
    /// Packets that never leave the adapter: when they are back, and at which port.
    pub(crate) loopback: Vec<(Ps, u8, Packet, Returned)>,
    /// When a port has to look at credits that arrive; each port is here once.
    pub(crate) credit_turns: Vec<(u8, Ps)>,
    pub(crate) vectors: Vec<u16>,
    /// Ports at which the fabric has to look; each is here once.
    pub(crate) ports_changed: Vec<PortChanged>,
}

/// A port went down or up, or its identity changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortChanged {
    pub(crate) port: u8,
    /// It lost its link, even if it has it again.
    pub(crate) link_lost: bool,
}

impl Outbox {
    /// Whether nothing is in it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && !self.has_others()
    }

    /// Whether something is in it besides what the function that acts does later.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.has_rare() || !self.sent.is_empty()
    }

    /// Whether something is in it besides that and packets.
    #[inline]
    pub(crate) fn has_rare(&self) -> bool {
        self.has_rare
    }

    /// What is in it besides that and packets, to add to it.
    #[inline(never)]
    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.has_rare = true;
        &mut self.rare
    }

    /// The same, all of which is taken out now.
    pub(crate) fn take_rare(&mut self) -> &mut Rare {
        self.has_rare = false;
        &mut self.rare
    }

    /// Packets in it whose payload is still in memory get the bytes.
    pub(crate) fn fetch_payload(&mut self) {
        self.events.iter_mut().for_each(|(_, event)| event.fetch_payload());
        self.rare.for_others.iter_mut().for_each(|(_, _, event)| event.fetch_payload());
        self.sent.iter_mut().for_each(|(_, sent)| sent.packet.fetch_payload());
    }

    /// A port looks at its credits then, and no more when it wanted to before.
    pub(crate) fn credit_turn(&mut self, port: u8, at: Ps) {
        let turns = &mut self.rare().credit_turns;
        match turns.iter_mut().find(|(of, _)| *of == port) {
            Some((_, turn)) => *turn = at,
            None => turns.push((port, at)),
        }
    }

    /// The fabric has to look at a port.
    pub(crate) fn port_changed(&mut self, port: u8, link_lost: bool) {
        let changes = &mut self.rare().ports_changed;
        match changes.iter_mut().find(|changed| changed.port == port) {
            Some(changed) => changed.link_lost |= link_lost,
            None => changes.push(PortChanged { port, link_lost }),
        }
    }
}

/// Which queue pair sends packets that are alike ([`crate::engines::qp::run`]): one at a time.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    allowed: bool,
    running: Option<(Qpn, Half)>,
    begun: bool,
}

impl Runs {
    /// Whether there may be any.
    pub(crate) fn allow(&mut self, allowed: bool) {
        self.allowed = allowed;
    }

    #[inline]
    fn may_begin(&self, sender: (Qpn, Half)) -> bool {
        self.allowed && self.running.is_none_or(|running| running == sender)
    }

    fn begin(&mut self, sender: (Qpn, Half)) {
        self.begun = self.running.replace(sender).is_none();
    }

    /// Whether one has begun since the last call of [`Runs::take_begun`].
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// The queue pair that has begun since the last call, and with which of its packets.
    #[inline]
    pub(crate) fn take_begun(&mut self) -> Option<(Qpn, Half)> {
        if std::mem::take(&mut self.begun) { self.running } else { None }
    }

    /// Nothing of them is under way any more.
    pub(crate) fn end(&mut self) {
        self.running = None;
    }
}

/// A function and the chip that it is on, but for queue pairs: those are apart, so that one can be worked on with this.
pub(crate) struct Core<'a> {
    pub(crate) chip: &'a mut Chip,
    pub(crate) function: &'a mut FunctionState,
    /// Which function it is.
    pub(crate) id: FunctionId,
}

impl Core<'_> {
    /// Begins a run of packets of a queue pair with the next one of that half, if there can be one.
    #[inline(always)]
    pub(crate) fn begin_run(&mut self, qp: &mut QueuePair, half: Half) {
        let may_run = match half {
            Half::Requester => qp.may_run(),
            Half::Responder => qp.may_run_responses(),
        };
        if may_run && self.function.runs.may_begin((qp.qpn, half)) {
            let (view, memory, keys) = (self.view(), &self.function.memory, self.function.key_changes);
            qp.run = match half {
                Half::Requester => qp.plan_run(&view, memory, keys),
                Half::Responder => qp.plan_response_run(&view, memory, keys),
            };
            if qp.run.is_some() {
                self.function.runs.begin((qp.qpn, half));
            }
        }
    }

    /// What engines may look at.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        let pages = self.event_queue_for(EventType::PageFault).is_some();
        View::new(&self.function.fw, &self.chip.managed, pages, self.function.faults_told)
    }

    #[inline(always)]
    pub(crate) fn schedule(&mut self, at: Ps, event: HcaEvent) {
        self.chip.out.events.push((at, event));
    }

    /// Schedules what a port does: that goes on whatever becomes of this function, and is the first one's, which manages
    /// the ports.
    #[inline]
    pub(crate) fn schedule_port(&mut self, at: Ps, event: HcaEvent) {
        self.schedule_for(at, FunctionId::FIRST, event);
    }

    /// Schedules what that function does.
    #[inline(always)]
    pub(crate) fn schedule_for(&mut self, at: Ps, function: FunctionId, event: HcaEvent) {
        match function == self.id {
            true => self.chip.out.events.push((at, event)),
            false => self.chip.out.rare().for_others.push((at, function, event)),
        }
    }

    /// The functions beside this one.
    pub(crate) fn others(&self) -> impl Iterator<Item = FunctionId> + use<> {
        let own = self.id;
        (0..self.chip.functions).map(FunctionId).filter(move |id| *id != own)
    }

    /// Records a guest's mistake in plain words.
    pub(crate) fn diagnose(&mut self, now: Ps, text: std::fmt::Arguments<'_>) {
        self.function.diagnoses.refused(now, text, &self.chip.name);
    }

    /// Records a guest's mistake that breaks a rule, and that the adapter has answered.
    #[cold]
    pub(crate) fn answer_mistake(&mut self, now: Ps, finding: impl FnOnce() -> Finding) {
        self.function.diagnoses.answered(now, finding, &self.chip.name);
    }

    /// Records an access that was refused: by a queue pair, at that place of what it did.
    #[cold]
    pub(crate) fn fault(
        &mut self,
        now: Ps,
        subject: Subject,
        place: std::fmt::Arguments<'_>,
        pd: Pd,
        fault: &Fault,
    ) {
        let FunctionState { diagnoses, fw, .. } = &mut *self.function;
        diagnoses.answered(now, || fault.explained(subject, place, &fw.icm, pd), &self.chip.name);
    }

    /// Whether a read is answered now: the input that is carried out may go on with it.
    pub(crate) fn is_there(&self, iova: u64, len: usize) -> bool {
        self.function.outstanding.as_ref().is_none_or(|outstanding| outstanding.is_there(iova, len))
    }

    pub(crate) fn read<const N: usize>(&self, iova: u64) -> Result<[u8; N], DmaError> {
        let mut bytes = [0; N];
        self.function.memory.read(iova, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn read_be32(&self, iova: u64) -> Result<u32, DmaError> {
        self.read(iova).map(u32::from_be_bytes)
    }
}

impl Rebase for HcaEvent {
    fn rebase(&mut self, by: Ps) {
        if let Self::DynamicDrain(drain) = self {
            drain.rebase(by);
        }
    }
}
