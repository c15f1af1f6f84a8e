//! Fuzzing: eleven functions that take arbitrary bytes and drive the real code with them.
//!
//! | function | what the bytes become |
//! |---|---|
//! | [`command_mailbox`] | commands, changed from valid ones, for the firmware |
//! | [`fields`] | commands and registers by their fields, as the table of commands and the layouts have them |
//! | [`entries`] | entries of flow tables and lists of changes that drivers write themselves, and frames that pass them |
//! | [`wqe`] | work queue entries, doorbell records, doorbells and commands of a guest |
//! | [`mmio`] | reads and writes of BAR0, and of the memory that the command queue points to |
//! | [`packet`] | bytes from the wire, and packets with good checksums |
//! | [`management`] | management datagrams for a switch and an adapter without a driver |
//! | [`network_link`] | packets of a SimBricks network link: messages of ours, in Ethernet frames or not, and frames of others |
//! | [`outside`] | a stream of frames from other software, for a port that is Ethernet |
//! | [`host`] | what a host puts into the ring of an adapter's PCI Express link in a simulation |
//! | [`tunnel`] | datagrams of a tunnel's peer and of strangers, and what they carry to a switch |
//!
//! Each panics if the adapter does, or if it does not work afterwards: a good command gets a good answer,
//! after a reset data moves again, and an adapter beside it has noticed nothing. `tests/tests/model/fuzz.rs`
//! runs them with a fixed number of seeded inputs, `tests/fuzz` under `cargo fuzz`.

pub mod commands;
pub mod feed;
pub mod memory;
pub mod objects;
pub mod two_adapters;

mod entries;
mod fields;
mod host;
mod mailbox;
pub(crate) mod management;
pub(crate) mod mmio;
mod network_link;
mod outside;
pub(crate) mod packet;
mod tunnel;
pub(crate) mod wqe;

pub use entries::entries;
pub use fields::{every_field_at_its_edges, fields};
pub use host::host;
pub use mailbox::{command_mailbox, template_statuses};
pub use management::management;
pub use mmio::mmio;
pub use network_link::network_link;
pub use outside::outside;
pub use packet::{packet, seal};
pub use tunnel::tunnel;
pub use wqe::wqe;
