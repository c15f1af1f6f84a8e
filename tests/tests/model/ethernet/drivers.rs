//! Drivers of other systems: their bring-up, queues and frames, command by command as each of them does it.
//!
//! Read, not run: OpenBSD's mcx, illumos' mlxcx, Snabb's connectx, FreeBSD's mlx5core and mlx5en. What they have in common is that they
//! name bus addresses by the reserved local key. Commands are made here as they make them, with lengths, mailboxes and fields of their
//! own, on a command queue of one slot.

use hca_driver::{Bus, Dma};
use hca_model::{HcaId, Ps};
use hca_spec::cmd::{
    CreateCqIn, CreateEqIn, CreateSqIn, IntModeration, ModifySqIn, QuerySpecialContextsOut, reg,
};
use hca_spec::command::{CommandEntry, ENTRY_TYPE_PCIE, MAILBOX_DATA, MailboxBlock, Opcode};
use hca_spec::cqe::Cqe;
use hca_spec::flow::{
    CreateFlowGroupIn, CreateFlowTableIn, FlowContext, FlowTableContext, MatchLayers, SetFlowTableRootIn,
    SetFteIn, action, destination,
};
use hca_spec::mkc::{ANY_QP, AccessMode, Mkc};
use hca_spec::nic_vport::{ModifyNicVportContextIn, NicVportContext};
use hca_spec::queue::{Cqc, Eqc, Sqc, Wq};
use hca_spec::rq::{CreateRqIn, ModifyRqIn, Rqc};
use hca_spec::transport::{CreateRqtIn, CreateTirIn, CreateTisIn, Rqtc, Tirc, Tisc};
use hca_spec::{be32, be64, put_be32, put_be64};
use hca_tests::frames::plain;
use hca_tests::in_process::{ModelBus, ModelMemory, Simulation};
use hca_tests::lan::ethernet;
use hca_tests::pair::pattern;
use hca_tests::worlds;

/// Bytes of host memory.
const MEMORY: usize = 32 << 20;
const PAGE: u64 = 4096;
/// Entries of send and receive queues: log2.
const LOG_QUEUE: u32 = 6;
/// Bytes of a receive buffer.
const ROOM: usize = 2048;
/// Long enough for frames, commands and links.
const SOON: Ps = Ps::from_us(200);

/// How a driver does what others do in other ways.
#[derive(Clone, Copy)]
struct Manner {
    /// The adapter.
    kind: &'static str,
    /// The mode is written alone behind the address, which asks for a reset.
    resets: bool,
    /// Where in its record the send queue's counter is said to be.
    record: u64,
    /// Bytes that CREATE_SQ's length goes beyond what it brings.
    beyond: usize,
    /// log2 of the pages of queues, in units of 4096 bytes; memory is aligned to 4096.
    log_page: u32,
    /// Headers in send WQEs.
    inline: usize,
    /// Completion queues have no consumer: overruns are ignored, and that of sends is collapsed to one entry.
    collapsed: bool,
    /// Frames are named by a key of the driver's own over all bus addresses, not by the reserved one.
    own_key: bool,
}

const PLAIN: Manner = Manner {
    kind: "connectx4",
    resets: false,
    record: 0,
    beyond: 0,
    log_page: 0,
    inline: 18,
    collapsed: false,
    own_key: false,
};

/// A station that such a driver drives.
struct Station {
    manner: Manner,
    bus: ModelBus,
    entries: ModelMemory,
    blocks: ModelMemory,
    token: u8,
    /// Everything that queues need.
    held: Vec<ModelMemory>,
    uar: u32,
    pd: u32,
    td: u32,
    eqs: Vec<u32>,
    lkey: u32,
    tis: u32,
    /// Number, memory of the queue, record.
    sq: (u32, ModelMemory, ModelMemory),
    rq: (u32, ModelMemory, ModelMemory),
    cqs: [(u32, ModelMemory, ModelMemory); 2],
    buffers: ModelMemory,
    mac: [u8; 6],
    sent: u16,
    posted: u16,
    received: u32,
}

/// An input in that layout.
fn input<const N: usize>(layout: &[u8; N]) -> Vec<u8> {
    layout.to_vec()
}

impl Station {
    /// Command queue, ENABLE_HCA, ISSI, pages, INIT_HCA, and what every driver allocates.
    fn open(simulation: &Simulation, id: usize, manner: Manner) -> Self {
        let mut bus = simulation.bus(HcaId(id), MEMORY);
        let mut dma = |size, align| bus.dma_alloc(size, align).expect("memory");
        let (entries, blocks) = (dma(4096, 4096), dma(1024 * 256, 1024));
        let none = || dma(4096, 4096);
        let empty: Vec<ModelMemory> = std::iter::repeat_with(none).take(9).collect();
        let Ok([a, b, c, d, e, f, g, h, buffers]) = <[ModelMemory; 9]>::try_from(empty) else {
            unreachable!("nine")
        };
        let at = entries.bus_address();
        bus.mmio_write32(0x10, (at >> 32) as u32);
        bus.mmio_write32(0x14, at as u32);
        if manner.resets {
            bus.mmio_write32(0x14, 0x700);
        }
        assert_eq!(bus.mmio_read32(0x1fc) >> 31, 0, "it takes commands");
        let mut s = Self {
            manner,
            bus,
            entries,
            blocks,
            token: 0,
            held: Vec::new(),
            uar: 0,
            pd: 0,
            td: 0,
            eqs: Vec::new(),
            lkey: 0,
            tis: 0,
            sq: (0, a, b),
            rq: (0, c, d),
            cqs: [(0, e, g), (0, f, h)],
            buffers,
            mac: [0; 6],
            sent: 0,
            posted: 0,
            received: 0,
        };
        // Drivers ask for 12 bytes here.
        s.raw(&s.named(Opcode::EnableHca, 0, 0), 16, 12);
        s.object(Opcode::SetIssi, 0, 1);
        for step in 1..=3 {
            if step == 3 {
                s.object(Opcode::InitHca, 0, 0);
            }
            let out = s.object(Opcode::QueryPages, step, 0);
            s.give(be32(&out, 12) as usize);
        }
        s.uar = s.object(Opcode::AllocUar, 0, 0)[9..12].iter().fold(0, |n, byte| n << 8 | u32::from(*byte));
        s.pd = be32(&s.object(Opcode::AllocPd, 0, 0), 8);
        s.td = be32(&s.object(Opcode::AllocTransportDomain, 0, 0), 8);
        // 16 bytes are enough for the reserved key.
        let out = s.raw(&s.named(Opcode::QuerySpecialContexts, 0, 0), 16, 16);
        s.lkey = be32(&out, QuerySpecialContextsOut::RESD_LKEY.offset());
        assert_ne!(s.lkey, 0);
        let out = s.raw(&s.named(Opcode::QueryNicVportContext, 0, 0), 16, 0x110);
        s.mac.copy_from_slice(&out[0x10 + 0xf6..0x10 + 0xfc]);
        s.buffers = s.bus.dma_alloc(ROOM << (LOG_QUEUE + 1), 4096).expect("memory");
        s
    }

    fn named(&self, opcode: Opcode, op_mod: u32, number: u32) -> Vec<u8> {
        let mut input = vec![0; 16];
        put_be32(&mut input, 0, (opcode as u32) << 16);
        put_be32(&mut input, 4, op_mod);
        put_be32(&mut input, 8, number);
        input
    }

    /// A command that names an object or nothing.
    fn object(&mut self, opcode: Opcode, op_mod: u32, number: u32) -> Vec<u8> {
        let input = self.named(opcode, op_mod, number);
        self.raw(&input, 16, 16)
    }

    /// A command in a layout, with a list of pages behind it; its number.
    fn put(&mut self, opcode: Opcode, mut input: Vec<u8>, pages: &[u64]) -> u32 {
        input.extend(pages.iter().flat_map(|page| page.to_be_bytes()));
        put_be32(&mut input, 0, (opcode as u32) << 16);
        let len = input.len();
        be32(&self.raw(&input, len, 16), 8) & 0xff_ffff
    }

    /// Executes a command that says it has `len` bytes. Input and output share their mailboxes, whose chain ends where the input does.
    fn raw(&mut self, input: &[u8], len: usize, room: usize) -> Vec<u8> {
        self.token = self.token.wrapping_add(1).max(1);
        let chunks: Vec<&[u8]> = input[16..].chunks(MAILBOX_DATA).collect();
        let count = chunks.len().max(room.saturating_sub(16).div_ceil(MAILBOX_DATA));
        let at = self.blocks.bus_address();
        for i in 0..count {
            let mut block = MailboxBlock::new();
            let data = chunks.get(i).copied().unwrap_or_default();
            block.bytes_mut()[..data.len()].copy_from_slice(data);
            let next = if i + 1 < count { at + 1024 * (i as u64 + 1) } else { 0 };
            block.set(MailboxBlock::NEXT, next).set(MailboxBlock::BLOCK_NUMBER, i as u32);
            block.set(MailboxBlock::TOKEN, self.token.into());
            self.blocks.write(1024 * i, block.bytes());
        }
        let mut entry = CommandEntry::new();
        entry.set(CommandEntry::TYPE, ENTRY_TYPE_PCIE).set(CommandEntry::INPUT_LENGTH, len as u32);
        entry.set(CommandEntry::OUTPUT_LENGTH, room as u32).set(CommandEntry::TOKEN, self.token.into());
        if count > 0 {
            entry.set(CommandEntry::INPUT_MAILBOX, at).set(CommandEntry::OUTPUT_MAILBOX, at);
        }
        // Nobody checks it, as nobody has asked for it: some drivers sign all the same.
        entry.set(CommandEntry::SIGNATURE, 0x5a).set(CommandEntry::OWNERSHIP, 1);
        entry.bytes_mut()[0x10..0x20].copy_from_slice(&input[..16]);
        self.entries.write(0, entry.bytes());
        self.bus.mmio_write32(0x18, 1);
        let mut left = 100_000;
        while self.entries.load32(0x3c) & 1 == 1 {
            self.bus.wait(None);
            left -= 1;
            assert!(left > 0, "command {:#x} is not answered", be32(input, 0) >> 16);
        }
        let mut out = vec![0; room.max(16)];
        let (inline, rest) = out.split_at_mut(16);
        self.entries.read(0x20, inline);
        for (i, chunk) in rest.chunks_mut(MAILBOX_DATA).enumerate() {
            self.blocks.read(1024 * i, chunk);
        }
        let (delivery, status) = (self.entries.load32(0x3c) >> 1 & 0x7f, out[0]);
        assert_eq!((delivery, status), (0, 0), "command {:#x}: {:#x}", be32(input, 0) >> 16, be32(&out, 4));
        out
    }

    /// MANAGE_PAGES; Snabb's length has room for one page more.
    fn give(&mut self, pages: usize) {
        if pages == 0 || pages > 1 << 20 {
            return;
        }
        let memory = self.bus.dma_alloc(pages * PAGE as usize, 4096).expect("memory");
        let mut input = self.named(Opcode::ManagePages, 1, 0);
        put_be32(&mut input, 12, pages as u32);
        input.extend((0..pages as u64).flat_map(|i| (memory.bus_address() + i * PAGE).to_be_bytes()));
        input.extend([0; 8]);
        self.raw(&input, input.len(), 16);
        self.held.push(memory);
    }

    /// ACCESS_REGISTER: a read with as much data as the driver gives.
    fn read_register(&mut self, register: u32, data: &[u8], room: usize) -> Vec<u8> {
        let mut input = self.named(Opcode::AccessReg, 1, register);
        input.extend(data);
        self.raw(&input, input.len(), 16 + room)
    }

    /// Memory that is aligned to 4096 bytes, and to no more.
    fn memory(&mut self, size: usize) -> ModelMemory {
        let odd = self.bus.dma_alloc(4096, 4096).expect("memory");
        self.held.push(odd);
        self.bus.dma_alloc(size.max(4096), 4096).expect("memory")
    }

    /// Pages of a queue: small ones, or one that is larger than the queue.
    fn pages(&self, memory: &ModelMemory, size: usize) -> Vec<u64> {
        let page = PAGE << self.manner.log_page;
        (0..(size as u64).div_ceil(page)).map(|i| memory.bus_address() + i * page).collect()
    }

    fn create_eq(&mut self, vector: u32, events: u64) {
        const ENTRIES: u32 = 7;
        let mut memory = self.memory(64 << ENTRIES);
        (0..1 << ENTRIES).for_each(|i| memory.write(64 * i + 63, &[1]));
        let mut create = CreateEqIn::new();
        create.set(CreateEqIn::EVENT_BITMASK_0, events);
        let eqc = create.eqc_mut();
        eqc.set(Eqc::LOG_EQ_SIZE, ENTRIES).set(Eqc::UAR_PAGE, self.uar).set(Eqc::INTR, vector);
        let pages: Vec<u64> = (0..2).map(|i| memory.bus_address() + i * PAGE).collect();
        let number = self.put(Opcode::CreateEq, input(create.bytes()), &pages);
        self.bus.mmio_write32(u64::from(self.uar) * PAGE + 0x40, number << 24);
        self.eqs.push(number);
        self.held.push(memory);
    }

    fn create_cq(&mut self, which: usize, log_size: u32) {
        let size = 64usize << log_size;
        let mut memory = self.memory(size);
        memory.write(0, &vec![0xff; size]);
        let record = self.memory(16);
        let mut create = CreateCqIn::new();
        let cqc = create.cqc_mut();
        cqc.set(Cqc::LOG_CQ_SIZE, log_size).set(Cqc::UAR_PAGE, self.uar);
        cqc.set(Cqc::C_EQN, *self.eqs.last().expect("an event queue"));
        cqc.set(Cqc::LOG_PAGE_SIZE, self.manner.log_page).set(Cqc::DBR_ADDR, record.bus_address());
        if self.manner.collapsed {
            cqc.set(Cqc::CC, u32::from(which == 0)).set(Cqc::OI, 1);
        }
        let pages = self.pages(&memory, size);
        let number = self.put(Opcode::CreateCq, input(create.bytes()), &pages);
        self.cqs[which] = (number, memory, record);
    }

    fn create_sq(&mut self, options: impl FnOnce(&mut Sqc)) {
        let size = 64usize << LOG_QUEUE;
        let (memory, record) = (self.memory(size), self.memory(16));
        let mut tis = CreateTisIn::new();
        tis.tisc_mut().set(Tisc::TRANSPORT_DOMAIN, self.td);
        self.tis = self.put(Opcode::CreateTis, input(tis.bytes()), &[]);
        let mut create = CreateSqIn::new();
        let sqc = create.sqc_mut();
        sqc.set(Sqc::CQN, self.cqs[0].0).set(Sqc::TIS_LST_SZ, 1).set(Sqc::TIS_NUM_0, self.tis);
        options(sqc);
        let wq = sqc.wq_mut();
        wq.set(Wq::WQ_TYPE, 1).set(Wq::PD, self.pd).set(Wq::UAR_PAGE, self.uar);
        wq.set(Wq::DBR_ADDR, record.bus_address() + self.manner.record);
        wq.set(Wq::LOG_WQ_STRIDE, 6)
            .set(Wq::LOG_WQ_SZ, LOG_QUEUE)
            .set(Wq::LOG_WQ_PG_SZ, self.manner.log_page);
        let mut bytes = input(create.bytes());
        bytes.extend(self.pages(&memory, size).iter().flat_map(|page| page.to_be_bytes()));
        put_be32(&mut bytes, 0, (Opcode::CreateSq as u32) << 16);
        let len = bytes.len() + self.manner.beyond;
        let number = be32(&self.raw(&bytes, len, 16), 8);
        self.sq = (number, memory, record);
    }

    fn create_rq(&mut self, options: impl FnOnce(&mut Rqc)) {
        let size = 16usize << LOG_QUEUE;
        let (memory, record) = (self.memory(size), self.memory(16));
        let mut create = CreateRqIn::new();
        let rqc = create.rqc_mut();
        rqc.set(Rqc::CQN, self.cqs[1].0);
        options(rqc);
        let wq = rqc.wq_mut();
        wq.set(Wq::WQ_TYPE, 1).set(Wq::PD, self.pd).set(Wq::DBR_ADDR, record.bus_address());
        wq.set(Wq::LOG_WQ_STRIDE, 4)
            .set(Wq::LOG_WQ_SZ, LOG_QUEUE)
            .set(Wq::LOG_WQ_PG_SZ, self.manner.log_page);
        let pages = self.pages(&memory, size);
        let number = self.put(Opcode::CreateRq, input(create.bytes()), &pages);
        self.rq = (number, memory, record);
    }

    /// Both queues from reset to ready, and receive requests.
    fn start(&mut self) {
        let mut sq = ModifySqIn::new();
        sq.set(ModifySqIn::SQN, self.sq.0);
        sq.sqc_mut().set(Sqc::STATE, 1);
        self.put(Opcode::ModifySq, input(sq.bytes()), &[]);
        let mut rq = ModifyRqIn::new();
        rq.set(ModifyRqIn::RQN, self.rq.0);
        rq.rqc_mut().set(Rqc::STATE, 1);
        self.put(Opcode::ModifyRq, input(rq.bytes()), &[]);
        self.refill();
    }

    fn refill(&mut self) {
        while u32::from(self.posted) < self.received + (1 << LOG_QUEUE) {
            let slot = usize::from(self.posted) % (1 << LOG_QUEUE);
            let mut wqe = [0; 16];
            put_be32(&mut wqe, 0, ROOM as u32);
            put_be32(&mut wqe, 4, self.lkey);
            put_be64(&mut wqe, 8, self.buffers.bus_address() + (slot * ROOM) as u64);
            self.rq.1.write(16 * slot, &wqe);
            self.posted += 1;
        }
        self.rq.2.store32(0, self.posted.into());
    }

    /// A table of receive queues and, for each kind of packet, a TIR.
    fn create_rqt(&mut self, max: u32) -> u32 {
        let mut create = CreateRqtIn::new();
        create.rqtc_mut().set(Rqtc::RQT_MAX_SIZE, max).set(Rqtc::RQT_ACTUAL_SIZE, 1);
        let mut bytes = input(create.bytes());
        bytes.extend(self.rq.0.to_be_bytes());
        self.put(Opcode::CreateRqt, bytes, &[])
    }

    fn create_tir(&mut self, options: impl FnOnce(&mut Tirc)) -> u32 {
        let mut create = CreateTirIn::new();
        create.tirc_mut().set(Tirc::TRANSPORT_DOMAIN, self.td);
        options(create.tirc_mut());
        self.put(Opcode::CreateTir, input(create.bytes()), &[])
    }

    fn create_table(&mut self, level: u32) -> u32 {
        let mut create = CreateFlowTableIn::new();
        create.context_mut().set(FlowTableContext::LEVEL, level).set(FlowTableContext::LOG_SIZE, 5);
        self.put(Opcode::CreateFlowTable, input(create.bytes()), &[])
    }

    fn set_root(&mut self, table: u32) {
        let mut root = SetFlowTableRootIn::new();
        root.set(SetFlowTableRootIn::TABLE_ID, table);
        self.put(Opcode::SetFlowTableRoot, input(root.bytes()), &[]);
    }

    fn create_group(
        &mut self,
        table: u32,
        places: [u32; 2],
        fields: impl FnOnce(&mut MatchLayers) -> u32,
    ) -> u32 {
        let mut create = CreateFlowGroupIn::new();
        create.set(CreateFlowGroupIn::TABLE_ID, table);
        create
            .set(CreateFlowGroupIn::START_FLOW_INDEX, places[0])
            .set(CreateFlowGroupIn::END_FLOW_INDEX, places[1]);
        let parts = fields(create.criteria_mut().outer_mut());
        create.set(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, parts);
        self.put(Opcode::CreateFlowGroup, input(create.bytes()), &[])
    }

    /// An entry with one destination, of which only the first word is brought.
    fn set_entry(
        &mut self,
        (table, group, place): (u32, u32, u32),
        (kind, number): (u32, u32),
        value: impl FnOnce(&mut MatchLayers),
    ) {
        let mut set = SetFteIn::new();
        set.set(SetFteIn::TABLE_ID, table).set(SetFteIn::FLOW_INDEX, place);
        let context = set.context_mut();
        context.set(FlowContext::GROUP_ID, group).set(FlowContext::ACTION, action::FORWARD);
        context.set(FlowContext::DESTINATION_LIST_SIZE, 1);
        value(context.value_mut().outer_mut());
        let mut bytes = input(set.bytes());
        bytes.extend((kind << 24 | number).to_be_bytes());
        self.put(Opcode::SetFlowTableEntry, bytes, &[]);
    }

    /// Sends a frame: the first bytes in the WQE, the rest from a bus address. The doorbell is the begin of the WQE.
    fn send(&mut self, frame: &[u8]) {
        let slot = usize::from(self.sent) % (1 << LOG_QUEUE);
        let at = ROOM * ((1 << LOG_QUEUE) + slot);
        self.buffers.write(at, frame);
        let inline = self.manner.inline;
        let headers = (14 + inline).div_ceil(16) * 16;
        let mut wqe = vec![0; 64];
        put_be32(&mut wqe, 0, (u32::from(self.sent) << 8) | 0x0a);
        put_be32(&mut wqe, 4, (self.sq.0 << 8) | ((16 + headers + 16) as u32 / 16));
        put_be32(&mut wqe, 8, 8);
        wqe[28..30].copy_from_slice(&(inline as u16).to_be_bytes());
        wqe[30..30 + inline].copy_from_slice(&frame[..inline]);
        let data = &mut wqe[16 + headers..];
        put_be32(data, 0, (frame.len() - inline) as u32);
        put_be32(data, 4, self.lkey);
        put_be64(data, 8, self.buffers.bus_address() + (at + inline) as u64);
        self.sq.1.write(64 * slot, &wqe);
        self.ring(&wqe);
    }

    /// Announces one more WQE.
    fn ring(&mut self, wqe: &[u8]) {
        self.sent += 1;
        self.sq.2.store32(4, self.sent.into());
        let half = 0x100 * u64::from(self.sent % 2);
        self.bus.mmio_write64(u64::from(self.uar) * PAGE + 0x800 + half, be64(wqe, 0));
    }

    /// Completions of sends so far, as the last entry says.
    fn completed(&mut self) -> u16 {
        let mut entry = [0; 64];
        let last = usize::from(self.sent.wrapping_sub(1));
        let place = if self.manner.collapsed { 0 } else { last % (1 << LOG_QUEUE) };
        self.cqs[0].1.read(64 * place, &mut entry);
        let cqe = Cqe::from_prefix_or_zero(&entry);
        assert_eq!(cqe.get(Cqe::OPCODE), 0, "the send of a frame: {entry:02x?}");
        self.consumed(0, self.sent.into());
        cqe.get(Cqe::WQE_COUNTER) as u16 + 1
    }

    /// So many entries of a completion queue were read.
    fn consumed(&mut self, which: usize, entries: u32) {
        if !self.manner.collapsed {
            self.cqs[which].2.store32(0, entries & 0xff_ffff);
        }
    }

    /// Frames that came.
    fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let mut entry = [0; 64];
            let place = self.received as usize % (1 << LOG_QUEUE);
            self.cqs[1].1.read(64 * place, &mut entry);
            if entry[63] & 1 != (self.received >> LOG_QUEUE & 1) as u8 || entry[63] >> 4 == 0xf {
                break;
            }
            let cqe = Cqe::from_prefix_or_zero(&entry);
            assert_eq!(cqe.get(Cqe::OPCODE), 2, "a frame was received: {entry:02x?}");
            let at = ROOM * (cqe.get(Cqe::WQE_COUNTER) as usize % (1 << LOG_QUEUE));
            let mut frame = vec![0; cqe.get(Cqe::BYTE_CNT) as usize];
            self.buffers.read(at, &mut frame);
            all.push(frame);
            self.received += 1;
        }
        self.consumed(1, self.received);
        self.refill();
        all
    }

    /// MODIFY_NIC_VPORT_CONTEXT: everything is taken, and an MTU.
    fn set_vport(&mut self, mtu: u32) {
        let mut modify = ModifyNicVportContextIn::new();
        modify.set(ModifyNicVportContextIn::FIELD_SELECT, 0x50);
        modify.context_mut().set(NicVportContext::MTU, mtu).set(NicVportContext::PROMISC_ALL, 1);
        self.put(Opcode::ModifyNicVportContext, input(modify.bytes()), &[]);
    }
}

/// Two stations that are brought up like that exchange frames, more than their queues have places.
fn exchange(manner: Manner, bring_up: impl Fn(&mut Station)) -> [Station; 2] {
    let mut config = worlds::config(2, vec![worlds::cable(HcaId(0), HcaId(1))], 1);
    for hca in &mut config.hcas {
        hca.firmware.personality =
            hca_model::personality::Personality::named(manner.kind).expect("there is one");
    }
    let simulation = Simulation::new(ethernet(config));
    let mut stations = [0, 1].map(|id| {
        let mut station = Station::open(&simulation, id, manner);
        bring_up(&mut station);
        station
    });
    simulation.run(Ps::from_ms(20));
    let [a, b] = [0, 1].map(|id: usize| hca_driver::eth::Mac(stations[id].mac));
    for round in 0..150u64 {
        let there = plain(b, a, &pattern(round, 100 + 9 * round as usize));
        let back = plain(a, b, &pattern(!round, 60));
        stations[0].send(&there);
        stations[1].send(&back);
        simulation.run(SOON);
        assert_eq!(stations[1].frames(), [there], "round {round}");
        assert_eq!(stations[0].frames(), [back], "round {round}");
        let counts = stations.each_mut().map(Station::completed);
        assert_eq!(counts, [stations[0].sent, stations[1].sent]);
    }
    stations
}

/// A packet is hashed by these.
fn hashed(tirc: &mut Tirc, rqt: u32, selector: u32) {
    tirc.set(Tirc::DISP_TYPE, 1).set(Tirc::INDIRECT_TABLE, rqt).set(Tirc::RX_HASH_FN, 2);
    tirc.set(Tirc::RX_HASH_FIELD_OUTER, selector);
}

/// PPCNT of port 1.
fn counters(group: u8) -> [u8; 0x100] {
    let mut ppcnt = [0; 0x100];
    (ppcnt[1], ppcnt[3]) = (1, group);
    ppcnt
}

/// OpenBSD's mcx: the virtual port gets its MTU before the driver knows one; the send queue's record is given by the address of its
/// counter; CREATE_SQ's length goes beyond its one mailbox; destinations have one word.
#[test]
pub(crate) fn a_driver_that_brings_up_ethernet_queues_as_openbsds_mcx_does() {
    let manner = Manner { record: 4, beyond: 256, ..PLAIN };
    exchange(manner, |s| {
        s.set_vport(0);
        s.create_eq(0, 1 << 8 | 1 << 9 | 1 << 0xa | 1 << 0xb);
        let mtu = s.read_register(reg::PMTU, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 16);
        // Counters of RFC 3635.
        s.read_register(reg::PPCNT, &counters(3), 0x100);
        assert!(be32(&mtu, 20) >> 16 > 1500);
        s.create_eq(1, 0);
        s.create_cq(0, LOG_QUEUE);
        s.create_cq(1, LOG_QUEUE);
        s.create_sq(|sqc| _ = sqc.set(Sqc::RLKY, 1).set(Sqc::MIN_WQE_INLINE_MODE, 1));
        s.create_rq(|rqc| _ = rqc.set(Rqc::RLKY, 1));
        let rss = s.create_table(1);
        let groups = [
            s.create_group(rss, [0, 3], |m| {
                m.set(MatchLayers::ETHERTYPE, 0xffff)
                    .set(MatchLayers::IP_PROTOCOL, 0xff)
                    .set(MatchLayers::FRAG, 1);
                1
            }),
            s.create_group(rss, [4, 5], |m| {
                m.set(MatchLayers::ETHERTYPE, 0xffff);
                1
            }),
            s.create_group(rss, [6, 6], |_| 0),
        ];
        let root = s.create_table(0);
        s.create_group(root, [0, 0], |_| 0);
        s.create_group(root, [1, 1], |m| {
            m.set(MatchLayers::DMAC_47_16, 0x0100_0000);
            1
        });
        let macs = s.create_group(root, [2, 31], |m| {
            m.set(MatchLayers::DMAC_47_16, 0xffff_ffff).set(MatchLayers::DMAC_15_0, 0xffff);
            1
        });
        let mac = s.mac;
        s.set_entry((root, macs, 2), (destination::FLOW_TABLE, rss), |m| {
            m.set(MatchLayers::DMAC_47_16, be32(&mac, 0));
            m.set(MatchLayers::DMAC_15_0, u32::from(u16::from_be_bytes([mac[4], mac[5]])));
        });
        s.set_root(root);
        let rqt = s.create_rqt(128);
        for (place, (kind, proto)) in
            [(0x800, 6), (0x86dd, 6), (0x800, 17), (0x86dd, 17)].into_iter().enumerate()
        {
            let tir = s.create_tir(|t| {
                hashed(t, rqt, u32::from(kind == 0x86dd) << 31 | u32::from(proto == 17) << 30 | 15)
            });
            s.set_entry((rss, groups[0], place as u32), (destination::TIR, tir), |m| {
                m.set(MatchLayers::ETHERTYPE, kind).set(MatchLayers::IP_PROTOCOL, proto);
            });
        }
        let rqn = s.rq.0;
        let tir = s.create_tir(|t| _ = t.set(Tirc::INLINE_RQN, rqn));
        s.set_entry((rss, groups[2], 6), (destination::TIR, tir), |_| {});
        s.start();
    });
}

/// illumos' mlxcx: a time between interrupts for each vector; the first WQE is a NOP; entries of flow tables are set again.
#[test]
pub(crate) fn a_driver_that_brings_up_ethernet_queues_as_illumos_mlxcx_does() {
    let [mut station, _] = exchange(PLAIN, |s| {
        let mut version = s.named(Opcode::SetDriverVersion, 0, 0);
        version.extend([b'x'; 64]);
        s.raw(&version, version.len(), 16);
        s.create_eq(
            0,
            1 << 0xa | 1 << 0xb | 1 << 9 | 1 << 8 | 1 << 0x16 | 1 << 4 | 1 << 5 | 1 << 0xc | 1 << 0xd,
        );
        s.set_vport(1522);
        for register in [reg::PMTU, reg::PAOS, reg::PTYS, reg::PPLM] {
            let mut data = [0; 0x40];
            data[..4].copy_from_slice(&[0, 1, 0, 4]);
            s.read_register(register, &data, 0x40);
        }
        let module = s.read_register(reg::PMAOS, &[0; 0x10], 0x10);
        assert_eq!(module[0x13] & 0xf, 1, "plugged and enabled");
        let root = s.create_table(0);
        s.set_root(root);
        let broadcast = s.create_group(root, [0, 0], |m| {
            m.set(MatchLayers::DMAC_47_16, 0xffff_ffff).set(MatchLayers::DMAC_15_0, 0xffff);
            1
        });
        let promiscuous = s.create_group(root, [31, 31], |_| 0);
        s.create_eq(1, 0);
        let mut config = IntModeration::new();
        config.set(IntModeration::INT_VECTOR, 1).set(IntModeration::MIN_DELAY, 10);
        s.put(Opcode::ConfigIntModeration, input(config.bytes()), &[]);
        s.create_cq(0, LOG_QUEUE);
        s.create_cq(1, LOG_QUEUE);
        s.create_sq(|sqc| {
            sqc.set(Sqc::RLKY, 1).set(Sqc::FLUSH_IN_ERROR_EN, 1).set(Sqc::MIN_WQE_INLINE_MODE, 1);
        });
        s.create_rq(|rqc| _ = rqc.set(Rqc::RLKY, 1).set(Rqc::FLUSH_IN_ERROR_EN, 1).set(Rqc::VSD, 1));
        let rqt = s.create_rqt(1);
        let all = s.create_tir(|t| hashed(t, rqt, 3));
        // VLANs, then kinds of packets.
        let [vlans, kinds] = [1, 2].map(|level| s.create_table(level));
        let any = s.create_group(vlans, [0, 0], |m| {
            m.set(MatchLayers::CVLAN_TAG, 1).set(MatchLayers::SVLAN_TAG, 1);
            1
        });
        let other = s.create_group(kinds, [7, 7], |_| 0);
        s.set_entry((vlans, any, 0), (destination::FLOW_TABLE, kinds), |_| {});
        s.set_entry((kinds, other, 7), (destination::TIR, all), |_| {});
        for (group, place) in [(broadcast, 0), (promiscuous, 31)] {
            s.set_entry((root, group, place), (destination::FLOW_TABLE, vlans), |m| {
                if place == 0 {
                    m.set(MatchLayers::DMAC_47_16, 0xffff_ffff).set(MatchLayers::DMAC_15_0, 0xffff);
                }
            });
        }
        s.start();
        let mut nop = vec![0; 64];
        put_be32(&mut nop, 4, s.sq.0 << 8 | 1);
        put_be32(&mut nop, 8, 8);
        s.sq.1.write(0, &nop);
        s.ring(&nop);
    });
    let delay = station.object(Opcode::ConfigIntModeration, 1, 1);
    assert_eq!(be32(&delay, 8), 10 << 16 | 1);
}

/// Snabb's connectx: asks for a reset by the mode alone, behind the address; the queues' pages are larger than what their memory is
/// aligned to; sends complete in one entry; registers are read with their first words only.
#[test]
pub(crate) fn a_driver_that_brings_up_ethernet_queues_as_snabbs_does() {
    for kind in ["connectx4", "connectx5", "connectx6dx"] {
        let manner =
            Manner { kind, resets: kind == "connectx4", log_page: 6, inline: 16, collapsed: true, ..PLAIN };
        exchange(manner, |s| {
            let caps = s.raw(&s.named(Opcode::QueryHcaCap, 0, 0), 16, 0x458);
            assert_eq!(caps[0x10 + 0x36] & 3, 1, "an Ethernet port");
            let mut mtu = s.named(Opcode::AccessReg, 0, reg::PMTU);
            mtu.extend([0, 1, 0, 0, 0, 0, 0, 0, 0x25, 0x1c, 0, 0, 0, 0, 0, 0]);
            s.raw(&mtu, mtu.len(), 16);
            s.set_vport(9500);
            s.create_eq(0, 1 << 4 | 1 << 9 | 1 << 0xb);
            s.create_cq(0, 0);
            s.create_cq(1, LOG_QUEUE);
            s.create_sq(|sqc| {
                sqc.set(Sqc::RLKY, 1).set(Sqc::FRE, 1).set(Sqc::FLUSH_IN_ERROR_EN, 1);
                sqc.set(Sqc::MIN_WQE_INLINE_MODE, 1);
            });
            s.create_rq(|rqc| _ = rqc.set(Rqc::RLKY, 1).set(Rqc::VSD, 1));
            s.start();
            let table = s.create_table(0);
            let group = s.create_group(table, [6, 6], |_| 0);
            let rqn = s.rq.0;
            let tir = s.create_tir(|t| _ = t.set(Tirc::INLINE_RQN, rqn));
            s.set_entry((table, group, 6), (destination::TIR, tir), |_| {});
            s.set_root(table);
            // A state, and counters, of which no more is brought than says which.
            let state = s.read_register(reg::PAOS, &[0, 1, 0, 0], 16);
            assert_eq!(state[0x11], 1, "port 1");
            s.read_register(reg::PPCNT, &[0, 1, 0, 1, 0, 0, 0, 0], 0x100);
        });
    }
}

/// FreeBSD's mlx5en: frames by a key over physical addresses; a receive queue that only drops; receivers that look into tunnels; a send
/// queue whose WQEs may say where headers begin.
#[test]
pub(crate) fn a_driver_that_brings_up_ethernet_queues_as_freebsds_does() {
    exchange(Manner { own_key: true, ..PLAIN }, |s| {
        s.create_eq(0, 1 << 0xa);
        s.create_eq(1, 1 << 4 | 1 << 9 | 1 << 0x16);
        s.create_eq(3, 0);
        let mut create = hca_spec::cmd::CreateMkeyIn::new();
        let mkc = create.mkc_mut();
        mkc.set_access_mode(AccessMode::Pa).set(Mkc::UMR_EN, 1).set(Mkc::LW, 1).set(Mkc::LR, 1);
        mkc.set(Mkc::PD, s.pd).set(Mkc::LENGTH64, 1).set(Mkc::QPN, ANY_QP);
        let key = s.put(Opcode::CreateMkey, input(create.bytes()), &[]);
        assert!(s.manner.own_key);
        s.lkey = key << 8;
        s.set_vport(1522);
        // Read all the time: extended counters, and statistics of the physical layer.
        for group in [5, 0x16] {
            s.read_register(reg::PPCNT, &counters(group), 0x100);
        }
        // VXLAN at the ports that its user has, the usual one among them.
        for port in [4789, 8472] {
            let mut add = hca_spec::cmd::VxlanUdpDportIn::new();
            add.set(hca_spec::cmd::VxlanUdpDportIn::VXLAN_UDP_PORT, port);
            s.put(Opcode::AddVxlanUdpDport, input(add.bytes()), &[]);
        }
        // A queue that never gets a request.
        s.create_cq(1, 0);
        let (memory, record) = (s.memory(4096), s.memory(16));
        let mut drop_rq = CreateRqIn::new();
        let rqc = drop_rq.rqc_mut();
        rqc.set(Rqc::CQN, s.cqs[1].0);
        let wq = rqc.wq_mut();
        wq.set(Wq::END_PADDING_MODE, 1).set(Wq::LOG_WQ_STRIDE, 5).set(Wq::PD, s.pd);
        wq.set(Wq::DBR_ADDR, record.bus_address());
        let dropping = s.put(Opcode::CreateRq, input(drop_rq.bytes()), &[memory.bus_address()]);
        s.held.extend([memory, record]);
        let mut rq = ModifyRqIn::new();
        rq.set(ModifyRqIn::RQN, dropping);
        rq.rqc_mut().set(Rqc::STATE, 1);
        s.put(Opcode::ModifyRq, input(rq.bytes()), &[]);
        let mut rqt = CreateRqtIn::new();
        rqt.rqtc_mut().set(Rqtc::RQT_MAX_SIZE, 1).set(Rqtc::RQT_ACTUAL_SIZE, 1);
        let mut bytes = input(rqt.bytes());
        bytes.extend(dropping.to_be_bytes());
        let table = s.put(Opcode::CreateRqt, bytes, &[]);
        let mut tirs = Vec::new();
        for selector in [0xf, 1 << 31 | 0xf, 1 << 30 | 0xf, 0x13, 1 << 31 | 0x13, 3] {
            for tunnel in [0, 1] {
                tirs.push(s.create_tir(|t| {
                    hashed(t, table, if tunnel == 0 { selector } else { 0 });
                    t.set(Tirc::RX_HASH_SYMMETRIC, 1).set(Tirc::TUNNELED_OFFLOAD_EN, tunnel);
                    t.set(Tirc::RX_HASH_FIELD_INNER, if tunnel == 1 { selector } else { 0 });
                }));
            }
        }
        s.create_cq(0, LOG_QUEUE);
        s.create_cq(1, LOG_QUEUE);
        s.create_sq(|sqc| _ = sqc.set(Sqc::FLUSH_IN_ERROR_EN, 1).set(Sqc::ALLOW_SWP, 1));
        s.create_rq(|rqc| _ = rqc.set(Rqc::FLUSH_IN_ERROR_EN, 1));
        s.start();
        let mut modify = hca_spec::transport::ModifyRqtIn::new();
        modify.set(hca_spec::transport::ModifyRqtIn::RQTN, table);
        modify.set(hca_spec::transport::ModifyRqtIn::BITMASK, 1);
        modify.rqtc_mut().set(Rqtc::RQT_ACTUAL_SIZE, 1);
        let mut bytes = input(modify.bytes());
        bytes.extend(s.rq.0.to_be_bytes());
        s.put(Opcode::ModifyRqt, bytes, &[]);
        let root = s.create_table(0);
        let group = s.create_group(root, [0, 0], |_| 0);
        // The one of packets inside tunnels takes what is in none, too.
        s.set_entry((root, group, 0), (destination::TIR, tirs[1]), |_| {});
        s.set_root(root);
    });
}

/// The time between two interrupts of a vector is kept: what comes meanwhile waits for the next.
#[test]
pub(crate) fn interrupts_of_a_vector_keep_their_distance() {
    const DELAY: u32 = 400;
    for (delay, least, most) in [(0, 16, 16), (DELAY, 3, 9)] {
        let config = worlds::config(2, vec![worlds::cable(HcaId(0), HcaId(1))], 1);
        let simulation = Simulation::new(ethernet(config));
        let mut s = Station::open(&simulation, 0, PLAIN);
        s.create_eq(5, 1 << 9);
        let mut config = IntModeration::new();
        config.set(IntModeration::INT_VECTOR, 5).set(IntModeration::MIN_DELAY, delay);
        s.put(Opcode::ConfigIntModeration, input(config.bytes()), &[]);
        simulation.run(Ps::from_ms(20));
        let before = simulation.interrupts(HcaId(0), 5);
        // Arming a queue that has entries raises an interrupt: 16 times within 1.6 ms.
        for _ in 0..16 {
            s.bus.mmio_write32(u64::from(s.uar) * PAGE + 0x40, s.eqs[0] << 24);
            simulation.run(Ps::from_us(100));
        }
        simulation.run(Ps::from_ms(2));
        let came = simulation.interrupts(HcaId(0), 5) - before;
        assert!((least..=most).contains(&came), "{came} interrupts with {delay} us between them");
    }
}
