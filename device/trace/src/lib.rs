//! What the modelled adapters did, as files that other programs open and as tables and pictures for people.
//!
//! ```text
//! World ─ records ─▶ follow: which work request? ─▶ perfetto: JSON ─▶ explain: a table, picture: SVG
//!       ─ packets ─▶ pcapng
//!       ─ records, commands ─▶ coverage: what drivers use
//!   trace ─▶ report: a page of HTML
//! ```
//!
//! [`Observer`] does all of that for the owner of a world: it has the options of the command line, starts the traces and
//! captures that they name, and takes what the world gathered whenever it is called.
//!
//! Any port can be captured, those of switches included. Not here: Perfetto's own binary format.
#![forbid(unsafe_code)]

pub mod coverage;
pub mod explain;
pub mod observe;
pub mod pcapng;
pub mod perfetto;
pub mod picture;
pub mod report;

mod follow;
mod limit;
mod lines;

pub use limit::size;
pub use observe::{Observer, Options, create_private};
