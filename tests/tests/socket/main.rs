//! Clients other than QEMU against the server as it runs: on real vfio-user sockets, and on a front end of the test.

mod ages;
mod availability;
mod driver;
mod examples;
mod front_end;
mod inspect;
mod recording;
mod tenants;
mod workers;
