//! State machines of an adapter.
//!
//! An engine has its own state, and may look at contexts and ports through a [`view::View`]. It reaches no memory, books no
//! unit and sends nothing: its functions return what is to be done, [`crate::adapter`] does it and tells the engine the
//! outcome.

pub(crate) mod blueflame;
pub(crate) mod command;
pub(crate) mod compress;
pub(crate) mod cq;
pub(crate) mod crypto;
pub(crate) mod eq;
pub(crate) mod gateway;
pub(crate) mod mkey;
pub mod nic;
pub(crate) mod pieces;
pub(crate) mod qp;
pub(crate) mod registers;
pub(crate) mod signature;
pub(crate) mod view;
