//! Where mistakes are made: two adapters with a checker, our driver on them, and a hand that spoils what the driver writes.

use std::cell::RefCell;
use std::rc::Rc;

use hca_driver::eth::Rq;
use hca_driver::{Bus, Config, Cq, Dma, Eq, Error, Hca, Qp, Srq};
use hca_firmware::commands::{Fixture, find, maker};
use hca_firmware::object::Kind;
use hca_model::link::Faults;
use hca_model::timing::Profile;
use hca_model::{HcaId, Ps, World};
use hca_spec::be32;
use hca_spec::cmd::ObjectIn;
use hca_spec::command::{
    CommandEntry, INLINE_INPUT, InHeader, MAILBOX_DATA, MailboxBlock, Opcode, OutHeader,
};
use hca_spec::init_segment::InitSegment;
use hca_spec::layout::Access;
use hca_spec::qpc::{Qpc, ServiceType};

use super::{Mistake, Ports, Said};
use crate::in_process::{ModelBus, ModelMemory, Simulation};
use crate::pair::{Options, Pair};
use crate::worlds;

/// DMA memory of each host.
const MEMORY: usize = 16 << 20;
/// How long a driver may leave something undone.
pub const PATIENCE: Ps = Ps::from_ms(5);
/// Polls until a command is given up: one that never ends is a mistake, too.
const POLLS: u32 = 2_000;
/// Offset of the EQ context in CREATE_EQ's input, and so on.
pub const CONTEXT: usize = 0x10;
/// The same of queue pairs.
pub const QPC: usize = 0x18;
/// The same of RMP, SQ, RQ, TIS and TIR.
pub const LATE_CONTEXT: usize = 0x20;

/// A command entry that was handed over, before the adapter reads it.
pub struct Handed<'a> {
    bus: &'a ModelBus,
    at: u64,
}

impl Handed<'_> {
    /// Changes the entry.
    pub fn entry(&self, change: impl FnOnce(&mut CommandEntry)) {
        let mut entry = CommandEntry::new();
        self.bus.peek(self.at, entry.bytes_mut());
        change(&mut entry);
        self.bus.poke(self.at, entry.bytes());
    }

    /// Changes the `number`-th input mailbox.
    pub fn mailbox(&self, number: usize, change: impl FnOnce(&mut MailboxBlock)) {
        let mut at = 0;
        self.entry(|entry| at = entry.get(CommandEntry::INPUT_MAILBOX));
        let mut block = MailboxBlock::new();
        for _ in 0..number {
            self.bus.peek(at, block.bytes_mut());
            at = block.get(MailboxBlock::NEXT);
        }
        self.bus.peek(at, block.bytes_mut());
        change(&mut block);
        self.bus.poke(at, block.bytes());
    }
}

type Spoil = Box<dyn FnOnce(&Handed<'_>)>;
/// Changes the capabilities that are set.
type Change = dyn Fn(&mut [u8]);

/// The bus of a driver, with a hand that spoils what the driver is about to hand over.
#[derive(Clone)]
pub struct Hand {
    inner: ModelBus,
    queue: [u32; 2],
    spoil: Rc<RefCell<Option<(u32, Spoil)>>>,
}

impl Hand {
    /// The bus itself.
    pub fn inner(&self) -> &ModelBus {
        &self.inner
    }

    /// The next command is changed before its doorbell.
    pub fn spoil_next(&self, spoil: impl FnOnce(&Handed<'_>) + 'static) {
        self.spoil_after(0, spoil);
    }

    /// The capabilities of that type are changed when they are set: the bytes of the first mailbox.
    pub fn spoil_caps(&self, kind: u32, change: impl Fn(&mut [u8]) + 'static) {
        self.spoil_caps_once(kind, Rc::new(change));
    }

    fn spoil_caps_once(&self, kind: u32, change: Rc<Change>) {
        let again = self.clone();
        self.spoil_next(move |handed| {
            let (mut opcode, mut modifier) = (0, 0);
            handed.entry(|entry| {
                opcode = be32(entry.bytes(), INLINE_INPUT) >> 16;
                modifier = be32(entry.bytes(), INLINE_INPUT + 4) & 0xffff;
            });
            match opcode == Opcode::SetHcaCap as u32 && modifier >> 1 == kind {
                true => handed.mailbox(0, |block| change(&mut block.bytes_mut()[..MAILBOX_DATA])),
                false => again.spoil_caps_once(kind, change),
            }
        });
    }

    /// The same with the command after so many others.
    pub fn spoil_after(&self, others: u32, spoil: impl FnOnce(&Handed<'_>) + 'static) {
        *self.spoil.borrow_mut() = Some((others, Box::new(spoil)));
    }
}

impl Bus for Hand {
    type Dma = ModelMemory;

    fn mmio_read32(&mut self, offset: u64) -> u32 {
        self.inner.mmio_read32(offset)
    }

    fn mmio_write32(&mut self, offset: u64, value: u32) {
        const HIGH: u64 = InitSegment::CMDQ_PHY_ADDR_HIGH.offset() as u64;
        const LOW: u64 = InitSegment::CMDQ_PHY_ADDR_LOW.offset() as u64;
        const DOORBELL: u64 = InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64;
        match offset {
            HIGH => self.queue[0] = value,
            LOW => self.queue[1] = value,
            DOORBELL => {
                let waiting = self.spoil.borrow_mut().take();
                match waiting {
                    Some((0, spoil)) => {
                        let queue = u64::from(self.queue[0]) << 32 | u64::from(self.queue[1]);
                        let slot = u64::from(value.trailing_zeros());
                        spoil(&Handed { bus: &self.inner, at: queue + slot * CommandEntry::SIZE as u64 });
                    }
                    later => *self.spoil.borrow_mut() = later.map(|(n, spoil)| (n - 1, spoil)),
                }
            }
            _ => {}
        }
        self.inner.mmio_write32(offset, value);
    }

    fn mmio_write64(&mut self, offset: u64, value: u64) {
        self.inner.mmio_write64(offset, value);
    }

    fn mmio_write_block(&mut self, offset: u64, data: &[u8]) {
        self.inner.mmio_write_block(offset, data);
    }

    fn dma_alloc(&mut self, size: usize, align: usize) -> Option<ModelMemory> {
        self.inner.dma_alloc(size, align)
    }

    fn wait(&mut self, vector: Option<u16>) {
        self.inner.wait(vector);
    }

    fn vectors(&self) -> u16 {
        self.inner.vectors()
    }
}

/// A command that is about to be sent.
pub struct Command {
    /// Its input, header included.
    pub input: Vec<u8>,
    /// Room for its output.
    pub output: usize,
}

impl Command {
    /// Sets a field of a structure that begins at byte `base` of the input.
    pub fn set<L, F: Access<L>>(&mut self, base: usize, field: F, value: F::Value) {
        field.write(&mut self.input[base..], value);
    }

    /// Sets the list behind the fixed part of a CREATE_* input.
    pub fn list(&mut self, entries: &[u64]) {
        self.input.truncate(hca_spec::cmd::PAS_OFFSET);
        self.input.extend(entries.iter().flat_map(|entry| entry.to_be_bytes()));
    }
}

/// Where one mistake is made, or done right.
pub struct Bench {
    wrong: bool,
    /// The adapters.
    pub simulation: Simulation,
    ports: Ports,
    refused: Vec<Error>,
    /// Memory that templates name, and that stays.
    memory: Vec<ModelMemory>,
    /// What lives on until the end.
    kept: Vec<Box<dyn Live>>,
}

/// What lives on after a mistake was made, as a driver does.
pub trait Live {
    /// Serves its interrupts.
    fn serve(&mut self) {}
}

impl Live for Hca<Hand> {
    fn serve(&mut self) {
        while let Ok(Some(_)) = self.poll_event() {}
    }
}

impl Live for Pair<Hand> {
    fn serve(&mut self) {
        self.hcas.iter_mut().for_each(Live::serve);
    }
}

impl Live for Eq<ModelMemory> {}
impl Live for Cq<ModelMemory> {}
impl Live for Qp<ModelMemory> {}
impl Live for Srq<ModelMemory> {}
impl Live for Rq<ModelMemory> {}
impl Live for ModelMemory {}

impl<A: Live, B: Live> Live for (A, B) {
    fn serve(&mut self) {
        self.0.serve();
        self.1.serve();
    }
}

impl Bench {
    /// Two adapters at power-on, for that mistake.
    pub fn new(wrong: bool, mistake: &Mistake) -> Self {
        let ports = mistake.ports;
        let mut config = worlds::config(2, vec![worlds::between(Faults::default())], 1);
        if let Some(name) = mistake.personality {
            config.profile = Profile::named(name).expect("a kind of adapter has its times");
            worlds::set_kind(&mut config, name);
        }
        let simulation = Simulation::new(match ports {
            Ports::Ib => World::new(config).expect("a valid topology"),
            Ports::Eth => crate::lan::ethernet(config),
        });
        simulation.world(|world, _| world.start_checker(PATIENCE));
        Self { wrong, simulation, ports, refused: Vec::new(), memory: Vec::new(), kept: Vec::new() }
    }

    /// Whether the mistake is made.
    pub fn is_wrong(&self) -> bool {
        self.wrong
    }

    /// The value of the mistake, or of the twin.
    pub fn pick<T>(&self, wrong: T, right: T) -> T {
        if self.wrong { wrong } else { right }
    }

    /// A bus to an adapter.
    pub fn bus(&self, hca: usize) -> Hand {
        Hand { inner: self.simulation.bus(HcaId(hca), MEMORY), queue: [0; 2], spoil: Rc::default() }
    }

    /// Brings an adapter up.
    pub fn open(&self, hca: usize) -> Hca<Hand> {
        Self::open_on(self.bus(hca))
    }

    /// The same on a bus.
    pub fn open_on(bus: Hand) -> Hca<Hand> {
        let config = Config { command_polls: POLLS, ..Config::default() };
        let mut hca = Hca::open(bus, config).expect("the adapter comes up");
        // Its port trains, and its driver hears of that.
        for _ in 0..4 {
            hca.bus_mut().inner().simulation().clone().run(Ps(PATIENCE.0 / 2));
            hca.serve();
        }
        hca
    }

    /// Two connected queue pairs, each on its adapter.
    pub fn pair(&self, options: &Options) -> Pair<Hand> {
        let hcas = self.both();
        Pair::connect(hcas, &self.options(options)).expect("the pair connects")
    }

    /// The same, not connected.
    pub fn apart(&self, options: &Options) -> Pair<Hand> {
        let options = self.options(options);
        Pair::apart(self.both(), [&options; 2]).expect("objects")
    }

    /// Both adapters, up.
    pub fn both(&self) -> Vec<Hca<Hand>> {
        let mut hcas = vec![self.open(0), self.open(1)];
        hcas.iter_mut().for_each(Live::serve);
        hcas
    }

    /// The same options over the adapters' ports.
    pub fn options(&self, options: &Options) -> Options {
        Options { roce: self.ports == Ports::Eth, ..options.clone() }
    }

    /// That lives on until the end: a driver that does nothing more, but for its interrupts.
    pub fn keep(&mut self, what: impl Live + 'static) {
        self.kept.push(Box::new(what));
    }

    /// Notes what a command came back with.
    pub fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.refused.push(error)).ok()
    }

    /// Sends a command about an object.
    pub fn object(&mut self, hca: &mut Hca<Hand>, opcode: Opcode, number: u32) {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, number);
        let sent = hca.execute(opcode, 0, input.bytes().to_vec(), OutHeader::SIZE);
        self.note(sent);
    }

    /// So much time passes that everything that was left undone shows.
    pub fn pass(&self) {
        self.simulation.run(Ps(6 * PATIENCE.0));
    }

    /// Memory for templates.
    fn memory(&mut self, hca: &mut Hca<Hand>, len: usize) -> u64 {
        let memory = hca.bus_mut().dma_alloc(len, 4096).expect("memory");
        let at = memory.bus_address();
        self.memory.push(memory);
        at
    }

    /// A valid command, about the objects of `fixture`.
    pub fn template(&self, opcode: Opcode, fixture: &Fixture) -> Command {
        let command = find(opcode).expect("a command of the adapter");
        Command { input: command.template(fixture), output: command.output.max(OutHeader::SIZE) }
    }

    /// Sends a command as it is.
    pub fn send(hca: &mut Hca<Hand>, opcode: Opcode, command: Command) -> Result<Vec<u8>, Error> {
        let modifier = be32(&command.input, InHeader::OP_MOD.offset()) & InHeader::OP_MOD.max();
        hca.execute(opcode, modifier, command.input, command.output)
    }

    /// One object of each kind that the adapter has, made by our driver with the templates' commands.
    pub fn fixture(&mut self, hca: &mut Hca<Hand>) -> Fixture {
        let (queue, record) = (self.memory(hca, 2 << 12), self.memory(hca, 4096));
        let pages = self.memory(hca, 16 << 12);
        let mut fixture = Fixture::new(queue, record, pages);
        let ib =
            [Kind::Uar, Kind::Eq, Kind::Pd, Kind::Xrcd, Kind::TransportDomain, Kind::QCounter, Kind::Mkey];
        let queues = [Kind::Cq, Kind::Qp, Kind::Srq, Kind::XrcSrq, Kind::Rmp, Kind::Dct, Kind::Psv];
        let eth = [Kind::Tis, Kind::Sq, Kind::Rq, Kind::Rqt, Kind::Tir, Kind::FlowTable, Kind::FlowGroup];
        let ethernet = eth.into_iter().filter(|_| self.ports == Ports::Eth);
        for kind in ib.into_iter().chain(queues).chain(ethernet) {
            let number = self.make(hca, kind, &fixture);
            fixture.set(kind, number);
        }
        // Datagrams, and a peer.
        let mut create = self.template(Opcode::CreateQp, &fixture);
        create.set(QPC, Qpc::ST, ServiceType::Ud as u32);
        fixture.datagram_qp = made(&Self::send(hca, Opcode::CreateQp, create).expect("a UD queue pair"));
        fixture.peer_qp = self.make(hca, Kind::Qp, &fixture);
        fixture.peer_lid = hca_spec::ids::Lid(1);
        fixture
    }

    /// One more object.
    pub fn make(&self, hca: &mut Hca<Hand>, kind: Kind, fixture: &Fixture) -> u32 {
        let row = maker(kind).expect("every kind is made by a command");
        let command = self.template(row.opcode, fixture);
        let output = Self::send(hca, row.opcode, command)
            .unwrap_or_else(|error| panic!("the template of {} succeeds: {error}", row.name));
        row.made(&output).next().expect("a number")
    }

    /// What was said, and what the driver got beside that.
    pub fn end(mut self) -> (Vec<Said>, Vec<Error>) {
        // Often enough that no event waits for long.
        for _ in 0..12 {
            self.kept.iter_mut().for_each(|live| live.serve());
            self.simulation.run(Ps(PATIENCE.0 / 2));
        }
        let diagnoses = self.simulation.world(|world, _| world.drain_diagnoses());
        (diagnoses.iter().map(Said::from).collect(), self.refused)
    }
}

/// The number of the object that a command has made.
pub fn made(output: &[u8]) -> u32 {
    be32(output, 8) & 0xff_ffff
}
