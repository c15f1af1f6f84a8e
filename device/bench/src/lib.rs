//! perftest without a guest: programs on hosts, adapters and cables of the model, in virtual time.
//!
//! A [`Scenario`] says what runs where; a [`mod@file`] has many. [`testbed`] builds its world and brings it up through our own driver: rings in
//! memory, doorbells, CQEs, nothing is short-circuited. [`program`]s then post work requests and look for completions
//! at the pace that a [`host`] description gives their processor, and what they see becomes an [`Outcome`].
//!
//! [`in_process`] is the bus between driver and model. Links, ports and the switch are the model's own, InfiniBand or Ethernet
//! ([`mod@link`]). [`stats`] computes percentiles and ranks.
//!
//! [`stations`] are hosts with Ethernet queues, whose programs send and receive frames. [`registration`] has what a thread needs to register memory by work
//! requests.
//!
//! [`cluster`] has hosts on an engine that is somebody else's, all at once: parts of large topologies in processes of their own.
//!
//! [`incast`] has many hosts that write to one over switches, and what holds them back.
//!
//! [`pcie`] has transfers over the PCIe link alone.
//!
//! [`compare`] judges the model: published [`rows`] become scenarios by a [`map`] of rules; [`plot`] draws curves. What its
//! [`numbers`] move is [`sensitivity`], what they are worth where nobody fitted them [`cross`]; [`breakdown`] is where the time of an operation goes.
//!
//! Not here: more than one port of an adapter (two ports are a link of twice the width), interrupts (programs poll).
#![forbid(unsafe_code)]

pub mod breakdown;
mod check;
pub mod cli;
pub mod cluster;
pub mod compare;
pub mod cross;
mod dynamic;
pub mod file;
pub mod host;
pub mod in_process;
pub mod incast;
pub mod judge;
pub mod link;
pub mod map;
pub mod numbers;
pub mod outcome;
pub mod pcie;
pub mod plot;
pub mod program;
pub mod registration;
pub mod rows;
pub mod scenario;
pub mod sensitivity;
pub mod stations;
pub mod stats;
pub mod sweeps;
pub mod testbed;
pub mod whatif;

pub use outcome::Outcome;
pub use scenario::Scenario;

/// Why a scenario did not run or a file could not be used: what, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl Error {
    /// An error in these words.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// The same error, found there.
    #[must_use]
    pub fn at(self, place: impl std::fmt::Display) -> Self {
        Self(format!("{place}: {}", self.0))
    }
}

impl From<hca_driver::Error> for Error {
    fn from(error: hca_driver::Error) -> Self {
        Self(format!("the driver says: {error}"))
    }
}
