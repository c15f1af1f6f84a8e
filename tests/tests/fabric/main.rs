//! What lies between adapters, in virtual time: links that lose, switches, several paths, and what captures show of them.

mod captures;
mod edges;
mod functions;
mod joined;
mod losses;
mod manager;
mod migration;
mod netsim;
mod outside;
mod partitions;
mod parts;
mod ports;
mod recordings;
mod switches;
