//! A message on its way: its place in the PSN space, its packets' operations and headers.
//!
//! Source: IBTA 9.2 (opcodes), 9.3 (extended headers), 9.7.2 (PSN), table 38.

use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Mkey, Psn};
use hca_spec::wire::Operation;
use hca_spec::wqe::SendOpcode;

use super::wqe::Wqe;
use crate::ground::timing::Mark;
use crate::wire::{AtomicRepr, Repr, RethRepr};

/// A WQE that was fetched and is not complete.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) wqe: Box<Wqe>,
    /// What it takes of the server's memory.
    pub(super) bytes: u32,
    /// PSN of its first packet.
    pub(crate) first: Psn,
    /// PSNs it owns; 0 for operations without packets.
    pub(crate) packets: u32,
    /// Its number among the messages of the connection (IBTA "SSN").
    pub(crate) ssn: u32,
    /// Reads and atomics: responses taken so far.
    pub(crate) answered: u32,
    /// It can't go on; it completes with this once all before it are complete.
    pub(crate) failed: Option<Syndrome>,
    /// It begins a dynamic connection: it stands for no WQE.
    pub(crate) connect: bool,
    /// Reads and atomics: what the WQE cache knows the WQE by.
    pub(crate) mark: Option<Mark>,
    /// The response's data, if it goes into the completion.
    pub(crate) data: Vec<u8>,
}

impl Message {
    /// A message that begins: its WQE, the PSN of its first packet, how many it has, and its number.
    pub(crate) fn new(wqe: Box<Wqe>, first: Psn, packets: u32, ssn: u32) -> Self {
        let bytes = size_of::<Self>() + wqe.bytes();
        Self {
            wqe,
            bytes: bytes as u32,
            first,
            packets,
            ssn,
            answered: 0,
            failed: None,
            connect: false,
            mark: None,
            data: Vec::new(),
        }
    }

    pub(crate) fn end(&self) -> Psn {
        self.first.add(self.packets)
    }

    pub(crate) fn wants_response(&self) -> bool {
        self.wqe.wants_response()
    }

    /// Whether it is a read or an atomic whose response has not all come.
    #[inline]
    pub(crate) fn is_unanswered(&self) -> bool {
        self.wants_response() && self.answered < self.packets
    }

    /// Whether packet `k` needs a receive request of the peer: all of a send, the last of a write with immediate.
    pub(crate) fn needs_credit(&self, k: u32) -> bool {
        match self.wqe.opcode {
            SendOpcode::Send | SendOpcode::SendImm | SendOpcode::SendInval => true,
            SendOpcode::RdmaWriteImm => k + 1 >= self.packets,
            _ => false,
        }
    }

    /// Bytes of an atomic's operand: so many of the answer's count.
    pub(crate) fn operand(&self) -> usize {
        self.wqe.operand() as usize
    }

    pub(crate) fn contains(&self, psn: Psn) -> bool {
        let d = psn.since(self.first);
        d >= 0 && (d as u32) < self.packets
    }
}

/// The operation of packet `k` of `n`.
#[inline(always)]
pub(crate) fn operation(opcode: SendOpcode, k: u32, n: u32) -> Operation {
    let (first, last) = (k == 0, k + 1 == n);
    match opcode {
        SendOpcode::RdmaRead => Operation::ReadRequest,
        SendOpcode::AtomicCs => Operation::CompareSwap,
        SendOpcode::AtomicFa => Operation::FetchAdd,
        SendOpcode::AtomicMaskedCs => Operation::MaskedCompareSwap,
        SendOpcode::AtomicMaskedFa => Operation::MaskedFetchAdd,
        SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm => {
            match (first, last, opcode == SendOpcode::RdmaWriteImm) {
                (true, true, false) => Operation::WriteOnly,
                (true, true, true) => Operation::WriteOnlyImm,
                (true, false, _) => Operation::WriteFirst,
                (false, false, _) => Operation::WriteMiddle,
                (false, true, false) => Operation::WriteLast,
                (false, true, true) => Operation::WriteLastImm,
            }
        }
        _ => match (first, last, opcode) {
            (true, true, SendOpcode::SendImm) => Operation::SendOnlyImm,
            (true, true, SendOpcode::SendInval) => Operation::SendOnlyInval,
            (true, true, _) => Operation::SendOnly,
            (true, false, _) => Operation::SendFirst,
            (false, false, _) => Operation::SendMiddle,
            (false, true, SendOpcode::SendImm) => Operation::SendLastImm,
            (false, true, SendOpcode::SendInval) => Operation::SendLastInval,
            (false, true, _) => Operation::SendLast,
        },
    }
}

/// Extended headers of the packet whose payload starts at byte `offset`.
#[inline(always)]
pub(crate) fn fill_headers(repr: &mut Repr, wqe: &Wqe, offset: u64) {
    let (va, rkey) = wqe.remote.unwrap_or_default();
    match repr.operation {
        Operation::WriteFirst | Operation::WriteOnly | Operation::WriteOnlyImm => {
            repr.reth = Some(RethRepr { va, rkey, len: wqe.length as u32 });
        }
        Operation::ReadRequest => {
            let rest = wqe.length.saturating_sub(offset) as u32;
            repr.reth = Some(RethRepr { va: va.wrapping_add(offset), rkey, len: rest });
        }
        _ if repr.operation.is_atomic() => {
            let (swap_add, compare) = wqe.atomic.unwrap_or_default();
            repr.atomic = Some(AtomicRepr { va, rkey, swap_add, compare, masks: wqe.masks });
        }
        _ => {}
    }
    match repr.operation {
        Operation::WriteOnlyImm
        | Operation::WriteLastImm
        | Operation::SendOnlyImm
        | Operation::SendLastImm => {
            repr.imm = Some(wqe.imm);
        }
        Operation::SendOnlyInval | Operation::SendLastInval => repr.ieth = Some(Mkey(wqe.imm)),
        _ => {}
    }
}
