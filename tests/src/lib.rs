//! Tests that join the driver, the model, the server and real guests, and what they share.
//!
//! [`in_process`] puts `hca-driver` on the model in virtual time, [`worlds`] has the topologies, [`fabric`] those with switches, [`lan`] those with Ethernet, [`mod@frames`] what is sent there, [`joined`] one topology in
//! several worlds, [`pair`]
//! two connected queue pairs over any bus, [`rig`] all of it made ready, [`faults`] tables of what goes wrong, [`served`] a server to
//! connect to, [`mistakes`] a table of what drivers' authors do wrong, [`bytes`] a bring-up that is right, [`direct`] one without sockets, [`million`] many objects there, [`guests`] stock guests in QEMU, [`smp`] management datagrams, [`speed`] measures in guests, [`browser`] shows pages, [`packets`] the judges of captures, [`process`] what the system says of a process. [`recordings`] are sessions of stock drivers. [`files`] files that go with their test. [`fuzz`] drives the code with
//! arbitrary bytes, [`tenants`] a server with two tenants. The tests themselves are in `tests/tests`; [`netsim`] simulates networks with faults, [`mod@reference`] judges the transport, [`suites`] are
//! run on demand.

pub use hca_bench::in_process;

pub mod bricks;
pub mod browser;
pub mod bytes;
pub mod counters;
pub mod direct;
pub mod fabric;
pub mod fabric64;
pub mod faults;
pub mod files;
pub mod frames;
pub mod fuzz;
pub mod guests;
pub mod hosts;
pub mod joined;
pub mod lan;
pub mod million;
pub mod mistakes;
pub mod netsim;
pub mod packets;
pub mod paged;
pub mod pair;
pub mod process;
/// A vfio-user client that can say anything: that of the server's own tests.
#[path = "../../device/server/tests/common/raw.rs"]
pub mod raw;
pub mod recordings;
pub mod reference;
pub mod rig;
pub mod seeded;
pub mod served;
pub mod smp;
pub mod speed;
pub mod suites;
pub mod tenants;
pub mod worlds;
