//! The events, and what each says.

use std::fmt;

use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Cqn, Eqn, Lid, Psn, Qpn};
use hca_spec::qpc::QpState;
use hca_spec::wire::Operation;
use hca_spec::wqe::SendOpcode;

/// Part of an adapter that an event belongs to: a track of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// Command queue and firmware.
    Command,
    /// From the CPU's store to the adapter.
    Doorbell,
    /// Fetch of send work requests.
    Fetch,
    /// The requester: work requests begun, held back, retried, done.
    Requester,
    /// Builds packets.
    Transmit,
    /// The port: packets that leave it, its state.
    Port,
    /// Checks packets that arrive.
    Receive,
    /// The responder: requests executed and answered.
    Responder,
    /// Reads of the host's memory.
    DmaRead,
    /// Writes to the host's memory.
    DmaWrite,
    /// Caches of contexts, keys and translations: what was not in them.
    Cache,
    /// Completion queues.
    Completion,
    /// Event queues.
    Event,
    /// MSI-X.
    Interrupt,
    /// What goes wrong on script.
    Fault,
}

impl Unit {
    /// Every unit, in the order of a picture.
    pub const ALL: [Unit; 15] = [
        Self::Command,
        Self::Doorbell,
        Self::Fetch,
        Self::Requester,
        Self::Transmit,
        Self::Port,
        Self::Receive,
        Self::Responder,
        Self::DmaRead,
        Self::DmaWrite,
        Self::Cache,
        Self::Completion,
        Self::Event,
        Self::Interrupt,
        Self::Fault,
    ];

    /// Its name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Doorbell => "doorbell",
            Self::Fetch => "WQE fetch",
            Self::Requester => "requester",
            Self::Transmit => "transmit",
            Self::Port => "port",
            Self::Receive => "receive",
            Self::Responder => "responder",
            Self::DmaRead => "DMA read",
            Self::DmaWrite => "DMA write",
            Self::Cache => "cache",
            Self::Completion => "completion",
            Self::Event => "event queue",
            Self::Interrupt => "interrupt",
            Self::Fault => "fault",
        }
    }
}

/// What a field of an event holds.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// One of a set, by number and name.
    Named(u64, &'a dyn fmt::Debug),
}

trait Field {
    fn value(&self) -> Value<'_>;
}

macro_rules! fields {
    ($($kind:ty: |$it:ident| $value:expr;)*) => {$(
        impl Field for $kind {
            fn value(&self) -> Value<'_> {
                let $it = self;
                $value
            }
        }
    )*};
}

fields! {
    u64: |n| Value::Number(*n);
    u32: |n| Value::Number((*n).into());
    u16: |n| Value::Number((*n).into());
    u8: |n| Value::Number((*n).into());
    Qpn: |n| Value::Number(n.0.into());
    Cqn: |n| Value::Number(n.0.into());
    Eqn: |n| Value::Number(n.0.into());
    Lid: |n| Value::Number(n.0.into());
    Psn: |n| Value::Number(n.get().into());
    bool: |b| Value::Named((*b).into(), b);
    Operation: |op| Value::Named(*op as u64, op);
    SendOpcode: |op| Value::Named(*op as u64, op);
    Hold: |why| Value::Named(*why as u64, why);
    Object: |what| Value::Named(*what as u64, what);
    Cause: |why| Value::Named(*why as u64, why);
    Queue: |what| Value::Named(*what as u64, what);
    Unwanted: |why| Value::Named(*why as u64, why);
    Seam: |seam| Value::Named(*seam as u64, seam);
    QpState: |state| Value::Named(*state as u64, state);
    Status: |s| Value::Named(s.0.map_or(0, |s| s as u64), s);
}

/// How a work request ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub Option<Syndrome>);

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("Ok"),
            Some(syndrome) => syndrome.fmt(f),
        }
    }
}

/// Why a send queue does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Hold {
    /// The peer said that it has no receive request; its timer runs.
    ReceiverNotReady,
    /// The peer has no receive request as far as its credits say.
    NoCredit,
    /// As many reads and atomics are outstanding as the peer has resources for.
    ReadDepth,
    /// A fence waits for reads and atomics.
    Fence,
    /// As many packets are in flight as the adapter keeps, or as many requests as the send queue has places.
    Window,
    /// Requests under way take as much of the adapter's memory as they may.
    Memory,
    /// The driver has to bring a page in.
    PageFault,
    /// A dynamic connection is being made.
    Connecting,
}

/// What is read from the host's memory or written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Object {
    /// Send work requests.
    Wqe,
    /// Data of messages.
    Data,
    /// The context of a queue pair.
    Context,
    /// The context of a completion queue.
    CqContext,
    /// The context of a memory key.
    Key,
    /// A line of a key's translations.
    Translation,
    /// A completion.
    Cqe,
    /// What an atomic works on.
    Operand,
}

/// Why packets are sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// No answer in time.
    Timeout,
    /// The peer missed a packet and said so.
    SequenceNak,
    /// A response did not come although later ones did.
    MissingResponse,
    /// The peer had no receive request; its timer ran out.
    ReceiverNotReady,
}

/// A kind of queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Queue {
    /// Queue pair.
    Qp,
    /// Completion queue.
    Cq,
    /// Event queue.
    Eq,
}

/// Why a queue pair does not get a packet that is addressed to it, or does not take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Unwanted {
    /// There is no such queue pair.
    NoQueuePair,
    /// It does not receive in its state, or is of another service; `own` is the state.
    State,
    /// It is of another partition; `own` is its P_Key.
    Partition,
    /// It is at another port; `own` is that.
    Port,
    /// It is connected to somebody else; `own` is its remote queue pair number.
    Peer,
    /// Its PSN lies ahead of the one that is expected; `own` is that.
    Ahead,
    /// Its PSN lies behind the one that is expected, so it counts as one that came before; `own` is the one expected.
    Behind,
    /// It has no receive request for it; `own` is 0.
    NoReceive,
    /// A GID in its GRH is not that of the queue pair's path, or it lacks a GRH; `own` is 0.
    Gid,
}

/// Where something goes wrong on script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Seam {
    /// A command; the object is its opcode.
    Command,
    /// An entry of an event queue; the object is the queue.
    Event,
    /// An entry of a completion queue; the object is the queue.
    Completion,
    /// An interrupt; the object is its vector.
    Interrupt,
    /// A packet that came; the object is its opcode.
    Packet,

    /// A function level reset; there is no object.
    Reset,
    /// Of itself, at a given time; there is no object.
    Time,
    /// An access to the host's memory; the object is the lower part of its page's number.
    Dma,
}

impl fmt::Display for Seam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Command => "command",
            Self::Event => "event of EQ",
            Self::Completion => "completion of CQ",
            Self::Interrupt => "interrupt",
            Self::Packet => "packet",
            Self::Dma => "access to page",
            Self::Reset => "reset of function",
            Self::Time => "time of function",
        })
    }
}

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident $name:literal on $unit:ident
        { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        /// What happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Event {
            $($(#[$doc])* $variant { $($(#[$field_doc])* $field: $kind,)* },)*
        }

        impl Event {
            /// Its name.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name,)* }
            }

            /// The part of the adapter that it belongs to.
            pub const fn unit(&self) -> Unit {
                match self { $(Self::$variant { .. } => Unit::$unit,)* }
            }

            /// Visits its fields in order: name and value.
            pub fn fields(&self, visit: &mut dyn FnMut(&'static str, Value<'_>)) {
                match self {
                    $(Self::$variant { $($field),* } => { $(visit(stringify!($field), $field.value());)* })*
                }
            }
        }
    };
}

events! {
    /// A command was handed over and fetched.
    Command "command" on Command {
        /// Its slot in the queue.
        slot: u8,
        /// What it asks for.
        opcode: u16,
    }
    /// A command's output was delivered.
    CommandDone "command done" on Command {
        /// Its slot in the queue.
        slot: u8,
        /// Delivery status: 0 is good.
        delivery: u8,
    }
    /// The host read or wrote a register of the initialization segment.
    Register "register" on Doorbell {
        /// Its offset in BAR0.
        offset: u32,
        /// It was written.
        write: bool,
    }
    /// A send doorbell was rung.
    Doorbell "doorbell" on Doorbell {
        /// The queue pair.
        qpn: Qpn,
        /// Place in the send queue of the WQE that it names.
        index: u16,
        /// Basic blocks of that WQE; 0: it names none.
        blocks: u16,
    }
    /// A completion queue was armed.
    Armed "arm" on Doorbell {
        /// The completion queue.
        cqn: Cqn,
        /// The driver has read the entries before this one.
        consumer: u32,
        /// Sequence number of the arming.
        sequence: u8,
        /// Only solicited completions and errors count.
        solicited: bool,
    }
    /// The consumer index of an event queue moved.
    EqConsumed "EQ consumed" on Doorbell {
        /// The event queue.
        eqn: Eqn,
        /// The driver has read the entries before this one.
        consumer: u32,
        /// The queue was armed with it.
        armed: bool,
    }
    /// A command brought a queue pair to a state.
    QpModified "QP state" on Command {
        /// The queue pair.
        qpn: Qpn,
        /// The state that it was in.
        from: QpState,
        /// Its state now.
        to: QpState,
    }
    /// A queue was destroyed.
    Destroyed "destroyed" on Command {
        /// What.
        what: Queue,
        /// Its number.
        number: u32,
    }
    /// A work request was written to a BlueFlame register.
    BlueFlame "BlueFlame" on Doorbell {
        /// The queue pair.
        qpn: Qpn,
        /// Its place in the send queue.
        index: u16,
    }
    /// The doorbell record and the next work requests are read.
    Fetch "fetch" on Fetch {
        /// The queue pair.
        qpn: Qpn,
        /// Place in the send queue of the first.
        head: u16,
        /// Place behind the last that is posted.
        posted: u16,
    }
    /// A work request begins: from now on it owns PSNs.
    Started "start" on Requester {
        /// The queue pair.
        qpn: Qpn,
        /// Its place in the send queue.
        index: u16,
        /// What it asks for.
        opcode: SendOpcode,
        /// Bytes.
        length: u64,
        /// First PSN.
        psn: Psn,
        /// How many PSNs; none for local operations.
        packets: u32,
        /// The peer.
        dest_qp: Qpn,
        /// Where the peer is.
        dlid: Lid,
        /// A completion is asked for even if it goes well.
        signaled: bool,
    }
    /// A work request that cannot be executed.
    Unreadable "unreadable" on Requester {
        /// The queue pair.
        qpn: Qpn,
        /// Its place in the send queue.
        index: u16,
    }
    /// The send queue can't go on for now.
    Held "held" on Requester {
        /// The queue pair.
        qpn: Qpn,
        /// Why.
        why: Hold,
    }
    /// No answer came in time.
    Timeout "timeout" on Requester {
        /// The queue pair.
        qpn: Qpn,
        /// The oldest PSN that is not acknowledged.
        psn: Psn,
    }
    /// Packets are sent again.
    Retry "retry" on Requester {
        /// The queue pair.
        qpn: Qpn,
        /// From here on.
        psn: Psn,
        /// Why.
        why: Cause,
    }
    /// An answer of the peer counts.
    Answered "answer" on Requester {
        /// The queue pair.
        qpn: Qpn,
        /// Its PSN: everything up to it was received.
        psn: Psn,
        /// Which kind.
        operation: Operation,
        /// AETH syndrome; 0 if there is none.
        syndrome: u8,
    }
    /// A work request is over.
    Done "done" on Requester {
        /// The queue pair.
        qpn: Qpn,
        /// Its place in the send queue.
        index: u16,
        /// How it ended.
        status: Status,
    }
    /// A request packet is built.
    Build "build" on Transmit {
        /// The queue pair.
        qpn: Qpn,
        /// Place in the send queue of its work request.
        index: u16,
        /// Its PSN.
        psn: Psn,
        /// Its operation.
        operation: Operation,
        /// Bytes, LRH to VCRC.
        bytes: u32,
    }
    /// A response packet is built.
    Respond "respond" on Transmit {
        /// The queue pair.
        qpn: Qpn,
        /// Its PSN.
        psn: Psn,
        /// Its operation.
        operation: Operation,
        /// Bytes, LRH to VCRC.
        bytes: u32,
    }
    /// A packet leaves the port.
    Sent "sent" on Port {
        /// Source.
        slid: Lid,
        /// Destination.
        dlid: Lid,
        /// The queue pair it is for.
        dest_qp: Qpn,
        /// Its PSN.
        psn: Psn,
        /// BTH opcode: transport and operation.
        opcode: u8,
        /// Bytes, LRH to VCRC.
        bytes: u32,
    }
    /// A packet arrived and is checked.
    Received "received" on Receive {
        /// Source.
        slid: Lid,
        /// Destination.
        dlid: Lid,
        /// The queue pair it is for.
        dest_qp: Qpn,
        /// Its PSN.
        psn: Psn,
        /// BTH opcode: transport and operation.
        opcode: u8,
        /// Bytes, LRH to VCRC.
        bytes: u32,
    }
    /// A packet arrived that the port drops.
    Dropped "dropped" on Receive {
        /// Source.
        slid: Lid,
        /// Destination.
        dlid: Lid,
        /// The queue pair it is for.
        dest_qp: Qpn,
        /// Its PSN.
        psn: Psn,
        /// BTH opcode: transport and operation.
        opcode: u8,
        /// Bytes, LRH to VCRC.
        bytes: u32,
    }
    /// The state of the port: 1 down, 2 initialize, 3 armed, 4 active.
    Port "port state" on Port {
        /// Port state of PortInfo.
        state: u8,
    }
    /// A request of the peer was executed.
    Executed "execute" on Responder {
        /// The queue pair.
        qpn: Qpn,
        /// Source of the packet.
        slid: Lid,
        /// Its PSN.
        psn: Psn,
        /// Its operation.
        operation: Operation,
        /// Bytes of payload.
        bytes: u32,
    }
    /// A packet for a queue pair that does not get or take it.
    Unwanted "unwanted" on Responder {
        /// The queue pair.
        qpn: Qpn,
        /// Source of the packet; 0 if it came by Ethernet.
        slid: Lid,
        /// Source of one that came by Ethernet: the low half of its GID. Else 0.
        interface: u64,
        /// Its PSN.
        psn: Psn,
        /// Why.
        why: Unwanted,
        /// What the queue pair has instead.
        own: u32,
    }
    /// A request of the peer came twice.
    Duplicate "duplicate" on Responder {
        /// The queue pair.
        qpn: Qpn,
        /// Its PSN.
        psn: Psn,
        /// Its operation.
        operation: Operation,
    }
    /// An ACK or NAK waits for its turn.
    Answer "answer queued" on Responder {
        /// The queue pair.
        qpn: Qpn,
        /// Its PSN.
        psn: Psn,
        /// AETH syndrome.
        syndrome: u8,
    }
    /// The host's memory is read; it waits for tags and for the link.
    DmaRead "read" on DmaRead {
        /// What.
        what: Object,
        /// For this queue pair; a completion queue's context for that queue.
        queue: u32,
        /// Bytes.
        bytes: u32,
    }
    /// The host's memory is written, until the host sees it.
    DmaWrite "write" on DmaWrite {
        /// What.
        what: Object,
        /// For this queue pair; a completion for this completion queue.
        queue: u32,
        /// Bytes.
        bytes: u32,
    }
    /// A queue pair's context was not in the cache, and has to be read.
    ContextMiss "context miss" on Cache {
        /// The queue pair.
        qpn: Qpn,
    }
    /// A completion queue's context was not in the cache.
    CqContextMiss "CQ context miss" on Cache {
        /// The completion queue.
        cqn: Cqn,
    }
    /// A memory key was not in the cache.
    KeyMiss "key miss" on Cache {
        /// For this queue pair.
        qpn: Qpn,
        /// The key's index.
        key: u32,
    }
    /// Translations were not in the cache.
    TranslationMiss "translation miss" on Cache {
        /// For this queue pair.
        qpn: Qpn,
        /// The key's index.
        key: u32,
    }
    /// A send work request was needed again, and others had driven it out of the cache.
    WqeMiss "WQE miss" on Cache {
        /// The queue pair.
        qpn: Qpn,
    }
    /// A completion was written.
    Cqe "CQE" on Completion {
        /// The completion queue.
        cqn: Cqn,
        /// The queue pair.
        qpn: Qpn,
        /// Place in its queue of the work request.
        index: u16,
        /// CQE opcode: 0 and 13 are of send requests, the others of receives.
        opcode: u8,
    }
    /// An event was written.
    Eqe "EQE" on Event {
        /// The event queue.
        eqn: Eqn,
        /// Which event: 0 is "a completion queue has entries".
        kind: u8,
        /// The completion queue or queue pair it is about, if it is about one.
        number: u32,
    }
    /// An interrupt was raised.
    Interrupt "interrupt" on Interrupt {
        /// MSI-X vector.
        vector: u16,
    }
    /// Something goes wrong on script.
    Fault "fault" on Fault {
        /// Number of the fault.
        number: u32,
        /// To what it happens.
        seam: Seam,
        /// Which of those.
        object: u32,
    }
}

/// The name of a BTH opcode, or nothing if there is no such operation.
pub fn operation_name(opcode: u8) -> Option<String> {
    let transport = hca_spec::wire::Transport::from_opcode(opcode.into())?;
    let operation = Operation::from_opcode(opcode.into());
    (!operation.is_reserved()).then(|| format!("{transport:?} {operation:?}"))
}

/// Who wants to hear of events, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Audience(u8);

impl Audience {
    /// A trace: what an adapter does. What it hashes depends on nobody else's wishes.
    pub(crate) const TRACE: Self = Self(1);
    /// A checker: what drivers do, not what the adapter does for each packet.
    pub(crate) const CHECKER: Self = Self(1 << 1);
    /// Coverage: what drivers use.
    pub(crate) const COVERAGE: Self = Self(1 << 2);

    /// Both.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether one of them is of the other, too.
    #[inline(always)]
    pub(crate) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl Event {
    /// Who wants to hear of it.
    #[inline(always)]
    pub(crate) const fn audience(&self) -> Audience {
        match self {
            Self::Doorbell { .. }
            | Self::BlueFlame { .. }
            | Self::QpModified { .. }
            | Self::Destroyed { .. }
            | Self::Armed { .. }
            | Self::EqConsumed { .. }
            | Self::Cqe { .. }
            | Self::Eqe { .. }
            | Self::Unwanted { .. }
            | Self::Command { .. }
            | Self::CommandDone { .. }
            | Self::Done { .. } => Audience::TRACE.and(Audience::CHECKER).and(Audience::COVERAGE),
            Self::Register { .. } => Audience::COVERAGE,
            Self::Started { .. }
            | Self::Timeout { .. }
            | Self::Retry { .. }
            | Self::Dropped { .. }
            | Self::Port { .. }
            | Self::Interrupt { .. }
            | Self::Fault { .. } => Audience::TRACE.and(Audience::COVERAGE),
            _ => Audience::TRACE,
        }
    }
}
