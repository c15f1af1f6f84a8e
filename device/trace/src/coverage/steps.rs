//! Bring-up as a checklist, from the first register to the way down.
//!
//! Source: PRM "Driver Start-up", "Driver Tear-down"; `specs/doc`, whose page each step names.

/// How a step is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The register at that offset is read.
    Read(u32),
    /// The register at that offset is written.
    Written(u32),
    /// The command of that name, with that modifier if one is named, is answered.
    Command(&'static str, Option<u32>),
    /// A queue pair gets to that state.
    State(&'static str),
    /// An event of the trace has that name.
    Event(&'static str),
    /// The port gets to that state of PortInfo.
    Port(u64),
}

/// Whether a driver has to take a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Without it what follows is refused, or nothing happens.
    Required,
    /// It may be left out.
    Optional,
    /// Hardware needs it, or may; this adapter works without.
    NotEnforced,
}

impl Need {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
            Self::NotEnforced => "not enforced",
        }
    }
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// How it is seen.
    pub sign: Sign,
    /// Whether it has to be taken.
    pub need: Need,
    /// Page of `specs/doc` that explains it.
    pub page: &'static str,
}

const fn step(name: &'static str, sign: Sign, need: Need, page: &'static str) -> Step {
    Step { name, sign, need, page }
}

use Need::{NotEnforced, Optional, Required};
use Sign::{Command, Event, Port, Read, State, Written};

/// Every step, in the order in which drivers take them.
pub const STEPS: &[Step] = &[
    step("wait for the firmware", Read(0x1fc), NotEnforced, "init-segment.md"),
    step("command interface revision", Read(0x4), NotEnforced, "init-segment.md"),
    step("command queue's address, high", Written(0x10), Required, "init-segment.md"),
    step("command queue's address, low", Written(0x14), Required, "init-segment.md"),
    step("command doorbell", Written(0x18), Required, "command-queue.md"),
    step("ENABLE_HCA", Command("ENABLE_HCA", None), Required, "commands.md"),
    step("QUERY_ISSI", Command("QUERY_ISSI", None), Optional, "commands.md"),
    step("SET_ISSI", Command("SET_ISSI", None), Optional, "commands.md"),
    step("boot pages: how many", Command("QUERY_PAGES", Some(1)), NotEnforced, "commands.md"),
    step("pages are given", Command("MANAGE_PAGES", Some(1)), Required, "commands.md"),
    step("capabilities", Command("QUERY_HCA_CAP", None), NotEnforced, "capabilities.md"),
    step("SET_HCA_CAP", Command("SET_HCA_CAP", None), Optional, "capabilities.md"),
    step("init pages: how many", Command("QUERY_PAGES", Some(2)), NotEnforced, "commands.md"),
    step("INIT_HCA", Command("INIT_HCA", None), Required, "commands.md"),
    step("SET_DRIVER_VERSION", Command("SET_DRIVER_VERSION", None), Optional, "commands.md"),
    step("QUERY_ADAPTER", Command("QUERY_ADAPTER", None), Optional, "commands.md"),
    step("ALLOC_UAR", Command("ALLOC_UAR", None), Required, "uar.md"),
    step("CREATE_EQ", Command("CREATE_EQ", None), Required, "eqe.md"),
    step("event queue armed", Event("EQ consumed"), Optional, "eqe.md"),
    step("first event", Event("EQE"), Optional, "eqe.md"),
    step("first interrupt", Event("interrupt"), Optional, "pci.md"),
    step("port active", Port(4), Required, "mad.md"),
    step("ALLOC_PD", Command("ALLOC_PD", None), Required, "mkc.md"),
    step("CREATE_MKEY", Command("CREATE_MKEY", None), Required, "mkc.md"),
    step("CREATE_CQ", Command("CREATE_CQ", None), Required, "cqe.md"),
    step("CREATE_QP", Command("CREATE_QP", None), Required, "qpc.md"),
    step("a queue pair in INIT", State("Init"), Required, "qpc.md"),
    step("a queue pair in RTR", State("Rtr"), Required, "qpc.md"),
    step("a queue pair in RTS", State("Rts"), Required, "qpc.md"),
    step("completion queue armed", Event("arm"), Optional, "uar.md"),
    step("first send doorbell", Event("doorbell"), Required, "uar.md"),
    step("first completion", Event("CQE"), Required, "cqe.md"),
    step("DESTROY_QP", Command("DESTROY_QP", None), NotEnforced, "reset.md"),
    step("DESTROY_CQ", Command("DESTROY_CQ", None), NotEnforced, "reset.md"),
    step("DESTROY_EQ", Command("DESTROY_EQ", None), NotEnforced, "reset.md"),
    step("TEARDOWN_HCA", Command("TEARDOWN_HCA", None), NotEnforced, "reset.md"),
    step("pages are taken back", Command("MANAGE_PAGES", Some(2)), NotEnforced, "reset.md"),
    step("DISABLE_HCA", Command("DISABLE_HCA", None), NotEnforced, "reset.md"),
];
