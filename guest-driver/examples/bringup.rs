//! Bring-up by hand: from the first register to a configured port, and down again, without the rest of this crate.
//!
//! ```text
//! cargo softhca serve --socket /tmp/hca.sock           # in one terminal
//! cargo bringup /tmp/hca.sock                          # in another
//! ```
//!
//! Read it from top to bottom beside `specs/doc/commands.md`, "Bring-up, as Linux does it". Of this crate only the [`Bus`]
//! is used, which is what an operating system provides: registers, DMA memory, a way to let time pass. The complete
//! driver does the same in `src/hca.rs` and `src/cmdq.rs`, with every error handled, commands in parallel and events.

use std::error::Error;

use hca_driver::vfio_user::{VfioUserBus, WindowMemory};
use hca_driver::{Bus, Dma, PAGE_SIZE};
use hca_spec::caps::{General, TYPE_GENERAL};
use hca_spec::cmd::{
    CAP_CURRENT, CreateEqIn, FunctionIn, MadIfc, ManagePagesOut, ObjectIn, ObjectOut, PAGES_BOOT, PAGES_GIVE,
    PAGES_INIT, PAGES_TAKE, QueryAdapterOut, QueryHcaCapOut, QueryPagesOut, SetIssiIn,
};
use hca_spec::command::{
    CommandEntry, ENTRY_TYPE_PCIE, INLINE, INLINE_INPUT, INLINE_OUTPUT, InHeader, MAILBOX_DATA, MailboxBlock,
    Opcode, OutHeader,
};
use hca_spec::eqe::EventType;
use hca_spec::init_segment::{CMD_INTERFACE_REVISION, InitSegment};
use hca_spec::mad::{CLASS_SUBN_LID_ROUTED, METHOD_GET, Mad, PortInfo, SMP_DATA, attr};
use hca_spec::{be64, layout::Field};

/// DMA memory of this program: command queue, mailboxes, an event queue, pages for the firmware.
const MEMORY: usize = 4 << 20;
/// The mailboxes: 16 for input, 16 for output. A real driver takes as many as a command needs.
const MAILBOXES: usize = 16;
/// Mailboxes are 1 KiB apart, as Linux has them; only their addresses count.
const MAILBOX_STEP: usize = 1024;
/// How often to look at something before giving up.
const POLLS: u32 = 1_000_000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What bring-up needs to keep.
struct Driver {
    bus: VfioUserBus,
    /// The command queue: a page of entries. This program uses the first one only.
    queue: WindowMemory,
    input: WindowMemory,
    output: WindowMemory,
    /// Pages that the firmware has.
    lent: Vec<WindowMemory>,
    /// Differs from command to command: entry and mailboxes carry it.
    token: u8,
}

/// A field of the initialization segment.
fn register(bus: &mut VfioUserBus, field: Field<InitSegment>) -> u32 {
    bus.mmio_read32(field.offset() as u64) >> field.shift() & field.max()
}

impl Driver {
    /// Steps 1 and 2: does firmware run, and where is the command queue?
    fn start(mut bus: VfioUserBus) -> Result<Self> {
        // The revision is the first register. All ones would mean that nothing answers.
        let revision = bus.mmio_read32(0);
        if revision == u32::MAX {
            return Err("no adapter: the registers read as all ones".into());
        }
        println!(
            "firmware        {}.{}.{}",
            register(&mut bus, InitSegment::FW_REV_MAJOR),
            register(&mut bus, InitSegment::FW_REV_MINOR),
            register(&mut bus, InitSegment::FW_REV_SUBMINOR)
        );
        // Firmware that starts takes no commands yet.
        while register(&mut bus, InitSegment::INITIALIZING) == 1 {
            bus.wait(None);
        }
        if register(&mut bus, InitSegment::CMD_INTERFACE_REV) != CMD_INTERFACE_REVISION {
            return Err("another revision of the command interface".into());
        }
        // The geometry is the firmware's choice, and is in the register that takes the address.
        let entries = 1 << register(&mut bus, InitSegment::LOG_CMDQ_SIZE);
        let stride = 1 << register(&mut bus, InitSegment::LOG_CMDQ_STRIDE);
        println!("command queue   {entries} entries of {stride} bytes");

        let mut alloc = |size| bus.dma_alloc(size, PAGE_SIZE).ok_or("no DMA memory");
        let queue = alloc(PAGE_SIZE)?;
        let (input, output) = (alloc(MAILBOXES * MAILBOX_STEP)?, alloc(MAILBOXES * MAILBOX_STEP)?);
        // High word first: the write of the low word takes effect.
        let address = queue.bus_address();
        bus.mmio_write32(InitSegment::CMDQ_PHY_ADDR_HIGH.offset() as u64, (address >> 32) as u32);
        bus.mmio_write32(InitSegment::CMDQ_PHY_ADDR_LOW.offset() as u64, address as u32);
        Ok(Self { bus, queue, input, output, lent: Vec::new(), token: 0 })
    }

    /// Executes one command by polling. `input` includes its 16-byte header, whose opcode is filled in here.
    fn command(&mut self, opcode: Opcode, op_mod: u32, input: &[u8], output_len: usize) -> Result<Vec<u8>> {
        let mut input = input.to_vec();
        input.resize(input.len().max(INLINE), 0);
        let mut header = InHeader::from_prefix_or_zero(&input);
        header.set(InHeader::OPCODE, opcode as u32).set(InHeader::OP_MOD, op_mod);
        input[..8].copy_from_slice(&header.bytes()[..8]);
        let output_len = output_len.max(INLINE);
        self.token = self.token.wrapping_add(1);

        // The first 16 bytes of input and output are in the entry, the rest in chains of 512-byte mailboxes.
        let (inline, rest) = input.split_at(INLINE);
        let (token, room) = (self.token, output_len - INLINE);
        let first_input = chain(&mut self.input, token, rest.len(), rest)?;
        let first_output = chain(&mut self.output, token, room, &[])?;
        let mut entry = CommandEntry::new();
        entry.set(CommandEntry::TYPE, ENTRY_TYPE_PCIE).set(CommandEntry::TOKEN, token.into());
        entry
            .set(CommandEntry::INPUT_LENGTH, input.len() as u32)
            .set(CommandEntry::INPUT_MAILBOX, first_input);
        entry
            .set(CommandEntry::OUTPUT_LENGTH, output_len as u32)
            .set(CommandEntry::OUTPUT_MAILBOX, first_output);
        entry.bytes_mut()[INLINE_INPUT..INLINE_INPUT + INLINE].copy_from_slice(inline);
        self.queue.write(0, entry.bytes());

        // Ownership last, with release ordering; then the doorbell, whose bit 0 is this entry.
        let last_word = CommandEntry::OWNERSHIP.offset();
        entry.set(CommandEntry::OWNERSHIP, 1);
        self.queue.store32(last_word, hca_spec::be32(entry.bytes(), last_word));
        self.bus.mmio_write32(InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64, 1);

        // Software may look at the output once it owns the entry again.
        let mut polls = 0;
        let word = loop {
            let word = self.queue.load32(last_word);
            if word & 1 == 0 {
                break word;
            }
            polls += 1;
            if polls == POLLS {
                return Err(format!("{opcode:?} is not answered").into());
            }
            self.bus.wait(None);
        };
        // First kind of error: the command did not reach the firmware.
        let delivery = word >> CommandEntry::STATUS.shift() & CommandEntry::STATUS.max();
        if delivery != 0 {
            return Err(format!("{opcode:?}: delivery status {delivery:#x}").into());
        }
        let mut out = vec![0; output_len];
        self.queue.read(INLINE_OUTPUT, &mut out[..INLINE]);
        for (i, data) in out[INLINE..].chunks_mut(MAILBOX_DATA).enumerate() {
            self.output.read(i * MAILBOX_STEP, data);
        }
        // Second kind: the firmware refused it. The server's log says why, in words.
        let answer = OutHeader::from_prefix_or_zero(&out);
        match (answer.get(OutHeader::STATUS), answer.get(OutHeader::SYNDROME)) {
            (0, _) => Ok(out),
            (status, syndrome) => {
                Err(format!("{opcode:?} refused: status {status:#x}, syndrome {syndrome:#010x}").into())
            }
        }
    }

    /// A command that names an object, or none.
    fn simple(&mut self, opcode: Opcode, number: u32) -> Result<()> {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, number);
        self.command(opcode, 0, input.bytes(), 0).map(drop)
    }

    /// Lends the firmware as many pages as it wants at this stage.
    fn give_pages(&mut self, stage: u32) -> Result<u32> {
        let out = self.command(Opcode::QueryPages, stage, FunctionIn::new().bytes(), QueryPagesOut::SIZE)?;
        let wanted = QueryPagesOut::from_prefix_or_zero(&out).get(QueryPagesOut::NUM_PAGES);
        let mut input = FunctionIn::new();
        input.set(FunctionIn::INPUT_NUM_ENTRIES, wanted);
        let mut input = input.bytes().to_vec();
        for _ in 0..wanted {
            let page = self.bus.dma_alloc(PAGE_SIZE, PAGE_SIZE).ok_or("no DMA memory")?;
            input.extend_from_slice(&page.bus_address().to_be_bytes());
            self.lent.push(page);
        }
        self.command(Opcode::ManagePages, PAGES_GIVE, &input, 0)?;
        Ok(wanted)
    }

    /// Takes all pages back.
    fn take_pages(&mut self) -> Result<()> {
        while !self.lent.is_empty() {
            let mut input = FunctionIn::new();
            input.set(FunctionIn::INPUT_NUM_ENTRIES, self.lent.len() as u32);
            let room = ManagePagesOut::SIZE + 8 * self.lent.len();
            let out = self.command(Opcode::ManagePages, PAGES_TAKE, input.bytes(), room)?;
            let count = ManagePagesOut::from_prefix_or_zero(&out).get(ManagePagesOut::OUTPUT_NUM_ENTRIES);
            if count == 0 {
                return Err(format!("the firmware keeps {} pages", self.lent.len()).into());
            }
            let given_back: Vec<u64> =
                (0..count as usize).map(|i| be64(&out, ManagePagesOut::SIZE + 8 * i)).collect();
            self.lent.retain(|page| !given_back.contains(&page.bus_address()));
        }
        Ok(())
    }

    /// PortInfo of port 1, by a management datagram that goes through a command.
    fn port_info(&mut self) -> Result<PortInfo> {
        let mut input = MadIfc::new();
        input.set(MadIfc::PORT, 1);
        let mad = input.mad_mut();
        mad.set(Mad::BASE_VERSION, 1).set(Mad::CLASS_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED);
        mad.set(Mad::METHOD, METHOD_GET)
            .set(Mad::ATTRIBUTE_ID, attr::PORT_INFO)
            .set(Mad::ATTRIBUTE_MODIFIER, 1);
        // Bits 0 and 1: no check of M_Key and B_Key, the datagram is the host's own.
        let out = self.command(Opcode::MadIfc, 3, input.bytes(), MadIfc::SIZE)?;
        let answer = MadIfc::from_prefix_or_zero(&out);
        Ok(PortInfo::from_prefix_or_zero(&answer.mad().bytes()[SMP_DATA..]))
    }
}

/// Fills as many mailboxes of `memory` as `len` bytes need with `data` and links them; returns the first one's address,
/// or 0 if none is needed.
fn chain(memory: &mut WindowMemory, token: u8, len: usize, data: &[u8]) -> Result<u64> {
    let count = len.div_ceil(MAILBOX_DATA);
    if count > MAILBOXES {
        return Err("the command is too long for this example".into());
    }
    let at = |memory: &WindowMemory, i: usize| memory.bus_address() + (i * MAILBOX_STEP) as u64;
    for i in 0..count {
        let mut block = MailboxBlock::new();
        let from = data.chunks(MAILBOX_DATA).nth(i).unwrap_or_default();
        block.bytes_mut()[..from.len()].copy_from_slice(from);
        block.set(MailboxBlock::NEXT, if i + 1 < count { at(memory, i + 1) } else { 0 });
        block.set(MailboxBlock::BLOCK_NUMBER, i as u32).set(MailboxBlock::TOKEN, token.into());
        memory.write(i * MAILBOX_STEP, block.bytes());
    }
    Ok(if count == 0 { 0 } else { at(memory, 0) })
}

/// Brings the adapter behind `socket` up and down.
///
/// # Errors
/// The socket, or what the adapter refuses.
pub fn run(socket: &std::path::Path) -> Result<()> {
    // On a real bus: find the function, map BAR0, set "memory space" and "bus master" in its command register.
    let mut bus = VfioUserBus::connect(socket, MEMORY, 1)?;
    let mut identity = [0; 4];
    bus.config_read(0, &mut identity)?;
    let [vendor, device] = [[identity[0], identity[1]], [identity[2], identity[3]]].map(u16::from_le_bytes);
    println!("PCI function    {vendor:04x}:{device:04x}");
    let mut hca = Driver::start(bus)?;

    // 3. The function is taken into use, and both sides agree on an interface step.
    hca.simple(Opcode::EnableHca, 0)?;
    let mut step = SetIssiIn::new();
    step.set(SetIssiIn::CURRENT_ISSI, 1);
    hca.command(Opcode::SetIssi, 0, step.bytes(), 0)?;

    // 4. The firmware has no memory of its own: it borrows pages, now and again before INIT_HCA.
    println!("boot pages      {}", hca.give_pages(PAGES_BOOT)?);

    // 5. What can it do? A driver that wants less says so by SET_HCA_CAP before INIT_HCA; this one takes what there is.
    let op_mod = TYPE_GENERAL << 1 | CAP_CURRENT;
    let out = hca.command(Opcode::QueryHcaCap, op_mod, ObjectIn::new().bytes(), QueryHcaCapOut::SIZE)?;
    let caps = *QueryHcaCapOut::from_prefix_or_zero(&out).general();
    println!(
        "capabilities    2^{} QPs, 2^{} CQs, 2^{} memory keys, {} port",
        caps.get(General::LOG_MAX_QP),
        caps.get(General::LOG_MAX_CQ),
        caps.get(General::LOG_MAX_MKEY),
        caps.get(General::NUM_PORTS)
    );

    // 6. The second part of the pages, then objects may be created.
    println!("init pages      {}", hca.give_pages(PAGES_INIT)?);
    hca.simple(Opcode::InitHca, 0)?;
    let out = hca.command(Opcode::QueryAdapter, 0, ObjectIn::new().bytes(), QueryAdapterOut::SIZE)?;
    let adapter = QueryAdapterOut::from_prefix_or_zero(&out);
    let psid =
        [adapter.get(QueryAdapterOut::PSID_H), adapter.get(QueryAdapterOut::PSID_L)].map(u64::to_be_bytes);
    println!("board           {}", String::from_utf8_lossy(&psid.concat()).trim_end_matches('\0'));

    // 7. A page of doorbells, and an event queue that hears of the port. New entries of an event queue have owner 1:
    // hardware writes 0 on its first round.
    let out = hca.command(Opcode::AllocUar, 0, ObjectIn::new().bytes(), ObjectOut::SIZE)?;
    let uar = ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER);
    let mut events = hca.bus.dma_alloc(PAGE_SIZE, PAGE_SIZE).ok_or("no DMA memory")?;
    for entry in 0..PAGE_SIZE / 64 {
        events.write(entry * 64 + hca_spec::eqe::OWNER_BYTE, &[1]);
    }
    let mut create = CreateEqIn::new();
    create.set(CreateEqIn::EVENT_BITMASK_0, 1 << EventType::PortChange as u32);
    let eqc = create.eqc_mut();
    eqc.set(hca_spec::queue::Eqc::LOG_EQ_SIZE, (PAGE_SIZE as u32 / 64).ilog2());
    eqc.set(hca_spec::queue::Eqc::UAR_PAGE, uar).set(hca_spec::queue::Eqc::INTR, 0);
    let mut input = create.bytes().to_vec();
    input.extend_from_slice(&events.bus_address().to_be_bytes());
    let out = hca.command(Opcode::CreateEq, 0, &input, ObjectOut::SIZE)?;
    let eqn = ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER);
    println!("objects         UAR page {uar:#x}, EQ {eqn}");

    // 8. Everything else is commands like these. The port: a subnet manager makes it ACTIVE (4) and gives it a LID.
    let mut polls = 0;
    let port = loop {
        let port = hca.port_info()?;
        polls += 1;
        if port.get(PortInfo::PORT_STATE) == hca_spec::mad::port_state::ACTIVE || polls == POLLS {
            break port;
        }
        hca.bus.wait(None);
    };
    println!("port            state {}, LID {}", port.get(PortInfo::PORT_STATE), port.get(PortInfo::LID));

    // Down again, in the opposite order. After DISABLE_HCA the next driver can start with ENABLE_HCA.
    hca.simple(Opcode::DestroyEq, eqn)?;
    hca.simple(Opcode::DeallocUar, uar)?;
    hca.simple(Opcode::TeardownHca, 0)?;
    hca.take_pages()?;
    hca.simple(Opcode::DisableHca, 0)?;
    println!("down            all pages are back");
    Ok(())
}

// A test of the workspace includes this file and calls `run` by itself.
#[allow(dead_code, reason = "see above")]
fn main() -> Result<()> {
    let socket = std::env::args_os().nth(1).ok_or("usage: bringup SOCKET")?;
    run(socket.as_ref())
}
