//! What the table of commands says of one ([`Command`]), and a command as it came.

use std::cell::Cell;

use hca_spec::bsf::MAX_PSVS;
use hca_spec::cmd::{CreateUmemIn, PAS_OFFSET};
use hca_spec::command::{InHeader, Opcode};
use hca_spec::flow::SetFteIn;
use hca_spec::layout::Layout;
use hca_spec::rewrite::AllocModifyHeaderContextIn;
use hca_spec::transport::RQT_LIST;
use hca_spec::xrq::CreateXrqIn;
use hca_spec::{be32, put_be32};

use super::fixture::Fixture;
use super::flow_counter;
use super::rewrite::REFORMAT_HEADER;
use super::table::find;
use crate::effect::Effect;
use crate::failure::Failure;
use crate::firmware::{Firmware, State};
use crate::list::{Input, List};
use crate::object::{Kind, Object};
use crate::steering::ENTRY_BYTES;
use crate::users::{Held, UserPages};

/// Output of a command, or why it is refused.
pub(crate) type Outcome = Result<Vec<u8>, Failure>;

/// A command: one row of the table.
pub struct Command {
    /// Its opcode.
    pub opcode: Opcode,
    /// Its name in the PRM.
    pub name: &'static str,
    /// The structure of its input. Commands that name one object, and those that name nothing, share theirs; what is of no fixed
    /// form behind it (lists, registers) is not part of it.
    pub layout: &'static Layout,
    /// What lies in the input beside or behind its structure, and at which byte. Where it may have several forms, they lie in one place.
    pub forms: &'static [(&'static Layout, usize)],
    /// Length of its input's layout in bytes, header included. Drivers may send less: what is missing is zero.
    pub input: usize,
    /// Length of its output's layout in bytes, header included. Drivers may have less room: the rest is cut off.
    pub output: usize,
    /// The least state of the adapter in which it is legal.
    pub state: State,
    /// The object that it is about.
    pub object: Option<Subject>,
    /// What it takes of ICM.
    pub icm: IcmUse,
    /// What user contexts may do with it.
    pub user: User,
    /// Commands of one class take about the same time.
    pub time: TimeClass,
    /// Whether the adapter has it.
    pub offered: fn(&Firmware) -> bool,
    pub(crate) handler: Handler,
    pub(crate) template: Template,
}

impl Command {
    /// All structures of its input and their first bytes: the header, [`Command::layout`], and [`Command::forms`].
    pub fn layouts(&self) -> impl Iterator<Item = (&'static Layout, usize)> {
        [(&InHeader::LAYOUT, 0), (self.layout, 0)].into_iter().chain(self.forms.iter().copied())
    }

    /// A valid input: on an adapter with the objects of `fixture` it succeeds, unless the objects' states don't allow
    /// it. Its user is the kernel.
    pub fn template(&self, fixture: &Fixture) -> Vec<u8> {
        self.templates(fixture).into_iter().next().unwrap_or_default()
    }

    /// The same of a command whose object may be of several types: one for each that the adapter has, [`Command::template`] first.
    pub fn templates(&self, fixture: &Fixture) -> Vec<Vec<u8>> {
        let inputs = match self.template {
            Template::Object => vec![Vec::new()],
            Template::Input(make) | Template::Refused(make, _) => vec![make(fixture)],
            Template::Several(make) => make(fixture),
        };
        inputs.into_iter().map(|input| self.completed(input, fixture)).collect()
    }

    /// An input with header, length and the number of its object.
    fn completed(&self, mut input: Vec<u8>, fixture: &Fixture) -> Vec<u8> {
        input.resize(input.len().max(self.input), 0);
        if let (Template::Object, Some(object)) = (&self.template, self.object)
            && object.action != Action::Create
        {
            put_be32(&mut input, object.at, fixture.number(object.kind));
        }
        let mut header = InHeader::from_prefix_or_zero(&input);
        header.set(InHeader::OPCODE, self.opcode as u32);
        input.iter_mut().zip(header.bytes()).for_each(|(to, from)| *to = *from);
        input
    }

    /// Why [`Command::template`] is refused, if it is: no input of the command succeeds on this adapter.
    pub fn refused(&self) -> Option<&'static str> {
        match self.template {
            Template::Refused(_, why) => Some(why),
            _ => None,
        }
    }

    /// Bytes of ICM that the command with that input takes at most.
    pub fn icm_bytes(&self, input: &[u8]) -> u64 {
        let objects = match self.object {
            Some(object) if object.action == Action::Create => {
                object.kind.icm_bytes() * u64::from(object.most)
            }
            _ => 0,
        };
        let more = match self.icm.more {
            IcmMore::Nothing => 0,
            IcmMore::FlowEntry => ENTRY_BYTES,
            IcmMore::FlowCounters => flow_counter::icm_bytes(input),
        };
        objects + more + self.icm.list.map_or(0, |at| input.len().saturating_sub(at) as u64)
    }

    /// Byte offset in the input of a list that the adapter keeps as it is: it is not one with the rest of the input ([`Input`]).
    pub fn kept_list(&self) -> Option<usize> {
        self.icm.list.filter(|_| self.icm.as_it_is)
    }

    /// Whether the command entry itself has all of its input: there is nothing to fetch, however long the input is said to be.
    pub fn is_inline(&self) -> bool {
        self.input <= InHeader::SIZE && matches!(self.template, Template::Object)
    }

    /// Numbers in the output of the objects that it made.
    pub fn made(&self, output: &[u8]) -> impl Iterator<Item = u32> + use<> {
        let object = self.object.filter(|object| object.action == Action::Create);
        let words: Vec<u32> = object.map_or_else(Vec::new, |object| {
            let word = |i| be32(output, object.at + 4 * i as usize) & object.kind.number_mask();
            (0..object.most).map(word).collect()
        });
        words.into_iter().filter(|number| *number != 0)
    }
}

/// What a command does with its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Makes it.
    Create,
    /// Changes it.
    Change,
    /// Reports it.
    Query,
    /// Destroys it.
    Destroy,
}

/// The object that a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// Its kind.
    pub kind: Kind,
    /// What the command does with it.
    pub action: Action,
    /// Byte offset of the word with its number: in the output of a command that makes it, else in the input.
    pub at: usize,
    /// How many objects the command makes at most.
    pub most: u32,
}

impl Subject {
    /// The word behind the header's opcode and modifier.
    const FIRST: usize = 8;

    const fn new(action: Action, kind: Kind) -> Option<Self> {
        Some(Self { kind, action, at: Self::FIRST, most: 1 })
    }
}

/// Column of the table: no object.
pub(super) const NONE: Option<Subject> = None;

/// Column of the table: makes an object of that kind.
pub(super) const fn makes(kind: Kind) -> Option<Subject> {
    Subject::new(Action::Create, kind)
}

/// Column of the table: makes an object of that kind, whose number lies at `at` of the output.
pub(super) const fn makes_at(kind: Kind, at: usize) -> Option<Subject> {
    Some(Subject { kind, action: Action::Create, at, most: 1 })
}

/// Column of the table: makes up to [`MAX_PSVS`] PSVs; their numbers lie at `at`.
pub(super) const fn makes_psvs(at: usize) -> Option<Subject> {
    Some(Subject { kind: Kind::Psv, action: Action::Create, at, most: MAX_PSVS })
}

/// Column of the table: changes an object of that kind.
pub(super) const fn changes(kind: Kind) -> Option<Subject> {
    Subject::new(Action::Change, kind)
}

/// Column of the table: changes an object of that kind, whose number lies at `at`.
pub(super) const fn changes_at(kind: Kind, at: usize) -> Option<Subject> {
    Some(Subject { kind, action: Action::Change, at, most: 1 })
}

/// Column of the table: reports an object of that kind.
pub(super) const fn queries(kind: Kind) -> Option<Subject> {
    Subject::new(Action::Query, kind)
}

/// Column of the table: reports an object of that kind, whose number lies at `at`.
pub(super) const fn queries_at(kind: Kind, at: usize) -> Option<Subject> {
    Some(Subject { kind, action: Action::Query, at, most: 1 })
}

/// Column of the table: destroys an object of that kind, whose number lies at `at`.
pub(super) const fn destroys_at(kind: Kind, at: usize) -> Option<Subject> {
    Some(Subject { kind, action: Action::Destroy, at, most: 1 })
}

/// Column of the table: destroys an object of that kind.
pub(super) const fn destroys(kind: Kind) -> Option<Subject> {
    Subject::new(Action::Destroy, kind)
}

/// What a command takes of ICM beside the objects that it makes ([`Kind::icm_bytes`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmUse {
    /// Byte offset in the input of a page list or translations that the adapter keeps.
    pub list: Option<usize>,
    /// Whether the list is kept as it is, because it may be too long to be gone through at once.
    pub as_it_is: bool,
    /// Whether the command waits for pages that the host has still to give. If not, it is refused.
    pub waits: bool,
    /// What the objects and the list don't show.
    pub more: IcmMore,
}

/// What a command takes of ICM for what is neither an object nor a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmMore {
    /// Nothing.
    Nothing,
    /// An entry of a flow table.
    FlowEntry,
    /// The flow counters of a bulk.
    FlowCounters,
}

impl IcmUse {
    /// Column of the table: nothing else.
    pub(super) const OBJECT: Self = Self { list: None, as_it_is: false, waits: true, more: IcmMore::Nothing };
    /// Column of the table: the list behind most CREATE_* inputs.
    pub(super) const LIST: Self = Self::list_at(PAS_OFFSET);
    /// Column of the table: the same, at once. Requests for pages arrive through event queues.
    pub(super) const LIST_AT_ONCE: Self = Self { waits: false, ..Self::LIST };

    /// Column of the table: the list behind CREATE_XRQ's input.
    pub(super) const XRQ_LIST: Self = Self::list_at(CreateXrqIn::SIZE);
    /// Column of the table: the list behind CREATE_RQT's and MODIFY_RQT's input.
    pub(super) const RQ_LIST: Self = Self::list_at(RQT_LIST);

    /// Column of the table: the list behind CREATE_UMEM's input.
    pub(super) const UMEM_LIST: Self = Self { as_it_is: true, ..Self::list_at(CreateUmemIn::SIZE) };
    /// Column of the table: translations of a key.
    pub(super) const TRANSLATIONS: Self = Self { as_it_is: true, ..Self::LIST };

    /// Column of the table: an entry of a flow table, and the list behind SET_FLOW_TABLE_ENTRY's input.
    pub(super) const FLOW_ENTRY: Self = Self { more: IcmMore::FlowEntry, ..Self::list_at(SetFteIn::SIZE) };
    /// Column of the table: the header behind ALLOC_PACKET_REFORMAT_CONTEXT's input, and the list behind that of
    /// ALLOC_MODIFY_HEADER_CONTEXT.
    pub(super) const REFORMAT_DATA: Self = Self::list_at(REFORMAT_HEADER);
    pub(super) const HEADER_CHANGES: Self = Self::list_at(AllocModifyHeaderContextIn::SIZE);
    /// Column of the table: a bulk of flow counters.
    pub(super) const FLOW_COUNTERS: Self = Self { more: IcmMore::FlowCounters, ..Self::OBJECT };

    const fn list_at(at: usize) -> Self {
        Self { list: Some(at), as_it_is: false, waits: true, more: IcmMore::Nothing }
    }
}

/// Which user contexts (DevX) may send a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// None: only the kernel.
    Kernel,
    /// Those that may look at the adapter's own resources ([`hca_spec::caps::uctx_cap::INTERNAL_DEV_RES`]).
    DeviceOwners,
    /// All.
    Users,
}

/// What user contexts may do with a command, and what is done to it for them.
#[derive(Clone, Copy)]
pub struct User {
    /// Who may send it.
    pub right: Right,
    /// Whether those of tools may, too ([`hca_spec::caps::uctx_cap::TOOLS_RESOURCES`]): what programs ask fwctl for.
    pub tools: bool,
    /// Objects that it names beside its own; `true`: the kernel's are allowed, too.
    pub(super) names: fn(&Call<'_>) -> Vec<(Object, bool)>,
    /// Brings it into the form with pages and DMA addresses if it names user memory. `None`: it does not.
    pub(super) place: fn(&Firmware, &Call<'_>) -> Result<Option<Placed>, Failure>,
    /// Puts what the user gave for the doorbell record instead of its DMA address; the page list is taken out, too.
    pub(super) hide: Option<fn(&mut [u8], u64)>,
}

/// A command in the form in which its handler understands it.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    /// The input with user memory replaced by pages; `None`: as it came.
    pub(crate) input: Option<Vec<u8>>,
    pub(crate) held: Held,
    /// Pages of a user memory, instead of translations.
    pub(crate) user_pages: Option<UserPages>,
}

impl User {
    /// Column of the table: only the kernel.
    pub(super) const KERNEL: Self = Self::with(Right::Kernel);
    /// Column of the table: device owners.
    pub(super) const OWNERS: Self = Self::with(Right::DeviceOwners);
    /// Column of the table: all users.
    pub(super) const ALL: Self = Self::with(Right::Users);

    const fn with(right: Right) -> Self {
        Self { right, tools: false, names: |_| Vec::new(), place: |_, _| Ok(None), hide: None }
    }

    /// Column of the table: the same, and tools.
    pub(super) const fn and_tools(self) -> Self {
        Self { tools: true, ..self }
    }

    /// All users; the command names further objects.
    pub(super) const fn naming(names: fn(&Call<'_>) -> Vec<(Object, bool)>) -> Self {
        Self { names, ..Self::ALL }
    }

    /// The same, and it may name user memory.
    pub(super) const fn placed(
        self,
        place: fn(&Firmware, &Call<'_>) -> Result<Option<Placed>, Failure>,
    ) -> Self {
        Self { place, ..self }
    }

    /// All users; the output shows where a queue or key lies.
    pub(super) const fn hiding(hide: fn(&mut [u8], u64)) -> Self {
        Self { hide: Some(hide), ..Self::ALL }
    }
}

/// Commands that take about the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeClass {
    /// Reports something.
    Query,
    /// Makes an object.
    Create,
    /// Destroys an object.
    Destroy,
    /// Changes an object or a setting.
    Modify,
    /// Moves pages between host and adapter.
    Pages,
    /// Brings the adapter up or down.
    Lifecycle,
    /// Asks an agent.
    Mad,
    /// Anything else.
    Other,
}

/// How a command is executed.
pub(crate) enum Handler {
    /// It changes nothing.
    ReadOnly(fn(&Firmware, &Call<'_>) -> Outcome),
    /// It changes the firmware's state.
    Update(fn(&mut Firmware, &Call<'_>) -> Outcome),
    /// It changes the firmware's state, and the hardware has to follow.
    WithEffects(fn(&mut Firmware, &Call<'_>, &mut Vec<Effect>) -> Outcome),
}

impl Handler {
    pub(super) fn run(&self, fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
        match self {
            Self::ReadOnly(handler) => handler(fw, call),
            Self::Update(handler) => handler(fw, call),
            Self::WithEffects(handler) => handler(fw, call, effects),
        }
    }
}

/// Where a valid input comes from.
pub(crate) enum Template {
    /// Zeros, and the number of its object.
    Object,
    /// That function; header and length are seen to.
    Input(fn(&Fixture) -> Vec<u8>),
    /// The same, one for each type of object.
    Several(fn(&Fixture) -> Vec<Vec<u8>>),
    /// One by that function, but there is none that succeeds, for that reason.
    Refused(fn(&Fixture) -> Vec<u8>, &'static str),
}

/// Where in an input of that opcode a list begins that is kept as it is.
pub fn kept_list(opcode: u16) -> Option<usize> {
    find(Opcode::from_u16(opcode)?).and_then(Command::kept_list)
}

/// Whether the entry of a command of that opcode has all of its input ([`Command::is_inline`]).
pub fn is_inline(opcode: u16) -> bool {
    Opcode::from_u16(opcode).and_then(find).is_some_and(Command::is_inline)
}

/// The input of which these are all bytes.
pub(super) fn whole_input(bytes: &[u8]) -> Input<'_> {
    let at = kept_list((be32(bytes, 0) >> 16) as u16);
    match at.and_then(|at| bytes.split_at_checked(at)) {
        Some((bytes, list)) => Input { bytes, list: List::of(list) },
        None => Input { bytes, list: List::default() },
    }
}

/// A command as it came.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) command: &'static Command,
    pub(crate) op_mod: u32,
    /// Header included.
    pub(crate) input: &'a [u8],
    /// What the adapter keeps as it is ([`Command::kept_list`]): its handler takes it.
    pub(crate) kept: &'a Cell<List>,
    /// Bytes of that.
    pub(crate) kept_len: usize,
    /// Pages of a user memory, instead of translations.
    pub(crate) user_pages: Option<&'a UserPages>,
    /// Room for output, header included.
    pub(crate) output_len: usize,
    /// Whether a page at a bus address is in the host's memory.
    pub(crate) reaches: &'a dyn Fn(u64) -> bool,
}
