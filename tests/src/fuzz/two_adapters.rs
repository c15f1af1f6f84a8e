//! A world of two adapters that know nothing of each other: one to fuzz, one to see that it notices
//! nothing.

use std::sync::{Arc, OnceLock};

use hca_model::personality::Personality;
use hca_model::timing::Profile;
use hca_model::{HcaConfig, HcaId, Ps, World, WorldConfig};
use hca_spec::command::{
    CommandEntry, ENTRY_TYPE_PCIE, INLINE, INLINE_INPUT, INLINE_OUTPUT, MAILBOX_DATA, MailboxBlock,
    OWNERSHIP_BYTE, Opcode, OutHeader,
};
use hca_spec::cqe::Cqe;
use hca_spec::eqe::Eqe;
use hca_spec::ids::{Lid, Mkey};
use hca_spec::init_segment::InitSegment;
use hca_spec::uar::{PAGE_SIZE, SEND_DOORBELL};
use hca_spec::wqe::{CE_ALWAYS, Ctrl, Data, SendOpcode, TERMINATE_LKEY, WQEBB};

use super::commands::{self, LOG_RECV, LOG_SEND};
use super::memory::{self, Ram};
use super::objects::{Executor, Objects, QueuePair, bring_up};

/// The adapter that is fuzzed.
pub const VICTIM: HcaId = HcaId(0);
/// The adapter beside it.
pub const WITNESS: HcaId = HcaId(1);

/// Two adapters, brought up.
pub struct TwoAdapters {
    /// The world.
    pub world: World,
    /// Guest memory of each adapter.
    pub rams: [Arc<Ram>; 2],
    /// What the fuzzed adapter holds.
    pub objects: Objects,
    witness: Objects,
    before: Vec<u8>,
    now: Ps,
}

/// Executes commands through the command queue of an adapter.
struct Queue<'a> {
    world: &'a mut World,
    now: &'a mut Ps,
    ram: &'a Ram,
    hca: HcaId,
}

impl Queue<'_> {
    fn write32(&mut self, offset: usize, value: u32) {
        self.world.mmio_write(*self.now, self.hca, offset as u64, &value.to_be_bytes());
    }

    fn start(&mut self) {
        self.write32(InitSegment::CMDQ_PHY_ADDR_HIGH.offset(), (memory::COMMANDS >> 32) as u32);
        self.write32(InitSegment::CMDQ_PHY_ADDR_LOW.offset(), memory::COMMANDS as u32);
    }

    /// Writes `data` into a chain of mailboxes from `at` on; returns its address.
    fn chain(&self, at: u64, data: &[u8], len: usize) -> u64 {
        let count = len.div_ceil(MAILBOX_DATA) as u64;
        for i in 0..count {
            let mut block = MailboxBlock::new();
            let piece = data.chunks(MAILBOX_DATA).nth(i as usize).unwrap_or_default();
            block.bytes_mut()[..piece.len()].copy_from_slice(piece);
            let next = if i + 1 < count { at + (i + 1) * memory::MAILBOX } else { 0 };
            block.set(MailboxBlock::NEXT, next).set(MailboxBlock::BLOCK_NUMBER, i as u32);
            self.ram.put(at + i * memory::MAILBOX, block.bytes());
        }
        if count > 0 { at } else { 0 }
    }

    /// Puts a command into a slot and hands it over. `None`: the adapter does not answer.
    fn run(&mut self, slot: u8, input: &[u8], output_len: usize) -> Option<Vec<u8>> {
        let (inline, rest) = input.split_at(input.len().min(INLINE));
        let mut entry = CommandEntry::new();
        entry.set(CommandEntry::TYPE, ENTRY_TYPE_PCIE).set(CommandEntry::INPUT_LENGTH, input.len() as u32);
        entry.set(CommandEntry::INPUT_MAILBOX, self.chain(memory::INPUT, rest, rest.len()));
        let more = output_len.saturating_sub(INLINE);
        entry.set(CommandEntry::OUTPUT_MAILBOX, self.chain(memory::OUTPUT, &[], more));
        entry.set(CommandEntry::OUTPUT_LENGTH, output_len as u32).set(CommandEntry::OWNERSHIP, 1);
        entry.bytes_mut()[INLINE_INPUT..INLINE_INPUT + inline.len()].copy_from_slice(inline);
        let at = memory::COMMANDS + u64::from(slot) * CommandEntry::SIZE as u64;
        self.ram.put(at, entry.bytes());
        self.write32(InitSegment::COMMAND_DOORBELL_VECTOR.offset(), 1 << slot);
        for _ in 0..100 {
            *self.now += Ps::from_us(100);
            self.world.advance(*self.now);
            let status = self.ram.take(at + OWNERSHIP_BYTE as u64, 1)[0];
            if status & 1 == 0 {
                assert_eq!(status, 0, "the command was not delivered");
                let mut output = self.ram.take(at + INLINE_OUTPUT as u64, INLINE);
                for i in 0..more.div_ceil(MAILBOX_DATA) {
                    let piece = self.ram.take(memory::OUTPUT + i as u64 * memory::MAILBOX, MAILBOX_DATA);
                    output.extend_from_slice(&piece);
                }
                output.truncate(output_len);
                return Some(output);
            }
        }
        None
    }
}

impl Executor for Queue<'_> {
    fn execute(&mut self, input: &[u8], output_len: usize) -> Vec<u8> {
        self.run(0, input, output_len).expect("the adapter answers")
    }
}

fn world() -> World {
    static PROFILE: OnceLock<Profile> = OnceLock::new();
    let hca = |i: u64| HcaConfig {
        name: format!("hca{i}"),
        firmware: hca_firmware::Config {
            blueflame: HcaId(i as usize) == VICTIM,
            // The kind that has the most.
            memory_page_faults: true,
            personality: Personality::named("connectx6dx").expect("there is one"),
            ..hca_firmware::Config::with_guid(0x0002_c903_00a0_0001 + i)
        },
        timing: None,
    };
    World::new(WorldConfig {
        hcas: vec![hca(0), hca(1)],
        switches: Vec::new(),
        links: Vec::new(),
        subnet_manager: true,
        management_key: None,
        seed: 1,
        profile: PROFILE.get_or_init(Profile::connectx4).clone(),
    })
    .expect("two adapters without a link are a topology")
}

/// LID that the built-in subnet manager gives an adapter.
fn lid(hca: HcaId) -> Lid {
    Lid(hca.0 as u16 + 1)
}

impl Default for TwoAdapters {
    fn default() -> Self {
        Self::new()
    }
}

impl TwoAdapters {
    /// Two adapters with objects of every kind, queue pairs in RTS, nothing posted.
    pub fn new() -> Self {
        let mut adapters = Self {
            world: world(),
            rams: [Arc::default(), Arc::default()],
            objects: Objects::default(),
            witness: Objects::default(),
            before: Vec::new(),
            now: Ps::from_ms(1000),
        };
        adapters.world.advance(adapters.now);
        adapters.objects = adapters.open(VICTIM);
        adapters.witness = adapters.open(WITNESS);
        adapters.before = adapters.rams[WITNESS.0].snapshot();
        adapters
    }

    fn queue(&mut self, hca: HcaId) -> Queue<'_> {
        Queue { world: &mut self.world, now: &mut self.now, ram: &self.rams[hca.0], hca }
    }

    fn open(&mut self, hca: HcaId) -> Objects {
        self.world.attach(hca, self.rams[hca.0].clone());
        let mut queue = self.queue(hca);
        queue.start();
        bring_up(&mut queue);
        Objects::create(&mut queue, lid(hca))
    }

    /// Model time.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// Memory of the fuzzed adapter's guest.
    pub fn ram(&self) -> &Ram {
        &self.rams[VICTIM.0]
    }

    /// Lets time pass.
    pub fn advance(&mut self, by: Ps) {
        self.world.flush_stores(self.now, VICTIM);
        self.now += by;
        self.world.advance(self.now);
        self.world.drain();
    }

    /// Writes BAR0 of the fuzzed adapter.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.world.mmio_write(self.now, VICTIM, offset, data);
    }

    /// Hands a command to the fuzzed adapter without looking at what becomes of it.
    pub fn command(&mut self, slot: u8, input: &[u8], output_len: usize) {
        // A delivery error is an answer too: the entry is written here, without `run`'s checks.
        let queue = self.queue(VICTIM);
        let (inline, rest) = input.split_at(input.len().min(INLINE));
        let mut entry = CommandEntry::new();
        entry.set(CommandEntry::TYPE, ENTRY_TYPE_PCIE).set(CommandEntry::INPUT_LENGTH, input.len() as u32);
        entry.set(CommandEntry::INPUT_MAILBOX, queue.chain(memory::INPUT, rest, rest.len()));
        entry.set(CommandEntry::OUTPUT_MAILBOX, memory::OUTPUT);
        entry.set(CommandEntry::OUTPUT_LENGTH, output_len as u32).set(CommandEntry::OWNERSHIP, 1);
        entry.bytes_mut()[INLINE_INPUT..INLINE_INPUT + inline.len()].copy_from_slice(inline);
        let slot = slot % 32;
        queue.ram.put(memory::COMMANDS + u64::from(slot) * CommandEntry::SIZE as u64, entry.bytes());
        self.write(InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64, &(1u32 << slot).to_be_bytes());
    }

    /// Executes a command on the fuzzed adapter and gives its output.
    ///
    /// # Panics
    /// If the adapter does not answer.
    pub fn execute(&mut self, input: &[u8], output_len: usize) -> Vec<u8> {
        self.queue(VICTIM).execute(input, output_len)
    }

    /// What the fuzzed adapter has written to its completion queue so far, up to one round of it.
    pub fn completions(&self) -> Vec<Cqe> {
        entries(&self.ram().take(memory::CQ, memory::PAGE as usize))
            .map(Cqe::from_prefix_or_zero)
            .take_while(|cqe| cqe.bytes() != Cqe::new().bytes())
            .collect()
    }

    /// What the fuzzed adapter has written to its event queue so far, up to one round of it.
    pub fn events(&self) -> Vec<Eqe> {
        entries(&self.ram().take(memory::EQ, memory::PAGE as usize))
            .map(Eqe::from_prefix_or_zero)
            .take_while(|eqe| eqe.bytes() != Eqe::new().bytes())
            .collect()
    }

    /// Posts a send WQE (whole basic blocks) to a queue pair of the fuzzed adapter at counter `at`, without
    /// ringing. Returns the counter behind it.
    pub fn post(&self, qp: QueuePair, mut at: u16, wqe: &[u8]) -> u16 {
        let base = qp.buffer + if qp.own_receive_queue { RECV_BYTES } else { 0 };
        for block in wqe.chunks(WQEBB) {
            let slot = u64::from(at) % (1 << LOG_SEND);
            self.ram().put(base + slot * WQEBB as u64, block);
            at = at.wrapping_add(1);
        }
        at
    }

    /// Announces send WQEs up to `counter`: doorbell record, then doorbell.
    pub fn ring(&mut self, qp: QueuePair, counter: u16) {
        self.ram().put(qp.record + 4, &u32::from(counter).to_be_bytes());
        let mut doorbell = [0; 8];
        doorbell[4..].copy_from_slice(&(qp.number << 8).to_be_bytes());
        let offset = u64::from(self.objects.uar) * PAGE_SIZE + SEND_DOORBELL;
        self.write(offset, &doorbell);
    }

    /// Every queue pair of the fuzzed adapter has as many receives as fit, of 64 KiB of data each.
    pub fn post_receives(&self) {
        for qp in self.objects.qps.iter().filter(|q| q.own_receive_queue) {
            for i in 0..1u64 << LOG_RECV {
                let mut data = Data::new();
                data.set(Data::BYTE_COUNT, 0x10000).set(Data::LKEY, self.objects.keys[1]);
                data.set(Data::ADDRESS, memory::DATA);
                let mut wqe = data.bytes().to_vec();
                wqe.extend_from_slice(Data::new().set(Data::LKEY, TERMINATE_LKEY).bytes());
                self.ram().put(qp.buffer + i * WQEBB as u64, &wqe);
            }
            self.ram().put(qp.record, &(1u32 << LOG_RECV).to_be_bytes());
        }
    }

    /// Takes queue pair `i` of the fuzzed adapter from any state to RTS, as far as the adapter plays along.
    pub fn reconnect(&mut self, i: usize) {
        let qp = self.objects.qps[i];
        self.ram().put(qp.record, &[0; 8]);
        let reset = commands::object(Opcode::ToRstQp, qp.number);
        let up = [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp];
        let inputs = [reset].into_iter().chain(up.map(|opcode| self.objects.transition(opcode, i)));
        for input in inputs.collect::<Vec<_>>() {
            self.command(0, &input, 16);
            self.advance(Ps::from_us(50));
        }
    }

    /// Checks that the fuzzed adapter takes commands, comes up again after a reset, and moves data;
    /// and that the other adapter noticed nothing.
    ///
    /// # Panics
    /// If not.
    pub fn assert_alive(&mut self) {
        self.advance(Ps::from_ms(20));
        assert!(self.rams[WITNESS.0].snapshot() == self.before, "memory of another guest changed");
        let objects = self.witness.clone();
        self.assert_moves_data(WITNESS, &objects);

        let mut queue = self.queue(VICTIM);
        queue.start();
        // A slot may still hold a command that waits for pages: one of the others answers.
        let answer = (0..32).find_map(|slot| queue.run(slot, &commands::object(Opcode::QueryIssi, 0), 0x70));
        let answer = answer.expect("the adapter answers");
        assert_eq!(OutHeader::from_prefix_or_zero(&answer).get(OutHeader::STATUS), 0);

        self.world.reset(self.now, VICTIM);
        self.rams[VICTIM.0] = Arc::default();
        self.advance(Ps::from_ms(1000));
        let objects = self.open(VICTIM);
        self.assert_moves_data(VICTIM, &objects);
    }

    /// Sends a few bytes from one queue pair of an adapter to another.
    fn assert_moves_data(&mut self, hca: HcaId, o: &Objects) {
        const TEXT: &[u8; 8] = b"payload!";
        let (source, target) = (memory::DATA, memory::DATA + 0x1000);
        let (sender, receiver) = (o.qps[0], o.qps[1]);
        let ram = self.rams[hca.0].clone();
        ram.put(source, TEXT);
        let segment = |at: u64| {
            let mut data = Data::new();
            data.set(Data::BYTE_COUNT, TEXT.len() as u32).set(Data::LKEY, o.keys[1]).set(Data::ADDRESS, at);
            data
        };
        ram.put(receiver.buffer, segment(target).bytes());
        let mut end = Data::new();
        end.set(Data::LKEY, TERMINATE_LKEY);
        ram.put(receiver.buffer + Data::SIZE as u64, end.bytes());
        ram.put(receiver.record, &1u32.to_be_bytes());
        let mut ctrl = Ctrl::new();
        ctrl.set(Ctrl::OPCODE, SendOpcode::Send as u32).set(Ctrl::QPN, sender.number).set(Ctrl::DS, 2);
        ctrl.set(Ctrl::CE, CE_ALWAYS);
        ram.put(sender.buffer + RECV_BYTES, ctrl.bytes());
        ram.put(sender.buffer + RECV_BYTES + Ctrl::SIZE as u64, segment(source).bytes());
        ram.put(sender.record + 4, &1u32.to_be_bytes());
        let offset = u64::from(o.uar) * PAGE_SIZE + SEND_DOORBELL;
        self.world.mmio_write(self.now, hca, offset, &ctrl.bytes()[..8]);
        self.advance(Ps::from_ms(1));
        assert_eq!(ram.take(target, TEXT.len()), TEXT, "the data arrived");
        for i in 0..2 {
            let cqe = Cqe::from_prefix_or_zero(&ram.take(memory::CQ + i * Cqe::SIZE as u64, Cqe::SIZE));
            let (qpn, opcode) = (cqe.get(Cqe::QPN), cqe.get(Cqe::OPCODE));
            assert!([sender.number, receiver.number].contains(&qpn) && opcode <= 2, "{cqe:?}");
        }
        assert_eq!(Mkey(o.keys[1]).variant(), 0);
    }
}

fn entries(queue: &[u8]) -> impl Iterator<Item = &[u8]> {
    queue.chunks_exact(Cqe::SIZE)
}

/// Bytes of a receive queue: the send queue follows.
pub const RECV_BYTES: u64 = (WQEBB as u64) << LOG_RECV;
