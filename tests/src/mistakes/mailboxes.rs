//! Command entries and their mailboxes.

use hca_driver::{Bus, Hca};
use hca_spec::cmd::ObjectIn;
use hca_spec::command::{CommandEntry, INLINE_INPUT, MAILBOX_DATA, MailboxBlock, Opcode};
use hca_spec::init_segment::InitSegment;

use super::Mistake;
use super::bench::{Bench, Hand, Handed};

pub(super) const ALL: &[Mistake] = &[
    Mistake::driver("input mailbox with another token", "token", |b| {
        long(b, |handed| handed.mailbox(0, |block| set_token(block, 0x77)));
    }),
    Mistake::driver("third input mailbox with another token", "token", |b| {
        long(b, |handed| handed.mailbox(2, |block| set_token(block, 0x77)));
    }),
    Mistake::driver("input mailboxes all numbered 0", "block_number", |b| {
        long(b, |handed| handed.mailbox(1, |block| _ = block.set(MailboxBlock::BLOCK_NUMBER, 0)));
    }),
    Mistake::driver("first input mailbox numbered 1", "block_number", |b| {
        long(b, |handed| handed.mailbox(0, |block| _ = block.set(MailboxBlock::BLOCK_NUMBER, 1)));
    }),
    Mistake::driver("input mailbox 512 bytes into its page", "mailbox pointer", |b| {
        long(b, |handed| handed.entry(|entry| add(entry, 512)));
    }),
    Mistake::driver("next pointer of a mailbox that is not aligned", "mailbox pointer", |b| {
        long(b, |handed| {
            handed.mailbox(0, |block| {
                let next = block.get(MailboxBlock::NEXT);
                block.set(MailboxBlock::NEXT, next + 0x40);
            });
        });
    }),
    Mistake::driver("input mailbox at an address that is not mapped", "mailbox pointer", |b| {
        long(b, |handed| handed.entry(|entry| _ = entry.set(CommandEntry::INPUT_MAILBOX, 0x1000)));
    }),
    Mistake::driver("next pointer of a mailbox left 0", "translations_octword_actual_size", |b| {
        long(b, |handed| handed.mailbox(0, |block| _ = block.set(MailboxBlock::NEXT, 0)));
    }),
    Mistake::driver("output mailbox that is not aligned", "output mailbox pointer", |b| {
        query(b, |handed| {
            handed.entry(|entry| {
                let at = entry.get(CommandEntry::OUTPUT_MAILBOX);
                entry.set(CommandEntry::OUTPUT_MAILBOX, at + 0x200);
            });
        });
    }),
    Mistake::driver("output mailbox at an address that is not mapped", "output mailbox pointer", |b| {
        query(b, |handed| handed.entry(|entry| _ = entry.set(CommandEntry::OUTPUT_MAILBOX, 0x1000)));
    }),
    Mistake::driver("command entry without its type", "type", |b| {
        query(b, |handed| handed.entry(|entry| _ = entry.set(CommandEntry::TYPE, 0)));
    }),
    Mistake::driver("command entry with an input shorter than an opcode", "input_length", |b| {
        query(b, |handed| handed.entry(|entry| _ = entry.set(CommandEntry::INPUT_LENGTH, 4)));
    }),
    Mistake::driver("command entry without room for output", "output_length", |b| {
        query(b, |handed| handed.entry(|entry| _ = entry.set(CommandEntry::OUTPUT_LENGTH, 0)));
    }),
    Mistake::driver("lengths of a command little-endian", "input_length", |b| {
        query(b, |handed| {
            handed.entry(|entry| {
                let length = entry.get(CommandEntry::INPUT_LENGTH).swap_bytes();
                entry.set(CommandEntry::INPUT_LENGTH, length);
            });
        });
    }),
    Mistake::driver("opcode of a command little-endian", "opcode", |b| {
        let mut hca = b.open(0);
        if b.is_wrong() {
            let reverse =
                |entry: &mut CommandEntry| entry.bytes_mut()[INLINE_INPUT..INLINE_INPUT + 2].reverse();
            hca.bus_mut().spoil_next(move |handed| handed.entry(reverse));
        }
        b.object(&mut hca, Opcode::AllocPd, 0);
        b.keep(hca);
    }),
    Mistake::driver("opcode that no adapter has", "opcode", |b| {
        query(b, |handed| {
            handed.entry(|entry| entry.bytes_mut()[INLINE_INPUT..INLINE_INPUT + 2].fill(0x7e));
        });
    }),
    Mistake::driver("command entry with a wrong signature", "signature", |b| {
        query(b, |handed| handed.entry(|entry| _ = entry.set(CommandEntry::SIGNATURE, 0x5a)));
    }),
    Mistake::driver("input mailbox with a wrong signature", "signature", |b| {
        signed(b, |block| {
            let signature = block.get(MailboxBlock::SIGNATURE);
            block.set(MailboxBlock::SIGNATURE, signature ^ 0x40);
        });
    }),
    Mistake::driver("input mailbox with a wrong signature of its control part", "ctrl_signature", |b| {
        signed(b, |block| {
            let signature = block.get(MailboxBlock::CTRL_SIGNATURE);
            block.set(MailboxBlock::CTRL_SIGNATURE, signature ^ 1);
        });
    }),
    Mistake::driver("doorbell of a command entry that software owns", "ownership", |b| {
        query(b, |handed| handed.entry(|entry| _ = entry.set(CommandEntry::OWNERSHIP, 0)));
    }),
    Mistake::driver(
        "doorbell of a command slot rung again before it is done",
        "command_doorbell_vector",
        |b| {
            let mut hca = b.open(0);
            let slot = hca.begin(Opcode::AllocPd, 0, ObjectIn::new().bytes().to_vec(), 16).expect("a slot");
            if b.is_wrong() {
                let doorbell = InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64;
                hca.bus_mut().mmio_write32(doorbell, 1);
            }
            let done = hca.finish(slot);
            b.note(done);
            b.keep(hca);
        },
    ),
    Mistake::driver("command queue at an address that is not mapped", "cmdq_phy_addr", |b| {
        let mut hca = b.open(0);
        if b.is_wrong() {
            hca.bus_mut().mmio_write32(InitSegment::CMDQ_PHY_ADDR_HIGH.offset() as u64, 0);
        }
        b.object(&mut hca, Opcode::Nop, 0);
        b.keep(hca);
    }),
];

fn set_token(block: &mut MailboxBlock, token: u32) {
    block.set(MailboxBlock::TOKEN, token);
}

fn add(entry: &mut CommandEntry, bytes: u64) {
    let at = entry.get(CommandEntry::INPUT_MAILBOX);
    entry.set(CommandEntry::INPUT_MAILBOX, at + bytes);
}

/// A command with an input of several mailboxes: a key of 200 pages.
fn long(b: &mut Bench, spoil: fn(&Handed<'_>)) {
    let mut hca: Hca<Hand> = b.open(0);
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let memory = hca.bus_mut().dma_alloc(200 << 12, 4096).expect("memory");
    if b.is_wrong() {
        hca.bus_mut().spoil_next(spoil);
    }
    let registered = hca.register(pd, &memory, 200 << 12, hca_driver::Access::ALL);
    b.note(registered);
    b.keep((hca, memory));
}

/// The same with signatures in the second mailbox, as a driver makes them; those of the twin are right.
fn signed(b: &mut Bench, spoil: fn(&mut MailboxBlock)) {
    let wrong = b.is_wrong();
    let mut hca: Hca<Hand> = b.open(0);
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let memory = hca.bus_mut().dma_alloc(200 << 12, 4096).expect("memory");
    hca.bus_mut().spoil_next(move |handed| {
        handed.mailbox(1, |block| {
            let sum = |bytes: &[u8]| !bytes.iter().fold(0, |sum: u8, byte| sum ^ byte);
            let control = sum(&block.bytes()[MAILBOX_DATA..MailboxBlock::SIZE - 2]);
            block.set(MailboxBlock::CTRL_SIGNATURE, control.into());
            let all = sum(&block.bytes()[..MailboxBlock::SIZE - 1]);
            block.set(MailboxBlock::SIGNATURE, all.into());
            if wrong {
                spoil(block);
            }
        });
    });
    let registered = hca.register(pd, &memory, 200 << 12, hca_driver::Access::ALL);
    b.note(registered);
    b.keep((hca, memory));
}

/// A command with a short input and an output in mailboxes.
fn query(b: &mut Bench, spoil: fn(&Handed<'_>)) {
    let mut hca = b.open(0);
    if b.is_wrong() {
        hca.bus_mut().spoil_next(spoil);
    }
    let sent = hca.execute(Opcode::QueryIssi, 0, ObjectIn::new().bytes().to_vec(), 0x70);
    b.note(sent);
    b.keep(hca);
}
