//! The firmware's state and its one entry: a command.

use std::collections::HashSet;

use hca_spec::caps::{Atomic, General, Odp};
use hca_spec::command::{InHeader, Opcode, OutHeader, Status};
use hca_spec::eqe::EventType;
use hca_spec::put_be32;

use crate::commands::{self, Call};
use crate::effect::Effect;
use crate::failure::Failure;
use crate::icm::Icm;
use crate::notice::Notices;
use crate::pages::Pages;
use crate::personality::Personality;
use crate::port::{Port, Role};
use crate::profile::{Config, general_max};

/// How far the driver has brought the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum State {
    /// Before ENABLE_HCA.
    #[default]
    Disabled,
    /// After ENABLE_HCA.
    Enabled,
    /// After INIT_HCA.
    Initialized,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Execution {
    /// Executed: its output, status included.
    Done(Vec<u8>),
    /// No page is left for the object. The command has to be tried again after the next MANAGE_PAGES;
    /// nothing was changed.
    NeedPages,
}

/// Counts of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each counts the objects of its name")]
pub struct Snapshot {
    pub eqs: u32,
    pub cqs: u32,
    pub qps: u32,
    pub srqs: u32,
    pub dcts: u32,
    pub mkeys: u32,
    pub pds: u32,
    pub xrcds: u32,
    pub transport_domains: u32,
    pub uars: u32,
    pub multicast_groups: u32,
    pub user_contexts: u32,
    pub user_memories: u32,
    pub general_objects: u32,
    /// Pages that the host gave and did not get back.
    pub pages: u32,
}

/// Objects that the adapter holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// Now.
    pub now: Snapshot,
    /// When the driver last executed DISABLE_HCA, before anything was dropped: what it left behind.
    pub at_last_teardown: Option<Snapshot>,
}

/// The adapter's firmware.
pub struct Firmware {
    /// The tables of contexts.
    pub icm: Icm,
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) issi: u32,
    pub(crate) general: General,
    pub(crate) general_max: General,
    pub(crate) atomic: Atomic,
    pub(crate) odp: Odp,
    pub(crate) pages: Pages,
    pub(crate) port: Port,
    /// What the subnet manager is told of the port.
    pub(crate) notices: Notices,
    pub(crate) at_last_teardown: Option<Snapshot>,
    /// Objects at TEARDOWN_HCA, until DISABLE_HCA adds the pages.
    pub(crate) teardown_snapshot: Option<Snapshot>,
    unknown: HashSet<u16>,
    refusal: Option<String>,
}

impl Firmware {
    /// An adapter at power-on.
    pub fn new(config: Config) -> Self {
        let general_max = general_max(&config);
        let mut port = Port::new(Role::Adapter, 1, config.port_guid, &config.node_description);
        if let Some(profile) = config.personality.ports.first() {
            port.equip_as(profile);
        }
        Self {
            icm: Icm::new(),
            port,
            notices: Notices::default(),
            state: State::Disabled,
            issi: 0,
            general: general_max,
            general_max,
            atomic: config.personality.capabilities.atomic,
            odp: config.personality.capabilities.odp_initial,
            pages: Pages::default(),
            at_last_teardown: None,
            teardown_snapshot: None,
            unknown: HashSet::new(),
            refusal: None,
            config,
        }
    }

    /// Function level reset: everything to power-on. What the last teardown left is remembered.
    pub fn reset(&mut self) {
        let at_last_teardown = self.at_last_teardown;
        *self = Self::new(self.config.clone());
        self.at_last_teardown = at_last_teardown;
    }

    /// How far the driver has brought the adapter.
    pub fn state(&self) -> State {
        self.state
    }

    /// Of which kind the adapter is.
    pub fn personality(&self) -> &Personality {
        &self.config.personality
    }

    /// Whether send WQEs may come with their doorbell (BlueFlame).
    pub fn blueflame(&self) -> bool {
        self.config.blueflame
    }

    /// What may meet a page that is not present.
    pub fn paging(&self) -> &Odp {
        &self.odp
    }

    /// The port of that number, from 1.
    pub fn port(&self, port: u8) -> Option<&Port> {
        (port == 1).then_some(&self.port)
    }

    /// The port of that number, to count on.
    pub fn port_mut(&mut self, port: u8) -> Option<&mut Port> {
        (port == 1).then_some(&mut self.port)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let icm = &self.icm;
        Snapshot {
            eqs: icm.eqs.len(),
            cqs: icm.cqs.len(),
            qps: icm.qps.len(),
            srqs: icm.srqs.len(),
            dcts: icm.dcts.len(),
            mkeys: icm.mkeys.len(),
            pds: icm.pds.len(),
            xrcds: icm.xrcds.len(),
            transport_domains: icm.tds.len(),
            uars: icm.uars.len(),
            multicast_groups: icm.mcgs.len() as u32,
            user_contexts: icm.users.contexts.len(),
            user_memories: icm.users.umems.len(),
            general_objects: icm.reserved_qpns.len(),
            pages: self.pages.given(),
        }
    }

    /// Objects that the adapter holds.
    pub fn resources(&self) -> Resources {
        Resources { now: self.snapshot(), at_last_teardown: self.at_last_teardown }
    }

    /// Drops every object.
    pub(crate) fn drop_objects(&mut self, effects: &mut Vec<Effect>) {
        self.icm = Icm::new();
        self.pages.account(0);
        effects.push(Effect::AllGone);
    }

    /// Executes a command: `input` with its 16-byte header; the output has at most `output_len` bytes.
    ///
    /// The effects are what the hardware has to follow, in order. A refused command leaves everything
    /// as it was and has no effects but a page request; its output is status and syndrome.
    pub fn execute(&mut self, input: &[u8], output_len: usize, effects: &mut Vec<Effect>) -> Execution {
        let header = InHeader::from_prefix_or_zero(input);
        let number = header.get(InHeader::OPCODE) as u16;
        let Some(opcode) = Opcode::from_u16(number) else {
            if self.unknown.insert(number) {
                self.refusal = Some(format!("unknown command opcode {number:#x}: answered BAD_OP"));
            }
            return Execution::Done(failed(Failure::new(Status::BadOp, "unknown opcode"), output_len));
        };
        let call = Call { opcode, op_mod: header.get(InHeader::OP_MOD), input, output_len };
        let outcome = match commands::admit(self, &call) {
            Err(failure) => Err(failure),
            Ok(admitted) => {
                let inner = Call { input: admitted.input.as_deref().unwrap_or(input), ..call };
                let outcome = match self.check_pages(&inner, effects) {
                    PageCheck::Wait => return Execution::NeedPages,
                    PageCheck::Refuse(failure) => Err(failure),
                    PageCheck::Go => commands::dispatch(self, &inner, effects),
                };
                outcome.map(|mut output| {
                    commands::settle(self, &call, &admitted, &mut output);
                    output
                })
            }
        };
        let mut output = match outcome {
            Ok(output) => output,
            Err(failure) => {
                let (status, syndrome) = (failure.status, failure.syndrome);
                self.refusal = Some(format!("{opcode:?} refused: {failure} ({status:?}, {syndrome:#010x})"));
                failed(failure, output_len)
            }
        };
        if let Some(pages) = self.settle_pages() {
            effects.push(Effect::PageRequest { pages: pages as i32 });
        }
        output.truncate(output_len);
        Execution::Done(output)
    }

    /// Counts what is in use now. How many pages to ask the host for, if any.
    pub(crate) fn settle_pages(&mut self) -> Option<u32> {
        self.pages.account(self.icm_used());
        if self.host_serves_pages() {
            self.pages.want()
        } else {
            self.pages.forget_request();
            None
        }
    }

    /// Whether the pages that the host gave hold what the command creates.
    fn check_pages(&mut self, call: &Call<'_>, effects: &mut Vec<Effect>) -> PageCheck {
        const FULL: Failure =
            Failure::new(Status::ExceedLimit, "the host gave too few pages for this object");
        let Some(bytes) = commands::icm_bytes(call) else { return PageCheck::Go };
        if self.state != State::Initialized || self.pages.has_room(bytes) {
            return PageCheck::Go;
        }
        if !self.host_serves_pages() || self.pages.is_beyond(bytes) || self.pages.take_refusal() {
            return PageCheck::Refuse(FULL.got(bytes));
        }
        if let Some(pages) = self.pages.ask_for(bytes) {
            effects.push(Effect::PageRequest { pages: pages as i32 });
        }
        PageCheck::Wait
    }

    /// Why the command executed last was refused, in plain words; taken by whoever keeps the diagnoses.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }

    /// Whether an event queue asked for page requests.
    fn host_serves_pages(&self) -> bool {
        self.icm.eqs.iter().any(|(_, eq)| eq.wants(EventType::PageRequest as u8))
    }

    /// Bytes of ICM that all objects use.
    fn icm_used(&self) -> u64 {
        let icm = &self.icm;
        u64::from(icm.qps.len()) * commands::QP_BYTES
            + u64::from(icm.cqs.len()) * commands::CQ_BYTES
            + u64::from(icm.srqs.len()) * commands::SRQ_BYTES
            + u64::from(icm.dcts.len()) * commands::DCT_BYTES
            + u64::from(icm.eqs.len()) * commands::EQ_BYTES
            + u64::from(icm.mkeys.len()) * commands::MKEY_BYTES
            + u64::from(icm.pds.len() + icm.xrcds.len() + icm.tds.len()) * commands::DOMAIN_BYTES
            + u64::from(icm.users.contexts.len() + icm.users.umems.len()) * commands::DOMAIN_BYTES
            + u64::from(icm.psvs.len()) * commands::PSV_BYTES
            + icm.translation_bytes
            + icm.page_lists * commands::PAGE_LIST_ENTRY
    }
}

enum PageCheck {
    Go,
    Wait,
    Refuse(Failure),
}

fn failed(failure: Failure, output_len: usize) -> Vec<u8> {
    let mut output = vec![0; OutHeader::SIZE];
    put_be32(&mut output, 0, u32::from(failure.status as u8) << 24);
    put_be32(&mut output, 4, failure.syndrome);
    output.truncate(output_len);
    output
}
