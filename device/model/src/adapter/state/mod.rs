//! What an adapter is: its chip, its functions, and what waits in them. Nothing here does anything to another part: that is the executor's, on
//! the floor above.

pub(crate) mod chip;
pub(crate) mod commands;
pub(crate) mod copies;
pub(crate) mod counters;
pub(crate) mod diagnoses;
pub(crate) mod doorbells;
pub(crate) mod event;
pub(crate) mod event_routes;
pub(crate) mod frames;
pub(crate) mod function;
pub(crate) mod groups;
pub(crate) mod outbox;
pub(crate) mod parked;
pub(crate) mod ports;
pub(crate) mod requests;
pub(crate) mod returning;
pub(crate) mod runs;
pub(crate) mod watch;
