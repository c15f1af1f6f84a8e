//! What a responder of a reliable connection has to do with each request packet.

use hca_spec::wire::{Operation, aeth};
use std::collections::VecDeque;
use std::fmt;

/// PSNs and MSNs have 24 bits.
const BITS24: u32 = 0xff_ffff;
/// Half of the PSN space: what is behind the expected PSN by up to this is a duplicate (9.7.1).
const HALF: u32 = 1 << 23;

/// No message is longer (9.2.8).
const LONGEST: u32 = 1 << 31;

/// How the responder is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Path MTU in bytes.
    pub mtu: usize,
    /// First expected PSN.
    pub psn: u32,
    /// Reads and atomics that the responder remembers.
    pub resources: usize,
    /// Rights of the queue pair: write, read, atomic.
    pub rights: [bool; 3],
    /// The only valid key.
    pub rkey: u32,
    /// Its address and what is there.
    pub address: u64,
    /// Bytes of the region.
    pub memory: Vec<u8>,
    /// Timer code of RNR NAKs.
    pub rnr_timer: u32,
}

/// A request packet.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub operation: Operation,
    /// Packet sequence number.
    pub psn: u32,
    /// An answer is asked for.
    pub ack_req: bool,
    /// RETH or AtomicETH: address, key; RETH: length.
    pub target: (u64, u32, u32),
    /// AtomicETH: swap or add, and compare.
    pub operands: (u64, u64),
    /// Immediate data.
    pub imm: u32,
    /// Payload.
    pub payload: Vec<u8>,
}

/// An answer packet.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// Acknowledge, atomic acknowledge or a read response.
    pub operation: Operation,
    /// Packet sequence number.
    pub psn: u32,
    /// AETH: syndrome without credits, and MSN.
    pub aeth: Option<(u32, u32)>,
    /// Atomic acknowledge: the value before.
    pub original: Option<u64>,
    /// Payload.
    pub payload: Vec<u8>,
}

impl fmt::Debug for Request {
    /// Without the payload's bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, psn, ack_req, target, operands: _, imm: _, payload } = self;
        let ack_req = if *ack_req { ", ACK wanted" } else { "" };
        write!(f, "{operation:?} PSN {psn:#x}{ack_req}, target {target:x?}, {} bytes", payload.len())
    }
}

impl fmt::Debug for Answer {
    /// Without the payload's bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, psn, aeth, original, payload } = self;
        write!(f, "{operation:?} PSN {psn:#x}, syndrome and MSN {aeth:x?}, ")?;
        write!(f, "original {original:x?}, {} bytes", payload.len())
    }
}

/// A completion of a receive request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A message.
    Message {
        /// Its length.
        bytes: usize,
        /// Immediate data.
        imm: Option<u32>,
        /// The data of a send.
        sent: Option<Vec<u8>>,
    },
    /// The message did not fit.
    TooLong,
    /// The message was refused: an invalid request.
    Refused,
    /// The queue pair went to error.
    Flushed,
}

/// What has to happen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaction {
    /// Answers that must come, in order.
    pub answers: Vec<Answer>,
    /// Completions of receive requests.
    pub told: Vec<Told>,
    /// An acknowledgement of a PSN of this range, both included, may come or, if the packet asks for one, must.
    pub acknowledges: Option<(u32, u32)>,
}

enum Message {
    Send { room: usize, data: Vec<u8> },
    Write { at: usize, left: usize, total: usize },
}

enum Remembered {
    Read { first: u32, packets: u32 },
    Atomic { psn: u32, original: u64 },
}

/// The reference.
pub struct Responder {
    /// How it was set up; the memory changes.
    pub setup: Setup,
    /// PSN expected next.
    pub expected: u32,
    /// Messages completed.
    pub msn: u32,
    /// Room of the receive requests that are posted.
    pub receives: VecDeque<usize>,
    /// Nothing is answered any more.
    pub dead: bool,
    message: Option<Message>,
    waiting_for_expected: bool,
    remembered: VecDeque<Remembered>,
}

/// The sum of PSNs.
pub const fn add(psn: u32, n: u32) -> u32 {
    psn.wrapping_add(n) & BITS24
}

/// Why a packet with the expected PSN is refused.
enum Wrong {
    Invalid,
    Access,
    NotReady,
    TooLong,
}

impl Responder {
    /// A responder in RTR.
    pub fn new(setup: Setup) -> Self {
        Self {
            expected: setup.psn,
            setup,
            msn: 0,
            receives: VecDeque::new(),
            dead: false,
            message: None,
            waiting_for_expected: false,
            remembered: VecDeque::new(),
        }
    }

    /// Whether a message is under way, and if so whether it is a send.
    pub fn under_way(&self) -> Option<bool> {
        self.message.as_ref().map(|m| matches!(m, Message::Send { .. }))
    }

    fn packets(&self, bytes: u32) -> u32 {
        (bytes as usize).div_ceil(self.setup.mtu).max(1) as u32
    }

    /// 9.7.4.1: the PSN decides first.
    pub fn take(&mut self, request: &Request) -> Reaction {
        if self.dead {
            return Reaction::default();
        }
        let ahead = add(request.psn, (BITS24 + 1) - self.expected);
        if ahead == 0 {
            self.waiting_for_expected = false;
            return self.expected_packet(request);
        }
        if ahead < HALF {
            // 9.7.5.1.2, 9.7.5.2.8: one NAK, then silence until the expected packet comes.
            let first = !std::mem::replace(&mut self.waiting_for_expected, true);
            let nak = aeth::NAK | aeth::PSN_SEQUENCE_ERROR;
            let answers = if first { vec![self.ack(self.expected, nak)] } else { Vec::new() };
            return Reaction { answers, ..Reaction::default() };
        }
        self.duplicate(request)
    }

    fn ack(&self, psn: u32, syndrome: u32) -> Answer {
        let aeth = Some((syndrome, self.msn));
        Answer { operation: Operation::Acknowledge, psn, aeth, original: None, payload: Vec::new() }
    }

    /// 9.7.5.1.5: sends and writes are acknowledged again, reads read again, atomics answered from memory.
    fn duplicate(&mut self, request: &Request) -> Reaction {
        let mut reaction = Reaction::default();
        match request.operation {
            Operation::ReadRequest => {
                let (address, _, bytes) = request.target;
                let packets = self.packets(bytes);
                let known = self.remembered.iter().any(|r| match r {
                    Remembered::Read { first, packets: all } => {
                        let skipped = add(request.psn, (BITS24 + 1) - first);
                        skipped < *all && skipped + packets <= *all
                    }
                    Remembered::Atomic { .. } => false,
                });
                if known {
                    reaction.answers = self.read(request.psn, address, bytes);
                }
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let original = self.remembered.iter().find_map(|r| match r {
                    Remembered::Atomic { psn, original } if *psn == request.psn => Some(*original),
                    _ => None,
                });
                if let Some(original) = original {
                    reaction.answers = vec![self.atomic_answer(request.psn, original)];
                }
            }
            _ => reaction.acknowledges = Some((request.psn, add(self.expected, BITS24))),
        }
        reaction
    }

    fn atomic_answer(&self, psn: u32, original: u64) -> Answer {
        let answer = self.ack(psn, aeth::ACK);
        Answer { operation: Operation::AtomicAcknowledge, original: Some(original), ..answer }
    }

    fn read(&self, psn: u32, address: u64, bytes: u32) -> Vec<Answer> {
        use Operation::{ReadResponseFirst, ReadResponseLast, ReadResponseMiddle, ReadResponseOnly};
        let n = self.packets(bytes);
        let start = (address.wrapping_sub(self.setup.address)) as usize;
        let data = if bytes == 0 { &[][..] } else { &self.setup.memory[start..start + bytes as usize] };
        (0..n)
            .map(|i| {
                let operation = match (i == 0, i + 1 == n) {
                    (true, true) => ReadResponseOnly,
                    (true, false) => ReadResponseFirst,
                    (false, false) => ReadResponseMiddle,
                    (false, true) => ReadResponseLast,
                };
                let payload = data.chunks(self.setup.mtu).nth(i as usize).unwrap_or_default().to_vec();
                let aeth = (operation != ReadResponseMiddle).then_some((aeth::ACK, self.msn));
                Answer { operation, psn: add(psn, i), aeth, original: None, payload }
            })
            .collect()
    }

    fn expected_packet(&mut self, request: &Request) -> Reaction {
        let mut reaction = Reaction::default();
        match self.execute(request, &mut reaction) {
            Ok(()) => {}
            Err(Wrong::NotReady) => {
                // 9.7.5.2.8: nothing happened; what follows is dropped until this packet comes again.
                self.waiting_for_expected = true;
                let syndrome = aeth::RNR_NAK | self.setup.rnr_timer;
                reaction = Reaction { answers: vec![self.ack(request.psn, syndrome)], ..Reaction::default() };
            }
            Err(wrong) => {
                // 9.9.3: a NAK, then the queue pair is in error.
                let code = if matches!(wrong, Wrong::Access) {
                    aeth::REMOTE_ACCESS_ERROR
                } else {
                    aeth::INVALID_REQUEST
                };
                reaction = Reaction {
                    answers: vec![self.ack(request.psn, aeth::NAK | code)],
                    ..Reaction::default()
                };
                if let Some(Message::Send { .. }) = self.message.take() {
                    let too_long = matches!(wrong, Wrong::TooLong);
                    reaction.told.push(if too_long { Told::TooLong } else { Told::Refused });
                }
                reaction.told.extend(self.receives.drain(..).map(|_| Told::Flushed));
                self.dead = true;
            }
        }
        reaction
    }

    fn complete(&mut self) {
        self.message = None;
        self.msn = add(self.msn, 1);
    }

    /// The range a key allows; nothing is checked of an access to nothing (9.7.4.1.4).
    fn range(&self, (address, rkey, bytes): (u64, u32, u32)) -> Result<usize, Wrong> {
        if bytes == 0 {
            return Ok(0);
        }
        let start = address.checked_sub(self.setup.address).ok_or(Wrong::Access)?;
        let end = start.checked_add(bytes.into()).ok_or(Wrong::Access)?;
        match rkey == self.setup.rkey && end <= self.setup.memory.len() as u64 {
            true => Ok(start as usize),
            false => Err(Wrong::Access),
        }
    }

    fn execute(&mut self, request: &Request, reaction: &mut Reaction) -> Result<(), Wrong> {
        use Operation as O;
        let operation = request.operation;
        let is_send = matches!(
            operation,
            O::SendFirst | O::SendMiddle | O::SendLast | O::SendLastImm | O::SendOnly | O::SendOnlyImm
        );
        let continues = matches!(
            operation,
            O::SendMiddle | O::SendLast | O::SendLastImm | O::WriteMiddle | O::WriteLast | O::WriteLastImm
        );
        let more = matches!(operation, O::SendFirst | O::SendMiddle | O::WriteFirst | O::WriteMiddle);
        // 9.7.4.1.2: first, middle, last of one kind; nothing else within.
        match &self.message {
            None if continues => return Err(Wrong::Invalid),
            Some(message) if !continues || matches!(message, Message::Send { .. }) != is_send => {
                return Err(Wrong::Invalid);
            }
            _ => {}
        }
        let bytes = request.payload.len();
        let carries =
            is_send || continues || matches!(operation, O::WriteFirst | O::WriteOnly | O::WriteOnlyImm);
        // 9.7.4.1.6: first and middle are full, last has one byte or more.
        let fits =
            if more { bytes == self.setup.mtu } else { bytes <= self.setup.mtu && (!continues || bytes > 0) };
        if carries && !fits {
            return Err(Wrong::Invalid);
        }
        match operation {
            O::ReadRequest | O::CompareSwap | O::FetchAdd => return self.respond(request, reaction),
            _ if is_send => self.send(request, more, continues, reaction)?,
            _ => self.write(request, more, continues, reaction)?,
        }
        self.expected = add(self.expected, 1);
        reaction.acknowledges = Some((request.psn, request.psn));
        Ok(())
    }

    fn send(
        &mut self,
        request: &Request,
        more: bool,
        continues: bool,
        reaction: &mut Reaction,
    ) -> Result<(), Wrong> {
        if !continues {
            let room = self.receives.pop_front().ok_or(Wrong::NotReady)?;
            self.message = Some(Message::Send { room, data: Vec::new() });
        }
        let Some(Message::Send { room, data }) = &mut self.message else { return Err(Wrong::Invalid) };
        if data.len() + request.payload.len() > *room {
            return Err(Wrong::TooLong);
        }
        data.extend_from_slice(&request.payload);
        if !more {
            let sent = std::mem::take(data);
            let has_imm = matches!(request.operation, Operation::SendLastImm | Operation::SendOnlyImm);
            let imm = has_imm.then_some(request.imm);
            reaction.told.push(Told::Message { bytes: sent.len(), imm, sent: Some(sent) });
            self.complete();
        }
        Ok(())
    }

    fn write(
        &mut self,
        request: &Request,
        more: bool,
        continues: bool,
        reaction: &mut Reaction,
    ) -> Result<(), Wrong> {
        let bytes = request.payload.len();
        let (at, left, total) = match &self.message {
            Some(Message::Write { at, left, total }) => (*at, *left, *total),
            _ if continues => return Err(Wrong::Invalid),
            _ => {
                if !self.setup.rights[0] || request.target.2 > LONGEST {
                    return Err(Wrong::Invalid);
                }
                let total = request.target.2 as usize;
                (self.range(request.target)?, total, total)
            }
        };
        // 9.7.4.1.6: the packets add up to what the RETH says.
        if bytes > left || (more && bytes == left) || (!more && bytes != left) {
            return Err(Wrong::Invalid);
        }
        let has_imm = matches!(request.operation, Operation::WriteLastImm | Operation::WriteOnlyImm);
        if has_imm {
            self.receives.pop_front().ok_or(Wrong::NotReady)?;
            reaction.told.push(Told::Message { bytes: total, imm: Some(request.imm), sent: None });
        }
        self.setup.memory[at..at + bytes].copy_from_slice(&request.payload);
        self.message = Some(Message::Write { at: at + bytes, left: left - bytes, total });
        if !more {
            self.complete();
        }
        Ok(())
    }

    fn respond(&mut self, request: &Request, reaction: &mut Reaction) -> Result<(), Wrong> {
        let (address, rkey, bytes) = request.target;
        if request.operation == Operation::ReadRequest {
            if !self.setup.rights[1] || bytes > LONGEST {
                return Err(Wrong::Invalid);
            }
            self.range(request.target)?;
            let packets = self.packets(bytes);
            self.complete();
            reaction.answers = self.read(request.psn, address, bytes);
            self.remember(Remembered::Read { first: request.psn, packets });
            self.expected = add(self.expected, packets);
            return Ok(());
        }
        if !self.setup.rights[2] || address % 8 != 0 {
            return Err(Wrong::Invalid);
        }
        let at = self.range((address, rkey, 8))?;
        let mut word = [0; 8];
        word.copy_from_slice(&self.setup.memory[at..at + 8]);
        let original = u64::from_ne_bytes(word);
        let (swap_add, compare) = request.operands;
        let new = match request.operation {
            Operation::FetchAdd => original.wrapping_add(swap_add),
            _ if original == compare => swap_add,
            _ => original,
        };
        self.setup.memory[at..at + 8].copy_from_slice(&new.to_ne_bytes());
        self.complete();
        reaction.answers = vec![self.atomic_answer(request.psn, original)];
        self.remember(Remembered::Atomic { psn: request.psn, original });
        self.expected = add(self.expected, 1);
        Ok(())
    }

    fn remember(&mut self, what: Remembered) {
        self.remembered.push_back(what);
        if self.remembered.len() > self.setup.resources {
            self.remembered.pop_front();
        }
    }
}
