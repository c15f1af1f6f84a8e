//! Frames carried out: what the Ethernet queues of a function send and receive beside its transport.
//!
//! ```text
//! arrive ─▶ steer: flow tables, TIRs, hash ─▶ (merge: LRO) ─▶ (pipelines, a unit) ─▶ receive: a queue's WQE, memory, completion
//! send: a WQE ─▶ its frames ─▶ port
//! tables: what sniffers see both ways, and RoCE packets on their way to and from the transport
//! ```

mod arrive;
mod count;
mod merge;
mod receive;
mod send;
mod steer;
mod tables;

pub(super) use count::{Way, count_frame, count_unicast};
