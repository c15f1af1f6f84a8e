//! What an adapter does later, and the packets that come with it.

use hca_spec::ids::{Cqn, Qpn, Rqn};
use hca_spec::wire::{Grh, Operation};

use super::frames::{MergedFrame, QueuedFrame};
use crate::engines::command::{Fetch, Output};
use crate::engines::qp::dct::{Drain, FaultTold, Peer};
use crate::engines::qp::run::Half;
use crate::faults::{Held, ModuleChange};
use crate::ground::epoch::Rebase;
use crate::ground::region::Payload;
use crate::ground::time::Ps;
use crate::link_layer::{Packet, Path};
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

impl Rebase for HcaEvent {
    fn rebase(&mut self, by: Ps) {
        if let Self::DynamicDrain(drain) = self {
            drain.rebase(by);
        }
    }
}
