//! The commands: one table with a row for each, one file for each family of objects.
//!
//! ```text
//! execute: opcode -> row (table) -> rights and user memory (devx) -> lengths, state -> pages -> handler
//! ```
//!
//! From the ground up: [`row`] (what a row says), `fixture` (what templates name), `call` (inputs and outputs), the families,
//! `devx`, [`table`], `execute`; `report` for who looks on.

mod access_reg;
mod buffer_reg;
mod call;
mod congestion;
mod counter_reg;
mod cq;
mod crypto;
mod dct;
mod devx;
mod domains;
pub mod dump_reg;
mod eq;
mod ethernet_reg;
mod execute;
mod fixture;
mod flow_counter;
mod flow_entry;
mod flow_group;
mod flow_object;
mod flow_table;
mod functions;
mod general_object;
mod hca;
pub mod icmd;
mod mad;
mod management_reg;
mod mcg;
mod memic;
pub(crate) mod mkey;
mod moderation;
mod module_reg;
mod nic_vport;
mod odp;
mod pacing;
mod pages;
mod pddr;
mod priority_reg;
mod psv;
mod q_counter;
mod qp;
mod qp_transition;
mod register;
mod report;
mod rewrite;
mod roce_address;
pub mod row;
mod rq;
mod rqt;
mod scheduling;
mod sq;
mod srq;
mod strides;
pub mod table;
#[cfg(test)]
pub(crate) mod testing;
mod tir;
mod tis;
mod tracer_reg;
mod vport;
mod vxlan;
mod xrq;

pub use fixture::Fixture;
pub use row::{Action, Command, Right, Subject, TimeClass, is_inline, kept_list};
pub use table::{TABLE, find, maker};
