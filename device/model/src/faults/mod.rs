//! What goes wrong on script: to what it happens, and what it does to that.
//!
//! A [`Fault`] says to which things ([`What`]: commands, entries of queues, interrupts, moments) it happens, to which of those
//! ([`Trigger`]) and what becomes of them. Those of an adapter are its [`Script`]. The script decides and remembers; it is asked by
//! wrappers around what the executor does at its seams (`adapter::scripted`), and an adapter without one is not asked at all. The
//! same script, seeds and inputs give the same faults.
//!
//! What goes wrong on a cable by chance, whatever the packet, is the matter of [`crate::link`].

mod dma;
mod firmware;
mod late;
mod module;
mod packet;
mod pcie;
mod spoil;

use hca_firmware::commands::find;
use hca_spec::command::{Delivery, Opcode};
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::eqe::{Eqe, EventType};
use hca_spec::ids::{Cqn, Eqn, Qpn, Rqn};

use crate::ground::epoch::Rebase;
use crate::ground::event::Seam;
use crate::ground::time::Ps;
use crate::ground::trigger::{Firing, Trigger};

pub use dma::DmaAction;
pub(crate) use dma::{Spoiler, SpoiltMemory};
pub use firmware::{Ailment, Assert, Lasting};
pub(crate) use firmware::{Firmware, Restart};
pub(crate) use late::{Place, Places};
pub(crate) use module::ModuleChange;
pub use module::ModuleError;
pub use packet::{Header, PacketAction, packet_named};
pub(crate) use pcie::Pcie;
pub use pcie::{PcieError, PcieEvent, PcieLink, SlotEvent, pcie_error_named};

/// Names a fault of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(pub u32);

/// Something that goes wrong at an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    /// What people call it.
    pub name: String,
    /// To what it happens, and what it does.
    pub what: What,
    /// To which of those.
    pub trigger: Trigger,
}

/// To what a fault happens, and what it does to it.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// Commands.
    Command {
        /// Only those with this opcode.
        opcode: Option<u16>,
        /// Only those about the object with this number.
        object: Option<u32>,
        /// What it does.
        action: CommandAction,
    },
    /// Entries of event queues.
    Event {
        /// Only of this queue.
        eqn: Option<Eqn>,
        /// Only of this type (PRM "Event types").
        kind: Option<u8>,
        /// Only about the queue with this number: of completion events the CQ, of others the QP.
        number: Option<u32>,
        /// Only those that say that the state of this port has changed.
        port: Option<u8>,
        /// What it does.
        action: EntryAction,
    },
    /// Entries of completion queues.
    Completion {
        /// Only of this queue.
        cqn: Option<Cqn>,
        /// Only of the work queue with this number: a QP or an SQ.
        queue: Option<Qpn>,
        /// Only of one side.
        side: Option<Side>,
        /// Only of send WQEs with this opcode.
        wqe: Option<u8>,
        /// What it does.
        action: EntryAction,
    },
    /// Interrupts.
    Interrupt {
        /// Only of this vector.
        vector: Option<u16>,
        /// What it does.
        action: InterruptAction,
    },
    /// Packets that came over a link.
    Packet {
        /// Only those with this header.
        header: Header,
        /// What it does.
        action: PacketAction,
    },
    /// The adapter's accesses to its host's memory.
    Dma {
        /// Only those that touch one of these bytes: from the first bus address to before the second.
        range: Option<(u64, u64)>,
        /// What it does.
        action: DmaAction,
    },
    /// Function level resets.
    Reset {
        /// What the adapter does behind one, instead of being ready.
        action: TimeAction,
    },
    /// Nothing: it happens at [`Trigger::from`], and then every so often, [`Trigger::count`] times in all.
    Time {
        /// How often; `None`: once.
        every: Option<Ps>,
        /// What it does.
        action: TimeAction,
    },
}

/// Which side of a work queue completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Send requests.
    Send,
    /// Receive requests.
    Receive,
}

/// What goes wrong with a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandAction {
    /// It is not executed; its output has this status and this syndrome.
    Fail {
        /// PRM "Command return status".
        status: u8,
        /// The firmware's number of the place that failed.
        syndrome: u32,
    },
    /// It is not executed and never handed back.
    Hang,
    /// It is executed, and handed back so much later.
    Late(Ps),
    /// It is executed; so many bits of its output behind status and syndrome are flipped.
    Corrupt(u32),
    /// It is executed; the entry's signature is wrong.
    Signature,
    /// It is not executed, and handed back with this delivery status.
    Undelivered(Delivery),
}

/// What goes wrong with an entry of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryAction {
    /// It is never made: the next one takes its place.
    Lose,
    /// It is made so much later; others that come meanwhile overtake it. If too many come late at once it is lost.
    Late(Ps),
    /// It is made twice.
    Twice,
    /// So many of its bits are flipped; its owner bit is not, nor its type or opcode.
    Corrupt(u32),
    /// It has this type (of events) or opcode (of completions).
    Kind(u8),
    /// There is no room for it, whatever the consumer index says: the queue overflows.
    Overflow,
    /// Of completions: the work request ends with this error, and its queue goes to error.
    Error {
        /// PRM "Completion with error syndromes".
        syndrome: u8,
        /// The vendor's.
        vendor: u8,
    },
}

/// What goes wrong with an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterruptAction {
    /// It is not raised.
    Lose,
    /// It is raised so much later. If too many come late at once it is lost.
    Late(Ps),
    /// It is raised twice.
    Twice,
    /// Another vector is raised.
    Other(u16),
}

/// What happens of itself.
#[derive(Debug, Clone, PartialEq)]
pub enum TimeAction {
    /// The firmware fails.
    Ail(Ailment),
    /// The adapter is off the bus: what is read from it is all ones, what is written is lost, and no interrupt comes.
    Away(Lasting),
    /// An event that nothing caused.
    Event {
        /// Its type.
        kind: u8,
        /// Its sub-type.
        sub_type: u8,
        /// Its data: bytes 0x20 to 0x3b of the entry (PRM "Event Queue Entry Format").
        data: [u8; EVENT_DATA],
    },
    /// The firmware asks for so many pages, or, if negative, offers to give so many back.
    Pages(i32),
    /// An interrupt that nothing caused.
    Interrupt(u16),
    /// The function detects an error of PCI Express.
    PcieError {
        /// Which.
        error: PcieError,
        /// The header of the TLP that it logs.
        header: [u32; 4],
    },
    /// Something happens to the adapter in its slot.
    Slot {
        /// What.
        event: SlotEvent,
        /// So much later it is put in again; `None`: not of itself.
        back: Option<Ps>,
    },
    /// The PCI Express link trains to another width and speed; it comes back so much later, or never.
    Retrain {
        /// What it trains to.
        link: PcieLink,
        /// How long.
        lasting: Option<Ps>,
    },
    /// The link of a port loses lanes and trains again; it has them back so much later, or never.
    Degrade {
        /// The port.
        port: u8,
        /// Lanes that are left.
        lanes: u8,
        /// How long.
        lasting: Option<Ps>,
    },
    /// A subnet manager changes something at a port.
    Port {
        /// The port.
        port: u8,
        /// What.
        change: PortChange,
    },
    /// What is in the cage of a port can't be used: its link is down.
    Module {
        /// The port.
        port: u8,
        /// Why.
        error: ModuleError,
        /// How long.
        lasting: Lasting,
    },
    /// The chip is as hot as that, and so much later as at rest again.
    Heat {
        /// Degrees Celsius.
        degrees: u8,
        /// How long; `None`: for ever.
        lasting: Option<Ps>,
    },
    /// The cable of a port is taken out there, and put in again so much later.
    Unplug {
        /// The port.
        port: u8,
        /// How long it is out.
        lasting: Lasting,
    },
}

/// What a subnet manager changes at an InfiniBand port (IBTA vol 1 14.2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortChange {
    /// Its LID (PortInfo:LID). The built-in manager keeps to it; switches have no way there.
    Lid(u16),
    /// An entry of its P_Key table (P_KeyTable).
    Pkey {
        /// Which.
        index: u16,
        /// What it is then.
        pkey: u16,
    },
    /// The prefix of its GIDs (PortInfo:GidPrefix).
    GidPrefix(u64),
}

/// Bytes of an event's data.
pub const EVENT_DATA: usize = 0x1c;
/// Where they are in its entry.
const EVENT_DATA_AT: usize = 0x20;

impl TimeAction {
    /// The entry of an event that nothing caused.
    pub(crate) fn eqe(kind: u8, sub_type: u8, data: &[u8; EVENT_DATA]) -> Eqe {
        let mut eqe = Eqe::new();
        eqe.bytes_mut().iter_mut().skip(EVENT_DATA_AT).zip(data).for_each(|(to, from)| *to = *from);
        eqe.set(Eqe::TYPE, kind.into()).set(Eqe::SUB_TYPE, sub_type.into());
        eqe
    }
}

/// What an adapter does later on script, with its place among all that waits. Nobody asks the script again about it.
#[derive(Debug)]
pub(crate) enum Held {
    /// Raise an interrupt.
    Interrupt(u16, Place),
    /// Make an entry of an event queue.
    Event(Eqn, Eqe, Place),
    /// Make an entry of a completion queue, with data.
    Completion(Cqn, Cqe, Vec<u8>, Place),
    /// Both sides of a queue pair go to error, or what it has of them.
    FailQp(Qpn),
    /// A send queue, or that side of a queue pair, goes to error.
    FailSends(Qpn),
    /// A receive queue goes to error.
    FailRq(Rqn),
}

/// How a fault stands.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultReport {
    /// Which.
    pub id: FaultId,
    /// The fault.
    pub fault: Fault,
    /// So many things matched.
    pub seen: u64,
    /// To so many of them it happened.
    pub fired: u64,
}

/// What one fault does, and its place in the world's list.
#[derive(Debug)]
struct Rule {
    id: FaultId,
    fault: Fault,
    firing: Firing,
}

/// A fault happens: what is said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fired {
    pub(crate) id: FaultId,
    pub(crate) seam: Seam,
    pub(crate) object: u32,
    /// How often it happened, with this time.
    pub(crate) times: u64,
}

/// What an action needs random numbers for.
pub(crate) type Random<'a> = &'a mut crate::ground::random::SplitMix64;

/// The faults of an adapter, in the order in which they were added. Of several that match, the first that fires happens, and the others are
/// not asked.
#[derive(Debug, Default)]
pub(crate) struct Script {
    rules: Vec<Rule>,
    pub(crate) firmware: Firmware,
    /// Off the bus until then.
    away: Option<(Ps, Lasting)>,
    /// Of packets that come late.
    pub(crate) late_packets: Places,
    /// Of entries of queues that come late.
    pub(crate) late_entries: Places,
    /// Of interrupts that come late.
    pub(crate) late_interrupts: Places,
    /// Accesses to memory that fail, if there is a fault of that kind.
    pub(crate) spoiler: Option<std::sync::Arc<Spoiler>>,
    pub(crate) pcie: Pcie,
}

impl Script {
    /// The adapter was reset.
    pub(crate) fn was_reset(&mut self) {
        let Self {
            rules: _,
            firmware,
            away,
            late_packets: _,
            late_entries: _,
            late_interrupts: _,
            spoiler: _,
            pcie: _,
        } = self;
        firmware.reset();
        *away = away.filter(|(_, lasting)| *lasting != Lasting::UntilReset);
    }

    pub(crate) fn add(&mut self, id: FaultId, fault: Fault) {
        let firing = Firing::new(fault.trigger.clone());
        if let What::Dma { range, action } = fault.what {
            self.spoiler.get_or_insert_default().add(id, range, action, &fault.trigger);
        }
        self.rules.push(Rule { id, fault, firing });
    }

    /// Forgets a fault. `false`: it is not there.
    pub(crate) fn remove(&mut self, id: FaultId) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.id != id);
        if let Some(spoiler) = &self.spoiler {
            spoiler.remove(id);
        }
        self.rules.len() < before
    }

    pub(crate) fn reports(&self) -> impl Iterator<Item = FaultReport> {
        self.rules.iter().map(|Rule { id, fault, firing }| {
            let of_memory = self.spoiler.as_ref().and_then(|spoiler| spoiler.counts(*id));
            let (seen, fired) = of_memory.unwrap_or((firing.seen, firing.fired));
            FaultReport { id: *id, fault: fault.clone(), seen, fired }
        })
    }

    /// What people call a fault.
    pub(crate) fn name(&self, id: FaultId) -> &str {
        self.rules.iter().find(|rule| rule.id == id).map_or("", |rule| &rule.fault.name)
    }

    /// The first fault that `pick` finds something of and that fires now: what `pick` found.
    fn first<T>(
        &mut self,
        now: Ps,
        (seam, object): (Seam, u32),
        pick: impl Fn(&What) -> Option<T>,
    ) -> Option<(Fired, T, Random<'_>)> {
        self.rules.iter_mut().find_map(|Rule { id, fault, firing }| {
            let found = pick(&fault.what)?;
            let fired = firing.fires(now).then_some(Fired { id: *id, seam, object, times: firing.fired })?;
            Some((fired, found, &mut firing.random))
        })
    }

    /// A command is to be executed.
    pub(crate) fn command(
        &mut self,
        now: Ps,
        opcode: u16,
        object: Option<u32>,
    ) -> Option<(Fired, CommandAction, Random<'_>)> {
        self.first(now, (Seam::Command, opcode.into()), |what| match what {
            What::Command { opcode: wanted, object: about, action }
                if wanted.is_none_or(|wanted| wanted == opcode)
                    && about.is_none_or(|about| object == Some(about)) =>
            {
                Some(*action)
            }
            _ => None,
        })
    }

    /// An event is to be told: its type, the number of its queue, and its port, if it is one of a port.
    pub(crate) fn event(
        &mut self,
        now: Ps,
        eqn: Eqn,
        (kind, number, of_port): (u8, u32, Option<u8>),
    ) -> Option<(Fired, EntryAction, Random<'_>)> {
        self.first(now, (Seam::Event, eqn.0.into()), |what| match what {
            What::Event { eqn: queue, kind: wanted, number: about, port, action }
                if queue.is_none_or(|queue| queue == eqn)
                    && wanted.is_none_or(|wanted| wanted == kind)
                    && about.is_none_or(|about| about == number)
                    && (port.is_none() || *port == of_port) =>
            {
                Some(*action)
            }
            _ => None,
        })
    }

    /// A work request is to complete.
    pub(crate) fn completion(
        &mut self,
        now: Ps,
        cqn: Cqn,
        cqe: &Cqe,
    ) -> Option<(Fired, EntryAction, Random<'_>)> {
        let (queue, at) = (Qpn(cqe.get(Cqe::QPN)), side(cqe));
        let opcode = (at == Side::Send).then(|| cqe.get(Cqe::SEND_WQE_OPCODE) as u8);
        self.first(now, (Seam::Completion, cqn.0), |what| match what {
            What::Completion { cqn: of, queue: wanted, side, wqe, action }
                if of.is_none_or(|of| of == cqn)
                    && wanted.is_none_or(|wanted| wanted == queue)
                    && side.is_none_or(|side| side == at)
                    && wqe.is_none_or(|wqe| opcode == Some(wqe)) =>
            {
                Some(*action)
            }
            _ => None,
        })
    }

    /// An interrupt is to be raised.
    pub(crate) fn interrupt(&mut self, now: Ps, vector: u16) -> Option<(Fired, InterruptAction)> {
        let found = self.first(now, (Seam::Interrupt, vector.into()), |what| match what {
            What::Interrupt { vector: wanted, action } if wanted.is_none_or(|wanted| wanted == vector) => {
                Some(*action)
            }
            _ => None,
        });
        found.map(|(fired, action, _)| (fired, action))
    }

    /// A function was reset: what it does instead of being ready.
    pub(crate) fn reset(&mut self, now: Ps) -> Option<(Fired, TimeAction)> {
        let found = self.first(now, (Seam::Reset, 0), |what| match what {
            What::Reset { action } => Some(action.clone()),
            _ => None,
        });
        found.map(|(fired, action, _)| (fired, action))
    }

    /// The time of a fault has come: what it does, and when its next time is.
    pub(crate) fn time(&mut self, now: Ps, id: FaultId) -> Option<(Fired, TimeAction, Option<Ps>)> {
        let rule = self.rules.iter_mut().find(|rule| rule.id == id)?;
        let What::Time { every, action } = &rule.fault.what else { return None };
        if !rule.firing.fires(now) {
            return None;
        }
        let next = every.filter(|_| !rule.firing.is_over()).map(|every| now + every.max(Ps(1)));
        let fired = Fired { id, seam: Seam::Time, object: 0, times: rule.firing.fired };
        Some((fired, action.clone(), next))
    }

    /// The adapter is off the bus from now on.
    pub(crate) fn leave(&mut self, now: Ps, lasting: Lasting) {
        self.away = Some((lasting.end(now), lasting));
    }

    /// The adapter is on the bus again.
    pub(crate) fn come_back(&mut self) {
        self.away = None;
    }

    /// Whether the adapter is off the bus.
    pub(crate) fn is_away(&self, now: Ps) -> bool {
        self.away.is_some_and(|(until, _)| now < until)
    }
}

/// Which side of its queue an entry is of.
pub(crate) fn side(cqe: &Cqe) -> Side {
    match CqeOpcode::from_bits(cqe.get(Cqe::OPCODE)) {
        Some(CqeOpcode::Req | CqeOpcode::ReqErr) => Side::Send,
        _ => Side::Receive,
    }
}

/// The entry of a work request that ends with that error instead.
pub(crate) fn error_cqe(cqe: &Cqe, syndrome: u8, vendor: u8) -> Cqe {
    let opcode = match side(cqe) {
        Side::Send => CqeOpcode::ReqErr,
        Side::Receive => CqeOpcode::RespErr,
    };
    let mut error = *cqe;
    error.set(Cqe::TIMESTAMP, 0).set(Cqe::BYTE_CNT, 0).set(Cqe::OPCODE, opcode as u32);
    error.set(Cqe::SYNDROME, syndrome.into()).set(Cqe::VENDOR_ERR_SYND, vendor.into());
    error
}

/// The vendor's syndrome that comes with a syndrome most often; 0 if that is not known.
pub fn vendor_of(syndrome: u8) -> u8 {
    Syndrome::from_bits(syndrome.into()).map_or(0, Syndrome::vendor)
}

/// The opcode of the command with that name in the PRM.
pub fn opcode_named(name: &str) -> Option<u16> {
    let mut all = Opcode::ALL.iter().filter_map(|opcode| find(*opcode));
    all.find(|command| command.name == name).map(|command| command.opcode as u16)
}

/// The type of an event by a name for it.
pub fn event_named(name: &str) -> Option<u8> {
    let kind = match name {
        "completion" => EventType::Completion,
        "cq-error" => EventType::CqError,
        "port-change" => EventType::PortChange,
        "command" => EventType::CommandCompletion,
        "page-request" => EventType::PageRequest,
        "page-fault" => EventType::PageFault,
        "port-module" => EventType::PortModule,
        "temperature" => EventType::TemperatureWarning,
        _ => return None,
    };
    Some(kind as u8)
}

pub(crate) use spoil::flip_bits;

impl Rebase for Rule {
    fn rebase(&mut self, by: Ps) {
        let Self { id: _, fault: _, firing } = self;
        firing.rebase(by);
    }
}

impl Rebase for Script {
    fn rebase(&mut self, by: Ps) {
        let Self {
            rules,
            firmware,
            away,
            late_packets: _,
            late_entries: _,
            late_interrupts: _,
            spoiler,
            pcie: _,
        } = self;
        rules.rebase(by);
        if let Some(spoiler) = spoiler {
            spoiler.rebase(by);
        }
        firmware.rebase(by);
        if let Some((until, _)) = away {
            until.rebase(by);
        }
    }
}
