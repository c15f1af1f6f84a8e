//! A small reference driver for the adapter, to read before writing one for a new operating system.
//!
//! The core is `no_std` + `alloc`, has no global state and no `unsafe`: whatever touches hardware lies
//! behind one trait, [`Bus`] (registers, DMA memory, a way to let time pass). It needs only `hca-spec`,
//! the programmer's interface as code; it knows nothing of the model it is usually tested against.
//!
//! The flow, in reading order:
//!
//! 1. [`bus`]: what a port provides.
//! 2. [`cmdq`]: commands. A 64-byte entry, chains of 512-byte mailboxes, a doorbell, an ownership bit.
//! 3. [`hca`]: [`Hca::open`] brings the adapter up (initialization segment, command queue, pages for the
//!    firmware, capabilities, INIT_HCA, UAR page, event queues); [`Hca::close`] takes it down again.
//! 4. [`pages`]: memory that the firmware borrows.
//! 5. [`events`]: event queues; commands complete through one once it exists.
//! 6. [`mr`]: protection domains and memory keys. [`cq`]: completion queues.
//! 7. [`qp`] and [`wqe`]: queue pairs, their state machine and their work queue entries. [`srq`]: shared
//!    receive queues.
//! 8. [`umr`], [`mw`], [`odp`]: keys that work requests change; windows; memory that comes page by page. [`sig`]:
//!    signatures of blocks. [`crypto`]: encrypted data. [`device_memory`]: memory of the adapter's own. [`sched`]: groups of queues that keep to rates.
//! 9. [`mad`]: asking the port about itself.
//! 10. [`eth`]: ports that are Ethernet: queues of frames, where frames are steered to, and the addresses of RoCE.
//!
//! With the feature `vfio-user`, `VfioUserBus` drives an adapter behind a vfio-user socket.
//!
//! A program connects two queue pairs like this:
//!
//! ```text
//! let mut hca = Hca::open(bus, Config::default())?;
//! let pd = hca.alloc_pd()?;
//! let mut cq = hca.create_cq(CqConfig::new(256))?;
//! let mut qp = hca.create_qp(&QpConfig::rc(pd, &cq, &cq))?;
//! hca.qp_to_init(&mut qp, &InitAttr::default())?;
//! hca.qp_to_rtr(&mut qp, &RtrAttr::new(peer_qpn, Path::lid(peer_lid)))?;
//! hca.qp_to_rts(&mut qp, &RtsAttr::default())?;
//! qp.post_send(hca.bus_mut(), &SendRequest::send(1, &[sge]))?;
//! let done = loop { if let Some(c) = cq.poll() { break c } else { hca.wait(None) } };
//! let wr_id = qp.finish(&done);
//! ```
//!
//! One thread at a time drives an adapter: every call that touches it takes `&mut Hca` or `&mut Bus`.
//! Queues are bus-contiguous memory; registered memory may be any list of pages.
//!
//! Health recovery is left to the caller; see [`Hca::health`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "vfio-user"))]
extern crate std;

pub mod arena;
pub mod bus;
pub mod cmdq;
pub mod counters;
pub mod cq;
pub mod crypto;
pub mod dct;
pub mod device_memory;
pub mod error;
pub mod eth;
pub mod events;
mod general_object;
pub mod hca;
pub mod mad;
pub mod mr;
pub mod mw;
pub mod odp;
pub mod pages;
pub mod qp;
pub mod sched;
pub mod sig;
pub mod srq;
pub mod tags;
pub mod umr;
#[cfg(feature = "vfio-user")]
pub mod vfio_user;
pub mod wqe;

pub use bus::{Bus, Dma};
pub use counters::{CounterSet, Counters};
pub use cq::{Completion, Cq, CqConfig, CqOptions, Failure, InlineData, Moderation, Side};
pub use crypto::DataKey;
pub use dct::{Dct, DctConfig, Target};
pub use error::Error;
pub use events::{Eq, Event};
pub use hca::{Config, Hca, Health};
pub use mr::{Access, Mr};
pub use mw::{Opening, Window, WindowType};
pub use odp::{FaultPlace, Implicit, OnDemand, PageFault, Registrar};
pub use qp::{InitAttr, Path, Qp, QpConfig, RtrAttr, RtsAttr, ScatterToCqe};
pub use sig::SignatureError;
pub use srq::{Srq, XrcSrqConfig};
pub use tags::{TagChange, TagList, TagQueueConfig, TagReport};
pub use umr::{KeyChange, KeyKind};
pub use wqe::{AtomicSize, Datagram, Payload, SendOp, SendRequest, Sge};

/// The adapter's own page size: page lists name 4 KiB pages (PRM "Memory Key Context").
pub const PAGE_SIZE: usize = 4096;

#[cfg(test)]
mod fake;
