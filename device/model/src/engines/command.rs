//! The command queue: fetching an entry and its input mailboxes, delivering the output.
//!
//! Both walks are asked step by step, so that each can wait between two steps: [`Fetch`] says what to read next until the
//! input is whole, [`Output`] what to write and to read next until the entry is handed back.
//!
//! Source: PRM "Command Queue", "Command Mailboxes". Lengths rule the walk along a mailbox chain, not
//! its `next` pointers: drivers reuse longer chains. A pointer of 0 ends a chain that is too short.

use std::fmt;

use hca_firmware::commands::{find, is_inline, kept_list};
use hca_firmware::list::{Input, List};
use hca_spec::be32;
use hca_spec::command::{
    CommandEntry, Delivery, ENTRY_TYPE_PCIE, INLINE, INLINE_INPUT, INLINE_OUTPUT, MAILBOX_DATA, MailboxBlock,
    OWNERSHIP_BYTE, Opcode,
};

use crate::ground::dma::DmaError;

/// Bytes of the shortest input: opcode and op_mod. Drivers that were written by the manual send no more where a command has no more (Theseus'
/// QUERY_ISSI, VPP's former ENABLE_HCA).
const LEAST_INPUT: usize = 8;
/// Largest input accepted: a CREATE_MKEY with 2^21 page addresses and its header.
const MAX_INPUT: usize = (8 << 21) + 0x110;
/// Largest output: more than any command's.
const MAX_OUTPUT: usize = 1 << 20;
/// Byte of [`CommandEntry::SIGNATURE`] in the entry.
const SIGNATURE_BYTE: u64 = CommandEntry::SIGNATURE.offset() as u64 + 1;
/// What mailboxes are aligned to (PRM "Command Queue Entry": bits 9..0 of the pointer are reserved).
const MAILBOX_ALIGNMENT: u64 = 1024;
/// Most that one step reads.
pub(crate) const MAX_READ: usize = MailboxBlock::SIZE;

/// A command by its opcode, for people: `CREATE_EQ`, or the number of one that there is not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named(pub(crate) u16);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Opcode::from_u16(self.0).and_then(find) {
            Some(command) => f.write_str(command.name),
            None => write!(f, "command {:#x}", self.0),
        }
    }
}

/// What is to be done for a command that is fetched.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FetchStep {
    /// Read `len` bytes at this DMA address, tell [`Fetch::read`], and ask again.
    Read { at: u64, len: usize },
    /// The input is whole: execute it.
    Execute,
    /// The entry asks for what can't be done: hand it back with its status.
    Refuse(Undelivered),
    /// There is no command: diagnose, and forget the doorbell.
    Ignore(NoCommand),
}

/// Why a command is not delivered: what of its entry or of a mailbox is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Undelivered {
    pub(crate) delivery: Delivery,
    /// Which mailbox of the input, from 0; `None`: the entry.
    pub(crate) block: Option<usize>,
    pub(crate) field: &'static str,
    pub(crate) found: u64,
    pub(crate) expected: Expected,
}

/// What would be right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    Value(u64),
    Words(&'static str),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value:#x}"),
            Self::Words(words) => f.write_str(words),
        }
    }
}

/// Why a doorbell brought no command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoCommand {
    /// The entry can't be read.
    Unreadable(DmaError),
    /// Software owns the entry.
    NotHandedOver,
}

impl fmt::Display for NoCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => write!(f, "the entry can't be read: {why}"),
            Self::NotHandedOver => {
                f.write_str("its doorbell was rung, but software owns the entry (PRM Command Queue)")
            }
        }
    }
}

/// A command on its way in.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) slot: u8,
    entry_at: u64,
    entry: CommandEntry,
    input: Vec<u8>,
    /// The list behind it, if the firmware keeps that as it is: it is not copied once more.
    list: List,
    /// Where that begins, or would if the input were longer.
    list_at: usize,
    /// Mailboxes that were read, and where the one is that is read now.
    blocks: usize,
    at: u64,
    next: FetchStep,
}

impl Fetch {
    /// The command of a slot, whose entry lies there.
    pub(crate) fn new(slot: u8, entry_at: u64) -> Self {
        let next = FetchStep::Read { at: entry_at, len: CommandEntry::SIZE };
        Self {
            slot,
            entry_at,
            entry: CommandEntry::new(),
            input: Vec::new(),
            list: List::default(),
            list_at: usize::MAX,
            blocks: 0,
            at: 0,
            next,
        }
    }

    /// Where the entry lies.
    pub(crate) fn entry_at(&self) -> u64 {
        self.entry_at
    }

    /// What is to be done next.
    pub(crate) fn next(&self) -> FetchStep {
        self.next
    }

    /// What was read, as [`FetchStep::Read`] asked for it.
    pub(crate) fn read(&mut self, bytes: Result<&[u8], DmaError>) {
        self.next = if self.input.is_empty() { self.read_entry(bytes) } else { self.read_mailbox(bytes) };
    }

    fn read_entry(&mut self, bytes: Result<&[u8], DmaError>) -> FetchStep {
        match bytes {
            Ok(bytes) => self.entry = CommandEntry::from_prefix_or_zero(bytes),
            Err(why) => return FetchStep::Ignore(NoCommand::Unreadable(why)),
        }
        let entry = &self.entry;
        if entry.get(CommandEntry::OWNERSHIP) == 0 {
            return FetchStep::Ignore(NoCommand::NotHandedOver);
        }
        let refuse = |delivery, field, found, expected| {
            FetchStep::Refuse(Undelivered { delivery, block: None, field, found, expected })
        };
        let kind = entry.get(CommandEntry::TYPE);
        if kind != ENTRY_TYPE_PCIE {
            let expected = Expected::Value(ENTRY_TYPE_PCIE.into());
            return refuse(Delivery::BadType, "type", kind.into(), expected);
        }
        if self.output_len() < INLINE / 2 {
            let expected = Expected::Words("at least 8: status and syndrome");
            return refuse(Delivery::BadOutputLength, "output_length", self.output_len() as u64, expected);
        }
        let len = self.input_len();
        if !(LEAST_INPUT..=MAX_INPUT).contains(&len) {
            let expected = Expected::Words("at least 8: opcode and op_mod, and at most 16 MiB");
            return refuse(Delivery::BadInputLength, "input_length", len as u64, expected);
        }
        self.input.reserve(len.min(4096));
        // What is beyond a short input is as zero, whatever the entry has there.
        self.input.extend(entry.bytes().iter().skip(INLINE_INPUT).take(INLINE.min(len)));
        self.input.resize(INLINE, 0);
        let opcode = (be32(&self.input, 0) >> 16) as u16;
        if is_inline(opcode) {
            return FetchStep::Execute;
        }
        self.list_at = kept_list(opcode).unwrap_or(usize::MAX);
        self.mailbox(self.entry.get(CommandEntry::INPUT_MAILBOX))
    }

    fn read_mailbox(&mut self, bytes: Result<&[u8], DmaError>) -> FetchStep {
        let refuse = |delivery, field, found: u64, expected| {
            FetchStep::Refuse(Undelivered { delivery, block: Some(self.blocks), field, found, expected })
        };
        let Ok(bytes) = bytes else {
            let expected = Expected::Words("an address of the host's memory");
            return refuse(Delivery::BadInputPointer, "mailbox pointer", self.at, expected);
        };
        let block = MailboxBlock::from_prefix_or_zero(bytes);
        let (token, wanted) = (block.get(MailboxBlock::TOKEN), self.entry.get(CommandEntry::TOKEN));
        if token != wanted {
            return refuse(Delivery::Token, "token", token.into(), Expected::Value(wanted.into()));
        }
        let number = block.get(MailboxBlock::BLOCK_NUMBER);
        if number as usize != self.blocks {
            let expected = Expected::Value(self.blocks as u64);
            return refuse(Delivery::BadBlockNumber, "block_number", number.into(), expected);
        }
        self.blocks += 1;
        let left = self.input_len().saturating_sub(self.fetched());
        let data = bytes.get(..MAILBOX_DATA.min(left)).unwrap_or_default();
        let before = self.list_at.saturating_sub(self.input.len());
        let (input, list) = data.split_at_checked(before).unwrap_or((data, &[]));
        self.input.extend_from_slice(input);
        self.list.push(list, self.input_len().saturating_sub(self.list_at));
        self.mailbox(block.get(MailboxBlock::NEXT))
    }

    /// The next mailbox, if the input needs one.
    fn mailbox(&mut self, at: u64) -> FetchStep {
        if self.fetched() >= self.input_len() {
            return FetchStep::Execute;
        }
        // A chain ends where it says so, though the length goes on: what is missing is as of a shorter input. Firmware reads as much
        // as the command has (OpenBSD's driver gives CREATE_SQ a length beyond its one mailbox).
        if at == 0 && self.blocks > 0 {
            return FetchStep::Execute;
        }
        if !at.is_multiple_of(MAILBOX_ALIGNMENT) {
            return FetchStep::Refuse(Undelivered {
                delivery: Delivery::BadInputPointer,
                block: Some(self.blocks),
                field: "mailbox pointer",
                found: at,
                expected: Expected::Words("a multiple of 1024: the low 10 bits mean nothing"),
            });
        }
        self.at = at;
        FetchStep::Read { at, len: MailboxBlock::SIZE }
    }

    fn input_len(&self) -> usize {
        self.entry.get(CommandEntry::INPUT_LENGTH) as usize
    }

    /// Bytes of input that were read.
    pub(crate) fn fetched(&self) -> usize {
        self.input.len().saturating_add(self.list.len())
    }

    /// The input, as far as it was read; up to its list if the firmware keeps that as it is.
    pub(crate) fn input(&self) -> &[u8] {
        &self.input
    }

    /// All of the input, for the firmware.
    pub(crate) fn take_input(&mut self) -> Input<'_> {
        Input { bytes: &self.input, list: std::mem::take(&mut self.list) }
    }

    /// Bytes of output that there is room for.
    pub(crate) fn output_len(&self) -> usize {
        (self.entry.get(CommandEntry::OUTPUT_LENGTH) as usize).min(MAX_OUTPUT)
    }

    /// The way back, with this output; `event`: the end is told by an event.
    pub(crate) fn output(&self, delivery: Delivery, data: Vec<u8>, event: bool) -> Output {
        let (slot, entry_at) = (self.slot, self.entry_at);
        let mailbox = self.entry.get(CommandEntry::OUTPUT_MAILBOX);
        let (stage, delivery) = match data.len() > INLINE {
            true if !mailbox.is_multiple_of(MAILBOX_ALIGNMENT) => (Stage::End, Delivery::BadOutputPointer),
            true => (Stage::Block, delivery),
            false => (Stage::Inline, delivery),
        };
        Output { slot, entry_at, data, delivered: INLINE, mailbox, stage, delivery, event }
    }
}

/// What is to be done for a command's output.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutputStep<'a> {
    /// Write the bytes at this DMA address, tell [`Output::written`], and ask again.
    Write { at: u64, bytes: &'a [u8] },
    /// Read the address at this DMA address, tell [`Output::read`], and ask again.
    Read { at: u64 },
    /// Write the byte at this DMA address, with release ordering: it hands the entry back.
    HandOver { at: u64, status: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A mailbox is to be written.
    Block,
    /// Its successor is to be found.
    Next,
    /// The output in the entry is to be written.
    Inline,
    End,
}

/// A command's output on its way.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) slot: u8,
    entry_at: u64,
    data: Vec<u8>,
    /// Bytes of the data that need no mailbox, or are in one.
    delivered: usize,
    /// The mailbox that is written now.
    mailbox: u64,
    stage: Stage,
    pub(crate) delivery: Delivery,
    /// The end is told by an event: a command event queue was there when the command was fetched. The command that creates it
    /// completes without an event, because software still polls for it.
    pub(crate) event: bool,
}

impl Output {
    /// What is to be done next.
    pub(crate) fn next(&self) -> OutputStep<'_> {
        match self.stage {
            Stage::Block => OutputStep::Write { at: self.mailbox, bytes: self.block() },
            Stage::Next => {
                OutputStep::Read { at: self.mailbox.wrapping_add(MailboxBlock::NEXT.offset() as u64) }
            }
            Stage::Inline => {
                let bytes = self.data.get(..INLINE).unwrap_or(&self.data);
                OutputStep::Write { at: self.entry_at.wrapping_add(INLINE_OUTPUT as u64), bytes }
            }
            Stage::End => OutputStep::HandOver {
                at: self.entry_at.wrapping_add(OWNERSHIP_BYTE as u64),
                status: (self.delivery as u8) << 1,
            },
        }
    }

    /// The output itself.
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// DMA address of the entry's signature.
    pub(crate) fn signature_at(&self) -> u64 {
        self.entry_at.wrapping_add(SIGNATURE_BYTE)
    }

    fn block(&self) -> &[u8] {
        let rest = self.data.get(self.delivered..).unwrap_or_default();
        rest.get(..MAILBOX_DATA).unwrap_or(rest)
    }

    /// What came of [`OutputStep::Write`].
    pub(crate) fn written(&mut self, result: Result<(), DmaError>) {
        if result.is_err() {
            return self.failed();
        }
        self.stage = match self.stage {
            Stage::Block => {
                self.delivered += self.block().len();
                if self.delivered < self.data.len() { Stage::Next } else { Stage::Inline }
            }
            _ => Stage::End,
        };
    }

    /// What came of [`OutputStep::Read`].
    pub(crate) fn read(&mut self, mailbox: Result<u64, DmaError>) {
        match mailbox {
            Ok(mailbox) if mailbox.is_multiple_of(MAILBOX_ALIGNMENT) => {
                (self.mailbox, self.stage) = (mailbox, Stage::Block);
            }
            Ok(mailbox) => {
                self.mailbox = mailbox;
                self.failed();
            }
            Err(_) => self.failed(),
        }
    }

    /// Of an output that can't be delivered: which of its mailboxes, from 0, and where that is.
    pub(crate) fn stuck_at(&self) -> (usize, u64) {
        (self.delivered.saturating_sub(INLINE) / MAILBOX_DATA, self.mailbox)
    }

    fn failed(&mut self) {
        (self.delivery, self.stage) = (Delivery::BadOutputPointer, Stage::End);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca_spec::command::Opcode;
    use zerocopy::IntoBytes;

    const TOKEN: u32 = 0x5a;

    fn entry(input: u32, output: u32) -> CommandEntry {
        let mut entry = CommandEntry::new();
        entry.set(CommandEntry::TYPE, ENTRY_TYPE_PCIE).set(CommandEntry::OWNERSHIP, 1);
        entry.set(CommandEntry::INPUT_LENGTH, input).set(CommandEntry::OUTPUT_LENGTH, output);
        entry.set(CommandEntry::INPUT_MAILBOX, 0x1000).set(CommandEntry::OUTPUT_MAILBOX, 0x2000);
        entry.set(CommandEntry::TOKEN, TOKEN);
        entry
    }

    fn mailbox(next: u64) -> MailboxBlock {
        let mut block = MailboxBlock::new();
        block.set(MailboxBlock::NEXT, next).set(MailboxBlock::TOKEN, TOKEN);
        block
    }

    fn delivery(step: FetchStep) -> (Option<usize>, Delivery) {
        match step {
            FetchStep::Refuse(why) => (why.block, why.delivery),
            other => panic!("{other:?}"),
        }
    }

    fn numbered(next: u64, number: u32) -> MailboxBlock {
        let mut block = mailbox(next);
        block.set(MailboxBlock::BLOCK_NUMBER, number);
        block
    }

    fn fetched(entry: &CommandEntry) -> Fetch {
        let mut fetch = Fetch::new(3, 0x100);
        assert_eq!(fetch.next(), FetchStep::Read { at: 0x100, len: CommandEntry::SIZE });
        fetch.read(Ok(entry.bytes()));
        fetch
    }

    #[test]
    fn the_length_ends_the_chain() {
        let mut fetch = fetched(&entry((INLINE + MAILBOX_DATA + 1) as u32, 16));
        for (at, number) in [(0x1000, 0), (0x5000, 1)] {
            assert_eq!(fetch.next(), FetchStep::Read { at, len: MailboxBlock::SIZE });
            fetch.read(Ok(numbered(0x5000, number).bytes()));
        }
        assert_eq!((fetch.next(), fetch.input().len()), (FetchStep::Execute, INLINE + MAILBOX_DATA + 1));
        assert_eq!(fetched(&entry(INLINE as u32, 16)).next(), FetchStep::Execute);
    }

    /// A list that the firmware keeps is not copied once more.
    #[test]
    fn lists_come_apart() {
        const AT: usize = 0x110;
        let mut wanted = entry((AT + 2 * MAILBOX_DATA) as u32, 16);
        if let Some(opcode) = wanted.as_mut_bytes().get_mut(INLINE_INPUT..INLINE_INPUT + 2) {
            opcode.copy_from_slice(&(Opcode::CreateMkey as u16).to_be_bytes());
        }
        let mut fetch = fetched(&wanted);
        let mut n = 0u8;
        while let FetchStep::Read { .. } = fetch.next() {
            let mut block = numbered(0x5000, n.into());
            n += 1;
            block.as_mut_bytes()[..MAILBOX_DATA].fill(n);
            fetch.read(Ok(block.bytes()));
        }
        assert_eq!((fetch.next(), fetch.input().len(), n), (FetchStep::Execute, AT, 3));
        let input = fetch.take_input();
        let list: Vec<u8> = input.list.entries::<8>().flatten().collect();
        let inline = AT - INLINE;
        let expected = [vec![1; MAILBOX_DATA - inline], vec![2; MAILBOX_DATA], vec![3; inline]].concat();
        assert_eq!((input.bytes.get(INLINE..), list), (Some(&[1; AT - INLINE][..]), expected));
    }

    #[test]
    fn a_short_input_goes_on_with_zeroes() {
        for len in [8, 12, 16] {
            let mut entry = entry(len, 16);
            entry.bytes_mut()[INLINE_INPUT..][..INLINE].fill(1);
            let mut fetch = fetched(&entry);
            assert_eq!(fetch.next(), FetchStep::Execute);
            let len = len as usize;
            assert_eq!(fetch.take_input().bytes, [vec![1; len], vec![0; INLINE - len]].concat());
        }
    }

    #[test]
    fn what_is_wrong_with_an_entry() {
        let mut soft = entry(16, 16);
        soft.set(CommandEntry::OWNERSHIP, 0);
        assert_eq!(fetched(&soft).next(), FetchStep::Ignore(NoCommand::NotHandedOver));
        let mut typed = entry(16, 16);
        typed.set(CommandEntry::TYPE, 0);
        assert_eq!(delivery(fetched(&typed).next()), (None, Delivery::BadType));
        assert_eq!(delivery(fetched(&entry(7, 16)).next()), (None, Delivery::BadInputLength));
        assert_eq!(delivery(fetched(&entry(16, 7)).next()), (None, Delivery::BadOutputLength));
        let why = DmaError { iova: 0x100, len: 64 };
        let mut fetch = Fetch::new(0, 0x100);
        fetch.read(Err(why));
        assert_eq!(fetch.next(), FetchStep::Ignore(NoCommand::Unreadable(why)));
        let mut fetch = fetched(&entry(17, 16));
        fetch.read(Err(why));
        assert_eq!(delivery(fetch.next()), (Some(0), Delivery::BadInputPointer));
        let mut fetch = fetched(&entry(17, 16));
        fetch.read(Ok(MailboxBlock::new().bytes()));
        assert_eq!(delivery(fetch.next()), (Some(0), Delivery::Token));
        let mut fetch = fetched(&entry(1000, 16));
        fetch.read(Ok(mailbox(0x5200).bytes()));
        assert_eq!(delivery(fetch.next()), (Some(1), Delivery::BadInputPointer), "not aligned");
        let mut fetch = fetched(&entry(1000, 16));
        fetch.read(Ok(mailbox(0x5000).bytes()));
        fetch.read(Ok(mailbox(0x5000).bytes()));
        assert_eq!(delivery(fetch.next()), (Some(1), Delivery::BadBlockNumber));
    }

    #[test]
    fn commands_have_names() {
        assert_eq!(Named(Opcode::CreateEq as u16).to_string(), "CREATE_EQ");
        assert_eq!(Named(0xfff).to_string(), "command 0xfff");
    }

    #[test]
    fn output_goes_to_mailboxes_first_and_ownership_last() {
        let data: Vec<u8> = (0..INLINE + MAILBOX_DATA + 5).map(|i| i as u8).collect();
        let mut output = fetched(&entry(16, 4096)).output(Delivery::Ok, data.clone(), true);
        let split = INLINE + MAILBOX_DATA;
        assert_eq!(output.next(), OutputStep::Write { at: 0x2000, bytes: &data[INLINE..split] });
        output.written(Ok(()));
        assert_eq!(output.next(), OutputStep::Read { at: 0x2230 });
        output.read(Ok(0x7000));
        assert_eq!(output.next(), OutputStep::Write { at: 0x7000, bytes: &data[split..] });
        output.written(Ok(()));
        assert_eq!(output.next(), OutputStep::Write { at: 0x120, bytes: &data[..INLINE] });
        output.written(Ok(()));
        assert_eq!(output.next(), OutputStep::HandOver { at: 0x13f, status: 0 });
        let mut output = fetched(&entry(16, 4096)).output(Delivery::Ok, data, true);
        output.written(Err(DmaError { iova: 0x2000, len: 512 }));
        let status = (Delivery::BadOutputPointer as u8) << 1;
        assert_eq!(output.next(), OutputStep::HandOver { at: 0x13f, status });
    }
}
