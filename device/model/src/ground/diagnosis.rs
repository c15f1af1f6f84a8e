//! Diagnoses: what a driver did wrong, in words and as data.

use std::borrow::Cow;
use std::fmt;

use hca_firmware::Refusal;
use hca_spec::ids::{Cqn, Eqn, Qpn};
use hca_spec::rules::Rule;

use crate::ground::node::FunctionRef;
use crate::ground::time::Ps;

/// What a diagnosis is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    kind: &'static str,
    number: u32,
}

impl Subject {
    /// An object of that kind and number.
    pub const fn new(kind: &'static str, number: u32) -> Self {
        Self { kind, number }
    }

    /// A queue pair.
    pub const fn qp(qpn: Qpn) -> Self {
        Self::new("QP", qpn.0)
    }

    /// A completion queue.
    pub const fn cq(cqn: Cqn) -> Self {
        Self::new("CQ", cqn.0)
    }

    /// An event queue.
    pub const fn eq(eqn: Eqn) -> Self {
        Self::new("EQ", eqn.0 as u32)
    }

    /// The command in that slot.
    pub const fn command(slot: u8) -> Self {
        Self::new("command slot", slot as u32)
    }

    /// Which kind of object.
    pub const fn kind(self) -> &'static str {
        self.kind
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.number
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", self.kind, self.number)
    }
}

/// A rule that was broken: where, by what, and what the rule wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The object.
    pub subject: Subject,
    /// Its field, or what of it.
    pub field: &'static str,
    /// What is there.
    pub found: String,
    /// What would be right.
    pub expected: String,
    /// The rule.
    pub rule: &'static Rule,
    /// By what else than the object the checker finds what happened before.
    pub clue: Option<Clue>,
}

/// What explains a finding beside its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clue {
    /// The adapter did not reach this bus address: the host may have taken it away.
    Unreached(u64),
    /// It is about that object, too: it may have been destroyed.
    Object(Subject),
}

impl Finding {
    /// Of these parts.
    pub fn new(
        subject: Subject,
        field: &'static str,
        found: impl Into<String>,
        expected: impl Into<String>,
        rule: &'static Rule,
    ) -> Self {
        Self { subject, field, found: found.into(), expected: expected.into(), rule, clue: None }
    }

    /// The same with a clue.
    pub fn with(self, clue: Clue) -> Self {
        Self { clue: Some(clue), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, field, found, expected, rule, clue: _ } = self;
        write!(f, "{subject}: {field}: found {found}, expected {expected} [{}]", rule.name)
    }
}

/// A command that the firmware has refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCommand {
    /// The slot of the command queue that it was in.
    pub slot: u8,
    /// Why.
    pub refusal: Refusal,
}

/// What a diagnosis says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saying {
    /// A command was refused: its status and syndrome told the driver.
    Command(RefusedCommand),
    /// The adapter has answered a mistake, by a completion, a delivery status or an event, or it ignored an access.
    Answered(Finding),
    /// The same where no rule has a name: in words.
    Refused(String),
    /// What an adapter keeps silent about, found by the checker.
    Found(Finding),
}

/// What a diagnosis says, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The object.
    pub subject: Subject,
    /// Its field, or what of it.
    pub field: &'static str,
    /// What is there.
    pub found: &'a str,
    /// What would be right.
    pub expected: &'a str,
    /// Name of the rule that was broken; of a command, the syndrome that stands for it.
    pub rule: Cow<'static, str>,
    /// Page of `specs/doc` that explains the rule.
    pub page: &'static str,
    /// The rule in a sentence.
    pub says: &'static str,
}

/// Page of the reasons of refused commands.
const COMMANDS: &str = "command-reference.md";

impl Saying {
    /// Object, field, what was found and expected, and the rule. `None`: it is in words alone.
    pub fn parts(&self) -> Option<Parts<'_>> {
        match self {
            Self::Refused(_) => None,
            Self::Command(RefusedCommand { slot, refusal }) => Some(Parts {
                subject: match refusal.object {
                    Some((kind, number)) => Subject::new(kind.name(), number),
                    None => Subject::command(*slot),
                },
                field: refusal.field,
                found: &refusal.found,
                expected: &refusal.expected,
                rule: format!("{:#010x}", refusal.syndrome).into(),
                page: COMMANDS,
                says: refusal.why,
            }),
            Self::Answered(Finding { subject, field, found, expected, rule, clue: _ })
            | Self::Found(Finding { subject, field, found, expected, rule, clue: _ }) => Some(Parts {
                subject: *subject,
                field,
                found,
                expected,
                rule: rule.name.into(),
                page: rule.page,
                says: rule.says,
            }),
        }
    }

    /// Whether the adapter has told the driver, or has ignored an access: otherwise only the checker says it.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Self::Found(_))
    }
}

impl fmt::Display for Saying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(RefusedCommand { slot, refusal }) => match refusal.object {
                Some(_) => refusal.fmt(f),
                None => write!(f, "{}: {refusal}", Subject::command(*slot)),
            },
            Self::Refused(text) => f.write_str(text),
            Self::Answered(finding) | Self::Found(finding) => finding.fmt(f),
        }
    }
}

/// A mistake of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// When it was seen.
    pub at: Ps,
    /// Whose driver.
    pub function: FunctionRef,
    /// What.
    pub saying: Saying,
    /// What happened just before, the oldest first; nothing without a checker.
    pub before: Vec<Before>,
}

/// What happened before something was diagnosed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    /// When.
    pub at: Ps,
    /// What, in words.
    pub what: String,
}
