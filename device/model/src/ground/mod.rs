//! What everything else stands on: time, random numbers, names of nodes, numbers of profiles, what a trace says, and the
//! interface to a host's memory. Nothing here knows an engine.

pub(crate) mod diagnosis;
pub mod dma;
pub(crate) mod epoch;
pub(crate) mod event;
pub(crate) mod node;
pub(crate) mod outstanding;
pub(crate) mod random;
pub(crate) mod rate;
pub(crate) mod record;
pub(crate) mod region;
pub(crate) mod ring;
pub(crate) mod slots;
pub mod time;
pub mod timing;
pub(crate) mod trigger;
