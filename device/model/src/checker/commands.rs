//! Commands: signatures of their entries, where new queues lie, and what is left when the adapter is taken down.

use std::collections::BTreeMap;

use hca_firmware::Snapshot;
use hca_firmware::icm::Buffer;
use hca_spec::be32;
use hca_spec::cmd::{CreateCqIn, CreateQpIn, CreateRmpIn, CreateSqIn, CreateSrqIn, FunctionIn};
use hca_spec::command::{
    CommandEntry, INLINE, INLINE_INPUT, INLINE_OUTPUT, MAILBOX_DATA, MailboxBlock, Opcode, Status,
};
use hca_spec::ids::{Cqn, Eqn, Qpn};
use hca_spec::qpc::Qpc;
use hca_spec::queue::{Cqc, Srqc, Wq};
use hca_spec::rq::CreateRqIn;
use hca_spec::rules;
use hca_spec::xrq::CreateXrqIn;

use crate::adapter::state::function::Function;
use crate::ground::diagnosis::{Clue, Finding, Subject};

/// Bytes of a doorbell record.
const RECORD: usize = 8;
/// Where in it the send counter is.
const SEND_COUNTER: u64 = 4;
/// Bytes of a page of the host.
const PAGE: u64 = 4096;
/// Pages of a queue that are looked at.
const MOST_PAGES: usize = 64;
/// Mailboxes of an input that are looked at.
const MOST_MAILBOXES: usize = 64;
/// PROFILE of TEARDOWN_HCA: in good order. Others don't wait for anything to be destroyed.
const GRACEFUL: u32 = 0;

/// An entry of the command queue as it is in memory.
pub(super) struct Entry(CommandEntry);

impl Entry {
    /// That of a slot; `None` where it can't be read at once.
    pub(super) fn read(function: &Function, slot: u8) -> Option<Self> {
        let at = function.side.registers.command_queue() + u64::from(slot) * CommandEntry::SIZE as u64;
        let mut entry = CommandEntry::new();
        function.state.seen_memory().read(at, entry.bytes_mut()).ok()?;
        Some(Self(entry))
    }

    pub(super) fn opcode(&self) -> Option<Opcode> {
        Opcode::from_u16((be32(self.0.bytes(), INLINE_INPUT) >> 16) as u16)
    }

    /// That of TEARDOWN_HCA.
    fn profile(&self) -> u32 {
        let input = self.0.bytes().get(INLINE_INPUT..).unwrap_or_default();
        FunctionIn::from_prefix_or_zero(input).get(FunctionIn::PROFILE)
    }

    /// Whether it gave pages, or took them back.
    pub(super) fn manages_pages(&self) -> bool {
        self.opcode() == Some(Opcode::ManagePages) && self.is_done()
    }

    pub(super) fn is_done(&self) -> bool {
        self.status() == Status::Ok as u8
    }

    /// The begin of its input: what is in the entry, and in the first mailbox.
    fn input(&self, function: &Function) -> [u8; INLINE + MAILBOX_DATA] {
        let mut input = [0; INLINE + MAILBOX_DATA];
        let (entry, mailbox) = input.split_at_mut(INLINE);
        let bytes = self.0.bytes().get(INLINE_INPUT..).unwrap_or_default();
        entry.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        let len = (self.0.get(CommandEntry::INPUT_LENGTH) as usize).saturating_sub(INLINE).min(MAILBOX_DATA);
        let at = self.0.get(CommandEntry::INPUT_MAILBOX);
        if let Some(to) = mailbox.get_mut(..len) {
            // What can't be read is zero.
            let _ = function.state.seen_memory().read(at, to);
        }
        input
    }

    /// Whether software owns it: it is not in use again.
    fn is_softwares(&self) -> bool {
        self.0.get(CommandEntry::OWNERSHIP) == 0
    }

    /// Status of its output.
    pub(super) fn status(&self) -> u8 {
        (be32(self.0.bytes(), INLINE_OUTPUT) >> 24) as u8
    }

    /// The word at byte `at` of its input; `None`: it lies in a mailbox.
    pub(super) fn input_word(&self, at: usize) -> Option<u32> {
        (at + size_of::<u32>() <= INLINE).then(|| be32(self.0.bytes(), INLINE_INPUT + at))
    }

    /// The same of its output.
    pub(super) fn output_word(&self, at: usize) -> Option<u32> {
        (at + size_of::<u32>() <= INLINE).then(|| be32(self.0.bytes(), INLINE_OUTPUT + at))
    }

    /// The number of the object that the command has made.
    fn made(&self) -> u32 {
        be32(self.0.bytes(), INLINE_OUTPUT + 8) & 0xff_ffff
    }

    /// What all bytes are together, by exclusive or: with a signature all ones.
    fn sum(&self) -> u8 {
        self.0.bytes().iter().fold(0, |sum, byte| sum ^ byte)
    }
}

/// Inputs of commands that make queues, by their slots, until they are answered: after that their memory is the driver's.
#[derive(Debug, Default)]
pub(super) struct Inputs(BTreeMap<u8, [u8; INLINE + MAILBOX_DATA]>);

/// A command is about to be answered: its entry is as the driver wrote it.
pub(super) fn executed(
    slot: u8,
    opcode: u16,
    inputs: &mut Inputs,
    function: &Function,
    tell: &mut dyn FnMut(Finding),
) {
    inputs.0.remove(&slot);
    let Some(entry) = Entry::read(function, slot) else { return };
    let (signature, sum) = (entry.0.get(CommandEntry::SIGNATURE) as u8, entry.sum());
    if signature != 0 && sum != 0xff {
        let (found, right) = (format!("{signature:#04x}"), signature ^ sum ^ 0xff);
        let expected = format!("{right:#04x}, or 0 for none");
        tell(Finding::new(Subject::command(slot), "signature", found, expected, &rules::ENTRY_SIGNATURE));
    }
    mailboxes(slot, &entry, function, tell);
    let fw = &function.state.fw;
    match Opcode::from_u16(opcode) {
        Some(
            Opcode::CreateCq
            | Opcode::CreateQp
            | Opcode::CreateRq
            | Opcode::CreateSq
            | Opcode::CreateSrq
            | Opcode::CreateXrcSrq
            | Opcode::CreateRmp
            | Opcode::CreateXrq,
        ) => drop(inputs.0.insert(slot, entry.input(function))),
        Some(Opcode::TeardownHca) if entry.profile() == GRACEFUL => {
            if let Some(left) = fw.at_teardown() {
                objects_left(Subject::command(slot), &left, "TEARDOWN_HCA", tell);
            }
        }
        Some(Opcode::DisableHca) => {
            let pages = fw.resources().at_last_teardown.map_or(0, |left| left.pages);
            if pages > 0 {
                let found = format!("{pages:#x} pages at DISABLE_HCA");
                let expected = "0: all are taken back by MANAGE_PAGES before";
                let subject = Subject::command(slot);
                tell(Finding::new(subject, "pages of the firmware", found, expected, &rules::PAGES_RETURNED));
            }
        }
        _ => {}
    }
}

/// Signatures of an input's mailboxes, where they have some: the first wrong one.
fn mailboxes(slot: u8, entry: &Entry, function: &Function, tell: &mut dyn FnMut(Finding)) {
    let len = entry.0.get(CommandEntry::INPUT_LENGTH) as usize;
    let count = len.saturating_sub(INLINE).div_ceil(MAILBOX_DATA).min(MOST_MAILBOXES);
    let mut at = entry.0.get(CommandEntry::INPUT_MAILBOX);
    for number in 0..count {
        let mut block = MailboxBlock::new();
        // What has no mailboxes in spite of its length has no pointer, either.
        if function.state.seen_memory().read(at, block.bytes_mut()).is_err() {
            return;
        }
        let covers = [
            ("ctrl_signature", block.get(MailboxBlock::CTRL_SIGNATURE), MAILBOX_DATA..MailboxBlock::SIZE - 1),
            ("signature", block.get(MailboxBlock::SIGNATURE), 0..MailboxBlock::SIZE),
        ];
        for (field, signature, covered) in covers {
            let sum = block.bytes().get(covered).unwrap_or_default().iter().fold(0, |sum, byte| sum ^ byte);
            if signature != 0 && sum != 0xff {
                let found = format!("{signature:#04x} in input mailbox {number}");
                let expected = format!("{:#04x}, or 0 for none", signature as u8 ^ sum ^ 0xff);
                let subject = Subject::command(slot);
                return tell(Finding::new(subject, field, found, expected, &rules::MAILBOX_SIGNATURE));
            }
        }
        at = block.get(MailboxBlock::NEXT);
    }
}

/// Says which objects are left, if any.
pub(super) fn objects_left(subject: Subject, left: &Snapshot, when: &str, tell: &mut dyn FnMut(Finding)) {
    let counts: Vec<String> = left.objects().map(|(kind, count)| format!("{count} {kind}")).collect();
    if !counts.is_empty() {
        let found = format!("{} at {when}", counts.join(", "));
        tell(Finding::new(
            subject,
            "objects",
            found,
            "0: all are destroyed before",
            &rules::OBJECTS_DESTROYED,
        ));
    }
}

/// A command was answered.
pub(super) fn done(slot: u8, inputs: &mut Inputs, function: &Function, tell: &mut dyn FnMut(Finding)) {
    let input = inputs.0.remove(&slot);
    let entry = Entry::read(function, slot).filter(|entry| entry.is_done() && entry.is_softwares());
    let Some(entry) = entry else { return };
    let (Some(opcode), number, icm) = (entry.opcode(), entry.made(), &function.state.fw.icm) else { return };
    let (subject, record, buffer) = match opcode {
        Opcode::CreateRq => {
            let Some(rq) = icm.rqs.get(number) else { return };
            let record = Some(rq.ctx.wq().get(Wq::DBR_ADDR)).filter(|_| !rq.buffer.is_empty());
            (Subject::new("RQ", number), record, &rq.buffer)
        }
        Opcode::CreateCq => {
            let Some(cq) = icm.cqs.get(number) else { return };
            (Subject::cq(Cqn(number)), Some(cq.ctx.get(Cqc::DBR_ADDR)), &cq.buffer)
        }
        // A send queue of frames is a queue pair here.
        Opcode::CreateQp | Opcode::CreateSq => {
            let Some(qp) = icm.qps.get(number) else { return };
            let record = Some(qp.ctx.get(Qpc::DBR_ADDR)).filter(|_| !qp.buffer.is_empty());
            let subject = if opcode == Opcode::CreateSq {
                Subject::new("SQ", number)
            } else {
                Subject::qp(Qpn(number))
            };
            (subject, record, &qp.buffer)
        }
        Opcode::CreateSrq | Opcode::CreateXrcSrq | Opcode::CreateRmp | Opcode::CreateXrq => {
            let Some(srq) = icm.srqs.get(number) else { return };
            (Subject::new("SRQ", number), Some(srq.ctx.get(Srqc::DBR_ADDR)), &srq.buffer)
        }
        Opcode::CreateEq => {
            let Some(eq) = icm.eqs.get(number) else { return };
            (Subject::eq(Eqn(number as u8)), None, &eq.buffer)
        }
        _ => return,
    };
    if let Some(input) = input.filter(|_| record.is_some()) {
        alignment(subject, opcode, &input, tell);
    }
    let memory = function.state.seen_memory();
    if let Some(record) = record.filter(|record| !memory.reaches(*record, RECORD)) {
        let found = format!("{record:#x}, which the adapter does not reach");
        let expected = "memory that is mapped, by an IOMMU too";
        tell(
            Finding::new(subject, "dbr_addr", found, expected, &rules::RECORD_MAPPED)
                .with(Clue::Unreached(record)),
        );
    }
    let unreached = pieces(buffer).take(MOST_PAGES).find(|(at, len)| !memory.reaches(*at, *len));
    if let Some((at, _)) = unreached {
        let found = format!("{at:#x}, which the adapter does not reach");
        let expected = "memory that is mapped, by an IOMMU too";
        tell(Finding::new(subject, "pas", found, expected, &rules::QUEUE_MAPPED).with(Clue::Unreached(at)));
    }
}

/// The address of a queue's record as the driver gave it: the adapter leaves its low bits out.
fn alignment(subject: Subject, opcode: Opcode, input: &[u8], tell: &mut dyn FnMut(Finding)) {
    let (address, counters) = match opcode {
        Opcode::CreateCq => (CreateCqIn::from_prefix_or_zero(input).cqc().get(Cqc::DBR_ADDR), false),
        Opcode::CreateQp => (CreateQpIn::from_prefix_or_zero(input).qpc().get(Qpc::DBR_ADDR), false),
        Opcode::CreateRq => (CreateRqIn::from_prefix_or_zero(input).rqc().wq().get(Wq::DBR_ADDR), false),
        // The only counter of the queue is the record's second word: OpenBSD's mcx gives its address.
        Opcode::CreateSq => (CreateSqIn::from_prefix_or_zero(input).sqc().wq().get(Wq::DBR_ADDR), true),
        Opcode::CreateRmp => (CreateRmpIn::from_prefix_or_zero(input).rmpc().wq().get(Wq::DBR_ADDR), false),
        Opcode::CreateXrq => (CreateXrqIn::from_prefix_or_zero(input).xrqc().wq().get(Wq::DBR_ADDR), false),
        _ => (CreateSrqIn::from_prefix_or_zero(input).srqc().get(Srqc::DBR_ADDR), false),
    };
    let step = if counters { SEND_COUNTER } else { RECORD as u64 };
    if !address.is_multiple_of(step) {
        let found = format!("{address:#x}: the adapter takes {:#x}", address & !(RECORD as u64 - 1));
        let expected = if counters {
            "a multiple of 8, or the address of the send counter, 4 further"
        } else {
            "a multiple of 8"
        };
        tell(Finding::new(subject, "dbr_addr", found, expected, &rules::RECORD_ALIGNED));
    }
}

/// The pieces of a queue's memory within one page of the host each: address and length.
fn pieces(buffer: &Buffer) -> impl Iterator<Item = (u64, usize)> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let (at, len) = buffer.at(offset)?;
        let len = len.min(PAGE - at % PAGE);
        offset += len;
        Some((at, len as usize))
    })
}
