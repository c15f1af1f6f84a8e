//! A minimal bring-up and one RDMA write as bytes: every register access, command, work request and completion of our driver, in order.
//!
//! For authors of drivers who want to compare theirs with one that works. Model time and memory are the same in each run, so are the bytes.

use std::cell::RefCell;
use std::rc::Rc;

use hca_driver::wqe::Wqe;
use hca_driver::{
    Access, Bus, Config, CqConfig, Dma, Error, Hca, InitAttr, PAGE_SIZE, Path, QpConfig, RtrAttr, RtsAttr,
    SendRequest, Sge,
};
use hca_firmware::commands::TABLE;
use hca_model::{HcaId, Ps};
use hca_spec::be32;
use hca_spec::caps::TYPE_GENERAL;
use hca_spec::command::{
    CommandEntry, INLINE, INLINE_INPUT, INLINE_OUTPUT, InHeader, MAILBOX_DATA, MailboxBlock, Opcode,
};
use hca_spec::init_segment::InitSegment;
use hca_spec::mad::{PortInfo, port_state};

use crate::in_process::{ModelBus, ModelMemory, Simulation};
use crate::mistakes::bench::PATIENCE;
use crate::worlds;

/// DMA memory of the host.
const MEMORY: usize = 16 << 20;
/// How often something is looked at before giving up.
const POLLS: u32 = 5_000;
/// Bytes in a row of a dump.
const ROW: usize = 16;
/// Rows of a list of pages that are shown: the others say no more.
const LIST_ROWS: usize = 3;

/// The page's text.
#[derive(Default)]
struct Page {
    text: String,
    /// Commands so far.
    commands: u32,
    /// The command that the adapter has.
    waiting: Option<u64>,
    queue: [u32; 2],
    /// The last register that was read, and what it said: polling says nothing new.
    read: Option<(u64, u32)>,
    /// Doorbell records of the queue pairs.
    records: Vec<u64>,
    /// The number of the command that is left out: the driver is told that it succeeded.
    skipped: Option<u32>,
    /// Names of the commands, with what they are about.
    names: Vec<String>,
    /// Whether a list of register accesses is open.
    registers: bool,
}

impl Page {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn heading(&mut self, title: &str) {
        self.close_registers();
        self.line(&format!("\n## {title}\n"));
    }

    /// One access of a register.
    fn register(&mut self, text: &str) {
        if !self.registers && self.waiting.is_none() {
            self.line("```");
            self.registers = true;
        }
        self.line(text);
    }

    fn close_registers(&mut self) {
        if std::mem::take(&mut self.registers) {
            self.line("```\n");
        }
    }

    /// Rows of bytes, those that are all zero left out, lists of pages cut short.
    fn dump(&mut self, title: &str, base: usize, bytes: &[u8], list: usize) {
        self.line(&format!("{title}:"));
        let mut rows = 0;
        for (index, row) in bytes.chunks(ROW).enumerate() {
            let at = base + index * ROW;
            if row.iter().all(|byte| *byte == 0) && bytes.len() > 4 * ROW {
                continue;
            }
            if at >= list {
                rows += 1;
                if rows > LIST_ROWS {
                    continue;
                }
            }
            let words: Vec<String> = row
                .chunks(4)
                .map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "))
                .collect();
            self.line(&format!("  {at:04x}  {}", words.join("  ")));
        }
        if rows > LIST_ROWS {
            self.line(&format!("  ....  ({} more rows of the list)", rows - LIST_ROWS));
        }
    }
}

/// A bus that is written down.
#[derive(Clone)]
struct Watched {
    inner: ModelBus,
    page: Rc<RefCell<Page>>,
}

/// Registers of UAR pages, for people.
fn doorbell(offset: u64) -> &'static str {
    match offset % PAGE_SIZE as u64 {
        hca_spec::uar::CQ_DOORBELL => "completion queue armed",
        hca_spec::uar::EQ_ARM => "event queue armed",
        _ => "send doorbell",
    }
}

impl Watched {
    fn peek(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.inner.peek(at, &mut bytes);
        bytes
    }

    /// Bytes of a chain of mailboxes.
    fn mailboxes(&self, mut at: u64, len: usize) -> Vec<u8> {
        let mut data = Vec::new();
        while data.len() < len {
            let mut block = MailboxBlock::new();
            self.inner.peek(at, block.bytes_mut());
            data.extend_from_slice(&block.bytes()[..MAILBOX_DATA.min(len - data.len())]);
            at = block.get(MailboxBlock::NEXT);
        }
        data
    }

    fn entry(&self, at: u64) -> CommandEntry {
        let mut entry = CommandEntry::new();
        self.inner.peek(at, entry.bytes_mut());
        entry
    }

    /// A command that is handed over. Returns whether the adapter is to have it.
    fn handed(&self, doorbell: u32) -> bool {
        let page = &mut *self.page.borrow_mut();
        page.close_registers();
        let slot = u64::from(doorbell.trailing_zeros());
        let at =
            (u64::from(page.queue[0]) << 32 | u64::from(page.queue[1])) + slot * CommandEntry::SIZE as u64;
        let entry = self.entry(at);
        let len = entry.get(CommandEntry::INPUT_LENGTH) as usize;
        let mut input = entry.bytes()[INLINE_INPUT..INLINE_INPUT + INLINE].to_vec();
        input.extend(self.mailboxes(entry.get(CommandEntry::INPUT_MAILBOX), len - INLINE));
        page.commands += 1;
        let opcode = be32(&input, InHeader::OPCODE.offset()) >> InHeader::OPCODE.shift();
        let row = TABLE.iter().find(|row| row.opcode as u32 == opcode);
        let name = row.map_or("?", |row| row.name);
        let number = page.commands;
        page.line(&format!("### {number}. {name} ({opcode:#x})\n"));
        let mut fields = Vec::new();
        if let Some(row) = row {
            row.layout.decode(&input, &mut |view, field, value| {
                if name == "CREATE_QP" && field.name == "DBR_ADDR" {
                    page.records.push(value);
                }
                // Capabilities of several kinds lie in one place, which OP_MOD chooses; those of type 0 are the general ones.
                let kind = be32(&input, InHeader::OP_MOD.offset()) & InHeader::OP_MOD.max();
                let is_kind = view.is_empty() || (view == "general" && kind >> 1 == TYPE_GENERAL);
                if opcode == Opcode::SetHcaCap as u32 && !is_kind {
                    return;
                }
                if value != 0 && !(view.is_empty() && field.name == "OPCODE") {
                    let view = if view.is_empty() { String::new() } else { format!("{view}.") };
                    fields.push(format!("`{view}{}` {value:#x}", field.name));
                }
            });
        }
        if !fields.is_empty() {
            page.line(&format!("{}\n", fields.join(", ")));
        }
        page.line("```");
        page.dump(&format!("entry, in memory at {at:#x}"), 0, entry.bytes(), usize::MAX);
        if len > INLINE {
            page.dump("input, from its mailboxes on", INLINE, &input[INLINE..], list_of(name));
        }
        page.line(&format!(
            "write  BAR0 + {:#06x}    {doorbell:08x}",
            InitSegment::COMMAND_DOORBELL_VECTOR.offset()
        ));
        let about = be32(&input, InHeader::OP_MOD.offset()) & InHeader::OP_MOD.max();
        page.names.push(if about == 0 { name.to_owned() } else { format!("{name}, OP_MOD {about:#x}") });
        page.waiting = Some(at);
        let is_skipped = page.skipped == Some(page.commands);
        if is_skipped {
            let mut done = entry;
            done.set(CommandEntry::OWNERSHIP, 0);
            self.inner.poke(at, done.bytes());
        }
        !is_skipped
    }

    /// Looks whether the adapter has given the command back.
    fn settle(&self) {
        let Some(at) = self.page.borrow().waiting else { return };
        let entry = self.entry(at);
        if entry.get(CommandEntry::OWNERSHIP) == 1 {
            return;
        }
        let len = entry.get(CommandEntry::OUTPUT_LENGTH) as usize;
        let mut output = entry.bytes()[INLINE_OUTPUT..INLINE_OUTPUT + INLINE].to_vec();
        output.extend(self.mailboxes(entry.get(CommandEntry::OUTPUT_MAILBOX), len.saturating_sub(INLINE)));
        let page = &mut *self.page.borrow_mut();
        let opcode = be32(entry.bytes(), INLINE_INPUT) >> InHeader::OPCODE.shift();
        let list = if opcode == Opcode::ManagePages as u32 { INLINE } else { usize::MAX };
        page.waiting = None;
        page.dump("output", 0, &output, list);
        page.line("```\n");
    }

    fn heading(&self, title: &str) {
        self.settle();
        self.page.borrow_mut().heading(title);
    }

    /// Memory, in words and bytes.
    fn memory(&self, title: &str, bytes: &[u8]) {
        self.settle();
        let page = &mut *self.page.borrow_mut();
        page.close_registers();
        page.line("```");
        page.dump(title, 0, bytes, usize::MAX);
        page.line("```\n");
    }
}

/// Where the list of pages of a command's input begins.
fn list_of(command: &str) -> usize {
    match command {
        "MANAGE_PAGES" => INLINE,
        "CREATE_EQ" | "CREATE_CQ" | "CREATE_QP" | "CREATE_MKEY" => hca_spec::cmd::PAS_OFFSET,
        _ => usize::MAX,
    }
}

impl Bus for Watched {
    type Dma = ModelMemory;

    fn mmio_read32(&mut self, offset: u64) -> u32 {
        let value = self.inner.mmio_read32(offset);
        let page = &mut *self.page.borrow_mut();
        if page.read.replace((offset, value)) != Some((offset, value)) {
            page.register(&format!("read   BAR0 + {offset:#06x}    {value:08x}"));
        }
        value
    }

    fn mmio_write32(&mut self, offset: u64, value: u32) {
        const HIGH: u64 = InitSegment::CMDQ_PHY_ADDR_HIGH.offset() as u64;
        const LOW: u64 = InitSegment::CMDQ_PHY_ADDR_LOW.offset() as u64;
        const DOORBELL: u64 = InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64;
        self.settle();
        match offset {
            HIGH => self.page.borrow_mut().queue[0] = value,
            LOW => self.page.borrow_mut().queue[1] = value,
            _ => {}
        }
        if offset == DOORBELL {
            if !self.handed(value) {
                return;
            }
        } else {
            self.page.borrow_mut().register(&format!("write  BAR0 + {offset:#06x}    {value:08x}"));
        }
        self.inner.mmio_write32(offset, value);
    }

    fn mmio_write64(&mut self, offset: u64, value: u64) {
        self.settle();
        let what = doorbell(offset);
        self.page.borrow_mut().register(&format!(
            "write  BAR0 + {offset:#06x}    {:08x} {:08x}    {what}",
            value >> 32,
            value as u32
        ));
        self.inner.mmio_write64(offset, value);
    }

    fn dma_alloc(&mut self, size: usize, align: usize) -> Option<ModelMemory> {
        self.inner.dma_alloc(size, align)
    }

    fn wait(&mut self, vector: Option<u16>) {
        self.inner.wait(vector);
        self.settle();
    }

    fn vectors(&self) -> u16 {
        self.inner.vectors()
    }
}

/// The page, from the first register to the last command.
///
/// # Errors
/// What the adapter refuses.
pub fn page() -> Result<String, Error> {
    let (log, result) = drive(&Simulation::new(worlds::one()), None);
    result?;
    Ok(std::mem::take(&mut log.page.borrow_mut().text))
}

/// Which of these commands a driver may leave out, as a table: each in turn is taken out, and the driver goes on as if it had succeeded.
///
/// # Errors
/// What the adapter refuses of the whole.
pub fn left_out() -> Result<String, Error> {
    let (whole, result) = drive(&Simulation::new(worlds::one()), None);
    result?;
    let mut table = "| | left out | then |\n|---|---|---|\n".to_owned();
    for (index, name) in whole.page.borrow().names.iter().enumerate() {
        let number = index as u32 + 1;
        let simulation = Simulation::new(worlds::one());
        simulation.world(|world, _| world.start_checker(PATIENCE));
        let (_, result) = drive(&simulation, Some(number));
        simulation.run(Ps(6 * PATIENCE.0));
        let said = simulation.world(|world, _| world.drain_diagnoses());
        let first = said.first().map(|diagnosis| diagnosis.saying.to_string().replace('|', "\\|"));
        let outcome = match (result, first) {
            (Ok(()), None) => "nothing: it may be left out".to_owned(),
            (Ok(()), Some(said)) => format!("all goes on; the checker says: {said}"),
            (Err(error), None) => format!("our driver says: {error}"),
            (Err(_), Some(said)) => said,
        };
        table.push_str(&format!("| {number} | {name} | {outcome} |\n"));
    }
    Ok(table)
}

/// Runs the driver in that world, without one of its commands if that is asked for.
fn drive(simulation: &Simulation, skipped: Option<u32>) -> (Watched, Result<(), Error>) {
    let page = Page { skipped, ..Page::default() };
    let bus = Watched { inner: simulation.bus(HcaId(0), MEMORY), page: Rc::new(RefCell::new(page)) };
    let log = bus.clone();
    let result = run(bus, &log);
    log.settle();
    log.page.borrow_mut().close_registers();
    (log, result)
}

/// All that the driver does.
fn run(bus: Watched, log: &Watched) -> Result<(), Error> {
    log.heading("From the first register to an adapter that is up");
    let config = Config { command_events: false, command_polls: POLLS, ..Config::default() };
    let mut hca = Hca::open(bus, config)?;

    log.heading("The port");
    let mut polls = 0;
    while hca.port_info(1)?.get(PortInfo::PORT_STATE) != port_state::ACTIVE && polls < POLLS {
        hca.wait(None);
        polls += 1;
    }
    let path = Path::lid(hca.lid(1)?);

    log.heading("Objects");
    let pd = hca.alloc_pd()?;
    let memory = hca.bus_mut().dma_alloc(PAGE_SIZE, PAGE_SIZE).ok_or(Error::OutOfMemory)?;
    let mr = hca.register(pd, &memory, PAGE_SIZE, Access::ALL)?;
    let mut cq = hca.create_cq(CqConfig::new(64))?;
    let mut a = hca.create_qp(&QpConfig::rc(pd, &cq, &cq))?;
    let mut b = hca.create_qp(&QpConfig::rc(pd, &cq, &cq))?;

    log.heading("The first queue pair, connected with the second");
    let (to_a, to_b) = (RtrAttr::new(a.number(), path), RtrAttr::new(b.number(), path));
    hca.qp_to_init(&mut a, &InitAttr::default())?;
    hca.qp_to_rtr(&mut a, &to_b)?;
    hca.qp_to_rts(&mut a, &RtsAttr::default())?;
    log.heading("The second, which only answers");
    hca.qp_to_init(&mut b, &InitAttr::default())?;
    hca.qp_to_rtr(&mut b, &to_a)?;

    log.heading("An RDMA write of 64 bytes");
    let piece = [Sge { address: mr.address, len: 64, key: mr.key }];
    let request = SendRequest::write(1, &piece, mr.address + 2048, mr.key);
    let mut wqe = Wqe::default();
    wqe.send(a.number(), 0, &request)?;
    log.memory("send WQE, at basic block 0 of the first queue", wqe.bytes());
    let record = log.page.borrow().records[0];
    a.post_send(hca.bus_mut(), &request)?;
    log.memory(
        &format!("doorbell record, at {record:#x}, written before the doorbell"),
        &log.peek(record, 8),
    );
    let mut polls = 0;
    while cq.peek().is_none() && polls < POLLS {
        hca.wait(None);
        polls += 1;
    }
    let mut cqe = [0; 64];
    cq.memory().read(0, &mut cqe);
    log.memory("CQE", &cqe);
    let done =
        cq.poll().is_some_and(|completion| completion.status.is_ok() && a.finish(&completion).is_some());
    if !done {
        return Err(Error::Timeout { what: "the completion of the write", polls });
    }

    log.heading("Down again, in the opposite order");
    hca.destroy_qp(b)?;
    hca.destroy_qp(a)?;
    hca.destroy_cq(cq)?;
    hca.deregister(mr)?;
    hca.dealloc_pd(pd)?;
    hca.close().map(drop)
}
