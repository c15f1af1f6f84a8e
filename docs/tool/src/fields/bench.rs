//! An adapter on which every command can be tried: with an object of each kind, brought into the state in which the command is
//! legal, by commands alone but for what the hardware does.

use anyhow::{Context, Result, bail};
use hca_firmware::commands::{Action, Command, Fixture, find, maker};
use hca_firmware::object::Kind;
use hca_firmware::{Config, Effect, Execution, Firmware, FunctionId, Personality, PortKind, Refusal, State};
use hca_spec::be32;
use hca_spec::caps::object_type;
use hca_spec::cmd::{CreateQpIn, FunctionIn, PAGES_INIT};
use hca_spec::command::Opcode;
use hca_spec::dct::{DctState, Dctc};
use hca_spec::put_be32;
use hca_spec::qpc::{QpState, Qpc, ServiceType};

/// Room for the longest output.
const ROOM: usize = 0x2000;

/// What became of a command.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    /// Its output; status and syndrome of one that is refused.
    pub(super) output: Vec<u8>,
    /// What the hardware has to follow.
    pub(super) effects: Vec<Effect>,
    /// Why it was refused.
    pub(super) refusal: Option<Refusal>,
}

/// The adapter, and the command's valid input.
pub(super) struct Bench {
    pub(super) firmware: Firmware,
    pub(super) fixture: Fixture,
    /// The input that succeeds.
    pub(super) input: Vec<u8>,
}

/// A state in which each transition is legal.
fn before(opcode: Opcode) -> Option<QpState> {
    Some(match opcode {
        Opcode::Rst2InitQp => QpState::Reset,
        Opcode::Init2InitQp | Opcode::Init2RtrQp => QpState::Init,
        Opcode::Rtr2RtsQp => QpState::Rtr,
        Opcode::Rts2RtsQp | Opcode::Rts2SqdQp => QpState::Rts,
        Opcode::SqErr2RtsQp => QpState::SqError,
        Opcode::Sqd2RtsQp | Opcode::Sqd2SqdQp => QpState::SqDrained,
        _ => return None,
    })
}

impl Bench {
    /// For that command; on an adapter with that link layer. `None`: such an adapter does not have it.
    ///
    /// # Errors
    /// A template is refused.
    pub(super) fn new(command: &Command, port_kind: PortKind) -> Result<Option<Self>> {
        let mut bench = Self::powered_on(port_kind)?;
        if !(command.offered)(&bench.firmware) {
            return Ok(None);
        }
        if command.state >= State::Enabled {
            bench.enable()?;
        }
        if command.state == State::Initialized {
            bench.good(Opcode::InitHca)?;
            bench.populate()?;
            bench.prepare(command)?;
        }
        bench.input = command.template(&bench.fixture);
        Ok(Some(bench))
    }

    fn powered_on(port_kind: PortKind) -> Result<Self> {
        let personality = Personality::named("connectx6dx").context("the kind with the most commands")?;
        let mut firmware = Firmware::new(Config {
            personality,
            blueflame: true,
            memory_page_faults: true,
            port_kind,
            ..Config::default()
        });
        firmware.ports.add_virtual_function(FunctionId(1));
        let fixture = Fixture::new(0x10_0000, 0x20_0000, 0x4000_0000);
        Ok(Self { firmware, fixture, input: Vec::new() })
    }

    /// An adapter that was enabled and given no pages. `None`: the command is not legal on it, or not there.
    ///
    /// # Errors
    /// A template is refused.
    pub(super) fn without_pages(command: &Command, port_kind: PortKind) -> Result<Option<Self>> {
        let mut bench = Self::powered_on(port_kind)?;
        if command.state != State::Enabled || !(command.offered)(&bench.firmware) {
            return Ok(None);
        }
        bench.good(Opcode::EnableHca)?;
        Ok(Some(bench))
    }

    /// What a command answers behind that input of another one, about its object if that makes one. `None`: that was refused, and
    /// nothing has changed.
    ///
    /// # Errors
    /// An adapter that waits for pages.
    pub(super) fn told(
        &mut self,
        other: &Command,
        input: &[u8],
        command: &Command,
    ) -> Result<Option<Answer>> {
        let said = self.run(input)?;
        if said.refusal.is_some() {
            return Ok(None);
        }
        if let (Some(object), Some(number)) = (other.object, other.made(&said.output).next()) {
            self.fixture.set(object.kind, number);
        }
        let mut question = command.template(&self.fixture);
        if other.opcode == command.opcode {
            // Its other form tells what this one said.
            put_be32(&mut question, 4, 1);
        }
        self.run(&question).map(Some)
    }

    /// Executes a command.
    pub(super) fn run(&mut self, input: &[u8]) -> Result<Answer> {
        let mut effects = Vec::new();
        match self.firmware.execute(input, ROOM, &mut effects) {
            Execution::Done(output) => Ok(Answer { output, effects, refusal: self.firmware.take_refusal() }),
            Execution::NeedPages => bail!("an adapter with pages enough waits for more"),
        }
    }

    /// A number for the adapter's state.
    pub(super) fn state(&self) -> u64 {
        self.firmware.fingerprint()
    }

    /// Executes what must succeed.
    fn succeed(&mut self, input: &[u8]) -> Result<Vec<u8>> {
        let answer = self.run(input)?;
        match answer.refusal {
            Some(refusal) => bail!("{}: {}", refusal.command, refusal.why),
            None => Ok(answer.output),
        }
    }

    pub(super) fn good(&mut self, opcode: Opcode) -> Result<Vec<u8>> {
        let input = find(opcode).context("a row")?.template(&self.fixture);
        self.succeed(&input)
    }

    fn enable(&mut self) -> Result<()> {
        self.good(Opcode::EnableHca)?;
        let mut query = find(Opcode::QueryPages).context("a row")?.template(&self.fixture);
        put_be32(&mut query, 4, PAGES_INIT);
        // Some more than that, for lists.
        let pages = be32(&self.succeed(&query)?, 0xc) + 0x100;
        let mut give = find(Opcode::ManagePages).context("a row")?.template(&self.fixture);
        give.truncate(FunctionIn::SIZE);
        put_be32(&mut give, 0xc, pages);
        (0..u64::from(pages)).for_each(|i| give.extend_from_slice(&((0x10_0000 + i) << 12).to_be_bytes()));
        self.succeed(&give).map(drop)
    }

    fn make(&mut self, kind: Kind) -> Result<u32> {
        let command = maker(kind).context("a command that makes it")?;
        let input = command.template(&self.fixture);
        let output = self.succeed(&input)?;
        command.made(&output).next().context("a number")
    }

    /// An object of each kind, in an order in which each names only those before it: what can't be made yet is made later.
    fn populate(&mut self) -> Result<()> {
        let offered = |kind: &Kind| maker(*kind).is_some_and(|command| (command.offered)(&self.firmware));
        let mut missing: Vec<Kind> = Kind::ALL.into_iter().filter(offered).collect();
        while !missing.is_empty() {
            let before = missing.len();
            let mut later = Vec::new();
            for kind in missing {
                match self.make(kind) {
                    Ok(number) => _ = self.fixture.set(kind, number),
                    Err(_) => later.push(kind),
                }
            }
            if later.len() == before {
                bail!("no template makes {later:?}");
            }
            missing = later;
        }
        // Commands of elements name one of these, and no other general object.
        if let Some(create) =
            find(Opcode::CreateSchedulingElement).filter(|row| (row.offered)(&self.firmware))
        {
            let output = self.succeed(&create.template(&self.fixture))?;
            let number = create.made(&output).next().context("a number")?;
            self.fixture.typed_objects.push((object_type::SCHEDULING_ELEMENT, number));
        }
        self.fixture.peer_qp = self.fixture.number(Kind::Qp);
        let create = find(Opcode::CreateQp).context("a row")?;
        let mut datagram = create.template(&self.fixture);
        let mut context = CreateQpIn::from_prefix_or_zero(&datagram);
        context.qpc_mut().set(Qpc::ST, ServiceType::Ud as u32);
        datagram.iter_mut().zip(context.bytes()).for_each(|(to, from)| *to = *from);
        let output = self.succeed(&datagram)?;
        self.fixture.datagram_qp = create.made(&output).next().context("a number")?;
        Ok(())
    }

    /// Brings the objects into the state in which the command is legal, and gives one that destroys something an object that
    /// nothing uses.
    fn prepare(&mut self, command: &Command) -> Result<()> {
        if matches!(command.opcode, Opcode::CreateFlowGroup | Opcode::DestroyFlowGroup) {
            // Groups of a table have no place in common.
            let table = self.make(Kind::FlowTable)?;
            self.fixture.set(Kind::FlowTable, table);
        }
        if let Some(object) = command.object
            && object.action == Action::Destroy
        {
            let idle = self.make(object.kind)?;
            self.fixture.set(object.kind, idle);
        }
        match command.opcode {
            Opcode::DestroyDct => {
                let dct = self.firmware.icm.dcts.get_mut(self.fixture.number(Kind::Dct));
                dct.context("a DC target")?.ctx.set(Dctc::STATE, DctState::Drained as u32);
            }
            Opcode::QueryFlowTableEntry | Opcode::DeleteFlowTableEntry => {
                _ = self.good(Opcode::SetFlowTableEntry)?
            }
            Opcode::DeallocMemic | Opcode::ModifyMemic => _ = self.good(Opcode::AllocMemic)?,
            Opcode::DetachFromMcg => _ = self.good(Opcode::AttachToMcg)?,
            opcode => {
                if let Some(state) = before(opcode) {
                    let qp = self.firmware.icm.qps.get_mut(self.fixture.number(Kind::Qp));
                    qp.context("a queue pair")?.ctx.set(Qpc::STATE, state as u32);
                }
            }
        }
        Ok(())
    }
}
