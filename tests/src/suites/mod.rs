//! Suites: everything that judges the adapter, most of it written by others, run to the end and counted.
//!
//! A [`Suite`] gives a list of [`Case`]s; [`report`] makes the table. Suites in guests are lists of commands
//! ([`tools`], [`perftest`]) that [`guest`] runs, or programs of their own ([`rdma_core`]). What the unit and
//! integration tests check is not repeated here, except where a suite is the long form of a test.

pub mod adversary;
pub mod all_to_all;
pub mod any;
pub mod cm;
pub mod covered;
pub mod diagnosed;
pub mod dpdk;
pub mod ethernet;
mod expansion_rom;
pub mod fabric;
pub mod faults;
pub mod guest;
pub mod hpc;
pub mod ipoib;
pub mod kernels;
pub mod killed;
pub mod known;
pub mod lossy;
pub mod management;
pub mod million;
pub mod namespaces;
pub mod netsim;
pub mod orchestration;
pub mod package;
pub mod peers;
pub mod perftest;
pub mod rdma_core;
pub mod report;
pub mod sim;
mod sim_hosts;
mod sim_speed;
mod simulators;
pub mod storage;
mod strangers;
pub mod timing;
pub mod tools;

use serde::Serialize;

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should.
    Passed,
    /// Not as it should.
    Failed,
    /// Not run, for a reason that is known.
    Skipped,
}

/// One case of a suite.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// Unique in its suite.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Seconds of wall time.
    pub seconds: f64,
    /// Why it failed or was skipped, or what was seen.
    pub detail: String,
    /// What adapters diagnosed of drivers and programs meanwhile.
    pub diagnoses: Vec<String>,
}

impl Case {
    /// A case that has ended.
    pub fn new(name: impl Into<String>, outcome: Outcome, seconds: f64, detail: impl Into<String>) -> Self {
        Self { name: name.into(), outcome, seconds, detail: detail.into(), diagnoses: Vec::new() }
    }

    /// A case that passes if there is nothing to say against it.
    pub fn check(name: impl Into<String>, complaint: impl Into<String>) -> Self {
        let complaint = complaint.into();
        let outcome = if complaint.is_empty() { Outcome::Passed } else { Outcome::Failed };
        Self::new(name, outcome, 0.0, complaint)
    }
}

/// What is run on demand.
pub struct Suite {
    /// Names it on the command line.
    pub name: &'static str,
    /// What it judges.
    pub about: &'static str,
    /// Is it run once for each kernel?
    pub needs_guests: bool,
    /// Runs it, with a kernel's series if it needs guests.
    pub run: fn(kernel: &str) -> Vec<Case>,
}

/// Kernels that suites in guests run on, unless told otherwise: those of Debian 13 and 12.
pub const KERNELS: [&str; 2] = ["6.12", "6.1"];

/// All suites, quick ones first.
pub fn all() -> Vec<Suite> {
    let guests = true;
    vec![
        Suite {
            name: "netsim",
            about: "RC, UC and UD between up to 16 adapters under every fault, in virtual time",
            needs_guests: false,
            run: |_| netsim::cases(),
        },
        Suite {
            name: "all-to-all",
            about: "everyone to everyone among 64 adapters behind 8 switches, in virtual time",
            needs_guests: false,
            run: |_| all_to_all::cases(),
        },
        Suite {
            name: "sim",
            about: "one topology simulated by 1, 2, 4 and 8 processes, and hosts elsewhere: the same events, packets and completions; SimBricks' switches and orchestration",
            needs_guests: false,
            run: |_| sim::cases(),
        },
        Suite {
            name: "timing",
            about: "the modelled times against published measurements, in virtual time",
            needs_guests: false,
            run: |_| timing::cases(),
        },
        Suite {
            name: "million",
            about: "a million queue pairs and completion queues through a socket, and the server's memory",
            needs_guests: false,
            run: |_| million::cases(),
        },
        Suite {
            name: "adversary",
            about: "attacks of tenants on a server, and what another tenant sees meanwhile",
            needs_guests: false,
            run: |_| adversary::cases(),
        },
        Suite {
            name: "package",
            about: "the Debian package: installed where systemd runs, started, attached to, scraped, purged",
            needs_guests: guests,
            run: package::cases,
        },
        Suite {
            name: "tools",
            about: "ibverbs-utils, infiniband-diags and qperf, in one guest and between two",
            needs_guests: guests,
            run: tools::cases,
        },
        Suite {
            name: "perftest",
            about: "every perftest program, transport and mode, in one guest and between two",
            needs_guests: guests,
            run: perftest::cases,
        },
        Suite {
            name: "rdma-core",
            about: "rdma-core's own tests (pyverbs)",
            needs_guests: guests,
            run: rdma_core::cases,
        },
        Suite {
            name: "fabric",
            about: "OpenSM, infiniband-diags and ibdiagnet on subnets of two and three hosts",
            needs_guests: guests,
            run: fabric::cases,
        },
        Suite {
            name: "ipoib",
            about: "IP over InfiniBand, in datagram and connected mode",
            needs_guests: guests,
            run: ipoib::cases,
        },
        Suite {
            name: "cm",
            about: "the RDMA connection manager: rdmacm-utils, and perftest with -R",
            needs_guests: guests,
            run: cm::cases,
        },
        Suite {
            name: "ethernet",
            about: "Ethernet ports: offloads, VLANs, channels, what ethtool and devlink change, RoCE, soft-RoCE at the other end",
            needs_guests: guests,
            run: ethernet::cases,
        },
        Suite {
            name: "dpdk",
            about: "DPDK's testpmd between two adapters of a guest, and its test of flow rules",
            needs_guests: guests,
            run: dpdk::cases,
        },
        Suite {
            name: "storage",
            about: "NVMe over Fabrics, SRP and NFS over RDMA, and RDS, by the kernels of two guests; a mixed topology",
            needs_guests: guests,
            run: storage::cases,
        },
        Suite {
            name: "faults",
            about: "adapters that fail on script, and what the stock driver makes of it",
            needs_guests: guests,
            run: faults::cases,
        },
        Suite {
            name: "any",
            about: "what drivers and programs met that nobody had tried before: modules, packages, UCX, the launcher",
            needs_guests: guests,
            run: any::cases,
        },
        Suite {
            name: "hpc",
            about: "UCX over each transport, Open MPI and MPICH with checked data, libfabric, in a guest and between two",
            needs_guests: guests,
            run: hpc::cases,
        },
        Suite {
            name: "management",
            about: "mstflint's tools, devlink, lasting settings, firmware updates",
            needs_guests: guests,
            run: management::cases,
        },
        Suite {
            name: "kernels",
            about: "every kernel of the archives in reach, of all flavours: bring-up, ping-pong, reload",
            needs_guests: false,
            run: |_| kernels::cases(),
        },
        Suite {
            name: "killed",
            about: "applications killed in the middle of traffic leave nothing behind",
            needs_guests: guests,
            run: killed::cases,
        },
        Suite {
            name: "lossy",
            about: "a link that loses one packet in twenty, between two guests",
            needs_guests: guests,
            run: lossy::cases,
        },
    ]
}
