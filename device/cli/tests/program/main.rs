//! The program `softhca` from outside.

mod commands;
mod common;
mod confined;
mod package;
mod sim;
mod sim_hosts;
