//! The server as its clients, its links and its neighbours see it: a server in a thread, real sockets, one process for all tests.
//! What changes limits of the process has one of its own (`descriptors.rs`, `sandbox/`).

mod client;
#[path = "../common/mod.rs"]
mod common;
mod dma;
mod dma_messages;
mod edge;
mod links;
mod long;
mod malformed;
mod memory_edge;
mod outside;
mod replay;
mod seam;
