//! Clients other than QEMU on real vfio-user sockets, against the server as it runs.

mod driver;
