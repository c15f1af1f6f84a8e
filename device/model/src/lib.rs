//! The adapter's hardware as a sans-IO discrete-event model.
#![forbid(unsafe_code)]

pub mod fabric;
pub mod time;
pub mod timing;
pub mod wire;

pub use time::Ps;
