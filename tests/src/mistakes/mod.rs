//! Mistakes of a driver's author: each is made through our own driver, and what the adapter says of it is judged.
//!
//! A mistake is a value: what is done, the field that has to be named, and how it is done ([`Act`]). Each is run twice, on adapters
//! of its own: made, and done right, as its *twin*. The twin has to succeed without a word.
//!
//! - `bench`: adapters, our driver and its objects, and the hand that spoils what the driver writes.
//! - one file for each area: a list of mistakes.
//! - `table`: runs all of them, judges and prints.

pub mod bench;
mod completions;
mod doorbells;
mod events;
mod keys;
mod life;
mod mailboxes;
mod pages;
mod pci;
mod peers;
mod queue_pairs;
mod receives;
mod shared;
mod table;
mod work;

use hca_model::Diagnosis;
use hca_spec::command::Opcode;

use bench::{Bench, Command};
pub use table::{Row, Table, run};

/// Which ports the adapters have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// InfiniBand.
    Ib,
    /// Ethernet.
    Eth,
}

/// How a mistake is made.
#[derive(Clone, Copy)]
pub enum Act {
    /// A valid command ([`hca_firmware::commands::Command::template`]), spoiled.
    Command(Opcode, fn(&mut Command)),
    /// Whatever a driver does.
    Driver(fn(&mut Bench)),
    /// The same on a server, with PCI around the adapter; it returns what was said.
    Server(fn(bool) -> Vec<Said>),
}

/// A mistake.
#[derive(Clone, Copy)]
pub struct Mistake {
    /// What is done.
    pub what: &'static str,
    /// The field that has to be named.
    pub field: &'static str,
    /// Which ports the adapters have.
    pub ports: Ports,
    /// How it is done.
    pub act: Act,
    /// Which kind of adapter, if not the usual one.
    pub personality: Option<&'static str>,
    /// What has to be told of what happened just before, if the mistake is only seen by that.
    pub before: Option<&'static str>,
}

impl Mistake {
    /// A command with one thing wrong.
    const fn command(
        what: &'static str,
        field: &'static str,
        opcode: Opcode,
        spoil: fn(&mut Command),
    ) -> Self {
        Self {
            what,
            field,
            ports: Ports::Ib,
            act: Act::Command(opcode, spoil),
            personality: None,
            before: None,
        }
    }

    /// Something that a driver does in several steps.
    const fn driver(what: &'static str, field: &'static str, act: fn(&mut Bench)) -> Self {
        Self { what, field, ports: Ports::Ib, act: Act::Driver(act), personality: None, before: None }
    }

    /// The same; a part of what happened before it is told, too.
    const fn after(self, before: &'static str) -> Self {
        Self { before: Some(before), ..self }
    }

    /// The same on another kind of adapter.
    const fn on(self, personality: &'static str) -> Self {
        Self { personality: Some(personality), ..self }
    }

    /// The same with Ethernet ports.
    const fn on_ethernet(self) -> Self {
        Self { ports: Ports::Eth, ..self }
    }
}

/// What was said, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// All of it.
    pub text: String,
    /// Its parts, if it has them.
    pub parts: Option<SaidParts>,
    /// What happened just before, the oldest first.
    pub before: Vec<String>,
}

/// The five parts of what was said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the part of its name")]
pub struct SaidParts {
    pub object: String,
    pub field: String,
    pub found: String,
    pub expected: String,
    pub rule: String,
}

impl SaidParts {
    /// Whether none of them is missing.
    fn is_whole(&self) -> bool {
        let Self { object, field, found, expected, rule } = self;
        let numbered = object.split_whitespace().last().is_some_and(|number| number.starts_with("0x"));
        numbered && [field, found, expected, rule].iter().all(|part| !part.is_empty()) && found != "another"
    }
}

impl From<&Diagnosis> for Said {
    fn from(Diagnosis { saying, before, .. }: &Diagnosis) -> Self {
        let parts = saying.parts().map(|parts| SaidParts {
            object: parts.subject.to_string(),
            field: parts.field.into(),
            found: parts.found.into(),
            expected: parts.expected.into(),
            rule: parts.rule.into(),
        });
        let before = before.iter().map(|before| before.what.clone()).collect();
        Self { text: saying.to_string(), parts, before }
    }
}

/// Every area and its mistakes.
pub const AREAS: &[(&str, &[Mistake])] = &[
    ("mailboxes", mailboxes::ALL),
    ("life", life::ALL),
    ("pages", pages::ALL),
    ("PCI", pci::ALL),
    ("event queues", events::ALL),
    ("completion queues", completions::ALL),
    ("queue pairs", queue_pairs::ALL),
    ("shared queues", shared::ALL),
    ("keys", keys::ALL),
    ("doorbells", doorbells::ALL),
    ("receive queues", receives::ALL),
    ("work requests", work::ALL),
    ("peers", peers::ALL),
];
