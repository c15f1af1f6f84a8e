//! Stock guests in QEMU. Their runs take turns ([`hca_tests::guests::turn`]), whichever threads and processes they are of.

mod captures;
mod clock;
mod ethernet;
mod fabric;
mod memory;
mod one_host;
mod rubbish;
mod server;
mod suites;
mod tunnel;
mod two_hosts;
