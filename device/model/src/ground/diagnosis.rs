//! Diagnoses: what a driver did wrong, in words and as data.

use std::fmt;

use hca_spec::ids::{Cqn, Eqn, Qpn};
use hca_spec::rules::Rule;

use crate::ground::node::FunctionRef;
use crate::ground::time::Ps;

/// What a diagnosis is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A queue pair.
    Qp(Qpn),
    /// A completion queue.
    Cq(Cqn),
    /// An event queue.
    Eq(Eqn),
}

impl Subject {
    /// Which kind of object.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Qp(_) => "QP",
            Self::Cq(_) => "CQ",
            Self::Eq(_) => "EQ",
        }
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            Self::Qp(Qpn(n)) | Self::Cq(Cqn(n)) => n,
            Self::Eq(Eqn(n)) => n as u32,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", self.kind(), self.number())
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
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, field, found, expected, rule } = self;
        write!(f, "{subject}: {field}: found {found}, expected {expected} [{}]", rule.name)
    }
}

/// What a diagnosis says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saying {
    /// Why the adapter refused or failed something: it has told the driver, by status, completion or event, or it ignored an access.
    Refused(String),
    /// What an adapter keeps silent about, found by the checker.
    Found(Finding),
}

impl fmt::Display for Saying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(text) => f.write_str(text),
            Self::Found(finding) => finding.fmt(f),
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
}
